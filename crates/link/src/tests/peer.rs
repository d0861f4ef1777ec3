//! A scripted broker that speaks of messages.

use tenure_proto::method::Method;
use tenure_proto::subscribe::{AckMode, From, SubscribeParams};

use super::*;

pub(super) struct Peer {
    pub(super) world: World,
    pub(super) sock: SockId,
    seq: u64,
    /// Bytes of a body that it takes.
    pub(super) max_payload: u64,
}

pub(super) fn wish(topic: &str, group: Option<&str>) -> SubscribeParams {
    SubscribeParams {
        topic: topic.parse().unwrap(),
        group: group.map(|group| group.parse().unwrap()),
        partition: None,
        prefetch: 32,
        ack_mode: AckMode::Manual,
        from: From::New,
    }
}

/// What the broker calls the delivery of `seq` at `attempt`.
pub(super) fn tag(seq: u64, attempt: u32) -> String {
    format!("t{seq}.{attempt}")
}

pub(super) fn delivery(sub: &str, log: &str, seq: u64, attempt: u32) -> Value {
    let key = "02".repeat(32);
    // Each entry of each log is a message of its own.
    let hash = |sum: u64, byte: u8| sum.wrapping_mul(31).wrapping_add(u64::from(byte));
    let entropy = u128::from(log.bytes().fold(seq, hash));
    let id = tenure_proto::MessageId::from_parts(1_700_000_500_000, entropy);
    json!({"subId": sub, "tag": tag(seq, attempt), "attempt": attempt, "redelivered": attempt > 1, "message": {
        "id": id, "clientMessageId": format!("m{seq}"), "to": "topic:jobs",
        "from": {"member": key, "session": key, "name": "n"}, "log": log, "seq": seq, "priority": "next",
        "body": format!("body {seq}"), "sentAt": 1,
    }})
}

impl Peer {
    pub(super) fn new() -> Peer {
        Peer::with(config())
    }

    pub(super) fn with(config: LinkConfig) -> Peer {
        let now = Now { at: Millis(1_000), wall: 1_700_000_000_000 };
        let mut world = World { link: Link::new(config, 7, now), now, broker_wall: BROKER_WALL };
        world.link.start(now);
        let sock = World::dialled(&world.take());
        let mut peer = Peer { world, sock, seq: 1, max_payload: 1_000_000 };
        let hello = peer.world.challenge(sock);
        assert!(hello["params"].get("reconcile").is_none(), "a new process has nothing to say");
        peer.welcome("new", "new", None);
        peer
    }

    /// Answers the hello.
    pub(super) fn welcome(
        &mut self,
        lease: &str,
        outcome: &str,
        reconcile: Option<Value>,
    ) -> Vec<LinkEffect> {
        if outcome != "resumed" {
            self.seq = 1;
        }
        let mut result = hello_result(lease, outcome, self.seq);
        result["policy"]["maxPayload"] = json!(self.max_payload);
        if let Some(reconcile) = reconcile {
            result["reconcile"] = reconcile;
        }
        self.reply("hello", result)
    }

    /// Answers the hello with a new lease: the store is another one, and these logs are rewound.
    pub(super) fn rewound(&mut self, logs: &[&str], reason: &str, reconcile: Value) -> Vec<LinkEffect> {
        self.seq = 1;
        let mut result = hello_result("new", "resume_rejected", 1);
        result["resume"]["reason"] = json!(reason);
        result["policy"]["maxPayload"] = json!(self.max_payload);
        result["rewound"] = json!(logs);
        result["reconcile"] = reconcile;
        self.reply("hello", result)
    }

    /// Breaks the socket and gives the params of the next hello.
    pub(super) fn cut(&mut self) -> Value {
        let sock = self.sock;
        self.world.input(LinkInput::Gone(sock, None));
        self.sock = self.world.redial();
        let sock = self.sock;
        self.world.challenge(sock)["params"].take()
    }

    pub(super) fn reply(&mut self, id: &str, result: Value) -> Vec<LinkEffect> {
        let sock = self.sock;
        self.world.frame(sock, json!({"type": "res", "id": id, "ok": true, "result": result}))
    }

    pub(super) fn refuse(&mut self, id: &str, code: &str, retry_after_ms: Option<u64>) -> Vec<LinkEffect> {
        let sock = self.sock;
        let error =
            json!({"code": code, "message": "no", "retryable": false, "retryAfterMs": retry_after_ms});
        self.world.frame(sock, json!({"type": "res", "id": id, "ok": false, "error": error}))
    }

    pub(super) fn event(&mut self, name: &str, data: Value) -> Vec<LinkEffect> {
        let (sock, seq) = (self.sock, self.seq);
        self.seq += 1;
        self.world.frame(sock, json!({"type": "event", "event": name, "seq": seq, "data": data}))
    }

    /// Delivers an entry of the topic `jobs`.
    pub(super) fn deliver(&mut self, sub: &str, seq: u64, attempt: u32) -> Vec<LinkEffect> {
        self.event("message", delivery(sub, "topic/jobs/0", seq, attempt))
    }

    /// Delivers an entry that the application gets.
    pub(super) fn hand(&mut self, sub: &str, seq: u64) -> DeliveryId {
        let effects = self.deliver(sub, seq, 1);
        let [(_, Some(id), got)] = messages(&effects)[..] else { panic!("{effects:?}") };
        assert_eq!(got, seq);
        id
    }

    pub(super) fn ask_subscribe(&mut self, wish: SubscribeParams) -> (SubHandle, Vec<LinkEffect>) {
        let world = &mut self.world;
        let handle = world.link.subscribe(world.now, wish, 20_000).unwrap();
        (handle, world.take())
    }

    /// A subscription to the topic `jobs` that is open, as `id`, from entry `start` on.
    pub(super) fn subscribe(&mut self, group: Option<&str>, id: &str, start: u64) -> SubHandle {
        let (handle, effects) = self.ask_subscribe(wish("jobs", group));
        let frame = only(&effects, "subscribe");
        let result = json!({"subId": id, "startSeq": {"0": start}});
        let effects = self.reply(frame["id"].as_str().unwrap(), result);
        assert!(
            matches!(&effects[..], [LinkEffect::Sub(h, SubItem::Opened(_))] if *h == handle),
            "{effects:?}"
        );
        handle
    }

    pub(super) fn settle(&mut self, id: DeliveryId, verb: Verb) -> SettleNumber {
        self.world.link.settle(id, verb)
    }

    pub(super) fn flush(&mut self) -> Vec<LinkEffect> {
        let world = &mut self.world;
        world.link.flush(world.now);
        world.take()
    }

    /// Acks and gives the number of the settlement and the frame that left.
    pub(super) fn ack(&mut self, id: DeliveryId) -> (SettleNumber, Value) {
        let number = self.settle(id, Verb::Ack);
        (number, only(&self.flush(), "ack"))
    }

    pub(super) fn request(&mut self, method: Method, params: Value) -> RequestNumber {
        let world = &mut self.world;
        world.link.request(world.now, method, &params, 20_000).unwrap()
    }
}

/// The one frame among `effects`, of that method.
pub(super) fn only(effects: &[LinkEffect], method: &str) -> Value {
    let mut frames = sent(effects);
    assert_eq!(frames.len(), 1, "{effects:?}");
    let frame = frames.remove(0);
    assert_eq!(frame["method"], method);
    frame
}

pub(super) fn id_of(frame: &Value) -> &str {
    frame["id"].as_str().unwrap()
}

/// The messages that readers get.
pub(super) fn messages(effects: &[LinkEffect]) -> Vec<(SubHandle, Option<DeliveryId>, u64)> {
    let got = effects.iter().filter_map(|effect| match effect {
        LinkEffect::Sub(handle, SubItem::Message(handed)) => {
            Some((*handle, handed.id, handed.delivery.message.seq.get()))
        }
        _ => None,
    });
    got.collect()
}

pub(super) fn settlements(effects: &[LinkEffect]) -> Vec<(SettleNumber, Settlement)> {
    let told = effects.iter().filter_map(|effect| match effect {
        LinkEffect::Settled(number, settlement) => Some((*number, settlement.clone())),
        _ => None,
    });
    told.collect()
}

pub(super) fn ends(effects: &[LinkEffect]) -> Vec<(SubHandle, SubEnd)> {
    let ended = effects.iter().filter_map(|effect| match effect {
        LinkEffect::Sub(handle, SubItem::Ended(end)) => Some((*handle, end.clone())),
        _ => None,
    });
    ended.collect()
}

pub(super) fn stale(reason: &str) -> Settlement {
    Settlement::Stale { reason: reason.to_owned() }
}

pub(super) fn keep(id: &str, client: &str) -> Value {
    json!({"action": "keep", "subId": id, "client": client, "server": id, "reason": "matched"})
}
