//! Topics, and who is subscribed to them.

use rusqlite::{Connection, params};
use tenure_mesh::store::record::{SubRecord, TopicRecord, TopicState};
use tenure_proto::ids::{MemberKey, SessionKey, SubId};
use tenure_proto::name::{GroupName, TopicName};
use tenure_proto::subscribe::AckMode;

use super::fault::{Fault, natural};
use super::integer;
use crate::Result;

/// Keeps a topic, in place of what it was.
pub(super) fn put(connection: &Connection, mesh: i64, topic: &TopicRecord) -> Result<(), Fault> {
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO topics (mesh, name, partitions, retention_ms, created_at, owner, state)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?
        .execute(params![
            mesh,
            topic.name.as_str(),
            topic.partitions,
            topic.retention_ms.map(integer),
            integer(topic.created_at),
            topic.owner.map(|member| member.0),
            match topic.state {
                TopicState::Living => 0,
                TopicState::Unused => 1,
                TopicState::Deleted => 2,
            },
        ])?;
    Ok(())
}

/// Forgets a topic.
pub(super) fn drop(connection: &Connection, mesh: i64, name: &TopicName) -> Result<(), Fault> {
    connection
        .prepare_cached("DELETE FROM topics WHERE mesh = ?1 AND name = ?2")?
        .execute(params![mesh, name.as_str()])?;
    Ok(())
}

/// Every topic of a mesh, by name.
pub(super) fn all(connection: &Connection, mesh: i64) -> Result<Vec<TopicRecord>, Fault> {
    let mut statement = connection.prepare_cached(
        "SELECT name, partitions, retention_ms, created_at, owner, state FROM topics WHERE mesh = ?1 ORDER BY name",
    )?;
    let mut rows = statement.query([mesh])?;
    let mut topics = Vec::new();
    while let Some(row) = rows.next()? {
        let name: String = row.get(0)?;
        let retention: Option<i64> = row.get(2)?;
        topics.push(TopicRecord {
            name: parse(&name, "a topic")?,
            partitions: row.get(1)?,
            retention_ms: retention.map(|ms| natural(ms, "a retention")).transpose()?,
            created_at: natural(row.get(3)?, "created_at")?,
            owner: row.get::<_, Option<[u8; 32]>>(4)?.map(MemberKey),
            state: match row.get(5)? {
                0 => TopicState::Living,
                1 => TopicState::Unused,
                2 => TopicState::Deleted,
                other => return Err(Fault::corrupt(format!("topic {name} is in state {other}"))),
            },
        });
    }
    Ok(topics)
}

/// Keeps a subscription, in place of what its name stood for.
pub(super) fn put_sub(connection: &Connection, mesh: i64, sub: &SubRecord) -> Result<(), Fault> {
    let ack_mode = match sub.ack_mode {
        AckMode::Manual => "manual",
        AckMode::Auto => "auto",
    };
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO subs (mesh, session, sub, topic, grp, partition, ack_mode, prefetch)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        )?
        .execute(params![
            mesh,
            sub.session.0,
            sub.sub.as_str(),
            sub.topic.as_str(),
            sub.group.as_ref().map(GroupName::as_str),
            sub.partition,
            ack_mode,
            sub.prefetch,
        ])?;
    Ok(())
}

/// Forgets a subscription.
pub(super) fn drop_sub(
    connection: &Connection,
    mesh: i64,
    session: &SessionKey,
    sub: &SubId,
) -> Result<(), Fault> {
    connection
        .prepare_cached("DELETE FROM subs WHERE mesh = ?1 AND session = ?2 AND sub = ?3")?
        .execute(params![mesh, session.0, sub.as_str()])?;
    Ok(())
}

/// Forgets all subscriptions of a session.
pub(super) fn drop_subs(connection: &Connection, mesh: i64, session: &SessionKey) -> Result<(), Fault> {
    connection
        .prepare_cached("DELETE FROM subs WHERE mesh = ?1 AND session = ?2")?
        .execute(params![mesh, session.0])?;
    Ok(())
}

/// Every subscription of a mesh, by session and name.
pub(super) fn subs(connection: &Connection, mesh: i64) -> Result<Vec<SubRecord>, Fault> {
    let mut statement = connection.prepare_cached(
        "SELECT session, sub, topic, grp, partition, ack_mode, prefetch FROM subs
         WHERE mesh = ?1 ORDER BY session, sub",
    )?;
    let mut rows = statement.query([mesh])?;
    let mut subs = Vec::new();
    while let Some(row) = rows.next()? {
        let (sub, topic): (String, String) = (row.get(1)?, row.get(2)?);
        let (group, ack_mode): (Option<String>, String) = (row.get(3)?, row.get(5)?);
        subs.push(SubRecord {
            session: SessionKey(row.get(0)?),
            sub: parse(&sub, "a subscription")?,
            topic: parse(&topic, "a topic")?,
            group: group.map(|name| parse(&name, "a group")).transpose()?,
            partition: row.get(4)?,
            ack_mode: if ack_mode == "auto" { AckMode::Auto } else { AckMode::Manual },
            prefetch: row.get(6)?,
        });
    }
    Ok(subs)
}

/// A name that must read.
pub(super) fn parse<T: std::str::FromStr>(text: &str, what: &str) -> Result<T, Fault> {
    text.parse().map_err(|_| Fault::corrupt(format!("{what} is called {text:?}")))
}
