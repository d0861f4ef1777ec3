//! Requests at the relay: what passes must be framed alike by hyper, which reads it next.
//!
//! Our own reader says where each request of a connection ends, and which of its bytes are its body. Each is then given to
//! hyper alone, with a request behind it that is known. hyper must see that one request with that body, and the known one
//! behind it. A refusal of hyper's is a finding too, unless it is one of [`HYPER_REFUSES`]: whoever refuses what we let pass
//! has read it in another way.

use std::convert::Infallible;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::header::CONNECTION;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, Version};
use hyper_util::rt::TokioIo;
use tenure_mesh::relay::framing::{Framing, Read};
use tenure_proto::limits::{RELAY_HEAD_BYTES, RELAY_HEADERS};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

/// The request that stands behind each.
const SENTINEL: &[u8] = b"GET /sentinel-behind-it HTTP/1.1\r\nHost: sentinel\r\n\r\n";
const SENTINEL_PATH: &str = "/sentinel-behind-it";
/// Requests of one input that are given to hyper.
const REQUESTS: usize = 4;
/// What hyper may refuse though we let it pass. After each it reads nothing more of the connection, so that nobody can
/// disagree with it about what follows.
const HYPER_REFUSES: &[&str] = &[
    // A target with characters that a URI does not have: we compare its server with the Host, and read no more of it.
    "invalid URI",
    // 16 KiB of extensions in all; ours bounds those of each chunk.
    "chunk extensions over limit",
    // As many trailers as headers; ours bounds their bytes.
    "chunk trailers count overflow",
];

/// Whoever says where requests end: [`Framing`], or in a test one that is wrong.
pub trait Reader {
    /// Looks at `bytes`, which go on where the last good byte was.
    fn read(&mut self, bytes: &[u8]) -> Read;
    /// Where it is.
    fn framing(&self) -> &Framing;
}

impl Reader for Framing {
    fn read(&mut self, bytes: &[u8]) -> Read {
        Framing::read(self, bytes)
    }

    fn framing(&self) -> &Framing {
        self
    }
}

/// A connection of HTTP/1 to the relay.
#[allow(clippy::panic)]
pub(crate) fn run(bytes: &[u8]) {
    if let Err(problem) = check(bytes, &mut Framing::default()) {
        panic!("{problem}");
    }
}

/// Compares what `reader` and hyper make of each request of a connection.
///
/// # Errors
/// What they disagree about.
pub fn check(bytes: &[u8], reader: &mut impl Reader) -> Result<(), String> {
    for request in requests(bytes, reader).iter().take(REQUESTS) {
        let heard = by_hyper(&[request.bytes, SENTINEL].concat())?;
        let shown = String::from_utf8_lossy(request.bytes);
        request.compare(&heard).map_err(|problem| format!("{problem}, in {shown:?}"))?;
    }
    Ok(())
}

/// A complete request as a [`Reader`] understood it.
struct Passed<'a> {
    /// From its first byte to its last.
    bytes: &'a [u8],
    body: Vec<u8>,
}

/// The complete requests that the reader lets pass.
fn requests<'a>(bytes: &'a [u8], reader: &mut impl Reader) -> Vec<Passed<'a>> {
    let (mut found, mut body) = (Vec::new(), Vec::new());
    // The first byte of the request, of what the reader has not taken, and of what it has not been shown.
    let (mut start, mut taken, mut shown) = (0, 0, 0);
    while shown < bytes.len() && !reader.framing().is_beyond() && !reader.framing().awaits_switch() {
        shown += 1;
        let in_line = reader.framing().waits_for_line();
        let good = match reader.read(&bytes[taken..shown]) {
            Read::Good(0) => continue,
            Read::Good(good) => good,
            Read::Bad(..) => break,
        };
        // What is taken byte by byte is a body, or a chunk of one with its line end.
        if !in_line {
            body.extend(&bytes[taken..taken + good]);
        }
        taken += good;
        let framing = reader.framing();
        if framing.is_between_requests() {
            found.push(Passed { bytes: &bytes[start..taken], body: std::mem::take(&mut body) });
            start = taken;
        } else if !in_line && framing.waits_for_line() {
            body.truncate(body.len().saturating_sub(2));
        }
    }
    found
}

impl Passed<'_> {
    fn compare(&self, heard: &Heard) -> Result<(), String> {
        let Some((first, behind)) = heard.requests.split_first() else {
            return may_refuse(heard.end.as_deref().unwrap_or("nothing"));
        };
        match &first.body {
            Err(said) if behind.is_empty() => return may_refuse(said),
            Ok(body) if *body == self.body => {}
            body => {
                let ours = String::from_utf8_lossy(&self.body);
                return Err(format!("the body is {ours:?} for us, and {body:?} for hyper"));
            }
        }
        match behind {
            [] if first.last => Ok(()),
            [next] if next.path == SENTINEL_PATH && next.body == Ok(Vec::new()) => Ok(()),
            _ => Err(format!("hyper sees {behind:?} behind it")),
        }
    }
}

/// Whether hyper may say this to what we let pass.
fn may_refuse(said: &str) -> Result<(), String> {
    match HYPER_REFUSES.iter().any(|known| said.contains(known)) {
        true => Ok(()),
        false => Err(format!("hyper refuses what we let pass, and says {said}")),
    }
}

/// A request as hyper understood it.
#[derive(Debug)]
struct Seen {
    path: String,
    /// Whether hyper need not read what follows it.
    last: bool,
    /// Or why it was not read to its end.
    body: Result<Vec<u8>, String>,
}

impl Seen {
    async fn new(request: Request<Incoming>) -> Seen {
        let path = request.uri().path().to_owned();
        let mut tokens = request.headers().get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
        let closes =
            tokens.any(|value| value.split(',').any(|token| token.trim().eq_ignore_ascii_case("close")));
        let last = closes || request.version() == Version::HTTP_10;
        let body = request.into_body().collect().await;
        let body = body.map(|body| body.to_bytes().to_vec()).map_err(|error| with_causes(&error));
        Seen { path, last, body }
    }
}

/// A connection as hyper understood it.
struct Heard {
    requests: Vec<Seen>,
    /// What it found wrong, if that ended it.
    end: Option<String>,
}

/// What hyper makes of these bytes of a connection, which then ends.
fn by_hyper(bytes: &[u8]) -> Result<Heard, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let note = seen.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let note = note.clone();
        async move {
            let seen = Seen::new(request).await;
            note.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        }
    });
    // As the relay has it, except that what came before the connection's end is answered.
    let mut http = http1::Builder::new();
    http.max_buf_size(RELAY_HEAD_BYTES).max_headers(RELAY_HEADERS).half_close(true);
    let served = runtime.block_on(async {
        let (near, mut far) = duplex(256 * 1024);
        let serving = http.serve_connection(TokioIo::new(near), service);
        let asking = async {
            let _ = far.write_all(bytes).await;
            let _ = far.shutdown().await;
            let mut answers = Vec::new();
            let _ = far.read_to_end(&mut answers).await;
        };
        let both = async { tokio::join!(serving, asking).0 };
        tokio::time::timeout(Duration::from_secs(60), both).await
    });
    let served = served.map_err(|_| "hyper waits for more than all".to_owned())?;
    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(Heard { requests: std::mem::take(&mut *seen), end: served.err().map(|error| with_causes(&error)) })
}

/// What an error says, and what the errors behind it say.
fn with_causes(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
