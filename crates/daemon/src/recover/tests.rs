use rusqlite::Connection;
use tempfile::TempDir;
use tenure_outbox::verdict::Verdict;
use tenure_outbox::{Place, Settlement, Status};
use tenure_proto::ids::{MessageId, SessionKey};

use super::*;
use crate::outbox::{CAP, Cap, Entry, Outbox, Request};

const ROWS: u64 = 120;
const PAGE: usize = 4_096;

/// An outbox with rows in every state, some larger than a page.
async fn fill(dir: &Path) -> Vec<Entry> {
    let outbox = Outbox::open(dir, CAP).unwrap();
    for n in 1..=ROWS {
        let body = "b".repeat(if n % 10 == 0 { 9_000 } else { 200 });
        let to = format!("topic:t{}", n % 7);
        let json = serde_json::json!({"to": to, "body": body, "clientMessageId": format!("id {n}")});
        let params = serde_json::from_value(json).unwrap();
        let request = Request::new("default".parse().unwrap(), SessionKey([1; 32]), params).unwrap();
        let lane = outbox.accept(request, 10).await.unwrap().row.unwrap().1;
        if n % 5 == 0 {
            let rows = outbox.take(lane, 1).await.unwrap();
            let place = Place { id: MessageId::from_parts(n, 1), seq: Some(n) };
            let verdicts = rows.iter().map(|row| (row.id, Verdict::Done(place.clone()))).collect();
            let settlement = Settlement { lane, verdicts, unsent: Vec::new(), next_attempt_at: 0, take: 0 };
            outbox.settle(settlement, 20).await.unwrap();
        }
    }
    all(&outbox).await
}

async fn all(outbox: &Outbox) -> Vec<Entry> {
    outbox.list(None, 0, 1_000).await.unwrap()
}

fn copy(from: &Path) -> TempDir {
    let to = TempDir::new().unwrap();
    crate::outbox::copy_files(from, to.path());
    to
}

/// Each page in turn is overwritten: what is saved is as it was, what is lost is named, what was damaged is kept.
#[tokio::test]
async fn whichever_page_is_damaged_the_rest_is_saved() {
    let origin = TempDir::new().unwrap();
    let before = fill(origin.path()).await;
    let whole = fs::read(origin.path().join("outbox.db")).unwrap();
    let (mut damaged, mut with_losses) = (0, 0);
    for page in 0..whole.len() / PAGE {
        let dir = copy(origin.path());
        let mut bytes = whole.clone();
        bytes[page * PAGE..][..PAGE].fill(0x5a);
        fs::write(dir.path().join("outbox.db"), &bytes).unwrap();
        let (salvage, kept) = match recover(dir.path(), 1_794_805_200_000).unwrap() {
            Recovered::Saved { salvage, kept, .. } => (salvage, kept),
            // The inside of a large body: its row does not match its checksum, and is dead when its turn comes.
            Recovered::Sound => continue,
            Recovered::Nothing => panic!("page {page}: there is an outbox"),
        };
        damaged += 1;
        assert_eq!(kept, dir.path().join("outbox.db.corrupt-20261116T050000Z"));
        assert!(fs::read(&kept).unwrap() == bytes, "page {page}: what was damaged is kept as it was");
        let outbox = Outbox::open(dir.path(), CAP).unwrap();
        let after = all(&outbox).await;
        for entry in &after {
            let mut was = before.iter().find(|was| was.id == entry.id).expect("no row is invented").clone();
            if was.status == Status::Inflight {
                was.status = Status::Pending;
            }
            assert_eq!(*entry, was, "page {page}");
        }
        assert_eq!(after.len() as u64, salvage.saved, "page {page}");
        assert!(!salvage.maybe_more, "page {page}: one list at least is whole");
        assert_eq!(salvage.saved + salvage.lost.len() as u64, ROWS, "page {page}: {:?}", salvage.lost);
        for lost in &salvage.lost {
            assert_eq!(lost.client_message_id, Some(format!("id {}", lost.row)), "page {page}");
            assert!(after.iter().all(|entry| entry.id != lost.row), "page {page}");
        }
        with_losses += u32::from(!salvage.lost.is_empty());
        assert!(salvage.lost.len() < 40, "page {page} took {} rows along", salvage.lost.len());
        assert!(!dir.path().join("recover").exists() && !dir.path().join("recover.tmp").exists());
    }
    assert!(damaged > 10 && with_losses > 3, "{damaged} pages were noticed, {with_losses} took rows along");
}

#[tokio::test]
async fn rows_that_are_only_in_the_log_are_saved_too() {
    let dir = TempDir::new().unwrap();
    fill(dir.path()).await;
    let crashed = TempDir::new().unwrap();
    {
        let outbox = Outbox::open(dir.path(), CAP).unwrap();
        let json = serde_json::json!({"to": "topic:t", "body": "late", "clientMessageId": "late"});
        let params = serde_json::from_value(json).unwrap();
        let request = Request::new("default".parse().unwrap(), SessionKey([1; 32]), params).unwrap();
        outbox.accept(request, 10).await.unwrap();
        crate::outbox::copy_files(dir.path(), crashed.path());
    }
    let path = crashed.path().join("outbox.db");
    let mut bytes = fs::read(&path).unwrap();
    let place = bytes.windows(7).rposition(|text| text == b"id 101\"").unwrap() / PAGE * PAGE;
    bytes[place..place + PAGE].fill(0);
    fs::write(&path, &bytes).unwrap();
    let Recovered::Saved { salvage, kept, .. } = recover(crashed.path(), 0).unwrap() else {
        panic!("it is damaged")
    };
    assert!(!salvage.lost.is_empty());
    assert!(beside(&kept, "-wal").exists(), "the log is kept as well");
    assert!(!beside(&path, "-wal").exists(), "and is no log of the new file");
    let outbox = Outbox::open(crashed.path(), CAP).unwrap();
    let found = outbox.find("default".parse().unwrap(), "late".parse().unwrap()).await.unwrap().unwrap();
    assert_eq!(found.id, ROWS + 1);
}

#[tokio::test]
async fn an_interrupted_recovery_is_finished_and_nothing_starts_before() {
    let dir = TempDir::new().unwrap();
    let before = fill(dir.path()).await;
    // Everything is ready but not in its place: as if the power went.
    let path = dir.path().join("outbox.db");
    fs::create_dir(ready(dir.path())).unwrap();
    fs::rename(&path, ready(dir.path()).join("outbox.db")).unwrap();
    fs::write(&path, "damaged").unwrap();
    fs::write(beside(&path, "-wal"), "the log of the damaged one").unwrap();
    let mesh = crate::MeshChoice {
        name: "default".parse().unwrap(),
        broker: "ws://127.0.0.1:1".to_owned(),
        authority: None,
    };
    let config = crate::Config::new(dir.path().to_owned(), mesh, "x");
    let refused = crate::Daemon::start(config).await.unwrap_err();
    assert!(refused.to_string().contains("tenure daemon recover"), "{refused}");
    assert_eq!(recover(dir.path(), 0).unwrap(), Recovered::Sound);
    assert_eq!(all(&Outbox::open(dir.path(), CAP).unwrap()).await, before);
}

#[test]
fn a_file_of_which_nothing_is_left_is_kept_and_an_empty_one_begun() {
    let dir = TempDir::new().unwrap();
    assert_eq!(recover(dir.path(), 0).unwrap(), Recovered::Nothing);
    let path = dir.path().join("outbox.db");
    fs::write(&path, vec![7u8; 3 * PAGE + 5]).unwrap();
    let Recovered::Saved { salvage, kept, .. } = recover(dir.path(), 0).unwrap() else {
        panic!("it is damaged")
    };
    assert_eq!((salvage.saved, salvage.lost.len(), salvage.maybe_more), (0, 0, true));
    assert_eq!(fs::read(kept).unwrap(), vec![7u8; 3 * PAGE + 5]);
    let rows: i64 =
        Connection::open(&path).unwrap().query_row("SELECT count(*) FROM outbox", [], |r| r.get(0)).unwrap();
    assert_eq!(rows, 0);
}

/// Rows that were forgotten are still on pages that are free: they stay forgotten, or they would be sent once more.
#[tokio::test]
async fn what_was_deleted_does_not_come_back() {
    let dir = TempDir::new().unwrap();
    fill(dir.path()).await;
    let before = {
        // With room to spare nothing is forgotten.
        let outbox = Outbox::open(dir.path(), Cap { bytes: 1_000 }).unwrap();
        assert_eq!(outbox.prune(1_000).await.unwrap(), ROWS / 5);
        all(&outbox).await
    };
    let path = dir.path().join("outbox.db");
    let root: i64 = Connection::open(&path)
        .unwrap()
        .query_row("SELECT rootpage FROM sqlite_schema WHERE name = 'outbox'", [], |row| row.get(0))
        .unwrap();
    let mut bytes = fs::read(&path).unwrap();
    bytes[(root as usize - 1) * PAGE..][..PAGE].fill(0);
    fs::write(&path, &bytes).unwrap();
    let Recovered::Saved { salvage, .. } = recover(dir.path(), 0).unwrap() else { panic!("it is damaged") };
    assert_eq!((salvage.lost, salvage.maybe_more), (vec![], false));
    assert_eq!(all(&Outbox::open(dir.path(), CAP).unwrap()).await, before);
}
