//! Tenure itself: the `tenure` binary as it ships, by the bare client of [`tenure_bench::wire`] or by the Rust SDK.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use futures_util::FutureExt;
use tenure_client::proto::message::{Address, Priority, SendParams, TagsParams};
use tenure_client::proto::subscribe::{AckMode, From, SubscribeParams, SubscribeResult, UnsubscribeParams};
use tenure_client::proto::{MessageId, SessionKey};
use tenure_client::{Events, Options, Publisher as SdkPublisher, Session, Subscription};
use tokio::task::JoinSet;

use super::{Ground, library};
use crate::crowd::{Crowd, Notes};
use crate::peer::{About, Answer, Fut, PREFETCH, Peer, Place, Publish, Read, Readers};
use crate::pipe::{DIGITS, Pipe};
use tenure_bench::broker::BrokerProcess;
use tenure_bench::fanout::{delivery, text};
use tenure_bench::fleet::Fleet;
use tenure_bench::ids::{Dice, sender_key, wall_ms};
use tenure_bench::watcher::Watcher;
use tenure_bench::wire::{self, Wire, find, framed, id_of, refusal};

/// The group of competing readers.
const ALL: &str = "all";
/// Numbers of keys: publishers, readers, and whoever makes groups.
const PUBLISHERS: usize = 0;
const READERS: usize = 10_000;
const MAKER: usize = 20_000;
/// Sessions of a crowd that connect at a time.
const CONNECTING: usize = 64;
/// How long a send may take, a restart included.
const SEND_TIMEOUT: Duration = Duration::from_secs(120);
/// Attached for longer than ten seconds, the SDK has forgotten earlier failures.
const FORGIVEN: Duration = Duration::from_millis(10_500);
/// How often the crowd's attaches are looked at; each says itself when it was.
const LOOK: Duration = Duration::from_millis(50);

/// A running broker.
pub(super) struct Tenure {
    about: About,
    broker: BrokerProcess,
    sdk: bool,
    /// How each key connects: always as the same process, for that is what it is.
    options: Mutex<BTreeMap<usize, Options>>,
}

/// Starts one.
pub(super) fn start(ground: &Ground, sdk: bool) -> Result<Answer<Tenure>> {
    let broker = BrokerProcess::start(&ground.broker)?;
    let about = About {
        key: if sdk { "tenure-sdk" } else { "tenure" },
        name: if sdk { "Tenure, Rust SDK" } else { "Tenure" },
        version: env!("CARGO_PKG_VERSION").to_owned(),
        client: if sdk { library("tenure-client") } else { "bare WebSocket client, MessagePack".to_owned() },
        durable: "synced to the disk (the store's write-ahead log), with the id that makes a retry harmless",
        syncs: true,
        ack: "answered: of a shared group after its commit; a private reader's place is written behind",
        acks_answered: true,
        config: vec![
            "the broker's defaults: SQLite with a write-ahead log; no flags but listener and data directory"
                .to_owned(),
            format!("prefetch {PREFETCH}, acks in batches of what was read together"),
        ],
    };
    Ok(Answer::Yes(Tenure { about, broker, sdk, options: Mutex::default() }))
}

impl Tenure {
    async fn join(&self, key: usize, name: &str) -> Result<Wire> {
        Wire::join(self.broker.address(), &sender_key(key), name).await
    }

    async fn session(&self, key: usize, name: &str) -> Result<(Session, Events)> {
        let options = {
            let mut known = self.options.lock().unwrap_or_else(PoisonError::into_inner);
            match known.get(&key) {
                Some(options) => options.clone(),
                None => {
                    let options = Options::new(&self.broker.url(), sender_key(key), name)?
                        .codec(tenure_client::proto::codec::Codec::MsgPack)
                        .timeout_ms(SEND_TIMEOUT.as_millis() as u64);
                    known.insert(key, options.clone());
                    options
                }
            }
        };
        Ok(Session::connect(options).await?)
    }
}

fn subscription(place: &Place) -> Result<SubscribeParams> {
    let group = match place.readers {
        Readers::Each(_) => None,
        Readers::Competing(_) | Readers::Nobody => {
            Some(ALL.parse().map_err(|_| anyhow!("no name of a group"))?)
        }
    };
    Ok(SubscribeParams {
        topic: place.name.parse().map_err(|_| anyhow!("{} is no name of a topic", place.name))?,
        group,
        partition: None,
        prefetch: u32::from(PREFETCH),
        ack_mode: AckMode::Manual,
        from: From::Earliest,
    })
}

impl Peer for Tenure {
    fn about(&self) -> &About {
        &self.about
    }

    fn pids(&self) -> Vec<u32> {
        vec![self.broker.pid()]
    }

    fn address(&self) -> Option<&str> {
        Some(self.broker.address())
    }

    fn open<'a>(&'a self, place: &'a Place) -> Fut<'a, ()> {
        Box::pin(async move {
            if matches!(place.readers, Readers::Competing(_)) {
                // The group's place is made now and stays when its maker has left.
                let mut wire = self.join(MAKER, "maker").await?;
                let made: SubscribeResult = wire.ask("subscribe", subscription(place)?).await?;
                let gone = UnsubscribeParams { sub_id: made.sub_id };
                let _: serde_json::Value = wire.ask("unsubscribe", gone).await?;
            }
            Ok(())
        })
    }

    fn purge<'a>(&'a self, _place: &'a Place) -> Fut<'a, ()> {
        // A log keeps what it has for as long as it is told to, and ours is kept small by nobody.
        Box::pin(async { Ok(()) })
    }

    fn close<'a>(&'a self, _place: &'a Place) -> Fut<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    fn publishers<'a>(&'a self, place: &'a Place, count: usize) -> Fut<'a, Vec<Box<dyn Publish>>> {
        Box::pin(async move {
            let mut publishers: Vec<Box<dyn Publish>> = Vec::with_capacity(count);
            for index in 0..count {
                let name = format!("publisher-{index}");
                if self.sdk {
                    let (session, events) = self.session(PUBLISHERS + index, &name).await?;
                    let publisher = session.publisher(&place.name)?.window(usize::MAX);
                    publishers.push(Box::new(Sdk { publisher, _watch: watch(events) }));
                } else {
                    let pipe = Pipe::new(self.join(PUBLISHERS + index, &name).await?);
                    publishers.push(Box::new(Bare { pipe, params: params(place)?, dice: dice(index) }));
                }
            }
            Ok(publishers)
        })
    }

    fn reader<'a>(&'a self, place: &'a Place, index: usize) -> Fut<'a, Box<dyn Read>> {
        Box::pin(async move {
            let name = format!("reader-{index}");
            if self.sdk {
                let (session, events) = self.session(READERS + index, &name).await?;
                let mut builder = session.subscribe(&place.name).prefetch(u32::from(PREFETCH));
                if !matches!(place.readers, Readers::Each(_)) {
                    builder = builder.group(ALL);
                }
                let subscription = builder.from(From::Earliest).await?;
                return Ok(Box::new(SdkReader { subscription, _watch: watch(events) }) as Box<dyn Read>);
            }
            let mut wire = self.join(READERS + index, &name).await?;
            // The answer may come behind the first deliveries, which must not be passed over: it is not waited for.
            wire.write(&framed(&wire::request("0000sub0", "subscribe", subscription(place)?)?)).await?;
            Ok(Box::new(BareReader { wire, next: 0, open: BTreeMap::new() }) as Box<dyn Read>)
        })
    }

    fn kill(&mut self) -> Result<()> {
        self.broker.kill()
    }

    fn start_again(&mut self) -> Result<()> {
        self.broker.start_again()?;
        Ok(())
    }

    fn crowd<'a>(&'a self, count: usize) -> Fut<'a, Answer<Box<dyn Crowd>>> {
        Box::pin(async move {
            if !self.sdk {
                return Ok(Answer::No("sessions are the SDK's: see there"));
            }
            let crowd = Sessions::start(self.broker.url(), count).await?;
            Ok(Answer::Yes(Box::new(crowd) as Box<dyn Crowd>))
        })
    }
}

/// Reads what a session is told, so that it does not fall behind; ends with its owner.
fn watch(mut events: Events) -> JoinSet<()> {
    let mut task = JoinSet::new();
    task.spawn(async move { while events.next().await.is_ok() {} });
    task
}

fn params(place: &Place) -> Result<SendParams> {
    Ok(SendParams {
        to: Address::Topic(place.name.parse().map_err(|_| anyhow!("{} is no name of a topic", place.name))?),
        body: None,
        body_b64: None,
        client_message_id: "none".parse().map_err(|_| anyhow!("no id of a message"))?,
        priority: Priority::default(),
        key: None,
        reply_to: None,
        meta: None,
        content_type: None,
        ttl_ms: None,
        delay_ms: None,
        fallback: Default::default(),
        fingerprint: None,
    })
}

fn dice(index: usize) -> Mutex<Dice> {
    Mutex::new(Dice::new(index as u64))
}

struct Bare {
    pipe: Pipe,
    params: SendParams,
    dice: Mutex<Dice>,
}

impl Publish for Bare {
    fn publish<'a>(&'a self, body: &'a str) -> Fut<'a, ()> {
        Box::pin(async move {
            let entropy = self.dice.lock().unwrap_or_else(PoisonError::into_inner).entropy();
            let id = MessageId::from_parts(wall_ms(), entropy).to_string();
            let client_message_id = id.parse().map_err(|_| anyhow!("no id of a message"))?;
            let params = SendParams { body: Some(body.to_owned()), client_message_id, ..self.params.clone() };
            let payload = wire::request(&"0".repeat(DIGITS), "send", params)?;
            self.pipe.ask(&payload).await
        })
    }
}

struct BareReader {
    wire: Wire,
    /// The number of the next ack.
    next: u64,
    /// Acks that wait for their answer, and how many tags they have.
    open: BTreeMap<u64, u64>,
}

impl Read for BareReader {
    fn read<'a>(&'a mut self, seen: &'a mut (dyn FnMut(&[u8]) + Send)) -> Fut<'a, u64> {
        Box::pin(async move {
            self.wire.fill().await?;
            let (mut tags, mut settled) = (Vec::new(), 0);
            while let Some(frame) = self.wire.next_message()? {
                if let Some((_, tag)) = delivery(frame) {
                    tags.push(tag.parse().map_err(|_| anyhow!("no tag"))?);
                    seen(body(frame).context("a delivery has no body")?.as_bytes());
                } else if let Some(id) = id_of(frame, DIGITS) {
                    if let Some(refusal) = refusal(frame, DIGITS) {
                        return Err(anyhow!("refused: {refusal}"));
                    }
                    let number = std::str::from_utf8(id).ok().and_then(|id| id.parse().ok());
                    settled += number.and_then(|number| self.open.remove(&number)).unwrap_or(0);
                }
            }
            if !tags.is_empty() {
                self.open.insert(self.next, tags.len() as u64);
                let ack = wire::request(&format!("{:08}", self.next), "ack", TagsParams { tags })?;
                self.wire.write(&framed(&ack)).await?;
                self.next += 1;
            }
            Ok(settled)
        })
    }
}

/// The text of a delivery's body, looked up where it stands.
fn body(frame: &[u8]) -> Option<&str> {
    text(frame, find(frame, b"\xa4body")? + 5)
}

struct Sdk {
    publisher: SdkPublisher,
    _watch: JoinSet<()>,
}

impl Publish for Sdk {
    fn publish<'a>(&'a self, body: &'a str) -> Fut<'a, ()> {
        Box::pin(async move {
            self.publisher.publish(body).timeout(SEND_TIMEOUT).await?;
            Ok(())
        })
    }
}

struct SdkReader {
    subscription: Subscription,
    _watch: JoinSet<()>,
}

impl Read for SdkReader {
    fn read<'a>(&'a mut self, seen: &'a mut (dyn FnMut(&[u8]) + Send)) -> Fut<'a, u64> {
        Box::pin(async move {
            let first = self.subscription.next_message().await?;
            seen(first.bytes());
            let mut settling = vec![first.ack()];
            while settling.len() < usize::from(PREFETCH)
                && let Some(next) = self.subscription.next_message().now_or_never()
            {
                let next = next?;
                seen(next.bytes());
                settling.push(next.ack());
            }
            let count = settling.len() as u64;
            for settled in settling {
                settled.await?;
            }
            Ok(count)
        })
    }
}

/// Sessions of the SDK that read their inboxes, and one that watches.
struct Sessions {
    keys: Vec<SessionKey>,
    sessions: Vec<Session>,
    notes: Arc<Notes>,
    watcher: Watcher,
    sender: Session,
    _tasks: JoinSet<()>,
}

impl Sessions {
    async fn start(url: String, count: usize) -> Result<Sessions> {
        let mut fleet = Fleet::new(url)?.reading();
        fleet.connect(count, CONNECTING).await?;
        let (notes, mut tasks) = (Notes::new(count), JoinSet::new());
        for (index, session) in fleet.sessions.iter().enumerate() {
            notes.attached(index);
            tasks.spawn(read(session.inbox()?, notes.clone()));
        }
        let watcher = Watcher::start(&fleet).await?;
        let (sender, mut events) = fleet.stranger("sender").await?;
        tasks.spawn(async move { while events.next().await.is_ok() {} });
        let sessions = fleet.sessions.clone();
        let keys = sessions.iter().map(Session::key).collect();
        let noted = notes.clone();
        tasks.spawn(async move {
            loop {
                while let Some(attach) = fleet.attached() {
                    noted.attached_at(attach.index, attach.at);
                }
                tokio::time::sleep(LOOK).await;
            }
        });
        Ok(Sessions { keys, sessions, notes, watcher, sender, _tasks: tasks })
    }
}

async fn read(mut inbox: Subscription, notes: Arc<Notes>) {
    while let Ok(message) = inbox.next_message().await {
        if let Some(number) = message.text().and_then(|text| text.parse().ok()) {
            notes.received(number);
        }
        // It goes on, and through any break, without us.
        drop(message.ack());
    }
}

impl Crowd for Sessions {
    fn count(&self) -> usize {
        self.sessions.len()
    }

    fn notes(&self) -> &Arc<Notes> {
        &self.notes
    }

    fn what(&self) -> &'static str {
        "a session with a lease, its inbox, and presence of everybody else"
    }

    fn rest(&self) -> Duration {
        FORGIVEN
    }

    fn cut(&self) -> Fut<'_, ()> {
        Box::pin(async move {
            for session in &self.sessions {
                session.sever().await;
            }
            Ok(())
        })
    }

    fn send<'a>(&'a self, to: usize, number: u64) -> Fut<'a, ()> {
        Box::pin(async move {
            let key = *self.keys.get(to).context("there is no such session")?;
            self.sender.send(key, number.to_string()).timeout(SEND_TIMEOUT).await?;
            Ok(())
        })
    }

    fn presence(&self) -> Option<u64> {
        Some(self.watcher.sights.borrow().all())
    }

    fn presence_by(&self) -> &'static str {
        "leases; everybody sees everybody"
    }
}
