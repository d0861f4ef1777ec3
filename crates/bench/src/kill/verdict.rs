//! The comparison: what senders were told, what readers were given, what the history says.

use std::collections::HashMap;

use anyhow::{Result, anyhow};
use tenure_client::proto::U53;
use tenure_client::proto::limits::PAGE;
use tenure_client::proto::message::HistoryParams;

use super::Outcome;
use super::crew::Crew;
use super::record::{Record, Seen};

/// Findings of one kind that are shown.
const SHOWN: usize = 20;

/// What the comparison found.
#[derive(Debug)]
pub(super) struct Verdict {
    /// Accepts by log and seq.
    accepted: HashMap<(String, u64), Seen>,
    lost: u64,
    doubled: u64,
    wrong: u64,
}

impl Verdict {
    /// Compares the two files.
    pub(super) fn of(record: &Record) -> Result<Verdict> {
        Ok(Verdict::compare(record.accepted.read()?, &record.received.read()?))
    }

    fn compare(accepts: Vec<Seen>, received: &[Seen]) -> Verdict {
        let mut verdict = Verdict { accepted: HashMap::new(), lost: 0, doubled: 0, wrong: 0 };
        for seen in accepts {
            let place = (seen.log.clone(), seen.seq);
            if let Some(other) = verdict.accepted.insert(place, seen.clone()) {
                verdict.complain(format!("{other:?} and {seen:?} were accepted at the same place"));
            }
        }
        let mut given: HashMap<(&str, u64), u64> = HashMap::new();
        let mut last: HashMap<&str, u64> = HashMap::new();
        for seen in received {
            *given.entry((&seen.log, seen.seq)).or_default() += 1;
            // An inbox has one reader here, one priority and no failures: what comes is in order.
            if seen.log.starts_with("inbox/") {
                let last = last.entry(&seen.log).or_default();
                if seen.seq < *last {
                    verdict.complain(format!("{} came after {last} of {}", seen.seq, seen.log));
                }
                *last = (*last).max(seen.seq);
            }
            match verdict.accepted.get(&(seen.log.clone(), seen.seq)) {
                Some(accepted) if accepted == seen => {}
                Some(accepted) => verdict.complain(format!("{seen:?} was accepted as {accepted:?}")),
                None => verdict.complain(format!("{seen:?} was given and nobody was told it is accepted")),
            }
        }
        for ((log, seq), count) in &given {
            if *count > 1 {
                verdict.doubled += 1;
                if verdict.doubled <= SHOWN as u64 {
                    eprintln!("doubled: {seq} of {log} was given {count} times");
                }
            }
        }
        let missing = |seen: &&Seen| !given.contains_key(&(seen.log.as_str(), seen.seq));
        for seen in verdict.accepted.values().filter(missing) {
            verdict.lost += 1;
            if verdict.lost <= SHOWN as u64 {
                eprintln!("lost: {seen:?}");
            }
        }
        verdict
    }

    /// Reads every log from its beginning and compares it with what senders were told.
    pub(super) async fn check_history(&mut self, crew: &Crew) -> Result<()> {
        let mut found = 0;
        for (log, session) in &crew.readers {
            let mut from = Some(U53::saturating(1));
            while from.is_some() {
                let limit = Some(U53::saturating(PAGE as u64));
                let params = HistoryParams { log: log.clone(), from, limit };
                let page =
                    session.history(params).await.map_err(|error| anyhow!("history of {log}: {error}"))?;
                for message in page.messages {
                    found += 1;
                    let seen = Seen {
                        log: message.log,
                        seq: message.seq.get(),
                        id: message.id.to_string(),
                        client_id: message.client_message_id,
                    };
                    if self.accepted.get(&(seen.log.clone(), seen.seq)) != Some(&seen) {
                        self.complain(format!("the history has {seen:?}, and no sender was told so"));
                    }
                }
                from = page.next;
            }
        }
        if found != self.accepted.len() {
            self.complain(format!("the history has {found} messages, {} were accepted", self.accepted.len()));
        }
        Ok(())
    }

    /// Something else is wrong.
    pub(super) fn complain(&mut self, complaint: String) {
        self.wrong += 1;
        if self.wrong <= SHOWN as u64 {
            eprintln!("wrong: {complaint}");
        }
    }

    pub(super) fn is_good(&self) -> bool {
        self.outcome(0).is_good()
    }

    pub(super) fn outcome(&self, cycles: u64) -> Outcome {
        let Verdict { accepted, lost, doubled, wrong } = self;
        Outcome { cycles, accepted: accepted.len() as u64, lost: *lost, doubled: *doubled, wrong: *wrong }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(log: &str, seq: u64) -> Seen {
        Seen { log: log.into(), seq, id: format!("I{seq}"), client_id: format!("c{seq}") }
    }

    fn of(accepted: &[Seen], received: &[Seen]) -> [u64; 4] {
        let outcome = Verdict::compare(accepted.to_vec(), received).outcome(3);
        [outcome.accepted, outcome.lost, outcome.doubled, outcome.wrong]
    }

    #[test]
    fn what_is_missing_is_lost_and_what_comes_twice_is_doubled() {
        let all = [seen("topic/a/0", 1), seen("topic/a/0", 2), seen("inbox/s/b", 1)];
        assert_eq!(of(&all, &all), [3, 0, 0, 0]);
        assert_eq!(of(&all, &all[1..]), [3, 1, 0, 0]);
        let twice = [&all[..], &all[..1]].concat();
        assert_eq!(of(&all, &twice), [3, 0, 1, 0]);
        assert_eq!(of(&all[1..], &all), [2, 0, 0, 1]);
    }

    #[test]
    fn an_inbox_is_in_order_and_a_place_has_one_message() {
        let inbox = [seen("inbox/s/b", 1), seen("inbox/s/b", 2)];
        assert_eq!(of(&inbox, &[inbox[1].clone(), inbox[0].clone()]), [2, 0, 0, 1]);
        let other = Seen { id: "X".into(), ..seen("inbox/s/b", 1) };
        assert_eq!(of(&[inbox[0].clone(), other.clone()], &[other]), [1, 0, 0, 1]);
    }
}
