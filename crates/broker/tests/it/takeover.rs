//! Several sockets of one session: the newest wins, until it is a fight.

use serde_json::json;

use crate::common::sock::assert_closing;
use crate::common::{LONG, Sock, Who, broker, join, still_serves};

#[tokio::test]
async fn a_newer_socket_replaces_the_older() {
    let broker = broker(LONG).await;
    let (mut watcher, _) = join(broker.addr(), "watcher").await;
    let (mut old, who) = join(broker.addr(), "session").await;
    watcher.sees("joined", &who).await;
    let newcomer = who.as_process("another-process");
    let mut new = Sock::open(broker.addr()).await;
    let result = new.join(&newcomer).await;
    assert_eq!((&result["lease"], &result["resume"]["outcome"]), (&json!("kept"), &json!("new")));
    let ended = old.ended().await;
    assert_closing(&ended.closing, 1000, "session_replaced", false);
    assert_eq!(ended.closing["instanceId"], "another-process");
    // What the old one still sends has no effect on the session that it lost.
    old.send(&json!({"type": "req", "id": "late", "method": "bye", "params": {}})).await;
    old.cut();
    new.call("profile.set", json!({"summary": "here"})).await;
    let step = watcher.sees("updated", &who).await;
    assert_eq!(step["base"].as_u64().unwrap() + 1, step["version"].as_u64().unwrap());
    assert_eq!(step["peer"]["instanceId"], "another-process");
    watcher.sees_all_of_it().await;
}

#[tokio::test]
async fn the_sixth_replacement_by_another_process_is_a_contest() {
    let broker = broker(LONG).await;
    let (mut watcher, _) = join(broker.addr(), "watcher").await;
    let (mut sock, who) = join(broker.addr(), "contested").await;
    watcher.sees("joined", &who).await;
    for n in 1..=5 {
        let process = who.as_process(&format!("process-{}", n % 2));
        let mut next = Sock::open(broker.addr()).await;
        assert_eq!(next.join(&process).await["lease"], "kept", "replacement {n}");
        let ended = sock.ended().await;
        assert_closing(&ended.closing, 1000, "session_replaced", false);
        assert_eq!(ended.closing["instanceId"], process.instance);
        sock = next;
    }
    for _ in 0..3 {
        let mut loser = Sock::open(broker.addr()).await;
        let hello = loser.hello_of(&who.as_process("process-0"));
        let (error, closing) = loser.refused(hello).await;
        assert_eq!((&error["code"], &error["retryable"]), (&json!("session_contested"), &json!(true)));
        assert_eq!(error["retryAfterMs"], 5000);
        assert_closing(&closing, 1013, "session_contested", true);
        assert_eq!(closing["retryAfterMs"], 5000);
    }
    // The incumbent is not disturbed, and may replace itself.
    assert!(sock.call("ping", json!({})).await["ts"].is_u64());
    let own = who.as_process("process-1");
    let mut next = Sock::open(broker.addr()).await;
    assert_eq!(next.join(&own).await["lease"], "kept");
    assert_closing(&sock.ended().await.closing, 1000, "session_replaced", false);
    // All of that was nobody else's business.
    let (_marker, marker_who) = join(broker.addr(), "marker").await;
    let step = watcher.sees("joined", &marker_who).await;
    assert_eq!(step["base"].as_u64().unwrap() + 1, step["version"].as_u64().unwrap());
    still_serves(broker.addr()).await;
}

#[tokio::test]
async fn a_process_never_contests_itself() {
    let broker = broker(LONG).await;
    let (mut sock, who) = join(broker.addr(), "flapping").await;
    for n in 0..20 {
        let mut next = Sock::open(broker.addr()).await;
        assert_eq!(next.join(&who).await["lease"], "kept", "{n}");
        let ended = sock.ended().await;
        assert_closing(&ended.closing, 1000, "session_replaced", false);
        assert_eq!(ended.closing["instanceId"], who.instance);
        sock = next;
    }
    assert!(sock.call("ping", json!({})).await["ts"].is_u64());
}

#[tokio::test]
async fn taking_turns_politely_is_no_contest() {
    let broker = broker(LONG).await;
    let (mut watcher, _) = join(broker.addr(), "watcher").await;
    let (mut sock, who) = join(broker.addr(), "relay race").await;
    watcher.sees("joined", &who).await;
    for n in 0..8 {
        sock.bye().await;
        watcher.sees("left", &who).await;
        sock = Sock::open(broker.addr()).await;
        let process = who.as_process(&format!("runner-{n}"));
        assert_eq!(sock.join(&process).await["lease"], "new", "{n}");
        watcher.sees("joined", &who).await;
    }
}

#[tokio::test]
async fn hellos_at_once_leave_one_socket_and_one_join() {
    let broker = broker(LONG).await;
    let (mut watcher, _) = join(broker.addr(), "watcher").await;
    let who = Who::new("eager");
    let mut socks = Vec::new();
    for _ in 0..6 {
        socks.push(Sock::open(broker.addr()).await);
    }
    for sock in &mut socks {
        let params = sock.hello_of(&who);
        sock.send(&json!({"type": "req", "id": "hello", "method": "hello", "params": params})).await;
    }
    // All but one are replaced, answered before that or not.
    let mut living = Vec::new();
    for mut sock in socks {
        let first = sock.frame().await;
        if first["event"] == "closing" {
            assert_closing(&first["data"], 1000, "session_replaced", false);
            continue;
        }
        assert_eq!(first["ok"], true, "{first}");
        sock.welcomed(&first["result"]);
        living.push(sock);
    }
    let mut last = living.pop().expect("somebody got in");
    for mut sock in living {
        assert_closing(&sock.ended().await.closing, 1000, "session_replaced", false);
    }
    assert!(last.call("ping", json!({})).await["ts"].is_u64());
    watcher.sees("joined", &who).await;
    let (_marker, marker_who) = join(broker.addr(), "marker").await;
    let step = watcher.sees("joined", &marker_who).await;
    assert_eq!(step["base"].as_u64().unwrap() + 1, step["version"].as_u64().unwrap());
}

#[tokio::test]
async fn goodbye_and_hello_at_once_end_in_order() {
    let broker = broker(LONG).await;
    let (mut watcher, _) = join(broker.addr(), "watcher").await;
    let (mut sock, who) = join(broker.addr(), "undecided").await;
    for round in 0..20 {
        let mut next = Sock::open(broker.addr()).await;
        let params = next.hello_of(&who);
        let hello = json!({"type": "req", "id": "hello", "method": "hello", "params": params});
        let bye = json!({"type": "req", "id": "bye", "method": "bye", "params": {}});
        if round % 2 == 0 {
            sock.send(&bye).await;
            next.send(&hello).await;
        } else {
            next.send(&hello).await;
            sock.send(&bye).await;
        }
        let answer = next.frame().await;
        assert_eq!(answer["ok"], true, "{answer}");
        next.welcomed(&answer["result"]);
        // The old socket has said goodbye or was replaced before it could; there is no third.
        let ended = sock.ended().await;
        match answer["result"]["lease"].as_str() {
            Some("new") => assert_closing(&ended.closing, 1000, "bye", false),
            Some("kept") => assert_closing(&ended.closing, 1000, "session_replaced", false),
            other => panic!("{other:?}"),
        }
        sock = next;
    }
    let (_marker, marker) = join(broker.addr(), "marker").await;
    // The mirror itself refuses a second `joined`, or a `left` of nobody.
    while !watcher.mirror.peers.contains_key(&marker.id()) {
        watcher.expect("presence").await;
    }
    watcher.sees_all_of_it().await;
    sock.sees_all_of_it().await;
}

#[tokio::test]
async fn a_hello_that_nobody_waits_for_is_a_session_all_the_same() {
    let broker = broker(LONG).await;
    let (mut watcher, _) = join(broker.addr(), "watcher").await;
    for n in 0..10 {
        let who = Who::new("hasty");
        let mut sock = Sock::open(broker.addr()).await;
        let params = sock.hello_of(&who);
        sock.send(&json!({"type": "req", "id": "hello", "method": "hello", "params": params})).await;
        sock.cut();
        watcher.sees("joined", &who).await;
        // The answer was lost with the socket; the key finds the lease again.
        let mut sock = Sock::open(broker.addr()).await;
        assert_eq!(sock.join(&who).await["lease"], "kept", "{n}");
        sock.bye().await;
        watcher.sees("left", &who).await;
    }
    watcher.sees_all_of_it().await;
}
