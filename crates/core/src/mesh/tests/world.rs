//! A broker's shell in a few lines: it carries effects out, keeps a store, remembers what each socket was sent
//! exactly as its client would see it, and owns a clock that jumps from deadline to deadline.
//!
//! It also minds the shell's side of the contract, whatever a test is about: nothing is said to a socket after
//! its close, events go only to a session whose lease the store has, one batch at a time, every hello is answered
//! at most once, writes are numbered by ones. A mesh that breaks one of these fails the test it is in.

use std::collections::{BTreeMap, VecDeque};

use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::event::{EventBody, PresenceEvent};
use tenure_proto::hello::InboxChoice;
use tenure_proto::number::U53;
use tenure_proto::peer::Profile;

use crate::admit::{Admission, TokenVerdict, Voucher};
use crate::effect::{Batch, HelloAnswer, LeaseWrite};
use crate::input::Call;

use super::super::*;

/// The wall clock when the world begins.
pub(in crate::mesh) const WALL: u64 = 1_800_000_000_000;

/// What a socket was sent.
#[derive(Clone, Debug)]
pub(in crate::mesh) enum Frame {
    Answer(RequestId, Result<Answer, WireError>),
    Event(u64, EventBody),
    Ping,
}

/// One socket, as both ends see it.
#[derive(Debug)]
pub(in crate::mesh) struct Socket {
    /// What its client has not looked at yet.
    pub(in crate::mesh) frames: VecDeque<Frame>,
    /// How the hello on it was answered.
    pub(in crate::mesh) answer: Option<Result<HelloAnswer, WireError>>,
    pub(in crate::mesh) closing: Option<Closing>,
    /// The number of the last event it was sent.
    pub(in crate::mesh) last_seq: u64,
    /// Whether the client answers pings.
    pub(in crate::mesh) lively: bool,
    /// Whether the socket takes what it is given.
    pub(in crate::mesh) flushes: bool,
    /// Either end has gone without a word.
    gone: bool,
    hello: RequestId,
    carries: Option<SessionKey>,
    unflushed: bool,
}

/// What happens to writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::mesh) enum Disk {
    Commits,
    Holds,
    Fails,
}

/// The store, as the broker's own keeps leases: see its `touched_run` and `spent_ms`.
#[derive(Debug)]
pub(in crate::mesh) struct Store {
    pub(in crate::mesh) disk: Disk,
    /// By session: the lease, and the last run in which it was attached.
    pub(in crate::mesh) leases: BTreeMap<SessionKey, (LeaseRecord, u64)>,
    /// Beginnings (`true`) and ends of leases, in the order of their commits.
    pub(in crate::mesh) log: Vec<(SessionKey, bool)>,
    open: VecDeque<(WriteId, LeaseWrite)>,
    last: u64,
    /// The uptime of each run that has ended.
    uptimes: Vec<u64>,
}

impl Store {
    fn run(&self) -> u64 {
        self.uptimes.len() as u64 + 1
    }

    fn apply(&mut self, write: LeaseWrite) {
        let run = self.run();
        match write {
            LeaseWrite::Put(record) => {
                let (session, lease) = (record.session, record.lease.clone());
                let old = self.leases.insert(session, (*record, run));
                if old.is_none_or(|(old, _)| old.lease != lease) {
                    self.log.push((session, true));
                }
            }
            LeaseWrite::Touch(session, lease) => {
                if let Some((_, touched)) = self.leases.get_mut(&session).filter(|(r, _)| r.lease == lease) {
                    *touched = run;
                }
            }
            LeaseWrite::End(session, lease) => {
                if self.leases.get(&session).is_some_and(|(record, _)| record.lease == lease) {
                    self.leases.remove(&session);
                    self.log.push((session, false));
                }
            }
        }
    }

    /// What the next start finds: the uptimes of the runs since a lease was attached, that one left out.
    fn restored(&self) -> Vec<Restored> {
        let spent = |touched: u64| self.uptimes.iter().skip(touched as usize).sum();
        let found = self.leases.values();
        found.map(|(record, run)| Restored { record: record.clone(), spent_ms: spent(*run) }).collect()
    }
}

/// A mesh with everything around it.
#[derive(Debug)]
pub(in crate::mesh) struct World {
    pub(in crate::mesh) mesh: Mesh,
    pub(in crate::mesh) store: Store,
    pub(in crate::mesh) sockets: BTreeMap<ConnId, Socket>,
    pub(in crate::mesh) notes: Vec<Note>,
    pub(in crate::mesh) drained: usize,
    /// While set, inputs pile up before anything is handed out.
    pub(in crate::mesh) batching: bool,
    config: MeshConfig,
    /// Milliseconds since the world began; the broker's own clock starts over with each run.
    clock: u64,
    started: u64,
    last_conn: u64,
    last_request: u64,
}

impl World {
    pub(in crate::mesh) fn new() -> World {
        World::with(MeshConfig::default())
    }

    pub(in crate::mesh) fn with(config: MeshConfig) -> World {
        let store = Store {
            disk: Disk::Commits,
            leases: BTreeMap::new(),
            log: Vec::new(),
            open: VecDeque::new(),
            last: 0,
            uptimes: Vec::new(),
        };
        World {
            mesh: Mesh::new(config.clone(), 1, "b".into(), Now { at: Millis(0), wall: WALL }, Vec::new()),
            store,
            sockets: BTreeMap::new(),
            notes: Vec::new(),
            drained: 0,
            batching: false,
            config,
            clock: 0,
            started: 0,
            last_conn: 0,
            last_request: 0,
        }
    }

    /// Both clocks as this run's broker reads them.
    pub(in crate::mesh) fn now(&self) -> Now {
        Now { at: Millis(self.clock - self.started), wall: WALL + self.clock }
    }

    pub(in crate::mesh) fn run(&self) -> u64 {
        self.store.run()
    }

    // Time.

    /// Lets time pass, with a broker that is awake.
    pub(in crate::mesh) fn advance(&mut self, ms: u64) {
        let target = self.clock + ms;
        loop {
            let due = self.started + self.mesh.next_deadline().0;
            if due > target {
                break;
            }
            self.clock = self.clock.max(due);
            self.tick();
        }
        self.clock = target;
    }

    /// Lets time pass while the broker does not run at all.
    pub(in crate::mesh) fn freeze(&mut self, ms: u64) {
        self.clock += ms;
        self.tick();
    }

    fn tick(&mut self) {
        let mut effects = Vec::new();
        self.mesh.tick(self.now(), &mut effects);
        self.carry_out(effects);
    }

    // Inputs.

    pub(in crate::mesh) fn input(&mut self, input: Input) {
        let mut effects = Vec::new();
        self.mesh.handle(self.now(), input, &mut effects);
        self.carry_out(effects);
    }

    /// A new socket whose client says hello.
    pub(in crate::mesh) fn hello(&mut self, admission: Admission) -> ConnId {
        self.last_conn += 1;
        let (conn, hello) = (ConnId(self.last_conn), self.next_request());
        let socket = Socket {
            frames: VecDeque::new(),
            answer: None,
            closing: None,
            last_seq: 0,
            lively: true,
            flushes: true,
            gone: false,
            hello: hello.clone(),
            carries: None,
            unflushed: false,
        };
        self.sockets.insert(conn, socket);
        self.input(Input::Hello { conn, request: hello, admission: Box::new(admission) });
        conn
    }

    /// Session `n` says hello and is let in.
    #[track_caller]
    pub(in crate::mesh) fn join(&mut self, n: u8) -> ConnId {
        self.enter(knock(n))
    }

    /// A hello that must be let in.
    #[track_caller]
    pub(in crate::mesh) fn enter(&mut self, admission: Admission) -> ConnId {
        let conn = self.hello(admission);
        self.answer(conn);
        conn
    }

    /// Asks, and takes the answer out if it is there already.
    pub(in crate::mesh) fn ask(&mut self, conn: ConnId, call: Call) -> Option<Result<Answer, WireError>> {
        let request = self.next_request();
        self.input(Input::Request { conn, at: self.now().at, request: request.clone(), call });
        self.answer_to(conn, &request)
    }

    pub(in crate::mesh) fn bye(&mut self, conn: ConnId) -> Option<Result<Answer, WireError>> {
        if let Some(socket) = self.sockets.get_mut(&conn) {
            socket.carries = None;
        }
        self.ask(conn, Call::Bye)
    }

    /// The socket ends: by the client's hand, or it just breaks and the broker notices.
    pub(in crate::mesh) fn close(&mut self, conn: ConnId, by_client: bool) {
        let socket = self.socket_mut(conn);
        (socket.gone, socket.carries) = (true, None);
        self.input(Input::Closed { conn, at: self.now().at, by_client });
    }

    /// Something was heard from the client.
    pub(in crate::mesh) fn alive(&mut self, conn: ConnId) {
        self.input(Input::Alive { conn, at: self.now().at });
    }

    /// The socket takes what it was given, now and from now on.
    pub(in crate::mesh) fn unblock(&mut self, conn: ConnId) {
        let socket = self.socket_mut(conn);
        socket.flushes = true;
        if std::mem::take(&mut socket.unflushed) {
            self.input(Input::Flushed { conn });
        }
    }

    pub(in crate::mesh) fn drain(&mut self, restart_in_ms: Option<u64>, deadline_ms: u64) {
        self.input(Input::Drain { reason: "upgrade".into(), restart_in_ms, deadline_ms });
    }

    // The store.

    /// The disk does this from now on; if it commits or fails, so does what waits.
    pub(in crate::mesh) fn disk(&mut self, disk: Disk) {
        self.store.disk = disk;
        self.carry_out(Vec::new());
    }

    /// Commits the first `count` writes that wait.
    pub(in crate::mesh) fn commit(&mut self, count: usize) {
        let mut through = None;
        for (id, write) in self.store.open.drain(..count.min(self.store.open.len())).collect::<Vec<_>>() {
            self.store.apply(write);
            through = Some(id);
        }
        if let Some(through) = through {
            self.input(Input::Committed { through });
        }
    }

    /// The broker dies and starts again. Of what waits for the disk, the first `landed` writes got there.
    pub(in crate::mesh) fn restart(&mut self, landed: usize) {
        let landed = landed.min(self.store.open.len());
        for (_, write) in self.store.open.drain(..landed).collect::<Vec<_>>() {
            self.store.apply(write);
        }
        self.store.open.clear();
        self.store.last = 0;
        self.store.uptimes.push(self.clock - self.started);
        self.started = self.clock;
        for socket in self.sockets.values_mut() {
            (socket.gone, socket.carries) = (true, None);
        }
        let restored = self.store.restored();
        self.mesh = Mesh::new(self.config.clone(), self.run(), "b".into(), self.now(), restored);
    }

    // What came of it.

    pub(in crate::mesh) fn socket(&self, conn: ConnId) -> &Socket {
        &self.sockets[&conn]
    }

    pub(in crate::mesh) fn socket_mut(&mut self, conn: ConnId) -> &mut Socket {
        self.sockets.get_mut(&conn).unwrap()
    }

    pub(in crate::mesh) fn is_open(&self, conn: ConnId) -> bool {
        let socket = self.socket(conn);
        socket.closing.is_none() && !socket.gone
    }

    /// How the hello was answered, which must be well.
    #[track_caller]
    pub(in crate::mesh) fn answer(&self, conn: ConnId) -> &HelloAnswer {
        match &self.socket(conn).answer {
            Some(Ok(answer)) => answer,
            other => panic!("{conn} was not let in: {other:?}, {:?}", self.socket(conn).closing),
        }
    }

    /// With which code the hello was refused, and how the socket closed.
    #[track_caller]
    pub(in crate::mesh) fn refusal(&self, conn: ConnId) -> (ErrorCode, &'static str, Option<u64>) {
        let Some(Err(error)) = &self.socket(conn).answer else { panic!("{conn} was not refused") };
        let (reason, retry_after_ms) = self.closed(conn).expect("refused and left open");
        assert_eq!(error.retry_after_ms.map(U53::get), retry_after_ms);
        assert_eq!(error.retryable, error.code.retryable());
        (error.code, reason, retry_after_ms)
    }

    /// How the socket closed: the reason, and what its client is asked to wait.
    pub(in crate::mesh) fn closed(&self, conn: ConnId) -> Option<(&'static str, Option<u64>)> {
        let closing = self.socket(conn).closing.as_ref()?;
        let reason = Reason::from_wire(&closing.reason).expect("one of ours");
        assert_eq!((closing.code, closing.retryable), (reason.code(), reason.retryable()));
        Some((reason.as_str(), closing.retry_after_ms.map(U53::get)))
    }

    fn answer_to(&mut self, conn: ConnId, request: &RequestId) -> Option<Result<Answer, WireError>> {
        let frames = &mut self.socket_mut(conn).frames;
        let is_it = |frame: &Frame| matches!(frame, Frame::Answer(id, _) if id == request);
        let at = frames.iter().position(is_it)?;
        match frames.remove(at) {
            Some(Frame::Answer(_, outcome)) => Some(outcome),
            _ => None,
        }
    }

    /// The events since the last look, as `3 joined s2` or `4 tick`.
    pub(in crate::mesh) fn seen(&mut self, conn: ConnId) -> Vec<String> {
        let frames = std::mem::take(&mut self.socket_mut(conn).frames);
        let text = |frame| match frame {
            Frame::Event(seq, body) => Some(format!("{seq} {}", told(&body))),
            _ => None,
        };
        frames.into_iter().filter_map(text).collect()
    }

    /// The pings since the last look.
    pub(in crate::mesh) fn pings(&mut self, conn: ConnId) -> usize {
        let frames = std::mem::take(&mut self.socket_mut(conn).frames);
        frames.iter().filter(|frame| matches!(frame, Frame::Ping)).count()
    }

    /// A hello of the same process that was on `conn`, with its token, having `last_seq`.
    #[track_caller]
    pub(in crate::mesh) fn resume(&self, conn: ConnId, last_seq: u64) -> Admission {
        let HelloAnswer { session, lease_id, epoch, .. } = self.answer(conn);
        Admission {
            token: TokenVerdict::Selects(lease_id.clone()),
            position: Some((epoch.clone(), last_seq)),
            ..knock(session.0[0])
        }
    }

    /// The same, having all that it was sent.
    #[track_caller]
    pub(in crate::mesh) fn resume_all(&self, conn: ConnId) -> Admission {
        self.resume(conn, self.socket(conn).last_seq)
    }

    pub(in crate::mesh) fn has_note(&self, wanted: impl Fn(&Note) -> bool) -> bool {
        self.notes.iter().any(wanted)
    }

    // Carrying effects out.

    fn next_request(&mut self) -> RequestId {
        self.last_request += 1;
        format!("r{}", self.last_request).parse().unwrap()
    }

    /// Carries out effects and all that follows from them.
    fn carry_out(&mut self, mut effects: Vec<Effect>) {
        loop {
            if !self.batching {
                self.mesh.flush(&mut effects);
            }
            let mut inputs = Vec::new();
            for effect in effects.drain(..) {
                self.carry_out_one(effect, &mut inputs);
            }
            inputs.extend(self.disk_answers());
            if !self.batching {
                self.mesh.check(inputs.is_empty());
            }
            if inputs.is_empty() {
                return;
            }
            for input in inputs {
                self.mesh.handle(self.now(), input, &mut effects);
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
            Effect::Write { id, write } => {
                self.store.last += 1;
                assert_eq!(id, WriteId(self.store.last), "writes are numbered by ones");
                self.store.open.push_back((id, write));
            }
            Effect::Note(note) => self.notes.push(note),
            Effect::Drained => self.drained += 1,
        }
    }

    fn disk_answers(&mut self) -> Option<Input> {
        let through = self.store.open.back()?.0;
        match self.store.disk {
            Disk::Holds => None,
            Disk::Fails => {
                self.store.open.clear();
                Some(Input::Failed { through })
            }
            Disk::Commits => {
                for (_, write) in std::mem::take(&mut self.store.open) {
                    self.store.apply(write);
                }
                Some(Input::Committed { through })
            }
        }
    }

    fn spoken_to(&mut self, conn: ConnId) -> &mut Socket {
        let socket = self.sockets.get_mut(&conn).expect("a socket of ours");
        assert!(socket.closing.is_none(), "{conn} is spoken to after its close");
        socket
    }
}

impl Socket {
    fn answered(&mut self, outcome: &Result<Answer, WireError>) {
        assert!(self.answer.is_none(), "a hello was answered twice");
        self.answer = Some(match outcome {
            Ok(Answer::Hello(answer)) => {
                self.carries = Some(answer.session);
                Ok(HelloAnswer::clone(answer))
            }
            Ok(other) => panic!("a hello was answered with {other:?}"),
            Err(error) => Err(error.clone()),
        });
    }

    /// A batch as frames: the direct events, then the steps of presence, each with the version before it as base.
    fn receive(&mut self, batch: Batch) {
        for (seq, event) in batch.direct {
            self.last_seq = seq;
            self.frames.push_back(Frame::Event(seq, EventBody::clone(&event)));
        }
        let Some((first, delta)) = batch.presence else { return };
        let mut base = delta.base;
        for (seq, step) in (first..).zip(&delta.steps) {
            let event = PresenceEvent {
                kind: step.kind,
                peer: step.peer.clone(),
                base: U53::saturating(base),
                version: U53::saturating(step.version),
            };
            (base, self.last_seq) = (step.version, seq);
            self.frames.push_back(Frame::Event(seq, EventBody::Presence(event)));
        }
        assert_eq!(base, delta.version, "the next base is the version last sent");
    }
}

pub(in crate::mesh) fn session(n: u8) -> SessionKey {
    SessionKey([n; 32])
}

/// Session `n`, its member's own, in its first process, without a token.
pub(in crate::mesh) fn knock(n: u8) -> Admission {
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
        client: "test/1".into(),
    }
}

/// The same in another process.
pub(in crate::mesh) fn process(n: u8, instance: &str) -> Admission {
    Admission { instance: instance.parse().unwrap(), ..knock(n) }
}

fn told(body: &EventBody) -> String {
    match body {
        EventBody::Presence(event) => {
            format!("{} s{}", event.kind.as_str(), event.peer.get().session.0[0])
        }
        other => other.name().to_owned(),
    }
}
