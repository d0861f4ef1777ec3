//! The drain of one session's rows: takes them as the [`Schedule`] says, sends them, and has written down what became
//! of them.
//!
//! How a lane is drained. Rows are **taken** from the disk in batches: one commit marks up to [`BATCH`] rows as sent.
//! They are **sent** one after the other, the next when the broker has said yes to the one before. What the answers mean
//! is **settled** in one commit, which takes the next batch as well. So a row costs a round trip, and a sixty-fourth of
//! a commit.
//!
//! Why not several at once. A broker reads one socket's requests in order, but it may refuse one for now (an inbox that
//! is full, a disk that fails) and take the next, which came a moment later; and a request that timed out here while the
//! next did not is sent again behind it. Both would let a younger row pass an older one that is still to be sent.
//!
//! Why the verdict need not be on the disk before the next row leaves, if it is a yes: after a crash the row is sent
//! again under its id, before its younger ones, and the broker knows it. A refusal is another matter: forgotten, the row
//! might be taken after younger ones. So a batch ends with the first row that is not accepted.
//!
//! How to drive it: tell it what happens. [`Drain::found`] for every lane with
//! rows at a start and [`Drain::queued`] for every row from then on; [`Drain::compared`], [`Drain::attached`] and [`Drain::detached`] as the
//! session gets and loses its socket; [`Drain::taken`], [`Drain::settled`] and [`Drain::expired`] when the disk has
//! answered, [`Drain::answered`] and [`Drain::probed`] when the broker has; [`Drain::tick`] no later than
//! [`Drain::next_deadline`], and whenever something was queued. Effects queue up inside until [`Drain::poll_effect`] gives
//! them out; poll until nothing is left after each call.

use std::collections::{BTreeMap, VecDeque};

use tenure_kit::deadline::Deadlines;
use tenure_kit::mutant::{self, Mutant};
use tenure_kit::time::{Millis, Now};
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::message::{SendParams, SendResult};

use crate::age::Ageing;
use crate::schedule::{LaneId, Schedule};
use crate::verdict::{Verdict, judge};

/// Rows that one commit takes from a lane.
pub const BATCH: usize = 64;
/// Bytes of frozen requests in a batch, past which no further row is taken: what a lane holds in memory is bounded by
/// this and one row.
pub const BATCH_BYTES: usize = 64 * 1024;
/// How long the first verdict of a batch waits for the others, so that whoever looks at the outbox sees it soon.
const SHOW_MS: u64 = 250;
/// How long to wait for a disk that does not do what it was asked to.
pub const DISK_MS: u64 = 1_000;
/// How often rows that are too old are looked for.
const AGEING_MS: u64 = 60_000;

/// A row that is marked as sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Outgoing {
    /// Its number.
    pub id: u64,
    /// What to send: what was accepted, byte for byte.
    pub params: SendParams,
    /// How often it was sent, this time included.
    pub attempts: u32,
    /// When it was accepted, Unix milliseconds.
    pub enqueued_at: u64,
}

/// A lane that has rows when a drain begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundLane {
    /// Which.
    pub lane: LaneId,
    /// How often its oldest row was sent.
    pub attempts: u32,
    /// When that is to be sent next, Unix milliseconds.
    pub next_attempt_at: u64,
}

/// What is written down of a batch, in one transaction.
#[derive(Clone, Debug, PartialEq)]
pub struct Settlement {
    /// Whose rows.
    pub lane: LaneId,
    /// What became of rows that were sent, in their order.
    pub verdicts: Vec<(u64, Verdict)>,
    /// Rows that were taken and not sent: they are pending, as if they had never been taken.
    pub unsent: Vec<u64>,
    /// When the last row is to be sent again, Unix milliseconds, if it is.
    pub next_attempt_at: u64,
    /// How many rows to take from the lane after that; zero is none.
    pub take: usize,
}

/// What a settlement found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settled {
    /// Whether the lane has rows that are not decided.
    pub more: bool,
    /// The rows that were taken.
    pub taken: Vec<Outgoing>,
}

/// Why the disk did not do what it was asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    /// It may later.
    ForNow,
    /// It will not before the next start.
    ForGood,
}

/// What the drain wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum DrainEffect {
    /// Begin to take rows of a lane, up to so many; answered by [`Drain::taken`]. What is marked as sent in it was taken by
    /// a drain that ended before the disk took its last words.
    Take(LaneId, usize),
    /// Send a row; answered by [`Drain::answered`].
    Send(LaneId, Box<Outgoing>),
    /// Ask the broker whether our own session is over, after this refusal; answered by [`Drain::probed`].
    Probe(LaneId, Box<WireError>),
    /// Write this down; answered by [`Drain::settled`].
    Settle(Box<Settlement>),
    /// Give up a slice of the rows that were queued before this moment; answered by [`Drain::expired`].
    Expire(u64),
}

/// What is under way in a lane.
#[derive(Clone, Debug)]
enum Lane {
    /// Rows are being taken.
    Taking,
    /// A row is at the broker, or on its way there.
    Sending(Batch),
    /// The batch is being written down; after so many milliseconds the lane goes on, if it was refused.
    Settling(Box<Settlement>, Option<u64>),
}

#[derive(Clone, Debug)]
struct Batch {
    since: Millis,
    /// The row that was sent last.
    sent: u64,
    rest: VecDeque<Outgoing>,
    verdicts: Vec<(u64, Verdict)>,
}

/// Rows that are too old: whether somebody looks for them, and when next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sweep {
    Resting(Millis),
    UnderWay,
}

/// The drain of one session.
#[derive(Clone, Debug)]
pub struct Drain {
    schedule: Schedule,
    lanes: BTreeMap<LaneId, Lane>,
    /// Settlements that are tried again then.
    again: Deadlines<LaneId>,
    ageing: Ageing,
    /// Whether the broker was asked how late it is.
    asked: bool,
    /// Hours that a row may wait, while a socket carries the session.
    max_age_hours: Option<u64>,
    sweep: Sweep,
    /// What is to be done, in this order; the shell takes all of it after each call, so the lanes bound it.
    effects: VecDeque<DrainEffect>,
}

impl Drain {
    /// A drain without rows and without a socket; the same seed throws the same dice.
    pub fn new(seed: u64, now: Now) -> Drain {
        Drain {
            schedule: Schedule::new(seed),
            lanes: BTreeMap::new(),
            again: Deadlines::default(),
            ageing: Ageing::new(now),
            asked: false,
            max_age_hours: None,
            sweep: Sweep::Resting(now.at),
            effects: VecDeque::new(),
        }
    }

    /// A lane that had rows at a start.
    pub fn found(&mut self, now: Now, found: FoundLane) {
        let wait_ms = found.next_attempt_at.saturating_sub(now.wall);
        self.schedule.found(now.at, found.lane, found.attempts, wait_ms);
    }

    /// A row is on the disk, in this lane.
    pub fn queued(&mut self, lane: LaneId) {
        self.schedule.queued(lane);
    }

    /// The broker was asked how late it is, before [`Drain::attached`]: its clock is so far from ours, or it did not say.
    pub fn compared(&mut self, now: Now, apart_ms: Option<u64>) {
        self.ageing.compare(now, apart_ms, std::mem::replace(&mut self.asked, true));
    }

    /// A socket carries the session, to a broker with which rows may wait so many hours. What is too old goes before
    /// anything is sent.
    pub fn attached(&mut self, now: Now, max_age_hours: u64) {
        self.max_age_hours = Some(max_age_hours);
        if self.sweep != Sweep::UnderWay {
            self.sweep(now);
        }
        self.pump(now);
    }

    /// None does.
    pub fn detached(&mut self) {
        self.max_age_hours = None;
        self.schedule.shut();
    }

    /// The disk has taken rows of a lane, or has not.
    pub fn taken(&mut self, now: Now, lane: LaneId, rows: Result<Vec<Outgoing>, DiskFault>) {
        if matches!(self.lanes.get(&lane), Some(Lane::Taking)) {
            self.lanes.remove(&lane);
            match rows {
                Ok(rows) if rows.is_empty() => self.schedule.decided(lane, false),
                Ok(rows) => self.begin(now, lane, rows),
                Err(_) => self.schedule.refused(now.at, lane, DISK_MS),
            }
        }
        self.pump(now);
    }

    /// The broker has answered, or there was no answer.
    pub fn answered(&mut self, now: Now, lane: LaneId, answer: Result<&SendResult, &WireError>) {
        match answer {
            Err(error) if error.code == ErrorCode::LeaseExpired => {
                // The lease may be the receiver's, or our own: then the message is not to blame.
                self.effects.push_back(DrainEffect::Probe(lane, Box::new(error.clone())));
            }
            answer => self.judged(now, lane, judge(answer, false)),
        }
    }

    /// It is known whether our own session is over, after a refusal that said that a lease is.
    pub fn probed(&mut self, now: Now, lane: LaneId, refusal: &WireError, over: bool) {
        self.judged(now, lane, judge(Err(refusal), over));
    }

    /// A settlement is on the disk, or is not.
    pub fn settled(&mut self, now: Now, lane: LaneId, outcome: Result<Settled, DiskFault>) {
        if matches!(self.lanes.get(&lane), Some(Lane::Settling(..)))
            && let Some(Lane::Settling(settlement, wait)) = self.lanes.remove(&lane)
        {
            match (outcome, wait) {
                (Ok(_), Some(wait)) => self.schedule.refused(now.at, lane, wait),
                (Ok(Settled { more, taken }), None) if taken.is_empty() => {
                    self.schedule.decided(lane, more);
                }
                (Ok(Settled { taken, .. }), None) => self.begin(now, lane, taken),
                (Err(DiskFault::ForNow), wait) => {
                    self.lanes.insert(lane, Lane::Settling(settlement, wait));
                    self.again.set(lane, now.at.plus(DISK_MS));
                }
                (Err(DiskFault::ForGood), _) => self.schedule.refused(now.at, lane, DISK_MS),
            }
        }
        self.pump(now);
    }

    /// A slice of rows was given up, so many; or the disk did not.
    pub fn expired(&mut self, now: Now, rows: Result<u64, DiskFault>) {
        match rows {
            Ok(0) => self.swept(now, AGEING_MS),
            Ok(_) => self.sweep(now),
            // Nothing is sent meanwhile that may be too old.
            Err(_) => self.sweep = Sweep::Resting(now.at.plus(DISK_MS)),
        }
        self.pump(now);
    }

    /// Time has passed, or something was queued.
    pub fn tick(&mut self, now: Now) {
        while let Some(lane) = self.again.pop_due(now.at) {
            if let Some(Lane::Settling(settlement, wait)) = self.lanes.get_mut(&lane) {
                settlement.next_attempt_at = now.wall.saturating_add(wait.unwrap_or(0));
                self.effects.push_back(DrainEffect::Settle(settlement.clone()));
            }
        }
        if self.max_age_hours.is_some() && matches!(self.sweep, Sweep::Resting(due) if now.at >= due) {
            self.sweep(now);
        }
        self.pump(now);
    }

    /// The next thing that the shell is to do.
    pub fn poll_effect(&mut self) -> Option<DrainEffect> {
        self.effects.pop_front()
    }

    /// When [`Drain::tick`] is due.
    pub fn next_deadline(&self) -> Option<Millis> {
        let sweep = match self.sweep {
            Sweep::Resting(due) if self.max_age_hours.is_some() => Some(due),
            _ => None,
        };
        [self.schedule.next_deadline(), self.again.next(), sweep].into_iter().flatten().min()
    }

    /// Whether no lane has rows.
    pub fn is_empty(&self) -> bool {
        self.schedule.is_empty()
    }

    /// Whether nothing is under way: no row at the broker, nothing to be written down.
    pub fn is_idle(&self) -> bool {
        self.lanes.is_empty()
    }

    /// Rows that are held in memory, and how many may be.
    pub fn held(&self) -> (usize, usize) {
        let of = |lane: &Lane| match lane {
            Lane::Sending(batch) => 1 + batch.rest.len() + batch.verdicts.len(),
            Lane::Settling(settlement, _) => settlement.verdicts.len() + settlement.unsent.len(),
            Lane::Taking => 0,
        };
        (self.lanes.values().map(of).sum(), BATCH * crate::schedule::WINDOW)
    }

    /// Takes what may be taken now.
    fn pump(&mut self, now: Now) {
        let taken = self.schedule.take(now.at);
        // While others wait for a turn, a turn is one row.
        let limit = if self.schedule.has_waiting() { 1 } else { BATCH };
        for lane in taken {
            self.lanes.insert(lane, Lane::Taking);
            self.effects.push_back(DrainEffect::Take(lane, limit));
        }
    }

    /// Begins to send a batch; if no socket carries the session any more, it is given back.
    fn begin(&mut self, now: Now, lane: LaneId, rows: Vec<Outgoing>) {
        let rest: VecDeque<Outgoing> = rows.into();
        let verdicts = Vec::new();
        if !self.schedule.is_open() {
            return self.settle(now, lane, verdicts, rest);
        }
        let Some(first) = rest.front() else { return self.schedule.decided(lane, true) };
        let batch = Batch { since: now.at, sent: first.id, rest, verdicts };
        self.advance(now, lane, batch);
    }

    /// Sends the next row of a batch whose time is not over; when there is none, the batch ends.
    fn advance(&mut self, now: Now, lane: LaneId, mut batch: Batch) {
        while let Some(row) = batch.rest.pop_front() {
            if self.has_lapsed(now, &row) {
                batch.verdicts.push((row.id, Verdict::Lapsed));
                continue;
            }
            if matches!(batch.verdicts.last(), Some((_, Verdict::Lapsed))) {
                // Forgotten, a row that lapsed counts as sent, and is sent: nothing may have passed it by then.
                batch.rest.push_front(row);
                break;
            }
            batch.sent = row.id;
            self.lanes.insert(lane, Lane::Sending(batch));
            return self.send(lane, row);
        }
        self.settle(now, lane, batch.verdicts, batch.rest);
    }

    /// Whether the time that its sender gave a row was over before it was ever sent. One that was sent may be at the broker,
    /// where its time runs: it is sent again, to know.
    fn has_lapsed(&mut self, now: Now, row: &Outgoing) -> bool {
        let ttl = row.params.ttl_ms.filter(|_| row.attempts <= 1);
        ttl.is_some_and(|ttl| self.ageing.has_lapsed(now, row.enqueued_at, ttl.get()))
    }

    fn send(&mut self, lane: LaneId, mut row: Outgoing) {
        if mutant::on(Mutant::NewIdOnRetry) && row.attempts > 1 {
            let id = format!("{}-{}", row.params.client_message_id, row.attempts);
            row.params.client_message_id = id.parse().unwrap_or(row.params.client_message_id);
        }
        self.effects.push_back(DrainEffect::Send(lane, Box::new(row)));
    }

    fn judged(&mut self, now: Now, lane: LaneId, verdict: Verdict) {
        match self.lanes.remove(&lane) {
            Some(Lane::Sending(mut batch)) => {
                let done = matches!(verdict, Verdict::Done(_));
                batch.verdicts.push((batch.sent, verdict));
                let late = now.at.since(batch.since) >= SHOW_MS;
                let goes_on = (done || mutant::on(Mutant::LaneOvertakes))
                    && !late
                    && self.schedule.is_open()
                    && !self.schedule.has_waiting();
                if goes_on {
                    self.advance(now, lane, batch);
                } else {
                    self.settle(now, lane, batch.verdicts, batch.rest);
                }
            }
            Some(other) => _ = self.lanes.insert(lane, other),
            None => {}
        }
        self.pump(now);
    }

    /// Has the end of a batch written down.
    fn settle(&mut self, now: Now, lane: LaneId, verdicts: Vec<(u64, Verdict)>, rest: VecDeque<Outgoing>) {
        if verdicts.iter().any(|(_, verdict)| !matches!(verdict, Verdict::Again { .. })) {
            self.schedule.forgive(lane);
        }
        let wait = match verdicts.last() {
            Some((_, Verdict::Again { wish_ms, .. })) => Some(self.schedule.wait_ms(lane, *wish_ms)),
            _ => None,
        };
        let take = if wait.is_none() && self.schedule.goes_on(lane) { BATCH } else { 0 };
        let unsent = rest.into_iter().map(|row| row.id).collect();
        let next_attempt_at = now.wall.saturating_add(wait.unwrap_or(0));
        let settlement = Box::new(Settlement { lane, verdicts, unsent, next_attempt_at, take });
        self.effects.push_back(DrainEffect::Settle(settlement.clone()));
        self.lanes.insert(lane, Lane::Settling(settlement, wait));
    }

    /// Looks for rows that are too old, if the clock is believed.
    fn sweep(&mut self, now: Now) {
        let Some(hours) = self.max_age_hours else {
            return self.sweep = Sweep::Resting(now.at);
        };
        match self.ageing.cutoff(now, hours) {
            Some(cutoff) => {
                self.sweep = Sweep::UnderWay;
                self.effects.push_back(DrainEffect::Expire(cutoff));
            }
            None => self.swept(now, AGEING_MS),
        }
    }

    /// Nothing that may be sent is too old.
    fn swept(&mut self, now: Now, rest_ms: u64) {
        self.sweep = Sweep::Resting(now.at.plus(rest_ms));
        if self.max_age_hours.is_some() && !self.schedule.is_open() {
            self.schedule.open();
        }
    }
}

#[cfg(test)]
#[path = "drain_tests.rs"]
mod tests;
