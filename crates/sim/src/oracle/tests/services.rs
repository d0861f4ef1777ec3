//! A name has one holder, and is gone when that gave it up or its lease ended.

use super::*;

fn judged(play: &mut Play, slot: u8, verdict: Result<(), &str>) {
    play.see(Seen::OfferJudged(life(slot), "db".into(), verdict.map_err(str::to_owned)));
}

fn offered(slot: u8) -> Play {
    let mut play = Play::full();
    play.see(Seen::Offers(life(slot), "db".into()));
    judged(&mut play, slot, Ok(()));
    play
}

fn told(play: &mut Play, kind: &'static str, slot: u8, seq: u64) {
    let (session, versions) = (format!("s{slot}"), (seq - 1, seq));
    play.see(Seen::Service { life: life(3), seq, kind, name: "db".into(), session, versions });
}

#[test]
fn two_holders_are_one_too_many() {
    let mut play = offered(0);
    judged(&mut play, 1, Err("name_taken"));
    play.holds();
    judged(&mut play, 1, Ok(()));
    play.breaks(&["service"]);

    let mut play = offered(0);
    play.see(Seen::Withdraws(life(0), "db".into()));
    judged(&mut play, 1, Ok(()));
    play.holds();

    let mut play = offered(0);
    play.vanish(life(0)).sleep(120_000);
    judged(&mut play, 1, Ok(()));
    play.holds();
}

#[test]
fn what_one_process_has_given_up_another_of_its_session_may_lose() {
    let twin = |gave_up: bool| {
        let (first, second) = (life(0), nth(0, 1));
        let mut play = offered(0);
        play.see(Seen::Detached(first)).see(Seen::SocketLost(Slot(0)));
        if gave_up {
            play.see(Seen::Withdraws(first, "db".into()));
        }
        // Another process is told that it has the name; then the first is back, and gives it up.
        play.see(Seen::Born(second)).admit(second, false).attach(second, false).sleep(1);
        play.see(Seen::Offers(second, "db".into())).see(Seen::OfferJudged(second, "db".into(), Ok(())));
        play.see(Seen::Ended(second, "replaced".into())).admit(first, false).attach(first, false).sleep(1);
        judged(&mut play, 1, Ok(()));
        play
    };
    twin(true).holds();
    twin(false).breaks(&["service"]);
}

#[test]
fn a_name_is_given_up_again_by_who_was_not_answered() {
    let twin = |offers: bool, back: bool| {
        let (first, second) = (life(0), nth(0, 1));
        let mut play = offered(0);
        told(&mut play, "online", 0, 1);
        play.see(Seen::Withdraws(first, "db".into()));
        told(&mut play, "gone", 0, 2);
        // The answer is lost. Another process has the name meanwhile; then the first is back, and gives it up again.
        play.see(Seen::Detached(first)).see(Seen::SocketLost(Slot(0))).see(Seen::Born(second));
        if offers {
            play.see(Seen::Offers(second, "db".into()));
        }
        play.admit(second, false).attach(second, false).sleep(1);
        told(&mut play, "online", 0, 3);
        if back {
            play.see(Seen::Ended(second, "replaced".into()))
                .admit(first, false)
                .attach(first, false)
                .sleep(1);
        }
        told(&mut play, "gone", 0, 4);
        play
    };
    twin(true, true).holds();
    twin(true, false).breaks(&["service"]);
    twin(false, true).breaks(&["service"]);

    // Once for each time that another process may have taken it.
    let mut play = twin(true, true);
    told(&mut play, "gone", 0, 5);
    play.breaks(&["service"]);
}

#[test]
fn what_was_given_up_before_another_process_was_told_it_has_it_is_given_up_by_who_is_back() {
    let killed = |back: bool| {
        let (first, second) = (life(0), nth(0, 1));
        let mut play = offered(0);
        play.see(Seen::Detached(first)).see(Seen::SocketLost(Slot(0))).see(Seen::Born(second));
        play.see(Seen::Offers(second, "db".into())).admit(second, false).attach(second, false).sleep(1);
        play.see(Seen::Withdraws(first, "db".into())).sleep(1);
        play.see(Seen::OfferJudged(second, "db".into(), Ok(()))).see(Seen::Ended(second, "replaced".into()));
        if back {
            play.admit(first, false).attach(first, false).sleep(1);
        }
        // What it said is on its way when it is killed.
        play.see(Seen::Killed(first)).sleep(1);
        judged(&mut play, 1, Ok(()));
        play
    };
    killed(true).holds();
    killed(false).breaks(&["service"]);
}

#[test]
fn a_name_does_not_go_while_its_lease_lives() {
    let mut play = offered(0);
    told(&mut play, "online", 0, 1);
    play.vanish(life(0)).sleep(20_000);
    told(&mut play, "stale", 0, 2);
    play.holds();
    told(&mut play, "gone", 0, 3);
    play.breaks(&["service"]);

    let mut play = offered(0);
    told(&mut play, "online", 0, 1);
    play.vanish(life(0)).sleep(120_000);
    told(&mut play, "gone", 0, 2);
    play.holds();

    let mut play = offered(0);
    play.see(Seen::Withdraws(life(0), "db".into()));
    told(&mut play, "gone", 0, 1);
    play.holds();
    told(&mut play, "gone", 0, 2);
    play.breaks(&["service"]);
}

#[test]
fn a_legal_name_is_not_refused_for_good() {
    let mut play = Play::full();
    play.see(Seen::Offers(life(0), "db".into()));
    judged(&mut play, 0, Err("name_rejected"));
    play.breaks(&["service"]);
}

#[test]
fn in_the_end_a_name_is_with_somebody_who_is_here_and_wants_it() {
    let rest = |play: &mut Play, alive: Vec<Life>, found: Vec<(&str, &str, bool)>| {
        play.see(Seen::Rest { quiet: true, waiting: Vec::new(), alive });
        let found = found.into_iter().map(|(name, session, on)| (name.into(), session.into(), on)).collect();
        play.see(Seen::Services(life(3), found));
    };
    let mut play = offered(0);
    rest(&mut play, vec![life(0), life(3)], vec![("db", "s0", true)]);
    play.holds();

    let mut play = offered(0);
    rest(&mut play, vec![life(0), life(3)], vec![]);
    play.breaks(&["service"]);

    let mut play = offered(0);
    rest(&mut play, vec![life(0), life(3)], vec![("db", "s0", false)]);
    play.breaks(&["service"]);

    let mut play = offered(0);
    play.vanish(life(0)).pass(600_000);
    rest(&mut play, vec![life(3)], vec![("db", "s0", false)]);
    play.breaks(&["service"]);

    let mut play = offered(0);
    play.vanish(life(0)).sleep(10_000);
    rest(&mut play, vec![life(3)], vec![("db", "s0", false)]);
    play.holds();
}

#[test]
fn versions_of_services_rise() {
    let mut play = offered(0);
    told(&mut play, "online", 0, 5);
    told(&mut play, "updated", 0, 6);
    play.holds();
    let (life, session) = (life(3), "s0".to_owned());
    play.see(Seen::Service { life, seq: 7, kind: "updated", name: "db".into(), session, versions: (5, 6) });
    play.breaks(&["stream"]);
}
