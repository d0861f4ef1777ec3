//! Who a link speaks as.

use std::fmt;

use ed25519_dalek::SigningKey;
use tenure_proto::canonical::{member_key, session_key};
use tenure_proto::codec::Codec;
use tenure_proto::feature::FeatureWishes;
use tenure_proto::hello::{Attestation, ClientInfo, Credential, InboxChoice};
use tenure_proto::ids::{MemberKey, SessionKey};
use tenure_proto::name::{Cap, MeshName};
use tenure_proto::peer::Profile;
use tenure_proto::reconcile::ReconcilePolicy;

/// How the member vouches for the session.
#[derive(Clone)]
pub enum Voucher {
    /// We hold the member's key: an attestation is minted per connect, narrowed to these caps.
    MemberKey(Box<SigningKey>, Option<Vec<Cap>>),
    /// Somebody gave us an attestation by this member.
    Attestation(MemberKey, Attestation),
    /// The session is the member.
    Own,
}

impl fmt::Debug for Voucher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Keys never reach a log.
        f.write_str(match self {
            Voucher::MemberKey(..) => "MemberKey(…)",
            Voucher::Attestation(..) => "Attestation(…)",
            Voucher::Own => "Own",
        })
    }
}

/// Who a link speaks as.
#[derive(Clone)]
pub struct LinkConfig {
    /// The mesh to join.
    pub mesh: MeshName,
    /// The session's key.
    pub session_key: Box<SigningKey>,
    /// How the member vouches.
    pub voucher: Voucher,
    /// What peers see.
    pub profile: Profile,
    /// Which inboxes are read.
    pub inbox: InboxChoice,
    /// What the broker does about subscriptions that it has forgotten.
    pub reconcile: ReconcilePolicy,
    /// What program this is; its `instanceId` must be random per process.
    pub client: ClientInfo,
    /// Feature bits.
    pub features: FeatureWishes,
    /// How frames are spelled.
    pub codec: Codec,
    /// The Host header that the shell sends.
    pub host: String,
    /// What is brought to a mesh that asks for something.
    pub auth: Option<Credential>,
}

impl LinkConfig {
    /// The session's public key.
    pub fn session(&self) -> SessionKey {
        session_key(&self.session_key)
    }

    /// The member's public key.
    pub fn member(&self) -> MemberKey {
        match &self.voucher {
            Voucher::MemberKey(key, _) => member_key(key),
            Voucher::Attestation(member, _) => *member,
            Voucher::Own => member_key(&self.session_key),
        }
    }
}

impl fmt::Debug for LinkConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkConfig")
            .field("mesh", &self.mesh)
            .field("session", &self.session())
            .finish_non_exhaustive()
    }
}
