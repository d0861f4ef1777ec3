//! Workload 4: what connected, subscribed sessions cost while nothing happens.
//!
//! One system at a time, alone on the machine. Memory is what the server's processes hold with all sessions, less what they
//! held before the first; pages that several processes share are counted once.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::findings::{Findings, Idle};
use super::peer::Answer;
use super::peers::{Ground, Kind};
use super::plan::Plan;
use super::server::{cpu_seconds, held_bytes};
use super::systems;
use tenure_bench::report::round;

/// How long a server comes to rest after its start, at most.
const START: Duration = Duration::from_secs(5);

/// Measures every system that has sessions.
pub(crate) async fn run(plan: &Plan, kinds: &[Kind], ground: &Ground, findings: &mut Findings) -> Result<()> {
    for kind in kinds.iter().copied().filter(|kind| kind.has_sessions()) {
        for sessions in plan.idle.iter().copied() {
            eprintln!("{}: {sessions} idle sessions", kind.key());
            if let Err(error) = one(plan, kind, sessions, ground, findings).await {
                findings.skip(kind.key(), Some("idle"), format!("{sessions} sessions: {error:#}"));
            }
        }
    }
    Ok(())
}

async fn one(
    plan: &Plan,
    kind: Kind,
    sessions: usize,
    ground: &Ground,
    findings: &mut Findings,
) -> Result<()> {
    let Some(peer) = systems::one(kind, ground, findings).await else { return Ok(()) };
    let pids = peer.pids();
    // What a start needs for a moment is not what sessions are measured against.
    tokio::time::sleep(plan.settle.min(START)).await;
    let empty = held_bytes(&pids);
    let started = Instant::now();
    let crowd = match peer.crowd(sessions).await.context("connect sessions")? {
        Answer::Yes(crowd) => crowd,
        Answer::No(why) => {
            findings.skip(kind.key(), Some("idle"), format!("{sessions} sessions: {why}"));
            return Ok(());
        }
    };
    let connect_seconds = round(started.elapsed().as_secs_f64(), 2);
    tokio::time::sleep(plan.settle).await;
    let (before, since) = (cpu_seconds(&pids), Instant::now());
    tokio::time::sleep(plan.watch).await;
    let idle_seconds = since.elapsed().as_secs_f64();
    let idle_percent = round(100.0 * (cpu_seconds(&pids) - before) / idle_seconds, 2);
    let full = held_bytes(&pids);
    let bytes_per_session = round(full.saturating_sub(empty) as f64 / sessions.max(1) as f64, 0);
    findings.idle.push(Idle {
        system: kind.key(),
        sessions,
        what: crowd.what(),
        empty_bytes: empty,
        full_bytes: full,
        bytes_per_session,
        connect_seconds,
        idle_percent,
        idle_seconds: round(idle_seconds, 1),
    });
    Ok(())
}
