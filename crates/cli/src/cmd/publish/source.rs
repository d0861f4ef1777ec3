//! Where the lines come from, and what their ids are made of.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek};
use std::path::Path;

use sha2::{Digest, Sha256};
use tenure_client::proto::ids::ClientMessageId;
use tenure_client::proto::name::TopicName;
use tenure_client::proto::text;
use tokio::sync::mpsc;

use crate::exit::Failure;

/// Lines that were read and wait to be sent.
const READ_AHEAD: usize = 64;
/// Bytes of a line: far beyond what any broker takes.
const LINE_BYTES: usize = 64 * 1024 * 1024;
/// Bytes of the hash that go into an id.
const HASH_BYTES: usize = 16;

/// A line with its number, from 1.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) number: u64,
    pub(super) bytes: Vec<u8>,
}

/// Lines to publish.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) lines: mpsc::Receiver<Result<Line, Failure>>,
    /// How many there are, if that is known.
    pub(super) total: Option<u64>,
    /// Whether it is one message rather than the lines of something.
    pub(super) single: bool,
    /// What every id begins with; without it ids are new each time.
    prefix: Option<String>,
}

impl Source {
    /// One message.
    pub(super) fn one(body: &str, prefix: Option<String>) -> Source {
        let (told, lines) = mpsc::channel(1);
        // There is room for it.
        let _ = told.try_send(Ok(Line { number: 1, bytes: body.as_bytes().to_vec() }));
        Source { lines, total: None, single: true, prefix }
    }

    /// The lines of standard input.
    pub(super) fn stdin(prefix: Option<String>) -> Source {
        let lines = read("standard input".to_owned(), || BufReader::new(std::io::stdin()));
        Source { lines, total: None, single: false, prefix }
    }

    /// The lines of a file. It is read twice: once for its hash, which names the lines unless `prefix` does. What is
    /// appended meanwhile is left for the next time.
    pub(super) fn file(path: &Path, topic: &TopicName, prefix: Option<String>) -> Result<Source, Failure> {
        let name = path.display().to_string();
        let failed = |error: std::io::Error| Failure::Usage(format!("read {name}: {error}"));
        let mut file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if metadata.is_dir() {
            return Err(Failure::Usage(format!("{name} is a directory")));
        }
        if !metadata.is_file() {
            // A pipe can be read only once.
            let lines = read(name, move || BufReader::new(file));
            return Ok(Source { lines, total: None, single: false, prefix });
        }
        let survey = survey(&mut file, topic).map_err(failed)?;
        file.rewind().map_err(failed)?;
        let lines = read(name, move || BufReader::new(file.take(survey.bytes)));
        let prefix = prefix.unwrap_or_else(|| format!("file-{}", text::hex(&survey.hash[..HASH_BYTES])));
        Ok(Source { lines, total: Some(survey.lines), single: false, prefix: Some(prefix) })
    }

    /// The id of a line; none is a new one each time.
    pub(super) fn id(&self, line: u64) -> Option<String> {
        let prefix = self.prefix.as_ref()?;
        Some(if self.single { prefix.clone() } else { format!("{prefix}:{line}") })
    }

    /// Whether publishing it again makes no doubles.
    pub(super) fn repeats(&self) -> bool {
        self.prefix.is_some() && !self.single
    }
}

/// What the first reading of a file finds.
struct Survey {
    hash: [u8; 32],
    bytes: u64,
    lines: u64,
}

/// The hash is of the topic as well: one file in two topics is two sets of messages.
fn survey(file: &mut File, topic: &TopicName) -> std::io::Result<Survey> {
    let mut hash = Sha256::new();
    hash.update(topic.as_str());
    hash.update([0]);
    let (mut bytes, mut lines, mut last) = (0, 0, b'\n');
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => &buffer[..read],
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        hash.update(read);
        bytes += read.len() as u64;
        lines += read.iter().filter(|byte| **byte == b'\n').count() as u64;
        last = read.last().copied().unwrap_or(last);
    }
    Ok(Survey { hash: hash.finalize().into(), bytes, lines: lines + u64::from(last != b'\n') })
}

/// Reads lines on a thread of its own. Nobody waits for that thread: it may sit on a terminal for ever.
fn read<R: BufRead>(
    name: String,
    open: impl FnOnce() -> R + Send + 'static,
) -> mpsc::Receiver<Result<Line, Failure>> {
    let (told, lines) = mpsc::channel(READ_AHEAD);
    std::thread::spawn(move || {
        let mut reader = open();
        for number in 1.. {
            let line = match next_line(&mut reader) {
                Ok(None) => return,
                Ok(Some(bytes)) if bytes.len() > LINE_BYTES => {
                    Err(Failure::Usage(format!("line {number} of {name} is longer than {LINE_BYTES} bytes")))
                }
                Ok(Some(bytes)) => Ok(Line { number, bytes }),
                Err(error) => Err(Failure::Failed(format!("read line {number} of {name}: {error}"))),
            };
            let last = line.is_err();
            if told.blocking_send(line).is_err() || last {
                return;
            }
        }
    });
    lines
}

/// The next line without its end; one that is too long is cut where that shows.
fn next_line(reader: &mut impl BufRead) -> std::io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    if reader.take(LINE_BYTES as u64 + 2).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
        if line.last() == Some(&b'\r') {
            line.pop();
        }
    }
    Ok(Some(line))
}

/// Reads a prefix of ids; together with the largest line number it is still an id.
pub(super) fn prefix(text: &str) -> Result<String, String> {
    match format!("{text}:{}", u64::MAX).parse::<ClientMessageId>() {
        Ok(_) if !text.is_empty() => Ok(text.to_owned()),
        _ => Err("a prefix is 1 to 107 printable ASCII characters and does not start with 'run:'".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_ends_where_a_person_would_say() {
        let mut reader = BufReader::new(&b"a\n\nb\r\nc\xff"[..]);
        let mut lines = Vec::new();
        while let Some(line) = next_line(&mut reader).unwrap() {
            lines.push(line);
        }
        assert_eq!(lines, [&b"a"[..], b"", b"b", b"c\xff"]);
    }

    #[test]
    fn ids_follow_from_content_and_topic() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("lines");
        let of = |content: &str, topic: &str| {
            std::fs::write(&path, content).unwrap();
            let source = Source::file(&path, &topic.parse().unwrap(), None).unwrap();
            (source.id(2).unwrap(), source.total.unwrap())
        };
        let (id, total) = of("one\ntwo", "jobs");
        assert!(id.ends_with(":2") && total == 2, "{id} {total}");
        assert_eq!(of("one\ntwo", "jobs").0, id);
        assert_ne!(of("one\ntwo\n", "jobs").0, id);
        assert_ne!(of("one\ntwo", "builds").0, id);
        assert_eq!(of("", "jobs").1, 0);
    }

    #[test]
    fn a_prefix_leaves_room_for_the_number() {
        assert!(prefix("night-1").is_ok() && prefix(&"x".repeat(107)).is_ok());
        for bad in ["", "run:", "ä", &"x".repeat(108)] {
            assert!(prefix(bad).is_err(), "{bad}");
        }
    }
}
