//! What a person does about a row: send it anew, take it back.

use rusqlite::Connection;
use tenure_outbox::requeue::{Candidate, Lookup, Refusal, Requeue, requeue as rule, withdraw};
use tenure_outbox::{Conflict, LaneId, Place, Step, free};
use tenure_proto::Codec;
use tenure_proto::fingerprint::Fingerprint;
use tenure_proto::ids::{ClientMessageId, SessionKey};
use tenure_proto::message::Bytes;
use tenure_proto::name::MeshName;

use super::accept::{Request, insert};
use super::{drain, row};
use crate::db::{DbError, integer};

/// How a row is to be sent anew.
#[derive(Clone, Debug)]
pub struct Anew {
    /// Under which id.
    pub client_message_id: ClientMessageId,
    /// With another body, if there is one: text, or bytes.
    pub body: Option<Patch>,
    /// What the broker knows of the old id.
    pub lookup: Lookup,
    /// Whether it is worth arriving twice.
    pub force: bool,
    /// Who wants it.
    pub by: String,
}

/// Another body.
#[derive(Clone, Debug)]
pub enum Patch {
    /// Text.
    Text(String),
    /// Anything.
    Bytes(Vec<u8>),
}

/// What came of the wish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requeued {
    /// There is no such row.
    NoSuchRow,
    /// The row stays as it is.
    Refused(Refusal),
    /// The broker must be asked first about this id of this mesh.
    Ask(String),
    /// The broker has it: the row is done.
    Finished(Place),
    /// The new id is used already, by what the first says; the second is what was to be sent under it.
    IdTaken(Box<Conflict>, Fingerprint),
    /// The old row cannot be read.
    Damaged(String),
    /// The new row, its id and the lane it stands in.
    Replaced {
        /// The new row.
        row: u64,
        /// Its id.
        client_message_id: ClientMessageId,
        /// Its lane.
        lane: LaneId,
        /// Whose it is.
        sender: (MeshName, SessionKey),
    },
}

/// What came of taking a row back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withdrawn {
    /// There is no such row.
    NoSuchRow,
    /// The row stays as it is.
    Refused(Refusal),
    /// It is aborted, and its id never free again.
    Done,
}

/// The old row becomes aborted and the new one keeps all routing, both or neither.
pub(super) fn requeue(connection: &Connection, id: u64, anew: Anew, wall: u64) -> Result<Requeued, DbError> {
    let Some(entry) = row::get(connection, id)? else { return Ok(Requeued::NoSuchRow) };
    let held = row::held(connection, &entry.mesh, &entry.client_message_id)?;
    let Some(fingerprint) = held.map(|held| held.fingerprint) else { return Ok(Requeued::NoSuchRow) };
    let (status, attempts, patched) = (entry.status, entry.attempts, anew.body.is_some());
    let candidate = Candidate { status, attempts, fingerprint: &fingerprint, patched };
    match rule(candidate, &anew.lookup, anew.force) {
        Requeue::Refuse(refusal) => return Ok(Requeued::Refused(refusal)),
        Requeue::Ask => return Ok(Requeued::Ask(entry.client_message_id)),
        Requeue::Finish(place) => {
            finish(connection, id, &place, wall)?;
            return Ok(Requeued::Finished(place));
        }
        Requeue::Replace => {}
    }
    let mut params = match row::frozen(connection, id)? {
        Ok(params) => params,
        Err(why) => return Ok(Requeued::Damaged(why)),
    };
    params.client_message_id = anew.client_message_id.clone();
    match anew.body {
        Some(Patch::Text(text)) => (params.body, params.body_b64) = (Some(text), None),
        Some(Patch::Bytes(bytes)) => (params.body, params.body_b64) = (None, Some(Bytes(bytes))),
        None => {}
    }
    let mesh = entry.mesh.parse().map_err(|_| DbError::Corrupt(format!("mesh is {:?}", entry.mesh)))?;
    let request = match Request::new(mesh, entry.sender, params) {
        Ok(request) => request.named(row::name(connection, id)?),
        Err(error) => return Ok(Requeued::Damaged(error.message)),
    };
    let held = row::held(connection, &entry.mesh, anew.client_message_id.as_str())?;
    if let Err(conflict) = free(held.as_ref(), &request.fingerprint) {
        return Ok(Requeued::IdTaken(Box::new(conflict), request.fingerprint));
    }
    let payload = Codec::Json.encode(&request.params);
    let (new, lane) = insert(connection, &request, &payload, wall)?;
    drain::set(connection, id, Step::Withdrawn)?;
    let sql = "UPDATE outbox SET aborted_at = ?2, aborted_by = ?3, superseded_by = ?4 WHERE id = ?1";
    connection.execute(sql, (integer(id), integer(wall), anew.by, integer(new)))?;
    row::empty(connection, id)?;
    let sender = (request.mesh, request.sender);
    Ok(Requeued::Replaced { row: new, client_message_id: anew.client_message_id, lane, sender })
}

/// The broker says that it has had a row all along.
fn finish(connection: &Connection, id: u64, place: &Place, wall: u64) -> Result<(), DbError> {
    drain::set(connection, id, Step::Known)?;
    let sql = "UPDATE outbox SET delivered_at = ?2, broker_message_id = ?3, log_seq = ?4 WHERE id = ?1";
    connection.execute(sql, (integer(id), integer(wall), place.id.to_string(), place.seq.map(integer)))?;
    row::empty(connection, id)
}

pub(super) fn drop_row(connection: &Connection, id: u64, by: &str, wall: u64) -> Result<Withdrawn, DbError> {
    let Some(entry) = row::get(connection, id)? else { return Ok(Withdrawn::NoSuchRow) };
    if let Err(refusal) = withdraw(entry.status) {
        return Ok(Withdrawn::Refused(refusal));
    }
    drain::set(connection, id, Step::Withdrawn)?;
    let sql = "UPDATE outbox SET aborted_at = ?2, aborted_by = ?3 WHERE id = ?1";
    connection.execute(sql, (integer(id), integer(wall), by))?;
    row::empty(connection, id)?;
    Ok(Withdrawn::Done)
}
