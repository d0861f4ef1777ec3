//! Options as somebody wrote them: in flags, in the environment, in a file. Nothing is checked here but that a number
//! is a number; [`super::Config`] is what they come to.

use serde::{Deserialize, Serialize};

use super::ConfigProblem;

/// Declares [`RawConfig`], one line an option: what it is, its key in the file, its kind and its variable.
macro_rules! options {
    ($($(#[$doc:meta])* $field:ident: $kind:ty = $name:literal,)*) => {
        /// Options as somebody wrote them: all optional, all texts and numbers. The file's keys are the field names.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct RawConfig {
            $(
                $(#[$doc])*
                #[doc = concat!(" `", $name, "`.")]
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $field: Option<$kind>,
            )*
        }

        impl RawConfig {
            /// Every key of the file, in the order of their declaration.
            pub const KEYS: &[&str] = &[$(stringify!($field)),*];

            /// What the environment says; `get` looks a variable up.
            pub fn from_env(get: impl Fn(&str) -> Option<String>) -> Result<RawConfig, ConfigProblem> {
                Ok(RawConfig { $($field: get($name).map(|text| <$kind>::read($name, text)).transpose()?,)* })
            }

            /// These options, with `weaker` ones where these say nothing.
            pub fn or(self, weaker: RawConfig) -> RawConfig {
                RawConfig { $($field: self.$field.or(weaker.$field),)* }
            }
        }
    };
}

options! {
    /// Where to listen.
    listen: String = "TENURE_LISTEN",
    /// Where services are reached over HTTP, or `off`.
    relay_listen: String = "TENURE_RELAY_LISTEN",
    /// Domains below which services have names besides `localhost`, by comma.
    relay_domains: String = "TENURE_RELAY_DOMAINS",
    /// Addresses and networks of proxies whose `X-Forwarded-*` is believed, by comma.
    relay_proxies: String = "TENURE_RELAY_PROXIES",
    /// How long a service may take to begin its answer.
    relay_answer_ms: u64 = "TENURE_RELAY_ANSWER_MS",
    /// How long a consumer may take over the next piece of its body.
    relay_idle_ms: u64 = "TENURE_RELAY_IDLE_MS",
    /// Bytes of a request's body; 0 is as many as it likes.
    relay_max_body: u64 = "TENURE_RELAY_MAX_BODY",
    /// Where the embedded store lives.
    data_dir: String = "TENURE_DATA_DIR",
    /// `sqlite`, or `memory`.
    store: String = "TENURE_STORE",
    /// From the last proof of life to the end of a lease.
    lease_ttl_ms: u64 = "TENURE_LEASE_TTL_MS",
    /// Between pings; absent is a third of the lease.
    ping_interval_ms: u64 = "TENURE_PING_INTERVAL_MS",
    /// Silence after which a socket is dropped; absent is five sixths of the lease.
    stale_after_ms: u64 = "TENURE_STALE_AFTER_MS",
    /// How soon an idle socket gets a tick; absent is a third of the lease.
    tick_interval_ms: u64 = "TENURE_TICK_INTERVAL_MS",
    /// How long a shared group waits for a session in grace.
    reconnect_grace_ms: u64 = "TENURE_RECONNECT_GRACE_MS",
    /// How long a member of a shared group may take to settle.
    ack_timeout_ms: u64 = "TENURE_ACK_TIMEOUT_MS",
    /// How long settled messages stay, unless their topic says otherwise.
    retention_ms: u64 = "TENURE_RETENTION_MS",
    /// Bytes of bodies that a partition of a topic may hold; 0 is no cap.
    topic_max_bytes: u64 = "TENURE_TOPIC_MAX_BYTES",
    /// How long ids of sent messages are remembered; at least 7, or `permanent`.
    dedupe_retention_days: RawDays = "TENURE_DEDUPE_RETENTION_DAYS",
    /// Bytes of a body.
    max_payload: u64 = "TENURE_MAX_PAYLOAD",
    /// Bytes that may wait for one socket.
    max_buffered_bytes: u64 = "TENURE_MAX_BUFFERED_BYTES",
    /// Bytes that all sockets together may hold, messages that are not whole included.
    max_buffered_total: u64 = "TENURE_MAX_BUFFERED_TOTAL",
    /// How long a socket may take next to nothing while something waits for it.
    slow_consumer_ms: u64 = "TENURE_SLOW_CONSUMER_MS",
    /// Living leases per mesh.
    max_sessions: u64 = "TENURE_MAX_SESSIONS",
    /// Living leases that one member vouches for.
    max_sessions_per_member: u64 = "TENURE_MAX_SESSIONS_PER_MEMBER",
    /// Consumer groups of one topic.
    max_groups_per_topic: u64 = "TENURE_MAX_GROUPS_PER_TOPIC",
    /// Consumer groups that one member has made, counted by partition.
    max_groups_per_member: u64 = "TENURE_MAX_GROUPS_PER_MEMBER",
    /// Topics that one member has made.
    max_topics_per_member: u64 = "TENURE_MAX_TOPICS_PER_MEMBER",
    /// Connections of one address at once.
    max_sockets_per_address: u64 = "TENURE_MAX_SOCKETS_PER_ADDRESS",
    /// Connections in all; absent is as many as the limit of open files allows.
    max_connections: u64 = "TENURE_MAX_CONNECTIONS",
    /// Connections that have not said hello yet.
    max_unauthenticated_sockets: u64 = "TENURE_MAX_UNAUTHENTICATED_SOCKETS",
    /// Hellos of an address in a second that bring no good token; 0 is as many as it likes.
    hello_rate: u64 = "TENURE_HELLO_RATE",
    /// Messages of a member in a second; 0 is as many as it likes.
    send_rate: u64 = "TENURE_SEND_RATE",
    /// Other requests of a member in a second; 0 is as many as it likes.
    request_rate: u64 = "TENURE_REQUEST_RATE",
    /// Whether rates and the sockets of an address are limited for this machine's own too.
    limit_loopback: bool = "TENURE_LIMIT_LOOPBACK",
    /// The oldest client that clients are told to be.
    min_client: String = "TENURE_MIN_CLIENT",
    /// The operator's token.
    admin_token: String = "TENURE_ADMIN_TOKEN",
    /// What a broker that is told to stop by a signal promises; absent is nothing.
    restart_in_ms: u64 = "TENURE_RESTART_IN_MS",
    /// 64 hex digits, the seed of the key that signs resume tokens.
    resume_key: String = "TENURE_RESUME_KEY",
    /// Host headers besides the listener's own, `host`, `host:port` or `host:*`, by comma.
    public_hosts: String = "TENURE_PUBLIC_HOSTS",
    /// Origins besides our own, by comma.
    allowed_origins: String = "TENURE_ALLOWED_ORIGINS",
    /// The certificate and its chain, a PEM file; it is read again when it changes.
    tls_cert: String = "TENURE_TLS_CERT",
    /// The certificate's private key, a PEM file.
    tls_key: String = "TENURE_TLS_KEY",
    /// Whether a proxy in front encrypts connections.
    behind_proxy: bool = "TENURE_BEHIND_PROXY",
    /// Addresses and networks of proxies whose X-Forwarded-For is believed, by comma.
    trusted_proxies: String = "TENURE_TRUSTED_PROXIES",
    /// What is logged, as a filter.
    log: String = "TENURE_LOG",
    /// `json` or `pretty`.
    log_format: String = "TENURE_LOG_FORMAT",
}

impl RawConfig {
    /// What a TOML file says; unknown keys are refused by name.
    pub fn from_toml(text: &str) -> Result<RawConfig, ConfigProblem> {
        toml::from_str(text).map_err(|error| ConfigProblem(error.to_string()))
    }

    /// These options without their secrets, for showing.
    pub fn without_secrets(mut self) -> RawConfig {
        for secret in [&mut self.admin_token, &mut self.resume_key] {
            if secret.is_some() {
                *secret = Some("(hidden)".to_owned());
            }
        }
        self
    }
}

/// A number of days, or a word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum RawDays {
    /// So many.
    Days(u64),
    /// `permanent`.
    Word(String),
}

/// What a variable can hold.
trait Value: Sized {
    /// Reads the variable of this name.
    fn read(name: &str, text: String) -> Result<Self, ConfigProblem>;
}

impl Value for String {
    fn read(_: &str, text: String) -> Result<String, ConfigProblem> {
        Ok(text)
    }
}

impl Value for u64 {
    fn read(name: &str, text: String) -> Result<u64, ConfigProblem> {
        let not_one = |_| ConfigProblem(format!("{name} must be a whole number, not {text:?}"));
        text.trim().parse().map_err(not_one)
    }
}

impl Value for bool {
    fn read(name: &str, text: String) -> Result<bool, ConfigProblem> {
        let neither = |_| ConfigProblem(format!("{name} must be true or false, not {text:?}"));
        text.trim().parse().map_err(neither)
    }
}

impl Value for RawDays {
    fn read(_: &str, text: String) -> Result<RawDays, ConfigProblem> {
        let text = text.trim();
        Ok(text.parse().map_or_else(|_| RawDays::Word(text.to_owned()), RawDays::Days))
    }
}
