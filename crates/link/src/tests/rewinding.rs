//! A broker whose store came back with another history: what is new is read, what was handled is not read twice.

use tenure_proto::MessageId;
use tenure_proto::limits::{FRAME_BEFORE_HELLO_BYTES, POSITIONS_PER_HELLO};
use tenure_proto::subscribe::{AckMode, SubscribeParams};

use super::*;
use crate::tests::peer::*;

const LOG: &str = "topic/jobs/0";
/// The broker's wall clock at the challenge of a test.
const WALL: u64 = 1_700_000_500_000;

/// The id of message `n`, accepted so many milliseconds after [`WALL`].
fn id(ms: u64, n: u64) -> MessageId {
    MessageId::from_parts(WALL + ms, u128::from(n))
}

/// Message `id` at a place of a log.
fn entry(sub: &str, log: &str, seq: u64, id: MessageId) -> Value {
    let mut delivery = delivery(sub, log, seq, 1);
    delivery["message"]["id"] = json!(id);
    delivery["tag"] = json!(format!("t{seq}.{id}"));
    delivery
}

fn told(effects: &[LinkEffect]) -> Vec<Vec<String>> {
    let told = effects.iter().filter_map(|effect| match effect {
        LinkEffect::Deliver(SessionEvent::HistoryRewound { logs }) => Some(logs.clone()),
        _ => None,
    });
    told.collect()
}

/// Delivers an entry that the application gets.
#[track_caller]
fn get(peer: &mut Peer, data: Value) -> DeliveryId {
    let effects = peer.event("message", data);
    let [(_, Some(id), _)] = messages(&effects)[..] else { panic!("{effects:?}") };
    id
}

/// Delivers an entry that the application gets and acks.
#[track_caller]
fn read(peer: &mut Peer, data: Value) {
    let id = get(peer, data);
    let (_, frame) = peer.ack(id);
    peer.reply(id_of(&frame), json!({"settled": frame["params"]["tags"], "stale": []}));
}

/// Delivers an entry that the application does not get; how it was settled instead.
#[track_caller]
fn recognised(peer: &mut Peer, data: Value) -> String {
    let tag = data["tag"].clone();
    let effects = peer.event("message", data);
    assert!(messages(&effects).is_empty(), "handed out: {effects:?}");
    let frames = sent(&peer.flush());
    let [frame] = &frames[..] else { panic!("{frames:?}") };
    assert_eq!(frame["params"]["tags"], json!([tag]));
    peer.reply(id_of(frame), json!({"settled": [tag], "stale": []}));
    frame["method"].as_str().unwrap().to_owned()
}

fn recreate(sub: &str) -> Value {
    let verdict =
        json!({"action": "recreate_client_side", "subId": sub, "client": sub, "reason": "client_only"});
    json!({"results": [verdict], "inflight": []})
}

/// A subscription that is made again begins at the earliest entry.
#[track_caller]
fn reopened(peer: &mut Peer, effects: &[LinkEffect], sub: &str) {
    let subscribe = only(effects, "subscribe");
    assert_eq!(subscribe["params"]["from"], "earliest");
    peer.reply(id_of(&subscribe), json!({"subId": sub, "startSeq": {"0": 1}}));
}

#[test]
fn a_hello_lists_the_newest_entry_of_each_log_with_its_id() {
    let mut peer = Peer::new();
    peer.subscribe(Some("crew"), "s1", 1);
    peer.subscribe(None, "s2", 1);
    let inbox = format!("inbox/s/{}", "01".repeat(32));
    read(&mut peer, entry("s1", LOG, 7, id(1, 7)));
    get(&mut peer, entry("s1", LOG, 6, id(0, 6)));
    read(&mut peer, entry("s2", LOG, 5, id(0, 5)));
    get(&mut peer, entry("inbox", &inbox, 3, id(9, 3)));
    let newest =
        [json!({"log": inbox, "seq": 3, "id": id(9, 3)}), json!({"log": LOG, "seq": 7, "id": id(1, 7)})];
    // Others stand in for the newest if that is gone.
    let older =
        [json!({"log": LOG, "seq": 6, "id": id(0, 6)}), json!({"log": LOG, "seq": 5, "id": id(0, 5)})];
    let listed = peer.cut()["positions"].clone();
    assert_eq!(listed, json!([newest, older].concat()), "in hand or handled");
    assert!(told(&peer.welcome("kept", "resumed", None)).is_empty());
}

#[test]
fn new_messages_at_old_places_are_read_and_old_ones_are_recognised_by_their_ids() {
    let mut peer = Peer::new();
    peer.subscribe(Some("crew"), "s1", 1);
    for n in 1..=5 {
        read(&mut peer, entry("s1", LOG, n, id(n, n)));
    }
    peer.cut();
    let effects = peer.rewound(&[LOG], "malformed", recreate("s1"));
    assert_eq!(told(&effects), [[LOG.to_owned()]]);
    reopened(&mut peer, &effects, "s9");
    for n in 1..=2 {
        assert_eq!(recognised(&mut peer, entry("s9", LOG, n, id(n, n))), "ack");
    }
    for n in 3..=7 {
        read(&mut peer, entry("s9", LOG, n, id(100, 100 + n)));
    }
    let listed: Vec<Value> =
        (4..=7).rev().map(|n| json!({"log": LOG, "seq": n, "id": id(100, 100 + n)})).collect();
    assert_eq!(peer.cut()["positions"], json!(listed), "at most four, of the history that there is now");
    let kept = json!({"results": [keep("s9", "s9")], "inflight": []});
    assert!(told(&peer.welcome("kept", "resumed", Some(kept))).is_empty(), "told once");
    assert_eq!(recognised(&mut peer, entry("s9", LOG, 3, id(100, 103))), "ack");
}

#[test]
fn a_place_that_was_settled_hides_no_message_that_the_broker_took_for_the_old_one() {
    let mut peer = Peer::new();
    let inbox = format!("inbox/s/{}", "01".repeat(32));
    let dead = Verb::Nack { delay_ms: None, dead: true, reason: None };
    for n in 1..=5 {
        read(&mut peer, entry("inbox", &inbox, n, id(n, n)));
    }
    let buried = get(&mut peer, entry("inbox", &inbox, 6, id(6, 6)));
    peer.settle(buried, dead);
    let frame = only(&peer.flush(), "nack");
    peer.reply(id_of(&frame), json!({"settled": frame["params"]["tags"], "stale": []}));
    peer.cut();
    // The newest entry is pruned in the broker's log, old or new: it counts as equal.
    assert!(told(&peer.welcome("kept", "resumed", None)).is_empty());
    let effects = peer.event("message", entry("inbox", &inbox, 6, id(100, 106)));
    assert_eq!((told(&effects), messages(&effects).len()), (vec![vec![inbox.clone()]], 1));
    for n in 3..=5 {
        read(&mut peer, entry("inbox", &inbox, n, id(100, 100 + n)));
    }
    assert_eq!(recognised(&mut peer, entry("inbox", &inbox, 2, id(2, 2))), "ack");
    assert_eq!(recognised(&mut peer, entry("inbox", &inbox, 5, id(100, 105))), "ack");
}

#[test]
fn a_private_reader_that_meets_another_history_by_itself_begins_again() {
    let mut peer = Peer::new();
    peer.subscribe(None, "s1", 1);
    for n in [1, 2, 3, 5] {
        read(&mut peer, entry("s1", LOG, n, id(n, n)));
    }
    let kept = get(&mut peer, entry("s1", LOG, 4, id(4, 4)));
    peer.cut();
    // The newest entry is pruned in the broker's log: it counts as equal. The reader goes on with what it has not read.
    let effects = peer.welcome("new", "resume_not_found", Some(recreate("s1")));
    assert!(told(&effects).is_empty());
    let subscribe = only(&effects, "subscribe");
    assert_eq!(subscribe["params"]["from"], 4);
    peer.reply(id_of(&subscribe), json!({"subId": "s2", "startSeq": {"0": 4}}));
    let fresh = get(&mut peer, entry("s2", LOG, 4, id(100, 104)));
    // A place that was settled has another message: those before it may have, too, and were passed over.
    let effects = peer.event("message", entry("s2", LOG, 5, id(100, 105)));
    assert_eq!((told(&effects), messages(&effects).len()), (vec![vec![LOG.to_owned()]], 0));
    let unsubscribe = only(&effects, "unsubscribe");
    assert_eq!(unsubscribe["params"]["subId"], "s2");
    // What the old subscription still brings is not its business any more.
    assert!(messages(&peer.event("message", entry("s2", LOG, 6, id(100, 106)))).is_empty());
    // The broker would answer a subscribe with the old one: that ends first, whatever comes between.
    peer.cut();
    let effects = peer.welcome("kept", "resumed", Some(json!({"results": [], "inflight": []})));
    let unsubscribe = only(&effects, "unsubscribe");
    assert_eq!(unsubscribe["params"]["subId"], "s2");
    let effects = peer.reply(id_of(&unsubscribe), json!({}));
    reopened(&mut peer, &effects, "s3");
    assert_eq!(recognised(&mut peer, entry("s3", LOG, 1, id(1, 1))), "ack");
    for n in [2, 3] {
        read(&mut peer, entry("s3", LOG, n, id(100, 100 + n)));
    }
    assert!(messages(&peer.event("message", entry("s3", LOG, 4, id(100, 104)))).is_empty(), "it is in hand");
    for n in [5, 6] {
        read(&mut peer, entry("s3", LOG, n, id(100, 100 + n)));
    }
    assert_ne!(kept, fresh);
}

#[test]
fn a_private_reader_begins_where_it_first_did_in_time() {
    for ack_mode in [AckMode::Manual, AckMode::Auto] {
        let mut peer = Peer::new();
        let (_, effects) = peer.ask_subscribe(SubscribeParams { ack_mode, ..wish("jobs", None) });
        peer.world.jump(1_000);
        let frame = only(&effects, "subscribe");
        peer.reply(id_of(&frame), json!({"subId": "s1", "startSeq": {"0": 4}}));
        let auto = ack_mode == AckMode::Auto;
        let is_new = |peer: &mut Peer, data: Value| {
            let new = !messages(&peer.event("message", data)).is_empty();
            for frame in sent(&peer.flush()) {
                peer.reply(id_of(&frame), json!({"settled": frame["params"]["tags"], "stale": []}));
            }
            new
        };
        for n in 4..=6 {
            match auto {
                true => assert!(is_new(&mut peer, entry("s1", LOG, n, id(1_000 + n, n)))),
                false => read(&mut peer, entry("s1", LOG, n, id(1_000 + n, n))),
            }
        }
        peer.cut();
        let effects = peer.rewound(&[LOG], "malformed", recreate("s1"));
        reopened(&mut peer, &effects, "s2");
        assert!(!is_new(&mut peer, entry("s2", LOG, 1, id(999, 1))), "it was there before the reader");
        assert!(is_new(&mut peer, entry("s2", LOG, 2, id(2_000, 12))), "accepted since");
        assert!(!is_new(&mut peer, entry("s2", LOG, 4, id(1_004, 4))), "read before");
        assert!(is_new(&mut peer, entry("s2", LOG, 5, id(2_000, 15))), "another message there");
    }
}

#[test]
fn a_reader_that_got_nothing_since_its_log_was_rewound_still_begins_at_the_first_entry() {
    for (group, ack_mode) in [(None, AckMode::Manual), (None, AckMode::Auto), (Some("crew"), AckMode::Manual)]
    {
        let mut peer = Peer::new();
        let (_, effects) = peer.ask_subscribe(SubscribeParams { ack_mode, ..wish("jobs", group) });
        let subscribe = only(&effects, "subscribe");
        peer.reply(id_of(&subscribe), json!({"subId": "s1", "startSeq": {"0": 4}}));
        peer.event("message", entry("s1", LOG, 4, id(4, 4)));
        let listed = peer.cut();
        assert_ne!(listed["reconcile"]["subscriptions"][0]["positions"], json!({"0": 0}));
        peer.rewound(&[LOG], "lease_ended", json!({"results": [keep("s1", "s1")], "inflight": []}));
        let listed = peer.cut();
        assert_eq!(listed["reconcile"]["subscriptions"][0]["positions"], json!({"0": 0}), "{group:?}");
    }
}

#[test]
fn who_begins_again_for_the_sake_of_one_partition_is_told_what_it_misses_of_another() {
    for ack_mode in [AckMode::Manual, AckMode::Auto] {
        let mut peer = Peer::new();
        let (handle, effects) = peer.ask_subscribe(SubscribeParams { ack_mode, ..wish("jobs", None) });
        let subscribe = only(&effects, "subscribe");
        peer.reply(id_of(&subscribe), json!({"subId": "s1", "startSeq": {"0": 4, "1": 2}}));
        for n in [4, 5] {
            match ack_mode {
                AckMode::Manual => read(&mut peer, entry("s1", LOG, n, id(n, n))),
                AckMode::Auto => _ = peer.event("message", entry("s1", LOG, n, id(n, n))),
            }
        }
        peer.cut();
        let effects = peer.rewound(&["topic/other/0"], "lease_ended", recreate("s1"));
        let subscribe = only(&effects, "subscribe");
        assert_eq!(subscribe["params"]["from"], "earliest", "of partition 1 it has read nothing");
        let effects = peer.reply(id_of(&subscribe), json!({"subId": "s2", "startSeq": {"0": 9, "1": 7}}));
        let missed = effects.iter().filter_map(|effect| match effect {
            LinkEffect::Sub(sub, SubItem::Gap { partition, from, to }) => {
                Some((*sub, *partition, *from, *to))
            }
            _ => None,
        });
        assert_eq!(missed.collect::<Vec<_>>(), [(handle, Some(0), 6, 8)]);
    }
}

#[test]
fn a_place_beyond_the_end_of_a_log_begins_again_and_two_readers_of_it_are_told_once() {
    let mut peer = Peer::new();
    peer.subscribe(None, "s1", 501);
    peer.subscribe(Some("crew"), "s2", 501);
    peer.cut();
    let only_ours = |sub: &str, reason: &str| json!({"action": "recreate_client_side", "subId": sub, "client": sub, "reason": reason});
    let verdicts =
        json!({"results": [only_ours("s1", "rewound"), only_ours("s2", "client_only")], "inflight": []});
    let effects = peer.rewound(&[], "lease_ended", verdicts);
    assert_eq!(told(&effects), [[LOG.to_owned()]]);
    let asked: Vec<Value> =
        sent(&effects).into_iter().filter(|frame| frame["method"] == "subscribe").collect();
    let [own, crew] = &asked[..] else { panic!("{asked:?}") };
    assert_eq!((&own["params"]["from"], &crew["params"]["from"]), (&json!("earliest"), &json!("earliest")));
    peer.reply(id_of(own), json!({"subId": "s3", "startSeq": {"0": 1}}));
    read(&mut peer, entry("s3", LOG, 301, id(900, 301)));
}

#[test]
fn two_subscriptions_that_find_their_log_shorter_tell_of_it_once() {
    let mut peer = Peer::new();
    peer.subscribe(None, "s1", 501);
    peer.subscribe(Some("crew"), "s2", 501);
    peer.cut();
    let lost = |sub: &str| json!({"action": "recreate_client_side", "subId": sub, "client": sub, "reason": "client_only"});
    let effects =
        peer.rewound(&[], "lease_ended", json!({"results": [lost("s1"), lost("s2")], "inflight": []}));
    let asked: Vec<Value> =
        sent(&effects).into_iter().filter(|frame| frame["method"] == "subscribe").collect();
    let sock = peer.sock;
    let error = json!({"code": "bad_request", "message": "no", "retryable": false,
        "details": {"field": "from", "against": "next", "next": 1}});
    let refusal = |frame: &Value| json!({"type": "res", "id": id_of(frame), "ok": false, "error": error});
    let first = peer.world.frame(sock, refusal(&asked[0]));
    let second = peer.world.frame(sock, refusal(&asked[1]));
    assert_eq!((told(&first).len(), told(&second).len()), (1, 0));
    assert_eq!(only(&second, "subscribe")["params"]["from"], "earliest");
}

#[test]
fn when_the_brokers_clock_went_back_ids_alone_tell_what_is_new() {
    let mut peer = Peer::new();
    peer.subscribe(None, "s1", 501);
    read(&mut peer, entry("s1", LOG, 501, id(1, 501)));
    peer.world.broker_wall -= 60_000;
    peer.cut();
    let effects = peer.rewound(&[LOG], "lease_ended", recreate("s1"));
    reopened(&mut peer, &effects, "s2");
    let earlier = MessageId::from_parts(WALL - 1_000, 301);
    read(&mut peer, entry("s2", LOG, 301, earlier));
}

#[test]
fn what_was_given_up_is_new_again_when_it_is_fetched_in_another_history() {
    let mut peer = Peer::new();
    peer.subscribe(Some("crew"), "s1", 1);
    let dead = Verb::Nack { delay_ms: None, dead: true, reason: None };
    let attempt = |attempt: u32| {
        let mut delivery = entry("s1", LOG, 4, id(4, 4));
        delivery["attempt"] = json!(attempt);
        delivery["tag"] = json!(format!("t4.{attempt}"));
        delivery
    };
    let handed = get(&mut peer, attempt(3));
    peer.settle(handed, dead);
    let frame = only(&peer.flush(), "nack");
    peer.reply(id_of(&frame), json!({"settled": frame["params"]["tags"], "stale": []}));
    peer.cut();
    let kept = json!({"results": [keep("s1", "s1")], "inflight": []});
    assert_eq!(told(&peer.rewound(&[LOG], "lease_ended", kept)).len(), 1);
    assert_eq!(recognised(&mut peer, attempt(1)), "nack");
    get(&mut peer, attempt(2));
}

#[test]
fn what_is_in_hand_is_told_apart_from_the_message_that_has_its_place_now() {
    let mut peer = Peer::new();
    peer.subscribe(Some("crew"), "s1", 1);
    let old = get(&mut peer, entry("s1", LOG, 1, id(1, 1)));
    let both = get(&mut peer, entry("s1", LOG, 2, id(2, 2)));
    peer.cut();
    // A backup that has the lease, and the second message still in our hands.
    let tag = |n: u64| format!("t{n}.{}", id(n, n));
    let verdicts = json!([{"tag": tag(1), "result": "kept"}, {"tag": tag(2), "result": "kept"}]);
    let mut result = hello_result("kept", "resumed", 1);
    result["events"]["nextSeq"] = json!(3);
    result["rewound"] = json!([LOG]);
    result["reconcile"] = json!({"results": [keep("s1", "s1")], "inflight": verdicts});
    assert_eq!(told(&peer.reply("hello", result)), [[LOG.to_owned()]]);
    assert!(messages(&peer.event("message", entry("s1", LOG, 2, id(2, 2)))).is_empty(), "in hand");
    let new = get(&mut peer, entry("s1", LOG, 1, id(9, 11)));
    let numbers: Vec<_> = [old, both, new].into_iter().map(|id| peer.settle(id, Verb::Ack)).collect();
    let ack = only(&peer.flush(), "ack");
    assert_eq!(ack["params"]["tags"], json!([tag(1), tag(2), format!("t1.{}", id(9, 11))]));
    let (good, bad) =
        (json!([tag(2), format!("t1.{}", id(9, 11))]), json!([{"tag": tag(1), "reason": "unknown_tag"}]));
    let effects = peer.reply(id_of(&ack), json!({"settled": good, "stale": bad}));
    let expected = [
        (numbers[0], stale("unknown_tag")),
        (numbers[1], Settlement::Settled),
        (numbers[2], Settlement::Settled),
    ];
    assert_eq!(settlements(&effects), expected);
    assert_eq!(recognised(&mut peer, entry("s1", LOG, 1, id(9, 11))), "ack");
}

#[test]
fn what_was_read_in_the_inbox_is_known_in_the_members_and_what_was_given_back_is_not() {
    let mut config = config();
    config.inbox = InboxChoice::Both;
    let mut peer = Peer::with(config);
    read(&mut peer, entry("inbox", "inbox/s/x", 1, id(1, 1)));
    let back = get(&mut peer, entry("inbox", "inbox/s/x", 2, id(2, 2)));
    peer.settle(back, Verb::Nack { delay_ms: None, dead: false, reason: None });
    let nack = only(&peer.flush(), "nack");
    peer.reply(id_of(&nack), json!({"settled": nack["params"]["tags"], "stale": []}));
    assert_eq!(recognised(&mut peer, entry("member", "inbox/m/y", 7, id(1, 1))), "ack");
    get(&mut peer, entry("member", "inbox/m/y", 8, id(2, 2)));
}

#[test]
fn what_was_given_up_stays_so_until_somebody_fetches_it_from_the_dead_letters() {
    let mut peer = Peer::new();
    peer.subscribe(Some("crew"), "s1", 1);
    let dead = get(&mut peer, entry("s1", LOG, 1, id(1, 1)));
    peer.settle(dead, Verb::Nack { delay_ms: None, dead: true, reason: None });
    let nack = only(&peer.flush(), "nack");
    peer.reply(id_of(&nack), json!({"settled": nack["params"]["tags"], "stale": []}));
    peer.cut();
    let effects = peer.rewound(&[LOG], "malformed", recreate("s1"));
    reopened(&mut peer, &effects, "s2");
    assert_eq!(recognised(&mut peer, entry("s2", LOG, 1, id(1, 1))), "nack");
    let mut again = entry("s2", LOG, 1, id(1, 1));
    again["attempt"] = json!(2);
    get(&mut peer, again);
}

#[test]
fn a_reader_of_a_strange_store_begins_again_although_it_has_read_nothing() {
    let mut peer = Peer::new();
    peer.subscribe(Some("crew"), "s1", 4);
    assert!(peer.cut().get("positions").is_none());
    let effects = peer.rewound(&[], "bad_signature", recreate("s1"));
    assert_eq!(told(&effects), [[LOG.to_owned()]]);
    reopened(&mut peer, &effects, "s2");
    read(&mut peer, entry("s2", LOG, 1, id(1, 1)));
}

#[test]
fn a_log_that_is_shorter_than_before_is_read_from_its_beginning() {
    let mut peer = Peer::new();
    let handle = peer.subscribe(None, "s1", 4);
    peer.cut();
    let effects = peer.rewound(&[], "lease_ended", recreate("s1"));
    assert!(told(&effects).is_empty());
    let subscribe = only(&effects, "subscribe");
    assert_eq!(subscribe["params"]["from"], 4);
    let sock = peer.sock;
    let error = json!({"code": "bad_request", "message": "no", "retryable": false,
        "details": {"field": "from", "against": "next", "next": 1}});
    let refusal = json!({"type": "res", "id": id_of(&subscribe), "ok": false, "error": error});
    let effects = peer.world.frame(sock, refusal.clone());
    assert!(ends(&effects).is_empty(), "{effects:?}");
    assert_eq!(told(&effects), [[LOG.to_owned()]]);
    let subscribe = only(&effects, "subscribe");
    assert_eq!(subscribe["params"]["from"], "earliest");
    // A broker that says so even then is not asked for ever.
    let refusal = json!({"type": "res", "id": id_of(&subscribe), "ok": false, "error": refusal["error"]});
    assert_eq!(ends(&peer.world.frame(sock, refusal)).len(), 1, "{handle:?}");
}

#[test]
fn a_subscribe_that_is_under_way_begins_again_with_the_others() {
    let mut peer = Peer::new();
    peer.subscribe(Some("crew"), "s1", 2);
    read(&mut peer, entry("s1", LOG, 5, id(5, 5)));
    peer.cut();
    let effects = peer.welcome("new", "resume_not_found", Some(recreate("s1")));
    assert_eq!(
        only(&effects, "subscribe")["params"]["from"],
        2,
        "where it began: others may have 2 to 4 in hand"
    );
    // The socket breaks before it is answered, and the store is another one on the next.
    peer.cut();
    let effects = peer.rewound(&[LOG], "malformed", json!({"results": [], "inflight": []}));
    reopened(&mut peer, &effects, "s2");
    read(&mut peer, entry("s2", LOG, 1, id(9, 1)));
}

#[test]
fn the_newest_positions_are_listed_and_what_is_not_listed_goes_with_them() {
    let mut peer = Peer::new();
    let (_, effects) = peer.ask_subscribe(wish("jobs", Some("crew")));
    let starts: serde_json::Map<_, _> = (0..300).map(|p: u64| (p.to_string(), json!(1))).collect();
    let frame = only(&effects, "subscribe");
    peer.reply(id_of(&frame), json!({"subId": "s1", "startSeq": starts}));
    for p in 0..300 {
        read(&mut peer, entry("s1", &format!("topic/jobs/{p}"), 1, id(p, p)));
    }
    let hello = peer.cut();
    let positions = hello["positions"].as_array().unwrap();
    assert!(positions.len() == POSITIONS_PER_HELLO && hello.to_string().len() <= FRAME_BEFORE_HELLO_BYTES);
    assert_eq!(
        (&positions[0]["log"], &positions[255]["log"]),
        (&json!("topic/jobs/299"), &json!("topic/jobs/44"))
    );
    let effects = peer.rewound(&["topic/jobs/299"], "malformed", recreate("s1"));
    let logs = &told(&effects)[0];
    assert_eq!(logs.len(), 1 + 44, "{logs:?}");
    assert!(logs.contains(&"topic/jobs/299".to_owned()) && !logs.contains(&"topic/jobs/298".to_owned()));
    assert!(logs.contains(&"topic/jobs/0".to_owned()), "it could not be listed");
}
