//! What all sockets and relayed streams of a broker hold in memory together, and which of them goes when that is too much.
//!
//! Each has bounds of its own, and thousands of them at their bounds are more than a machine has. So there is
//! one bound for all. Two kinds of memory count. What *waits for a client*: frames that it does not read, messages
//! of which it has sent only a part, and what a relayed stream holds because one of its ends does not take it. And what
//! *requests* hold until the broker answers them, which is no fault of a client: past half of the bound, a socket with
//! such a request is not read until it is answered.
//!
//! The slowest goes first: the one with the largest product of bytes held and time without progress. Progress is
//! what keeps a reader from being a slow consumer (16 KiB that it takes), or a message that it completes. So one that hoards goes before many that hold a little,
//! and of two that hold the same the one that has not moved for longer.
//!
//! Large messages have three quarters of the bound, from their first byte until they are answered. Who finds no room for
//! one is not read until there is some: whoever only sends is not let go for it. Somebody who keeps room and sends nothing
//! goes when others wait for it ([`BufferLimit::make_room`]).

use tenure_kit::time::Millis;

/// How long a message that is not whole may stand still while others wait for room.
const STILL_MS: u64 = 2_000;

/// What one socket or stream holds; `K` tells it from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding<K> {
    /// Whose it is.
    pub holder: K,
    /// Bytes that wait for its client.
    pub bytes: usize,
    /// Since when its client has made no progress.
    pub since: Millis,
}

/// What all may hold together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferLimit(pub usize);

impl BufferLimit {
    /// Whether so much is too much: `sockets` is what waits for clients, `requests` what requests hold.
    pub fn is_over(self, sockets: usize, requests: usize) -> bool {
        sockets > self.left_for_sockets(requests)
    }

    /// Whether a socket with unanswered requests must wait for their answers before more of it is read.
    pub fn holds_requests_back(self, requests: usize) -> bool {
        requests >= self.0 / 2
    }

    /// What large messages may take, from their first byte until they are answered.
    pub fn for_messages(self) -> usize {
        self.0 - self.0 / 4
    }

    /// Which are let go, the slowest first, so that the others fit. Some room is made beyond that, so that the
    /// next byte does not ask again. Nobody is let go while all fit.
    pub fn let_go<K: Copy + Ord>(self, now: Millis, requests: usize, holdings: Vec<Holding<K>>) -> Vec<K> {
        let held: usize = holdings.iter().map(|holding| holding.bytes).sum();
        if !self.is_over(held, requests) {
            return Vec::new();
        }
        let allowed = self.left_for_sockets(requests);
        slowest(now, holdings, held - (allowed - allowed / 8))
    }

    /// Which are let go, the slowest first, when somebody waits for room: of those with a message that is not whole the ones
    /// of which nothing has come for a while, until an eighth of the bound is free. Here `bytes` are those that a
    /// message keeps from others, and `since` is when something last came.
    pub fn make_room<K: Copy + Ord>(self, now: Millis, mut unfinished: Vec<Holding<K>>) -> Vec<K> {
        unfinished.retain(|holding| now.since(holding.since) >= STILL_MS);
        slowest(now, unfinished, self.0 / 8)
    }

    /// What requests leave of the bound for sockets: never less than half of it.
    fn left_for_sockets(self, requests: usize) -> usize {
        self.0.saturating_sub(requests).max(self.0 / 2)
    }
}

/// The slowest, as many as hold so many bytes together.
fn slowest<K: Copy + Ord>(now: Millis, mut holdings: Vec<Holding<K>>, bytes: usize) -> Vec<K> {
    let slowness = |holding: &Holding<K>| holding.bytes as u128 * u128::from(now.since(holding.since) + 1);
    holdings.sort_unstable_by(|a, b| (slowness(b), a.holder).cmp(&(slowness(a), b.holder)));
    let mut freed = 0;
    let goes = holdings.into_iter().take_while(|holding| {
        let goes = freed < bytes;
        freed += holding.bytes;
        goes
    });
    goes.map(|holding| holding.holder).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn holding(holder: u64, bytes: usize, since: u64) -> Holding<u64> {
        Holding { holder, bytes, since: Millis(since) }
    }

    fn gone(bound: usize, requests: usize, holdings: &[Holding<u64>]) -> Vec<u64> {
        BufferLimit(bound).let_go(Millis(10_000), requests, holdings.to_vec())
    }

    #[test]
    fn nobody_goes_while_all_fit() {
        assert!(gone(100, 0, &[holding(1, 50, 0), holding(2, 50, 0)]).is_empty());
        assert!(gone(0, 0, &[]).is_empty());
    }

    #[test]
    fn the_slowest_goes_first_and_no_more_than_must() {
        // Of equal size the one that has not moved for longer; of equal time the larger.
        assert_eq!(gone(100, 0, &[holding(1, 60, 9_000), holding(2, 60, 1_000)]), [2]);
        assert_eq!(gone(100, 0, &[holding(1, 40, 0), holding(2, 70, 0)]), [2]);
        // A hoarder goes before many that hold a little for longer.
        let mut all: Vec<Holding<u64>> = (10..20).map(|n| holding(n, 1, 0)).collect();
        all.push(holding(1, 95, 9_000));
        assert_eq!(gone(100, 0, &all), [1]);
        // Some room is made: one more goes than would fit exactly.
        assert_eq!(gone(100, 0, &[holding(1, 12, 0), holding(2, 89, 9_999)]), [1, 2]);
        // Whoever has moved just now is still ordered by what it holds.
        assert_eq!(gone(100, 0, &[holding(1, 30, 10_000), holding(2, 80, 10_000)]), [2]);
    }

    #[test]
    fn requests_take_up_to_half_of_it() {
        let both = [holding(1, 40, 0), holding(2, 15, 5_000)];
        assert!(gone(100, 45, &both).is_empty());
        assert_eq!(gone(100, 46, &both), [1]);
        let half = [holding(1, 50, 0)];
        assert!(gone(100, 1_000, &half).is_empty(), "sockets that fit into half of it are not to blame");
        let limit = BufferLimit(100);
        assert!(!limit.holds_requests_back(49) && limit.holds_requests_back(50));
    }

    #[test]
    fn who_waits_for_room_gets_that_of_messages_that_stand_still() {
        let now = Millis(10_000);
        let make = |all: &[Holding<u64>]| BufferLimit(800).make_room(now, all.to_vec());
        // Whoever still sends is kept, however long it takes.
        assert!(make(&[holding(1, 500, 8_001), holding(2, 200, 10_000)]).is_empty());
        assert_eq!(make(&[holding(1, 60, 8_000), holding(2, 60, 0), holding(3, 60, 4_000)]), [2, 3]);
        assert_eq!(make(&[holding(1, 100, 8_000), holding(2, 40, 8_000)]), [1]);
        assert_eq!(BufferLimit(800).for_messages(), 600);
    }

    proptest! {
        #[test]
        fn the_rest_fits_and_is_no_slower_than_any_that_went(
            bound in 1usize..1_000,
            requests in 0usize..1_000,
            held in proptest::collection::vec((0usize..400, 0u64..10_000), 0..30),
        ) {
            let all: Vec<Holding<u64>> =
                held.iter().zip(0..).map(|(&(bytes, since), guest)| holding(guest, bytes, since)).collect();
            let gone = gone(bound, requests, &all);
            let (went, rest): (Vec<&Holding<u64>>, Vec<&Holding<u64>>) =
                all.iter().partition(|holding| gone.contains(&holding.holder));
            let sum: usize = rest.iter().map(|holding| holding.bytes).sum();
            prop_assert!(!BufferLimit(bound).is_over(sum, requests));
            let slowness = |holding: &&Holding<u64>| holding.bytes as u64 * (10_000 - holding.since.0 + 1);
            let fastest_gone = went.iter().map(slowness).min();
            let slowest_left = rest.iter().map(slowness).max();
            prop_assert!(fastest_gone.is_none() || slowest_left <= fastest_gone);
        }
    }
}
