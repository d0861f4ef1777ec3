//! The one row that says who this store is.

use rusqlite::{Connection, OptionalExtension, params};

use super::fault::Fault;
use crate::{Identity, Result};

/// The identity, if one was stored.
pub(super) fn get(connection: &Connection) -> Result<Option<Identity>, Fault> {
    read(connection).map_err(|fault| fault.about(|| "identity".to_owned()))
}

fn read(connection: &Connection) -> Result<Option<Identity>, Fault> {
    let found: Option<(String, [u8; 32])> = connection
        .prepare_cached("SELECT cluster_id, broker_key FROM identity WHERE one = 1")?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((cluster_id, broker_key)) = found else { return Ok(None) };
    let cluster_id = cluster_id.parse().map_err(|_| Fault::corrupt("its cluster id does not read"))?;
    Ok(Some(Identity { cluster_id, broker_key }))
}

/// Stores the identity; there must be none.
pub(super) fn insert(connection: &Connection, identity: &Identity) -> Result<(), Fault> {
    connection
        .prepare_cached("INSERT INTO identity (one, cluster_id, broker_key) VALUES (1, ?1, ?2)")?
        .execute(params![identity.cluster_id.as_str(), identity.broker_key])?;
    Ok(())
}
