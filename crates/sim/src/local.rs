//! Local programs: they hand messages to a daemon, believe a yes, and ask again under the same id when there is none.

use std::collections::{BTreeMap, BTreeSet};

use tenure_outbox::drain::DiskFault;
use tenure_outbox::ledger::Row;
use tenure_outbox::{Answer, Status};
use tenure_proto::fingerprint::{Fingerprint, fingerprint};
use tenure_proto::ids::SessionKey;
use tenure_proto::message::SendParams;

use crate::daemon::Job;
use crate::letter::{params_of, some_letter};
use crate::rng::Rng;
use crate::scenario::RIVAL;
use crate::seen::{Letter, Seen, Slot};
use crate::world::{Event, World};

/// Milliseconds between two turns, about.
const EVERY_MS: u64 = 700;
/// Requests without an answer that are let wait.
const OUTSTANDING: usize = 32;
/// Rows that lie in an outbox from before the world began.
const OLD: u64 = 8;
const DAY_MS: u64 = 86_400_000;

/// A request to a daemon.
#[derive(Clone, Debug)]
pub(crate) struct Post {
    pub(crate) slot: Slot,
    pub(crate) sender: SessionKey,
    pub(crate) id: String,
    pub(crate) letter: Letter,
    pub(crate) params: SendParams,
    pub(crate) fingerprint: Fingerprint,
    /// Whether it is another letter under a used id.
    pub(crate) contradicts: bool,
}

/// The programs that use one daemon.
#[derive(Debug)]
pub(crate) struct Local {
    last: u64,
    /// Without an answer, and in which life of the daemon they were asked.
    open: BTreeMap<String, (Post, u64)>,
    /// Some that were promised.
    promised: Vec<Post>,
    rng: Rng,
    /// Which daemon it is.
    index: usize,
    /// Of those who use ids of others, and send anew what came to nothing.
    persons: Rng,
    /// Ids of others that were used, and rows that were looked up.
    used: BTreeSet<String>,
    looked_up: BTreeSet<u64>,
}

impl Local {
    pub(crate) fn new(index: usize, rng: Rng) -> Local {
        let (used, looked_up) = (BTreeSet::new(), BTreeSet::new());
        let persons = rng.fork(7);
        let (open, promised) = (BTreeMap::new(), Vec::new());
        Local { last: 0, open, promised, rng, index, persons, used, looked_up }
    }

    /// An id that nobody has used.
    pub(crate) fn next_id(&mut self) -> String {
        self.last += 1;
        format!("d{}-{}", self.index, self.last)
    }

    pub(crate) fn unanswered(&self) -> usize {
        self.open.len()
    }
}

impl World {
    /// The turn of the programs that use a daemon.
    pub(crate) fn local_turn(&mut self, index: usize) {
        let Some(daemon) = self.daemons.get_mut(index) else { return };
        let wait = if self.calm { 1_000 } else { daemon.local.rng.around(EVERY_MS) };
        self.at(self.t + wait, Event::Local { daemon: index });
        let Some(daemon) = self.daemons.get(index).filter(|daemon| daemon.up) else { return };
        let boot = daemon.boot;
        let lost: Vec<Post> = daemon
            .local
            .open
            .values()
            .filter(|(_, asked)| *asked != boot)
            .map(|(post, _)| post.clone())
            .collect();
        for post in lost {
            self.post(index, post);
        }
        if self.calm || self.daemons[index].local.open.len() >= OUTSTANDING {
            return;
        }
        if let Some(post) = self.next_post(index) {
            self.post(index, post);
        }
        if self.scenario.requeues {
            self.use_an_id_of_another(index);
            self.send_anew(index);
        }
    }

    /// A local program uses an id under which another program of the same member has sent something else.
    fn use_an_id_of_another(&mut self, index: usize) {
        let rival = self.seats.iter().find(|seat| seat.role.ordinal == RIVAL);
        let memo = rival.and_then(|seat| seat.process.as_ref()).map(|process| &process.memo);
        let theirs: Vec<String> =
            memo.into_iter().flat_map(|memo| &memo.accepted).map(|(id, _)| id.clone()).collect();
        let Some(local) = self.daemons.get_mut(index).map(|daemon| &mut daemon.local) else { return };
        let free: Vec<String> = theirs.into_iter().filter(|id| !local.used.contains(id)).collect();
        if !local.persons.chance(150) {
            return;
        }
        let Some(id) = local.persons.pick(&free) else { return };
        local.used.insert(id.clone());
        let letter = some_letter(&mut local.persons, &self.names, false, format!("d{index}.as.{id}:"));
        let slot = self.daemons[index]
            .seats
            .first()
            .and_then(|seat| self.seats.get(*seat))
            .map(|seat| seat.role.slot);
        if let Some(post) = slot.and_then(|slot| self.make_post(index, slot, id, letter)) {
            self.post(index, post);
        }
    }

    /// A person finds a dead row, and wants it sent anew: the broker is asked first.
    fn send_anew(&mut self, index: usize) {
        let Some(daemon) = self.daemons.get_mut(index) else { return };
        if !daemon.local.persons.chance(200) {
            return;
        }
        let reused = |row: &Row| {
            let why = row.last_error.as_deref().unwrap_or_default();
            row.status == Status::Dead && why.starts_with("idempotency_key_reused")
        };
        let dead = daemon
            .outbox
            .rows()
            .filter(|(number, row)| reused(row) && !daemon.local.looked_up.contains(number));
        let Some((number, row)) = dead.map(|(number, row)| (number, row.clone())).next() else { return };
        let of = |seat: &usize| {
            let slot = self.seats.get(*seat).map(|seat| seat.role.slot);
            slot.and_then(|slot| self.names.session_key(slot)) == Some(row.sender)
        };
        let Some(seat) = daemon.seats.iter().copied().find(of) else { return };
        daemon.local.looked_up.insert(number);
        let id = row.params.client_message_id.to_string();
        self.with(seat, |process, now, world| process.look_up(now, world, number, &id, row.attempts));
    }

    fn next_post(&mut self, index: usize) -> Option<Post> {
        let daemon = self.daemons.get_mut(index)?;
        let local = &mut daemon.local;
        if local.rng.chance(60)
            && let Some(post) = local.rng.pick(&local.promised)
        {
            return Some(post);
        }
        if local.rng.chance(25)
            && let Some(mut post) = local.rng.pick(&local.promised)
        {
            post.letter.body.push('!');
            let letter = post.letter.clone();
            let again = self.make_post(index, post.slot, post.id, letter)?;
            return Some(Post { contradicts: true, ..again });
        }
        let seat = local.rng.pick(&daemon.seats)?;
        let seat = self.seats.get(seat)?;
        let topics = seat.process.as_ref().is_some_and(|process| process.has_topics());
        let slot = seat.role.slot;
        self.new_post(index, slot, topics)
    }

    fn new_post(&mut self, index: usize, slot: Slot, topics: bool) -> Option<Post> {
        let names = self.names.clone();
        let daemon = self.daemons.get_mut(index)?;
        let id = daemon.local.next_id();
        let body = format!("d{index}.{}:", daemon.local.last);
        let letter = some_letter(&mut daemon.local.rng, &names, topics, body);
        self.make_post(index, slot, id, letter)
    }

    fn make_post(&self, _: usize, slot: Slot, id: String, letter: Letter) -> Option<Post> {
        let mut params = params_of(&self.names, &id, &letter)?;
        let body = letter.body.as_bytes();
        let fingerprint = fingerprint(&params.to, None, params.priority, None, body).ok()?;
        params.fingerprint = Some(fingerprint.hex());
        let sender = self.names.session_key(slot)?;
        Some(Post { slot, sender, id, letter, params, fingerprint, contradicts: false })
    }

    fn post(&mut self, index: usize, post: Post) {
        let daemon = &mut self.daemons[index];
        let (key, boot) = (daemon.key(&post.id), daemon.boot);
        if !post.contradicts {
            daemon.local.open.insert(post.id.clone(), (post.clone(), boot));
        }
        let seat = daemon
            .seats
            .iter()
            .copied()
            .find(|seat| self.seats.get(*seat).is_some_and(|seat| seat.role.slot == post.slot));
        let (slot, letter, contradicts) = (post.slot, post.letter.clone(), post.contradicts);
        self.see(&Seen::Posts { slot, key, letter, contradicts });
        if let Some(seat) = seat {
            self.ask_daemon(index, seat, Job::Accept(Box::new(post)));
        }
    }

    /// The daemon answers a program.
    pub(crate) fn post_answered(&mut self, index: usize, post: &Post, outcome: Result<&Answer, DiskFault>) {
        let daemon = &mut self.daemons[index];
        let key = daemon.key(&post.id);
        let outcome = match outcome {
            Ok(Answer::Conflict(conflict)) => Err(conflict.name().to_owned()),
            Ok(_) => Ok(()),
            Err(_) => Err("outbox_full".to_owned()),
        };
        if !post.contradicts {
            match &outcome {
                // It is asked again when the disk may be well.
                Err(code) if code == "outbox_full" => {
                    daemon.local.open.insert(post.id.clone(), (post.clone(), 0));
                }
                _ => _ = daemon.local.open.remove(&post.id),
            }
            if outcome.is_ok() && daemon.local.promised.len() < 64 {
                daemon.local.promised.push(post.clone());
            }
        }
        let (slot, contradicts) = (post.slot, post.contradicts);
        self.see(&Seen::PostAnswered { slot, key, contradicts, outcome });
    }

    /// What lies in an outbox when the world begins: promised days and weeks ago, and never sent.
    pub(crate) fn old_rows(&mut self, index: usize) {
        let Some(daemon) = self.daemons.get(index) else { return };
        let wall = self.hosts[usize::from(daemon.host)].clock.now(self.t).wall;
        let mut ages: Vec<u64> = Vec::new();
        for _ in 0..OLD {
            ages.push(self.daemons[index].local.rng.between(0, 40 * DAY_MS));
        }
        ages.sort_unstable_by(|a, b| b.cmp(a));
        for age in ages {
            let Some(seat) = self.daemons[index].seats.first().copied() else { return };
            let slot = self.seats[seat].role.slot;
            let Some(post) = self.new_post(index, slot, false) else { continue };
            let daemon = &mut self.daemons[index];
            let key = daemon.key(&post.id);
            daemon.outbox.accept(post.sender, &post.params, post.fingerprint, wall - age);
            let letter = post.letter.clone();
            self.see(&Seen::Posts { slot, key: key.clone(), letter, contradicts: false });
            self.see(&Seen::Aged { key: key.clone(), age_ms: age });
            self.see(&Seen::PostAnswered { slot, key, contradicts: false, outcome: Ok(()) });
        }
    }
}
