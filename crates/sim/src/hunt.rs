//! Many seeds, on every core.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tenure_kit::mutant::{self, Mutant};

use crate::disk::Broken;
use crate::fault::Fault;
use crate::oracle::Violation;
use crate::run::{Verdict, Wanted, run};
use crate::scenario::Scenario;

/// What to hunt.
#[derive(Clone, Copy, Debug)]
pub struct Hunt {
    /// Virtual minutes of trouble for each seed.
    pub minutes: u64,
    /// Of so many seeds one runs twice, and its traces are compared: 1 is all of them, 0 none.
    pub twice: u64,
    /// A deliberate bug, in a build that has them.
    pub mutant: Option<Mutant>,
    /// Stop at the first seed that breaks something.
    pub first: bool,
}

/// What a hunt came to.
#[derive(Debug, Default)]
pub struct Bag {
    /// Seeds that ran.
    pub seeds: u64,
    /// What was broken, by seed.
    pub broken: BTreeMap<u64, Vec<Violation>>,
    /// Seeds that ran twice.
    pub compared: u64,
    /// One number for the traces of those, whatever their order: two builds with the same rules give the same.
    pub traces: u64,
    /// Those whose second run was another.
    pub unlike: Vec<u64>,
    /// How often each fault struck.
    pub injected: BTreeMap<Fault, u64>,
    /// Facts that applications saw or made.
    pub operations: u64,
    /// Virtual milliseconds, each seed counted once.
    pub virtual_ms: u64,
    /// Worlds that ran, second runs included.
    pub worlds: u64,
    /// Virtual milliseconds of all of them.
    pub simulated_ms: u64,
    /// Real time.
    pub took: Duration,
}

impl Hunt {
    /// Runs `seeds`, in order as far as several cores can; `each` hears of every verdict.
    pub fn run(self, seeds: Range<u64>, each: impl Fn(u64, &Verdict) + Sync) -> Result<Bag, Broken> {
        let began = Instant::now();
        let (next, stop) = (AtomicU64::new(seeds.start), AtomicBool::new(false));
        let (bag, failed) = (Mutex::new(Bag::default()), Mutex::new(None));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..cores {
                scope.spawn(|| {
                    mutant::set(self.mutant);
                    while !stop.load(Ordering::Relaxed) {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= seeds.end {
                            return;
                        }
                        match self.seed(seed) {
                            Ok((verdict, alike)) => {
                                each(seed, &verdict);
                                if let Ok(mut bag) = bag.lock() {
                                    bag.add(seed, verdict, alike);
                                    if self.first && !bag.broken.is_empty() {
                                        stop.store(true, Ordering::Relaxed);
                                    }
                                }
                            }
                            Err(error) => {
                                if let Ok(mut failed) = failed.lock() {
                                    *failed = Some(error.context(format!("seed {seed}")));
                                }
                                stop.store(true, Ordering::Relaxed);
                            }
                        }
                    }
                });
            }
        });
        if let Ok(Some(error)) = failed.into_inner() {
            return Err(error);
        }
        let mut bag = bag.into_inner().unwrap_or_default();
        bag.took = began.elapsed();
        Ok(bag)
    }

    /// Runs a seed; the second time, if there is one, whether it was alike.
    fn seed(self, seed: u64) -> Result<(Verdict, Option<bool>), Broken> {
        let scenario = Scenario::of(seed, self.minutes);
        let again = self.twice > 0 && seed.is_multiple_of(self.twice);
        let wanted = if again { Wanted::Mark } else { Wanted::Verdict };
        let verdict = run(&scenario, wanted)?;
        let alike =
            again.then(|| run(&scenario, wanted)).transpose()?.map(|other| other.mark == verdict.mark);
        Ok((verdict, alike))
    }
}

impl Bag {
    fn add(&mut self, seed: u64, verdict: Verdict, alike: Option<bool>) {
        self.seeds += 1;
        if alike.is_some() {
            self.compared += 1;
            let (lines, hash) = verdict.mark;
            self.traces = self.traces.wrapping_add((hash ^ lines).wrapping_mul(seed | 1));
        }
        let runs = 1 + u64::from(alike.is_some());
        self.worlds += runs;
        self.operations += verdict.operations;
        self.virtual_ms += verdict.virtual_ms;
        self.simulated_ms += verdict.virtual_ms * runs;
        for (fault, count) in verdict.injected {
            *self.injected.entry(fault).or_default() += count;
        }
        if !verdict.violations.is_empty() {
            self.broken.insert(seed, verdict.violations);
        }
        if alike == Some(false) {
            self.unlike.push(seed);
        }
    }
}
