//! Sending: one frame, the same bytes on every socket until it is answered; and receipts, which are state at the
//! broker and only hinted at by events.

use std::collections::BTreeMap;

use tenure_kit::deadline::Deadlines;
use tenure_kit::time::{Millis, Now};
use tenure_proto::codec::ROOM;
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::event::{Receipt, ReceiptState};
use tenure_proto::ids::ClientMessageId;
use tenure_proto::limits::PAGE;
use tenure_proto::message::{
    Address, SendParams, SendResult, SendState, SendStatus, SendStatusParams, SendStatusResult,
};
use tenure_proto::method::Method;

use crate::requests::Purpose;
use crate::{Link, LinkEffect, RequestNumber};

/// Receipts that may be awaited at once.
pub(super) const AWAITED: usize = 16_384;

/// How long a sender waits.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For the answer, breaks and passing refusals included.
    pub answer_ms: u64,
    /// For the receipt, if it wants one, counted from the send.
    pub receipt_ms: Option<u64>,
}

/// Receipts that somebody waits for; at most [`AWAITED`].
#[derive(Debug, Default)]
pub(super) struct Receipts {
    awaited: BTreeMap<(ClientMessageId, u64), Awaited>,
    ids: BTreeMap<u64, ClientMessageId>,
    until: Deadlines<u64>,
}

#[derive(Debug, Default)]
struct Awaited {
    accepted: bool,
    /// It came before the answer to the send.
    early: Option<Receipt>,
}

impl Receipts {
    pub(super) fn next_deadline(&self) -> Option<Millis> {
        self.until.next()
    }

    /// How many somebody waits for.
    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    /// The receipt for a send has come, or never will; nothing if nobody waits for it.
    #[must_use]
    fn finish(&mut self, number: u64, outcome: Result<Receipt, WireError>) -> Option<LinkEffect> {
        self.until.clear(&number);
        let id = self.ids.remove(&number)?;
        self.awaited.remove(&(id, number));
        Some(LinkEffect::Receipt(RequestNumber(number), outcome))
    }

    fn of(&self, id: &ClientMessageId) -> Vec<u64> {
        let range = (id.clone(), 0)..=(id.clone(), u64::MAX);
        self.awaited.range(range).map(|((_, number), _)| *number).collect()
    }

    /// `event receipt`.
    #[must_use]
    pub(super) fn came(&mut self, receipt: &Receipt) -> Vec<LinkEffect> {
        let id = &receipt.client_message_id;
        let mut finished = Vec::new();
        for number in self.of(id) {
            match self.awaited.get_mut(&(id.clone(), number)) {
                Some(awaited) if !awaited.accepted => awaited.early = Some(receipt.clone()),
                _ => finished.extend(self.finish(number, Ok(receipt.clone()))),
            }
        }
        finished
    }

    #[must_use]
    pub(super) fn expire(&mut self, now: Millis) -> Vec<LinkEffect> {
        let mut finished = Vec::new();
        while let Some(number) = self.until.pop_due(now) {
            let message = "no receipt came in time; ask `send.status` later";
            finished.extend(self.finish(number, Err(WireError::new(ErrorCode::Unavailable, message))));
        }
        finished
    }

    /// The session is over.
    #[must_use]
    pub(super) fn end(&mut self) -> Vec<LinkEffect> {
        let numbers: Vec<_> = self.ids.keys().copied().collect();
        let over = || WireError::new(ErrorCode::LeaseExpired, "the session is over");
        numbers.into_iter().filter_map(|number| self.finish(number, Err(over()))).collect()
    }
}

impl Link {
    fn finish_receipt(&mut self, number: u64, outcome: Result<Receipt, WireError>) {
        self.effects.extend(self.receipts.finish(number, outcome));
    }

    /// Sends a message. The answer comes as [`LinkEffect::Answer`]; a receipt, if asked for, as
    /// [`LinkEffect::Receipt`]. The frame is made now and never again: whatever breaks, the broker sees one
    /// request, perhaps several times.
    pub fn send(
        &mut self,
        now: Now,
        params: &SendParams,
        patience: Patience,
    ) -> Result<RequestNumber, WireError> {
        self.room()?;
        if patience.receipt_ms.is_some() {
            if matches!(params.to, Address::Topic(_)) {
                return Err(WireError::bad_request(
                    "a topic gives no receipts: it has any number of readers",
                ));
            }
            if self.receipts.ids.len() >= AWAITED {
                return Err(WireError::new(ErrorCode::Busy, "too many receipts are awaited"));
            }
        }
        let id = params.client_message_id.clone();
        let purpose = Purpose::Send(id.clone(), patience.receipt_ms.is_some());
        let body = params.body.as_ref().map_or(0, String::len);
        let body = body + params.body_b64.as_ref().map_or(0, |bytes| bytes.0.len());
        let number = self.ask_on(self.sock(), purpose, (Method::Send, params, ROOM + body))?;
        self.requests.expires(number, now.at.plus(patience.answer_ms));
        if let Some(ms) = patience.receipt_ms {
            self.receipts.awaited.insert((id.clone(), number.0), Awaited::default());
            self.receipts.ids.insert(number.0, id);
            self.receipts.until.set(number.0, now.at.plus(ms));
        }
        self.wake = self.next_deadline();
        Ok(number)
    }

    pub(super) fn send_answered(
        &mut self,
        number: RequestNumber,
        id: ClientMessageId,
        outcome: Result<SendResult, WireError>,
    ) {
        let result = match outcome {
            Ok(result) => result,
            Err(error) => return self.finish_receipt(number.0, Err(error)),
        };
        let Some(awaited) = self.receipts.awaited.get_mut(&(id.clone(), number.0)) else { return };
        awaited.accepted = true;
        if let Some(receipt) = awaited.early.take() {
            self.finish_receipt(number.0, Ok(receipt));
        } else if result.duplicate {
            // Its receipt may have come and gone, to an earlier life of this program.
            self.ask_status(vec![id]);
        }
    }

    /// Events were lost: asks for every receipt that might have been among them.
    pub(super) fn ask_receipts(&mut self) {
        let accepted = self.receipts.awaited.iter().filter(|(_, awaited)| awaited.accepted);
        let mut ids: Vec<ClientMessageId> = accepted.map(|((id, _), _)| id.clone()).collect();
        ids.dedup();
        for page in ids.chunks(PAGE) {
            self.ask_status(page.to_vec());
        }
    }

    fn ask_status(&mut self, client_message_ids: Vec<ClientMessageId>) {
        let params = SendStatusParams { client_message_ids };
        // 256 ids are far below any broker's limit.
        let _ = self.ask(Purpose::Status, Method::SendStatus, &params);
    }

    pub(super) fn status_answered(&mut self, outcome: Result<SendStatusResult, WireError>) {
        // Refused, the question is asked again after the next lost events; the wait has an end of its own.
        for status in outcome.map(|result| result.statuses).unwrap_or_default() {
            for number in self.receipts.of(&status.client_message_id) {
                if let Some(fate) = fate(&status) {
                    self.finish_receipt(number, fate);
                }
            }
        }
    }
}

/// What a status means for who waits; `None` is to wait on.
fn fate(status: &SendStatus) -> Option<Result<Receipt, WireError>> {
    let state = match status.state {
        SendState::Accepted => return None,
        SendState::Delivered => Some(ReceiptState::Delivered),
        SendState::Dead => Some(ReceiptState::Dead),
        SendState::Expired => Some(ReceiptState::Expired),
        SendState::Unknown => None,
    };
    let (Some(state), Some(id)) = (state, status.id) else {
        let message = "the broker does not know that message any more";
        return Some(Err(WireError::new(ErrorCode::NotFound, message)));
    };
    let (client_message_id, reason) = (status.client_message_id.clone(), status.reason.clone());
    Some(Ok(Receipt { id, client_message_id, state, reason }))
}
