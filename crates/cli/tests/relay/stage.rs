//! A broker with its relay, and what is exposed through it.

use std::net::SocketAddr;
use std::process::Command;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::common::World;
use crate::common::proc::Proc;

/// A broker, its relay, and the commands that speak with them.
pub(crate) struct Stage {
    /// Before the directory that its files are in: it says so when they are taken away.
    pub(crate) broker: Proc,
    pub(crate) world: World,
    pub(crate) addr: SocketAddr,
    pub(crate) relay: SocketAddr,
}

impl Stage {
    pub(crate) async fn new() -> Stage {
        Stage::with(&[]).await
    }

    /// With these variables for the broker; a lease outlives everything, and silence is noticed soon.
    pub(crate) async fn with(env: &[(&str, &str)]) -> Stage {
        let world = World::new();
        let mut command = world.tenure(&["broker", "--json", "--listen", "127.0.0.1:0"]);
        command
            .env("TENURE_LEASE_TTL_MS", "120000")
            .env("TENURE_PING_INTERVAL_MS", "500")
            .env("TENURE_STALE_AFTER_MS", "1500")
            .env("TENURE_TICK_INTERVAL_MS", "500")
            .envs(env.iter().copied());
        let mut broker = Proc::spawn("broker", command);
        let ready = broker.until("ready", |line| line["event"] == "ready").await;
        let addr = |field: &str| ready[field].as_str().unwrap().parse().unwrap();
        Stage { addr: addr("listen"), relay: addr("relay"), world, broker }
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = self.world.tenure(args);
        command.env("TENURE_BROKER", format!("ws://{}", self.addr));
        command
    }

    /// Exposes `target`, and waits until it is reachable.
    pub(crate) async fn expose(&self, target: SocketAddr, more: &[&str]) -> Proc {
        let target = target.to_string();
        let args = [&["expose", &target, "--json"], more].concat();
        let mut proc = Proc::spawn("expose", self.command(&args));
        let ready = proc.until("ready", |line| line["event"] == "ready").await;
        assert_eq!(ready["target"], target.as_str());
        proc
    }

    /// Exposes `target` over HTTP as `web`.
    pub(crate) async fn web(&self, target: SocketAddr) -> Proc {
        self.expose(target, &["--http", "--name", "web"]).await
    }

    /// What `tenure services --json` says of `name`.
    pub(crate) fn service(&self, name: &str) -> Option<Value> {
        let output = self.command(&["services", "--all", "--json"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let services: Value = serde_json::from_str(&text).unwrap();
        let list = services.as_array().or_else(|| services["services"].as_array()).expect("a list").clone();
        list.into_iter().find(|service| service["name"] == name)
    }
}

/// A target that does the same with every connection.
pub(crate) async fn target<F, Fut>(serve: F) -> SocketAddr
where
    F: Fn(TcpStream) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    addr
}

/// An address where nobody listens.
pub(crate) async fn nowhere() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

/// Reads a head, up to its empty line.
pub(crate) async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8(head).unwrap()
}

/// A target that answers each request with its head, and its body if that has a length or comes in chunks.
pub(crate) async fn mirror() -> SocketAddr {
    target(async |mut stream: TcpStream| {
        let head = read_head(&mut stream).await;
        let lower = head.to_ascii_lowercase();
        let mut body = Vec::new();
        if let Some(at) = lower.find("content-length: ") {
            let length = lower[at + 16..].split("\r\n").next().unwrap().parse().unwrap();
            body = vec![0; length];
            if stream.read_exact(&mut body).await.is_err() {
                return;
            }
        } else if lower.contains("transfer-encoding: chunked") {
            while !body.ends_with(b"0\r\n\r\n") {
                match stream.read_u8().await {
                    Ok(byte) => body.push(byte),
                    Err(_) => return,
                }
            }
        }
        let answer = [head.as_bytes(), &body].concat();
        let first = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", answer.len());
        let _ = stream.write_all(&[first.as_bytes(), &answer].concat()).await;
    })
    .await
}
