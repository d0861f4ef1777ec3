//! Requests of a session that is here, and what peers see of them.

use tenure_kit::rate::Rate;
use tenure_proto::error::ErrorCode;
use tenure_proto::hello::HealthStatus;
use tenure_proto::limits::{PRESENCE_PAGE, PROFILE_NAME_BYTES, TOPICS_MAX};
use tenure_proto::message::TagsParams;
use tenure_proto::method::{PresenceListParams, PresenceListResult, StoreHealth};
use tenure_proto::number::U53;
use tenure_proto::peer::{Profile, ProfilePatch, Status, Transport};
use tenure_proto::topic::TopicCreateParams;
use tenure_proto::{ConnId, MemberKey, SessionKey};

use crate::config::MeshConfig;
use crate::conn::admit::Admission;
use crate::effect::Answer;
use crate::input::Call;
use crate::store::record::TopicRecord;
use crate::tests::world::{WALL, World, knock, session};

fn list(
    world: &mut World,
    conn: ConnId,
    params: PresenceListParams,
) -> Result<PresenceListResult, ErrorCode> {
    match world.ask(conn, Call::PresenceList(params)).unwrap() {
        Ok(Answer::PresenceList(result)) => Ok(*result),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.code),
    }
}

fn set(world: &mut World, conn: ConnId, patch: ProfilePatch) -> Result<(), ErrorCode> {
    world.ask(conn, Call::ProfileSet(Box::new(patch))).unwrap().map(|_| ()).map_err(|error| error.code)
}

#[test]
fn ping_tells_the_time_and_proves_life() {
    let mut world = World::new();
    let conn = world.join(1);
    world.socket_mut(conn).lively = false;
    world.advance(70_000);
    let Some(Ok(Answer::Ping(pong))) = world.ask(conn, Call::Ping) else { panic!() };
    assert_eq!(pong.ts.get(), WALL + 70_000);
    world.advance(70_000);
    assert!(world.is_open(conn));
}

#[test]
fn the_list_is_read_page_by_page_in_the_order_of_keys() {
    let mut world = World::new();
    let conn = world.join(1);
    for n in 2..=7 {
        world.join(n);
    }
    let mut seen = Vec::new();
    let mut after = None;
    for expected in [3, 3, 1] {
        let params = PresenceListParams { after, limit: Some(U53::from(3)), debug: false };
        let page = list(&mut world, conn, params).unwrap();
        assert_eq!(page.peers.len(), expected);
        assert_eq!(page.state_version.presence.get(), 7);
        seen.extend(page.peers.iter().map(|peer| peer.get().session));
        after = page.next;
    }
    assert_eq!(after, None, "the last page says so");
    assert_eq!(seen, (1..=7).map(session).collect::<Vec<_>>());
}

#[test]
fn a_page_that_ends_exactly_at_the_end_has_no_next() {
    let mut world = World::new();
    let conn = world.join(1);
    world.join(2);
    let page = |limit| PresenceListParams { limit: Some(U53::from(limit)), ..Default::default() };
    assert_eq!(list(&mut world, conn, page(2)).unwrap().next, None);
    assert_eq!(list(&mut world, conn, page(1)).unwrap().next, Some(session(1)));
    let beyond = PresenceListParams { after: Some(session(9)), ..Default::default() };
    let result = list(&mut world, conn, beyond).unwrap();
    assert!(result.peers.is_empty() && result.next.is_none());
}

#[test]
fn a_page_and_a_snapshot_hold_at_most_500() {
    let mut world = World::new();
    world.batching = true;
    let conn = world.join(0);
    for n in 0..PRESENCE_PAGE as u16 {
        let mut key = [0xff; 32];
        key[..2].copy_from_slice(&n.to_be_bytes());
        let (session, member) = (SessionKey(key), MemberKey([0; 32]));
        world.enter(Admission { session, member, ..knock(9) });
    }
    for (limit, good) in [(0, false), (1, true), (500, true), (501, false)] {
        let params = PresenceListParams { limit: Some(U53::from(limit)), ..Default::default() };
        let expected = if good { None } else { Some(ErrorCode::BadRequest) };
        assert_eq!(list(&mut world, conn, params).err(), expected, "{limit}");
    }
    let page = list(&mut world, conn, PresenceListParams::default()).unwrap();
    assert_eq!(page.peers.len(), PRESENCE_PAGE);
    assert_eq!(page.next, Some(page.peers[PRESENCE_PAGE - 1].get().session));
    let last = world.join(0);
    let snapshot = world.answer(last).snapshot.as_ref().unwrap();
    assert!(snapshot.more && snapshot.presence.len() == PRESENCE_PAGE);
}

#[test]
fn sockets_and_ends_of_leases_are_shown_only_when_asked_for() {
    let mut world = World::new();
    let (conn, gone) = (world.join(1), world.join(2));
    world.advance(10_000);
    world.close(gone, true);
    world.advance(5_000);
    let plain = list(&mut world, conn, PresenceListParams::default()).unwrap();
    assert!(plain.peers.iter().all(|p| p.get().transport.is_none() && p.get().lease_until.is_none()));
    let params = PresenceListParams { debug: true, ..Default::default() };
    let debug = list(&mut world, conn, params).unwrap();
    let shown: Vec<_> = debug.peers.iter().map(|p| (p.get().transport, p.get().lease_until)).collect();
    let until = |ms| Some(U53::saturating(WALL + ms));
    assert_eq!(
        shown,
        [(Some(Transport::Online), until(15_000 + 90_000)), (Some(Transport::Grace), until(10_000 + 90_000))]
    );
}

#[test]
fn a_profile_change_that_shows_is_one_updated_for_everybody() {
    let mut world = World::new();
    let (watcher, conn) = (world.join(1), world.join(2));
    world.seen(watcher);
    let patch = ProfilePatch { status: Some(Status::Working), ..Default::default() };
    set(&mut world, conn, patch.clone()).unwrap();
    assert_eq!(world.seen(watcher), ["2 updated s2"]);
    assert_eq!(world.seen(conn), ["1 updated s2"], "its other windows show it as well");
    set(&mut world, conn, patch).unwrap();
    set(&mut world, conn, ProfilePatch::default()).unwrap();
    assert!(world.seen(watcher).is_empty(), "nothing changed");
    let page = list(&mut world, watcher, PresenceListParams::default()).unwrap();
    assert_eq!(page.peers[1].get().status, Status::Working);
}

#[test]
fn a_profile_out_of_bounds_changes_nothing() {
    let mut world = World::new();
    let (watcher, conn) = (world.join(1), world.join(2));
    world.seen(watcher);
    for name in [String::new(), "x".repeat(PROFILE_NAME_BYTES + 1)] {
        let patch = ProfilePatch { name: Some(name), status: Some(Status::Dnd), ..Default::default() };
        assert_eq!(set(&mut world, conn, patch), Err(ErrorCode::BadRequest));
    }
    assert!(world.seen(watcher).is_empty());
    assert!(world.is_open(conn));
    let page = list(&mut world, watcher, PresenceListParams::default()).unwrap();
    assert_eq!(page.peers[1].get().profile(), Profile::named("s2"));
}

#[test]
fn a_hello_with_another_profile_is_one_updated_and_with_another_idle_time_none() {
    let mut world = World::new();
    let (watcher, conn) = (world.join(1), world.join(2));
    world.close(conn, false);
    world.seen(watcher);
    let idle = Profile { last_input_seconds: Some(U53::from(40)), ..Profile::named("s2") };
    let conn = world.enter(Admission { profile: idle.clone(), ..world.resume(conn, 0) });
    assert!(world.seen(watcher).is_empty(), "time passes for everybody");
    let page = list(&mut world, watcher, PresenceListParams::default()).unwrap();
    assert_eq!(page.peers[1].get().last_input_seconds, Some(U53::from(40)), "but who asks is told");
    let working = Profile { status: Status::Working, summary: Some("busy".into()), ..idle };
    world.enter(Admission { profile: working, ..world.resume(conn, 0) });
    assert_eq!(world.seen(watcher), ["2 updated s2"]);
}

#[test]
fn who_comes_back_changed_without_a_token_is_in_its_own_snapshot_and_not_an_event() {
    let mut world = World::new();
    let (watcher, conn) = (world.join(1), world.join(2));
    world.close(conn, false);
    world.seen(watcher);
    let again = world.enter(Admission { profile: Profile::named("renamed"), ..knock(2) });
    let answer = world.answer(again);
    assert_eq!(answer.snapshot.as_ref().unwrap().presence[1].get().name, "renamed");
    assert_eq!(answer.state_version.presence.get(), world.mesh.presence_version());
    assert!(world.seen(again).is_empty());
    assert_eq!(world.seen(watcher), ["2 updated s2"]);
}

#[test]
fn health_tells_the_truth() {
    let mut world = World::new();
    let (conn, gone) = (world.join(1), world.join(2));
    world.close(gone, false);
    world.advance(12_000);
    let store = StoreHealth { kind: "memory".into(), lag_ms: U53::from(3) };
    let health = |world: &mut World| match world.ask(conn, Call::Health(store.clone())) {
        Some(Ok(Answer::Health(health))) => *health,
        other => panic!("{other:?}"),
    };
    let told = health(&mut world);
    assert_eq!((told.status, told.draining), (HealthStatus::Ok, false));
    assert_eq!((told.sessions.get(), told.uptime_ms.get(), told.broker_id.as_str()), (2, 12_000, "b"));
    assert_eq!(told.store, store);
    world.socket_mut(conn).flushes = false;
    world.drain(None, 5_000);
    let told = health(&mut world);
    assert_eq!((told.status, told.draining), (HealthStatus::Draining, true));
}

#[test]
fn a_member_asks_at_its_rate_through_all_its_sessions_and_may_always_settle_and_go() {
    let rate = Rate { burst: 3, per_second: 2 };
    let mut world = World::with(MeshConfig { request_rate: rate, ..MeshConfig::default() });
    let of = |n, counted| Admission { member: MemberKey([9; 32]), counted, ..knock(n) };
    let (a, b) = (world.enter(of(1, true)), world.enter(of(2, true)));
    let (exempt, other) = (world.enter(of(3, false)), world.enter(Admission { counted: true, ..knock(4) }));
    let params = PresenceListParams { after: None, limit: None, debug: false };
    let asks = |world: &mut World, conn| list(world, conn, params.clone()).err();
    assert_eq!(
        [a, b, a, b, a].map(|conn| asks(&mut world, conn)).map(|e| e.is_none()),
        [true, true, true, false, false]
    );
    let Some(Err(error)) = world.ask(b, Call::PresenceList(params.clone())) else { panic!() };
    assert_eq!((error.code, error.retry_after_ms.map(U53::get)), (ErrorCode::RateLimited, Some(500)));
    for conn in [exempt, other] {
        assert_eq!(asks(&mut world, conn), None, "another account, or none");
    }
    let tags = TagsParams { tags: Vec::new() };
    for call in [Call::Ping, Call::Ack(tags.clone()), Call::Progress(tags)] {
        assert!(matches!(world.ask(a, call), None | Some(Ok(_))), "never held up");
    }
    world.advance(500);
    assert_eq!([a, b].map(|conn| asks(&mut world, conn)), [None, Some(ErrorCode::RateLimited)]);
    assert!(!matches!(world.bye(a), Some(Err(_))));
}

#[test]
fn a_mesh_has_as_many_topics_as_it_may() {
    let mut world = World::new();
    let conn = world.join(1);
    let create = |name: &str| {
        let name = name.parse().unwrap();
        Call::TopicsCreate(TopicCreateParams { name, partitions: 1, retention_ms: None })
    };
    for n in 0..TOPICS_MAX - 1 {
        let record = TopicRecord {
            name: format!("t{n}").parse().unwrap(),
            partitions: 1,
            retention_ms: None,
            created_at: WALL,
            owner: None,
            state: Default::default(),
        };
        world.mesh.messages.add_topic(record, 0);
    }
    assert!(!matches!(world.ask(conn, create("last")), Some(Err(_))));
    let Some(Err(error)) = world.ask(conn, create("more")) else { panic!("one too many") };
    assert_eq!(error.code, ErrorCode::Busy);
    assert!(!matches!(world.ask(conn, create("last")), Some(Err(_))), "those that are here are");
}
