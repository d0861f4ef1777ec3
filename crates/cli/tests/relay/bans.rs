//! Bans of either end of a stream: it is cut in the middle, and there is no other.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::asking::{get, until};
use crate::common::proc::Proc;
use crate::common::{World, patience};
use crate::stage::{Stage, mirror, target};
use crate::times::endless;

/// A target that talks for ever to whoever connects.
async fn flood() -> SocketAddr {
    target(async |mut stream: TcpStream| while stream.write_all(&[b'z'; 8192]).await.is_ok() {}).await
}

/// A download that is well under way.
async fn begin(stream: &mut TcpStream) {
    let mut piece = vec![0; 65_536];
    for _ in 0..20 {
        assert!(stream.read(&mut piece).await.unwrap() > 0);
    }
}

/// It ends now, and not with a lease, which is longer than our patience.
async fn is_cut(mut stream: TcpStream) {
    let mut piece = vec![0; 65_536];
    let cut = async { while let Ok(1..) = stream.read(&mut piece).await {} };
    tokio::time::timeout(patience(), cut).await.expect("the download ends");
}

/// The command ends, says why, and listens no more.
async fn is_refused(connect: &mut Proc, at: SocketAddr, why: &str) {
    assert_eq!(connect.exit_code().await, Some(4), "{}", connect.stderr());
    assert!(connect.stderr().contains(why), "{}", connect.stderr());
    assert!(TcpStream::connect(at).await.is_err(), "it still listens");
}

#[tokio::test]
async fn a_kicked_consumer_ends() {
    let stage = Stage::new().await;
    let _db = stage.expose(flood().await, &["--name", "db"]).await;
    let world = World::new();
    let (mut kicked, at, stream) = consumer(&stage, &world).await;
    let member = member_of(&world);
    let session = until(async || session_of(&stage, &member)).await;
    let done = stage.command(&["kick", &session]).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    is_cut(stream).await;
    is_refused(&mut kicked, at, "kicked").await;
}

fn ban(stage: &Stage, subject: &str) {
    let done = stage.command(&["ban", subject]).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

fn member_of(world: &World) -> String {
    let keys = world.tenure(&["keys", "--json"]).output().unwrap();
    let keys: Value = serde_json::from_slice(&keys.stdout).unwrap();
    keys["member"].as_str().or_else(|| keys["member"]["key"].as_str()).unwrap().to_owned()
}

/// The session of a member that is here.
fn session_of(stage: &Stage, member: &str) -> Option<String> {
    let output = stage.command(&["peers", "--json"]).output().unwrap();
    let peers: Value = serde_json::from_slice(&output.stdout).unwrap();
    let list = peers.as_array().or_else(|| peers["peers"].as_array()).expect("a list").clone();
    let peer = list.into_iter().find(|peer| peer["member"] == member)?;
    peer["session"].as_str().map(str::to_owned)
}

/// Somebody else's command at the same broker.
fn elsewhere(stage: &Stage, world: &World, args: &[&str]) -> std::process::Command {
    let mut command = world.tenure(args);
    command.env("TENURE_BROKER", format!("ws://{}", stage.addr));
    command
}

/// A consumer with keys of its own, in the middle of a download from `db`.
async fn consumer(stage: &Stage, world: &World) -> (Proc, SocketAddr, TcpStream) {
    let args = ["connect", "db", "--listen", "127.0.0.1:0", "--json"];
    let mut proc = Proc::spawn("connect", elsewhere(stage, world, &args));
    let ready = proc.until("ready", |line| line["event"] == "ready").await;
    let at: SocketAddr = ready["listen"].as_str().unwrap().parse().unwrap();
    let mut stream = TcpStream::connect(at).await.unwrap();
    begin(&mut stream).await;
    (proc, at, stream)
}

#[tokio::test]
async fn a_banned_consumer_is_cut_in_the_middle_and_comes_back_to_nothing() {
    let stage = Stage::new().await;
    let _db = stage.expose(flood().await, &["--name", "db"]).await;
    let other = World::new();
    let (_goes_on, _, mut untouched) = consumer(&stage, &other).await;

    let world = World::new();
    let (mut banned, at, stream) = consumer(&stage, &world).await;
    let member = member_of(&world);
    let session = until(async || session_of(&stage, &member)).await;
    ban(&stage, &format!("session:{session}"));
    is_cut(stream).await;
    is_refused(&mut banned, at, "banned").await;

    // The member may come with another session, until it is banned itself.
    let (mut banned, at, stream) = consumer(&stage, &world).await;
    ban(&stage, &format!("member:{member}"));
    is_cut(stream).await;
    is_refused(&mut banned, at, "banned").await;
    let again = elsewhere(&stage, &world, &["connect", "db"]).output().unwrap();
    let words = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(again.status.code() == Some(4) && words.contains("banned"), "{words}");

    begin(&mut untouched).await;
}

#[tokio::test]
async fn the_downloads_of_a_banned_publisher_are_cut_and_its_names_are_nobodys() {
    let stage = Stage::new().await;
    let (publisher, to) = (World::new(), endless().await.to_string());
    let args = ["expose", &to, "--http", "--name", "web", "--json"];
    let mut proc = Proc::spawn("expose", elsewhere(&stage, &publisher, &args));
    proc.until("ready", |line| line["event"] == "ready").await;
    let mut stream = TcpStream::connect(stage.relay).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: web.localhost\r\n\r\n").await.unwrap();
    begin(&mut stream).await;
    ban(&stage, &format!("member:{}", member_of(&publisher)));
    is_cut(stream).await;
    assert_eq!(get(stage.relay, "/").await.status, 404);
    assert_ne!(proc.exit_code().await, Some(0));
    let again = elsewhere(&stage, &publisher, &args).output().unwrap();
    let words = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(again.status.code() == Some(4) && words.contains("banned"), "{words}");
}

/// Whoever asks over HTTP has no session, only an address. Linux has all of 127.0.0.0/8.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_banned_address_is_cut_and_refused_over_http() {
    let stage = Stage::new().await;
    let (_web, _mirror) =
        (stage.web(endless().await).await, stage.expose(mirror().await, &["--http", "--name", "m"]).await);
    let dial = async || {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        socket.connect(stage.relay).await.unwrap()
    };
    let request =
        |name: &str| format!("GET / HTTP/1.1\r\nHost: {name}.localhost\r\nConnection: close\r\n\r\n");
    let (mut near, mut far) = (TcpStream::connect(stage.relay).await.unwrap(), dial().await);
    for stream in [&mut near, &mut far] {
        stream.write_all(request("web").as_bytes()).await.unwrap();
        begin(stream).await;
    }
    ban(&stage, "address:127.0.0.2");
    is_cut(far).await;
    let mut again = dial().await;
    again.write_all(request("m").as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(patience(), again.read_to_end(&mut answer)).await.expect("an answer").unwrap();
    let answer = crate::asking::parse(&answer);
    assert_eq!(answer.status, 403, "{answer:?}");
    assert!(answer.body.contains("banned"), "{answer:?}");
    // Everybody else goes on.
    begin(&mut near).await;
    let mut others = TcpStream::connect(stage.relay).await.unwrap();
    others.write_all(request("m").as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(patience(), others.read_to_end(&mut answer)).await.expect("an answer").unwrap();
    assert_eq!(crate::asking::parse(&answer).status, 200);
}
