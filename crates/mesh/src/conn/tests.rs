//! A connection with a shell that only remembers, in virtual time.

use ed25519_dalek::SigningKey;
use serde_json::{Value, json};
use tenure_kit::host::Doors;
use tenure_proto::canonical::{Proof, member_key, session_key};
use tenure_proto::limits::{
    HELLO_TIMEOUT_MS, MESSAGE_MS, NONCE_BYTES, SLOW_CONSUMER_BYTES, SLOW_CONSUMER_MS,
};
use tenure_proto::method::{PingResult, StoreHealth};
use tenure_proto::number::U53;
use tenure_proto::text::b64url;

use super::*;
use crate::config::MeshConfig;
use crate::conn::frames::Supply;
use crate::effect::{Answer, Batch};
use crate::input::Call;

const HOST: &str = "127.0.0.1:7400";
const NONCE: [u8; NONCE_BYTES] = [9; NONCE_BYTES];

#[derive(Default)]
struct Shell {
    left: Vec<Value>,
    pings: u32,
    waiting: usize,
    crowded: bool,
}

impl Supply for Shell {
    fn entropy(&mut self) -> Option<u128> {
        Some(1)
    }

    fn store(&self) -> StoreHealth {
        StoreHealth { kind: "memory".to_owned(), lag_ms: U53::saturating(0) }
    }
}

impl Outlet for Shell {
    fn frame(&mut self, binary: bool, _: usize, write: impl FnOnce(&mut Vec<u8>)) {
        assert!(!binary);
        let mut bytes = Vec::new();
        write(&mut bytes);
        self.waiting += bytes.len();
        self.left.push(serde_json::from_slice(&bytes).unwrap());
    }

    fn ping(&mut self) {
        self.pings += 1;
    }

    fn waiting(&self) -> usize {
        self.waiting
    }

    fn is_crowded(&self) -> bool {
        self.crowded
    }
}

struct World {
    house: House,
    now: Now,
    shell: Shell,
    conn: Conn,
}

impl World {
    fn new() -> World {
        World::with(MeshConfig::default())
    }

    fn with(config: MeshConfig) -> World {
        let key = SigningKey::from_bytes(&[7; 32]);
        let house = House {
            secure: false,
            relay: None,
            broker_id: House::id_of(&key),
            version: "1".to_owned(),
            cluster: "c".parse().unwrap(),
            key,
            doors: Doors::loopback(7400, &[], &[]),
            rooms: [("default".parse().unwrap(), std::sync::Arc::new(config.clone()))].into(),
            config: config.into(),
        };
        let now = Now { at: Millis(1_000), wall: 1_800_000_000_000 };
        let mut shell = Shell::default();
        let conn = Conn::new(ConnId(5), Codec::Json, HOST.to_owned(), NONCE, now, &house, &mut shell);
        World { house, now, shell, conn }
    }

    /// A world in which the hello is answered and all has left.
    fn greeted() -> World {
        let mut world = World::new();
        world.enter();
        world.answer("1");
        assert!(world.flushed().is_none());
        world.shell.left.clear();
        world
    }

    fn received(&mut self, what: Received<'_>) -> Option<ConnEffect> {
        self.conn.received(self.now, what, &self.house, &mut self.shell)
    }

    fn data(&mut self, frame: &Value) -> Option<ConnEffect> {
        let bytes = serde_json::to_vec(frame).unwrap();
        self.received(Received::Data { binary: false, bytes: &bytes })
    }

    fn obey(&mut self, outs: Vec<Out>) -> Option<ConnEffect> {
        self.conn.obey(self.now, outs, &self.house, &mut self.shell)
    }

    fn flushed(&mut self) -> Option<ConnEffect> {
        self.shell.waiting = 0;
        self.conn.flushed(self.now, &self.house, &mut self.shell)
    }

    fn answer(&mut self, request: &str) -> Option<ConnEffect> {
        let result = PingResult { ts: U53::saturating(1) };
        self.obey(vec![Out::Respond(request.parse().unwrap(), Box::new(Ok(Answer::Ping(result))))])
    }

    fn may_read(&self) -> bool {
        self.conn.may_read(&self.house, self.shell.waiting)
    }

    fn jump(&mut self, ms: u64) {
        self.now = Now { at: self.now.at.plus(ms), wall: self.now.wall + ms };
    }

    /// Lets time pass, waking the connection whenever it asks to be; gives the first thing that it asks.
    fn pass(&mut self, ms: u64) -> Option<ConnEffect> {
        let until = self.now.at.plus(ms);
        while let Some(due) = self.conn.next_deadline().filter(|due| *due <= until) {
            self.jump(due.since(self.now.at));
            let effect = self.conn.tick(self.now, &mut self.shell);
            if effect.is_some() {
                return effect;
            }
        }
        self.jump(until.since(self.now.at));
        None
    }

    fn hello(&self, mesh: &str) -> Value {
        let key = SigningKey::from_bytes(&[3; 32]);
        let (member, session) = (member_key(&key), session_key(&key));
        let nonce = b64url(&NONCE);
        let proof = Proof {
            mesh: &mesh.parse().unwrap(),
            member: &member,
            session: &session,
            nonce: &nonce,
            broker: &self.house.broker_id,
            host: HOST,
        };
        json!({"type": "req", "id": "1", "method": "hello", "params": {
            "protocol": {"min": 1, "max": 1},
            "client": {"name": "test", "version": "1", "instanceId": "i"},
            "mesh": mesh, "member": member, "session": session, "proof": proof.sign(&key),
            "profile": {"name": "me"},
        }})
    }

    fn enter(&mut self) {
        let hello = self.hello("default");
        let effect = self.data(&hello);
        assert!(matches!(effect, Some(ConnEffect::Enter(Input::Hello { .. }))), "{effect:?}");
    }

    /// What has left last.
    fn last(&self) -> &Value {
        self.shell.left.last().unwrap()
    }
}

fn request(id: u32, method: &str) -> Value {
    json!({"type": "req", "id": id.to_string(), "method": method})
}

/// The code of a close.
#[track_caller]
fn closes(effect: Option<ConnEffect>) -> u16 {
    match effect {
        Some(ConnEffect::Close { code, .. }) => code,
        other => panic!("{other:?}"),
    }
}

/// What the mesh hears at the end.
#[track_caller]
fn ends(effect: Option<ConnEffect>) -> Option<(Millis, bool)> {
    match effect {
        Some(ConnEffect::End(Some(Input::Closed { at, by_client, .. }))) => Some((at, by_client)),
        Some(ConnEffect::End(None)) => None,
        other => panic!("{other:?}"),
    }
}

/// The call that the mesh is told of.
#[track_caller]
fn call(effect: Option<ConnEffect>) -> Call {
    match effect {
        Some(ConnEffect::Tell(Input::Request { call, .. })) => call,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_challenge_comes_first_and_a_hello_in_time_enters() {
    let mut world = World::new();
    assert_eq!(world.last()["event"], "challenge");
    assert_eq!(world.last()["data"]["nonce"], b64url(&NONCE));
    assert!(world.pass(HELLO_TIMEOUT_MS - 1).is_none());
    world.enter();
    assert_eq!(world.conn.next_deadline(), None, "from here on time is the mesh's");
}

#[test]
fn whoever_says_no_hello_in_time_is_closed_4008_whatever_else_it_sends() {
    let mut world = World::new();
    let opened = world.now.at;
    assert_eq!(closes(world.pass(60_000)), 4008);
    assert_eq!(world.now.at, opened.plus(HELLO_TIMEOUT_MS));
    assert_eq!(world.last()["data"]["reason"], "hello_timeout");

    let mut world = World::new();
    for _ in 0..9 {
        world.jump(1_000);
        assert!(world.received(Received::Ping).is_none());
    }
    world.jump(1_000);
    assert_eq!(closes(world.received(Received::Ping)), 4008);
}

#[test]
fn the_time_in_which_the_broker_was_frozen_does_not_count_against_a_stranger() {
    let mut world = World::new();
    world.jump(60_000);
    assert!(world.conn.tick(world.now, &mut world.shell).is_none());
    assert_eq!(closes(world.pass(60_000)), 4008);
}

#[test]
fn a_hello_that_has_arrived_counts_however_late_it_is_read() {
    let mut world = World::new();
    world.jump(60_000);
    world.enter();
}

#[test]
fn what_is_no_hello_is_turned_away() {
    let mut world = World::new();
    assert_eq!(closes(world.data(&request(4, "ping"))), 1008);
    let [.., answer, closing] = &world.shell.left[..] else { panic!() };
    assert_eq!((&answer["id"], &answer["ok"]), (&json!("4"), &json!(false)));
    assert_eq!(closing["data"]["reason"], "bad_first_frame");

    let mut world = World::new();
    assert_eq!(closes(world.received(Received::Data { binary: true, bytes: b"x" })), 1008);
    let mut world = World::new();
    assert_eq!(closes(world.received(Received::BadWebSocket)), 1008);
    let mut world = World::new();
    assert_eq!(closes(world.received(Received::TooLarge)), 1009);
    let mut world = World::new();
    let large = vec![b' '; FRAME_BEFORE_HELLO_BYTES + 1];
    assert_eq!(closes(world.received(Received::Data { binary: false, bytes: &large })), 1009);
    let mut world = World::new();
    let hello = world.hello("elsewhere");
    assert_eq!(closes(world.data(&hello)), 1008);
    assert_eq!(world.last()["data"]["reason"], "forbidden");
    assert_eq!(ends(world.received(Received::Gone)), None, "no mesh ever heard of it");
}

#[test]
fn a_frame_behind_a_hello_is_held_and_nothing_more_is_read_until_that_is_answered() {
    let mut world = World::new();
    world.enter();
    assert!(world.may_read());
    assert!(world.data(&request(2, "ping")).is_none());
    assert!(!world.may_read());
    assert!(matches!(world.received(Received::Pong), Some(ConnEffect::Tell(Input::Alive { .. }))));
    assert!(matches!(call(world.answer("1")), Call::Ping));
    assert!(world.may_read());
    assert_eq!(world.last()["id"], "1");
}

#[test]
fn a_frame_behind_a_hello_is_read_although_the_answer_had_to_wait_for_room() {
    let mut world = World::with(MeshConfig { max_buffered_messages: 1, ..MeshConfig::default() });
    // The client has not read the challenge.
    let hello = world.hello("default");
    assert!(matches!(world.data(&hello), Some(ConnEffect::Enter(_))));
    assert!(world.data(&request(2, "ping")).is_none());
    assert!(world.answer("1").is_none());
    assert!(matches!(call(world.flushed()), Call::Ping));
}

#[test]
fn a_hello_that_the_mesh_refuses_takes_what_is_held_with_it() {
    let mut world = World::new();
    world.enter();
    assert!(world.data(&request(2, "ping")).is_none());
    let error = tenure_proto::error::WireError::bad_request("no");
    let refused = Out::Respond("1".parse().unwrap(), Box::new(Err(error)));
    let close = Out::Close(Box::new(Closing::new(Reason::Busy)));
    assert_eq!(closes(world.obey(vec![refused, close])), 1013);
    assert!(world.flushed().is_none());
    assert_eq!(ends(world.received(Received::Close)), Some((world.now.at, false)));
}

#[test]
fn a_broker_that_stops_tells_strangers_and_whom_no_mesh_takes() {
    let mut world = World::new();
    let effect = world.conn.stop(world.now, &world.house, &mut world.shell);
    assert_eq!(closes(effect), 1013);
    assert_eq!(ends(world.received(Received::Gone)), None);

    let mut world = World::new();
    world.enter();
    let effect = world.conn.stop(world.now, &world.house, &mut world.shell);
    assert_eq!(closes(effect), 1013);
    let [.., answer, closing] = &world.shell.left[..] else { panic!() };
    assert_eq!(answer["error"]["code"], "draining");
    assert_eq!(closing["data"]["reason"], "draining");

    let mut world = World::greeted();
    assert!(world.conn.stop(world.now, &world.house, &mut world.shell).is_none());
}

#[test]
fn what_is_refused_without_the_mesh_is_answered_at_once_and_proves_life() {
    let mut world = World::greeted();
    let effect = world.data(&request(2, "dance"));
    assert!(matches!(effect, Some(ConnEffect::Tell(Input::Alive { .. }))), "{effect:?}");
    assert_eq!(world.last()["error"]["code"], "unknown_method");
    let effect = world.received(Received::Data { binary: false, bytes: b"{" });
    assert!(matches!(effect, Some(ConnEffect::Tell(Input::Garbled { .. }))), "{effect:?}");
}

#[test]
fn too_many_requests_without_an_answer_stop_the_reading() {
    let mut world = World::greeted();
    for n in 0..tenure_proto::limits::MAX_INFLIGHT {
        assert!(world.may_read());
        call(world.data(&request(n, "ping")));
    }
    assert!(!world.may_read());
    world.answer("7");
    assert!(world.may_read());
}

#[test]
fn a_socket_without_room_is_given_no_more_and_not_read() {
    let mut world = World::greeted();
    world.shell.waiting = world.house.config.max_buffered_bytes;
    assert!(!world.may_read());
    assert!(world.obey(vec![Out::Ping]).is_none());
    assert_eq!(world.shell.pings, 0);
    assert!(world.flushed().is_none());
    assert_eq!(world.shell.pings, 1);
    assert!(world.may_read());
}

#[test]
fn where_all_hold_too_much_each_is_given_one_at_a_time() {
    let mut world = World::greeted();
    for n in 2..5 {
        call(world.data(&request(n, "ping")));
    }
    world.shell.crowded = true;
    for request in ["2", "3", "4"] {
        assert!(world.answer(request).is_none());
    }
    assert_eq!(world.shell.left.len(), 1);
    assert!(world.flushed().is_none());
    assert_eq!(world.shell.left.len(), 2, "one more when that has left");
    world.shell.crowded = false;
    assert!(world.flushed().is_none());
    assert_eq!(world.shell.left.len(), 3);
}

#[test]
fn the_mesh_hears_when_its_batch_has_left_and_of_nothing_else_that_has() {
    let mut world = World::greeted();
    assert!(world.obey(vec![Out::Events(Box::<Batch>::default())]).is_none());
    assert!(matches!(world.flushed(), Some(ConnEffect::Tell(Input::Flushed { conn: ConnId(5) }))));
    assert!(world.obey(vec![Out::Ping]).is_none());
    assert!(world.flushed().is_none());
}

#[test]
fn the_mesh_hears_that_a_socket_reads_however_slowly() {
    let mut world = World::greeted();
    let taken = |world: &mut World, bytes| world.conn.taken(world.now, bytes, &world.house);
    world.jump(SLOW_CONSUMER_MS);
    assert!(taken(&mut world, SLOW_CONSUMER_BYTES - 1).is_none());
    assert!(matches!(taken(&mut world, 1), Some(ConnEffect::Tell(Input::Taken { conn: ConnId(5) }))));
    // A batch that is asked for and has no room yet is no less on its way.
    world.shell.waiting = world.house.config.max_buffered_bytes;
    assert!(world.obey(vec![Out::Events(Box::<Batch>::default())]).is_none());
    world.jump(SLOW_CONSUMER_MS - 1);
    assert!(taken(&mut world, SLOW_CONSUMER_BYTES).is_some());
    let close = Out::Close(Box::new(Closing::new(Reason::SlowConsumer)));
    assert_eq!(closes(world.obey(vec![close])), 1008);
    world.jump(SLOW_CONSUMER_MS);
    assert!(taken(&mut world, SLOW_CONSUMER_BYTES).is_none(), "nobody asks any more");
}

#[test]
fn a_message_that_is_not_whole_in_time_ends_its_socket() {
    let mut world = World::greeted();
    assert_eq!(world.conn.next_deadline(), None);
    world.conn.began(world.now, &world.house);
    let began = world.now.at;
    assert!(world.pass(MESSAGE_MS - 1_000).is_none());
    // Another part of it, and proofs of life, give it no more time.
    world.conn.began(world.now, &world.house);
    assert!(world.received(Received::Ping).is_some());
    assert_eq!(world.conn.begun(), Some(began));
    assert_eq!(closes(world.pass(2_000)), 4009);
    assert_eq!(world.now.at, began.plus(MESSAGE_MS));
    assert_eq!(world.last()["data"]["reason"], "stale");
    let until = world.now.at;
    assert_eq!(ends(world.pass(60_000)), Some((until, true)), "it lived to send a part");
}

#[test]
fn a_message_that_is_whole_has_no_time_and_a_frozen_broker_takes_none_of_it() {
    let mut world = World::greeted();
    world.conn.began(world.now, &world.house);
    assert!(world.pass(MESSAGE_MS - 1).is_none());
    world.conn.unbegun();
    assert!(world.pass(MESSAGE_MS * 2).is_none());
    world.conn.began(world.now, &world.house);
    assert!(world.pass(MESSAGE_MS - 2_000).is_none());
    // We were stopped, and hear of it all at once.
    world.jump(MESSAGE_MS * 10);
    assert!(world.conn.tick(world.now, &mut world.shell).is_none());
    assert_eq!(closes(world.pass(MESSAGE_MS)), 4009);
}

#[test]
fn a_socket_that_is_let_go_hears_why_and_keeps_its_lease() {
    let mut world = World::greeted();
    assert_eq!(closes(world.conn.let_go(world.now, &mut world.shell)), 1008);
    assert_eq!(world.last()["data"]["reason"], "slow_consumer");
    assert!(world.conn.let_go(world.now, &mut world.shell).is_none(), "once");
    assert_eq!(ends(world.received(Received::Gone)), Some((world.now.at, false)));

    let mut world = World::new();
    assert_eq!(closes(world.conn.let_go(world.now, &mut world.shell)), 1013);
    assert_eq!(world.last()["data"]["reason"], "busy");
    assert_eq!(ends(world.received(Received::Gone)), None, "no mesh has heard of it");
}

#[test]
fn what_requests_hold_is_owed_until_they_are_answered() {
    let mut world = World::greeted();
    assert_eq!(world.conn.owed(), 0);
    call(world.data(&json!({"type": "req", "id": "2", "method": "history", "params": {"log": "topic/t/0"}})));
    assert_eq!(world.conn.owed(), world.house.config.max_payload);
    world.answer("2");
    assert_eq!(world.conn.owed(), 0);
}

#[test]
fn a_close_of_ours_is_told_then_flushed_then_waited_out() {
    let mut world = World::greeted();
    let close = Out::Close(Box::new(Closing::new(Reason::Stale)));
    assert_eq!(closes(world.obey(vec![Out::Ping, close])), 4009);
    assert_eq!((world.shell.pings, &world.last()["event"]), (1, &json!("closing")));
    assert!(!world.may_read(), "until it has left");
    assert!(world.obey(vec![Out::Ping]).is_none());
    assert!(world.flushed().is_none());
    assert!(world.may_read());
    assert!(world.data(&request(2, "ping")).is_none(), "what still comes is not heard");
    let until = world.now.at.plus(CLOSE_FLUSH_MS);
    assert_eq!(ends(world.pass(60_000)), Some((until, false)));
    assert_eq!(world.now.at, until);
    assert!(world.received(Received::Gone).is_none(), "once");
}

#[test]
fn a_socket_that_is_let_go_in_the_middle_of_a_large_frame_ends_at_once() {
    let mut world = World::greeted();
    let busy = Out::Events(Box::<Batch>::default());
    world.shell.waiting = world.house.config.max_buffered_bytes;
    assert!(world.obey(vec![busy]).is_none());
    let now = world.now.at;
    assert_eq!(ends(world.obey(vec![Out::LetGo])), Some((now, false)));
    // What had no room is not held any longer, nor is anything that still comes.
    assert_eq!((world.conn.unsent(), world.conn.backlog.len()), (0, 0));
    assert!(world.obey(vec![Out::LetGo]).is_none());
    // A small rest leaves, and then the reason.
    let mut world = World::greeted();
    world.shell.waiting = 64 * 1024;
    assert_eq!(closes(world.obey(vec![Out::LetGo])), 1008);
}

#[test]
fn a_client_that_takes_nothing_is_let_go_in_time() {
    let mut world = World::greeted();
    let heard = world.now.at;
    assert!(matches!(world.received(Received::Close), Some(ConnEffect::Finish)));
    assert_eq!(ends(world.pass(60_000)), Some((heard, true)), "it lived when it closed");
    assert_eq!(world.now.at, heard.plus(CLOSE_FLUSH_MS));
}

#[test]
fn what_each_end_means() {
    let mut world = World::greeted();
    assert_eq!(ends(world.received(Received::Gone)), Some((world.now.at, false)));

    let mut world = World::greeted();
    assert!(matches!(world.received(Received::Close), Some(ConnEffect::Finish)));
    assert_eq!(ends(world.flushed()), Some((world.now.at, true)));

    for (what, code) in [(Received::TooLarge, 1009), (Received::BadWebSocket, 1002)] {
        let mut world = World::greeted();
        assert_eq!(closes(world.received(what)), code);
        assert_eq!(ends(world.received(Received::Gone)), Some((world.now.at, true)), "it lived to send that");
    }
}
