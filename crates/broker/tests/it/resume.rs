//! Sockets come and go, the session does not: resume, replay, resync.

use serde_json::json;
use tenure_broker::Broker;

use crate::common::sock::{Past, assert_closing};
use crate::common::{LONG, Sock, Who, broker, join};

/// A session, and somebody who watches it.
async fn pair(broker: &Broker) -> (Sock, Who, Sock, Who) {
    let (mut watcher, watcher_who) = join(broker.addr(), "watcher").await;
    let (sock, who) = join(broker.addr(), "session").await;
    watcher.sees("joined", &who).await;
    (sock, who, watcher, watcher_who)
}

/// Waits until the broker has noticed that the socket of `who` is gone.
async fn in_grace(sock: &mut Sock, who: &Who) {
    loop {
        let list = sock.call("presence.list", json!({"debug": true})).await;
        let peers = list["peers"].as_array().expect("peers");
        if peers.iter().any(|peer| peer["session"] == who.id() && peer["transport"] == "grace") {
            return;
        }
    }
}

#[tokio::test]
async fn a_break_inside_the_lease_is_invisible() {
    let broker = broker(LONG).await;
    let (mut sock, who, mut watcher, _) = pair(&broker).await;
    let joined_at = watcher.mirror.peers[&who.id()]["joinedAt"].clone();
    let (mut tokens, mut conns) = (Vec::new(), Vec::new());
    for round in 0..6 {
        let mut past = sock.past();
        conns.push(sock.result["connId"].clone());
        tokens.push(past.token);
        // Every token of a living lease is good, the first as well as the last.
        past.token = tokens[round / 2].clone();
        sock.cut();
        if round % 2 == 0 {
            in_grace(&mut watcher, &who).await;
        }
        sock = Sock::open(broker.addr()).await;
        let back = sock.resume(&who, &past).await;
        assert_eq!((&back["lease"], &back["resume"]["outcome"]), (&json!("kept"), &json!("resumed")));
        assert_eq!((back["resume"].get("reason"), &back["events"]["replay"]), (None, &json!("complete")));
        assert!(!conns.contains(&back["connId"]), "a socket has its own id");
    }
    // The watcher's next event is the next thing that really happened, right after the last.
    sock.call("profile.set", json!({"status": "working"})).await;
    let step = watcher.sees("updated", &who).await;
    assert_eq!(step["base"].as_u64().unwrap() + 1, step["version"].as_u64().unwrap());
    assert_eq!(step["peer"]["joinedAt"], joined_at);
    watcher.sees_all_of_it().await;
}

#[tokio::test]
async fn events_that_were_lost_on_the_way_come_again() {
    let broker = broker(LONG).await;
    let (mut sock, who, mut watcher, watcher_who) = pair(&broker).await;
    // One event is read, so that the position is not the beginning.
    watcher.call("profile.set", json!({"summary": "read"})).await;
    watcher.sees("updated", &watcher_who).await;
    sock.sees("updated", &watcher_who).await;
    let past = sock.past();
    assert_eq!(past.last_seq, 1);
    // Sent, never read: the watcher has seen it, so it has left for everybody.
    watcher.call("profile.set", json!({"summary": "lost"})).await;
    let lost = watcher.sees("updated", &watcher_who).await;
    sock.cut();
    // And one while nobody was there to be sent it.
    let (_third, third_who) = join(broker.addr(), "third").await;
    let joined = watcher.sees("joined", &third_who).await;
    let mut last = past.clone();
    for _ in 0..3 {
        // Again and again, as long as the client does not say that it has them.
        let mut sock = Sock::open(broker.addr()).await;
        let back = sock.resume(&who, &past).await;
        assert_eq!(
            (&back["resume"]["outcome"], &back["events"]["replay"]),
            (&json!("resumed"), &json!("complete"))
        );
        assert_eq!(back["events"]["nextSeq"], 2);
        let again = sock.event().await;
        assert_eq!((&again["seq"], &again["data"]), (&json!(2), &lost), "the same event");
        let again = sock.event().await;
        assert_eq!((&again["seq"], &again["data"]), (&json!(3), &joined));
        sock.sees_all_of_it().await;
        assert_eq!(sock.mirror.dropped, 0);
        last = sock.past();
    }
    // Having said that it has them, it does not get them again.
    let mut sock = Sock::open(broker.addr()).await;
    assert_eq!(sock.resume(&who, &last).await["events"]["nextSeq"], 4);
    watcher.call("profile.set", json!({"summary": "new"})).await;
    let next = sock.event().await;
    assert_eq!((&next["seq"], &next["data"]["peer"]["summary"]), (&json!(4), &json!("new")));
}

#[tokio::test]
async fn replay_covers_events_that_are_not_presence() {
    let broker = broker(LONG).await;
    let (mut sock, who, mut watcher, watcher_who) = pair(&broker).await;
    sock.send_text("first").await;
    sock.expect("notice").await;
    let past = sock.past();
    sock.send_text("second").await;
    watcher.call("profile.set", json!({"summary": "between"})).await;
    watcher.sees("updated", &watcher_who).await;
    sock.send_text("third").await;
    // Answered, so everything before it was sent; none of it counts as read.
    sock.call("ping", json!({})).await;
    sock.cut();
    let mut sock = Sock::open(broker.addr()).await;
    assert_eq!(sock.resume(&who, &past).await["events"]["replay"], "complete");
    let mut names = Vec::new();
    for _ in 0..3 {
        names.push(sock.event().await["event"].as_str().unwrap().to_owned());
    }
    names.sort_unstable();
    assert_eq!(names, ["notice", "notice", "presence"]);
    sock.sees_all_of_it().await;
}

#[tokio::test]
async fn whatever_happened_meanwhile_the_mirror_is_right_again() {
    let broker = broker(LONG).await;
    let (sock, who, mut watcher, watcher_who) = pair(&broker).await;
    let (mut leaver, leaver_who) = join(broker.addr(), "leaves").await;
    watcher.sees("joined", &leaver_who).await;
    let past = sock.past();
    sock.cut();
    in_grace(&mut watcher, &who).await;
    leaver.bye().await;
    watcher.sees("left", &leaver_who).await;
    // Some come and go, some come and change, and one that went comes back as another lease.
    let mut stay = Vec::new();
    for n in 0..3 {
        let (mut brief, brief_who) = join(broker.addr(), &format!("brief {n}")).await;
        watcher.sees("joined", &brief_who).await;
        brief.bye().await;
        watcher.sees("left", &brief_who).await;
        let (mut changing, changing_who) = join(broker.addr(), &format!("changing {n}")).await;
        watcher.sees("joined", &changing_who).await;
        changing.call("profile.set", json!({"status": "working"})).await;
        watcher.sees("updated", &changing_who).await;
        stay.push(changing);
    }
    let mut leaver = Sock::open(broker.addr()).await;
    assert_eq!(leaver.join(&leaver_who).await["lease"], "new");
    watcher.sees("joined", &leaver_who).await;
    watcher.call("profile.set", json!({"summary": "marker"})).await;
    watcher.sees("updated", &watcher_who).await;

    let mut sock = Sock::open(broker.addr()).await;
    assert_eq!(sock.resume(&who, &past).await["events"]["replay"], "complete");
    while sock.expect("presence").await["peer"]["summary"] != "marker" {}
    sock.sees_all_of_it().await;
    assert_eq!(sock.mirror.peers, watcher.mirror.peers);
    assert_eq!(sock.mirror.version, watcher.mirror.version);
}

#[tokio::test]
async fn a_position_that_cannot_be_served_is_a_resync() {
    let broker = broker(LONG).await;
    let (mut sock, who, mut watcher, watcher_who) = pair(&broker).await;
    watcher.call("profile.set", json!({"summary": "one"})).await;
    sock.sees("updated", &watcher_who).await;
    let past = sock.past();
    let mut epochs = vec![past.epoch.clone()];
    for (what, past) in [
        ("an epoch never heard of", Past { epoch: json!("e-of-nobody"), ..past.clone() }),
        ("the epoch that the resync before has ended", past.clone()),
        ("a number beyond reason", Past { last_seq: (1 << 53) - 1, ..past.clone() }),
    ] {
        sock = Sock::open(broker.addr()).await;
        let back = sock.resume(&who, &past).await;
        assert_eq!(
            (&back["lease"], &back["resume"]["outcome"]),
            (&json!("kept"), &json!("resumed")),
            "{what}"
        );
        assert_eq!(
            (&back["events"]["replay"], &back["events"]["nextSeq"]),
            (&json!("resync"), &json!(1)),
            "{what}"
        );
        assert!(!epochs.contains(&back["events"]["epoch"]), "{what}: a new epoch");
        assert_eq!(back["snapshot"]["presence"].as_array().unwrap().len(), 2, "{what}");
        epochs.push(back["events"]["epoch"].clone());
        watcher.call("profile.set", json!({"summary": what})).await;
        assert_eq!(sock.event().await["seq"], 1, "{what}");
        sock.sees_all_of_it().await;
    }
    // The numbering that a resync began can itself be resumed.
    let past = sock.past();
    let mut sock = Sock::open(broker.addr()).await;
    assert_eq!(sock.resume(&who, &past).await["events"]["replay"], "complete");
    // One number beyond what was sent is too many; one that the client once said it had is gone.
    let ahead = Past { last_seq: past.last_seq + 1, ..past };
    let mut sock = Sock::open(broker.addr()).await;
    assert_eq!(sock.resume(&who, &ahead).await["events"]["replay"], "resync");
    watcher.call("profile.set", json!({"summary": "two"})).await;
    sock.sees("updated", &watcher_who).await;
    let (before, after) = (Past { last_seq: 0, ..sock.past() }, sock.past());
    let mut sock = Sock::open(broker.addr()).await;
    assert_eq!(sock.resume(&who, &after).await["events"]["replay"], "complete");
    let mut sock = Sock::open(broker.addr()).await;
    assert_eq!(sock.resume(&who, &before).await["events"]["replay"], "resync");
}

#[tokio::test]
async fn the_ring_holds_a_thousand_and_twenty_four() {
    let broker = broker(LONG).await;
    let (mut sock, who, ..) = pair(&broker).await;
    for _ in 0..11 {
        for _ in 0..100 {
            sock.send_text("?").await;
        }
        for _ in 0..100 {
            sock.expect("notice").await;
        }
    }
    let past = sock.past();
    assert_eq!(past.last_seq, 1_100);
    let oldest = Past { last_seq: 1_100 - 1_024, ..past };
    let mut next = Sock::open(broker.addr()).await;
    assert_eq!(next.resume(&who, &oldest).await["events"]["replay"], "complete");
    for seq in 77..=1_100 {
        assert_eq!(next.event().await["seq"], seq);
    }
    // All the same events, once more, and the position before them is gone.
    let older = Past { last_seq: 75, ..oldest };
    let mut last = Sock::open(broker.addr()).await;
    assert_eq!(last.resume(&who, &older).await["events"]["replay"], "resync");
}

#[tokio::test]
async fn the_key_alone_keeps_the_lease_but_not_the_stream() {
    let broker = broker(LONG).await;
    let (sock, who, mut watcher, _) = pair(&broker).await;
    let past = sock.past();
    sock.cut();
    in_grace(&mut watcher, &who).await;
    let mut sock = Sock::open(broker.addr()).await;
    let back = sock.join(&who).await;
    assert_eq!((&back["lease"], &back["resume"]["outcome"]), (&json!("kept"), &json!("new")));
    assert_eq!((&back["events"]["replay"], &back["events"]["nextSeq"]), (&json!("resync"), &json!(1)));
    assert_ne!(back["events"]["epoch"], past.epoch);
    assert_eq!(back["snapshot"]["presence"].as_array().unwrap().len(), 2);
    let (_marker, marker) = join(broker.addr(), "marker").await;
    let step = watcher.sees("joined", &marker).await;
    assert_eq!(step["base"].as_u64().unwrap() + 1, step["version"].as_u64().unwrap(), "nothing was seen");
}

#[tokio::test]
async fn a_resume_beside_the_old_socket_goes_on_where_it_was() {
    let broker = broker(LONG).await;
    let (mut old, who, mut watcher, watcher_who) = pair(&broker).await;
    let past = old.past();
    watcher.call("profile.set", json!({"summary": "unread"})).await;
    watcher.sees("updated", &watcher_who).await;
    let mut new = Sock::open(broker.addr()).await;
    let back = new.resume(&who, &past).await;
    assert_eq!((&back["lease"], &back["events"]["replay"]), (&json!("kept"), &json!("complete")));
    assert_eq!(new.sees("updated", &watcher_who).await["peer"]["summary"], "unread");
    let ended = old.ended().await;
    assert_closing(&ended.closing, 1000, "session_replaced", false);
    assert_eq!(ended.closing["instanceId"], who.instance, "its own newer socket");
}
