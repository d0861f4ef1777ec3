//! Rewinding: the broker's store goes back to what it was, while nobody has it open. What was acknowledged since is gone,
//! and everybody has to find that out.

use crate::disk::{Copied, Left};
use crate::fault::Fault;
use crate::rng::Rng;
use crate::seen::Seen;
use crate::world::{Event, World};

/// A store that is about to go back.
pub(crate) struct Rewinding {
    fault: Fault,
    /// To what; a store that is wiped needs none.
    copied: Option<Copied>,
    rng: Rng,
}

impl World {
    /// The store will go back to what it is now, after a while; or is wiped at once.
    pub(crate) fn plan_rewind(&mut self, fault: Fault, rng: &mut Rng) {
        let (wait, copied) = match fault {
            Fault::Restore => (rng.between(1_000, 60_000), Some(self.broker.disk.copy(self.t))),
            Fault::LogCut => (rng.between(100, 15_000), Some(self.broker.disk.copy(self.t))),
            _ => (0, None),
        };
        match copied.transpose() {
            Ok(copied) => {
                let rewinding = Rewinding { fault, copied, rng: rng.fork(1) };
                self.rewindings.push(Some(rewinding));
                let index = self.rewindings.len() - 1;
                self.at(self.t + wait, Event::Rewind { index });
            }
            Err(error) => self.broken = Some(error),
        }
    }

    /// The store goes back: its broker is stopped, or has died, and is started again after that.
    pub(crate) fn rewind(&mut self, index: usize) {
        let Some(rewinding) = self.rewindings.get_mut(index).and_then(Option::take) else { return };
        if self.calm || self.broken.is_some() {
            return;
        }
        let Rewinding { fault, copied, mut rng } = rewinding;
        // Whoever stops in good order leaves no log that could be cut.
        if fault != Fault::LogCut && self.broker.is_up() && rng.chance(500) {
            self.stop_broker();
        }
        while self.broker.is_up() {
            self.crash_broker(&mut rng, Left::Nothing);
        }
        let copied_at = copied.as_ref().map_or(0, |copied| copied.at);
        let went = match (fault, copied) {
            (Fault::LogCut, Some(copied)) => self.broker.disk.cut_log(copied),
            (_, Some(copied)) => self.broker.disk.restore(copied, rng.chance(500)).map(|()| true),
            (_, None) => self.broker.wipe(&mut rng).map(|()| true),
        };
        match went {
            Ok(true) => {
                *self.injected.entry(fault).or_default() += 1;
                self.see(&Seen::Rewound { copied_at });
                // A store in memory has no log, and no mark.
                if fault == Fault::LogCut && self.scenario.sqlite {
                    self.see(&Seen::EndLost);
                }
            }
            Ok(false) => {}
            Err(error) => self.broken = Some(error),
        }
    }
}
