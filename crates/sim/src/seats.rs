//! Seats: the places of processes, and how a process is born, acts, and dies.

use crate::memo::Memo;
use crate::net::{Frame, Way};
use crate::process::{Process, Wish};
use crate::scenario::Role;
use crate::seen::{Life, Seen, Slot};
use crate::world::{Event, World};

/// A place for a process: what is there across its lives.
pub(crate) struct Seat {
    pub(crate) role: Role,
    /// Whether it is for another holder of a key that has a seat already.
    pub(crate) twin: bool,
    pub(crate) process: Option<Process>,
    pub(crate) memo: Memo,
    /// The turn that a wake must name to count.
    turn: u64,
    /// When it is due to be woken.
    pub(crate) due: u64,
}

impl Seat {
    pub(crate) fn new(role: Role, twin: bool) -> Seat {
        Seat { role, twin, process: None, memo: Memo::default(), turn: 0, due: u64::MAX }
    }
}

impl World {
    pub(crate) fn next_life(&mut self, slot: Slot) -> Life {
        let number = self.lives.entry(slot).or_default();
        *number += 1;
        Life { slot, number: *number }
    }

    pub(crate) fn birth(&mut self, index: usize) {
        let Some(seat) = self.seats.get(index) else { return };
        if seat.process.is_some() {
            return;
        }
        let role = seat.role.clone();
        let daemon = role.daemon.map(usize::from);
        if daemon.is_some_and(|daemon| self.daemons.get(daemon).is_none_or(|daemon| !daemon.up)) {
            return;
        }
        let life = self.next_life(role.slot);
        let now = self.hosts[usize::from(role.host)].clock.now(self.t);
        let memo = std::mem::take(&mut self.seats[index].memo);
        let made = Process::new(&role, life, &self.names, memo, &self.root, (now, self.t));
        let Some(mut process) = made else { return };
        process.calm = self.calm;
        process.wary = self.scenario.rewinds();
        let number = u64::from(life.slot.0) * 1_000 + u64::from(life.number);
        process.inquires = self.scenario.inquires.then(|| self.root.fork(11).fork(1 + number));
        process.desk = daemon.and_then(|daemon| self.desk(daemon, index));
        if process.desk.is_some() {
            self.see(&Seen::Desk(life));
        }
        self.seats[index].process = Some(process);
        self.with(index, |process, now, world| process.begin(now, world));
    }

    /// Lets a process act; carries out what it wishes.
    pub(crate) fn with(
        &mut self,
        index: usize,
        act: impl FnOnce(&mut Process, tenure_kit::Now, u64) -> Vec<Wish>,
    ) {
        let (t, Some(seat)) = (self.t, self.seats.get_mut(index)) else { return };
        let now = self.hosts[usize::from(seat.role.host)].clock.now(t);
        let Some(process) = &mut seat.process else { return };
        let wishes = act(process, now, t);
        let seen = std::mem::take(&mut process.seen);
        self.operations += seen.len() as u64;
        for seen in seen {
            self.see(&seen);
        }
        for wish in wishes {
            self.grant(index, wish);
        }
        self.set_alarm(index);
    }

    fn grant(&mut self, index: usize, wish: Wish) {
        let Some(process) = self.seats[index].process.as_mut() else { return };
        match wish {
            Wish::Dial(sock) => {
                let life = process.life.number;
                let latency = self.latency(self.seats[index].role.host) + 1;
                self.at(self.t + latency, Event::Dialled { seat: index, life, sock });
            }
            Wish::Send(sock, bytes) => {
                if let Some(wire) = process.socks.get(&sock).copied() {
                    self.send(wire, Way::Up, Frame::Data(bytes));
                }
            }
            Wish::Ping(sock) => {
                if let Some(wire) = process.socks.get(&sock).copied()
                    && let Some(found) = self.net.get(wire)
                {
                    found.pinged += 1;
                    let number = found.pinged;
                    self.send(wire, Way::Up, Frame::Ping(number));
                }
            }
            Wish::Drop(sock) => {
                if let Some(wire) = process.socks.remove(&sock) {
                    self.close_client(wire);
                }
            }
            Wish::Ended(end) => self.ended(index, &end),
            Wish::Disk(job) => {
                if let Some(daemon) = self.seats[index].role.daemon {
                    self.ask_daemon(usize::from(daemon), index, job);
                }
            }
        }
    }

    /// A session is over: its program ends, and is started again after a while, unless it was only a visitor.
    fn ended(&mut self, index: usize, end: &tenure_link::End) {
        self.trace.line(self.t, format_args!("seat {index} ended: {end}"));
        let seat = &mut self.seats[index];
        if let Some(mut process) = seat.process.take() {
            seat.memo = std::mem::take(&mut process.memo);
            for wire in process.socks.values().copied().collect::<Vec<_>>() {
                self.close_client(wire);
            }
        }
        if !self.seats[index].twin {
            let wait = self.rng.between(500, 20_000);
            self.at(self.t + wait, Event::Birth { seat: index });
        }
    }

    /// A process is killed: its machine closes its sockets.
    pub(crate) fn kill(&mut self, index: usize) -> bool {
        let Some(seat) = self.seats.get_mut(index) else { return false };
        let Some(mut process) = seat.process.take() else { return false };
        seat.memo = std::mem::take(&mut process.memo);
        seat.turn += 1;
        let (life, alone) = (process.life, !seat.twin && seat.role.daemon.is_none());
        for wire in process.socks.values().copied().collect::<Vec<_>>() {
            self.close_client(wire);
        }
        self.see(&Seen::Killed(life));
        if alone {
            let wait = self.rng.between(100, 30_000);
            self.at(self.t + wait, Event::Birth { seat: index });
        }
        true
    }

    pub(crate) fn wake(&mut self, index: usize, turn: u64) {
        let Some(seat) = self.seats.get_mut(index) else { return };
        if seat.turn != turn {
            return;
        }
        seat.due = u64::MAX;
        let now = self.hosts[usize::from(seat.role.host)].clock.now(self.t);
        let Some(process) = &seat.process else { return };
        if process.next_deadline().is_some_and(|due| due <= now.at) {
            self.with(index, |process, now, world| process.tick(now, world));
        }
        let act = |seat: &Seat| seat.process.as_ref().is_some_and(|process| process.act_at <= self.t);
        if self.seats.get(index).is_some_and(act) {
            self.with(index, |process, now, world| process.act(now, world));
        }
        self.set_alarm(index);
    }

    /// Sees to it that a process is woken when it is due.
    pub(crate) fn set_alarm(&mut self, index: usize) {
        let (t, Some(seat)) = (self.t, self.seats.get_mut(index)) else { return };
        let Some(process) = &seat.process else { return };
        let clock = self.hosts[usize::from(seat.role.host)].clock;
        let deadline = process.next_deadline().map_or(u64::MAX, |due| clock.world(due));
        let due = deadline.min(process.act_at).max(t + 1);
        if due != seat.due {
            seat.turn += 1;
            seat.due = due;
            let turn = seat.turn;
            self.at(due, Event::Wake { seat: index, turn });
        }
    }
}
