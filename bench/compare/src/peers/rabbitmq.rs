//! RabbitMQ with quorum queues or classic durable ones, by `lapin`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use futures_util::{FutureExt, StreamExt};
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
    ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions,
    QueuePurgeOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, Consumer, ExchangeKind,
};
use tempfile::TempDir;

use super::{Ground, library};
use crate::crowd::{Crowd, Notes};
use crate::peer::{About, Answer, Fut, PREFETCH, Peer, Place, Publish, Read, Readers};
use crate::server::{Line, Server, find_program, free_port};

/// What a message says of itself so that it survives a restart.
const PERSISTENT: u8 = 2;
/// The largest frame of a session that waits, in bytes: the least that AMQP allows.
const FRAME_MAX: u32 = 4_096;
/// How long a dial may take: a node that boots may take a connection and not answer on it, and the next would be answered.
const DIAL: Duration = Duration::from_secs(2);
/// Sessions of a crowd that connect at a time.
const CONNECTING: usize = 32;
/// Where Debian puts the script that does not change the user.
const DEBIAN: &str = "/usr/lib/rabbitmq/bin";
/// And the server itself.
const LIBRARY: &str = "/usr/lib/rabbitmq/lib";

/// A running node.
pub(super) struct RabbitMq {
    about: About,
    server: Server,
    /// The port mapper that the node wants; one of our own, so that none is left behind.
    _mapper: Server,
    uri: String,
    quorum: bool,
    _dir: TempDir,
}

/// Starts a node whose queues are quorum queues, or classic durable ones; nothing when it is not installed.
pub(super) async fn start(ground: &Ground, quorum: bool) -> Result<Answer<RabbitMq>> {
    let Some(program) = find_program("rabbitmq-server", &[PathBuf::from(DEBIAN)]) else {
        return Ok(Answer::No("rabbitmq-server is not installed"));
    };
    let Some(mapper) = find_program("epmd", &[]) else {
        return Ok(Answer::No("epmd, which RabbitMQ needs, is not installed"));
    };
    let dir = ground.fresh_dir()?;
    let (port, node_port, mapper_port) = (free_port()?, free_port()?, free_port()?);
    let config = dir.path().join("rabbitmq.conf");
    let settings = [
        format!("listeners.tcp.1 = 127.0.0.1:{port}"),
        "loopback_users = none".to_owned(),
        "vm_memory_high_watermark.relative = 0.6".to_owned(),
        "disk_free_limit.absolute = 1GB".to_owned(),
        "collect_statistics_interval = 60000".to_owned(),
    ];
    std::fs::write(&config, settings.join("\n") + "\n")?;
    let plugins = dir.path().join("plugins");
    std::fs::write(&plugins, "[].\n")?;
    let home = dir.path().display().to_string();
    let mapper = Line::new(mapper).args(["-port", &mapper_port.to_string(), "-address", "127.0.0.1"]);
    let mapper = Server::start(mapper, dir.path())?;
    let line = Line::new(program)
        .env("HOME", &home)
        .env("ERL_EPMD_PORT", mapper_port.to_string())
        .env("RABBITMQ_NODENAME", format!("bench-{port}@localhost"))
        .env("RABBITMQ_NODE_PORT", port.to_string())
        .env("RABBITMQ_DIST_PORT", node_port.to_string())
        .env("RABBITMQ_MNESIA_BASE", format!("{home}/data"))
        .env("RABBITMQ_LOG_BASE", format!("{home}/log"))
        .env("RABBITMQ_CONFIG_FILE", config.display().to_string())
        .env("RABBITMQ_ENABLED_PLUGINS_FILE", plugins.display().to_string())
        .env("RABBITMQ_CONF_ENV_FILE", format!("{home}/none"))
        // Schedulers that spin while they wait take the client's core on a small machine.
        .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "+sbwt none +sbwtdcpu none +sbwtdio none");
    let mut server = Server::start(line, dir.path())?;
    let uri = format!("amqp://guest:guest@127.0.0.1:{port}/%2f");
    server.until_ready(async || connect(&uri).await).await?;
    let (kind, version) = (if quorum { "quorum" } else { "classic" }, version());
    let syncs = quorum || classic_syncs(&version);
    let about = About {
        key: if quorum { "rabbitmq-quorum" } else { "rabbitmq-classic" },
        name: if quorum { "RabbitMQ, quorum queue" } else { "RabbitMQ, classic durable queue" },
        version,
        client: library("lapin"),
        durable: match (quorum, syncs) {
            (true, _) => "synced to the disk (the queue's log, one node)",
            (false, true) => "synced to the disk (the message store, before the confirm)",
            (false, false) => "written to the disk, not synced",
        },
        syncs,
        ack: "sent; no answer",
        acks_answered: false,
        config: vec![
            format!("{kind} queues, persistent messages, publisher confirms, one node"),
            format!(
                "prefetch {PREFETCH}, acks of many at once; a fan-out is an exchange and a queue for each reader"
            ),
            "no plugins, statistics every minute, schedulers that do not spin".to_owned(),
            format!("idle sessions: frame_max {FRAME_MAX}, for the client's sake"),
        ],
    };
    Ok(Answer::Yes(RabbitMq { about, server, _mapper: mapper, uri, quorum, _dir: dir }))
}

async fn connect(uri: &str) -> Result<Connection> {
    tokio::time::timeout(DIAL, dial(uri)).await.context("RabbitMQ does not answer")?
}

async fn dial(uri: &str) -> Result<Connection> {
    Connection::connect(uri, ConnectionProperties::default()).await.context("connect to RabbitMQ")
}

/// The library's folder has it in its name; asking the program takes a node of its own.
fn version() -> String {
    let folders = std::fs::read_dir(LIBRARY).into_iter().flatten().flatten();
    let names = folders.filter_map(|entry| entry.file_name().into_string().ok());
    let mut versions = names.filter_map(|name| Some(name.strip_prefix("rabbitmq_server-")?.to_owned()));
    versions.next().unwrap_or_else(|| "unknown".to_owned())
}

/// Classic queues sync before they confirm, as can be seen by tracing their calls, up to the version that rewrote how they
/// are stored.
fn classic_syncs(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) < (3, 12)
}

fn queue(place: &Place, index: usize) -> ShortString {
    match place.readers {
        Readers::Each(_) => format!("{}-{index}", place.name).into(),
        Readers::Competing(_) | Readers::Nobody => place.name.clone().into(),
    }
}

fn queues(place: &Place) -> usize {
    if let Readers::Each(count) = place.readers { count } else { 1 }
}

impl RabbitMq {
    async fn declare(&self, channel: &Channel, queue: ShortString) -> Result<()> {
        let mut arguments = FieldTable::default();
        let kind = if self.quorum { "quorum" } else { "classic" };
        arguments.insert("x-queue-type".into(), AMQPValue::LongString(kind.into()));
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(queue, options, arguments).await?;
        Ok(())
    }
}

impl Peer for RabbitMq {
    fn about(&self) -> &About {
        &self.about
    }

    fn pids(&self) -> Vec<u32> {
        self.server.pid().into_iter().collect()
    }

    fn open<'a>(&'a self, place: &'a Place) -> Fut<'a, ()> {
        Box::pin(async move {
            let channel = connect(&self.uri).await?.create_channel().await?;
            for index in 0..queues(place) {
                self.declare(&channel, queue(place, index)).await?;
            }
            if matches!(place.readers, Readers::Each(_)) {
                let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
                let name: ShortString = place.name.clone().into();
                let none = FieldTable::default;
                channel.exchange_declare(name.clone(), ExchangeKind::Fanout, options, none()).await?;
                for index in 0..queues(place) {
                    let (queue, key) = (queue(place, index), "".into());
                    channel.queue_bind(queue, name.clone(), key, QueueBindOptions::default(), none()).await?;
                }
            }
            Ok(())
        })
    }

    fn purge<'a>(&'a self, place: &'a Place) -> Fut<'a, ()> {
        Box::pin(async move {
            let channel = connect(&self.uri).await?.create_channel().await?;
            for index in 0..queues(place) {
                channel.queue_purge(queue(place, index), QueuePurgeOptions::default()).await?;
            }
            Ok(())
        })
    }

    fn close<'a>(&'a self, place: &'a Place) -> Fut<'a, ()> {
        Box::pin(async move {
            let channel = connect(&self.uri).await?.create_channel().await?;
            for index in 0..queues(place) {
                channel.queue_delete(queue(place, index), QueueDeleteOptions::default()).await?;
            }
            if matches!(place.readers, Readers::Each(_)) {
                let name = place.name.clone().into();
                channel.exchange_delete(name, ExchangeDeleteOptions::default()).await?;
            }
            Ok(())
        })
    }

    fn publishers<'a>(&'a self, place: &'a Place, count: usize) -> Fut<'a, Vec<Box<dyn Publish>>> {
        Box::pin(async move {
            let (exchange, key) = match place.readers {
                Readers::Each(_) => (place.name.clone(), String::new()),
                Readers::Competing(_) | Readers::Nobody => (String::new(), place.name.clone()),
            };
            let mut publishers: Vec<Box<dyn Publish>> = Vec::with_capacity(count);
            for _ in 0..count {
                let connection = connect(&self.uri).await?;
                let channel = connection.create_channel().await?;
                channel.confirm_select(ConfirmSelectOptions::default()).await?;
                let (exchange, key) = (exchange.clone().into(), key.clone().into());
                publishers.push(Box::new(Publisher { _connection: connection, channel, exchange, key }));
            }
            Ok(publishers)
        })
    }

    fn reader<'a>(&'a self, place: &'a Place, index: usize) -> Fut<'a, Box<dyn Read>> {
        Box::pin(async move {
            let connection = connect(&self.uri).await?;
            let channel = connection.create_channel().await?;
            channel.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
            let tag: ShortString = format!("c{index}").into();
            let options = BasicConsumeOptions::default();
            let consumer =
                channel.basic_consume(queue(place, index), tag, options, FieldTable::default()).await?;
            Ok(Box::new(Reader { _connection: connection, consumer }) as Box<dyn Read>)
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
            if self.quorum {
                return Ok(Answer::No(
                    "a quorum queue is made for work, not for a session: see the classic queue",
                ));
            }
            let notes = Notes::new(count);
            let mut links = Vec::with_capacity(count);
            for from in (0..count).step_by(CONNECTING) {
                let some = from..count.min(from + CONNECTING);
                for link in futures_util::future::join_all(some.map(|index| self.join(index))).await {
                    links.push(link?);
                    notes.attached(links.len() - 1);
                }
            }
            Ok(Answer::Yes(Box::new(Consuming { links, notes }) as Box<dyn Crowd>))
        })
    }
}

impl RabbitMq {
    async fn join(&self, index: usize) -> Result<(Connection, Consumer)> {
        // The client keeps room for 64 frames of the largest size that is agreed on: at the usual 128 KiB ten thousand
        // connections would take 80 GB of this process.
        // Many dial at a time and nobody tries again, so it may take as long as it likes.
        let connection = dial(&format!("{}?frame_max={FRAME_MAX}", self.uri)).await?;
        let channel = connection.create_channel().await?;
        let name: ShortString = format!("mail-{index}").into();
        self.declare(&channel, name.clone()).await?;
        let options = BasicConsumeOptions::default();
        let consumer = channel.basic_consume(name.clone(), name, options, FieldTable::default()).await?;
        Ok((connection, consumer))
    }
}

struct Publisher {
    /// It lives as long as its channel is used.
    _connection: Connection,
    channel: Channel,
    exchange: ShortString,
    key: ShortString,
}

impl Publish for Publisher {
    fn publish<'a>(&'a self, body: &'a str) -> Fut<'a, ()> {
        Box::pin(async move {
            let properties = BasicProperties::default().with_delivery_mode(PERSISTENT);
            let (exchange, key) = (self.exchange.clone(), self.key.clone());
            let options = BasicPublishOptions::default();
            let confirm =
                self.channel.basic_publish(exchange, key, options, body.as_bytes(), properties).await?;
            let confirmation = confirm.await?;
            ensure!(
                matches!(confirmation, Confirmation::Ack(_)),
                "RabbitMQ does not confirm: {confirmation:?}"
            );
            Ok(())
        })
    }
}

struct Reader {
    _connection: Connection,
    consumer: Consumer,
}

impl Read for Reader {
    fn read<'a>(&'a mut self, seen: &'a mut (dyn FnMut(&[u8]) + Send)) -> Fut<'a, u64> {
        Box::pin(async move {
            let mut last = self.consumer.next().await.context("the consumer ended")??;
            seen(&last.data);
            let mut count = 1;
            while count < u64::from(PREFETCH)
                && let Some(next) = self.consumer.next().now_or_never()
            {
                last = next.context("the consumer ended")??;
                seen(&last.data);
                count += 1;
            }
            last.acker.ack(BasicAckOptions { multiple: true }).await?;
            Ok(count)
        })
    }
}

/// Connections that each consume a queue of their own.
struct Consuming {
    links: Vec<(Connection, Consumer)>,
    notes: Arc<Notes>,
}

impl Crowd for Consuming {
    fn count(&self) -> usize {
        self.links.len()
    }

    fn notes(&self) -> &Arc<Notes> {
        &self.notes
    }

    fn what(&self) -> &'static str {
        "a connection with one channel that consumes a durable queue of its own"
    }

    fn no_return(&self) -> Option<&'static str> {
        Some(
            "a session ends with its connection: its queue waits, and coming back to it is the program's; lapin has a \
             recovery that can be switched on, which is not measured here",
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
