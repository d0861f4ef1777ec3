//! Whether the broker is there, as the log tells it: once when it is lost and why, once when it is back and after how long.

use std::time::{Duration, Instant};

use tenure_proto::SessionKey;

/// What there is to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// The broker is lost, or was not there to begin with.
    Lost {
        /// Why.
        reason: String,
    },
    /// It is there again.
    Regained {
        /// Why it was lost.
        reason: String,
        /// For how long.
        away: Duration,
    },
    /// It is there for the first time.
    Found,
}

/// Whether the broker is there.
#[derive(Debug, Default)]
pub(crate) struct Contact {
    /// Since when it is not, and why, once that was said.
    lost: Option<(Instant, String)>,
    attached: bool,
}

impl Contact {
    /// No socket carries the session. Further attempts that fail are not said again.
    pub(crate) fn away(&mut self, now: Instant, reason: &str) -> Option<Line> {
        self.attached = false;
        if self.lost.is_some() {
            return None;
        }
        self.lost = Some((now, reason.to_owned()));
        Some(Line::Lost { reason: reason.to_owned() })
    }

    /// A socket carries it. One that replaces another without a break between them is not worth a word.
    pub(crate) fn here(&mut self, now: Instant) -> Option<Line> {
        let first = !std::mem::replace(&mut self.attached, true);
        match self.lost.take() {
            Some((since, reason)) => {
                Some(Line::Regained { reason, away: now.saturating_duration_since(since) })
            }
            None => first.then_some(Line::Found),
        }
    }
}

/// Writes a line to the log.
pub(crate) fn say(session: &SessionKey, line: Option<Line>) {
    match line {
        Some(Line::Lost { reason }) => tracing::warn!(event = "broker_lost", %session, reason),
        Some(Line::Regained { reason, away }) => {
            tracing::info!(event = "broker_regained", %session, away_ms = away.as_millis() as u64, reason);
        }
        Some(Line::Found) => tracing::info!(event = "broker_found", %session),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_said_once_and_its_end_with_how_long_it_took() {
        let (mut contact, start) = (Contact::default(), Instant::now());
        let after = |ms| start + Duration::from_millis(ms);
        assert_eq!(contact.here(start), Some(Line::Found));
        assert_eq!(contact.here(start), None, "the same again");
        let lost = Line::Lost { reason: "stale".to_owned() };
        assert_eq!(contact.away(after(10), "stale"), Some(lost));
        assert_eq!(contact.away(after(20), "connection refused"), None, "it is known to be lost");
        let back = Line::Regained { reason: "stale".to_owned(), away: Duration::from_millis(1_490) };
        assert_eq!(contact.here(after(1_500)), Some(back));
        assert_eq!(contact.away(after(2_000), "closed"), Some(Line::Lost { reason: "closed".to_owned() }));
    }

    #[test]
    fn a_broker_that_was_never_there_is_lost_from_the_first_attempt_on() {
        let (mut contact, start) = (Contact::default(), Instant::now());
        assert!(matches!(contact.away(start, "refused"), Some(Line::Lost { .. })));
        let back = contact.here(start + Duration::from_secs(3));
        assert_eq!(back, Some(Line::Regained { reason: "refused".to_owned(), away: Duration::from_secs(3) }));
    }
}
