//! What operators decide: it holds from when it is answered until it is decided anew, through every crash, for whoever comes.
//!
//! Where doubt begins: what was asked and not answered may hold or not, and what a store that went back holds is anything that
//! it ever was. A start tells, as nothing but the store stands behind what it says. Who joins again with a lease that could not
//! end on a disk that takes nothing is let in at once, and put out when that does not take the member either.

use std::collections::{BTreeMap, BTreeSet};

use crate::seen::{Matter, Person, Seen};

use super::Court;

/// How long a store that takes writes again may need for those that waited.
const CATCHES_UP_MS: u64 = 5_000;

/// How a matter may stand.
#[derive(Debug)]
struct Standing {
    possible: BTreeSet<Option<String>>,
    /// Since when it may stand like this and no other way.
    since: u64,
    /// How it may ever have stood.
    ever: BTreeSet<Option<String>>,
}

impl Default for Standing {
    fn default() -> Standing {
        Standing { possible: BTreeSet::from([None]), since: 0, ever: BTreeSet::from([None]) }
    }
}

impl Standing {
    fn may_be(&mut self, at: u64, value: Option<String>) {
        self.ever.insert(value.clone());
        if self.possible.insert(value) {
            self.since = at;
        }
    }

    fn is(&mut self, at: u64, value: Option<String>) {
        self.ever.insert(value.clone());
        let known = BTreeSet::from([value]);
        if self.possible != known {
            (self.possible, self.since) = (known, at);
        }
    }

    /// How it has stood without doubt ever since `from`.
    fn certain(&self, from: u64) -> Option<&Option<String>> {
        self.possible.first().filter(|_| self.possible.len() == 1 && self.since <= from)
    }
}

/// The roll of the mesh, as far as it can be known.
#[derive(Debug, Default)]
pub(super) struct Roll {
    matters: BTreeMap<Matter, Standing>,
    /// When each guest said hello with an invite who was no member then, for as long as nothing else may have made it one.
    joining: BTreeMap<u8, u64>,
    /// Hellos with an invite that nobody has answered yet: whose, when, and what the invite gives.
    knocking: Vec<(u8, u64, String)>,
    /// Whether the store takes nothing: its disk is full, or a sync has failed. And since when it takes all again.
    full: bool,
    poisoned: bool,
    well_since: u64,
    /// How many each invite has let in for sure since the store last went back.
    let_in: BTreeMap<u8, u32>,
}

impl Roll {
    pub(super) fn see(&mut self, at: u64, seen: &Seen, court: &mut Court) {
        match seen {
            Seen::Asks(matter, value) => {
                self.is_no_longer_joining(*matter);
                let known = self.matters.entry(*matter).or_default();
                if let (Matter::Member(_), Some(new)) = (matter, value) {
                    // What is taken away is gone at once, and what is given comes when it is on disk.
                    for old in known.possible.iter().flatten().cloned().collect::<Vec<_>>() {
                        known.may_be(at, Some(common(&old, new)));
                    }
                }
                known.may_be(at, value.clone());
            }
            Seen::Decided(matter, value) => {
                self.is_no_longer_joining(*matter);
                self.matters.entry(*matter).or_default().is(at, value.clone());
                self.may_join(at, *matter);
            }
            Seen::Stands { matter, value, at_start } => {
                self.is_no_longer_joining(*matter);
                self.stands(at, *matter, value, *at_start, court);
            }
            Seen::Rewound { .. } => {
                for matter in self.matters.values_mut() {
                    (matter.possible, matter.since) = (matter.ever.clone(), at);
                }
                self.joining.clear();
                self.let_in.clear();
            }
            Seen::BrokerDown(_) => self.knocking.clear(),
            Seen::DiskFull(full) => (self.full, self.well_since) = (*full, at),
            Seen::Poisoned => self.poisoned = true,
            Seen::BrokerUp(_) => self.poisoned = false,
            Seen::GuestKnocks { guest, invite: Some((_, gives)) } => {
                let member = self.matters.entry(Matter::Member(Person::Guest(*guest))).or_default();
                // Two hellos of one guest under way are one too many to tell apart.
                self.joining.remove(guest);
                if member.certain(at) == Some(&None) {
                    self.joining.insert(*guest, at);
                }
                self.knocking.push((*guest, at, gives.clone()));
                self.may_join(at, Matter::Member(Person::Guest(*guest)));
            }
            Seen::GuestEnters { guest, invite, uses, since, outcome } => {
                self.enters(at, *guest, invite.map(|invite| (invite, *uses)), *since, outcome, court);
            }
            Seen::GuestMay { guest, right, since, allowed } => {
                self.may(*guest, right, *since, *allowed, court);
            }
            _ => {}
        }
    }

    fn certain(&self, matter: Matter, from: u64) -> Option<Option<String>> {
        // What nobody has ever touched is not so.
        self.matters.get(&matter).map_or(Some(None), |standing| standing.certain(from).cloned())
    }

    fn stands(&mut self, at: u64, matter: Matter, value: &Option<String>, at_start: bool, court: &mut Court) {
        let known = self.matters.entry(matter).or_default();
        // How the broker was started is nobody's decision.
        let begun = matter == Matter::Settings && known.possible.contains(&None);
        if !known.possible.contains(value) && !begun {
            let may = &known.possible;
            court.accuse("decision", format!("{matter:?} is {value:?}, and may be one of {may:?}"));
        }
        if at_start {
            known.is(at, value.clone());
        }
    }

    fn enters(
        &mut self,
        at: u64,
        guest: u8,
        invite: Option<(u8, u32)>,
        since: u64,
        outcome: &Result<(), String>,
        court: &mut Court,
    ) {
        let matter = Matter::Member(Person::Guest(guest));
        let closed = self.certain(Matter::Founded, since).map(|founded| founded.is_some());
        let revoked = invite.map(|(number, _)| self.certain(Matter::Revoked(number), since));
        let revoked = revoked.is_some_and(|revoked| matches!(revoked, Some(Some(_))));
        let member = self.certain(matter, since).map(|member| member.is_some());
        self.knocking.retain(|(other, then, _)| (*other, *then) != (guest, since));
        let joins = self.joining.get(&guest) == Some(&since);
        if joins {
            self.joining.remove(&guest);
        }
        match outcome {
            Ok(()) if closed == Some(true) && (member == Some(false) || joins && revoked) => {
                court.accuse("roll", format!("guest {guest} was let in, and is no member: {invite:?}"));
            }
            Ok(()) if closed == Some(true) && !self.is_stuck(at) => {
                if let Some(member) = self.matters.get_mut(&matter)
                    && member.possible.remove(&None)
                {
                    member.since = at;
                }
                if let (Some((number, uses)), true) = (invite, joins) {
                    let count = self.let_in.entry(number).or_default();
                    *count += 1;
                    if *count > uses {
                        court.accuse("roll", format!("invite {number} is for {uses}, and let {count} in"));
                    }
                }
            }
            Err(code) if code == "unauthorized" && (closed == Some(false) || member == Some(true)) => {
                court.accuse("roll", format!("guest {guest} was turned away, and may come"));
            }
            // Nothing has made it a member.
            Err(code) if code == "unauthorized" && joins => {
                self.matters.entry(matter).or_default().is(at, None);
            }
            _ => {}
        }
    }

    /// Whether what a lease waits for may not be on disk as yet.
    fn is_stuck(&self, at: u64) -> bool {
        self.full || self.poisoned || self.well_since > 0 && at < self.well_since + CATCHES_UP_MS
    }

    /// Whoever is no member as yet may become one by a hello that is under way.
    fn may_join(&mut self, at: u64, matter: Matter) {
        let Some(known) = self.matters.get_mut(&matter).filter(|known| known.possible.contains(&None)) else {
            return;
        };
        for (_, _, gives) in
            self.knocking.iter().filter(|(guest, ..)| matter == Matter::Member(Person::Guest(*guest)))
        {
            known.may_be(at, Some(gives.clone()));
        }
    }

    fn is_no_longer_joining(&mut self, matter: Matter) {
        if let Matter::Member(Person::Guest(guest)) = matter {
            self.joining.remove(&guest);
        }
    }

    fn may(&mut self, guest: u8, right: &str, since: u64, allowed: bool, court: &mut Court) {
        let Some(founded) = self.certain(Matter::Founded, since) else { return };
        let standing = match founded {
            None => Some(Some("all".to_owned())),
            Some(_) => self.certain(Matter::Member(Person::Guest(guest)), since),
        };
        let Some(standing) = standing else { return };
        let rights = standing.clone().unwrap_or_default();
        let may = rights == "all" || rights.split(',').any(|one| one == right);
        if may != allowed {
            let was = if allowed { "was let" } else { "was not let" };
            court.accuse("rights", format!("guest {guest} {was} {right}, and is {standing:?}"));
        }
    }
}

/// What somebody may do who may only do what both say.
fn common(one: &str, other: &str) -> String {
    match (one, other) {
        ("all", other) => other.to_owned(),
        (one, "all") => one.to_owned(),
        (one, other) => {
            let both = one.split(',').filter(|right| other.split(',').any(|also| also == *right));
            both.collect::<Vec<_>>().join(",")
        }
    }
}
