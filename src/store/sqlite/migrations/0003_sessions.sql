-- What an attempt asked and was told, as JSON, while its task is open.
ALTER TABLE tasks ADD COLUMN question TEXT;

CREATE TABLE sessions (
    id         TEXT PRIMARY KEY NOT NULL,
    operator   TEXT NOT NULL,
    principal  TEXT NOT NULL,
    jti        TEXT NOT NULL,
    until_ms   INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL,
    direct     INTEGER NOT NULL,
    last_seq   INTEGER NOT NULL,
    acked_seq  INTEGER NOT NULL,
    closed_ms  INTEGER,
    reason     TEXT
) WITHOUT ROWID;
CREATE INDEX sessions_closed ON sessions (closed_ms) WHERE closed_ms IS NOT NULL;

-- What a session was told and has not acknowledged.
CREATE TABLE frames (
    session      TEXT NOT NULL,
    seq          INTEGER NOT NULL,
    method       TEXT NOT NULL,
    run          INTEGER NOT NULL,
    step         INTEGER NOT NULL,
    attempt      INTEGER NOT NULL,
    scheduled_ms INTEGER NOT NULL,
    epoch        INTEGER NOT NULL,
    timeout_ms   INTEGER,
    params       TEXT NOT NULL,
    PRIMARY KEY (session, seq)
) WITHOUT ROWID;
