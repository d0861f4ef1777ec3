//! What a mesh and its store say to each other: records, group commit, pending writes, and what must be asked for again.
//!
//! What it never does: write. Engines carry out what stands in [`record`]; the shell forms transactions by the rule in
//! [`group_commit`].
//!
//! Where to read next: [`record`] for the vocabulary, `pending` for who waits for a commit, `retry_queue` for what must not
//! be lost.

pub mod group_commit;
pub(crate) mod pending;
pub(crate) mod queue;
pub mod record;
pub(crate) mod retry_queue;
pub(crate) mod trouble;
