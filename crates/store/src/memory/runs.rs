//! The runs of one mesh.

use tenure_mesh::messages::envelope::{Envelope, Lane};
use tenure_mesh::store::record::{RunEnding, RunRecord};
use tenure_proto::ids::{MemberKey, RunId, SessionKey};
use tenure_proto::log::LogName;
use tenure_proto::run::RunState;

use super::messages::Messages;

impl Messages {
    pub(super) fn start_run(&mut self, envelope: &Envelope, place: (&LogName, Lane, u64), deadline: u64) {
        let (log, lane, seq) = place;
        let id = RunId(envelope.id.0);
        self.runs.entry(id).or_insert_with(|| RunRecord {
            id,
            caller: envelope.from.member,
            caller_session: envelope.from.session,
            callee: None,
            log: log.clone(),
            lane,
            seq,
            size: 0,
            state: RunState::Queued,
            cancelled: false,
            last_seq: 0,
            result: None,
            error: None,
            deadline,
            started_at: envelope.sent_at,
            ended_at: None,
        });
    }

    pub(super) fn claim_run(&mut self, run: RunId, callee: SessionKey, member: MemberKey) {
        if let Some(run) = self.runs.get_mut(&run).filter(|run| run.state == RunState::Queued) {
            (run.callee, run.state) = (Some((callee, member)), RunState::Running);
        }
    }

    pub(super) fn cancel_run(&mut self, run: RunId) {
        if let Some(run) = self.runs.get_mut(&run).filter(|run| run.ended_at.is_none()) {
            run.cancelled = true;
        }
    }

    pub(super) fn end_run(&mut self, ending: &RunEnding) {
        let RunEnding { id, state, last_seq, result, error, at } = ending.clone();
        if let Some(run) = self.runs.get_mut(&id).filter(|run| run.ended_at.is_none()) {
            (run.state, run.last_seq, run.ended_at) = (state, last_seq, Some(at));
            (run.result, run.error) = (result, error);
        }
    }

    pub(super) fn run(&self, run: RunId) -> Option<RunRecord> {
        let run = self.runs.get(&run)?;
        let kept = self.kept(&run.log, run.seq);
        let size = kept.map_or(0, |kept| kept.entry.envelope.body.as_bytes().len() as u64);
        Some(RunRecord { size, ..run.clone() })
    }

    pub(super) fn living_runs(&self) -> Vec<RunRecord> {
        let living = self.runs.values().filter(|run| run.ended_at.is_none());
        living.filter_map(|run| self.run(run.id)).collect()
    }

    /// Forgets runs that ended before a moment; how many.
    pub(super) fn sweep_runs(&mut self, before: u64) -> u64 {
        let known = self.runs.len();
        self.runs.retain(|_, run| run.ended_at.is_none_or(|at| at >= before));
        (known - self.runs.len()) as u64
    }
}
