//! The broker is killed under load, five times: nothing is lost, nothing comes twice. `cargo xtask soak kill` does
//! the same for as long as one likes, with more load.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use tenure_bench::kill::{self, Args};

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_killed_loses_nothing_and_doubles_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let args = Args::small(env!("CARGO_BIN_EXE_tenure").into(), dir.path().into(), 5);
    let outcome = kill::run(&args).await.unwrap();
    assert!(outcome.is_good(), "{outcome:?}");
    assert!(outcome.accepted > 100, "{outcome}: too little to say anything");
}
