//! One world from its first moment to its verdict.

use std::collections::BTreeMap;

use crate::disk::Broken;
use crate::fault::Fault;
use crate::look::Look;
use crate::oracle::Violation;
use crate::scenario::{Scenario, TOPICS};
use crate::seen::{Life, Matter, Person, Seen};
use crate::trace::Trace;
use crate::world::{Event, World};

/// Virtual time after the last fault by which everything must be at rest, besides leases and timeouts.
const REST_MS: u64 = 300_000;
/// Nothing may be under way for so long before it counts as rest.
const QUIET_MS: u64 = 20_000;

/// How a world went.
#[derive(Debug)]
pub struct Verdict {
    /// The promises that were broken, in the order of time.
    pub violations: Vec<Violation>,
    /// How often each fault found a victim.
    pub injected: BTreeMap<Fault, u64>,
    /// Facts that applications saw or made.
    pub operations: u64,
    /// Virtual milliseconds.
    pub virtual_ms: u64,
    /// Lines of the trace, and their hash.
    pub mark: (u64, u64),
    /// The trace in words, if it was asked for.
    pub words: Vec<String>,
}

/// What is wanted of a world besides its verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Nothing.
    Verdict,
    /// A mark that another run of it can be compared with.
    Mark,
    /// Its trace, to be read.
    Words,
}

/// Runs a scenario. A panic is a violation like any other; an error is the machine's,
/// not the scenario's.
pub fn run(scenario: &Scenario, wanted: Wanted) -> Result<Verdict, Broken> {
    let went = std::panic::catch_unwind(|| story(scenario, wanted));
    went.unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a word");
        let what = format!("something panicked: {said}");
        Ok(Verdict {
            violations: vec![Violation { at: scenario.span_ms, rule: "panic", what }],
            injected: BTreeMap::new(),
            operations: 0,
            virtual_ms: 0,
            mark: (0, 0),
            words: Vec::new(),
        })
    })
}

fn story(scenario: &Scenario, wanted: Wanted) -> Result<Verdict, Broken> {
    let trace = match wanted {
        Wanted::Verdict => Trace::unmarked(),
        Wanted::Mark => Trace::default(),
        Wanted::Words => Trace::in_words(),
    };
    let mut world = World::new(scenario, trace)?;
    world.run_until(scenario.span_ms);
    world.come_to_rest();
    world.look();
    world.look_at_daemons();
    world.see(&Seen::Over);
    let mut violations = world.oracle.violations().to_vec();
    if let Some(broken) = world.broken {
        // A store that does not open is what torn writes are for.
        violations.insert(0, Violation { at: world.t, rule: "store", what: format!("{broken:#}") });
    }
    Ok(Verdict {
        violations,
        injected: world.injected,
        operations: world.operations,
        virtual_ms: world.t,
        mark: world.trace.mark(),
        words: world.trace.words().map(str::to_owned).collect(),
    })
}

impl World {
    /// Everything that was wrong is put right, and everybody does what is left to do.
    fn come_to_rest(&mut self) {
        self.calm = true;
        self.see(&Seen::FaultsOver);
        self.heal();
        let lease_ms = self.longest_lease_ms;
        let bound = REST_MS + 3 * lease_ms + 2 * self.broker.config.ack_timeout_ms;
        let (end, mut quiet_since) = (self.t + bound, None);
        let mut quiet = false;
        while self.t < end && self.broken.is_none() && !quiet {
            let step = self.t + 1_000;
            self.run_until(step);
            if self.under_way().is_empty() {
                let since = *quiet_since.get_or_insert(self.t);
                quiet = self.t >= since + QUIET_MS.max(2 * lease_ms);
            } else {
                quiet_since = None;
            }
        }
        let (waiting, alive) = (self.under_way(), self.attached());
        self.see(&Seen::Rest { quiet, waiting, alive });
    }

    fn heal(&mut self) {
        for host in 0..self.hosts.len() {
            self.hosts[host].path.spike = (0, 0);
            self.hosts[host].path.race = (0, 0);
            let at = self.t;
            if let Some((until, ..)) = &mut self.hosts[host].asleep {
                *until = at;
                // At once: nobody acts on a machine that is asleep, by a clock that stands still.
                self.wake_host(host, at);
            }
        }
        if self.broker_frozen.is_some() {
            let at = self.t;
            self.broker_frozen = Some(at);
            self.at(at, Event::BrokerThaws { at });
        }
        for wire in self.net.wires.values_mut() {
            (wire.up.lazy_until, wire.down.lazy_until) = (0, 0);
            (wire.up.stalled_until, wire.down.stalled_until) = (0, 0);
            (wire.up.cut_next, wire.down.cut_next) = (false, false);
        }
        for wire in self.net.wires.keys().copied().collect::<Vec<_>>() {
            self.at(self.t, Event::Arrive(wire, crate::net::Way::Up));
            self.at(self.t, Event::Arrive(wire, crate::net::Way::Down));
        }
        self.slow_sync = (0, 0, 0);
        self.dies_writing = None;
        self.broker.disk.full = false;
        self.broker.disk.blind = false;
        self.see(&Seen::DiskFull(false));
        self.broker.disk.sync_fails = false;
        if self.broker.disk.poisoned {
            self.at(self.t, Event::DiskHeals(Fault::SyncError));
        }
        for role in self.scenario.clone().cast.iter() {
            self.lift(Matter::Ban(role.slot));
            self.lift(Matter::Member(Person::Cast(role.member)));
        }
        for index in 0..self.daemons.len() {
            self.daemons[index].heal();
            if self.daemons[index].is_poisoned() {
                let mut rng = self.rng.fork(self.t);
                self.kill_daemon(index, &mut rng);
            }
            self.at(self.t, Event::DaemonStart { daemon: index });
        }
        for seat in 0..self.seats.len() {
            if self.seats[seat].twin {
                self.kill(seat);
            } else if let Some(process) = &mut self.seats[seat].process {
                process.calm = true;
                for work in process.hand.values_mut() {
                    work.due = 0;
                }
                process.act_at = self.t;
                self.with(seat, |process, now, world| process.act(now, world));
            } else {
                self.at(self.t, Event::Birth { seat });
            }
        }
        self.at(self.t, Event::BrokerStart);
    }

    /// What somebody waits for, in words.
    fn under_way(&self) -> Vec<String> {
        let mut waiting = Vec::new();
        if !self.broker.is_up() {
            waiting.push("the broker to start".to_owned());
        }
        for seat in self.seats.iter().filter(|seat| !seat.twin) {
            let Some(process) = &seat.process else {
                waiting.push(format!("session {} to be started", seat.role.slot.0));
                continue;
            };
            let name = process.life;
            if !process.link.is_attached() {
                waiting.push(format!("{name:?} to be attached"));
            }
            for asked in process.asked.values() {
                waiting.push(format!("{name:?} for an answer to {asked:?}"));
            }
            waiting.extend(process.settling.values().map(|what| format!("{name:?} for {what:?}")));
            waiting.extend(process.hand.values().map(|work| format!("{name:?} to settle {:?}", work.spot)));
            waiting.extend(process.runs_under_way());
            let desk = process.desk.as_ref().and_then(|desk| desk.under_way());
            waiting.extend(desk.map(|what| format!("{name:?} for {what}")));
            if process.status != crate::seen::Status::Idle {
                waiting.push(format!("{name:?} to be idle"));
            }
        }
        waiting.extend(self.operator.under_way());
        waiting.extend(self.daemons.iter().filter_map(|daemon| daemon.under_way()));
        waiting
    }

    fn attached(&self) -> Vec<Life> {
        let processes = self.seats.iter().filter_map(|seat| seat.process.as_ref());
        processes.filter(|process| process.link.is_attached()).map(|process| process.life).collect()
    }

    /// The last look, over the wire.
    fn look(&mut self) {
        let mut logs: Vec<String> = Vec::new();
        for (topic, partitions) in TOPICS {
            logs.extend((0..partitions).map(|partition| format!("topic/{topic}/{partition}")));
        }
        self.operator_looks(false);
        let mut first = true;
        for index in 0..self.seats.len() {
            let names = self.names.clone();
            let daemon =
                self.seats[index].role.daemon.and_then(|daemon| self.daemons.get(usize::from(daemon)));
            let Some(process) = &mut self.seats[index].process else { continue };
            if let (Some(daemon), Some(key)) = (daemon, names.session_key(process.role.slot)) {
                process.memo.all = daemon.done_by(key);
            }
            let mut looks = vec![Look::Services, Look::Present(None, Default::default())];
            // A member's ids are kept by each of its sessions for its own.
            looks.extend(process.memo.all.chunks(200).map(|ids| Look::Fates(ids.to_vec())));
            let own = [
                names.session_key(process.role.slot).map(|key| format!("inbox/s/{key}")),
                names.member_key(process.role.member).map(|key| format!("inbox/m/{key}")),
            ];
            looks.extend(process.memo.runs.iter().map(|(id, run)| Look::Run(id.clone(), *run)));
            looks.extend(own.into_iter().flatten().map(|log| Look::Dead(log, 0, Vec::new())));
            if std::mem::take(&mut first) {
                looks.extend(logs.iter().map(|log| Look::History(log.clone(), 1)));
                looks.extend(logs.iter().map(|log| Look::Dead(log.clone(), 0, Vec::new())));
            }
            process.looks = looks;
        }
        let end = self.t + 240_000;
        while self.t < end && self.broken.is_none() && self.is_looking() {
            let step = self.t + 500;
            self.run_until(step);
        }
        if self.is_looking() {
            let waiting = vec!["somebody who looks around at the end to be answered".to_owned()];
            self.see(&Seen::Rest { quiet: false, waiting, alive: self.attached() });
        }
    }

    fn is_looking(&self) -> bool {
        let processes = self.seats.iter().filter_map(|seat| seat.process.as_ref());
        self.operator_is_looking()
            || processes.into_iter().any(|process| !process.looks.is_empty() || !process.asked.is_empty())
    }
}
