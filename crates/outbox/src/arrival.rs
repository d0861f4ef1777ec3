//! What becomes of a message that reaches a daemon.
//!
//! It is kept under (mesh, recipient, message id), once, before it is settled at the broker; only what was kept just
//! now is shown. The recipient is the local session that read it, or the member whose inbox it lay in: so what came
//! for one local session is never another's. What a session posted to a topic that it reads itself is settled and not
//! shown: it knows. What it sent to its own address is kept, because it asked for that.

use std::fmt;
use std::str::FromStr;

use tenure_proto::ids::{IdError, MemberKey, SessionKey};
use tenure_proto::message::{Address, Message};

/// Whose inbox on this machine a message is kept in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Recipient {
    /// A local session's.
    Session(SessionKey),
    /// The member's.
    Member(MemberKey),
}

impl fmt::Display for Recipient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Recipient::Session(key) => write!(f, "session:{key}"),
            Recipient::Member(key) => write!(f, "member:{key}"),
        }
    }
}

impl FromStr for Recipient {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Recipient, IdError> {
        match text.split_once(':') {
            Some(("session", key)) => key.parse().map(Recipient::Session),
            Some(("member", key)) => key.parse().map(Recipient::Member),
            _ => Err(IdError),
        }
    }
}

/// What to do with a message before it is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Keep it, if it is not kept already; show it if it was not.
    Keep,
    /// Settle it only: its reader is who sent it.
    Echo,
}

/// What to do with a message that came to `recipient`.
pub fn arrival(recipient: &Recipient, message: &Message) -> Arrival {
    match (&message.to, recipient) {
        (Address::Topic(_), Recipient::Session(reader)) if message.from.session == *reader => Arrival::Echo,
        _ => Arrival::Keep,
    }
}

/// Where a reader of an inbox goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resume {
    /// After this number.
    pub after: u64,
    /// Whether the numbers it knows are of an inbox that is gone: it is told, and begins anew.
    pub reset: bool,
}

/// Where a reader goes on that has read up to `last`, in an inbox that has given numbers up to `newest`. Without `last` it
/// wants what comes from now on. A number that was never given is one of another inbox: a damaged one is put aside, and its
/// successor counts from the start.
pub const fn resume(last: Option<u64>, newest: u64) -> Resume {
    match last {
        None => Resume { after: newest, reset: false },
        Some(last) if last > newest => Resume { after: 0, reset: true },
        Some(last) => Resume { after: last, reset: false },
    }
}

#[cfg(test)]
mod tests {
    use tenure_proto::Codec;

    use super::*;

    const ME: SessionKey = SessionKey([1; 32]);
    const YOU: SessionKey = SessionKey([2; 32]);

    fn message(from: SessionKey, to: &str) -> Message {
        let json = format!(
            r#"{{"id":"{}","clientMessageId":"c","from":{{"member":"{}","session":"{from}","name":"n"}},"to":"{to}",
                "log":"l","seq":1,"priority":"next","body":"b","sentAt":1}}"#,
            tenure_proto::MessageId::from_parts(1, 1),
            MemberKey([9; 32]),
        );
        Codec::Json.decode(json.as_bytes()).unwrap()
    }

    #[test]
    fn who_knows_a_number_that_was_never_given_begins_anew() {
        assert_eq!(resume(None, 7), Resume { after: 7, reset: false });
        assert_eq!(resume(Some(0), 7), Resume { after: 0, reset: false });
        assert_eq!(resume(Some(7), 7), Resume { after: 7, reset: false });
        assert_eq!(resume(Some(8), 7), Resume { after: 0, reset: true });
    }

    #[test]
    fn only_ones_own_post_is_an_echo() {
        let (me, you) = (Recipient::Session(ME), Recipient::Session(YOU));
        assert_eq!(arrival(&me, &message(ME, "topic:jobs")), Arrival::Echo);
        assert_eq!(arrival(&you, &message(ME, "topic:jobs")), Arrival::Keep);
        assert_eq!(arrival(&me, &message(ME, &format!("session:{ME}"))), Arrival::Keep, "asked for");
        let member = Recipient::Member(MemberKey([9; 32]));
        assert_eq!(arrival(&member, &message(ME, &format!("member:{}", MemberKey([9; 32])))), Arrival::Keep);
    }

    #[test]
    fn recipients_have_one_spelling() {
        for recipient in [Recipient::Session(ME), Recipient::Member(MemberKey([3; 32]))] {
            assert_eq!(recipient.to_string().parse(), Ok(recipient));
        }
        assert!("topic:jobs".parse::<Recipient>().is_err());
    }
}
