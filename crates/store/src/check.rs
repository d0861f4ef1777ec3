//! A check of a store, and what it found so far.

use std::collections::BTreeSet;

/// Findings that are told in full; of the others only the number is.
const FINDINGS_MAX: usize = 100;

/// A check that is done in slices, so that nobody waits for it: see [`crate::StoreReader::check_slice`].
#[derive(Debug, Default)]
pub struct Checking {
    pub(crate) report: Report,
    pub(crate) walk: Walk,
}

impl Checking {
    /// What was found so far, in words.
    pub fn findings(&self) -> Vec<String> {
        self.report.findings()
    }

    /// How many entries or dedupe records were found without the other.
    pub fn violations(&self) -> u64 {
        self.report.violations
    }
}

/// Where a check is.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    /// Which part of it.
    pub(crate) part: Part,
    /// The key of the last row that it looked at there, and the totals of that row.
    pub(crate) after: Option<i64>,
    pub(crate) before: Option<Totals>,
    /// The same of dedupe records.
    pub(crate) record: Option<(String, i64)>,
    /// Places in the middle of a lane at which there is no entry, and no record was seen yet.
    pub(crate) holes: BTreeSet<i64>,
}

/// What an entry says of its lane, and until when its id is remembered if it reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Totals {
    pub(crate) seq: u64,
    pub(crate) count: u64,
    pub(crate) bytes: u64,
    pub(crate) remember_until: Option<Option<u64>>,
}

/// The parts of a check, in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Part {
    /// The pages and indexes of all tables but those whose rows are all read below.
    #[default]
    Tables,
    /// What is small: identity, leases, services, members.
    Small,
    Entries,
    Records,
    /// Lanes, groups, what is open, runs.
    Readers,
    Letters,
    Over,
}

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Report {
    findings: Vec<String>,
    untold: usize,
    violations: u64,
}

impl Report {
    /// One more finding.
    pub(crate) fn add(&mut self, finding: String) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
        } else {
            self.untold += 1;
        }
    }

    /// One more finding: what is one transaction was found half done.
    pub(crate) fn violation(&mut self, finding: String) {
        self.violations += 1;
        self.add(finding);
    }

    pub(crate) fn findings(&self) -> Vec<String> {
        let more = (self.untold > 0).then(|| format!("and {} more", self.untold));
        self.findings.iter().cloned().chain(more).collect()
    }
}
