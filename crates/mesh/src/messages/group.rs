//! A group: one reader's, or one crew's, place in one lane of a log.
//!
//! It is a cursor with sparse exceptions. Every entry up to the cursor is settled, unless it is *open*: in
//! somebody's hand, given back and ready for the next, or delayed. So a group's size follows what is unsettled,
//! never what has passed through it, and an entry that is neither open nor beyond the cursor is done.
//!
//! An attempt is a hand-out; its number is in the tag. A tag settles while its attempt is the current one: held
//! by its session, or given back and not handed out since.

use std::collections::{BTreeMap, BTreeSet};

use tenure_kit::mutant::{self, Mutant};
use tenure_kit::time::Millis;
use tenure_proto::ids::{SessionKey, SubId};
use tenure_proto::tag::IdMark;

use crate::messages::settlers::{SettlerChanges, Settlers};
use crate::store::record::{OpenRecord, Origin, SettlerRecord};

/// Entries that may be open in one group; at the bound it reads on when some of them are settled.
pub const OPEN_MAX: usize = 131_072;

/// Who has an entry in hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The session.
    pub session: SessionKey,
    /// Through which of its subscriptions.
    pub sub: SubId,
}

/// An entry that was read and is not settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// How often it was handed out.
    pub attempt: u32,
    /// How often that failed.
    pub tries: u32,
    /// Where it is.
    pub state: OpenState,
    /// Who is to be told of its fate.
    pub origin: Option<Origin>,
    /// The end of its message's id, if it was handed out in this run, or the store has told: only tags of that message count.
    mark: Option<IdMark>,
    /// Whether it is handed out although its time is over: it was brought back.
    pub lasting: bool,
    /// Who had it in hand last: nobody else's tag counts.
    last: Option<SessionKey>,
    /// The last attempt that is known to have failed: each counts once, however often that is said.
    failed: Option<u32>,
    /// Whether it was handed out once, by its reader's word: a crash came before the store knew.
    assumed: bool,
    /// Whether the store has a row for it.
    stored: bool,
}

/// Where an open entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenState {
    /// In a session's hand.
    Held {
        /// Whose.
        holder: Holder,
        /// Until when it must be settled.
        until: Option<Millis>,
    },
    /// Given back; the next to be handed out.
    Ready,
    /// Waits until then; the wall clock's word for it is what the store keeps.
    Delayed(Millis, u64),
}

/// What a tag came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It took effect; with what was known of the entry and who had it in hand, if somebody had.
    Settled(Box<Open>, Option<Holder>),
    /// It had taken effect before.
    Again,
    /// It did not, and why.
    Stale(&'static str),
}

/// What happened to a group by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fired {
    /// A delay is over.
    Ready,
    /// Its holder did not settle it in time.
    TimedOut(u64, u32),
}

/// What the store has to be told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Whether `put` is all there is.
    pub replace: bool,
    /// Open entries that changed.
    pub put: Vec<OpenRecord>,
    /// Entries that are not open any more.
    pub del: Vec<u64>,
    /// Who settled entries that several had in hand.
    pub settlers: SettlerChanges,
}

/// A group.
#[derive(Clone, Debug, Default)]
pub struct Group {
    cursor: u64,
    /// Bounded by [`OPEN_MAX`].
    open: BTreeMap<u64, Open>,
    ready: BTreeSet<u64>,
    delayed: BTreeSet<(Millis, u64)>,
    /// When entries in hand must be settled; one for each that has a deadline.
    timeouts: BTreeSet<(Millis, u64)>,
    /// Entries whose row must be written.
    touched: BTreeSet<u64>,
    /// Entries whose row must go.
    gone: Vec<u64>,
    /// Who settled entries that several had in hand.
    settlers: Settlers,
    moved: bool,
    replace: bool,
}

impl Group {
    /// A group that has read up to `cursor`.
    pub fn at(cursor: u64) -> Group {
        Group { cursor, ..Group::default() }
    }

    /// Takes up an open entry that the store remembers.
    pub fn restore(&mut self, record: &OpenRecord, state: OpenState, origin: Option<Origin>) {
        let OpenRecord { seq, attempt, tries, holder, lasting, ready_at } = *record;
        let assumed = attempt == 0 && ready_at.is_none();
        self.open.insert(
            seq,
            Open {
                attempt,
                tries,
                state: state.clone(),
                mark: origin.as_ref().map(|origin| origin.id.into()),
                origin,
                lasting,
                assumed,
                last: holder,
                failed: None,
                stored: true,
            },
        );
        match state {
            OpenState::Ready => drop(self.ready.insert(seq)),
            OpenState::Delayed(until, _) => drop(self.delayed.insert((until, seq))),
            OpenState::Held { until: Some(until), .. } => drop(self.timeouts.insert((until, seq))),
            OpenState::Held { until: None, .. } => {}
        }
    }

    /// Takes up who settled an entry, as the store remembers it.
    pub fn restore_settler(&mut self, record: SettlerRecord) {
        self.settlers.restore(record);
    }

    /// Remembers who settled an entry, for others who had it in hand before.
    pub fn note_settler(&mut self, seq: u64, attempt: u32, session: SessionKey) {
        self.settlers.note(seq, attempt, session);
    }

    /// Forgets who settled an entry: it is back.
    pub fn forget_settler(&mut self, seq: u64) {
        self.settlers.forget(seq);
    }

    /// The last entry that was read.
    pub fn cursor(&self) -> u64 {
        self.cursor
    }

    /// The last entry up to which everything is settled.
    pub fn floor(&self) -> u64 {
        self.open.first_key_value().map_or(self.cursor, |(seq, _)| seq.saturating_sub(1).min(self.cursor))
    }

    /// How many entries are open.
    pub fn open_len(&self) -> usize {
        self.open.len()
    }

    /// How many of them are in somebody's hand: neither given back nor delayed.
    pub fn held_len(&self) -> usize {
        self.open.len() - self.ready.len() - self.delayed.len()
    }

    /// What is known of an open entry.
    pub fn open(&self, seq: u64) -> Option<&Open> {
        self.open.get(&seq)
    }

    /// Open entries, in order.
    pub fn opens(&self) -> impl Iterator<Item = (u64, &Open)> {
        self.open.iter().map(|(seq, open)| (*seq, open))
    }

    /// Whether another entry may be opened.
    pub fn has_room(&self) -> bool {
        self.open.len() < OPEN_MAX
    }

    /// The first entry that was given back.
    pub fn first_ready(&self) -> Option<u64> {
        self.ready.first().copied()
    }

    /// Entries that were given back, in order.
    pub fn ready(&self) -> impl Iterator<Item = u64> + '_ {
        self.ready.iter().copied()
    }

    /// Reads past entries up to `seq` that nobody needs to see.
    pub fn skip_to(&mut self, seq: u64) {
        if seq > self.cursor {
            self.cursor = seq;
            self.moved = true;
        }
    }

    /// Hands out the next entry for the first time.
    pub fn take_new(&mut self, seq: u64, holder: Holder, until: Option<Millis>, origin: Option<Origin>) {
        self.skip_to(seq);
        if let Some(until) = until {
            self.timeouts.insert((until, seq));
        }
        let state = OpenState::Held { holder, until };
        self.put(seq, Open::new(1, state, origin));
    }

    /// Reads past the next entry, which nobody may have before `until`.
    pub fn delay_new(&mut self, seq: u64, until: Millis, wall: u64, origin: Option<Origin>) {
        self.skip_to(seq);
        self.delayed.insert((until, seq));
        let state = OpenState::Delayed(until, wall);
        self.put(seq, Open::new(0, state, origin));
    }

    /// Takes so much off every delay: they were measured by a wall clock that was behind.
    pub fn delays_are_shorter(&mut self, by_ms: u64) {
        for (until, seq) in std::mem::take(&mut self.delayed) {
            let sooner = Millis(until.0.saturating_sub(by_ms));
            if let Some(OpenState::Delayed(until, _)) = self.open.get_mut(&seq).map(|open| &mut open.state) {
                *until = sooner;
                self.delayed.insert((sooner, seq));
            }
        }
    }

    /// Hands out an entry that was given back; says which attempt this is.
    pub fn take_ready(&mut self, seq: u64, holder: Holder, until: Option<Millis>) -> Option<u32> {
        if !self.ready.remove(&seq) {
            return None;
        }
        let open = self.open.get_mut(&seq)?;
        open.attempt += 1;
        open.assumed = false;
        open.state = OpenState::Held { holder, until };
        let attempt = open.attempt;
        if let Some(until) = until {
            self.timeouts.insert((until, seq));
        }
        self.touched.insert(seq);
        Some(attempt)
    }

    /// Settles the entry that the tag of `session` and `attempt` stands for.
    pub fn settle(&mut self, seq: u64, attempt: u32, session: &SessionKey) -> Verdict {
        match self.claim(seq, attempt, session) {
            Claim::Good => {}
            Claim::Done => return Verdict::Again,
            Claim::DoneByOther => return Verdict::Stale("requeued"),
            Claim::Stale(reason) => return Verdict::Stale(reason),
        }
        match self.remove(seq) {
            Some(open) => {
                let holder = open.holder().cloned();
                Verdict::Settled(Box::new(open), holder)
            }
            None => Verdict::Again,
        }
    }

    /// Whether a tag is good: the entry is in that session's hand, or was given back and not handed out since.
    pub fn claim(&self, seq: u64, attempt: u32, session: &SessionKey) -> Claim {
        let Some(open) = self.open.get(&seq) else {
            return match seq <= self.cursor {
                false => Claim::Stale("never_delivered"),
                true if self.settlers.is_by_other(seq, attempt, session) => Claim::DoneByOther,
                true => Claim::Done,
            };
        };
        match &open.state {
            _ if mutant::on(Mutant::SettleMovedOn) => Claim::Good,
            OpenState::Ready if open.assumed && attempt == 1 => Claim::Good,
            _ if open.attempt != attempt => Claim::Stale("requeued"),
            OpenState::Ready | OpenState::Delayed(..) if open.last != Some(*session) => {
                Claim::Stale("requeued")
            }
            OpenState::Held { holder, .. } if holder.session != *session => Claim::Stale("requeued"),
            _ => Claim::Good,
        }
    }

    /// Believes the only reader of this place that it was handed everything up to `seq` once, although a crash came
    /// before the store knew: what it does not settle, or say that it works on, is handed out to it again.
    pub fn assume_read(&mut self, seq: u64) {
        for seq in self.cursor + 1..=seq {
            self.ready.insert(seq);
            self.put(seq, Open { assumed: true, ..Open::new(0, OpenState::Ready, None) });
        }
        self.skip_to(seq);
    }

    /// Believes the only reader of this place that it was handed an entry as often as it says, although a crash came
    /// before the store knew.
    pub fn assume_attempt(&mut self, seq: u64, attempt: u32, session: SessionKey) {
        let Some(open) = self.open.get_mut(&seq).filter(|open| open.attempt < attempt) else { return };
        (open.attempt, open.last, open.assumed) = (attempt, Some(session), false);
        self.touched.insert(seq);
    }

    /// Takes an entry out, whatever its state: it is settled, dead, or not there.
    pub fn remove(&mut self, seq: u64) -> Option<Open> {
        let open = self.open.remove(&seq)?;
        self.forget_place(seq, &open.state);
        self.touched.remove(&seq);
        if open.stored {
            self.gone.push(seq);
        }
        Some(open)
    }

    /// Gives an entry back, to be handed out again at once or after a delay. `failed` counts as a try.
    pub fn give_back(&mut self, seq: u64, delay: Option<(Millis, u64)>, failed: bool) -> Option<Holder> {
        let open = self.open.get_mut(&seq)?;
        let state = match delay {
            Some((until, wall)) => OpenState::Delayed(until, wall),
            None => OpenState::Ready,
        };
        let old = std::mem::replace(&mut open.state, state);
        if failed && open.failed.replace(open.attempt) != Some(open.attempt) {
            open.tries += 1;
        }
        self.forget_place(seq, &old);
        match delay {
            Some((until, _)) => drop(self.delayed.insert((until, seq))),
            None => drop(self.ready.insert(seq)),
        }
        self.touched.insert(seq);
        if let (OpenState::Held { holder, .. }, Some(open)) = (&old, self.open.get_mut(&seq)) {
            open.last = Some(holder.session);
        }
        match old {
            OpenState::Held { holder, .. } => Some(holder),
            _ => None,
        }
    }

    /// A session takes an entry that was given back in its name into its hand again, under the same attempt.
    pub fn reclaim(&mut self, seq: u64, holder: Holder, until: Option<Millis>) {
        let Some(open) = self.open.get_mut(&seq) else { return };
        if std::mem::take(&mut open.assumed) {
            open.attempt = 1;
        }
        let old = std::mem::replace(&mut open.state, OpenState::Held { holder, until });
        self.forget_place(seq, &old);
        if let Some(until) = until {
            self.timeouts.insert((until, seq));
        }
        self.touched.insert(seq);
    }

    /// Its holder is still at work: the deadline starts again.
    pub fn progress(&mut self, seq: u64, deadline: Option<Millis>) {
        let Some(open) = self.open.get_mut(&seq) else { return };
        if let OpenState::Held { until, .. } = &mut open.state {
            if let Some(old) = std::mem::replace(until, deadline) {
                self.timeouts.remove(&(old, seq));
            }
            if let Some(deadline) = deadline {
                self.timeouts.insert((deadline, seq));
            }
        }
    }

    /// Brings a dead entry back: it is handed out next, and may fail as often as a new one.
    pub fn revive(&mut self, seq: u64, attempt: u32, origin: Option<Origin>) {
        self.remove(seq);
        self.ready.insert(seq);
        self.put(seq, Open { lasting: true, ..Open::new(attempt, OpenState::Ready, origin) });
    }

    /// Notes who is to be told of an open entry's fate, if that is not known.
    pub fn know_origin(&mut self, seq: u64, origin: impl FnOnce() -> Origin) {
        if let Some(open) = self.open.get_mut(&seq) {
            open.origin.get_or_insert_with(origin);
        }
    }

    /// Notes the end of the id of an open entry's message.
    pub fn know_mark(&mut self, seq: u64, mark: IdMark) {
        if let Some(open) = self.open.get_mut(&seq) {
            open.mark = Some(mark);
        }
    }

    /// When something happens here by itself.
    pub fn next_deadline(&self) -> Option<Millis> {
        let delayed = self.delayed.first().map(|(until, _)| *until);
        let timeout = self.timeouts.first().map(|(until, _)| *until);
        delayed.into_iter().chain(timeout).min()
    }

    /// The next thing that has come due.
    pub fn fire(&mut self, now: Millis) -> Option<Fired> {
        if let Some((until, seq)) = self.delayed.first().copied()
            && until <= now
        {
            self.give_back(seq, None, false);
            return Some(Fired::Ready);
        }
        let (until, seq) = self.timeouts.first().copied().filter(|(until, _)| *until <= now)?;
        self.timeouts.remove(&(until, seq));
        Some(Fired::TimedOut(seq, self.open.get(&seq)?.attempt))
    }

    /// Whether the store does not know all of this yet.
    pub fn is_dirty(&self) -> bool {
        let opens = self.moved || self.replace || !self.touched.is_empty() || !self.gone.is_empty();
        opens || self.settlers.is_dirty()
    }

    /// What the store has to be told; from here on it counts as told.
    pub fn take_changes(&mut self) -> Changes {
        self.moved = false;
        let replace = std::mem::take(&mut self.replace);
        let touched = std::mem::take(&mut self.touched);
        let del = std::mem::take(&mut self.gone);
        let del = if replace { Vec::new() } else { del };
        let settlers = self.settlers.take_changes(replace);
        let mut put = Vec::with_capacity(touched.len());
        for seq in touched {
            if let Some(open) = self.open.get_mut(&seq) {
                open.stored = true;
                put.push(open.record(seq));
            }
        }
        Changes { replace, put, del, settlers }
    }

    /// The store did not take what it was told: all of it is to be said again.
    pub fn changes_lost(&mut self) {
        self.replace = true;
        self.touched = self.open.keys().copied().collect();
    }

    fn put(&mut self, seq: u64, open: Open) {
        self.open.insert(seq, open);
        self.touched.insert(seq);
    }

    fn forget_place(&mut self, seq: u64, state: &OpenState) {
        match state {
            OpenState::Ready => drop(self.ready.remove(&seq)),
            OpenState::Delayed(until, _) => drop(self.delayed.remove(&(*until, seq))),
            OpenState::Held { until: Some(until), .. } => drop(self.timeouts.remove(&(*until, seq))),
            OpenState::Held { until: None, .. } => {}
        }
    }
}

/// Whether a tag is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It is.
    Good,
    /// It has taken effect already.
    Done,
    /// Its entry was handed out again, and settled by who got it then.
    DoneByOther,
    /// It is not, and why.
    Stale(&'static str),
}

impl Open {
    /// An entry that the store does not know to be open.
    fn new(attempt: u32, state: OpenState, origin: Option<Origin>) -> Open {
        Open {
            attempt,
            tries: 0,
            state,
            mark: origin.as_ref().map(|origin| origin.id.into()),
            origin,
            lasting: false,
            last: None,
            failed: None,
            assumed: false,
            stored: false,
        }
    }

    /// The end of its message's id, if that is known.
    pub fn mark(&self) -> Option<IdMark> {
        self.mark
    }

    /// Who has it in hand.
    pub fn holder(&self) -> Option<&Holder> {
        match &self.state {
            OpenState::Held { holder, .. } => Some(holder),
            _ => None,
        }
    }

    /// Whether it was handed out once by its reader's word alone: a crash came before the store knew.
    pub fn is_assumed(&self) -> bool {
        self.assumed
    }

    /// Whether its present attempt is counted among those that failed.
    pub fn has_failed(&self) -> bool {
        self.failed == Some(self.attempt)
    }

    /// Whether its present attempt failed and it is to wait before the next.
    pub fn is_put_off(&self) -> bool {
        self.has_failed() && matches!(self.state, OpenState::Delayed(..))
    }

    fn record(&self, seq: u64) -> OpenRecord {
        let (holder, ready_at) = match &self.state {
            OpenState::Held { holder, .. } => (Some(holder.session), None),
            OpenState::Ready => (self.last, self.last.map(|_| 0)),
            OpenState::Delayed(_, wall) => (self.last, Some(*wall)),
        };
        OpenRecord { seq, attempt: self.attempt, tries: self.tries, holder, ready_at, lasting: self.lasting }
    }
}

#[cfg(test)]
#[path = "group_tests.rs"]
mod tests;
