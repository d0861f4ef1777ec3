//! Server-sent events of the daemon, one after the other.

use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{Method, StatusCode};
use serde_json::Value;

use crate::exit::Failure;
use crate::local::Local;

/// Bytes of one event: a message and what is known of it.
const EVENT_BYTES: usize = 64 * 1024 * 1024;

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) name: String,
    pub(crate) data: String,
}

/// A stream of events.
#[derive(Debug)]
pub(crate) struct Stream {
    body: Incoming,
    parser: Parser,
}

impl Stream {
    /// Opens the stream at `path`.
    pub(crate) async fn open(local: &Local, path: &str) -> Result<Stream, Failure> {
        let response = local.open(Method::GET, path, None, &[]).await?;
        if response.status() != StatusCode::OK {
            // The same once more, to read what it says.
            return Err(local.call(Method::GET, path, None).await?.failure());
        }
        Ok(Stream { body: response.into_body(), parser: Parser::default() })
    }

    /// The next event; none when the daemon ends it. Cancel-safe: what came is kept.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.parser.next() {
                return Some(event);
            }
            let frame = self.body.frame().await?.ok()?;
            self.parser.feed(frame.data_ref()?)?;
        }
    }
}

/// Turns bytes into events.
#[derive(Debug, Default)]
struct Parser {
    bytes: Vec<u8>,
    begun: Event,
}

impl Parser {
    /// Takes bytes; nothing if that is more than an event can be.
    fn feed(&mut self, bytes: &[u8]) -> Option<()> {
        self.bytes.extend_from_slice(bytes);
        (self.bytes.len() + self.begun.data.len() <= EVENT_BYTES).then_some(())
    }

    /// The next event, once its last line has come.
    fn next(&mut self) -> Option<Event> {
        while let Some(end) = self.bytes.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.bytes.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches(['\n', '\r']);
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "" if line.is_empty() && self.begun != Event::default() => {
                    return Some(std::mem::take(&mut self.begun));
                }
                "event" => self.begun.name = value.to_owned(),
                "data" => self.begun.data += value,
                _ => {}
            }
        }
        None
    }
}

impl Event {
    /// What it says.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_whole_however_they_were_cut() {
        let text = b": keep-alive\n\nevent: connected\ndata: {}\n\nevent: message\nid: 7\ndata: {\"a\":1}\n\nevent: x\n";
        for size in [1, 3, text.len()] {
            let (mut parser, mut events) = (Parser::default(), Vec::new());
            for part in text.chunks(size) {
                parser.feed(part).unwrap();
                events.extend(std::iter::from_fn(|| parser.next()));
            }
            let names: Vec<&str> = events.iter().map(|event| event.name.as_str()).collect();
            assert_eq!(names, ["connected", "message"]);
            assert_eq!(events[1].json()["a"], 1);
        }
    }
}
