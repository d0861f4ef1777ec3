//! Two ends of one socket.

use std::sync::Arc;

use tenure_proto::limits::RELAY_STREAMS_PER_SOCKET;
use tenure_proto::relay::Verdict;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_util::sync::CancellationToken;

use crate::{
    Incoming, Mux, OpenError, Side, Tally, read_frame, socket_config, start, start_counted, write_frame,
};

async fn ends(stop: &CancellationToken) -> ((Mux, Incoming), (Mux, Incoming)) {
    let (near, far) = duplex(64 * 1024);
    let ws = async |stream: DuplexStream, role| {
        WebSocketStream::from_raw_socket(stream, role, Some(socket_config())).await
    };
    let (mux, incoming, carrying) = start(ws(near, Role::Client).await, Side::Dialled, stop.clone());
    tokio::spawn(carrying);
    let (other, arriving, carrying) =
        start(ws(far, Role::Server).await, Side::Answered, CancellationToken::new());
    tokio::spawn(carrying);
    ((mux, incoming), (other, arriving))
}

#[tokio::test]
async fn streams_carry_bytes_both_ways_beside_each_other() {
    let ((near, _in), (_far, mut arriving)) = ends(&CancellationToken::new()).await;
    tokio::spawn(async move {
        while let Some(mut stream) = arriving.recv().await {
            tokio::spawn(async move {
                let mut all = Vec::new();
                stream.read_to_end(&mut all).await.unwrap();
                stream.write_all(&all).await.unwrap();
                stream.shutdown().await.unwrap();
            });
        }
    });
    let streams = (0..20u8).map(|n| {
        let near = near.clone();
        async move {
            let mut stream = near.open().await.unwrap();
            let sent = vec![n; 100_000];
            stream.write_all(&sent).await.unwrap();
            stream.shutdown().await.unwrap();
            let mut heard = Vec::new();
            stream.read_to_end(&mut heard).await.unwrap();
            assert!(heard == sent, "{n}");
        }
    });
    futures_util::future::join_all(streams).await;
}

#[tokio::test]
async fn a_stream_that_nobody_reads_stops_only_itself() {
    let ((near, _in), (_far, mut arriving)) = ends(&CancellationToken::new()).await;
    let mut stuck = near.open().await.unwrap();
    let filling = tokio::spawn(async move {
        loop {
            stuck.write_all(&[0; 8192]).await.unwrap();
        }
    });
    let unread = arriving.recv().await.unwrap();
    let mut stream = near.open().await.unwrap();
    write_frame(&mut stream, &Verdict::yes()).await.unwrap();
    let mut other = arriving.recv().await.unwrap();
    assert!(read_frame::<Verdict>(&mut other).await.unwrap().ok);
    write_frame(&mut other, &Verdict::yes()).await.unwrap();
    assert!(read_frame::<Verdict>(&mut stream).await.unwrap().ok);
    assert!(!filling.is_finished());
    drop(unread);
    filling.abort();
}

#[tokio::test]
async fn what_nobody_reads_is_counted_until_it_is_read_or_dropped() {
    const SENT: usize = 100_000;
    let tally = Arc::new(Tally::default());
    let (near, far) = duplex(64 * 1024);
    let ws = async |stream: DuplexStream, role| {
        WebSocketStream::from_raw_socket(stream, role, Some(socket_config())).await
    };
    let stop = CancellationToken::new();
    let (mux, _in, carrying) = start(ws(near, Role::Client).await, Side::Dialled, stop.clone());
    tokio::spawn(carrying);
    let (_other, mut arriving, carrying) =
        start_counted(ws(far, Role::Server).await, Side::Answered, stop, tally.clone());
    tokio::spawn(carrying);
    let mut sender = mux.open().await.unwrap();
    sender.write_all(&[7; SENT]).await.unwrap();
    sender.flush().await.unwrap();
    let mut other = arriving.recv().await.unwrap();
    let load = other.load();
    tally.grown().await;
    while load.bytes() < SENT {
        tokio::task::yield_now().await;
    }
    assert_eq!((load.bytes(), tally.bytes()), (SENT, SENT));
    other.read_exact(&mut [0; SENT / 2]).await.unwrap();
    assert_eq!((load.bytes(), tally.bytes()), (SENT / 2, SENT / 2));
    // What is written and has left is not held either, whoever reads it.
    other.write_all(&[7; 1_000]).await.unwrap();
    sender.read_exact(&mut [0; 1_000]).await.unwrap();
    assert_eq!(tally.bytes(), SENT / 2);
    drop(other);
    assert_eq!((load.bytes(), tally.bytes()), (0, 0));
}

#[tokio::test]
async fn a_socket_carries_so_many_streams_and_no_more() {
    let ((near, _in), (_far, mut arriving)) = ends(&CancellationToken::new()).await;
    let answering = tokio::spawn(async move {
        let mut all = Vec::new();
        while let Some(mut stream) = arriving.recv().await {
            // The library opens only so many that are not answered yet.
            write_frame(&mut stream, &Verdict::yes()).await.unwrap();
            all.push(stream);
        }
        all.len()
    });
    let mut open = Vec::new();
    for _ in 0..RELAY_STREAMS_PER_SOCKET {
        let mut stream = near.open().await.unwrap();
        write_frame(&mut stream, &Verdict::yes()).await.unwrap();
        read_frame::<Verdict>(&mut stream).await.unwrap();
        open.push(stream);
    }
    assert_eq!(near.open().await.unwrap_err(), OpenError::Full);
    open.pop();
    let mut again = near.open().await.unwrap();
    write_frame(&mut again, &Verdict::yes()).await.unwrap();
    drop((open, again, near));
    assert!(answering.await.unwrap() >= RELAY_STREAMS_PER_SOCKET);
}

#[tokio::test]
async fn whoever_hears_late_that_streams_are_over_takes_new_ones() {
    let ((near, _in), (_far, mut arriving)) = ends(&CancellationToken::new()).await;
    let (mut open, mut held) = (Vec::new(), Vec::new());
    // Some more than one end may have open: the other still has those that were given up.
    for n in 0..RELAY_STREAMS_PER_SOCKET + 100 {
        if n >= RELAY_STREAMS_PER_SOCKET {
            open.pop();
        }
        let mut stream = near.open().await.unwrap();
        write_frame(&mut stream, &Verdict::yes()).await.unwrap();
        let mut other = arriving.recv().await.unwrap();
        write_frame(&mut other, &Verdict::yes()).await.unwrap();
        assert!(read_frame::<Verdict>(&mut stream).await.unwrap().ok, "{n} is not cut");
        open.push(stream);
        held.push(other);
    }
}

#[tokio::test]
async fn many_streams_that_come_at_once_are_all_there() {
    let ((near, _in), (_far, mut arriving)) = ends(&CancellationToken::new()).await;
    let opening = (0..200).map(|_| async {
        let mut stream = near.open().await.unwrap();
        stream.announce().await.unwrap();
        stream
    });
    let streams = futures_util::future::join_all(opening).await;
    // Nobody has taken any of them so far; each is told something.
    for _ in 0..streams.len() {
        let mut other = arriving.recv().await.unwrap();
        write_frame(&mut other, &Verdict::yes()).await.unwrap();
        other.shutdown().await.unwrap();
    }
    for mut stream in streams {
        assert!(read_frame::<Verdict>(&mut stream).await.unwrap().ok);
    }
}

#[tokio::test]
async fn a_stream_that_only_listens_is_heard_of() {
    let ((near, _in), (_far, mut arriving)) = ends(&CancellationToken::new()).await;
    let mut stream = near.open().await.unwrap();
    stream.announce().await.unwrap();
    let mut other = arriving.recv().await.unwrap();
    write_frame(&mut other, &Verdict::yes()).await.unwrap();
    assert!(read_frame::<Verdict>(&mut stream).await.unwrap().ok);
}

#[tokio::test]
async fn streams_end_with_their_socket() {
    let stop = CancellationToken::new();
    let ((near, _in), (far, mut arriving)) = ends(&stop).await;
    let mut stream = near.open().await.unwrap();
    stream.write_all(b"x").await.unwrap();
    let mut other = arriving.recv().await.unwrap();
    assert_eq!(other.read_u8().await.unwrap(), b'x');
    stop.cancel();
    far.gone().await;
    assert!(other.read_u8().await.is_err(), "nothing comes any more");
    assert!(arriving.recv().await.is_none());
    assert_eq!(far.open().await.unwrap_err(), OpenError::Gone);
    assert!(near.is_gone());
}

#[tokio::test]
async fn what_is_no_frame_is_not_read_as_one() {
    let mut long: &[u8] = &[0xff, 0xff, 0];
    assert!(read_frame::<Verdict>(&mut long).await.is_err());
    let mut none: &[u8] = &[0, 0];
    assert!(read_frame::<Verdict>(&mut none).await.is_err());
    let mut short: &[u8] = &[0, 9, b'{'];
    assert!(read_frame::<Verdict>(&mut short).await.is_err());
    let mut other: &[u8] = &[0, 2, b'{', b'}'];
    assert!(read_frame::<Verdict>(&mut other).await.is_err());
}
