//! The proof admits, the token selects: what tokens can and cannot do.

use data_encoding::BASE64URL_NOPAD;
use serde_json::{Value, json};
use tenure_broker::{Broker, Config};

use crate::common::keys::{key, sign, unix_ms};
use crate::common::sock::assert_closing;
use crate::common::{LONG, Sock, Who, broker, join};

/// Joins as `who` with `token`; the result.
async fn present(broker: &Broker, who: &Who, token: &str) -> (Sock, Value) {
    let mut sock = Sock::open(broker.addr()).await;
    let mut params = sock.hello_of(who);
    params["resume"] = json!({"token": token, "epoch": "e1-1", "lastSeq": 0});
    let result = sock.hello(params).await;
    (sock, result)
}

fn text(hello: &Value) -> String {
    hello["resume"]["token"].as_str().expect("a token").to_owned()
}

/// A token of our own making: `payload` signed by `key`.
fn forge(payload: &Value, key: &ed25519_dalek::SigningKey) -> String {
    let signed = format!("tenure-resume.v1.{}", BASE64URL_NOPAD.encode(payload.to_string().as_bytes()));
    format!("{signed}.{}", sign(key, &signed))
}

fn payload(token: &str) -> Value {
    let part = token.split('.').nth(2).expect("a payload");
    serde_json::from_slice(&BASE64URL_NOPAD.decode(part.as_bytes()).expect("base64url")).expect("JSON")
}

#[tokio::test]
async fn a_bad_token_never_refuses_a_good_hello() {
    let broker = broker(LONG).await;
    let (mut watcher, _) = join(broker.addr(), "watcher").await;
    let who = Who::new("holder");
    let mut sock = Sock::open(broker.addr()).await;
    let hello = sock.join(&who).await;
    watcher.sees("joined", &who).await;
    let good = text(&hello);
    let (_other, other_token) = {
        let other = Who::new("other");
        let mut sock = Sock::open(broker.addr()).await;
        let token = text(&sock.join(&other).await);
        watcher.sees("joined", &other).await;
        (sock, token)
    };
    let claims = payload(&good);
    let (head, signature) = good.rsplit_once('.').unwrap();
    let mut flipped = good.clone().into_bytes();
    let last = flipped.len() - 5;
    flipped[last] = if flipped[last] == b'A' { b'B' } else { b'A' };
    let altered = |field: &str, value: Value| {
        let mut claims = claims.clone();
        claims[field] = value;
        let payload = BASE64URL_NOPAD.encode(claims.to_string().as_bytes());
        format!("tenure-resume.v1.{payload}.{signature}")
    };
    let bad = [
        String::new(),
        "garbage".into(),
        "tenure-resume.v1..".into(),
        format!("tenure-resume.v2{}", good.strip_prefix("tenure-resume.v1").unwrap()),
        head.to_owned(),
        format!("{head}."),
        format!("{good}=="),
        format!("{good}.{signature}"),
        good.to_uppercase(),
        String::from_utf8(flipped).unwrap(),
        altered("iat", json!(unix_ms() + 1)),
        altered("lid", json!("l1-999")),
        forge(&claims, &key()),
        forge(&claims, &who.session),
        forge(&json!({"sub": who.id()}), &key()),
        "x".repeat(20_000),
        other_token.clone(),
    ];
    for token in bad {
        let (next, back) = present(&broker, &who, &token).await;
        let outcome = &back["resume"]["outcome"];
        assert_eq!((outcome, &back["lease"]), (&json!("resume_rejected"), &json!("kept")), "{token:.60}");
        assert!(back["resume"]["reason"].as_str().is_some_and(|r| !r.is_empty()), "{token:.60}");
        assert_eq!(back["events"]["replay"], "resync");
        assert_eq!(back["snapshot"]["presence"].as_array().unwrap().len(), 3);
        assert_ne!(text(&back), token);
        sock = next;
    }
    // The new token that came with each refusal is good, and so is still the first.
    let (mut sock2, back) = present(&broker, &who, &good).await;
    assert_eq!(back["resume"]["outcome"], "resumed");
    assert_closing(&sock.ended().await.closing, 1000, "session_replaced", false);
    // Outlived: ours, but its lease has ended.
    sock2.bye().await;
    watcher.sees("left", &who).await;
    let (_sock, back) = present(&broker, &who, &good).await;
    assert_eq!((&back["resume"]["outcome"], &back["lease"]), (&json!("resume_not_found"), &json!("new")));
    assert!(back["resume"]["reason"].is_string());
    watcher.sees("joined", &who).await;
    watcher.sees_all_of_it().await;
}

#[tokio::test]
async fn a_token_of_another_broker_is_foreign() {
    let mut config = Config::ephemeral(LONG);
    let (here, there) = (broker(LONG).await, broker(LONG).await);
    let who = Who::new("wanderer");
    let token = text(&Sock::open(there.addr()).await.join(&who).await);
    let (_sock, back) = present(&here, &who, &token).await;
    assert_eq!((&back["resume"]["outcome"], &back["lease"]), (&json!("resume_rejected"), &json!("new")));
    // The same signing key over another store: the scope is the store's.
    config.resume_key = Some([9; 32]);
    let (one, two) = (Broker::start(config.clone()).await.unwrap(), Broker::start(config).await.unwrap());
    let token = text(&Sock::open(one.addr()).await.join(&who).await);
    let (_sock, back) = present(&two, &who, &token).await;
    assert_eq!((&back["resume"]["outcome"], &back["lease"]), (&json!("resume_rejected"), &json!("new")));
    // The key from the configuration is the one that signs.
    let (signed, signature) = token.rsplit_once('.').unwrap();
    assert_eq!(sign(&ed25519_dalek::SigningKey::from_bytes(&[9; 32]), signed), signature);
}

#[tokio::test]
async fn a_token_stands_in_for_the_attestation_while_its_lease_lives() {
    let broker = broker(LONG).await;
    let who = Who::new("holder");
    let mut sock = Sock::open(broker.addr()).await;
    let hello = sock.join(&who).await;
    let bare = |sock: &Sock, token: &Value| {
        let mut params = sock.hello_of(&who);
        params.as_object_mut().unwrap().remove("attestation");
        params["resume"] = json!({"token": token, "epoch": hello["events"]["epoch"], "lastSeq": 0});
        params
    };
    let token = &hello["resume"]["token"];
    // Beside the living socket, and in grace.
    for cut in [false, true] {
        let mut next = Sock::open(broker.addr()).await;
        if cut {
            sock.cut();
        }
        let params = bare(&next, token);
        let back = next.hello(params).await;
        assert_eq!((&back["lease"], &back["resume"]["outcome"]), (&json!("kept"), &json!("resumed")));
        sock = next;
    }
    // The lease outlives the attestation that began it: an expired one is as good as none.
    let mut next = Sock::open(broker.addr()).await;
    let mut params = bare(&next, token);
    params["attestation"] = json!({"expiresAt": 1, "signature": who.attested(1, "*")});
    assert_eq!(next.hello(params).await["lease"], "kept");
    sock = next;
    // Without a token, or with one that selects nothing, nobody vouches.
    for token in [json!("garbage"), json!(forge(&payload(&text(&hello)), &key()))] {
        let mut thief = Sock::open(broker.addr()).await;
        let params = bare(&thief, &token);
        let (error, closing) = thief.refused(params).await;
        assert_eq!(error["code"], "unauthorized");
        assert_closing(&closing, 1008, "unauthorized", false);
    }
    sock.bye().await;
    let mut late = Sock::open(broker.addr()).await;
    let params = bare(&late, token);
    let (error, closing) = late.refused(params).await;
    assert_eq!(error["code"], "unauthorized");
    assert_closing(&closing, 1008, "unauthorized", false);
    // A lease that began again is another lease.
    let mut sock = Sock::open(broker.addr()).await;
    sock.join(&who).await;
    let mut late = Sock::open(broker.addr()).await;
    let params = bare(&late, token);
    assert_eq!(late.refused(params).await.0["code"], "unauthorized");
    assert!(sock.call("ping", json!({})).await["ts"].is_u64());
}

#[tokio::test]
async fn a_stolen_token_is_worthless() {
    let broker = broker(LONG).await;
    let (mut watcher, _) = join(broker.addr(), "watcher").await;
    let victim = Who::new("victim");
    let mut sock = Sock::open(broker.addr()).await;
    let hello = sock.join(&victim).await;
    watcher.sees("joined", &victim).await;
    let resume = json!({"token": hello["resume"]["token"], "epoch": hello["events"]["epoch"], "lastSeq": 0});
    // Under the victim's name, with a key of the thief's own; with the victim's attestation and without.
    for attested in [true, false] {
        let mut thief = Sock::open(broker.addr()).await;
        let mut params = thief.hello_of(&victim);
        let impostor = Who { session: key(), ..victim.clone() };
        params["proof"] = thief.hello_of(&impostor)["proof"].clone();
        params["resume"] = resume.clone();
        if !attested {
            params.as_object_mut().unwrap().remove("attestation");
        }
        let (error, closing) = thief.refused(params).await;
        assert_eq!(error["code"], "unauthorized");
        assert_closing(&closing, 1008, "unauthorized", false);
    }
    // Under the thief's own name it selects nothing.
    let thief = Who::new("thief");
    let mut thief_sock = Sock::open(broker.addr()).await;
    let mut params = thief_sock.hello_of(&thief);
    params["resume"] = resume;
    let result = thief_sock.hello(params).await;
    assert_eq!((&result["resume"]["outcome"], &result["lease"]), (&json!("resume_rejected"), &json!("new")));
    assert_eq!(result["sessionId"], thief.id());
    // The real session has noticed nothing but a new peer, and neither has anybody else.
    sock.sees("joined", &thief).await;
    watcher.sees("joined", &thief).await;
    assert!(sock.call("ping", json!({})).await["ts"].is_u64());
    sock.call("profile.set", json!({"summary": "still me"})).await;
    assert_eq!(watcher.sees("updated", &victim).await["peer"]["summary"], "still me");
}

#[tokio::test]
async fn whatever_is_wrong_with_a_resume_the_hello_is_good() {
    let broker = broker(LONG).await;
    let who = Who::new("holder");
    let mut sock = Sock::open(broker.addr()).await;
    let hello = sock.join(&who).await;
    let (token, epoch) = (text(&hello), hello["events"]["epoch"].clone());
    // With a good token the lease is selected; without a position it can only be told anew.
    let resumed = [
        json!({"token": token, "epoch": "", "lastSeq": 0}),
        json!({"token": token, "epoch": "a b", "lastSeq": 0}),
        json!({"token": token, "epoch": 7, "lastSeq": 0}),
        json!({"token": token, "epoch": epoch, "lastSeq": -1}),
        json!({"token": token, "epoch": epoch, "lastSeq": "0"}),
        json!({"token": token}),
    ];
    let rejected = [
        json!({"epoch": epoch, "lastSeq": 0}),
        json!({"token": 7, "epoch": epoch, "lastSeq": 0}),
        json!({"token": "", "epoch": epoch, "lastSeq": 0}),
        json!({}),
        json!([]),
        json!("token"),
        json!(7),
    ];
    let all = resumed.iter().map(|resume| (resume, "resumed"));
    for (resume, outcome) in all.chain(rejected.iter().map(|resume| (resume, "resume_rejected"))) {
        let mut sock = Sock::open(broker.addr()).await;
        let mut params = sock.hello_of(&who);
        params["resume"] = resume.clone();
        let back = sock.hello(params).await;
        assert_eq!(back["resume"]["outcome"], outcome, "{resume}");
        assert_eq!(
            (&back["lease"], &back["events"]["replay"]),
            (&json!("kept"), &json!("resync")),
            "{resume}"
        );
    }
}
