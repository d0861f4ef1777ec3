//! How full everything of a link is that has a bound, for those who test that bounds hold.

use tenure_kit::census::Count;
use tenure_proto::limits::{MAX_INFLIGHT, SERVICES_PER_SESSION};

use crate::Link;
use crate::book::RUNS;
use crate::ids::IDS;
use crate::inflight::PROGRESS;
use crate::runs::CHUNK_WINDOW;
use crate::runs::callee::EARLY_CANCELS;
use crate::runs::caller::{CALLS, UNREAD};
use crate::send::AWAITED;
use crate::services::RENEWALS;
use crate::subs::{EARLY, SUBSCRIPTIONS, Sub};

impl Link {
    /// How full everything is that has a bound. Looks at everything once.
    pub fn census(&self) -> Vec<Count> {
        let (deadlines, most) = self.requests.deadlines();
        let count = |what, size, bound| Count { what, size, bound };
        let books = || self.subs.iter().flat_map(|(_, sub)| sub.books());
        let pushed = |(handle, sub): (_, &Sub)| (self.hands.pushed(handle), sub.room());
        vec![
            count("requests of the application", self.requests.of_application(), MAX_INFLIGHT as usize),
            count("deadlines of requests", deadlines, most),
            count("receipts that are awaited", self.receipts.len(), AWAITED),
            count("subscriptions", self.subs.iter().count(), SUBSCRIPTIONS),
            count("deliveries whose subscription is not known yet", self.subs.early(), EARLY),
            Count::fullest("pushed to a subscription and in hand", self.subs.iter().map(pushed)),
            count("words of progress about a message", self.hands.progress(), PROGRESS as usize),
            count("calls that have not ended", self.calls.len(), CALLS),
            count("chunks that wait for the reader of a call", self.calls.unread(), UNREAD),
            count("cost of a run's chunks without an answer", self.serving.unanswered(), CHUNK_WINDOW),
            count("cancelled runs that have not come", self.serving.early_cancels(), EARLY_CANCELS),
            count("services that are offered or given up", self.offers.len(), SERVICES_PER_SESSION),
            count("renewals without an answer", self.offers.unanswered(), RENEWALS),
            count("ids that a subscription remembers", self.subs.handled(), IDS),
            Count::fullest("runs that a book remembers", books().flat_map(|b| b.runs()).map(|n| (n, RUNS))),
        ]
    }
}
