//! nats-server with JetStream, by `async-nats`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, PullConsumer, pull, push};
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType, Stream};
use async_nats::jetstream::{self, Context};
use async_nats::{Client, ConnectOptions, Event, Subject};
use axum::body::Bytes;
use futures_util::{FutureExt, StreamExt};
use tempfile::TempDir;
use tokio::task::JoinSet;

use super::{Ground, library};
use crate::crowd::{Crowd, Notes};
use crate::peer::{About, Answer, Fut, PREFETCH, Peer, Place, Publish, Read, Readers};
use crate::server::{Line, Server, find_program, free_port};

/// How long an answer may take before the stretch fails.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long the server waits for an ack before it delivers again: less than anybody here waits for what is missing.
const ACK_WAIT: Duration = Duration::from_secs(5);
/// Sessions of a crowd that connect at a time.
const CONNECTING: usize = 64;
/// The stream that sessions of a crowd have their mail in.
const MAIL: &str = "mail";

/// A running nats-server.
pub(super) struct Nats {
    about: About,
    server: Server,
    url: String,
    _dir: TempDir,
}

/// Starts one that syncs every message, or one with the server's default; nothing when it is not installed.
pub(super) async fn start(ground: &Ground, always: bool) -> Result<Answer<Nats>> {
    let Some(program) = find_program("nats-server", &ground.folders()) else {
        return Ok(Answer::No("nats-server is not installed"));
    };
    let version = Line::new(&program).arg("--version").run()?;
    let version = version.trim().trim_start_matches("nats-server: v").to_owned();
    if always && !has_sync_interval(&version) {
        return Ok(Answer::No("this nats-server is older than 2.10 and cannot sync every message"));
    }
    let dir = ground.fresh_dir()?;
    let (port, store) = (free_port()?, dir.path().join("store"));
    let sync = if always { "sync_interval: always" } else { "" };
    let config = format!(
        "listen: \"127.0.0.1:{port}\"\nmax_connections: 65536\njetstream {{\n  store_dir: \"{}\"\n  \
         max_file_store: 40G\n  {sync}\n}}\n",
        store.display()
    );
    let file = dir.path().join("nats.conf");
    std::fs::write(&file, config)?;
    let line = Line::new(program).arg("-c").arg(file.display().to_string());
    let mut server = Server::start(line, dir.path())?;
    let url = format!("127.0.0.1:{port}");
    server.until_ready(async || ready(&url).await).await?;
    let about = About {
        key: if always { "nats-always" } else { "nats-default" },
        name: if always { "NATS JetStream, sync always" } else { "NATS JetStream, default sync" },
        version,
        client: library("async-nats"),
        durable: if always {
            "synced to the disk (sync_interval: always)"
        } else {
            "in the page cache; the server syncs every 2 minutes"
        },
        syncs: always,
        ack: "sent; no answer, held in memory and written behind",
        acks_answered: false,
        config: vec![
            if always { "jetstream.sync_interval: always" } else { "jetstream.sync_interval: default (2m)" }
                .to_owned(),
            "file storage, one replica, limits retention, no message ids".to_owned(),
            format!("pull consumers, batches of {PREFETCH}, max_ack_pending 65536"),
            "a reader with a consumer of its own acks all of a batch at once (ack policy all), competing readers each \
             message (explicit)"
                .to_owned(),
        ],
    };
    Ok(Answer::Yes(Nats { about, server, url, _dir: dir }))
}

async fn ready(url: &str) -> Result<()> {
    let client = async_nats::connect(url).await?;
    jetstream::new(client).query_account().await?;
    Ok(())
}

/// The setting came with 2.10.
fn has_sync_interval(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= (2, 10)
}

impl Nats {
    async fn context(&self) -> Result<Context> {
        let options = ConnectOptions::new().request_timeout(Some(PATIENCE));
        let client = options.connect(&self.url).await.context("connect to nats-server")?;
        Ok(jetstream::ContextBuilder::new().timeout(PATIENCE).ack_timeout(PATIENCE).build(client))
    }

    async fn make(&self, place: &Place) -> Result<()> {
        let context = self.context().await?;
        let stream = context.create_stream(stream_config(&place.name)).await?;
        match place.readers {
            Readers::Nobody => {}
            Readers::Competing(_) | Readers::Each(_) => {
                for index in 0..consumers(place) {
                    consumer(&stream, &name(place, index), policy(place), DeliverPolicy::All).await?;
                }
            }
        }
        Ok(())
    }
}

fn stream_config(name: &str) -> Config {
    Config {
        name: name.to_owned(),
        subjects: vec![format!("{name}.>")],
        retention: RetentionPolicy::Limits,
        storage: StorageType::File,
        discard: DiscardPolicy::New,
        num_replicas: 1,
        ..Config::default()
    }
}

fn consumers(place: &Place) -> usize {
    if let Readers::Each(count) = place.readers { count } else { 1 }
}

fn name(place: &Place, index: usize) -> String {
    match place.readers {
        Readers::Each(_) => format!("r{index}"),
        Readers::Competing(_) | Readers::Nobody => "all".to_owned(),
    }
}

/// Whoever has a consumer to itself may ack everything up to a message; of competing readers each acks what it was given.
fn policy(place: &Place) -> AckPolicy {
    match place.readers {
        Readers::Competing(1) | Readers::Each(_) => AckPolicy::All,
        Readers::Competing(_) | Readers::Nobody => AckPolicy::Explicit,
    }
}

async fn consumer(
    stream: &Stream,
    name: &str,
    ack_policy: AckPolicy,
    deliver_policy: DeliverPolicy,
) -> Result<PullConsumer> {
    let config = pull::Config {
        durable_name: Some(name.to_owned()),
        ack_policy,
        ack_wait: ACK_WAIT,
        deliver_policy,
        max_ack_pending: 65_536,
        ..pull::Config::default()
    };
    stream.get_or_create_consumer(name, config).await.map_err(|error| anyhow!("make a consumer: {error}"))
}

/// The consumer of a reader that has it to itself. Where an earlier reader had it, it is made anew from where acks ended: an
/// ack of all would otherwise take with it what that one was given and never saw.
async fn own_consumer(stream: &Stream, name: &str) -> Result<PullConsumer> {
    let found = consumer(stream, name, AckPolicy::All, DeliverPolicy::All).await?;
    let info = found.cached_info();
    if info.delivered.consumer_sequence == 0 {
        return Ok(found);
    }
    let start_sequence = info.ack_floor.stream_sequence + 1;
    stream.delete_consumer(name).await.map_err(|error| anyhow!("drop a consumer: {error}"))?;
    consumer(stream, name, AckPolicy::All, DeliverPolicy::ByStartSequence { start_sequence }).await
}

impl Peer for Nats {
    fn about(&self) -> &About {
        &self.about
    }

    fn pids(&self) -> Vec<u32> {
        self.server.pid().into_iter().collect()
    }

    fn open<'a>(&'a self, place: &'a Place) -> Fut<'a, ()> {
        Box::pin(self.make(place))
    }

    fn purge<'a>(&'a self, place: &'a Place) -> Fut<'a, ()> {
        Box::pin(async move {
            let stream = self.context().await?.get_stream(&place.name).await?;
            stream.purge().await?;
            Ok(())
        })
    }

    fn close<'a>(&'a self, place: &'a Place) -> Fut<'a, ()> {
        Box::pin(async move {
            self.context().await?.delete_stream(&place.name).await?;
            Ok(())
        })
    }

    fn publishers<'a>(&'a self, place: &'a Place, count: usize) -> Fut<'a, Vec<Box<dyn Publish>>> {
        Box::pin(async move {
            let mut publishers: Vec<Box<dyn Publish>> = Vec::with_capacity(count);
            for _ in 0..count {
                let context = self.context().await?;
                publishers.push(Box::new(Publisher { context, subject: format!("{}.m", place.name).into() }));
            }
            Ok(publishers)
        })
    }

    fn reader<'a>(&'a self, place: &'a Place, index: usize) -> Fut<'a, Box<dyn Read>> {
        Box::pin(async move {
            let stream = self.context().await?.get_stream(&place.name).await?;
            let (name, policy) = (name(place, index), policy(place));
            let acks_all = policy == AckPolicy::All;
            let consumer = if acks_all {
                own_consumer(&stream, &name).await?
            } else {
                consumer(&stream, &name, policy, DeliverPolicy::All).await?
            };
            let messages = consumer.stream().max_messages_per_batch(usize::from(PREFETCH)).messages().await?;
            Ok(Box::new(Reader { messages, acks_all }) as Box<dyn Read>)
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
            let crowd = Sessions::start(self, count).await?;
            Ok(Answer::Yes(Box::new(crowd) as Box<dyn Crowd>))
        })
    }
}

struct Publisher {
    context: Context,
    subject: Subject,
}

impl Publish for Publisher {
    fn publish<'a>(&'a self, body: &'a str) -> Fut<'a, ()> {
        Box::pin(async move {
            let body = Bytes::copy_from_slice(body.as_bytes());
            self.context.publish(self.subject.clone(), body).await?.await?;
            Ok(())
        })
    }
}

struct Reader {
    messages: pull::Stream,
    /// Whether the ack of a message is one of all before it, too.
    acks_all: bool,
}

impl Read for Reader {
    fn read<'a>(&'a mut self, seen: &'a mut (dyn FnMut(&[u8]) + Send)) -> Fut<'a, u64> {
        Box::pin(async move {
            let first = self.messages.next().await.context("the consumer ended")??;
            seen(&first.payload);
            let mut held = vec![first];
            while held.len() < usize::from(PREFETCH)
                && let Some(next) = self.messages.next().now_or_never()
            {
                let next = next.context("the consumer ended")??;
                seen(&next.payload);
                held.push(next);
            }
            let first = if self.acks_all { held.len() - 1 } else { 0 };
            for message in &held[first..] {
                message.ack().await.map_err(|error| anyhow!("ack: {error}"))?;
            }
            Ok(held.len() as u64)
        })
    }
}

/// Clients with a durable push consumer each, whose mail waits in a stream while they are away.
struct Sessions {
    clients: Vec<Client>,
    notes: Arc<Notes>,
    sender: Context,
    _tasks: JoinSet<()>,
}

impl Sessions {
    async fn start(nats: &Nats, count: usize) -> Result<Sessions> {
        let sender = nats.context().await?;
        let stream = sender.get_or_create_stream(stream_config(MAIL)).await?;
        let (notes, mut tasks) = (Notes::new(count), JoinSet::new());
        let mut clients = Vec::with_capacity(count);
        for from in (0..count).step_by(CONNECTING) {
            let some = from..count.min(from + CONNECTING);
            let joined = some.map(|index| join(&nats.url, &stream, index, notes.clone()));
            for session in futures_util::future::join_all(joined).await {
                let (client, task) = session?;
                clients.push(client);
                tasks.spawn(task);
            }
        }
        Ok(Sessions { clients, notes, sender, _tasks: tasks })
    }
}

async fn join(
    url: &str,
    stream: &Stream,
    index: usize,
    notes: Arc<Notes>,
) -> Result<(Client, impl Future<Output = ()> + Send + 'static)> {
    let (name, noted) = (format!("s{index}"), notes.clone());
    let client = ConnectOptions::new()
        .name(&name)
        .max_reconnects(None)
        // The same full jitter from a quarter of a second as our SDK has, so that waits are not what is compared.
        .reconnect_delay_callback(|tries| jitter(tries as u32))
        .event_callback(move |event| {
            let notes = noted.clone();
            async move {
                if matches!(event, Event::Connected) {
                    notes.attached(index);
                }
            }
        })
        .connect(url)
        .await?;
    let to = format!("deliver.{index}");
    let mut mail = client.subscribe(to.clone()).await?;
    let config = push::Config {
        durable_name: Some(name.clone()),
        deliver_subject: to,
        filter_subject: format!("{MAIL}.{index}"),
        ack_policy: AckPolicy::Explicit,
        ack_wait: ACK_WAIT,
        ..push::Config::default()
    };
    stream
        .get_or_create_consumer(&name, config)
        .await
        .map_err(|error| anyhow!("make a consumer: {error}"))?;
    client.flush().await?;
    notes.attached(index);
    let acks = client.clone();
    let read = async move {
        while let Some(message) = mail.next().await {
            // Flow control and heartbeats have no body.
            if let Some(number) =
                std::str::from_utf8(&message.payload).ok().and_then(|text| text.parse().ok())
            {
                notes.received(number);
            }
            if let Some(reply) = message.reply {
                // The socket may be away; then it comes again.
                let _ = acks.publish(reply, Bytes::from_static(b"+ACK")).await;
            }
        }
    };
    Ok((client, read))
}

/// A wait before a dial: anything up to a quarter of a second, twice that with each failure, up to a second.
pub(super) fn jitter(tries: u32) -> Duration {
    // Another one for each that asks: thousands ask at once.
    static ASKED: AtomicU64 = AtomicU64::new(0);
    let most = (250u64 << tries.saturating_sub(1).min(2)).min(1_000);
    let seed = ASKED.fetch_add(1, Ordering::Relaxed);
    Duration::from_millis(tenure_bench::ids::Dice::new(seed).within(0..most))
}

impl Crowd for Sessions {
    fn count(&self) -> usize {
        self.clients.len()
    }

    fn notes(&self) -> &Arc<Notes> {
        &self.notes
    }

    fn what(&self) -> &'static str {
        "a connection with one subscription and a durable push consumer of its own"
    }

    fn cut(&self) -> Fut<'_, ()> {
        Box::pin(async move {
            for client in &self.clients {
                client.force_reconnect().await.map_err(|error| anyhow!("cut a client off: {error}"))?;
            }
            Ok(())
        })
    }

    fn send<'a>(&'a self, to: usize, number: u64) -> Fut<'a, ()> {
        Box::pin(async move {
            if to >= self.clients.len() {
                bail!("there is no session {to}");
            }
            self.sender.publish(format!("{MAIL}.{to}"), number.to_string().into()).await?.await?;
            Ok(())
        })
    }

    fn presence(&self) -> Option<u64> {
        None
    }

    fn presence_by(&self) -> &'static str {
        "none; the system account tells of every socket that opens or closes"
    }
}
