//! The tables of `outbox.db`; `sqlite3 outbox.db .schema` prints what stands here, comments included.

use tenure_store::durable::{LEDGER, MARKED};

use crate::db::Schema;

/// `TNUO`.
pub(super) const SCHEMA: Schema = Schema { application_id: 0x544e_554f, steps: STEPS };

const STEPS: &[&str] = &["
-- What leaves one after the other: a sender and a target; of an inbox also the priority.
CREATE TABLE lanes (
    lane   INTEGER PRIMARY KEY,
    mesh   TEXT NOT NULL,
    sender BLOB NOT NULL CHECK (length(sender) = 32),
    target TEXT NOT NULL,
    class  TEXT NOT NULL,                               -- the priority, or '' of a topic
    UNIQUE (mesh, sender, target, class)
) STRICT;

-- What programs of this machine have handed over. A row is never deleted while it matters, and its id is never free again.
CREATE TABLE outbox (
    id                  INTEGER PRIMARY KEY AUTOINCREMENT, -- in the order in which they were accepted
    mesh                TEXT NOT NULL,
    client_message_id   TEXT NOT NULL,
    sender_session      BLOB NOT NULL CHECK (length(sender_session) = 32),
    request_fingerprint BLOB NOT NULL CHECK (length(request_fingerprint) = 32),
    payload             BLOB NOT NULL,                  -- the params of `send` as JSON: frozen, sent as they are
    crc                 INTEGER NOT NULL,               -- CRC-32C of mesh, id, sender, fingerprint and payload
    target              TEXT NOT NULL,
    priority            TEXT NOT NULL,
    lane                INTEGER NOT NULL,
    enqueued_at         INTEGER NOT NULL,               -- Unix ms, as all times here
    attempts            INTEGER NOT NULL,               -- counted before each is made
    next_attempt_at     INTEGER NOT NULL,
    status              TEXT NOT NULL CHECK (status IN ('pending', 'inflight', 'done', 'dead', 'aborted')),
    last_error          TEXT,
    delivered_at        INTEGER,
    broker_message_id   TEXT,
    log_seq             INTEGER,
    aborted_at          INTEGER,
    aborted_by          TEXT,
    superseded_by       INTEGER,                        -- the row that went in its place
    UNIQUE (mesh, client_message_id)
) STRICT;
CREATE INDEX outbox_open ON outbox (lane, id) WHERE status IN ('pending', 'inflight');
CREATE INDEX outbox_status ON outbox (status, id);
CREATE INDEX outbox_age ON outbox (enqueued_at) WHERE status = 'pending';
CREATE INDEX outbox_done ON outbox (delivered_at) WHERE status = 'done';
", NAMES, LEDGER, MARKED];

const NAMES: &str = "
-- The display name that the target of a row was written as, if it was one: it is resolved once.
CREATE TABLE names (
    row  INTEGER PRIMARY KEY,                           -- of the outbox
    name TEXT NOT NULL
) STRICT;
CREATE TRIGGER names_go AFTER DELETE ON outbox BEGIN
    DELETE FROM names WHERE row = old.id;
END;
";
