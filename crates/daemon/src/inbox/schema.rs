//! The table of `inbox.db`; `sqlite3 inbox.db .schema` prints what stands here, comments included.

use crate::db::Schema;

/// `TNUI`.
pub(super) const SCHEMA: Schema = Schema { application_id: 0x544e_5549, steps: STEPS };

const STEPS: &[&str] = &["
-- What came for the sessions of this machine: each message once for each recipient.
CREATE TABLE inbox (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,   -- in the order of arrival; never used twice
    mesh           TEXT NOT NULL,
    recipient      TEXT NOT NULL,                       -- session:<hex> or member:<hex>
    message_id     TEXT NOT NULL,                       -- the broker's
    sender_session TEXT NOT NULL,
    sender_member  TEXT NOT NULL,
    sender_name    TEXT NOT NULL,
    topic          TEXT,                                -- of a post
    message        BLOB NOT NULL,                       -- all of it, as JSON
    crc            INTEGER NOT NULL,                    -- CRC-32C of mesh, recipient, message_id and message
    received_at    INTEGER NOT NULL,                    -- Unix ms, as all times here
    seen_at        INTEGER,
    UNIQUE (mesh, recipient, message_id)
) STRICT;
CREATE INDEX inbox_unseen ON inbox (id) WHERE seen_at IS NULL;
CREATE INDEX inbox_seen ON inbox (seen_at) WHERE seen_at IS NOT NULL;
", "
-- What may be let go when there is no room: a letter that was seen. Its row stays, so that it does not come twice.
CREATE INDEX inbox_spare ON inbox (seen_at) WHERE seen_at IS NOT NULL AND length(message) > 0;
"];
