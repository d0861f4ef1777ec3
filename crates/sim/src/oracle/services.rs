//! Services: a name has one holder, who holds it as long as its lease lives and it neither gives it up nor stops to renew it.

use std::collections::{BTreeMap, BTreeSet};

use crate::seen::{Life, Seen, Slot};

use super::world::World;
use super::{Court, who};

/// Why an offer may be refused in a world whose names are all legal.
const REFUSALS: [&str; 5] = ["name_taken", "busy", "unavailable", "rate_limited", "draining"];

/// A session that is here and does not renew a name for at least so long may lose it.
const OVERDUE_MS: u64 = 60_000;

/// Who was told last that it has a name.
#[derive(Clone, Copy, Debug)]
struct Holder {
    slot: Slot,
    /// When it was told, on the socket that the broker believed in.
    told_at: u64,
}

/// What a process has heard of the map.
#[derive(Debug, Default)]
struct Watch {
    version: Option<u64>,
    /// How often it was told that a name of a session is gone.
    gone: BTreeMap<(Slot, String), usize>,
}

/// What is known of services.
#[derive(Debug, Default)]
pub(super) struct Services {
    holders: BTreeMap<String, Holder>,
    /// How often a session gave a name up, or may have lost it because nobody renewed it.
    withdrawn: BTreeMap<(Slot, String), usize>,
    /// Since when no process of a session offers a name that one of them offered.
    unwanted: BTreeMap<(Slot, String), u64>,
    /// What each process offers.
    wanted: BTreeMap<Life, BTreeSet<String>>,
    /// What each process has given up and not offered again. That reaches the broker when a socket does, and takes the
    /// name away from whatever other process of the session has it by then. What is not answered is said again on
    /// every socket: beside each name is whether another process of the session may have taken it since this one was
    /// last admitted.
    given_up: BTreeMap<Life, BTreeMap<String, bool>>,
    watches: BTreeMap<Life, Watch>,
    alive: Option<BTreeSet<Life>>,
}

impl Services {
    pub(super) fn see(&mut self, at: u64, seen: &Seen, world: &World, court: &mut Court) {
        match seen {
            Seen::Offers(life, name) => {
                self.given_up.entry(*life).or_default().remove(name);
                if self.may_have_lapsed(at, life.slot, name) {
                    self.let_go(life.slot, name);
                }
                self.unwanted.remove(&(life.slot, name.clone()));
                self.wanted.entry(*life).or_default().insert(name.clone());
                if world.session(life.slot).is_some_and(|session| session.carrier == Some(*life)) {
                    self.may_take(*life);
                }
            }
            Seen::Withdraws(life, name) => {
                self.unwanted.insert((life.slot, name.clone()), at);
                if let Some(wanted) = self.wanted.get_mut(life) {
                    wanted.remove(name);
                }
                self.given_up.entry(*life).or_default().insert(name.clone(), false);
                self.let_go(life.slot, name);
            }
            Seen::Admitted(life, ..) => self.admitted(*life),
            Seen::OfferJudged(life, name, Ok(())) => self.held(at, *life, name, world, court),
            Seen::OfferJudged(life, name, Err(code)) if !REFUSALS.contains(&code.as_str()) => {
                let text = format!("{} offers {name}, and is refused with {code}", who(*life));
                court.accuse("service", text);
            }
            Seen::Attached { life, complete: false, .. } => {
                self.watches.entry(*life).or_default().version = None;
            }
            Seen::Event(life, _, name) if name == "resync" => {
                self.watches.entry(*life).or_default().version = None;
            }
            Seen::Service { life, kind, name, session, versions, .. } => {
                let watch = self.watches.entry(*life).or_default();
                watch.versioned(*life, *versions, court);
                if *kind == "gone"
                    && let Some(slot) = world.slot(session)
                {
                    let heard = watch.gone.entry((slot, name.clone())).or_default();
                    *heard += 1;
                    let withdrawn = self.withdrawn.get(&(slot, name.clone())).copied().unwrap_or(0);
                    let lapsed = usize::from(lapsed(&self.wanted, &self.unwanted, at, (slot, name)));
                    let withdrawn = withdrawn + lapsed;
                    let unexplained = heard.saturating_sub(withdrawn);
                    may_be_gone(*life, (slot, name), unexplained, world, court);
                }
            }
            Seen::Rewound { .. } => self.holders.clear(),
            Seen::Killed(life) | Seen::Ended(life, _) => {
                for name in self.wanted.remove(life).into_iter().flatten() {
                    self.unwanted.insert((life.slot, name), at);
                }
                self.given_up.remove(life);
                self.watches.remove(life);
            }
            Seen::Rest { alive, .. } => self.alive = Some(alive.iter().copied().collect()),
            Seen::Services(life, found) => self.check_found(*life, found, world, court),
            _ => {}
        }
    }

    /// A session may have lost a name.
    fn let_go(&mut self, slot: Slot, name: &str) {
        *self.withdrawn.entry((slot, name.to_owned())).or_default() += 1;
        self.holders.retain(|held, holder| held != name || holder.slot != slot);
    }

    /// Who is back may say again what it gave up, and take it away from the process that had the session meanwhile.
    fn admitted(&mut self, life: Life) {
        let given_up = self.given_up.get_mut(&life).into_iter().flatten();
        let again = given_up.filter_map(|(name, taken)| std::mem::take(taken).then(|| name.clone()));
        for name in again.collect::<Vec<_>>() {
            self.let_go(life.slot, &name);
        }
        self.may_take(life);
    }

    /// The process that carries a session may take what it offers, also what another process of it has given up.
    fn may_take(&mut self, life: Life) {
        let Some(wanted) = self.wanted.get(&life) else { return };
        let others = self.given_up.iter_mut().filter(|(other, _)| other.slot == life.slot && **other != life);
        for (name, taken) in others.flat_map(|(_, names)| names) {
            *taken |= wanted.contains(name);
        }
    }

    /// Whether a name may have ended because no process of the session that held it has renewed it for too long.
    fn may_have_lapsed(&self, at: u64, slot: Slot, name: &str) -> bool {
        lapsed(&self.wanted, &self.unwanted, at, (slot, name))
    }

    /// Whoever is told that a name is its own is the only one. What a socket brings that the broker has given up on may
    /// be long outdated.
    fn held(&mut self, at: u64, life: Life, name: &str, world: &World, court: &mut Court) {
        if !world.is_current(life) {
            return;
        }
        if let Some(other) = self.holders.get(name)
            && other.slot != life.slot
            && !self.may_be_given_up(other.slot, name)
            && !world.may_have_ended_since(other.slot, other.told_at)
            && !self.may_have_lapsed(at, other.slot, name)
        {
            let text = format!(
                "{} was told that it has {name}, which session {} has, whose lease could not have ended",
                who(life),
                other.slot.0
            );
            court.accuse("service", text);
        }
        self.holders.insert(name.to_owned(), Holder { slot: life.slot, told_at: at });
        self.may_take(life);
    }

    /// Whether some process of a session may give up a name that another has.
    fn may_be_given_up(&self, slot: Slot, name: &str) -> bool {
        self.given_up.iter().any(|(life, names)| life.slot == slot && names.contains_key(name))
    }

    /// In the end a name that somebody here wants is held by one who is here and wants it; and no name is held by who is
    /// long gone.
    fn check_found(&self, life: Life, found: &[(String, String, bool)], world: &World, court: &mut Court) {
        let Some(alive) = &self.alive else { return };
        let wants =
            |life: &Life, name: &String| self.wanted.get(life).is_some_and(|wanted| wanted.contains(name));
        let mut names = BTreeSet::new();
        for (name, session, online) in found {
            if !names.insert(name) {
                court.accuse("service", format!("{} finds {name} twice", who(life)));
            }
            let Some(slot) = world.slot(session) else { continue };
            let holder = alive.iter().find(|other| other.slot == slot && wants(other, name));
            let over = world.session(slot).is_none_or(|session| session.must_have_ended(&world.broker));
            if holder.is_none() && over {
                let text = format!("{name} is held by session {}, which is long gone", slot.0);
                court.accuse("service", text);
            } else if holder.is_some() && !online {
                court.accuse("service", format!("{name} is stale, and session {} is here", slot.0));
            }
        }
        let wanted = alive.iter().filter_map(|life| self.wanted.get(life)).flatten();
        for name in wanted.filter(|name| !names.contains(name)) {
            court.accuse(
                "service",
                format!("{name} is offered by somebody, and {} does not find it", who(life)),
            );
        }
    }
}

/// Whether no process of a session has offered a name for so long that it may have ended.
fn lapsed(
    wanted: &BTreeMap<Life, BTreeSet<String>>,
    unwanted: &BTreeMap<(Slot, String), u64>,
    at: u64,
    (slot, name): (Slot, &str),
) -> bool {
    if wanted.iter().any(|(life, names)| life.slot == slot && names.contains(name)) {
        return false;
    }
    unwanted.get(&(slot, name.to_owned())).is_some_and(|since| at.saturating_sub(*since) >= OVERDUE_MS)
}

impl Watch {
    fn versioned(&mut self, life: Life, (base, version): (u64, u64), court: &mut Court) {
        let known = self.version.unwrap_or(base);
        if base > known || version <= known || version <= base {
            let text =
                format!("{} has services at {known} and got a step from {base} to {version}", who(life));
            court.accuse("stream", text);
        }
        self.version = Some(version);
    }
}

/// A name is gone once for every time that it was given up, and for every end of its session's lease.
fn may_be_gone(life: Life, (slot, name): (Slot, &str), unexplained: usize, world: &World, court: &mut Court) {
    let Some(session) = world.session(slot) else { return };
    let ends = session.ends.len() + usize::from(session.may_have_ended(&world.broker));
    if unexplained > ends {
        let text = format!(
            "{} heard that {name} of session {} is gone, whose lease could not have ended",
            who(life),
            slot.0
        );
        court.accuse("service", text);
    }
}
