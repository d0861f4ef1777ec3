//! Accepting messages: who may send where, and what the store's verdict means.

use std::sync::Arc;

use tenure_kit::mutant::{self, Mutant};
use tenure_kit::time::Millis;
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::ids::SessionKey;
use tenure_proto::limits::TOPICS_MAX;
use tenure_proto::log::LogName;
use tenure_proto::message::{Address, Fallback, Recipient, SendResult, Sender};
use tenure_proto::name::TopicName;
use tenure_proto::number::U53;

use crate::Mesh;
use crate::access::Right;
use crate::effect::{Answer, Effect, Note};
use crate::messages::accept::{Accept, Accepted, Remembered, Route, inbox_is_full};
use crate::messages::deleting::is_going;
use crate::messages::envelope::{Entry, Lane};
use crate::messages::log::LaneState;
use crate::messages::prepare::Prepared;
use crate::reply::{Caller, Reply, ReplyTo, lease_ended};
use crate::sessions::lease::State;
use crate::store::pending::Awaiting;
use crate::store::record::{StoreWrite, TopicRecord, TopicState};

/// A message that waits for the store's verdict.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) to: ReplyTo,
    pub(crate) accept: Arc<Accept>,
}

impl Mesh {
    pub(crate) fn send(&mut self, caller: &Caller, prepared: Prepared) -> Result<Reply, WireError> {
        let session = caller.session;
        let lease = self.sessions.lease(&session).ok_or_else(lease_ended)?;
        let Prepared { mut envelope, fingerprint, refusal } = prepared;
        let name = self.sessions.name_of(&session);
        envelope.from = Sender { member: lease.member, session, name };
        self.stamp(&mut envelope);
        let mut refusal =
            self.may(session, Right::Send).err().or(refusal).or_else(|| self.count_send(session));
        let counted = refusal.is_none();
        let route = match &envelope.to {
            Address::Session(to) => self.route_to_session(to),
            Address::Member(member) => match self.knows_member(member) {
                true => Route::Log(LogName::Member(*member)),
                false => Route::AbsentMember(*member),
            },
            // A message that is refused makes no topic.
            Address::Topic(topic) if refusal.is_some() => Route::Log(LogName::Topic(topic.clone(), 0)),
            Address::Topic(topic) => match self.partition(session, topic, envelope.key.as_deref()) {
                Ok(partition) => Route::Log(LogName::Topic(topic.clone(), partition)),
                Err(error) => {
                    refusal = Some(error);
                    Route::Log(LogName::Topic(topic.clone(), 0))
                }
            },
        };
        let refusal = refusal.or_else(|| self.inbox_full(&route, envelope.fallback));
        if counted && refusal.is_some() {
            self.uncount_send(session);
        }
        let remember_until = self.config.remember_until(self.clock.wall());
        let full = match (&route, envelope.fallback) {
            // Only the store knows who vouched for it.
            (Route::Absent(_), Fallback::Member) => self.messages.full_members(),
            _ => Vec::new(),
        };
        let envelope = Arc::new(envelope);
        let run = None;
        let accept = Arc::new(Accept { envelope, fingerprint, route, refusal, remember_until, full, run });
        if is_answered_early(&accept) {
            let guess = self.guess(&accept);
            self.answer_send(caller.reply_to(), &accept, guess);
        }
        if let (Route::Log(log), None) = (&accept.route, &accept.refusal)
            && log.is_inbox()
        {
            self.place_inbox(log, Lane::of(log, accept.envelope.priority));
        }
        let pending = Pending { to: caller.reply_to(), accept: accept.clone() };
        self.write_for(Awaiting::Accept(Box::new(pending)), StoreWrite::Accept(accept));
        Ok(Reply::Later)
    }

    pub(crate) fn route_to_session(&self, to: &SessionKey) -> Route {
        match self.sessions.lease(to).map(|lease| &lease.state) {
            None | Some(State::Ending(..)) => Route::Absent(*to),
            Some(_) => Route::Log(LogName::Session(*to)),
        }
    }

    pub(crate) fn knows_member(&self, member: &tenure_proto::MemberKey) -> bool {
        self.sessions.vouches(member) || self.messages.logs.get(&LogName::Member(*member)).is_some()
    }

    /// The partition of a topic that a message goes to; the first message makes the topic.
    fn partition(
        &mut self,
        session: SessionKey,
        name: &TopicName,
        key: Option<&str>,
    ) -> Result<u32, WireError> {
        self.ensure_topic(session, name)?;
        let Some(topic) = self.messages.topics.get_mut(name) else { return Ok(0) };
        let partitions = topic.record.partitions.max(1);
        if let Some(key) = key {
            return Ok((spread(key.as_bytes()) % u64::from(partitions)) as u32);
        }
        topic.turn = (topic.turn + 1) % partitions;
        Ok(topic.turn)
    }

    /// Makes a topic of one partition if there is none of that name.
    pub(crate) fn ensure_topic(&mut self, session: SessionKey, name: &TopicName) -> Result<(), WireError> {
        if self.messages.deleting.contains_key(name) {
            return Err(is_going(name));
        }
        if self.messages.topics.contains_key(name) {
            return Ok(());
        }
        self.make_topic(session, name.clone(), 1, None)
    }

    pub(crate) fn make_topic(
        &mut self,
        session: SessionKey,
        name: TopicName,
        partitions: u32,
        retention_ms: Option<u64>,
    ) -> Result<(), WireError> {
        let owner = self.sessions.lease(&session).map(|lease| lease.member);
        if self.messages.topics.len() + self.messages.deleting.len() >= TOPICS_MAX {
            let text =
                format!("this mesh has {TOPICS_MAX} topics, which is as many as it may; delete one first");
            return Err(WireError::new(ErrorCode::Busy, text));
        }
        let most = self.config.max_topics_per_member;
        if owner.and_then(|owner| self.messages.makers.get(&owner)).is_some_and(|made| *made >= most) {
            let text =
                format!("this member has made {most} topics, which is as many as it may; delete one first");
            return Err(WireError::new(ErrorCode::Busy, text));
        }
        let (created_at, state) = (self.clock.wall(), TopicState::Living);
        let record = TopicRecord { name: name.clone(), partitions, retention_ms, created_at, owner, state };
        let told = self.messages.unearth(&name, partitions);
        self.messages.add_topic(record.clone(), 0);
        self.write_for(Awaiting::Topic(name, told), StoreWrite::PutTopic(record));
        Ok(())
    }

    /// A topic that the store could not take never was, unless something has been put into it since.
    pub(crate) fn forget_topic(&mut self, now: Millis, name: &TopicName, told: bool) {
        let Some(record) = self.messages.topics.get(name).map(|topic| topic.record.clone()) else { return };
        let lane = |partition| self.messages.logs.lane(&LogName::Topic(name.clone(), partition), Lane(0));
        let is_used = |lane: &LaneState| lane.end > lane.restored_end || !lane.groups.is_empty();
        if (0..record.partitions).filter_map(lane).any(is_used) {
            self.owe(now, StoreWrite::PutTopic(record));
        } else {
            self.messages.remove_topic(name);
            self.messages.entomb(name, record.partitions, told);
        }
    }

    /// An inbox that holds as much as it may.
    pub(crate) fn inbox_full(&self, route: &Route, fallback: Fallback) -> Option<WireError> {
        let log = match route {
            Route::Log(log) if log.is_inbox() => log.clone(),
            Route::Absent(session) if fallback == Fallback::Hold => LogName::Session(*session),
            _ => return None,
        };
        self.messages.is_full(&log).then(inbox_is_full)
    }

    /// The store has decided.
    pub(crate) fn accepted(&mut self, pending: Pending, accepted: Accepted) {
        let Pending { to, accept } = pending;
        if let Accepted::Fresh { log, lane, seq } = &accepted {
            self.appended(&Arc::new(Entry::new(log.clone(), *lane, *seq, accept.envelope.clone())));
        }
        if !matches!(accepted, Accepted::Fresh { .. }) && accept.refusal.is_none() {
            self.uncount_send(accept.envelope.from.session);
        }
        if !is_answered_early(&accept) {
            self.answer_send(to, &accept, accepted);
        }
    }

    /// What the store might decide, for mutants that do not wait for it.
    pub(crate) fn guess(&self, accept: &Accept) -> Accepted {
        let log = match &accept.route {
            Route::Log(log) => log.clone(),
            Route::Absent(session) => LogName::Session(*session),
            Route::AbsentMember(member) => LogName::Member(*member),
        };
        let (lane, seq) = (Lane::of(&log, accept.envelope.priority), self.messages.end_of(&log) + 1);
        accept.refusal.clone().map_or(Accepted::Fresh { log, lane, seq }, Accepted::Refused)
    }

    fn answer_send(&mut self, to: ReplyTo, accept: &Accept, accepted: Accepted) {
        let envelope = &accept.envelope;
        let session = envelope.from.session;
        let outcome = match accepted {
            Accepted::Fresh { log, seq, .. } => Ok(SendResult {
                id: envelope.id,
                log: log.spelled(),
                seq: U53::saturating(seq),
                duplicate: false,
                recipient: self.recipient(&envelope.to),
                first_seen_at: None,
                history_available: None,
            }),
            Accepted::Duplicate(Remembered { id, log, seq, first_seen_at, available, .. }) => {
                self.effects.push_back(Effect::Note(Note::AcceptDuplicate { session }));
                Ok(SendResult {
                    id,
                    log: log.spelled(),
                    seq: U53::saturating(seq),
                    duplicate: true,
                    recipient: self.recipient(&envelope.to),
                    first_seen_at: Some(U53::saturating(first_seen_at)),
                    history_available: Some(available),
                })
            }
            Accepted::Reused(known) => {
                self.effects.push_back(Effect::Note(Note::AcceptConflict { session }));
                let text = "this clientMessageId was used for another message; give each its own";
                let details =
                    serde_json::json!({"accepted": known.prefix(), "presented": accept.fingerprint.prefix()});
                Err(WireError::new(ErrorCode::IdempotencyKeyReused, text).with_details(details))
            }
            Accepted::Refused(error) => Err(error),
        };
        self.answer(to, outcome.map(|result| Answer::Send(Box::new(result))));
    }

    fn recipient(&self, to: &Address) -> Option<Recipient> {
        let Address::Session(to) = to else { return None };
        let here = matches!(self.route_to_session(to), Route::Log(_));
        Some(if here { Recipient::Online } else { Recipient::Gone })
    }

    /// An entry is in its log: whoever reads that has something to read.
    pub(crate) fn appended(&mut self, entry: &Arc<Entry>) {
        if entry.log.is_inbox() {
            self.ensure_inbox(&entry.log);
        }
        self.messages.logs.append(entry);
        self.messages.note_if_full(&entry.log);
        self.messages.grown(&entry.log, entry.lane);
    }
}

/// Whether a mutant has answered a send before the store did.
pub(crate) fn is_answered_early(accept: &Accept) -> bool {
    mutant::on(Mutant::AnswerBeforeSync) && matches!(accept.route, Route::Log(_))
}

/// A number that is the same for the same key in every program and version: FNV-1a.
fn spread(key: &[u8]) -> u64 {
    key.iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
