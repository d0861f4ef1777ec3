//! Who asks: `Forwarded` and `X-Forwarded-*` as the service behind the relay sees them.
//!
//! A stranger may write what it likes into these headers, so they are dropped and written anew from the connection.
//! Only what a configured proxy says is believed, and then it is kept, with the proxy added behind it.

use core::net::IpAddr;

use tenure_kit::cidr::Cidr;

/// What a request says about where it came from; believed only of a configured proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said<'a> {
    /// Every `X-Forwarded-For`.
    pub x_for: Vec<&'a [u8]>,
    /// Every `Forwarded`.
    pub forwarded: Vec<&'a [u8]>,
    /// `X-Forwarded-Proto`.
    pub proto: Option<&'a [u8]>,
    /// `X-Forwarded-Host`.
    pub host: Option<&'a [u8]>,
}

/// Who asks, as the headers that a request leaves with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forwarded {
    /// `X-Forwarded-For`.
    pub x_for: String,
    /// `X-Forwarded-Proto`.
    pub proto: String,
    /// `X-Forwarded-Host`.
    pub host: String,
    /// `Forwarded`.
    pub forwarded: String,
}

impl Forwarded {
    /// What the service is told of a request from `peer` for `host`, over TLS or not.
    pub fn new(peer: IpAddr, host: &str, tls: bool, said: &Said<'_>, proxies: &[Cidr]) -> Forwarded {
        let peer = peer.to_canonical();
        let scheme = if tls { "https" } else { "http" };
        let node = match peer {
            IpAddr::V4(v4) => v4.to_string(),
            IpAddr::V6(v6) => format!("\"[{v6}]\""),
        };
        let hop = format!("for={node};host=\"{host}\";proto={scheme}");
        if !is_believed(peer, proxies) {
            let (x_for, proto, host) = (peer.to_string(), scheme.to_owned(), host.to_owned());
            return Forwarded { x_for, proto, host, forwarded: hop };
        }
        let joined = |said: &[&[u8]], last: &str| {
            let mut parts: Vec<String> = said.iter().filter_map(|value| plain(value)).collect();
            parts.push(last.to_owned());
            parts.join(", ")
        };
        Forwarded {
            x_for: joined(&said.x_for, &peer.to_string()),
            proto: said.proto.and_then(plain).unwrap_or_else(|| scheme.to_owned()),
            host: said.host.and_then(plain).unwrap_or_else(|| host.to_owned()),
            forwarded: joined(&said.forwarded, &hop),
        }
    }
}

/// Whether what `peer` says about where a request came from is believed: it is a configured proxy.
pub fn is_believed(peer: IpAddr, proxies: &[Cidr]) -> bool {
    proxies.iter().any(|proxy| proxy.holds(peer.to_canonical()))
}

/// The value as text, if it is plain.
fn plain(value: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(value).ok()?.trim();
    (!text.is_empty() && text.bytes().all(|b| (0x20..0x7f).contains(&b))).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_stranger_is_not_believed() {
        let said = Said {
            x_for: vec![b"1.2.3.4"],
            forwarded: vec![b"for=1.2.3.4"],
            proto: Some(b"https"),
            host: Some(b"bank.example"),
        };
        let proxies = ["10.0.0.0/8".parse().unwrap()];
        let seen = Forwarded::new(ip("192.0.2.7"), "web.localhost:7480", false, &said, &proxies);
        assert_eq!(seen.x_for, "192.0.2.7");
        assert_eq!(seen.proto, "http");
        assert_eq!(seen.host, "web.localhost:7480");
        assert_eq!(seen.forwarded, "for=192.0.2.7;host=\"web.localhost:7480\";proto=http");
    }

    #[test]
    fn a_proxys_word_is_kept_and_the_proxy_added() {
        let said = Said { x_for: vec![b"1.2.3.4", b"5.6.7.8"], proto: Some(b"https"), ..Said::default() };
        let proxies = ["10.0.0.0/8".parse().unwrap()];
        let seen = Forwarded::new(ip("10.1.1.1"), "web.relay.example", false, &said, &proxies);
        assert_eq!(seen.x_for, "1.2.3.4, 5.6.7.8, 10.1.1.1");
        assert_eq!(seen.proto, "https");
        assert_eq!(seen.host, "web.relay.example");
        let odd = Said { x_for: vec![b"1.2.3.4\r\nx: y"], proto: Some(b"\xff"), ..Said::default() };
        let seen = Forwarded::new(ip("10.1.1.1"), "web.relay.example", true, &odd, &proxies);
        assert_eq!((seen.x_for.as_str(), seen.proto.as_str()), ("10.1.1.1", "https"));
    }

    #[test]
    fn an_address_of_ipv6_is_written_as_the_rule_says() {
        let seen = Forwarded::new(ip("2001:db8::1"), "h", false, &Said::default(), &[]);
        assert_eq!(seen.x_for, "2001:db8::1");
        assert!(seen.forwarded.starts_with("for=\"[2001:db8::1]\";"));
    }
}
