//! What became of messages, told to who sent them.

use rusqlite::{Connection, OptionalExtension, params};
use tenure_mesh::store::record::{Fate, StoreFound};
use tenure_proto::ids::{ClientMessageId, MemberKey};

use super::accept::{self, Record};
use super::cache;
use super::fault::Fault;
use super::{entry, group, integer};
use crate::Result;
use crate::fate as rule;

/// One fate for each id.
pub(super) fn fates(
    connection: &Connection,
    mesh: i64,
    member: &MemberKey,
    ids: &[ClientMessageId],
) -> Result<StoreFound, Fault> {
    let sender = cache::find_sender(connection, mesh, member)?;
    let fates = ids.iter().map(|id| {
        let record = match sender {
            Some(sender) => accept::record(connection, sender, id.as_str())?,
            None => None,
        };
        record.map_or(Ok(Fate::UNKNOWN), |record| fate(connection, record))
    });
    Ok(StoreFound::Fates(fates.collect::<Result<_, Fault>>()?))
}

fn fate(connection: &Connection, record: Record) -> Result<Fate, Fault> {
    let place = record.place;
    let dead: Option<String> = connection
        .prepare_cached(
            "SELECT reason FROM dead WHERE log = ?1 AND seq = ?2 ORDER BY reason <> ?3, grp LIMIT 1",
        )?
        // That it expired concerns everybody, whoever gave it up before.
        .query_row(params![place.log, integer(place.seq), rule::EXPIRED], |row| row.get(0))
        .optional()?;
    let there = entry::exists(connection, place)?;
    let lost = if there { None } else { record.lost };
    let (_, log) = cache::log_name(connection, place.log)?;
    let settled = log.is_inbox() && (!there || group::is_settled(connection, place)?);
    let (state, reason) = rule::of(dead.or(lost), log.is_inbox(), settled);
    Ok(Fate { accepted: Some((record.id, record.fingerprint)), state, reason })
}
