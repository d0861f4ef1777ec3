//! Subscriptions: joining a topic's readers, and leaving them.

use std::collections::BTreeMap;

use tenure_kit::mutant::{self, Mutant};
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::event::EventBody;
use tenure_proto::hello::InboxChoice;
use tenure_proto::ids::{ConnId, MemberKey, SessionKey, SubId};
use tenure_proto::limits::{PREFETCH_MAX, SUBSCRIPTIONS_PER_SESSION};
use tenure_proto::log::LogName;
use tenure_proto::number::U53;
use tenure_proto::subscribe::{
    AckMode, DEFAULT_PREFETCH, From, SubscribeParams, SubscribeResult, SubscriptionEvent,
    SubscriptionEventKind, UnsubscribeParams,
};

use crate::Mesh;
use crate::effect::Answer;
use crate::messages::envelope::Lane;
use crate::messages::group::Holder;
use crate::messages::reads::past_the_end;
use crate::messages::subs::{INBOX, MEMBER, Source, Sub};
use crate::reply::{Caller, Reply, lease_ended};
use crate::store::pending::{Awaiting, unavailable};
use crate::store::record::{GroupId, GroupRecord, Placed, Reader, StoreWrite, SubRecord};

/// Where a place stands that the store is about to make: past everything.
const OPENING: u64 = u64::MAX;

impl Mesh {
    pub(crate) fn subscribe(
        &mut self,
        caller: &Caller,
        params: &SubscribeParams,
    ) -> Result<Reply, WireError> {
        let session = caller.session;
        self.may_owe()?;
        if params.prefetch == 0 || params.prefetch > PREFETCH_MAX {
            return Err(WireError::bad_request(format!("prefetch must be between 1 and {PREFETCH_MAX}")));
        }
        let lease = self.sessions.lease_mut(&session).ok_or_else(lease_ended)?;
        let SubscribeParams { topic, group, partition, prefetch, ack_mode, from } = params;
        if let Some((id, sub)) = lease.subs.same(topic, group.as_ref(), *partition) {
            if sub.prefetch != *prefetch || sub.ack_mode != *ack_mode {
                let text = "this session reads that already with other settings; unsubscribe first";
                return Err(WireError::bad_request(text));
            }
            let id = id.clone();
            if let Some(waiting) = lease.subs.get_mut(&id).and_then(|sub| sub.opening.as_mut()) {
                waiting.push(caller.reply_to());
                return Ok(Reply::Later);
            }
            return Ok(Reply::Now(Answer::Subscribe(self.subscribe_result(session, &id))));
        }
        if lease.subs.asked_for() >= SUBSCRIPTIONS_PER_SESSION {
            let text =
                format!("this session has {SUBSCRIPTIONS_PER_SESSION} subscriptions; unsubscribe one first");
            return Err(WireError::new(ErrorCode::Busy, text));
        }
        self.check_place(params)?;
        if let Some(drain) = &self.drain {
            return Err(drain.not_now(self.clock.now(), &session));
        }
        self.check_groups(session, topic, group.as_ref(), *partition)?;
        self.ensure_topic(session, topic)?;
        let source = Source::Topic { topic: topic.clone(), group: group.clone(), partition: *partition };
        let mut sub = Sub::new(source, *ack_mode, *prefetch);
        sub.opening = Some(vec![caller.reply_to()]);
        self.add_subscription(session, None, sub, |_| *from);
        Ok(Reply::Later)
    }

    /// Refuses a partition that is not there, and a beginning that is beyond the end.
    fn check_place(&self, params: &SubscribeParams) -> Result<(), WireError> {
        let partitions = self.messages.topics.get(&params.topic).map_or(1, |topic| topic.record.partitions);
        if let Some(partition) = params.partition.filter(|partition| *partition >= partitions) {
            let text =
                format!("the topic has {partitions} partitions, numbered from 0; there is no {partition}");
            return Err(WireError::bad_request(text));
        }
        let From::Seq(from) = params.from else { return Ok(()) };
        for partition in chosen(params.partition, partitions) {
            let log = LogName::Topic(params.topic.clone(), partition);
            let next = self.messages.end_of(&log) + 1;
            if from.get() > next {
                return Err(past_the_end(&log, next));
            }
        }
        Ok(())
    }

    /// A name that no subscription had before, in any history of the store: a lone reader's place is known again by its name.
    /// Clients bring names of their own, which may look like one of ours.
    pub(crate) fn new_sub_id(&mut self, session: SessionKey) -> Option<SubId> {
        loop {
            let number = self.next_number();
            let id = match mutant::on(Mutant::SubNameByNumber) {
                true => format!("s{}-{number}", self.numbering.boot().run),
                false => format!("s{:016x}-{number}", self.numbering.boot().random),
            };
            let id: SubId = id.parse().ok()?;
            if self.sessions.lease(&session)?.subs.get(&id).is_none() {
                return Some(id);
            }
        }
    }

    /// Gives a session a subscription: its places are made or joined, and the store is told.
    pub(crate) fn add_subscription(
        &mut self,
        session: SessionKey,
        name: Option<SubId>,
        mut sub: Sub,
        from: impl Fn(u32) -> From,
    ) -> Option<SubId> {
        let id = match name {
            Some(name) => name,
            None => self.new_sub_id(session)?,
        };
        let Source::Topic { topic, group, partition } = sub.source.clone() else { return None };
        let owner = self.sessions.lease(&session).filter(|_| group.is_some()).map(|lease| lease.member);
        let partitions = self.messages.topics.get(&topic).map_or(1, |topic| topic.record.partitions);
        for partition in chosen(partition, partitions) {
            let log = LogName::Topic(topic.clone(), partition);
            let reader = match &group {
                Some(name) => Reader::Shared(name.clone()),
                None => Reader::Private(session),
            };
            let crew = group.as_ref().and_then(|name| self.messages.crews.get(&log, name));
            let place = match crew {
                Some(place) => place,
                None => self.make_place(log, reader, owner, from(partition)),
            };
            if let Some(reading) = self.messages.readings.get_mut(&place) {
                reading.used_at = self.clock.wall();
            }
            self.messages.join(place, Holder { session, sub: id.clone() });
            sub.groups.push(place);
        }
        let record = SubRecord {
            session,
            sub: id.clone(),
            topic,
            group,
            partition,
            ack_mode: sub.ack_mode,
            prefetch: sub.prefetch,
        };
        self.sessions.lease_mut(&session)?.subs.insert(id.clone(), sub);
        let who = Awaiting::Subscribe(session, id.clone());
        self.write_for(who, StoreWrite::PutSub(Box::new(record)));
        Some(id)
    }

    /// Makes a place in a log; where exactly it begins is the store's word.
    fn make_place(&mut self, log: LogName, reader: Reader, owner: Option<MemberKey>, from: From) -> GroupId {
        let id = self.messages.next_group(self.numbering.boot().run);
        let record = GroupRecord { id, log, lane: Lane(0), reader, owner };
        // Until the store has answered it hands out nothing: it stands at the end of everything.
        self.messages.open(record.clone(), OPENING, self.clock.wall());
        let write = StoreWrite::OpenGroup { record, from, used_at: self.clock.wall() };
        self.write_for(Awaiting::Open(id), write);
        id
    }

    /// The store has made a place, and says where it begins.
    pub(crate) fn opened(&mut self, id: GroupId, placed: Placed) {
        let Some(old) = self.messages.close(id) else { return };
        self.messages.open(old.record, placed.cursor, old.used_at);
        if let Some(reading) = self.messages.readings.get_mut(&id) {
            reading.passed = placed.passed;
        }
        self.messages.touch(id);
        for holder in old.members {
            self.messages.join(id, holder);
        }
        self.messages.wakes.insert(id);
    }

    /// The store has a subscription: whoever asked for it is answered.
    pub(crate) fn subscribed(&mut self, session: SessionKey, id: &SubId) {
        let Some(sub) = self.sessions.lease_mut(&session).and_then(|lease| lease.subs.get_mut(id)) else {
            return;
        };
        if !sub.groups.iter().all(|place| self.messages.readings.contains_key(place)) {
            // A place that it joined was made by somebody whose write failed.
            self.write_surely(StoreWrite::DropSub(session, id.clone()));
            return self.not_subscribed(session, id);
        }
        let waiting = sub.opening.take().unwrap_or_default();
        let places = sub.groups.clone();
        let result = self.subscribe_result(session, id);
        for to in waiting {
            self.answer(to, Ok(Answer::Subscribe(result.clone())));
        }
        self.messages.wakes.extend(places);
    }

    /// The store could not take a subscription: it never was.
    pub(crate) fn not_subscribed(&mut self, session: SessionKey, id: &SubId) {
        let Some(sub) = self.sessions.lease_mut(&session).and_then(|lease| lease.subs.remove(id)) else {
            return;
        };
        for place in &sub.groups {
            self.messages.leave(*place, &session, id);
        }
        let asked = sub.opening.unwrap_or_default();
        if asked.is_empty() {
            // A reconciliation has made it again, and its client was told so.
            let kind = SubscriptionEventKind::Closed;
            let reason = Some(ErrorCode::Unavailable.as_str().to_owned());
            let (sub_id, partition) = (id.clone(), None);
            let event = SubscriptionEvent { sub_id, kind, partition, from: None, to: None, reason };
            self.tell(session, EventBody::Subscription(event), 128);
        }
        for to in asked {
            self.answer(to, Err(unavailable()));
        }
    }

    fn subscribe_result(&self, session: SessionKey, id: &SubId) -> SubscribeResult {
        let sub = self.sessions.lease(&session).and_then(|lease| lease.subs.get(id));
        SubscribeResult { sub_id: id.clone(), start_seq: sub.map(|sub| self.starts(sub)).unwrap_or_default() }
    }

    /// The first entry of each partition that a subscription to a topic has not settled.
    pub(crate) fn starts(&self, sub: &Sub) -> BTreeMap<String, U53> {
        let start = |place: &GroupId| {
            let reading = self.messages.readings.get(place)?;
            let LogName::Topic(_, partition) = &reading.record.log else { return None };
            Some((partition.to_string(), U53::saturating(reading.group.floor().saturating_add(1))))
        };
        sub.groups.iter().filter_map(start).collect()
    }

    pub(crate) fn unsubscribe(
        &mut self,
        caller: &Caller,
        params: &UnsubscribeParams,
    ) -> Result<Reply, WireError> {
        if [INBOX, MEMBER].contains(&params.sub_id.as_str()) {
            let text = "inbox and member are chosen with hello's inbox and cannot be left";
            return Err(WireError::bad_request(text));
        }
        self.may_owe()?;
        self.drop_subscription(caller.session, &params.sub_id);
        self.messages.urgent |= self.store.retries.is_due();
        Ok(self.after_round(caller, true, Answer::Empty))
    }

    /// Ends a subscription: what it has in hand goes back, and private places are gone.
    pub(crate) fn drop_subscription(&mut self, session: SessionKey, id: &SubId) {
        let Some(sub) = self.sessions.lease_mut(&session).and_then(|lease| lease.subs.remove(id)) else {
            return;
        };
        for to in sub.opening.iter().flatten().cloned() {
            let error = WireError::new(ErrorCode::NotFound, "the subscription ended before it began");
            self.answer(to, Err(error));
        }
        self.leave_places(session, self.last_conn(&session), id, &sub);
        self.write_surely(StoreWrite::DropSub(session, id.clone()));
    }

    /// Gives back what a subscription has in hand and takes it out of its places.
    pub(crate) fn leave_places(&mut self, session: SessionKey, conn: Option<ConnId>, id: &SubId, sub: &Sub) {
        if let Source::Topic { topic, .. } = &sub.source
            && let Some(topic) = self.messages.topics.get_mut(topic)
        {
            topic.used_at = self.clock.wall();
        }
        let mut requeued = 0;
        for (place, seq) in sub.held() {
            requeued += usize::from(self.return_to(place, seq, &session, false));
        }
        for place in &sub.groups {
            self.messages.leave(*place, &session, id);
            if self.messages.readings.get(place).is_some_and(|reading| reading.is_private()) {
                self.messages.close(*place);
                self.write_surely(StoreWrite::DropGroup(*place));
            } else {
                self.leave_crew(*place);
                self.messages.touch(*place);
                self.messages.wakes.insert(*place);
            }
        }
        for fetch in &sub.fetches {
            let error = WireError::new(ErrorCode::NotFound, "the subscription has ended");
            self.answer(fetch.to.clone(), Err(error));
        }
        self.note_requeued(session, conn, requeued);
    }

    /// A crew was in use until now.
    fn leave_crew(&mut self, place: GroupId) {
        let wall = self.clock.wall();
        let Some(reading) = self.messages.readings.get_mut(&place).filter(|reading| reading.is_shared())
        else {
            return;
        };
        reading.used_at = wall;
        // One that the store is about to make has no place to tell yet.
        if reading.group.cursor() != OPENING {
            self.messages.dirty.insert(place);
        }
    }

    /// Gives a session the implicit subscriptions that its hello chose, and takes the others away.
    pub(crate) fn choose_inboxes(&mut self, session: SessionKey, member: MemberKey, choice: InboxChoice) {
        let own = matches!(choice, InboxChoice::Session | InboxChoice::Both);
        let members = matches!(choice, InboxChoice::Member | InboxChoice::Both);
        if members {
            self.messages.member_readers.entry(member).or_default().insert(session);
        } else {
            self.leave_member_inbox(session, member);
        }
        for (wanted, name, log) in
            [(own, INBOX, LogName::Session(session)), (members, MEMBER, LogName::Member(member))]
        {
            let Ok(id) = name.parse::<SubId>() else { continue };
            if wanted {
                self.join_inbox(session, &id, &log);
            } else if let Some(sub) =
                self.sessions.lease_mut(&session).and_then(|lease| lease.subs.remove(&id))
            {
                self.leave_places(session, self.last_conn(&session), &id, &sub);
            }
        }
    }

    pub(crate) fn leave_member_inbox(&mut self, session: SessionKey, member: MemberKey) {
        if let Some(readers) = self.messages.member_readers.get_mut(&member) {
            readers.remove(&session);
            if readers.is_empty() {
                self.messages.member_readers.remove(&member);
            }
        }
    }

    /// Makes the places of an inbox when something is first put into it, and lets its readers in. After a start
    /// the store may know the places of some lanes only: those where something happened.
    pub(crate) fn ensure_inbox(&mut self, log: &LogName) {
        let found = self.messages.logs.get(log);
        let placed = |lane: &Lane| found.is_some_and(|found| !found.lanes[lane.index()].groups.is_empty());
        let missing: Vec<Lane> = Lane::ALL.into_iter().filter(|lane| !placed(lane)).collect();
        if missing.is_empty() {
            return;
        }
        for lane in missing {
            let id = self.messages.next_group(self.numbering.boot().run);
            let record = GroupRecord { id, log: log.clone(), lane, reader: Reader::Inbox, owner: None };
            self.messages.open(record, 0, self.clock.wall());
        }
        match log {
            LogName::Session(session) => {
                let reads = self
                    .sessions
                    .lease(session)
                    .is_some_and(|lease| matches!(lease.inbox, InboxChoice::Session | InboxChoice::Both));
                if let (true, Ok(id)) = (reads, INBOX.parse()) {
                    self.join_inbox(*session, &id, log);
                }
            }
            LogName::Member(member) => {
                let readers = self.messages.member_readers.get(member).cloned().unwrap_or_default();
                for session in readers {
                    if let Ok(id) = MEMBER.parse() {
                        self.join_inbox(session, &id, log);
                    }
                }
            }
            LogName::Topic(..) => {}
        }
    }

    /// Lets a session read an inbox, if there is anything to read yet: all places of it that it does not read.
    fn join_inbox(&mut self, session: SessionKey, id: &SubId, log: &LogName) {
        let places = self.messages.places(log);
        let Some(lease) = self.sessions.lease_mut(&session) else { return };
        if places.is_empty() {
            return;
        }
        if lease.subs.get(id).is_none() {
            let sub = Sub::new(Source::Inbox(log.clone()), AckMode::Manual, DEFAULT_PREFETCH);
            lease.subs.insert(id.clone(), sub);
        }
        let Some(sub) = lease.subs.get_mut(id) else { return };
        let known = std::mem::replace(&mut sub.groups, places.clone());
        for place in places.into_iter().filter(|place| !known.contains(place)) {
            self.messages.join(place, Holder { session, sub: id.clone() });
            self.messages.wakes.insert(place);
        }
    }
}

/// The partitions that a choice stands for.
pub(crate) fn chosen(partition: Option<u32>, partitions: u32) -> std::ops::Range<u32> {
    match partition {
        Some(one) => one..one + 1,
        None => 0..partitions,
    }
}
