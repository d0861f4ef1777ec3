//! A row, as it is read.

use rusqlite::{Connection, OptionalExtension, Row};
use tenure_outbox::{Held, Place, Status, meant};
use tenure_proto::Codec;
use tenure_proto::fingerprint::Fingerprint;
use tenure_proto::ids::{ClientMessageId, SessionKey};
use tenure_proto::message::SendParams;
use tenure_proto::name::MeshName;

use crate::db::{DbError, checksum, natural};

/// What there is to know of a row besides its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its number.
    pub id: u64,
    /// Of which mesh.
    pub mesh: String,
    /// The sender's id for it.
    pub client_message_id: String,
    /// Who sends it.
    pub sender: SessionKey,
    /// Where it goes.
    pub target: String,
    /// How urgent it is.
    pub priority: String,
    /// Where it stands.
    pub status: Status,
    /// When it was accepted, Unix milliseconds as all times here.
    pub enqueued_at: u64,
    /// How often it was sent.
    pub attempts: u32,
    /// When it is sent next, while it is pending.
    pub next_attempt_at: u64,
    /// Why it was refused last.
    pub last_error: Option<String>,
    /// When the broker was known to have it.
    pub delivered_at: Option<u64>,
    /// Where the broker put it.
    pub place: Option<Place>,
    /// When a person took it back.
    pub aborted_at: Option<u64>,
    /// Who that was.
    pub aborted_by: Option<String>,
    /// The row that went in its place.
    pub superseded_by: Option<u64>,
    /// Bytes of its frozen request, which is let go when it is done or aborted.
    pub bytes: u64,
}

const COLUMNS: &str = "id, mesh, client_message_id, sender_session, target, priority, status, enqueued_at, attempts, \
    next_attempt_at, last_error, delivered_at, broker_message_id, log_seq, aborted_at, aborted_by, superseded_by, \
    length(payload)";

/// The row with this number.
pub(super) fn get(connection: &Connection, id: u64) -> Result<Option<Entry>, DbError> {
    let sql = format!("SELECT {COLUMNS} FROM outbox WHERE id = ?1");
    let mut statement = connection.prepare_cached(&sql)?;
    statement.query_row([crate::db::integer(id)], |row| Ok(entry(row))).optional()?.transpose()
}

/// The row with this id of its sender's.
pub(super) fn find(connection: &Connection, mesh: &str, id: &str) -> Result<Option<Entry>, DbError> {
    let sql = format!("SELECT {COLUMNS} FROM outbox WHERE mesh = ?1 AND client_message_id = ?2");
    let mut statement = connection.prepare_cached(&sql)?;
    statement.query_row([mesh, id], |row| Ok(entry(row))).optional()?.transpose()
}

/// Which rows are wanted.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Only those that stand there.
    pub status: Option<Status>,
    /// Only those of this session of this mesh.
    pub sender: Option<(MeshName, SessionKey)>,
    /// Only those that their sender gave this id: one of a mesh at most.
    pub client_message_id: Option<ClientMessageId>,
    /// Only those after this number.
    pub after: u64,
    /// At most so many.
    pub limit: usize,
}

/// Rows that are looked at for one page: those of one session may be few among many.
const LOOKED_AT: usize = 4_096;

/// A page of the rows that are wanted, in the order of their acceptance, and where to go on.
pub(super) fn page(connection: &Connection, wanted: &Wanted) -> Result<(Vec<Entry>, Option<u64>), DbError> {
    // An id is found by its mesh, so each mesh that has rows is looked into.
    let of_id = "WITH RECURSIVE meshes (mesh) AS (SELECT min(mesh) FROM outbox UNION ALL \
        SELECT (SELECT min(mesh) FROM outbox WHERE mesh > meshes.mesh) FROM meshes WHERE mesh IS NOT NULL)";
    let sql = match (&wanted.client_message_id, wanted.status) {
        (Some(_), _) => format!(
            "{of_id} SELECT {COLUMNS} FROM outbox WHERE mesh IN (SELECT mesh FROM meshes) \
             AND client_message_id = ?1 AND (?2 IS NULL OR status = ?2) AND id > ?3 ORDER BY id"
        ),
        (None, Some(_)) => {
            format!("SELECT {COLUMNS} FROM outbox WHERE ?1 IS NULL AND status = ?2 AND id > ?3 ORDER BY id")
        }
        (None, None) => {
            format!("SELECT {COLUMNS} FROM outbox WHERE ?1 IS NULL AND ?2 IS NULL AND id > ?3 ORDER BY id")
        }
    };
    let mut statement = connection.prepare_cached(&sql)?;
    let id = wanted.client_message_id.as_ref().map(ClientMessageId::as_str);
    let status = wanted.status.map(Status::as_str);
    let mut rows = statement.query((id, status, crate::db::integer(wanted.after)))?;
    let (mut entries, mut last) = (Vec::new(), None);
    for _ in 0..LOOKED_AT {
        let Some(row) = rows.next()? else { return Ok((entries, None)) };
        let entry = entry(row)?;
        last = Some(entry.id);
        let sent_by =
            |(mesh, key): &(MeshName, SessionKey)| mesh.as_str() == entry.mesh && *key == entry.sender;
        if wanted.sender.as_ref().is_none_or(sent_by) {
            entries.push(entry);
        }
        if entries.len() == wanted.limit {
            break;
        }
    }
    Ok((entries, last))
}

fn entry(row: &Row<'_>) -> Result<Entry, DbError> {
    let time = |column: &str| row.get::<_, Option<i64>>(column).map(|time| time.map(natural));
    Ok(Entry {
        id: natural(row.get("id")?),
        mesh: row.get("mesh")?,
        client_message_id: row.get("client_message_id")?,
        sender: SessionKey(row.get("sender_session")?),
        target: row.get("target")?,
        priority: row.get("priority")?,
        status: status(&row.get::<_, String>("status")?)?,
        enqueued_at: natural(row.get("enqueued_at")?),
        attempts: u32::try_from(row.get::<_, i64>("attempts")?).unwrap_or(u32::MAX),
        next_attempt_at: natural(row.get("next_attempt_at")?),
        last_error: row.get("last_error")?,
        delivered_at: time("delivered_at")?,
        place: place(row)?,
        aborted_at: time("aborted_at")?,
        aborted_by: row.get("aborted_by")?,
        superseded_by: time("superseded_by")?,
        bytes: natural(row.get("length(payload)")?),
    })
}

/// What is held under an id.
pub(super) fn held(connection: &Connection, mesh: &str, id: &str) -> Result<Option<Held>, DbError> {
    let sql = "SELECT status, request_fingerprint, broker_message_id, log_seq, last_error FROM outbox \
               WHERE mesh = ?1 AND client_message_id = ?2";
    let mut statement = connection.prepare_cached(sql)?;
    let read = |row: &Row<'_>| -> Result<Held, DbError> {
        Ok(Held {
            status: status(&row.get::<_, String>("status")?)?,
            fingerprint: Fingerprint(row.get("request_fingerprint")?),
            place: place(row)?,
            last_error: row.get("last_error")?,
        })
    };
    statement.query_row([mesh, id], |row| Ok(read(row))).optional()?.transpose()
}

/// The name that a row's target was written as, if it was one.
pub(super) fn name(connection: &Connection, id: u64) -> Result<Option<String>, DbError> {
    let mut statement = connection.prepare_cached("SELECT name FROM names WHERE row = ?1")?;
    Ok(statement.query_row([crate::db::integer(id)], |row| row.get(0)).optional()?)
}

/// Whom `written` means under this id, if that is held for a receiver of that name.
pub(super) fn named(
    connection: &Connection,
    mesh: &str,
    id: &str,
    written: &str,
) -> Result<Option<String>, DbError> {
    let sql = "SELECT names.name, outbox.target FROM outbox JOIN names ON names.row = outbox.id \
               WHERE outbox.mesh = ?1 AND outbox.client_message_id = ?2";
    let mut statement = connection.prepare_cached(sql)?;
    let held = statement
        .query_row([mesh, id], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))
        .optional()?;
    let held = held.as_ref().map(|(name, target)| (name.as_str(), target.as_str()));
    Ok(meant(held, written).map(str::to_owned))
}

fn place(row: &Row<'_>) -> Result<Option<Place>, DbError> {
    let Some(id) = row.get::<_, Option<String>>("broker_message_id")? else { return Ok(None) };
    let id = id.parse().map_err(|_| DbError::Corrupt(format!("broker_message_id is {id:?}")))?;
    Ok(Some(Place { id, seq: row.get::<_, Option<i64>>("log_seq")?.map(natural) }))
}

fn status(text: &str) -> Result<Status, DbError> {
    Status::from_text(text).ok_or_else(|| DbError::Corrupt(format!("status is {text:?}")))
}

/// The frozen request of a row: what was accepted, or a word about what is wrong with it.
pub(super) fn frozen(connection: &Connection, id: u64) -> Result<Result<SendParams, String>, DbError> {
    let sql = "SELECT mesh, client_message_id, sender_session, request_fingerprint, payload, crc FROM outbox WHERE id = ?1";
    let mut statement = connection.prepare_cached(sql)?;
    let (payload, crc, sum) = statement.query_row([crate::db::integer(id)], |row| {
        let (mesh, name): (String, String) = (row.get(0)?, row.get(1)?);
        let (sender, print): ([u8; 32], [u8; 32]) = (row.get(2)?, row.get(3)?);
        let payload: Vec<u8> = row.get(4)?;
        let sum = sum(&mesh, &name, &sender, &print, &payload);
        Ok((payload, row.get::<_, i64>(5)?, sum))
    })?;
    if crc != i64::from(sum) {
        return Ok(Err("damaged: the row does not match its checksum".to_owned()));
    }
    Ok(Codec::Json.decode(&payload).map_err(|error| format!("damaged: {error}")))
}

/// Lets go of the frozen request of a row that is done or was taken back: what is left answers its sender for as long as
/// the row is kept, and takes next to no room.
pub(super) fn empty(connection: &Connection, id: u64) -> Result<(), DbError> {
    let id = crate::db::integer(id);
    let sql = "SELECT mesh, client_message_id, sender_session, request_fingerprint FROM outbox WHERE id = ?1";
    let crc = connection.prepare_cached(sql)?.query_row([id], |row| {
        let (mesh, name): (String, String) = (row.get(0)?, row.get(1)?);
        Ok(sum(&mesh, &name, &row.get(2)?, &row.get(3)?, &[]))
    })?;
    connection
        .prepare_cached("UPDATE outbox SET payload = x'', crc = ?2 WHERE id = ?1")?
        .execute((id, crc))?;
    Ok(())
}

/// The checksum of a row.
pub(super) fn sum(mesh: &str, id: &str, sender: &[u8; 32], print: &[u8; 32], payload: &[u8]) -> u32 {
    checksum(&[mesh.as_bytes(), id.as_bytes(), sender, print, payload])
}
