//! People, a broker that fails in every way it can, and a ledger of what was promised.

use std::collections::{BTreeMap, BTreeSet};

use tenure_mesh::MeshConfig;
use tenure_mesh::effect::{HelloAnswer, Push};
use tenure_mesh::input::Call;
use tenure_proto::error::ErrorCode;
use tenure_proto::hello::{HelloReconcile, Later, ResumeOutcome};
use tenure_proto::ids::{ConnId, MessageId, SubId, Tag};
use tenure_proto::log::LogName;
use tenure_proto::message::{SendParams, TagsParams};
use tenure_proto::peer::{ProfilePatch, Status};
use tenure_proto::reconcile::ReconcilePolicy;
use tenure_proto::subscribe::{AckMode, SubscribeParams, UnsubscribeParams};

use super::person::{Asked, Key, Known, Person, Reader, Return, Sub};
use super::words::*;
use super::world::{Engine, World};

pub(crate) const PEOPLE: u8 = 4;
pub(crate) const ACK_TIMEOUT: u64 = 60_000;

/// A message that somebody wanted to send.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) from: u8,
    pub(super) params: SendParams,
    /// Its id and place, once it was accepted.
    pub(super) accepted: Option<(MessageId, LogName, u64)>,
}

pub(crate) struct Sim {
    pub(crate) world: World,
    pub(crate) people: Vec<Person>,
    pub(super) sent: Vec<Sent>,
    /// Entries of inboxes and crews whose settling was answered.
    pub(super) settled: BTreeSet<Key>,
    /// Messages that reached an application, by reader; inboxes of all kinds are one.
    pub(super) reached: BTreeSet<(Reader, MessageId)>,
    /// Who has an entry of a crew in hand: the socket, and since when.
    pub(super) holders: BTreeMap<Key, (ConnId, u64)>,
    /// Where a crew begins at the latest, by log.
    pub(super) crews: BTreeMap<(LogName, Reader), u64>,
    /// Crews that somebody reads with auto acks, at most once by choice.
    pub(super) careless: BTreeSet<(LogName, Reader)>,
    /// Entries that came again after they were acked, to be acked again.
    pub(super) repeats: Vec<(u8, Key, Tag)>,
    /// Subscriptions of which it never heard that they were made.
    pub(super) unwanted: Vec<(u8, SubId)>,
    /// Subscriptions to be made again.
    pub(super) recreated: Vec<(u8, SubscribeParams)>,
    /// Now, and the earliest moment at which what is heard now may have come.
    pub(super) time: u64,
    pub(super) since: u64,
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
            repeats: Vec::new(),
            unwanted: Vec::new(),
            recreated: Vec::new(),
            time: 0,
            since: 0,
        };
        for n in 1..=PEOPLE {
            sim.dial(n, Return::Token);
        }
        let first = sim.people[0].conn.unwrap();
        sim.world.create(first, "parts", 3, None);
        sim
    }

    pub(super) fn person(&mut self, n: u8) -> &mut Person {
        &mut self.people[usize::from(n) - 1]
    }

    /// The socket of somebody who was greeted.
    pub(super) fn conn(&self, n: u8) -> Option<ConnId> {
        let person = &self.people[usize::from(n) - 1];
        person.conn.filter(|conn| person.greeted && self.world.socket(*conn).open)
    }

    pub(super) fn ask(&mut self, n: u8, asked: Asked, call: Call) {
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
        (self.person(n).conn, self.person(n).how) = (Some(conn), how);
        self.hear();
    }

    /// Its hello was answered.
    pub(super) fn greeted(&mut self, n: u8, answer: HelloAnswer) {
        let person = self.person(n);
        (person.greeted, person.lease) = (true, Some(answer.lease_id.clone()));
        match answer.reconcile {
            Some(result) => self.reconciled(n, *result),
            None if person.how == Return::Later => {
                let params = person.knowledge(ReconcilePolicy::Conservative);
                self.ask(n, Asked::Reconcile, Call::Reconcile(Box::new(params)));
            }
            None if answer.outcome != ResumeOutcome::Resumed => {
                // Whoever lists nothing without a good token begins anew.
                let subs = std::mem::take(&mut person.subs).into_values();
                self.recreated.extend(subs.map(|sub| (n, sub.params)));
            }
            None => {}
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

    /// What a socket was given is lost on the way. Its pushes stay where nobody reads them: a crash looks there.
    pub(super) fn silence(&mut self, conn: ConnId) {
        let socket = self.world.sockets.get_mut(&conn).unwrap();
        socket.frames.clear();
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
                matches!(
                    code(&outcome),
                    ErrorCode::IdempotencyKeyReused | ErrorCode::Unavailable | ErrorCode::LeaseExpired
                ),
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
            person.swallowed.retain(|key| !of(key));
            person.last.retain(|(reader, log, _), _| !of(&(reader.clone(), log.clone(), 0)));
        }
        self.ask(n, Asked::Other, Call::Unsubscribe(UnsubscribeParams { sub_id: id.clone() }));
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

    pub(super) fn ack_now(&mut self, n: u8, key: Key, tag: Tag) {
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
        let mut ids: Vec<SubId> =
            self.person(n).subs.iter().filter(manual).map(|(id, _)| id.clone()).collect();
        ids.insert(0, "inbox".parse().unwrap());
        if self.conn(n).is_some() {
            self.person(n).slack += limit as usize;
        }
        let (sub_id, limit) = (ids[which % ids.len()].clone(), ms(limit).unwrap());
        self.ask(
            n,
            Asked::Fetch(limit.get() as usize),
            Call::Fetch(tenure_proto::subscribe::FetchParams { sub_id, limit }),
        );
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
        self.since = self.time;
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
        // Everybody has heard what there was to hear: the rest is lost.
        let lost: Vec<Push> =
            self.world.sockets.values_mut().flat_map(|socket| std::mem::take(&mut socket.pushes)).collect();
        for person in &mut self.people {
            person.swallow(&lost);
            person.cut();
            person.last.retain(|(reader, log, _), _| {
                !matches!(reader, Reader::Crew(_)) && !matches!(log, LogName::Member(_))
            });
        }
    }
}
