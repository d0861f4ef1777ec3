use std::fs;
use std::os::unix::fs::PermissionsExt;

use tenure_outbox::requeue::{Lookup, Refusal};
use tenure_outbox::verdict::Verdict;
use tenure_outbox::{Answer, Place, Status};
use tenure_proto::ids::MessageId;
use tenure_proto::message::SendParams;

use super::*;

mod full;
mod ledger;
mod lost;
mod model;
mod offline;

pub(super) const ME: SessionKey = SessionKey([1; 32]);

pub(super) fn mesh() -> MeshName {
    "default".parse().unwrap()
}

pub(super) fn request(id: &str, to: &str, body: &str) -> Request {
    let json = serde_json::json!({"to": to, "body": body, "clientMessageId": id, "ttlMs": 604_800_000});
    let params: SendParams = serde_json::from_value(json).unwrap();
    Request::new(mesh(), ME, params).unwrap()
}

fn open(dir: &Path) -> Outbox {
    Outbox::open(dir, CAP).unwrap()
}

fn place(n: u64) -> Place {
    Place { id: MessageId::from_parts(n, 1), seq: Some(n) }
}

async fn insert(outbox: &Outbox, id: &str, body: &str) -> (u64, LaneId) {
    let accepted = outbox.accept(request(id, "topic:a", body), 10).await.unwrap();
    assert_eq!(accepted.answer, Answer::Insert);
    accepted.row.unwrap()
}

/// The oldest row of a lane, marked as sent.
async fn take(outbox: &Outbox, lane: LaneId) -> Option<Outgoing> {
    outbox.take(lane, 1).await.unwrap().pop()
}

/// Settles one row; answers whether its lane has more.
async fn settle(outbox: &Outbox, lane: LaneId, row: u64, verdict: Verdict, wall: u64, next: u64) -> bool {
    let verdicts = vec![(row, verdict)];
    let settlement = Settlement { lane, verdicts, unsent: Vec::new(), next_attempt_at: next, take: 0 };
    outbox.settle(settlement, wall).await.unwrap().more
}

fn anew(id: &str, lookup: Lookup) -> Anew {
    let client_message_id = id.parse().unwrap();
    Anew { client_message_id, body: None, lookup, force: false, by: "op".into() }
}

#[tokio::test]
async fn every_cell_of_the_table_twice_through_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let outbox = open(dir.path());
    for id in ["pending", "inflight", "done", "dead", "aborted"] {
        let accepted = outbox.accept(request(id, &format!("topic:t-{id}"), "x"), 10).await.unwrap();
        let (row, lane) = accepted.row.unwrap();
        if matches!(id, "inflight" | "done" | "dead") {
            take(&outbox, lane).await.unwrap();
        }
        match id {
            "done" => _ = settle(&outbox, lane, row, Verdict::Done(place(7)), 20, 0).await,
            "dead" => _ = settle(&outbox, lane, row, Verdict::Dead { error: "why".into() }, 20, 0).await,
            "aborted" => {
                assert_eq!(outbox.withdraw(row, "op".into(), 20).await.unwrap(), Withdrawn::Done)
            }
            _ => {}
        }
    }
    for _ in 0..2 {
        for id in ["pending", "inflight", "done", "dead", "aborted"] {
            let again = |body| outbox.accept(request(id, &format!("topic:t-{id}"), body), 30);
            let (same, other) = (again("x").await.unwrap(), again("y").await.unwrap());
            assert_eq!((same.row, other.row), (None, None));
            match (id, &same.answer) {
                ("pending", Answer::Queued) | ("inflight", Answer::Inflight) => {}
                ("done", Answer::Done(Some(held))) => assert_eq!(*held, place(7)),
                ("dead", Answer::Conflict(conflict)) => {
                    assert_eq!(
                        (conflict.name(), conflict.reason.as_deref()),
                        ("outbox_dead_fingerprint_match", Some("why"))
                    );
                }
                ("aborted", Answer::Conflict(conflict)) => {
                    assert_eq!(conflict.name(), "outbox_aborted_fingerprint_match");
                }
                other => panic!("{other:?}"),
            }
            let Answer::Conflict(conflict) = other.answer else { panic!("{:?}", other.answer) };
            assert_eq!(conflict.name(), format!("outbox_{id}_fingerprint_mismatch"));
        }
    }
}

#[tokio::test]
async fn what_was_accepted_is_there_after_a_crash_and_what_was_on_its_way_is_sent_again() {
    let (dir, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let outbox = open(dir.path());
    let (first, lane) = insert(&outbox, "1", "one").await;
    insert(&outbox, "2", "two").await;
    let sent = take(&outbox, lane).await.unwrap();
    assert_eq!((sent.id, sent.attempts, sent.params.body.as_deref()), (first, 1, Some("one")));
    copy_files(dir.path(), copy.path());
    let crashed = open(copy.path());
    let lanes = crashed.lanes(mesh(), ME).await.unwrap();
    assert_eq!(lanes, [FoundLane { lane, attempts: 1, next_attempt_at: 10 }]);
    let again = take(&crashed, lane).await.unwrap();
    assert_eq!((again.id, again.attempts, &again.params), (first, 2, &sent.params), "the very same bytes");
    assert!(settle(&crashed, lane, first, Verdict::Done(place(1)), 20, 0).await, "there is more");
    settle(&crashed, lane, first, Verdict::Dead { error: "late".into() }, 21, 0).await;
    assert_eq!(crashed.get(first).await.unwrap().unwrap().status, Status::Done, "done is done");
    let census = crashed.census().await.unwrap();
    assert_eq!((census.pending, census.inflight, census.done), (1, 0, 1));
    let mode = fs::metadata(dir.path().join("outbox.db-wal")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test]
async fn a_batch_is_settled_and_the_next_taken_in_one_transaction() {
    let dir = tempfile::tempdir().unwrap();
    let outbox = open(dir.path());
    let (_, lane) = insert(&outbox, "1", "one").await;
    for n in 2..=5 {
        insert(&outbox, &n.to_string(), "more").await;
    }
    let ids = |rows: &[Outgoing]| rows.iter().map(|row| (row.id, row.attempts)).collect::<Vec<_>>();
    assert_eq!(ids(&outbox.take(lane, 3).await.unwrap()), [(1, 1), (2, 1), (3, 1)]);
    let over = ids(&outbox.take(lane, 3).await.unwrap());
    assert_eq!(over, [(1, 2), (2, 2), (3, 2)], "who begins takes over what nobody settled");
    let verdicts = vec![(1, Verdict::Done(place(1))), (2, Verdict::Dead { error: "no".into() })];
    let settlement = Settlement { lane, verdicts, unsent: vec![3], next_attempt_at: 20, take: 2 };
    let settled = outbox.settle(settlement, 20).await.unwrap();
    assert_eq!((settled.more, ids(&settled.taken)), (true, vec![(3, 2), (4, 1)]), "3 was not sent this time");
    let states: Vec<Status> = outbox.list(None, 0, 9).await.unwrap().iter().map(|row| row.status).collect();
    assert_eq!(states, [Status::Done, Status::Dead, Status::Inflight, Status::Inflight, Status::Pending]);
}

#[tokio::test]
async fn a_batch_is_bounded_in_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let outbox = open(dir.path());
    let mut lane = LaneId(0);
    for n in 0..4 {
        lane = insert(&outbox, &n.to_string(), &"x".repeat(40_000)).await.1;
    }
    assert_eq!(outbox.take(lane, 64).await.unwrap().len(), 2, "64 KiB, and the row that goes past it");
}

#[tokio::test]
async fn a_refusal_for_now_keeps_its_place_and_its_error() {
    let dir = tempfile::tempdir().unwrap();
    let outbox = open(dir.path());
    let (first, lane) = insert(&outbox, "1", "one").await;
    insert(&outbox, "2", "two").await;
    take(&outbox, lane).await.unwrap();
    let again = Verdict::Again { error: "busy: full".into(), wish_ms: None };
    assert!(settle(&outbox, lane, first, again, 20, 520).await);
    let entry = outbox.get(first).await.unwrap().unwrap();
    assert_eq!((entry.status, entry.next_attempt_at), (Status::Pending, 520));
    assert_eq!(entry.last_error.as_deref(), Some("busy: full"));
    assert_eq!(take(&outbox, lane).await.unwrap().id, first, "the younger one does not pass");
}

#[tokio::test]
async fn lanes_are_by_target_and_of_an_inbox_by_priority() {
    let dir = tempfile::tempdir().unwrap();
    let outbox = open(dir.path());
    let inbox = format!("member:{}", SessionKey([5; 32]));
    let mut lanes = Vec::new();
    for (n, (to, priority)) in
        [("topic:a", "next"), ("topic:a", "now"), (&inbox, "next"), (&inbox, "now"), (&inbox, "next")]
            .into_iter()
            .enumerate()
    {
        let json = serde_json::json!({"to": to, "body": "b", "clientMessageId": n.to_string(), "priority": priority});
        let request = Request::new(mesh(), ME, serde_json::from_value(json).unwrap()).unwrap();
        lanes.push(outbox.accept(request, 1).await.unwrap().row.unwrap().1);
    }
    assert_eq!(lanes[0], lanes[1], "a topic has one order");
    assert_eq!(lanes[2], lanes[4]);
    assert!(lanes[2] != lanes[3] && lanes[0] != lanes[2], "what is urgent passes what is not");
    assert_eq!(outbox.senders().await.unwrap(), [("default".to_owned(), ME)]);
    assert_eq!(outbox.lanes(mesh(), SessionKey([2; 32])).await.unwrap(), []);
}

#[tokio::test]
async fn old_rows_are_given_up_and_done_ones_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let outbox = open(dir.path());
    let (old, lane) = insert(&outbox, "1", "one").await;
    outbox.accept(request("2", "topic:a", "two"), 99).await.unwrap();
    assert_eq!(outbox.expire("other".parse().unwrap(), 50, 100).await.unwrap(), 0);
    assert_eq!(outbox.expire(mesh(), 50, 100).await.unwrap(), 1);
    let entry = outbox.get(old).await.unwrap().unwrap();
    assert_eq!(entry.status, Status::Dead);
    assert!(entry.last_error.unwrap().starts_with("expired"));
    let next = take(&outbox, lane).await.unwrap();
    assert_eq!(outbox.expire(mesh(), 1_000, 1_000).await.unwrap(), 0, "what is on its way is not given up");
    settle(&outbox, lane, next.id, Verdict::Done(place(1)), 100, 0).await;
    assert_eq!(outbox.prune(101).await.unwrap(), 0, "there is room: no id is free again");
    drop(outbox);
    let outbox = Outbox::open(dir.path(), Cap { bytes: 20_000 }).unwrap();
    assert_eq!((outbox.prune(100).await.unwrap(), outbox.prune(101).await.unwrap()), (0, 1));
    assert_eq!(outbox.list(None, 0, 10).await.unwrap().len(), 1, "the dead one stays");
}

#[tokio::test]
async fn a_row_is_sent_anew_with_all_its_routing() {
    let dir = tempfile::tempdir().unwrap();
    let outbox = open(dir.path());
    let (row, lane) = insert(&outbox, "1", "one").await;
    take(&outbox, lane).await.unwrap();
    let dead = Verdict::Dead { error: "too_large: no".into() };
    assert_eq!(
        outbox.requeue(row, anew("2", Lookup::NotAsked), 30).await.unwrap(),
        Requeued::Refused(Refusal::Inflight)
    );
    settle(&outbox, lane, row, dead, 20, 0).await;
    assert_eq!(
        outbox.requeue(row, anew("2", Lookup::NotAsked), 30).await.unwrap(),
        Requeued::Ask("1".into())
    );
    assert_eq!(
        outbox.requeue(row, anew("2", Lookup::Unreachable), 30).await.unwrap(),
        Requeued::Refused(Refusal::MayHaveArrived)
    );
    let taken = outbox.requeue(row, anew("1", Lookup::Unknown { attempts: 1 }), 30).await.unwrap();
    let Requeued::IdTaken(conflict, presented) = taken else { panic!("{taken:?}") };
    let print = *request("1", "topic:a", "one").fingerprint();
    assert_eq!((conflict.name(), conflict.held), ("outbox_dead_fingerprint_match", print));
    assert_eq!(presented, print);
    let patched =
        Anew { body: Some(Patch::Text("uno".into())), ..anew("2", Lookup::Unknown { attempts: 1 }) };
    let Requeued::Replaced { row: new, lane: same, .. } = outbox.requeue(row, patched, 30).await.unwrap()
    else {
        panic!("not replaced")
    };
    assert_eq!(same, lane);
    let old = outbox.get(row).await.unwrap().unwrap();
    assert_eq!(
        (old.status, old.superseded_by, old.aborted_by.as_deref()),
        (Status::Aborted, Some(new), Some("op"))
    );
    let sent = take(&outbox, lane).await.unwrap();
    let expected = request("2", "topic:a", "uno");
    assert_eq!((sent.id, &sent.params), (new, expected.params()), "ttl and fingerprint included");
    assert_eq!(
        outbox.requeue(99, anew("3", Lookup::Unknown { attempts: 1 }), 30).await.unwrap(),
        Requeued::NoSuchRow
    );
}

#[tokio::test]
async fn what_the_broker_has_is_not_sent_anew() {
    let dir = tempfile::tempdir().unwrap();
    let outbox = open(dir.path());
    let (row, lane) = insert(&outbox, "1", "one").await;
    take(&outbox, lane).await.unwrap();
    settle(&outbox, lane, row, Verdict::Again { error: "?".into(), wish_ms: None }, 20, 30).await;
    let known = || Lookup::Known {
        place: place(4),
        prefix: Some(request("1", "topic:a", "one").fingerprint().prefix()),
    };
    let patched = Anew { body: Some(Patch::Text("uno".into())), ..anew("2", known()) };
    let refused = outbox.requeue(row, patched, 30).await.unwrap();
    assert_eq!(refused, Requeued::Refused(Refusal::AlreadyThere), "it cannot be patched any more");
    assert_eq!(outbox.get(row).await.unwrap().unwrap().status, Status::Pending);
    let known = outbox.requeue(row, anew("2", known()), 30).await.unwrap();
    assert_eq!(known, Requeued::Finished(place(4)));
    assert_eq!(outbox.get(row).await.unwrap().unwrap().status, Status::Done);
    assert_eq!(
        outbox.withdraw(row, "op".into(), 40).await.unwrap(),
        Withdrawn::Refused(Refusal::Final(Status::Done))
    );
}

/// The broker had another program's message under the row's id: the row was called done, and its body was gone.
#[tokio::test]
async fn another_message_under_a_rows_id_at_the_broker_is_not_that_row() {
    let dir = tempfile::tempdir().unwrap();
    let outbox = open(dir.path());
    for (old, new, patch) in [("1", "2", None), ("3", "4", Some("uno"))] {
        let (row, lane) = insert(&outbox, old, "one").await;
        take(&outbox, lane).await.unwrap();
        settle(&outbox, lane, row, Verdict::Dead { error: "idempotency_key_reused: no".into() }, 20, 0).await;
        let other = request(old, "topic:a", "another").fingerprint().prefix();
        let lookup = Lookup::Known { place: place(4), prefix: Some(other) };
        let body = patch.map(|text| Patch::Text(text.into()));
        let replaced = outbox.requeue(row, Anew { body, ..anew(new, lookup) }, 30).await.unwrap();
        let Requeued::Replaced { row: fresh, .. } = replaced else { panic!("{replaced:?}") };
        assert_eq!(outbox.get(row).await.unwrap().unwrap().status, Status::Aborted);
        let sent = take(&outbox, lane).await.unwrap();
        let expected = request(new, "topic:a", patch.unwrap_or("one"));
        assert_eq!((sent.id, &sent.params), (fresh, expected.params()));
        settle(&outbox, lane, fresh, Verdict::Done(place(5)), 40, 0).await;
    }
}

#[tokio::test]
async fn a_damaged_row_is_dead_and_the_next_is_sent() {
    let dir = tempfile::tempdir().unwrap();
    let outbox = open(dir.path());
    let (row, lane) = insert(&outbox, "1", "one").await;
    let (next, _) = insert(&outbox, "2", "two").await;
    drop(outbox);
    let connection = Connection::open(dir.path().join("outbox.db")).unwrap();
    connection.execute("UPDATE outbox SET payload = CAST(replace(CAST(payload AS TEXT), 'one', 'eno') AS BLOB) WHERE id = 1", []).unwrap();
    drop(connection);
    let outbox = open(dir.path());
    assert_eq!(take(&outbox, lane).await.unwrap().id, next);
    let dead = outbox.get(row).await.unwrap().unwrap();
    assert!(dead.status == Status::Dead && dead.last_error.unwrap().starts_with("damaged"));
}

#[tokio::test]
async fn a_damaged_file_is_an_error_and_is_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("outbox.db");
    for content in [Vec::new(), vec![7u8; 8192], b"SQLite format 3\0 and then nothing".to_vec()] {
        fs::write(&path, &content).unwrap();
        let refused = Outbox::open(dir.path(), CAP).unwrap_err();
        assert!(matches!(refused, DbError::Corrupt(_)), "{refused}");
        assert_eq!(fs::read(&path).unwrap(), content);
    }
    fs::remove_file(&path).unwrap();
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE notes (text)").unwrap();
    let refused = Outbox::open(dir.path(), CAP).unwrap_err();
    assert!(refused.to_string().contains("belongs to another program"), "{refused}");
    fs::remove_file(&path).unwrap();
    drop(open(dir.path()));
    Connection::open(&path).unwrap().pragma_update(None, "user_version", 99).unwrap();
    let refused = Outbox::open(dir.path(), CAP).unwrap_err();
    assert!(refused.to_string().contains("outbox.db has schema version 99"), "{refused}");
}

#[tokio::test]
async fn any_page_overwritten_is_a_named_error_never_a_panic() {
    let dir = tempfile::tempdir().unwrap();
    let outbox = open(dir.path());
    for n in 0..50 {
        insert(&outbox, &n.to_string(), &"x".repeat(500)).await;
    }
    drop(outbox);
    let good = fs::read(dir.path().join("outbox.db")).unwrap();
    for page in 0..good.len() / 4096 {
        let copy = tempfile::tempdir().unwrap();
        let mut bad = good.clone();
        bad[page * 4096..(page + 1) * 4096].fill(0xa5);
        fs::write(copy.path().join("outbox.db"), &bad).unwrap();
        if let Ok(outbox) = Outbox::open(copy.path(), CAP) {
            // What the check at the start does not see is seen when it is read, or not there to be read.
            for lane in outbox.lanes(mesh(), ME).await.unwrap_or_default() {
                let _ = outbox.take(lane.lane, 64).await;
            }
        }
    }
}

#[tokio::test]
async fn a_full_outbox_answers_retries_and_refuses_what_is_new() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()));
    let outbox = open(dir.path());
    insert(&outbox, "1", "one").await;
    drop(outbox);
    let outbox = Outbox::open(dir.path(), Cap { bytes: 20_000 }).unwrap();
    let refused = outbox.accept(request("2", "topic:a", "two"), 1).await.unwrap_err();
    assert!(matches!(refused, DbError::Full(_)), "{refused}");
    let retry = outbox.accept(request("1", "topic:a", "one"), 1).await.unwrap();
    assert_eq!(retry.answer, Answer::Queued);
    assert_eq!((Cap { bytes: 1_000 }.closed_at(), Cap { bytes: 1_000 }.warn_at()), (950, 800));
}

#[tokio::test]
async fn what_is_done_or_taken_back_makes_room_and_keeps_its_id() {
    let dir = tempfile::tempdir().unwrap();
    let outbox = Outbox::open(dir.path(), Cap { bytes: 1024 * 1024 }).unwrap();
    let large = "x".repeat(60_000);
    // Three times what it may hold.
    for n in 0..50 {
        let (row, lane) = insert(&outbox, &n.to_string(), &large).await;
        if n % 2 == 0 {
            assert_eq!(take(&outbox, lane).await.unwrap().id, row);
            settle(&outbox, lane, row, Verdict::Done(place(row)), 20, 0).await;
        } else {
            assert_eq!(outbox.withdraw(row, "op".into(), 20).await.unwrap(), Withdrawn::Done);
        }
    }
    let again = |n: &str, body: &str| outbox.accept(request(n, "topic:a", body), 30);
    assert_eq!(again("0", &large).await.unwrap().answer, Answer::Done(Some(place(1))));
    assert!(matches!(again("0", "other").await.unwrap().answer, Answer::Conflict(_)));
    assert!(matches!(again("1", &large).await.unwrap().answer, Answer::Conflict(_)));
    drop(outbox);
    let to = tempfile::tempdir().unwrap();
    let saved = salvage(&dir.path().join("outbox.db"), to.path(), 0).unwrap();
    assert_eq!((saved.saved, saved.lost.len()), (50, 0), "and can be recovered");
}

#[tokio::test]
async fn a_row_from_the_future_counts_from_when_the_clock_was_right() {
    let dir = tempfile::tempdir().unwrap();
    let outbox = open(dir.path());
    let (row, _) = outbox.accept(request("1", "topic:a", "x"), 1_000_000).await.unwrap().row.unwrap();
    assert_eq!(outbox.expire("other".parse().unwrap(), 50, 100).await.unwrap(), 0);
    assert_eq!(
        outbox.get(row).await.unwrap().unwrap().enqueued_at,
        1_000_000,
        "another mesh is another matter"
    );
    assert_eq!(outbox.expire(mesh(), 50, 100).await.unwrap(), 0);
    assert_eq!(outbox.get(row).await.unwrap().unwrap().enqueued_at, 100);
    assert_eq!(outbox.expire(mesh(), 101, 151).await.unwrap(), 1, "it does not live for ever");
}

#[tokio::test]
async fn many_at_once_share_commits_and_twins_are_one() {
    let dir = tempfile::tempdir().unwrap();
    let outbox = open(dir.path());
    let waiting: Vec<_> =
        (0..500).map(|n| outbox.accepting(request(&(n / 2).to_string(), "topic:a", "x"), 1)).collect();
    let mut inserted = 0;
    for pending in waiting {
        inserted += usize::from(answer(pending).await.unwrap().answer == Answer::Insert);
    }
    assert_eq!(inserted, 250);
    assert_eq!(outbox.census().await.unwrap().pending, 250);
}

#[tokio::test]
async fn a_name_is_resolved_once_for_each_id() {
    let dir = tempfile::tempdir().unwrap();
    let outbox = open(dir.path());
    let named = request("1", "topic:a", "x").named(Some("bob".into()));
    let (row, _) = outbox.accept(named, 10).await.unwrap().row.unwrap();
    let meant = async |id: &str, name: &str| {
        outbox.named(mesh(), id.parse().unwrap(), name.to_owned()).await.unwrap()
    };
    assert_eq!(meant("1", "bob").await.as_deref(), Some("topic:a"));
    assert_eq!((meant("1", "eve").await, meant("2", "bob").await), (None, None));
    outbox.requeue(row, anew("2", Lookup::NotAsked), 20).await.unwrap();
    assert_eq!(meant("2", "bob").await.as_deref(), Some("topic:a"), "all routing is kept");
    let lane = outbox.lanes(mesh(), ME).await.unwrap()[0].lane;
    let sent = take(&outbox, lane).await.unwrap();
    settle(&outbox, lane, sent.id, Verdict::Done(place(1)), 30, 0).await;
    let connection = Connection::open(dir.path().join("outbox.db")).unwrap();
    connection.execute("DELETE FROM outbox WHERE id = ?1", [sent.id as i64]).unwrap();
    let sql = "SELECT count(*) FROM names WHERE row = ?1";
    let names: i64 = connection.query_row(sql, [sent.id as i64], |row| row.get(0)).unwrap();
    assert_eq!(names, 0, "a name goes with its row");
}
