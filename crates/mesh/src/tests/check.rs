//! What must hold between the fields of a mesh at any moment: every index says the same, everything is bounded.

use tenure_kit::census::Count;

use crate::*;

impl Mesh {
    /// Looks at everything. `flushed` when nothing may be left to hand out.
    pub(crate) fn check(&self, flushed: bool) {
        self.check_sessions(flushed);
        self.check_services();
        if flushed {
            assert!(self.census().iter().all(Count::fits), "{:?}", self.census());
        }
    }
}
