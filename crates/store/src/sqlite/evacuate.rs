//! What a session left unsettled when its lease ended, moved or failed in slices.

use std::sync::Arc;

use rusqlite::{Connection, params};
use tenure_mesh::messages::envelope::{Entry, Lane};
use tenure_mesh::store::record::{Burial, Moved, StoreOutcome};
use tenure_proto::ids::MemberKey;
use tenure_proto::log::LogName;
use tenure_proto::message::Fallback;

use super::cache::Mesh;
use super::entry::Whole;
use super::fault::Fault;
use super::place::Place;
use super::{accept, dead, entry, group};
use crate::Result;
use crate::fate::LEASE_EXPIRED;

/// One slice.
pub(super) struct Slice<'a> {
    pub(super) inbox: &'a LogName,
    pub(super) member: &'a MemberKey,
    pub(super) limit: u32,
    pub(super) after: (Lane, u64),
    pub(super) through: u64,
    pub(super) at: u64,
}

/// Clears a slice of an inbox.
pub(super) fn evacuate(
    connection: &Connection,
    mesh: &mut Mesh,
    slice: &Slice<'_>,
) -> Result<StoreOutcome, Fault> {
    let (mut moved, mut failed) = (Vec::new(), Vec::new());
    let Some(log) = mesh.find_log(connection, slice.inbox)? else {
        return Ok(StoreOutcome::Evacuated { moved, failed, next: None });
    };
    let places = unsettled(connection, log.id, slice)?;
    for (place, attempts) in &places {
        // Gone, or damaged: whoever reads it next finds that out.
        let Some(Some(whole)) = entry::get(connection, slice.inbox, *place)? else { continue };
        match whole.entry.envelope.fallback {
            Fallback::Hold => {}
            Fallback::Member => {
                let entry = relocate(connection, mesh, slice, *place, &whole)?;
                moved.push(Moved { from: place.seq, entry });
            }
            Fallback::Fail => {
                fail(connection, mesh, slice, *place, *attempts)?;
                failed.push(whole.entry);
            }
        }
    }
    let full = places.len() as u64 >= u64::from(slice.limit);
    let next = places.last().filter(|_| full).map(|(place, _)| (place.lane, place.seq));
    Ok(StoreOutcome::Evacuated { moved, failed, next })
}

/// The places of what is open or was never read, with how often it was handed out: in order, a slice of them.
fn unsettled(connection: &Connection, log: i64, slice: &Slice<'_>) -> Result<Vec<(Place, u32)>, Fault> {
    let mut places = Vec::new();
    for lane in Lane::ALL.into_iter().filter(|lane| *lane >= slice.after.0) {
        let after = if lane == slice.after.0 { slice.after.1 } else { 0 };
        let left = slice.limit.saturating_sub(u32::try_from(places.len()).unwrap_or(u32::MAX));
        let group = group::of_inbox(connection, log, lane)?;
        if let Some((mesh, id, _)) = group {
            let opened = group::opened(connection, (mesh, id), after, left)?;
            let meant = opened.iter().filter(|open| open.seq <= slice.through);
            places.extend(meant.map(|open| (Place::new(log, lane, open.seq), open.attempt)));
        }
        let left = slice.limit.saturating_sub(u32::try_from(places.len()).unwrap_or(u32::MAX));
        let unread = after.max(group.map_or(0, |(_, _, cursor)| cursor));
        let mut statement = connection.prepare_cached(
            "SELECT place FROM entries WHERE place > ?1 AND place <= ?2 ORDER BY place LIMIT ?3",
        )?;
        let from = Place::new(log, lane, unread).pack();
        let last = Place::new(log, lane, slice.through).pack().min(Place::last(log, lane).pack());
        let mut rows = statement.query(params![from, last, left])?;
        while let Some(row) = rows.next()? {
            places.push((Place::unpack(row.get(0)?), 0));
        }
    }
    Ok(places)
}

/// Moves an entry to the member's inbox: a new seq there, the same message.
fn relocate(
    connection: &Connection,
    mesh: &mut Mesh,
    slice: &Slice<'_>,
    from: Place,
    whole: &Whole,
) -> Result<Arc<Entry>, Fault> {
    let envelope = &whole.entry.envelope;
    let name = LogName::Member(*slice.member);
    let lane = Lane::of(&name, envelope.priority);
    mesh.need_log(connection, &name)?;
    let (log, scratch) = mesh.log_and_scratch(&name).ok_or_else(|| Fault::corrupt("a log was lost"))?;
    let seq = entry::next_seq(log).ok_or_else(|| entry::full(&name))?;
    let to = Place::new(log.id, lane, seq);
    let mut appending = entry::appending(connection)?;
    entry::append(&mut appending, log, (lane, seq), envelope, whole.remember_until, scratch)?;
    if let Some(sender) = mesh.find_sender(connection, &envelope.scope())? {
        accept::move_record(connection, sender, (&envelope.client_message_id, envelope.id), to)?;
    }
    let left = mesh.need_log(connection, slice.inbox)?;
    entry::remove(connection, left, from)?;
    group::close_everywhere(connection, from)?;
    Ok(Arc::new(Entry::new(name, lane, seq, envelope.clone())))
}

/// Sends an entry to the dead letters.
fn fail(
    connection: &Connection,
    mesh: &mut Mesh,
    slice: &Slice<'_>,
    place: Place,
    attempts: u32,
) -> Result<(), Fault> {
    let burial = Burial {
        log: slice.inbox.clone(),
        lane: place.lane,
        seq: place.seq,
        group: None,
        attempts,
        reason: LEASE_EXPIRED.to_owned(),
        at: slice.at,
        remove: true,
    };
    dead::bury(connection, mesh, &burial)
}
