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
        "GET / HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n",
        "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: \t0026 \r\n\r\nGET /x HTTP/1.1\r\nHost: a\r\n",
        "GET /<a> HTTP/1.1\r\nHost: a\r\n\r\n",
    ];
    let trailers = "T: 1\r\n".repeat(130);
    let many = format!(
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n{trailers}\r\n"
    );
    requests.iter().copied().chain([many.as_str()]).map(|request| request.as_bytes().to_vec()).collect()
}

/// A frame of a WebSocket, masked as a client's are.
fn websocket(first: u8, payload: &[u8]) -> Vec<u8> {
    let mask = [0x37, 0xfa, 0x21, 0x3d];
    let mut frame = vec![first];
    match payload.len() {
        length @ 0..=125 => frame.push(0x80 | length as u8),
        length => {
            frame.push(0x80 | 126);
            frame.extend((length as u16).to_be_bytes());
        }
    }
    frame.extend(mask);
    frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    frame
}

pub(crate) fn socket_frames() -> Vec<Vec<u8>> {
    let (text, binary, go_on, close, ping, pong, last) = (1, 2, 0, 8, 9, 10, 0x80);
    let streams = [
        websocket(last | text, "für alle".as_bytes()),
        [websocket(last | binary, &[7; 300]), websocket(last | ping, b"alive"), websocket(last | pong, b"")]
            .concat(),
        [
            websocket(text, &"ü".as_bytes()[..1]),
            websocket(last | ping, b""),
            websocket(go_on, b""),
            websocket(last | go_on, &"ü".as_bytes()[1..]),
            websocket(last | close, &[3, 0xe8, b'x']),
        ]
        .concat(),
        [websocket(binary, &[1; 600]), websocket(last | go_on, &[2; 400])].concat(),
        [websocket(binary, &[1; 600]), websocket(last | go_on, &[2; 401])].concat(),
        websocket(last | binary, &[0; 1_001]),
        // A length in eight bytes where two would do, and one that nothing has.
        vec![0x82, 0xff, 0, 0, 0, 0, 0, 0, 0, 2, 1, 2, 3, 4, 5, 6],
        vec![0x82, 0xff, 255, 255, 255, 255, 255, 255, 255, 255],
        [websocket(last | close, &[3, 0xf6]), websocket(last | text, b"behind")].concat(),
        websocket(last | close, &[3, 0xed, b'n', b'o']),
        [websocket(text, b"a\xff"), websocket(last | ping, b"p"), websocket(last | go_on, b"b")].concat(),
        [websocket(text, b"a"), websocket(last | text, b"b")].concat(),
        websocket(last | go_on, b"a"),
        websocket(ping, b"a"),
        websocket(last | ping, &[0; 126]),
        // A ping whose length stands in two bytes, and needs one.
        vec![0x89, 0xfe, 0, 1, 1, 2, 3, 4, 5],
        websocket(last | close, &[3]),
        vec![0x81, 1, b'x'],
        websocket(0xc1, b"x"),
        websocket(0x83, b"x"),
        websocket(last | binary, &[9; 500])[..200].to_vec(),
    ];
    // In pieces of a byte, of a few lengths, and in one; the last drops at once what it has handed on.
    let cuts: [&[u8]; 4] = [&[1, 0], &[3, 1, 6, 40], &[0], &[0x82, 90, 30]];
    streams.iter().zip(cuts.iter().cycle()).map(|(stream, cut)| [cut, &stream[..]].concat()).collect()
}
