//! What passes: requests, answers, streams, events, sockets.

use std::sync::Arc;

use futures_util::{SinkExt, StreamExt};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio_tungstenite::tungstenite::Message;

use crate::asking::{ask, get};
use crate::stage::{Stage, mirror, nowhere, read_head, target};

#[tokio::test]
async fn a_request_passes_with_what_is_its_own_and_nothing_of_its_connection() {
    let stage = Stage::new().await;
    let _web = stage.web(mirror().await).await;
    let request = "GET /a?b=c HTTP/1.1\r\nHost: WEB.localhost:7480\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\n\
                   Keep-Alive: 9\r\nTE: trailers\r\nX-Forwarded-For: 1.2.3.4\r\nForwarded: for=1.2.3.4\r\n\
                   X-Real-IP: 1.2.3.4\r\nTrue-Client-IP: 1.2.3.4\r\nVia: 1.0 fred\r\nCookie: k=v\r\nX-Own: yes\r\n\r\n";
    let answer = ask(stage.relay, request.as_bytes()).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let seen = answer.body.to_ascii_lowercase();
    assert!(seen.starts_with("get /a?b=c http/1.1\r\n"), "{seen}");
    for line in [
        "host: web.localhost:7480",
        "cookie: k=v",
        "x-own: yes",
        "x-forwarded-for: 127.0.0.1",
        "x-forwarded-proto: http",
    ] {
        assert!(seen.contains(&format!("{line}\r\n")), "{line} in {seen}");
    }
    assert!(seen.contains("forwarded: for=127.0.0.1;host=\"web.localhost:7480\";proto=http\r\n"), "{seen}");
    assert!(seen.contains("via: 1.1 tenure-"), "{seen}");
    for gone in ["x-hop", "keep-alive", "te:", "1.2.3.4", "x-real-ip", "true-client-ip", "fred"] {
        assert!(!seen.contains(gone), "{gone} in {seen}");
    }
}

#[tokio::test]
async fn a_header_that_frames_in_disguise_reaches_no_service() {
    let stage = Stage::new().await;
    let _web = stage.web(mirror().await).await;
    for header in ["Content_Length: 3", "Transfer_Encoding: chunked"] {
        let request =
            format!("GET / HTTP/1.1\r\nHost: web.localhost\r\nConnection: close\r\n{header}\r\n\r\n");
        assert_eq!(ask(stage.relay, request.as_bytes()).await.status, 400, "{header}");
    }
}

#[tokio::test]
async fn an_answer_with_two_lengths_is_502() {
    let stage = Stage::new().await;
    let torn = target(|mut stream: TcpStream| async move {
        read_head(&mut stream).await;
        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
        stream.write_all(answer.as_bytes()).await.unwrap();
    })
    .await;
    let _web = stage.web(torn).await;
    let answer = get(stage.relay, "/").await;
    assert_eq!(answer.status, 502, "{answer:?}");
    assert!(answer.body.contains("web"), "it names the service: {answer:?}");
}

#[tokio::test]
async fn a_service_sets_cookies_for_itself_alone() {
    let stage = Stage::new().await;
    let baker = target(|mut stream: TcpStream| async move {
        read_head(&mut stream).await;
        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nSet-Cookie: wide=1; Domain=localhost; Path=/\r\n\
                      Set-Cookie: own=2; Path=/\r\n\r\n";
        stream.write_all(answer.as_bytes()).await.unwrap();
    })
    .await;
    let _web = stage.web(baker).await;
    let head = get(stage.relay, "/").await.head.to_ascii_lowercase();
    assert!(head.contains("set-cookie: wide=1; path=/\r\n"), "{head}");
    assert!(head.contains("set-cookie: own=2; path=/\r\n"), "{head}");
}

#[tokio::test]
async fn a_configured_proxy_is_believed() {
    let stage = Stage::with(&[("TENURE_RELAY_PROXIES", "127.0.0.0/8")]).await;
    let _web = stage.web(mirror().await).await;
    let request =
        "GET / HTTP/1.1\r\nHost: web.localhost\r\nConnection: close\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n";
    let seen = ask(stage.relay, request.as_bytes()).await.body.to_ascii_lowercase();
    assert!(seen.contains("x-forwarded-for: 1.2.3.4, 127.0.0.1\r\n"), "{seen}");
}

#[tokio::test]
async fn a_body_passes_whether_it_has_a_length_or_comes_in_chunks() {
    let stage = Stage::new().await;
    let _web = stage.web(mirror().await).await;
    let post = "POST / HTTP/1.1\r\nHost: web.localhost\r\nConnection: close\r\n";
    let long = "x".repeat(300_000);
    let sized = format!("{post}Content-Length: {}\r\n\r\n{long}", long.len());
    let answer = ask(stage.relay, sized.as_bytes()).await;
    assert!(answer.status == 200 && answer.body.ends_with(&long), "{}", answer.head);
    let chunked = format!("{post}Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
    let answer = ask(stage.relay, chunked.as_bytes()).await;
    assert!(answer.body.contains("hello\r\n") && answer.body.ends_with("0\r\n\r\n"), "{answer:?}");
}

#[tokio::test]
async fn an_answer_streams_while_it_is_being_made() {
    let stage = Stage::new().await;
    let more = Arc::new(Notify::new());
    let told = more.clone();
    let events = target(move |mut stream: TcpStream| {
        let told = told.clone();
        async move {
            read_head(&mut stream).await;
            let head =
                "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
            stream.write_all(head.as_bytes()).await.unwrap();
            stream.write_all(b"b\r\ndata: one\n\n\r\n").await.unwrap();
            told.notified().await;
            stream.write_all(b"b\r\ndata: two\n\n\r\n0\r\n\r\n").await.unwrap();
        }
    })
    .await;
    let _web = stage.web(events).await;
    let mut stream = TcpStream::connect(stage.relay).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: web.localhost\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut heard = String::new();
    let mut piece = [0; 1024];
    while !heard.contains("data: one") {
        let read = stream.read(&mut piece).await.unwrap();
        assert!(read > 0, "{heard}");
        heard += std::str::from_utf8(&piece[..read]).unwrap();
    }
    // The second is made only now that the first has come.
    assert!(!heard.contains("data: two"));
    more.notify_one();
    stream.read_to_string(&mut heard).await.unwrap();
    assert!(heard.contains("text/event-stream") && heard.contains("data: two"), "{heard}");
}

#[tokio::test]
async fn a_websocket_passes() {
    let stage = Stage::new().await;
    let echo = target(async |stream: TcpStream| {
        let Ok(mut ws) = tokio_tungstenite::accept_async(stream).await else { return };
        while let Some(Ok(message)) = ws.next().await {
            if message.is_text() || message.is_binary() {
                ws.send(message).await.unwrap();
            }
        }
    })
    .await;
    let _web = stage.web(echo).await;
    let stream = TcpStream::connect(stage.relay).await.unwrap();
    let (mut ws, _) = tokio_tungstenite::client_async("ws://web.localhost/chat", stream).await.unwrap();
    let long = "y".repeat(200_000);
    for text in ["hello", &long] {
        ws.send(Message::text(text)).await.unwrap();
        assert_eq!(ws.next().await.unwrap().unwrap().into_text().unwrap(), text);
    }
    ws.close(None).await.unwrap();
    while ws.next().await.is_some_and(|message| message.is_ok()) {}
}

#[tokio::test]
async fn http2_is_spoken_and_many_requests_share_a_connection() {
    let stage = Stage::new().await;
    let _web = stage.web(mirror().await).await;
    let stream = TokioIo::new(TcpStream::connect(stage.relay).await.unwrap());
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(connection);
    let asked = (0..20).map(|n| {
        let mut sender = sender.clone();
        async move {
            let request = hyper::Request::post(format!("http://web.localhost/{n}"))
                .header("cookie", "a=1")
                .header("cookie", "b=2")
                .body(http_body_util::Full::new(hyper::body::Bytes::from("body")))
                .unwrap();
            let answer = sender.send_request(request).await.unwrap();
            assert_eq!(answer.status(), 200);
            let body = http_body_util::BodyExt::collect(answer.into_body()).await.unwrap().to_bytes();
            String::from_utf8(body.to_vec()).unwrap()
        }
    });
    for (n, seen) in futures_util::future::join_all(asked).await.into_iter().enumerate() {
        assert!(seen.starts_with(&format!("POST /{n} HTTP/1.1\r\n")) && seen.ends_with("body"), "{seen}");
        assert!(seen.contains("cookie: a=1; b=2\r\n"), "{seen}");
        assert!(seen.contains("host: web.localhost\r\n"), "{seen}");
    }
}

fn problem(answer: &crate::asking::Answer) -> Value {
    assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{answer:?}");
    serde_json::from_str(&answer.body).unwrap_or_else(|_| panic!("{answer:?}"))
}

#[tokio::test]
async fn a_name_that_is_nobodys_is_404_and_a_dead_target_is_502_by_name() {
    let stage = Stage::new().await;
    let unknown = get(stage.relay, "/").await;
    assert_eq!((unknown.status, &problem(&unknown)["code"]), (404, &Value::from("not_found")));
    let host = ask(stage.relay, b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await;
    assert_eq!(host.status, 404);
    let mut web = stage.web(nowhere().await).await;
    let dead = get(stage.relay, "/").await;
    assert_eq!(dead.status, 502);
    assert!(problem(&dead)["detail"].as_str().unwrap().starts_with("web is exposed"), "{dead:?}");
    web.until("degraded", |line| line["event"] == "degraded").await;
    // The broker hears of it with the next renewal.
    crate::asking::until(async || stage.service("web").filter(|service| service["degraded"] == true)).await;
}

#[tokio::test]
async fn a_tcp_service_is_not_found_over_http() {
    let stage = Stage::new().await;
    let _db = stage.expose(mirror().await, &["--name", "web"]).await;
    assert_eq!(get(stage.relay, "/").await.status, 404);
}

#[tokio::test]
async fn a_relay_that_leads_to_itself_says_so() {
    let stage = Stage::new().await;
    let _web = stage.web(stage.relay).await;
    let answer = get(stage.relay, "/").await;
    assert_eq!(answer.status, 508, "{answer:?}");
}
