//! An outbox in memory: what a daemon's store of it must do, without a disk. The simulator's daemons keep their rows
//! in one, and the SQLite outbox is held to it by a property test.
//!
//! What it promises: each method is what one transaction of the store does, by the same rules ([`crate::accept`],
//! [`crate::row`]). It is as large as what was accepted.

use std::collections::{BTreeMap, BTreeSet};

use tenure_proto::Codec;
use tenure_proto::fingerprint::Fingerprint;
use tenure_proto::ids::SessionKey;
use tenure_proto::message::{Address, SendParams};

use crate::accept::{Answer, Conflict, Held, decide, free};
use crate::age::EXPIRED;
use crate::drain::{BATCH_BYTES, FoundLane, Outgoing, Settled, Settlement};
use crate::requeue::{Candidate, Lookup, Refusal, Requeue, requeue};
use crate::row::{Place, Status, Step};
use crate::schedule::LaneId;
use crate::verdict::{LAPSED, Verdict};

/// Rows that one sweep gives up.
const SLICE: usize = 1_000;

/// A row.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Who sends it.
    pub sender: SessionKey,
    /// What is sent.
    pub params: SendParams,
    /// What makes it the same request as another.
    pub fingerprint: Fingerprint,
    /// Behind whom it leaves.
    pub lane: LaneId,
    /// Where it stands.
    pub status: Status,
    /// How often it was sent.
    pub attempts: u32,
    /// When it was accepted, Unix milliseconds.
    pub enqueued_at: u64,
    /// When it is to be sent next.
    pub next_attempt_at: u64,
    /// Where the broker put it.
    pub place: Option<Place>,
    /// Why it failed.
    pub last_error: Option<String>,
}

/// What came of the wish to send a row anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requeued {
    /// There is no such row.
    NoSuchRow,
    /// The row stays as it is.
    Refused(Refusal),
    /// The broker must be asked first.
    Ask,
    /// The broker has it: the row is done.
    Finished(Place),
    /// The new id is used already.
    IdTaken(Box<Conflict>),
    /// The row is aborted, and a new one in its place.
    Replaced {
        /// The new row.
        row: u64,
        /// Its lane.
        lane: LaneId,
    },
}

/// An outbox of one mesh.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    rows: BTreeMap<u64, Row>,
    ids: BTreeMap<String, u64>,
    lanes: BTreeMap<(SessionKey, String, &'static str), LaneId>,
    /// Rows that are not decided, by lane.
    open: BTreeMap<LaneId, BTreeSet<u64>>,
}

impl Ledger {
    /// Takes a request, or says why not; a new row has a number and a lane.
    pub fn accept(
        &mut self,
        sender: SessionKey,
        params: &SendParams,
        fingerprint: Fingerprint,
        wall: u64,
    ) -> (Answer, Option<(u64, LaneId)>) {
        let answer = decide(self.held(params.client_message_id.as_str()).as_ref(), &fingerprint);
        if answer != Answer::Insert {
            return (answer, None);
        }
        (answer, Some(self.insert(sender, params, fingerprint, wall)))
    }

    /// Sends row `number` anew as `params`, which differ from its own in id and perhaps body; or says why not.
    pub fn requeue(
        &mut self,
        number: u64,
        params: &SendParams,
        fingerprint: Fingerprint,
        lookup: &Lookup,
        wall: u64,
    ) -> Requeued {
        let Some(row) = self.rows.get(&number) else { return Requeued::NoSuchRow };
        let (sender, patched) = (row.sender, row.fingerprint != fingerprint);
        let candidate =
            Candidate { status: row.status, attempts: row.attempts, fingerprint: &row.fingerprint, patched };
        match requeue(candidate, lookup, false) {
            Requeue::Refuse(refusal) => return Requeued::Refused(refusal),
            Requeue::Ask => return Requeued::Ask,
            Requeue::Finish(place) => {
                self.step(number, Step::Known);
                if let Some(row) = self.rows.get_mut(&number) {
                    row.place = Some(place.clone());
                }
                return Requeued::Finished(place);
            }
            Requeue::Replace => {}
        }
        if let Err(conflict) = free(self.held(params.client_message_id.as_str()).as_ref(), &fingerprint) {
            return Requeued::IdTaken(Box::new(conflict));
        }
        let (row, lane) = self.insert(sender, params, fingerprint, wall);
        self.step(number, Step::Withdrawn);
        Requeued::Replaced { row, lane }
    }

    /// What is held under an id.
    fn held(&self, id: &str) -> Option<Held> {
        self.ids.get(id).and_then(|row| self.rows.get(row)).map(|row| Held {
            status: row.status,
            fingerprint: row.fingerprint,
            place: row.place.clone(),
            last_error: row.last_error.clone(),
        })
    }

    fn insert(
        &mut self,
        sender: SessionKey,
        params: &SendParams,
        fingerprint: Fingerprint,
        wall: u64,
    ) -> (u64, LaneId) {
        let lane = self.lane(sender, params);
        let number = self.rows.len() as u64 + 1;
        self.ids.insert(params.client_message_id.as_str().to_owned(), number);
        self.open.entry(lane).or_default().insert(number);
        let row = Row {
            sender,
            params: params.clone(),
            fingerprint,
            lane,
            status: Status::Pending,
            attempts: 0,
            enqueued_at: wall,
            next_attempt_at: wall,
            place: None,
            last_error: None,
        };
        self.rows.insert(number, row);
        (number, lane)
    }

    /// Begins to drain a lane: marks its oldest rows as sent, before they are. What is marked already is nobody's any
    /// more, and is sent again.
    pub fn take(&mut self, lane: LaneId, limit: usize) -> Vec<Outgoing> {
        for id in self.open.get(&lane).cloned().unwrap_or_default() {
            if !self.step(id, Step::Restarted) {
                break;
            }
        }
        self.take_next(lane, limit)
    }

    /// Goes on with a lane: none while one of its rows is on its way.
    fn take_next(&mut self, lane: LaneId, limit: usize) -> Vec<Outgoing> {
        let mut taken = Vec::new();
        let mut bytes = 0;
        for id in self.open.get(&lane).cloned().unwrap_or_default() {
            let Some(row) = self.rows.get_mut(&id) else { continue };
            let Some(next) = row.status.after(Step::Taken) else { break };
            if taken.len() >= limit || bytes >= BATCH_BYTES {
                break;
            }
            bytes += Codec::Json.encode(&row.params).len();
            row.status = next;
            row.attempts = row.attempts.saturating_add(1);
            let (params, enqueued_at) = (row.params.clone(), row.enqueued_at);
            taken.push(Outgoing { id, params, attempts: row.attempts, enqueued_at });
        }
        taken
    }

    /// Records what became of a batch, and takes the next if that is wanted.
    pub fn settle(&mut self, settlement: &Settlement) -> Settled {
        for (id, verdict) in &settlement.verdicts {
            if !self.step(*id, verdict.step()) {
                continue;
            }
            let Some(row) = self.rows.get_mut(id) else { continue };
            match verdict {
                Verdict::Done(place) => row.place = Some(place.clone()),
                Verdict::Again { error, .. } => {
                    row.last_error = Some(error.clone());
                    row.next_attempt_at = settlement.next_attempt_at;
                }
                Verdict::Dead { error } => row.last_error = Some(error.clone()),
                Verdict::Lapsed => {
                    row.last_error = Some(LAPSED.to_owned());
                    row.attempts = row.attempts.saturating_sub(1);
                }
            }
        }
        for id in &settlement.unsent {
            if self.step(*id, Step::NotSent)
                && let Some(row) = self.rows.get_mut(id)
            {
                row.attempts = row.attempts.saturating_sub(1);
            }
        }
        let more = self.open.contains_key(&settlement.lane);
        Settled { more, taken: self.take_next(settlement.lane, settlement.take) }
    }

    /// Gives up rows that were accepted before `cutoff`, up to a slice of them; answers how many.
    pub fn expire(&mut self, cutoff: u64) -> u64 {
        let old = |row: &Row| row.status.after(Step::Expired).is_some() && row.enqueued_at < cutoff;
        let mut found: Vec<(u64, u64)> =
            self.rows.iter().filter(|(_, row)| old(row)).map(|(id, row)| (row.enqueued_at, *id)).collect();
        found.sort_unstable();
        found.truncate(SLICE);
        for (_, id) in &found {
            self.step(*id, Step::Expired);
            if let Some(row) = self.rows.get_mut(id) {
                row.last_error = Some(EXPIRED.to_owned());
            }
        }
        found.len() as u64
    }

    /// The daemon starts: what was on its way is sent again. Answers how many rows that were.
    pub fn restart(&mut self) -> u64 {
        let ids: Vec<u64> = self.open.values().flatten().copied().collect();
        ids.into_iter().filter(|id| self.step(*id, Step::Restarted)).count() as u64
    }

    /// The lanes of a session that have rows, with their oldest row.
    pub fn found(&self, sender: SessionKey) -> Vec<FoundLane> {
        let of = |(lane, rows): (&LaneId, &BTreeSet<u64>)| {
            let oldest = self.rows.get(rows.first()?)?;
            let (attempts, next_attempt_at) = (oldest.attempts, oldest.next_attempt_at);
            (oldest.sender == sender).then_some(FoundLane { lane: *lane, attempts, next_attempt_at })
        };
        self.open.iter().filter_map(of).collect()
    }

    /// All rows, by their numbers.
    pub fn rows(&self) -> impl Iterator<Item = (u64, &Row)> {
        self.rows.iter().map(|(id, row)| (*id, row))
    }

    /// Rows that are not decided.
    pub fn waiting(&self) -> usize {
        self.open.values().map(BTreeSet::len).sum()
    }

    /// Lets a row take a step, if it applies where the row stands.
    fn step(&mut self, id: u64, step: Step) -> bool {
        let Some(row) = self.rows.get_mut(&id) else { return false };
        let Some(next) = row.status.after(step) else { return false };
        row.status = next;
        if !matches!(next, Status::Pending | Status::Inflight)
            && let Some(open) = self.open.get_mut(&row.lane)
        {
            open.remove(&id);
            if open.is_empty() {
                self.open.remove(&row.lane);
            }
        }
        true
    }

    fn lane(&mut self, sender: SessionKey, params: &SendParams) -> LaneId {
        let class = match params.to {
            Address::Topic(_) => "",
            _ => params.priority.as_str(),
        };
        let next = LaneId(self.lanes.len() as u64 + 1);
        *self.lanes.entry((sender, params.to.to_string(), class)).or_insert(next)
    }
}
