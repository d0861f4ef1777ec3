//! What a person reads.

use std::ops::Range;

use tenure_kit::mutant::Mutant;
use tenure_sim::fault::Fault;
use tenure_sim::hunt::Bag;
use tenure_sim::run::Verdict;
use tenure_sim::scenario::Scenario;

/// Lines of the trace around a violation.
const BEFORE: usize = 60;
const AFTER: usize = 10;

/// The table of a hunt.
pub(crate) fn report(seeds: &Range<u64>, bag: &Bag) {
    println!("faults injected");
    for fault in Fault::ALL {
        println!("  {:<24}{:>12}", fault.name(), bag.injected.get(&fault).copied().unwrap_or(0));
    }
    let hours = |ms: u64| ms as f64 / 3_600_000.0;
    let seconds = bag.took.as_secs_f64().max(0.001);
    println!("seeds {}..{}: {} run, {} worlds", seeds.start, seeds.end, bag.seeds, bag.worlds);
    println!(
        "  virtual time            {:.1} h, simulated {:.1} h",
        hours(bag.virtual_ms),
        hours(bag.simulated_ms)
    );
    println!("  real time               {seconds:.1} s");
    println!("  virtual h per real s    {:.2}", hours(bag.simulated_ms) / seconds);
    println!("  operations              {}", bag.operations);
    if bag.compared > 0 {
        println!(
            "  determinism             {} of {} seeds that ran twice gave the same trace ({:016x} in all)",
            bag.compared - bag.unlike.len() as u64,
            bag.compared,
            bag.traces
        );
    }
    let violations: usize = bag.broken.values().map(Vec::len).sum();
    println!("{violations} violations in {} seeds", bag.broken.len());
}

/// One deliberate bug.
pub(crate) fn mutant(mutant: Mutant, bag: &Bag) {
    match bag.broken.iter().next() {
        Some((seed, violations)) => {
            let first = violations.first().map(|violation| (violation.rule, violation.what.as_str()));
            let (rule, what) = first.unwrap_or_default();
            println!(
                "{:<26} found after {:>4} seeds (seed {seed}): {rule}: {what}",
                mutant.name(),
                bag.seeds
            );
        }
        None => println!("{:<26} NOT FOUND in {} seeds: {}", mutant.name(), bag.seeds, mutant.what()),
    }
}

/// A scenario, what it broke, and what happened around that.
pub(crate) fn story(scenario: &Scenario, verdict: &Verdict, whole: bool) {
    println!();
    println!(
        "seed {}: {} s of trouble, lease {} ms, {} sessions, {} faults, {}",
        scenario.seed,
        scenario.span_ms / 1_000,
        scenario.lease_ttl_ms,
        scenario.cast.len(),
        scenario.faults.len(),
        if scenario.sqlite { "SQLite" } else { "the model store" },
    );
    for planned in scenario.faults.iter().take(40) {
        println!("  {:>10.3} s  {}", planned.at as f64 / 1_000.0, planned.fault.name());
    }
    for violation in verdict.violations.iter().take(10) {
        println!("broken at {} ms: {}: {}", violation.at, violation.rule, violation.what);
    }
    let Some(first) = verdict.violations.first() else { return };
    let moment = format!("{:>10.3} s", first.at as f64 / 1_000.0);
    let at = verdict.words.iter().position(|line| line[..moment.len().min(line.len())] > moment[..]);
    let at = at.unwrap_or(verdict.words.len());
    let (from, to) = if whole { (0, verdict.words.len()) } else { (at.saturating_sub(BEFORE), at + AFTER) };
    println!("what happened around it:");
    for line in verdict.words.iter().take(to).skip(from) {
        let shown: String = line.chars().take(400).collect();
        println!("  {shown}");
    }
    if let Ok(written) = serde_json::to_string(scenario) {
        println!("the scenario, for --scenario FILE:\n{written}");
    }
}
