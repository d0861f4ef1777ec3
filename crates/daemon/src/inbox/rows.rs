//! Rows of the inbox, as they are written and read.

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Row, params_from_iter};
use tenure_outbox::arrival::Recipient;
use tenure_proto::Codec;
use tenure_proto::message::{Address, Message};
use tenure_proto::name::MeshName;

use super::PAGE_BYTES;
use crate::db::{DbError, checksum, integer, natural};

/// Rows that one sweep deletes.
const SLICE: u32 = 1_000;
/// Letters that are let go at once: few, for each may be a megabyte of pages.
const SPARED: u32 = 16;

/// A kept message.
#[derive(Clone, Debug, PartialEq)]
pub struct Letter {
    /// Its number: later ones came later.
    pub id: u64,
    /// Of which mesh.
    pub mesh: String,
    /// Whose it is.
    pub recipient: Recipient,
    /// When it came, Unix milliseconds.
    pub received_at: u64,
    /// When it was seen.
    pub seen_at: Option<u64>,
    /// The message.
    pub message: Message,
}

/// Which messages are wanted.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Of this mesh.
    pub mesh: String,
    /// Of these recipients.
    pub recipients: Vec<Recipient>,
    /// After this number.
    pub after: u64,
    /// Not before this moment, Unix milliseconds.
    pub since: Option<u64>,
    /// From this session or member key, or this name.
    pub from: Option<String>,
    /// Posted to this topic.
    pub topic: Option<String>,
    /// Only what nobody has seen.
    pub unseen: bool,
    /// At most so many.
    pub limit: usize,
}

pub(super) struct New {
    mesh: String,
    recipient: Recipient,
    json: Vec<u8>,
    message: Message,
    wall: u64,
}

impl New {
    pub(super) fn of(
        mesh: &MeshName,
        recipient: &Recipient,
        message: &Message,
        json: Vec<u8>,
        wall: u64,
    ) -> New {
        New { mesh: mesh.to_string(), recipient: *recipient, json, message: message.clone(), wall }
    }
}

pub(super) fn insert(connection: &Connection, new: New) -> Result<Option<Letter>, DbError> {
    let New { mesh, recipient, json, message, wall } = new;
    let (reader, id) = (recipient.to_string(), message.id.to_string());
    let topic = match &message.to {
        Address::Topic(name) => Some(name.as_str()),
        _ => None,
    };
    let crc = sum(&mesh, &reader, &id, &json);
    let sql = "INSERT OR IGNORE INTO inbox (mesh, recipient, message_id, sender_session, sender_member, sender_name, \
               topic, message, crc, received_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
    let inserted = connection.prepare_cached(sql)?.execute((
        &mesh,
        &reader,
        &id,
        message.from.session.to_string(),
        message.from.member.to_string(),
        &message.from.name,
        topic,
        &json,
        crc,
        integer(wall),
    ))?;
    if inserted == 0 {
        return Ok(None);
    }
    let id = natural(connection.last_insert_rowid());
    Ok(Some(Letter { id, mesh, recipient, received_at: wall, seen_at: None, message }))
}

pub(super) fn list(connection: &Connection, filter: &Filter) -> Result<(Vec<Letter>, Option<u64>), DbError> {
    let mut sql = "SELECT id, mesh, recipient, message_id, message, crc, received_at, seen_at FROM inbox \
                   WHERE id > ? AND mesh = ?"
        .to_owned();
    let mut values = vec![Value::Integer(integer(filter.after)), Value::Text(filter.mesh.clone())];
    sql += " AND recipient IN (";
    sql += &vec!["?"; filter.recipients.len()].join(", ");
    sql += ")";
    values.extend(filter.recipients.iter().map(|recipient| Value::Text(recipient.to_string())));
    if let Some(since) = filter.since {
        sql += " AND received_at >= ?";
        values.push(Value::Integer(integer(since)));
    }
    if let Some(from) = &filter.from {
        sql += " AND ? IN (sender_session, sender_member, sender_name)";
        values.push(Value::Text(from.clone()));
    }
    if let Some(topic) = &filter.topic {
        sql += " AND topic = ?";
        values.push(Value::Text(topic.clone()));
    }
    if filter.unseen {
        sql += " AND seen_at IS NULL";
    }
    sql += " ORDER BY id";
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query(params_from_iter(values))?;
    let (mut letters, mut bytes, mut last) = (Vec::new(), 0, filter.after);
    while let Some(row) = rows.next()? {
        if letters.len() >= filter.limit || bytes >= PAGE_BYTES {
            return Ok((letters, Some(last)));
        }
        let (id, size, letter) = read(row)?;
        (last, bytes) = (id, bytes + size);
        letters.extend(letter);
    }
    Ok((letters, None))
}

/// Messages of everybody, and the last number that was looked at: a damaged row is passed over.
pub(super) fn after(
    connection: &Connection,
    after: u64,
    limit: usize,
) -> Result<(Vec<Letter>, Option<u64>), DbError> {
    let sql = "SELECT id, mesh, recipient, message_id, message, crc, received_at, seen_at FROM inbox \
               WHERE id > ?1 ORDER BY id LIMIT ?2";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query((integer(after), integer(limit as u64)))?;
    let (mut letters, mut last) = (Vec::new(), None);
    while let Some(row) = rows.next()? {
        let (id, _, letter) = read(row)?;
        letters.extend(letter);
        last = Some(id);
    }
    Ok((letters, last))
}

/// A row's number and size, and its message, unless that was let go or does not match its checksum.
fn read(row: &Row<'_>) -> Result<(u64, usize, Option<Letter>), DbError> {
    let id = natural(row.get(0)?);
    let (mesh, reader, message_id): (String, String, String) = (row.get(1)?, row.get(2)?, row.get(3)?);
    let json: Vec<u8> = row.get(4)?;
    let sound = row.get::<_, i64>(5)? == i64::from(sum(&mesh, &reader, &message_id, &json));
    let (received_at, seen_at) = (natural(row.get(6)?), row.get::<_, Option<i64>>(7)?.map(natural));
    let message = Codec::Json.decode::<Message>(&json).ok().filter(|_| sound);
    if message.is_none() && !(sound && json.is_empty()) {
        tracing::error!(event = "inbox_row_damaged", row = id, "a row does not match its checksum");
    }
    let letter = message.zip(reader.parse().ok()).map(|(message, recipient)| Letter {
        id,
        mesh,
        recipient,
        received_at,
        seen_at,
        message,
    });
    Ok((id, json.len(), letter))
}

pub(super) fn newest(connection: &Connection) -> Result<u64, DbError> {
    // Not the largest that is there: what was forgotten had a number too.
    let sql = "SELECT seq FROM sqlite_sequence WHERE name = 'inbox'";
    let newest: Option<i64> = connection.query_row(sql, [], |row| row.get(0)).optional()?;
    Ok(natural(newest.unwrap_or(0)))
}

pub(super) fn seen(
    connection: &Connection,
    mesh: &str,
    recipients: &[Recipient],
    ids: &[u64],
    wall: u64,
) -> Result<u64, DbError> {
    let marks = vec!["?"; recipients.len()].join(", ");
    let sql = format!(
        "UPDATE inbox SET seen_at = ? WHERE id = ? AND mesh = ? AND seen_at IS NULL AND recipient IN ({marks})"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let mut marked = 0;
    for id in ids {
        let mut values =
            vec![Value::Integer(integer(wall)), Value::Integer(integer(*id)), Value::Text(mesh.to_owned())];
        values.extend(recipients.iter().map(|recipient| Value::Text(recipient.to_string())));
        marked += statement.execute(params_from_iter(values))? as u64;
    }
    Ok(marked)
}

pub(super) fn prune(connection: &Connection, before: u64) -> Result<u64, DbError> {
    let sql =
        format!("DELETE FROM inbox WHERE id IN (SELECT id FROM inbox WHERE seen_at < ?1 LIMIT {SLICE})");
    Ok(connection.execute(&sql, [integer(before)])? as u64)
}

/// Lets go of the letters that were seen first, up to a slice of them; answers how many. Their rows stay, so that none of
/// them is new when it comes again.
pub(super) fn spare(connection: &Connection) -> Result<u64, DbError> {
    let sql = format!(
        "SELECT id, mesh, recipient, message_id FROM inbox INDEXED BY inbox_spare \
         WHERE seen_at IS NOT NULL AND length(message) > 0 ORDER BY seen_at LIMIT {SPARED}"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let read = |row: &Row<'_>| -> rusqlite::Result<(i64, u32)> {
        let (mesh, reader, id): (String, String, String) = (row.get(1)?, row.get(2)?, row.get(3)?);
        Ok((row.get(0)?, sum(&mesh, &reader, &id, &[])))
    };
    let spared = statement.query_map([], read)?.collect::<Result<Vec<_>, _>>()?;
    let mut empty = connection.prepare_cached("UPDATE inbox SET message = x'', crc = ?2 WHERE id = ?1")?;
    for row in &spared {
        empty.execute(*row)?;
    }
    Ok(spared.len() as u64)
}

/// Whether a message is kept already.
pub(super) fn is_kept(connection: &Connection, new: &New) -> Result<bool, DbError> {
    let sql = "SELECT EXISTS (SELECT 1 FROM inbox WHERE mesh = ?1 AND recipient = ?2 AND message_id = ?3)";
    let key = (&new.mesh, new.recipient.to_string(), new.message.id.to_string());
    Ok(connection.prepare_cached(sql)?.query_row(key, |row| row.get(0))?)
}

pub(super) fn forget(connection: &Connection, recipient: &Recipient) -> Result<u64, DbError> {
    let sql =
        format!("DELETE FROM inbox WHERE id IN (SELECT id FROM inbox WHERE recipient = ?1 LIMIT {SLICE})");
    Ok(connection.execute(&sql, [recipient.to_string()])? as u64)
}

fn sum(mesh: &str, recipient: &str, id: &str, json: &[u8]) -> u32 {
    checksum(&[mesh.as_bytes(), recipient.as_bytes(), id.as_bytes(), json])
}
