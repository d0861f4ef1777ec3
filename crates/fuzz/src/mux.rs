//! The byte stream of the relay's multiplexer: a WebSocket whose messages are an attacker's.

use std::time::Duration;

use futures_util::SinkExt;
use tenure_mux::{Side, read_frame, socket_config, start};
use tenure_proto::relay::{StreamOpen, Verdict};
use tokio::io::{AsyncReadExt, duplex};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_util::sync::CancellationToken;

/// Bytes of one message.
const PIECE: usize = 97;

/// Gives the bytes to the end that answered, in messages of [`PIECE`] bytes; then the other end goes away. The carrier must
/// end, whatever came.
pub(crate) fn run(bytes: &[u8]) {
    // A clock that jumps: what waits for a time is over at once, and the input alone decides.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let Ok(runtime) = runtime else { return };
    runtime.block_on(async {
        let ended = tokio::time::timeout(Duration::from_secs(600), carry(bytes)).await;
        assert!(ended.is_ok(), "the socket is gone, and the carrier goes on");
    });
}

async fn carry(bytes: &[u8]) {
    let (near, far) = duplex(64 * 1024);
    let ours = WebSocketStream::from_raw_socket(near, Role::Server, Some(socket_config())).await;
    let mut theirs = WebSocketStream::from_raw_socket(far, Role::Client, Some(socket_config())).await;
    let (mux, mut incoming, carrying) = start(ours, Side::Answered, CancellationToken::new());
    let streams = async {
        while let Some(mut stream) = incoming.recv().await {
            // What stands before a stream's bytes, then the bytes; neither may hang or panic.
            let read = async {
                let _ = read_frame::<StreamOpen>(&mut stream).await;
                let _ = read_frame::<Verdict>(&mut stream).await;
                let mut rest = Vec::new();
                let _ = (&mut stream).take(64 * 1024).read_to_end(&mut rest).await;
            };
            let _ = tokio::time::timeout(Duration::from_secs(1), read).await;
        }
    };
    let sending = async {
        for piece in bytes.chunks(PIECE) {
            let message = Message::Binary(piece.to_vec().into());
            if theirs.send(message).await.is_err() {
                break;
            }
        }
        let _ = theirs.close(None).await;
        drop(theirs);
    };
    let holding = async {
        // Whoever holds the mux keeps it going; it is the socket that ends it.
        mux.gone().await;
        drop(mux);
    };
    let _ = tokio::join!(carrying, streams, sending, holding);
}
