//! The way out of a connection: into the pipe, past the counters.

use std::net::IpAddr;

use tenure_kit::Millis;
use tenure_kit::address::Address;
use tenure_mesh::conn::admit::Wait;
use tenure_mesh::conn::frames::Supply;
use tenure_mesh::conn::{ConnNote, Outlet};
use tenure_proto::method::StoreHealth;

use super::Stream;
use super::pipe::{Kind, Pipe};
use crate::entropy;
use crate::shared::Shared;

/// What a connection is given to act with.
pub(super) struct Way<'a> {
    pub(super) pipe: &'a mut Pipe<Stream>,
    pub(super) shared: &'a Shared,
    /// Set when something waits to be written.
    pub(super) flushing: &'a mut bool,
    /// Where the client is, if that is counted.
    pub(super) address: Option<Address>,
    /// Where it is.
    pub(super) from: Option<IpAddr>,
}

impl Way<'_> {
    fn count(&mut self) {
        self.shared.metrics.frames_out.inc();
        *self.flushing = true;
    }
}

impl Outlet for Way<'_> {
    fn frame(&mut self, binary: bool, guess: usize, write: impl FnOnce(&mut Vec<u8>)) {
        self.count();
        self.pipe.push_with(if binary { Kind::Binary } else { Kind::Text }, guess, write);
    }

    fn ping(&mut self) {
        self.count();
        self.pipe.push(Kind::Ping, &[]);
    }

    fn waiting(&self) -> usize {
        self.pipe.waiting()
    }

    fn is_crowded(&self) -> bool {
        self.shared.connections.is_over() || self.shared.connections.gate().is_closed()
    }

    fn skip(&mut self) {
        self.pipe.skip();
    }

    fn reserve(&mut self, bytes: usize) {
        self.pipe.reserve(bytes);
    }

    fn greets(&mut self, now: Millis) -> Result<(), Wait> {
        if !self.shared.connections.has_room() {
            return Err(Wait::Full);
        }
        let hello = |address| self.shared.addresses().hello(now, address).map_err(Wait::TooOften);
        self.address.map_or(Ok(()), hello)
    }

    fn was_here(&mut self) {
        if let Some(address) = self.address {
            self.shared.addresses().known(address);
        }
    }

    fn from(&self) -> Option<IpAddr> {
        self.from
    }

    fn is_counted(&self) -> bool {
        self.address.is_some()
    }

    fn noted(&mut self, note: ConnNote<'_>) {
        let metrics = &self.shared.metrics;
        match note {
            ConnNote::Read => _ = metrics.frames_in.inc(),
            ConnNote::HelloRefused(conn, client, refusal) => {
                let (code, reason) = (refusal.error.code, &refusal.closing.reason);
                metrics.refusal(code.as_str());
                tracing::info!(event = "hello_refused", %conn, client, %code, reason);
            }
            ConnNote::Refused(error) => metrics.refusal(error.code.as_str()),
            ConnNote::Answered(outcome) => metrics.answered(outcome),
            ConnNote::Delivering(pushes) => {
                let again = pushes.iter().filter(|push| push.redelivered).count();
                metrics.deliveries.inc_by(pushes.len() as u64);
                metrics.redeliveries.inc_by(again as u64);
            }
        }
    }
}

impl Supply for Way<'_> {
    fn entropy(&mut self) -> Option<u128> {
        entropy::draw()
    }

    fn store(&self) -> StoreHealth {
        self.shared.store_health()
    }
}
