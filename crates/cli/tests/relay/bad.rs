//! What must not pass: requests that can be read in two ways, and more of anything than is good.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::asking::{ask, get};
use crate::stage::{Stage, mirror, target};

/// Requests that two readers would read differently, each with a second one hidden in it.
const CORPUS: &[(&str, &str)] = &[
    (
        "CL.TE",
        "POST / HTTP/1.1\r\nHost: web.localhost\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nG",
    ),
    (
        "TE.CL",
        "POST / HTTP/1.1\r\nHost: web.localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n5c\r\nGET /admin HTTP/1.1\r\n",
    ),
    (
        "TE.TE",
        "POST / HTTP/1.1\r\nHost: web.localhost\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n",
    ),
    (
        "two lengths",
        "POST / HTTP/1.1\r\nHost: web.localhost\r\nContent-Length: 0\r\nContent-Length: 30\r\n\r\nGET /admin HTTP/1.1\r\n\r\n",
    ),
    (
        "two equal lengths",
        "POST / HTTP/1.1\r\nHost: web.localhost\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx",
    ),
    ("a list of lengths", "POST / HTTP/1.1\r\nHost: web.localhost\r\nContent-Length: 1, 1\r\n\r\nx"),
    ("a signed length", "POST / HTTP/1.1\r\nHost: web.localhost\r\nContent-Length: +1\r\n\r\nx"),
    (
        "white space before the colon",
        "POST / HTTP/1.1\r\nHost: web.localhost\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "a folded header",
        "POST / HTTP/1.1\r\nHost: web.localhost\r\nX: y\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    ("a bare line feed", "GET / HTTP/1.1\r\nHost: web.localhost\r\nX: y\nTransfer-Encoding: chunked\r\n\r\n"),
    ("a bare carriage return", "GET / HTTP/1.1\r\nHost: web.localhost\r\nX: y\rZ: 1\r\n\r\n"),
    ("a null", "GET / HTTP/1.1\r\nHost: web.localhost\r\nX: \0\r\n\r\n"),
    ("two hosts", "GET / HTTP/1.1\r\nHost: web.localhost\r\nHost: other.localhost\r\n\r\n"),
    ("another target", "GET http://other.localhost/ HTTP/1.1\r\nHost: web.localhost\r\n\r\n"),
    ("no host", "GET / HTTP/1.1\r\n\r\n"),
    (
        "chunks in HTTP/1.0",
        "POST / HTTP/1.0\r\nHost: web.localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "another coding",
        "POST / HTTP/1.1\r\nHost: web.localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    ),
    ("HTTP/0.9", "GET /\r\n"),
    ("a late HTTP/2", "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n"),
];

#[tokio::test]
async fn what_can_be_read_in_two_ways_is_refused_and_reaches_nobody() {
    let stage = Stage::new().await;
    let (heard, mut reached) = tokio::sync::mpsc::unbounded_channel();
    let counting = target(move |mut stream: TcpStream| {
        let heard = heard.clone();
        async move {
            let mut all = Vec::new();
            let _ = stream.read_to_end(&mut all).await;
            // The probe of the publisher says nothing.
            if !all.is_empty() {
                let _ = heard.send(String::from_utf8_lossy(&all).into_owned());
            }
        }
    })
    .await;
    let _web = stage.web(counting).await;
    for (name, request) in CORPUS {
        let answer = ask(stage.relay, request.as_bytes()).await;
        // What is not HTTP at all may be closed without a word.
        let closed = answer.status == 0 && matches!(*name, "a late HTTP/2");
        assert!(answer.status == 400 || closed, "{name}: {answer:?}");
        let second = ["HTTP/1.1 2", "HTTP/1.1 4"].iter().any(|line| answer.body.contains(line));
        assert!(!second, "{name} was answered twice: {answer:?}");
    }
    assert!(reached.try_recv().is_err(), "something reached the service");
}

#[tokio::test]
async fn a_refused_request_is_answered_behind_the_good_one_before_it() {
    let stage = Stage::new().await;
    let _web = stage.web(mirror().await).await;
    let good = "GET /good HTTP/1.1\r\nHost: web.localhost\r\n\r\n";
    let (_, bad) = CORPUS[0];
    let answer = ask(stage.relay, format!("{good}{bad}{good}").as_bytes()).await;
    assert_eq!(answer.status, 200);
    assert!(answer.body.starts_with("GET /good"), "{answer:?}");
    let (_, second) = answer.body.split_once("HTTP/1.1 400").expect("a second answer");
    assert!(second.contains("not both") && !second.contains("GET /good"), "{second}");
}

#[tokio::test]
async fn whoever_asks_for_another_protocol_in_vain_is_read_no_further() {
    let stage = Stage::new().await;
    let _web = stage.web(mirror().await).await;
    let (_, bad) = CORPUS[0];
    for connection in ["", "Connection: upgrade\r\n"] {
        let switch =
            format!("GET /first HTTP/1.1\r\nHost: web.localhost\r\n{connection}Upgrade: websocket\r\n\r\n");
        let answer = ask(stage.relay, format!("{switch}{bad}").as_bytes()).await;
        assert_eq!((answer.status, answer.header("connection")), (200, Some("close")), "{answer:?}");
        assert!(answer.body.starts_with("GET /first") && !answer.body.contains("HTTP/1.1 "), "{answer:?}");
    }
}

#[tokio::test]
async fn a_bad_chunk_ends_the_request() {
    let stage = Stage::new().await;
    let _web = stage.web(mirror().await).await;
    let request =
        "POST / HTTP/1.1\r\nHost: web.localhost\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n";
    let answer = ask(stage.relay, request.as_bytes()).await;
    assert!(matches!(answer.status, 0 | 400), "{answer:?}");
}

#[tokio::test]
async fn heads_and_bodies_have_bounds() {
    let stage = Stage::with(&[("TENURE_RELAY_MAX_BODY", "1000")]).await;
    let _web = stage.web(mirror().await).await;
    let get = "GET / HTTP/1.1\r\nHost: web.localhost\r\nConnection: close\r\n";
    let many = format!("{get}{}\r\n", "X: y\r\n".repeat(500));
    assert_eq!(ask(stage.relay, many.as_bytes()).await.status, 400);
    let long = format!("{get}X: {}\r\n\r\n", "y".repeat(1 << 20));
    assert_eq!(ask(stage.relay, long.as_bytes()).await.status, 400);
    let post = "POST / HTTP/1.1\r\nHost: web.localhost\r\nConnection: close\r\n";
    let sized = format!("{post}Content-Length: 1001\r\n\r\n{}", "z".repeat(1001));
    assert_eq!(ask(stage.relay, sized.as_bytes()).await.status, 413);
    let chunked = format!("{post}Transfer-Encoding: chunked\r\n\r\n3e9\r\n{}\r\n0\r\n\r\n", "z".repeat(1001));
    assert_eq!(ask(stage.relay, chunked.as_bytes()).await.status, 413);
    let fits = format!("{post}Content-Length: 1000\r\n\r\n{}", "z".repeat(1000));
    assert_eq!(ask(stage.relay, fits.as_bytes()).await.status, 200);
}

#[tokio::test]
async fn only_a_good_ticket_opens_the_door_and_only_once() {
    let stage = Stage::new().await;
    let upgrade = |authorization: &str| {
        format!(
            "GET /v1/relay HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{authorization}\r\n",
            stage.addr
        )
    };
    let status = async |authorization: String| {
        let mut stream = TcpStream::connect(stage.addr).await.unwrap();
        stream.write_all(upgrade(&authorization).as_bytes()).await.unwrap();
        let head = crate::stage::read_head(&mut stream).await;
        (crate::asking::parse(head.as_bytes()).status, stream)
    };
    assert_eq!(status(String::new()).await.0, 401);
    assert_eq!(status("Authorization: Bearer tenure-relay.v1.e30.AAAA\r\n".into()).await.0, 401);
    let (session, _events) = crate::common::join(stage.addr, "somebody").await;
    let params = serde_json::json!({"role": "publish"});
    let opened: serde_json::Value =
        session.request(tenure_client::proto::method::Method::RelayOpen, params).await.unwrap();
    let ticket = format!("Authorization: Bearer {}\r\n", opened["ticket"].as_str().unwrap());
    let (first, _open) = status(ticket.clone()).await;
    assert_eq!((first, status(ticket).await.0), (101, 401));
    assert_eq!(get(stage.relay, "/").await.status, 404, "a socket alone is no service");
}
