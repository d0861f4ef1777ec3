//! Waiting for a fact.

use std::time::Duration;

/// How long a fact may take to come true before a test gives up. Nothing is ever proved by it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Asks until the answer is as it should be.
pub(crate) async fn until<T>(mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let asked = async {
        loop {
            if let Some(found) = ask().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, asked).await.expect("it never came true")
}
