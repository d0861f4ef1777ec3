//! Values that cost nobody a whole request when they do not read.

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

/// A value, or whatever stands in its place.
#[derive(Deserialize)]
#[serde(untagged)]
enum Either<T> {
    Good(T),
    Bad(IgnoredAny),
}

/// The value, or its type's default for what is none.
pub(crate) fn or_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + Default,
    D: Deserializer<'de>,
{
    Ok(match Either::<T>::deserialize(deserializer)? {
        Either::Good(value) => value,
        Either::Bad(_) => T::default(),
    })
}

/// The value, nothing for `null`, or its type's default for what is none.
pub(crate) fn or_some_default<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: Deserialize<'de> + Default,
    D: Deserializer<'de>,
{
    Ok(match Option::<Either<T>>::deserialize(deserializer)? {
        Some(Either::Good(value)) => Some(value),
        Some(Either::Bad(_)) => Some(T::default()),
        None => None,
    })
}
