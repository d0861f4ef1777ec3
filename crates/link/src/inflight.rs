//! Messages in hand: handed to the application once, settled in batches, whatever happens to sockets meanwhile.
//!
//! A delivery that comes again while it is in hand only brings a newer tag; one that was acked, or given up for good,
//! is settled again; one that was given back or let go is handed out again. Settlements wait for [`Link::flush`], so that all those of one
//! turn leave as one request; after a break they are told in the reconciliation and sent only if that did not
//! settle them.

use std::collections::{BTreeMap, BTreeSet};

use tenure_kit::mutant::{self, Mutant};
use tenure_kit::time::{Millis, Now};
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::ids::{MessageId, Tag};
use tenure_proto::message::{Delivery, NackParams, SettleResult, TagsParams};
use tenure_proto::method::Method;
use tenure_proto::number::U53;
use tenure_proto::reconcile::{ClientInflight, InflightResult, InflightState, Settle};
use tenure_proto::subscribe::AckMode;

use crate::delivery::{DeliveryId, Handed, SettleNumber, Settlement, SubHandle, Verb};
use crate::requests::{Purpose, transient};
use crate::{Link, LinkEffect};

/// Tags of one request that settles.
const TAGS: usize = 1_024;

/// Words of progress about one message that may be without an answer; one more is refused.
pub(super) const PROGRESS: u32 = 16;

/// Everything in hand, and every settlement that has no answer yet. Bounded by what each subscription may have
/// in hand.
#[derive(Debug, Default)]
pub(super) struct Hands {
    last_delivery: u64,
    last_settle: u64,
    hands: BTreeMap<DeliveryId, Hand>,
    queue: BTreeMap<Verb, Vec<Item>>,
    /// Settlements that somebody waits for.
    waiting: BTreeSet<SettleNumber>,
    /// Nothing is settled before: the broker has asked for a pause.
    after: Option<Millis>,
    refusals: u32,
    /// Nothing is settled now: the broker is still being told what is in hand.
    pub(super) holding: bool,
}

#[derive(Debug)]
struct Hand {
    sub: SubHandle,
    log: String,
    seq: u64,
    message: MessageId,
    attempt: u32,
    tag: Tag,
    /// Whether the application asked for it.
    pulled: bool,
    /// Words of progress without an answer.
    progress: u32,
    settling: Option<(Verb, SettleNumber)>,
}

/// One settlement.
#[derive(Clone, Debug)]
enum Item {
    /// The application's.
    Of(DeliveryId, SettleNumber),
    /// Our own: an entry that is done with came again.
    Echo(Tag),
}

/// Settlements on their way, with the tags that they left with.
#[derive(Debug)]
pub(super) struct Batch {
    verb: Verb,
    items: Vec<(Item, Tag)>,
}

impl Hands {
    /// When a pause is over.
    pub(super) fn next_deadline(&self) -> Option<Millis> {
        self.after.filter(|_| !self.queue.is_empty())
    }

    /// What never got an answer is settled again.
    pub(super) fn unsend(&mut self, batch: Batch) {
        let own = batch.items.into_iter().map(|(item, _)| item).filter(|item| matches!(item, Item::Of(..)));
        self.queue.entry(batch.verb).or_default().extend(own);
    }

    /// All that is in hand, for the broker: what is settled first.
    pub(super) fn listed(&mut self, is_there: impl Fn(SubHandle) -> bool) -> (Vec<ClientInflight>, Listed) {
        // A broker gives to others what came through a subscription that is over; one whose store went back may have forgotten.
        let ended_keeps = mutant::on(Mutant::EndedKeeps);
        self.hands.retain(|_, hand| hand.settling.is_some() || is_there(hand.sub) || ended_keeps);
        let mut inflight = Vec::with_capacity(self.hands.len());
        let mut listed = Listed::new();
        for (id, hand) in &self.hands {
            let settle = match &hand.settling {
                Some((Verb::Ack, _)) => Some(Settle::Ack),
                // The list has no room for when and why: such a nack is sent again instead.
                Some((Verb::Nack { delay_ms: None, dead: false, reason: None }, _)) => Some(Settle::Nack),
                _ => None,
            };
            let state = if settle.is_some() { InflightState::Settled } else { InflightState::Processing };
            listed.insert(hand.tag.clone(), (*id, settle.is_some()));
            inflight.push(ClientInflight { tag: hand.tag.clone(), state, settle });
        }
        inflight.sort_by_key(|listed| listed.settle.is_none());
        (inflight, listed)
    }

    /// What a delivery of an entry that is in hand already means: nothing for the application, unless it had
    /// been given back, or its place is another message's now.
    fn again(&mut self, id: DeliveryId, delivery: &Delivery) -> bool {
        let Some(hand) = self.hands.get_mut(&id).filter(|hand| hand.message == delivery.message.id) else {
            return false;
        };
        let given_back = matches!(hand.settling, Some((Verb::Nack { .. }, _)));
        if given_back && delivery.attempt > hand.attempt {
            return false;
        }
        hand.tag = delivery.tag.clone();
        hand.attempt = delivery.attempt;
        true
    }

    /// Whether nothing is in hand, settled without an answer or not, besides what `apart` says is no matter.
    pub(super) fn are_empty_but(&self, apart: impl Fn(&DeliveryId) -> bool) -> bool {
        self.hands.keys().all(apart)
    }

    /// How many of a subscription the application has not said a last word about.
    fn unsettled(&self, sub: SubHandle) -> usize {
        self.hands.values().filter(|hand| hand.sub == sub && hand.settling.is_none()).count()
    }

    /// How many of them came without being asked for.
    pub(super) fn pushed(&self, sub: SubHandle) -> usize {
        let idle = |hand: &&Hand| hand.sub == sub && hand.settling.is_none() && !hand.pulled;
        self.hands.values().filter(idle).count()
    }

    /// A word of progress has its answer.
    fn progressed(&mut self, id: DeliveryId) {
        if let Some(hand) = self.hands.get_mut(&id) {
            hand.progress = hand.progress.saturating_sub(1);
        }
    }

    /// How many words of progress about one message wait at most.
    pub(super) fn progress(&self) -> usize {
        self.hands.values().map(|hand| hand.progress as usize).max().unwrap_or(0)
    }

    /// Answers a settlement, once.
    #[must_use]
    fn answer(&mut self, number: SettleNumber, outcome: Settlement) -> Option<LinkEffect> {
        self.waiting.remove(&number).then_some(LinkEffect::Settled(number, outcome))
    }

    /// Forgets what is in hand, for a mutant.
    pub(super) fn forget(&mut self) {
        self.hands.clear();
    }

    /// The session is over.
    pub(super) fn end(&mut self) -> impl Iterator<Item = LinkEffect> + use<> {
        self.hands.clear();
        self.queue.clear();
        let waiting = std::mem::take(&mut self.waiting);
        waiting.into_iter().map(|number| LinkEffect::Settled(number, Settlement::SessionOver))
    }
}

/// What was listed in a hello, by the tag it was listed with, and whether it was listed as settled.
pub(super) type Listed = BTreeMap<Tag, (DeliveryId, bool)>;

impl Link {
    fn answer_settle(&mut self, number: SettleNumber, outcome: Settlement) {
        self.effects.extend(self.hands.answer(number, outcome));
    }

    /// Settles a message in hand; [`LinkEffect::Settled`] tells what became of it. It leaves with the next
    /// [`Link::flush`].
    pub fn settle(&mut self, id: DeliveryId, verb: Verb) -> SettleNumber {
        let hands = &mut self.hands;
        hands.last_settle += 1;
        let number = SettleNumber(hands.last_settle);
        hands.waiting.insert(number);
        let stale = |reason: &str| Settlement::Stale { reason: reason.to_owned() };
        if self.ended {
            self.answer_settle(number, Settlement::SessionOver);
            return number;
        }
        match hands.hands.get_mut(&id) {
            None => self.answer_settle(number, stale("requeued")),
            Some(hand) if hand.settling.is_some() => self.answer_settle(number, stale("settled before")),
            Some(hand) if verb == Verb::Progress && hand.progress >= PROGRESS => {
                let text =
                    format!("{PROGRESS} words of progress about this message wait already; wait for them");
                self.answer_settle(number, Settlement::Refused(WireError::new(ErrorCode::Busy, text)));
            }
            Some(hand) => {
                if verb == Verb::Progress {
                    hand.progress += 1;
                } else {
                    hand.settling = Some((verb.clone(), number));
                }
                hands.queue.entry(verb).or_default().push(Item::Of(id, number));
            }
        }
        number
    }

    /// Lets go of a message in hand without settling it: when the broker hands it out again, so do we.
    pub fn forgo(&mut self, id: DeliveryId) {
        if self.hands.hands.get(&id).is_some_and(|hand| hand.settling.is_some()) {
            return;
        }
        self.lost(id);
    }

    /// Lets every settlement of this turn leave.
    pub fn flush(&mut self, now: Now) {
        self.settle_all(now.at);
        self.leave_if_done(now.at);
        self.wake = self.next_deadline();
    }

    pub(super) fn settle_all(&mut self, now: Millis) {
        if self.hands.after.is_some_and(|after| now >= after) {
            self.hands.after = None;
        }
        self.settle_unless_paused();
    }

    /// Sends what waits to be settled, unless the broker has asked to wait with that.
    pub(super) fn settle_unless_paused(&mut self) {
        let paused = self.hands.after.is_some();
        if self.current.is_none() || self.hands.holding || paused || self.hands.queue.is_empty() {
            return;
        }
        // A hello is on its way that says what is in hand: what follows it must be settled after it.
        if self.is_greeting() {
            return;
        }
        for (verb, items) in std::mem::take(&mut self.hands.queue) {
            let mut tagged: Vec<(Item, Tag)> = Vec::with_capacity(items.len());
            for item in items {
                match &item {
                    Item::Echo(tag) => {
                        let tag = tag.clone();
                        tagged.push((item, tag));
                    }
                    Item::Of(id, number) => match self.hands.hands.get(id) {
                        Some(hand) => tagged.push((item.clone(), hand.tag.clone())),
                        // Gone from our hands, and its fate may have been told by a reconciliation.
                        None => {
                            let stale = Settlement::Stale { reason: "requeued".to_owned() };
                            self.answer_settle(*number, stale);
                        }
                    },
                }
            }
            while !tagged.is_empty() {
                let rest = tagged.split_off(tagged.len().min(TAGS));
                let items = std::mem::replace(&mut tagged, rest);
                self.send_batch(Batch { verb: verb.clone(), items });
            }
        }
    }

    fn send_batch(&mut self, batch: Batch) {
        let tags = batch.items.iter().map(|(_, tag)| tag.clone()).collect();
        // The frame is far below any broker's limit; there is no error to speak of.
        let _ = match batch.verb.clone() {
            Verb::Ack => self.ask(Purpose::Settle(batch), Method::Ack, &TagsParams { tags }),
            Verb::Progress => self.ask(Purpose::Settle(batch), Method::Progress, &TagsParams { tags }),
            Verb::Nack { delay_ms, dead, reason } => {
                let params = NackParams { tags, delay_ms: delay_ms.map(U53::saturating), dead, reason };
                self.ask(Purpose::Settle(batch), Method::Nack, &params)
            }
        };
    }

    pub(super) fn settle_answered(
        &mut self,
        now: Millis,
        batch: Batch,
        outcome: Result<SettleResult, WireError>,
    ) {
        if self.is_greeting() {
            // The hello on its way says that these are in hand, and may be heard after this was answered: then they
            // are in our hands again. So they are settled once more, after it.
            return self.hands.unsend(batch);
        }
        let result = match outcome {
            Ok(result) => result,
            Err(error) if transient(error.code) => {
                let wait = self.backoff.again_ms(self.hands.refusals);
                self.hands.refusals = self.hands.refusals.saturating_add(1);
                self.hands.after = Some(now.plus(wait + error.retry_after_ms.map_or(0, U53::get)));
                return self.hands.unsend(batch);
            }
            Err(error) => return self.settle_refused(batch, &error),
        };
        self.hands.refusals = 0;
        let settled: BTreeSet<Tag> = result.settled.into_iter().collect();
        let mut stale: BTreeMap<Tag, String> = result.stale.into_iter().map(|s| (s.tag, s.reason)).collect();
        for (item, tag) in batch.items {
            let Item::Of(id, number) = item else { continue };
            if settled.contains(&tag) {
                self.settled(id, &batch.verb, number);
            } else if self.hands.hands.get(&id).is_some_and(|hand| hand.tag != tag) {
                // It came again meanwhile, under another tag.
                self.hands.queue.entry(batch.verb.clone()).or_default().push(Item::Of(id, number));
            } else {
                let reason = stale.remove(&tag).unwrap_or_else(|| "unknown to the broker".to_owned());
                self.lost(id);
                self.answer_settle(number, Settlement::Stale { reason });
            }
        }
        self.settle_all(now);
    }

    pub(super) fn settle_refused(&mut self, batch: Batch, error: &WireError) {
        for (item, _) in batch.items {
            let Item::Of(id, number) = item else { continue };
            if batch.verb == Verb::Progress {
                self.hands.progressed(id);
            } else {
                self.lost(id);
            }
            self.answer_settle(number, Settlement::Refused(error.clone()));
        }
    }

    /// A settlement took effect.
    fn settled(&mut self, id: DeliveryId, verb: &Verb, number: SettleNumber) {
        self.answer_settle(number, Settlement::Settled);
        if *verb == Verb::Progress {
            return self.hands.progressed(id);
        }
        let Some(hand) = self.hands.hands.remove(&id) else { return };
        let Some((book, ids)) = self.subs.memory(hand.sub, &hand.log) else { return };
        match verb {
            Verb::Ack => {
                book.acked(hand.seq, id);
                ids.acked(hand.message);
            }
            Verb::Nack { dead: true, .. } => {
                book.buried(hand.seq, id, hand.attempt, verb.clone());
                ids.buried(hand.message, hand.attempt, verb.clone());
            }
            Verb::Nack { .. } | Verb::Progress => {
                book.let_go(hand.seq, id);
            }
        }
    }

    /// The delivery of a run is settled: its end did that.
    pub(super) fn run_settled(&mut self, id: DeliveryId) {
        if let Some(hand) = self.hands.hands.remove(&id)
            && let Some((book, ids)) = self.subs.memory(hand.sub, &hand.log)
        {
            book.acked(hand.seq, id);
            ids.acked(hand.message);
        }
    }

    /// A message is in our hands no more: it may come again, and is new then.
    fn lost(&mut self, id: DeliveryId) -> Option<(Verb, SettleNumber)> {
        let hand = self.hands.hands.remove(&id)?;
        if let Some((book, _)) = self.subs.memory(hand.sub, &hand.log) {
            book.let_go(hand.seq, id);
        }
        hand.settling
    }

    /// What the broker says about a delivery that we listed; `None` when it says nothing and knows nothing.
    pub(super) fn judged(&mut self, id: DeliveryId, as_settled: bool, verdict: Option<InflightResult>) {
        match verdict {
            Some(InflightResult::Settled) if as_settled => {
                let settling = self.hands.hands.get(&id).and_then(|hand| hand.settling.clone());
                if let Some((verb, number)) = settling {
                    self.settled(id, &verb, number);
                }
            }
            // Still ours; if it is being settled, that goes out now.
            Some(InflightResult::Settled | InflightResult::Kept) => {}
            Some(InflightResult::Requeued) | None => {
                self.run_lost(id);
                if let Some((_, number)) = self.lost(id) {
                    let stale = Settlement::Stale { reason: "requeued".to_owned() };
                    self.answer_settle(number, stale);
                }
            }
        }
    }

    /// Takes a delivery in hand; `None` when the application has nothing to do with it. What was `pulled` is
    /// taken however much is in hand: the application asked for it.
    ///
    /// A place that was settled may be a new message's: the broker's history is another one, and it could not tell, because
    /// what we had there is pruned in its log. Then the numbers of that log mean nothing any more.
    pub(super) fn take(
        &mut self,
        handle: SubHandle,
        delivery: Box<Delivery>,
        pulled: bool,
    ) -> Option<Handed> {
        let (seq, message) = (delivery.message.seq.get(), delivery.message.id);
        let (sub, ids) = self.subs.reader(handle)?;
        let settled = sub.book(&delivery.message.log).is_settled(seq);
        if settled && ids.is_new(&message) && !mutant::on(Mutant::PlaceAlone) {
            self.history_changed(&delivery.message.log);
            if !self.subs.is_open(handle) {
                // It comes again with everything that was accepted before it.
                return None;
            }
        }
        let (sub, ids) = self.subs.reader(handle)?;
        let auto = sub.ack_mode() == AckMode::Auto;
        // What is acked is the broker's again before it says so: it may be far ahead of its answers.
        let room = sub.room();
        let full = !pulled && sub.hands() >= room && self.hands.unsettled(handle) >= room;
        let book = sub.book(&delivery.message.log);
        book.came(seq, message);
        let known = ids.handled(&message, delivery.attempt).cloned();
        if auto {
            // After a broker crash, or a lost lease, it may come again.
            let new = book.read(seq, message) && known.is_none();
            ids.acked(message);
            return new.then_some(Handed { id: None, delivery });
        }
        let ack = book.is_over(seq, message).then_some(&Verb::Ack);
        let done = ack.or_else(|| book.buried_by(seq, delivery.attempt)).cloned();
        let acked_before = known.is_some();
        if let Some(verb) = done.or(known) {
            match &verb {
                Verb::Ack => book.recognised(seq, acked_before),
                // The attempts of another history are counted anew: the next one was fetched from the dead letters.
                _ if book.is_rewound() => ids.buried(message, delivery.attempt, verb.clone()),
                _ => {}
            }
            self.hands.queue.entry(verb).or_default().push(Item::Echo(delivery.tag));
            return None;
        }
        for id in book.in_hand_by(seq).into_iter().flatten() {
            if self.hands.again(id, &delivery) {
                book.again(seq, id);
                return None;
            }
        }
        if full {
            // Nobody has read for so long that the broker took back what it gave: let others have this one.
            return None;
        }
        self.hands.last_delivery += 1;
        let id = DeliveryId(self.hands.last_delivery);
        book.take(seq, id);
        let hand = Hand {
            sub: handle,
            log: delivery.message.log.clone(),
            seq,
            message,
            attempt: delivery.attempt,
            tag: delivery.tag.clone(),
            pulled,
            progress: 0,
            settling: None,
        };
        self.hands.hands.insert(id, hand);
        Some(Handed { id: Some(id), delivery })
    }
}
