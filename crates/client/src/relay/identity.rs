//! Who a session is to the other end of a stream: an X25519 key of this process, and what proves whose it is.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use ed25519_dalek::SigningKey;
use tenure_link::{LinkConfig, Voucher};
use tenure_proto::canonical::Attested;
use tenure_proto::error::WireError;
use tenure_proto::hello::Attestation;
use tenure_proto::ids::{MemberKey, SessionKey};
use tenure_proto::limits::ATTESTATION_AHEAD_MS;
use tenure_proto::name::MeshName;
use tenure_proto::noise::{KeyStatement, NOISE, NoiseKey};
use tenure_proto::number::U53;
use tenure_proto::text;

/// Why a stream was not had, or did not last.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// The broker or the other end refused it.
    #[error("{}", .0.message)]
    Refused(WireError),
    /// The other end is not who it should be.
    #[error(transparent)]
    Pin(#[from] crate::relay::PinError),
    /// The handshake or a message of it did not hold.
    #[error("the other end does not hold the key that it states: {0}")]
    Noise(#[from] snow::Error),
    /// The stream broke off.
    #[error("{0}")]
    Broken(String),
}

impl From<tenure_mux::FrameError> for RelayError {
    fn from(error: tenure_mux::FrameError) -> RelayError {
        RelayError::Broken(error.to_string())
    }
}

impl From<std::io::Error> for RelayError {
    fn from(error: std::io::Error) -> RelayError {
        RelayError::Broken(format!("the stream broke off: {error}"))
    }
}

impl From<WireError> for RelayError {
    fn from(error: WireError) -> RelayError {
        RelayError::Refused(error)
    }
}

/// Who a session is to the other end of a stream. The X25519 key is new in every process.
#[derive(Clone)]
pub struct Identity(Arc<Inner>);

struct Inner {
    mesh: MeshName,
    session_key: Box<SigningKey>,
    voucher: Voucher,
    keys: snow::Keypair,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Keys never reach a log.
        f.debug_struct("Identity").field("mesh", &self.0.mesh).finish_non_exhaustive()
    }
}

impl Identity {
    /// The identity of whoever `link` speaks as.
    pub(crate) fn new(link: &LinkConfig) -> Result<Identity, snow::Error> {
        let keys = snow::Builder::new(NOISE.parse()?).generate_keypair()?;
        let (mesh, session_key) = (link.mesh.clone(), link.session_key.clone());
        Ok(Identity(Arc::new(Inner { mesh, session_key, voucher: link.voucher.clone(), keys })))
    }

    pub(crate) fn mesh(&self) -> &MeshName {
        &self.0.mesh
    }

    pub(crate) fn private_key(&self) -> &[u8] {
        &self.0.keys.private
    }

    fn session(&self) -> SessionKey {
        tenure_proto::canonical::session_key(&self.0.session_key)
    }

    /// What the other end needs to believe that the key is ours; the member's word is fresh each time, if we can give it.
    pub(crate) fn statement(&self) -> KeyStatement {
        let Inner { mesh, session_key, voucher, keys } = &*self.0;
        let session = self.session();
        let (member, attestation) = match voucher {
            Voucher::Own => (MemberKey(session.0), None),
            Voucher::Attestation(member, attestation) => (*member, Some(attestation.clone())),
            Voucher::MemberKey(key, caps) => {
                let member = tenure_proto::canonical::member_key(key);
                let expires_at = wall_ms().saturating_add(ATTESTATION_AHEAD_MS / 2);
                let caps = caps.clone();
                let attested =
                    Attested { mesh, member: &member, session: &session, expires_at, caps: caps.as_deref() };
                let signature = attested.sign(key);
                (member, Some(Attestation { expires_at: U53::saturating(expires_at), caps, signature }))
            }
        };
        let mut key = [0; 32];
        key.copy_from_slice(&keys.public);
        let signature = NoiseKey { mesh, member: &member, session: &session, key: &key }.sign(session_key);
        KeyStatement { mesh: mesh.clone(), member, session, key: text::hex(&key), signature, attestation }
    }
}

/// Unix milliseconds.
pub(crate) fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
