//! The task that owns one mesh: takes inputs, calls the rules, carries out effects. It never waits for a socket
//! and never for the disk.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use tenure_kit::{Millis, Now};
use tenure_mesh::access::RestoredAccess;
use tenure_mesh::access::admin::{OperateId, Operated, Operation};
use tenure_mesh::conn::Out;
use tenure_mesh::effect::{Effect, Note, ReadId};
use tenure_mesh::input::{Boot, StoredMesh};
use tenure_mesh::store::record::{RestoredMessages, StoreFound};
use tenure_mesh::{Input, Mesh};
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::ids::ConnId;
use tenure_proto::name::MeshName;
use tenure_store::StoredLease;
use tokio::sync::{mpsc, oneshot};

use crate::log::Log;
use crate::mailbox::Mailbox;
use crate::reader::{ReadAheadShare, Reads};
use crate::routes::{Cut, Routes};
use crate::shared::Shared;
use crate::stop::Stopping;
use crate::writer::Writes;

/// Inputs that may wait for a mesh; past it the sockets that send them stop reading.
const INPUTS: usize = 8_192;
/// Inputs that are handled between two rounds of handing out events.
const INPUTS_PER_ROUND: usize = 1_024;

/// Proofs of life that may lie ready for a mesh's next round; past it they queue like everything else.
const HEARD: usize = 4_096;
/// Deadlines within so many milliseconds are looked at together, or within a thousandth of the ping interval if
/// that is shorter: ten thousand idle leases are then a few wakes a second, not a thousand.
const TOGETHER_MS: u64 = 25;

/// What a mesh's task is told.
#[derive(Debug)]
pub(crate) enum MeshMsg {
    /// A socket has said hello and is to be answered here.
    Hello(Input, ConnId, Mailbox),
    /// An operator asks, and is answered here.
    Operate(Box<Operation>, oneshot::Sender<Told>),
    /// The store has read something; it counts as read ahead until the sockets that it goes to have taken it.
    Found(Input, Option<ReadAheadShare>),
    /// Anything else.
    Input(Input),
}

/// What an operator is told.
pub(crate) type Told = Result<Operated, WireError>;

/// How to reach a mesh's task.
#[derive(Clone, Debug)]
pub(crate) struct MeshHandle {
    inputs: mpsc::Sender<MeshMsg>,
    heard: Heard,
    routes: Arc<Routes>,
}

impl MeshHandle {
    pub(crate) fn new(inputs: mpsc::Sender<MeshMsg>, heard: Heard) -> MeshHandle {
        MeshHandle { inputs, heard, routes: Arc::default() }
    }

    /// The streams to services that are asked of this mesh.
    pub(crate) fn routes(&self) -> &Arc<Routes> {
        &self.routes
    }

    /// Tells the mesh without waiting: when too much is waiting, a task of its own does.
    pub(crate) fn tell(&self, msg: MeshMsg) {
        let Err(mpsc::error::TrySendError::Full(msg)) = self.inputs.try_send(msg) else { return };
        let inputs = self.inputs.clone();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { _ = inputs.send(msg).await });
        }
    }

    /// Tells the mesh from a thread of its own, which waits while too much is waiting.
    pub(crate) fn tell_blocking(&self, msg: MeshMsg) {
        let _ = self.inputs.blocking_send(msg);
    }

    /// Tells the mesh; waits while too much is waiting. `false` when the mesh is gone.
    pub(crate) async fn send(&self, msg: MeshMsg) -> bool {
        if let MeshMsg::Input(Input::Alive { conn, at }) = &msg
            && self.heard.leave(*conn, *at)
        {
            return true;
        }
        self.inputs.send(msg).await.is_ok()
    }

    /// Asks for an operator, and waits for the answer.
    pub(crate) async fn operate(&self, operation: Operation) -> Told {
        let (answer, told) = oneshot::channel();
        let gone = || WireError::new(ErrorCode::Draining, "this broker has stopped but for its last words");
        if !self.send(MeshMsg::Operate(Box::new(operation), answer)).await {
            return Err(gone());
        }
        told.await.unwrap_or_else(|_| Err(gone()))
    }
}

/// Proofs of life that lie ready for the mesh's next round. Nobody waits for one, so the mesh is not woken for
/// it: it looks here before anything else in each round, and so before any watchdog may bark.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heard(Arc<Mutex<Vec<(ConnId, Millis)>>>);

impl Heard {
    /// Whether there was room.
    fn leave(&self, conn: ConnId, at: Millis) -> bool {
        let mut heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = heard.len() < HEARD;
        if room {
            heard.push((conn, at));
        }
        room
    }

    fn take(&self) -> Vec<(ConnId, Millis)> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

pub(crate) fn channel() -> (mpsc::Sender<MeshMsg>, mpsc::Receiver<MeshMsg>) {
    mpsc::channel(INPUTS)
}

/// What a mesh is made of at a start.
#[derive(Debug)]
pub(crate) struct Beginning {
    pub(crate) name: MeshName,
    pub(crate) run: u64,
    pub(crate) leases: Vec<StoredLease>,
    pub(crate) messages: RestoredMessages,
    pub(crate) access: RestoredAccess,
}

/// The ways out of a mesh's task, and what lies ready for it.
#[derive(Debug)]
pub(crate) struct Ways {
    pub(crate) heard: Heard,
    pub(crate) routes: Arc<Routes>,
    pub(crate) writes: Writes,
    pub(crate) reads: Reads,
}

/// Runs the mesh until nobody can reach it any more.
pub(crate) async fn run(
    shared: Arc<Shared>,
    beginning: Beginning,
    inbox: mpsc::Receiver<MeshMsg>,
    ways: Ways,
) {
    let Ways { heard, routes, writes, reads } = ways;
    let Beginning { name, run, leases, messages, access } = beginning;
    let leases =
        leases.into_iter().filter(|lease| lease.row.mesh == name).map(StoredLease::restored).collect();
    let (house, (now, clocks)) = (&shared.house, shared.clocks());
    let config = (*house.config).clone();
    let boot = Boot { run, random: shared.random };
    let stored = StoredMesh { leases, messages, access };
    let mesh = Mesh::new(config, boot, house.broker_id.clone(), now, stored).with_clocks(clocks);
    let mut log = Log::new();
    for note in mesh.startup_notes() {
        log.note(&note, &shared.metrics);
    }
    let task = MeshTask {
        frozen_before_ms: shared.frozen_ms(),
        shared,
        name,
        mesh,
        operators: HashMap::new(),
        shown: [0; 4],
        mailboxes: HashMap::new(),
        heard,
        routes,
        log,
        writes,
        unwritten: false,
        reads,
        unread: Vec::new(),
        read_ahead: Vec::new(),
    };
    task.run(inbox).await;
}

struct MeshTask {
    shared: Arc<Shared>,
    /// How long the broker had been frozen when the mesh began.
    frozen_before_ms: u64,
    name: MeshName,
    mesh: Mesh,
    /// Who asks; bounded by how many requests are worked on.
    operators: HashMap<OperateId, oneshot::Sender<Told>>,
    /// What the gauges have of this mesh: sessions, sockets, runs and services.
    shown: [i64; 4],
    /// One per socket that has said hello.
    mailboxes: HashMap<ConnId, Mailbox>,
    heard: Heard,
    routes: Arc<Routes>,
    log: Log,
    writes: Writes,
    /// Whether the writer is gone and the mesh has not heard of it.
    unwritten: bool,
    reads: Reads,
    /// Reads that nobody takes, of which the mesh has not heard.
    unread: Vec<ReadId>,
    /// Shares of what this round was told was read.
    read_ahead: Vec<ReadAheadShare>,
}

impl MeshTask {
    async fn run(mut self, mut inbox: mpsc::Receiver<MeshMsg>) {
        let mut msgs = Vec::with_capacity(INPUTS_PER_ROUND);
        let timer = tokio::time::sleep_until(self.shared.clock.instant(self.mesh.next_deadline()));
        tokio::pin!(timer);
        let together_ms = TOGETHER_MS.min(self.mesh.config().ping_interval_ms / 1_000);
        let mut not_before = Millis(0);
        loop {
            let deadline = self.shared.clock.instant(self.mesh.next_deadline().max(not_before));
            if timer.deadline() != deadline {
                timer.as_mut().reset(deadline);
            }
            // All are cancel-safe: those that lose have taken nothing. Inputs first, however busy we are.
            tokio::select! {
                biased;
                received = inbox.recv_many(&mut msgs, INPUTS_PER_ROUND) => {
                    if received == 0 {
                        return;
                    }
                }
                () = &mut timer => {}
                () = tokio::task::yield_now(), if self.is_busy() => {}
            }
            let now = self.shared.clock.now();
            for (conn, at) in self.heard.take() {
                self.mesh.handle(now, Input::Alive { conn, at });
            }
            for msg in msgs.drain(..) {
                self.handle(now, msg);
            }
            self.own_up(now);
            if now.at >= self.mesh.next_deadline() {
                self.mesh.tick(now);
                not_before = now.at.plus(together_ms);
            }
            let (looked, frozen_ms) = self.mesh.last_look();
            self.shared.looked(looked, self.frozen_before_ms + frozen_ms);
            self.mesh.flush();
            self.carry_out();
        }
    }

    /// Whether there is something to do without being told anything.
    fn is_busy(&self) -> bool {
        self.mesh.is_busy() || self.unwritten || !self.unread.is_empty()
    }

    fn handle(&mut self, now: Now, msg: MeshMsg) {
        let input = match msg {
            MeshMsg::Input(Input::Failed { .. }) => return self.fail(now),
            MeshMsg::Input(input) => input,
            MeshMsg::Found(input, share) => {
                self.read_ahead.extend(share);
                input
            }
            MeshMsg::Operate(operation, answer) => {
                let id = self.shared.next_operation();
                self.operators.insert(id, answer);
                Input::Operate { id, operation }
            }
            MeshMsg::Hello(input, conn, mailbox) => {
                self.mailboxes.insert(conn, mailbox);
                input
            }
        };
        if let Input::Closed { conn, .. } = &input {
            self.mailboxes.remove(conn);
        }
        self.mesh.handle(now, input);
    }

    /// The writer lost something: all that was asked of it is lost, as it may rest on that.
    fn fail(&mut self, now: Now) {
        self.carry_out();
        let through = self.writes.fail_all();
        self.mesh.handle(now, Input::Failed { through });
    }

    /// Tells the mesh what nobody took.
    fn own_up(&mut self, now: Now) {
        if std::mem::take(&mut self.unwritten) {
            self.fail(now);
        }
        for id in std::mem::take(&mut self.unread) {
            let found = StoreFound::Unavailable;
            self.mesh.handle(now, Input::Found { id, found });
        }
    }

    fn carry_out(&mut self) {
        let read = std::mem::take(&mut self.read_ahead);
        let read = (!read.is_empty()).then(|| Arc::new(read));
        let read = read.as_ref();
        while let Some(effect) = self.mesh.poll_effect() {
            match effect {
                Effect::Respond { conn, request, outcome } => {
                    self.put(conn, Out::Respond(request, Box::new(outcome)), read)
                }
                Effect::Events { conn, batch } => self.put(conn, Out::Events(Box::new(batch)), read),
                Effect::Ping { conn } => self.put(conn, Out::Ping, None),
                Effect::Close { conn, closing } => {
                    self.put(conn, Out::Close(Box::new(closing)), None);
                    self.mailboxes.remove(&conn);
                }
                Effect::Write { id, write } => self.unwritten |= !self.writes.push(id, write),
                Effect::Read { id, read } => {
                    if !self.reads.push(id, read) {
                        self.unread.push(id);
                    }
                }
                Effect::Note(note) => {
                    match &note {
                        Note::DrainStarted { .. } => self.shared.stop.send_modify(|stop| {
                            *stop = Stopping::and(stop.take(), Stopping::of(&note));
                        }),
                        Note::Configured => self.shared.meshes.tune(&self.name, self.mesh.config()),
                        _ => {}
                    }
                    self.log.note(&note, &self.shared.metrics);
                }
                Effect::Routed { route, outcome } => self.routes.answer(route, outcome),
                Effect::Cut { session, name, reason } => self.routes.cut(Cut::Of { session, name, reason }),
                Effect::CutFrom { network } => self.routes.cut(Cut::From(network)),
                Effect::Operated { id, outcome } => {
                    if let Some(answer) = self.operators.remove(&id) {
                        // Whoever asked may have left.
                        let _ = answer.send(outcome);
                    }
                }
                Effect::Drained => {
                    if self.shared.undrained.fetch_sub(1, Ordering::AcqRel) == 1 {
                        self.shared.drained.notify_one();
                    }
                }
            }
        }
        self.show();
    }

    /// Tells the gauges, which all meshes share, what has changed here.
    fn show(&mut self) {
        let metrics = &self.shared.metrics;
        let gauges = [&metrics.sessions, &metrics.online, &metrics.runs, &metrics.services];
        let counts = [self.mesh.sessions(), self.mesh.online(), self.mesh.runs(), self.mesh.services()];
        let now = counts.map(|count| count as i64);
        for (gauge, (now, was)) in gauges.into_iter().zip(now.iter().zip(self.shown)) {
            gauge.inc_by(now - was);
        }
        self.shown = now;
    }

    fn put(&self, conn: ConnId, out: Out, read_ahead: Option<&Arc<Vec<ReadAheadShare>>>) {
        if let Some(mailbox) = self.mailboxes.get(&conn) {
            mailbox.put_read(out, read_ahead);
        }
    }
}
