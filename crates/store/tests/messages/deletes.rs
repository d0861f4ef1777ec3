//! Topics and groups that are deleted, and topics that nobody uses.

use tenure_mesh::MeshConfig;
use tenure_mesh::access::admin::{Act, Operated};
use tenure_mesh::conn::admit::Admission;
use tenure_mesh::effect::{Answer, Note};
use tenure_mesh::input::Call;
use tenure_proto::error::ErrorCode;
use tenure_proto::event::EventBody;
use tenure_proto::hello::LogPosition;
use tenure_proto::ids::{ConnId, MessageId};
use tenure_proto::number::U53;
use tenure_proto::reconcile::{ClientSubscription, ReconcileAction, ReconcileParams, ReconcilePolicy};
use tenure_proto::subscribe::{From, SubscribeParams, SubscriptionEventKind};
use tenure_proto::topic::{GroupDeleteParams, TopicDeleteParams};

use super::words::*;
use super::world::{Disk, Engine, Outcome, World};

const DAY: u64 = 24 * 3_600_000;

impl World {
    fn delete(&mut self, conn: ConnId, name: &str) -> Outcome {
        self.call(conn, Call::TopicsDelete(TopicDeleteParams { name: name.parse().unwrap() }))
    }

    fn delete_group(&mut self, conn: ConnId, topic: &str, group: &str) -> Outcome {
        let (topic, group) = (topic.parse().unwrap(), group.parse().unwrap());
        self.call(conn, Call::GroupsDelete(GroupDeleteParams { topic, group }))
    }

    fn topic_names(&mut self, conn: ConnId) -> Vec<String> {
        match self.call(conn, Call::TopicsList(Default::default())) {
            Ok(Answer::TopicsList(list)) => list.topics.iter().map(|topic| topic.name.to_string()).collect(),
            other => panic!("{other:?}"),
        }
    }

    /// Why subscriptions of a socket have ended since the last look.
    fn ends(&mut self, conn: ConnId) -> Vec<String> {
        let events = std::mem::take(&mut self.sockets.get_mut(&conn).unwrap().events);
        let closed = |event| match event {
            EventBody::Subscription(event) if event.kind == SubscriptionEventKind::Closed => event.reason,
            _ => None,
        };
        events.into_iter().filter_map(closed).collect()
    }
}

#[test]
fn an_operator_deletes_a_topic_with_all_that_it_holds_and_its_numbers_go_on() {
    for engine in [Engine::memory(), Engine::sqlite()] {
        let mut w = World::new(engine, MeshConfig::default());
        let (a, b, c) = (w.join(1), w.join(12), w.join(13));
        w.create(a, "jobs", 2, None);
        w.subscribe(b, SubscribeParams { prefetch: 2, ..subscription("jobs", Some("crew")) });
        w.subscribe(c, subscription("jobs", None));
        for n in 0..1_400 {
            w.post(a, letter(topic("jobs"), &format!("m{n}")));
        }
        let in_hand = w.pushes(b);
        w.operate(Act::DeleteTopic("jobs".parse().unwrap()));
        assert!(matches!(w.operated.pop(), Some(Ok(Operated::Answer(_)))), "it is answered when it is gone");
        assert_eq!((w.ends(b), w.ends(c)), (vec!["deleted".to_owned()], vec!["deleted".to_owned()]));
        assert!(w.topic_names(a).is_empty());
        let late = w.settle(b, Call::Ack(tenure_proto::message::TagsParams { tags: vec![tag(&in_hand[0])] }));
        assert_eq!(late.stale.len(), 1, "{late:?}");
        assert_eq!(w.store().check(), Ok(vec![]));
        w.restart();
        let (a, b) = (w.join(1), w.join(12));
        assert!(w.topic_names(a).is_empty());
        let sub = SubscribeParams { from: From::Seq(U53::from(701)), ..subscription("jobs", Some("crew")) };
        assert_eq!(w.subscribe(b, sub).start_seq["0"].get(), 701, "it begins where the numbers go on");
        let sent = w.post(a, letter(topic("jobs"), "again"));
        assert_eq!((sent.log.as_str(), sent.seq.get()), ("topic/jobs/0", 701));
        assert_eq!(w.drain(b), ["again"]);
    }
}

#[test]
fn a_topic_is_deleted_by_its_owner_while_it_is_empty_and_nobody_else_reads_it() {
    let mut w = world();
    let (a, other) = (w.join(1), w.join(12));
    w.create(a, "mine", 1, None);
    assert_eq!(code(&w.delete(other, "mine")), ErrorCode::Forbidden);
    assert_eq!(code(&w.delete(a, "nothing")), ErrorCode::NotFound);
    w.subscribe(other, subscription("mine", None));
    assert_eq!(code(&w.delete(a, "mine")), ErrorCode::Conflict, "another member reads it");
    w.drop_socket(other);
    w.pass(200_000);
    w.delete(a, "mine").unwrap();
    assert!(w.topic_names(a).is_empty());
    // Its own readers are no reason to keep it; what it holds is.
    w.create(a, "mine", 1, None);
    w.subscribe(a, subscription("mine", Some("crew")));
    w.post(a, letter(topic("mine"), "m1"));
    assert_eq!(code(&w.delete(a, "mine")), ErrorCode::Conflict);
    assert_eq!(w.drain(a), ["m1"], "it goes on as if nobody had asked");
    w.post(a, letter(topic("mine"), "m2"));
    assert_eq!(w.drain(a), ["m2"]);
}

#[test]
fn a_member_makes_so_many_topics_and_a_deleted_one_counts_no_more() {
    for engine in [Engine::memory(), Engine::sqlite()] {
        let mut w = World::new(engine, MeshConfig { max_topics_per_member: 3, ..MeshConfig::default() });
        let (a, other) = (w.join(1), w.join(12));
        w.create(a, "t1", 1, None);
        w.post(a, letter(topic("t2"), "m1"));
        w.subscribe(a, subscription("t3", None));
        let fourth = w.call(a, Call::Subscribe(subscription("t4", None)));
        assert_eq!(code(&fourth), ErrorCode::Busy);
        assert_eq!(code(&w.send(a, letter(topic("t4"), "m2"))), ErrorCode::Busy);
        w.post(other, letter(topic("t4"), "m3"));
        w.restart();
        let a = w.join(1);
        assert_eq!(code(&w.send(a, letter(topic("t5"), "m4"))), ErrorCode::Busy);
        w.delete(a, "t1").unwrap();
        w.post(a, letter(topic("t5"), "m5"));
    }
}

#[test]
fn a_delete_that_a_crash_interrupts_goes_on_and_who_comes_back_is_told() {
    for engine in [Engine::memory(), Engine::sqlite()] {
        let mut w = World::new(engine, MeshConfig::default());
        let (a, b) = (w.join(1), w.join(12));
        let sub = w.subscribe(b, subscription("jobs", Some("crew"))).sub_id;
        for n in 0..20 {
            w.post(a, letter(topic("jobs"), &format!("m{n}")));
        }
        w.set_disk(Disk::Holds);
        w.operate(Act::DeleteTopic("jobs".parse().unwrap()));
        // What is sent meanwhile is refused: it must not go with the topic. The mark is on disk, and nobody heard of it.
        w.ask_send(a, letter(topic("jobs"), "late"));
        w.crash(usize::MAX);
        w.pass(1_000);
        let a = w.join(1);
        assert!(w.topic_names(a).is_empty());
        assert_eq!(w.store().check(), Ok(vec![]));
        for policy in [ReconcilePolicy::Conservative, ReconcilePolicy::RestoreClient] {
            let listed = ClientSubscription {
                sub_id: sub.clone(),
                topic: "jobs".parse().unwrap(),
                group: Some("crew".parse().unwrap()),
                partition: None,
                ack_mode: Default::default(),
                prefetch: 32,
                positions: Default::default(),
            };
            let params = ReconcileParams { policy, subscriptions: vec![listed], inflight: Vec::new() };
            let b = w.join(12);
            let result = match w.call(b, Call::Reconcile(Box::new(params))) {
                Ok(Answer::Reconcile(result)) => result,
                other => panic!("{other:?}"),
            };
            let verdict = &result.results[0];
            assert_eq!(
                (verdict.action, verdict.reason.as_str()),
                (ReconcileAction::CloseClientSide, "deleted")
            );
        }
        assert!(w.topic_names(a).is_empty(), "nobody has made it again");
        let listed = LogPosition {
            log: "topic/jobs/0".to_owned(),
            seq: U53::from(20),
            id: MessageId::from_parts(w.wall, 7),
        };
        let c = w.dial(Admission { positions: vec![listed], ..knock(12) });
        assert!(w.hello(c).rewound.is_empty(), "it is gone, not another history");
        assert_eq!(w.post(a, letter(topic("jobs"), "late")).seq.get(), 21, "its id was not used up");
    }
}

#[test]
fn a_store_that_cannot_write_deletes_nothing() {
    let mut w = world();
    let a = w.join(1);
    w.create(a, "jobs", 1, None);
    w.set_disk(Disk::Fails);
    assert_eq!(code(&w.delete(a, "jobs")), ErrorCode::Unavailable);
    w.set_disk(Disk::Commits);
    assert_eq!(w.topic_names(a), ["jobs"]);
    w.post(a, letter(topic("jobs"), "m1"));
}

#[test]
fn a_topic_that_nobody_uses_for_a_day_goes_and_comes_back_with_its_numbers() {
    let config = MeshConfig { retention_ms: 60_000, ..MeshConfig::default() };
    let mut w = World::new(Engine::memory(), config);
    let (a, b) = (w.join(1), w.join(12));
    w.create(a, "unused", 1, None);
    w.create(a, "planned", 3, None);
    w.post(a, letter(topic("used-once"), "m1"));
    w.post(a, letter(topic("read"), "m2"));
    w.subscribe(b, subscription("read", Some("crew")));
    w.drop_socket(b);
    w.sleep(DAY / 2);
    w.sleep(DAY / 2 + 60_000);
    w.pass(120_000);
    let a = w.join(1);
    assert_eq!(w.topic_names(a), ["planned", "read", "used-once"]);
    assert!(w.notes.iter().any(|note| matches!(note, Note::TopicDeleted { unused: true, .. })));
    // One that was used is counted from the start, because only that is known then.
    for _ in 0..30 {
        w.pass(3_600_000);
    }
    let a = w.join(1);
    assert_eq!(w.topic_names(a), ["planned", "read"]);
    assert_eq!(w.post(a, letter(topic("used-once"), "m3")).seq.get(), 2);
    assert_eq!(w.store().check(), Ok(vec![]));
}

#[test]
fn a_group_is_deleted_by_the_member_that_made_it() {
    for engine in [Engine::memory(), Engine::sqlite()] {
        let mut w = World::new(engine, MeshConfig { max_groups_per_topic: 1, ..MeshConfig::default() });
        let (a, other) = (w.join(1), w.join(12));
        w.subscribe(a, subscription("jobs", Some("crew")));
        w.subscribe(other, subscription("jobs", Some("crew")));
        w.post(a, letter(topic("jobs"), "m1"));
        // Whichever of the two has it settles it: what is in hand goes with its group.
        assert_eq!([w.drain(a), w.drain(other)].concat(), ["m1"]);
        assert_eq!(code(&w.delete_group(other, "jobs", "crew")), ErrorCode::Forbidden);
        assert_eq!(code(&w.delete_group(a, "jobs", "none")), ErrorCode::NotFound);
        w.delete_group(a, "jobs", "crew").unwrap();
        assert_eq!((w.ends(a), w.ends(other)), (vec!["deleted".to_owned()], vec!["deleted".to_owned()]));
        let fresh = SubscribeParams { from: From::Earliest, ..subscription("jobs", Some("others")) };
        w.subscribe(other, fresh);
        assert_eq!(w.drain(other), ["m1"]);
        w.operate(Act::DeleteGroup("jobs".parse().unwrap(), "others".parse().unwrap()));
        assert!(matches!(w.operated.pop(), Some(Ok(_))));
        w.restart();
        assert_eq!(w.store().check(), Ok(vec![]));
    }
}

#[test]
fn a_member_that_slept_through_the_end_of_its_group_is_told_and_does_not_make_it_again() {
    for policy in [ReconcilePolicy::Conservative, ReconcilePolicy::RestoreClient] {
        let mut w = World::new(Engine::memory(), MeshConfig::default());
        let (a, b) = (w.join(1), w.join(12));
        for conn in [a, b] {
            w.subscribe(conn, subscription("jobs", Some("crew")));
        }
        w.post(a, letter(topic("jobs"), "m1"));
        assert_eq!([w.drain(a), w.drain(b)].concat(), ["m1"]);
        w.drop_socket(b);
        w.pass(200_000);
        let a = w.join(1);
        w.operate(Act::DeleteGroup("jobs".parse().unwrap(), "crew".parse().unwrap()));
        assert!(matches!(w.operated.pop(), Some(Ok(_))));
        let back = |w: &mut World| {
            let listed = ClientSubscription {
                sub_id: "s1".parse().unwrap(),
                topic: "jobs".parse().unwrap(),
                group: Some("crew".parse().unwrap()),
                partition: None,
                ack_mode: Default::default(),
                prefetch: 32,
                positions: [("0".to_owned(), U53::saturating(0))].into(),
            };
            let params = ReconcileParams { policy, subscriptions: vec![listed], inflight: Vec::new() };
            let (conn, result) = w.reconciling(knock(12), params);
            let verdict = result.results[0].clone();
            (conn, verdict.action, verdict.reason)
        };
        let (conn, action, reason) = back(&mut w);
        assert_eq!((action, reason.as_str()), (ReconcileAction::CloseClientSide, "deleted"), "{policy:?}");
        assert_eq!(w.drain(conn), Vec::<String>::new());
        // Made again by somebody, it is a group like any other.
        w.subscribe(a, subscription("jobs", Some("crew")));
        w.drop_socket(conn);
        let (_, action, _) = back(&mut w);
        assert_ne!(action, ReconcileAction::CloseClientSide, "{policy:?}");
    }
}
