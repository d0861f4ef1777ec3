//! `attack`: clients that hoard a broker's memory or its connections, and a session that loses its socket meanwhile.
//!
//! For each attack a broker of its own, with few open files. Attackers come back as often as they are let go. In the
//! middle of it a session's socket is dropped: how long until it is back is what its user notices. The attackers then
//! leave, and what the broker still holds is read a little later.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tenure_client::proto::hello::{HelloResult, LeaseFate, ResumeParams};
use tenure_client::proto::number::U53;
use tenure_client::{InboxChoice, SigningKey};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

use crate::broker::{BrokerArgs, BrokerProcess};
use crate::proc;
use crate::report::{Cell, Report};
use crate::wire::{Wire, framed, request};

/// Messages of the topic that readers ask for, and bytes of each: one page is all of them.
const MESSAGES: usize = 8;
const MESSAGE_BYTES: usize = 120 * 1024;
/// Pages that a reader asks for and does not read.
const PAGES: usize = 16;
/// Bytes of a message that is not finished.
const FRAGMENT_BYTES: usize = 1_300_000;
/// How often an attacker shows that it is there.
const BEAT: Duration = Duration::from_secs(2);
/// How long the dropped session tries to come back.
const GIVE_UP: Duration = Duration::from_secs(60);
/// How long one try may take.
const TRY: Duration = Duration::from_secs(5);
/// How long after the attack its memory is looked at.
const AFTER: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Open files that the broker may have
    #[arg(long, default_value_t = 1_024)]
    files: u64,
    /// How long each attack goes on before the session is dropped, and at least as long again after that
    #[arg(long, value_name = "SECONDS", default_value_t = 8)]
    seconds: u64,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    broker: BrokerArgs,
}

/// One way to hoard.
#[derive(Clone, Copy, Debug)]
enum Attack {
    /// Sessions that ask for pages and never read.
    NeverRead(usize),
    /// Sessions that begin a message, and go on with pings.
    Unfinished(usize),
    /// Connections that ask for `/livez` and stay.
    KeepAlive(usize),
}

const ATTACKS: [(&str, Attack); 4] = [
    ("100 never read", Attack::NeverRead(100)),
    ("150 never read", Attack::NeverRead(150)),
    ("300 unfinished messages", Attack::Unfinished(300)),
    ("1,100 keep-alive requests", Attack::KeepAlive(1_100)),
];

/// Attacks and prints.
pub(crate) async fn run(args: Args) -> Result<()> {
    proc::check_files(1_300)?;
    let mut rows = Vec::new();
    for (name, attack) in ATTACKS {
        eprintln!("{name}");
        rows.push(suffer(&args, name, attack).await.with_context(|| name.to_owned())?);
    }
    let mut report = Report::new("attack");
    report.heading(format!("hoarders against a broker with {} open files", args.files));
    let columns = [
        ("attack", "attack"),
        ("emptyMib", "empty MiB"),
        ("peakMib", "peak MiB"),
        ("afterMib", "after MiB"),
        ("files", "open files"),
        ("backMs", "back after ms"),
        ("lease", "lease"),
    ];
    report.grid("attacks", &columns, &rows);
    report.say("after: resident 5 s after the attackers have gone");
    report.say("back: until a session that was dropped during the attack was there again");
    report.print(args.json);
    Ok(())
}

async fn suffer(args: &Args, name: &str, attack: Attack) -> Result<Vec<Cell>> {
    let broker = BrokerProcess::start(&args.broker.with_files(args.files))?;
    let (pid, address) = (broker.pid(), broker.address().to_owned());
    let empty = proc::rss_bytes(pid)?;
    let mut sender = Wire::join(&address, &tenure_client::random_key()?, "sender").await?;
    for n in 0..MESSAGES {
        let message =
            json!({"to": "topic:hoard", "clientMessageId": n.to_string(), "body": "x".repeat(MESSAGE_BYTES)});
        let _: Value = sender.ask("send", message).await?;
    }
    let key = tenure_client::random_key()?;
    let (victim, hello) = join(&address, &key, None).await?;
    let files = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    tasks.spawn(watch(pid, files.clone()));
    for _ in 0..attack.count() {
        tasks.spawn(attack.go(address.clone()));
    }
    let hold = Duration::from_secs(args.seconds);
    tokio::time::sleep(hold).await;
    let started = Instant::now();
    drop(victim);
    let (back, lease) = come_back(&address, &key, &hello, started).await?;
    tokio::time::sleep(hold).await;
    tasks.shutdown().await;
    tokio::time::sleep(AFTER).await;
    let mib = |bytes: u64| Cell::number(bytes as f64 / f64::from(1 << 20), 1);
    Ok(vec![
        Cell::text(name),
        mib(empty),
        mib(proc::peak_bytes(pid)?),
        mib(proc::rss_bytes(pid)?),
        Cell::count(files.load(Ordering::Relaxed) as f64),
        Cell::count(back.as_millis() as f64),
        Cell::text(lease),
    ])
}

/// Joins, with what an earlier hello was answered if there was one.
async fn join(address: &str, key: &SigningKey, past: Option<&HelloResult>) -> Result<(Wire, HelloResult)> {
    let resume = past.map(|past| ResumeParams {
        token: past.resume.token.clone(),
        epoch: Some(past.events.epoch.clone()),
        last_seq: Some(U53::saturating(past.events.next_seq.get().saturating_sub(1))),
    });
    let mut wire = Wire::open(address, "/v1/ws").await?;
    let hello = wire.greet(address, key, "victim", InboxChoice::None, resume).await?;
    Ok((wire, hello))
}

/// Tries until the session is there again; how long that took since `started`, and what became of its lease.
async fn come_back(
    address: &str,
    key: &SigningKey,
    past: &HelloResult,
    started: Instant,
) -> Result<(Duration, &'static str)> {
    while started.elapsed() < GIVE_UP {
        if let Ok(Ok((_wire, hello))) = tokio::time::timeout(TRY, join(address, key, Some(past))).await {
            let kept = if hello.lease == LeaseFate::Kept { "kept" } else { "new" };
            return Ok((started.elapsed(), kept));
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    Ok((started.elapsed(), "gave up"))
}

/// Notes how many files the broker has open at the most.
async fn watch(pid: u32, most: Arc<AtomicUsize>) {
    loop {
        if let Ok(count) = proc::open_files(pid) {
            most.fetch_max(count, Ordering::Relaxed);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

impl Attack {
    fn count(self) -> usize {
        match self {
            Attack::NeverRead(count) | Attack::Unfinished(count) | Attack::KeepAlive(count) => count,
        }
    }

    /// Attacks until it is cut off, and begins again.
    async fn go(self, address: String) {
        loop {
            let _ = match self {
                Attack::NeverRead(_) => never_read(&address).await,
                Attack::Unfinished(_) => unfinished(&address).await,
                Attack::KeepAlive(_) => keep_alive(&address).await,
            };
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// A connection whose system takes little that is not read.
async fn narrow(address: &str) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(4096)?;
    Ok(socket.connect(address.parse()?).await?)
}

async fn session(address: &str) -> Result<Wire> {
    let mut wire = Wire::over(narrow(address).await?, address, "/v1/ws").await?;
    wire.greet(address, &tenure_client::random_key()?, "hoarder", InboxChoice::None, None).await?;
    Ok(wire)
}

/// Pings for as long as the socket takes them.
async fn ping(wire: &mut Wire) -> Result<()> {
    loop {
        tokio::time::sleep(BEAT).await;
        wire.write(&[0x89, 0x80, 0, 0, 0, 0]).await?;
    }
}

async fn never_read(address: &str) -> Result<()> {
    let mut wire = session(address).await?;
    for n in 0..PAGES {
        let page = request(&n.to_string(), "history", json!({"log": "topic/hoard/0"}))?;
        wire.write(&framed(&page)).await?;
    }
    ping(&mut wire).await
}

async fn unfinished(address: &str) -> Result<()> {
    let mut wire = session(address).await?;
    let mut fragment = framed(&vec![0; FRAGMENT_BYTES]);
    // Not the last of its message.
    fragment[0] &= 0x7f;
    wire.write(&fragment).await?;
    ping(&mut wire).await
}

async fn keep_alive(address: &str) -> Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET /livez HTTP/1.1\r\nHost: {address}\r\n\r\n");
    loop {
        stream.write_all(request.as_bytes()).await?;
        ensure!(stream.read(&mut [0; 1024]).await? > 0, "it was let go");
        tokio::time::sleep(BEAT).await;
    }
}
