//! The table of what a daemon takes, every cell through real HTTP, twice.

use serde_json::json;

use super::{house, send};

#[tokio::test]
async fn every_cell_twice() {
    let house = house().await;
    let states = ["pending", "inflight", "done", "dead", "aborted"];
    for id in states {
        assert_eq!(house.client.post("/v1/send", &send(id, "x")).await.0, 202);
    }
    let connection = rusqlite::Connection::open(house.dir.path().join("outbox.db")).unwrap();
    for state in states {
        let broker_id = (state == "done").then_some("01ARZ3NDEKTSV4RRFFQ69G5FAV");
        let sql = "UPDATE outbox SET status = ?1, broker_message_id = ?2, log_seq = 7, last_error = 'too_large: no' \
                   WHERE client_message_id = ?1";
        assert_eq!(connection.execute(sql, (state, broker_id)).unwrap(), 1);
    }
    for _ in 0..2 {
        for id in states {
            let (status, same) = house.client.post("/v1/send", &send(id, "x")).await;
            let expected = match id {
                "pending" => (202, json!("queued"), json!(null)),
                "inflight" => (202, json!("inflight"), json!(null)),
                "done" => (200, json!("done"), json!(null)),
                other => (409, json!(409), json!(format!("outbox_{other}_fingerprint_match"))),
            };
            assert_eq!((status, same["status"].clone(), same["conflict"].clone()), expected, "{same}");
            match id {
                "done" => {
                    assert_eq!((&same["duplicate"], &same["logSeq"]), (&json!(true), &json!(7)));
                    assert_eq!(same["brokerMessageId"], "01ARZ3NDEKTSV4RRFFQ69G5FAV");
                }
                "dead" => assert_eq!(same["reason"], "too_large: no"),
                _ => {}
            }
            let (status, other) = house.client.post("/v1/send", &send(id, "y")).await;
            assert_eq!((status, &other["code"]), (409, &json!("idempotency_key_reused")));
            assert_eq!(other["conflict"], format!("outbox_{id}_fingerprint_mismatch"));
            assert_eq!(other["daemonFingerprintPrefix"].as_str().unwrap().len(), 16);
            assert_ne!(other["daemonFingerprintPrefix"], other["requestFingerprintPrefix"]);
            assert_eq!(other["brokerMessageId"].is_string(), id == "done");
        }
    }
    assert_eq!(house.client.post("/v1/send", &send("new", "x")).await.0, 202);
}
