//! Requests that are answered from what the store has committed, and entries that readers need from disk.

use tenure_kit::mutant::{self, Mutant};
use tenure_kit::time::Millis;
use tenure_proto::dead::{DeadDropParams, DeadDropResult, DeadListParams, DeadRetryParams, DeadRetryResult};
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::ids::{MemberKey, SessionKey};
use tenure_proto::limits::PAGE;
use tenure_proto::log::LogName;
use tenure_proto::message::{HistoryParams, SendStatus, SendStatusParams, SendStatusResult};
use tenure_proto::name::GroupName;
use tenure_proto::number::U53;
use tenure_proto::subscribe::FetchParams;
use tenure_proto::topic::{GroupsListResult, TopicsListResult};

use crate::Mesh;
use crate::access::admin::{OperateId, Operated};
use crate::effect::{Answer, Effect, ReadId};
use crate::messages::deliver::RETRY_MS;
use crate::messages::envelope::{Entry, Lane};
use crate::messages::group::OPEN_MAX;
use crate::messages::proof::Proof;
use crate::messages::pull::Pull;
use crate::messages::subs::Fetch;
use crate::reply::{Caller, Reply, ReplyTo, lease_ended};
use crate::runs::callee::Ask;
use crate::sessions::positions::{self, Comparison};
use crate::store::pending::{Awaiting, unreadable};
use crate::store::record::{DamagedEntry, Fate, GroupId, StoreFound, StoreRead, StoreWrite};

/// What a read is for.
#[derive(Debug)]
pub(crate) enum Purpose {
    /// New entries for a reader that lags.
    Page(GroupId),
    /// Entries to be handed out again.
    Again(GroupId, Vec<u64>),
    /// `history`.
    History(ReplyTo, LogName),
    /// `send.status`.
    Status(ReplyTo, SendStatusParams),
    /// `dead.list`.
    Dead(ReplyTo),
    /// `topics.list`: the answer, and which group each place is for.
    Topics(ReplyTo, TopicsListResult, Vec<(usize, usize)>),
    /// `groups.list`: likewise.
    Groups(ReplyTo, GroupsListResult, Vec<usize>),
    /// `health`.
    Health(ReplyTo, Box<tenure_proto::method::HealthResult>),
    /// Entries whose time may be over.
    Expired,
    /// A run that is not in memory.
    Run(Caller, Ask),
    /// Ends of leases.
    LeaseEnds(OperateId),
    /// The audit log.
    Audit(OperateId),
    /// A hello that lists where its client is, or what it has in hand.
    Compare(Box<Comparison>),
    /// A call with tags of messages that are not in memory.
    Prove(Box<Proof>),
}

/// A `send.status` that waits for the store to have decided about all sends that came before it.
#[derive(Debug)]
pub(crate) struct StatusQuestion {
    to: ReplyTo,
    /// Whose ids are meant.
    member: MemberKey,
    params: SendStatusParams,
}

impl Mesh {
    /// The store has read what it was asked for.
    pub(crate) fn found(&mut self, id: ReadId, found: StoreFound) {
        let Some(purpose) = self.store.take_read(id) else { return };
        let answer = match (purpose, found) {
            (Purpose::Page(id), StoreFound::Page { entries, damaged }) => {
                self.met_damage_in(id, &damaged);
                self.messages.paged(id, entries, &damaged, self.clock.wall());
                return self.rouse_fetches(id);
            }
            (Purpose::Again(id, seqs), StoreFound::Page { entries, damaged }) => {
                self.met_damage_in(id, &damaged);
                for (seq, holder) in self.messages.reread(id, &seqs, entries, &damaged, self.clock.wall()) {
                    self.released(id, seq, holder);
                }
                self.rouse_holders(id, &seqs);
                self.forget_bodies(id, &seqs);
                return self.rouse_fetches(id);
            }
            (Purpose::Page(id) | Purpose::Again(id, _), _) => {
                return self.messages.unread(id, self.clock.now().plus(RETRY_MS));
            }
            (Purpose::Expired, StoreFound::Expired(entries)) => return self.expired(entries),
            (Purpose::Expired, _) => return self.expired(Vec::new()),
            (Purpose::Compare(comparison), found) => {
                return self.compared(*comparison, positions::ids(found));
            }
            (Purpose::Prove(proof), found) => return self.proved(*proof, positions::ids(found)),
            (Purpose::Run(caller, ask), found) => (caller.reply_to(), self.found_run(&caller, ask, found)),
            (Purpose::History(to, log), StoreFound::History { mut entries, mut damaged, next }) => {
                // As with pages: what its commit has not told us of is not history yet.
                let (found, logs) = (entries.len(), &self.messages.logs);
                let is_told = |entry: &Entry| {
                    logs.lane(&entry.log, entry.lane).is_some_and(|lane| entry.seq <= lane.end)
                };
                entries.retain(|entry| is_told(entry));
                let next = next.filter(|_| entries.len() == found);
                let through = entries.last().filter(|_| next.is_none() && entries.len() < found);
                let through = through.map_or(u64::MAX, |entry| entry.seq);
                damaged.retain(|seq| *seq <= through);
                self.met_damage(&log, damaged.iter().copied());
                (to, Ok(Answer::History((entries, damaged, next))))
            }
            (Purpose::Status(to, params), StoreFound::Fates(fates)) => {
                (to, Ok(Answer::SendStatus(statuses(params, fates))))
            }
            (Purpose::Dead(to), StoreFound::Dead { letters, next }) => {
                (to, Ok(Answer::DeadList((letters, next))))
            }
            (Purpose::Audit(id), StoreFound::Audit(rows, more)) => {
                return self
                    .effects
                    .push_back(Effect::Operated { id, outcome: Ok(Operated::Audit(rows, more)) });
            }
            (Purpose::LeaseEnds(id), StoreFound::LeaseEnds(ends, more)) => {
                return self
                    .effects
                    .push_back(Effect::Operated { id, outcome: Ok(Operated::LeaseEnds(ends, more)) });
            }
            (Purpose::Audit(id) | Purpose::LeaseEnds(id), _) => {
                return self.effects.push_back(Effect::Operated { id, outcome: Err(unreadable()) });
            }
            (Purpose::Topics(to, mut result, places), StoreFound::Oldest(sent)) => {
                for ((topic, group), sent) in places.into_iter().zip(sent) {
                    let group = result.topics.get_mut(topic).and_then(|topic| topic.groups.get_mut(group));
                    self.note_oldest(group, sent);
                }
                (to, Ok(Answer::TopicsList(result)))
            }
            (Purpose::Groups(to, mut result, places), StoreFound::Oldest(sent)) => {
                for (group, sent) in places.into_iter().zip(sent) {
                    self.note_oldest(result.groups.get_mut(group), sent);
                }
                (to, Ok(Answer::GroupsList(result)))
            }
            (Purpose::Health(to, mut health), StoreFound::Oldest(sent)) => {
                let oldest = sent.into_iter().flatten().min();
                health.groups.oldest_ms =
                    U53::saturating(oldest.map_or(0, |at| self.clock.wall().saturating_sub(at)));
                (to, Ok(Answer::Health(health)))
            }
            (
                Purpose::History(to, _)
                | Purpose::Status(to, _)
                | Purpose::Health(to, _)
                | Purpose::Dead(to)
                | Purpose::Topics(to, ..)
                | Purpose::Groups(to, ..),
                _,
            ) => (to, Err(unreadable())),
        };
        let (to, outcome) = answer;
        self.answer(to, outcome);
    }

    pub(crate) fn history(&mut self, caller: &Caller, params: &HistoryParams) -> Result<Reply, WireError> {
        let log = self.readable(caller.session, &params.log)?;
        let limit = page(params.limit)?;
        let from = params.from.map_or(1, U53::get);
        let end = self
            .messages
            .logs
            .get(&log)
            .map_or(0, |log| log.lanes.iter().map(|lane| lane.end).max().unwrap_or(0));
        if from > end + 1 {
            return Err(past_the_end(&log, end + 1));
        }
        let purpose = Purpose::History(caller.reply_to(), log.clone());
        self.read(purpose, StoreRead::History { log, from, limit, bytes: self.config.max_payload });
        Ok(Reply::Later)
    }

    fn met_damage_in(&mut self, group: GroupId, damaged: &[DamagedEntry]) {
        let Some(log) = self.messages.readings.get(&group).map(|reading| reading.record.log.clone()) else {
            return;
        };
        self.met_damage(&log, damaged.iter().map(|damaged| damaged.seq));
    }

    /// The log that a session may read: a topic, its own inbox or its member's.
    fn readable(&self, session: SessionKey, name: &str) -> Result<LogName, WireError> {
        let log: LogName = name.parse()?;
        let member = self.sessions.lease(&session).map(|lease| lease.member);
        let allowed = match &log {
            LogName::Session(owner) => *owner == session,
            LogName::Member(owner) => Some(*owner) == member,
            LogName::Topic(topic, partition) => {
                let known = self.messages.topics.get(topic);
                if known.is_none_or(|topic| *partition >= topic.record.partitions) {
                    return Err(WireError::new(ErrorCode::NotFound, format!("there is no log {log}")));
                }
                true
            }
        };
        let foreign = || WireError::new(ErrorCode::Forbidden, "an inbox is read by its owner only");
        allowed.then_some(log).ok_or_else(foreign)
    }

    /// `send.status`: the store is asked when everything that was under way when the question came is on disk or has
    /// failed, from whatever socket that was. Else a send that the broker is about to accept would be `unknown`.
    pub(crate) fn send_status(
        &mut self,
        now: Millis,
        caller: &Caller,
        params: SendStatusParams,
    ) -> Result<Reply, WireError> {
        if params.client_message_ids.len() > PAGE {
            return Err(WireError::bad_request(format!("at most {PAGE} ids in one request")));
        }
        let lease = self.sessions.lease(&caller.session).ok_or_else(lease_ended)?;
        let question = StatusQuestion { to: caller.reply_to(), member: lease.member, params };
        if mutant::on(Mutant::StatusDoesNotWait) {
            self.read_status(question);
        } else {
            self.await_all(Awaiting::Status(Box::new(question)), now);
        }
        Ok(Reply::Later)
    }

    /// Nothing that a `send.status` must know of is under way any more.
    pub(crate) fn read_status(&mut self, question: StatusQuestion) {
        let StatusQuestion { to, member, params } = question;
        let member = crate::messages::accept::scope(member);
        let read = StoreRead::Fates { member, ids: params.client_message_ids.clone() };
        self.read(Purpose::Status(to, params), read);
    }

    pub(crate) fn fetch(&mut self, caller: &Caller, params: &FetchParams) -> Result<Reply, WireError> {
        let session = caller.session;
        let limit = page(Some(params.limit))? as usize;
        let moment = self.moment();
        let lease = self.sessions.lease_mut(&session).ok_or_else(lease_ended)?;
        let Some(sub) = lease.subs.get_mut(&params.sub_id) else {
            if crate::messages::reconcile_plan::is_implicit(&params.sub_id) {
                // Nothing was ever put into it.
                return Ok(Reply::Now(Answer::Fetch(Vec::new())));
            }
            let text = "this session has no such subscription";
            return Err(WireError::new(ErrorCode::NotFound, text));
        };
        if sub.opening.is_some() {
            let text = "the subscription is still being made; try again";
            return Err(WireError::new(ErrorCode::Busy, text).retry_after(100));
        }
        if sub.ack_mode == tenure_proto::subscribe::AckMode::Auto {
            return Err(WireError::bad_request("fetch needs a subscription with manual acks"));
        }
        let mut pull = Pull { messages: &mut self.messages, runs: &mut self.runs, moment };
        let (pushes, loading) = pull.fetch(session, &params.sub_id, sub, limit);
        if pushes.is_empty() && (loading || self.is_claiming(session, &params.sub_id)) {
            if let Some(lease) = self.sessions.lease_mut(&session)
                && let Some(sub) = lease.subs.get_mut(&params.sub_id)
            {
                sub.fetches.push_back(Fetch { to: caller.reply_to(), limit });
                lease.subs.eager.insert(params.sub_id.clone());
            }
            self.rouse(session);
            return Ok(Reply::Later);
        }
        if self.messages.is_contended(&pushes) {
            self.messages.urgent = true;
            return Ok(self.after_round(caller, true, Answer::Fetch(pushes)));
        }
        Ok(Reply::Now(Answer::Fetch(pushes)))
    }

    pub(crate) fn dead_list(&mut self, caller: &Caller, params: &DeadListParams) -> Result<Reply, WireError> {
        let log = self.readable(caller.session, &params.log)?;
        let (after, limit) = (params.after.map_or(0, U53::get), page(params.limit)?);
        Ok(self.list_dead(caller.reply_to(), log, after, limit))
    }

    /// Reads dead letters for somebody who may see them.
    pub(crate) fn list_dead(&mut self, to: ReplyTo, log: LogName, after: u64, limit: u32) -> Reply {
        let read = StoreRead::Dead { log, after, limit, bytes: self.config.max_payload };
        self.read(Purpose::Dead(to), read);
        Reply::Later
    }

    pub(crate) fn dead_retry(
        &mut self,
        caller: &Caller,
        params: &DeadRetryParams,
    ) -> Result<Reply, WireError> {
        let log = self.readable(caller.session, &params.log)?;
        self.retry_dead(caller.reply_to(), log, &params.seqs)
    }

    /// Takes dead letters out again for somebody who may.
    pub(crate) fn retry_dead(
        &mut self,
        to: ReplyTo,
        log: LogName,
        asked: &[U53],
    ) -> Result<Reply, WireError> {
        let seqs = self.check_retry(&log, asked)?;
        // Only what has a reader to go back to: an inbox always has, a topic has its crews.
        let crews = match &log {
            LogName::Topic(topic, _) => {
                Some(self.messages.crews.after(topic, None).map(|(name, _)| name.clone()).collect())
            }
            _ => None,
        };
        self.messages.reviving += seqs.len();
        let who = Awaiting::Revive(to, log.clone(), seqs.clone());
        self.write_for(who, StoreWrite::Revive { log, seqs, crews });
        Ok(Reply::Later)
    }

    /// The dead letters that are to be put back, if that may be asked and there is room for them.
    pub(crate) fn check_retry(&self, log: &LogName, asked: &[U53]) -> Result<Vec<u64>, WireError> {
        let seqs = seqs(asked)?;
        self.check_room(log, seqs.len())?;
        Ok(seqs)
    }

    /// Refuses to bring back more than the readers of a log may have open: [`OPEN_MAX`] each.
    fn check_room(&self, log: &LogName, more: usize) -> Result<(), WireError> {
        let readers = match log {
            LogName::Topic(topic, partition) => {
                let places = self.messages.crews.after(topic, None).flat_map(|(_, places)| places);
                places.filter(|(of, _)| of == partition).map(|(_, id)| *id).collect()
            }
            _ => self.messages.places(log),
        };
        let more = more + self.messages.reviving;
        let readers = readers.iter().filter_map(|id| self.messages.readings.get(id));
        let full = readers.map(|r| r.group.open_len() + r.spared.len()).any(|open| open + more > OPEN_MAX);
        if full {
            let text = format!("a reader of {log} has as many entries open as it may; settle some first");
            return Err(WireError::new(ErrorCode::Busy, text).retry_after(RETRY_MS));
        }
        Ok(())
    }

    /// Dead letters are back in their log: they are handed out next.
    pub(crate) fn revived(
        &mut self,
        to: ReplyTo,
        log: &LogName,
        asked: &[u64],
        found: Vec<(Lane, u64, Option<GroupName>, u32)>,
    ) {
        self.messages.reviving = self.messages.reviving.saturating_sub(asked.len());
        if log.is_inbox() && !found.is_empty() {
            self.ensure_inbox(log);
        }
        let mut retried = Vec::new();
        for (lane, seq, crew, attempts) in found {
            let id = match &crew {
                Some(crew) => self.messages.crews.get(log, crew),
                None => self.messages.logs.lane(log, lane).and_then(|lane| lane.groups.first().copied()),
            };
            let Some(id) = id else { continue };
            if self.messages.revive(id, seq, attempts) {
                retried.push(seq);
            }
        }
        self.messages.urgent = true;
        let missing =
            asked.iter().filter(|seq| !retried.contains(seq)).copied().map(U53::saturating).collect();
        let retried = retried.into_iter().map(U53::saturating).collect();
        self.answer(to, Ok(Answer::DeadRetry(DeadRetryResult { retried, missing })));
    }

    pub(crate) fn dead_drop(&mut self, caller: &Caller, params: &DeadDropParams) -> Result<Reply, WireError> {
        let log = self.readable(caller.session, &params.log)?;
        self.drop_dead(caller.reply_to(), log, &params.seqs)
    }

    /// Drops dead letters for somebody who may.
    pub(crate) fn drop_dead(&mut self, to: ReplyTo, log: LogName, asked: &[U53]) -> Result<Reply, WireError> {
        let seqs = seqs(asked)?;
        self.write_for(Awaiting::DropDead(to), StoreWrite::DropDead { log, seqs });
        Ok(Reply::Later)
    }

    pub(crate) fn dead_dropped(&mut self, to: ReplyTo, rows: u64) {
        let answer = Answer::DeadDrop(DeadDropResult { dropped: U53::saturating(rows) });
        self.answer(to, Ok(answer));
    }
}

fn statuses(params: SendStatusParams, fates: Vec<Fate>) -> SendStatusResult {
    let pairs = params.client_message_ids.into_iter().zip(fates);
    let status = |(client_message_id, fate)| {
        let Fate { accepted, state, reason } = fate;
        let (id, fingerprint_prefix) = accepted.map(|(id, print)| (id, print.prefix())).unzip();
        SendStatus { client_message_id, id, state, reason, fingerprint_prefix }
    };
    SendStatusResult { statuses: pairs.map(status).collect() }
}

/// What somebody is told who would read from beyond the end of a log.
pub(crate) fn past_the_end(log: &LogName, next: u64) -> WireError {
    let text = format!("from is past the end of {log}, whose next seq is {next}");
    let details = serde_json::json!({"field": "from", "against": "next", "next": next});
    WireError::bad_request(text).with_details(details)
}

/// How many a page may hold.
pub(crate) fn page(limit: Option<U53>) -> Result<u32, WireError> {
    match limit.map_or(PAGE as u64, U53::get) {
        limit @ 1..=256 => Ok(limit as u32),
        _ => Err(WireError::bad_request(format!("limit must be between 1 and {PAGE}"))),
    }
}

/// Seqs that a request names, if they are as many as one may.
pub(crate) fn seqs(seqs: &[U53]) -> Result<Vec<u64>, WireError> {
    if seqs.is_empty() || seqs.len() > PAGE {
        return Err(WireError::bad_request(format!("name between 1 and {PAGE} seqs")));
    }
    Ok(seqs.iter().map(|seq| seq.get()).collect())
}
