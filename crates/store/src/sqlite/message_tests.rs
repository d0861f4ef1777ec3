//! What only this engine can get wrong about messages: damage behind its back, bounds, old files, the log.

use std::os::unix::fs::FileExt;

use rusqlite::Connection;
use tempfile::TempDir;
use tenure_mesh::messages::accept::{Accept, Accepted};
use tenure_mesh::messages::envelope::{Body, Lane};
use tenure_mesh::store::record::{Burial, DamagedEntry, Origin, Reader, StoreFound, StoreRead, StoreWrite};
use tenure_proto::error::ErrorCode;

use super::place::{LOG_MAX, Place, SEQ_MAX};
use super::{LOG_PAGES, Sqlite};
use crate::conformance::messages::*;
use crate::conformance::{Engine, lease, put};
use crate::{Checking, Store, StoreError};

/// A closed store with a topic of five, an inbox of four with a group, the last of them a run, and a dead letter.
fn filled() -> TempDir {
    let dir = TempDir::new().unwrap();
    let mut store = dir.open();
    fill(&mut store, &topic("t"), 1..6);
    fill(&mut store, &inbox(9), 6..9);
    apply(&mut store, advance(&group(1, &inbox(9), Lane(1), Reader::Inbox), 2, &[2]));
    send(&mut store, Accept { run: Some(NOW), ..accept(inbox(9), plain(9)) });
    let (log, reason) = (topic("t"), "odd".to_owned());
    let burial =
        Burial { log, lane: Lane(0), seq: 5, group: None, attempts: 1, reason, at: NOW, remove: true };
    apply(&mut store, StoreWrite::Bury(Box::new(burial)));
    assert_eq!(store.check(), Ok(vec![]));
    dir
}

fn tamper(dir: &TempDir, sql: &str) -> usize {
    let connection = Connection::open(dir.path().join("tenure.db")).unwrap();
    connection.execute(sql, []).unwrap()
}

/// The findings after `sql` changed one row of a sound store.
fn found(sql: &str) -> String {
    let dir = filled();
    assert_eq!(tamper(&dir, sql), 1, "{sql}");
    let mut store = dir.open();
    let findings = store.check().unwrap();
    assert_eq!(store.reader().unwrap().check().unwrap(), findings);
    findings.join("\n")
}

#[test]
fn check_finds_what_was_done_to_messages() {
    let third = Place::new(1, Lane(0), 3).pack();
    for (sql, words) in [
        (format!("DELETE FROM entries WHERE place = {third}"), vec!["topic/t/0 seq 3", "c-3", "no entry"]),
        ("DELETE FROM dedupe WHERE client_id = 'c-3'".into(), vec!["topic/t/0 seq 3", "record is missing"]),
        (
            "INSERT INTO dedupe SELECT sender, 'added', id, fingerprint, place + 50, 0, NULL, NULL FROM dedupe
             WHERE client_id = 'c-3'"
                .into(),
            vec!["topic/t/0 seq 53", "\"added\"", "no entry"],
        ),
        (
            "INSERT INTO dedupe SELECT sender, 'added', randomblob(16), fingerprint, place, 0, NULL, NULL
             FROM dedupe WHERE client_id = 'c-3'"
                .into(),
            vec!["topic/t/0 seq 3", "\"added\"", "another message"],
        ),
        (
            "UPDATE dedupe SET place = place + 1 WHERE client_id = 'c-3'".into(),
            vec!["topic/t/0 seq 4", "another message", "points to"],
        ),
        ("UPDATE groups SET cursor = 5".into(), vec!["seq 5: group 1", "ends at 4"]),
        ("UPDATE groups SET cursor = 1".into(), vec!["seq 2: open in group 1", "cursor is 1"]),
        ("UPDATE open_entries SET seq = 1, grp = 7".into(), vec!["group 7, which does not exist"]),
        (
            format!("UPDATE entries SET body = 'bOdy 3' WHERE place = {third}"),
            vec!["topic/t/0 seq 3", "checksum"],
        ),
        (
            format!("UPDATE entries SET head = CAST(substr(head, 1, 30) || x'ff' || substr(head, 32) AS BLOB) WHERE place = {third}"),
            vec!["topic/t/0 seq 3", "checksum"],
        ),
        (
            format!("UPDATE entries SET body = CAST(body AS BLOB) WHERE place = {third}"),
            vec!["topic/t/0 seq 3", "checksum"],
        ),
        (
            format!("UPDATE entries SET sent_at = sent_at + 1 WHERE place = {third}"),
            vec!["topic/t/0 seq 3", "checksum"],
        ),
        (
            format!("UPDATE entries SET count = count + 1 WHERE place = {third}"),
            vec!["topic/t/0 seq 3", "running totals"],
        ),
        (
            format!("UPDATE entries SET bytes = bytes - 1 WHERE place = {third}"),
            vec!["topic/t/0 seq 3", "running totals"],
        ),
        ("UPDATE lanes SET count = count - 2".into(), vec!["topic/t/0", "noted"]),
        ("UPDATE dead SET body = x'00'".into(), vec!["topic/t/0 seq 5", "dead letter", "checksum"]),
        ("DELETE FROM dead".into(), vec!["topic/t/0 seq 5", "c-5", "no entry"]),
        ("DELETE FROM logs WHERE id = 2".into(), vec!["log number 2"]),
        ("UPDATE calls SET place = place + 50".into(), vec!["seq 54", "has not ended", "no such entry"]),
    ] {
        let findings = found(&sql);
        for word in words {
            assert!(findings.contains(word), "{sql}: no {word} in:\n{findings}");
        }
    }
}

#[test]
fn a_damaged_entry_is_named_and_never_given() {
    let dir = filled();
    let third = Place::new(1, Lane(0), 3).pack();
    tamper(&dir, &format!("UPDATE entries SET body = 'bOdy 3' WHERE place = {third}"));
    let mut store = dir.open();
    let log = topic("t");
    let all = StoreRead::Page { log: log.clone(), lane: Lane(0), after: 0, limit: 99, bytes: 1 << 20 };
    let StoreFound::Page { entries, damaged } = read(&store, &all) else { panic!() };
    let sent = plain(3);
    let origin =
        Origin { session: sent.from.session, id: sent.id, client_message_id: sent.client_message_id };
    let third = DamagedEntry { seq: 3, origin: Some(origin) };
    assert_eq!(damaged, std::slice::from_ref(&third), "and its sender is known");
    assert_eq!(entries.iter().map(|entry| entry.seq).collect::<Vec<_>>(), [1, 2, 4]);
    let one = StoreRead::Entries { log: log.clone(), lane: Lane(0), seqs: vec![3] };
    assert_eq!(read(&store, &one), StoreFound::Page { entries: vec![], damaged: vec![third] });
    let history = StoreRead::History { log: log.clone(), from: 3, limit: 1, bytes: 999 };
    assert_eq!(
        read(&store, &history),
        StoreFound::History { entries: vec![], damaged: vec![3], next: Some(4) }
    );
    // It can be laid to rest, as it is.
    let reason = "damaged".to_owned();
    let burial = Burial {
        log: log.clone(),
        lane: Lane(0),
        seq: 3,
        group: None,
        attempts: 0,
        reason,
        at: NOW,
        remove: true,
    };
    apply(&mut store, StoreWrite::Bury(Box::new(burial)));
    assert_eq!(seqs(&store, &log, Lane(0)), [1, 2, 4]);
    let dead = StoreRead::Dead { log, after: 0, limit: 9, bytes: 999 };
    let StoreFound::Dead { letters, .. } = read(&store, &dead) else { panic!() };
    assert_eq!(letters.iter().map(|letter| letter.entry.seq).collect::<Vec<_>>(), [3, 5]);
    let (letter, sent) = (&letters[0], plain(3));
    assert_eq!((letter.reason.as_str(), letter.entry.envelope.id), ("damaged", sent.id));
    assert_eq!(letter.entry.envelope.from, sent.from);
    assert_eq!(letter.entry.envelope.body, Body::Text(String::new()), "its body is never given");
}

/// Its head does not read either: what its dedupe record says is all that is known.
#[test]
fn a_damaged_head_leaves_what_the_dedupe_record_says() {
    let dir = filled();
    let third = Place::new(1, Lane(0), 3).pack();
    tamper(&dir, &format!("UPDATE entries SET head = x'00' WHERE place = {third}"));
    let mut store = dir.open();
    let log = topic("t");
    let one = StoreRead::Entries { log: log.clone(), lane: Lane(0), seqs: vec![3] };
    let unknown = DamagedEntry { seq: 3, origin: None };
    assert_eq!(read(&store, &one), StoreFound::Page { entries: vec![], damaged: vec![unknown] });
    let (lane, group, reason) = (Lane(0), None, "damaged".to_owned());
    let burial = Burial { log: log.clone(), lane, seq: 3, group, attempts: 0, reason, at: NOW, remove: true };
    apply(&mut store, StoreWrite::Bury(Box::new(burial)));
    let dead = StoreRead::Dead { log, after: 0, limit: 1, bytes: 999 };
    let StoreFound::Dead { letters, .. } = read(&store, &dead) else { panic!() };
    let envelope = &letters[0].entry.envelope;
    assert_eq!((envelope.id, &*envelope.client_message_id), (plain(3).id, "c-3"));
    assert_eq!(envelope.from.member, plain(3).from.member);
}

#[test]
fn a_hole_in_a_topic_and_a_foreign_fingerprint_are_found() {
    let dir = filled();
    let third = Place::new(1, Lane(0), 3).pack();
    tamper(&dir, &format!("DELETE FROM entries WHERE place = {third}"));
    tamper(&dir, "DELETE FROM dedupe WHERE client_id = 'c-3'");
    let mut store = dir.open();
    let mut checking = Checking::default();
    let mut reader = store.reader().unwrap();
    while !reader.check_slice(&mut checking).unwrap() {}
    let hole = "log topic/t/0 seq 3: the entry and its dedupe record are both gone";
    assert_eq!((checking.findings(), checking.violations()), (vec![hole.to_owned()], 1));
    assert_eq!(store.check().unwrap(), [hole]);

    let dir = filled();
    tamper(&dir, "UPDATE dedupe SET fingerprint = zeroblob(32) WHERE client_id = 'c-2'");
    assert_eq!(
        dir.open().check().unwrap(),
        ["log topic/t/0 seq 2: its fingerprint does not match what it says"]
    );
}

/// Such a store went on with whatever did not need that page: each hello was refused, and health said that all was well.
#[test]
fn a_damaged_page_that_writes_need_stops_the_store_and_a_check_in_slices_finds_it() {
    let dir = filled();
    let path = dir.path().join("tenure.db");
    let root =
        "SELECT rootpage, page_size FROM sqlite_schema, pragma_page_size WHERE name = 'sessions_member'";
    let place = |row: &rusqlite::Row<'_>| Ok((row.get::<_, u32>(0)?, row.get::<_, u32>(1)?));
    let (page, size) = Connection::open(&path).unwrap().query_row(root, [], place).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&vec![0; size as usize], u64::from(page - 1) * u64::from(size)).unwrap();
    let mut store = dir.open();
    let (mut checking, mut reader) = (Checking::default(), store.reader().unwrap());
    while !reader.check_slice(&mut checking).unwrap() {}
    assert!(!checking.findings().is_empty());
    let refused = store.apply(&[put(&lease("default", 7))]).unwrap_err();
    assert!(matches!(&refused, StoreError::Poisoned(why) if why.contains("damaged")), "{refused}");
    let other = store.apply(&[]).unwrap_err();
    assert_eq!(other, refused, "nothing is written any more");
}

/// More rows than a slice has, in every table that is walked in slices.
#[test]
fn a_check_in_slices_finds_what_a_whole_one_finds() {
    let dir = TempDir::new().unwrap();
    let mut store = dir.open();
    fill(&mut store, &topic("t"), 0..1_200);
    for seq in (2..1_202).step_by(2) {
        let (log, lane, reason) = (topic("t"), Lane(0), "odd".to_owned());
        let burial =
            Burial { log, lane, seq, group: None, attempts: 1, reason, at: NOW, remove: seq % 4 == 0 };
        apply(&mut store, StoreWrite::Bury(Box::new(burial)));
    }
    drop(store);
    tamper(&dir, "UPDATE entries SET body = 'x' WHERE place & 1023 = 777");
    tamper(&dir, "DELETE FROM dedupe WHERE client_id = 'c-1100'");
    tamper(&dir, "UPDATE dead SET body = 'x' WHERE seq = 1198");
    let mut store = dir.open();
    let mut checking = Checking::default();
    let (mut reader, mut slices) = (store.reader().unwrap(), 0);
    while !reader.check_slice(&mut checking).unwrap() {
        slices += 1;
        // The writer is not held up.
        fill(&mut store, &topic("other"), 5_000 + slices..5_001 + slices);
    }
    assert!(slices > 6, "{slices}");
    assert_eq!(checking.findings(), store.check().unwrap());
    assert_eq!((checking.findings().len(), checking.violations()), (3, 1), "{:?}", checking.findings());
}

#[test]
fn the_bounds_of_numbers_are_refusals() {
    let busy =
        |accepted: Accepted| matches!(accepted, Accepted::Refused(error) if error.code == ErrorCode::Busy);
    let dir = filled();
    let last = Place::new(1, Lane(0), SEQ_MAX - 1).pack();
    tamper(
        &dir,
        &format!("UPDATE entries SET place = {last} WHERE place = {}", Place::new(1, Lane(0), 4).pack()),
    );
    tamper(&dir, &format!("UPDATE sqlite_sequence SET seq = {} WHERE name = 'logs'", LOG_MAX - 1));
    let mut store = dir.open();
    let log = topic("t");
    assert!(matches!(
        send(&mut store, accept(log.clone(), plain(100))),
        Accepted::Fresh { seq: SEQ_MAX, .. }
    ));
    assert!(busy(send(&mut store, accept(log.clone(), plain(101)))));
    assert!(matches!(send(&mut store, accept(log, plain(100))), Accepted::Duplicate(_)));
    assert!(matches!(send(&mut store, accept(topic("last"), plain(101))), Accepted::Fresh { seq: 1, .. }));
    assert_eq!(seqs(&store, &topic("last"), Lane(0)), [1]);
    assert!(busy(send(&mut store, accept(topic("more"), plain(102)))));
    let none = store.apply(&[write(advance(&group(2, &topic("more"), Lane(0), Reader::Inbox), 0, &[]))]);
    assert!(matches!(none, Err(StoreError::Unavailable(_))));
    assert!(matches!(send(&mut store, accept(topic("last"), plain(102))), Accepted::Fresh { seq: 2, .. }));
}

#[test]
fn a_file_of_the_first_version_is_brought_up_to_date() {
    let dir = TempDir::new().unwrap();
    let connection = Connection::open(dir.path().join("tenure.db")).unwrap();
    connection.execute_batch(super::schema::first_step()).unwrap();
    connection.execute_batch("PRAGMA application_id = 0x544e5552; PRAGMA user_version = 1").unwrap();
    connection
        .execute(
            "INSERT INTO leases VALUES ('m', ?1, 'lease-1', ?2, 'i', '{\"v\":1,\"name\":\"a\",\"status\":\"idle\"}',
                                        NULL, 5, 1)",
            [session(1).0, member(1).0],
        )
        .unwrap();
    drop(connection);
    let mut store = dir.open();
    store.begin_run(0).unwrap();
    assert_eq!(store.leases().unwrap().len(), 1);
    let mut absent = accept(inbox(1), plain(1));
    absent.route = tenure_mesh::messages::accept::Route::Absent(session(1));
    let kept = send(&mut store, absent);
    assert!(matches!(kept, Accepted::Fresh { .. }), "its sessions are known: {kept:?}");
    assert_eq!(store.check(), Ok(vec![]));
}

#[test]
fn records_of_the_second_version_are_put_in_order_of_their_ids() {
    let dir = filled();
    let connection = Connection::open(dir.path().join("tenure.db")).unwrap();
    connection
        .execute_batch(
            "ALTER TABLE dedupe RENAME TO kept;
             CREATE TABLE dedupe (sender INTEGER NOT NULL, client_id TEXT NOT NULL, id BLOB NOT NULL,
                 fingerprint BLOB NOT NULL, place INTEGER NOT NULL, first_seen_at INTEGER NOT NULL,
                 expires_at INTEGER, lost TEXT, PRIMARY KEY (sender, client_id)) STRICT, WITHOUT ROWID;
             INSERT INTO dedupe SELECT * FROM kept;
             DROP TABLE kept;
             DROP TABLE settlers;
             DROP TABLE clock;
             DROP TABLE lease_ends;
             DROP TABLE lease_end_counts;
             DROP TABLE ledger;
             ALTER TABLE groups DROP COLUMN owner;
             ALTER TABLE topics DROP COLUMN owner;
             ALTER TABLE topics DROP COLUMN state;
             DROP TABLE calls;
             DROP TABLE services;
             DROP TABLE founded;
             DROP TABLE members;
             DROP TABLE invites;
             DROP TABLE tokens;
             DROP TABLE bans;
             DROP TABLE mesh_settings;
             DROP TABLE audit;
             CREATE TABLE settings (key TEXT); CREATE TABLE settings_version (version INTEGER);
             PRAGMA user_version = 2",
        )
        .unwrap();
    drop(connection);
    // Nor was there a mark beside it.
    std::fs::remove_file(dir.path().join("tenure.mark")).unwrap();
    let mut store = dir.open();
    assert_eq!(store.check(), Ok(vec![]));
    assert!(matches!(send(&mut store, accept(topic("t"), plain(3))), Accepted::Duplicate(_)));
    let plan: String = store
        .connection
        .query_row(
            "EXPLAIN QUERY PLAN SELECT sender FROM dedupe WHERE (client_id, sender) > ('', 0)
             ORDER BY client_id, sender",
            [],
            |row| row.get(3),
        )
        .unwrap();
    assert!(plan.starts_with("SEARCH dedupe USING PRIMARY KEY"), "a sweep need not sort: {plan}");
}

#[test]
fn people_can_read_messages() {
    let dir = filled();
    let connection = Connection::open(dir.path().join("tenure.db")).unwrap();
    let shown: (String, String, i64, i64, String) = connection
        .query_row(
            "SELECT mesh, log, lane, seq, body FROM messages WHERE log LIKE 'inbox%' AND seq = 2",
            [],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?)),
        )
        .unwrap();
    assert_eq!(shown, ("m".into(), inbox(9).to_string(), 1, 2, "body 7".into()));
}

fn log_pages(store: &Sqlite) -> i64 {
    store.connection.query_row("PRAGMA wal_checkpoint(NOOP)", [], |row| row.get(1)).unwrap()
}

/// Fills the log, `pages` at least.
pub(super) fn fill_log(store: &mut Sqlite, from: u64, pages: i64) -> u64 {
    let mut n = from;
    while log_pages(store) < pages {
        fill(store, &topic("t"), n..n + 500);
        n += 500;
    }
    n
}

#[test]
fn a_checkpointer_copies_and_the_writer_begins_the_log_anew() {
    let dir = TempDir::new().unwrap();
    let mut store = dir.open();
    store.begin_run(0).unwrap();
    let mut checkpointer = store.checkpointer().unwrap().unwrap();
    assert!(checkpointer.run().unwrap().log_pages < LOG_PAGES, "nothing to do");
    let bound = i64::try_from(LOG_PAGES).unwrap();
    let n = fill_log(&mut store, 1, bound + 50);
    let done = checkpointer.run().unwrap();
    assert_eq!(done.log_pages, done.moved_pages);
    fill(&mut store, &topic("t"), n..n + 1);
    assert!(log_pages(&store) < 50, "the log began anew");
    drop(checkpointer);
    fill_log(&mut store, n + 1, bound - 50);
    for n in 0..200 {
        store.apply(&[put(&lease("m", n))]).unwrap();
    }
    assert!(log_pages(&store) < bound / 2, "without one the writer does it");
    assert_eq!(store.check(), Ok(vec![]));
}
