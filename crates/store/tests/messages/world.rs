//! A broker without sockets: a mesh, its store, a clock that only moves when told, and sockets that remember
//! what they were given.
//!
//! Writes wait in a queue as they do for a real writer, and the broker can be dropped at any instant: what was not
//! applied by then is lost, and what was applied may never have been heard of.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use tenure_kit::census::Count;
use tenure_kit::clock::Clocks;
use tenure_kit::{Millis, Now};
use tenure_mesh::access::admin::Operated;
use tenure_mesh::conn::admit::Admission;
use tenure_mesh::effect::{Answer, Effect, HelloAnswer, Note, Push, WriteId};
use tenure_mesh::input::{Boot, Call, StoredMesh};
use tenure_mesh::store::record::{StoreFound, StoreRead, StoreWrite};
use tenure_mesh::{Input, Mesh, MeshConfig};
use tenure_proto::close::Closing;
use tenure_proto::error::WireError;
use tenure_proto::event::{EventBody, Receipt};
use tenure_proto::ids::{ConnId, MessageId, RequestId};
use tenure_proto::name::MeshName;
use tenure_store::{Memory, Sqlite, Store, StoreReader, StoredLease, Write};

/// What an answer is.
pub(crate) type Outcome = Result<Answer, WireError>;

/// Where the wall clock stands when a world begins.
pub(crate) const WALL: u64 = 1_700_000_000_000;

/// How long a start that was off for more than a day lets nothing expire.
pub(crate) const CLOCK_STEADY_MS: u64 = 3_600_000;

/// Where the store is.
#[derive(Debug)]
pub(crate) enum Engine {
    Memory(Memory),
    Sqlite(tempfile::TempDir),
}

impl Engine {
    pub(crate) fn memory() -> Engine {
        Engine::Memory(Memory::new())
    }

    pub(crate) fn sqlite() -> Engine {
        Engine::Sqlite(tempfile::tempdir().unwrap())
    }

    fn open(&self) -> Box<dyn Store> {
        match self {
            Engine::Memory(memory) => Box::new(memory.clone()),
            Engine::Sqlite(dir) => Box::new(Sqlite::open(dir.path()).unwrap()),
        }
    }
}

/// What the disk does with writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disk {
    /// Takes them at once.
    Commits,
    /// Lets them wait.
    Holds,
    /// Takes none.
    Fails,
}

/// A socket as its client sees it.
#[derive(Debug)]
pub(crate) struct Socket {
    hello: RequestId,
    /// Whether it can still be read and written.
    pub(crate) open: bool,
    /// Whether it takes what it is given at once.
    pub(crate) flushes: bool,
    pub(crate) unflushed: bool,
    pub(crate) closing: Option<Closing>,
    /// Requests without an answer.
    pub(crate) asked: BTreeSet<RequestId>,
    pub(crate) answers: BTreeMap<RequestId, Outcome>,
    pub(crate) pushes: VecDeque<Push>,
    pub(crate) events: Vec<EventBody>,
    /// In which order answers and pushes came; `None` is a push.
    pub(crate) frames: VecDeque<Option<RequestId>>,
    pub(crate) last_seq: u64,
}

pub(crate) struct World {
    pub(crate) mesh: Mesh,
    pub(crate) config: MeshConfig,
    pub(crate) engine: Engine,
    store: Option<Box<dyn Store>>,
    reader: Option<Box<dyn StoreReader>>,
    pub(crate) name: MeshName,
    pub(crate) run: u64,
    /// Starts, of whatever store.
    boots: u64,
    at: u64,
    pub(crate) wall: u64,
    /// How far the wall clock goes while the broker is down next.
    pub(crate) away: i64,
    pub(crate) disk: Disk,
    pub(crate) pending: VecDeque<(WriteId, StoreWrite)>,
    /// Whether reads fail.
    pub(crate) blind: bool,
    pub(crate) reads: Vec<StoreRead>,
    pub(crate) sockets: BTreeMap<ConnId, Socket>,
    pub(crate) notes: Vec<Note>,
    /// What operators were answered.
    pub(crate) operated: Vec<Result<Operated, WireError>>,
    last_conn: u64,
    last_request: u64,
    last_message: u128,
}

impl World {
    pub(crate) fn new(engine: Engine, config: MeshConfig) -> World {
        config.check().unwrap();
        let now = Now { at: Millis(0), wall: WALL };
        let boot = Boot { run: 0, random: 0 };
        let mesh = Mesh::new(config.clone(), boot, "b".into(), now, StoredMesh::default());
        let mut world = World {
            mesh,
            config,
            engine,
            store: None,
            reader: None,
            name: "default".parse().unwrap(),
            run: 0,
            boots: 0,
            at: 0,
            wall: WALL,
            away: 0,
            disk: Disk::Commits,
            pending: VecDeque::new(),
            blind: false,
            reads: Vec::new(),
            sockets: BTreeMap::new(),
            notes: Vec::new(),
            operated: Vec::new(),
            last_conn: 0,
            last_request: 0,
            last_message: 0,
        };
        world.start();
        world
    }

    pub(crate) fn store(&mut self) -> &mut dyn Store {
        self.store.as_deref_mut().unwrap()
    }

    pub(crate) fn now(&self) -> Now {
        Now { at: Millis(self.at), wall: self.wall }
    }

    // The life of the broker.

    fn start(&mut self) {
        self.wall = self.wall.saturating_add_signed(std::mem::take(&mut self.away));
        let mut store = self.engine.open();
        assert_eq!(store.check().unwrap(), Vec::<String>::new());
        let run = store.begin_run(self.wall).unwrap();
        self.run = run.number;
        let leases = store.leases().unwrap().into_iter().filter(|lease| lease.row.mesh == self.name);
        let stored = StoredMesh {
            leases: leases.map(StoredLease::restored).collect(),
            messages: store.restore(&self.name).unwrap(),
            access: store.access(&self.name).unwrap(),
        };
        self.reader = Some(store.reader().unwrap());
        self.store = Some(store);
        self.at = 0;
        self.boots += 1;
        let boot = Boot { run: self.run, random: self.boots };
        let mesh = Mesh::new(self.config.clone(), boot, "b".into(), self.now(), stored);
        self.mesh = mesh.with_clocks(Clocks::at_start(self.now(), run.believed_at));
    }

    /// The broker dies. The first `landed` of the writes that wait are on disk, which nobody heard; the others
    /// are lost.
    pub(crate) fn crash(&mut self, landed: usize) {
        let pending = std::mem::take(&mut self.pending);
        let landed: Vec<Write> = pending.into_iter().take(landed).map(|(_, w)| self.stored(w)).collect();
        if self.disk != Disk::Fails {
            self.store().apply(&landed).unwrap();
            let (run, uptime_ms) = (self.run, self.at);
            let believed_at = self.mesh.clock_doubt().is_none().then_some(self.wall);
            self.store().apply(&[Write::Heartbeat { run, uptime_ms, believed_at }]).unwrap();
        }
        self.set_disk(Disk::Commits);
        self.blind = false;
        for socket in self.sockets.values_mut() {
            socket.open = false;
        }
        (self.store, self.reader) = (None, None);
        self.start();
    }

    /// The broker dies with every write on disk.
    pub(crate) fn restart(&mut self) {
        self.crash(usize::MAX);
    }

    /// Whether the disk takes writes.
    pub(crate) fn set_disk(&mut self, disk: Disk) {
        if let Engine::Memory(memory) = &self.engine {
            memory.fail_writes(disk == Disk::Fails);
        }
        self.disk = disk;
    }

    fn stored(&self, write: StoreWrite) -> Write {
        Write::Mesh { mesh: self.name.clone(), run: self.run, write }
    }

    /// The disk takes the first `count` of the writes that wait, in one transaction, or none of them.
    ///
    /// When it fails, everything that waits fails with it: what was asked for before a failure was heard must not
    /// take effect after it.
    pub(crate) fn write_some(&mut self, count: usize) -> Option<Input> {
        let count = if self.disk == Disk::Fails { usize::MAX } else { count };
        let taken: Vec<_> = self.pending.drain(..count.min(self.pending.len())).collect();
        let through = taken.last()?.0;
        let batch: Vec<Write> = taken.iter().map(|(_, write)| self.stored(write.clone())).collect();
        if self.disk == Disk::Fails {
            // What a full disk answers is the store's own affair; here it is enough that nothing took effect.
            return Some(Input::Failed { through });
        }
        let outcomes = self.store().apply(&batch).unwrap();
        let outcomes = taken.iter().map(|(id, _)| *id).zip(outcomes).collect();
        Some(Input::Committed { through, outcomes })
    }

    /// A disk that holds writes takes some of them.
    pub(crate) fn commit(&mut self, count: usize) {
        if let Some(input) = self.write_some(count) {
            self.tell(input);
        }
    }

    // Time.

    /// Lets time pass, with a broker that is awake.
    pub(crate) fn pass(&mut self, ms: u64) {
        let target = self.at + ms;
        let mut at_once = 0;
        loop {
            let due = self.mesh.next_deadline().0;
            if due > target {
                break;
            }
            at_once = if due > self.at { 0 } else { at_once + 1 };
            assert!(at_once < 100, "a deadline that has come comes again and again");
            self.move_to(self.at.max(due));
            self.mesh.tick(self.now());
            self.carry_out();
        }
        self.move_to(target);
    }

    fn move_to(&mut self, at: u64) {
        self.wall += at - self.at;
        self.at = at;
    }

    /// The broker is off for a while. More than a day of that is doubted for an hour: [`CLOCK_STEADY_MS`].
    pub(crate) fn sleep(&mut self, ms: u64) {
        self.restart();
        self.wall += ms;
        (self.store, self.reader) = (None, None);
        self.start();
    }

    // What happens to it.

    pub(crate) fn tell(&mut self, input: Input) {
        self.mesh.handle(self.now(), input);
        self.carry_out();
    }

    /// Tells it several things before anything is handed out.
    pub(crate) fn tell_all(&mut self, inputs: Vec<Input>) {
        for input in inputs {
            self.mesh.handle(self.now(), input);
        }
        self.carry_out();
    }

    /// Tells it something when its next deadline has come, before it does what is due.
    pub(crate) fn tell_at_deadline(&mut self, input: Input) {
        self.move_to(self.at.max(self.mesh.next_deadline().0));
        self.mesh.handle(self.now(), input);
        self.mesh.tick(self.now());
        self.carry_out();
    }

    fn next_request(&mut self) -> RequestId {
        self.last_request += 1;
        format!("r{:06}", self.last_request).parse().unwrap()
    }

    pub(crate) fn next_message(&mut self) -> MessageId {
        self.last_message += 1;
        MessageId::from_parts(self.wall, self.last_message)
    }

    /// Dials and says hello.
    pub(crate) fn dial(&mut self, admission: Admission) -> ConnId {
        self.last_conn += 1;
        let (conn, request) = (ConnId(self.last_conn), self.next_request());
        let socket = Socket {
            hello: request.clone(),
            open: true,
            flushes: true,
            unflushed: false,
            closing: None,
            asked: BTreeSet::from([request.clone()]),
            answers: BTreeMap::new(),
            pushes: VecDeque::new(),
            events: Vec::new(),
            frames: VecDeque::new(),
            last_seq: 0,
        };
        self.sockets.insert(conn, socket);
        self.tell(Input::Hello { conn, request, admission: Box::new(admission) });
        conn
    }

    /// Asks for something; the answer comes when it comes.
    pub(crate) fn ask(&mut self, conn: ConnId, call: Call) -> RequestId {
        let (input, request) = self.request(conn, call);
        self.tell(input);
        request
    }

    /// A request that is about to be told.
    pub(crate) fn request(&mut self, conn: ConnId, call: Call) -> (Input, RequestId) {
        let request = self.next_request();
        self.sockets.get_mut(&conn).unwrap().asked.insert(request.clone());
        let at = self.now().at;
        (Input::Request { conn, at, request: request.clone(), call }, request)
    }

    /// A socket ends.
    pub(crate) fn drop_socket(&mut self, conn: ConnId) {
        let at = self.now().at;
        let socket = self.sockets.get_mut(&conn).unwrap();
        if std::mem::replace(&mut socket.open, false) {
            self.tell(Input::Closed { conn, at, by_client: true });
        }
    }

    /// A socket that was blocked takes what it was given.
    pub(crate) fn unblock(&mut self, conn: ConnId) {
        let socket = self.sockets.get_mut(&conn).unwrap();
        socket.flushes = true;
        if socket.open && std::mem::take(&mut socket.unflushed) {
            self.tell(Input::Flushed { conn });
        }
    }

    // What came of it.

    #[track_caller]
    pub(crate) fn socket(&self, conn: ConnId) -> &Socket {
        self.sockets.get(&conn).unwrap()
    }

    /// The answer to a request, if it has come.
    pub(crate) fn answered(&mut self, conn: ConnId, request: &RequestId) -> Option<Outcome> {
        self.sockets.get_mut(&conn).unwrap().answers.remove(request)
    }

    /// Asks and is answered at once.
    #[track_caller]
    pub(crate) fn call(&mut self, conn: ConnId, call: Call) -> Outcome {
        let request = self.ask(conn, call);
        self.answered(conn, &request).expect("an answer at once")
    }

    /// What the hello of a socket was answered.
    #[track_caller]
    pub(crate) fn hello(&self, conn: ConnId) -> &HelloAnswer {
        let socket = self.socket(conn);
        match socket.answers.get(&socket.hello) {
            Some(Ok(Answer::Hello(answer))) => answer,
            other => panic!("{conn} was answered {other:?}"),
        }
    }

    /// Deliveries since the last look.
    pub(crate) fn pushes(&mut self, conn: ConnId) -> Vec<Push> {
        self.sockets.get_mut(&conn).unwrap().pushes.drain(..).collect()
    }

    /// Receipts since the last look.
    pub(crate) fn receipts(&mut self, conn: ConnId) -> Vec<Receipt> {
        let events = std::mem::take(&mut self.sockets.get_mut(&conn).unwrap().events);
        let receipt = |event| match event {
            EventBody::Receipt(receipt) => Some(receipt),
            _ => None,
        };
        events.into_iter().filter_map(receipt).collect()
    }

    pub(crate) fn read(&mut self, read: &StoreRead) -> StoreFound {
        let name = self.name.clone();
        self.reader.as_mut().unwrap().read(&name, read).unwrap()
    }

    // Carrying effects out.

    fn carry_out(&mut self) {
        for round in 0.. {
            assert!(round < 10_000, "it goes round in circles");
            self.mesh.flush();
            let mut inputs = Vec::new();
            while let Some(effect) = self.mesh.poll_effect() {
                self.carry_out_one(effect, &mut inputs);
            }
            if self.disk != Disk::Holds {
                inputs.extend(self.write_some(usize::MAX));
            }
            if inputs.is_empty() {
                let census = self.mesh.census();
                assert!(census.iter().all(Count::fits), "{census:?}");
                return;
            }
            for input in inputs {
                self.mesh.handle(self.now(), input);
            }
        }
    }

    fn carry_out_one(&mut self, effect: Effect, inputs: &mut Vec<Input>) {
        match effect {
            Effect::Respond { conn, request, outcome } => {
                let socket = self.sockets.get_mut(&conn).expect("a socket of ours");
                assert!(socket.asked.remove(&request), "{request} was not asked, or answered before");
                if socket.open {
                    socket.frames.push_back(Some(request.clone()));
                    socket.answers.insert(request, outcome);
                }
            }
            Effect::Events { conn, batch } => {
                let socket = self.sockets.get_mut(&conn).expect("a socket of ours");
                assert!(!std::mem::replace(&mut socket.unflushed, true), "two batches at once for {conn}");
                assert!(socket.open, "events for {conn}, which is closed");
                for (seq, body) in batch.direct {
                    socket.last_seq = seq;
                    socket.events.push(EventBody::clone(&Arc::clone(&body)));
                }
                if let Some((first, delta)) = batch.presence {
                    socket.last_seq = first + delta.steps.len() as u64 - 1;
                }
                let (first, pushes) = batch.pushes;
                if !pushes.is_empty() {
                    socket.last_seq = first + pushes.len() as u64 - 1;
                }
                socket.frames.extend(pushes.iter().map(|_| None));
                socket.pushes.extend(pushes);
                if socket.flushes {
                    socket.unflushed = false;
                    inputs.push(Input::Flushed { conn });
                }
            }
            Effect::Ping { conn } => inputs.push(Input::Alive { conn, at: self.now().at }),
            Effect::Close { conn, closing } => {
                let socket = self.sockets.get_mut(&conn).expect("a socket of ours");
                (socket.closing, socket.open) = (Some(closing), false);
            }
            Effect::Write { id, write } => self.pending.push_back((id, write)),
            Effect::Read { id, read } => {
                let found = if self.blind { StoreFound::Unavailable } else { self.read(&read) };
                self.reads.push(read);
                inputs.push(Input::Found { id, found });
            }
            Effect::Note(note) => self.notes.push(note),
            Effect::Operated { outcome, .. } => self.operated.push(outcome),
            Effect::Drained | Effect::Routed { .. } => {}
            Effect::Cut { .. } | Effect::CutFrom { .. } => {}
        }
    }
}
