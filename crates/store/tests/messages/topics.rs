//! Topics: partitions, places, retention, dead letters of crews.

use std::collections::BTreeMap;

use tenure_kit::{Millis, Now};
use tenure_mesh::MeshConfig;
use tenure_mesh::effect::Answer;
use tenure_mesh::input::{Boot, Call, StoredMesh};
use tenure_mesh::store::record::{GroupRecord, GroupState, LaneRecord, LogRecord, Reader, RestoredMessages};
use tenure_mesh::{Effect, Input, Mesh};
use tenure_proto::error::ErrorCode;
use tenure_proto::event::EventBody;
use tenure_proto::log::LogName;
use tenure_proto::message::{NackParams, SendParams, SendState};
use tenure_proto::number::U53;
use tenure_proto::subscribe::{From, SubscribeParams, SubscriptionEventKind};

use super::words::*;
use super::world::{Engine, World};

fn log(partition: u32) -> LogName {
    LogName::Topic("jobs".parse().unwrap(), partition)
}

#[test]
fn a_key_has_one_partition_and_keeps_its_order() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    w.create(a, "jobs", 4, None);
    w.subscribe(b, SubscribeParams { prefetch: 5, ..subscription("jobs", None) });
    let mut logs: BTreeMap<String, String> = BTreeMap::new();
    for n in 0..60 {
        let key = format!("k{}", n % 7);
        let sent =
            w.post(a, SendParams { key: Some(key.clone()), ..letter(topic("jobs"), &format!("m{n}")) });
        assert_eq!(logs.entry(key).or_insert(sent.log.clone()), &sent.log);
    }
    assert!(logs.values().collect::<std::collections::BTreeSet<_>>().len() > 1);
    let mut last: BTreeMap<String, u64> = BTreeMap::new();
    let mut count = 0;
    loop {
        let pushes = w.pushes(b);
        assert!(pushes.len() <= 5, "one prefetch for all partitions");
        if pushes.is_empty() {
            break;
        }
        count += pushes.len();
        for push in &pushes {
            let seen = last.insert(push.entry.log.to_string(), push.entry.seq);
            assert!(seen.is_none_or(|seen| seen < push.entry.seq));
        }
        w.ack_all(b, &pushes);
    }
    assert_eq!(count, 60);
    let none =
        w.call(b, Call::Subscribe(SubscribeParams { partition: Some(4), ..subscription("jobs", None) }));
    assert_eq!(code(&none), ErrorCode::BadRequest);
}

#[test]
fn without_a_key_partitions_take_turns() {
    let mut w = world();
    let a = w.join(1);
    w.create(a, "jobs", 3, None);
    let logs: Vec<String> = (0..6).map(|n| w.post(a, letter(topic("jobs"), &format!("m{n}"))).log).collect();
    assert_eq!(logs[..3], logs[3..]);
    let conflict = Call::TopicsCreate(tenure_proto::topic::TopicCreateParams {
        name: "jobs".parse().unwrap(),
        partitions: 2,
        retention_ms: None,
    });
    assert_eq!(code(&w.call(a, conflict)), ErrorCode::Conflict);
}

#[test]
fn a_place_begins_where_it_is_told_to() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    for n in 1..=3 {
        w.post(a, letter(topic("jobs"), &format!("m{n}")));
    }
    let place = |from, group| SubscribeParams { from, ..subscription("jobs", group) };
    let result = w.subscribe(b, place(From::Earliest, Some("all")));
    assert_eq!(result.start_seq["0"].get(), 1);
    assert_eq!(w.drain(b), ["m1", "m2", "m3"]);
    assert_eq!(w.subscribe(b, place(From::Seq(U53::saturating(3)), Some("some"))).start_seq["0"].get(), 3);
    assert_eq!(w.drain(b), ["m3"]);
    assert_eq!(w.subscribe(b, place(From::New, None)).start_seq["0"].get(), 4);
    assert!(w.pushes(b).is_empty());
    let beyond = w.call(b, Call::Subscribe(place(From::Seq(U53::saturating(5)), Some("none"))));
    assert_eq!(code(&beyond), ErrorCode::BadRequest);
    // Again is the same, with other settings it is a mistake.
    let again = w.subscribe(b, place(From::Earliest, Some("all")));
    assert_eq!(again.sub_id, result.sub_id);
    let other = SubscribeParams { prefetch: 7, ..place(From::New, Some("all")) };
    assert_eq!(code(&w.call(b, Call::Subscribe(other))), ErrorCode::BadRequest);
}

#[test]
fn what_was_pruned_is_a_gap_for_whoever_asks_for_it() {
    let config = MeshConfig { retention_ms: 60_000, ..MeshConfig::default() };
    let mut w = World::new(Engine::memory(), config);
    let (a, b) = (w.join(1), w.join(2));
    for n in 1..=3 {
        w.post(a, letter(topic("jobs"), &format!("old{n}")));
    }
    w.pass(200_000);
    w.post(a, letter(topic("jobs"), "new"));
    let from = From::Seq(U53::saturating(2));
    w.subscribe(b, SubscribeParams { from, ..subscription("jobs", None) });
    assert_eq!(w.drain(b), ["new"]);
    w.pass(1_000);
    let events = std::mem::take(&mut w.sockets.get_mut(&b).unwrap().events);
    let gaps: Vec<_> = events
        .into_iter()
        .filter_map(|event| match event {
            EventBody::Subscription(event) if event.kind == SubscriptionEventKind::Gap => {
                Some((event.from.unwrap().get(), event.to.unwrap().get()))
            }
            _ => None,
        })
        .collect();
    assert_eq!(gaps, [(2, 3)]);
    let history = w.status(a, &["old1"]);
    assert_eq!(history[0].0, SendState::Accepted);
    assert_eq!(w.post(a, letter(topic("jobs"), "old1")).history_available, Some(false));
}

#[test]
fn retention_waits_for_a_crew() {
    let config = MeshConfig { retention_ms: 60_000, ..MeshConfig::default() };
    let mut w = World::new(Engine::memory(), config);
    let (a, b) = (w.join(1), w.join(2));
    w.subscribe(b, SubscribeParams { prefetch: 1, ..subscription("jobs", Some("crew")) });
    w.drop_socket(b);
    for n in 1..=3 {
        w.post(a, letter(topic("jobs"), &format!("m{n}")));
    }
    w.pass(300_000);
    w.restart();
    let b = w.join(2);
    w.subscribe(b, subscription("jobs", Some("crew")));
    assert_eq!(w.drain(b), ["m1", "m2", "m3"]);
}

#[test]
fn what_is_given_up_when_old_things_go_is_a_dead_letter() {
    let config = MeshConfig { retention_ms: 60_000, ..MeshConfig::default() };
    let mut w = World::new(Engine::memory(), config);
    let (a, b) = (w.join(1), w.join(2));
    let ids: Vec<String> = (0..32).map(|n| format!("m{n}")).collect();
    for id in &ids {
        w.post(a, letter(to(2), id));
    }
    let pushes = w.pushes(b);
    w.pass(200_000);
    for push in &pushes {
        // The broker looks every ten seconds, and every sixth time at what may be deleted.
        w.pass(9_999);
        let params = NackParams { dead: true, ..nacked(vec![tag(push)]) };
        let (input, _) = w.request(b, Call::Nack(params));
        w.tell_at_deadline(input);
    }
    assert_eq!(w.dead(b, &inbox(2)).len(), ids.len());
}

#[test]
fn the_dead_letters_of_a_crew_go_back_to_it() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    for group in ["one", "two"] {
        w.subscribe(b, subscription("jobs", Some(group)));
    }
    w.post(a, letter(topic("jobs"), "m1"));
    let pushes = w.pushes(b);
    assert_eq!(pushes.len(), 2);
    let mut params = nacked(vec![tag(&pushes[0])]);
    (params.dead, params.reason) = (true, Some("no good".into()));
    w.settle(b, Call::Nack(params));
    w.ack_all(b, &pushes[1..]);
    let letters = w.dead(b, &log(0));
    assert_eq!((letters.len(), letters[0].reason.as_str(), letters[0].attempts), (1, "no good", 1));
    let result = w.dead_retry(b, &log(0), &[1, 2]);
    assert_eq!((result.retried[0].get(), result.missing[0].get()), (1, 2));
    let again = w.pushes(b);
    assert_eq!((again.len(), again[0].group, again[0].attempt), (1, pushes[0].group, 2));
    w.ack_all(b, &again);
    assert!(w.dead(b, &log(0)).is_empty());
}

#[test]
fn an_inbox_has_its_dead_letters_back_or_drops_them() {
    for engine in [Engine::memory(), Engine::sqlite()] {
        let mut w = World::new(engine, MeshConfig::default());
        let (a, b) = (w.join(1), w.join(2));
        for id in ["m1", "m2", "m3"] {
            let ttl_ms = if id == "m3" { ms(20_000) } else { None };
            w.post(a, SendParams { ttl_ms, ..letter(to(2), id) });
        }
        let pushes = w.pushes(b);
        let mut params = nacked(vec![tag(&pushes[0]), tag(&pushes[1])]);
        params.dead = true;
        w.settle(b, Call::Nack(params));
        w.nack(b, &pushes[2]);
        w.pushes(b);
        w.bye(b);
        w.pass(40_000);
        let b = w.join(2);
        assert_eq!(w.dead(b, &inbox(2)).len(), 3);
        assert_eq!(w.dead_drop(b, &inbox(2), &[2]), 1);
        assert_eq!(w.status(a, &["m2"])[0].0, SendState::Dead);
        // One that was handed out, and one whose time was over: a retry is a second chance for both.
        assert_eq!(w.dead_retry(b, &inbox(2), &[1, 2, 3]).retried.len(), 2);
        w.pass(15_000);
        let mut got = w.drain(b);
        got.sort();
        assert_eq!(got, ["m1", "m3"]);
        assert_eq!(w.status(a, &["m1", "m3"]), [(SendState::Delivered, None), (SendState::Delivered, None)]);
        assert!(w.dead(b, &inbox(2)).is_empty());
    }
}

/// A mesh that starts with a million messages for a session asks for none of them until somebody reads, and then
/// for one page.
#[test]
fn a_million_that_wait_are_not_read_at_a_start() {
    const MANY: u64 = 1_000_000;
    let lane = LaneRecord { end: MANY, count: MANY, bytes: MANY * 100, pruned: 0 };
    let lanes = [LaneRecord::default(), lane, LaneRecord::default()];
    let id = tenure_mesh::store::record::GroupId(1);
    let record = GroupRecord {
        id,
        log: inbox(2),
        lane: tenure_mesh::messages::envelope::Lane(1),
        reader: Reader::Inbox,
        owner: None,
    };
    let messages = RestoredMessages {
        logs: vec![LogRecord { log: inbox(2), lanes }],
        groups: vec![GroupState {
            record,
            cursor: 0,
            used_at: 0,
            passed: (0, 0),
            open: Vec::new(),
            settlers: Vec::new(),
        }],
        ..RestoredMessages::default()
    };
    let now = Now { at: Millis(0), wall: 1_700_000_000_000 };
    let stored = StoredMesh { messages, ..StoredMesh::default() };
    let mut mesh = Mesh::new(MeshConfig::default(), Boot { run: 2, random: 2 }, "b".into(), now, stored);
    mesh.flush();
    assert!(mesh.poll_effect().is_none());
    let hello = Input::Hello {
        conn: tenure_proto::ConnId(1),
        request: "1".parse().unwrap(),
        admission: Box::new(knock(2)),
    };
    mesh.handle(now, hello);
    let through = tenure_mesh::effect::WriteId(1);
    mesh.handle(now, Input::Committed { through, outcomes: Vec::new() });
    mesh.flush();
    let effects: Vec<_> = std::iter::from_fn(|| mesh.poll_effect()).collect();
    let reads: Vec<_> = effects.iter().filter(|effect| matches!(effect, Effect::Read { .. })).collect();
    assert_eq!(reads.len(), 1, "{reads:?}");
}

#[test]
fn a_crew_that_begins_in_the_middle_is_as_deep_as_what_it_will_read() {
    for engine in [Engine::memory(), Engine::sqlite()] {
        let mut w = World::new(engine, MeshConfig::default());
        let (a, b) = (w.join(1), w.join(2));
        for n in 1..=10 {
            w.post(a, letter(topic("jobs"), &format!("j{n}")));
        }
        let from = From::Seq(U53::from(8));
        w.subscribe(b, SubscribeParams { from, prefetch: 1, ..subscription("jobs", Some("crew")) });
        let depth = |w: &mut World| match w.call(a, Call::TopicsList(Default::default())) {
            Ok(Answer::TopicsList(result)) => result.topics[0].groups[0].depth.get(),
            other => panic!("{other:?}"),
        };
        assert_eq!(depth(&mut w), 3);
        assert_eq!(w.drain(b), ["j8", "j9", "j10"]);
        assert_eq!(depth(&mut w), 0);
    }
}

#[test]
fn what_some_reader_of_a_topic_gives_up_is_not_its_fate() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    w.subscribe(b, subscription("jobs", Some("crew")));
    w.post(a, letter(topic("jobs"), "m1"));
    let pushes = w.pushes(b);
    let mut params = nacked(vec![tag(&pushes[0])]);
    params.dead = true;
    w.settle(b, tenure_mesh::input::Call::Nack(params));
    assert_eq!(w.status(a, &["m1"]), [(tenure_proto::message::SendState::Accepted, None)]);
}
