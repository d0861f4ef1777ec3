//! Messages over real sockets: accepted once, delivered, settled.

use serde_json::{Value, json};

use crate::common::{LONG, Sock, Who, broker, join};

fn to_session(who: &Who) -> String {
    format!("session:{}", who.id())
}

/// The next delivery; whatever else comes before it is passed over.
async fn delivery(sock: &mut Sock) -> Value {
    loop {
        let event = sock.event().await;
        if event["event"] == "message" {
            return event["data"].clone();
        }
    }
}

#[tokio::test]
async fn a_message_is_sent_delivered_and_acked() {
    let broker = broker(LONG).await;
    let (mut a, a_who) = join(broker.addr(), "a").await;
    let (mut b, b_who) = join(broker.addr(), "b").await;
    let sent =
        a.call("send", json!({"to": to_session(&b_who), "body": "hello", "clientMessageId": "m1"})).await;
    assert_eq!(
        (&sent["seq"], &sent["duplicate"], &sent["recipient"]),
        (&json!(1), &json!(false), &json!("online"))
    );
    let got = delivery(&mut b).await;
    assert_eq!(
        (&got["subId"], &got["attempt"], &got["redelivered"]),
        (&json!("inbox"), &json!(1), &json!(false))
    );
    assert_eq!(got["message"]["body"], "hello");
    assert_eq!(got["message"]["from"]["session"], a_who.id());
    let acked = b.call("ack", json!({"tags": [got["tag"]]})).await;
    assert_eq!(acked, json!({"settled": [got["tag"]], "stale": []}));
    loop {
        let event = a.event().await;
        if event["event"] == "receipt" {
            assert_eq!(event["data"]["state"], "delivered");
            break;
        }
    }
}
