//! What a workload asks of a system, whichever it is.
//!
//! A system is started by the bench, holds *places* that messages go to, and has publishers and readers that speak to it
//! with the client that its users use. Where it has no equivalent of what is asked, it says so in a sentence, which is
//! printed where a figure would stand.

use std::pin::Pin;

use anyhow::Result;

use super::crowd::Crowd;

/// A future that a trait object gives.
pub(crate) type Fut<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// Sockets that what is outstanding is spread over, at most; the same for every system.
pub(crate) const SOCKETS: usize = 64;
/// Messages that a reader may hold before it settles any; the same for every system.
pub(crate) const PREFETCH: u16 = 256;

/// What a system is, for whoever reads its figures.
#[derive(Clone, Debug)]
pub(crate) struct About {
    /// A name for programs.
    pub(crate) key: &'static str,
    /// A name for people.
    pub(crate) name: &'static str,
    /// What it says that it is.
    pub(crate) version: String,
    /// The client that speaks to it, and its version.
    pub(crate) client: String,
    /// What is durable when a publish is answered.
    pub(crate) durable: &'static str,
    /// Whether that is synced to the disk.
    pub(crate) syncs: bool,
    /// What an ack means when a reader has made it.
    pub(crate) ack: &'static str,
    /// Whether an ack is answered at all.
    pub(crate) acks_answered: bool,
    /// How it is configured, where that is not its default.
    pub(crate) config: Vec<String>,
}

/// Who reads a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readers {
    /// Nobody yet; what is published must be kept.
    Nobody,
    /// So many, each message for one of them.
    Competing(usize),
    /// So many, each message for each of them.
    Each(usize),
}

impl Readers {
    /// How many readers.
    pub(crate) fn count(self) -> usize {
        match self {
            Readers::Nobody => 0,
            Readers::Competing(count) | Readers::Each(count) => count,
        }
    }

    /// How often one message is delivered.
    pub(crate) fn copies(self) -> u32 {
        match self {
            Readers::Each(count) => count as u32,
            Readers::Nobody | Readers::Competing(_) => 1,
        }
    }
}

/// Where messages go: a topic, a queue, a stream, a table.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// Letters, digits and dashes.
    pub(crate) name: String,
    pub(crate) readers: Readers,
}

impl Place {
    /// A place of this name.
    pub(crate) fn new(name: impl Into<String>, readers: Readers) -> Place {
        Place { name: name.into(), readers }
    }
}

/// What a system has instead of what was asked for.
#[derive(Debug)]
pub(crate) enum Answer<T> {
    /// Here it is.
    Yes(T),
    /// No equivalent, and why.
    No(&'static str),
}

/// One connection that publishes; any number of publishes may be under way.
pub(crate) trait Publish: Send + Sync {
    /// Publishes `body` and comes back when the system has confirmed it.
    fn publish<'a>(&'a self, body: &'a str) -> Fut<'a, ()>;
}

/// One connection that reads.
pub(crate) trait Read: Send {
    /// Waits for something, shows every body that is there to `seen`, then acks them; gives how many were acked.
    fn read<'a>(&'a mut self, seen: &'a mut (dyn FnMut(&[u8]) + Send)) -> Fut<'a, u64>;
}

/// A system, running.
pub(crate) trait Peer: Send + Sync {
    /// What it is.
    fn about(&self) -> &About;

    /// Its processes; their children count with them.
    fn pids(&self) -> Vec<u32>;

    /// Where the bare client finds it, where there is one for it.
    fn address(&self) -> Option<&str> {
        None
    }

    /// Makes `place`, so that what is published there is kept for its readers.
    fn open<'a>(&'a self, place: &'a Place) -> Fut<'a, ()>;

    /// Drops what was published to `place`, where that is how the system is kept small.
    fn purge<'a>(&'a self, place: &'a Place) -> Fut<'a, ()>;

    /// Removes `place`.
    fn close<'a>(&'a self, place: &'a Place) -> Fut<'a, ()>;

    /// `count` connections that publish to `place`.
    fn publishers<'a>(&'a self, place: &'a Place, count: usize) -> Fut<'a, Vec<Box<dyn Publish>>>;

    /// The reader of `place` with this number.
    fn reader<'a>(&'a self, place: &'a Place, index: usize) -> Fut<'a, Box<dyn Read>>;

    /// Kills it, as a crash would.
    fn kill(&mut self) -> Result<()>;

    /// Starts it again on its data and port; whether it answers yet is for clients to find out.
    fn start_again(&mut self) -> Result<()>;

    /// Whether it keeps messages at all; what does not is only there for sockets and presence.
    fn keeps_messages(&self) -> bool {
        true
    }

    /// `count` sessions, each connected and subscribed, in a crowd that can be cut off.
    fn crowd<'a>(&'a self, count: usize) -> Fut<'a, Answer<Box<dyn Crowd>>>;
}
