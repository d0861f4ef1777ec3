//! A broker as its operator meets it: HTTP with the operator's token.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tenure_client::Endpoint;

use crate::cmd::Where;
use crate::exit::Failure;
use crate::home::Home;
use crate::local::Answer;
use crate::output::sentence;

/// How long a broker may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of an answer.
const ANSWER_BYTES: usize = 1024 * 1024;

/// The way to a broker's admin API.
pub(crate) struct Operator {
    endpoint: Endpoint,
    token: String,
}

/// Why there was no answer.
#[derive(Debug)]
pub(crate) enum Silence {
    /// Nobody listens.
    Nobody,
    /// The connection broke, or nothing came in time.
    Lost(String),
}

impl Operator {
    /// The operator of the broker at `at`, with the token of the environment or, of one on this machine, of the broker's
    /// data directory.
    pub(crate) fn find(at: &Where, data_dir: Option<&Path>) -> Result<Operator, Failure> {
        let endpoint = at.endpoint()?;
        let given = std::env::var("TENURE_ADMIN_TOKEN").ok().filter(|token| !token.is_empty());
        let token = token(&endpoint, given, data_dir)?;
        Ok(Operator { endpoint, token })
    }

    /// Asks, and gives the answer whatever it is.
    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Answer, Silence> {
        let late = |_| Err(Silence::Lost(format!("no answer within {} s", PATIENCE.as_secs())));
        tokio::time::timeout(PATIENCE, self.exchange(method, path, body)).await.unwrap_or_else(late)
    }

    async fn exchange(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Answer, Silence> {
        let lost = |error: &dyn std::fmt::Display| Silence::Lost(sentence(&error.to_string()));
        let stream = self.endpoint.dial().await.map_err(|error| match error.kind() {
            ErrorKind::ConnectionRefused => Silence::Nobody,
            _ => lost(&error),
        })?;
        let (mut sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|error| lost(&error))?;
        // It ends with the answer, or with us.
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, self.endpoint.host())
            .header(AUTHORIZATION, format!("Bearer {}", self.token))
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body.map(Value::to_string).unwrap_or_default())))
            .map_err(|error| lost(&error))?;
        let response = sender.send_request(request).await.map_err(|error| lost(&error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES).collect().await;
        let body = body.map_err(|error| lost(&error))?.to_bytes();
        // What is not JSON is not ours, and says nothing that we know.
        Ok(Answer { status, body: serde_json::from_slice(&body).unwrap_or_default() })
    }

    /// What it means that the broker has no such route.
    pub(crate) fn unmanaged(&self) -> Failure {
        let address = self.endpoint.host();
        Failure::Refused(format!(
            "not_found: the broker at {address} has no operator: give it a TENURE_ADMIN_TOKEN when it starts, or stop it with a \
             signal"
        ))
    }

    /// What it means that there was no answer.
    pub(crate) fn unreached(&self, silence: &Silence) -> Failure {
        let address = self.endpoint.host();
        Failure::Unreachable(match silence {
            Silence::Nobody => {
                format!("no broker answers at {address}; name another with --broker")
            }
            Silence::Lost(why) => format!("the broker at {address} does not answer: {why}"),
        })
    }
}

/// The operator's token: what was given, or what the broker keeps in its data directory. The one of the file is of a broker
/// of this machine, and goes to no other; one that was given goes where nobody on the way can read it.
fn token(endpoint: &Endpoint, given: Option<String>, data_dir: Option<&Path>) -> Result<String, Failure> {
    let (here, host) = (endpoint.is_loopback(), endpoint.host());
    if let Some(token) = given {
        return match here || !endpoint.is_clear() {
            true => Ok(token),
            false => Err(Failure::Usage(format!(
                "the operator's token is not sent in the clear to {host}: reach the broker at wss://, or from its own machine"
            ))),
        };
    }
    if !here {
        return Err(Failure::Usage(format!(
            "the broker at {host} is on another machine, and the operator's token of this one is not for it: set \
             TENURE_ADMIN_TOKEN"
        )));
    }
    let dir = match data_dir {
        Some(dir) => dir.to_owned(),
        None => Home::find()?.broker_dir(),
    };
    let path = dir.join("admin.token");
    let text = std::fs::read_to_string(&path).map_err(|error| {
        let path = path.display();
        Failure::Usage(format!(
            "read the operator's token {path}: {error}; name the broker's --data-dir, or set TENURE_ADMIN_TOKEN"
        ))
    })?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_goes_to_no_stranger_and_over_no_open_line() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("admin.token"), "of-this-machine\n").unwrap();
        let ask = |url: &str, given: Option<&str>| {
            let outcome = token(&Endpoint::new(url).unwrap(), given.map(str::to_owned), Some(dir.path()));
            outcome.map_err(|failure| failure.to_string())
        };
        for here in ["ws://127.0.0.1:7400", "ws://localhost:7400", "wss://[::1]:7400"] {
            assert_eq!(ask(here, None).unwrap(), "of-this-machine", "{here}");
            assert_eq!(ask(here, Some("given")).unwrap(), "given", "{here}");
        }
        for away in ["ws://mesh.example:7400", "wss://mesh.example:7400", "wss://10.0.0.5:7400"] {
            assert!(ask(away, None).unwrap_err().contains("set TENURE_ADMIN_TOKEN"), "{away}");
        }
        assert_eq!(ask("wss://mesh.example:7400", Some("given")).unwrap(), "given");
        assert!(ask("ws://mesh.example:7400", Some("given")).unwrap_err().contains("wss://"));
    }
}
