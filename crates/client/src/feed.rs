//! The way from the session's task to the reader of one subscription. It never makes the task wait.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tenure_core::link::{SubEnd, SubHandle, SubItem};
use tenure_proto::LogName;
use tenure_proto::subscribe::SubscribeResult;
use tokio::sync::mpsc;

use crate::received::{Hands, Received};
use crate::subscription::Item;

/// Messages that may wait for the reader of a subscription that settles by sending; past it they are skipped and
/// told as a gap. Of one that settles by hand no more wait than the broker may hand out: the link sees to it.
const AUTO: usize = 1_024;

/// What travels.
pub(crate) enum Fed {
    Opened(SubscribeResult),
    Item(Item),
    Ended(SubEnd),
}

/// The task's end.
pub(crate) struct Feed {
    items: mpsc::UnboundedSender<Fed>,
    unread: Arc<AtomicUsize>,
    hands: Hands,
    /// What was skipped and has not been told, by partition.
    skipped: BTreeMap<Option<u32>, (u64, u64)>,
}

/// The reader's end.
#[derive(Debug)]
pub(crate) struct Mouth {
    pub(crate) handle: SubHandle,
    items: mpsc::UnboundedReceiver<Fed>,
    unread: Arc<AtomicUsize>,
}

pub(crate) fn feed(handle: SubHandle, hands: Hands) -> (Feed, Mouth) {
    let (sender, items) = mpsc::unbounded_channel();
    let unread = Arc::new(AtomicUsize::new(0));
    let feed = Feed { items: sender, unread: Arc::clone(&unread), hands, skipped: BTreeMap::new() };
    (feed, Mouth { handle, items, unread })
}

impl Feed {
    /// Passes it on; says whether there is a reader. A message that finds none is let go.
    pub(crate) fn push(&mut self, item: SubItem) -> bool {
        let item = match item {
            SubItem::Opened(result) => Fed::Opened(result),
            SubItem::Gap { partition, from, to } => Fed::Item(Item::Gap { partition, from, to }),
            SubItem::Ended(end) => {
                self.tell_skipped();
                Fed::Ended(end)
            }
            SubItem::Message(handed) => {
                let message = &handed.delivery.message;
                if handed.id.is_none() && self.unread.load(Ordering::Relaxed) >= AUTO {
                    let partition = match message.log.parse() {
                        Ok(LogName::Topic(_, partition)) => Some(partition),
                        _ => None,
                    };
                    let seq = message.seq.get();
                    self.skipped.entry(partition).or_insert((seq, seq)).1 = seq;
                    return true;
                }
                self.tell_skipped();
                self.unread.fetch_add(1, Ordering::Relaxed);
                Fed::Item(Item::Message(Received::new(handed, self.hands.clone())))
            }
        };
        self.items.send(item).is_ok()
    }

    fn tell_skipped(&mut self) {
        for (partition, (from, to)) in std::mem::take(&mut self.skipped) {
            let _ = self.items.send(Fed::Item(Item::Gap { partition, from, to }));
        }
    }
}

impl Mouth {
    /// The next one; `None` when the task was torn down. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<Fed> {
        let fed = self.items.recv().await;
        if matches!(fed, Some(Fed::Item(Item::Message(_)))) {
            self.unread.fetch_sub(1, Ordering::Relaxed);
        }
        fed
    }
}
