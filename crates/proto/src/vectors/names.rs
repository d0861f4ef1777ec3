//! `names.json`: what is, and what is not, a name, an id, an address.

use serde_json::{Value, json};

use super::{MEMBER, SESSION, key};
use crate::canonical::{member_key, session_key};
use crate::ids::MessageId;

pub(super) fn names() -> Value {
    let key_text = session_key(&key(SESSION)).to_string();
    let ulid = MessageId::from_parts(1_700_000_000_000, 7).to_string();
    json!({
        "about": "Spellings that every implementation accepts, and spellings that every implementation refuses.",
        "names": {
            "good": ["a", "0", "default", "a.b_c-d", "deadline", "dead.", "dead1", "9lives", "a".repeat(64)],
            "bad": ["", "dead", "A", "Dead", ".a", "-a", "_a", "a b", " a", "a\n", "a/b", "a:b", "a|b", "a,b", "*",
                "ä", "ａ", "a\u{0}", "a".repeat(65)],
        },
        "clientMessageIds": {
            "good": ["1", "a b", " ", "~", "run", "Run:1", "x run:", "{\"k\":1}", "x".repeat(128)],
            "bad": ["", "run:", "run:1", "a\n", "a\t", "\u{7f}", "é", "a\u{0}", "x".repeat(129)],
        },
        "requestIds": {
            "good": ["7", "a-b_c.d:e", "~", "x".repeat(128)],
            "bad": ["", " ", "a b", "a\n", "é", "x".repeat(129)],
        },
        "keys": {
            "good": [key_text, "0".repeat(64), "f".repeat(64)],
            "bad": ["", "F".repeat(64), "f".repeat(63), "f".repeat(65), "g".repeat(64), format!("0x{}", "f".repeat(62)),
                format!(" {}", "f".repeat(63))],
        },
        "messageIds": {
            "good": [ulid, "0".repeat(26), format!("7{}", "Z".repeat(25))],
            "bad": ["", ulid.to_lowercase(), format!("8{}", "0".repeat(25)), "0".repeat(25), "0".repeat(27),
                format!("0{}", "I".repeat(25)), format!("0{}", "U".repeat(25))],
        },
        "addresses": {
            "good": [format!("session:{key_text}"), format!("member:{}", member_key(&key(MEMBER))), "topic:jobs"],
            "bad": ["", "jobs", "topic:", "topic:dead", "topic:Jobs", "topic:a/b", "Topic:jobs", "topics:jobs",
                "session:", "session:me", format!("session:{}", key_text.to_uppercase()), format!("session:{key_text} "),
                format!("peer:{key_text}"), key_text],
        },
    })
}
