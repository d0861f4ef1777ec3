//! A world: machines, a network between them, and one queue of what happens next.
//!
//! How it runs: [`World::run`] takes the first event of the queue, moves the clock there and lets it happen. Nothing
//! else moves time, and nothing is drawn but from the seed, so a scenario happens the same way every time.

use std::collections::BTreeMap;
use std::rc::Rc;

use tenure_link::SockId;
use tenure_mesh::MeshConfig;
use tenure_proto::ids::ConnId;

use crate::broker::Broker;
use crate::clock::Clock;
use crate::daemon::Daemon;
use crate::disk::{Broken, Disk, Left};
use crate::fault::Fault;
use crate::names::Names;
use crate::net::{Net, Path, Way, WireId};
use crate::operator::Operator;
use crate::oracle::Oracle;
use crate::rewinding::Rewinding;
use crate::rng::Rng;
use crate::scenario::Scenario;
use crate::seats::Seat;
use crate::seen::{Matter, Numbers, Seen, Slot};
use crate::stranger::Stranger;
use crate::trace::Trace;

/// Something that happens.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// Something arrives at an end of a connection, or its reader reads again.
    Arrive(WireId, Way),
    /// A dial reaches where the broker should be.
    Dialled { seat: usize, life: u32, sock: SockId },
    /// A deadline of a process, or its application's turn.
    Wake { seat: usize, turn: u64 },
    /// A process begins.
    Birth { seat: usize },
    /// The mesh's task has something to do.
    Round { boot: u64 },
    /// What is being written is on disk.
    Written { boot: u64 },
    /// Something that was asked for is read.
    Read { boot: u64 },
    /// The broker starts.
    BrokerStart,
    /// The broker's time to drain is over.
    DrainOver { boot: u64 },
    /// A fault's time has come.
    Fault(usize),
    /// A machine wakes.
    HostWakes { host: usize, at: u64 },
    /// The broker wakes.
    BrokerThaws { at: u64 },
    /// The disk is well again.
    DiskHeals(Fault),
    /// The operator lifts what was to hold for a while.
    Lifted(Matter),
    /// The operator asks again for what is not as it shall be.
    Operator,
    /// A stranger acts or gives up.
    Stranger { index: usize },
    /// Somebody looks at what is bounded.
    Census,
    /// A daemon starts.
    DaemonStart { daemon: usize },
    /// A person ends a daemon whose disk failed.
    DaemonKill { daemon: usize, dice: u64 },
    /// What a daemon was writing is on its disk.
    DaemonWritten { daemon: usize, boot: u64 },
    /// The turn of the programs that use a daemon.
    Local { daemon: usize },
    /// The broker's store goes back.
    Rewind { index: usize },
}

/// A machine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Host {
    pub(crate) clock: Clock,
    pub(crate) path: Path,
    /// Until when it sleeps, since when, and whether its monotonic clock stands still meanwhile.
    pub(crate) asleep: Option<(u64, u64, bool)>,
    /// What happened to it meanwhile.
    pub(crate) deferred: Vec<Event>,
}

/// A world.
pub(crate) struct World {
    pub(crate) scenario: Rc<Scenario>,
    pub(crate) names: Rc<Names>,
    pub(crate) root: Rng,
    pub(crate) rng: Rng,
    pub(crate) t: u64,
    queue: BTreeMap<(u64, u64), Event>,
    events: u64,
    pub(crate) hosts: Vec<Host>,
    pub(crate) seats: Vec<Seat>,
    /// Lives by session, twins included.
    pub(crate) lives: BTreeMap<Slot, u32>,
    pub(crate) strangers: Vec<Stranger>,
    pub(crate) operator: Operator,
    pub(crate) daemons: Vec<Daemon>,
    pub(crate) net: Net,
    pub(crate) broker: Broker,
    /// Until when the broker stands still, and since when.
    pub(crate) broker_frozen: Option<u64>,
    /// The longest lease that was in force: a client that is cut off notices within it.
    pub(crate) longest_lease_ms: u64,
    pub(crate) broker_deferred: Vec<Event>,
    pub(crate) round_at: Option<u64>,
    pub(crate) writing: bool,
    /// The broker dies in its next transaction, which is left like this.
    pub(crate) dies_writing: Option<Left>,
    /// Stores that are about to go back; each is taken when it does.
    pub(crate) rewindings: Vec<Option<Rewinding>>,
    /// How long a sync takes, at least and at most, and until when.
    pub(crate) slow_sync: (u64, u64, u64),
    /// The connection that carries each session, as the broker sees it.
    pub(crate) current: BTreeMap<Slot, ConnId>,
    pub(crate) oracle: Oracle,
    pub(crate) trace: Trace,
    /// How often each fault found a victim.
    pub(crate) injected: BTreeMap<Fault, u64>,
    /// What applications did.
    pub(crate) operations: u64,
    pub(crate) calm: bool,
    pub(crate) broken: Option<Broken>,
}

impl World {
    /// The world of a scenario, before its first moment.
    pub(crate) fn new(scenario: &Scenario, trace: Trace) -> Result<World, Broken> {
        let scenario = Rc::new(scenario.clone());
        let root = Rng::new(scenario.seed);
        let names = Rc::new(Names::of(scenario.seed, &scenario.cast));
        let mut config = MeshConfig {
            reconnect_grace_ms: scenario.reconnect_grace_ms,
            ack_timeout_ms: scenario.ack_timeout_ms,
            ..MeshConfig::with_lease(scenario.lease_ttl_ms)
        };
        if let Some(keeps) = scenario.keeps {
            (config.retention_ms, config.topic_bytes) = (keeps.retention_ms, keeps.topic_bytes);
        }
        let disk = Disk::new(scenario.sqlite, "default".parse()?, root.fork(3))?;
        let broker = Broker::new(config, disk, root.fork(4))?;
        let mut rng = root.fork(5);
        let host = |rng: &mut Rng| Host {
            path: Path { latency: [(0, 2), (5, 30), (40, 120)][rng.below(3) as usize], ..Path::default() },
            ..Host::default()
        };
        let mut world = World {
            hosts: (0..3).map(|_| host(&mut rng)).collect(),
            seats: Vec::new(),
            lives: BTreeMap::new(),
            strangers: Vec::new(),
            operator: Operator::new(root.fork(14)),
            daemons: Vec::new(),
            net: Net::default(),
            broker,
            broker_frozen: None,
            longest_lease_ms: 0,
            broker_deferred: Vec::new(),
            round_at: None,
            writing: false,
            dies_writing: None,
            rewindings: Vec::new(),
            slow_sync: (0, 0, 0),
            current: BTreeMap::new(),
            oracle: Oracle::default(),
            trace,
            injected: BTreeMap::new(),
            operations: 0,
            calm: false,
            broken: None,
            queue: BTreeMap::new(),
            events: 0,
            t: 0,
            rng,
            root,
            names,
            scenario,
        };
        world.begin();
        Ok(world)
    }

    fn begin(&mut self) {
        let scenario = self.scenario.clone();
        self.tell_numbers();
        if let Some(keeps) = scenario.keeps {
            self.see(&Seen::Forgets { after_ms: keeps.retention_ms, unread: keeps.topic_bytes.is_some() });
        }
        for role in &scenario.cast {
            let (session, member_key) =
                (self.names.session_key(role.slot), self.names.member_key(role.member));
            let (Some(session), Some(member_key)) = (session, member_key) else { continue };
            self.see(&Seen::Cast {
                slot: role.slot,
                session: session.to_string(),
                member: role.member,
                member_key: member_key.to_string(),
            });
            let seat = self.seats.len();
            self.seats.push(Seat::new(role.clone(), false));
            if role.daemon.is_some() {
                continue;
            }
            let at = self.rng.below(3_000);
            self.at(at, Event::Birth { seat });
        }
        self.begin_daemons();
        self.begin_operator();
        self.at(0, Event::BrokerStart);
        for (index, planned) in scenario.faults.iter().enumerate() {
            self.at(planned.at, Event::Fault(index));
        }
        self.at(10_000, Event::Census);
    }

    /// Daemons, whose parts of the world are drawn from a stream of their own.
    fn begin_daemons(&mut self) {
        let scenario = self.scenario.clone();
        let count = scenario.cast.iter().filter_map(|role| role.daemon).max().map_or(0, |last| last + 1);
        for index in 0..usize::from(count) {
            let mut rng = self.root.fork(7 + 1_000_000 * (index as u64 + 1));
            let of = |role: &&crate::scenario::Role| role.daemon.map(usize::from) == Some(index);
            let Some(first) = scenario.cast.iter().find(of) else {
                self.daemons.push(Daemon::new(index, 0, crate::seen::Member(u8::MAX), rng));
                continue;
            };
            let mut daemon = Daemon::new(index, first.host, first.member, rng.fork(1));
            let seats = self.seats.iter().enumerate().filter(|(_, seat)| of(&&seat.role));
            daemon.seats = seats.map(|(seat, _)| seat).collect();
            self.daemons.push(daemon);
            self.old_rows(index);
            self.at(rng.below(3_000), Event::DaemonStart { daemon: index });
            self.at(rng.below(3_000), Event::Local { daemon: index });
        }
    }

    pub(crate) fn tell_numbers(&mut self) {
        let config = &self.broker.config;
        self.longest_lease_ms = self.longest_lease_ms.max(config.lease_ttl_ms);
        let numbers = Numbers {
            lease_ttl_ms: config.lease_ttl_ms,
            ping_interval_ms: config.ping_interval_ms,
            ack_timeout_ms: config.ack_timeout_ms,
            reconnect_grace_ms: config.reconnect_grace_ms,
            freeze_tolerance_ms: (config.lease_ttl_ms / 10).min(5_000),
            max_attempts: 16,
        };
        self.see(&Seen::Numbers(numbers));
    }

    // The queue.

    /// Lets something happen at a time, after whatever else happens then.
    pub(crate) fn at(&mut self, at: u64, event: Event) {
        self.events += 1;
        self.queue.insert((at.max(self.t), self.events), event);
    }

    /// Runs until `end`, or until something is broken.
    pub(crate) fn run_until(&mut self, end: u64) {
        while self.broken.is_none()
            && let Some(entry) = self.queue.first_entry()
            && entry.key().0 <= end
        {
            let ((at, _), event) = entry.remove_entry();
            self.t = at;
            if let Some(event) = self.defer(event) {
                self.happen(event);
            }
        }
        self.t = self.t.max(end);
    }

    /// Keeps what happens to a machine that stands still until it wakes.
    fn defer(&mut self, event: Event) -> Option<Event> {
        match &event {
            Event::Round { .. } | Event::Written { .. } | Event::Read { .. } | Event::DrainOver { .. }
                if self.broker_frozen.is_some() =>
            {
                self.broker_deferred.push(event);
                None
            }
            Event::Wake { seat, .. } | Event::Birth { seat } => {
                let host = usize::from(self.seats.get(*seat)?.role.host);
                let host = self.hosts.get_mut(host)?;
                if host.asleep.is_some() {
                    host.deferred.push(event);
                    return None;
                }
                Some(event)
            }
            Event::DaemonStart { daemon } | Event::DaemonWritten { daemon, .. } | Event::Local { daemon } => {
                let host = usize::from(self.daemons.get(*daemon)?.host);
                let host = self.hosts.get_mut(host)?;
                if host.asleep.is_some() {
                    host.deferred.push(event);
                    return None;
                }
                Some(event)
            }
            _ => Some(event),
        }
    }

    pub(crate) fn happen(&mut self, event: Event) {
        match event {
            Event::Arrive(wire, way) => self.arrive(wire, way),
            Event::Dialled { seat, life, sock } => self.dialled(seat, life, sock),
            Event::Wake { seat, turn } => self.wake(seat, turn),
            Event::Birth { seat } => self.birth(seat),
            Event::Round { boot } if boot == self.broker.boot && self.round_at == Some(self.t) => {
                self.round()
            }
            Event::Written { boot } if boot == self.broker.boot => {
                self.writing = false;
                self.broker.written(self.t);
                self.broker_turn();
            }
            Event::Read { boot } if boot == self.broker.boot => {
                self.broker.read();
                self.broker_turn();
            }
            Event::Round { .. } | Event::Written { .. } | Event::Read { .. } => {}
            Event::BrokerStart => self.start_broker(),
            Event::DrainOver { boot } => {
                if boot == self.broker.boot && self.broker.is_up() {
                    self.stop_broker();
                }
            }
            Event::Fault(index) => self.fault(index),
            Event::HostWakes { host, at } => self.wake_host(host, at),
            Event::BrokerThaws { at } => self.thaw_broker(at),
            Event::DiskHeals(fault) => self.heal_disk(fault),
            Event::Lifted(matter) => self.lift(matter),
            Event::Operator => self.operator_turn(),
            Event::Stranger { index } => self.stranger_turn(index),
            Event::Census => self.census(),
            Event::DaemonStart { daemon } => self.start_daemon(daemon),
            Event::DaemonKill { daemon, dice } => {
                if self.daemons.get(daemon).is_some_and(Daemon::is_poisoned) {
                    self.kill_daemon(daemon, &mut Rng::new(dice));
                }
            }
            Event::DaemonWritten { daemon, boot } => self.daemon_written(daemon, boot),
            Event::Local { daemon } => self.local_turn(daemon),
            Event::Rewind { index } => self.rewind(index),
        }
    }

    /// Tells the oracle, and the trace.
    pub(crate) fn see(&mut self, seen: &Seen) {
        if !matches!(seen, Seen::Census(_)) {
            self.trace.line(self.t, format_args!("{seen:?}"));
        }
        self.oracle.see(self.t, seen);
        if !self.oracle.violations().is_empty() {
            self.trace.broke();
        }
    }
}
