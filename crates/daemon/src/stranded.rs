//! Rows of a mesh that this daemon is not in any more: nobody sends them, so somebody is told.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::db::DbError;
use crate::shared::Shared;

/// The meshes that have rows to send and are not in the configuration.
pub(crate) async fn meshes(shared: &Shared) -> Result<BTreeSet<String>, DbError> {
    let ours = |mesh: &str| shared.config.meshes.iter().any(|choice| choice.name.as_str() == mesh);
    let senders = shared.outbox.senders().await?;
    Ok(senders.into_iter().map(|(mesh, _)| mesh).filter(|mesh| !ours(mesh)).collect())
}

/// Says so at the start.
pub(crate) async fn tell(shared: Arc<Shared>) {
    match meshes(&shared).await {
        Ok(meshes) => {
            for mesh in meshes {
                let hint = "its messages wait; configure it again, or drop them";
                tracing::warn!(event = "outbox_stranded", mesh, "this daemon is not in that mesh: {hint}");
            }
        }
        Err(error) => tracing::warn!(event = "outbox_unread", %error),
    }
}
