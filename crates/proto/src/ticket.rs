//! The relay ticket: `tenure-relay.v1.<b64url(JSON)>.<b64url(sig)>`, what lets one socket into the relay, once.
//!
//! A mistake here towards "good" would let somebody speak as another session, and one towards "bad" costs a client one
//! more `relay.open`: so whatever is in doubt is refused.

use ed25519_dalek::SigningKey;
use serde::{Deserialize, Serialize};

use crate::canonical;
use crate::ids::{MemberKey, SessionKey};
use crate::limits::TOKEN_BYTES;
use crate::name::{MeshName, ServiceName};
use crate::number::U53;
use crate::service::RelayRole;
use crate::text;

const PREFIX: &str = "tenure-relay.v1.";

/// What a relay ticket says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct RelayTicket {
    /// The mesh.
    pub mesh: MeshName,
    /// Which end its bearer is.
    pub role: RelayRole,
    /// The session it was given to.
    pub session: SessionKey,
    /// That session's member.
    pub member: MemberKey,
    /// The service, for the end that asks; for the end that answers, if it named one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<ServiceName>,
    /// Who answers, for the end that asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<SessionKey>,
    /// The start of the broker in which it is good.
    pub run: U53,
    /// Its number, of which no other ticket of that mesh and start has the same.
    pub id: U53,
    /// When it lapses, Unix milliseconds.
    pub exp: U53,
}

/// Why a ticket lets nobody in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TicketError {
    /// Not of the ticket's form at all.
    #[error("malformed")]
    Malformed,
    /// Well formed, but not signed by this broker's key.
    #[error("bad_signature")]
    BadSignature,
    /// Of another start of this broker.
    #[error("foreign")]
    Foreign,
    /// Past its time.
    #[error("expired")]
    Expired,
}

impl RelayTicket {
    /// The ticket as text, signed with the broker's key.
    pub fn issue(&self, broker_key: &SigningKey) -> String {
        let payload = text::b64url(&serde_json::to_vec(self).unwrap_or_default());
        let signature = canonical::sign(broker_key, &format!("{PREFIX}{payload}"));
        format!("{PREFIX}{payload}.{signature}")
    }

    /// What `ticket` says, if `broker_key` signed it, in this start of the broker, and its time is not over. Whether
    /// it was used before its bearer cannot know: that is for whoever takes it.
    pub fn verify(
        ticket: &str,
        broker_key: &[u8; 32],
        run: u64,
        wall: u64,
    ) -> Result<RelayTicket, TicketError> {
        if ticket.len() > TOKEN_BYTES {
            return Err(TicketError::Malformed);
        }
        let (signed, signature) = ticket.rsplit_once('.').ok_or(TicketError::Malformed)?;
        let payload = signed.strip_prefix(PREFIX).ok_or(TicketError::Malformed)?;
        let payload = text::unb64url(payload).ok_or(TicketError::Malformed)?;
        let parsed: RelayTicket = serde_json::from_slice(&payload).map_err(|_| TicketError::Malformed)?;
        if !canonical::verify(broker_key, signed, signature) {
            return Err(TicketError::BadSignature);
        }
        if parsed.run.get() != run {
            return Err(TicketError::Foreign);
        }
        if wall >= parsed.exp.get() {
            return Err(TicketError::Expired);
        }
        Ok(parsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket() -> RelayTicket {
        RelayTicket {
            mesh: "default".parse().unwrap(),
            role: RelayRole::Connect,
            session: SessionKey([1; 32]),
            member: MemberKey([2; 32]),
            name: Some("db".parse().unwrap()),
            peer: Some(SessionKey([3; 32])),
            run: U53::from(4),
            id: U53::from(5),
            exp: U53::from(1_000),
        }
    }

    #[test]
    fn only_the_issuing_key_verifies_and_any_flipped_character_is_refused() {
        let key = SigningKey::from_bytes(&[7; 32]);
        let other = SigningKey::from_bytes(&[8; 32]).verifying_key().to_bytes();
        let (text, public) = (ticket().issue(&key), key.verifying_key().to_bytes());
        assert_eq!(RelayTicket::verify(&text, &public, 4, 999), Ok(ticket()));
        assert_eq!(RelayTicket::verify(&text, &other, 4, 999), Err(TicketError::BadSignature));
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(bytes).unwrap();
            assert!(RelayTicket::verify(&changed, &public, 4, 999).is_err(), "flipped {at}");
        }
    }

    #[test]
    fn it_is_good_in_its_own_start_and_before_its_time_is_over() {
        let key = SigningKey::from_bytes(&[7; 32]);
        let (text, public) = (ticket().issue(&key), key.verifying_key().to_bytes());
        assert_eq!(RelayTicket::verify(&text, &public, 5, 0), Err(TicketError::Foreign));
        assert_eq!(RelayTicket::verify(&text, &public, 4, 1_000), Err(TicketError::Expired));
        let long = format!("{text}{}", "A".repeat(TOKEN_BYTES));
        assert_eq!(RelayTicket::verify(&long, &public, 4, 0), Err(TicketError::Malformed));
    }
}
