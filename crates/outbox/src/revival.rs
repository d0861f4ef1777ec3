//! Whether a session that is over is taken up again, and when.
//!
//! Whoever has the key of a local session can take it over, and the daemon is not told when he is done with it. What was
//! handed over for that session is still to be sent and what comes for it still to be kept, so the daemon takes it up again:
//! as soon as it is used here, and after a pause in any case. The pause is what two who both want it leave each other.
//!
//! The daemon's own session is another matter: losing that means that the daemon cannot work in its mesh.

/// How long a session that is over is left alone.
pub const PAUSE_MS: u64 = 60_000;

/// Why a session is over, if nobody here wanted that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// Another process speaks with its key.
    TakenOver,
    /// The broker will not have it.
    Refused,
}

/// When a session is taken up again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revival {
    /// After so long.
    pub after_ms: u64,
    /// Or before, when a row is queued for it.
    pub when_used: bool,
}

/// When a session that is over is taken up again; never, if it is the daemon's own.
pub fn revival(over: Over, own: bool) -> Option<Revival> {
    // Who was refused for good is refused as often as he asks: a row is no reason to ask sooner.
    let revival = Revival { after_ms: PAUSE_MS, when_used: over == Over::TakenOver };
    (!own).then_some(revival)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_local_session_comes_back_and_the_daemons_own_does_not() {
        let at_once = Revival { after_ms: PAUSE_MS, when_used: true };
        assert_eq!(revival(Over::TakenOver, false), Some(at_once));
        let later = Revival { when_used: false, ..at_once };
        assert_eq!(revival(Over::Refused, false), Some(later));
        assert_eq!([Over::TakenOver, Over::Refused].map(|over| revival(over, true)), [None, None]);
    }
}
