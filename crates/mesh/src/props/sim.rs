//! Several sessions with correct clients, driven through whatever can go wrong, and what must hold all the time.

use std::collections::BTreeMap;
use tenure_proto::ids::{Epoch, SessionKey};

use tenure_proto::event::{EventBody, Notice, PresenceKind};
use tenure_proto::method::PresenceListParams;
use tenure_proto::peer::ProfilePatch;

use crate::conn::admit::{TokenVerdict, Voucher};
use crate::effect::HelloAnswer;
use crate::input::Call;
use crate::props::client::{Client, Knocking, Line};
use crate::props::process::Process;
use crate::props::{Op, Token};
use crate::tests::world::{Disk, Frame, World, session};
use crate::*;

pub(crate) const TTL: u64 = 9_000;
pub(crate) const PING: u64 = 1_000;
/// Well before the end of what is invisible, so that a socket that goes stale shows nothing either.
pub(crate) const STALE: u64 = 4_500;
/// What passes on the broker's own clock before it notices that it was frozen, at most.
const FREEZE_COUNTS: u64 = TTL / 10 + TTL / 20;
/// Disturbed sessions; session 0 watches and is left alone.
pub(crate) const CLIENTS: u8 = 4;

pub(crate) struct Sim {
    world: World,
    clients: Vec<Client>,
    /// Milliseconds in which the broker ran.
    awake: u64,
    step_began: u64,
    /// The epoch in force, by session.
    epochs: BTreeMap<SessionKey, Epoch>,
    restarts: u64,
    /// How much of the store's log the watcher has seen.
    log_seen: usize,
}

impl Sim {
    pub(crate) fn new() -> Sim {
        let config =
            MeshConfig { ping_interval_ms: PING, stale_after_ms: STALE, ..MeshConfig::with_lease(TTL) };
        let mut sim = Sim {
            world: World::with(config),
            clients: (0..=CLIENTS).map(Client::new).collect(),
            awake: 0,
            step_began: 0,
            epochs: BTreeMap::new(),
            restarts: 0,
            log_seen: 0,
        };
        sim.hello(0, Token::Own, usize::MAX, false);
        sim.deliver();
        sim.log_seen = sim.world.store.log.len();
        sim
    }

    pub(crate) fn step(&mut self, op: &Op) {
        let before = (self.world.mesh.presence_version(), self.world.store.log.len());
        self.step_began = self.awake;
        self.act(op);
        self.deliver();
        let waiting = self.clients.iter().any(|client| client.knocking.is_some());
        assert!(!waiting || !self.world.store.is_idle(), "a hello waits for nothing");
        if !matches!(op, Op::Restart { .. }) {
            let changes = self.world.mesh.presence_version() - before.0;
            let leases = (self.world.store.log.len() - before.1) as u64;
            // A name that did not reach the disk before a restart is told again by its session.
            let names = u64::from(matches!(op, Op::Rename(..))) + self.restarts.min(1) * u64::from(CLIENTS);
            assert!(
                (leases..=leases + names).contains(&changes),
                "{changes} events of presence for {leases}"
            );
        }
    }

    fn act(&mut self, op: &Op) {
        match *op {
            Op::Hello { n, token, hears, other } => self.hello(n, token, hears, other),
            Op::Drop { n, by_client } => self.drop_line(n, by_client),
            Op::HalfOpen { n, after } => self.half_open(n, after),
            Op::Bye(n) => self.bye(n),
            Op::Rename(n) => self.rename(n),
            Op::List(n) => self.list(n),
            Op::Tell(n) => self.tell(n),
            Op::Block(n) => {
                if let Some(conn) = self.healthy(n) {
                    self.world.socket_mut(conn).flushes = false;
                }
            }
            Op::Unblock(n) => {
                if let Some(conn) = self.healthy(n) {
                    self.world.unblock(conn);
                }
            }
            Op::Batch => {
                self.world.batching = !self.world.batching;
                self.world.flush();
            }
            Op::Pass(ms) => {
                self.world.batching = false;
                self.world.advance(ms);
                self.awake += ms;
            }
            Op::Freeze(ms) => {
                self.world.freeze(ms);
                self.awake += ms.min(FREEZE_COUNTS);
                self.not_plain();
            }
            Op::Disk(disk) => {
                self.world.disk(disk);
                self.not_plain();
            }
            Op::Commit(count) => self.world.commit(count),
            Op::Restart { landed } => self.restart(landed),
        }
    }

    fn not_plain(&mut self) {
        self.clients.iter_mut().for_each(|client| client.plainly = false);
    }

    fn client(&mut self, n: u8) -> &mut Client {
        &mut self.clients[usize::from(n)]
    }

    /// The socket of a client that hears everything.
    fn healthy(&self, n: u8) -> Option<ConnId> {
        let line = self.clients[usize::from(n)].line.as_ref()?;
        (line.hears == usize::MAX && self.world.is_open(line.conn)).then_some(line.conn)
    }

    /// From now on nothing is heard of this client.
    fn goes_away(&mut self, n: u8) {
        let (awake, plainly) = (self.awake, self.world.store.disk == Disk::Commits);
        let client = self.client(n);
        if client.away_since.is_none() {
            (client.away_since, client.plainly) = (Some(awake), plainly);
        }
    }

    /// The broker hung up on this client some time during this step.
    fn was_closed(&mut self, n: u8) {
        let since = self.step_began;
        let client = self.client(n);
        if client.away_since.is_none() {
            (client.away_since, client.plainly) = (Some(since), false);
        }
    }

    // What clients and networks do.

    fn hello(&mut self, n: u8, token: Token, hears: usize, other: bool) {
        let awake = self.awake;
        let client = self.client(n);
        let process = if other {
            client.processes += 1;
            Process::new(format!("p{n}-{}", client.processes))
        } else {
            // It discards what still comes on older sockets.
            client.line = None;
            client.process.clone()
        };
        let alone = matches!(token, Token::Alone) && process.token.is_some();
        let token = match (token, &process.token) {
            (Token::Own | Token::Alone, Some(lease)) => TokenVerdict::Selects(lease.clone()),
            (Token::Forged, _) => TokenVerdict::Rejected("bad_signature"),
            _ => TokenVerdict::Absent,
        };
        let mut admission = process.hello(n, &client.name, token.clone());
        if alone {
            admission.voucher = Voucher::TokenOnly;
        }
        let away = client.away_since.map(|since| awake - since);
        let was = client.give_up_knocking();
        let conn = self.world.hello(admission);
        self.world.socket_mut(conn).lively = hears == usize::MAX;
        if let Some(was) = was.filter(|was| self.world.is_open(was.conn)) {
            // A client that dials anew lets go of the socket it waited on.
            self.world.close(was.conn, true);
        }
        let line = Line { conn, hears };
        self.client(n).knocking = Some(Knocking { line, process, token, alone, away });
    }

    fn drop_line(&mut self, n: u8, by_client: bool) {
        let client = self.client(n);
        let line = client.line.take().or_else(|| client.give_up_knocking());
        let Some(line) = line.filter(|line| self.world.is_open(line.conn)) else { return };
        self.world.close(line.conn, by_client);
        if by_client {
            // A close frame was heard.
            self.client(n).away_since = None;
        }
        self.goes_away(n);
    }

    fn half_open(&mut self, n: u8, after: usize) {
        let Some(conn) = self.healthy(n) else { return };
        self.world.socket_mut(conn).lively = false;
        if let Some(line) = &mut self.client(n).line {
            line.hears = after;
        }
        self.goes_away(n);
    }

    fn bye(&mut self, n: u8) {
        let Some(conn) = self.healthy(n) else { return };
        let client = self.client(n);
        (client.line, client.lease, client.away_since) = (None, None, None);
        self.world.bye(conn);
    }

    fn rename(&mut self, n: u8) {
        let Some(conn) = self.healthy(n) else { return };
        let client = self.client(n);
        client.name.push('\'');
        let patch = ProfilePatch { name: Some(client.name.clone()), ..ProfilePatch::default() };
        self.world.ask(conn, Call::ProfileSet(Box::new(patch))).unwrap().unwrap();
    }

    fn list(&mut self, n: u8) {
        let Some(conn) = self.healthy(n) else { return };
        // What it was sent before the answer arrives before it.
        self.deliver();
        let answer = self.world.ask(conn, Call::PresenceList(PresenceListParams::default())).unwrap();
        if self.healthy(n).is_some() {
            self.client(n).process.listed(answer);
        }
    }

    fn tell(&mut self, n: u8) {
        if !self.world.mesh.sessions.is_leased(&session(n)) {
            return;
        }
        let client = self.client(n);
        client.directs += 1;
        let notice = Notice { code: client.directs.to_string(), message: String::new() };
        self.world.mesh.tell(session(n), EventBody::Notice(notice), 64);
        self.world.flush();
    }

    fn restart(&mut self, landed: usize) {
        let run = self.world.run();
        self.world.batching = false;
        self.world.restart(landed);
        self.restarts += 1;
        let attached = std::mem::take(&mut self.epochs);
        for n in 0..=CLIENTS {
            self.goes_away(n);
            let stored = self.world.store.leases.get(&session(n)).map(|(_, touched)| *touched);
            let client = self.client(n);
            client.give_up_knocking();
            (client.line, client.plainly) = (None, false);
            // What the store could not be told before the end of the run it cannot know.
            if attached.contains_key(&session(n)) && stored != Some(run) {
                client.lease = None;
            }
        }
        self.hello(0, Token::Own, usize::MAX, false);
        // That it is back is on disk before it is answered.
        self.world.commit(1);
        self.log_seen = self.world.store.log.len();
        let mut here: Vec<_> = self.world.store.leases.keys().copied().collect();
        here.sort_unstable();
        self.deliver();
        let told = &self.clients[0].process.told;
        assert!(told.peers.keys().eq(&here), "nobody is lost, and nobody comes back from the dead");
    }

    // What comes of it.

    /// Lets everybody look at what arrived.
    fn deliver(&mut self) {
        for n in 0..=CLIENTS {
            self.settle_hello(n);
            self.read(n);
            let client = &self.clients[usize::from(n)];
            let closed =
                client.line.as_ref().is_some_and(|line| line.hears > 0 && !self.world.is_open(line.conn));
            if closed {
                self.client(n).line = None;
                self.was_closed(n);
            }
        }
    }

    /// The broker has answered a hello, or closed its socket.
    fn settle_hello(&mut self, n: u8) {
        let Some(knocking) = self.client(n).knocking.take() else { return };
        let socket = self.world.socket(knocking.line.conn);
        match socket.answer.clone() {
            None if socket.closing.is_none() => self.client(n).knocking = Some(knocking),
            // A newer hello took its place.
            None => {}
            Some(Err(error)) => {
                assert!(socket.closing.is_some(), "refused and left open");
                let stored = self.world.store.leases.get(&session(n));
                knocking.check_refusal(stored.map(|(record, _)| &record.lease), error.code);
            }
            Some(Ok(answer)) => {
                let epoch = self.epochs.get(&session(n));
                self.clients[usize::from(n)].check_fate(&knocking, &answer, epoch);
                self.let_in(n, knocking, &answer);
            }
        }
    }

    fn let_in(&mut self, n: u8, knocking: Knocking, answer: &HelloAnswer) {
        let Knocking { line, mut process, .. } = knocking;
        self.epochs.insert(session(n), answer.epoch.clone());
        let (awake, plainly) = (self.awake, self.world.store.disk == Disk::Commits);
        let client = self.client(n);
        client.lease = Some(answer.lease_id.clone());
        client.away_since = (line.hears != usize::MAX).then_some(awake);
        client.plainly = plainly;
        let directs = client.directs;
        if line.hears == 0 {
            // The answer was lost with its socket; the process knows no more than before.
            client.line = None;
            return;
        }
        process.attached(answer, directs);
        (client.process, client.line) = (process, Some(line));
    }

    fn read(&mut self, n: u8) {
        let Some(mut line) = self.client(n).line.take() else { return };
        let frames = std::mem::take(&mut self.world.socket_mut(line.conn).frames);
        for frame in frames {
            if line.hears == 0 {
                break;
            }
            line.hears -= usize::from(line.hears != usize::MAX);
            if let Frame::Event(seq, body) = frame {
                let told = self.client(n).process.heard(seq, &body);
                if let (0, Some((kind, session))) = (n, told) {
                    self.follow_log(kind, session);
                }
            }
        }
        self.client(n).line = Some(line);
    }

    /// The watcher sees every beginning and end that the store has, once, in that order.
    fn follow_log(&mut self, kind: PresenceKind, session: SessionKey) {
        let began = match kind {
            PresenceKind::Joined => true,
            PresenceKind::Left => false,
            PresenceKind::Updated => return,
        };
        assert_eq!(self.world.store.log.get(self.log_seen), Some(&(session, began)));
        self.log_seen += 1;
    }

    // The end.

    /// All troubles are over: everybody who was here comes back, and all agree.
    pub(crate) fn quiesce(&mut self) {
        self.world.batching = false;
        self.world.disk(Disk::Commits);
        self.not_plain();
        self.deliver();
        for n in 0..=CLIENTS {
            self.bring_back(n);
        }
        self.world.advance(10);
        self.awake += 10;
        self.deliver();
        let (peers, _) = self.world.mesh.sessions.presence().page(None, usize::MAX);
        let here: Vec<_> = peers.iter().map(|peer| (peer.get().session, peer.get().name.as_str())).collect();
        assert!(here.iter().map(|(session, _)| session).eq(self.world.store.leases.keys()));
        for client in &self.clients {
            assert_eq!(client.process.told.names(), here, "as told to {}", client.n);
            assert_eq!(client.process.mirror.names(), here, "as mirrored by {}", client.n);
            assert_eq!(client.process.told.version, self.world.mesh.presence_version());
            assert_eq!(client.process.health.1, self.world.mesh.health_status(), "as told to {}", client.n);
            assert_eq!(client.process.direct, client.directs, "all that was said to {}", client.n);
        }
        assert_eq!(self.log_seen, self.world.store.log.len(), "the watcher has seen it all");
        for (conn, socket) in &self.world.sockets {
            let settled = socket.answer.is_some() || !self.world.is_open(*conn);
            assert!(settled, "a hello on {conn} without an answer");
        }
    }

    fn bring_back(&mut self, n: u8) {
        for _ in 0..10 {
            if let Some(conn) = self.healthy(n) {
                self.world.unblock(conn);
                self.deliver();
                return;
            }
            self.hello(n, Token::Own, usize::MAX, false);
            self.deliver();
            if self.healthy(n).is_none() {
                // Contested: it waits as it was told.
                self.world.advance(5_000);
                self.awake += 5_000;
                self.deliver();
            }
        }
        panic!("{n} cannot come back");
    }

    /// Everybody but the watcher falls silent, and after a lease it is alone.
    pub(crate) fn fall_silent(&mut self) {
        for n in 1..=CLIENTS {
            self.half_open(n, 0);
        }
        self.world.advance(TTL);
        self.deliver();
        assert_eq!(self.clients[0].process.told.names().len(), 1);
        assert_eq!((self.world.mesh.sessions(), self.world.mesh.online()), (1, 1));
        assert_eq!(self.log_seen, self.world.store.log.len());
    }
}
