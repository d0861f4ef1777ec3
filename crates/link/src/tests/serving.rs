//! Runs that this session answers: handed out once, their chunks and their end sent until the broker has them.

use tenure_proto::run::{RunEnd, RunEndStatus};

use super::*;
use crate::runs::callee::EARLY_CANCELS;
use crate::tests::peer::*;

const INBOX: &str = "inbox/s/8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c";

/// The name of the run that is entry `seq` of the inbox.
fn run(seq: u64) -> String {
    format!("01HZY000000000000000000R{seq:02}")
}

fn run_delivery(seq: u64, attempt: u32) -> Value {
    let mut delivery = delivery("inbox", INBOX, seq, attempt);
    delivery["message"]["kind"] = json!("run");
    delivery["message"]["priority"] = json!("now");
    delivery["message"]["meta"] = json!({"runId": run(seq)});
    delivery["message"]["body"] = json!("\"hi\"");
    delivery
}

fn ok(result: Value) -> RunEnd {
    RunEnd { status: RunEndStatus::Ok, result: Some(result), error: None }
}

/// What is told of runs, in short.
fn told(effects: &[LinkEffect]) -> Vec<String> {
    let told = effects.iter().filter_map(|effect| match effect {
        LinkEffect::Served(handle, item) => Some((handle.0, item)),
        _ => None,
    });
    let short = |(handle, item): (u64, &ServedItem)| match item {
        ServedItem::Came(run, _) => format!("{handle} came {run}"),
        ServedItem::Taken(seq) => format!("{handle} took {seq}"),
        ServedItem::Cancelled => format!("{handle} cancelled"),
        ServedItem::Over(error) => format!("{handle} over {}", error.code),
        ServedItem::Ended => format!("{handle} ended"),
    };
    told.map(short).collect()
}

fn numbers(effects: &[LinkEffect], method: &str) -> Vec<u64> {
    let of = |frame: Value| (frame["method"] == method).then(|| frame["params"]["seq"].as_u64().unwrap());
    sent(effects).into_iter().filter_map(of).collect()
}

impl Peer {
    fn serving() -> Peer {
        let mut peer = Peer::new();
        peer.world.link.serve_runs();
        peer
    }

    /// A run that comes to the application.
    fn run(&mut self, seq: u64) -> ServedHandle {
        let effects = self.event("message", run_delivery(seq, 1));
        let [LinkEffect::Served(handle, ServedItem::Came(..))] = &effects[..] else { panic!("{effects:?}") };
        *handle
    }

    fn piece(
        &mut self,
        handle: ServedHandle,
        data: Value,
    ) -> Result<Vec<LinkEffect>, tenure_proto::WireError> {
        let world = &mut self.world;
        world.link.run_chunk(handle, Piece::new(data))?;
        Ok(world.take())
    }

    fn finish(&mut self, handle: ServedHandle, end: RunEnd) -> Vec<LinkEffect> {
        let world = &mut self.world;
        world.link.run_end(handle, end);
        world.take()
    }
}

#[test]
fn a_run_is_answered_in_chunks_and_ends_once() {
    let mut peer = Peer::serving();
    let handle = peer.run(1);
    for seq in 1..=2 {
        let frame = only(&peer.piece(handle, json!(seq)).unwrap(), "run.chunk");
        assert_eq!(frame["params"], json!({"runId": run(1), "seq": seq, "data": seq}));
        assert_eq!(told(&peer.reply(id_of(&frame), json!({}))), [format!("1 took {seq}")]);
    }
    let frame = only(&peer.finish(handle, ok(json!("done"))), "run.end");
    assert_eq!(frame["params"], json!({"runId": run(1), "seq": 3, "status": "ok", "result": "done"}));
    assert!(peer.finish(handle, ok(json!("twice"))).is_empty());
    assert!(peer.piece(handle, json!(0)).is_err(), "nothing after the end");
    assert_eq!(told(&peer.reply(id_of(&frame), json!({}))), ["1 ended"]);
    assert!(peer.flush().is_empty(), "the end has settled the delivery");
    assert!(told(&peer.event("message", run_delivery(1, 2))).is_empty(), "it is not answered twice");
    assert_eq!(only(&peer.flush(), "ack")["params"]["tags"], json!([tag(1, 2)]));
}

#[test]
fn without_a_server_a_run_is_a_message() {
    let mut peer = Peer::new();
    let effects = peer.event("message", run_delivery(1, 1));
    assert_eq!(messages(&effects).len(), 1, "{effects:?}");
}

#[test]
fn a_message_is_no_run() {
    let mut peer = Peer::serving();
    assert_eq!(messages(&peer.event("message", delivery("inbox", INBOX, 1, 1))).len(), 1);
    peer.subscribe(None, "s1", 1);
    let mut posted = run_delivery(2, 1);
    (posted["subId"], posted["message"]["log"]) = (json!("s1"), json!("topic/jobs/0"));
    assert_eq!(messages(&peer.event("message", posted)).len(), 1, "runs come through inboxes only");
}

#[test]
fn what_is_unanswered_goes_out_again_in_order_after_a_break() {
    let mut peer = Peer::serving();
    let handle = peer.run(1);
    let frames: Vec<Value> =
        (1..=4).map(|n| only(&peer.piece(handle, json!(n)).unwrap(), "run.chunk")).collect();
    peer.reply(id_of(&frames[0]), json!({}));
    let hello = peer.cut();
    assert_eq!(hello["reconcile"]["inflight"][0]["state"], "processing", "the run is in hand");
    peer.piece(handle, json!(5)).unwrap();
    peer.finish(handle, ok(Value::Null));
    let kept = json!({"results": [], "inflight": [{"tag": tag(1, 1), "result": "kept"}]});
    let effects = peer.welcome("kept", "resumed", Some(kept));
    assert_eq!(numbers(&effects, "run.chunk"), [2, 3, 4, 5]);
    assert_eq!(numbers(&effects, "run.end"), [6]);
    assert_eq!(sent(&effects).last().unwrap()["method"], "run.end");
}

#[test]
fn a_run_that_comes_again_while_it_is_answered_is_not_handed_out_again() {
    let mut peer = Peer::serving();
    let handle = peer.run(1);
    assert!(told(&peer.event("message", run_delivery(1, 1))).is_empty());
    peer.cut();
    let gone = json!({"results": [], "inflight": [{"tag": tag(1, 1), "result": "requeued"}]});
    let effects = peer.welcome("kept", "resumed", Some(gone));
    let look = only(&effects, "run.get");
    assert!(told(&peer.event("message", run_delivery(1, 2))).is_empty());
    let running = json!({"runId": run(1), "state": "running", "lastSeq": 0});
    assert!(told(&peer.reply(id_of(&look), running)).is_empty());
    let frame = only(&peer.finish(handle, ok(json!(1))), "run.end");
    assert_eq!(told(&peer.reply(id_of(&frame), json!({}))), ["1 ended"]);
}

#[test]
fn a_refused_chunk_ends_the_work_with_its_reason() {
    for code in ["seq_gap", "not_owner", "not_found", "conflict"] {
        let mut peer = Peer::serving();
        let handle = peer.run(1);
        let first = only(&peer.piece(handle, json!(1)).unwrap(), "run.chunk");
        let second = only(&peer.piece(handle, json!(2)).unwrap(), "run.chunk");
        assert_eq!(told(&peer.refuse(id_of(&first), code, None)), [format!("1 over {code}")]);
        assert!(told(&peer.refuse(id_of(&second), code, None)).is_empty(), "once");
        assert!(peer.piece(handle, json!(3)).is_err());
        assert!(peer.finish(handle, ok(json!(1))).is_empty(), "nothing is said of it any more");
        peer.cut();
        assert!(sent(&peer.welcome("kept", "resumed", None)).is_empty());
    }
}

#[test]
fn a_chunk_that_the_broker_cannot_take_ends_the_run() {
    let mut peer = Peer::serving();
    let handle = peer.run(1);
    let first = only(&peer.piece(handle, json!(1)).unwrap(), "run.chunk");
    let second = only(&peer.piece(handle, json!(2)).unwrap(), "run.chunk");
    peer.reply(id_of(&first), json!({}));
    let effects = peer.refuse(id_of(&second), "bad_request", None);
    assert_eq!(told(&effects), ["1 over bad_request"]);
    let end = only(&effects, "run.end");
    assert_eq!((&end["params"]["seq"], &end["params"]["error"]["code"]), (&json!(2), &json!("bad_request")));
    assert!(peer.finish(handle, ok(json!(1))).is_empty());
    assert!(told(&peer.reply(id_of(&end), json!({}))).is_empty(), "it was told");
}

#[test]
fn what_follows_a_chunk_that_is_refused_for_now_waits_with_it() {
    let mut peer = Peer::serving();
    let handle = peer.run(1);
    let frame = only(&peer.piece(handle, json!(1)).unwrap(), "run.chunk");
    assert!(peer.refuse(id_of(&frame), "unavailable", None).is_empty());
    assert!(peer.piece(handle, json!(2)).unwrap().is_empty());
    assert!(peer.finish(handle, ok(json!(1))).is_empty());
    let effects = peer.world.pass(5_000);
    assert_eq!((numbers(&effects, "run.chunk"), numbers(&effects, "run.end")), (vec![1, 2], vec![3]));
}

#[test]
fn the_window_holds_the_application_back() {
    let mut peer = Peer::serving();
    let handle = peer.run(1);
    let mut frames = Vec::new();
    let full = loop {
        match peer.piece(handle, json!(1)) {
            Ok(effects) => frames.push(only(&effects, "run.chunk")),
            Err(error) => break error.code,
        }
    };
    assert_eq!((full, frames.len()), (tenure_proto::ErrorCode::Busy, 64));
    peer.reply(id_of(&frames[0]), json!({}));
    let next = only(&peer.piece(handle, json!(1)).unwrap(), "run.chunk");
    assert_eq!(next["params"]["seq"], 65, "what was refused took no number");
    assert!(peer.world.link.census().iter().all(tenure_kit::census::Count::fits));
}

#[test]
fn a_piece_that_is_too_large_takes_no_number() {
    let mut peer = Peer::serving();
    let handle = peer.run(1);
    let large = json!("x".repeat(peer.max_payload as usize));
    assert_eq!(peer.piece(handle, large.clone()).unwrap_err().code, tenure_proto::ErrorCode::TooLarge);
    assert_eq!(only(&peer.piece(handle, json!(1)).unwrap(), "run.chunk")["params"]["seq"], 1);
    let frame = only(&peer.finish(handle, ok(large)), "run.end");
    assert_eq!((&frame["params"]["status"], &frame["params"]["seq"]), (&json!("error"), &json!(2)));
    assert_eq!(frame["params"]["error"]["code"], "too_large");
}

#[test]
fn an_answer_that_the_broker_finds_too_large_is_an_error() {
    let mut peer = Peer::serving();
    let handle = peer.run(1);
    let frame = only(&peer.finish(handle, ok(json!("long"))), "run.end");
    let again = only(&peer.refuse(id_of(&frame), "too_large", None), "run.end");
    assert_eq!(again["params"]["error"]["code"], "too_large");
    assert_eq!(
        told(&peer.refuse(id_of(&again), "too_large", None)),
        ["1 over too_large"],
        "and not for ever"
    );
}

#[test]
fn a_cancel_reaches_the_run_also_when_it_is_quicker() {
    let mut peer = Peer::serving();
    peer.run(1);
    assert_eq!(told(&peer.event("run", json!({"runId": run(1), "cancel": true}))), ["1 cancelled"]);
    assert!(told(&peer.event("run", json!({"runId": run(2), "cancel": true}))).is_empty());
    let came = told(&peer.event("message", run_delivery(2, 1)));
    assert_eq!(came, [format!("2 came {}", run(2)), "2 cancelled".to_owned()]);
    for seq in 0..2 * EARLY_CANCELS {
        let run = format!("01HZY0000000000000000{seq:05}");
        peer.event("run", json!({"runId": run, "cancel": true}));
    }
    assert!(peer.world.link.census().iter().all(tenure_kit::census::Count::fits));
}

#[test]
fn after_lost_events_a_run_is_looked_at() {
    let mut peer = Peer::serving();
    peer.run(1);
    peer.run(2);
    peer.cut();
    let frames = sent(&peer.welcome("kept", "resume_not_found", None));
    let looks: Vec<&Value> = frames.iter().filter(|frame| frame["method"] == "run.get").collect();
    assert_eq!(looks.len(), 2, "{frames:?}");
    let error = json!({"code": "expired", "message": "m", "retryable": false});
    let over = json!({"runId": run(1), "state": "error", "lastSeq": 0, "error": error});
    assert_eq!(told(&peer.reply(id_of(looks[0]), over)), ["1 over expired"]);
    assert_eq!(told(&peer.refuse(id_of(looks[1]), "not_found", None)), ["2 over not_found"]);
}

#[test]
fn the_end_of_the_session_is_the_end_of_the_work() {
    let mut peer = Peer::serving();
    let handle = peer.run(1);
    peer.piece(handle, json!(1)).unwrap();
    let world = &mut peer.world;
    world.link.bye(world.now);
    assert_eq!(told(&peer.world.pass(1_000)), ["1 over lease_expired"]);
}

#[test]
fn a_run_that_is_pulled_is_answered_too() {
    let mut peer = Peer::serving();
    let world = &mut peer.world;
    let asked = world.link.fetch(world.now, SubHandle::INBOX, 10, 20_000);
    asked.unwrap();
    let frame = only(&world.take(), "fetch");
    let pulled = json!({"messages": [run_delivery(1, 1), delivery("inbox", INBOX, 2, 1)]});
    let effects = peer.reply(id_of(&frame), pulled);
    assert_eq!(told(&effects), [format!("1 came {}", run(1))]);
    let fetched =
        effects.iter().any(|effect| matches!(effect, LinkEffect::Fetched(_, Ok(got)) if got.len() == 1));
    assert!(fetched, "{effects:?}");
}
