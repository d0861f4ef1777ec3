//! Who reads what: subscriptions from their wish to their end, where crews begin, and what readers were told is gone.

use std::collections::{BTreeMap, BTreeSet};

use crate::seen::{Handed, Life, Place, Seen, Slot};

use super::letters::partition_of;
use super::world::World;
use super::{Court, who};

/// A subscription.
#[derive(Debug, Default)]
pub(super) struct Sub {
    asked_at: u64,
    /// Where it began, by partition, once the broker had it.
    pub(super) starts: Option<BTreeMap<u32, u64>>,
    leaving: bool,
    /// What it was told is missing.
    gaps: Vec<(Option<u32>, u64, u64)>,
}

impl Sub {
    /// Whether it was told that an entry is missing.
    pub(super) fn misses(&self, partition: u32, seq: u64) -> bool {
        let of = |gap: &&(Option<u32>, u64, u64)| gap.0.is_none_or(|p| p == partition);
        self.gaps.iter().filter(of).any(|(_, from, to)| (*from..=*to).contains(&seq))
    }
}

/// All subscriptions.
#[derive(Debug, Default)]
pub(super) struct Readers {
    subs: BTreeMap<Life, BTreeMap<Place, Sub>>,
    /// Where a crew begins at the latest, by log and name.
    pub(super) crews: BTreeMap<(String, String), u64>,
    /// Crews that somebody reads with auto acks: at most once, by choice.
    pub(super) careless: BTreeSet<(String, String)>,
    /// Sessions that read their member's inbox.
    pub(super) of_member: BTreeSet<Slot>,
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
            Seen::Opened(life, place, starts) => self.opened(*life, place, starts, court),
            Seen::Unsubscribes(life, place) => {
                if let Some(sub) = self.subs.entry(*life).or_default().get_mut(place) {
                    sub.leaving = true;
                }
            }
            Seen::SubEnded(life, place, why) => {
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
                    sub.gaps.push((*partition, *from, *to));
                }
            }
            Seen::Handed(life, handed) => self.handed(*life, handed, court),
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

    fn opened(&mut self, life: Life, place: &Place, starts: &BTreeMap<u32, u64>, court: &mut Court) {
        let Some(sub) = self.subs.entry(life).or_default().get_mut(place) else {
            if matches!(place, Place::Topic { .. }) {
                let text =
                    format!("{} was told that {} is open, for which it did not ask", who(life), words(place));
                court.accuse("silence", text);
            }
            return;
        };
        sub.starts = Some(starts.clone());
        let Place::Topic { topic, group: Some(group), .. } = place else { return };
        for (partition, seq) in starts {
            let start =
                self.crews.entry((format!("topic/{topic}/{partition}"), group.clone())).or_insert(*seq);
            *start = (*start).min(*seq);
        }
    }

    /// Nobody gets what it does not read.
    fn handed(&mut self, life: Life, handed: &Handed, court: &mut Court) {
        let Handed { place, spot, key, .. } = handed;
        let Place::Topic { topic, group, .. } = place else {
            if *place == Place::MemberInbox {
                self.of_member.insert(life.slot);
            }
            return;
        };
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
