//! Offering: a service that this session answers, held through every break.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use tenure_link::{OfferHandle, OfferItem, SubEnd};
use tenure_proto::WireError;
use tenure_proto::number::U53;
use tenure_proto::service::{ServiceKind, ServiceMetadata, ServiceOffer};
use tokio::sync::{mpsc, oneshot};

use crate::driver::Command;
use crate::received::HandCommand;
use crate::send::millis;
use crate::session::{Session, over};

/// The task's end of an offer. Unbounded as a channel; the link tells a verdict only when it is another than before.
pub(crate) type Offerer = mpsc::UnboundedSender<OfferItem>;

/// A service that this session offers. It is renewed, and taken again after every break, for as long as this is held.
///
/// **Dropped**, the service is withdrawn: its name is free, and streams through it end.
#[derive(Debug)]
pub struct Offered {
    session: Session,
    name: String,
    handle: OfferHandle,
    items: mpsc::UnboundedReceiver<OfferItem>,
    end: Option<SubEnd>,
}

impl Offered {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the broker says of it next: that this session has the name, or why not. Refused, it is asked for again with
    /// every renewal, so a name that somebody else holds is this session's when it is free. Ends with the session.
    /// Cancel-safe.
    pub async fn verdict(&mut self) -> Result<Result<(), WireError>, SubEnd> {
        if let Some(end) = &self.end {
            return Err(end.clone());
        }
        match self.items.recv().await {
            Some(OfferItem::Verdict(verdict)) => Ok(verdict),
            Some(OfferItem::Ended(end)) => Err(self.end.insert(end).clone()),
            // The task ends by telling why; without that it was torn down with its runtime.
            None => Err(self.end.insert(SubEnd::Disconnected).clone()),
        }
    }

    /// Says whether its local target fails: peers see the service marked, and it stays.
    pub fn set_degraded(&self, degraded: bool) {
        let _ = self.session.hands.send(HandCommand::Degrade(self.handle, degraded));
    }

    /// Says other things of it.
    pub fn set_metadata(&self, metadata: ServiceMetadata) {
        let _ = self.session.hands.send(HandCommand::Describe(self.handle, metadata));
    }
}

impl Drop for Offered {
    fn drop(&mut self) {
        let _ = self.session.hands.send(HandCommand::Withdraw(self.handle));
    }
}

/// An offer in the making: describe it, then await it.
#[must_use = "nothing is offered before this is awaited"]
#[derive(Debug)]
pub struct OfferBuilder {
    session: Session,
    offer: ServiceOffer,
}

impl OfferBuilder {
    pub(crate) fn new(session: Session, name: String, kind: ServiceKind) -> OfferBuilder {
        let (ttl_ms, metadata, degraded) = (None, ServiceMetadata::default(), false);
        OfferBuilder { session, offer: ServiceOffer { name, kind, ttl_ms, metadata, degraded } }
    }

    /// How long without a renewal until it is stale; thirty seconds unless told otherwise.
    pub fn ttl(mut self, ttl: Duration) -> OfferBuilder {
        self.offer.ttl_ms = Some(U53::saturating(millis(ttl)));
        self
    }

    /// What it is, in a sentence.
    pub fn description(mut self, text: impl Into<String>) -> OfferBuilder {
        self.offer.metadata.description = Some(text.into());
        self
    }

    /// One more label.
    pub fn tag(mut self, tag: impl Into<String>) -> OfferBuilder {
        self.offer.metadata.tags.push(tag.into());
        self
    }

    /// Whom to ask.
    pub fn owner(mut self, owner: impl Into<String>) -> OfferBuilder {
        self.offer.metadata.owner = Some(owner.into());
        self
    }

    /// Whether it is left out of lists.
    pub fn hide(mut self, hide: bool) -> OfferBuilder {
        self.offer.metadata.hide = hide;
        self
    }

    async fn open(self) -> Result<Offered, WireError> {
        let OfferBuilder { session, offer } = self;
        let name = offer.name.clone();
        let (answer, answered) = oneshot::channel();
        session.commands.send(Command::Offer(Box::new(offer), answer)).await.map_err(|_| over())?;
        let (handle, items) = answered.await.map_err(|_| over())??;
        Ok(Offered { session, name, handle, items, end: None })
    }
}

impl IntoFuture for OfferBuilder {
    type Output = Result<Offered, WireError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Offered, WireError>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.open())
    }
}
