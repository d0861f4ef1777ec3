//! Who asks behind a message is told of it.

use super::*;

#[test]
fn what_is_under_way_is_not_unknown() {
    let asked = |fate: Fate, wait: u64| {
        let mut play = Play::full();
        play.sends(life(0), "a", letter(To::Session(Slot(1)), "a"));
        play.see(Seen::Inquires(life(0), key(0, "a"))).sleep(5);
        play.see(Seen::Inquired(life(0), key(0, "a"), fate)).sleep(wait);
        play.accepted(life(0), "a", spot("inbox/s/s1", 1), false);
        play
    };
    asked(Fate::Unknown, 5).breaks(&["status"]);
    asked(Fate::Accepted, 5).holds();
    // It was refused for now, and sent again.
    asked(Fate::Unknown, 1_000).holds();
}
