//! Consumer groups that nobody reads: how many there may be, and that they cost posts and lists nothing.

use tenure_mesh::MeshConfig;
use tenure_mesh::effect::Answer;
use tenure_mesh::input::Call;
use tenure_proto::error::ErrorCode;
use tenure_proto::ids::ConnId;
use tenure_proto::limits::{GROUPS_PER_ANSWER, GROUPS_PER_TOPIC, PAGE};
use tenure_proto::number::U53;
use tenure_proto::subscribe::{SubscribeParams, UnsubscribeParams};
use tenure_proto::topic::{GroupsListParams, GroupsListResult, TopicsListParams, TopicsListResult};

use super::words::*;
use super::world::{Engine, Outcome, World};

impl World {
    /// Makes a group of a topic and leaves it without a reader.
    fn abandon(&mut self, conn: ConnId, topic: &str, group: &str) -> Outcome {
        let subscribed = self.call(conn, Call::Subscribe(subscription(topic, Some(group))))?;
        let Answer::Subscribe(result) = &subscribed else { panic!("{subscribed:?}") };
        self.call(conn, Call::Unsubscribe(UnsubscribeParams { sub_id: result.sub_id.clone() }))
    }

    fn topics(&mut self, conn: ConnId, limit: u64) -> TopicsListResult {
        let params = TopicsListParams { after: None, limit: ms(limit) };
        match self.call(conn, Call::TopicsList(params)) {
            Ok(Answer::TopicsList(result)) => result,
            other => panic!("{other:?}"),
        }
    }

    fn groups(
        &mut self,
        conn: ConnId,
        topic: &str,
        after: Option<&str>,
        limit: Option<u64>,
    ) -> GroupsListResult {
        let params = GroupsListParams {
            topic: topic.parse().unwrap(),
            after: after.map(|name| name.parse().unwrap()),
            limit: limit.map(U53::saturating),
        };
        match self.call(conn, Call::GroupsList(params)) {
            Ok(Answer::GroupsList(result)) => result,
            other => panic!("{other:?}"),
        }
    }

    /// What this costs in looks at groups.
    fn visits(&mut self, act: impl FnOnce(&mut World)) -> u64 {
        let before = self.mesh.group_visits();
        act(self);
        self.mesh.group_visits() - before
    }
}

#[test]
fn two_thousand_groups_that_nobody_reads_cost_a_post_and_a_list_nothing() {
    let config = MeshConfig { max_groups_per_topic: 2_001, ..MeshConfig::default() };
    let mut w = World::new(Engine::memory(), config);
    let (attacker, other) = (w.join(1), w.join(11));
    for n in 0..2_000 {
        w.abandon(attacker, "crowded", &format!("g{n:05}")).unwrap();
    }
    w.subscribe(other, subscription("crowded", Some("readers")));
    let post = w.visits(|w| drop(w.post(other, letter(topic("crowded"), "m1"))));
    assert!(post <= 4, "one group has a reader, and {post} were looked at");
    let list = w.visits(|w| {
        let found = w.topics(other, 1);
        let topic = &found.topics[0];
        assert_eq!((topic.groups.len(), topic.group_count), (PAGE, ms(2_001)));
        assert_eq!(topic.groups_next.as_ref(), Some(&topic.groups[PAGE - 1].name));
        assert_eq!(topic.groups[0].depth.get(), 1, "the depth is known all the same");
    });
    assert!(list <= PAGE as u64, "a page of one topic looked at {list} groups");
    // The other pages lead to all of them, once.
    let (mut names, mut after) = (Vec::new(), None::<String>);
    loop {
        let page = w.groups(other, "crowded", after.as_deref(), Some(200));
        names.extend(page.groups.iter().map(|group| group.name.to_string()));
        after = page.next.map(|name| name.to_string());
        if after.is_none() {
            break;
        }
    }
    assert_eq!(names.len(), 2_001);
    assert!(names.is_sorted() && names.last().is_some_and(|name| name == "readers"));
}

#[test]
fn a_reader_that_can_take_nothing_costs_a_post_nothing() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    for n in 0..8 {
        w.subscribe(b, SubscribeParams { prefetch: 1, ..subscription("jobs", Some(&format!("g{n}"))) });
    }
    w.post(a, letter(topic("jobs"), "m1"));
    w.post(a, letter(topic("jobs"), "m2"));
    let full = w.visits(|w| drop(w.post(a, letter(topic("jobs"), "m3"))));
    assert_eq!(full, 0, "each has one in hand and takes no more");
    // Each goes on by itself when it can, and is woken again when it has read all.
    let mut read = 0;
    loop {
        let pushes = w.pushes(b);
        if pushes.is_empty() {
            break;
        }
        read += pushes.len();
        w.ack_all(b, &pushes);
    }
    assert_eq!(read, 24);
    w.post(a, letter(topic("jobs"), "m4"));
    assert_eq!(w.pushes(b).len(), 8);
}

#[test]
fn a_topic_has_so_many_groups_and_a_member_may_make_so_many_also_after_a_start() {
    for engine in [Engine::memory(), Engine::sqlite()] {
        let config =
            MeshConfig { max_groups_per_topic: 5, max_groups_per_member: 8, ..MeshConfig::default() };
        let mut w = World::new(engine, config);
        let a = w.join(1);
        for n in 0..5 {
            w.abandon(a, "jobs", &format!("g{n}")).unwrap();
        }
        let refused = w.abandon(a, "jobs", "g5");
        assert_eq!(code(&refused), ErrorCode::Busy);
        w.abandon(a, "jobs", "g4").unwrap();
        for n in 0..3 {
            w.abandon(a, "more", &format!("g{n}")).unwrap();
        }
        assert_eq!(code(&w.abandon(a, "more", "g3")), ErrorCode::Busy, "the ninth of this member");
        // Another session of the member shares its bound; another member has its own.
        let (b, c) = (w.join(2), w.join(12));
        assert_eq!(code(&w.abandon(b, "even-more", "g")), ErrorCode::Busy);
        let named =
            |w: &mut World| w.topics(a, 256).topics.iter().map(|t| t.name.to_string()).collect::<Vec<_>>();
        assert_eq!(named(&mut w), ["jobs", "more"], "what is refused makes no topic");
        w.abandon(c, "more", "g3").unwrap();
        w.restart();
        let (a, c) = (w.join(1), w.join(12));
        assert_eq!(code(&w.abandon(a, "more", "g4")), ErrorCode::Busy);
        assert_eq!(code(&w.abandon(c, "jobs", "g5")), ErrorCode::Busy);
        w.abandon(c, "more", "g4").unwrap();
    }
}

#[test]
fn a_group_counts_for_its_member_in_each_partition_that_it_reads() {
    let config = MeshConfig { max_groups_per_member: 6, ..MeshConfig::default() };
    let mut w = World::new(Engine::memory(), config);
    let a = w.join(1);
    w.create(a, "wide", 4, None);
    w.abandon(a, "wide", "all").unwrap();
    assert_eq!(code(&w.abandon(a, "wide", "again")), ErrorCode::Busy);
    let one =
        |partition| SubscribeParams { partition: Some(partition), ..subscription("wide", Some("some")) };
    w.subscribe(a, one(1));
    w.subscribe(a, one(3));
    let third = w.call(a, Call::Subscribe(one(0)));
    assert_eq!(code(&third), ErrorCode::Busy);
    let groups = w.groups(a, "wide", None, None).groups;
    let names: Vec<_> = groups.iter().map(|group| (group.name.to_string(), group.members.get())).collect();
    assert_eq!(names, [("all".to_owned(), 0), ("some".to_owned(), 1)]);
}

#[test]
fn one_answer_tells_of_a_bounded_number_of_places() {
    let config = MeshConfig { max_groups_per_topic: GROUPS_PER_TOPIC, ..MeshConfig::default() };
    let mut w = World::new(Engine::memory(), config);
    let a = w.join(1);
    w.create(a, "a-wide", 256, None);
    for n in 0..5 {
        w.abandon(a, "a-wide", &format!("g{n}")).unwrap();
    }
    w.abandon(a, "narrow", "g").unwrap();
    let cost = w.visits(|w| {
        let found = w.topics(a, 256);
        assert_eq!(found.topics.len(), 1, "the answer is full");
        assert_eq!(found.topics[0].groups.len(), 4);
        assert_eq!(found.topics[0].groups_next, Some("g3".parse().unwrap()));
        assert_eq!(found.next, Some("a-wide".parse().unwrap()));
    });
    assert_eq!(cost, GROUPS_PER_ANSWER as u64);
    assert_eq!(w.groups(a, "a-wide", Some("g3"), None).groups.len(), 1);
    let none = GroupsListParams { topic: "nothing".parse().unwrap(), after: None, limit: None };
    assert_eq!(code(&w.call(a, Call::GroupsList(none))), ErrorCode::NotFound);
}

#[test]
fn a_group_without_readers_for_a_month_is_forgotten_and_counts_no_more() {
    const DAY: u64 = 24 * 3_600_000;
    let config = MeshConfig { max_groups_per_topic: 1, ..MeshConfig::default() };
    let mut w = World::new(Engine::memory(), config);
    let a = w.join(1);
    w.abandon(a, "jobs", "old").unwrap();
    assert_eq!(code(&w.abandon(a, "jobs", "new")), ErrorCode::Busy);
    // A jump of the clock is believed when it has gone steadily for an hour.
    w.sleep(31 * DAY);
    w.pass(2 * 3_600_000);
    let a = w.join(1);
    w.abandon(a, "jobs", "new").unwrap();
    assert_eq!(w.groups(a, "jobs", None, None).groups.len(), 1);
}
