//! The daemon of this machine, as a program meets it: HTTP over its Unix socket.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::handshake;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tenure_daemon::socket_path;
use tokio::net::UnixStream;

use crate::exit::Failure;
use crate::home::Home;
use crate::output::sentence;

/// How long the daemon may take to answer; what it asks its broker takes it 20 s at most.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of an answer: a page holds 4 MiB of messages, and JSON may need several bytes for one.
const ANSWER_BYTES: usize = 64 * 1024 * 1024;

/// The way to a daemon.
#[derive(Clone, Debug)]
pub(crate) struct Local {
    socket: PathBuf,
    /// The session that is meant, by its token; the daemon's own if there is none.
    token: Option<String>,
}

/// What a daemon answered.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Value,
}

impl Local {
    /// The daemon whose directory this is, whether or not it runs.
    pub(crate) fn at(home: &Home) -> Local {
        Local { socket: socket_path(home.path()), token: None }
    }

    /// The same, for the session with this token.
    pub(crate) fn speaking_as(self, token: Option<String>) -> Local {
        Local { token, ..self }
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Whether somebody listens. A socket that is not ours to open is an error: a daemon runs, for somebody else.
    pub(crate) async fn runs(&self) -> Result<bool, Failure> {
        match UnixStream::connect(&self.socket).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => Err(self.denied()),
            Err(_) => Ok(false),
        }
    }

    fn denied(&self) -> Failure {
        let socket = self.socket.display();
        Failure::Failed(format!("the daemon at {socket} is somebody else's: set TENURE_HOME to your own"))
    }

    /// Asks for something.
    pub(crate) async fn get(&self, path: &str) -> Result<Value, Failure> {
        self.call(Method::GET, path, None).await?.good()
    }

    /// Asks for something to be done.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.call(Method::POST, path, Some(body)).await?.good()
    }

    /// Asks, and gives the answer whatever it is.
    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Answer, Failure> {
        let asked = async {
            let response = self.open(method, path, body, &[]).await?;
            let status = response.status();
            let body = Limited::new(response.into_body(), ANSWER_BYTES).collect().await;
            let body = body.map_err(|error| self.lost(&error.to_string()))?.to_bytes();
            let body = if body.is_empty() { Ok(Value::Null) } else { serde_json::from_slice(&body) };
            let body = body.map_err(|error| self.lost(&format!("its answer is not JSON: {error}")))?;
            Ok(Answer { status, body })
        };
        let late = |_| Err(self.lost(&format!("no answer within {} s", PATIENCE.as_secs())));
        tokio::time::timeout(PATIENCE, asked).await.unwrap_or_else(late)
    }

    /// Begins a request; its body is still to be read.
    pub(crate) async fn open(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        headers: &[(&str, &str)],
    ) -> Result<Response<Incoming>, Failure> {
        let socket = UnixStream::connect(&self.socket).await.map_err(|error| match error.kind() {
            ErrorKind::PermissionDenied => self.denied(),
            _ => self.absent(),
        })?;
        let (mut sender, connection) =
            handshake(TokioIo::new(socket)).await.map_err(|error| self.lost(&error.to_string()))?;
        // It ends with the answer, or with us.
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path).header(HOST, "localhost");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(token) = &self.token {
            request = request.header("tenure-session", token);
        }
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let body = Full::new(Bytes::from(body.map(Value::to_string).unwrap_or_default()));
        let request =
            request.body(body).map_err(|error| Failure::Usage(format!("not a request: {error}")))?;
        sender.send_request(request).await.map_err(|error| self.lost(&error.to_string()))
    }

    /// No daemon runs.
    pub(crate) fn absent(&self) -> Failure {
        let socket = self.socket.display();
        Failure::Unreachable(format!("no daemon answers at {socket}; start one with `tenure daemon up`"))
    }

    fn lost(&self, why: &str) -> Failure {
        let socket = self.socket.display();
        Failure::Unreachable(format!("the daemon at {socket} does not answer: {}", sentence(why)))
    }
}

impl Answer {
    /// What it says, if it is good.
    pub(crate) fn good(self) -> Result<Value, Failure> {
        if self.status.is_success() { Ok(self.body) } else { Err(self.failure()) }
    }

    /// What a refusal means for the exit code.
    pub(crate) fn failure(&self) -> Failure {
        let text = |key: &str| self.body[key].as_str().map(sentence);
        let code = text("code").unwrap_or_else(|| self.status.to_string());
        let mut told = format!("{code}: {}", text("detail").unwrap_or_default());
        if let Some(reason) = text("reason") {
            told += &format!(" ({reason})");
        }
        match self.status {
            StatusCode::SERVICE_UNAVAILABLE => Failure::Unreachable(told),
            StatusCode::INSUFFICIENT_STORAGE | StatusCode::INTERNAL_SERVER_ERROR => Failure::Failed(told),
            _ => Failure::Refused(told),
        }
    }
}

/// Text as a part of a path or of a query.
pub(crate) fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ids_of_all_kinds_are_one_part_of_a_path() {
        assert_eq!(escaped("a/b c?d%e~1.é"), "a%2Fb%20c%3Fd%25e~1.%C3%A9");
    }

    #[test]
    fn what_a_daemon_says_is_told_in_one_line() {
        let body = json!({"code": "conflict", "detail": "no\nway", "reason": "dead"});
        let refused = Answer { status: StatusCode::CONFLICT, body }.good().unwrap_err();
        assert!(matches!(refused, Failure::Refused(_)));
        assert_eq!(refused.to_string(), "conflict: no\u{fffd}way (dead)");
        let away = Answer { status: StatusCode::SERVICE_UNAVAILABLE, body: Value::Null }.good().unwrap_err();
        assert!(matches!(away, Failure::Unreachable(_)));
    }
}
