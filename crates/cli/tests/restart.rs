//! The broker is replaced under load, drained and killed: nobody blinks, nothing is lost, nothing comes twice. `cargo
//! xtask soak restart` does the same with a thousand sessions.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use tenure_bench::restart::{self, Args};

async fn replaced(kill: bool) {
    let dir = tempfile::tempdir().unwrap();
    let args = Args::small(env!("CARGO_BIN_EXE_tenure").into(), dir.path().into(), kill);
    let outcome = restart::run(&args).await.unwrap();
    assert!(outcome.is_good(), "{outcome:?}");
    assert!(outcome.accepted > 20, "{outcome:?}: too little to say anything");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_broker_is_replaced_and_nobody_notices() {
    replaced(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_broker_is_replaced_and_nobody_notices() {
    replaced(true).await;
}
