//! A store that went back: what it may have lost, what it may not, and who is told.

use super::*;

const INBOX: &str = "inbox/s/s1";
const JOBS: &str = "topic/jobs/0";

impl Play {
    /// The store goes back to what it was so long ago; everybody comes back to the broker that has it then.
    pub(super) fn rewind(&mut self, ms: u64) -> &mut Play {
        let copied_at = self.at - ms;
        for slot in 0..4 {
            self.see(Seen::SocketLost(Slot(slot)));
        }
        self.see(Seen::BrokerDown(true)).see(Seen::Rewound { copied_at });
        self.sleep(10).see(Seen::BrokerUp(Vec::new())).sleep(10);
        for slot in 0..4 {
            self.see(Seen::Detached(life(slot))).admit(life(slot), true).attach(life(slot), true);
        }
        self.sleep(10)
    }

    /// The store goes back so far, and as yet only session 0 is back.
    fn rewind_for_the_first(&mut self, ms: u64) -> &mut Play {
        let copied_at = self.at - ms;
        self.see(Seen::SocketLost(Slot(0))).see(Seen::SocketLost(Slot(1))).see(Seen::BrokerDown(true));
        self.see(Seen::Rewound { copied_at }).sleep(10).see(Seen::BrokerUp(Vec::new())).sleep(10);
        self.see(Seen::Detached(life(0))).see(Seen::Detached(life(1)));
        self.admit(life(0), false).attach(life(0), false)
    }

    /// A mail of session 0 is accepted under another id.
    pub(super) fn mail_as(&mut self, id: &str, seq: u64, name: &str) -> &mut Play {
        self.sends(life(0), id, letter(To::Session(Slot(1)), id));
        let outcome = Ok((Spot { id: name.to_owned(), ..spot(INBOX, seq) }, false));
        self.see(Seen::Answered { life: life(0), key: key(0, id), contradicts: false, outcome })
    }

    fn hand_mail_as(&mut self, to: Life, id: &str, seq: u64, name: &str) -> &mut Play {
        let mut handed = handed(Place::Inbox, INBOX, seq, id);
        handed.spot.id = name.to_owned();
        self.see(Seen::Handed(to, handed))
    }

    fn over(&mut self, id: &str, fate: Fate) -> &mut Play {
        self.rest(&[life(0), life(1), life(2), life(3)]).fate(id, fate).see(Seen::Over)
    }
}

#[test]
fn what_was_accepted_after_the_copy_may_be_gone_and_nothing_else() {
    let gone = |before: u64, after: u64| {
        let mut play = Play::full();
        play.mail("a", 1).sleep(before).rewind(after).over("a", Fate::Unknown);
        play
    };
    gone(100, 100).holds();
    gone(100, 50).breaks(&["lost"]);
    let mut play = Play::full();
    play.sleep(100).rewind(50).mail("a", 1).over("a", Fate::Unknown).breaks(&["lost"]);
}

#[test]
fn what_is_accepted_after_a_rewind_is_handed_over() {
    let mut play = Play::full();
    play.mail("a", 1).hand_mail(life(1), "a", 1).sleep(100).rewind(100).mail("b", 1);
    play.over("b", Fate::Delivered).breaks(&["receipts", "lost"]);
    let mut play = Play::full();
    play.mail("a", 1).hand_mail(life(1), "a", 1).sleep(100).rewind(100).mail("b", 1);
    play.over("b", Fate::Accepted).breaks(&["lost"]);
}

#[test]
fn only_what_a_rewind_may_have_taken_is_accepted_anew() {
    let again = |back: Option<u64>| {
        let mut play = Play::full();
        play.sleep(100).mail("a", 1).hand_mail(life(1), "a", 1).acks(life(1), &Place::Inbox, INBOX, 1);
        play.sleep(100);
        if let Some(ms) = back {
            play.rewind(ms);
        }
        play.mail_as("a", 1, "another");
        play
    };
    again(Some(150)).holds();
    again(Some(50)).breaks(&["doubled", "doubled"]);
    again(None).breaks(&["doubled", "doubled"]);
    // It is another message, which whoever had the first gets, and settles.
    let mut play = again(Some(150));
    play.hand_mail_as(life(1), "a", 1, "another").acks(life(1), &Place::Inbox, INBOX, 1).holds();
    play.hand_mail_as(life(1), "a", 1, "another").breaks(&["doubled"]);
}

#[test]
fn what_was_settled_before_the_copy_stays_settled() {
    let again = |ms: u64| {
        let mut play = Play::full();
        play.sleep(100).mail("a", 1).hand_mail(life(1), "a", 1).acks(life(1), &Place::Inbox, INBOX, 1);
        play.sleep(100).rewind(ms);
        let second = nth(1, 1);
        play.see(Seen::Killed(life(1))).see(Seen::Born(second)).admit(second, false).attach(second, false);
        play.hand_mail(second, "a", 1);
        play
    };
    again(150).holds();
    again(50).breaks(&["doubled"]);
}

#[test]
fn a_process_gets_what_it_has_done_only_once_whatever_the_store_forgot() {
    let mut play = Play::full();
    play.sleep(100).mail("a", 1).hand_mail(life(1), "a", 1).acks(life(1), &Place::Inbox, INBOX, 1);
    play.sleep(100).rewind(50).hand_mail(life(1), "a", 1).breaks(&["doubled"]);
}

#[test]
fn who_has_read_what_is_lost_is_told_so_once() {
    let read = |told: u32, ms: u64| {
        let mut play = Play::full();
        let place = topic(None);
        play.subscribe(life(1), &place, 1).sleep(100).post("a", 1).hand_post(life(1), &place, "a", 1);
        play.acks(life(1), &place, JOBS, 1).sleep(100).rewind(ms);
        (0..told).for_each(|_| _ = play.see(Seen::HistoryRewound(life(1), vec![JOBS.to_owned()])));
        play.see(Seen::Over);
        play
    };
    read(1, 150).holds();
    read(0, 150).breaks(&["rewind"]);
    read(2, 150).breaks(&["rewind"]);
    // What it has read is there.
    read(0, 50).holds();
    let mut play = Play::full();
    play.see(Seen::HistoryRewound(life(1), vec![JOBS.to_owned()])).see(Seen::Over).breaks(&["rewind"]);
}

#[test]
fn who_was_answered_before_the_store_lost_what_it_has_read_is_told_at_its_next_hello() {
    let back_to = |ms: u64| {
        let mut play = Play::full();
        let place = topic(None);
        play.subscribe(life(1), &place, 1).sleep(100).post("a", 1).hand_post(life(1), &place, "a", 1);
        play.acks(life(1), &place, JOBS, 1).sleep(100);
        // The answer to its hello is on its way when the store is wiped.
        play.rewind_for_the_first(ms).admit(life(1), true).see(Seen::SocketLost(Slot(1)));
        play.see(Seen::BrokerDown(true)).see(Seen::Rewound { copied_at: 0 }).attach(life(1), true);
        play.see(Seen::Detached(life(1))).see(Seen::Over);
        play
    };
    back_to(50).holds();
    back_to(150).breaks(&["rewind"]);
}

#[test]
fn a_reader_of_its_own_gets_what_was_sent_after_the_rewind_wherever_it_lies() {
    let posted = |read: bool, handed: bool| {
        let mut play = Play::full();
        let place = topic(None);
        play.subscribe(life(1), &place, 7).sleep(100);
        if read {
            play.post("old", 7).hand_post(life(1), &place, "old", 7).acks(life(1), &place, JOBS, 7);
        }
        play.sleep(1).rewind(50);
        if read {
            play.see(Seen::HistoryRewound(life(1), vec![JOBS.to_owned()]));
        }
        play.post("a", 3);
        if handed {
            play.hand_post(life(1), &place, "a", 3).acks(life(1), &place, JOBS, 3);
        }
        play.history(&[(3, "a")]).over("a", Fate::Accepted);
        play
    };
    posted(true, true).holds();
    posted(true, false).breaks(&["lost"]);
    // Who has read nothing cannot know that its place is another one.
    posted(false, false).holds();
}

#[test]
fn what_was_gone_when_the_store_was_copied_is_not_told_twice() {
    let gap_told = |copied_before: u64| {
        let mut play = Play::full();
        let place = topic(None);
        play.see(Seen::Forgets { after_ms: 60_000, unread: false });
        play.subscribe(life(1), &place, 1).post("a", 1).sleep(30_000);
        play.see(Seen::Gap(life(1), place, Some(0), (1, 1))).sleep(1).rewind(copied_before);
        play.see(Seen::HistoryRewound(life(1), vec![JOBS.to_owned()]));
        play.over("a", Fate::Accepted);
        play
    };
    gap_told(5_000).holds();
    gap_told(20_000).breaks(&["lost"]);
}

#[test]
fn only_a_move_that_a_rewind_may_have_undone_is_made_again() {
    let moved = |back: Option<u64>| {
        let mut play = Play::full();
        let mail = Letter { fallback: Fallback::Member, ..letter(To::Session(Slot(1)), "a") };
        play.sends(life(0), "a", mail).accepted(life(0), "a", spot(INBOX, 1), false).sleep(100);
        play.see(Seen::Handed(life(0), handed(Place::MemberInbox, "inbox/m/m0", 3, "a"))).sleep(100);
        if let Some(ms) = back {
            play.rewind(ms);
        }
        play.see(Seen::Handed(life(0), handed(Place::MemberInbox, "inbox/m/m0", 2, "a")));
        play
    };
    moved(Some(150)).holds();
    moved(Some(50)).breaks(&["doubled"]);
    moved(None).breaks(&["doubled"]);
}

#[test]
fn what_was_buried_after_the_copy_may_come_as_a_later_attempt() {
    let again = |ms: u64, verb: Verb, attempt: u32| {
        let (mut play, crew) = (Play::full(), topic(Some("crew")));
        play.subscribe(life(1), &crew, 1).post("a", 1).hand_post(life(1), &crew, "a", 1).sleep(100);
        play.settles(life(1), &crew, JOBS, 1, verb).settled(life(1), &crew, JOBS, 1, verb, Settled::Yes);
        play.sleep(100).rewind(ms);
        play.see(Seen::Handed(life(1), Handed { attempt, ..handed(crew.clone(), JOBS, 1, "a") }));
        play
    };
    again(150, Verb::Dead, 2).holds();
    again(150, Verb::Dead, 1).breaks(&["doubled"]);
    again(150, Verb::Ack, 2).breaks(&["doubled"]);
    again(50, Verb::Dead, 2).breaks(&["doubled"]);
}

#[test]
fn what_was_buried_and_brought_back_twice_may_come_as_any_but_the_first_attempt() {
    let again = |rewinds: usize, attempt: u32| {
        let (mut play, crew) = (Play::full(), topic(Some("crew")));
        let second = Handed { attempt: 2, ..handed(crew.clone(), JOBS, 1, "a") };
        play.subscribe(life(1), &crew, 1).post("a", 1).hand_post(life(1), &crew, "a", 1).sleep(100);
        play.settles(life(1), &crew, JOBS, 1, Verb::Retry(0));
        play.settled(life(1), &crew, JOBS, 1, Verb::Retry(0), Settled::Yes);
        play.see(Seen::Handed(life(1), second.clone())).sleep(100);
        play.settles(life(1), &crew, JOBS, 1, Verb::Dead).settled(
            life(1),
            &crew,
            JOBS,
            1,
            Verb::Dead,
            Settled::Yes,
        );
        // Each to the same copy, from before it was buried.
        for rewind in 0..rewinds {
            play.sleep(100).rewind(150 + 100 * rewind as u64);
        }
        play.see(Seen::Handed(life(1), Handed { attempt, ..second }));
        play
    };
    again(2, 2).holds();
    again(1, 2).breaks(&["doubled"]);
    again(2, 1).breaks(&["doubled"]);
}

#[test]
fn what_was_refused_after_the_store_went_back_may_be_in_an_earlier_history() {
    let refused = |rewound: bool| {
        let mut play = Play::full();
        play.sends(life(0), "a", letter(To::Session(Slot(1)), "a")).sleep(100);
        if rewound {
            play.see(Seen::Rewound { copied_at: 0 });
        }
        play.refused(life(0), "a", "bad_request").hand_mail(life(1), "a", 1);
        play
    };
    refused(true).holds();
    refused(false).breaks(&["ghost"]);
}

#[test]
fn what_was_pruned_before_a_return_is_not_lost_by_the_next_one() {
    let pruned = |told: bool| {
        let (mut play, own) = (Play::full(), topic(None));
        play.see(Seen::Forgets { after_ms: 5_000, unread: true });
        play.subscribe(life(1), &own, 1).post("a", 1).hand_post(life(1), &own, "a", 1).acks(
            life(1),
            &own,
            JOBS,
            1,
        );
        play.sleep(10).rewind(5).post("b", 2).post("c", 3);
        if told {
            play.see(Seen::HistoryRewound(life(1), vec![JOBS.to_owned()]));
        }
        play.hand_post(life(1), &own, "b", 2).acks(life(1), &own, JOBS, 2).post("d", 4).sleep(10).rewind(5);
        play.history(&[(1, "a"), (2, "b"), (3, "c"), (4, "d")]);
        play.hand_post(life(1), &own, "d", 4).acks(life(1), &own, JOBS, 4).over("c", Fate::Accepted);
        play
    };
    pruned(true).holds();
    pruned(false).breaks(&["lost"]);
}

#[test]
fn who_could_not_read_again_before_it_was_away_once_more_may_miss_what_was_pruned_by_then() {
    let away = |read: bool| {
        let (mut play, own) = (Play::full(), topic(None));
        play.see(Seen::Forgets { after_ms: 5_000, unread: true });
        play.subscribe(life(1), &own, 1).post("a", 1).hand_post(life(1), &own, "a", 1);
        play.acks(life(1), &own, JOBS, 1).sleep(10).rewind(5);
        play.see(Seen::HistoryRewound(life(1), vec![JOBS.to_owned()])).post("b", 2);
        if read {
            play.hand_post(life(1), &own, "b", 2).acks(life(1), &own, JOBS, 2);
        }
        play.see(Seen::SocketLost(Slot(1))).see(Seen::Detached(life(1))).sleep(1_000).post("c", 3);
        play.sleep(100_000).admit(life(1), true).attach(life(1), true).sleep(10);
        play.history(&[(2, "b"), (3, "c")]).over("c", Fate::Accepted);
        play
    };
    away(false).holds();
    away(true).breaks(&["lost"]);
}

#[test]
fn who_did_not_hear_that_its_lease_is_a_new_one_may_miss_what_was_pruned() {
    let back = |unheard: bool| {
        let (mut play, own) = (Play::full(), topic(None));
        play.see(Seen::Forgets { after_ms: 5_000, unread: true });
        play.subscribe(life(1), &own, 1).post("a", 1).hand_post(life(1), &own, "a", 1);
        play.acks(life(1), &own, JOBS, 1).sleep(10).rewind_for_the_first(5).post("b", 2).sleep(1_000);
        if unheard {
            play.sleep(100_000).admit(life(1), true).see(Seen::SocketLost(Slot(1))).sleep(1_000);
        }
        play.admit(life(1), false).attach(life(1), false);
        play.see(Seen::HistoryRewound(life(1), vec![JOBS.to_owned()])).sleep(10);
        play.history(&[(1, "a"), (2, "b")]).rest(&[life(0), life(1)]).fate("b", Fate::Accepted);
        play.see(Seen::Over);
        play
    };
    back(true).holds();
    back(false).breaks(&["lost"]);
}

#[test]
fn who_lost_its_session_to_another_process_meanwhile_may_miss_what_was_pruned() {
    let back = |twin: bool| {
        let (mut play, own, other) = (Play::full(), topic(None), nth(1, 1));
        play.see(Seen::Forgets { after_ms: 5_000, unread: true });
        play.subscribe(life(1), &own, 1).post("a", 1).hand_post(life(1), &own, "a", 1);
        play.acks(life(1), &own, JOBS, 1).sleep(10).rewind_for_the_first(5);
        if twin {
            play.see(Seen::Born(other)).admit(other, false).attach(other, false).sleep(1);
        }
        play.post("b", 2).sleep(1_000);
        if twin {
            play.see(Seen::Killed(other)).see(Seen::SocketLost(Slot(1)));
        }
        play.admit(life(1), false).attach(life(1), false);
        play.see(Seen::HistoryRewound(life(1), vec![JOBS.to_owned()])).sleep(10);
        play.history(&[(1, "a"), (2, "b")]).rest(&[life(0), life(1)]).fate("b", Fate::Accepted);
        play.see(Seen::Over);
        play
    };
    back(true).holds();
    back(false).breaks(&["lost"]);
}

#[test]
fn nobody_is_told_by_a_place_whose_entry_has_expired() {
    let back = |ttl_ms: Option<u64>| {
        let (mut play, own) = (Play::full(), topic(None));
        play.subscribe(life(1), &own, 1).sleep(100).post("a", 1).hand_post(life(1), &own, "a", 1);
        play.acks(life(1), &own, JOBS, 1).sleep(100).rewind_for_the_first(150);
        let post = Letter { ttl_ms, ..letter(To::Topic("jobs".into()), "b") };
        play.sends(life(0), "b", post).accepted(life(0), "b", spot(JOBS, 1), false).sleep(1_000);
        play.admit(life(1), false).attach(life(1), false).sleep(10).see(Seen::Over);
        play.oracle.violations().iter().any(|violation| violation.rule == "rewind")
    };
    assert!(!back(Some(500)));
    assert!(back(None));
}
