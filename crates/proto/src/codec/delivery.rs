//! Delivery frames by hand: a post to a topic with ten thousand readers is ten thousand frames around one message,
//! so the message is encoded once and each frame is its head, the reader's own few fields and a copy of those bytes.

use std::io::Write;

use super::Codec;
use crate::tag::TagParts;

/// Appends `event message` number `seq` to `out`, byte for byte what encoding the typed event gives. `message` is
/// the message's encoding in the same codec. Nothing is allocated, unless `out` has to grow.
#[allow(clippy::too_many_arguments, reason = "they are the fields of the frame")]
pub fn delivery_frame(
    codec: Codec,
    out: &mut Vec<u8>,
    seq: u64,
    sub_id: &str,
    tag: &TagParts,
    attempt: u32,
    redelivered: bool,
    message: &[u8],
) {
    let tag = tag.spell();
    let tag = tag.as_str();
    out.reserve(message.len() + sub_id.len() + tag.len() + 160);
    // Writing to a Vec cannot fail; the results are dropped for that reason alone.
    match codec {
        Codec::Json => {
            let _ = write!(out, r#"{{"type":"event","event":"message","seq":{seq},"data":{{"subId":"#);
            // A client may have named it with quotes and backslashes; a tag has none.
            let _ = serde_json::to_writer(&mut *out, sub_id);
            let _ =
                write!(out, r#","tag":"{tag}","attempt":{attempt},"redelivered":{redelivered},"message":"#);
            out.extend_from_slice(message);
            out.extend_from_slice(b"}}");
        }
        Codec::MsgPack => {
            use rmp::encode::{write_bool, write_map_len, write_str, write_uint};
            let _ = write_map_len(out, 4);
            for text in ["type", "event", "event", "message", "seq"] {
                let _ = write_str(out, text);
            }
            let _ = write_uint(out, seq);
            let _ = write_str(out, "data");
            let _ = write_map_len(out, 5);
            for text in ["subId", sub_id, "tag", tag, "attempt"] {
                let _ = write_str(out, text);
            }
            let _ = write_uint(out, u64::from(attempt));
            let _ = write_str(out, "redelivered");
            let _ = write_bool(out, redelivered);
            let _ = write_str(out, "message");
            out.extend_from_slice(message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EventBody;
    use crate::ids::{MemberKey, MessageId, SessionKey};
    use crate::message::{Address, Bytes, Delivery, Message, MessageKind, Priority, Sender};
    use crate::number::U53;

    fn message(body: Option<&str>, bytes: Option<Vec<u8>>) -> Message {
        Message {
            id: MessageId::from_parts(1_700_000_000_000, 7),
            client_message_id: "a \"b\"".into(),
            from: Sender { member: MemberKey([1; 32]), session: SessionKey([2; 32]), name: "ä".into() },
            to: Address::Topic("jobs".parse().unwrap()),
            log: "topic/jobs/0".into(),
            seq: U53::saturating(1 << 40),
            key: None,
            priority: Priority::Next,
            reply_to: None,
            meta: None,
            body: body.map(str::to_owned),
            body_b64: bytes.map(Bytes),
            content_type: None,
            sent_at: U53::saturating(1_700_000_000_000),
            expires_at: None,
            kind: MessageKind::Message,
        }
    }

    #[test]
    fn the_hand_made_frame_is_the_typed_one() {
        let messages = [message(Some("x \u{2603} \"\\\n"), None), message(None, Some((0..=255).collect()))];
        let subs = ["inbox", "s1", r#"a"b\c"#, &"~".repeat(31), &"~".repeat(32), &"x".repeat(128)];
        for codec in [Codec::Json, Codec::MsgPack] {
            for message in &messages {
                let encoded = codec.encode(message);
                for (n, sub) in subs.into_iter().enumerate() {
                    for seq in [1u64, 127, 128, 70_000, 1 << 40] {
                        let attempt = [1, 128, 65_536, u32::MAX][n % 4];
                        let parts = TagParts {
                            group: seq,
                            seq: seq - 1,
                            attempt,
                            session: SessionKey([n as u8; 32]),
                            mark: message.id.into(),
                        };
                        let data = Delivery {
                            sub_id: sub.parse().unwrap(),
                            tag: parts.to_tag(),
                            attempt,
                            redelivered: n % 2 == 0,
                            message: message.clone(),
                        };
                        let typed = EventBody::Message(Box::new(data)).encode(codec, Some(seq));
                        let mut frame = b"before".to_vec();
                        delivery_frame(codec, &mut frame, seq, sub, &parts, attempt, n % 2 == 0, &encoded);
                        assert_eq!(&frame[..6], b"before");
                        assert_eq!(&frame[6..], &typed[..], "{codec:?} {sub} {seq}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_buffer_with_room_is_not_moved() {
        let (session, mark) = (SessionKey([3; 32]), crate::MessageId(4).into());
        let parts = TagParts { group: 1, seq: 2, attempt: 1, session, mark };
        for codec in [Codec::Json, Codec::MsgPack] {
            let encoded = codec.encode(&message(Some("x"), None));
            let mut frame = Vec::with_capacity(4096);
            let place = frame.as_ptr();
            for seq in 0..5 {
                delivery_frame(codec, &mut frame, seq, "inbox", &parts, 1, false, &encoded);
            }
            assert_eq!(frame.as_ptr(), place);
        }
    }
}
