//! The floor: a WebSocket server on the broker's own stack that does nothing but echo.
//!
//! hyper accepts and upgrades, axum and tungstenite frame, with the broker's buffers of 4 KiB. Whatever a
//! session costs beyond this is ours.

use std::net::SocketAddr;
use std::process::{Child, Command};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::response::Response;
use axum::routing::get;
use futures_util::{FutureExt, SinkExt, StreamExt};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tenure_client::proto::codec::Codec;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message as ClientMessage;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

use crate::broker::spawn_until_ready;
use crate::proc;

/// Bytes of a socket's buffers, as in the broker.
const BUFFER: usize = 4 * 1024;
/// Where what came together is answered together.
pub const TOGETHER: &str = "/together";
/// Bytes of the one message that every connection echoes.
const ECHO: usize = 200;
/// Connections that are opened at a time.
const OPENING: usize = 64;

/// What the bare server costs.
#[derive(Clone, Copy, Debug)]
pub struct Floor {
    pub empty_bytes: u64,
    pub full_bytes: u64,
}

/// How the bare server answers.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Args {
    /// Answer with so many of the first bytes of what was sent, instead of all of them
    #[arg(long, value_name = "BYTES")]
    answer: Option<usize>,
    /// Where to listen
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
}

/// Serves until killed; prints its address when ready.
pub async fn serve(args: Args) -> Result<()> {
    let listener = TcpListener::bind(args.listen).await.context("listen")?;
    println!("{}", listener.local_addr()?);
    let one_by_one = move |upgrade: WebSocketUpgrade| async move { answer(upgrade, args.answer, false) };
    let together = move |upgrade: WebSocketUpgrade| async move { answer(upgrade, args.answer, true) };
    let routes = Router::new().route("/", get(one_by_one)).route(TOGETHER, get(together));
    let service = TowerToHyperService::new(routes);
    loop {
        let (stream, _) = listener.accept().await.context("accept")?;
        stream.set_nodelay(true)?;
        let connection = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service.clone())
            .with_upgrades();
        tokio::spawn(connection);
    }
}

fn answer(upgrade: WebSocketUpgrade, len: Option<usize>, gathers: bool) -> Response {
    upgrade
        .protocols([Codec::MsgPack.subprotocol()])
        .read_buffer_size(BUFFER)
        .write_buffer_size(BUFFER)
        .on_upgrade(move |ws| echo(ws, len.unwrap_or(usize::MAX), gathers))
}

/// Answers one by one, as anybody would write it; or together what came together, as the broker does.
async fn echo(mut ws: WebSocket, len: usize, gathers: bool) {
    let mut next = None;
    loop {
        let message = match next.take() {
            Some(message) => message,
            None => ws.recv().await,
        };
        let Some(Ok(message)) = message else { return };
        let answer = match message {
            Message::Binary(bytes) => Message::Binary(bytes.slice(..bytes.len().min(len))),
            Message::Text(text) => Message::Text(text),
            _ => continue,
        };
        if ws.feed(answer).await.is_err() {
            return;
        }
        if gathers {
            next = ws.recv().now_or_never();
        }
        if next.is_none() && ws.flush().await.is_err() {
            return;
        }
    }
}

/// The bare server in a process of its own; it ends with this.
#[derive(Debug)]
pub struct EchoServer {
    server: Server,
    pub address: String,
}

impl EchoServer {
    /// Starts one that answers with `answer` bytes.
    pub fn start(answer: usize) -> Result<EchoServer> {
        let us = std::env::current_exe().context("find this program")?;
        let mut command = Command::new(us);
        command.args(["floor-server", "--answer", &answer.to_string()]);
        let (child, address) = spawn_until_ready(&mut command)?;
        Ok(EchoServer { server: Server(child), address })
    }

    pub fn pid(&self) -> u32 {
        self.server.0.id()
    }
}

/// Starts the bare server, opens `count` connections, lets each echo once, reads the memory.
pub async fn measure(count: usize) -> Result<Floor> {
    let us = std::env::current_exe().context("find this program")?;
    let (child, address) = spawn_until_ready(Command::new(us).arg("floor-server"))?;
    let server = Server(child);
    let empty_bytes = proc::rss_bytes(server.0.id())?;
    let opening = Arc::new(Semaphore::new(OPENING));
    let mut tasks = Vec::with_capacity(count);
    for _ in 0..count {
        let permit = opening.clone().acquire_owned().await?;
        let address = address.clone();
        tasks.push(tokio::spawn(async move {
            let ws = open(&address).await;
            drop(permit);
            ws
        }));
    }
    let mut open = Vec::with_capacity(count);
    for task in tasks {
        open.push(task.await?.context("connect to the bare server")?);
    }
    let full_bytes = proc::rss_bytes(server.0.id())?;
    Ok(Floor { empty_bytes, full_bytes })
}

/// The bare server's process; it ends with the measurement.
#[derive(Debug)]
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn open(address: &str) -> Result<WebSocketStream<TcpStream>> {
    let stream = TcpStream::connect(address).await?;
    let config = WebSocketConfig::default().read_buffer_size(BUFFER).write_buffer_size(BUFFER);
    let url = format!("ws://{address}/");
    let (mut ws, _) = tokio_tungstenite::client_async_with_config(url, stream, Some(config)).await?;
    ws.send(ClientMessage::text("e".repeat(ECHO))).await?;
    let answer = ws.next().await.context("the bare server closed")??;
    ensure!(answer.len() == ECHO, "the bare server's echo is wrong");
    Ok(ws)
}
