//! Calls and their answers by way of the command, with real processes: one run whatever is stopped, killed or cut off.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use common::stage::{Stage, gone, piece, pieces, text};
use common::{World, join, lease, patience};
use serde_json::{Value, json};
use tenure_cli::flaky::{Fault, Flaky};
use tenure_client::{Answer, CallError, Events, Options, Run, RunError, Session, random_key};

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_called_and_answers_line_by_line() {
    let stage = Stage::new().await;
    let mut serve = stage.serve("shouter", "tr a-z A-Z").await;
    let (code, stdout, stderr) = text(&stage.run(&["call", "shouter", "be quick\nor not"]));
    assert_eq!((code, stdout.as_str()), (Some(0), "BE QUICK\nOR NOT\n"), "{stderr}");
    let ended = serve.until("the run", |line| line["event"] == "run").await;
    assert_eq!((&ended["status"], &ended["error"]), (&json!("ok"), &Value::Null));
    let run = ended["runId"].as_str().unwrap();
    let (code, stdout, stderr) = text(&stage.run(&["runs", "get", run]));
    assert_eq!((code, stdout.as_str()), (Some(0), "ok  2 pieces  \"BE QUICK\\nOR NOT\"\n"), "{stderr}");
    let (code, _, stderr) = text(&stage.run(&["call", "nobody", "x"]));
    assert!(code == Some(2) && stderr.contains("shouter"), "{stderr}");
    let (code, _, stderr) = text(&stage.run(&["call", "topic:jobs", "x"]));
    assert_eq!(code, Some(2), "{stderr}");
    let stranger = format!("session:{}", "02".repeat(32));
    let (code, _, stderr) = text(&stage.run(&["call", &stranger, "x"]));
    assert!(code == Some(4) && stderr.contains("no_such_session"), "{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_finds_the_run_in_its_input_and_environment() {
    let stage = Stage::new().await;
    let script = "cat; echo; echo $TENURE_RUN_ID; echo $TENURE_FROM; head -c 100000 /dev/zero | tr '\\0' x";
    let _serve = stage.serve("worker", script).await;
    let mut call = stage.spawn("call", &["call", "worker", r#"{"b": 1, "a": [true]}"#, "--json"]);
    assert_eq!(call.exit_code().await, Some(0), "{}", call.stderr());
    let started = call.events("started").remove(0);
    let pieces = pieces(&mut call);
    assert_eq!(pieces[0], r#"{"a":[true],"b":1}"#, "as JSON, in one order");
    assert_eq!(pieces[1], started["runId"]);
    assert!(pieces[2].as_str().unwrap().starts_with("session:"), "{pieces:?}");
    let long: Vec<usize> = pieces[3..].iter().map(|piece| piece.as_str().unwrap().len()).collect();
    assert_eq!(long, [65_536, 34_464], "a long line is several");
    let end = call.events("end").remove(0);
    let whole = pieces.iter().map(|piece| piece.as_str().unwrap()).collect::<Vec<_>>().join("\n");
    assert_eq!((&end["status"], &end["result"]), (&json!("ok"), &json!(whole)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_killed_in_the_middle_disturbs_nobody() {
    let mut stage = Stage::new().await;
    let go = stage.path("go");
    let script = format!(
        "echo one; echo two; while ! test -e {}; do sleep 0.05; done; echo three; echo four",
        go.display()
    );
    let _serve = stage.serve("worker", &script).await;
    let mut first = stage.spawn("first", &["call", "worker", "1", "--json"]);
    let mut second = stage.spawn("second", &["call", "worker", "2", "--json"]);
    for call in [&mut first, &mut second] {
        piece(call, "two").await;
    }
    stage.restart().await;
    std::fs::write(&go, "").unwrap();
    for call in [&mut first, &mut second] {
        assert_eq!(call.exit_code().await, Some(0), "{}", call.stderr());
        assert_eq!(pieces(call), ["one", "two", "three", "four"], "each once");
        let gaps: Vec<Value> = call.events("chunk").into_iter().filter(|line| line["gap"] == true).collect();
        assert!(gaps.is_empty(), "{gaps:?}");
        assert_eq!(call.events("end").len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_command_is_a_failed_run_with_its_last_words() {
    let stage = Stage::new().await;
    let _serve = stage.serve("worker", "echo so far; echo no such thing >&2; exit 3").await;
    let (code, stdout, stderr) = text(&stage.run(&["call", "worker", "x"]));
    assert_eq!((code, stdout.as_str()), (Some(7), "so far\n"), "{stderr}");
    assert!(stderr.contains("the command ended with code 3: no such thing"), "{stderr}");
    let mut call = stage.spawn("call", &["call", "worker", "x", "--json"]);
    assert_eq!(call.exit_code().await, Some(7));
    let end = call.events("end").remove(0);
    assert_eq!(end["error"]["details"], json!({"exitCode": 3, "stderr": "no such thing\n"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_cancels_the_run_and_ends_its_command() {
    let stage = Stage::new().await;
    let pid = stage.path("pid");
    // It lets go of everything but its life.
    let script = format!("sleep 1000 & echo $! > {}; echo at work; wait", pid.display());
    let mut serve = stage.serve("worker", &script).await;
    let mut call = stage.spawn("call", &["call", "worker", "x", "--json"]);
    piece(&mut call, "at work").await;
    call.signal("INT");
    assert_eq!(call.exit_code().await, Some(7), "{}", call.stderr());
    assert!(call.stderr().contains("cancelling the run"), "{}", call.stderr());
    assert_eq!(call.events("end")[0]["status"], "cancelled");
    gone(&stage.line_of("pid").await).await;
    let ended = serve.until("the run", |line| line["event"] == "run").await;
    assert_eq!(ended["status"], "cancelled");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_time_is_over_fails_and_its_command_ends() {
    let stage = Stage::new().await;
    let pid = stage.path("pid");
    let script = format!("trap '' TERM; echo $$ > {}; sleep 1000; sleep 1000", pid.display());
    let _serve = stage.serve("worker", &script).await;
    let (code, _, stderr) = text(&stage.run(&["call", "worker", "x", "--timeout", "500ms"]));
    assert!(code == Some(7) && stderr.contains("expired"), "{code:?} {stderr}");
    gone(&stage.line_of("pid").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_key_is_one_run_and_its_answer_waits() {
    let stage = Stage::new().await;
    let log = stage.path("log");
    let script = format!("echo begun >> {}; echo here; echo there", log.display());
    let _serve = stage.serve("worker", &script).await;
    let args = ["call", "worker", "x", "--key", "release-417"];
    for _ in 0..2 {
        let (code, stdout, stderr) = text(&stage.run(&args));
        assert_eq!((code, stdout.as_str()), (Some(0), "here\nthere\n"), "{stderr}");
    }
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "begun\n");
    let (code, _, stderr) = text(&stage.run(&["call", "worker", "other", "--key", "release-417"]));
    assert!(code == Some(4) && stderr.contains("idempotency_key_reused"), "{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_answers_and_dies_fails_the_run_when_its_lease_is_over() {
    let stage = Stage::new().await;
    let serve = stage.serve("worker", "echo at work; sleep 1000").await;
    let mut call = stage.spawn("call", &["call", "worker", "x", "--json"]);
    piece(&mut call, "at work").await;
    let killed = Instant::now();
    serve.signal("KILL");
    assert_eq!(call.exit_code().await, Some(7), "{}", call.stderr());
    assert_eq!(call.events("end")[0]["error"]["code"], "lease_expired");
    assert!(killed.elapsed() >= lease() / 2, "it was waited for");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_stops_answering_says_so() {
    let stage = Stage::new().await;
    let pid = stage.path("pid");
    let script = format!("echo $$ > {}; echo at work; sleep 1000; sleep 1000", pid.display());
    let mut serve = stage.serve("worker", &script).await;
    let mut call = stage.spawn("call", &["call", "worker", "x", "--json"]);
    piece(&mut call, "at work").await;
    serve.signal("TERM");
    assert_eq!(call.exit_code().await, Some(7), "{}", call.stderr());
    assert_eq!(call.events("end")[0]["error"]["code"], "unavailable");
    assert_eq!(serve.exit_code().await, Some(0), "{}", serve.stderr());
    gone(&stage.line_of("pid").await).await;
}

/// A session that answers runs, by way of `addr`.
async fn callee(addr: SocketAddr) -> (Session, Events) {
    let options = Options::new(&format!("ws://{addr}"), random_key().unwrap(), "callee").unwrap();
    let connected = tokio::time::timeout(patience(), Session::connect(options.serve_runs())).await;
    connected.expect("in time").expect("joined")
}

/// Answers with the numbers up to the one that is asked for.
async fn count(run: Run) -> Result<Value, RunError> {
    let last = run.input.as_u64().ok_or_else(|| RunError::failed("how far?"))?;
    for n in 1..=last {
        run.chunk(n).await?;
        if n % 50 == 0 {
            // Let breaks fall between pieces, too.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    Ok(last.into())
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_connections_on_both_sides_lose_and_double_nothing() {
    let world = World::new();
    let broker = world.broker().await;
    let (ours, theirs) = (Flaky::start(broker.addr).unwrap(), Flaky::start(broker.addr).unwrap());
    let (callee, events) = callee(theirs.addr()).await;
    drop(events);
    let serving = tokio::spawn(callee.serve_runs(count).into_future());
    let (caller, events) = join(ours.addr(), "caller").await;
    drop(events);
    let mut answers = Vec::new();
    for n in 0..4 {
        answers.push(caller.call(callee.key(), 2_000 + n).await.unwrap());
    }
    for (n, answer) in (0u64..).zip(&mut answers) {
        let mut next = 1;
        let result = loop {
            match tokio::time::timeout(patience(), answer.next()).await.expect("it goes on").unwrap() {
                Answer::Chunk { data, gap } => {
                    assert_eq!((data, gap), (json!(next), false));
                    next += 1;
                    if next % 500 == 0 {
                        (if next % 1_000 == 0 { &ours } else { &theirs }).break_all(Fault::Drop);
                    }
                }
                Answer::End { result, gap } => {
                    assert!(!gap);
                    break result;
                }
            }
        };
        assert_eq!((result, next), (json!(2_000 + n), 2_001 + n));
    }
    serving.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_lags_behind_a_quick_callee_is_told_what_it_missed() {
    let world = World::new();
    let broker = world.broker().await;
    let (callee, events) = callee(broker.addr).await;
    drop(events);
    let flood = |run: Run| async move {
        for n in 0..400 {
            run.chunk(json!([n, "x".repeat(20_000)])).await?;
        }
        Ok(Value::Null)
    };
    let serving = tokio::spawn(callee.serve_runs(flood).into_future());
    let (caller, events) = join(broker.addr, "caller").await;
    drop(events);
    let mut answer = caller.call(callee.key(), Value::Null).await.unwrap();
    // Nobody reads until it has ended.
    let start = Instant::now();
    let running = |state| {
        matches!(
            state,
            tenure_client::proto::run::RunState::Queued | tenure_client::proto::run::RunState::Running
        )
    };
    while running(caller.run_get(answer.run_id()).await.unwrap().state) {
        assert!(start.elapsed() < patience(), "a caller that does not read holds up its callee");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let (mut last, mut missed) = (-1, false);
    loop {
        match tokio::time::timeout(patience(), answer.next()).await.expect("it goes on") {
            Ok(Answer::Chunk { data, gap }) => {
                let n = data[0].as_i64().unwrap();
                assert_eq!(gap, n > last + 1, "{n} after {last}");
                assert!(n > last);
                (last, missed) = (n, missed || gap);
            }
            Ok(Answer::End { gap, .. }) => {
                assert_eq!(gap, last < 399);
                assert!(missed || gap, "eight megabytes were kept for nobody");
                break;
            }
            Err(error) => panic!("{error}"),
        }
    }
    serving.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_is_gone_finds_its_answer_later() {
    let world = World::new();
    let broker = world.broker().await;
    let (callee, events) = callee(broker.addr).await;
    drop(events);
    let serving = tokio::spawn(callee.serve_runs(count).into_future());
    let member = random_key().unwrap();
    let url = format!("ws://{}", broker.addr);
    let session = || Options::new(&url, member.clone(), "caller").unwrap().session_key(random_key().unwrap());
    let (first, events) = Session::connect(session()).await.unwrap();
    drop(events);
    let run = first.call(callee.key(), 3).key("k").await.unwrap().run_id();
    first.bye().await;
    let (second, events) = Session::connect(session()).await.unwrap();
    drop(events);
    let again = second.call(callee.key(), 3).key("k").await.unwrap();
    assert_eq!(again.run_id(), run);
    assert_eq!(tokio::time::timeout(patience(), again.result()).await.unwrap(), Ok(json!(3)));
    let stranger = join(broker.addr, "stranger").await.0;
    assert!(stranger.run_get(run).await.is_err(), "it is nobody else's");
    let other = stranger.call(callee.key(), 3).key("k").await.unwrap();
    assert_ne!(other.run_id(), run, "a key is its member's own");
    assert!(matches!(other.result().await, Ok(result) if result == 3));
    let refused: Result<_, CallError> = stranger.call(callee.key(), 4).key("k").await;
    assert!(matches!(refused, Err(CallError::Refused(_))));
    serving.abort();
}
