//! What a `send` says, checked and put into an envelope, before anybody knows where it will go.
//!
//! Two kinds of no. A request that does not say one thing (no body, or two; a fingerprint that cannot be computed, or
//! that is not what the client believes) has no identity to look up and is an error at once. A request beyond a
//! bound has one, and may be the retry of a message that was accepted under other bounds: its refusal travels
//! with it, and counts only if its id is not known ([`crate::accept`]).

use serde_json::json;
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::fingerprint::{Fingerprint, fingerprint};
use tenure_proto::ids::{MemberKey, MessageId, SessionKey};
use tenure_proto::limits::{
    CONTENT_TYPE_BYTES, DELAY_MAX_MS, KEY_BYTES, META_BYTES, REPLY_TO_BYTES, TTL_MAX_MS,
};
use tenure_proto::message::{Address, Fallback, MessageKind, SendParams, Sender};
use tenure_proto::text;

use crate::envelope::{Body, Envelope};

/// A `send` that is well formed.
#[derive(Clone, Debug, PartialEq)]
pub struct Prepared {
    /// The message. Its `from` is nobody until the mesh, which knows the session, says who.
    pub envelope: Envelope,
    /// What makes it the same request as another.
    pub fingerprint: Fingerprint,
    /// Which bound it is beyond, for [`crate::accept::Accept::refusal`].
    pub refusal: Option<WireError>,
}

/// Checks a `send` that came at `wall` and calls it `id`.
pub fn prepare(
    params: SendParams,
    id: MessageId,
    wall: u64,
    max_payload: usize,
) -> Result<Prepared, WireError> {
    let refusal = within_bounds(&params, max_payload).err();
    let body = match (params.body, params.body_b64) {
        (Some(text), None) => Body::Text(text),
        (None, Some(bytes)) => Body::Bytes(bytes.0),
        (first, _) => return Err(not_one_body(first.is_some())),
    };
    let meta = params.meta.as_ref().map(|meta| &meta.0);
    let print = fingerprint(&params.to, params.reply_to.as_deref(), params.priority, meta, body.as_bytes())?;
    if let Some(theirs) = &params.fingerprint {
        check_fingerprint(theirs, &print)?;
    }
    let later = |ms: u64| wall.saturating_add(ms);
    let envelope = Envelope {
        id,
        client_message_id: params.client_message_id.as_str().into(),
        from: Sender { member: MemberKey([0; 32]), session: SessionKey([0; 32]), name: String::new() },
        to: params.to,
        key: params.key,
        priority: params.priority,
        reply_to: params.reply_to,
        meta: params.meta,
        body,
        content_type: params.content_type,
        sent_at: wall,
        expires_at: params.ttl_ms.map(|ms| later(ms.get())),
        not_before: params.delay_ms.map(|ms| ms.get()).filter(|ms| *ms > 0).map(later),
        fallback: params.fallback,
        kind: MessageKind::Message,
    };
    Ok(Prepared { envelope, fingerprint: print, refusal })
}

/// A message with no body, or with two.
fn not_one_body(two: bool) -> WireError {
    let error = WireError::bad_request("a message has exactly one of body and bodyB64");
    error.about(if two { "bodyB64" } else { "body" })
}

/// The body of a `send`, which is one.
pub fn body(params: &SendParams) -> Result<&[u8], WireError> {
    match (&params.body, &params.body_b64) {
        (Some(text), None) => Ok(text.as_bytes()),
        (None, Some(bytes)) => Ok(&bytes.0),
        (first, _) => Err(not_one_body(first.is_some())),
    }
}

fn check_fingerprint(theirs: &str, ours: &Fingerprint) -> Result<(), WireError> {
    let Some(theirs) = text::unhex_array(theirs).map(Fingerprint) else {
        return Err(WireError::bad_request("a fingerprint is 64 lower-case hex digits"));
    };
    if theirs == *ours {
        return Ok(());
    }
    let error = WireError::bad_request("the fingerprint is not that of this request; see the vectors");
    Err(error.with_details(json!({
        "clientFingerprintPrefix": theirs.prefix(),
        "brokerFingerprintPrefix": ours.prefix(),
    })))
}

/// Whether a `send` keeps to every bound; the error names the one that it does not.
pub fn within_bounds(params: &SendParams, max_payload: usize) -> Result<(), WireError> {
    check_body(params, max_payload)?;
    at_most("key", params.key.as_deref(), KEY_BYTES)?;
    at_most("replyTo", params.reply_to.as_deref(), REPLY_TO_BYTES)?;
    at_most("contentType", params.content_type.as_deref(), CONTENT_TYPE_BYTES)?;
    if let Some(meta) = &params.meta {
        let bytes = serde_json::to_vec(meta).map_or(usize::MAX, |json| json.len());
        within("meta", bytes, META_BYTES)?;
    }
    check_times(params)?;
    if params.fallback != Fallback::Hold && !matches!(params.to, Address::Session(_)) {
        let error = WireError::bad_request(
            "only a message to a session has a fallback: to a member or a topic leave it out",
        );
        return Err(error.about("fallback"));
    }
    Ok(())
}

fn check_body(params: &SendParams, max_payload: usize) -> Result<(), WireError> {
    let text = params.body.as_ref().map_or(0, String::len);
    let size = text.max(params.body_b64.as_ref().map_or(0, |bytes| bytes.0.len()));
    if size <= max_payload {
        return Ok(());
    }
    let message = format!("the body has {size} bytes; this broker takes at most {max_payload}");
    let details = json!({"limit": max_payload, "size": size});
    Err(WireError::new(ErrorCode::TooLarge, message).with_details(details))
}

fn check_times(params: &SendParams) -> Result<(), WireError> {
    let (ttl, delay) = (params.ttl_ms.map(|ms| ms.get()), params.delay_ms.map_or(0, |ms| ms.get()));
    if ttl.is_some_and(|ttl| !(1..=TTL_MAX_MS).contains(&ttl)) {
        return Err(WireError::bad_request(format!("ttlMs is 1 to {TTL_MAX_MS} (30 days)")).about("ttlMs"));
    }
    if delay > DELAY_MAX_MS {
        let error = WireError::bad_request(format!("delayMs is at most {DELAY_MAX_MS} (30 days)"));
        return Err(error.about("delayMs"));
    }
    if ttl.is_some_and(|ttl| ttl <= delay) {
        let error = WireError::bad_request("delayMs must be below ttlMs, or nobody ever gets it");
        return Err(error.with_details(json!({"field": "delayMs", "against": "ttlMs"})));
    }
    Ok(())
}

fn at_most(field: &str, text: Option<&str>, limit: usize) -> Result<(), WireError> {
    within(field, text.map_or(0, str::len), limit)
}

fn within(field: &str, size: usize, limit: usize) -> Result<(), WireError> {
    if size <= limit {
        return Ok(());
    }
    Err(WireError::bad_request(format!("{field} has {size} bytes; at most {limit} are allowed"))
        .with_details(json!({"field": field, "limit": limit, "size": size})))
}

#[cfg(test)]
#[path = "send_tests.rs"]
mod tests;
