//! What the two ends of a relayed stream tell each other before its bytes: small frames, each two bytes of length and
//! one JSON object.
//!
//! The broker opens a stream towards a publisher with [`StreamOpen`]; the publisher answers with a [`Verdict`]. A
//! consumer's stream carries no opening, because its ticket has named the service, and begins with the verdict.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::WireError;
use crate::ids::{MemberKey, SessionKey};
use crate::limits::RELAY_FRAME_BYTES;
use crate::name::ServiceName;
use crate::service::ServiceKind;

/// Bytes of a frame's length.
pub const LENGTH_BYTES: usize = 2;

/// How a stream towards a publisher begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamOpen {
    /// The service that is wanted.
    pub name: ServiceName,
    /// How it will be spoken to.
    pub kind: ServiceKind,
    /// Who wants it.
    pub from: Asker,
}

/// Who asks for a stream, as far as the broker knows: an address over HTTP, or a session of the mesh. What a session
/// says of itself inside the stream is proven there; this is the broker's word.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asker {
    /// Where a request came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Which session opened the stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionKey>,
    /// That session's member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<MemberKey>,
}

impl Asker {
    /// Somebody at this address.
    pub fn at(address: impl Into<String>) -> Asker {
        Asker { address: Some(address.into()), ..Asker::default() }
    }

    /// A session of the mesh.
    pub fn session(session: SessionKey, member: MemberKey) -> Asker {
        Asker { session: Some(session), member: Some(member), ..Asker::default() }
    }
}

/// Whether a stream leads anywhere.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Whether bytes follow.
    pub ok: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<WireError>,
}

impl Verdict {
    /// Bytes follow.
    pub fn yes() -> Verdict {
        Verdict { ok: true, error: None }
    }

    /// Nothing follows, for this reason.
    pub fn no(error: WireError) -> Verdict {
        Verdict { ok: false, error: Some(error) }
    }

    /// The same as a result.
    pub fn outcome(self) -> Result<(), WireError> {
        match self {
            Verdict { ok: true, .. } => Ok(()),
            Verdict { error: Some(error), .. } => Err(error),
            Verdict { error: None, .. } => Err(WireError::bad_request("refused without a reason")),
        }
    }
}

/// `value` as a frame; nothing when it is longer than any frame may be.
pub fn frame<T: Serialize>(value: &T) -> Option<Vec<u8>> {
    let json = serde_json::to_vec(value).ok().filter(|json| json.len() <= RELAY_FRAME_BYTES)?;
    let length = u16::try_from(json.len()).ok()?;
    Some([&length.to_be_bytes()[..], &json].concat())
}

/// How many bytes of JSON follow this length; nothing when they are more than a frame may have, or none.
pub fn length(bytes: [u8; LENGTH_BYTES]) -> Option<usize> {
    Some(usize::from(u16::from_be_bytes(bytes))).filter(|length| (1..=RELAY_FRAME_BYTES).contains(length))
}

/// The value that a frame's JSON says.
pub fn unframe<T: DeserializeOwned>(json: &[u8]) -> Result<T, WireError> {
    Ok(crate::codec::Codec::Json.decode(json)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorCode;

    #[test]
    fn a_frame_is_its_length_and_its_json() {
        let open = StreamOpen {
            name: "web".parse().unwrap(),
            kind: ServiceKind::Http,
            from: Asker::at("192.0.2.1:4711"),
        };
        let bytes = frame(&open).unwrap();
        let text = r#"{"name":"web","kind":"http","from":{"address":"192.0.2.1:4711"}}"#;
        assert_eq!(length([bytes[0], bytes[1]]), Some(text.len()));
        assert_eq!(&bytes[LENGTH_BYTES..], text.as_bytes());
        assert_eq!(unframe::<StreamOpen>(&bytes[LENGTH_BYTES..]), Ok(open));
    }

    #[test]
    fn a_length_is_bounded_and_never_nothing() {
        assert_eq!(length([0, 0]), None);
        assert_eq!(length([0, 1]), Some(1));
        let most = u16::try_from(RELAY_FRAME_BYTES).unwrap();
        assert_eq!(length(most.to_be_bytes()), Some(RELAY_FRAME_BYTES));
        assert_eq!(length((most + 1).to_be_bytes()), None);
        assert_eq!(frame(&"x".repeat(RELAY_FRAME_BYTES)), None);
    }

    #[test]
    fn a_verdict_without_a_reason_is_still_a_no() {
        assert_eq!(Verdict::yes().outcome(), Ok(()));
        let error = WireError::new(ErrorCode::Unavailable, "down");
        assert_eq!(Verdict::no(error.clone()).outcome(), Err(error));
        let bare: Verdict = unframe(br#"{"ok":false}"#).unwrap();
        assert!(bare.outcome().is_err());
        assert!(unframe::<Verdict>(br#"{"ok":true,"ok":false}"#).is_err(), "said twice");
    }
}
