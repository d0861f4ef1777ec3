//! The comparison: what clients were promised, and what the receiver's file says, read with plain SQL.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result};
use rusqlite::{Connection, OpenFlags};
use serde_json::Value;

use super::Outcome;
use super::clients::{Promised, Record};

/// Findings of one kind that are shown.
const SHOWN: u64 = 20;
/// What ids of messages begin with that only find out whether something arrives.
const PROBE: &str = "probe-";

/// The id of the `number`th message that finds out whether `target` is there.
pub(super) fn probe(target: &str, number: u64) -> String {
    format!("{PROBE}{target}-{number}")
}

/// A message in the receiver's file.
#[derive(Clone, Debug)]
struct Kept {
    target: String,
    id: String,
    body: String,
}

/// What the comparison found.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    accepted: u64,
    received: u64,
    lost: u64,
    doubled: u64,
    wrong: u64,
}

impl Verdict {
    pub(super) fn of(record: &Record, home: &Path, targets: &[String]) -> Result<Verdict> {
        let kept = kept(home)?;
        let mut verdict = Verdict::compare(&record.read()?, &kept);
        for stray in kept.iter().filter(|kept| !targets.contains(&kept.target)) {
            verdict.complain(format!("{} is at {}, which nobody sent to", stray.id, stray.target));
        }
        Ok(verdict)
    }

    fn compare(promised: &[Promised], kept: &[Kept]) -> Verdict {
        let mut verdict = Verdict { accepted: promised.len() as u64, ..Verdict::default() };
        let wanted: HashMap<(&str, String), &Promised> =
            promised.iter().map(|one| ((one.target.as_str(), one.id()), one)).collect();
        if wanted.len() != promised.len() {
            verdict.complain("a client was promised the same thing twice".to_owned());
        }
        let mut times: HashMap<(&str, &str), u64> = HashMap::new();
        let mut last: HashMap<(&str, u64), u64> = HashMap::new();
        for one in kept.iter().filter(|one| !one.id.starts_with(PROBE)) {
            *times.entry((&one.target, &one.id)).or_default() += 1;
            let Some(promised) = wanted.get(&(one.target.as_str(), one.id.clone())) else {
                verdict.complain(format!("{} came to {}, and nobody was promised that", one.id, one.target));
                continue;
            };
            if one.body != promised.body() {
                verdict.complain(format!("{} came with another body", one.id));
            }
            let last = last.entry((&one.target, promised.client)).or_default();
            if promised.number < *last {
                verdict.complain(format!("{} came to {} after number {last}", one.id, one.target));
            }
            *last = promised.number.max(*last);
        }
        verdict.received = times.len() as u64;
        for ((target, id), count) in times.iter().filter(|(_, count)| **count > 1) {
            verdict.doubled += 1;
            show(verdict.doubled, || format!("doubled: {id} is {count} times at {target}"));
        }
        for one in
            promised.iter().filter(|one| !times.contains_key(&(one.target.as_str(), one.id().as_str())))
        {
            verdict.lost += 1;
            show(verdict.lost, || format!("lost: {} to {}", one.id(), one.target));
        }
        verdict
    }

    /// What the sender's file says of them: all is done.
    pub(super) fn check_outbox(&mut self, home: &Path) -> Result<()> {
        let outbox = open(home, "outbox.db")?;
        let mut statement = outbox.prepare(
            "SELECT client_message_id, status, coalesce(last_error, '') FROM outbox WHERE status <> 'done' LIMIT 100",
        )?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let (id, status, error): (String, String, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
            self.complain(format!("{id} is {status} in the sender's outbox: {error}"));
        }
        Ok(())
    }

    /// Something else is wrong.
    pub(super) fn complain(&mut self, complaint: String) {
        self.wrong += 1;
        show(self.wrong, || format!("wrong: {complaint}"));
    }

    pub(super) fn outcome(&self, cycles: u64) -> Outcome {
        let Verdict { accepted, received, lost, doubled, wrong } = *self;
        Outcome { cycles, accepted, received, lost, doubled, wrong }
    }
}

fn show(number: u64, finding: impl FnOnce() -> String) {
    if number <= SHOWN {
        eprintln!("{}", finding());
    }
}

fn open(home: &Path, file: &str) -> Result<Connection> {
    let path = home.join(file);
    // The log beside the file can only be read by somebody who may write.
    let connection = Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_WRITE);
    let connection = connection.with_context(|| format!("open {}", path.display()))?;
    connection.busy_timeout(std::time::Duration::from_secs(5))?;
    connection.pragma_update(None, "query_only", true)?;
    Ok(connection)
}

/// Messages in the file that are not probes.
pub(super) fn count(home: &Path) -> Result<u64> {
    let sql = "SELECT count(*) FROM inbox WHERE json_extract(CAST(message AS TEXT), '$.clientMessageId') NOT LIKE ?1";
    let count: i64 = open(home, "inbox.db")?.query_row(sql, [format!("{PROBE}%")], |row| row.get(0))?;
    Ok(count.unsigned_abs())
}

/// Whether a probe has arrived at `target`.
pub(super) fn has_probe(home: &Path, target: &str) -> Result<bool> {
    let like = format!("{PROBE}{target}-%");
    let sql =
        "SELECT count(*) FROM inbox WHERE json_extract(CAST(message AS TEXT), '$.clientMessageId') LIKE ?1";
    let count: i64 = open(home, "inbox.db")?.query_row(sql, [like], |row| row.get(0))?;
    Ok(count > 0)
}

/// Everything in the file, in the order of arrival.
fn kept(home: &Path) -> Result<Vec<Kept>> {
    let inbox = open(home, "inbox.db")?;
    let mut statement = inbox.prepare("SELECT recipient, topic, message FROM inbox ORDER BY id")?;
    let mut rows = statement.query([])?;
    let mut kept = Vec::new();
    while let Some(row) = rows.next()? {
        let (recipient, topic): (String, Option<String>) = (row.get(0)?, row.get(1)?);
        let message: Value =
            serde_json::from_slice(row.get_ref(2)?.as_blob()?).context("a message is not JSON")?;
        let text = |field: &str| message[field].as_str().unwrap_or_default().to_owned();
        let target = topic.map_or(recipient, |topic| format!("topic:{topic}"));
        kept.push(Kept { target, id: text("clientMessageId"), body: text("body") });
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn promised(target: &str, number: u64) -> Promised {
        Promised { target: target.to_owned(), client: 1, number }
    }

    fn kept(promised: &Promised) -> Kept {
        Kept { target: promised.target.clone(), id: promised.id(), body: promised.body() }
    }

    fn of(promised: &[Promised], kept: &[Kept]) -> [u64; 5] {
        let Outcome { accepted, received, lost, doubled, wrong, .. } =
            Verdict::compare(promised, kept).outcome(1);
        [accepted, received, lost, doubled, wrong]
    }

    #[test]
    fn what_is_missing_is_lost_and_what_is_there_twice_is_doubled() {
        let all = [promised("topic:a", 1), promised("member:b", 2), promised("topic:a", 3)];
        let came: Vec<Kept> = all.iter().map(kept).collect();
        assert_eq!(of(&all, &came), [3, 3, 0, 0, 0]);
        assert_eq!(of(&all, &came[1..]), [3, 2, 1, 0, 0]);
        assert_eq!(of(&all, &[&came[..], &came[2..]].concat()), [3, 3, 0, 1, 0]);
        assert_eq!(of(&all[1..], &came), [2, 3, 0, 0, 1], "nobody was promised the first");
    }

    #[test]
    fn bodies_and_the_order_to_one_target_are_compared() {
        let all = [promised("topic:a", 1), promised("topic:a", 2)];
        let other = Kept { body: "x".to_owned(), ..kept(&all[1]) };
        assert_eq!(of(&all, &[kept(&all[0]), other]), [2, 2, 0, 0, 1]);
        assert_eq!(of(&all, &[kept(&all[1]), kept(&all[0])]), [2, 2, 0, 0, 1]);
        let probe = Kept { target: "topic:a".to_owned(), id: probe("topic:a", 1), body: "?".to_owned() };
        assert_eq!(of(&all, &[probe, kept(&all[0]), kept(&all[1])]), [2, 2, 0, 0, 0]);
    }
}
