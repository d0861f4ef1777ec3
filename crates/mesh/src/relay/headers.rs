//! Which headers pass through the relay. What was said to the connection before us stays there; what says where a
//! request came from is written anew (see [`crate::relay::forwarded`]); everything else passes as it is.

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

/// Headers by which proxies and content networks tell a client's address, and which no pattern finds; frameworks believe
/// them.
const CLIENT_ADDRESS: &[&str] =
    &["x-originating-ip", "x-remote-ip", "x-envoy-external-address", "x-azure-clientip"];

/// What a header is called that tells a client's address: every network and every framework has one more of them, so they
/// are known by a part of their names.
const ORIGIN_PARTS: &[&str] = &[
    "forwarded",
    "client-ip",
    "connecting-ip",
    "real-ip",
    "user-ip",
    "viewer-address",
    "remote-addr",
    "socketip",
];

/// Whether a header of this name, in lower case and spelled with `-`, says where a request came from.
fn is_origin(name: &str) -> bool {
    ORIGIN_PARTS.iter().any(|part| name.contains(part)) || CLIENT_ADDRESS.contains(&name)
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

    /// Whether a header of this name, in lower case, passes. Of a request, what says where it came from does not. Many
    /// servers read `_` as `-`, so a name is judged as they would read it.
    pub fn passes(&self, name: &str, request: bool) -> bool {
        let read = name.replace('_', "-");
        let disguised = read != name && KEPT.contains(&read.as_str());
        let hop = HOP_BY_HOP.contains(&read.as_str()) || self.listed.contains(name) || disguised;
        !(hop || request && is_origin(&read))
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

/// How a relay of ours names itself in `Via`, before the first digits of its broker's id.
const RELAY_HOP: &str = "1.1 tenure-";
/// How many digits of its broker's id follow.
const RELAY_ID_DIGITS: usize = 8;
/// Relays that a request may have passed before us: nobody means to chain more.
const RELAY_HOPS: usize = 16;

/// Whether this is the hop of a relay, and nothing that a consumer put behind the same beginning.
fn is_relay_hop(hop: &str) -> bool {
    let id = hop.strip_prefix(RELAY_HOP).unwrap_or_default();
    id.len() == RELAY_ID_DIGITS && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The `Via` that a request leaves with; refused when it has been here before, or at too many relays. `us` is this broker's
/// id. A consumer's own word is dropped unless it is a configured proxy (`believed`); hops of relays stay, or a loop over
/// two of them would not be seen.
pub fn via(given: &[&[u8]], us: &str, name: &ServiceName, believed: bool) -> Result<String, Refusal> {
    let ours = format!("{RELAY_HOP}{}", us.get(..RELAY_ID_DIGITS).unwrap_or(us));
    let (mut hops, mut relays) = (Vec::new(), 0);
    for value in given {
        let text = String::from_utf8_lossy(value);
        for hop in text.split(',').map(str::trim) {
            let relay = is_relay_hop(hop);
            relays += usize::from(relay);
            if hop == ours || relays > RELAY_HOPS {
                return Err(Refusal::loop_detected(name));
            }
            if believed || relay {
                hops.push(hop.to_owned());
            }
        }
    }
    hops.push(ours);
    Ok(hops.join(", "))
}

/// A `Set-Cookie` of a service without its `Domain`: then the cookie belongs to the service's own host and to nothing below
/// it. A service that is called like a mesh stands above all services of that mesh, so not even its own name may be said.
pub fn own_cookie(value: &[u8]) -> Vec<u8> {
    let keeps = |part: &&[u8]| {
        let name = part.split(|byte| *byte == b'=').next().unwrap_or_default();
        !String::from_utf8_lossy(name).trim().eq_ignore_ascii_case("domain")
    };
    let mut parts = value.split(|byte| *byte == b';');
    // The first part is the cookie itself, whatever its name.
    let mut kept = vec![parts.next().unwrap_or_default()];
    kept.extend(parts.filter(keeps));
    kept.join(&b';')
}

/// Whether an answer says twice how long it is: where it ends would depend on who reads it.
pub fn has_two_lengths<'a>(mut names: impl Iterator<Item = &'a str>) -> bool {
    let (mut length, mut encoding) = (false, false);
    names.any(|name| {
        length |= name == "content-length";
        encoding |= name == "transfer-encoding";
        length && encoding
    })
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
        for name in [
            "true-client-ip",
            "cf-connecting-ip",
            "x-client-ip",
            "client-ip",
            "client_ip",
            "x-cluster-client-ip",
            "x-original-forwarded-for",
            "x_original_forwarded_for",
            "proxy-client-ip",
            "wl-proxy-client-ip",
            "wl_proxy_client_ip",
            "fly-client-ip",
            "do-connecting-ip",
            "cf-connecting-ipv6",
            "cloudfront-viewer-address",
            "incap-client-ip",
            "x-proxyuser-ip",
            "x-appengine-user-ip",
            "x-vercel-forwarded-for",
            "x-azure-clientip",
            "x-remote-addr",
            "remote-addr",
            "x-appengine-remote-addr",
            "x-azure-socketip",
        ] {
            assert!(!rules.passes(name, true), "{name}");
        }
        for name in ["x-forward", "x-client", "client-id", "x-user-id", "x-real", "viewer"] {
            assert!(rules.passes(name, true), "{name}");
        }
    }

    #[test]
    fn a_header_in_disguise_is_judged_as_servers_read_it() {
        let rules = passing(&[]);
        for name in ["content_length", "transfer_encoding", "proxy_connection", "keep_alive"] {
            assert!(!rules.passes(name, true) && !rules.passes(name, false), "{name}");
        }
        assert!(rules.passes("x_mine", true) && rules.passes("content-length", true));
    }

    #[test]
    fn a_cookie_stays_with_its_own_service() {
        for (given, kept) in [
            ("a=b; Domain=relay.example; Path=/", "a=b; Path=/"),
            ("a=b; domain=.relay.example", "a=b"),
            ("a=b;DOMAIN = \"localhost\";Secure", "a=b;Secure"),
            ("a=b; Domain=", "a=b"),
            ("a=b; Domain", "a=b"),
            // Its own host is that of a mesh too, if it is called like one.
            ("a=b; Domain=WEB.relay.example; Path=/", "a=b; Path=/"),
            ("a=b; Domain=x; HttpOnly; domain=y", "a=b; HttpOnly"),
            ("domain=relay.example; Path=/", "domain=relay.example; Path=/"),
            ("a=b; Path=/; SameSite=Lax", "a=b; Path=/; SameSite=Lax"),
        ] {
            assert_eq!(String::from_utf8_lossy(&own_cookie(given.as_bytes())), kept, "{given}");
        }
    }

    #[test]
    fn an_answer_has_one_length() {
        assert!(has_two_lengths(["content-length", "date", "transfer-encoding"].into_iter()));
        assert!(!has_two_lengths(["content-length", "content-length"].into_iter()));
        assert!(!has_two_lengths(["transfer-encoding"].into_iter()));
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
        let (us, ours, other) = ("0123abcd89", "1.1 tenure-0123abcd", "1.1 tenure-ffff0000");
        let said = |given: &str, believed| via(&[given.as_bytes()], us, &name, believed);
        assert_eq!(via(&[], us, &name, false).unwrap(), ours);
        assert_eq!(said("1.0 fred", true).unwrap(), format!("1.0 fred, {ours}"));
        assert_eq!(said("1.0 fred", false).unwrap(), ours, "a stranger's word");
        let hop = said(&format!("1.0 fred, {other}"), false).unwrap();
        assert_eq!(hop, format!("{other}, {ours}"), "another relay's hop stays");
        for none in [
            "1.1 tenure-",
            "1.1 tenure-ffff000",
            "1.1 tenure-ffff00000",
            "1.1 tenure-<script>",
            "1.1 tenure-ffff0000 (fred)",
        ] {
            assert_eq!(said(none, false).unwrap(), ours, "{none} is no relay's hop");
        }
        assert_eq!(said(&format!("1.0 fred, {ours}"), false).unwrap_err().status, 508);
        let long = vec![other; RELAY_HOPS].join(",");
        assert!(said(&long, false).is_ok());
        assert_eq!(said(&format!("{long},{other}"), false).unwrap_err().status, 508, "no end of relays");
    }
}
