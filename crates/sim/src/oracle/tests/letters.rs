//! One key, one message, as it was sent, to whom it was sent.

use super::*;

#[test]
fn one_key_has_one_id_and_one_place() {
    let answer = |id: &str, log: &str, seq: u64, duplicate: bool| {
        let mut play = Play::full();
        let mut mail = letter(To::Session(Slot(1)), "a");
        mail.fallback = Fallback::Member;
        play.sends(life(0), "a", mail.clone()).accepted(life(0), "a", spot("inbox/s/s1", 1), false);
        play.sends(life(0), "a", mail);
        let outcome = Ok((Spot { id: id.to_owned(), ..spot(log, seq) }, duplicate));
        play.see(Seen::Answered { life: life(0), key: key(0, "a"), contradicts: false, outcome });
        play
    };
    answer("id of a", "inbox/s/s1", 1, true).holds();
    answer("id of a", "inbox/m/m0", 7, true).holds();
    answer("id of a", "inbox/s/s1", 2, true).breaks(&["doubled"]);
    answer("another", "inbox/s/s1", 1, true).breaks(&["doubled"]);
    answer("id of a", "inbox/s/s1", 1, false).breaks(&["doubled"]);
}

#[test]
fn a_log_holds_a_key_once() {
    let mut play = Play::full();
    play.post("a", 1).history(&[(1, "a")]);
    play.holds();
    play.history(&[(2, "a")]);
    play.breaks(&["doubled"]);
    let mut play = Play::full();
    play.history(&[(1, "never sent")]);
    play.breaks(&["altered"]);
}

#[test]
fn a_message_is_as_it_was_sent() {
    let deliver = |change: &dyn Fn(&mut Handed)| {
        let mut play = Play::full();
        play.mail("a", 1);
        let mut it = handed(Place::Inbox, "inbox/s/s1", 1, "a");
        change(&mut it);
        play.see(Seen::Handed(life(1), it));
        play
    };
    deliver(&|_| {}).holds();
    deliver(&|it| it.body = "something else".into()).breaks(&["altered"]);
    deliver(&|it| it.from = Slot(2)).breaks(&["altered"]);
    deliver(&|it| it.key.id = "b".into()).breaks(&["altered"]);
    deliver(&|it| it.lane = Lane::Now).breaks(&["altered"]);
    deliver(&|it| it.spot.id = "another".into()).breaks(&["doubled"]);
}

#[test]
fn a_message_goes_to_whom_it_was_sent() {
    let mut play = Play::full();
    play.mail("a", 1).see(Seen::Handed(life(2), handed(Place::Inbox, "inbox/s/s2", 1, "a")));
    play.breaks(&["misdelivered", "doubled"]);
    let mut play = Play::full();
    let mut mail = letter(To::Session(Slot(1)), "a");
    mail.fallback = Fallback::Member;
    play.sends(life(0), "a", mail).accepted(life(0), "a", spot("inbox/s/s1", 1), false);
    play.see(Seen::Handed(life(0), handed(Place::MemberInbox, "inbox/m/m0", 3, "a")));
    play.holds();
    play.see(Seen::Handed(life(2), handed(Place::MemberInbox, "inbox/m/m1", 3, "a")));
    play.breaks(&["misdelivered", "doubled"]);
}

#[test]
fn nobody_gets_what_it_does_not_read() {
    let mut play = Play::full();
    play.post("a", 1).post("b", 2).subscribe(life(1), &topic(None), 2);
    play.hand_post(life(1), &topic(None), "b", 2);
    play.holds();
    play.hand_post(life(1), &topic(None), "a", 1);
    play.breaks(&["unasked", "order"]);
    let mut play = Play::full();
    play.post("a", 1).hand_post(life(1), &topic(None), "a", 1);
    play.breaks(&["unasked"]);
}

#[test]
fn a_refused_message_leaves_no_trace() {
    let mut play = Play::full();
    play.sends(life(0), "a", letter(To::Session(Slot(1)), "a")).refused(life(0), "a", "bad_request");
    play.hand_mail(life(1), "a", 1);
    play.breaks(&["ghost"]);
    let mut play = Play::full();
    // What is given up may have been done.
    play.sends(life(0), "a", letter(To::Session(Slot(1)), "a")).refused(life(0), "a", "unavailable");
    play.hand_mail(life(1), "a", 1);
    play.holds();
}

#[test]
fn another_message_under_a_key_is_refused_and_the_same_is_not() {
    let contradict = |play: &mut Play, outcome: Result<(Spot, bool), String>| {
        let (life, key, letter) = (life(0), key(0, "a"), letter(To::Session(Slot(1)), "other"));
        play.see(Seen::Sends { life, key: key.clone(), letter, again: false, contradicts: true });
        play.see(Seen::Answered { life, key, contradicts: true, outcome });
    };
    let yes = || Ok((Spot { id: "id of a".to_owned(), ..spot("inbox/s/s1", 1) }, true));
    let mut play = Play::full();
    play.mail("a", 1);
    contradict(&mut play, Err("idempotency_key_reused".into()));
    play.holds();
    contradict(&mut play, yes());
    play.breaks(&["idempotency"]);
    let mut play = Play::full();
    play.mail("a", 1).sends(life(0), "a", letter(To::Session(Slot(1)), "a"));
    play.refused(life(0), "a", "idempotency_key_reused");
    play.breaks(&["idempotency"]);
    // The first was never accepted: the key was free.
    let mut play = Play::full();
    play.sends(life(0), "a", letter(To::Session(Slot(1)), "a")).refused(life(0), "a", "unavailable");
    contradict(&mut play, yes());
    play.sends(life(0), "a", letter(To::Session(Slot(1)), "a"));
    play.refused(life(0), "a", "idempotency_key_reused");
    play.holds();
}

#[test]
fn who_was_seen_is_known() {
    let mut play = Play::new();
    play.enter(life(0)).sleep(5);
    play.sends(life(0), "a", letter(To::Session(Slot(1)), "a")).refused(life(0), "a", "no_such_session");
    play.holds();
    play.enter(life(1)).sleep(5);
    play.sends(life(0), "b", letter(To::Session(Slot(1)), "b")).refused(life(0), "b", "no_such_session");
    play.breaks(&["refused"]);
    // Another letter under the same key, to somebody whom nobody has seen.
    let mut play = Play::new();
    play.enter(life(0)).enter(life(1)).sleep(5).sends(life(0), "c", letter(To::Session(Slot(1)), "c"));
    let (life, key, letter) = (life(0), key(0, "c"), letter(To::Session(Slot(2)), "other"));
    play.see(Seen::Sends { life, key: key.clone(), letter, again: false, contradicts: true });
    play.see(Seen::Answered { life, key, contradicts: true, outcome: Err("no_such_session".into()) });
    play.holds();
}
