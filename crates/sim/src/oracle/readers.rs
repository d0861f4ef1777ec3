//! Who reads what: subscriptions from their wish to their end, where crews begin, and what readers were told is gone.

use std::collections::{BTreeMap, BTreeSet};

use crate::seen::{Handed, Life, Place, Seen, Slot};

use super::broker::{Sight, Sights};
use super::letters::partition_of;
use super::session::SLACK_MS;
use super::world::World;
use super::{Court, who};

/// How long a word of the broker may be on its way.
const ON_ITS_WAY_MS: u64 = 10_000;

/// A subscription.
#[derive(Debug, Default)]
pub(super) struct Sub {
    asked_at: u64,
    /// Where it began, by partition, once the broker had it.
    pub(super) starts: Option<BTreeMap<u32, u64>>,
    leaving: bool,
    /// When it was told so.
    opened: Option<Sight>,
    /// When something of each log first came through it.
    read: BTreeMap<String, u64>,
    /// What it was told is missing.
    gaps: Vec<(Option<u32>, u64, u64, Sight)>,
    /// Each return of its process after the store went back.
    returns: Vec<Return>,
    /// The highest number that came of each log since it last returned.
    newest: BTreeMap<String, u64>,
    /// When it was last told that a log is rewound.
    told: BTreeMap<String, u64>,
}

/// The first time that a process was attached after the store went back.
#[derive(Debug)]
struct Return {
    at: u64,
    /// Whether the store that it came back to did not know what it reads.
    unknown: bool,
    /// The highest number that had come of each log by then.
    had: BTreeMap<String, u64>,
    /// When it was told since that a log is rewound, or was attached without having got anything of it.
    told: BTreeMap<String, u64>,
}

impl Return {
    /// Whether an entry may have been pruned before it: nobody kept it. Its process is told that the history is another
    /// one, unless what it had read last is pruned, which counts as equal.
    fn may_have_missed(&self, log: &str, seq: u64, sent_at: u64, world: &World) -> bool {
        let told = self.told.get(log);
        let noticed = told.copied().unwrap_or(0).max(self.at);
        // A log that is bounded by bytes drops unread entries, however young they are.
        let old = |(after_ms, unread): (u64, bool)| {
            let age = if unread { 0 } else { after_ms };
            world.broker.clock_jumped || sent_at + age <= noticed + SLACK_MS
        };
        let equal = self.had.get(log).is_none_or(|had| seq <= *had);
        self.unknown && world.broker.forgets.is_some_and(old) && (told.is_some() || equal)
    }
}

impl Sub {
    /// Whether the store went back since it was open: then other numbers are its business.
    fn is_rewound(&self, world: &World) -> bool {
        self.opened.is_some_and(|opened| world.broker.rewound_since(opened.at))
    }

    /// The first number that it may have to get, of a partition in which it began at `start`.
    pub(super) fn begins(&self, start: u64, world: &World) -> u64 {
        if self.is_rewound(world) { 0 } else { start }
    }

    /// Whether what was sent then came after the store went back under it: then it must get it wherever it lies. That is
    /// told by the broker's clock, and by who has read something of the log before.
    pub(super) fn is_owed(&self, log: &str, sent_at: u64, world: &World) -> bool {
        let read = self.read.get(log).is_some_and(|at| world.broker.rewound_since(*at));
        read && self.is_rewound(world) && !world.broker.rewound_since(sent_at) && !world.broker.clock_jumped
    }

    /// Whether an entry may have been pruned before its process came back to a store that does not know it.
    pub(super) fn may_be_pruned(&self, log: &str, seq: u64, sent_at: u64, world: &World) -> bool {
        self.returns.iter().any(|back| back.may_have_missed(log, seq, sent_at, world))
    }

    /// Its process is attached, to a broker that may know what it reads.
    fn attached(&mut self, known: bool, world: &World) {
        let rewound = self.is_rewound(world);
        match self.returns.last_mut() {
            Some(last) if !world.broker.rewound_since(last.at) => {
                // Nothing has come of a log since: perhaps it was not opened again until now.
                for (_, at) in last.told.iter_mut().filter(|(log, _)| !self.newest.contains_key(*log)) {
                    *at = world.now;
                    last.unknown |= !known;
                }
            }
            _ if rewound => {
                let unknown = !known || self.opened.is_some_and(|opened| !world.broker.keeps(opened));
                let had = std::mem::take(&mut self.newest);
                self.returns.push(Return { at: world.now, unknown, had, told: BTreeMap::new() });
            }
            _ => {}
        }
    }

    /// It is told that these logs are rewound.
    fn heard_of_rewind(&mut self, logs: &[String], now: u64) {
        let logs = || logs.iter().map(|log| (log.clone(), now));
        self.told.extend(logs());
        if let Some(last) = self.returns.last_mut() {
            last.told.extend(logs());
        }
    }

    /// Whether it was told that an entry is missing, and that is so in the history that is now, or nobody told it since that
    /// the log is another one: then it reads on after the gap. What was sent after that word is not what it was told of. The
    /// word may have been on its way when the store was copied: what it tells of was gone before.
    pub(super) fn misses(&self, log: &str, partition: u32, seq: u64, sent_at: u64, world: &World) -> bool {
        let unaware = |at: u64| sent_at <= at && self.told.get(log).is_none_or(|told| *told < at);
        let was_gone = |sight: Sight| {
            let at = sight.at.saturating_sub(ON_ITS_WAY_MS);
            sent_at <= at && world.broker.keeps(Sight { at, ..sight })
        };
        let stands = |sight: Sight| {
            world.broker.keeps(sight)
                || !world.broker.rewound_since(sight.at)
                || unaware(sight.at)
                || was_gone(sight)
        };
        self.gaps.iter().any(|(of, from, to, sight)| {
            of.is_none_or(|of| of == partition) && (*from..=*to).contains(&seq) && stands(*sight)
        })
    }
}

/// All subscriptions.
#[derive(Debug, Default)]
pub(super) struct Readers {
    subs: BTreeMap<Life, BTreeMap<Place, Sub>>,
    /// Where a crew was said to begin, by log and name; it begins where the earliest of these is that still holds.
    pub(super) crews: BTreeMap<(String, String), Vec<(u64, Sight)>>,
    /// Crews that somebody reads with auto acks: at most once, by choice.
    pub(super) careless: BTreeSet<(String, String)>,
    /// Sessions that read their member's inbox.
    pub(super) of_member: BTreeSet<Slot>,
    /// Partitions of topics that were seen.
    partitions: BTreeMap<(String, u32), Sights>,
}

impl Readers {
    /// Open subscriptions of a process.
    pub(super) fn open(&self, life: Life) -> impl Iterator<Item = (&Place, &Sub)> {
        let subs = self.subs.get(&life).into_iter().flatten();
        subs.filter(|(_, sub)| sub.starts.is_some() && !sub.leaving)
    }

    pub(super) fn see(&mut self, seen: &Seen, world: &World, court: &mut Court) {
        match seen {
            Seen::Subscribes(life, place, _) => {
                if *place == Place::MemberInbox {
                    self.of_member.insert(life.slot);
                }
                if let Place::Topic { topic, group: Some(group), auto: true, .. } = place {
                    self.careless.insert((topic.clone(), group.clone()));
                }
                let sub = Sub { asked_at: world.now, ..Sub::default() };
                self.subs.entry(*life).or_default().insert(place.clone(), sub);
            }
            Seen::Attached { life, kept, .. } => {
                // Another process of its session has ended what it reads.
                let replaced = world.session(life.slot).and_then(|session| session.replaced_at);
                let replaced = replaced.is_some_and(|at| world.broker.is_after_a_rewind(at));
                // So has the end of its lease, of which it did not hear.
                let known = *kept && !replaced && !world.being(*life).begun_unheard;
                self.subs.entry(*life).or_default().values_mut().for_each(|sub| sub.attached(known, world));
            }
            Seen::HistoryRewound(life, logs) => {
                let subs = self.subs.entry(*life).or_default();
                subs.values_mut().for_each(|sub| sub.heard_of_rewind(logs, world.now));
            }
            Seen::Opened(life, place, starts) => self.opened(*life, place, starts, world, court),
            Seen::Unsubscribes(life, place) => {
                if let Some(sub) = self.subs.entry(*life).or_default().get_mut(place) {
                    sub.leaving = true;
                }
            }
            Seen::SubEnded(life, place, why) => {
                self.check_refused(*life, place, why, world, court);
                let ended = self.subs.entry(*life).or_default().remove(place);
                if ended.is_none() && matches!(place, Place::Topic { .. }) {
                    let text = format!(
                        "{} heard the end ({why}) of {}, which it did not read",
                        who(*life),
                        words(place)
                    );
                    court.accuse("silence", text);
                }
            }
            Seen::Gap(life, place, partition, (from, to)) => {
                if let Some(sub) = self.subs.entry(*life).or_default().get_mut(place) {
                    sub.gaps.push((*partition, *from, *to, world.sight(*life)));
                }
            }
            Seen::Handed(life, handed) => self.handed(*life, handed, world, court),
            Seen::Killed(life) => _ = self.subs.remove(life),
            Seen::Ended(life, why) => {
                for place in self.subs.remove(life).unwrap_or_default().into_keys() {
                    if matches!(place, Place::Topic { .. }) {
                        let text = format!(
                            "{} ended ({why}) and was never told that {} did",
                            who(*life),
                            words(&place)
                        );
                        court.accuse("silence", text);
                    }
                }
            }
            Seen::Over => self.judge(world, court),
            _ => {}
        }
    }

    fn opened(
        &mut self,
        life: Life,
        place: &Place,
        starts: &BTreeMap<u32, u64>,
        world: &World,
        court: &mut Court,
    ) {
        let Some(sub) = self.subs.entry(life).or_default().get_mut(place) else {
            if matches!(place, Place::Topic { .. }) {
                let text =
                    format!("{} was told that {} is open, for which it did not ask", who(life), words(place));
                court.accuse("silence", text);
            }
            return;
        };
        let sight = world.sight(life);
        (sub.starts, sub.opened) = (Some(starts.clone()), Some(sight));
        let Place::Topic { topic, group, .. } = place else { return };
        for partition in starts.keys() {
            let seen = self.partitions.entry((topic.clone(), *partition));
            seen.or_insert_with(|| Sights::new(sight)).add(sight);
        }
        let Some(group) = group else { return };
        for (partition, seq) in starts {
            let log = format!("topic/{topic}/{partition}");
            self.crews.entry((log, group.clone())).or_default().push((*seq, sight));
        }
    }

    /// Nobody is refused a partition that is there.
    fn check_refused(&self, life: Life, place: &Place, why: &str, world: &World, court: &mut Court) {
        if let Place::Topic { topic, partition: Some(partition), .. } = place
            && why.starts_with("bad_request")
            && let Some(seen) = self.partitions.get(&(topic.clone(), *partition))
            && world.broker.keeps_any(seen)
        {
            let text = format!("{} was refused {}, and it is there", who(life), words(place));
            court.accuse("refused", text);
        }
    }

    /// Nobody gets what it does not read.
    fn handed(&mut self, life: Life, handed: &Handed, world: &World, court: &mut Court) {
        let Handed { place, spot, key, .. } = handed;
        let Place::Topic { topic, group, .. } = place else {
            if *place == Place::MemberInbox {
                self.of_member.insert(life.slot);
            }
            return;
        };
        if let Some(sub) = self.subs.get_mut(&life).and_then(|subs| subs.get_mut(place)) {
            sub.read.entry(spot.log.clone()).or_insert(world.now);
            let newest = sub.newest.entry(spot.log.clone()).or_default();
            *newest = spot.seq.max(*newest);
        }
        let sub = self.subs.get(&life).and_then(|subs| subs.get(place)).filter(|sub| !sub.leaving);
        let Some(starts) = sub.and_then(|sub| sub.starts.as_ref()) else {
            let text = format!(
                "{} was handed {} through {}, which it does not read",
                who(life),
                key.id,
                words(place)
            );
            return court.accuse("unasked", text);
        };
        let start = partition_of(&spot.log, topic).and_then(|partition| starts.get(&partition));
        if let (Some(start), None) = (start, group)
            && spot.seq < *start
            && !sub.is_some_and(|sub| sub.is_rewound(world))
        {
            let text = format!("{} was handed {} {}, and reads from {start}", who(life), spot.log, spot.seq);
            court.accuse("unasked", text);
        }
    }

    fn judge(&self, world: &World, court: &mut Court) {
        for (life, subs) in self.subs.iter().filter(|(life, _)| world.being(**life).gone.is_none()) {
            for (place, sub) in subs {
                if matches!(place, Place::Topic { .. }) && (sub.starts.is_none() || sub.leaving) {
                    let what = if sub.leaving { "the end" } else { "the opening" };
                    let text = format!(
                        "{} never heard of {what} of {} ({} ms)",
                        who(*life),
                        words(place),
                        sub.asked_at
                    );
                    court.accuse("silence", text);
                }
            }
        }
    }
}

/// A place, in words.
pub(super) fn words(place: &Place) -> String {
    match place {
        Place::Inbox => "its inbox".to_owned(),
        Place::MemberInbox => "its member's inbox".to_owned(),
        Place::Topic { topic, group: Some(group), .. } => format!("topic {topic} as one of {group}"),
        Place::Topic { topic, partition: Some(partition), .. } => format!("topic {topic}/{partition}"),
        Place::Topic { topic, .. } => format!("topic {topic}"),
    }
}
