//! Who is let into a mesh that asks for something, and what operators do about those who are in.

use serde_json::json;
use tenure_proto::hello::LeaseFate;
use tenure_proto::ids::{GrantId, MessageId, RunId};
use tenure_proto::invite::{Invite, Role};
use tenure_proto::message::Address;
use tenure_proto::number::U53;
use tenure_proto::run::{
    RunChunkParams, RunEndParams, RunEndStatus, RunIdParams, RunStartParams, RunsListParams,
};
use tenure_proto::service::{ServiceState, ServicesListParams};
use tenure_proto::{Cap, ErrorCode, MemberKey};

use crate::Input;
use crate::access::admin::{Act, Operated, Page};
use crate::access::setting::Values;
use crate::access::{Change, Presented, TokenRecord};
use crate::conn::admit::{Admission, Voucher};
use crate::effect::{Answer, Note};
use crate::input::{Banned, Call};
use crate::runs::start;
use crate::services::route::{By, RouteId, Want};
use crate::tests::services::{hidden, offer, offers, renew};
use crate::tests::world::{Disk, WALL, World, knock, session};

const OUTSIDER: (ErrorCode, &str, Option<u64>) = (ErrorCode::Unauthorized, "unauthorized", None);
const BANNED: (ErrorCode, &str, Option<u64>) = (ErrorCode::Banned, "banned", None);

fn member(n: u8) -> MemberKey {
    MemberKey([n; 32])
}

fn caps(names: &[&str]) -> Option<Vec<Cap>> {
    Some(names.iter().map(|name| name.parse().unwrap()).collect())
}

/// A mesh whose owner is member 1.
fn founded() -> World {
    let mut world = World::new();
    assert!(matches!(world.operate(Act::Found(member(1))), Some(Ok(Operated::Done))));
    world
}

/// An invite of member 1 that is good for an hour.
fn invite(uses: u32) -> Invite {
    Invite {
        mesh: "default".parse().unwrap(),
        id: "i1".parse().unwrap(),
        by: member(1),
        role: Role::Member,
        caps: None,
        uses,
        exp: U53::saturating(WALL + 3_600_000),
    }
}

fn invited(n: u8, invite: &Invite) -> Admission {
    Admission { presented: Presented::Invite(Box::new(invite.clone())), ..knock(n) }
}

fn put_member(n: u8, role: Option<Role>, caps: Option<Option<Vec<Cap>>>) -> Act {
    Act::PutMember { member: member(n), role, caps, name: None }
}

fn token(id: &str, hash: u8) -> Act {
    let id: GrantId = id.parse().unwrap();
    let (name, caps) = (String::new(), caps(&["send"]));
    Act::PutToken(TokenRecord { id, hash: [hash; 32], caps, name, since: WALL, expires_at: None })
}

fn bringing(n: u8, hash: u8) -> Admission {
    Admission { presented: Presented::Token([hash; 32]), ..knock(n) }
}

#[track_caller]
fn ok(world: &mut World, act: Act) -> Operated {
    match world.operate(act) {
        Some(Ok(answer)) => answer,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn refused(world: &mut World, act: Act) -> ErrorCode {
    match world.operate(act) {
        Some(Err(error)) => error.code,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_mesh_that_was_made_admits_its_members_and_puts_everybody_else_out() {
    let mut world = World::new();
    let (owner, stranger) = (world.join(1), world.join(2));
    ok(&mut world, Act::Found(member(1)));
    assert!(world.is_open(owner), "the owner stays");
    assert_eq!(world.closed(stranger), Some(("kicked", None)));
    let again = world.hello(knock(2));
    assert_eq!(world.refusal(again), OUTSIDER);
    assert_eq!(refused(&mut world, Act::Found(member(2))), ErrorCode::Conflict);
    let first = &world.store.access[0];
    assert!(matches!(&first.changes[..], [Change::Found(WALL), Change::PutMember(_)]));
    assert_eq!(first.audit.as_ref().unwrap().act, "mesh.create");
}

#[test]
fn an_invite_is_used_with_the_members_row_and_the_same_key_succeeds_again() {
    let mut world = founded();
    let conn = world.enter(invited(2, &invite(1)));
    let joined = world.store.access.last().unwrap();
    assert!(matches!(
        &joined.changes[..],
        [Change::PutInvite(used), Change::PutMember(row)] if used.used == 1 && row.member == member(2)
    ));
    assert_eq!(joined.audit.as_ref().unwrap().subject, "invite:i1");
    assert!(world.has_note(|note| matches!(note, Note::Joined { .. })));
    world.bye(conn);
    world.enter(invited(2, &invite(1)));
    let other = world.hello(invited(3, &invite(1)));
    assert_eq!(world.refusal(other), OUTSIDER, "it is used up");
    assert_eq!(world.store.access.len(), 2, "written once");
}

#[test]
fn an_expired_or_forged_invite_lets_nobody_in() {
    let mut world = founded();
    let expired = Invite { exp: U53::saturating(WALL + 10_000), ..invite(5) };
    world.advance(10_000);
    let stranger = Invite { by: member(9), ..invite(5) };
    let forged = Presented::Bad(Box::new(tenure_proto::WireError::new(ErrorCode::Unauthorized, "forged")));
    for admission in
        [invited(2, &expired), invited(2, &stranger), Admission { presented: forged, ..knock(2) }]
    {
        let conn = world.hello(admission);
        assert_eq!(world.refusal(conn), OUTSIDER);
    }
    assert_eq!(world.store.access.len(), 1, "nothing was written");
}

#[test]
fn of_two_keys_that_race_for_the_last_use_one_gets_it_and_the_other_may_ask_again() {
    let mut world = founded();
    world.disk(Disk::Holds);
    let first = world.hello(invited(2, &invite(1)));
    let second = world.hello(invited(3, &invite(1)));
    assert_eq!(world.refusal(second), (ErrorCode::Busy, "busy", Some(1_000)));
    // Which of them is in is the disk's to say.
    world.disk(Disk::Fails);
    assert_eq!(world.refusal(first).0, ErrorCode::Unavailable);
    world.disk(Disk::Commits);
    world.enter(invited(3, &invite(1)));
    let first = world.hello(invited(2, &invite(1)));
    assert_eq!(world.refusal(first), OUTSIDER);
}

#[test]
fn a_member_whose_row_was_lost_is_none() {
    let mut world = founded();
    world.disk(Disk::Fails);
    let conn = world.hello(invited(2, &invite(1)));
    assert_eq!(world.refusal(conn).0, ErrorCode::Unavailable);
    world.disk(Disk::Commits);
    let bare = world.hello(knock(2));
    assert_eq!(world.refusal(bare), OUTSIDER);
    world.enter(invited(2, &invite(1)));
}

#[test]
fn a_revoked_invite_and_a_removed_member_are_out() {
    let mut world = founded();
    let conn = world.enter(invited(2, &invite(5)));
    ok(&mut world, Act::RevokeInvite("i1".parse().unwrap()));
    let third = world.hello(invited(3, &invite(5)));
    assert_eq!(world.refusal(third), OUTSIDER);
    assert!(world.is_open(conn), "who came by it stays");
    ok(&mut world, Act::DropMember(member(2)));
    assert_eq!(world.closed(conn), Some(("kicked", None)));
    let again = world.hello(world.resume(conn, 0));
    assert_eq!(world.refusal(again), OUTSIDER, "a resume token is no invitation");
    assert_eq!(refused(&mut world, Act::DropMember(member(2))), ErrorCode::NotFound);
    assert_eq!(refused(&mut world, Act::DropMember(member(1))), ErrorCode::Conflict);
}

#[test]
fn a_token_lets_any_key_in_until_it_is_revoked() {
    let mut world = founded();
    ok(&mut world, token("t1", 7));
    let conn = world.enter(bringing(2, 7));
    let wrong = world.hello(bringing(3, 8));
    assert_eq!(world.refusal(wrong), OUTSIDER);
    assert!(
        matches!(ok(&mut world, Act::Members(Page::default())), Operated::Members(rows, false) if rows.len() == 1)
    );
    ok(&mut world, Act::DropToken("t1".parse().unwrap()));
    assert_eq!(world.closed(conn), Some(("kicked", None)));
    let again = world.hello(bringing(2, 7));
    assert_eq!(world.refusal(again), OUTSIDER);
}

#[test]
fn a_token_that_expires_ends_the_sessions_that_came_by_it() {
    let mut world = founded();
    let until = |act: Act, end: u64| match act {
        Act::PutToken(token) => Act::PutToken(TokenRecord { expires_at: Some(WALL + end), ..token }),
        other => other,
    };
    ok(&mut world, until(token("t1", 7), 5_000));
    ok(&mut world, token("t2", 8));
    let owner = world.join(1);
    let (here, away, other) =
        (world.enter(bringing(2, 7)), world.enter(bringing(3, 7)), world.enter(bringing(4, 8)));
    world.close(away, false);
    world.advance(4_999);
    assert!(world.is_open(here));
    assert_eq!(world.mesh.sessions(), 4);
    world.advance(1);
    assert_eq!(world.closed(here), Some(("kicked", None)));
    assert!(world.is_open(owner) && world.is_open(other), "nobody else is ended");
    assert_eq!(world.mesh.sessions(), 2, "who is away has no lease either");
    let again = world.hello(bringing(2, 7));
    assert_eq!(world.refusal(again), OUTSIDER);
    // One that waits for the disk when its token ends is not kept for that.
    ok(&mut world, until(token("t3", 9), 10_000));
    world.disk(Disk::Holds);
    world.hello(bringing(5, 9));
    world.advance(6_000);
    world.disk(Disk::Commits);
    world.advance(1);
    assert_eq!(world.mesh.sessions(), 2);
}

#[test]
fn a_token_that_is_revoked_while_its_hello_waits_lets_nobody_in() {
    let mut world = founded();
    ok(&mut world, token("t1", 7));
    world.disk(Disk::Holds);
    let conn = world.hello(bringing(2, 7));
    world.operate(Act::DropToken("t1".parse().unwrap()));
    assert_eq!(world.refusal(conn), (ErrorCode::Forbidden, "kicked", None));
    world.disk(Disk::Commits);
    assert_eq!(world.mesh.sessions(), 0);
}

#[test]
fn the_audit_log_says_what_became_of_dead_letters() {
    let mut world = founded();
    let log = || format!("inbox/s/{}", session(2));
    let seqs = |count: u64| (0..count).map(U53::saturating).collect::<Vec<_>>();
    for (count, outcome) in [(0, "bad_request"), (1, "ok"), (257, "bad_request")] {
        for act in [Act::DeadRetry(log(), seqs(count)), Act::DeadDrop(log(), seqs(count))] {
            let rows = world.store.access.len();
            let answer = world.operate(act);
            assert_eq!(matches!(answer, Some(Err(_))), outcome != "ok", "{count}: {answer:?}");
            let told: Vec<_> =
                world.store.access[rows..].iter().filter_map(|row| row.audit.clone()).collect();
            assert!(matches!(&told[..], [row] if row.outcome == outcome), "{count}: {told:?}");
        }
    }
}

#[test]
fn caps_only_narrow_and_hold_from_the_moment_they_are_changed() {
    let mut world = founded();
    ok(&mut world, put_member(2, None, Some(caps(&["send", "read"]))));
    let attested = Voucher::Attested(caps(&["read", "run", "admin"]));
    let conn = world.enter(Admission { voucher: attested, ..knock(2) });
    let topics = || Call::TopicsList(Default::default());
    let create = || {
        Call::TopicsCreate(tenure_proto::topic::TopicCreateParams {
            name: "t".parse().unwrap(),
            partitions: 1,
            retention_ms: None,
        })
    };
    let code = |answer: Option<Result<Answer, tenure_proto::WireError>>| answer.unwrap().unwrap_err().code;
    // The store of these tests reads nothing, which is how a question that was allowed is known here.
    assert_eq!(code(world.ask(conn, topics())), ErrorCode::Unavailable);
    assert_eq!(code(world.ask(conn, create())), ErrorCode::Forbidden, "its attestation left that out");
    ok(&mut world, put_member(2, None, Some(caps(&["send"]))));
    assert_eq!(code(world.ask(conn, topics())), ErrorCode::Forbidden, "and now its member may not either");
    ok(&mut world, put_member(2, Some(Role::Operator), Some(None)));
    assert_eq!(code(world.ask(conn, topics())), ErrorCode::Unavailable);
    assert_eq!(
        code(world.ask(conn, create())),
        ErrorCode::Forbidden,
        "more for the member is no more for it"
    );
    assert_eq!(refused(&mut world, put_member(2, None, Some(caps(&["red"])))), ErrorCode::BadRequest);
}

#[test]
fn whoever_may_not_run_is_refused_all_of_it() {
    let mut world = founded();
    ok(&mut world, put_member(2, None, Some(caps(&["send", "read", "serve"]))));
    let (owner, conn) = (world.join(1), world.join(2));
    let run_id = RunId(7);
    let start = |from_seq| {
        let (to, idempotency_key) = (Address::Session(session(1)), "k".to_owned());
        let params = RunStartParams { to, input: json!(1), idempotency_key, timeout_ms: None, from_seq };
        Call::RunStart(Box::new(start::prepare(params, MessageId(7), WALL, 1_024).unwrap()))
    };
    let end =
        || RunEndParams { run_id, seq: U53::from(1), status: RunEndStatus::Ok, result: None, error: None };
    for call in [
        start(None),
        start(Some(U53::from(1))),
        Call::RunGet(RunIdParams { run_id }),
        Call::RunsList(RunsListParams::default()),
        Call::RunCancel(RunIdParams { run_id }),
        Call::RunChunk(RunChunkParams { run_id, seq: U53::from(1), data: json!(1) }),
        Call::RunEnd(Box::new(end())),
    ] {
        let method = call.method();
        assert_ne!(
            world.ask(owner, call.clone()).and_then(Result::err).map(|error| error.code),
            Some(ErrorCode::Forbidden)
        );
        let error = world.ask(conn, call).expect("an answer at once").unwrap_err();
        assert_eq!(error.code, ErrorCode::Forbidden, "{method:?}");
        assert_eq!(error.details.as_deref(), Some(&json!({"cap": "run"})), "{method:?}");
    }
}

#[test]
fn a_kick_ends_a_session_now_and_it_may_come_back() {
    let mut world = founded();
    let (watcher, conn) = (world.join(1), world.enter(invited(2, &invite(1))));
    world.seen(watcher);
    ok(&mut world, Act::Kick(session(2), "enough".to_owned()));
    assert_eq!(world.closed(conn), Some(("kicked", None)));
    assert_eq!(world.socket(conn).closing.as_ref().unwrap().code, 4003);
    assert_eq!(world.seen(watcher), ["2 left s2"]);
    assert!(world.has_note(|note| matches!(note, Note::LeaseEvicted { reason: "kicked", .. })));
    let row = world.store.access.last().unwrap().audit.clone().unwrap();
    assert_eq!((row.act.as_str(), row.outcome.as_str()), ("session.kick", "ok"));
    assert_eq!(row.details, json!({"reason": "enough"}));
    let again = world.join(2);
    assert_eq!(world.answer(again).lease, LeaseFate::New);
    assert_eq!(refused(&mut world, Act::Kick(session(9), String::new())), ErrorCode::NoSuchSession);
    let row = world.store.access.last().unwrap().audit.clone().unwrap();
    assert_eq!((row.act.as_str(), row.outcome.as_str()), ("session.kick", "no_such_session"));
}

#[test]
fn a_kick_reaches_a_hello_that_waits_and_a_lease_that_is_away() {
    let mut world = World::new();
    world.disk(Disk::Holds);
    let waits = world.hello(knock(2));
    world.operate(Act::Kick(session(2), String::new()));
    assert_eq!(world.refusal(waits), (ErrorCode::Forbidden, "kicked", None));
    world.disk(Disk::Commits);
    assert_eq!(world.mesh.sessions(), 0);
    let away = world.join(3);
    world.close(away, true);
    ok(&mut world, Act::Kick(session(3), String::new()));
    assert_eq!(world.mesh.sessions(), 0);
}

#[test]
fn an_address_is_banned_with_whoever_is_there_and_nobody_else() {
    let mut world = World::new();
    let at = |n: u8, from: &str| Admission { from: Some(from.parse().unwrap()), ..knock(n) };
    let (near, far) = (world.enter(at(2, "10.1.2.3")), world.enter(at(3, "192.168.0.1")));
    let nowhere = world.join(4);
    ok(&mut world, Act::Ban("address:10.0.0.0/8".parse().unwrap(), "spam".to_owned()));
    assert_eq!(world.closed(near), Some(("banned", None)));
    assert!(world.is_open(far) && world.is_open(nowhere));
    for from in ["10.1.2.3", "10.255.255.255", "::ffff:10.0.0.1"] {
        let conn = world.hello(at(5, from));
        assert_eq!(world.refusal(conn), BANNED, "{from}");
    }
    world.enter(at(2, "11.0.0.1"));
    let Operated::Bans(bans, false) = ok(&mut world, Act::Bans(Page::default())) else { panic!() };
    assert_eq!(
        (bans[0].subject.to_string().as_str(), bans[0].reason.as_str()),
        ("address:10.0.0.0/8", "spam")
    );
    assert!(matches!(world.store.access[0].changes[..], [Change::PutBan(_)]));
    ok(&mut world, Act::Unban("address:10.0.0.0/8".parse().unwrap()));
    world.enter(at(5, "10.1.2.3"));
    assert_eq!(refused(&mut world, Act::Unban(Banned::Member(member(1)))), ErrorCode::NotFound);
}

#[test]
fn an_address_that_is_banned_while_its_hello_waits_stays_out() {
    let mut world = World::new();
    let at = |n: u8, from: &str| Admission { from: Some(from.parse().unwrap()), ..knock(n) };
    let conn = world.enter(at(2, "192.168.0.1"));
    world.bye(conn);
    world.disk(Disk::Holds);
    let begins = world.hello(at(2, "10.0.0.9"));
    world.operate(Act::Ban("address:10.0.0.9".parse().unwrap(), String::new()));
    assert_eq!(world.refusal(begins), BANNED);
    world.disk(Disk::Commits);
    assert_eq!(world.mesh.sessions(), 0, "what it had begun is undone");
    world.enter(at(2, "192.168.0.1"));
}

#[test]
fn settings_are_compared_set_and_take_effect() {
    let mut world = World::new();
    let set =
        |version, name: &str, value| Act::Set { version, values: Values::from([(name.to_owned(), value)]) };
    let Operated::Settings { version: 1, values, changed } = ok(&mut world, set(0, "maxSessions", json!(1)))
    else {
        panic!()
    };
    assert_eq!((&values["maxSessions"], changed), (&json!(1), vec!["maxSessions".to_owned()]));
    world.join(1);
    let second = world.hello(knock(2));
    assert_eq!(world.refusal(second).0, ErrorCode::Busy);
    assert_eq!(
        refused(&mut world, set(0, "maxSessions", json!(9))),
        ErrorCode::Conflict,
        "somebody was faster"
    );
    assert_eq!(refused(&mut world, set(1, "leaseTtlMs", json!(1))), ErrorCode::BadRequest);
    assert_eq!(refused(&mut world, set(1, "nothing", json!(null))), ErrorCode::BadRequest);
    let Operated::Settings { version: 2, changed, .. } = ok(&mut world, set(1, "maxSessions", json!(null)))
    else {
        panic!()
    };
    assert!(changed.is_empty());
    world.join(2);
    let acts: Vec<_> = world.store.access.iter().map(|w| w.audit.clone().unwrap().outcome).collect();
    assert_eq!(acts, ["ok", "conflict", "bad_request", "bad_request", "ok"]);
}

#[test]
fn an_operator_is_answered_when_it_is_on_disk_and_told_if_it_is_not() {
    let mut world = World::new();
    let conn = world.join(2);
    world.disk(Disk::Holds);
    assert!(world.operate(Act::Ban(Banned::Session(session(2)), String::new())).is_none());
    assert_eq!(world.closed(conn), Some(("banned", None)), "it holds before it is on disk");
    world.disk(Disk::Fails);
    let told = world.operated.values().next().unwrap().clone().unwrap_err();
    assert_eq!(told.code, ErrorCode::Unavailable);
    assert!(told.message.contains("not on disk"));
    let again = world.hello(knock(2));
    assert_eq!(world.refusal(again), BANNED);
}

#[test]
fn lists_are_pages() {
    let mut world = World::new();
    for n in 1..=5 {
        world.join(n);
    }
    let page = |after: Option<u8>| Page { after: after.map(session), limit: 2 };
    let mut names = Vec::new();
    let mut after = None;
    loop {
        let Operated::Sessions(infos, more) = ok(&mut world, Act::Sessions(page(after))) else { panic!() };
        assert!(infos.len() <= 2);
        names.extend(infos.iter().map(|info| info.peer.name.clone()));
        after = infos.last().map(|info| info.peer.session.0[0]);
        if !more {
            break;
        }
    }
    assert_eq!(names, ["s1", "s2", "s3", "s4", "s5"]);
    let Operated::Session(info) = ok(&mut world, Act::Session(session(3))) else { panic!() };
    assert_eq!(info.rights.names().count(), 5, "an open mesh allows everything");
    assert!(info.peer.lease_until.is_some());
    assert_eq!(refused(&mut world, Act::Session(session(9))), ErrorCode::NoSuchSession);
    let Operated::Overview(all) = ok(&mut world, Act::Overview) else { panic!() };
    assert_eq!((all.sessions, all.online, all.founded), (5, 5, None));
    assert!(world.store.access.is_empty(), "who only looks leaves no row");
}

#[test]
fn a_kick_cuts_what_its_session_has_open_before_the_disk_has_said_anything() {
    let mut world = World::new();
    let conn = world.join(2);
    offers(&mut world, conn, "db");
    world.disk(Disk::Holds);
    world.operate(Act::Kick(session(2), String::new()));
    assert_eq!(world.cuts, [(session(2), None, "kicked")]);
    let (route, name, want) = (RouteId(1), "db".parse().unwrap(), Want::Tcp);
    world.input(Input::Route { route, name, want, by: By::Address("192.0.2.1".parse().unwrap()) });
    let refused = world.routed.iter().map(|(_, outcome)| outcome.as_ref().map_err(|error| error.code).err());
    assert_eq!(refused.collect::<Vec<_>>(), [Some(ErrorCode::NotFound)], "nobody gets there any more");
}

#[test]
fn an_address_that_is_banned_is_cut_off_too() {
    let mut world = World::new();
    let from = Some("10.1.2.3".parse().unwrap());
    let conn = world.enter(Admission { from, ..knock(2) });
    offers(&mut world, conn, "db");
    let subject: Banned = "address:10.0.0.0/8".parse().unwrap();
    assert!(matches!(world.operate(Act::Ban(subject, String::new())), Some(Ok(_))));
    assert!(world.cuts.contains(&(session(2), None, "banned")));
    assert_eq!(world.mesh.services(), 0);
}

#[test]
fn whoever_asks_from_a_banned_address_without_a_session_is_refused_and_cut() {
    let mut world = World::new();
    let conn = world.join(2);
    offers(&mut world, conn, "db");
    let mut asked = 0;
    let mut ask = |world: &mut World, from: &str| {
        asked += 1;
        let (route, name, want) = (RouteId(asked), "db".parse().unwrap(), Want::Tcp);
        world.input(Input::Route { route, name, want, by: By::Address(from.parse().unwrap()) });
        world.routed.last().unwrap().1.as_ref().err().map(|error| error.code)
    };
    assert_eq!(ask(&mut world, "10.1.2.3"), None);
    let subject: Banned = "address:10.0.0.0/8".parse().unwrap();
    ok(&mut world, Act::Ban(subject, String::new()));
    assert_eq!(world.cut_from, ["10.0.0.0/8".parse().unwrap()]);
    assert_eq!(ask(&mut world, "10.1.2.3"), Some(ErrorCode::Banned));
    assert_eq!(ask(&mut world, "::ffff:10.9.9.9"), Some(ErrorCode::Banned));
    assert_eq!(ask(&mut world, "11.1.2.3"), None);
    ok(&mut world, Act::Unban(subject));
    assert_eq!(ask(&mut world, "10.1.2.3"), None);
}

#[test]
fn operators_see_services_that_hide_and_page_by_page() {
    let mut world = World::new();
    let conn = world.join(2);
    assert_eq!(renew(&mut world, conn, vec![offer("a"), hidden("b"), offer("c")]), Some(vec![Ok(()); 3]));
    let mut page = |after: Option<&str>| {
        let after = after.map(|name| name.parse().unwrap());
        match world.operate(Act::Services(Page { after, limit: 2 })) {
            Some(Ok(Operated::Answer(answer))) => match *answer {
                Answer::ServicesList(list) => {
                    let names = list.services.iter().map(|service| service.name.to_string()).collect();
                    (names, list.next.map(|name| name.to_string()))
                }
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    };
    let first: (Vec<String>, _) = page(None);
    assert_eq!(first, (vec!["a".to_owned(), "b".to_owned()], Some("b".to_owned())));
    assert_eq!(page(Some("b")), (vec!["c".to_owned()], None));
}

#[test]
fn a_setting_of_services_holds_from_the_next_renewal_on() {
    let mut world = World::new();
    let conn = world.join(2);
    offers(&mut world, conn, "db");
    let values = Values::from([("serviceNames".to_owned(), json!("team-*"))]);
    assert!(matches!(world.operate(Act::Set { version: 0, values }), Some(Ok(_))));
    let results = renew(&mut world, conn, vec![offer("db"), offer("team-db")]);
    assert_eq!(results, Some(vec![Err(ErrorCode::NameRejected), Ok(())]));
}

#[test]
fn who_may_serve_no_more_is_cut_off_and_stays_stale_whatever_it_does() {
    let mut world = founded();
    ok(&mut world, put_member(2, None, None));
    let conn = world.join(2);
    offers(&mut world, conn, "db");
    ok(&mut world, put_member(2, None, Some(caps(&["send", "read"]))));
    assert!(world.cuts.contains(&(session(2), None, "forbidden")));
    let states = |world: &mut World| -> Vec<ServiceState> {
        let conn = world.join(1);
        match world.ask(conn, Call::ServicesList(ServicesListParams::default())) {
            Some(Ok(Answer::ServicesList(list))) => {
                list.services.iter().map(|service| service.state).collect()
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(states(&mut world), [ServiceState::Stale]);
    world.join(2);
    assert_eq!(states(&mut world), [ServiceState::Stale], "coming back renews only what may be renewed");
    ok(&mut world, put_member(2, None, Some(None)));
    world.join(2);
    assert_eq!(states(&mut world), [ServiceState::Online]);
}
