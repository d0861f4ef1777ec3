//! Runs over real sockets: an answer streams back through breaks of the caller, of the callee and of the broker.

use serde_json::{Value, json};

use super::durable::{back, enter, start, stop};
use crate::common::mail::{in_grace, inbox_of, to_member, to_session};
use crate::common::{LONG, Sock, Who, broker, join};

fn ring(to: &str, key: &str) -> Value {
    json!({"to": to, "input": {"say": key}, "idempotencyKey": key})
}

impl Sock {
    /// Starts a run, or comes back to it; its id.
    async fn starts(&mut self, params: Value, state: &str) -> Value {
        let result = self.call("run.start", params).await;
        assert_eq!(result["state"], state, "{result}");
        result["runId"].clone()
    }

    async fn says(&mut self, run: &Value, seq: u64, data: Value) {
        self.call("run.chunk", json!({"runId": run, "seq": seq, "data": data})).await;
    }

    async fn ends(&mut self, run: &Value, seq: u64, result: Value) {
        let params = json!({"runId": run, "seq": seq, "status": "ok", "result": result});
        self.call("run.end", params).await;
    }

    /// The next thing of a run, which must be this.
    async fn hears(&mut self, run: &Value, what: Value) {
        let mut event = self.until("run").await;
        let of = event.as_object_mut().and_then(|event| event.remove("runId"));
        assert_eq!((of.as_ref(), &event), (Some(run), &what));
    }
}

#[tokio::test]
async fn an_answer_streams_back() {
    let broker = broker(LONG).await;
    let (mut a, _) = join(broker.addr(), "caller").await;
    let (mut b, b_who) = join(broker.addr(), "callee").await;
    assert_eq!(a.result["features"]["runs"], json!({"version": 1, "list": true}));
    let run = a.starts(ring(&to_session(&b_who), "k1"), "queued").await;
    let delivery = b.delivery().await;
    let message = &delivery["message"];
    assert_eq!((&message["kind"], &message["meta"]), (&json!("run"), &json!({"runId": run})));
    assert_eq!((&message["body"], &message["priority"]), (&json!(r#"{"say":"k1"}"#), &json!("now")));
    for (seq, data) in [(1, json!("one")), (2, json!(null)), (3, json!({"three": [3.0]}))] {
        b.says(&run, seq, data.clone()).await;
        a.hears(&run, json!({"seq": seq, "data": data})).await;
    }
    b.refuses("run.chunk", json!({"runId": run, "seq": 5, "data": 0}), "seq_gap", "missing").await;
    let end = a.until("run").await;
    assert_eq!((&end["seq"], &end["end"]["error"]["code"]), (&json!(4), &json!("seq_gap")), "{end}");

    let run = a.starts(ring(&to_session(&b_who), "k2"), "queued").await;
    b.delivery().await;
    let large = json!("x".repeat(1024 * 1024 - 2));
    b.says(&run, 1, large.clone()).await;
    a.hears(&run, json!({"seq": 1, "data": large})).await;
    b.ends(&run, 2, large.clone()).await;
    a.hears(&run, json!({"seq": 2, "end": {"status": "ok", "result": large}})).await;
    assert_eq!(a.call("run.get", json!({"runId": run})).await["result"], large);
    let larger = json!({"runId": run, "seq": 3, "data": "x".repeat(1024 * 1024)});
    b.refuses("run.chunk", larger, "too_large", "at most").await;
    b.quiet().await;
    let (mut c, _) = join(broker.addr(), "stranger").await;
    c.refuses("run.get", json!({"runId": run}), "not_found", "no run of yours").await;
    c.refuses("run.cancel", json!({"runId": run}), "not_owner", "started").await;
    c.refuses("run.chunk", json!({"runId": run, "seq": 1, "data": 1}), "not_owner", "another session").await;
    let sent = json!({"to": to_session(&b_who), "clientMessageId": "run:k3", "body": "x"});
    a.refuses("send", sent, "bad_request", "run:").await;
}

#[tokio::test]
async fn breaks_of_both_ends_cost_nothing() {
    let broker = broker(LONG).await;
    let (a_who, b_who) = (Who::new("caller"), Who::new("callee"));
    let (mut a, mut b) = (enter(&broker, &a_who).await, enter(&broker, &b_who).await);
    let (mut watcher, _) = join(broker.addr(), "watcher").await;
    let run = a.starts(ring(&to_session(&b_who), "k"), "queued").await;
    b.delivery().await;
    b.says(&run, 1, json!(1)).await;
    a.hears(&run, json!({"seq": 1, "data": 1})).await;
    let past = a.past();
    a.cut();
    in_grace(&mut watcher, &a_who).await;
    b.says(&run, 2, json!(2)).await;
    let mut a = back(&broker, &a_who, &past).await;
    a.hears(&run, json!({"seq": 2, "data": 2})).await;
    let past = b.past();
    b.cut();
    in_grace(&mut watcher, &b_who).await;
    assert_eq!(a.call("run.get", json!({"runId": run})).await["state"], "running");
    let listed = a.call("runs.list", json!({})).await;
    let [under_way] = listed["runs"].as_array().unwrap().as_slice() else { panic!("{listed}") };
    assert_eq!(
        (&under_way["runId"], &under_way["state"], &under_way["lastSeq"]),
        (&run, &json!("running"), &json!(2))
    );
    a.refuses("runs.list", json!({"limit": 0}), "bad_request", "limit").await;
    let fresh = enter(&broker, &a_who).await;
    assert_eq!(fresh.result["snapshot"]["runs"][0]["runId"], run, "a new process sees it at once");
    let mut a = fresh;
    assert_eq!(a.starts(ring(&to_session(&b_who), "k"), "running").await, run);
    for n in [1, 2] {
        a.hears(&run, json!({"seq": n, "data": n})).await;
    }
    let mut b = back(&broker, &b_who, &past).await;
    b.says(&run, 2, json!(2)).await;
    b.ends(&run, 3, json!("done")).await;
    a.hears(&run, json!({"seq": 3, "end": {"status": "ok", "result": "done"}})).await;
    // Somebody who has lost everything but the key gets all of it.
    let mut again = enter(&broker, &a_who).await;
    let mut params = ring(&to_session(&b_who), "k");
    params["fromSeq"] = json!(1);
    assert_eq!(again.starts(params, "ok").await, run);
    for n in [1, 2] {
        again.hears(&run, json!({"seq": n, "data": n})).await;
    }
    again.hears(&run, json!({"seq": 3, "end": {"status": "ok", "result": "done"}})).await;
}

#[tokio::test]
async fn a_broker_that_stops_costs_chunks_and_no_run() {
    let dir = tempfile::tempdir().unwrap();
    let (a_who, b_who) = (Who::new("caller"), Who::new("callee"));
    let first = start(dir.path()).await;
    let (mut a, mut b) = (enter(&first, &a_who).await, enter(&first, &b_who).await);
    let run = a.starts(ring(&to_session(&b_who), "k"), "queued").await;
    b.delivery().await;
    let done = a.starts(ring(&to_session(&b_who), "done"), "queued").await;
    b.delivery().await;
    b.ends(&done, 1, json!("kept")).await;
    b.says(&run, 1, json!(1)).await;
    a.hears(&done, json!({"seq": 1, "end": {"status": "ok", "result": "kept"}})).await;
    a.hears(&run, json!({"seq": 1, "data": 1})).await;
    let past = stop(first, vec![a, b]).await;

    let second = start(dir.path()).await;
    let (mut a, mut b) = (back(&second, &a_who, &past[0]).await, back(&second, &b_who, &past[1]).await);
    let mut params = ring(&to_session(&b_who), "k");
    params["fromSeq"] = json!(2);
    assert_eq!(a.starts(params, "running").await, run);
    b.says(&run, 3, json!(3)).await;
    a.hears(&run, json!({"seq": 3, "data": 3, "gap": true})).await;
    b.ends(&run, 4, json!("well")).await;
    a.hears(&run, json!({"seq": 4, "end": {"status": "ok", "result": "well"}})).await;
    assert_eq!(a.call("run.get", json!({"runId": done})).await["result"], "kept");
    a.refuses(
        "run.start",
        json!({"to": to_session(&b_who), "input": 1, "idempotencyKey": "done"}),
        "idempotency_key_reused",
        "another run",
    )
    .await;
}

#[tokio::test]
async fn cancelled_timed_out_and_orphaned_runs_end() {
    let broker = broker(LONG).await;
    let (mut a, _) = join(broker.addr(), "caller").await;
    let b_who = Who::new("callee");
    let mut b = enter(&broker, &b_who).await;
    let run = a.starts(ring(&to_session(&b_who), "k1"), "queued").await;
    b.delivery().await;
    a.call("run.cancel", json!({"runId": run})).await;
    b.hears(&run, json!({"cancel": true})).await;
    b.call("run.end", json!({"runId": run, "seq": 1, "status": "cancelled"})).await;
    a.hears(&run, json!({"seq": 1, "end": {"status": "cancelled"}})).await;

    let mut short = ring(&to_session(&b_who), "k2");
    short["timeoutMs"] = json!(50);
    let run = a.starts(short, "queued").await;
    b.delivery().await;
    let end = a.until("run").await;
    assert_eq!((&end["runId"], &end["end"]["error"]["code"]), (&run, &json!("expired")), "{end}");
    b.hears(&run, json!({"cancel": true})).await;
    let letters = b.call("dead.list", json!({"log": inbox_of(&b_who)})).await;
    assert_eq!(letters["letters"][0]["reason"], "expired");

    let run = a.starts(ring(&to_session(&b_who), "k3"), "queued").await;
    b.delivery().await;
    b.bye().await;
    let end = a.until("run").await;
    assert_eq!((&end["runId"], &end["end"]["error"]["code"]), (&run, &json!("lease_expired")), "{end}");

    let run = a.starts(ring(&to_session(&b_who), "k4"), "queued").await;
    a.call("run.cancel", json!({"runId": run})).await;
    a.hears(&run, json!({"seq": 1, "end": {"status": "cancelled"}})).await;
    let mut b = enter(&broker, &b_who).await;
    b.quiet().await;
    a.refuses("run.start", ring("topic:t", "k5"), "bad_request", "topic").await;
    let unknown = to_member(&Who::new("nobody"));
    a.refuses("run.start", ring(&unknown, "k6"), "no_such_session", "was ever").await;
}
