//! What this session offers: kept here, renewed all in one frame, taken again after every break.
//!
//! What it promises: whoever offers something hears what the broker says of it, and again whenever that changes. A name
//! that somebody else holds is asked for again with every renewal, until it is free or nobody wants it any more. What is
//! given up is withdrawn at the broker, through every break, unless it is offered again.

use std::collections::{BTreeMap, BTreeSet};

use tenure_kit::time::{Millis, Now};
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::limits::{SERVICE_RENEW_MS, SERVICE_TTL_MS, SERVICES_PER_SESSION};
use tenure_proto::method::{Empty, Method};
use tenure_proto::number::U53;
use tenure_proto::service::{ServiceOffer, ServiceRenewParams, ServiceRenewResult, ServiceWithdrawParams};

use crate::delivery::SubEnd;
use crate::requests::Purpose;
use crate::{Link, LinkEffect};

/// Renewals that may be unanswered at once; past it none is sent until one is.
pub(super) const RENEWALS: usize = 64;
/// The shortest time between two renewals that are not called for.
const RENEW_FLOOR_MS: u64 = 250;

/// Something that this session offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OfferHandle(pub u64);

/// What whoever offers something hears.
#[derive(Clone, Debug, PartialEq)]
pub enum OfferItem {
    /// The broker has it, or says why not; said again when it says otherwise.
    Verdict(Result<(), WireError>),
    /// The session is over. Nothing follows.
    Ended(SubEnd),
}

#[derive(Debug)]
struct Offered {
    offer: ServiceOffer,
    /// How often it was changed: a verdict on what it was is none on what it is.
    revision: u32,
    verdict: Option<Result<(), WireError>>,
}

/// All that this session offers; at most [`SERVICES_PER_SESSION`].
#[derive(Debug, Default)]
pub(super) struct Offers {
    last: u64,
    all: BTreeMap<OfferHandle, Offered>,
    /// Names to be withdrawn; no more than were offered, and asked for in one frame.
    leaving: BTreeSet<String>,
    /// Renewals without an answer, on the socket that carries the session.
    asked: usize,
    due: Option<Millis>,
}

impl Offers {
    pub(super) fn len(&self) -> usize {
        self.all.len() + self.leaving.len()
    }

    pub(super) fn unanswered(&self) -> usize {
        self.asked
    }

    pub(super) fn next_deadline(&self) -> Option<Millis> {
        self.due
    }

    /// How long until the next renewal: three fit into the shortest time that something may go without one.
    fn interval_ms(&self) -> u64 {
        let ttl = |offered: &Offered| offered.offer.ttl_ms.map_or(SERVICE_TTL_MS, U53::get);
        let shortest = self.all.values().map(ttl).min().unwrap_or(SERVICE_TTL_MS);
        SERVICE_RENEW_MS.min(shortest / 3).max(RENEW_FLOOR_MS)
    }

    /// The session is over.
    pub(super) fn end_all(&mut self, end: &SubEnd) -> impl Iterator<Item = LinkEffect> + use<> {
        (self.due, self.asked) = (None, 0);
        self.leaving.clear();
        let (all, end) = (std::mem::take(&mut self.all), end.clone());
        all.into_keys().map(move |handle| LinkEffect::Offer(handle, OfferItem::Ended(end.clone())))
    }
}

impl Link {
    /// Offers a service from here on; what the broker says comes as [`LinkEffect::Offer`].
    pub fn offer(&mut self, now: Now, offer: ServiceOffer) -> Result<OfferHandle, WireError> {
        if self.ended {
            return Err(WireError::new(ErrorCode::LeaseExpired, "the session is over"));
        }
        if self.offers.all.values().any(|offered| offered.offer.name == offer.name) {
            let text = format!("this session offers {} already", offer.name);
            return Err(WireError::new(ErrorCode::NameTaken, text));
        }
        if self.offers.len() >= SERVICES_PER_SESSION {
            let text = format!("a session offers at most {SERVICES_PER_SESSION} services");
            return Err(WireError::new(ErrorCode::Busy, text));
        }
        self.offers.leaving.remove(&offer.name);
        self.offers.last += 1;
        let handle = OfferHandle(self.offers.last);
        self.offers.all.insert(handle, Offered { offer, revision: 0, verdict: None });
        self.renew(now.at);
        self.wake = self.next_deadline();
        Ok(handle)
    }

    /// Says something else of what is offered under the same name; the broker hears it at once.
    pub fn change_offer(&mut self, now: Now, handle: OfferHandle, change: impl FnOnce(&mut ServiceOffer)) {
        let Some(offered) = self.offers.all.get_mut(&handle) else { return };
        let mut offer = offered.offer.clone();
        change(&mut offer);
        offer.name.clone_from(&offered.offer.name);
        if offer == offered.offer {
            return;
        }
        offered.offer = offer;
        offered.revision = offered.revision.wrapping_add(1);
        self.renew(now.at);
        self.wake = self.next_deadline();
    }

    /// Offers it no more: nothing is heard of it from here on.
    pub fn withdraw_offer(&mut self, now: Now, handle: OfferHandle) {
        let Some(offered) = self.offers.all.remove(&handle) else { return };
        self.offers.leaving.insert(offered.offer.name);
        self.withdraw_leaving();
        if self.current.is_some() {
            self.offers.due = self.offers.due.or(Some(now.at.plus(SERVICE_RENEW_MS)));
        }
        self.wake = self.next_deadline();
    }

    /// A socket carries the session: all of it is said anew.
    pub(super) fn offer_again(&mut self, now: Millis) {
        self.withdraw_leaving();
        self.renew(now);
    }

    /// The socket is gone, and what was asked on it.
    pub(super) fn offers_broken(&mut self) {
        (self.offers.asked, self.offers.due) = (0, None);
    }

    /// Renews, when it is time.
    pub(super) fn renew_due(&mut self, now: Millis) {
        if self.offers.due.is_some_and(|due| now >= due) {
            self.withdraw_leaving();
            self.renew(now);
        }
    }

    fn renew(&mut self, now: Millis) {
        if self.current.is_none() {
            self.offers.due = None;
            return;
        }
        let idle = self.offers.all.is_empty();
        self.offers.due =
            (!idle || !self.offers.leaving.is_empty()).then(|| now.plus(self.offers.interval_ms()));
        if idle || self.offers.asked >= RENEWALS {
            return;
        }
        let asked = self.offers.all.iter().map(|(handle, offered)| (*handle, offered.revision)).collect();
        let services = self.offers.all.values().map(|offered| offered.offer.clone()).collect();
        let params = ServiceRenewParams { services };
        match self.ask(Purpose::Renew(asked), Method::ServiceRenew, &params) {
            Ok(_) => self.offers.asked += 1,
            Err(error) => self.refuse_offers(&error),
        }
    }

    fn withdraw_leaving(&mut self) {
        if self.offers.leaving.is_empty() || self.current.is_none() {
            return;
        }
        let names: Vec<String> = self.offers.leaving.iter().cloned().collect();
        let params = ServiceWithdrawParams { names: names.clone() };
        // One that the broker does not take is asked for again with the next renewal.
        let _ = self.ask(Purpose::Withdraw(names), Method::ServiceWithdraw, &params);
    }

    /// What the broker says of all that was offered.
    pub(super) fn renewal_answered(
        &mut self,
        asked: &[(OfferHandle, u32)],
        outcome: Result<ServiceRenewResult, WireError>,
    ) {
        self.offers.asked = self.offers.asked.saturating_sub(1);
        let results = match outcome {
            Ok(result) => result.results,
            // Refused for now, it is renewed again in a moment anyway. And a socket that does not carry the session any more
            // is about to be closed: its end is told, or all is said anew on the next.
            Err(error) if error.retryable || error.code == ErrorCode::LeaseExpired => return,
            Err(error) => return self.refuse_offers(&error),
        };
        for ((handle, revision), verdict) in asked.iter().zip(results) {
            let unsaid = || WireError::new(ErrorCode::Internal, "the broker did not say why");
            let verdict = if verdict.ok { Ok(()) } else { Err(verdict.error.unwrap_or_else(unsaid)) };
            self.judge(*handle, *revision, verdict);
        }
    }

    fn judge(&mut self, handle: OfferHandle, revision: u32, verdict: Result<(), WireError>) {
        let Some(offered) = self.offers.all.get_mut(&handle) else { return };
        if offered.revision == revision && offered.verdict.as_ref() != Some(&verdict) {
            offered.verdict = Some(verdict.clone());
            self.effects.push_back(LinkEffect::Offer(handle, OfferItem::Verdict(verdict)));
        }
    }

    fn refuse_offers(&mut self, error: &WireError) {
        let all: Vec<_> =
            self.offers.all.iter().map(|(handle, offered)| (*handle, offered.revision)).collect();
        for (handle, revision) in all {
            self.judge(handle, revision, Err(error.clone()));
        }
    }

    /// The broker has let go of names.
    pub(super) fn withdrawal_answered(&mut self, names: &[String], outcome: Result<Empty, WireError>) {
        // Refused for now, they are named again with the next renewal; refused for good, there is nothing to do.
        if !outcome.is_err_and(|error| error.retryable) {
            names.iter().for_each(|name| _ = self.offers.leaving.remove(name));
        }
    }
}
