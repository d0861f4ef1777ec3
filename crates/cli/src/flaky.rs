//! A proxy that breaks connections, the way networks do.
//!
//! What this is for: `tenure demo`, and tests that need a network to fail on demand. It carries TCP from a
//! loopback port to one upstream address and does nothing to it until told.
//!
//! What it promises: a [`Fault`] strikes the connections that exist at that moment and no others; what has been
//! silenced stays silent; nothing is buffered beyond a fixed amount per connection. When the [`Flaky`] is
//! dropped its tasks end and every socket it holds is closed.
//!
//! What it never does: read what it carries.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};
use tokio::task::{AbortHandle, JoinSet};

/// Bytes on their way in each direction of one connection.
const BUFFER: usize = 16 * 1024;
/// Connections at a time, silenced ones included; one more is closed at once.
const CONNECTIONS: usize = 1_024;
/// Faults that may wait for a connection's task; they are rare and its task does little else.
const FAULTS: usize = 16;

/// A way for a connection to break. "Client" is the side that dialled the proxy, "broker" the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Both sides are closed at once.
    Drop,
    /// Nothing flows any more, either way; both sides stay open.
    Stall,
    /// The client's side is closed; the broker's stays open, and silent.
    HalfOpenClient,
    /// The broker's side is closed; the client's stays open, and silent.
    HalfOpenBroker,
}

impl Fault {
    /// Every fault, in the order in which the demonstration applies them.
    pub const ALL: [Fault; 4] = [Fault::Drop, Fault::Stall, Fault::HalfOpenClient, Fault::HalfOpenBroker];
}

/// A running proxy towards one address.
#[derive(Debug)]
pub struct Flaky {
    addr: SocketAddr,
    faults: broadcast::Sender<Fault>,
    blackhole: watch::Sender<bool>,
    accepting: AbortHandle,
}

impl Flaky {
    /// Listens on a free loopback port and carries to `upstream` from now on. Must be called within a runtime.
    pub fn start(upstream: SocketAddr) -> std::io::Result<Flaky> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let addr = listener.local_addr()?;
        let (faults, _) = broadcast::channel(FAULTS);
        let (blackhole, _) = watch::channel(false);
        let accepting = tokio::spawn(accept(listener, upstream, faults.clone(), blackhole.subscribe()));
        Ok(Flaky { addr, faults, blackhole, accepting: accepting.abort_handle() })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Breaks every connection that exists now. New ones pass.
    pub fn break_all(&self, fault: Fault) {
        // An error says that there is no connection to break.
        let _ = self.faults.send(fault);
    }

    /// While on, nothing gets through, in the way of a router that drops packets: connections that exist are
    /// silenced for good, as if their translation had been forgotten, and new ones are accepted but stay mute.
    /// Those come to life when it is switched off, as a client's repeated SYN would then.
    pub fn blackhole(&self, on: bool) {
        self.blackhole.send_replace(on);
        if on {
            self.break_all(Fault::Stall);
        }
    }
}

impl Drop for Flaky {
    fn drop(&mut self) {
        // The accepting task owns the tasks of the connections, and they own the sockets.
        self.accepting.abort();
    }
}

async fn accept(
    listener: TcpListener,
    upstream: SocketAddr,
    faults: broadcast::Sender<Fault>,
    blackhole: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else { return };
        while connections.try_join_next().is_some() {}
        if connections.len() < CONNECTIONS {
            // Subscribed here and not in its task, so that the connection exists for faults from now on.
            connections.spawn(carry(client, upstream, faults.subscribe(), blackhole.clone()));
        }
    }
}

/// Carries one connection until it ends or is told to break.
async fn carry(
    mut client: TcpStream,
    upstream: SocketAddr,
    mut faults: broadcast::Receiver<Fault>,
    mut blackhole: watch::Receiver<bool>,
) {
    if blackhole.wait_for(|on| !on).await.is_err() {
        return;
    }
    let Ok(mut broker) = TcpStream::connect(upstream).await else { return };
    if client.set_nodelay(true).and_then(|()| broker.set_nodelay(true)).is_err() {
        return;
    }
    // The copy is not cancel-safe: cut off in the middle of a write, it loses bytes. Nothing flows after it that could miss
    // them.
    let fault = tokio::select! {
        biased;
        fault = faults.recv() => fault,
        _ = copy_bidirectional_with_sizes(&mut client, &mut broker, BUFFER, BUFFER) => return,
    };
    broken(client, broker, fault, faults).await;
}

/// Holds what a fault has left open, until a later one closes it.
async fn broken(
    client: TcpStream,
    broker: TcpStream,
    first: Result<Fault, RecvError>,
    mut faults: broadcast::Receiver<Fault>,
) {
    let (mut client, mut broker) = (Some(client), Some(broker));
    let mut fault = first;
    while client.is_some() || broker.is_some() {
        match fault {
            Ok(Fault::Drop) | Err(RecvError::Closed) => return,
            Ok(Fault::Stall) | Err(RecvError::Lagged(_)) => {}
            Ok(Fault::HalfOpenClient) => client = None,
            Ok(Fault::HalfOpenBroker) => broker = None,
        }
        fault = faults.recv().await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Long enough for anything on loopback to arrive; silence is the subject where it is waited out.
    const MOMENT: Duration = Duration::from_millis(150);
    const PATIENCE: Duration = Duration::from_secs(10);

    struct World {
        flaky: Flaky,
        upstream: TcpListener,
    }

    async fn world() -> World {
        let upstream = TcpListener::bind("127.0.0.1:0").await.unwrap();
        World { flaky: Flaky::start(upstream.local_addr().unwrap()).unwrap(), upstream }
    }

    impl World {
        /// A connection through the proxy: the client's end and the broker's.
        async fn connect(&self) -> (TcpStream, TcpStream) {
            let client = TcpStream::connect(self.flaky.addr()).await.unwrap();
            let (broker, _) = tokio::time::timeout(PATIENCE, self.upstream.accept()).await.unwrap().unwrap();
            let (mut client, mut broker) = (client, broker);
            flows(&mut client, &mut broker).await;
            flows(&mut broker, &mut client).await;
            (client, broker)
        }
    }

    async fn flows(from: &mut TcpStream, to: &mut TcpStream) {
        from.write_all(b"x").await.unwrap();
        let mut byte = [0];
        tokio::time::timeout(PATIENCE, to.read_exact(&mut byte)).await.unwrap().unwrap();
    }

    async fn is_closed(end: &mut TcpStream) -> bool {
        let mut byte = [0];
        matches!(tokio::time::timeout(PATIENCE, end.read(&mut byte)).await, Ok(Ok(0) | Err(_)))
    }

    /// Whether `end` stays open and hears nothing of what is said at the other end.
    async fn is_silent(end: &mut TcpStream) -> bool {
        let mut byte = [0];
        tokio::time::timeout(MOMENT, end.read(&mut byte)).await.is_err()
    }

    #[tokio::test]
    async fn each_fault_breaks_what_exists_in_its_own_way() {
        for fault in Fault::ALL {
            let world = world().await;
            let (mut client, mut broker) = world.connect().await;
            world.flaky.break_all(fault);
            let (client_closed, broker_closed) = match fault {
                Fault::Drop => (true, true),
                Fault::Stall => (false, false),
                Fault::HalfOpenClient => (true, false),
                Fault::HalfOpenBroker => (false, true),
            };
            for (end, closed) in [(&mut client, client_closed), (&mut broker, broker_closed)] {
                let holds = if closed { is_closed(end).await } else { is_silent(end).await };
                assert!(holds, "{fault:?}");
            }
            let (mut client, mut broker) = world.connect().await;
            flows(&mut client, &mut broker).await;
        }
    }

    #[tokio::test]
    async fn what_is_stalled_hears_nothing_more_and_can_still_be_dropped() {
        let world = world().await;
        let (mut client, mut broker) = world.connect().await;
        world.flaky.break_all(Fault::Stall);
        // The fault strikes when the connection's task runs; what is said after that is lost.
        assert!(is_silent(&mut broker).await);
        client.write_all(b"lost").await.unwrap();
        broker.write_all(b"lost").await.unwrap();
        assert!(is_silent(&mut client).await && is_silent(&mut broker).await);
        world.flaky.break_all(Fault::Drop);
        assert!(is_closed(&mut client).await && is_closed(&mut broker).await);
    }

    #[tokio::test]
    async fn a_blackhole_swallows_new_connections_too_and_gives_back_only_those() {
        let world = world().await;
        let (mut old_client, mut old_broker) = world.connect().await;
        world.flaky.blackhole(true);
        assert!(is_silent(&mut old_client).await && is_silent(&mut old_broker).await);
        let mut client = TcpStream::connect(world.flaky.addr()).await.unwrap();
        client.write_all(b"?").await.unwrap();
        assert!(tokio::time::timeout(MOMENT, world.upstream.accept()).await.is_err());
        world.flaky.blackhole(false);
        let (mut broker, _) = tokio::time::timeout(PATIENCE, world.upstream.accept()).await.unwrap().unwrap();
        let mut byte = [0];
        tokio::time::timeout(PATIENCE, broker.read_exact(&mut byte)).await.unwrap().unwrap();
        assert_eq!(byte, *b"?");
        assert!(is_silent(&mut old_client).await && is_silent(&mut old_broker).await);
    }

    #[tokio::test]
    async fn dropping_the_proxy_releases_what_it_holds() {
        let world = world().await;
        let (mut flowing, _broker) = world.connect().await;
        let (mut stalled, mut stalled_broker) = world.connect().await;
        world.flaky.break_all(Fault::Stall);
        assert!(is_silent(&mut stalled).await);
        let addr = world.flaky.addr();
        drop(world.flaky);
        assert!(is_closed(&mut flowing).await);
        assert!(is_closed(&mut stalled).await && is_closed(&mut stalled_broker).await);
        // Its port is free again once the task has let go of it.
        while TcpStream::connect(addr).await.is_ok() {
            tokio::task::yield_now().await;
        }
    }
}
