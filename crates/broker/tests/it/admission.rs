//! Who is let in: signatures, attestations, versions, features, keys that belong to others.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tenure_broker::{Broker, Config};

use crate::common::keys::{hex, key, sign, unix_ms};
use crate::common::sock::assert_closing;
use crate::common::{Dial, LONG, Sock, Who, broker, join, still_serves};

const HOUR: u64 = 3600 * 1000;

/// A hello that must be refused with `unauthorized`.
async fn unauthorized(addr: SocketAddr, what: &str, who: &Who, spoil: impl FnOnce(&mut Value, &Sock)) {
    let mut sock = Sock::open(addr).await;
    let mut hello = sock.hello_of(who);
    spoil(&mut hello, &sock);
    let (error, closing) = sock.refused(hello).await;
    assert_eq!((&error["code"], &error["retryable"]), (&json!("unauthorized"), &json!(false)), "{what}");
    assert_closing(&closing, 1008, "unauthorized", false);
}

/// An attestation by `who`'s member as the hello carries it.
fn attestation(who: &Who, expires_at: u64, caps: Option<Value>, line: &str) -> Value {
    let mut attestation = json!({"expiresAt": expires_at, "signature": who.attested(expires_at, line)});
    if let Some(caps) = caps {
        attestation["caps"] = caps;
    }
    attestation
}

#[tokio::test]
async fn only_the_holder_of_the_session_key_gets_in() {
    let broker = broker(LONG).await;
    let addr = broker.addr();
    let who = Who::new("a");
    unauthorized(addr, "no signature", &who, |hello, _| hello["proof"] = json!("")).await;
    unauthorized(addr, "not base64url", &who, |hello, _| hello["proof"] = json!("!".repeat(86))).await;
    unauthorized(addr, "zeros", &who, |hello, _| hello["proof"] = json!("A".repeat(86))).await;
    unauthorized(addr, "padded", &who, |hello, _| {
        hello["proof"] = json!(format!("{}==", hello["proof"].as_str().unwrap()));
    })
    .await;
    unauthorized(addr, "cut short", &who, |hello, _| {
        let proof = hello["proof"].as_str().unwrap();
        hello["proof"] = json!(proof[..80]);
    })
    .await;
    unauthorized(addr, "one bit off", &who, |hello, _| {
        let mut proof = hello["proof"].as_str().unwrap().to_owned().into_bytes();
        proof[10] = if proof[10] == b'A' { b'B' } else { b'A' };
        hello["proof"] = json!(String::from_utf8(proof).unwrap());
    })
    .await;
    unauthorized(addr, "by another key", &who, |hello, sock| {
        let stranger = Who { session: key(), ..who.clone() };
        hello["proof"] = sock.hello_of(&stranger)["proof"].clone();
    })
    .await;
    unauthorized(addr, "by the member instead of the session", &who, |hello, sock| {
        let (nonce, id) =
            (sock.challenge["nonce"].as_str().unwrap(), sock.challenge["broker"].as_str().unwrap());
        let (member, session, host) = (hex(&who.member), who.id(), &sock.host);
        let line = format!("tenure-hello.v1|default|{member}|{session}|{nonce}|{id}|{host}");
        hello["proof"] = json!(sign(&who.member, &line));
    })
    .await;
    unauthorized(addr, "an attestation in place of the proof", &who, |hello, _| {
        hello["proof"] = hello["attestation"]["signature"].clone();
    })
    .await;
    unauthorized(addr, "for another host", &who, |hello, sock| {
        *hello = who.hello(&sock.challenge, "rogue.example:7400");
    })
    .await;
    unauthorized(addr, "for another of the broker's own names", &who, |hello, sock| {
        *hello = who.hello(&sock.challenge, &format!("localhost:{}", addr.port()));
    })
    .await;
    unauthorized(addr, "for another broker", &who, |hello, sock| {
        let mut challenge = sock.challenge.clone();
        challenge["broker"] = json!("0011223344556677");
        *hello = who.hello(&challenge, &sock.host);
    })
    .await;
    unauthorized(addr, "for another mesh", &who, |hello, _| {
        hello["mesh"] = json!("elsewhere");
    })
    .await;
    // The identity point signs everything, to a verifier that is not strict.
    unauthorized(addr, "a weak key", &who, |hello, _| {
        let weak = format!("01{}", "00".repeat(31));
        (hello["session"], hello["member"]) = (json!(weak), json!(weak));
        hello["proof"] = json!(data_encoding::BASE64URL_NOPAD.encode(&[&[1][..], &[0; 63]].concat()));
        hello.as_object_mut().unwrap().remove("attestation");
    })
    .await;
    still_serves(addr).await;
}

#[tokio::test]
async fn a_hello_is_good_once_here() {
    let (here, there) = (broker(LONG).await, broker(LONG).await);
    let who = Who::new("replayed");
    // Another broker's nonce, signed for this one's host and id: the relay of a rogue broker.
    let mut sock = Sock::open(here.addr()).await;
    let foreign = Sock::open(there.addr()).await;
    let mut challenge = sock.challenge.clone();
    challenge["nonce"] = foreign.challenge["nonce"].clone();
    let hello = who.hello(&challenge, &sock.host);
    let (error, closing) = sock.refused(hello).await;
    assert_eq!(error["code"], "unauthorized");
    assert_closing(&closing, 1008, "unauthorized", false);
    // What was good on one socket, byte for byte on the next, and on the other broker.
    let mut sock = Sock::open(here.addr()).await;
    let hello = sock.hello_of(&who);
    sock.hello(hello.clone()).await;
    for addr in [here.addr(), there.addr()] {
        let mut thief = Sock::open(addr).await;
        let (error, closing) = thief.refused(hello.clone()).await;
        assert_eq!(error["code"], "unauthorized");
        assert_closing(&closing, 1008, "unauthorized", false);
    }
    // The session whose hello was stolen notices nothing.
    assert!(sock.call("ping", json!({})).await["ts"].is_u64());
    still_serves(here.addr()).await;
}

#[tokio::test]
async fn the_proof_names_the_host_as_it_was_sent() {
    let broker = broker(LONG).await;
    let port = broker.addr().port();
    for host in [format!("localhost:{port}"), format!("LocalHost:{port}"), format!("127.0.0.1:{port}")] {
        let dial = Dial { host: host.clone(), ..Dial::to(broker.addr()) };
        let mut sock = dial.open().await.expect("our own host");
        // In lower case, as the host of an address is the same in any.
        let hello = Who::new(&host).hello(&sock.challenge, &host.to_lowercase());
        assert_eq!(sock.hello(hello).await["lease"], "new", "{host}");
    }
}

#[tokio::test]
async fn a_member_must_vouch_for_this_session_here_and_now() {
    let broker = broker(LONG).await;
    let addr = broker.addr();
    let who = Who::new("vouched");
    let now = unix_ms();
    let bad = [
        ("expired", attestation(&who, now - 1, None, "*")),
        ("expired long ago", attestation(&who, 0, None, "*")),
        ("a day and a minute ahead", attestation(&who, now + 24 * HOUR + 60_000, None, "*")),
        ("for ever", attestation(&who, (1 << 53) - 1, None, "*")),
        ("in another mesh", attestation(&Who { mesh: "other".into(), ..who.clone() }, now + HOUR, None, "*")),
        ("for another session", attestation(&Who { session: key(), ..who.clone() }, now + HOUR, None, "*")),
        ("by another key", {
            let line = format!("tenure-attest.v1|default|{}|{}|{}|*", hex(&who.member), who.id(), now + HOUR);
            json!({"expiresAt": now + HOUR, "signature": sign(&key(), &line)})
        }),
        ("by the session itself", {
            let line = format!("tenure-attest.v1|default|{}|{}|{}|*", hex(&who.member), who.id(), now + HOUR);
            json!({"expiresAt": now + HOUR, "signature": sign(&who.session, &line)})
        }),
        ("by another member", attestation(&Who { member: key(), ..who.clone() }, now + HOUR, None, "*")),
        ("for another time", {
            let mut changed = attestation(&who, now + HOUR, None, "*");
            changed["expiresAt"] = json!(now + 2 * HOUR);
            changed
        }),
        ("caps added", attestation(&who, now + HOUR, Some(json!(["read", "send"])), "read")),
        ("caps taken away", attestation(&who, now + HOUR, Some(json!(["read"])), "read,send")),
        ("caps left out", attestation(&who, now + HOUR, None, "read")),
        ("caps left out, none granted", attestation(&who, now + HOUR, None, "")),
        ("caps invented", attestation(&who, now + HOUR, Some(json!(["admin"])), "*")),
        ("caps signed unsorted", attestation(&who, now + HOUR, Some(json!(["send", "read"])), "send,read")),
        ("no signature", json!({"expiresAt": now + HOUR, "signature": ""})),
    ];
    for (what, attestation) in bad {
        unauthorized(addr, what, &who, |hello, _| hello["attestation"] = attestation).await;
    }
    unauthorized(addr, "none", &who, |hello, _| {
        hello.as_object_mut().unwrap().remove("attestation");
    })
    .await;
    let good = [
        attestation(&who, now + 24 * HOUR - 60_000, None, "*"),
        attestation(&who, now + HOUR, Some(json!(["send", "read"])), "read,send"),
        attestation(&who, now + HOUR, Some(json!([])), ""),
        attestation(&who, now + HOUR, Some(Value::Null), "*"),
    ];
    for attestation in good {
        let mut sock = Sock::open(addr).await;
        let mut hello = sock.hello_of(&who);
        hello["attestation"] = attestation;
        assert_eq!(sock.hello(hello).await["sessionId"], who.id());
        sock.bye().await;
    }
    still_serves(addr).await;
}

#[tokio::test]
async fn a_daemon_needs_nobody_to_vouch_for_it() {
    let broker = broker(LONG).await;
    let daemon = Who::daemon("daemon");
    let mut sock = Sock::open(broker.addr()).await;
    let hello = sock.hello_of(&daemon);
    assert!(hello.get("attestation").is_none());
    assert_eq!(sock.hello(hello).await["sessionId"], hex(&daemon.member));
    // Its key is its own: no other member may use it as a session key, though it vouches and the key signs.
    let thief = Who { member: key(), ..daemon.clone() };
    unauthorized(broker.addr(), "beside its lease", &thief, |_, _| {}).await;
    assert!(sock.call("ping", json!({})).await["ts"].is_u64());
    still_serves(broker.addr()).await;
}

#[tokio::test]
async fn a_session_key_is_not_somebody_elses_member_key() {
    let broker = broker(LONG).await;
    // A member that is here only through a session of its own making.
    let (mut sock, who) = join(broker.addr(), "a").await;
    let borrowed = Who { session: who.member.clone(), member: key(), ..Who::new("borrowed") };
    unauthorized(broker.addr(), "the key of a member", &borrowed, |_, _| {}).await;
    assert!(sock.call("ping", json!({})).await["ts"].is_u64());
    // The member itself may come in under it.
    let own = Who { session: who.member.clone(), ..who.clone() };
    assert_eq!(Sock::open(broker.addr()).await.join(&own).await["lease"], "new");
    still_serves(broker.addr()).await;
}

#[tokio::test]
async fn beside_a_living_lease_the_member_must_be_its_own() {
    let broker = broker(LONG).await;
    let (mut sock, who) = join(broker.addr(), "a").await;
    let (mut watcher, other) = join(broker.addr(), "watcher").await;
    sock.sees("joined", &other).await;
    let adopted = Who { member: key(), ..who.clone() };
    unauthorized(broker.addr(), "online", &adopted, |_, _| {}).await;
    assert!(sock.call("ping", json!({})).await["ts"].is_u64());
    sock.cut();
    unauthorized(broker.addr(), "in grace", &adopted, |_, _| {}).await;
    let mut sock = Sock::open(broker.addr()).await;
    assert_eq!(sock.join(&who).await["lease"], "kept");
    sock.bye().await;
    watcher.sees("left", &who).await;
    // With the lease gone the key is free to find another member.
    assert_eq!(Sock::open(broker.addr()).await.join(&adopted).await["lease"], "new");
    watcher.sees("joined", &adopted).await;
}

#[tokio::test]
async fn protocol_and_features_are_checked_before_anything_else() {
    let broker = broker(LONG).await;
    let who = Who::new("from the future");
    for (min, max) in [(2, 9), (0, 0), (2, 1), (u32::MAX, u32::MAX)] {
        let mut sock = Sock::open(broker.addr()).await;
        let mut hello = sock.hello_of(&who);
        hello["protocol"] = json!({"min": min, "max": max});
        // Somebody with whom we share no version may sign what they like.
        hello["proof"] = json!("unheard of");
        let (error, closing) = sock.refused(hello).await;
        assert_eq!((&error["code"], &error["retryable"]), (&json!("protocol_mismatch"), &json!(false)));
        assert_eq!(error["details"], json!({"min": 1, "max": 1}));
        assert_closing(&closing, 1002, "protocol_mismatch", false);
    }
    let mut sock = Sock::open(broker.addr()).await;
    let mut hello = sock.hello_of(&who);
    hello["protocol"] = json!({"min": 0, "max": 7});
    assert_eq!(sock.hello(hello).await["protocol"], 1);
    sock.bye().await;
    for require in [json!(["teleport"]), json!(["resume", "levitation"]), json!([""])] {
        let mut sock = Sock::open(broker.addr()).await;
        let mut hello = sock.hello_of(&who);
        hello["features"] = json!({"require": require, "optional": ["resume"]});
        let (error, closing) = sock.refused(hello).await;
        assert_eq!((&error["code"], &error["retryable"]), (&json!("feature_unavailable"), &json!(false)));
        assert_closing(&closing, 4010, "feature_unavailable", false);
    }
    let dedupe = |name: &str, floor: Value| json!([{"bit": "dedupe", name: floor}]);
    for (require, code, reason) in [
        (dedupe("retentionDays", json!(31)), 4012, "feature_param_below_floor"),
        (dedupe("mode", json!("permanent")), 4012, "feature_param_below_floor"),
        (dedupe("version", json!("2")), 4011, "feature_param_invalid"),
        (dedupe("mode", json!("x".repeat(5_000))), 4011, "feature_param_invalid"),
    ] {
        let mut sock = Sock::open(broker.addr()).await;
        let mut hello = sock.hello_of(&who);
        hello["features"] = json!({"require": require});
        let (error, closing) = sock.refused(hello).await;
        assert_eq!((&error["code"], &error["retryable"]), (&json!(reason), &json!(false)));
        assert_closing(&closing, code, reason, false);
        assert!(error["message"].as_str().unwrap().len() < 200);
    }
    let mut sock = Sock::open(broker.addr()).await;
    let mut hello = sock.hello_of(&who);
    hello["features"] = json!({"require": [{"bit": "dedupe", "version": 2, "retentionDays": 30, "mode": "retention_scoped",
        "fingerprint": true, "later": {}}], "optional": [{"bit": "dedupe", "mode": 7}]});
    sock.hello(hello).await;
    sock.bye().await;
    let mut sock = Sock::open(broker.addr()).await;
    let mut hello = sock.hello_of(&who);
    hello["features"] = json!({"require": ["resume", "replay", "reconcile", "dedupe", "maxPayload", "runs", "services"], "optional": ["teleport"]});
    assert!(sock.hello(hello).await["features"]["resume"]["version"].is_u64());
    still_serves(broker.addr()).await;
}

#[tokio::test]
async fn an_open_broker_has_one_mesh() {
    let broker = broker(LONG).await;
    let lost = Who { mesh: "elsewhere".into(), ..Who::new("lost") };
    let mut sock = Sock::open(broker.addr()).await;
    let hello = sock.hello_of(&lost);
    let (error, closing) = sock.refused(hello).await;
    assert_eq!((&error["code"], &error["retryable"]), (&json!("not_found"), &json!(false)));
    assert_closing(&closing, 1008, "forbidden", false);
    still_serves(broker.addr()).await;
}

#[tokio::test]
async fn a_full_mesh_is_busy_for_new_sessions_only() {
    let mut config = Config::ephemeral(LONG);
    config.mesh.max_sessions = 2;
    let broker = Broker::start(config).await.unwrap();
    let (first, who) = join(broker.addr(), "one").await;
    let (mut second, _) = join(broker.addr(), "two").await;
    let mut sock = Sock::open(broker.addr()).await;
    let hello = sock.hello_of(&Who::new("three"));
    let (error, closing) = sock.refused(hello).await;
    assert_eq!((&error["code"], &error["retryable"]), (&json!("busy"), &json!(true)));
    assert!(error["retryAfterMs"].as_u64().unwrap() > 0);
    assert_closing(&closing, 1013, "busy", true);
    assert_eq!(closing["retryAfterMs"], error["retryAfterMs"]);
    // Nobody is evicted, those who are here may come back, and a place that is given up is free.
    first.cut();
    assert_eq!(Sock::open(broker.addr()).await.join(&who).await["lease"], "kept");
    second.bye().await;
    assert_eq!(Sock::open(broker.addr()).await.join(&Who::new("four")).await["lease"], "new");
}
