//! What a daemon promised, and what it keeps.

use super::*;

/// Sessions 0 and 1 are local sessions of daemons; session 0's hands over to session 1.
fn daemons() -> Play {
    let mut play = Play::full();
    play.see(Seen::Desk(life(0))).see(Seen::Desk(life(1)));
    play
}

fn mail(id: &str) -> Letter {
    letter(To::Session(Slot(1)), id)
}

impl Play {
    fn hand_over(&mut self, id: &str, contradicts: bool) -> &mut Play {
        self.see(Seen::Posts { slot: Slot(0), key: key(0, id), letter: mail(id), contradicts })
    }

    fn told(&mut self, id: &str, contradicts: bool, outcome: Result<(), &str>) -> &mut Play {
        let outcome = outcome.map_err(str::to_owned);
        self.see(Seen::PostAnswered { slot: Slot(0), key: key(0, id), contradicts, outcome })
    }

    fn promised(&mut self, id: &str) -> &mut Play {
        self.hand_over(id, false).told(id, false, Ok(()))
    }

    fn keeps(&mut self, recipient: &str, id: &str) -> &mut Play {
        let (id, body) = (format!("id of {id}"), format!("body of {id}"));
        self.see(Seen::Kept { recipient: recipient.into(), id, body })
    }

    /// The end, with these rows in the outbox and these letters in the inbox of session 1.
    fn ends(&mut self, rows: &[(&str, &str, Option<&str>)], kept: &[&str]) -> &mut Play {
        let row = |(id, status, error): &(&str, &str, Option<&str>)| {
            (key(0, id), (*status).to_owned(), error.map(str::to_owned))
        };
        self.see(Seen::Outbox(member(0), rows.iter().map(row).collect()));
        let kept = kept.iter().map(|id| ("session:s1".to_owned(), format!("id of {id}")));
        self.see(Seen::Inbox(member(1), kept.collect()));
        self.see(Seen::Over)
    }
}

#[test]
fn what_was_promised_is_at_the_broker_or_dead_with_a_reason() {
    let end = |rows: &[(&str, &str, Option<&str>)]| {
        let mut play = daemons();
        play.promised("a").ends(rows, &[]);
        play
    };
    end(&[]).breaks(&["lost"]);
    end(&[("a", "done", None)]).breaks(&["lost"]);
    end(&[("a", "dead", None)]).breaks(&["dead"]);
    end(&[("a", "dead", Some("busy: full"))]).breaks(&["dead"]);
    let mut play = daemons();
    play.hand_over("a", false).ends(&[], &[]).holds();
    let mut play = daemons();
    play.promised("a").mail("a", 1).fate("a", Fate::Accepted).ends(&[("a", "done", None)], &[]).holds();
    let mut play = daemons();
    play.promised("a").sends(life(0), "a", mail("a")).refused(life(0), "a", "forbidden");
    play.ends(&[("a", "dead", Some("forbidden: no"))], &[]).holds();
}

#[test]
fn nothing_is_given_up_before_its_time() {
    let hour = 3_600_000;
    for (waited_ms, days, fits) in [
        (144 * hour, Some(7), true),
        (144 * hour - 1, Some(7), false),
        (648 * hour, Some(30), true),
        (647 * hour, Some(30), false),
        (168 * hour, None, true),
        (167 * hour, None, false),
    ] {
        let mut play = daemons();
        play.promised("a").see(Seen::GivenUp { key: key(0, "a"), waited_ms, days });
        play.ends(&[("a", "dead", Some("expired: too old"))], &[]);
        play.breaks(if fits { &[] } else { &["dead"] });
    }
    let mut play = daemons();
    play.promised("a").see(Seen::GivenUp { key: key(0, "a"), waited_ms: 200 * hour, days: Some(7) });
    play.sends(life(0), "a", mail("a")).breaks(&["dead"]);
}

#[test]
fn it_leaves_as_it_was_handed_over() {
    let mut play = daemons();
    play.promised("a").sends(life(0), "a", mail("a")).holds();
    let mut play = daemons();
    play.promised("a").sends(life(0), "a again", mail("a")).breaks(&["altered"]);
    let mut play = daemons();
    play.promised("a").sends(life(0), "a", letter(To::Session(Slot(2)), "a")).breaks(&["altered"]);
    let mut play = daemons();
    play.promised("a").sends(life(1), "a", mail("a")).breaks(&["crosstalk"]);
}

#[test]
fn an_id_is_one_letters() {
    let mut play = daemons();
    play.promised("a")
        .hand_over("a", true)
        .told("a", true, Err("outbox_pending_fingerprint_mismatch"))
        .holds();
    play.told("a", true, Ok(())).breaks(&["idempotency"]);
    let mut play = daemons();
    play.promised("a").hand_over("a", false).told("a", false, Err("outbox_done_fingerprint_mismatch"));
    play.breaks(&["idempotency"]);
}

#[test]
fn what_was_promised_first_lies_first() {
    let order = |first: u64, second: u64, at_once: bool| {
        let mut play = daemons();
        if at_once {
            play.hand_over("a", false).hand_over("b", false).told("a", false, Ok(())).told(
                "b",
                false,
                Ok(()),
            );
        } else {
            play.promised("a").promised("b");
        }
        play.mail("a", first).mail("b", second).fate("a", Fate::Accepted).fate("b", Fate::Accepted);
        play.ends(&[("a", "done", None), ("b", "done", None)], &[]);
        play
    };
    order(1, 2, false).holds();
    order(2, 1, false).breaks(&["order"]);
    order(2, 1, true).holds();
}

#[test]
fn what_a_store_lost_and_its_daemon_forgot_may_lie_behind_what_came_meanwhile() {
    let again = |answered: bool| {
        let mut play = daemons();
        play.promised("a").promised("b");
        if answered {
            play.mail_as("a", 1, "a before");
        }
        play.sleep(100).rewind(100).mail("b", 1).mail("a", 2);
        play.fate("a", Fate::Accepted).fate("b", Fate::Accepted);
        play.ends(&[("a", "done", None), ("b", "done", None)], &[]);
        play
    };
    again(true).holds();
    again(false).breaks(&["order"]);
}

#[test]
fn what_comes_is_kept_once_by_whom_it_is_for_and_then_settled() {
    let came = || {
        let mut play = daemons();
        play.promised("a").mail("a", 1).hand_mail(life(1), "a", 1);
        play
    };
    let inbox = "inbox/s/s1";
    came().keeps("session:s1", "a").acks(life(1), &Place::Inbox, inbox, 1).holds();
    came().acks(life(1), &Place::Inbox, inbox, 1).breaks(&["lost"]);
    came().keeps("session:s1", "a").keeps("session:s1", "a").breaks(&["doubled"]);
    came().keeps("session:s0", "a").breaks(&["crosstalk"]);
    came().keeps("session:s1", "a").fate("a", Fate::Accepted).ends(&[("a", "done", None)], &["a"]).holds();
    came()
        .keeps("session:s1", "a")
        .fate("a", Fate::Accepted)
        .ends(&[("a", "done", None)], &[])
        .breaks(&["lost"]);
}
