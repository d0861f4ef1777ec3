//! Connections from accept on: how many there may be, and which goes when there is no room.
//!
//! A connection is *unproved* until a session's hello is admitted on it: it may be a request over HTTP, a handshake, a
//! socket without a hello. Anybody can make those at no cost, so they are what is let go when room is needed: of the
//! address that has the most of them, the oldest, and of addresses that have as many the oldest of all. Whoever floods loses its own connections first, and a session that
//! comes back gets in.
//!
//! Some places are kept in reserve. Sessions fill all but those; past that a hello is admitted only with a good resume
//! token. So there is always a place on which a session that was here can prove it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::address::Address;

/// How many connections there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrowdLimits {
    /// Connections in all.
    pub total: usize,
    /// Those of them that only a session that resumes may keep.
    pub reserve: usize,
    /// Those of them that have proved nothing.
    pub unproved: usize,
    /// Those of them that are requests for services, which may take as long as they like.
    pub consumers: usize,
}

impl CrowdLimits {
    /// For `total` connections, of which at most `unproved` have proved nothing: an eighth in reserve, and half for
    /// requests for services at the most.
    pub fn of(total: usize, unproved: usize) -> CrowdLimits {
        let total = total.max(1);
        CrowdLimits { total, reserve: total / 8, unproved: unproved.max(1), consumers: (total / 2).max(1) }
    }

    /// Connections at which the reserve begins.
    fn soft(&self) -> usize {
        self.total - self.reserve
    }
}

/// The number of a connection, in the order in which they came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GuestId(pub u64);

/// What a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Unproved(Address),
    /// A session's, or of something that a session vouches for.
    Session,
    Consumer,
    /// It was let go and is not gone yet.
    Leaving,
}

/// What becomes of a connection that was just accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// It may stay, and this one is let go for it, if any must be.
    Stays(GuestId, Option<GuestId>),
    /// There is no room, and nobody who could make some.
    Full,
}

/// The connections of a broker.
#[derive(Debug)]
pub struct Crowd {
    limits: CrowdLimits,
    last: u64,
    /// At most `limits.total`.
    guests: BTreeMap<GuestId, Kind>,
    /// Those that have proved nothing, by where they come from.
    unproved: BTreeMap<Address, BTreeSet<GuestId>>,
    /// How many each address has of them, to find the most; of those that have as many, the one whose oldest came first
    /// is last. So in a flood from many addresses whoever came last is kept, whatever its address is.
    ranks: BTreeSet<(usize, Reverse<GuestId>, Address)>,
    sessions: usize,
    consumers: usize,
}

impl Crowd {
    /// An empty one.
    pub fn new(limits: CrowdLimits) -> Crowd {
        Crowd {
            limits,
            last: 0,
            guests: BTreeMap::new(),
            unproved: BTreeMap::new(),
            ranks: BTreeSet::new(),
            sessions: 0,
            consumers: 0,
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.guests.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.guests.is_empty()
    }

    /// A connection from `address` was accepted.
    pub fn enter(&mut self, address: Address) -> Entry {
        if self.guests.len() >= self.limits.total {
            return Entry::Full;
        }
        let strangers = self.guests.len() - self.sessions - self.consumers;
        let crowded = self.guests.len() >= self.limits.soft() || strangers >= self.limits.unproved;
        let goes = if crowded { self.oldest_of_the_most() } else { None };
        if let Some(goes) = goes {
            self.become_kind(goes, Kind::Leaving);
        }
        self.last += 1;
        let guest = GuestId(self.last);
        self.guests.insert(guest, Kind::Unproved(address));
        self.rank(address, |guests| _ = guests.insert(guest));
        Entry::Stays(guest, goes)
    }

    /// Whether a session that does not resume may stay.
    pub fn has_room(&self) -> bool {
        self.sessions + self.consumers < self.limits.soft()
    }

    /// A connection is a session's from here on. `false` when it was let go meanwhile.
    pub fn is_session(&mut self, guest: GuestId) -> bool {
        match self.guests.get(&guest) {
            Some(Kind::Unproved(_)) => self.become_kind(guest, Kind::Session),
            Some(Kind::Session) => {}
            _ => return false,
        }
        true
    }

    /// What a connection had proved itself by is over: it may be let go again, like others from `address`.
    pub fn rests(&mut self, guest: GuestId, address: Address) {
        if self.guests.get(&guest) == Some(&Kind::Session) {
            self.become_kind(guest, Kind::Unproved(address));
        }
    }

    /// A connection asks for a service. `false` when it was let go meanwhile, or too many do.
    pub fn is_consumer(&mut self, guest: GuestId) -> bool {
        match self.guests.get(&guest) {
            Some(Kind::Consumer) => true,
            Some(Kind::Unproved(_)) if self.consumers < self.limits.consumers => {
                self.become_kind(guest, Kind::Consumer);
                true
            }
            _ => false,
        }
    }

    /// A connection is gone.
    pub fn leave(&mut self, guest: GuestId) {
        self.become_kind(guest, Kind::Leaving);
        self.guests.remove(&guest);
    }

    fn oldest_of_the_most(&self) -> Option<GuestId> {
        let (_, Reverse(oldest), _) = self.ranks.last()?;
        Some(*oldest)
    }

    fn become_kind(&mut self, guest: GuestId, kind: Kind) {
        let Some(was) = self.guests.get_mut(&guest).map(|was| std::mem::replace(was, kind)) else { return };
        match was {
            Kind::Unproved(address) => self.rank(address, |guests| _ = guests.remove(&guest)),
            Kind::Session => self.sessions -= 1,
            Kind::Consumer => self.consumers -= 1,
            Kind::Leaving => {}
        }
        match kind {
            Kind::Session => self.sessions += 1,
            Kind::Consumer => self.consumers += 1,
            Kind::Unproved(address) => self.rank(address, |guests| _ = guests.insert(guest)),
            Kind::Leaving => {}
        }
    }

    /// Changes what an address has, and its rank with it.
    fn rank(&mut self, address: Address, change: impl FnOnce(&mut BTreeSet<GuestId>)) {
        let place = |guests: &BTreeSet<GuestId>| {
            guests.first().map(|oldest| (guests.len(), Reverse(*oldest), address))
        };
        let guests = self.unproved.entry(address).or_default();
        let before = place(guests);
        change(guests);
        let now = place(guests);
        if now.is_none() {
            self.unproved.remove(&address);
        }
        if before != now {
            if let Some(before) = before {
                self.ranks.remove(&before);
            }
            self.ranks.extend(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn from(n: u32) -> Address {
        Address::new(0xffff_0000_0000 | u128::from(n))
    }

    fn crowd(total: usize, reserve: usize, unproved: usize) -> Crowd {
        Crowd::new(CrowdLimits { total, reserve, unproved, consumers: total / 2 })
    }

    fn stays(entry: Entry) -> (u64, Option<u64>) {
        match entry {
            Entry::Stays(guest, goes) => (guest.0, goes.map(|goes| goes.0)),
            Entry::Full => panic!("full"),
        }
    }

    #[test]
    fn the_oldest_of_whoever_has_most_goes_when_the_reserve_begins() {
        let mut all = crowd(8, 2, 100);
        for n in 1..=5 {
            assert_eq!(stays(all.enter(from(1))), (n, None));
        }
        assert_eq!(stays(all.enter(from(2))), (6, None));
        assert_eq!(stays(all.enter(from(2))), (7, Some(1)), "address 1 has five");
        all.leave(GuestId(1));
        assert!(all.is_session(GuestId(2)) && all.is_session(GuestId(3)));
        // Now both have two: the one that has been here for longest goes, never a session.
        let (_, goes) = stays(all.enter(from(3)));
        assert_eq!(goes, Some(4));
        assert!(!all.is_session(GuestId(4)), "it was let go before it could prove anything");
        all.leave(GuestId(4));
        assert_eq!(all.len(), 6);
    }

    #[test]
    fn of_addresses_that_have_as_many_the_oldest_connection_goes() {
        let mut all = crowd(8, 2, 100);
        // A flood with one connection from each address, and somebody whose address is the highest, or the lowest.
        for victim in [u32::MAX, 0] {
            for n in 1..=20 {
                let (guest, goes) = stays(all.enter(from(1_000 + n)));
                goes.map(GuestId).into_iter().for_each(|goes| all.leave(goes));
                assert!(goes.is_none_or(|goes| goes < guest));
            }
            let (guest, goes) = stays(all.enter(from(victim)));
            all.leave(GuestId(goes.expect("one of the flood")));
            // It is not the next to go: it has as long as those that were here before it.
            for n in 1..=5 {
                let (_, goes) = stays(all.enter(from(1_000 + n)));
                assert_eq!(goes, Some(guest - 6 + u64::from(n)), "in the order in which they came");
                all.leave(GuestId(goes.expect("one of the flood")));
            }
            assert!(all.is_session(GuestId(guest)), "it had the time to prove itself");
            all.leave(GuestId(guest));
        }
    }

    #[test]
    fn sessions_fill_all_but_the_reserve_and_are_never_let_go() {
        let mut all = crowd(6, 2, 100);
        for _ in 0..4 {
            assert!(all.has_room());
            let (guest, goes) = stays(all.enter(from(1)));
            assert_eq!(goes, None);
            assert!(all.is_session(GuestId(guest)));
        }
        assert!(!all.has_room(), "only who resumes may stay");
        // Somebody may still come in and prove that.
        let (fifth, goes) = stays(all.enter(from(1)));
        assert_eq!(goes, None);
        let (sixth, goes) = stays(all.enter(from(1)));
        assert_eq!(goes, Some(fifth), "one that has proved nothing makes room for the next");
        assert_eq!(all.enter(from(1)), Entry::Full, "until it is gone");
        all.leave(GuestId(fifth));
        assert!(all.is_session(GuestId(sixth)));
        let (seventh, _) = stays(all.enter(from(1)));
        assert!(all.is_session(GuestId(seventh)));
        assert_eq!(all.enter(from(1)), Entry::Full);
    }

    #[test]
    fn those_that_have_proved_nothing_have_a_bound_of_their_own() {
        let mut all = crowd(100, 10, 2);
        assert_eq!(stays(all.enter(from(1))), (1, None));
        assert_eq!(stays(all.enter(from(1))), (2, None));
        assert!(all.is_session(GuestId(1)));
        assert_eq!(stays(all.enter(from(1))), (3, None));
        assert_eq!(stays(all.enter(from(1))), (4, Some(2)));
        all.leave(GuestId(2));
        all.leave(GuestId(2));
        assert_eq!(all.len(), 3);
    }

    #[test]
    fn whoever_rests_can_be_let_go_again() {
        let mut all = crowd(4, 2, 100);
        let (first, _) = stays(all.enter(from(1)));
        assert!(all.is_session(GuestId(first)));
        let (second, _) = stays(all.enter(from(1)));
        assert!(all.is_session(GuestId(second)));
        assert_eq!(stays(all.enter(from(1))).1, None, "both are at something");
        all.rests(GuestId(second), from(1));
        all.rests(GuestId(99), from(1));
        assert_eq!(stays(all.enter(from(1))).1, Some(second));
        all.rests(GuestId(second), from(1));
        assert!(!all.is_session(GuestId(second)), "it was told to go");
    }

    #[test]
    fn requests_for_services_have_half_of_it() {
        let mut all = crowd(4, 1, 100);
        let ids: Vec<GuestId> = (0..3).map(|_| GuestId(stays(all.enter(from(1))).0)).collect();
        assert!(all.is_consumer(ids[0]) && all.is_consumer(ids[0]) && all.is_consumer(ids[1]));
        assert!(!all.is_consumer(ids[2]));
        all.leave(ids[0]);
        assert!(all.is_consumer(ids[2]));
    }

    proptest! {
        #[test]
        fn counts_hold_whatever_happens(
            ops in proptest::collection::vec((0u8..6, 0u32..4, 0usize..40), 0..300),
        ) {
            let mut all = crowd(20, 3, 12);
            let mut here: Vec<GuestId> = Vec::new();
            for (op, address, pick) in ops {
                match op {
                    0 | 1 => if let Entry::Stays(guest, _) = all.enter(from(address)) {
                        here.push(guest);
                    },
                    _ if here.is_empty() => {}
                    2 => _ = all.is_session(here[pick % here.len()]),
                    3 => _ = all.is_consumer(here[pick % here.len()]),
                    4 => all.rests(here[pick % here.len()], from(address)),
                    _ => all.leave(here.swap_remove(pick % here.len())),
                }
                let count = |kind: fn(&Kind) -> bool| all.guests.values().filter(|k| kind(k)).count();
                prop_assert_eq!(all.len(), here.len());
                prop_assert!(all.len() <= 20);
                prop_assert_eq!(all.sessions, count(|kind| matches!(kind, Kind::Session)));
                prop_assert_eq!(all.consumers, count(|kind| matches!(kind, Kind::Consumer)));
                let unproved = count(|kind| matches!(kind, Kind::Unproved(_)));
                prop_assert_eq!(unproved, all.unproved.values().map(BTreeSet::len).sum::<usize>());
                prop_assert_eq!(unproved, all.ranks.iter().map(|(count, ..)| count).sum::<usize>());
            }
        }
    }
}
