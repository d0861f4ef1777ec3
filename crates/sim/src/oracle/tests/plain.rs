//! Rules that need no memory, silence, bans.

use super::*;

#[test]
fn what_must_not_happen_at_all() {
    let mut play = Play::full();
    play.see(Seen::Impostor(Slot(1), false)).see(Seen::Attack("a steal".into(), false));
    play.see(Seen::BrokerUp(Vec::new()));
    play.see(Seen::Census(vec![("ring".into(), 5, 5)]));
    play.see(Seen::States(vec![(Slot(0), "online".into()), (Slot(1), "grace".into())]));
    play.rest(&[]);
    play.holds();
    play.see(Seen::Impostor(Slot(1), true)).see(Seen::Attack("a steal".into(), true));
    play.see(Seen::BrokerUp(vec!["a hole".into()]));
    play.see(Seen::Census(vec![("ring".into(), 6, 5)]));
    play.see(Seen::States(vec![(Slot(0), "online".into()), (Slot(0), "asleep".into())]));
    play.see(Seen::Rest { quiet: false, waiting: vec!["a send".into()], alive: Vec::new() });
    play.breaks(&["impostor", "attack", "check", "bounds", "states", "states", "rest"]);
}

#[test]
fn every_send_is_answered_once() {
    let mut play = Play::full();
    play.mail("a", 1);
    play.accepted(life(0), "a", spot("inbox/s/s1", 1), true);
    play.breaks(&["silence"]);
    let mut play = Play::full();
    play.sends(life(0), "a", letter(To::Session(Slot(1)), "a"));
    play.see(Seen::Over);
    play.breaks(&["silence"]);
    let mut play = Play::full();
    play.sends(life(0), "a", letter(To::Session(Slot(1)), "a"));
    play.vanish(life(0)).see(Seen::Over);
    play.holds();
}

#[test]
fn everything_is_answered_before_the_end() {
    let mut play = Play::full();
    play.sends(life(0), "a", letter(To::Session(Slot(1)), "a"));
    play.subscribe(life(0), &topic(None), 1);
    play.refused(life(0), "a", "lease_expired");
    play.see(Seen::SubEnded(life(0), topic(None), "replaced".into()));
    play.see(Seen::Ended(life(0), "replaced".into()));
    play.holds();
    play.see(Seen::Detached(life(0))).see(Seen::Ended(life(0), "bye".into()));
    play.breaks(&["silence", "silence"]);
    let mut play = Play::full();
    play.sends(life(0), "a", letter(To::Session(Slot(1)), "a"));
    play.subscribe(life(0), &topic(None), 1);
    play.see(Seen::Ended(life(0), "replaced".into()));
    play.breaks(&["silence", "silence"]);
}

#[test]
fn subscriptions_and_settles_are_answered() {
    let mut play = Play::full();
    play.see(Seen::Subscribes(life(1), topic(None), true)).see(Seen::Over);
    play.breaks(&["silence"]);
    let mut play = Play::full();
    play.see(Seen::Subscribes(life(1), topic(None), true));
    play.see(Seen::SubEnded(life(1), topic(None), "disconnected".into())).see(Seen::Over);
    play.holds();
    let mut play = Play::full();
    play.mail("a", 1).hand_mail(life(1), "a", 1);
    play.settles(life(1), &Place::Inbox, "inbox/s/s1", 1, Verb::Ack).see(Seen::Over);
    play.breaks(&["silence"]);
}

#[test]
fn refusals_have_a_code_and_those_that_pass_are_waited_out() {
    let refusal = |code: &str, prepare: &dyn Fn(&mut Play)| {
        let mut play = Play::full();
        play.pass(1).see(Seen::FaultsOver).pass(1);
        prepare(&mut play);
        play.sends(life(0), "a", letter(To::Session(Slot(1)), "a")).refused(life(0), "a", code);
        play
    };
    refusal("no_idea", &|_| {}).breaks(&["code"]);
    refusal("internal", &|_| {}).breaks(&["code"]);
    refusal("lease_expired", &|_| {}).holds();
    refusal("unavailable", &|_| {}).breaks(&["silence"]);
    refusal("unavailable", &|play| _ = play.see(Seen::Detached(life(0)))).holds();
    refusal("unavailable", &|play| _ = play.see(Seen::DiskFull(true))).holds();
}

#[test]
fn who_is_banned_stays_out() {
    let mut play = Play::full();
    play.see(Seen::Banned(Slot(1), true)).sleep(100).admit(life(1), false);
    play.holds();
    play.sleep(5_000).admit(life(1), true);
    play.breaks(&["banned"]);
    let mut play = Play::full();
    play.see(Seen::Banned(Slot(1), true)).sleep(5_000).see(Seen::Banned(Slot(1), false));
    play.admit(life(1), true);
    play.holds();
}
