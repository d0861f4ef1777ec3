//! Whether a store lost acknowledged data: the rule that compares its high-water mark with what a start finds.
//!
//! A store counts its transactions and its messages in a row of its own, the [`Ledger`], in the same transaction. After
//! each sync the count is also written to a small file beside the database, the [`Mark`]. So the mark never claims more
//! than what is on the disk, and a database whose ledger is behind its mark has lost something. The write-ahead log
//! itself says more ([`wal`]): good frames behind a bad one are damage, nothing behind it is the torn end of a crash.
//!
//! A log belongs to one main file. It is begun when all before it was copied into that file, and every transaction since then is in
//! it. So a file that is behind the beginning of its log is an older copy, or another store's. What reads over it may be
//! any mixture; and once such a log is copied into it, the log is lost too.
//!
//! What it never does: read a file, or repair one. The store and the daemon's outbox do that.

mod row;
pub mod wal;

use std::fmt;

use crate::mutant::{self, Mutant};
pub use row::ledger_on;
use wal::{LogState, checksum};

/// How far a database has come. Both counts only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Random, made with the database: another database has another one.
    pub store: [u8; 16],
    /// Transactions that were committed.
    pub writes: u64,
    /// Messages that were accepted.
    pub messages: u64,
}

/// The ledger as of the last sync, kept outside of the database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// What was on the disk.
    pub ledger: Ledger,
    /// A sync failed in the process that wrote it: what the system shows of the log may not be on the disk.
    pub poisoned: bool,
    /// Somebody else wrote over the database or its log while that process used them: they may read and yet be of two minds.
    pub overwritten: bool,
}

/// Bytes of an encoded mark.
pub const MARK_BYTES: usize = 64;
const MAGIC: &[u8; 8] = b"TNURMRK1";
const POISONED: u64 = 1;
const OVERWRITTEN: u64 = 2;

impl Mark {
    /// The mark as the slot with this number: the larger number is the newer slot.
    pub fn encode(&self, number: u64) -> [u8; MARK_BYTES] {
        let mut bytes = [0; MARK_BYTES];
        let flag = |is: bool, flag: u64| if is { flag } else { 0 };
        let flags = flag(self.poisoned, POISONED) | flag(self.overwritten, OVERWRITTEN);
        let numbers = [number, flags, self.ledger.writes, self.ledger.messages];
        bytes[..8].copy_from_slice(MAGIC);
        for (place, number) in bytes[8..40].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes[40..56].copy_from_slice(&self.ledger.store);
        let sum = checksum(wal::NATIVE_LITTLE, (0, 0), &bytes[..56]);
        bytes[56..60].copy_from_slice(&sum.0.to_le_bytes());
        bytes[60..].copy_from_slice(&sum.1.to_le_bytes());
        bytes
    }

    /// The mark in a slot, and its number; nothing if it does not match its checksum.
    pub fn decode(bytes: &[u8]) -> Option<(u64, Mark)> {
        let bytes: &[u8; MARK_BYTES] = bytes.get(..MARK_BYTES)?.try_into().ok()?;
        let word =
            |at: usize| bytes[at..at + 4].iter().rev().fold(0u32, |word, byte| word << 8 | u32::from(*byte));
        let number = |at: usize| u64::from(word(at + 4)) << 32 | u64::from(word(at));
        let sum = checksum(wal::NATIVE_LITTLE, (0, 0), &bytes[..56]);
        if &bytes[..8] != MAGIC || sum != (word(56), word(60)) {
            return None;
        }
        let store = bytes[40..56].try_into().ok()?;
        let ledger = Ledger { store, writes: number(24), messages: number(32) };
        let is = |flag: u64| number(16) & flag != 0;
        Some((number(8), Mark { ledger, poisoned: is(POISONED), overwritten: is(OVERWRITTEN) }))
    }
}

/// Acknowledged data that is not there any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// What is wrong with the files.
    pub cause: LossCause,
    /// Transactions that are missing, at least; nothing when nobody can count them.
    pub writes: Option<u64>,
    /// Accepted messages among them, at least; nothing when nobody can count them.
    pub messages: Option<u64>,
}

/// What is wrong with the files of a store that lost something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossCause {
    /// There is no database, or an empty one, or one from before there were marks.
    DatabaseGone,
    /// The database is another one than the mark was written for.
    DatabaseReplaced,
    /// The write-ahead log has good frames behind a bad one.
    LogDamaged,
    /// The log has frames behind a header that does not read.
    LogHeaderDamaged,
    /// The database and its log end before the mark: the log was cut or removed, or the database is an older copy.
    EndMissing,
    /// The log goes on from a later moment than the main file is of, or from another database: that file was put under it.
    FileBehindLog,
    /// The log ends before the main file, into which it was copied: an older log was put beside it, or it was cut.
    LogBehindFile,
    /// The file of the mark is there and does not read.
    MarkDamaged,
    /// There is no mark, and the database says that it had one.
    MarkGone,
    /// Somebody else wrote over the database or its log while they were in use.
    Overwritten,
}

impl LossCause {
    const fn text(self) -> &'static str {
        match self {
            LossCause::DatabaseGone => "the database file is missing, empty or older than its mark",
            LossCause::DatabaseReplaced => "the database file was replaced by another one",
            LossCause::LogDamaged => "the write-ahead log is damaged in the middle",
            LossCause::LogHeaderDamaged => "the header of the write-ahead log is damaged",
            LossCause::EndMissing => {
                "the write-ahead log was cut or removed, or the database is an older copy"
            }
            LossCause::FileBehindLog => {
                "the database file is an older copy than the write-ahead log beside it, or of another store"
            }
            LossCause::LogBehindFile => {
                "the write-ahead log is an older copy than the database file beside it, or was cut"
            }
            LossCause::MarkDamaged => "the file of the high-water mark does not read",
            LossCause::MarkGone => "the file of the high-water mark is missing",
            LossCause::Overwritten => "somebody wrote over the database or its log while they were in use",
        }
    }

    /// Whether something is missing for certain; else nobody can tell any more.
    pub const fn is_certain(self) -> bool {
        !matches!(self, LossCause::MarkDamaged | LossCause::MarkGone | LossCause::Overwritten)
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.cause.text())?;
        if !self.cause.is_certain() {
            return f.write_str("; whether something is missing cannot be told");
        }
        match (self.messages, self.writes) {
            (Some(0), Some(0)) if self.cause == LossCause::LogBehindFile => {
                f.write_str("; nothing is missing without it")
            }
            (Some(messages), Some(writes)) => {
                write!(f, "; {messages} accepted messages and {writes} writes are missing")
            }
            (None, Some(writes)) => write!(f, "; at least {writes} writes are missing, messages among them"),
            _ => f.write_str("; how much is missing cannot be counted"),
        }
    }
}

/// The mark beside a database, as a start finds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MarkState {
    /// There is no such file.
    #[default]
    Absent,
    /// There is a file, and no mark in it reads. No crash leaves that: the file is put in its place whole, and a write
    /// that is torn leaves the mark before it.
    Damaged,
    /// It reads.
    Read(Mark),
}

/// What a start finds before it changes anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// The mark beside the database.
    pub mark: MarkState,
    /// Whether the database says that a mark of it was on the disk. One of an older program, whose mark may never have
    /// been, does not.
    pub marked: bool,
    /// The ledger in the database as it reads with the good part of its log; nothing if there is no database or
    /// it was written before there were ledgers.
    pub ledger: Option<Ledger>,
    /// The ledger in the main file alone, as of the last time that the log was copied into it; nothing if that does not read. A
    /// copy that was interrupted leaves any mixture of the file before and after it.
    pub base: Option<Ledger>,
    /// The ledger as the first transaction in the log left it; nothing if that does not read.
    pub log_from: Option<Ledger>,
    /// The write-ahead log.
    pub log: LogState,
}

impl Evidence {
    /// What is wrong with the main file and the log as a pair, if that can be told. Such a log must not be copied into the file.
    pub fn mismatch(&self) -> Option<LossCause> {
        let base = self.base?;
        // The first transaction of a log follows the last one that was copied.
        let goes_on = |from: Ledger| from.store == base.store && from.writes <= base.writes.saturating_add(1);
        if self.log_from.is_some_and(|from| !goes_on(from)) {
            return Some(LossCause::FileBehindLog);
        }
        // Only what is in the log for good is copied.
        let ends_before = |end: Ledger| end.store == base.store && end.writes < base.writes;
        self.ledger.is_some_and(ends_before).then_some(LossCause::LogBehindFile)
    }

    /// What is lost if the store goes on with the main file alone.
    fn without_log(&self, cause: LossCause) -> Loss {
        let (mark, base) = match (self.mark, self.base) {
            (MarkState::Read(mark), Some(base)) if mark.ledger.store == base.store => (mark.ledger, base),
            _ => return Loss { cause, writes: None, messages: None },
        };
        let writes = Some(mark.writes.saturating_sub(base.writes));
        Loss { cause, writes, messages: Some(mark.messages.saturating_sub(base.messages)) }
    }
}

/// Decides whether a log may be read over its main file: to be asked before SQLite opens them. What reads otherwise is of two
/// databases, or of two moments of one, and says nothing.
pub fn judge_files(evidence: &Evidence) -> Result<(), Loss> {
    match evidence.mismatch() {
        Some(cause @ LossCause::FileBehindLog) => Err(evidence.without_log(cause)),
        _ => Ok(()),
    }
}

/// Decides whether a start finds all that was acknowledged. The safe mistake is to go on: a store that was only cut off by
/// a crash or a loss of power is never refused.
pub fn judge(evidence: &Evidence) -> Result<(), Loss> {
    if mutant::on(Mutant::LogCutUnnoticed) {
        return Ok(());
    }
    judge_files(evidence)?;
    let Evidence { mark, marked, ledger, log, .. } = *evidence;
    if matches!(log, LogState::Whole | LogState::TornTail)
        && let Some(cause) = evidence.mismatch()
    {
        return Err(evidence.without_log(cause));
    }
    let behind = match log {
        LogState::Damaged { commits_behind } => commits_behind,
        _ => 0,
    };
    if let MarkState::Read(Mark { ledger: mark, overwritten, .. }) = mark {
        let Some(found) = ledger else {
            let (writes, messages) = (Some(mark.writes), Some(mark.messages));
            return Err(Loss { cause: LossCause::DatabaseGone, writes, messages });
        };
        if found.store != mark.store {
            return Err(Loss { cause: LossCause::DatabaseReplaced, writes: None, messages: None });
        }
        if found.writes < mark.writes {
            let cause = match log {
                LogState::Damaged { .. } => LossCause::LogDamaged,
                LogState::BadHeader { .. } => LossCause::LogHeaderDamaged,
                _ => LossCause::EndMissing,
            };
            let writes = (mark.writes - found.writes).max(behind);
            let messages = mark.messages.saturating_sub(found.messages);
            return Err(Loss { cause, writes: Some(writes), messages: Some(messages) });
        }
        if overwritten {
            return Err(Loss { cause: LossCause::Overwritten, writes: None, messages: None });
        }
    }
    match log {
        LogState::Damaged { commits_behind } => {
            Err(Loss { cause: LossCause::LogDamaged, writes: Some(commits_behind), messages: None })
        }
        // With a mark that is reached, this is the torn first write of a log whose content was copied before.
        LogState::BadHeader { commits } if commits > 0 && !matches!(mark, MarkState::Read(_)) => {
            Err(Loss { cause: LossCause::LogHeaderDamaged, writes: Some(commits), messages: None })
        }
        _ => missing_mark(mark, marked, ledger, log)
            .map_or(Ok(()), |cause| Err(Loss { cause, writes: None, messages: None })),
    }
}

/// What is wrong with a mark that says nothing: without one the end of the log could have been cut off unnoticed. A
/// database without log and mark is a backup.
fn missing_mark(mark: MarkState, marked: bool, ledger: Option<Ledger>, log: LogState) -> Option<LossCause> {
    let written = marked && ledger.is_some_and(|ledger| ledger.writes > 0);
    match mark {
        MarkState::Damaged => Some(LossCause::MarkDamaged),
        MarkState::Absent if written && log != LogState::Absent => Some(LossCause::MarkGone),
        MarkState::Absent | MarkState::Read(_) => None,
    }
}

#[cfg(test)]
mod tests;
