//! The task of one session: owns its sockets and timer, feeds the link, carries out what it asks.

use std::collections::{BTreeMap, VecDeque};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tenure_kit::Now;
use tenure_link::{
    CallHandle, CallItem, End, Link, LinkEffect, LinkInput, OfferHandle, OfferItem, Patience, Piece,
    RequestNumber, ServedHandle, ServedItem, SessionEvent, SettleNumber, Settlement, SockId, SubHandle,
    SubItem,
};
use tenure_proto::WireError;
use tenure_proto::event::Receipt;
use tenure_proto::message::SendParams;
use tenure_proto::run::RunStartParams;
use tenure_proto::service::ServiceOffer;
use tenure_proto::subscribe::SubscribeParams;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use crate::call::Caller;
use crate::clock::Clock;
use crate::endpoint::Endpoint;
use crate::feed::{Feed, Mouth, feed};
use crate::offer::Offerer;
use crate::options::Options;
use crate::received::{HandCommand, Hands, Received};
use crate::serve::{Incoming, Served};
use crate::session::Told;
use crate::sock::{Sock, SockEvent};

/// Events that may wait for the application; past it the socket is left unread.
const EVENTS: usize = 1_024;
/// Commands, or frames, that are taken in one turn: what they settle leaves together.
const TURN: usize = 256;

type Answer<T> = oneshot::Sender<Result<T, WireError>>;

/// What the application asks of the task.
pub(crate) enum Command {
    /// Make a request; answer here.
    Request(MakeRequest, Answer<Vec<u8>>),
    /// Send a message.
    Send(Box<SendParams>, Patience, Answering),
    /// Read a topic, for at most so many milliseconds in vain.
    Subscribe(Box<SubscribeParams>, u64, Answer<Mouth>),
    /// Pull so many entries, in at most so many milliseconds.
    Fetch(SubHandle, u64, u64, Answer<Vec<Received>>),
    /// Call somebody, for at most so many milliseconds in vain.
    Call(Box<RunStartParams>, u64, Answer<(CallHandle, mpsc::UnboundedReceiver<CallItem>)>),
    /// Offer a service.
    Offer(Box<ServiceOffer>, Answer<(OfferHandle, mpsc::UnboundedReceiver<OfferItem>)>),
    /// Send a piece of an answer; its room is free again when the broker has it.
    Chunk(ServedHandle, Piece, OwnedSemaphorePermit, Answer<()>),
    /// Say goodbye.
    Bye,
    /// Go without a word.
    Part,
    /// Cut the transport, as a network would that is away for so long.
    Sever(Duration),
}

/// Who waits for a send.
pub(crate) struct Answering {
    pub(crate) answer: Answer<Vec<u8>>,
    pub(crate) receipt: Option<Answer<Receipt>>,
    /// The place in a publisher's window, free again with the answer.
    pub(crate) permit: Option<OwnedSemaphorePermit>,
}

/// Makes a request of the link, with params of a type only the maker knows.
pub(crate) type MakeRequest = Box<dyn FnOnce(&mut Link, Now) -> Result<RequestNumber, WireError> + Send>;

/// Who waits for what. Each is bounded by what the link lets wait.
#[derive(Default)]
struct Waiting {
    answers: BTreeMap<RequestNumber, (Answer<Vec<u8>>, Option<OwnedSemaphorePermit>)>,
    receipts: BTreeMap<RequestNumber, Answer<Receipt>>,
    fetches: BTreeMap<RequestNumber, Answer<Vec<Received>>>,
    settles: BTreeMap<SettleNumber, oneshot::Sender<Settlement>>,
    feeds: BTreeMap<SubHandle, Feed>,
    calls: BTreeMap<CallHandle, Caller>,
    served: BTreeMap<ServedHandle, Served>,
    offers: BTreeMap<OfferHandle, Offerer>,
    chunks: BTreeMap<(ServedHandle, u64), OwnedSemaphorePermit>,
}

pub(crate) struct Driver {
    clock: Clock,
    link: Link,
    endpoint: Endpoint,
    codec: tenure_proto::Codec,
    /// At most two: the one that carries the session, and the one that may next.
    socks: Vec<Sock>,
    /// Until when a network that was cut on purpose is away.
    away_until: Option<Instant>,
    waiting: Waiting,
    /// Given to every message in hand.
    hands: Hands,
    /// Who answers runs.
    runs: Option<mpsc::UnboundedSender<Incoming>>,
    /// Events that the application has not taken yet.
    undelivered: VecDeque<SessionEvent>,
    events: mpsc::Sender<Told>,
    /// The application lets the session go without a word: it ends with the effects that are queued now.
    parted: bool,
    /// How many were answered since one of them last asked for something.
    answered: usize,
}

impl Driver {
    pub(crate) fn new(options: Options, seed: u64, events: mpsc::Sender<Told>, hands: Hands) -> Driver {
        let clock = Clock::start();
        let codec = options.link.codec;
        Driver {
            link: Link::new(options.link, seed, clock.now()),
            clock,
            endpoint: options.endpoint,
            codec,
            socks: Vec::new(),
            away_until: None,
            waiting: Waiting::default(),
            hands,
            runs: None,
            undelivered: VecDeque::new(),
            events,
            parted: false,
            answered: 0,
        }
    }

    /// A reader for the inbox that `handle` is.
    pub(crate) fn inbox(&mut self, handle: SubHandle) -> Mouth {
        let (feed, mouth) = feed(handle, self.hands.clone());
        self.waiting.feeds.insert(handle, feed);
        mouth
    }

    /// The runs that are to be answered; none is a message of an inbox from here on.
    pub(crate) fn runs(&mut self) -> mpsc::UnboundedReceiver<Incoming> {
        self.link.serve_runs();
        let (runs, incoming) = mpsc::unbounded_channel();
        self.runs = Some(runs);
        incoming
    }

    /// Runs until the session is over. Nobody left to talk to counts as goodbye.
    pub(crate) async fn run(
        mut self,
        mut commands: mpsc::Receiver<Command>,
        mut settling: mpsc::UnboundedReceiver<HandCommand>,
    ) {
        self.link.start(self.clock.now());
        let end = loop {
            if let Some(end) = self.carry_out() {
                break end;
            }
            let deadline = self.link.next_deadline().unwrap_or_default();
            let timer = tokio::time::sleep_until(self.clock.instant(deadline));
            let reading = self.undelivered.len() < EVENTS;
            let events = self.events.clone();
            // Every branch is cancel-safe: sockets keep their progress, the channels take or give nothing
            // before they return.
            tokio::select! {
                events = std::future::poll_fn(|cx| poll_socks(&mut self.socks, cx, reading)) => {
                    for (sock, event) in events {
                        self.heard(sock, event);
                    }
                }
                command = commands.recv() => {
                    self.gather().await;
                    // What was said of things in hand before a goodbye leaves before it.
                    for command in std::iter::from_fn(|| settling.try_recv().ok()).take(TURN) {
                        self.hand(command);
                    }
                    self.command(command);
                    for command in std::iter::from_fn(|| commands.try_recv().ok()).take(TURN) {
                        self.command(Some(command));
                    }
                }
                Some(command) = settling.recv() => {
                    self.hand(command);
                    for command in std::iter::from_fn(|| settling.try_recv().ok()).take(TURN) {
                        self.hand(command);
                    }
                }
                permit = events.reserve(), if !self.undelivered.is_empty() => {
                    if let (Ok(permit), Some(event)) = (permit, self.undelivered.pop_front()) {
                        permit.send(Told::Event(event));
                    }
                }
                () = timer => {
                    if !reading {
                        self.excuse_silence();
                    }
                    self.link.tick(self.clock.now());
                }
            }
            if !self.parted {
                self.link.flush(self.clock.now());
            }
        };
        if let Some(runs) = self.runs.take() {
            let _ = runs.send(Incoming::Ended(end.clone()));
        }
        // Whoever still waits is told by the end of its channel, before the last events may wait for a reader.
        drop((commands, settling, std::mem::take(&mut self.waiting)));
        for event in std::mem::take(&mut self.undelivered) {
            if self.events.send(Told::Event(event)).await.is_err() {
                break;
            }
        }
        let _ = self.events.send(Told::End(end)).await;
    }

    /// Lets those run who were woken by answers that came together, so that what they ask next leaves together too: without
    /// it the first of them wakes this task before the second has had its turn, and each is a write of its own. Whoever
    /// was answered alone is not held up.
    async fn gather(&mut self) {
        if std::mem::take(&mut self.answered) > 1 {
            tokio::task::yield_now().await;
        }
    }

    fn heard(&mut self, sock: SockId, event: SockEvent) {
        let input = match event {
            SockEvent::Opened => LinkInput::Opened(sock),
            SockEvent::Frame(bytes) => LinkInput::Frame(sock, bytes),
            SockEvent::Heard => LinkInput::Heard(sock),
            SockEvent::Answered => LinkInput::Answered(sock),
            SockEvent::Failed(reason, answered) => {
                self.socks.retain(|s| s.id != sock);
                LinkInput::Failed { sock, reason, answered }
            }
            SockEvent::Gone(code) => {
                self.socks.retain(|s| s.id != sock);
                LinkInput::Gone(sock, code)
            }
        };
        self.link.handle(self.clock.now(), input);
    }

    /// While the application is too slow to be told more, the silence on the socket is our own.
    fn excuse_silence(&mut self) {
        for sock in self.socks.iter().map(|sock| sock.id).collect::<Vec<_>>() {
            self.link.handle(self.clock.now(), LinkInput::Answered(sock));
        }
    }

    fn command(&mut self, command: Option<Command>) {
        let now = self.clock.now();
        // Nobody waiting any more is nobody to tell: failures to answer are ignored throughout.
        match command {
            None | Some(Command::Bye) => self.link.bye(now),
            Some(Command::Part) => self.parted = true,
            Some(Command::Sever(away)) => {
                self.away_until = Instant::now().checked_add(away);
                for sock in std::mem::take(&mut self.socks) {
                    let id = sock.id;
                    drop(sock);
                    self.link.handle(now, LinkInput::Gone(id, None));
                }
            }
            Some(Command::Request(make, answer)) => match make(&mut self.link, now) {
                Ok(number) => {
                    self.waiting.answers.insert(number, (answer, None));
                }
                Err(error) => {
                    let _ = answer.send(Err(error));
                }
            },
            Some(Command::Send(params, patience, answering)) => self.send(now, &params, patience, answering),
            Some(Command::Subscribe(params, timeout_ms, answer)) => {
                match self.link.subscribe(now, *params, timeout_ms) {
                    Ok(handle) => {
                        let (feed, mouth) = feed(handle, self.hands.clone());
                        self.waiting.feeds.insert(handle, feed);
                        if answer.send(Ok(mouth)).is_err() {
                            self.link.unsubscribe(handle);
                        }
                    }
                    Err(error) => {
                        let _ = answer.send(Err(error));
                    }
                }
            }
            Some(Command::Call(params, timeout_ms, answer)) => {
                let called = self.link.call(now, *params, timeout_ms);
                let called = called.map(|handle| {
                    let (caller, items) = mpsc::unbounded_channel();
                    self.waiting.calls.insert(handle, caller);
                    (handle, items)
                });
                if let Err(Ok((handle, _))) = answer.send(called) {
                    self.hand(HandCommand::HangUp(handle));
                }
            }
            Some(Command::Offer(offer, answer)) => {
                let offered = self.link.offer(now, *offer).map(|handle| {
                    let (offerer, items) = mpsc::unbounded_channel();
                    self.waiting.offers.insert(handle, offerer);
                    (handle, items)
                });
                if let Err(Ok((handle, _))) = answer.send(offered) {
                    self.hand(HandCommand::Withdraw(handle));
                }
            }
            Some(Command::Chunk(handle, piece, room, answer)) => {
                let sent = self.link.run_chunk(handle, piece);
                let sent = sent.map(|seq| _ = self.waiting.chunks.insert((handle, seq), room));
                let _ = answer.send(sent);
            }
            Some(Command::Fetch(handle, limit, timeout_ms, answer)) => {
                match self.link.fetch(now, handle, limit, timeout_ms) {
                    Ok(number) => {
                        self.waiting.fetches.insert(number, answer);
                    }
                    Err(error) => {
                        let _ = answer.send(Err(error));
                    }
                }
            }
        }
    }

    fn send(&mut self, now: Now, params: &SendParams, patience: Patience, answering: Answering) {
        let Answering { answer, receipt, permit } = answering;
        match self.link.send(now, params, patience) {
            Ok(number) => {
                self.waiting.answers.insert(number, (answer, permit));
                if let Some(receipt) = receipt {
                    self.waiting.receipts.insert(number, receipt);
                }
            }
            Err(error) => {
                let _ = answer.send(Err(error));
            }
        }
    }

    fn hand(&mut self, command: HandCommand) {
        match command {
            HandCommand::Settle(id, verb, answer) => {
                let number = self.link.settle(id, verb);
                self.waiting.settles.insert(number, answer);
            }
            HandCommand::Forgo(id) => self.link.forgo(id),
            HandCommand::Leave(handle) => self.link.unsubscribe(handle),
            HandCommand::ReadChunk(handle) => self.link.call_read(handle),
            HandCommand::Cancelled(handle) => self.link.call_cancelled(handle),
            HandCommand::HangUp(handle) => {
                self.waiting.calls.remove(&handle);
                self.link.hang_up(handle);
            }
            HandCommand::EndRun(handle, end) => self.link.run_end(handle, end),
            HandCommand::Withdraw(handle) => {
                self.waiting.offers.remove(&handle);
                self.link.withdraw_offer(self.clock.now(), handle);
            }
            HandCommand::Degrade(handle, degraded) => {
                let change = |offer: &mut ServiceOffer| offer.degraded = degraded;
                self.link.change_offer(self.clock.now(), handle, change);
            }
            HandCommand::Describe(handle, metadata) => {
                let change = |offer: &mut ServiceOffer| offer.metadata = metadata;
                self.link.change_offer(self.clock.now(), handle, change);
            }
        }
    }

    /// Does what the link asks; says how the session ended, when it has.
    fn carry_out(&mut self) -> Option<End> {
        while let Some(effect) = self.link.poll_effect() {
            match effect {
                LinkEffect::Dial(sock) if self.away_until.is_some_and(|until| Instant::now() < until) => {
                    let reason = "the network is away".to_owned();
                    let failed = LinkInput::Failed { sock, reason, answered: false };
                    self.link.handle(self.clock.now(), failed);
                }
                LinkEffect::Dial(sock) => {
                    self.socks.push(Sock::dial(sock, self.endpoint.clone(), self.codec))
                }
                LinkEffect::Send(sock, frame) => self.with(sock, |sock| sock.send(frame)),
                LinkEffect::Ping(sock) => self.with(sock, Sock::ping),
                LinkEffect::Drop(sock) => self.socks.retain(|s| s.id != sock),
                LinkEffect::Deliver(event) => self.undelivered.push_back(event),
                LinkEffect::Ended(end) => return Some(end),
                effect => self.tell(effect),
            }
        }
        // Its sockets end with the task, without a word.
        self.parted.then_some(End::Bye)
    }

    /// Tells whoever waits for it.
    fn tell(&mut self, effect: LinkEffect) {
        let waiting = &mut self.waiting;
        match effect {
            LinkEffect::Answer(number, outcome) => {
                if let Some((answer, permit)) = waiting.answers.remove(&number) {
                    drop(permit);
                    let _ = answer.send(outcome);
                    self.answered += 1;
                }
            }
            LinkEffect::Receipt(number, outcome) => {
                if let Some(receipt) = waiting.receipts.remove(&number) {
                    let _ = receipt.send(outcome);
                }
            }
            LinkEffect::Fetched(number, outcome) => {
                let hand = |handed| Received::new(handed, self.hands.clone());
                let outcome = outcome.map(|handed| handed.into_iter().map(hand).collect());
                // Unwanted by now, they are let go as they are dropped.
                if let Some(answer) = waiting.fetches.remove(&number) {
                    let _ = answer.send(outcome);
                }
            }
            LinkEffect::Settled(number, settlement) => {
                if let Some(answer) = waiting.settles.remove(&number) {
                    let _ = answer.send(settlement);
                }
            }
            LinkEffect::Sub(handle, item) => {
                let ended = matches!(item, SubItem::Ended(_));
                let heard = waiting.feeds.get_mut(&handle).is_some_and(|feed| feed.push(item));
                if ended {
                    waiting.feeds.remove(&handle);
                } else if !heard {
                    // Its reader went away before it could say so.
                    self.link.unsubscribe(handle);
                }
            }
            LinkEffect::Call(handle, item) => {
                let ended = matches!(item, CallItem::Ended(_));
                if let Some(caller) = waiting.calls.get(&handle) {
                    // One that is dropped hangs up by itself.
                    let _ = caller.send(item);
                }
                if ended {
                    waiting.calls.remove(&handle);
                }
            }
            LinkEffect::Served(handle, item) => self.served(handle, item),
            LinkEffect::Offer(handle, item) => {
                let ended = matches!(item, OfferItem::Ended(_));
                if let Some(offerer) = waiting.offers.get(&handle) {
                    // One that is dropped withdraws by itself.
                    let _ = offerer.send(item);
                }
                if ended {
                    waiting.offers.remove(&handle);
                }
            }
            // The rest is the task's own business.
            _ => {}
        }
    }

    /// Tells whoever answers a run.
    fn served(&mut self, handle: ServedHandle, item: ServedItem) {
        let waiting = &mut self.waiting;
        match item {
            ServedItem::Came(run, delivery) => {
                let served = Served::new();
                if let Some(runs) = &self.runs {
                    let _ = runs.send(Incoming::Run(handle, run, delivery, served.state()));
                }
                waiting.served.insert(handle, served);
            }
            ServedItem::Taken(seq) => _ = waiting.chunks.remove(&(handle, seq)),
            ServedItem::Cancelled => {
                if let Some(served) = waiting.served.get(&handle) {
                    served.cancel();
                }
            }
            ServedItem::Over(error) => {
                if let Some(served) = waiting.served.remove(&handle) {
                    served.end(error);
                }
                waiting.chunks.retain(|(of, _), _| *of != handle);
            }
            ServedItem::Ended => {
                waiting.served.remove(&handle);
                waiting.chunks.retain(|(of, _), _| *of != handle);
            }
        }
    }

    fn with(&mut self, id: SockId, act: impl FnOnce(&mut Sock)) {
        if let Some(sock) = self.socks.iter_mut().find(|sock| sock.id == id) {
            act(sock);
        }
    }
}

/// What sockets did since the last turn, or the next thing that one does.
fn poll_socks(socks: &mut [Sock], cx: &mut Context<'_>, reading: bool) -> Poll<Vec<(SockId, SockEvent)>> {
    let mut events = Vec::new();
    for sock in socks {
        while events.len() < TURN
            && let Poll::Ready(event) = sock.poll(cx, reading)
        {
            events.push((sock.id, event));
        }
    }
    if events.is_empty() { Poll::Pending } else { Poll::Ready(events) }
}
