//! The drain of one session: takes rows as the schedule says, sends them, and writes down what became of them.
//!
//! One task owns the schedule. An attempt is a future: mark the row as sent, send it, judge the answer; then another
//! writes the verdict down, and only when that is on the disk does the lane go on. So a crash at any moment leaves a row
//! that is sent again under its id, or one that is done.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tenure_core::outbox::age::Ageing;
use tenure_core::outbox::verdict::{Verdict, judge};
use tenure_core::outbox::{LaneId, Schedule};
use tenure_proto::error::ErrorCode;
use tenure_proto::message::SendResult;
use tenure_proto::method::Method;

use crate::db::DbError;
use crate::link::Standing;
use crate::outbox::{FoundLane, Outgoing};
use crate::sessions::Local;
use crate::shared::Shared;

/// How often rows that are too old are looked for.
const AGEING: Duration = Duration::from_secs(60);
/// How long to wait for a disk that does not write now.
const DISK_MS: u64 = 1_000;
/// How long answers that are on their way are waited for when the drain ends.
const LAST_WORDS: Duration = Duration::from_secs(2);

type Work = Pin<Box<dyn Future<Output = Done> + Send>>;

/// What a future of the drain has come to.
enum Done {
    /// The lane had no row to send.
    Nothing(LaneId),
    /// A row was sent, and this is what the answer means.
    Judged(LaneId, u64, Verdict),
    /// The verdict is on the disk; whether the lane has more.
    Settled(LaneId, bool),
    /// The same, and the next row of the lane, which is marked as sent.
    Next(LaneId, Box<Outgoing>),
    /// The same, of a row that is to be sent again after so many milliseconds.
    Waits(LaneId, u64),
    /// The disk did not write.
    Disk(LaneId, DbError),
}

struct Drain {
    shared: Arc<Shared>,
    local: Arc<Local>,
    schedule: Schedule,
    ageing: Ageing,
    work: FuturesUnordered<Work>,
}

/// Drains the outbox of `local` until it leaves.
pub(crate) async fn run(shared: Arc<Shared>, local: Arc<Local>) {
    let mut seed = [0u8; 8];
    // Without randomness waits are the same everywhere, and still waits.
    let _ = getrandom::fill(&mut seed);
    let ageing = Ageing::new(shared.clock.now());
    let schedule = Schedule::new(u64::from_le_bytes(seed));
    let mut drain = Drain { shared, local, schedule, ageing, work: FuturesUnordered::new() };
    if let Err(error) = drain.find().await {
        tracing::error!(event = "drain_failed", session = %drain.local.key, %error);
        return;
    }
    drain.run().await;
}

impl Drain {
    /// The lanes that had rows before.
    async fn find(&mut self) -> Result<(), DbError> {
        let mut found = self.shared.outbox.lanes(self.local.mesh.clone(), self.local.key).await?;
        if self.local.own {
            found.extend(orphans(&self.shared, &self.local).await?);
        }
        let now = self.shared.clock.now();
        for lane in found {
            let wait = lane.next_attempt_at.saturating_sub(now.wall);
            self.schedule.found(now.at, lane.lane, lane.attempts, wait);
        }
        Ok(())
    }

    async fn run(&mut self) {
        let mut standing = self.local.standing.clone();
        let mut ageing = tokio::time::interval(AGEING);
        let mut attached = false;
        loop {
            let now = standing.borrow_and_update().clone();
            if now.is_attached() != attached {
                attached = now.is_attached();
                if attached {
                    self.expire(&now).await;
                    self.schedule.open();
                } else {
                    self.schedule.shut();
                }
            }
            self.local.queue.take().into_iter().for_each(|lane| self.schedule.queued(lane));
            for lane in self.schedule.take(self.shared.clock.at()) {
                self.work.push(Box::pin(attempt(Arc::clone(&self.shared), Arc::clone(&self.local), lane)));
            }
            if self.schedule.is_empty()
                && self.local.is_closing()
                && is_finished(&self.shared, &self.local).await
                && self.shared.sessions.bury(&self.local).await
            {
                return;
            }
            let due = self.schedule.next_deadline().map(|at| self.shared.clock.until(at));
            // All of these are cancel-safe.
            tokio::select! {
                Some(done) = self.work.next() => self.done(done),
                () = self.local.queue.rung() => {}
                // Over: nothing can be sent any more, but what was promised stays on the disk.
                changed = standing.changed() => if changed.is_err() { return self.finish().await },
                () = tokio::time::sleep(due.unwrap_or_default()), if due.is_some() => {}
                _ = ageing.tick(), if attached => self.expire(&now).await,
                () = self.local.leaving.cancelled() => return self.finish().await,
            }
        }
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::Nothing(lane) => self.schedule.decided(lane, false),
            Done::Judged(lane, row, verdict) => self.settle(lane, row, verdict),
            Done::Settled(lane, more) => self.schedule.decided(lane, more),
            Done::Next(lane, row) => self.work.push(Box::pin(send(Arc::clone(&self.local), lane, *row))),
            Done::Waits(lane, wait) => self.schedule.refused(self.shared.clock.at(), lane, wait),
            Done::Disk(lane, error) => {
                tracing::error!(event = "drain_disk", session = %self.local.key, %error);
                self.schedule.refused(self.shared.clock.at(), lane, DISK_MS);
            }
        }
    }

    /// Writes a verdict down, however long the disk takes.
    fn settle(&mut self, lane: LaneId, row: u64, verdict: Verdict) {
        let wait = match &verdict {
            Verdict::Again { wish_ms, .. } => Some(self.schedule.wait_ms(lane, *wish_ms)),
            Verdict::Dead { error } => {
                tracing::warn!(event = "outbox_dead", row, error, "the broker will not have it");
                None
            }
            Verdict::Done(_) => None,
        };
        let goes_on = wait.is_none() && self.schedule.goes_on(lane);
        let shared = Arc::clone(&self.shared);
        self.work.push(Box::pin(async move {
            loop {
                let wall = shared.clock.wall();
                if goes_on {
                    match shared.outbox.settle_and_take(row, verdict.clone(), wall, lane).await {
                        Ok(Some(next)) => return Done::Next(lane, Box::new(next)),
                        Ok(None) => return Done::Settled(lane, false),
                        Err(error) if is_final(&error) => return Done::Disk(lane, error),
                        Err(_) => tokio::time::sleep(Duration::from_millis(DISK_MS)).await,
                    }
                    continue;
                }
                let next = wall.saturating_add(wait.unwrap_or(0));
                match (shared.outbox.settle(row, verdict.clone(), wall, next).await, wait) {
                    (Ok(more), None) => return Done::Settled(lane, more),
                    (Ok(_), Some(wait)) => return Done::Waits(lane, wait),
                    (Err(error), _) if is_final(&error) => return Done::Disk(lane, error),
                    (Err(_), _) => tokio::time::sleep(Duration::from_millis(DISK_MS)).await,
                }
            }
        }));
    }

    /// Gives up what is too old to be sent: the broker may have forgotten its id.
    async fn expire(&mut self, standing: &Standing) {
        let Standing::Attached { max_age_hours } = standing else { return };
        let Some(cutoff) = self.ageing.cutoff(self.shared.clock.now(), *max_age_hours) else { return };
        loop {
            match self.shared.outbox.expire(self.local.mesh.clone(), cutoff).await {
                Ok(0) => return,
                Ok(rows) => tracing::warn!(event = "outbox_expired", rows, "too old to be sent safely"),
                Err(error) => return tracing::error!(event = "drain_disk", %error),
            }
        }
    }

    /// Writes down what is known already; what is on its way is sent again at the next start.
    async fn finish(&mut self) {
        self.schedule.shut();
        let mut left = std::mem::take(&mut self.work);
        let deadline = tokio::time::sleep(LAST_WORDS);
        tokio::pin!(deadline);
        loop {
            tokio::select! {
                done = left.next() => match done {
                    Some(Done::Judged(lane, row, verdict)) => {
                        self.settle(lane, row, verdict);
                        left.extend(std::mem::take(&mut self.work));
                    }
                    Some(Done::Next(lane, row)) => {
                        let error = "unavailable: the daemon or its session was ending".to_owned();
                        self.settle(lane, row.id, Verdict::Again { error, wish_ms: None });
                        left.extend(std::mem::take(&mut self.work));
                    }
                    Some(_) => {}
                    None => return,
                },
                () = &mut deadline => return,
            }
        }
    }
}

/// Lanes of senders that are not here any more: ids are the member's, so the daemon's own session may send them.
async fn orphans(shared: &Shared, local: &Local) -> Result<Vec<FoundLane>, DbError> {
    let mut found = Vec::new();
    for (mesh, sender) in shared.outbox.senders().await? {
        let here = shared.sessions.get(&local.mesh, &sender).is_some();
        if mesh == local.mesh.as_str() && !here {
            found.extend(shared.outbox.lanes(local.mesh.clone(), sender).await?);
        }
    }
    Ok(found)
}

/// Whether waiting for the disk cannot help.
fn is_final(error: &DbError) -> bool {
    matches!(error, DbError::Poisoned(_) | DbError::Corrupt(_))
}

/// Whether a session that was let go has sent everything, as far as the disk knows.
async fn is_finished(shared: &Shared, local: &Local) -> bool {
    let left = shared.outbox.lanes(local.mesh.clone(), local.key).await;
    left.is_ok_and(|lanes| lanes.is_empty())
}

async fn attempt(shared: Arc<Shared>, local: Arc<Local>, lane: LaneId) -> Done {
    match shared.outbox.take(lane).await {
        Ok(Some(row)) => send(local, lane, row).await,
        Ok(None) => Done::Nothing(lane),
        Err(error) => Done::Disk(lane, error),
    }
}

/// Sends a row that is marked as sent, and judges the answer.
async fn send(local: Arc<Local>, lane: LaneId, row: Outgoing) -> Done {
    let Outgoing { id, params, .. } = row;
    let answer: Result<SendResult, _> = local.client.request(Method::Send, params).await;
    // A lease that has ended may be the receiver's, or our own: then the message is not to blame.
    let over = match &answer {
        Err(error) if error.code == ErrorCode::LeaseExpired => {
            let own = local.client.ping().await;
            own.is_err_and(|error| error.code == ErrorCode::LeaseExpired)
        }
        _ => false,
    };
    Done::Judged(lane, id, judge(answer.as_ref(), over))
}
