//! Faults, as they strike: each finds its victim, or finds none and is not counted.

use tenure_mesh::{Input, MeshConfig};

use crate::daemon::{Daemon, DiskTrouble};
use crate::disk::Left;
use crate::fault::Fault;
use crate::net::{Frame, Way, WireId};
use crate::rng::Rng;
use crate::seats::Seat;
use crate::seen::{Matter, Member, Person, Seen};
use crate::world::{Event, World};
use crate::{guest, operator};

impl World {
    /// A planned fault strikes.
    pub(crate) fn fault(&mut self, index: usize) {
        if self.calm {
            return;
        }
        let Some(planned) = self.scenario.faults.get(index).copied() else { return };
        let mut rng = Rng::new(planned.dice);
        self.trace.line(self.t, format_args!("fault: {}", planned.fault.name()));
        if self.strike(planned.fault, &mut rng) {
            *self.injected.entry(planned.fault).or_default() += 1;
        }
    }

    fn strike(&mut self, fault: Fault, rng: &mut Rng) -> bool {
        match fault {
            Fault::Reset => self.on_a_wire(rng, World::reset),
            Fault::HalfOpen => self.on_a_wire(rng, World::half_open),
            Fault::OneWayLoss => self.on_a_wire(rng, World::one_way),
            Fault::SlowReader => self.on_a_wire(rng, World::slow_reader),
            Fault::Truncation => self.on_a_wire(rng, World::truncate),
            Fault::LatencySpike => self.on_a_host(rng, |world, host, rng| {
                let until = world.t + rng.between(2_000, 40_000);
                world.hosts[host].path.spike = (rng.between(200, 9_000), until);
            }),
            Fault::ConnectRace => self.on_a_host(rng, |world, host, rng| {
                world.hosts[host].path.race = (rng.between(3_000, 12_000), world.t + 20_000);
                // Somebody has to dial for that.
                let of_host = |wire: &crate::net::Wire| {
                    world.seats.get(wire.process).is_some_and(|seat| usize::from(seat.role.host) == host)
                };
                let wires: Vec<WireId> =
                    world.net.wires.iter().filter(|(_, wire)| of_host(wire)).map(|(id, _)| *id).collect();
                if let Some(wire) = rng.pick(&wires) {
                    world.reset(wire, rng);
                }
            }),
            Fault::Sleep => self.on_a_host(rng, |world, host, rng| {
                if world.hosts[host].asleep.is_none() {
                    let ttl = world.broker.config.lease_ttl_ms;
                    let until = world.t
                        + [rng.between(500, ttl / 2), rng.between(ttl / 2, ttl * 2)][rng.below(2) as usize];
                    world.hosts[host].asleep = Some((until, world.t, rng.chance(500)));
                    world.at(until, Event::HostWakes { host, at: until });
                }
            }),
            Fault::ClockForward => self.on_a_host(rng, |world, host, rng| {
                world.turn_clock(host, rng.between(1_000, 7_200_000) as i64);
            }),
            Fault::ClockBack => self.on_a_host(rng, |world, host, rng| {
                world.turn_clock(host, -(rng.between(1_000, 7_200_000) as i64));
            }),
            Fault::Kill => {
                let up: Vec<usize> =
                    (0..self.seats.len()).filter(|n| self.seats[*n].process.is_some()).collect();
                rng.pick(&up).is_some_and(|seat| {
                    if let Some(daemon) = self.seats[seat].role.daemon {
                        return self.kill_daemon(usize::from(daemon), rng);
                    }
                    // Some say goodbye first.
                    if rng.chance(250) {
                        self.with(seat, |process, now, world| process.bye(now, world));
                        return true;
                    }
                    self.kill(seat)
                })
            }
            Fault::Crash => {
                self.crash_broker(rng, if rng.clone().chance(500) { Left::All } else { Left::Nothing })
            }
            Fault::TornWrite => self.crash_broker(rng, Left::Sectors),
            Fault::CrashInRecovery => self.crash_in_recovery(rng),
            Fault::BrokerFreeze => self.freeze_broker(rng),
            Fault::BrokerClock => {
                let by = rng.between(1_000, 3 * 3_600_000) as i64;
                self.broker.clock.off += if rng.chance(500) { by } else { -by };
                self.see(&Seen::BrokerClockOff(self.broker.clock.off.unsigned_abs() > 3_600_000));
                true
            }
            Fault::DiskFull => self.disk_fault(fault, rng.between(1_000, 40_000)),
            Fault::Blind => self.disk_fault(fault, rng.between(500, 20_000)),
            Fault::SlowSync => {
                self.slow_sync = (50, rng.between(200, 4_000), self.t + rng.between(2_000, 30_000));
                true
            }
            Fault::SyncError => self.poison(rng),
            Fault::Drain => self.drain(rng),
            Fault::Ban => self.ban(rng),
            Fault::Settings => self.change_settings(rng),
            Fault::Kick => {
                rng.pick(&self.scenario.cast).map(|role| role.slot).is_some_and(|slot| self.kick(slot))
            }
            Fault::Dismissal => self.dismiss(rng),
            Fault::Standing => self.change_standing(rng),
            Fault::Guest => self.invite_guest(rng),
            Fault::Revocation => self.revoke(rng),
            Fault::Twin => self.twin(rng),
            Fault::StolenToken => self.steal(rng),
            Fault::Liar => self.lie(rng),
            Fault::DaemonKill => {
                let daemon = rng.below(self.daemons.len() as u64) as usize;
                self.kill_daemon(daemon, rng)
            }
            Fault::DaemonDiskFull => self.trouble_daemon(DiskTrouble::Full, rng),
            Fault::DaemonSlowSync => self.trouble_daemon(DiskTrouble::Slow, rng),
            Fault::DaemonSyncError => self.trouble_daemon(DiskTrouble::FailedSync, rng),
            // Counted when it happens.
            Fault::Restore | Fault::Wipe | Fault::LogCut => {
                self.plan_rewind(fault, rng);
                false
            }
        }
    }

    fn on_a_wire(&mut self, rng: &mut Rng, act: impl FnOnce(&mut World, WireId, &mut Rng) -> bool) -> bool {
        let wires: Vec<WireId> = self.net.wires.keys().copied().collect();
        rng.pick(&wires).is_some_and(|wire| act(self, wire, rng))
    }

    fn on_a_host(&mut self, rng: &mut Rng, act: impl FnOnce(&mut World, usize, &mut Rng)) -> bool {
        let host = rng.below(self.hosts.len() as u64) as usize;
        act(self, host, rng);
        true
    }

    fn turn_clock(&mut self, host: usize, by_ms: i64) {
        self.hosts[host].clock.off += by_ms;
        let off = self.hosts[host].clock.off;
        let here = |daemon: &&Daemon| usize::from(daemon.host) == host;
        let members: Vec<Member> = self.daemons.iter().filter(here).map(|daemon| daemon.member).collect();
        for member in members {
            self.see(&Seen::DaemonClockOff(member, off));
        }
    }

    fn reset(&mut self, wire: WireId, _: &mut Rng) -> bool {
        self.cut(wire)
    }

    /// What is under way is lost, and both ends learn that the connection is gone.
    pub(crate) fn cut(&mut self, wire: WireId) -> bool {
        let Some(found) = self.net.get(wire) else { return false };
        found.up.clear();
        found.down.clear();
        self.send(wire, Way::Up, Frame::Eof);
        self.send(wire, Way::Down, Frame::Eof);
        true
    }

    fn half_open(&mut self, wire: WireId, rng: &mut Rng) -> bool {
        let Some(found) = self.net.get(wire) else { return false };
        let (learns, other) = if rng.chance(500) { (Way::Down, Way::Up) } else { (Way::Up, Way::Down) };
        found.pipe(learns).clear();
        found.pipe(other).clear();
        found.pipe(other).black = true;
        self.send(wire, learns, Frame::Eof);
        true
    }

    fn one_way(&mut self, wire: WireId, rng: &mut Rng) -> bool {
        let way = if rng.chance(500) { Way::Up } else { Way::Down };
        let until = self.t + rng.between(1_000, self.broker.config.lease_ttl_ms);
        let Some(found) = self.net.get(wire) else { return false };
        found.pipe(way).stalled_until = until;
        self.at(until, Event::Arrive(wire, way));
        true
    }

    fn slow_reader(&mut self, wire: WireId, rng: &mut Rng) -> bool {
        let way = if rng.chance(250) { Way::Up } else { Way::Down };
        let until = self.t + rng.between(1_000, 30_000);
        let Some(found) = self.net.get(wire) else { return false };
        found.pipe(way).lazy_until = until;
        self.at(until, Event::Arrive(wire, way));
        true
    }

    /// Half a frame is none: what follows is that both ends give up the connection.
    fn truncate(&mut self, wire: WireId, rng: &mut Rng) -> bool {
        let Some(found) = self.net.get(wire) else { return false };
        let way = if rng.chance(500) { Way::Up } else { Way::Down };
        found.pipe(way).cut_next = true;
        true
    }

    // The broker and its disk.

    /// Kills the broker, now or in the middle of its next transaction.
    pub(crate) fn crash_broker(&mut self, rng: &mut Rng, left: Left) -> bool {
        if !self.broker.is_up() {
            return false;
        }
        if !self.broker.is_writing() && (left == Left::Sectors || rng.chance(700)) {
            // It dies in the middle of the next transaction.
            self.dies_writing = Some(left);
            return true;
        }
        self.dies_writing = None;
        if let Err(error) = self.broker.crash(left) {
            self.broken = Some(error);
            return true;
        }
        self.broker_frozen = None;
        // A machine that lost its power says goodbye to nobody.
        let told = if rng.chance(800) { 1_000 } else { 0 };
        self.drop_sockets(|rng| rng.chance(told));
        self.see(&Seen::BrokerDown(false));
        let wait = rng.between(50, 20_000);
        self.at(self.t + wait, Event::BrokerStart);
        true
    }

    fn crash_in_recovery(&mut self, rng: &mut Rng) -> bool {
        if !self.broker.is_up() {
            return false;
        }
        while self.broker.is_up() {
            self.crash_broker(rng, Left::All);
        }
        for _ in 0..rng.between(1, 3) {
            if let Err(error) = self.broker.die_starting(self.t) {
                self.broken = Some(error);
            }
            self.see(&Seen::StartFailed);
        }
        true
    }

    fn freeze_broker(&mut self, rng: &mut Rng) -> bool {
        if !self.broker.is_up() || self.broker_frozen.is_some() {
            return false;
        }
        let ttl = self.broker.config.lease_ttl_ms;
        let until =
            self.t + [rng.between(100, ttl / 10), rng.between(ttl / 10, ttl * 2)][rng.below(2) as usize];
        self.broker_frozen = Some(until);
        self.see(&Seen::Frozen(true));
        self.at(until, Event::BrokerThaws { at: until });
        true
    }

    fn disk_fault(&mut self, fault: Fault, ms: u64) -> bool {
        match fault {
            Fault::DiskFull => {
                self.broker.disk.full = true;
                self.see(&Seen::DiskFull(true));
            }
            _ => {
                self.broker.disk.blind = true;
                self.see(&Seen::Blind);
            }
        }
        self.at(self.t + ms, Event::DiskHeals(fault));
        true
    }

    pub(crate) fn heal_disk(&mut self, fault: Fault) {
        match fault {
            Fault::DiskFull => {
                self.broker.disk.full = false;
                self.see(&Seen::DiskFull(false));
            }
            Fault::SyncError => {
                // An operator starts it again.
                if self.broker.disk.poisoned && self.broker.is_up() {
                    let mut rng = self.rng.fork(self.t);
                    let left = if rng.chance(500) { Left::All } else { Left::Nothing };
                    while self.broker.is_up() {
                        self.crash_broker(&mut rng, left);
                    }
                }
            }
            _ => self.broker.disk.blind = false,
        }
    }

    fn poison(&mut self, rng: &mut Rng) -> bool {
        if !self.broker.is_up() || self.broker.disk.poisoned {
            return false;
        }
        self.broker.disk.sync_fails = true;
        self.see(&Seen::Poisoned);
        let wait = rng.between(1_000, 40_000);
        self.at(self.t + wait, Event::DiskHeals(Fault::SyncError));
        true
    }

    // The operator.

    fn tell(&mut self, input: Input) {
        if let Some(running) = &mut self.broker.running {
            running.inputs.push_back(input);
        }
        self.broker_turn();
    }

    fn drain(&mut self, rng: &mut Rng) -> bool {
        let boot = self.broker.boot;
        let Some(running) = self.broker.running.as_mut().filter(|running| !running.draining) else {
            return false;
        };
        running.draining = true;
        let deadline_ms = rng.between(500, 10_000);
        let restart_in_ms = rng.chance(500).then(|| rng.between(100, 5_000));
        self.tell(Input::Drain { reason: "restart".to_owned(), restart_in_ms, deadline_ms });
        self.at(self.t + deadline_ms + 15_000, Event::DrainOver { boot });
        true
    }

    fn ban(&mut self, rng: &mut Rng) -> bool {
        let Some(slot) = rng.pick(&self.scenario.cast).map(|role| role.slot) else { return false };
        let matter = Matter::Ban(slot);
        if self.operator.wants(matter).is_some() {
            return false;
        }
        self.want(matter, Some("banned".to_owned()));
        self.at(self.t + rng.between(5_000, 60_000), Event::Lifted(matter));
        true
    }

    fn dismiss(&mut self, rng: &mut Rng) -> bool {
        let Some(member) = rng.pick(&self.scenario.cast).map(|role| role.member) else { return false };
        let matter = Matter::Member(Person::Cast(member));
        if self.operator.wants(matter).is_none() {
            return false;
        }
        self.want(matter, None);
        self.at(self.t + rng.between(5_000, 60_000), Event::Lifted(matter));
        true
    }

    /// What was to hold for a while does not any more.
    pub(crate) fn lift(&mut self, matter: Matter) {
        match (matter, self.operator.wants(matter)) {
            (Matter::Ban(_), Some(_)) => self.want(matter, None),
            (Matter::Member(Person::Cast(_)), None) if self.scenario.owned => {
                self.want(matter, Some(operator::ALL.to_owned()));
            }
            _ => {}
        }
    }

    fn change_standing(&mut self, rng: &mut Rng) -> bool {
        let guest = rng.below(u64::from(guest::GUESTS)) as u8;
        let standing = rng.pick(&[None, Some(operator::ALL), Some("read"), Some("send,read"), Some("run")]);
        self.want(Matter::Member(Person::Guest(guest)), standing.flatten().map(str::to_owned));
        true
    }

    fn revoke(&mut self, rng: &mut Rng) -> bool {
        let invite = rng.below(u64::from(guest::INVITES)) as u8;
        self.want(Matter::Revoked(invite), Some("revoked".to_owned()));
        true
    }

    fn change_settings(&mut self, rng: &mut Rng) -> bool {
        let lease = [9_000, 30_000, 90_000][rng.below(3) as usize];
        let config = MeshConfig {
            reconnect_grace_ms: [0, 2_000, 5_000][rng.below(3) as usize],
            ack_timeout_ms: [20_000, 60_000][rng.below(2) as usize],
            ..MeshConfig::with_lease(lease)
        };
        self.want_numbers(config);
        true
    }

    // Those who hold what is not theirs.

    fn twin(&mut self, rng: &mut Rng) -> bool {
        let Some(mut role) = rng.pick(&self.scenario.cast) else { return false };
        role.host = rng.below(self.hosts.len() as u64) as u8;
        // It only reads its inbox and goes away: sends of its own would need ids of their own.
        (role.sends_every_ms, role.calls_every_ms) = (0, 0);
        role.reads.clear();
        role.daemon = None;
        let seat = self.seats.len();
        self.seats.push(Seat::new(role, true));
        self.at(self.t, Event::Birth { seat });
        true
    }
}
