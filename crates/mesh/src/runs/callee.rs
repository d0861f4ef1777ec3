//! Runs, the callee's side: chunks and ends, and the ends that nobody says.
//!
//! The end of a run is told when it is on disk. What becomes of its message is written before it: should a crash part
//! the two, the run lives on and ends again.

use serde_json::Value;
use tenure_kit::mutant::{self, Mutant};
use tenure_kit::time::Millis;
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::ids::{MemberKey, RunId, SessionKey};
use tenure_proto::log::LogName;
use tenure_proto::run::{RunChunkParams, RunEndParams, RunState};

use crate::Mesh;
use crate::access::Right;
use crate::effect::{Answer, Effect, Note};
use crate::messages::deliver::RETRY_MS;
use crate::messages::reads::Purpose;
use crate::reply::{Caller, Reply};
use crate::runs::LINGER_MS;
use crate::runs::caller::{Comeback, not_callee, over};
use crate::runs::run::{Run, Step, Waiter, state_after};
use crate::store::pending::{Awaiting, unconfirmed};
use crate::store::record::{RunRecord, StoreRead, StoreWrite};

/// Runs that one tick ends or forgets; the rest are due at once.
const RUNS_PER_TICK: usize = 1_024;

/// What somebody wants of a run that is not in memory.
#[derive(Debug)]
pub(crate) enum Ask {
    /// `run.start`, again.
    Join(Comeback),
    /// `run.get`, by a session of this member.
    Get(MemberKey),
    /// `run.cancel`, by a session of this member.
    Cancel(MemberKey),
    /// `run.chunk`.
    Chunk(SessionKey),
    /// `run.end`, with what it says.
    End(SessionKey, Box<(RunState, Option<Value>, Option<WireError>)>),
}

impl Mesh {
    pub(crate) fn run_chunk(&mut self, caller: &Caller, params: RunChunkParams) -> Result<Reply, WireError> {
        let session = caller.session;
        let RunChunkParams { run_id: id, seq, data } = params;
        let Some(run) = self.runs.get_mut(&id) else {
            self.read(Purpose::Run(caller.clone(), Ask::Chunk(session)), StoreRead::Run(id));
            return Ok(Reply::Later);
        };
        check(run, &session, seq.get())?;
        if !run.is_living() {
            return Err(over());
        }
        let step = run.step(seq.get());
        self.runs.claim(id, session);
        match step {
            Step::Again => {}
            Step::Next => {
                self.runs.keep(id, seq.get(), data);
                self.rouse_watchers(id);
            }
            Step::Gap => {
                self.end_at_gap(id, caller);
                return Ok(Reply::Later);
            }
        }
        Ok(Reply::Now(Answer::Empty))
    }

    pub(crate) fn run_end(&mut self, caller: &Caller, params: RunEndParams) -> Result<Reply, WireError> {
        let session = caller.session;
        let RunEndParams { run_id: id, seq, status, result, error } = params;
        let state = state_after(status);
        let Some(run) = self.runs.get_mut(&id) else {
            let ask = Ask::End(session, Box::new((state, result, error)));
            self.read(Purpose::Run(caller.clone(), ask), StoreRead::Run(id));
            return Ok(Reply::Later);
        };
        check(run, &session, seq.get())?;
        let waiter = Waiter { to: caller.reply_to(), outcome: Ok(()) };
        if !run.is_living() {
            if !run.says_again(state, result.as_ref(), error.as_ref()) {
                return Err(over());
            }
            if run.has_ended() {
                return Ok(Reply::Now(Answer::Empty));
            }
            run.wait(waiter);
            return Ok(Reply::Later);
        }
        let (step, place) = (run.step(seq.get()), (run.log.clone(), run.seq));
        self.runs.claim(id, session);
        // A process that began anew may have fewer chunks than the one before it: that is no gap.
        if step == Step::Gap {
            self.end_at_gap(id, caller);
            return Ok(Reply::Later);
        }
        if let Some(run) = self.runs.get_mut(&id) {
            run.decide(state, result, error, self.clock.wall(), Some(waiter));
        }
        self.settle_run(&place);
        self.runs.ends.push(id);
        Ok(Reply::Later)
    }

    /// A run's message is settled by its end.
    fn settle_run(&mut self, (log, seq): &(LogName, u64)) {
        let Some(group) = self.messages.urgent_place(log) else { return };
        let Some(holder) = self.messages.take_out(group, *seq) else { return };
        self.messages.write_soon();
        self.released(group, *seq, holder);
    }

    fn end_at_gap(&mut self, id: RunId, caller: &Caller) {
        let text = "a chunk of this run is missing, so that it has ended; number them 1, 2, 3 and so on";
        let error = WireError::new(ErrorCode::SeqGap, text);
        let waiter = Waiter { to: caller.reply_to(), outcome: Err(error.clone()) };
        self.end_run(id, RunState::Error, Some(error), "seq_gap", Some(waiter));
    }

    /// Ends a run by our own decision: its message goes to the dead letters, and whoever cares is told when that is
    /// on disk.
    pub(crate) fn end_run(
        &mut self,
        id: RunId,
        state: RunState,
        error: Option<WireError>,
        reason: &str,
        waiter: Option<Waiter>,
    ) {
        let wall = self.clock.wall();
        let Some(run) = self.runs.get_mut(&id).filter(|run| run.is_living()) else { return };
        run.decide(state, None, error, wall, waiter);
        let place = (run.log.clone(), run.seq);
        let holder = self.messages.bury_run(run, reason, wall);
        if let Some(group) = self.messages.urgent_place(&place.0) {
            self.released(group, place.1, holder);
        }
        self.messages.write_soon();
        self.runs.ends.push(id);
    }

    /// Who was to answer does not want to.
    pub(crate) fn refuse_run(&mut self, id: RunId, reason: Option<&str>) {
        let said = reason.map_or_else(String::new, |reason| format!(": {reason}"));
        let text = format!("who was called refused the run{said}");
        let error = WireError::new(ErrorCode::Unavailable, text);
        self.end_run(id, RunState::Error, Some(error), reason.unwrap_or("rejected"), None);
    }

    /// A lease has ended: the runs that its session answers fail, what it watched goes on without it.
    pub(crate) fn end_runs_of(&mut self, session: SessionKey) {
        self.runs.unwatch(&session);
        for id in self.runs.served_by(&session) {
            self.end_run(id, RunState::Error, Some(callee_gone()), "lease_expired", None);
        }
    }

    /// A session may have nothing to do with runs any more. What it answers could never end, so it ends now; what it is
    /// streamed it is to ask for again, and so hears that it may not.
    pub(crate) fn lose_runs(&mut self, session: SessionKey) {
        for id in self.runs.served_by(&session) {
            self.end_run(id, RunState::Error, Some(callee_barred()), "forbidden", None);
        }
        if self.runs.is_watching(&session) {
            self.runs.unwatch(&session);
            self.runs.bereft.push(session);
            self.break_bereft();
        }
    }

    /// Ends the runs that have just come to somebody who may not answer them.
    pub(crate) fn end_unanswerable(&mut self) {
        for id in self.runs.claims.clone() {
            let callee = self.runs.get(&id).and_then(|run| run.callee);
            if callee.is_some_and(|callee| self.may(callee, Right::Run).is_err()) {
                self.end_run(id, RunState::Error, Some(callee_barred()), "forbidden", None);
            }
        }
    }

    /// Runs whose time is over, whose end the store could not take, or that were kept long enough after it.
    pub(crate) fn fire_runs(&mut self, now: Millis) {
        for _ in 0..RUNS_PER_TICK {
            let Some(id) = self.runs.due.pop_due(now) else { return };
            let Some(run) = self.runs.get(&id) else { continue };
            if run.has_ended() && run.watched() == 0 {
                self.runs.forget(id);
            } else if run.has_ended() {
                self.runs.due.set(id, now.plus(LINGER_MS));
            } else if run.ending().is_some() {
                self.runs.ends.push(id);
            } else if run.orphaned {
                self.end_run(id, RunState::Error, Some(callee_gone()), "lease_expired", None);
            } else if run.cancelled && run.callee.is_none() {
                self.end_run(id, RunState::Cancelled, None, "cancelled", None);
            } else {
                let text = "the run took longer than its timeoutMs; ask for more time, or for less";
                let error = WireError::new(ErrorCode::Expired, text);
                self.end_run(id, RunState::Error, Some(error), "expired", None);
            }
        }
    }

    /// Tells the store who took which run, behind the claims of their messages.
    pub(crate) fn write_run_claims(&mut self) {
        for id in std::mem::take(&mut self.runs.claims) {
            let Some(run) = self.runs.get_mut(&id) else { continue };
            let Some(callee) = run.callee else { continue };
            let Some(member) = self.sessions.lease(&callee).map(|lease| lease.member) else { continue };
            run.callee_member = Some(member);
            self.write_surely(StoreWrite::ClaimRun { run: id, callee, member });
        }
    }

    /// Tells the store which runs have ended, behind what became of their messages.
    pub(crate) fn write_run_ends(&mut self) {
        for id in std::mem::take(&mut self.runs.ends) {
            self.runs.due.clear(&id);
            let Some(ending) = self.runs.get(&id).and_then(Run::ending).cloned() else { continue };
            let write = StoreWrite::EndRun(Box::new(ending));
            if mutant::on(Mutant::RunEndUnsynced) {
                self.write(write);
                self.run_ended(self.clock.now(), id);
                continue;
            }
            self.write_for(Awaiting::RunEnd(id), write);
        }
    }

    /// The end of a run is on disk: now it is so for everybody.
    pub(crate) fn run_ended(&mut self, now: Millis, id: RunId) {
        let Some(run) = self.runs.get_mut(&id) else { return };
        let waiters = run.take_waiters();
        let (callee, cancelled) = (run.callee, run.cancelled);
        let Some(ending) = run.end() else { return };
        let code = ending.error.as_ref().map(|error| error.code);
        let status = match ending.state {
            RunState::Ok => "ok",
            RunState::Cancelled => "cancelled",
            _ => "error",
        };
        let reason = code.map_or("", ErrorCode::as_str);
        self.effects.push_back(Effect::Note(Note::RunEnded { run: id, status, reason }));
        // Who said the end itself knows it; who did not is to stop.
        let timed_out = waiters.is_empty() && code == Some(ErrorCode::Expired);
        for Waiter { to, outcome } in waiters {
            self.answer(to, outcome.map(|()| Answer::Empty));
        }
        if let (Some(callee), true, false) = (callee, timed_out, cancelled) {
            self.tell_cancel(callee, id);
        }
        self.runs.ended(id, now.plus(LINGER_MS));
        self.rouse_watchers(id);
        self.break_bereft();
    }

    /// Whoever was to be told of a run that had to be forgotten resyncs, and asks for it.
    pub(crate) fn break_bereft(&mut self) {
        for session in std::mem::take(&mut self.runs.bereft) {
            if let Some(lease) = self.sessions.lease_mut(&session) {
                lease.stream.break_off();
                self.rouse(session);
            }
        }
    }

    /// The store could not take the end of a run: it is told again in a while, and nobody yet.
    pub(crate) fn run_not_ended(&mut self, now: Millis, id: RunId) {
        let Some(run) = self.runs.get_mut(&id) else { return };
        let waiters = run.take_waiters();
        self.runs.due.set(id, now.plus(RETRY_MS));
        for Waiter { to, outcome } in waiters {
            self.answer(to, Err(outcome.err().unwrap_or_else(unconfirmed)));
        }
    }

    fn rouse_watchers(&mut self, id: RunId) {
        let Some(run) = self.runs.get(&id) else { return };
        let watchers: Vec<SessionKey> = run.watchers().copied().collect();
        for session in watchers {
            self.rouse(session);
        }
    }

    /// Takes up runs that live, after leases and groups: each has at least a lease's time from the start.
    pub(crate) fn restore_runs(&mut self, runs: Vec<RunRecord>) {
        for record in runs {
            let (id, stored) = (record.id, record.callee);
            let mut due =
                self.clock.now().plus(record.span().left_ms(self.clock.wall()).max(self.config.lease_ttl_ms));
            let holder = self.holder_of(&record);
            let mut run = Run::restored(record);
            run.orphaned = stored.is_some_and(|(callee, _)| !self.sessions.is_leased(&callee));
            // That somebody had taken what is cancelled was lost with the crash: nobody is to begin with it.
            let unwanted = run.cancelled && run.callee.is_none() && holder.is_none();
            if run.orphaned || unwanted {
                due = self.clock.now();
            }
            self.runs.insert(id, run, due);
            // Its message was handed out, and the crash came before the store knew who answers.
            if let Some(session) = holder {
                self.runs.claim(id, session);
            }
        }
    }

    /// Gives the runs that a start took up the time that they have left at this time of the wall clock, instead of at the
    /// present one.
    pub(crate) fn time_runs_from(&mut self, wall: u64) {
        for (id, left) in self.runs.left_at(wall) {
            if self.runs.due.at(&id).is_some_and(|due| due > self.clock.now()) {
                self.runs.due.set(id, self.clock.now().plus(left.max(self.config.lease_ttl_ms)));
            }
        }
    }

    /// Who has a run's message in hand.
    fn holder_of(&self, record: &RunRecord) -> Option<SessionKey> {
        let group = self.messages.urgent_place(&record.log)?;
        self.messages.holder(group, record.seq).map(|holder| holder.session)
    }
}

/// Refuses numbers below 1, and whoever does not answer this run.
fn check(run: &Run, session: &SessionKey, seq: u64) -> Result<(), WireError> {
    if !run.is_answered_by(session) {
        return Err(not_callee());
    }
    if seq == 0 {
        return Err(WireError::bad_request("chunks are numbered from 1"));
    }
    Ok(())
}

fn callee_barred() -> WireError {
    let text =
        "the session that was to answer this run may not answer runs; ask its operator, or call another";
    WireError::new(ErrorCode::Unavailable, text)
}

fn callee_gone() -> WireError {
    WireError::new(ErrorCode::LeaseExpired, "the session that answered this run is gone; start another")
}
