use super::*;
use crate::durable::wal::{FRAME_HEAD_BYTES, HEADER_BYTES, Header, Order, Scanner};

const PAGE: usize = 512;

/// A log as SQLite writes it: `commits` transactions of `pages` frames each.
fn log(commits: u32, pages: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [0x377f_0682u32, 3_007_000, PAGE as u32, 1, 77, 4_242] {
        bytes.extend_from_slice(&word.to_be_bytes());
    }
    let mut sum = checksum(Order::Little, (0, 0), &bytes);
    bytes.extend_from_slice(&sum.0.to_be_bytes());
    bytes.extend_from_slice(&sum.1.to_be_bytes());
    for frame in 0..commits * pages {
        let size = if frame % pages == pages - 1 { 9u32 } else { 0 };
        let mut head = Vec::new();
        for word in [frame + 1, size, 77, 4_242] {
            head.extend_from_slice(&word.to_be_bytes());
        }
        let page = [frame as u8 | 1; PAGE];
        sum = checksum(Order::Little, checksum(Order::Little, sum, &head[..8]), &page);
        head.extend_from_slice(&sum.0.to_be_bytes());
        head.extend_from_slice(&sum.1.to_be_bytes());
        bytes.extend(head);
        bytes.extend(page);
    }
    bytes
}

fn scan(bytes: &[u8]) -> LogState {
    let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else { return LogState::Absent };
    let mut scanner = Scanner::new(header, PAGE as u32);
    let frames = bytes[HEADER_BYTES..].chunks_exact(FRAME_HEAD_BYTES + PAGE);
    let rest = frames.remainder().len() as u64;
    for frame in frames {
        scanner.frame(frame.first_chunk().unwrap(), &frame[FRAME_HEAD_BYTES..]);
    }
    scanner.finish(rest)
}

fn at(frame: usize) -> usize {
    HEADER_BYTES + frame * (FRAME_HEAD_BYTES + PAGE)
}

#[test]
fn a_bit_anywhere_but_in_the_unsynced_end_is_damage() {
    let whole = log(10, 3);
    assert_eq!(scan(&whole), LogState::Whole);
    for frame in 0..30 {
        // In the page, in the salts, in the stored checksum.
        for byte in [100, 9, 17] {
            let mut bytes = whole.clone();
            bytes[at(frame) + byte] ^= 4;
            let state = scan(&bytes);
            let damaged = matches!(state, LogState::Damaged { .. });
            // The last two transactions may be unsynced; a bad checksum also spoils the frame behind it.
            if frame < 30 - 3 * 3 {
                assert!(damaged, "frame {frame} byte {byte}: {state:?}");
            } else if frame >= 30 - 2 * 3 {
                assert!(!damaged, "frame {frame} byte {byte}: {state:?}");
            }
        }
    }
    let mut bytes = whole.clone();
    bytes[20] ^= 1;
    assert_eq!(scan(&bytes), LogState::BadHeader { commits: 10 }, "only the first frame cannot be checked");
}

#[test]
fn every_cut_and_every_mixture_of_the_last_two_transactions_is_a_torn_end() {
    let whole = log(6, 2);
    for length in HEADER_BYTES..=whole.len() {
        let state = scan(&whole[..length]);
        assert!(matches!(state, LogState::Whole | LogState::TornTail), "cut to {length}: {state:?}");
    }
    // Each of the last four frames is there or not, as zeros or as what was there before.
    for which in 0..16u32 {
        for old in [0u8, 0xa5] {
            let mut bytes = whole.clone();
            for frame in (0..4).filter(|frame| which & 1 << frame != 0) {
                bytes[at(8 + frame)..at(9 + frame)].fill(old);
            }
            let state = scan(&bytes);
            assert!(!matches!(state, LogState::Damaged { .. }), "{which:04b}: {state:?}");
        }
    }
}

#[test]
fn what_an_earlier_use_of_the_file_has_left_is_not_looked_at() {
    let mut bytes = log(10, 2);
    for frame in 4..20 {
        // Another salt, with checksums of their own.
        bytes[at(frame) + 8..at(frame) + 12].copy_from_slice(&76u32.to_be_bytes());
    }
    assert_eq!(scan(&bytes), LogState::Whole);
}

fn ledger(writes: u64, messages: u64) -> Ledger {
    Ledger { store: [7; 16], writes, messages }
}

fn evidence(mark: Option<Ledger>, found: Option<Ledger>, log: LogState) -> Evidence {
    let mark = mark.map_or(MarkState::Absent, |ledger| MarkState::Read(Mark { ledger, ..Mark::default() }));
    Evidence { mark, marked: mark != MarkState::Absent, ledger: found, log, ..Evidence::default() }
}

#[test]
fn a_mark_reads_as_it_was_written_or_not_at_all() {
    let ledger = Ledger { store: [9; 16], writes: u64::MAX, messages: 3 };
    for overwritten in [false, true] {
        let mark = Mark { ledger, poisoned: !overwritten, overwritten };
        assert_eq!(Mark::decode(&mark.encode(12)), Some((12, mark)));
    }
    let bytes = Mark { ledger, poisoned: true, overwritten: true }.encode(12);
    for bit in 0..MARK_BYTES * 8 {
        let mut flipped = bytes;
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(Mark::decode(&flipped), None, "bit {bit}");
    }
    assert_eq!(Mark::decode(&[0; MARK_BYTES]), None);
    assert_eq!(Mark::decode(&bytes[..63]), None);
}

#[test]
fn what_is_behind_its_mark_has_lost_that_much() {
    let mark = Some(ledger(3_000, 2_990));
    let lost = |found, log| judge(&evidence(mark, found, log)).unwrap_err();
    let half = lost(Some(ledger(1_740, 1_730)), LogState::TornTail);
    assert_eq!(half, Loss { cause: LossCause::EndMissing, writes: Some(1_260), messages: Some(1_260) });
    assert!(half.to_string().ends_with("1260 accepted messages and 1260 writes are missing"), "{half}");
    let header = lost(Some(ledger(0, 0)), LogState::BadHeader { commits: 2_999 });
    assert_eq!((header.cause, header.messages), (LossCause::LogHeaderDamaged, Some(2_990)));
    assert_eq!(lost(None, LogState::Absent).cause, LossCause::DatabaseGone);
    let other = Ledger { store: [8; 16], ..ledger(9_000, 9_000) };
    assert_eq!(lost(Some(other), LogState::Whole).cause, LossCause::DatabaseReplaced);
    let bit = lost(Some(ledger(1_740, 1_730)), LogState::Damaged { commits_behind: 1_300 });
    assert_eq!((bit.cause, bit.writes), (LossCause::LogDamaged, Some(1_300)));
}

#[test]
fn what_a_crash_leaves_is_sound() {
    for log in [LogState::Absent, LogState::Whole, LogState::TornTail] {
        for mark in [None, Some(ledger(10, 5)), Some(ledger(0, 0))] {
            for found in [ledger(10, 5), ledger(11, 5), ledger(12, 7)] {
                assert_eq!(judge(&evidence(mark, Some(found), log)), Ok(()));
            }
        }
        assert_eq!(judge(&evidence(None, None, log)), Ok(()), "new, or of an older program");
    }
    let restarted = evidence(Some(ledger(10, 5)), Some(ledger(10, 5)), LogState::BadHeader { commits: 4 });
    assert_eq!(judge(&restarted), Ok(()), "all that the log held had been copied");
}

#[test]
fn without_a_mark_the_log_speaks_alone() {
    let damaged = judge(&evidence(None, Some(ledger(4, 4)), LogState::Damaged { commits_behind: 8 }));
    assert_eq!(damaged.unwrap_err().writes, Some(8));
    assert!(judge(&evidence(None, None, LogState::BadHeader { commits: 3 })).is_err());
    assert!(judge(&evidence(None, None, LogState::BadHeader { commits: 0 })).is_ok());
}

#[test]
fn a_mark_that_is_missing_or_does_not_read_leaves_it_open() {
    let whole = |mark, marked, writes| {
        let (ledger, log) = (Some(ledger(writes, 0)), LogState::Whole);
        let evidence = Evidence { mark, marked, ledger, log, ..Evidence::default() };
        judge(&evidence).map_err(|loss| loss.cause)
    };
    assert_eq!(whole(MarkState::Absent, true, 4), Err(LossCause::MarkGone));
    assert_eq!(whole(MarkState::Absent, true, 0), Ok(()), "nothing was acknowledged");
    let backup = Evidence { marked: true, ledger: Some(ledger(4, 4)), ..Evidence::default() };
    assert_eq!(judge(&backup), Ok(()), "a backup of the database alone");
    assert_eq!(whole(MarkState::Absent, false, 4), Ok(()), "of an older program");
    assert_eq!(whole(MarkState::Damaged, false, 4), Err(LossCause::MarkDamaged));
    assert_eq!(whole(MarkState::Damaged, true, 0), Err(LossCause::MarkDamaged));
    let bit = LogState::Damaged { commits_behind: 8 };
    let bit = Evidence { mark: MarkState::Damaged, log: bit, ..backup };
    assert_eq!(judge(&bit).unwrap_err().cause, LossCause::LogDamaged, "what is known of the log says more");
    let two_minds = Mark { ledger: ledger(4, 4), poisoned: true, overwritten: true };
    assert_eq!(whole(MarkState::Read(two_minds), true, 4), Err(LossCause::Overwritten), "it reads, and yet");
    assert_eq!(
        whole(MarkState::Read(two_minds), true, 3),
        Err(LossCause::EndMissing),
        "what can be counted is"
    );
    let gone = Loss { cause: LossCause::MarkGone, writes: None, messages: None };
    assert!(gone.to_string().contains("cannot be told"), "{gone}");
}

#[test]
fn a_file_and_a_log_that_are_not_of_one_history_are_told() {
    let pair = |base, from, end| Evidence {
        base: Some(base),
        log_from: Some(from),
        ..evidence(Some(ledger(20, 15)), Some(end), LogState::Whole)
    };
    let cause = |evidence: &Evidence| judge(evidence).map_err(|loss| loss.cause);
    // The log was begun when the file was at 9; a part of it was copied since, or all of it.
    for base in [9, 10, 15, 20] {
        assert_eq!(cause(&pair(ledger(base, base), ledger(10, 9), ledger(20, 15))), Ok(()));
    }
    let older = pair(ledger(8, 8), ledger(10, 9), ledger(20, 15));
    let lost = Loss { cause: LossCause::FileBehindLog, writes: Some(12), messages: Some(7) };
    assert_eq!((judge(&older), judge_files(&older)), (Err(lost.clone()), Err(lost)));
    let other = Ledger { store: [8; 16], ..ledger(15, 15) };
    let other = pair(other, ledger(10, 9), ledger(20, 15));
    assert_eq!(judge(&other), Err(Loss { cause: LossCause::FileBehindLog, writes: None, messages: None }));
    assert_eq!(cause(&Evidence { mark: MarkState::Absent, ..other }), Err(LossCause::FileBehindLog));
    let newer = pair(ledger(20, 15), ledger(10, 9), ledger(14, 12));
    let lost = Loss { cause: LossCause::LogBehindFile, writes: Some(0), messages: Some(0) };
    assert_eq!((judge(&newer), judge_files(&newer)), (Err(lost), Ok(())));
    let damaged = Evidence { log: LogState::Damaged { commits_behind: 6 }, ..newer };
    assert_eq!(cause(&damaged), Err(LossCause::LogDamaged), "what is known of the log says more");
    assert_eq!(damaged.mismatch(), Some(LossCause::LogBehindFile));
    // What does not read says nothing: a copy that was interrupted leaves that.
    assert_eq!(cause(&Evidence { base: None, ..older }), Ok(()));
    assert_eq!(cause(&Evidence { log_from: None, ..older }), Ok(()));
}

#[test]
fn a_ledger_is_read_from_its_page_or_not_at_all() {
    // As SQLite writes it: one row at the end of the page, of a number that is kept elsewhere, a store, 513, 5 and 1.
    let row = [&[25, 1, 6, 0, 44, 2, 1, 9][..], &[7; 16], &[2, 1, 5]].concat();
    let at = PAGE - row.len();
    let mut page = vec![0; PAGE];
    page[..10].copy_from_slice(&[13, 0, 0, 0, 1, 0, at as u8, 0, (at >> 8) as u8, at as u8]);
    page[at..].copy_from_slice(&row);
    assert_eq!(usize::from(row[0]), row.len() - 2, "its length");
    assert_eq!(ledger_on(&page), Some(ledger(513, 5)));
    for (byte, other) in
        [(0, 5), (4, 2), (8, 0xff), (at, 90), (at, 3), (at + 1, 2), (at + 2, 2), (at + 4, 46)]
    {
        let mut bad = page.clone();
        bad[byte] = other;
        assert_eq!(ledger_on(&bad), None, "byte {byte}");
    }
    for length in 0..page.len() {
        assert_eq!(ledger_on(&page[..length]), None, "cut to {length}");
    }
}

#[test]
fn the_header_of_a_log_that_begins_anew_follows_the_one_before_and_no_other_does() {
    let header = |salt: u32| {
        let mut bytes = log(1, 1)[..HEADER_BYTES].to_vec();
        bytes[16..20].copy_from_slice(&salt.to_be_bytes());
        let sum = checksum(Order::Little, (0, 0), &bytes[..24]);
        bytes[24..28].copy_from_slice(&sum.0.to_be_bytes());
        bytes[28..].copy_from_slice(&sum.1.to_be_bytes());
        Header::read(bytes.first_chunk().unwrap()).unwrap()
    };
    let first = header(77);
    assert_eq!(first.page_bytes(), PAGE as u64);
    assert!(first.follows(&first) && header(78).follows(&first) && header(99).follows(&first));
    assert!(header(3).follows(&header(u32::MAX)), "the count goes round");
    assert!(!header(76).follows(&first), "an older copy");
    assert!(!header(77 + 1_000_000_000).follows(&first), "another log");
    let bytes = log(1, 1);
    for byte in 0..HEADER_BYTES {
        let mut bad: [u8; HEADER_BYTES] = *bytes.first_chunk().unwrap();
        bad[byte] ^= 1;
        assert_eq!(Header::read(&bad), None, "byte {byte}");
    }
    assert_eq!(Header::read(&[0; HEADER_BYTES]), None);
}
