//! Which programs a message is shown to as it comes, and where to go on after a crash.
//!
//! Messages are shown in the order of their numbers, several at once, and each at least once: the cursor stands before
//! the oldest that is not over, and what lies behind it runs again after a crash. How far a slow one may be left behind
//! is bounded, and so is what runs again.

use std::collections::BTreeSet;

use tenure_proto::message::Address;

/// Messages that are shown at once.
pub const AT_ONCE: usize = 8;
/// How far the newest may be from the oldest that is not over: what a crash makes run again, at most.
pub const AHEAD: u64 = 64;

/// The names of the programs that a message to `to` is shown to, one after the other. A topic's name holds nothing
/// that a directory would understand: no slash, and no dot in front.
pub fn names(to: &Address) -> [String; 2] {
    let own = match to {
        Address::Topic(topic) => format!("on-topic-{topic}"),
        _ => "on-dm".to_owned(),
    };
    ["on-message".to_owned(), own]
}

/// How far the messages of an inbox have been shown.
#[derive(Clone, Debug)]
pub struct Course {
    /// The newest that was begun.
    begun: u64,
    running: BTreeSet<u64>,
}

impl Course {
    /// Goes on after the message with the number `cursor`.
    pub fn new(cursor: u64) -> Course {
        Course { begun: cursor, running: BTreeSet::new() }
    }

    /// The cursor: everything up to it is over.
    pub fn cursor(&self) -> u64 {
        self.running.first().map_or(self.begun, |oldest| oldest.saturating_sub(1))
    }

    /// After which number to read on, and how many; nothing while it is not their turn.
    pub fn wants(&self) -> Option<(u64, usize)> {
        let room = AT_ONCE - self.running.len().min(AT_ONCE);
        let near = self.begun - self.cursor() < AHEAD;
        (room > 0 && near).then_some((self.begun, room))
    }

    /// This one is shown now.
    pub fn begins(&mut self, message: u64) {
        self.begun = self.begun.max(message);
        self.running.insert(message);
    }

    /// There is nothing to be shown up to this number that was not begun.
    pub fn passes(&mut self, message: u64) {
        self.begun = self.begun.max(message);
    }

    /// This one is over, well or not; the cursor, if it has moved.
    pub fn ends(&mut self, message: u64) -> Option<u64> {
        let before = self.cursor();
        self.running.remove(&message);
        Some(self.cursor()).filter(|cursor| *cursor != before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tenure_proto::ids::{MemberKey, SessionKey};

    #[test]
    fn a_message_is_shown_to_what_is_for_all_and_to_what_is_for_its_kind() {
        let topic: Address = "topic:a.b-c_d".parse().unwrap();
        assert_eq!(names(&topic), ["on-message", "on-topic-a.b-c_d"]);
        assert_eq!(names(&Address::Session(SessionKey([1; 32])))[1], "on-dm");
        assert_eq!(names(&Address::Member(MemberKey([1; 32])))[1], "on-dm");
    }

    proptest! {
        /// Whatever is the name of a topic is one name of a file.
        #[test]
        fn no_topic_leaves_the_directory(name in ".{0,70}") {
            if let Ok(to) = format!("topic:{name}").parse::<Address>() {
                let own = &names(&to)[1];
                prop_assert!(!own.contains(['/', '\\', '\0']) && own.len() <= 80, "{own}");
            }
        }

        /// Nothing is left out and nothing is begun twice, few run at once and none is left far behind; after a crash
        /// what was not over runs again.
        #[test]
        fn everything_is_shown(picks in prop::collection::vec((any::<bool>(), 0usize..8), 1..400)) {
            let mut course = Course::new(5);
            let (mut begun, mut over, mut running) = (vec![], BTreeSet::new(), vec![]);
            for (end, pick) in picks {
                if end && !running.is_empty() {
                    let message: u64 = running.remove(pick % running.len());
                    over.insert(message);
                    let moved = course.ends(message);
                    prop_assert!(moved.is_none_or(|cursor| cursor == course.cursor()));
                } else if let Some((after, room)) = course.wants() {
                    for message in (after + 1..).take(room) {
                        course.begins(message);
                        begun.push(message);
                        running.push(message);
                    }
                }
                prop_assert!(running.len() <= AT_ONCE);
                let newest = begun.last().copied().unwrap_or(5);
                prop_assert!(newest - course.cursor() < AHEAD + AT_ONCE as u64);
                prop_assert!((6..=course.cursor()).all(|message| over.contains(&message)));
                prop_assert!(!over.contains(&(course.cursor() + 1)));
                prop_assert_eq!(&begun, &(6..=newest).collect::<Vec<_>>());
            }
        }
    }
}
