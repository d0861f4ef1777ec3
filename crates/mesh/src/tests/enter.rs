//! Who may come in beside whom: members, capacity, contests.

use tenure_proto::ErrorCode;
use tenure_proto::MemberKey;
use tenure_proto::hello::LeaseFate;
use tenure_proto::ids::ConnId;

use crate::config::MeshConfig;
use crate::conn::admit::{Admission, TokenVerdict, Voucher};
use crate::effect::Note;
use crate::tests::world::{World, knock, process, session};

#[test]
fn a_token_alone_is_good_only_for_the_living_lease_it_selects() {
    let mut world = World::new();
    let conn = world.join(2);
    world.close(conn, false);
    let resume = Admission { voucher: Voucher::TokenOnly, ..world.resume(conn, 0) };
    let again = world.enter(resume.clone());
    assert_eq!(world.answer(again).lease, LeaseFate::Kept);

    let other = TokenVerdict::Selects("l1-99".parse().unwrap());
    let conn = world.hello(Admission { token: other, ..resume.clone() });
    assert_eq!(world.refusal(conn), (ErrorCode::Unauthorized, "unauthorized", None));
    assert!(world.is_open(again), "and the real session notices nothing");

    world.bye(again);
    let conn = world.hello(resume);
    assert_eq!(world.refusal(conn), (ErrorCode::Unauthorized, "unauthorized", None));
    assert_eq!(world.mesh.sessions(), 0);
}

#[test]
fn a_token_alone_keeps_the_caps_of_the_lease_and_an_attestation_replaces_them() {
    let mut world = World::new();
    let caps = |cap: &str| Some(vec![cap.parse().unwrap()]);
    let conn = world.enter(Admission { voucher: Voucher::Attested(caps("read")), ..knock(2) });
    world.enter(Admission { voucher: Voucher::TokenOnly, ..world.resume(conn, 0) });
    assert_eq!(world.mesh.sessions.lease(&session(2)).unwrap().caps, caps("read"));
    world.enter(Admission { voucher: Voucher::Attested(caps("send")), ..world.resume(conn, 0) });
    assert_eq!(world.mesh.sessions.lease(&session(2)).unwrap().caps, caps("send"));
}

#[test]
fn beside_a_living_lease_the_member_must_be_the_same() {
    let mut world = World::new();
    let conn = world.join(2);
    let stranger = Admission { member: MemberKey([7; 32]), ..knock(2) };
    for online in [true, false] {
        if !online {
            world.close(conn, true);
        }
        let refused = world.hello(stranger.clone());
        assert_eq!(world.refusal(refused), (ErrorCode::Unauthorized, "unauthorized", None));
        let with_token = Admission { member: MemberKey([7; 32]), ..world.resume(conn, 0) };
        let refused = world.hello(with_token);
        assert_eq!(world.refusal(refused), (ErrorCode::Unauthorized, "unauthorized", None));
    }
    world.advance(90_000);
    assert_eq!(world.mesh.sessions(), 0);
    let conn = world.enter(stranger);
    assert_eq!(world.answer(conn).lease, LeaseFate::New, "without one anybody may vouch for it");
}

#[test]
fn a_session_key_that_is_another_members_key_is_refused() {
    let mut world = World::new();
    world.enter(Admission { member: MemberKey([5; 32]), ..knock(1) });
    let conn = world.hello(Admission { member: MemberKey([6; 32]), ..knock(5) });
    assert_eq!(world.refusal(conn), (ErrorCode::Unauthorized, "unauthorized", None));
    world.enter(knock(5));
    assert_eq!(world.mesh.sessions(), 2, "the member's own session may");
}

#[test]
fn a_full_mesh_is_busy_for_the_new_and_open_to_the_old() {
    let mut world = World::with(MeshConfig { max_sessions: 2, ..MeshConfig::default() });
    let (one, two) = (world.join(1), world.join(2));
    world.close(two, false);
    let third = world.hello(knock(3));
    assert_eq!(world.refusal(third), (ErrorCode::Busy, "busy", Some(1_000)));
    assert_eq!(world.mesh.sessions(), 2, "nobody is evicted silently");
    world.enter(world.resume(two, 0));
    world.bye(one);
    world.join(3);
    assert!(world.has_note(|n| matches!(n, Note::HelloRefused { code: "busy", .. })));
}

#[test]
fn a_member_with_as_many_sessions_as_it_may_have_keeps_them_and_gets_no_more() {
    let mut world = World::with(MeshConfig { max_sessions_per_member: 2, ..MeshConfig::default() });
    let of = |n| Admission { member: MemberKey([9; 32]), ..knock(n) };
    let (one, two) = (world.enter(of(1)), world.enter(of(2)));
    world.close(two, false);
    let third = world.hello(of(3));
    assert_eq!(world.refusal(third), (ErrorCode::Busy, "busy", Some(1_000)));
    world.enter(knock(4));
    world.enter(of(2));
    world.bye(one);
    world.enter(of(3));
}

#[test]
fn the_sixth_takeover_by_other_processes_within_half_a_minute_is_contested() {
    let mut world = World::new();
    let (watcher, mut conn) = (world.join(1), world.join(2));
    world.seen(watcher);
    for n in 1..=5 {
        world.advance(1_000);
        let newcomer = world.enter(process(2, &format!("p{n}")));
        assert_eq!(world.closed(conn), Some(("session_replaced", None)));
        conn = newcomer;
    }
    let sixth = world.hello(process(2, "p6"));
    assert_eq!(world.refusal(sixth), (ErrorCode::SessionContested, "session_contested", Some(5_000)));
    assert!(world.is_open(conn), "who is here stays");
    let own = world.enter(process(2, "p5"));
    assert_eq!(world.closed(conn), Some(("session_replaced", None)), "its own process may");
    assert!(world.seen(watcher).is_empty());

    world.advance(25_999);
    let early = world.hello(process(2, "p6"));
    assert_eq!(world.refusal(early).0, ErrorCode::SessionContested);
    world.advance(1);
    world.enter(process(2, "p6"));
    assert_eq!(world.closed(own), Some(("session_replaced", None)), "30 s after the first of them");
}

#[test]
fn the_same_process_may_replace_its_socket_as_often_as_it_likes() {
    let mut world = World::new();
    let mut conn = world.join(2);
    for _ in 0..50 {
        conn = world.enter(world.resume(conn, 0));
    }
    assert_eq!(world.mesh.online(), 1);
}

#[test]
fn coming_back_from_grace_is_no_takeover() {
    let mut world = World::new();
    for n in 0..20 {
        let conn = world.enter(process(2, &format!("p{n}")));
        world.close(conn, true);
    }
    assert_eq!(world.mesh.sessions(), 1);
}

#[test]
fn a_hello_that_its_own_process_has_outrun_changes_nothing() {
    let mut world = World::new();
    let (early, late) = (ConnId(90), ConnId(91));
    world.hello_on(late, process(1, "p"));
    world.hello_on(early, process(1, "p"));
    assert_eq!(world.closed(early), Some(("session_replaced", None)));
    assert_eq!(world.refusal(early).0, ErrorCode::Conflict);
    assert!(world.is_open(late), "the socket that was opened later carries it");
    // Not even when that one is gone: whoever sent it does not listen any more.
    world.close(late, true);
    let early = ConnId(89);
    world.hello_on(early, process(1, "p"));
    assert_eq!(world.closed(early), Some(("session_replaced", None)));
    // Of another process nothing is known.
    let other = ConnId(88);
    world.hello_on(other, process(1, "q"));
    assert!(world.is_open(other));
}
