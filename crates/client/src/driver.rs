//! The task of one session: owns its sockets and timer, feeds the link, carries out what it asks.

use std::collections::{BTreeMap, VecDeque};
use std::task::{Context, Poll};

use tenure_core::Now;
use tenure_core::link::{Link, LinkEffect, LinkInput, RequestNumber, SessionEvent, SockId};
use tenure_proto::WireError;
use tokio::sync::{mpsc, oneshot};

use crate::clock::Clock;
use crate::options::Options;
use crate::session::Told;
use crate::sock::{Sock, SockEvent};

/// Events that may wait for the application; past it the socket is left unread.
const EVENTS: usize = 1_024;

/// What the application asks of the task.
pub(crate) enum Command {
    /// Make a request; answer here.
    Request(MakeRequest, oneshot::Sender<Result<Vec<u8>, WireError>>),
    /// Say goodbye.
    Bye,
    /// Cut the transport, as a broken network would.
    Sever,
}

/// Makes a request of the link, with params of a type only the maker knows.
pub(crate) type MakeRequest =
    Box<dyn FnOnce(&mut Link, Now, &mut Vec<LinkEffect>) -> Result<RequestNumber, WireError> + Send>;

pub(crate) struct Driver {
    clock: Clock,
    link: Link,
    address: String,
    host: String,
    codec: tenure_proto::Codec,
    /// At most two: the one that carries the session, and the one that may next.
    socks: Vec<Sock>,
    answers: BTreeMap<RequestNumber, oneshot::Sender<Result<Vec<u8>, WireError>>>,
    /// Events that the application has not taken yet.
    undelivered: VecDeque<SessionEvent>,
    events: mpsc::Sender<Told>,
    effects: Vec<LinkEffect>,
}

impl Driver {
    pub(crate) fn new(options: Options, seed: u64, events: mpsc::Sender<Told>) -> Driver {
        let clock = Clock::start();
        let (host, codec) = (options.link.host.clone(), options.link.codec);
        Driver {
            link: Link::new(options.link, seed, clock.now()),
            clock,
            address: options.address,
            host,
            codec,
            socks: Vec::new(),
            answers: BTreeMap::new(),
            undelivered: VecDeque::new(),
            events,
            effects: Vec::new(),
        }
    }

    /// Runs until the session is over. Nobody left to talk to counts as goodbye.
    pub(crate) async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        self.link.start(self.clock.now(), &mut self.effects);
        loop {
            if self.carry_out().await {
                return;
            }
            let deadline = self.link.next_deadline().unwrap_or_default();
            let timer = tokio::time::sleep_until(self.clock.instant(deadline));
            let reading = self.undelivered.len() < EVENTS;
            let events = self.events.clone();
            // Every branch is cancel-safe: sockets keep their progress, the channels take or give nothing
            // before they return.
            tokio::select! {
                (sock, event) = std::future::poll_fn(|cx| poll_socks(&mut self.socks, cx, reading)) => {
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
                    self.link.handle(self.clock.now(), input, &mut self.effects);
                }
                command = commands.recv() => self.command(command),
                permit = events.reserve(), if !self.undelivered.is_empty() => {
                    if let (Ok(permit), Some(event)) = (permit, self.undelivered.pop_front()) {
                        permit.send(Told::Event(event));
                    }
                }
                () = timer => {
                    if !reading {
                        self.excuse_silence();
                    }
                    self.link.tick(self.clock.now(), &mut self.effects);
                }
            }
        }
    }

    /// While the application is too slow to be told more, the silence on the socket is our own.
    fn excuse_silence(&mut self) {
        for sock in self.socks.iter().map(|sock| sock.id).collect::<Vec<_>>() {
            self.link.handle(self.clock.now(), LinkInput::Answered(sock), &mut self.effects);
        }
    }

    fn command(&mut self, command: Option<Command>) {
        let now = self.clock.now();
        match command {
            None | Some(Command::Bye) => self.link.bye(now, &mut self.effects),
            Some(Command::Sever) => {
                for sock in std::mem::take(&mut self.socks) {
                    let id = sock.id;
                    drop(sock);
                    self.link.handle(now, LinkInput::Gone(id, None), &mut self.effects);
                }
            }
            Some(Command::Request(make, answer)) => match make(&mut self.link, now, &mut self.effects) {
                Ok(number) => {
                    self.answers.insert(number, answer);
                }
                Err(error) => {
                    // Nobody waiting any more is nobody to tell.
                    let _ = answer.send(Err(error));
                }
            },
        }
    }

    /// Does what the link asks; says whether the session is over.
    async fn carry_out(&mut self) -> bool {
        for effect in std::mem::take(&mut self.effects) {
            match effect {
                LinkEffect::Dial(sock) => {
                    self.socks.push(Sock::dial(sock, &self.address, &self.host, self.codec))
                }
                LinkEffect::Send(sock, frame) => self.with(sock, |sock| sock.send(frame)),
                LinkEffect::Ping(sock) => self.with(sock, Sock::ping),
                LinkEffect::Drop(sock) => self.socks.retain(|s| s.id != sock),
                LinkEffect::Deliver(event) => self.undelivered.push_back(event),
                LinkEffect::Answer(number, outcome) => {
                    if let Some(answer) = self.answers.remove(&number) {
                        let _ = answer.send(outcome);
                    }
                }
                LinkEffect::Ended(end) => {
                    for event in std::mem::take(&mut self.undelivered) {
                        if self.events.send(Told::Event(event)).await.is_err() {
                            break;
                        }
                    }
                    let _ = self.events.send(Told::End(end)).await;
                    return true;
                }
            }
        }
        false
    }

    fn with(&mut self, id: SockId, act: impl FnOnce(&mut Sock)) {
        if let Some(sock) = self.socks.iter_mut().find(|sock| sock.id == id) {
            act(sock);
        }
    }
}

fn poll_socks(socks: &mut [Sock], cx: &mut Context<'_>, reading: bool) -> Poll<(SockId, SockEvent)> {
    for sock in socks {
        if let Poll::Ready(event) = sock.poll(cx, reading) {
            return Poll::Ready((sock.id, event));
        }
    }
    Poll::Pending
}
