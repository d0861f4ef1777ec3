//! The second, third and fourth step of the schema: messages, and calls among them.
//!
//! The layout is lean on purpose. An accepted message is two rows, its entry and its dedupe record; who has read
//! it is one number for each group and a row for each entry in somebody's hands. An entry's key is its place:
//! log, lane and seq in one integer, so that one b-tree holds the bodies and is the index on (log, lane, seq).
//! Each entry carries the count and the bytes of its lane up to itself, so that a depth is a subtraction.

/// The second step.
pub(super) const MESSAGES: &str = "
-- Names of meshes as numbers.
CREATE TABLE meshes (
    id   INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
) STRICT;

-- Every session key that was ever seen, until a month after its lease ended.
CREATE TABLE sessions (
    mesh     INTEGER NOT NULL,
    session  BLOB NOT NULL CHECK (length(session) = 32),    -- public key
    member   BLOB NOT NULL CHECK (length(member) = 32),     -- public key of who vouched last
    ended_at INTEGER,                               -- Unix ms; NULL while it has a lease
    cleared  INTEGER NOT NULL DEFAULT 0,            -- 1: what it left when its lease ended has moved on
    PRIMARY KEY (mesh, session)
) STRICT, WITHOUT ROWID;
CREATE INDEX sessions_ended ON sessions (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX sessions_member ON sessions (mesh, member);
INSERT INTO meshes (name) SELECT DISTINCT mesh FROM leases;
INSERT INTO sessions (mesh, session, member)
    SELECT meshes.id, session, member FROM leases JOIN meshes ON meshes.name = leases.mesh;

-- Logs: an inbox, or a partition of a topic. Never deleted: dedupe records name them.
CREATE TABLE logs (
    id     INTEGER PRIMARY KEY AUTOINCREMENT,       -- below 2^24
    mesh   INTEGER NOT NULL,
    name   TEXT NOT NULL,                           -- inbox/s/<hex>, inbox/m/<hex>, topic/<name>/<partition>
    hidden INTEGER NOT NULL DEFAULT 0,              -- 1: an inbox whose owner is forgotten
    UNIQUE (mesh, name)
) STRICT;

-- What a lane was when entries left it; entries that came later say more. The next seq of a log is one more
-- than the largest of its lanes and entries.
CREATE TABLE lanes (
    log      INTEGER NOT NULL,
    lane     INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,
    count    INTEGER NOT NULL,                      -- entries ever appended
    bytes    INTEGER NOT NULL,                      -- bytes of their bodies
    pruned   INTEGER NOT NULL,                      -- entries up to here may have been pruned
    PRIMARY KEY (log, lane)
) STRICT, WITHOUT ROWID;

-- Messages at their places. The view `messages` shows them to people.
CREATE TABLE entries (
    place   INTEGER PRIMARY KEY,                    -- log << 39 | lane << 37 | seq
    sent_at INTEGER NOT NULL,                       -- Unix ms
    due     INTEGER,                                -- Unix ms; when it expires, if its sender said so
    count   INTEGER NOT NULL,                       -- entries of its lane up to and with this one
    bytes   INTEGER NOT NULL,                       -- bytes of their bodies
    crc     INTEGER NOT NULL,                       -- CRC-32C of place, sent_at, head and body
    head    BLOB NOT NULL,                          -- all but the body; byte 0 is the version
    body    ANY NOT NULL                            -- TEXT or BLOB, as it was sent
) STRICT;
CREATE INDEX entries_due ON entries (due) WHERE due IS NOT NULL;

-- Members that sent, as numbers.
CREATE TABLE senders (
    id     INTEGER PRIMARY KEY,
    mesh   INTEGER NOT NULL,
    member BLOB NOT NULL CHECK (length(member) = 32),
    UNIQUE (mesh, member)
) STRICT;

-- Ids that senders have used; they outlive their entries.
CREATE TABLE dedupe (
    sender        INTEGER NOT NULL,
    client_id     TEXT NOT NULL,                    -- the sender's id
    id            BLOB NOT NULL CHECK (length(id) = 16),    -- the broker's, a ULID
    fingerprint   BLOB NOT NULL CHECK (length(fingerprint) = 32),
    place         INTEGER NOT NULL,                 -- as in entries
    first_seen_at INTEGER NOT NULL,                 -- Unix ms
    expires_at    INTEGER,                          -- Unix ms; NULL is never
    lost          TEXT,                             -- why it was a dead letter, once that is deleted
    PRIMARY KEY (sender, client_id)
) STRICT, WITHOUT ROWID;

-- How far a reader, or a crew of readers, is in a lane.
CREATE TABLE groups (
    mesh    INTEGER NOT NULL,
    id      INTEGER NOT NULL,
    log     INTEGER NOT NULL,
    lane    INTEGER NOT NULL,
    kind    TEXT NOT NULL CHECK (kind IN ('inbox', 'private', 'shared')),
    name    TEXT,                                   -- of a shared one
    session BLOB,                                   -- of a private one
    cursor  INTEGER NOT NULL,                       -- entries up to here are settled, or in open_entries
    used_at INTEGER NOT NULL,                       -- Unix ms
    PRIMARY KEY (mesh, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX groups_log ON groups (log, lane);
CREATE INDEX groups_session ON groups (mesh, session) WHERE session IS NOT NULL;

-- Entries at or before a group's cursor that are not settled.
CREATE TABLE open_entries (
    mesh     INTEGER NOT NULL,
    grp      INTEGER NOT NULL,
    seq      INTEGER NOT NULL,
    attempt  INTEGER NOT NULL,                      -- how often it was handed out
    tries    INTEGER NOT NULL,                      -- how often that failed
    holder   BLOB,                                  -- session that has it in hand, or had it last if there is a ready_at
    ready_at INTEGER,                               -- Unix ms; given back or delayed: not handed out before
    lasting  INTEGER NOT NULL,                      -- 1: brought back from the dead letters, never too late
    PRIMARY KEY (mesh, grp, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE topics (
    mesh         INTEGER NOT NULL,
    name         TEXT NOT NULL,
    partitions   INTEGER NOT NULL,
    retention_ms INTEGER,                           -- NULL is the default
    created_at   INTEGER NOT NULL,                  -- Unix ms
    PRIMARY KEY (mesh, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE subs (
    mesh      INTEGER NOT NULL,
    session   BLOB NOT NULL CHECK (length(session) = 32),
    sub       TEXT NOT NULL,
    topic     TEXT NOT NULL,
    grp       TEXT,                                 -- NULL is private
    partition INTEGER,                              -- NULL is all
    ack_mode  TEXT NOT NULL CHECK (ack_mode IN ('manual', 'auto')),
    prefetch  INTEGER NOT NULL,
    PRIMARY KEY (mesh, session, sub)
) STRICT, WITHOUT ROWID;

-- Dead letters: copies of entries, which may have left their log.
CREATE TABLE dead (
    log      INTEGER NOT NULL,
    seq      INTEGER NOT NULL,
    grp      TEXT NOT NULL,                         -- who could not settle it; '' is everybody
    lane     INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    reason   TEXT NOT NULL,
    at       INTEGER NOT NULL,                      -- Unix ms
    sent_at  INTEGER NOT NULL,                      -- from here on as in entries
    due      INTEGER,
    count    INTEGER NOT NULL,
    bytes    INTEGER NOT NULL,
    crc      INTEGER NOT NULL,
    head     BLOB NOT NULL,
    body     ANY NOT NULL,
    UNIQUE (log, seq, grp)
) STRICT;
CREATE INDEX dead_at ON dead (at);

-- Dedupe records that expired before this moment may be gone: one row.
CREATE TABLE swept (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    at  INTEGER NOT NULL                            -- Unix ms
) STRICT;
INSERT INTO swept (one, at) VALUES (1, 0);

-- Entries for people.
CREATE VIEW messages AS
    SELECT meshes.name AS mesh, logs.name AS log, place >> 37 & 3 AS lane, place & 137438953471 AS seq,
           datetime(sent_at / 1000, 'unixepoch') AS sent, datetime(due / 1000, 'unixepoch') AS due,
           length(body) AS size, body
    FROM entries JOIN logs ON logs.id = place >> 39 JOIN meshes ON meshes.id = logs.mesh;
";

/// The third step. Ids begin with their time in nearly every program that makes them, so ordered by them alone all
/// new records share a few pages at the end of the table; ordered by sender first, each sender dirties pages of its own
/// with every commit, which wrote five times as much.
pub(super) const IDS_BY_TIME: &str = "
ALTER TABLE dedupe RENAME TO dedupe_by_sender;

-- Ids that senders have used; they outlive their entries.
CREATE TABLE dedupe (
    sender        INTEGER NOT NULL,
    client_id     TEXT NOT NULL,                    -- the sender's id
    id            BLOB NOT NULL CHECK (length(id) = 16),    -- the broker's, a ULID
    fingerprint   BLOB NOT NULL CHECK (length(fingerprint) = 32),
    place         INTEGER NOT NULL,                 -- as in entries
    first_seen_at INTEGER NOT NULL,                 -- Unix ms
    expires_at    INTEGER,                          -- Unix ms; NULL is never
    lost          TEXT,                             -- why it was a dead letter, once that is deleted
    PRIMARY KEY (client_id, sender)
) STRICT, WITHOUT ROWID;
INSERT INTO dedupe SELECT * FROM dedupe_by_sender ORDER BY client_id, sender;
DROP TABLE dedupe_by_sender;
";

/// The fourth step. (The table `runs` counts starts of the broker.)
pub(super) const CALLS: &str = "
-- Runs of agents: calls whose answers stream back. Their messages are in entries; chunks are nowhere.
CREATE TABLE calls (
    mesh           INTEGER NOT NULL,
    id             BLOB NOT NULL CHECK (length(id) = 16),   -- of its message too
    client_id      TEXT NOT NULL,                   -- 'run:' and the caller's key, as in dedupe
    caller         BLOB NOT NULL CHECK (length(caller) = 32),
    caller_session BLOB NOT NULL CHECK (length(caller_session) = 32),
    callee         BLOB,                            -- session that answers; NULL until somebody does
    callee_member  BLOB,                            -- who vouched for it
    place          INTEGER NOT NULL,                -- as in entries
    state          TEXT NOT NULL CHECK (state IN ('queued', 'running', 'ok', 'error', 'cancelled')),
    last_seq       INTEGER NOT NULL,                -- of its chunks, once it has ended
    result         TEXT,                            -- JSON
    error          TEXT,                            -- JSON {code, message, ...}
    deadline       INTEGER NOT NULL,                -- Unix ms
    started_at     INTEGER NOT NULL,                -- Unix ms
    ended_at       INTEGER,                         -- Unix ms; NULL while it lives
    UNIQUE (mesh, id)
) STRICT;
CREATE INDEX calls_living ON calls (mesh, id) WHERE ended_at IS NULL;
CREATE INDEX calls_ended ON calls (ended_at) WHERE ended_at IS NOT NULL;
";

/// Who settled an entry of a group that several had in hand, so that a late settle of another is told from its own.
pub(super) const SETTLERS: &str = "
-- Settled entries of groups that were handed out more than once, and by whom they were settled; the last 4,096 of a group.
CREATE TABLE settlers (
    mesh    INTEGER NOT NULL,
    grp     INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    attempt INTEGER NOT NULL,                       -- the one that settled it
    session BLOB NOT NULL CHECK (length(session) = 32),
    nth     INTEGER NOT NULL,                       -- the order in which they were settled
    PRIMARY KEY (mesh, grp, seq)
) STRICT, WITHOUT ROWID;
";

/// The fifth step.
pub(super) const CANCELLED_CALLS: &str = "
ALTER TABLE calls ADD COLUMN cancelled INTEGER NOT NULL DEFAULT 0;  -- 1: its caller wants it stopped
";

/// Who made a shared group: how many a member may make is bounded.
pub(super) const GROUP_OWNERS: &str = "
ALTER TABLE groups ADD COLUMN owner BLOB;           -- member that made a shared one; NULL if that is not known
";

/// Topics that members have made, and topics that are going. A log that is hidden is an inbox whose owner is forgotten or
/// of a topic that nobody used (1), or of a topic that somebody deleted (2).
pub(super) const TOPIC_OWNERS: &str = "
ALTER TABLE topics ADD COLUMN owner BLOB;           -- member that made it; NULL if that is not known
ALTER TABLE topics ADD COLUMN state INTEGER NOT NULL DEFAULT 0; -- 1: going, nobody used it; 2: going, somebody deleted it
";
