//! What applications have in hand.

use super::*;

const INBOX: &str = "inbox/s/s1";
const JOBS: &str = "topic/jobs/0";

#[test]
fn what_is_in_hand_is_not_handed_out_again() {
    let mut play = Play::full();
    play.mail("a", 1).hand_mail(life(1), "a", 1).hand_mail(life(1), "a", 1);
    play.breaks(&["doubled"]);
    // Its lease is a new one: what it had in hand is not its any more.
    let mut play = Play::full();
    play.mail("a", 1).hand_mail(life(1), "a", 1).see(Seen::SocketLost(Slot(1))).sleep(100_000);
    play.admit(life(1), true).attach(life(1), true).hand_mail(life(1), "a", 1);
    play.holds();
}

#[test]
fn another_process_may_take_what_is_in_hand_although_nothing_answers_it() {
    let knocked_by = |who: Life| {
        let mut play = Play::full();
        play.mail("a", 1).hand_mail(life(1), "a", 1).see(Seen::SocketLost(Slot(1)));
        play.see(Seen::Knocks(who, 0)).sleep(10).admit(life(1), false).attach(life(1), false);
        play.hand_mail(life(1), "a", 1);
        play
    };
    knocked_by(nth(1, 1)).holds();
    knocked_by(life(1)).breaks(&["doubled"]);
}

#[test]
fn what_is_acked_is_not_handed_out_again() {
    let mut play = Play::full();
    play.mail("a", 1).hand_mail(life(1), "a", 1);
    play.settles(life(1), &Place::Inbox, INBOX, 1, Verb::Ack).hand_mail(life(1), "a", 1);
    play.breaks(&["doubled"]);
    let mut play = Play::full();
    play.mail("a", 1).hand_mail(life(1), "a", 1);
    play.settles(life(1), &Place::Inbox, INBOX, 1, Verb::Retry(0)).hand_mail(life(1), "a", 1);
    play.holds();
    // A late ack that did not count.
    play.settled(life(1), &Place::Inbox, INBOX, 1, Verb::Retry(0), Settled::Yes);
    play.settles(life(1), &Place::Inbox, INBOX, 1, Verb::Ack);
    play.settled(life(1), &Place::Inbox, INBOX, 1, Verb::Ack, Settled::Stale("requeued".into()));
    play.hand_mail(life(1), "a", 1);
    play.holds();
}

#[test]
fn what_is_settled_stays_settled_for_everybody() {
    let again = |outcome: Option<Settled>, current: bool| {
        let mut play = Play::full();
        play.mail("a", 1).hand_mail(life(1), "a", 1);
        play.settles(life(1), &Place::Inbox, INBOX, 1, Verb::Ack);
        if let Some(outcome) = outcome {
            play.settled(life(1), &Place::Inbox, INBOX, 1, Verb::Ack, outcome);
        }
        play.vanish(life(1)).sleep(100).see(Seen::Born(nth(1, 1))).admit(nth(1, 1), false);
        play.attach(nth(1, 1), false);
        if !current {
            play.see(Seen::SocketLost(Slot(1)));
        }
        play.hand_mail(nth(1, 1), "a", 1);
        play
    };
    again(Some(Settled::Yes), true).breaks(&["doubled"]);
    // Nobody was told that it counted.
    again(None, true).holds();
    // An old socket may still hold it.
    again(Some(Settled::Yes), false).holds();
}

#[test]
fn a_private_reader_that_begins_anew_gets_everything_anew() {
    let mut play = Play::full();
    let place = topic(None);
    play.post("a", 1).subscribe(life(1), &place, 1).hand_post(life(1), &place, "a", 1);
    play.acks(life(1), &place, JOBS, 1).see(Seen::Unsubscribes(life(1), place.clone()));
    play.see(Seen::SubEnded(life(1), place.clone(), "unsubscribed".into()));
    play.subscribe(life(1), &place, 1).hand_post(life(1), &place, "a", 1);
    play.holds();
    play.acks(life(1), &place, JOBS, 1).hand_post(life(1), &place, "a", 1);
    play.breaks(&["doubled"]);
}

/// Session 1 of a crew has an entry in hand; session 2 gets it after `meanwhile`.
fn stolen(meanwhile: impl Fn(&mut Play)) -> Play {
    let crew = topic(Some("crew"));
    let mut play = Play::full();
    play.subscribe(life(1), &crew, 1).subscribe(life(2), &crew, 1);
    play.post("a", 1).hand_post(life(1), &crew, "a", 1);
    meanwhile(&mut play);
    let mut again = handed(crew, JOBS, 1, "a");
    (again.attempt, again.redelivered) = (2, true);
    play.see(Seen::Handed(life(2), again));
    play
}

#[test]
fn nobody_gets_what_is_in_anothers_hand() {
    let crew = topic(Some("crew"));
    stolen(|play| _ = play.pass(1_000)).breaks(&["stolen"]);
    stolen(|play| _ = play.settles(life(1), &crew, JOBS, 1, Verb::Retry(0))).holds();
    stolen(|play| _ = play.pass(600_000)).holds();
    stolen(|play| {
        play.pass(500_000).settles(life(1), &crew, JOBS, 1, Verb::Progress);
        play.settled(life(1), &crew, JOBS, 1, Verb::Progress, Settled::Yes).pass(500_000);
    })
    .breaks(&["stolen"]);
    stolen(|play| _ = play.see(Seen::Unsubscribes(life(1), crew.clone()))).holds();
    stolen(|play| _ = play.see(Seen::Bye(life(1)))).holds();
}

#[test]
fn crews_wait_for_who_lost_its_socket() {
    stolen(|play| _ = play.see(Seen::SocketLost(Slot(1))).sleep(4_000)).breaks(&["stolen"]);
    stolen(|play| _ = play.see(Seen::SocketLost(Slot(1))).sleep(5_000)).holds();
    // It came back too late, and is not told.
    stolen(|play| {
        play.see(Seen::SocketLost(Slot(1))).sleep(6_000).admit(life(1), false).attach(life(1), false);
    })
    .holds();
    stolen(|play| _ = play.vanish(life(1)).sleep(10).admit(nth(1, 1), false)).holds();
}

#[test]
fn crews_wait_longer_after_a_start() {
    let restart = |play: &mut Play| {
        play.pass(30_000).see(Seen::BrokerDown(false)).sleep(1_000).see(Seen::BrokerUp(Vec::new()));
        play.admit(life(2), false).attach(life(2), false);
    };
    stolen(|play| {
        restart(play);
        play.sleep(29_000);
    })
    .breaks(&["stolen"]);
    stolen(|play| {
        restart(play);
        play.sleep(30_000);
    })
    .holds();
    // Its hello was taken, and its socket broke before the disk had let the answer go.
    let knocked = |ms: u64| {
        stolen(move |play| {
            restart(play);
            play.see(Seen::Knocks(life(1), 7)).sleep(ms);
        })
    };
    knocked(4_000).breaks(&["stolen"]);
    knocked(5_000).holds();
}

#[test]
fn members_of_a_person_compete_for_as_long_as_a_lease() {
    let stolen = |meanwhile: &dyn Fn(&mut Play)| {
        let mut play = Play::full();
        play.sends(life(2), "a", letter(To::Member(member(0)), "a"));
        play.accepted(life(2), "a", spot("inbox/m/m0", 1), false);
        let mut it = handed(Place::MemberInbox, "inbox/m/m0", 1, "a");
        (it.key, it.from) = (key(2, "a"), Slot(2));
        play.see(Seen::Handed(life(0), it.clone()));
        meanwhile(&mut play);
        it.attempt = 2;
        play.see(Seen::Handed(life(1), it));
        play
    };
    stolen(&|play| {
        _ = play.see(Seen::SocketLost(Slot(0))).sleep(60_000).admit(life(1), false).attach(life(1), false)
    })
    .breaks(&["stolen"]);
    stolen(&|play| {
        _ = play.see(Seen::SocketLost(Slot(0))).sleep(90_000).admit(life(1), true).attach(life(1), true)
    })
    .holds();
}

#[test]
fn nobody_has_more_in_hand_than_it_may() {
    let crew = topic(Some("crew"));
    let mut play = Play::full();
    play.subscribe(life(1), &crew, 1).post("a", 1).post("b", 2).post("c", 3);
    play.hand_post(life(1), &crew, "a", 1).hand_post(life(1), &crew, "b", 2);
    play.holds();
    play.hand_post(life(1), &crew, "c", 3);
    play.breaks(&["credit"]);
    let mut play = Play::full();
    play.subscribe(life(1), &crew, 1).post("a", 1).post("b", 2).post("c", 3);
    play.hand_post(life(1), &crew, "a", 1).hand_post(life(1), &crew, "b", 2);
    play.settles(life(1), &crew, JOBS, 1, Verb::Ack).hand_post(life(1), &crew, "c", 3);
    play.holds();
}

#[test]
fn first_deliveries_come_in_order() {
    let second = |change: &dyn Fn(&mut Handed)| {
        let mut play = Play::full();
        play.mail("a", 1).mail("b", 2).hand_mail(life(1), "b", 2);
        let mut it = handed(Place::Inbox, INBOX, 1, "a");
        change(&mut it);
        play.see(Seen::Handed(life(1), it));
        play
    };
    second(&|_| {}).breaks(&["order"]);
    second(&|it| it.attempt = 2).breaks(&["attempts"]);
    let mut play = Play::full();
    play.mail("a", 1).mail("b", 2).hand_mail(life(1), "a", 1);
    play.settles(life(1), &Place::Inbox, INBOX, 1, Verb::Retry(0));
    play.hand_mail(life(1), "b", 2).hand_mail(life(1), "a", 1);
    play.holds();
}

#[test]
fn what_an_auto_reader_missed_may_come_after_a_crash_behind_what_was_on_its_way() {
    let crashed = |crash: bool| {
        let (mut play, topic) = (Play::full(), "jobs".to_owned());
        let own = Place::Topic { topic, group: None, partition: None, auto: true, prefetch: 2 };
        play.subscribe(life(1), &own, 1).post("a", 1).post("b", 2);
        if crash {
            play.see(Seen::BrokerDown(false));
        }
        play.hand_post(life(1), &own, "b", 2);
        if crash {
            play.see(Seen::BrokerUp(Vec::new())).see(Seen::Detached(life(1)));
        }
        play.admit(life(1), false).attach(life(1), false).hand_post(life(1), &own, "a", 1);
        play
    };
    crashed(true).holds();
    crashed(false).breaks(&["order"]);
}

#[test]
fn what_came_back_goes_before_what_is_newer() {
    let newer = |settled: bool, retry: u64| {
        let mut play = Play::full();
        play.mail("a", 1).hand_mail(life(1), "a", 1);
        play.settles(life(1), &Place::Inbox, INBOX, 1, Verb::Retry(retry));
        if settled {
            play.settled(life(1), &Place::Inbox, INBOX, 1, Verb::Retry(retry), Settled::Yes);
        }
        play.pass(1).mail("b", 2).hand_mail(life(1), "b", 2);
        play
    };
    newer(true, 0).breaks(&["order"]);
    newer(false, 0).holds();
    newer(true, 500).holds();
    let mut play = Play::full();
    play.mail("a", 1).hand_mail(life(1), "a", 1).mail("b", 2);
    play.settles(life(1), &Place::Inbox, INBOX, 1, Verb::Retry(0)).pass(1);
    play.settled(life(1), &Place::Inbox, INBOX, 1, Verb::Retry(0), Settled::Yes);
    play.hand_mail(life(1), "b", 2);
    play.holds();
}

#[test]
fn what_another_process_may_have_put_off_or_settled_is_not_waited_for() {
    let put_off = |answered: Option<Settled>| {
        let mut play = Play::full();
        let retry = Verb::Retry(2_000);
        play.mail("a", 1).hand_mail(life(1), "a", 1);
        play.settles(life(1), &Place::Inbox, INBOX, 1, retry);
        play.see(Seen::Born(nth(1, 1))).admit(nth(1, 1), false).attach(nth(1, 1), false);
        play.hand_mail(nth(1, 1), "a", 1);
        play.settles(nth(1, 1), &Place::Inbox, INBOX, 1, Verb::Retry(0));
        play.settled(nth(1, 1), &Place::Inbox, INBOX, 1, Verb::Retry(0), Settled::Yes);
        if let Some(outcome) = answered {
            play.settled(life(1), &Place::Inbox, INBOX, 1, retry, outcome);
        }
        play.pass(1).mail("b", 2).hand_mail(nth(1, 1), "b", 2);
        play
    };
    put_off(None).holds();
    put_off(Some(Settled::Over)).holds();
    put_off(Some(Settled::Yes)).holds();
    put_off(Some(Settled::Stale("requeued".into()))).breaks(&["order"]);
}

#[test]
fn what_a_process_still_has_in_hand_does_not_come_first() {
    let given_back = |asleep: bool| {
        let mut play = Play::full();
        let (old, new) = (life(1), nth(1, 1));
        play.mail("a", 1);
        if asleep {
            play.hand_mail(old, "a", 1);
        }
        play.see(Seen::Born(new)).admit(new, false).attach(new, false).hand_mail(new, "a", 1);
        play.settles(new, &Place::Inbox, INBOX, 1, Verb::Retry(0));
        play.settled(new, &Place::Inbox, INBOX, 1, Verb::Retry(0), Settled::Yes);
        play.pass(1).mail("b", 2).admit(old, false).attach(old, false).hand_mail(old, "b", 2);
        play
    };
    given_back(true).holds();
    given_back(false).breaks(&["order"]);
}

#[test]
fn a_late_word_of_an_earlier_hand_out_says_nothing_of_the_next() {
    let (mut play, crew) = (Play::full(), topic(Some("crew")));
    let stale = || Settled::Stale("requeued".into());
    play.subscribe(life(1), &crew, 1).post("a", 1).hand_post(life(1), &crew, "a", 1);
    play.settles(life(1), &crew, JOBS, 1, Verb::Progress).settles(life(1), &crew, JOBS, 1, Verb::Retry(0));
    play.hand_post(life(1), &crew, "a", 1).settles(life(1), &crew, JOBS, 1, Verb::Progress);
    play.settled(life(1), &crew, JOBS, 1, Verb::Progress, stale());
    play.settles(life(1), &crew, JOBS, 1, Verb::Ack);
    play.settled(life(1), &crew, JOBS, 1, Verb::Retry(0), stale());
    play.settled(life(1), &crew, JOBS, 1, Verb::Progress, Settled::Yes);
    play.settled(life(1), &crew, JOBS, 1, Verb::Ack, Settled::Yes);
    play.sleep(20_000).history(&[(1, "a")]).rest(&[life(0), life(1)]).see(Seen::Over);
    play.holds();
}

#[test]
fn what_nobody_had_is_a_first_attempt() {
    let mut play = Play::full();
    let mut it = handed(Place::Inbox, INBOX, 1, "a");
    it.attempt = 2;
    play.mail("a", 1).see(Seen::Handed(life(1), it.clone()));
    play.breaks(&["attempts"]);
    // The end of a lease gives back what was never read.
    let mut play = Play::full();
    play.mail("a", 1).see(Seen::SocketLost(Slot(1))).sleep(90_000).admit(life(1), true);
    play.attach(life(1), true).see(Seen::Handed(life(1), it));
    play.holds();
}

#[test]
fn delays_and_expiry() {
    let mut post = letter(To::Session(Slot(1)), "a");
    (post.delay_ms, post.ttl_ms) = (Some(5_000), Some(60_000));
    let timed = |wait: u64, fresh: bool, jumped: bool| {
        let mut play = Play::full();
        if jumped {
            play.see(Seen::BrokerClockOff(true));
        }
        play.sends(life(0), "a", post.clone()).accepted(life(0), "a", spot(INBOX, 1), false).pass(wait);
        if fresh {
            play.admit(life(1), false).attach(life(1), false).pass(1);
        }
        play.hand_mail(life(1), "a", 1);
        play
    };
    timed(4_000, false, false).breaks(&["early"]);
    timed(4_000, false, true).holds();
    timed(5_000, false, false).holds();
    timed(80_000, true, false).breaks(&["late"]);
    timed(80_000, true, true).holds();
    // It may have lain in its socket.
    timed(80_000, false, false).holds();
}

#[test]
fn what_a_sleeping_process_still_reads_is_not_late_because_another_came_in() {
    let woken = |by: Life| {
        let mut post = letter(To::Session(Slot(1)), "a");
        post.ttl_ms = Some(60_000);
        let mut play = Play::full();
        play.sends(life(0), "a", post).accepted(life(0), "a", spot(INBOX, 1), false);
        play.admit(life(1), false).pass(80_000).admit(by, false);
        play.attach(life(1), false).pass(1).hand_mail(life(1), "a", 1);
        play
    };
    woken(nth(1, 1)).holds();
    woken(life(1)).breaks(&["late"]);
}

#[test]
fn who_is_working_is_left_alone() {
    let working = |before: bool, asked: bool| {
        let mut play = Play::full();
        play.pass(1).see(Seen::Status(life(1), Status::Working));
        if before {
            play.mail("a", 1);
        }
        play.pass(1).see(Seen::StatusTaken(life(1), Status::Working)).pass(1);
        if !before {
            play.mail("a", 1);
        }
        if asked {
            play.see(Seen::Status(life(1), Status::Idle));
        }
        play.hand_mail(life(1), "a", 1);
        play
    };
    working(false, false).breaks(&["status"]);
    working(true, false).holds();
    working(false, true).holds();
}

#[test]
fn an_earlier_hand_out_comes_through_an_older_socket() {
    let crew = topic(Some("crew"));
    let late = |settled: bool, anew: bool| {
        let mut play = Play::full();
        play.subscribe(life(1), &crew, 1).subscribe(life(2), &crew, 1).post("a", 1);
        play.see(Seen::Handed(life(1), Handed { attempt: 2, ..handed(crew.clone(), JOBS, 1, "a") }));
        if settled {
            play.acks(life(1), &crew, JOBS, 1);
        }
        play.sleep(10);
        if anew {
            play.admit(life(2), false).attach(life(2), false);
        }
        play.hand_post(life(2), &crew, "a", 1);
        play
    };
    late(false, false).holds();
    late(true, false).holds();
    late(false, true).breaks(&["stolen"]);
    late(true, true).breaks(&["doubled"]);
}
