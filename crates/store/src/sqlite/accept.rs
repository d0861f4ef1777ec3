//! Accepting a message: the id is claimed and the entry appended, both or neither. A run has a third row.
//!
//! The rule is `tenure_mesh::messages::accept::decide`. Almost every message is new, so this first asks it what to do if
//! the id is unknown, and claims the id with one insert that finds a twin by itself. Only then, or when the
//! answer would be a refusal, the record is read and the rule is asked again.

use rusqlite::types::Type;
use rusqlite::{CachedStatement, Connection, OptionalExtension, params};
use tenure_mesh::messages::accept::{Accept, Accepted, Decision, Remembered, decide};
use tenure_mesh::messages::envelope::Lane;
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::fingerprint::Fingerprint;
use tenure_proto::ids::MessageId;
use tenure_proto::log::LogName;

use super::cache::{self, Mesh};
use super::fault::{Fault, natural};
use super::place::Place;
use super::{call, entry, integer, session};
use crate::Result;

/// The statements of an accept, prepared when the first of a batch needs them and held until the last has: looking them
/// up each time was a twentieth of the writer's time.
pub(super) struct Accepting<'c> {
    connection: &'c Connection,
    held: Option<(CachedStatement<'c>, CachedStatement<'c>)>,
}

impl<'c> Accepting<'c> {
    /// For one batch on `connection`.
    pub(super) fn new(connection: &'c Connection) -> Accepting<'c> {
        Accepting { connection, held: None }
    }

    /// The one that claims an id, and the one that appends.
    fn statements(&mut self) -> Result<&mut (CachedStatement<'c>, CachedStatement<'c>), Fault> {
        match &mut self.held {
            Some(held) => Ok(held),
            none => Ok(none.insert((claiming(self.connection)?, entry::appending(self.connection)?))),
        }
    }
}

/// Decides about `accept` and carries that out.
pub(super) fn accept(
    accepting: &mut Accepting<'_>,
    mesh: &mut Mesh,
    accept: &Accept,
) -> Result<Accepted, Fault> {
    let (connection, id) = (accepting.connection, mesh.id);
    let decision = decide(
        accept,
        None,
        |session| session::member(connection, id, session),
        |member| session::was_seen(connection, id, member),
    )?;
    let log = match decision {
        Decision::Append(log) => log,
        Decision::Answer(unless_known) => {
            return Ok(known(connection, mesh, accept)?.unwrap_or(unless_known));
        }
    };
    if !mesh.is_open(&log) {
        // A duplicate must not even make a log, nor bring back one that is hidden.
        mesh.find_log(connection, &log)?;
        if !mesh.is_open(&log)
            && let Some(answer) = known(connection, mesh, accept)?
        {
            return Ok(answer);
        }
        if mesh.make_log(connection, &log)?.is_none() {
            return Ok(no_number("this store can number no more logs"));
        }
    }
    append(accepting, mesh, accept, log)
}

/// Appends to a log that is open.
fn append(
    accepting: &mut Accepting<'_>,
    mesh: &mut Mesh,
    accept: &Accept,
    name: LogName,
) -> Result<Accepted, Fault> {
    let (connection, envelope) = (accepting.connection, &*accept.envelope);
    let lane = Lane::of(&name, envelope.priority);
    let sender = mesh.make_sender(connection, &envelope.scope())?;
    let (log, scratch) = mesh.log_and_scratch(&name).ok_or_else(|| Fault::corrupt("a log was lost"))?;
    let Some(seq) = entry::next_seq(log) else {
        let full = no_number("this log can number no more entries");
        return Ok(known(connection, mesh, accept)?.unwrap_or(full));
    };
    let place = Place::new(log.id, lane, seq);
    let (claiming, appending) = accepting.statements()?;
    if !claim(claiming, sender, accept, place)? {
        let twin = || Fault::corrupt("a dedupe record is there and is not");
        return known(connection, mesh, accept)?.ok_or_else(twin);
    }
    entry::append(appending, log, (lane, seq), envelope, accept.remember_until, scratch)?;
    if let Some(deadline) = accept.run {
        call::start(connection, mesh.id, envelope, place, deadline)?;
    }
    Ok(Accepted::Fresh { log: name, lane, seq })
}

fn claiming(connection: &Connection) -> Result<CachedStatement<'_>, Fault> {
    Ok(connection.prepare_cached(
        "INSERT INTO dedupe (sender, client_id, id, fingerprint, place, first_seen_at, expires_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO NOTHING",
    )?)
}

/// Writes the dedupe record, unless there is one.
fn claim(
    claiming: &mut CachedStatement<'_>,
    sender: i64,
    accept: &Accept,
    place: Place,
) -> Result<bool, Fault> {
    let envelope = &*accept.envelope;
    let claimed = claiming.execute(params![
        sender,
        &*envelope.client_message_id,
        envelope.id.0.to_be_bytes(),
        accept.fingerprint.0,
        place.pack(),
        integer(envelope.sent_at),
        accept.remember_until.map(integer),
    ])?;
    Ok(claimed > 0)
}

/// What the rule says if the id is known.
fn known(connection: &Connection, mesh: &mut Mesh, accept: &Accept) -> Result<Option<Accepted>, Fault> {
    let envelope = &*accept.envelope;
    let Some(sender) = mesh.find_sender(connection, &envelope.scope())? else { return Ok(None) };
    let Some(record) = record(connection, sender, &envelope.client_message_id)? else { return Ok(None) };
    let (_, log) = cache::log_name(connection, record.place.log)?;
    let found = Remembered {
        id: record.id,
        fingerprint: record.fingerprint,
        log,
        seq: record.place.seq,
        first_seen_at: record.first_seen_at,
        available: entry::exists(connection, record.place)?,
    };
    match decide(accept, Some(found), |_| Ok::<_, Fault>(None), |_| Ok(false))? {
        Decision::Answer(answer) => Ok(Some(answer)),
        Decision::Append(_) => Err(Fault::corrupt("a known id was to be appended again")),
    }
}

/// A dedupe record.
pub(super) struct Record {
    pub(super) id: MessageId,
    pub(super) fingerprint: Fingerprint,
    pub(super) place: Place,
    pub(super) first_seen_at: u64,
    /// Why it was a dead letter, once that is deleted.
    pub(super) lost: Option<String>,
}

/// The record of the id that a sender used, if it did.
pub(super) fn record(connection: &Connection, sender: i64, client_id: &str) -> Result<Option<Record>, Fault> {
    let mut statement = connection.prepare_cached(
        "SELECT id, fingerprint, place, first_seen_at, lost FROM dedupe WHERE sender = ?1 AND client_id = ?2",
    )?;
    let read = |row: &rusqlite::Row<'_>| {
        let negative = |_| {
            let why = Fault::corrupt("first_seen_at").reading();
            rusqlite::Error::FromSqlConversionFailure(3, Type::Integer, why.into())
        };
        Ok(Record {
            id: MessageId(u128::from_be_bytes(row.get(0)?)),
            fingerprint: Fingerprint(row.get(1)?),
            place: Place::unpack(row.get(2)?),
            first_seen_at: natural(row.get(3)?, "first_seen_at").map_err(negative)?,
            lost: row.get(4)?,
        })
    };
    Ok(statement.query_row(params![sender, client_id], read).optional()?)
}

/// Points the record of a message at another place, if it is still that message's.
pub(super) fn move_record(
    connection: &Connection,
    sender: i64,
    (client_id, id): (&str, MessageId),
    place: Place,
) -> Result<(), Fault> {
    connection
        .prepare_cached("UPDATE dedupe SET place = ?4 WHERE sender = ?1 AND client_id = ?2 AND id = ?3")?
        .execute(params![sender, client_id, id.0.to_be_bytes(), place.pack()])?;
    Ok(())
}

/// Notes why a message is in no log and no dead letter any more.
pub(super) fn mark_lost(
    connection: &Connection,
    sender: i64,
    (client_id, id): (&str, MessageId),
    reason: &str,
) -> Result<(), Fault> {
    connection
        .prepare_cached("UPDATE dedupe SET lost = ?4 WHERE sender = ?1 AND client_id = ?2 AND id = ?3")?
        .execute(params![sender, client_id, id.0.to_be_bytes(), reason])?;
    Ok(())
}

fn no_number(message: &str) -> Accepted {
    Accepted::Refused(WireError::new(ErrorCode::Busy, message))
}
