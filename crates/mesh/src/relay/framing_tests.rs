//! The corpus: requests that are read in one way, and requests that somebody, somewhere, reads in another.

use proptest::prelude::*;

use super::*;

/// All of `bytes` at once, and again byte by byte: the verdict must not depend on how they arrive.
fn read(bytes: &[u8]) -> Result<At, Refusal> {
    let mut framing = Framing::default();
    let whole = match framing.read(bytes) {
        Read::Good(good) if good == bytes.len() => Ok(framing.at.clone()),
        Read::Good(_) => Ok(At::Head),
        Read::Bad(_, refusal) => Err(refusal),
    };
    let mut framing = Framing::default();
    let mut waiting = Vec::new();
    let mut outcome = Ok(At::Head);
    for byte in bytes {
        waiting.push(*byte);
        match framing.read(&waiting) {
            Read::Good(good) => _ = waiting.drain(..good),
            Read::Bad(_, refusal) => {
                outcome = Err(refusal);
                break;
            }
        }
    }
    let slow = outcome.map(|_| framing.at.clone());
    assert_eq!(whole.is_ok(), slow.is_ok(), "{:?}", String::from_utf8_lossy(bytes));
    whole
}

fn refused(request: &str, words: &str) {
    match read(request.as_bytes()) {
        Err(refusal) => {
            assert!(matches!(refusal.status, 400 | 405), "{request:?}");
            assert!(refusal.message.contains(words), "{request:?}: {}", refusal.message);
        }
        Ok(at) => panic!("{request:?} was read, up to {at:?}"),
    }
}

#[test]
fn plain_requests_follow_one_another() {
    for request in [
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "\r\nGET / HTTP/1.1\r\nhost:a\r\n\r\nGET /2 HTTP/1.1\r\nHost:\ta \r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n3\r\nabc\r\n0A;x=y\r\n0123456789\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Sum: 1\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET http://a/x HTTP/1.1\r\nHost: A\r\n\r\n",
        "GET / HTTP/1.0\r\nHost: a\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
    ] {
        assert_eq!(read(request.as_bytes()), Ok(At::Head), "{request:?}");
    }
}

#[test]
fn a_header_that_frames_is_not_spelled_with_an_underscore() {
    for name in ["Content_Length", "Transfer_Encoding", "transfer_encoding", "CONTENT_LENGTH"] {
        refused(&format!("POST / HTTP/1.1\r\nHost: a\r\n{name}: 5\r\n\r\n"), "spelled with `-`");
    }
    refused(
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nContent_Length: 3\r\n\r\n",
        "trailer",
    );
    let other = "GET / HTTP/1.1\r\nHost: a\r\nX_Mine: 1\r\n\r\n";
    assert_eq!(read(other.as_bytes()), Ok(At::Head));
}

#[test]
fn what_is_not_complete_waits() {
    let mut framing = Framing::default();
    assert_eq!(framing.read(b"GET / HTTP/1.1\r\nHost: a\r\n"), Read::Good(0));
    let head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n";
    assert_eq!(framing.read(&[&head[..], b"ab"].concat()), Read::Good(head.len() + 2));
    assert_eq!(framing.at, At::Body(3));
    assert_eq!(framing.read(b"cdeGET"), Read::Good(3));
}

#[test]
fn another_protocol_is_not_looked_at() {
    let switch = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\0\n\0";
    let mut framing = Framing::default();
    let head = switch.len() - 3;
    assert_eq!(framing.read(switch.as_bytes()), Read::Good(head), "what follows waits for the answer");
    assert_eq!(framing.read(&switch.as_bytes()[head..]), Read::Good(0));
    framing.switch();
    assert_eq!(framing.read(&switch.as_bytes()[head..]), Read::Good(3));
    assert_eq!(Framing::default().read(b"PRI * HTTP/2.0\r\n\r\n"), Read::Good(0), "not all of it yet");
    assert_eq!(read(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0"), Ok(At::Beyond));
    let late = "GET / HTTP/1.1\r\nHost: a\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    assert!(read(late.as_bytes()).is_err(), "HTTP/2 begins a connection or does not begin");
    let h2c = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n\0";
    assert!(read(h2c.as_bytes()).is_err(), "what is not switched to is still looked at");
}

#[test]
fn a_request_has_one_end() {
    let post = |headers: &str, body: &str| format!("POST / HTTP/1.1\r\nHost: a\r\n{headers}\r\n{body}");
    for (headers, words) in [
        ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "not both"),
        ("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "not both"),
        ("Content-Length: 5\r\nContent-Length: 6\r\n", "one Content-Length"),
        ("Content-Length: 5\r\nContent-Length: 5\r\n", "one Content-Length"),
        ("Content-Length: 5, 5\r\n", "plain digits"),
        ("Content-Length: +5\r\n", "plain digits"),
        ("Content-Length: -5\r\n", "plain digits"),
        ("Content-Length: 0x5\r\n", "plain digits"),
        ("Content-Length: 5 5\r\n", "plain digits"),
        ("Content-Length:\r\n", "plain digits"),
        ("Content-Length: 99999999999999999999\r\n", "plain digits"),
        ("Content-Length: 5\u{b}\r\n", "control"),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "one Transfer-Encoding"),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", "one Transfer-Encoding"),
        ("Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n", "nothing else"),
        ("Transfer-Encoding: gzip, chunked\r\n", "nothing else"),
        ("Transfer-Encoding: chunked, identity\r\n", "nothing else"),
        ("Transfer-Encoding: xchunked\r\n", "nothing else"),
        ("Transfer-Encoding: \"chunked\"\r\n", "nothing else"),
        ("Transfer-Encoding: chunked\u{b}\r\n", "control"),
        ("Transfer-Encoding: ch\u{212a}unked\r\n", "nothing else"),
        ("Transfer-Encoding:\r\n chunked\r\n", "nothing else"),
        ("Transfer-Encoding : chunked\r\n", "white space"),
        ("Transfer-Encoding\t: chunked\r\n", "white space"),
        ("Transfer\u{7f}-Encoding: chunked\r\n", "white space"),
        (" Transfer-Encoding: chunked\r\n", "one line"),
        ("X: y\r\n Transfer-Encoding: chunked\r\n", "one line"),
        ("X: y\r\n\tContent-Length: 5\r\n", "one line"),
        ("X: y\nTransfer-Encoding: chunked\r\n", "CR LF"),
        ("X: y\rTransfer-Encoding: chunked\r\n", "CR LF"),
        ("X: y\r\r\nTransfer-Encoding: chunked\r\n", "CR LF"),
        ("X: y\0\r\n", "CR LF"),
        ("X\r\n", "NAME: VALUE"),
        (": x\r\n", "NAME: VALUE"),
    ] {
        refused(&post(headers, "0\r\n\r\n"), words);
    }
    refused("POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "HTTP/1.1");
}

#[test]
fn a_chunk_is_as_long_as_it_says() {
    let chunked =
        |body: &str| format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}");
    for (body, words) in [
        ("3\r\nabcd\r\n0\r\n\r\n", "as long"),
        ("3\r\nabc\n\n0\r\n\r\n", "as long"),
        ("3\r\nabc0\r\n\r\n", "as long"),
        ("3\nabc\r\n0\r\n\r\n", "CR LF"),
        ("0x3\r\nabc\r\n0\r\n\r\n", "in hex"),
        ("-3\r\nabc\r\n0\r\n\r\n", "in hex"),
        ("+3\r\nabc\r\n0\r\n\r\n", "in hex"),
        (" 3\r\nabc\r\n0\r\n\r\n", "in hex"),
        ("3 \r\nabc\r\n0\r\n\r\n", "in hex"),
        ("\r\n0\r\n\r\n", "in hex"),
        ("g\r\n", "in hex"),
        ("1000000000003\r\nabc", "in hex"),
        ("3;\u{1}\r\nabc\r\n0\r\n\r\n", "in hex"),
        ("0\r\nContent-Length: 5\r\n\r\n", "trailer"),
        ("0\r\nTransfer-Encoding: chunked\r\n\r\n", "trailer"),
        ("0\r\nX: y\n\r\n", "CR LF"),
        ("0\r\n X: y\r\n\r\n", "one line"),
    ] {
        refused(&chunked(body), words);
    }
    refused(&chunked(&format!("3;{}", "x".repeat(300))), "too long");
    refused(&chunked(&format!("0\r\n{}", "X: y\r\n".repeat(2_000))), "too long");
}

#[test]
fn a_request_is_for_one_server() {
    refused("GET / HTTP/1.1\r\n\r\n", "a Host");
    refused("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", "one Host");
    refused("GET / HTTP/1.1\r\nHost: a\r\nhOST: b\r\n\r\n", "one Host");
    refused("GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n", "name one server");
    refused("GET http://a@b/ HTTP/1.1\r\nHost: a\r\n\r\n", "name one server");
    refused("GET http://a:80/ HTTP/1.1\r\nHost: a\r\n\r\n", "name one server");
    refused("GET a/ HTTP/1.1\r\nHost: a\r\n\r\n", "a path");
    refused("GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n", "a path");
    refused("CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n", "tenure connect");
}

#[test]
fn a_first_line_has_three_words() {
    for line in [
        "GET /",
        "GET  / HTTP/1.1",
        "GET / HTTP/1.1 ",
        " GET / HTTP/1.1",
        "GET\t/\tHTTP/1.1",
        "G(T / HTTP/1.1",
    ] {
        assert!(read(format!("{line}\r\nHost: a\r\n\r\n").as_bytes()).is_err(), "{line:?}");
    }
    for version in ["HTTP/0.9", "HTTP/1.2", "HTTP/2", "http/1.1", "HTTP/1.1x"] {
        refused(&format!("GET / {version}\r\nHost: a\r\n\r\n"), "HTTP/1.1");
    }
    refused("GET /\u{e9} HTTP/1.1\r\nHost: a\r\n\r\n", "ASCII");
}

#[test]
fn a_head_has_a_bound() {
    let many = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(RELAY_HEADERS));
    refused(&many, "headers");
    let fits = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(RELAY_HEADERS - 1));
    assert_eq!(read(fits.as_bytes()), Ok(At::Head));
    let long = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "y".repeat(RELAY_HEAD_BYTES));
    let mut framing = Framing::default();
    assert!(matches!(framing.read(long.as_bytes()), Read::Bad(0, _)));
    let mut framing = Framing::default();
    assert!(matches!(framing.read(&vec![b'G'; RELAY_HEAD_BYTES + 1]), Read::Bad(0, _)), "no line end at all");
}

proptest! {
    /// However bytes are cut, they are judged alike, and never more of them are called good than came.
    #[test]
    fn any_cut_gives_the_same_verdict(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..200) {
        let head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        let bytes = [&head[..], &bytes].concat();
        let mut whole = Framing::default();
        let at_once = whole.read(&bytes);
        let cut = cut.min(bytes.len());
        let mut parts = Framing::default();
        let pieced = match parts.read(&bytes[..cut]) {
            Read::Bad(..) => false,
            Read::Good(good) => {
                prop_assert!(good <= cut);
                matches!(parts.read(&bytes[good..]), Read::Good(_))
            }
        };
        prop_assert_eq!(matches!(at_once, Read::Good(_)), pieced);
    }
}
