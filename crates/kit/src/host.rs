//! Whose door a client knocked at: the Host and Origin rules.
//!
//! A web page that somebody visits can open sockets to loopback, and a name can be made to resolve there. So a
//! Host that is not ours is refused, and so is an Origin that is neither ours nor listed. The same Host is in
//! the signed proof, which keeps a rogue broker from relaying our challenge.

/// The hosts and origins that this broker answers to.
#[derive(Clone, Debug, Default)]
pub struct Doors {
    /// Exact Host headers, lower case, of the listeners themselves.
    listeners: Vec<String>,
    /// What an operator added: `host`, `host:port` or `host:*`.
    public: Vec<String>,
    /// Origins that may connect although they are not ours.
    origins: Vec<String>,
}

/// Why a request was turned away before it became a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Turned {
    /// The Host header is missing or not ours.
    #[error("the Host header does not name this broker; add the name to TENURE_PUBLIC_HOSTS if it should")]
    Host,
    /// The Origin header names a stranger's page.
    #[error("this Origin may not connect; add it to the allowed origins if it should")]
    Origin,
}

impl Doors {
    /// The doors of a loopback listener on `port`, with what an operator added.
    pub fn loopback(port: u16, public: &[String], origins: &[String]) -> Doors {
        let listeners =
            ["localhost", "127.0.0.1", "[::1]"].iter().map(|host| format!("{host}:{port}")).collect();
        let lower = |list: &[String]| list.iter().map(|s| s.to_ascii_lowercase()).collect();
        Doors { listeners, public: lower(public), origins: lower(origins) }
    }

    /// The same doors with one more exact Host, such as the address of the listener.
    pub fn also(mut self, host: &str) -> Doors {
        self.listeners.push(host.to_ascii_lowercase());
        self
    }

    /// Whether a request with these headers may become a socket.
    pub fn check(&self, host: Option<&str>, origin: Option<&str>) -> Result<(), Turned> {
        let host = host.map(str::to_ascii_lowercase).ok_or(Turned::Host)?;
        if !self.is_ours(&host) {
            return Err(Turned::Host);
        }
        let Some(origin) = origin.map(str::to_ascii_lowercase) else { return Ok(()) };
        let same = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://")) == Some(&host);
        if same || self.origins.contains(&origin) { Ok(()) } else { Err(Turned::Origin) }
    }

    /// The Host headers that a client's proof may name, given the one that was received: that one as it stands
    /// or in lower case, or one of the public hosts when a proxy in between has rewritten it.
    pub fn signed_hosts(&self, received: &str) -> Vec<String> {
        let mut hosts = vec![received.to_owned()];
        let exact = self.public.iter().filter(|host| !host.ends_with(":*")).cloned();
        for host in std::iter::once(received.to_ascii_lowercase()).chain(exact) {
            if !hosts.contains(&host) {
                hosts.push(host);
            }
        }
        hosts
    }

    fn is_ours(&self, host: &str) -> bool {
        self.listeners.iter().any(|ours| ours == host) || self.public.iter().any(|ours| matches(ours, host))
    }
}

/// Whether the operator's `rule` covers `host`; `name:*` covers every port.
fn matches(rule: &str, host: &str) -> bool {
    match rule.strip_suffix(":*") {
        Some(name) => host == name || host.strip_prefix(name).is_some_and(|rest| rest.starts_with(':')),
        None => rule == host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doors() -> Doors {
        Doors::loopback(7400, &["mesh.example".into(), "127.0.0.1:*".into()], &["https://app.example".into()])
    }

    #[test]
    fn our_hosts_are_loopback_with_our_port_and_what_was_added() {
        for ours in ["127.0.0.1:7400", "LOCALHOST:7400", "[::1]:7400", "mesh.example", "127.0.0.1:9999"] {
            assert_eq!(doors().check(Some(ours), None), Ok(()), "{ours}");
        }
        for theirs in ["evil.example:7400", "localhost:7401", "mesh.example:80", "127.0.0.1.evil:1", ""] {
            assert_eq!(doors().check(Some(theirs), None), Err(Turned::Host), "{theirs}");
        }
        assert_eq!(doors().check(None, None), Err(Turned::Host));
    }

    #[test]
    fn an_origin_is_ours_or_listed() {
        let check = |origin| doors().check(Some("localhost:7400"), Some(origin));
        assert_eq!(check("http://localhost:7400"), Ok(()));
        assert_eq!(check("https://app.example"), Ok(()));
        assert_eq!(check("http://localhost:7401"), Err(Turned::Origin));
        assert_eq!(check("https://evil.example"), Err(Turned::Origin));
        assert_eq!(check("null"), Err(Turned::Origin));
    }
}
