//! A broker's shell in a few lines: it carries effects out, keeps a store, remembers what each socket was sent
//! exactly as its client would see it, and owns a clock that jumps from deadline to deadline.
//!
//! It also minds the shell's side of the contract, whatever a test is about: nothing is said to a socket after
//! its close, events go only to a session whose lease the store has, one batch at a time, every hello is answered
//! at most once, writes are numbered by ones. A mesh that breaks one of these fails the test it is in.

use std::collections::{BTreeMap, VecDeque};
use tenure_proto::close::Reason;
use tenure_proto::ids::{MemberKey, SessionKey};

use tenure_kit::cidr::Cidr;
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::hello::InboxChoice;
use tenure_proto::name::ServiceName;
use tenure_proto::number::U53;
use tenure_proto::peer::Profile;

use crate::access::admin::{Act, OperateId, Operated, Operation};
use crate::access::{Presented, RestoredAccess};
use crate::conn::admit::{Admission, TokenVerdict, Voucher};
use crate::effect::{HelloAnswer, Note, ReadId};
use crate::input::{Banned, Call, StoredMesh};
use crate::services::route::{RouteId, Target};
use crate::store::record::{RestoredMessages, StoreFound, StoreRead};
use crate::tests::socket;
use crate::*;

pub(crate) use crate::tests::disk::{Disk, Store};
pub(crate) use crate::tests::socket::{Frame, Socket};

/// The wall clock when the world begins.
pub(crate) const WALL: u64 = 1_800_000_000_000;

/// A mesh with everything around it.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) mesh: Mesh,
    /// What of access a start finds.
    pub(crate) remembers: RestoredAccess,
    pub(crate) store: Store,
    pub(crate) sockets: BTreeMap<ConnId, Socket>,
    pub(crate) notes: Vec<Note>,
    pub(crate) drained: usize,
    /// What became of streams, and which were cut.
    pub(crate) routed: Vec<(RouteId, Result<Target, WireError>)>,
    pub(crate) cuts: Vec<(SessionKey, Option<ServiceName>, &'static str)>,
    pub(crate) cut_from: Vec<Cidr>,
    /// What operators were answered.
    pub(crate) operated: BTreeMap<OperateId, Result<Operated, WireError>>,
    /// While set, inputs pile up before anything is handed out.
    pub(crate) batching: bool,
    /// While set, reads wait to be answered by the test.
    pub(crate) hold_reads: bool,
    pub(crate) reads: VecDeque<(ReadId, StoreRead)>,
    config: MeshConfig,
    /// Milliseconds since the world began; the broker's own clock starts over with each run.
    clock: u64,
    started: u64,
    boots: u64,
    /// How long the broker was frozen in this run.
    frozen: u64,
    last_conn: u64,
    last_request: u64,
}

impl World {
    pub(crate) fn new() -> World {
        World::with(MeshConfig::default())
    }

    pub(crate) fn with(config: MeshConfig) -> World {
        World {
            mesh: Mesh::new(
                config.clone(),
                Boot { run: 1, random: 1 },
                "b".into(),
                Now { at: Millis(0), wall: WALL },
                StoredMesh::default(),
            ),
            remembers: RestoredAccess::default(),
            store: Store::default(),
            sockets: BTreeMap::new(),
            notes: Vec::new(),
            drained: 0,
            routed: Vec::new(),
            cuts: Vec::new(),
            cut_from: Vec::new(),
            operated: BTreeMap::new(),
            batching: false,
            hold_reads: false,
            reads: VecDeque::new(),
            config,
            clock: 0,
            started: 0,
            boots: 1,
            frozen: 0,
            last_conn: 0,
            last_request: 0,
        }
    }

    /// Both clocks as this run's broker reads them.
    pub(crate) fn now(&self) -> Now {
        Now { at: Millis(self.clock - self.started), wall: WALL + self.clock }
    }

    pub(crate) fn run(&self) -> u64 {
        self.store.run()
    }

    /// Another start, on whatever the store is then.
    fn boot(&mut self) -> Boot {
        self.boots += 1;
        Boot { run: self.run(), random: self.boots }
    }

    // Time.

    /// Lets time pass, with a broker that is awake.
    pub(crate) fn advance(&mut self, ms: u64) {
        let target = self.clock + ms;
        let mut at_once = 0;
        loop {
            let due = self.started + self.mesh.next_deadline().0;
            if due > target {
                break;
            }
            at_once = if due > self.clock { 0 } else { at_once + 1 };
            assert!(at_once < 100, "a deadline that has come comes again and again");
            self.clock = self.clock.max(due);
            self.tick();
        }
        self.clock = target;
    }

    /// Lets time pass while the broker does not run at all.
    pub(crate) fn freeze(&mut self, ms: u64) {
        self.clock += ms;
        self.tick();
    }

    /// Hands out what is due.
    pub(crate) fn flush(&mut self) {
        self.carry_out();
    }

    fn tick(&mut self) {
        self.mesh.tick(self.now());
        self.carry_out();
    }

    // Inputs.

    pub(crate) fn input(&mut self, input: Input) {
        self.mesh.handle(self.now(), input);
        self.carry_out();
    }

    /// A new socket whose client says hello.
    pub(crate) fn hello(&mut self, admission: Admission) -> ConnId {
        self.last_conn += 1;
        let conn = ConnId(self.last_conn);
        self.hello_on(conn, admission);
        conn
    }

    /// The socket of this number says hello: sockets are numbered as they are opened.
    pub(crate) fn hello_on(&mut self, conn: ConnId, admission: Admission) {
        let hello = self.next_request();
        self.sockets.insert(conn, Socket::new(hello.clone()));
        self.input(Input::Hello { conn, request: hello, admission: Box::new(admission) });
    }

    /// Session `n` says hello and is let in.
    #[track_caller]
    pub(crate) fn join(&mut self, n: u8) -> ConnId {
        self.enter(knock(n))
    }

    /// A hello that must be let in.
    #[track_caller]
    pub(crate) fn enter(&mut self, admission: Admission) -> ConnId {
        let conn = self.hello(admission);
        self.answer(conn);
        conn
    }

    /// Asks, and takes the answer out if it is there already.
    pub(crate) fn ask(&mut self, conn: ConnId, call: Call) -> Option<Result<Answer, WireError>> {
        let request = self.next_request();
        self.input(Input::Request { conn, at: self.now().at, request: request.clone(), call });
        self.socket_mut(conn).answer_to(&request)
    }

    pub(crate) fn bye(&mut self, conn: ConnId) -> Option<Result<Answer, WireError>> {
        if let Some(socket) = self.sockets.get_mut(&conn) {
            socket.carries = None;
        }
        self.ask(conn, Call::Bye)
    }

    /// The socket ends: by the client's hand, or it just breaks and the broker notices.
    pub(crate) fn close(&mut self, conn: ConnId, by_client: bool) {
        let socket = self.socket_mut(conn);
        (socket.gone, socket.carries) = (true, None);
        self.input(Input::Closed { conn, at: self.now().at, by_client });
    }

    /// Something was heard from the client.
    pub(crate) fn alive(&mut self, conn: ConnId) {
        self.input(Input::Alive { conn, at: self.now().at });
    }

    /// The socket takes what it was given, now and from now on.
    pub(crate) fn unblock(&mut self, conn: ConnId) {
        let socket = self.socket_mut(conn);
        socket.flushes = true;
        if std::mem::take(&mut socket.unflushed) {
            self.input(Input::Flushed { conn });
        }
    }

    /// An operator asks; the answer if it is there already.
    pub(crate) fn operate(&mut self, act: Act) -> Option<Result<Operated, WireError>> {
        let id = OperateId(self.operated.len() as u64 + 1);
        let (who, from) = ("operator".to_owned(), "127.0.0.1".to_owned());
        self.input(Input::Operate { id, operation: Box::new(Operation { who, from, act }) });
        self.operated.get(&id).cloned()
    }

    /// An operator keeps somebody out.
    pub(crate) fn ban(&mut self, subject: Banned) -> Option<Result<Operated, WireError>> {
        self.operate(Act::Ban(subject, String::new()))
    }

    /// An operator does so no longer.
    pub(crate) fn unban(&mut self, subject: Banned) -> Option<Result<Operated, WireError>> {
        self.operate(Act::Unban(subject))
    }

    /// An operator sets all that these numbers are made of.
    pub(crate) fn configure(&mut self, config: &MeshConfig) -> Option<Result<Operated, WireError>> {
        let values = crate::access::setting::all(config);
        let Some(Ok(Operated::Settings { version, .. })) = self.operate(Act::Settings) else { return None };
        self.operate(Act::Set { version, values })
    }

    pub(crate) fn drain(&mut self, restart_in_ms: Option<u64>, deadline_ms: u64) {
        self.input(Input::Drain { reason: "upgrade".into(), restart_in_ms, deadline_ms });
    }

    // The store.

    /// The disk does this from now on; if it commits or fails, so does what waits.
    pub(crate) fn disk(&mut self, disk: Disk) {
        self.store.disk = disk;
        self.flush();
    }

    /// Commits the first `count` writes that wait.
    pub(crate) fn commit(&mut self, count: usize) {
        if let Some(through) = self.store.land(count) {
            self.input(Input::Committed { through, outcomes: Vec::new() });
        }
    }

    /// The broker dies and starts again. Of what waits for the disk, the first `landed` writes got there.
    pub(crate) fn restart(&mut self, landed: usize) {
        self.store.land(landed);
        let restored = self.store.next_run(self.clock - self.started - std::mem::take(&mut self.frozen));
        self.started = self.clock;
        for socket in self.sockets.values_mut() {
            (socket.gone, socket.carries) = (true, None);
        }
        let messages = RestoredMessages { services: self.store.services(), ..Default::default() };
        let (boot, access) = (self.boot(), self.remembers.clone());
        let stored = StoredMesh { leases: restored, messages, access };
        self.mesh = Mesh::new(self.config.clone(), boot, "b".into(), self.now(), stored);
    }

    /// The broker starts on a store with these messages and no lease.
    pub(crate) fn start_with(&mut self, messages: RestoredMessages) {
        self.store = Store::default();
        for socket in self.sockets.values_mut() {
            (socket.gone, socket.carries) = (true, None);
        }
        let (boot, now) = (self.boot(), self.now());
        let stored = StoredMesh { messages, ..StoredMesh::default() };
        self.mesh = Mesh::new(self.config.clone(), boot, "b".into(), now, stored);
    }

    // What came of it.

    pub(crate) fn socket(&self, conn: ConnId) -> &Socket {
        &self.sockets[&conn]
    }

    pub(crate) fn socket_mut(&mut self, conn: ConnId) -> &mut Socket {
        self.sockets.get_mut(&conn).unwrap()
    }

    pub(crate) fn is_open(&self, conn: ConnId) -> bool {
        let socket = self.socket(conn);
        socket.closing.is_none() && !socket.gone
    }

    /// How the hello was answered, which must be well.
    #[track_caller]
    pub(crate) fn answer(&self, conn: ConnId) -> &HelloAnswer {
        match &self.socket(conn).answer {
            Some(Ok(answer)) => answer,
            other => panic!("{conn} was not let in: {other:?}, {:?}", self.socket(conn).closing),
        }
    }

    /// With which code the hello was refused, and how the socket closed.
    #[track_caller]
    pub(crate) fn refusal(&self, conn: ConnId) -> (ErrorCode, &'static str, Option<u64>) {
        let Some(Err(error)) = &self.socket(conn).answer else { panic!("{conn} was not refused") };
        let (reason, retry_after_ms) = self.closed(conn).expect("refused and left open");
        assert_eq!(error.retry_after_ms.map(U53::get), retry_after_ms);
        assert_eq!(error.retryable, error.code.retryable());
        (error.code, reason, retry_after_ms)
    }

    /// How the socket closed: the reason, and what its client is asked to wait.
    pub(crate) fn closed(&self, conn: ConnId) -> Option<(&'static str, Option<u64>)> {
        let closing = self.socket(conn).closing.as_ref()?;
        let reason = Reason::from_wire(&closing.reason).expect("one of ours");
        assert_eq!((closing.code, closing.retryable), (reason.code(), reason.retryable()));
        Some((reason.as_str(), closing.retry_after_ms.map(U53::get)))
    }

    /// The events since the last look, as `3 joined s2` or `4 tick`.
    pub(crate) fn seen(&mut self, conn: ConnId) -> Vec<String> {
        let frames = std::mem::take(&mut self.socket_mut(conn).frames);
        let text = |frame| match frame {
            Frame::Event(seq, body) => Some(format!("{seq} {}", socket::told(&body))),
            _ => None,
        };
        frames.into_iter().filter_map(text).collect()
    }

    /// The pings since the last look.
    pub(crate) fn pings(&mut self, conn: ConnId) -> usize {
        let frames = std::mem::take(&mut self.socket_mut(conn).frames);
        frames.iter().filter(|frame| matches!(frame, Frame::Ping)).count()
    }

    /// A hello of the same process that was on `conn`, with its token, having `last_seq`.
    #[track_caller]
    pub(crate) fn resume(&self, conn: ConnId, last_seq: u64) -> Admission {
        let HelloAnswer { session, lease_id, epoch, .. } = self.answer(conn);
        Admission {
            token: TokenVerdict::Selects(lease_id.clone()),
            position: Some((epoch.clone(), last_seq)),
            ..knock(session.0[0])
        }
    }

    /// The same, having all that it was sent.
    #[track_caller]
    pub(crate) fn resume_all(&self, conn: ConnId) -> Admission {
        self.resume(conn, self.socket(conn).last_seq)
    }

    pub(crate) fn has_note(&self, wanted: impl Fn(&Note) -> bool) -> bool {
        self.notes.iter().any(wanted)
    }

    // Carrying effects out.

    fn next_request(&mut self) -> RequestId {
        self.last_request += 1;
        format!("r{}", self.last_request).parse().unwrap()
    }

    /// Carries out effects and all that follows from them.
    fn carry_out(&mut self) {
        loop {
            if !self.batching {
                self.mesh.flush();
            }
            let mut inputs = Vec::new();
            while let Some(effect) = self.mesh.poll_effect() {
                self.carry_out_one(effect, &mut inputs);
            }
            inputs.extend(self.store.answer());
            if !self.batching {
                self.mesh.check(inputs.is_empty());
                self.check_carried();
            }
            if inputs.is_empty() {
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
                let socket = self.spoken_to(conn);
                if request == socket.hello {
                    socket.answered(&outcome);
                }
                socket.frames.push_back(Frame::Answer(request, outcome));
            }
            Effect::Events { conn, batch } => {
                let socket = self.spoken_to(conn);
                assert!(!std::mem::replace(&mut socket.unflushed, true), "two batches at once for {conn}");
                let session =
                    socket.carries.unwrap_or_else(|| panic!("events for {conn}, which carries nobody"));
                socket.receive(batch);
                if socket.flushes {
                    socket.unflushed = false;
                    inputs.push(Input::Flushed { conn });
                }
                assert!(self.store.leases.contains_key(&session), "events for {session:?} after its end");
            }
            Effect::Ping { conn } => {
                let at = self.now().at;
                let socket = self.spoken_to(conn);
                socket.frames.push_back(Frame::Ping);
                if socket.lively {
                    inputs.push(Input::Alive { conn, at });
                }
            }
            Effect::Close { conn, closing } => {
                let socket = self.spoken_to(conn);
                (socket.closing, socket.carries) = (Some(closing), None);
            }
            Effect::Write { id, write } => self.store.push(id, write),
            Effect::Read { id, read } if self.hold_reads => self.reads.push_back((id, read)),
            Effect::Read { id, .. } => inputs.push(Input::Found { id, found: StoreFound::Unavailable }),
            Effect::Note(note) => {
                if let Note::Frozen { ms } = note {
                    self.frozen += ms;
                }
                self.notes.push(note);
            }
            Effect::Operated { id, outcome } => _ = self.operated.insert(id, outcome),
            Effect::Drained => self.drained += 1,
            Effect::Routed { route, outcome } => self.routed.push((route, outcome)),
            Effect::Cut { session, name, reason } => self.cuts.push((session, name, reason)),
            Effect::CutFrom { network } => self.cut_from.push(network),
        }
    }

    /// A socket that was let in is carried by the mesh until it ends or is told why not.
    fn check_carried(&self) {
        let carrying = self.sockets.iter().filter(|(_, socket)| socket.carries.is_some());
        assert!(
            carrying.map(|(conn, _)| conn).eq(self.mesh.sessions.sockets()),
            "a socket was left open, or lost"
        );
    }

    fn spoken_to(&mut self, conn: ConnId) -> &mut Socket {
        let socket = self.sockets.get_mut(&conn).expect("a socket of ours");
        assert!(socket.closing.is_none(), "{conn} is spoken to after its close");
        socket
    }
}

pub(crate) fn session(n: u8) -> SessionKey {
    SessionKey([n; 32])
}

/// Session `n`, its member's own, in its first process, without a token.
pub(crate) fn knock(n: u8) -> Admission {
    Admission {
        mesh: "default".parse().unwrap(),
        member: MemberKey([n; 32]),
        session: session(n),
        instance: format!("i{n}").parse().unwrap(),
        profile: Profile::named(format!("s{n}")),
        inbox: InboxChoice::Session,
        voucher: Voucher::Attested(None),
        token: TokenVerdict::Absent,
        position: None,
        reconcile: None,
        positions: Vec::new(),
        client: "test/1".into(),
        counted: false,
        presented: Presented::Nothing,
        from: None,
    }
}

/// The same in another process.
pub(crate) fn process(n: u8, instance: &str) -> Admission {
    Admission { instance: instance.parse().unwrap(), ..knock(n) }
}
