//! The connections of a broker from accept to their end: who is let go when there is no room for all, or when they
//! hold too much memory together. What is decided is `tenure_kit::crowd`'s and `tenure_mesh::conn::buffers`'.

use std::cmp::Ordering::{Equal, Greater, Less};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use axum::http::HeaderMap;
use tenure_kit::Millis;
use tenure_kit::crowd::{Crowd, CrowdLimits, Entry, GuestId};
use tenure_mesh::conn::Out;
use tenure_mesh::conn::buffers::{BufferLimit, Holding};
use tenure_mux::{Gate, Tally};
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use crate::mailbox::Mailbox;
use crate::peer::{Peer, Place};
use crate::shared::Shared;
use crate::socket::Room;

/// Between two looks at who holds what, when it is too much: those who were let go need a moment to give it back.
const LOOK_MS: u64 = 10;

/// Why a connection was turned away when it was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TurnedAway {
    /// Its address has as many as it may.
    Address,
    /// There are as many as there may be.
    Full,
}

/// The connections of one broker.
#[derive(Debug)]
pub(crate) struct Connections {
    /// Held for a moment, never across an await.
    inner: Mutex<Inner>,
    limit: BufferLimit,
    /// Bytes that wait for clients.
    waiting: AtomicUsize,
    /// Bytes that requests hold.
    owed: AtomicUsize,
    /// Closed while sockets and streams hold too much, those included that were told to go and have not given it back yet.
    gate: Arc<Gate>,
    /// Bytes that relayed streams hold.
    relayed: Arc<Tally>,
    /// Where large messages find room before they are read.
    room: Room,
    /// Wakes the task that looks at the sum, when that is past the bound and was looked at a moment ago.
    over: Notify,
    /// When the sum was last looked at, in milliseconds of our clock.
    looked: AtomicU64,
}

#[derive(Debug)]
struct Inner {
    crowd: Crowd,
    guests: HashMap<GuestId, Arc<Guest>>,
}

/// Who holds something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Holder {
    Connection(GuestId),
    /// A relayed stream, by its number.
    Stream(u64),
}

/// One of them, as the others see it.
#[derive(Debug)]
struct Guest {
    id: GuestId,
    /// Set when it is to go before it has said hello.
    cut: CancellationToken,
    /// How to tell it to go after that.
    mailbox: OnceLock<Mailbox>,
    waiting: AtomicUsize,
    owed: AtomicUsize,
    /// Bytes that it held when it was told to go, and has not given back yet.
    leaving: AtomicUsize,
    /// Since when its client has made no progress, in milliseconds of our clock.
    since: AtomicU64,
    /// Bytes of a large message that is not whole, and when something of it last came.
    unfinished: AtomicUsize,
    heard: AtomicU64,
    /// Whether it was told to go: what it holds is on its way out.
    gone: AtomicBool,
}

/// What a socket holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// Bytes that wait for its client.
    pub(crate) waiting: usize,
    /// Bytes that its requests hold.
    pub(crate) owed: usize,
    /// Since when its client has made no progress.
    pub(crate) since: Millis,
    /// Bytes of a large message that is not whole: what it keeps from others.
    pub(crate) unfinished: usize,
    /// When something of that last came.
    pub(crate) heard: Millis,
}

impl Held {
    /// So many bytes wait for a client that has taken nothing since then.
    pub(crate) fn stuck(waiting: usize, since: Millis) -> Held {
        Held { waiting, owed: 0, since, unfinished: 0, heard: since }
    }
}

impl Connections {
    pub(crate) fn new(crowd: CrowdLimits, buffers: BufferLimit) -> Connections {
        let gate = Arc::new(Gate::new(buffers.0));
        Connections {
            inner: Mutex::new(Inner { crowd: Crowd::new(crowd), guests: HashMap::new() }),
            limit: buffers,
            waiting: AtomicUsize::new(0),
            owed: AtomicUsize::new(0),
            relayed: Arc::new(Tally::within(gate.clone())),
            gate,
            room: Room::new(buffers.for_messages()),
            over: Notify::new(),
            looked: AtomicU64::new(0),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.inner().crowd.len()
    }

    /// Whether a session that does not resume may stay.
    pub(crate) fn has_room(&self) -> bool {
        self.inner().crowd.has_room()
    }

    /// Bytes that all of them hold, those included that were told to go and have not given everything back.
    pub(crate) fn buffered(&self) -> usize {
        self.gate.bytes().saturating_add(self.owed.load(Ordering::Relaxed))
    }

    /// Bytes that wait for clients, in sockets and relayed streams.
    fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed).saturating_add(self.relayed.bytes())
    }

    /// Backpressure: the store's readers and the relay's sockets wait while this is closed.
    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Where relayed streams count what they hold.
    pub(crate) fn relayed(&self) -> Arc<Tally> {
        self.relayed.clone()
    }

    /// Whether they hold too much.
    pub(crate) fn is_over(&self) -> bool {
        self.limit.is_over(self.waiting(), self.owed.load(Ordering::Relaxed))
    }

    /// Looks when relayed streams hold more, and again a moment after somebody has looked and all still held too much, until
    /// the broker stops.
    pub(crate) async fn watch(shared: Arc<Shared>) {
        let all = &shared.connections;
        loop {
            // All are cancel-safe.
            tokio::select! {
                () = all.over.notified() => tokio::time::sleep(Duration::from_millis(LOOK_MS)).await,
                () = all.relayed.grown() => {}
                () = shared.stopping.cancelled() => return,
            }
            all.relieve(&shared);
        }
    }

    /// Lets the slowest go if all hold too much, at once: whoever makes it too much looks itself, so that it does not
    /// depend on a busy thread coming round to another task.
    fn relieve(&self, shared: &Shared) {
        if !self.is_over() {
            return;
        }
        let Some(now) = self.looks(shared) else {
            self.over.notify_one();
            return;
        };
        let holdings = self.holdings(shared, now);
        let goes = self.limit.let_go(now, self.owed.load(Ordering::Relaxed), holdings);
        self.let_go(shared, &goes);
        if self.is_over() {
            self.over.notify_one();
        }
    }

    /// Lets those go who keep room for a message and send nothing of it, as somebody has waited for a while.
    fn make_room(&self, shared: &Shared) {
        // Who comes while somebody looks waits on, and asks again.
        let Some(now) = self.looks(shared) else { return };
        let unfinished = |guest: &Arc<Guest>| {
            let bytes = guest.unfinished.load(Ordering::Relaxed);
            let since = Millis(guest.heard.load(Ordering::Relaxed));
            (bytes > 0).then_some(Holding { holder: Holder::Connection(guest.id), bytes, since })
        };
        let holdings = self.inner().guests.values().filter_map(unfinished).collect();
        self.let_go(shared, &self.limit.make_room(now, holdings));
    }

    /// Now, if nobody has looked a moment ago: from here on we have.
    fn looks(&self, shared: &Shared) -> Option<Millis> {
        let (now, looked) = (shared.clock.at(), self.looked.load(Ordering::Relaxed));
        let soon = now.since(Millis(looked)) < LOOK_MS;
        let ours =
            || self.looked.compare_exchange(looked, now.0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        (!soon && ours()).then_some(now)
    }

    /// What waits for each client.
    fn holdings(&self, shared: &Shared, now: Millis) -> Vec<Holding<Holder>> {
        let holding = |guest: &Arc<Guest>| {
            let bytes = guest.waiting.load(Ordering::Relaxed);
            let since = Millis(guest.since.load(Ordering::Relaxed));
            (bytes > 0).then_some(Holding { holder: Holder::Connection(guest.id), bytes, since })
        };
        let mut all: Vec<_> = self.inner().guests.values().filter_map(holding).collect();
        let streams = shared.relay.streams.holdings(now).into_iter();
        all.extend(streams.map(|Holding { holder, bytes, since }| Holding {
            holder: Holder::Stream(holder),
            bytes,
            since,
        }));
        all
    }

    /// Lets these go, and says so.
    fn let_go(&self, shared: &Shared, goes: &[Holder]) {
        if goes.is_empty() {
            return;
        }
        let inner = self.inner();
        let tell = |holder: &Holder| match holder {
            Holder::Connection(id) => inner.guests.get(id).map(|guest| self.tell_to_go(guest)),
            Holder::Stream(id) => shared.relay.streams.let_go(*id),
        };
        let held: Vec<usize> = goes.iter().filter_map(tell).collect();
        drop(inner);
        let (count, bytes) = (held.len() as u64, held.iter().sum::<usize>());
        shared.metrics.let_go("buffers", count);
        tracing::warn!(
            event = "slow_consumers_let_go",
            count,
            bytes,
            bound = self.limit.0,
            "all sockets and streams together held too much: the slowest were closed, sessions are in grace"
        );
    }

    /// Tells a connection to go. What it holds waits for no client from here on; it is held until the connection's task
    /// comes round to giving it back.
    fn tell_to_go(&self, guest: &Guest) -> usize {
        guest.gone.store(true, Ordering::Relaxed);
        guest.unfinished.store(0, Ordering::Relaxed);
        let held = guest.waiting.swap(0, Ordering::Relaxed);
        guest.leaving.fetch_add(held, Ordering::Relaxed);
        shift(&self.waiting, held, 0);
        shift(&self.owed, guest.owed.swap(0, Ordering::Relaxed), 0);
        match guest.mailbox.get() {
            Some(mailbox) => mailbox.put(Out::LetGo),
            None => guest.cut.cancel(),
        }
        held
    }

    /// A connection that was told to go still holds so much at the most.
    fn still_holds(&self, guest: &Guest, bytes: usize) {
        let before = guest.leaving.fetch_min(bytes, Ordering::Relaxed);
        self.gate.sub(before.saturating_sub(bytes));
    }

    /// Counts what a connection holds instead of what it held.
    fn count(&self, guest: &Guest, waiting: usize, owed: usize) {
        let before = guest.waiting.swap(waiting, Ordering::Relaxed);
        shift(&self.waiting, before, waiting);
        match waiting.cmp(&before) {
            Greater => self.gate.add(waiting - before),
            Less => self.gate.sub(before - waiting),
            Equal => {}
        }
        shift(&self.owed, guest.owed.swap(owed, Ordering::Relaxed), owed);
    }
}

fn shift(sum: &AtomicUsize, before: usize, now: usize) {
    if now > before {
        sum.fetch_add(now - before, Ordering::Relaxed);
    } else if before > now {
        sum.fetch_sub(before - now, Ordering::Relaxed);
    }
}

/// A connection's place among all of them, and among those of its address; both are free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Connection {
    shared: Arc<Shared>,
    guest: Arc<Guest>,
    peer: Peer,
    /// None for a proxy that is believed: its clients are counted instead.
    place: Option<Arc<Place>>,
    /// Whether somebody was let go for it.
    displaced: bool,
}

impl Connection {
    /// Takes a place for what was just accepted from `peer`. Somebody else may be let go for it.
    pub(crate) fn enter(shared: &Arc<Shared>, peer: Peer) -> Result<Connection, TurnedAway> {
        let config = &shared.config;
        let mut proxies = config.trusted_proxies.iter().chain(&config.relay.proxies);
        let place = match proxies.any(|proxy| proxy.holds(peer.0.ip())) {
            true => None,
            false => Some(Arc::new(Place::take(shared, peer).ok_or(TurnedAway::Address)?)),
        };
        let mut inner = shared.connections.inner();
        let Entry::Stays(id, goes) = inner.crowd.enter(peer.address()) else {
            return Err(TurnedAway::Full);
        };
        let goes = goes.and_then(|goes| inner.guests.get(&goes));
        let displaced = goes.is_some();
        if let Some(goes) = goes {
            shared.connections.tell_to_go(goes);
            shared.metrics.let_go("room", 1);
        }
        let guest = Arc::new(Guest {
            id,
            cut: CancellationToken::new(),
            mailbox: OnceLock::new(),
            waiting: AtomicUsize::new(0),
            owed: AtomicUsize::new(0),
            leaving: AtomicUsize::new(0),
            since: AtomicU64::new(0),
            unfinished: AtomicUsize::new(0),
            heard: AtomicU64::new(0),
            gone: AtomicBool::new(false),
        });
        inner.guests.insert(id, guest.clone());
        drop(inner);
        Ok(Connection { shared: shared.clone(), guest, peer, place, displaced })
    }

    /// Whether somebody was let go for it.
    pub(crate) fn displaced(&self) -> bool {
        self.displaced
    }

    /// Its place among the connections of where it comes from; of a proxy's client its own. Nothing when that address has
    /// as many as it may.
    pub(crate) fn place(&self, headers: &HeaderMap) -> Option<Arc<Place>> {
        let client = self.peer.behind(&self.shared.config.trusted_proxies, headers);
        match &self.place {
            Some(place) if client.0.ip() == self.peer.0.ip() => Some(place.clone()),
            _ => Place::take(&self.shared, client).map(Arc::new),
        }
    }

    /// It is a session's, or what a session vouches for. `false` when it was let go meanwhile.
    pub(crate) fn is_session(&self) -> bool {
        self.shared.connections.inner().crowd.is_session(self.guest.id)
    }

    /// It asks for a service. `false` when it was let go meanwhile, or too many do.
    pub(crate) fn is_consumer(&self) -> bool {
        self.shared.connections.inner().crowd.is_consumer(self.guest.id)
    }

    /// From here on it is told to go through its mailbox.
    pub(crate) fn listens_to(&self, mailbox: &Mailbox) {
        let _ = self.guest.mailbox.set(mailbox.clone());
    }

    /// Waits until it is told to go. Cancel-safe.
    pub(crate) fn cut(&self) -> WaitForCancellationFuture<'_> {
        self.guest.cut.cancelled()
    }

    /// It holds this from here on.
    pub(crate) fn holds(&self, held: Held) {
        let all = &self.shared.connections;
        if self.guest.gone.load(Ordering::Relaxed) {
            all.count(&self.guest, 0, 0);
            all.still_holds(&self.guest, held.waiting);
            return;
        }
        self.guest.since.store(held.since.0, Ordering::Relaxed);
        self.guest.heard.store(held.heard.0, Ordering::Relaxed);
        self.guest.unfinished.store(held.unfinished, Ordering::Relaxed);
        all.count(&self.guest, held.waiting, held.owed);
        all.relieve(&self.shared);
    }

    /// A client that it is stuck with has taken nothing of so many bytes from now on; of none, it has.
    pub(crate) fn is_stuck(&self, bytes: usize) {
        self.holds(Held::stuck(bytes, self.shared.clock.at()));
    }

    /// The room for large messages.
    pub(crate) fn room(&self) -> &Room {
        &self.shared.connections.room
    }

    /// It has waited for room for a while.
    pub(crate) fn press(&self) {
        self.shared.connections.make_room(&self.shared);
    }

    /// Whether requests of all sockets hold so much that one which has some must wait for its answers.
    pub(crate) fn holds_back(&self) -> bool {
        let all = &self.shared.connections;
        all.limit.holds_requests_back(all.owed.load(Ordering::Relaxed))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let all = &self.shared.connections;
        let mut inner = all.inner();
        inner.crowd.leave(self.guest.id);
        inner.guests.remove(&self.guest.id);
        drop(inner);
        // It is out of the map, so no other thread can tell it to go and count its bytes as leaving after this.
        all.count(&self.guest, 0, 0);
        all.still_holds(&self.guest, 0);
    }
}
