//! The resume token: `tenure-resume.v1.<b64url(JSON)>.<b64url(sig)>`.
//!
//! The proof admits, the token only selects. So a mistake here towards "good" costs nothing that the session
//! key did not already allow, and a mistake towards "bad" costs a client one resync: neither is an attack.

use ed25519_dalek::SigningKey;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::canonical;
use crate::ids::{ClusterId, LeaseId, SessionKey};
use crate::limits::TOKEN_BYTES;
use crate::name::MeshName;
use crate::number::U53;
use crate::text;

const PREFIX: &str = "tenure-resume.v1.";

/// What a resume token says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct ResumeToken {
    /// The session it belongs to.
    pub sub: SessionKey,
    /// The mesh.
    pub mid: MeshName,
    /// The store's cluster id: the scope in which leases live.
    pub bid: ClusterId,
    /// The lease it selects.
    pub lid: LeaseId,
    /// When it was issued, Unix milliseconds.
    pub iat: U53,
}

/// Why a token was not accepted as ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Not of the token's form at all.
    #[error("malformed")]
    Malformed,
    /// Well formed, but not signed by this broker's key.
    #[error("bad_signature")]
    BadSignature,
}

impl ResumeToken {
    /// The token as text, signed with the broker's key.
    pub fn issue(&self, broker_key: &SigningKey) -> String {
        let payload = text::b64url(&serde_json::to_vec(self).unwrap_or_default());
        let signature = canonical::sign(broker_key, &format!("{PREFIX}{payload}"));
        format!("{PREFIX}{payload}.{signature}")
    }

    /// What `token` says, if `broker_key` signed it.
    pub fn verify(token: &str, broker_key: &[u8; 32]) -> Result<ResumeToken, TokenError> {
        let (parsed, signed, signature) = ResumeToken::read(token)?;
        if canonical::verify(broker_key, signed, signature) {
            Ok(parsed)
        } else {
            Err(TokenError::BadSignature)
        }
    }

    /// What `token` says of itself, whoever signed it: good for telling its bearer where it comes from, and for
    /// nothing else.
    pub fn unverified(token: &str) -> Result<ResumeToken, TokenError> {
        ResumeToken::read(token).map(|(parsed, ..)| parsed)
    }

    /// What a token says, what of it is signed, and the signature.
    fn read(token: &str) -> Result<(ResumeToken, &str, &str), TokenError> {
        if token.len() > TOKEN_BYTES {
            return Err(TokenError::Malformed);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(TokenError::Malformed)?;
        let payload = signed.strip_prefix(PREFIX).ok_or(TokenError::Malformed)?;
        let payload = text::unb64url(payload).ok_or(TokenError::Malformed)?;
        let parsed = serde_json::from_slice(&payload).map_err(|_| TokenError::Malformed)?;
        Ok((parsed, signed, signature))
    }
}

/// What a bearer token is kept as, and looked up by: it has more entropy than anybody can guess, so a plain hash tells
/// nothing of it.
pub fn bearer_hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_issuing_key_verifies_and_any_flipped_character_is_refused() {
        let key = SigningKey::from_bytes(&[7; 32]);
        let other = SigningKey::from_bytes(&[8; 32]);
        let token = ResumeToken {
            sub: SessionKey([1; 32]),
            mid: "default".parse().unwrap(),
            bid: "cluster".parse().unwrap(),
            lid: "lease".parse().unwrap(),
            iat: U53::from(5),
        };
        let text = token.issue(&key);
        let public = key.verifying_key().to_bytes();
        assert_eq!(ResumeToken::verify(&text, &public), Ok(token));
        assert_eq!(
            ResumeToken::verify(&text, &other.verifying_key().to_bytes()),
            Err(TokenError::BadSignature)
        );
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(bytes).unwrap();
            assert!(ResumeToken::verify(&changed, &public).is_err(), "flipped {at}");
        }
    }
}
