//! What a client has us hold: requests without an answer, and the memory that they or their answers take.

use std::collections::VecDeque;

use tenure_proto::ids::RequestId;
use tenure_proto::limits::MAX_INFLIGHT;

/// Requests that wait for their answer.
#[derive(Debug, Default)]
pub(super) struct Due {
    unanswered: u32,
    /// Those of them that hold memory meanwhile, and how much; answers mostly come in their order.
    heavy: VecDeque<(RequestId, usize)>,
    heavy_bytes: usize,
}

impl Due {
    /// A request came that holds so many bytes until it is answered.
    pub(super) fn add(&mut self, request: &RequestId, bytes: usize) {
        self.unanswered += 1;
        if bytes > 0 {
            self.heavy.push_back((request.clone(), bytes));
            self.heavy_bytes += bytes;
        }
    }

    /// A request is answered: what it held is free.
    pub(super) fn remove(&mut self, request: &RequestId) {
        self.unanswered = self.unanswered.saturating_sub(1);
        if let Some(place) = self.heavy.iter().position(|(id, _)| id == request)
            && let Some((_, bytes)) = self.heavy.remove(place)
        {
            self.heavy_bytes -= bytes;
        }
        if self.heavy.is_empty() {
            // An idle socket holds no queue.
            self.heavy = VecDeque::new();
        }
    }

    /// Whether one more may be read while at most `bytes` are to be held.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.unanswered < MAX_INFLIGHT && self.heavy_bytes < bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u32) -> RequestId {
        format!("{n}").parse().unwrap()
    }

    #[test]
    fn requests_are_bounded_by_number_and_by_what_they_hold() {
        let mut due = Due::default();
        for n in 0..MAX_INFLIGHT {
            assert!(due.has_room(1));
            due.add(&id(n), 0);
        }
        assert!(!due.has_room(1));
        due.remove(&id(7));
        assert!(due.has_room(100));
        due.add(&id(8), 60);
        due.remove(&id(9));
        due.add(&id(10), 40);
        assert!(!due.has_room(100));
        // Whatever the order of the answers.
        due.remove(&id(10));
        assert!(due.has_room(100));
        due.remove(&id(8));
        assert_eq!(due.heavy_bytes, 0);
    }
}
