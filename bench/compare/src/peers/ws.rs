//! Bare WebSocket echoes: `ws` on Node, and the floor, which is the library that our broker uses.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use futures_util::{SinkExt, StreamExt};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

use super::nats::jitter;
use super::{Ground, library, node};
use crate::crowd::{Crowd, Notes};
use crate::peer::{About, Answer, Fut, Peer, Place, Publish, Read};
use crate::server::{Line, READY, Server, free_port};

const SERVER: &str = include_str!("../node/ws-server.js");
/// Bytes of a client's buffers, and of the one message that it has echoed.
const BUFFER: usize = 4 * 1024;
const ECHO: usize = 200;
/// Sockets that are opened at a time.
const OPENING: usize = 64;

/// A running echo.
pub(super) struct Ws {
    about: About,
    server: Server,
    address: String,
    _dir: TempDir,
}

/// Starts `ws` on Node; nothing when it is not installed.
pub(super) async fn start_node(ground: &Ground) -> Result<Answer<Ws>> {
    let (node, version) = match node(ground, "ws") {
        Answer::Yes(found) => found,
        Answer::No(why) => return Ok(Answer::No(why)),
    };
    let dir = ground.fresh_dir()?;
    let file = dir.path().join("server.js");
    std::fs::write(&file, SERVER)?;
    let port = free_port()?;
    let line = node.arg(file.display().to_string()).arg(port.to_string());
    let about = About {
        key: "ws",
        name: "ws on Node, bare echo",
        version,
        client: library("tungstenite"),
        durable: "nothing",
        syncs: false,
        ack: "none",
        acks_answered: false,
        config: vec!["no compression".to_owned()],
    };
    started(about, line, port, dir).await
}

/// Starts the floor: the bare server of this bench.
pub(super) async fn start_floor(ground: &Ground) -> Result<Answer<Ws>> {
    let dir = ground.fresh_dir()?;
    let port = free_port()?;
    let us = std::env::current_exe().context("find this program")?;
    let line = Line::new(us).arg("floor-server").arg("--listen").arg(format!("127.0.0.1:{port}"));
    let about = About {
        key: "floor-ws",
        name: "floor: bare WebSocket echo",
        version: env!("CARGO_PKG_VERSION").to_owned(),
        client: library("tungstenite"),
        durable: "nothing",
        syncs: false,
        ack: "none",
        acks_answered: false,
        config: vec!["hyper, axum and tungstenite with the broker's buffers".to_owned()],
    };
    started(about, line, port, dir).await
}

async fn started(about: About, line: Line, port: u16, dir: TempDir) -> Result<Answer<Ws>> {
    let mut server = Server::start(line, dir.path())?;
    let address = format!("127.0.0.1:{port}");
    server.until_ready(async || Ok(TcpStream::connect(&address).await?)).await?;
    Ok(Answer::Yes(Ws { about, server, address, _dir: dir }))
}

fn none<T>() -> Result<T> {
    bail!("an echo keeps no messages")
}

impl Peer for Ws {
    fn about(&self) -> &About {
        &self.about
    }

    fn pids(&self) -> Vec<u32> {
        self.server.pid().into_iter().collect()
    }

    fn keeps_messages(&self) -> bool {
        false
    }

    fn open<'a>(&'a self, _place: &'a Place) -> Fut<'a, ()> {
        Box::pin(async { none() })
    }

    fn purge<'a>(&'a self, _place: &'a Place) -> Fut<'a, ()> {
        Box::pin(async { none() })
    }

    fn close<'a>(&'a self, _place: &'a Place) -> Fut<'a, ()> {
        Box::pin(async { none() })
    }

    fn publishers<'a>(&'a self, _place: &'a Place, _count: usize) -> Fut<'a, Vec<Box<dyn Publish>>> {
        Box::pin(async { none() })
    }

    fn reader<'a>(&'a self, _place: &'a Place, _index: usize) -> Fut<'a, Box<dyn Read>> {
        Box::pin(async { none() })
    }

    fn kill(&mut self) -> Result<()> {
        self.server.kill()
    }

    fn start_again(&mut self) -> Result<()> {
        self.server.start_again()
    }

    fn crowd<'a>(&'a self, count: usize) -> Fut<'a, Answer<Box<dyn Crowd>>> {
        Box::pin(async move {
            let crowd = Sockets::start(&self.address, count).await?;
            Ok(Answer::Yes(Box::new(crowd) as Box<dyn Crowd>))
        })
    }
}

/// Sockets that are opened again when they break; nothing else is kept.
struct Sockets {
    count: usize,
    notes: Arc<Notes>,
    cut: watch::Sender<u64>,
    _tasks: JoinSet<()>,
}

impl Sockets {
    async fn start(address: &str, count: usize) -> Result<Sockets> {
        let (notes, cut, mut tasks) = (Notes::new(count), watch::Sender::new(0), JoinSet::new());
        for from in (0..count).step_by(OPENING) {
            let wanted = count.min(from + OPENING);
            for index in from..wanted {
                tasks.spawn(keep(address.to_owned(), index, notes.clone(), cut.subscribe()));
            }
            let all = async {
                while notes.ever() < wanted {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            };
            tokio::time::timeout(READY, all).await.context("sockets do not open")?;
        }
        Ok(Sockets { count, notes, cut, _tasks: tasks })
    }
}

async fn keep(address: String, index: usize, notes: Arc<Notes>, mut cut: watch::Receiver<u64>) {
    let mut failures = 1;
    loop {
        // Both may be cancelled: whatever is lost with a socket is lost with it.
        tokio::select! {
            ended = hold(&address, index, &notes) => failures = if ended.is_ok() { 1 } else { failures + 1 },
            _ = cut.changed() => failures = 1,
        }
        tokio::time::sleep(jitter(failures)).await;
    }
}

/// Opens a socket, has one message echoed, and reads until it ends.
async fn hold(address: &str, index: usize, notes: &Notes) -> Result<()> {
    let stream = TcpStream::connect(address).await?;
    let config = WebSocketConfig::default().read_buffer_size(BUFFER).write_buffer_size(BUFFER);
    let url = format!("ws://{address}/");
    let (mut ws, _) = tokio_tungstenite::client_async_with_config(url, stream, Some(config)).await?;
    ws.send(Message::text("e".repeat(ECHO))).await?;
    let answer = ws.next().await.context("the echo closed")??;
    ensure!(answer.len() == ECHO, "the echo is wrong");
    notes.attached(index);
    while let Some(Ok(_)) = ws.next().await {}
    Ok(())
}

impl Crowd for Sockets {
    fn count(&self) -> usize {
        self.count
    }

    fn notes(&self) -> &Arc<Notes> {
        &self.notes
    }

    fn what(&self) -> &'static str {
        "a socket, and nothing behind it"
    }

    fn sends(&self) -> bool {
        false
    }

    fn cut(&self) -> Fut<'_, ()> {
        Box::pin(async move {
            // A count, not a call: whoever is busy just now sees it later.
            self.cut.send_modify(|cuts| *cuts += 1);
            Ok(())
        })
    }

    fn send<'a>(&'a self, _to: usize, _number: u64) -> Fut<'a, ()> {
        Box::pin(async { Err(anyhow!("an echo sends to nobody else")) })
    }

    fn presence(&self) -> Option<u64> {
        None
    }

    fn presence_by(&self) -> &'static str {
        "none"
    }
}
