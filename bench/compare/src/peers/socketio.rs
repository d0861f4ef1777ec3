//! Socket.IO with connection state recovery, server and clients on Node: for sessions and presence only.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;
use tokio::sync::oneshot;

use super::{Ground, node};
use crate::crowd::{Crowd, Notes};
use crate::peer::{About, Answer, Fut, Peer, Place, Publish, Read};
use crate::server::{Line, READY, Server, free_port};

const SERVER: &str = include_str!("../node/socketio-server.js");
const CLIENTS: &str = include_str!("../node/socketio-clients.js");

/// A running server.
pub(super) struct SocketIo {
    about: About,
    server: Server,
    port: u16,
    clients: Line,
    dir: TempDir,
}

/// Starts one; nothing when it is not installed.
pub(super) async fn start(ground: &Ground) -> Result<Answer<SocketIo>> {
    let client = match node(ground, "socket.io-client") {
        Answer::Yes((_, version)) => format!("socket.io-client {version}"),
        Answer::No(why) => return Ok(Answer::No(why)),
    };
    let (node, version) = match node(ground, "socket.io") {
        Answer::Yes(found) => found,
        Answer::No(why) => return Ok(Answer::No(why)),
    };
    let dir = ground.fresh_dir()?;
    let [server, clients] = [("server.js", SERVER), ("clients.js", CLIENTS)].map(|(name, source)| {
        let file = dir.path().join(name);
        std::fs::write(&file, source).map(|()| node.clone().arg(file.display().to_string()))
    });
    let port = free_port()?;
    let mut server = Server::start(server?.arg(port.to_string()), dir.path())?;
    let address = format!("127.0.0.1:{port}");
    server.until_ready(async || Ok(tokio::net::TcpStream::connect(&address).await?)).await?;
    let about = About {
        key: "socketio",
        name: "Socket.IO, state recovery",
        version,
        client,
        durable: "nothing; what is missed is kept in memory for two minutes",
        syncs: false,
        ack: "none",
        acks_answered: false,
        config: vec![
            "WebSocket only, no compression, connectionStateRecovery for 120 s".to_owned(),
            "presence by hand: `left` 90 s after a disconnect, `joined` unless it is recovered".to_owned(),
        ],
    };
    Ok(Answer::Yes(SocketIo { about, server, port, clients: clients?, dir }))
}

fn none<T>() -> Result<T> {
    bail!("Socket.IO keeps no messages")
}

impl Peer for SocketIo {
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
            let crowd = Clients::start(self, count)?;
            let all = async {
                while crowd.notes.ever() < count {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            tokio::time::timeout(READY * 5, all).await.context("Socket.IO clients do not connect")?;
            Ok(Answer::Yes(Box::new(crowd) as Box<dyn Crowd>))
        })
    }
}

/// Sends that wait for their confirmation, by number.
type Waiting = Arc<Mutex<BTreeMap<u64, oneshot::Sender<()>>>>;

/// Clients in a process of their own, driven by lines.
struct Clients {
    count: usize,
    child: Child,
    commands: Mutex<ChildStdin>,
    notes: Arc<Notes>,
    presence: Arc<AtomicU64>,
    waiting: Waiting,
}

impl Clients {
    fn start(server: &SocketIo, count: usize) -> Result<Clients> {
        let url = format!("http://127.0.0.1:{}", server.port);
        let line = server.clients.clone().arg(url).arg(count.to_string());
        let mut command: Command = line.command();
        let said = std::fs::File::create(server.dir.path().join("clients.log"))?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(said);
        let mut child = command.spawn().context("start the clients")?;
        let commands = child.stdin.take().context("the clients have no stdin")?;
        let lines = child.stdout.take().context("the clients have no stdout")?;
        let (notes, presence, waiting) = (Notes::new(count), Arc::<AtomicU64>::default(), Waiting::default());
        let clients = Clients {
            count,
            child,
            commands: Mutex::new(commands),
            notes: notes.clone(),
            presence: presence.clone(),
            waiting: waiting.clone(),
        };
        // The thread ends with the process.
        std::thread::spawn(move || {
            for line in BufReader::new(lines).lines().map_while(Result::ok) {
                let (verb, number) = line.split_once(' ').unwrap_or((&line, "0"));
                let Ok(number) = number.parse::<u64>() else { continue };
                match verb {
                    "a" => notes.attached(number as usize),
                    "r" => notes.received(number),
                    "p" => _ = presence.fetch_add(1, Ordering::Relaxed),
                    "c" => {
                        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
                        if let Some(done) = waiting.remove(&number) {
                            let _ = done.send(());
                        }
                    }
                    _ => {}
                }
            }
        });
        Ok(clients)
    }

    fn say(&self, line: &str) -> Result<()> {
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(commands, "{line}").context("tell the clients")
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Crowd for Clients {
    fn count(&self) -> usize {
        self.count
    }

    fn notes(&self) -> &Arc<Notes> {
        &self.notes
    }

    fn what(&self) -> &'static str {
        "a socket in a room of its own"
    }

    fn cut(&self) -> Fut<'_, ()> {
        Box::pin(async move { self.say("cut") })
    }

    fn send<'a>(&'a self, to: usize, number: u64) -> Fut<'a, ()> {
        Box::pin(async move {
            let (done, confirmed) = oneshot::channel();
            self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(number, done);
            self.say(&format!("send {to} {number}"))?;
            confirmed.await.context("the clients are gone")
        })
    }

    fn presence(&self) -> Option<u64> {
        Some(self.presence.load(Ordering::Relaxed))
    }

    fn presence_by(&self) -> &'static str {
        "by hand, 90 s late, in the server's memory"
    }
}
