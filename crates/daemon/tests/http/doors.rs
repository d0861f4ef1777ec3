//! Who may call, for whom, and how many at once.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::client::{over_tcp, request};
use super::{House, house, house_with, send};

#[tokio::test]
async fn over_tcp_only_with_the_token_the_right_host_and_no_origin() {
    let open = |config: &mut tenure_daemon::Config| {
        config.tcp = Some("127.0.0.1:0".parse().unwrap());
        config.allowed_origins = vec!["http://good.example".to_owned()];
    };
    let house = house_with(open).await;
    let addr = house.daemon.tcp().unwrap();
    let token = std::fs::read_to_string(house.dir.path().join("daemon.token")).unwrap();
    let (host, bearer) = (format!("localhost:{}", addr.port()), format!("Bearer {}", token.trim()));
    let call = async |headers: &[(&str, &str)], path: &str| {
        over_tcp(addr, &request("GET", path, headers, b"")).await.0
    };
    let (host, bearer) = (("Host", host.as_str()), ("Authorization", bearer.as_str()));
    assert_eq!(call(&[host, bearer], "/v1/version").await, 200);
    assert_eq!(call(&[host], "/v1/version").await, 401);
    assert_eq!(call(&[host, ("Authorization", "Bearer wrong")], "/v1/version").await, 401);
    assert_eq!(call(&[("Host", "evil.example"), bearer], "/v1/version").await, 403);
    assert_eq!(call(&[("Host", "localhost:1"), bearer], "/v1/version").await, 403);
    assert_eq!(call(&[host, bearer, ("Origin", "http://evil.example")], "/v1/version").await, 403);
    let own = format!("http://localhost:{}", addr.port());
    assert_eq!(call(&[host, bearer, ("Origin", &own)], "/v1/version").await, 403, "no page is served here");
    assert_eq!(call(&[host, bearer, ("Origin", "http://good.example")], "/v1/version").await, 200);
    assert_eq!(call(&[host, bearer], &format!("/v1/version?token={}", token.trim())).await, 400);
    assert_eq!(house.client.get("/v1/version?access_token=x").await.0, 400, "not on the socket either");
    // Whatever it is called, and however it is spelled: with the header, without it, and on the socket.
    let token = token.trim();
    let spelled = format!("%{:02x}{}", token.as_bytes()[0], &token[1..]);
    for query in [format!("mesh={token}"), format!("x={spelled}"), token.to_owned(), format!("a=b&k={token}")]
    {
        let path = format!("/v1/version?{query}");
        assert_eq!(call(&[host, bearer], &path).await, 400, "{query}");
        assert_eq!(call(&[host], &path).await, 400, "{query}");
        let (status, problem) = house.client.get(&path).await;
        assert!(status == 400 && problem["detail"].as_str().unwrap().contains("token"), "{query}: {problem}");
    }
}

#[tokio::test]
async fn a_query_has_no_sessions_token_and_no_unknown_name() {
    let house = house().await;
    let (_, token) = session(&house, "alice").await;
    let (status, problem) = house.client.get(&format!("/v1/inbox?topic={token}")).await;
    assert!(status == 400 && problem["detail"].as_str().unwrap().contains("token"), "{problem}");
    for path in
        ["/v1/inbox?key=x", "/v1/version?x", "/v1/inbox?mesh=default&colour=red", "/v1/outbox?topic=x"]
    {
        let (status, problem) = house.client.get(path).await;
        assert_eq!((status, &problem["code"]), (400, &json!("bad_request")), "{path}: {problem}");
    }
    assert_eq!(house.client.get("/v1/inbox?mesh=default&limit=1&").await.0, 200);
}

async fn session(house: &House, name: &str) -> (String, String) {
    let (status, session) = house.client.post("/v1/sessions", &json!({"name": name})).await;
    assert_eq!(status, 200, "{session}");
    (session["session"].as_str().unwrap().to_owned(), session["token"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn a_session_speaks_with_its_token_and_nobody_else_does() {
    let house = house().await;
    let ((alice, token), (bob, bobs)) = (session(&house, "alice").await, session(&house, "bob").await);
    assert_eq!(
        session(&house, "alice").await,
        (alice.clone(), token.clone()),
        "the same name is the same session"
    );
    let with = |token: &str| [("Tenure-Session", token.to_owned())];
    let call = async |token: &str, method: &str, path: &str, body: Option<Value>| {
        let headers = with(token);
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        house.client.call(method, path, &headers, body.as_ref()).await
    };
    assert_eq!(call(&token, "POST", "/v1/send", Some(send("a", "x"))).await.0, 202);
    let (_, row) = house.client.get("/v1/outbox/1").await;
    assert_eq!(row["session"], alice);
    let mut as_bob = send("b", "x");
    as_bob["session"] = json!(bob);
    assert_eq!(call(&token, "POST", "/v1/send", Some(as_bob.clone())).await.0, 403);
    assert_eq!(house.client.post("/v1/send", &as_bob).await.0, 403, "nor without any token");
    assert_eq!(call(&bobs, "POST", "/v1/send", Some(as_bob)).await.0, 202);
    assert_eq!(call("wrong", "GET", "/v1/inbox", None).await.0, 401);
    assert_eq!(call(&token, "POST", "/v1/topics/news/subscribe", None).await.1["changed"], true);
    assert_eq!(call(&token, "POST", "/v1/topics/news/subscribe", None).await.1["changed"], false);
    assert_eq!(call(&token, "POST", "/v1/topics/No%20Name/subscribe", None).await.0, 400);
    assert_eq!(call(&bobs, "DELETE", &format!("/v1/sessions/{alice}"), None).await.0, 403);
    assert_eq!(call(&token, "DELETE", &format!("/v1/sessions/{alice}"), None).await.0, 204);
    assert_eq!(call(&token, "GET", "/v1/inbox", None).await.0, 401, "let go");
    let config = super::config(&house.dir);
    house.daemon.stop().await;
    let daemon = tenure_daemon::Daemon::start(config).await.unwrap();
    let client = super::Client::new(daemon.socket());
    let bobs_header = [("Tenure-Session", bobs.as_str())];
    assert_eq!(client.call("GET", "/v1/health", &bobs_header, None).await.1["session"], bob, "tokens stay");
}

#[tokio::test]
async fn whoever_has_a_token_has_the_things_of_its_session_and_no_others() {
    let house = house().await;
    let ((_, alices), (_, bobs)) = (session(&house, "alice").await, session(&house, "bob").await);
    let (alice, bob) = ([("Tenure-Session", alices.as_str())], [("Tenure-Session", bobs.as_str())]);
    let named = |name: &str| json!({"name": name});
    let (status, problem) = house.client.call("POST", "/v1/sessions", &bob, Some(&named("alice"))).await;
    assert_eq!((status, &problem["pointer"], &problem["token"]), (403, &json!("/name"), &Value::Null));
    assert_eq!(house.client.call("POST", "/v1/sessions", &bob, Some(&named("bob"))).await.1["token"], bobs);
    assert_eq!(house.client.call("POST", "/v1/sessions", &bob, Some(&named("new"))).await.0, 200);
    for (header, id) in [(&alice, "a"), (&bob, "b")] {
        assert_eq!(house.client.call("POST", "/v1/send", header, Some(&send(id, "x"))).await.0, 202);
    }
    let ids = async |headers: &[(&str, &str)], query: &str| {
        let (_, page) = house.client.call("GET", &format!("/v1/outbox{query}"), headers, None).await;
        let rows = page["rows"].as_array().unwrap().clone();
        rows.iter().map(|row| row["clientMessageId"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&[], "").await, ["a", "b"], "without a token one owns them all");
    assert_eq!(ids(&alice, "").await, ["a"]);
    assert_eq!(ids(&bob, "?status=pending").await, ["b"]);
    assert_eq!(ids(&bob, "?clientMessageId=a").await, Vec::<String>::new());
    assert_eq!(ids(&[], "?clientMessageId=a").await, ["a"]);
    for (method, path) in [
        ("GET", "/v1/outbox/1"),
        ("DELETE", "/v1/outbox/1"),
        ("POST", "/v1/outbox/1/requeue"),
        ("GET", "/v1/sent/a"),
    ] {
        let body = (method == "POST").then(|| json!({}));
        assert_eq!(house.client.call(method, path, &bob, body.as_ref()).await.0, 404, "{method} {path}");
    }
    assert_eq!(house.client.call("GET", "/v1/sent/a", &alice, None).await.1["status"], "pending");
    assert_eq!(house.client.call("DELETE", "/v1/outbox/1", &alice, None).await.0, 204);
}

#[tokio::test]
async fn a_name_too_long_for_a_file_is_refused_as_one() {
    let mesh = "m".repeat(64);
    let house = house_with(|config| config.meshes[0].name = mesh.parse().unwrap()).await;
    let (status, problem) = house.client.post("/v1/sessions", &json!({"name": "n".repeat(100)})).await;
    assert_eq!((status, &problem["pointer"]), (400, &json!("/name")), "{problem}");
    let detail = problem["detail"].as_str().unwrap();
    let most: usize = detail.split(' ').rev().nth(1).unwrap().parse().unwrap();
    assert_eq!(house.client.post("/v1/sessions", &json!({"name": "n".repeat(most)})).await.0, 200);
}

#[tokio::test]
async fn a_session_that_is_let_go_stays_for_its_rows_and_can_be_wanted_again() {
    let house = house().await;
    let (alice, token) = session(&house, "alice").await;
    let header = [("Tenure-Session", token.as_str())];
    house.client.call("POST", "/v1/send", &header, Some(&send("a", "x"))).await;
    let path = format!("/v1/sessions/{alice}");
    assert_eq!(house.client.call("DELETE", &path, &header, None).await.0, 204);
    assert_eq!(house.client.call("GET", "/v1/inbox", &header, None).await.0, 401, "nobody speaks for it");
    assert_eq!(house.client.get("/v1/health").await.1["sessions"], 2, "its row has not left");
    let config = super::config(&house.dir);
    house.daemon.stop().await;
    let daemon = tenure_daemon::Daemon::start(config).await.unwrap();
    let house = House { client: super::Client::new(daemon.socket()), daemon, dir: house.dir };
    assert_eq!(house.client.call("GET", "/v1/inbox", &header, None).await.0, 401, "nor after a restart");
    assert_eq!(session(&house, "alice").await, (alice, token.clone()));
    assert_eq!(house.client.call("GET", "/v1/inbox", &header, None).await.0, 200);
    assert_eq!(house.client.call("DELETE", &path, &header, None).await.0, 204);
    assert_eq!(house.client.call("DELETE", "/v1/outbox/1", &[], None).await.0, 204);
    assert_eq!(house.client.call("DELETE", &path, &header, None).await.0, 401, "the token is no good twice");
}

#[tokio::test]
async fn names_that_are_none_and_methods_that_do_not_fit_are_problems() {
    let house = house().await;
    assert_eq!(house.client.post("/v1/sessions", &json!({"name": ""})).await.1["pointer"], "/name");
    assert_eq!(house.client.post("/v1/sessions", &json!({"name": "n", "mesh": "other"})).await.0, 404);
    let (status, problem) = house.client.get("/v1/nothing").await;
    assert_eq!((status, &problem["code"]), (404, &json!("not_found")));
    let (status, problem) = house.client.call("PUT", "/v1/send", &[], None).await;
    assert_eq!((status, &problem["status"]), (405, &json!(405)));
}

#[tokio::test]
async fn no_more_than_so_many_streams_and_they_end_with_the_daemon() {
    let house = house().await;
    let mut streams = Vec::new();
    for _ in 0..32 {
        let mut socket = house.client.open().await;
        socket.write_all(&request("GET", "/v1/events", &[], b"")).await.unwrap();
        let mut head = [0u8; 512];
        let read = socket.read(&mut head).await.unwrap();
        assert!(head[..read].starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&head));
        streams.push(socket);
    }
    let (status, problem) = house.client.get("/v1/events").await;
    assert_eq!((status, &problem["code"]), (429, &json!("busy")));
    assert_eq!(house.client.post("/v1/send", &send("a", "x")).await.0, 202, "streams hold up nobody");
    house.daemon.stop().await;
    for mut socket in streams {
        let mut rest = Vec::new();
        socket.read_to_end(&mut rest).await.unwrap();
        assert!(String::from_utf8_lossy(&rest).ends_with("0\r\n\r\n"), "the stream is ended, not cut");
    }
}

#[tokio::test]
async fn a_bad_last_event_id_is_refused() {
    let house = house().await;
    let (status, _) = house.client.call("GET", "/v1/events", &[("Last-Event-ID", "x")], None).await;
    assert_eq!(status, 400);
}

/// A request that is begun and not ended holds one of 64 places.
#[tokio::test]
async fn no_more_than_so_many_requests_at_once() {
    let house = house().await;
    let mut begun = Vec::new();
    for _ in 0..64 {
        let mut socket = house.client.open().await;
        let whole = request("POST", "/v1/send", &[("Content-Type", "application/json")], &[b' '; 9]);
        socket.write_all(&whole[..whole.len() - 1]).await.unwrap();
        begun.push(socket);
    }
    let busy = async {
        loop {
            let (status, problem) = house.client.get("/v1/version").await;
            if status == 429 {
                return problem;
            }
            tokio::task::yield_now().await;
        }
    };
    let problem = tokio::time::timeout(std::time::Duration::from_secs(30), busy).await.expect("never busy");
    assert_eq!((&problem["code"], &problem["retryable"]), (&json!("busy"), &json!(true)));
    drop(begun);
    let free = async { while house.client.get("/v1/version").await.0 != 200 {} };
    tokio::time::timeout(std::time::Duration::from_secs(30), free).await.expect("the places stay taken");
}
