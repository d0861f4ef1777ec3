//! Workload 1: durable publish to confirm, beside the two floors.
//!
//! So many publishes are under way at all times; each is followed by another when it is confirmed. The floors: the same
//! bytes appended to a file with one sync for what waits together, and a bare WebSocket that echoes frames of the same
//! sizes to the same client; and, beyond what is asked of us, one that answers together what came together. Systems are measured one after the other within a round, in another order each round.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;
use tokio::task::JoinSet;

use super::counting::Counting;
use super::findings::{Case, Findings, Stretch, Workload};
use super::peer::{Peer, Place, Publish, Readers, SOCKETS};
use super::peers::Kind;
use super::plan::Plan;
use super::server::{cpu_seconds, own_cpu_seconds};
use super::systems::{Systems, calm, turns};
use tenure_bench::commit;
use tenure_bench::floor::{EchoServer, TOGETHER};
use tenure_bench::ids::Dice;
use tenure_bench::load::{self, Target, Template};
use tenure_bench::sample::{Sample, Times};

/// The topic of the bare client's sends.
const TOPIC: &str = "publish";
/// How long the last answers of a stretch may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// The floors' names.
pub(crate) const FLOOR_APPEND: &str = "floor-append";
pub(crate) const FLOOR_ECHO: &str = "floor-echo";
pub(crate) const FLOOR_TOGETHER: &str = "floor-echo-together";
const FLOORS: [&str; 3] = [FLOOR_APPEND, FLOOR_ECHO, FLOOR_TOGETHER];

/// What the floors need.
pub(crate) struct Floors {
    dir: TempDir,
    echo: EchoServer,
}

impl Floors {
    /// With files in `dir`.
    pub(crate) fn start(dir: TempDir) -> Result<Floors> {
        Ok(Floors { dir, echo: EchoServer::start(load::answer_len(TOPIC)?)? })
    }

    /// The echo's address.
    pub(crate) fn echo(&self) -> &EchoServer {
        &self.echo
    }

    /// Where the disk's floor may write.
    pub(crate) fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    fn append(&self, bytes: usize, outstanding: usize, times: (Duration, Duration)) -> Result<Stretch> {
        let before = own_cpu_seconds();
        let floor = commit::raw(self.dir.path(), bytes, outstanding, times)?;
        // It is all in this process, warming up included: what is known is an upper bound.
        let stretch = Stretch::new(&floor.sample, own_cpu_seconds() - before, 0.0);
        Ok(Stretch { sync_ms: Some(floor.commit_p50_ms), ..stretch })
    }

    fn echoed(
        &self,
        path: &str,
        template: &Template,
        outstanding: usize,
        times: (Duration, Duration),
    ) -> Result<Stretch> {
        bare(Target::Echo(&self.echo.address, path), self.echo.pid(), template, outstanding, times)
    }
}

/// Measures all rounds of all systems.
pub(crate) async fn run(
    plan: &Plan,
    systems: &Systems,
    floors: &Floors,
    findings: &mut Findings,
) -> Result<()> {
    for body in plan.bodies.iter().copied() {
        let (template, text) = (Template::new(TOPIC, body)?, Dice::new(0).text(body));
        let place = Place::new(format!("publish-{body}"), Readers::Nobody);
        let mut ready = Vec::new();
        for (kind, peer) in systems.keeping() {
            match prepare(kind, peer, &place).await {
                Ok(publishers) => ready.push((kind, peer, publishers)),
                Err(error) => findings.skip(kind.key(), Some("publish"), format!("{error:#}")),
            }
        }
        for round in 0..plan.rounds {
            for outstanding in plan.outstanding.iter().copied() {
                let case = Case { workload: Workload::Publish, body, load: outstanding, readers: "" };
                eprintln!("round {} of {}: {case}", round + 1, plan.rounds);
                for at in turns(case.seed(), round, ready.len() + FLOORS.len()) {
                    tokio::task::block_in_place(|| calm(floors.dir()));
                    let Some((kind, peer, publishers)) = ready.get(at) else {
                        // The last places are the floors'.
                        let Some(floor) = FLOORS.get(at - ready.len()).copied() else { continue };
                        let found = tokio::task::block_in_place(|| match floor {
                            FLOOR_APPEND => floors.append(template.payload_len(), outstanding, plan.times),
                            FLOOR_ECHO => floors.echoed("/", &template, outstanding, plan.times),
                            _ => floors.echoed(TOGETHER, &template, outstanding, plan.times),
                        });
                        findings.round(&case, floor, found);
                        continue;
                    };
                    let found = if *kind == Kind::Tenure {
                        let pid = peer.pids().first().copied().unwrap_or(0);
                        let target = Target::Broker(peer.address().unwrap_or_default());
                        tokio::task::block_in_place(|| bare(target, pid, &template, outstanding, plan.times))
                    } else {
                        closed(*peer, publishers, outstanding, &text, plan.times).await
                    };
                    let purged = peer.purge(&place).await.context("drop what was published");
                    findings.round(&case, kind.key(), found.and_then(|found| purged.map(|()| found)));
                }
            }
        }
        for (kind, peer, publishers) in ready {
            drop(publishers);
            if let Err(error) = peer.close(&place).await {
                eprintln!("{}: it keeps its place: {error:#}", kind.key());
            }
        }
    }
    Ok(())
}

async fn prepare(kind: Kind, peer: &dyn Peer, place: &Place) -> Result<Vec<Arc<dyn Publish>>> {
    peer.open(place).await?;
    if kind == Kind::Tenure {
        // The bare client opens its own, with the same keys.
        return Ok(Vec::new());
    }
    let publishers = peer.publishers(place, SOCKETS).await?;
    Ok(publishers.into_iter().map(Arc::from).collect())
}

/// One stretch by the bare client, whose own thread it takes.
fn bare(
    target: Target<'_>,
    pid: u32,
    template: &Template,
    outstanding: usize,
    times: (Duration, Duration),
) -> Result<Stretch> {
    let read = || (cpu_seconds(&[pid]), own_cpu_seconds());
    let (mut before, mut after) = ((0.0, 0.0), (0.0, 0.0));
    let sample = load::drive(
        target,
        template,
        outstanding,
        times,
        || {
            before = read();
            Ok(())
        },
        || {
            after = read();
            Ok(())
        },
    )?;
    Ok(Stretch::new(&sample, after.0 - before.0, after.1 - before.1))
}

/// One stretch by the system's own client: `outstanding` publishes under way, spread over its connections.
async fn closed(
    peer: &dyn Peer,
    publishers: &[Arc<dyn Publish>],
    outstanding: usize,
    body: &str,
    times: (Duration, Duration),
) -> Result<Stretch> {
    let sockets = publishers.len().min(outstanding).max(1);
    let counting = Arc::new(Counting::default());
    let body: Arc<str> = body.into();
    let mut tasks = JoinSet::new();
    for publisher in publishers.iter().take(sockets).cycle().take(outstanding).cloned() {
        tasks.spawn(publish(publisher, body.clone(), counting.clone()));
    }
    let them = peer.pids();
    let read = || (cpu_seconds(&them), own_cpu_seconds());
    // One failure is enough to end a stretch; the others would wait for what does not come.
    // `join_next` is cancel-safe; the count is not resumed, so it need not be.
    let (window, before, after) = tokio::select! {
        ran = counting.run(times, outstanding as u64, read) => ran,
        Some(ended) = tasks.join_next() => {
            ended??;
            bail!("a publisher went home early");
        }
    };
    let mut times = Times::default();
    let answers = async {
        while let Some(task) = tasks.join_next().await {
            times.merge(task??);
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(PATIENCE, answers).await.context("answers are missing")??;
    let sample = Sample::new(window, times);
    Ok(Stretch::new(&sample, after.0 - before.0, after.1 - before.1))
}

async fn publish(publisher: Arc<dyn Publish>, body: Arc<str>, counting: Arc<Counting>) -> Result<Times> {
    let mut times = Times::default();
    while !counting.is_over() {
        let sent = Instant::now();
        publisher.publish(&body).await?;
        if counting.happened(1) {
            times.add(sent.elapsed());
        }
    }
    Ok(times)
}
