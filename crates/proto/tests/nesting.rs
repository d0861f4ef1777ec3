//! Frames of absurd depth, in a debug build, on the stack of an ordinary thread: an error or stepped over, never a
//! crash, and soon.
#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod wire;

use std::time::{Duration, Instant};

use serde_json::json;
use tenure_proto::event::EventBody;
use tenure_proto::frame::{self, Head};
use tenure_proto::hello::HelloParams;
use tenure_proto::limits::{FREE_JSON_NESTING, NESTING};
use tenure_proto::message::SendParams;
use tenure_proto::method::Method;
use tenure_proto::{Codec, token::ResumeToken};
use wire::{CODECS, frame_of, method_types, transcode, vectors};

const LEVELS: usize = 100_000;

/// What spawned threads of a server usually get.
const STACK_BYTES: usize = 2 * 1024 * 1024;

/// Far more than a busy machine needs, far less than anything quadratic would take.
const SOON: Duration = Duration::from_secs(120);

fn on_a_small_stack(work: impl FnOnce() + Send + 'static) {
    let started = Instant::now();
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(work).expect("a thread");
    thread.join().expect("no panic");
    assert!(started.elapsed() < SOON, "took {:?}", started.elapsed());
}

/// The bytes of a value `levels` deep: of arrays, of objects, and of both in turns (an even number).
fn deep(codec: Codec, levels: usize) -> Vec<Vec<u8>> {
    let (array, object, nil): ([&[u8]; 2], [&[u8]; 2], &[u8]) = match codec {
        Codec::Json => ([b"[", b"]"], [br#"{"a":"#, b"}"], b"null"),
        Codec::MsgPack => ([&[0x91], b""], [&[0x81, 0xa1, b'a'], b""], &[0xc0]),
    };
    let nested =
        |open: &[u8], close: &[u8], times: usize| [&open.repeat(times), nil, &close.repeat(times)].concat();
    vec![
        nested(array[0], array[1], levels),
        nested(object[0], object[1], levels),
        nested(&[array[0], object[0]].concat(), &[object[1], array[1]].concat(), levels / 2),
    ]
}

/// `frame` with its one `"HERE"` replaced.
fn with(codec: Codec, frame: &serde_json::Value, value: &[u8]) -> Vec<u8> {
    let mark: &[u8] = if codec == Codec::Json { b"\"HERE\"" } else { b"\xa4HERE" };
    let bytes = codec.encode(frame);
    let at = bytes.windows(mark.len()).position(|window| window == mark).expect("a mark");
    [&bytes[..at], value, &bytes[at + mark.len()..]].concat()
}

/// Where something deep can stand.
fn places() -> Vec<serde_json::Value> {
    let request = |method: &str, params: serde_json::Value| json!({"type": "req", "id": "7", "method": method, "params": params});
    let file = vectors("frames.json");
    let hello = &file["frames"][0]["value"];
    let mut inside_profile = hello.clone();
    inside_profile["params"]["profile"]["new"] = json!("HERE");
    let mut reconcile = hello.clone();
    reconcile["params"]["reconcile"] = json!("HERE");
    let mut features = hello.clone();
    features["params"]["features"]["require"] = json!(["HERE"]);
    let send = |field: &str| {
        request("send", json!({"to": "topic:jobs", "clientMessageId": "1", "body": "x", field: "HERE"}))
    };
    vec![
        json!("HERE"),
        json!({"type": "HERE"}),
        json!({"type": "req", "id": "7", "method": "ping", "new": "HERE"}),
        request("ping", json!("HERE")),
        request("send", json!("HERE")),
        send("meta"),
        send("new"),
        send("priority"),
        send("body"),
        send("bodyB64"),
        send("ttlMs"),
        request(
            "send",
            json!({"to": "topic:jobs", "clientMessageId": "1", "body": "x", "meta": {"a": "HERE"}}),
        ),
        inside_profile,
        reconcile,
        features,
        request("run.start", json!({"to": "topic:t", "input": "HERE", "idempotencyKey": "k"})),
        request("subscribe", json!({"topic": "t", "from": "HERE"})),
        json!({"type": "event", "event": "tick", "seq": 1, "data": "HERE"}),
        json!({"type": "event", "event": "run", "seq": 1, "data": {"runId": "00000000000000000000000001", "data": "HERE"}}),
        json!({"type": "res", "id": "7", "ok": false, "error": {"code": "busy", "message": "", "retryable": true, "details": "HERE"}}),
    ]
}

/// Whether the mark in `place` stands where nobody reads: in a field `new`, or in the params of a ping.
fn stepped_over(place: &serde_json::Value) -> bool {
    let marked = |pointer: &str| place.pointer(pointer).is_some_and(|value| value == "HERE");
    marked("/new")
        || marked("/params/new")
        || marked("/params/profile/new")
        || (place["method"] == "ping" && marked("/params"))
}

#[test]
fn absurd_depth_is_an_error_or_stepped_over() {
    on_a_small_stack(|| {
        for codec in CODECS {
            let values = deep(codec, LEVELS);
            for place in places() {
                for (index, value) in values.iter().enumerate() {
                    let bytes = with(codec, &place, value);
                    let read = transcode(codec, &bytes, Some(Method::Ping), Codec::Json);
                    // JSON steps over what nobody reads, however deep; MessagePack stops at its bound. An object
                    // may stand for a struct, whose unknown field is stepped over; an array may not.
                    if index == 0 && !stepped_over(&place) {
                        assert!(read.is_err(), "{codec:?}: {place}");
                    }
                }
            }
        }
    });
}

#[test]
fn unfinished_depth_is_an_error() {
    on_a_small_stack(|| {
        for codec in CODECS {
            let values = deep(codec, LEVELS);
            for place in places() {
                for value in &values {
                    let bytes = with(codec, &place, value);
                    let cut = &bytes[..bytes.len() / 2];
                    assert!(
                        transcode(codec, cut, Some(Method::Ping), Codec::Json).is_err(),
                        "{codec:?}: {place}"
                    );
                }
            }
        }
    });
}

#[test]
fn every_payload_type_survives_absurd_depth_in_every_field() {
    on_a_small_stack(|| {
        for codec in CODECS {
            let value = deep(codec, LEVELS).remove(0);
            let payload = with(codec, &json!({"params": "HERE"}), &value);
            let event = with(codec, &json!({"data": "HERE"}), &value);
            let head =
                Head::decode(codec, &codec.encode(&json!({"type": "req", "id": "7", "method": "ping"})));
            let head = head.expect("a head");
            for &method in Method::ALL {
                assert!(method_types(method).0(&head, codec, &payload, Codec::Json).is_err(), "{method:?}");
            }
            for name in EventBody::NAMES {
                assert!(EventBody::decode(codec, name, &event).is_err(), "{name}");
            }
            assert!(frame::params::<HelloParams>(codec, &payload).is_err());
        }
        let payload = tenure_proto::text::b64url(&b"[".repeat(1000));
        assert!(ResumeToken::verify(&format!("tenure-resume.v1.{payload}.AAAA"), &[0; 32]).is_err());
    });
}

/// The deepest that is read must fit the stack too: here the decoder really recurses.
#[test]
fn the_deepest_frames_that_are_read_fit_the_stack() {
    on_a_small_stack(|| {
        let send = json!({"type": "req", "id": "7", "method": "send",
            "params": {"to": "topic:jobs", "clientMessageId": "1", "body": "x", "meta": {"a": "HERE"}}});
        for codec in CODECS {
            for value in deep(codec, FREE_JSON_NESTING - 1) {
                let params: SendParams =
                    frame::params(codec, &with(codec, &send, &value)).expect("within the bound");
                assert!(params.meta.is_some());
            }
            // Frame, params and meta are three levels; the rest of what a decoder follows is one too deep for meta.
            for levels in [FREE_JSON_NESTING, NESTING - 4, NESTING - 3] {
                for value in deep(codec, levels) {
                    assert!(
                        frame::params::<SendParams>(codec, &with(codec, &send, &value)).is_err(),
                        "{levels}"
                    );
                }
            }
        }
    });
}

/// What was accepted in one frame must be readable in every frame that carries it on.
#[test]
fn the_deepest_meta_and_result_can_be_passed_on() {
    let file = vectors("frames.json");
    let frames = file["frames"].as_array().expect("frames");
    let mut tried = 0;
    for codec in CODECS {
        for case in frames {
            for pointer in [
                "/data/message/meta",
                "/result/messages/0/message/meta",
                "/result/messages/0/meta",
                "/data/end/result",
                "/result/result",
                "/data/data",
                "/error/details",
            ] {
                let mut value = case["value"].clone();
                let Some(place) = value.pointer_mut(pointer) else { continue };
                *place = if pointer.ends_with("meta") { json!({"a": "HERE"}) } else { json!(["HERE"]) };
                let answers = case["method"].as_str().and_then(Method::from_wire);
                for deepest in deep(codec, FREE_JSON_NESTING - 1) {
                    let bytes = with(codec, &value, &deepest);
                    let read = transcode(codec, &bytes, answers, codec);
                    assert!(read.is_ok(), "{pointer}: {:?}", read.err());
                    tried += 1;
                }
            }
            assert!(frame_of(case, codec).is_some());
        }
    }
    assert!(tried > 30, "{tried}");
}
