//! What applications offer each other: names that several want, held through everything that breaks.

use tenure_kit::Now;
use tenure_link::{OfferHandle, OfferItem};
use tenure_proto::service::{ServiceKind, ServiceMetadata, ServiceOffer};

use crate::process::Process;
use crate::seen::Seen;

impl Process {
    /// Offers everything that its role says, and it does not offer yet.
    pub(crate) fn offer_all(&mut self, now: Now) {
        for name in self.role.offers.clone() {
            self.offer(now, &name);
        }
    }

    fn offer(&mut self, now: Now, name: &str) {
        if self.offers.values().any(|offered| offered == name) {
            return;
        }
        let offer = ServiceOffer {
            name: name.to_owned(),
            kind: ServiceKind::Tcp,
            ttl_ms: None,
            metadata: ServiceMetadata::default(),
            degraded: false,
        };
        if let Ok(handle) = self.link.offer(now, offer) {
            self.seen.push(Seen::Offers(self.life, name.to_owned()));
            self.offers.insert(handle, name.to_owned());
        }
    }

    /// Changes its mind now and then: gives a name up, wants one again, or says that its target fails.
    pub(crate) fn reconsider_offers(&mut self, now: Now) {
        if self.role.offers.is_empty() {
            return;
        }
        if self.rng.chance(6) {
            let open: Vec<OfferHandle> = self.offers.keys().copied().collect();
            if let Some(handle) = self.rng.pick(&open)
                && let Some(name) = self.offers.remove(&handle)
            {
                self.seen.push(Seen::Withdraws(self.life, name));
                self.link.withdraw_offer(now, handle);
            }
        }
        if self.rng.chance(20)
            && let Some(name) = self.rng.pick(&self.role.offers)
        {
            self.offer(now, &name);
        }
        if self.rng.chance(10) {
            let open: Vec<OfferHandle> = self.offers.keys().copied().collect();
            if let Some(handle) = self.rng.pick(&open) {
                self.link.change_offer(now, handle, |offer| offer.degraded = !offer.degraded);
            }
        }
    }

    /// The SDK says something of an offer.
    pub(crate) fn offer_item(&mut self, handle: OfferHandle, item: OfferItem) {
        match item {
            OfferItem::Verdict(verdict) => {
                if let Some(name) = self.offers.get(&handle) {
                    let verdict = verdict.map_err(|error| error.code.as_str().to_owned());
                    self.seen.push(Seen::OfferJudged(self.life, name.clone(), verdict));
                }
            }
            OfferItem::Ended(_) => _ = self.offers.remove(&handle),
        }
    }
}
