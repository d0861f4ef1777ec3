//! Who may settle what, and when it is too late.

use tenure_mesh::MeshConfig;
use tenure_mesh::conn::admit::Admission;
use tenure_mesh::effect::{Answer, Note, Push};
use tenure_mesh::input::{Call, Input};
use tenure_mesh::messages::group::OPEN_MAX;
use tenure_mesh::sessions::stream::PENDING_EVENTS;
use tenure_mesh::store::record::{GroupRecord, GroupWrite, OpenRecord, Reader, StoreRead, StoreWrite};
use tenure_proto::dead::DeadRetryParams;
use tenure_proto::error::ErrorCode;
use tenure_proto::event::{EventBody, ReceiptState, Resync, ResyncWhat};
use tenure_proto::hello::{HelloReconcile, Later};
use tenure_proto::ids::ConnId;
use tenure_proto::limits::{ACK_TIMEOUT_MS, MAX_ATTEMPTS};
use tenure_proto::log::LogName;
use tenure_proto::message::{Fallback, NackParams, SendParams, SendState, TagsParams};
use tenure_proto::reconcile::{ClientInflight, InflightResult, InflightState, ReconcileParams};
use tenure_proto::subscribe::{AckMode, SubscribeParams, UnsubscribeParams};
use tenure_store::Write;

use super::inbox::fill;
use super::words::*;
use super::world::{Engine, World};

/// Two members of a crew with a prefetch of one, of whom the first, session 2, has `job` in hand.
fn crew(config: MeshConfig) -> (World, ConnId, ConnId, Push) {
    let mut w = World::new(Engine::memory(), config);
    let (a, b) = (w.join(1), w.join(2));
    for conn in [a, b] {
        w.subscribe(conn, SubscribeParams { prefetch: 1, ..subscription("jobs", Some("crew")) });
    }
    w.post(a, letter(topic("jobs"), "job"));
    let (mut first, mut second) = (w.pushes(a), w.pushes(b));
    assert_eq!((first.len(), second.len()), (0, 1), "one of them has it: the other's turn is next");
    (w, b, a, second.pop().or(first.pop()).unwrap())
}

fn grace(ms: u64) -> MeshConfig {
    MeshConfig { reconnect_grace_ms: ms, ..MeshConfig::default() }
}

#[test]
fn a_tag_of_another_settles_nothing() {
    let (mut w, a, b, job) = crew(MeshConfig::default());
    let stolen = w.ack(b, std::slice::from_ref(&job));
    assert_eq!((stolen.settled.len(), stolen.stale[0].reason.as_str()), (0, "not_owner"));
    w.ack_all(a, std::slice::from_ref(&job));
    w.ack_all(a, &[job]);
}

#[test]
fn a_settle_counts_after_the_break_until_somebody_else_has_it() {
    // Within grace.
    let (mut w, a, b, job) = crew(MeshConfig::default());
    w.drop_socket(a);
    w.pass(4_000);
    assert!(w.pushes(b).is_empty(), "it stays with its reader for a while");
    let a = w.resume(2, a);
    w.ack_all(a, &[job]);
    let late = Note::LateSettleAccepted { session: session(2), conn: a, count: 1 };
    assert!(w.notes.contains(&late), "{:?}", w.notes);
    w.pass(60_000);
    assert!(w.pushes(b).is_empty());

    // After it went back, before anybody else has it.
    let (mut w, a, b, job) = crew(MeshConfig::default());
    w.drop_socket(b);
    w.drop_socket(a);
    w.pass(6_000);
    assert!(w.notes.iter().any(|note| matches!(note, Note::Requeued { count: 1, .. })));
    let (call, _) = (Call::Ack(TagsParams { tags: vec![tag(&job)] }), ());
    let resuming = w.resuming(2, a);
    let params = ReconcileParams {
        subscriptions: Vec::new(),
        inflight: vec![ClientInflight {
            tag: tag(&job),
            state: InflightState::Settled,
            settle: Some(tenure_proto::reconcile::Settle::Ack),
        }],
        ..ReconcileParams::default()
    };
    let (a, result) = w.reconciling(resuming, params);
    assert_eq!(result.inflight[0].result, InflightResult::Settled);
    assert!(w.notes.iter().any(|note| matches!(note, Note::LateSettleAccepted { .. })));
    let b = w.resume(1, b);
    assert!(w.pushes(b).is_empty());
    assert_eq!(w.settle(a, call).settled.len(), 1, "said again, settled again");

    // After somebody else has it.
    let (mut w, a, b, job) = crew(MeshConfig::default());
    w.drop_socket(a);
    w.pass(6_000);
    let again = w.pushes(b);
    assert_eq!((bodies(&again), again[0].attempt, again[0].redelivered), (vec!["job".to_owned()], 2, true));
    let a = w.resume(2, a);
    assert!(w.pushes(a).is_empty());
    let late = w.ack(a, &[job]);
    assert_eq!((late.settled.len(), late.stale[0].reason.as_str()), (0, "requeued"));
    w.ack_all(b, &again);
}

/// Once the new holder had settled, a late settle of the former one was answered as if it had counted.
#[test]
fn a_settle_by_a_former_holder_is_stale_also_after_another_settled_it() {
    for (dead, restart) in [(false, false), (true, false), (false, true), (true, true)] {
        let (mut w, a, b, job) = crew(MeshConfig::default());
        w.drop_socket(a);
        w.pass(6_000);
        let again = w.pushes(b);
        assert_eq!(again[0].attempt, 2);
        let settle = match dead {
            true => Call::Nack(NackParams { dead: true, ..nacked(vec![tag(&again[0])]) }),
            false => Call::Ack(TagsParams { tags: vec![tag(&again[0])] }),
        };
        assert_eq!(w.settle(b, settle.clone()).settled.len(), 1);
        let (a, b) = match restart {
            true => {
                w.restart();
                (w.resume(2, a), w.resume(1, b))
            }
            false => (w.resume(2, a), b),
        };
        let tags = vec![tag(&job)];
        for call in [
            Call::Ack(TagsParams { tags: tags.clone() }),
            Call::Nack(nacked(tags.clone())),
            Call::Nack(NackParams { dead: true, ..nacked(tags.clone()) }),
        ] {
            let late = w.settle(a, call);
            assert_eq!(
                (late.settled.len(), late.stale[0].reason.as_str()),
                (0, "requeued"),
                "{dead} {restart}"
            );
        }
        let progress = w.settle(a, Call::Progress(TagsParams { tags: tags.clone() }));
        assert_eq!(progress.stale[0].reason, "settled");
        let listed = ClientInflight { tag: tag(&job), state: InflightState::Settled, settle: None };
        let params = ReconcileParams { inflight: vec![listed], ..ReconcileParams::default() };
        assert_eq!(w.resume_with(2, a, params).1.inflight[0].result, InflightResult::Requeued);
        assert_eq!(w.settle(b, settle).settled.len(), 1, "who settled it may say so again");
        assert_eq!(w.dead(b, &job.entry.log).len(), usize::from(dead), "and nothing else came of it");
    }
}

/// A late settle of what was given up without its holder's word was answered as if it had counted.
#[test]
fn a_settle_of_what_failed_too_often_or_expired_meanwhile_is_stale() {
    for (expires, restart) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut w = world();
        let (a, mut b) = (w.join(1), w.join(2));
        w.subscribe(b, subscription("jobs", Some("crew")));
        let ttl_ms = ms(30_000).filter(|_| expires);
        w.post(a, SendParams { ttl_ms, ..letter(topic("jobs"), "job") });
        let mut job = w.pushes(b);
        for _ in 1..if expires { 1 } else { MAX_ATTEMPTS } {
            w.nack(b, &job[0]);
            job = w.pushes(b);
        }
        w.drop_socket(b);
        w.pass(60_000);
        if restart {
            w.restart();
        }
        b = w.resume(2, b);
        assert!(w.pushes(b).is_empty());
        let late = w.ack(b, &job);
        assert_eq!(
            (late.settled.len(), late.stale[0].reason.as_str()),
            (0, "requeued"),
            "{expires} {restart}"
        );
        let dead = w.dead(b, &job[0].entry.log);
        let of_crew = dead.iter().find(|letter| letter.group.is_some()).expect("a dead letter of the group");
        assert_eq!(of_crew.attempts, job[0].attempt);
        // Fetched from there it is settled as any other, and that may be said twice.
        assert_eq!(w.dead_retry(b, &job[0].entry.log, &[job[0].entry.seq]).retried.len(), 1);
        let again = w.pushes(b);
        assert_eq!(again[0].attempt, job[0].attempt + 1);
        w.ack_all(b, &again);
        w.ack_all(b, &again);
        assert_eq!(w.ack(b, &job).stale[0].reason, "requeued");
    }
}

/// What came back from the dead letters and was acked was told `requeued` when the ack was said again.
#[test]
fn what_was_acked_after_it_came_back_stays_settled() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    w.post(a, SendParams { ttl_ms: ms(20_000), ..letter(to(2), "m1") });
    let first = w.pushes(b);
    let delay_ms = ms(60_000);
    w.settle(b, Call::Nack(NackParams { delay_ms, ..nacked(vec![tag(&first[0])]) }));
    w.pass(50_000);
    assert_eq!(w.ack(b, &first).stale[0].reason, "requeued", "it expired while it waited");
    assert_eq!(w.dead_retry(b, &inbox(2), &[first[0].entry.seq]).retried.len(), 1);
    let again = w.pushes(b);
    w.ack_all(b, &again);
    w.ack_all(b, &again);
}

/// After a start, what had been given back was taken for another's, although nobody had had it since.
#[test]
fn a_settle_after_a_start_counts_while_nobody_else_has_had_the_entry() {
    for delayed in [false, true] {
        let (mut w, b, a, job) = crew(MeshConfig::default());
        w.drop_socket(b);
        if delayed {
            let delay_ms = ms(600_000);
            w.settle(a, Call::Nack(NackParams { delay_ms, ..nacked(vec![tag(&job)]) }));
        }
        w.drop_socket(a);
        w.pass(6_000);
        w.restart();
        let listed = ClientInflight { tag: tag(&job), state: InflightState::Settled, settle: None };
        let params = ReconcileParams { inflight: vec![listed], ..ReconcileParams::default() };
        assert_eq!(w.resume_with(2, a, params).1.inflight[0].result, InflightResult::Settled, "{delayed}");
        let b = w.resume(1, b);
        w.pass(700_000);
        assert!(w.pushes(b).is_empty(), "nobody does it again");
    }
}

/// A new lease was told after a start that it had settled what moved on when the old one ended.
#[test]
fn an_entry_that_moved_on_before_a_start_is_not_settled_by_a_new_lease() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    w.post(a, SendParams { fallback: Fallback::Member, ..letter(to(2), "m1") });
    let first = w.pushes(b);
    w.drop_socket(b);
    w.pass(200_000);
    w.restart();
    let b = w.join(2);
    assert_eq!(w.ack(b, &first).stale[0].reason, "requeued");
}

/// What stays in an inbox although its session's lease ends is settled by the next lease, also when that is said twice.
#[test]
fn an_entry_that_was_held_over_a_start_is_settled_by_a_new_lease() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    w.post(a, SendParams { fallback: Fallback::Hold, ..letter(to(2), "m1") });
    assert_eq!(w.pushes(b).len(), 1);
    w.drop_socket(b);
    w.pass(200_000);
    w.restart();
    let b = w.join(2);
    let again = w.pushes(b);
    w.ack_all(b, &again);
    w.ack_all(b, &again);
}

/// What a settle came to that waited for the store was dropped with its socket, and others did the work again.
#[test]
fn what_follows_a_settle_that_waits_for_the_store_waits_behind_it() {
    for bye in [true, false] {
        let (mut w, a, b, job) = crew(MeshConfig::default());
        let unsubscribe = Call::Unsubscribe(UnsubscribeParams { sub_id: job.sub.clone() });
        let leave = if bye { Call::Bye } else { unsubscribe };
        w.restart();
        let b = w.resume(1, b);
        // Who has yet to tell what it has in hand is handed nothing before that.
        let reconcile = Some(HelloReconcile::Later(Later::Later));
        let a = w.dial(Admission { reconcile, ..w.resuming(2, a) });
        let (ack, acked) = w.request(a, Call::Ack(TagsParams { tags: vec![tag(&job)] }));
        let (leave, left) = w.request(a, leave);
        let at = w.now().at;
        w.reads.clear();
        w.tell_all(vec![ack, leave, Input::Closed { conn: a, at, by_client: true }]);
        assert!(w.reads.iter().any(|read| matches!(read, StoreRead::Ids { .. })), "it waited");
        let answer = w.answered(a, &acked).expect("an answer").unwrap();
        assert!(matches!(answer, Answer::Settle(result) if result.settled.len() == 1));
        assert!(w.answered(a, &left).is_some());
        w.pass(200_000);
        assert!(w.pushes(b).is_empty(), "nobody does it again");
    }
}

/// After a start, the tag of another store's message was answered as settled if the message at its place was.
#[test]
fn a_tag_of_another_history_settles_nothing_that_is_settled() {
    for engine in [Engine::memory as fn() -> Engine, Engine::sqlite] {
        let one = |engine: Engine| {
            let mut w = World::new(engine, MeshConfig::default());
            let (a, b) = (w.join(1), w.join(2));
            w.subscribe(b, subscription("jobs", Some("crew")));
            (w, a, b)
        };
        let (mut w, a, b) = one(engine());
        w.post(a, letter(topic("jobs"), "old"));
        let old = w.pushes(b);
        let (mut w, a, b) = one(engine());
        w.next_message();
        w.post(a, letter(topic("jobs"), "new"));
        let new = w.pushes(b);
        assert_eq!((old[0].entry.seq, new.len()), (new[0].entry.seq, 1));
        w.ack_all(b, &new);
        w.restart();
        let b = w.resume(2, b);
        let stale = w.ack(b, &old);
        assert_eq!((stale.settled.len(), stale.stale[0].reason.as_str()), (0, "unknown_tag"));
        w.ack_all(b, &new);
    }
}

#[test]
fn without_grace_it_goes_back_at_once() {
    let (mut w, a, b, _) = crew(grace(0));
    w.drop_socket(a);
    assert_eq!(bodies(&w.pushes(b)), ["job"]);
}

#[test]
fn after_a_start_claims_wait_for_their_readers_for_thirty_seconds() {
    let (mut w, a, b, job) = crew(grace(0));
    w.pass(1_000);
    w.restart();
    let b = w.resume(1, b);
    w.pass(29_000);
    assert!(w.pushes(b).is_empty(), "held for its reader");
    w.pass(2_000);
    assert_eq!(bodies(&w.pushes(b)), ["job"]);
    let a = w.resume(2, a);
    assert_eq!(w.ack(a, &[job]).stale.len(), 1);
}

#[test]
fn what_was_never_read_comes_again_first_under_the_same_tag() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    for id in ["m1", "m2"] {
        w.post(a, letter(to(2), id));
    }
    let first = w.pushes(b);
    w.drop_socket(b);
    w.post(a, letter(to(2), "m3"));
    for round in 0..2 {
        // In memory, and after a start.
        if round == 1 {
            w.pass(1_000);
            w.restart();
        }
        let again = w.resume(2, b);
        let pushes = w.pushes(again);
        assert_eq!(bodies(&pushes), ["m1", "m2", "m3"], "round {round}");
        assert_eq!((tag(&pushes[0]), tag(&pushes[1])), (tag(&first[0]), tag(&first[1])));
        assert!(pushes[0].redelivered);
        w.drop_socket(again);
    }
}

#[test]
fn a_member_that_takes_too_long_loses_it_unless_it_makes_progress() {
    let (mut w, a, b, job) = crew(MeshConfig::default());
    w.pass(ACK_TIMEOUT_MS - 1_000);
    assert_eq!(w.settle(a, Call::Progress(TagsParams { tags: vec![tag(&job)] })).settled.len(), 1);
    w.pass(ACK_TIMEOUT_MS - 2_000);
    assert!(w.pushes(b).is_empty());
    w.pass(3_000);
    let taken = [w.pushes(a), w.pushes(b)].concat();
    assert_eq!((bodies(&taken), taken[0].attempt), (vec!["job".to_owned()], 2), "whoever's turn it is");
    let late = w.settle(a, Call::Progress(TagsParams { tags: vec![tag(&job)] }));
    assert_eq!(late.stale[0].reason, "requeued");
}

#[test]
fn progress_of_what_went_back_is_not_progress() {
    let (mut w, a, b, job) = crew(MeshConfig::default());
    w.drop_socket(b);
    w.pass(ACK_TIMEOUT_MS + 1_000);
    let again = w.pushes(a);
    assert_eq!(again.len(), 1, "nobody else is there");
    let late = w.settle(a, Call::Progress(TagsParams { tags: vec![tag(&job)] }));
    assert_eq!(late.stale.len(), 1, "it is another hand-out now");
}

#[test]
fn what_fails_sixteen_times_is_a_dead_letter() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    w.post(a, letter(to(2), "poison"));
    for attempt in 1..=MAX_ATTEMPTS {
        let pushes = w.pushes(b);
        assert_eq!(pushes.iter().map(|push| push.attempt).collect::<Vec<_>>(), [attempt]);
        w.nack(b, &pushes[0]);
    }
    assert!(w.pushes(b).is_empty());
    let letters = w.dead(b, &inbox(2));
    assert_eq!((letters.len(), letters[0].reason.as_str()), (1, "max_attempts"));
    assert_eq!(letters[0].attempts, MAX_ATTEMPTS);
    let receipts = w.receipts(a);
    assert_eq!((receipts.len(), receipts[0].state), (1, ReceiptState::Dead));
    w.restart();
    let b = w.resume(2, b);
    assert!(w.pushes(b).is_empty());
}

#[test]
fn a_nack_that_is_said_again_is_one_failure_and_waits_no_longer() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    w.post(a, letter(to(2), "m1"));
    for attempt in 1..MAX_ATTEMPTS {
        let pushes = w.pushes(b);
        assert_eq!(pushes.iter().map(|push| push.attempt).collect::<Vec<_>>(), [attempt]);
        let nack = NackParams { delay_ms: ms(1_000), ..nacked(vec![tag(&pushes[0])]) };
        for _ in 0..3 {
            let result = w.settle(b, Call::Nack(nack.clone()));
            assert_eq!(result.settled, nack.tags, "the answer is the same each time");
            w.pass(300);
        }
        // Since the first of them, not the last.
        w.pass(200);
    }
    assert_eq!(w.pushes(b)[0].attempt, MAX_ATTEMPTS, "it has failed as often as it was tried");
    assert!(w.dead(b, &inbox(2)).is_empty());
}

#[test]
fn auto_settles_what_has_left_and_repeats_what_has_not() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    let auto = SubscribeParams { ack_mode: AckMode::Auto, prefetch: 2, ..subscription("t", None) };
    w.subscribe(b, auto);
    for id in ["m1", "m2", "m3", "m4", "m5"] {
        w.post(a, letter(topic("t"), id));
    }
    assert_eq!(bodies(&w.pushes(b)), ["m1", "m2", "m3", "m4", "m5"], "each makes room for the next");
    w.sockets.get_mut(&b).unwrap().flushes = false;
    w.post(a, letter(topic("t"), "m6"));
    w.drop_socket(b);
    let b = w.resume(2, b);
    assert_eq!(bodies(&w.pushes(b)), ["m6"], "it had not left");
    w.drop_socket(b);
    let b = w.resume(2, b);
    assert!(w.pushes(b).is_empty());
    let log = LogName::Topic("t".parse().unwrap(), 0);
    assert!(w.dead(b, &log).is_empty());
}

#[test]
fn a_nack_with_a_delay_waits_and_holds_nobody_up() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    w.post(a, letter(to(2), "m1"));
    w.post(a, letter(to(2), "m2"));
    let pushes = w.pushes(b);
    let mut params = nacked(vec![tag(&pushes[0])]);
    params.delay_ms = ms(10_000);
    w.settle(b, Call::Nack(params));
    w.ack_all(b, &pushes[1..]);
    w.pass(3_000);
    w.restart();
    let b = w.resume(2, b);
    w.pass(6_000);
    assert!(w.pushes(b).is_empty(), "a start does not shorten it");
    w.pass(1_500);
    assert_eq!(bodies(&w.pushes(b)), ["m1"]);
}

#[test]
fn no_more_dead_letters_come_back_than_a_reader_may_have_open() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    w.subscribe(b, SubscribeParams { prefetch: 1, ..subscription("jobs", Some("crew")) });
    w.post(a, letter(topic("jobs"), "j1"));
    let pushes = w.pushes(b);
    w.settle(b, Call::Nack(NackParams { dead: true, ..nacked(vec![tag(&pushes[0])]) }));
    w.drop_socket(b);
    let (log, open) = (pushes[0].entry.log.clone(), OPEN_MAX as u64);
    fill(&mut w, &log, open);
    let ready = |seq| OpenRecord { seq, attempt: 1, tries: 0, holder: None, ready_at: None, lasting: false };
    let write = GroupWrite {
        record: GroupRecord {
            id: pushes[0].group,
            log: log.clone(),
            lane: pushes[0].entry.lane,
            reader: Reader::Shared("crew".parse().unwrap()),
            owner: None,
        },
        cursor: open + 1,
        used_at: w.wall,
        replace: true,
        put: (2..=open + 1).map(ready).collect(),
        del: Vec::new(),
        settlers: Default::default(),
    };
    let write = StoreWrite::Group(Box::new(write));
    let (mesh, run) = (w.name.clone(), w.run);
    w.store().apply(&[Write::Mesh { mesh, run, write }]).unwrap();
    w.restart();
    let a = w.resume(1, a);
    let retry = DeadRetryParams { log: log.to_string(), seqs: vec![ms(1).unwrap()] };
    assert_eq!(code(&w.call(a, Call::DeadRetry(retry))), ErrorCode::Busy);
    let b = w.resume(2, b);
    let pushes = w.pushes(b);
    w.ack_all(b, &pushes);
    assert_eq!(w.dead_retry(a, &log, &[1]).retried.len(), 1, "there is room again");
}

#[test]
fn more_receipts_than_may_wait_are_one_word_and_their_sender_is_kept() {
    const LETTERS: usize = 2 * PENDING_EVENTS;
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    let ids: Vec<String> = (0..LETTERS).map(|n| format!("m{n}")).collect();
    for id in &ids {
        w.post(a, letter(to(2), id));
    }
    let mut pushes = w.pushes(b);
    while pushes.len() < LETTERS {
        let more = w.fetch(b, "inbox", 256);
        assert!(!more.is_empty());
        pushes.extend(more);
    }
    let tags = pushes.iter().map(tag).collect();
    w.settle(b, Call::Ack(TagsParams { tags }));
    assert!(w.socket(a).open, "whoever reads is kept");
    let events = std::mem::take(&mut w.sockets.get_mut(&a).unwrap().events);
    let receipts = events.iter().filter(|event| matches!(event, EventBody::Receipt(_))).count();
    assert!((1..LETTERS).contains(&receipts), "{receipts}");
    let resync = EventBody::Resync(Resync { what: vec![ResyncWhat::Receipts] });
    assert_eq!(events.last(), Some(&resync));
    assert!(w.status(a, &[&ids[LETTERS - 1]])[0].0 == SendState::Delivered);
    w.post(a, letter(to(2), "later"));
    let later = w.pushes(b);
    w.ack_all(b, &later);
    assert_eq!(w.receipts(a).len(), 1, "then they come again");
}

#[test]
fn progress_of_what_somebody_else_has_settled_is_stale() {
    let (mut w, a, b, push) = crew(grace(1_000));
    w.drop_socket(a);
    w.pass(1_000);
    let taken = w.pushes(b);
    assert_eq!(taken.len(), 1);
    w.ack_all(b, &taken);
    let a = w.resume(2, a);
    let result = w.settle(a, Call::Progress(TagsParams { tags: vec![tag(&push)] }));
    assert_eq!((result.settled.len(), result.stale[0].reason.as_str()), (0, "settled"));
}
