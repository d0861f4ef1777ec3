//! Topics and groups: how many there may be, what idle ones cost, and that they can be deleted.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tenure_broker::{Broker, Config};

use crate::common::http::{Answer, raw};
use crate::common::keys::{hex, key};
use crate::common::{LONG, Sock, Who, broker, join};

const TOKEN: &str = "a-token-of-the-operator";

async fn as_operator(addr: SocketAddr, line: &str, body: &str) -> Answer {
    let (method, path) = line.split_once(' ').expect("METHOD path");
    let head = format!(
        "{method} /v1/admin{path} HTTP/1.1\r\nHost: {addr}\r\nAuthorization: Bearer {TOKEN}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    raw(addr, &format!("{head}{body}")).await
}

/// One member makes groups and leaves them until it is refused, then a little longer: how many it has made.
async fn crowd(sock: &mut Sock, topic: &str, tries: usize) -> usize {
    let mut made = 0;
    for n in 0..tries {
        let id = sock.request("subscribe", json!({"topic": topic, "group": format!("g{n:05}")})).await;
        let answer = sock.response(&id).await;
        match answer["error"]["code"].as_str() {
            None => {
                made += 1;
                sock.call("unsubscribe", json!({"subId": answer["result"]["subId"]})).await;
            }
            Some("busy") => {
                assert!(answer["error"]["message"].as_str().unwrap().contains("1000 groups"), "{answer}")
            }
            Some(other) => panic!("{other}: {answer}"),
        }
    }
    made
}

#[tokio::test]
async fn one_member_cannot_crowd_a_topic_and_pages_lead_through_its_groups() {
    let broker = broker(LONG).await;
    let (mut attacker, _) = join(broker.addr(), "attacker").await;
    let (mut other, _) = join(broker.addr(), "other").await;
    assert_eq!(crowd(&mut attacker, "crowded", 2_000).await, 1_000);
    // It may do the same elsewhere, and others go on.
    attacker.call("subscribe", json!({"topic": "elsewhere", "group": "g"})).await;
    other.call("subscribe", json!({"topic": "crowded"})).await;
    other.post("topic:crowded", "m1", "hello").await;
    other.reads("hello").await;
    let list = other.call("topics.list", json!({"limit": 1})).await;
    let topic = &list["topics"][0];
    assert_eq!((&topic["groupCount"], &topic["groups"][0]["depth"]), (&json!(1_000), &json!(1)));
    let mut groups = topic["groups"].as_array().unwrap().len();
    let mut after = topic["groupsNext"].clone();
    assert_eq!(groups, 256);
    while after.is_string() {
        let page = other.call("groups.list", json!({"topic": "crowded", "after": after})).await;
        groups += page["groups"].as_array().unwrap().len();
        after = page["next"].clone();
    }
    assert_eq!(groups, 1_000);
    other.refuses("groups.list", json!({"topic": "none"}), "not_found", "topics.list").await;
    attacker.call("groups.delete", json!({"topic": "crowded", "group": "g00000"})).await;
    other
        .refuses("groups.delete", json!({"topic": "crowded", "group": "g00001"}), "forbidden", "another")
        .await;
    attacker.call("subscribe", json!({"topic": "crowded", "group": "one-more"})).await;
}

#[tokio::test]
async fn an_operator_deletes_a_topic_and_its_readers_are_told() {
    let config = Config { admin_token: Some(TOKEN.to_owned()), ..Config::ephemeral(LONG) };
    let broker = Broker::start(config).await.expect("start");
    let addr = broker.addr();
    let (mut a, _) = join(addr, "a").await;
    let (mut reader, _) = join(addr, "reader").await;
    let sub = reader.call("subscribe", json!({"topic": "jobs", "group": "crew"})).await;
    a.post_many("topic:jobs", "m", 3).await;
    a.refuses("topics.delete", json!({"name": "jobs"}), "forbidden", "operator").await;
    let gone = as_operator(addr, "DELETE /meshes/default/topics/jobs", "").await;
    assert_eq!(gone.status, 204, "{}", gone.body);
    let told = reader.until("subscription").await;
    assert_eq!((&told["kind"], &told["reason"]), (&json!("closed"), &json!("deleted")), "{told}");
    assert_eq!(told["subId"], sub["subId"]);
    assert_eq!(a.call("topics.list", json!({})).await["topics"], json!([]));
    assert_eq!(a.post("topic:jobs", "again", "x").await["seq"], 4, "its numbers go on");
    let missing = as_operator(addr, "DELETE /meshes/default/topics/none", "").await;
    assert_eq!(missing.status, 404, "{}", missing.body);
    let expected = [(json!("topic.delete"), json!("not_found")), (json!("topic.delete"), json!("ok"))];
    let audit = as_operator(addr, "GET /meshes/default/audit", "").await;
    let rows: Value = serde_json::from_str(&audit.body).expect("JSON");
    let all = rows["rows"].as_array().unwrap();
    let acts: Vec<_> = all.iter().map(|r| (r["act"].clone(), r["outcome"].clone())).collect();
    assert_eq!(acts, expected, "{rows}");
}

#[tokio::test]
async fn a_member_with_the_right_deletes_what_is_not_its_own_and_that_is_on_record() {
    let config = Config { admin_token: Some(TOKEN.to_owned()), ..Config::ephemeral(LONG) };
    let broker = Broker::start(config).await.expect("start");
    let addr = broker.addr();
    let (owner, member) = (key(), key());
    let made = json!({"name": "team", "owner": hex(&owner)}).to_string();
    assert_eq!(as_operator(addr, "POST /meshes", &made).await.status, 201);
    let put = as_operator(addr, &format!("PUT /meshes/team/members/{}", hex(&member)), "{}").await;
    assert!(put.status < 300, "{}", put.body);
    let mut socks = Vec::new();
    for (of, name) in [(&owner, "owner"), (&member, "member")] {
        let who = Who { mesh: "team".to_owned(), ..Who::of(of, name) };
        let mut sock = Sock::open(addr).await;
        sock.join(&who).await;
        socks.push(sock);
    }
    let (mut boss, mut worker) = (socks.remove(0), socks.remove(0));
    worker.post("topic:jobs", "m1", "x").await;
    boss.post("topic:plans", "m2", "x").await;
    worker.refuses("topics.delete", json!({"name": "plans"}), "forbidden", "another member").await;
    worker.refuses("topics.delete", json!({"name": "jobs"}), "conflict", "holds messages").await;
    boss.call("topics.delete", json!({"name": "jobs"})).await;
    let audit = as_operator(addr, "GET /meshes/team/audit", "").await;
    let rows: Value = serde_json::from_str(&audit.body).expect("JSON");
    let row = &rows["rows"][0];
    assert_eq!((&row["act"], &row["subject"]), (&json!("topic.delete"), &json!("topic:jobs")), "{rows}");
    assert_eq!(row["who"], json!(format!("member:{}", hex(&owner))));
}
