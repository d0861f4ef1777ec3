//! What waits for the store, and what its answers mean.

use tenure_kit::mutant::{self, Mutant};
use tenure_kit::time::Millis;
use tenure_proto::error::WireError;
use tenure_proto::event::Receipt;
use tenure_proto::ids::{ConnId, GrantId, MemberKey, RequestId, RunId, SessionKey, SubId};
use tenure_proto::name::TopicName;

use crate::Mesh;
use crate::access::Grant;
use crate::access::admin::{OperateId, Operated};
use crate::effect::{Answer, Effect, HelloAnswer, Note, Push, ReadId, WriteId};
use crate::input::LeaseRecord;
use crate::messages::reads::{Purpose, StatusQuestion};
use crate::messages::send::{Pending, is_answered_early};
use crate::reply::ReplyTo;
use crate::runs::caller::PendingRun;
use crate::services::{Renewal, Withdrawal};
use crate::sessions::lease::State;
use crate::store::record::{GroupId, StoreOutcome, StoreRead, StoreWrite};

/// Who waits for a write.
#[derive(Debug)]
pub(crate) enum Awaiting {
    /// A lease that begins or ends.
    Lease(SessionKey),
    /// A message that wants to be accepted.
    Accept(Box<Pending>),
    /// A run that wants to be accepted.
    Run(Box<PendingRun>),
    /// The end of a run.
    RunEnd(RunId),
    /// A topic that was made for somebody's request, and whether one of that name had been deleted by somebody.
    Topic(TopicName, bool),
    /// A topic that is to go.
    TopicEnd(TopicName),
    /// A slice of a topic that is going.
    TopicCleared(TopicName),
    /// Somebody who is answered `{}` when everything so far is on disk.
    Asked(ReplyTo),
    /// A group that is made for a subscription.
    Open(GroupId),
    /// A subscription, the last write of it.
    Subscribe(SessionKey, SubId),
    /// A write that must not be lost: it is asked for again.
    Owed(Box<StoreWrite>),
    /// Where a private reader is.
    Floor(GroupId),
    /// A group that changed, and who is to be told of it.
    Group(GroupId, Vec<(SessionKey, Receipt)>),
    /// Deliveries that are pushed when their claims are on disk.
    Pushes(Vec<(ConnId, Push)>),
    /// Somebody who is answered when everything so far is on disk.
    Answer(ReplyTo, Box<Answer>),
    /// A `send.status`, which is asked of the store when everything so far is on disk.
    Status(Box<StatusQuestion>),
    /// A hello that settled deliveries, and is answered when that is on disk.
    Hello(ConnId, RequestId, Box<HelloAnswer>),
    /// Dead letters that are taken out again.
    Revive(ReplyTo, tenure_proto::LogName, Vec<u64>),
    /// Dead letters that are dropped.
    DropDead(ReplyTo),
    /// Services that were offered.
    Renewal(Box<Renewal>),
    /// Services that are given up.
    Withdrawal(Box<Withdrawal>),
    /// Somebody who becomes a member by an invite.
    Joined(MemberKey, GrantId),
    /// An operator who is answered when it is on disk.
    Operated(OperateId, Box<Operated>),
    /// The row that an operator was refused something, who is told when it is on disk or could not be written.
    Refused(OperateId, Box<WireError>),
    /// An operator whose grant holds, and who is answered, when it is on disk.
    Granted(OperateId, Box<(Operated, Grant)>),
    /// What a session left behind moves on.
    Evacuate(SessionKey, MemberKey),
    /// Entries past their time go.
    Prune(tenure_proto::LogName, crate::messages::envelope::Lane),
}

impl Mesh {
    /// Asks for a write; nobody waits for it.
    pub(crate) fn write(&mut self, write: StoreWrite) {
        let effect = self.store.ask(write);
        self.effects.push_back(effect);
    }

    /// Asks for a write that somebody waits for.
    pub(crate) fn write_for(&mut self, who: Awaiting, write: StoreWrite) {
        self.write(write);
        self.store.wait(who);
    }

    /// Asks the store to read.
    pub(crate) fn read(&mut self, purpose: Purpose, read: StoreRead) -> ReadId {
        let (id, effect) = self.store.ask_read(purpose, read);
        self.effects.push_back(effect);
        id
    }

    /// Asks for a write that the lease of `session` waits for.
    pub(crate) fn write_and_await(&mut self, session: SessionKey, write: StoreWrite) {
        self.write_for(Awaiting::Lease(session), write);
    }

    /// Lets somebody wait until everything that was asked for so far is on disk.
    pub(crate) fn await_all(&mut self, who: Awaiting, now: Millis) {
        if self.store.is_settled() {
            self.written(now, who, StoreOutcome::Done);
        } else {
            self.store.wait(who);
        }
    }

    /// Everything up to `through` is on disk.
    pub(crate) fn committed(
        &mut self,
        now: Millis,
        through: WriteId,
        outcomes: Vec<(WriteId, StoreOutcome)>,
    ) {
        self.store_is(true);
        self.store.settle(through);
        let mut outcomes = outcomes.into_iter().peekable();
        while let Some((id, who)) = self.store.next(through) {
            while outcomes.next_if(|(other, _)| *other < id).is_some() {}
            // Several may wait for one write; only the first, who asked for it, takes its answer.
            let outcome = outcomes.next_if(|(other, _)| *other == id).map_or(StoreOutcome::Done, |(_, o)| o);
            self.written(now, who, outcome);
        }
    }

    /// A write is on disk.
    fn written(&mut self, now: Millis, who: Awaiting, outcome: StoreOutcome) {
        match (who, outcome) {
            (Awaiting::Lease(session), _) => match self.sessions.lease(&session).map(|lease| &lease.state) {
                Some(State::Beginning(_)) => self.begun(now, session),
                Some(State::Returning(_)) => self.returned(now, session),
                Some(State::Ending(..)) => self.ended(now, session),
                _ => {}
            },
            (Awaiting::Accept(pending), StoreOutcome::Accepted(accepted)) => {
                self.accepted(*pending, accepted);
            }
            (Awaiting::Accept(pending), _) if mutant::on(Mutant::FailedIsCommitted) => {
                let guess = self.guess(&pending.accept);
                self.accepted(*pending, guess);
            }
            (Awaiting::Run(pending), StoreOutcome::Accepted(accepted)) => {
                self.run_accepted(*pending, accepted);
            }
            (Awaiting::RunEnd(id), _) => self.run_ended(now, id),
            (Awaiting::Open(id), StoreOutcome::Opened(Ok(placed))) => self.opened(id, placed),
            // It was to begin beyond the end of its log: its subscription finds no place, and is told so.
            (Awaiting::Open(id), StoreOutcome::Opened(Err(_))) => drop(self.messages.close(id)),
            (Awaiting::Subscribe(session, sub), _) => self.subscribed(session, &sub),
            (Awaiting::Group(id, receipts), _) => {
                self.messages.group_kept(id);
                self.tell_receipts(receipts);
            }
            (Awaiting::TopicEnd(name), outcome) => {
                self.topic_ended(&name, outcome == StoreOutcome::Ended(true));
            }
            (Awaiting::TopicCleared(name), outcome) => {
                let done = matches!(outcome, StoreOutcome::Count { more: false, .. });
                self.topic_cleared(&name, done);
            }
            (Awaiting::Asked(to), _) => self.answer(to, Ok(Answer::Empty)),
            (Awaiting::Renewal(renewal), _) => self.renewed(*renewal),
            (Awaiting::Withdrawal(withdrawal), _) => self.withdrawn(*withdrawal),
            (Awaiting::Owed(_), _) => self.store.retries.paid(),
            (Awaiting::Pushes(pushes), _) => self.clear_pushes(pushes),
            (Awaiting::Answer(to, answer), _) => self.answer(to, Ok(*answer)),
            (Awaiting::Status(question), _) => self.read_status(*question),
            (Awaiting::Hello(conn, request, answer), _) => self.welcome(conn, request, answer),
            (Awaiting::Revive(to, log, seqs), StoreOutcome::Revived(found)) => {
                self.revived(to, &log, &seqs, found);
            }
            (Awaiting::DropDead(to), StoreOutcome::Count { rows, .. }) => {
                self.dead_dropped(to, rows);
            }
            (Awaiting::Joined(member, invite), _) => {
                self.access.redeemed(&invite);
                self.effects.push_back(Effect::Note(Note::Joined { member, invite }));
            }
            (Awaiting::Operated(id, answer), _) => {
                self.effects.push_back(Effect::Operated { id, outcome: Ok(*answer) });
            }
            (Awaiting::Refused(id, error), _) => {
                self.effects.push_back(Effect::Operated { id, outcome: Err(*error) });
            }
            (Awaiting::Granted(id, granted), _) => {
                let (answer, grant) = *granted;
                self.granted(id, answer, grant);
            }
            (Awaiting::Evacuate(session, member), StoreOutcome::Evacuated { moved, failed, next }) => {
                self.evacuated(session, member, moved, failed, next);
            }
            (Awaiting::Prune(log, lane), StoreOutcome::Pruned { through, more }) => {
                self.pruned(&log, lane, through, more);
            }
            _ => {}
        }
    }

    /// Nothing up to `through` that was still open is on disk.
    pub(crate) fn failed(&mut self, now: Millis, through: WriteId) {
        if mutant::on(Mutant::FailedIsCommitted) {
            return self.committed(now, through, Vec::new());
        }
        self.store_is(false);
        self.store.settle(through);
        // What nobody waited for is lost as well: whoever is here is told to the store again in a while.
        let mut again = Vec::new();
        for (session, lease) in self.sessions.leases_mut().filter(|(_, lease)| lease.touched) {
            (lease.dirty, lease.stored) = (true, now);
            again.push(*session);
        }
        for session in again {
            self.reschedule(session);
        }
        // What lost its claim was handed out before what waits for one.
        let younger = match mutant::on(Mutant::UnclaimedGoesLast) {
            true => Vec::new(),
            false => self.messages.take_parked(),
        };
        while let Some((_, who)) = self.store.next(through) {
            self.not_written(now, who);
        }
        self.messages.park_again(younger);
        // Whoever was about to be told that a thing is settled believed in a write that is lost: what it said is
        // written again first.
        if self.store.has_round() {
            self.messages.write_soon();
        }
    }

    fn not_written(&mut self, now: Millis, who: Awaiting) {
        match who {
            Awaiting::Lease(session) => match self.sessions.lease(&session).map(|lease| &lease.state) {
                Some(State::Beginning(_)) => self.not_begun(session),
                Some(State::Returning(_)) => self.returned(now, session),
                Some(State::Ending(..)) => self.not_ended(now, session),
                _ => {}
            },
            Awaiting::Accept(pending) if is_answered_early(&pending.accept) => {}
            Awaiting::Accept(pending) => self.answer(pending.to, Err(unavailable())),
            Awaiting::Run(pending) => {
                self.run_not_accepted(&pending);
                self.answer(pending.caller.reply_to(), Err(unavailable()));
            }
            Awaiting::RunEnd(id) => self.run_not_ended(now, id),
            Awaiting::Topic(name, told) => self.forget_topic(now, &name, told),
            Awaiting::TopicEnd(name) => self.not_deleted(&name, &unavailable()),
            Awaiting::TopicCleared(name) => self.clear_later(&name),
            Awaiting::Asked(to) => self.answer(to, Err(unconfirmed())),
            Awaiting::Owed(write) => self.owe_again(now, *write),
            Awaiting::Floor(id) => {
                self.messages.floor_lost(id);
            }
            Awaiting::Open(id) => drop(self.messages.close(id)),
            Awaiting::Subscribe(session, sub) => self.not_subscribed(session, &sub),
            Awaiting::Group(id, receipts) => self.group_lost(now, id, receipts),
            Awaiting::Pushes(pushes) => self.messages.park_again(pushes),
            Awaiting::Answer(to, answer) => {
                self.answer(to, Err(unconfirmed()));
                if let Answer::Fetch(pushes) = *answer {
                    self.push_instead(pushes);
                }
            }
            // What failed was not accepted, which is what the store says of it.
            Awaiting::Status(question) => self.read_status(*question),
            Awaiting::Hello(conn, request, mut answer) => {
                // What was said to be settled is not: the client has it in hand and says so again.
                if let Some(reconcile) = &mut answer.reconcile {
                    crate::messages::reconcile::unsettle(reconcile);
                }
                self.welcome(conn, request, answer);
            }
            Awaiting::Revive(to, _, seqs) => {
                self.answer(to, Err(unavailable()));
                self.messages.not_revived(seqs.len());
            }
            Awaiting::DropDead(to) => self.answer(to, Err(unavailable())),
            Awaiting::Renewal(renewal) => self.not_renewed(*renewal),
            Awaiting::Withdrawal(withdrawal) => self.not_withdrawn(*withdrawal),
            Awaiting::Joined(member, invite) => self.not_joined(member, &invite),
            Awaiting::Operated(id, _) => {
                self.effects.push_back(Effect::Operated { id, outcome: Err(unconfirmed()) });
            }
            Awaiting::Refused(id, error) => {
                self.effects.push_back(Effect::Operated { id, outcome: Err(*error) });
            }
            Awaiting::Granted(id, granted) => {
                let error = if self.access.not_granted(&granted.1) { unconfirmed() } else { unavailable() };
                self.effects.push_back(Effect::Operated { id, outcome: Err(error) });
            }
            Awaiting::Evacuate(session, _) => self.evacuate_again(session),
            Awaiting::Prune(..) => {}
        }
    }

    fn tell_receipts(&mut self, receipts: Vec<(SessionKey, Receipt)>) {
        for (session, receipt) in receipts {
            self.tell_receipt(session, receipt);
        }
    }

    /// Whether the store can write is everybody's business: it is part of health.
    fn store_is(&mut self, sound: bool) {
        if self.store.becomes(sound) {
            self.health_changed();
        }
    }

    /// Tells the store what a lease looks like now.
    pub(crate) fn store_particulars(&mut self, now: Millis, session: SessionKey) {
        let Some(peer) = self.sessions.peer(&session) else { return };
        let (profile, joined_at) = (peer.profile(), peer.joined_at.get());
        let Some(lease) = self.sessions.lease_mut(&session) else { return };
        lease.dirty = false;
        lease.stored = now;
        let record = LeaseRecord {
            session,
            lease: lease.id.clone(),
            member: lease.member,
            instance: lease.instance.clone(),
            profile,
            caps: lease.caps.clone(),
            joined_at,
        };
        self.write(StoreWrite::PutLease(Box::new(record)));
    }
}

/// What a request is told that came to nothing because the store cannot write.
pub(crate) fn unavailable() -> WireError {
    refused("the store cannot write now; nothing was done, try again")
}

/// What a request is told that took effect here, as a settle does, but is not on disk because the store cannot write.
pub(crate) fn unconfirmed() -> WireError {
    refused("the store cannot write now; this is not on disk yet and a restart would undo it, so ask again")
}

/// What a request is told when the store cannot read.
pub(crate) fn unreadable() -> WireError {
    refused("the store cannot read now; try again")
}

fn refused(text: &str) -> WireError {
    WireError::new(tenure_proto::error::ErrorCode::Unavailable, text).retry_after(1_000)
}
