//! Who is here: joined, updated, left; pages; what `bye` does.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::common::keys::unix_ms;
use crate::common::{LONG, Sock, Who, broker, join};

fn chain(data: &Value) -> (u64, u64) {
    (data["base"].as_u64().expect("base"), data["version"].as_u64().expect("version"))
}

#[tokio::test]
async fn a_watcher_sees_each_step_once_and_in_a_chain() {
    let broker = broker(LONG).await;
    let watcher_who = Who::new("watcher");
    let mut watcher = Sock::open(broker.addr()).await;
    let hello = watcher.join(&watcher_who).await;
    let mut at = hello["stateVersion"]["presence"].as_u64().unwrap();
    let who = Who::new("peer");
    let mut sock = Sock::open(broker.addr()).await;
    let result = sock.join(&who).await;
    let present: BTreeSet<&str> = result["snapshot"]["presence"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| p["session"].as_str().unwrap())
        .collect();
    assert_eq!(present, BTreeSet::from([who.id().as_str(), watcher_who.id().as_str()]));

    let joined = watcher.sees("joined", &who).await;
    assert_eq!(joined.as_object().unwrap().keys().collect::<Vec<_>>(), ["base", "kind", "peer", "version"]);
    let in_snapshot =
        result["snapshot"]["presence"].as_array().unwrap().iter().find(|p| p["session"] == who.id());
    assert_eq!(&joined["peer"], in_snapshot.unwrap(), "everybody sees the same peer");
    assert_eq!(chain(&joined), (at, at + 1));
    at += 1;

    let changes = [
        json!({"name": "renamed"}),
        json!({"status": "working"}),
        json!({"summary": "doing things", "host": "h", "cwd": "/c", "role": "r", "tags": ["x"]}),
        json!({"lastInputSeconds": 12}),
    ];
    for change in changes {
        assert_eq!(sock.call("profile.set", change.clone()).await, json!({}));
        let updated = watcher.sees("updated", &who).await;
        for (field, value) in change.as_object().unwrap() {
            assert_eq!(&updated["peer"][field], value, "{field}");
        }
        assert_eq!(chain(&updated), (at, at + 1));
        assert_eq!(updated["peer"]["joinedAt"], joined["peer"]["joinedAt"]);
        at += 1;
    }
    // What changes nothing is no step.
    sock.call("profile.set", json!({"name": "renamed", "tags": ["x"]})).await;
    sock.call("profile.set", json!({})).await;
    watcher.sees_all_of_it().await;

    sock.bye().await;
    let left = watcher.sees("left", &who).await;
    assert_eq!((&left["peer"]["name"], chain(&left)), (&json!("renamed"), (at, at + 1)));
    watcher.sees_all_of_it().await;
    assert_eq!(watcher.mirror.dropped, 0);
}

#[tokio::test]
async fn presence_is_listed_in_pages() {
    let broker = broker(LONG).await;
    let mut socks = Vec::new();
    let mut ids = BTreeSet::new();
    for n in 0..12 {
        let (sock, who) = join(broker.addr(), &format!("peer {n}")).await;
        ids.insert(who.id());
        socks.push(sock);
    }
    let (mut sizes, mut seen, mut after) = (Vec::new(), Vec::new(), None::<Value>);
    loop {
        let mut params = json!({"limit": 5});
        if let Some(after) = &after {
            params["after"] = after.clone();
        }
        let page = socks[0].call("presence.list", params).await;
        let peers = page["peers"].as_array().unwrap();
        sizes.push(peers.len());
        seen.extend(peers.iter().map(|peer| peer["session"].as_str().unwrap().to_owned()));
        assert!(page["stateVersion"]["presence"].is_u64());
        assert!(peers.iter().all(|p| p.get("transport").is_none() && p.get("leaseUntil").is_none()));
        match page.get("next") {
            Some(next) => after = Some(next.clone()),
            None => break,
        }
    }
    assert_eq!(sizes, [5, 5, 2]);
    assert_eq!(seen, ids.into_iter().collect::<Vec<_>>(), "each once, in the order of their keys");
    // A page that ends exactly at the end has no next.
    let page = socks[0].call("presence.list", json!({"limit": 12})).await;
    assert_eq!((page["peers"].as_array().unwrap().len(), page.get("next")), (12, None));
    let page = socks[0].call("presence.list", json!({"after": seen[11]})).await;
    assert_eq!((page["peers"].as_array().unwrap().len(), page.get("next")), (0, None));
}

#[tokio::test]
async fn the_state_of_sockets_is_shown_only_to_who_asks() {
    let broker = broker(LONG).await;
    let (mut sock, _) = join(broker.addr(), "asks").await;
    let (other, who) = join(broker.addr(), "asleep").await;
    sock.sees("joined", &who).await;
    let transport = |list: &Value| {
        let peers = list["peers"].as_array().unwrap();
        let peer = peers.iter().find(|peer| peer["session"] == who.id()).expect("there");
        let until = peer["leaseUntil"].as_u64().expect("leaseUntil");
        assert!(until > unix_ms() && until <= unix_ms() + LONG, "{until}");
        peer["transport"].as_str().expect("transport").to_owned()
    };
    assert_eq!(transport(&sock.call("presence.list", json!({"debug": true})).await), "online");
    other.cut();
    while transport(&sock.call("presence.list", json!({"debug": true})).await) != "grace" {}
    for params in [json!({}), json!({"debug": false}), json!({"debug": null})] {
        let list = sock.call("presence.list", params).await;
        assert_eq!(list["peers"].as_array().unwrap().len(), 2, "what we sell is: they are here");
        assert!(list["peers"].as_array().unwrap().iter().all(|p| p.get("transport").is_none()));
    }
}

#[tokio::test]
async fn goodbye_is_at_once_and_for_good() {
    let broker = broker(LONG).await;
    let (mut watcher, _) = join(broker.addr(), "watcher").await;
    let who = Who::new("leaves");
    for round in 0..3 {
        let mut sock = Sock::open(broker.addr()).await;
        let result = sock.join(&who).await;
        assert_eq!(
            (&result["lease"], &result["resume"]["outcome"]),
            (&json!("new"), &json!("new")),
            "{round}"
        );
        watcher.sees("joined", &who).await;
        sock.bye().await;
        watcher.sees("left", &who).await;
    }
    watcher.sees_all_of_it().await;
}

#[tokio::test]
async fn a_hello_with_another_profile_updates_and_with_the_same_says_nothing() {
    let broker = broker(LONG).await;
    let (mut watcher, _) = join(broker.addr(), "watcher").await;
    let (sock, who) = join(broker.addr(), "before").await;
    watcher.sees("joined", &who).await;
    sock.cut();
    let mut sock = Sock::open(broker.addr()).await;
    assert_eq!(sock.join(&who).await["lease"], "kept");
    sock.cut();
    let renamed = Who { name: "after".into(), ..who.clone() };
    let mut sock = Sock::open(broker.addr()).await;
    assert_eq!(sock.join(&renamed).await["lease"], "kept");
    let step = watcher.sees("updated", &who).await;
    let (base, version) = chain(&step);
    assert_eq!((&step["peer"]["name"], version), (&json!("after"), base + 1));
    watcher.sees_all_of_it().await;
    sock.sees_all_of_it().await;
}

#[tokio::test]
async fn many_come_and_go_and_every_mirror_is_right_in_the_end() {
    let broker = broker(LONG).await;
    let mut watchers = Vec::new();
    for n in 0..4 {
        watchers.push(join(broker.addr(), &format!("watcher {n}")).await.0);
    }
    let mut stay = Vec::new();
    for n in 0..30 {
        let (mut sock, _) = join(broker.addr(), &format!("peer {n}")).await;
        match n % 3 {
            0 => sock.bye().await,
            1 => drop(sock.call("profile.set", json!({"summary": format!("{n}")})).await),
            _ => {}
        }
        if n % 3 != 0 {
            stay.push(sock);
        }
    }
    let marker = Who::new("marker");
    let mut last = Sock::open(broker.addr()).await;
    last.join(&marker).await;
    for mut sock in watchers.into_iter().chain(stay) {
        while !sock.mirror.peers.contains_key(&marker.id()) {
            sock.expect("presence").await;
        }
        sock.sees_all_of_it().await;
    }
}

#[tokio::test]
async fn a_snapshot_shows_five_hundred_and_says_that_there_are_more() {
    let broker = broker(LONG).await;
    let mut ids = BTreeSet::new();
    for n in 0..502 {
        // A session without a socket is there all the same.
        let (sock, who) = join(broker.addr(), &format!("peer {n}")).await;
        ids.insert(who.id());
        let snapshot = &sock.result["snapshot"];
        let shown = snapshot["presence"].as_array().unwrap().len();
        assert_eq!((shown, snapshot.get("more")), ((n + 1).min(500), (n >= 500).then_some(&json!(true))));
        sock.cut();
    }
    let (mut sock, who) = join(broker.addr(), "last").await;
    ids.insert(who.id());
    let mut peers = sock.result["snapshot"]["presence"].as_array().unwrap().clone();
    let after = peers.last().unwrap()["session"].clone();
    let rest = sock.call("presence.list", json!({"after": after})).await;
    assert!(rest.get("next").is_none());
    peers.extend(rest["peers"].as_array().unwrap().iter().cloned());
    let listed: Vec<&str> = peers.iter().map(|peer| peer["session"].as_str().unwrap()).collect();
    assert_eq!(listed, ids.iter().map(String::as_str).collect::<Vec<_>>());
    // A page is no longer than a snapshot, asked for or not.
    let page = sock.call("presence.list", json!({})).await;
    assert_eq!((page["peers"].as_array().unwrap().len(), page["next"].is_string()), (500, true));
}

#[tokio::test]
async fn what_is_left_out_of_a_profile_is_idle_and_empty() {
    let broker = broker(LONG).await;
    let (mut sock, who) = join(broker.addr(), "bare").await;
    let own = |sock: &Sock| sock.mirror.peers[&who.id()].clone();
    assert_eq!((&own(&sock)["status"], &own(&sock)["tags"]), (&json!("idle"), &json!([])));
    let texts = ["summary", "host", "cwd", "role"];
    assert!(texts.iter().all(|text| own(&sock).get(text).is_none()));
    sock.call("profile.set", json!({"summary": "s", "host": "h", "cwd": "c", "role": "r"})).await;
    sock.sees("updated", &who).await;
    // Absent and null leave things as they are, an empty text takes them away.
    sock.call("profile.set", json!({"summary": null, "host": "", "tags": null, "status": "dnd"})).await;
    sock.sees("updated", &who).await;
    let now = own(&sock);
    assert_eq!((&now["summary"], now.get("host"), &now["cwd"]), (&json!("s"), None, &json!("c")));
    assert_eq!((&now["status"], &now["tags"], &now["name"]), (&json!("dnd"), &json!([]), &json!("bare")));
    sock.sees_all_of_it().await;
}
