//! Plain HTTP, and the door to the sockets: Host, Origin, subprotocol.

use serde_json::json;
use tenure_broker::{Broker, Config};

use crate::common::http::{get, raw, upgrade};
use crate::common::{Codec, Dial, LONG, Who, broker, join, still_serves};

#[tokio::test]
async fn a_host_that_is_not_ours_reads_neither_numbers_nor_document() {
    let token = Some("a-token-of-the-operator".to_owned());
    let config = Config { admin_token: token, ..Config::ephemeral(LONG) };
    let broker = Broker::start(config).await.expect("start");
    let addr = broker.addr();
    for path in ["/metrics", "/v1/openapi.json"] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
        assert_eq!(raw(addr, &request).await.status, 403, "{path}");
        assert_eq!(get(addr, path).await.status, 200, "{path}");
    }
    broker.stop("end").await;
}

#[tokio::test]
async fn health_and_metrics_are_there_and_nothing_else_is() {
    let broker = broker(LONG).await;
    let addr = broker.addr();
    for path in ["/livez", "/healthz", "/readyz"] {
        assert_eq!(get(addr, path).await.status, 200, "{path}");
    }
    for path in
        ["/", "/v1", "/v1/ws/", "/v2/ws", "/admin/../livez", "/livez/x", "/test/echo", "/%2e%2e/livez"]
    {
        assert_eq!(get(addr, path).await.status, 404, "{path}");
    }
    let (_sock, who) = join(addr, "counted").await;
    let metrics = get(addr, "/metrics").await;
    assert_eq!(metrics.status, 200);
    assert!(metrics.head.contains("openmetrics-text"), "{}", metrics.head);
    assert!(metrics.body.ends_with("# EOF\n"), "{}", metrics.body);
    let value = |name: &str| {
        let line = metrics.body.lines().find(|line| line.starts_with(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("{name} in {}", metrics.body)).rsplit_once(' ').unwrap().1.to_owned()
    };
    assert_eq!((value("tenure_sessions"), value("tenure_sessions_online")), ("1".into(), "1".into()));
    assert_eq!(value("tenure_sockets"), "1");
    assert!(metrics.body.contains(r#"tenure_events_total{kind="identity_issued"} 1"#), "{}", metrics.body);
    for line in metrics.body.lines().filter(|line| !line.starts_with('#')) {
        assert!(line.starts_with("tenure_"), "{line}");
    }
    assert!(!metrics.body.contains(&who.id()[..16]), "no session ids as labels");
}

#[tokio::test]
async fn a_get_that_is_no_upgrade_and_an_upgrade_that_is_no_get_are_refused() {
    let broker = broker(LONG).await;
    let addr = broker.addr();
    assert!((400..500).contains(&get(addr, "/v1/ws").await.status));
    let post = raw(addr, &format!("POST /livez HTTP/1.1\r\nHost: {addr}\r\nContent-Length: 0\r\n\r\n")).await;
    assert_eq!(post.status, 405);
    let old = upgrade(addr, &[&format!("Host: {addr}"), "Sec-WebSocket-Version: 8"]).await;
    assert!((400..500).contains(&old.status), "{}", old.head);
    for garbage in ["not http at all\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "\u{16}\u{3}\u{1}\0\0\r\n\r\n"] {
        assert_ne!(raw(addr, garbage).await.status, 200);
    }
    let endless = format!("GET /livez HTTP/1.1\r\nHost: {addr}\r\nX: {}\r\n\r\n", "x".repeat(64 * 1024));
    assert_ne!(raw(addr, &endless).await.status, 200);
    still_serves(addr).await;
}

#[tokio::test]
async fn a_foreign_host_or_none_is_turned_away() {
    let mut config = Config::ephemeral(LONG);
    config.public_hosts = vec!["mesh.example".into(), "any.example:*".into()];
    let broker = Broker::start(config).await.unwrap();
    let (addr, port) = (broker.addr(), broker.addr().port());
    let status = async |host: &str| upgrade(addr, &[&format!("Host: {host}")]).await.status;
    for theirs in ["evil.example", "evil.example:80", "127.0.0.1", "localhost:1", "127.0.0.1.evil.example"] {
        assert_eq!(status(theirs).await, 403, "{theirs}");
    }
    assert_eq!(status(&format!("evil.example:{port}")).await, 403, "the name decides, not the port");
    assert_eq!(status("mesh.example:81").await, 403, "a public host without a port is without a port");
    assert_eq!(status("").await, 403);
    for ours in [format!("127.0.0.1:{port}"), format!("localhost:{port}"), "any.example:9".into()] {
        assert_eq!(status(&ours).await, 101, "{ours}");
    }
    assert!(matches!(upgrade(addr, &[]).await.status, 400 | 403), "no Host at all");
    let both = upgrade(addr, &[&format!("Host: {addr}"), "Host: evil.example"]).await;
    assert!(matches!(both.status, 400 | 403), "two Hosts: {}", both.head);
    // Behind a proxy the proof names the public host.
    let mut sock = Dial { host: "mesh.example".into(), ..Dial::to(addr) }.open().await.unwrap();
    assert_eq!(sock.join(&Who::new("through a proxy")).await["lease"], "new");
    // Also when the proxy rewrote the Host on its way.
    let mut sock = Dial::to(addr).open().await.unwrap();
    let hello = Who::new("rewritten").hello(&sock.challenge, "mesh.example");
    assert_eq!(sock.hello(hello).await["lease"], "new");
    still_serves(addr).await;
}

#[tokio::test]
async fn a_web_page_may_not_join_unless_it_is_ours_or_listed() {
    let mut config = Config::ephemeral(LONG);
    config.allowed_origins = vec!["https://app.example".into()];
    let broker = Broker::start(config).await.unwrap();
    let addr = broker.addr();
    let dial = async |origin: &str| Dial { origin: Some(origin.into()), ..Dial::to(addr) }.open().await;
    for theirs in [
        "https://evil.example",
        "null",
        "http://localhost",
        "http://127.0.0.1:1",
        "https://app.example.evil.example",
        "https://app.example:8443",
        "http://app.example",
        "file://",
        "",
    ] {
        assert_eq!(dial(theirs).await.err(), Some(403), "{theirs:?}");
    }
    // Same-origin is the Host that was sent, not merely another of our names.
    assert_eq!(dial(&format!("http://localhost:{}", addr.port())).await.err(), Some(403));
    for ours in [format!("http://{addr}"), "https://app.example".into()] {
        let mut sock = dial(&ours).await.expect("our own page");
        assert_eq!(sock.join(&Who::new(&ours)).await["lease"], "new");
    }
    let twice = upgrade(
        addr,
        &[&format!("Host: {addr}"), &format!("Origin: http://{addr}"), "Origin: https://evil.example"],
    )
    .await;
    assert_ne!(twice.status, 101, "two Origins");
    still_serves(addr).await;
}

#[tokio::test]
async fn the_subprotocol_chooses_the_codec() {
    let broker = broker(LONG).await;
    let dial = async |offer: &str| Dial::to(broker.addr()).offering(offer).open().await;
    for unknown in ["tenure.v2.json", "chat", "tenure.v1", "TENURE.V1.JSON"] {
        assert_eq!(dial(unknown).await.err(), Some(400), "{unknown}");
    }
    for (offer, codec) in [
        ("tenure.v1.json", Codec::Json),
        ("tenure.v1.msgpack", Codec::MsgPack),
        ("chat, tenure.v1.msgpack", Codec::MsgPack),
    ] {
        let mut sock = dial(offer).await.expect(offer);
        assert_eq!(sock.codec, codec, "{offer}");
        assert_eq!(sock.join(&Who::new(offer)).await["lease"], "new");
    }
    // Both: whichever the broker likes, so long as it speaks what it says.
    let mut sock = dial("tenure.v1.msgpack, tenure.v1.json").await.expect("either");
    assert_eq!(sock.join(&Who::new("either")).await["lease"], "new");
    // Nothing is compressed, whoever offers it.
    let host = format!("Host: {}", broker.addr());
    let offer = "Sec-WebSocket-Extensions: permessage-deflate";
    let plain = upgrade(broker.addr(), &[&host, offer]).await;
    assert_eq!((plain.status, plain.head.contains("sec-websocket-extensions")), (101, false));
    // None asked for is JSON.
    let mut sock = Dial::to(broker.addr()).open().await.unwrap();
    assert_eq!(sock.codec, Codec::Json);
    assert!(sock.join(&Who::new("default")).await["snapshot"].is_object());
    assert!(sock.call("health", json!({})).await["uptimeMs"].is_u64());
    still_serves(broker.addr()).await;
}
