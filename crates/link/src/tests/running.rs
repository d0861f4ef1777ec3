//! A session that calls itself, by way of a small broker that keeps the contract, on a network that loses everything in
//! flight at any moment and with starts of the broker in between: every run is answered once, its pieces come in order and
//! each once, and what is missing is told.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tenure_kit::census::Count;
use tenure_proto::run::{RunEnd, RunEndStatus, RunStartParams};

use super::*;
use crate::tests::peer::delivery;

const RUNS: usize = 3;
const CHUNKS: u64 = 12;
const STEPS: usize = 300;

/// One run, as the broker has it.
#[derive(Default)]
struct Run {
    claimed: bool,
    last_seq: u64,
    /// Whether `last_seq` is known: it is not after a start.
    counting: bool,
    chunks: BTreeMap<u64, Value>,
    /// The next chunk for the caller, if it listens.
    cursor: Option<u64>,
    end: Option<(u64, Value)>,
}

struct Broker {
    runs: Vec<(String, Run)>,
    attached: bool,
    /// Numbered events of this epoch, for a replay; a message is none.
    epoch: u32,
    seq: u64,
    ring: VecDeque<(u64, Value)>,
    out: VecDeque<Value>,
}

fn name(run: usize) -> String {
    format!("01HZY000000000000000000R{run:02}")
}

impl Broker {
    fn respond(&mut self, frame: &Value, result: Value) {
        self.out.push_back(json!({"type": "res", "id": frame["id"], "ok": true, "result": result}));
    }

    fn refuse(&mut self, frame: &Value, code: &str) {
        let error = json!({"code": code, "message": "no", "retryable": false});
        self.out.push_back(json!({"type": "res", "id": frame["id"], "ok": false, "error": error}));
    }

    fn event(&mut self, name: &str, data: &Value) {
        self.seq += 1;
        self.out.push_back(json!({"type": "event", "event": name, "seq": self.seq, "data": data}));
    }

    fn run_event(&mut self, data: Value) {
        self.event("run", &data);
        self.ring.push_back((self.seq, data));
    }

    fn hand_out(&mut self, run: usize) {
        let mut data = delivery("inbox", "inbox/s/me", run as u64 + 1, 1);
        data["message"]["kind"] = json!("run");
        data["message"]["meta"] = json!({"runId": name(run)});
        self.runs[run].1.claimed = true;
        self.event("message", &data);
    }

    fn feed(&mut self) {
        for at in 0..self.runs.len() {
            while let Some(cursor) = self.runs[at].1.cursor {
                let run = &mut self.runs[at].1;
                let next = run.chunks.range(cursor..).next().map(|(seq, data)| (*seq, data.clone()));
                match (next, run.end.clone()) {
                    (Some((seq, data)), _) => {
                        run.cursor = Some(seq + 1);
                        self.run_event(json!({"runId": name(at), "seq": seq, "data": data}));
                    }
                    (None, Some((seq, result))) => {
                        run.cursor = None;
                        let end = json!({"status": "ok", "result": result});
                        self.run_event(json!({"runId": name(at), "seq": seq, "end": end}));
                    }
                    (None, None) => break,
                }
            }
        }
    }

    fn hello(&mut self, frame: &Value) {
        let resume = &frame["params"]["resume"];
        let last = resume["lastSeq"].as_u64().unwrap_or(0);
        let complete = resume["epoch"] == json!(format!("e{}", self.epoch));
        if !complete {
            self.epoch += 1;
            (self.seq, self.ring) = (0, VecDeque::new());
            self.runs.iter_mut().for_each(|(_, run)| run.cursor = None);
        } else {
            self.seq = last;
        }
        let mut result = hello_result("kept", if complete { "resumed" } else { "new" }, self.seq + 1);
        result["events"]["epoch"] = json!(format!("e{}", self.epoch));
        result["policy"]["maxPayload"] = json!(1_000_000);
        let listed: BTreeSet<String> = frame["params"]["reconcile"]["inflight"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|listed| listed["tag"].as_str().unwrap().to_owned())
            .collect();
        let kept: Vec<Value> = listed.iter().map(|tag| json!({"tag": tag, "result": "kept"})).collect();
        result["reconcile"] = json!({"results": [], "inflight": kept});
        self.respond(frame, result);
        self.attached = true;
        let missed = std::mem::take(&mut self.ring);
        for (_, data) in missed.into_iter().filter(|(seq, _)| *seq > last) {
            self.run_event(data);
        }
        for run in 0..self.runs.len() {
            let tag = crate::tests::peer::tag(run as u64 + 1, 1);
            if self.runs[run].1.end.is_none() && !listed.contains(&tag) {
                self.hand_out(run);
            }
        }
    }

    fn handle(&mut self, frame: &Value) {
        let params = &frame["params"];
        let at = params["runId"].as_str().map(|id| (0..RUNS).find(|at| name(*at) == id).unwrap());
        match frame["method"].as_str().unwrap() {
            "hello" => self.hello(frame),
            "run.start" => {
                let key = params["idempotencyKey"].as_str().unwrap();
                let known = self.runs.iter().position(|(known, _)| known == key);
                let at = known.unwrap_or(self.runs.len());
                if known.is_none() {
                    self.runs.push((key.to_owned(), Run { counting: true, ..Run::default() }));
                }
                self.runs[at].1.cursor = params["fromSeq"].as_u64();
                self.respond(frame, json!({"runId": name(at), "state": "running"}));
                if known.is_none() {
                    self.hand_out(at);
                }
            }
            "run.chunk" | "run.end" => {
                let run = &mut self.runs[at.unwrap()].1;
                let seq = params["seq"].as_u64().unwrap();
                let ends = frame["method"] == "run.end";
                if run.end.is_some() {
                    return if ends {
                        self.respond(frame, json!({}))
                    } else {
                        self.refuse(frame, "conflict")
                    };
                }
                if !std::mem::replace(&mut run.counting, true) {
                    run.last_seq = seq - 1;
                }
                if seq > run.last_seq + 1 {
                    return self.refuse(frame, "seq_gap");
                }
                if ends {
                    run.end = Some((seq, params["result"].clone()));
                } else if seq == run.last_seq + 1 {
                    run.last_seq = seq;
                    run.chunks.insert(seq, params["data"].clone());
                }
                self.respond(frame, json!({}));
            }
            "run.get" => {
                let state = if self.runs[at.unwrap()].1.end.is_some() { "ok" } else { "running" };
                self.respond(frame, json!({"runId": name(at.unwrap()), "state": state, "lastSeq": 0}));
            }
            "ack" => self.respond(frame, json!({"settled": params["tags"], "stale": []})),
            other => panic!("{other}"),
        }
    }

    fn restart(&mut self) {
        self.epoch += 1;
        for (_, run) in &mut self.runs {
            (run.counting, run.cursor) = (false, None);
            run.chunks.clear();
        }
    }
}

/// What the caller has heard of a run.
#[derive(Default)]
struct Heard {
    next: u64,
    ends: u32,
}

struct Play {
    seed: u64,
    dice: Backoff,
    world: World,
    broker: Broker,
    sock: Option<SockId>,
    to_broker: VecDeque<Value>,
    to_client: VecDeque<Value>,
    restarted: bool,
    heard: BTreeMap<CallHandle, Heard>,
    /// Runs that are being answered, with the next piece; and how many were ever handed out.
    work: BTreeMap<ServedHandle, u64>,
    came: BTreeSet<String>,
    ended: u32,
}

impl Play {
    fn new(seed: u64) -> Play {
        let now = Now { at: Millis(1_000), wall: 1_700_000_000_000 };
        let mut world = World { link: Link::new(config(), seed, now), now, broker_wall: BROKER_WALL };
        world.link.serve_runs();
        world.link.start(now);
        let mut heard = BTreeMap::new();
        for run in 0..RUNS {
            let params = RunStartParams {
                to: format!("session:{}", "01".repeat(32)).parse().unwrap(),
                input: json!(run),
                idempotency_key: format!("k{run}"),
                timeout_ms: None,
                from_seq: None,
            };
            let call = world.link.call(now, params, u64::MAX / 2).unwrap();
            heard.insert(call, Heard { next: 1, ends: 0 });
        }
        let (runs, ring, out) = (Vec::new(), VecDeque::new(), VecDeque::new());
        let broker = Broker { runs, attached: false, epoch: 1, seq: 0, ring, out };
        Play {
            seed,
            dice: Backoff::new(seed ^ 0xbeef),
            world,
            broker,
            sock: None,
            to_broker: VecDeque::new(),
            to_client: VecDeque::new(),
            restarted: false,
            heard,
            work: BTreeMap::new(),
            came: BTreeSet::new(),
            ended: 0,
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
                    self.world.link.handle(self.world.now, LinkInput::Opened(sock));
                    let challenge = json!({"nonce": "n", "ts": 1, "broker": "b"});
                    self.to_client
                        .push_back(json!({"type": "event", "event": "challenge", "data": challenge}));
                }
                LinkEffect::Send(sock, frame) if self.sock == Some(sock) => {
                    self.to_broker.push_back(serde_json::from_slice(&frame).unwrap());
                }
                LinkEffect::Call(call, item) => self.heard(call, item),
                LinkEffect::Served(run, item) => self.served(run, item),
                _ => {}
            }
        }
    }

    fn heard(&mut self, call: CallHandle, item: CallItem) {
        let (seed, restarted) = (self.seed, self.restarted);
        let heard = self.heard.get_mut(&call).unwrap();
        assert_eq!(heard.ends, 0, "seed {seed}: nothing follows the end");
        match item {
            CallItem::Started(_) => {}
            CallItem::Chunk { seq, data, gap } => {
                assert!(seq >= heard.next, "seed {seed}: {seq} came before");
                assert_eq!(gap, seq > heard.next, "seed {seed}: what is missing is told");
                assert!(!gap || restarted, "seed {seed}: nothing is missing without a start");
                assert_eq!(data, json!(seq), "seed {seed}");
                heard.next = seq + 1;
                self.world.link.call_read(call);
            }
            CallItem::Ended(CallEnd::Run { end, gap }) => {
                assert_eq!(end.result, Some(json!(CHUNKS)), "seed {seed}");
                assert_eq!(gap, heard.next <= CHUNKS, "seed {seed}");
                heard.ends += 1;
            }
            CallItem::Ended(end) => panic!("seed {seed}: {end:?}"),
        }
    }

    fn served(&mut self, run: ServedHandle, item: ServedItem) {
        match item {
            ServedItem::Came(id, _) => {
                assert!(self.came.insert(id.to_string()), "seed {}: {id} was handed out twice", self.seed);
                self.work.insert(run, 1);
            }
            ServedItem::Taken(_) => {}
            ServedItem::Ended => self.ended += 1,
            item @ (ServedItem::Cancelled | ServedItem::Over(_)) => panic!("seed {}: {item:?}", self.seed),
        }
    }

    fn cut(&mut self) {
        if let Some(sock) = self.sock.take() {
            for lost in [&mut self.to_broker, &mut self.to_client, &mut self.broker.out] {
                lost.clear();
            }
            self.broker.attached = false;
            self.world.link.handle(self.world.now, LinkInput::Gone(sock, None));
        }
    }

    fn deliver_to_broker(&mut self) {
        if let Some(frame) = self.to_broker.pop_front() {
            self.broker.handle(&frame);
            if self.broker.attached {
                self.broker.feed();
            }
            self.to_client.append(&mut self.broker.out);
        }
    }

    fn deliver_to_client(&mut self) {
        if let (Some(frame), Some(sock)) = (self.to_client.pop_front(), self.sock) {
            let bytes = serde_json::to_vec(&frame).unwrap();
            self.world.link.handle(self.world.now, LinkInput::Frame(sock, bytes));
        }
    }

    /// The application answers a little more.
    fn act(&mut self) {
        let at = self.roll(RUNS as u64) as usize;
        let Some((run, next)) = self.work.iter().nth(at).map(|(run, next)| (*run, *next)) else { return };
        let link = &mut self.world.link;
        if next <= CHUNKS {
            let seq = link.run_chunk(run, Piece::new(json!(next))).unwrap();
            assert_eq!(seq, next, "seed {}", self.seed);
            self.work.insert(run, next + 1);
        } else {
            let (status, result) = (RunEndStatus::Ok, Some(json!(CHUNKS)));
            link.run_end(run, RunEnd { status, result, error: None });
            self.work.remove(&run);
        }
    }

    fn step(&mut self) {
        match self.roll(32) {
            0 => self.cut(),
            1 if self.sock.is_none() => {
                self.broker.restart();
                self.restarted = true;
            }
            2..=11 => self.deliver_to_broker(),
            12..=22 => self.deliver_to_client(),
            23..=28 => self.act(),
            _ => {
                self.world.jump(if self.sock.is_some() { 1 } else { 500 });
                self.world.link.tick(self.world.now);
            }
        }
        self.world.link.flush(self.world.now);
        self.absorb();
    }
}

#[test]
fn every_run_is_answered_once_and_what_is_missing_is_told() {
    let (mut restarted, mut missed) = (0, 0);
    for seed in 0..150 {
        let mut play = Play::new(seed);
        play.absorb();
        for _ in 0..STEPS {
            play.step();
        }
        for _ in 0..2_000 {
            play.deliver_to_broker();
            play.deliver_to_client();
            play.act();
            if play.sock.is_none() {
                play.world.jump(500);
                play.world.link.tick(play.world.now);
            }
            play.absorb();
        }
        assert!(play.heard.values().all(|heard| heard.ends == 1), "seed {seed}: a call has no end");
        assert_eq!((play.came.len(), play.ended), (RUNS, RUNS as u32), "seed {seed}");
        restarted += u32::from(play.restarted);
        missed += play.heard.values().filter(|heard| heard.next <= CHUNKS).count();
    }
    assert!(restarted > 20 && missed > 0, "nothing was at stake: {restarted}, {missed}");
}
