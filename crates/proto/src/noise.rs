//! Whose end of an encrypted stream it is: an X25519 key, stated by a session and vouched for by its member.
//!
//! Bytes that pass through `tenure connect` are encrypted from one session to the other (Noise IK), so the broker in
//! between must not be able to put its own key there. A key therefore comes with a statement that only the session
//! can sign, and an attestation that only its member can: whoever trusts the member needs nobody else.

use ed25519_dalek::SigningKey;
use serde::{Deserialize, Serialize};

use crate::canonical::{self, Attested};
use crate::error::{ErrorCode, WireError};
use crate::hello::Attestation;
use crate::ids::{MemberKey, SessionKey};
use crate::name::{MeshName, ServiceName};
use crate::text;

/// The handshake and its ciphers.
pub const NOISE: &str = "Noise_IK_25519_ChaChaPoly_BLAKE2s";

/// What both ends mix into the handshake: a stream of one service cannot pass for another's.
pub fn prologue(mesh: &MeshName, name: &ServiceName) -> Vec<u8> {
    format!("tenure-relay.v1|{mesh}|{name}").into_bytes()
}

/// The line that a session signs for a key of its own.
pub struct NoiseKey<'a> {
    /// The mesh.
    pub mesh: &'a MeshName,
    /// The session's member.
    pub member: &'a MemberKey,
    /// The session that signs.
    pub session: &'a SessionKey,
    /// The X25519 public key.
    pub key: &'a [u8; 32],
}

impl NoiseKey<'_> {
    /// The bytes that are signed.
    pub fn line(&self) -> String {
        let NoiseKey { mesh, member, session, key } = self;
        format!("tenure-noise.v1|{mesh}|{member}|{session}|{}", text::hex(*key))
    }

    /// The statement's signature by the session's key, in base64url.
    pub fn sign(&self, session_key: &SigningKey) -> String {
        canonical::sign(session_key, &self.line())
    }

    /// Whether `signature` is the session's.
    pub fn verify(&self, signature: &str) -> bool {
        canonical::verify(&self.session.0, &self.line(), signature)
    }
}

/// Whose X25519 key it is, with what proves it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct KeyStatement {
    /// The mesh.
    pub mesh: MeshName,
    /// The member that vouches.
    pub member: MemberKey,
    /// The session whose key it is.
    pub session: SessionKey,
    /// The X25519 public key, 64 lower-case hex digits.
    pub key: String,
    /// By the session key over `tenure-noise.v1|mesh|member|session|key`.
    pub signature: String,
    /// The member's word for the session; absent when they are one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attestation: Option<Attestation>,
}

impl KeyStatement {
    /// The X25519 key, if every signature holds in `mesh` at `now` (Unix milliseconds).
    pub fn verify(&self, mesh: &MeshName, now: u64) -> Result<[u8; 32], WireError> {
        let refuse = |why: &str| Err(WireError::new(ErrorCode::Unauthorized, why));
        if &self.mesh != mesh {
            return refuse("the other end's key is for another mesh");
        }
        let Some(key) = text::unhex_array(&self.key) else {
            return refuse("the other end's key is not 64 lower-case hex digits");
        };
        let KeyStatement { member, session, .. } = self;
        if !(NoiseKey { mesh, member, session, key: &key }).verify(&self.signature) {
            return refuse("the other end's key is not signed by its session");
        }
        match &self.attestation {
            None if session.0 == member.0 => Ok(key),
            None => refuse("the other end's session is not vouched for by its member"),
            Some(attestation) => {
                let (expires_at, caps) = (attestation.expires_at.get(), attestation.caps.as_deref());
                let attested = Attested { mesh, member, session, expires_at, caps };
                if !attested.verify(&attestation.signature) {
                    return refuse("the other end's session is not vouched for by its member");
                }
                if expires_at <= now {
                    return refuse(
                        "the word of the other end's member for its session has expired; connect it anew",
                    );
                }
                Ok(key)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number::U53;

    fn statement(member_key: &SigningKey, session_key: &SigningKey) -> KeyStatement {
        let mesh: MeshName = "default".parse().unwrap();
        let (member, session) = (canonical::member_key(member_key), canonical::session_key(session_key));
        let attested =
            Attested { mesh: &mesh, member: &member, session: &session, expires_at: 1_000, caps: None };
        let signature = attested.sign(member_key);
        let attestation = (member.0 != session.0).then(|| Attestation {
            expires_at: U53::from(1_000),
            caps: None,
            signature,
        });
        let key = [9; 32];
        let signature =
            NoiseKey { mesh: &mesh, member: &member, session: &session, key: &key }.sign(session_key);
        KeyStatement { mesh, member, session, key: text::hex(&key), signature, attestation }
    }

    #[test]
    fn a_key_holds_for_one_session_of_one_member_in_one_mesh_until_the_word_expires() {
        let (member, session) = (SigningKey::from_bytes(&[1; 32]), SigningKey::from_bytes(&[2; 32]));
        let stranger = SigningKey::from_bytes(&[3; 32]);
        let mesh: MeshName = "default".parse().unwrap();
        let good = statement(&member, &session);
        assert_eq!(good.verify(&mesh, 999), Ok([9; 32]));
        assert_eq!(statement(&member, &member).verify(&mesh, u64::MAX), Ok([9; 32]), "a member's own");
        let refused = |statement: KeyStatement, words: &str| {
            let error = statement.verify(&mesh, 999).unwrap_err();
            assert_eq!(error.code, ErrorCode::Unauthorized);
            assert!(error.message.contains(words), "{}", error.message);
        };
        assert!(good.verify(&mesh, 1_000).unwrap_err().message.contains("expired"));
        assert!(good.verify(&"other".parse().unwrap(), 0).is_err());
        refused(KeyStatement { key: text::hex(&[8; 32]), ..good.clone() }, "not signed");
        refused(KeyStatement { key: text::hex(&[9; 31]), ..good.clone() }, "hex");
        refused(KeyStatement { attestation: None, ..good.clone() }, "vouched");
        // Somebody else's session cannot be put under this member, nor this session under somebody else.
        refused(
            KeyStatement { attestation: good.attestation.clone(), ..statement(&member, &stranger) }
                .tap_member(&member),
            "vouched",
        );
        refused(good.clone().tap_member(&stranger), "not signed");
    }

    impl KeyStatement {
        fn tap_member(mut self, member: &SigningKey) -> KeyStatement {
            self.member = canonical::member_key(member);
            self
        }
    }
}
