//! What was confirmed and what came: what is lost, what is doubled, and what came again and was allowed to.

use std::collections::{BTreeMap, VecDeque};

use super::counting::Marks;

/// Who was promised, and who came.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Whether acks are answered here.
    answers: bool,
    confirmed: Marks,
    /// How many were confirmed after the first kill.
    pub(crate) later: u64,
    pub(crate) came: Marks,
    /// Those that may come once more: their acks had no answer when their reader broke.
    pardoned: Marks,
    /// For each reader the numbers whose acks have no answer yet, oldest first.
    held: BTreeMap<usize, VecDeque<u64>>,
    readers: usize,
    /// All that came, each as often as it did.
    pub(crate) copies: u64,
    /// How many of the confirmed have not come.
    pub(crate) missing: u64,
    pub(crate) doubled: u64,
    pub(crate) again: u64,
}

impl Tally {
    /// Of what was confirmed so far, none of which has come.
    pub(crate) fn new(answers: bool, confirmed: Marks) -> Tally {
        let missing = confirmed.count();
        Tally { answers, confirmed, missing, ..Tally::default() }
    }

    /// A name for one more reader.
    pub(crate) fn enter(&mut self) -> usize {
        self.readers += 1;
        self.readers
    }

    /// A publish was confirmed.
    pub(crate) fn confirm(&mut self, number: u64) {
        if self.confirmed.set(number) {
            self.later += 1;
            // It may have come before its publisher was answered.
            self.missing += u64::from(!self.came.has(number));
        }
    }

    /// A message came to a reader.
    pub(crate) fn saw(&mut self, reader: usize, number: u64) {
        self.copies += 1;
        if self.came.set(number) {
            self.missing -= u64::from(self.confirmed.has(number));
        } else if self.pardoned.clear(number) {
            self.again += 1;
        } else {
            self.doubled += 1;
        }
        self.held.entry(reader).or_default().push_back(number);
    }

    /// The oldest so many acks of a reader were answered, or sent where there is no answer.
    pub(crate) fn answered(&mut self, reader: usize, count: u64) {
        let Some(held) = self.held.get_mut(&reader) else { return };
        for number in held.drain(..held.len().min(count as usize)) {
            self.pardoned.clear(number);
        }
    }

    /// How many of a reader's acks have no answer yet.
    pub(crate) fn holds(&self, reader: usize) -> usize {
        self.held.get(&reader).map_or(0, VecDeque::len)
    }

    /// A reader's connection broke; acks that are under way may still be answered.
    pub(crate) fn broke(&mut self, reader: usize) {
        for number in self.held.get(&reader).into_iter().flatten() {
            self.pardoned.set(*number);
        }
        if !self.answers {
            self.pardoned = self.came.clone();
        }
    }

    /// A reader is gone, and nobody will hear what becomes of its acks.
    pub(crate) fn left(&mut self, reader: usize) {
        self.broke(reader);
        self.held.remove(&reader);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(answers: bool, confirmed: &[u64]) -> Tally {
        let mut tally = Tally { answers, ..Tally::default() };
        confirmed.iter().for_each(|number| tally.confirm(*number));
        tally
    }

    #[test]
    fn what_was_confirmed_and_does_not_come_is_lost() {
        let mut tally = tally(true, &[1, 2, 70]);
        [2, 3, 70].into_iter().for_each(|number| tally.saw(1, number));
        tally.confirm(3);
        assert_eq!((tally.missing, tally.doubled, tally.later), (1, 0, 4));
    }

    #[test]
    fn what_comes_again_is_doubled_unless_its_ack_had_no_answer_when_its_reader_broke() {
        let mut tally = tally(true, &[1, 2, 3]);
        [1, 2, 3].into_iter().for_each(|number| tally.saw(1, number));
        tally.answered(1, 1);
        // Nothing has happened to this reader.
        tally.saw(1, 3);
        assert_eq!((tally.doubled, tally.again), (1, 0));
        tally.left(1);
        tally.saw(2, 2);
        assert_eq!((tally.doubled, tally.again), (1, 1), "it was not answered");
        tally.saw(2, 1);
        assert_eq!((tally.doubled, tally.again), (2, 1), "it was answered");
        tally.saw(2, 2);
        assert_eq!((tally.doubled, tally.again), (3, 1), "once more is once too often");
    }

    #[test]
    fn an_ack_that_is_answered_after_the_break_is_an_answer() {
        let mut tally = tally(true, &[1, 2]);
        [1, 2].into_iter().for_each(|number| tally.saw(1, number));
        tally.broke(1);
        tally.answered(1, 1);
        [1, 2].into_iter().for_each(|number| tally.saw(2, number));
        assert_eq!((tally.doubled, tally.again), (1, 1));
    }

    #[test]
    fn where_acks_have_no_answer_all_that_came_before_a_break_may_come_again() {
        let mut tally = tally(false, &[1]);
        tally.saw(1, 1);
        tally.answered(1, 1);
        tally.saw(1, 1);
        tally.left(1);
        tally.saw(2, 1);
        assert_eq!((tally.doubled, tally.again), (1, 1));
    }
}
