//! Random operations and restarts, on an engine and on the memory model: whatever can be seen must be the same.
//!
//! The model never forgets a run, so agreement also shows that pruning cannot be seen.

use proptest::prelude::*;

use super::{Engine, end, identity, lease, put, touch};
use crate::{LeaseRow, Memory, Store, Write};

/// One thing that happens to a store. Small numbers, so that things happen to each other.
#[derive(Clone, Debug)]
enum Step {
    Restart,
    BeginRun,
    Identity(u8),
    Apply(Vec<Small>),
}

/// A write, without what only the moment can tell.
#[derive(Clone, Debug)]
enum Small {
    Put { slot: Slot, text: String },
    End(Slot),
    Touch { slot: Slot, ago: u64 },
    Heartbeat { ago: u64, uptime_ms: u64 },
}

/// Which lease: few meshes, few sessions, few lives of each.
#[derive(Clone, Copy, Debug)]
struct Slot {
    mesh: u8,
    session: u8,
    life: u8,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => Just(Step::Restart),
        3 => Just(Step::BeginRun),
        1 => any::<u8>().prop_map(Step::Identity),
        8 => prop::collection::vec(small(), 0..6).prop_map(Step::Apply),
    ];
    prop::collection::vec(step, 1..40)
}

fn small() -> impl Strategy<Value = Small> {
    let slot = || (0..2u8, 0..4u8, 0..2u8).prop_map(|(mesh, session, life)| Slot { mesh, session, life });
    prop_oneof![
        3 => (slot(), any::<String>()).prop_map(|(slot, text)| Small::Put { slot, text }),
        1 => slot().prop_map(Small::End),
        2 => (slot(), 0..3u64).prop_map(|(slot, ago)| Small::Touch { slot, ago }),
        3 => (0..3u64, 0..100_000u64).prop_map(|(ago, uptime_ms)| Small::Heartbeat { ago, uptime_ms }),
    ]
}

/// The lease that `slot` means, as the model has it now, or as it would begin in `run`.
fn row(slot: Slot, run: u64, model: &mut Memory) -> LeaseRow {
    let mut row = lease(&format!("mesh-{}", slot.mesh), slot.session);
    row.lease = format!("life-{}", slot.life).parse().unwrap();
    let stored = model.leases().unwrap().into_iter().map(|stored| stored.row);
    // As the trait asks: a new lease is of the current run, and no put takes a touch back.
    let before = stored.into_iter().find(|old| old.mesh == row.mesh && old.session == row.session);
    row.touched_run = before.map_or(run, |old| old.touched_run);
    row
}

fn write(small: &Small, run: u64, model: &mut Memory) -> Write {
    match small {
        Small::Put { slot, text } => {
            let mut row = row(*slot, run, model);
            row.profile.name.clone_from(text);
            row.profile.tags = vec![text.clone()];
            put(&row)
        }
        Small::End(slot) => end(&row(*slot, run, model)),
        Small::Touch { slot, ago } => touch(&row(*slot, run, model), run.saturating_sub(*ago)),
        Small::Heartbeat { ago, uptime_ms } => {
            let believed_at = (uptime_ms % 2 == 0).then_some(*uptime_ms);
            Write::Heartbeat { run: run.saturating_sub(*ago), uptime_ms: *uptime_ms, believed_at }
        }
    }
}

/// Runs random histories on `E` and on the model, and compares every answer and all that can be read.
pub(crate) fn agree<E: Engine>() {
    let config = ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(steps in steps())| {
        let place = E::new();
        let mut store = place.open();
        let mut model = Memory::new();
        let mut run = store.begin_run(0).unwrap().number;
        prop_assert_eq!(model.begin_run(0).unwrap().number, run);
        for step in &steps {
            match step {
                Step::Restart => {
                    drop(store);
                    store = place.open();
                }
                Step::BeginRun => {
                    let begun = model.begin_run(run);
                    prop_assert_eq!(&store.begin_run(run), &begun);
                    run = begun.unwrap().number;
                }
                Step::Identity(n) => prop_assert_eq!(store.identity(&identity(*n)), model.identity(&identity(*n))),
                Step::Apply(smalls) => {
                    let batch: Vec<Write> = smalls.iter().map(|small| write(small, run, &mut model)).collect();
                    prop_assert_eq!(store.apply(&batch), model.apply(&batch));
                }
            }
            prop_assert_eq!(store.leases(), model.leases());
        }
        prop_assert_eq!(store.check(), model.check());
    });
}
