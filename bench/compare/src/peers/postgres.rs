//! PostgreSQL as a queue, the way people do it by hand: a table, `FOR UPDATE SKIP LOCKED`, by `tokio-postgres`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use futures_util::future::join;
use tempfile::TempDir;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls, Statement};

use super::{Ground, library};
use crate::crowd::{Crowd, Notes};
use crate::peer::{About, Answer, Fut, PREFETCH, Peer, Place, Publish, Read, Readers};
use crate::server::{Line, Server, find_program, free_port};

/// Who runs the server where we are root.
const USER: &str = "postgres";
/// How long a reader that found nothing waits before it looks again.
const POLL: Duration = Duration::from_millis(1);
/// Connections that the server allows.
const CONNECTIONS: usize = 1_200;
/// Sessions of a crowd that connect at a time.
const CONNECTING: usize = 16;

/// A running server.
pub(super) struct Postgres {
    about: About,
    server: Server,
    port: u16,
    _dir: TempDir,
}

/// Starts one; nothing when it is not installed.
pub(super) async fn start(ground: &Ground) -> Result<Answer<Postgres>> {
    let folders = installed();
    let (Some(initdb), Some(program)) =
        (find_program("initdb", &folders), find_program("postgres", &folders))
    else {
        return Ok(Answer::No("postgresql is not installed"));
    };
    let dir = ground.fresh_dir()?;
    let data = dir.path().join("data");
    std::fs::create_dir(&data)?;
    give(&data, dir.path())?;
    let place = data.display().to_string();
    Line::new(initdb)
        .args(["-D", &place, "-U", "bench", "-A", "trust", "-E", "UTF8", "--locale=C"])
        .by_user(USER)
        .run()
        .context("make a database")?;
    let port = free_port()?;
    let mut line = Line::new(&program).args(["-D", &place, "-p", &port.to_string(), "-k", ""]);
    for setting in [
        "listen_addresses=127.0.0.1",
        "fsync=on",
        "synchronous_commit=on",
        "shared_buffers=512MB",
        "max_wal_size=8GB",
        "checkpoint_timeout=15min",
        "autovacuum_naptime=5s",
    ] {
        line = line.args(["-c", setting]);
    }
    let line = line.args(["-c", &format!("max_connections={CONNECTIONS}")]).by_user(USER);
    let mut server = Server::start(line, dir.path())?;
    let client = server.until_ready(async || connect(port).await).await?;
    let version: String = client.query_one("SHOW server_version", &[]).await?.get(0);
    let about = About {
        key: "postgres",
        name: "PostgreSQL, SKIP LOCKED",
        version: version.split_whitespace().next().unwrap_or("unknown").to_owned(),
        client: library("tokio-postgres"),
        durable: "synced to the disk (the write-ahead log, at commit)",
        syncs: true,
        ack: "DELETE committed, as durable as a publish",
        acks_answered: true,
        config: vec![
            "fsync on, synchronous_commit on, shared_buffers 512MB, max_wal_size 8GB, autovacuum every 5 s"
                .to_owned(),
            "one INSERT and one commit a message; prepared statements, pipelined on each connection"
                .to_owned(),
            format!(
                "a reader takes up to {PREFETCH} rows with SELECT … FOR UPDATE SKIP LOCKED, deletes them and commits, in two \
                 round trips: BEGIN with SELECT, DELETE with COMMIT"
            ),
            "a reader that found nothing looks again after 1 ms; NOTIFY would let commits through one at a time"
                .to_owned(),
            "a fan-out is a row for each reader, written by one INSERT … SELECT".to_owned(),
        ],
    };
    Ok(Answer::Yes(Postgres { about, server, port, _dir: dir }))
}

/// Where Debian puts what is not on the path, newest version first.
fn installed() -> Vec<PathBuf> {
    let Ok(versions) = std::fs::read_dir("/usr/lib/postgresql") else { return Vec::new() };
    let mut folders: Vec<PathBuf> = versions.flatten().map(|entry| entry.path().join("bin")).collect();
    folders.sort();
    folders.reverse();
    folders
}

/// Lets the server's user have `data`, and pass through `dir` to it.
fn give(data: &std::path::Path, dir: &std::path::Path) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755))?;
        Line::new("chown").args([USER, &data.display().to_string()]).run()?;
    }
    Ok(())
}

async fn connect(port: u16) -> Result<Client> {
    let config = format!("host=127.0.0.1 port={port} user=bench dbname=postgres");
    let (client, connection) =
        tokio_postgres::connect(&config, NoTls).await.context("connect to PostgreSQL")?;
    // It ends with its client.
    tokio::spawn(connection);
    Ok(client)
}

/// A table's name: letters, digits and underscores.
fn table(place: &Place) -> String {
    place.name.replace(|letter: char| !letter.is_ascii_alphanumeric(), "_")
}

impl Peer for Postgres {
    fn about(&self) -> &About {
        &self.about
    }

    fn pids(&self) -> Vec<u32> {
        self.server.pid().into_iter().collect()
    }

    fn open<'a>(&'a self, place: &'a Place) -> Fut<'a, ()> {
        Box::pin(async move {
            let (client, table) = (connect(self.port).await?, table(place));
            let sql = format!(
                "CREATE TABLE {table} (id bigint GENERATED ALWAYS AS IDENTITY, reader int NOT NULL DEFAULT 0, \
                 body text NOT NULL, PRIMARY KEY (reader, id)); ALTER TABLE {table} ALTER body SET STORAGE EXTERNAL"
            );
            client.batch_execute(&sql).await?;
            Ok(())
        })
    }

    fn purge<'a>(&'a self, place: &'a Place) -> Fut<'a, ()> {
        Box::pin(async move {
            connect(self.port).await?.batch_execute(&format!("TRUNCATE {}", table(place))).await?;
            Ok(())
        })
    }

    fn close<'a>(&'a self, place: &'a Place) -> Fut<'a, ()> {
        Box::pin(async move {
            connect(self.port).await?.batch_execute(&format!("DROP TABLE {}", table(place))).await?;
            Ok(())
        })
    }

    fn publishers<'a>(&'a self, place: &'a Place, count: usize) -> Fut<'a, Vec<Box<dyn Publish>>> {
        Box::pin(async move {
            let table = table(place);
            let sql = match place.readers {
                Readers::Each(readers) => format!(
                    "INSERT INTO {table} (reader, body) SELECT r, $1 FROM generate_series(0, {}) r",
                    readers.saturating_sub(1)
                ),
                Readers::Competing(_) | Readers::Nobody => format!("INSERT INTO {table} (body) VALUES ($1)"),
            };
            let mut publishers: Vec<Box<dyn Publish>> = Vec::with_capacity(count);
            for _ in 0..count {
                let client = connect(self.port).await?;
                let insert = client.prepare(&sql).await?;
                publishers.push(Box::new(Publisher { client, insert }));
            }
            Ok(publishers)
        })
    }

    fn reader<'a>(&'a self, place: &'a Place, index: usize) -> Fut<'a, Box<dyn Read>> {
        Box::pin(async move {
            let (client, table) = (connect(self.port).await?, table(place));
            let reader = if matches!(place.readers, Readers::Each(_)) { index } else { 0 };
            let take = format!(
                "SELECT id, body FROM {table} WHERE reader = {reader} ORDER BY id LIMIT {PREFETCH} \
                 FOR UPDATE SKIP LOCKED"
            );
            let take = client.prepare(&take).await?;
            let done = format!("DELETE FROM {table} WHERE reader = {reader} AND id = ANY($1)");
            let done = client.prepare(&done).await?;
            Ok(Box::new(Reader { client, take, done }) as Box<dyn Read>)
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
            if count + 50 > CONNECTIONS {
                return Ok(Answer::No("a process for each connection: nobody holds so many"));
            }
            let notes = Notes::new(count);
            let mut clients = Vec::with_capacity(count);
            for from in (0..count).step_by(CONNECTING) {
                let some = from..count.min(from + CONNECTING);
                let joined = some.map(async |index| {
                    let client = connect(self.port).await?;
                    client.batch_execute(&format!("LISTEN mail_{index}")).await?;
                    anyhow::Ok(client)
                });
                for client in futures_util::future::join_all(joined).await {
                    clients.push(client?);
                    notes.attached(clients.len() - 1);
                }
            }
            Ok(Answer::Yes(Box::new(Listening { clients, notes }) as Box<dyn Crowd>))
        })
    }
}

struct Publisher {
    client: Client,
    insert: Statement,
}

impl Publish for Publisher {
    fn publish<'a>(&'a self, body: &'a str) -> Fut<'a, ()> {
        Box::pin(async move {
            self.client.execute(&self.insert, &[&body]).await?;
            Ok(())
        })
    }
}

struct Reader {
    client: Client,
    take: Statement,
    done: Statement,
}

impl Read for Reader {
    fn read<'a>(&'a mut self, seen: &'a mut (dyn FnMut(&[u8]) + Send)) -> Fut<'a, u64> {
        Box::pin(async move {
            // Both are sent before either is answered, and in this order. A read that fails leaves its transaction to the
            // connection, which ends with the reader.
            let begin = self.client.batch_execute("BEGIN");
            let (begun, rows) = join(begin, self.client.query(&self.take, &[])).await;
            begun?;
            let rows = rows?;
            if rows.is_empty() {
                let (ended, ()) = join(self.client.batch_execute("ROLLBACK"), tokio::time::sleep(POLL)).await;
                ended?;
                return Ok(0);
            }
            let mut ids: Vec<i64> = Vec::with_capacity(rows.len());
            for row in &rows {
                seen(row.get::<_, &str>(1).as_bytes());
                ids.push(row.get(0));
            }
            let params: [&(dyn ToSql + Sync); 1] = [&ids];
            let delete = self.client.execute(&self.done, &params);
            let (deleted, committed) = join(delete, self.client.batch_execute("COMMIT")).await;
            deleted?;
            committed?;
            Ok(ids.len() as u64)
        })
    }
}

/// Connections that each listen to a channel of their own.
struct Listening {
    clients: Vec<Client>,
    notes: Arc<Notes>,
}

impl Crowd for Listening {
    fn count(&self) -> usize {
        self.clients.len()
    }

    fn notes(&self) -> &Arc<Notes> {
        &self.notes
    }

    fn what(&self) -> &'static str {
        "a connection that listens to a channel of its own"
    }

    fn no_return(&self) -> Option<&'static str> {
        Some(
            "a session ends with its connection, and what is notified meanwhile is gone: what comes back would be our own \
             program, and we would measure ourselves; ws, whose loop is ours too, is there as the floor of bare sockets",
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
