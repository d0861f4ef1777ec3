//! When what is sent: the drain of one session's rows.
//!
//! Rows of one **lane** leave strictly one after the other: the next when the one before it is decided, so that no
//! refusal for now lets a younger one pass. A lane is (sender, target), and for an inbox also the priority, because an
//! inbox keeps order within a priority only: what is urgent does not wait behind what is not.
//!
//! Lanes do not wait for each other. There are two queues of lanes that may send: what is new, and the backlog. They
//! take turns, and a lane that has sent goes to the end of the backlog: a hundred thousand rows of an offline day,
//! to one target or to as many, delay a new send to another by one turn each.
//!
//! How to drive it: [`Schedule::found`] for every lane with rows at a start, [`Schedule::queued`] for every row from
//! then on; [`Schedule::open`] and [`Schedule::shut`] as the session gets and loses its socket; then send the oldest
//! row of each lane that [`Schedule::take`] gives, and say what became of it ([`Schedule::decided`],
//! [`Schedule::refused`]). [`Schedule::next_deadline`] is when to look again.

use std::collections::{BTreeMap, VecDeque};

use tenure_kit::deadline::Deadlines;
use tenure_kit::dice::Dice;
use tenure_kit::time::Millis;

use crate::backoff::{LONGEST_MS, wait_ms};

/// A lane, named by whoever keeps the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(pub u64);

/// Rows of one session that are on their way at once.
pub const WINDOW: usize = 256;

/// Which lanes send next. It knows each lane that has rows, and no row: it is as large as there are lanes, and there
/// are no more than rows, which the store bounds.
#[derive(Clone, Debug)]
pub struct Schedule {
    lanes: BTreeMap<LaneId, Lane>,
    fresh: VecDeque<LaneId>,
    backlog: VecDeque<LaneId>,
    waits: Deadlines<LaneId>,
    inflight: usize,
    open: bool,
    /// Whether the backlog is served next, when both queues have somebody.
    backlog_next: bool,
    dice: Dice,
}

#[derive(Clone, Copy, Debug)]
struct Lane {
    state: State,
    /// In a row.
    refusals: u32,
    /// Whether a row came while the one before was on its way.
    more: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ready,
    Waiting,
    Inflight,
}

impl Schedule {
    /// A schedule without lanes, shut; the same seed throws the same dice.
    pub fn new(seed: u64) -> Schedule {
        Schedule {
            lanes: BTreeMap::new(),
            fresh: VecDeque::new(),
            backlog: VecDeque::new(),
            waits: Deadlines::default(),
            inflight: 0,
            open: false,
            backlog_next: false,
            dice: Dice::new(seed),
        }
    }

    /// A lane that had rows when the daemon started. The oldest was refused `refusals` times and is to wait
    /// `wait_ms` more, by a wall clock: never longer than any wait is.
    pub fn found(&mut self, now: Millis, lane: LaneId, refusals: u32, wait_ms: u64) {
        if self.lanes.contains_key(&lane) {
            return;
        }
        let state = if wait_ms == 0 { State::Ready } else { State::Waiting };
        self.lanes.insert(lane, Lane { state, refusals, more: false });
        match state {
            State::Waiting => self.waits.set(lane, now.plus(wait_ms.min(LONGEST_MS))),
            _ => self.backlog.push_back(lane),
        }
    }

    /// A row is on disk, in this lane.
    pub fn queued(&mut self, lane: LaneId) {
        match self.lanes.get_mut(&lane) {
            Some(known) => known.more = true,
            None => {
                self.lanes.insert(lane, Lane { state: State::Ready, refusals: 0, more: false });
                if self.open { self.fresh.push_back(lane) } else { self.backlog.push_back(lane) }
            }
        }
    }

    /// A socket carries the session: a broker that is back is asked at once, whatever waited for it.
    pub fn open(&mut self) {
        self.open = true;
        let waiting: Vec<LaneId> =
            self.lanes.iter().filter(|(_, lane)| lane.state == State::Waiting).map(|(id, _)| *id).collect();
        for id in waiting {
            self.waits.clear(&id);
            self.rouse(id);
            if let Some(lane) = self.lanes.get_mut(&id) {
                lane.refusals = 0;
            }
        }
    }

    /// None does: nothing is taken until one does again. What is on its way stays so until it is decided.
    pub fn shut(&mut self) {
        self.open = false;
        while let Some(lane) = self.fresh.pop_front() {
            self.backlog.push_back(lane);
        }
    }

    /// The lanes whose oldest row is to be sent now, each of them once.
    pub fn take(&mut self, now: Millis) -> Vec<LaneId> {
        if !self.open {
            return Vec::new();
        }
        while let Some(id) = self.waits.pop_due(now) {
            self.rouse(id);
        }
        let mut taken = Vec::new();
        while self.inflight < WINDOW
            && let Some(id) = self.next()
        {
            if let Some(lane) = self.lanes.get_mut(&id) {
                (lane.state, lane.more) = (State::Inflight, false);
                self.inflight += 1;
                taken.push(id);
            }
        }
        taken
    }

    /// The row that was on its way is decided, or was gone when it was to be sent; `more` says that the store has
    /// another in its lane.
    pub fn decided(&mut self, id: LaneId, more: bool) {
        let Some(lane) = self.landed(id) else { return };
        if more || lane.more {
            lane.refusals = 0;
            self.rouse(id);
        } else {
            self.lanes.remove(&id);
        }
    }

    /// Whether the next row of a lane may follow the one that was just decided without the lane going to the end of the
    /// queue: only while nobody waits for a turn. The lane then stays on its way.
    pub fn goes_on(&mut self, id: LaneId) -> bool {
        let alone = self.open && !self.has_waiting();
        match self.lanes.get_mut(&id) {
            Some(lane) if alone && lane.state == State::Inflight => {
                lane.refusals = 0;
                true
            }
            _ => false,
        }
    }

    /// Whether a lane waits for its turn.
    pub fn has_waiting(&self) -> bool {
        !self.fresh.is_empty() || !self.backlog.is_empty()
    }

    /// Whether a socket carries the session.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// A row of a lane was decided: refusals are counted anew.
    pub fn forgive(&mut self, id: LaneId) {
        if let Some(lane) = self.lanes.get_mut(&id) {
            lane.refusals = 0;
        }
    }

    /// How many milliseconds the row of a lane that is to be sent again should wait; a throw of the dice each time.
    pub fn wait_ms(&mut self, id: LaneId, wish_ms: Option<u64>) -> u64 {
        let refusals = self.lanes.get(&id).map_or(0, |lane| lane.refusals);
        wait_ms(refusals.saturating_add(1), wish_ms, self.dice.roll())
    }

    /// The row that was on its way is to be sent again, after so many milliseconds.
    pub fn refused(&mut self, now: Millis, id: LaneId, wait_ms: u64) {
        let Some(lane) = self.landed(id) else { return };
        lane.refusals = lane.refusals.saturating_add(1);
        lane.state = State::Waiting;
        self.waits.set(id, now.plus(wait_ms));
    }

    /// When something becomes due that is not now.
    pub fn next_deadline(&self) -> Option<Millis> {
        if self.open { self.waits.next() } else { None }
    }

    /// Lanes that have rows.
    pub fn len(&self) -> usize {
        self.lanes.len()
    }

    /// Whether no lane has rows.
    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// Rows that are on their way.
    pub fn inflight(&self) -> usize {
        self.inflight
    }

    fn landed(&mut self, id: LaneId) -> Option<&mut Lane> {
        let lane = self.lanes.get_mut(&id).filter(|lane| lane.state == State::Inflight)?;
        self.inflight -= 1;
        Some(lane)
    }

    fn rouse(&mut self, id: LaneId) {
        if let Some(lane) = self.lanes.get_mut(&id) {
            lane.state = State::Ready;
            self.backlog.push_back(id);
        }
    }

    fn next(&mut self) -> Option<LaneId> {
        let (first, second) = if self.backlog_next {
            (&mut self.backlog, &mut self.fresh)
        } else {
            (&mut self.fresh, &mut self.backlog)
        };
        let both = !first.is_empty() && !second.is_empty();
        let next = first.pop_front().or_else(|| second.pop_front());
        if both {
            self.backlog_next = !self.backlog_next;
        }
        next
    }
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
