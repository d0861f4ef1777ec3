//! Each way in which a hello may be bad, and what it is told; the table of the handshake, row by row.

use ed25519_dalek::SigningKey;
use serde_json::json;
use tenure_proto::canonical::{member_key, session_key};
use tenure_proto::feature::{FeatureWish, FeatureWishes};
use tenure_proto::hello::{ClientInfo, Later, ProtocolRange, ResumeParams};
use tenure_proto::limits::{PROFILE_NAME_BYTES, PROFILE_TAGS, PROFILE_TEXT_BYTES, TOKEN_BYTES};
use tenure_proto::number::U53;

use super::*;
use crate::config::MeshConfig;
use crate::conn::feature::FEATURES;

const WALL: u64 = 1_800_000_000_000;
const HOST: &str = "127.0.0.1:7400";
const NONCE: &str = "bm9uY2Utb2YtdGhpcy1zb2NrZXQ";
const BROKER: &str = "broker-1";

fn key(seed: u8) -> SigningKey {
    SigningKey::from_bytes(&[seed; 32])
}

fn member() -> SigningKey {
    key(1)
}

fn session() -> SigningKey {
    key(2)
}

fn broker_key() -> SigningKey {
    key(3)
}

fn caps(names: &[&str]) -> Option<Vec<Cap>> {
    Some(names.iter().map(|name| name.parse().unwrap()).collect())
}

/// What the client believes and signs; tests bend one field at a time.
struct Signed {
    mesh: &'static str,
    nonce: &'static str,
    broker: &'static str,
    host: &'static str,
    key: SigningKey,
}

fn truth() -> Signed {
    Signed { mesh: "default", nonce: NONCE, broker: BROKER, host: HOST, key: session() }
}

fn prove(hello: &mut HelloParams, signed: &Signed) {
    let mesh = signed.mesh.parse().unwrap();
    let (nonce, broker, host) = (signed.nonce, signed.broker, signed.host);
    let proof = Proof { mesh: &mesh, member: &hello.member, session: &hello.session, nonce, broker, host };
    hello.proof = proof.sign(&signed.key);
}

fn attest(hello: &HelloParams, expires_at: u64, caps: Option<Vec<Cap>>, by: &SigningKey) -> Attestation {
    let HelloParams { mesh, member, session, .. } = hello;
    let signature = Attested { mesh, member, session, expires_at, caps: caps.as_deref() }.sign(by);
    Attestation { expires_at: U53::saturating(expires_at), caps, signature }
}

/// A hello that must be admitted: another process of `member`, attested for ten minutes.
fn hello() -> HelloParams {
    let mut hello = HelloParams {
        protocol: ProtocolRange { min: 1, max: 1 },
        client: ClientInfo {
            name: "test".into(),
            version: "1.2".into(),
            platform: None,
            instance_id: "i1".parse().unwrap(),
        },
        mesh: "default".parse().unwrap(),
        member: member_key(&member()),
        session: session_key(&session()),
        attestation: None,
        proof: String::new(),
        resume: None,
        reconcile: None,
        positions: Vec::new(),
        inbox: InboxChoice::Session,
        profile: Profile::named("worker"),
        features: FeatureWishes::default(),
        auth: None,
    };
    prove(&mut hello, &truth());
    hello.attestation = Some(attest(&hello, WALL + 600_000, None, &member()));
    hello
}

fn token() -> ResumeToken {
    ResumeToken {
        sub: session_key(&session()),
        mid: "default".parse().unwrap(),
        bid: "cluster-1".parse().unwrap(),
        lid: "l1-1".parse().unwrap(),
        iat: U53::saturating(WALL - 1_000),
    }
}

fn with_token(mut hello: HelloParams, token: String) -> HelloParams {
    let (epoch, last_seq) = ("e1-2".parse().unwrap(), U53::from(41));
    hello.resume = Some(ResumeParams { token, epoch: Some(epoch), last_seq: Some(last_seq) });
    hello
}

fn try_at(hello: HelloParams, host: &str, doors: &Doors) -> Result<Admission, Box<Refusal>> {
    try_after(hello, host, doors, None)
}

fn try_after(
    hello: HelloParams,
    host: &str,
    doors: &Doors,
    wait: Option<Wait>,
) -> Result<Admission, Box<Refusal>> {
    let token_key = broker_key().verifying_key().to_bytes();
    let cluster = "cluster-1".parse().unwrap();
    let gate = Gate {
        nonce: NONCE,
        broker_id: BROKER,
        host,
        doors,
        token_key: &token_key,
        cluster: &cluster,
        wall: WALL,
        wait,
        config: &MeshConfig::default(),
    };
    admit(hello, &gate)
}

fn try_admit(hello: HelloParams) -> Result<Admission, Box<Refusal>> {
    try_at(hello, HOST, &Doors::loopback(7400, &[], &[]))
}

#[track_caller]
fn refused(hello: HelloParams) -> Refusal {
    match try_admit(hello) {
        Ok(_) => panic!("admitted"),
        Err(refusal) => *refusal,
    }
}

/// Refused as `unauthorized`, close 1008, and told not to come back with the same.
#[track_caller]
fn unauthorized(what: &str, hello: HelloParams) {
    let Refusal { error, closing } = refused(hello);
    assert_eq!((error.code, error.retryable), (ErrorCode::Unauthorized, false), "{what}");
    assert_eq!((closing.code, closing.reason.as_str()), (1008, "unauthorized"), "{what}");
    assert!(!closing.retryable, "{what}");
}

#[test]
fn a_good_hello_is_admitted_with_what_it_said() {
    let admission = try_admit(hello()).unwrap();
    assert_eq!(admission.session, session_key(&session()));
    assert_eq!(admission.member, member_key(&member()));
    assert_eq!(admission.voucher, Voucher::Attested(None));
    assert_eq!(admission.token, TokenVerdict::Absent);
    assert_eq!(admission.position, None);
    assert_eq!(admission.client, "test/1.2");
}

#[test]
fn no_protocol_in_common_tells_ours_and_closes_1002() {
    for (min, max) in [(0, 0), (2, 3), (2, 0)] {
        let Refusal { error, closing } =
            refused(HelloParams { protocol: ProtocolRange { min, max }, ..hello() });
        assert_eq!(error.code, ErrorCode::ProtocolMismatch, "{min}..{max}");
        assert_eq!(error.details.as_deref(), Some(&serde_json::json!({"min": 1, "max": 1})));
        assert_eq!((closing.code, closing.reason.as_str()), (1002, "protocol_mismatch"));
    }
    assert!(try_admit(HelloParams { protocol: ProtocolRange { min: 0, max: 9 }, ..hello() }).is_ok());
}

#[test]
fn what_a_hello_says_of_its_subscriptions_is_passed_on() {
    assert_eq!(try_admit(hello()).map(|admission| admission.reconcile), Ok(None));
    let later = HelloReconcile::Later(Later::Later);
    let now = HelloReconcile::Now(Box::default());
    for said in [later, now] {
        let mut hello = HelloParams { reconcile: Some(said.clone()), ..hello() };
        prove(&mut hello, &truth());
        assert_eq!(try_admit(hello).map(|admission| admission.reconcile), Ok(Some(said)));
    }
}

#[test]
fn a_required_feature_that_is_missing_closes_4010_an_optional_one_does_not() {
    let wish = |require: &[&str], optional: &[&str]| {
        let owned = |list: &[&str]| list.iter().map(|bit| FeatureWish::from(*bit)).collect();
        HelloParams {
            features: FeatureWishes { require: owned(require), optional: owned(optional) },
            ..hello()
        }
    };
    let Refusal { error, closing } = refused(wish(&["resume", "telepathy"], &[]));
    assert_eq!(error.code, ErrorCode::FeatureUnavailable);
    assert!(error.message.contains("telepathy"), "{}", error.message);
    assert_eq!((closing.code, closing.reason.as_str()), (4010, "feature_unavailable"));
    assert!(try_admit(wish(FEATURES, &["telepathy"])).is_ok());
}

#[test]
fn a_required_feature_with_less_than_was_asked_for_closes_4011_or_4012() {
    let wish = |bit: &str, name: &str, floor| {
        let floors = [(name.to_owned(), floor)].into();
        let require = vec![FeatureWish { bit: bit.to_owned(), floors }];
        HelloParams { features: FeatureWishes { require, optional: Vec::new() }, ..hello() }
    };
    let most = json!(MeshConfig::default().max_payload);
    for (bit, name, floor) in [
        ("dedupe", "retentionDays", json!(30)),
        ("dedupe", "version", json!(2)),
        ("dedupe", "mode", json!("retention_scoped")),
        ("dedupe", "fingerprint", json!(true)),
        ("dedupe", "of_tomorrow", json!([])),
        ("maxPayload", "bytes", most),
        ("resume", "version", json!(1)),
    ] {
        assert!(try_admit(wish(bit, name, floor)).is_ok(), "{bit} {name}");
    }
    let param = (ErrorCode::FeatureParamInvalid, 4011);
    let floor = (ErrorCode::FeatureParamBelowFloor, 4012);
    for (bit, name, asked, (code, close)) in [
        ("dedupe", "retentionDays", json!(31), floor),
        ("dedupe", "retentionDays", json!("30"), param),
        ("dedupe", "retentionDays", json!(-1), param),
        ("dedupe", "retentionDays", json!(7.5), param),
        ("dedupe", "version", json!(3), floor),
        ("dedupe", "mode", json!("permanent"), floor),
        ("dedupe", "mode", json!("sometimes"), param),
        ("dedupe", "fingerprint", json!("yes"), param),
        ("maxPayload", "bytes", json!(1 << 30), floor),
        ("maxPayload", "bytes", json!(null), param),
        ("resume", "version", json!(2), floor),
    ] {
        let Refusal { error, closing } = refused(wish(bit, name, asked));
        assert_eq!((error.code, closing.code), (code, close), "{bit} {name}");
        assert_eq!(closing.reason, error.code.as_str());
        assert!(error.message.contains(bit) && error.message.contains(name), "{}", error.message);
    }
    // What is only wished for refuses nobody.
    let HelloParams { features, .. } = wish("dedupe", "retentionDays", json!(31));
    let optional = FeatureWishes { require: Vec::new(), optional: features.require };
    assert!(try_admit(HelloParams { features: optional, ..hello() }).is_ok());
}

#[test]
fn a_proof_holds_for_one_key_socket_broker_host_and_mesh() {
    let bent = [
        ("another key", Signed { key: key(9), ..truth() }),
        ("the member's key", Signed { key: member(), ..truth() }),
        ("another host", Signed { host: "127.0.0.1:7401", ..truth() }),
        ("another broker", Signed { broker: "broker-2", ..truth() }),
        ("another nonce: a hello replayed on another socket", Signed { nonce: "b2xk", ..truth() }),
        ("another mesh", Signed { mesh: "other", ..truth() }),
    ];
    for (what, signed) in bent {
        let mut hello = hello();
        prove(&mut hello, &signed);
        unauthorized(what, hello);
    }
    unauthorized("no proof", HelloParams { proof: String::new(), ..hello() });
    unauthorized("garbage", HelloParams { proof: "!".repeat(86), ..hello() });
}

#[test]
fn a_stolen_token_is_worth_nothing_without_the_session_key() {
    let mut hello = with_token(hello(), token().issue(&broker_key()));
    prove(&mut hello, &Signed { key: key(9), ..truth() });
    unauthorized("stolen token", hello);
}

#[test]
fn a_session_that_is_its_member_needs_no_attestation() {
    let mut hello = HelloParams { member: member_key(&session()), attestation: None, ..hello() };
    prove(&mut hello, &truth());
    assert_eq!(try_admit(hello).unwrap().voucher, Voucher::Attested(None));
}

#[test]
fn every_other_session_needs_its_members_word() {
    unauthorized("absent", HelloParams { attestation: None, ..hello() });

    let good = hello();
    let bend = |attestation| HelloParams { attestation: Some(attestation), ..hello() };
    let soon = WALL + 600_000;
    unauthorized("expired", bend(attest(&good, WALL - 1, None, &member())));
    unauthorized("expires now", bend(attest(&good, WALL, None, &member())));
    unauthorized("too far ahead", bend(attest(&good, WALL + ATTESTATION_AHEAD_MS + 1, None, &member())));
    unauthorized("by another key", bend(attest(&good, soon, None, &key(9))));
    unauthorized("by the session itself", bend(attest(&good, soon, None, &session())));

    let elsewhere = HelloParams { mesh: "other".parse().unwrap(), ..hello() };
    unauthorized("for another mesh", bend(attest(&elsewhere, soon, None, &member())));
    let other = HelloParams { session: session_key(&key(9)), ..hello() };
    unauthorized("for another session", bend(attest(&other, soon, None, &member())));

    let moved = Attestation { expires_at: U53::saturating(soon + 1), ..attest(&good, soon, None, &member()) };
    unauthorized("expiry changed", bend(moved));
    let narrow = attest(&good, soon, caps(&["read"]), &member());
    unauthorized("caps widened", bend(Attestation { caps: caps(&["read", "send"]), ..narrow.clone() }));
    unauthorized("caps dropped", bend(Attestation { caps: None, ..narrow.clone() }));
    unauthorized("caps emptied", bend(Attestation { caps: caps(&[]), ..narrow }));
}

#[test]
fn an_attestation_grants_what_it_says_up_to_the_last_millisecond() {
    let hello = hello();
    for (expires_at, granted) in [
        (WALL + 1, caps(&["send", "read"])),
        (WALL + ATTESTATION_AHEAD_MS, caps(&[])),
        (WALL + ATTESTATION_AHEAD_MS, None),
    ] {
        let attestation = Some(attest(&hello, expires_at, granted.clone(), &member()));
        let admission = try_admit(HelloParams { attestation, ..hello.clone() }).unwrap();
        assert_eq!(admission.voucher, Voucher::Attested(granted));
    }
}

#[test]
fn an_attestation_names_a_bounded_number_of_caps() {
    let many = |count| Some((0..count).map(|n| format!("cap{n}").parse().unwrap()).collect::<Vec<Cap>>());
    let with = |count| {
        let attestation = Some(attest(&hello(), WALL + 1_000, many(count), &member()));
        HelloParams { attestation, ..hello() }
    };
    assert!(try_admit(with(ATTESTATION_CAPS)).is_ok());
    let Refusal { error, closing } = refused(with(ATTESTATION_CAPS + 1));
    assert_eq!((error.code, closing.code), (ErrorCode::BadRequest, 1008));
}

#[test]
fn a_bad_token_beside_a_good_attestation_is_told_why_and_never_refuses() {
    let ours = broker_key();
    let other_cluster = ResumeToken { bid: "cluster-2".parse().unwrap(), ..token() };
    let other_mesh = ResumeToken { mid: "other".parse().unwrap(), ..token() };
    let other_session = ResumeToken { sub: session_key(&key(9)), ..token() };
    let rows = [
        ("malformed", "not a token".to_owned()),
        ("malformed", "x".repeat(TOKEN_BYTES + 1)),
        ("malformed", token().issue(&ours).replace("tenure-resume.v1", "tenure-resume.v2")),
        ("bad_signature", token().issue(&key(9))),
        ("other_cluster", other_cluster.issue(&ours)),
        ("other_cluster", other_cluster.issue(&key(9))),
        ("other_mesh", other_mesh.issue(&ours)),
        ("other_session", other_session.issue(&ours)),
    ];
    for (why, text) in rows {
        let admission = try_admit(with_token(hello(), text)).unwrap();
        assert_eq!(admission.token, TokenVerdict::Rejected(why));
        assert_eq!(admission.voucher, Voucher::Attested(None));
    }
}

#[test]
fn a_good_token_selects_its_lease_and_brings_its_position() {
    let admission = try_admit(with_token(hello(), token().issue(&broker_key()))).unwrap();
    assert_eq!(admission.token, TokenVerdict::Selects("l1-1".parse().unwrap()));
    assert_eq!(admission.position, Some(("e1-2".parse().unwrap(), 41)));
}

#[test]
fn beside_a_good_token_the_attestation_may_be_absent_or_expired_but_not_false() {
    let good = with_token(hello(), token().issue(&broker_key()));
    let bend = |attestation| HelloParams { attestation, ..good.clone() };
    let expired = attest(&good, WALL - 1, caps(&["read"]), &member());
    for (what, hello) in [("absent", bend(None)), ("expired", bend(Some(expired.clone())))] {
        assert_eq!(try_admit(hello).unwrap().voucher, Voucher::TokenOnly, "{what}");
    }
    unauthorized("expired and not the member's", bend(Some(attest(&good, WALL - 1, None, &key(9)))));
    unauthorized("expired with other caps", bend(Some(Attestation { caps: None, ..expired })));
}

#[test]
fn beside_a_bad_token_the_attestation_must_hold() {
    let forged = with_token(hello(), token().issue(&key(9)));
    unauthorized("absent", HelloParams { attestation: None, ..forged.clone() });
    let expired = Some(attest(&forged, WALL - 1, None, &member()));
    unauthorized("expired", HelloParams { attestation: expired, ..forged });
}

#[test]
fn a_profile_out_of_bounds_is_a_bad_first_frame() {
    let long = |bytes| Some("x".repeat(bytes));
    let rows = [
        ("name", Profile::named("")),
        ("name", Profile::named("x".repeat(PROFILE_NAME_BYTES + 1))),
        ("summary", Profile { summary: long(PROFILE_TEXT_BYTES + 1), ..Profile::named("n") }),
        ("cwd", Profile { cwd: long(PROFILE_TEXT_BYTES + 1), ..Profile::named("n") }),
        ("tags", Profile { tags: vec!["t".into(); PROFILE_TAGS + 1], ..Profile::named("n") }),
    ];
    for (field, profile) in rows {
        let Refusal { error, closing } = refused(HelloParams { profile, ..hello() });
        assert_eq!(error.code, ErrorCode::BadRequest, "{field}");
        assert!(error.message.contains(field), "{field}: {}", error.message);
        assert_eq!((closing.code, closing.reason.as_str()), (1008, "bad_first_frame"), "{field}");
    }
    let full =
        Profile { summary: long(PROFILE_TEXT_BYTES), ..Profile::named("x".repeat(PROFILE_NAME_BYTES)) };
    assert!(try_admit(HelloParams { profile: full, ..hello() }).is_ok());
}

#[test]
fn behind_a_proxy_that_rewrites_the_host_a_public_one_may_be_signed() {
    let doors = Doors::loopback(7400, &["Mesh.Example".into(), "wild.example:*".into()], &[]);
    let signing = |host| {
        let mut hello = hello();
        prove(&mut hello, &Signed { host, ..truth() });
        try_at(hello, "127.0.0.1:7400", &doors).is_ok()
    };
    assert!(signing("mesh.example"), "the proxy sent its own Host");
    assert!(signing("127.0.0.1:7400"), "no proxy");
    assert!(!signing("evil.example"), "a rogue broker relays our challenge");
    assert!(!signing("wild.example:*"), "a rule is not a host");
    assert!(!signing("wild.example:1"), "a wildcard says who may knock, not what was signed");
}

#[test]
fn a_host_is_the_same_in_any_case() {
    let doors = Doors::loopback(7400, &[], &[]);
    for host in ["localhost:7400", "LocalHost:7400"] {
        let mut hello = hello();
        prove(&mut hello, &Signed { host, ..truth() });
        assert!(try_at(hello, "LocalHost:7400", &doors).is_ok(), "{host}");
    }
}

#[test]
fn who_is_calling_is_clipped_for_the_log() {
    let client = ClientInfo { name: "a\nb".repeat(60), version: "1".into(), ..hello().client };
    let admission = try_admit(HelloParams { client, ..hello() }).unwrap();
    assert_eq!(admission.client, format!("{}/1", "ab".repeat(32)));
}

#[test]
fn a_hello_that_says_nothing_true_learns_only_that_we_cannot_talk() {
    // The order is fixed: protocol, features, form, key, word. A stranger without the key is not told more.
    let mut hello = HelloParams { protocol: ProtocolRange { min: 7, max: 7 }, attestation: None, ..hello() };
    hello.proof = "x".into();
    assert_eq!(refused(hello.clone()).error.code, ErrorCode::ProtocolMismatch);
    hello.protocol = ProtocolRange { min: 1, max: 1 };
    assert!(refused(hello).error.message.contains("proof"));
}

#[test]
fn whoever_was_here_comes_back_however_often_its_address_says_hello() {
    let doors = Doors::loopback(7400, &[], &[]);
    let at_once = |hello| try_after(hello, HOST, &doors, Some(Wait::TooOften(700)));
    let Refusal { error, closing } = *at_once(hello()).unwrap_err();
    assert_eq!((error.code, error.retry_after_ms), (ErrorCode::RateLimited, Some(U53::from(700))));
    assert_eq!((closing.code, closing.reason.as_str()), (1013, "busy"));
    assert!(at_once(with_token(hello(), token().issue(&broker_key()))).is_ok());
    let forged = with_token(hello(), token().issue(&key(9)));
    assert_eq!(at_once(forged).unwrap_err().error.code, ErrorCode::RateLimited);
    let full = |hello| try_after(hello, HOST, &doors, Some(Wait::Full));
    let Refusal { error, closing } = *full(hello()).unwrap_err();
    assert_eq!((error.code, closing.reason.as_str()), (ErrorCode::Busy, "busy"));
    assert!(full(with_token(hello(), token().issue(&broker_key()))).is_ok());
    // A token without the key that it belongs to is worth nothing here either.
    let stolen = HelloParams { proof: hello().proof.chars().rev().collect(), ..hello() };
    let stolen = with_token(stolen, token().issue(&broker_key()));
    assert_eq!(at_once(stolen).unwrap_err().error.code, ErrorCode::Unauthorized);
}
