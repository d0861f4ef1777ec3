//! The step of the schema that says who may do what, and what operators did.

/// The step.
pub(super) const ACCESS: &str = "
-- Meshes that somebody made: they let in members, and whoever brings an invite or a token. A mesh without a row is open.
CREATE TABLE founded (
    mesh INTEGER PRIMARY KEY,
    at   INTEGER NOT NULL                           -- Unix ms
) STRICT;

-- Who may come in.
CREATE TABLE members (
    mesh   INTEGER NOT NULL,
    member BLOB NOT NULL CHECK (length(member) = 32),       -- public key
    role   TEXT NOT NULL CHECK (role IN ('member', 'operator')),
    caps   TEXT,                                    -- JSON [\"send\", ...]; NULL is all that the role may
    name   TEXT NOT NULL,
    invite TEXT,                                    -- the invite it came by
    since  INTEGER NOT NULL,                        -- Unix ms
    PRIMARY KEY (mesh, member)
) STRICT, WITHOUT ROWID;

-- Invites that were used or revoked. They are signed by operators; of one that nobody used nothing is here.
CREATE TABLE invites (
    mesh       INTEGER NOT NULL,
    id         TEXT NOT NULL,
    operator   BLOB,                                -- public key of who signed; NULL if it was revoked unseen
    used       INTEGER NOT NULL,
    uses       INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,                    -- Unix ms
    revoked    INTEGER NOT NULL,
    PRIMARY KEY (mesh, id)
) STRICT, WITHOUT ROWID;

-- Bearer tokens, as hashes of their secrets.
CREATE TABLE tokens (
    mesh       INTEGER NOT NULL,
    id         TEXT NOT NULL,
    hash       BLOB NOT NULL CHECK (length(hash) = 32),     -- SHA-256
    caps       TEXT,                                -- as in members
    name       TEXT NOT NULL,
    since      INTEGER NOT NULL,                    -- Unix ms
    expires_at INTEGER,                             -- Unix ms; NULL is never
    PRIMARY KEY (mesh, id)
) STRICT, WITHOUT ROWID;

-- Who is kept out.
CREATE TABLE bans (
    mesh    INTEGER NOT NULL,
    subject TEXT NOT NULL,                          -- member:<hex>, session:<hex>, address:<network>
    reason  TEXT NOT NULL,
    since   INTEGER NOT NULL,                       -- Unix ms
    PRIMARY KEY (mesh, subject)
) STRICT, WITHOUT ROWID;

-- What operators have set in a mesh while it ran.
CREATE TABLE mesh_settings (
    mesh    INTEGER PRIMARY KEY,
    version INTEGER NOT NULL,
    body    TEXT NOT NULL                           -- JSON {name: value}
) STRICT;

-- What operators did. Rows are never changed.
CREATE TABLE audit (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    mesh    INTEGER NOT NULL,
    at      INTEGER NOT NULL,                       -- Unix ms
    who     TEXT NOT NULL,                          -- operator, or member:<hex>
    origin  TEXT NOT NULL,                          -- the address it came from
    act     TEXT NOT NULL,                          -- such as ban.set
    subject TEXT NOT NULL,
    outcome TEXT NOT NULL,                          -- ok, or the code it was refused with
    details TEXT NOT NULL                           -- JSON
) STRICT;
CREATE INDEX audit_mesh ON audit (mesh, seq);
CREATE TRIGGER audit_is_kept BEFORE DELETE ON audit BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
-- OR REPLACE deletes without asking the trigger above.
CREATE TRIGGER audit_is_new BEFORE INSERT ON audit WHEN EXISTS (SELECT 1 FROM audit WHERE seq = NEW.seq)
    BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
CREATE TRIGGER audit_is_fixed BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
";
