//! Redis Streams, by `redis`.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::streams::StreamReadReply;
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo, Value};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::{Ground, library};
use crate::crowd::{Crowd, Notes};
use crate::peer::{About, Answer, Fut, PREFETCH, Peer, Place, Publish, Read, Readers};
use crate::server::{Line, Server, find_program, free_port};

/// The group of competing readers.
const ALL: &str = "all";
/// Batches whose acks may be on their way at a time.
const ACKING: usize = 4;
/// The field that holds a body.
const FIELD: &str = "b";

/// A running redis-server.
pub(super) struct Redis {
    about: About,
    server: Server,
    client: Client,
    address: String,
    _dir: TempDir,
}

/// Starts one that syncs its file before it answers, or one that syncs it every second; nothing when it is not installed.
pub(super) async fn start(ground: &Ground, always: bool) -> Result<Answer<Redis>> {
    let Some(program) = find_program("redis-server", &[]) else {
        return Ok(Answer::No("redis-server is not installed"));
    };
    let version = Line::new(&program).arg("--version").run()?;
    let version = version.split("v=").nth(1).and_then(|rest| rest.split_whitespace().next());
    let version = version.unwrap_or("unknown").to_owned();
    let dir = ground.fresh_dir()?;
    let port = free_port()?;
    let fsync = if always { "always" } else { "everysec" };
    let line = Line::new(program)
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--dir", &dir.path().display().to_string(), "--appendonly", "yes", "--appendfsync", fsync])
        .args(["--save", "", "--maxclients", "20000", "--auto-aof-rewrite-percentage", "0"]);
    let mut server = Server::start(line, dir.path())?;
    let info = format!("redis://127.0.0.1:{port}/").into_connection_info()?;
    // Otherwise a small write waits until the one before it is acknowledged.
    let client = Client::open(info.set_tcp_settings(TcpSettings::default().set_nodelay(true)))?;
    server
        .until_ready(async || {
            let mut connection = connect(&client).await?;
            let _: String = redis::cmd("PING").query_async(&mut connection).await?;
            Ok(())
        })
        .await?;
    let about = About {
        key: if always { "redis-always" } else { "redis-everysec" },
        name: if always {
            "Redis Streams, appendfsync always"
        } else {
            "Redis Streams, appendfsync everysec"
        },
        version,
        client: library("redis"),
        durable: if always {
            "synced to the disk (append-only file, before the reply)"
        } else {
            "in the page cache; the server syncs every second"
        },
        syncs: always,
        ack: "XACK answered, as durable as a publish; a fan-out has no acks, and a delivery counts when it was read",
        acks_answered: true,
        config: vec![
            format!("appendonly yes, appendfsync {fsync}, save \"\", no rewrite of the file during the run"),
            format!(
                "XADD; one or competing readers are a consumer group: XREADGROUP COUNT {PREFETCH} BLOCK, one XACK for \
                 what was read together, while the next read waits; nothing is deleted at an ack"
            ),
            format!(
                "a fan-out is XREAD COUNT {PREFETCH} BLOCK by each reader, which holds its position itself and acks nothing"
            ),
            "the client sets TCP_NODELAY".to_owned(),
        ],
    };
    let address = format!("127.0.0.1:{port}");
    Ok(Answer::Yes(Redis { about, server, client, address, _dir: dir }))
}

async fn connect(client: &Client) -> Result<MultiplexedConnection> {
    // A blocking read may last as long as it likes, and so may a sync.
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    client.get_multiplexed_async_connection_with_config(&config).await.context("connect to redis-server")
}

impl Peer for Redis {
    fn about(&self) -> &About {
        &self.about
    }

    fn pids(&self) -> Vec<u32> {
        self.server.pid().into_iter().collect()
    }

    fn open<'a>(&'a self, place: &'a Place) -> Fut<'a, ()> {
        Box::pin(async move {
            // Readers that each hold their own position need no group, and a stream is made by the first XADD.
            if !matches!(place.readers, Readers::Each(_)) {
                let mut connection = connect(&self.client).await?;
                let () = redis::cmd("XGROUP")
                    .arg("CREATE")
                    .arg(&place.name)
                    .arg(ALL)
                    .arg("0")
                    .arg("MKSTREAM")
                    .query_async(&mut connection)
                    .await?;
            }
            Ok(())
        })
    }

    fn purge<'a>(&'a self, place: &'a Place) -> Fut<'a, ()> {
        Box::pin(async move {
            let mut connection = connect(&self.client).await?;
            // Here goes what was read, too. The stream stays, and with it its group and everybody's positions.
            let _: i64 = redis::cmd("XTRIM")
                .arg(&place.name)
                .arg("MAXLEN")
                .arg(0)
                .query_async(&mut connection)
                .await?;
            Ok(())
        })
    }

    fn close<'a>(&'a self, place: &'a Place) -> Fut<'a, ()> {
        Box::pin(async move {
            let mut connection = connect(&self.client).await?;
            let _: i64 = redis::cmd("UNLINK").arg(&place.name).query_async(&mut connection).await?;
            Ok(())
        })
    }

    fn publishers<'a>(&'a self, place: &'a Place, count: usize) -> Fut<'a, Vec<Box<dyn Publish>>> {
        Box::pin(async move {
            let mut publishers: Vec<Box<dyn Publish>> = Vec::with_capacity(count);
            for _ in 0..count {
                let connection = connect(&self.client).await?;
                publishers.push(Box::new(Publisher { connection, stream: place.name.clone() }));
            }
            Ok(publishers)
        })
    }

    fn reader<'a>(&'a self, place: &'a Place, index: usize) -> Fut<'a, Box<dyn Read>> {
        Box::pin(async move {
            let mut command;
            let acks = if let Readers::Each(_) = place.readers {
                command = redis::cmd("XREAD");
                None
            } else {
                command = redis::cmd("XREADGROUP");
                command.arg("GROUP").arg(ALL).arg(format!("c{index}"));
                // A blocked read holds up what follows on its connection.
                Some(Acks { connection: connect(&self.client).await?, stream: place.name.clone() })
            };
            command.arg("COUNT").arg(PREFETCH).arg("BLOCK").arg(0).arg("STREAMS").arg(&place.name);
            let (give, batches) = mpsc::channel(1);
            let mut task = JoinSet::new();
            task.spawn(pull(connect(&self.client).await?, command, give));
            let reader = Reader { batches, acks, acking: FuturesUnordered::new(), _task: task };
            Ok(Box::new(reader) as Box<dyn Read>)
        })
    }

    fn kill(&mut self) -> Result<()> {
        self.server.kill()
    }

    fn start_again(&mut self) -> Result<()> {
        self.server.start_again()
    }

    fn crowd<'a>(&'a self, count: usize) -> Fut<'a, Answer<Box<dyn Crowd>>> {
        Box::pin(async move {
            let crowd = Blocked::start(&self.address, count).await?;
            Ok(Answer::Yes(Box::new(crowd) as Box<dyn Crowd>))
        })
    }
}

struct Publisher {
    connection: MultiplexedConnection,
    stream: String,
}

impl Publish for Publisher {
    fn publish<'a>(&'a self, body: &'a str) -> Fut<'a, ()> {
        Box::pin(async move {
            let mut connection = self.connection.clone();
            let mut command = redis::cmd("XADD");
            command.arg(&self.stream).arg("*").arg(FIELD).arg(body);
            let _: String = command.query_async(&mut connection).await?;
            Ok(())
        })
    }
}

/// What was read together: ids, and bodies where there are any.
type Batch = Vec<(String, Option<Vec<u8>>)>;

/// Reads go on while acks are on their way.
struct Reader {
    batches: mpsc::Receiver<Result<Batch>>,
    /// Nothing where a reader holds its position itself.
    acks: Option<Acks>,
    /// Acks that wait for their answers, at most [`ACKING`].
    acking: FuturesUnordered<Fut<'static, u64>>,
    _task: JoinSet<()>,
}

/// Reads from the beginning until nobody wants more. To a member of a group the beginning is what an earlier reader of its
/// name was given and has not acked; when there is no more of that, it reads what is new. To others it is all there is,
/// and a read that finds nothing waits.
/// A read that was begun is never given up, for what it was given would be held for it.
async fn pull(
    mut connection: MultiplexedConnection,
    command: redis::Cmd,
    batches: mpsc::Sender<Result<Batch>>,
) {
    let mut after = Some("0".to_owned());
    loop {
        let batch = take(&mut connection, command.clone(), after.as_deref().unwrap_or(">")).await;
        if after.is_some()
            && let Ok(batch) = &batch
        {
            after = batch.last().map(|(id, _)| id.clone());
            if after.is_none() {
                continue;
            }
        }
        let failed = batch.is_err();
        if batches.send(batch).await.is_err() || failed {
            return;
        }
    }
}

/// One read of what comes after this id.
async fn take(connection: &mut MultiplexedConnection, mut command: redis::Cmd, after: &str) -> Result<Batch> {
    let reply: StreamReadReply = command.arg(after).query_async(connection).await?;
    let entries = reply.keys.into_iter().flat_map(|key| key.ids);
    let batch = entries.map(|mut entry| match entry.map.remove(FIELD) {
        Some(Value::BulkString(body)) => (entry.id, Some(body)),
        _ => (entry.id, None),
    });
    Ok(batch.collect())
}

/// Where acks go.
struct Acks {
    connection: MultiplexedConnection,
    stream: String,
}

impl Acks {
    fn ack(&self, ids: Vec<String>) -> Fut<'static, u64> {
        let mut command = redis::cmd("XACK");
        command.arg(&self.stream).arg(ALL).arg(&ids);
        let mut connection = self.connection.clone();
        Box::pin(async move {
            let _: u64 = command.query_async(&mut connection).await?;
            Ok(ids.len() as u64)
        })
    }
}

impl Read for Reader {
    fn read<'a>(&'a mut self, seen: &'a mut (dyn FnMut(&[u8]) + Send)) -> Fut<'a, u64> {
        Box::pin(async move {
            loop {
                let room = self.acking.len() < ACKING;
                // Both are cancel-safe: acks under way stay in `acking`, and `recv` takes nothing when it loses.
                tokio::select! {
                    Some(acked) = self.acking.next() => return acked,
                    batch = self.batches.recv(), if room => {
                        let batch = batch.context("the reader has ended")??;
                        let mut ids = Vec::with_capacity(batch.len());
                        for (id, body) in batch {
                            if let Some(body) = body {
                                seen(&body);
                            }
                            ids.push(id);
                        }
                        match &self.acks {
                            Some(acks) => self.acking.push(acks.ack(ids)),
                            None => return Ok(ids.len() as u64),
                        }
                    }
                }
            }
        })
    }
}

/// Connections that each block on a stream of their own; there is no session to come back to.
struct Blocked {
    sockets: Vec<TcpStream>,
    notes: Arc<Notes>,
}

impl Blocked {
    async fn start(address: &str, count: usize) -> Result<Blocked> {
        let notes = Notes::new(count);
        let mut sockets = Vec::with_capacity(count);
        for index in 0..count {
            let mut socket = TcpStream::connect(address).await?;
            socket.set_nodelay(true)?;
            let key = format!("mail:{index}");
            let id = format!("CLIENT SETNAME s{index}\r\n");
            socket.write_all(id.as_bytes()).await?;
            let mut answer = [0; 16];
            let read = tokio::time::timeout(Duration::from_secs(30), socket.read(&mut answer)).await??;
            anyhow::ensure!(answer[..read].starts_with(b"+OK"), "redis-server does not greet");
            socket.write_all(format!("XREAD BLOCK 0 STREAMS {key} $\r\n").as_bytes()).await?;
            notes.attached(index);
            sockets.push(socket);
        }
        Ok(Blocked { sockets, notes })
    }
}

impl Crowd for Blocked {
    fn count(&self) -> usize {
        self.sockets.len()
    }

    fn notes(&self) -> &Arc<Notes> {
        &self.notes
    }

    fn what(&self) -> &'static str {
        "a connection that waits in XREAD BLOCK on a stream of its own"
    }

    fn no_return(&self) -> Option<&'static str> {
        Some(
            "a session ends with its connection: what comes back and reads on from where it was would be our own program, \
             and we would measure ourselves; ws, whose loop is ours too, is there as the floor of bare sockets",
        )
    }

    fn cut(&self) -> Fut<'_, ()> {
        Box::pin(async { Err(anyhow!("a connection is no session")) })
    }

    fn send<'a>(&'a self, _to: usize, _number: u64) -> Fut<'a, ()> {
        Box::pin(async { Err(anyhow!("a connection is no session")) })
    }

    fn presence(&self) -> Option<u64> {
        None
    }

    fn presence_by(&self) -> &'static str {
        "none"
    }
}
