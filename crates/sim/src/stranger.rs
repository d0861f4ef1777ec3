//! Those who hold what is not theirs: a thief with a session's token and no key, and liars with a session of their
//! own. They write their frames by hand.

use ed25519_dalek::SigningKey;
use serde_json::{Value, json};
use tenure_link::SockId;
use tenure_proto::canonical::{Proof, member_key, session_key};
use tenure_proto::codec::Codec;
use tenure_proto::token::ResumeToken;

use crate::broker::HOST;
use crate::guest::Visit;
use crate::net::{Frame, Way, WireId};
use crate::rng::Rng;
use crate::seen::{Seen, Slot};
use crate::world::{Event, World};

/// How long a stranger stays.
const STAY_MS: u64 = 8_000;

/// What a stranger is after.
#[derive(Clone, Debug)]
pub(crate) enum Aim {
    /// The session of `slot`, whose token it has.
    Session { slot: Slot, token: String },
    /// Trouble.
    Trouble,
    /// What a guest may do.
    Guest(Visit),
}

/// One of them.
#[derive(Debug)]
pub(crate) struct Stranger {
    pub(crate) aim: Aim,
    key: SigningKey,
    wire: WireId,
    rng: Rng,
    /// Others' tags and sessions, to be abused.
    tags: Vec<String>,
    victims: Vec<String>,
    asked: u64,
    /// Whether the thief was told yes.
    admitted: bool,
    told: bool,
}

/// Which stranger a connection belongs to, by the number in the place of its process.
pub(crate) fn index_of(process: usize) -> Option<usize> {
    (process > usize::MAX / 2).then(|| usize::MAX - process)
}

impl World {
    /// A thief uses a token.
    pub(crate) fn steal(&mut self, rng: &mut Rng) -> bool {
        let tokens: Vec<(Slot, String)> = self
            .seats
            .iter()
            .filter_map(|seat| seat.process.as_ref())
            .filter_map(|process| Some((process.role.slot, process.token.clone()?)))
            .collect();
        let Some((slot, token)) = rng.pick(&tokens) else { return false };
        let key = SigningKey::from_bytes(&rng.bytes());
        self.come(Aim::Session { slot, token }, key, rng)
    }

    /// A liar comes.
    pub(crate) fn lie(&mut self, rng: &mut Rng) -> bool {
        let key = SigningKey::from_bytes(&rng.bytes());
        self.come(Aim::Trouble, key, rng)
    }

    pub(crate) fn come(&mut self, aim: Aim, key: SigningKey, rng: &mut Rng) -> bool {
        if !self.broker.is_up() || self.broker_frozen.is_some() {
            return false;
        }
        let index = self.strangers.len();
        let (wire, conn) = self.net.open(usize::MAX - index, 0, SockId(0), self.broker.boot);
        let processes = || self.seats.iter().filter_map(|seat| seat.process.as_ref());
        let tags = processes().flat_map(|process| process.tags.iter().cloned()).collect();
        let victims = processes().map(|process| process.link_session()).collect();
        let stranger = Stranger {
            aim,
            key,
            wire,
            rng: rng.fork(7),
            tags,
            victims,
            asked: 0,
            admitted: false,
            told: false,
        };
        self.strangers.push(stranger);
        self.broker.accept(self.t, conn, Codec::Json);
        self.broker_turn();
        self.at(self.t + STAY_MS, Event::Stranger { index });
        true
    }

    /// The broker admits a stranger's hello.
    pub(crate) fn stranger_admitted(&mut self, index: usize) {
        if let Some(stranger) = self.strangers.get_mut(index) {
            stranger.admitted = true;
        }
    }

    /// A stranger has had enough.
    pub(crate) fn stranger_turn(&mut self, index: usize) {
        let Some(stranger) = self.strangers.get(index) else { return };
        let wire = stranger.wire;
        if self.guest_tries(index, wire) {
            return;
        }
        self.verdict(index);
        self.close_client(wire);
    }

    fn verdict(&mut self, index: usize) {
        let Some(stranger) = self.strangers.get_mut(index) else { return };
        if let (Aim::Session { slot, .. }, false) =
            (&stranger.aim, std::mem::replace(&mut stranger.told, true))
        {
            let (slot, admitted) = (*slot, stranger.admitted);
            self.see(&Seen::Impostor(slot, admitted));
        }
    }

    /// Something came for a stranger.
    pub(crate) fn stranger_hears(&mut self, index: usize, wire: WireId, frame: Frame) {
        let Frame::Data(bytes) = frame else {
            if matches!(frame, Frame::Close(_) | Frame::Eof) {
                self.verdict(index);
                self.close_client(wire);
            }
            return;
        };
        let Ok(value) = serde_json::from_slice::<Value>(&bytes) else { return };
        if value["event"] == "challenge" {
            if let Some(hello) = self.stranger_hello(index, &value["data"]) {
                self.send(wire, Way::Up, Frame::Data(hello.to_string().into_bytes()));
            }
        } else if value["type"] == "res" && self.is_guest(index) {
            self.guest_hears(index, &value);
        } else if value["type"] == "res" && value["id"] == "hello" {
            self.after_hello(index, wire, &value);
        } else if value["type"] == "res" {
            self.judge_answer(&value);
        }
    }

    fn stranger_hello(&mut self, index: usize, challenge: &Value) -> Option<Value> {
        let mesh = "default".parse().ok()?;
        let (nonce, broker) = (challenge["nonce"].as_str()?, challenge["broker"].as_str()?);
        let guest = self.guest_hello(index);
        let stranger = self.strangers.get_mut(index)?;
        let (session, member, name, brings) = match &stranger.aim {
            Aim::Session { slot, token } => {
                let role = self.scenario.cast.iter().find(|role| role.slot == *slot)?;
                let (session, member) = (self.names.session_key(*slot)?, self.names.member_key(role.member)?);
                (session, member, "stranger", resume(token))
            }
            Aim::Trouble => {
                let session = session_key(&stranger.key);
                // A token that looks right and is signed by nobody we know.
                let token = ResumeToken {
                    sub: session,
                    mid: "default".parse().ok()?,
                    bid: "0".parse().ok()?,
                    lid: "l1-1".parse().ok()?,
                    iat: tenure_proto::number::U53::saturating(0),
                };
                (session, member_key(&stranger.key), "stranger", resume(&token.issue(&stranger.key)))
            }
            Aim::Guest(_) => (session_key(&stranger.key), member_key(&stranger.key), "guest", guest?),
        };
        let proof = Proof { mesh: &mesh, member: &member, session: &session, nonce, broker, host: HOST }
            .sign(&stranger.key);
        let mut params = json!({
            "protocol": {"min": 1, "max": 1},
            "client": {"name": name, "version": "0", "instanceId": format!("x{index}")},
            "mesh": "default", "member": member.to_string(), "session": session.to_string(),
            "proof": proof,
            "profile": {"name": name},
        });
        if let (Some(params), Value::Object(brings)) = (params.as_object_mut(), brings) {
            params.extend(brings);
        }
        Some(json!({"type": "req", "id": "hello", "method": "hello", "params": params}))
    }

    fn after_hello(&mut self, index: usize, wire: WireId, answer: &Value) {
        let Some(stranger) = self.strangers.get_mut(index) else { return };
        if let Aim::Session { .. } = stranger.aim {
            stranger.admitted |= answer["ok"] == true;
            return self.verdict(index);
        }
        if answer["result"]["resume"]["outcome"] == "resumed" {
            self.see(&Seen::Attack("a forged token was taken for a good one".to_owned(), true));
        }
        for frame in self.lies(index) {
            self.send(wire, Way::Up, Frame::Data(frame));
        }
    }

    /// A few of the things that must not work.
    fn lies(&mut self, index: usize) -> Vec<Vec<u8>> {
        let Some(stranger) = self.strangers.get_mut(index) else { return Vec::new() };
        let mut frames = Vec::new();
        let mut ask = |stranger: &mut Stranger, kind: &str, method: &str, params: Value| {
            stranger.asked += 1;
            let id = format!("{kind}{}", stranger.asked);
            let frame = json!({"type": "req", "id": id, "method": method, "params": params});
            frames.push(frame.to_string().into_bytes());
        };
        let victim = stranger.rng.pick(&stranger.victims.clone()).unwrap_or_default();
        let tags: Vec<String> = stranger.tags.iter().rev().take(20).cloned().collect();
        match stranger.rng.below(6) {
            0 => {
                ask(stranger, "tags", "ack", json!({"tags": tags}));
                ask(stranger, "tags", "nack", json!({"tags": tags, "dead": true}));
                ask(stranger, "tags", "ack", json!({"tags": ["", "1.1.1.zz", "0.0.0.0"]}));
            }
            1 => {
                let log = format!("inbox/s/{victim}");
                ask(stranger, "peek", "history", json!({"log": log}));
                ask(stranger, "peek", "dead.list", json!({"log": log}));
                ask(stranger, "drop", "dead.drop", json!({"log": log, "seqs": [1, 2, 3]}));
            }
            2 => {
                let from = json!({"topic": "jobs", "prefetch": 4_000_000_000_u64, "from": "earliest"});
                ask(stranger, "any", "subscribe", from);
                ask(
                    stranger,
                    "any",
                    "subscribe",
                    json!({"topic": "news", "prefetch": 10_000, "from": "earliest"}),
                );
            }
            3 => {
                // Asks and asks, and reads nothing.
                for _ in 0..400 {
                    ask(stranger, "any", "presence.list", json!({}));
                }
                let (wire, until) = (stranger.wire, self.t + STAY_MS);
                if let Some(wire) = self.net.get(wire) {
                    wire.down.lazy_until = until;
                }
                return frames;
            }
            4 => {
                for n in 0..40 {
                    let params = json!({"topic": format!("t{n}"), "ackMode": "auto"});
                    ask(stranger, "any", "subscribe", params);
                }
                ask(stranger, "any", "fetch", json!({"subId": "inbox", "limit": -5}));
                ask(stranger, "any", "history", json!({"log": "topic/jobs/0", "from": u64::MAX}));
            }
            _ => {
                let garbage = stranger.rng.bytes();
                frames.push(garbage.to_vec());
                frames.push(b"{\"type\":\"req\",\"id\":\"1\",\"method\":\"se".to_vec());
                frames.push(b"[]".to_vec());
            }
        }
        frames
    }

    fn judge_answer(&mut self, answer: &Value) {
        let id = answer["id"].as_str().unwrap_or_default();
        let is_full = |value: &Value| value.as_array().is_some_and(|list| !list.is_empty());
        let result = &answer["result"];
        let attack = if id.starts_with("tags") {
            is_full(&result["settled"]).then_some("another's tag was settled")
        } else if id.starts_with("peek") {
            let seen = is_full(&result["messages"]) || is_full(&result["letters"]);
            seen.then_some("another's inbox was read")
        } else if id.starts_with("drop") {
            (result["dropped"].as_u64() > Some(0)).then_some("another's dead letters were dropped")
        } else {
            None
        };
        if let Some(attack) = attack {
            self.see(&Seen::Attack(attack.to_owned(), true));
        }
    }
}

/// What a hello brings that is to resume.
fn resume(token: &str) -> Value {
    json!({"resume": {"token": token, "epoch": "e1-1", "lastSeq": 5}})
}
