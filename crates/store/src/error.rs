//! Why a store refused, and what to do about it.

use tenure_kit::durable::Loss;

/// What every method of a store gives.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// Why a store refused. Each text says what a person should do; [`StoreError::Unavailable`] is the only one
/// that can pass by itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The store cannot be used now but may be later: the disk is full, or its file is held or out of reach.
    /// Nothing was done.
    #[error(
        "the store cannot be used now; free disk space or restore access to its files, then try again: {0}"
    )]
    Unavailable(String),
    /// A write met an I/O error, so what the disk holds of it is unknown; or somebody else removed, replaced or wrote over a
    /// file of the store. Every later write answers this until
    /// the process restarts and reads what is really there; reads go on. Retrying a failed sync could report as
    /// durable what the system has already thrown away.
    #[error("the store stopped writing; check the disk and the store's files, then restart the broker: {0}")]
    Poisoned(String),
    /// The data is not what was written, or cannot be understood.
    #[error(
        "the store is damaged; while no broker runs, restore a backup of its data directory, or move that aside to start afresh: {0}"
    )]
    Corrupt(String),
    /// Something that was acknowledged is not there any more, or nobody can tell. The files are left as they are.
    #[error(
        "the store {how} data that it had acknowledged: {0}. Put the right files back, or restore a backup; or accept the \
         loss with `tenure store recover --accept-loss`",
        how = if .0.cause.is_certain() { "lost" } else { "may have lost" }
    )]
    Lost(Loss),
    /// The data was written by a program that knows more than this one.
    #[error(
        "the store was written by a newer tenure (schema {found}, this one knows {supported}); start that one"
    )]
    Newer {
        /// The schema version found.
        found: u32,
        /// The newest schema version this program can read.
        supported: u32,
    },
    /// Another process uses the data directory.
    #[error("another process uses this data directory; stop it, or choose another directory")]
    Locked,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a damaged store a start tells, which no broker survives, and a broker that runs.
    #[test]
    fn what_to_do_about_damage_holds_with_and_without_a_broker_that_runs() {
        let said = StoreError::Corrupt("page 7".to_owned()).to_string();
        assert!(!said.contains("stop the broker"), "none may run: {said}");
        assert!(said.contains("while no broker runs") && said.ends_with(": page 7"), "{said}");
    }
}
