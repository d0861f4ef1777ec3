//! What a client has us hold: requests without an answer, and the memory that they or their answers take.

use std::collections::VecDeque;

use tenure_proto::ids::RequestId;
use tenure_proto::limits::MAX_INFLIGHT;

/// Requests that wait for their answer.
#[derive(Debug, Default)]
pub(super) struct Due {
    unanswered: u32,
    /// Those of them that hold memory meanwhile, and how much; answers mostly come in their order.
    heavy: VecDeque<Heavy>,
    heavy_bytes: usize,
    /// What those of them hold whose answer is here and has no room in the socket.
    answered_bytes: usize,
}

/// A request that holds memory until its answer leaves.
#[derive(Debug)]
struct Heavy {
    id: RequestId,
    bytes: usize,
    answered: bool,
}

impl Due {
    /// A request came that holds so many bytes until it is answered.
    pub(super) fn add(&mut self, request: &RequestId, bytes: usize) {
        self.unanswered += 1;
        if bytes > 0 {
            self.heavy.push_back(Heavy { id: request.clone(), bytes, answered: false });
            self.heavy_bytes += bytes;
        }
    }

    /// A request is answered: what it held is free.
    pub(super) fn remove(&mut self, request: &RequestId) {
        self.unanswered = self.unanswered.saturating_sub(1);
        if let Some(place) = self.heavy.iter().position(|heavy| heavy.id == *request)
            && let Some(heavy) = self.heavy.remove(place)
        {
            self.heavy_bytes -= heavy.bytes;
            self.answered_bytes -= if heavy.answered { heavy.bytes } else { 0 };
        }
        if self.heavy.is_empty() {
            // An idle socket holds no queue.
            self.heavy = VecDeque::new();
        }
    }

    /// A request's answer is here, and waits for room in the socket.
    pub(super) fn answered(&mut self, request: &RequestId) {
        let heavy = self.heavy.iter_mut().find(|heavy| heavy.id == *request && !heavy.answered);
        if let Some(heavy) = heavy {
            heavy.answered = true;
            self.answered_bytes += heavy.bytes;
        }
    }

    /// Bytes of requests whose answer waits for room in the socket.
    pub(super) fn answered_bytes(&self) -> usize {
        self.answered_bytes
    }

    /// Bytes of requests that have no answer yet.
    pub(super) fn owed(&self) -> usize {
        self.heavy_bytes - self.answered_bytes
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
        // Whatever the order of the answers; one that waits for its client is not owed any more.
        due.answered(&id(10));
        due.answered(&id(10));
        assert_eq!((due.owed(), due.answered_bytes()), (60, 40));
        assert!(!due.has_room(100));
        due.remove(&id(10));
        assert_eq!((due.owed(), due.answered_bytes()), (60, 0));
        assert!(due.has_room(100));
        due.remove(&id(8));
        assert_eq!(due.heavy_bytes, 0);
    }
}
