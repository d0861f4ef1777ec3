//! Subscriptions: each has a handle of the application's that outlives sockets, leases and the broker's own names.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use tenure_kit::mutant::{self, Mutant};
use tenure_kit::time::Now;
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::hello::{InboxChoice, LogPosition};
use tenure_proto::ids::{MessageId, SubId};
use tenure_proto::log::LogName;
use tenure_proto::message::Delivery;
use tenure_proto::method::Method;
use tenure_proto::number::U53;
use tenure_proto::reconcile::ClientSubscription;
use tenure_proto::subscribe::{
    AckMode, DEFAULT_PREFETCH, FetchParams, FetchResult, From, SubscribeParams, SubscribeResult,
    SubscriptionEvent, SubscriptionEventKind, UnsubscribeParams,
};

use crate::book::{Book, Reading, WITNESSES};
use crate::delivery::{SubEnd, SubHandle, SubItem};
use crate::ids::Ids;
use crate::requests::Purpose;
use crate::{Link, LinkEffect, RequestNumber, SessionEvent};

/// Subscriptions of one session.
pub(super) const SUBSCRIPTIONS: usize = 1_024;
/// Deliveries that may wait for the answer that says whose they are. Beyond it they are not taken: the broker
/// hands them out again.
pub(super) const EARLY: usize = 1_024;
/// How many times its prefetch a subscription may have in hand. More than once, because the broker takes back
/// what is not settled in time, while the application may still be at it.
const HANDS: usize = 4;
/// Lanes of an inbox, each with a prefetch of its own.
const LANES: usize = 3;

/// All subscriptions of a session; at most [`SUBSCRIPTIONS`].
#[derive(Debug)]
pub(super) struct Subs {
    last: u64,
    table: BTreeMap<SubHandle, Sub>,
    ids: BTreeMap<SubId, SubHandle>,
    early: Vec<Delivery>,
    /// Messages that each has handled, by id; of both inboxes together.
    handled: BTreeMap<SubHandle, Ids>,
    /// Subscriptions that are nobody's, which the broker has been told on this socket.
    strangers: BTreeSet<SubId>,
}

/// One subscription.
#[derive(Debug)]
pub(super) struct Sub {
    /// What was asked for; of an inbox, nothing.
    wish: Option<SubscribeParams>,
    /// The broker's name for it.
    pub(super) id: Option<SubId>,
    pub(super) stage: Stage,
    /// Whether the application knows that it is open.
    told: bool,
    /// When it was first open, by the broker's clock.
    since: Option<u64>,
    /// Whether a log of it was rewound and it has not been opened since: it begins again at the earliest entry.
    rewound: bool,
    books: BTreeMap<String, Book>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Its `subscribe` is under way.
    Opening,
    Open,
    /// Its `unsubscribe` is under way.
    Leaving,
}

/// Whose ids a subscription shares: those of both inboxes are one, because what a session leaves in its own moves to its
/// member's under its id.
fn scope(handle: SubHandle) -> SubHandle {
    if handle == SubHandle::MEMBER { SubHandle::INBOX } else { handle }
}

impl Sub {
    fn new(wish: Option<SubscribeParams>) -> Sub {
        Sub {
            wish,
            id: None,
            stage: Stage::Opening,
            told: false,
            since: None,
            rewound: false,
            books: BTreeMap::new(),
        }
    }

    pub(super) fn ack_mode(&self) -> AckMode {
        self.wish.as_ref().map_or(AckMode::Manual, |wish| wish.ack_mode)
    }

    /// When it was first open, by the broker's clock, which shows `wall`; the beginning of time if that is not known, or if
    /// that clock went back behind it: then times tell nothing, and more is handed out rather than less.
    pub(super) fn since(&self, wall: Option<u64>) -> u64 {
        self.since.filter(|since| wall.is_some_and(|wall| *since <= wall)).unwrap_or(0)
    }

    /// Deliveries that it takes in hand, besides those that are on their way to being settled.
    pub(super) fn room(&self) -> usize {
        let prefetch = match &self.wish {
            Some(wish) => wish.prefetch as usize,
            None => DEFAULT_PREFETCH as usize * LANES,
        };
        prefetch.max(1).saturating_mul(HANDS)
    }

    /// Deliveries in hand, settlements without an answer included.
    pub(super) fn hands(&self) -> usize {
        self.books.values().map(Book::hands).sum()
    }

    /// What it remembers of each log.
    pub(super) fn books(&self) -> impl Iterator<Item = &Book> {
        self.books.values()
    }

    /// What it remembers of `log`.
    pub(super) fn book(&mut self, log: &str) -> &mut Book {
        let reading = match &self.wish {
            Some(SubscribeParams { group: None, ack_mode: AckMode::Manual, .. }) => Reading::Sole,
            Some(SubscribeParams { group: None, ack_mode: AckMode::Auto, .. }) => Reading::Glance,
            _ => Reading::Shared,
        };
        self.books.entry(log.to_owned()).or_insert_with(|| match log.parse() {
            Ok(LogName::Topic(_, partition)) => Book::of(Some(partition), reading),
            _ => Book::of(None, Reading::Shared),
        })
    }

    fn is(&self, wish: &SubscribeParams) -> bool {
        let same = |own: &SubscribeParams| {
            own.topic == wish.topic && own.group == wish.group && own.partition == wish.partition
        };
        self.stage != Stage::Leaving && self.wish.as_ref().is_some_and(same)
    }

    /// As the broker is told of it in a reconciliation.
    fn view(&self) -> Option<ClientSubscription> {
        let (wish, id) = (self.wish.as_ref()?, self.id.as_ref()?);
        let positions = self
            .books
            .values()
            .filter_map(|book| Some((book.partition?.to_string(), U53::saturating(book.position()?))));
        (self.stage == Stage::Open).then(|| ClientSubscription {
            sub_id: id.clone(),
            topic: wish.topic.clone(),
            group: wish.group.clone(),
            partition: wish.partition,
            ack_mode: wish.ack_mode,
            prefetch: wish.prefetch,
            positions: positions.collect(),
        })
    }

    /// The same wish, from where nothing is lost.
    fn again(&self) -> Option<SubscribeParams> {
        let wish = self.wish.as_ref()?;
        if self.rewound {
            // Of another history no number says where to go on: what was handled is recognised by its id.
            return Some(SubscribeParams { from: From::Earliest, ..wish.clone() });
        }
        let next = |book: &Book| book.position().map_or(0, |seq| seq + 1);
        let first = self.books.values().filter(|book| book.partition.is_some()).map(next).min();
        let from = first.map_or(wish.from, |seq| From::Seq(U53::saturating(seq)));
        Some(SubscribeParams { from, ..wish.clone() })
    }
}

impl Subs {
    pub(super) fn new(inbox: InboxChoice) -> Subs {
        let mut subs = Subs {
            last: SubHandle::MEMBER.0,
            table: BTreeMap::new(),
            ids: BTreeMap::new(),
            early: Vec::new(),
            handled: BTreeMap::new(),
            strangers: BTreeSet::new(),
        };
        let own = matches!(inbox, InboxChoice::Session | InboxChoice::Both);
        let member = matches!(inbox, InboxChoice::Member | InboxChoice::Both);
        let implicit = [(own, SubHandle::INBOX, "inbox"), (member, SubHandle::MEMBER, "member")];
        for (_, handle, name) in implicit.into_iter().filter(|(wanted, ..)| *wanted) {
            if let Ok(id) = name.parse::<SubId>() {
                let sub = Sub { id: Some(id.clone()), stage: Stage::Open, told: true, ..Sub::new(None) };
                subs.table.insert(handle, sub);
                subs.ids.insert(id, handle);
            }
        }
        subs
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = (SubHandle, &Sub)> {
        self.table.iter().map(|(handle, sub)| (*handle, sub))
    }

    /// Deliveries that wait for the answer that says whose they are.
    pub(super) fn early(&self) -> usize {
        self.early.len()
    }

    pub(super) fn contains(&self, handle: SubHandle) -> bool {
        self.table.contains_key(&handle)
    }

    /// What `handle` remembers of `log`, if it is still there, and of messages by id.
    pub(super) fn memory(&mut self, handle: SubHandle, log: &str) -> Option<(&mut Book, &mut Ids)> {
        let book = self.table.get_mut(&handle)?.books.get_mut(log)?;
        Some((book, self.handled.entry(scope(handle)).or_default()))
    }

    /// A subscription, and the messages that it has handled.
    pub(super) fn reader(&mut self, handle: SubHandle) -> Option<(&mut Sub, &mut Ids)> {
        let sub = self.table.get_mut(&handle)?;
        Some((sub, self.handled.entry(scope(handle)).or_default()))
    }

    /// Messages that the fullest remembers by id.
    pub(super) fn handled(&self) -> usize {
        self.handled.values().map(Ids::len).max().unwrap_or(0)
    }

    /// How a subscription is asked for again whose log was rewound after it was asked for.
    pub(super) fn beginning_again(&self, handle: SubHandle) -> Option<SubscribeParams> {
        self.table.get(&handle).filter(|sub| sub.told && sub.rewound)?.again()
    }

    /// The highest entries of each log with their ids: first the highest of each, the newest message before the others, then
    /// what stands in for those that are gone.
    pub(super) fn positions(&self) -> Vec<LogPosition> {
        let mut witnesses: BTreeMap<&String, BTreeMap<u64, MessageId>> = BTreeMap::new();
        for (log, book) in self.table.values().flat_map(|sub| &sub.books) {
            witnesses.entry(log).or_default().extend(book.witnesses());
        }
        let most = if mutant::on(Mutant::OneWitness) { 1 } else { WITNESSES };
        let ranked = witnesses.into_iter().flat_map(|(log, entries)| {
            let highest = entries.into_iter().rev().take(most).enumerate();
            highest.map(|(rank, (seq, id))| {
                (rank, Reverse(id), LogPosition { log: log.clone(), seq: U53::saturating(seq), id })
            })
        });
        let mut ranked: Vec<_> = ranked.collect();
        ranked.sort_by_key(|(rank, id, _)| (*rank, *id));
        ranked.into_iter().map(|(.., position)| position).collect()
    }

    /// Rewinds every log that `is_rewound`; gives their names. `wall` is the broker's clock.
    pub(super) fn rewind(
        &mut self,
        wall: Option<u64>,
        is_rewound: impl Fn(&str, &Book) -> bool,
    ) -> BTreeSet<String> {
        let mut rewound = BTreeSet::new();
        for sub in self.table.values_mut() {
            let since = sub.since(wall);
            for (log, book) in sub.books.iter_mut().filter(|(log, book)| is_rewound(log, book)) {
                book.rewind(since);
                sub.rewound |= book.partition.is_some();
                rewound.insert(log.clone());
            }
        }
        rewound
    }

    /// Rewinds `log` wherever it is read. Gives the readers of every entry that are open: they must begin again, because what
    /// they passed over may be new.
    fn rewind_log(&mut self, wall: Option<u64>, log: &str) -> Vec<SubHandle> {
        let mut begin_again = Vec::new();
        for (handle, sub) in &mut self.table {
            let (since, private) =
                (sub.since(wall), sub.wish.as_ref().is_some_and(|wish| wish.group.is_none()));
            let Some(book) = sub.books.get_mut(log) else { continue };
            book.rewind(since);
            sub.rewound |= private;
            if private && sub.stage == Stage::Open {
                begin_again.push(*handle);
            }
        }
        begin_again
    }

    /// Whether `handle` is being made, or made again.
    pub(super) fn is_opening(&self, handle: SubHandle) -> bool {
        self.table.get(&handle).is_some_and(|sub| sub.stage == Stage::Opening)
    }

    /// Whether `handle` is open, and not being made again.
    pub(super) fn is_open(&self, handle: SubHandle) -> bool {
        self.table.get(&handle).is_some_and(|sub| sub.stage == Stage::Open)
    }

    /// The broker's name for `handle`.
    pub(super) fn id(&self, handle: SubHandle) -> Option<&SubId> {
        self.table.get(&handle)?.id.as_ref()
    }

    /// Topics that the broker should know of, with our handles.
    pub(super) fn views(&self) -> Vec<(SubHandle, ClientSubscription)> {
        self.table.iter().filter_map(|(handle, sub)| Some((*handle, sub.view()?))).collect()
    }

    /// Handles of topics at `stage`.
    pub(super) fn at(&self, stage: Stage) -> Vec<SubHandle> {
        let at =
            |(handle, sub): (&SubHandle, &Sub)| (sub.wish.is_some() && sub.stage == stage).then_some(*handle);
        self.table.iter().filter_map(at).collect()
    }

    /// The broker goes on with `handle` under this name, from where its own history is: of a lone reader `starts` says where in
    /// each partition.
    pub(super) fn keep(&mut self, handle: SubHandle, id: SubId, starts: &BTreeMap<String, U53>) {
        self.rename(handle, id);
        let Some(sub) = self.table.get_mut(&handle) else { return };
        sub.rewound = false;
        for book in sub.books.values_mut() {
            let start = book.partition.and_then(|partition| starts.get(&partition.to_string()));
            if let Some(start) = start {
                book.go_on(start.get());
            }
        }
    }

    /// The broker calls `handle` by another name from here on.
    pub(super) fn rename(&mut self, handle: SubHandle, id: SubId) {
        let Some(sub) = self.table.get_mut(&handle) else { return };
        let old = sub.id.replace(id.clone());
        self.unname(old, handle);
        self.ids.insert(id, handle);
    }

    fn unname(&mut self, id: Option<SubId>, handle: SubHandle) {
        if let Some(id) = id
            && self.ids.get(&id) == Some(&handle)
        {
            self.ids.remove(&id);
        }
    }

    /// The socket is gone, and with it what was only known there.
    pub(super) fn broken(&mut self) {
        self.early.clear();
        self.strangers.clear();
    }

    /// Forgets what is in hand and what was acked, for a mutant.
    pub(super) fn forget(&mut self) {
        self.table.values_mut().flat_map(|sub| sub.books.values_mut()).for_each(Book::forget);
        self.handled.values_mut().for_each(Ids::forget);
    }

    /// It is over.
    #[must_use]
    pub(super) fn end(&mut self, handle: SubHandle, end: SubEnd) -> Option<LinkEffect> {
        let sub = self.table.remove(&handle)?;
        if sub.wish.is_some() {
            self.handled.remove(&handle);
        }
        self.unname(sub.id, handle);
        let end = if sub.stage == Stage::Leaving { SubEnd::Unsubscribed } else { end };
        Some(LinkEffect::Sub(handle, SubItem::Ended(end)))
    }

    /// All of them are over.
    #[must_use]
    pub(super) fn end_all(&mut self, end: &SubEnd) -> Vec<LinkEffect> {
        let handles: Vec<_> = self.table.keys().copied().collect();
        handles.into_iter().filter_map(|handle| self.end(handle, end.clone())).collect()
    }
}

impl Link {
    pub(super) fn end_sub(&mut self, handle: SubHandle, end: SubEnd) {
        self.effects.extend(self.subs.end(handle, end));
    }

    /// Reads a topic. The first thing that its reader gets is [`SubItem::Opened`], or why it cannot be; a broker
    /// that cannot be reached for `timeout_ms` is such a reason.
    pub fn subscribe(
        &mut self,
        now: Now,
        wish: SubscribeParams,
        timeout_ms: u64,
    ) -> Result<SubHandle, WireError> {
        if self.ended {
            return Err(WireError::new(ErrorCode::LeaseExpired, "the session is over"));
        }
        if self.subs.table.len() >= SUBSCRIPTIONS {
            return Err(WireError::new(ErrorCode::Busy, "this session has too many subscriptions"));
        }
        if self.subs.table.values().any(|sub| sub.is(&wish)) {
            let message = "this session reads that topic, group and partition already; share its stream";
            return Err(WireError::new(ErrorCode::Conflict, message));
        }
        let handle = SubHandle(self.subs.last + 1);
        let purpose = Purpose::Subscribe(handle, Box::new(wish.clone()));
        let number = self.ask(purpose, Method::Subscribe, &wish)?;
        self.subs.last = handle.0;
        self.subs.table.insert(handle, Sub::new(Some(wish)));
        self.requests.expires(number, now.at.plus(timeout_ms));
        self.wake = self.next_deadline();
        Ok(handle)
    }

    /// Reads a topic no more. [`SubEnd::Unsubscribed`] says when the broker knows. Inboxes cannot be left.
    pub fn unsubscribe(&mut self, handle: SubHandle) {
        let Some(sub) = self.subs.table.get_mut(&handle).filter(|sub| sub.wish.is_some()) else { return };
        match sub.stage {
            Stage::Leaving => {}
            // When its answer comes there is nobody any more, and the broker is told then.
            Stage::Opening => self.end_sub(handle, SubEnd::Unsubscribed),
            Stage::Open => {
                sub.stage = Stage::Leaving;
                self.leave(handle);
            }
        }
        self.wake = self.next_deadline();
    }

    /// Pulls up to `limit` entries, whatever their priority: [`LinkEffect::Fetched`].
    pub fn fetch(
        &mut self,
        now: Now,
        handle: SubHandle,
        limit: u64,
        timeout_ms: u64,
    ) -> Result<RequestNumber, WireError> {
        self.room()?;
        let gone = || WireError::new(ErrorCode::NotFound, "that subscription is over");
        let limit = U53::saturating(limit);
        let sub = self.subs.table.get(&handle).filter(|sub| sub.stage != Stage::Leaving).ok_or_else(gone)?;
        // While it is being made again it has no name: the request waits for one.
        let number = match sub.id.clone() {
            Some(sub_id) => {
                let params = FetchParams { sub_id, limit };
                self.ask(Purpose::Fetch(handle, limit), Method::Fetch, &params)?
            }
            None => self.requests.park(Purpose::Fetch(handle, limit)),
        };
        self.requests.expires(number, now.at.plus(timeout_ms));
        self.wake = self.next_deadline();
        Ok(number)
    }

    pub(super) fn fetched(
        &mut self,
        number: RequestNumber,
        handle: SubHandle,
        outcome: Result<FetchResult, WireError>,
    ) {
        let outcome = outcome.map(|result| {
            let mut taken = Vec::new();
            for delivery in result.messages {
                if !self.subs.is_open(handle) {
                    // One of them showed that the reader must begin again.
                    break;
                }
                let handed = self.take(handle, Box::new(delivery), true);
                taken.extend(handed.and_then(|handed| self.run_came(handle, handed)));
            }
            taken
        });
        self.effects.push_back(LinkEffect::Fetched(number, outcome));
    }

    /// Tells the broker that nobody reads it any more.
    pub(super) fn leave(&mut self, handle: SubHandle) {
        if let Some(sub_id) = self.subs.id(handle).cloned()
            && self.current.is_some()
        {
            let params = UnsubscribeParams { sub_id };
            let _ = self.ask(Purpose::Unsubscribe(Some(handle)), Method::Unsubscribe, &params);
        }
    }

    /// Subscribes again by itself, from where nothing is lost; for as long as it takes.
    pub(super) fn recreate(&mut self, handle: SubHandle) {
        let Some(sub) = self.subs.table.get_mut(&handle) else { return };
        let Some(wish) = sub.again() else { return };
        sub.stage = Stage::Opening;
        let old = sub.id.take();
        self.subs.unname(old, handle);
        let purpose = Purpose::Subscribe(handle, Box::new(wish.clone()));
        if let Err(error) = self.ask(purpose, Method::Subscribe, &wish) {
            self.end_sub(handle, SubEnd::refused(&error));
        }
    }

    pub(super) fn subscribed(
        &mut self,
        handle: SubHandle,
        wish: &SubscribeParams,
        outcome: Result<SubscribeResult, WireError>,
    ) {
        match outcome {
            Err(error) if self.is_past_the_end(handle, wish, &error) => self.begin_again(handle),
            Err(error) => self.end_sub(handle, SubEnd::refused(&error)),
            Ok(result) if self.subs.beginning_again(handle).is_some_and(|again| again != *wish) => {
                // Its log has another history since it was asked for.
                self.reopen(handle, result.sub_id);
            }
            Ok(result) if self.subs.contains(handle) => self.opened_sub(handle, result),
            // Nobody wants it any more; unless somebody asked for the very same since, which is the same one.
            Ok(result) => {
                if !self.subs.table.values().any(|sub| sub.is(wish)) {
                    self.stranger(result.sub_id);
                }
            }
        }
        self.settle_early();
    }

    /// Whether a subscription that is made again would begin beyond the end of its log: that ended further on before.
    fn is_past_the_end(&self, handle: SubHandle, wish: &SubscribeParams, error: &WireError) -> bool {
        let made_again = self.subs.table.get(&handle).is_some_and(|sub| sub.told);
        let against = error.details.as_ref().and_then(|details| details.get("against"));
        let past = against.and_then(|against| against.as_str()) == Some("next");
        made_again && past && matches!(wish.from, From::Seq(_))
    }

    /// A subscription whose log is shorter than it was is made again from the earliest entry.
    pub(super) fn begin_again(&mut self, handle: SubHandle) {
        if self.subs.table.get(&handle).is_some_and(|sub| sub.rewound) {
            // Another subscription to the same topic has found it out.
            return self.recreate(handle);
        }
        let own = self.subs.table.get(&handle).map(|sub| sub.books.keys().cloned().collect::<BTreeSet<_>>());
        let own = own.unwrap_or_default();
        let logs = self.subs.rewind(self.broker_wall(), |log, _| own.contains(log));
        self.effects.push_back(LinkEffect::Deliver(SessionEvent::HistoryRewound {
            logs: logs.into_iter().collect(),
        }));
        self.recreate(handle);
    }

    /// A message turned out to be new although its place was settled: the numbers of `log` name other messages than they did.
    pub(super) fn history_changed(&mut self, log: &str) {
        let begin_again = self.subs.rewind_log(self.broker_wall(), log);
        let logs = vec![log.to_owned()];
        self.effects.push_back(LinkEffect::Deliver(SessionEvent::HistoryRewound { logs }));
        if !begin_again.is_empty() {
            // What was settled by the old names goes before they mean nothing.
            self.settle_unless_paused();
        }
        for handle in begin_again {
            if let Some(id) = self.subs.id(handle).cloned() {
                self.reopen(handle, id);
            }
        }
    }

    /// Makes a subscription again when the broker has ended what it has of it: until then it would answer with that one.
    fn reopen(&mut self, handle: SubHandle, sub_id: SubId) {
        let Some(sub) = self.subs.table.get_mut(&handle) else { return };
        sub.stage = Stage::Opening;
        let old = sub.id.take();
        self.subs.unname(old, handle);
        let params = UnsubscribeParams { sub_id };
        if let Err(error) = self.ask(Purpose::Reopen(handle), Method::Unsubscribe, &params) {
            self.end_sub(handle, SubEnd::refused(&error));
        }
    }

    fn opened_sub(&mut self, handle: SubHandle, result: SubscribeResult) {
        self.subs.rename(handle, result.sub_id.clone());
        let opened_at = self.broker_wall();
        let Some(sub) = self.subs.table.get_mut(&handle) else { return };
        sub.stage = Stage::Open;
        sub.since = sub.since.or(opened_at);
        sub.rewound = false;
        let topic = sub.wish.as_ref().map(|wish| wish.topic.clone());
        let mut gaps = Vec::new();
        for (partition, start) in &result.start_seq {
            if let (Some(topic), Ok(partition)) = (&topic, partition.parse()) {
                let log = LogName::Topic(topic.clone(), partition).to_string();
                let missed = sub.book(&log).begin(start.get());
                gaps.extend(missed.map(|(from, to)| SubItem::Gap { partition: Some(partition), from, to }));
            }
        }
        if !std::mem::replace(&mut sub.told, true) {
            self.effects.push_back(LinkEffect::Sub(handle, SubItem::Opened(result)));
        }
        self.effects.extend(gaps.into_iter().map(|gap| LinkEffect::Sub(handle, gap)));
        self.send_waiting();
    }

    /// Looks again at deliveries that came before it was known whose they are.
    pub(super) fn settle_early(&mut self) {
        for delivery in std::mem::take(&mut self.subs.early) {
            self.delivered(Box::new(delivery));
        }
    }

    /// A delivery came.
    pub(super) fn delivered(&mut self, delivery: Box<Delivery>) {
        match self.subs.ids.get(&delivery.sub_id).copied() {
            Some(handle) => {
                let leaving = self.subs.table.get(&handle).is_none_or(|sub| sub.stage == Stage::Leaving);
                if !leaving && let Some(handed) = self.take(handle, delivery, false) {
                    self.hand_on(handle, handed);
                }
            }
            None if self.hands.holding || !self.subs.at(Stage::Opening).is_empty() => {
                if self.subs.early.len() < EARLY {
                    self.subs.early.push(*delivery);
                }
            }
            None => self.stranger(delivery.sub_id),
        }
    }

    /// The broker believes in a subscription that nobody has.
    fn stranger(&mut self, sub_id: SubId) {
        let implicit = matches!(sub_id.as_str(), "inbox" | "member");
        if !implicit && self.subs.strangers.insert(sub_id.clone()) {
            let params = UnsubscribeParams { sub_id };
            let _ = self.ask(Purpose::Unsubscribe(None), Method::Unsubscribe, &params);
        }
    }

    /// `event subscription`.
    pub(super) fn subscription_event(&mut self, event: SubscriptionEvent) {
        let Some(handle) = self.subs.ids.get(&event.sub_id).copied() else { return };
        match event.kind {
            SubscriptionEventKind::Closed => self.end_sub(handle, SubEnd::closed(event.reason)),
            SubscriptionEventKind::Gap => {
                let from = event.from.map_or(0, U53::get);
                let to = event.to.map_or(from, U53::get);
                let (mut missed, partition) = (Some((from, to)), event.partition);
                if let Some(sub) = self.subs.table.get_mut(&handle)
                    && let (Some(wish), Some(partition)) = (&sub.wish, partition)
                {
                    let log = LogName::Topic(wish.topic.clone(), partition).to_string();
                    missed = sub.book(&log).gap(from, to);
                }
                if let Some((from, to)) = missed {
                    self.effects.push_back(LinkEffect::Sub(handle, SubItem::Gap { partition, from, to }));
                }
            }
        }
    }
}
