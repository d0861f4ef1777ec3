//! Letters: one key is one message, as it was sent, to whom it was sent.

use std::collections::{BTreeMap, BTreeSet};

use crate::seen::{Fallback, Handed, Key, Letter, Life, Place, Seen, Slot, Spot, To};

use super::world::World;
use super::{Court, who};

/// Refusals after which it is certain that nothing was written. Others may stand for an answer that was lost.
const CERTAIN: [&str; 5] =
    ["idempotency_key_reused", "no_such_session", "bad_request", "forbidden", "ttl_out_of_bounds"];

/// What was asked for under a key.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) letter: Letter,
    /// When it was first asked for.
    pub(super) first_at: u64,
    /// Sends of it that may have been accepted.
    hopes: u32,
    /// Other letters under the same key, and sends of those that may have been accepted.
    others: Vec<Letter>,
    other_hopes: u32,
    senders: BTreeSet<Slot>,
    pub(super) accepted: Option<Accepted>,
    /// The broker's id, once anybody has seen it.
    id: Option<String>,
    /// Its number in each log that it was seen in.
    spots: BTreeMap<String, u64>,
}

/// The broker's yes.
#[derive(Clone, Debug)]
pub(super) struct Accepted {
    pub(super) id: String,
    pub(super) at: u64,
    /// Whether it was given to another letter than the first under this key.
    pub(super) contradicts: bool,
    /// Whether some answer called it new.
    fresh: bool,
}

/// All letters.
#[derive(Debug, Default)]
pub(super) struct Letters {
    records: BTreeMap<Key, Record>,
    bodies: BTreeMap<String, Key>,
    ids: BTreeMap<String, Key>,
}

impl Letters {
    pub(super) fn get(&self, key: &Key) -> Option<&Record> {
        self.records.get(key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &Record)> {
        self.records.iter()
    }

    /// The key of a message by the broker's id.
    pub(super) fn by_id(&self, id: &str) -> Option<&Key> {
        self.ids.get(id)
    }

    /// When a letter was first asked for.
    pub(super) fn sent_at(&self, key: &Key) -> u64 {
        self.records.get(key).map_or(0, |record| record.first_at)
    }

    pub(super) fn see(&mut self, seen: &Seen, world: &World, court: &mut Court) {
        match seen {
            Seen::Sends { life, key, letter, contradicts, .. } => {
                self.sends(*life, key, letter, *contradicts, world.now);
            }
            Seen::Answered { life, key, contradicts, outcome } => {
                self.answered(*life, key, *contradicts, outcome, world, court);
            }
            Seen::Handed(life, handed) => self.handed(*life, handed, world, court),
            Seen::History(log, entries) => {
                for (seq, id, body) in entries {
                    self.found(log, *seq, id, body, court);
                }
            }
            _ => {}
        }
    }

    fn sends(&mut self, life: Life, key: &Key, letter: &Letter, contradicts: bool, now: u64) {
        self.bodies.entry(letter.body.clone()).or_insert_with(|| key.clone());
        let record = self.records.entry(key.clone()).or_insert_with(|| Record {
            letter: letter.clone(),
            first_at: now,
            hopes: 0,
            others: Vec::new(),
            other_hopes: 0,
            senders: BTreeSet::new(),
            accepted: None,
            id: None,
            spots: BTreeMap::new(),
        });
        record.senders.insert(life.slot);
        if contradicts {
            record.other_hopes += 1;
            if record.others.iter().all(|other| other.body != letter.body) {
                record.others.push(letter.clone());
            }
        } else {
            record.hopes += 1;
        }
    }

    fn answered(
        &mut self,
        life: Life,
        key: &Key,
        contradicts: bool,
        outcome: &Result<(String, Spot, bool), String>,
        world: &World,
        court: &mut Court,
    ) {
        let Some(record) = self.records.get_mut(key) else { return };
        match outcome {
            Err(code) => {
                let refused = who(life);
                if code == "idempotency_key_reused" && !contradicts && record.other_hopes == 0 {
                    let text = format!("a retry of {} by {refused} was refused as another message", key.id);
                    court.accuse("idempotency", text);
                }
                if let (To::Session(to), "no_such_session") = (&record.letter.to, code.as_str())
                    && world.session(*to).is_some_and(|session| session.was_admitted_before(record.first_at))
                {
                    let text = format!("{refused} was told that session {} was never seen, and it was", to.0);
                    court.accuse("refused", text);
                }
                if CERTAIN.contains(&code.as_str()) {
                    let hopes = if contradicts { &mut record.other_hopes } else { &mut record.hopes };
                    *hopes = hopes.saturating_sub(1);
                }
            }
            Ok((id, spot, duplicate)) => {
                self.ids.entry(id.clone()).or_insert_with(|| key.clone());
                record.is_accepted(life, key, contradicts, (id, *duplicate), world.now, court);
                record.is_at(key, id, spot, court);
            }
        }
    }

    fn handed(&mut self, life: Life, handed: &Handed, world: &World, court: &mut Court) {
        let (reader, key) = (who(life), &handed.key);
        let Some(record) = self.records.get_mut(key) else {
            let text = format!("{reader} was handed {}, which nobody sent", key.id);
            return court.accuse("altered", text);
        };
        self.ids.entry(handed.id.clone()).or_insert_with(|| key.clone());
        let own = handed.body == record.letter.body;
        let letter =
            if own { Some(&record.letter) } else { record.others.iter().find(|l| l.body == handed.body) };
        let Some(letter) = letter else {
            let text = format!("{reader} was handed {} with a body that nobody sent", key.id);
            return court.accuse("altered", text);
        };
        let hopes = if own { record.hopes } else { record.other_hopes };
        if hopes == 0 {
            court.accuse("ghost", format!("{reader} was handed {}, which was refused", key.id));
        }
        if !record.senders.contains(&handed.from) {
            let text = format!("{reader} was handed {} as if session {} had sent it", key.id, handed.from.0);
            court.accuse("altered", text);
        }
        let in_inbox = !matches!(letter.to, To::Topic(_));
        if in_inbox && letter.lane != handed.lane {
            let text =
                format!("{reader} was handed {} in lane {:?}, not {:?}", key.id, handed.lane, letter.lane);
            court.accuse("altered", text);
        }
        if !is_addressee(life, letter, handed, world) {
            let text =
                format!("{reader} was handed {} from {}, meant for {:?}", key.id, handed.spot.log, letter.to);
            court.accuse("misdelivered", text);
        }
        record.is_at(key, &handed.id, &handed.spot, court);
    }

    /// An entry of a topic's log, as it stands there.
    fn found(&mut self, log: &str, seq: u64, id: &str, body: &str, court: &mut Court) {
        let Some(key) = self.bodies.get(body).cloned() else {
            return court.accuse("altered", format!("{log} {seq} says what nobody sent"));
        };
        self.ids.entry(id.to_owned()).or_insert_with(|| key.clone());
        let Some(record) = self.records.get_mut(&key) else { return };
        let hopes = if body == record.letter.body { record.hopes } else { record.other_hopes };
        if hopes == 0 {
            court.accuse("ghost", format!("{log} {seq} holds {}, which was refused", key.id));
        }
        record.is_at(&key, id, &Spot { log: log.to_owned(), seq }, court);
    }
}

impl Record {
    /// Where it was seen: log and number.
    pub(super) fn spots(&self) -> impl Iterator<Item = (&String, u64)> {
        self.spots.iter().map(|(log, seq)| (log, *seq))
    }

    /// Its number in a log, if it was seen there.
    pub(super) fn seq_in(&self, log: &str) -> Option<u64> {
        self.spots.get(log).copied()
    }

    fn is_accepted(
        &mut self,
        life: Life,
        key: &Key,
        contradicts: bool,
        (id, duplicate): (&str, bool),
        now: u64,
        court: &mut Court,
    ) {
        let fresh = !duplicate;
        let Some(known) = &mut self.accepted else {
            self.accepted = Some(Accepted { id: id.to_owned(), at: now, contradicts, fresh });
            return;
        };
        if known.contradicts != contradicts {
            let text = format!(
                "two different messages were accepted under {}, the second from {}",
                key.id,
                who(life)
            );
            court.accuse("idempotency", text);
        } else if fresh && known.fresh {
            let text = format!("{} was accepted as new twice, the second time from {}", key.id, who(life));
            court.accuse("doubled", text);
        }
        known.fresh |= fresh;
    }

    /// One key has one id and one place; only a fallback moves it, from the session's inbox to the member's.
    fn is_at(&mut self, key: &Key, id: &str, spot: &Spot, court: &mut Court) {
        let known = self.id.get_or_insert_with(|| id.to_owned());
        if known != id {
            let text = format!("{} has two ids, {known} and {id}", key.id);
            court.accuse("doubled", text);
        }
        let seq = *self.spots.entry(spot.log.clone()).or_insert(spot.seq);
        let may_move = matches!(self.letter.to, To::Session(_)) && self.letter.fallback == Fallback::Member;
        if seq != spot.seq {
            let text = format!("{} lies twice in {}, at {seq} and {}", key.id, spot.log, spot.seq);
            court.accuse("doubled", text);
        } else if self.spots.len() > 1 && !(may_move && self.spots.len() == 2) {
            let logs: Vec<&str> = self.spots.keys().map(String::as_str).collect();
            court.accuse("doubled", format!("{} lies in several logs: {}", key.id, logs.join(", ")));
        }
    }
}

/// Whether a letter may be handed to this process, through this place and from this log.
fn is_addressee(life: Life, letter: &Letter, handed: &Handed, world: &World) -> bool {
    let log = Some(handed.spot.log.as_str());
    let own_inbox = handed.place == Place::Inbox && log == world.inbox_of(life.slot).as_deref();
    let member_inbox =
        handed.place == Place::MemberInbox && log == world.member_inbox_of(life.slot).as_deref();
    let member = world.role(life.slot).map(|role| role.member);
    match &letter.to {
        To::Session(to) => {
            let of = world.role(*to).map(|role| role.member);
            own_inbox && life.slot == *to
                || member_inbox && of.is_some() && of == member && letter.fallback == Fallback::Member
        }
        To::Member(to) => member_inbox && member == Some(*to),
        To::Topic(to) => match &handed.place {
            Place::Topic { topic, partition, .. } => {
                let found = partition_of(&handed.spot.log, to);
                topic == to && found.is_some_and(|found| partition.is_none_or(|wanted| wanted == found))
            }
            Place::Inbox | Place::MemberInbox => false,
        },
    }
}

/// The partition that a log is of a topic.
pub(super) fn partition_of(log: &str, topic: &str) -> Option<u32> {
    log.strip_prefix("topic/")?.strip_prefix(topic)?.strip_prefix('/')?.parse().ok()
}
