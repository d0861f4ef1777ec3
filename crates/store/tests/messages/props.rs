//! Any program of sends, reads, settles, breaks, failures and crashes keeps the promises.

use proptest::prelude::*;
use tenure_proto::message::{Address, Fallback, Priority, SendParams};
use tenure_proto::peer::Status;
use tenure_proto::reconcile::ReconcilePolicy;
use tenure_proto::subscribe::{AckMode, From, SubscribeParams};

use super::person::Return;
use super::sim::{ACK_TIMEOUT, PEOPLE, Sim};
use super::words::*;
use super::world::{Disk, Engine};

#[derive(Clone, Debug)]
enum Op {
    Send(u8, Box<SendParams>),
    Resend(usize),
    Contradict(usize),
    Subscribe(u8, Box<SubscribeParams>),
    Unsubscribe(u8, usize),
    Status(u8, Status),
    Ack(u8, usize),
    Nack(u8, usize, u64, bool),
    Progress(u8, usize),
    Steal(u8, u8),
    Fetch(u8, usize, u64),
    Drop(u8),
    Dial(u8, Return),
    /// It hears nothing more on this socket.
    Deaf(u8),
    Bye(u8),
    Block(u8),
    Unblock(u8),
    Pass(u64),
    Disk(Disk),
    Commit(usize),
    Blind(bool),
    Crash(usize),
}

fn params() -> impl Strategy<Value = SendParams> {
    let address = prop_oneof![
        6 => (1..=PEOPLE).prop_map(to),
        2 => Just(Address::Member(member(1))),
        3 => Just(topic("jobs")),
        3 => Just(topic("parts")),
    ];
    let priority = prop::sample::select(vec![Priority::Now, Priority::Next, Priority::Low]);
    let fallback =
        prop_oneof![3 => Just(Fallback::Hold), 2 => Just(Fallback::Member), 1 => Just(Fallback::Fail)];
    let ttl = prop_oneof![6 => Just(None), 1 => (21_000u64..60_000).prop_map(Some)];
    let delay = prop_oneof![6 => Just(None), 1 => (1u64..20_000).prop_map(Some)];
    let key = prop::option::of((0u8..4).prop_map(|key| format!("k{key}")));
    (address, priority, fallback, ttl, delay, key).prop_map(|(to, priority, fallback, ttl, delay, key)| {
        let fallback = if matches!(to, Address::Session(_)) { fallback } else { Fallback::Hold };
        let (ttl_ms, delay_ms) = (ttl.and_then(ms), delay.and_then(ms));
        SendParams { priority, fallback, ttl_ms, delay_ms, key, ..letter(to, "x") }
    })
}

fn place() -> impl Strategy<Value = SubscribeParams> {
    let topic = prop::sample::select(vec!["jobs", "parts"]);
    let group = prop::sample::select(vec![None, Some("crew"), Some("crew"), Some("auto")]);
    let from = prop::sample::select(vec![From::New, From::Earliest]);
    (topic, group, from, 1u32..5, 0u8..8, 0u32..3).prop_map(|(topic, group, from, prefetch, whim, part)| {
        let ack_mode = if group == Some("auto") || whim == 0 && group.is_none() {
            AckMode::Auto
        } else {
            AckMode::Manual
        };
        let partition = (whim == 1 && topic == "parts").then_some(part);
        // The settings of one thing are always the same, as a program's are.
        let prefetch = if group.is_some() { 2 } else { prefetch };
        SubscribeParams { from, prefetch, ack_mode, partition, ..subscription(topic, group) }
    })
}

fn op() -> impl Strategy<Value = Op> {
    let n = || 1..=PEOPLE;
    let any_of = || 0usize..100;
    let how = prop_oneof![
        3 => Just(Return::Token),
        3 => Just(Return::Knowing(ReconcilePolicy::Conservative)),
        2 => Just(Return::Knowing(ReconcilePolicy::RestoreClient)),
        1 => Just(Return::Later),
        1 => Just(Return::Fresh),
    ];
    let status = prop::sample::select(vec![Status::Idle, Status::Working, Status::Dnd]);
    // Around what the rules are made of: a lazy write, a retry, floors, a grace, a start, an ack, a lease.
    let around = [1, 25, 1_000, 5_000, 10_000, 30_000, ACK_TIMEOUT, 90_000];
    let pass = prop::sample::select(around.to_vec()).prop_flat_map(|ms| ms.saturating_sub(2)..ms + 3);
    let disk = prop_oneof![3 => Just(Disk::Commits), 3 => Just(Disk::Holds), 1 => Just(Disk::Fails)];
    prop_oneof![
        20 => (n(), params()).prop_map(|(n, params)| Op::Send(n, Box::new(params))),
        2 => any_of().prop_map(Op::Resend),
        1 => any_of().prop_map(Op::Contradict),
        8 => (n(), place()).prop_map(|(n, place)| Op::Subscribe(n, Box::new(place))),
        1 => (n(), 0usize..3).prop_map(|(n, which)| Op::Unsubscribe(n, which)),
        4 => (n(), status).prop_map(|(n, status)| Op::Status(n, status)),
        16 => (n(), any_of()).prop_map(|(n, which)| Op::Ack(n, which)),
        4 => (n(), any_of(), 0u64..3_000, prop::bool::weighted(0.2))
            .prop_map(|(n, which, delay, dead)| Op::Nack(n, which, delay, dead)),
        1 => (n(), any_of()).prop_map(|(n, which)| Op::Progress(n, which)),
        1 => (n(), n()).prop_map(|(n, from)| Op::Steal(n, from)),
        2 => (n(), any_of(), 1u64..5).prop_map(|(n, which, limit)| Op::Fetch(n, which, limit)),
        5 => n().prop_map(Op::Drop),
        8 => (n(), how).prop_map(|(n, how)| Op::Dial(n, how)),
        2 => n().prop_map(Op::Deaf),
        1 => n().prop_map(Op::Bye),
        2 => n().prop_map(Op::Block),
        2 => n().prop_map(Op::Unblock),
        8 => pass.prop_map(Op::Pass),
        5 => disk.prop_map(Op::Disk),
        4 => (1usize..6).prop_map(Op::Commit),
        1 => any::<bool>().prop_map(Op::Blind),
        2 => (0usize..6).prop_map(Op::Crash),
    ]
}

fn step(sim: &mut Sim, op: &Op) {
    match op.clone() {
        Op::Send(n, params) => sim.send(n, *params),
        Op::Resend(index) => sim.resend(index),
        Op::Contradict(index) => sim.contradict(index),
        Op::Subscribe(n, place) => sim.subscribe(n, *place),
        Op::Unsubscribe(n, which) => sim.unsubscribe(n, which),
        Op::Status(n, status) => sim.set_status(n, status),
        Op::Ack(n, which) => sim.ack(n, which),
        Op::Nack(n, which, delay, dead) => sim.nack(n, which, delay, dead),
        Op::Progress(n, which) => sim.progress(n, which),
        Op::Steal(n, from) => sim.steal(n, from),
        Op::Fetch(n, which, limit) => sim.fetch(n, which, limit),
        Op::Drop(n) => sim.drop_socket(n),
        Op::Dial(n, how) => sim.dial(n, how),
        Op::Deaf(n) => sim.people[usize::from(n) - 1].deaf = true,
        Op::Bye(n) => sim.bye(n),
        Op::Block(n) => sim.block(n),
        Op::Unblock(n) => sim.unblock(n),
        Op::Pass(ms) => sim.pass(ms),
        Op::Disk(disk) => {
            sim.world.set_disk(disk);
            if disk != Disk::Holds {
                sim.world.commit(usize::MAX);
                sim.hear();
            }
        }
        Op::Commit(count) => {
            sim.world.commit(count);
            sim.hear();
        }
        Op::Blind(blind) => sim.world.blind = blind,
        Op::Crash(landed) => sim.crash(landed),
    }
}

fn run(engine: Engine, ops: &[Op]) {
    let mut sim = Sim::new(engine);
    for op in ops {
        step(&mut sim, op);
    }
    sim.world.blind = false;
    sim.quiesce();
}

/// Some cases by default; `PROPTEST_CASES` asks for more.
pub(crate) fn config(cases: u32) -> ProptestConfig {
    let asked = std::env::var_os("PROPTEST_CASES").is_some();
    let default =
        ProptestConfig { failure_persistence: None, max_shrink_time: 30_000, ..ProptestConfig::default() };
    if asked { default } else { ProptestConfig { cases, ..default } }
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn whatever_happens_the_promises_are_kept(ops in prop::collection::vec(op(), 1..120)) {
        run(Engine::memory(), &ops);
    }
}

proptest! {
    #![proptest_config(config(12))]

    #[test]
    fn whatever_happens_the_promises_are_kept_on_disk(ops in prop::collection::vec(op(), 40..120)) {
        run(Engine::sqlite(), &ops);
    }
}

/// A reader with auto acks does not hear the first of two messages: it counts as settled all the same.
fn swallowed(from: From) -> Vec<Op> {
    let place = SubscribeParams { prefetch: 1, ack_mode: AckMode::Auto, from, ..subscription("jobs", None) };
    let send = || Op::Send(1, Box::new(letter(topic("jobs"), "x")));
    vec![Op::Subscribe(3, Box::new(place)), Op::Deaf(3), send(), Op::Dial(3, Return::Token), send()]
}

#[test]
fn what_was_swallowed_may_come_behind_what_was_read_after_a_crash() {
    let mut ops = swallowed(From::New);
    ops.push(Op::Crash(0));
    run(Engine::memory(), &ops);
}

#[test]
fn what_was_swallowed_may_come_behind_what_was_read_through_a_place_made_anew() {
    let mut ops = swallowed(From::Earliest);
    ops.extend([Op::Bye(3), Op::Dial(3, Return::Token)]);
    run(Engine::memory(), &ops);
}

/// What a client announced cannot be judged while the store cannot read: it is refused, and the client subscribes again.
#[test]
fn who_is_refused_the_list_that_it_announced_subscribes_again() {
    let place = SubscribeParams { prefetch: 1, ..subscription("parts", None) };
    let mail = SendParams { fallback: Fallback::Member, priority: Priority::Now, ..letter(to(3), "x") };
    let post = SendParams { key: Some("k1".into()), ..letter(topic("parts"), "x") };
    let ops = [
        Op::Blind(true),
        Op::Subscribe(3, Box::new(place)),
        Op::Send(1, Box::new(mail)),
        Op::Drop(3),
        Op::Pass(90_000),
        Op::Dial(3, Return::Later),
        Op::Send(1, Box::new(post)),
    ];
    run(Engine::memory(), &ops);
}
