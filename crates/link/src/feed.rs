//! What a reader that is too slow misses: of a subscription that settles by sending, nobody waits for the reader, so
//! messages past a bound are skipped and told as a gap.

use std::collections::BTreeMap;

use tenure_proto::LogName;

use crate::delivery::SubItem;

/// Messages that may wait for the reader of a subscription that settles by sending; past it they are skipped. Of one
/// that settles by hand no more wait than the broker may hand out: the link sees to it.
pub const UNREAD_MAX: usize = 1_024;

/// What one reader has missed and has not been told.
#[derive(Debug, Default)]
pub struct Skips {
    /// The first and the last, by partition.
    untold: BTreeMap<Option<u32>, (u64, u64)>,
}

impl Skips {
    /// Hands on what the reader is to see of `item`, in order, while `unread` messages wait for it: the item, or
    /// nothing, and before it what was skipped.
    pub fn pass(&mut self, item: SubItem, unread: usize, mut hand: impl FnMut(SubItem)) {
        match &item {
            SubItem::Opened(_) | SubItem::Gap { .. } => {}
            SubItem::Ended(_) => self.tell(&mut hand),
            SubItem::Message(handed) => {
                if handed.id.is_none() && unread >= UNREAD_MAX {
                    let message = &handed.delivery.message;
                    let partition = match message.log.parse() {
                        Ok(LogName::Topic(_, partition)) => Some(partition),
                        _ => None,
                    };
                    let seq = message.seq.get();
                    self.untold.entry(partition).or_insert((seq, seq)).1 = seq;
                    return;
                }
                self.tell(&mut hand);
            }
        }
        hand(item);
    }

    fn tell(&mut self, hand: &mut impl FnMut(SubItem)) {
        for (partition, (from, to)) in std::mem::take(&mut self.untold) {
            hand(SubItem::Gap { partition, from, to });
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{DeliveryId, Handed, SubEnd};

    fn message(seq: u64, partition: u32, id: Option<DeliveryId>) -> SubItem {
        let key = "00".repeat(32);
        let delivery = json!({
            "subId": "s", "tag": "t", "attempt": 1, "redelivered": false,
            "message": {
                "id": "01ARZ3NDEKTSV4RRFFQ69G5FAV", "clientMessageId": "m",
                "log": format!("topic/jobs/{partition}"), "seq": seq,
                "from": {"member": key, "session": key, "name": "me"}, "to": "topic:jobs",
                "priority": "next", "body": "", "sentAt": 1, "kind": "message",
            },
        });
        SubItem::Message(Handed { id, delivery: Box::new(serde_json::from_value(delivery).unwrap()) })
    }

    /// What the reader sees, in short.
    fn pass(skips: &mut Skips, item: SubItem, unread: usize) -> Vec<String> {
        let mut seen = Vec::new();
        skips.pass(item, unread, |item| {
            seen.push(match item {
                SubItem::Message(handed) => handed.delivery.message.seq.get().to_string(),
                SubItem::Gap { partition, from, to } => format!("{}:{from}-{to}", partition.unwrap_or(99)),
                SubItem::Ended(_) => "end".to_owned(),
                SubItem::Opened(_) => "opened".to_owned(),
            });
        });
        seen
    }

    #[test]
    fn what_a_slow_reader_misses_is_told_before_the_next_it_gets() {
        let mut skips = Skips::default();
        assert_eq!(pass(&mut skips, message(1, 0, None), UNREAD_MAX - 1), ["1"]);
        for (seq, partition) in [(2, 0), (1, 3), (3, 0), (4, 0)] {
            assert!(pass(&mut skips, message(seq, partition, None), UNREAD_MAX).is_empty());
        }
        assert_eq!(pass(&mut skips, message(5, 0, None), UNREAD_MAX - 1), ["0:2-4", "3:1-1", "5"]);
        assert_eq!(pass(&mut skips, message(6, 0, None), 0), ["6"], "once");
    }

    #[test]
    fn what_is_settled_by_hand_is_never_skipped() {
        let item = message(1, 0, Some(DeliveryId(1)));
        assert_eq!(pass(&mut Skips::default(), item, 10 * UNREAD_MAX), ["1"]);
    }

    #[test]
    fn the_end_comes_after_what_was_skipped() {
        let mut skips = Skips::default();
        assert!(pass(&mut skips, message(7, 0, None), UNREAD_MAX).is_empty());
        assert_eq!(pass(&mut skips, SubItem::Ended(SubEnd::Unsubscribed), UNREAD_MAX), ["0:7-7", "end"]);
    }
}
