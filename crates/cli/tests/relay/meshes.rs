//! Services of several meshes of one broker.

use std::net::SocketAddr;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::asking::ask;
use crate::common::proc::Proc;
use crate::stage::{Stage, read_head, target};

/// A target that answers everything with these words.
async fn saying(words: &'static str) -> SocketAddr {
    target(move |mut stream: TcpStream| async move {
        read_head(&mut stream).await;
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{words}", words.len());
        let _ = stream.write_all(answer.as_bytes()).await;
    })
    .await
}

/// Exposes `target` over HTTP as `web` in a mesh; says where it is reached.
async fn web(stage: &Stage, mesh: &str, target: SocketAddr) -> (Proc, String) {
    let target = target.to_string();
    let args = ["expose", &target, "--http", "--name", "web", "--mesh", mesh, "--json"];
    let mut proc = Proc::spawn("expose", stage.command(&args));
    let ready = proc.until("ready", |line| line["event"] == "ready").await;
    let url = ready["url"].as_str().unwrap().to_owned();
    (proc, url)
}

#[tokio::test]
async fn a_name_of_another_mesh_stands_before_that_mesh() {
    let stage = Stage::new().await;
    let made = stage.command(&["mesh", "create", "team"]).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let (_home, home) = web(&stage, "default", saying("home").await).await;
    let (team_proc, team) = web(&stage, "team", saying("team").await).await;
    let port = stage.relay.port();
    assert_eq!(home, format!("http://web.localhost:{port}/"));
    assert_eq!(team, format!("http://web.team.localhost:{port}/"));
    let get = async |host: &str| {
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let answer = ask(stage.relay, request.as_bytes()).await;
        (answer.status, answer.body)
    };
    assert_eq!(get("web.localhost").await, (200, "home".to_owned()));
    assert_eq!(get("web.team.localhost").await, (200, "team".to_owned()));
    assert_eq!(get("web.default.localhost").await, (200, "home".to_owned()));
    assert_eq!(get("web.other.localhost").await.0, 404);
    // What ends in one mesh goes on in the other.
    let mut team_proc = team_proc;
    team_proc.signal("INT");
    team_proc.exit_code().await;
    assert_eq!(get("web.team.localhost").await.0, 404);
    assert_eq!(get("web.localhost").await, (200, "home".to_owned()));
}
