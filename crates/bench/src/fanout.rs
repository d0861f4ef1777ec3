//! `fanout`: what readers cost a sender, and how fast they are served.
//!
//! One topic, readers with a socket and a place of their own, one sender with one send outstanding. Two questions
//! that a machine with few cores mixes up are asked apart. *Waiting*: the readers have what they may hold and settle
//! nothing, so that nothing is handed out, and an accept is all there is. *Reading*: they settle what they read,
//! in batches, and share the machine with the broker and the sender.
//!
//! Each number of readers has a broker of its own for the whole run; rounds are interleaved.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use tenure_client::proto::message::TagsParams;
use tenure_client::proto::subscribe::{AckMode, From, SubscribeParams, SubscribeResult};

use crate::accept::{self, Stack};
use crate::broker::{BrokerArgs, BrokerProcess};
use crate::ids::sender_key;
use crate::load::Template;
use crate::proc;
use crate::report::{Cell, Report};
use crate::sample::{median, spread};
use crate::wire::{self, Wire, find, framed};

/// Read by those who settle nothing.
const WAITING: &str = "waiting";
/// Read by those who settle.
const READING: &str = "reading";
/// Deliveries that a reader may have in hand.
const PREFETCH: u32 = 256;
/// The number of the first reader's key: senders have the ones below.
const FIRST_KEY: usize = 10_000;
/// How often a silent reader shows that it lives.
const ALIVE: Duration = Duration::from_secs(20);
/// A WebSocket ping of a client, masked with zeros.
const PING: [u8; 6] = [0x89, 0x80, 0, 0, 0, 0];
/// How long each stretch runs before it counts.
const WARM_UP: Duration = Duration::from_millis(500);
/// How long readers may take to catch up after a stretch, and how long silence is having caught up.
const CATCH_UP: Duration = Duration::from_secs(60);
const SILENCE: Duration = Duration::from_millis(300);

#[derive(Debug, clap::Args)]
pub struct Args {
    /// How many readers
    #[arg(long, value_delimiter = ',', default_value = "0,1,10,100,1000")]
    readers: Vec<usize>,
    /// Seconds of each stretch
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Rounds; figures are medians over them
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Bytes of a message's body
    #[arg(long, default_value_t = 512)]
    body: usize,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    broker: BrokerArgs,
}

/// One number of readers.
struct Scene {
    readers: usize,
    broker: BrokerProcess,
    delivered: Arc<AtomicU64>,
    waiting: Vec<Stack>,
    reading: Vec<Stack>,
}

/// Measures and prints.
pub fn run(args: &Args) -> Result<()> {
    proc::check_files(args.readers.iter().sum::<usize>() + 1)?;
    let (waiting, reading) = (Template::new(WAITING, args.body)?, Template::new(READING, args.body)?);
    let times = (WARM_UP, Duration::from_secs_f64(args.seconds));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let mut scenes = Vec::new();
    for readers in args.readers.iter().copied() {
        let broker = BrokerProcess::start(&args.broker)?;
        let delivered = Arc::new(AtomicU64::new(0));
        runtime.block_on(join(broker.address(), readers, &delivered))?;
        eprintln!("{readers} readers have joined");
        let scene = Scene { readers, broker, delivered, waiting: Vec::new(), reading: Vec::new() };
        // Whoever waits has its hand full from here on.
        scene.stretch(&waiting, (Duration::ZERO, Duration::from_millis(50)))?;
        scene.catch_up();
        scenes.push(scene);
    }
    for round in 1..=args.rounds {
        for scene in &mut scenes {
            let stack = scene.stretch(&waiting, times)?;
            scene.waiting.push(stack);
            let stack = scene.stretch(&reading, times)?;
            scene.reading.push(stack);
            scene.catch_up();
            eprintln!("round {round}, {} readers", scene.readers);
        }
    }
    report(args, &scenes).print(args.json);
    runtime.shutdown_background();
    Ok(())
}

impl Scene {
    fn stretch(&self, template: &Template, times: (Duration, Duration)) -> Result<Stack> {
        let delivered = || self.delivered.load(Ordering::Relaxed);
        accept::stack_with(&self.broker, template, 1, times, &delivered)
    }

    /// Waits until nothing has come for a while.
    fn catch_up(&self) {
        let deadline = Instant::now() + CATCH_UP;
        let (mut seen, mut since) = (self.delivered.load(Ordering::Relaxed), Instant::now());
        while since.elapsed() < SILENCE && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
            let now = self.delivered.load(Ordering::Relaxed);
            if now != seen {
                (seen, since) = (now, Instant::now());
            }
        }
    }
}

/// Lets readers join one after the other; they then read until the broker is gone.
async fn join(address: &str, count: usize, delivered: &Arc<AtomicU64>) -> Result<()> {
    for index in 0..count {
        let key = sender_key(FIRST_KEY + index);
        let mut wire = Wire::join(address, &key, &format!("reader-{index}")).await?;
        subscribe(&mut wire, WAITING, 1).await?;
        let sub = subscribe(&mut wire, READING, PREFETCH).await?;
        let delivered = delivered.clone();
        tokio::spawn(async move {
            // The broker goes away when the measurement is over.
            let _ = read(wire, &sub, &delivered).await;
        });
    }
    Ok(())
}

async fn subscribe(wire: &mut Wire, topic: &str, prefetch: u32) -> Result<String> {
    let params = SubscribeParams {
        topic: topic.parse().map_err(|_| anyhow!("{topic} is no name of a topic"))?,
        group: None,
        partition: None,
        prefetch,
        ack_mode: AckMode::Manual,
        from: From::New,
    };
    let result: SubscribeResult = wire.ask("subscribe", params).await?;
    Ok(result.sub_id.to_string())
}

/// Reads for ever; settles what comes through `sub`, all that was read together in one request.
async fn read(mut wire: Wire, sub: &str, delivered: &AtomicU64) -> Result<()> {
    let mut said = Instant::now();
    loop {
        if tokio::time::timeout(ALIVE, wire.fill()).await.is_ok_and(|read| read.is_err()) {
            return Ok(());
        }
        let mut tags = Vec::new();
        while let Some(frame) = wire.next_message()? {
            let Some((through, tag)) = delivery(frame) else { continue };
            delivered.fetch_add(1, Ordering::Relaxed);
            if through == sub {
                tags.push(tag.parse().map_err(|_| anyhow!("no tag"))?);
            }
        }
        if !tags.is_empty() {
            wire.write(&framed(&wire::request("ack", "ack", TagsParams { tags })?)).await?;
            said = Instant::now();
        } else if said.elapsed() >= ALIVE {
            wire.write(&PING).await?;
            said = Instant::now();
        }
    }
}

/// The subscription and the tag of a delivery, looked up where they stand; nothing for any other frame.
pub fn delivery(frame: &[u8]) -> Option<(&str, &str)> {
    let head = frame.get(..frame.len().min(256))?;
    find(head.get(..32)?, b"\xa7message")?;
    let sub = find(head, b"\xa5subId")? + 6;
    let tag = find(head, b"\xa3tag")? + 4;
    Some((text(head, sub)?, text(head, tag)?))
}

pub fn text(bytes: &[u8], at: usize) -> Option<&str> {
    let (from, len) = match *bytes.get(at)? {
        0xd9 => (at + 2, usize::from(*bytes.get(at + 1)?)),
        0xda => (at + 3, usize::from(u16::from_be_bytes([*bytes.get(at + 1)?, *bytes.get(at + 2)?]))),
        short @ 0xa0..=0xbf => (at + 1, usize::from(short & 0x1f)),
        _ => return None,
    };
    std::str::from_utf8(bytes.get(from..from + len)?).ok()
}

fn report(args: &Args, scenes: &[Scene]) -> Report {
    let mut report = Report::new("fanout");
    report.heading(format!(
        "One topic, readers with a socket and a place of their own, one send outstanding; bodies of {} bytes, \
         MessagePack",
        args.body
    ));
    report.say(format!(
        "medians of {} rounds of {} s, interleaved over a broker for each number of readers; noise is the largest \
         round over the smallest; readers, sender and broker share this machine",
        args.rounds, args.seconds
    ));
    report.heading("Waiting: readers hold what they may and settle nothing, so an accept is all there is");
    table(&mut report, "waiting", scenes, |scene| &scene.waiting);
    report.heading("Reading: readers settle in batches");
    table(&mut report, "reading", scenes, |scene| &scene.reading);
    report
}

fn table(report: &mut Report, key: &str, scenes: &[Scene], pick: impl Fn(&Scene) -> &Vec<Stack>) {
    let columns = [
        ("readers", "readers"),
        ("perSecond", "accepts/s"),
        ("noise", "noise"),
        ("p50Ms", "p50 ms"),
        ("p99Ms", "p99 ms"),
        ("toFirst", "p50 to first"),
        ("writerUs", "writer µs/accept"),
        ("brokerUs", "broker µs/accept"),
        ("deliveriesPerSecond", "deliveries/s"),
        ("brokerUsPerDelivery", "broker µs/delivery"),
    ];
    let of = |stacks: &[Stack], pick: &dyn Fn(&Stack) -> f64| median(stacks.iter().map(pick));
    let p50 = |stack: &Stack| stack.sample.p50_ms;
    let first = scenes.first().map(|scene| pick(scene).clone()).unwrap_or_default();
    let rows: Vec<Vec<Cell>> = scenes
        .iter()
        .map(|scene| {
            let stacks = pick(scene);
            let cpu = |stack: &Stack| stack.broker_cpu.values().sum::<f64>() * 1e6;
            let writer = |stack: &Stack| stack.broker_cpu.get("tenure-writer").map_or(f64::NAN, |s| s * 1e6);
            let accepts = |stack: &Stack| stack.sample.count.max(1) as f64;
            let to_first = median(stacks.iter().zip(&first).map(|(ours, first)| p50(ours) / p50(first)));
            vec![
                Cell::count(scene.readers as f64),
                Cell::count(of(stacks, &|stack| stack.sample.per_second)),
                Cell::number(spread(stacks.iter().map(|stack| stack.sample.per_second)), 2),
                Cell::number(of(stacks, &p50), 3),
                Cell::number(of(stacks, &|stack| stack.sample.p99_ms), 2),
                Cell::number(to_first, 2),
                Cell::number(of(stacks, &|stack| writer(stack) / accepts(stack)), 1),
                Cell::number(of(stacks, &|stack| cpu(stack) / accepts(stack)), 1),
                Cell::count(of(stacks, &|stack| stack.probed as f64 / stack.seconds)),
                Cell::number(of(stacks, &|stack| cpu(stack) / stack.probed as f64), 1),
            ]
        })
        .collect();
    report.grid(key, &columns, &rows);
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_client::proto::codec::{Codec, delivery_frame};
    use tenure_client::proto::{MessageId, SessionKey, TagParts};

    #[test]
    fn a_delivery_says_which_it_is() {
        let (session, mark) = (SessionKey([3; 32]), MessageId(4).into());
        let parts = TagParts { group: 1 << 33, seq: 70_000, attempt: 1, session, mark };
        let mut frame = Vec::new();
        delivery_frame(Codec::MsgPack, &mut frame, 300, "s2", &parts, 1, false, b"\x80");
        assert_eq!(delivery(&frame), Some(("s2", parts.to_tag().as_str())));
        assert_eq!(delivery(&wire::request("ask", "ping", ()).unwrap()), None);
    }
}
