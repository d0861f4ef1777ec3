//! What was accepted is somewhere, and who is there to read it has it.

use super::*;

const INBOX: &str = "inbox/s/s1";
const JOBS: &str = "topic/jobs/0";

fn over(play: &mut Play, alive: &[u8], id: &str, fate: Fate) {
    let alive: Vec<Life> = alive.iter().map(|slot| life(*slot)).collect();
    play.pass(1_000_000).rest(&alive).fate(id, fate).see(Seen::Over);
}

#[test]
fn an_accepted_message_is_known() {
    let mut play = Play::full();
    play.mail("a", 1);
    over(&mut play, &[0, 1], "a", Fate::Unknown);
    play.breaks(&["lost"]);
    // Nobody was told that it was accepted.
    let mut play = Play::full();
    play.sends(life(0), "a", letter(To::Session(Slot(1)), "a")).refused(life(0), "a", "unavailable");
    over(&mut play, &[0, 1], "a", Fate::Unknown);
    play.holds();
}

#[test]
fn who_reads_gets_what_waits() {
    let mut play = Play::full();
    play.mail("a", 1);
    over(&mut play, &[0, 1], "a", Fate::Accepted);
    play.breaks(&["lost"]);
    let mut play = Play::full();
    play.mail("a", 1);
    over(&mut play, &[0, 2], "a", Fate::Accepted);
    play.holds();
    let mut play = Play::full();
    play.mail("a", 1).see(Seen::Status(life(1), Status::Dnd));
    over(&mut play, &[0, 1], "a", Fate::Accepted);
    play.holds();
    let mut play = Play::full();
    play.mail("a", 1).hand_mail(life(1), "a", 1);
    over(&mut play, &[0, 1], "a", Fate::Accepted);
    play.holds();
}

#[test]
fn what_fell_back_waits_for_who_reads_there() {
    let moved = |reads: bool| {
        let mut play = Play::full();
        if reads {
            play.see(Seen::Subscribes(life(0), Place::MemberInbox, false));
            play.see(Seen::Opened(life(0), Place::MemberInbox, BTreeMap::new()));
        }
        let mail = Letter { fallback: Fallback::Member, ..letter(To::Session(Slot(1)), "a") };
        play.sends(life(0), "a", mail).accepted(life(0), "a", spot(INBOX, 1), false);
        play.see(Seen::Bye(life(1))).admit(life(1), true).attach(life(1), true);
        over(&mut play, &[0, 1], "a", Fate::Accepted);
        play
    };
    moved(false).holds();
    moved(true).breaks(&["lost"]);
}

#[test]
fn delivered_means_handed_out() {
    let mut play = Play::full();
    play.mail("a", 1);
    over(&mut play, &[0, 1], "a", Fate::Delivered);
    play.breaks(&["receipts", "lost"]);
    let mut play = Play::full();
    play.mail("a", 1).hand_mail(life(1), "a", 1).acks(life(1), &Place::Inbox, INBOX, 1);
    over(&mut play, &[0, 1], "a", Fate::Delivered);
    play.holds();
}

#[test]
fn a_topic_holds_what_it_accepted() {
    let mut play = Play::full();
    play.post("a", 1).history(&[]);
    over(&mut play, &[0], "a", Fate::Accepted);
    play.breaks(&["lost"]);
    let mut play = Play::full();
    play.post("a", 1).history(&[(1, "a")]);
    over(&mut play, &[0], "a", Fate::Accepted);
    play.holds();
    let mut play = Play::full();
    let post = Letter { ttl_ms: Some(5_000), ..letter(To::Topic("jobs".into()), "a") };
    play.sends(life(0), "a", post).accepted(life(0), "a", spot(JOBS, 1), false).history(&[]);
    over(&mut play, &[0], "a", Fate::Expired);
    play.holds();
}

/// A crew of sessions 1 and 2 from `start`, and one post.
fn crew(start: u64, alive: &[u8], meanwhile: impl Fn(&mut Play, &Place)) -> Play {
    let place = topic(Some("crew"));
    let mut play = Play::full();
    play.subscribe(life(1), &place, start).subscribe(life(2), &place, start).post("a", 1);
    meanwhile(&mut play, &place);
    play.history(&[(1, "a")]);
    over(&mut play, alive, "a", Fate::Accepted);
    play
}

#[test]
fn a_crew_gets_everything_from_its_beginning() {
    crew(1, &[0, 1], |_, _| {}).breaks(&["lost"]);
    crew(2, &[0, 1], |_, _| {}).holds();
    crew(1, &[0], |_, _| {}).holds();
    crew(1, &[0, 2], |play, place| {
        play.hand_post(life(1), place, "a", 1).acks(life(1), place, JOBS, 1);
    })
    .holds();
    crew(1, &[0, 1], |play, place| {
        play.hand_post(life(1), place, "a", 1).settles(life(1), place, JOBS, 1, Verb::Dead);
        play.settled(life(1), place, JOBS, 1, Verb::Dead, Settled::Yes);
    })
    .holds();
}

#[test]
fn what_a_lost_reader_had_comes_to_another() {
    let vanished = |play: &mut Play, place: &Place| {
        play.hand_post(life(1), place, "a", 1).vanish(life(1));
    };
    crew(1, &[0, 2], vanished).breaks(&["lost"]);
    crew(1, &[0, 2], |play, place| {
        vanished(play, place);
        play.sleep(6_000)
            .see(Seen::Handed(life(2), Handed { attempt: 2, ..handed(place.clone(), JOBS, 1, "a") }));
    })
    .holds();
}

#[test]
fn a_reader_of_its_own_gets_everything_or_is_told() {
    let read = |meanwhile: &dyn Fn(&mut Play, &Place)| {
        let place = topic(None);
        let mut play = Play::full();
        play.subscribe(life(1), &place, 1).post("a", 1);
        meanwhile(&mut play, &place);
        play.history(&[(1, "a")]);
        over(&mut play, &[0, 1], "a", Fate::Accepted);
        play
    };
    read(&|_, _| {}).breaks(&["lost"]);
    read(&|play, place| _ = play.hand_post(life(1), place, "a", 1)).holds();
    // What is there is not gone.
    read(&|play, place| _ = play.see(Seen::Gap(life(1), place.clone(), Some(0), (1, 3)))).breaks(&["gap"]);
    read(&|play, place| {
        play.see(Seen::SubEnded(life(1), place.clone(), "reconciled_closed".into()));
    })
    .holds();
}

/// A post in a world that forgets, after `ms` not there any more.
fn forgotten(unread: bool, ms: u64, place: Place, meanwhile: impl Fn(&mut Play, &Place)) -> Play {
    let mut play = Play::full();
    play.see(Seen::Forgets { after_ms: 3_600_000, unread });
    play.subscribe(life(1), &place, 1).post("a", 1);
    meanwhile(&mut play, &place);
    play.pass(ms).history(&[]);
    over(&mut play, &[0, 1], "a", Fate::Accepted);
    play
}

#[test]
fn a_log_forgets_what_is_old_and_read() {
    let read = |play: &mut Play, place: &Place| {
        play.hand_post(life(1), place, "a", 1).acks(life(1), place, JOBS, 1);
    };
    for group in [Some("crew"), None] {
        forgotten(false, 4_000_000, topic(group), read).holds();
        forgotten(false, 1_000, topic(group), read).breaks(&["lost"]);
        forgotten(true, 1_000, topic(group), read).holds();
        forgotten(true, 4_000_000, topic(group), |_, _| {}).breaks(&["lost"]);
    }
}

#[test]
fn who_is_behind_what_was_forgotten_is_told() {
    let told = |play: &mut Play, place: &Place| {
        play.see(Seen::Gap(life(1), place.clone(), Some(0), (1, 1)));
    };
    forgotten(true, 1_000, topic(None), told).holds();
    // Not of what it has had.
    forgotten(true, 1_000, topic(None), |play, place| {
        play.hand_post(life(1), place, "a", 1).acks(life(1), place, JOBS, 1);
        told(play, place);
    })
    .breaks(&["gap"]);
    forgotten(true, 1_000, topic(None), |play, place| {
        play.hand_post(life(1), place, "a", 1).settles(life(1), place, JOBS, 1, Verb::Ack);
        play.settled(life(1), place, JOBS, 1, Verb::Ack, Settled::Stale("requeued".into()));
        told(play, place);
    })
    .holds();
    let buried = |play: &mut Play, _: &Place| {
        let letter = DeadLetter {
            spot: Spot { id: "id of a".into(), ..spot(JOBS, 1) },
            group: None,
            attempts: 0,
            reason: "retention".into(),
        };
        play.see(Seen::DeadLetters(JOBS.into(), vec![letter]));
    };
    forgotten(true, 1_000, topic(Some("crew")), buried).holds();
    forgotten(false, 4_000_000, topic(Some("crew")), buried).breaks(&["dead"]);
}

#[test]
fn a_log_may_forget_while_its_pages_are_read() {
    let read = |pages: &[(u64, &[(u64, &str)])]| {
        let mut play = Play::full();
        play.see(Seen::Forgets { after_ms: 5_000, unread: false }).post("a", 1).post("b", 2).pass(60_000);
        for (from, entries) in pages {
            play.history_page(*from, entries);
        }
        play.fate("a", Fate::Accepted);
        over(&mut play, &[0], "b", Fate::Accepted);
        play
    };
    read(&[(1, &[(1, "a")]), (2, &[])]).holds();
    read(&[(1, &[(1, "a")])]).breaks(&["lost"]);
    read(&[(1, &[]), (2, &[])]).holds();
}
