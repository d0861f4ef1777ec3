//! The relay's knobs, checked.

use std::net::SocketAddr;
use std::time::Duration;

use tenure_kit::cidr::Cidr;
use tenure_mesh::relay::Domains;

use crate::config::ConfigProblem;

/// Where the relay listens beside a broker at its usual place.
const DEFAULT_LISTEN: &str = "127.0.0.1:7480";

/// How HTTP by name is served.
#[derive(Clone, Debug)]
pub struct RelayConfig {
    /// Where; nothing is nowhere.
    pub listen: Option<SocketAddr>,
    /// Below which domains services have names.
    pub domains: Domains,
    /// Whose word is taken for where a request came from.
    pub proxies: Vec<Cidr>,
    /// How long a request's head may take.
    pub head: Duration,
    /// How long a service may take to begin its answer, once it has the request.
    pub answer: Duration,
    /// How long a consumer may take over the next piece of its body.
    pub idle: Duration,
    /// Bytes of a request's body; nothing is as many as it likes.
    pub body_bytes: Option<u64>,
    /// Connections at once; one more is closed.
    pub connections: usize,
}

impl Default for RelayConfig {
    fn default() -> RelayConfig {
        RelayConfig {
            listen: None,
            domains: Domains::default(),
            proxies: Vec::new(),
            head: Duration::from_secs(10),
            answer: Duration::from_secs(60),
            idle: Duration::from_secs(30),
            body_bytes: Some(1024 * 1024 * 1024),
            connections: 16_384,
        }
    }
}

/// What an operator wrote of it.
pub(crate) struct RawRelay<'a> {
    pub(crate) listen: Option<&'a str>,
    pub(crate) domains: &'a [String],
    pub(crate) proxies: &'a [String],
    pub(crate) answer_ms: Option<u64>,
    pub(crate) idle_ms: Option<u64>,
    pub(crate) max_body: Option<u64>,
}

impl RawRelay<'_> {
    /// The checked knobs, for a broker that listens at `broker`. Unless told otherwise the relay is where its usual
    /// broker expects it, and beside any other broker at a free port: several of them run on one machine.
    pub(crate) fn check(&self, broker: SocketAddr, usual: u16) -> Result<RelayConfig, ConfigProblem> {
        let problem = |text: String| Err(ConfigProblem(text));
        let free = SocketAddr::from(([127, 0, 0, 1], 0));
        let listen = match self.listen.map(str::trim) {
            Some("off") => None,
            Some(text) => Some(text.replace("localhost", "127.0.0.1")),
            None if broker.port() == usual => Some(DEFAULT_LISTEN.to_owned()),
            None => Some(free.to_string()),
        };
        let listen: Option<SocketAddr> = match listen.as_deref().map(str::parse).transpose() {
            Ok(listen) => listen,
            Err(_) => {
                return problem(format!(
                    "relay_listen must be ADDRESS:PORT, such as {DEFAULT_LISTEN}, or off"
                ));
            }
        };
        let domains = match Domains::new(self.domains) {
            Ok(domains) => domains,
            Err(bad) => return problem(format!("relay_domains must be names of DNS by comma, not {bad:?}")),
        };
        let read = |text: &String| {
            Cidr::exact(text)
                .map_err(|error| ConfigProblem(format!("relay_proxies: {text:?}: {}", error.message)))
        };
        let proxies: Vec<Cidr> = self.proxies.iter().map(read).collect::<Result<_, _>>()?;
        let usual = RelayConfig::default();
        let time = |name: &str, ms: Option<u64>, usual: Duration| match ms {
            None => Ok(usual),
            Some(ms @ 100..=86_400_000) => Ok(Duration::from_millis(ms)),
            Some(_) => Err(ConfigProblem(format!("{name} must be between 100 and 86400000, which is a day"))),
        };
        let answer = time("relay_answer_ms", self.answer_ms, usual.answer)?;
        let idle = time("relay_idle_ms", self.idle_ms, usual.idle)?;
        let body_bytes = match self.max_body {
            None => usual.body_bytes,
            Some(0) => None,
            some => some,
        };
        Ok(RelayConfig { listen, domains, proxies, answer, idle, body_bytes, ..usual })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(listen: Option<&str>) -> RawRelay<'_> {
        RawRelay { listen, domains: &[], proxies: &[], answer_ms: None, idle_ms: None, max_body: None }
    }

    #[test]
    fn the_relay_is_beside_its_broker() {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let listen = |text, broker| raw(text).check(at(broker), 7400).unwrap().listen;
        assert_eq!(listen(None, 7400), Some(at(7480)));
        assert_eq!(listen(None, 7401), Some(at(0)));
        assert_eq!(listen(Some("localhost:9"), 7400), Some(at(9)));
        assert_eq!(listen(Some("off"), 7400), None);
        assert!(raw(Some("nowhere")).check(at(1), 7400).unwrap_err().0.contains("relay_listen"));
    }

    #[test]
    fn what_is_wrong_is_said_by_name() {
        let broker = SocketAddr::from(([127, 0, 0, 1], 1));
        let bad = ["no domain".to_owned()];
        let domains = RawRelay { domains: &bad, ..raw(None) };
        assert!(domains.check(broker, 7400).unwrap_err().0.contains("relay_domains"));
        let proxies = RawRelay { proxies: &bad, ..raw(None) };
        assert!(proxies.check(broker, 7400).unwrap_err().0.contains("relay_proxies"));
        let answer = RawRelay { answer_ms: Some(99), ..raw(None) };
        assert!(answer.check(broker, 7400).unwrap_err().0.contains("relay_answer_ms"));
        assert_eq!(RawRelay { max_body: Some(0), ..raw(None) }.check(broker, 7400).unwrap().body_bytes, None);
    }
}
