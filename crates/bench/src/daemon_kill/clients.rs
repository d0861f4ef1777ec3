//! Who sends: clients that each have one message at a time, and ask again under the same id until they are answered.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::json;
use tokio::task::JoinSet;

use super::Args;
use crate::http::{Answered, Http};

/// How long a client waits before it asks a daemon again that is away or cannot take more.
const AGAIN: Duration = Duration::from_millis(10);
/// How long an answer may take; then the client hangs up and asks again.
const ANSWER: Duration = Duration::from_secs(30);
/// Bytes of a body, at most.
const BODY: u64 = 3_000;

/// A message that was answered 2xx.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Promised {
    pub(super) target: String,
    pub(super) client: u64,
    pub(super) number: u64,
}

impl Promised {
    /// The id that it was sent under.
    pub(super) fn id(&self) -> String {
        format!("c{}-{}", self.client, self.number)
    }

    /// The body: what it must be follows from the id, so that a reader needs no memory.
    pub(super) fn body(&self) -> String {
        body_of(&self.id())
    }
}

/// The body of the message with this id: of any length, different for each, some of it not ASCII.
pub(super) fn body_of(id: &str) -> String {
    let mut state = id
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    let mut next = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        state >> 33
    };
    let len = next() % BODY;
    let letter = |number: u64| char::from_u32(0x20 + (number % 0x2000) as u32).unwrap_or('\u{fffd}');
    let mut body = format!("{id} ");
    (0..len).for_each(|_| body.push(letter(next())));
    body
}

/// What was answered 2xx: a line each in a file, written before the client goes on.
#[derive(Debug)]
pub(super) struct Record {
    path: PathBuf,
    file: Mutex<File>,
    count: AtomicU64,
}

impl Record {
    pub(super) fn create(dir: &Path) -> Result<Record> {
        let path = dir.join("accepted");
        let file = File::create_new(&path).with_context(|| format!("make {}", path.display()))?;
        Ok(Record { path, file: Mutex::new(file), count: AtomicU64::new(0) })
    }

    pub(super) fn write(&self, promised: &Promised) -> Result<()> {
        let Promised { target, client, number } = promised;
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(format!("{target}\t{client}\t{number}\n").as_bytes()).context("write the record")?;
        self.count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(super) fn read(&self) -> Result<Vec<Promised>> {
        let lines = BufReader::new(File::open(&self.path).context("read the record")?).lines();
        lines.map(|line| parse(&line?).context("a line of the record does not read")).collect()
    }
}

fn parse(line: &str) -> Option<Promised> {
    let mut fields = line.split('\t');
    let (target, client, number) = (fields.next()?, fields.next()?, fields.next()?);
    Some(Promised { target: target.to_owned(), client: client.parse().ok()?, number: number.parse().ok()? })
}

/// All of them, at work.
pub(super) struct Clients {
    working: JoinSet<Result<()>>,
    stop: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
    failed: Arc<AtomicBool>,
}

struct Client {
    number: u64,
    socket: PathBuf,
    targets: Vec<String>,
    record: Arc<Record>,
    stop: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
    http: Option<Http>,
}

impl Clients {
    pub(super) fn start(args: &Args, socket: PathBuf, targets: &[String], record: &Arc<Record>) -> Clients {
        let (stop, asked, failed) = <(Arc<AtomicBool>, Arc<AtomicU64>, Arc<AtomicBool>)>::default();
        let pace = Duration::from_secs_f64(args.clients.max(1) as f64 / args.rate.max(1) as f64);
        let mut working = JoinSet::new();
        for number in 0..args.clients as u64 {
            let client = Client {
                number,
                socket: socket.clone(),
                targets: targets.to_vec(),
                record: Arc::clone(record),
                stop: Arc::clone(&stop),
                asked: Arc::clone(&asked),
                http: None,
            };
            let failed = Arc::clone(&failed);
            working.spawn(async move {
                let outcome = client.run(pace).await;
                failed.fetch_or(outcome.is_err(), Ordering::Relaxed);
                outcome
            });
        }
        Clients { working, stop, asked, failed }
    }

    /// Fails if one has given up.
    pub(super) fn are_well(&self) -> Result<()> {
        if self.failed.load(Ordering::Relaxed) {
            bail!("a client was refused what it must not be refused");
        }
        Ok(())
    }

    /// Lets each of them get its last answer; how often they have asked in all.
    pub(super) async fn finish(mut self, patience: Duration) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        let all = async {
            while let Some(ended) = self.working.join_next().await {
                ended.context("a client broke")??;
            }
            Ok(self.asked.load(Ordering::Relaxed))
        };
        tokio::time::timeout(patience, all).await.context("a client is never answered")?
    }
}

impl Client {
    async fn run(mut self, pace: Duration) -> Result<()> {
        let mut ticks = tokio::time::interval(pace);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        for number in 1.. {
            ticks.tick().await;
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let at = (self.number + number) as usize % self.targets.len();
            let promised = Promised { target: self.targets[at].clone(), client: self.number, number };
            self.send(&promised).await?;
            self.record.write(&promised)?;
        }
        Ok(())
    }

    /// Asks until it is answered 2xx. Only what says that it may help is asked again.
    async fn send(&mut self, promised: &Promised) -> Result<()> {
        let body = json!({"to": promised.target, "body": promised.body()}).to_string();
        let id = promised.id();
        loop {
            self.asked.fetch_add(1, Ordering::Relaxed);
            match tokio::time::timeout(ANSWER, self.ask(&id, &body)).await {
                Ok(Ok(Answered { status: 200 | 202, .. })) => return Ok(()),
                Ok(Ok(Answered { status: 429 | 503, .. })) => {}
                Ok(Ok(Answered { status, body })) => {
                    bail!("{id} is answered {status}: {}", String::from_utf8_lossy(&body));
                }
                // Nobody knows whether it was taken: that is what the id is for.
                Ok(Err(_)) | Err(_) => self.http = None,
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn ask(&mut self, id: &str, body: &str) -> std::io::Result<Answered> {
        let mut http = match self.http.take() {
            Some(http) => http,
            None => Http::connect(&self.socket).await?,
        };
        let answered = http.call("POST", "/v1/send", &[("Idempotency-Key", id)], body.as_bytes()).await?;
        self.http = Some(http);
        Ok(answered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let record = Record::create(dir.path()).unwrap();
        let promised = Promised { target: "topic:a".into(), client: 3, number: 7 };
        record.write(&promised).unwrap();
        assert_eq!((record.read().unwrap(), record.count()), (vec![promised], 1));
    }

    #[test]
    fn bodies_differ_and_are_the_same_each_time() {
        assert_eq!(body_of("c1-1"), body_of("c1-1"));
        assert_ne!(body_of("c1-1")[5..], body_of("c1-2")[5..]);
        assert!((0..100).any(|n| !body_of(&format!("c1-{n}")).is_ascii()));
    }
}
