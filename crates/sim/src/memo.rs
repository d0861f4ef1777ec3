//! What an application keeps on its own disk: it survives the process.

use std::collections::BTreeMap;

use crate::seen::Letter;

/// What an application keeps on its own disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memo {
    pub(crate) last_id: u64,
    /// Sends without an answer, by id: the next process sends them again.
    pub(crate) unanswered: BTreeMap<String, Letter>,
    /// Some that were accepted, to be sent again for their own sake.
    pub(crate) accepted: Vec<(String, Letter)>,
    /// All ids that were accepted, for the last look.
    pub(crate) all: Vec<String>,
}
