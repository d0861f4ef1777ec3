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
/// Milliseconds from a message's first byte until it must be whole.
pub const MESSAGE_MS: u64 = 30_000;
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
/// Default milliseconds in which a reader must take all that waits for it, or [`SLOW_CONSUMER_BYTES`] of it, before
/// it is a `slow_consumer`.
pub const SLOW_CONSUMER_MS: u64 = 10_000;
/// Bytes that a reader must take in that time at the least: one that takes so many is slow, not stuck.
pub const SLOW_CONSUMER_BYTES: usize = 16 * 1024;

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

/// Bytes of an invite: ours are under 700.
pub const INVITE_BYTES: usize = 2048;
/// Bytes of a bearer token.
pub const BEARER_BYTES: usize = 256;
/// Keys that one invite may let in.
pub const INVITE_USES_MAX: u32 = 10_000;
/// How far ahead an invite may expire, in milliseconds.
pub const INVITE_AHEAD_MS: u64 = 365 * DAY_MS;
/// Members of a mesh; one more is `busy`.
pub const MEMBERS_MAX: usize = 100_000;
/// Characters of what an operator calls a member or a token, and of why it did something.
pub const LABEL_CHARS: usize = 128;

/// Entries of one page of `history`, `fetch`, `topics.list`, `groups.list` or `dead.list`, ids of one `send.status`, and seqs of one
/// `dead.retry` or `dead.drop`.
pub const PAGE: usize = 256;
/// Topics of a mesh; one more is `busy`.
pub const TOPICS_MAX: usize = 100_000;
/// Default topics that one member may have made; one more is `busy`.
pub const TOPICS_PER_MEMBER: usize = 10_000;
/// Milliseconds without a message, a reader or a group after which an empty topic is deleted.
pub const TOPIC_UNUSED_MS: u64 = DAY_MS;
/// The same of a topic with several partitions or a retention of its own: somebody has planned it.
pub const TOPIC_MADE_UNUSED_MS: u64 = 30 * DAY_MS;
/// Default consumer groups of one topic; one more is `busy`.
pub const GROUPS_PER_TOPIC: usize = 1_000;
/// Default consumer groups that one member may have made, each counted once for every partition that it reads; one more
/// is `busy`.
pub const GROUPS_PER_MEMBER: usize = 10_000;
/// Consumer groups that one answer of `topics.list` or `groups.list` tells of, each counted once for every partition that
/// it reads. An answer that is full ends there and says where to go on.
pub const GROUPS_PER_ANSWER: usize = 1_024;
/// Tags of one `ack`, `nack` or `progress`.
pub const TAGS_PER_SETTLE: usize = 4096;
/// Subscriptions of one session, besides its inboxes.
pub const SUBSCRIPTIONS_PER_SESSION: usize = 1024;
/// Positions in logs that one hello may list.
pub const POSITIONS_PER_HELLO: usize = 256;
/// The largest `prefetch`: deliveries of one subscription that may be unsettled at once.
pub const PREFETCH_MAX: u32 = 4096;
/// Logs of one topic.
pub const PARTITIONS_MAX: u32 = 256;

/// Bytes of `key`, what chooses a message's partition.
pub const KEY_BYTES: usize = 256;
/// Bytes of `replyTo`.
pub const REPLY_TO_BYTES: usize = 128;
/// Bytes of `contentType`.
pub const CONTENT_TYPE_BYTES: usize = 128;
/// Bytes of `meta` as JSON without white space.
pub const META_BYTES: usize = 64 * 1024;
/// Bytes of the `reason` of a `nack`.
pub const REASON_BYTES: usize = 256;
/// The longest `ttlMs`: how long a sender may have a message wait.
pub const TTL_MAX_MS: u64 = 30 * DAY_MS;
/// The longest `delayMs`: how long a sender may hold a message back.
pub const DELAY_MAX_MS: u64 = 30 * DAY_MS;

/// Times that an entry is handed out before it goes to the dead letters.
pub const MAX_ATTEMPTS: u32 = 16;
/// Milliseconds that a member of a shared group may take over a delivery before somebody else gets it; `progress`
/// starts them again.
pub const ACK_TIMEOUT_MS: u64 = 600_000;
/// Default milliseconds that a shared group's deliveries stay with a session that has lost its socket.
pub const RECONNECT_GRACE_MS: u64 = 5_000;
/// Milliseconds from a broker's start that deliveries found in the store stay with their sessions at the least.
pub const STARTUP_GRACE_MS: u64 = 30_000;
/// Milliseconds that deliveries wait for a `reconcile` that a hello has announced.
pub const RECONCILE_WAIT_MS: u64 = 5_000;

/// Entries that may wait in one inbox; past it senders are told `busy`.
pub const INBOX_ENTRIES: u64 = 100_000;
/// Bytes of bodies that may wait in one inbox; past it senders are told `busy`.
pub const INBOX_BYTES: u64 = 1024 * 1024 * 1024;
/// Milliseconds that an entry waits in an inbox unless its sender said otherwise.
pub const INBOX_TTL_MS: u64 = 7 * DAY_MS;
/// Default days that the ids of accepted messages are remembered.
pub const DEDUPE_DAYS: u32 = 30;
/// The fewest days that they may be: an outbox must not outlive the memory that makes its retries safe.
pub const DEDUPE_DAYS_FLOOR: u32 = 7;
/// Default milliseconds that settled entries stay readable.
pub const RETENTION_MS: u64 = 7 * DAY_MS;
/// Milliseconds that dead letters stay, and that a session key is remembered after its lease ended.
pub const DEAD_LETTER_MS: u64 = 30 * DAY_MS;
/// Ends of leases that a store keeps of each mesh; past it the oldest of that mesh go before their 30 days are over.
pub const LEASE_ENDS_MAX: u64 = 100_000;
/// Milliseconds after which a shared group that nobody uses is deleted.
pub const GROUP_UNUSED_MS: u64 = 30 * DAY_MS;

/// Default milliseconds that a run may take.
pub const RUN_TIMEOUT_MS: u64 = 600_000;
/// The longest `timeoutMs` of a run.
pub const RUN_TIMEOUT_MAX_MS: u64 = DAY_MS;
/// Milliseconds that an ended run is remembered, with its result.
pub const RUN_KEPT_MS: u64 = DAY_MS;
/// Characters of a run's `idempotencyKey`.
pub const RUN_KEY_BYTES: usize = 128;
/// Bytes of chunks that a run's ring holds.
pub const RUN_RING_BYTES: usize = 1024 * 1024;
/// Bytes of chunks that all rings of a mesh hold together.
pub const RUN_RINGS_BYTES: usize = 256 * 1024 * 1024;
/// Runs of one mesh that have not ended; one more is `busy`.
pub const RUNS_PER_MESH: usize = 10_000;
/// Runs of one member that have not ended; one more is `busy`.
pub const RUNS_PER_MEMBER: usize = 1_024;
/// Sessions that one run streams to; one more is `busy`.
pub const RUN_WATCHERS: usize = 16;

/// Milliseconds without renewal after which a service is stale, unless its publisher says otherwise.
pub const SERVICE_TTL_MS: u64 = 30_000;
/// The shortest `ttlMs` of a service by default.
pub const SERVICE_TTL_MIN_MS: u64 = 1_000;
/// The longest `ttlMs` of a service by default.
pub const SERVICE_TTL_MAX_MS: u64 = 3_600_000;
/// Milliseconds between two renewals of a client.
pub const SERVICE_RENEW_MS: u64 = 5_000;
/// Milliseconds that a service must be stale before anybody is told.
pub const SERVICE_STALE_TOLD_MS: u64 = 5_000;
/// Without renewal for twice its TTL, and at least so long, a service is overdue while its session is here.
pub const SERVICE_OVERDUE_MS: u64 = 60_000;
/// How long after the first proof of life from then on an overdue service ends, unless it is renewed.
pub const SERVICE_PROOF_MS: u64 = 10_000;
/// Services of one session; one more is `busy`.
pub const SERVICES_PER_SESSION: usize = 64;
/// Services of one mesh; one more is `busy`.
pub const SERVICES_PER_MESH: usize = 65_536;
/// Services of one `service.renew`, and names of one `service.withdraw`.
pub const SERVICES_PER_RENEWAL: usize = 256;
/// Runs of a hello's snapshot.
pub const SNAPSHOT_RUNS: usize = 100;
/// Bytes of a page of `runs.list`, about.
pub const RUNS_PAGE_BYTES: usize = PAGE * 512;
/// Services of a hello's snapshot, and of one page of `services.list`.
pub const SERVICES_PAGE: usize = 500;
/// Bytes of those, about, past which a page ends.
pub const SERVICES_PAGE_BYTES: usize = 256 * 1024;
/// Bytes of a service's `description`.
pub const SERVICE_DESCRIPTION_BYTES: usize = 512;
/// Bytes of a service's `owner`.
pub const SERVICE_OWNER_BYTES: usize = 128;
/// Tags of a service.
pub const SERVICE_TAGS: usize = 16;
/// Bytes of one tag of a service.
pub const SERVICE_TAG_BYTES: usize = 64;

/// Milliseconds that whoever wants a stale service waits for it to come back.
pub const RELAY_WAIT_MS: u64 = 10_000;
/// Milliseconds that a relay ticket is good.
pub const RELAY_TICKET_MS: u64 = 30_000;
/// Default streams of one service that may be open at once, or wait; one more is `busy`.
pub const STREAMS_PER_SERVICE: usize = 2_048;
/// Streams of one mesh that may wait for their services at once; one more is `busy`.
pub const STREAMS_WAITING: usize = 1_024;
/// Those of them that may wait for the same service: who asks for one that is away does not use up the waiting of all.
pub const STREAMS_WAITING_PER_SERVICE: usize = 256;
/// Streams of one mesh that may be open at once; one more is `busy`.
pub const STREAMS_PER_MESH: usize = 65_536;
/// Bytes of a frame that opens or answers a relayed stream.
pub const RELAY_FRAME_BYTES: usize = 8 * 1024;
/// Streams that one relay socket carries at once; one more is `busy`.
pub const RELAY_STREAMS_PER_SOCKET: usize = 2_048;
/// Bytes of a request's head that the relay reads.
pub const RELAY_HEAD_BYTES: usize = 64 * 1024;
/// Headers of a request or an answer that the relay passes on.
pub const RELAY_HEADERS: usize = 128;

const DAY_MS: u64 = 24 * 3600 * 1000;

const _: () = {
    assert!(PING_INTERVAL_MS * 2 < STALE_AFTER_MS, "a socket must survive one lost ping");
    assert!(STALE_AFTER_MS < LEASE_TTL_MS, "a socket must go stale before its lease ends");
    assert!(frame_bytes(MAX_PAYLOAD_BYTES_FLOOR) > FRAME_BEFORE_HELLO_BYTES);
    assert!(CONTEST_RETRY_MS < CONTEST_WINDOW_MS);
    assert!(FREE_JSON_NESTING + 16 < NESTING, "a delivery must decode wherever its send did");
    assert!(ATTESTATION_CAPS * (NAME_BYTES + 3) < FRAME_BEFORE_HELLO_BYTES);
    assert!(DEDUPE_DAYS_FLOOR as u64 * DAY_MS >= RETENTION_MS, "an id must outlive its message's retention");
    assert!(INBOX_TTL_MS <= TTL_MAX_MS, "what a sender may ask for reaches beyond the default");
    assert!(TAGS_PER_SETTLE * (128 + 3) < frame_bytes(MAX_PAYLOAD_BYTES), "a full ack must fit a frame");
    assert!(META_BYTES < frame_bytes(MAX_PAYLOAD_BYTES_FLOOR));
    assert!(RUN_TIMEOUT_MS <= RUN_TIMEOUT_MAX_MS);
    assert!(RUN_TIMEOUT_MAX_MS < INBOX_TTL_MS, "a run ends before its entry's time is over");
    assert!(SERVICE_TTL_MIN_MS <= SERVICE_TTL_MS && SERVICE_TTL_MS <= SERVICE_TTL_MAX_MS);
    assert!(SERVICE_RENEW_MS * 3 < SERVICE_TTL_MS, "a service must survive two lost renewals");
    assert!(SERVICES_PER_SESSION <= SERVICES_PER_RENEWAL, "a session renews all that it has in one frame");
    assert!(
        SERVICES_PAGE_BYTES * 2 < frame_bytes(MAX_PAYLOAD_BYTES),
        "a page must fit a frame, quotes and all"
    );
    assert!(RELAY_WAIT_MS < RELAY_TICKET_MS);
    assert!(GROUPS_PER_TOPIC <= GROUPS_PER_MEMBER, "one member may fill one topic");
    assert!(PARTITIONS_MAX as usize <= GROUPS_PER_ANSWER, "one group always fits an answer");
    assert!(RUNS_PER_MEMBER <= RUNS_PER_MESH && RUN_RING_BYTES <= RUN_RINGS_BYTES);
};
