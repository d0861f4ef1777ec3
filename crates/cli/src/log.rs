//! What every log of ours keeps out, whatever its filter says; and that a log which cannot be written stops nobody.

use std::io::{self, ErrorKind, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

/// Libraries that print the bytes they carry, tokens among them, when they are asked for details.
const CARRIERS: [&str; 6] = ["tungstenite", "tokio_tungstenite", "hyper", "h2", "rustls", "yamux"];

/// Makes this the log of the process.
pub(crate) fn start(log: impl Subscriber + Send + Sync + 'static) -> Result<(), TryInitError> {
    guarded(log).try_init()
}

/// The same log without what carriers say below info. A filter can be made to name a part of a library, so this is none
/// of its directives.
fn guarded(log: impl Subscriber + Send + Sync + 'static) -> impl Subscriber + Send + Sync + 'static {
    log.with(filter_fn(is_fit))
}

fn is_fit(what: &Metadata<'_>) -> bool {
    let library = what.target().split("::").next().unwrap_or_default();
    *what.level() <= Level::INFO || !CARRIERS.contains(&library)
}

/// Where lines go, as far as they can: one that cannot be written (a full disk, a pipe that nobody reads) is no error to
/// whoever logs, because none of them could do anything about it. It is counted, and the next line that can be written tells.
#[derive(Debug)]
pub(crate) struct Lossy<W>(Arc<Mutex<Place<W>>>);

#[derive(Debug)]
struct Place<W> {
    to: W,
    json: bool,
    /// Lines that were lost, for others to look at.
    lost: Arc<AtomicU64>,
    /// Of those, lines that this log has not told of.
    untold: u64,
    /// Whether the last line broke off.
    torn: bool,
}

impl<W: Write> Lossy<W> {
    /// A log to `to` that counts in `lost` what it loses, and tells of it in JSON or as text.
    pub(crate) fn new(to: W, json: bool, lost: Arc<AtomicU64>) -> Lossy<W> {
        Lossy(Arc::new(Mutex::new(Place { to, json, lost, untold: 0, torn: false })))
    }
}

impl<W: Write> Place<W> {
    fn line(&mut self, line: &[u8]) {
        let mut text = Vec::with_capacity(line.len());
        if self.torn {
            text.push(b'\n');
        }
        text.extend(self.told().as_bytes());
        text.extend(line);
        let written = self.write(&text);
        if written == text.len() {
            (self.untold, self.torn) = (0, false);
        } else {
            self.lost.fetch_add(1, Ordering::Relaxed);
            self.untold = self.untold.saturating_add(1);
            self.torn |= written > 0;
        }
    }

    /// Writes as much as can be written: how many bytes that were.
    fn write(&mut self, text: &[u8]) -> usize {
        let mut written = 0;
        while let Some(rest) = text.get(written..).filter(|rest| !rest.is_empty()) {
            match self.to.write(rest) {
                Ok(0) => break,
                Ok(more) => written += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        written
    }

    /// The line that tells of what was lost before it, if anything was.
    fn told(&self) -> String {
        let lines = self.untold;
        if lines == 0 {
            return String::new();
        }
        let mut at = String::new();
        // It fails only if the text does, which it cannot.
        let _ = SystemTime.format_time(&mut format::Writer::new(&mut at));
        match self.json {
            true => format!(
                "{}\n",
                json!({"timestamp": at, "level": "WARN", "event": "log_lines_lost", "lines": lines})
            ),
            false => format!("{at}  WARN event=\"log_lines_lost\" lines={lines}\n"),
        }
    }
}

/// A line comes at once, as [`tracing_subscriber::fmt`] writes it.
impl<W: Write> Write for Lossy<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).line(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a, W: Write> MakeWriter<'a> for Lossy<W> {
    type Writer = Lossy<W>;

    fn make_writer(&'a self) -> Lossy<W> {
        Lossy(Arc::clone(&self.0))
    }
}

/// Has panics told in the log as well: of a daemon in the background nobody sees stderr.
pub(crate) fn tell_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tracing::error!(event = "panicked", reason = panic.to_string());
        usual(panic);
    }));
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use tracing_subscriber::EnvFilter;

    use super::*;

    #[derive(Clone, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl Write for Page {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn no_filter_makes_a_library_print_what_it_carries() {
        for filter in ["trace", "tungstenite=trace", "info,tungstenite::protocol=trace,hyper=debug,h2=trace"]
        {
            let page = Page::default();
            let writer = page.clone();
            let log = tracing_subscriber::fmt()
                .with_env_filter(EnvFilter::try_new(filter).unwrap())
                .with_writer(move || writer.clone());
            tracing::subscriber::with_default(guarded(log.finish()), || {
                tracing::trace!(target: "tungstenite::protocol", "s3cret");
                tracing::debug!(target: "tokio_tungstenite", "s3cret");
                tracing::debug!(target: "hyper::proto::h1", "s3cret");
                tracing::trace!(target: "h2::codec", "s3cret");
                tracing::debug!(target: "rustls::client::hs", "s3cret");
                tracing::trace!(target: "yamux::connection", "s3cret");
                tracing::warn!(target: "tungstenite::protocol", "a warning");
                tracing::trace!(target: "tenure_broker::socket", "ours");
                tracing::trace!(target: "hyperion", "another's");
            });
            let text = String::from_utf8(page.0.lock().unwrap().clone()).unwrap();
            assert!(!text.contains("s3cret"), "{filter}: {text}");
            assert!(text.contains("a warning"), "{filter}: {text}");
            let all = filter == "trace";
            assert_eq!((text.contains("ours"), text.contains("another's")), (all, all), "{filter}: {text}");
        }
    }

    /// A disk with room for so many bytes.
    #[derive(Clone, Default)]
    struct Disk(Arc<Mutex<(Vec<u8>, usize)>>);

    impl Disk {
        fn give(&self, bytes: usize) {
            self.0.lock().unwrap().1 += bytes;
        }

        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().0.clone()).unwrap()
        }
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let mut disk = self.0.lock().unwrap();
            let room = disk.1.min(bytes.len());
            if room == 0 {
                return Err(ErrorKind::StorageFull.into());
            }
            disk.1 -= room;
            disk.0.extend(&bytes[..room]);
            Ok(room)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted_and_told_of_and_no_error() {
        for json in [false, true] {
            let (disk, lost) = (Disk::default(), Arc::new(AtomicU64::new(0)));
            let mut log = Lossy::new(disk.clone(), json, lost.clone());
            disk.give(10);
            for line in ["whole\n", "a torn one\n", "a lost one\n"] {
                log.write_all(line.as_bytes()).unwrap();
            }
            assert_eq!((disk.text().as_str(), lost.load(Ordering::Relaxed)), ("whole\na to", 2));
            disk.give(1_000);
            for line in ["later\n", "last\n"] {
                log.write_all(line.as_bytes()).unwrap();
            }
            let text = disk.text();
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!(
                (lines[..2].to_vec(), lines[3..].to_vec()),
                (vec!["whole", "a to"], vec!["later", "last"])
            );
            if json {
                let told: Value = serde_json::from_str(lines[2]).unwrap();
                assert_eq!((&told["event"], &told["lines"]), (&json!("log_lines_lost"), &json!(2)));
            } else {
                assert!(lines[2].ends_with("Z  WARN event=\"log_lines_lost\" lines=2"), "{text}");
            }
            assert_eq!(lost.load(Ordering::Relaxed), 2);
        }
    }
}
