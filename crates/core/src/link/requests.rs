//! Requests of the application: sent when a socket carries the session, sent again after a break (each is
//! idempotent by what it names), answered exactly once, never waited for without end.

use std::collections::BTreeMap;

use serde::Serialize;
use tenure_proto::codec::Codec;
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::frame::Request;
use tenure_proto::ids::RequestId;
use tenure_proto::limits::MAX_INFLIGHT;
use tenure_proto::method::{Empty, Method};

use super::{Link, LinkEffect, RequestNumber, SockId};
use crate::time::{Millis, Now};

/// Unanswered requests; at most [`MAX_INFLIGHT`].
#[derive(Debug, Default)]
pub(super) struct Requests {
    last: u64,
    open: BTreeMap<u64, Open>,
}

#[derive(Debug)]
struct Open {
    frame: Vec<u8>,
    until: Millis,
    sent: bool,
}

impl Requests {
    pub(super) fn next_deadline(&self) -> Option<Millis> {
        // A scan, but of a set that is small whenever nobody is in a hurry.
        self.open.values().map(|open| open.until).min()
    }

    pub(super) fn expire(&mut self, now: Millis, effects: &mut Vec<LinkEffect>) {
        let late: Vec<u64> =
            self.open.iter().filter(|(_, open)| now >= open.until).map(|(n, _)| *n).collect();
        for number in late {
            self.open.remove(&number);
            let error = WireError::new(
                ErrorCode::Unavailable,
                "no answer came in time; it may or may not have been done",
            );
            effects.push(LinkEffect::Answer(RequestNumber(number), Err(error)));
        }
    }

    /// The socket is gone: everything unanswered goes out again on the next.
    pub(super) fn unsend(&mut self) {
        for open in self.open.values_mut() {
            open.sent = false;
        }
    }

    pub(super) fn send_all(&mut self, sock: SockId, effects: &mut Vec<LinkEffect>) {
        for open in self.open.values_mut().filter(|open| !open.sent) {
            open.sent = true;
            effects.push(LinkEffect::Send(sock, open.frame.clone()));
        }
    }

    /// A frame was over the broker's limit: the largest that was sent is not sent again.
    fn too_large(&mut self, effects: &mut Vec<LinkEffect>) {
        let sent = self.open.iter().filter(|(_, open)| open.sent);
        let largest = sent.max_by_key(|(_, open)| open.frame.len()).map(|(number, _)| *number);
        if let Some(number) = largest
            && let Some(open) = self.open.remove(&number)
        {
            effects.push(LinkEffect::Answer(RequestNumber(number), Err(too_large(open.frame.len()))));
        }
    }

    pub(super) fn end(&mut self, effects: &mut Vec<LinkEffect>) {
        for (number, _) in std::mem::take(&mut self.open) {
            let error = WireError::new(ErrorCode::LeaseExpired, "the session is over");
            effects.push(LinkEffect::Answer(RequestNumber(number), Err(error)));
        }
    }
}

impl Link {
    /// Asks the broker for something; the answer comes as [`LinkEffect::Answer`].
    pub fn request<P: Serialize>(
        &mut self,
        now: Now,
        method: Method,
        params: &P,
        timeout_ms: u64,
        effects: &mut Vec<LinkEffect>,
    ) -> Result<RequestNumber, WireError> {
        if self.ended {
            return Err(WireError::new(ErrorCode::LeaseExpired, "the session is over"));
        }
        if self.requests.open.len() >= MAX_INFLIGHT as usize {
            return Err(WireError::new(ErrorCode::Busy, "too many requests wait for their answers"));
        }
        let number = self.requests.last + 1;
        let frame = frame(self.config.codec, &number.to_string(), method, params);
        if frame.len() > self.policy.frame_bytes {
            return Err(too_large(frame.len()));
        }
        self.requests.last = number;
        let until = now.at.plus(timeout_ms);
        let sock = self.current.as_ref().map(|current| current.sock);
        if let Some(sock) = sock {
            effects.push(LinkEffect::Send(sock, frame.clone()));
        }
        self.requests.open.insert(number, Open { frame, until, sent: sock.is_some() });
        self.wake = self.next_deadline();
        Ok(RequestNumber(number))
    }

    /// The broker closed `sock` over a frame that was too large.
    pub(super) fn too_large(&mut self, sock: SockId, effects: &mut Vec<LinkEffect>) {
        if self.current.as_ref().is_some_and(|current| current.sock == sock) {
            self.requests.too_large(effects);
        }
    }

    pub(super) fn answered(&mut self, id: &RequestId, bytes: &[u8], effects: &mut Vec<LinkEffect>) {
        let Some(number) = id.as_str().parse().ok() else { return };
        if self.requests.open.remove(&number).is_some() {
            effects.push(LinkEffect::Answer(RequestNumber(number), Ok(bytes.to_vec())));
        }
    }
}

fn too_large(bytes: usize) -> WireError {
    WireError::new(ErrorCode::TooLarge, format!("a request of {bytes} bytes is more than the broker reads"))
}

/// The request of a goodbye.
pub(super) fn bye_frame(codec: Codec) -> Vec<u8> {
    frame(codec, "bye", Method::Bye, &Empty {})
}

pub(super) fn frame<P: Serialize>(codec: Codec, id: &str, method: Method, params: &P) -> Vec<u8> {
    match id.parse() {
        Ok(id) => codec.encode(&Request::new(id, method.as_str(), params)),
        // Our own ids are short and printable.
        Err(_) => Vec::new(),
    }
}
