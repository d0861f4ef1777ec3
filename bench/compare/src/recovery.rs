//! Workload 6: kill -9 with a backlog, first while nobody reads, then under readers and publishers.
//!
//! A place is filled until as many messages as were asked for are confirmed, or time is up; the first kill comes while
//! publishes are still under way. From the start of the new process: when is a new publish confirmed, and when is an old
//! message delivered? At every later kill a reader is connected and acks, and somebody publishes. With our SDK both live
//! on through the kill, for its sessions do so by themselves: what was under way is sent again and must not come twice.
//! Others' connections end there, and new ones are made.
//!
//! In the end everything is read: whatever was confirmed and does not come is lost. Others' connections may outlive our
//! giving them up and hold messages; of others what does not come after one more restart either. Whatever comes again is
//! doubled if its ack was answered, or if nothing had happened to the reader that it came to. What was delivered and whose
//! ack nobody had answered when its reader broke may come again: that is counted apart and is no double, for us as for
//! anybody. Where acks have no answer, that is all that came before.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::task::JoinSet;

use super::counting::Marks;
use super::findings::{Findings, Recovery};
use super::flow::{number, numbered};
use super::peer::{Peer, Place, Publish, Read, Readers, SOCKETS};
use super::peers::{Ground, Kind};
use super::plan::Plan;
use super::systems;
use super::tally::Tally;
use tenure_bench::ids::Dice;
use tenure_bench::report::round;

/// Bytes of a body.
const BODY: usize = 128;
/// Publishes under way while filling.
const OUTSTANDING: usize = 4_096;
/// Publishes under way at later kills.
const UNDER_WAY: usize = 64;
/// Messages that are read and acked, and messages that are confirmed, before a later kill comes.
const LIVELY: u64 = 512;
/// How long a later kill waits for those.
const LIVELY_TIME: Duration = Duration::from_secs(10);
/// How long answers that were on their way at a kill may take.
const LAST_ANSWERS: Duration = Duration::from_secs(2);
/// How long a server may take to be back.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long a single try to publish, or to connect a reader, may take: a server that boots may let it hang.
const TRY: Duration = Duration::from_secs(2);
/// How long between two tries while a server boots; the same for everybody.
const DIAL: Duration = Duration::from_millis(50);
/// How long a connected reader may hear nothing, and how long connecting may take when the server is up.
const LATE: Duration = Duration::from_secs(10);
/// Messages that are enough to know that old ones are delivered.
const ENOUGH: u64 = 4_096;
/// Readers that are connected and hear nothing, before there is nothing to hear.
const TRIES: usize = 3;
/// How long nothing may come before what is missing counts as lost.
const SILENCE: Duration = Duration::from_secs(8);
/// How long to look for doubles once all is there.
const AFTERMATH: Duration = Duration::from_secs(1);
/// How often a wait looks again.
const LOOK: Duration = Duration::from_millis(10);

/// Measures every system that keeps messages, one at a time; of ourselves the SDK, for what comes twice is judged as an
/// application sees it.
pub(crate) async fn run(plan: &Plan, kinds: &[Kind], ground: &Ground, findings: &mut Findings) -> Result<()> {
    let wanted =
        |kind: &Kind| kind.keeps_messages() && *kind != Kind::Tenure && !(plan.quick && kind.is_second());
    for kind in kinds.iter().copied().filter(wanted) {
        eprintln!("{}: kill -9 with {} messages", kind.key(), plan.backlog);
        let Some(mut peer) = systems::one(kind, ground, findings).await else { continue };
        match one(plan, kind, &mut *peer).await {
            Ok(found) => findings.recoveries.push(found),
            Err(error) => findings.skip(kind.key(), Some("recovery"), format!("{error:#}")),
        }
    }
    Ok(())
}

async fn one(plan: &Plan, kind: Kind, peer: &mut dyn Peer) -> Result<Recovery> {
    let place = Place::new("backlog", Readers::Competing(1));
    peer.open(&place).await.context("open a place")?;
    let began = Instant::now();
    let book = fill(plan, peer, &place).await?;
    let fill_seconds = round(began.elapsed().as_secs_f64(), 1);
    let confirmed = book.confirmed.load(Ordering::Relaxed);
    let shared = Arc::new(Shared::new(&book, peer.about().acks_answered));
    // Our SDK's sessions live through a restart by themselves.
    let carried = kind == Kind::TenureSdk;
    let (mut crew, mut read_at_kills) = (None, 0);
    let (mut publish_ms, mut deliver_ms) = (Vec::new(), Vec::new());
    let kills = plan.kills.max(1);
    for kill in 0..kills {
        // The first kill was while filling.
        if kill > 0 {
            let at_work = match crew.take() {
                Some(crew) => crew,
                None => Crew::start(peer, &place, carried, &shared).await?,
            };
            read_at_kills += at_work.work().await;
            tokio::task::block_in_place(|| peer.kill())?;
            crew = at_work.killed().await;
        }
        let old = shared.numbers.load(Ordering::Relaxed);
        let started = Instant::now();
        tokio::task::block_in_place(|| peer.start_again())?;
        let published = first_publish(peer, &place, &shared, started);
        let delivered = first_delivery(peer, &place, &shared, old, started);
        let (published, delivered) = tokio::join!(published, delivered);
        publish_ms.push(round(published?.as_secs_f64() * 1_000.0, 1));
        if let Ok(took) = delivered {
            deliver_ms.push(round(took.as_secs_f64() * 1_000.0, 1));
        }
    }
    if let Some(crew) = &mut crew {
        crew.publish_no_more().await;
    }
    // Whoever lived through the kills reads on, for it holds messages.
    drain(peer, &place, LATE, &shared).await?;
    // Of ourselves what only a restart brings to light is lost.
    if shared.tally().missing > 0 && !carried {
        drain_after_a_restart(peer, &place, &shared).await?;
    }
    drop(crew);
    let tally = shared.tally();
    let note = deliver_ms.is_empty().then(|| "nothing old was delivered".to_owned());
    Ok(Recovery {
        system: kind.key(),
        confirmed,
        full: confirmed >= plan.backlog,
        fill_seconds,
        kills,
        confirmed_later: tally.later,
        came: tally.came.count(),
        read_at_kills,
        publish_ms,
        deliver_ms,
        lost: tally.missing,
        doubled: tally.doubled,
        again: tally.again,
        note,
    })
}

/// What was published while filling.
#[derive(Debug, Default)]
struct Book {
    next: AtomicU64,
    confirmed: AtomicU64,
    marks: Mutex<Marks>,
}

impl Book {
    fn confirm(&self, number: u64) {
        if self.marks().set(number) {
            self.confirmed.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn marks(&self) -> MutexGuard<'_, Marks> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fills until enough is confirmed or time is up, then kills the server under those who still publish.
async fn fill(plan: &Plan, peer: &mut dyn Peer, place: &Place) -> Result<Arc<Book>> {
    let publishers = peer.publishers(place, SOCKETS).await.context("start publishers")?;
    let publishers: Vec<Arc<dyn Publish>> = publishers.into_iter().map(Arc::from).collect();
    let book = Arc::<Book>::default();
    let filler: Arc<str> = Dice::new(0).text(BODY).into();
    let most = plan.backlog + 2 * OUTSTANDING as u64;
    let mut tasks = JoinSet::new();
    for publisher in publishers.iter().cycle().take(OUTSTANDING) {
        let (publisher, book, filler) = (publisher.clone(), book.clone(), filler.clone());
        tasks.spawn(async move {
            loop {
                let number = book.next.fetch_add(1, Ordering::Relaxed);
                if number >= most {
                    return Ok(());
                }
                publisher.publish(&numbered(&filler, number)).await?;
                book.confirm(number);
            }
        });
    }
    let deadline = Instant::now() + plan.fill;
    while book.confirmed.load(Ordering::Relaxed) < plan.backlog && Instant::now() < deadline {
        if let Some(ended) = tasks.try_join_next() {
            let ended: Result<()> = ended?;
            ended.context("a publish failed while filling")?;
        }
        tokio::time::sleep(LOOK).await;
    }
    tokio::task::block_in_place(|| peer.kill())?;
    // Whoever was not answered was promised nothing; an answer that was on its way still counts.
    let rest = async { while tasks.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(Duration::from_secs(2), rest).await;
    tasks.abort_all();
    while tasks.join_next().await.is_some() {}
    Ok(book)
}

/// What all who publish and read share.
struct Shared {
    /// The next number that nobody has.
    numbers: AtomicU64,
    tally: Mutex<Tally>,
}

impl Shared {
    fn new(book: &Book, answers: bool) -> Shared {
        let tally = Tally::new(answers, book.marks().clone());
        Shared { numbers: AtomicU64::new(book.next.load(Ordering::Relaxed)), tally: Mutex::new(tally) }
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }
}

/// One reader's connection.
struct Hands {
    id: usize,
    reader: Box<dyn Read>,
    shared: Arc<Shared>,
}

impl Hands {
    async fn connect(
        peer: &dyn Peer,
        (place, index): (&Place, usize),
        within: Duration,
        shared: &Arc<Shared>,
    ) -> Result<Hands> {
        let reader = tokio::time::timeout(within, peer.reader(place, index)).await;
        let reader = reader.context("a reader does not connect")?.context("start a reader")?;
        let id = shared.tally().enter();
        Ok(Hands { id, reader, shared: shared.clone() })
    }

    /// Reads and acks once, and shows the numbers that came.
    async fn read(&mut self, came: &mut (dyn FnMut(u64) + Send)) -> Result<()> {
        let (id, shared) = (self.id, self.shared.clone());
        let mut seen = |body: &[u8]| {
            // What has no number that was given out is none of ours.
            let number = number(body).filter(|number| *number < shared.numbers.load(Ordering::Relaxed));
            if let Some(number) = number {
                shared.tally().saw(id, number);
                came(number);
            }
        };
        let settled = self.reader.read(&mut seen).await?;
        self.shared.tally().answered(id, settled);
        Ok(())
    }
}

impl Drop for Hands {
    fn drop(&mut self) {
        self.shared.tally().left(self.id);
    }
}

/// Who is at work when a later kill comes: a reader and a publisher.
struct Crew {
    /// Whether they live on through kills.
    carried: bool,
    shared: Arc<Shared>,
    /// The reader, as the tally knows it.
    reader: usize,
    state: Arc<State>,
    publishing: JoinSet<()>,
    reading: JoinSet<Result<()>>,
}

/// What a crew and its tasks share.
#[derive(Debug, Default)]
struct State {
    /// Nobody begins anything; what is under way goes on.
    paused: AtomicBool,
    /// Nobody publishes any more.
    stopped: AtomicBool,
    read: AtomicU64,
    confirmed: AtomicU64,
}

impl State {
    async fn unpaused(&self) {
        while self.paused.load(Ordering::Relaxed) {
            tokio::time::sleep(LOOK).await;
        }
    }
}

impl Crew {
    async fn start(peer: &dyn Peer, place: &Place, carried: bool, shared: &Arc<Shared>) -> Result<Crew> {
        // Whoever lives on needs a name of its own: the first is taken by who looks first after each restart.
        let hands = Hands::connect(peer, (place, usize::from(carried)), LATE, shared).await?;
        let publishers = tokio::time::timeout(LATE, peer.publishers(place, 2)).await;
        let mut publishers = publishers.context("publishers do not connect")?.context("start publishers")?;
        let publisher: Arc<dyn Publish> = publishers.pop().context("no publisher")?.into();
        let (state, reader) = (Arc::<State>::default(), hands.id);
        let (mut publishing, mut reading) = (JoinSet::new(), JoinSet::new());
        for _ in 0..UNDER_WAY {
            publishing.spawn(publish(publisher.clone(), carried, shared.clone(), state.clone()));
        }
        reading.spawn(read_on(hands, carried, state.clone()));
        Ok(Crew { carried, shared: shared.clone(), reader, state, publishing, reading })
    }

    /// Lets them work until enough has happened, or time is up; how many messages were read.
    async fn work(&self) -> u64 {
        let counts = || [&self.state.read, &self.state.confirmed].map(|count| count.load(Ordering::Relaxed));
        let ([read, confirmed], deadline) = (counts(), Instant::now() + LIVELY_TIME);
        self.state.paused.store(false, Ordering::Relaxed);
        loop {
            let [now_read, now_confirmed] = counts();
            let enough = now_read - read >= LIVELY && now_confirmed - confirmed >= LIVELY;
            if enough || Instant::now() > deadline {
                return now_read - read;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The server was killed: gives those who live on, and ends the others.
    async fn killed(mut self) -> Option<Crew> {
        if self.carried {
            // The new server is measured first; what is under way goes on by itself.
            self.state.paused.store(true, Ordering::Relaxed);
            self.shared.tally().broke(self.reader);
            return Some(self);
        }
        self.state.stopped.store(true, Ordering::Relaxed);
        // An answer that was on its way still counts.
        let rest = async {
            while self.publishing.join_next().await.is_some() {}
            while self.reading.join_next().await.is_some() {}
        };
        let _ = tokio::time::timeout(LAST_ANSWERS, rest).await;
        // All of them are gone before anything comes again, so that it is known what may.
        self.publishing.shutdown().await;
        self.reading.shutdown().await;
        None
    }

    /// Waits for the answers of what is under way; reading goes on.
    async fn publish_no_more(&mut self) {
        self.state.stopped.store(true, Ordering::Relaxed);
        self.state.paused.store(false, Ordering::Relaxed);
        let rest = async { while self.publishing.join_next().await.is_some() {} };
        // Whoever was not answered was promised nothing.
        let _ = tokio::time::timeout(PATIENCE, rest).await;
        self.publishing.shutdown().await;
    }
}

/// Publishes one number after the other.
async fn publish(publisher: Arc<dyn Publish>, carried: bool, shared: Arc<Shared>, state: Arc<State>) {
    let filler = Dice::new(0).text(BODY);
    loop {
        state.unpaused().await;
        if state.stopped.load(Ordering::Relaxed) {
            return;
        }
        let number = shared.next();
        match publisher.publish(&numbered(&filler, number)).await {
            Ok(()) => {
                shared.tally().confirm(number);
                state.confirmed.fetch_add(1, Ordering::Relaxed);
            }
            Err(_) if carried => tokio::time::sleep(DIAL).await,
            Err(_) => return,
        }
    }
}

/// Reads and acks whatever comes.
async fn read_on(mut hands: Hands, carried: bool, state: Arc<State>) -> Result<()> {
    loop {
        state.unpaused().await;
        let mut came = |_| _ = state.read.fetch_add(1, Ordering::Relaxed);
        match hands.read(&mut came).await {
            Ok(()) => {}
            Err(_) if carried => {
                // Which of its acks were refused is not told; each of those messages may come again.
                hands.shared.tally().left(hands.id);
                tokio::time::sleep(DIAL).await;
            }
            Err(error) => return Err(error),
        }
    }
}

async fn first_publish(
    peer: &dyn Peer,
    place: &Place,
    shared: &Shared,
    started: Instant,
) -> Result<Duration> {
    let filler = Dice::new(0).text(BODY);
    let attempt = async |number| {
        let publishers = peer.publishers(place, 1).await?;
        let publisher = publishers.first().context("no publisher")?;
        publisher.publish(&numbered(&filler, number)).await
    };
    while started.elapsed() < PATIENCE {
        // A number of its own for each try: one that was given up may have been heard.
        let number = shared.next();
        if let Ok(Ok(())) = tokio::time::timeout(TRY, attempt(number)).await {
            let took = started.elapsed();
            shared.tally().confirm(number);
            return Ok(took);
        }
        tokio::time::sleep(DIAL).await;
    }
    anyhow::bail!("no publish was confirmed within {} s", PATIENCE.as_secs())
}

/// Waits for the first message with a number below `old`.
async fn first_delivery(
    peer: &dyn Peer,
    place: &Place,
    shared: &Arc<Shared>,
    old: u64,
    started: Instant,
) -> Result<Duration> {
    let attempt = async || {
        let mut hands = Hands::connect(peer, (place, 0), TRY, shared).await?;
        let (mut count, mut first, began) = (0, None, Instant::now());
        loop {
            let mut came = |number| {
                count += 1;
                if number < old {
                    first.get_or_insert_with(|| started.elapsed());
                }
            };
            let read = tokio::time::timeout(LATE, hands.read(&mut came)).await;
            match (read, first) {
                // What is acked with the first must be answered before the reader goes, or it comes again.
                (Ok(Ok(())), Some(took)) if shared.tally().holds(hands.id) == 0 || count >= ENOUGH => {
                    return Ok(took);
                }
                (Ok(Err(_)) | Err(_), Some(took)) => return Ok(took),
                (Ok(Err(error)), None) => return Err(error),
                // Whoever only looks now and then finds nothing without being asked to wait.
                (_, None) if began.elapsed() >= LATE => anyhow::bail!("nothing came"),
                (Ok(Ok(())) | Err(_), _) => {}
            }
        }
    };
    let mut tries = 0;
    while started.elapsed() < PATIENCE && tries < TRIES {
        let before = Instant::now();
        match attempt().await {
            Ok(took) => return Ok(took),
            // Whoever connects and hears nothing for so long has nothing to hear.
            Err(_) if before.elapsed() >= LATE => tries += 1,
            Err(_) => tokio::time::sleep(DIAL).await,
        }
    }
    anyhow::bail!("nothing old was delivered")
}

/// What is missing may be in the hands of a connection that the server takes for alive, such as one that was given up while
/// the server booted. Those end with the server, and nobody is given up here: what does not come now is lost.
async fn drain_after_a_restart(peer: &mut dyn Peer, place: &Place, shared: &Arc<Shared>) -> Result<()> {
    tokio::task::block_in_place(|| {
        peer.kill()?;
        peer.start_again()
    })?;
    let started = Instant::now();
    loop {
        match drain(peer, place, PATIENCE, shared).await {
            Err(_) if started.elapsed() < PATIENCE => tokio::time::sleep(DIAL).await,
            ended => return ended,
        }
    }
}

/// Reads everything that is left, until nothing has come to anybody for a while.
async fn drain(peer: &dyn Peer, place: &Place, within: Duration, shared: &Arc<Shared>) -> Result<()> {
    let hands = Hands::connect(peer, (place, 0), within, shared).await?;
    let mut reading = JoinSet::new();
    reading.spawn(read_on(hands, false, Arc::default()));
    let (mut seen, mut since) = (0, Instant::now());
    loop {
        let (copies, missing) = {
            let tally = shared.tally();
            (tally.copies, tally.missing)
        };
        if copies != seen {
            (seen, since) = (copies, Instant::now());
        }
        // Once all is there, a moment is enough to see what comes twice.
        if since.elapsed() >= if missing == 0 { AFTERMATH } else { SILENCE } {
            return Ok(());
        }
        if let Some(ended) = reading.try_join_next() {
            ended?.context("read what is left")?;
        }
        tokio::time::sleep(LOOK).await;
    }
}
