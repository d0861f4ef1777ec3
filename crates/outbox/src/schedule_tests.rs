use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const A: LaneId = LaneId(1);
const B: LaneId = LaneId(2);

fn at(ms: u64) -> Millis {
    Millis(ms)
}

fn refuse(schedule: &mut Schedule, now: Millis, lane: LaneId) -> u64 {
    let wait = schedule.wait_ms(lane, None);
    schedule.refused(now, lane, wait);
    wait
}

fn open() -> Schedule {
    let mut schedule = Schedule::new(1);
    schedule.open();
    schedule
}

#[test]
fn a_lane_has_one_row_on_its_way() {
    let mut schedule = open();
    schedule.queued(A);
    schedule.queued(A);
    assert_eq!(schedule.take(at(0)), [A]);
    assert_eq!(schedule.take(at(0)), [], "the second row waits for the first");
    schedule.queued(A);
    schedule.decided(A, false);
    assert_eq!(schedule.take(at(0)), [A], "a row came meanwhile");
    schedule.decided(A, true);
    assert_eq!(schedule.take(at(0)), [A], "the store has another");
    schedule.decided(A, false);
    assert!(schedule.is_empty() && schedule.take(at(0)).is_empty());
}

#[test]
fn a_lane_goes_on_while_nobody_waits_for_a_turn() {
    let mut schedule = open();
    schedule.queued(A);
    assert!(!schedule.goes_on(A), "it is not on its way");
    assert_eq!(schedule.take(at(0)), [A]);
    assert!(schedule.goes_on(A));
    schedule.queued(B);
    assert!(!schedule.goes_on(A), "another waits");
    schedule.decided(A, true);
    assert_eq!(schedule.take(at(0)), [B, A]);
    schedule.queued(A);
    assert!(schedule.goes_on(A));
    schedule.decided(A, false);
    assert_eq!(schedule.take(at(0)), [A], "what came meanwhile is not forgotten");
    schedule.shut();
    assert!(!schedule.goes_on(A), "nothing leaves without a socket");
}

#[test]
fn a_refusal_holds_back_its_own_lane_only() {
    let mut schedule = open();
    schedule.queued(A);
    schedule.queued(B);
    assert_eq!(schedule.take(at(0)), [A, B]);
    let wait = refuse(&mut schedule, at(0), A);
    assert!((375..=625).contains(&wait), "{wait}");
    schedule.decided(B, true);
    assert_eq!(schedule.take(at(wait - 1)), [B]);
    assert_eq!(schedule.next_deadline(), Some(at(wait)));
    assert_eq!(schedule.take(at(wait)), [A]);
    let longer = refuse(&mut schedule, at(wait), A);
    assert!((750..=1_250).contains(&longer), "{longer}");
    assert_eq!(schedule.take(at(wait + longer)), [A]);
    schedule.decided(A, true);
    assert_eq!(schedule.take(at(wait + longer)), [A]);
    let first_again = refuse(&mut schedule, at(0), A);
    assert!((375..=625).contains(&first_again), "an answer forgives: {first_again}");
    refuse(&mut schedule, at(0), A);
    assert_eq!(schedule.inflight(), 1, "B alone is on its way, however often A is refused");
}

#[test]
fn nothing_leaves_without_a_socket_and_a_broker_that_is_back_is_asked_at_once() {
    let mut schedule = Schedule::new(1);
    schedule.queued(A);
    assert!(schedule.take(at(0)).is_empty() && schedule.next_deadline().is_none());
    schedule.open();
    assert_eq!(schedule.take(at(0)), [A]);
    for _ in 0..9 {
        let wait = refuse(&mut schedule, at(0), A);
        assert_eq!(schedule.take(at(wait)), [A]);
    }
    refuse(&mut schedule, at(0), A);
    schedule.shut();
    assert!(schedule.take(at(u64::MAX)).is_empty());
    schedule.open();
    assert_eq!(schedule.take(at(0)), [A]);
    let wait = refuse(&mut schedule, at(0), A);
    assert!(wait <= 625, "the past is forgiven: {wait}");
}

#[test]
fn what_a_start_finds_waits_no_longer_than_any_wait() {
    let mut schedule = open();
    schedule.found(at(0), A, 9, u64::MAX);
    schedule.found(at(0), B, 0, 0);
    schedule.found(at(0), B, 0, 0);
    assert_eq!(schedule.take(at(0)), [B]);
    assert_eq!(schedule.take(at(LONGEST_MS)), [A]);
    let wait = refuse(&mut schedule, at(0), A);
    assert!(wait >= 22_500, "it goes on counting: {wait}");
}

#[test]
fn no_more_than_a_window_is_on_its_way() {
    let mut schedule = open();
    (0..1_000).for_each(|n| schedule.queued(LaneId(n)));
    assert_eq!(schedule.take(at(0)).len(), WINDOW);
    assert!(schedule.take(at(0)).is_empty());
    schedule.decided(LaneId(0), false);
    assert_eq!(schedule.take(at(0)), [LaneId(WINDOW as u64)]);
}

/// The offline day: a hundred thousand rows wait, to one target or to as many, and somebody sends.
#[test]
fn a_new_send_does_not_wait_for_a_backlog() {
    for lanes in [1, 100_000] {
        let mut schedule = Schedule::new(1);
        (0..100_000u64).for_each(|n| schedule.queued(LaneId(n % lanes)));
        schedule.open();
        let mut on_their_way = schedule.take(at(0));
        for n in 0..100 {
            let new = LaneId(1_000_000 + n);
            schedule.queued(new);
            let mut turns = 0;
            loop {
                assert!(turns <= 2, "a new send waited for {turns} others");
                let decided = on_their_way.remove(0);
                schedule.decided(decided, decided < LaneId(1_000_000));
                let taken = schedule.take(at(0));
                on_their_way.extend(&taken);
                turns += taken.len();
                if taken.contains(&new) {
                    break;
                }
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Queue(u64),
    Take,
    Accept(usize),
    Bury(usize),
    Refuse(usize),
    Break,
    Attach,
    Pass(u64),
    Restart,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => (0..5u64).prop_map(Op::Queue),
        4 => Just(Op::Take),
        4 => any::<usize>().prop_map(Op::Accept),
        1 => any::<usize>().prop_map(Op::Bury),
        2 => any::<usize>().prop_map(Op::Refuse),
        1 => Just(Op::Break),
        2 => Just(Op::Attach),
        2 => (0..40_000u64).prop_map(Op::Pass),
        1 => Just(Op::Restart),
    ];
    proptest::collection::vec(op, 0..200)
}

/// The rows as a store would hold them, and what is on its way.
#[derive(Default)]
struct World {
    rows: BTreeMap<LaneId, VecDeque<u64>>,
    sent: Vec<LaneId>,
    left: BTreeMap<LaneId, Vec<u64>>,
    last: u64,
    now: u64,
}

impl World {
    fn take(&mut self, schedule: &mut Schedule) -> Result<(), TestCaseError> {
        for lane in schedule.take(at(self.now)) {
            prop_assert!(!self.sent.contains(&lane), "two rows of {:?} on their way", lane);
            prop_assert!(!self.rows[&lane].is_empty(), "{:?} has no rows", lane);
            self.sent.push(lane);
        }
        prop_assert_eq!(schedule.inflight(), self.sent.len());
        Ok(())
    }

    fn decide(&mut self, schedule: &mut Schedule, pick: usize) {
        if self.sent.is_empty() {
            return;
        }
        let lane = self.sent.remove(pick % self.sent.len());
        let rows = self.rows.get_mut(&lane).unwrap();
        let row = rows.pop_front().unwrap();
        self.left.entry(lane).or_default().push(row);
        schedule.decided(lane, !rows.is_empty());
    }

    fn restart(&mut self) -> Schedule {
        let mut schedule = Schedule::new(self.last);
        self.sent.clear();
        for (lane, _) in self.rows.iter().filter(|(_, rows)| !rows.is_empty()) {
            schedule.found(at(self.now), *lane, 3, 100);
        }
        schedule
    }
}

proptest! {
    /// Whatever happens: one row of a lane at a time, in order, and in the end every row has left.
    #[test]
    fn every_row_leaves_once_and_in_order(ops in ops()) {
        let (mut world, mut schedule) = (World::default(), Schedule::new(0));
        for op in ops {
            match op {
                Op::Queue(lane) => {
                    world.last += 1;
                    world.rows.entry(LaneId(lane)).or_default().push_back(world.last);
                    schedule.queued(LaneId(lane));
                }
                Op::Take => world.take(&mut schedule)?,
                Op::Accept(pick) | Op::Bury(pick) => world.decide(&mut schedule, pick),
                Op::Refuse(pick) if !world.sent.is_empty() => {
                    let lane = world.sent.remove(pick % world.sent.len());
                    let wait = refuse(&mut schedule, at(world.now), lane);
                    prop_assert!((375..=37_500).contains(&wait));
                }
                Op::Refuse(_) => {}
                Op::Break => schedule.shut(),
                Op::Attach => schedule.open(),
                Op::Pass(ms) => world.now += ms,
                Op::Restart => schedule = world.restart(),
            }
        }
        schedule.open();
        while world.rows.values().any(|rows| !rows.is_empty()) {
            let before = world.left.values().map(Vec::len).sum::<usize>();
            world.now = world.now.max(schedule.next_deadline().map_or(0, |due| due.0));
            world.take(&mut schedule)?;
            (0..world.sent.len()).for_each(|_| world.decide(&mut schedule, 0));
            prop_assert!(world.left.values().map(Vec::len).sum::<usize>() > before, "somebody is forgotten");
        }
        prop_assert!(schedule.is_empty());
        let left: usize = world.left.values().map(Vec::len).sum();
        prop_assert_eq!(left as u64, world.last);
        prop_assert!(world.left.values().all(|rows| rows.is_sorted()));
    }
}
