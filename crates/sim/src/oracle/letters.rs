//! Letters: one key is one message, as it was sent, to whom it was sent.

use std::collections::{BTreeMap, BTreeSet};

use crate::seen::{Fallback, Handed, Key, Letter, Life, Place, Seen, Slot, Spot, To};

use super::broker::{Rewind, Sight, Sights};
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
    /// The messages that the broker made of it, in the order in which somebody saw them: one, unless its store went
    /// back and it was sent again.
    messages: Vec<Message>,
}

/// A message, as somebody has seen it.
#[derive(Debug)]
pub(super) struct Message {
    /// The broker's id.
    pub(super) id: String,
    sights: Sights,
    /// Its number in each log that it was seen in, and when it was seen there.
    spots: BTreeMap<String, (u64, Sights)>,
    /// What it says, once somebody has read it.
    body: Option<String>,
    pub(super) accepted: Option<Accepted>,
}

/// The broker's yes.
#[derive(Clone, Debug)]
pub(super) struct Accepted {
    pub(super) at: u64,
    /// Whether it was given to another letter than the first under this key.
    contradicts: bool,
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
            Seen::History(log, _, entries) => {
                for (seq, id, body) in entries {
                    self.found(Spot { log: log.clone(), seq: *seq, id: id.clone() }, body, world, court);
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
            messages: Vec::new(),
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
        outcome: &Result<(Spot, bool), String>,
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
                // Another letter under the same key may be for somebody else.
                if let (To::Session(to), "no_such_session", false) =
                    (&record.letter.to, code.as_str(), contradicts)
                    && world.session(*to).is_some_and(|session| session.was_admitted_before(record.first_at))
                {
                    let text = format!("{refused} was told that session {} was never seen, and it was", to.0);
                    court.accuse("refused", text);
                }
                // Of a retry after the store went back: an earlier history may have it all the same.
                if CERTAIN.contains(&code.as_str()) && !world.broker.rewound_since(record.first_at) {
                    let hopes = if contradicts { &mut record.other_hopes } else { &mut record.hopes };
                    *hopes = hopes.saturating_sub(1);
                }
            }
            Ok((spot, duplicate)) => {
                self.ids.entry(spot.id.clone()).or_insert_with(|| key.clone());
                record.is_at(key, spot, None, world.sight(life), world, court);
                record.is_accepted(life, key, contradicts, (&spot.id, *duplicate), world, court);
            }
        }
    }

    fn handed(&mut self, life: Life, handed: &Handed, world: &World, court: &mut Court) {
        let (reader, key) = (who(life), &handed.key);
        let Some(record) = self.records.get_mut(key) else {
            let text = format!("{reader} was handed {}, which nobody sent", key.id);
            return court.accuse("altered", text);
        };
        self.ids.entry(handed.spot.id.clone()).or_insert_with(|| key.clone());
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
        record.is_at(key, &handed.spot, Some(&handed.body), world.sight(life), world, court);
    }

    /// An entry of a topic's log, as it stands there.
    fn found(&mut self, spot: Spot, body: &str, world: &World, court: &mut Court) {
        let Some(key) = self.bodies.get(body).cloned() else {
            return court.accuse("altered", format!("{} {} says what nobody sent", spot.log, spot.seq));
        };
        self.ids.entry(spot.id.clone()).or_insert_with(|| key.clone());
        let Some(record) = self.records.get_mut(&key) else { return };
        let hopes = if body == record.letter.body { record.hopes } else { record.other_hopes };
        if hopes == 0 {
            let text = format!("{} {} holds {}, which was refused", spot.log, spot.seq, key.id);
            court.accuse("ghost", text);
        }
        let sight = Sight { at: world.now, run: world.broker.run };
        record.is_at(&key, &spot, Some(body), sight, world, court);
    }
}

impl Letters {
    /// Whether the message that the history of now has at a place may have expired.
    pub(super) fn may_have_expired_at(&self, log: &str, seq: u64, world: &World) -> bool {
        self.records.values().any(|record| {
            let there = record.kept(world).filter(|message| message.seq_in(log) == Some(seq));
            there.is_some_and(|message| record.may_be(&message.id, |letter| letter.ttl_ms.is_some()))
        })
    }
}

impl Record {
    /// The messages that the broker made of it.
    pub(super) fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The message that must be at the broker, whatever its store went through.
    pub(super) fn kept(&self, world: &World) -> Option<&Message> {
        self.messages.iter().rev().find(|message| world.broker.keeps_any(&message.sights))
    }

    /// The same, if its sender was told yes to the letter that was first sent under its key.
    pub(super) fn promised(&self, world: &World) -> Option<&Message> {
        let own = |accepted: &Accepted| !accepted.contradicts;
        self.kept(world).filter(|message| message.accepted.as_ref().is_some_and(own))
    }

    /// Whether its sender was told yes to a message that is gone since, and the one that is kept was made again.
    pub(super) fn is_made_again(&self, world: &World) -> bool {
        let kept = self.kept(world).map(|message| &message.id);
        self.messages.iter().any(|message| message.accepted.is_some() && Some(&message.id) != kept)
    }

    /// The letters that a message may be: the one that it says, or as yet those that its sender was told yes to.
    pub(super) fn letters_of(&self, id: &str) -> impl Iterator<Item = &Letter> {
        let message = self.messages.iter().find(|message| message.id == id);
        let body = message.and_then(|message| message.body.as_deref());
        let accepted = message.and_then(|message| message.accepted.as_ref());
        let other = accepted.map(|accepted| accepted.contradicts);
        let is = move |letter: &&Letter| match (body, other) {
            (Some(body), _) => letter.body == body,
            (None, Some(other)) => other == (letter.body != self.letter.body),
            (None, None) => true,
        };
        std::iter::once(&self.letter).chain(&self.others).filter(is)
    }

    /// Whether a letter that a message may be is so.
    pub(super) fn may_be(&self, id: &str, so: impl Fn(&Letter) -> bool) -> bool {
        self.letters_of(id).any(so)
    }

    /// Whether its sender was ever told yes.
    pub(super) fn was_accepted(&self) -> bool {
        self.messages.iter().any(|message| message.accepted.is_some())
    }

    /// Whether its sender was ever told yes to this letter.
    pub(super) fn was_accepted_as(&self, letter: &Letter) -> bool {
        let other = self.letter.body != letter.body;
        let accepted = self.messages.iter().filter_map(|message| message.accepted.as_ref());
        accepted.into_iter().any(|accepted| accepted.contradicts == other)
    }

    /// Whether another letter was ever accepted under its key.
    pub(super) fn was_contradicted(&self) -> bool {
        self.messages
            .iter()
            .filter_map(|message| message.accepted.as_ref())
            .any(|accepted| accepted.contradicts)
    }

    fn is_accepted(
        &mut self,
        life: Life,
        key: &Key,
        contradicts: bool,
        (id, duplicate): (&str, bool),
        world: &World,
        court: &mut Court,
    ) {
        let fresh = !duplicate;
        // What a rewind may have taken away may be accepted again; and a socket may still tell of a history that is gone.
        let told = world.broker.keeps(world.sight(life));
        let stands = |message: &&Message| message.id == id || told && world.broker.keeps_any(&message.sights);
        let known = self.messages.iter().filter(stands).filter_map(|message| message.accepted.as_ref());
        for known in known {
            if known.contradicts != contradicts {
                let text = format!(
                    "two different messages were accepted under {}, the second from {}",
                    key.id,
                    who(life)
                );
                court.accuse("idempotency", text);
            } else if fresh && known.fresh {
                let text =
                    format!("{} was accepted as new twice, the second time from {}", key.id, who(life));
                court.accuse("doubled", text);
            }
        }
        let Some(message) = self.messages.iter_mut().find(|message| message.id == id) else { return };
        let accepted = message.accepted.get_or_insert(Accepted { at: world.now, contradicts, fresh });
        accepted.fresh |= fresh;
    }

    /// One key has one id and one place; only a fallback moves it, from the session's inbox to the member's. Another id
    /// is that of what was sent again after a rewind that may have taken the first away.
    fn is_at(
        &mut self,
        key: &Key,
        spot: &Spot,
        body: Option<&str>,
        sight: Sight,
        world: &World,
        court: &mut Court,
    ) {
        let first_at = self.first_at;
        let lost = |known: &Message| {
            let may = |rewind: &Rewind| first_at <= rewind.at && known.sights.first_at() >= rewind.copied_at;
            world.broker.rewinds.iter().any(may)
        };
        if !self.messages.iter().any(|message| message.id == spot.id) {
            if let Some(known) = self.messages.iter().find(|message| !lost(message)) {
                let text = format!("{} has two ids, {} and {}", key.id, known.id, spot.id);
                court.accuse("doubled", text);
            }
            let (id, spots) = (spot.id.clone(), BTreeMap::new());
            self.messages.push(Message { id, sights: Sights::new(sight), spots, body: None, accepted: None });
        }
        if let (Some(message), Some(body)) = (self.messages.iter_mut().find(|m| m.id == spot.id), body) {
            message.body.get_or_insert_with(|| body.to_owned());
        }
        let may_move = self.may_be(&spot.id, |letter| {
            matches!(letter.to, To::Session(_)) && letter.fallback == Fallback::Member
        });
        let Some(message) = self.messages.iter_mut().find(|message| message.id == spot.id) else { return };
        message.sights.add(sight);
        let spots = message.spots.entry(spot.log.clone());
        let (seq, known) = spots.or_insert_with(|| (spot.seq, Sights::new(sight)));
        if *seq != spot.seq {
            // A rewind may have undone its move, after which it moved again; and what an old socket still brings may be of
            // either history.
            let (stood, stands) = (world.broker.keeps_any(known), world.broker.keeps(sight));
            if !may_move || (stood && stands) {
                let text = format!("{} lies twice in {}, at {seq} and {}", key.id, spot.log, spot.seq);
                court.accuse("doubled", text);
            }
            if stands || !stood {
                (*seq, *known) = (spot.seq, Sights::new(sight));
            }
            return;
        }
        known.add(sight);
        if message.spots.len() > 1 && !(may_move && message.spots.len() == 2) {
            let logs: Vec<&str> = message.spots.keys().map(String::as_str).collect();
            court.accuse("doubled", format!("{} lies in several logs: {}", key.id, logs.join(", ")));
        }
    }
}

impl Message {
    /// Where it was seen: log and number.
    pub(super) fn spots(&self) -> impl Iterator<Item = (&String, u64)> {
        self.spots.iter().map(|(log, (seq, _))| (log, *seq))
    }

    /// Its number in a log, if it was seen there.
    pub(super) fn seq_in(&self, log: &str) -> Option<u64> {
        self.spots.get(log).map(|(seq, _)| *seq)
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
