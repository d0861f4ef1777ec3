//! `tenure-sim`: runs seeds and says what broke, in words; `cargo xtask sim` builds and starts it.

mod words;

use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail};
use clap::Parser;
use tenure_kit::mutant::{self, Mutant};
use tenure_sim::hunt::Hunt;
use tenure_sim::regressions::regressions;
use tenure_sim::run::{Wanted, run};
use tenure_sim::scenario::Scenario;
use tenure_sim::shrink::shrink;

/// Seeds after which a long run says how far it is.
const PROGRESS: u64 = 1_000;

/// Whole meshes in virtual time, with everything that can go wrong
#[derive(Debug, Parser)]
#[command(name = "tenure-sim")]
struct Args {
    /// Seeds to run: A..B, or one [default: 0..200; of deliberate bugs 0..500; a few are so rare that only a regression finds them]
    #[arg(long, value_parser = seeds)]
    seeds: Option<Range<u64>>,
    /// Virtual minutes in which things go wrong, for each seed
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1_440))]
    minutes: u64,
    /// Make the first failure as small as it gets before it is shown
    #[arg(long)]
    shrink: bool,
    /// Run until stopped
    #[arg(long)]
    forever: bool,
    /// Run each seed once, and do not compare two runs of it
    #[arg(long, conflicts_with = "twice")]
    once: bool,
    /// Run each seed twice, however many there are; of more than a thousand only each tenth is otherwise
    #[arg(long)]
    twice: bool,
    /// Show that every deliberate bug is found, within so many seeds (needs a build with --cfg tenure_mutants)
    #[arg(long)]
    mutants: bool,
    /// Run with this deliberate bug, or with `--mutants` only this one
    #[arg(long)]
    mutant: Option<String>,
    /// Run a scenario that was written down
    #[arg(long)]
    scenario: Option<PathBuf>,
    /// Print the whole trace of what is shown
    #[arg(long)]
    trace: bool,
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let number = |text: &str| text.parse::<u64>().map_err(|_| format!("{text:?} is no seed"));
    let range = match text.split_once("..") {
        Some((from, to)) => number(from)?..number(to)?,
        None => number(text).map(|seed| seed..seed.saturating_add(1))?,
    };
    if range.is_empty() { Err(format!("there is no seed in {text:?}")) } else { Ok(range) }
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let wanted = match &args.mutant {
        Some(name) => match Mutant::named(name) {
            Some(mutant) => Some(mutant),
            None => bail!("there is no deliberate bug {name:?}"),
        },
        None => None,
    };
    if (args.mutants || wanted.is_some()) && !mutant::BUILT {
        bail!("this build has no deliberate bugs: cargo xtask sim --mutants makes one that has");
    }
    if args.mutants {
        return mutants(&args, wanted);
    }
    if let Some(path) = &args.scenario {
        let bytes = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
        let scenario: Scenario =
            serde_json::from_slice(&bytes).with_context(|| format!("{} is no scenario", path.display()))?;
        mutant::set(wanted);
        return one(&args, &scenario);
    }
    let mut range = args.seeds.clone().unwrap_or(0..200);
    loop {
        let twice = match (args.once, args.twice || range.end - range.start <= 1_000) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => 10,
        };
        let hunt = Hunt { minutes: args.minutes, twice, mutant: wanted, first: false };
        let (done, all) = (AtomicU64::new(0), range.end - range.start);
        let bag = hunt.run(range.clone(), |seed, verdict| {
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            if done.is_multiple_of(PROGRESS) {
                eprintln!("{done} of {all} seeds");
            }
            if let Some(violation) = verdict.violations.first() {
                println!("seed {seed} at {} ms: {}: {}", violation.at, violation.rule, violation.what);
            }
        })?;
        words::report(&range, &bag);
        if let Some(seed) = bag.broken.keys().next() {
            mutant::set(wanted);
            one(&args, &Scenario::of(*seed, args.minutes))?;
            return Ok(ExitCode::FAILURE);
        }
        if !bag.unlike.is_empty() {
            println!("not deterministic: seeds {:?}", bag.unlike);
            return Ok(ExitCode::FAILURE);
        }
        if !args.forever {
            return Ok(ExitCode::SUCCESS);
        }
        let length = (range.end - range.start).max(1);
        range = range.end..range.end.saturating_add(length);
    }
}

/// Runs one scenario, and tells its story if it broke something.
fn one(args: &Args, scenario: &Scenario) -> Result<ExitCode> {
    let mut scenario = scenario.clone();
    let mut verdict = run(&scenario, Wanted::Words)?;
    if let (Some(violation), true) = (verdict.violations.first(), args.shrink) {
        scenario = shrink(&scenario, violation.rule)?;
        verdict = run(&scenario, Wanted::Words)?;
    }
    words::story(&scenario, &verdict, args.trace);
    Ok(if verdict.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether a deliberate bug that no seed has shown breaks one of the scenarios that bugs like it were found in.
fn breaks_again(mutant: Mutant) -> Result<bool> {
    mutant::set(Some(mutant));
    for (name, scenario) in regressions()? {
        if !run(&scenario, Wanted::Verdict)?.violations.is_empty() {
            println!("  but by the regression {name}");
            return Ok(true);
        }
    }
    Ok(false)
}

/// Looks for every deliberate bug.
fn mutants(args: &Args, wanted: Option<Mutant>) -> Result<ExitCode> {
    let mut missed = 0;
    let seeds = args.seeds.clone().unwrap_or(0..500);
    // What is found must be the bug's doing.
    let hunt = Hunt { minutes: args.minutes, twice: 0, mutant: None, first: true };
    if let Some((seed, _)) = hunt.run(seeds.clone(), |_, _| {})?.broken.first_key_value() {
        bail!("seed {seed} breaks something without any deliberate bug");
    }
    println!("no violation without a deliberate bug");
    for mutant in Mutant::ALL.iter().copied().filter(|mutant| wanted.is_none_or(|wanted| wanted == *mutant)) {
        let hunt = Hunt { minutes: args.minutes, twice: 0, mutant: Some(mutant), first: true };
        let bag = hunt.run(seeds.clone(), |_, _| {})?;
        words::mutant(mutant, &bag);
        let found = !bag.broken.is_empty() || breaks_again(mutant)?;
        missed += usize::from(!found);
    }
    let all = if wanted.is_some() { 1 } else { Mutant::ALL.len() };
    println!(
        "{} of {all} deliberate bugs found within {} seeds each, or by a regression",
        all - missed,
        seeds.end - seeds.start
    );
    Ok(if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
