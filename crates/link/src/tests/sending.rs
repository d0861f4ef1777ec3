//! Sends: one frame until it is answered, passing refusals waited out, receipts from events or from the store.

use tenure_proto::event::{Receipt, ReceiptState};
use tenure_proto::message::{Fallback, Priority, SendParams};

use super::*;
use crate::tests::peer::*;

fn message(to: &str, id: &str) -> SendParams {
    SendParams {
        to: to.parse().unwrap(),
        body: Some("hello".into()),
        body_b64: None,
        client_message_id: id.parse().unwrap(),
        priority: Priority::Next,
        key: None,
        reply_to: None,
        meta: None,
        content_type: None,
        ttl_ms: None,
        delay_ms: None,
        fallback: Fallback::Hold,
        fingerprint: None,
    }
}

fn to_session() -> String {
    format!("session:{}", "03".repeat(32))
}

fn send(peer: &mut Peer, to: &str, id: &str, receipt_ms: Option<u64>) -> (RequestNumber, Value) {
    let patience = Patience { answer_ms: 20_000, receipt_ms };
    let world = &mut peer.world;
    let number = world.link.send(world.now, &message(to, id), patience).unwrap();
    (number, only(&world.take(), "send"))
}

fn accepted(duplicate: bool) -> Value {
    json!({"id": "01HZY0000000000000000000AA", "log": "inbox/s/x", "seq": 1, "duplicate": duplicate})
}

fn receipt(id: &str, state: &str) -> Value {
    json!({"id": "01HZY0000000000000000000AA", "clientMessageId": id, "state": state})
}

fn receipts(effects: &[LinkEffect]) -> Vec<(RequestNumber, Result<Receipt, String>)> {
    let told = effects.iter().filter_map(|effect| match effect {
        LinkEffect::Receipt(number, outcome) => {
            Some((*number, outcome.clone().map_err(|error| error.code.as_str().to_owned())))
        }
        _ => None,
    });
    told.collect()
}

fn delivered_states(effects: &[LinkEffect]) -> Vec<(RequestNumber, ReceiptState)> {
    receipts(effects).into_iter().map(|(number, receipt)| (number, receipt.unwrap().state)).collect()
}

fn answered(effects: &[LinkEffect]) -> Vec<(RequestNumber, bool)> {
    let answers = effects.iter().filter_map(|effect| match effect {
        LinkEffect::Answer(number, outcome) => Some((*number, outcome.is_ok())),
        _ => None,
    });
    answers.collect()
}

#[test]
fn a_send_is_the_same_frame_on_every_socket_until_it_is_answered() {
    let mut peer = Peer::new();
    let (number, frame) = send(&mut peer, "topic:jobs", "m1", None);
    for _ in 0..3 {
        peer.cut();
        let nothing = json!({"results": [], "inflight": []});
        assert_eq!(only(&peer.welcome("kept", "resumed", Some(nothing)), "send"), frame);
    }
    assert_eq!(answered(&peer.reply(id_of(&frame), accepted(true))), [(number, true)]);
    peer.cut();
    assert!(sent(&peer.welcome("kept", "resumed", None)).is_empty());
}

#[test]
fn passing_refusals_are_waited_out_until_the_callers_time_is_over() {
    for code in ["unavailable", "busy", "rate_limited", "draining"] {
        let mut peer = Peer::new();
        let (number, frame) = send(&mut peer, "topic:jobs", "m1", None);
        assert!(peer.refuse(id_of(&frame), code, Some(3_000)).is_empty());
        assert!(sent(&peer.world.pass(2_999)).is_empty(), "{code}");
        assert_eq!(only(&peer.world.pass(100), "send"), frame);
        peer.refuse(id_of(&frame), code, Some(60_000));
        peer.cut();
        assert!(sent(&peer.welcome("kept", "resumed", None)).is_empty(), "a break does not shorten the wait");
        let effects = peer.world.pass(20_000);
        assert_eq!(answered(&effects), [(number, false)]);
        let error = effects.iter().find_map(|effect| match effect {
            LinkEffect::Answer(_, Err(error)) => Some(error.code.as_str()),
            _ => None,
        });
        assert_eq!(error, Some(code), "the broker's own word");
    }
}

#[test]
fn refusals_grow_rarer() {
    let mut peer = Peer::new();
    let (_, frame) = send(&mut peer, "topic:jobs", "m1", None);
    let mut tries = 0;
    for _ in 0..1_990 {
        peer.world.input(LinkInput::Heard(peer.sock));
        if sent(&peer.world.pass(10)).is_empty() && tries > 0 {
            continue;
        }
        tries += 1;
        peer.refuse(id_of(&frame), "busy", None);
    }
    assert!((5..40).contains(&tries), "{tries}");
}

#[test]
fn another_refusal_is_the_answer() {
    let mut peer = Peer::new();
    let (number, frame) = send(&mut peer, "topic:jobs", "m1", None);
    assert_eq!(answered(&peer.refuse(id_of(&frame), "idempotency_key_reused", None)), [(number, true)]);
    assert!(sent(&peer.world.pass(25_000)).is_empty());
}

#[test]
fn a_receipt_is_told_after_the_answer_and_stays_an_event() {
    let mut peer = Peer::new();
    let (number, frame) = send(&mut peer, &to_session(), "m1", Some(60_000));
    peer.reply(id_of(&frame), accepted(false));
    let effects = peer.event("receipt", receipt("m1", "delivered"));
    assert_eq!(delivered_states(&effects), [(number, ReceiptState::Delivered)]);
    assert_eq!(delivered(&effects).len(), 1);
    assert!(receipts(&peer.event("receipt", receipt("m1", "dead"))).is_empty(), "once");

    // It may overtake the answer.
    let (number, frame) = send(&mut peer, &to_session(), "m2", Some(60_000));
    assert!(receipts(&peer.event("receipt", receipt("m2", "dead"))).is_empty());
    let effects = peer.reply(id_of(&frame), accepted(false));
    assert_eq!(answered(&effects), [(number, true)]);
    assert_eq!(delivered_states(&effects), [(number, ReceiptState::Dead)]);
}

#[test]
fn after_lost_events_the_fate_is_asked_for() {
    let mut peer = Peer::new();
    let (known, frame) = send(&mut peer, &to_session(), "m1", Some(600_000));
    peer.reply(id_of(&frame), accepted(false));
    let (open, again) = send(&mut peer, &to_session(), "m2", Some(600_000));
    peer.cut();
    assert_eq!(
        only(&peer.welcome("kept", "resumed", None), "send"),
        again,
        "nothing was lost, nothing is asked"
    );
    peer.cut();
    let frames = sent(&peer.welcome("new", "resume_not_found", None));
    let [resent, status] = &frames[..] else { panic!("{frames:?}") };
    assert_eq!(resent, &again);
    assert_eq!(status["method"], "send.status");
    assert_eq!(status["params"]["clientMessageIds"], json!(["m1"]), "the other is being sent again");
    let statuses = json!([{"clientMessageId": "m1", "id": "01HZY0000000000000000000AA", "state": "expired"}]);
    let effects = peer.reply(id_of(status), json!({"statuses": statuses}));
    assert_eq!(delivered_states(&effects), [(known, ReceiptState::Expired)]);
    // A duplicate's receipt may have come and gone.
    let effects = peer.reply(id_of(&again), accepted(true));
    let status = only(&effects, "send.status");
    assert_eq!(status["params"]["clientMessageIds"], json!(["m2"]));
    let waiting = json!([{"clientMessageId": "m2", "id": "01HZY0000000000000000000AA", "state": "accepted"}]);
    assert!(receipts(&peer.reply(id_of(&status), json!({"statuses": waiting}))).is_empty());
    let effects = peer.event("receipt", receipt("m2", "delivered"));
    assert_eq!(delivered_states(&effects), [(open, ReceiptState::Delivered)]);
}

#[test]
fn a_receipt_is_not_waited_for_without_end_nor_in_vain() {
    let mut peer = Peer::new();
    let (number, frame) = send(&mut peer, &to_session(), "m1", Some(5_000));
    peer.reply(id_of(&frame), accepted(false));
    assert_eq!(receipts(&peer.world.pass(5_000)), [(number, Err("unavailable".to_owned()))]);

    let (number, frame) = send(&mut peer, &to_session(), "m2", Some(5_000));
    let effects = peer.refuse(id_of(&frame), "no_such_session", None);
    assert_eq!(receipts(&effects), [(number, Err("no_such_session".to_owned()))]);

    let (number, frame) = send(&mut peer, &to_session(), "m3", Some(5_000));
    peer.reply(id_of(&frame), accepted(false));
    let sock = peer.sock;
    let effects = peer.world.closing(sock, &Closing::new(tenure_proto::Reason::Kicked));
    assert_eq!(receipts(&effects), [(number, Err("lease_expired".to_owned()))]);

    let mut peer = Peer::new();
    let patience = Patience { answer_ms: 20_000, receipt_ms: Some(1) };
    let world = &mut peer.world;
    let topic = world.link.send(world.now, &message("topic:jobs", "m"), patience);
    assert_eq!(topic.unwrap_err().code.as_str(), "bad_request");
}
