//! Both sides of a break compare what they believe: each row of the table, and what becomes of deliveries.

use tenure_mesh::MeshConfig;
use tenure_mesh::conn::admit::Admission;
use tenure_mesh::effect::{Answer, Push};
use tenure_mesh::input::Call;
use tenure_proto::event::EventBody;
use tenure_proto::hello::HelloReconcile;
use tenure_proto::ids::{ConnId, SubId};
use tenure_proto::number::U53;
use tenure_proto::reconcile::{
    ClientInflight, ClientSubscription, InflightResult, InflightState, ReconcileAction, ReconcileParams,
    ReconcilePolicy, ReconcileResult, Settle,
};
use tenure_proto::subscribe::{AckMode, From, SubscribeParams, SubscriptionEventKind};

use super::words::*;
use super::world::{Engine, World};
use ReconcileAction::{CloseClientSide, CloseServerSide, Keep, RecreateClientSide};
use ReconcilePolicy::{Conservative, RestoreClient};

fn listed(sub: &str, topic: &str, group: Option<&str>) -> ClientSubscription {
    ClientSubscription {
        sub_id: sub.parse().unwrap(),
        topic: topic.parse().unwrap(),
        group: group.map(|name| name.parse().unwrap()),
        partition: None,
        ack_mode: AckMode::Manual,
        prefetch: 32,
        positions: Default::default(),
    }
}

fn knowing(policy: ReconcilePolicy, subscriptions: Vec<ClientSubscription>) -> ReconcileParams {
    ReconcileParams { policy, subscriptions, inflight: Vec::new() }
}

fn in_hand(push: &Push, settle: Option<Settle>) -> ClientInflight {
    let state = if settle.is_some() { InflightState::Settled } else { InflightState::Processing };
    ClientInflight { tag: tag(push), state, settle }
}

fn verdicts(result: &ReconcileResult) -> Vec<(ReconcileAction, &str, &str)> {
    result.results.iter().map(|v| (v.action, v.sub_id.as_str(), v.reason.as_str())).collect()
}

/// Session 2 reads `t` for itself, and its socket is gone.
fn reader() -> (World, ConnId, ConnId, SubId) {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    let sub = w.subscribe(b, subscription("t", None)).sub_id;
    w.drop_socket(b);
    (w, a, b, sub)
}

#[test]
fn what_both_know_is_kept_under_the_servers_name() {
    for policy in [Conservative, RestoreClient] {
        let (mut w, a, b, sub) = reader();
        let (b, result) = w.resume_with(2, b, knowing(policy, vec![listed(sub.as_str(), "t", None)]));
        assert_eq!(verdicts(&result), [(Keep, sub.as_str(), "same")]);
        w.drop_socket(b);
        let (b, result) = w.resume_with(2, b, knowing(policy, vec![listed("mine", "t", None)]));
        assert_eq!(verdicts(&result), [(Keep, sub.as_str(), "renamed")]);
        w.post(a, letter(topic("t"), "m1"));
        assert_eq!(w.pushes(b)[0].sub, sub);
    }
}

#[test]
fn a_lone_reader_that_goes_on_is_told_where() {
    let (mut w, a, b, sub) = reader();
    let b = w.resume(2, b);
    let crew = w.subscribe(b, subscription("t", Some("crew"))).sub_id;
    for n in 1..=3 {
        w.post(a, letter(topic("t"), &format!("m{n}")));
    }
    let own: Vec<_> = w.pushes(b).into_iter().filter(|push| push.sub == sub).collect();
    w.ack(b, &[own[0].clone(), own[2].clone()]);
    w.drop_socket(b);
    let all = vec![listed(sub.as_str(), "t", None), listed(crew.as_str(), "t", Some("crew"))];
    let (_, result) = w.resume_with(2, b, knowing(RestoreClient, all));
    assert_eq!(verdicts(&result), [(Keep, sub.as_str(), "same"), (Keep, crew.as_str(), "same")]);
    assert_eq!(result.results[0].start_seq, [("0".to_owned(), U53::saturating(2))].into());
    assert!(result.results[1].start_seq.is_empty(), "where a group stands is not one member's business");
}

#[test]
fn a_name_that_a_client_brings_is_given_to_nothing_else() {
    let (mut w, a, b, sub) = reader();
    let (stem, number) = sub.as_str().rsplit_once('-').unwrap();
    let number: u64 = number.parse().unwrap();
    let brought = (1..=8).map(|n| listed(&format!("{stem}-{}", number + n), &format!("t{n}"), None));
    let all = [listed(sub.as_str(), "t", None)].into_iter().chain(brought).collect();
    let (b, result) = w.resume_with(2, b, knowing(RestoreClient, all));
    assert_eq!(result.results.iter().filter(|verdict| verdict.action == Keep).count(), 9);
    w.subscribe(b, subscription("new", None));
    for topic_name in ["t", "t1", "t8", "new"] {
        w.post(a, letter(topic(topic_name), topic_name));
    }
    let mut names: Vec<_> = w.pushes(b).iter().map(|push| push.sub.clone()).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 4);
}

/// A reader whose socket had lost the word of a gap once went on without ever hearing of it.
#[test]
fn a_gap_that_a_socket_lost_is_told_again_until_the_position_is_past_it() {
    let config = MeshConfig { retention_ms: 60_000, ..MeshConfig::default() };
    let mut w = World::new(Engine::memory(), config);
    let (a, b) = (w.join(1), w.join(2));
    for n in 1..=3 {
        w.post(a, letter(topic("t"), &format!("old{n}")));
    }
    w.pass(200_000);
    let from = From::Seq(U53::saturating(2));
    let sub = w.subscribe(b, SubscribeParams { from, ..subscription("t", None) }).sub_id;
    w.pass(1_000);
    w.drop_socket(b);
    let mut socket = b;
    for (position, told) in [(1, vec![(2, 3)]), (2, vec![(3, 3)]), (3, vec![])] {
        let positions = [("0".to_owned(), U53::saturating(position))].into();
        let mine = ClientSubscription { positions, ..listed(sub.as_str(), "t", None) };
        let (next, _) = w.resume_with(2, socket, knowing(RestoreClient, vec![mine]));
        w.pass(1_000);
        let events = std::mem::take(&mut w.sockets.get_mut(&next).unwrap().events);
        let gap = |event| match event {
            EventBody::Subscription(event) if event.kind == SubscriptionEventKind::Gap => {
                Some((event.from.unwrap().get(), event.to.unwrap().get()))
            }
            _ => None,
        };
        assert_eq!(events.into_iter().filter_map(gap).collect::<Vec<_>>(), told, "at {position}");
        w.drop_socket(next);
        socket = next;
    }
}

#[test]
fn other_settings_close_it_on_both_sides() {
    for policy in [Conservative, RestoreClient] {
        let (mut w, a, b, sub) = reader();
        let other = ClientSubscription { prefetch: 5, ..listed(sub.as_str(), "t", None) };
        let (b, result) = w.resume_with(2, b, knowing(policy, vec![other]));
        assert_eq!(verdicts(&result), [(CloseClientSide, sub.as_str(), "settings_differ")]);
        w.post(a, letter(topic("t"), "m1"));
        assert!(w.pushes(b).is_empty());
    }
}

#[test]
fn what_only_the_server_knows_is_dropped() {
    let (mut w, a, b, sub) = reader();
    let (b, result) = w.resume_with(2, b, knowing(Conservative, Vec::new()));
    assert_eq!(verdicts(&result), [(CloseServerSide, sub.as_str(), "server_only")]);
    w.post(a, letter(topic("t"), "m1"));
    w.post(a, letter(to(2), "m2"));
    assert_eq!(bodies(&w.pushes(b)), ["m2"], "but never the inbox");
    w.restart();
    let (a, b) = (w.resume(1, a), w.resume(2, b));
    w.post(a, letter(topic("t"), "m3"));
    assert_eq!(bodies(&w.pushes(b)), ["m2"], "nor by a start");
}

#[test]
fn what_only_the_client_knows_is_closed_recreated_or_restored() {
    // A good token: it has ended.
    let (mut w, _, b, sub) = reader();
    let both = || vec![listed(sub.as_str(), "t", None), listed("lost", "u", None)];
    let (_, result) = w.resume_with(2, b, knowing(Conservative, both()));
    assert_eq!(verdicts(&result)[1], (CloseClientSide, "lost", "client_only"));

    // The lease has ended: it is made again by the client.
    let (mut w, _, b, _) = reader();
    w.pass(100_000);
    let (_, result) = w.resume_with(2, b, knowing(Conservative, vec![listed("lost", "t", None)]));
    assert_eq!(verdicts(&result), [(RecreateClientSide, "lost", "client_only")]);

    // Or by the server, after what the client has.
    let (mut w, a, b, _) = reader();
    for n in 1..=3 {
        w.post(a, letter(topic("t"), &format!("m{n}")));
    }
    w.pass(100_000);
    let mut lost = listed("lost", "t", None);
    lost.positions.insert("0".into(), U53::saturating(1));
    let (b, result) = w.resume_with(2, b, knowing(RestoreClient, vec![lost]));
    assert_eq!(verdicts(&result), [(Keep, "lost", "restored")]);
    assert_eq!(bodies(&w.pushes(b)), ["m2", "m3"]);
    assert_eq!(w.subscribe(b, subscription("t", None)).sub_id.as_str(), "lost");
}

#[test]
fn deliveries_in_hand_are_settled_kept_or_gone_back() {
    let (mut w, a, b, sub) = reader();
    let b = w.resume(2, b);
    for n in 1..=3 {
        w.post(a, letter(to(2), &format!("m{n}")));
    }
    w.post(a, letter(topic("t"), "t1"));
    let pushes = w.pushes(b);
    w.drop_socket(b);
    let mut params = knowing(Conservative, vec![listed(sub.as_str(), "t", None)]);
    params.inflight = vec![
        in_hand(&pushes[0], Some(Settle::Ack)),
        in_hand(&pushes[1], Some(Settle::Nack)),
        in_hand(&pushes[3], None),
    ];
    let mut foreign = in_hand(&pushes[0], None);
    foreign.tag = "nonsense".parse().unwrap();
    params.inflight.push(foreign);
    let (b, result) = w.resume_with(2, b, params);
    let results: Vec<InflightResult> = result.inflight.iter().map(|verdict| verdict.result).collect();
    use InflightResult::{Kept, Requeued, Settled};
    assert_eq!(results, [Settled, Settled, Kept, Requeued]);
    let again = w.pushes(b);
    assert_eq!(bodies(&again), ["m3", "m2"], "first what was never read, then what was given back");
    assert_eq!((tag(&again[0]), again[1].attempt), (tag(&pushes[2]), 2));
    w.ack_all(b, &again);
    w.ack_all(b, &pushes[3..]);
}

#[test]
fn nothing_is_kept_of_a_subscription_that_ends() {
    for group in [None, Some("crew")] {
        let mut w = world();
        let (a, b) = (w.join(1), w.join(2));
        let sub = w.subscribe(b, subscription("t", group)).sub_id;
        w.post(a, letter(topic("t"), "t1"));
        w.post(a, letter(topic("t"), "t2"));
        let pushes = w.pushes(b);
        w.drop_socket(b);
        let other = ClientSubscription { prefetch: 5, ..listed(sub.as_str(), "t", group) };
        let mut params = knowing(Conservative, vec![other]);
        params.inflight = vec![in_hand(&pushes[0], None), in_hand(&pushes[1], Some(Settle::Ack))];
        let (b, result) = w.resume_with(2, b, params);
        assert_eq!(result.inflight[0].result, InflightResult::Requeued);
        assert_eq!(result.inflight[1].result, InflightResult::Settled);
        if group.is_some() {
            w.subscribe(b, subscription("t", group));
            assert_eq!(bodies(&w.pushes(b)), ["t1"]);
        }
    }
}

#[test]
fn a_new_process_has_no_subscriptions_and_gives_back_what_crews_gave_it() {
    let mut w = world();
    let (a, b, c) = (w.join(1), w.join(2), w.join(3));
    for conn in [b, c] {
        w.subscribe(conn, SubscribeParams { prefetch: 1, ..subscription("jobs", Some("crew")) });
    }
    w.post(a, letter(topic("jobs"), "j1"));
    w.post(a, letter(topic("jobs"), "j2"));
    w.post(a, letter(to(2), "m1"));
    let (mine, theirs) = (w.pushes(b), w.pushes(c));
    assert_eq!((mine.len(), theirs.len()), (2, 1));
    let b = w.dial(tenure_mesh::conn::admit::Admission { instance: "other".parse().unwrap(), ..knock(2) });
    assert_eq!(w.hello(b).snapshot.as_ref().unwrap().subscriptions.len(), 0);
    assert_eq!(bodies(&w.pushes(b)), ["m1"], "its inbox is its own");
    w.ack_all(c, &theirs);
    assert_eq!(w.pushes(c).len(), 1, "at once");
}

#[test]
fn deliveries_wait_for_what_the_client_announced_but_not_for_ever() {
    for says in [true, false] {
        let (mut w, a, b, sub) = reader();
        w.post(a, letter(topic("t"), "m1"));
        let mut hello = w.resuming(2, b);
        hello.reconcile = Some(HelloReconcile::Later(tenure_proto::hello::Later::Later));
        let b = w.dial(hello);
        w.pass(4_000);
        assert!(w.pushes(b).is_empty());
        if says {
            let params = knowing(Conservative, vec![listed(sub.as_str(), "t", None)]);
            w.call(b, Call::Reconcile(Box::new(params))).unwrap();
        } else {
            w.pass(2_000);
        }
        assert_eq!(bodies(&w.pushes(b)), ["m1"]);
    }
}

#[test]
fn a_list_that_comes_late_is_judged_by_how_its_hello_was_answered() {
    let (mut w, _, _, sub) = reader();
    w.pass(200_000);
    let reconcile = Some(HelloReconcile::Later(tenure_proto::hello::Later::Later));
    let b = w.dial(Admission { reconcile, ..knock(2) });
    w.pass(6_000);
    let params = knowing(Conservative, vec![listed(sub.as_str(), "t", None)]);
    let Ok(Answer::Reconcile(result)) = w.call(b, Call::Reconcile(Box::new(params))) else { panic!() };
    assert_eq!(result.results[0].action, RecreateClientSide);
}
