//! What an application keeps on its own disk: it survives the process.

use std::collections::BTreeMap;

use tenure_proto::ids::RunId;

use crate::runs::Calling;
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
    /// Calls that have not ended, by their keys: the next process takes them up.
    pub(crate) calls: BTreeMap<String, Calling>,
    /// All runs that were begun, by their keys.
    pub(crate) runs: BTreeMap<String, RunId>,
}
