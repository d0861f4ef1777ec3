//! Silence: whatever an application asks for is answered once, and nothing follows an end.

use std::collections::{BTreeMap, BTreeSet};

use crate::seen::{Key, Life, Seen, Settled, Verb};

use super::world::{Gone, World};
use super::{Court, who};

/// Every code of the protocol.
const CODES: [&str; 28] = [
    "bad_request",
    "unknown_method",
    "unauthorized",
    "forbidden",
    "protocol_mismatch",
    "not_found",
    "too_large",
    "rate_limited",
    "busy",
    "unavailable",
    "draining",
    "idempotency_key_reused",
    "no_such_session",
    "lease_expired",
    "name_taken",
    "name_rejected",
    "ttl_out_of_bounds",
    "banned",
    "stale_delivery",
    "seq_gap",
    "session_contested",
    "not_owner",
    "conflict",
    "expired",
    "feature_unavailable",
    "feature_param_invalid",
    "feature_param_below_floor",
    "internal",
];
/// Refusals that pass: an SDK waits them out.
const PASSING: [&str; 4] = ["unavailable", "busy", "rate_limited", "draining"];

/// What an answer is awaited for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Asked {
    Send(Key, /* contradicts */ bool),
    Settle(/* log */ String, u64, /* lane and verb, in words */ String),
}

/// What is awaited: how many answers, and since when.
#[derive(Debug)]
struct Awaited {
    count: u32,
    since: u64,
}

/// What every process waits for.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// Local sessions of daemons: they do not wait a refusal out within one request, but send again.
    desks: BTreeSet<Life>,
    awaited: BTreeMap<Life, BTreeMap<Asked, Awaited>>,
}

impl Requests {
    pub(super) fn see(&mut self, seen: &Seen, world: &World, court: &mut Court) {
        if let Some(life) = told(seen) {
            self.after_the_end(life, seen, world, court);
        }
        match seen {
            Seen::Desk(life) => _ = self.desks.insert(*life),
            Seen::Sends { life, key, contradicts, .. } => {
                self.ask(*life, Asked::Send(key.clone(), *contradicts), world.now);
            }
            Seen::Answered { life, key, contradicts, outcome } => {
                let since = self.answer(*life, Asked::Send(key.clone(), *contradicts), court);
                if let Err(code) = outcome {
                    check_code(*life, &format!("the send of {}", key.id), code, court);
                    if !self.desks.contains(life) {
                        Requests::check_patience(*life, key, code, since, world, court);
                    }
                }
            }
            Seen::Settles(life, _, spot, lane, verb) => {
                let asked = settle(&spot.log, spot.seq, &format!("{lane:?}"), *verb);
                self.ask(*life, asked, world.now);
            }
            Seen::Settled(life, _, spot, lane, verb, outcome) => {
                self.answer(*life, settle(&spot.log, spot.seq, &format!("{lane:?}"), *verb), court);
                if let Settled::Refused(code) = outcome {
                    check_code(*life, &format!("settling {} {}", spot.log, spot.seq), code, court);
                }
            }
            Seen::Receipt { life, key, outcome: Err(code) } => {
                check_code(*life, &format!("the receipt of {}", key.id), code, court);
            }
            Seen::Killed(life) => _ = self.awaited.remove(life),
            Seen::Ended(life, why) => self.ended(*life, why, court),
            _ => {}
        }
    }

    /// At the end nobody waits who is still there.
    pub(super) fn judge(&self, world: &World, court: &mut Court) {
        for (life, awaited) in &self.awaited {
            if world.being(*life).gone.is_none() {
                for (asked, awaited) in awaited {
                    let text = format!(
                        "{} never got an answer to {} of {} ms",
                        who(*life),
                        words(asked),
                        awaited.since
                    );
                    court.accuse("silence", text);
                }
            }
        }
    }

    fn ask(&mut self, life: Life, asked: Asked, now: u64) {
        let awaited = self.awaited.entry(life).or_default();
        awaited.entry(asked).or_insert(Awaited { count: 0, since: now }).count += 1;
    }

    /// Says since when it was waited for.
    fn answer(&mut self, life: Life, asked: Asked, court: &mut Court) -> Option<u64> {
        let open = self.awaited.entry(life).or_default();
        let Some(awaited) = open.get_mut(&asked) else {
            let text = format!("{} was answered {}, for which it did not wait", who(life), words(&asked));
            court.accuse("silence", text);
            return None;
        };
        let since = awaited.since;
        awaited.count -= 1;
        if awaited.count == 0 {
            open.remove(&asked);
        }
        Some(since)
    }

    /// Everything is answered before the end is told.
    fn ended(&mut self, life: Life, why: &str, court: &mut Court) {
        for asked in self.awaited.remove(&life).unwrap_or_default().keys() {
            let text = format!("{} ended ({why}) without an answer to {}", who(life), words(asked));
            court.accuse("silence", text);
        }
    }

    fn after_the_end(&self, life: Life, seen: &Seen, world: &World, court: &mut Court) {
        // The world has heard of this fact already: an end is only noticed by a second one.
        let text = match (world.being(life).gone, seen) {
            (None, _) => return,
            (Some(Gone::Ended), Seen::Ended(..)) if !world.ended_twice(life) => return,
            (Some(Gone::Ended), _) => format!("{} heard something after its end: {seen:?}", who(life)),
            (Some(Gone::Killed), _) => format!("{} heard something after it was killed: {seen:?}", who(life)),
        };
        court.accuse("silence", text);
    }

    /// A refusal that passes is waited out, unless something was in the way: that is only sure when all faults are
    /// over and one socket carried it all the time.
    fn check_patience(
        life: Life,
        key: &Key,
        code: &str,
        since: Option<u64>,
        world: &World,
        court: &mut Court,
    ) {
        let (Some(over), Some(since)) = (world.faults_over, since) else { return };
        let calm = since > over && world.being(life).attached.is_some_and(|attached| attached < since);
        if calm && world.broker.up && !world.broker.trouble && PASSING.contains(&code) {
            let text = format!("{} was told {code} for {}, and nothing was in the way", who(life), key.id);
            court.accuse("silence", text);
        }
    }
}

fn settle(log: &str, seq: u64, lane: &str, verb: Verb) -> Asked {
    Asked::Settle(log.to_owned(), seq, format!("{lane} {verb:?}"))
}

fn words(asked: &Asked) -> String {
    match asked {
        Asked::Send(key, false) => format!("the send of {}", key.id),
        Asked::Send(key, true) => format!("the contradicting send of {}", key.id),
        Asked::Settle(log, seq, how) => format!("the settling ({how}) of {log} {seq}"),
    }
}

pub(super) fn check_code(life: Life, what: &str, code: &str, court: &mut Court) {
    if !CODES.contains(&code) {
        court.accuse("code", format!("{what} of {} was refused with no known code: {code}", who(life)));
    } else if code == "internal" {
        court.accuse(
            "code",
            format!("{what} of {} was refused with internal: a bug of the broker", who(life)),
        );
    }
}

/// Whom the SDK tells something by a fact.
fn told(seen: &Seen) -> Option<Life> {
    match seen {
        Seen::Attached { life, .. }
        | Seen::Answered { life, .. }
        | Seen::Receipt { life, .. }
        | Seen::Service { life, .. }
        | Seen::Presence { life, .. } => Some(*life),
        Seen::Detached(life)
        | Seen::Ended(life, _)
        | Seen::Opened(life, ..)
        | Seen::SubEnded(life, ..)
        | Seen::Gap(life, ..)
        | Seen::Handed(life, _)
        | Seen::Settled(life, ..)
        | Seen::StatusTaken(life, _)
        | Seen::OfferJudged(life, ..)
        | Seen::Inquired(life, ..)
        | Seen::HistoryRewound(life, _)
        | Seen::Event(life, ..) => Some(*life),
        _ => None,
    }
}
