//! What operators decide: who is a member, who is let in by an invite, what a guest may do.

use super::*;

const MEMBER: Matter = Matter::Member(Person::Guest(1));

impl Play {
    /// An operator decides, and is answered.
    fn decide(&mut self, matter: Matter, value: Option<&str>) -> &mut Play {
        let value = value.map(str::to_owned);
        self.see(Seen::Asks(matter, value.clone())).sleep(5).see(Seen::Decided(matter, value)).sleep(5)
    }

    /// A mesh that not everybody may join.
    fn founded() -> Play {
        let mut play = Play::full();
        play.decide(Matter::Founded, Some("yes"));
        play
    }

    /// A guest comes, with an invite for one that gives all, or without.
    fn comes(&mut self, guest: u8, invite: Option<u8>, outcome: Result<(), &str>) -> &mut Play {
        let since = self.at;
        self.see(Seen::GuestKnocks { guest, invite: invite.map(|number| (number, "all".to_owned())) });
        let outcome = outcome.map_err(str::to_owned);
        self.sleep(20).see(Seen::GuestEnters { guest, invite, uses: 1, since, outcome }).sleep(5)
    }

    /// Guest 1 tries whether it has a right.
    fn tries(&mut self, right: &str, allowed: bool) -> &mut Play {
        let since = self.at;
        self.sleep(20).see(Seen::GuestMay { guest: 1, right: right.to_owned(), since, allowed })
    }

    fn stands(&mut self, matter: Matter, value: Option<&str>, at_start: bool) -> &mut Play {
        self.see(Seen::Stands { matter, value: value.map(str::to_owned), at_start }).sleep(5)
    }

    /// The broker crashes and starts; the store goes back, if so.
    fn start_again(&mut self, back: bool) -> &mut Play {
        self.see(Seen::BrokerDown(false));
        if back {
            self.see(Seen::Rewound { copied_at: 0 });
        }
        self.sleep(10).see(Seen::BrokerUp(Vec::new())).sleep(10)
    }
}

#[test]
fn what_was_answered_is_there_after_a_crash_and_what_was_not_may_be() {
    let mut play = Play::founded();
    play.decide(MEMBER, Some("read")).start_again(false).stands(MEMBER, Some("read"), true).holds();
    play.see(Seen::Asks(MEMBER, None)).start_again(false).stands(MEMBER, None, true).holds();
    let mut play = Play::founded();
    play.decide(MEMBER, Some("read")).start_again(false).stands(MEMBER, None, true).breaks(&["decision"]);
    // What a start has told is known from then on.
    let mut play = Play::founded();
    play.decide(MEMBER, Some("read")).see(Seen::Asks(MEMBER, None)).start_again(false);
    play.stands(MEMBER, Some("read"), true).start_again(false);
    play.stands(MEMBER, None, true).breaks(&["decision"]);
}

#[test]
fn a_store_that_went_back_may_hold_what_there_ever_was_and_nothing_else() {
    let mut play = Play::founded();
    play.decide(MEMBER, Some("read")).decide(MEMBER, Some("run")).start_again(true);
    play.stands(MEMBER, Some("read"), true).holds();
    play.start_again(true).stands(MEMBER, Some("send"), true).breaks(&["decision"]);
}

#[test]
fn the_settings_begin_as_the_broker_was_started() {
    let mut play = Play::full();
    play.see(Seen::Asks(Matter::Settings, Some("a".into()))).start_again(false);
    play.stands(Matter::Settings, Some("b"), true).holds();
    play.decide(Matter::Settings, Some("a")).start_again(false);
    play.stands(Matter::Settings, Some("b"), true).breaks(&["decision"]);
}

#[test]
fn nobody_comes_in_who_is_no_member_and_every_member_does() {
    let mut play = Play::full();
    play.comes(1, None, Ok(())).holds();
    play.comes(1, None, Err("unauthorized")).breaks(&["roll"]);
    let mut play = Play::founded();
    play.comes(1, None, Err("unauthorized")).holds();
    play.comes(1, None, Ok(())).breaks(&["roll"]);
    let mut play = Play::founded();
    play.decide(MEMBER, Some("all")).comes(1, None, Ok(())).comes(1, None, Err("busy")).holds();
    play.comes(1, None, Err("unauthorized")).breaks(&["roll"]);
    // Somebody who is let go just then.
    let mut play = Play::founded();
    play.decide(MEMBER, Some("all")).see(Seen::Asks(MEMBER, None)).sleep(5);
    play.comes(1, None, Err("unauthorized")).comes(1, None, Ok(())).holds();
}

#[test]
fn an_invite_lets_in_as_many_as_it_says_until_it_is_revoked() {
    let mut play = Play::founded();
    play.comes(1, Some(0), Ok(())).comes(1, Some(0), Ok(())).comes(1, None, Ok(())).holds();
    play.comes(2, Some(0), Err("unauthorized")).comes(2, None, Err("unauthorized")).holds();
    play.comes(2, Some(0), Ok(())).breaks(&["roll"]);
    let mut play = Play::founded();
    play.comes(1, Some(0), Ok(())).start_again(true).stands(Matter::Founded, Some("yes"), true);
    play.stands(Matter::Member(Person::Guest(2)), None, true).comes(2, Some(0), Ok(())).holds();
    // With a lease that could not end, on a disk that takes nothing.
    let mut play = Play::founded();
    play.see(Seen::DiskFull(true)).comes(1, Some(0), Ok(())).stands(MEMBER, None, false).holds();
    play.see(Seen::DiskFull(false)).sleep(10_000).comes(2, Some(0), Ok(()));
    play.stands(Matter::Member(Person::Guest(2)), None, false).breaks(&["decision"]);
    // It was let go just before its hello was heard.
    let mut play = Play::founded();
    let since = play.at;
    play.see(Seen::GuestKnocks { guest: 1, invite: Some((0, "all".into())) }).sleep(1).decide(MEMBER, None);
    play.see(Seen::GuestEnters { guest: 1, invite: Some(0), uses: 1, since, outcome: Ok(()) });
    play.stands(MEMBER, Some("all"), false).tries("run", true).holds();
    let mut play = Play::founded();
    play.see(Seen::Asks(Matter::Revoked(0), Some("revoked".into()))).comes(1, Some(0), Ok(())).holds();
    play.decide(Matter::Revoked(0), Some("revoked")).comes(2, Some(0), Ok(())).breaks(&["roll"]);
}

#[test]
fn a_guest_may_what_it_was_given() {
    let mut play = Play::full();
    play.tries("send", true).holds();
    play.tries("run", false).breaks(&["rights"]);
    let mut play = Play::founded();
    play.decide(MEMBER, Some("read,run")).tries("run", true).tries("send", false).holds();
    play.see(Seen::Asks(MEMBER, Some("send".into()))).tries("send", true).tries("send", false).holds();
    play.see(Seen::Decided(MEMBER, Some("send".into()))).sleep(5);
    play.tries("send", true).tries("read", true).breaks(&["rights"]);
    // What it asked before it was decided may be answered either way.
    let mut play = Play::founded();
    let since = play.at;
    play.sleep(5).decide(MEMBER, Some("read"));
    play.see(Seen::GuestMay { guest: 1, right: "send".into(), since, allowed: true }).holds();
}
