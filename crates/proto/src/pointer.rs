//! Reading a JSON object from outside, with the field that is wrong as a JSON pointer (RFC 6901).
//!
//! The broker's and the daemon's HTTP APIs both answer with such a pointer, so it is made in one place.

use serde::de::DeserializeOwned;
use serde_path_to_error::{Path, Segment};

/// Why a body could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadField {
    /// The field that is wrong; empty is the whole body.
    pub pointer: String,
    /// What is wrong with it.
    pub message: String,
}

/// Reads one JSON object.
pub fn read_object<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, BadField> {
    let whole = |message: String| BadField { pointer: String::new(), message };
    // serde would read a list as the fields in their order.
    if !bytes.trim_ascii_start().starts_with(b"{") {
        return Err(whole("the body must be one JSON object".to_owned()));
    }
    // Keeping the path costs as much as reading, so only what does not read is read with it.
    if let Ok(value) = serde_json::from_slice(bytes) {
        return Ok(value);
    }
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let (mut pointer, message) = (of_path(error.path()), error.inner().to_string());
        if let Some(field) = named(&message) {
            pointer.push_str(&of_key(field));
        }
        BadField { pointer, message }
    })?;
    deserializer.end().map_err(|error| whole(error.to_string()))?;
    Ok(value)
}

/// One key as a pointer into the object that has it.
pub fn of_key(key: &str) -> String {
    format!("/{}", key.replace('~', "~0").replace('/', "~1"))
}

/// The field that is missing or stands twice. The path ends at the object that it should be in, and only serde's sentence
/// names it.
fn named(message: &str) -> Option<&str> {
    let rest =
        message.strip_prefix("missing field `").or_else(|| message.strip_prefix("duplicate field `"))?;
    rest.split('`').next()
}

fn of_path(path: &Path) -> String {
    let segment = |segment: &Segment| match segment {
        Segment::Seq { index } => Some(format!("/{index}")),
        Segment::Map { key } => Some(of_key(key)),
        Segment::Enum { variant } => Some(of_key(variant)),
        Segment::Unknown => None,
    };
    path.iter().filter_map(segment).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Order {
        #[allow(dead_code)]
        name: String,
        #[allow(dead_code)]
        #[serde(default)]
        sizes: Vec<u8>,
        #[allow(dead_code)]
        #[serde(default)]
        notes: BTreeMap<String, u8>,
    }

    fn pointer(text: &str) -> String {
        read_object::<Order>(text.as_bytes()).expect_err(text).pointer
    }

    #[test]
    fn the_pointer_leads_to_the_field_that_is_wrong() {
        for (text, expected) in [
            (r#"{"name":"x","sizes":[1,"two"]}"#, "/sizes/1"),
            (r#"{"name":"x","notes":{"a/b~c":"one"}}"#, "/notes/a~1b~0c"),
            (r#"{"sizes":[]}"#, "/name"),
            (r#"{"name":"x","name":"y"}"#, "/name"),
            (r#"{"name":5}"#, "/name"),
            (r#"{"name":"x","size":[]}"#, "/size"),
            (r#"["x"]"#, ""),
            (r#"{"name":"x"} {}"#, ""),
        ] {
            assert_eq!(pointer(text), expected, "{text}");
        }
        assert!(read_object::<Order>(br#" {"name":"x"} "#).is_ok());
    }
}
