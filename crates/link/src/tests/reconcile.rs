//! After a break: what is listed, what the verdicts do, what a new lease means.

use tenure_proto::reconcile::ReconcilePolicy;

use super::*;
use crate::tests::peer::*;

fn verdict(action: &str, client: &str) -> Value {
    json!({"action": action, "subId": client, "client": client, "reason": "server_missing"})
}

#[test]
fn the_hello_lists_subscriptions_with_positions_and_what_is_in_hand() {
    let mut config = config();
    config.reconcile = ReconcilePolicy::RestoreClient;
    let mut peer = Peer::with(config);
    peer.subscribe(Some("crew"), "s1", 5);
    let hello = peer.cut();
    assert!(hello["resume"].is_object());
    let listed = json!({
        "subId": "s1", "topic": "jobs", "group": "crew", "ackMode": "manual", "prefetch": 32, "positions": {"0": 4},
    });
    let expected = json!({"policy": "restore_client", "subscriptions": [listed], "inflight": []});
    assert_eq!(hello["reconcile"], expected);
}

#[test]
fn a_reader_of_its_own_lists_how_far_it_is_and_a_member_of_a_group_where_it_began() {
    for (group, position) in [(None, 5), (Some("crew"), 4)] {
        let mut peer = Peer::new();
        peer.subscribe(group, "s1", 5);
        let done = peer.hand("s1", 5);
        peer.hand("s1", 6);
        let (_, frame) = peer.ack(done);
        peer.reply(id_of(&frame), json!({"settled": [tag(5, 1)], "stale": []}));
        let reconcile = peer.cut()["reconcile"].take();
        assert_eq!(reconcile["inflight"], json!([{"tag": tag(6, 1), "state": "processing"}]));
        assert_eq!(reconcile["subscriptions"][0]["positions"], json!({"0": position}), "{group:?}");
    }
}

#[test]
fn a_kept_subscription_goes_on_under_its_new_name() {
    let mut peer = Peer::new();
    let handle = peer.subscribe(None, "s1", 1);
    let id = peer.hand("s1", 1);
    peer.cut();
    let kept = json!([{"tag": tag(1, 1), "result": "kept"}]);
    let effects =
        peer.welcome("kept", "resumed", Some(json!({"results": [keep("s9", "s1")], "inflight": kept})));
    assert!(sent(&effects).is_empty() && ends(&effects).is_empty());
    assert!(matches!(messages(&peer.deliver("s9", 2, 1))[..], [(h, ..)] if h == handle));
    assert!(messages(&peer.deliver("s9", 1, 1)).is_empty(), "still in hand");
    let (_, frame) = peer.ack(id);
    assert_eq!(frame["params"]["tags"], json!([tag(1, 1)]));
    assert_eq!(peer.cut()["reconcile"]["subscriptions"][0]["subId"], "s9");
}

#[test]
fn what_must_be_made_again_is_made_from_where_nothing_is_lost() {
    let mut peer = Peer::new();
    let handle = peer.subscribe(None, "s1", 10);
    let ids: Vec<_> = (10..=12).map(|seq| peer.hand("s1", seq)).collect();
    for at in [0, 2] {
        let (_, frame) = peer.ack(ids[at]);
        let settled = frame["params"]["tags"].clone();
        peer.reply(id_of(&frame), json!({"settled": settled, "stale": []}));
    }
    peer.cut();
    let requeued = json!([{"tag": tag(11, 1), "result": "requeued"}]);
    let result = json!({"results": [verdict("recreate_client_side", "s1")], "inflight": requeued});
    let effects = peer.welcome("new", "resume_not_found", Some(result));
    let frame = only(&effects, "subscribe");
    assert_eq!(frame["params"]["from"], 11, "the first that is not done");
    assert!(ends(&effects).is_empty());
    // It is made again as often as it takes.
    peer.cut();
    let nothing = json!({"results": [], "inflight": []});
    assert_eq!(only(&peer.welcome("kept", "resumed", Some(nothing)), "subscribe"), frame);
    let effects = peer.reply(id_of(&frame), json!({"subId": "s5", "startSeq": {"0": 11}}));
    assert!(effects.is_empty(), "the application hears nothing of it: {effects:?}");
    assert!(matches!(messages(&peer.deliver("s5", 11, 1))[..], [(h, ..)] if h == handle), "in no hands");
    assert!(messages(&peer.deliver("s5", 12, 1)).is_empty(), "acked in its earlier life");
    assert_eq!(only(&peer.flush(), "ack")["params"]["tags"], json!([tag(12, 1)]));
    let late = peer.settle(ids[1], Verb::Ack);
    assert_eq!(settlements(&peer.flush()), [(late, stale("requeued"))]);
}

#[test]
fn what_must_be_closed_ends_with_the_brokers_reason() {
    let mut peer = Peer::new();
    let handle = peer.subscribe(None, "s1", 1);
    peer.cut();
    let result = json!({"results": [verdict("close_client_side", "s1")], "inflight": []});
    let effects = peer.welcome("kept", "resumed", Some(result));
    let reason = "server_missing".to_owned();
    assert_eq!(ends(&effects), [(handle, SubEnd::ReconciledClosed { reason })]);
    assert!(sent(&effects).is_empty());
    assert!(peer.deliver("inbox", 1, 1).len() == 1, "the inbox goes on");
}

#[test]
fn without_a_verdict_it_subscribes_again_which_is_the_same_if_it_is_still_there() {
    for reconcile in [None, Some(json!({"results": [], "inflight": []}))] {
        let mut peer = Peer::new();
        let handle = peer.subscribe(Some("crew"), "s1", 1);
        let id = peer.hand("s1", 1);
        peer.cut();
        let effects = peer.welcome("kept", "resumed", reconcile);
        let frame = only(&effects, "subscribe");
        peer.reply(id_of(&frame), json!({"subId": "s1", "startSeq": {"0": 1}}));
        assert!(messages(&peer.deliver("s1", 1, 1)).is_empty(), "the lease was kept: still in hand");
        assert!(matches!(messages(&peer.deliver("s1", 2, 1))[..], [(h, ..)] if h == handle));
        peer.ack(id);
    }
}

#[test]
fn what_was_requeued_is_stale_and_new_when_it_comes_again() {
    let mut peer = Peer::new();
    peer.subscribe(Some("crew"), "s1", 1);
    let (reading, acked) = (peer.hand("s1", 1), peer.hand("s1", 2));
    let (number, _) = peer.ack(acked);
    peer.cut();
    let inflight =
        json!([{"tag": tag(1, 1), "result": "requeued"}, {"tag": tag(2, 1), "result": "requeued"}]);
    let result = json!({"results": [keep("s1", "s1")], "inflight": inflight});
    let effects = peer.welcome("kept", "resumed", Some(result));
    assert_eq!(settlements(&effects), [(number, stale("requeued"))]);
    assert!(sent(&effects).is_empty());
    let late = peer.settle(reading, Verb::Ack);
    let effects = peer.flush();
    assert_eq!(settlements(&effects), [(late, stale("requeued"))]);
    assert!(sent(&effects).is_empty(), "it is not ours to ack");
    for seq in [1, 2] {
        assert_eq!(messages(&peer.deliver("s1", seq, 2)).len(), 1);
    }
}

#[test]
fn after_a_new_lease_what_nobody_speaks_of_is_stale() {
    let mut peer = Peer::new();
    peer.subscribe(None, "s1", 1);
    let (reading, acked) = (peer.hand("s1", 1), peer.hand("s1", 2));
    let (number, _) = peer.ack(acked);
    peer.cut();
    let result = json!({"results": [keep("s4", "s1")], "inflight": []});
    let effects = peer.welcome("new", "resume_not_found", Some(result));
    assert_eq!(settlements(&effects), [(number, stale("requeued"))]);
    let late = peer.settle(reading, Verb::Ack);
    assert_eq!(settlements(&peer.flush()), [(late, stale("requeued"))]);
    assert_eq!(messages(&peer.deliver("s4", 1, 1)).len(), 1);
}

#[test]
fn an_ack_that_counted_although_the_lease_was_lost_is_done() {
    let mut peer = Peer::new();
    let log = format!("inbox/s/{}", "01".repeat(32));
    let effects = peer.event("message", delivery("inbox", &log, 1, 1));
    let [(SubHandle::INBOX, Some(id), 1)] = messages(&effects)[..] else { panic!("{effects:?}") };
    let (number, _) = peer.ack(id);
    let reconcile = peer.cut()["reconcile"].take();
    assert_eq!(reconcile["subscriptions"], json!([]), "an inbox is never listed, what is in hand of it is");
    let verdicts = json!({"results": [], "inflight": [{"tag": tag(1, 1), "result": "settled"}]});
    let effects = peer.welcome("new", "resume_not_found", Some(verdicts));
    assert_eq!(settlements(&effects), [(number, Settlement::Settled)]);
}

#[test]
fn a_subscription_opened_while_the_hello_was_under_way_is_made_again() {
    let mut peer = Peer::new();
    let (handle, effects) = peer.ask_subscribe(wish("jobs", None));
    let frame = only(&effects, "subscribe");
    // The machine slept: a new socket says hello beside the old one, which then answers.
    peer.world.jump(40_000);
    peer.world.link.tick(peer.world.now);
    let effects = peer.world.take();
    assert_eq!(ends(&effects), [(handle, SubEnd::Disconnected)], "its own time is over as well");
    let next = World::dialled(&effects);
    let (handle, effects) = peer.ask_subscribe(wish("jobs", Some("crew")));
    let second = only(&effects, "subscribe");
    assert_eq!(peer.world.challenge(next)["params"]["reconcile"]["subscriptions"], json!([]));
    peer.reply(id_of(&frame), json!({"subId": "s1", "startSeq": {"0": 1}}));
    peer.reply(id_of(&second), json!({"subId": "s2", "startSeq": {"0": 1}}));
    peer.sock = next;
    let dropped =
        json!({"action": "close_server_side", "subId": "s2", "server": "s2", "reason": "client_missing"});
    let effects = peer.welcome("kept", "resumed", Some(json!({"results": [dropped], "inflight": []})));
    let frame = only(&effects, "subscribe");
    assert_eq!(frame["params"]["group"], "crew");
    peer.reply(id_of(&frame), json!({"subId": "s3", "startSeq": {"0": 1}}));
    assert!(matches!(messages(&peer.deliver("s3", 1, 1))[..], [(h, ..)] if h == handle));
}

#[test]
fn what_is_too_large_for_the_hello_follows_right_after_it() {
    let mut peer = Peer::new();
    let mut wide = wish("jobs", None);
    wide.prefetch = 2_000;
    let (handle, effects) = peer.ask_subscribe(wide);
    peer.reply(id_of(&only(&effects, "subscribe")), json!({"subId": "s1", "startSeq": {"0": 1}}));
    let ids: Vec<_> = (1..=2_000).map(|seq| peer.hand("s1", seq)).collect();
    let (acked, _) = peer.ack(ids[0]);
    peer.request(tenure_proto::method::Method::Ping, json!({}));
    peer.world.take();
    let hello = peer.cut();
    assert_eq!(hello["reconcile"], "later");
    let frames = sent(&peer.welcome("kept", "resumed", None));
    let methods: Vec<_> = frames.iter().map(|frame| frame["method"].clone()).collect();
    assert_eq!(methods, ["reconcile", "ping"], "it is the next frame, and acks wait for its answer");
    assert_eq!(frames[0]["params"]["inflight"].as_array().unwrap().len(), 2_000);
    assert_eq!(frames[0]["params"]["inflight"][0]["state"], "settled");
    let other = peer.settle(ids[1], Verb::Ack);
    assert!(peer.flush().is_empty());
    assert!(peer.deliver("s2", 3_000, 1).is_empty(), "a name that the answer will explain");
    let inflight = json!([{"tag": tag(1, 1), "result": "settled"}, {"tag": tag(2, 1), "result": "kept"}]);
    let effects = peer.reply("reconcile", json!({"results": [keep("s2", "s1")], "inflight": inflight}));
    assert_eq!(settlements(&effects), [(acked, Settlement::Settled)]);
    assert!(matches!(messages(&effects)[..], [(h, _, 3_000)] if h == handle));
    let frame = only(&effects, "ack");
    assert_eq!(frame["params"]["tags"], json!([tag(2, 1)]));
    let effects = peer.reply(id_of(&frame), json!({"settled": [tag(2, 1)], "stale": []}));
    assert_eq!(settlements(&effects), [(other, Settlement::Settled)]);
}

#[test]
fn a_broken_reconciliation_is_told_anew() {
    let mut peer = Peer::new();
    peer.max_payload = 1;
    let mut wide = wish("jobs", None);
    wide.prefetch = 2_000;
    let (_, effects) = peer.ask_subscribe(wide);
    peer.reply(id_of(&only(&effects, "subscribe")), json!({"subId": "s1", "startSeq": {"0": 1}}));
    let ids: Vec<_> = (1..=2_000).map(|seq| peer.hand("s1", seq)).collect();
    let (number, _) = peer.ack(ids[1_999]);
    for _ in 0..2 {
        assert_eq!(peer.cut()["reconcile"], "later");
        let frame = only(&peer.welcome("kept", "resumed", None), "reconcile");
        let listed = frame["params"]["inflight"].as_array().unwrap();
        assert_eq!(listed.len(), 1_000, "as much as the broker reads");
        assert_eq!(listed[0], json!({"tag": tag(2_000, 1), "state": "settled", "settle": "ack"}));
    }
    // Refused, everything is made again by hand.
    let frames = sent(&peer.refuse("reconcile", "internal", None));
    let methods: Vec<_> = frames.iter().map(|frame| frame["method"].clone()).collect();
    assert_eq!(methods, ["subscribe", "ack"]);
    let effects = peer.reply(id_of(&frames[1]), json!({"settled": [tag(2_000, 1)], "stale": []}));
    assert_eq!(settlements(&effects), [(number, Settlement::Settled)]);
}

#[test]
fn a_hello_that_is_never_answered_changes_nothing() {
    let mut peer = Peer::new();
    peer.subscribe(None, "s1", 1);
    let id = peer.hand("s1", 1);
    peer.ack(id);
    let first = peer.cut()["reconcile"].take();
    assert_eq!(peer.cut()["reconcile"], first);
}
