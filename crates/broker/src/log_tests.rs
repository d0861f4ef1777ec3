//! The lines that notes become, as an operator's programs read them.

use std::io;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tenure_mesh::effect::Reconciled;
use tenure_proto::ids::{ConnId, SessionKey};

use super::*;

/// What was written so far.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The line of a note, without its time and level, and the counters after it.
fn said(note: &Note) -> (Value, String) {
    let (written, metrics) = (Written::default(), Metrics::default());
    let sink = written.clone();
    let subscriber = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .without_time()
        .with_level(false)
        .with_target(false)
        .with_writer(move || sink.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, || Log::new().note(note, &metrics));
    let bytes = written.0.lock().unwrap().clone();
    let lines: Vec<Value> =
        String::from_utf8(bytes).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 1, "one note is one line: {lines:?}");
    (lines[0].clone(), metrics.encode().unwrap())
}

const SESSION: SessionKey = SessionKey([7; 32]);
const CONN: ConnId = ConnId(3);

fn line(event: &str, fields: Value) -> Value {
    let mut line = json!({"event": event, "session": SESSION.to_string()});
    line.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    line
}

#[test]
fn lines_name_the_socket_the_client_and_how_much_it_is_about() {
    let client = || "tenure-rust/1.2.3".to_owned();
    let (session, conn) = (SESSION, CONN);
    let who = json!({"conn": "c3", "client": "tenure-rust/1.2.3"});
    let with = |event: &str, fields: Value| {
        let mut line = line(event, who.clone());
        line.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        line
    };
    let counts = json!({"subscriptions": 2, "in_hand": 5});
    let expired = json!({"reason": "expired"});
    let mut closed = counts.clone();
    closed["reason"] = json!("stale");
    let rows = [
        (
            Note::GraceEntered {
                session,
                conn,
                client: client(),
                reason: "stale",
                subscriptions: 2,
                in_hand: 5,
            },
            with("grace_entered", closed),
        ),
        (
            Note::GraceExpired { session, conn: Some(conn), client: client(), subscriptions: 2, in_hand: 5 },
            with("grace_expired", counts),
        ),
        (
            Note::LeaseEvicted { session, conn: Some(conn), client: client(), reason: "expired" },
            with("lease_evicted", expired),
        ),
        (
            Note::HelloRefused { session, conn, client: client(), code: "busy" },
            with("hello_refused", json!({"code": "busy"})),
        ),
        (Note::AttachedByKey { session, conn, client: client() }, with("attached_by_key", json!({}))),
        (
            Note::ResumeAccepted { session, conn, client: client(), complete: true },
            with("resume_accepted", json!({"complete": true})),
        ),
        (
            Note::Requeued { session, conn: Some(conn), count: 4 },
            line("requeued", json!({"conn": "c3", "count": 4})),
        ),
        (
            Note::LateSettleAccepted { session, conn, count: 2 },
            line("late_settle_accepted", json!({"conn": "c3", "count": 2})),
        ),
        (
            Note::LateSettleRejected { session, conn, reason: "requeued", count: 3 },
            line("late_settle_rejected", json!({"conn": "c3", "reason": "requeued", "count": 3})),
        ),
        (
            Note::StartupReclaimed { session, conn, count: 6 },
            line("startup_reclaimed", json!({"conn": "c3", "count": 6})),
        ),
        (Note::StartupReleased { session, count: 6 }, line("startup_released", json!({"count": 6}))),
    ];
    for (note, expected) in rows {
        let (found, counters) = said(&note);
        assert_eq!(found, expected);
        let name = expected["event"].as_str().unwrap();
        assert!(counters.contains(&format!("tenure_events_total{{kind=\"{name}\"}} 1")), "{counters}");
    }
}

#[test]
fn a_token_that_is_not_found_is_counted_apart_from_one_that_is_rejected() {
    for (known, kind) in [(false, "not_found"), (true, "rejected")] {
        let (reason, client) = (if known { "bad_signature" } else { "lease_ended" }, "c/1".to_owned());
        let (line, counters) =
            said(&Note::ResumeRejected { session: SESSION, conn: CONN, client, reason, known });
        assert_eq!((&line["event"], &line["reason"]), (&json!("resume_rejected"), &json!(reason)));
        assert_eq!(line["outcome"], format!("resume_{kind}"));
        assert!(counters.contains(&format!("tenure_attaches_total{{kind=\"{kind}\"}} 1")), "{counters}");
        assert!(counters.contains(&format!("tenure_events_total{{kind=\"resume_{kind}\"}} 1")), "{counters}");
    }
}

#[test]
fn a_reconciliation_is_counted_by_action() {
    let done = Reconciled {
        session: SESSION,
        conn: CONN,
        policy: "conservative",
        keep: 1,
        close_client_side: 2,
        close_server_side: 3,
        recreate_client_side: 4,
        inflight_kept: 5,
        inflight_settled: 6,
        inflight_requeued: 7,
    };
    let (line, counters) = said(&Note::ReconcileDone(done));
    let counts = json!({
        "conn": "c3", "policy": "conservative", "keep": 1, "close_client_side": 2, "close_server_side": 3,
        "recreate_client_side": 4, "inflight_kept": 5, "inflight_settled": 6, "inflight_requeued": 7,
    });
    assert_eq!(line, self::line("reconcile_done", counts));
    for (action, count) in
        [("keep", 1), ("close_client_side", 2), ("close_server_side", 3), ("recreate_client_side", 4)]
    {
        let counter = format!("tenure_reconciled_total{{kind=\"{action}\"}} {count}");
        assert!(counters.contains(&counter), "{counters}");
    }
}
