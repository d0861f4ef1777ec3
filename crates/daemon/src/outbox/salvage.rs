//! Saves what can be read of a damaged outbox: row by row, each held against its checksum.
//!
//! A damaged page takes the rows on it, and whoever walks over it. So numbers of rows are gathered from both ends of the
//! table and of its indexes, and every row is then fetched by its number alone. To what is then still missing nothing leads
//! any more: it is looked for on every page there is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;

use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row};
use tenure_outbox::{LaneId, Status};
use tenure_proto::Codec;
use tenure_proto::ids::SessionKey;
use tenure_proto::message::SendParams;

use super::accept::{Request, lane};
use super::pages::{self, PAGE_BYTES};
use super::{row, schema};
use crate::db::{self, DbError, integer, natural};

/// Numbers between what was walked from both ends that are tried one by one.
const GAP: u64 = 1_000_000;
/// Rows of one transaction.
const BATCH: usize = 1_000;
/// The largest number that is believed of a damaged file.
const NUMBER_MOST: i64 = 1 << 53;

/// The columns of a row, in the order in which they are in the file.
const COLUMNS: [&str; 21] = [
    "id",
    "mesh",
    "client_message_id",
    "sender_session",
    "request_fingerprint",
    "payload",
    "crc",
    "target",
    "priority",
    "lane",
    "enqueued_at",
    "attempts",
    "next_attempt_at",
    "status",
    "last_error",
    "delivered_at",
    "broker_message_id",
    "log_seq",
    "aborted_at",
    "aborted_by",
    "superseded_by",
];
/// Which of them says where a row stands.
const STATUS: usize = 13;

/// A row that could not be saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Its number.
    pub row: u64,
    /// The sender's id, if an index still says so.
    pub client_message_id: Option<String>,
    /// Where it stood, if an index still says so.
    pub status: Option<String>,
    /// What is wrong with it.
    pub why: String,
}

/// What became of the rows of a damaged outbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Salvage {
    /// Rows that are in the new outbox.
    pub saved: u64,
    /// Rows that are not, and are known to have been there.
    pub lost: Vec<Lost>,
    /// Rows that were accepted and of which nothing is left: the high-water mark counts them.
    pub missing: u64,
    /// Whether there may have been more that nobody knows of.
    pub maybe_more: bool,
}

/// Copies every row of the file `from` that is whole into a new outbox in the directory `to`. So many rows were `accepted`,
/// as far as that is known.
pub(crate) fn salvage(from: &Path, to: &Path, accepted: u64) -> Result<Salvage, DbError> {
    let path = to.join("outbox.db");
    let mut old = connect(from)?;
    if old.query_row("SELECT 1 FROM sqlite_schema WHERE name = 'outbox_status'", [], |_| Ok(())).is_err() {
        drop(old);
        close(db::open(&path, schema::SCHEMA)?)?;
        graft(&path, from)
            .map_err(|error| DbError::Unavailable(format!("mend {}: {error}", from.display())))?;
        old = connect(from)?;
    }
    let mut fresh = db::open(&path, schema::SCHEMA)?;
    let mut salvage = Salvage::default();
    let known = Known::gather(&old);
    salvage.maybe_more = !known.all_listed;
    salvage.missing = accepted.min(NUMBER_MOST as u64).saturating_sub(known.newest);
    let ids: Vec<u64> = known.ids.iter().copied().collect();
    for batch in ids.chunks(BATCH) {
        let transaction = fresh.transaction()?;
        for id in batch {
            match copy(&old, &transaction, *id) {
                Ok(true) => salvage.saved += 1,
                Ok(false) if !known.listed.contains(id) => {}
                Ok(false) => salvage.lost.push(lost(*id, "its place in the table is gone")),
                // A number between others, of which nobody knows whether it was a row.
                Err(_) if !known.listed.contains(id) => salvage.maybe_more |= !known.all_listed,
                Err(why) => salvage.lost.push(lost(*id, &why)),
            }
        }
        transaction.commit()?;
    }
    name(&old, &mut salvage.lost);
    if !salvage.lost.is_empty() {
        by_hand(&old, from, &to.join("found.db"), &mut fresh, &mut salvage)?;
    }
    keep_numbers(&fresh, known.newest + salvage.missing)?;
    close(fresh)?;
    Ok(salvage)
}

/// Looks for lost rows on all pages. Only what an index knows, and as it knows it: a page that is free now may hold what was
/// long deleted, or was sent since.
fn by_hand(
    old: &Connection,
    from: &Path,
    found: &Path,
    fresh: &mut Connection,
    salvage: &mut Salvage,
) -> Result<(), DbError> {
    // What is in the log is then in the file.
    let _ = old.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    let state = |lost: &Lost| Some((lost.row, Value::Text(lost.status.clone()?)));
    let wanted: BTreeMap<u64, Value> = salvage.lost.iter().filter_map(state).collect();
    let mut found = Connection::open(found)?;
    found.execute_batch(&format!(
        "CREATE TABLE outbox (id INTEGER PRIMARY KEY, {})",
        COLUMNS[1..].join(", ")
    ))?;
    let holes = vec!["?"; COLUMNS.len()].join(", ");
    let transaction = found.transaction()?;
    let unread = |error| DbError::Unavailable(format!("read {}: {error}", from.display()));
    let file = File::open(from).map_err(unread)?;
    pages::rows(&file, COLUMNS.len(), |id, mut values| {
        if wanted.get(&id).is_some_and(|status| values[STATUS] == *status) && is_whole(&values) {
            values[0] = integer(id).into();
            let sql = format!("INSERT OR IGNORE INTO outbox VALUES ({holes})");
            let put = transaction.prepare_cached(&sql);
            let _ = put.and_then(|mut put| put.execute(rusqlite::params_from_iter(values)));
        }
    });
    transaction.commit()?;
    let transaction = fresh.transaction()?;
    salvage.lost.retain(|lost| {
        let saved = matches!(copy(&found, &transaction, lost.row), Ok(true));
        salvage.saved += u64::from(saved);
        !saved
    });
    transaction.commit()?;
    Ok(())
}

/// How many whole rows stand on the pages of an outbox, given as the bytes of its file: what [`salvage`] finds by hand.
pub fn rows_on_pages(bytes: &[u8]) -> usize {
    let mut whole = 0;
    pages::rows(bytes, COLUMNS.len(), |_, values| whole += usize::from(is_whole(&values)));
    whole
}

/// Whether values of a row match their checksum.
fn is_whole(values: &[Value]) -> bool {
    let [
        _,
        Value::Text(mesh),
        Value::Text(id),
        Value::Blob(sender),
        Value::Blob(print),
        Value::Blob(payload),
        crc,
        ..,
    ] = values
    else {
        return false;
    };
    match (sender.as_slice().try_into(), print.as_slice().try_into()) {
        (Ok(sender), Ok(print)) => *crc == Value::Integer(row::sum(mesh, id, sender, print, payload).into()),
        _ => false,
    }
}

fn connect(path: &Path) -> Result<Connection, DbError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Ok(Connection::open_with_flags(path, flags)?)
}

/// Closed, it is one file: its log is copied into it.
fn close(connection: Connection) -> Result<(), DbError> {
    connection.close().map_err(|(_, error)| DbError::from(error))
}

/// Gives a file whose first page is damaged that of a new one: of the same schema, the same tables begin on the same
/// pages.
fn graft(fresh: &Path, old: &Path) -> io::Result<()> {
    let mut page = vec![0; PAGE_BYTES];
    File::open(fresh)?.read_exact(&mut page)?;
    // How many pages there are, and which are free, was said of the new file: now nobody says so.
    page[28..40].fill(0);
    page[92..96].fill(0);
    OpenOptions::new().write(true).open(old)?.write_all(&page)
}

fn lost(row: u64, why: &str) -> Lost {
    Lost { row, client_message_id: None, status: None, why: why.to_owned() }
}

/// Numbers of rows, as far as they can be found.
struct Known {
    /// All that are worth a look.
    ids: BTreeSet<u64>,
    /// Those that an index or the table lists.
    listed: BTreeSet<u64>,
    /// Whether one index was read from its beginning to its end.
    all_listed: bool,
    /// The newest number that was given out.
    newest: u64,
}

impl Known {
    fn gather(old: &Connection) -> Known {
        let mut listed = BTreeSet::new();
        let mut all_listed = false;
        for index in ["outbox_status", "sqlite_autoindex_outbox_1"] {
            for order in ["", "DESC"] {
                let by = if index == "outbox_status" { "status, id" } else { "mesh, client_message_id" };
                let by = if order.is_empty() { by.to_owned() } else { by.replace(", ", " DESC, ") + " DESC" };
                let whole = walk(
                    old,
                    &format!("SELECT id FROM outbox INDEXED BY {index} ORDER BY {by}"),
                    &mut listed,
                );
                all_listed |= whole;
                if whole {
                    break;
                }
            }
        }
        let (mut up, mut down) = (BTreeSet::new(), BTreeSet::new());
        if !walk(old, "SELECT id FROM outbox NOT INDEXED ORDER BY id", &mut up) {
            walk(old, "SELECT id FROM outbox NOT INDEXED ORDER BY id DESC", &mut down);
        }
        let sequence =
            old.query_row("SELECT seq FROM sqlite_sequence WHERE name = 'outbox'", [], |row| row.get(0));
        let sequence = natural(sequence.ok().filter(|seq| *seq <= NUMBER_MOST).unwrap_or(0));
        let (first, last) = (up.last().copied().unwrap_or(0), down.first().copied().unwrap_or(sequence + 1));
        listed.extend(up);
        listed.extend(down);
        let newest = listed.last().copied().unwrap_or(0).max(sequence);
        let mut ids = listed.clone();
        if !all_listed && last > first {
            ids.extend((first + 1..last).take(usize::try_from(GAP).unwrap_or(usize::MAX)));
        }
        Known { ids, listed, all_listed, newest }
    }
}

/// Adds the numbers that a query gives; whether it came to its end.
fn walk(old: &Connection, sql: &str, ids: &mut BTreeSet<u64>) -> bool {
    let Ok(mut statement) = old.prepare(sql) else { return false };
    let Ok(mut rows) = statement.query([]) else { return false };
    loop {
        match rows.next() {
            Ok(Some(row)) => match row.get::<_, i64>(0) {
                Ok(id) if (1..=NUMBER_MOST).contains(&id) => _ = ids.insert(natural(id)),
                _ => return false,
            },
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

/// Copies one row if it is whole; `false` if there is none, an error that says what is wrong with it.
fn copy(old: &Connection, fresh: &Connection, id: u64) -> Result<bool, String> {
    let told = |error: rusqlite::Error| error.to_string();
    let sql = "SELECT mesh, client_message_id, sender_session, request_fingerprint, payload, crc, enqueued_at, attempts, \
               next_attempt_at, status, last_error, delivered_at, broker_message_id, log_seq, aborted_at, aborted_by, \
               superseded_by, target, priority FROM outbox NOT INDEXED WHERE id = ?1";
    let mut statement = old.prepare_cached(sql).map_err(told)?;
    let found = statement.query_row([integer(id)], |row| Ok(read(row))).optional().map_err(told)?;
    let Some(found) = found else { return Ok(false) };
    let whole = found.map_err(told)?;
    let (mesh, name, sender, print) = (&whole.mesh, &whole.client_message_id, &whole.sender, &whole.print);
    if whole.crc != i64::from(row::sum(mesh, name, sender, print, &whole.payload)) {
        return Err("it does not match its checksum".to_owned());
    }
    let (to, priority, lane) = routing(fresh, &whole)?;
    let sql = "INSERT INTO outbox (id, mesh, client_message_id, sender_session, request_fingerprint, payload, crc, target, \
               priority, lane, enqueued_at, attempts, next_attempt_at, status, last_error, delivered_at, \
               broker_message_id, log_seq, aborted_at, aborted_by, superseded_by) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21)";
    let mut insert = fresh.prepare_cached(sql).map_err(told)?;
    let mut values: Vec<Value> = vec![integer(id).into(), whole.mesh.into(), whole.client_message_id.into()];
    values.extend([whole.sender.to_vec().into(), whole.print.to_vec().into(), whole.payload.into()]);
    values.extend([whole.crc.into(), to.into(), priority.into(), integer(lane.0).into()]);
    values.extend([
        whole.enqueued_at.into(),
        whole.attempts.into(),
        whole.next_attempt_at.into(),
        whole.status.into(),
    ]);
    values.extend(whole.rest);
    insert.execute(rusqlite::params_from_iter(values)).map_err(told)?;
    Ok(true)
}

/// Where a row goes, how urgently and in which lane: as its frozen request says. One that let go of that goes nowhere any
/// more, so what the row says besides will do.
fn routing(fresh: &Connection, whole: &Whole) -> Result<(String, String, LaneId), String> {
    if whole.payload.is_empty() {
        let over = Status::from_text(&whole.status).is_some_and(Status::is_final);
        let shown = || (whole.target.clone(), whole.priority.clone(), LaneId(0));
        return over.then(shown).ok_or_else(|| "its request is gone".to_owned());
    }
    let params: SendParams = Codec::Json.decode(&whole.payload).map_err(|error| error.to_string())?;
    let (to, priority) = (params.to.to_string(), params.priority.as_str().to_owned());
    let mesh = whole.mesh.parse().map_err(|_| format!("its mesh is {:?}", whole.mesh))?;
    let request = Request::new(mesh, SessionKey(whole.sender), params).map_err(|error| error.message)?;
    let lane = lane(fresh, &request).map_err(|error| error.to_string())?;
    Ok((to, priority, lane))
}

/// A row as it is in the file.
struct Whole {
    mesh: String,
    client_message_id: String,
    sender: [u8; 32],
    print: [u8; 32],
    payload: Vec<u8>,
    crc: i64,
    enqueued_at: i64,
    attempts: i64,
    next_attempt_at: i64,
    status: String,
    /// What may be absent, from `last_error` on.
    rest: Vec<Value>,
    target: String,
    priority: String,
}

fn read(row: &Row<'_>) -> Result<Whole, rusqlite::Error> {
    let status: String = row.get(9)?;
    // What it has become is not in the checksum: what cannot be is sent again, under its id.
    let known = Status::from_text(&status).is_some();
    Ok(Whole {
        mesh: row.get(0)?,
        client_message_id: row.get(1)?,
        sender: row.get(2)?,
        print: row.get(3)?,
        payload: row.get(4)?,
        crc: row.get(5)?,
        enqueued_at: row.get(6)?,
        attempts: row.get::<_, i64>(7)?.max(i64::from(!known)),
        next_attempt_at: row.get(8)?,
        status: if known { status } else { Status::Pending.as_str().to_owned() },
        rest: (10..17).map(|column| row.get(column)).collect::<Result<_, _>>()?,
        target: row.get(17)?,
        priority: row.get(18)?,
    })
}

/// Finds out what lost rows were called and where they stood, as far as indexes still know.
fn name(old: &Connection, lost: &mut [Lost]) {
    if lost.is_empty() {
        return;
    }
    let ask = |sql: &str| {
        let mut found = BTreeMap::new();
        let wanted: BTreeSet<u64> = lost.iter().map(|lost| lost.row).collect();
        let Ok(mut statement) = old.prepare(sql) else { return found };
        let Ok(mut rows) = statement.query([]) else { return found };
        while let Ok(Some(row)) = rows.next() {
            if let (Ok(id), Ok(text)) = (row.get::<_, i64>(0), row.get::<_, String>(1))
                && wanted.contains(&natural(id))
            {
                found.insert(natural(id), text);
            }
        }
        found
    };
    let mut names = ask("SELECT id, client_message_id FROM outbox INDEXED BY sqlite_autoindex_outbox_1");
    let mut states = ask("SELECT id, status FROM outbox INDEXED BY outbox_status");
    for lost in lost {
        lost.client_message_id = names.remove(&lost.row);
        lost.status = states.remove(&lost.row);
    }
}

/// No number is given out twice.
fn keep_numbers(fresh: &Connection, newest: u64) -> Result<(), DbError> {
    let sql = "INSERT INTO sqlite_sequence (name, seq) SELECT 'outbox', 0 \
               WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'outbox')";
    fresh.execute(sql, [])?;
    fresh
        .execute("UPDATE sqlite_sequence SET seq = max(seq, ?1) WHERE name = 'outbox'", [integer(newest)])?;
    Ok(())
}
