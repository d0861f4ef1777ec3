//! `null` where a field may be absent: some languages spell absence that way, so it reads as the default.
//! Fields of type `Option` do this by themselves; these are for the others.

use serde::{Deserialize, Deserializer};

use crate::subscribe::DEFAULT_PREFETCH;

/// The value, or its type's default for `null`.
pub(crate) fn or_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + Default,
    D: Deserializer<'de>,
{
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// The prefetch asked for, or the usual one for `null`.
pub(crate) fn or_prefetch<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Option::<u32>::deserialize(deserializer).map(|prefetch| prefetch.unwrap_or(DEFAULT_PREFETCH))
}
