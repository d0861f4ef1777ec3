//! A store that comes back with another history: a hello that lists what its client has read is told so.

use tenure_mesh::MeshConfig;
use tenure_mesh::conn::admit::{Admission, TokenVerdict};
use tenure_mesh::input::Call;
use tenure_mesh::store::record::StoreRead;
use tenure_proto::error::ErrorCode;
use tenure_proto::hello::{HelloReconcile, LogPosition};
use tenure_proto::ids::{ConnId, MessageId};
use tenure_proto::number::U53;
use tenure_proto::reconcile::{ClientSubscription, ReconcileAction, ReconcileParams, ReconcilePolicy};
use tenure_proto::subscribe::{AckMode, TopicCreateParams};

use super::words::*;
use super::world::{Engine, World};

fn at(log: &str, seq: u64, id: MessageId) -> LogPosition {
    LogPosition { log: log.to_owned(), seq: U53::saturating(seq), id }
}

/// Which logs are rewound for session 2, which has read up to these.
#[track_caller]
fn rewound(w: &mut World, positions: Vec<LogPosition>) -> Vec<String> {
    let conn = w.dial(Admission { positions, ..knock(2) });
    let mut logs: Vec<String> = w.hello(conn).rewound.iter().map(ToString::to_string).collect();
    logs.sort();
    w.drop_socket(conn);
    logs
}

/// A world in which session 2 was sent some messages: to the topic and to its inbox.
fn sent(engine: Engine) -> (World, Vec<MessageId>, Vec<MessageId>) {
    let mut w = World::new(engine, MeshConfig::default());
    let (a, b) = (w.join(1), w.join(2));
    w.subscribe(b, subscription("t", None));
    let posted = (1..=3).map(|n| w.post(a, letter(topic("t"), &format!("t{n}"))).id).collect();
    let mailed = (1..=2).map(|n| w.post(a, letter(to(2), &format!("i{n}"))).id).collect();
    w.drop_socket(b);
    (w, posted, mailed)
}

fn mail(n: u8) -> String {
    format!("inbox/s/{}", session(n))
}

#[test]
fn a_history_that_goes_on_is_no_other_from_memory_and_from_disk() {
    for engine in [Engine::memory(), Engine::sqlite()] {
        let (mut w, posted, mailed) = sent(engine);
        for _ in 0..2 {
            let all = vec![at("topic/t/0", 3, posted[2]), at(&mail(2), 2, mailed[1])];
            assert_eq!(rewound(&mut w, all), Vec::<String>::new());
            assert_eq!(rewound(&mut w, vec![at("topic/t/0", 1, posted[0])]), Vec::<String>::new());
            // Another message there, and a place that was never reached.
            let other = vec![at("topic/t/0", 2, posted[2]), at(&mail(2), 3, mailed[1])];
            assert_eq!(rewound(&mut w, other), [mail(2), "topic/t/0".to_owned()]);
            // Of other people's inboxes, and of what is no log, nothing is told.
            let foreign = vec![at(&mail(1), 9, posted[0]), at("nonsense", 9, posted[0])];
            assert_eq!(rewound(&mut w, foreign), Vec::<String>::new());
            w.restart();
        }
    }
}

#[test]
fn a_store_that_is_wiped_is_noticed_also_when_it_has_grown_as_long() {
    for engine in [Engine::memory as fn() -> Engine, Engine::sqlite] {
        let (mut w, posted, mailed) = sent(engine());
        // The old one is there until the broker is gone.
        let old = std::mem::replace(&mut w.engine, engine());
        w.restart();
        drop(old);
        let all = || vec![at("topic/t/0", 3, posted[2]), at(&mail(2), 2, mailed[1])];
        assert_eq!(rewound(&mut w, all()), [mail(2), "topic/t/0".to_owned()]);
        let a = w.join(1);
        for n in 1..=4 {
            w.post(a, letter(topic("t"), &format!("n{n}")));
        }
        assert_eq!(rewound(&mut w, all()), [mail(2), "topic/t/0".to_owned()]);
        w.restart();
        assert_eq!(rewound(&mut w, vec![at("topic/t/0", 3, posted[2])]), ["topic/t/0"]);
    }
}

#[test]
fn a_place_that_was_pruned_counts_as_equal() {
    let mut w = World::new(Engine::sqlite(), MeshConfig::default());
    let a = w.join(1);
    let create = TopicCreateParams { name: "t".parse().unwrap(), partitions: 1, retention_ms: ms(1_000) };
    w.call(a, Call::TopicsCreate(create)).unwrap();
    let ids: Vec<_> = (1..=3).map(|n| w.post(a, letter(topic("t"), &format!("t{n}"))).id).collect();
    w.pass(4 * 3_600_000);
    w.reads.clear();
    assert_eq!(rewound(&mut w, vec![at("topic/t/0", 2, ids[2])]), Vec::<String>::new());
    assert!(w.reads.iter().any(|read| matches!(read, StoreRead::Ids { .. })), "asked for");
    assert_eq!(rewound(&mut w, vec![at("topic/t/0", 4, ids[2])]), ["topic/t/0"], "it ends before that");
}

#[test]
fn of_another_clusters_client_it_does_not() {
    let mut w = World::new(Engine::sqlite(), MeshConfig::default());
    let a = w.join(1);
    w.create(a, "t", 1, Some(1_000));
    let ids: Vec<_> = (1..=3).map(|n| w.post(a, letter(topic("t"), &format!("t{n}"))).id).collect();
    w.pass(4 * 3_600_000);
    let positions = vec![at("topic/t/0", 2, ids[2])];
    for (reason, logs) in [("bad_signature", 0), ("other_cluster", 1)] {
        let token = TokenVerdict::Rejected(reason);
        let conn = w.dial(Admission { positions: positions.clone(), token, ..knock(2) });
        assert_eq!(w.hello(conn).rewound.len(), logs, "{reason}");
        w.drop_socket(conn);
    }
}

#[test]
fn a_store_that_cannot_read_lets_nobody_in_unchecked() {
    let (mut w, posted, _) = sent(Engine::sqlite());
    w.restart();
    w.blind = true;
    let positions = vec![at("topic/t/0", 3, posted[2])];
    let conn = w.dial(Admission { positions: positions.clone(), ..knock(2) });
    let refused = w.socket(conn).answers.values().next().expect("an answer");
    assert_eq!(code(refused), ErrorCode::Unavailable);
    let plain = w.dial(knock(2));
    w.hello(plain);
    w.drop_socket(plain);
    w.blind = false;
    assert_eq!(rewound(&mut w, positions), Vec::<String>::new());
}

/// A subscription as its client knows it.
fn known(sub: &str, topic: &str, read: u64) -> ClientSubscription {
    ClientSubscription {
        sub_id: sub.parse().unwrap(),
        topic: topic.parse().unwrap(),
        group: None,
        partition: None,
        ack_mode: AckMode::Manual,
        prefetch: 32,
        positions: [("0".to_owned(), U53::saturating(read))].into(),
    }
}

/// Session 2 comes back with a subscription that only it knows, having read up to `positions`.
fn restored(w: &mut World, positions: Vec<LogPosition>, read: u64) -> ConnId {
    let subscription = known("s1", "t", read);
    let policy = ReconcilePolicy::RestoreClient;
    let params = ReconcileParams { policy, subscriptions: vec![subscription], inflight: Vec::new() };
    let reconcile = Some(HelloReconcile::Now(Box::new(params)));
    let conn = w.dial(Admission { positions, reconcile, ..knock(2) });
    w.hello(conn);
    conn
}

#[test]
fn a_subscription_that_is_made_again_in_another_history_begins_at_its_first_entry() {
    let (mut w, posted, _) = sent(Engine::memory());
    w.engine = Engine::memory();
    w.restart();
    let a = w.join(1);
    for n in 1..=7 {
        w.post(a, letter(topic("t"), &format!("n{n}")));
    }
    let b = restored(&mut w, vec![at("topic/t/0", 3, posted[2])], 3);
    assert_eq!(w.drain(b), ["n1", "n2", "n3", "n4", "n5", "n6", "n7"]);
}

#[test]
fn so_does_one_whose_log_was_not_compared_beside_another_that_is_rewound() {
    for (same, read) in [(true, vec!["n4"]), (false, vec!["n1", "n2", "n3", "n4"])] {
        let mut w = World::new(Engine::memory(), MeshConfig::default());
        let a = w.join(1);
        for n in 1..=4 {
            w.post(a, letter(topic("t"), &format!("n{n}")));
        }
        let here = w.post(a, letter(topic("u"), "u1")).id;
        // Of `t` it has read nothing: it began after the third entry. Of `u` it has read the first.
        let first = if same { here } else { MessageId(7) };
        let b = restored(&mut w, vec![at("topic/u/0", 1, first)], 3);
        assert_eq!(w.drain(b), read);
    }
}

#[test]
fn in_the_same_history_it_goes_on_after_what_the_client_has() {
    let (mut w, posted, _) = sent(Engine::memory());
    // Its lease ends, and what it subscribed to with it: only the client knows of it then.
    let b = w.join(2);
    w.drain(b);
    w.bye(b);
    let b = restored(&mut w, vec![at("topic/t/0", 2, posted[1])], 2);
    assert_eq!(w.drain(b), ["t3"]);
}

#[test]
fn a_lone_reader_with_a_place_beyond_the_end_has_to_begin_again_itself() {
    let mut w = World::new(Engine::memory(), MeshConfig::default());
    let a = w.join(1);
    w.post(a, letter(topic("t"), "n1"));
    let policy = ReconcilePolicy::RestoreClient;
    let mut crew = known("s2", "t", 500);
    crew.group = Some("g".parse().unwrap());
    let subscriptions = vec![known("s1", "t", 500), crew];
    let params = ReconcileParams { policy, subscriptions, inflight: Vec::new() };
    let (b, result) = w.reconciling(knock(2), params);
    let verdicts: Vec<_> = result.results.iter().map(|v| (v.action, v.reason.as_str())).collect();
    let expected = [(ReconcileAction::RecreateClientSide, "rewound"), (ReconcileAction::Keep, "restored")];
    assert_eq!(verdicts, expected);
    assert_eq!(w.drain(b), ["n1"], "the group is made anew");
}

/// The name of a new subscription was that of one which its client had brought, and took its place.
#[test]
fn a_name_that_a_client_brings_is_given_to_no_other_subscription() {
    let mut w = World::new(Engine::memory(), MeshConfig::default());
    let a = w.join(1);
    let brought: Vec<_> = (1..=40).map(|n| known(&format!("s1-{n}"), &format!("t{n}"), 0)).collect();
    let policy = ReconcilePolicy::RestoreClient;
    let params = ReconcileParams { policy, subscriptions: brought.clone(), inflight: Vec::new() };
    let reconcile = Some(HelloReconcile::Now(Box::new(params)));
    let b = w.dial(Admission { reconcile, ..knock(2) });
    for n in 0..20 {
        let new = w.subscribe(b, subscription(&format!("new{n}"), None)).sub_id;
        assert!(brought.iter().all(|old| old.sub_id != new), "{new:?}");
    }
    for n in 1..=40 {
        w.post(a, letter(topic(&format!("t{n}")), &format!("m{n}")));
    }
    assert_eq!(w.drain(b).len(), 40);
}
