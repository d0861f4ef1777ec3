//! The mesh's two clocks: what is measured by, what is stamped, and what changes when the wall clock is doubted or believed
//! again.

use tenure_kit::clock::{ClockDoubt, ClockTurn, Clocks, STRAY_MS};
use tenure_kit::time::{Millis, Now};

use crate::Mesh;
use crate::effect::{Effect, Note};
use crate::messages::envelope::Envelope;
use crate::sessions::freeze::Thaw;

/// The clocks at the last input.
#[derive(Debug)]
pub(crate) struct MeshClock {
    /// When the broker started, on the shell's clock.
    started: Millis,
    thaw: Thaw,
    now: Millis,
    wall: u64,
    shown: u64,
    clocks: Clocks,
}

impl MeshClock {
    /// Those of a broker that starts now, with leases of `lease_ttl_ms`.
    pub(crate) fn new(lease_ttl_ms: u64, now: Now) -> MeshClock {
        MeshClock {
            started: now.at,
            thaw: Thaw::new(lease_ttl_ms, now.at),
            now: now.at,
            wall: now.wall,
            shown: now.wall,
            clocks: Clocks::new(now),
        }
    }

    /// Thawed time: everything that a lease, a delivery or a run waits for is measured by it.
    pub(crate) fn now(&self) -> Millis {
        self.now
    }

    /// The time that things are stamped with, Unix milliseconds: what the wall clock shows while it is believed
    /// ([`Clocks::stamp`]).
    pub(crate) fn wall(&self) -> u64 {
        self.wall
    }

    /// The time that the wall clock shows, for what was signed or is shown by it.
    pub(crate) fn shown(&self) -> u64 {
        self.shown
    }

    /// How long the broker has run, freezes left out.
    pub(crate) fn uptime_ms(&self) -> u64 {
        self.shell(self.now).since(self.started)
    }

    /// Whether the wall clock is not believed.
    pub(crate) fn is_doubted(&self) -> bool {
        self.clocks.are_astray()
    }

    /// Thawed time for a moment of the shell's clock.
    pub(crate) fn thawed(&self, at: Millis) -> Millis {
        self.thaw.thawed(at)
    }

    /// The moment of the shell's clock for thawed time.
    pub(crate) fn shell(&self, thawed: Millis) -> Millis {
        self.thaw.shell(thawed)
    }

    /// When the shell must look again, on its own clock.
    pub(crate) fn next_look(&self) -> Millis {
        self.thaw.next_look()
    }

    /// When the shell last looked, on its own clock, and how long it was frozen in all.
    pub(crate) fn last_look(&self) -> (Millis, u64) {
        (self.thaw.last_look(), self.thaw.lost_ms())
    }

    /// Leases are of `lease_ttl_ms` from here on.
    pub(crate) fn retune(&mut self, lease_ttl_ms: u64, now: Millis) {
        self.thaw.retune(lease_ttl_ms, now);
    }

    /// Reads both clocks: how long the broker was frozen, if it was, and what the wall clock did that the other did not.
    fn look(&mut self, now: Now) -> (Option<u64>, Option<ClockTurn>) {
        let frozen = self.thaw.look(now.at);
        self.now = self.thaw.thawed(now.at);
        self.shown = now.wall;
        let turn = self.clocks.look(now);
        self.wall = self.clocks.stamp(now);
        (frozen, turn)
    }

    /// Both clocks at the last input, as the shell sees them.
    fn both(&self) -> Now {
        Now { at: self.shell(self.now), wall: self.shown }
    }

    /// An operator says that the wall clock is right; how far it was off, if it was doubted.
    fn confirm(&mut self) -> Option<u64> {
        let now = self.both();
        let ms = self.clocks.confirm(now)?;
        self.wall = now.wall;
        Some(ms)
    }
}

impl Mesh {
    /// The same mesh on a broker whose clocks are these. While they are in doubt at the start, the time since the store last
    /// ran counts for nothing: runs have the time that they had left then.
    pub fn with_clocks(mut self, clocks: Clocks) -> Mesh {
        self.clock.clocks = clocks;
        if clocks.are_astray() {
            self.access.keep_ended(true);
            self.time_runs_from(clocks.expected(self.clock.now));
            self.clock.wall = clocks.stamp(self.clock.both());
            let MeshClock { wall, shown, .. } = self.clock;
            self.messages.restored_behind(wall.saturating_sub(shown), wall);
        }
        self
    }

    /// Stamps a message with the time that is believed here. Its connection has looked at the wall clock a moment ago, which
    /// may have shown something else altogether.
    pub(crate) fn stamp(&self, envelope: &mut Envelope) {
        if envelope.sent_at.abs_diff(self.clock.wall) > STRAY_MS {
            envelope.stamp(self.clock.wall);
        }
    }

    /// Why the wall clock is not believed, if it is not.
    pub fn clock_doubt(&self) -> Option<ClockDoubt> {
        self.clock.clocks.doubt(self.clock.both())
    }

    /// Notices a freeze, and that the wall clock went where the monotonic one did not or can be believed again. Gives the
    /// thawed time.
    pub(crate) fn look(&mut self, now: Now) -> Millis {
        let (frozen, turn) = self.clock.look(now);
        if let Some(ms) = frozen {
            self.effects.push_back(Effect::Note(Note::Frozen { ms }));
        }
        match turn {
            Some(ClockTurn::Jumped(ms)) => {
                self.clock_turned();
                self.effects.push_back(Effect::Note(Note::ClockJumped { ms }));
            }
            Some(ClockTurn::Back) => self.clock_turned(),
            Some(ClockTurn::Steady(ms)) => self.clock_believed(ms),
            None => {}
        }
        self.clock.now
    }

    /// An operator says that the wall clock is right.
    pub(crate) fn confirm_clock(&mut self) {
        if let Some(ms) = self.clock.confirm() {
            self.clock_believed(ms);
        }
    }

    fn clock_believed(&mut self, ms: u64) {
        // When to look next was said by the clock as it was.
        self.messages.prune_anew();
        self.clock_turned();
        self.effects.push_back(Effect::Note(Note::ClockBelieved { ms }));
    }

    /// Whether the wall clock is believed has changed.
    fn clock_turned(&mut self) {
        self.access.keep_ended(self.clock.is_doubted());
        self.health_changed();
    }
}
