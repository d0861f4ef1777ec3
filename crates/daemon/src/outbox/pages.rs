//! SQLite's pages read by hand, for when nothing leads to them any more: the rows on every leaf of a table.
//!
//! What is on a page that is free now looks the same, so whoever asks must know which rows there were.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rusqlite::types::Value;

/// Bytes of a page, as SQLite makes them unless told otherwise.
pub(super) const PAGE_BYTES: usize = 4_096;
/// What a leaf of a table begins with.
const LEAF: u8 = 0x0d;
/// Bytes of one row that are believed.
const ROW_BYTES: usize = 64 * 1024 * 1024;

/// Where pages are read from.
pub(super) trait Source {
    /// Fills `buffer` with what stands at this place, if there is as much.
    fn fill(&self, buffer: &mut [u8], at: u64) -> Option<()>;
    /// How many bytes there are.
    fn bytes(&self) -> u64;
}

impl Source for File {
    fn fill(&self, buffer: &mut [u8], at: u64) -> Option<()> {
        self.read_exact_at(buffer, at).ok()
    }

    fn bytes(&self) -> u64 {
        self.metadata().map_or(0, |file| file.len())
    }
}

impl Source for [u8] {
    fn fill(&self, buffer: &mut [u8], at: u64) -> Option<()> {
        let rest = self.get(usize::try_from(at).ok()?..)?;
        buffer.copy_from_slice(rest.get(..buffer.len())?);
        Some(())
    }

    fn bytes(&self) -> u64 {
        self.len() as u64
    }
}

/// Calls `each` with the number and the values of every row of so many columns on any leaf of a file.
pub(super) fn rows(file: &(impl Source + ?Sized), columns: usize, mut each: impl FnMut(u64, Vec<Value>)) {
    let mut page = vec![0; PAGE_BYTES];
    let mut at = 0;
    while file.fill(&mut page, at).is_some() {
        at += PAGE_BYTES as u64;
        if page[0] != LEAF {
            continue;
        }
        let cells = usize::from(u16::from_be_bytes([page[3], page[4]]));
        // Places of cells stand behind the head of a page: more than fit are damage.
        for cell in 0..cells.min((PAGE_BYTES - 8) / 2) {
            if let Some((id, record)) = row(file, &page, cell)
                && let Some(values) = values(&record).filter(|values| values.len() == columns)
            {
                each(id, values);
            }
        }
    }
}

/// The number and the record of a cell, whose end may be on other pages.
fn row(file: &(impl Source + ?Sized), page: &[u8], cell: usize) -> Option<(u64, Vec<u8>)> {
    let pointer = page.get(8 + 2 * cell..10 + 2 * cell)?;
    let mut rest = page.get(usize::from(u16::from_be_bytes([pointer[0], pointer[1]]))..)?;
    // No row is longer than its file, or its pages would lead in a circle.
    let most = ROW_BYTES.min(usize::try_from(file.bytes()).ok()?);
    let bytes = usize::try_from(varint(&mut rest)?).ok().filter(|bytes| *bytes <= most)?;
    let id = varint(&mut rest)?;
    let here = local(bytes);
    let mut record = rest.get(..here)?.to_vec();
    let mut next = if here < bytes { number(rest.get(here..here + 4)?)? } else { 0 };
    let mut overflow = vec![0; PAGE_BYTES];
    while record.len() < bytes {
        let at = next.checked_sub(1)?.checked_mul(PAGE_BYTES as u64)?;
        file.fill(&mut overflow, at)?;
        next = number(&overflow[..4])?;
        let more = (bytes - record.len()).min(PAGE_BYTES - 4);
        record.extend_from_slice(&overflow[4..4 + more]);
    }
    Some((id, record))
}

/// How much of a record of so many bytes is in its cell.
fn local(bytes: usize) -> usize {
    let (most, least) = (PAGE_BYTES - 35, (PAGE_BYTES - 12) * 32 / 255 - 23);
    if bytes <= most {
        return bytes;
    }
    let some = least + (bytes - least) % (PAGE_BYTES - 4);
    if some <= most { some } else { least }
}

fn number(bytes: &[u8]) -> Option<u64> {
    Some(u64::from(u32::from_be_bytes(bytes.try_into().ok()?)))
}

/// A number of one to nine bytes, taken from the front.
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for place in 0..9 {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        if place == 8 {
            return Some(number << 8 | u64::from(*byte));
        }
        number = number << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            break;
        }
    }
    Some(number)
}

/// The values of a record.
fn values(record: &[u8]) -> Option<Vec<Value>> {
    let mut kinds = record;
    let head = usize::try_from(varint(&mut kinds)?).ok()?;
    let mut kinds = record.get(record.len() - kinds.len()..head)?;
    let mut rest = record.get(head..)?;
    let mut values = Vec::new();
    while !kinds.is_empty() {
        let kind = varint(&mut kinds)?;
        let bytes = match kind {
            0 | 8 | 9 => 0,
            1..=4 => usize::try_from(kind).ok()?,
            5 => 6,
            6 => 8,
            12.. => usize::try_from((kind - 12) / 2).ok()?,
            // Fractions, which no table of ours has.
            _ => return None,
        };
        let value = rest.get(..bytes)?;
        rest = &rest[bytes..];
        values.push(match kind {
            0 => Value::Null,
            8 => Value::Integer(0),
            9 => Value::Integer(1),
            1..=6 => Value::Integer(integer(value)),
            kind if kind % 2 == 0 => Value::Blob(value.to_vec()),
            _ => Value::Text(String::from_utf8(value.to_vec()).ok()?),
        });
    }
    Some(values)
}

/// A whole number of up to eight bytes, with its sign.
fn integer(bytes: &[u8]) -> i64 {
    let first = bytes.first().map_or(0, |byte| i64::from(*byte as i8));
    bytes.iter().skip(1).fold(first, |number, byte| number << 8 | i64::from(*byte))
}
