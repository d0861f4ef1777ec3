//! One mesh: every lease, the presence built from them, and the event streams that hang off them.
//!
//! How to drive it. Inputs: [`Mesh::handle`] with what happened, [`Mesh::tick`] when a deadline has come, and
//! [`Mesh::flush`] once after a batch of inputs, which hands out the events that the batch caused. Outputs: effects, which
//! queue up inside until [`Mesh::poll_effect`] gives them out, in order. Getters: everything that takes `&self`. The shell
//! calls `tick` no later than [`Mesh::next_deadline`], and polls until nothing is left after each flush.
//!
//! What it never does: keep anything by socket. A socket is a number in a lease's state.

pub mod access;
pub mod call;
mod census;
mod clock;
pub mod config;
pub mod conn;
mod drain;
pub mod effect;
pub mod input;
pub mod messages;
mod numbering;
pub mod relay;
pub(crate) mod reply;
mod requests;
pub mod runs;
pub mod services;
pub mod sessions;
pub mod store;

use std::collections::VecDeque;
use std::sync::Arc;

use tenure_kit::time::{Millis, Now};
use tenure_proto::ids::{ConnId, RequestId};

use crate::effect::Answer;
use crate::input::{Boot, StoredMesh};
use access::Access;
use access::configure::Settings;
use clock::MeshClock;
use drain::Drain;
use messages::Messages;
use messages::proof::Behind;
use numbering::Numbering;
use runs::Runs;
use services::Services;
use sessions::Sessions;
use store::queue::StoreQueue;

pub use access::bans::BANS_MAX;
pub use census::SessionState;
pub use config::MeshConfig;
pub use conn::identity::House;
pub use effect::Effect;
pub use input::Input;

/// Leases that one call of [`Mesh::tick`] looks at; the rest are due at once, so a start after which nobody
/// comes back does not stall the broker.
const LEASES_PER_TICK: usize = 1_024;

/// All of one mesh.
#[derive(Debug)]
pub struct Mesh {
    config: Arc<MeshConfig>,
    clock: MeshClock,
    numbering: Numbering,
    sessions: Sessions,
    store: StoreQueue,
    messages: Messages,
    runs: Runs,
    services: Services,
    drain: Option<Drain>,
    access: Access,
    settings: Settings,
    /// What the shell is to do, in this order. The shell takes all of it after each round, so a round's inputs bound it.
    effects: VecDeque<Effect>,
}

impl Mesh {
    /// A mesh on a broker that starts now, with what its store remembers.
    pub fn new(config: MeshConfig, boot: Boot, broker_id: String, now: Now, stored: StoredMesh) -> Mesh {
        let StoredMesh { leases, messages, access } = stored;
        let (settings, config, unset) = Settings::recall(config, &access);
        let mut mesh = Mesh {
            clock: MeshClock::new(config.lease_ttl_ms, now),
            config: Arc::new(config),
            numbering: Numbering::new(boot, broker_id),
            sessions: Sessions::new(),
            store: StoreQueue::default(),
            messages: Messages::default(),
            runs: Runs::default(),
            services: Services::default(),
            drain: None,
            access: Access::recall(access),
            settings,
            effects: VecDeque::new(),
        };
        mesh.sessions.note_unset(unset);
        mesh.restore(now.at, leases);
        mesh.recall_rights();
        mesh.restore_messages(messages);
        mesh.begin_upkeep();
        mesh
    }

    /// Tells the mesh what happened.
    pub fn handle(&mut self, now: Now, input: Input) {
        let from = self.effects.len();
        let at = self.look(now);
        match input {
            Input::Hello { conn, request, admission } => self.hello(at, conn, request, admission),
            Input::Alive { conn, at } => self.alive(conn, at),
            Input::Request { conn, at: heard, request, call } => {
                self.alive(conn, heard);
                self.count_question(conn);
                if let Some(Behind::Call(request, call)) = self.wait_behind(conn, Behind::Call(request, call))
                {
                    self.call(at, conn, request, call);
                }
            }
            Input::Garbled { conn, at: heard, message } => {
                self.alive(conn, heard);
                self.complain(conn, message);
            }
            Input::Flushed { conn } => self.flushed(at, conn),
            Input::Taken { conn } => self.taken(at, conn),
            Input::Closed { conn, at: heard, by_client } => {
                if by_client {
                    self.alive(conn, heard);
                }
                if self.wait_behind(conn, Behind::Closed).is_some() {
                    self.closed(conn, "closed");
                }
            }
            Input::Committed { through, outcomes } => self.committed(at, through, outcomes),
            Input::Found { id, found } => self.found(id, found),
            Input::StoreChecked { reason } => self.store_checked(reason),
            Input::Failed { through } => self.failed(at, through),
            Input::Drain { reason, restart_in_ms, deadline_ms } => {
                self.begin_drain(at, reason, restart_in_ms, deadline_ms);
            }
            Input::Hurry => self.hurry(at),
            Input::Operate { id, operation } => self.operate(now.at, id, *operation),
            Input::Route { route, name, want, by } => self.route(at, route, name, want, by),
            Input::RouteGone { route } => self.route_gone(route),
        }
        self.count_answers(from);
        self.check_drain(at);
    }

    /// Does what has come due.
    pub fn tick(&mut self, now: Now) {
        let from = self.effects.len();
        let at = self.look(now);
        for _ in 0..LEASES_PER_TICK {
            let Some(session) = self.sessions.pop_due(at) else { break };
            self.watch(at, session);
        }
        self.fire_groups(at);
        self.fire_runs(at);
        self.fire_services(at);
        self.fire_routes(at);
        self.read_again(at);
        self.look_after(at);
        self.count_answers(from);
        self.check_drain(at);
    }

    /// The next thing that the shell is to do.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// When [`Mesh::tick`] must be called at the latest, on the shell's clock.
    pub fn next_deadline(&self) -> Millis {
        let due = [
            self.sessions.next_deadline(),
            self.drain.as_ref().and_then(Drain::due),
            self.messages.next_deadline(),
            self.runs.next_deadline(),
            self.services.next_deadline(),
        ];
        let due = due.into_iter().flatten().min();
        let next_look = self.clock.next_look();
        due.map_or(next_look, |due| self.clock.shell(due).min(next_look))
    }

    /// The numbers that hold now.
    pub fn config(&self) -> &Arc<MeshConfig> {
        &self.config
    }

    /// Living leases.
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Sockets that carry one.
    pub fn online(&self) -> usize {
        self.sessions.online()
    }

    /// Runs that have not ended.
    pub fn runs(&self) -> usize {
        self.runs.living()
    }

    /// Whether new sessions are turned away.
    pub fn is_draining(&self) -> bool {
        self.drain.is_some()
    }

    /// When the mesh last checked for a freeze, on the shell's clock, and how long it was frozen in all.
    pub fn last_look(&self) -> (Millis, u64) {
        self.clock.last_look()
    }

    /// The version of presence, for those who test that nothing happened.
    pub fn presence_version(&self) -> u64 {
        self.sessions.presence().version()
    }
}

fn respond(conn: ConnId, request: RequestId, answer: Answer) -> Effect {
    Effect::Respond { conn, request, outcome: Ok(answer) }
}

#[cfg(test)]
mod props;
#[cfg(test)]
mod tests;
