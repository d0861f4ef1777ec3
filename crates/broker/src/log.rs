//! The named events of operations: the rules' notes as log lines and counters.

use std::time::{Duration, Instant};

use tenure_mesh::effect::Note;

use crate::metrics::Metrics;

/// Lines a second of those events that a client can cause at will; the rest of them are said at debug level.
const LINES: u32 = 20;

/// Writes notes to the log.
#[derive(Debug)]
pub(crate) struct Log {
    second: Instant,
    lines: u32,
}

impl Log {
    pub(crate) fn new() -> Log {
        Log { second: Instant::now(), lines: 0 }
    }

    /// Whether one more line of what a client can cause at will may be said aloud.
    fn aloud(&mut self) -> bool {
        if self.second.elapsed() >= Duration::from_secs(1) {
            (self.second, self.lines) = (Instant::now(), 0);
        }
        self.lines = self.lines.saturating_add(1);
        self.lines <= LINES
    }

    /// Logs a note under its name and counts it.
    pub(crate) fn note(&mut self, note: &Note, metrics: &Metrics) {
        metrics.event(name(note));
        match note {
            Note::Requeued { count, .. } => _ = metrics.requeued.inc_by(*count as u64),
            Note::Buried { .. } => _ = metrics.buried.inc(),
            Note::EntryDamaged { .. } => _ = metrics.damaged.inc(),
            Note::ReconcileDone(done) => {
                for (action, count) in [
                    ("keep", done.keep),
                    ("close_client_side", done.close_client_side),
                    ("close_server_side", done.close_server_side),
                    ("recreate_client_side", done.recreate_client_side),
                ] {
                    metrics.reconciled(action, count);
                }
            }
            Note::IdentityIssued { .. } => metrics.resume("new"),
            Note::AttachedByKey { .. } => metrics.resume("by_key"),
            Note::ResumeAccepted { .. } => metrics.resume("resumed"),
            Note::ResumeRejected { known: false, .. } => metrics.resume("not_found"),
            Note::ResumeRejected { known: true, .. } => metrics.resume("rejected"),
            Note::GraceEntered { reason, .. } => metrics.lost(reason),
            _ => {}
        }
        if !of_messages(note, || self.aloud()) {
            of_sessions(note);
        }
    }
}

/// A line at info level if it may be said aloud, else at debug level.
macro_rules! line {
    ($aloud:expr, $($fields:tt)*) => {
        if $aloud { tracing::info!($($fields)*) } else { tracing::debug!($($fields)*) }
    };
}

/// Notes about messages; never their contents. `false` if it is not one.
fn of_messages(note: &Note, mut aloud: impl FnMut() -> bool) -> bool {
    match note {
        Note::ReconcileDone(done) => {
            tracing::info!(
                event = "reconcile_done", session = %done.session, conn = %done.conn, policy = done.policy,
                keep = done.keep, close_client_side = done.close_client_side,
                close_server_side = done.close_server_side, recreate_client_side = done.recreate_client_side,
                inflight_kept = done.inflight_kept, inflight_settled = done.inflight_settled,
                inflight_requeued = done.inflight_requeued,
            );
        }
        Note::Requeued { session, conn, count } => {
            let conn = conn.map(|conn| conn.to_string());
            line!(aloud(), event = "requeued", %session, conn, count);
        }
        Note::LateSettleAccepted { session, conn, count } => {
            line!(aloud(), event = "late_settle_accepted", %session, %conn, count);
        }
        Note::LateSettleRejected { session, conn, reason, count } => {
            line!(aloud(), event = "late_settle_rejected", %session, %conn, reason, count);
        }
        Note::AcceptConflict { session } => line!(aloud(), event = "accept_conflict", %session),
        // Every retry is one, and every message of a queue that nobody can work on: the counters tell of them.
        Note::AcceptDuplicate { session } => tracing::debug!(event = "accept_duplicate", %session),
        Note::RunStarted { session, run } => line!(aloud(), event = "run_started", %session, %run),
        Note::RunEnded { run, status, reason } => line!(aloud(), event = "run_ended", %run, status, reason),
        Note::EntryDamaged { log, seq } => {
            tracing::error!(
                event = "entry_damaged",
                %log,
                seq,
                "its bytes do not match their checksum: a consumer gets a dead letter instead; check the disk, and run `tenure check --running`"
            );
        }
        Note::Buried { log, seq, reason } => tracing::debug!(event = "buried", %log, seq, reason),
        Note::TopicDeleted { topic, unused } => {
            line!(aloud(), event = "topic_deleted", %topic, unused);
        }
        Note::ClockJumped { ms } => {
            tracing::warn!(
                event = "clock_jumped",
                ms,
                "nothing expires or is pruned until the clock is back or steady"
            );
        }
        Note::ClockDoubted { ms } => {
            tracing::warn!(
                event = "clock_doubted",
                ms,
                "the clock is more than a day from when this store last ran: nothing expires or is pruned until it was steady \
                 for an hour, or `tenure clock confirm`"
            );
        }
        Note::ClockBelieved { ms } => {
            tracing::warn!(
                event = "clock_believed",
                ms,
                "the clock is steady, or confirmed: what is past its time goes"
            );
        }
        _ => return false,
    }
    true
}

/// Notes about sessions and the broker.
fn of_sessions(note: &Note) {
    match note {
        Note::IdentityIssued { session, conn, client } => {
            tracing::info!(event = "identity_issued", %session, %conn, client);
        }
        Note::ResumeAccepted { session, conn, client, complete } => {
            tracing::info!(event = "resume_accepted", %session, %conn, client, complete);
        }
        Note::ResumeRejected { session, conn, client, reason, known } => {
            let outcome = if *known { "resume_rejected" } else { "resume_not_found" };
            tracing::info!(event = "resume_rejected", %session, %conn, client, outcome, reason);
        }
        Note::HistoryRewound { session, conn, logs } => {
            tracing::warn!(event = "history_rewound", %session, %conn, logs, "its client had read another history");
        }
        Note::AttachedByKey { session, conn, client } => {
            tracing::info!(event = "attached_by_key", %session, %conn, client);
        }
        Note::GraceEntered { session, conn, client, reason, subscriptions, in_hand } => {
            tracing::info!(event = "grace_entered", %session, %conn, client, reason, subscriptions, in_hand);
        }
        Note::GraceExpired { session, conn, client, subscriptions, in_hand } => {
            let conn = conn.map(|conn| conn.to_string());
            tracing::info!(event = "grace_expired", %session, conn, client, subscriptions, in_hand);
        }
        Note::LeaseEvicted { session, conn, client, reason } => {
            let conn = conn.map(|conn| conn.to_string());
            tracing::info!(event = "lease_evicted", %session, conn, client, reason);
        }
        Note::SessionReplaced { session, conn, client, other_process } => {
            tracing::info!(event = "session_replaced", %session, %conn, client, other_process);
        }
        Note::HelloRefused { session, conn, client, code } => {
            tracing::info!(event = "hello_refused", %session, %conn, client, code)
        }
        Note::StartupReclaimed { session, conn, count } => {
            tracing::info!(event = "startup_reclaimed", %session, %conn, count);
        }
        Note::StartupReleased { session, count } => {
            tracing::info!(event = "startup_released", %session, count);
        }
        Note::StartupGraceStarted { leases } => tracing::info!(event = "startup_grace_started", leases),
        Note::StartupGraceEnded { resumed, expired } => {
            tracing::info!(event = "startup_grace_ended", resumed, expired);
        }
        Note::DrainStarted { reason, sessions, restart_in_ms, deadline_ms } => {
            tracing::info!(event = "drain_started", reason, sessions, restart_in_ms, deadline_ms);
        }
        Note::Configured => tracing::info!(event = "configured"),
        Note::ConfigRefused { reason } => tracing::warn!(event = "config_refused", reason),
        Note::BanSet { subject, on: true, leases } => tracing::info!(event = "ban_set", %subject, leases),
        Note::BanSet { subject, on: false, .. } => tracing::info!(event = "ban_lifted", %subject),
        Note::Operated { act, subject, outcome } => tracing::info!(event = "operated", act, subject, outcome),
        Note::Joined { member, invite } => tracing::info!(event = "member_joined", %member, %invite),
        Note::ServiceUnrenewed { session, name } => {
            tracing::info!(event = "service_unrenewed", %session, %name);
        }
        Note::Frozen { ms } => {
            tracing::warn!(event = "frozen", ms, "the broker was stopped; deadlines were shifted")
        }
        _ => {}
    }
}

fn name(note: &Note) -> &'static str {
    match note {
        Note::IdentityIssued { .. } => "identity_issued",
        Note::ResumeAccepted { .. } => "resume_accepted",
        Note::ResumeRejected { known: true, .. } => "resume_rejected",
        Note::ResumeRejected { known: false, .. } => "resume_not_found",
        Note::AttachedByKey { .. } => "attached_by_key",
        Note::StartupReclaimed { .. } => "startup_reclaimed",
        Note::StartupReleased { .. } => "startup_released",
        Note::HistoryRewound { .. } => "history_rewound",
        Note::GraceEntered { .. } => "grace_entered",
        Note::GraceExpired { .. } => "grace_expired",
        Note::LeaseEvicted { .. } => "lease_evicted",
        Note::SessionReplaced { .. } => "session_replaced",
        Note::HelloRefused { .. } => "hello_refused",
        Note::StartupGraceStarted { .. } => "startup_grace_started",
        Note::StartupGraceEnded { .. } => "startup_grace_ended",
        Note::ReconcileDone { .. } => "reconcile_done",
        Note::Requeued { .. } => "requeued",
        Note::LateSettleAccepted { .. } => "late_settle_accepted",
        Note::LateSettleRejected { .. } => "late_settle_rejected",
        Note::AcceptDuplicate { .. } => "accept_duplicate",
        Note::AcceptConflict { .. } => "accept_conflict",
        Note::RunStarted { .. } => "run_started",
        Note::RunEnded { .. } => "run_ended",
        Note::Buried { .. } => "buried",
        Note::EntryDamaged { .. } => "entry_damaged",
        Note::TopicDeleted { .. } => "topic_deleted",
        Note::ClockJumped { .. } => "clock_jumped",
        Note::ClockDoubted { .. } => "clock_doubted",
        Note::ClockBelieved { .. } => "clock_believed",
        Note::DrainStarted { .. } => "drain_started",
        Note::Configured => "configured",
        Note::ConfigRefused { .. } => "config_refused",
        Note::BanSet { on: true, .. } => "ban_set",
        Note::BanSet { on: false, .. } => "ban_lifted",
        Note::Operated { .. } => "operated",
        Note::Joined { .. } => "member_joined",
        Note::ServiceUnrenewed { .. } => "service_unrenewed",
        Note::Frozen { .. } => "frozen",
    }
}

#[cfg(test)]
#[path = "log_tests.rs"]
mod tests;
