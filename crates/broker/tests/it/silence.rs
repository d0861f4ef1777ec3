//! Time: ticks, pings, sockets gone quiet, leases that nobody comes back for. Scaled down by configuration.

use std::time::{Duration, Instant};

use serde_json::json;
use tenure_broker::{Broker, Config};
use tokio_tungstenite::tungstenite::Message;

use crate::common::keys::unix_ms;
use crate::common::sock::assert_closing;
use crate::common::{Got, Sock, Who, join};

/// A broker with these numbers: lease, ping, stale, tick.
async fn timed(lease: u64, ping: u64, stale: u64, tick: u64) -> Broker {
    let mut config = Config::ephemeral(lease);
    let mesh = &mut config.mesh;
    (mesh.ping_interval_ms, mesh.stale_after_ms, mesh.tick_interval_ms) = (ping, stale, tick);
    mesh.check().expect("numbers that hold together");
    Broker::start(config).await.expect("start")
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Somebody else joins, so that the watcher, who has seen this one, has seen everything before as well.
async fn mark(broker: &Broker, watcher: &mut Sock) -> Sock {
    let (sock, who) = join(broker.addr(), "marker").await;
    let step = watcher.sees("joined", &who).await;
    let (base, version) = (step["base"].as_u64(), step["version"].as_u64());
    assert_eq!(base.map(|base| base + 1), version, "nothing happened unseen");
    sock
}

#[tokio::test]
async fn an_idle_socket_gets_ticks_and_pings_and_stays() {
    let broker = timed(900, 200, 700, 300).await;
    let start = Instant::now();
    let (mut sock, _) = join(broker.addr(), "idle").await;
    let (mut ticks, mut pings) = (0, 0);
    // Twice the lease: its pongs alone keep it.
    while start.elapsed() < ms(1800) {
        match sock.recv().await {
            Got::Frame(frame) => {
                ticks += 1;
                assert_eq!(frame["event"], "tick", "{frame}");
                assert!(frame["data"]["ts"].as_u64().unwrap().abs_diff(unix_ms()) < 60_000);
                assert_eq!(frame["seq"], ticks);
                assert!(start.elapsed() >= ms(300 * ticks), "tick {ticks} after {:?}", start.elapsed());
            }
            Got::Ping => {
                pings += 1;
                assert!(start.elapsed() >= ms(200 * pings), "ping {pings} after {:?}", start.elapsed());
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(ticks >= 3 && pings >= 5, "{ticks} ticks, {pings} pings");
}

#[tokio::test]
async fn a_socket_gone_quiet_is_stale_and_its_lease_ends_once() {
    let broker = timed(1000, 250, 600, 5_000).await;
    let (mut watcher, _) = join(broker.addr(), "watcher").await;
    let (mut sock, who) = join(broker.addr(), "quiet").await;
    watcher.sees("joined", &who).await;
    let last = Instant::now();
    sock.call("ping", json!({})).await;
    sock.lose_writes();
    let quiet = async {
        let mut pinged = false;
        let closing = loop {
            match sock.recv().await {
                Got::Ping => pinged = true,
                Got::Frame(frame) => break frame,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(closing["event"], "closing", "{closing}");
        assert_closing(&closing["data"], 4009, "stale", true);
        assert!(pinged && last.elapsed() >= ms(600), "{pinged} after {:?}", last.elapsed());
        assert!(matches!(sock.recv().await, Got::Closed(4009, reason) if reason == "stale"));
    };
    let watching = async {
        watcher.sees("left", &who).await;
        // Our own decision to hang up proves nothing: the time runs from the last thing heard.
        assert!(last.elapsed() >= ms(1000), "left after {:?}", last.elapsed());
        mark(&broker, &mut watcher).await;
    };
    tokio::join!(quiet, watching);
    watcher.sees_all_of_it().await;
}

#[tokio::test]
async fn a_stale_socket_may_come_back_unnoticed() {
    let broker = timed(5_000, 100, 400, 2_000).await;
    let (mut watcher, _) = join(broker.addr(), "watcher").await;
    let who = Who::new("flaky");
    let mut sock = Sock::open(broker.addr()).await;
    sock.join(&who).await;
    watcher.sees("joined", &who).await;
    let lost = async {
        for _ in 0..2 {
            sock.lose_writes();
            assert_closing(&sock.ended().await.closing, 4009, "stale", true);
            let past = sock.past();
            sock = Sock::open(broker.addr()).await;
            let back = sock.resume(&who, &past).await;
            assert_eq!((&back["lease"], &back["resume"]["outcome"]), (&json!("kept"), &json!("resumed")));
            assert_eq!(back["events"]["replay"], "complete");
        }
    };
    tokio::select! {
        () = lost => {}
        event = watcher.event() => panic!("the watcher saw {event}"),
    }
    mark(&broker, &mut watcher).await;
}

#[tokio::test]
async fn a_close_frame_proves_life_and_a_cut_does_not() {
    let broker = timed(1800, 1300, 1700, 700).await;
    let (mut watcher, _) = join(broker.addr(), "watcher").await;
    let (mut closes, polite) = join(broker.addr(), "closes").await;
    watcher.sees("joined", &polite).await;
    let joined = Instant::now();
    let (mut cuts, rude) = join(broker.addr(), "cuts").await;
    watcher.sees("joined", &rude).await;
    closes.sees("joined", &rude).await;
    // Both are as old when they go: one tick.
    assert_eq!(closes.frame().await["event"], "tick");
    assert_eq!(cuts.frame().await["event"], "tick");
    let closed = Instant::now();
    closes.send_message(Message::Close(None)).await;
    closes.cut();
    cuts.cut();
    watcher.sees("left", &rude).await;
    assert!(joined.elapsed() >= ms(1800), "{:?}", joined.elapsed());
    watcher.sees("left", &polite).await;
    assert!(closed.elapsed() >= ms(1800), "{:?}", closed.elapsed());
    mark(&broker, &mut watcher).await;
    watcher.sees_all_of_it().await;
}

#[tokio::test]
async fn a_lease_outlived_is_one_left_and_one_joined() {
    let broker = timed(400, 130, 330, 5_000).await;
    let (mut watcher, _) = join(broker.addr(), "watcher").await;
    let who = Who::new("late");
    let mut sock = Sock::open(broker.addr()).await;
    sock.join(&who).await;
    watcher.sees("joined", &who).await;
    let past = sock.past();
    sock.cut();
    watcher.sees("left", &who).await;
    let mut sock = Sock::open(broker.addr()).await;
    let back = sock.resume(&who, &past).await;
    assert_eq!((&back["lease"], &back["resume"]["outcome"]), (&json!("new"), &json!("resume_not_found")));
    assert!(back["resume"]["reason"].is_string());
    assert_eq!((&back["events"]["replay"], &back["events"]["nextSeq"]), (&json!("resync"), &json!(1)));
    assert_ne!(back["events"]["epoch"], past.epoch);
    watcher.sees("joined", &who).await;
}
