//! Fates: what senders are told of their messages, and why dead letters are dead. Every fate has a cause that
//! applications have seen.

use std::collections::{BTreeMap, BTreeSet};

use crate::seen::{DeadLetter, Fallback, Fate, Key, Letter, Seen, To};

use super::Court;
use super::hands::Hands;
use super::letters::{Letters, Record};
use super::timing::may_have_expired;
use super::trail::{Reader, Trail};
use super::world::World;

/// What is said of messages at the end.
#[derive(Debug, Default)]
pub(super) struct Fates {
    fates: BTreeMap<Key, Fate>,
    dead: BTreeSet<(Key, Option<String>)>,
}

/// What a cause is looked for in.
struct Causes<'a> {
    letters: &'a Letters,
    hands: &'a Hands,
    world: &'a World,
}

impl Fates {
    pub(super) fn get(&self, key: &Key) -> Option<Fate> {
        self.fates.get(key).copied()
    }

    /// Whether a message is a dead letter, for everybody or for this crew.
    pub(super) fn is_dead(&self, key: &Key, group: Option<&String>) -> bool {
        self.dead.contains(&(key.clone(), None))
            || group.is_some() && self.dead.contains(&(key.clone(), group.cloned()))
    }

    pub(super) fn see(
        &mut self,
        seen: &Seen,
        letters: &Letters,
        hands: &Hands,
        world: &World,
        court: &mut Court,
    ) {
        let causes = Causes { letters, hands, world };
        match seen {
            Seen::Receipt { key, outcome: Ok(fate), .. } => {
                if matches!(fate, Fate::Accepted | Fate::Unknown) {
                    court.accuse("receipts", format!("the receipt of {} says {fate:?}", key.id));
                }
                causes.check_fate(key, *fate, "its receipt", court);
            }
            Seen::Receipt { life, key, outcome: Err(code) } => {
                // What was still on its way when the store went back is true of the history before; and another program of
                // the member may have used the id since this was asked.
                let now = world.being(*life).rewinds == world.broker.rewinds.len();
                let promised = letters.get(key).is_some_and(|record| record.promised(world).is_some());
                if code == "not_found" && now && promised {
                    let text = format!("{} was accepted, and its receipt says that nobody knows it", key.id);
                    court.accuse("lost", text);
                }
            }
            Seen::Fate(key, id, fate) => {
                self.fates.insert(key.clone(), *fate);
                let known = letters.get(key).and_then(|record| record.kept(world));
                if let (Some(known), Some(id)) = (known.filter(|known| known.accepted.is_some()), id)
                    && known.id != *id
                {
                    let text = format!("{} was accepted as {} and is called {id} later", key.id, known.id);
                    court.accuse("doubled", text);
                }
                causes.check_fate(key, *fate, "its status", court);
            }
            Seen::DeadLetters(log, dead) => {
                for letter in dead {
                    if let Some(key) = letters.by_id(&letter.spot.id) {
                        self.dead.insert((key.clone(), letter.group.clone()));
                        causes.check_dead(log, key, letter, court);
                    }
                }
            }
            _ => {}
        }
    }
}

impl Causes<'_> {
    fn check_fate(&self, key: &Key, fate: Fate, says: &str, court: &mut Court) {
        let Some(record) = self.letters.get(key) else { return };
        if record.was_contradicted() {
            return;
        }
        let any = |says: &dyn Fn(&Trail) -> bool| {
            let trails = record.messages().iter().filter_map(|message| self.hands.trails.inbox(&message.id));
            trails.into_iter().any(says)
        };
        let fits = match (&record.letter.to, fate) {
            (_, Fate::Accepted | Fate::Unknown) => true,
            (_, Fate::Expired) => {
                let mut ids = record.messages().iter().map(|message| &message.id);
                ids.any(|id| may_have_expired(key, id, self.letters, self.world))
            }
            (To::Topic(_), Fate::Delivered) => false,
            (To::Topic(_), Fate::Dead) => self.may_be_crowded_out(),
            (_, Fate::Delivered) => any(&|trail| trail.acks > 0),
            (_, Fate::Dead) => {
                let worn_out = any(&|trail| trail.retries >= self.world.broker.max_attempts);
                let buried = any(&|trail| trail.burials > 0);
                buried || worn_out || self.may_have_failed(&record.letter, record)
            }
        };
        if !fits {
            let text = format!("{} is {fate:?} by {says}, and nobody did anything to make it so", key.id);
            court.accuse("receipts", text);
        }
    }

    /// Whether what nobody has read yet may be forgotten.
    fn may_be_crowded_out(&self) -> bool {
        self.world.broker.forgets.is_some_and(|(_, unread)| unread)
    }

    /// Whether a letter may be dead because its receiver's lease ended.
    fn may_have_failed(&self, letter: &Letter, record: &Record) -> bool {
        let To::Session(to) = &letter.to else { return false };
        letter.fallback == Fallback::Fail && self.world.may_have_ended_since(*to, record.first_at)
    }

    fn check_dead(&self, log: &str, key: &Key, letter: &DeadLetter, court: &mut Court) {
        let Some(record) = self.letters.get(key) else { return };
        let (rule, fits) = match letter.reason.as_str() {
            "expired" => ("dead", may_have_expired(key, &letter.spot.id, self.letters, self.world)),
            "lease_expired" => {
                ("dead", record.may_be(&letter.spot.id, |letter| self.may_have_failed(letter, record)))
            }
            // Nobody flips bits here.
            "damaged" => ("dead", false),
            "retention" => ("dead", self.may_be_crowded_out()),
            "max_attempts" => {
                let failures = self.failures(log, letter);
                ("attempts", failures >= u64::from(self.world.broker.max_attempts))
            }
            _ => {
                let buried = self.readers(log, letter).any(|trail| trail.burials > 0);
                ("dead", buried)
            }
        };
        if !fits {
            let group = letter.group.as_ref().map_or(String::new(), |group| format!(" for {group}"));
            let text = format!(
                "{} ({log} {}) is dead{group} because of {}, and nothing that applications saw explains it",
                key.id, letter.spot.seq, letter.reason
            );
            court.accuse(rule, text);
        }
    }

    /// What those did with it for whom it died.
    fn readers<'a>(&'a self, log: &str, letter: &DeadLetter) -> impl Iterator<Item = &'a Trail> {
        let inbox = log.starts_with("inbox/");
        let group = letter.group.clone();
        self.hands
            .trails
            .of(&letter.spot.id)
            .filter(move |(reader, _)| match reader {
                Reader::Inbox => inbox,
                Reader::Crew(crew) => !inbox && group.as_ref() == Some(crew),
                Reader::Own(..) => !inbox && group.is_none(),
            })
            .map(|(_, trail)| trail)
    }

    /// How often it may have failed at most, by what applications saw. An inbox and a lone reader count only what
    /// they are told; a crew also counts who was lost or late with it, once for every ack timeout.
    fn failures(&self, log: &str, letter: &DeadLetter) -> u64 {
        let timeout = self.world.broker.ack_timeout_ms.max(1);
        let of = |trail: &Trail| match &letter.group {
            None => u64::from(trail.retries),
            Some(_) => u64::from(trail.handed) + self.world.now.saturating_sub(trail.first_at) / timeout,
        };
        self.readers(log, letter).map(of).max().unwrap_or(0)
    }
}
