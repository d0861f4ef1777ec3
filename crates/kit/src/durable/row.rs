//! The row of the ledger on a page of the database, as SQLite writes it.
//!
//! A write-ahead log holds whole pages. So how far the database was when a log was begun can be read from the log alone, whatever
//! the main file under it says. The format is documented ("Database File Format": table b-tree leaf pages, records).

use super::Ledger;

/// The page is a leaf of a table.
const LEAF: u8 = 13;
/// In the head of a record: the number of the row, which is kept elsewhere.
const NUMBER_OF_ROW: u8 = 0;
/// In the head of a record: 16 bytes.
const SIXTEEN_BYTES: u8 = 44;

/// The ledger on this page of its table; nothing if the page is another one, or not whole.
pub fn ledger_on(page: &[u8]) -> Option<Ledger> {
    // One row, which is where the only pointer says.
    let [LEAF, _, _, 0, 1, _, _, _, high, low, ..] = page else { return None };
    let at = usize::from(u16::from_be_bytes([*high, *low]));
    // Its length, its number, the length of its head, and the head: all so small that each number is one byte.
    let [length, 1, head, NUMBER_OF_ROW, SIXTEEN_BYTES, rest @ ..] = page.get(at..)? else { return None };
    let (kinds, body) = rest.split_at_checked(usize::from(*head).checked_sub(3)?)?;
    let mut body = body.get(..usize::from(*length).checked_sub(usize::from(*head))?)?;
    let store = *take(&mut body, 16)?.first_chunk()?;
    let mut counts = kinds.iter().map(|kind| count(*kind, &mut body));
    let (writes, messages) = (counts.next()??, counts.next()??);
    Some(Ledger { store, writes, messages })
}

fn take<'a>(body: &mut &'a [u8], bytes: usize) -> Option<&'a [u8]> {
    let (taken, rest) = body.split_at_checked(bytes)?;
    *body = rest;
    Some(taken)
}

/// A number of the kind that the head names.
fn count(kind: u8, body: &mut &[u8]) -> Option<u64> {
    let bytes = match kind {
        1..=4 => kind,
        5 => 6,
        6 => 8,
        8 | 9 => return Some(u64::from(kind - 8)),
        _ => return None,
    };
    let bytes = take(body, usize::from(bytes))?;
    Some(bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}
