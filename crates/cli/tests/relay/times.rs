//! What waits, and what ends: stale services, cuts, targets and consumers that do not go on.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::asking::{ask, get, parse, until};
use crate::common::patience;
use crate::stage::{Stage, mirror, read_head, target};

#[tokio::test]
async fn a_sleeping_publisher_is_waited_for_and_its_name_stays() {
    let stage = Stage::new().await;
    let web = stage.web(mirror().await).await;
    web.signal("STOP");
    until(async || stage.service("web").filter(|service| service["state"] == "stale")).await;
    let asking = tokio::spawn(get(stage.relay, "/late"));
    // It waits for as long as nobody is there to answer.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!asking.is_finished());
    web.signal("CONT");
    let answer = asking.await.unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    until(async || stage.service("web").filter(|service| service["state"] == "online")).await;
}

#[tokio::test]
async fn a_publisher_that_does_not_wake_is_503_with_a_time() {
    let stage = Stage::new().await;
    let web = stage.web(mirror().await).await;
    web.signal("STOP");
    until(async || stage.service("web").filter(|service| service["state"] == "stale")).await;
    let answer = get(stage.relay, "/").await;
    assert_eq!(answer.status, 503, "{answer:?}");
    assert!(answer.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    assert!(stage.service("web").is_some(), "its name is held");
    web.signal("CONT");
    until(async || Some(get(stage.relay, "/").await).filter(|answer| answer.status == 200)).await;
}

#[tokio::test]
async fn a_broker_that_restarts_finds_the_service_again() {
    let stage = Stage::new().await;
    let mut web = stage.web(mirror().await).await;
    assert_eq!(get(stage.relay, "/").await.status, 200);
    let Stage { world, mut broker, addr, relay } = stage;
    broker.signal("KILL");
    broker.exit_code().await;
    let (listen, relayed) = (addr.to_string(), relay.to_string());
    let args = ["broker", "--json", "--listen", &listen, "--relay-listen", &relayed];
    let mut command = world.tenure(&args);
    command.env("TENURE_LEASE_TTL_MS", "120000").env("TENURE_STALE_AFTER_MS", "1500");
    command.env("TENURE_PING_INTERVAL_MS", "500").env("TENURE_TICK_INTERVAL_MS", "500");
    let mut again = crate::common::proc::Proc::spawn("broker", command);
    again.until("ready", |line| line["event"] == "ready").await;
    until(async || Some(get(relay, "/").await).filter(|answer| answer.status == 200)).await;
    assert!(web.events("refused").is_empty());
}

/// A target that begins a long answer and goes on with it for ever.
pub(crate) async fn endless() -> std::net::SocketAddr {
    target(async |mut stream: TcpStream| {
        read_head(&mut stream).await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n").await;
        while stream.write_all(&[b'z'; 8192]).await.is_ok() {}
    })
    .await
}

#[tokio::test]
async fn a_download_is_cut_when_its_service_is_given_up() {
    let stage = Stage::new().await;
    let mut web = stage.web(endless().await).await;
    let mut stream = TcpStream::connect(stage.relay).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: web.localhost\r\n\r\n").await.unwrap();
    let mut piece = vec![0; 65_536];
    for _ in 0..20 {
        assert!(stream.read(&mut piece).await.unwrap() > 0);
    }
    web.signal("INT");
    let cut = async { while let Ok(1..) = stream.read(&mut piece).await {} };
    tokio::time::timeout(patience(), cut).await.expect("the download ends");
    assert_eq!(web.exit_code().await, Some(0));
    assert_eq!(get(stage.relay, "/").await.status, 404);
}

#[tokio::test]
async fn a_consumer_that_reads_nothing_holds_up_nobody_else() {
    let stage = Stage::new().await;
    let _endless = stage.web(endless().await).await;
    let _mirror = stage.expose(mirror().await, &["--http", "--name", "other"]).await;
    let mut stuck = Vec::new();
    for _ in 0..8 {
        let mut stream = TcpStream::connect(stage.relay).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: web.localhost\r\n\r\n").await.unwrap();
        let mut first = [0; 16];
        stream.read_exact(&mut first).await.unwrap();
        stuck.push(stream);
    }
    let request = b"GET / HTTP/1.1\r\nHost: other.localhost\r\nConnection: close\r\n\r\n";
    assert_eq!(ask(stage.relay, request).await.status, 200);
    // The same service, the same publisher's socket, another stream.
    let mut another = TcpStream::connect(stage.relay).await.unwrap();
    another.write_all(b"GET / HTTP/1.1\r\nHost: web.localhost\r\n\r\n").await.unwrap();
    let mut piece = vec![0; 65_536];
    for _ in 0..50 {
        assert!(another.read(&mut piece).await.unwrap() > 0);
    }
}

#[tokio::test]
async fn a_publisher_that_stops_reading_ends_in_an_answer() {
    let stage = Stage::with(&[("TENURE_RELAY_ANSWER_MS", "2000")]).await;
    let web = stage.web(mirror().await).await;
    // Asked while it still counts as online.
    web.signal("STOP");
    let answer = get(stage.relay, "/").await;
    assert!(matches!(answer.status, 503 | 504), "{answer:?}");
    web.signal("CONT");
    until(async || Some(get(stage.relay, "/").await).filter(|answer| answer.status == 200)).await;
}

#[tokio::test]
async fn a_target_that_never_answers_is_504() {
    let stage = Stage::with(&[("TENURE_RELAY_ANSWER_MS", "500")]).await;
    let silent = target(async |mut stream: TcpStream| {
        read_head(&mut stream).await;
        std::future::pending::<()>().await;
    })
    .await;
    let _web = stage.web(silent).await;
    let answer = get(stage.relay, "/").await;
    assert_eq!(answer.status, 504, "{answer:?}");
    assert!(answer.body.contains("web took the request"), "{answer:?}");
}

#[tokio::test]
async fn a_target_that_breaks_off_is_502() {
    let stage = Stage::new().await;
    let rude = target(async |mut stream: TcpStream| {
        read_head(&mut stream).await;
    })
    .await;
    let _web = stage.web(rude).await;
    assert_eq!(get(stage.relay, "/").await.status, 502);
}

/// A number of `/metrics`; none is zero.
async fn metric(stage: &Stage, name: &str) -> usize {
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", stage.addr);
    let text = ask(stage.addr, request.as_bytes()).await.body;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map_or(0, |number| number.parse().unwrap())
}

#[tokio::test]
async fn consumers_that_never_read_do_not_hold_more_than_all_may() {
    const BOUND: usize = 8 * 1024 * 1024;
    const CONSUMERS: usize = 80;
    let stage = Stage::with(&[("TENURE_MAX_BUFFERED_TOTAL", &BOUND.to_string())]).await;
    // To `/` a short answer, to anything else one that has no end.
    let endless = target(async |mut stream: TcpStream| {
        if read_head(&mut stream).await.starts_with("GET / ") {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
            return;
        }
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n").await;
        while stream.write_all(&[b'x'; 16 * 1024]).await.is_ok() {}
    })
    .await;
    let _web = stage.web(endless).await;
    let mut stuck = Vec::new();
    for _ in 0..CONSUMERS {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let mut stream = socket.connect(stage.relay).await.unwrap();
        stream.write_all(b"GET /much HTTP/1.1\r\nHost: web.localhost\r\n\r\n").await.unwrap();
        stuck.push(stream);
    }
    // What they do not read is counted, and some of them go before it is much more than all may hold.
    let let_go = "tenure_connections_let_go_total{kind=\"buffers\"}";
    let mut most = 0;
    until(async || {
        let held = metric(&stage, "tenure_buffered_bytes").await;
        assert!(held <= 2 * BOUND, "{held} bytes are held");
        most = most.max(held);
        let gone = metric(&stage, let_go).await;
        // A look now and then sees what they hold at last, and not each time that it is too much.
        (gone >= CONSUMERS / 2 && held <= BOUND && most > BOUND / 2).then_some(())
    })
    .await;
    // Whoever reads is served, and when they are gone nothing is held.
    assert_eq!(get(stage.relay, "/").await.body, "ok");
    drop(stuck);
    until(async || (metric(&stage, "tenure_buffered_bytes").await == 0).then_some(())).await;
    assert_eq!(get(stage.relay, "/").await.body, "ok");
}

#[tokio::test]
async fn a_head_that_does_not_come_and_a_body_that_does_not_are_given_up() {
    let stage = Stage::with(&[("TENURE_RELAY_IDLE_MS", "300")]).await;
    let _web = stage.web(mirror().await).await;
    // A body that stops half way.
    let half =
        b"POST / HTTP/1.1\r\nHost: web.localhost\r\nConnection: close\r\nContent-Length: 10\r\n\r\nhalf";
    let answer = ask(stage.relay, half).await;
    assert_eq!(answer.status, 408, "{answer:?}");
    // Heads that come a byte at a time, and never to an end: closed, and meanwhile others are served.
    let mut slow = TcpStream::connect(stage.relay).await.unwrap();
    slow.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
    assert_eq!(get(stage.relay, "/").await.status, 200);
    let closed = async {
        let mut all = Vec::new();
        let (mut reading, mut writing) = slow.split();
        let dripping = async {
            while writing.write_all(b"X").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            _ = reading.read_to_end(&mut all) => parse(&all),
            () = dripping => unreachable!(),
        }
    };
    let answer = tokio::time::timeout(patience(), closed).await.expect("it is closed");
    assert!(matches!(answer.status, 0 | 408), "{answer:?}");
    // So is one that looks like HTTP/2, and does not go on either.
    let answer = ask(stage.relay, b"PRI * HTTP/2.0\r\n\r\n").await;
    assert_eq!(answer.status, 0, "{answer:?}");
}
