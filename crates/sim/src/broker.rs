//! The broker: `tenure_mesh::Mesh`, a `tenure_mesh::conn` for each socket, `tenure_mesh::store::group_commit` between it and its disk. What a real
//! one does in tasks and threads is done here in turns; nothing else is different.

use std::collections::{BTreeMap, VecDeque};

use ed25519_dalek::SigningKey;
use tenure_kit::clock::Clocks;
use tenure_kit::host::Doors;
use tenure_kit::{Millis, Now};
use tenure_mesh::access::admin::{OperateId, Operated};
use tenure_mesh::conn::frames::Supply;
use tenure_mesh::conn::identity::House;
use tenure_mesh::conn::{Conn, ConnEffect, Out, Outlet, Received};
use tenure_mesh::effect::{Answer, Effect, Note, ReadId};
use tenure_mesh::input::{Boot, StoredMesh};
use tenure_mesh::sessions::freeze;
use tenure_mesh::store::group_commit::{Asking, Batch, Load, Queued, Taking};
use tenure_mesh::store::record::{StoreFound, StoreRead};
use tenure_mesh::{Input, Mesh, MeshConfig};
use tenure_proto::codec::Codec;
use tenure_proto::error::WireError;
use tenure_proto::ids::ConnId;
use tenure_proto::method::StoreHealth;
use tenure_proto::number::U53;
use tenure_store::{Identity, StoredLease};

use crate::clock::Clock;
use crate::disk::{Broken, Disk, Left};
use crate::net::Frame;
use crate::rng::Rng;

/// The Host header of every client.
pub(crate) const HOST: &str = "127.0.0.1:7400";
/// How often the uptime of a run is recorded.
const BEAT_MS: u64 = 3_000;

/// What leaves a socket of the broker, and has not reached the network.
#[derive(Debug)]
struct Outbox {
    frames: VecDeque<Frame>,
    bytes: usize,
    rng: Rng,
    kind: &'static str,
}

impl Supply for Outbox {
    fn entropy(&mut self) -> Option<u128> {
        Some(u128::from(self.rng.next()) << 64 | u128::from(self.rng.next()))
    }

    fn store(&self) -> StoreHealth {
        StoreHealth { kind: self.kind.to_owned(), lag_ms: U53::saturating(0) }
    }
}

impl Outlet for Outbox {
    fn frame(&mut self, _binary: bool, guess: usize, write: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = Vec::with_capacity(guess);
        write(&mut bytes);
        self.push(Frame::Data(bytes));
    }

    fn ping(&mut self) {
        self.push(Frame::Ping(0));
    }

    fn waiting(&self) -> usize {
        self.bytes
    }
}

impl Outbox {
    fn push(&mut self, frame: Frame) {
        self.bytes += frame.weight();
        self.frames.push_back(frame);
    }
}

/// One socket of the broker.
#[derive(Debug)]
pub(crate) struct Server {
    conn: Conn,
    out: Outbox,
    binary: bool,
    /// Whether something was handed to it since it was last all gone.
    flushing: bool,
    /// Bytes that have left since it was last told.
    taken: usize,
}

/// What a broker's turn comes to, for the world.
#[derive(Debug)]
pub(crate) enum Did {
    /// A hello was answered with yes, and whether the lease is new.
    Admitted(ConnId, bool),
    /// The socket is the broker's no more.
    Lost(ConnId),
    /// This socket is closed by us: nothing more leaves it.
    End(ConnId),
    /// Something is ready to leave this socket.
    Leaves(ConnId),
    /// Everybody is gone after a drain.
    Drained,
    /// A transaction of so many writes is on disk, or why not.
    Wrote(usize, Option<String>),
    /// Something for the log.
    Note(Note),
    /// An operator is answered.
    Operated(OperateId, Box<Result<Operated, WireError>>),
}

/// What runs while a broker is up.
pub(crate) struct Running {
    pub(crate) mesh: Mesh,
    pub(crate) run: u64,
    pub(crate) house: House,
    pub(crate) servers: BTreeMap<ConnId, Server>,
    asking: Asking,
    taking: Taking,
    queue: VecDeque<Queued>,
    load: Load,
    /// What is being written.
    pub(crate) writing: Option<Batch>,
    pub(crate) reads: VecDeque<(ReadId, StoreRead)>,
    /// Whether the reader is at work.
    pub(crate) reading: bool,
    pub(crate) inputs: VecDeque<Input>,
    beaten: u64,
    pub(crate) draining: bool,
}

/// The machine that the broker runs on.
pub(crate) struct Broker {
    pub(crate) clock: Clock,
    pub(crate) disk: Disk,
    /// What the broker is started with.
    pub(crate) base: MeshConfig,
    /// What its mesh runs on, with what operators have set.
    pub(crate) config: MeshConfig,
    pub(crate) running: Option<Running>,
    /// Which start this is; what belongs to an earlier one means nothing.
    pub(crate) boot: u64,
    pub(crate) rng: Rng,
    /// What each start draws.
    boots: Rng,
    fresh: Identity,
    pub(crate) did: Vec<Did>,
}

impl Broker {
    pub(crate) fn new(config: MeshConfig, disk: Disk, mut rng: Rng) -> Result<Broker, Broken> {
        let cluster_id = tenure_proto::text::hex(&rng.bytes()[..16]).parse()?;
        let fresh = Identity { cluster_id, broker_key: rng.bytes() };
        Ok(Broker {
            clock: Clock::default(),
            disk,
            base: config.clone(),
            config,
            running: None,
            boot: 0,
            boots: rng.fork(0xb007),
            rng,
            fresh,
            did: Vec::new(),
        })
    }

    /// Starts; gives what `check` finds, and whether an operator had to accept a loss first.
    pub(crate) fn start(&mut self, world: u64) -> Result<(Vec<String>, bool), Broken> {
        self.boot += 1;
        self.clock.lag = world;
        let now = self.clock.now(world);
        let found = self.disk.start(now.wall, &self.fresh)?;
        let key = SigningKey::from_bytes(&found.identity.broker_key);
        let house = House {
            broker_id: House::id_of(&key),
            version: "0".to_owned(),
            cluster: found.identity.cluster_id,
            key,
            secure: false,
            relay: None,
            doors: Doors::loopback(7400, &[], &[]),
            rooms: [("default".parse()?, self.base.clone().into())].into(),
            config: self.base.clone().into(),
        };
        let leases = found.leases.into_iter().map(StoredLease::restored).collect();
        let run = found.run.number;
        // A stream of its own, so that what else is random stays as it was.
        let random = self.boots.fork(self.boot).next();
        let boot = Boot { run, random };
        let stored = StoredMesh { leases, messages: found.messages, access: found.access };
        let mesh = Mesh::new(self.base.clone(), boot, house.broker_id.clone(), now, stored)
            .with_clocks(Clocks::at_start(now, found.run.believed_at));
        self.running = Some(Running {
            mesh,
            run,
            house,
            servers: BTreeMap::new(),
            asking: Asking::default(),
            taking: Taking::default(),
            queue: VecDeque::new(),
            load: Load::default(),
            writing: None,
            reads: VecDeque::new(),
            reading: false,
            inputs: VecDeque::new(),
            beaten: 0,
            draining: false,
        });
        self.tune();
        Ok((found.findings, found.loss_accepted))
    }

    /// Sockets hear of the numbers that the mesh runs on, as they are now.
    fn tune(&mut self) {
        let Some(running) = &mut self.running else { return };
        self.config = (**running.mesh.config()).clone();
        running.house.rooms.values_mut().for_each(|room| *room = running.mesh.config().clone());
    }

    /// Dies while it starts.
    pub(crate) fn die_starting(&mut self, world: u64) -> Result<(), Broken> {
        self.clock.lag = world;
        let wall = self.clock.now(world).wall;
        self.disk.crash_in_recovery(wall, &self.fresh)
    }

    /// Dies; what is being written is left as `left` says.
    pub(crate) fn crash(&mut self, left: Left) -> Result<(), Broken> {
        let Some(running) = self.running.take() else { return Ok(()) };
        let writes = running.writing.map(|batch| batch.writes).unwrap_or_default();
        self.disk.crash(running.run, &writes, left)
    }

    /// Its store is wiped, and with it who it was.
    pub(crate) fn wipe(&mut self, rng: &mut Rng) -> Result<(), Broken> {
        let cluster_id = tenure_proto::text::hex(&rng.bytes()[..16]).parse()?;
        self.fresh = Identity { cluster_id, broker_key: rng.bytes() };
        self.disk.wipe(rng.chance(500))
    }

    /// Ends in good order: what is asked for is written first.
    pub(crate) fn stop(&mut self, world: u64) {
        while self.running.as_mut().is_some_and(|running| running.begin_write()) {
            self.written(world);
        }
        self.running = None;
        self.disk.close();
    }

    pub(crate) fn now(&self, world: u64) -> Now {
        self.clock.now(world)
    }

    /// A client's connection is here.
    pub(crate) fn accept(&mut self, world: u64, conn: ConnId, codec: Codec) {
        let now = self.now(world);
        let (nonce, rng) = (self.rng.bytes(), self.rng.fork(conn.0));
        let kind = "sim";
        let Some(running) = &mut self.running else { return };
        let mut out = Outbox { frames: VecDeque::new(), bytes: 0, rng, kind };
        let server = Conn::new(conn, codec, HOST.to_owned(), nonce, now, &running.house, &mut out);
        let binary = codec.is_binary();
        running.servers.insert(conn, Server { conn: server, out, binary, flushing: true, taken: 0 });
        self.did.push(Did::Leaves(conn));
    }

    /// Something came on a socket.
    pub(crate) fn receive(&mut self, world: u64, conn: ConnId, frame: Option<&Frame>) {
        let now = self.now(world);
        self.on(conn, |server, house| {
            let what = match frame {
                Some(Frame::Data(bytes)) => Received::Data { binary: server.binary, bytes },
                Some(Frame::Ping(number)) => {
                    // The library answers by itself.
                    server.out.push(Frame::Pong(*number));
                    Received::Ping
                }
                Some(Frame::Pong(_)) => Received::Pong,
                Some(Frame::Close(_)) => Received::Close,
                Some(Frame::Eof) | None => Received::Gone,
            };
            server.conn.received(now, what, house, &mut server.out)
        });
    }

    /// Everything that waited on a socket has left.
    pub(crate) fn flushed(&mut self, world: u64, conn: ConnId) {
        let now = self.now(world);
        self.on(conn, |server, house| server.conn.flushed(now, house, &mut server.out));
    }

    /// Some of what waited on a socket has left.
    pub(crate) fn taken(&mut self, world: u64, conn: ConnId) {
        let now = self.now(world);
        let server = self.running.as_mut().and_then(|running| running.servers.get_mut(&conn));
        match server.map_or(0, |server| std::mem::take(&mut server.taken)) {
            // Nothing has, so nothing follows from it.
            0 => {}
            bytes => self.on(conn, |server, house| server.conn.taken(now, bytes, house)),
        }
    }

    /// Time has passed for the sockets that count it.
    pub(crate) fn tick_conns(&mut self, world: u64) {
        let now = self.now(world);
        let Some(running) = &self.running else { return };
        let due = |server: &Server| server.conn.next_deadline().is_some_and(|due| due <= now.at);
        let due: Vec<ConnId> =
            running.servers.iter().filter(|(_, server)| due(server)).map(|(conn, _)| *conn).collect();
        for conn in due {
            self.on(conn, |server, _| server.conn.tick(now, &mut server.out));
        }
    }

    /// Lets a socket act, and carries out what it asks for.
    fn on(&mut self, conn: ConnId, act: impl FnOnce(&mut Server, &House) -> Option<ConnEffect>) {
        let Some(running) = &mut self.running else { return };
        let Some(server) = running.servers.get_mut(&conn) else { return };
        let effect = act(server, &running.house);
        if !server.out.frames.is_empty() {
            self.did.push(Did::Leaves(conn));
        }
        match effect {
            None => {}
            Some(ConnEffect::Enter(input) | ConnEffect::Tell(input)) => running.inputs.push_back(input),
            Some(ConnEffect::Close { code, .. }) => {
                server.out.push(Frame::Close(code));
                self.did.push(Did::Leaves(conn));
            }
            Some(ConnEffect::Finish) => {
                server.out.push(Frame::Close(1_000));
                self.did.push(Did::Leaves(conn));
            }
            Some(ConnEffect::End(input)) => {
                running.inputs.extend(input);
                running.servers.remove(&conn);
                self.did.push(Did::End(conn));
            }
        }
    }

    /// The next frame that leaves a socket; nothing when all have, which is to be said to it.
    pub(crate) fn leave(&mut self, conn: ConnId) -> Option<Frame> {
        let server = self.running.as_mut()?.servers.get_mut(&conn)?;
        let frame = server.out.frames.pop_front()?;
        server.out.bytes -= frame.weight();
        server.taken += frame.weight();
        server.flushing = true;
        Some(frame)
    }

    /// Whether all has left a socket since the last time that this was asked.
    pub(crate) fn has_flushed(&mut self, conn: ConnId) -> bool {
        let server = self.running.as_mut().and_then(|running| running.servers.get_mut(&conn));
        server.is_some_and(|server| server.out.frames.is_empty() && std::mem::take(&mut server.flushing))
    }

    pub(crate) fn may_read(&self, conn: ConnId) -> bool {
        let Some(running) = &self.running else { return false };
        let server = running.servers.get(&conn);
        server.is_some_and(|server| server.conn.may_read(&running.house, server.out.bytes))
    }

    /// One turn of the mesh's task.
    pub(crate) fn round(&mut self, world: u64) {
        let now = self.now(world);
        let Some(running) = &mut self.running else { return };
        for input in std::mem::take(&mut running.inputs) {
            if let Input::Failed { .. } = input {
                self.carry_out(now);
                let Some(running) = &mut self.running else { return };
                let through = running.asking.fail_all();
                running.mesh.handle(now, Input::Failed { through });
            } else if let Some(running) = &mut self.running {
                running.mesh.handle(now, input);
            }
        }
        let Some(running) = &mut self.running else { return };
        if now.at >= running.mesh.next_deadline() {
            running.mesh.tick(now);
        }
        running.mesh.flush();
        self.carry_out(now);
    }

    fn carry_out(&mut self, now: Now) {
        while let Some(effect) = self.running.as_mut().and_then(|running| running.mesh.poll_effect()) {
            match effect {
                Effect::Respond { conn, request, outcome } => {
                    if let Ok(Answer::Hello(hello)) = &outcome {
                        let new = hello.lease == tenure_proto::hello::LeaseFate::New;
                        self.did.push(Did::Admitted(conn, new));
                    }
                    self.put(now, conn, Out::Respond(request, Box::new(outcome)));
                }
                Effect::Events { conn, batch } => self.put(now, conn, Out::Events(Box::new(batch))),
                Effect::Ping { conn } => self.put(now, conn, Out::Ping),
                Effect::Close { conn, closing } => {
                    self.did.push(Did::Lost(conn));
                    self.put(now, conn, Out::Close(Box::new(closing)));
                }
                Effect::Write { id, write } => {
                    let Some(running) = &mut self.running else { return };
                    let queued = running.asking.ask(id, write, running.load);
                    let more = queued.load();
                    running.load.writes += more.writes;
                    running.load.bytes += more.bytes;
                    running.queue.push_back(queued);
                }
                Effect::Read { id, read } => {
                    let Some(running) = &mut self.running else { return };
                    running.reads.push_back((id, read));
                }
                Effect::Note(note) => {
                    if let Note::GraceEntered { conn, .. } = &note {
                        self.did.push(Did::Lost(*conn));
                    }
                    if note == Note::Configured {
                        self.tune();
                    }
                    self.did.push(Did::Note(note));
                }
                Effect::Operated { id, outcome } => self.did.push(Did::Operated(id, Box::new(outcome))),
                Effect::Drained => self.did.push(Did::Drained),
                // No relay is simulated: nobody asks for streams, so none is given or cut.
                Effect::Routed { .. } | Effect::Cut { .. } | Effect::CutFrom { .. } => {}
            }
        }
    }

    fn put(&mut self, now: Now, conn: ConnId, asked: Out) {
        self.on(conn, |server, house| server.conn.obey(now, [asked], house, &mut server.out));
    }

    /// Gives the writer what waits; says whether it has something to write.
    pub(crate) fn begin_write(&mut self) -> bool {
        self.running.as_mut().is_some_and(Running::begin_write)
    }

    /// What was being written is on disk, or is not.
    pub(crate) fn written(&mut self, world: u64) {
        let now = self.now(world);
        let Some(running) = &mut self.running else { return };
        let Some(batch) = running.writing.take() else { return };
        let load = batch.load();
        let beat = (now.at.0 >= running.beaten + BEAT_MS).then(|| {
            running.beaten = now.at.0;
            let believed_at = running.mesh.clock_doubt().is_none().then_some(now.wall);
            let (looked, frozen_ms) = running.mesh.last_look();
            (freeze::uptime_ms(now.at, looked, frozen_ms), believed_at)
        });
        let outcome = if batch.is_refused() {
            Err(tenure_store::StoreError::Unavailable("too far behind".to_owned()))
        } else {
            self.disk.commit(running.run, &batch.writes, beat)
        };
        running.load.writes -= load.writes;
        running.load.bytes -= load.bytes;
        self.did.push(Did::Wrote(batch.writes.len(), outcome.as_ref().err().map(ToString::to_string)));
        running.inputs.extend(running.taking.done(batch, outcome));
    }

    /// Reads what is asked for next.
    pub(crate) fn read(&mut self) {
        let Some(running) = &mut self.running else { return };
        running.reading = false;
        let Some((id, read)) = running.reads.pop_front() else { return };
        let found: StoreFound = self.disk.read(&read);
        running.inputs.push_back(Input::Found { id, found });
    }

    /// Whether a transaction is under way.
    pub(crate) fn is_writing(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.writing.is_some())
    }

    /// Whether it runs, frozen or not.
    pub(crate) fn is_up(&self) -> bool {
        self.running.is_some()
    }
}

impl Running {
    /// When one of the sockets is due.
    pub(crate) fn next_conn_deadline(&self) -> Option<Millis> {
        self.servers.values().filter_map(|server| server.conn.next_deadline()).min()
    }

    fn begin_write(&mut self) -> bool {
        if self.writing.is_none() && (self.taking.is_holding() || !self.queue.is_empty()) {
            let queue = &mut self.queue;
            self.writing = Some(self.taking.fill(std::iter::from_fn(|| queue.pop_front())));
        }
        self.writing.is_some()
    }
}
