//! Any sequence of requests, crashes and broker's answers, against a model of what was promised: nothing that was
//! accepted is lost, doubled or altered.

use std::collections::BTreeMap;
use std::path::PathBuf;

use proptest::prelude::*;
use tempfile::TempDir;
use tenure_outbox::requeue::Lookup;
use tenure_outbox::{Answer, Place, Status};

use super::*;

#[derive(Clone, Debug)]
enum Op {
    /// A program hands something over: so-many-th id, one of two bodies.
    Send {
        id: u8,
        other: bool,
    },
    /// The oldest row of a lane goes out; what the broker makes of it.
    Drain {
        lane: u8,
        fate: Fate,
    },
    /// Another program of the same member sends another message under so-many-th id, without the daemon.
    Foreign {
        id: u8,
    },
    /// The machine dies: the files as they are at this moment are all there is.
    Crash,
    /// A person sends a row anew, or takes it back.
    Requeue {
        row: u8,
    },
    Withdraw {
        row: u8,
    },
    /// Rows that were accepted before this moment are given up.
    Expire {
        before: u8,
    },
}

#[derive(Clone, Copy, Debug)]
enum Fate {
    Accepted,
    /// Accepted, and nobody hears of it: the daemon dies with the answer on its way.
    AcceptedAndCrash,
    /// Accepted, and the answer does not come.
    AcceptedUnheard,
    Busy,
    Refused,
    NeverSent,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let fate = prop_oneof![
        4 => Just(Fate::Accepted),
        1 => Just(Fate::AcceptedAndCrash),
        2 => Just(Fate::AcceptedUnheard),
        2 => Just(Fate::Busy),
        1 => Just(Fate::Refused),
        1 => Just(Fate::NeverSent),
    ];
    let op = prop_oneof![
        6 => (0..12u8, proptest::bool::weighted(0.2)).prop_map(|(id, other)| Op::Send { id, other }),
        6 => (0..3u8, fate).prop_map(|(lane, fate)| Op::Drain { lane, fate }),
        1 => Just(Op::Crash),
        1 => (0..12u8).prop_map(|id| Op::Foreign { id }),
        1 => (0..14u8).prop_map(|row| Op::Requeue { row }),
        1 => (0..14u8).prop_map(|row| Op::Withdraw { row }),
        1 => (0..60u8).prop_map(|before| Op::Expire { before }),
    ];
    proptest::collection::vec(op, 1..60)
}

/// A broker that keeps its word: an id is one message for ever.
#[derive(Default)]
struct Broker {
    known: BTreeMap<String, (String, u64)>,
    log: Vec<(String, String)>,
    /// The prefix of the fingerprint of each body.
    prints: BTreeMap<String, String>,
}

/// The body of what another program sent to the broker.
const FOREIGN: &str = "of another program";

impl Broker {
    fn accept(&mut self, params: &SendParams) -> Place {
        let id = params.client_message_id.to_string();
        let body = params.body.clone().unwrap();
        let next = self.log.len() as u64 + 1;
        let print = params.fingerprint.as_ref().unwrap()[..16].to_owned();
        assert_eq!(*self.prints.entry(body.clone()).or_insert(print.clone()), print);
        let (held, seq) = self.known.entry(id.clone()).or_insert((body.clone(), next)).clone();
        assert_eq!(held, body, "{id} was altered on its way");
        if seq == next {
            self.log.push((id, body));
        }
        super::place(seq)
    }

    fn lookup(&self, id: &str, attempts: u32) -> Lookup {
        let unknown = Lookup::Unknown { attempts };
        let known = |(body, seq): &(String, u64)| {
            let prefix = Some(self.prints[body].clone());
            Lookup::Known { place: super::place(*seq), prefix }
        };
        self.known.get(id).map_or(unknown, known)
    }

    /// Another program of the member sends something of its own under an id.
    fn take_foreign(&mut self, id: &str) {
        let params = request(id, "topic:t0", FOREIGN);
        if !self.known.contains_key(id) {
            self.accept(params.params());
        }
    }

    fn is_foreign(&self, id: &str) -> bool {
        self.known.get(id).is_some_and(|(body, _)| body == FOREIGN)
    }
}

struct World {
    home: TempDir,
    dir: PathBuf,
    crashes: u32,
    outbox: Outbox,
    broker: Broker,
    /// What was promised: id to body and lane, in the order of the promises.
    promised: BTreeMap<String, (String, u8)>,
    lanes: BTreeMap<u8, LaneId>,
    wall: u64,
    anew: u32,
}

fn lane_of(id: u8) -> u8 {
    id % 3
}

impl World {
    fn new() -> World {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("0");
        fs::create_dir(&dir).unwrap();
        let outbox = open(&dir);
        let (broker, promised, lanes) = Default::default();
        World { home, dir, crashes: 0, outbox, broker, promised, lanes, wall: 0, anew: 0 }
    }

    fn crash(&mut self) {
        self.crashes += 1;
        let copy = self.home.path().join(self.crashes.to_string());
        copy_files(&self.dir, &copy);
        self.outbox = open(&copy);
        self.dir = copy;
    }

    async fn send(&mut self, n: u8, other: bool) {
        let id = format!("id-{n}");
        let body = format!("body {n} {other}");
        let lane = lane_of(n);
        let accepted =
            self.outbox.accept(request(&id, &format!("topic:t{lane}"), &body), self.wall).await.unwrap();
        match accepted.answer {
            Answer::Insert => {
                assert!(self.promised.insert(id, (body, lane)).is_none(), "an id was free twice");
                self.lanes.insert(lane, accepted.row.unwrap().1);
            }
            Answer::Conflict(conflict) => {
                let held = &self.promised[&id].0;
                let used_up = matches!(conflict.status, Status::Dead | Status::Aborted);
                assert!(*held != body || used_up, "{conflict:?}");
            }
            Answer::Done(place) => {
                assert_eq!(self.promised[&id].0, body);
                assert_eq!(place.unwrap().seq, Some(self.broker.known[&id].1));
            }
            Answer::Queued | Answer::Inflight => assert_eq!(self.promised[&id].0, body),
        }
    }

    async fn drain(&mut self, lane: u8, fate: Fate) {
        let Some(lane) = self.lanes.get(&lane).copied() else { return };
        let Some(row) = take(&self.outbox, lane).await else { return };
        let id = row.params.client_message_id.to_string();
        assert_eq!(
            row.params.body.as_deref(),
            Some(self.promised[&id].0.as_str()),
            "{id} was altered on the disk"
        );
        let unheard = || Verdict::Again { error: "unavailable: no answer".into(), wish_ms: None };
        let verdict = match fate {
            Fate::Accepted | Fate::AcceptedUnheard if self.broker.is_foreign(&id) => {
                Verdict::Dead { error: "idempotency_key_reused: another message".into() }
            }
            Fate::AcceptedAndCrash if self.broker.is_foreign(&id) => return self.crash(),
            Fate::Accepted => Verdict::Done(self.broker.accept(&row.params)),
            Fate::AcceptedAndCrash => {
                self.broker.accept(&row.params);
                return self.crash();
            }
            Fate::AcceptedUnheard => {
                self.broker.accept(&row.params);
                unheard()
            }
            Fate::Busy => unheard(),
            // A broker refuses for good only what it does not know.
            Fate::Refused if self.broker.known.contains_key(&id) => unheard(),
            Fate::Refused => Verdict::Dead { error: "no_such_session: never".into() },
            Fate::NeverSent => return self.crash(),
        };
        settle(&self.outbox, lane, row.id, verdict, self.wall, self.wall).await;
    }

    async fn requeue(&mut self, row: u64) {
        self.anew += 1;
        let id = format!("new-{}", self.anew);
        let Some(old) = self.outbox.get(row).await.unwrap() else { return };
        let lookup = self.broker.lookup(&old.client_message_id, old.attempts);
        match self.outbox.requeue(row, anew(&id, lookup), self.wall).await.unwrap() {
            Requeued::Replaced { .. } => {
                let held = self.promised[&old.client_message_id].clone();
                self.promised.insert(id, held);
            }
            Requeued::Finished(place) => {
                assert!(!self.broker.is_foreign(&old.client_message_id), "another message was taken for it");
                assert_eq!(place.seq, Some(self.broker.known[&old.client_message_id].1))
            }
            Requeued::Refused(_) => {}
            other => panic!("{other:?}"),
        }
    }

    /// In the end the broker is well: everything leaves that can.
    async fn settle_all(&mut self) {
        for lane in self.lanes.keys().copied().collect::<Vec<_>>() {
            for _ in 0..100 {
                self.drain(lane, Fate::Accepted).await;
            }
        }
    }

    async fn check(&self) {
        let rows = self.outbox.list(None, 0, 1_000).await.unwrap();
        assert_eq!(rows.len(), self.promised.len(), "a row is lost or doubled");
        for row in &rows {
            let id = &row.client_message_id;
            let at_broker = self.broker.known.get(id);
            match row.status {
                Status::Done => {
                    assert_eq!(row.place, at_broker.map(|(_, seq)| super::place(*seq)), "{id}");
                }
                Status::Dead | Status::Aborted => {}
                Status::Pending | Status::Inflight => panic!("{id} is forgotten: {row:?}"),
            }
            let own = at_broker.is_none_or(|(body, _)| *body == self.promised[id].0);
            assert!(own || self.broker.is_foreign(id) && row.status != Status::Done, "{id}");
        }
        for (id, body) in self.broker.log.iter().filter(|(_, body)| body != FOREIGN) {
            assert_eq!(self.promised[id].0, *body);
        }
        // One message is not sent under two ids unless the broker was asked.
        for row in rows.iter().filter(|row| row.superseded_by.is_some()) {
            let id = &row.client_message_id;
            let arrived = self.broker.known.contains_key(id) && !self.broker.is_foreign(id);
            assert!(!arrived, "{row:?} arrived twice");
        }
        // Of what was done, the broker has each lane in the order of the rows.
        for lane in 0..3 {
            let firsts = rows.iter().filter(|row| row.attempts > 0 && row.status == Status::Done);
            let firsts = firsts.filter(|row| self.promised[&row.client_message_id].1 == lane);
            let seqs: Vec<u64> = firsts.filter_map(|row| row.place.as_ref()?.seq).collect();
            assert!(seqs.is_sorted(), "lane {lane} is out of order: {seqs:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn nothing_accepted_is_lost_doubled_or_altered(ops in ops()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut world = World::new();
            for op in ops {
                world.wall += 1;
                match op {
                    Op::Send { id, other } => world.send(id, other).await,
                    Op::Drain { lane, fate } => world.drain(lane, fate).await,
                    Op::Foreign { id } => world.broker.take_foreign(&format!("id-{id}")),
                    Op::Crash => world.crash(),
                    Op::Requeue { row } => world.requeue(u64::from(row)).await,
                    Op::Withdraw { row } => {
                        world.outbox.withdraw(u64::from(row), "op".into(), world.wall).await.unwrap();
                    }
                    Op::Expire { before } => {
                        let before = u64::from(before).min(world.wall);
                        world.outbox.expire(mesh(), before, world.wall).await.unwrap();
                    }
                }
            }
            world.settle_all().await;
            world.check().await;
        });
    }
}
