//! One socket as both ends see it: what it was sent, frame by frame, and how it ended.

use std::collections::VecDeque;
use tenure_proto::close::Closing;
use tenure_proto::ids::SessionKey;

use tenure_proto::error::WireError;
use tenure_proto::event::{EventBody, PresenceEvent};
use tenure_proto::number::U53;
use tenure_proto::service::ServiceEvent;

use crate::effect::{Batch, HelloAnswer};
use crate::*;

/// What a socket was sent.
#[derive(Clone, Debug)]
pub(crate) enum Frame {
    Answer(RequestId, Result<Answer, WireError>),
    Event(u64, EventBody),
    Ping,
}

/// One socket, as both ends see it.
#[derive(Debug)]
pub(crate) struct Socket {
    /// What its client has not looked at yet.
    pub(crate) frames: VecDeque<Frame>,
    /// How the hello on it was answered.
    pub(crate) answer: Option<Result<HelloAnswer, WireError>>,
    pub(crate) closing: Option<Closing>,
    /// The number of the last event it was sent.
    pub(crate) last_seq: u64,
    /// Whether the client answers pings.
    pub(crate) lively: bool,
    /// Whether the socket takes what it is given.
    pub(crate) flushes: bool,
    /// Either end has gone without a word.
    pub(crate) gone: bool,
    /// Its first request.
    pub(crate) hello: RequestId,
    /// The session it was let in for, until it ends.
    pub(crate) carries: Option<SessionKey>,
    /// Whether a batch is on its way.
    pub(crate) unflushed: bool,
}

impl Socket {
    pub(crate) fn new(hello: RequestId) -> Socket {
        Socket {
            frames: VecDeque::new(),
            answer: None,
            closing: None,
            last_seq: 0,
            lively: true,
            flushes: true,
            gone: false,
            hello,
            carries: None,
            unflushed: false,
        }
    }

    /// Takes the answer to `request` out.
    pub(crate) fn answer_to(&mut self, request: &RequestId) -> Option<Result<Answer, WireError>> {
        let is_it = |frame: &Frame| matches!(frame, Frame::Answer(id, _) if id == request);
        let at = self.frames.iter().position(is_it)?;
        match self.frames.remove(at) {
            Some(Frame::Answer(_, outcome)) => Some(outcome),
            _ => None,
        }
    }

    pub(crate) fn answered(&mut self, outcome: &Result<Answer, WireError>) {
        assert!(self.answer.is_none(), "a hello was answered twice");
        self.answer = Some(match outcome {
            Ok(Answer::Hello(answer)) => {
                self.carries = Some(answer.session);
                Ok(HelloAnswer::clone(answer))
            }
            Ok(other) => panic!("a hello was answered with {other:?}"),
            Err(error) => Err(error.clone()),
        });
    }

    /// A batch as frames: the direct events, then the steps of presence, each with the version before it as base.
    pub(crate) fn receive(&mut self, batch: Batch) {
        for (seq, event) in batch.direct {
            self.last_seq = seq;
            self.frames.push_back(Frame::Event(seq, EventBody::clone(&event)));
        }
        if let Some((first, delta)) = batch.presence {
            self.receive_presence(first, &delta);
        }
        let Some((first, delta)) = batch.services else { return };
        let mut base = delta.base;
        for (seq, step) in (first..).zip(&delta.steps) {
            let event = ServiceEvent {
                kind: step.kind,
                service: (*step.service).clone(),
                base: U53::saturating(base),
                version: U53::saturating(step.version),
            };
            (base, self.last_seq) = (step.version, seq);
            self.frames.push_back(Frame::Event(seq, EventBody::Service(event)));
        }
        assert_eq!(base, delta.version, "the next base is the version last sent");
    }

    fn receive_presence(&mut self, first: u64, delta: &crate::sessions::presence::Delta) {
        let mut base = delta.base;
        for (seq, step) in (first..).zip(&delta.steps) {
            let event = PresenceEvent {
                kind: step.kind,
                peer: step.peer.clone(),
                base: U53::saturating(base),
                version: U53::saturating(step.version),
            };
            (base, self.last_seq) = (step.version, seq);
            self.frames.push_back(Frame::Event(seq, EventBody::Presence(event)));
        }
        assert_eq!(base, delta.version, "the next base is the version last sent");
    }
}

/// An event in two words.
pub(crate) fn told(body: &EventBody) -> String {
    match body {
        EventBody::Presence(event) => {
            format!("{} s{}", event.kind.as_str(), event.peer.get().session.0[0])
        }
        EventBody::Service(event) => {
            format!("{} {}", event.kind.as_str(), event.service.name)
        }
        other => other.name().to_owned(),
    }
}
