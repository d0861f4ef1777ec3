//! Requests that wait for the broker. There are fewer places for them than for requests at all, so that a broker that does
//! not answer leaves room for what needs none; and they do not outlast the daemon.

use std::time::Duration;

use tenure_proto::error::{ErrorCode, WireError};

use super::problem::Problem;
use crate::shared::Shared;

/// How long the broker may still answer when the daemon stops: less than requests have to be answered then.
const LAST_ANSWERS: Duration = Duration::from_secs(3);
const _: () = assert!(LAST_ANSWERS.as_millis() < crate::daemon::STOP.as_millis());

/// What the broker says, if there is a place to wait for it. Given up when the daemon stops: the broker may then have done
/// what it was asked for.
pub(super) async fn asking<T>(
    shared: &Shared,
    answer: impl Future<Output = Result<T, WireError>>,
) -> Result<T, Problem> {
    let _place = shared.asking.try_acquire().map_err(|_| {
        Problem::of(ErrorCode::Busy, "as many requests wait for the broker as may; try again")
    })?;
    let stopped = async {
        shared.stopping.cancelled().await;
        tokio::time::sleep(LAST_ANSWERS).await;
    };
    // The answer is not waited for again when the daemon stops, so it need not be cancel-safe.
    tokio::select! {
        answer = answer => answer.map_err(Problem::from),
        () = stopped => Err(stopping()),
    }
}

/// The daemon is on its way out; the next one may do it.
pub(super) fn stopping() -> Problem {
    Problem::of(ErrorCode::Unavailable, "the daemon is stopping; try again when it runs")
}
