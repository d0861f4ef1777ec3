//! Calls: one run whatever breaks, its chunks in order and each once, its end once.

use super::*;
use crate::runs::caller::{CALLS, UNREAD};
use crate::tests::peer::*;

const RUN: &str = "01HZY0000000000000000000RN";

fn params(key: &str) -> tenure_proto::run::RunStartParams {
    let to = format!("session:{}", "02".repeat(32)).parse().unwrap();
    let (timeout_ms, from_seq) = (None, None);
    tenure_proto::run::RunStartParams {
        to,
        input: json!("hi"),
        idempotency_key: key.into(),
        timeout_ms,
        from_seq,
    }
}

impl Peer {
    fn try_call(&mut self, key: &str) -> Result<(CallHandle, Vec<LinkEffect>), tenure_proto::WireError> {
        let world = &mut self.world;
        let handle = world.link.call(world.now, params(key), 20_000)?;
        Ok((handle, world.take()))
    }

    /// A call that the broker has taken as `run`.
    fn call(&mut self, key: &str, run: &str) -> CallHandle {
        let (handle, effects) = self.try_call(key).unwrap();
        let frame = only(&effects, "run.start");
        let effects = self.started(&frame, run, "queued");
        assert!(
            matches!(&effects[..], [LinkEffect::Call(h, CallItem::Started(_))] if *h == handle),
            "{effects:?}"
        );
        handle
    }

    fn started(&mut self, frame: &Value, run: &str, state: &str) -> Vec<LinkEffect> {
        self.reply(id_of(frame), json!({"runId": run, "state": state}))
    }

    fn chunk(&mut self, seq: u64) -> Vec<String> {
        said(&self.event("run", json!({"runId": RUN, "seq": seq, "data": seq})))
    }

    fn ok(&mut self, seq: u64) -> Vec<String> {
        let end = json!({"status": "ok", "result": "done"});
        said(&self.event("run", json!({"runId": RUN, "seq": seq, "end": end})))
    }

    fn read(&mut self, handle: CallHandle) -> Vec<LinkEffect> {
        let world = &mut self.world;
        world.link.call_read(handle);
        world.take()
    }
}

/// What callers hear, in short.
fn said(effects: &[LinkEffect]) -> Vec<String> {
    let told = effects.iter().filter_map(|effect| match effect {
        LinkEffect::Call(handle, item) => Some((handle, item)),
        _ => None,
    });
    let short = |(handle, item): (&CallHandle, &CallItem)| match item {
        CallItem::Started(_) => format!("{} started", handle.0),
        CallItem::Chunk { seq, gap, .. } => format!("{} {seq}{}", handle.0, if *gap { " gap" } else { "" }),
        CallItem::Ended(CallEnd::Run { end, gap }) => {
            format!("{} {:?}{}", handle.0, end.status, if *gap { " gap" } else { "" })
        }
        CallItem::Ended(CallEnd::Refused(error)) => format!("{} {}", handle.0, error.code),
        CallItem::Ended(CallEnd::Session(end)) => format!("{} {end}", handle.0),
    };
    told.map(short).collect()
}

#[test]
fn chunks_come_in_order_each_once_and_the_end_once() {
    let mut peer = Peer::new();
    peer.call("k", RUN);
    assert_eq!(peer.chunk(1), ["1 1"]);
    assert_eq!(peer.chunk(2), ["1 2"]);
    assert!(peer.chunk(1).is_empty() && peer.chunk(2).is_empty(), "a repeat is none");
    assert_eq!(peer.chunk(5), ["1 5 gap"], "3 and 4 are gone with a broker");
    assert_eq!(peer.ok(6), ["1 Ok"]);
    assert!(peer.ok(6).is_empty() && peer.chunk(7).is_empty());
}

#[test]
fn what_is_missing_before_the_end_is_told_with_it() {
    let mut peer = Peer::new();
    peer.call("k", RUN);
    peer.chunk(1);
    assert_eq!(peer.ok(4), ["1 Ok gap"]);
}

#[test]
fn a_mark_of_the_broker_is_no_gap_when_nothing_is_missing() {
    let mut peer = Peer::new();
    peer.call("k", RUN);
    peer.chunk(1);
    let effects = peer.event("run", json!({"runId": RUN, "seq": 2, "data": null, "gap": true}));
    assert_eq!(said(&effects), ["1 2"], "it started again, and lost nothing that we wanted");
}

#[test]
fn a_lost_answer_costs_nothing() {
    let mut peer = Peer::new();
    let (handle, effects) = peer.try_call("k").unwrap();
    let first = only(&effects, "run.start");
    assert_eq!(first["params"]["idempotencyKey"], "k");
    peer.cut();
    let again = only(&peer.welcome("kept", "resumed", None), "run.start");
    assert_eq!(again["params"], first["params"], "the same request");
    assert!(peer.chunk(1).is_empty(), "replayed, and nobody knows whose it is");
    assert_eq!(said(&peer.started(&again, RUN, "running")), [format!("{} started", handle.0)]);
    assert_eq!(peer.chunk(1), ["1 1"]);
}

#[test]
fn a_complete_replay_needs_nothing() {
    let mut peer = Peer::new();
    peer.call("k", RUN);
    peer.chunk(1);
    peer.cut();
    assert!(sent(&peer.welcome("kept", "resumed", None)).is_empty());
    assert_eq!(peer.chunk(2), ["1 2"]);
}

#[test]
fn after_lost_events_the_call_asks_from_where_it_is() {
    let mut peer = Peer::new();
    peer.call("k", RUN);
    peer.chunk(1);
    peer.chunk(2);
    for lease in ["kept", "new"] {
        peer.cut();
        let frame = only(&peer.welcome(lease, "resume_not_found", None), "run.start");
        assert_eq!(frame["params"]["fromSeq"], 3, "{lease}");
        assert!(peer.chunk(9).is_empty(), "from before the broker went back");
        assert!(peer.ok(10).is_empty());
        assert!(said(&peer.started(&frame, RUN, "running")).is_empty(), "it is started once");
    }
    assert_eq!(peer.chunk(3), ["1 3"]);
    assert_eq!(peer.ok(4), ["1 Ok"]);
}

#[test]
fn a_break_while_it_asks_is_asked_again() {
    let mut peer = Peer::new();
    peer.call("k", RUN);
    peer.chunk(1);
    peer.cut();
    only(&peer.welcome("kept", "resume_not_found", None), "run.start");
    peer.cut();
    let frame = only(&peer.welcome("kept", "resumed", None), "run.start");
    assert_eq!(frame["params"]["fromSeq"], 2);
    peer.cut();
    let frame = only(&peer.welcome("kept", "resume_not_found", None), "run.start");
    peer.started(&frame, RUN, "ok");
    assert_eq!(peer.ok(2), ["1 Ok"]);
}

#[test]
fn a_reader_that_is_too_slow_is_spared_and_asks_again_when_it_can() {
    let mut peer = Peer::new();
    let handle = peer.call("k", RUN);
    for seq in 1..=UNREAD as u64 {
        assert_eq!(peer.chunk(seq).len(), 1);
    }
    let next = UNREAD as u64 + 1;
    assert!(peer.chunk(next).is_empty() && peer.ok(next + 1).is_empty());
    let mut asked = Vec::new();
    for _ in 0..UNREAD {
        asked.extend(sent(&peer.read(handle)));
    }
    assert_eq!(asked.len(), 1, "once");
    assert_eq!(asked[0]["params"]["fromSeq"], next);
    assert!(peer.chunk(next).is_empty(), "not before the answer");
    peer.started(&asked[0], RUN, "ok");
    assert_eq!(peer.chunk(next), [format!("1 {next}")]);
    assert_eq!(peer.ok(next + 1), ["1 Ok"]);
}

#[test]
fn large_chunks_fill_a_reader_by_their_size() {
    let mut peer = Peer::new();
    peer.call("k", RUN);
    let large = "x".repeat(600_000);
    let came = (1..=5).map(|seq| said(&peer.event("run", json!({"runId": RUN, "seq": seq, "data": large}))));
    assert_eq!(came.flatten().collect::<Vec<_>>(), ["1 1", "1 2"]);
}

#[test]
fn that_a_run_is_wanted_no_more_is_said_again_after_lost_events() {
    let mut peer = Peer::new();
    let handle = peer.call("k", RUN);
    peer.world.link.call_cancelled(handle);
    peer.cut();
    assert!(sent(&peer.welcome("kept", "resumed", None)).is_empty(), "the broker knows it");
    peer.cut();
    let frame = only(&peer.welcome("kept", "resume_not_found", None), "run.start");
    let cancel = only(&peer.started(&frame, RUN, "running"), "run.cancel");
    assert_eq!(cancel["params"], json!({"runId": RUN}));
    peer.cut();
    let again = only(&peer.welcome("kept", "resumed", None), "run.cancel");
    assert_eq!(again["id"], cancel["id"]);
    assert!(peer.reply(id_of(&again), json!({})).is_empty());
}

#[test]
fn twins_of_one_session_share_one_run() {
    let mut peer = Peer::new();
    peer.call("k", RUN);
    peer.chunk(1);
    let (_, effects) = peer.try_call("k").unwrap();
    let frame = only(&effects, "run.start");
    assert_eq!(frame["params"]["fromSeq"], 1, "the second has seen nothing");
    peer.started(&frame, RUN, "running");
    assert_eq!(peer.chunk(1), ["2 1"]);
    assert_eq!(peer.chunk(2), ["1 2", "2 2"]);
    assert_eq!(peer.ok(3), ["1 Ok", "2 Ok"]);
}

#[test]
fn a_refusal_for_now_is_waited_out_and_another_ends_the_call() {
    let mut peer = Peer::new();
    let (_, effects) = peer.try_call("k").unwrap();
    let frame = only(&effects, "run.start");
    assert!(peer.refuse(id_of(&frame), "busy", None).is_empty());
    let again = only(&peer.world.pass(5_000), "run.start");
    assert_eq!(said(&peer.refuse(id_of(&again), "no_such_session", None)), ["1 no_such_session"]);
    assert!(sent(&peer.world.pass(19_000)).iter().all(|frame| frame["method"] != "run.start"));
}

#[test]
fn a_call_that_no_broker_takes_is_given_up_in_time() {
    let mut peer = Peer::new();
    let (_, effects) = peer.try_call("k").unwrap();
    let frame = only(&effects, "run.start");
    assert_eq!(said(&peer.world.pass(20_000)), ["1 unavailable"]);
    assert!(said(&peer.started(&frame, RUN, "queued")).is_empty());
}

#[test]
fn who_hangs_up_hears_nothing_more() {
    let mut peer = Peer::new();
    let handle = peer.call("k", RUN);
    peer.world.link.hang_up(handle);
    assert!(peer.chunk(1).is_empty() && peer.ok(2).is_empty());
    peer.cut();
    assert!(sent(&peer.welcome("kept", "resume_not_found", None)).is_empty());
}

#[test]
fn the_end_of_the_session_is_the_end_of_its_calls() {
    let mut peer = Peer::new();
    peer.call("k", RUN);
    peer.try_call("other").unwrap();
    let world = &mut peer.world;
    world.link.bye(world.now);
    let end = SubEnd::ClientShutdown;
    assert_eq!(said(&peer.world.pass(1_000)), [format!("1 {end}"), format!("2 {end}")]);
}

#[test]
fn calls_have_a_bound() {
    let mut peer = Peer::new();
    for n in 0..CALLS {
        peer.try_call(&format!("k{n}")).unwrap();
    }
    assert_eq!(peer.try_call("one more").unwrap_err().code, tenure_proto::ErrorCode::Busy);
    assert!(peer.world.link.census().iter().all(tenure_kit::census::Count::fits));
}
