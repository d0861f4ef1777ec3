//! Daemons and broker are killed under load, six times: nothing that was taken is lost, nothing comes twice. `cargo xtask
//! soak daemon` does the same for as long as one likes, with more load.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use tenure_bench::daemon_kill::{self, Args};

#[tokio::test(flavor = "multi_thread")]
async fn what_was_taken_reaches_the_inbox_once_whoever_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let args = Args::small(env!("CARGO_BIN_EXE_tenure").into(), dir.path().into(), 6);
    let outcome = daemon_kill::run(&args).await.unwrap();
    assert!(outcome.is_good(), "{outcome:?}");
    assert!(outcome.accepted > 100, "{outcome}: too little to say anything");
}
