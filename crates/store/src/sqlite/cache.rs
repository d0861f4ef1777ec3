//! What the writer remembers of the file, so that an accept need not look it up.
//!
//! It is true inside the open transaction as well, so it is emptied whenever one fails. Each map is bounded and
//! simply emptied when it is full: a miss costs a few look-ups.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension, params};
use tenure_mesh::messages::envelope::Lane;
use tenure_proto::ids::MemberKey;
use tenure_proto::log::LogName;
use tenure_proto::name::MeshName;

use super::fault::{Fault, natural};
use super::place::{LOG_MAX, Place};
use super::sweep::Sweeps;
use crate::{Result, StoreError};

/// Logs, and senders, that are remembered of one mesh: about 30 MB.
const NAMES_MAX: usize = 131_072;
/// Meshes that are remembered.
const MESHES_MAX: usize = 1_024;

/// What the writer remembers.
#[derive(Debug, Default)]
pub(super) struct Cache {
    meshes: HashMap<MeshName, Mesh>,
    /// Where the sweeps are; they need not be right.
    pub(super) sweeps: Sweeps,
    /// Messages that were accepted in the open transaction.
    pub(super) accepted: u64,
}

/// What is remembered of one mesh.
#[derive(Debug)]
pub(super) struct Mesh {
    pub(super) id: i64,
    logs: HashMap<LogName, Log>,
    senders: HashMap<MemberKey, i64>,
    /// Room to encode a head in.
    scratch: Vec<u8>,
}

/// A log's number and how far its lanes are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Log {
    pub(super) id: i64,
    /// Whether restoring leaves it out.
    hidden: bool,
    pub(super) tails: [Tail; 3],
}

/// The last entry that a lane ever had: its seq, and the lane's totals with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tail {
    pub(super) end: u64,
    pub(super) count: u64,
    pub(super) bytes: u64,
}

impl Log {
    /// The last seq of the log.
    pub(super) fn end(&self) -> u64 {
        self.tails.iter().map(|tail| tail.end).max().unwrap_or_default()
    }
}

impl Cache {
    /// Forgets everything: the transaction that it was true in is undone.
    pub(super) fn clear(&mut self) {
        *self = Cache::default();
    }

    /// The mesh called `name`, made on first use.
    pub(super) fn mesh(&mut self, connection: &Connection, name: &MeshName) -> Result<&mut Mesh, Fault> {
        if !self.meshes.contains_key(name) {
            let id = match find_mesh(connection, name)? {
                Some(id) => id,
                None => {
                    connection.execute("INSERT INTO meshes (name) VALUES (?1)", [name.as_str()])?;
                    connection.last_insert_rowid()
                }
            };
            make_room(&mut self.meshes, MESHES_MAX);
            self.meshes.insert(
                name.clone(),
                Mesh { id, logs: HashMap::new(), senders: HashMap::new(), scratch: Vec::new() },
            );
        }
        self.meshes.get_mut(name).ok_or_else(|| Fault::corrupt("a mesh was lost"))
    }

    /// Forgets a log of whichever mesh, by its name.
    pub(super) fn forget_log(&mut self, name: &LogName) {
        self.meshes.values_mut().for_each(|mesh| _ = mesh.logs.remove(name));
    }
}

impl Mesh {
    /// Whether the log called `name` is remembered as one to be written to: what almost every accept finds.
    pub(super) fn is_open(&self, name: &LogName) -> bool {
        self.logs.get(name).is_some_and(|log| !log.hidden)
    }

    /// The log called `name`, if it was ever written to.
    pub(super) fn find_log(
        &mut self,
        connection: &Connection,
        name: &LogName,
    ) -> Result<Option<&mut Log>, Fault> {
        if !self.logs.contains_key(name) {
            let Some((id, hidden)) = find_log(connection, self.id, name)? else { return Ok(None) };
            make_room(&mut self.logs, NAMES_MAX);
            self.logs.insert(name.clone(), Log { id, hidden, tails: tails(connection, id, name)? });
        }
        Ok(self.logs.get_mut(name))
    }

    /// The log called `name` to be written to, made on first use; `None` if the store can number no more logs.
    pub(super) fn make_log(
        &mut self,
        connection: &Connection,
        name: &LogName,
    ) -> Result<Option<&mut Log>, Fault> {
        if self.find_log(connection, name)?.is_none() {
            let last: Option<i64> = connection
                .query_row("SELECT seq FROM sqlite_sequence WHERE name = 'logs'", [], |row| row.get(0))
                .optional()?;
            if last.unwrap_or(0) >= LOG_MAX {
                return Ok(None);
            }
            connection
                .prepare_cached("INSERT INTO logs (mesh, name) VALUES (?1, ?2)")?
                .execute(params![self.id, name.to_string()])?;
            make_room(&mut self.logs, NAMES_MAX);
            let id = connection.last_insert_rowid();
            self.logs.insert(name.clone(), Log { id, hidden: false, tails: [Tail::default(); 3] });
        }
        let log = self.logs.get_mut(name);
        if let Some(log) = log.filter(|log| log.hidden) {
            connection.execute("UPDATE logs SET hidden = 0 WHERE id = ?1", [log.id])?;
            log.hidden = false;
        }
        Ok(self.logs.get_mut(name))
    }

    /// Leaves a log out of what a start restores, as `how` says, until it is written to again; its numbers stay.
    pub(super) fn hide_log(&mut self, connection: &Connection, name: &LogName, how: u8) -> Result<(), Fault> {
        if let Some(log) = self.find_log(connection, name)? {
            connection
                .prepare_cached("UPDATE logs SET hidden = ?2 WHERE id = ?1")?
                .execute(params![log.id, how])?;
            log.hidden = true;
        }
        Ok(())
    }

    /// A log that was found or made just now, and room to encode a head in.
    pub(super) fn log_and_scratch(&mut self, name: &LogName) -> Option<(&mut Log, &mut Vec<u8>)> {
        Some((self.logs.get_mut(name)?, &mut self.scratch))
    }

    /// As [`Mesh::make_log`], where running out of numbers fails the transaction.
    pub(super) fn need_log(&mut self, connection: &Connection, name: &LogName) -> Result<&mut Log, Fault> {
        let out = || StoreError::Unavailable(format!("no number is left for the log {name}"));
        self.make_log(connection, name)?.ok_or_else(|| out().into())
    }

    /// The number of a sender, if it ever sent.
    pub(super) fn find_sender(
        &mut self,
        connection: &Connection,
        member: &MemberKey,
    ) -> Result<Option<i64>, Fault> {
        if let Some(id) = self.senders.get(member) {
            return Ok(Some(*id));
        }
        let found = find_sender(connection, self.id, member)?;
        if let Some(id) = found {
            make_room(&mut self.senders, NAMES_MAX);
            self.senders.insert(*member, id);
        }
        Ok(found)
    }

    /// The number of a sender, made on first use.
    pub(super) fn make_sender(&mut self, connection: &Connection, member: &MemberKey) -> Result<i64, Fault> {
        if let Some(id) = self.find_sender(connection, member)? {
            return Ok(id);
        }
        connection
            .prepare_cached("INSERT INTO senders (mesh, member) VALUES (?1, ?2)")?
            .execute(params![self.id, member.0])?;
        let id = connection.last_insert_rowid();
        make_room(&mut self.senders, NAMES_MAX);
        self.senders.insert(*member, id);
        Ok(id)
    }
}

fn make_room<K, V>(map: &mut HashMap<K, V>, max: usize) {
    if map.len() >= max {
        map.clear();
    }
}

/// The number of a mesh, if it has one.
pub(super) fn find_mesh(connection: &Connection, name: &MeshName) -> Result<Option<i64>, Fault> {
    let mut statement = connection.prepare_cached("SELECT id FROM meshes WHERE name = ?1")?;
    Ok(statement.query_row([name.as_str()], |row| row.get(0)).optional()?)
}

/// The number of a sender, if it has one.
pub(super) fn find_sender(
    connection: &Connection,
    mesh: i64,
    member: &MemberKey,
) -> Result<Option<i64>, Fault> {
    let mut statement =
        connection.prepare_cached("SELECT id FROM senders WHERE mesh = ?1 AND member = ?2")?;
    Ok(statement.query_row(params![mesh, member.0], |row| row.get(0)).optional()?)
}

/// The number of a log and whether it is hidden, if it exists.
pub(super) fn find_log(
    connection: &Connection,
    mesh: i64,
    name: &LogName,
) -> Result<Option<(i64, bool)>, Fault> {
    let mut statement =
        connection.prepare_cached("SELECT id, hidden FROM logs WHERE mesh = ?1 AND name = ?2")?;
    let found = statement.query_row(params![mesh, name.to_string()], |row| Ok((row.get(0)?, row.get(1)?)));
    Ok(found.optional()?)
}

/// The name and mesh of a log.
pub(super) fn log_name(connection: &Connection, id: i64) -> Result<(i64, LogName), Fault> {
    let mut statement = connection.prepare_cached("SELECT mesh, name FROM logs WHERE id = ?1")?;
    let found: Option<(i64, String)> =
        statement.query_row([id], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    let (mesh, name) = found.ok_or_else(|| Fault::corrupt(format!("log number {id} has no name")))?;
    let parsed = name.parse().map_err(|_| Fault::corrupt(format!("log number {id} is called {name:?}")))?;
    Ok((mesh, parsed))
}

/// How far each lane of a log is: what the last entry says, or what was noted when it left.
pub(super) fn tails(connection: &Connection, id: i64, name: &LogName) -> Result<[Tail; 3], Fault> {
    let mut tails = [Tail::default(); 3];
    for lane in Lane::of_log(name) {
        let noted: Option<(i64, i64, i64)> = connection
            .prepare_cached("SELECT last_seq, count, bytes FROM lanes WHERE log = ?1 AND lane = ?2")?
            .query_row(params![id, lane.0], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
            .optional()?;
        let last: Option<(i64, i64, i64)> = connection
            .prepare_cached(
                "SELECT place, count, bytes FROM entries WHERE place BETWEEN ?1 AND ?2
                 ORDER BY place DESC LIMIT 1",
            )?
            .query_row(params![Place::first(id, *lane).pack(), Place::last(id, *lane).pack()], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })
            .optional()?;
        let noted = noted.map(tail).transpose()?.unwrap_or_default();
        let last = last.map(|(place, count, bytes)| tail((Place::unpack(place).seq as i64, count, bytes)));
        let last = last.transpose()?.unwrap_or_default();
        tails[lane.index()] = if last.end > noted.end { last } else { noted };
    }
    Ok(tails)
}

fn tail((end, count, bytes): (i64, i64, i64)) -> Result<Tail, Fault> {
    Ok(Tail {
        end: natural(end, "a seq")?,
        count: natural(count, "a count")?,
        bytes: natural(bytes, "a size")?,
    })
}
