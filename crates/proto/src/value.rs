//! Free JSON on the wire: `meta`, the input, pieces and result of a run, the details of an error.
//!
//! It is bounded in depth, well inside what a frame may have. Whatever arrives in one frame leaves in another,
//! some levels further down, and the reader there must not be handed what it cannot decode. That keys stand
//! there once is the codec's business, as everywhere.

use serde::{Deserialize, Deserializer, de};
use serde_json::Value;

use crate::limits::FREE_JSON_NESTING;

/// Any JSON within the bound.
pub(crate) fn bounded<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
    let value = Value::deserialize(deserializer)?;
    check(&value)?;
    Ok(value)
}

/// The same where the field may be absent; `null` is.
pub(crate) fn bounded_option<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    let value = Option::<Value>::deserialize(deserializer)?;
    value.iter().try_for_each(check)?;
    Ok(value)
}

/// The same on the heap.
pub(crate) fn bounded_box<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Box<Value>>, D::Error> {
    bounded_option(deserializer).map(|value| value.map(Box::new))
}

/// Refuses what is nested too deeply.
fn check<E: de::Error>(value: &Value) -> Result<(), E> {
    check_within(value, FREE_JSON_NESTING)
}

/// Refuses what is nested more than `levels` deep.
pub(crate) fn check_within<E: de::Error>(value: &Value, levels: usize) -> Result<(), E> {
    if fits(value, levels) {
        Ok(())
    } else {
        Err(E::custom(format_args!("free JSON may be nested {FREE_JSON_NESTING} levels deep")))
    }
}

/// Whether `value` has at most `levels` levels of arrays and objects. The decoder bounds the recursion.
fn fits(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(items) => levels > 0 && items.iter().all(|item| fits(item, levels - 1)),
        Value::Object(fields) => levels > 0 && fields.values().all(|field| fits(field, levels - 1)),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(levels: usize) -> Value {
        (0..levels).fold(Value::Null, |inner, _| Value::Array(vec![inner]))
    }

    #[test]
    fn the_bound_is_exact() {
        assert!(check::<serde_json::Error>(&nested(FREE_JSON_NESTING)).is_ok());
        assert!(check::<serde_json::Error>(&nested(FREE_JSON_NESTING + 1)).is_err());
    }
}
