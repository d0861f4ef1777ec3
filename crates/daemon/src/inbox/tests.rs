use std::fs;

use proptest::prelude::*;
use tenure_proto::ids::{MemberKey, MessageId, SessionKey};

use super::*;
use crate::outbox::{CAP, copy_files};

const ME: Recipient = Recipient::Session(SessionKey([1; 32]));
const YOU: Recipient = Recipient::Session(SessionKey([2; 32]));

fn mesh() -> MeshName {
    "default".parse().unwrap()
}

fn message(n: u64, to: &str) -> Message {
    let json = format!(
        r#"{{"id":"{}","clientMessageId":"c{n}","from":{{"member":"{}","session":"{}","name":"n{n}"}},"to":"{to}",
            "log":"l","seq":{n},"priority":"next","body":"body {n}","sentAt":1}}"#,
        MessageId::from_parts(n, 1),
        MemberKey([9; 32]),
        SessionKey([8; 32]),
    );
    Codec::Json.decode(json.as_bytes()).unwrap()
}

fn open(dir: &Path) -> Inbox {
    let (inbox, aside) = Inbox::open(dir, CAP, 5).unwrap();
    assert_eq!(aside, None);
    inbox
}

fn all(recipient: Recipient) -> Filter {
    Filter { mesh: "default".into(), recipients: vec![recipient], limit: 100, ..Filter::default() }
}

async fn numbers(inbox: &Inbox, filter: Filter) -> Vec<u64> {
    let (letters, next) = inbox.list(filter).await.unwrap();
    assert_eq!(next, None);
    letters.iter().map(|letter| letter.message.seq.get()).collect()
}

#[tokio::test]
async fn a_message_is_kept_once_for_each_recipient_and_survives() {
    let dir = tempfile::tempdir().unwrap();
    let inbox = open(dir.path());
    let first = inbox.keep(mesh(), ME, &message(1, "topic:a"), 7).await.unwrap().unwrap();
    assert_eq!((first.id, first.received_at, first.seen_at), (1, 7, None));
    assert_eq!(inbox.keep(mesh(), ME, &message(1, "topic:a"), 8).await.unwrap(), None);
    assert!(inbox.keep(mesh(), YOU, &message(1, "topic:a"), 8).await.unwrap().is_some());
    assert!(inbox.keep("other".parse().unwrap(), ME, &message(1, "topic:a"), 8).await.unwrap().is_some());
    drop(inbox);
    let inbox = open(dir.path());
    assert_eq!(inbox.keep(mesh(), ME, &message(1, "topic:a"), 9).await.unwrap(), None);
    let (letters, _) = inbox.list(all(YOU)).await.unwrap();
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].message, message(1, "topic:a"));
    assert!(inbox.newest().await.unwrap() >= 3, "numbers only grow, and may have gaps");
}

/// Then nothing is settled at the broker, which still has it.
#[tokio::test]
async fn what_comes_after_the_file_was_removed_is_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    let inbox = open(dir.path());
    inbox.keep(mesh(), ME, &message(1, "topic:a"), 7).await.unwrap();
    fs::remove_file(dir.path().join("inbox.db")).unwrap();
    for n in 2..4 {
        let kept = inbox.keep(mesh(), ME, &message(n, "topic:a"), 8).await;
        assert!(matches!(&kept, Err(DbError::Poisoned(why)) if why.contains("was removed")), "{kept:?}");
    }
}

/// Neither the writer nor the reader copies the log of an inbox that stopped writing.
#[tokio::test]
async fn an_inbox_that_stopped_writing_leaves_its_files_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let inbox = open(dir.path());
    inbox.keep(mesh(), ME, &message(1, "topic:a"), 7).await.unwrap();
    // The reader has the file open too from its first question on, and may be the last to close it.
    inbox.bytes().await.unwrap();
    fs::copy(path("inbox.db-wal"), path("other")).unwrap();
    fs::rename(path("other"), path("inbox.db-wal")).unwrap();
    let kept = inbox.keep(mesh(), ME, &message(2, "topic:a"), 8).await;
    assert!(matches!(&kept, Err(DbError::Poisoned(why)) if why.contains("was replaced")), "{kept:?}");
    let files = || ["inbox.db", "inbox.db-wal"].map(|file| fs::read(path(file)).ok());
    let before = files();
    drop(inbox);
    assert!(files() == before, "nothing is copied, nothing removed");
}

#[tokio::test]
async fn a_clean_stop_leaves_nothing_in_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let inbox = open(dir.path());
    inbox.keep(mesh(), ME, &message(1, "topic:a"), 7).await.unwrap();
    inbox.bytes().await.unwrap();
    drop(inbox);
    assert_eq!(fs::metadata(dir.path().join("inbox.db-wal")).map_or(0, |log| log.len()), 0);
}

/// As in the outbox: what the last process left in the log may not be on the disk, if a sync had failed.
#[tokio::test]
async fn a_start_chains_nothing_behind_frames_that_may_not_be_on_the_disk() {
    let [dir, killed, left] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let inbox = open(dir.path());
    inbox.keep(mesh(), ME, &message(1, "topic:a"), 7).await.unwrap();
    copy_files(dir.path(), killed.path());
    let log = |dir: &Path| fs::read(dir.join("inbox.db-wal")).unwrap();
    let before = log(killed.path());
    let inbox = open(killed.path());
    inbox.keep(mesh(), ME, &message(2, "topic:a"), 7).await.unwrap();
    copy_files(killed.path(), left.path());
    // The power goes, and with it what was in the log at the start and was not written anew since.
    let mut now = log(left.path());
    if now.starts_with(&before) {
        now[..before.len()].fill(0);
    }
    fs::write(left.path().join("inbox.db-wal"), now).unwrap();
    assert_eq!(numbers(&open(left.path()), all(ME)).await, [1, 2]);
}

#[tokio::test]
async fn a_filter_lets_through_what_it_says() {
    let dir = tempfile::tempdir().unwrap();
    let inbox = open(dir.path());
    for n in 1..=4 {
        let to = if n % 2 == 0 { "topic:even" } else { "topic:odd" };
        inbox.keep(mesh(), ME, &message(n, to), 100 + n).await.unwrap();
    }
    assert_eq!(numbers(&inbox, all(ME)).await, [1, 2, 3, 4]);
    assert_eq!(numbers(&inbox, all(YOU)).await, [0u64; 0]);
    assert_eq!(numbers(&inbox, Filter { since: Some(103), ..all(ME) }).await, [3, 4]);
    assert_eq!(numbers(&inbox, Filter { after: 2, ..all(ME) }).await, [3, 4]);
    assert_eq!(numbers(&inbox, Filter { topic: Some("even".into()), ..all(ME) }).await, [2, 4]);
    assert_eq!(numbers(&inbox, Filter { from: Some("n3".into()), ..all(ME) }).await, [3]);
    let member = MemberKey([9; 32]).to_string();
    assert_eq!(numbers(&inbox, Filter { from: Some(member), ..all(ME) }).await, [1, 2, 3, 4]);
    assert_eq!(
        inbox.seen(mesh(), vec![YOU], vec![1, 2], 200).await.unwrap(),
        0,
        "another's are not mine to mark"
    );
    let elsewhere = inbox.seen("other".parse().unwrap(), vec![ME], vec![1, 2], 200).await.unwrap();
    assert_eq!(elsewhere, 0, "nor are mine of one mesh when I speak in another");
    assert_eq!(inbox.seen(mesh(), vec![ME], vec![1, 2, 99], 200).await.unwrap(), 2);
    assert_eq!(inbox.seen(mesh(), vec![ME], vec![1, 2], 201).await.unwrap(), 0);
    assert_eq!(numbers(&inbox, Filter { unseen: true, ..all(ME) }).await, [3, 4]);
    let (page, next) = inbox.list(Filter { limit: 3, ..all(ME) }).await.unwrap();
    assert_eq!((page.len(), next), (3, Some(3)));
    assert_eq!(inbox.prune(201).await.unwrap(), 2);
    assert_eq!(numbers(&inbox, all(ME)).await, [3, 4], "what nobody has seen stays");
}

#[tokio::test]
async fn a_damaged_inbox_is_put_aside_and_a_newer_one_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("inbox.db"), vec![7u8; 8192]).unwrap();
    let (inbox, aside) = Inbox::open(dir.path(), CAP, 42).unwrap();
    assert_eq!(aside.unwrap().path, dir.path().join("inbox.db.corrupt-42"));
    assert!(inbox.keep(mesh(), ME, &message(1, "topic:a"), 7).await.unwrap().is_some());
    drop(inbox);
    assert_eq!(fs::read(dir.path().join("inbox.db.corrupt-42")).unwrap(), vec![7u8; 8192]);
    let connection = rusqlite::Connection::open(dir.path().join("inbox.db")).unwrap();
    connection.pragma_update(None, "user_version", 99).unwrap();
    drop(connection);
    let refused = Inbox::open(dir.path(), CAP, 43).unwrap_err();
    assert!(matches!(refused, DbError::Newer { found: 99, supported: 2, .. }), "{refused}");
}

#[tokio::test]
async fn a_row_with_a_flipped_bit_is_never_shown() {
    let dir = tempfile::tempdir().unwrap();
    let inbox = open(dir.path());
    for n in 1..=2 {
        inbox.keep(mesh(), ME, &message(n, "topic:a"), 7).await.unwrap();
    }
    drop(inbox);
    let connection = rusqlite::Connection::open(dir.path().join("inbox.db")).unwrap();
    let flip = "CAST(replace(CAST(message AS TEXT), 'body 1', 'body 3') AS BLOB)";
    assert_eq!(
        connection.execute(&format!("UPDATE inbox SET message = {flip} WHERE id = 1"), []).unwrap(),
        1
    );
    drop(connection);
    assert_eq!(numbers(&open(dir.path()), all(ME)).await, [2]);
}

#[tokio::test]
async fn a_full_inbox_takes_nothing_and_so_nothing_is_settled() {
    let dir = tempfile::tempdir().unwrap();
    let (inbox, _) = Inbox::open(dir.path(), Cap { bytes: 4096 }, 5).unwrap();
    let refused = inbox.keep(mesh(), ME, &message(1, "topic:a"), 7).await.unwrap_err();
    assert!(matches!(refused, DbError::Full(_)), "{refused}");
}

#[tokio::test]
async fn what_was_seen_makes_room_and_is_still_not_new() {
    let dir = tempfile::tempdir().unwrap();
    let cap = Cap { bytes: 1024 * 1024 };
    let (inbox, _) = Inbox::open(dir.path(), cap, 5).unwrap();
    let large = |n| {
        let mut message = message(n, "topic:a");
        message.body = Some("x".repeat(60_000));
        message
    };
    // Three times what it may hold.
    for n in 1..=50 {
        let kept = inbox.keep(mesh(), ME, &large(n), n).await.unwrap();
        let id = kept.expect("it is new").id;
        assert_eq!(inbox.seen(mesh(), vec![ME], vec![id], n).await.unwrap(), 1);
    }
    assert!(inbox.bytes().await.unwrap() < cap.bytes);
    assert_eq!(inbox.keep(mesh(), ME, &large(1), 60).await.unwrap(), None, "it is not shown twice");
    let left = numbers(&inbox, all(ME)).await;
    assert!(left.ends_with(&[49, 50]) && !left.contains(&1), "the oldest went first: {left:?}");
    // What nobody has seen is never let go.
    let mut unseen = Vec::new();
    for n in 51..=80 {
        match inbox.keep(mesh(), YOU, &large(n), n).await {
            Ok(kept) => unseen.extend(kept.map(|letter| letter.message.seq.get())),
            Err(error) => assert!(matches!(error, DbError::Full(_)), "{error}"),
        }
    }
    assert!(unseen.len() < 30, "it is full");
    assert_eq!(numbers(&inbox, all(YOU)).await, unseen);
    assert_eq!(inbox.keep(mesh(), YOU, &large(51), 90).await.unwrap(), None, "a repeat needs no room");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    /// Deliveries in any order, any number of times, with crashes between: each is new exactly once per recipient.
    #[test]
    fn each_message_is_new_once(ops in proptest::collection::vec((0..6u64, any::<bool>(), any::<u8>()), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let home = tempfile::tempdir().unwrap();
        let mut kept = std::collections::BTreeSet::new();
        let mut dir = home.path().join("0");
        fs::create_dir(&dir).unwrap();
        let mut inbox = open(&dir);
        for (n, (id, mine, crash)) in ops.into_iter().enumerate() {
            let recipient = if mine { ME } else { YOU };
            let new = runtime.block_on(inbox.keep(mesh(), recipient, &message(id, "topic:a"), 1)).unwrap();
            prop_assert_eq!(new.is_some(), kept.insert((id, mine)));
            if crash < 40 {
                let copy = home.path().join((n + 1).to_string());
                crate::outbox::copy_files(&dir, &copy);
                inbox = open(&copy);
                dir = copy;
            }
        }
    }
}
