//! A broker stops and another takes its place on the same store: no peer sees a blink.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_broker::{Broker, Config, StoreChoice};

use super::drain::sees_shutdown;
use crate::common::sock::assert_closing;
use crate::common::{LONG, Sock, Who, join};

async fn start(dir: &Path, lease_ttl_ms: u64, listen: Option<SocketAddr>) -> Broker {
    let mut config = Config::ephemeral(lease_ttl_ms);
    config.store = StoreChoice::Sqlite(dir.to_owned());
    config.listen = listen.unwrap_or(config.listen);
    Broker::start(config).await.expect("start")
}

/// Stops a broker whose sessions these are, each of which must be told.
async fn stop(broker: Broker, socks: &mut [Sock]) {
    let stopping = tokio::spawn(broker.stop("upgrade"));
    for sock in socks {
        sees_shutdown(sock, "upgrade").await;
    }
    stopping.await.expect("stopped");
}

#[tokio::test]
async fn everybody_resumes_and_nobody_was_gone() {
    let dir = tempfile::tempdir().unwrap();
    let mut broker = start(dir.path(), LONG, None).await;
    let (mut people, mut socks, mut hellos) = (Vec::new(), Vec::new(), Vec::new());
    for n in 0..6 {
        let who = Who::new(if n == 0 { "watcher" } else { "session" });
        let mut sock = Sock::open(broker.addr()).await;
        hellos.push(sock.join(&who).await);
        people.push(who);
        socks.push(sock);
    }
    assert_eq!(socks[1].call("health", json!({})).await["store"]["kind"], "sqlite");
    // A change shortly before the stop is not lost with it.
    socks[5].call("profile.set", json!({"status": "working", "summary": "half done", "tags": ["x"]})).await;
    let (mut gone, gone_who) = join(broker.addr(), "gone").await;

    gone.bye().await;
    let before: Value = socks[0].call("presence.list", json!({})).await["peers"].clone();
    assert_eq!(before.as_array().unwrap().len(), 6);

    for round in 1..=2 {
        let addr = broker.addr();
        let ids: Vec<Value> = socks.iter().map(|sock| sock.challenge["broker"].clone()).collect();
        stop(broker, &mut socks).await;
        broker = start(dir.path(), LONG, Some(addr)).await;
        assert_eq!(broker.addr(), addr);
        for n in 0..6 {
            let (who, hello) = (&people[n], &hellos[n]);
            let mut sock = Sock::open(addr).await;
            assert_eq!(sock.challenge["broker"], ids[n], "the same broker");
            let mut params = sock.hello_of(who);

            if n == 5 {
                // Its hello says what it looks like; its token vouches.
                params["profile"] =
                    json!({"name": "session", "status": "working", "summary": "half done", "tags": ["x"]});
                params.as_object_mut().unwrap().remove("attestation");
            }
            let back = sock.resume_with(params, &socks[n].past()).await;
            assert_eq!(
                (&back["lease"], &back["resume"]["outcome"]),
                (&json!("kept"), &json!("resumed")),
                "{round}"
            );
            assert_eq!(
                (&back["events"]["replay"], &back["events"]["nextSeq"]),
                (&json!("resync"), &json!(1))
            );
            assert_ne!(back["events"]["epoch"], hello["events"]["epoch"]);
            // Everybody is there from the first moment, those who are not back yet as well.
            assert_eq!(back["snapshot"]["presence"], before, "{round}, {n}");
            socks[n] = sock;
            hellos[n] = back;
        }
    }
    // Six came back twice, and the watcher's first event is what happens now.
    socks[1].call("profile.set", json!({"status": "dnd"})).await;
    let event = socks[0].event().await;
    assert_eq!((&event["seq"], &event["data"]["kind"]), (&json!(1), &json!("updated")), "{event}");
    assert_eq!(event["data"]["base"].as_u64().unwrap() + 1, event["data"]["version"].as_u64().unwrap());
    socks[0].sees_all_of_it().await;
    // Who had said goodbye is not there, and begins anew.
    let mut sock = Sock::open(broker.addr()).await;
    assert_eq!(sock.join(&gone_who).await["lease"], "new");
    socks[0].sees("joined", &gone_who).await;
}

#[tokio::test]
async fn a_restored_lease_is_still_its_members() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start(dir.path(), LONG, None).await;
    let who = Who::new("session");
    let mut sock = Sock::open(broker.addr()).await;
    let hello = sock.join(&who).await;
    let (mut left, left_who) = join(broker.addr(), "left").await;
    sock.sees("joined", &left_who).await;
    left.bye().await;
    stop(broker, std::slice::from_mut(&mut sock)).await;

    let broker = start(dir.path(), LONG, None).await;
    let adopted = Who { member: crate::common::keys::key(), ..who.clone() };
    let mut thief = Sock::open(broker.addr()).await;
    let params = thief.hello_of(&adopted);
    let (error, closing) = thief.refused(params).await;
    assert_eq!(error["code"], "unauthorized");
    assert_closing(&closing, 1008, "unauthorized", false);
    // The key alone keeps the lease here too; the port is another, the store is the same.
    let mut sock = Sock::open(broker.addr()).await;
    let back = sock.join(&who).await;
    assert_eq!((&back["lease"], &back["resume"]["outcome"]), (&json!("kept"), &json!("new")));
    assert_eq!(back["snapshot"]["presence"][0]["joinedAt"], hello["snapshot"]["presence"][0]["joinedAt"]);
    // Lease ids and epochs of different starts are different: an old position is never taken for a new one.
    assert_ne!(back["events"]["epoch"], hello["events"]["epoch"]);
}

#[tokio::test]
async fn who_does_not_come_back_leaves_once_after_a_full_lease() {
    let dir = tempfile::tempdir().unwrap();
    let ttl = 1_500;
    let broker = start(dir.path(), ttl, None).await;
    let (sock, who) = join(broker.addr(), "stays").await;
    let (absent, absent_who) = join(broker.addr(), "stays away").await;
    stop(broker, &mut [sock, absent]).await;

    let begin = Instant::now();
    let broker = start(dir.path(), ttl, None).await;
    let mut sock = Sock::open(broker.addr()).await;
    let back = sock.join(&who).await;
    assert_eq!((&back["lease"], back["snapshot"]["presence"].as_array().unwrap().len()), (&json!("kept"), 2));
    sock.sees("left", &absent_who).await;
    assert!(begin.elapsed() >= Duration::from_millis(ttl), "{:?}", begin.elapsed());
    let (_marker, marker_who) = join(broker.addr(), "marker").await;
    let step = sock.sees("joined", &marker_who).await;
    assert_eq!(step["base"].as_u64().unwrap() + 1, step["version"].as_u64().unwrap(), "once");
    sock.sees_all_of_it().await;
}

#[tokio::test]
async fn a_store_has_one_broker_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start(dir.path(), LONG, None).await;
    let (mut sock, _) = join(broker.addr(), "first").await;
    let mut config = Config::ephemeral(LONG);
    config.store = StoreChoice::Sqlite(dir.path().to_owned());
    assert!(Broker::start(config).await.is_err(), "a second broker on the same store");
    assert!(sock.call("ping", json!({})).await["ts"].is_u64());
    // An address that is taken is an error too, and says so.
    let mut config = Config::ephemeral(LONG);
    config.listen = broker.addr();
    let error = Broker::start(config).await.expect_err("a second listener");
    assert!(error.to_string().contains(&broker.addr().to_string()), "{error}");
}

#[tokio::test]
async fn a_crash_loop_uses_up_a_lease() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start(dir.path(), 4_000, None).await;
    let (mut ghost, _) = join(broker.addr(), "ghost").await;
    stop(broker, std::slice::from_mut(&mut ghost)).await;
    // Five starts that live for a moment each, and one that somebody looks at: each of the five counts a second.
    for _ in 0..5 {
        start(dir.path(), 4_000, None).await.stop("end").await;
    }
    let broker = start(dir.path(), 4_000, None).await;
    let (mut watcher, _) = join(broker.addr(), "watcher").await;
    let begun = Instant::now();
    while watcher.call("presence.list", json!({})).await["peers"].as_array().unwrap().len() > 1 {
        assert!(begun.elapsed() < Duration::from_millis(2_000), "the ghost has a lease to spend");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    watcher.bye().await;
    broker.stop("end").await;
}
