//! Runs, the caller's side: starting one and coming back to it, cancelling, asking.

use std::sync::Arc;

use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::event::EventBody;
use tenure_proto::ids::{MemberKey, RunId, SessionKey};
use tenure_proto::limits::{RUN_WATCHERS, RUNS_PER_MEMBER, RUNS_PER_MESH};
use tenure_proto::log::LogName;
use tenure_proto::message::{Address, Sender};
use tenure_proto::run::{RunEvent, RunInfo, RunStartResult, RunState, RunsListParams, RunsListResult};

use crate::Mesh;
use crate::access::Right;
use crate::effect::{Answer, Effect, Note};
use crate::messages::accept::{Accept, Accepted, Route};
use crate::messages::envelope::{Entry, Lane};
use crate::messages::reads::{Purpose, page};
use crate::reply::{Caller, Reply, lease_ended};
use crate::runs::LINGER_MS;
use crate::runs::callee::Ask;
use crate::runs::run::{Run, Waiter};
use crate::runs::start::{Start, not_callable};
use crate::store::pending::{Awaiting, unreadable};
use crate::store::record::{RunRecord, StoreFound, StoreRead, StoreWrite};

/// A run that waits for the store's verdict.
#[derive(Debug)]
pub(crate) struct PendingRun {
    pub(crate) caller: Caller,
    accept: Arc<Accept>,
    timeout_ms: u64,
    from_seq: Option<u64>,
}

/// A caller that comes back to a run which only the store remembers.
#[derive(Debug)]
pub(crate) struct Comeback {
    from_seq: Option<u64>,
}

impl Mesh {
    pub(crate) fn run_start(&mut self, caller: &Caller, start: Start) -> Result<Reply, WireError> {
        let session = caller.session;
        let member = self.sessions.lease(&session).map(|lease| lease.member).ok_or_else(lease_ended)?;
        let Start { prepared, timeout_ms, from_seq } = start;
        let (mut envelope, fingerprint) = (prepared.envelope, prepared.fingerprint);
        let name = self.sessions.name_of(&session);
        envelope.from = Sender { member, session, name };
        self.stamp(&mut envelope);
        let route = match &envelope.to {
            Address::Session(to) => self.route_to_session(to),
            Address::Member(to) if self.knows_member(to) => Route::Log(LogName::Member(*to)),
            Address::Member(to) => Route::AbsentMember(*to),
            Address::Topic(_) => return Err(not_callable()),
        };
        let refusal = prepared.refusal.or_else(|| self.too_many_runs(&member));
        let refusal = refusal.or_else(|| self.inbox_full(&route, envelope.fallback));
        let refusal = refusal.or_else(|| self.count_send(session));
        let remember_until = self.config.remember_until(self.clock.wall());
        let run = Some(self.clock.wall().saturating_add(timeout_ms));
        let (envelope, full) = (Arc::new(envelope), Vec::new());
        let accept = Arc::new(Accept { envelope, fingerprint, route, refusal, remember_until, full, run });
        if let (Route::Log(log), None) = (&accept.route, &accept.refusal) {
            self.place_inbox(log, Lane::of(log, accept.envelope.priority));
        }
        self.runs.starts(member);
        let pending = PendingRun { caller: caller.clone(), accept: accept.clone(), timeout_ms, from_seq };
        self.write_for(Awaiting::Run(Box::new(pending)), StoreWrite::Accept(accept));
        Ok(Reply::Later)
    }

    fn too_many_runs(&self, member: &MemberKey) -> Option<WireError> {
        let runs = &self.runs;
        let text = match () {
            () if runs.living() >= RUNS_PER_MESH => {
                "this mesh has as many runs under way as it may; try later"
            }
            () if runs.living_of(member) >= RUNS_PER_MEMBER => {
                "this member has as many runs under way as it may; wait for one to end"
            }
            () => return None,
        };
        Some(WireError::new(ErrorCode::Busy, text).retry_after(1_000))
    }

    /// The store has decided about a run.
    pub(crate) fn run_accepted(&mut self, pending: PendingRun, accepted: Accepted) {
        let PendingRun { caller, accept, timeout_ms, from_seq } = pending;
        let envelope = &accept.envelope;
        let session = caller.session;
        self.runs.started(&envelope.from.member);
        if !matches!(accepted, Accepted::Fresh { .. }) && accept.refusal.is_none() {
            self.uncount_send(session);
        }
        let outcome = match accepted {
            Accepted::Fresh { log, lane, seq } => {
                let (id, size) = (RunId(envelope.id.0), envelope.body.as_bytes().len() as u64);
                let run = Run::new(id, envelope.from.member, log.clone(), seq, size);
                self.runs.insert(id, run, self.clock.now().plus(timeout_ms));
                self.effects.push_back(Effect::Note(Note::RunStarted { session, run: id }));
                self.appended(&Arc::new(Entry::new(log, lane, seq, envelope.clone())));
                self.join_run(&caller, id, from_seq)
            }
            Accepted::Duplicate(found) => {
                self.effects.push_back(Effect::Note(Note::AcceptDuplicate { session }));
                let id = RunId(found.id.0);
                if self.runs.get(&id).is_none() {
                    let purpose = Purpose::Run(caller, Ask::Join(Comeback { from_seq }));
                    self.read(purpose, StoreRead::Run(id));
                    return;
                }
                self.join_run(&caller, id, from_seq)
            }
            Accepted::Reused(known) => {
                self.effects.push_back(Effect::Note(Note::AcceptConflict { session }));
                let text = "this idempotencyKey was used for another run; give each its own";
                let details =
                    serde_json::json!({"accepted": known.prefix(), "presented": accept.fingerprint.prefix()});
                Err(WireError::new(ErrorCode::IdempotencyKeyReused, text).with_details(details))
            }
            Accepted::Refused(error) => Err(error),
        };
        self.answer(caller.reply_to(), outcome);
    }

    /// A run could not be accepted: nothing was done.
    pub(crate) fn run_not_accepted(&mut self, pending: &PendingRun) {
        self.runs.started(&pending.accept.envelope.from.member);
    }

    /// Streams a run to a session from here on; what it is told.
    fn join_run(&mut self, caller: &Caller, id: RunId, from_seq: Option<u64>) -> Result<Answer, WireError> {
        let session = caller.session;
        // What it may was changed while the store decided.
        self.may(session, Right::Run)?;
        // Who asked on a socket that is gone hears nothing of this, and asks again.
        if self.sessions.lease(&session).is_some_and(|lease| lease.conn() == Some(caller.conn)) {
            if !self.runs.watch(id, session, from_seq) {
                let text = format!("a run streams to at most {RUN_WATCHERS} sessions of its caller");
                return Err(WireError::new(ErrorCode::Busy, text).retry_after(1_000));
            }
            if let Some(lease) = self.sessions.lease_mut(&session).filter(|_| from_seq.is_some()) {
                lease.stream.unfeed(id);
            }
            self.rouse(session);
        }
        let state = self.runs.get(&id).map_or(RunState::Queued, Run::state);
        Ok(Answer::RunStart(RunStartResult { run_id: id, state }))
    }

    /// A caller is back for a run that the store remembers.
    fn rejoin_run(
        &mut self,
        caller: &Caller,
        comeback: Comeback,
        found: Option<Box<RunRecord>>,
    ) -> Result<Answer, WireError> {
        let Some(record) = found else {
            let text = "this run ended more than a day ago and is forgotten; start another under a new key";
            return Err(WireError::new(ErrorCode::Expired, text));
        };
        let (id, due) = (record.id, self.clock.now().plus(LINGER_MS));
        if self.runs.get(&id).is_none() {
            self.runs.insert_ended(id, Run::restored(*record), due);
        }
        let outcome = self.join_run(caller, id, comeback.from_seq);
        self.break_bereft();
        outcome
    }

    pub(crate) fn run_get(&mut self, caller: &Caller, id: RunId) -> Result<Reply, WireError> {
        let Some(lease) = self.sessions.lease(&caller.session) else { return Err(no_such_run()) };
        let member = lease.member;
        let Some(run) = self.runs.get(&id) else {
            self.read(Purpose::Run(caller.clone(), Ask::Get(member)), StoreRead::Run(id));
            return Ok(Reply::Later);
        };
        let callee = run.callee.and_then(|callee| self.sessions.lease(&callee)).map(|lease| lease.member);
        if run.caller == member || run.callee_member.or(callee) == Some(member) {
            Ok(Reply::Now(Answer::RunGet(Box::new(run.get()))))
        } else {
            Err(no_such_run())
        }
    }

    /// `runs.list`: what is under way, called by this session's member or answered by this session.
    pub(crate) fn runs_list(&self, session: SessionKey, params: &RunsListParams) -> Result<Reply, WireError> {
        let (runs, next) = self.runs_page(session, params.after, page(params.limit)? as usize);
        Ok(Reply::Now(Answer::RunsList(Box::new(RunsListResult { runs, next }))))
    }

    /// A page of the runs under way that a session may see, and where to go on.
    pub(crate) fn runs_page(
        &self,
        session: SessionKey,
        after: Option<RunId>,
        limit: usize,
    ) -> (Vec<RunInfo>, Option<RunId>) {
        let Some(member) = self.sessions.lease(&session).map(|lease| lease.member) else {
            return (Vec::new(), None);
        };
        let (ids, more) = self.runs.under_way(&member, &session, after, limit);
        let next = ids.last().copied().filter(|_| more);
        let info = |id: RunId| {
            let due = self.runs.due.at(&id);
            let run = self.runs.get(&id)?;
            let deadline =
                due.filter(|_| run.is_living()).map(|due| self.clock.wall() + due.since(self.clock.now()));
            Some(run.info(deadline))
        };
        (ids.into_iter().filter_map(info).collect(), next)
    }

    pub(crate) fn run_cancel(&mut self, caller: &Caller, id: RunId) -> Result<Reply, WireError> {
        let Some(lease) = self.sessions.lease(&caller.session) else { return Err(no_such_run()) };
        let member = lease.member;
        let Some(run) = self.runs.get_mut(&id) else {
            self.read(Purpose::Run(caller.clone(), Ask::Cancel(member)), StoreRead::Run(id));
            return Ok(Reply::Later);
        };
        if run.caller != member {
            return Err(not_caller());
        }
        if !run.is_living() {
            return Ok(Reply::Now(Answer::Empty));
        }
        let Some(callee) = run.callee else {
            let waiter = Waiter { to: caller.reply_to(), outcome: Ok(()) };
            self.end_run(id, RunState::Cancelled, None, "cancelled", Some(waiter));
            return Ok(Reply::Later);
        };
        if !std::mem::replace(&mut run.cancelled, true) {
            self.tell_cancel(callee, id);
        }
        // Whoever answers hears of it after a start too, so it is answered when it is on disk; also when it was said
        // before, of which the answer may still be under way.
        let answer = Awaiting::Answer(caller.reply_to(), Box::new(Answer::Empty));
        self.write_for(answer, StoreWrite::CancelRun(id));
        Ok(Reply::Later)
    }

    /// Tells who answers a run that it is wanted no more.
    pub(crate) fn tell_cancel(&mut self, callee: SessionKey, id: RunId) {
        let Some(run) = self.runs.get(&id) else { return };
        let event = RunEvent { cancel: true, ..run.event() };
        self.tell(callee, EventBody::Run(event), 128);
    }

    /// A session begins a new numbering of its events: what it watched it says again. What it was told of runs
    /// that it answers may never have come.
    pub(crate) fn renumber_runs(&mut self, session: SessionKey) {
        self.runs.unwatch(&session);
        for id in self.runs.served_by(&session) {
            if self.runs.get(&id).is_some_and(|run| run.cancelled) {
                self.tell_cancel(session, id);
            }
        }
    }

    /// The store has told of a run that is not in memory.
    pub(crate) fn found_run(
        &mut self,
        caller: &Caller,
        ask: Ask,
        found: StoreFound,
    ) -> Result<Answer, WireError> {
        let StoreFound::Run(found) = found else { return Err(unreadable()) };
        match ask {
            Ask::Join(comeback) => self.rejoin_run(caller, comeback, found),
            Ask::Get(member) => {
                let theirs = |run: &RunRecord| {
                    run.caller == member || run.callee.is_some_and(|(_, vouched)| vouched == member)
                };
                let run = found.filter(|run| theirs(run)).ok_or_else(no_such_run)?;
                Ok(Answer::RunGet(Box::new(Run::restored(*run).get())))
            }
            Ask::Cancel(member) => match found {
                Some(run) if run.caller == member => Ok(Answer::Empty),
                Some(_) => Err(not_caller()),
                None => Err(no_such_run()),
            },
            Ask::Chunk(session) => Err(match found {
                Some(run) if Run::restored(*run.clone()).is_answered_by(&session) => over(),
                Some(_) => not_callee(),
                None => no_such_run(),
            }),
            Ask::End(session, said) => {
                let run = Run::restored(*found.ok_or_else(no_such_run)?);
                if !run.is_answered_by(&session) {
                    return Err(not_callee());
                }
                let (state, result, error) = &*said;
                let same = run.says_again(*state, result.as_ref(), error.as_ref());
                if same { Ok(Answer::Empty) } else { Err(over()) }
            }
        }
    }
}

pub(crate) fn no_such_run() -> WireError {
    WireError::new(ErrorCode::NotFound, "no run of yours has that id, or it ended more than a day ago")
}

fn not_caller() -> WireError {
    WireError::new(ErrorCode::NotOwner, "only the member that started a run may cancel it")
}

pub(crate) fn not_callee() -> WireError {
    WireError::new(ErrorCode::NotOwner, "another session answers this run; leave it to that one")
}

pub(crate) fn over() -> WireError {
    WireError::new(ErrorCode::Conflict, "this run has ended otherwise; stop working on it")
}
