//! Settlements: batched, sent again with current tags, told once, stale when they are.

use super::*;
use crate::tests::peer::*;

fn nack(delay_ms: Option<u64>) -> Verb {
    Verb::Nack { delay_ms, dead: false, reason: None }
}

fn settled(tags: &[String]) -> Value {
    json!({"settled": tags, "stale": []})
}

#[test]
fn the_acks_of_one_turn_leave_as_one_request() {
    let mut peer = Peer::new();
    peer.subscribe(None, "s1", 1);
    let ids: Vec<_> = (1..=3).map(|seq| peer.hand("s1", seq)).collect();
    let numbers: Vec<_> = ids.iter().map(|id| peer.settle(*id, Verb::Ack)).collect();
    let frame = only(&peer.flush(), "ack");
    assert_eq!(frame["params"]["tags"], json!([tag(1, 1), tag(2, 1), tag(3, 1)]));
    assert!(peer.flush().is_empty(), "once");
    let stale_tag = json!([{"tag": tag(2, 1), "reason": "claimed"}]);
    let answer = json!({"settled": [tag(1, 1), tag(3, 1)], "stale": stale_tag});
    let effects = peer.reply(id_of(&frame), answer);
    let expected = [
        (numbers[0], Settlement::Settled),
        (numbers[1], stale("claimed")),
        (numbers[2], Settlement::Settled),
    ];
    assert_eq!(settlements(&effects), expected);
}

#[test]
fn a_request_settles_a_thousand_and_no_more() {
    let mut peer = Peer::new();
    let mut wide = wish("jobs", None);
    wide.prefetch = 5_000;
    let (_, effects) = peer.ask_subscribe(wide);
    peer.reply(id_of(&only(&effects, "subscribe")), json!({"subId": "s1", "startSeq": {"0": 1}}));
    for seq in 1..=2_500 {
        let id = peer.hand("s1", seq);
        peer.settle(id, Verb::Ack);
    }
    let frames = sent(&peer.flush());
    let sizes: Vec<_> = frames.iter().map(|f| f["params"]["tags"].as_array().unwrap().len()).collect();
    assert_eq!(sizes, [1_024, 1_024, 452]);
}

#[test]
fn a_broker_that_is_ahead_of_its_answers_is_followed() {
    let mut peer = Peer::new();
    peer.subscribe(Some("crew"), "s1", 1);
    for seq in 1..=1_000 {
        // It hands out as soon as it has read an ack, and answers that only once it is on its disk.
        let id = peer.hand("s1", seq);
        peer.ack(id);
    }
}

#[test]
fn different_ways_to_settle_are_different_requests() {
    let mut peer = Peer::new();
    peer.subscribe(None, "s1", 1);
    let ids: Vec<_> = (1..=5).map(|seq| peer.hand("s1", seq)).collect();
    let dead = Verb::Nack { delay_ms: None, dead: true, reason: Some("broken".into()) };
    let verbs = [Verb::Ack, nack(None), nack(Some(500)), dead, Verb::Progress];
    for (id, verb) in ids.iter().zip(verbs) {
        peer.settle(*id, verb);
    }
    let frames = sent(&peer.flush());
    let said = |method: &str, params: Value| {
        assert!(
            frames.iter().any(|f| f["method"] == method && f["params"] == params),
            "{method} {params}: {frames:?}"
        );
    };
    said("ack", json!({"tags": [tag(1, 1)]}));
    said("nack", json!({"tags": [tag(2, 1)], "dead": false}));
    said("nack", json!({"tags": [tag(3, 1)], "dead": false, "delayMs": 500}));
    said("nack", json!({"tags": [tag(4, 1)], "dead": true, "reason": "broken"}));
    said("progress", json!({"tags": [tag(5, 1)]}));
}

#[test]
fn what_was_acked_is_acked_again_and_not_handed_out() {
    let mut peer = Peer::new();
    peer.subscribe(None, "s1", 1);
    let id = peer.hand("s1", 1);
    let (_, frame) = peer.ack(id);
    peer.reply(id_of(&frame), settled(&[tag(1, 1)]));
    assert!(messages(&peer.deliver("s1", 1, 3)).is_empty());
    let frame = only(&peer.flush(), "ack");
    assert_eq!(frame["params"]["tags"], json!([tag(1, 3)]));
    assert!(settlements(&peer.reply(id_of(&frame), settled(&[tag(1, 3)]))).is_empty(), "nobody waits for it");
}

#[test]
fn what_was_given_up_is_given_up_again_until_it_comes_from_the_dead_letters() {
    let mut peer = Peer::new();
    peer.subscribe(None, "s1", 1);
    let id = peer.hand("s1", 1);
    peer.settle(id, Verb::Nack { delay_ms: None, dead: true, reason: Some("broken".into()) });
    let frame = only(&peer.flush(), "nack");
    peer.reply(id_of(&frame), settled(&[tag(1, 1)]));
    assert!(messages(&peer.deliver("s1", 1, 1)).is_empty(), "a crash made the broker forget it");
    let frame = only(&peer.flush(), "nack");
    assert_eq!(frame["params"], json!({"tags": [tag(1, 1)], "dead": true, "reason": "broken"}));
    assert_eq!(messages(&peer.deliver("s1", 1, 2)).len(), 1, "somebody fetched it");
}

#[test]
fn what_was_nacked_or_stale_is_handed_out_again() {
    let mut peer = Peer::new();
    peer.subscribe(Some("crew"), "s1", 1);
    let id = peer.hand("s1", 1);
    let number = peer.settle(id, nack(None));
    let frame = only(&peer.flush(), "nack");
    let effects = peer.reply(id_of(&frame), settled(&[tag(1, 1)]));
    assert_eq!(settlements(&effects), [(number, Settlement::Settled)]);
    let effects = peer.deliver("s1", 1, 2);
    let [(_, Some(id), 1)] = messages(&effects)[..] else { panic!("{effects:?}") };
    let (number, frame) = peer.ack(id);
    let answer = json!({"settled": [], "stale": [{"tag": tag(1, 2), "reason": "expired"}]});
    assert_eq!(settlements(&peer.reply(id_of(&frame), answer)), [(number, stale("expired"))]);
    assert_eq!(messages(&peer.deliver("s1", 1, 3)).len(), 1, "its ack came too late: it is new again");
}

#[test]
fn a_nack_that_took_effect_before_its_answer_does_not_swallow_the_next_attempt() {
    let mut peer = Peer::new();
    peer.subscribe(Some("crew"), "s1", 1);
    let id = peer.hand("s1", 1);
    let number = peer.settle(id, nack(None));
    let frame = only(&peer.flush(), "nack");
    assert!(messages(&peer.deliver("s1", 1, 1)).is_empty(), "the same attempt is the one given back");
    let effects = peer.deliver("s1", 1, 2);
    let [(_, Some(next), 1)] = messages(&effects)[..] else { panic!("{effects:?}") };
    let effects = peer.reply(id_of(&frame), settled(&[tag(1, 1)]));
    assert_eq!(settlements(&effects), [(number, Settlement::Settled)]);
    let (_, frame) = peer.ack(next);
    assert_eq!(frame["params"]["tags"], json!([tag(1, 2)]));
}

#[test]
fn an_ack_whose_tag_was_outdated_meanwhile_is_made_with_the_new_one() {
    let mut peer = Peer::new();
    peer.subscribe(Some("crew"), "s1", 1);
    let id = peer.hand("s1", 1);
    let (number, frame) = peer.ack(id);
    assert!(messages(&peer.deliver("s1", 1, 2)).is_empty());
    let answer = json!({"settled": [], "stale": [{"tag": tag(1, 1), "reason": "attempt"}]});
    let effects = peer.reply(id_of(&frame), answer);
    assert!(settlements(&effects).is_empty());
    let frame = only(&effects, "ack");
    assert_eq!(frame["params"]["tags"], json!([tag(1, 2)]));
    let effects = peer.reply(id_of(&frame), settled(&[tag(1, 2)]));
    assert_eq!(settlements(&effects), [(number, Settlement::Settled)]);
}

#[test]
fn an_ack_made_without_a_socket_is_told_in_the_next_hello_and_not_sent() {
    for sent_before in [true, false] {
        let mut peer = Peer::new();
        peer.subscribe(None, "s1", 1);
        let id = peer.hand("s1", 1);
        let number = peer.settle(id, Verb::Ack);
        if sent_before {
            only(&peer.flush(), "ack");
        }
        let reconcile = peer.cut()["reconcile"].take();
        let listed = json!([{"tag": tag(1, 1), "state": "settled", "settle": "ack"}]);
        assert_eq!(reconcile["inflight"], listed);
        let verdict = json!([{"tag": tag(1, 1), "result": "settled"}]);
        let result = json!({"results": [keep("s1", "s1")], "inflight": verdict});
        let effects = peer.welcome("kept", "resumed", Some(result));
        assert_eq!(settlements(&effects), [(number, Settlement::Settled)]);
        assert!(sent(&effects).is_empty() && sent(&peer.flush()).is_empty(), "not twice");
        assert!(messages(&peer.deliver("s1", 1, 1)).is_empty(), "it counts as acked");
    }
}

#[test]
fn an_ack_whose_answer_came_is_not_listed() {
    let mut peer = Peer::new();
    peer.subscribe(None, "s1", 1);
    let id = peer.hand("s1", 1);
    let (_, frame) = peer.ack(id);
    peer.reply(id_of(&frame), settled(&[tag(1, 1)]));
    assert_eq!(peer.cut()["reconcile"]["inflight"], json!([]));
}

#[test]
fn an_ack_that_the_reconciliation_did_not_settle_is_sent_with_the_current_tag() {
    let mut peer = Peer::new();
    peer.subscribe(None, "s1", 1);
    let id = peer.hand("s1", 1);
    let (number, _) = peer.ack(id);
    peer.cut();
    let kept = json!([{"tag": tag(1, 1), "result": "kept"}]);
    let effects =
        peer.welcome("kept", "resumed", Some(json!({"results": [keep("s1", "s1")], "inflight": kept})));
    let frame = only(&effects, "ack");
    assert_eq!(frame["params"]["tags"], json!([tag(1, 1)]));
    let effects = peer.reply(id_of(&frame), settled(&[tag(1, 1)]));
    assert_eq!(settlements(&effects), [(number, Settlement::Settled)]);
}

#[test]
fn a_nack_with_particulars_is_sent_again_because_the_list_has_no_room_for_them() {
    let mut peer = Peer::new();
    peer.subscribe(None, "s1", 1);
    let (plain, delayed) = (peer.hand("s1", 1), peer.hand("s1", 2));
    peer.settle(plain, nack(None));
    peer.settle(delayed, nack(Some(500)));
    peer.flush();
    let listed = peer.cut()["reconcile"]["inflight"].take();
    let expected = json!([
        {"tag": tag(1, 1), "state": "settled", "settle": "nack"},
        {"tag": tag(2, 1), "state": "processing"},
    ]);
    assert_eq!(listed, expected);
    let inflight = json!([{"tag": tag(1, 1), "result": "settled"}, {"tag": tag(2, 1), "result": "kept"}]);
    let result = json!({"results": [keep("s1", "s1")], "inflight": inflight});
    let effects = peer.welcome("kept", "resumed", Some(result));
    let params = json!({"tags": [tag(2, 1)], "dead": false, "delayMs": 500});
    assert_eq!(only(&effects, "nack")["params"], params);
}

#[test]
fn a_passing_refusal_of_an_ack_is_waited_out_and_another_is_told() {
    let mut peer = Peer::new();
    peer.subscribe(Some("crew"), "s1", 1);
    let id = peer.hand("s1", 1);
    let (number, frame) = peer.ack(id);
    assert!(peer.refuse(id_of(&frame), "busy", Some(2_000)).is_empty());
    assert!(peer.flush().is_empty());
    assert!(sent(&peer.world.pass(1_999)).is_empty());
    let frame = only(&peer.world.pass(100), "ack");
    let told = settlements(&peer.refuse(id_of(&frame), "forbidden", None));
    let [(told, Settlement::Refused(error))] = &told[..] else { panic!("{told:?}") };
    assert_eq!((*told, error.code.as_str()), (number, "forbidden"));
    assert_eq!(messages(&peer.deliver("s1", 1, 2)).len(), 1);
}

#[test]
fn settlements_without_an_answer_are_told_that_the_session_is_over() {
    let mut peer = Peer::new();
    peer.subscribe(None, "s1", 1);
    let (first, second) = (peer.hand("s1", 1), peer.hand("s1", 2));
    let (sent_one, _) = peer.ack(first);
    let waiting = peer.settle(second, Verb::Ack);
    let sock = peer.sock;
    let effects = peer.world.closing(sock, &Closing::new(tenure_proto::Reason::Kicked));
    let over = |number| (number, Settlement::SessionOver);
    assert_eq!(settlements(&effects), [over(sent_one), over(waiting)]);
    let late = peer.settle(second, Verb::Ack);
    assert_eq!(settlements(&peer.world.take()), [over(late)]);
}

#[test]
fn goodbye_lets_acks_leave_first() {
    let mut peer = Peer::new();
    peer.subscribe(None, "s1", 1);
    let id = peer.hand("s1", 1);
    peer.settle(id, Verb::Ack);
    peer.world.link.bye(peer.world.now);
    let methods: Vec<_> = sent(&peer.world.take()).iter().map(|f| f["method"].clone()).collect();
    assert_eq!(methods, ["ack", "bye"]);
}

#[test]
fn words_of_progress_do_not_pile_up() {
    let mut peer = Peer::new();
    peer.subscribe(None, "s1", 1);
    let id = peer.hand("s1", 1);
    for _ in 0..16 {
        peer.settle(id, Verb::Progress);
    }
    let number = peer.settle(id, Verb::Progress);
    let effects = peer.flush();
    let told = settlements(&effects);
    assert!(
        matches!(&told[..], [(n, Settlement::Refused(error))] if *n == number && error.code == tenure_proto::error::ErrorCode::Busy),
        "{told:?}"
    );
    let frame = only(&effects, "progress");
    assert_eq!(settlements(&peer.reply(id_of(&frame), settled(&[tag(1, 1)]))).len(), 16);
    peer.settle(id, Verb::Progress);
    assert!(settlements(&peer.flush()).is_empty(), "there is room again");
}
