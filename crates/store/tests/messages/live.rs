//! Bans and other numbers while the mesh runs, and what they mean for messages.

use serde_json::json;
use tenure_mesh::MeshConfig;
use tenure_mesh::access::admin::Act;
use tenure_mesh::input::Banned;
use tenure_proto::error::ErrorCode;
use tenure_proto::message::{Fallback, Recipient, SendParams};

use super::words::*;
use super::world::{Engine, World};

#[test]
fn what_a_banned_session_had_in_hand_is_for_others_and_its_inbox_waits() {
    for engine in [Engine::memory(), Engine::sqlite()] {
        let mut w = World::new(engine, MeshConfig::default());
        let (a, b) = (w.join(1), w.join(2));
        w.subscribe(b, subscription("jobs", Some("crew")));
        w.post(a, letter(topic("jobs"), "job"));
        let c = w.join(3);
        w.subscribe(c, subscription("jobs", Some("crew")));
        assert_eq!((bodies(&w.pushes(b)), w.pushes(c).len()), (vec!["job".to_owned()], 0));
        let subject = Banned::Session(session(2));
        w.operate(Act::Ban(subject, String::new()));
        assert_eq!(w.drain(c), ["job"]);
        assert_eq!(w.post(a, letter(to(2), "later")).recipient, Some(Recipient::Gone));
        let fails = SendParams { fallback: Fallback::Fail, ..letter(to(2), "fails") };
        assert_eq!(code(&w.send(a, fails)), ErrorCode::LeaseExpired);
        w.operate(Act::Unban(subject));
        let b = w.join(2);
        assert_eq!(w.drain(b), ["later"]);
    }
}

#[test]
fn a_shorter_grace_holds_for_who_is_away_already() {
    let config = MeshConfig { reconnect_grace_ms: 60_000, ..MeshConfig::default() };
    let mut w = World::new(Engine::memory(), config.clone());
    let (a, b, c) = (w.join(1), w.join(2), w.join(3));
    w.subscribe(b, subscription("jobs", Some("crew")));
    w.post(a, letter(topic("jobs"), "job"));
    w.drop_socket(b);
    w.subscribe(c, subscription("jobs", Some("crew")));
    let values = [("reconnectGraceMs".to_owned(), json!(1_000))].into();
    w.operate(Act::Set { version: 0, values });
    w.pass(999);
    assert!(w.pushes(c).is_empty());
    w.pass(1);
    assert_eq!(bodies(&w.pushes(c)), ["job"]);
}
