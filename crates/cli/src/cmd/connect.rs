//! `tenure connect`: a byte stream to a service of the mesh, encrypted from end to end.

use std::io::{Read, Write};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use clap::Args as ClapArgs;
use serde_json::json;
use tenure_client::proto::WireError;
use tenure_client::proto::ids::MemberKey;
use tenure_client::proto::name::ServiceName;
use tenure_client::relay::{Channel, Connector, Expect, PinError, Pinned, Pins, RelayError};
use tokio::io::{AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::TaskTracker;

use super::Where;
use super::guest::{Guest, Stay, Who};
use crate::exit::Failure;
use crate::home::Home;
use crate::output::{println, sentence};
use crate::signals::{Signals, interruptible};

/// How long a request of this command may take: a stale service is waited for.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes between standard input and the stream.
const PIECE: usize = 32 * 1024;

/// Reach a service of the mesh: every connection to --listen becomes a stream to it, or else standard input and output do.
/// Streams are encrypted from end to end. Whose the name is, is remembered at its first use; somebody else's is refused.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples: tenure connect db --listen 127.0.0.1:5433\n          \
                        ssh -o ProxyCommand='tenure connect ssh-box' me@box")]
pub(crate) struct Args {
    #[command(flatten)]
    at: Where,
    /// The service
    name: String,
    /// Listen here, and lead each connection to the service
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<String>,
    /// Whose the service must be, whatever was before: a member's key
    #[arg(long, value_name = "MEMBER")]
    expect_member: Option<String>,
    /// Print one JSON object a line; with --listen
    #[arg(long, requires = "listen")]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    interruptible(async move |mut signals| connect(args, &mut signals).await)
}

async fn connect(args: Args, signals: &mut Signals) -> Result<(), Failure> {
    let name: ServiceName = args.name.parse().map_err(|error: WireError| Failure::Usage(error.message))?;
    let expect = match &args.expect_member {
        None => Expect::Pinned(Pins::new(Home::find()?.path().join("known-services"))),
        Some(text) => {
            let help = || {
                Failure::Usage(format!("--expect-member takes a member's key, 64 hex digits, not {text:?}"))
            };
            Expect::Member(text.parse::<MemberKey>().map_err(|_| help())?)
        }
    };
    let listener = match &args.listen {
        None => None,
        Some(at) => {
            let failed = |error| Failure::Failed(format!("listen on {at}: {error}"));
            Some(TcpListener::bind(at.replace("localhost", "127.0.0.1")).await.map_err(failed)?)
        }
    };
    let talks = listener.is_some();
    let stay = Stay { patience: PATIENCE, talks, ..Stay::default() };
    let guest = signals.unless(args.at.enter(Who::Visit("connect"), stay)).await?;
    let connector = Connector::new(&guest.session, name.clone(), expect);
    let outcome = match listener {
        Some(listener) => serve(&connector, &name, listener, args.json, &guest, signals).await,
        None => {
            // `stdio` is not resumed after a signal, so it need not be cancel-safe: the process is about to end.
            tokio::select! {
                outcome = stdio(&connector, &name, &guest) => outcome,
                () = signals.recv() => Ok(()),
            }
        }
    };
    drop(connector);
    guest.leave_soon(signals).await;
    outcome
}

/// What it means for the exit code that no stream was had.
fn failure(error: RelayError, guest: &Guest) -> Failure {
    match error {
        RelayError::Refused(error) => guest.failure(&error),
        RelayError::Pin(error @ PinError::File(..)) => Failure::Failed(error.to_string()),
        RelayError::Pin(error) => Failure::Refused(error.to_string()),
        RelayError::Noise(_) => Failure::Refused(error.to_string()),
        RelayError::Broken(text) => Failure::Failed(sentence(&text)),
    }
}

/// Says whose the service is, when that is new.
fn greet(name: &ServiceName, channel: &Channel) {
    if channel.pinned == Some(Pinned::First) {
        eprintln!("{name} is offered by member {}; from here on by nobody else", channel.peer.member);
    }
}

/// Standard input and output as one stream.
async fn stdio(connector: &Connector, name: &ServiceName, guest: &Guest) -> Result<(), Failure> {
    let channel = connector.open().await.map_err(|error| failure(error, guest))?;
    greet(name, &channel);
    let (done, over) = oneshot::channel();
    // A task of its own: a reader of ours that does not read holds up nothing but this.
    let mut carrying = tokio::spawn(channel.carry(stdin(), Stdout { done: Some(done) }));
    // Both are cancel-safe: the task goes on without its handle. What the service had to say is out when it is over, as
    // with any connection that ends.
    tokio::select! {
        outcome = &mut carrying => match outcome {
            Ok(outcome) => outcome.map_err(|error| failure(error, guest)),
            Err(error) => Err(Failure::Failed(format!("carry the stream: {error}"))),
        },
        Ok(()) = over => Ok(()),
    }
}

/// Standard input. It is read by a thread of its own: one that waits for somebody who types keeps no process from ending.
fn stdin() -> DuplexStream {
    let (near, mut far) = tokio::io::duplex(PIECE);
    let (pieces, mut read) = mpsc::channel::<Vec<u8>>(4);
    std::thread::spawn(move || {
        let mut piece = vec![0; PIECE];
        let mut input = std::io::stdin().lock();
        while let Ok(length @ 1..) = input.read(&mut piece) {
            if pieces.blocking_send(piece[..length].to_vec()).is_err() {
                return;
            }
        }
    });
    tokio::spawn(async move {
        while let Some(piece) = read.recv().await {
            if far.write_all(&piece).await.is_err() {
                return;
            }
        }
        let _ = far.shutdown().await;
    });
    near
}

/// Standard output; tells when it has nothing more to write.
struct Stdout {
    done: Option<oneshot::Sender<()>>,
}

impl AsyncWrite for Stdout {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        Poll::Ready(tokio::task::block_in_place(|| std::io::stdout().write(buf)))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(tokio::task::block_in_place(|| std::io::stdout().flush()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        std::task::ready!(self.as_mut().poll_flush(cx))?;
        if let Some(done) = self.done.take() {
            let _ = done.send(());
        }
        Poll::Ready(Ok(()))
    }
}

/// Each connection to `listener` as a stream, until told to stop.
async fn serve(
    connector: &Connector,
    name: &ServiceName,
    listener: TcpListener,
    json: bool,
    guest: &Guest,
    signals: &mut Signals,
) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::Failed(format!("listen: {error}"));
    let at = listener.local_addr().map_err(failed)?.to_string();
    if json {
        println(&json!({"event": "ready", "name": name, "listen": at}).to_string());
    } else {
        println(&format!("{at} leads to {name}"));
    }
    let tasks = TaskTracker::new();
    loop {
        // Both are cancel-safe.
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => _ = tasks.spawn(lead(connector.clone(), name.clone(), stream)),
                Err(error) => {
                    // One refused connection is its own problem; none at all passes.
                    eprintln!("accept a connection: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            // Without its session there will never be another stream.
            end = guest.over() => return Err(end.into()),
            () = signals.recv() => return Ok(()),
        }
    }
}

async fn lead(connector: Connector, name: ServiceName, stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    match connector.open().await {
        Ok(channel) => {
            greet(&name, &channel);
            let (near_in, near_out) = stream.into_split();
            if let Err(error) = channel.carry(near_in, near_out).await {
                eprintln!("a stream to {name} broke: {}", sentence(&error.to_string()));
            }
        }
        Err(error) => eprintln!("no stream to {name}: {}", sentence(&error.to_string())),
    }
}
