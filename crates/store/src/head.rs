//! An entry as bytes: everything but its body, in a compact form that carries its version.
//!
//! Byte 0 is the version, 1. Byte 1 packs priority, fallback, kind and whether the body is text; byte 2 says
//! which of the optional parts follow. Then, in order: id (16 bytes, big-endian), sender's member and session
//! (32 each), address (a byte for its kind, then 32 bytes or a text), sender's name, client message id, and of
//! the optional parts those that are there: key, reply-to, content type, meta (MessagePack, which keeps numbers
//! exactly), expires-at, not-before, remember-until. A text is its length and its bytes; numbers are LEB128.
//!
//! The bytes lie beside a CRC-32C; [`decode`] still trusts nothing and answers `None` for what does not read.

use std::sync::Arc;

use tenure_mesh::messages::envelope::{Body, Envelope};
use tenure_proto::codec::Codec;
use tenure_proto::ids::{MemberKey, MessageId, SessionKey};
use tenure_proto::message::{Address, Fallback, MessageKind, Meta, Priority, Sender};

const VERSION: u8 = 1;
/// Bits of byte 1: priority in 0 and 1, fallback in 2 and 3, then these.
const RUN: u8 = 1 << 4;
const TEXT: u8 = 1 << 5;
/// Bits of byte 2.
const KEY: u8 = 1;
const REPLY_TO: u8 = 1 << 1;
const CONTENT_TYPE: u8 = 1 << 2;
const META: u8 = 1 << 3;
const EXPIRES_AT: u8 = 1 << 4;
const NOT_BEFORE: u8 = 1 << 5;
const REMEMBER_UNTIL: u8 = 1 << 6;

/// Writes the head of `envelope` into `out`, which it empties first.
pub(crate) fn encode(envelope: &Envelope, remember_until: Option<u64>, out: &mut Vec<u8>) {
    let Envelope {
        id,
        client_message_id,
        from,
        to,
        key,
        priority,
        reply_to,
        meta,
        body,
        content_type,
        sent_at: _,
        expires_at,
        not_before,
        fallback,
        kind,
    } = envelope;
    out.clear();
    out.push(VERSION);
    let run = if *kind == MessageKind::Run { RUN } else { 0 };
    let text = if matches!(body, Body::Text(_)) { TEXT } else { 0 };
    out.push(priority_bits(*priority) | fallback_bits(*fallback) | run | text);
    let parts = [
        (KEY, key.is_some()),
        (REPLY_TO, reply_to.is_some()),
        (CONTENT_TYPE, content_type.is_some()),
        (META, meta.is_some()),
        (EXPIRES_AT, expires_at.is_some()),
        (NOT_BEFORE, not_before.is_some()),
        (REMEMBER_UNTIL, remember_until.is_some()),
    ];
    out.push(parts.iter().fold(0, |bits, (bit, present)| if *present { bits | bit } else { bits }));
    out.extend_from_slice(&id.0.to_be_bytes());
    out.extend_from_slice(&from.member.0);
    out.extend_from_slice(&from.session.0);
    match to {
        Address::Session(key) => put_key(out, 0, &key.0),
        Address::Member(key) => put_key(out, 1, &key.0),
        Address::Topic(name) => {
            out.push(2);
            put_text(out, name.as_str().as_bytes());
        }
    }
    put_text(out, from.name.as_bytes());
    put_text(out, client_message_id.as_bytes());
    for text in [key, reply_to, content_type].into_iter().flatten() {
        put_text(out, text.as_bytes());
    }
    if let Some(meta) = meta {
        put_text(out, &Codec::MsgPack.encode(meta));
    }
    for number in [*expires_at, *not_before, remember_until].into_iter().flatten() {
        put_number(out, number);
    }
}

/// What a head and its body say, and until when the id is remembered.
pub(crate) fn decode(head: &[u8], body: &[u8], sent_at: u64) -> Option<(Envelope, Option<u64>)> {
    let mut bytes = Bytes(head);
    if bytes.byte()? != VERSION {
        return None;
    }
    let (bits, parts) = (bytes.byte()?, bytes.byte()?);
    let id = MessageId(u128::from_be_bytes(bytes.array()?));
    let (member, session) = (MemberKey(bytes.array()?), SessionKey(bytes.array()?));
    let to = match bytes.byte()? {
        0 => Address::Session(SessionKey(bytes.array()?)),
        1 => Address::Member(MemberKey(bytes.array()?)),
        2 => Address::Topic(bytes.text()?.parse().ok()?),
        _ => return None,
    };
    let name = bytes.text()?.to_owned();
    let client_message_id: Arc<str> = bytes.text()?.into();
    let mut text = |bit: u8| {
        if parts & bit == 0 { Some(None) } else { bytes.text().map(|text| Some(text.to_owned())) }
    };
    let (key, reply_to, content_type) = (text(KEY)?, text(REPLY_TO)?, text(CONTENT_TYPE)?);
    let meta: Option<Meta> =
        if parts & META == 0 { None } else { Some(Codec::MsgPack.decode(bytes.slice()?).ok()?) };
    let mut number = |bit: u8| if parts & bit == 0 { Some(None) } else { bytes.number().map(Some) };
    let (expires_at, not_before, remember_until) =
        (number(EXPIRES_AT)?, number(NOT_BEFORE)?, number(REMEMBER_UNTIL)?);
    let body = if bits & TEXT == 0 {
        Body::Bytes(body.to_vec())
    } else {
        Body::Text(String::from_utf8(body.to_vec()).ok()?)
    };
    let kind = if bits & RUN == 0 { MessageKind::Message } else { MessageKind::Run };
    let envelope = Envelope {
        id,
        client_message_id,
        from: Sender { member, session, name },
        to,
        key,
        priority: priority(bits)?,
        reply_to,
        meta,
        body,
        content_type,
        sent_at,
        expires_at,
        not_before,
        fallback: fallback(bits)?,
        kind,
    };
    bytes.0.is_empty().then_some((envelope, remember_until))
}

fn priority_bits(priority: Priority) -> u8 {
    match priority {
        Priority::Now => 0,
        Priority::Next => 1,
        Priority::Low => 2,
    }
}

fn priority(bits: u8) -> Option<Priority> {
    [Priority::Now, Priority::Next, Priority::Low].get(usize::from(bits & 3)).copied()
}

fn fallback_bits(fallback: Fallback) -> u8 {
    match fallback {
        Fallback::Hold => 0,
        Fallback::Member => 1 << 2,
        Fallback::Fail => 2 << 2,
    }
}

fn fallback(bits: u8) -> Option<Fallback> {
    [Fallback::Hold, Fallback::Member, Fallback::Fail].get(usize::from((bits >> 2) & 3)).copied()
}

fn put_key(out: &mut Vec<u8>, kind: u8, key: &[u8; 32]) {
    out.push(kind);
    out.extend_from_slice(key);
}

fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    put_number(out, text.len() as u64);
    out.extend_from_slice(text);
}

fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// What is left of a head.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            number |= part.checked_shl(shift).filter(|shifted| shifted >> shift == part)?;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn slice(&mut self) -> Option<&'a [u8]> {
        let length = self.number()?;
        self.take(usize::try_from(length).ok()?)
    }

    fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.slice()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::messages::{full, plain};

    #[test]
    fn a_head_reads_as_it_was_written() {
        for (envelope, until) in [(plain(1), None), (plain(2), Some(u64::MAX)), (full(3), Some(7))] {
            let mut head = Vec::new();
            encode(&envelope, until, &mut head);
            let read = decode(&head, envelope.body.as_bytes(), envelope.sent_at).unwrap();
            assert_eq!(read, (envelope, until));
        }
    }

    #[test]
    fn whatever_the_bytes_are_the_answer_is_not_a_panic() {
        let envelope = full(3);
        let mut head = Vec::new();
        encode(&envelope, Some(7), &mut head);
        for length in 0..head.len() {
            assert_eq!(decode(&head[..length], b"", 0), None, "{length} bytes");
        }
        for at in 0..head.len() {
            for bit in 0..8 {
                let mut flipped = head.clone();
                flipped[at] ^= 1 << bit;
                let _ = decode(&flipped, envelope.body.as_bytes(), 0);
            }
        }
        head.push(0);
        assert_eq!(decode(&head, b"", 0), None, "something after the end");
    }
}
