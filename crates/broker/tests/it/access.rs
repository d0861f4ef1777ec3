//! Meshes that ask for something, and their operators, over real sockets.

use std::net::SocketAddr;

use ed25519_dalek::SigningKey;
use serde_json::{Value, json};
use tenure_broker::{Broker, Config, StoreChoice};

use crate::common::http::{Answer, raw};
use crate::common::keys::{hex, key, sign, unix_ms};
use crate::common::sock::assert_closing;
use crate::common::{LONG, Sock, Who, join};

const TOKEN: &str = "a-token-of-the-operator";

async fn administered() -> Broker {
    let config = Config { admin_token: Some(TOKEN.to_owned()), ..Config::ephemeral(LONG) };
    Broker::start(config).await.expect("start")
}

async fn ask(addr: SocketAddr, line: &str, body: Option<&Value>) -> Answer {
    let body = body.map(Value::to_string).unwrap_or_default();
    let (method, path) = line.split_once(' ').expect("METHOD path");
    let head = format!(
        "{method} /v1/admin{path} HTTP/1.1\r\nHost: {addr}\r\nAuthorization: Bearer {TOKEN}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    raw(addr, &format!("{head}{body}")).await
}

/// What is answered well.
#[track_caller]
fn good(answer: &Answer, status: u16) -> Value {
    assert_eq!(answer.status, status, "{}", answer.body);
    if answer.body.is_empty() { Value::Null } else { serde_json::from_str(&answer.body).expect("JSON") }
}

/// A refusal is a problem with one of our codes and a sentence.
#[track_caller]
fn refused(answer: &Answer, status: u16, code: &str, words: &str) {
    let problem: Value = serde_json::from_str(&answer.body).unwrap_or_else(|_| panic!("{}", answer.body));
    assert_eq!((answer.status, &problem["code"]), (status, &json!(code)), "{problem}");
    assert!(answer.head.contains("content-type: application/problem+json"), "{}", answer.head);
    assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains(words)), "{problem}");
}

/// A mesh called `team`; its owner's key.
async fn team(addr: SocketAddr) -> SigningKey {
    let owner = key();
    let made = ask(addr, "POST /meshes", Some(&json!({"name": "team", "owner": hex(&owner)}))).await;
    assert_eq!(good(&made, 201)["open"], false);
    owner
}

fn of_team(member: &SigningKey, name: &str) -> Who {
    Who { mesh: "team".to_owned(), ..Who::of(member, name) }
}

/// An invite, spelled out as the protocol's text says.
fn invite(by: &SigningKey, says: Value) -> String {
    let mut payload = json!({
        "mesh": "team", "id": "i1", "by": hex(by), "role": "member", "uses": 1, "exp": unix_ms() + 60_000,
    });
    payload.as_object_mut().unwrap().extend(says.as_object().unwrap().clone());
    let encoded = data_encoding::BASE64URL_NOPAD.encode(payload.to_string().as_bytes());
    let signed = format!("tenure-invite.v1.{encoded}");
    format!("{signed}.{}", sign(by, &signed))
}

async fn knock(addr: SocketAddr, who: &Who, auth: Option<Value>) -> (Sock, Value) {
    let sock = Sock::open(addr).await;
    let mut params = sock.hello_of(who);
    if let Some(auth) = auth {
        params["auth"] = auth;
    }
    (sock, params)
}

async fn turned_away(addr: SocketAddr, who: &Who, auth: Option<Value>, words: &str) {
    let (mut sock, params) = knock(addr, who, auth).await;
    let (error, closing) = sock.refused(params).await;
    assert_eq!(error["code"], "unauthorized", "{error}");
    assert!(error["message"].as_str().is_some_and(|text| text.contains(words)), "{error}");
    assert_closing(&closing, 1008, "unauthorized", false);
}

async fn let_in(addr: SocketAddr, who: &Who, auth: Option<Value>) -> Sock {
    let (mut sock, params) = knock(addr, who, auth).await;
    sock.hello(params).await;
    sock
}

/// Whoever knocks while a mesh is being made finds no mesh, or one that is somebody's.
#[tokio::test]
async fn a_mesh_that_is_being_made_is_open_to_nobody() {
    let broker = administered().await;
    let addr = broker.addr();
    let knocking = tokio::spawn(async move {
        let (guest, mut codes) = (key(), Vec::new());
        loop {
            let (mut sock, params) = knock(addr, &of_team(&guest, "guest"), None).await;
            let (error, _) = sock.refused(params).await;
            codes.push(error["code"].as_str().unwrap_or_default().to_owned());
            if codes.last().is_some_and(|code| code != "not_found") {
                return codes;
            }
        }
    });
    let (first, second) =
        (json!({"name": "team", "owner": hex(&key())}), json!({"name": "team", "owner": hex(&key())}));
    let (first, second) =
        tokio::join!(ask(addr, "POST /meshes", Some(&first)), ask(addr, "POST /meshes", Some(&second)));
    let (made, late) = if first.status == 201 { (first, second) } else { (second, first) };
    assert_eq!(good(&made, 201)["members"], 1);
    refused(&late, 409, "conflict", "already");
    let codes = knocking.await.expect("refused each time");
    assert_eq!(codes.last().map(String::as_str), Some("unauthorized"), "{codes:?}");
    let audit = good(&ask(addr, "GET /meshes/team/audit", None).await, 200);
    let mut outcomes: Vec<_> =
        audit["rows"].as_array().unwrap().iter().map(|row| row["outcome"].clone()).collect();
    outcomes.sort_by_key(Value::to_string);
    assert_eq!(outcomes, ["conflict", "ok"]);
}

#[tokio::test]
async fn a_mesh_is_made_joined_by_invite_and_closed_to_everybody_else() {
    let broker = administered().await;
    let addr = broker.addr();
    let owner = team(addr).await;
    let_in(addr, &of_team(&owner, "owner"), None).await;
    let guest = key();
    turned_away(addr, &of_team(&guest, "guest"), None, "tenure join").await;
    // Forged: signed by somebody else, or by a member who is no operator.
    let stranger = key();
    let good_invite = invite(&owner, json!({}));
    let payload = good_invite.rsplit_once('.').unwrap().0.to_owned();
    let forged = format!("{payload}.{}", sign(&stranger, &payload));
    turned_away(addr, &of_team(&guest, "guest"), Some(json!({"invite": forged})), "not signed").await;
    let by_stranger = invite(&stranger, json!({}));
    turned_away(addr, &of_team(&guest, "guest"), Some(json!({"invite": by_stranger})), "no operator").await;
    let expired = invite(&owner, json!({"exp": unix_ms() - 1}));
    turned_away(addr, &of_team(&guest, "guest"), Some(json!({"invite": expired})), "expired").await;
    let elsewhere = invite(&owner, json!({"mesh": "other"}));
    turned_away(addr, &of_team(&guest, "guest"), Some(json!({"invite": elsewhere})), "other").await;
    turned_away(addr, &of_team(&guest, "guest"), Some(json!({"invite": "x"})), "no invite").await;
    // A good one, twice by the same key, and once too often.
    let auth = Some(json!({"invite": good_invite}));
    let_in(addr, &of_team(&guest, "guest"), auth.clone()).await;
    let_in(addr, &of_team(&guest, "again"), auth.clone()).await;
    let_in(addr, &of_team(&guest, "member"), None).await;
    turned_away(addr, &of_team(&key(), "late"), auth, "as often as it may").await;
    let members = good(&ask(addr, "GET /meshes/team/members", None).await, 200);
    let roles: Vec<&str> =
        members["members"].as_array().unwrap().iter().filter_map(|m| m["role"].as_str()).collect();
    assert_eq!((roles.len(), roles.contains(&"operator")), (2, true));
    let audit = good(&ask(addr, "GET /meshes/team/audit", None).await, 200);
    let acts: Vec<&str> =
        audit["rows"].as_array().unwrap().iter().filter_map(|r| r["act"].as_str()).collect();
    assert_eq!(acts, ["member.join", "mesh.create"]);
    assert!(!audit.to_string().contains("tenure-invite"), "no secret is in it");
    // The open mesh is another, and nobody's business.
    join(addr, "bystander").await;
    broker.stop("end").await;
}

#[tokio::test]
async fn a_kick_a_ban_and_a_token_take_effect_now() {
    let broker = administered().await;
    let addr = broker.addr();
    let (mut watcher, _) = join(addr, "watcher").await;
    let (mut sock, who) = join(addr, "victim").await;
    watcher.sees("joined", &who).await;
    let shown = good(&ask(addr, &format!("GET /meshes/default/sessions/{}", who.id()), None).await, 200);
    assert_eq!((&shown["name"], &shown["from"]), (&json!("victim"), &json!("127.0.0.1")));
    good(&ask(addr, &format!("DELETE /meshes/default/sessions/{}?reason=enough", who.id()), None).await, 204);
    assert_closing(&sock.ended().await.closing, 4003, "kicked", false);
    watcher.sees("left", &who).await;
    let mut again = Sock::open(addr).await;
    again.join(&who).await;
    watcher.sees("joined", &who).await;

    let subject = format!("session:{}", who.id());
    let ban = json!({"subject": subject, "reason": "spam"});
    good(&ask(addr, "POST /meshes/default/bans", Some(&ban)).await, 201);
    assert_closing(&again.ended().await.closing, 4004, "banned", false);
    let (mut refused_sock, params) = knock(addr, &who, None).await;
    assert_eq!(refused_sock.refused(params).await.0["code"], "banned");
    let bans = good(&ask(addr, "GET /meshes/default/bans", None).await, 200);
    assert_eq!(bans["bans"][0]["reason"], "spam");
    good(&ask(addr, &format!("DELETE /meshes/default/bans?subject={subject}"), None).await, 204);
    Sock::open(addr).await.join(&who).await;
    let here = json!({"subject": "address:127.0.0.0/8"});
    good(&ask(addr, "POST /meshes/default/bans", Some(&here)).await, 201);
    assert_closing(&watcher.ended().await.closing, 4004, "banned", false);
    good(&ask(addr, "DELETE /meshes/default/bans?subject=address:127.0.0.0%2F8", None).await, 204);

    let owner = team(addr).await;
    let wanted = json!({"name": "ci", "caps": ["send"]});
    let token = good(&ask(addr, "POST /meshes/team/tokens", Some(&wanted)).await, 201);
    let auth = Some(json!({"token": token["token"]}));
    let mut by_token = let_in(addr, &of_team(&key(), "ci"), auth.clone()).await;
    assert_eq!(by_token.fails("topics.list", json!({})).await, "forbidden");
    turned_away(addr, &of_team(&key(), "x"), Some(json!({"token": "guess"})), "no such token").await;
    let listed = ask(addr, "GET /meshes/team/tokens", None).await;
    assert!(!listed.body.contains(token["token"].as_str().unwrap()), "it is shown once");
    good(
        &ask(addr, &format!("DELETE /meshes/team/tokens/{}", token["id"].as_str().unwrap()), None).await,
        204,
    );
    assert_closing(&by_token.ended().await.closing, 4003, "kicked", false);
    turned_away(addr, &of_team(&key(), "ci"), auth, "revoked").await;
    let_in(addr, &of_team(&owner, "owner"), None).await;
    broker.stop("end").await;
}

#[tokio::test]
async fn caps_of_a_member_hold_and_a_removed_member_is_out() {
    let broker = administered().await;
    let addr = broker.addr();
    team(addr).await;
    let member = key();
    let path = format!("/meshes/team/members/{}", hex(&member));
    let put = json!({"caps": ["send"], "name": "ann"});
    let row = good(&ask(addr, &format!("PUT {path}"), Some(&put)).await, 200);
    assert_eq!(
        (&row["caps"], &row["role"], &row["name"]),
        (&json!(["send"]), &json!("member"), &json!("ann"))
    );
    let mut sock = let_in(addr, &of_team(&member, "ann"), None).await;
    assert_eq!(sock.fails("subscribe", json!({"topic": "t"})).await, "forbidden");
    assert_eq!(sock.fails("run.get", json!({"runId": "01ARZ3NDEKTSV4RRFFQ69G5FAV"})).await, "forbidden");
    good(&ask(addr, &format!("PUT {path}"), Some(&json!({"caps": null}))).await, 200);
    assert!(sock.call("topics.list", json!({})).await["topics"].is_array());
    refused(
        &ask(addr, &format!("PUT {path}"), Some(&json!({"caps": ["fly"]}))).await,
        400,
        "bad_request",
        "no cap",
    );
    good(&ask(addr, &format!("DELETE {path}"), None).await, 204);
    assert_closing(&sock.ended().await.closing, 4003, "kicked", false);
    turned_away(addr, &of_team(&member, "ann"), None, "no member").await;
    broker.stop("end").await;
}

#[tokio::test]
async fn settings_conflict_instead_of_vanishing_and_hold_at_the_next_hello() {
    let broker = administered().await;
    let addr = broker.addr();
    let path = "/meshes/default/settings";
    let shown = good(&ask(addr, &format!("GET {path}"), None).await, 200);
    assert_eq!((&shown["version"], &shown["values"]["leaseTtlMs"]), (&json!(0), &json!(LONG)));
    let change = |version: u64, values: Value| json!({"version": version, "values": values});
    let set = ask(addr, &format!("PATCH {path}"), Some(&change(0, json!({"leaseTtlMs": 80_000})))).await;
    assert_eq!(good(&set, 200)["version"], 1);
    let late = ask(addr, &format!("PATCH {path}"), Some(&change(0, json!({"leaseTtlMs": 70_000})))).await;
    refused(&late, 409, "conflict", "version 1");
    let odd = ask(addr, &format!("PATCH {path}"), Some(&change(1, json!({"leaseTtlMs": 1})))).await;
    refused(&odd, 400, "bad_request", "lease");
    let mut sock = Sock::open(addr).await;
    let params = sock.hello_of(&Who::new("a"));
    let welcome = sock.hello(params).await;
    assert_eq!(welcome["leaseTtlMs"], 80_000);
    broker.stop("end").await;
}

#[tokio::test]
async fn all_of_it_is_there_after_a_restart() {
    let dir = tempfile::tempdir().expect("dir");
    let config = || Config {
        admin_token: Some(TOKEN.to_owned()),
        store: StoreChoice::Sqlite(dir.path().to_owned()),
        ..Config::ephemeral(LONG)
    };
    let broker = Broker::start(config()).await.expect("start");
    let addr = broker.addr();
    let owner = team(addr).await;
    let (guest, enemy) = (key(), key());
    let_in(addr, &of_team(&guest, "guest"), Some(json!({"invite": invite(&owner, json!({}))}))).await;
    let ban = json!({"subject": format!("member:{}", hex(&enemy))});
    good(&ask(addr, "POST /meshes/team/bans", Some(&ban)).await, 201);
    let values = json!({"version": 0, "values": {"maxSessions": 7}});
    good(&ask(addr, "PATCH /meshes/team/settings", Some(&values)).await, 200);
    broker.stop("end").await;

    let broker = Broker::start(config()).await.expect("start again");
    let addr = broker.addr();
    let_in(addr, &of_team(&guest, "guest"), None).await;
    turned_away(addr, &of_team(&key(), "late"), Some(json!({"invite": invite(&owner, json!({}))})), "often")
        .await;
    let (mut sock, params) = knock(addr, &of_team(&enemy, "enemy"), None).await;
    assert_eq!(sock.refused(params).await.0["code"], "banned");
    let settings = good(&ask(addr, "GET /meshes/team/settings", None).await, 200);
    assert_eq!((&settings["version"], &settings["values"]["maxSessions"]), (&json!(1), &json!(7)));
    let audit = good(&ask(addr, "GET /meshes/team/audit?limit=2", None).await, 200);
    let acts: Vec<&str> =
        audit["rows"].as_array().unwrap().iter().filter_map(|r| r["act"].as_str()).collect();
    assert_eq!(acts, ["settings.set", "ban.set"]);
    let older =
        good(&ask(addr, &format!("GET /meshes/team/audit?before={}", audit["next"]), None).await, 200);
    assert_eq!(older["rows"].as_array().unwrap().len(), 2);
    // A broker that has a mesh is not open any more.
    let (mut stranger, params) = knock(addr, &Who::new("stranger"), None).await;
    assert_eq!(stranger.refused(params).await.0["code"], "not_found");
    refused(&ask(addr, "GET /meshes/default", None).await, 404, "not_found", "no mesh");
    broker.stop("end").await;
}

#[tokio::test]
async fn what_makes_no_sense_is_told_so() {
    let broker = administered().await;
    let addr = broker.addr();
    for (line, body, status, code, words) in [
        (
            "POST /meshes",
            Some(json!({"name": "UP", "owner": "00".repeat(32)})),
            400,
            "bad_request",
            "names are",
        ),
        ("POST /meshes", Some(json!({"name": "up", "owner": "zz"})), 400, "bad_request", "owner"),
        ("POST /meshes", Some(json!({"name": "up"})), 400, "bad_request", "owner"),
        (
            "POST /meshes",
            Some(json!({"name": "up", "owner": "00".repeat(32), "x": 1})),
            400,
            "bad_request",
            "x",
        ),
        ("POST /meshes", Some(json!([1])), 400, "bad_request", "one JSON object"),
        ("GET /meshes/nowhere", None, 404, "not_found", "nowhere"),
        ("GET /meshes/default/sessions?limit=0", None, 400, "bad_request", "limit"),
        ("GET /meshes/default/sessions?limit=501", None, 400, "bad_request", "limit"),
        ("GET /meshes/default/sessions?after=x", None, 400, "bad_request", "next"),
        ("GET /meshes/default/sessions?token=x", None, 400, "bad_request", "logs"),
        ("GET /meshes/default/sessions/00", None, 400, "bad_request", "session"),
        (
            "POST /meshes/default/bans",
            Some(json!({"subject": "address:10.0.0.1/33"})),
            400,
            "bad_request",
            "network",
        ),
        (
            "POST /meshes/default/bans",
            Some(json!({"subject": "everybody"})),
            400,
            "bad_request",
            "member:HEX",
        ),
        ("DELETE /meshes/default/bans?subject=address:10.0.0.1", None, 404, "not_found", "no such ban"),
        ("DELETE /meshes/default/tokens/none", None, 404, "not_found", "no such token"),
        ("GET /meshes/default/dead?log=topic/none/0", None, 404, "not_found", "no log"),
        ("GET /meshes/default/dead?log=x", None, 400, "bad_request", ""),
        (
            "POST /meshes/default/dead/retry",
            Some(json!({"log": "topic/none/0", "seqs": [1]})),
            404,
            "not_found",
            "",
        ),
        (
            "PATCH /meshes/default/settings",
            Some(json!({"version": 0, "values": {"x": 1}})),
            400,
            "bad_request",
            "no setting",
        ),
        ("PUT /meshes", None, 405, "bad_request", "no such method"),
    ] {
        refused(&ask(addr, line, body.as_ref()).await, status, code, words);
    }
    let unspoken = format!(
        "POST /v1/admin/meshes HTTP/1.1\r\nHost: {addr}\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 2\r\n\
         Connection: close\r\n\r\n{{}}"
    );
    refused(&raw(addr, &unspoken).await, 415, "bad_request", "application/json");
    let document: Value =
        serde_json::from_str(&crate::common::http::get(addr, "/v1/openapi.json").await.body).unwrap();
    assert!(document["paths"].as_object().unwrap().len() >= 18);
    assert_eq!(document, tenure_broker::document());
    broker.stop("end").await;
}

#[tokio::test]
async fn several_meshes_share_a_store_and_nothing_else() {
    let broker = administered().await;
    let addr = broker.addr();
    let owner = team(addr).await;
    let mut here = let_in(addr, &of_team(&owner, "here"), None).await;
    let (mut there, _) = join(addr, "there").await;
    for sock in [&mut here, &mut there] {
        let peers = sock.call("presence.list", json!({})).await;
        assert_eq!(peers["peers"].as_array().unwrap().len(), 1, "{peers}");
        sock.call("topics.create", json!({"name": "t", "partitions": 1})).await;
    }
    let post = json!({"to": "topic:t", "body": "x", "clientMessageId": "m1"});
    assert_eq!(here.call("send", post.clone()).await["seq"], 1);
    assert_eq!(there.call("send", post).await["duplicate"], false);
    let list = good(&ask(addr, "GET /meshes", None).await, 200);
    let names: Vec<&str> =
        list["meshes"].as_array().unwrap().iter().filter_map(|m| m["name"].as_str()).collect();
    assert_eq!(names, ["default", "team"]);
    let topics = good(&ask(addr, "GET /meshes/team/topics", None).await, 200);
    assert_eq!(topics["topics"][0]["entries"], 1);
    broker.stop("end").await;
    assert_closing(&here.ended().await.closing, 1001, "going_away", true);
    assert_closing(&there.ended().await.closing, 1001, "going_away", true);
}

#[tokio::test]
async fn ends_of_leases_are_listed_newest_first() {
    let broker = administered().await;
    let addr = broker.addr();
    let (mut gone, gone_who) = join(addr, "gone").await;
    let (mut kicked, kicked_who) = join(addr, "kicked").await;
    gone.bye().await;
    good(
        &ask(addr, &format!("DELETE /meshes/default/sessions/{}", hex(&kicked_who.session)), None).await,
        204,
    );
    kicked.ended().await;
    let page = good(&ask(addr, "GET /meshes/default/lease-ends?limit=1", None).await, 200);
    let newest = &page["ends"][0];
    assert_eq!((&newest["why"], &newest["name"]), (&json!("kicked"), &json!("kicked")), "{page}");
    assert!(newest["at"].as_u64().is_some_and(|at| unix_ms().abs_diff(at) < 60_000), "{page}");
    let rest = format!("GET /meshes/default/lease-ends?before={}", page["next"]);
    let rest = good(&ask(addr, &rest, None).await, 200);
    let last = &rest["ends"][0];
    assert_eq!((&last["why"], &last["session"]), (&json!("bye"), &json!(hex(&gone_who.session))), "{rest}");
    assert_eq!(rest.get("next"), None);
    broker.stop("end").await;
}

#[tokio::test]
async fn a_lease_in_grace_after_a_start_is_shown_with_its_caps() {
    let dir = tempfile::tempdir().unwrap();
    let config = || Config {
        admin_token: Some(TOKEN.to_owned()),
        store: StoreChoice::Sqlite(dir.path().to_owned()),
        ..Config::ephemeral(LONG)
    };
    let broker = Broker::start(config()).await.expect("start");
    let owner = team(broker.addr()).await;
    let who = of_team(&owner, "owner");
    let mut sock = Sock::open(broker.addr()).await;
    sock.join(&who).await;
    let shown = |answer: &Answer| good(answer, 200)["sessions"][0]["caps"].clone();
    let before = shown(&ask(broker.addr(), "GET /meshes/team/sessions", None).await);
    assert_eq!(before, json!(["send", "read", "run", "serve", "admin"]));
    let stopping = tokio::spawn(broker.stop("upgrade"));
    super::drain::sees_shutdown(&mut sock, "upgrade").await;
    stopping.await.expect("stopped");
    let broker = Broker::start(config()).await.expect("start");
    let after = ask(broker.addr(), "GET /meshes/team/sessions", None).await;
    assert_eq!(good(&after, 200)["sessions"][0]["transport"], "grace");
    assert_eq!(shown(&after), before);
    broker.stop("end").await;
}
