//! The mesh's two clocks: what is stamped, and what changes when the wall clock is doubted or believed again.

use tenure_kit::clock::{ClockDoubt, ClockTurn, Clocks, STRAY_MS};
use tenure_kit::time::Now;

use crate::Mesh;
use crate::effect::{Effect, Note};
use crate::messages::Messages;
use crate::messages::envelope::Envelope;

impl Mesh {
    /// The same mesh on a broker whose clocks are these. While they are in doubt at the start, the time since the store last
    /// ran counts for nothing: runs have the time that they had left then.
    pub fn with_clocks(mut self, clocks: Clocks) -> Mesh {
        self.clocks = clocks;
        if clocks.are_astray() {
            self.roll.keep_ended = true;
            self.time_runs_from(clocks.expected(self.now));
            self.wall = clocks.stamp(self.both());
            self.messages.restored_behind(self.wall.saturating_sub(self.shown), self.wall);
        }
        self
    }

    /// Both clocks at the last input, as the shell sees them.
    fn both(&self) -> Now {
        Now { at: self.thaw.shell(self.now), wall: self.shown }
    }

    /// Stamps a message with the time that is believed here. Its connection has looked at the wall clock a moment ago, which
    /// may have shown something else altogether.
    pub(crate) fn stamp(&self, envelope: &mut Envelope) {
        if envelope.sent_at.abs_diff(self.wall) > STRAY_MS {
            envelope.stamp(self.wall);
        }
    }

    /// Why the wall clock is not believed, if it is not.
    pub fn clock_doubt(&self) -> Option<ClockDoubt> {
        self.clocks.doubt(self.both())
    }

    /// Notices that the wall clock went where the monotonic one did not, and when it can be believed again.
    pub(crate) fn watch_clocks(&mut self, now: Now, effects: &mut Vec<Effect>) {
        self.shown = now.wall;
        let turn = self.clocks.look(now);
        self.wall = self.clocks.stamp(now);
        let Some(turn) = turn else { return };
        match turn {
            ClockTurn::Jumped(ms) => {
                self.clock_turned();
                effects.push(Effect::Note(Note::ClockJumped { ms }));
            }
            ClockTurn::Back => self.clock_turned(),
            ClockTurn::Steady(ms) => self.clock_believed(ms, effects),
        }
    }

    /// An operator says that the wall clock is right.
    pub(crate) fn confirm_clock(&mut self, effects: &mut Vec<Effect>) {
        let now = self.both();
        if let Some(ms) = self.clocks.confirm(now) {
            self.wall = now.wall;
            self.clock_believed(ms, effects);
        }
    }

    fn clock_believed(&mut self, ms: u64, effects: &mut Vec<Effect>) {
        // When to look next was said by the clock as it was.
        self.messages.logs.prune_anew();
        self.clock_turned();
        effects.push(Effect::Note(Note::ClockBelieved { ms }));
    }

    /// Whether the wall clock is believed has changed.
    fn clock_turned(&mut self) {
        self.roll.keep_ended = self.clocks.are_astray();
        self.health_changed();
    }
}

impl Messages {
    /// What a start took up was measured by a wall clock that is so far behind `wall`.
    fn restored_behind(&mut self, behind_ms: u64, wall: u64) {
        if behind_ms == 0 {
            return;
        }
        for topic in self.topics.values_mut().filter(|topic| topic.used_at > 0) {
            topic.used_at = wall;
        }
        let ids: Vec<_> = self.readings.keys().copied().collect();
        for id in ids {
            if let Some(reading) = self.readings.get_mut(&id) {
                reading.group.delays_are_shorter(behind_ms);
            }
            self.touch(id);
        }
    }
}
