//! What is still known of an entry whose bytes do not match their checksum.
//!
//! Its head is believed as far as the dedupe record of the message that it names points to the same place. Else the record
//! is looked for by the place, which reads all records: there are few such entries. A body is never given.

use rusqlite::{Connection, OptionalExtension};
use tenure_mesh::messages::envelope::{Body, Entry, Envelope, Lane};
use tenure_mesh::store::record::{DamagedEntry, Origin};
use tenure_proto::ids::{MemberKey, MessageId, SessionKey};
use tenure_proto::log::LogName;
use tenure_proto::message::{Address, Fallback, MessageKind, Priority, Sender};

use super::entry::Raw;
use super::fault::Fault;
use super::place::Place;
use super::{accept, cache};
use crate::{Result, head};

/// A damaged entry as a page names it.
pub(super) fn named(
    connection: &Connection,
    mesh: i64,
    place: Place,
    raw: Option<&Raw<'_>>,
) -> Result<DamagedEntry, Fault> {
    let envelope = believed(connection, mesh, place, raw)?;
    let origin = envelope.map(|envelope| Origin {
        session: envelope.from.session,
        id: envelope.id,
        client_message_id: envelope.client_message_id,
    });
    Ok(DamagedEntry { seq: place.seq, origin })
}

/// A damaged entry with an empty body and what is known of the rest.
pub(super) fn husk(
    connection: &Connection,
    mesh: i64,
    log: &LogName,
    place: Place,
    raw: Option<&Raw<'_>>,
) -> Result<Entry, Fault> {
    let envelope = match believed(connection, mesh, place, raw)? {
        Some(envelope) => envelope,
        None => recorded(connection, log, place, raw)?,
    };
    let envelope = Envelope { body: Body::Text(String::new()), ..envelope };
    Ok(Entry::new(log.clone(), place.lane, place.seq, envelope.into()))
}

/// What its head says, if that can be believed.
fn believed(
    connection: &Connection,
    mesh: i64,
    place: Place,
    raw: Option<&Raw<'_>>,
) -> Result<Option<Envelope>, Fault> {
    let Some(raw) = raw else { return Ok(None) };
    let sent_at = u64::try_from(raw.sent_at).unwrap_or(0);
    let Some((envelope, _)) = head::decode(raw.head, b"", sent_at) else { return Ok(None) };
    let Some(sender) = cache::find_sender(connection, mesh, &envelope.scope())? else { return Ok(None) };
    let record = accept::record(connection, sender, &envelope.client_message_id)?;
    let same = record.is_some_and(|record| record.id == envelope.id && record.place == place);
    Ok(same.then_some(envelope))
}

/// What the record of whatever was accepted at this place says.
fn recorded(
    connection: &Connection,
    log: &LogName,
    place: Place,
    raw: Option<&Raw<'_>>,
) -> Result<Envelope, Fault> {
    let found: Option<(String, [u8; 16], [u8; 32])> = connection
        .prepare_cached(
            "SELECT client_id, dedupe.id, member FROM dedupe JOIN senders ON senders.id = sender
             WHERE place = ?1 LIMIT 1",
        )?
        .query_row([place.pack()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    let (client_id, id, member) = found.unwrap_or_default();
    Ok(Envelope {
        id: MessageId(u128::from_be_bytes(id)),
        client_message_id: client_id.into(),
        from: Sender { member: MemberKey(member), session: SessionKey([0; 32]), name: String::new() },
        to: match log {
            LogName::Session(session) => Address::Session(*session),
            LogName::Member(member) => Address::Member(*member),
            LogName::Topic(topic, _) => Address::Topic(topic.clone()),
        },
        key: None,
        priority: match place.lane {
            Lane(0) if log.is_inbox() => Priority::Now,
            Lane(2) => Priority::Low,
            _ => Priority::Next,
        },
        reply_to: None,
        meta: None,
        body: Body::Text(String::new()),
        content_type: None,
        sent_at: raw.map_or(0, |raw| u64::try_from(raw.sent_at).unwrap_or(0)),
        expires_at: None,
        not_before: None,
        fallback: Fallback::Hold,
        kind: MessageKind::Message,
    })
}
