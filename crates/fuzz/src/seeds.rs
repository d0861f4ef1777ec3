//! Inputs to begin with: the vectors that every implementation is held to, and what our own code writes.

use serde_json::{Value, json};
use tenure_daemon::outbox::{CAP, Outbox, Request};
use tenure_proto::invite::{Invite, InviteLink};
use tenure_proto::relay::{self, Asker, StreamOpen, Verdict};
use tenure_proto::text::unhex;
use tenure_proto::ticket::RelayTicket;

use tenure_proto::{SessionKey, message::SendParams};

use crate::tokens::broker_key;

const FRAMES: &str = include_str!("../../../vectors/frames.json");
const TOKENS: &str = include_str!("../../../vectors/tokens.json");

/// Every text under the key `wanted` of a vector file, however deep.
fn texts(file: &str, wanted: &str) -> Vec<String> {
    fn walk(value: &Value, wanted: &str, found: &mut Vec<String>) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| walk(item, wanted, found)),
            Value::Object(fields) => {
                for (key, value) in fields {
                    match value.as_str() {
                        Some(text) if key == wanted => found.push(text.to_owned()),
                        _ => walk(value, wanted, found),
                    }
                }
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    walk(&serde_json::from_str(file).unwrap_or_default(), wanted, &mut found);
    found
}

pub(crate) fn frames_json() -> Vec<Vec<u8>> {
    texts(FRAMES, "json").into_iter().map(String::into_bytes).collect()
}

pub(crate) fn frames_msgpack() -> Vec<Vec<u8>> {
    texts(FRAMES, "msgpack").iter().filter_map(|hex| unhex(hex)).collect()
}

pub(crate) fn resume_tokens() -> Vec<Vec<u8>> {
    texts(TOKENS, "token").into_iter().map(String::into_bytes).collect()
}

pub(crate) fn hosts() -> Vec<Vec<u8>> {
    let lines = [
        "localhost:7400",
        "127.0.0.1:7400\nhttp://127.0.0.1:7400",
        "[::1]:7400\nnull",
        "MESH.example\nhttps://evil.example",
        "other.example:443\nhttps://other.example:443",
        "web.localhost:7480",
        "web.team.localhost.",
        "a.b.relay.example:80\n\nrelay.example",
        "web.relay.example:99999\n\n.relay.example.",
        "",
    ];
    lines.iter().map(|line| line.as_bytes().to_vec()).collect()
}

pub(crate) fn invites() -> Vec<Vec<u8>> {
    let key = broker_key();
    let by = tenure_proto::MemberKey(key.verifying_key().to_bytes());
    let claims = [
        json!({"mesh": "default", "id": "i1", "by": by, "role": "member", "uses": 1, "exp": 1_900_000_000_000_u64}),
        json!({"mesh": "team", "id": "i2", "by": by, "role": "operator", "caps": ["send", "read"], "uses": 10_000,
            "exp": 1_900_000_000_000_u64}),
    ];
    let invites = claims.into_iter().filter_map(|claims| serde_json::from_value::<Invite>(claims).ok());
    let issued: Vec<String> = invites.map(|invite| invite.issue(&key)).collect();
    let links = ["ws://127.0.0.1:7400", "wss://mesh.example"]
        .iter()
        .flat_map(|broker| issued.iter().map(|invite| InviteLink::write(broker, invite)));
    links.chain(issued.iter().cloned()).map(String::into_bytes).collect()
}

pub(crate) fn tickets() -> Vec<Vec<u8>> {
    let key = broker_key();
    let (session, member) = ("11".repeat(32), "22".repeat(32));
    let claims = [
        json!({"mesh": "default", "role": "publish", "session": session, "member": member, "run": 1, "id": 1, "exp": 9}),
        json!({"mesh": "default", "role": "connect", "session": session, "member": member, "name": "db",
            "peer": session, "run": 1, "id": 2, "exp": 9}),
        json!({"mesh": "default", "role": "publish", "session": session, "member": member, "run": 2, "id": 3, "exp": 0}),
    ];
    let tickets = claims.into_iter().filter_map(|claims| serde_json::from_value::<RelayTicket>(claims).ok());
    tickets.map(|ticket| ticket.issue(&key).into_bytes()).collect()
}

/// A frame of the multiplexer: its kind, its flags, its stream, and its length or number.
fn yamux(kind: u8, flags: u16, stream: u32, length: u32) -> Vec<u8> {
    let mut frame = vec![0, kind];
    frame.extend(flags.to_be_bytes());
    frame.extend(stream.to_be_bytes());
    frame.extend(length.to_be_bytes());
    frame
}

pub(crate) fn mux() -> Vec<Vec<u8>> {
    let (data_frame, window, ping, go_away) = (0u8, 1u8, 2u8, 3u8);
    let (syn, ack, fin, rst) = (1u16, 2u16, 4u16, 8u16);
    let data = |flags, stream, bytes: &[u8]| {
        let mut frame = yamux(data_frame, flags, stream, bytes.len() as u32);
        frame.extend(bytes);
        frame
    };
    let asker = Asker::at("127.0.0.1:5".to_owned());
    let opening: Option<StreamOpen> =
        serde_json::from_value(json!({"name": "db", "kind": "tcp", "from": asker})).ok();
    let opening = opening.and_then(|opening| relay::frame(&opening)).unwrap_or_default();
    let verdict = relay::frame(&Verdict::yes()).unwrap_or_default();
    vec![
        data(syn, 1, &opening),
        [data(syn, 1, &opening), data(0, 1, &verdict), data(fin, 1, b"hello")].concat(),
        [yamux(window, syn, 1, 0), data(0, 1, b"\0\x02{}"), yamux(window, rst, 1, 0)].concat(),
        [yamux(ping, syn, 0, 7), yamux(ping, ack, 0, 7)].concat(),
        [yamux(window, syn, 1, u32::MAX), yamux(window, 0, 1, u32::MAX), data(syn, 3, &[0; 300])].concat(),
        yamux(go_away, 0, 0, 0),
        data(syn, 1, b"\xff\xff"),
    ]
}

pub(crate) fn outbox_rows() -> Vec<Vec<u8>> {
    [0, 1, 12].iter().filter_map(|rows| outbox_of(*rows)).collect()
}

/// The file of a real outbox with so many rows, the last of them larger than a page.
fn outbox_of(rows: usize) -> Option<Vec<u8>> {
    let dir = tempfile::tempdir().ok()?;
    let runtime = tokio::runtime::Builder::new_current_thread().build().ok()?;
    let outbox = Outbox::open(dir.path(), CAP).ok()?;
    for n in 1..=rows {
        let body = "x".repeat(if n == rows { 9_000 } else { n });
        let params = json!({"to": "topic:jobs", "clientMessageId": format!("job-{n}"), "body": body});
        let params: SendParams = serde_json::from_value(params).ok()?;
        let request = Request::new("default".parse().ok()?, SessionKey([7; 32]), params).ok()?;
        runtime.block_on(outbox.accept(request, 1_800_000_000_000)).ok()?;
    }
    drop(outbox);
    let path = dir.path().join("outbox.db");
    let connection = rusqlite::Connection::open(&path).ok()?;
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).ok()?;
    drop(connection);
    std::fs::read(path).ok()
}

pub(crate) fn relay_framing() -> Vec<Vec<u8>> {
    let requests: &[&str] = &[
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "\r\nGET / HTTP/1.1\r\nhost:a\r\n\r\nGET /2 HTTP/1.1\r\nHost:\ta \r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0A;x=y\r\n0123456789\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Sum: 1\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET http://a/x HTTP/1.1\r\nHost: A\r\n\r\n",
        "GET / HTTP/1.0\r\nHost: a\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +3\r\n\r\nabc",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: 1\n\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        "HEAD / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx",
    ];
    requests.iter().map(|request| request.as_bytes().to_vec()).collect()
}
