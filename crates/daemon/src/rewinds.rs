//! The logs of which the broker came back with another history, for the streams of events.
//!
//! One loss of a store is told by the SDK in several events, each with some of the logs. They are collected here, and each
//! stream has a place of its own in what was collected: it tells every log once, however slow it is. A log whose history is
//! lost again is told again.

use std::collections::BTreeMap;

use serde::Serialize;
use tokio::sync::watch;
use tokio::sync::watch::error::RecvError;

/// Logs that are remembered for streams that have not told them yet. Of more, those that were rewound longest ago are forgotten,
/// and a stream that has not told them says that there were more.
const LOGS: usize = 4_096;

/// The logs of one session that were rewound.
#[derive(Debug, Default)]
pub(crate) struct Rewinds {
    /// Each with the number of its last rewind.
    logs: BTreeMap<String, u64>,
    /// Rewinds so far.
    count: u64,
    /// The number of the last rewind that was forgotten.
    forgotten: u64,
}

/// What a stream says of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Rewound {
    /// Their names, in order.
    logs: Vec<String>,
    /// Whether there were others, which are forgotten.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    more: bool,
}

impl Rewinds {
    /// The broker had another history of these logs.
    pub(crate) fn add(&mut self, logs: Vec<String>) {
        for log in logs {
            self.count += 1;
            self.logs.insert(log, self.count);
        }
        let over = self.logs.len().saturating_sub(LOGS);
        if over > 0 {
            let mut numbers: Vec<u64> = self.logs.values().copied().collect();
            numbers.sort_unstable();
            self.forgotten = numbers[over - 1];
            self.logs.retain(|_, number| *number > self.forgotten);
        }
    }

    /// Those after so many rewinds; nothing if there was none since.
    fn since(&self, count: u64) -> Option<Rewound> {
        let new = self.logs.iter().filter(|(_, number)| **number > count);
        let logs = new.map(|(log, _)| log.clone()).collect();
        (self.count > count).then_some(Rewound { logs, more: self.forgotten > count })
    }
}

/// The place of one stream.
#[derive(Debug)]
pub(crate) struct Telling {
    rewinds: watch::Receiver<Rewinds>,
    /// Rewinds that it has told.
    told: u64,
}

impl Telling {
    /// Tells what is rewound from now on.
    pub(crate) fn new(mut rewinds: watch::Receiver<Rewinds>) -> Telling {
        let told = rewinds.borrow_and_update().count;
        Telling { rewinds, told }
    }

    /// What is to be told now.
    pub(crate) fn take(&mut self) -> Option<Rewound> {
        let rewinds = self.rewinds.borrow_and_update();
        let told = std::mem::replace(&mut self.told, rewinds.count);
        rewinds.since(told)
    }

    /// Returns when there may be something to tell. Cancel-safe: what is not seen now is seen later.
    pub(crate) async fn changed(&mut self) -> Result<(), RecvError> {
        self.rewinds.changed().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewound(logs: &[&str], more: bool) -> Option<Rewound> {
        Some(Rewound { logs: logs.iter().map(|log| (*log).to_owned()).collect(), more })
    }

    fn names(numbers: std::ops::Range<usize>) -> Vec<String> {
        numbers.map(|number| format!("topic/t/{number}")).collect()
    }

    #[test]
    fn a_log_that_is_rewound_again_is_told_again() {
        let rewinds = watch::channel(Rewinds::default()).0;
        rewinds.send_modify(|rewinds| rewinds.add(vec!["before".to_owned()]));
        let mut stream = Telling::new(rewinds.subscribe());
        assert_eq!(stream.take(), None, "that was before it began");
        for _ in 0..2 {
            rewinds.send_modify(|rewinds| rewinds.add(vec!["b".to_owned(), "a".to_owned()]));
            assert_eq!(stream.take(), rewound(&["a", "b"], false));
            assert_eq!(stream.take(), None);
        }
    }

    #[test]
    fn more_logs_than_are_remembered_are_told_as_more() {
        let rewinds = watch::channel(Rewinds::default()).0;
        let [mut slow, mut quick] = [(); 2].map(|()| Telling::new(rewinds.subscribe()));
        rewinds.send_modify(|rewinds| rewinds.add(names(0..LOGS)));
        assert_eq!(quick.take().unwrap(), Rewound { more: false, logs: in_order(0..LOGS) });
        rewinds.send_modify(|rewinds| rewinds.add(names(LOGS..LOGS + 1)));
        assert_eq!(quick.take(), rewound(&["topic/t/4096"], false), "it had told what was forgotten");
        assert_eq!(slow.take().unwrap(), Rewound { more: true, logs: in_order(1..LOGS + 1) });
        let said = serde_json::to_string(&rewound(&["a"], true)).unwrap();
        assert_eq!(said, r#"{"logs":["a"],"more":true}"#);
        let said = serde_json::to_string(&rewound(&["a"], false)).unwrap();
        assert_eq!(said, r#"{"logs":["a"]}"#);
    }

    /// In the order in which they are told.
    fn in_order(numbers: std::ops::Range<usize>) -> Vec<String> {
        let mut names = names(numbers);
        names.sort();
        names
    }
}
