//! The daemon's log: one file and the one before it, so that it never grows past a bound.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::MakeWriterExt;

use super::config::Checked;
use crate::exit::Failure;
use crate::log::{Lossy, start as begin, tell_panics};

/// Bytes after which a new file is begun; there are two.
const LOG_BYTES: u64 = 8 * 1024 * 1024;

/// Where the log is.
pub(super) fn path(home: &Path) -> PathBuf {
    home.join("daemon.log")
}

/// Where the log before it is.
pub(super) fn previous(home: &Path) -> PathBuf {
    home.join("daemon.log.1")
}

/// Opens the log to add to it; only its owner can read it.
pub(super) fn open(home: &Path) -> io::Result<File> {
    DirBuilder::new().recursive(true).mode(0o700).create(home)?;
    OpenOptions::new().create(true).append(true).mode(0o600).open(path(home))
}

/// A log that begins anew when it is long enough.
#[derive(Debug)]
pub(super) struct LogFile {
    home: PathBuf,
    file: File,
    bytes: u64,
    most: u64,
}

impl LogFile {
    pub(super) fn open(home: &Path) -> io::Result<LogFile> {
        LogFile::bounded(home, LOG_BYTES)
    }

    fn bounded(home: &Path, most: u64) -> io::Result<LogFile> {
        let file = open(home)?;
        let bytes = file.metadata()?.len();
        Ok(LogFile { home: home.to_owned(), file, bytes, most })
    }

    fn begin_anew(&mut self) -> io::Result<()> {
        match std::fs::rename(path(&self.home), previous(&self.home)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            // It is not there any more if a new file could not be opened the last time.
            Ok(()) | Err(_) => {}
        }
        self.file = open(&self.home)?;
        self.bytes = 0;
        Ok(())
    }
}

/// A line is written at once, so that none is torn between two files.
impl Write for LogFile {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.bytes > 0 && self.bytes + line.len() as u64 > self.most {
            self.begin_anew()?;
        }
        let written = self.file.write(line)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Logs to the file, and to stderr as well if somebody is there.
pub(super) fn start(checked: &Checked, stderr: bool) -> Result<(), Failure> {
    let home = &checked.config.home;
    let filter = EnvFilter::try_new(&checked.log)
        .map_err(|error| Failure::Usage(format!("log filter {:?}: {error}", checked.log)))?;
    let file = LogFile::open(home)
        .map_err(|error| Failure::Failed(format!("open {}: {error}", path(home).display())))?;
    let (json, lost) = (checked.log_json, &checked.config.log_lines_lost);
    let file = Lossy::new(file, json, Arc::clone(lost));
    let beside = || Lossy::new(io::stderr(), json, Arc::clone(lost));
    let log = tracing_subscriber::fmt()
        .log_internal_errors(false)
        .with_env_filter(filter)
        .with_target(false)
        .with_ansi(false);
    let started = match (stderr, json) {
        (true, true) => begin(log.with_writer(file.and(beside())).json().flatten_event(true).finish()),
        (true, false) => begin(log.with_writer(file.and(beside())).finish()),
        (false, true) => begin(log.with_writer(file).json().flatten_event(true).finish()),
        (false, false) => begin(log.with_writer(file).finish()),
    };
    started.map_err(|error| Failure::Failed(format!("start the log: {error}")))?;
    tell_panics();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_two_files_of_whole_lines_and_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = LogFile::bounded(dir.path(), 100).unwrap();
        for n in 0..100 {
            log.write_all(format!("line {n:02}\n").as_bytes()).unwrap();
        }
        let read = |path: PathBuf| std::fs::read_to_string(path).unwrap();
        let (now, before) = (read(path(dir.path())), read(previous(dir.path())));
        assert!(now.len() <= 100 && before.len() <= 100);
        let all = before + &now;
        assert!(all.ends_with("line 98\nline 99\n") && all.lines().all(|line| line.len() == 7), "{all}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_log_whose_next_file_could_not_be_opened_begins_it_later() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = LogFile::bounded(dir.path(), 10).unwrap();
        log.write_all(b"line 00\n").unwrap();
        // As far as it came before the disk was full.
        std::fs::rename(path(dir.path()), previous(dir.path())).unwrap();
        log.write_all(b"line 01\n").unwrap();
        assert_eq!(std::fs::read(path(dir.path())).unwrap(), b"line 01\n");
        assert_eq!(std::fs::read(previous(dir.path())).unwrap(), b"line 00\n");
    }
}
