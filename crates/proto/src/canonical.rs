//! The strings that are signed, and signing and verifying them. A signature here is always Ed25519 over one
//! `|`-joined line whose first field names its purpose and version, so that none can stand in for another.

use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};

use crate::ids::{MemberKey, SessionKey};
use crate::name::{Cap, MeshName};
use crate::text;

/// The public half of `key` as a member.
pub fn member_key(key: &SigningKey) -> MemberKey {
    MemberKey(key.verifying_key().to_bytes())
}

/// The public half of `key` as a session.
pub fn session_key(key: &SigningKey) -> SessionKey {
    SessionKey(key.verifying_key().to_bytes())
}

/// The line a session signs to prove that it holds its key, here, now, to this broker.
pub struct Proof<'a> {
    /// The mesh to join.
    pub mesh: &'a MeshName,
    /// The member that vouches.
    pub member: &'a MemberKey,
    /// The session that signs.
    pub session: &'a SessionKey,
    /// The challenge's nonce, as it stood on the wire.
    pub nonce: &'a str,
    /// The challenge's broker id.
    pub broker: &'a str,
    /// The Host header of the upgrade request.
    pub host: &'a str,
}

impl Proof<'_> {
    /// The bytes that are signed.
    pub fn line(&self) -> String {
        let Proof { mesh, member, session, nonce, broker, host } = self;
        format!("tenure-hello.v1|{mesh}|{member}|{session}|{nonce}|{broker}|{host}")
    }

    /// The proof: the line signed by the session's key, in base64url.
    pub fn sign(&self, session_key: &SigningKey) -> String {
        sign(session_key, &self.line())
    }

    /// Whether `signature` proves possession of the session's key.
    pub fn verify(&self, signature: &str) -> bool {
        verify(&self.session.0, &self.line(), signature)
    }
}

/// The line a member signs to vouch for a session.
pub struct Attested<'a> {
    /// The mesh it is good for.
    pub mesh: &'a MeshName,
    /// The member that signs.
    pub member: &'a MemberKey,
    /// The session that is vouched for.
    pub session: &'a SessionKey,
    /// Unix milliseconds after which no hello may use it.
    pub expires_at: u64,
    /// What the session may do; `None` is everything the member may.
    pub caps: Option<&'a [Cap]>,
}

impl Attested<'_> {
    /// The bytes that are signed. Absent caps sign as `*`, an empty list as nothing.
    pub fn line(&self) -> String {
        let caps = match self.caps {
            None => "*".to_owned(),
            Some(caps) => {
                let mut sorted: Vec<&str> = caps.iter().map(Cap::as_str).collect();
                sorted.sort_unstable();
                sorted.join(",")
            }
        };
        let Attested { mesh, member, session, expires_at, .. } = self;
        format!("tenure-attest.v1|{mesh}|{member}|{session}|{expires_at}|{caps}")
    }

    /// The attestation's signature by the member's key, in base64url.
    pub fn sign(&self, member_key: &SigningKey) -> String {
        sign(member_key, &self.line())
    }

    /// Whether `signature` is the member's.
    pub fn verify(&self, signature: &str) -> bool {
        verify(&self.member.0, &self.line(), signature)
    }
}

/// Signs `line`, in base64url.
pub fn sign(key: &SigningKey, line: &str) -> String {
    text::b64url(&key.sign(line.as_bytes()).to_bytes())
}

/// Whether `signature` (base64url) over `line` is by `key`. Strict: weak keys and malleable signatures are
/// refused, so that two parties never disagree about one signature.
pub fn verify(key: &[u8; 32], line: &str, signature: &str) -> bool {
    let Some(bytes) = text::unb64url(signature) else { return false };
    let Ok(signature) = Signature::from_slice(&bytes) else { return false };
    let Ok(key) = VerifyingKey::from_bytes(key) else { return false };
    key.verify_strict(line.as_bytes(), &signature).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(seed: u8) -> SigningKey {
        SigningKey::from_bytes(&[seed; 32])
    }

    #[test]
    fn caps_are_sorted_absent_is_a_star_and_none_is_empty() {
        let (mesh, member, session) = ("m".parse().unwrap(), MemberKey([1; 32]), SessionKey([2; 32]));
        let caps: Vec<Cap> = ["send", "read"].iter().map(|c| c.parse().unwrap()).collect();
        let line =
            |caps| Attested { mesh: &mesh, member: &member, session: &session, expires_at: 9, caps }.line();
        assert!(line(None).ends_with("|9|*"));
        assert!(line(Some(&[])).ends_with("|9|"));
        assert!(line(Some(&caps)).ends_with("|9|read,send"));
    }

    #[test]
    fn a_proof_holds_for_one_nonce_broker_and_host() {
        let key = key(3);
        let (mesh, member, session) = ("m".parse().unwrap(), member_key(&key), session_key(&key));
        let proof = |nonce, broker, host| Proof {
            mesh: &mesh,
            member: &member,
            session: &session,
            nonce,
            broker,
            host,
        };
        let signature = proof("n", "b", "h").sign(&key);
        assert!(proof("n", "b", "h").verify(&signature));
        assert!(!proof("n2", "b", "h").verify(&signature));
        assert!(!proof("n", "b2", "h").verify(&signature));
        assert!(!proof("n", "b", "h2").verify(&signature));
        assert!(!proof("n", "b", "h").verify("not base64url!"));
        assert!(!proof("n", "b", "h").verify(""));
    }

    #[test]
    fn a_key_that_anybody_can_sign_for_is_refused() {
        // The neutral point as a key and as the first half of a signature: without strictness it holds for any line.
        let mut neutral = [0; 32];
        neutral[0] = 1;
        let mut signature = [0; 64];
        signature[..32].copy_from_slice(&neutral);
        assert!(!verify(&neutral, "line", &text::b64url(&signature)));
    }
}
