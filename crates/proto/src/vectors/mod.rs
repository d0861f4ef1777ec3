//! Test vectors, the shared truth for every implementation: `vectors/*.json`.
//!
//! What this promises: the same bytes at every run, from fixed keys and fixed values; every method, event, code
//! and rule of spelling is in some file; what is expected stands beside what is given. The files are written by
//! `cargo xtask vectors`, and `vectors/README.md` says how to read them.
//!
//! What it never does: prove itself. The tests in `tests/vectors.rs` read the files from disk and hold them
//! against the public interface.
#![allow(
    clippy::expect_used,
    reason = "every input is a constant of this module, and a wrong one fails its test"
)]

mod codes;
mod events;
mod fingerprints;
mod frames;
mod malformed;
mod names;
mod requests;
mod responses;
mod samples;
mod signatures;
mod tokens;
mod tolerated;

use ed25519_dalek::SigningKey;
use serde_json::{Value, json};

use crate::text;

/// Every file of vectors: its name, and the document.
pub fn vectors() -> Vec<(&'static str, Value)> {
    vec![
        ("codes.json", codes::codes()),
        ("fingerprints.json", fingerprints::fingerprints()),
        ("frames.json", frames::frames()),
        ("names.json", names::names()),
        ("signatures.json", signatures::signatures()),
        ("tokens.json", tokens::tokens()),
    ]
}

/// Every generated file: its path below the root of the workspace, and its text.
pub fn files() -> Vec<(String, String)> {
    let below =
        |directory: &'static str| move |(name, document)| (format!("{directory}/{name}"), render(&document));
    let schemas = crate::schema::schemas().into_iter().map(below("schemas"));
    vectors().into_iter().map(below("vectors")).chain(schemas).collect()
}

fn render(document: &Value) -> String {
    format!("{document:#}\n")
}

/// The key whose seed is `seed` thirty-two times.
fn key(seed: u8) -> SigningKey {
    SigningKey::from_bytes(&[seed; 32])
}

const MEMBER: u8 = 1;
const SESSION: u8 = 2;
const STRANGER: u8 = 3;
const BROKER: u8 = 4;
const OTHER_BROKER: u8 = 5;

/// Both halves of a key in hex.
fn key_pair(seed: u8) -> Value {
    json!({"seed": text::hex(&[seed; 32]), "public": text::hex(key(seed).verifying_key().as_bytes())})
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_committed_files_are_what_the_code_says() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let stale: Vec<_> = files()
            .into_iter()
            .filter(|(path, text)| std::fs::read_to_string(root.join(path)).ok().as_ref() != Some(text))
            .map(|(path, _)| path)
            .collect();
        assert!(stale.is_empty(), "stale: {}; run `cargo xtask vectors`", stale.join(", "));
    }

    #[test]
    fn nothing_else_lies_beside_the_generated_files() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let ours: Vec<String> = files().into_iter().map(|(path, _)| path).collect();
        for directory in ["schemas", "vectors"] {
            for entry in std::fs::read_dir(root.join(directory)).unwrap() {
                let path = format!("{directory}/{}", entry.unwrap().file_name().to_str().unwrap());
                assert!(!path.ends_with(".json") || ours.contains(&path), "{path} is written by nothing");
            }
        }
    }

    #[test]
    fn every_run_gives_the_same_bytes() {
        assert_eq!(files(), files());
    }
}
