//! The way from the session's task to the reader of one subscription. It never makes the task wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tenure_link::{Skips, SubEnd, SubHandle, SubItem};
use tenure_proto::subscribe::SubscribeResult;
use tokio::sync::mpsc;

use crate::received::{Hands, Received};
use crate::subscription::Item;

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
    /// Bounds what waits for a reader that nobody waits for.
    skips: Skips,
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
    let feed = Feed { items: sender, unread: Arc::clone(&unread), hands, skips: Skips::default() };
    (feed, Mouth { handle, items, unread })
}

impl Feed {
    /// Passes it on, or what the reader is to see of it; says whether there is a reader. A message that finds none is
    /// let go.
    pub(crate) fn push(&mut self, item: SubItem) -> bool {
        let Feed { items, unread, hands, skips } = self;
        let mut heard = true;
        skips.pass(item, unread.load(Ordering::Relaxed), |item| {
            let fed = match item {
                SubItem::Opened(result) => Fed::Opened(result),
                SubItem::Gap { partition, from, to } => Fed::Item(Item::Gap { partition, from, to }),
                SubItem::Ended(end) => Fed::Ended(end),
                SubItem::Message(handed) => {
                    unread.fetch_add(1, Ordering::Relaxed);
                    Fed::Item(Item::Message(Received::new(handed, hands.clone())))
                }
            };
            heard = items.send(fed).is_ok();
        });
        heard
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
