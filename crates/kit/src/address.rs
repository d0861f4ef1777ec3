//! Who knocks from where: how many sockets an address may have, and how often it may say hello.
//!
//! Until a hello's proof holds, all that is known of a client is its address; so that is what is counted. A hello that
//! brings a good token and a good proof is not: whoever was here may always come back, however many share its address.

use std::collections::BTreeMap;

use crate::rate::{Rate, Rates};
use crate::time::Millis;

/// Addresses whose sockets are counted at once; one more is turned away until some are gone.
pub const ADDRESSES: usize = 65_536;

/// An address as it is counted: of IPv6 the network of 64 bits, which is one subscriber's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(u128);

impl Address {
    /// The address that is written so, mapped into IPv6 if it is none.
    pub fn new(bits: u128) -> Address {
        let mapped = bits >> 32 == 0xffff;
        // The loopback is an address, not a network.
        let own = bits >> 64 == 0;
        Address(if mapped || own { bits } else { bits >> 64 << 64 })
    }
}

/// What an address may have and do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressLimits {
    /// Sockets at once.
    pub sockets: usize,
    /// Hellos without a good token.
    pub hellos: Rate,
    /// Whether this machine's own addresses are counted too.
    pub loopback: bool,
}

impl Default for AddressLimits {
    fn default() -> AddressLimits {
        AddressLimits { sockets: 4_096, hellos: Rate::of(50, 10), loopback: false }
    }
}

/// What addresses have and do.
#[derive(Debug, Default)]
pub struct Addresses {
    limits: AddressLimits,
    /// At most [`ADDRESSES`].
    sockets: BTreeMap<Address, usize>,
    hellos: Rates<Address>,
}

impl Addresses {
    /// With these limits.
    pub fn new(limits: AddressLimits) -> Addresses {
        Addresses { limits, ..Addresses::default() }
    }

    /// Whether what comes from an address is counted; `loopback` is whether it is this machine's own.
    pub fn counts(&self, loopback: bool) -> bool {
        self.limits.loopback || !loopback
    }

    /// A socket opens; `false` when it must not.
    pub fn open(&mut self, address: Address) -> bool {
        let addresses = self.sockets.len();
        let count = match self.sockets.get_mut(&address) {
            Some(count) => count,
            None if addresses >= ADDRESSES || self.limits.sockets == 0 => return false,
            None => self.sockets.entry(address).or_default(),
        };
        let room = *count < self.limits.sockets;
        *count += usize::from(room);
        room
    }

    /// A socket that was opened is gone.
    pub fn close(&mut self, address: Address) {
        if let Some(count) = self.sockets.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.sockets.remove(&address);
            }
        }
    }

    /// A hello comes; else says after how many milliseconds one may.
    pub fn hello(&mut self, now: Millis, address: Address) -> Result<(), u64> {
        self.hellos.take(now, &address, self.limits.hellos)
    }

    /// The last hello was by somebody who was here before: it does not count.
    pub fn known(&mut self, address: Address) {
        self.hellos.give_back(&address, self.limits.hellos);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(n: u32) -> Address {
        Address::new(0xffff_0000_0000 | u128::from(n))
    }

    #[test]
    fn sockets_are_counted_for_each_address_at_its_bound() {
        let mut all = Addresses::new(AddressLimits { sockets: 2, ..AddressLimits::default() });
        assert_eq!([1, 1, 1, 2].map(|n| all.open(v4(n))), [true, true, false, true]);
        all.close(v4(1));
        assert_eq!([1, 1].map(|n| all.open(v4(n))), [true, false]);
        for n in [1, 1, 2, 2, 3] {
            all.close(v4(n));
        }
        assert!(all.sockets.is_empty());
    }

    #[test]
    fn a_network_of_ipv6_is_one_address_and_of_ipv4_each() {
        let net = 0x2001_0db8_0000_0001_u128 << 64;
        assert_eq!(Address::new(net | 1), Address::new(net | 2));
        assert_ne!(Address::new(net), Address::new(net + (1 << 64)));
        assert_ne!(v4(1), v4(2));
        assert_ne!(Address::new(1), Address::new(2));
    }

    #[test]
    fn loopback_counts_only_if_asked_for() {
        let limits = |loopback| Addresses::new(AddressLimits { loopback, ..AddressLimits::default() });
        assert!(!limits(false).counts(true) && limits(false).counts(false));
        assert!(limits(true).counts(true));
    }

    #[test]
    fn a_hello_of_somebody_who_was_here_does_not_count() {
        let hellos = Rate { burst: 2, per_second: 1 };
        let mut all = Addresses::new(AddressLimits { hellos, ..AddressLimits::default() });
        let hello = |all: &mut Addresses| all.hello(Millis(0), v4(1));
        assert_eq!((hello(&mut all), hello(&mut all), hello(&mut all)), (Ok(()), Ok(()), Err(1_000)));
        all.known(v4(1));
        assert_eq!((hello(&mut all), hello(&mut all)), (Ok(()), Err(1_000)));
        assert_eq!(all.hello(Millis(0), v4(2)), Ok(()));
    }

    #[test]
    fn more_addresses_than_are_counted_are_turned_away() {
        let mut all = Addresses::default();
        assert!((0..ADDRESSES as u32).all(|n| all.open(v4(n))));
        assert!(!all.open(v4(ADDRESSES as u32)));
        assert!(all.open(v4(0)));
        all.close(v4(1));
        assert!(all.open(v4(ADDRESSES as u32)));
    }
}
