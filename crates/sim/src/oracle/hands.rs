//! Hands: what applications have in them. Nobody gets twice what it has or has done with, nobody more than it may
//! have at once, and nobody what is in somebody else's hand.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use crate::seen::{Handed, Key, Lane, Life, Place, Seen, Settled, Spot, Verb};

use super::broker::Sight;
use super::letters::{Letters, Record};
use super::readers::words;
use super::session::SLACK_MS;
use super::trail::{Reader, Trails};
use super::tray::{
    At, Hand, State, Tray, TrayName, at, first_of, is_auto, is_crew, is_private, lane_of, prefetch, tray_name,
};
use super::world::World;
use super::{Court, who};

/// An entry for all that compete for it.
type Common = (Reader, Lane, At);

/// What applications have in hand, and did with it.
#[derive(Debug, Default)]
pub(super) struct Hands {
    trays: BTreeMap<TrayName, Tray>,
    /// Which process of those that compete has an entry.
    holders: BTreeMap<Common, Life>,
    /// Entries of crews that are settled for good: by whom, and at which attempt.
    settled: BTreeMap<Common, (Life, /* attempt */ u32, Sight)>,
    /// The same of inboxes, by the broker's id.
    settled_letters: BTreeMap<String, (Life, Sight)>,
    /// Trays that once held more than they should: an SDK may have turned entries away.
    crowded: BTreeSet<TrayName>,
    pub(super) trails: Trails,
}

fn common(life: Life, place: &Place, spot: &Spot, lane: Lane) -> Common {
    (Reader::of(life, place), lane_of(place, lane), at(spot))
}

/// Whether the socket of a process is younger than `at`: what it brings was pushed after that.
fn is_younger(life: Life, at: u64, world: &World) -> bool {
    world.being(life).admitted_at > at
}

/// Whether a rewind may have undone that an entry was buried. Then it may be given back, and its next attempt is to an SDK
/// one that somebody fetched from the dead letters. The first of several rewinds may have brought it back as its first attempt:
/// then the SDK gave that up by itself, and remembers no other.
fn may_be_unburied(hand: &Hand, handed: &Handed, world: &World) -> bool {
    hand.buried.is_some_and(|sight| {
        let known = if world.broker.rewinds_since(sight.at) > 1 { 1 } else { hand.attempt };
        handed.attempt > known && !world.broker.keeps(sight)
    })
}

impl Hands {
    pub(super) fn is_crowded(&self, tray: &TrayName) -> bool {
        self.crowded.contains(tray)
    }

    /// Whether a process has as much in hand there as it may.
    pub(super) fn is_full(&self, tray: &TrayName) -> bool {
        self.trays.get(tray).is_some_and(|held| held.len() >= prefetch(&tray.1))
    }

    /// The letters that a process has in hand, or waits for the settling of, by the broker's id.
    pub(super) fn of(&self, life: Life) -> impl Iterator<Item = (&Place, &String)> {
        self.trays_of(life).flat_map(|(name, tray)| {
            let open = tray.entries().filter(|(_, hand)| hand.state() != State::Done);
            open.map(|((.., id), _)| (&name.1, id))
        })
    }

    /// The letter that a process was handed there.
    pub(super) fn key_of(&self, life: Life, place: &Place, spot: &Spot, lane: Lane) -> Option<&Key> {
        Some(&self.trays.get(&tray_name(life, place, lane))?.get(&at(spot))?.key)
    }

    /// Whether a letter to an inbox is settled for good.
    pub(super) fn is_settled(&self, id: &str) -> bool {
        self.settled_letters.contains_key(id)
    }

    fn trays_of(&self, life: Life) -> impl Iterator<Item = (&TrayName, &Tray)> {
        self.trays.range(first_of(life)..).take_while(move |((other, ..), _)| *other == life)
    }

    pub(super) fn see(&mut self, seen: &Seen, letters: &Letters, world: &World, court: &mut Court) {
        match seen {
            Seen::Handed(life, handed) => self.handed(*life, handed, letters, world, court),
            Seen::Settles(life, place, spot, lane, verb) => {
                self.settles(*life, place, spot, *lane, *verb, world);
            }
            Seen::Settled(life, place, spot, lane, verb, outcome) => {
                self.answered(*life, place, spot, *lane, *verb, outcome, world);
            }
            Seen::Unsubscribes(life, place) => self.leave(*life, place, false),
            Seen::SubEnded(life, place, _) => self.leave(*life, place, true),
            Seen::Gap(life, place, Some(partition), (from, to)) => {
                self.gone(*life, place, *partition, *from..=*to);
            }
            // What a process had in hand is claimed until its session loses it; what it remembered is gone.
            Seen::Killed(life) | Seen::Ended(life, _) => self.forget(*life),
            _ => {}
        }
    }

    fn handed(&mut self, life: Life, handed: &Handed, letters: &Letters, world: &World, court: &mut Court) {
        let Handed { place, spot, lane, key, attempt, .. } = handed;
        if *attempt == 0 {
            court.accuse("attempts", format!("{} was handed {} as attempt 0", who(life), key.id));
        }
        let reader = Reader::of(life, place);
        if *attempt > 1 && *place == Place::Inbox && self.trails.get(&spot.id, &reader).is_none() {
            self.check_unread(life, handed, letters, world, court);
        }
        self.trails.handed(&spot.id, reader, world.now);
        if is_auto(place) {
            return;
        }
        let sent_at = letters.sent_at(key);
        if self.check_once(life, handed, world, court) && world.is_current(life) {
            self.check_settled(life, handed, world, court);
            self.check_stolen(life, handed, world, court);
        }
        let name = tray_name(life, place, *lane);
        let hand = Hand::new(key, world.now, *attempt, sent_at.max(world.being(life).admitted_at));
        let tray = self.trays.entry(name.clone()).or_default();
        tray.put(at(spot), hand);
        let held = tray.len();
        if held > prefetch(place) {
            self.check_credit(&name, letters, world, court);
            self.crowded.insert(name);
        }
        if !is_private(place) {
            self.holders.insert(common(life, place, spot, *lane), life);
        }
    }

    /// Within one process an entry is handed out once while it is in hand or done with. Says whether that is so.
    fn check_once(&self, life: Life, handed: &Handed, world: &World, court: &mut Court) -> bool {
        let Handed { place, spot, lane, key, .. } = handed;
        let name = tray_name(life, place, *lane);
        let Some(hand) = self.trays.get(&name).and_then(|tray| tray.get(&at(spot))) else { return true };
        let before = match hand.state() {
            State::Held if self.may_be_lost(&name, hand, world) => return true,
            State::Done if may_be_unburied(hand, handed, world) => return true,
            State::Asked(Verb::Retry(_) | Verb::Dead | Verb::Progress) => return true,
            State::Held => "has it in hand",
            State::Asked(Verb::Ack) => "has acked it",
            State::Done => "is done with it, and was told so",
        };
        let text = format!(
            "{} was handed {} ({} {}) again while it {before}, through {}",
            who(life),
            key.id,
            spot.log,
            spot.seq,
            words(place)
        );
        court.accuse("doubled", text);
        false
    }

    /// Whether an SDK may have learnt that an entry is not its any more, of which applications are not told.
    fn may_be_lost(&self, (life, place, _): &TrayName, hand: &Hand, world: &World) -> bool {
        let fresh = world.being(*life).fresh_at.is_some_and(|fresh| fresh >= hand.at);
        let late = is_crew(place) && world.now + SLACK_MS >= hand.pushed_after + world.broker.ack_timeout_ms;
        let taken = match place {
            Place::Topic { group: Some(_), .. } => world.may_have_lost_since(life.slot, hand.pushed_after),
            _ => world.may_have_ended_since(life.slot, hand.pushed_after),
        };
        // Another process with the same key ends what this one reads, and may settle what it has.
        let session = world.session(life.slot);
        let replaced = session.and_then(|session| session.replaced_at).is_some_and(|at| at >= hand.at);
        fresh || late || taken || replaced
    }

    /// What is settled stays settled, for everybody.
    fn check_settled(&self, life: Life, handed: &Handed, world: &World, court: &mut Court) {
        let Handed { place, spot, lane, key, .. } = handed;
        let by = match place {
            Place::Inbox | Place::MemberInbox => {
                let settled = self.settled_letters.get(&spot.id);
                settled.filter(|(_, sight)| world.broker.keeps(*sight)).map(|(by, _)| by)
            }
            // Who was too slow may find an earlier attempt in its socket when it wakes, if that is as old.
            _ => {
                let settled = self.settled.get(&common(life, place, spot, *lane));
                let counts = |(_, attempt, sight): &&(Life, u32, Sight)| {
                    let later = handed.attempt >= *attempt || is_younger(life, sight.at, world);
                    later && world.broker.keeps(*sight)
                };
                settled.filter(counts).map(|(by, ..)| by)
            }
        };
        if let Some(by) = by {
            let text = format!(
                "{} was handed {} ({} {}) after {} had settled it and was told so",
                who(life),
                key.id,
                spot.log,
                spot.seq,
                who(*by)
            );
            court.accuse("doubled", text);
        }
    }

    /// Nobody gets what is in another session's hand.
    fn check_stolen(&self, life: Life, handed: &Handed, world: &World, court: &mut Court) {
        let Handed { place, spot, lane, key, .. } = handed;
        let Some(holder) = self.holders.get(&common(life, place, spot, *lane)) else { return };
        if holder.slot == life.slot {
            return;
        }
        let found = self.trays_of(*holder).find_map(|(name, tray)| {
            let same = Reader::of(*holder, &name.1) == Reader::of(life, place);
            tray.get(&at(spot)).filter(|_| same).map(|hand| (name, hand))
        });
        let Some((name, hand)) = found else { return };
        // An earlier hand-out that was long on its way is not taken from who has it since.
        let earlier = handed.attempt < hand.attempt && !is_younger(life, hand.at, world);
        if earlier || hand.state() != State::Held || self.may_be_lost(name, hand, world) {
            return;
        }
        let text = format!(
            "{} was handed {} ({} {}), which {} has had in hand since {} ms",
            who(life),
            key.id,
            spot.log,
            spot.seq,
            who(*holder),
            hand.at
        );
        court.accuse("stolen", text);
    }

    /// At most a prefetch is in hand at once, not counting what the broker may have taken back.
    fn check_credit(&self, name: &TrayName, letters: &Letters, world: &World, court: &mut Court) {
        let Some(tray) = self.trays.get(name) else { return };
        let (life, place, _) = name;
        let attached = world.being(*life).attached.unwrap_or(world.now);
        let counts = |(at, hand): &(&At, &Hand)| {
            let sent_at = letters.sent_at(&hand.key);
            let age = world.now.saturating_sub(sent_at);
            let timed_out = is_crew(place) && age + SLACK_MS >= world.broker.ack_timeout_ms;
            // What a topic had no room for is not there any more; a start cannot prove that who has it in hand was handed it,
            // and takes it back.
            let restarted = world.broker.down_at.is_some_and(|down| down >= hand.pushed_after);
            let capped = world.broker.forgets.is_some_and(|(_, unread)| unread);
            // Nor is what expired before its reader came back to a broker that did not know it was handed out.
            let over = |ttl: u64| world.broker.clock_jumped || sent_at + ttl <= attached + SLACK_MS;
            let mortal = |record: &Record| record.may_be(&at.2, |letter| letter.ttl_ms.is_some_and(over));
            let expired = is_private(place) && letters.get(&hand.key).is_some_and(mortal);
            let dropped = restarted && (matches!(place, Place::Topic { .. }) && capped || expired);
            !timed_out && !dropped && !self.may_be_lost(name, hand, world)
        };
        let held = tray.entries().filter(|(_, hand)| hand.state() == State::Held);
        let (held, may) = (held.filter(counts).count(), prefetch(place));
        if held > may {
            let text =
                format!("{} has {held} in hand through {}, and may have {may}", who(*life), words(place));
            court.accuse("credit", text);
        }
    }

    /// What was never read comes again under the same attempt: only the end of a lease gives it back.
    fn check_unread(&self, life: Life, handed: &Handed, letters: &Letters, world: &World, court: &mut Court) {
        let Handed { key, attempt, .. } = handed;
        if world.is_current(life) && !world.may_have_ended_since(life.slot, letters.sent_at(key)) {
            let text =
                format!("{} was handed {} as attempt {attempt}, and nobody had it before", who(life), key.id);
            court.accuse("attempts", text);
        }
    }

    fn settles(&mut self, life: Life, place: &Place, spot: &Spot, lane: Lane, verb: Verb, world: &World) {
        let Some(tray) = self.trays.get_mut(&tray_name(life, place, lane)) else { return };
        let at = at(spot);
        let Some(hand) = tray.get_mut(&at).filter(|hand| hand.state() == State::Held) else {
            // An SDK takes the first word only.
            return;
        };
        if verb == Verb::Progress {
            hand.progresses(world.now);
            return;
        }
        self.trails.settles(&spot.id, &Reader::of(life, place), verb, world.now);
        tray.turn(&at, State::Asked(verb));
        self.let_go(life, &common(life, place, spot, lane));
    }

    #[allow(clippy::too_many_arguments)]
    fn answered(
        &mut self,
        life: Life,
        place: &Place,
        spot: &Spot,
        lane: Lane,
        verb: Verb,
        outcome: &Settled,
        world: &World,
    ) {
        let Some(tray) = self.trays.get_mut(&tray_name(life, place, lane)) else { return };
        let at = at(spot);
        let Some(hand) = tray.get_mut(&at) else { return };
        if verb == Verb::Progress && !hand.progress_answered() {
            // It was about an earlier hand-out, and this one is another.
            return;
        }
        match (verb, hand.state(), outcome) {
            (_, State::Done, _) | (Verb::Progress, _, Settled::Refused(_)) => {}
            (Verb::Progress, _, Settled::Yes) => hand.pushed_after = hand.pushed_after.max(hand.progress_at),
            (Verb::Progress, ..) => tray.remove(&at),
            (Verb::Ack | Verb::Dead, State::Asked(asked), Settled::Yes) if asked == verb => {
                let (attempt, sight) = (hand.attempt, world.sight(life));
                hand.buried = (verb == Verb::Dead).then_some(sight);
                tray.turn(&at, State::Done);
                self.trails.done(&spot.id, &Reader::of(life, place), world.now);
                if is_crew(place) {
                    self.settled.insert(common(life, place, spot, lane), (life, attempt, sight));
                } else if !is_private(place) {
                    self.settled_letters.insert(spot.id.clone(), (life, sight));
                }
            }
            (_, State::Asked(asked), _) if asked == verb => tray.remove(&at),
            // An answer to a later word about an entry that was settled before.
            _ => {}
        }
    }

    /// A lone reader is told that entries are gone: what it has in hand of them is not lent to it any more.
    fn gone(&mut self, life: Life, place: &Place, partition: u32, seqs: RangeInclusive<u64>) {
        let Place::Topic { topic, group: None, .. } = place else { return };
        let log = format!("topic/{topic}/{partition}");
        let Some(tray) = self.trays.get_mut(&tray_name(life, place, Lane::Now)) else { return };
        let is_gone =
            |(at, hand): &(&At, &Hand)| at.0 == log && seqs.contains(&at.1) && hand.state() == State::Held;
        let gone: Vec<At> = tray.entries().filter(is_gone).map(|(at, _)| at.clone()).collect();
        gone.iter().for_each(|at| tray.remove(at));
    }

    fn let_go(&mut self, life: Life, entry: &Common) {
        if self.holders.get(entry) == Some(&life) {
            self.holders.remove(entry);
        }
    }

    /// A subscription is being left, or is over: what it had in hand goes back, and with its end it is forgotten.
    fn leave(&mut self, life: Life, place: &Place, over: bool) {
        for lane in [Lane::Now, Lane::Next, Lane::Low] {
            let name = (life, place.clone(), lane);
            let Some(tray) = self.trays.get(&name) else { continue };
            for (at, _) in tray.entries() {
                let entry = (Reader::of(life, place), lane, at.clone());
                if self.holders.get(&entry) == Some(&life) {
                    self.holders.remove(&entry);
                }
            }
            if over {
                self.trays.remove(&name);
                self.crowded.remove(&name);
            }
        }
    }

    fn forget(&mut self, life: Life) {
        self.crowded.retain(|(other, ..)| *other != life);
    }
}
