//! The load: many sessions of the Rust SDK in this process, each with a key of its own, all vouched for by one
//! member, all reading whatever the broker tells them.
//!
//! Every join is announced to everybody, so ten thousand joins are fifty million presence events. The fleet
//! connects with bounded concurrency and lets nobody fall far behind, so that the events wait in nobody's
//! socket buffers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tenure_client::proto::event::{EventBody, PresenceKind};
use tenure_client::proto::hello::{InboxChoice, ResumeOutcome};
use tenure_client::{End, Events, Options, Session, SessionEvent, SigningKey};
use tokio::sync::{Semaphore, mpsc};

/// Presence events that may be on their way to the fleet before the next session starts.
const LAG: u64 = 200_000;
/// How often progress is shown.
const PROGRESS: Duration = Duration::from_secs(5);
/// How often a wait looks again.
const LOOK: Duration = Duration::from_millis(20);

/// A socket of the fleet carries its session.
#[derive(Clone, Copy, Debug)]
pub struct Attach {
    /// Which session.
    pub index: usize,
    pub at: Instant,
    outcome: ResumeOutcome,
}

impl Attach {
    /// The outcome's name on the wire.
    pub fn outcome(&self) -> &'static str {
        match self.outcome {
            ResumeOutcome::New => "new",
            ResumeOutcome::Resumed => "resumed",
            ResumeOutcome::ResumeNotFound => "resume_not_found",
            ResumeOutcome::ResumeRejected => "resume_rejected",
        }
    }
}

/// What all sessions have seen, together.
#[derive(Debug, Default)]
struct Seen {
    joined: AtomicU64,
    left: AtomicU64,
    updated: AtomicU64,
    /// Waits before a dial: how often anybody tried to connect after the first time.
    waits: AtomicU64,
    /// The newest presence version that anybody has heard of.
    newest: AtomicU64,
    /// Presence versions with which sessions were first attached, added up.
    starts: AtomicU64,
    attached: AtomicU64,
}

impl Seen {
    fn presence(&self) -> u64 {
        [&self.joined, &self.left, &self.updated].iter().map(|n| n.load(Ordering::Relaxed)).sum()
    }

    /// Presence events that the fleet is still to see, as far as its members can tell.
    fn lag(&self) -> u64 {
        let [newest, starts, attached] =
            [&self.newest, &self.starts, &self.attached].map(|n| n.load(Ordering::Relaxed));
        (newest * attached).saturating_sub(starts + self.presence())
    }

    fn take_in(&self, event: &SessionEvent) {
        match event {
            SessionEvent::Event { body, .. } => {
                let EventBody::Presence(step) = body.as_ref() else { return };
                let count = match step.kind {
                    PresenceKind::Joined => &self.joined,
                    PresenceKind::Left => &self.left,
                    PresenceKind::Updated => &self.updated,
                };
                count.fetch_add(1, Ordering::Relaxed);
                self.newest.fetch_max(step.version.get(), Ordering::Relaxed);
            }
            SessionEvent::Waiting { .. } => {
                self.waits.fetch_add(1, Ordering::Relaxed);
            }
            SessionEvent::Attached(_)
            | SessionEvent::Detached { .. }
            | SessionEvent::HistoryRewound { .. } => {}
        }
    }
}

/// Many sessions.
pub struct Fleet {
    url: String,
    member: SigningKey,
    serves: bool,
    reads: bool,
    pub sessions: Vec<Session>,
    seen: Arc<Seen>,
    attaches: mpsc::UnboundedReceiver<Attach>,
    told: mpsc::UnboundedSender<Attach>,
    /// Ends of sessions; a measurement in which one ends has failed.
    ends: mpsc::UnboundedReceiver<End>,
    ended: mpsc::UnboundedSender<End>,
}

impl Fleet {
    /// No sessions yet, but the member that will vouch for them.
    pub fn new(url: String) -> Result<Fleet> {
        let (told, attaches) = mpsc::unbounded_channel();
        let (ended, ends) = mpsc::unbounded_channel();
        let member = tenure_client::random_key()?;
        let (sessions, seen) = (Vec::new(), Arc::default());
        let (serves, reads) = (false, false);
        Ok(Fleet { url, member, serves, reads, sessions, seen, attaches, told, ends, ended })
    }

    /// The same, whose sessions read their inboxes and answer runs.
    pub fn serving(self) -> Fleet {
        Fleet { serves: true, ..self }
    }

    /// The same, whose sessions read their inboxes.
    pub fn reading(self) -> Fleet {
        Fleet { reads: true, ..self }
    }

    /// A session with a key of its own, vouched for like the others, that is not of the fleet.
    pub async fn stranger(&self, name: &str) -> Result<(Session, Events)> {
        Session::connect(self.options(name)?).await.context("connect")
    }

    fn options(&self, name: &str) -> Result<Options> {
        let options = Options::new(&self.url, self.member.clone(), name)?
            .session_key(tenure_client::random_key()?)
            .client("tenure-bench", env!("CARGO_PKG_VERSION"));
        Ok(match (self.serves, self.reads) {
            (true, _) => options.inbox(InboxChoice::Session).serve_runs(),
            (false, true) => options.inbox(InboxChoice::Session),
            (false, false) => options,
        })
    }

    /// Connects `count` sessions, at most `concurrency` at a time, and waits until all have heard of each other.
    pub async fn connect(&mut self, count: usize, concurrency: usize) -> Result<()> {
        let connecting = Arc::new(Semaphore::new(concurrency));
        let mut progress = Progress::new("connected", count);
        for index in 0..count {
            while self.seen.lag() > LAG {
                tokio::time::sleep(LOOK).await;
            }
            let permit = connecting.clone().acquire_owned().await?;
            let (session, events) = Session::start(self.options(&format!("idle-{index}"))?)?;
            self.sessions.push(session);
            let (seen, told, ended) = (self.seen.clone(), self.told.clone(), self.ended.clone());
            let keeper = Keeper { index, seen, told, ended };
            tokio::spawn(keeper.keep(events, permit));
            progress.show(self.seen.attached.load(Ordering::Relaxed) as usize);
            self.nobody_ended()?;
        }
        let _ = connecting.acquire_many(concurrency as u32).await?;
        while self.seen.lag() > 0 {
            progress.show(count);
            self.nobody_ended()?;
            tokio::time::sleep(LOOK).await;
        }
        // Nobody waits for these; the next ones are of interest.
        while self.attaches.try_recv().is_ok() {}
        Ok(())
    }

    /// The next `count` attaches, or as many as come before `patience` is over.
    pub async fn attaches(&mut self, count: usize, patience: Duration) -> Result<Vec<Attach>> {
        let mut attaches = Vec::with_capacity(count);
        let mut progress = Progress::new("back", count);
        let deadline = Instant::now() + patience;
        while attaches.len() < count && Instant::now() < deadline {
            match tokio::time::timeout(PROGRESS, self.attaches.recv()).await {
                Ok(Some(attach)) => attaches.push(attach),
                Ok(None) => break,
                Err(_) => {}
            }
            progress.show(attaches.len());
            self.nobody_ended()?;
        }
        Ok(attaches)
    }

    /// An attach that has been and nobody has asked for.
    pub fn attached(&mut self) -> Option<Attach> {
        self.attaches.try_recv().ok()
    }

    /// How often anybody has waited before a dial.
    pub fn waits(&self) -> u64 {
        self.seen.waits.load(Ordering::Relaxed)
    }

    fn nobody_ended(&mut self) -> Result<()> {
        match self.ends.try_recv() {
            Ok(end) => bail!("a session ended: {end}"),
            Err(_) => Ok(()),
        }
    }
}

/// Reads what one session is told.
struct Keeper {
    index: usize,
    seen: Arc<Seen>,
    told: mpsc::UnboundedSender<Attach>,
    ended: mpsc::UnboundedSender<End>,
}

impl Keeper {
    async fn keep(self, mut events: Events, permit: tokio::sync::OwnedSemaphorePermit) {
        let mut permit = Some(permit);
        loop {
            let event = match events.next().await {
                Ok(event) => event,
                Err(end) => {
                    // The measurement may be over and nobody listening.
                    let _ = self.ended.send(end);
                    return;
                }
            };
            if let SessionEvent::Attached(hello) = &event {
                let (index, outcome) = (self.index, hello.resume.outcome);
                let _ = self.told.send(Attach { index, at: Instant::now(), outcome });
                if permit.take().is_some() {
                    let version = hello.state_version.presence.get();
                    self.seen.starts.fetch_add(version, Ordering::Relaxed);
                    self.seen.attached.fetch_add(1, Ordering::Relaxed);
                    self.seen.newest.fetch_max(version, Ordering::Relaxed);
                }
            }
            self.seen.take_in(&event);
        }
    }
}

/// Lines on stderr, now and then.
struct Progress {
    verb: &'static str,
    count: usize,
    started: Instant,
    shown: Instant,
}

impl Progress {
    fn new(verb: &'static str, count: usize) -> Progress {
        let now = Instant::now();
        Progress { verb, count, started: now, shown: now }
    }

    fn show(&mut self, so_far: usize) {
        if self.shown.elapsed() >= PROGRESS {
            self.shown = Instant::now();
            let seconds = self.started.elapsed().as_secs();
            eprintln!("{so_far} of {} {} after {seconds} s", self.count, self.verb);
        }
    }
}
