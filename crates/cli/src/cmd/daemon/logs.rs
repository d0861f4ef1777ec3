//! `tenure daemon logs`: what the daemon wrote down.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use clap::Args as ClapArgs;

use super::log;
use crate::exit::Failure;
use crate::home::Home;
use crate::output::{emit, line};
use crate::signals::interruptible;

/// How often a log that is followed is looked at.
const LOOK: Duration = Duration::from_millis(200);

/// Print the end of the daemon's log, whether or not it runs.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Stay, and print what is added
    #[arg(short, long)]
    follow: bool,
    /// How many lines of what is there: -n 0 for none
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    lines: u32,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    interruptible(async |mut signals| {
        let home = Home::find()?;
        let path = log::path(home.path());
        let cannot = |error| Failure::Failed(format!("read {}: {error}", path.display()));
        let mut tail = match Tail::open(&path) {
            Ok(tail) => tail,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let text = format!("there is no log at {}: no daemon was started here", path.display());
                return Err(Failure::Failed(text));
            }
            Err(error) => return Err(cannot(error)),
        };
        let mut last = VecDeque::new();
        let keep = |lines: &mut VecDeque<String>, line: String| {
            lines.push_back(line);
            if lines.len() > args.lines as usize {
                lines.pop_front();
            }
        };
        if let Ok(mut before) = Tail::open(&log::previous(home.path())) {
            before.read(|line| keep(&mut last, line)).map_err(cannot)?;
        }
        tail.read(|line| keep(&mut last, line)).map_err(cannot)?;
        let mut open = last.iter().all(|line| show(line));
        while args.follow && open {
            // Both are cancel-safe: they only wait.
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                () = signals.recv() => break,
            }
            // Asked first: one that is replaced gets no more lines, so that reading it is reading all of it.
            let replaced = tail.is_replaced(&path);
            tail.read(|line| open &= show(&line)).map_err(cannot)?;
            if replaced {
                tail = Tail::open(&path).map_err(cannot)?;
            }
        }
        Ok(())
    })
}

/// Prints a line; whether anybody reads.
fn show(text: &str) -> bool {
    emit(line(text).as_bytes()).is_ok()
}

/// A file that is read on.
struct Tail {
    file: BufReader<File>,
    inode: u64,
    /// What has no end yet.
    begun: Vec<u8>,
}

impl Tail {
    fn open(path: &Path) -> std::io::Result<Tail> {
        let file = File::open(path)?;
        let inode = file.metadata()?.ino();
        Ok(Tail { file: BufReader::new(file), inode, begun: Vec::new() })
    }

    /// Gives every line that has an end.
    fn read(&mut self, mut each: impl FnMut(String)) -> std::io::Result<()> {
        // What was at the end before may not be the end any more.
        let place = self.file.stream_position()?;
        self.file.seek(SeekFrom::Start(place))?;
        while self.file.read_until(b'\n', &mut self.begun)? > 0 {
            if self.begun.ends_with(b"\n") {
                self.begun.pop();
                each(String::from_utf8_lossy(&std::mem::take(&mut self.begun)).into_owned());
            }
        }
        Ok(())
    }

    fn is_replaced(&self, path: &Path) -> bool {
        std::fs::metadata(path).is_ok_and(|now| now.ino() != self.inode)
    }
}
