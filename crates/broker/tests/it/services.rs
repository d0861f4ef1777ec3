//! Services over the wire: taken, renewed, stale, gone; who hears of it; and tickets to the relay.

use std::net::SocketAddr;
use std::path::Path;

use data_encoding::BASE64URL_NOPAD;
use serde_json::{Value, json};
use tenure_broker::{Broker, Config, StoreChoice};

use crate::common::{LONG, Sock, Who, broker, join, still_serves};

fn offer(name: &str) -> Value {
    json!({"name": name, "kind": "tcp"})
}

/// The verdicts on a renewal: a code each, or `ok`.
async fn renew(sock: &mut Sock, services: Value) -> Vec<String> {
    let result = sock.call("service.renew", json!({"services": services})).await;
    let verdict = |verdict: &Value| match verdict["ok"].as_bool() {
        Some(true) => {
            assert!(verdict.get("error").is_none());
            "ok".to_owned()
        }
        _ => {
            let message = verdict["error"]["message"].as_str().unwrap();
            assert!(message.len() > 10, "a sentence: {message}");
            verdict["error"]["code"].as_str().unwrap().to_owned()
        }
    };
    result["results"].as_array().unwrap().iter().map(verdict).collect()
}

async fn list(sock: &mut Sock, all: bool) -> Vec<(String, String)> {
    let result = sock.call("services.list", json!({"all": all})).await;
    let word = |service: &Value, field: &str| service[field].as_str().unwrap().to_owned();
    let services = result["services"].as_array().unwrap().iter();
    services.map(|service| (word(service, "name"), word(service, "state"))).collect()
}

/// Reads on to the next event about services.
async fn service_event(sock: &mut Sock) -> Value {
    loop {
        let event = sock.event().await;
        if event["event"] == "service" {
            return event["data"].clone();
        }
    }
}

async fn start(dir: &Path, lease_ttl_ms: u64, listen: Option<SocketAddr>) -> Broker {
    let mut config = Config::ephemeral(lease_ttl_ms);
    config.store = StoreChoice::Sqlite(dir.to_owned());
    config.listen = listen.unwrap_or(config.listen);
    Broker::start(config).await.expect("start")
}

#[tokio::test]
async fn a_name_has_one_holder_and_each_offer_its_verdict() {
    let broker = broker(LONG).await;
    let (mut watcher, _) = join(broker.addr(), "watcher").await;
    let (mut one, who) = join(broker.addr(), "one").await;
    let (mut two, _) = join(broker.addr(), "two").await;
    let metadata = json!({"description": "a database", "tags": ["pg"], "owner": "us"});
    let full = json!({"name": "db", "kind": "tcp", "ttlMs": 20_000, "metadata": metadata});
    assert_eq!(renew(&mut one, json!([full])).await, ["ok"]);
    let event = service_event(&mut watcher).await;
    assert_eq!((&event["kind"], &event["service"]["name"]), (&json!("online"), &json!("db")));
    assert_eq!(event["service"]["session"], who.id());
    assert_eq!(event["service"]["metadata"]["tags"], json!(["pg"]));
    assert_eq!((event["base"].as_u64(), event["version"].as_u64()), (Some(0), Some(1)));
    let offers = json!([
        offer("db"), offer("DB"), offer("d\u{0431}"), offer("dead"), offer(&"x".repeat(65)),
        {"name": "a", "kind": "tcp", "ttlMs": 0}, {"name": "b", "kind": "tcp", "ttlMs": 9_007_199_254_740_991u64},
        {"name": "c", "kind": "tcp", "metadata": {"description": "x".repeat(513)}},
        offer("web"), offer("web"),
    ]);
    let verdicts = [
        "name_taken",
        "name_rejected",
        "name_rejected",
        "name_rejected",
        "name_rejected",
        "ttl_out_of_bounds",
        "ttl_out_of_bounds",
        "bad_request",
        "ok",
        "bad_request",
    ];
    assert_eq!(renew(&mut two, offers).await, verdicts);
    assert_eq!(list(&mut watcher, false).await.len(), 2);
    assert_eq!(two.call("service.withdraw", json!({"names": ["db", "web", "NOT ONE"]})).await, json!({}));
    assert_eq!(service_event(&mut watcher).await["kind"], "online");
    let gone = service_event(&mut watcher).await;
    assert_eq!((&gone["kind"], &gone["service"]["name"]), (&json!("gone"), &json!("web")));
    assert_eq!(list(&mut watcher, true).await, [("db".to_owned(), "online".to_owned())]);
    still_serves(broker.addr()).await;
}

#[tokio::test]
async fn a_break_is_stale_to_who_asks_and_a_return_is_told_to_who_saw_it() {
    let broker = broker(LONG).await;
    let (mut watcher, _) = join(broker.addr(), "watcher").await;
    let (mut sock, who) = join(broker.addr(), "publisher").await;
    renew(&mut sock, json!([offer("db")])).await;
    assert_eq!(service_event(&mut watcher).await["kind"], "online");
    let past = sock.past();
    sock.cut();
    while list(&mut watcher, false).await != [("db".to_owned(), "stale".to_owned())] {}
    let mut sock = Sock::open(broker.addr()).await;
    sock.resume(&who, &past).await;
    assert_eq!(service_event(&mut watcher).await["kind"], "online");
    assert_eq!(list(&mut watcher, false).await, [("db".to_owned(), "online".to_owned())]);
    sock.bye().await;
    assert_eq!(service_event(&mut watcher).await["kind"], "gone");
    assert_eq!(renew(&mut watcher, json!([offer("db")])).await, ["ok"], "free at once");
}

#[tokio::test]
async fn a_publisher_that_dies_is_gone_with_its_lease_and_not_before() {
    let broker = broker(1_500).await;
    let (mut watcher, _) = join(broker.addr(), "watcher").await;
    let (mut sock, who) = join(broker.addr(), "publisher").await;
    renew(&mut sock, json!([offer("db")])).await;
    sock.cut();
    let mut kinds = Vec::new();
    loop {
        let event = watcher.event().await;
        match event["event"].as_str() {
            Some("service") => kinds.push(event["data"]["kind"].clone()),
            Some("presence") if event["data"]["kind"] == "left" => {
                assert_eq!(event["data"]["peer"]["session"], who.id());
            }
            _ => {}
        }
        if kinds.last() == Some(&json!("gone")) {
            break;
        }
    }
    assert_eq!(kinds, [json!("online"), json!("gone")], "the lease is shorter than the wait for `stale`");
}

#[tokio::test]
async fn a_restart_keeps_names_for_their_holders() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start(dir.path(), LONG, None).await;
    let addr = broker.addr();
    let (mut sock, who) = join(addr, "publisher").await;
    assert_eq!(renew(&mut sock, json!([offer("db")])).await, ["ok"]);
    let past = sock.past();
    drop(sock);
    broker.stop("upgrade").await;
    let broker = start(dir.path(), LONG, Some(addr)).await;
    let (mut other, _) = join(addr, "other").await;
    assert_eq!(list(&mut other, false).await, [("db".to_owned(), "stale".to_owned())]);
    assert_eq!(renew(&mut other, json!([offer("db")])).await, ["name_taken"]);
    let mut sock = Sock::open(addr).await;
    sock.resume(&who, &past).await;
    assert_eq!(service_event(&mut other).await["kind"], "online");
    assert_eq!(renew(&mut sock, json!([offer("db")])).await, ["ok"]);
    still_serves(broker.addr()).await;
}

#[tokio::test]
async fn hidden_ones_are_in_no_list_but_the_whole_one() {
    let broker = broker(LONG).await;
    let (mut watcher, _) = join(broker.addr(), "watcher").await;
    let (mut sock, who) = join(broker.addr(), "publisher").await;
    let hidden = json!({"name": "db", "kind": "tcp", "metadata": {"hide": true}});
    assert_eq!(renew(&mut sock, json!([hidden, offer("web")])).await, ["ok", "ok"]);
    assert_eq!(service_event(&mut watcher).await["service"]["name"], "web");
    assert_eq!((list(&mut watcher, false).await.len(), list(&mut watcher, true).await.len()), (1, 2));
    let mut late = Sock::open(broker.addr()).await;
    let hello = late.join(&Who::new("late")).await;
    assert_eq!(hello["snapshot"]["services"].as_array().unwrap().len(), 1);
    assert_eq!(hello["stateVersion"]["services"], 1);
    let peers = hello["snapshot"]["presence"].as_array().unwrap();
    let peer = peers.iter().find(|peer| peer["session"] == who.id()).unwrap();
    assert_eq!(peer["services"], json!(["web"]));
}

#[tokio::test]
async fn a_list_comes_in_pages() {
    let broker = broker(LONG).await;
    let (mut sock, _) = join(broker.addr(), "publisher").await;
    let many: Vec<Value> = (0..12).map(|n| offer(&format!("s{n:02}"))).collect();
    assert_eq!(renew(&mut sock, json!(many)).await, vec!["ok"; 12]);
    let (mut names, mut after) = (Vec::new(), None::<Value>);
    loop {
        let page = sock.call("services.list", json!({"limit": 5, "after": after})).await;
        let services = page["services"].as_array().unwrap();
        names.extend(services.iter().map(|service| service["name"].as_str().unwrap().to_owned()));
        match page.get("next") {
            Some(next) => after = Some(next.clone()),
            None => break,
        }
    }
    assert_eq!(names, (0..12).map(|n| format!("s{n:02}")).collect::<Vec<_>>());
    for bad in [json!({"limit": 0}), json!({"limit": 501}), json!({"after": "NOT ONE"})] {
        assert_eq!(sock.fails("services.list", bad).await, "bad_request");
    }
}

#[tokio::test]
async fn bad_renewals_are_refused_with_a_code() {
    let broker = broker(LONG).await;
    let (mut sock, _) = join(broker.addr(), "publisher").await;
    let many: Vec<Value> = (0..257).map(|n| offer(&format!("s{n}"))).collect();
    for bad in [
        json!({}),
        json!({"services": 1}),
        json!({"services": [{"name": "a"}]}),
        json!({"services": [{"name": "a", "kind": "ftp"}]}),
        json!({"services": [{"name": 1, "kind": "tcp"}]}),
        json!({"services": [{"name": "a", "kind": "tcp", "ttlMs": -1}]}),
        json!({"services": many}),
    ] {
        assert_eq!(sock.fails("service.renew", bad).await, "bad_request");
    }
    let many: Vec<Value> = (0..65).map(|n| offer(&format!("s{n}"))).collect();
    let verdicts = renew(&mut sock, json!(many)).await;
    assert_eq!((verdicts.iter().filter(|v| *v == "ok").count(), verdicts[64].as_str()), (64, "busy"));
    assert_eq!(renew(&mut sock, json!([])).await, Vec::<String>::new());
    still_serves(broker.addr()).await;
}

#[tokio::test]
async fn a_ticket_is_signed_by_the_broker_and_says_where_and_who() {
    let broker = broker(LONG).await;
    let (mut one, who) = join(broker.addr(), "publisher").await;
    let (mut two, other) = join(broker.addr(), "consumer").await;
    renew(&mut one, json!([offer("db"), {"name": "web", "kind": "http"}])).await;
    let publish = one.call("relay.open", json!({"role": "publish"})).await;
    let connect = two.call("relay.open", json!({"role": "connect", "name": "db"})).await;
    let payload = |result: &Value| -> Value {
        let ticket = result["ticket"].as_str().unwrap();
        let parts: Vec<&str> = ticket.split('.').collect();
        assert_eq!((parts.len(), parts[0], parts[1]), (4, "tenure-relay", "v1"));
        let bytes = BASE64URL_NOPAD.decode(parts[2].as_bytes()).unwrap();
        assert_eq!(BASE64URL_NOPAD.decode(parts[3].as_bytes()).unwrap().len(), 64);
        assert_eq!(result["url"], format!("ws://{}/v1/relay", broker.addr()));
        serde_json::from_slice(&bytes).unwrap()
    };
    let (published, connected) = (payload(&publish), payload(&connect));
    assert_eq!(published["session"], who.id());
    assert_eq!((&published["role"], published.get("peer")), (&json!("publish"), None));
    assert_eq!((&connected["session"], &connected["peer"]), (&json!(other.id()), &json!(who.id())));
    assert_eq!((&connected["name"], &connect["peer"]), (&json!("db"), &json!(who.id())));
    assert_ne!(published["id"], connected["id"]);
    assert_eq!(connected["exp"], connect["expiresAt"]);
    for (params, code) in [
        (json!({"role": "connect", "name": "web"}), "not_found"),
        (json!({"role": "connect", "name": "no"}), "not_found"),
        (json!({"role": "connect"}), "bad_request"),
        (json!({"role": "connect", "name": "NOT ONE"}), "bad_request"),
        (json!({"role": "publish", "name": "db"}), "not_found"),
        (json!({"role": "steal"}), "bad_request"),
    ] {
        assert_eq!(two.fails("relay.open", params).await, code);
    }
}
