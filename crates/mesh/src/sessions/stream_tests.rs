//! Numbering and replay: the bounds to the event and byte, and every position a client may resume from, against
//! a model that simply remembers everything.

use proptest::prelude::*;
use tenure_proto::event::{Notice, PresenceKind};
use tenure_proto::ids::{MemberKey, SessionKey};
use tenure_proto::peer::{Peer, Profile, SharedPeer};

use super::*;
use crate::sessions::presence::Step;

fn event(id: u64) -> Arc<EventBody> {
    Arc::new(EventBody::Notice(Notice { code: id.to_string(), message: String::new() }))
}

fn id_of(event: &EventBody) -> u64 {
    match event {
        EventBody::Notice(notice) => notice.code.parse().unwrap(),
        other => panic!("not one of ours: {other:?}"),
    }
}

/// A delta whose steps bring the map to these versions.
fn delta(base: u64, versions: &[u64]) -> Delta {
    let profile = Profile::named("p");
    let peer = Peer::new(SessionKey([1; 32]), MemberKey([2; 32]), "i".parse().unwrap(), 0, &profile);
    let peer = SharedPeer::new(peer);
    let step = |version: &u64| Step { kind: PresenceKind::Updated, peer: peer.clone(), version: *version };
    let version = versions.last().copied().unwrap_or(base);
    Delta { base, version, steps: versions.iter().map(step).collect() }
}

fn run(first: u64, len: u64) -> Vec<u64> {
    (first..first + len).collect()
}

/// Takes everything out that waits: numbers and ids.
fn drain(stream: &mut Stream) -> Vec<(u64, u64)> {
    std::iter::from_fn(|| stream.pop()).map(|(seq, event)| (seq, id_of(&event))).collect()
}

impl Stream {
    /// What must hold between its fields at any moment; also for those who hold one.
    pub(crate) fn check(&self) {
        assert!(self.ring_events <= RING_EVENTS as u64 && self.ring_bytes <= RING_BYTES);
        assert!(self.ring.len() as u64 <= self.ring_events);
        assert!(
            self.pending.len() - self.fed.0 <= PENDING_EVENTS + RING_EVENTS,
            "what waits and comes again"
        );
        let bytes = |fed| self.pending.iter().filter(move |d| d.fed == fed).map(|d| d.bytes).sum::<usize>();
        assert_eq!((bytes(false), bytes(true)), (self.pending_bytes, self.fed.1));
        assert_eq!(self.pending.iter().filter(|direct| direct.fed).count(), self.fed.0);
        assert!(self.floor_seq <= self.last_seq);
        assert!(self.floor_cursors.iter().zip(self.cursors).all(|(floor, cursor)| *floor <= cursor));
    }
}

#[test]
fn numbers_are_given_on_leaving_and_have_no_gaps() {
    let mut stream = Stream::new(7, 10);
    assert_eq!((stream.epoch(), stream.next_seq(), stream.presence()), (7, 1, 10));
    stream.push(event(100), 1);
    stream.push(event(101), 1);
    assert_eq!(stream.next_seq(), 1, "what waits has no number yet");
    assert_eq!(stream.pop().unwrap().0, 1);
    assert_eq!(stream.number(), 2, "a tick goes before what still waits");
    assert_eq!(stream.advance_presence(&delta(10, &[11, 14])), 3);
    assert_eq!(stream.presence(), 14);
    assert_eq!(drain(&mut stream), [(5, 101)]);
    assert!(!stream.has_pending() && stream.pop().is_none());
    assert_eq!(stream.next_seq(), 6);
}

#[test]
fn consecutive_presence_is_one_run_whatever_its_length() {
    let mut stream = Stream::new(1, 0);
    for version in 1..=RING_EVENTS as u64 {
        stream.advance_presence(&delta(version - 1, &[version]));
    }
    assert_eq!((stream.ring.len(), stream.ring_events), (1, RING_EVENTS as u64));
    stream.advance_presence(&delta(1_024, &[1_030]));
    assert_eq!(stream.ring.len(), 2, "a skipped version begins a run");
    stream.number();
    stream.advance_presence(&delta(1_030, &[1_031]));
    assert_eq!(stream.ring.len(), 3, "so does a tick in between");
    stream.push(event(1), 1);
    stream.pop();
    stream.advance_presence(&delta(1_031, &[1_032]));
    assert_eq!(stream.ring.len(), 5, "and any other event");
}

#[test]
fn the_ring_holds_exactly_1024_events() {
    let mut stream = Stream::new(1, 0);
    for id in 1..=RING_EVENTS as u64 {
        stream.push(event(id), 1);
    }
    assert_eq!(drain(&mut stream).len(), RING_EVENTS);
    assert!(stream.clone().rewind(0), "1,024 are all there");
    stream.push(event(0), 1);
    stream.pop();
    assert!(!stream.clone().rewind(0), "1,025 are one too many");
    assert!(stream.rewind(1));
}

#[test]
fn the_ring_holds_exactly_1024_presence_events() {
    let mut stream = Stream::new(1, 50);
    stream.advance_presence(&delta(50, &run(51, RING_EVENTS as u64)));
    assert!(stream.clone().rewind(0), "1,024 are all there");
    stream.advance_presence(&delta(1_074, &[1_075]));
    assert!(!stream.clone().rewind(0), "1,025 are one too many");
    assert!(stream.rewind(1));
    assert_eq!(stream.presence(), 51);
}

#[test]
fn the_ring_holds_exactly_one_mebibyte() {
    let half = RING_BYTES / 2;
    let mut stream = Stream::new(1, 0);
    for id in [1, 2] {
        stream.push(event(id), half);
        stream.pop();
    }
    assert!(stream.clone().rewind(0), "a mebibyte is all there");
    stream.push(event(3), 1);
    stream.pop();
    assert!(!stream.clone().rewind(0), "one byte too many");
    assert!(stream.clone().rewind(1));
    assert_eq!(stream.ring_bytes, half + 1);
}

#[test]
fn ticks_are_numbered_but_take_no_room_and_never_come_again() {
    let mut stream = Stream::new(1, 0);
    stream.push(event(1), 1);
    stream.pop();
    for _ in 0..3 * RING_EVENTS {
        stream.number();
    }
    stream.push(event(2), 1);
    stream.pop();
    assert!(stream.rewind(0));
    assert_eq!(drain(&mut stream), [(1, 1), (2, 2)], "renumbered without the ticks");
}

#[test]
fn a_position_beyond_what_was_sent_is_refused_and_changes_nothing() {
    let mut stream = Stream::new(1, 5);
    stream.advance_presence(&delta(5, &[6]));
    stream.push(event(1), 1);
    stream.pop();
    assert!(!stream.rewind(3));
    assert!(!stream.rewind(u64::MAX));
    assert_eq!((stream.next_seq(), stream.presence()), (3, 6));
    assert!(stream.rewind(2), "the last one sent is a good position");
    assert!(!stream.has_pending());
}

#[test]
fn a_position_below_what_was_already_resumed_from_is_refused() {
    let mut stream = Stream::new(1, 0);
    for id in 1..=4 {
        stream.push(event(id), 1);
    }
    drain(&mut stream);
    assert!(stream.rewind(3), "the client has three");
    assert!(!stream.rewind(2), "it cannot have fewer afterwards");
    assert_eq!(drain(&mut stream), [(4, 4)]);
    assert!(stream.rewind(3), "the fourth was lost again");
    assert_eq!(drain(&mut stream), [(4, 4)]);
}

#[test]
fn what_was_sent_before_a_jump_of_presence_cannot_be_resumed_from() {
    let mut stream = Stream::new(1, 0);
    stream.advance_presence(&delta(0, &[1, 2]));
    stream.skip_presence(9_000);
    assert_eq!((stream.presence(), stream.next_seq()), (9_000, 3));
    assert!(!stream.clone().rewind(1));
    stream.push(event(1), 1);
    stream.pop();
    assert!(stream.rewind(2));
    assert_eq!((stream.presence(), drain(&mut stream)), (9_000, vec![(3, 1)]));
}

#[test]
fn more_waiting_than_may_wait_breaks_the_stream_and_is_said() {
    let mut by_count = Stream::new(1, 0);
    for id in 0..PENDING_EVENTS as u64 {
        by_count.push(event(id), 1);
    }
    assert!(!by_count.is_broken(), "exactly full");
    by_count.push(event(0), 1);
    assert!(by_count.is_broken());

    let mut by_bytes = Stream::new(1, 0);
    by_bytes.push(event(1), RING_BYTES);
    assert!(!by_bytes.is_broken(), "exactly full");
    by_bytes.push(event(2), 1);
    assert!(by_bytes.is_broken());
    assert_eq!(drain(&mut by_bytes), [(1, 1)]);
    assert!(!by_bytes.rewind(1), "an event was lost: no position is good");
    assert!(!by_bytes.rewind(0));
}

/// What is done to a stream.
#[derive(Clone, Debug)]
enum Op {
    /// Events begin to wait.
    Push { count: usize, bytes: usize },
    /// Some of them leave.
    Pop(usize),
    /// A tick leaves.
    Tick,
    /// Presence leaves: the distances between the versions of its steps.
    Presence(Vec<u64>),
    /// Presence is read again.
    Skip,
    /// The client comes back having this share, in thousandths, of what may be resumed from.
    Rewind(u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let sizes = prop_oneof![4 => Just(1usize), 2 => Just(700), 1 => Just(90_000), 1 => Just(RING_BYTES / 2)];
    let op = prop_oneof![
        4 => (1usize..20, sizes).prop_map(|(count, bytes)| Op::Push { count, bytes }),
        1 => Just(Op::Push { count: 300, bytes: 1 }),
        6 => (1usize..40).prop_map(Op::Pop),
        1 => Just(Op::Pop(usize::MAX)),
        2 => Just(Op::Tick),
        4 => prop::collection::vec(1u64..4, 0..8).prop_map(Op::Presence),
        1 => (1usize..600).prop_map(|steps| Op::Presence(vec![1; steps])),
        1 => Just(Op::Skip),
        2 => (0u64..=1000).prop_map(Op::Rewind),
    ];
    prop::collection::vec(op, 1..40)
}

/// An event as the model remembers it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Was {
    Direct { id: u64, bytes: usize },
    Presence(u64),
    Tick,
}

impl Was {
    fn bytes(&self) -> usize {
        if let Was::Direct { bytes, .. } = self { *bytes } else { 0 }
    }
}

/// A stream that remembers everything, plainly.
#[derive(Clone, Default)]
struct Model {
    /// Ids that have waited, ever; what a client must have had in the end, in this order.
    pushed: Vec<u64>,
    waiting: Vec<Was>,
    /// What left since `start`, in order: the number is the place.
    sent: Vec<Was>,
    /// The number before the first of `sent`, and the presence version then.
    start: (u64, u64),
    /// Direct events the client is known to have.
    has: Vec<u64>,
    broken: bool,
}

impl Model {
    fn last_seq(&self) -> u64 {
        self.start.0 + self.sent.len() as u64
    }

    /// The newest number that cannot be replayed: count back until the ring is full.
    fn floor(&self) -> u64 {
        let (mut events, mut bytes) = (0, 0);
        for (index, was) in self.sent.iter().enumerate().rev() {
            if *was == Was::Tick {
                continue;
            }
            events += 1;
            bytes += was.bytes();
            if events > RING_EVENTS || bytes > RING_BYTES {
                return self.start.0 + index as u64 + 1;
            }
        }
        self.start.0
    }

    /// What the client has at `last_seq`, and what must leave again.
    fn split(&self, last_seq: u64) -> (&[Was], &[Was]) {
        self.sent.split_at((last_seq - self.start.0) as usize)
    }

    fn presence_at(&self, last_seq: u64) -> u64 {
        let told = |was: &Was| if let Was::Presence(version) = was { Some(*version) } else { None };
        self.split(last_seq).0.iter().filter_map(told).next_back().unwrap_or(self.start.1)
    }

    fn rewind(&mut self, last_seq: u64) -> bool {
        if self.broken || last_seq < self.floor() || last_seq > self.last_seq() {
            return false;
        }
        let presence = self.presence_at(last_seq);
        let (had, lost) = self.split(last_seq);
        let (had, mut again) = (ids(had), lost.to_vec());
        again.retain(|was| matches!(was, Was::Direct { .. }));
        again.append(&mut self.waiting);
        self.has.extend(had);
        (self.waiting, self.sent, self.start) = (again, Vec::new(), (last_seq, presence));
        true
    }
}

fn ids(events: &[Was]) -> Vec<u64> {
    events.iter().filter_map(|was| if let Was::Direct { id, .. } = was { Some(*id) } else { None }).collect()
}

/// The stream and its model, side by side.
struct Pair {
    stream: Stream,
    model: Model,
}

impl Pair {
    fn apply(&mut self, op: &Op) {
        let Pair { stream, model } = self;
        match op {
            Op::Push { count, bytes } => {
                for _ in 0..*count {
                    let id = model.pushed.len() as u64 + 1;
                    stream.push(event(id), *bytes);
                    let waiting: usize = model.waiting.iter().map(Was::bytes).sum();
                    if model.waiting.len() >= PENDING_EVENTS || waiting + bytes > RING_BYTES {
                        model.broken = true;
                    } else {
                        model.pushed.push(id);
                        model.waiting.push(Was::Direct { id, bytes: *bytes });
                    }
                }
            }
            Op::Pop(count) => {
                for _ in 0..(*count).min(model.waiting.len()) {
                    let was = model.waiting.remove(0);
                    model.sent.push(was);
                    let (seq, event) = stream.pop().expect("something waits");
                    assert_eq!((seq, vec![id_of(&event)]), (model.last_seq(), ids(&[was])));
                }
            }
            Op::Tick => {
                model.sent.push(Was::Tick);
                assert_eq!(stream.number(), model.last_seq());
            }
            Op::Presence(distances) => {
                let base = stream.presence();
                let versions: Vec<u64> =
                    distances.iter().scan(base, |at, step| (*at += step, Some(*at)).1).collect();
                assert_eq!(stream.advance_presence(&delta(base, &versions)), model.last_seq() + 1);
                model.sent.extend(versions.iter().map(|version| Was::Presence(*version)));
            }
            Op::Skip => {
                let version = stream.presence() + 1_000;
                stream.skip_presence(version);
                model.has.extend(ids(&model.sent));
                (model.start, model.sent) = ((model.last_seq(), version), Vec::new());
            }
            Op::Rewind(share) => {
                let (low, high) = (model.floor(), model.last_seq());
                let last_seq = low + (high - low) * share / 1000;
                assert_eq!(stream.rewind(last_seq), model.rewind(last_seq));
            }
        }
        self.check();
    }

    fn check(&self) {
        let Pair { stream, model } = self;
        assert_eq!(stream.next_seq(), model.last_seq() + 1);
        assert_eq!(stream.presence(), model.presence_at(model.last_seq()));
        assert_eq!(stream.is_broken(), model.broken);
        assert_eq!(stream.has_pending(), !model.waiting.is_empty());
        stream.check();
    }

    /// Every position that a client could claim, and some that none could.
    fn try_every_position(&self) {
        let last = self.model.last_seq();
        for claimed in self.model.start.0.saturating_sub(2)..=last + 2 {
            let (mut stream, mut model) = (self.stream.clone(), self.model.clone());
            let good = model.rewind(claimed);
            assert_eq!(stream.rewind(claimed), good, "resume at {claimed} of {last}");
            if !good {
                assert_eq!(stream.next_seq(), last + 1, "a refused position changes nothing");
                continue;
            }
            assert_eq!(stream.presence(), model.start.1, "presence at {claimed} of {last}");
            let again = drain(&mut stream);
            let numbers: Vec<u64> = again.iter().map(|(seq, _)| *seq).collect();
            assert_eq!(numbers, run(claimed + 1, again.len() as u64), "renumbered from {claimed}");
            let mut all = model.has.clone();
            all.extend(again.iter().map(|(_, id)| *id));
            assert_eq!(all, model.pushed, "had and got again, at {claimed} of {last}");
        }
    }
}

/// Few cases by default; `PROPTEST_CASES` asks for more.
fn config() -> ProptestConfig {
    let asked = std::env::var_os("PROPTEST_CASES").is_some();
    let default = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if asked { default } else { ProptestConfig { cases: 48, ..default } }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn whatever_the_client_has_the_rest_comes_again(base in 0u64..5, ops in ops()) {
        let model = Model { start: (0, base), ..Model::default() };
        let mut pair = Pair { stream: Stream::new(1, base), model };
        for op in &ops {
            pair.apply(op);
        }
        pair.try_every_position();
    }
}
