//! Any program of calls, answers, breaks, failures and crashes: a run ends once, for everybody alike, and is never lost.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::{Value, json};
use tenure_mesh::MeshConfig;
use tenure_mesh::conn::admit::{Admission, TokenVerdict};
use tenure_mesh::effect::{Answer, Push};
use tenure_mesh::input::Call;
use tenure_proto::error::ErrorCode;
use tenure_proto::event::EventBody;
use tenure_proto::hello::{HelloReconcile, InboxChoice, Replay};
use tenure_proto::ids::{ConnId, Epoch, LeaseId, RequestId, RunId, Tag};
use tenure_proto::limits::RUN_TIMEOUT_MS;
use tenure_proto::message::{Address, MessageKind, TagsParams};
use tenure_proto::reconcile::{ClientInflight, InflightState, ReconcileParams};
use tenure_proto::run::{RunEvent, RunIdParams, RunStartParams, RunState};

use super::props::config;
use super::runs::{chunk, ending, from, ring};
use super::words::*;
use super::world::{Disk, Engine, Outcome, World};

/// Two sessions that call, of one member; two that answer, of another.
const CALLERS: [u8; 2] = [11, 12];
const CALLEES: [u8; 2] = [2, 3];
const KEYS: u8 = 5;

#[derive(Clone, Debug)]
enum Op {
    Start(usize, u8),
    Chunk(usize, usize),
    End(usize, usize),
    Ack(usize, usize),
    Nack(usize, usize),
    Cancel(usize, u8),
    Get(usize, u8),
    Drop(usize),
    /// It hears nothing more on this socket.
    Deaf(usize),
    /// Comes back: with its token and what it has in hand, or as another process.
    Dial(usize, bool),
    Bye(usize),
    Block(usize, bool),
    Pass(u64),
    Disk(Disk),
    Commit(usize),
    Crash(usize),
}

/// What an answer will be about.
#[derive(Clone, Debug)]
enum Asked {
    Hello,
    Start(u8),
    Chunk(RunId, u64),
    /// With the result that it was given.
    End(RunId, u64),
    Get(RunId),
    Other,
}

/// A run that it answers.
#[derive(Clone, Debug)]
struct Work {
    tag: Tag,
    acked: bool,
    next: u64,
    over: bool,
}

#[derive(Debug, Default)]
struct Person {
    n: u8,
    process: u32,
    conn: Option<ConnId>,
    greeted: bool,
    deaf: bool,
    lease: Option<LeaseId>,
    position: Option<(Epoch, u64)>,
    asked: BTreeMap<RequestId, Asked>,
    work: BTreeMap<RunId, Work>,
    /// What it has of its runs: the chunk that it wants next, and whether it has the end.
    calls: BTreeMap<RunId, (u64, bool)>,
}

/// How a run ended: everybody must say the same.
type End = (RunState, Option<Value>, Option<ErrorCode>);

struct Sim {
    world: World,
    people: Vec<Person>,
    runs: BTreeMap<u8, RunId>,
    ends: BTreeMap<RunId, End>,
    handed: BTreeMap<RunId, BTreeSet<u8>>,
}

fn target(key: u8) -> Address {
    match key % 3 {
        0 => to(CALLEES[0]),
        1 => to(CALLEES[1]),
        _ => Address::Member(member(CALLEES[0])),
    }
}

fn call(key: u8) -> RunStartParams {
    ring(target(key), &format!("k{key}"))
}

impl Sim {
    fn new(engine: Engine) -> Sim {
        let world = World::new(engine, MeshConfig::default());
        let people = CALLERS.into_iter().chain(CALLEES).map(|n| Person { n, ..Person::default() }).collect();
        let (runs, ends, handed) = Default::default();
        let mut sim = Sim { world, people, runs, ends, handed };
        (0..sim.people.len()).for_each(|who| sim.dial(who, true));
        sim
    }

    fn ask(&mut self, who: usize, asked: Asked, call: Call) {
        let person = &self.people[who];
        let Some(conn) = person.conn.filter(|conn| person.greeted && self.world.socket(*conn).open) else {
            return;
        };
        let (input, request) = self.world.request(conn, call);
        self.people[who].asked.insert(request, asked);
        self.world.tell(input);
        self.hear();
    }

    fn dial(&mut self, who: usize, same: bool) {
        let person = &mut self.people[who];
        if !same {
            let (n, process) = (person.n, person.process + 1);
            *person = Person { n, process, ..Person::default() };
        }
        let inflight = person.work.values().filter(|work| !work.acked && !work.over).map(|work| {
            ClientInflight { tag: work.tag.clone(), state: InflightState::Processing, settle: None }
        });
        let listed = ReconcileParams { inflight: inflight.collect(), ..ReconcileParams::default() };
        let hello = Admission {
            instance: format!("i{}-{}", person.n, person.process).parse().unwrap(),
            inbox: InboxChoice::Both,
            token: person.lease.clone().map_or(TokenVerdict::Absent, TokenVerdict::Selects),
            position: person.position.clone(),
            reconcile: same.then(|| HelloReconcile::Now(Box::new(listed))),
            ..knock(person.n)
        };
        (person.greeted, person.deaf) = (false, false);
        person.asked.clear();
        let conn = self.world.dial(hello);
        self.people[who].conn = Some(conn);
        let hello = self.world.socket(conn).asked.iter().next().cloned();
        let hello = hello.or_else(|| self.world.socket(conn).answers.keys().next().cloned());
        self.people[who].asked.extend(hello.map(|hello| (hello, Asked::Hello)));
        self.hear();
    }

    fn lose(&mut self, who: usize) {
        let Some(conn) = self.people[who].conn.take() else { return };
        self.world.drop_socket(conn);
        (self.people[who].greeted, self.people[who].deaf) = (false, false);
        self.hear();
    }

    /// Everybody takes notice of what has come, until nothing does.
    fn hear(&mut self) {
        loop {
            let mut again = Vec::new();
            for who in 0..self.people.len() {
                let Some(conn) = self.people[who].conn else { continue };
                let socket = self.world.sockets.get_mut(&conn).unwrap();
                if self.people[who].deaf || socket.unflushed {
                    if !socket.open {
                        // It was closed before anything arrived.
                        (self.people[who].conn, self.people[who].greeted) = (None, false);
                    }
                    continue;
                }
                let (answers, pushes) =
                    (std::mem::take(&mut socket.answers), std::mem::take(&mut socket.pushes));
                let (events, open) = (std::mem::take(&mut socket.events), socket.open);
                if let Some((_, seq)) = &mut self.people[who].position {
                    *seq = socket.last_seq;
                }
                for (request, outcome) in answers {
                    if let Some(asked) = self.people[who].asked.remove(&request) {
                        self.answered(who, asked, outcome, &mut again);
                    }
                }
                pushes.into_iter().for_each(|push| self.pushed(who, push));
                for event in events {
                    if let EventBody::Run(event) = event {
                        self.told(who, &event);
                    }
                }
                if !open {
                    self.people[who].conn = None;
                    self.people[who].greeted = false;
                }
            }
            if again.is_empty() {
                return;
            }
            // As an SDK does: what it watches it asks for again, from what it has.
            for (who, key) in again {
                self.start(who, key);
            }
        }
    }

    fn answered(&mut self, who: usize, asked: Asked, outcome: Outcome, again: &mut Vec<(usize, u8)>) {
        let person = &mut self.people[who];
        match (asked, outcome) {
            (Asked::Hello, Ok(Answer::Hello(hello))) => {
                (person.greeted, person.lease) = (true, Some(hello.lease_id.clone()));
                if hello.replay != Replay::Complete {
                    person.position = Some((hello.epoch.clone(), 0));
                    let open = |run: &RunId| person.calls.get(run).is_some_and(|(_, over)| !over);
                    let keys = self.runs.iter().filter(|(_, run)| open(run));
                    again.extend(keys.map(|(key, _)| (who, *key)));
                }
            }
            (Asked::Start(key), Ok(Answer::RunStart(result))) => {
                let known = *self.runs.entry(key).or_insert(result.run_id);
                assert_eq!(known, result.run_id, "one key, one run");
                let (_, over) = *person.calls.entry(known).or_insert((1, false));
                if let Some((state, ..)) = self.ends.get(&known).filter(|_| over) {
                    assert_eq!(*state, result.state, "it had ended");
                }
            }
            (Asked::Chunk(run, seq), Ok(_)) => {
                if let Some(work) = person.work.get_mut(&run) {
                    work.next = work.next.max(seq + 1);
                }
            }
            (Asked::End(run, result), Ok(_)) => {
                if let Some(work) = person.work.get_mut(&run) {
                    work.over = true;
                }
                self.ended(run, (RunState::Ok, Some(json!(result)), None));
            }
            (Asked::Chunk(run, _) | Asked::End(run, _), Err(error)) => match error.code {
                ErrorCode::Unavailable | ErrorCode::LeaseExpired => {}
                ErrorCode::Conflict => {
                    if let Some(work) = person.work.get_mut(&run) {
                        work.over = true;
                    }
                }
                other => panic!("a callee that counts well was told {other}"),
            },
            (Asked::Get(run), Ok(Answer::RunGet(got))) => match got.state {
                RunState::Queued | RunState::Running => {
                    // Others may hear of its end before this one hears what it was told before that.
                    assert!(person.calls.get(&run).is_none_or(|(_, over)| !over), "{run} lives again");
                }
                state => self.ended(run, (state, got.result, got.error.map(|error| error.code))),
            },
            (Asked::Get(_) | Asked::Start(_), Err(error)) => {
                let fine = [ErrorCode::Unavailable, ErrorCode::NotFound, ErrorCode::LeaseExpired];
                assert!(fine.contains(&error.code), "{error}");
            }
            _ => {}
        }
    }

    /// Somebody learns how a run ended.
    fn ended(&mut self, run: RunId, end: End) {
        let known = self.ends.entry(run).or_insert_with(|| end.clone());
        assert_eq!(*known, end, "a run ends once");
    }

    fn pushed(&mut self, who: usize, push: Push) {
        assert_eq!(push.entry.envelope.kind, MessageKind::Run);
        let run = RunId(push.entry.envelope.id.0);
        let n = self.people[who].n;
        let hands = self.handed.entry(run).or_default();
        hands.insert(n);
        assert_eq!(hands.len(), 1, "{run} was handed to two");
        let tag = tag(&push);
        let fresh = Work { tag: tag.clone(), acked: false, next: 1, over: false };
        self.people[who].work.entry(run).or_insert(fresh).tag = tag;
    }

    fn told(&mut self, who: usize, event: &RunEvent) {
        let run = event.run_id;
        if event.cancel {
            return;
        }
        let seq = event.seq.unwrap().get();
        // It may come although the answer of `run.start` was lost.
        let (next, over) = self.people[who].calls.entry(run).or_insert((1, false));
        assert!(seq <= *next || event.gap, "{run}: {seq} after {next}, and no gap");
        if event.end.is_none() {
            *next = (*next).max(seq + 1);
        } else {
            *over = true;
        }
        if let Some(data) = &event.data {
            assert_eq!(*data, json!(format!("{run}/{seq}")));
        }
        if let Some(end) = &event.end {
            let state = tenure_mesh::runs::run::state_after(end.status);
            self.ended(run, (state, end.result.clone(), end.error.as_ref().map(|error| error.code)));
        }
    }

    fn start(&mut self, who: usize, key: u8) {
        let known = self.runs.get(&key).and_then(|run| self.people[who].calls.get(run));
        let params = known.map_or_else(|| call(key), |(next, _)| from(call(key), *next));
        let start = self.world.starting(params).unwrap();
        self.ask(who, Asked::Start(key), start);
    }

    /// One of the runs that somebody works on.
    fn job(&self, who: usize, which: usize) -> Option<(RunId, Work)> {
        let open: Vec<_> = self.people[who].work.iter().filter(|(_, work)| !work.over).collect();
        let (run, work) = open.get(which % open.len().max(1))?;
        Some((**run, (*work).clone()))
    }

    fn step(&mut self, op: &Op) {
        match op.clone() {
            Op::Start(who, key) => self.start(who, key),
            Op::Chunk(who, which) => {
                if let Some((run, work)) = self.job(who, which) {
                    let said = chunk(run, work.next, &format!("{run}/{}", work.next));
                    self.ask(who, Asked::Chunk(run, work.next), said);
                }
            }
            Op::End(who, which) => {
                if let Some((run, work)) = self.job(who, which) {
                    self.ask(who, Asked::End(run, work.next), ending(run, work.next));
                }
            }
            Op::Ack(who, which) => {
                if let Some((run, work)) = self.job(who, which) {
                    self.people[who].work.get_mut(&run).unwrap().acked = true;
                    self.ask(who, Asked::Other, Call::Ack(TagsParams { tags: vec![work.tag] }));
                }
            }
            Op::Nack(who, which) => {
                if let Some((_, work)) = self.job(who, which) {
                    self.ask(who, Asked::Other, Call::Nack(nacked(vec![work.tag])));
                }
            }
            Op::Cancel(who, key) => {
                if let Some(run_id) = self.runs.get(&key).copied() {
                    self.ask(who, Asked::Other, Call::RunCancel(RunIdParams { run_id }));
                }
            }
            Op::Get(who, key) => {
                if let Some(run_id) = self.runs.get(&key).copied() {
                    self.ask(who, Asked::Get(run_id), Call::RunGet(RunIdParams { run_id }));
                }
            }
            Op::Drop(who) => self.lose(who),
            Op::Deaf(who) => self.people[who].deaf = true,
            Op::Dial(who, same) => self.dial(who, same),
            Op::Bye(who) => self.ask(who, Asked::Other, Call::Bye),
            Op::Block(who, blocked) => {
                let Some(conn) = self.people[who].conn else { return };
                if blocked {
                    self.world.sockets.get_mut(&conn).unwrap().flushes = false;
                } else {
                    self.world.unblock(conn);
                    self.hear();
                }
            }
            Op::Pass(ms) => {
                self.world.pass(ms);
                self.hear();
            }
            Op::Disk(disk) => {
                self.world.set_disk(disk);
                if disk != Disk::Holds {
                    self.world.commit(usize::MAX);
                    self.hear();
                }
            }
            Op::Commit(count) => {
                self.world.commit(count);
                self.hear();
            }
            Op::Crash(landed) => {
                self.world.crash(landed);
                for person in &mut self.people {
                    (person.conn, person.greeted, person.deaf) = (None, false, false);
                }
            }
        }
    }

    /// Everything works again, and every run that was accepted ends.
    fn quiesce(&mut self) {
        self.step(&Op::Disk(Disk::Commits));
        for round in 0..20 {
            for who in 0..self.people.len() {
                if self.people[who].deaf {
                    self.lose(who);
                }
                self.step(&Op::Block(who, false));
                if self.people[who].conn.is_none() {
                    self.dial(who, true);
                }
                // Some of what is left is answered, the rest runs out of time.
                if round < 2 {
                    self.step(&Op::End(who, 0));
                }
            }
            self.step(&Op::Pass(RUN_TIMEOUT_MS / 10));
        }
        for (key, run) in self.runs.clone() {
            for who in 0..CALLERS.len() {
                self.step(&Op::Get(who, key));
                self.step(&Op::Start(who, key));
                assert!(self.people[who].calls[&run].1, "{run} was lost, or its end was");
            }
            assert!(self.ends.contains_key(&run));
        }
        assert_eq!(self.world.store().check().unwrap(), Vec::<String>::new());
    }
}

fn op() -> impl Strategy<Value = Op> {
    let caller = || 0..CALLERS.len();
    let callee = || CALLERS.len()..CALLERS.len() + CALLEES.len();
    let anybody = || 0..CALLERS.len() + CALLEES.len();
    let key = || 0..KEYS;
    let around = [1, 25, 1_000, 60_000, 90_000, RUN_TIMEOUT_MS];
    let pass = prop::sample::select(around.to_vec()).prop_flat_map(|ms: u64| ms.saturating_sub(2)..ms + 3);
    let disk = prop_oneof![3 => Just(Disk::Commits), 3 => Just(Disk::Holds), 1 => Just(Disk::Fails)];
    prop_oneof![
        12 => (caller(), key()).prop_map(|(who, key)| Op::Start(who, key)),
        24 => (callee(), 0..4usize).prop_map(|(who, which)| Op::Chunk(who, which)),
        6 => (callee(), 0..4usize).prop_map(|(who, which)| Op::End(who, which)),
        3 => (callee(), 0..4usize).prop_map(|(who, which)| Op::Ack(who, which)),
        1 => (callee(), 0..4usize).prop_map(|(who, which)| Op::Nack(who, which)),
        3 => (caller(), key()).prop_map(|(who, key)| Op::Cancel(who, key)),
        3 => (caller(), key()).prop_map(|(who, key)| Op::Get(who, key)),
        5 => anybody().prop_map(Op::Drop),
        2 => anybody().prop_map(Op::Deaf),
        10 => (anybody(), prop::bool::weighted(0.9)).prop_map(|(who, same)| Op::Dial(who, same)),
        1 => anybody().prop_map(Op::Bye),
        4 => (anybody(), any::<bool>()).prop_map(|(who, blocked)| Op::Block(who, blocked)),
        6 => pass.prop_map(Op::Pass),
        6 => disk.prop_map(Op::Disk),
        4 => (1usize..6).prop_map(Op::Commit),
        3 => (0usize..6).prop_map(Op::Crash),
    ]
}

fn run(engine: Engine, ops: &[Op]) {
    let mut sim = Sim::new(engine);
    for op in ops {
        sim.step(op);
    }
    sim.quiesce();
}

proptest! {
    #![proptest_config(config(200))]

    #[test]
    fn whatever_happens_a_run_ends_once_and_is_never_lost(ops in prop::collection::vec(op(), 1..100)) {
        run(Engine::memory(), &ops);
    }
}

proptest! {
    #![proptest_config(config(8))]

    #[test]
    fn whatever_happens_a_run_ends_once_and_is_never_lost_on_disk(ops in prop::collection::vec(op(), 40..100)) {
        run(Engine::sqlite(), &ops);
    }
}

#[test]
fn what_ended_before_its_callee_was_back_is_not_in_its_hand() {
    // Handed out before a crash that came before the store knew; over by the time its callee says that it has it.
    let ops = [Op::Start(0, 0), Op::Crash(0), Op::Disk(Disk::Fails), Op::Pass(600_002), Op::Dial(2, true)];
    run(Engine::sqlite(), &ops);
}

#[test]
fn an_end_is_what_was_said_whatever_was_heard_since() {
    let ops = [Op::Start(0, 1), Op::Block(3, true), Op::Start(0, 4), Op::Chunk(3, 0), Op::End(3, 0)];
    run(Engine::memory(), &ops);
}
