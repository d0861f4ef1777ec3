//! Subscriptions: opened, routed, deduplicated, ended with a reason.

use tenure_proto::close::Reason;
use tenure_proto::subscribe::AckMode;

use super::*;
use crate::tests::peer::*;

#[test]
fn a_subscribe_is_sent_again_until_it_is_answered() {
    let mut peer = Peer::new();
    let (handle, effects) = peer.ask_subscribe(wish("jobs", Some("crew")));
    let first = only(&effects, "subscribe");
    assert_eq!(first["params"]["group"], "crew");
    let hello = peer.cut();
    assert_eq!(hello["reconcile"]["subscriptions"], json!([]), "it has no name to be listed by");
    let effects = peer.welcome("kept", "resumed", Some(json!({"results": [], "inflight": []})));
    assert_eq!(only(&effects, "subscribe"), first, "the same frame");
    let effects = peer.reply(id_of(&first), json!({"subId": "s1", "startSeq": {"0": 1}}));
    assert!(matches!(&effects[..], [LinkEffect::Sub(h, SubItem::Opened(_))] if *h == handle));
}

#[test]
fn a_subscribe_that_nobody_answers_ends_disconnected_and_its_late_answer_is_undone() {
    let mut peer = Peer::new();
    let (handle, effects) = peer.ask_subscribe(wish("jobs", None));
    let frame = only(&effects, "subscribe");
    peer.world.input(LinkInput::Heard(peer.sock));
    assert_eq!(ends(&peer.world.pass(20_000)), [(handle, SubEnd::Disconnected)]);
    let effects = peer.reply(id_of(&frame), json!({"subId": "s1", "startSeq": {"0": 1}}));
    assert_eq!(only(&effects, "unsubscribe")["params"]["subId"], "s1");

    peer.ask_subscribe(wish("jobs", None));
    peer.world.input(LinkInput::Heard(peer.sock));
    peer.world.pass(20_000);
    peer.cut();
    assert!(sent(&peer.welcome("kept", "resumed", None)).is_empty(), "nobody wants it any more");

    let mut world = World::new();
    let wanted = world.link.subscribe(world.now, wish("jobs", None), 1_000).unwrap();
    assert_eq!(ends(&world.pass(1_000)), [(wanted, SubEnd::Disconnected)], "no broker at all");
}

#[test]
fn a_refused_subscribe_ends_with_the_code_and_a_passing_refusal_is_waited_out() {
    let mut peer = Peer::new();
    let (handle, effects) = peer.ask_subscribe(wish("jobs", None));
    let frame = only(&effects, "subscribe");
    assert!(peer.refuse(id_of(&frame), "unavailable", Some(1_000)).is_empty());
    assert!(sent(&peer.world.pass(999)).is_empty(), "as long as it was asked to");
    assert_eq!(only(&peer.world.pass(100), "subscribe"), frame);
    let end = ends(&peer.refuse(id_of(&frame), "forbidden", None));
    let [(ended, SubEnd::BrokerError { code, .. })] = &end[..] else { panic!("{end:?}") };
    assert_eq!((*ended, code.as_str()), (handle, "forbidden"));
}

#[test]
fn deliveries_find_their_reader_by_the_brokers_name_for_it() {
    let mut config = config();
    config.inbox = InboxChoice::Both;
    let mut peer = Peer::with(config);
    let jobs = peer.subscribe(None, "s1", 1);
    assert!(matches!(messages(&peer.deliver("s1", 1, 1))[..], [(h, Some(_), 1)] if h == jobs));
    let log = format!("inbox/s/{}", "01".repeat(32));
    let effects = peer.event("message", delivery("inbox", &log, 1, 1));
    assert!(matches!(messages(&effects)[..], [(SubHandle::INBOX, Some(_), 1)]));
    let effects = peer.event("message", delivery("member", "inbox/m/x", 1, 1));
    assert!(matches!(messages(&effects)[..], [(SubHandle::MEMBER, Some(_), 1)]));
    assert!(delivered(&effects).is_empty(), "not among the session's events");
}

#[test]
fn an_inbox_that_was_not_asked_for_is_not_taken_in_hand() {
    let mut config = config();
    config.inbox = InboxChoice::None;
    let mut peer = Peer::with(config);
    let effects = peer.event("message", delivery("inbox", "inbox/s/x", 1, 1));
    assert!(effects.is_empty(), "{effects:?}");
    assert_eq!(peer.cut()["reconcile"]["inflight"], json!([]));
}

#[test]
fn a_delivery_that_overtakes_the_answer_waits_for_it_and_a_strangers_is_given_up() {
    let mut peer = Peer::new();
    let (handle, effects) = peer.ask_subscribe(wish("jobs", None));
    let frame = only(&effects, "subscribe");
    assert!(peer.deliver("s1", 1, 1).is_empty());
    let effects = peer.reply(id_of(&frame), json!({"subId": "s1", "startSeq": {"0": 1}}));
    assert!(matches!(messages(&effects)[..], [(h, Some(_), 1)] if h == handle));
    assert_eq!(only(&peer.deliver("s9", 1, 1), "unsubscribe")["params"]["subId"], "s9");
    assert!(peer.deliver("s9", 2, 1).is_empty(), "told once");
}

#[test]
fn a_repeat_of_what_is_in_hand_only_brings_a_newer_tag() {
    let mut peer = Peer::new();
    peer.subscribe(Some("crew"), "s1", 1);
    let id = peer.hand("s1", 1);
    assert!(peer.deliver("s1", 1, 1).is_empty());
    assert!(peer.deliver("s1", 1, 2).is_empty());
    let (_, frame) = peer.ack(id);
    assert_eq!(frame["params"]["tags"], json!([tag(1, 2)]));
}

#[test]
fn two_groups_of_one_log_each_get_their_own() {
    let mut peer = Peer::new();
    let (own, crew) = (peer.subscribe(None, "s1", 1), peer.subscribe(Some("crew"), "s2", 1));
    assert!(matches!(messages(&peer.deliver("s1", 1, 1))[..], [(h, ..)] if h == own));
    assert!(matches!(messages(&peer.deliver("s2", 1, 1))[..], [(h, ..)] if h == crew));
}

#[test]
fn what_was_let_go_is_handed_out_again() {
    let mut peer = Peer::new();
    let handle = peer.subscribe(Some("crew"), "s1", 1);
    let id = peer.hand("s1", 1);
    peer.world.link.forgo(id);
    let effects = peer.deliver("s1", 1, 1);
    let [(h, Some(again), 1)] = messages(&effects)[..] else { panic!("{effects:?}") };
    assert!(h == handle && again != id);
    let number = peer.settle(id, Verb::Ack);
    assert_eq!(settlements(&peer.flush()), [(number, stale("requeued"))]);
}

#[test]
fn a_reader_that_never_reads_holds_a_bounded_number() {
    let mut peer = Peer::new();
    let mut narrow = wish("jobs", Some("crew"));
    narrow.prefetch = 2;
    let (handle, effects) = peer.ask_subscribe(narrow);
    peer.reply(id_of(&only(&effects, "subscribe")), json!({"subId": "s1", "startSeq": {"0": 1}}));
    // The broker takes back what is not settled in time and hands out more.
    let taken: usize = (1..100).map(|seq| messages(&peer.deliver("s1", seq, 1)).len()).sum();
    assert_eq!(taken, 8);
    let world = &mut peer.world;
    world.link.fetch(world.now, handle, 5, 20_000).unwrap();
    let frame = only(&peer.world.take(), "fetch");
    assert_eq!(frame["params"], json!({"subId": "s1", "limit": 5}));
    let pulled =
        json!({"messages": [delivery("s1", "topic/jobs/0", 200, 1), delivery("s1", "topic/jobs/0", 1, 1)]});
    let effects = peer.reply(id_of(&frame), pulled);
    let [LinkEffect::Fetched(_, Ok(handed))] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(handed.len(), 1, "what was asked for is taken, what is in hand is not handed out twice");
}

#[test]
fn a_fetch_follows_its_subscription_to_another_name() {
    let mut peer = Peer::new();
    let handle = peer.subscribe(Some("crew"), "s1", 1);
    let world = &mut peer.world;
    world.link.fetch(world.now, handle, 5, 20_000).unwrap();
    peer.world.take();
    peer.cut();
    let effects =
        peer.welcome("kept", "resumed", Some(json!({"results": [keep("s7", "s1")], "inflight": []})));
    assert_eq!(only(&effects, "fetch")["params"]["subId"], "s7");
}

#[test]
fn auto_ack_keeps_nothing_in_hand() {
    let mut peer = Peer::new();
    let mut auto = wish("jobs", None);
    auto.ack_mode = AckMode::Auto;
    let (_, effects) = peer.ask_subscribe(auto);
    peer.reply(id_of(&only(&effects, "subscribe")), json!({"subId": "s1", "startSeq": {"0": 1}}));
    assert!(matches!(messages(&peer.deliver("s1", 1, 1))[..], [(_, None, 1)]));
    let reconcile = peer.cut()["reconcile"].take();
    assert_eq!(reconcile["inflight"], json!([]));
    assert_eq!(reconcile["subscriptions"][0]["positions"], json!({"0": 1}));
}

#[test]
fn gaps_are_told_and_a_close_ends_with_its_reason() {
    let mut peer = Peer::new();
    let handle = peer.subscribe(None, "s1", 1);
    let gap = json!({"subId": "s1", "kind": "gap", "partition": 0, "from": 1, "to": 5});
    let effects = peer.event("subscription", gap);
    let [LinkEffect::Sub(h, item)] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!((*h, item), (handle, &SubItem::Gap { partition: Some(0), from: 1, to: 5 }));
    for (reason, end) in [
        ("lease_expired", SubEnd::LeaseExpired),
        ("deleted", SubEnd::Deleted),
        ("replaced", SubEnd::Replaced),
        ("topic_deleted", SubEnd::closed(Some("topic_deleted".into()))),
    ] {
        let mut peer = Peer::new();
        let handle = peer.subscribe(None, "s1", 1);
        let closed = json!({"subId": "s1", "kind": "closed", "reason": reason});
        assert_eq!(ends(&peer.event("subscription", closed)), [(handle, end)]);
        assert_eq!(peer.cut()["reconcile"]["subscriptions"], json!([]));
    }
}

#[test]
fn what_was_done_is_not_missed() {
    let mut peer = Peer::new();
    let handle = peer.subscribe(None, "s1", 1);
    for seq in 1..=2 {
        let id = peer.hand("s1", seq);
        let (_, frame) = peer.ack(id);
        peer.reply(id_of(&frame), json!({"settled": [tag(seq, 1)], "stale": []}));
    }
    let gap = |to: u64| json!({"subId": "s1", "kind": "gap", "partition": 0, "from": 1, "to": to});
    assert!(peer.event("subscription", gap(2)).is_empty(), "a crash made the broker forget that");
    peer.hand("s1", 3);
    let effects = peer.event("subscription", gap(5));
    let [LinkEffect::Sub(h, item)] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!((*h, item), (handle, &SubItem::Gap { partition: Some(0), from: 4, to: 5 }), "3 is in hand");
}

#[test]
fn unsubscribing_ends_when_the_broker_knows() {
    let mut peer = Peer::new();
    let handle = peer.subscribe(None, "s1", 1);
    peer.world.link.unsubscribe(handle);
    let frame = only(&peer.world.take(), "unsubscribe");
    assert!(peer.deliver("s1", 1, 1).is_empty(), "nobody reads any more");
    assert_eq!(ends(&peer.reply(id_of(&frame), json!({}))), [(handle, SubEnd::Unsubscribed)]);

    // Broken off, the reconciliation says it: what is not listed is dropped.
    let handle = peer.subscribe(None, "s2", 1);
    peer.world.link.unsubscribe(handle);
    peer.world.take();
    assert_eq!(peer.cut()["reconcile"]["subscriptions"], json!([]));
    let closed =
        json!({"action": "close_server_side", "subId": "s2", "server": "s2", "reason": "client_missing"});
    let effects = peer.welcome("kept", "resumed", Some(json!({"results": [closed], "inflight": []})));
    assert_eq!(ends(&effects), [(handle, SubEnd::Unsubscribed)]);
    assert!(sent(&effects).is_empty());

    // Before it is open, its answer is undone.
    let (handle, effects) = peer.ask_subscribe(wish("jobs", None));
    let frame = only(&effects, "subscribe");
    peer.world.link.unsubscribe(handle);
    assert_eq!(ends(&peer.world.take()), [(handle, SubEnd::Unsubscribed)]);
    let effects = peer.reply(id_of(&frame), json!({"subId": "s3", "startSeq": {}}));
    assert_eq!(only(&effects, "unsubscribe")["params"]["subId"], "s3");
}

#[test]
fn one_reader_per_topic_group_and_partition() {
    let mut peer = Peer::new();
    let handle = peer.subscribe(None, "s1", 1);
    let world = &mut peer.world;
    let twin = world.link.subscribe(world.now, wish("jobs", None), 20_000);
    assert_eq!(twin.unwrap_err().code.as_str(), "conflict");
    peer.world.link.unsubscribe(handle);
    peer.world.take();
    peer.ask_subscribe(wish("jobs", None));
}

#[test]
fn every_end_of_a_session_is_a_reason_for_its_readers() {
    let by = |reason: Reason| {
        let mut peer = Peer::new();
        let handle = peer.subscribe(None, "s1", 1);
        let sock = peer.sock;
        let effects = peer.world.closing(sock, &Closing::new(reason));
        assert!(matches!(effects.last(), Some(LinkEffect::Ended(_))));
        ends(&effects).into_iter().find(|(ended, _)| *ended == handle).unwrap().1
    };
    assert_eq!(by(Reason::Bye), SubEnd::ClientShutdown);
    assert_eq!(by(Reason::SessionReplaced), SubEnd::Replaced);
    assert!(matches!(by(Reason::Kicked), SubEnd::BrokerError { code, .. } if code == "kicked"));
}

#[test]
fn an_answer_that_nobody_waits_for_does_not_undo_a_twin_that_somebody_does() {
    let mut peer = Peer::new();
    let (first, effects) = peer.ask_subscribe(wish("jobs", None));
    let frames = [only(&effects, "subscribe")];
    peer.world.link.unsubscribe(first);
    peer.world.take();
    let (second, effects) = peer.ask_subscribe(wish("jobs", None));
    let frames = [&frames[0], &only(&effects, "subscribe")];
    let opened = json!({"subId": "s1", "startSeq": {"0": 1}});
    assert!(peer.reply(id_of(frames[0]), opened.clone()).is_empty(), "it is the same one at the broker");
    peer.reply(id_of(frames[1]), opened);
    assert!(matches!(messages(&peer.deliver("s1", 1, 1))[..], [(h, ..)] if h == second));
}

#[test]
fn what_was_given_back_or_let_go_is_still_ahead_of_the_position() {
    let mut peer = Peer::new();
    peer.subscribe(None, "s1", 1);
    let ids: Vec<_> = (1..=3).map(|seq| peer.hand("s1", seq)).collect();
    peer.settle(ids[0], Verb::Ack);
    peer.settle(ids[1], Verb::Nack { delay_ms: Some(1), dead: false, reason: None });
    for frame in sent(&peer.flush()) {
        peer.reply(id_of(&frame), json!({"settled": frame["params"]["tags"], "stale": []}));
    }
    peer.settle(ids[2], Verb::Ack);
    let frame = only(&peer.flush(), "ack");
    peer.reply(id_of(&frame), json!({"settled": [tag(3, 1)], "stale": []}));
    let position = |peer: &mut Peer| {
        let position = peer.cut()["reconcile"]["subscriptions"][0]["positions"]["0"].take();
        peer.welcome("kept", "resumed", Some(json!({"results": [keep("s1", "s1")], "inflight": []})));
        position
    };
    assert_eq!(position(&mut peer), 1, "the second waits at the broker");
    let effects = peer.deliver("s1", 2, 2);
    let [(_, Some(id), 2)] = messages(&effects)[..] else { panic!("{effects:?}") };
    peer.world.link.forgo(id);
    assert_eq!(position(&mut peer), 1, "let go, it will come again");
    let effects = peer.deliver("s1", 2, 2);
    let [(_, Some(id), 2)] = messages(&effects)[..] else { panic!("{effects:?}") };
    let (_, frame) = peer.ack(id);
    peer.reply(id_of(&frame), json!({"settled": [tag(2, 2)], "stale": []}));
    assert_eq!(position(&mut peer), 3);
}

#[test]
fn a_name_that_the_broker_gives_again_belongs_to_the_newer_reader() {
    let mut peer = Peer::new();
    let old = peer.subscribe(None, "s1", 1);
    peer.world.link.unsubscribe(old);
    let leaving = only(&peer.world.take(), "unsubscribe");
    let new = peer.subscribe(None, "s1", 1);
    assert_eq!(ends(&peer.reply(id_of(&leaving), json!({}))), [(old, SubEnd::Unsubscribed)]);
    assert!(matches!(messages(&peer.deliver("s1", 1, 1))[..], [(h, ..)] if h == new));
}

#[test]
fn a_delivery_that_overtook_its_answer_on_a_lost_socket_is_not_handed_out() {
    let mut peer = Peer::new();
    let (_, effects) = peer.ask_subscribe(wish("jobs", None));
    let frame = only(&effects, "subscribe");
    peer.deliver("s1", 1, 1);
    peer.cut();
    peer.welcome("kept", "resumed", Some(json!({"results": [], "inflight": []})));
    let effects = peer.reply(id_of(&frame), json!({"subId": "s1", "startSeq": {"0": 1}}));
    assert!(messages(&effects).is_empty(), "the broker has made it anew and delivers anew");
    assert_eq!(messages(&peer.deliver("s1", 1, 1)).len(), 1);
}

#[test]
fn fetches_count_among_what_the_application_may_ask() {
    let (mut world, _) = World::attached();
    let mut fetch = || world.link.fetch(world.now, SubHandle::INBOX, 1, 60_000);
    for _ in 0..tenure_proto::limits::MAX_INFLIGHT {
        fetch().unwrap();
    }
    assert_eq!(fetch().unwrap_err().code, tenure_proto::ErrorCode::Busy);
    assert!(world.link.census().iter().any(|count| count.size == count.bound && count.size > 0));
}
