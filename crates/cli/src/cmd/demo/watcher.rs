//! What one session sees of the others: its mirror of presence, and every blink in it.

use tenure_client::proto::SessionKey;
use tenure_client::proto::event::PresenceKind;
use tenure_client::proto::hello::ResumeOutcome;
use tenure_client::proto::number::U53;
use tenure_client::{Events, PeerChange, PeerMap, Session, SessionEvent};
use tokio::sync::mpsc;

use super::super::peers::refetch;

/// What a session has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// A socket carries it again; whether its lease was resumed.
    Attached { resumed: bool },
    /// Its socket is lost, and it knows.
    Detached,
    /// Whom it sees now, in the order of the cast, and how often somebody seemed to come or go since it last
    /// said so.
    Sees { present: Vec<bool>, blinks: u32 },
    /// It is over, which is not in the script.
    Ended(String),
}

/// Turns a session's events into news, until it is over.
pub(super) async fn watch(
    index: usize,
    session: Session,
    mut events: Events,
    cast: Vec<SessionKey>,
    told: mpsc::Sender<(usize, News)>,
) {
    let mut mirror = Mirror::new(session.key(), cast);
    loop {
        let news = match events.next().await {
            Ok(event) => mirror.hear(&event),
            Err(end) => {
                let _ = told.send((index, News::Ended(end.to_string()))).await;
                return;
            }
        };
        for news in news {
            if told.send((index, news)).await.is_err() {
                return;
            }
        }
        if mirror.map.needs_fetch() {
            // Fails only when the session is over, and then the next event says so.
            let _ = refetch(&session, &mut mirror.map).await;
            if told.send((index, mirror.look(0))).await.is_err() {
                return;
            }
        }
    }
}

/// A session's mirror of presence, with a memory.
struct Mirror {
    map: PeerMap,
    own: SessionKey,
    cast: Vec<SessionKey>,
    /// When each of the cast joined, as last seen; the session itself is left out.
    known: Vec<Option<U53>>,
    /// Whether the others have all been there: until then, joining is no blink.
    complete: bool,
}

impl Mirror {
    fn new(own: SessionKey, cast: Vec<SessionKey>) -> Mirror {
        Mirror { map: PeerMap::default(), own, known: vec![None; cast.len()], cast, complete: false }
    }

    fn hear(&mut self, event: &SessionEvent) -> Vec<News> {
        let change = self.map.apply(event);
        let mut news = match event {
            SessionEvent::Attached(hello) => {
                vec![News::Attached { resumed: hello.resume.outcome == ResumeOutcome::Resumed }]
            }
            SessionEvent::Detached { .. } => vec![News::Detached],
            _ => Vec::new(),
        };
        match change {
            PeerChange::None => {}
            // Whoever left or joined by the difference has blinked: the look counts each of the cast once.
            PeerChange::Replaced(_) => news.push(self.look(0)),
            PeerChange::Peer(kind, peer) => {
                let session = peer.get().session;
                let other = session != self.own && self.cast.contains(&session);
                let blink = other && self.complete && kind != PresenceKind::Updated;
                if blink {
                    // Told as it happened, so the comparison must not find it again.
                    self.remember();
                }
                news.push(self.look(u32::from(blink)));
            }
        }
        news
    }

    /// Compares what is there with what was: whoever is missing, or has joined anew, has blinked.
    fn look(&mut self, told: u32) -> News {
        let before = self.known.clone();
        self.remember();
        let changed = before.iter().zip(&self.known).filter(|(before, now)| before != now).count() as u32;
        let blinks = told + if self.complete { changed } else { 0 };
        let present: Vec<bool> = self.known.iter().map(Option::is_some).collect();
        let others = present.iter().filter(|present| **present).count();
        self.complete |= others + 1 == self.cast.len();
        News::Sees { present, blinks }
    }

    fn remember(&mut self) {
        let joined = |key: &SessionKey| {
            let peer = self.map.peers().find(|peer| peer.get().session == *key)?;
            (*key != self.own).then(|| peer.get().joined_at)
        };
        self.known = self.cast.iter().map(joined).collect();
    }
}

#[cfg(test)]
mod tests {
    use tenure_client::proto::MemberKey;
    use tenure_client::proto::event::{EventBody, PresenceEvent};
    use tenure_client::proto::hello::StateVersion;
    use tenure_client::proto::method::PresenceListResult;
    use tenure_client::proto::peer::{Peer, Profile, SharedPeer};

    use super::*;

    const OWN: SessionKey = SessionKey([1; 32]);
    const BOB: SessionKey = SessionKey([2; 32]);
    const CAROL: SessionKey = SessionKey([3; 32]);

    fn step(kind: PresenceKind, session: SessionKey, joined: u64, version: u64) -> SessionEvent {
        let instance = "instance-of-the-test".parse().unwrap();
        let peer = Peer::new(session, MemberKey([9; 32]), instance, joined, &Profile::named("x"));
        let (base, version) = (U53::saturating(version - 1), U53::saturating(version));
        let event = PresenceEvent { kind, peer: SharedPeer::new(peer), base, version };
        SessionEvent::Event { seq: version.get(), body: Box::new(EventBody::Presence(event)) }
    }

    fn blinks(mirror: &mut Mirror, event: SessionEvent) -> u32 {
        let count = |news: &News| if let News::Sees { blinks, .. } = news { *blinks } else { 0 };
        mirror.hear(&event).iter().map(count).sum()
    }

    #[test]
    fn coming_is_no_blink_until_all_were_there_and_then_everything_is() {
        let mut mirror = Mirror::new(OWN, vec![OWN, BOB, CAROL]);
        assert_eq!(blinks(&mut mirror, step(PresenceKind::Joined, BOB, 5, 1)), 0);
        assert_eq!(blinks(&mut mirror, step(PresenceKind::Joined, CAROL, 6, 2)), 0);
        assert_eq!(blinks(&mut mirror, step(PresenceKind::Updated, BOB, 5, 3)), 0);
        assert_eq!(blinks(&mut mirror, step(PresenceKind::Left, BOB, 5, 4)), 1);
        assert_eq!(blinks(&mut mirror, step(PresenceKind::Joined, BOB, 7, 5)), 1);
        assert_eq!(blinks(&mut mirror, step(PresenceKind::Joined, SessionKey([4; 32]), 8, 6)), 0);
    }

    #[test]
    fn what_a_new_reading_of_the_map_finds_is_a_blink_once() {
        let mut mirror = Mirror::new(OWN, vec![OWN, BOB, CAROL]);
        let page = |peers: &[(SessionKey, u64)]| {
            let peer = |(session, joined): &(SessionKey, u64)| {
                let instance = "instance-of-the-test".parse().unwrap();
                let profile = Profile::named("x");
                SharedPeer::new(Peer::new(*session, MemberKey([9; 32]), instance, *joined, &profile))
            };
            let zero = U53::saturating(0);
            let state_version = StateVersion { presence: zero, services: zero, health: zero };
            PresenceListResult { peers: peers.iter().map(peer).collect(), next: None, state_version }
        };
        let mut read = |peers: &[(SessionKey, u64)]| {
            mirror.map.page(&page(peers), true);
            if let News::Sees { blinks, .. } = mirror.look(0) { blinks } else { 0 }
        };
        assert_eq!(read(&[(BOB, 5), (CAROL, 6)]), 0);
        assert_eq!(read(&[(CAROL, 6)]), 1, "left");
        assert_eq!(read(&[(BOB, 7), (CAROL, 6)]), 1, "joined");
        assert_eq!(read(&[(BOB, 7), (CAROL, 8)]), 1, "left and joined again");
    }
}
