//! A day offline: a hundred thousand rows in the real file, then the broker comes. The clock is ours, the disk is not.

use std::collections::{BTreeMap, VecDeque};

use tenure_kit::{Millis, Now};
use tenure_outbox::Drain;
use tenure_outbox::drain::{BATCH, DrainEffect};
use tenure_proto::message::SendResult;
use tenure_proto::number::U53;

use super::*;

const ROWS: u64 = 100_000;
const DAY_MS: u64 = 86_400_000;

/// A daemon's drain on its file, and a broker that takes everything and remembers in which order.
struct Day {
    outbox: Outbox,
    drain: Drain,
    now: Now,
    asked: VecDeque<DrainEffect>,
    accepted: u64,
    /// The last number that came for each target.
    last: BTreeMap<String, u64>,
    commits: u64,
}

impl Day {
    async fn hand_over(&mut self, target: &str, numbers: std::ops::Range<u64>) {
        let wall = |n: u64| self.now.wall.saturating_sub(DAY_MS) + (n + 1) * DAY_MS / ROWS;
        let made = |n: u64| request(&format!("{target} {n}"), &format!("topic:{target}"), &n.to_string());
        let pending: Vec<_> = numbers.map(|n| self.outbox.accepting(made(n), wall(n))).collect();
        let mut lane = None;
        for pending in pending {
            lane = answer(pending).await.unwrap().row.map(|(_, lane)| lane);
        }
        self.drain.queued(lane.unwrap());
    }

    /// A message comes to the broker: the next of its target, and no other.
    fn arrives(&mut self, params: &SendParams) -> SendResult {
        let number: u64 = params.body.as_deref().unwrap().parse().unwrap();
        let last = self.last.insert(params.to.to_string(), number);
        assert_eq!(number, last.map_or(0, |last| last + 1), "{} out of order", params.to);
        self.accepted += 1;
        self.now = Now { at: self.now.at.plus(1), wall: self.now.wall + 1 };
        SendResult {
            id: MessageId::from_parts(self.now.wall, 0),
            log: "topic/x/0".into(),
            seq: U53::saturating(number + 1),
            duplicate: false,
            recipient: None,
            first_seen_at: None,
            history_available: None,
        }
    }

    async fn step(&mut self) -> bool {
        let Some(effect) = self.asked.pop_front() else { return false };
        match effect {
            DrainEffect::Take(lane, limit) => {
                self.commits += 1;
                let rows = self.outbox.take(lane, limit).await.unwrap();
                self.drain.taken(self.now, lane, Ok(rows))
            }
            DrainEffect::Settle(settlement) => {
                self.commits += 1;
                let (lane, wall) = (settlement.lane, self.now.wall);
                let settled = self.outbox.settle(*settlement, wall).await.unwrap();
                self.drain.settled(self.now, lane, Ok(settled))
            }
            DrainEffect::Expire(cutoff) => {
                let rows = self.outbox.expire(mesh(), cutoff, self.now.wall).await.unwrap();
                self.drain.expired(self.now, Ok(rows))
            }
            DrainEffect::Send(lane, row) => {
                let result = self.arrives(&row.params);
                self.drain.answered(self.now, lane, Ok(&result))
            }
            DrainEffect::Probe(..) => panic!("nobody's lease has ended"),
        }
        self.gather();
        true
    }

    fn tick(&mut self) {
        self.drain.tick(self.now);
        self.gather();
    }

    /// Takes up what the drain wants done.
    fn gather(&mut self) {
        self.asked.extend(std::iter::from_fn(|| self.drain.poll_effect()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_offline_drains_in_order_and_nobody_new_waits_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let now = Now { at: Millis(DAY_MS), wall: 1_700_000_000_000 };
    let mut day = Day {
        outbox: open(dir.path()),
        drain: Drain::new(1, now),
        now,
        asked: VecDeque::new(),
        accepted: 0,
        last: BTreeMap::new(),
        commits: 0,
    };
    for from in (0..ROWS).step_by(1_000) {
        day.hand_over("old", from..from + 1_000).await;
    }
    day.drain.attached(day.now, 144);
    day.gather();
    let mut news = 0;
    while day.accepted < ROWS {
        assert!(day.step().await, "the drain stands still at {}", day.accepted);
        if day.accepted / 2_000 > news {
            // Somebody sends to another target: it is there before the backlog has moved by a batch.
            let before = day.accepted;
            day.hand_over("new", news..news + 1).await;
            day.tick();
            while day.last.get("topic:new") != Some(&news) {
                assert!(day.step().await);
            }
            let waited = day.accepted - before;
            assert!(waited <= BATCH as u64, "a new send waited for {waited} rows of the backlog");
            // And one to the same target, which is behind what it was promised after.
            day.hand_over("old", ROWS + news..ROWS + news + 1).await;
            news += 1;
        }
    }
    day.tick();
    while day.step().await {}
    assert_eq!((day.last["topic:old"], day.last["topic:new"]), (ROWS + news - 1, news - 1));
    assert!(day.drain.is_empty() && day.drain.is_idle());
    let census = day.outbox.census().await.unwrap();
    assert_eq!((census.done, census.pending, census.inflight), (ROWS + 2 * news, 0, 0));
    assert!(day.commits < ROWS / 16, "{} commits", day.commits);
}
