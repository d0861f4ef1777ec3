//! Random programs of messages on an engine and on the memory model: whatever can be seen must be the same.
//!
//! The programs are those of a mesh: a cursor never passes its log nor goes back, and what is open exists and was
//! not settled before. Everything else is left to chance, so most of them bury what was pruned, revive what was never dead and evacuate empty inboxes.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;
use tenure_mesh::messages::accept::{Accept, Route};
use tenure_mesh::messages::envelope::{Body, Envelope, Lane};
use tenure_mesh::store::record::{
    Burial, GroupId, GroupRecord, GroupWrite, OpenRecord, Reader, RunEnding, SettlerChanges, SettlerRecord,
    StoreFound, StoreOutcome, StoreRead, StoreWrite, SubRecord, TopicRecord, TopicState,
};
use tenure_proto::U53;
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::ids::RunId;
use tenure_proto::limits::INBOX_TTL_MS;
use tenure_proto::log::LogName;
use tenure_proto::message::{Fallback, Priority};
use tenure_proto::run::RunState;
use tenure_proto::subscribe::{AckMode, From};

use super::messages::*;
use super::services::service;
use super::{Engine, end, lease, put};
use crate::{Memory, Store, Write};

/// One thing that happens. Small numbers, so that things happen to each other.
#[derive(Clone, Debug)]
enum Step {
    Restart,
    Starve(Vec<Small>),
    Apply(Vec<Small>),
    Sweep { later: u64, limit: u32 },
}

#[derive(Clone, Debug)]
enum Small {
    Lease { n: u8, on: bool },
    Accept { n: u8, log: u8, shape: u8, print: u8, refused: bool },
    Open { group: u8, from: u8 },
    Group { group: u8, cursor: u8, open: u8, replace: bool },
    DropGroup(u8),
    Sub { n: u8, on: bool },
    Bury { log: u8, seq: u8, group: bool, remove: bool, expired: bool },
    Revive { log: u8, seqs: Vec<u64> },
    DropDead { log: u8, seqs: Vec<u64> },
    Evacuate { n: u8, limit: u32, lane: u8, after: u64 },
    Prune { log: u8, lane: u8, through: u64, before: u64, limit: u32 },
    Topic(u8),
    EndTopic(u8),
    ClearTopic { n: u8, limit: u32 },
    Service { n: u8, name: u8, on: bool },
    Claim(u8),
    End(u8),
}

const LOGS: u8 = 5;

fn log(n: u8) -> LogName {
    match n % LOGS {
        0 => inbox(1),
        1 => inbox(2),
        2 => LogName::Member(member(1)),
        3 => topic("t"),
        _ => topic("u"),
    }
}

/// A topic with a log that is going.
fn ending(n: u8, at: u64) -> TopicRecord {
    TopicRecord {
        name: if n.is_multiple_of(2) { "t" } else { "u" }.parse().unwrap(),
        partitions: 1,
        retention_ms: None,
        created_at: at,
        owner: n.is_multiple_of(5).then(|| member(n)),
        state: if n.is_multiple_of(7) { TopicState::Unused } else { TopicState::Deleted },
    }
}

/// Group `n` always reads the same lane in the same way.
fn record(n: u8) -> GroupRecord {
    let n = n % 9;
    let (log, lane, reader) = match n {
        0..3 => (inbox(1), Lane(n), Reader::Inbox),
        3..6 => (LogName::Member(member(1)), Lane(n - 3), Reader::Inbox),
        6 => (topic("t"), Lane(0), Reader::Private(session(1))),
        7 => (topic("t"), Lane(0), Reader::Shared("g".parse().unwrap())),
        _ => (topic("u"), Lane(0), Reader::Shared("h".parse().unwrap())),
    };
    group(u64::from(n) + 1, &log, lane, reader)
}

fn small() -> impl Strategy<Value = Small> {
    let seqs = || prop::collection::vec(0..12u64, 0..4);
    prop_oneof![
        2 => (1..3u8, any::<bool>()).prop_map(|(n, on)| Small::Lease { n, on }),
        12 => (0..24u8, 0..7u8, any::<u8>(), 0..12u8, 0..12u8).prop_map(|(n, log, shape, print, refused)| {
            Small::Accept { n, log, shape, print: u8::from(print == 0), refused: refused == 0 }
        }),
        2 => (0..9u8, 0..8u8).prop_map(|(group, from)| Small::Open { group, from }),
        5 => (0..9u8, any::<u8>(), any::<u8>(), any::<bool>())
            .prop_map(|(group, cursor, open, replace)| Small::Group { group, cursor, open, replace }),
        1 => (0..9u8).prop_map(Small::DropGroup),
        1 => (1..3u8, any::<bool>()).prop_map(|(n, on)| Small::Sub { n, on }),
        4 => (0..LOGS, 0..9u8, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
            |(log, seq, group, remove, expired)| Small::Bury { log, seq, group, remove, expired }
        ),
        2 => (0..LOGS, seqs()).prop_map(|(log, seqs)| Small::Revive { log, seqs }),
        1 => (0..LOGS, seqs()).prop_map(|(log, seqs)| Small::DropDead { log, seqs }),
        2 => (1..3u8, 0..5u32, 0..3u8, 0..4u64)
            .prop_map(|(n, limit, lane, after)| Small::Evacuate { n, limit, lane, after }),
        2 => (0..LOGS, 0..3u8, 0..12u64, 0..100u64, 0..5u32).prop_map(
            |(log, lane, through, before, limit)| Small::Prune { log, lane, through, before, limit }
        ),
        1 => any::<u8>().prop_map(Small::Topic),
        1 => any::<u8>().prop_map(Small::EndTopic),
        2 => (any::<u8>(), 1..9u32).prop_map(|(n, limit)| Small::ClearTopic { n, limit }),
        2 => (1..3u8, 0..3u8, any::<bool>()).prop_map(|(n, name, on)| Small::Service { n, name, on }),
        2 => any::<u8>().prop_map(Small::Claim),
        2 => any::<u8>().prop_map(Small::End),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => Just(Step::Restart),
        1 => prop::collection::vec(small(), 1..6).prop_map(Step::Starve),
        12 => prop::collection::vec(small(), 1..8).prop_map(Step::Apply),
        1 => (0..200u64, 1..6u32).prop_map(|(later, limit)| Step::Sweep { later, limit }),
    ];
    prop::collection::vec(step, 1..30)
}

/// A program as it runs: the model, and a clock so that no two writes happen at once.
struct Program {
    model: Memory,
    clock: u64,
}

impl Program {
    fn write(&mut self, small: &Small) -> Write {
        self.clock += 1;
        let at = NOW + self.clock;
        let run_of = |row: crate::LeaseRow, on: bool| if on { put(&row) } else { end(&row) };
        self::write(match small {
            Small::Lease { n, on } => return run_of(lease("m", *n), *on),
            Small::Accept { n, log, shape, print, refused } => {
                self.accept(*n, *log, *shape, *print, *refused)
            }
            Small::Open { group, from } => {
                let from = match from {
                    0 => From::New,
                    1 => From::Earliest,
                    seq => From::Seq(U53::from(u32::from(*seq - 2))),
                };
                StoreWrite::OpenGroup { record: record(*group), from, used_at: at }
            }
            Small::Group { group, cursor, open, replace } => self.group(*group, *cursor, *open, *replace),
            // The group of an inbox lives as long as the inbox.
            Small::DropGroup(n) => StoreWrite::DropGroup(GroupId(u64::from(*n % 3) + 7)),
            Small::Sub { n, on: false } => StoreWrite::DropSub(session(*n), "s".parse().unwrap()),
            Small::Sub { n, on: true } => StoreWrite::PutSub(Box::new(SubRecord {
                session: session(*n),
                sub: "s".parse().unwrap(),
                topic: "t".parse().unwrap(),
                group: None,
                partition: None,
                ack_mode: AckMode::Manual,
                prefetch: 1,
            })),
            Small::Bury { log: of, seq, group, remove, expired } => StoreWrite::Bury(Box::new(Burial {
                log: log(*of),
                lane: Lane::of(&log(*of), Priority::Next),
                seq: u64::from(*seq),
                group: group.then(|| "g".parse().unwrap()),
                attempts: u32::from(*seq),
                reason: if *expired { "expired" } else { "max_attempts" }.to_owned(),
                at,
                remove: *remove,
            })),
            Small::Revive { log: of, seqs } => {
                StoreWrite::Revive { log: log(*of), seqs: seqs.clone(), crews: None }
            }
            Small::DropDead { log: of, seqs } => StoreWrite::DropDead { log: log(*of), seqs: seqs.clone() },
            Small::Evacuate { n, limit, lane, after } => StoreWrite::Evacuate {
                session: session(*n),
                member: member(1),
                limit: *limit,
                through: after + 5,
                after: (Lane(*lane), *after),
                at,
            },
            Small::Prune { log: of, lane, through, before, limit } => {
                let lane = if log(*of).is_inbox() { Lane(*lane) } else { Lane(0) };
                let (log, through, limit) = (log(*of), *through, *limit);
                StoreWrite::Prune {
                    log,
                    lane,
                    through,
                    before: NOW + before,
                    keep_bytes: None,
                    at: NOW,
                    limit,
                }
            }
            // Whoever offers a service has a lease.
            Small::Service { n, on: true, .. } if !self.leased(*n) => return run_of(lease("m", *n), true),
            Small::Service { n, name, on: true } => {
                StoreWrite::PutServices(vec![service(*n, &format!("s{name}"))])
            }
            Small::Service { n, name, on: false } => {
                StoreWrite::DropServices(session(*n), vec![format!("s{name}").parse().unwrap()])
            }
            Small::Topic(n) => {
                let record = TopicRecord {
                    name: format!("t{}", n % 3).parse().unwrap(),
                    partitions: u32::from(*n),
                    ..ending(*n, at)
                };
                StoreWrite::PutTopic(record)
            }
            Small::EndTopic(n) => {
                let record = Box::new(ending(*n, at));
                StoreWrite::EndTopic { record, if_empty: n.is_multiple_of(3) }
            }
            Small::ClearTopic { n, limit } => {
                StoreWrite::ClearTopic { record: Box::new(ending(*n, at)), limit: *limit }
            }
            Small::Claim(n) => self.claim(*n),
            Small::End(n) => self.end(*n, at),
        })
    }

    fn leased(&mut self, n: u8) -> bool {
        let leases = self.model.leases().unwrap();
        leases.iter().any(|lease| lease.row.session == session(n))
    }

    fn claim(&mut self, n: u8) -> StoreWrite {
        StoreWrite::ClaimRun { run: self.run(n), callee: session(n), member: member(n) }
    }

    fn end(&mut self, n: u8, at: u64) -> StoreWrite {
        let (id, last_seq, result) = (self.run(n), u64::from(n), Some(json!({"n": n})));
        let (state, error) = (RunState::Ok, None);
        StoreWrite::EndRun(Box::new(RunEnding { id, state, last_seq, result, error, at }))
    }

    /// One of the runs that live, or one that never was.
    fn run(&mut self, n: u8) -> RunId {
        let living = self.model.restore(&mesh()).unwrap().runs;
        living.get(usize::from(n) % (living.len() + 1)).map_or(RunId(1), |run| run.id)
    }

    fn accept(&self, n: u8, to: u8, shape: u8, print: u8, refused: bool) -> StoreWrite {
        let at = NOW + self.clock;
        let mut envelope = Envelope {
            id: tenure_proto::MessageId::from_parts(at, u128::from(self.clock)),
            sent_at: at,
            priority: [Priority::Next, Priority::Next, Priority::Now, Priority::Low][usize::from(shape % 4)],
            fallback: [Fallback::Member, Fallback::Hold, Fallback::Fail][usize::from(shape % 3)],
            expires_at: shape.is_multiple_of(5).then_some(at + u64::from(shape)),
            body: Body::Bytes(vec![shape; usize::from(shape)]),
            ..plain(u64::from(n))
        };
        envelope.from.member = member(n % 2);
        // As a mesh has it: a run is in an inbox, it does not move, and its key outlives it.
        let topic = to < LOGS && !log(to).is_inbox();
        let is_run = !topic && envelope.fallback == Fallback::Hold;
        let route = if to < LOGS { Route::Log(log(to)) } else { Route::Absent(session(to - LOGS + 1)) };
        StoreWrite::Accept(Arc::new(Accept {
            envelope: Arc::new(envelope),
            fingerprint: self::print(print),
            route,
            refusal: refused.then(|| WireError::new(ErrorCode::Busy, "full")),
            // Of one topic all are remembered as long, as a mesh has it.
            remember_until: (topic || (!is_run && !shape.is_multiple_of(7))).then_some(at + 30),
            full: shape.is_multiple_of(11).then(|| member(1)).into_iter().collect(),
            run: is_run.then_some(at + 40),
        }))
    }

    /// A change of a group that a mesh could ask for, by what the model holds now.
    fn group(&mut self, n: u8, cursor: u8, open: u8, replace: bool) -> StoreWrite {
        let record = record(n);
        let logs = self.model.restore(&mesh()).unwrap().logs;
        let found = logs.iter().find(|found| found.log == record.log);
        let end = found.map_or(0, |found| found.lanes.iter().map(|lane| lane.end).max().unwrap_or(0));
        let groups = self.model.restore(&mesh()).unwrap().groups;
        let before = groups.iter().find(|found| found.record.id == record.id);
        let passed = before.map_or(0, |before| before.cursor);
        let cursor = passed + u64::from(cursor) % (end + 1 - passed);
        let was_open =
            |seq: u64| before.is_some_and(|before| before.open.iter().any(|open| open.0.seq == seq));
        let (put, del): (Vec<u64>, Vec<u64>) = seqs(&self.model, &record.log, record.lane)
            .into_iter()
            .filter(|seq| *seq <= cursor && (*seq > passed || was_open(*seq)))
            .partition(|seq| (open >> (seq % 8)) & 1 == 1);
        let used_at = NOW + self.clock;
        let put = put.iter().map(|seq| OpenRecord { ready_at: Some(used_at), ..opened(*seq) }).collect();
        // What was settled after more than one had it, and what is forgotten of that.
        let settler = |seq: &u64| SettlerRecord { seq: *seq, attempt: 2, session: session(n), nth: *seq };
        let settled = del.iter().filter(|seq| *seq % 2 == 0).map(settler).collect();
        let settlers = SettlerChanges { put: settled, del: vec![passed / 2] };
        StoreWrite::Group(Box::new(GroupWrite { record, cursor, used_at, replace, put, del, settlers }))
    }
}

/// Everything that can be read, in one order.
fn everything(store: &mut impl Store, now: u64) -> Vec<StoreFound> {
    let mut reader = store.reader().unwrap();
    let mut reads = Vec::new();
    for n in 0..LOGS {
        let log = log(n);
        for lane in Lane::of_log(&log) {
            let (log, lane) = (log.clone(), *lane);
            reads.push(StoreRead::Page { log: log.clone(), lane, after: 0, limit: 99, bytes: 1 << 30 });
            reads.push(StoreRead::Page { log: log.clone(), lane, after: 2, limit: 3, bytes: 300 });
            reads.push(StoreRead::Entries { log: log.clone(), lane, seqs: vec![1, 3, 4] });
            reads.push(StoreRead::Oldest { places: vec![(log.clone(), lane, 0), (log, lane, 3)] });
        }
        reads.push(StoreRead::History { log: log.clone(), from: 2, limit: 4, bytes: 500 });
        reads.push(StoreRead::Ids { places: (0..6).map(|seq| (log.clone(), seq)).collect() });
        reads.push(StoreRead::Dead { log: log.clone(), after: 0, limit: 99, bytes: 1 << 30 });
        reads.push(StoreRead::Dead { log, after: 1, limit: 1, bytes: 100 });
    }
    for n in 0..2 {
        let ids = (0..24).map(|n| format!("c-{n}").parse().unwrap()).collect();
        reads.push(StoreRead::Fates { member: member(n), ids });
    }
    for clock in 0..32 {
        let id = tenure_proto::MessageId::from_parts(NOW + clock, u128::from(clock));
        reads.push(StoreRead::Run(RunId(id.0)));
    }
    reads.push(StoreRead::Expired { now, limit: 9_999 });
    reads.push(StoreRead::Expired { now: now + INBOX_TTL_MS, limit: 9_999 });
    let mut found: Vec<StoreFound> = reads.iter().map(|read| reader.read(&mesh(), read).unwrap()).collect();
    for found in &mut found {
        if let StoreFound::Expired(entries) = found {
            entries.sort_by_key(|entry| (entry.log.clone(), entry.seq));
        }
    }
    found
}

/// A change of a group is made by what the model holds, and so is a service: they begin a batch.
fn batches(smalls: &[Small]) -> impl Iterator<Item = &[Small]> {
    smalls.chunk_by(|_, next| !matches!(next, Small::Group { .. } | Small::Service { .. }))
}

fn sweep(store: &mut impl Store, write: &Write) -> u64 {
    let mut sum = 0;
    loop {
        match &store.apply(std::slice::from_ref(write)).unwrap()[..] {
            [StoreOutcome::Count { rows, more }] => {
                sum += rows;
                if !more {
                    return sum;
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Runs random programs on `E` and on the model, and compares every answer and all that can be read.
pub(crate) fn agree<E: Engine>() {
    let config = ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(steps in steps())| {
        let place = E::new();
        let mut store = place.open();
        let mut program = Program { model: Memory::new(), clock: 0 };
        store.begin_run(0).unwrap();
        program.model.begin_run(0).unwrap();
        for step in &steps {
            match step {
                Step::Restart => {
                    drop(store);
                    store = place.open();
                }
                Step::Starve(smalls) => {
                    // What only fills pages that are there may fit, so the model does what the store did.
                    let smalls = batches(smalls).next().unwrap_or_default();
                    let batch: Vec<Write> = smalls.iter().map(|small| program.write(small)).collect();
                    E::starve(&mut store, true);
                    let outcome = store.apply(&batch);
                    E::starve(&mut store, false);
                    if let Ok(outcomes) = outcome {
                        prop_assert_eq!(outcomes, program.model.apply(&batch).unwrap());
                    }
                }
                Step::Apply(smalls) => {
                    for smalls in batches(smalls) {
                        let batch: Vec<Write> = smalls.iter().map(|small| program.write(small)).collect();
                        prop_assert_eq!(store.apply(&batch), program.model.apply(&batch));
                    }
                }
                Step::Sweep { later, limit } => {
                    let now = NOW + program.clock + later;
                    let write = write(StoreWrite::Sweep { now, dead_before: now - 50, runs_before: now - 20, limit: *limit });
                    prop_assert_eq!(sweep(&mut store, &write), sweep(&mut program.model, &write));
                }
            }
            prop_assert_eq!(store.restore(&mesh()), program.model.restore(&mesh()));
            let now = NOW + program.clock + 50;
            prop_assert_eq!(everything(&mut store, now), everything(&mut program.model, now));
        }
        // Prints are drawn, so that some requests are the same and others are not.
        let mut findings = store.check().unwrap();
        findings.retain(|finding| !finding.contains("its fingerprint"));
        prop_assert_eq!(findings, Vec::<String>::new());
    });
}
