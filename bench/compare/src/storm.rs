//! Workload 5: every session loses its socket at once; or the server is killed and started again.
//!
//! Meanwhile somebody sends messages to the sessions, one after the other, and remembers which were confirmed: each of
//! those must be given to its session's application once. What came is looked at once more when all rounds are over, for
//! a message may come again in a later round.
//!
//! A watcher counts presence events from before the first break until so long after the last one that a lease which did
//! not survive it has ended. A cut spares the watcher. A restart takes its socket like everybody's: ours then compares
//! the roster with the one before ([`tenure_bench::watcher`]), so that what happened meanwhile is counted too.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::task::JoinSet;

use super::crowd::Crowd;
use super::findings::{Break, Findings, Storm};
use super::peer::{Answer, Peer};
use super::peers::{Ground, Kind};
use super::plan::Plan;
use super::systems;
use tenure_bench::proc;
use tenure_bench::report::round;
use tenure_bench::sample::median;

/// Sends that may be on their way; past it the next waits.
const OUTSTANDING: usize = 4_096;
/// How long nothing may come before a round is over although a confirmed message is missing: longer than anybody waits
/// for an ack.
const SILENCE: Duration = Duration::from_secs(8);
/// How long to look for doubles once all of a round is there.
const AFTERMATH: Duration = Duration::from_millis(500);
/// Numbers that a round's messages may have.
const MAIL_BLOCK: u64 = 1 << 20;
/// How often a wait looks again.
const LOOK: Duration = Duration::from_millis(20);

/// Measures every system that has sessions: cut off first, then through a restart.
pub(crate) async fn run(plan: &Plan, kinds: &[Kind], ground: &Ground, findings: &mut Findings) -> Result<()> {
    for (how, (sessions, rounds)) in [(Break::Cut, plan.cut), (Break::Restart, plan.restart)] {
        for kind in kinds.iter().copied().filter(|kind| kind.has_sessions()) {
            eprintln!("{}: {sessions} sessions, {how:?}, {rounds} times", kind.key());
            if let Err(error) = one(plan, kind, how, (sessions, rounds), ground, findings).await {
                findings.skip(kind.key(), Some("storm"), format!("{sessions} sessions: {error:#}"));
            }
        }
    }
    Ok(())
}

async fn one(
    plan: &Plan,
    kind: Kind,
    how: Break,
    (sessions, rounds): (usize, usize),
    ground: &Ground,
    findings: &mut Findings,
) -> Result<()> {
    proc::check_files(sessions + 1)?;
    let Some(mut peer) = systems::one(kind, ground, findings).await else { return Ok(()) };
    // Few first: whether anybody would come back is known from two sessions, too.
    if let Answer::Yes(few) = peer.crowd(2).await.context("connect sessions")?
        && let Some(why) = few.no_return()
    {
        findings.skip(kind.key(), Some("storm"), why);
        return Ok(());
    }
    drop(peer);
    let Some(fresh) = systems::one(kind, ground, findings).await else { return Ok(()) };
    peer = fresh;
    let crowd: Arc<dyn Crowd> = match peer.crowd(sessions).await.context("connect sessions")? {
        Answer::Yes(crowd) => crowd.into(),
        Answer::No(why) => {
            findings.skip(kind.key(), Some("storm"), format!("{sessions} sessions: {why}"));
            return Ok(());
        }
    };
    let (mut found, mut presence) = (Vec::new(), 0);
    for number in 0..rounds {
        let rest = if number == 0 { Duration::ZERO } else { crowd.rest() };
        tokio::time::sleep(plan.steady.max(rest)).await;
        if number == 0 {
            presence = crowd.presence().unwrap_or(0);
        }
        found.push(storm(plan, &mut *peer, &crowd, how, number as u64).await?);
    }
    let last = found.last().context("there was no round")?.cut;
    if crowd.presence().is_some() {
        tokio::time::sleep(plan.aftermath.saturating_sub(last.elapsed())).await;
    }
    let presence_events = crowd.presence().map(|now| now.saturating_sub(presence));
    let watched_seconds = round(last.elapsed().as_secs_f64(), 1);
    let confirmed: Vec<u64> = found.iter().flat_map(|round| round.confirmed.iter().copied()).collect();
    let missing =
        || crowd.notes().copies(&confirmed).into_iter().filter(|copies| *copies == 0).count() as u64;
    // Late is not lost: what is missing may come for as long as presence is watched.
    while missing() > 0 && last.elapsed() < plan.aftermath {
        tokio::time::sleep(LOOK).await;
    }
    let lost = missing();
    let least = found.iter().map(|round| round.confirmed.len() as u64).min().unwrap_or(0);
    let middle = |pick: fn(&Round) -> f64| round(median(found.iter().map(pick)), 1);
    findings.storms.push(Storm {
        system: kind.key(),
        how,
        sessions,
        what: crowd.what(),
        rounds,
        p50_ms: middle(|round| round.p50_ms),
        p95_ms: middle(|round| round.p95_ms),
        last_ms: middle(|round| round.last_ms),
        never_back: found.iter().map(|round| round.never_back).sum(),
        presence_events,
        watched_seconds,
        presence_by: crowd.presence_by(),
        confirmed: crowd.sends().then_some(confirmed.len() as u64),
        confirmed_least: crowd.sends().then_some(least),
        lost,
        doubled: crowd.notes().doubled(),
    });
    Ok(())
}

/// One break.
#[derive(Clone, Debug)]
struct Round {
    cut: Instant,
    p50_ms: f64,
    p95_ms: f64,
    last_ms: f64,
    never_back: u64,
    /// Numbers of the messages that were confirmed.
    confirmed: Vec<u64>,
}

async fn storm(
    plan: &Plan,
    peer: &mut dyn Peer,
    crowd: &Arc<dyn Crowd>,
    how: Break,
    number: u64,
) -> Result<Round> {
    let mail = crowd.sends().then(|| Mail::start(crowd.clone(), plan, number * MAIL_BLOCK));
    tokio::time::sleep(plan.steady.min(Duration::from_secs(1))).await;
    let cut = Instant::now();
    match how {
        Break::Cut => crowd.cut().await.context("cut the sockets")?,
        Break::Restart => tokio::task::block_in_place(|| {
            peer.kill().context("kill the server")?;
            peer.start_again().context("start the server again")
        })?,
    }
    let mut back = crowd.notes().back_since(cut);
    while back.len() < crowd.count() && cut.elapsed() < plan.patience {
        tokio::time::sleep(LOOK).await;
        back = crowd.notes().back_since(cut);
    }
    back.sort();
    let at = |share: f64| {
        let rank = (crowd.count() as f64 * share).ceil() as usize;
        let then = back.get(rank.saturating_sub(1)).copied();
        then.map_or(f64::NAN, |then| then.saturating_duration_since(cut).as_secs_f64() * 1_000.0)
    };
    let confirmed = match mail {
        Some(mail) => mail.settle(crowd).await,
        None => Vec::new(),
    };
    Ok(Round {
        cut,
        p50_ms: at(0.5),
        p95_ms: at(0.95),
        last_ms: at(1.0),
        never_back: crowd.count().saturating_sub(back.len()) as u64,
        confirmed,
    })
}

/// Messages to sessions that are under way.
struct Mail {
    stop: Arc<AtomicBool>,
    confirmed: Arc<Mutex<Vec<u64>>>,
    /// Ends with its owner: it holds the crowd, too.
    task: JoinSet<()>,
}

impl Mail {
    /// Sends as many a second as the plan says, numbered from `first` on; one that takes longer than a session may to be back
    /// counts as not confirmed.
    fn start(crowd: Arc<dyn Crowd>, plan: &Plan, first: u64) -> Mail {
        let (stop, confirmed) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<u64>>>::default());
        let mut task = JoinSet::new();
        task.spawn(send(crowd, (plan.mail, plan.patience), first, stop.clone(), confirmed.clone()));
        Mail { stop, confirmed, task }
    }

    /// Sends no more, waits until all that was confirmed has come, or nothing has for a while; the numbers that were
    /// confirmed.
    async fn settle(mut self, crowd: &Arc<dyn Crowd>) -> Vec<u64> {
        self.stop.store(true, Ordering::Relaxed);
        // However it ended, what it wrote down counts.
        while self.task.join_next().await.is_some() {}
        let confirmed = self.confirmed.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (mut seen, mut since) = (0, Instant::now());
        loop {
            let copies = crowd.notes().copies(&confirmed);
            let here = copies.iter().filter(|copies| **copies > 0).count();
            if here == confirmed.len() || since.elapsed() > SILENCE {
                break;
            }
            if here != seen {
                (seen, since) = (here, Instant::now());
            }
            tokio::time::sleep(LOOK).await;
        }
        tokio::time::sleep(AFTERMATH).await;
        confirmed
    }
}

async fn send(
    crowd: Arc<dyn Crowd>,
    (rate, patience): (u64, Duration),
    first: u64,
    stop: Arc<AtomicBool>,
    confirmed: Arc<Mutex<Vec<u64>>>,
) {
    let mut pace = tokio::time::interval(Duration::from_micros(1_000_000 / rate.max(1)));
    let mut sends = JoinSet::new();
    for number in first.. {
        pace.tick().await;
        while sends.len() >= OUTSTANDING || sends.try_join_next().is_some() {
            if sends.len() >= OUTSTANDING {
                sends.join_next().await;
            }
        }
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let (crowd, confirmed) = (crowd.clone(), confirmed.clone());
        sends.spawn(async move {
            let to = number as usize % crowd.count().max(1);
            // What is refused, or not answered in time, was never promised.
            if let Ok(Ok(())) = tokio::time::timeout(patience, crowd.send(to, number)).await {
                confirmed.lock().unwrap_or_else(PoisonError::into_inner).push(number);
            }
        });
    }
    while sends.join_next().await.is_some() {}
}
