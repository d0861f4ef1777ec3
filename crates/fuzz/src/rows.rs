//! Rows of an outbox whose file is damaged, read from its pages by hand.

use tenure_daemon::outbox::rows_on_pages;

/// Pages of a damaged file.
pub(crate) fn run(bytes: &[u8]) {
    let whole = rows_on_pages(bytes);
    assert!(whole <= bytes.len(), "more rows than bytes");
}
