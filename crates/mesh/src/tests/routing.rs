//! Streams to services: given, waited for, counted and cut; and what a relay ticket says.

use core::net::{IpAddr, Ipv4Addr};

use tenure_proto::error::ErrorCode;
use tenure_proto::limits::{STREAMS_WAITING, STREAMS_WAITING_PER_SERVICE, TOKEN_BYTES};
use tenure_proto::service::{RelayOpenParams, RelayRole, ServiceKind, ServiceOffer};

use crate::conn::admit::{Admission, Voucher};
use crate::input::{Banned, Call};
use crate::services::route::{By, Opening, RouteId, Want};
use crate::tests::services::{offer, offers, renew};
use crate::tests::world::{World, knock, session};
use crate::*;

/// Somebody who is no session, and not banned.
const ANYBODY: By = By::Address(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)));

fn route(world: &mut World, n: u64, name: &str, want: Want) {
    world.input(Input::Route { route: RouteId(n), name: name.parse().unwrap(), want, by: ANYBODY });
}

/// What became of streams since the last look: whom to, or why not.
fn routed(world: &mut World) -> Vec<(u64, Result<u8, ErrorCode>)> {
    let routed = std::mem::take(&mut world.routed).into_iter();
    let outcome = |(RouteId(n), outcome): (RouteId, Result<crate::services::route::Target, _>)| {
        (n, outcome.map(|target| target.session.0[0]).map_err(|error: tenure_proto::WireError| error.code))
    };
    routed.map(outcome).collect()
}

fn open(
    world: &mut World,
    conn: ConnId,
    role: RelayRole,
    name: Option<&str>,
) -> Option<Result<Opening, ErrorCode>> {
    let name = name.map(|name| name.parse().unwrap());
    match world.ask(conn, Call::RelayOpen(RelayOpenParams { role, name }))? {
        Ok(Answer::RelayOpen(opening)) => Some(Ok(*opening)),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Some(Err(error.code)),
    }
}

#[test]
fn who_is_here_is_given_at_once_and_nobody_else_is() {
    let mut world = World::new();
    let conn = world.join(2);
    let web = ServiceOffer { kind: ServiceKind::Http, ..offer("web") };
    assert_eq!(renew(&mut world, conn, vec![offer("db"), web]), Some(vec![Ok(()); 2]));
    route(&mut world, 1, "db", Want::Tcp);
    route(&mut world, 2, "web", Want::Http);
    route(&mut world, 3, "db", Want::Http);
    route(&mut world, 4, "no", Want::Tcp);
    let no = Err(ErrorCode::NotFound);
    assert_eq!(routed(&mut world), [(1, Ok(2)), (2, Ok(2)), (3, no), (4, no)]);
    route(&mut world, 1, "db", Want::Tcp);
    assert_eq!(routed(&mut world), [(1, Err(ErrorCode::Conflict))]);
    for n in 1..=4 {
        world.input(Input::RouteGone { route: RouteId(n) });
    }
    assert_eq!(world.mesh.streams(), 0);
}

#[test]
fn who_is_away_is_waited_for_ten_seconds() {
    let mut world = World::new();
    let conn = world.join(2);
    offers(&mut world, conn, "db");
    world.close(conn, false);
    route(&mut world, 1, "db", Want::Tcp);
    world.advance(9_999);
    route(&mut world, 2, "db", Want::Tcp);
    assert_eq!(routed(&mut world), []);
    world.advance(1);
    assert_eq!(routed(&mut world), [(1, Err(ErrorCode::Unavailable))]);
    route(&mut world, 3, "db", Want::Tcp);
    world.input(Input::RouteGone { route: RouteId(3) });
    world.enter(world.resume_all(conn));
    assert_eq!(routed(&mut world), [(2, Ok(2))], "who gave up is not answered");
    assert_eq!(world.mesh.streams(), 1);
}

#[test]
fn who_waits_hears_when_the_name_is_gone() {
    let mut world = World::new();
    let (one, two) = (world.join(1), world.join(2));
    offers(&mut world, one, "da");
    offers(&mut world, two, "db");
    world.close(two, false);
    world.advance(89_000);
    offers(&mut world, one, "da");
    route(&mut world, 1, "db", Want::Tcp);
    route(&mut world, 2, "da", Want::Tcp);
    world.advance(2_000);
    assert_eq!(routed(&mut world), [(2, Ok(1)), (1, Err(ErrorCode::NotFound))]);
    // An open one counts until it is over, whoever has the name by then.
    world.bye(one);
    assert_eq!(world.mesh.streams(), 1);
    let two = world.join(2);
    offers(&mut world, two, "da");
    world.input(Input::RouteGone { route: RouteId(2) });
    assert_eq!(world.mesh.streams(), 0);
}

#[test]
fn a_banned_session_is_given_to_nobody_though_the_disk_does_not_know_yet() {
    let mut world = World::new();
    let conn = world.join(2);
    offers(&mut world, conn, "db");
    world.disk(crate::tests::world::Disk::Holds);
    world.ban(Banned::Session(session(2)));
    route(&mut world, 1, "db", Want::Tcp);
    assert_eq!(routed(&mut world), [(1, Err(ErrorCode::NotFound))]);
}

#[test]
fn streams_of_a_service_are_bounded_and_a_setting_says_how() {
    let mut world = World::with(MeshConfig { max_streams_per_service: 2, ..MeshConfig::default() });
    let conn = world.join(2);
    offers(&mut world, conn, "db");
    for n in 1..=3 {
        route(&mut world, n, "db", Want::Tcp);
    }
    assert_eq!(routed(&mut world), [(1, Ok(2)), (2, Ok(2)), (3, Err(ErrorCode::Busy))]);
    world.input(Input::RouteGone { route: RouteId(1) });
    route(&mut world, 4, "db", Want::Tcp);
    assert_eq!(routed(&mut world), [(4, Ok(2))]);
}

#[test]
fn those_who_wait_are_bounded() {
    let mut world = World::new();
    let conn = world.join(2);
    let names: Vec<String> =
        (0..=STREAMS_WAITING / STREAMS_WAITING_PER_SERVICE).map(|n| format!("db{n}")).collect();
    renew(&mut world, conn, names.iter().map(|name| offer(name)).collect());
    world.close(conn, false);
    let mut n = 0;
    for name in &names[1..] {
        for _ in 0..STREAMS_WAITING_PER_SERVICE {
            route(&mut world, n, name, Want::Tcp);
            n += 1;
        }
        if n < STREAMS_WAITING as u64 {
            route(&mut world, 100_000 + n, name, Want::Tcp);
            assert_eq!(routed(&mut world), [(100_000 + n, Err(ErrorCode::Busy))], "enough wait for this one");
        }
    }
    route(&mut world, n, &names[0], Want::Tcp);
    assert_eq!(routed(&mut world), [(n, Err(ErrorCode::Busy))], "enough wait for any");
    world.advance(10_000);
    assert_eq!(routed(&mut world).len(), STREAMS_WAITING);
    assert_eq!(world.mesh.streams(), 0);
}

#[test]
fn a_service_that_speaks_otherwise_is_cut() {
    let mut world = World::new();
    let conn = world.join(2);
    offers(&mut world, conn, "db");
    route(&mut world, 1, "db", Want::Tcp);
    let http = ServiceOffer { kind: ServiceKind::Http, ..offer("db") };
    assert_eq!(renew(&mut world, conn, vec![http]), Some(vec![Ok(())]));
    assert_eq!(world.cuts, [(session(2), Some("db".parse().unwrap()), "changed")]);
}

#[test]
fn a_ticket_says_who_is_who_and_no_two_have_one_number() {
    let mut world = World::new();
    let (one, two) = (world.join(1), world.join(2));
    offers(&mut world, two, "db");
    let first = open(&mut world, one, RelayRole::Connect, Some("db")).unwrap().unwrap();
    assert_eq!((first.session, first.peer, first.run), (session(1), Some(session(2)), 1));
    let publish = open(&mut world, two, RelayRole::Publish, None).unwrap().unwrap();
    assert_eq!((publish.session, publish.peer, publish.name.clone()), (session(2), None, None));
    assert_ne!(first.id, publish.id);
    assert!(open(&mut world, two, RelayRole::Publish, Some("db")).unwrap().is_ok());
    for (conn, role, name, code) in [
        (one, RelayRole::Publish, Some("db"), ErrorCode::NotFound),
        (one, RelayRole::Connect, Some("no"), ErrorCode::NotFound),
        (one, RelayRole::Connect, None, ErrorCode::BadRequest),
    ] {
        assert_eq!(open(&mut world, conn, role, name), Some(Err(code)));
    }
    assert_eq!(world.mesh.streams(), 0, "a ticket is no stream");
    const { assert!(TOKEN_BYTES > 1_000) };
}

#[test]
fn a_ticket_to_somebody_who_is_away_waits_and_caps_hold() {
    let mut world = World::new();
    let (one, two) = (world.join(1), world.join(2));
    offers(&mut world, two, "db");
    world.close(two, false);
    assert_eq!(open(&mut world, one, RelayRole::Connect, Some("db")), None, "it waits");
    world.advance(3_000);
    world.enter(world.resume_all(two));
    let answered = world.socket(one).frames.iter().any(|frame| {
        matches!(frame, crate::tests::socket::Frame::Answer(_, Ok(Answer::RelayOpen(opening))) if opening.peer == Some(session(2)))
    });
    assert!(answered);
    let caps = |cap: &str| Voucher::Attested(Some(vec![cap.parse().unwrap()]));
    let reader = world.enter(Admission { voucher: caps("read"), ..knock(3) });
    for (role, name) in [(RelayRole::Connect, Some("db")), (RelayRole::Publish, None)] {
        assert_eq!(open(&mut world, reader, role, name), Some(Err(ErrorCode::Forbidden)));
    }
}

#[test]
fn a_ticket_is_worth_nothing_without_a_lease_that_may() {
    let ask = |world: &mut World| {
        let (route, name, want) = (RouteId(world.routed.len() as u64 + 1), "db".parse().unwrap(), Want::Tcp);
        world.input(Input::Route { route, name, want, by: By::Session(session(3)) });
        world.routed.last().unwrap().1.as_ref().err().map(|error| error.code)
    };
    let stage = || {
        let mut world = World::new();
        let conn = world.join(2);
        offers(&mut world, conn, "db");
        let asking = world.join(3);
        assert!(open(&mut world, asking, RelayRole::Connect, Some("db")).unwrap().is_ok());
        assert_eq!(ask(&mut world), None);
        (world, asking)
    };
    let (mut world, asking) = stage();
    world.bye(asking);
    assert_eq!(ask(&mut world), Some(ErrorCode::LeaseExpired));
    let (mut world, _) = stage();
    world.ban(Banned::Session(session(3)));
    assert!(matches!(ask(&mut world), Some(ErrorCode::Banned | ErrorCode::LeaseExpired)));
    assert_eq!(ask(&mut World::new()), Some(ErrorCode::LeaseExpired), "it never was here");
}
