//! Who may administer a broker: whoever has the operator's token.
//!
//! Wrong tokens are counted by address, and past [`WRONG_TOKENS`] an address is told to wait. The right token always opens:
//! many programs share an address (all of a machine's on loopback, a company's behind one NAT), and none of them may lock
//! the operator out; it clears the address's slate, too. A token of [`TOKEN_BYTES_MIN`] bytes is not guessed, however often
//! one may try.

use std::collections::BTreeMap;

use tenure_kit::address::Address;
use tenure_kit::secret;
use tenure_kit::time::Millis;
use tenure_proto::error::{ErrorCode, WireError};

/// Wrong tokens after which an address is locked out.
pub const WRONG_TOKENS: u32 = 10;
/// How long, from the last of them; who has been wrong less often is as good as new after as long.
pub const LOCKOUT_MS: u64 = 60_000;
/// Addresses of which wrong tokens are remembered; past it, whose last was longest ago is forgotten.
pub const ADDRESSES_MAX: usize = 1_024;
/// Bytes of a token at least: a short one is guessed from many addresses.
pub const TOKEN_BYTES_MIN: usize = 16;
/// Bytes of a token at most.
pub const TOKEN_BYTES_MAX: usize = 256;

/// Why somebody may not administer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// There was no token.
    Missing,
    /// It was another.
    Wrong,
    /// It was another, and too many wrong ones came from this address.
    LockedOut {
        /// For how long still.
        retry_after_ms: u64,
    },
}

impl Denied {
    /// What it is told.
    pub fn error(self) -> WireError {
        match self {
            Denied::Missing => WireError::new(
                ErrorCode::Unauthorized,
                "send the operator's token as `Authorization: Bearer TOKEN`; it is in admin.token of the data directory",
            ),
            Denied::Wrong => WireError::new(
                ErrorCode::Unauthorized,
                "this is not the operator's token; it is in admin.token of the data directory, or what TENURE_ADMIN_TOKEN was at the start",
            ),
            Denied::LockedOut { retry_after_ms } => {
                let text = "too many wrong tokens came from this address; wait, then send the right one";
                WireError::new(ErrorCode::RateLimited, text).retry_after(retry_after_ms)
            }
        }
    }
}

/// The operator's token, and who was wrong about it.
pub struct Operator {
    token: String,
    /// How often each address was wrong, and when last; at most [`ADDRESSES_MAX`].
    wrong: BTreeMap<Address, (u32, Millis)>,
}

/// Without the token.
impl std::fmt::Debug for Operator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operator").field("wrong", &self.wrong).finish_non_exhaustive()
    }
}

impl Operator {
    /// Whether a text can be a token: long enough, and fit for a header.
    pub fn is_token(text: &str) -> bool {
        let fits = (TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&text.len());
        fits && text.bytes().all(|byte| byte.is_ascii_graphic())
    }

    /// The operator with this token.
    pub fn new(token: String) -> Operator {
        Operator { token, wrong: BTreeMap::new() }
    }

    /// Whether a request from `address` with this token, if it has one, is the operator's.
    pub fn check(&mut self, now: Millis, address: Address, token: Option<&str>) -> Result<(), Denied> {
        let token = token.ok_or(Denied::Missing)?;
        if secret::same(&self.token, token) {
            self.wrong.remove(&address);
            return Ok(());
        }
        let (times, last) = self.wrong.get(&address).copied().unwrap_or_default();
        let left = LOCKOUT_MS.saturating_sub(now.since(last));
        if times >= WRONG_TOKENS && left > 0 {
            return Err(Denied::LockedOut { retry_after_ms: left });
        }
        let times = if left > 0 { times + 1 } else { 1 };
        self.remember(now, address, times);
        Err(Denied::Wrong)
    }

    /// Whether the query of a URL has the token in it.
    pub fn is_shown(&self, query: &str) -> bool {
        secret::shown_in_query(&self.token, query)
    }

    fn remember(&mut self, now: Millis, address: Address, times: u32) {
        if self.wrong.len() >= ADDRESSES_MAX && !self.wrong.contains_key(&address) {
            let oldest = self.wrong.iter().min_by_key(|(_, (_, last))| *last).map(|(address, _)| *address);
            if let Some(oldest) = oldest {
                self.wrong.remove(&oldest);
            }
        }
        self.wrong.insert(address, (times, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    fn operator() -> Operator {
        Operator::new(TOKEN.to_owned())
    }

    fn from(n: u32) -> Address {
        Address::new(0xffff_0000_0000 | u128::from(n))
    }

    #[test]
    fn the_token_opens_and_nothing_else_does() {
        let mut operator = operator();
        assert_eq!(operator.check(Millis(0), from(1), Some(TOKEN)), Ok(()));
        for wrong in ["", "0123456789abcde", "0123456789abcdeg", "0123456789abcdef0"] {
            assert_eq!(operator.check(Millis(0), from(1), Some(wrong)), Err(Denied::Wrong), "{wrong}");
        }
        assert!(!format!("{operator:?}").contains(TOKEN));
    }

    #[test]
    fn too_many_wrong_ones_lock_an_address_out_but_never_the_right_token() {
        let mut operator = operator();
        for n in 0..WRONG_TOKENS {
            assert_eq!(operator.check(Millis(n.into()), from(1), Some("wrong")), Err(Denied::Wrong));
        }
        let last = u64::from(WRONG_TOKENS - 1);
        let locked = |retry_after_ms| Err(Denied::LockedOut { retry_after_ms });
        assert_eq!(operator.check(Millis(last), from(1), Some("wrong")), locked(LOCKOUT_MS));
        assert_eq!(operator.check(Millis(last + 1), from(1), Some("wrong")), locked(LOCKOUT_MS - 1));
        assert_eq!(
            operator.check(Millis(last + 1), from(1), None),
            Err(Denied::Missing),
            "no token is no guess"
        );
        assert_eq!(
            operator.check(Millis(last), from(1), Some(TOKEN)),
            Ok(()),
            "the operator is never locked out"
        );
        assert_eq!(operator.check(Millis(last), from(2), Some(TOKEN)), Ok(()));
        assert_eq!(
            operator.check(Millis(last + 2), from(1), Some("wrong")),
            Err(Denied::Wrong),
            "a new slate"
        );
    }

    #[test]
    fn no_token_is_no_guess_and_a_right_one_clears_the_slate() {
        let mut operator = operator();
        for _ in 0..3 * WRONG_TOKENS {
            assert_eq!(operator.check(Millis(0), from(1), None), Err(Denied::Missing));
        }
        for _ in 0..3 {
            for _ in 1..WRONG_TOKENS {
                assert_eq!(operator.check(Millis(0), from(1), Some("wrong")), Err(Denied::Wrong));
            }
            assert_eq!(operator.check(Millis(0), from(1), Some(TOKEN)), Ok(()));
        }
    }

    #[test]
    fn who_was_wrong_is_remembered_up_to_a_bound() {
        let mut operator = operator();
        for n in 0..2 * ADDRESSES_MAX as u32 {
            assert_eq!(operator.check(Millis(n.into()), from(n), Some("wrong")), Err(Denied::Wrong));
        }
        assert_eq!(operator.wrong.len(), ADDRESSES_MAX);
        assert!(operator.wrong.contains_key(&from(2 * ADDRESSES_MAX as u32 - 1)), "the latest are kept");
    }

    #[test]
    fn a_token_is_long_and_plain() {
        assert!(Operator::is_token(TOKEN));
        for bad in ["short", "with spaces in the middle of it", "0123456789abcdeé", &"x".repeat(300)] {
            assert!(!Operator::is_token(bad), "{bad}");
        }
    }
}
