//! Reading messages so that none is lost: a message is printed, the line is flushed, and only then is it acked.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde_json::json;
use tenure_client::{Item, Received, Settling, Subscription, Unsettled};

use super::guest::{Guest, ended};
use super::show::Show;
use crate::exit::Failure;
use crate::output::{emit, sentence, unread};
use crate::signals::Signals;

/// How long the last acks may take once the work is over.
const LAST_ACKS: Duration = Duration::from_secs(10);
/// Messages that are kept in hand while nothing is acked, so that none comes twice.
const HELD: usize = 4_096;

/// Why there is nothing more to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    /// As many as were asked for.
    Enough,
    /// Somebody asked us to stop.
    Asked,
    /// Nobody reads what we print.
    Unread,
}

/// Prints messages and settles what it printed.
#[derive(Debug)]
pub(crate) struct Reader {
    show: Show,
    acks: bool,
    /// How many more to print.
    left: Option<u64>,
    fresh: bool,
    /// Acks that came too late.
    late: u64,
    settling: FuturesUnordered<Settling>,
    held: Vec<Received>,
}

impl Reader {
    pub(crate) fn new(show: Show, acks: bool, limit: Option<u64>) -> Reader {
        Reader {
            show,
            acks,
            left: limit,
            fresh: true,
            late: 0,
            settling: FuturesUnordered::new(),
            held: Vec::new(),
        }
    }

    /// How many more to print, if that is bounded.
    pub(crate) fn left(&self) -> Option<u64> {
        self.left
    }

    /// Whether nothing was printed yet.
    pub(crate) fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Prints one message; says when it was the last, or could not be printed. One that was not printed is not
    /// acked; that nobody reads is an end, that it cannot be written a failure.
    pub(crate) fn take(&mut self, message: Received) -> Result<Option<Done>, Failure> {
        if self.left == Some(0) {
            return Ok(Some(Done::Enough));
        }
        let facts = json!({"attempt": message.attempt(), "redelivered": message.redelivered()});
        if let Err(error) = emit(&self.show.line(&message, facts)) {
            return unread(&error).map(|()| Some(Done::Unread));
        }
        self.fresh = false;
        if self.acks {
            self.settling.push(message.ack());
        } else if self.held.len() < HELD {
            self.held.push(message);
        }
        let Some(left) = self.left.as_mut() else { return Ok(None) };
        *left -= 1;
        Ok((*left == 0).then_some(Done::Enough))
    }

    /// Prints what comes until there is a reason to stop.
    pub(crate) async fn follow(
        &mut self,
        stream: &mut Subscription,
        signals: &mut Signals,
    ) -> Result<Done, Failure> {
        loop {
            // All are cancel-safe: those that lose have taken nothing.
            tokio::select! {
                item = stream.next() => match item.map_err(ended)? {
                    Item::Message(message) => {
                        if let Some(done) = self.take(message)? {
                            return Ok(done);
                        }
                    }
                    Item::Gap { partition, from, to } => {
                        let partition = partition.map(|p| format!(" of partition {p}")).unwrap_or_default();
                        eprintln!("gap: {from} to {to}{partition} were gone before they could be read");
                    }
                },
                Some(settled) = self.settling.next() => self.heard(settled)?,
                () = signals.recv() => return Ok(Done::Asked),
            }
        }
    }

    /// Waits until the broker has every ack.
    pub(crate) async fn settle(&mut self) -> Result<(), Failure> {
        let until = tokio::time::Instant::now() + LAST_ACKS;
        while !self.settling.is_empty() {
            match tokio::time::timeout_at(until, self.settling.next()).await {
                Ok(Some(settled)) => self.heard(settled)?,
                Ok(None) => break,
                Err(_) => return Err(unsettled()),
            }
        }
        match std::mem::take(&mut self.late) {
            0 => {}
            late => {
                eprintln!("{late} acks came too late: those messages are handed out again, to us or others")
            }
        }
        Ok(())
    }

    /// Waits for the last acks; once we are asked to stop only while the broker is there, and not for long.
    pub(crate) async fn finish(
        &mut self,
        done: Done,
        guest: &Guest,
        signals: &mut Signals,
    ) -> Result<(), Failure> {
        if done != Done::Asked {
            // Both are cancel-safe.
            tokio::select! {
                settled = self.settle() => return settled,
                () = signals.recv() => {}
            }
        }
        match guest.at_last(self.settle()).await {
            Some(settled) => settled,
            None if self.settling.is_empty() => Ok(()),
            None => Err(unsettled()),
        }
    }

    /// What became of an ack.
    fn heard(&mut self, settled: Result<(), Unsettled>) -> Result<(), Failure> {
        match settled {
            // Of the end of a session the stream itself tells why.
            Ok(()) | Err(Unsettled::SessionOver) => Ok(()),
            Err(Unsettled::Stale { .. }) => {
                self.late += 1;
                Ok(())
            }
            Err(Unsettled::Refused(error)) => Err(Failure::Refused(sentence(&error.to_string()))),
        }
    }
}

/// The broker has not answered the last acks.
fn unsettled() -> Failure {
    let text = "the broker did not answer the last acks: what was printed last may come again";
    Failure::Unreachable(text.to_owned())
}
