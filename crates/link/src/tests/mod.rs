//! The link against a scripted broker, in virtual time.

mod calling;
mod leaving;
mod model;
mod offering;
mod peer;
mod reading;
mod reconcile;
mod rewinding;
mod running;
mod sending;
mod serving;
mod session;
mod settling;

use ed25519_dalek::SigningKey;
use serde_json::{Value, json};
use tenure_proto::close::Closing;
use tenure_proto::feature::FeatureWishes;
use tenure_proto::hello::{ClientInfo, InboxChoice};

use super::*;

const LEASE: u64 = 90_000;

struct World {
    link: Link,
    now: Now,
    /// The broker's clock when ours was at zero.
    broker_wall: u64,
}

/// Of every broker, unless a test sets it otherwise: 1,700,000,500,000 at the first challenge.
const BROKER_WALL: u64 = 1_700_000_499_000;

fn config() -> LinkConfig {
    LinkConfig {
        mesh: "default".parse().unwrap(),
        session_key: Box::new(SigningKey::from_bytes(&[1; 32])),
        voucher: Voucher::MemberKey(Box::new(SigningKey::from_bytes(&[2; 32])), None),
        profile: Profile::named("me"),
        inbox: InboxChoice::Session,
        reconcile: Default::default(),
        client: ClientInfo {
            name: "test".into(),
            version: "0".into(),
            platform: None,
            instance_id: "mine".parse().unwrap(),
        },
        features: FeatureWishes::default(),
        codec: Codec::Json,
        host: "localhost:7400".into(),
        auth: None,
    }
}

impl World {
    fn new() -> World {
        let now = Now { at: Millis(1_000), wall: 1_700_000_000_000 };
        let mut world = World { link: Link::new(config(), 7, now), now, broker_wall: BROKER_WALL };
        world.link.start(now);
        world
    }

    fn take(&mut self) -> Vec<LinkEffect> {
        std::iter::from_fn(|| self.link.poll_effect()).collect()
    }

    fn input(&mut self, input: LinkInput) -> Vec<LinkEffect> {
        self.link.handle(self.now, input);
        self.take()
    }

    fn frame(&mut self, sock: SockId, frame: Value) -> Vec<LinkEffect> {
        self.input(LinkInput::Frame(sock, serde_json::to_vec(&frame).unwrap()))
    }

    /// Lets time pass, waking the link whenever it asks to be.
    fn pass(&mut self, ms: u64) -> Vec<LinkEffect> {
        let until = self.now.at.plus(ms);
        while let Some(due) = self.link.next_deadline().filter(|due| *due <= until) {
            self.jump(due.since(self.now.at));
            self.link.tick(self.now);
        }
        self.jump(until.since(self.now.at));
        self.take()
    }

    /// Lets time pass while nobody is awake.
    fn jump(&mut self, ms: u64) {
        self.now = Now { at: self.now.at.plus(ms), wall: self.now.wall + ms };
    }

    /// The socket of a dial among `effects`.
    fn dialled(effects: &[LinkEffect]) -> SockId {
        effects
            .iter()
            .find_map(|effect| match effect {
                LinkEffect::Dial(sock) => Some(*sock),
                _ => None,
            })
            .unwrap_or_else(|| panic!("no dial in {effects:?}"))
    }

    fn challenge(&mut self, sock: SockId) -> Value {
        self.input(LinkInput::Opened(sock));
        let ts = self.broker_wall + self.now.at.0;
        let challenge = json!({"nonce": "n", "ts": ts, "broker": "b"});
        let effects = self.frame(sock, json!({"type": "event", "event": "challenge", "data": challenge}));
        let hello = sent(&effects).pop().expect("a hello");
        assert_eq!(hello["method"], "hello");
        hello
    }

    fn answer(&mut self, sock: SockId, lease: &str, outcome: &str, next_seq: u64) -> Vec<LinkEffect> {
        let result = hello_result(lease, outcome, next_seq);
        self.frame(sock, json!({"type": "res", "id": "hello", "ok": true, "result": result}))
    }

    /// A world whose session is attached on its first socket.
    fn attached() -> (World, SockId) {
        let mut world = World::new();
        let sock = World::dialled(&world.take());
        world.challenge(sock);
        world.answer(sock, "new", "new", 1);
        assert!(world.link.is_attached());
        (world, sock)
    }

    fn tick_event(&mut self, sock: SockId, seq: u64) -> Vec<LinkEffect> {
        self.frame(sock, json!({"type": "event", "event": "tick", "seq": seq, "data": {"ts": 1}}))
    }

    fn closing(&mut self, sock: SockId, closing: &Closing) -> Vec<LinkEffect> {
        self.frame(sock, json!({"type": "event", "event": "closing", "data": closing}))
    }

    /// Waits out the back-off and gives the next socket.
    fn redial(&mut self) -> SockId {
        for _ in 0..100 {
            let effects = self.pass(100);
            if effects.iter().any(|effect| matches!(effect, LinkEffect::Dial(_))) {
                return World::dialled(&effects);
            }
        }
        panic!("it does not dial again");
    }
}

fn hello_result(lease: &str, outcome: &str, next_seq: u64) -> Value {
    let replay = if outcome == "resumed" { "complete" } else { "resync" };
    json!({
        "protocol": 1, "broker": {"id": "b", "version": "0"}, "connId": "c1", "sessionId": "01".repeat(32),
        "lease": lease, "resume": {"outcome": outcome, "token": format!("token-{next_seq}")},
        "leaseTtlMs": LEASE,
        "policy": {"pingIntervalMs": 30_000, "staleAfterMs": 75_000, "tickIntervalMs": 30_000,
            "maxPayload": 1, "maxBufferedBytes": 1, "maxBufferedMessages": 1, "maxInflight": 1, "durability": "fsync"},
        "features": {}, "events": {"epoch": "e1", "nextSeq": next_seq, "replay": replay},
        "stateVersion": {"presence": 0, "services": 0, "health": 0},
    })
}

fn sent(effects: &[LinkEffect]) -> Vec<Value> {
    let frames = effects.iter().filter_map(|effect| match effect {
        LinkEffect::Send(_, frame) => Some(serde_json::from_slice(frame).unwrap()),
        _ => None,
    });
    frames.collect()
}

fn ended(effects: &[LinkEffect]) -> Option<End> {
    effects.iter().find_map(|effect| match effect {
        LinkEffect::Ended(end) => Some(end.clone()),
        _ => None,
    })
}

fn delivered(effects: &[LinkEffect]) -> Vec<u64> {
    let seqs = effects.iter().filter_map(|effect| match effect {
        LinkEffect::Deliver(SessionEvent::Event { seq, .. }) => Some(*seq),
        _ => None,
    });
    seqs.collect()
}
