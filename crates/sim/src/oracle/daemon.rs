//! Daemons: whoever was told yes by one may forget about it. What it promised is at the broker, or dead with a reason that
//! somebody gave; it leaves as it was handed over, in the order of the promises; what comes is kept once, by whom it is
//! for, and settled after that.
//!
//! Not judged: the order of what was promised at the same time, and of what fell back to a member's inbox, which goes
//! there when the receiver's lease ends.

use std::collections::{BTreeMap, BTreeSet};

use crate::seen::{
    Fallback, Fate, Handed, Key, Lane, Letter, Life, Member, Place, Seen, Slot, Spot, To, Verb,
};

use super::fate::Fates;
use super::letters::{Letters, Message};
use super::world::World;
use super::{Court, who};

/// Hours that lie between the end of a row and the end of the broker's memory, at least.
const MARGIN_HOURS: u64 = 24;
/// Hours that a row may wait where the broker never forgets.
const PERMANENT_HOURS: u64 = 168;
const HOUR_MS: u64 = 3_600_000;

/// What daemons were told, and what they did.
#[derive(Debug, Default)]
pub(super) struct Daemons {
    /// Facts so far: what is later has a higher number.
    facts: u64,
    desks: BTreeSet<Life>,
    posts: BTreeMap<Key, Post>,
    /// What the broker refused, and with which codes.
    refusals: BTreeMap<Key, BTreeSet<String>>,
    given_up: BTreeSet<Key>,
    /// What a person had sent anew, under another id.
    requeued: BTreeSet<Key>,
    /// How far the clock of each one's machine was from where it started, at the least and at the most.
    clocks: BTreeMap<Member, (i64, i64)>,
    /// What was handed to a daemon, by where it lies; and for whom each id was.
    handed: BTreeMap<(Life, Spot, Lane), (String, /* its own */ bool)>,
    addressees: BTreeSet<(String, String)>,
    kept: BTreeSet<(String, String)>,
    bodies: BTreeSet<(String, String)>,
    rows: BTreeMap<Key, (String, Option<String>)>,
    inbox: BTreeSet<(String, String)>,
}

/// What was handed to a daemon under a key.
#[derive(Debug)]
struct Post {
    slot: Slot,
    letter: Letter,
    /// When it was first asked for, in milliseconds; and how old it was then.
    at: u64,
    age_ms: u64,
    /// When it was first asked for and when it was promised, in facts.
    asked: u64,
    promised: Option<u64>,
}

impl Daemons {
    pub(super) fn see(&mut self, seen: &Seen, world: &World, court: &mut Court) {
        self.facts += 1;
        match seen {
            Seen::Desk(life) => _ = self.desks.insert(*life),
            Seen::Posts { slot, key, letter, contradicts: false } => {
                let (slot, letter, asked) = (*slot, letter.clone(), self.facts);
                let at = world.now;
                let post = Post { slot, letter, at, age_ms: 0, asked, promised: None };
                self.posts.entry(key.clone()).or_insert(post);
            }
            Seen::Aged { key, age_ms } => {
                if let Some(post) = self.posts.get_mut(key) {
                    post.age_ms = *age_ms;
                }
            }
            Seen::PostAnswered { key, contradicts, outcome, .. } => {
                self.post_answered(key, *contradicts, outcome, court);
            }
            Seen::Sends { life, key, letter, .. } if self.desks.contains(life) => {
                self.sends(*life, key, letter, court);
            }
            Seen::Answered { life, key, outcome: Err(code), .. } if self.desks.contains(life) => {
                self.refusals.entry(key.clone()).or_default().insert(code.clone());
            }
            Seen::DaemonClockOff(member, off) => {
                let (low, high) = self.clocks.entry(*member).or_default();
                (*low, *high) = ((*low).min(*off), (*high).max(*off));
            }
            Seen::Requeued { old, new } => self.requeues(old, new, world),
            Seen::GivenUp { key, waited_ms, days } => self.give_up(key, *waited_ms, *days, court),
            Seen::Handed(life, handed) if self.desks.contains(life) => self.handed(*life, handed, world),
            Seen::Settles(life, place, spot, lane, Verb::Ack) if self.desks.contains(life) => {
                self.settles(*life, place, spot, *lane, world, court);
            }
            Seen::Kept { recipient, id, body } => self.keeps(recipient, id, body, world, court),
            Seen::Outbox(_, rows) => {
                let rows = rows.iter().cloned();
                self.rows.extend(rows.map(|(key, status, error)| (key, (status, error))));
            }
            Seen::Inbox(_, kept) => self.inbox.extend(kept.iter().cloned()),
            _ => {}
        }
    }

    /// At the end everything that was promised is accounted for.
    pub(super) fn judge(&self, letters: &Letters, fates: &Fates, world: &World, court: &mut Court) {
        for (key, post) in self.posts.iter().filter(|(_, post)| post.promised.is_some()) {
            // What its sender gave it may have run out before it left, by the clock of its machine.
            let ahead = self.clocks.get(&key.member).map_or(0, |(low, high)| high.abs_diff(*low));
            let over = post.letter.ttl_ms.is_some_and(|ttl| world.now + ahead + post.age_ms >= post.at + ttl);
            self.judge_row(key, post, over, letters, fates, world, court);
        }
        for gone in self.kept.difference(&self.inbox) {
            court.accuse("lost", format!("{} was in the inbox of {}, and is not there", gone.1, gone.0));
        }
        self.judge_order(letters, world, court);
    }

    #[allow(clippy::too_many_arguments)]
    fn judge_row(
        &self,
        key: &Key,
        post: &Post,
        over: bool,
        letters: &Letters,
        fates: &Fates,
        world: &World,
        court: &mut Court,
    ) {
        let Some((status, error)) = self.rows.get(key) else {
            return court.accuse("lost", format!("{} was promised, and no outbox has it", key.id));
        };
        match status.as_str() {
            "done" => {
                let record = letters.get(key).filter(|record| record.was_accepted());
                let kept = record.is_some_and(|record| record.kept(world).is_some());
                if record.is_none() || kept && fates.get(key) == Some(Fate::Unknown) {
                    let text = format!("{} counts as sent, and the broker never had it", key.id);
                    court.accuse("lost", text);
                } else if record.is_some_and(|record| !record.was_accepted_as(&post.letter)) {
                    let text = format!("{} counts as sent, and the broker has another under its id", key.id);
                    court.accuse("lost", text);
                }
            }
            "aborted" if !self.requeued.contains(key) => {
                court.accuse("lost", format!("{} was taken back, and nothing was sent in its place", key.id));
            }
            "dead" => {
                let code = error.as_deref().and_then(|error| error.split(':').next()).unwrap_or_default();
                let given = self.refusals.get(key).is_some_and(|codes| codes.contains(code));
                let too_old = code == "expired" && (over || self.given_up.contains(key));
                if !given && !too_old {
                    let text = format!("{} is dead because of {code:?}, and nobody said so", key.id);
                    court.accuse("dead", text);
                }
            }
            // That it does not come to rest is told elsewhere.
            _ => {}
        }
    }

    /// What is sent anew is promised anew.
    fn requeues(&mut self, old: &Key, new: &Key, world: &World) {
        let Some(Post { slot, letter, .. }) = self.posts.get(old) else { return };
        let (asked, at) = (self.facts, world.now);
        let post = Post { slot: *slot, letter: letter.clone(), at, age_ms: 0, asked, promised: Some(asked) };
        self.posts.insert(new.clone(), post);
        self.requeued.insert(old.clone());
    }

    /// What was promised before another was asked for lies before it. What the broker had answered for and then lost is sent
    /// again by a daemon that was killed before its disk had the answer: behind what came meanwhile.
    fn judge_order(&self, letters: &Letters, world: &World, court: &mut Court) {
        let mut lanes: BTreeMap<_, Vec<(&Key, &Post)>> = BTreeMap::new();
        for (key, post) in &self.posts {
            if post.letter.fallback == Fallback::Member {
                continue;
            }
            let lane = (!matches!(post.letter.to, To::Topic(_))).then_some(post.letter.lane);
            lanes.entry((post.slot, &post.letter.to, lane)).or_default().push((key, post));
        }
        let spots = |key: &Key| -> BTreeMap<String, u64> {
            let (Some(post), Some(record)) = (self.posts.get(key), letters.get(key)) else {
                return BTreeMap::new();
            };
            // What another program has sent under its id lies elsewhere.
            let own = |message: &&Message| record.letters_of(&message.id).all(|l| l.body == post.letter.body);
            let found = record.kept(world).filter(own).into_iter().flat_map(|message| message.spots());
            found.map(|(log, seq)| (log.clone(), seq)).collect()
        };
        for posts in lanes.values() {
            for (older, first) in posts {
                let Some(promised) = first.promised else { continue };
                if letters.get(older).is_some_and(|record| record.is_made_again(world)) {
                    continue;
                }
                for (younger, _) in posts.iter().filter(|(_, second)| promised < second.asked) {
                    let behind = spots(younger);
                    let passed =
                        spots(older).into_iter().find(|(log, seq)| behind.get(log).is_some_and(|b| b < seq));
                    if let Some((log, seq)) = passed {
                        let text = format!("{} ({log} {seq}) was passed by {}", older.id, younger.id);
                        court.accuse("order", text);
                    }
                }
            }
        }
    }

    fn post_answered(
        &mut self,
        key: &Key,
        contradicts: bool,
        outcome: &Result<(), String>,
        court: &mut Court,
    ) {
        match outcome {
            Ok(()) if contradicts => {
                court.accuse("idempotency", format!("another letter under {} was promised", key.id));
            }
            Ok(()) => {
                let now = self.facts;
                if let Some(post) = self.posts.get_mut(key) {
                    post.promised.get_or_insert(now);
                }
            }
            Err(code) if !contradicts && code.ends_with("_mismatch") => {
                let text = format!("a retry of {} was refused as another letter: {code}", key.id);
                court.accuse("idempotency", text);
            }
            Err(_) => {}
        }
    }

    /// It leaves as it was handed over, from whom it was.
    fn sends(&self, life: Life, key: &Key, letter: &Letter, court: &mut Court) {
        let Some(post) = self.posts.get(key) else {
            let text = format!("{} sent {}, which nobody handed over", who(life), key.id);
            return court.accuse("altered", text);
        };
        if post.letter != *letter {
            court.accuse("altered", format!("{} sent {} altered", who(life), key.id));
        }
        if post.slot != life.slot {
            let text = format!("{} sent {}, which is of session {}", who(life), key.id, post.slot.0);
            court.accuse("crosstalk", text);
        }
        if self.given_up.contains(key) {
            court.accuse("dead", format!("{} sent {}, which was given up", who(life), key.id));
        }
    }

    /// Nothing is given up that could still be sent safely.
    fn give_up(&mut self, key: &Key, waited_ms: u64, days: Option<u32>, court: &mut Court) {
        let hours = days.map_or(PERMANENT_HOURS, |days| {
            let hours = u64::from(days) * 24;
            hours - MARGIN_HOURS.max(hours.div_ceil(10))
        });
        if waited_ms < hours * HOUR_MS {
            court.accuse("dead", format!("{} was given up after {waited_ms} ms", key.id));
        }
        self.given_up.insert(key.clone());
    }

    fn handed(&mut self, life: Life, handed: &Handed, world: &World) {
        let Handed { place, spot, lane, from, .. } = handed;
        let Some(recipient) = recipient(life, place, world) else { return };
        let own = matches!(place, Place::Topic { .. }) && *from == life.slot;
        self.handed.insert((life, spot.clone(), *lane), (spot.id.clone(), own));
        if !own {
            self.addressees.insert((recipient, spot.id.clone()));
        }
    }

    /// What is settled is kept.
    fn settles(&self, life: Life, place: &Place, spot: &Spot, lane: Lane, world: &World, court: &mut Court) {
        let Some((id, own)) = self.handed.get(&(life, spot.clone(), lane)) else { return };
        let Some(recipient) = recipient(life, place, world) else { return };
        if !own && !self.kept.contains(&(recipient, id.clone())) {
            let text =
                format!("{} settled {} {}, and its inbox does not have it", who(life), spot.log, spot.seq);
            court.accuse("lost", text);
        }
    }

    fn keeps(&mut self, recipient: &str, id: &str, body: &str, world: &World, court: &mut Court) {
        let entry = (recipient.to_owned(), id.to_owned());
        if !self.addressees.contains(&entry) {
            let text = format!("{id} is in the inbox of {recipient}, whom it was not handed for");
            court.accuse("crosstalk", text);
        }
        // What was sent again after a rewind is another message.
        let again = !self.bodies.insert((recipient.to_owned(), body.to_owned()));
        let again = again && world.broker.rewinds.is_empty();
        if !self.kept.insert(entry) || again {
            court.accuse("doubled", format!("{id} is in the inbox of {recipient} twice"));
        }
    }
}

/// For whom a daemon keeps what it is handed there.
fn recipient(life: Life, place: &Place, world: &World) -> Option<String> {
    let role = world.role(life.slot)?;
    Some(match place {
        Place::MemberInbox => format!("member:{}", role.member_key),
        _ => format!("session:{}", role.session),
    })
}
