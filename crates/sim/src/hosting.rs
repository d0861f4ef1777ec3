//! Hosting: the machines, the broker's above all; how they start, stop, stand still and wake.

use tenure_mesh::SessionState;
use tenure_mesh::effect::Note;
use tenure_proto::ids::ConnId;

use crate::broker::Did;
use crate::net::{Frame, Way, WireId};
use crate::rng::Rng;
use crate::seen::{Life, Seen, Slot};
use crate::world::{Event, World};

impl World {
    pub(crate) fn start_broker(&mut self) {
        if self.broker.is_up() || self.broken.is_some() {
            return;
        }
        let config = self.broker.config.clone();
        match self.broker.start(self.t) {
            Ok((findings, loss_accepted)) => {
                self.broker_frozen = None;
                self.broker_deferred.clear();
                self.writing = false;
                self.round_at = None;
                if loss_accepted {
                    self.see(&Seen::LossAccepted);
                }
                if self.broker.config != config {
                    self.tell_numbers();
                }
                self.see(&Seen::BrokerUp(findings));
                self.operator_looks(true);
            }
            Err(error) => self.broken = Some(error),
        }
    }

    /// The broker's sockets are gone with it. `told`: their clients learn it.
    pub(crate) fn drop_sockets(&mut self, told: impl Fn(&mut Rng) -> bool) {
        let wires: Vec<WireId> = self.net.wires.keys().copied().collect();
        for wire in wires {
            let told = told(&mut self.rng);
            let Some(found) = self.net.get(wire) else { continue };
            if !std::mem::replace(&mut found.broker_open, false) {
                continue;
            }
            if told {
                self.send(wire, Way::Down, Frame::Eof);
            } else {
                found.down.black = true;
            }
        }
        for slot in self.current.keys().copied().collect::<Vec<_>>() {
            self.current.remove(&slot);
            self.see(&Seen::SocketLost(slot));
        }
        self.net.sweep();
    }

    pub(crate) fn stop_broker(&mut self) {
        self.broker.stop(self.t);
        self.drop_sockets(|_| true);
        self.see(&Seen::BrokerDown(true));
        let wait = self.rng.between(200, 15_000);
        self.at(self.t + wait, Event::BrokerStart);
    }

    pub(crate) fn round(&mut self) {
        self.round_at = None;
        self.broker.tick_conns(self.t);
        self.broker.round(self.t);
        self.broker_turn();
        // Answers make room for further requests.
        let unread = self.net.wires.iter().filter(|(_, wire)| !wire.up.unread.is_empty());
        for wire in unread.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.read_up(wire);
        }
    }

    /// Sees to everything that the broker's last step led to, and to its next.
    pub(crate) fn broker_turn(&mut self) {
        for did in std::mem::take(&mut self.broker.did) {
            match did {
                Did::Leaves(conn) => self.leave_broker(conn),
                Did::End(conn) => {
                    self.leave_broker(conn);
                    if let Some(wire) = self.net.of(conn) {
                        self.close_broker(wire);
                    }
                }
                Did::Admitted(conn, new) => self.admitted(conn, new),
                Did::Lost(conn) => self.lost(conn),
                Did::Drained => self.stop_broker(),
                Did::Wrote(count, None) => self.trace.line(self.t, format_args!("disk: {count} writes")),
                Did::Wrote(count, Some(why)) => {
                    self.trace.line(self.t, format_args!("disk: {count} writes failed: {why}"));
                }
                Did::Note(note) => {
                    self.trace.line(self.t, format_args!("broker: {note:?}"));
                    if note == Note::Configured {
                        self.tell_numbers();
                    }
                }
                Did::Operated(id, outcome) => self.operated(id, *outcome),
            }
        }
        let (t, boot) = (self.t, self.broker.boot);
        let Some(running) = &self.broker.running else { return };
        let busy = !running.inputs.is_empty() || running.mesh.is_busy();
        let due = if busy { t + 1 } else { self.broker.clock.world(running.mesh.next_deadline()) };
        let conns = running.next_conn_deadline().map_or(u64::MAX, |due| self.broker.clock.world(due));
        let due = due.min(conns).max(t + 1);
        if self.round_at.is_none_or(|at| at > due || at <= t) {
            self.round_at = Some(due);
            self.at(due, Event::Round { boot });
        }
        let reads = self.broker.running.as_ref().map_or(0, |running| running.reads.len());
        if reads > 0 && self.broker.running.as_mut().is_some_and(|running| !running.reading) {
            if let Some(running) = &mut self.broker.running {
                running.reading = true;
            }
            let wait = self.rng.between(0, 4);
            self.at(t + wait, Event::Read { boot });
        }
        if !self.writing && self.broker.begin_write() {
            self.writing = true;
            if let Some(left) = self.dies_writing.take().filter(|_| !self.calm) {
                let mut rng = self.rng.fork(t);
                self.crash_broker(&mut rng, left);
                return;
            }
            let (low, high, until) = self.slow_sync;
            let wait = if until > t { self.rng.between(low, high) } else { self.rng.between(1, 4) };
            self.at(t + wait, Event::Written { boot });
        }
    }

    fn admitted(&mut self, conn: ConnId, new: bool) {
        let Some(wire) = self.net.of(conn) else { return };
        let Some(found) = self.net.get(wire) else { return };
        let (index, number) = (found.process, found.life);
        if let Some(stranger) = crate::stranger::index_of(index) {
            return self.stranger_admitted(stranger);
        }
        let Some(seat) = self.seats.get(index) else { return };
        let slot = seat.role.slot;
        self.current.insert(slot, conn);
        self.see(&Seen::Admitted(Life { slot, number }, new, conn.0));
    }

    /// What waits on a socket of the broker goes on its way while there is room.
    pub(crate) fn leave_broker(&mut self, conn: ConnId) {
        if self.broker_frozen.is_some() {
            return;
        }
        let Some(wire) = self.net.of(conn) else { return };
        while self.net.get(wire).is_some_and(|wire| wire.down.has_room())
            && let Some(frame) = self.broker.leave(conn)
        {
            self.send(wire, Way::Down, frame);
        }
        if self.broker.has_flushed(conn) {
            self.broker.flushed(self.t, conn);
        } else {
            self.broker.taken(self.t, conn);
        }
        if !self.broker.did.is_empty() {
            self.broker_turn();
        }
    }

    pub(crate) fn census(&mut self) {
        self.at(self.t + 10_000, Event::Census);
        let Some(running) = &self.broker.running else { return };
        let mut counts: Vec<(String, usize, usize)> =
            running.mesh.census().iter().map(|c| (c.what.to_owned(), c.size, c.bound)).collect();
        for seat in self.seats.iter().filter_map(|seat| seat.process.as_ref()) {
            let own = seat.link.census();
            counts.extend(own.iter().map(|c| (format!("link {}", c.what), c.size, c.bound)));
            if let Some(desk) = &seat.desk {
                let (held, bound) = desk.drain.held();
                counts.push(("rows of a drain".to_owned(), held, bound));
            }
        }
        self.see(&Seen::Census(counts));
        let Some(running) = &self.broker.running else { return };
        let states: Vec<(Slot, String)> = running
            .mesh
            .sessions_by_state()
            .filter_map(|(session, state)| Some((self.names.slot(&session)?, state_name(&state).to_owned())))
            .collect();
        self.see(&Seen::States(states));
    }

    /// A machine wakes, unless it has been put to sleep again since.
    pub(crate) fn wake_host(&mut self, index: usize, at: u64) {
        let t = self.t;
        let Some(host) = self.hosts.get_mut(index) else { return };
        let Some((_, since, stops)) = host.asleep.filter(|(until, ..)| *until == at) else { return };
        host.asleep = None;
        if stops {
            host.clock.lag += t - since;
        }
        self.trace.line(t, format_args!("host {index} wakes"));
        for event in std::mem::take(&mut self.hosts[index].deferred) {
            self.happen(event);
        }
        for seat in 0..self.seats.len() {
            if usize::from(self.seats[seat].role.host) == index {
                self.seats[seat].due = u64::MAX;
                self.set_alarm(seat);
            }
        }
        for wire in self.net.wires.keys().copied().collect::<Vec<_>>() {
            self.read_down(wire);
        }
    }

    pub(crate) fn thaw_broker(&mut self, at: u64) {
        if self.broker_frozen != Some(at) {
            return;
        }
        self.broker_frozen = None;
        self.see(&Seen::Frozen(false));
        // What came meanwhile is heard before time is.
        for wire in self.net.wires.keys().copied().collect::<Vec<_>>() {
            self.read_up(wire);
            if let Some(conn) = self.net.get(wire).map(|wire| wire.conn) {
                self.leave_broker(conn);
            }
        }
        for event in std::mem::take(&mut self.broker_deferred) {
            self.happen(event);
        }
        self.broker_turn();
    }
}

/// The words of the table of states.
fn state_name(state: &SessionState) -> &'static str {
    match state {
        SessionState::Knocking(_) => "beginning",
        SessionState::Online(_) => "online",
        SessionState::Grace { .. } => "grace",
        SessionState::Ending(_) => "ending",
    }
}
