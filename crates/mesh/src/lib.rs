//! One mesh: every lease, the presence built from them, and the event streams that hang off them.
//!
//! How to drive it. Inputs: [`Mesh::handle`] with what happened, [`Mesh::tick`] when a deadline has come.
//! Outputs: effects, in order, in the vector that both take; and [`Mesh::flush`], once after a batch of inputs,
//! which hands out the events that the batch caused. Getters: everything that takes `&self`. The shell calls
//! `tick` no later than [`Mesh::next_deadline`].
//!
//! What it never does: keep anything by socket. A socket is a number in a lease's state.

pub mod access;
mod census;
mod clock;
pub mod config;
pub mod conn;
mod drain;
pub mod effect;
pub mod input;
pub mod messages;
pub mod relay;
mod requests;
pub mod runs;
pub mod services;
pub mod sessions;
pub mod store;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use tenure_kit::clock::Clocks;
use tenure_kit::deadline::Deadlines;
use tenure_kit::mutant::{self, Mutant};
use tenure_kit::time::{Millis, Now};
use tenure_proto::close::{Closing, Reason};
use tenure_proto::hello::InboxChoice;
use tenure_proto::ids::{ConnId, Epoch, LeaseId, MemberKey, RequestId, SessionKey};
use tenure_proto::peer::Peer;

use crate::access::setting::Values;
use crate::access::{BanRecord, Rights, Roll};
use crate::effect::{Answer, Note, ReadId, WriteId};
use crate::input::{Boot, LeaseRecord, Restored};
use crate::messages::subs::Subs;
use crate::sessions::freeze::Thaw;
use crate::sessions::lease::{Lease, State};
use crate::sessions::presence::Presence;
use crate::sessions::stream::Stream;
use crate::store::record::RestoredMessages;
use access::bans::Bans;
use drain::Drain;
use messages::Messages;
use messages::proof::Behind;
use services::Services;
use sessions::quota::Quota;
use store::pending::Awaiting;
use store::trouble::Trouble;

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
    /// Which start of the broker this is, as the store counts them.
    run: u64,
    /// What makes lease ids and epochs unique across starts, also on a store that was restored.
    boot: Boot,
    broker_id: String,
    started: Millis,
    thaw: Thaw,
    /// The clocks at the last input: thawed time; the time that things are stamped with and measured by, which is what the wall
    /// clock shows while it is believed ([`Clocks::stamp`]); and what it shows, for what was signed or is shown by it.
    now: Millis,
    wall: u64,
    shown: u64,
    clocks: Clocks,
    /// Bounded by `lease_bound`.
    leases: BTreeMap<SessionKey, Lease>,
    /// `config.max_sessions`, or how many there were when that was lowered, by a start or while it ran.
    lease_bound: usize,
    /// Who vouches for how many leases.
    members: BTreeMap<MemberKey, usize>,
    /// Which session each socket carries: one per online lease.
    conns: BTreeMap<ConnId, SessionKey>,
    /// Sockets whose hello waits for the store: at most one per lease.
    knocking: BTreeMap<ConnId, SessionKey>,
    /// Sessions whose hello waits until the store has said what is at the places that it lists: its socket and its read.
    /// At most one of each session, and as many as there may be sessions.
    comparing: BTreeMap<SessionKey, (ConnId, ReadId)>,
    /// Sockets with a call that waits for the store to prove its tags, and what came behind it.
    proving: BTreeMap<ConnId, VecDeque<Behind>>,
    /// The same by socket.
    compared_conns: BTreeMap<ConnId, SessionKey>,
    deadlines: Deadlines<SessionKey>,
    presence: Presence,
    /// What leases that begin will look like once the store has them.
    joining: BTreeMap<SessionKey, Peer>,
    /// Sessions that are online, able to take events, and have them all.
    caught_up: BTreeSet<SessionKey>,
    /// Sessions that are online, able to take events, and have some coming.
    ready: BTreeSet<SessionKey>,
    /// Who was handed out to last when a flush left some of the ready ones for the next, and whether the last did.
    last_served: Option<SessionKey>,
    busy: bool,
    /// The presence version at the last flush.
    flushed_version: u64,
    /// The version of services at the last flush.
    flushed_services: u64,
    /// Who waits for the store, in the order of their writes; bounded by leases and unanswered requests.
    awaiting: VecDeque<(WriteId, Awaiting)>,
    last_write: WriteId,
    /// The last write that the store has answered.
    settled_write: WriteId,
    messages: Messages,
    services: Services,
    counter: u64,
    /// Restored leases that nobody has come back for yet, and how the others fared.
    startup: Startup,
    drain: Option<Drain>,
    bans: Bans,
    roll: Roll,
    /// The broker's own numbers, and what operators have made of them.
    base: Arc<MeshConfig>,
    settings: Settings,
    quota: Quota,
    health_version: u64,
    /// Whether the last thing that the store was asked to write is on disk.
    store_sound: bool,
    /// What else is wrong with it.
    trouble: Trouble,
}

#[derive(Debug, Default)]
struct Startup {
    waiting: BTreeSet<SessionKey>,
    resumed: usize,
    expired: usize,
    /// Why what operators had set does not hold.
    unset: Option<String>,
}

/// What operators have set while the mesh ran.
#[derive(Debug, Default)]
struct Settings {
    /// How often.
    version: u64,
    /// At most one for each that there is.
    values: Values,
}

impl Mesh {
    /// A mesh on a broker that starts now, with what its store remembers.
    pub fn new(
        config: MeshConfig,
        boot: Boot,
        broker_id: String,
        now: Now,
        restored: Vec<Restored>,
        messages: RestoredMessages,
    ) -> Mesh {
        let mut mesh = Mesh {
            thaw: Thaw::new(config.lease_ttl_ms, now.at),
            base: Arc::new(config.clone()),
            config: Arc::new(config),
            run: boot.run,
            boot,
            broker_id,
            started: now.at,
            now: now.at,
            wall: now.wall,
            shown: now.wall,
            clocks: Clocks::new(now),
            leases: BTreeMap::new(),
            lease_bound: 0,
            members: BTreeMap::new(),
            conns: BTreeMap::new(),
            knocking: BTreeMap::new(),
            comparing: BTreeMap::new(),
            proving: BTreeMap::new(),
            compared_conns: BTreeMap::new(),
            deadlines: Deadlines::default(),
            presence: Presence::default(),
            joining: BTreeMap::new(),
            caught_up: BTreeSet::new(),
            ready: BTreeSet::new(),
            last_served: None,
            busy: false,
            flushed_version: 0,
            flushed_services: 0,
            awaiting: VecDeque::new(),
            last_write: WriteId(0),
            settled_write: WriteId(0),
            messages: Messages::default(),
            services: Services::default(),
            counter: 0,
            startup: Startup::default(),
            drain: None,
            bans: Bans::default(),
            roll: Roll::default(),
            settings: Settings::default(),
            quota: Quota::default(),
            health_version: 1,
            store_sound: true,
            trouble: Trouble::default(),
        };
        mesh.restore(now.at, restored);
        mesh.restore_messages(messages);
        mesh.begin_upkeep();
        mesh
    }

    /// Tells the mesh what happened.
    pub fn handle(&mut self, now: Now, input: Input, effects: &mut Vec<Effect>) {
        let from = effects.len();
        let at = self.look(now, effects);
        match input {
            Input::Hello { conn, request, admission } => self.hello(at, conn, request, admission, effects),
            Input::Alive { conn, at } => self.alive(conn, at),
            Input::Request { conn, at: heard, request, call } => {
                self.alive(conn, heard);
                self.count_question(conn);
                if let Some(Behind::Call(request, call)) = self.wait_behind(conn, Behind::Call(request, call))
                {
                    self.call(at, conn, request, call, effects);
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
                    self.closed(conn, "closed", effects);
                }
            }
            Input::Committed { through, outcomes } => self.committed(at, through, outcomes, effects),
            Input::Found { id, found } => self.found(id, found, effects),
            Input::StoreChecked { reason } => self.store_checked(reason),
            Input::Failed { through } => self.failed(at, through, effects),
            Input::Drain { reason, restart_in_ms, deadline_ms } => {
                self.begin_drain(at, reason, restart_in_ms, deadline_ms, effects);
            }
            Input::Hurry => self.hurry(at),
            Input::Configure { config } => self.rebase(now.at, *config, effects),
            Input::Operate { id, operation } => self.operate(now.at, id, *operation, effects),
            Input::Ban { subject, on: true } => {
                let (reason, since) = (String::new(), self.wall);
                self.ban(BanRecord { subject, reason, since }, effects);
            }
            Input::Ban { subject, on: false } => self.unban(subject, effects),
            Input::Route { route, name, want, by } => self.route(at, route, name, want, by, effects),
            Input::RouteGone { route } => self.route_gone(route),
        }
        self.count_answers(from, effects);
        self.check_drain(at, effects);
    }

    /// Does what has come due.
    pub fn tick(&mut self, now: Now, effects: &mut Vec<Effect>) {
        let from = effects.len();
        let at = self.look(now, effects);
        for _ in 0..LEASES_PER_TICK {
            let Some(session) = self.deadlines.pop_due(at) else { break };
            self.watch(at, session, effects);
        }
        self.fire_groups(at, effects);
        self.fire_runs(at);
        self.fire_services(at, effects);
        self.fire_routes(at, effects);
        self.read_again(at);
        self.look_after(at, effects);
        self.count_answers(from, effects);
        self.check_drain(at, effects);
    }

    /// When [`Mesh::tick`] must be called at the latest, on the shell's clock.
    pub fn next_deadline(&self) -> Millis {
        let messages = &self.messages;
        let due = [
            self.deadlines.next(),
            self.drain.as_ref().and_then(Drain::due),
            messages.deadlines.next(),
            messages.lazy_due,
            messages.floors_due,
            messages.reads_due,
            messages.upkeep.due(),
            messages.runs.due.next(),
            self.services.due.next(),
            self.services.routes.due.next(),
        ];
        let due = due.into_iter().flatten().min();
        due.map_or(self.thaw.next_look(), |due| self.thaw.shell(due).min(self.thaw.next_look()))
    }

    /// The numbers that hold now.
    pub fn config(&self) -> &Arc<MeshConfig> {
        &self.config
    }

    /// Living leases.
    pub fn sessions(&self) -> usize {
        self.leases.len()
    }

    /// Sockets that carry one.
    pub fn online(&self) -> usize {
        self.conns.len()
    }

    /// Runs that have not ended.
    pub fn runs(&self) -> usize {
        self.messages.runs.living()
    }

    /// Whether new sessions are turned away.
    pub fn is_draining(&self) -> bool {
        self.drain.is_some()
    }

    /// When the mesh last checked for a freeze, on the shell's clock, and how long it was frozen in all.
    pub fn last_look(&self) -> (Millis, u64) {
        (self.thaw.last_look(), self.thaw.lost_ms())
    }

    /// The version of presence, for those who test that nothing happened.
    pub fn presence_version(&self) -> u64 {
        self.presence.version()
    }

    fn look(&mut self, now: Now, effects: &mut Vec<Effect>) -> Millis {
        if let Some(ms) = self.thaw.look(now.at) {
            effects.push(Effect::Note(Note::Frozen { ms }));
        }
        self.now = self.thaw.thawed(now.at);
        self.watch_clocks(now, effects);
        self.now
    }

    fn uptime_ms(&self) -> u64 {
        self.thaw.shell(self.now).since(self.started)
    }

    fn alive(&mut self, conn: ConnId, heard: Millis) {
        let heard = self.thaw.thawed(heard);
        let Some(session) = self.conns.get(&conn).copied() else { return };
        if let Some(lease) = self.leases.get_mut(&session) {
            lease.heard(heard);
        }
        if self.services.overdue.contains(&session) {
            self.prove_services(session, heard);
        }
    }

    /// Loads what the store remembers: every lease in grace, with its full time or what is left of it. The ends
    /// of those that nobody comes back for are spread by a millisecond each, up to a third of a lease.
    fn restore(&mut self, now: Millis, restored: Vec<Restored>) {
        let ttl = self.config.lease_ttl_ms;
        let count = restored.len() as u64;
        let spread = count.min(ttl / 3);
        for (index, Restored { record, spent_ms }) in restored.into_iter().enumerate() {
            let later = (index as u64 * spread).checked_div(count).unwrap_or(0);
            let left =
                if mutant::on(Mutant::LeaseForgottenAtStart) { 0 } else { ttl.saturating_sub(spent_ms) };
            let until = now.plus(left + later);
            let LeaseRecord { session, member, ref instance, joined_at, ref profile, .. } = record;
            self.presence.join(Peer::new(session, member, instance.clone(), joined_at, profile));
            *self.members.entry(record.member).or_default() += 1;
            self.startup.waiting.insert(record.session);
            self.deadlines.set(record.session, until);
            let lease = Lease {
                id: record.lease,
                restored: true,
                member: record.member,
                caps: record.caps,
                may: Rights::NONE,
                token: None,
                from: None,
                kicked: false,
                client: String::new(),
                instance: record.instance,
                latest: None,
                state: State::Grace,
                told: self.config.terms(),
                proof: Millis(0),
                granted_until: Some(until),
                stream: Stream::new(0, 0),
                stored: now,
                dirty: false,
                touched: false,
                inbox: InboxChoice::None,
                subs: Subs::default(),
                takeovers: VecDeque::new(),
            };
            self.leases.insert(record.session, lease);
        }
        self.flushed_version = self.presence.version();
        self.lease_bound = self.config.max_sessions.max(self.leases.len());
    }

    /// What a start has to say once there is somebody to hear it.
    pub fn startup_notes(&self) -> Vec<Note> {
        let unset = self.startup.unset.clone().map(|reason| Note::ConfigRefused { reason });
        let waiting = Some(self.startup.waiting.len()).filter(|leases| *leases > 0);
        let waiting = waiting.map(|leases| Note::StartupGraceStarted { leases });
        let doubt = self.clock_doubt().map(|doubt| Note::ClockDoubted { ms: doubt.apart_ms });
        unset.into_iter().chain(waiting).chain(doubt).collect()
    }

    /// A restored lease is back, on this socket, or gone.
    fn settle_startup(&mut self, session: &SessionKey, back: Option<ConnId>, effects: &mut Vec<Effect>) {
        if !self.startup.waiting.remove(session) {
            return;
        }
        if let Some(conn) = back {
            self.startup.resumed += 1;
            let count = self.leases.get(session).map_or(0, |lease| lease.subs.sizes().1);
            if count > 0 {
                effects.push(Effect::Note(Note::StartupReclaimed { session: *session, conn, count }));
            }
        } else {
            self.startup.expired += 1;
        }
        if self.startup.waiting.is_empty() {
            let Startup { resumed, expired, .. } = &self.startup;
            let (resumed, expired) = (*resumed, *expired);
            effects.push(Effect::Note(Note::StartupGraceEnded { resumed, expired }));
        }
    }

    fn next_number(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    fn new_lease_id(&mut self) -> Option<LeaseId> {
        let number = self.next_number();
        format!("l{}-{number}", self.boot).parse().ok()
    }

    /// The epoch as the client sees it: unique across restarts.
    fn epoch_name(&self, epoch: u64) -> Option<Epoch> {
        format!("e{}-{epoch}", self.boot).parse().ok()
    }

    fn reschedule(&mut self, session: SessionKey) {
        match self.leases.get(&session).and_then(|lease| lease.due(&self.config)) {
            Some(due) => self.deadlines.set(session, due.min(self.token_due(&session))),
            None => self.deadlines.clear(&session),
        }
    }

    /// A socket is gone: the lease goes into grace. Nothing that a peer can see happens here.
    fn closed(&mut self, conn: ConnId, reason: &'static str, effects: &mut Vec<Effect>) {
        let Some(session) = self.conns.remove(&conn) else {
            return self.closed_while_waiting(conn);
        };
        self.caught_up.remove(&session);
        self.ready.remove(&session);
        let Some(lease) = self.leases.get_mut(&session) else { return };
        if matches!(lease.state, State::Online(_)) {
            lease.state = State::Grace;
            if mutant::on(Mutant::LeftAtClose) {
                self.presence.leave(&session);
            }
            let client = lease.client.clone();
            let (subscriptions, in_hand) = lease.subs.sizes();
            let note = Note::GraceEntered { session, conn, client, reason, subscriptions, in_hand };
            effects.push(Effect::Note(note));
            self.lose_services(self.now, session, effects);
            self.set_aside(session, effects);
        }
        self.reschedule(session);
    }

    /// Drops a socket by our own decision.
    fn hang_up(&mut self, conn: ConnId, closing: Closing, note: &'static str, effects: &mut Vec<Effect>) {
        self.closed(conn, note, effects);
        effects.push(Effect::Close { conn, closing });
    }

    fn hang_up_for(&mut self, conn: ConnId, reason: Reason, effects: &mut Vec<Effect>) {
        self.hang_up(conn, Closing::new(reason), reason.as_str(), effects);
    }
}

fn respond(conn: ConnId, request: RequestId, answer: Answer) -> Effect {
    Effect::Respond { conn, request, outcome: Ok(answer) }
}

#[cfg(test)]
#[cfg(test)]
#[cfg(test)]
mod props;
#[cfg(test)]
mod tests;
