//! Sessions that write to each other: every message has a number, and both ends are remembered.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use tenure_client::{Session, Subscription};
use tokio::task::JoinSet;

/// Sends that may be on their way; past it the next waits.
const OUTSTANDING: usize = 10_000;
/// How long a send may take, restart included.
const SEND_TIMEOUT: Duration = Duration::from_secs(180);
/// How often a wait looks again.
const LOOK: Duration = Duration::from_millis(50);

/// What became of each message, by its number.
#[derive(Debug, Default)]
struct Ledger {
    fates: Mutex<Vec<Fate>>,
    refused: AtomicU64,
    /// Messages that nobody sent.
    strange: AtomicU64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Fate {
    accepted: bool,
    received: u32,
}

impl Ledger {
    fn of(&self, number: usize, note: impl FnOnce(&mut Fate)) {
        let mut fates = self.fates.lock().unwrap_or_else(PoisonError::into_inner);
        if fates.len() <= number {
            fates.resize(number + 1, Fate::default());
        }
        note(&mut fates[number]);
    }

    fn tally(&self) -> Tally {
        let fates = self.fates.lock().unwrap_or_else(PoisonError::into_inner);
        let count = |is: fn(&Fate) -> bool| fates.iter().filter(|fate| is(fate)).count() as u64;
        Tally {
            accepted: count(|fate| fate.accepted),
            received: count(|fate| fate.received > 0),
            lost: count(|fate| fate.accepted && fate.received == 0),
            doubled: count(|fate| fate.received > 1) + self.strange.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }
}

/// What it came to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tally {
    pub(super) accepted: u64,
    pub(super) received: u64,
    pub(super) lost: u64,
    doubled: u64,
    /// Sends that came to nothing, as their sender was told.
    pub(super) refused: u64,
}

/// Traffic that is under way.
pub(super) struct Traffic {
    ledger: Arc<Ledger>,
    stop: Arc<AtomicBool>,
    sender: tokio::task::JoinHandle<()>,
}

impl Traffic {
    /// Everybody reads, and somebody sends to somebody else `rate` times a second.
    pub(super) fn start(sessions: &[Session], rate: u64) -> Result<Traffic> {
        let (ledger, stop) = (Arc::<Ledger>::default(), Arc::<AtomicBool>::default());
        for session in sessions {
            tokio::spawn(read(session.inbox()?, ledger.clone()));
        }
        let sender = tokio::spawn(send(sessions.to_vec(), rate, ledger.clone(), stop.clone()));
        Ok(Traffic { ledger, stop, sender })
    }

    /// Sends no more, and waits until all that was accepted has arrived, or nothing has moved for `patience`.
    pub(super) async fn settle(&self, patience: Duration) -> Tally {
        self.stop.store(true, Ordering::Relaxed);
        let (mut moved, mut seen) = (Instant::now(), 0);
        loop {
            let tally = self.ledger.tally();
            if (self.sender.is_finished() && tally.lost == 0) || moved.elapsed() > patience {
                return tally;
            }
            if tally.accepted + tally.received != seen {
                (moved, seen) = (Instant::now(), tally.accepted + tally.received);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Messages that came twice, or that nobody sent, as far as anybody knows by now.
    pub(super) fn doubled(&self) -> u64 {
        self.ledger.tally().doubled
    }
}

async fn send(sessions: Vec<Session>, rate: u64, ledger: Arc<Ledger>, stop: Arc<AtomicBool>) {
    let mut pace = tokio::time::interval(Duration::from_micros(1_000_000 / rate.max(1)));
    let mut sends = JoinSet::new();
    for number in 0.. {
        pace.tick().await;
        while sends.len() >= OUTSTANDING || sends.try_join_next().is_some() {
            if sends.len() >= OUTSTANDING {
                sends.join_next().await;
            }
        }
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let from = number % sessions.len();
        // Each has written to everybody else before it writes to the first of them again.
        let to = (from + 1 + number / sessions.len() % (sessions.len() - 1)) % sessions.len();
        let (session, to) = (sessions[from].clone(), sessions[to].key());
        let ledger = ledger.clone();
        sends.spawn(async move {
            match session.send(to, number.to_string()).timeout(SEND_TIMEOUT).await {
                Ok(_) => ledger.of(number, |fate| fate.accepted = true),
                Err(error) => {
                    eprintln!("message {number} was refused: {error}");
                    ledger.refused.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
    while sends.join_next().await.is_some() {}
}

async fn read(mut inbox: Subscription, ledger: Arc<Ledger>) {
    while let Ok(message) = inbox.next_message().await {
        match message.text().and_then(|text| text.parse().ok()) {
            Some(number) => ledger.of(number, |fate| fate.received += 1),
            None => _ = ledger.strange.fetch_add(1, Ordering::Relaxed),
        }
        // It goes on, and through any break, without us.
        drop(message.ack());
    }
}
