//! The promise, kept by real processes: brokers and sessions are `tenure` itself, stopped, killed and cut off.
//!
//! Times are a thirtieth of the defaults; with `TENURE_SOAK=real` they are the defaults (`cargo xtask soak`).
//! Nothing here waits by sleeping, except where the passing of time is the subject. That nothing happened is
//! shown by a marker: a session that joins afterwards. Presence is one ordered stream, so who has seen the
//! marker has seen everything before it.
//!
//! A session is cut off right after its hello, when its lease has just begun to run: what is left of the lease
//! is then known, and never less than a quarter of it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::fleet::Fleet;
use common::raw::Raw;
use common::tap::Tap;
use common::{World, join, pass};
use serde_json::{Value, json};
use tenure_cli::flaky::{Fault, Flaky};
use tenure_client::proto::ErrorCode;
use tenure_client::proto::canonical::{member_key, session_key};
use tenure_client::proto::close::Reason;
use tenure_client::proto::hello::{LeaseFate, ResumeOutcome, ResumeParams};
use tenure_client::proto::number::U53;
use tenure_client::proto::peer::ProfilePatch;
use tenure_client::proto::text;
use tenure_client::proto::token::ResumeToken;
use tenure_client::random_key;

fn kept(line: &Value) -> bool {
    line["lease"] == "kept"
}

#[tokio::test(flavor = "multi_thread")]
async fn scenario_1_a_sleep_within_the_lease_is_invisible() {
    let world = World::new();
    let broker = world.broker().await;
    let mut watcher = world.joined("watcher", broker.addr).await;
    let mut alice = world.joined("alice", broker.addr).await;
    alice.signal("STOP");
    watcher.sees("joined", "alice").await;
    pass(2, 3).await;
    alice.signal("CONT");
    let _marker = join(broker.addr, "marker").await;
    alice.sees("joined", "marker").await;
    watcher.sees("joined", "marker").await;
    assert_eq!(watcher.kinds_of("alice"), ["joined"]);
    assert!(world.becomes(broker.addr, "alice", "online"));
    let attaches = alice.events("attached");
    assert!(attaches.iter().skip(1).all(kept), "{attaches:?}");
    println!(
        "1 sleep: asleep for 2/3 of the lease, awake on socket {}; the watcher saw nothing",
        attaches.len()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn scenario_1_a_sleep_from_which_the_socket_does_not_wake_is_invisible_too() {
    let world = World::new();
    let broker = world.broker().await;
    let network = Flaky::start(broker.addr).unwrap();
    let mut watcher = world.joined("watcher", broker.addr).await;
    let mut alice = world.joined("alice", network.addr()).await;
    alice.signal("STOP");
    watcher.sees("joined", "alice").await;
    // A ping and a tick still arrive and lie unread; then the connection is forgotten. What was heard only on
    // waking must not pass for a sign of life.
    pass(2, 5).await;
    network.break_all(Fault::Stall);
    pass(2, 15).await;
    alice.signal("CONT");
    let back = alice.attached().await;
    let _marker = join(broker.addr, "marker").await;
    watcher.sees("joined", "marker").await;
    alice.sees("joined", "marker").await;
    assert_eq!(watcher.kinds_of("alice"), ["joined"]);
    assert_eq!((&back["lease"], &back["outcome"]), (&json!("kept"), &json!("resumed")));
    println!(
        "1 sleep: asleep for half of the lease, the socket dead on waking, resumed; the watcher saw nothing"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn scenario_2_a_longer_absence_is_one_left_and_one_joined() {
    let world = World::new();
    let broker = world.broker().await;
    let mut watcher = world.joined("watcher", broker.addr).await;
    let mut alice = world.joined("alice", broker.addr).await;
    watcher.sees("joined", "alice").await;
    alice.signal("STOP");
    pass(4, 3).await;
    watcher.sees("left", "alice").await;
    alice.signal("CONT");
    let back = alice.attached().await;
    watcher.sees("joined", "alice").await;
    let _marker = join(broker.addr, "marker").await;
    watcher.sees("joined", "marker").await;
    alice.sees("joined", "marker").await;
    assert_eq!(watcher.kinds_of("alice"), ["joined", "left", "joined"]);
    assert_eq!((&back["lease"], &back["outcome"]), (&json!("new"), &json!("resume_not_found")));
    println!("2 hard offline: gone for 4/3 of the lease; the watcher saw one left and one joined");
}

#[tokio::test(flavor = "multi_thread")]
async fn scenario_3_a_connection_that_nat_forgot_is_resumed_unseen() {
    let world = World::new();
    let broker = world.broker().await;
    let network = Flaky::start(broker.addr).unwrap();
    let mut watcher = world.joined("watcher", broker.addr).await;
    let mut alice = world.joined("alice", network.addr()).await;
    network.blackhole(true);
    watcher.sees("joined", "alice").await;
    pass(2, 3).await;
    network.blackhole(false);
    let lost = alice.until("detached", |line| line["event"] == "detached").await;
    let back = alice.attached().await;
    let _marker = join(broker.addr, "marker").await;
    watcher.sees("joined", "marker").await;
    alice.sees("joined", "marker").await;
    assert_eq!(watcher.kinds_of("alice"), ["joined"]);
    assert_eq!((&back["lease"], &back["outcome"]), (&json!("kept"), &json!("resumed")));
    println!("3 NAT drop: {} after 2/3 of the lease, resumed; the watcher saw nothing", lost["reason"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn scenario_4_what_happens_during_grace_is_told_afterwards_once() {
    let world = World::new();
    let broker = world.broker().await;
    let network = Flaky::start(broker.addr).unwrap();
    let (bob, _bob_events) = join(broker.addr, "bob").await;
    let mut alice = world.joined("alice", network.addr()).await;
    network.blackhole(true);
    network.break_all(Fault::Drop);
    assert!(world.becomes(broker.addr, "alice", "grace"), "she is away, and her lease lives");
    let news = ProfilePatch { summary: Some("changed meanwhile".to_owned()), ..ProfilePatch::default() };
    bob.set_profile(news).await.unwrap();
    let _carol = join(broker.addr, "carol").await;
    network.blackhole(false);
    let back = alice.attached().await;
    assert_eq!((&back["lease"], &back["outcome"]), (&json!("kept"), &json!("resumed")));
    assert_eq!(back["replay"], "complete");
    let told = alice.sees("updated", "bob").await;
    assert_eq!(told["data"]["peer"]["summary"], "changed meanwhile");
    alice.sees("joined", "carol").await;
    let _marker = join(broker.addr, "marker").await;
    alice.sees("joined", "marker").await;
    assert_eq!(
        (alice.kinds_of("bob"), alice.kinds_of("carol")),
        (vec!["updated".into()], vec!["joined".into()])
    );
    assert!(world.becomes(broker.addr, "alice", "online"));
    println!("4 change during grace: shown as grace while away; one update and one join replayed in order");
}

#[tokio::test(flavor = "multi_thread")]
async fn scenario_5_a_stolen_token_is_worth_nothing_and_its_owner_notices_nothing() {
    let world = World::new();
    let broker = world.broker().await;
    let tap = Tap::start(broker.addr).await;
    let mut watcher = world.joined("watcher", broker.addr).await;
    let mut alice = world.session("alice", tap.addr);
    let attached = alice.attached().await;
    let stolen = ResumeParams {
        token: tap.overheard("token"),
        epoch: Some(tap.overheard("epoch").parse().unwrap()),
        last_seq: Some(U53::default()),
    };
    let (member, session) = {
        let keys: Value = serde_json::from_slice(&world.run(&["keys", "--json"]).stdout).unwrap();
        let key = |value: &Value| value.as_str().unwrap().to_owned();
        (key(&keys["member"]).parse().unwrap(), key(&attached["session"]).parse().unwrap())
    };
    let thief = random_key().unwrap();

    let mut socket = Raw::connect(broker.addr).await;
    let mut hello = socket.hello(&thief, member, session);
    hello.resume = Some(stolen.clone());
    let refusal = socket.say(&hello).await.unwrap_err();
    assert_eq!(refusal.code, ErrorCode::Unauthorized);
    assert_eq!(socket.closing().await.reason, Reason::Unauthorized.as_str());

    let mut socket = Raw::connect(broker.addr).await;
    let hello = socket.own_hello(&thief, stolen);
    let result = socket.say(&hello).await.unwrap();
    assert_eq!((result.lease, result.resume.outcome), (LeaseFate::New, ResumeOutcome::ResumeRejected));
    assert_eq!(result.session_id, session_key(&thief), "a stranger, under its own name");

    let _marker = join(broker.addr, "marker").await;
    alice.sees("joined", "marker").await;
    watcher.sees("joined", "marker").await;
    assert_eq!(watcher.kinds_of("alice"), ["joined"]);
    assert_eq!((alice.events("attached").len(), alice.events("detached").len()), (1, 0));
    println!("5 stolen token: unauthorized ({}); the real session kept its socket", refusal.message);
}

#[tokio::test(flavor = "multi_thread")]
async fn scenario_6_a_forged_token_costs_a_fresh_start_and_no_more() {
    let world = World::new();
    let broker = world.broker().await;
    let mut watcher = world.joined("watcher", broker.addr).await;
    let (key, forger) = (random_key().unwrap(), random_key().unwrap());
    let mut honest = Raw::connect(broker.addr).await;
    let hello = honest.hello(&forger, member_key(&forger), session_key(&forger));
    let genuine = honest.say(&hello).await.unwrap().resume.token;
    watcher.sees("joined", "raw").await;
    // Everything is right about it but the signature.
    let payload = text::unb64url(genuine.split('.').nth(2).unwrap()).unwrap();
    let token = ResumeToken { sub: session_key(&key), ..serde_json::from_slice(&payload).unwrap() };
    let (epoch, last_seq) = (Some("e1-1".parse().unwrap()), Some(U53::default()));
    let forged = ResumeParams { token: token.issue(&forger), epoch, last_seq };
    let mut socket = Raw::connect(broker.addr).await;
    let result = socket.say(&socket.own_hello(&key, forged)).await.unwrap();
    assert_eq!((result.lease, result.resume.outcome), (LeaseFate::New, ResumeOutcome::ResumeRejected));
    assert_eq!(result.resume.reason.as_deref(), Some("bad_signature"));
    watcher.sees("joined", "raw").await;
    let _marker = join(broker.addr, "marker").await;
    watcher.sees("joined", "marker").await;
    assert_eq!(watcher.kinds_of("raw"), ["joined", "joined"], "the honest one, and the one with the forgery");
    println!("6 forged token: admitted as a new session, {:?}", result.resume.reason);
}

#[tokio::test(flavor = "multi_thread")]
async fn scenario_7_a_frozen_broker_blames_nobody() {
    let world = World::new();
    let broker = world.broker().await;
    let mut watcher = world.joined("watcher", broker.addr).await;
    let mut alice = world.joined("alice", broker.addr).await;
    watcher.sees("joined", "alice").await;
    broker.proc.signal("STOP");
    pass(4, 3).await;
    broker.proc.signal("CONT");
    let _marker = join(broker.addr, "marker").await;
    watcher.sees("joined", "marker").await;
    alice.sees("joined", "marker").await;
    assert_eq!(watcher.kinds_of("alice"), ["joined"]);
    assert_eq!(alice.kinds_of("watcher"), Vec::<String>::new());
    let attaches = [alice.events("attached"), watcher.events("attached")];
    assert!(attaches.iter().all(|lines| lines.iter().skip(1).all(kept)), "{attaches:?}");
    assert!(broker.proc.stderr().contains("frozen"), "{}", broker.proc.stderr());
    println!("7 frozen broker: stopped for 4/3 of the lease; nobody was evicted");
}

#[tokio::test(flavor = "multi_thread")]
async fn scenario_8_a_killed_broker_gets_all_fifty_back_twice() {
    const FLEET: usize = 50;
    let world = World::new();
    let mut broker = world.broker().await;
    let mut watcher = world.joined("watcher", broker.addr).await;
    let mut fleet = Fleet::join(broker.addr, FLEET).await;
    fleet.until("everybody", |member| member.view().len() == FLEET + 1).await;
    watcher.sees("joined", &format!("fleet-{}", FLEET - 1)).await;
    let before = fleet.members[0].view();
    fleet.members.iter_mut().for_each(|member| member.presence.clear());
    let told = watcher.events("presence").len();
    for round in 1..=2 {
        let addr = broker.kill().await;
        broker = world.broker_at(&addr.to_string()).await;
        fleet.until("the broker", |member| member.attaches.len() > round).await;
        assert_eq!(watcher.attached().await["peers"], FLEET);
        for member in &fleet.members {
            let kept = |attach: &_| *attach == (LeaseFate::Kept, ResumeOutcome::Resumed);
            assert!(member.attaches.iter().skip(1).all(kept), "{:?}", member.attaches);
            assert_eq!(member.view(), before, "the same sessions, since the same moment");
        }
    }
    let _marker = join(broker.addr, "marker").await;
    watcher.sees("joined", "marker").await;
    fleet.until("the marker", |member| !member.presence.is_empty()).await;
    assert!(fleet.members.iter().all(|member| member.presence == ["joined marker"]));
    assert_eq!(watcher.events("presence").len(), told + 1);
    println!(
        "8 killed broker: {FLEET} of {FLEET} sessions resumed with their leases, twice; nobody saw anything"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn scenario_9_a_broker_that_stops_says_so_and_is_resumed() {
    let world = World::new();
    let mut broker = world.broker().await;
    let mut watcher = world.joined("watcher", broker.addr).await;
    let mut alice = world.joined("alice", broker.addr).await;
    watcher.sees("joined", "alice").await;
    broker.proc.signal("TERM");
    for session in [&mut alice, &mut watcher] {
        session.until("shutdown", |line| line["event"] == "shutdown").await;
        let lost = session.until("detached", |line| line["event"] == "detached").await;
        assert_eq!(lost["reason"], "going_away");
    }
    assert_eq!(broker.proc.exit_code().await, Some(0));
    let broker = world.broker_at(&broker.addr.to_string()).await;
    for session in [&mut alice, &mut watcher] {
        let back = session.attached().await;
        assert_eq!((&back["lease"], &back["outcome"]), (&json!("kept"), &json!("resumed")));
    }
    let _marker = join(broker.addr, "marker").await;
    watcher.sees("joined", "marker").await;
    alice.sees("joined", "marker").await;
    assert_eq!((watcher.kinds_of("alice"), alice.kinds_of("watcher")), (vec!["joined".into()], vec![]));
    println!("9 restart: told shutdown, resumed on the next broker; nobody saw anything");
}

#[tokio::test(flavor = "multi_thread")]
async fn scenario_10_of_two_processes_with_one_key_the_older_yields() {
    let world = World::new();
    let broker = world.broker().await;
    let mut watcher = world.joined("watcher", broker.addr).await;
    let mut older = world.joined("alice", broker.addr).await;
    watcher.sees("joined", "alice").await;
    let mut newer = world.session("alice", broker.addr);
    assert!(kept(&newer.attached().await));
    assert_eq!(older.exit_code().await, Some(3));
    assert!(older.stderr().contains("another process took this session over"), "{}", older.stderr());
    let _marker = join(broker.addr, "marker").await;
    watcher.sees("joined", "marker").await;
    newer.sees("joined", "marker").await;
    assert_eq!(watcher.kinds_of("alice"), ["joined"]);
    println!("10 two processes: the older ended with exit code 3; the watcher saw nothing");
}
