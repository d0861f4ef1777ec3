//! Clients that do not say what they want: they hold a place for so long, and no longer.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::client::request;
use super::{House, house_with};

/// Short, so that the tests need not wait for what a person would.
const PATIENCE: Duration = Duration::from_millis(200);
/// How long until a test believes that nothing happens any more.
const NEVER: Duration = Duration::from_secs(30);

async fn impatient() -> House {
    house_with(|config| config.patience = PATIENCE).await
}

#[tokio::test]
async fn a_body_that_does_not_come_is_given_up_with_a_word() {
    let house = impatient().await;
    let mut socket = house.client.open().await;
    let whole = request("POST", "/v1/send", &[("Content-Type", "application/json")], b"{}");
    socket.write_all(&whole[..whole.len() - 1]).await.unwrap();
    let mut answer = String::new();
    let read = tokio::time::timeout(NEVER, socket.read_to_string(&mut answer)).await;
    read.expect("it is waited for without end").unwrap();
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    let problem: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert_eq!((&problem["code"], &problem["retryable"]), (&json!("request_timeout"), &json!(true)));
}

#[tokio::test]
async fn a_head_that_does_not_come_is_the_end_of_the_connection() {
    let house = impatient().await;
    for begun in ["", "GET /v1/version HTTP/1.1\r\nHost: loc"] {
        let mut socket = house.client.open().await;
        socket.write_all(begun.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let read = tokio::time::timeout(NEVER, socket.read_to_end(&mut answer)).await;
        assert!(read.is_ok(), "after {begun:?} it is waited for without end");
    }
    assert_eq!(house.client.get("/v1/version").await.0, 200);
}

/// More than are served at once, and none of them says anything.
#[tokio::test]
async fn a_crowd_of_silent_clients_passes() {
    let house = impatient().await;
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(house.client.open().await);
    }
    let answer = tokio::time::timeout(NEVER, house.client.get("/v1/version")).await;
    assert_eq!(answer.expect("they keep everybody out").0, 200);
}

#[tokio::test]
async fn a_reader_that_knows_numbers_of_an_inbox_that_is_gone_is_told() {
    let house = impatient().await;
    let mut socket = house.client.open().await;
    socket.write_all(&request("GET", "/v1/events", &[("Last-Event-ID", "99")], b"")).await.unwrap();
    let mut text = String::new();
    let told = async {
        while !text.contains("event: reset") {
            let mut part = [0u8; 512];
            let read = socket.read(&mut part).await.unwrap();
            assert!(read > 0, "{text}");
            text += &String::from_utf8_lossy(&part[..read]);
        }
    };
    tokio::time::timeout(NEVER, told).await.expect("it is not told");
    let (_, page) = house.client.get("/v1/inbox").await;
    assert_eq!(page["newest"], 0);
}
