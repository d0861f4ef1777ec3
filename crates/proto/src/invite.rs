//! Invites: `tenure-invite.v1.<b64url(JSON)>.<b64url(sig)>`, signed by an operator of the mesh, and the link that carries
//! one: `ws://HOST:PORT#INVITE`. What follows the `#` of a link is sent to nobody but the broker, in a hello.
//!
//! A signature says who invites, and nothing more: whether that member may, whether the time is over, and how many keys
//! were let in already is the mesh's to know.

use ed25519_dalek::SigningKey;
use serde::{Deserialize, Serialize};

use crate::canonical;
use crate::error::{ErrorCode, WireError};
use crate::ids::{GrantId, MemberKey};
use crate::limits::{INVITE_BYTES, INVITE_USES_MAX};
use crate::name::{Cap, MeshName};
use crate::number::U53;
use crate::text;

const PREFIX: &str = "tenure-invite.v1.";

/// What a member of a mesh is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It may use the mesh.
    #[default]
    Member,
    /// It may also invite others.
    Operator,
}

impl Role {
    /// As it is written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Role::Member => "member",
            Role::Operator => "operator",
        }
    }

    /// The role that is written so.
    pub fn from_wire(text: &str) -> Option<Role> {
        [Role::Member, Role::Operator].into_iter().find(|role| role.as_str() == text)
    }
}

/// What an invite says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct Invite {
    /// The mesh that it is to.
    pub mesh: MeshName,
    /// Its name.
    pub id: GrantId,
    /// Who invites, and signs.
    pub by: MemberKey,
    /// What whoever comes will be.
    pub role: Role,
    /// What they may do; absent is whatever the role may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caps: Option<Vec<Cap>>,
    /// How many keys it lets in.
    pub uses: u32,
    /// When it ends, Unix milliseconds.
    pub exp: U53,
}

impl Invite {
    /// The invite as text, signed by `by`, whose key this must be.
    pub fn issue(&self, by: &SigningKey) -> String {
        let payload = text::b64url(&serde_json::to_vec(self).unwrap_or_default());
        let signature = canonical::sign(by, &format!("{PREFIX}{payload}"));
        format!("{PREFIX}{payload}.{signature}")
    }

    /// What `invite` says, without a word on who signed it.
    pub fn read(invite: &str) -> Result<Invite, WireError> {
        let bad = || WireError::bad_request("this is no invite; copy the whole link that you were given");
        if invite.len() > INVITE_BYTES {
            return Err(bad());
        }
        let (signed, _) = invite.rsplit_once('.').ok_or_else(bad)?;
        let payload = signed.strip_prefix(PREFIX).ok_or_else(bad)?;
        let payload = text::unb64url(payload).ok_or_else(bad)?;
        let parsed: Invite = serde_json::from_slice(&payload).map_err(|_| bad())?;
        let legal = (1..=INVITE_USES_MAX).contains(&parsed.uses);
        legal.then_some(parsed).ok_or_else(bad)
    }

    /// What `invite` says, if the member that it names has signed it.
    pub fn verify(invite: &str) -> Result<Invite, WireError> {
        let parsed = Invite::read(invite)?;
        let forged = || {
            let text = "the invite is not signed by whom it names; ask for a new one";
            WireError::new(ErrorCode::Unauthorized, text)
        };
        let (signed, signature) = invite.rsplit_once('.').ok_or_else(forged)?;
        canonical::verify(&parsed.by.0, signed, signature).then_some(parsed).ok_or_else(forged)
    }
}

/// A link that invites: where the broker is, and the invite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InviteLink {
    /// The broker, `ws://HOST:PORT` or `wss://HOST`.
    pub broker: String,
    /// The invite, as text.
    pub invite: String,
    /// What it says; who signed it is not checked here.
    pub says: Invite,
}

impl InviteLink {
    /// The link that is written so.
    pub fn read(link: &str) -> Result<InviteLink, WireError> {
        let bad = || WireError::bad_request("a link to a mesh is ws://HOST:PORT#tenure-invite.v1.…");
        let (broker, invite) = link.trim().split_once('#').ok_or_else(bad)?;
        let broker = broker.trim_end_matches('/');
        let host = broker.strip_prefix("ws://").or_else(|| broker.strip_prefix("wss://")).ok_or_else(bad)?;
        let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b':' | b'[' | b']' | b'_');
        if host.is_empty() || host.len() > 255 || !host.bytes().all(legal) {
            return Err(bad());
        }
        let says = Invite::read(invite)?;
        Ok(InviteLink { broker: broker.to_owned(), invite: invite.to_owned(), says })
    }

    /// As it is written.
    pub fn write(broker: &str, invite: &str) -> String {
        format!("{}#{invite}", broker.trim_end_matches('/'))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn invite() -> (SigningKey, Invite) {
        let key = SigningKey::from_bytes(&[7; 32]);
        let says = Invite {
            mesh: "team".parse().unwrap(),
            id: "i1".parse().unwrap(),
            by: canonical::member_key(&key),
            role: Role::Member,
            caps: Some(vec!["send".parse().unwrap()]),
            uses: 3,
            exp: U53::from(1_000),
        };
        (key, says)
    }

    #[test]
    fn only_its_signer_makes_it_and_any_flipped_character_is_refused() {
        let (key, says) = invite();
        let text = says.issue(&key);
        assert_eq!(Invite::verify(&text), Ok(says.clone()));
        let forged = says.issue(&SigningKey::from_bytes(&[8; 32]));
        assert_eq!(Invite::verify(&forged).unwrap_err().code, ErrorCode::Unauthorized);
        assert_eq!(Invite::read(&forged), Ok(says));
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            assert!(Invite::verify(&String::from_utf8(bytes).unwrap()).is_err(), "flipped {at}");
        }
    }

    #[test]
    fn it_lets_in_somebody_and_not_everybody() {
        let (key, says) = invite();
        for uses in [0, INVITE_USES_MAX + 1] {
            assert!(Invite::verify(&Invite { uses, ..says.clone() }.issue(&key)).is_err(), "{uses}");
        }
    }

    #[test]
    fn a_link_reads_as_it_was_written() {
        let (key, says) = invite();
        let invite = says.issue(&key);
        for broker in ["ws://127.0.0.1:7400", "wss://mesh.example.org", "ws://[::1]:7400"] {
            let link = InviteLink::read(&format!(" {}\n", InviteLink::write(broker, &invite))).unwrap();
            assert_eq!((link.broker.as_str(), link.invite.as_str(), &link.says), (broker, &*invite, &says));
        }
        for bad in
            ["", "ws://h", "http://h#x", "ws://#x", "ws://a@b#x", "ws://h/p#x", "ws://h#tenure-invite.v1.x.y"]
        {
            assert!(InviteLink::read(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_text_is_too_odd(text in ".{0,300}", tail in "[A-Za-z0-9_.-]{0,300}") {
            let _ = Invite::verify(&text);
            let _ = InviteLink::read(&text);
            let _ = InviteLink::read(&format!("ws://h:1#tenure-invite.v1.{tail}"));
            let unsigned = format!("tenure-invite.v1.{tail}");
            prop_assert!(Invite::verify(&unsigned).is_err());
        }

        #[test]
        fn whatever_it_says_survives_the_way(uses in 1..=INVITE_USES_MAX, exp in 0u64..1 << 53, seed in any::<[u8; 32]>(), operator: bool) {
            let key = SigningKey::from_bytes(&seed);
            let (_, says) = invite();
            let role = if operator { Role::Operator } else { Role::Member };
            let says = Invite { uses, exp: U53::saturating(exp), by: canonical::member_key(&key), role, ..says };
            prop_assert_eq!(Invite::verify(&says.issue(&key)), Ok(says));
        }
    }
}
