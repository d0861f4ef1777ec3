//! Taking a request: look up, decide, insert, in one transaction that shares its commit with others.

use rusqlite::{Connection, OptionalExtension};
use tenure_kit::bounds::body;
use tenure_outbox::{Answer, LaneId, decide};
use tenure_proto::WireError;
use tenure_proto::fingerprint::{Fingerprint, fingerprint};
use tenure_proto::ids::SessionKey;
use tenure_proto::message::{Address, SendParams};
use tenure_proto::name::MeshName;

use super::row;
use crate::db::{DbError, integer, natural};
use crate::disk::Disk;
use crate::room::Room;

/// A request to send, well formed and with all names resolved: from here on it is never changed.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    pub(super) mesh: MeshName,
    pub(super) sender: SessionKey,
    pub(super) fingerprint: Fingerprint,
    pub(super) params: SendParams,
    /// `params.to` as it is written down.
    pub(super) target: String,
    /// The display name that it was written as, if it was one.
    pub(super) name: Option<String>,
}

impl Request {
    /// Freezes `params`, as sent by `sender`. The fingerprint goes with it, so that the broker can tell if anything
    /// has changed on the way.
    pub fn new(mesh: MeshName, sender: SessionKey, mut params: SendParams) -> Result<Request, WireError> {
        let body = body(&params)?;
        let meta = params.meta.as_ref().map(|meta| &meta.0);
        let print = fingerprint(&params.to, params.reply_to.as_deref(), params.priority, meta, body)?;
        params.fingerprint = Some(print.hex());
        let target = params.to.to_string();
        Ok(Request { mesh, sender, fingerprint: print, params, target, name: None })
    }

    /// The same, whose receiver was named so: a retry under its id means the same one by this name.
    pub fn named(self, name: Option<String>) -> Request {
        Request { name, ..self }
    }

    /// What makes it the same request as another.
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.fingerprint
    }

    /// What is sent to the broker.
    pub fn params(&self) -> &SendParams {
        &self.params
    }
}

/// What a request came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// What its sender is answered.
    pub answer: Answer,
    /// The new row, and the lane that it stands in.
    pub row: Option<(u64, LaneId)>,
}

/// Looks up, decides, inserts. When it fails nothing of the request is there but, perhaps, its lane: an empty one like any
/// other.
pub(super) fn accept(
    connection: &Connection,
    request: &Request,
    payload: &[u8],
    wall: u64,
    (room, disk): (&Room, &Disk),
) -> Result<Accepted, DbError> {
    let id = request.params.client_message_id.as_str();
    let held = row::held(connection, request.mesh.as_str(), id)?;
    let answer = decide(held.as_ref(), &request.fingerprint);
    if answer != Answer::Insert {
        return Ok(Accepted { answer, row: None });
    }
    disk.check()?;
    room.take(connection, payload.len())?;
    let row = insert(connection, request, payload, wall)?;
    Ok(Accepted { answer, row: Some(row) })
}

pub(super) fn insert(
    connection: &Connection,
    request: &Request,
    payload: &[u8],
    wall: u64,
) -> Result<(u64, LaneId), DbError> {
    let lane = lane(connection, request)?;
    let (mesh, params) = (request.mesh.as_str(), &request.params);
    let (id, sender, print) = (params.client_message_id.as_str(), &request.sender.0, &request.fingerprint.0);
    let crc = row::sum(mesh, id, sender, print, payload);
    let sql = "INSERT INTO outbox (mesh, client_message_id, sender_session, request_fingerprint, payload, crc, target, \
               priority, lane, enqueued_at, attempts, next_attempt_at, status) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, 0, ?10, 'pending')";
    connection.prepare_cached(sql)?.execute((
        mesh,
        id,
        sender,
        print,
        payload,
        crc,
        &request.target,
        params.priority.as_str(),
        integer(lane.0),
        integer(wall),
    ))?;
    let row = connection.last_insert_rowid();
    if let Some(name) = &request.name {
        connection.prepare_cached("INSERT INTO names (row, name) VALUES (?1, ?2)")?.execute((row, name))?;
    }
    Ok((natural(row), lane))
}

/// The lane of a request, made if it is the first in it.
pub(super) fn lane(connection: &Connection, request: &Request) -> Result<LaneId, DbError> {
    let class = match request.params.to {
        Address::Topic(_) => "",
        _ => request.params.priority.as_str(),
    };
    let key = (request.mesh.as_str(), &request.sender.0, request.target.as_str(), class);
    let sql = "SELECT lane FROM lanes WHERE mesh = ?1 AND sender = ?2 AND target = ?3 AND class = ?4";
    let found = connection.prepare_cached(sql)?.query_row(key, |row| row.get::<_, i64>(0)).optional()?;
    if let Some(lane) = found {
        return Ok(LaneId(natural(lane)));
    }
    let sql = "INSERT INTO lanes (mesh, sender, target, class) VALUES (?1, ?2, ?3, ?4)";
    connection.prepare_cached(sql)?.execute(key)?;
    Ok(LaneId(natural(connection.last_insert_rowid())))
}
