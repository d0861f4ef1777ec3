//! Integers that every language can hold: below 2^53, as the wire promises.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, de};

/// An unsigned integer below 2^53. Larger ones, negative ones and fractions do not decode; `5.0` does, because
/// some languages know only one kind of number and some MessagePack libraries write large integers as floats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct U53(#[cfg_attr(any(test, feature = "schema"), schemars(range(max = 9007199254740991u64)))] u64);

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
        deserializer.deserialize_u64(Visit)
    }
}

struct Visit;

impl de::Visitor<'_> for Visit {
    type Value = U53;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an integer from 0 to 2^53 - 1")
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<U53, E> {
        if value > U53::MAX.0 {
            return Err(E::invalid_value(de::Unexpected::Unsigned(value), &self));
        }
        Ok(U53(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<U53, E> {
        let value =
            u64::try_from(value).map_err(|_| E::invalid_value(de::Unexpected::Signed(value), &self))?;
        self.visit_u64(value)
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<U53, E> {
        // Every integer up to the maximum is exact in a double, so the cast below loses nothing.
        if value.fract() == 0.0 && (0.0..=U53::MAX.0 as f64).contains(&value) {
            Ok(U53(value as u64))
        } else {
            Err(E::invalid_value(de::Unexpected::Float(value), &self))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Codec;

    #[test]
    fn integers_are_told_by_value_not_by_spelling() {
        for (text, value) in
            [("0", 0), ("7", 7), ("7.0", 7), ("1e3", 1000), ("9007199254740991", 9007199254740991)]
        {
            assert_eq!(Codec::Json.decode::<U53>(text.as_bytes()).map(U53::get), Ok(value), "{text}");
        }
        for text in ["-1", "9007199254740992", "9007199254740992.0", "1e300", "0.5", "\"7\"", "null"] {
            assert!(Codec::Json.decode::<U53>(text.as_bytes()).is_err(), "{text}");
        }
        for (value, good) in
            [(1.7e12, true), (0.5, false), (-1.0, false), (f64::NAN, false), (f64::INFINITY, false)]
        {
            let bytes = Codec::MsgPack.encode(&value);
            assert_eq!(Codec::MsgPack.decode::<U53>(&bytes).is_ok(), good, "{value}");
        }
    }
}
