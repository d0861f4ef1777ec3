//! What to do with a message that has come: keep it, then settle it at the broker, then show it.
//!
//! While the disk cannot take it, the broker keeps it. What comes again after it was kept is settled once more and not
//! shown. The rule for what is kept at all is [`crate::arrival`]'s.

use tenure_kit::mutant::{self, Mutant};
use tenure_proto::message::Message;

use crate::arrival::{Arrival, Recipient, arrival};

/// How long to wait for a disk that does not write now.
const AGAIN_MS: u64 = 1_000;

/// What to do with a message next, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Todo {
    /// Settle it at the broker.
    pub settle: bool,
    /// Show it to whoever watches.
    pub show: bool,
    /// Keep it on the disk, after so many milliseconds; then [`kept`] says what is next.
    pub keep_after_ms: Option<u64>,
}

/// A message has come to `recipient`.
pub fn came(recipient: &Recipient, message: &Message) -> Todo {
    match arrival(recipient, message) {
        Arrival::Keep => {
            let settle = mutant::on(Mutant::AckBeforePersist);
            Todo { settle, show: false, keep_after_ms: Some(0) }
        }
        Arrival::Echo => Todo { settle: true, show: false, keep_after_ms: None },
    }
}

/// The disk has it, for the first time if `new`; or could not take it.
pub fn kept<E>(new: Result<bool, E>) -> Todo {
    match new {
        Ok(new) => Todo { settle: !mutant::on(Mutant::AckBeforePersist), show: new, keep_after_ms: None },
        Err(_) => Todo { settle: false, show: false, keep_after_ms: Some(AGAIN_MS) },
    }
}

#[cfg(test)]
mod tests {
    use tenure_proto::Codec;
    use tenure_proto::ids::{MemberKey, MessageId, SessionKey};

    use super::*;

    fn message(from: SessionKey, to: &str) -> Message {
        let json = format!(
            r#"{{"id":"{}","clientMessageId":"c","from":{{"member":"{}","session":"{from}","name":"n"}},"to":"{to}",
                "log":"l","seq":1,"priority":"next","body":"b","sentAt":1}}"#,
            MessageId::from_parts(1, 1),
            MemberKey([9; 32]),
        );
        Codec::Json.decode(json.as_bytes()).unwrap()
    }

    #[test]
    fn what_comes_is_kept_before_it_is_settled_and_shown_once() {
        let me = SessionKey([1; 32]);
        let recipient = Recipient::Session(me);
        let first = came(&recipient, &message(SessionKey([2; 32]), &format!("session:{me}")));
        assert_eq!(first, Todo { settle: false, show: false, keep_after_ms: Some(0) });
        let refused = kept::<&str>(Err("full"));
        assert!(!refused.settle && !refused.show && refused.keep_after_ms > Some(0), "the broker keeps it");
        assert_eq!(kept::<&str>(Ok(true)), Todo { settle: true, show: true, keep_after_ms: None });
        assert_eq!(kept::<&str>(Ok(false)), Todo { settle: true, show: false, keep_after_ms: None });
        let echo = came(&recipient, &message(me, "topic:jobs"));
        assert_eq!(echo, Todo { settle: true, show: false, keep_after_ms: None }, "its own post");
    }
}
