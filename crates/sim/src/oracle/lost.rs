//! The last look: what was accepted is somewhere, and whoever is there to read it has it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use crate::seen::{Fallback, Fate, Key, Life, Place, Seen, To};

use super::fate::Fates;
use super::hands::Hands;
use super::letters::{Letters, Message, Record, partition_of};
use super::readers::Readers;
use super::session::SLACK_MS;
use super::timing::{Timing, may_have_expired};
use super::trail::Reader;
use super::tray::tray_name;
use super::world::World;
use super::{Court, who};

/// How long after its time something may still be on its way to somebody.
const MARGIN_MS: u64 = 10_000;

/// What is found when nothing is under way any more.
#[derive(Debug, Default)]
pub(super) struct LastLook {
    /// Everything in the logs of topics: id and body by seq.
    histories: BTreeMap<String, BTreeMap<u64, (String, String)>>,
    /// Where the pages began in which they were read.
    pages: BTreeMap<String, BTreeSet<u64>>,
    /// What readers were told is gone.
    gaps: Vec<Told>,
    /// When who last began to read through what; one that begins anew has had nothing.
    began: BTreeMap<(Life, Place), u64>,
    /// When the store last went back.
    rewound_at: u64,
    quiet: bool,
    alive: Vec<Life>,
}

/// Everything that is known when it is over.
struct End<'a> {
    letters: &'a Letters,
    hands: &'a Hands,
    readers: &'a Readers,
    fates: &'a Fates,
    timing: &'a Timing,
    world: &'a World,
    look: &'a LastLook,
    /// What those who are here have in hand, by the broker's id.
    in_hand: BTreeSet<(Reader, &'a String)>,
}

/// A message in a log.
#[derive(Clone, Copy)]
struct Entry<'a> {
    seq: u64,
    key: &'a Key,
    record: &'a Record,
    message: &'a Message,
}

/// A reader was told that entries of a log are gone.
#[derive(Debug)]
struct Told {
    life: Life,
    place: Place,
    log: String,
    from: u64,
    to: u64,
    /// From when its subscription began until it was told.
    within: RangeInclusive<u64>,
}

impl LastLook {
    pub(super) fn see(&mut self, at: u64, seen: &Seen, world: &World) {
        match seen {
            // What was gone before is not what is there now.
            Seen::Rewound { .. } => {
                self.gaps.clear();
                self.rewound_at = at;
            }
            Seen::Gap(life, ..) if !world.broker.rewinds.is_empty() && !world.is_current(*life) => {}
            Seen::Rest { quiet, alive, .. } => (self.quiet, self.alive) = (*quiet, alive.clone()),
            Seen::Gap(life, place @ Place::Topic { topic, .. }, partition, (from, to)) => {
                let log = format!("topic/{topic}/{}", partition.unwrap_or_default());
                // What it did before a rewind it cannot tell by its number.
                let since =
                    self.began.get(&(*life, place.clone())).copied().unwrap_or(0).max(self.rewound_at);
                let (life, place, from, to) = (*life, place.clone(), *from, *to);
                self.gaps.push(Told { life, place, log, from, to, within: since..=at });
            }
            Seen::Subscribes(life, place, _) => _ = self.began.insert((*life, place.clone()), at),
            Seen::History(log, from, entries) => {
                self.pages.entry(log.clone()).or_default().insert(*from);
                let entries = entries.iter().map(|(seq, id, body)| (*seq, (id.clone(), body.clone())));
                self.histories.entry(log.clone()).or_default().extend(entries);
            }
            _ => {}
        }
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn judge(
        &self,
        letters: &Letters,
        hands: &Hands,
        readers: &Readers,
        fates: &Fates,
        timing: &Timing,
        world: &World,
        court: &mut Court,
    ) {
        let of = |life: &Life| {
            let life = *life;
            hands.of(life).map(move |(place, id)| (Reader::of(life, place), id))
        };
        let in_hand = self.alive.iter().flat_map(of).collect();
        let end = End { letters, hands, readers, fates, timing, world, look: self, in_hand };
        for (key, record) in letters.iter() {
            end.judge_letter(key, record, court);
        }
        end.judge_gaps(court);
        if self.quiet {
            end.judge_crews(court);
            end.judge_private(court);
        }
    }
}

impl LastLook {
    /// The first entry of the page that `seq` belongs on. Pages are read one after the other, and the log forgets meanwhile.
    fn first_beside(&self, log: &str, seq: u64) -> Option<u64> {
        let (history, pages) = (self.histories.get(log)?, self.pages.get(log)?);
        let start = pages.range(..=seq).next_back().copied().unwrap_or(0);
        let end = pages.range(seq + 1..).next().copied().unwrap_or(u64::MAX);
        history.range(start..end).next().map(|(first, _)| *first)
    }
}

impl End<'_> {
    fn judge_letter(&self, key: &Key, record: &Record, court: &mut Court) {
        let Some(message) = record.promised(self.world) else { return };
        if self.fates.get(key) == Some(Fate::Unknown) {
            let text = format!("{} was accepted as {}, and nobody knows it any more", key.id, message.id);
            return court.accuse("lost", text);
        }
        if !matches!(record.letter.to, To::Topic(_)) {
            return self.judge_inbox(key, record, message, court);
        }
        for (log, seq) in message.spots() {
            let Some(history) = self.look.histories.get(log) else { continue };
            let found = history.get(&seq);
            let same = found.is_some_and(|(id, body)| *id == message.id && *body == record.letter.body);
            let expired = found.is_none() && may_have_expired(key, &message.id, self.letters, self.world);
            if !same && !expired && !self.may_be_forgotten(log, seq, record) {
                let text = format!("{} was accepted as {log} {seq}, and is not there", key.id);
                court.accuse("lost", text);
            }
        }
    }

    /// Whether an entry of a topic may be gone because its log keeps no more. The oldest go first, and whether those
    /// who had to read it have is judged with them.
    fn may_be_forgotten(&self, log: &str, seq: u64, record: &Record) -> bool {
        let Some((after_ms, unread)) = self.world.broker.forgets else { return false };
        let first = self.look.first_beside(log, seq);
        let old = self.world.broker.clock_jumped || self.world.now + SLACK_MS >= record.first_at + after_ms;
        first.is_none_or(|first| seq < first) && (unread || old)
    }

    /// Who is told that something is gone is told the truth: it is not there, and not all of it was done with. What was
    /// settled in vain, for a lease that had ended, would have come again.
    fn judge_gaps(&self, court: &mut Court) {
        for Told { life, place, log, from, to, within } in &self.look.gaps {
            let Some(history) = self.look.histories.get(log) else { continue };
            let there = history.range(from..=to).next().is_some();
            let reader = Reader::of(*life, place);
            let trail = |message: &Message| self.hands.trails.get(&message.id, &reader);
            let done = |message: &Message| {
                trail(message).is_some_and(|trail| trail.done_at.iter().any(|at| within.contains(at)))
            };
            let mut gone = self.entries(log, *from).filter(|entry| entry.seq <= *to).peekable();
            let had = gone.peek().is_some() && gone.all(|entry| done(entry.message));
            if self.world.broker.forgets.is_none() || there || had {
                let why = if had { "it had them all" } else { "they are there" };
                let text = format!("{} was told that {log} {from} to {to} are gone, and {why}", who(*life));
                court.accuse("gap", text);
            }
        }
    }

    /// All that is, or ever was, in a log from `start` on, and that no rewind can have taken away.
    fn entries(&self, log: &str, start: u64) -> impl Iterator<Item = Entry<'_>> {
        self.letters.iter().filter_map(move |(key, record)| {
            let message = record.kept(self.world)?;
            let seq = message.seq_in(log).filter(|seq| *seq >= start)?;
            Some(Entry { seq, key, record, message })
        })
    }

    fn judge_inbox(&self, key: &Key, record: &Record, message: &Message, court: &mut Court) {
        let reached = self.hands.trails.inbox(&message.id).is_some();
        match self.fates.get(key) {
            Some(Fate::Delivered) if !reached => {
                let text = format!("{} counts as delivered, and no application was handed it", key.id);
                court.accuse("lost", text);
            }
            Some(Fate::Accepted) if self.look.quiet => {
                if let Some(reader) = self.idle_reader(key, record, message) {
                    let text = format!("{} waits for ever, although {} reads", key.id, who(reader));
                    court.accuse("lost", text);
                }
            }
            _ => {}
        }
    }

    /// Somebody who should have got a letter that waits in an inbox.
    fn idle_reader(&self, key: &Key, record: &Record, message: &Message) -> Option<Life> {
        let waits = self.is_early(key, record, message, &Reader::Inbox);
        if waits || self.in_hand.contains(&(Reader::Inbox, &message.id)) {
            return None;
        }
        let lane = record.letter.lane;
        let ready = |life: &&Life, place: &Place| {
            self.timing.is_open(**life, lane) && !self.hands.is_full(&tray_name(**life, place, lane))
        };
        let alive = || self.look.alive.iter();
        let of_member = |member| {
            let reads = |life: &&Life| {
                self.readers.of_member.contains(&life.slot)
                    && self.world.role(life.slot).map(|role| role.member) == member
            };
            alive().filter(reads).find(|life| ready(life, &Place::MemberInbox)).copied()
        };
        match &record.letter.to {
            To::Session(to) => {
                let own = alive().find(|life| life.slot == *to && ready(life, &Place::Inbox)).copied();
                // It may lie in either inbox.
                let moved = record.letter.fallback == Fallback::Member
                    && self.world.may_have_ended_since(*to, record.first_at);
                if moved { own.and(of_member(self.world.role(*to).map(|role| role.member))) } else { own }
            }
            To::Member(member) => of_member(Some(*member)),
            To::Topic(_) => None,
        }
    }

    /// Whether it is not the time for a letter yet, or not any more.
    fn is_early(&self, key: &Key, record: &Record, message: &Message, reader: &Reader) -> bool {
        let accepted = message.accepted.as_ref().map_or(self.world.now, |accepted| accepted.at);
        let delay = record.letters_of(&message.id).filter_map(|letter| letter.delay_ms).max();
        let delayed = delay.map_or(0, |delay| accepted + delay);
        let put_off = self.hands.trails.get(&message.id, reader).map_or(0, |trail| trail.waits_until);
        let due = delayed.max(put_off);
        // A start reads what is left of a delay off the wall clock.
        let clock = self.world.broker.clock_jumped && due > 0;
        (due > 0 && self.world.now < due + MARGIN_MS)
            || clock
            || may_have_expired(key, &message.id, self.letters, self.world)
    }

    /// What a crew must have got: everything from where it began, if somebody of it is here.
    fn judge_crews(&self, court: &mut Court) {
        for ((log, group), starts) in &self.readers.crews {
            let Some((topic, partition)) = topic_of(log) else { continue };
            let starts = starts.iter().filter(|(_, sight)| self.world.broker.keeps(*sight));
            let Some(start) = starts.map(|(start, _)| *start).min() else { continue };
            if self.readers.careless.contains(&(topic.to_owned(), group.clone())) {
                continue;
            }
            let reads = |life: &Life| {
                self.readers.open(*life).any(|(place, _)| match place {
                    Place::Topic { topic: t, group: Some(g), partition: p, auto: false, .. } => {
                        let here = t == topic && g == group && p.is_none_or(|p| p == partition);
                        here && !self.hands.is_full(&tray_name(*life, place, crate::seen::Lane::Now))
                    }
                    _ => false,
                })
            };
            if !self.look.alive.iter().any(reads) {
                continue;
            }
            let reader = Reader::Crew(group.clone());
            for entry in self.entries(log, start) {
                self.judge_entry(log, &entry, &reader, court);
            }
        }
    }

    fn judge_entry(&self, log: &str, entry: &Entry<'_>, reader: &Reader, court: &mut Court) {
        let Entry { seq, key, record, message } = *entry;
        let Reader::Crew(group) = reader else { return };
        if self.fates.is_dead(key, Some(group)) || self.is_early(key, record, message, reader) {
            return;
        }
        match self.hands.trails.get(&message.id, reader) {
            None => {
                let text = format!("{group} never got {log} {seq} ({})", key.id);
                court.accuse("lost", text);
            }
            Some(trail) => {
                let done = trail.acks > 0 || trail.burials > 0;
                if !done && !self.in_hand.contains(&(reader.clone(), &message.id)) {
                    let text = format!("{group} had {log} {seq} ({}) in hand, and nobody has it now", key.id);
                    court.accuse("lost", text);
                }
            }
        }
    }

    /// What a reader of its own must have got: everything from where it began, or word that it is gone.
    fn judge_private(&self, court: &mut Court) {
        for life in &self.look.alive {
            for (place, sub) in self.readers.open(*life) {
                let Place::Topic { topic, group: None, auto: false, .. } = place else { continue };
                let tray = tray_name(*life, place, crate::seen::Lane::Now);
                if self.hands.is_full(&tray) || self.hands.is_crowded(&tray) {
                    continue;
                }
                let reader = Reader::of(*life, place);
                for (partition, start) in sub.starts.iter().flatten() {
                    let log = format!("topic/{topic}/{partition}");
                    for Entry { seq, key, record, message } in
                        self.entries(&log, sub.begins(*start, self.world))
                    {
                        // Where a lease ended, a reader's position says nothing of what was yet to come.
                        let put_off = record.may_be(&message.id, |letter| letter.delay_ms.is_some())
                            && self.world.may_have_ended_since(life.slot, record.first_at);
                        let excused = put_off
                            || sub.misses(&log, *partition, seq, record.first_at, self.world)
                            || sub.may_be_pruned(&log, seq, record.first_at, self.world)
                            || seq < *start && !sub.is_owed(&log, record.first_at, self.world)
                            || self.fates.is_dead(key, None)
                            || self.is_early(key, record, message, &reader);
                        if !excused && self.hands.trails.get(&message.id, &reader).is_none() {
                            let text = format!("{} never got {log} {seq} ({})", who(*life), key.id);
                            court.accuse("lost", text);
                        }
                    }
                }
            }
        }
    }
}

/// The topic and the partition of a log.
fn topic_of(log: &str) -> Option<(&str, u32)> {
    let (topic, _) = log.strip_prefix("topic/")?.rsplit_once('/')?;
    Some((topic, partition_of(log, topic)?))
}
