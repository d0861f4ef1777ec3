//! A hostile client's toolbox: keys, sockets and HTTP by hand. Frames are built and read as plain JSON from the
//! protocol's text, never through the broker's own types, so that both sides cannot share a mistake.

pub(crate) mod http;
pub(crate) mod keys;
pub(crate) mod mail;
pub(crate) mod mirror;
pub(crate) mod pipe;
pub(crate) mod sock;
pub(crate) mod wire;

use std::net::SocketAddr;
use std::time::Duration;

use tenure_broker::{Broker, Config};

pub(crate) use keys::Who;
pub(crate) use sock::{Codec, Dial, Got, Sock};

/// How long anything may take that should happen at all. Never slept: only how long a failing test hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// A lease so long that nothing expires while a test that is not about time runs.
pub(crate) const LONG: u64 = 60_000;

/// A broker with state in memory.
pub(crate) async fn broker(lease_ttl_ms: u64) -> Broker {
    Broker::start(Config::ephemeral(lease_ttl_ms)).await.expect("start")
}

/// Somebody new who has joined, on a fresh socket.
pub(crate) async fn join(addr: SocketAddr, name: &str) -> (Sock, Who) {
    let who = Who::new(name);
    let mut sock = Sock::open(addr).await;
    sock.join(&who).await;
    (sock, who)
}

/// Whatever was done to it, the broker serves the next good client and says that it lives.
pub(crate) async fn still_serves(addr: SocketAddr) {
    let (mut sock, _) = join(addr, "bystander").await;
    assert!(sock.call("ping", serde_json::json!({})).await["ts"].is_u64());
    sock.bye().await;
    assert_eq!(http::get(addr, "/livez").await.status, 200);
}
