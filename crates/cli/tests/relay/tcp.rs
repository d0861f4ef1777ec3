//! Byte streams through `tenure connect`: encrypted, pinned, allowed.

use std::net::SocketAddr;
use std::process::Stdio;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::common::proc::Proc;
use crate::common::{World, patience};
use crate::stage::{Stage, nowhere, target};

/// A target that gives back what it gets, once it has all of it.
async fn echo() -> SocketAddr {
    target(async |mut stream: TcpStream| {
        let mut all = Vec::new();
        if stream.read_to_end(&mut all).await.is_ok() {
            let _ = stream.write_all(&all).await;
        }
    })
    .await
}

/// `tenure connect`, with `input` on its standard input; what came of it.
async fn connect(stage: &Stage, world: &World, args: &[&str], input: &[u8]) -> std::process::Output {
    let args = [&["connect"], args].concat();
    let mut command = world.tenure(&args);
    command.env("TENURE_BROKER", format!("ws://{}", stage.addr));
    let mut child = Command::from(command)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    tokio::spawn(async move {
        // One that is refused reads nothing.
        let _ = stdin.write_all(&input).await;
    });
    tokio::time::timeout(patience(), child.wait_with_output()).await.expect("it ends").unwrap()
}

fn words(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test]
async fn standard_input_and_output_are_a_stream() {
    let stage = Stage::new().await;
    let _db = stage.expose(echo().await, &["--name", "db"]).await;
    let sent: Vec<u8> = (0..500_000u32).flat_map(u32::to_le_bytes).collect();
    let output = connect(&stage, &stage.world, &["db"], &sent).await;
    assert!(output.status.success(), "{}", words(&output));
    assert!(output.stdout == sent, "{} of {} bytes", output.stdout.len(), sent.len());
    assert!(words(&output).contains("db is offered by member"), "{}", words(&output));
    let again = connect(&stage, &stage.world, &["db"], b"x").await;
    assert_eq!((again.stdout.as_slice(), words(&again).as_str()), (&b"x"[..], ""));
}

#[tokio::test]
async fn connections_to_a_port_are_streams() {
    let stage = Stage::new().await;
    let _db = stage.expose(echo().await, &["--name", "db"]).await;
    let command = stage.command(&["connect", "db", "--listen", "127.0.0.1:0", "--json"]);
    let mut proc = Proc::spawn("connect", command);
    let ready = proc.until("ready", |line| line["event"] == "ready").await;
    let at: SocketAddr = ready["listen"].as_str().unwrap().parse().unwrap();
    let streams = (0..20u8).map(|n| async move {
        let mut stream = TcpStream::connect(at).await.unwrap();
        let sent = vec![n; 100_000];
        stream.write_all(&sent).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).await.unwrap();
        assert!(heard == sent, "{n}");
    });
    tokio::time::timeout(patience(), futures_util::future::join_all(streams)).await.expect("in time");
    proc.signal("INT");
    assert_eq!(proc.exit_code().await, Some(0), "{}", proc.stderr());
}

#[tokio::test]
async fn whose_a_name_is_stays_so_and_may_be_said_before() {
    let stage = Stage::new().await;
    let db = stage.expose(echo().await, &["--name", "db"]).await;
    assert!(connect(&stage, &stage.world, &["db"], b"").await.status.success());
    let keys = stage.command(&["keys", "--json"]).output().unwrap();
    let keys: serde_json::Value = serde_json::from_slice(&keys.stdout).unwrap();
    let member = keys["member"].as_str().or_else(|| keys["member"]["key"].as_str()).unwrap().to_owned();
    assert!(connect(&stage, &stage.world, &["db", "--expect-member", &member], b"").await.status.success());
    let other = connect(&stage, &stage.world, &["db", "--expect-member", &"0".repeat(64)], b"").await;
    assert_eq!(other.status.code(), Some(4), "{}", words(&other));
    assert!(words(&other).contains(&member), "{}", words(&other));
    // The name goes to somebody else.
    let mut db = db;
    db.signal("INT");
    db.exit_code().await;
    let elsewhere = World::new();
    let target = echo().await.to_string();
    let mut command = elsewhere.tenure(&["expose", &target, "--name", "db", "--json"]);
    command.env("TENURE_BROKER", format!("ws://{}", stage.addr));
    let mut taken = Proc::spawn("expose", command);
    taken.until("ready", |line| line["event"] == "ready").await;
    let changed = connect(&stage, &stage.world, &["db"], b"secret").await;
    assert_eq!(changed.status.code(), Some(4), "{}", words(&changed));
    assert!(words(&changed).contains("was offered by member"), "{}", words(&changed));
}

#[tokio::test]
async fn only_allowed_members_get_in_and_a_dead_target_is_said() {
    let stage = Stage::new().await;
    let nobody = "1".repeat(64);
    let _db = stage.expose(echo().await, &["--name", "db", "--allow", &nobody]).await;
    let refused = connect(&stage, &stage.world, &["db"], b"x").await;
    assert_eq!(refused.status.code(), Some(4), "{}", words(&refused));
    assert!(words(&refused).contains("may not use this service"), "{}", words(&refused));
    let _dead = stage.expose(nowhere().await, &["--name", "down"]).await;
    let down = connect(&stage, &stage.world, &["down"], b"x").await;
    assert!(words(&down).contains("connection refused"), "{}", words(&down));
    let unknown = connect(&stage, &stage.world, &["nothing"], b"x").await;
    assert_eq!(unknown.status.code(), Some(4), "{}", words(&unknown));
    assert!(words(&unknown).contains("not_found"), "{}", words(&unknown));
}

#[tokio::test]
async fn a_stream_ends_with_the_service() {
    let stage = Stage::new().await;
    let endless =
        target(async |mut stream: TcpStream| while stream.write_all(&[b'z'; 8192]).await.is_ok() {}).await;
    let mut db = stage.expose(endless, &["--name", "db"]).await;
    let command = stage.command(&["connect", "db", "--listen", "127.0.0.1:0", "--json"]);
    let mut proc = Proc::spawn("connect", command);
    let ready = proc.until("ready", |line| line["event"] == "ready").await;
    let mut stream = TcpStream::connect(ready["listen"].as_str().unwrap()).await.unwrap();
    let mut piece = vec![0; 65_536];
    for _ in 0..20 {
        assert!(stream.read(&mut piece).await.unwrap() > 0);
    }
    db.signal("INT");
    let cut = async { while let Ok(1..) = stream.read(&mut piece).await {} };
    tokio::time::timeout(patience(), cut).await.expect("the stream ends");
    assert_eq!(db.exit_code().await, Some(0));
    crate::asking::until(async || proc.stderr().contains("broke").then_some(())).await;
}
