//! Which headers pass through the relay. What was said to the connection before us stays there; what says where a
//! request came from is written anew (see [`super::forwarded`]); everything else passes as it is.

use std::collections::BTreeSet;

use tenure_proto::name::ServiceName;

use crate::relay::refusal::Refusal;

/// Headers of one connection, never of a message that is passed on.
const HOP_BY_HOP: &[&str] = &[
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
    // Answered where the body is first read, which is here.
    "expect",
];

/// Whether a header of this name, in lower case, says where a request came from. Many servers read `_` as `-`, and every
/// framework has one more `X-Forwarded-…` that it believes.
fn is_origin(name: &str) -> bool {
    let name = name.replace('_', "-");
    name.starts_with("x-forwarded") || name == "forwarded" || name == "x-real-ip"
}

/// Headers that a `Connection` cannot take away from the message: they say what it is, or whom it is for.
const KEPT: &[&str] = &["host", "content-length", "content-type", "authorization", "cookie"];

/// What the headers of one message say about themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passing {
    /// Named by `Connection`: they end here too.
    listed: BTreeSet<String>,
    /// Whether the consumer asks to speak WebSocket from here on.
    pub upgrade: bool,
}

impl Passing {
    /// Looks through a message's headers, names in lower case.
    pub fn new<'a>(headers: impl Iterator<Item = (&'a str, &'a [u8])>) -> Passing {
        let (mut listed, mut websocket) = (BTreeSet::new(), false);
        for (name, value) in headers {
            match name {
                "connection" => listed.extend(tokens(value)),
                "upgrade" => websocket |= tokens(value).any(|token| token == "websocket"),
                _ => {}
            }
        }
        // Nothing else is switched to: `h2c` would carry requests past every rule here.
        let upgrade = websocket && listed.contains("upgrade");
        listed.retain(|name| !KEPT.contains(&name.as_str()));
        Passing { listed, upgrade }
    }

    /// Whether a header of this name, in lower case, passes. Of a request, what says where it came from does not.
    pub fn passes(&self, name: &str, request: bool) -> bool {
        !(HOP_BY_HOP.contains(&name) || self.listed.contains(name) || request && is_origin(name))
    }
}

/// The comma-separated tokens of a header, in lower case.
fn tokens(value: &[u8]) -> impl Iterator<Item = String> {
    let text = String::from_utf8_lossy(value).to_ascii_lowercase();
    let tokens: Vec<String> = text.split(',').map(|token| token.trim().to_owned()).collect();
    tokens.into_iter().filter(|token| !token.is_empty())
}

/// Whether a body of this length may come; `most` is nothing when every length may.
pub fn check_length(length: Option<u64>, most: Option<u64>) -> Result<(), Refusal> {
    match (length, most) {
        (Some(length), Some(most)) if length > most => Err(Refusal::body_too_large(most)),
        _ => Ok(()),
    }
}

/// The `Via` that a request leaves with; refused when it has been here before. `us` is this broker's id.
pub fn via(given: &[&[u8]], us: &str, name: &ServiceName) -> Result<String, Refusal> {
    let ours = format!("1.1 tenure-{us}");
    let mut whole = String::new();
    for value in given {
        let text = String::from_utf8_lossy(value);
        if text.split(',').any(|hop| hop.trim() == ours) {
            return Err(Refusal::loop_detected(name));
        }
        whole.push_str(text.trim());
        whole.push_str(", ");
    }
    Ok(whole + &ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passing(headers: &[(&str, &str)]) -> Passing {
        Passing::new(headers.iter().map(|(name, value)| (*name, value.as_bytes())))
    }

    #[test]
    fn what_is_said_to_a_connection_ends_with_it() {
        let rules = passing(&[("connection", "close, X-Secret ,content-length"), ("connection", "x-other")]);
        for name in ["connection", "keep-alive", "te", "transfer-encoding", "upgrade", "x-secret", "x-other"]
        {
            assert!(!rules.passes(name, true) && !rules.passes(name, false), "{name}");
        }
        for name in ["accept", "cookie", "x-more", "content-length", "host"] {
            assert!(rules.passes(name, true), "{name}");
        }
    }

    #[test]
    fn where_a_request_came_from_is_not_passed_on() {
        let rules = passing(&[]);
        for name in ["x-forwarded-for", "forwarded", "x-forwarded-host", "x-forwarded-proto", "x-real-ip"] {
            assert!(!rules.passes(name, true), "{name}");
            assert!(rules.passes(name, false), "an answer may say {name}");
        }
        for name in
            ["x-forwarded-user", "x-forwarded-prefix", "x_forwarded_for", "x-forwarded_proto", "x_real_ip"]
        {
            assert!(!rules.passes(name, true), "{name}");
        }
        assert!(rules.passes("x-forward", true) && rules.passes("forwarded-by-hand", true));
    }

    #[test]
    fn only_websocket_is_switched_to_and_only_when_asked_twice() {
        assert!(passing(&[("connection", "keep-alive, Upgrade"), ("upgrade", "WebSocket")]).upgrade);
        assert!(!passing(&[("upgrade", "websocket")]).upgrade);
        assert!(!passing(&[("connection", "upgrade"), ("upgrade", "h2c")]).upgrade);
        assert!(!passing(&[("connection", "upgrade")]).upgrade);
    }

    #[test]
    fn a_body_has_a_bound_and_a_request_passes_once() {
        assert!(check_length(Some(10), Some(10)).is_ok() && check_length(Some(11), None).is_ok());
        assert!(check_length(None, Some(10)).is_ok());
        assert_eq!(check_length(Some(11), Some(10)).unwrap_err().status, 413);
        let name: ServiceName = "web".parse().unwrap();
        assert_eq!(via(&[], "b1", &name).unwrap(), "1.1 tenure-b1");
        assert_eq!(via(&[b"1.0 fred"], "b1", &name).unwrap(), "1.0 fred, 1.1 tenure-b1");
        assert!(via(&[b"1.1 tenure-b2"], "b1", &name).is_ok(), "another broker's is not ours");
        assert_eq!(via(&[b"1.0 fred, 1.1 tenure-b1"], "b1", &name).unwrap_err().status, 508);
    }
}
