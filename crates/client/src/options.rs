//! How to join: where, as whom, and what peers see.

use ed25519_dalek::SigningKey;
use tenure_core::link::{LinkConfig, Voucher};
use tenure_proto::codec::Codec;
use tenure_proto::feature::FeatureWishes;
use tenure_proto::hello::{ClientInfo, Credential, InboxChoice};
use tenure_proto::name::MeshName;
use tenure_proto::peer::Profile;
use tenure_proto::reconcile::ReconcilePolicy;

/// Why options were refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// The address is not one.
    #[error("a broker's address is ws://HOST:PORT, not {0:?}")]
    Url(String),
    /// The mesh has no legal name.
    #[error("{0}")]
    Mesh(String),
    /// What peers would see is out of bounds.
    #[error("{0}")]
    Profile(String),
    /// The system gave no randomness.
    #[error("the system gave no randomness")]
    Entropy,
}

/// How to join: where, as whom, and what peers see.
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) link: LinkConfig,
    /// `host:port` to dial.
    pub(crate) address: String,
    /// How long one request may take, breaks included.
    pub(crate) timeout_ms: u64,
    /// Whether it answers runs.
    pub(crate) serves: bool,
}

impl Options {
    /// Joins the mesh `default` at `url` as the member whose key this is, under `name`.
    pub fn new(url: &str, member_key: SigningKey, name: &str) -> Result<Options, OptionsError> {
        let host = host_of(url).ok_or_else(|| OptionsError::Url(url.to_owned()))?;
        let address = if has_port(&host) { host.clone() } else { format!("{host}:80") };
        let profile = Profile::named(name);
        profile.check().map_err(|error| OptionsError::Profile(error.message))?;
        let mut random = [0u8; 12];
        getrandom::fill(&mut random).map_err(|_| OptionsError::Entropy)?;
        let instance_id = tenure_proto::text::hex(&random).parse().map_err(|_| OptionsError::Entropy)?;
        let link = LinkConfig {
            mesh: mesh("default")?,
            session_key: Box::new(member_key),
            voucher: Voucher::Own,
            profile,
            inbox: InboxChoice::None,
            reconcile: ReconcilePolicy::default(),
            client: ClientInfo {
                name: "tenure-rust".to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                platform: Some(std::env::consts::OS.to_owned()),
                instance_id,
            },
            features: FeatureWishes::default(),
            codec: Codec::Json,
            host,
            auth: None,
        };
        Ok(Options { link, address, timeout_ms: 30_000, serves: false })
    }

    /// The same as a session with a key of its own, vouched for by the member given before.
    pub fn session_key(mut self, key: SigningKey) -> Options {
        let member = std::mem::replace(&mut self.link.session_key, Box::new(key));
        self.link.voucher = Voucher::MemberKey(member, None);
        self
    }

    /// Another way for the member to vouch.
    pub fn voucher(mut self, voucher: Voucher) -> Options {
        self.link.voucher = voucher;
        self
    }

    /// Another mesh.
    pub fn mesh(mut self, name: &str) -> Result<Options, OptionsError> {
        self.link.mesh = mesh(name)?;
        Ok(self)
    }

    /// Everything that peers see.
    pub fn profile(mut self, profile: Profile) -> Result<Options, OptionsError> {
        profile.check().map_err(|error| OptionsError::Profile(error.message))?;
        self.link.profile = profile;
        Ok(self)
    }

    /// How frames are spelled.
    pub fn codec(mut self, codec: Codec) -> Options {
        self.link.codec = codec;
        self
    }

    /// Which inboxes this session reads. None unless asked for, so that nothing is pushed that nobody reads: ask,
    /// then take them with [`crate::Session::inbox`] and [`crate::Session::member_inbox`].
    pub fn inbox(mut self, choice: InboxChoice) -> Options {
        self.link.inbox = choice;
        self
    }

    /// Answers runs: they are kept for [`crate::Session::serve_runs`] from the first moment on, and are no messages of an
    /// inbox. They come through inboxes: unless [`Options::inbox`] says otherwise, through the session's own.
    pub fn serve_runs(mut self) -> Options {
        self.serves = true;
        self
    }

    /// What becomes of subscriptions that the broker has forgotten after a break that the lease survived: they end
    /// with a reason (the default), or the broker makes them again where this session was.
    pub fn reconcile_policy(mut self, policy: ReconcilePolicy) -> Options {
        self.link.reconcile = policy;
        self
    }

    /// How long one request may take, breaks included: also a send and a subscribe, unless they say otherwise.
    pub fn timeout_ms(mut self, ms: u64) -> Options {
        self.timeout_ms = ms;
        self
    }

    /// Feature bits without which the broker must refuse this session, rather than serve it without them.
    pub fn require(mut self, bits: &[&str]) -> Options {
        self.link.features.require = bits.iter().map(|bit| (*bit).into()).collect();
        self
    }

    /// Brings an invite, which makes the member one of the mesh: `tenure-invite.v1.…`, the part of a link behind its `#`.
    pub fn invite(mut self, invite: &str) -> Options {
        self.link.auth = Some(Credential::Invite(invite.to_owned()));
        self
    }

    /// Brings a bearer token, which lets in any member's key for as long as it is good.
    pub fn token(mut self, token: &str) -> Options {
        self.link.auth = Some(Credential::Token(token.to_owned()));
        self
    }

    /// What program this is, for the broker's log.
    pub fn client(mut self, name: &str, version: &str) -> Options {
        (self.link.client.name, self.link.client.version) = (name.to_owned(), version.to_owned());
        self
    }
}

fn mesh(name: &str) -> Result<MeshName, OptionsError> {
    name.parse().map_err(|error: tenure_proto::WireError| OptionsError::Mesh(error.message))
}

/// The Host header that dialling `url` sends: its authority, lower case.
fn host_of(url: &str) -> Option<String> {
    let rest = url.strip_prefix("ws://")?;
    let host = rest.split('/').next().filter(|host| !host.is_empty() && !host.contains('@'))?;
    Some(host.to_ascii_lowercase())
}

fn has_port(host: &str) -> bool {
    host.rsplit_once(':')
        .is_some_and(|(_, port)| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_the_authority_of_the_address() {
        assert_eq!(host_of("ws://LocalHost:7400/").as_deref(), Some("localhost:7400"));
        assert_eq!(host_of("ws://[::1]:7400").as_deref(), Some("[::1]:7400"));
        for bad in ["localhost:7400", "http://x", "ws://", "ws://user@host:1"] {
            assert_eq!(host_of(bad), None, "{bad}");
        }
        assert!(has_port("a:1") && !has_port("[::1]") && !has_port("a"));
    }
}
