//! A thin and long wire between a client and its broker: a proxy that lets so many bytes through in a second, each so
//! much later.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// What a wire is like on the way to its reader.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wire {
    pub(crate) bytes_per_second: u32,
    pub(crate) latency: Duration,
}

impl Wire {
    /// Carries the next connection; where to connect instead of `to`.
    pub(crate) async fn to(self, to: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let here = listener.local_addr().expect("an address");
        tokio::spawn(async move {
            let (client, _) = listener.accept().await.expect("a client");
            // Little is under way besides what the latency holds: the broker notices at once how slow this is.
            let socket = TcpSocket::new_v4().expect("a socket");
            socket.set_recv_buffer_size(16 * 1024).expect("a small buffer");
            let broker = socket.connect(to).await.expect("the broker");
            client.set_nodelay(true).expect("nodelay");
            broker.set_nodelay(true).expect("nodelay");
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_broker, mut to_broker) = broker.into_split();
            tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_broker).await });
            let (late, mut due) = mpsc::channel::<(Instant, Vec<u8>)>(1_024);
            tokio::spawn(async move {
                while let Some((at, bytes)) = due.recv().await {
                    sleep_until(at).await;
                    if to_client.write_all(&bytes).await.is_err() {
                        return;
                    }
                }
            });
            let mut some = vec![0; (self.bytes_per_second as usize / 50).clamp(1, 64 * 1024)];
            let mut free = Instant::now();
            while let Ok(count @ 1..) = from_broker.read(&mut some).await {
                let length = Duration::from_secs_f64(count as f64 / f64::from(self.bytes_per_second));
                free = free.max(Instant::now()) + length;
                sleep_until(free).await;
                if late.send((free + self.latency, some[..count].to_vec())).await.is_err() {
                    return;
                }
            }
        });
        here
    }
}
