//! Names of logs: an inbox of a session or a member, or one partition of a topic.

use std::fmt;
use std::str::FromStr;

use crate::error::{ErrorCode, WireError};
use crate::ids::{MemberKey, SessionKey};
use crate::name::TopicName;

/// Bytes of an inbox's name; most topics' are shorter.
const SPELLED: usize = 72;

/// Which log: `inbox/s/<hex>`, `inbox/m/<hex>` or `topic/<name>/<partition>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LogName {
    /// A session's inbox.
    Session(SessionKey),
    /// A member's inbox.
    Member(MemberKey),
    /// One partition of a topic.
    Topic(TopicName, u32),
}

impl LogName {
    /// Whether it is an inbox: those have a lane per priority.
    pub fn is_inbox(&self) -> bool {
        !matches!(self, LogName::Topic(..))
    }

    /// Its name in room that need not grow: `to_string` would make that anew for each part of it.
    pub fn spelled(&self) -> String {
        use fmt::Write;
        let mut text = String::with_capacity(SPELLED);
        // A string takes all that is written to it.
        let _ = write!(text, "{self}");
        text
    }
}

impl fmt::Display for LogName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogName::Session(key) => write!(f, "inbox/s/{key}"),
            LogName::Member(key) => write!(f, "inbox/m/{key}"),
            LogName::Topic(name, partition) => write!(f, "topic/{name}/{partition}"),
        }
    }
}

impl FromStr for LogName {
    type Err = WireError;
    fn from_str(text: &str) -> Result<LogName, WireError> {
        let bad = || {
            WireError::new(
                ErrorCode::BadRequest,
                "a log is inbox/s/<session hex>, inbox/m/<member hex> or topic/<name>/<partition>",
            )
        };
        let (kind, rest) = text.split_once('/').ok_or_else(bad)?;
        let (first, second) = rest.split_once('/').ok_or_else(bad)?;
        let log = match (kind, first) {
            ("inbox", "s") => LogName::Session(second.parse().map_err(|_| bad())?),
            ("inbox", "m") => LogName::Member(second.parse().map_err(|_| bad())?),
            ("topic", name) => LogName::Topic(name.parse()?, second.parse().map_err(|_| bad())?),
            _ => return Err(bad()),
        };
        // One value, one spelling: no sign, no leading zeros.
        if log.to_string() == text { Ok(log) } else { Err(bad()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_has_one_spelling() {
        let key = "ab".repeat(32);
        for text in [format!("inbox/s/{key}"), format!("inbox/m/{key}"), "topic/jobs/0".to_owned()] {
            let log: LogName = text.parse().unwrap();
            assert_eq!((log.to_string(), log.spelled()), (text.clone(), text));
        }
        for text in
            ["", "topic/jobs", "topic/jobs/", "topic/jobs/+1", "topic/jobs/01", "topic/dead/0", "inbox/x/1"]
        {
            assert!(text.parse::<LogName>().is_err(), "{text}");
        }
    }
}
