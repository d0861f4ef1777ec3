//! A short pass over every target: its seeds, and a fixed number of mutations of each. Deterministic: what fails here fails
//! again.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use tenure_fuzz::TARGETS;
use tenure_fuzz::sockets::End;

/// Mutations of each seed.
const MUTATIONS: u32 = 60;
/// Inputs that cost more than others: a file of pages, a socket with a runtime.
const FEWER: u32 = 12;

/// A sequence of numbers that looks random and is the same in every run (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

/// `input` with one to four changes, with pieces of `other` now and then.
fn mutate(numbers: &mut Numbers, input: &[u8], other: &[u8]) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=numbers.below(4) {
        let at = numbers.below(bytes.len() + 1);
        match numbers.below(7) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, numbers.next() as u8),
            2 if at < bytes.len() => bytes[at] ^= 1 << numbers.below(8),
            3 if at < bytes.len() => _ = bytes.remove(at),
            4 => {
                let end = (at + numbers.below(32)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                let to = numbers.below(bytes.len() + 1);
                bytes.splice(to..to, piece);
            }
            5 => {
                let from = numbers.below(other.len() + 1);
                let end = (from + numbers.below(64)).min(other.len());
                bytes.splice(at..at, other[from..end].iter().copied());
            }
            _ => {
                let odd = [0, 0xff, b'\r', b'\n', b'"', b'\\', b'.', b':', 0x80, b' '];
                bytes.insert(at, odd[numbers.below(odd.len())]);
            }
        }
    }
    bytes
}

fn pass_over(name: &str, mutations: u32) {
    let target = TARGETS.iter().find(|target| target.name == name).expect("a target of this name");
    let seeds = (target.seeds)();
    assert!(!seeds.is_empty(), "{name} has no seeds");
    let mut numbers = Numbers(name.bytes().map(u64::from).sum());
    for (n, seed) in seeds.iter().enumerate() {
        (target.run)(seed);
        let other = &seeds[numbers.below(seeds.len())];
        for step in 0..mutations {
            let input = mutate(&mut numbers, seed, other);
            let outcome = std::panic::catch_unwind(|| (target.run)(&input));
            assert!(
                outcome.is_ok(),
                "{name}: seed {n}, mutation {step}: {:?}",
                String::from_utf8_lossy(&input)
            );
        }
    }
}

/// A target whose seeds its parser does not even read would test nothing.
#[test]
fn seeds_are_what_their_parsers_read() {
    let seeds = |name: &str| (TARGETS.iter().find(|target| target.name == name).expect(name).seeds)();
    let rows: Vec<usize> =
        seeds("outbox_rows").iter().map(|file| tenure_daemon::outbox::rows_on_pages(file)).collect();
    assert_eq!(rows, [0, 1, 12]);
    let text = |bytes: &Vec<u8>| String::from_utf8(bytes.clone()).unwrap();
    assert!(
        seeds("invites").iter().any(|invite| tenure_proto::invite::Invite::verify(&text(invite)).is_ok())
    );
    assert!(seeds("frames_json").len() > 50 && seeds("frames_msgpack").len() > 50);
    assert!(!seeds("resume_tokens").is_empty() && seeds("tickets").len() == 3);
    let sockets: Vec<_> =
        seeds("socket_frames").iter().map(|seed| tenure_fuzz::sockets::by_us(seed)).collect();
    assert!(sockets.iter().filter(|found| !found.came.is_empty()).count() >= 8);
    for end in [End::Over, End::Closed, End::TooLarge, End::Bad] {
        assert!(sockets.iter().any(|found| found.end == end), "{end:?}");
    }
}

/// One test a target, so that they run beside each other; and one that says so if a target has none.
macro_rules! targets {
    ($($name:ident: $mutations:expr;)*) => {
        $(#[test]
        fn $name() {
            pass_over(stringify!($name), $mutations);
        })*

        #[test]
        fn every_target_is_passed_over() {
            let here = [$(stringify!($name)),*];
            let all: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(all, here);
        }
    };
}

targets! {
    frames_json: MUTATIONS;
    frames_msgpack: MUTATIONS;
    hosts: MUTATIONS;
    invites: MUTATIONS;
    mux: FEWER;
    outbox_rows: FEWER;
    relay_framing: MUTATIONS;
    resume_tokens: MUTATIONS;
    socket_frames: MUTATIONS;
    tickets: MUTATIONS;
}
