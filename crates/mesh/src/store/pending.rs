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
use crate::access::operating::Asker;
use crate::effect::{Answer, Effect, HelloAnswer, Note, Push, WriteId};
use crate::input::LeaseRecord;
use crate::messages::reading::UNTOLD;
use crate::messages::reads::StatusQuestion;
use crate::messages::send::{Pending, is_answered_early};
use crate::runs::caller::PendingRun;
use crate::services::{Renewal, Withdrawal};
use crate::sessions::lease::State;
use crate::store::record::{GroupId, StoreOutcome, StoreWrite};

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
    Asked(Asker),
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
    Answer(ConnId, RequestId, Box<Answer>),
    /// A `send.status`, which is asked of the store when everything so far is on disk.
    Status(Box<StatusQuestion>),
    /// A hello that settled deliveries, and is answered when that is on disk.
    Hello(ConnId, RequestId, Box<HelloAnswer>),
    /// Dead letters that are taken out again.
    Revive(Asker, tenure_proto::LogName, Vec<u64>),
    /// Dead letters that are dropped.
    DropDead(Asker),
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
    pub(crate) fn write(&mut self, write: StoreWrite, effects: &mut Vec<Effect>) -> WriteId {
        self.last_write.0 += 1;
        effects.push(Effect::Write { id: self.last_write, write });
        self.last_write
    }

    /// Asks for a write that somebody waits for.
    pub(crate) fn write_for(&mut self, who: Awaiting, write: StoreWrite, effects: &mut Vec<Effect>) {
        let id = self.write(write, effects);
        self.awaiting.push_back((id, who));
    }

    /// Asks for a write that the lease of `session` waits for.
    pub(crate) fn write_and_await(
        &mut self,
        session: SessionKey,
        write: StoreWrite,
        effects: &mut Vec<Effect>,
    ) {
        self.write_for(Awaiting::Lease(session), write, effects);
    }

    /// Lets somebody wait until everything that was asked for so far is on disk.
    pub(crate) fn await_all(&mut self, who: Awaiting, now: Millis, effects: &mut Vec<Effect>) {
        if self.last_write > self.settled_write {
            self.awaiting.push_back((self.last_write, who));
        } else {
            self.written(now, who, StoreOutcome::Done, effects);
        }
    }

    /// Everything up to `through` is on disk.
    pub(crate) fn committed(
        &mut self,
        now: Millis,
        through: WriteId,
        outcomes: Vec<(WriteId, StoreOutcome)>,
        effects: &mut Vec<Effect>,
    ) {
        self.store_is(true);
        self.settled_write = self.settled_write.max(through);
        let mut outcomes = outcomes.into_iter().peekable();
        while let Some((id, who)) = self.next_awaiting(through) {
            while outcomes.next_if(|(other, _)| *other < id).is_some() {}
            // Several may wait for one write; only the first, who asked for it, takes its answer.
            let outcome = outcomes.next_if(|(other, _)| *other == id).map_or(StoreOutcome::Done, |(_, o)| o);
            self.written(now, who, outcome, effects);
        }
    }

    /// A write is on disk.
    fn written(&mut self, now: Millis, who: Awaiting, outcome: StoreOutcome, effects: &mut Vec<Effect>) {
        match (who, outcome) {
            (Awaiting::Lease(session), _) => match self.leases.get(&session).map(|lease| &lease.state) {
                Some(State::Beginning(_)) => self.begun(now, session, effects),
                Some(State::Returning(_)) => self.returned(now, session, effects),
                Some(State::Ending(..)) => self.ended(now, session, effects),
                _ => {}
            },
            (Awaiting::Accept(pending), StoreOutcome::Accepted(accepted)) => {
                self.accepted(*pending, accepted, effects);
            }
            (Awaiting::Accept(pending), _) if mutant::on(Mutant::FailedIsCommitted) => {
                let guess = self.guess(&pending.accept);
                self.accepted(*pending, guess, effects);
            }
            (Awaiting::Run(pending), StoreOutcome::Accepted(accepted)) => {
                self.run_accepted(*pending, accepted, effects);
            }
            (Awaiting::RunEnd(id), _) => self.run_ended(now, id, effects),
            (Awaiting::Open(id), StoreOutcome::Opened(Ok(placed))) => self.opened(id, placed),
            // It was to begin beyond the end of its log: its subscription finds no place, and is told so.
            (Awaiting::Open(id), StoreOutcome::Opened(Err(_))) => drop(self.messages.close(id)),
            (Awaiting::Subscribe(session, sub), _) => self.subscribed(session, &sub, effects),
            (Awaiting::Group(id, receipts), _) => {
                self.messages.group_kept(id);
                self.tell_receipts(receipts);
            }
            (Awaiting::TopicEnd(name), outcome) => {
                self.topic_ended(&name, outcome == StoreOutcome::Ended(true), effects);
            }
            (Awaiting::TopicCleared(name), outcome) => {
                let done = matches!(outcome, StoreOutcome::Count { more: false, .. });
                self.topic_cleared(&name, done, effects);
            }
            (Awaiting::Asked(asker), _) => effects.push(asker.answer(Ok(Answer::Empty))),
            (Awaiting::Renewal(renewal), _) => self.renewed(*renewal, effects),
            (Awaiting::Withdrawal(withdrawal), _) => self.withdrawn(*withdrawal, effects),
            (Awaiting::Owed(_), _) => self.messages.owed.paid(),
            (Awaiting::Pushes(pushes), _) => self.clear_pushes(pushes),
            (Awaiting::Answer(conn, request, answer), _) => {
                effects.push(crate::respond(conn, request, *answer));
            }
            (Awaiting::Status(question), _) => self.read_status(*question, effects),
            (Awaiting::Hello(conn, request, answer), _) => self.welcome(conn, request, answer, effects),
            (Awaiting::Revive(asker, log, seqs), StoreOutcome::Revived(found)) => {
                self.revived(asker, &log, &seqs, found, effects);
            }
            (Awaiting::DropDead(asker), StoreOutcome::Count { rows, .. }) => {
                self.dead_dropped(asker, rows, effects);
            }
            (Awaiting::Joined(member, invite), _) => {
                self.roll.redeemed(&invite);
                effects.push(Effect::Note(Note::Joined { member, invite }));
            }
            (Awaiting::Operated(id, answer), _) => {
                effects.push(Effect::Operated { id, outcome: Ok(*answer) });
            }
            (Awaiting::Refused(id, error), _) => {
                effects.push(Effect::Operated { id, outcome: Err(*error) });
            }
            (Awaiting::Granted(id, granted), _) => {
                let (answer, grant) = *granted;
                self.granted(id, answer, grant, effects);
            }
            (Awaiting::Evacuate(session, member), StoreOutcome::Evacuated { moved, failed, next }) => {
                self.evacuated(session, member, moved, failed, next, effects);
            }
            (Awaiting::Prune(log, lane), StoreOutcome::Pruned { through, more }) => {
                self.pruned(&log, lane, through, more);
            }
            _ => {}
        }
    }

    /// Nothing up to `through` that was still open is on disk.
    pub(crate) fn failed(&mut self, now: Millis, through: WriteId, effects: &mut Vec<Effect>) {
        if mutant::on(Mutant::FailedIsCommitted) {
            return self.committed(now, through, Vec::new(), effects);
        }
        self.store_is(false);
        self.settled_write = self.settled_write.max(through);
        // What nobody waited for is lost as well: whoever is here is told to the store again in a while.
        let mut again = Vec::new();
        for (session, lease) in self.leases.iter_mut().filter(|(_, lease)| lease.touched) {
            (lease.dirty, lease.stored) = (true, now);
            again.push(*session);
        }
        for session in again {
            self.reschedule(session);
        }
        // What lost its claim was handed out before what waits for one.
        let younger = match mutant::on(Mutant::UnclaimedGoesLast) {
            true => Vec::new(),
            false => std::mem::take(&mut self.messages.parked),
        };
        while let Some((_, who)) = self.next_awaiting(through) {
            self.not_written(now, who, effects);
        }
        self.messages.parked.extend(younger);
        // Whoever was about to be told that a thing is settled believed in a write that is lost: what it said is
        // written again first.
        self.messages.urgent |= !self.messages.answers.is_empty() || !self.messages.hellos.is_empty();
    }

    fn not_written(&mut self, now: Millis, who: Awaiting, effects: &mut Vec<Effect>) {
        let mut refuse = |conn, request, error: WireError| {
            effects.push(Effect::Respond { conn, request, outcome: Err(error) });
        };
        match who {
            Awaiting::Lease(session) => match self.leases.get(&session).map(|lease| &lease.state) {
                Some(State::Beginning(_)) => self.not_begun(session, effects),
                Some(State::Returning(_)) => self.returned(now, session, effects),
                Some(State::Ending(..)) => self.not_ended(now, session, effects),
                _ => {}
            },
            Awaiting::Accept(pending) if is_answered_early(&pending.accept) => {}
            Awaiting::Accept(pending) => refuse(pending.conn, pending.request, unavailable()),
            Awaiting::Run(pending) => {
                self.run_not_accepted(&pending);
                refuse(pending.conn, pending.request, unavailable());
            }
            Awaiting::RunEnd(id) => self.run_not_ended(now, id, effects),
            Awaiting::Topic(name, told) => self.forget_topic(now, &name, told),
            Awaiting::TopicEnd(name) => self.not_deleted(&name, &unavailable(), effects),
            Awaiting::TopicCleared(name) => self.clear_later(&name),
            Awaiting::Asked(asker) => effects.push(asker.answer(Err(unconfirmed()))),
            Awaiting::Owed(write) => self.owe_again(now, *write),
            Awaiting::Floor(id) => {
                if let Some(reading) = self.messages.readings.get_mut(&id) {
                    reading.floor_told = UNTOLD;
                    self.messages.lagging.insert(id);
                }
            }
            Awaiting::Open(id) => drop(self.messages.close(id)),
            Awaiting::Subscribe(session, sub) => self.not_subscribed(session, &sub, effects),
            Awaiting::Group(id, receipts) => self.group_lost(now, id, receipts),
            Awaiting::Pushes(pushes) => self.messages.parked.extend(pushes),
            Awaiting::Answer(conn, request, answer) => {
                refuse(conn, request, unconfirmed());
                if let Answer::Fetch(pushes) = *answer {
                    self.push_instead(pushes);
                }
            }
            // What failed was not accepted, which is what the store says of it.
            Awaiting::Status(question) => self.read_status(*question, effects),
            Awaiting::Hello(conn, request, mut answer) => {
                // What was said to be settled is not: the client has it in hand and says so again.
                if let Some(reconcile) = &mut answer.reconcile {
                    crate::messages::reconcile::unsettle(reconcile);
                }
                self.welcome(conn, request, answer, effects);
            }
            Awaiting::Revive(asker, _, seqs) => {
                effects.push(asker.answer(Err(unavailable())));
                self.messages.reviving = self.messages.reviving.saturating_sub(seqs.len());
            }
            Awaiting::DropDead(asker) => effects.push(asker.answer(Err(unavailable()))),
            Awaiting::Renewal(renewal) => self.not_renewed(*renewal, effects),
            Awaiting::Withdrawal(withdrawal) => self.not_withdrawn(*withdrawal, effects),
            Awaiting::Joined(member, invite) => self.not_joined(member, &invite, effects),
            Awaiting::Operated(id, _) => {
                effects.push(Effect::Operated { id, outcome: Err(unconfirmed()) });
            }
            Awaiting::Refused(id, error) => {
                effects.push(Effect::Operated { id, outcome: Err(*error) });
            }
            Awaiting::Granted(id, granted) => {
                let error = if self.roll.not_granted(&granted.1) { unconfirmed() } else { unavailable() };
                effects.push(Effect::Operated { id, outcome: Err(error) });
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
        if self.store_sound == sound {
            return;
        }
        self.store_sound = sound;
        self.health_changed();
    }

    fn next_awaiting(&mut self, through: WriteId) -> Option<(WriteId, Awaiting)> {
        self.awaiting.pop_front_if(|(id, _)| *id <= through)
    }

    /// Tells the store what a lease looks like now.
    pub(crate) fn store_particulars(&mut self, now: Millis, session: SessionKey, effects: &mut Vec<Effect>) {
        let Some(peer) = self.presence.get(&session) else { return };
        let peer = peer.get();
        let Some(lease) = self.leases.get_mut(&session) else { return };
        lease.dirty = false;
        lease.stored = now;
        let record = LeaseRecord {
            session,
            lease: lease.id.clone(),
            member: lease.member,
            instance: lease.instance.clone(),
            profile: peer.profile(),
            caps: lease.caps.clone(),
            joined_at: peer.joined_at.get(),
        };
        self.write(StoreWrite::PutLease(Box::new(record)), effects);
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
