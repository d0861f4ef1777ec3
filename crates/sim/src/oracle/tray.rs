//! A tray: what one process gets through one place, by lane of an inbox.

use std::collections::{BTreeMap, BTreeSet};

use crate::seen::{Key, Lane, Life, Place, Spot, Verb};

use super::broker::Sight;

/// What each lane of an inbox may have in hand.
const INBOX_PREFETCH: usize = 32;

/// Whose tray, through which place, of which lane.
pub(super) type TrayName = (Life, Place, Lane);
/// Where an entry lies, and which: log, number, and the broker's id.
pub(super) type At = (String, u64, String);

/// How an entry stands with an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It works on it.
    Held,
    /// It has said what is to become of it.
    Asked(Verb),
    /// It is acked or buried, and the broker has said so.
    Done,
}

/// An entry that was handed to an application.
#[derive(Debug)]
pub(super) struct Hand {
    pub(super) key: Key,
    state: State,
    pub(super) at: u64,
    pub(super) attempt: u32,
    /// It cannot have been pushed before: an ack timeout runs from there at the earliest.
    pub(super) pushed_after: u64,
    pub(super) progress_at: u64,
    /// Words of progress that are not answered: about this hand-out, and about those before it.
    progress: u32,
    earlier_progress: u32,
    /// When it was told that it is among the dead letters, if it is.
    pub(super) buried: Option<Sight>,
}

impl Hand {
    pub(super) fn new(key: &Key, at: u64, attempt: u32, pushed_after: u64) -> Hand {
        Hand {
            key: key.clone(),
            state: State::Held,
            at,
            attempt,
            pushed_after,
            progress_at: 0,
            progress: 0,
            earlier_progress: 0,
            buried: None,
        }
    }

    /// Its application says that it takes longer.
    pub(super) fn progresses(&mut self, now: u64) {
        self.progress_at = now;
        self.progress += 1;
    }

    /// A word of progress is answered; says whether it was about this hand-out. They are answered in their order.
    pub(super) fn progress_answered(&mut self) -> bool {
        let earlier = self.earlier_progress > 0;
        let left = if earlier { &mut self.earlier_progress } else { &mut self.progress };
        let asked = *left > 0;
        *left = left.saturating_sub(1);
        asked && !earlier
    }

    pub(super) fn state(&self) -> State {
        self.state
    }
}

/// What one process gets through one place.
#[derive(Debug, Default)]
pub(super) struct Tray {
    entries: BTreeMap<At, Hand>,
    /// Those that it works on.
    held: BTreeSet<At>,
}

impl Tray {
    pub(super) fn get(&self, at: &At) -> Option<&Hand> {
        self.entries.get(at)
    }

    pub(super) fn get_mut(&mut self, at: &At) -> Option<&mut Hand> {
        self.entries.get_mut(at)
    }

    pub(super) fn put(&mut self, at: At, mut hand: Hand) {
        if let Some(before) = self.entries.get(&at) {
            hand.earlier_progress = before.earlier_progress + before.progress;
        }
        self.held.insert(at.clone());
        self.entries.insert(at, hand);
    }

    pub(super) fn turn(&mut self, at: &At, state: State) {
        self.held.remove(at);
        if let Some(hand) = self.entries.get_mut(at) {
            hand.state = state;
        }
    }

    pub(super) fn remove(&mut self, at: &At) {
        self.held.remove(at);
        self.entries.remove(at);
    }

    /// How many it works on.
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    /// All that it was handed and is not known to be given back.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&At, &Hand)> {
        self.entries.iter()
    }
}

/// Topics have one lane, whatever a message's was.
pub(super) fn lane_of(place: &Place, lane: Lane) -> Lane {
    if matches!(place, Place::Topic { .. }) { Lane::Now } else { lane }
}

/// The tray that a process gets an entry of this lane in.
pub(super) fn tray_name(life: Life, place: &Place, lane: Lane) -> TrayName {
    (life, place.clone(), lane_of(place, lane))
}

/// The first tray that a process may have.
pub(super) fn first_of(life: Life) -> TrayName {
    (life, Place::Inbox, Lane::Now)
}

pub(super) fn at(spot: &Spot) -> At {
    (spot.log.clone(), spot.seq, spot.id.clone())
}

/// What a place may have in hand.
pub(super) fn prefetch(place: &Place) -> usize {
    match place {
        Place::Topic { prefetch, .. } => *prefetch as usize,
        Place::Inbox | Place::MemberInbox => INBOX_PREFETCH,
    }
}

/// Whether entries are settled by being sent.
pub(super) fn is_auto(place: &Place) -> bool {
    matches!(place, Place::Topic { auto: true, .. })
}

/// Whether it is shared with others, and clocks take from who is slow.
pub(super) fn is_crew(place: &Place) -> bool {
    matches!(place, Place::Topic { group: Some(_), .. })
}

/// Whether it is a process's own place in a topic.
pub(super) fn is_private(place: &Place) -> bool {
    matches!(place, Place::Topic { group: None, .. })
}
