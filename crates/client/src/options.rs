//! How to join: where, as whom, and what peers see.

use ed25519_dalek::SigningKey;
use tenure_link::{LinkConfig, Voucher};
use tenure_proto::codec::Codec;
use tenure_proto::feature::FeatureWishes;
use tenure_proto::hello::{ClientInfo, Credential, InboxChoice};
use tenure_proto::name::MeshName;
use tenure_proto::peer::Profile;
use tenure_proto::reconcile::ReconcilePolicy;

use crate::endpoint::Endpoint;

/// Why options were refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// The address is not one.
    #[error("a broker's address is ws://HOST:PORT or wss://HOST:PORT, not {0:?}")]
    Url(String),
    /// What is to be believed is no certificate.
    #[error("read the certificate of the authority: {0}")]
    Authority(String),
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
    pub(crate) endpoint: Endpoint,
    /// How long one request may take, breaks included.
    pub(crate) timeout_ms: u64,
    /// Whether it answers runs.
    pub(crate) serves: bool,
}

impl Options {
    /// Joins the mesh `default` at `url` as the member whose key this is, under `name`.
    pub fn new(url: &str, member_key: SigningKey, name: &str) -> Result<Options, OptionsError> {
        let endpoint = Endpoint::new(url)?;
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
            host: endpoint.host().to_owned(),
            auth: None,
        };
        Ok(Options { link, endpoint, timeout_ms: 30_000, serves: false })
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

    /// Believes only these authorities about who the broker is, certificates in PEM, and not those of this system. Means
    /// nothing for a broker that is reached in the clear.
    pub fn authority(mut self, pem: &[u8]) -> Result<Options, OptionsError> {
        self.endpoint = self.endpoint.believing(pem)?;
        Ok(self)
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
