//! Who sends and who reads: sessions of the Rust SDK in this process, which nobody kills.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use tenure_client::proto::codec::Codec;
use tenure_client::proto::message::Message;
use tenure_client::{
    Events, InboxChoice, Item, Options, Received, Session, SessionEvent, SigningKey, Start, Subscription, To,
    Unsettled,
};
use tokio::task::JoinSet;

use super::Args;
use super::record::{Record, Seen};

/// The topic that the crew shares.
const TOPIC: &str = "jobs";
/// How long one send may take, breaks included.
const SEND: Duration = Duration::from_secs(60);
/// Complaints that are kept; one is too many already.
const COMPLAINTS: usize = 100;

/// What went on, besides the record.
#[derive(Debug, Default)]
struct Tally {
    stop: AtomicBool,
    /// Whether everybody goes home.
    over: AtomicBool,
    /// Deliveries whose settlement is not answered.
    settling: AtomicU64,
    /// Settlements that came too late, by reason; the message is then handed out again.
    stale: Mutex<BTreeMap<String, u64>>,
    attaches: AtomicU64,
    duplicates: AtomicU64,
    retries: AtomicU64,
    redelivered: AtomicU64,
    complaints: Mutex<Vec<String>>,
}

impl Tally {
    fn complain(&self, complaint: String) {
        let mut complaints = self.complaints.lock().unwrap_or_else(PoisonError::into_inner);
        if complaints.len() < COMPLAINTS {
            eprintln!("{complaint}");
            complaints.push(complaint);
        }
    }
}

/// Everybody.
pub(super) struct Crew {
    /// By the log that they read; any of them reads the topic's.
    pub(super) readers: BTreeMap<String, Session>,
    /// Kept, so that they stay joined.
    _sessions: Vec<Session>,
    sending: tokio::sync::Mutex<JoinSet<()>>,
    tally: Arc<Tally>,
}

impl Crew {
    /// Joins readers first, then senders, and lets them begin.
    pub(super) async fn start(args: &Args, url: &str, record: &Arc<Record>) -> Result<Crew> {
        let member = tenure_client::random_key()?;
        let tally: Arc<Tally> = Arc::default();
        let (mut readers, mut sessions, mut targets) = (BTreeMap::new(), Vec::new(), Vec::new());
        for index in 0..args.inboxes {
            let options =
                options(url, &member, &format!("inbox-{index}"), index)?.inbox(InboxChoice::Session);
            let session = join(options, &tally).await?;
            let inbox = session.inbox().context("take the inbox")?;
            tokio::spawn(read(inbox, record.clone(), tally.clone()));
            targets.push(To::from(session.key()));
            readers.insert(format!("inbox/s/{}", session.key()), session);
        }
        for index in 0..args.crew {
            let session = join(options(url, &member, &format!("crew-{index}"), index)?, &tally).await?;
            let topic = session.subscribe(TOPIC).group("crew").from(Start::Earliest).await;
            let topic = topic.map_err(|end| anyhow!("subscribe to {TOPIC}: {end}"))?;
            tokio::spawn(read(topic, record.clone(), tally.clone()));
            readers.insert(format!("topic/{TOPIC}/0"), session.clone());
            sessions.push(session);
        }
        if args.crew > 0 {
            targets.push(To::topic(TOPIC).map_err(|error| anyhow!("{error}"))?);
        }
        let mut sending = JoinSet::new();
        let workers = (args.senders * args.window).max(1) as f64;
        let pace = Duration::from_secs_f64(workers / args.rate.max(1) as f64);
        for sender in 0..args.senders {
            let session = join(options(url, &member, &format!("sender-{sender}"), sender)?, &tally).await?;
            for slot in 0..args.window {
                let worker = Worker {
                    name: format!("s{sender}-{slot}"),
                    session: session.clone(),
                    targets: targets.clone(),
                    first: sender + slot,
                    record: record.clone(),
                    tally: tally.clone(),
                };
                sending.spawn(worker.run(pace));
            }
            sessions.push(session);
        }
        Ok(Crew { readers, _sessions: sessions, sending: sending.into(), tally })
    }

    /// Fails if somebody has stopped.
    pub(super) fn is_well(&self) -> Result<()> {
        match self.complaints().first() {
            Some(complaint) => bail!("{complaint}"),
            None => Ok(()),
        }
    }

    pub(super) fn complaints(&self) -> Vec<String> {
        self.tally.complaints.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Lets every sender finish the send that it is about.
    pub(super) async fn stop_sending(&self, patience: Duration) -> Result<()> {
        self.tally.stop.store(true, Ordering::Relaxed);
        let mut sending = self.sending.lock().await;
        let all = async { while sending.join_next().await.is_some() {} };
        tokio::time::timeout(patience, all).await.context("a sender is still waiting for its answer")
    }

    /// Deliveries whose settlement is not answered.
    pub(super) fn waiting(&self) -> u64 {
        self.tally.settling.load(Ordering::Relaxed)
    }

    /// What waits at the broker.
    pub(super) async fn depth(&self) -> Result<u64> {
        let session = self.readers.values().next().context("there are no readers")?;
        let health = session.health().await.map_err(|error| anyhow!("health: {error}"))?;
        Ok(health.groups.depth.get())
    }

    /// Says what is worth knowing and breaks no promise.
    pub(super) fn say_numbers(&self) {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let stale = self.tally.stale.lock().unwrap_or_else(PoisonError::into_inner);
        eprintln!(
            "{} attaches, {} accepts answered as duplicates, {} sends tried again by the sender, \
             {} deliveries marked redelivered, stale settlements {:?}",
            of(&self.tally.attaches),
            of(&self.tally.duplicates),
            of(&self.tally.retries),
            of(&self.tally.redelivered),
            *stale
        );
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.tally.over.store(true, Ordering::Relaxed);
    }
}

fn options(url: &str, member: &SigningKey, name: &str, index: usize) -> Result<Options> {
    let codec = if index.is_multiple_of(2) { Codec::Json } else { Codec::MsgPack };
    Ok(Options::new(url, member.clone(), name)?
        .session_key(tenure_client::random_key()?)
        .client("tenure-bench", env!("CARGO_PKG_VERSION"))
        .codec(codec))
}

async fn join(options: Options, tally: &Arc<Tally>) -> Result<Session> {
    let (session, events) = Session::connect(options).await.context("join")?;
    tokio::spawn(watch(events, tally.clone()));
    Ok(session)
}

async fn watch(mut events: Events, tally: Arc<Tally>) {
    loop {
        match events.next().await {
            Ok(SessionEvent::Attached(_)) => drop(tally.attaches.fetch_add(1, Ordering::Relaxed)),
            Ok(_) => {}
            Err(_) if tally.over.load(Ordering::Relaxed) => return,
            Err(end) => return tally.complain(format!("a session ended: {end}")),
        }
    }
}

/// One send after the other.
struct Worker {
    name: String,
    session: Session,
    targets: Vec<To>,
    first: usize,
    record: Arc<Record>,
    tally: Arc<Tally>,
}

impl Worker {
    async fn run(self, pace: Duration) {
        let mut pace = tokio::time::interval(pace);
        pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut number = 0;
        while !self.tally.stop.load(Ordering::Relaxed) {
            pace.tick().await;
            number += 1;
            let id = format!("{}-{number}", self.name);
            let to = &self.targets[(self.first + number) % self.targets.len()];
            if let Err(error) = self.send(to, &id).await {
                return self.tally.complain(format!("{id} was not accepted: {error:#}"));
            }
        }
    }

    /// Sends until it is accepted, and writes that down.
    async fn send(&self, to: &To, id: &str) -> Result<()> {
        let result = loop {
            match self.session.send(to.clone(), body(id)).id(id).timeout(SEND).await {
                Ok(result) => break result,
                Err(error) if error.retryable => {
                    self.tally.retries.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                Err(error) => bail!("{error}"),
            }
        };
        if result.duplicate {
            self.tally.duplicates.fetch_add(1, Ordering::Relaxed);
        }
        let seen = Seen {
            log: result.log,
            seq: result.seq.get(),
            id: result.id.to_string(),
            client_id: id.to_owned(),
        };
        self.record.accepted.write(&seen)
    }
}

/// What a message with this id says: its id, and then so many letters that its length depends on it.
fn body(id: &str) -> String {
    let length = id.bytes().fold(7usize, |sum, byte| (sum * 31 + usize::from(byte)) % 997);
    let mut text = format!("{id} ");
    text.extend(std::iter::repeat_n('x', length));
    text
}

async fn read(mut subscription: Subscription, record: Arc<Record>, tally: Arc<Tally>) {
    loop {
        match subscription.next().await {
            Ok(Item::Message(message)) => {
                if let Err(error) = take(message, &record, &tally) {
                    return tally.complain(format!("a reader failed: {error:#}"));
                }
            }
            Ok(Item::Gap { from, to, .. }) => tally.complain(format!("entries {from} to {to} are gone")),
            Err(_) if tally.over.load(Ordering::Relaxed) => return,
            Err(end) => return tally.complain(format!("a subscription ended: {end}")),
        }
    }
}

/// Writes a delivery down, then settles it.
fn take(received: Received, record: &Record, tally: &Arc<Tally>) -> Result<()> {
    let message: &Message = &received;
    let seen = Seen {
        log: message.log.clone(),
        seq: message.seq.get(),
        id: message.id.to_string(),
        client_id: message.client_message_id.clone(),
    };
    record.received.write(&seen)?;
    if received.text() != Some(body(&seen.client_id).as_str()) {
        tally.complain(format!("{} of {} says something else than was sent", seen.seq, seen.log));
    }
    if received.redelivered() {
        tally.redelivered.fetch_add(1, Ordering::Relaxed);
    }
    tally.settling.fetch_add(1, Ordering::Relaxed);
    let (settling, tally) = (received.ack(), tally.clone());
    tokio::spawn(async move {
        match settling.await {
            Ok(()) => {}
            Err(Unsettled::Stale { reason }) => {
                *tally.stale.lock().unwrap_or_else(PoisonError::into_inner).entry(reason).or_default() += 1;
            }
            Err(error) => tally.complain(format!("{} of {} was not settled: {error}", seen.seq, seen.log)),
        }
        tally.settling.fetch_sub(1, Ordering::Relaxed);
    });
    Ok(())
}
