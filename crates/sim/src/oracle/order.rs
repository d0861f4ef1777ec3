//! Order: first deliveries of a lane or partition come as they were written, to each process; and what came back to
//! an inbox goes before what was sent after that.
//!
//! Not judged: what was given back, delayed or handed to somebody before; what a clock that
//! jumped may have let expire and a start with another clock has not; competing readers after a crash, whose
//! claims are taken up in any order; and a process that once had so much in hand that its SDK turned entries away.

use std::collections::BTreeMap;

use crate::seen::{Handed, Key, Lane, Life, Place, Seen, Settled, Slot, Spot, Verb};

use super::hands::Hands;
use super::letters::Letters;
use super::trail::Reader;
use super::tray::{TrayName, is_auto, is_crew, tray_name};
use super::world::World;
use super::{Court, who};

/// The last first delivery of each process, and what is to come back first.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// By place and log.
    last: BTreeMap<TrayName, BTreeMap<String, u64>>,
    /// Entries that were given back to an inbox at once.
    back: BTreeMap<(Slot, Lane), BTreeMap<u64, Back>>,
    /// How often each process has given back an entry of its inbox without knowing yet what became of that.
    asked: BTreeMap<(Life, Lane, /* the broker's id */ String), u32>,
    /// How often the processes of a session have asked for something else of an entry of its inbox, without an answer that says
    /// what became of that.
    otherwise: BTreeMap<(Slot, Lane, /* the broker's id */ String), u32>,
    /// How often the store had gone back when each process was last attached, and in which run that was: what it heard of
    /// before is of another history, or from a broker that may have forgotten it.
    attached: BTreeMap<Life, (usize, u64)>,
}

/// An entry that was given back.
#[derive(Debug)]
struct Back {
    key: Key,
    id: String,
    /// Since when it is certain that the broker has it.
    since: Option<u64>,
}

/// Whether what comes through a place after a crash of the broker comes after all that came before. What was written to
/// a socket that nobody read from any more comes again, if it comes, after others.
fn outlasts_a_crash(place: &Place) -> bool {
    !is_crew(place) && *place != Place::MemberInbox && !is_auto(place)
}

impl Order {
    pub(super) fn see(
        &mut self,
        seen: &Seen,
        hands: &Hands,
        letters: &Letters,
        world: &World,
        court: &mut Court,
    ) {
        match seen {
            Seen::Handed(life, handed) => {
                self.handed(*life, handed, hands, letters, world, court);
                if handed.place == Place::Inbox {
                    self.check_back(*life, handed, hands, letters, world, court);
                }
            }
            Seen::SubEnded(life, place, _) => _ = self.last.remove(&tray_name(*life, place, Lane::Now)),
            Seen::Settles(life, Place::Inbox, spot, lane, Verb::Retry(0)) => {
                *self.asked.entry((*life, *lane, spot.id.clone())).or_default() += 1;
                if let Some(key) = hands.key_of(*life, &Place::Inbox, spot, *lane) {
                    let back = Back { key: key.clone(), id: spot.id.clone(), since: None };
                    self.back.entry((life.slot, *lane)).or_default().insert(spot.seq, back);
                }
            }
            // Unless it came again before this was known.
            Seen::Settled(life, Place::Inbox, spot, lane, Verb::Retry(0), outcome) => {
                let asked = self.asked.entry((*life, *lane, spot.id.clone())).or_default();
                *asked = asked.saturating_sub(1);
                if *asked > 0 {
                    return;
                }
                let Some(back) = self.back.get_mut(&(life.slot, *lane)) else { return };
                match back.get_mut(&spot.seq) {
                    Some(back) if back.id != spot.id => {}
                    Some(back) if *outcome == Settled::Yes => back.since = Some(world.now),
                    _ => _ = back.remove(&spot.seq),
                }
            }
            Seen::Settles(_, Place::Inbox, _, _, Verb::Progress)
            | Seen::Settled(_, Place::Inbox, _, _, Verb::Progress, _)
            // Nobody knows whether the broker has heard it.
            | Seen::Settled(_, Place::Inbox, _, _, _, Settled::Over) => {}
            Seen::Settles(life, Place::Inbox, spot, lane, _) => {
                *self.otherwise.entry((life.slot, *lane, spot.id.clone())).or_default() += 1;
            }
            Seen::Settled(life, Place::Inbox, spot, lane, _, outcome) => {
                self.otherwise_answered(life.slot, *lane, spot, outcome);
            }
            Seen::BrokerDown(_) => self.last.retain(|(_, place, _), _| outlasts_a_crash(place)),
            Seen::Rewound { .. } => self.back.clear(),
            Seen::Attached { life, kept, .. } => {
                let (rewinds, run) = (world.being(*life).rewinds, world.broker.run);
                let before = self.attached.insert(*life, (rewinds, run)).unwrap_or((rewinds, run));
                let stays = |place: &Place| match before {
                    (then, _) if then != rewinds => false,
                    // What was still on its way when the broker went down came after that.
                    (_, then) if then != run => outlasts_a_crash(place),
                    _ => *kept || !is_auto(place),
                };
                self.last.retain(|(other, place, _), _| other != life || stays(place));
            }
            Seen::Killed(life) | Seen::Ended(life, _) => {
                self.last.retain(|(other, ..), _| other != life);
                self.asked.retain(|(other, ..), _| other != life);
            }
            _ => {}
        }
    }

    /// It is known what became of something else than giving back at once: if that counts, the entry is not back.
    fn otherwise_answered(&mut self, slot: Slot, lane: Lane, spot: &Spot, outcome: &Settled) {
        let entry = (slot, lane, spot.id.clone());
        if let Some(asked) = self.otherwise.get_mut(&entry) {
            *asked = asked.saturating_sub(1);
            if *asked == 0 {
                self.otherwise.remove(&entry);
            }
        }
        if *outcome == Settled::Yes
            && let Some(back) = self.back.get_mut(&(slot, lane))
            && back.get(&spot.seq).is_some_and(|back| back.id == spot.id)
        {
            back.remove(&spot.seq);
        }
    }

    fn handed(
        &mut self,
        life: Life,
        handed: &Handed,
        hands: &Hands,
        letters: &Letters,
        world: &World,
        court: &mut Court,
    ) {
        let Handed { place, spot, lane, key, attempt, .. } = handed;
        let name = tray_name(life, place, *lane);
        let mortal =
            letters.get(key).is_none_or(|record| record.may_be(&spot.id, |letter| letter.ttl_ms.is_some()));
        if mortal && world.broker.clock_jumped {
            return;
        }
        let delayed =
            letters.get(key).is_none_or(|record| record.may_be(&spot.id, |letter| letter.delay_ms.is_some()));
        let before = hands.trails.get(&spot.id, &Reader::of(life, place)).is_some();
        if delayed || before || *attempt > 1 || hands.is_crowded(&name) {
            return;
        }
        let last = self.last.entry(name).or_default().insert(spot.log.clone(), spot.seq);
        if let Some(last) = last
            && last >= spot.seq
        {
            let text =
                format!("{} was handed {} {} ({}) after {last}", who(life), spot.log, spot.seq, key.id);
            court.accuse("order", text);
        }
    }

    /// What was sent after an entry had come back is newer than it, whatever was on its way. What may have died,
    /// expired or moved on since is not waited for, nor what the process itself still has in hand.
    fn check_back(
        &mut self,
        life: Life,
        handed: &Handed,
        hands: &Hands,
        letters: &Letters,
        world: &World,
        court: &mut Court,
    ) {
        let Some(back) = self.back.get_mut(&(life.slot, handed.lane)) else { return };
        back.remove(&handed.spot.seq);
        let sent_at = letters.sent_at(&handed.key);
        let waits = |back: &Back| {
            let Some(since) = back.since.filter(|since| *since < sent_at) else { return false };
            let mortal = letters
                .get(&back.key)
                .is_none_or(|record| record.may_be(&back.id, |letter| letter.ttl_ms.is_some()));
            let retries = hands.trails.inbox(&back.id).map_or(u32::MAX, |trail| trail.retries);
            let worn_out = retries >= world.broker.max_attempts;
            // Another process of the session may have settled it, or put it off: then giving it back comes to nothing.
            let gone = hands.is_settled(&back.id)
                || self.otherwise.contains_key(&(life.slot, handed.lane, back.id.clone()));
            // It kept it when it came back, whatever another process had done with it meanwhile.
            let kept = hands.of(life).any(|(_, id)| *id == back.id);
            !mortal && !worn_out && !gone && !kept && !world.may_have_ended_since(life.slot, since)
        };
        let found = back.iter().find(|(seq, back)| **seq < handed.spot.seq && waits(back));
        if let Some(seq) = found.map(|(seq, _)| *seq) {
            let text = format!(
                "{} was handed {} {} before {seq}, which had come back before that was sent",
                who(life),
                handed.spot.log,
                handed.spot.seq
            );
            court.accuse("order", text);
            back.remove(&seq);
        }
    }
}
