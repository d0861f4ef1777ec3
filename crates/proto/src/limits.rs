//! Every bound of protocol v1 in one place, with the relations between them checked when this compiles.

/// The newest and oldest protocol version this code speaks.
pub const PROTOCOL: u32 = 1;
/// Subprotocol for one JSON object a text message.
pub const SUBPROTOCOL_JSON: &str = "tenure.v1.json";
/// Subprotocol for the same objects as MessagePack in binary messages.
pub const SUBPROTOCOL_MSGPACK: &str = "tenure.v1.msgpack";

/// Bytes of a frame before the hello is admitted.
pub const FRAME_BEFORE_HELLO_BYTES: usize = 64 * 1024;
/// Default `maxPayload`: bytes of a body.
pub const MAX_PAYLOAD_BYTES: usize = 1024 * 1024;
/// Smallest `maxPayload` an operator may set: below it hello's own answer would not fit.
pub const MAX_PAYLOAD_BYTES_FLOOR: usize = 64 * 1024;
/// Bytes of a frame after hello, for a given `maxPayload`: base64 grows a body by a third.
pub const fn frame_bytes(max_payload: usize) -> usize {
    (max_payload / 3).saturating_mul(4).saturating_add(4 + FRAME_BEFORE_HELLO_BYTES)
}

/// Milliseconds an accepted socket may take until its hello arrived.
pub const HELLO_TIMEOUT_MS: u64 = 10_000;
/// Milliseconds the `closing` event may take to be flushed before the socket is closed regardless.
pub const CLOSE_FLUSH_MS: u64 = 1_000;
/// Bytes of the challenge's nonce.
pub const NONCE_BYTES: usize = 32;
/// How far ahead an attestation may expire, in milliseconds.
pub const ATTESTATION_AHEAD_MS: u64 = 24 * 3600 * 1000;

/// Bytes of a name of a mesh, topic, group, service or cap.
pub const NAME_BYTES: usize = 64;
/// Levels of nesting at which a decoder stops, in both codecs: one less is the deepest frame that is read.
pub const NESTING: usize = 128;
/// Levels of nesting in free JSON (`meta`, what runs carry, error details). Less than a frame's, because a value
/// that came in with one frame goes out deeper inside another.
pub const FREE_JSON_NESTING: usize = 64;
/// Requests of one socket that may wait for their answer; past it the broker stops reading.
pub const MAX_INFLIGHT: u32 = 4096;
/// Default bytes that may wait for one socket.
pub const MAX_BUFFERED_BYTES: usize = 4 * 1024 * 1024;
/// Default messages that may wait for one socket.
pub const MAX_BUFFERED_MESSAGES: u32 = 16_384;
/// Milliseconds a socket may stay over its outbound limit before `slow_consumer`.
pub const SLOW_CONSUMER_MS: u64 = 10_000;

/// Events that a session's replay ring holds.
pub const RING_EVENTS: usize = 1024;
/// Bytes that a session's replay ring holds.
pub const RING_BYTES: usize = 1024 * 1024;
/// Entries of presence in a hello's snapshot, and of one page of `presence.list`.
pub const PRESENCE_PAGE: usize = 500;
/// Sessions per mesh by default; the next one is told `busy`.
pub const PRESENCE_PER_MESH: usize = 100_000;

/// Default milliseconds from the last proof of life to the end of a lease.
pub const LEASE_TTL_MS: u64 = 90_000;
/// Default milliseconds between pings, from both sides.
pub const PING_INTERVAL_MS: u64 = 30_000;
/// Default milliseconds of silence after which a socket is stale.
pub const STALE_AFTER_MS: u64 = 75_000;
/// Default milliseconds after which an idle socket gets a `tick`.
pub const TICK_INTERVAL_MS: u64 = 30_000;

/// Replacements of a session by another `instanceId` within [`CONTEST_WINDOW_MS`] that are borne.
pub const CONTEST_REPLACEMENTS: usize = 5;
/// The window of the contest rule in milliseconds.
pub const CONTEST_WINDOW_MS: u64 = 30_000;
/// What a contested newcomer is told to wait, in milliseconds.
pub const CONTEST_RETRY_MS: u64 = 5_000;
/// A broker whose timers are later than this (or a tenth of the lease, if that is less) was frozen.
pub const FROZEN_AFTER_MS: u64 = 5_000;

/// Bytes of `name` in a profile.
pub const PROFILE_NAME_BYTES: usize = 128;
/// Bytes of each other text of a profile.
pub const PROFILE_TEXT_BYTES: usize = 1024;
/// Tags of a profile.
pub const PROFILE_TAGS: usize = 32;
/// Bytes of one tag of a profile.
pub const PROFILE_TAG_BYTES: usize = 64;
/// Caps of an attestation.
pub const ATTESTATION_CAPS: usize = 64;
/// Bytes of a resume token: ours are under 500.
pub const TOKEN_BYTES: usize = 2048;

/// Entries of one `history` or `fetch` page, and ids of one `send.status`.
pub const PAGE: usize = 256;

const _: () = {
    assert!(PING_INTERVAL_MS * 2 < STALE_AFTER_MS, "a socket must survive one lost ping");
    assert!(STALE_AFTER_MS < LEASE_TTL_MS, "a socket must go stale before its lease ends");
    assert!(frame_bytes(MAX_PAYLOAD_BYTES_FLOOR) > FRAME_BEFORE_HELLO_BYTES);
    assert!(CONTEST_RETRY_MS < CONTEST_WINDOW_MS);
    assert!(FREE_JSON_NESTING + 16 < NESTING, "a delivery must decode wherever its send did");
    assert!(ATTESTATION_CAPS * (NAME_BYTES + 3) < FRAME_BEFORE_HELLO_BYTES);
};
