//! For each rule a play that breaks it, and one that comes close and does not.

mod daemons;
mod fates;
mod hands;
mod inquiries;
mod leases;
mod letters;
mod lost;
mod plain;
mod rewinds;
mod roll;
mod services;
mod streams;

use std::collections::{BTreeMap, BTreeSet};

use super::Oracle;
use crate::seen::*;

pub(super) const NUMBERS: Numbers = Numbers {
    lease_ttl_ms: 90_000,
    ping_interval_ms: 30_000,
    ack_timeout_ms: 600_000,
    reconnect_grace_ms: 5_000,
    freeze_tolerance_ms: 5_000,
    max_attempts: 3,
};

/// Facts, and what is to be said about them.
pub(super) struct Play {
    oracle: Oracle,
    at: u64,
    epochs: u32,
    here: BTreeSet<String>,
    /// What was last handed out from each place.
    ids: BTreeMap<(String, u64), String>,
}

/// The first process of a session.
pub(super) fn life(slot: u8) -> Life {
    Life { slot: Slot(slot), number: 0 }
}

pub(super) fn nth(slot: u8, number: u32) -> Life {
    Life { slot: Slot(slot), number }
}

/// Sessions 0 and 1 are of one member, 2 and 3 of another.
pub(super) fn member(slot: u8) -> Member {
    Member(slot / 2)
}

pub(super) fn key(slot: u8, id: &str) -> Key {
    Key { member: member(slot), id: id.to_owned() }
}

pub(super) fn letter(to: To, id: &str) -> Letter {
    let body = format!("body of {id}");
    Letter { to, body, lane: Lane::Next, fallback: Fallback::Hold, ttl_ms: None, delay_ms: None }
}

/// A place; what lies there is filled in by the play.
pub(super) fn spot(log: &str, seq: u64) -> Spot {
    Spot { log: log.to_owned(), seq, id: String::new() }
}

pub(super) fn topic(group: Option<&str>) -> Place {
    let group = group.map(str::to_owned);
    Place::Topic { topic: "jobs".into(), group, partition: None, auto: false, prefetch: 2 }
}

/// A message from session 0 as it is handed out.
pub(super) fn handed(place: Place, log: &str, seq: u64, id: &str) -> Handed {
    let (lane, key, body) = (Lane::Next, key(0, id), format!("body of {id}"));
    let spot = Spot { id: format!("id of {id}"), ..spot(log, seq) };
    Handed { place, spot, lane, key, from: Slot(0), body, attempt: 1, redelivered: false }
}

impl Play {
    /// A world with four sessions, of which nobody is here yet.
    pub(super) fn new() -> Play {
        let mut play =
            Play { oracle: Oracle::default(), at: 0, epochs: 0, here: BTreeSet::new(), ids: BTreeMap::new() };
        play.see(Seen::Numbers(NUMBERS));
        for n in 0..4 {
            let (session, member_key) = (format!("s{n}"), format!("m{}", n / 2));
            play.see(Seen::Cast { slot: Slot(n), session, member: member(n), member_key });
        }
        play.see(Seen::BrokerUp(Vec::new()));
        play
    }

    /// A world in which everybody is here.
    pub(super) fn full() -> Play {
        let mut play = Play::new();
        for slot in 0..4 {
            play.enter(life(slot));
        }
        // What happens in one moment is in no order.
        play.at += 1;
        play
    }

    pub(super) fn see(&mut self, mut seen: Seen) -> &mut Play {
        match &mut seen {
            Seen::Handed(_, handed) => {
                let spot = &handed.spot;
                self.ids.insert((spot.log.clone(), spot.seq), spot.id.clone());
            }
            Seen::Settles(_, _, spot, ..) | Seen::Settled(_, _, spot, ..) if spot.id.is_empty() => {
                let id = self.ids.get(&(spot.log.clone(), spot.seq));
                spot.id = id.cloned().unwrap_or_default();
            }
            _ => {}
        }
        self.oracle.see(self.at, &seen);
        self
    }

    /// So much time passes in which everybody who is here gives proof of it.
    pub(super) fn pass(&mut self, ms: u64) -> &mut Play {
        let until = self.at + ms;
        while self.at < until {
            self.at = until.min(self.at + 30_000);
            for session in self.here.clone() {
                if let Some(slot) = session.strip_prefix('s').and_then(|n| n.parse().ok()) {
                    self.see(Seen::Proof(Slot(slot)));
                }
            }
        }
        self
    }

    /// So much time passes in silence.
    pub(super) fn sleep(&mut self, ms: u64) -> &mut Play {
        self.at += ms;
        self
    }

    /// A process comes for the first time.
    pub(super) fn enter(&mut self, life: Life) -> &mut Play {
        self.see(Seen::Born(life));
        self.admit(life, true).attach(life, true)
    }

    pub(super) fn admit(&mut self, life: Life, new: bool) -> &mut Play {
        self.here.insert(format!("s{}", life.slot.0));
        self.see(Seen::Proof(life.slot)).see(Seen::Admitted(life, new, 0))
    }

    /// With a new stream and a snapshot of all who are here.
    pub(super) fn attach(&mut self, life: Life, new: bool) -> &mut Play {
        self.epochs += 1;
        let epoch = (format!("e{}", self.epochs), 1);
        let snapshot = Some((self.here.clone(), true));
        self.see(Seen::Attached { life, kept: !new, complete: false, snapshot, epoch })
    }

    /// Somebody goes without a word.
    pub(super) fn vanish(&mut self, life: Life) -> &mut Play {
        self.here.remove(&format!("s{}", life.slot.0));
        self.see(Seen::Killed(life)).see(Seen::SocketLost(life.slot))
    }

    pub(super) fn sends(&mut self, life: Life, id: &str, letter: Letter) -> &mut Play {
        let key = key(life.slot.0, id);
        self.see(Seen::Sends { life, key, letter, again: false, contradicts: false })
    }

    pub(super) fn accepted(&mut self, life: Life, id: &str, at: Spot, duplicate: bool) -> &mut Play {
        let key = key(life.slot.0, id);
        let outcome = Ok((Spot { id: format!("id of {id}"), ..at }, duplicate));
        self.see(Seen::Answered { life, key, contradicts: false, outcome })
    }

    pub(super) fn refused(&mut self, life: Life, id: &str, code: &str) -> &mut Play {
        let key = key(life.slot.0, id);
        self.see(Seen::Answered { life, key, contradicts: false, outcome: Err(code.to_owned()) })
    }

    /// Session 0 sends to the inbox of session 1, and is told that it is there.
    pub(super) fn mail(&mut self, id: &str, seq: u64) -> &mut Play {
        self.sends(life(0), id, letter(To::Session(Slot(1)), id));
        self.accepted(life(0), id, spot("inbox/s/s1", seq), false)
    }

    /// Session 0 posts to the topic.
    pub(super) fn post(&mut self, id: &str, seq: u64) -> &mut Play {
        self.sends(life(0), id, letter(To::Topic("jobs".into()), id));
        self.accepted(life(0), id, spot("topic/jobs/0", seq), false)
    }

    pub(super) fn subscribe(&mut self, life: Life, place: &Place, start: u64) -> &mut Play {
        self.see(Seen::Subscribes(life, place.clone(), false));
        self.see(Seen::Opened(life, place.clone(), BTreeMap::from([(0, start)])))
    }

    /// A mail of session 1, or of whoever has its inbox.
    pub(super) fn hand_mail(&mut self, to: Life, id: &str, seq: u64) -> &mut Play {
        self.see(Seen::Handed(to, handed(Place::Inbox, "inbox/s/s1", seq, id)))
    }

    pub(super) fn hand_post(&mut self, to: Life, place: &Place, id: &str, seq: u64) -> &mut Play {
        self.see(Seen::Handed(to, handed(place.clone(), "topic/jobs/0", seq, id)))
    }

    pub(super) fn settles(
        &mut self,
        life: Life,
        place: &Place,
        log: &str,
        seq: u64,
        verb: Verb,
    ) -> &mut Play {
        self.see(Seen::Settles(life, place.clone(), spot(log, seq), Lane::Next, verb))
    }

    pub(super) fn settled(
        &mut self,
        life: Life,
        place: &Place,
        log: &str,
        seq: u64,
        verb: Verb,
        outcome: Settled,
    ) -> &mut Play {
        self.see(Seen::Settled(life, place.clone(), spot(log, seq), Lane::Next, verb, outcome))
    }

    pub(super) fn acks(&mut self, life: Life, place: &Place, log: &str, seq: u64) -> &mut Play {
        self.settles(life, place, log, seq, Verb::Ack);
        self.settled(life, place, log, seq, Verb::Ack, Settled::Yes)
    }

    /// Everything is at rest, and these are here.
    pub(super) fn rest(&mut self, alive: &[Life]) -> &mut Play {
        self.see(Seen::Rest { quiet: true, waiting: Vec::new(), alive: alive.to_vec() })
    }

    pub(super) fn fate(&mut self, id: &str, fate: Fate) -> &mut Play {
        self.see(Seen::Fate(key(0, id), Some(format!("id of {id}")), fate))
    }

    /// What the topic's log holds.
    pub(super) fn history(&mut self, entries: &[(u64, &str)]) -> &mut Play {
        self.history_page(1, entries)
    }

    /// What the topic's log holds from there on, as one page of several.
    pub(super) fn history_page(&mut self, from: u64, entries: &[(u64, &str)]) -> &mut Play {
        let entry = |(seq, id): &(u64, &str)| (*seq, format!("id of {id}"), format!("body of {id}"));
        self.see(Seen::History("topic/jobs/0".into(), from, entries.iter().map(entry).collect()))
    }

    /// What was broken, each rule once for every time.
    #[track_caller]
    pub(super) fn breaks(&self, rules: &[&str]) {
        let found: Vec<&str> = self.oracle.violations().iter().map(|v| v.rule).collect();
        assert_eq!(found, rules, "{:#?}", self.oracle.violations());
    }

    #[track_caller]
    pub(super) fn holds(&self) {
        self.breaks(&[]);
    }
}
