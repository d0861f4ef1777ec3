//! Services in a mesh: one holder a name, renewed, stale, gone; what watchers are told of it, and when.

use tenure_proto::error::ErrorCode;
use tenure_proto::number::U53;
use tenure_proto::service::{
    Service, ServiceKind, ServiceMetadata, ServiceOffer, ServiceRenewParams, ServiceState, ServiceVerdict,
    ServiceWithdrawParams, ServicesListParams,
};

use crate::conn::admit::{Admission, Voucher};
use crate::input::{Banned, Call};
use crate::tests::world::{Disk, World, knock, session};
use crate::*;

pub(crate) fn offer(name: &str) -> ServiceOffer {
    ServiceOffer {
        name: name.to_owned(),
        kind: ServiceKind::Tcp,
        ttl_ms: None,
        metadata: ServiceMetadata::default(),
        degraded: false,
    }
}

pub(crate) fn hidden(name: &str) -> ServiceOffer {
    ServiceOffer { metadata: ServiceMetadata { hide: true, ..Default::default() }, ..offer(name) }
}

fn verdict(verdict: ServiceVerdict) -> Result<(), ErrorCode> {
    assert_eq!(verdict.ok, verdict.error.is_none());
    verdict.error.map_or(Ok(()), |error| Err(error.code))
}

/// What a renewal came to, offer by offer, if it is answered.
pub(crate) fn renew(
    world: &mut World,
    conn: ConnId,
    services: Vec<ServiceOffer>,
) -> Option<Vec<Result<(), ErrorCode>>> {
    let answer = world.ask(conn, Call::ServiceRenew(ServiceRenewParams { services }))?;
    let Ok(Answer::ServiceRenew(result)) = answer else { panic!("{answer:?}") };
    Some(result.results.into_iter().map(verdict).collect())
}

#[track_caller]
pub(crate) fn offers(world: &mut World, conn: ConnId, name: &str) {
    assert_eq!(renew(world, conn, vec![offer(name)]), Some(vec![Ok(())]), "{name}");
}

fn withdraw(world: &mut World, conn: ConnId, name: &str) -> bool {
    let names = vec![name.to_owned()];
    matches!(world.ask(conn, Call::ServiceWithdraw(ServiceWithdrawParams { names })), Some(Ok(Answer::Empty)))
}

/// The list, page by page.
fn list(world: &mut World, conn: ConnId, all: bool) -> Vec<Service> {
    let mut params = ServicesListParams { all, ..Default::default() };
    let mut services = Vec::new();
    loop {
        let answer = world.ask(conn, Call::ServicesList(params.clone()));
        let Some(Ok(Answer::ServicesList(page))) = answer else { panic!("{answer:?}") };
        services.extend(page.services);
        match page.next {
            Some(next) => params.after = Some(next),
            None => return services,
        }
    }
}

/// Names and states, as `db online`.
fn states(world: &mut World, conn: ConnId) -> Vec<String> {
    let word = |service: &Service| match service.state {
        ServiceState::Online => format!("{} online", service.name),
        ServiceState::Stale => format!("{} stale", service.name),
    };
    list(world, conn, false).iter().map(word).collect()
}

/// What a watcher has heard of services since the last look.
fn heard(world: &mut World, conn: ConnId) -> Vec<String> {
    let seen = world.seen(conn).into_iter().map(|told| told.split_once(' ').unwrap().1.to_owned());
    let of_services = |told: &String| ["online", "stale", "gone"].iter().any(|kind| told.starts_with(kind));
    seen.filter(|told| of_services(told) || told.starts_with("updated d")).collect()
}

fn offered_by(world: &World, n: u8) -> Vec<String> {
    let peer = world.mesh.sessions.presence().get(&session(n)).unwrap();
    peer.get().services.iter().map(ToString::to_string).collect()
}

#[test]
fn a_name_is_shown_when_the_disk_has_it_and_an_unchanged_renewal_writes_nothing() {
    let mut world = World::new();
    let (watcher, conn) = (world.join(1), world.join(2));
    world.seen(watcher);
    world.disk(Disk::Holds);
    assert_eq!(renew(&mut world, conn, vec![offer("db")]), None, "answered after the commit");
    assert_eq!(states(&mut world, watcher), Vec::<String>::new());
    assert_eq!(
        renew(&mut world, watcher, vec![offer("db")]),
        Some(vec![Err(ErrorCode::NameTaken)]),
        "already"
    );
    world.disk(Disk::Commits);
    assert_eq!(heard(&mut world, watcher), ["online db"]);
    assert_eq!(states(&mut world, watcher), ["db online"]);
    assert_eq!(offered_by(&world, 2), ["db"]);
    let (writes, version) = (world.store.service_writes, world.mesh.services_version());
    for _ in 0..10 {
        world.advance(5_000);
        offers(&mut world, conn, "db");
    }
    assert_eq!((world.store.service_writes, world.mesh.services_version()), (writes, version));
    assert_eq!(heard(&mut world, watcher), Vec::<String>::new());
}

#[test]
fn each_offer_has_its_own_verdict_and_two_who_race_are_told_apart() {
    let mut world = World::new();
    let (one, two) = (world.join(1), world.join(2));
    offers(&mut world, one, "db");
    let short = ServiceOffer { ttl_ms: Some(U53::saturating(0)), ..offer("short") };
    let results = renew(&mut world, two, vec![offer("db"), offer("Web"), short, offer("web"), offer("web")]);
    let verdicts = [
        Err(ErrorCode::NameTaken),
        Err(ErrorCode::NameRejected),
        Err(ErrorCode::TtlOutOfBounds),
        Ok(()),
        Err(ErrorCode::BadRequest),
    ];
    assert_eq!(results, Some(verdicts.to_vec()));
    assert_eq!(states(&mut world, one), ["db online", "web online"]);
}

#[test]
fn a_break_within_the_lease_is_stale_after_five_seconds_and_never_gone() {
    let mut world = World::new();
    let (watcher, conn) = (world.join(1), world.join(2));
    offers(&mut world, conn, "db");
    heard(&mut world, watcher);
    world.close(conn, false);
    assert_eq!(states(&mut world, watcher), ["db stale"], "whoever asks sees it at once");
    world.advance(4_999);
    assert_eq!(heard(&mut world, watcher), Vec::<String>::new());
    world.advance(1);
    assert_eq!(heard(&mut world, watcher), ["stale db"]);
    world.advance(40_000);
    let again = world.enter(world.resume_all(conn));
    assert_eq!(heard(&mut world, watcher), ["online db"], "an attach renews all");
    assert_eq!(states(&mut world, watcher), ["db online"]);
    // A break that nobody saw is nobody's business.
    world.advance(5_000);
    offers(&mut world, again, "db");
    world.close(again, false);
    world.advance(4_000);
    world.enter(world.resume_all(again));
    world.advance(10_000);
    assert_eq!(heard(&mut world, watcher), Vec::<String>::new());
}

#[test]
fn whoever_was_shown_that_it_is_stale_hears_that_it_is_back() {
    let mut world = World::new();
    let (watcher, conn) = (world.join(1), world.join(2));
    offers(&mut world, conn, "db");
    heard(&mut world, watcher);
    world.close(conn, false);
    let late = world.join(3);
    let shown = &world.answer(late).snapshot.as_ref().unwrap().services;
    assert_eq!(shown[0].state, ServiceState::Stale);
    world.enter(world.resume_all(conn));
    assert_eq!(heard(&mut world, late), ["online db"]);
}

#[test]
fn a_renewal_that_does_not_come_makes_it_stale_on_the_brokers_clock_and_one_that_does_brings_it_back() {
    let mut world = World::new();
    let (watcher, conn) = (world.join(1), world.join(2));
    assert_eq!(
        renew(&mut world, conn, vec![ServiceOffer { ttl_ms: Some(U53::saturating(10_000)), ..offer("db") }]),
        Some(vec![Ok(())])
    );
    heard(&mut world, watcher);
    world.advance(9_999);
    assert_eq!(states(&mut world, watcher), ["db online"]);
    world.advance(1);
    assert_eq!(states(&mut world, watcher), ["db stale"]);
    world.advance(5_000);
    assert_eq!(heard(&mut world, watcher), ["stale db"]);
    offers(&mut world, conn, "db");
    assert_eq!(heard(&mut world, watcher), ["online db"]);
    assert!(world.is_open(conn));
}

#[test]
fn a_frozen_broker_blames_nobody() {
    let mut world = World::new();
    let (watcher, conn) = (world.join(1), world.join(2));
    offers(&mut world, conn, "db");
    heard(&mut world, watcher);
    world.freeze(60_000);
    assert_eq!(states(&mut world, watcher), ["db online"]);
}

#[test]
fn a_name_is_free_the_instant_its_lease_ends_and_not_before() {
    let mut world = World::new();
    let (watcher, conn) = (world.join(1), world.join(2));
    offers(&mut world, conn, "db");
    world.close(conn, false);
    heard(&mut world, watcher);
    world.advance(89_000);
    assert_eq!(renew(&mut world, watcher, vec![offer("db")]), Some(vec![Err(ErrorCode::NameTaken)]));
    assert_eq!(heard(&mut world, watcher), ["stale db"]);
    world.advance(2_000);
    assert_eq!(heard(&mut world, watcher), ["gone db"]);
    assert!(world.cuts.contains(&(session(2), None, "expired")));
    assert!(world.store.services.is_empty(), "its row went with the lease");
    offers(&mut world, watcher, "db");
}

#[test]
fn bye_ban_and_withdrawal_end_it_at_once() {
    let mut world = World::new();
    let (watcher, two, three) = (world.join(1), world.join(2), world.join(3));
    for (conn, name) in [(two, "db"), (three, "dw"), (watcher, "da")] {
        offers(&mut world, conn, name);
    }
    heard(&mut world, watcher);
    assert!(withdraw(&mut world, watcher, "da"));
    assert_eq!(world.cuts, [(session(1), Some("da".parse().unwrap()), "withdrawn")]);
    assert!(withdraw(&mut world, watcher, "db"), "what is not one's own is no matter");
    world.bye(two);
    world.ban(Banned::Session(session(3)));
    assert_eq!(heard(&mut world, watcher), ["gone da", "gone db", "gone dw"]);
    assert!(world.cuts.contains(&(session(3), None, "banned")));
    assert_eq!((world.mesh.services(), world.store.services.len()), (0, 0));
    assert_eq!(offered_by(&world, 1), Vec::<String>::new());
}

#[test]
fn a_ban_cuts_before_the_disk_has_said_anything() {
    let mut world = World::new();
    let conn = world.join(2);
    offers(&mut world, conn, "db");
    world.disk(Disk::Holds);
    world.ban(Banned::Session(session(2)));
    assert_eq!(world.cuts, [(session(2), None, "banned")]);
}

#[test]
fn a_renewal_after_the_lease_ended_takes_the_name_again_or_says_who_has_it() {
    let mut world = World::new();
    let (one, two) = (world.join(1), world.join(2));
    for name in ["db", "dw"] {
        offers(&mut world, two, name);
    }
    world.close(two, false);
    world.advance(91_000);
    offers(&mut world, one, "dw");
    let again = world.join(2);
    let results = renew(&mut world, again, vec![offer("db"), offer("dw")]);
    assert_eq!(results, Some(vec![Ok(()), Err(ErrorCode::NameTaken)]));
}

#[test]
fn what_the_disk_could_not_take_is_not_taken_and_another_may_have_the_name() {
    let mut world = World::new();
    let (one, two) = (world.join(1), world.join(2));
    offers(&mut world, one, "old");
    world.seen(two);
    world.disk(Disk::Fails);
    let results = renew(&mut world, one, vec![offer("old"), offer("db")]);
    assert_eq!(results, Some(vec![Ok(()), Err(ErrorCode::Unavailable)]));
    let other = ServiceOffer { kind: ServiceKind::Http, ..offer("old") };
    assert_eq!(renew(&mut world, one, vec![other]), Some(vec![Err(ErrorCode::Unavailable)]));
    assert!(!withdraw(&mut world, one, "old"));
    world.disk(Disk::Commits);
    assert_eq!(list(&mut world, two, true)[0].kind, ServiceKind::Tcp, "as it was");
    offers(&mut world, two, "db");
}

#[test]
fn offered_and_withdrawn_in_one_breath_comes_and_goes() {
    let mut world = World::new();
    let (watcher, conn) = (world.join(1), world.join(2));
    world.seen(watcher);
    world.disk(Disk::Holds);
    renew(&mut world, conn, vec![offer("db")]);
    withdraw(&mut world, conn, "db");
    let again = renew(&mut world, conn, vec![offer("db")]);
    assert_eq!(again, Some(vec![Err(ErrorCode::Busy)]), "the disk is forgetting it");
    world.disk(Disk::Commits);
    assert_eq!(heard(&mut world, watcher), ["online db", "gone db"]);
    assert_eq!((world.mesh.services(), world.store.services.len()), (0, 0));
    offers(&mut world, conn, "db");
}

#[test]
fn hidden_ones_are_shown_to_those_who_ask_for_all() {
    let mut world = World::new();
    let (watcher, conn) = (world.join(1), world.join(2));
    world.seen(watcher);
    assert_eq!(renew(&mut world, conn, vec![hidden("db")]), Some(vec![Ok(())]));
    assert_eq!(heard(&mut world, watcher), Vec::<String>::new());
    assert_eq!((list(&mut world, watcher, false).len(), list(&mut world, watcher, true).len()), (0, 1));
    assert_eq!(offered_by(&world, 2), Vec::<String>::new());
    let late = world.join(3);
    assert!(world.answer(late).snapshot.as_ref().unwrap().services.is_empty());
    offers(&mut world, conn, "db");
    assert_eq!(heard(&mut world, watcher), ["online db"], "shown from here on");
    assert_eq!(renew(&mut world, conn, vec![hidden("db")]), Some(vec![Ok(())]));
    assert_eq!(heard(&mut world, watcher), ["gone db"]);
    assert_eq!(renew(&mut world, watcher, vec![offer("db")]), Some(vec![Err(ErrorCode::NameTaken)]), "held");
}

#[test]
fn what_it_says_of_itself_is_told_and_a_failing_target_is_not_written() {
    let mut world = World::new();
    let (watcher, conn) = (world.join(1), world.join(2));
    offers(&mut world, conn, "db");
    world.seen(watcher);
    let writes = world.store.service_writes;
    let degraded = ServiceOffer { degraded: true, ..offer("db") };
    assert_eq!(renew(&mut world, conn, vec![degraded]), Some(vec![Ok(())]));
    assert_eq!(heard(&mut world, watcher), ["updated db"]);
    assert!(list(&mut world, watcher, false)[0].degraded);
    assert_eq!(world.store.service_writes, writes);
    let metadata = ServiceMetadata { description: Some("a database".to_owned()), ..Default::default() };
    assert_eq!(
        renew(&mut world, conn, vec![ServiceOffer { metadata, degraded: true, ..offer("db") }]),
        Some(vec![Ok(())])
    );
    assert_eq!(
        (heard(&mut world, watcher), world.store.service_writes),
        (vec!["updated db".to_owned()], writes + 1)
    );
}

#[test]
fn who_may_not_serve_is_told_so_and_a_policy_holds_from_the_next_renewal_on() {
    let mut world = World::new();
    let caps = Voucher::Attested(Some(vec!["read".parse().unwrap()]));
    let reader = world.enter(Admission { voucher: caps, ..knock(1) });
    assert_eq!(renew(&mut world, reader, vec![offer("db")]), Some(vec![Err(ErrorCode::Forbidden)]));
    let conn = world.join(2);
    offers(&mut world, conn, "db");
    let config = MeshConfig { service_names: Some("team-*".to_owned()), ..MeshConfig::default() };
    world.configure(&config);
    let results = renew(&mut world, conn, vec![offer("db"), offer("team-db")]);
    assert_eq!(results, Some(vec![Err(ErrorCode::NameRejected), Ok(())]));
    world.advance(30_000);
    assert_eq!(states(&mut world, conn), ["db stale", "team-db stale"], "the name is held for a while");
}

#[test]
fn services_of_a_session_and_of_a_renewal_are_bounded() {
    let mut world = World::new();
    let conn = world.join(1);
    let many = |from: usize, to: usize| (from..to).map(|n| offer(&format!("s{n}"))).collect::<Vec<_>>();
    assert_eq!(renew(&mut world, conn, many(0, 64)), Some(vec![Ok(()); 64]));
    assert_eq!(renew(&mut world, conn, many(63, 65)), Some(vec![Ok(()), Err(ErrorCode::Busy)]));
    let call = Call::ServiceRenew(ServiceRenewParams { services: many(0, 257) });
    assert_eq!(world.ask(conn, call).unwrap().unwrap_err().code, ErrorCode::BadRequest);
    assert_eq!(list(&mut world, conn, false).len(), 64);
}

#[test]
fn long_lists_come_page_by_page_and_a_snapshot_says_that_there_is_more() {
    let mut world = World::new();
    for n in 1..=10 {
        let conn = world.join(n);
        let metadata = ServiceMetadata { description: Some("x".repeat(512)), ..Default::default() };
        let one = |i| ServiceOffer { metadata: metadata.clone(), ..offer(&format!("s{n}-{i:02}")) };
        assert_eq!(renew(&mut world, conn, (0..64).map(one).collect()), Some(vec![Ok(()); 64]));
    }
    let late = world.join(20);
    let snapshot = world.answer(late).snapshot.clone().unwrap();
    assert!(snapshot.more_services && snapshot.services.len() < 500, "cut by bytes");
    let all = list(&mut world, late, false);
    assert_eq!(all.len(), 640);
    assert!(all.is_sorted_by(|a, b| a.name < b.name));
}

#[test]
fn a_start_finds_them_stale_until_their_sessions_are_back() {
    let mut world = World::new();
    let (watcher, conn) = (world.join(1), world.join(2));
    offers(&mut world, conn, "db");
    world.restart(0);
    let watcher = world.enter(world.resume_all(watcher));
    assert_eq!(states(&mut world, watcher), ["db stale"]);
    assert_eq!(offered_by(&world, 2), ["db"]);
    assert_eq!(renew(&mut world, watcher, vec![offer("db")]), Some(vec![Err(ErrorCode::NameTaken)]));
    world.enter(knock(2));
    assert_eq!(heard(&mut world, watcher), ["online db"]);
    world.restart(0);
    let watcher = world.join(1);
    world.advance(120_000);
    assert_eq!(heard(&mut world, watcher), ["stale db", "gone db"], "nobody came back");
    world.restart(0);
    assert_eq!(world.mesh.services(), 0);
}

#[test]
fn what_a_watcher_missed_is_told_again_and_coalesced() {
    let mut world = World::new();
    let (watcher, conn) = (world.join(1), world.join(2));
    let last = world.socket(watcher).last_seq;
    world.socket_mut(watcher).flushes = false;
    offers(&mut world, conn, "db");
    for degraded in [true, false, true] {
        renew(&mut world, conn, vec![ServiceOffer { degraded, ..offer("db") }]);
    }
    world.close(watcher, false);
    let again = world.enter(world.resume(watcher, last));
    assert_eq!(heard(&mut world, again), ["online db", "updated db"]);
    assert!(withdraw(&mut world, conn, "db"));
    assert_eq!(heard(&mut world, again), ["gone db"]);
}

/// Lets time pass in which nothing is heard of `conn`, and then something.
fn silence(world: &mut World, conn: ConnId, ms: u64) {
    world.socket_mut(conn).lively = false;
    world.advance(ms);
    world.socket_mut(conn).lively = true;
    world.input(Input::Alive { conn, at: world.now().at });
}

#[test]
fn a_service_that_a_living_session_does_not_renew_is_stale_and_then_gone() {
    let mut world = World::new();
    let (watcher, conn) = (world.join(1), world.join(2));
    offers(&mut world, conn, "db");
    world.seen(watcher);
    world.advance(59_000);
    assert_eq!(heard(&mut world, watcher), ["stale db"]);
    silence(&mut world, conn, 1_001);
    world.advance(9_999);
    assert_eq!(states(&mut world, watcher), ["db stale"], "ten seconds after it was heard of");
    assert_eq!(renew(&mut world, watcher, vec![offer("db")]), Some(vec![Err(ErrorCode::NameTaken)]));
    world.advance(1);
    assert_eq!(heard(&mut world, watcher), ["gone db"]);
    assert_eq!((world.mesh.services(), offered_by(&world, 2).len()), (0, 0));
    assert!(world.cuts.iter().any(|(of, _, reason)| *of == session(2) && *reason == "unrenewed"));
    offers(&mut world, watcher, "db");
    assert_eq!(renew(&mut world, conn, vec![offer("db")]), Some(vec![Err(ErrorCode::NameTaken)]));
    world.restart(0);
    assert_eq!(world.mesh.service_holder(&"db".parse().unwrap()), Some(session(1)), "on disk too");
}

#[test]
fn a_renewal_in_the_last_seconds_or_an_attach_keeps_it() {
    let mut world = World::new();
    let conn = world.join(2);
    offers(&mut world, conn, "db");
    world.advance(59_500);
    silence(&mut world, conn, 600);
    world.advance(9_000);
    offers(&mut world, conn, "db");
    world.advance(20_000);
    assert_eq!(states(&mut world, conn), ["db online"], "renewed in time");
    world.advance(35_000);
    silence(&mut world, conn, 6_000);
    world.advance(5_000);
    let conn = world.enter(world.resume_all(conn));
    world.advance(29_000);
    assert_eq!(states(&mut world, conn), ["db online"], "and attached in time");
}

#[test]
fn without_a_proof_of_life_nothing_ends_and_in_grace_the_lease_decides() {
    let mut world =
        World::with(MeshConfig { lease_ttl_ms: 600_000, stale_after_ms: 400_000, ..MeshConfig::default() });
    let (watcher, conn) = (world.join(1), world.join(2));
    offers(&mut world, conn, "db");
    world.socket_mut(conn).lively = false;
    world.advance(390_000);
    assert_eq!(states(&mut world, watcher), ["db stale"], "a machine that sleeps with its socket open");
    world.close(conn, false);
    world.advance(200_000);
    assert_eq!(states(&mut world, watcher), ["db stale"], "in grace");
    world.advance(11_000);
    assert_eq!(world.mesh.services(), 0, "with the lease");
}

#[test]
fn a_renewal_that_a_new_policy_refuses_counts_as_none() {
    for attach in [false, true] {
        let mut world = World::new();
        let conn = world.join(2);
        offers(&mut world, conn, "db");
        let config = MeshConfig { service_names: Some("team-*".to_owned()), ..MeshConfig::default() };
        world.configure(&config);
        let mut conn = conn;
        let refused = |world: &mut World, conn: ConnId| {
            assert_eq!(renew(world, conn, vec![offer("db")]), Some(vec![Err(ErrorCode::NameRejected)]));
        };
        for n in 0..13 {
            world.advance(5_000);
            refused(&mut world, conn);
            if attach && n == 10 {
                conn = world.enter(world.resume_all(conn));
            }
        }
        world.advance(5_000);
        assert_eq!(world.mesh.services(), 1, "its last ten seconds, or an attach that began its time anew");
        world.advance(5_001);
        assert_eq!(world.mesh.services(), usize::from(attach));
        if attach {
            for _ in 0..12 {
                world.advance(5_000);
                refused(&mut world, conn);
            }
            assert_eq!(world.mesh.services(), 0);
        }
    }
}

#[test]
fn an_end_that_the_disk_does_not_take_is_tried_again() {
    let mut world = World::new();
    let (watcher, conn) = (world.join(1), world.join(2));
    offers(&mut world, conn, "db");
    world.disk(Disk::Fails);
    world.advance(59_500);
    silence(&mut world, conn, 600);
    world.advance(15_000);
    assert_eq!(states(&mut world, watcher), ["db stale"]);
    world.disk(Disk::Commits);
    world.advance(10_000);
    assert_eq!(world.mesh.services(), 0);
}

#[test]
fn a_list_tells_when_a_service_came_was_renewed_and_ends() {
    let mut world = World::new();
    let conn = world.join(2);
    let start = world.now().wall;
    offers(&mut world, conn, "db");
    let times = |world: &mut World, conn: ConnId| {
        let service = list(world, conn, false).remove(0);
        let since = |at: Option<U53>| at.map(|at| at.get() - start);
        (since(service.first_seen_at), since(service.last_renewed_at), since(service.expires_at))
    };
    assert_eq!(times(&mut world, conn), (Some(0), Some(0), Some(70_000)));
    world.advance(20_000);
    offers(&mut world, conn, "db");
    assert_eq!(times(&mut world, conn), (Some(0), Some(20_000), Some(90_000)));
    let watcher = world.join(1);
    let snapshot = world.answer(watcher).snapshot.clone().unwrap();
    assert_eq!(snapshot.services[0].first_seen_at, None, "only in the list");
    world.close(conn, false);
    assert_eq!(times(&mut world, watcher), (Some(0), Some(20_000), None), "in grace the lease decides");
    world.restart(0);
    let watcher = world.join(1);
    assert_eq!(times(&mut world, watcher), (Some(0), None, None), "when it was renewed is not on disk");
    world.enter(knock(2));
    assert_eq!(times(&mut world, watcher), (Some(0), Some(20_000), Some(90_000)), "an attach renews");
}
