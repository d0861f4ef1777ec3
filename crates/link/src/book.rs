//! What a subscription remembers of one log: what is in hand, what was acked, what is done.
//!
//! This is why an entry is handed to the application once although it may be delivered many times, and why a
//! subscription that has to be made again begins where nothing is lost: at the first entry that is not done.

use std::collections::BTreeMap;

use tenure_kit::mutant::{self, Mutant};
use tenure_proto::ids::MessageId;

use crate::delivery::{DeliveryId, Verb};

/// Runs of consecutive entries that are remembered per log, of what was acked and of what is done; the lowest are
/// forgotten first.
///
/// What can come back although it was acked: after a broker start, what a private group acked within the 5 s
/// that its floor may lag behind; after a break, acks whose answer was lost, at most a prefetch; after a lost
/// lease, everything from the first entry that is not done. A sole reader acks in runs, so all of that is a
/// handful of them however fast it reads. Readers that compete leave a run for each entry in the worst case:
/// then this is 5 s of 1,600 acks a second, and what is forgotten is merely delivered again.
pub(super) const RUNS: usize = 8_192;
/// Entries of a log that a hello lists for comparison.
pub(super) const WITNESSES: usize = 4;

/// Who reads, which decides what a book can know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Reading {
    /// Readers that compete, or an inbox: the group, which outlives its members, knows what is missed.
    #[default]
    Shared,
    /// One that gets every entry, to which having got it is all.
    Glance,
    /// One that gets every entry and settles it: it knows what it has missed.
    Sole,
}

/// One log of one subscription.
#[derive(Debug, Default)]
pub(super) struct Book {
    /// Which partition it is, of a topic.
    pub(super) partition: Option<u32>,
    reading: Reading,
    /// The first entry that is not done, of a sole reader.
    next: Option<u64>,
    /// What is done beyond it: acked, buried, or known to be gone.
    done: Runs,
    /// The last entry that came, or the one before the first that will; `None` before either is known of this history.
    seen: Option<u64>,
    /// What is with the application, or on its way to being settled.
    in_hand: BTreeMap<u64, DeliveryId>,
    /// The same of a history that is not the log's any more: told apart by id when the number comes again, and nothing to its
    /// runs.
    in_hand_before: BTreeMap<u64, DeliveryId>,
    acked: Runs,
    /// Where it first began. Nothing before it is the business of a reader that gets every entry, also when the
    /// subscription had to be made again from further back for the sake of another partition.
    first: Option<u64>,
    /// What was given up for good: at which attempt, and how; at most [`RUNS`], the lowest are forgotten first.
    buried: BTreeMap<u64, (u32, Verb)>,
    /// The highest entries that ever came, with their ids, at most [`WITNESSES`]: by them the broker tells whether its
    /// history is ours. More than one, because it cannot tell by an entry that is gone.
    witnesses: BTreeMap<u64, MessageId>,
    /// Set once the log was rewound, and never cleared.
    rewound: Option<Rewound>,
}

/// How a reader tells old from new in a log that was rewound.
#[derive(Clone, Copy, Debug)]
struct Rewound {
    /// When the subscription was first opened, by the broker's clock: numbers say nothing of what was there before
    /// [`Book::first`], but an id tells when its message was accepted.
    opened_at: u64,
    /// The lowest entry of this history that came or will. Nothing is missed below it.
    lowest: Option<u64>,
}

/// Of which history of its log something in hand came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum History {
    /// The one that there is.
    Present,
    /// One before it: its number may name another message now.
    Past,
}

impl Book {
    /// An empty one, of that partition of a topic or of an inbox.
    pub(super) fn of(partition: Option<u32>, reading: Reading) -> Book {
        Book { partition, reading, ..Book::default() }
    }

    /// The subscription begins at `seq`. Gives what a reader that gets every entry misses by that: it was further back.
    pub(super) fn begin(&mut self, seq: u64) -> Option<(u64, u64)> {
        let before = match self.reading {
            Reading::Shared => None,
            // Before something came of a history, its numbers say nothing.
            Reading::Glance | Reading::Sole => self.seen.and(self.position()),
        };
        let before = before.filter(|at| at + 1 < seq && !mutant::on(Mutant::MissedUntold));
        let missed = before.and_then(|at| self.gap(at + 1, seq - 1));
        self.seen = match self.reading {
            // Another partition may have made the subscription begin further back: what was read here stays read.
            Reading::Glance => self.seen.max(seq.checked_sub(1)),
            Reading::Shared | Reading::Sole => seq.checked_sub(1),
        };
        self.first.get_or_insert(seq);
        self.owe_from(seq);
        if self.reading == Reading::Sole {
            // What is before the start and was not done is gone; what was done stays done.
            self.next = self.next.max(Some(seq));
            self.advance();
        }
        missed
    }

    /// The broker goes on with a lone reader from `seq`. After a rewind that is all we know of our place: what is before it was
    /// settled in that history, by us.
    pub(super) fn go_on(&mut self, seq: u64) {
        if self.is_rewound() && self.seen.is_none() {
            self.begin(seq);
        }
    }

    /// An entry came, taken or not.
    pub(super) fn came(&mut self, seq: u64, id: MessageId) {
        self.witnesses.insert(seq, id);
        if self.witnesses.len() > WITNESSES {
            self.witnesses.pop_first();
        }
    }

    /// The highest entries that ever came, with their ids.
    pub(super) fn witnesses(&self) -> &BTreeMap<u64, MessageId> {
        &self.witnesses
    }

    /// Whether it knows anything that the numbers of its log mean.
    pub(super) fn is_begun(&self) -> bool {
        let wanted = self.reading != Reading::Shared && self.first.is_some();
        !self.witnesses.is_empty() || self.seen.is_some() || wanted
    }

    /// The history of its log is another one now: its numbers name other messages. What is in hand stays there.
    pub(super) fn rewind(&mut self, opened_at: u64) {
        let next = (self.reading == Reading::Sole).then_some(1);
        let mut in_hand_before = std::mem::take(&mut self.in_hand_before);
        in_hand_before.append(&mut self.in_hand);
        *self = Book {
            partition: self.partition,
            reading: self.reading,
            next,
            in_hand_before,
            first: self.first,
            rewound: Some(Rewound {
                opened_at: self.rewound.map_or(opened_at, |rewound| rewound.opened_at.min(opened_at)),
                lowest: None,
            }),
            ..Book::default()
        };
    }

    /// Whether its log was ever rewound.
    pub(super) fn is_rewound(&self) -> bool {
        self.rewound.is_some()
    }

    /// After a rewind, entries from `seq` on are delivered or told as a gap. Lower ones may not exist in this history.
    fn owe_from(&mut self, seq: u64) {
        if let Some(rewound) = &mut self.rewound {
            rewound.lowest = Some(rewound.lowest.map_or(seq, |lowest| lowest.min(seq)));
        }
    }

    /// An entry has come.
    pub(super) fn pass(&mut self, seq: u64) {
        self.seen = self.seen.max(Some(seq));
        self.owe_from(seq);
    }

    /// An entry came that needs no handling, so it is done in this history too. `acked` says that this very message was acked
    /// before; an entry from before the first start was not, and its place must not hide another message later.
    pub(super) fn recognised(&mut self, seq: u64, acked: bool) {
        self.pass(seq);
        if acked {
            self.acked.insert(seq, seq);
        }
        self.finish(seq, seq);
    }

    /// Entries are gone. Gives those of them that are missed: a broker that crashed may have forgotten which came. What was gone
    /// of a history before anything of it came is not missed: [`SessionEvent::HistoryRewound`] told that it is another one.
    ///
    /// [`SessionEvent::HistoryRewound`]: crate::SessionEvent::HistoryRewound
    pub(super) fn gap(&mut self, from: u64, to: u64) -> Option<(u64, u64)> {
        let came = |seq: &u64| {
            self.in_hand.contains_key(seq) || self.done.contains(*seq) || self.acked.contains(*seq)
        };
        let owed = self.rewound.map_or(from, |rewound| rewound.lowest.unwrap_or(u64::MAX));
        let mut missed = (from.max(owed).max(self.next.unwrap_or(from)), to);
        while missed.0 <= missed.1 && came(&missed.0) {
            missed.0 += 1;
        }
        while missed.0 < missed.1 && came(&missed.1) {
            missed.1 -= 1;
        }
        self.pass(to);
        self.finish(from, to);
        (missed.0 <= missed.1).then_some(missed)
    }

    /// The delivery that `seq` is in hand by.
    fn in_hand(&self, seq: u64) -> Option<DeliveryId> {
        self.in_hand.get(&seq).copied()
    }

    /// The deliveries that an entry at `seq` may be in hand by: of this history, and of the one before.
    pub(super) fn in_hand_by(&self, seq: u64) -> [Option<DeliveryId>; 2] {
        [self.in_hand(seq), self.in_hand_before.get(&seq).copied()]
    }

    /// `seq` came again, and is in hand by `id`: if it was there in the history before, it is in this one, too.
    pub(super) fn again(&mut self, seq: u64, id: DeliveryId) {
        if self.in_hand_before.get(&seq) == Some(&id) {
            self.in_hand_before.remove(&seq);
            self.take(seq, id);
        }
    }

    /// How many are in hand.
    pub(super) fn hands(&self) -> usize {
        self.in_hand.len() + self.in_hand_before.len()
    }

    /// Runs of what was acked, and of what is done.
    pub(super) fn runs(&self) -> [usize; 2] {
        [self.acked.0.len(), self.done.0.len()]
    }

    /// Whether there is nothing to do about `seq` any more: it was acked and is remembered, or a reader that gets
    /// every entry began after it. In a log that was rewound that reader began after what was accepted before.
    pub(super) fn is_over(&self, seq: u64, id: MessageId) -> bool {
        let earlier = || self.rewound.is_none_or(|rewound| id.unix_ms() < rewound.opened_at);
        let before = self.reading != Reading::Shared && self.first.is_some_and(|first| seq < first);
        self.acked.contains(seq) || (before && earlier())
    }

    /// Whether a message at `seq` was settled for good.
    pub(super) fn is_settled(&self, seq: u64) -> bool {
        self.acked.contains(seq) || self.buried.contains_key(&seq)
    }

    /// How `seq` was given up for good, if this `attempt` is none that came after it was fetched from the dead
    /// letters.
    pub(super) fn buried_by(&self, seq: u64, attempt: u32) -> Option<&Verb> {
        self.buried.get(&seq).filter(|(at, _)| attempt <= *at).map(|(_, verb)| verb)
    }

    /// `seq` has come, of a reader to whom that is all; says whether it is for the first time.
    pub(super) fn read(&mut self, seq: u64, id: MessageId) -> bool {
        let new = !self.is_over(seq, id);
        self.pass(seq);
        self.acked.insert(seq, seq);
        new
    }

    /// `seq` is in hand.
    pub(super) fn take(&mut self, seq: u64, id: DeliveryId) {
        self.pass(seq);
        self.in_hand.insert(seq, id);
    }

    /// `seq` was acked.
    pub(super) fn acked(&mut self, seq: u64, id: DeliveryId) {
        match self.let_go(seq, id) {
            Some(History::Present) => {
                self.acked.insert(seq, seq);
                self.finish(seq, seq);
            }
            Some(History::Past) if mutant::on(Mutant::PastSettleForgotten) => {}
            // The broker has compared the entry with the message that was settled: it is the same, or gone.
            Some(History::Past) => self.finish(seq, seq),
            None => {}
        }
    }

    /// `seq` is among the dead letters: done, unless somebody fetches it from there.
    pub(super) fn buried(&mut self, seq: u64, id: DeliveryId, attempt: u32, how: Verb) {
        match self.let_go(seq, id) {
            Some(History::Present) => {
                self.buried.insert(seq, (attempt, how));
                if self.buried.len() > RUNS {
                    self.buried.pop_first();
                }
                self.finish(seq, seq);
            }
            Some(History::Past) => self.finish(seq, seq),
            None => {}
        }
    }

    /// `seq` is not in hand by `id` any more; says of which history it was. A later delivery may have taken its place.
    pub(super) fn let_go(&mut self, seq: u64, id: DeliveryId) -> Option<History> {
        if self.in_hand(seq) == Some(id) {
            self.in_hand.remove(&seq);
            return Some(History::Present);
        }
        (self.in_hand_before.get(&seq) == Some(&id)).then(|| {
            self.in_hand_before.remove(&seq);
            History::Past
        })
    }

    /// Forgets what is in hand and what was acked, for a mutant.
    pub(super) fn forget(&mut self) {
        self.in_hand.clear();
        self.in_hand_before.clear();
        self.acked = Runs::default();
        self.buried.clear();
    }

    /// The last entry up to which all is done. Begin after it, and nothing is lost; what comes again although it
    /// was acked is recognised. Of a history that was rewound nothing is done before something came.
    ///
    /// Of readers that share a group one does not know what the others have in hand: a group that a store has lost is made
    /// again where this reader first began.
    pub(super) fn position(&self) -> Option<u64> {
        let nothing = self.rewound.map(|_| 0);
        match self.reading {
            Reading::Shared => nothing.or(self.first.and_then(|first| first.checked_sub(1))),
            Reading::Glance => self.seen.or(nothing),
            Reading::Sole => self.next.and_then(|next| next.checked_sub(1)),
        }
    }

    fn finish(&mut self, from: u64, to: u64) {
        if self.reading == Reading::Sole && self.next.is_some_and(|next| to >= next) {
            if let Some(forgotten) = self.done.insert(from, to) {
                self.next = self.next.max(Some(forgotten + 1));
            }
            self.advance();
        }
    }

    fn advance(&mut self) {
        while let Some((from, to)) = self.done.first()
            && let Some(next) = &mut self.next
            && from <= *next
        {
            *next = (*next).max(to + 1);
            self.done.pop();
        }
    }
}

/// A set of numbers in runs; at most [`RUNS`].
#[derive(Debug, Default)]
struct Runs(BTreeMap<u64, u64>);

impl Runs {
    fn contains(&self, seq: u64) -> bool {
        self.0.range(..=seq).next_back().is_some_and(|(_, end)| *end >= seq)
    }

    fn first(&self) -> Option<(u64, u64)> {
        self.0.first_key_value().map(|(from, to)| (*from, *to))
    }

    fn pop(&mut self) {
        self.0.pop_first();
    }

    /// Adds a run; gives the end of the lowest, if that had to be forgotten.
    fn insert(&mut self, mut from: u64, mut to: u64) -> Option<u64> {
        // Whatever overlaps or touches becomes one with it.
        while let Some((start, end)) =
            self.0.range(..=to.saturating_add(1)).next_back().map(|(start, end)| (*start, *end))
            && end.saturating_add(1) >= from
        {
            self.0.remove(&start);
            (from, to) = (from.min(start), to.max(end));
        }
        self.0.insert(from, to);
        if self.0.len() > RUNS { self.0.pop_first().map(|(_, end)| end) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: MessageId = MessageId(7);

    #[test]
    fn runs_join_and_stay_bounded() {
        let mut runs = Runs::default();
        for seq in [5, 7, 6, 1, 2, 5] {
            runs.insert(seq, seq);
        }
        assert_eq!(runs.0, BTreeMap::from([(1, 2), (5, 7)]));
        assert!(runs.contains(6) && !runs.contains(3) && !runs.contains(0) && !runs.contains(8));
        runs.insert(10, 12);
        runs.insert(6, 10);
        assert_eq!(runs.0, BTreeMap::from([(1, 2), (5, 12)]));
        runs.insert(0, u64::MAX);
        assert_eq!(runs.0, BTreeMap::from([(0, u64::MAX)]));
        let mut runs = Runs::default();
        for seq in 0..20_000 {
            runs.insert(100 + 2 * seq, 100 + 2 * seq);
        }
        assert_eq!(runs.0.len(), RUNS);
        assert!(runs.contains(100 + 2 * 19_999) && !runs.contains(100));
    }

    #[test]
    fn a_sole_readers_position_is_before_the_first_entry_that_is_not_done() {
        let mut book = Book::of(Some(0), Reading::Sole);
        assert_eq!(book.position(), None);
        book.begin(10);
        assert_eq!(book.position(), Some(9));
        for seq in [12, 13, 14, 15] {
            book.take(seq, DeliveryId(seq));
            book.acked(seq, DeliveryId(seq));
        }
        assert_eq!(book.position(), Some(9), "10 and 11 have not come yet: they may have been delayed");
        book.take(10, DeliveryId(10));
        book.buried(10, DeliveryId(10), 1, Verb::Ack);
        assert_eq!(book.position(), Some(10));
        book.gap(11, 11);
        assert_eq!(book.position(), Some(15));
        book.take(16, DeliveryId(16));
        book.take(16, DeliveryId(17));
        book.acked(16, DeliveryId(16));
        assert_eq!(book.position(), Some(15), "a later delivery of it is in hand");
        book.begin(14);
        assert_eq!(book.position(), Some(15), "what is done stays done");
        book.begin(30);
        assert_eq!(book.position(), Some(29), "what is before the start is gone");
    }

    #[test]
    fn what_was_given_up_is_new_only_when_it_comes_from_the_dead_letters() {
        let mut book = Book::of(Some(0), Reading::Sole);
        let dead = Verb::Nack { delay_ms: None, dead: true, reason: None };
        book.begin(3);
        book.take(4, DeliveryId(1));
        book.buried(4, DeliveryId(1), 2, dead.clone());
        assert_eq!((book.buried_by(4, 1), book.buried_by(4, 2)), (Some(&dead), Some(&dead)));
        assert_eq!((book.buried_by(4, 3), book.buried_by(3, 1)), (None, None));
    }

    #[test]
    fn nothing_before_the_first_start_is_a_sole_readers_business() {
        let mut book = Book::of(Some(1), Reading::Sole);
        book.begin(5);
        book.begin(2);
        assert!(book.is_over(4, ID) && !book.is_over(5, ID));
        let mut crew = Book::of(Some(1), Reading::Shared);
        crew.begin(5);
        assert!(!crew.is_over(4, ID), "a crew goes on where it is");
        assert!(crew.read(9, ID) && !crew.read(9, ID) && crew.read(7, ID));
        let mut glance = Book::of(Some(1), Reading::Glance);
        glance.begin(5);
        glance.begin(2);
        assert!(!glance.read(4, ID) && glance.read(5, ID) && !glance.read(5, ID));
    }

    #[test]
    fn holes_that_never_close_are_forgotten_in_the_end() {
        let mut book = Book::of(Some(0), Reading::Sole);
        book.begin(1);
        for seq in 1..=RUNS as u64 + 2 {
            book.take(2 * seq, DeliveryId(seq));
            book.acked(2 * seq, DeliveryId(seq));
        }
        assert_eq!(book.position(), Some(4));
    }

    #[test]
    fn in_a_group_it_is_where_the_reader_began_whatever_it_has_read() {
        let mut book = Book::of(Some(0), Reading::Shared);
        assert_eq!(book.position(), None);
        book.begin(10);
        for seq in [12, 14, 17] {
            book.take(seq, DeliveryId(seq));
        }
        book.acked(12, DeliveryId(12));
        book.begin(20);
        assert_eq!(book.position(), Some(9), "another may have 10 in hand");
        book.rewind(0);
        assert_eq!(book.position(), Some(0));
    }

    #[test]
    fn a_lone_reader_that_the_broker_goes_on_with_after_a_rewind_is_where_the_broker_says() {
        for reading in [Reading::Sole, Reading::Glance] {
            let mut book = Book::of(Some(0), reading);
            book.begin(3);
            book.go_on(9);
            assert_eq!(book.position(), Some(2), "it knows its own place while the history is the same");
            book.rewind(0);
            assert_eq!(book.position(), Some(0));
            book.go_on(7);
            assert_eq!(
                (book.position(), book.gap(1, 6)),
                (Some(6), None),
                "it settled those in that history"
            );
            book.go_on(9);
            assert_eq!(book.position(), Some(6));
        }
    }

    #[test]
    fn what_is_recognised_is_done_in_the_history_that_there_is() {
        let mut book = Book::of(Some(0), Reading::Sole);
        book.begin(1);
        book.rewind(0);
        assert_eq!((book.position(), book.gap(1, 2)), (Some(0), None), "nothing had come of it yet");
        for seq in 3..=5 {
            book.recognised(seq, seq != 4);
        }
        assert_eq!((book.position(), book.gap(4, 5)), (Some(5), None));
        assert!(book.is_settled(3) && !book.is_settled(4), "an entry from before the start was not settled");
        assert_eq!((book.gap(5, 8), book.position()), (Some((6, 8)), Some(8)));
    }

    #[test]
    fn a_reader_at_a_glance_keeps_what_it_has_read_when_it_begins_further_back() {
        let mut book = Book::of(Some(0), Reading::Glance);
        book.begin(1);
        for seq in 1..=6 {
            assert!(book.read(seq, ID));
        }
        book.begin(1);
        assert_eq!((book.position(), book.gap(1, 5), book.gap(5, 8)), (Some(6), None, Some((7, 8))));
    }

    #[test]
    fn a_rewound_log_has_new_numbers_and_what_was_accepted_before_the_start_stays_before_it() {
        let at = |ms| MessageId::from_parts(ms, 1);
        for reading in [Reading::Sole, Reading::Glance] {
            let mut book = Book::of(Some(0), reading);
            book.begin(5);
            book.came(6, at(1_001));
            book.came(5, at(1_000));
            assert_eq!(book.witnesses(), &BTreeMap::from([(5, at(1_000)), (6, at(1_001))]));
            for seq in [5, 6] {
                book.take(seq, DeliveryId(seq));
            }
            book.acked(5, DeliveryId(5));
            assert!(book.is_over(5, ID) && book.is_over(4, at(2_000)));
            book.rewind(900);
            assert_eq!(
                (book.witnesses().len(), book.in_hand_by(6), book.hands()),
                (0, [None, Some(DeliveryId(6))], 1)
            );
            assert!(!book.is_over(5, at(2_000)) && !book.is_over(2, at(2_000)), "they are other messages");
            assert!(book.is_over(2, at(899)), "it was there before the reader was");
            assert!(!book.is_over(7, at(899)));
            book.begin(1);
            book.rewind(5_000);
            assert!(!book.is_over(2, at(901)), "the first opening counts");
        }
    }
}
