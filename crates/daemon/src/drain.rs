//! The drain of one session: `tenure_outbox::Drain` with a disk, a broker and a clock.
//!
//! One task owns it. What it asks for is a future; what that comes to is told to it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tenure_outbox::arrival::Recipient;
use tenure_outbox::drain::{DISK_MS, DiskFault, DrainEffect};
use tenure_outbox::revival::revival;
use tenure_outbox::verdict::{LAPSED, Verdict};
use tenure_outbox::{Drain, FoundLane, LaneId, Outgoing, Settled, Settlement};
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::message::SendResult;
use tenure_proto::method::Method;

use crate::db::DbError;
use crate::link::{Standing, Told};
use crate::sessions::Local;
use crate::shared::Shared;
use crate::visits;

/// How long answers that are on their way are waited for when the drain ends.
const LAST_WORDS: Duration = Duration::from_secs(2);

type Work = Pin<Box<dyn Future<Output = Done> + Send>>;

/// What a future of the drain has come to.
enum Done {
    Taken(LaneId, Result<Vec<Outgoing>, DbError>),
    Answered(LaneId, Box<Result<SendResult, WireError>>),
    /// Whether our own session is over, asked after this refusal.
    Probed(LaneId, Box<WireError>, bool),
    Settled(LaneId, Result<Settled, DbError>),
    Expired(Result<u64, DbError>),
}

struct Task {
    shared: Arc<Shared>,
    local: Arc<Local>,
    drain: Drain,
    work: FuturesUnordered<Work>,
}

/// Drains the outbox of `local` until it leaves.
pub(crate) async fn run(shared: Arc<Shared>, local: Arc<Local>) {
    let mut seed = [0u8; 8];
    // Without randomness waits are the same everywhere, and still waits.
    let _ = getrandom::fill(&mut seed);
    let drain = Drain::new(u64::from_le_bytes(seed), shared.clock.now());
    let mut task = Task { shared, local, drain, work: FuturesUnordered::new() };
    let leaving = task.local.leaving.clone();
    // A disk that cannot be read now is asked again: who gave up here would leave rows that nobody ever sends.
    while let Err(error) = task.find().await {
        fault(error);
        // Both are cancel-safe: they only wait.
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(DISK_MS)) => {}
            () = leaving.cancelled() => return,
        }
    }
    task.run().await;
    revive(&task.shared, &task.local).await;
}

/// Takes a session up again that is over though nobody here wanted that, as `tenure_outbox::revival` says.
async fn revive(shared: &Arc<Shared>, local: &Local) {
    let (over, reason) = (local.standing.borrow().lost(), local.standing.borrow().why_not());
    if over.is_some() && local.own {
        tracing::error!(event = "mesh_failed", mesh = %local.mesh, reason, "its rows wait for the next start");
    }
    // The key of a visit is nobody else's, and gone with it.
    let over = over.filter(|_| local.visit.is_none());
    let Some(revival) = over.and_then(|over| revival(over, local.own)) else { return };
    loop {
        // All of these are cancel-safe. Who leaves is not taken up again.
        tokio::select! {
            biased;
            () = local.leaving.cancelled() => return,
            () = local.queue.rung(), if revival.when_used => {}
            () = tokio::time::sleep(Duration::from_millis(revival.after_ms)) => {}
        }
        match shared.revive_session(local) {
            Ok(()) => return,
            Err(error) => tracing::error!(event = "session_lost", session = %local.key, %error),
        }
    }
}

impl Task {
    /// The lanes that had rows before.
    async fn find(&mut self) -> Result<(), DbError> {
        let mut found = self.shared.outbox.lanes(self.local.mesh.clone(), self.local.key).await?;
        if self.local.own {
            found.extend(orphans(&self.shared, &self.local).await?);
        }
        let now = self.shared.clock.now();
        found.into_iter().for_each(|lane| self.drain.found(now, lane));
        Ok(())
    }

    async fn run(&mut self) {
        let mut standing = self.local.standing.clone();
        let mut attached = false;
        loop {
            let now = standing.borrow_and_update().clone();
            match now {
                // Nothing is sent that may be too old before it is known how late it is.
                Standing::Attached { clock: Told::Asked, .. } if !attached => {}
                Standing::Attached { max_age_hours, clock } if !attached => {
                    attached = true;
                    let apart_ms = if let Told::Apart(ms) = clock { Some(ms) } else { None };
                    self.drain.compared(self.shared.clock.now(), apart_ms);
                    if self.shared.config.max_age_hours.is_none() {
                        self.local.remember_age(max_age_hours);
                    }
                    self.drain.attached(self.shared.clock.now(), max_age_hours);
                }
                Standing::Attached { .. } => {}
                _ if attached => {
                    attached = false;
                    self.drain.detached();
                }
                _ => {}
            }
            self.local.queue.take().into_iter().for_each(|lane| self.drain.queued(lane));
            self.drain.tick(self.shared.clock.now());
            self.carry_out();
            if self.drain.is_empty()
                && self.local.is_closing()
                && is_finished(&self.shared, &self.local).await
                && self.shared.sessions.bury(&self.local).await
            {
                if self.local.visit.is_some() {
                    visits::forget(&self.shared, Recipient::Session(self.local.key)).await;
                }
                return;
            }
            let due = self.drain.next_deadline().map(|at| self.shared.clock.until(at));
            // All of these are cancel-safe.
            tokio::select! {
                Some(done) = self.work.next() => self.done(done),
                () = self.local.queue.rung() => {}
                // Over: nothing can be sent any more, but what was promised stays on the disk.
                changed = standing.changed() => if changed.is_err() { return self.finish().await },
                () = tokio::time::sleep(due.unwrap_or_default()), if due.is_some() => {}
                () = self.local.leaving.cancelled() => return self.finish().await,
            }
        }
    }

    fn carry_out(&mut self) {
        while let Some(effect) = self.drain.poll_effect() {
            let (shared, local) = (Arc::clone(&self.shared), Arc::clone(&self.local));
            self.work.push(match effect {
                DrainEffect::Take(lane, limit) => {
                    Box::pin(async move { Done::Taken(lane, shared.outbox.take(lane, limit).await) })
                }
                DrainEffect::Send(lane, row) => Box::pin(async move {
                    let answer = local.client.request(Method::Send, row.params).await;
                    Done::Answered(lane, Box::new(answer))
                }),
                DrainEffect::Probe(lane, refusal) => Box::pin(async move {
                    let own = local.client.ping().await;
                    let over = own.is_err_and(|error| error.code == ErrorCode::LeaseExpired);
                    Done::Probed(lane, refusal, over)
                }),
                DrainEffect::Settle(settlement) => {
                    warn_of_dead(&settlement);
                    Box::pin(async move {
                        let lane = settlement.lane;
                        Done::Settled(lane, shared.outbox.settle(*settlement, shared.clock.wall()).await)
                    })
                }
                DrainEffect::Expire(cutoff) => Box::pin(async move {
                    let wall = shared.clock.wall();
                    Done::Expired(shared.outbox.expire(local.mesh.clone(), cutoff, wall).await)
                }),
            });
        }
    }

    fn done(&mut self, done: Done) {
        let now = self.shared.clock.now();
        match done {
            Done::Taken(lane, rows) => self.drain.taken(now, lane, rows.map_err(fault)),
            Done::Answered(lane, answer) => self.drain.answered(now, lane, (*answer).as_ref()),
            Done::Probed(lane, refusal, over) => self.drain.probed(now, lane, &refusal, over),
            Done::Settled(lane, settled) => self.drain.settled(now, lane, settled.map_err(fault)),
            Done::Expired(rows) => {
                if let Ok(rows @ 1..) = rows {
                    tracing::warn!(event = "outbox_expired", rows, "too old to be sent safely");
                }
                self.drain.expired(now, rows.map_err(fault))
            }
        }
        self.carry_out();
    }

    /// Writes down what is known already; what is on its way is sent again at the next start.
    async fn finish(&mut self) {
        self.drain.detached();
        let deadline = tokio::time::sleep(LAST_WORDS);
        tokio::pin!(deadline);
        while !self.drain.is_idle() {
            // Both are cancel-safe: what is under way stays in `work`, and the deadline is the same every time.
            tokio::select! {
                Some(done) = self.work.next() => self.done(done),
                () = &mut deadline => return,
                else => return,
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

/// What a failure of the disk means: whether waiting for it can help.
fn fault(error: DbError) -> DiskFault {
    // A disk that is full or has failed for good was named by who writes; it is asked again and again.
    if !matches!(error, DbError::Poisoned(_) | DbError::Full(_)) {
        tracing::error!(event = "drain_disk", %error);
    }
    match error {
        DbError::Poisoned(_) | DbError::Corrupt(_) => DiskFault::ForGood,
        _ => DiskFault::ForNow,
    }
}

fn warn_of_dead(settlement: &Settlement) {
    for (row, verdict) in &settlement.verdicts {
        match verdict {
            Verdict::Dead { error } => {
                tracing::warn!(event = "outbox_dead", row, error, "the broker will not have it");
            }
            Verdict::Lapsed => tracing::warn!(event = "outbox_dead", row, LAPSED),
            Verdict::Done(_) | Verdict::Again { .. } => {}
        }
    }
}

/// Whether a session that was let go has sent everything, as far as the disk knows.
async fn is_finished(shared: &Shared, local: &Local) -> bool {
    let left = shared.outbox.lanes(local.mesh.clone(), local.key).await;
    left.is_ok_and(|lanes| lanes.is_empty())
}
