//! How many files the system lets this process have open, which bounds its connections.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files that a broker needs besides its connections: the store's, the log, and those that are being turned away.
const SPARE_FILES: u64 = 128;

/// Raises the limit of open files as far as this process may, says so in the log, and gives the limit that holds.
pub(crate) fn raise() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let now = match limit.current == limit.maximum || setrlimit(Resource::Nofile, raised).is_err() {
        true => limit.current,
        false => limit.maximum,
    };
    let number = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
    let (from, to) = (number(limit.current), number(now));
    match to > from {
        true => {
            tracing::info!(event = "descriptors", limit = to, was = from, "the limit of open files is raised")
        }
        false => tracing::info!(event = "descriptors", limit = to),
    }
    to
}

/// Connections that there may be with `limit` open files.
pub(crate) fn connections(limit: u64) -> usize {
    let connections = limit.saturating_sub(SPARE_FILES).max(limit / 2);
    usize::try_from(connections).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_for_the_rest() {
        assert_eq!(connections(1_024), 896);
        assert_eq!(connections(100), 50);
        assert_eq!(connections(u64::MAX), usize::MAX - 128);
        assert!(raise() > 0);
    }
}
