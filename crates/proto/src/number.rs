//! Integers that every language can hold: below 2^53, as the wire promises.

use serde::{Deserialize, Deserializer, Serialize, de};

/// An unsigned integer below 2^53. Larger ones, negative ones and fractions do not decode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct U53(#[cfg_attr(feature = "schema", schemars(range(max = 9007199254740991u64)))] u64);

impl U53 {
    /// The largest value, 2^53 − 1.
    pub const MAX: U53 = U53((1 << 53) - 1);

    /// `value`, or [`U53::MAX`] when it does not fit.
    pub const fn saturating(value: u64) -> U53 {
        if value > Self::MAX.0 { Self::MAX } else { U53(value) }
    }

    /// The plain integer.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl From<u32> for U53 {
    fn from(value: u32) -> U53 {
        U53(u64::from(value))
    }
}

impl<'de> Deserialize<'de> for U53 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = u64::deserialize(deserializer)?;
        if value > Self::MAX.0 {
            return Err(de::Error::custom("integers must be below 2^53"));
        }
        Ok(U53(value))
    }
}
