//! Runs that are answered all the while: callers who count the chunks, and agents who count them out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::{Value, json};
use tenure_client::proto::SessionKey;
use tenure_client::{Answer, Run, RunError, Session};
use tokio::task::JoinSet;

/// From one chunk of a run to the next.
const PACE: Duration = Duration::from_millis(100);
/// How long a call may wait for a broker.
const CALL_PATIENCE: Duration = Duration::from_secs(180);
/// How often a wait looks again.
const LOOK: Duration = Duration::from_millis(50);

/// Runs that are under way.
pub(super) struct Calls {
    count: usize,
    stop: Arc<AtomicBool>,
    callers: JoinSet<Result<u64>>,
}

impl Calls {
    /// The first sessions answer, the last ones call. Returns when every caller has been given a chunk.
    pub(super) async fn start(sessions: &[Session], count: usize, patience: Duration) -> Result<Calls> {
        let (stop, heard) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let mut callers = JoinSet::new();
        for (agent, caller) in sessions.iter().zip(sessions.iter().rev()).take(count) {
            let stop = stop.clone();
            let server = agent.serve_runs(move |run| count_out(run, stop.clone()));
            tokio::spawn(async move { server.await });
            callers.spawn(call(caller.clone(), agent.key(), heard.clone()));
        }
        let started = Instant::now();
        while heard.load(Ordering::Relaxed) < count {
            if started.elapsed() > patience {
                bail!("only {} of {count} runs were answered", heard.load(Ordering::Relaxed));
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(Calls { count, stop, callers })
    }

    /// Has every agent come to its end; how many runs have failed.
    pub(super) async fn end(mut self, patience: Duration) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let (mut good, mut gaps) = (0, 0);
        let ends = async {
            while let Some(end) = self.callers.join_next().await {
                match end {
                    Ok(Ok(told)) => (good, gaps) = (good + 1, gaps + told),
                    Ok(Err(error)) => eprintln!("a run failed: {error:#}"),
                    Err(error) => eprintln!("a caller failed: {error}"),
                }
            }
        };
        if tokio::time::timeout(patience, ends).await.is_err() {
            eprintln!("runs have not ended");
        }
        eprintln!("{good} of {} runs ended well; {gaps} gaps were told", self.count);
        (self.count - good) as u64
    }
}

/// An agent that says 0, 1, 2 and so on until it is told to stop; how many it said is its result.
async fn count_out(run: Run, stop: Arc<AtomicBool>) -> Result<Value, RunError> {
    let mut pace = tokio::time::interval(PACE);
    let mut said: u64 = 0;
    while !stop.load(Ordering::Relaxed) {
        pace.tick().await;
        run.chunk(said).await?;
        said += 1;
    }
    Ok(json!(said))
}

/// A caller that counts along; how many gaps it was told of.
async fn call(session: Session, agent: SessionKey, heard: Arc<AtomicUsize>) -> Result<u64> {
    let mut answer = session.call(agent, "count").patience(CALL_PATIENCE).await?;
    let (mut expected, mut gaps) = (0, 0);
    loop {
        let (number, gap, over) = match answer.next().await? {
            Answer::Chunk { data, gap } => (data.as_u64(), gap, false),
            Answer::End { result, gap } => (result.as_u64(), gap, true),
        };
        gaps += u64::from(gap);
        match number {
            Some(number) if number == expected || (gap && number > expected) => expected = number,
            other => bail!("{other:?} came where {expected} was next, and no gap was told"),
        }
        if over {
            return Ok(gaps);
        }
        if expected == 0 {
            heard.fetch_add(1, Ordering::Relaxed);
        }
        expected += 1;
    }
}
