//! The bounds of a `send`, which a broker and a daemon both keep.

use serde_json::json;
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::limits::{
    CONTENT_TYPE_BYTES, DELAY_MAX_MS, KEY_BYTES, META_BYTES, REPLY_TO_BYTES, TTL_MAX_MS,
};
use tenure_proto::message::{Address, Fallback, SendParams};

/// The body of a `send`, which is one.
pub fn body(params: &SendParams) -> Result<&[u8], WireError> {
    match (&params.body, &params.body_b64) {
        (Some(text), None) => Ok(text.as_bytes()),
        (None, Some(bytes)) => Ok(&bytes.0),
        (first, _) => Err(not_one_body(first.is_some())),
    }
}

/// A message with no body, or with two.
pub fn not_one_body(two: bool) -> WireError {
    let error = WireError::bad_request("a message has exactly one of body and bodyB64");
    error.about(if two { "bodyB64" } else { "body" })
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
