//! The named events of operations: the core's notes as log lines and counters.

use tenure_core::effect::Note;

use crate::metrics::Metrics;

/// Logs a note under its name and counts it.
pub(crate) fn note(note: &Note, metrics: &Metrics) {
    metrics.event(name(note));
    match note {
        Note::IdentityIssued { session, conn, client } => {
            tracing::info!(event = "identity_issued", %session, %conn, client);
        }
        Note::ResumeAccepted { session, conn, complete } => {
            tracing::info!(event = "resume_accepted", %session, %conn, complete);
        }
        Note::ResumeRejected { session, conn, reason } => {
            tracing::info!(event = "resume_rejected", %session, %conn, reason);
        }
        Note::GraceEntered { session, conn, reason } => {
            tracing::info!(event = "grace_entered", %session, %conn, reason);
        }
        Note::GraceExpired { session } => tracing::info!(event = "grace_expired", %session),
        Note::LeaseEvicted { session, reason } => tracing::info!(event = "lease_evicted", %session, reason),
        Note::SessionReplaced { session, conn, other_process } => {
            tracing::info!(event = "session_replaced", %session, %conn, other_process);
        }
        Note::HelloRefused { session, conn, code } => {
            tracing::info!(event = "hello_refused", %session, %conn, code)
        }
        Note::StartupGraceStarted { leases } => tracing::info!(event = "startup_grace_started", leases),
        Note::StartupGraceEnded { resumed, expired } => {
            tracing::info!(event = "startup_grace_ended", resumed, expired);
        }
        Note::Frozen { ms } => {
            tracing::warn!(event = "frozen", ms, "the broker was stopped; deadlines were shifted")
        }
    }
}

fn name(note: &Note) -> &'static str {
    match note {
        Note::IdentityIssued { .. } => "identity_issued",
        Note::ResumeAccepted { .. } => "resume_accepted",
        Note::ResumeRejected { .. } => "resume_rejected",
        Note::GraceEntered { .. } => "grace_entered",
        Note::GraceExpired { .. } => "grace_expired",
        Note::LeaseEvicted { .. } => "lease_evicted",
        Note::SessionReplaced { .. } => "session_replaced",
        Note::HelloRefused { .. } => "hello_refused",
        Note::StartupGraceStarted { .. } => "startup_grace_started",
        Note::StartupGraceEnded { .. } => "startup_grace_ended",
        Note::Frozen { .. } => "frozen",
    }
}
