//! `relay`: what a byte, a request and a stream cost through the relay, beside a direct connection to the same target.
//!
//! The broker, `tenure expose` (once as a byte stream, once over HTTP) and `tenure connect` are processes of their own; the
//! target and whoever asks are here. Tunnels that people use otherwise are measured in the same run, in turns with ours
//! (`--bore`, `--rathole`: see `tunnels`); for others give the target a port with `--target`, point the tunnel at it, and
//! name its other end with `--beside`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::broker::{BrokerArgs, BrokerProcess, spawn_until_ready};
use crate::proc;
use crate::report::{Cell, Report};
use crate::sample::Times;
use crate::tunnels;

/// Bytes of a message whose way there and back is timed.
const MESSAGE: usize = 64;
/// Bytes that are written at once.
const PIECE: usize = 64 * 1024;
/// Turns that each way has; a rate is the median of its turns.
const TURNS: u32 = 5;

/// Mebibytes of a download that nobody waits for the end of.
const ENDLESS_MIB: u64 = 1 << 20;
/// How long it flows before it is cut, and how long that may take.
const FLOWING: Duration = Duration::from_millis(500);
const CUT_WITHIN: Duration = Duration::from_secs(30);

/// How to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Mebibytes of one download
    #[arg(long, default_value_t = 256)]
    mib: u64,
    /// Messages, and requests, whose way there and back is timed
    #[arg(long, default_value_t = 2_000)]
    rounds: u32,
    /// Streams that are open at once
    #[arg(long, default_value_t = 1_000)]
    streams: usize,
    /// The target's port, for other tunnels to point at [default: a free one]
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    target: u16,
    /// Measure this `bore` too
    #[arg(long, value_name = "PROGRAM")]
    bore: Option<PathBuf>,
    /// Measure this `rathole` too, plain and encrypted
    #[arg(long, value_name = "PROGRAM")]
    rathole: Option<PathBuf>,
    /// Another way to the same target, such as frp=127.0.0.1:4711; may be given several times
    #[arg(long, value_name = "NAME=ADDR")]
    beside: Vec<String>,
    /// One JSON object in place of the tables
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    broker: BrokerArgs,
}

/// A process that ends with this value.
pub(crate) struct Helper(pub(crate) Child);

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Measures, and prints what it saw.
pub(crate) async fn run(args: Args) -> Result<()> {
    proc::check_files(args.streams * 4)?;
    let target = serve(args.target).await?;
    let broker = BrokerProcess::start(&args.broker)?;
    let home = args.broker.fresh_dir()?;
    let tenure = args.broker.tenure()?;
    let start = |more: &[&str]| -> Result<(Helper, serde_json::Value)> {
        let mut command = Command::new(&tenure);
        command.args(more).args(["--json", "--broker", &broker.url()]).env("TENURE_HOME", home.path());
        let (child, line) = spawn_until_ready(&mut command)?;
        Ok((Helper(child), serde_json::from_str(&line).context("read a ready line")?))
    };
    let at = target.to_string();
    let (bytes, exposed) = start(&["expose", &at, "--name", "bytes"])?;
    let (_pages, ready) = start(&["expose", &at, "--name", "pages", "--http"])?;
    let relay = relay_of(&ready)?;
    let (near, ready) = start(&["connect", "bytes", "--listen", "127.0.0.1:0"])?;
    let connect: SocketAddr = ready["listen"].as_str().context("connect listens nowhere")?.parse()?;

    let mut ways = vec![("direct".to_owned(), target), ("tenure connect".to_owned(), connect)];
    for beside in &args.beside {
        let (name, addr) = beside.split_once('=').with_context(|| format!("{beside} is not NAME=ADDR"))?;
        ways.push((name.to_owned(), addr.parse().with_context(|| format!("{addr} is no address"))?));
    }
    let mut tunnels = Vec::new();
    if let Some(program) = &args.bore {
        tunnels.push(tunnels::bore(program, target).await?);
    }
    if let Some(program) = &args.rathole {
        tunnels.push(tunnels::rathole(program, target, home.path(), false).await?);
        tunnels.push(tunnels::rathole(program, target, home.path(), true).await?);
    }
    ways.extend(tunnels.iter().map(|tunnel| (tunnel.name.to_owned(), tunnel.addr)));
    let mut report = Report::new("relay");
    report.heading("byte streams");
    let mut seen: Vec<Turns> = ways.iter().map(|_| Turns::default()).collect();
    for _ in 0..TURNS {
        for ((_, addr), seen) in ways.iter().zip(&mut seen) {
            echo(*addr, args.rounds / TURNS, &mut seen.times).await?;
            seen.rates.push(download(*addr, args.mib).await?);
        }
    }
    let rows: Vec<_> = ways.iter().zip(seen).map(|((name, _), seen)| seen.row(name)).collect();
    report.grid("tcp", COLUMNS, &rows);
    drop(tunnels);
    report.heading("requests, one after the other on a connection");
    let ways = [("direct", target, "target"), ("tenure relay", relay, "pages.localhost")];
    let mut seen = [Turns::default(), Turns::default()];
    for _ in 0..TURNS {
        for ((_, addr, host), seen) in ways.iter().zip(&mut seen) {
            requests(*addr, host, args.rounds / TURNS, &mut seen.times).await?;
            seen.rates.push(page(*addr, host, args.mib).await?);
        }
    }
    let rows: Vec<_> = ways.iter().zip(seen).map(|((name, _, _), seen)| seen.row(name)).collect();
    report.grid("http", COLUMNS, &rows);
    many(
        &mut report,
        &args,
        connect,
        [("broker", broker.pid()), ("expose", bytes.0.id()), ("connect", near.0.id())],
    )
    .await?;
    let member = exposed["member"].as_str().context("expose names no member")?;
    banned(&mut report, &broker, member, connect, relay).await?;
    report.print(args.json);
    Ok(())
}

const COLUMNS: &[(&str, &str)] =
    &[("way", "way"), ("p50_ms", "p50 ms"), ("p99_ms", "p99 ms"), ("mib_s", "MiB/s")];

/// What the turns of one way showed.
#[derive(Default)]
struct Turns {
    times: Times,
    rates: Vec<f64>,
}

impl Turns {
    fn row(mut self, name: &str) -> Vec<Cell> {
        self.rates.sort_by(f64::total_cmp);
        let rate = self.rates.get(self.rates.len() / 2).copied().unwrap_or_default();
        vec![
            Cell::text(name),
            Cell::number(self.times.at(0.5), 3),
            Cell::number(self.times.at(0.99), 3),
            Cell::number(rate, 0),
        ]
    }
}

/// Where the relay listens, from the address of a page.
fn relay_of(ready: &serde_json::Value) -> Result<SocketAddr> {
    let url = ready["url"].as_str().context("the broker has no relay for HTTP")?;
    let port = url.trim_end_matches('/').rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    Ok(SocketAddr::from(([127, 0, 0, 1], port.context("the relay's address has no port")?)))
}

/// The target: a first byte says what is wanted. `e` gives back each message, `d` and a number sends so many mebibytes,
/// and `G` is the beginning of a request.
async fn serve(port: u16) -> Result<SocketAddr> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await.context("listen as the target")?;
    let addr = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            // A probe that hangs up is not worth a word.
            tokio::spawn(async move { _ = answer(stream).await });
        }
    });
    Ok(addr)
}

async fn answer(stream: TcpStream) -> Result<()> {
    let mut stream = BufReader::new(stream);
    match stream.fill_buf().await?.first() {
        Some(b'e') => {
            stream.read_u8().await?;
            let mut message = [0; MESSAGE];
            while stream.read_exact(&mut message).await.is_ok() {
                stream.write_all(&message).await?;
            }
        }
        Some(b'd') => {
            stream.read_u8().await?;
            let mib = stream.read_u64().await?;
            send(&mut stream, mib).await?;
        }
        Some(b'G') => pages(stream).await?,
        _ => {}
    }
    Ok(())
}

/// `GET /N`: N mebibytes, or a few bytes for none.
async fn pages(mut stream: BufReader<TcpStream>) -> Result<()> {
    let mut line = String::new();
    while stream.read_line(&mut line).await? > 0 {
        let mib: u64 = line.split(['/', ' ']).nth(2).and_then(|mib| mib.parse().ok()).unwrap_or(0);
        while line != "\r\n" {
            line.clear();
            stream.read_line(&mut line).await?;
        }
        line.clear();
        let length = if mib == 0 { MESSAGE as u64 } else { mib << 20 };
        stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").as_bytes()).await?;
        match mib {
            0 => stream.write_all(&[b'x'; MESSAGE]).await?,
            mib => send(&mut stream, mib).await?,
        }
    }
    Ok(())
}

async fn send(stream: &mut BufReader<TcpStream>, mib: u64) -> Result<()> {
    let piece = vec![b'x'; PIECE];
    for _ in 0..(mib << 20) / PIECE as u64 {
        stream.write_all(&piece).await?;
    }
    Ok(())
}

async fn dial(addr: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(addr).await.with_context(|| format!("dial {addr}"))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn echo(addr: SocketAddr, rounds: u32, times: &mut Times) -> Result<()> {
    let mut stream = dial(addr).await?;
    stream.write_all(b"e").await?;
    let mut message = [7; MESSAGE];
    for round in 0..rounds + rounds / 10 {
        let began = Instant::now();
        stream.write_all(&message).await?;
        stream.read_exact(&mut message).await?;
        // The first tenth warms up.
        if round >= rounds / 10 {
            times.add(began.elapsed());
        }
    }
    Ok(())
}

async fn download(addr: SocketAddr, mib: u64) -> Result<f64> {
    let mut stream = dial(addr).await?;
    stream.write_all(b"d").await?;
    let began = Instant::now();
    stream.write_u64(mib).await?;
    take(&mut stream, mib << 20).await?;
    Ok(mib as f64 / began.elapsed().as_secs_f64())
}

async fn take(stream: &mut (impl AsyncReadExt + Unpin), mut left: u64) -> Result<()> {
    let mut piece = vec![0; PIECE];
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(PIECE);
        match stream.read(&mut piece[..most]).await? {
            0 => bail!("{left} bytes did not come"),
            read => left -= read as u64,
        }
    }
    Ok(())
}

/// Asks for `path`, and reads the head of the answer; gives the length of its body.
async fn ask(stream: &mut BufReader<TcpStream>, host: &str, mib: u64) -> Result<u64> {
    stream.write_all(format!("GET /{mib} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).await?;
    let (mut line, mut length) = (String::new(), None);
    stream.read_line(&mut line).await?;
    if !line.contains(" 200 ") {
        bail!("the answer is {line:?}");
    }
    while line != "\r\n" {
        line.clear();
        stream.read_line(&mut line).await?;
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok();
        }
    }
    length.context("the answer has no length")
}

async fn requests(addr: SocketAddr, host: &str, rounds: u32, times: &mut Times) -> Result<()> {
    let mut stream = BufReader::new(dial(addr).await?);
    for round in 0..rounds + rounds / 10 {
        let began = Instant::now();
        let length = ask(&mut stream, host, 0).await?;
        take(&mut stream, length).await?;
        if round >= rounds / 10 {
            times.add(began.elapsed());
        }
    }
    Ok(())
}

async fn page(addr: SocketAddr, host: &str, mib: u64) -> Result<f64> {
    let mut stream = BufReader::new(dial(addr).await?);
    let began = Instant::now();
    let length = ask(&mut stream, host, mib).await?;
    take(&mut stream, length).await?;
    Ok(mib as f64 / began.elapsed().as_secs_f64())
}

/// Many streams at once: how long until each has given something back, and what they cost in memory.
async fn many(report: &mut Report, args: &Args, addr: SocketAddr, pids: [(&str, u32); 3]) -> Result<()> {
    let mut before = Vec::new();
    for (_, pid) in pids {
        before.push(proc::rss_bytes(pid)?);
    }
    let began = Instant::now();
    let mut opening = tokio::task::JoinSet::new();
    for _ in 0..args.streams {
        opening.spawn(async move {
            let mut stream = dial(addr).await?;
            stream.write_all(&[&b"e"[..], &[7; MESSAGE]].concat()).await?;
            stream.read_exact(&mut [0; MESSAGE]).await?;
            anyhow::Ok(stream)
        });
    }
    let mut open = Vec::new();
    while let Some(stream) = opening.join_next().await {
        open.push(stream.context("a task panicked")??);
    }
    let took = began.elapsed().as_secs_f64();
    report.heading(format!("{} streams of one service at once", open.len()));
    report.figure("open_s", took, "until each has given something back", format!("{took:.2} s"));
    for ((name, pid), before) in pids.into_iter().zip(before) {
        let grown = proc::rss_bytes(pid)?.saturating_sub(before) as f64 / open.len().max(1) as f64;
        let (key, what) = (format!("{name}_bytes_per_stream"), format!("memory a stream costs the {name}"));
        report.figure(&key, grown, &what, format!("{:.1} KiB", grown / 1024.0));
    }
    Ok(())
}

/// A ban in the middle of two downloads, a byte stream's and a request's: how long their last bytes come after it was asked for.
async fn banned(
    report: &mut Report,
    broker: &BrokerProcess,
    member: &str,
    connect: SocketAddr,
    relay: SocketAddr,
) -> Result<()> {
    let mut stream = dial(connect).await?;
    stream.write_all(b"d").await?;
    stream.write_u64(ENDLESS_MIB).await?;
    let mut request = BufReader::new(dial(relay).await?);
    ask(&mut request, "pages.localhost", ENDLESS_MIB).await?;
    let downloads = [tokio::spawn(last_byte(stream)), tokio::spawn(last_byte(request))];
    tokio::time::sleep(FLOWING).await;
    let token = std::fs::read_to_string(broker.data_dir().join("admin.token")).context("read the token")?;
    let bearer = format!("Bearer {}", token.trim());
    let body = format!("{{\"subject\": \"member:{member}\"}}");
    let headers = [("Authorization", bearer.as_str()), ("Connection", "close")];
    let ban = ("POST", "/v1/admin/meshes/default/bans");
    let post = crate::http::request(broker.address(), ban, &headers, body.as_bytes());
    let mut admin = dial(broker.address().parse().context("the broker's address")?).await?;
    let asked = Instant::now();
    admin.write_all(&post).await?;
    let mut answer = String::new();
    admin.read_to_string(&mut answer).await?;
    if !answer.starts_with("HTTP/1.1 2") {
        bail!("the ban was answered {answer:?}");
    }
    report.heading("a ban in the middle of two downloads");
    let labels = [
        ("banTcpMs", "until the last byte of the stream"),
        ("banHttpMs", "until that of the request's answer"),
    ];
    for (download, (key, what)) in downloads.into_iter().zip(labels) {
        let last = tokio::time::timeout(CUT_WITHIN, download).await.context("a download goes on")?;
        let after = last.context("a task panicked")?.saturating_duration_since(asked).as_secs_f64() * 1e3;
        report.figure(key, after, what, format!("{after:.1} ms"));
    }
    Ok(())
}

/// Reads until there is nothing more, however that ends; says when the last byte came.
async fn last_byte(mut stream: impl AsyncReadExt + Unpin) -> Instant {
    let (mut piece, mut last) = (vec![0; PIECE], Instant::now());
    while let Ok(1..) = stream.read(&mut piece).await {
        last = Instant::now();
    }
    last
}
