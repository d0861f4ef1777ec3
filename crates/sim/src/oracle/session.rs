//! A session from the broker's side: when its lease may have ended, which process carries it, and when what crews
//! have in its hand may have gone to others.

use std::collections::BTreeMap;

use crate::seen::{Life, Seen, Slot};

use super::broker::Broker;
use super::{Court, who};

/// Inexactness of clocks and of what happens in one turn.
pub(super) const SLACK_MS: u64 = 250;
/// After a start crews wait this long for who had something in hand.
const STARTUP_GRACE_MS: u64 = 30_000;
/// A hello that was on its way when its session was banned.
const BAN_MARGIN_MS: u64 = 1_000;

/// What a start counts towards the time of a lease that is not attached in it, besides how long the broker was awake.
const START_MS: u64 = 1_000;

/// The last proof of life.
#[derive(Clone, Copy, Debug)]
struct Proof {
    awake: u64,
    freezes: u64,
    /// Starts of the broker by then.
    starts: u64,
    /// The shortest lease that was in force since.
    ttl_ms: u64,
}

impl Proof {
    fn now(broker: &Broker) -> Proof {
        let Broker { awake, freezes, starts, .. } = *broker;
        Proof { awake, freezes, starts, ttl_ms: broker.numbers.lease_ttl_ms }
    }
}

/// A session.
#[derive(Debug, Default)]
pub(super) struct Session {
    proof: Option<Proof>,
    /// The hellos that are not answered yet: how long that takes is not the lease's.
    knocked: BTreeMap</* socket */ u64, Proof>,
    /// In which run it was last admitted.
    run: Option<u64>,
    /// From when on its time may run at the latest, in time that the broker was awake.
    latest: u64,
    /// Whether it knocked when its lease could not live any more.
    overdue: bool,
    /// When it was admitted for the first time of all.
    first_at: Option<u64>,
    bye: bool,
    banned: Option<u64>,
    /// Whether a crash may have made the broker forget that it was here: then its lease may be shorter. Also whether
    /// the store went back: then it may have another lease, or none.
    doubtful: bool,
    /// Whether the next start may find a lease that had ended.
    rewound: bool,
    /// Moments at which a time ended in which its lease may have ended. A watcher may be told of one end for each.
    pub(super) ends: Vec<u64>,
    /// Who carries it, as far as the broker knows, and since when.
    pub(super) carrier: Option<Life>,
    pub(super) admitted_at: u64,
    last_life: Option<Life>,
    /// When another process than before last took it over.
    pub(super) replaced_at: Option<u64>,
    /// From when on crews may give to others what it has in hand, while nobody carries it.
    away: Option<u64>,
    /// When they last may have done so.
    pub(super) released_at: Option<u64>,
}

impl Session {
    /// Whether its lease may be over by now, by everything that ends one.
    pub(super) fn may_have_ended(&self, broker: &Broker) -> bool {
        let Some(proof) = self.proof else { return true };
        let frozen = (broker.freezes - proof.freezes) * broker.freeze_allowance_ms();
        let started = (broker.starts - proof.starts) * START_MS;
        let over = broker.awake - proof.awake + frozen + started + SLACK_MS >= proof.ttl_ms;
        over || self.bye || self.banned.is_some() || self.doubtful
    }

    /// Whether its lease may have ended since `at`.
    pub(super) fn may_have_ended_since(&self, at: u64, broker: &Broker) -> bool {
        self.ends.last().is_some_and(|end| *end >= at) || self.may_have_ended(broker)
    }

    /// Whether its lease cannot live any more, however its end was delayed.
    pub(super) fn must_have_ended(&self, broker: &Broker) -> bool {
        if self.proof.is_none() {
            return false;
        }
        // Ends after a start are spread, and a store that could not write is asked again.
        let late = broker.ttl_max_ms / 3 + 15_000;
        self.carrier.is_none() && broker.calm_ms(self.latest) > broker.ttl_max_ms + late
    }

    /// Whether crews may have given to others since `at` what it had in hand then.
    pub(super) fn may_have_lost_since(&self, at: u64, now: u64, broker: &Broker) -> bool {
        self.released_at.is_some_and(|released| released >= at)
            || self.away.is_some_and(|away| now + SLACK_MS >= away)
            || self.may_have_ended_since(at, broker)
    }

    /// Whether the broker knew it at `at`.
    pub(super) fn was_admitted_before(&self, at: u64) -> bool {
        self.first_at.is_some_and(|first| first < at)
    }

    /// A lease began that nobody was told of: its socket was gone before the answer.
    pub(super) fn began_unseen(&mut self, at: u64) {
        self.ends.push(at);
    }

    pub(super) fn see(&mut self, at: u64, seen: &Seen, broker: &Broker, court: &mut Court) {
        match seen {
            Seen::Numbers(numbers) => {
                if let Some(proof) = &mut self.proof {
                    proof.ttl_ms = proof.ttl_ms.min(numbers.lease_ttl_ms);
                }
                // Another grace holds at once, also for those who are away.
                self.away = self.away.map(|away| away.min(at));
            }
            Seen::Proof(_) => self.proven(at, broker),
            Seen::Knocks(life, socket) => {
                self.replaced_by(at, *life);
                if self.proof.is_some() && self.may_have_ended(broker) {
                    // It may begin the next lease, whose end others hear of, too.
                    self.ends.push(at);
                }
                self.overdue = self.must_have_ended(broker);
                // A lease may begin by it although its answer finds nobody.
                self.latest = broker.awake;
                // It may be attached although its answer waits for the disk, and lose that socket at any time.
                self.away = self.away.map(|away| away.min(at + broker.grace_ms));
                self.knocked.insert(*socket, Proof::now(broker));
            }
            Seen::Admitted(life, new, socket) => {
                let knocked = self.knocked.remove(socket);
                self.admitted(at, *life, *new, knocked, broker, court);
            }
            Seen::SocketLost(_) => self.lost(at + broker.grace_ms),
            Seen::Bye(_) => self.bye = true,
            Seen::Banned(_, true) => self.banned = Some(self.banned.unwrap_or(at)),
            // It may have ended meanwhile; who comes back is admitted first.
            Seen::Banned(_, false) => self.bye |= self.banned.take().is_some(),
            Seen::BrokerDown(_) => {
                self.settle_away(at);
                (self.carrier, self.away) = (None, None);
                self.knocked.clear();
            }
            Seen::Rewound { copied_at } => {
                // A lease that may be over is there again if the copy has it, and may end once more.
                if *copied_at > 0 && self.run.is_some() && self.may_have_ended(broker) {
                    self.ends.push(at);
                }
                (self.doubtful, self.rewound) = (true, true);
                self.first_at = self.first_at.filter(|first| first < copied_at);
            }
            Seen::BrokerUp(_) => self.restarted(at, broker),
            _ => {}
        }
    }

    fn proven(&mut self, at: u64, broker: &Broker) {
        let told = self.bye || self.banned.is_some() || self.doubtful;
        if !told && self.proof.is_some() && self.may_have_ended(broker) {
            self.ends.push(at);
        }
        self.proof = Some(Proof::now(broker));
        self.latest = broker.awake;
    }

    /// A hello is answered with yes, which came at `knocked`.
    fn admitted(
        &mut self,
        at: u64,
        life: Life,
        new: bool,
        knocked: Option<Proof>,
        broker: &Broker,
        court: &mut Court,
    ) {
        if let Some(since) = self.banned
            && at > since + BAN_MARGIN_MS
        {
            let text = format!("{} was admitted {} ms after it was banned", who(life), at - since);
            court.accuse("banned", text);
        }
        let ended = self.may_have_ended(broker);
        // The hello is a proof itself, heard of before its answer: an end before it is noted already.
        let noted = self.ends.last().is_some_and(|end| *end >= self.admitted_at);
        if new && self.run.is_some() && !ended && !noted {
            let text = format!("{} got a new lease although the last one could not have ended", who(life));
            court.accuse("presence", text);
        }
        if !new && std::mem::take(&mut self.overdue) {
            let text = format!("{} was given a lease again that must have ended long ago", who(life));
            court.accuse("presence", text);
        }
        if ended && self.run.is_some() {
            self.ends.push(at);
        }
        self.replaced_by(at, life);
        if new {
            self.released_at = Some(at);
        }
        self.settle_away(at);
        self.run = Some(broker.run);
        self.latest = broker.awake;
        self.first_at.get_or_insert(at);
        (self.bye, self.doubtful, self.away) = (false, false, None);
        (self.carrier, self.last_life, self.admitted_at) = (Some(life), Some(life), at);
        let now = Proof::now(broker);
        let ttl_ms = now.ttl_ms;
        self.proof = Some(Proof { ttl_ms, ..knocked.unwrap_or(now) });
    }

    /// Another process than before takes the session over, or may have done so.
    fn replaced_by(&mut self, at: u64, life: Life) {
        if self.last_life.is_some_and(|last| last != life) {
            (self.replaced_at, self.released_at) = (Some(at), Some(at));
        }
    }

    fn lost(&mut self, away: u64) {
        self.carrier = None;
        self.away = Some(self.away.map_or(away, |earlier| earlier.min(away)));
    }

    fn settle_away(&mut self, at: u64) {
        if self.away.is_some_and(|away| at + SLACK_MS >= away) {
            self.released_at = Some(at);
        }
    }

    /// A start gives every stored lease a full TTL; starts that nobody attaches in use it up.
    fn restarted(&mut self, at: u64, broker: &Broker) {
        self.away = Some(at + STARTUP_GRACE_MS.max(broker.grace_ms));
        if std::mem::take(&mut self.rewound) {
            self.latest = broker.awake;
        }
        if self.run.is_none_or(|run| run + 1 != broker.run) {
            return;
        }
        self.latest = broker.awake;
        if self.may_have_ended(broker) {
            return;
        }
        // That it was here in the last run a store that could not write may not know.
        if broker.last_run_troubled {
            self.doubtful = true;
        } else if let Some(proof) = &mut self.proof {
            (proof.awake, proof.freezes) = (broker.awake, broker.freezes);
        }
    }
}

/// Whose session a fact is about; `None` is nobody's or everybody's.
pub(super) fn whose(seen: &Seen) -> Option<Slot> {
    match seen {
        Seen::Proof(slot) | Seen::SocketLost(slot) | Seen::Banned(slot, _) => Some(*slot),
        Seen::Knocks(life, _) | Seen::Admitted(life, ..) | Seen::Bye(life) => Some(life.slot),
        _ => None,
    }
}
