//! What a mesh shows to those who test it.

use std::collections::BTreeSet;

use tenure_kit::Millis;

use crate::census::SessionState;
use crate::tests::world::{Disk, World, knock, session};

fn state(world: &World, n: u8) -> Option<SessionState> {
    world.mesh.sessions_by_state().find(|(key, _)| *key == session(n)).map(|(_, state)| state)
}

#[test]
fn a_session_is_shown_where_it_stands() {
    let mut world = World::new();
    world.disk(Disk::Holds);
    let conn = world.hello(knock(2));
    assert_eq!(state(&world, 2), Some(SessionState::Knocking(Some(conn))));
    world.disk(Disk::Commits);
    assert_eq!(state(&world, 2), Some(SessionState::Online(conn)));
    world.advance(10_000);
    world.close(conn, true);
    assert_eq!(state(&world, 2), Some(SessionState::Grace { until: Millis(100_000) }));
    world.freeze(50_000);
    let Some(SessionState::Grace { until }) = state(&world, 2) else { panic!() };
    assert!((Millis(148_000)..=Millis(150_000)).contains(&until), "a freeze moves it: {until:?}");
    world.disk(Disk::Holds);
    world.advance(until.0 - world.now().at.0);
    assert_eq!(state(&world, 2), Some(SessionState::Ending(None)));
    let again = world.hello(knock(2));
    assert_eq!(state(&world, 2), Some(SessionState::Ending(Some(again))));
    world.disk(Disk::Commits);
    assert_eq!(state(&world, 2), Some(SessionState::Online(again)));
}

#[test]
fn the_census_counts_each_thing_once_and_what_is_there() {
    let mut world = World::new();
    let conn = world.join(1);
    world.join(2);
    world.close(conn, true);
    let census = world.mesh.census();
    let names: BTreeSet<_> = census.iter().map(|count| count.what).collect();
    assert_eq!(names.len(), census.len());
    let size = |what| census.iter().find(|count| count.what == what).map(|count| (count.size, count.bound));
    assert_eq!(size("leases"), Some((2, 100_000)));
    assert_eq!(size("sockets"), Some((1, 2)));
    assert_eq!(size("events that can be replayed to a session"), Some((1, 1_024)));
}
