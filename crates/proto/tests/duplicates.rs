//! A key that stands twice is an error wherever it stands: in the envelope, the payload, a profile, free JSON. Two
//! readers could keep different ones, and the sender's signature or fingerprint would cover only one of them.
#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod wire;

use serde_json::Value;
use tenure_proto::Codec;
use tenure_proto::method::Method;
use wire::{CODECS, entries, text_of, transcode, vectors};

/// Writes `value` with the key number `twice` of all its keys repeated; counts the keys down.
fn write(codec: Codec, value: &Value, twice: &mut Option<usize>, out: &mut Vec<u8>) {
    match value {
        Value::Object(fields) => {
            let mut entries = Vec::new();
            for (key, field) in fields {
                let repeat = *twice == Some(0);
                *twice = twice.and_then(|left| left.checked_sub(1));
                let mut entry = codec.encode(key);
                entry.extend_from_slice(if codec == Codec::Json { b":" } else { b"" });
                write(codec, field, twice, &mut entry);
                entries.extend(std::iter::repeat_n(entry, if repeat { 2 } else { 1 }));
            }
            enclose(codec, entries, (b"{", b"}"), out);
        }
        Value::Array(items) => {
            let mut entries = Vec::new();
            for item in items {
                let mut entry = Vec::new();
                write(codec, item, twice, &mut entry);
                entries.push(entry);
            }
            enclose(codec, entries, (b"[", b"]"), out);
        }
        scalar => out.extend(codec.encode(scalar)),
    }
}

fn enclose(codec: Codec, entries: Vec<Vec<u8>>, (open, close): (&[u8], &[u8]), out: &mut Vec<u8>) {
    let len = u32::try_from(entries.len()).expect("few entries");
    match codec {
        Codec::Json => {
            out.extend_from_slice(open);
            out.extend(entries.join(&b','));
            out.extend_from_slice(close);
        }
        Codec::MsgPack => {
            let written = if open == b"{" {
                rmp::encode::write_map_len(out, len)
            } else {
                rmp::encode::write_array_len(out, len)
            };
            written.expect("a length");
            out.extend(entries.concat());
        }
    }
}

fn keys(value: &Value) -> usize {
    match value {
        Value::Object(fields) => fields.len() + fields.values().map(keys).sum::<usize>(),
        Value::Array(items) => items.iter().map(keys).sum(),
        _ => 0,
    }
}

#[test]
fn no_key_of_any_frame_may_stand_twice() {
    let file = vectors("frames.json");
    let mut tried = 0;
    for case in entries(&file, "frames") {
        let answers = case["method"].as_str().and_then(Method::from_wire);
        for codec in CODECS {
            let mut good = Vec::new();
            write(codec, &case["value"], &mut None, &mut good);
            assert!(transcode(codec, &good, answers, codec).is_ok(), "{case}");
            for key in 0..keys(&case["value"]) {
                let mut bad = Vec::new();
                write(codec, &case["value"], &mut Some(key), &mut bad);
                let read = transcode(codec, &bad, answers, Codec::Json);
                assert!(read.is_err(), "{codec:?}: key {key} of {}", text_of(case, "name"));
                tried += 1;
            }
        }
    }
    assert!(tried > 2000, "{tried}");
}
