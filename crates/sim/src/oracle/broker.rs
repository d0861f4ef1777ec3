//! What the broker can be blamed for: the time it was awake, the numbers it ran on, the disk it had.

use crate::seen::{Numbers, Seen};

/// What is promised until an operator says otherwise.
const DEFAULTS: Numbers = Numbers {
    lease_ttl_ms: 90_000,
    ping_interval_ms: 30_000,
    ack_timeout_ms: 600_000,
    reconnect_grace_ms: 5_000,
    freeze_tolerance_ms: 5_000,
    max_attempts: 16,
};

/// The store went back to what it was.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rewind {
    /// To when: what was told before is there, what was asked for after it is not.
    pub(super) copied_at: u64,
    /// When.
    pub(super) at: u64,
    /// The first start that found it so.
    pub(super) run: u64,
}

/// Something was told of what the store has, which proves that it had it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sight {
    /// When it was first told.
    pub(super) at: u64,
    /// The last start in which it was certainly said; of what a socket may have held for long nothing is certain.
    pub(super) run: u64,
}

/// All that was told of one thing: the first of each start. They are not one, because each is proof in its own history.
#[derive(Clone, Debug)]
pub(super) struct Sights(Vec<Sight>);

impl Sights {
    pub(super) fn new(first: Sight) -> Sights {
        Sights(vec![first])
    }

    /// It was told once more.
    pub(super) fn add(&mut self, sight: Sight) {
        match self.0.iter_mut().find(|known| known.run == sight.run) {
            Some(known) => known.at = known.at.min(sight.at),
            None => self.0.push(sight),
        }
    }

    /// When it was first told.
    pub(super) fn first_at(&self) -> u64 {
        self.0.iter().map(|sight| sight.at).min().unwrap_or(u64::MAX)
    }
}

/// The broker as the world sees it.
#[derive(Debug)]
pub(super) struct Broker {
    pub(super) up: bool,
    frozen: bool,
    /// Milliseconds that it was up and not frozen.
    pub(super) awake: u64,
    looked: u64,
    /// How often it was frozen.
    pub(super) freezes: u64,
    /// Which start this is, of those that came to something.
    pub(super) run: u64,
    /// How many there were, with those that failed.
    pub(super) starts: u64,
    /// When it last went down.
    pub(super) down_at: Option<u64>,
    pub(super) numbers: Numbers,
    /// The shortest that were ever in force: who counts from another moment than we do used these.
    pub(super) ack_timeout_ms: u64,
    pub(super) grace_ms: u64,
    pub(super) max_attempts: u32,
    tolerance_ms: u64,
    /// The longest lease that was ever in force.
    pub(super) ttl_max_ms: u64,
    told: bool,
    /// When it may forget what everybody has settled, if it ever does, and whether also what is unread.
    pub(super) forgets: Option<(u64, bool)>,
    /// Whether its wall clock ever moved by itself: then nothing is said about delays and expiry.
    pub(super) clock_jumped: bool,
    /// Whether the store could not write at some time of this run, and when that was last so.
    pub(super) trouble: bool,
    /// The same of the run before.
    pub(super) last_run_troubled: bool,
    full: bool,
    poisoned: bool,
    /// Whether it could not read at some time.
    pub(super) blind: bool,
    /// How often its store went back, in the order of time.
    pub(super) rewinds: Vec<Rewind>,
    /// Since when it can write, in time awake; `None` while it cannot.
    calm_since: Option<u64>,
}

impl Default for Broker {
    fn default() -> Broker {
        Broker {
            up: true,
            frozen: false,
            awake: 0,
            looked: 0,
            freezes: 0,
            run: 0,
            starts: 0,
            down_at: None,
            numbers: DEFAULTS,
            ack_timeout_ms: DEFAULTS.ack_timeout_ms,
            grace_ms: DEFAULTS.reconnect_grace_ms,
            max_attempts: DEFAULTS.max_attempts,
            tolerance_ms: DEFAULTS.freeze_tolerance_ms,
            ttl_max_ms: DEFAULTS.lease_ttl_ms,
            told: false,
            forgets: None,
            clock_jumped: false,
            trouble: false,
            last_run_troubled: false,
            full: false,
            poisoned: false,
            blind: false,
            rewinds: Vec::new(),
            calm_since: Some(0),
        }
    }
}

impl Broker {
    /// How much of one freeze may count as time awake: lateness that is tolerated, and the beat before it.
    pub(super) fn freeze_allowance_ms(&self) -> u64 {
        self.tolerance_ms + (self.tolerance_ms / 2).min(1_000)
    }

    /// For how long it has been awake and able to write in this run, since it was awake for `since`.
    pub(super) fn calm_ms(&self, since: u64) -> u64 {
        let calm = self.calm_since.filter(|_| self.up);
        calm.map_or(0, |calm| self.awake - calm.max(since))
    }

    /// Whether what was told must be there still. Copies make a tree of histories: it must have been told in the one that is
    /// now, or before the copy was made that this began with, in the history that was copied; and so on.
    pub(super) fn keeps(&self, sight: Sight) -> bool {
        let mut end = u64::MAX;
        loop {
            let began = self.rewinds.iter().rfind(|rewind| rewind.at < end);
            if sight.at < end && sight.run >= began.map_or(0, |rewind| rewind.run) {
                return true;
            }
            let Some(rewind) = began else { return false };
            end = rewind.copied_at;
        }
    }

    /// The same of something that was told several times.
    pub(super) fn keeps_any(&self, sights: &Sights) -> bool {
        sights.0.iter().any(|sight| self.keeps(*sight))
    }

    /// Whether what was first asked for and told at these times cannot be there any more when the store has gone back so often:
    /// no part of the history that is then was written meanwhile.
    pub(super) fn has_lost(&self, asked_at: u64, told_at: u64, rewinds: usize) -> bool {
        let mut end = u64::MAX;
        loop {
            let began = self.rewinds.iter().take(rewinds).rfind(|rewind| rewind.at < end);
            if asked_at <= end && told_at >= began.map_or(0, |rewind| rewind.at) {
                return false;
            }
            let Some(rewind) = began else { return true };
            end = rewind.copied_at;
        }
    }

    /// How often the store went back since `at`.
    pub(super) fn rewinds_since(&self, at: u64) -> usize {
        self.rewinds.iter().filter(|rewind| rewind.at >= at).count()
    }

    /// Whether `at` lies after the last time that the store went back.
    pub(super) fn is_after_a_rewind(&self, at: u64) -> bool {
        self.rewinds.last().is_some_and(|rewind| rewind.at < at)
    }

    /// Whether the store went back after `at`.
    pub(super) fn rewound_since(&self, at: u64) -> bool {
        self.rewinds.last().is_some_and(|rewind| rewind.at >= at)
    }

    pub(super) fn pass(&mut self, at: u64) {
        if self.up && !self.frozen {
            self.awake += at.saturating_sub(self.looked);
        }
        self.looked = at;
    }

    pub(super) fn see(&mut self, at: u64, seen: &Seen) {
        match seen {
            Seen::Numbers(numbers) => self.run_on(*numbers),
            Seen::Frozen(frozen) => {
                self.freezes += u64::from(*frozen);
                self.frozen = *frozen;
            }
            Seen::Forgets { after_ms, unread } => self.forgets = Some((*after_ms, *unread)),
            Seen::BrokerClockOff(_) => self.clock_jumped = true,
            Seen::BrokerDown(_) => {
                (self.up, self.frozen) = (false, false);
                self.down_at = Some(at);
            }
            Seen::StartFailed => self.starts += 1,
            Seen::BrokerUp(_) => {
                self.up = true;
                self.run += 1;
                self.starts += 1;
                self.last_run_troubled = std::mem::replace(&mut self.trouble, self.full);
                (self.poisoned, self.calm_since) = (false, (!self.full).then_some(self.awake));
            }
            Seen::Blind => self.blind = true,
            Seen::Rewound { copied_at } => {
                self.rewinds.push(Rewind { copied_at: *copied_at, at, run: self.run + 1 });
            }
            Seen::DiskFull(full) => {
                (self.full, self.trouble) = (*full, true);
                self.calm_since = (!self.full && !self.poisoned).then_some(self.awake);
            }
            Seen::Poisoned => (self.poisoned, self.trouble, self.calm_since) = (true, true, None),
            _ => {}
        }
    }

    fn run_on(&mut self, numbers: Numbers) {
        if !std::mem::replace(&mut self.told, true) {
            self.ack_timeout_ms = numbers.ack_timeout_ms;
            self.grace_ms = numbers.reconnect_grace_ms;
            self.max_attempts = numbers.max_attempts;
            self.tolerance_ms = numbers.freeze_tolerance_ms;
            self.ttl_max_ms = numbers.lease_ttl_ms;
        }
        self.numbers = numbers;
        self.ack_timeout_ms = self.ack_timeout_ms.min(numbers.ack_timeout_ms);
        self.grace_ms = self.grace_ms.min(numbers.reconnect_grace_ms);
        self.max_attempts = self.max_attempts.min(numbers.max_attempts);
        self.tolerance_ms = self.tolerance_ms.max(numbers.freeze_tolerance_ms);
        self.ttl_max_ms = self.ttl_max_ms.max(numbers.lease_ttl_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_older_copy_brings_back_is_not_lost() {
        let mut broker = Broker::default();
        let mut rewind = |at, copied_at| {
            broker.see(at, &Seen::Rewound { copied_at });
            broker.see(at, &Seen::BrokerUp(Vec::new()));
        };
        rewind(100, 0);
        rewind(200, 80);
        rewind(300, 250);
        let lost = |at| broker.has_lost(at, at, 3);
        assert!(!lost(50) && !lost(80), "the second copy is older than the first rewind");
        assert!(lost(90) && lost(150), "they are in no copy");
        assert!(!lost(240) && lost(260) && !lost(301));
        assert!(!broker.has_lost(90, 210, 3), "it may have been written again");
        assert!(broker.has_lost(50, 50, 1) && !broker.has_lost(260, 260, 2));
        let keeps = |at, run| broker.keeps(Sight { at, run });
        assert!(keeps(50, 0) && keeps(240, 2) && keeps(310, 3));
        assert!(!keeps(150, 1) && !keeps(90, 0) && !keeps(260, 2), "they are in no copy");
    }
}
