//! Presence frames by hand: a join in a mesh of ten thousand is ten thousand frames that differ in two numbers,
//! so the peer is encoded once and each frame is its head, those numbers and a copy of the same bytes.

use std::io::Write;

use super::Codec;
use crate::event::PresenceKind;
use crate::peer::SharedPeer;

/// `event presence` number `seq`, byte for byte what encoding the typed event gives.
pub fn presence_frame(
    codec: Codec,
    seq: u64,
    kind: PresenceKind,
    peer: &SharedPeer,
    base: u64,
    version: u64,
) -> Vec<u8> {
    let peer = peer.encoded(codec);
    let mut frame = Vec::with_capacity(peer.len() + 128);
    // Writing to a Vec cannot fail; the results are dropped for that reason alone.
    match codec {
        Codec::Json => {
            let kind = kind.as_str();
            let _ = write!(
                frame,
                r#"{{"type":"event","event":"presence","seq":{seq},"data":{{"kind":"{kind}","peer":"#
            );
            frame.extend_from_slice(peer);
            let _ = write!(frame, r#","base":{base},"version":{version}}}}}"#);
        }
        Codec::MsgPack => {
            use rmp::encode::{write_map_len, write_str, write_uint};
            let _ = write_map_len(&mut frame, 4);
            for text in ["type", "event", "event", "presence", "seq"] {
                let _ = write_str(&mut frame, text);
            }
            let _ = write_uint(&mut frame, seq);
            let _ = write_str(&mut frame, "data");
            let _ = write_map_len(&mut frame, 4);
            for text in ["kind", kind.as_str(), "peer"] {
                let _ = write_str(&mut frame, text);
            }
            frame.extend_from_slice(peer);
            let _ = write_str(&mut frame, "base");
            let _ = write_uint(&mut frame, base);
            let _ = write_str(&mut frame, "version");
            let _ = write_uint(&mut frame, version);
        }
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::PresenceEvent;
    use crate::frame::Event;
    use crate::ids::{MemberKey, SessionKey};
    use crate::number::U53;
    use crate::peer::{Peer, Profile};

    #[test]
    fn the_hand_made_frame_is_the_typed_one() {
        let profile = Profile { summary: Some("ä \"quoted\"".into()), ..Profile::named("n") };
        let peer =
            Peer::new(SessionKey([1; 32]), MemberKey([2; 32]), "i".parse().unwrap(), 1 << 40, &profile);
        for codec in [Codec::Json, Codec::MsgPack] {
            for seq in [1u64, 127, 128, 70_000, 1 << 40] {
                let shared = SharedPeer::new(peer.clone());
                let data = PresenceEvent {
                    kind: PresenceKind::Updated,
                    peer: shared.clone(),
                    base: U53::saturating(seq - 1),
                    version: U53::saturating(seq),
                };
                let typed = codec.encode(&Event::new("presence", Some(seq), data));
                assert_eq!(presence_frame(codec, seq, PresenceKind::Updated, &shared, seq - 1, seq), typed);
            }
        }
    }
}
