//! Being told to stop: by a signal or by an operator, once.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::Serialize;
use tenure_mesh::Input;
use tenure_mesh::effect::Note;
use tenure_proto::limits::REASON_BYTES;

use crate::mesh_task::MeshMsg;
use crate::shared::Shared;

/// How long what is on its way may take unless somebody says otherwise.
pub(crate) const DEADLINE_MS: u64 = 3_000;
/// How long it may take at most: nobody new gets in meanwhile.
pub const DEADLINE_MAX_MS: u64 = 300_000;
/// How far ahead a restart may be promised.
pub const RESTART_IN_MAX_MS: u64 = 3_600_000;

/// How a broker is to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    /// Why, as sessions are told.
    pub reason: String,
    /// How soon another is here, if one will be.
    pub restart_in_ms: Option<u64>,
    /// How long what is on its way may take.
    pub deadline_ms: u64,
}

impl Default for Stop {
    fn default() -> Stop {
        Stop { reason: "stopped".to_owned(), restart_in_ms: None, deadline_ms: DEADLINE_MS }
    }
}

impl Stop {
    /// The field that is wrong, as a JSON pointer, and what to do, if one is.
    pub(crate) fn problem(&self) -> Option<(&'static str, String)> {
        if self.reason.len() > REASON_BYTES {
            return Some(("/reason", format!("reason must be at most {REASON_BYTES} bytes")));
        }
        if self.deadline_ms > DEADLINE_MAX_MS {
            let text = format!("deadlineMs must be at most {DEADLINE_MAX_MS}, which is five minutes");
            return Some(("/deadlineMs", text));
        }
        if self.restart_in_ms.is_some_and(|ms| ms > RESTART_IN_MAX_MS) {
            let text = format!("restartInMs must be at most {RESTART_IN_MAX_MS}, which is an hour");
            return Some(("/restartInMs", text));
        }
        None
    }
}

/// A stop that is under way, as it was begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Stopping {
    /// Why.
    pub reason: String,
    /// How many sessions were told at once.
    pub sessions: usize,
    /// How soon another broker is promised, if one is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_in_ms: Option<u64>,
    /// How long what is on its way may take.
    pub deadline_ms: u64,
    /// How many meshes have begun to stop.
    #[serde(skip)]
    pub(crate) meshes: usize,
}

impl Stopping {
    /// What a mesh notes when it begins to drain.
    pub(crate) fn of(note: &Note) -> Option<Stopping> {
        let Note::DrainStarted { reason, sessions, restart_in_ms, deadline_ms } = note else { return None };
        let (restart_in_ms, deadline_ms) = (*restart_in_ms, *deadline_ms);
        let (reason, sessions, meshes) = (reason.clone(), *sessions, 1);
        Some(Stopping { reason, sessions, restart_in_ms, deadline_ms, meshes })
    }

    /// With what another mesh noted: what the first was told holds for all.
    pub(crate) fn and(first: Option<Stopping>, next: Option<Stopping>) -> Option<Stopping> {
        match (first, next) {
            (Some(first), Some(next)) => Some(Stopping {
                sessions: first.sessions + next.sessions,
                meshes: first.meshes + next.meshes,
                ..first
            }),
            (first, next) => first.or(next),
        }
    }
}

/// Makes a stop that is under way a short one.
#[derive(Clone, Debug)]
pub struct Hurry(pub(crate) Arc<Shared>);

impl Hurry {
    /// What is on its way is not waited for any longer; everybody is told all the same.
    pub async fn up(&self) {
        for mesh in self.0.meshes.handles() {
            mesh.send(MeshMsg::Input(Input::Hurry)).await;
        }
    }
}

impl Shared {
    /// Begins to stop, unless that was begun before. Says what is under way, and whether this began it; `None` when the
    /// meshes are gone.
    pub(crate) async fn begin_stop(&self, stop: Stop) -> Option<(Stopping, bool)> {
        let first = self.ready.swap(false, Ordering::AcqRel);
        let mut under_way = self.stop.subscribe();
        let Stop { reason, restart_in_ms, deadline_ms } = stop;
        let meshes = self.meshes.handles();
        if first {
            self.undrained.store(meshes.len(), Ordering::Release);
        }
        for mesh in &meshes {
            let drain = Input::Drain { reason: reason.clone(), restart_in_ms, deadline_ms };
            if !mesh.send(MeshMsg::Input(drain)).await {
                return None;
            }
        }
        let all = |stop: &Option<Stopping>| stop.as_ref().is_some_and(|stop| stop.meshes >= meshes.len());
        let stopping = under_way.wait_for(all).await.ok()?.clone()?;
        (!meshes.is_empty()).then_some((stopping, first))
    }
}
