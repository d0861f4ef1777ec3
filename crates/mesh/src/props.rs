//! Any interleaving of hellos, breaks, half-open losses, takeovers, byes, freezes, store failures and restarts,
//! against a model of correct clients. What must hold is said in `sim` for
//! all of them together, in `client` for a hello, in `process` for what one process is told.

mod client;
mod process;
mod sim;

use proptest::prelude::*;

use crate::tests::world::Disk;
use sim::{CLIENTS, PING, STALE, Sim, TTL};

/// Which token a hello presents.
#[derive(Clone, Copy, Debug)]
enum Token {
    /// The newest one the process has, be its lease alive or not.
    Own,
    /// The same without an attestation.
    Alone,
    None,
    Forged,
}

/// What happens next.
#[derive(Clone, Debug)]
enum Op {
    /// A client dials and says hello; it will hear so many frames. `other`: it is another process with the key.
    Hello {
        n: u8,
        token: Token,
        hears: usize,
        other: bool,
    },
    /// Its socket ends, and the broker notices.
    Drop {
        n: u8,
        by_client: bool,
    },
    /// Its socket is dead after so many more frames, and the broker does not notice.
    HalfOpen {
        n: u8,
        after: usize,
    },
    Bye(u8),
    Rename(u8),
    /// It reads the list of peers.
    List(u8),
    /// It is sent a direct event.
    Tell(u8),
    /// Its socket takes nothing, or takes again.
    Block(u8),
    Unblock(u8),
    /// Inputs pile up before anything is handed out, or no more.
    Batch,
    Pass(u64),
    Freeze(u64),
    Disk(Disk),
    /// The disk takes so many of the writes that wait.
    Commit(usize),
    /// The broker dies and starts again, with so many of the open writes on disk.
    Restart {
        landed: usize,
    },
}

fn hears() -> impl Strategy<Value = usize> {
    prop_oneof![8 => Just(usize::MAX), 1 => Just(0), 2 => 1usize..8]
}

fn op() -> impl Strategy<Value = Op> {
    let n = 1..=CLIENTS;
    let token = prop_oneof![
        6 => Just(Token::Own),
        2 => Just(Token::Alone),
        2 => Just(Token::None),
        1 => Just(Token::Forged),
    ];
    let other = prop_oneof![5 => Just(false), 1 => Just(true)];
    // Around what the rules are made of: a tick, a ping, what is invisible, stale, a lease.
    let around = [1, 400, PING, STALE, TTL - PING, TTL];
    let pass = prop::sample::select(around.to_vec()).prop_flat_map(|ms| ms.saturating_sub(2)..ms + 3);
    let disk = prop_oneof![3 => Just(Disk::Commits), 2 => Just(Disk::Holds), 1 => Just(Disk::Fails)];
    prop_oneof![
        12 => (n.clone(), token, hears(), other)
            .prop_map(|(n, token, hears, other)| Op::Hello { n, token, hears, other }),
        4 => (n.clone(), any::<bool>()).prop_map(|(n, by_client)| Op::Drop { n, by_client }),
        4 => (n.clone(), 0usize..6).prop_map(|(n, after)| Op::HalfOpen { n, after }),
        2 => n.clone().prop_map(Op::Bye),
        3 => n.clone().prop_map(Op::Rename),
        1 => n.clone().prop_map(Op::List),
        3 => n.clone().prop_map(Op::Tell),
        1 => n.clone().prop_map(Op::Block),
        1 => n.prop_map(Op::Unblock),
        3 => Just(Op::Batch),
        8 => pass.prop_map(Op::Pass),
        1 => (0u64..60_000).prop_map(Op::Freeze),
        3 => disk.prop_map(Op::Disk),
        2 => (1usize..4).prop_map(Op::Commit),
        1 => (0usize..4).prop_map(|landed| Op::Restart { landed }),
    ]
}

/// Some cases by default; `PROPTEST_CASES` asks for more.
fn config() -> ProptestConfig {
    let asked = std::env::var_os("PROPTEST_CASES").is_some();
    let default = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if asked { default } else { ProptestConfig { cases: 600, ..default } }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn whatever_happens_everybody_is_told_the_same_story_once(ops in prop::collection::vec(op(), 1..80)) {
        let mut sim = Sim::new();
        for op in &ops {
            sim.step(op);
        }
        sim.quiesce();
        sim.fall_silent();
    }
}
