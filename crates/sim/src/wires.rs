//! Wires: what happens on connections, at both ends.

use tenure_link::{LinkInput, SockId};
use tenure_proto::ids::ConnId;

use crate::net::{Frame, Way, WireId};
use crate::seen::{Life, Seen};
use crate::world::{Event, World};

impl World {
    pub(crate) fn latency(&mut self, host: u8) -> u64 {
        let Some(host) = self.hosts.get(usize::from(host)) else { return 1 };
        let (low, high) = host.path.latency;
        let extra = if host.path.spike.1 > self.t { host.path.spike.0 } else { 0 };
        self.rng.between(low, high) + extra
    }

    fn wire_latency(&mut self, wire: WireId) -> u64 {
        let host = match self.net.get(wire) {
            Some(wire) => self.seats.get(wire.process).map_or(0, |seat| seat.role.host),
            None => 0,
        };
        self.latency(host)
    }

    pub(crate) fn dialled(&mut self, index: usize, life: u32, sock: SockId) {
        let Some(process) = self.seats.get(index).and_then(|seat| seat.process.as_ref()) else { return };
        if process.life.number != life {
            return;
        }
        if !self.broker.is_up() || self.broker_frozen.is_some() && self.rng.chance(200) {
            let failed = LinkInput::Failed { sock, reason: "connection refused".to_owned(), answered: false };
            return self.with(index, |process, now, world| process.input(now, world, failed));
        }
        let (codec, boot) = (process.role.codec(), self.broker.boot);
        let (wire, conn) = self.net.open(index, life, sock, boot);
        let host = usize::from(self.seats[index].role.host);
        let (hold, until) = self.hosts[host].path.race;
        if until > self.t
            && let Some(found) = self.net.get(wire)
        {
            found.up.stalled_until = self.t + hold;
            self.hosts[host].path.race = (0, 0);
        }
        if let Some(process) = self.seats[index].process.as_mut() {
            process.socks.insert(sock, wire);
        }
        self.broker.accept(self.t, conn, codec);
        self.broker_turn();
        self.with(index, |process, now, world| process.input(now, world, LinkInput::Opened(sock)));
    }

    /// Puts a frame on its way.
    pub(crate) fn send(&mut self, wire: WireId, way: Way, frame: Frame) {
        let (t, latency) = (self.t, self.wire_latency(wire));
        let Some(found) = self.net.get(wire) else { return };
        if matches!(frame, Frame::Data(_)) && std::mem::take(&mut found.pipe(way).cut_next) {
            self.cut(wire);
            return;
        }
        if let Some(at) = found.pipe(way).send(t, latency, frame) {
            self.at(at, Event::Arrive(wire, way));
        }
    }

    /// The client's end is closed: what is under way arrives, then the end.
    pub(crate) fn close_client(&mut self, wire: WireId) {
        let Some(found) = self.net.get(wire) else { return };
        if std::mem::replace(&mut found.client_open, false) {
            self.send(wire, Way::Up, Frame::Eof);
        }
        self.net.sweep();
    }

    pub(crate) fn close_broker(&mut self, wire: WireId) {
        let Some(found) = self.net.get(wire) else { return };
        if std::mem::replace(&mut found.broker_open, false) {
            self.send(wire, Way::Down, Frame::Eof);
        }
        self.net.sweep();
    }

    pub(crate) fn arrive(&mut self, wire: WireId, way: Way) {
        let t = self.t;
        let Some(found) = self.net.get(wire) else { return };
        let pipe = found.pipe(way);
        pipe.arrive(t);
        if let Some(next) = pipe.next_arrival().filter(|next| *next <= t + 1 && *next > t) {
            self.at(next, Event::Arrive(wire, way));
        }
        match way {
            Way::Up => self.read_up(wire),
            Way::Down => self.read_down(wire),
        }
    }

    /// The broker reads what has arrived, for as long as it may.
    pub(crate) fn read_up(&mut self, wire: WireId) {
        let mut any = false;
        loop {
            let (t, boot) = (self.t, self.broker.boot);
            let Some(found) = self.net.get(wire) else { break };
            let conn = found.conn;
            if !found.broker_open || found.boot != boot || self.broker_frozen.is_some() {
                break;
            }
            if found.up.lazy_until > t {
                let until = found.up.lazy_until;
                self.at(until, Event::Arrive(wire, Way::Up));
                break;
            }
            if !self.broker.may_read(conn) {
                break;
            }
            let Some(found) = self.net.get(wire) else { break };
            let Some(frame) = found.up.read() else { break };
            any = true;
            self.trace.frame(t, format_args!("{conn} up"), &frame);
            self.prove(conn, &frame);
            if frame == Frame::Eof {
                if let Some(found) = self.net.get(wire) {
                    found.broker_open = false;
                }
                self.lost(conn);
            }
            self.broker.receive(t, conn, Some(&frame));
            self.broker_turn();
        }
        if any {
            self.net.sweep();
            self.broker_turn();
        }
    }

    /// What came on the connection that carries a session proves that it lives, and so does a hello that is let in.
    fn prove(&mut self, conn: ConnId, frame: &Frame) {
        if *frame == Frame::Eof {
            return;
        }
        let slot = self.current.iter().find(|(_, current)| **current == conn).map(|(slot, _)| *slot);
        if let Some(slot) = slot {
            self.see(&Seen::Proof(slot));
        } else if let Some((index, number)) =
            self.net.of(conn).and_then(|wire| self.net.get(wire)).map(|wire| (wire.process, wire.life))
            && let Some(slot) = self.seats.get(index).map(|seat| seat.role.slot)
        {
            self.see(&Seen::Knocks(Life { slot, number }, conn.0));
        }
    }

    /// The broker has learnt that a connection is gone.
    pub(crate) fn lost(&mut self, conn: ConnId) {
        let slot = self.current.iter().find(|(_, current)| **current == conn).map(|(slot, _)| *slot);
        if let Some(slot) = slot {
            self.current.remove(&slot);
            self.see(&Seen::SocketLost(slot));
        }
    }

    /// A process reads what has arrived, unless it stands still or is slow.
    pub(crate) fn read_down(&mut self, wire: WireId) {
        loop {
            let t = self.t;
            let Some(found) = self.net.get(wire) else { return };
            let (index, life, sock, conn) = (found.process, found.life, found.sock, found.conn);
            if let Some(stranger) = crate::stranger::index_of(index) {
                let Some(frame) = found.down.read() else { return };
                self.stranger_hears(stranger, wire, frame);
                continue;
            }
            if found.down.lazy_until > t {
                let until = found.down.lazy_until;
                self.at(until, Event::Arrive(wire, Way::Down));
                return;
            }
            let Some(seat) = self.seats.get(index) else { return };
            if self.hosts[usize::from(seat.role.host)].asleep.is_some() {
                return;
            }
            let alive = seat.process.as_ref().is_some_and(|process| process.life.number == life);
            let Some(found) = self.net.get(wire) else { return };
            let Some(frame) = found.down.read() else { return };
            if !alive || !found.client_open {
                continue;
            }
            let answered = matches!(frame, Frame::Pong(number) if number == found.pinged);
            self.trace.frame(t, format_args!("{conn} down"), &frame);
            let input = match frame {
                Frame::Data(bytes) => LinkInput::Frame(sock, bytes),
                Frame::Ping(number) => {
                    self.send(wire, Way::Up, Frame::Pong(number));
                    LinkInput::Heard(sock)
                }
                Frame::Pong(_) if answered => LinkInput::Answered(sock),
                Frame::Pong(_) => LinkInput::Heard(sock),
                Frame::Close(code) => {
                    self.drop_sock(index, sock, wire);
                    LinkInput::Gone(sock, Some(code))
                }
                Frame::Eof => {
                    self.drop_sock(index, sock, wire);
                    LinkInput::Gone(sock, None)
                }
            };
            self.with(index, |process, now, world| process.input(now, world, input));
            self.leave_broker(conn);
        }
    }

    fn drop_sock(&mut self, index: usize, sock: SockId, wire: WireId) {
        if let Some(process) = self.seats.get_mut(index).and_then(|seat| seat.process.as_mut()) {
            process.socks.remove(&sock);
        }
        self.close_client(wire);
    }
}
