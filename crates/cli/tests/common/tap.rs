//! Somebody on the wire: carries a connection and remembers what the broker said.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A proxy that listens in.
pub(crate) struct Tap {
    pub(crate) addr: SocketAddr,
    heard: Arc<Mutex<Vec<u8>>>,
}

impl Tap {
    pub(crate) async fn start(upstream: SocketAddr) -> Tap {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("its address");
        let heard = Arc::new(Mutex::new(Vec::new()));
        let ear = heard.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, upstream, ear.clone()));
            }
        });
        Tap { addr, heard }
    }

    /// Whether the broker has said this.
    pub(crate) fn has_heard(&self, text: &str) -> bool {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&heard).contains(text)
    }

    /// The last text value of `field` that the broker has said: its frames are neither masked nor compressed.
    pub(crate) fn overheard(&self, field: &str) -> String {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&heard);
        let (_, value) = text.rsplit_once(&format!("\"{field}\":\"")).expect("it was said");
        value.split('"').next().unwrap_or_default().to_owned()
    }
}

async fn carry(client: TcpStream, upstream: SocketAddr, ear: Arc<Mutex<Vec<u8>>>) {
    let Ok(broker) = TcpStream::connect(upstream).await else { return };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_broker, mut to_broker) = broker.into_split();
    let up = async { tokio::io::copy(&mut from_client, &mut to_broker).await };
    let down = async {
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = from_broker.read(&mut buffer).await {
            ear.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&buffer[..read]);
            if to_client.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        _ = up => {}
        () = down => {}
    }
}
