//! What a `run.start` says, checked and put into the envelope of its message.
//!
//! As with a `send`, a request beyond a bound may be the retry of one that was accepted: its refusal travels with it
//! and counts only if its key is not known.

use serde_json::json;
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::fingerprint::{canonical_input, fingerprint};
use tenure_proto::ids::{MemberKey, MessageId, SessionKey};
use tenure_proto::limits::{RUN_KEY_BYTES, RUN_TIMEOUT_MAX_MS, RUN_TIMEOUT_MS};
use tenure_proto::message::{Address, Fallback, MessageKind, Priority, Sender};
use tenure_proto::run::RunStartParams;

use crate::messages::envelope::{Body, Envelope};
use crate::messages::prepare::Prepared;

/// A `run.start` that is well formed.
#[derive(Clone, Debug, PartialEq)]
pub struct Start {
    /// Its message, for who is called.
    pub prepared: Prepared,
    /// How long it may take.
    pub timeout_ms: u64,
    /// The first chunk wanted, of a run that exists.
    pub from_seq: Option<u64>,
}

/// Checks a `run.start` that came at `wall` and calls its message, and the run, `id`.
pub fn prepare(
    params: RunStartParams,
    id: MessageId,
    wall: u64,
    max_payload: usize,
) -> Result<Start, WireError> {
    let RunStartParams { to, input, idempotency_key: key, timeout_ms, from_seq } = params;
    if matches!(to, Address::Topic(_)) {
        return Err(not_callable());
    }
    if !RunStartParams::is_key(&key) {
        let text = format!("idempotencyKey is 1 to {RUN_KEY_BYTES} printable ASCII characters");
        return Err(WireError::bad_request(text));
    }
    let body = canonical_input(&input)?;
    let print = fingerprint(&to, None, Priority::Now, None, body.as_bytes())?;
    let timeout_ms = timeout_ms.map_or(RUN_TIMEOUT_MS, |ms| ms.get());
    let refusal = beyond_bounds(body.len(), timeout_ms, max_payload).err();
    let envelope = Envelope {
        id,
        client_message_id: format!("run:{key}").into(),
        from: Sender { member: MemberKey([0; 32]), session: SessionKey([0; 32]), name: String::new() },
        to,
        key: None,
        priority: Priority::Now,
        reply_to: None,
        meta: Some(Envelope::run_meta(id)),
        body: Body::Text(body),
        content_type: Some("application/json".to_owned()),
        sent_at: wall,
        expires_at: None,
        not_before: None,
        fallback: Fallback::Hold,
        kind: MessageKind::Run,
    };
    let prepared = Prepared { envelope, fingerprint: print, refusal };
    Ok(Start { prepared, timeout_ms, from_seq: from_seq.map(|seq| seq.get()) })
}

fn beyond_bounds(size: usize, timeout_ms: u64, max_payload: usize) -> Result<(), WireError> {
    within("the input", size, max_payload)?;
    if !(1..=RUN_TIMEOUT_MAX_MS).contains(&timeout_ms) {
        return Err(WireError::bad_request(format!("timeoutMs is 1 to {RUN_TIMEOUT_MAX_MS} (a day)")));
    }
    Ok(())
}

/// Refuses what is larger than a body may be.
pub fn within(what: &str, size: usize, max_payload: usize) -> Result<(), WireError> {
    if size <= max_payload {
        return Ok(());
    }
    let message = format!("{what} has {size} bytes as JSON; this broker takes at most {max_payload}");
    let details = json!({"limit": max_payload, "size": size});
    Err(WireError::new(ErrorCode::TooLarge, message).with_details(details))
}

/// What a call to a topic is told.
pub(crate) fn not_callable() -> WireError {
    WireError::bad_request("a run is for a session or a member; send to a topic instead")
}
