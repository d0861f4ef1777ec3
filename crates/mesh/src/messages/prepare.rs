//! What a `send` says, checked and put into an envelope, before anybody knows where it will go.
//!
//! Two kinds of no. A request that does not say one thing (no body, or two; a fingerprint that cannot be computed, or
//! that is not what the client believes) has no identity to look up and is an error at once. A request beyond a
//! bound has one, and may be the retry of a message that was accepted under other bounds: its refusal travels
//! with it, and counts only if its id is not known ([`crate::messages::accept`]).

use serde_json::json;
use tenure_kit::bounds::{not_one_body, within_bounds};
use tenure_proto::error::WireError;
use tenure_proto::fingerprint::{Fingerprint, fingerprint};
use tenure_proto::ids::{MemberKey, MessageId, SessionKey};
use tenure_proto::message::{MessageKind, SendParams, Sender};
use tenure_proto::text;

use crate::messages::envelope::{Body, Envelope};

/// A `send` that is well formed.
#[derive(Clone, Debug, PartialEq)]
pub struct Prepared {
    /// The message. Its `from` is nobody until the mesh, which knows the session, says who.
    pub envelope: Envelope,
    /// What makes it the same request as another.
    pub fingerprint: Fingerprint,
    /// Which bound it is beyond, for [`crate::messages::accept::Accept::refusal`].
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

#[cfg(test)]
#[path = "prepare_tests.rs"]
mod tests;
