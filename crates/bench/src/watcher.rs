//! Somebody who watches the others: what of all that happened could be seen.
//!
//! A broker that is killed takes the watcher's socket with it, and what happened meanwhile is told by no event. So the
//! watcher keeps a roster, reads it again whenever it lost its socket or was told that events were dropped, and counts what
//! became of peers in between as if it had been told.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::time::Duration;

use anyhow::{Context, Result};
use tenure_client::proto::SessionKey;
use tenure_client::proto::event::{EventBody, PresenceKind, ResyncWhat};
use tenure_client::{Events, Session, SessionEvent};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::fleet::Fleet;

/// How long to wait before a roster that could not be read is asked for again.
const AGAIN: Duration = Duration::from_millis(200);

/// Who is here, and since when.
type Roster = BTreeMap<SessionKey, u64>;
/// A roster that is being read.
type Reading = Pin<Box<dyn Future<Output = Roster> + Send>>;

/// What somebody sees of the others, told or found out afterwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sights {
    pub joined: u64,
    pub left: u64,
    pub updated: u64,
}

impl Sights {
    pub fn since(self, before: Sights) -> Sights {
        Sights {
            joined: self.joined - before.joined,
            left: self.left - before.left,
            updated: self.updated - before.updated,
        }
    }

    /// All of them.
    pub fn all(self) -> u64 {
        self.joined + self.left + self.updated
    }

    fn add(&mut self, more: Sights) {
        self.joined += more.joined;
        self.left += more.left;
        self.updated += more.updated;
    }
}

/// What became of peers from one roster to the next: whoever has another lease than before has left and joined.
fn changes(before: &Roster, after: &Roster) -> Sights {
    let gone = |(peer, since): &(&SessionKey, &u64)| after.get(*peer) != Some(*since);
    let came = |(peer, since): &(&SessionKey, &u64)| before.get(*peer) != Some(*since);
    let (left, joined) = (before.iter().filter(gone).count(), after.iter().filter(came).count());
    Sights { joined: joined as u64, left: left as u64, updated: 0 }
}

async fn roster(session: &Session) -> Result<Roster> {
    let peers = session.peers(false).await.context("list the peers")?;
    Ok(peers.iter().map(|peer| (peer.session, peer.joined_at.get())).collect())
}

/// The same, however often it must be asked for: a roster that is not read hides whatever happened.
async fn roster_at_last(session: Session) -> Roster {
    loop {
        match roster(&session).await {
            Ok(roster) => return roster,
            Err(error) => eprintln!("the watcher asks again: {error:#}"),
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// A session that watches the others.
pub struct Watcher {
    pub session: Session,
    pub sights: watch::Receiver<Sights>,
    /// Ends with its owner: it holds the session, too.
    _task: JoinSet<()>,
}

impl Watcher {
    pub async fn start(fleet: &Fleet) -> Result<Watcher> {
        let (session, events) = fleet.stranger("watcher").await?;
        let (seen, sights) = watch::channel(Sights::default());
        let roster = roster(&session).await?;
        let watch = Watch { session: session.clone(), roster, attached: false, seen };
        let mut task = JoinSet::new();
        task.spawn(watch.run(events));
        Ok(Watcher { session, sights, _task: task })
    }
}

/// The watcher's task.
struct Watch {
    session: Session,
    roster: Roster,
    /// Whether a socket has carried it before.
    attached: bool,
    seen: watch::Sender<Sights>,
}

impl Watch {
    async fn run(mut self, mut events: Events) {
        let mut reading: Reading = Box::pin(std::future::pending());
        loop {
            // Events are read on meanwhile: while many of them wait, no answer comes. A peer that moves just then may be
            // counted twice; one that does not is never counted.
            // Both are cancel-safe: `reading` keeps its progress where it is.
            let event = tokio::select! {
                event = events.next() => event,
                found = &mut reading => {
                    reading = Box::pin(std::future::pending());
                    self.compare(found);
                    continue;
                }
            };
            match event {
                Ok(event) => {
                    if self.take_in(&event) {
                        reading = Box::pin(roster_at_last(self.session.clone()));
                    }
                }
                Err(_) => {
                    // Whoever is out sees nothing any more, and that must not look like peace.
                    self.seen.send_modify(|sights| sights.left += 1);
                    return;
                }
            }
        }
    }

    /// Counts what is told; whether the roster must be read again.
    fn take_in(&mut self, event: &SessionEvent) -> bool {
        match event {
            // The first one came before the roster was read.
            SessionEvent::Attached(_) => std::mem::replace(&mut self.attached, true),
            SessionEvent::Event { body, .. } => match body.as_ref() {
                EventBody::Presence(step) => {
                    let peer = step.peer.get();
                    match step.kind {
                        PresenceKind::Left => self.roster.remove(&peer.session),
                        _ => self.roster.insert(peer.session, peer.joined_at.get()),
                    };
                    self.seen.send_modify(|sights| match step.kind {
                        PresenceKind::Joined => sights.joined += 1,
                        PresenceKind::Left => sights.left += 1,
                        PresenceKind::Updated => sights.updated += 1,
                    });
                    false
                }
                EventBody::Resync(resync) => resync.what.contains(&ResyncWhat::Presence),
                _ => false,
            },
            SessionEvent::Detached { .. }
            | SessionEvent::Waiting { .. }
            | SessionEvent::HistoryRewound { .. } => false,
        }
    }

    fn compare(&mut self, found: Roster) {
        let changed = changes(&self.roster, &found);
        if changed.all() > 0 {
            self.seen.send_modify(|sights| sights.add(changed));
        }
        self.roster = found;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u8) -> SessionKey {
        SessionKey([number; 32])
    }

    #[test]
    fn a_roster_that_is_the_same_shows_nothing() {
        let roster = Roster::from([(key(1), 10), (key(2), 20)]);
        assert_eq!(changes(&roster, &roster), Sights::default());
    }

    #[test]
    fn a_peer_that_is_gone_or_new_or_has_another_lease_is_seen() {
        let before = Roster::from([(key(1), 10), (key(2), 20), (key(3), 30)]);
        let after = Roster::from([(key(1), 10), (key(3), 31), (key(4), 40)]);
        assert_eq!(changes(&before, &after), Sights { joined: 2, left: 2, updated: 0 });
    }
}
