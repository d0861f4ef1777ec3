//! A broker that speaks TLS, and our own commands with it: believed by its authority only, from the first word to the relay.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::process::{Command, Output, Stdio};

use common::proc::Proc;
use common::{World, patience};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

fn cert(name: &str) -> String {
    format!("{}/tests/certs/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// A broker with the certificate, and where it is.
async fn broker(world: &World) -> (Proc, String) {
    let (cert, key) = (cert("broker.pem"), cert("broker.key"));
    let args = ["broker", "--json", "--listen", "127.0.0.1:0", "--tls-cert", &cert, "--tls-key", &key];
    let mut proc = Proc::spawn("broker", world.tenure(&args));
    let ready = proc.until("ready", |line| line["event"] == "ready").await;
    let url = format!("wss://{}", ready["listen"].as_str().expect("an address"));
    (proc, url)
}

/// `tenure` at this broker, believing the authority that signed its certificate.
fn at(world: &World, url: &str, args: &[&str]) -> Command {
    let mut command = world.tenure(args);
    command.env("TENURE_BROKER", url).env("TENURE_CA", cert("ca.pem"));
    command
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[track_caller]
fn good(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", words(&output));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[tokio::test]
async fn a_mesh_behind_tls_is_made_joined_and_used() {
    let (world, guest) = (World::new(), World::new());
    let (_broker, url) = broker(&world).await;
    good(at(&world, &url, &["mesh", "create", "team"]));
    let link = good(at(&world, &url, &["invite", "--mesh", "team"]));
    assert!(link.starts_with(&format!("{url}#")), "{link}");

    // Whoever joins says whom to believe once; later commands know.
    let ca = cert("ca.pem");
    good(guest.tenure(&["join", &link, "--ca", &ca]));
    good(guest.tenure(&["peers"]));
    good(guest.tenure(&["send", "topic:news", "hello"]));
    assert!(good(at(&world, &url, &["history", "news", "--mesh", "team"])).contains("hello"));
}

#[tokio::test]
async fn a_broker_that_is_not_believed_hears_nothing() {
    let world = World::new();
    let (_broker, url) = broker(&world).await;
    // The system's authorities did not sign it, and neither did this one.
    let wrong = cert("broker.pem");
    for ca in [&["peers", "--broker", &url][..], &["peers", "--broker", &url, "--ca", &wrong]] {
        let output = world.run(ca);
        let told = words(&output);
        assert!(!output.status.success() && told.contains("is not believed"), "{told}");
    }
    let torn = world.home().join("torn.pem");
    std::fs::write(&torn, "nothing").unwrap();
    for missing in [torn.to_str().unwrap(), "/nowhere/ca.pem"] {
        let output = world.run(&["peers", "--broker", &url, "--ca", missing]);
        assert_eq!(output.status.code(), Some(2), "{}", words(&output));
    }
    // In the clear it says nothing that we take for an answer.
    let output = world.run(&["peers", "--broker", &url.replace("wss://", "ws://")]);
    assert!(!output.status.success(), "{}", words(&output));
}

#[tokio::test]
async fn a_stream_goes_through_the_relay_of_a_broker_with_tls() {
    let world = World::new();
    let (_broker, url) = broker(&world).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = listener.local_addr().unwrap().to_string();
    // Also those that only look whether somebody is there.
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut all = Vec::new();
                if stream.read_to_end(&mut all).await.is_ok() {
                    all.reverse();
                    let _ = stream.write_all(&all).await;
                }
            });
        }
    });
    let mut expose = Proc::spawn("expose", at(&world, &url, &["expose", &target, "--name", "db", "--json"]));
    expose.until("ready", |line| line["event"] == "ready").await;
    let mut connect = tokio::process::Command::from(at(&world, &url, &["connect", "db"]))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    connect.stdin.take().unwrap().write_all(b"abc").await.unwrap();
    let output =
        tokio::time::timeout(patience(), connect.wait_with_output()).await.expect("it ends").unwrap();
    assert_eq!(output.stdout, b"cba", "{}", words(&output));
}
