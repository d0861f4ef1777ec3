//! `slow`: what becomes of readers of every speed, and what they cost the broker.
//!
//! For each speed a broker of its own, with readers on wires that become thin after their hello. Each is sent as many
//! messages as its inbox hands out at once. A reader that is let go comes back on a good wire: what it was not given in
//! time it gets then, so that being let go is seen to lose nothing.

mod thin;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures_util::future::join_all;
use serde_json::{Value, json};
use tenure_client::proto::canonical::session_key;
use tenure_client::{InboxChoice, SigningKey};
use tenure_mesh::messages::log::TAIL_BYTES;
use tenure_mesh::store::group_commit::BATCH_BYTES;
use tenure_proto::limits::{MAX_BUFFERED_BYTES, MAX_PAYLOAD_BYTES, frame_bytes};

use crate::broker::{BrokerArgs, BrokerProcess};
use crate::proc;
use crate::report::{Cell, Report};
use crate::wire::{Wire, find, framed, request};
use thin::{Speed, Thin};

/// Messages to each reader: what an inbox hands out before some are settled.
const MESSAGES: usize = 32;
/// How often a reader says that it lives while nothing comes.
const PING: Duration = Duration::from_secs(20);
/// How long a reader that was let go may take to get the rest.
const REST: Duration = Duration::from_secs(60);

const SPEEDS: [Speed; 6] = [
    Speed { name: "full", bytes_per_second: None, latency: Duration::ZERO },
    Speed { name: "10 Mbit/s", bytes_per_second: Some(1_250_000), latency: Duration::ZERO },
    Speed { name: "1 Mbit/s, 200 ms", bytes_per_second: Some(125_000), latency: Duration::from_millis(200) },
    Speed { name: "64 kbit/s", bytes_per_second: Some(8_000), latency: Duration::ZERO },
    Speed { name: "1 B/s", bytes_per_second: Some(1), latency: Duration::ZERO },
    Speed { name: "never", bytes_per_second: Some(0), latency: Duration::ZERO },
];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Readers of each speed
    #[arg(long, default_value_t = 20)]
    readers: usize,
    /// Bytes of a message
    #[arg(long, default_value_t = 65_536)]
    bytes: usize,
    /// How long each speed is watched
    #[arg(long, value_name = "SECONDS", default_value_t = 40)]
    seconds: u64,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    broker: BrokerArgs,
}

/// Measures and prints.
pub(crate) async fn run(args: Args) -> Result<()> {
    let mut rows = Vec::new();
    for speed in SPEEDS {
        eprintln!("{}: {} readers", speed.name, args.readers);
        rows.push(measure(&args, speed).await.with_context(|| format!("readers at {}", speed.name))?);
    }
    let mut report = Report::new("slow");
    report.heading(format!(
        "{} readers of each speed, {MESSAGES} messages of {} bytes each",
        args.readers, args.bytes
    ));
    let columns = [
        ("speed", "reader"),
        ("kept", "kept"),
        ("slowConsumer", "slow_consumer"),
        ("otherwise", "lost otherwise"),
        ("received", "received"),
        ("inAll", "in all"),
        ("peakMib", "peak MiB"),
        ("boundMib", "bound MiB"),
    ];
    report.grid("readers", &columns, &rows);
    report.say("received: by a reader of that speed on the average, of those kept or let go; in all: after coming back");
    report.say(
        "bound: the broker when empty, the newest entries, a transaction, and for each reader what may be encoded for a socket",
    );
    report.print(args.json);
    Ok(())
}

async fn measure(args: &Args, speed: Speed) -> Result<Vec<Cell>> {
    let broker = BrokerProcess::start(&args.broker.with_env("TENURE_PUBLIC_HOSTS=127.0.0.1:*"))?;
    let empty = proc::rss_bytes(broker.pid())?;
    let mut readers = Vec::new();
    for n in 0..args.readers {
        let (key, thin) = (tenure_client::random_key()?, Thin::to(broker.address(), speed).await?);
        let wire =
            Wire::join_reading(&thin.address, &key, &format!("reader {n}"), InboxChoice::Session).await?;
        thin.narrow();
        readers.push((key, wire));
    }
    let until = Instant::now() + Duration::from_secs(args.seconds);
    let mut sender = Wire::join(broker.address(), &tenure_client::random_key()?, "sender").await?;
    let body = "x".repeat(args.bytes);
    let keys: Vec<SigningKey> = readers.iter().map(|(key, _)| key.clone()).collect();
    let reading: Vec<_> = readers.into_iter().map(|(_, wire)| tokio::spawn(read(wire, until))).collect();
    for n in 0..MESSAGES {
        for key in &keys {
            let to = format!("session:{}", session_key(key));
            let letter = json!({"to": to, "clientMessageId": format!("{n} to {to}"), "body": body});
            let _: Value = sender.ask("send", letter).await?;
        }
    }
    let outcomes: Vec<(usize, Option<Wire>)> =
        join_all(reading).await.into_iter().collect::<Result<_, _>>()?;
    // Who is kept is the broker's to say: whoever never reads does not read the end either.
    let online = online(&mut sender).await?;
    let (mut received, mut in_all, mut gone) = (0, 0, Vec::new());
    for ((count, _), key) in outcomes.iter().zip(keys) {
        received += count;
        if online.contains(&session_key(&key).to_string()) {
            in_all += count;
        } else {
            gone.push(key);
        }
    }
    let kept = args.readers - gone.len();
    let slow = broker.labelled("tenure_sockets_lost_total", "slow_consumer")?;
    drop(outcomes);
    // The rest of a reader that is kept and was not done comes on its wire; that of the others when they are back.
    for key in &gone {
        let wire = Wire::join_reading(broker.address(), key, "back", InboxChoice::Session).await?;
        in_all += read(wire, Instant::now() + REST).await.0;
    }
    let mib = |bytes: u64| Cell::number(bytes as f64 / f64::from(1 << 20), 1);
    let each = (MAX_BUFFERED_BYTES + frame_bytes(MAX_PAYLOAD_BYTES)) as u64;
    let mean = |sum: usize| Cell::number(sum as f64 / args.readers.max(1) as f64, 1);
    Ok(vec![
        Cell::text(speed.name),
        Cell::count(kept as f64),
        Cell::count(slow as f64),
        Cell::count((gone.len() as f64 - slow as f64).max(0.0)),
        mean(received),
        mean(in_all),
        mib(proc::peak_bytes(broker.pid())?),
        mib(empty + (TAIL_BYTES + BATCH_BYTES) as u64 + each * args.readers as u64),
    ])
}

/// The sessions that a socket carries.
async fn online(wire: &mut Wire) -> Result<Vec<String>> {
    let list: Value = wire.ask("presence.list", json!({"debug": true})).await?;
    let peers = list["peers"].as_array().context("presence.list has no peers")?;
    let online = peers.iter().filter(|peer| peer["transport"] == "online");
    Ok(online.filter_map(|peer| peer["session"].as_str().map(str::to_owned)).collect())
}

/// Reads messages until all are there, the socket ends or the time is over; how many, and the socket if it is open.
async fn read(mut wire: Wire, until: Instant) -> (usize, Option<Wire>) {
    let mut count = 0;
    while count < MESSAGES && Instant::now() < until {
        let wait = until.min(Instant::now() + PING);
        match tokio::time::timeout_at(wait.into(), wire.frame()).await {
            Ok(Ok(frame)) => count += usize::from(is_message(&frame)),
            Ok(Err(_)) => return (count, None),
            // A frame of which only a part was read stays with the wire. The broker hears that we live.
            Err(_) => {
                let alive = request("alive", "ping", json!({})).map(|ping| framed(&ping));
                let Ok(ping) = alive else { return (count, None) };
                if wire.write(&ping).await.is_err() {
                    return (count, None);
                }
            }
        }
    }
    (count, Some(wire))
}

/// Whether a frame is an `event message`: its kind and name come first.
fn is_message(frame: &[u8]) -> bool {
    let head = &frame[..frame.len().min(32)];
    find(head, b"event").is_some() && find(head, b"message").is_some()
}
