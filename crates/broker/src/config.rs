//! Configuration: options from flags, environment and file, merged, then checked into [`Config`]. Nothing past this
//! module parses a string.

mod options;

use std::net::SocketAddr;
use std::path::PathBuf;

use tenure_kit::address::AddressLimits;
use tenure_kit::cidr::Cidr;
use tenure_kit::rate::Rate;
use tenure_mesh::MeshConfig;
use tenure_mesh::access::operator_auth::{Operator, TOKEN_BYTES_MAX, TOKEN_BYTES_MIN};
use tenure_mesh::config::BURST_SECONDS;

use crate::relay::{RawRelay, RelayConfig};
use crate::stop::RESTART_IN_MAX_MS;

pub use self::options::{RawConfig, RawDays};

/// Where a broker listens unless told otherwise.
pub const DEFAULT_LISTEN: &str = "127.0.0.1:7400";
/// Its port.
const DEFAULT_PORT: u16 = 7400;
/// Sockets that may not have said hello yet, unless told otherwise.
const UNAUTHENTICATED_SOCKETS: usize = 16_384;
/// Bytes that all sockets together may hold, unless told otherwise.
const BUFFERED_TOTAL_BYTES: usize = 256 * 1024 * 1024;
/// The fewest connections that may be asked for: some are kept in reserve, and some are needed to look.
const CONNECTIONS_MIN: u64 = 16;

/// What durable state goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreChoice {
    /// The embedded store in this directory.
    Sqlite(PathBuf),
    /// Nothing: state dies with the process. For tests.
    Memory,
}

/// A checked configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen.
    pub listen: SocketAddr,
    /// What durable state goes to.
    pub store: StoreChoice,
    /// The numbers of the mesh.
    pub mesh: MeshConfig,
    /// Connections that have not said hello yet; for one more, an older one is let go.
    pub max_unauthenticated: usize,
    /// Connections in all; absent is as many as the limit of open files allows.
    pub max_connections: Option<usize>,
    /// Bytes that all sockets together may hold.
    pub max_buffered_total: usize,
    /// What an address may have and do.
    pub addresses: AddressLimits,
    /// How services are reached over HTTP.
    pub relay: RelayConfig,
    /// The seed of the key that signs resume tokens; absent is the store's own.
    pub resume_key: Option<[u8; 32]>,
    /// The operator's token; absent is the one in the data directory.
    pub admin_token: Option<String>,
    /// How soon after a signal to stop another broker is here; absent is that none is promised.
    pub restart_in_ms: Option<u64>,
    /// Hosts that clients may name besides the listener's own.
    pub public_hosts: Vec<String>,
    /// Origins that may connect besides our own.
    pub allowed_origins: Vec<String>,
    /// Whether `/test/echo` is served, for conformance suites.
    pub test_echo: bool,
    /// The files of the certificate and its key, if connections are encrypted here.
    pub tls: Option<TlsFiles>,
    /// Whether somebody in front encrypts connections.
    pub behind_proxy: bool,
    /// Where proxies are that are believed about where their clients are.
    pub trusted_proxies: Vec<Cidr>,
}

/// Where a certificate is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The chain, in PEM, ours first.
    pub cert: PathBuf,
    /// Its private key, in PEM.
    pub key: PathBuf,
}

impl Config {
    /// An open broker on a free loopback port with state in memory and leases of `lease_ttl_ms`: for tests and
    /// demonstrations.
    pub fn ephemeral(lease_ttl_ms: u64) -> Config {
        Config {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            store: StoreChoice::Memory,
            mesh: MeshConfig::with_lease(lease_ttl_ms),
            max_unauthenticated: UNAUTHENTICATED_SOCKETS,
            max_connections: None,
            max_buffered_total: BUFFERED_TOTAL_BYTES,
            addresses: AddressLimits::default(),
            relay: RelayConfig {
                listen: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
                ..RelayConfig::default()
            },
            resume_key: None,
            admin_token: None,
            restart_in_ms: None,
            public_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            test_echo: false,
            tls: None,
            behind_proxy: false,
            trusted_proxies: Vec::new(),
        }
    }
}

/// Why a configuration was refused; the sentence says what to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigProblem(pub String);

impl RawConfig {
    /// The checked configuration. `default_dir` is where the embedded store lives unless told otherwise.
    pub fn check(&self, default_dir: PathBuf) -> Result<Config, ConfigProblem> {
        let problem = |text: String| ConfigProblem(text);
        let listen = self.listen.as_deref().unwrap_or(DEFAULT_LISTEN);
        let listen: SocketAddr = listen.replace("localhost", "127.0.0.1").parse().map_err(|_| {
            problem(format!("listen must be ADDRESS:PORT, such as {DEFAULT_LISTEN}, not {listen:?}"))
        })?;
        let (tls, behind_proxy) = (self.tls()?, self.behind_proxy.unwrap_or(false));
        if !listen.ip().is_loopback() && tls.is_none() && !behind_proxy {
            return Err(problem(format!(
                "{listen} is not loopback: what is said there must be encrypted; give TENURE_TLS_CERT and \
                 TENURE_TLS_KEY, or --behind-proxy if a proxy in front does that, or listen on 127.0.0.1"
            )));
        }
        let dir = self.data_dir.as_ref().map_or(default_dir, PathBuf::from);
        let store = match self.store.as_deref() {
            None | Some("sqlite") => StoreChoice::Sqlite(dir),
            Some("memory") => StoreChoice::Memory,
            Some(other) => {
                let scheme = other.split("://").next().unwrap_or_default();
                return Err(problem(format!(
                    "store must be sqlite or memory in this version, not {scheme:?}"
                )));
            }
        };
        let mesh = self.mesh()?;
        Ok(Config {
            listen,
            store,
            max_unauthenticated: self.max_unauthenticated()?,
            max_connections: self.max_connections()?,
            max_buffered_total: self.max_buffered_total(mesh.max_buffered_bytes)?,
            mesh,
            addresses: self.addresses()?,
            relay: self.relay(listen)?,
            resume_key: self.resume_key()?,
            admin_token: self.admin_token()?,
            restart_in_ms: self.restart_in_ms()?,
            tls,
            behind_proxy,
            trusted_proxies: self.trusted_proxies()?,
            public_hosts: list(self.public_hosts.as_deref()),
            allowed_origins: list(self.allowed_origins.as_deref()),
            test_echo: false,
        })
    }

    fn relay(&self, broker: SocketAddr) -> Result<RelayConfig, ConfigProblem> {
        let raw = RawRelay {
            listen: self.relay_listen.as_deref(),
            domains: &list(self.relay_domains.as_deref()),
            proxies: &list(self.relay_proxies.as_deref()),
            answer_ms: self.relay_answer_ms,
            idle_ms: self.relay_idle_ms,
            max_body: self.relay_max_body,
        };
        raw.check(broker, DEFAULT_PORT)
    }

    fn resume_key(&self) -> Result<Option<[u8; 32]>, ConfigProblem> {
        let Some(hex) = &self.resume_key else { return Ok(None) };
        match tenure_proto::text::unhex_array(hex.trim()) {
            Some(seed) => Ok(Some(seed)),
            None => Err(ConfigProblem("TENURE_RESUME_KEY must be 64 lower-case hex digits".to_owned())),
        }
    }

    fn admin_token(&self) -> Result<Option<String>, ConfigProblem> {
        match self.admin_token.as_deref().map(str::trim) {
            None => Ok(None),
            Some(token) if Operator::is_token(token) => Ok(Some(token.to_owned())),
            Some(_) => Err(ConfigProblem(format!(
                "TENURE_ADMIN_TOKEN must be {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} characters of plain ASCII without spaces"
            ))),
        }
    }

    fn restart_in_ms(&self) -> Result<Option<u64>, ConfigProblem> {
        match self.restart_in_ms {
            Some(ms) if ms > RESTART_IN_MAX_MS => Err(ConfigProblem(format!(
                "TENURE_RESTART_IN_MS must be at most {RESTART_IN_MAX_MS}, which is an hour"
            ))),
            promised => Ok(promised),
        }
    }

    fn dedupe_days(&self, usual: Option<u32>) -> Result<Option<u32>, ConfigProblem> {
        match &self.dedupe_retention_days {
            None => Ok(usual),
            Some(RawDays::Word(word)) if word == "permanent" => Ok(None),
            // Too many for the type are too many for the check, which says how many it takes.
            Some(RawDays::Days(days)) => Ok(Some(u32::try_from(*days).unwrap_or(u32::MAX))),
            Some(RawDays::Word(word)) => Err(ConfigProblem(format!(
                "TENURE_DEDUPE_RETENTION_DAYS must be a whole number of days or \"permanent\", not {word:?}"
            ))),
        }
    }

    /// Both files, or neither.
    fn tls(&self) -> Result<Option<TlsFiles>, ConfigProblem> {
        match (&self.tls_cert, &self.tls_key) {
            (Some(cert), Some(key)) => Ok(Some(TlsFiles { cert: cert.into(), key: key.into() })),
            (None, None) => Ok(None),
            _ => Err(ConfigProblem("TENURE_TLS_CERT and TENURE_TLS_KEY go together: give both".to_owned())),
        }
    }

    fn trusted_proxies(&self) -> Result<Vec<Cidr>, ConfigProblem> {
        let texts = list(self.trusted_proxies.as_deref());
        let read = |text: &String| {
            Cidr::exact(text).map_err(|error| {
                ConfigProblem(format!("TENURE_TRUSTED_PROXIES: {text:?}: {}", error.message))
            })
        };
        texts.iter().map(read).collect()
    }

    fn max_unauthenticated(&self) -> Result<usize, ConfigProblem> {
        // What a semaphore can count is more than any machine has.
        let most = u64::from(u32::MAX >> 3);
        match self.max_unauthenticated_sockets.unwrap_or(UNAUTHENTICATED_SOCKETS as u64) {
            count if (1..=most).contains(&count) => size("max_unauthenticated_sockets", count),
            _ => Err(ConfigProblem(format!("max_unauthenticated_sockets must be between 1 and {most}"))),
        }
    }

    fn max_connections(&self) -> Result<Option<usize>, ConfigProblem> {
        match self.max_connections {
            Some(count) if count < CONNECTIONS_MIN => {
                Err(ConfigProblem(format!("max_connections must be at least {CONNECTIONS_MIN}")))
            }
            Some(count) => size("max_connections", count).map(Some),
            None => Ok(None),
        }
    }

    /// At least two sockets must be able to hold what one of them may.
    fn max_buffered_total(&self, one: usize) -> Result<usize, ConfigProblem> {
        let Some(bytes) = self.max_buffered_total else {
            return Ok(BUFFERED_TOTAL_BYTES.max(one.saturating_mul(2)));
        };
        let bytes = size("max_buffered_total", bytes)?;
        match bytes >= one.saturating_mul(2) {
            true => Ok(bytes),
            false => Err(ConfigProblem(format!(
                "max_buffered_total must be at least twice max_buffered_bytes, which is {one}"
            ))),
        }
    }

    fn addresses(&self) -> Result<AddressLimits, ConfigProblem> {
        let usual = AddressLimits::default();
        let sockets = match self.max_sockets_per_address {
            None => usual.sockets,
            Some(0) => return Err(ConfigProblem("max_sockets_per_address must be above zero".to_owned())),
            Some(count) => size("max_sockets_per_address", count)?,
        };
        let hellos = rate("hello_rate", self.hello_rate, usual.hellos)?;
        Ok(AddressLimits { sockets, hellos, loopback: self.limit_loopback.unwrap_or(usual.loopback) })
    }

    fn mesh(&self) -> Result<MeshConfig, ConfigProblem> {
        let mut mesh = match self.lease_ttl_ms {
            Some(ttl) => MeshConfig::with_lease(ttl),
            None => MeshConfig::default(),
        };
        mesh.ping_interval_ms = self.ping_interval_ms.unwrap_or(mesh.ping_interval_ms);
        mesh.stale_after_ms = self.stale_after_ms.unwrap_or(mesh.stale_after_ms);
        mesh.tick_interval_ms = self.tick_interval_ms.unwrap_or(mesh.tick_interval_ms);
        mesh.reconnect_grace_ms = self.reconnect_grace_ms.unwrap_or(mesh.reconnect_grace_ms);
        mesh.min_client = self.min_client.clone();
        mesh.slow_consumer_ms = self.slow_consumer_ms.unwrap_or(mesh.slow_consumer_ms);
        mesh.ack_timeout_ms = self.ack_timeout_ms.unwrap_or(mesh.ack_timeout_ms);
        mesh.retention_ms = self.retention_ms.unwrap_or(mesh.retention_ms);
        mesh.topic_bytes = self.topic_max_bytes.filter(|bytes| *bytes > 0);
        mesh.dedupe_days = self.dedupe_days(mesh.dedupe_days)?;
        mesh.send_rate = rate("send_rate", self.send_rate, mesh.send_rate)?;
        mesh.request_rate = rate("request_rate", self.request_rate, mesh.request_rate)?;
        if let Some(bytes) = self.max_payload {
            mesh.max_payload = size("max_payload", bytes)?;
            mesh.max_buffered_bytes = mesh.max_buffered_bytes.max(mesh.max_payload.saturating_mul(4));
        }
        if let Some(bytes) = self.max_buffered_bytes {
            mesh.max_buffered_bytes = size("max_buffered_bytes", bytes)?;
        }
        if let Some(count) = self.max_sessions {
            mesh.max_sessions = size("max_sessions", count)?;
        }
        if let Some(count) = self.max_sessions_per_member {
            mesh.max_sessions_per_member = size("max_sessions_per_member", count)?;
        }
        if let Some(count) = self.max_groups_per_topic {
            mesh.max_groups_per_topic = size("max_groups_per_topic", count)?;
        }
        if let Some(count) = self.max_groups_per_member {
            mesh.max_groups_per_member = size("max_groups_per_member", count)?;
        }
        if let Some(count) = self.max_topics_per_member {
            mesh.max_topics_per_member = size("max_topics_per_member", count)?;
        }
        mesh.check().map_err(|error| ConfigProblem(error.to_string()))?;
        Ok(mesh)
    }
}

fn size(name: &str, value: u64) -> Result<usize, ConfigProblem> {
    usize::try_from(value).map_err(|_| ConfigProblem(format!("{name} is too large for this machine")))
}

/// So many a second, ten seconds of which may come in one go.
fn rate(name: &str, per_second: Option<u64>, usual: Rate) -> Result<Rate, ConfigProblem> {
    let Some(per_second) = per_second else { return Ok(usual) };
    match u32::try_from(per_second) {
        Ok(per_second) => Ok(Rate::of(per_second, BURST_SECONDS)),
        Err(_) => Err(ConfigProblem(format!("{name} is at most {} a second", u32::MAX))),
    }
}

fn list(text: Option<&str>) -> Vec<String> {
    let parts = text.unwrap_or_default().split(',').map(str::trim);
    parts.filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(raw: &RawConfig) -> Result<Config, ConfigProblem> {
        raw.check(PathBuf::from("data"))
    }

    #[test]
    fn stronger_options_win_and_weaker_ones_fill_in() {
        let env = |name: &str| (name == "TENURE_LEASE_TTL_MS").then(|| "3000".to_owned());
        let flags = RawConfig { listen: Some("127.0.0.1:1".into()), ..RawConfig::default() };
        let file = RawConfig::from_toml("listen = \"127.0.0.1:2\"\nmax_sessions = 7").unwrap();
        let config = check(&flags.or(RawConfig::from_env(env).unwrap()).or(file)).unwrap();
        assert_eq!(config.listen.port(), 1);
        assert_eq!((config.mesh.lease_ttl_ms, config.mesh.max_sessions), (3_000, 7));
        assert_eq!((config.mesh.ping_interval_ms, config.mesh.stale_after_ms), (1_000, 2_500));
    }

    #[test]
    fn unknown_keys_and_bad_values_say_which() {
        assert!(RawConfig::from_toml("lisen = \"x\"").unwrap_err().0.contains("lisen"));
        let env = |name: &str| (name == "TENURE_MAX_PAYLOAD").then(|| "lots".to_owned());
        assert!(RawConfig::from_env(env).unwrap_err().0.contains("TENURE_MAX_PAYLOAD"));
        let open = RawConfig { listen: Some("0.0.0.0:7400".into()), ..RawConfig::default() };
        assert!(check(&open).unwrap_err().0.contains("not loopback"));
        let proxied = RawConfig { behind_proxy: Some(true), ..open.clone() };
        assert!(check(&proxied).is_ok());
        let half = RawConfig { tls_cert: Some("cert.pem".into()), ..open.clone() };
        assert!(check(&half).unwrap_err().0.contains("go together"));
        let whole = RawConfig { tls_key: Some("key.pem".into()), ..half };
        assert!(check(&whole).unwrap().tls.is_some());
        let odd = RawConfig { trusted_proxies: Some("10.0.0.1/8".into()), ..proxied };
        assert!(check(&odd).unwrap_err().0.contains("TENURE_TRUSTED_PROXIES"));
        let key = RawConfig { resume_key: Some("short".into()), ..RawConfig::default() };
        assert!(check(&key).unwrap_err().0.contains("TENURE_RESUME_KEY"));
        let token = RawConfig { admin_token: Some("short".into()), ..RawConfig::default() };
        assert!(check(&token).unwrap_err().0.contains("TENURE_ADMIN_TOKEN"));
        let promise = RawConfig { restart_in_ms: Some(3_600_001), ..RawConfig::default() };
        assert!(check(&promise).unwrap_err().0.contains("TENURE_RESTART_IN_MS"));
    }

    #[test]
    fn ids_are_remembered_for_days_or_for_ever() {
        let days = |raw: RawConfig| check(&raw).map(|config| config.mesh.dedupe_days);
        let env = |value: &'static str| {
            let get = move |name: &str| (name == "TENURE_DEDUPE_RETENTION_DAYS").then(|| value.to_owned());
            RawConfig::from_env(get).unwrap()
        };
        assert_eq!(days(RawConfig::default()), Ok(Some(30)));
        assert_eq!(days(env(" 7 ")), Ok(Some(7)));
        assert_eq!(days(env("permanent")), Ok(None));
        assert!(days(env("6")).unwrap_err().0.contains("7 to"));
        assert!(days(env("99999999999")).unwrap_err().0.contains("7 to"));
        assert!(days(env("forever")).unwrap_err().0.contains("TENURE_DEDUPE_RETENTION_DAYS"));
        for text in ["dedupe_retention_days = 8", "dedupe_retention_days = \"permanent\""] {
            let raw = RawConfig::from_toml(text).unwrap();
            assert_eq!(toml::to_string(&raw).unwrap().trim(), text, "shown as it was written");
            assert!(days(raw).is_ok());
        }
        let grace = RawConfig { reconnect_grace_ms: Some(0), ..RawConfig::default() };
        assert_eq!(check(&grace).unwrap().mesh.reconnect_grace_ms, 0);
    }

    #[test]
    fn rates_and_caps_are_read_and_checked() {
        let text = "hello_rate = 5\nsend_rate = 0\nlimit_loopback = true\nmax_sockets_per_address = 9";
        let config = check(&RawConfig::from_toml(text).unwrap()).unwrap();
        assert_eq!(config.addresses.hellos, Rate { burst: 50, per_second: 5 });
        assert_eq!((config.addresses.sockets, config.addresses.loopback), (9, true));
        assert_eq!(config.mesh.send_rate.per_second, 0);
        assert_eq!(config.mesh.request_rate, MeshConfig::default().request_rate);
        for (text, words) in [
            ("max_sockets_per_address = 0", "max_sockets_per_address"),
            ("max_sessions_per_member = 0", "maxSessionsPerMember"),
            ("max_unauthenticated_sockets = 0", "max_unauthenticated_sockets"),
            ("hello_rate = 4294967296", "hello_rate"),
        ] {
            let problem = check(&RawConfig::from_toml(text).unwrap()).unwrap_err().0;
            assert!(problem.contains(words), "{problem}");
        }
        let env = |name: &str| (name == "TENURE_LIMIT_LOOPBACK").then(|| "yes".to_owned());
        assert!(RawConfig::from_env(env).unwrap_err().0.contains("true or false"));
    }

    #[test]
    fn secrets_are_not_shown() {
        let raw = RawConfig { admin_token: Some("s3cret".into()), ..RawConfig::default() };
        assert!(!format!("{:?}", raw.without_secrets()).contains("s3cret"));
    }
}
