//! One session's client as the outside knows it: its sockets, how long nothing was heard of it, and what a hello
//! of it must come to.

use tenure_proto::error::ErrorCode;
use tenure_proto::hello::{LeaseFate, Replay, ResumeOutcome};
use tenure_proto::ids::{Epoch, LeaseId};

use crate::conn::admit::TokenVerdict;
use crate::effect::HelloAnswer;
use crate::props::process::Process;
use crate::props::sim::{PING, TTL};
use crate::*;

/// A socket as its client knows it.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) conn: ConnId,
    /// Frames that will still arrive before it is deaf.
    pub(crate) hears: usize,
}

/// A hello without an answer yet.
#[derive(Debug)]
pub(crate) struct Knocking {
    pub(crate) line: Line,
    pub(crate) process: Process,
    pub(crate) token: TokenVerdict,
    /// Nobody vouches: only the token speaks for it.
    pub(crate) alone: bool,
    /// How long the session had been away, if that is known.
    pub(crate) away: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) n: u8,
    pub(crate) name: String,
    /// The process that holds the session, and how many there were before it.
    pub(crate) process: Process,
    pub(crate) processes: u32,
    pub(crate) line: Option<Line>,
    pub(crate) knocking: Option<Knocking>,
    /// The lease that must still be there if the client comes back in time.
    pub(crate) lease: Option<LeaseId>,
    /// Since when, in broker time, nothing is heard of it; and whether nothing else happened meanwhile.
    pub(crate) away_since: Option<u64>,
    pub(crate) plainly: bool,
    /// Direct events for this session so far.
    pub(crate) directs: u64,
}

impl Client {
    pub(crate) fn new(n: u8) -> Client {
        Client {
            n,
            name: format!("s{n}"),
            process: Process::new(format!("p{n}-0")),
            processes: 0,
            line: None,
            knocking: None,
            lease: None,
            away_since: None,
            plainly: true,
            directs: 0,
        }
    }

    /// Nobody will read the answer: what lease came of that hello, if any, is not known.
    pub(crate) fn give_up_knocking(&mut self) -> Option<Line> {
        let knocking = self.knocking.take()?;
        self.lease = None;
        Some(knocking.line)
    }

    /// The lease is what it must be, and so are the outcome and the replay, when `epoch` is in force.
    pub(crate) fn check_fate(&self, knocking: &Knocking, answer: &HelloAnswer, epoch: Option<&Epoch>) {
        let kept = answer.lease == LeaseFate::Kept;
        if let (Some(lease), Some(away)) = (&self.lease, knocking.away) {
            assert!(kept || away >= TTL - PING, "gone after {away} ms");
            assert!(!kept || answer.lease_id == *lease);
            assert!(!kept || !self.plainly || away < TTL, "still there after {away} ms");
        }
        let outcome = match &knocking.token {
            TokenVerdict::Absent => ResumeOutcome::New,
            TokenVerdict::Rejected(_) => ResumeOutcome::ResumeRejected,
            TokenVerdict::Selects(lease) if *lease == answer.lease_id => ResumeOutcome::Resumed,
            TokenVerdict::Selects(_) => ResumeOutcome::ResumeNotFound,
        };
        assert_eq!(answer.outcome, outcome);
        let resumed = outcome == ResumeOutcome::Resumed;
        assert!(!knocking.alone || resumed, "let in on the word of a dead lease");
        let presented = knocking.process.position.as_ref().map(|(epoch, _)| epoch);
        let complete = resumed && presented.is_some() && presented == epoch;
        assert_eq!(answer.replay == Replay::Complete, complete, "nothing was evicted");
    }
}

impl Knocking {
    /// It was refused for a reason that is true while the store has this lease.
    pub(crate) fn check_refusal(&self, stored: Option<&LeaseId>, code: ErrorCode) {
        match code {
            ErrorCode::Unauthorized => {
                let lives = stored.is_some_and(|lease| self.token == TokenVerdict::Selects(lease.clone()));
                assert!(self.alone && !lives, "its lease lives");
            }
            ErrorCode::SessionContested => assert_ne!(stored, None),
            ErrorCode::Unavailable => assert_eq!(stored, None, "a living lease needs no disk"),
            other => panic!("nothing here causes {other}"),
        }
    }
}
