//! Numbers and versions of event streams.

use super::*;

fn attached(play: &mut Play, complete: bool, epoch: &str, first: u64) {
    let snapshot = (!complete).then(|| (play.here.clone(), true));
    let epoch = (epoch.to_owned(), first);
    play.see(Seen::Attached { life: life(0), kept: true, complete, snapshot, epoch });
}

fn updated(play: &mut Play, seq: u64, versions: (u64, u64)) {
    let (kind, session) = ("updated", "s1".to_owned());
    play.see(Seen::Presence { life: life(0), seq, kind, session, versions });
}

#[test]
fn numbers_rise_within_an_epoch() {
    let mut play = Play::full();
    attached(&mut play, false, "x", 1);
    play.see(Seen::Event(life(0), 1, "tick".into())).see(Seen::Event(life(0), 4, "tick".into()));
    attached(&mut play, true, "x", 5);
    play.see(Seen::Event(life(0), 5, "tick".into()));
    attached(&mut play, false, "y", 1);
    play.see(Seen::Event(life(0), 1, "tick".into()));
    play.holds();
    play.see(Seen::Event(life(0), 1, "tick".into()));
    play.breaks(&["stream"]);
}

#[test]
fn a_numbering_never_starts_over() {
    let resumed = |complete: bool, epoch: &str, first: u64| {
        let mut play = Play::full();
        attached(&mut play, false, "x", 1);
        attached(&mut play, false, "y", 1);
        play.see(Seen::Event(life(0), 1, "tick".into()));
        attached(&mut play, complete, epoch, first);
        play
    };
    resumed(true, "y", 2).holds();
    resumed(true, "y", 1).breaks(&["stream"]);
    resumed(true, "x", 2).breaks(&["stream"]);
    resumed(false, "x", 1).breaks(&["stream"]);
    resumed(false, "z", 2).breaks(&["stream"]);
}

#[test]
fn versions_rise_from_where_the_watcher_is() {
    let mut play = Play::full();
    attached(&mut play, false, "x", 1);
    updated(&mut play, 1, (7, 8));
    updated(&mut play, 2, (8, 11));
    play.see(Seen::Event(life(0), 3, "resync".into()));
    updated(&mut play, 4, (20, 21));
    play.holds();
    updated(&mut play, 5, (22, 23));
    updated(&mut play, 6, (20, 23));
    play.breaks(&["stream", "stream"]);
}
