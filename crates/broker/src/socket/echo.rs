//! A plain echo on the sockets' own reader and writer, so that conformance suites judge those; only with `--test-echo`.

use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite};

use super::inbound::{Came, Fault, Inbound, close_answer};
use super::pipe::{Kind, Pipe};

/// Bytes of a message.
const MESSAGE_BYTES: usize = 16 << 20;

/// Echoes messages until the client closes, or sends what is no WebSocket.
pub(crate) async fn echo(stream: impl AsyncRead + AsyncWrite + Unpin) {
    let (mut pipe, mut inbound) = (Pipe::new(stream), Inbound::new(MESSAGE_BYTES));
    pipe.trust();
    loop {
        let last = match std::future::poll_fn(|cx| next(cx, &mut pipe, &mut inbound)).await {
            Ok(Came::Message { binary, bytes }) => {
                pipe.push(if binary { Kind::Binary } else { Kind::Text }, inbound.bytes(&bytes));
                false
            }
            Ok(Came::Ping(payload)) => {
                pipe.push(Kind::Pong, inbound.bytes(&payload));
                false
            }
            Ok(Came::Pong) => false,
            Ok(Came::Close(said)) => {
                pipe.push(Kind::Close, &close_answer(inbound.bytes(&said)));
                true
            }
            Err(Some(fault)) => {
                let code: u16 = if fault == Fault::TooLarge { 1009 } else { 1002 };
                pipe.push(Kind::Close, &code.to_be_bytes());
                true
            }
            Err(None) => return,
        };
        let flushed = std::future::poll_fn(|cx| pipe.poll_flush(cx)).await;
        if last || flushed.is_err() {
            return;
        }
    }
}

/// The next thing that comes; else why nothing more does.
fn next<S: AsyncRead + Unpin>(
    cx: &mut Context<'_>,
    pipe: &mut Pipe<S>,
    inbound: &mut Inbound,
) -> Poll<Result<Came, Option<Fault>>> {
    loop {
        match inbound.next() {
            Ok(Some(came)) => return Poll::Ready(Ok(came)),
            Err(fault) => return Poll::Ready(Err(Some(fault))),
            Ok(None) => {}
        }
        match std::task::ready!(inbound.poll_fill(cx, pipe)) {
            Ok(true) => {}
            Ok(false) | Err(_) => return Poll::Ready(Err(None)),
        }
    }
}
