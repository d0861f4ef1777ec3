//! Somebody who watches the others: what of all that happened could be seen.

use anyhow::Result;
use tenure_client::proto::event::{EventBody, PresenceKind};
use tenure_client::{Events, Session, SessionEvent};
use tokio::sync::watch;

use crate::fleet::Fleet;

/// What somebody who did not lose their socket sees of the others.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sights {
    pub(crate) joined: u64,
    pub(crate) left: u64,
    pub(crate) updated: u64,
}

impl Sights {
    pub(crate) fn since(self, before: Sights) -> Sights {
        Sights {
            joined: self.joined - before.joined,
            left: self.left - before.left,
            updated: self.updated - before.updated,
        }
    }

    /// All of them.
    pub(crate) fn all(self) -> u64 {
        self.joined + self.left + self.updated
    }

    fn take_in(&mut self, event: &SessionEvent) {
        let SessionEvent::Event { body, .. } = event else { return };
        let EventBody::Presence(step) = body.as_ref() else { return };
        match step.kind {
            PresenceKind::Joined => self.joined += 1,
            PresenceKind::Left => self.left += 1,
            PresenceKind::Updated => self.updated += 1,
        }
    }
}

/// A session that watches the others.
pub(crate) struct Watcher {
    pub(crate) session: Session,
    pub(crate) sights: watch::Receiver<Sights>,
}

impl Watcher {
    pub(crate) async fn start(fleet: &Fleet) -> Result<Watcher> {
        let (session, events) = fleet.stranger("watcher").await?;
        let (seen, sights) = watch::channel(Sights::default());
        tokio::spawn(Watcher::watch(events, seen));
        Ok(Watcher { session, sights })
    }

    async fn watch(mut events: Events, seen: watch::Sender<Sights>) {
        while let Ok(event) = events.next().await {
            seen.send_modify(|sights| sights.take_in(&event));
        }
    }
}
