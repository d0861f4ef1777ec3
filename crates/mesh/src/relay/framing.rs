//! Where one request ends and the next begins, watched byte by byte before anybody else reads them.
//!
//! Request smuggling is two readers who disagree about that. Ours takes only what can be read in one way: a head with
//! exact line ends, names without white space, one Host, and at most one of Content-Length and Transfer-Encoding, once
//! and in its plainest spelling. Everything else is refused, though some reader somewhere would make sense of it.
//!
//! [`Framing`] follows the requests of one connection. It copies nothing but the head that is not complete yet.

use tenure_proto::limits::{RELAY_HEAD_BYTES, RELAY_HEADERS};

use crate::relay::refusal::Refusal;

/// How a connection of HTTP/2 begins; its frames say their own length.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes of the line before a chunk: its length in hex, and extensions that nobody uses.
const CHUNK_LINE_BYTES: usize = 256;
/// Bytes of trailers behind the last chunk.
const TRAILER_BYTES: usize = 8 * 1024;
/// Hex digits of a chunk's length, and digits of a body's: more do not fit a file system, or 64 bits.
const CHUNK_DIGITS: usize = 12;
const LENGTH_DIGITS: usize = 18;

/// What of the bytes that came is good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// So many of them, from the first, may be read; the rest is the beginning of a head that is not complete.
    Good(usize),
    /// So many may; what follows must not.
    Bad(usize, Refusal),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum At {
    /// In a head.
    Head,
    /// In a body, so many bytes before its end.
    Body(u64),
    /// In the line before a chunk.
    ChunkLine,
    /// In a chunk, so many bytes before the end of its line end.
    Chunk(u64),
    /// Behind the last chunk, with so many bytes seen.
    Trailers(usize),
    /// Behind a request for another protocol: what follows is known when that is answered.
    Asked,
    /// Past requests: another protocol.
    Beyond,
}

/// Follows the requests of one connection.
#[derive(Clone, Debug)]
pub struct Framing {
    at: At,
    /// Whether no request has been complete yet: only then may HTTP/2 begin.
    first: bool,
}

impl Default for Framing {
    fn default() -> Framing {
        Framing { at: At::Head, first: true }
    }
}

impl Framing {
    /// Bytes of the longest line, and of the longest head: with more than that without an end nothing good can come.
    pub const LINE_BYTES: usize = RELAY_HEAD_BYTES;

    /// Whether nothing can be said before a line is complete.
    pub fn waits_for_line(&self) -> bool {
        matches!(self.at, At::Head | At::ChunkLine | At::Trailers(_))
    }

    /// Looks at `bytes`, which go on where the last good byte was.
    pub fn read(&mut self, bytes: &[u8]) -> Read {
        let mut good = 0;
        loop {
            let rest = &bytes[good..];
            if rest.is_empty() {
                return Read::Good(good);
            }
            match self.step(rest) {
                Ok(0) => return Read::Good(good),
                Ok(taken) => good += taken,
                Err(refusal) => return Read::Bad(good, refusal),
            }
        }
    }

    /// Whether another protocol was asked for. Nothing is read until that is granted; one that is refused ends its
    /// connection, or whoever asks could have the rest of it read unseen.
    pub fn awaits_switch(&self) -> bool {
        self.at == At::Asked
    }

    /// The other protocol was granted.
    pub fn switch(&mut self) {
        if self.awaits_switch() {
            self.at = At::Beyond;
        }
    }

    /// Whether the last request is complete and the next has not begun.
    pub fn is_between_requests(&self) -> bool {
        self.at == At::Head
    }

    /// Whether nothing is looked at any more.
    pub fn is_beyond(&self) -> bool {
        self.at == At::Beyond
    }

    /// How many of these bytes are understood; none when more must come first.
    fn step(&mut self, bytes: &[u8]) -> Result<usize, Refusal> {
        match &mut self.at {
            At::Beyond => Ok(bytes.len()),
            At::Asked => Ok(0),
            At::Head => self.head(bytes),
            At::Body(left) => {
                let taken = take(left, bytes);
                if *left == 0 {
                    self.at = At::Head;
                }
                Ok(taken)
            }
            At::Chunk(left) => {
                let taken = take(left, bytes);
                let end = *left == 0;
                // The last two bytes are the line end; each is looked at when it comes.
                for (at, byte) in bytes[..taken].iter().enumerate() {
                    let behind = *left + (taken - at) as u64;
                    if behind == 2 && *byte != b'\r' || behind == 1 && *byte != b'\n' {
                        return Err(Refusal::bad("a chunk is not as long as it says"));
                    }
                }
                if end {
                    self.at = At::ChunkLine;
                }
                Ok(taken)
            }
            At::ChunkLine => {
                let Some(line) = line(bytes, CHUNK_LINE_BYTES, "the length of a chunk")? else {
                    return Ok(0);
                };
                self.at = match chunk_length(line)? {
                    0 => At::Trailers(0),
                    length => At::Chunk(length + 2),
                };
                Ok(line.len() + 2)
            }
            At::Trailers(seen) => {
                let room = TRAILER_BYTES.saturating_sub(*seen);
                let Some(line) = line(bytes, room, "trailers")? else { return Ok(0) };
                *seen += line.len() + 2;
                let taken = line.len() + 2;
                if line.is_empty() {
                    self.at = At::Head;
                } else {
                    let (name, _) = header(line)?;
                    if is_framing(&name.replace('_', "-")) {
                        return Err(Refusal::bad(
                            "a trailer must not say where a message ends or whom it is for",
                        ));
                    }
                }
                Ok(taken)
            }
        }
    }

    fn head(&mut self, bytes: &[u8]) -> Result<usize, Refusal> {
        if self.first && (HTTP2.starts_with(bytes) || bytes.starts_with(HTTP2)) {
            if bytes.len() < HTTP2.len() {
                return Ok(0);
            }
            self.at = At::Beyond;
            return Ok(bytes.len());
        }
        let mut at = 0;
        let mut lines = Vec::new();
        loop {
            let room = RELAY_HEAD_BYTES.saturating_sub(at);
            let Some(line) = line(&bytes[at..], room, "a head")? else { return Ok(0) };
            at += line.len() + 2;
            match (line.is_empty(), lines.is_empty()) {
                // An empty line before a request is the end of the one before it, as some write it.
                (true, true) => {}
                (true, false) => break,
                (false, true) => {
                    // A first line that is none is told so at once: nothing need follow it.
                    request(line)?;
                    lines.push(line);
                }
                (false, false) => lines.push(line),
            }
            if lines.len() > RELAY_HEADERS + 1 {
                return Err(Refusal::bad(format!("a request may have {RELAY_HEADERS} headers")));
            }
        }
        self.at = judge(&lines)?;
        self.first = false;
        Ok(at)
    }
}

fn take(left: &mut u64, bytes: &[u8]) -> usize {
    let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
    *left -= taken as u64;
    taken
}

/// The first line of `bytes` without its end; nothing while that has not come.
fn line<'a>(bytes: &'a [u8], most: usize, what: &str) -> Result<Option<&'a [u8]>, Refusal> {
    let Some(end) = bytes.iter().position(|byte| matches!(byte, b'\n' | 0)) else {
        return match bytes.len() > most {
            true => Err(Refusal::bad(format!("{what} is too long"))),
            false => Ok(None),
        };
    };
    let line = &bytes[..end];
    match line.split_last() {
        Some((b'\r', line)) if bytes[end] == b'\n' && !line.contains(&b'\r') && line.len() <= most => {
            Ok(Some(line))
        }
        Some((b'\r', line)) if line.len() > most => Err(Refusal::bad(format!("{what} is too long"))),
        _ => Err(Refusal::bad("a line of a head ends with CR LF, and with nothing else")),
    }
}

/// The target that a request's first line names, and whether that is of HTTP/1.1.
fn request(line: &[u8]) -> Result<(&str, bool), Refusal> {
    let mut parts = text(line)?.split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(Refusal::bad("a request begins with METHOD TARGET VERSION, one space between each"));
    };
    if method.is_empty() || target.is_empty() || !method.bytes().all(is_token) {
        return Err(Refusal::bad("a request begins with METHOD TARGET VERSION, one space between each"));
    }
    if !matches!(version, "HTTP/1.1" | "HTTP/1.0") {
        return Err(Refusal::bad("speak HTTP/1.1 or HTTP/2"));
    }
    if method == "CONNECT" {
        return Err(Refusal::method());
    }
    Ok((target, version == "HTTP/1.1"))
}

/// What follows a head.
fn judge(lines: &[&[u8]]) -> Result<At, Refusal> {
    let Some((first, headers)) = lines.split_first() else {
        return Err(Refusal::bad("a request has a first line"));
    };
    let (target, modern) = request(first)?;
    let mut said = Said::default();
    for line in headers {
        said.take(header(line)?)?;
    }
    said.check(target, modern)
}

/// What headers say about where a request ends and whom it is for.
#[derive(Default)]
struct Said {
    host: Option<String>,
    length: Option<u64>,
    chunked: bool,
    upgrade: bool,
}

impl Said {
    fn take(&mut self, (name, value): (String, &str)) -> Result<(), Refusal> {
        match name.as_str() {
            "host" => match self.host.replace(value.to_ascii_lowercase()) {
                None => Ok(()),
                Some(_) => Err(Refusal::bad("a request has one Host")),
            },
            "content-length" => {
                let digits =
                    (1..=LENGTH_DIGITS).contains(&value.len()) && value.bytes().all(|b| b.is_ascii_digit());
                let length = value.parse().ok().filter(|_| digits);
                let Some(length) = length else {
                    return Err(Refusal::bad("Content-Length is one number of plain digits"));
                };
                match self.length.replace(length) {
                    None => Ok(()),
                    Some(_) => Err(Refusal::bad("a request has one Content-Length")),
                }
            }
            "transfer-encoding" if self.chunked => Err(Refusal::bad("a request has one Transfer-Encoding")),
            "transfer-encoding" if value.eq_ignore_ascii_case("chunked") => {
                self.chunked = true;
                Ok(())
            }
            "transfer-encoding" => Err(Refusal::bad("Transfer-Encoding may be chunked, and nothing else")),
            "upgrade" => {
                self.upgrade |= value.split(',').any(|token| token.trim().eq_ignore_ascii_case("websocket"));
                Ok(())
            }
            // Many servers read `_` as `-`: for them this would say where the request ends, or whom it is for.
            other if other.contains('_') && is_framing(&other.replace('_', "-")) => {
                Err(Refusal::bad("a header that frames a request is spelled with `-`, not with `_`"))
            }
            _ => Ok(()),
        }
    }

    fn check(self, target: &str, http11: bool) -> Result<At, Refusal> {
        let Some(host) = self.host else { return Err(Refusal::bad("a request has a Host")) };
        if let Some(rest) = target.strip_prefix("http://").or_else(|| target.strip_prefix("https://")) {
            let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
            if !authority.eq_ignore_ascii_case(&host) {
                return Err(Refusal::bad("the target and the Host of a request name one server"));
            }
        } else if !target.starts_with('/') && target != "*" {
            return Err(Refusal::bad("a target is a path, or begins with http://"));
        }
        match (self.length, self.chunked) {
            (Some(_), true) => {
                Err(Refusal::bad("a request has Content-Length or Transfer-Encoding, not both"))
            }
            (None, true) if !http11 => Err(Refusal::bad("Transfer-Encoding needs HTTP/1.1")),
            (None, true) => Ok(At::ChunkLine),
            (Some(length), false) if length > 0 => Ok(At::Body(length)),
            _ if self.upgrade => Ok(At::Asked),
            _ => Ok(At::Head),
        }
    }
}

/// Whether a header of this name, in lower case, says where a request ends, whom it is for, or what its connection becomes.
fn is_framing(name: &str) -> bool {
    matches!(
        name,
        "host" | "content-length" | "transfer-encoding" | "connection" | "upgrade" | "te" | "trailer"
    )
}

fn chunk_length(line: &[u8]) -> Result<u64, Refusal> {
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default();
    let length = std::str::from_utf8(digits).ok().filter(|text| {
        (1..=CHUNK_DIGITS).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
    });
    let extension = &line[digits.len()..];
    match length.and_then(|text| u64::from_str_radix(text, 16).ok()) {
        Some(length) if extension.iter().all(|b| *b >= b' ' && *b != 0x7f) => Ok(length),
        _ => Err(Refusal::bad("a chunk begins with its length in hex")),
    }
}

/// A header's name, in lower case, and its value.
fn header(line: &[u8]) -> Result<(String, &str), Refusal> {
    if matches!(line.first(), Some(b' ' | b'\t')) {
        return Err(Refusal::bad("a header stands on one line"));
    }
    let bad = || Refusal::bad("a header is NAME: VALUE, without white space in its name");
    let colon = line.iter().position(|byte| *byte == b':').ok_or_else(bad)?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    if name.is_empty() || !name.iter().copied().all(is_token) {
        return Err(bad());
    }
    if value.iter().any(|b| *b < b' ' && *b != b'\t' || *b == 0x7f) {
        return Err(Refusal::bad("a header's value has no control characters"));
    }
    // What is not UTF-8 is none of the values that count here.
    let value = std::str::from_utf8(value).unwrap_or("\u{fffd}").trim_matches([' ', '\t']);
    Ok((String::from_utf8_lossy(name).to_ascii_lowercase(), value))
}

fn text(line: &[u8]) -> Result<&str, Refusal> {
    let plain = line.iter().all(|byte| (b' '..0x7f).contains(byte));
    std::str::from_utf8(line)
        .ok()
        .filter(|_| plain)
        .ok_or_else(|| Refusal::bad("the first line of a request is plain ASCII"))
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
#[path = "framing_tests.rs"]
mod tests;
