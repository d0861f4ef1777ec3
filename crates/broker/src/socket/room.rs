//! Room for large messages: a socket has some before it reads one, and keeps it until the message is answered.
//!
//! Thousands of clients may send a megabyte each at the same moment, and none of them does anything wrong. Reading them
//! all at once would hold more than all sockets may, and somebody would be let go for it. So whoever finds no room is
//! not read, and gets its turn in the order in which they came.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::connections::Connection;

/// Bytes up to which a message needs no room of its own.
pub(super) const SMALL_BYTES: usize = 64 * 1024;
/// Bytes that a place stands for.
const PLACE_BYTES: usize = 1024;
/// How long somebody waits for room before those that keep it and send nothing are looked at.
const PRESS: Duration = Duration::from_secs(1);

/// The room for large messages of all sockets.
#[derive(Debug)]
pub(crate) struct Room {
    places: Arc<Semaphore>,
    all: u32,
}

impl Room {
    /// So many bytes.
    pub(crate) fn new(bytes: usize) -> Room {
        let all = places(bytes).max(1).min(u32::try_from(Semaphore::MAX_PERMITS).unwrap_or(u32::MAX));
        Room { places: Arc::new(Semaphore::new(all as usize)), all }
    }
}

fn places(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(PLACE_BYTES)).unwrap_or(u32::MAX)
}

type Asking = Pin<Box<dyn Future<Output = Option<OwnedSemaphorePermit>> + Send>>;

/// What one socket has of it.
#[derive(Default)]
pub(super) struct Share {
    has: Option<OwnedSemaphorePermit>,
    /// Runs while it waits for more.
    asking: Option<Asking>,
}

impl Share {
    /// Bytes that it has room for.
    pub(super) fn bytes(&self) -> usize {
        self.has.as_ref().map_or(0, |has| has.num_permits() * PLACE_BYTES)
    }

    /// Whether it waits for more.
    pub(super) fn waits(&self) -> bool {
        self.asking.is_some()
    }

    /// Ready when there is room for so many bytes. Whoever asks for more than there is gets all.
    pub(super) fn poll_have(
        &mut self,
        cx: &mut Context<'_>,
        bytes: usize,
        connection: &Arc<Connection>,
    ) -> Poll<()> {
        let room = connection.room();
        let has = self.has.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let more = places(bytes).min(room.all).saturating_sub(u32::try_from(has).unwrap_or(u32::MAX));
        if more == 0 {
            self.asking = None;
            return Poll::Ready(());
        }
        let asking = self.asking.get_or_insert_with(|| {
            let (places, connection) = (room.places.clone(), connection.clone());
            Box::pin(ask(places, more, connection))
        });
        let got = ready!(asking.as_mut().poll(cx));
        self.asking = None;
        match (&mut self.has, got) {
            (Some(has), Some(got)) => has.merge(got),
            (has, got) => *has = got.or(has.take()),
        }
        Poll::Ready(())
    }

    /// Gives back what is not needed for so many bytes.
    pub(super) fn keep(&mut self, bytes: usize) {
        let needed = places(bytes) as usize;
        if let Some(has) = &mut self.has {
            drop(has.split(has.num_permits().saturating_sub(needed)));
        }
        if needed == 0 {
            self.has = None;
        }
    }

    /// Gives back all of it, and asks for no more.
    pub(super) fn clear(&mut self) {
        *self = Share::default();
    }
}

/// Waits for so many places, and meanwhile has those looked at who keep some and send nothing.
async fn ask(places: Arc<Semaphore>, more: u32, connection: Arc<Connection>) -> Option<OwnedSemaphorePermit> {
    let got = places.acquire_many_owned(more);
    tokio::pin!(got);
    loop {
        // Both are cancel-safe: the wait for places is the same one, and keeps its turn.
        tokio::select! {
            got = &mut got => return got.ok(),
            () = tokio::time::sleep(PRESS) => connection.press(),
        }
    }
}
