//! Addresses and networks, as an operator bans them: `10.0.0.7`, `10.0.0.0/8`, `2001:db8::/32`.
//!
//! One value, one spelling, whatever it came as: bits past the prefix are dropped, IPv4 is written as IPv4. What is to be
//! trusted is read with [`Cidr::exact`], for which such bits are a slip.

use core::net::{IpAddr, Ipv6Addr};
use std::fmt;
use std::str::FromStr;

use tenure_proto::error::WireError;

/// Bits of an IPv4 address that are the same in every one, mapped into IPv6.
const MAPPED: u8 = 96;

/// A network: all addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr {
    /// How many bits they share, of the 128 of an address that is mapped into IPv6.
    len: u8,
    bits: u128,
}

impl Cidr {
    /// The network of `len` bits that `address` is in.
    pub fn around(address: IpAddr, len: u8) -> Cidr {
        Cidr::of(bits(address), len)
    }

    fn of(address: u128, len: u8) -> Cidr {
        let len = len.min(128);
        // A shift by all bits is none.
        let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
        Cidr { len, bits: address & mask }
    }

    /// How many bits its addresses share, of 128.
    pub fn len(&self) -> u8 {
        self.len
    }

    /// Whether it is everything.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether an address is in it. No network of IPv6 holds addresses of IPv4, though they are mapped into it.
    pub fn holds(&self, address: IpAddr) -> bool {
        let v4 = address.to_canonical().is_ipv4();
        (!v4 || self.len >= MAPPED) && Cidr::around(address, self.len) == *self
    }

    /// Reads one that has no bits past its prefix.
    pub fn exact(text: &str) -> Result<Cidr, WireError> {
        let cidr: Cidr = text.parse()?;
        let written = text.split('/').next().and_then(|address| address.parse().ok()).map(bits);
        let slip = || WireError::bad_request(format!("this has bits past its prefix; the network is {cidr}"));
        written.filter(|written| *written == cidr.bits).map(|_| cidr).ok_or_else(slip)
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

impl FromStr for Cidr {
    type Err = WireError;

    fn from_str(text: &str) -> Result<Cidr, WireError> {
        let bad = || {
            WireError::bad_request(
                "an address is written 10.0.0.7 or 2001:db8::1, a network 10.0.0.0/8 or 2001:db8::/32",
            )
        };
        let (address, len) = match text.split_once('/') {
            Some((address, len)) => (address, Some(len)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| bad())?;
        let (most, shift) = match address {
            IpAddr::V4(_) => (32, MAPPED),
            IpAddr::V6(_) => (128, 0),
        };
        let len = match len {
            None => most,
            Some(len) if len.len() <= 3 && len.bytes().all(|b| b.is_ascii_digit()) => {
                len.parse().map_err(|_| bad())?
            }
            Some(_) => return Err(bad()),
        };
        let cidr = (len <= most).then(|| Cidr::of(bits(address), shift + len)).ok_or_else(bad)?;
        // A mapped address of IPv4 with a prefix that reaches beyond its kind.
        match address.to_canonical().is_ipv4() && cidr.len < MAPPED {
            true => Err(bad()),
            false => Ok(cidr),
        }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let v6 = Ipv6Addr::from_bits(self.bits);
        match v6.to_ipv4_mapped().filter(|_| self.len >= MAPPED) {
            Some(v4) if self.len == 128 => write!(f, "{v4}"),
            Some(v4) => write!(f, "{v4}/{}", self.len - MAPPED),
            None if self.len == 128 => write!(f, "{v6}"),
            None => write!(f, "{v6}/{}", self.len),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cidr(text: &str) -> Cidr {
        text.parse().unwrap_or_else(|_| panic!("{text}"))
    }

    #[test]
    fn a_network_holds_its_own_and_nobody_else() {
        let v4 = |text: &str| IpAddr::V4(text.parse().unwrap());
        assert!(cidr("10.0.0.0/8").holds(v4("10.255.0.1")));
        assert!(!cidr("10.0.0.0/8").holds(v4("11.0.0.1")));
        assert!(cidr("10.0.0.7").holds(v4("10.0.0.7")) && !cidr("10.0.0.7").holds(v4("10.0.0.6")));
        assert!(cidr("10.0.0.7").holds("::ffff:10.0.0.7".parse().unwrap()), "the same address, mapped");
        assert!(cidr("0.0.0.0/0").holds(v4("1.2.3.4")) && !cidr("0.0.0.0/0").holds("::1".parse().unwrap()));
        assert!(cidr("2001:db8::/32").holds("2001:db8:1::9".parse().unwrap()));
        assert!(cidr("::/0").holds("2001:db8::1".parse().unwrap()));
        assert!(!cidr("::/0").holds(v4("1.2.3.4")) && !cidr("::1/64").holds(v4("1.2.3.4")), "IPv6 only");
        assert!(cidr("::1/64").holds("::2".parse().unwrap()));
    }

    #[test]
    fn one_value_has_one_spelling() {
        for text in ["10.0.0.0/8", "10.0.0.7", "2001:db8::/32", "::1", "::/0", "0.0.0.0/0", "192.168.1.0/24"]
        {
            assert_eq!(cidr(text).to_string(), text);
        }
        assert_eq!(cidr("10.0.0.7/32").to_string(), "10.0.0.7");
        assert_eq!(cidr("10.1.2.3/8").to_string(), "10.0.0.0/8");
        assert_eq!(cidr("2001:db8::1/32").to_string(), "2001:db8::/32");
        assert!(
            Cidr::exact("10.0.0.0/8").is_ok()
                && Cidr::exact("10.0.0.5").is_ok()
                && Cidr::exact("::/0").is_ok()
        );
        for slip in ["10.0.0.5/3", "::1/64", "2001:db8::1/32", "x"] {
            assert!(Cidr::exact(slip).is_err(), "{slip}");
        }
        for bad in [
            "::ffff:10.0.0.0/8",
            "",
            "10.0.0.0/33",
            "10.0.0/8",
            "::/129",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "a",
            "10.0.0.0/08000",
        ] {
            assert!(bad.parse::<Cidr>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(bits: u128, len in 0u8..=128, mapped: bool, v4: u32) {
            let address = if mapped { IpAddr::V4(v4.into()) } else { IpAddr::V6(bits.into()) };
            let len = if mapped { MAPPED + len % 33 } else { len };
            let cidr = Cidr::around(address, len);
            prop_assert_eq!(cidr.to_string().parse::<Cidr>(), Ok(cidr));
            let mapped = address.to_canonical().is_ipv4();
            prop_assert!(cidr.holds(address) || (mapped && len < MAPPED));
        }

        #[test]
        fn no_text_is_too_odd(text in "[0-9a-f:./]{0,50}|.{0,50}") {
            if let Ok(cidr) = text.parse::<Cidr>() {
                prop_assert_eq!(cidr.to_string().parse::<Cidr>(), Ok(cidr));
            }
        }
    }
}
