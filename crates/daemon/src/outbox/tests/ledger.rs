//! The SQLite outbox does what the ledger does, which the simulator runs in its place: the same calls, the same answers
//! and the same rows, through any number of crashes.

use std::collections::VecDeque;

use proptest::prelude::*;
use tenure_outbox::ledger::Ledger;

use super::*;

#[derive(Clone, Debug)]
enum Op {
    Accept {
        id: u8,
        other: bool,
    },
    Take {
        lane: u8,
        limit: usize,
    },
    Settle {
        verdicts: Vec<u8>,
        take: usize,
    },
    Expire {
        before: u64,
    },
    /// Row `row` is sent anew under an id, with another body or not; the broker has something under its old id, or not.
    Requeue {
        row: u64,
        id: u8,
        patch: bool,
        lookup: u8,
    },
    Crash,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        6 => (0..30u8, proptest::bool::weighted(0.2)).prop_map(|(id, other)| Op::Accept { id, other }),
        3 => (0..5u8, 0..5usize).prop_map(|(lane, limit)| Op::Take { lane, limit }),
        4 => (proptest::collection::vec(0..4u8, 0..5), 0..4usize)
            .prop_map(|(verdicts, take)| Op::Settle { verdicts, take }),
        1 => (0..60u64).prop_map(|before| Op::Expire { before }),
        2 => (0..30u64, 0..60u8, proptest::bool::weighted(0.3), 0..4u8)
            .prop_map(|(row, id, patch, lookup)| Op::Requeue { row, id, patch, lookup }),
        1 => Just(Op::Crash),
    ];
    proptest::collection::vec(op, 1..60)
}

fn verdict(kind: u8, n: u64) -> Verdict {
    match kind {
        0 => Verdict::Done(place(n)),
        1 => Verdict::Again { error: format!("busy: {n}"), wish_ms: None },
        2 => Verdict::Lapsed,
        _ => Verdict::Dead { error: format!("no_such_session: {n}") },
    }
}

/// Both, and the batches that are on their way.
struct Pair {
    home: tempfile::TempDir,
    crashes: u32,
    outbox: Outbox,
    ledger: Ledger,
    batches: VecDeque<(LaneId, Vec<Outgoing>)>,
    wall: u64,
}

impl Pair {
    fn dir(&self) -> std::path::PathBuf {
        self.home.path().join(self.crashes.to_string())
    }

    async fn step(&mut self, op: Op) {
        self.wall += 1;
        match op {
            Op::Accept { id, other } => {
                // Some are large, so that batches are bounded in bytes as well.
                let body = format!("{other}{}", "x".repeat(if id % 7 == 0 { 30_000 } else { 1 }));
                let request = request(&id.to_string(), &format!("topic:t{}", id % 4), &body);
                let model = self.ledger.accept(ME, request.params(), *request.fingerprint(), self.wall);
                let real = self.outbox.accept(request, self.wall).await.unwrap();
                assert_eq!((real.answer, real.row), model);
            }
            Op::Take { lane, limit } => {
                let lane = LaneId(u64::from(lane));
                let real = self.outbox.take(lane, limit).await.unwrap();
                assert_eq!(real, self.ledger.take(lane, limit));
                self.under_way(lane, real);
            }
            Op::Settle { verdicts, take } => {
                let Some((lane, rows)) = self.batches.pop_front() else { return };
                let sent = verdicts.len().min(rows.len());
                let unsent = rows[sent..].iter().map(|row| row.id).collect();
                let verdicts = rows.iter().zip(verdicts).map(|(row, kind)| (row.id, verdict(kind, row.id)));
                let verdicts = verdicts.collect();
                let next_attempt_at = self.wall + 500;
                let settlement = Settlement { lane, verdicts, unsent, next_attempt_at, take };
                let model = self.ledger.settle(&settlement);
                assert_eq!(self.outbox.settle(settlement, self.wall).await.unwrap(), model);
                self.under_way(lane, model.taken);
            }
            Op::Expire { before } => {
                assert_eq!(
                    self.outbox.expire(mesh(), before, u64::MAX).await.unwrap(),
                    self.ledger.expire(before)
                );
            }
            Op::Requeue { row, id, patch, lookup } => self.requeue(row, id, patch, lookup).await,
            Op::Crash => {
                let from = self.dir();
                self.crashes += 1;
                copy_files(&from, &self.dir());
                self.outbox = open(&self.dir());
                self.ledger.restart();
                self.batches.clear();
            }
        }
    }

    async fn requeue(&mut self, row: u64, id: u8, patch: bool, lookup: u8) {
        let Some(old) = self.ledger.rows().find(|(number, _)| *number == row).map(|(_, row)| row.clone())
        else {
            return;
        };
        let known = |prefix| Lookup::Known { place: place(row), prefix };
        let lookup = match lookup {
            0 => Lookup::NotAsked,
            1 => Lookup::Unknown { attempts: old.attempts },
            2 => known(Some(old.fingerprint.prefix())),
            _ => known(Some("0123456789abcdef".to_owned())),
        };
        let body = if patch { format!("patched {}", self.wall) } else { old.params.body.clone().unwrap() };
        let request = request(&id.to_string(), &old.params.to.to_string(), &body);
        let body = patch.then_some(Patch::Text(body));
        let model = self.ledger.requeue(row, request.params(), *request.fingerprint(), &lookup, self.wall);
        let real = self.outbox.requeue(row, Anew { body, ..anew(&id.to_string(), lookup) }, self.wall).await;
        use tenure_outbox::ledger::Requeued as Model;
        match (real.unwrap(), model) {
            (Requeued::Refused(real), Model::Refused(model)) => assert_eq!(real, model),
            (Requeued::Finished(real), Model::Finished(model)) => assert_eq!(real, model),
            (Requeued::IdTaken(real, _), Model::IdTaken(model)) => assert_eq!(real, model),
            (Requeued::Replaced { row: a, lane: b, .. }, Model::Replaced { row, lane }) => {
                assert_eq!((a, b), (row, lane));
            }
            (Requeued::Ask(_), Model::Ask) => {}
            other => panic!("{other:?}"),
        }
    }

    fn under_way(&mut self, lane: LaneId, rows: Vec<Outgoing>) {
        if !rows.is_empty() {
            self.batches.push_back((lane, rows));
        }
    }

    async fn compare(&self) {
        let rows = self.outbox.list(None, 0, 1_000).await.unwrap();
        assert_eq!(rows.len(), self.ledger.rows().count());
        for (entry, (id, row)) in rows.iter().zip(self.ledger.rows()) {
            assert_eq!((entry.id, entry.status, entry.attempts), (id, row.status, row.attempts));
            let times = (entry.enqueued_at, entry.next_attempt_at);
            assert_eq!(times, (row.enqueued_at, row.next_attempt_at), "row {id}");
            assert_eq!((&entry.place, &entry.last_error), (&row.place, &row.last_error), "row {id}");
            assert_eq!(entry.client_message_id, row.params.client_message_id.as_str());
        }
        let mut lanes = self.outbox.lanes(mesh(), ME).await.unwrap();
        lanes.sort_by_key(|found| found.lane);
        assert_eq!(lanes, self.ledger.found(ME));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn the_file_and_the_ledger_agree(ops in ops()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let home = tempfile::tempdir().unwrap();
            fs::create_dir(home.path().join("0")).unwrap();
            let outbox = open(&home.path().join("0"));
            let (ledger, batches) = Default::default();
            let mut pair = Pair { home, crashes: 0, outbox, ledger, batches, wall: 10 };
            for op in ops {
                pair.step(op).await;
            }
            pair.compare().await;
        });
    }
}
