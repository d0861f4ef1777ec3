use proptest::prelude::*;
use tenure_proto::ids::{ClientMessageId, MessageId, SessionKey};
use tenure_proto::number::U53;

use super::*;
use crate::ledger::Ledger;
use crate::row::Status;

const ME: SessionKey = SessionKey([1; 32]);
const HOURS: u64 = 144;
const HOUR_MS: u64 = 3_600_000;

fn params(id: u64, to: &str) -> SendParams {
    let json = format!(r#"{{"to":"topic:{to}","body":"{id}","clientMessageId":"{id}"}}"#);
    tenure_proto::Codec::Json.decode(json.as_bytes()).unwrap()
}

fn print(params: &SendParams) -> tenure_proto::fingerprint::Fingerprint {
    let body = params.body.as_deref().unwrap_or_default().as_bytes();
    tenure_proto::fingerprint::fingerprint(&params.to, None, params.priority, None, body).unwrap()
}

/// What a broker makes of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Accepted,
    /// Accepted, and the answer is lost.
    Unheard,
    Busy,
    Dead,
    LeaseExpired,
}

/// A drain, its rows, and a broker that knows what it has accepted.
struct World {
    drain: Drain,
    ledger: Ledger,
    now: Now,
    /// Asked for and not done yet.
    asked: VecDeque<DrainEffect>,
    accepted: Vec<u64>,
    last: u64,
    commits: u64,
    over: bool,
}

impl World {
    fn new() -> World {
        let now = Now { at: Millis(0), wall: 1_000 * HOUR_MS };
        World {
            drain: Drain::new(7, now),
            ledger: Ledger::default(),
            now,
            asked: VecDeque::new(),
            accepted: Vec::new(),
            last: 0,
            commits: 0,
            over: false,
        }
    }

    fn attached() -> World {
        let mut world = World::new();
        world.attach();
        world
    }

    fn attach(&mut self) {
        self.drain.attached(self.now, HOURS);
        self.gather();
    }

    fn pass(&mut self, ms: u64) {
        self.now = Now { at: self.now.at.plus(ms), wall: self.now.wall + ms };
        self.tick();
    }

    fn tick(&mut self) {
        self.drain.tick(self.now);
        self.gather();
    }

    /// Takes up what the drain wants done.
    fn gather(&mut self) {
        self.asked.extend(std::iter::from_fn(|| self.drain.poll_effect()));
    }

    fn queue(&mut self, to: &str) -> u64 {
        self.last += 1;
        let params = params(self.last, to);
        let (_, row) = self.ledger.accept(ME, &params, print(&params), self.now.wall);
        self.drain.queued(row.unwrap().1);
        self.last
    }

    fn accept(&mut self, id: &ClientMessageId) -> SendResult {
        let id: u64 = id.as_str().parse().unwrap();
        if !self.accepted.contains(&id) {
            self.accepted.push(id);
        }
        SendResult {
            id: MessageId::from_parts(id, 0),
            log: "topic/a/0".into(),
            seq: U53::saturating(id),
            duplicate: false,
            recipient: None,
            first_seen_at: None,
            history_available: None,
        }
    }

    /// Does the first thing that is asked for; the disk and the broker as said.
    fn step(&mut self, disk: Result<(), DiskFault>, fate: Fate) -> bool {
        let Some(effect) = self.asked.pop_front() else { return false };
        let now = self.now;
        match effect {
            DrainEffect::Take(lane, limit) => {
                self.commits += 1;
                let rows = disk.map(|()| self.ledger.take(lane, limit));
                self.drain.taken(now, lane, rows)
            }
            DrainEffect::Settle(settlement) => {
                self.commits += 1;
                let settled = disk.map(|()| self.ledger.settle(&settlement));
                self.drain.settled(now, settlement.lane, settled)
            }
            DrainEffect::Expire(cutoff) => {
                let expired = disk.map(|()| self.ledger.expire(cutoff));
                self.drain.expired(now, expired)
            }
            DrainEffect::Send(lane, row) => {
                let known = self.accepted.contains(&row.params.client_message_id.as_str().parse().unwrap());
                let code = match fate {
                    Fate::Accepted => None,
                    Fate::Unheard => Some(ErrorCode::Unavailable),
                    // What a broker has accepted it does not refuse.
                    _ if known => None,
                    Fate::Busy => Some(ErrorCode::Busy),
                    Fate::Dead => Some(ErrorCode::NoSuchSession),
                    Fate::LeaseExpired => Some(ErrorCode::LeaseExpired),
                };
                let result = matches!(code, None | Some(ErrorCode::Unavailable))
                    .then(|| self.accept(&row.params.client_message_id));
                match (code, result) {
                    (None, Some(result)) => self.drain.answered(now, lane, Ok(&result)),
                    (code, _) => {
                        let error = WireError::new(code.unwrap_or(ErrorCode::Busy), "no");
                        self.drain.answered(now, lane, Err(&error))
                    }
                }
            }
            DrainEffect::Probe(lane, error) => self.drain.probed(now, lane, &error, self.over),
        }
        self.gather();
        let (held, bound) = self.drain.held();
        assert!(held <= bound);
        true
    }

    fn run(&mut self) {
        self.tick();
        while self.step(Ok(()), Fate::Accepted) {}
    }

    /// The daemon dies: what was asked for and not done never was.
    fn crash(&mut self) {
        self.asked.clear();
        self.ledger.restart();
        self.drain = Drain::new(self.last, self.now);
        for found in self.ledger.found(ME) {
            self.drain.found(self.now, found);
        }
    }

    fn status(&self, row: u64) -> Status {
        self.ledger.rows().find(|(id, _)| *id == row).unwrap().1.status
    }

    fn attempts(&self, row: u64) -> u32 {
        self.ledger.rows().find(|(id, _)| *id == row).unwrap().1.attempts
    }
}

#[test]
fn a_batch_costs_one_commit_and_leaves_in_order() {
    let mut world = World::attached();
    world.run();
    (0..1_000).for_each(|_| _ = world.queue("a"));
    world.commits = 0;
    world.run();
    assert_eq!(world.accepted, (1..=1_000).collect::<Vec<_>>());
    assert_eq!(world.commits, 1 + 1_000u64.div_ceil(BATCH as u64), "one to begin, one for each batch");
    assert!(world.drain.is_empty() && world.drain.is_idle());
}

#[test]
fn a_batch_ends_with_the_first_row_that_is_not_accepted() {
    for (fate, status) in
        [(Fate::Busy, Status::Pending), (Fate::Unheard, Status::Pending), (Fate::Dead, Status::Dead)]
    {
        let mut world = World::attached();
        world.run();
        (0..5).for_each(|_| _ = world.queue("a"));
        world.tick();
        assert!(matches!(world.asked[0], DrainEffect::Take(_, BATCH)));
        world.step(Ok(()), Fate::Accepted);
        world.step(Ok(()), Fate::Accepted);
        world.step(Ok(()), fate);
        let Some(DrainEffect::Settle(settlement)) = world.asked.front() else { panic!("{:?}", world.asked) };
        assert_eq!(settlement.unsent, [3, 4, 5], "{fate:?}: nothing passes it");
        world.step(Ok(()), Fate::Accepted);
        let statuses = [1, 2].map(|row| world.status(row));
        assert_eq!(statuses, [Status::Done, status]);
        if status == Status::Pending {
            assert!(world.asked.is_empty(), "the lane waits");
            assert_eq!(
                [2, 3, 4, 5].map(|row| world.attempts(row)),
                [1, 0, 0, 0],
                "what was not sent does not count"
            );
            world.pass(1_000);
        }
        world.run();
        assert!(world.accepted.is_sorted() && world.drain.is_empty());
    }
}

#[test]
fn what_is_answered_is_written_down_soon_however_slow_the_broker_is() {
    let mut world = World::attached();
    world.run();
    (0..5).for_each(|_| _ = world.queue("a"));
    world.tick();
    world.step(Ok(()), Fate::Accepted);
    world.pass(SHOW_MS);
    world.step(Ok(()), Fate::Accepted);
    world.step(Ok(()), Fate::Accepted);
    assert_eq!([1, 2].map(|row| world.status(row)), [Status::Done, Status::Inflight], "taken again at once");
}

#[test]
fn a_new_lane_gets_its_turn_in_the_middle_of_a_backlog() {
    let mut world = World::new();
    let full: Vec<String> = (0..crate::schedule::WINDOW).map(|n| format!("t{n}")).collect();
    for to in full.iter().cycle().take(full.len() * 20) {
        world.queue(to);
    }
    world.attach();
    (0..2_000).for_each(|_| _ = world.step(Ok(()), Fate::Accepted));
    let before = world.accepted.len();
    let new = world.queue("new");
    world.tick();
    while !world.accepted.contains(&new) {
        assert!(world.step(Ok(()), Fate::Accepted));
    }
    let waited = world.accepted.len() - before;
    assert!(waited <= 2 * full.len(), "{waited} others went first: not one more than a turn of each");
}

#[test]
fn an_ended_session_is_asked_after_before_a_row_is_given_up() {
    for over in [true, false] {
        let mut world = World { over, ..World::attached() };
        world.run();
        let row = world.queue("a");
        world.tick();
        while world.step(Ok(()), Fate::LeaseExpired) {}
        assert_eq!(world.status(row), if over { Status::Pending } else { Status::Dead });
    }
}

#[test]
fn what_was_taken_when_the_socket_broke_is_given_back() {
    let mut world = World::attached();
    world.run();
    (0..3).for_each(|_| _ = world.queue("a"));
    world.tick();
    world.drain.detached();
    while world.step(Ok(()), Fate::Accepted) {}
    assert!(world.accepted.is_empty() && world.drain.is_idle() && !world.drain.is_empty());
    assert_eq!([1, 2, 3].map(|row| (world.status(row), world.attempts(row))), [(Status::Pending, 0); 3]);
    world.attach();
    world.run();
    assert_eq!(world.accepted, [1, 2, 3]);
}

#[test]
fn a_verdict_waits_for_a_disk_that_does_not_write() {
    let mut world = World::attached();
    world.run();
    let row = world.queue("a");
    world.tick();
    world.step(Ok(()), Fate::Accepted);
    world.step(Ok(()), Fate::Accepted);
    for _ in 0..3 {
        assert!(world.step(Err(DiskFault::ForNow), Fate::Accepted));
        assert!(world.asked.is_empty());
        assert_eq!(world.drain.next_deadline(), Some(world.now.at.plus(DISK_MS)));
        world.pass(DISK_MS);
    }
    world.run();
    assert_eq!((world.status(row), world.accepted.len()), (Status::Done, 1));
}

#[test]
fn what_is_too_old_goes_before_anything_is_sent_and_while_a_socket_stays() {
    let mut world = World::new();
    let old = world.queue("a");
    world.now.at = Millis(HOURS * HOUR_MS);
    world.now.wall += HOURS * HOUR_MS + 1;
    let young = world.queue("a");
    world.drain = Drain::new(1, world.now);
    world.crash();
    world.attach();
    assert!(matches!(world.asked.make_contiguous(), [DrainEffect::Expire(_)]), "nothing leaves before");
    world.step(Err(DiskFault::ForNow), Fate::Accepted);
    assert!(world.asked.is_empty(), "not even when the disk is slow to say");
    world.pass(DISK_MS);
    world.run();
    assert_eq!((world.status(old), world.accepted.as_slice()), (Status::Dead, [young].as_slice()));
    world.pass(AGEING_MS);
    assert!(matches!(world.asked.make_contiguous(), [DrainEffect::Expire(_)]));
}

#[test]
fn a_row_whose_time_was_over_before_it_left_is_never_sent() {
    let mut world = World::new();
    let mut queue = |ttl_ms: Option<u64>| {
        world.last += 1;
        let params = SendParams { ttl_ms: ttl_ms.map(U53::saturating), ..params(world.last, "a") };
        let (_, row) = world.ledger.accept(ME, &params, print(&params), world.now.wall);
        world.drain.queued(row.unwrap().1);
        world.last
    };
    let (over, plain, just) = (queue(Some(1_000)), queue(None), queue(Some(1_001)));
    world.pass(1_000);
    world.attach();
    world.run();
    assert_eq!(world.accepted, [plain, just]);
    assert_eq!(world.status(over), Status::Dead);
    let row = world.ledger.rows().find(|(id, _)| *id == over).unwrap().1;
    assert_eq!((row.attempts, row.last_error.as_deref()), (0, Some(crate::verdict::LAPSED)));
}

#[test]
fn nothing_passes_a_row_whose_time_was_over_before_that_is_on_the_disk() {
    let mut world = World::new();
    world.last += 1;
    let params = SendParams { ttl_ms: Some(U53::saturating(1_000)), ..params(world.last, "a") };
    let (_, row) = world.ledger.accept(ME, &params, print(&params), world.now.wall);
    world.drain.queued(row.unwrap().1);
    let behind = world.queue("a");
    world.pass(1_000);
    world.attach();
    while !matches!(world.asked.front(), Some(DrainEffect::Settle(_))) {
        assert!(world.step(Ok(()), Fate::Accepted), "what lapsed is written down");
        assert_eq!(world.accepted, [0u64; 0], "before anything leaves");
    }
    // Forgotten, it counts as sent.
    world.crash();
    world.attach();
    world.run();
    assert_eq!(world.accepted, [1, behind]);
}

#[test]
fn a_row_that_may_be_at_the_broker_is_sent_again_though_its_time_is_over() {
    let mut world = World::attached();
    world.run();
    world.last += 1;
    let params = SendParams { ttl_ms: Some(U53::saturating(10)), ..params(world.last, "a") };
    let (_, row) = world.ledger.accept(ME, &params, print(&params), world.now.wall);
    world.drain.queued(row.unwrap().1);
    world.tick();
    while world.step(Ok(()), Fate::Unheard) {}
    assert_eq!(world.status(world.last), Status::Pending);
    world.pass(60_000);
    world.run();
    assert_eq!(world.status(world.last), Status::Done, "only the broker knows");
}

#[derive(Clone, Debug)]
enum Op {
    Queue(u8),
    Step(bool, Fate),
    Attach,
    Detach,
    Pass(u64),
    Crash,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let fate = prop_oneof![
        6 => Just(Fate::Accepted),
        1 => Just(Fate::Unheard),
        2 => Just(Fate::Busy),
        1 => Just(Fate::Dead),
        1 => Just(Fate::LeaseExpired),
    ];
    let op = prop_oneof![
        6 => (0..4u8).prop_map(Op::Queue),
        12 => (proptest::bool::weighted(0.9), fate).prop_map(|(disk, fate)| Op::Step(disk, fate)),
        2 => Just(Op::Attach),
        1 => Just(Op::Detach),
        2 => (0..40_000u64).prop_map(Op::Pass),
        1 => Just(Op::Crash),
    ];
    proptest::collection::vec(op, 0..300)
}

proptest! {
    /// Whatever happens, no row of a lane is accepted before an older one that is still to be sent, and in the end
    /// every row is done or dead.
    #[test]
    fn every_row_is_decided_and_none_overtakes(ops in ops()) {
        let mut world = World::new();
        for op in ops {
            match op {
                Op::Queue(to) => {
                    world.queue(&format!("t{to}"));
                    world.tick();
                }
                Op::Step(disk, fate) => {
                    world.over = true;
                    world.step(if disk { Ok(()) } else { Err(DiskFault::ForNow) }, fate);
                }
                Op::Attach => world.attach(),
                Op::Detach => world.drain.detached(),
                Op::Pass(ms) => world.pass(ms),
                Op::Crash => world.crash(),
            }
            check_order(&world)?;
        }
        world.attach();
        for _ in 0..100 {
            world.run();
            world.pass(40_000);
        }
        check_order(&world)?;
        prop_assert!(world.drain.is_empty(), "somebody is forgotten");
        for (id, row) in world.ledger.rows() {
            let there = world.accepted.contains(&id);
            prop_assert!(row.status == if there { Status::Done } else { Status::Dead }, "{} {:?}", id, row);
        }
    }
}

/// What is still to be sent and was never accepted is younger than all that its lane has had accepted.
fn check_order(world: &World) -> Result<(), TestCaseError> {
    let rows: BTreeMap<u64, &crate::ledger::Row> = world.ledger.rows().collect();
    for (index, id) in world.accepted.iter().enumerate() {
        let lane = rows[id].lane;
        let late = world.accepted[index + 1..].iter().find(|later| rows[later].lane == lane && *later < id);
        prop_assert!(late.is_none(), "{:?} was accepted after {}", late, id);
        let passed = rows.iter().find(|(other, row)| {
            row.lane == lane
                && *other < id
                && !row.status.is_final()
                && row.status != Status::Dead
                && !world.accepted.contains(other)
        });
        prop_assert!(passed.is_none(), "{} passed {:?}", id, passed);
    }
    Ok(())
}
