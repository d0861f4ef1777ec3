//! A reader against a small broker that keeps the contract, on a network that loses everything in flight at any
//! moment: nothing is lost, and nothing that was acked is handed out again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tenure_kit::census::Count;
use tenure_proto::subscribe::From;

use super::*;
use crate::tests::peer::{delivery, wish};

const ENTRIES: u64 = 40;
const PREFETCH: usize = 5;
const STEPS: usize = 250;

/// One group of one log, and the one session that may read it.
struct Broker {
    shared: bool,
    /// Whether the session has a lease, and which: a token of an earlier one selects nothing.
    leased: bool,
    lease: u32,
    sub: Option<String>,
    names: u32,
    /// A private group dies with its lease: tags of an earlier one mean nothing.
    group: u32,
    exists: bool,
    cursor: u64,
    ready: VecDeque<u64>,
    claims: BTreeMap<u64, u32>,
    attempts: BTreeMap<u64, u32>,
    settled: BTreeSet<u64>,
    events: u64,
    out: VecDeque<Value>,
}

impl Broker {
    fn tag(&self, seq: u64, attempt: u32) -> String {
        format!("{}.{seq}.{attempt}", self.group)
    }

    fn parse(&self, tag: &str) -> Option<(u64, u32)> {
        let parts: Vec<u64> = tag.split('.').map(|part| part.parse().unwrap()).collect();
        (parts[0] == u64::from(self.group) && self.exists).then_some((parts[1], parts[2] as u32))
    }

    fn requeue(&mut self, seq: u64) {
        if self.claims.remove(&seq).is_some() {
            self.ready.push_back(seq);
        }
    }

    fn drop_sub(&mut self) {
        self.sub = None;
        for seq in self.claims.keys().copied().collect::<Vec<_>>() {
            self.requeue(seq);
        }
        if !self.shared {
            self.exists = false;
        }
    }

    fn lose_lease(&mut self) {
        self.leased = false;
        self.drop_sub();
    }

    /// A start of the broker: the place of a private group was written a while ago.
    fn restart(&mut self) {
        let late: Vec<u64> = self.settled.iter().rev().take(3).copied().filter(|_| !self.shared).collect();
        for seq in late {
            self.settled.remove(&seq);
            self.ready.push_back(seq);
        }
    }

    /// Whether the tag settles, and what an ack or nack does then.
    fn settle(&mut self, tag: &str, ack: bool) -> bool {
        let Some((seq, attempt)) = self.parse(tag) else { return false };
        if self.settled.contains(&seq) {
            return true;
        }
        let claimed = self.claims.get(&seq).copied();
        let current = claimed == Some(attempt);
        let unclaimed = claimed.is_none() && self.attempts.get(&seq) == Some(&attempt);
        if !current && !unclaimed {
            return false;
        }
        self.claims.remove(&seq);
        self.ready.retain(|ready| *ready != seq);
        if ack {
            self.settled.insert(seq);
        } else {
            self.ready.push_back(seq);
        }
        true
    }

    fn push(&mut self, seq: u64, attempt: u32) {
        let mut data = delivery(self.sub.as_ref().unwrap(), "topic/jobs/0", seq, attempt);
        data["tag"] = json!(self.tag(seq, attempt));
        self.events += 1;
        self.out.push_back(json!({"type": "event", "event": "message", "seq": self.events, "data": data}));
    }

    fn hand_out(&mut self) {
        while self.sub.is_some() && self.claims.len() < PREFETCH {
            let seq = match self.ready.pop_front() {
                Some(seq) => seq,
                None if self.cursor <= ENTRIES => {
                    self.cursor += 1;
                    self.cursor - 1
                }
                None => return,
            };
            if self.settled.contains(&seq) {
                continue;
            }
            let attempt = self.attempts.entry(seq).or_default();
            *attempt += 1;
            let attempt = *attempt;
            self.claims.insert(seq, attempt);
            self.push(seq, attempt);
        }
    }

    fn hello(&mut self, params: &Value) {
        let lease = if self.leased { "kept" } else { "new" };
        self.lease += u32::from(!self.leased);
        self.leased = true;
        let token = format!("token-{}", self.lease);
        let outcome = match &params["resume"]["token"] {
            Value::Null => "new",
            Value::String(presented) if *presented == token => "resumed",
            _ => "resume_not_found",
        };
        self.events = if outcome == "resumed" { params["resume"]["lastSeq"].as_u64().unwrap() } else { 0 };
        let mut result = hello_result(lease, outcome, self.events + 1);
        result["resume"]["token"] = json!(token);
        result["policy"]["maxPayload"] = json!(1_000_000);
        let reconcile = &params["reconcile"];
        let mut again = Vec::new();
        if reconcile.is_object() {
            let inflight: Vec<Value> =
                reconcile["inflight"].as_array().unwrap().iter().map(|listed| self.judge(listed)).collect();
            let listed = inflight.iter().filter_map(|verdict| self.parse(verdict["tag"].as_str().unwrap()));
            let listed: BTreeSet<u64> = listed.map(|(seq, _)| seq).collect();
            again = self.claims.keys().copied().filter(|seq| !listed.contains(seq)).collect();
            let results = self.verdicts(reconcile["subscriptions"].as_array().unwrap(), outcome);
            result["reconcile"] = json!({"results": results, "inflight": inflight});
        } else {
            self.drop_sub();
        }
        self.out.push_back(json!({"type": "res", "id": "hello", "ok": true, "result": result}));
        for seq in again {
            if let Some(attempt) = self.claims.get(&seq).copied() {
                self.push(seq, attempt);
            }
        }
    }

    fn judge(&mut self, listed: &Value) -> Value {
        let tag = listed["tag"].as_str().unwrap();
        let settled = match listed["settle"].as_str() {
            Some(settle) => self.settle(tag, settle == "ack").then_some("settled"),
            None => None,
        };
        let kept = || {
            let (seq, attempt) = self.parse(tag)?;
            (self.claims.get(&seq) == Some(&attempt)).then_some("kept")
        };
        json!({"tag": tag, "result": settled.or_else(kept).unwrap_or("requeued")})
    }

    fn verdicts(&mut self, listed: &[Value], outcome: &str) -> Vec<Value> {
        let Some(client) = listed.first().map(|sub| sub["subId"].clone()) else {
            self.drop_sub();
            return Vec::new();
        };
        let Some(old) = self.sub.clone() else {
            assert_ne!(outcome, "resumed", "a living lease has what its client has");
            let verdict =
                json!({"action": "recreate_client_side", "subId": client, "client": client, "reason": "r"});
            return vec![verdict];
        };
        self.names += 1;
        let name = format!("s{}", self.names);
        self.sub = Some(name.clone());
        vec![json!({"action": "keep", "subId": name, "client": client, "server": old, "reason": "matched"})]
    }

    fn handle(&mut self, frame: &Value) {
        let params = &frame["params"];
        let result = match frame["method"].as_str().unwrap() {
            "hello" => return self.hello(params),
            "subscribe" => {
                if !self.exists {
                    (self.exists, self.group) = (true, self.group + 1);
                    self.cursor = params["from"].as_u64().unwrap_or(1);
                    self.settled.clear();
                    self.ready.clear();
                    self.attempts.clear();
                }
                self.names += u32::from(self.sub.is_none());
                let name = self.sub.get_or_insert(format!("s{}", self.names)).clone();
                json!({"subId": name, "startSeq": {"0": self.cursor}})
            }
            "unsubscribe" => {
                if self.sub.as_deref() == params["subId"].as_str() {
                    self.drop_sub();
                }
                json!({})
            }
            method => {
                let tags = params["tags"].as_array().unwrap().clone();
                let (settled, stale): (Vec<Value>, Vec<Value>) =
                    tags.into_iter().partition(|tag| self.settle(tag.as_str().unwrap(), method == "ack"));
                let stale: Vec<Value> =
                    stale.into_iter().map(|tag| json!({"tag": tag, "reason": "stale"})).collect();
                json!({"settled": settled, "stale": stale})
            }
        };
        self.out.push_back(json!({"type": "res", "id": frame["id"], "ok": true, "result": result}));
    }
}

/// The application, the network and the dice.
struct Play {
    seed: u64,
    dice: Backoff,
    world: World,
    broker: Broker,
    sock: Option<SockId>,
    to_broker: VecDeque<Value>,
    to_client: VecDeque<Value>,
    hands: Vec<(DeliveryId, u64)>,
    acking: BTreeMap<SettleNumber, u64>,
    done: BTreeSet<u64>,
    ended: Option<SubEnd>,
}

impl Play {
    fn new(seed: u64, shared: bool) -> Play {
        let now = Now { at: Millis(1_000), wall: 1_700_000_000_000 };
        let mut world = World { link: Link::new(config(), seed, now), now, broker_wall: BROKER_WALL };
        world.link.start(now);
        let mut wish = wish("jobs", shared.then_some("crew"));
        (wish.from, wish.prefetch) = (From::Earliest, PREFETCH as u32);
        world.link.subscribe(now, wish, u64::MAX / 2).unwrap();
        let broker = Broker {
            shared,
            leased: false,
            lease: 0,
            sub: None,
            names: 0,
            group: 0,
            exists: false,
            cursor: 1,
            ready: VecDeque::new(),
            claims: BTreeMap::new(),
            attempts: BTreeMap::new(),
            settled: BTreeSet::new(),
            events: 0,
            out: VecDeque::new(),
        };
        Play {
            seed,
            dice: Backoff::new(seed ^ 0xdead),
            world,
            broker,
            sock: None,
            to_broker: VecDeque::new(),
            to_client: VecDeque::new(),
            hands: Vec::new(),
            acking: BTreeMap::new(),
            done: BTreeSet::new(),
            ended: None,
        }
    }

    fn roll(&mut self, sides: u64) -> u64 {
        self.dice.next_ms(true) % sides
    }

    fn absorb(&mut self) {
        let census = self.world.link.census();
        assert!(census.iter().all(Count::fits), "seed {}: {census:?}", self.seed);
        for effect in self.world.take() {
            match effect {
                LinkEffect::Dial(sock) => {
                    self.sock = Some(sock);
                    self.to_broker.clear();
                    self.to_client.clear();
                    self.world.link.handle(self.world.now, LinkInput::Opened(sock));
                    let challenge = json!({"nonce": "n", "ts": 1, "broker": "b"});
                    self.to_client
                        .push_back(json!({"type": "event", "event": "challenge", "data": challenge}));
                }
                LinkEffect::Send(sock, frame) if self.sock == Some(sock) => {
                    self.to_broker.push_back(serde_json::from_slice(&frame).unwrap());
                }
                LinkEffect::Sub(_, SubItem::Message(handed)) => {
                    let seq = handed.delivery.message.seq.get();
                    assert!(!self.done.contains(&seq), "seed {}: {seq} was acked", self.seed);
                    let acking = self.acking.values().any(|acking| *acking == seq);
                    assert!(!acking, "seed {}: {seq} is being acked", self.seed);
                    self.hands.push((handed.id.unwrap(), seq));
                }
                LinkEffect::Sub(_, SubItem::Ended(end)) => self.ended = Some(end),
                LinkEffect::Settled(number, settlement) => {
                    if let Some(seq) = self.acking.remove(&number)
                        && settlement == Settlement::Settled
                    {
                        self.done.insert(seq);
                    }
                }
                _ => {}
            }
        }
    }

    fn cut(&mut self) {
        if let Some(sock) = self.sock.take() {
            for lost in [&mut self.to_broker, &mut self.to_client, &mut self.broker.out] {
                lost.clear();
            }
            self.world.link.handle(self.world.now, LinkInput::Gone(sock, None));
        }
    }

    fn deliver_to_broker(&mut self) {
        if let Some(frame) = self.to_broker.pop_front() {
            self.broker.handle(&frame);
            self.broker.hand_out();
            self.to_client.append(&mut self.broker.out);
        }
    }

    fn deliver_to_client(&mut self) {
        if let (Some(frame), Some(sock)) = (self.to_client.pop_front(), self.sock) {
            let bytes = serde_json::to_vec(&frame).unwrap();
            self.world.link.handle(self.world.now, LinkInput::Frame(sock, bytes));
        }
    }

    fn act(&mut self, ack_only: bool) {
        if self.hands.is_empty() {
            return;
        }
        let at = self.roll(self.hands.len() as u64) as usize;
        let (id, seq) = self.hands.swap_remove(at);
        match if ack_only { 0 } else { self.roll(6) } {
            4 => {
                let nack = Verb::Nack { delay_ms: None, dead: false, reason: None };
                self.world.link.settle(id, nack);
            }
            5 => self.world.link.forgo(id),
            _ => {
                let number = self.world.link.settle(id, Verb::Ack);
                self.acking.insert(number, seq);
            }
        }
    }

    fn pass(&mut self, ms: u64) {
        self.world.jump(ms);
        self.world.link.tick(self.world.now);
    }

    fn step(&mut self) {
        match self.roll(32) {
            0 => self.cut(),
            1 if self.sock.is_none() && self.roll(2) == 0 => self.broker.lose_lease(),
            2 if self.sock.is_none() => self.broker.restart(),
            2 => {
                // An ack timeout.
                let claimed = self.broker.claims.keys().next().copied();
                claimed.into_iter().for_each(|seq| self.broker.requeue(seq));
            }
            3..=10 => self.deliver_to_broker(),
            11..=20 => self.deliver_to_client(),
            21..=26 => self.act(false),
            27..=29 => self.world.link.flush(self.world.now),
            _ => self.pass(if self.sock.is_some() { 1 } else { 500 }),
        }
        self.absorb();
    }

    /// Lets everything come to rest on a network that holds.
    fn rest(&mut self) {
        for _ in 0..400 {
            self.deliver_to_broker();
            self.deliver_to_client();
            self.absorb();
            self.act(true);
            self.world.link.flush(self.world.now);
            self.absorb();
            if self.sock.is_none() {
                self.pass(500);
            }
        }
    }
}

#[test]
fn nothing_is_lost_and_nothing_acked_comes_out_again() {
    for seed in 0..200 {
        let mut play = Play::new(seed, seed % 2 == 0);
        play.absorb();
        for _ in 0..STEPS {
            play.step();
        }
        // What was let go comes again with the next socket.
        for _ in 0..3 {
            play.rest();
            play.cut();
            play.absorb();
        }
        play.rest();
        let done: Vec<u64> = play.done.iter().copied().collect();
        assert_eq!(done, (1..=ENTRIES).collect::<Vec<_>>(), "seed {seed}");
        assert!(play.acking.is_empty(), "seed {seed}: every settlement is told");
        assert_eq!(play.ended, None, "seed {seed}");
    }
}
