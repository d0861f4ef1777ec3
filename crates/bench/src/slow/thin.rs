//! A wire that becomes thin: a proxy that lets everything through, and from a moment on so many bytes in a second, each
//! so much later.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// Bytes that the proxy's system holds on the way, so that the broker soon notices how thin the wire is.
const BUFFER: u32 = 16 * 1024;
/// Chunks that are under way.
const UNDER_WAY: usize = 1_024;

/// What a wire is like once it is thin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speed {
    pub(super) name: &'static str,
    /// `None` is as many as come, 0 is none.
    pub(super) bytes_per_second: Option<u32>,
    pub(super) latency: Duration,
}

/// One connection's wire.
#[derive(Debug)]
pub(super) struct Thin {
    /// Where to connect.
    pub(super) address: String,
    thin: Arc<AtomicBool>,
}

impl Thin {
    /// A wire to the broker at `to`.
    pub(super) async fn to(to: &str, speed: Speed) -> Result<Thin> {
        let to = to.parse().context("the broker's address")?;
        let listener = TcpListener::bind("127.0.0.1:0").await.context("listen for a reader")?;
        let address = listener.local_addr()?.to_string();
        let thin = Arc::new(AtomicBool::new(false));
        let is_thin = thin.clone();
        tokio::spawn(async move {
            let (client, _) = listener.accept().await?;
            let socket = TcpSocket::new_v4()?;
            socket.set_recv_buffer_size(BUFFER)?;
            carry(client, socket.connect(to).await?, speed, is_thin).await
        });
        Ok(Thin { address, thin })
    }

    /// From here on it is.
    pub(super) fn narrow(&self) {
        self.thin.store(true, Ordering::Relaxed);
    }
}

async fn carry(
    client: TcpStream,
    broker: TcpStream,
    speed: Speed,
    thin: Arc<AtomicBool>,
) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    broker.set_nodelay(true)?;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_broker, mut to_broker) = broker.into_split();
    let up = tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_broker).await });
    let (late, mut due) = mpsc::channel::<(Instant, Vec<u8>)>(UNDER_WAY);
    let down = tokio::spawn(async move {
        while let Some((at, bytes)) = due.recv().await {
            sleep_until(at).await;
            to_client.write_all(&bytes).await?;
        }
        std::io::Result::Ok(())
    });
    let mut some = vec![0; 64 * 1024];
    let mut free = Instant::now();
    loop {
        let rate = speed.bytes_per_second.filter(|_| thin.load(Ordering::Relaxed));
        let most = match rate {
            None => some.len(),
            // Whoever reads nothing does not read the end either.
            Some(0) => break std::future::pending().await,
            Some(rate) => (rate as usize / 50).clamp(1, some.len()),
        };
        let count = from_broker.read(&mut some[..most]).await?;
        if count == 0 {
            break;
        }
        let (mut at, now) = (Instant::now(), Instant::now());
        if let Some(rate) = rate {
            free = free.max(now) + Duration::from_secs_f64(count as f64 / f64::from(rate));
            sleep_until(free).await;
            at = free + speed.latency;
        }
        if late.send((at, some[..count].to_vec())).await.is_err() {
            break;
        }
    }
    drop(late);
    let _ = down.await;
    up.abort();
    Ok(())
}
