//! People, a broker that fails in every way it can, and a ledger of what was promised.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::MeshConfig;
use tenure_core::effect::{Answer, Push};
use tenure_core::input::Call;
use tenure_core::record::{StoreFound, StoreRead};
use tenure_proto::error::ErrorCode;
use tenure_proto::hello::{HelloReconcile, Later};
use tenure_proto::ids::{ConnId, MessageId, RequestId, SubId};
use tenure_proto::log::LogName;
use tenure_proto::message::{SendParams, SendState, TagsParams};
use tenure_proto::peer::{ProfilePatch, Status};
use tenure_proto::reconcile::{InflightResult, ReconcileAction, ReconcilePolicy, ReconcileResult};
use tenure_proto::subscribe::{AckMode, DEFAULT_PREFETCH, SubscribeParams, SubscribeResult};

use super::person::{Asked, Key, Known, Person, Reader, Return, Sub, lane};
use super::words::*;
use super::world::{Engine, Outcome, World};

pub(crate) const PEOPLE: u8 = 4;
pub(crate) const ACK_TIMEOUT: u64 = 60_000;

/// A message that somebody wanted to send.
#[derive(Debug)]
struct Sent {
    from: u8,
    params: SendParams,
    /// Its id and place, once it was accepted.
    accepted: Option<(MessageId, LogName, u64)>,
}

pub(crate) struct Sim {
    pub(crate) world: World,
    pub(crate) people: Vec<Person>,
    sent: Vec<Sent>,
    /// Entries of inboxes and crews whose settling was answered.
    settled: BTreeSet<Key>,
    /// Messages that reached an application, by reader; inboxes of all kinds are one.
    reached: BTreeSet<(Reader, MessageId)>,
    /// Who has an entry of a crew in hand: the socket, and since when.
    holders: BTreeMap<Key, (ConnId, u64)>,
    /// Where a crew begins at the latest, by log.
    crews: BTreeMap<(LogName, Reader), u64>,
    /// Crews that somebody reads with auto acks, at most once by choice.
    careless: BTreeSet<(LogName, Reader)>,
    time: u64,
}

impl Sim {
    pub(crate) fn new(engine: Engine) -> Sim {
        let config = MeshConfig { ack_timeout_ms: ACK_TIMEOUT, ..MeshConfig::default() };
        let mut sim = Sim {
            world: World::new(engine, config),
            people: (1..=PEOPLE).map(Person::new).collect(),
            sent: Vec::new(),
            settled: BTreeSet::new(),
            reached: BTreeSet::new(),
            holders: BTreeMap::new(),
            crews: BTreeMap::new(),
            careless: BTreeSet::new(),
            time: 0,
        };
        for n in 1..=PEOPLE {
            sim.dial(n, Return::Token);
        }
        let first = sim.people[0].conn.unwrap();
        sim.world.create(first, "parts", 3, None);
        sim
    }

    fn person(&mut self, n: u8) -> &mut Person {
        &mut self.people[usize::from(n) - 1]
    }

    /// The socket of somebody who was greeted.
    fn conn(&self, n: u8) -> Option<ConnId> {
        let person = &self.people[usize::from(n) - 1];
        person.conn.filter(|conn| person.greeted && self.world.socket(*conn).open)
    }

    fn ask(&mut self, n: u8, asked: Asked, call: Call) {
        let Some(conn) = self.conn(n) else { return };
        let (input, request) = self.world.request(conn, call);
        self.person(n).asked.insert(request, asked);
        self.world.tell(input);
        self.hear();
    }

    // What people do.

    pub(crate) fn dial(&mut self, n: u8, how: Return) {
        if how == Return::Fresh {
            self.person(n).reborn();
        }
        let person = self.person(n);
        let mut hello = person.hello();
        hello.reconcile = match how {
            Return::Knowing(policy) => Some(HelloReconcile::Now(Box::new(person.knowledge(policy)))),
            Return::Later => Some(HelloReconcile::Later(Later::Later)),
            Return::Token | Return::Fresh => None,
        };
        person.cut();
        let conn = self.world.dial(hello);
        self.person(n).conn = Some(conn);
        self.hear();
        if how == Return::Later && self.conn(n).is_some() {
            let params = self.person(n).knowledge(ReconcilePolicy::Conservative);
            self.ask(n, Asked::Other, Call::Reconcile(Box::new(params)));
        }
    }

    pub(crate) fn drop_socket(&mut self, n: u8) {
        let Some(conn) = self.person(n).conn else { return };
        if self.person(n).deaf || self.world.socket(conn).unflushed {
            self.silence(conn);
        }
        self.world.drop_socket(conn);
        self.hear();
        self.person(n).cut();
    }

    /// What a socket was given is lost on the way.
    fn silence(&mut self, conn: ConnId) {
        let socket = self.world.sockets.get_mut(&conn).unwrap();
        socket.pushes.clear();
        socket.answers.clear();
        socket.events.clear();
    }

    pub(crate) fn send(&mut self, from: u8, mut params: SendParams) {
        let index = self.sent.len();
        params.body = Some(format!("b{index}"));
        params.client_message_id = format!("m{index}").parse().unwrap();
        self.sent.push(Sent { from, params, accepted: None });
        self.resend(index);
    }

    pub(crate) fn resend(&mut self, index: usize) {
        if self.sent.is_empty() {
            return;
        }
        let index = index % self.sent.len();
        let (from, params) = (self.sent[index].from, self.sent[index].params.clone());
        let call = self.world.sending(params).unwrap();
        self.ask(from, Asked::Send(index), call);
    }

    /// Another message under an id that was used.
    pub(crate) fn contradict(&mut self, index: usize) {
        let Some(known) = self.sent.iter().filter(|sent| sent.accepted.is_some()).nth(index) else { return };
        let (from, mut params) = (known.from, known.params.clone());
        params.body = Some("something else".into());
        let Some(conn) = self.conn(from) else { return };
        let call = self.world.sending(params).unwrap();
        let request = self.world.ask(conn, call);
        if let Some(outcome) = self.world.answered(conn, &request) {
            assert!(
                matches!(code(&outcome), ErrorCode::IdempotencyKeyReused | ErrorCode::Unavailable),
                "{outcome:?}"
            );
        }
        self.hear();
    }

    pub(crate) fn subscribe(&mut self, n: u8, params: SubscribeParams) {
        if self.person(n).subs.values().any(|sub| {
            let (a, b) = (&sub.params, &params);
            (&a.topic, &a.group, a.partition) == (&b.topic, &b.group, b.partition)
        }) {
            return;
        }
        if let (AckMode::Auto, Some(group)) = (params.ack_mode, &params.group) {
            for partition in 0..3 {
                let log = LogName::Topic(params.topic.clone(), partition);
                self.careless.insert((log, Reader::Crew(group.clone())));
            }
        }
        self.ask(n, Asked::Subscribe(params.clone()), Call::Subscribe(params));
    }

    pub(crate) fn unsubscribe(&mut self, n: u8, which: usize) {
        let ids: Vec<SubId> = self.person(n).subs.keys().cloned().collect();
        let (Some(id), true) = (ids.get(which), self.conn(n).is_some()) else { return };
        let sub = self.person(n).subs.remove(id).unwrap();
        let conn = self.conn(n);
        self.holders.retain(|_, (holder, _)| Some(*holder) != conn);
        if sub.params.group.is_none() {
            let gone = Reader::Private(n, sub.params.partition);
            let topic = sub.params.topic;
            let of = |key: &Key| key.0 == gone && matches!(&key.1, LogName::Topic(t, _) if *t == topic);
            let person = self.person(n);
            person.memory.retain(|key, _| !of(key));
            person.received.retain(|key| !of(key));
            person.last.retain(|(reader, log, _), _| !of(&(reader.clone(), log.clone(), 0)));
        }
        let call = Call::Unsubscribe(tenure_proto::subscribe::UnsubscribeParams { sub_id: id.clone() });
        self.ask(n, Asked::Other, call);
    }

    pub(crate) fn set_status(&mut self, n: u8, status: Status) {
        let patch = ProfilePatch { status: Some(status), ..ProfilePatch::default() };
        self.ask(n, Asked::Other, Call::ProfileSet(Box::new(patch)));
    }

    pub(crate) fn ack(&mut self, n: u8, which: usize) {
        let hand = self.person(n).hand();
        if self.conn(n).is_some() && !hand.is_empty() {
            let (key, tag) = hand[which % hand.len()].clone();
            self.ack_now(n, key, tag);
        }
    }

    fn ack_now(&mut self, n: u8, key: Key, tag: tenure_proto::ids::Tag) {
        let person = self.person(n);
        person.memory.insert(key.clone(), Known::Acked(tag.clone(), false));
        person.let_go(&key);
        self.holders.remove(&key);
        self.ask(n, Asked::Ack(vec![key]), Call::Ack(TagsParams { tags: vec![tag] }));
    }

    pub(crate) fn nack(&mut self, n: u8, which: usize, delay: u64, dead: bool) {
        let hand = self.person(n).hand();
        if self.conn(n).is_none() || hand.is_empty() {
            return;
        }
        let (key, tag) = hand[which % hand.len()].clone();
        let person = self.person(n);
        person.memory.remove(&key);
        person.nacked.insert(key.clone());
        person.let_go(&key);
        self.holders.remove(&key);
        let mut params = nacked(vec![tag]);
        (params.dead, params.delay_ms) = (dead, Some(delay).filter(|ms| *ms > 0).and_then(ms));
        self.ask(n, Asked::Nack(key, dead), Call::Nack(params));
    }

    pub(crate) fn progress(&mut self, n: u8, which: usize) {
        let hand = self.person(n).hand();
        if !hand.is_empty() {
            let tags = vec![hand[which % hand.len()].1.clone()];
            self.ask(n, Asked::Other, Call::Progress(TagsParams { tags }));
        }
    }

    /// Settles what somebody else has in hand, or tries to.
    pub(crate) fn steal(&mut self, n: u8, from: u8) {
        let hand = self.person(from).hand();
        if let (true, Some((_, tag))) = (n != from, hand.first()) {
            self.ask(n, Asked::Steal, Call::Ack(TagsParams { tags: vec![tag.clone()] }));
        }
    }

    pub(crate) fn fetch(&mut self, n: u8, which: usize, limit: u64) {
        let manual = |(_, sub): &(&SubId, &Sub)| sub.params.ack_mode == AckMode::Manual;
        let mut ids: Vec<SubId> = self.person(n).subs.iter().filter(manual).map(|(id, _)| id.clone()).collect();
        ids.insert(0, "inbox".parse().unwrap());
        let (sub_id, limit) = (ids[which % ids.len()].clone(), ms(limit).unwrap());
        self.ask(n, Asked::Fetch, Call::Fetch(tenure_proto::subscribe::FetchParams { sub_id, limit }));
    }

    pub(crate) fn bye(&mut self, n: u8) {
        self.ask(n, Asked::Other, Call::Bye);
    }

    pub(crate) fn block(&mut self, n: u8) {
        if let Some(conn) = self.conn(n) {
            self.world.sockets.get_mut(&conn).unwrap().flushes = false;
        }
    }

    pub(crate) fn unblock(&mut self, n: u8) {
        if let Some(conn) = self.person(n).conn {
            self.world.unblock(conn);
        }
        self.hear();
    }

    pub(crate) fn pass(&mut self, ms: u64) {
        self.world.pass(ms);
        self.time += ms;
        self.hear();
    }

    pub(crate) fn crash(&mut self, landed: usize) {
        self.world.crash(landed);
        self.holders.clear();
        for n in 1..=PEOPLE {
            if let (Some(conn), true) = (self.person(n).conn, self.person(n).deaf) {
                self.silence(conn);
            }
        }
        self.hear();
        for person in &mut self.people {
            person.cut();
            person.last.retain(|(reader, log, _), _| {
                !matches!(reader, Reader::Crew(_)) && !matches!(log, LogName::Member(_))
            });
        }
    }

    // What they hear.

    /// Lets everybody take notice of what has come.
    pub(crate) fn hear(&mut self) {
        for n in 1..=PEOPLE {
            let Some(conn) = self.person(n).conn else { continue };
            let socket = self.world.sockets.get_mut(&conn).unwrap();
            if self.people[usize::from(n) - 1].deaf || (socket.unflushed && socket.open) {
                continue;
            }
            let answers = std::mem::take(&mut socket.answers);
            let pushes: Vec<Push> = socket.pushes.drain(..).collect();
            let open = socket.open;
            for (request, outcome) in answers {
                self.answered(n, conn, &request, outcome);
            }
            for push in pushes {
                self.pushed(n, conn, push, false);
            }
            if !open {
                self.person(n).cut();
            }
        }
    }

    fn answered(&mut self, n: u8, conn: ConnId, request: &RequestId, outcome: Outcome) {
        let asked = self.person(n).asked.remove(request);
        match (asked, outcome) {
            (None, Ok(Answer::Hello(answer))) => {
                let person = self.person(n);
                (person.greeted, person.lease) = (true, Some(answer.lease_id.clone()));
                if let Some(result) = answer.reconcile {
                    self.reconciled(n, *result);
                }
            }
            (_, Ok(Answer::Reconcile(result))) => self.reconciled(n, *result),
            (Some(Asked::Send(index)), Ok(Answer::Send(result))) => {
                let place = (result.id, result.log.parse().unwrap(), result.seq.get());
                let sent = &mut self.sent[index];
                if let Some((id, ..)) = &sent.accepted {
                    assert_eq!((*id, true), (result.id, result.duplicate), "one id, one message");
                }
                sent.accepted.get_or_insert(place);
            }
            (Some(Asked::Subscribe(params)), Ok(Answer::Subscribe(result))) => {
                self.subscribed(n, params, &result);
            }
            (Some(Asked::Ack(keys)), Ok(Answer::Settle(result))) => {
                assert_eq!(result.settled.len() + result.stale.len(), keys.len());
                if result.stale.is_empty() {
                    keys.iter().for_each(|key| self.is_settled(n, key));
                }
            }
            (Some(Asked::Nack(key, true)), Ok(Answer::Settle(result))) if result.stale.is_empty() => {
                self.is_settled(n, &key);
            }
            (Some(Asked::Steal), Ok(Answer::Settle(result))) => {
                assert_eq!(result.stale[0].reason, "not_owner");
            }
            (Some(Asked::Fetch), Ok(Answer::Fetch(pushes))) => {
                for push in pushes {
                    self.pushed(n, conn, push, true);
                }
            }
            (_, Err(error)) => assert!(!error.code.as_str().is_empty() && error.code != ErrorCode::Internal),
            _ => {}
        }
    }

    fn is_settled(&mut self, n: u8, key: &Key) {
        if let Some(Known::Acked(_, sure)) = self.person(n).memory.get_mut(key) {
            *sure = true;
        }
        if !matches!(key.0, Reader::Private(..)) {
            self.settled.insert(key.clone());
        }
    }

    fn subscribed(&mut self, n: u8, params: SubscribeParams, result: &SubscribeResult) {
        let start: BTreeMap<u32, u64> =
            result.start_seq.iter().map(|(p, seq)| (p.parse().unwrap(), seq.get())).collect();
        let expected = if params.topic.as_str() == "parts" && params.partition.is_none() { 3 } else { 1 };
        assert_eq!(start.len(), expected, "{result:?}");
        if let Some(group) = &params.group {
            for (partition, seq) in &start {
                let log = LogName::Topic(params.topic.clone(), *partition);
                self.crews.entry((log, Reader::Crew(group.clone()))).or_insert(*seq);
            }
        }
        let sub = Sub { params, start, seen: BTreeMap::new() };
        self.person(n).subs.insert(result.sub_id.clone(), sub);
    }

    fn reconciled(&mut self, n: u8, result: ReconcileResult) {
        let mut again = Vec::new();
        for verdict in result.results {
            let person = self.person(n);
            match (verdict.action, &verdict.client) {
                (ReconcileAction::Keep, Some(client)) if *client != verdict.sub_id => {
                    let sub = person.subs.remove(client).unwrap();
                    person.subs.insert(verdict.sub_id, sub);
                }
                (ReconcileAction::CloseClientSide, Some(client)) => _ = person.subs.remove(client),
                (ReconcileAction::RecreateClientSide, Some(client)) => {
                    again.extend(person.subs.remove(client).map(|sub| sub.params));
                }
                _ => {}
            }
        }
        for verdict in result.inflight {
            let tag = verdict.tag;
            let of = |known: &Known| matches!(known, Known::Acked(t, _) | Known::Hand(t) if *t == tag);
            let key = self.person(n).memory.iter().find(|(_, known)| of(known)).map(|(key, _)| key.clone());
            let acked = key.filter(|key| matches!(self.person(n).memory[key], Known::Acked(..)));
            if let (InflightResult::Settled, Some(key)) = (verdict.result, acked) {
                self.is_settled(n, &key);
            }
        }
        for params in again {
            self.subscribe(n, params);
        }
    }

    fn pushed(&mut self, n: u8, conn: ConnId, push: Push, fetched: bool) {
        let time = self.time;
        let Some(reader) = self.person(n).reader(&push) else { return };
        let key: Key = (reader.clone(), push.entry.log.clone(), push.entry.seq);
        assert!(!self.settled.contains(&key), "handed to {n} after it was settled: {push:?}");
        self.check_order(n, &key, &push);
        self.check_claim(n, conn, &key);
        if !self.person(n).is_auto(&push) && !fetched {
            self.check_prefetch(n, &key, &push);
        }
        let (tag, auto) = (tag(&push), self.person(n).is_auto(&push));
        if let (LogName::Topic(_, partition), Some(sub)) = (&key.1, self.person(n).subs.get_mut(&push.sub)) {
            let seen = sub.seen.entry(*partition).or_default();
            *seen = (*seen).max(push.entry.seq);
        }
        match self.person(n).memory.get(&key) {
            Some(Known::Acked(..)) if !auto => return self.ack_now(n, key, tag),
            Some(_) => {}
            None => {
                self.person(n).received.insert(key.clone());
                self.reached.insert((reader, push.entry.envelope.id));
            }
        }
        if !auto {
            self.person(n).memory.insert(key.clone(), Known::Hand(tag));
            self.holders.insert(key, (conn, time));
        }
    }

    /// First deliveries come in order.
    fn check_order(&mut self, n: u8, key: &Key, push: &Push) {
        let person = self.person(n);
        let known = person.memory.contains_key(key) || person.nacked.contains(key);
        if known || push.attempt > 1 || push.entry.envelope.not_before.is_some() {
            return;
        }
        let place = (key.0.clone(), key.1.clone(), lane(push));
        let last = person.last.insert(place, key.2);
        assert!(last.is_none_or(|last| last < key.2 || person.received.contains(key)), "{n}: {push:?} after {last:?}");
    }

    /// Nobody else has it in hand.
    fn check_claim(&mut self, n: u8, conn: ConnId, key: &Key) {
        if let Some((holder, since)) = self.holders.get(key)
            && !matches!(key.0, Reader::Private(..))
        {
            let other = *holder != conn && self.world.socket(*holder).open;
            let lively = self.people.iter().any(|person| person.conn == Some(*holder) && person.n != n);
            assert!(!(other && lively) || self.time - since >= ACK_TIMEOUT, "{key:?} is in two hands");
        }
    }

    fn check_prefetch(&mut self, n: u8, key: &Key, push: &Push) {
        let time = self.time;
        let prefetch = self.person(n).subs.get(&push.sub).map_or(DEFAULT_PREFETCH, |sub| sub.params.prefetch);
        let place = (push.sub.clone(), lane(push));
        let pushed = self.person(n).unsettled.entry(place).or_default();
        pushed.retain(|_, since| time - *since < ACK_TIMEOUT);
        pushed.insert(key.clone(), time);
        assert!(pushed.len() <= prefetch as usize, "{n} was pushed {} at once", pushed.len());
    }

    // The end.

    /// Everything works again and everybody settles what comes, until nothing does.
    pub(crate) fn quiesce(&mut self) {
        self.world.set_disk(super::world::Disk::Commits);
        self.world.commit(usize::MAX);
        for round in 0..40 {
            for n in 1..=PEOPLE {
                self.person(n).deaf = false;
                self.unblock(n);
                if self.conn(n).is_none() {
                    self.dial(n, Return::Knowing(ReconcilePolicy::Conservative));
                }
                self.set_status(n, Status::Idle);
                for index in 0..self.sent.len() {
                    if self.sent[index].from == n && self.sent[index].accepted.is_none() && round < 20 {
                        self.resend(index);
                    }
                }
                while self.conn(n).is_some() && !self.person(n).hand().is_empty() {
                    self.ack(n, 0);
                }
            }
            self.pass(10_000);
        }
        self.judge();
    }

    fn judge(&mut self) {
        for person in &self.people {
            let socket = self.world.socket(person.conn.expect("a socket"));
            assert!(socket.asked.is_empty(), "{} waits for {:?}", person.n, socket.asked);
        }
        for index in 0..self.sent.len() {
            let Some((id, log, seq)) = self.sent[index].accepted.clone() else { continue };
            let params = self.sent[index].params.clone();
            if log.is_inbox() {
                self.judge_inbox(&params, member(self.sent[index].from), id);
            } else if params.ttl_ms.is_none() {
                self.judge_topic(id, &log, seq);
            }
        }
        assert_eq!(self.world.store().check().unwrap(), Vec::<String>::new());
    }

    fn judge_inbox(&mut self, params: &SendParams, member: tenure_proto::MemberKey, id: MessageId) {
        let ids = vec![params.client_message_id.clone()];
        let StoreFound::Fates(fates) = self.world.read(&StoreRead::Fates { member, ids }) else { panic!() };
        let (known, state, reason) = fates[0].clone();
        assert_eq!(known, Some(id), "{params:?}");
        let reached = self.reached.contains(&(Reader::Inbox, id));
        match state {
            SendState::Delivered => assert!(reached, "settled, but it reached nobody: {params:?}"),
            SendState::Dead => assert!(reason.is_some()),
            SendState::Expired => assert!(params.ttl_ms.is_some() && reason.is_some()),
            SendState::Accepted | SendState::Unknown => panic!("lost or stuck: {params:?}"),
        }
    }

    fn judge_topic(&mut self, id: MessageId, log: &LogName, seq: u64) {
        let dead = match self.world.read(&StoreRead::Dead { log: log.clone(), after: seq - 1, limit: 1, bytes: 1 }) {
            StoreFound::Dead { letters, .. } => letters.iter().any(|letter| letter.entry.seq == seq),
            other => panic!("{other:?}"),
        };
        for ((of, reader), start) in &self.crews {
            let place = (of.clone(), reader.clone());
            let read = self.people.iter().any(|person| {
                person.subs.values().any(|sub| {
                    let LogName::Topic(topic, partition) = of else { return false };
                    let crew = sub.params.group.clone().map(Reader::Crew);
                    sub.params.topic == *topic
                        && crew.as_ref() == Some(reader)
                        && sub.params.partition.is_none_or(|p| p == *partition)
                })
            });
            if of == log && *start <= seq && read && !dead && !self.careless.contains(&place) {
                assert!(self.reached.contains(&(reader.clone(), id)), "{reader:?} never got {log} {seq}");
            }
        }
        for person in &self.people {
            for sub in person.subs.values().filter(|sub| sub.params.group.is_none()) {
                let LogName::Topic(topic, partition) = log else { continue };
                let manual = sub.params.ack_mode == AckMode::Manual && sub.params.topic == *topic;
                let start = sub.start.get(partition).filter(|start| manual && **start <= seq);
                let key = (Reader::Private(person.n, sub.params.partition), log.clone(), seq);
                let got = person.received.contains(&key) || dead;
                assert!(start.is_none() || got, "{} never got {log} {seq}", person.n);
            }
        }
    }
}
