//! What senders are told, and why dead letters are dead.

use super::*;

const INBOX: &str = "inbox/s/s1";

fn receipt(play: &mut Play, outcome: Result<Fate, String>) {
    play.see(Seen::Receipt { life: life(0), key: key(0, "a"), outcome });
}

fn dead(play: &mut Play, log: &str, group: Option<&str>, reason: &str) {
    let (group, reason) = (group.map(str::to_owned), reason.to_owned());
    let spot = Spot { id: "id of a".into(), ..spot(log, 1) };
    let letter = DeadLetter { spot, group, attempts: 1, reason };
    play.see(Seen::DeadLetters(log.to_owned(), vec![letter]));
}

#[test]
fn delivered_is_what_an_application_acked() {
    let mut play = Play::full();
    play.mail("a", 1).hand_mail(life(1), "a", 1);
    play.settles(life(1), &Place::Inbox, INBOX, 1, Verb::Ack);
    receipt(&mut play, Ok(Fate::Delivered));
    play.fate("a", Fate::Delivered);
    play.holds();
    let mut play = Play::full();
    play.mail("a", 1).hand_mail(life(1), "a", 1);
    receipt(&mut play, Ok(Fate::Delivered));
    play.fate("a", Fate::Delivered);
    play.breaks(&["receipts", "receipts"]);
    let mut play = Play::full();
    play.mail("a", 1);
    receipt(&mut play, Err("not_found".into()));
    play.breaks(&["lost"]);
}

#[test]
fn dead_and_expired_have_a_cause() {
    let told = |fate: Fate, letter: Letter, meanwhile: &dyn Fn(&mut Play)| {
        let mut play = Play::full();
        play.sends(life(0), "a", letter).accepted(life(0), "a", spot(INBOX, 1), false);
        meanwhile(&mut play);
        receipt(&mut play, Ok(fate));
        play
    };
    let plain = || letter(To::Session(Slot(1)), "a");
    told(Fate::Dead, plain(), &|_| {}).breaks(&["receipts"]);
    told(Fate::Dead, plain(), &|play| {
        play.hand_mail(life(1), "a", 1).settles(life(1), &Place::Inbox, INBOX, 1, Verb::Dead);
    })
    .holds();
    let failing = || Letter { fallback: Fallback::Fail, ..plain() };
    told(Fate::Dead, failing(), &|_| {}).breaks(&["receipts"]);
    told(Fate::Dead, failing(), &|play| _ = play.sleep(90_000)).holds();
    let short = || Letter { ttl_ms: Some(1_000), ..plain() };
    told(Fate::Expired, plain(), &|play| _ = play.sleep(5_000)).breaks(&["receipts"]);
    told(Fate::Expired, short(), &|_| {}).breaks(&["receipts"]);
    told(Fate::Expired, short(), &|play| _ = play.sleep(1_000)).holds();
}

#[test]
fn only_failures_that_applications_saw_count() {
    let failed = |times: u32| {
        let mut play = Play::full();
        play.mail("a", 1);
        for attempt in 1..=times {
            let it = Handed { attempt, ..handed(Place::Inbox, INBOX, 1, "a") };
            play.see(Seen::Handed(life(1), it));
            play.settles(life(1), &Place::Inbox, INBOX, 1, Verb::Retry(0));
            play.settled(life(1), &Place::Inbox, INBOX, 1, Verb::Retry(0), Settled::Yes);
        }
        dead(&mut play, INBOX, None, "max_attempts");
        play
    };
    failed(2).breaks(&["attempts"]);
    failed(3).holds();
}

#[test]
fn a_crew_counts_who_was_lost_with_it() {
    let crew = topic(Some("crew"));
    let lost = |times: u32| {
        let mut play = Play::full();
        play.subscribe(life(1), &crew, 1).post("a", 1);
        for attempt in 1..=times {
            let it = Handed { attempt, ..handed(crew.clone(), "topic/jobs/0", 1, "a") };
            play.see(Seen::Handed(life(1), it)).see(Seen::SocketLost(Slot(1))).sleep(6_000);
            play.admit(life(1), false).attach(life(1), false);
        }
        dead(&mut play, "topic/jobs/0", Some("crew"), "max_attempts");
        play
    };
    lost(2).breaks(&["attempts"]);
    lost(3).holds();
}

#[test]
fn reasons_of_dead_letters_fit() {
    let reason = |reason: &str, meanwhile: &dyn Fn(&mut Play)| {
        let mut play = Play::full();
        play.mail("a", 1);
        meanwhile(&mut play);
        dead(&mut play, INBOX, None, reason);
        play
    };
    reason("rejected", &|_| {}).breaks(&["dead"]);
    reason("rejected", &|play| {
        play.hand_mail(life(1), "a", 1).settles(life(1), &Place::Inbox, INBOX, 1, Verb::Dead);
    })
    .holds();
    for other in ["damaged", "retention", "expired", "lease_expired"] {
        reason(other, &|play| _ = play.sleep(1_000_000)).breaks(&["dead"]);
    }
}
