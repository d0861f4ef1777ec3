//! When a lease may end, and what others hear of it.

use super::*;

fn told(play: &mut Play, seq: u64, kind: &'static str, of: u8, versions: (u64, u64)) {
    let session = format!("s{of}");
    play.see(Seen::Presence { life: life(0), seq, kind, session, versions });
}

/// Session 1 is silent for a while, and session 0 hears that it left.
fn left(meanwhile: impl Fn(&mut Play)) -> Play {
    let mut play = Play::full();
    play.attach(life(0), false);
    meanwhile(&mut play);
    told(&mut play, 1, "left", 1, (4, 5));
    play
}

#[test]
fn a_lease_ends_when_its_time_is_over() {
    left(|play| _ = play.sleep(89_000)).breaks(&["presence"]);
    left(|play| _ = play.sleep(90_000)).holds();
    left(|play| _ = play.see(Seen::Bye(life(1)))).holds();
    left(|play| _ = play.see(Seen::Banned(Slot(1), true))).holds();
    left(|play| {
        let numbers = Numbers { lease_ttl_ms: 10_000, ..NUMBERS };
        play.see(Seen::Numbers(numbers)).sleep(10_000);
    })
    .holds();
}

#[test]
fn time_in_which_the_broker_does_not_listen_does_not_count() {
    left(|play| {
        play.see(Seen::Frozen(true)).sleep(200_000).see(Seen::Frozen(false)).sleep(80_000);
    })
    .breaks(&["presence"]);
    // A freeze may cost as much as is tolerated.
    left(|play| {
        play.see(Seen::Frozen(true)).sleep(200_000).see(Seen::Frozen(false)).sleep(85_000);
    })
    .holds();
}

#[test]
fn a_start_gives_a_full_lease() {
    let restart = |play: &mut Play| {
        play.sleep(60_000).see(Seen::BrokerDown(false)).sleep(50_000);
        play.see(Seen::BrokerUp(Vec::new())).sleep(80_000);
    };
    left(restart).breaks(&["presence"]);
    left(|play| {
        restart(play);
        play.sleep(10_000);
    })
    .holds();
    // A second start that nobody came back in gives what was left.
    left(|play| {
        restart(play);
        play.see(Seen::BrokerDown(false)).see(Seen::BrokerUp(Vec::new())).sleep(10_000);
    })
    .holds();
    // That it was there is on disk before it is told so.
    left(|play| {
        play.sleep(15_000).see(Seen::BrokerDown(false)).see(Seen::BrokerUp(Vec::new())).sleep(40_000);
    })
    .breaks(&["presence"]);
}

#[test]
fn a_hello_that_is_answered_was_proof_and_no_other() {
    let late_hello = |socket: u64| {
        left(|play| {
            play.see(Seen::SocketLost(Slot(1))).see(Seen::Knocks(life(1), 7)).sleep(50_000);
            play.see(Seen::Knocks(life(1), socket)).see(Seen::Admitted(life(1), false, 7)).sleep(40_000);
        })
    };
    late_hello(6).holds();
    late_hello(7).breaks(&["presence"]);
}

#[test]
fn a_lease_that_must_have_ended_is_nobodys() {
    let back = |after: u64| {
        let mut play = Play::full();
        play.see(Seen::SocketLost(Slot(1))).sleep(after);
        play.see(Seen::Knocks(life(1), 0)).admit(life(1), false);
        play
    };
    back(120_000).holds();
    back(140_000).breaks(&["presence"]);
}

#[test]
fn a_short_break_makes_no_new_lease() {
    let mut play = Play::full();
    play.see(Seen::SocketLost(Slot(1))).sleep(80_000).admit(life(1), true);
    play.breaks(&["presence"]);
    let mut play = Play::full();
    play.see(Seen::SocketLost(Slot(1))).sleep(90_000).admit(life(1), true);
    play.holds();
}

#[test]
fn one_end_is_one_left() {
    let mut play = left(|play| {
        play.sleep(90_000).admit(life(1), true).sleep(40_000);
    });
    told(&mut play, 2, "joined", 1, (5, 6));
    play.holds();
    told(&mut play, 3, "left", 1, (6, 7));
    play.breaks(&["presence"]);
}

#[test]
fn a_lease_that_began_unseen_may_end() {
    let mut play = left(|play| _ = play.sleep(90_000));
    told(&mut play, 2, "joined", 1, (5, 6));
    play.sleep(90_000);
    told(&mut play, 3, "left", 1, (6, 7));
    play.holds();
}

#[test]
fn joined_and_left_alternate() {
    let mut play = left(|play| _ = play.sleep(90_000));
    told(&mut play, 2, "left", 1, (5, 6));
    play.breaks(&["presence", "presence"]);
    let mut play = Play::full();
    play.attach(life(0), false);
    told(&mut play, 1, "updated", 1, (4, 5));
    play.holds();
    told(&mut play, 2, "joined", 1, (5, 6));
    play.breaks(&["presence"]);
}

#[test]
fn in_the_end_everybody_sees_who_is_here() {
    let present = |gone_for: u64, sessions: &[&str]| {
        let mut play = Play::full();
        play.attach(life(0), false).vanish(life(1));
        if gone_for > 90_000 {
            play.pass(90_000);
            told(&mut play, 1, "left", 1, (4, 5));
        }
        play.pass(gone_for).rest(&[life(0), life(2), life(3)]);
        play.see(Seen::Present(life(0), sessions.iter().map(|s| (*s).to_owned()).collect()));
        play
    };
    present(200_000, &["s0", "s2", "s3"]).holds();
    present(200_000, &["s0", "s1", "s2", "s3"]).breaks(&["presence"]);
    present(50_000, &["s0", "s1", "s2", "s3"]).holds();
    // Events and the list say the same.
    present(200_000, &["s0", "s2"]).breaks(&["presence", "presence"]);
}
