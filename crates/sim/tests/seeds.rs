//! Seeds that run with every change, twice each: no promise is broken, and a seed is the same world both times.

use tenure_sim::hunt::Hunt;
use tenure_sim::regressions::regressions;
use tenure_sim::run::{Wanted, run};

/// How many; `cargo xtask sim` runs more.
const SEEDS: u64 = 200;

#[test]
fn no_seed_breaks_a_promise_and_each_is_one_world() {
    let hunt = Hunt { minutes: 1, twice: 1, mutant: None, first: false };
    let bag = hunt.run(0..SEEDS, |_, _| {}).expect("the machine does its part");
    assert_eq!(bag.seeds, SEEDS);
    for (seed, violations) in &bag.broken {
        for violation in violations {
            eprintln!("seed {seed} at {} ms: {}: {}", violation.at, violation.rule, violation.what);
        }
    }
    assert!(bag.broken.is_empty(), "cargo xtask sim --minutes 1 --shrink --seeds N tells the story");
    assert_eq!(bag.unlike, Vec::<u64>::new(), "two runs of these seeds differ");
    // A world in which nothing happens keeps every promise.
    assert!(bag.operations > 20 * SEEDS && bag.injected.len() > 20, "{bag:?}");
}

/// Every bug that was ever found stays found: its scenario, made as small as it got.
#[test]
fn what_broke_once_does_not_break_again() {
    let all = regressions().expect("the regressions");
    assert!(!all.is_empty());
    for (name, scenario) in all {
        let verdict = run(&scenario, Wanted::Verdict).expect("the machine does its part");
        assert!(verdict.violations.is_empty(), "{name}: {:?}", verdict.violations);
    }
}
