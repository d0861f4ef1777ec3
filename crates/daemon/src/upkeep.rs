//! What is forgotten, in time: letters that were seen a month ago, and rows that were done then if there is no room for them.

use std::sync::Arc;
use std::time::Duration;

use tenure_outbox::age::Ageing;

use crate::room::Cap;
use crate::shared::Shared;

/// How often somebody looks.
const LOOK: Duration = Duration::from_secs(600);
/// Hours that rows that are done, and letters that were seen, are kept.
const KEPT_HOURS: u64 = 30 * 24;

/// Forgets what is old until the daemon stops, and nothing while the wall clock is not believed.
pub(crate) async fn run(shared: Arc<Shared>) {
    let mut ageing = Ageing::new(shared.clock.now());
    // Nobody is asked how late it is: an hour later is soon enough.
    ageing.compare(shared.clock.now(), None, false);
    let mut look = tokio::time::interval(LOOK);
    loop {
        // Both are cancel-safe: they only wait.
        tokio::select! {
            _ = look.tick() => {}
            () = shared.stopping.cancelled() => return,
        }
        let Some(before) = ageing.cutoff(shared.clock.now(), KEPT_HOURS) else { continue };
        if shared.sessions.all().iter().any(|local| local.standing.borrow().is_disputed()) {
            continue;
        }
        while matches!(shared.outbox.prune(before).await, Ok(1..)) {}
        while matches!(shared.inbox.prune(before).await, Ok(1..)) {}
        let census = shared.outbox.census().await.unwrap_or_default();
        warn("outbox", census.bytes, shared.outbox.cap());
        warn("inbox", shared.inbox.bytes().await.unwrap_or_default(), shared.inbox.cap());
    }
}

/// Says that a file is nearly full.
fn warn(file: &str, bytes: u64, cap: Cap) {
    if bytes >= cap.warn_at() {
        tracing::warn!(event = "space", file, bytes, cap = cap.bytes, "see `tenure daemon status`");
    }
}
