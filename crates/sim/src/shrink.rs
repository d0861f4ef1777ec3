//! A smaller scenario that breaks the same promise.

use crate::disk::Broken;
use crate::run::{Wanted, run};
use crate::scenario::Scenario;

/// Runs that shrinking may take.
const TRIES: usize = 600;

/// Leaves out of `scenario` whatever is not needed to break `rule`: what comes after, faults, sessions, and what they
/// read, until nothing more can go or enough was tried.
pub fn shrink(scenario: &Scenario, rule: &str) -> Result<Scenario, Broken> {
    let mut shrinking = Shrinking { best: scenario.clone(), rule, tries: 0 };
    shrinking.cut_the_end()?;
    shrinking.leave_out_faults()?;
    for index in (0..shrinking.best.cast.len()).rev() {
        shrinking.attempt(|scenario| _ = scenario.cast.remove(index))?;
    }
    for index in 0..shrinking.best.cast.len() {
        shrinking.attempt(|scenario| scenario.cast[index].reads.clear())?;
        shrinking.attempt(|scenario| scenario.cast[index].sends_every_ms = 0)?;
        shrinking.attempt(|scenario| scenario.cast[index].calls_every_ms = 0)?;
        shrinking.attempt(|scenario| scenario.cast[index].moody = false)?;
    }
    shrinking.leave_out_faults()?;
    shrinking.cut_the_end()?;
    Ok(shrinking.best)
}

struct Shrinking<'a> {
    best: Scenario,
    rule: &'a str,
    tries: usize,
}

impl Shrinking<'_> {
    /// Takes a smaller scenario if it breaks the same rule; says whether it does.
    fn attempt(&mut self, change: impl FnOnce(&mut Scenario)) -> Result<bool, Broken> {
        if self.tries >= TRIES {
            return Ok(false);
        }
        self.tries += 1;
        let mut smaller = self.best.clone();
        change(&mut smaller);
        let verdict = run(&smaller, Wanted::Verdict)?;
        let breaks = verdict.violations.iter().any(|violation| violation.rule == self.rule);
        if breaks {
            self.best = smaller;
        }
        Ok(breaks)
    }

    /// Halves the time in which things go wrong for as long as that changes nothing.
    fn cut_the_end(&mut self) -> Result<(), Broken> {
        for eighths in [1, 2, 4, 6, 7] {
            let span = self.best.span_ms * eighths / 8;
            let cut = self.attempt(|scenario| {
                scenario.span_ms = span;
                scenario.faults.retain(|planned| planned.at < span);
            })?;
            if cut {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Leaves out ever smaller parts of what goes wrong.
    fn leave_out_faults(&mut self) -> Result<(), Broken> {
        let mut size = self.best.faults.len().div_ceil(2);
        while size > 0 && !self.best.faults.is_empty() {
            let mut from = 0;
            while from < self.best.faults.len() {
                let to = (from + size).min(self.best.faults.len());
                let gone = self.attempt(|scenario| _ = scenario.faults.drain(from..to))?;
                if !gone {
                    from = to;
                }
            }
            size = if size == 1 { 0 } else { size.div_ceil(2) };
            if self.tries >= TRIES {
                break;
            }
        }
        Ok(())
    }
}
