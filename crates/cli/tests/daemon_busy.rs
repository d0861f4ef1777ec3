//! A daemon that is too busy for a moment: what was handed to it is not given up, and its id is told.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Output, Stdio};
use std::sync::mpsc::{Receiver, channel};

use common::World;
use common::host::stderr;
use serde_json::{Value, json};

/// What came with one request: its first line and headers, and its body.
type Asked = (String, Value);

/// Answers one request after the other with these, as a daemon would, and tells what was asked.
fn daemon(world: &World, answers: &[(u16, Value)]) -> Receiver<Asked> {
    let listener = UnixListener::bind(world.home().join("daemon.sock")).unwrap();
    let mut answers: VecDeque<(u16, Value)> = answers.to_vec().into();
    let (asked, told) = channel();
    std::thread::spawn(move || {
        while !answers.is_empty() {
            let (socket, _) = listener.accept().unwrap();
            // Who only looks whether somebody listens says nothing.
            if let Some(request) = read(&socket) {
                let (status, body) = answers.pop_front().unwrap();
                let (body, mut socket) = (body.to_string(), socket);
                let head =
                    format!("HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {}", body.len());
                socket.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
                asked.send(request).unwrap();
            }
        }
    });
    told
}

fn read(socket: &UnixStream) -> Option<Asked> {
    let (mut reader, mut head, mut length) = (BufReader::new(socket), String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap() == 0 {
            return None;
        }
        if let Some(bytes) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = bytes.trim().parse().unwrap();
        }
        if line == "\r\n" {
            break;
        }
        head += &line;
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    Some((head, serde_json::from_slice(&body).unwrap_or_default()))
}

fn run(world: &World, args: &[&str]) -> Output {
    let mut command = world.tenure(args);
    command.env("TENURE_SESSION", "").stdin(Stdio::null()).output().unwrap()
}

fn busy(status: u16) -> (u16, Value) {
    (status, json!({"status": status, "code": "busy", "detail": "try again", "retryable": true}))
}

fn queued() -> (u16, Value) {
    (202, json!({"clientMessageId": "a", "status": "queued"}))
}

#[test]
fn what_a_busy_daemon_did_not_take_is_handed_over_again_under_one_id() {
    let world = World::new();
    let asked = daemon(&world, &[busy(429), busy(429), queued()]);
    let output = run(&world, &["send", "topic:jobs", "x"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let asked: Vec<Asked> = asked.iter().collect();
    let id = String::from_utf8(output.stdout).unwrap();
    let ids: Vec<&str> = asked.iter().map(|(_, body)| body["clientMessageId"].as_str().unwrap()).collect();
    assert_eq!(ids, [id.trim(); 3]);
    let heads = asked.iter().map(|(head, _)| head.to_ascii_lowercase());
    assert_eq!(heads.filter(|head| head.contains("tenure-session")).count(), 0, "an empty token is none");
}

#[test]
fn a_busy_daemon_is_asked_again_about_what_it_has() {
    let world = World::new();
    let done = (200, json!({"id": 1, "status": "done", "brokerMessageId": "B"}));
    let asked = daemon(&world, &[queued(), busy(429), busy(503), done]);
    let output = run(&world, &["send", "topic:jobs", "x", "--id", "a", "--wait"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(output.stdout, b"B\n");
    assert_eq!(asked.iter().count(), 4);
}

#[test]
fn whatever_becomes_of_the_waiting_the_id_is_told() {
    let world = World::new();
    let damaged = (500, json!({"status": 500, "code": "damaged", "detail": "no", "retryable": false}));
    let _asked = daemon(&world, &[queued(), damaged]);
    let output = run(&world, &["send", "topic:jobs", "x", "--id", "a", "--wait"]);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), b"a\n".as_slice()));
}

#[test]
fn an_id_that_cannot_be_written_down_is_a_failure() {
    let world = World::new();
    let _asked = daemon(&world, &[queued()]);
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = world.tenure(&["send", "topic:jobs", "x"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("write to standard output"), "{}", stderr(&output));
}
