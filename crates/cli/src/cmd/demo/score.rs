//! Who keeps count: what was broken, what came back, what was seen; and what may break next. No clock, no
//! socket: time comes in as what has passed since the beginning.

use std::time::Duration;

use super::watcher::News;
use crate::flaky::Fault;

/// The cast.
pub(super) const NAMES: [&str; 3] = ["alice", "bob", "carol"];

/// When the first connection breaks.
const FIRST: Duration = Duration::from_millis(1_000);
/// From one break to the next: some twenty-five in twenty seconds.
const PERIOD: Duration = Duration::from_millis(640);
/// How long a session must have been attached before it is broken again.
const STEADY: Duration = Duration::from_millis(400);
/// Nothing breaks in the last moments, so that the end finds everybody back.
const SETTLE: Duration = Duration::from_millis(2_500);

/// What carries a session, as far as the audience knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Socket {
    /// Attached since then.
    Online(Duration),
    /// Broken by us, in this way, since then.
    Broken(Fault, Duration),
    /// Not attached, and not by our doing, since then.
    Away(Duration),
}

/// One session's part.
#[derive(Clone, Debug)]
pub(super) struct Actor {
    pub(super) name: &'static str,
    pub(super) socket: Socket,
    /// By kind, in the order of [`Fault::ALL`].
    pub(super) flaps: [u32; 4],
    pub(super) resumes: u32,
    pub(super) last_outage: Option<Duration>,
    pub(super) longest_outage: Option<Duration>,
    /// Whom it sees, in the order of the cast.
    pub(super) sees: Vec<bool>,
    pub(super) blinks: u32,
    last_flap: Option<Duration>,
}

impl Actor {
    fn new(name: &'static str) -> Actor {
        Actor {
            name,
            socket: Socket::Away(Duration::ZERO),
            flaps: [0; 4],
            resumes: 0,
            last_outage: None,
            longest_outage: None,
            sees: vec![false; NAMES.len()],
            blinks: 0,
            last_flap: None,
        }
    }

    pub(super) fn flaps(&self) -> u32 {
        self.flaps.iter().sum()
    }

    fn attached(&mut self, now: Duration, resumed: bool) -> Option<String> {
        let before = std::mem::replace(&mut self.socket, Socket::Online(now));
        let Socket::Broken(_, since) = before else { return None };
        if !resumed {
            return Some(format!("{:<6} is back, but not by resuming", self.name));
        }
        let outage = now.saturating_sub(since);
        self.resumes += 1;
        self.last_outage = Some(outage);
        self.longest_outage = self.longest_outage.max(Some(outage));
        Some(format!("{:<6} resumed after {} ms", self.name, outage.as_millis()))
    }
}

/// The whole count.
#[derive(Clone, Debug)]
pub(super) struct Score {
    pub(super) actors: Vec<Actor>,
    /// When nothing breaks any more.
    until: Duration,
    /// When all three had seen each other for the first time.
    complete: Option<Duration>,
}

impl Score {
    /// For a demonstration of this length.
    pub(super) fn new(time: Duration) -> Score {
        let actors = NAMES.map(Actor::new).to_vec();
        Score { actors, until: time.saturating_sub(SETTLE), complete: None }
    }

    /// Takes in what a session said; returns a line about it if it is worth one.
    pub(super) fn hear(&mut self, now: Duration, index: usize, news: News) -> Option<String> {
        let actor = self.actors.get_mut(index)?;
        match news {
            News::Attached { resumed } => actor.attached(now, resumed),
            News::Detached => {
                if let Socket::Online(_) = actor.socket {
                    actor.socket = Socket::Away(now);
                }
                None
            }
            News::Sees { present, blinks } => {
                actor.sees = present;
                actor.blinks += blinks;
                let name = actor.name;
                if self.complete.is_none() && self.everybody_sees_everybody() {
                    self.complete = Some(now);
                }
                (blinks > 0).then(|| format!("{name:<6} saw somebody come or go"))
            }
            News::Ended(why) => {
                actor.socket = Socket::Away(now);
                Some(format!("{:<6} is over: {why}", actor.name))
            }
        }
    }

    /// What breaks next, if it is time and somebody is steady: the session that has been left alone longest.
    pub(super) fn next_flap(&self, now: Duration) -> Option<(usize, Fault)> {
        let number = self.flaps();
        let due = self.complete? + FIRST + PERIOD * number;
        if now < due || now >= self.until {
            return None;
        }
        let steady = |actor: &Actor| matches!(actor.socket, Socket::Online(since) if now >= since + STEADY);
        let candidates = self.actors.iter().enumerate().filter(|(_, actor)| steady(actor));
        let (index, _) = candidates.min_by_key(|(_, actor)| actor.last_flap)?;
        Some((index, Fault::ALL[number as usize % Fault::ALL.len()]))
    }

    /// Something was broken.
    pub(super) fn flapped(&mut self, now: Duration, index: usize, fault: Fault) {
        let Some(actor) = self.actors.get_mut(index) else { return };
        actor.socket = Socket::Broken(fault, now);
        actor.last_flap = Some(now);
        let kinds = Fault::ALL.iter().position(|kind| *kind == fault);
        if let Some(count) = kinds.and_then(|kind| actor.flaps.get_mut(kind)) {
            *count += 1;
        }
    }

    /// Whether every session is attached.
    pub(super) fn is_settled(&self) -> bool {
        self.actors.iter().all(|actor| matches!(actor.socket, Socket::Online(_)))
    }

    pub(super) fn flaps(&self) -> u32 {
        self.actors.iter().map(Actor::flaps).sum()
    }

    pub(super) fn resumes(&self) -> u32 {
        self.actors.iter().map(|actor| actor.resumes).sum()
    }

    pub(super) fn blinks(&self) -> u32 {
        self.actors.iter().map(|actor| actor.blinks).sum()
    }

    fn everybody_sees_everybody(&self) -> bool {
        let others = |actor: &Actor| actor.sees.iter().filter(|seen| **seen).count();
        self.actors.iter().all(|actor| others(actor) + 1 == self.actors.len())
    }
}

/// A fault as the audience reads it.
pub(super) fn broken(fault: Fault) -> &'static str {
    match fault {
        Fault::Drop => "dropped",
        Fault::Stall => "stalled",
        Fault::HalfOpenClient => "half-open: the client's side is gone",
        Fault::HalfOpenBroker => "half-open: the broker's side is gone",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn complete() -> Score {
        let mut score = Score::new(Duration::from_secs(20));
        for index in 0..NAMES.len() {
            score.hear(MS, index, News::Attached { resumed: false });
            let present = (0..NAMES.len()).map(|other| other != index).collect();
            score.hear(MS, index, News::Sees { present, blinks: 0 });
        }
        score
    }

    #[test]
    fn nothing_breaks_that_is_broken_or_has_just_come_back() {
        let mut score = complete();
        assert_eq!(score.next_flap(500 * MS), None, "not yet");
        for expected in 0..NAMES.len() {
            let now = FIRST + PERIOD * expected as u32 + MS;
            let (index, fault) = score.next_flap(now).unwrap();
            assert_eq!((index, fault), (expected, Fault::ALL[expected]));
            score.flapped(now, index, fault);
        }
        let later = FIRST + PERIOD * 3 + MS;
        assert_eq!(score.next_flap(later), None, "all are broken");
        score.hear(later, 1, News::Attached { resumed: true });
        assert_eq!(score.next_flap(later), None, "it has just come back");
        assert_eq!(score.next_flap(later + STEADY), Some((1, Fault::HalfOpenBroker)));
        assert_eq!(score.next_flap(Duration::from_secs(18)), None, "the end is near");
    }

    #[test]
    fn only_a_resume_after_a_break_counts() {
        let mut score = complete();
        score.flapped(10 * MS, 0, Fault::Stall);
        score.hear(20 * MS, 0, News::Detached);
        assert!(!score.is_settled());
        score.hear(30 * MS, 0, News::Attached { resumed: true });
        score.hear(40 * MS, 0, News::Attached { resumed: true });
        assert!(score.is_settled());
        assert_eq!((score.flaps(), score.resumes(), score.blinks()), (1, 1, 0));
        assert_eq!(score.actors[0].longest_outage, Some(20 * MS));
        score.flapped(50 * MS, 0, Fault::Drop);
        score.hear(60 * MS, 0, News::Attached { resumed: false });
        assert_eq!((score.flaps(), score.resumes()), (2, 1));
    }
}
