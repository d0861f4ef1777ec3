//! Deliberate bugs, for those who test the tests: a simulator that finds none of these would find no others either.
//!
//! A mutant is on in one thread at a time, and only in a build with `--cfg tenure_mutants`; in every other build
//! [`on`] is `false` before the program runs, and nothing of a mutant is left. Each stands where the rule stands
//! that it breaks.

macro_rules! mutants {
    ($($variant:ident $name:literal $what:literal;)*) => {
        /// A deliberate bug.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Mutant {
            $(#[doc = $what] $variant,)*
        }

        impl Mutant {
            /// All of them.
            pub const ALL: &[Mutant] = &[$(Mutant::$variant),*];

            /// Its name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Mutant::$variant => $name,)*
                }
            }

            /// What is wrong with it, in a sentence.
            pub const fn what(self) -> &'static str {
                match self {
                    $(Mutant::$variant => $what,)*
                }
            }

            /// The one called `name`.
            pub fn named(name: &str) -> Option<Mutant> {
                Mutant::ALL.iter().copied().find(|mutant| mutant.name() == name)
            }
        }
    };
}

mutants! {
    AnswerBeforeSync "answer-before-sync" "A send is answered when its write is asked for, not after its commit.";
    TokenWithoutProof "token-without-proof" "A hello with a good token is admitted although its proof fails.";
    RequeueToBack "requeue-to-back" "What comes back from a reader goes behind what is new.";
    LeftAtClose "left-at-close" "Peers hear `left` when the socket closes.";
    DedupeWithoutSender "dedupe-without-sender" "The sender is no part of the key under which ids are remembered.";
    SettleMovedOn "settle-moved-on" "A settle counts although its claim has moved on to somebody else.";
    UnreadCounts "unread-counts" "A push that was never read counts as an attempt.";
    NoThaw "no-thaw" "Deadlines are not shifted after a freeze.";
    RingLost "ring-lost" "The event ring is lost on resume, but replay is said to be complete.";
    SeqRestarts "seq-restarts" "Event numbers begin at 1 again within an epoch.";
    FailedIsCommitted "failed-is-committed" "A write that failed is treated as committed.";
    LeaseForgottenAtStart "lease-forgotten-at-start" "A restored lease gets no time.";
    RequeueAtClose "requeue-at-close" "What a session has in hand goes back to others at once when its socket breaks.";
    NoCredit "no-credit" "Prefetch is ignored.";
    BookForgotten "book-forgotten" "The SDK forgets on reconnect what it has in hand or acked.";
    LeftTwice "left-twice" "`left` is told twice for one end.";
    ReusedIdAccepted "reused-id-accepted" "Another body under a used id is answered as a duplicate.";
    DndIgnored "dnd-ignored" "Priorities that a status holds back are delivered.";
    TtlIgnored "ttl-ignored" "An expired message is delivered all the same.";
    LeaseNeverEnds "lease-never-ends" "A lease of a session that does not come back lives on.";
    TouchNotAwaited "touch-not-awaited" "Whoever is back after a start is answered before that is on disk.";
    RunEndUnsynced "run-end-unsynced" "The end of a run is told before it is on disk.";
    ChunkForgotten "chunk-forgotten" "The SDK does not send a chunk again that was not answered.";
    DrainEndsLeases "drain-ends-leases" "A drain ends the lease of everybody it closes.";
    SlowEndsLease "slow-ends-lease" "Whoever is closed because it does not read loses its lease.";
    SlowSkips "slow-skips" "What others did while a socket was slow is skipped without a word.";
    UnheardIsDone "unheard-is-done" "A daemon takes a send that was not answered for accepted.";
    AckBeforePersist "ack-before-persist" "A daemon settles a message before its inbox has it.";
    InflightForgotten "inflight-forgotten" "A daemon that starts does not send again what was on its way.";
    NewIdOnRetry "new-id-on-retry" "A daemon sends again under another id.";
    ServiceGoneAtClose "service-gone-at-close" "A service is withdrawn when its session's socket closes.";
    NameHeldAfterEnd "name-held-after-end" "A service's name is not free when its session's lease ends.";
    GapToldOnce "gap-told-once" "A reader is told once what of its topic is gone, whether it hears that or not.";
    StatusDoesNotWait "status-does-not-wait" "`send.status` is answered before sends that came before it are decided.";
    RequeueByIdAlone "requeue-by-id-alone" "A daemon takes what the broker has under a row's id for that row, whatever it is.";
    PlaceAlone "place-alone" "An entry whose place was settled counts as settled, whatever message it is now.";
    CaughtUpUnwoken "caught-up-unwoken" "A reader whose next entry is gone does not hear of later ones.";
    PastSettleForgotten "past-settle-forgotten" "The SDK forgets what it settled of a history that the store shares.";
    EndedKeeps "ended-keeps" "The SDK lists what it has in hand through subscriptions that are over.";
    BanForgottenAtStart "ban-forgotten-at-start" "A start lets in who was banned.";
    OwnNumbersAtStart "own-numbers-at-start" "A start takes the broker's own numbers, whatever operators have set.";
    UsesUncounted "uses-uncounted" "An invite lets in as many as come.";
    RightsUnchecked "rights-unchecked" "A session may do what its member may not.";
    OneWitness "one-witness" "A hello lists one entry of each log, and nothing is told when that one is gone.";
    SubNameByNumber "sub-name-by-number" "A new subscription gets the name of one of another history.";
    StartUntold "start-untold" "A reader that goes on in another history is not told where.";
    RewindUnnoticed "rewind-unnoticed" "A store that came back with another history is not told apart from the old one.";
    PlaceBelieved "place-believed" "A subscription is made again at the client's place although that is one of another history.";
    MissedUntold "missed-untold" "A reader whose subscription is made again further on is not told what it misses.";
    TagWithoutId "tag-without-id" "A tag settles whatever message stands at its place.";
    LaneOvertakes "lane-overtakes" "A daemon sends the next row of a lane although the one before was refused for now.";
    UnclaimedGoesLast "unclaimed-goes-last" "A delivery whose claim was lost goes behind what was handed out after it.";
    LeftByOrigin "left-by-origin" "What moved on stays open in its old inbox unless its sender is known.";
    FreezeIsUptime "freeze-is-uptime" "A freeze that no mesh has noticed yet counts as uptime.";
    HelloHasTheLastWord "hello-has-the-last-word" "What peers see is not said again when a hello has undone it.";
    LogCutUnnoticed "log-cut-unnoticed" "A start does not notice that the store lost acknowledged data.";
}

/// Whether this build has mutants at all.
pub const BUILT: bool = cfg!(tenure_mutants);

#[cfg(tenure_mutants)]
thread_local! {
    static ON: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// Turns one on in this thread, in place of any other, or all off. Does nothing in a build without mutants.
#[cfg(tenure_mutants)]
pub fn set(mutant: Option<Mutant>) {
    ON.set(mutant);
}

/// Turns one on in this thread, in place of any other, or all off. Does nothing in a build without mutants.
#[cfg(not(tenure_mutants))]
pub const fn set(_: Option<Mutant>) {}

/// Whether `mutant` is on in this thread.
#[cfg(tenure_mutants)]
#[inline]
pub fn on(mutant: Mutant) -> bool {
    ON.get() == Some(mutant)
}

/// Whether `mutant` is on in this thread: never, in this build.
#[cfg(not(tenure_mutants))]
#[inline(always)]
pub const fn on(_: Mutant) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_has_a_name_of_its_own_and_a_sentence() {
        let names: BTreeSet<_> = Mutant::ALL.iter().map(|mutant| mutant.name()).collect();
        assert_eq!(names.len(), Mutant::ALL.len());
        for mutant in Mutant::ALL {
            assert_eq!(Mutant::named(mutant.name()), Some(*mutant));
            assert!(mutant.what().ends_with('.'));
        }
        assert_eq!(Mutant::named("none-of-them"), None);
    }

    #[test]
    fn at_most_one_is_on_and_only_in_a_build_that_has_them() {
        for mutant in Mutant::ALL {
            set(Some(*mutant));
            let on: Vec<_> = Mutant::ALL.iter().copied().filter(|mutant| super::on(*mutant)).collect();
            assert_eq!(on, if BUILT { vec![*mutant] } else { Vec::new() });
        }
        set(None);
        assert!(Mutant::ALL.iter().all(|mutant| !super::on(*mutant)));
    }
}
