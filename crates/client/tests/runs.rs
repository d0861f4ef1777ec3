//! Calling and answering by way of the SDK, in front of a broker that the test plays.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Broker, connect};
use serde_json::{Value, json};
use tenure_client::proto::{ErrorCode, WireError};
use tenure_client::{Answer, CallError, ChunkError, End, Run, RunError, RunStream, ServeEnd, Session, To};

const RUN: &str = "01HZY0000000000000000000RN";

fn callee() -> To {
    To(format!("session:{}", "02".repeat(32)).parse().unwrap())
}

/// A call that the broker has taken.
async fn call(broker: &mut Broker, session: &Session) -> RunStream {
    let taken = async {
        let (id, params) = broker.expect("run.start").await;
        broker.reply(id, json!({"runId": RUN, "state": "queued"})).await;
        params
    };
    let (stream, params) = tokio::join!(session.call(callee(), json!({"q": 1})).key("k"), taken);
    assert_eq!((&params["idempotencyKey"], &params["input"]), (&json!("k"), &json!({"q": 1})));
    let stream = stream.unwrap();
    assert_eq!(stream.run_id().to_string(), RUN);
    stream
}

async fn chunk(broker: &mut Broker, seq: u64) {
    broker.event("run", json!({"runId": RUN, "seq": seq, "data": seq})).await;
}

async fn end(broker: &mut Broker, seq: u64, end: Value) {
    broker.event("run", json!({"runId": RUN, "seq": seq, "end": end})).await;
}

fn piece(data: u64, gap: bool) -> Result<Answer, CallError> {
    Ok(Answer::Chunk { data: data.into(), gap })
}

#[tokio::test]
async fn an_answer_goes_on_through_a_break_and_ends_once() {
    let (mut broker, session) = connect(|options| options).await;
    let mut stream = call(&mut broker, &session).await;
    chunk(&mut broker, 1).await;
    assert_eq!(stream.next().await, piece(1, false));
    session.sever().await;
    broker.accept(Value::Null).await;
    chunk(&mut broker, 2).await;
    chunk(&mut broker, 4).await;
    assert_eq!(stream.next().await, piece(2, false));
    assert_eq!(stream.next().await, piece(4, true));
    end(&mut broker, 5, json!({"status": "ok", "result": [1]})).await;
    let over = Ok(Answer::End { result: json!([1]), gap: false });
    assert_eq!(stream.next().await, over);
    assert_eq!(stream.next().await, over, "every time");
}

#[tokio::test]
async fn a_run_that_fails_or_is_cancelled_says_so() {
    let (mut broker, session) = connect(|options| options).await;
    let stream = call(&mut broker, &session).await;
    let error = json!({"code": "expired", "message": "too long", "retryable": false});
    end(&mut broker, 1, json!({"status": "error", "error": error})).await;
    let failed = CallError::Failed(WireError::new(ErrorCode::Expired, "too long"));
    assert_eq!(stream.result().await, Err(failed));

    let stream = call(&mut broker, &session).await;
    let asked = async {
        let (id, params) = broker.expect("run.cancel").await;
        assert_eq!(params, json!({"runId": RUN}));
        broker.reply(id, json!({})).await;
    };
    tokio::join!(async { stream.cancel().await.unwrap() }, asked);
    end(&mut broker, 1, json!({"status": "cancelled"})).await;
    assert_eq!(stream.result().await, Err(CallError::Cancelled));
}

#[tokio::test]
async fn what_cannot_be_called_is_refused() {
    let (mut broker, session) = connect(|options| options).await;
    let Err(CallError::Refused(error)) = session.call(To::topic("jobs").unwrap(), "x").await else {
        panic!("a topic answered")
    };
    assert_eq!(error.code, ErrorCode::BadRequest);
    let refuse = async {
        let (id, _) = broker.expect("run.start").await;
        let error = json!({"code": "no_such_session", "message": "who?", "retryable": false});
        broker.say(json!({"type": "res", "id": id, "ok": false, "error": error})).await;
    };
    let (refused, ()) = tokio::join!(session.call(callee(), "x"), refuse);
    assert!(matches!(refused, Err(CallError::Refused(error)) if error.code == ErrorCode::NoSuchSession));
}

#[tokio::test]
async fn the_end_of_the_session_ends_a_stream_with_a_reason() {
    let (mut broker, session) = connect(|options| options).await;
    let mut stream = call(&mut broker, &session).await;
    session.bye().await;
    assert!(matches!(stream.next().await, Err(CallError::Session(_))));
    let (mut broker, session) = connect(|options| options).await;
    let mut stream = call(&mut broker, &session).await;
    session.part().await;
    assert!(matches!(stream.next().await, Err(CallError::Session(_))));
}

/// Hands the run called `id` to the session.
async fn run(broker: &mut Broker, id: &str, seq: u64, input: &str) {
    let key = "02".repeat(32);
    let message = json!({
        "id": id, "clientMessageId": "m", "to": format!("session:{key}"), "log": format!("inbox/s/{key}"), "seq": seq,
        "from": {"member": key, "session": key, "name": "caller"}, "priority": "now", "body": input, "sentAt": 1,
        "kind": "run", "meta": {"runId": id},
    });
    let tag = format!("inbox.{seq}");
    let delivery =
        json!({"subId": "inbox", "tag": tag, "attempt": 1, "redelivered": false, "message": message});
    broker.event("message", delivery).await;
}

fn name(n: u64) -> String {
    format!("01HZY000000000000000000R{n:02}")
}

async fn shout(run: Run) -> Result<Value, RunError> {
    for word in run.input.as_str().ok_or_else(|| RunError::failed("ask in words"))?.split(' ') {
        run.chunk(word.to_uppercase()).await?;
    }
    Ok(run.from.name.into())
}

#[tokio::test]
async fn a_run_is_answered_across_a_break() {
    let (mut broker, session) = connect(|options| options.serve_runs()).await;
    assert_eq!(broker.hello["inbox"], "session", "runs come through an inbox");
    run(&mut broker, &name(1), 1, "\"be quick\"").await;
    let serving = tokio::spawn(session.serve_runs(shout).into_future());
    let (id, params) = broker.expect("run.chunk").await;
    assert_eq!(params, json!({"runId": name(1), "seq": 1, "data": "BE"}));
    broker.reply(id, json!({})).await;
    let (_, lost) = broker.expect("run.chunk").await;
    session.sever().await;
    broker.accept(json!({"results": [], "inflight": [{"tag": "inbox.1", "result": "kept"}]})).await;
    // The answer to the first may not have been read before the break.
    loop {
        let (id, again) = broker.expect("run.chunk").await;
        broker.reply(id, json!({})).await;
        if again == lost {
            break;
        }
        assert_eq!(again, params);
    }
    let (id, params) = broker.expect("run.end").await;
    assert_eq!(params, json!({"runId": name(1), "seq": 3, "status": "ok", "result": "caller"}));
    broker.reply(id, json!({})).await;
    session.part().await;
    assert_eq!(serving.await.unwrap(), ServeEnd::Session(End::Bye));
}

#[tokio::test]
async fn however_a_handler_ends_its_run_ends() {
    let (mut broker, session) = connect(|options| options.serve_runs()).await;
    let handler = |run: Run| async move {
        match run.input.as_str() {
            Some("panic") => panic!("as asked"),
            Some("fail") => Err(RunError::failed("as asked")),
            Some("wait") => {
                run.cancelled().await;
                Err(RunError::Cancelled)
            }
            _ => Ok(Value::Null),
        }
    };
    let serving = tokio::spawn(session.serve_runs(handler).concurrency(2).into_future());
    let ends = [
        ("\"panic\"", "error", "internal"),
        ("\"fail\"", "error", "internal"),
        ("{", "error", "bad_request"),
    ];
    for (n, (input, status, code)) in (1..).zip(ends) {
        run(&mut broker, &name(n), n, input).await;
        let (id, params) = broker.expect("run.end").await;
        assert_eq!((&params["status"], &params["error"]["code"]), (&json!(status), &json!(code)), "{input}");
        broker.reply(id, json!({})).await;
    }
    // Two are at work; the third waits, and is cancelled before it begins.
    for n in 11..=13 {
        run(&mut broker, &name(n), n, "\"wait\"").await;
    }
    for n in [13, 11] {
        broker.event("run", json!({"runId": name(n), "cancel": true})).await;
        let (id, params) = broker.expect("run.end").await;
        assert_eq!((&params["runId"], &params["status"]), (&json!(name(n)), &json!("cancelled")));
        broker.reply(id, json!({})).await;
    }
    serving.abort();
    let (_, params) = broker.expect("run.end").await;
    assert_eq!((&params["runId"], &params["error"]["code"]), (&json!(name(12)), &json!("unavailable")));
}

#[tokio::test]
async fn a_run_that_is_over_stops_its_handler() {
    let (mut broker, session) = connect(|options| options.serve_runs()).await;
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let handler = move |run: Run| {
        let tell = tell.clone();
        async move {
            run.chunk(1).await?;
            run.cancelled().await;
            let _ = tell.send(run.chunk(2).await);
            Ok(Value::Null)
        }
    };
    let _serving = tokio::spawn(session.serve_runs(handler).into_future());
    run(&mut broker, &name(1), 1, "1").await;
    let (id, _) = broker.expect("run.chunk").await;
    let error = json!({"code": "conflict", "message": "it has ended", "retryable": false});
    broker.say(json!({"type": "res", "id": id, "ok": false, "error": error})).await;
    let over = ChunkError::Over(WireError::new(ErrorCode::Conflict, "it has ended"));
    assert_eq!(told.recv().await, Some(Err(over)));
    run(&mut broker, &name(2), 2, "1").await;
    let (_, params) = broker.expect("run.chunk").await;
    assert_eq!(params["runId"], name(2), "of the first nothing more is said");
}

#[tokio::test]
async fn a_handler_waits_for_a_broker_that_is_behind() {
    let (mut broker, session) = connect(|options| options.serve_runs()).await;
    let handler = |run: Run| async move {
        for n in 0..100 {
            run.chunk(n).await?;
        }
        let huge = run.chunk("x".repeat(2 * 1024 * 1024)).await;
        Ok(matches!(huge, Err(ChunkError::Refused(_))).into())
    };
    let _serving = tokio::spawn(session.serve_runs(handler).into_future());
    run(&mut broker, &name(1), 1, "1").await;
    let mut unanswered = std::collections::VecDeque::new();
    for seq in 1..=64 {
        let (id, params) = broker.expect("run.chunk").await;
        assert_eq!(params["seq"], seq);
        unanswered.push_back(id);
    }
    // Nothing but the answer to this can come before room is made.
    let ping = tokio::spawn({
        let session = session.clone();
        async move { session.ping().await }
    });
    let (id, _) = broker.expect("ping").await;
    broker.reply(id, json!({"ts": 1})).await;
    ping.await.unwrap().unwrap();
    for seq in 65..=100 {
        broker.reply(unanswered.pop_front().unwrap(), json!({})).await;
        let (id, params) = broker.expect("run.chunk").await;
        assert_eq!(params["seq"], seq);
        unanswered.push_back(id);
    }
    while let Some(id) = unanswered.pop_front() {
        broker.reply(id, json!({})).await;
    }
    let (_, params) = broker.expect("run.end").await;
    assert_eq!((&params["seq"], &params["result"]), (&json!(101), &json!(true)));
}

#[tokio::test]
async fn runs_are_answered_by_one_server_that_was_asked_for() {
    let (_broker, session) = connect(|options| options).await;
    assert_eq!(session.serve_runs(shout).await, ServeEnd::NotAsked);
    let (mut broker, session) = connect(|options| options.serve_runs()).await;
    let hesitate = |run: Run| async move {
        run.chunk("well").await?;
        std::future::pending().await
    };
    let first = tokio::spawn(session.serve_runs(hesitate).into_future());
    run(&mut broker, &name(1), 1, "\"a\"").await;
    broker.expect("run.chunk").await;
    assert_eq!(session.serve_runs(shout).await, ServeEnd::Taken);
    first.abort();
    let (_, params) = broker.expect("run.end").await;
    assert_eq!(params["status"], "error", "the one that it was at");
    run(&mut broker, &name(2), 2, "\"b\"").await;
    let _second = tokio::spawn(session.serve_runs(shout).into_future());
    assert_eq!(broker.expect("run.chunk").await.1["runId"], name(2), "the next server has the rest");
}
