-- Append-only and clustered by lsn alone: a history is read by walking prev_lsn from the cursor of
-- its run, because clustering or indexing by run would scatter every append.
CREATE TABLE journal (
    lsn      INTEGER PRIMARY KEY,
    run      INTEGER NOT NULL,
    prev_lsn INTEGER,
    entry    BLOB NOT NULL
);

-- What changes at every transition stands first, so that it is never on an overflow page.
CREATE TABLE runs (
    num         INTEGER PRIMARY KEY,
    cursor      INTEGER NOT NULL,
    seq         INTEGER NOT NULL,
    steps       INTEGER NOT NULL,
    steps_done  INTEGER NOT NULL,
    updated_ms  INTEGER NOT NULL,
    created_ms  INTEGER NOT NULL,
    status      TEXT NOT NULL,
    wake_at_ms  INTEGER,
    epoch       INTEGER NOT NULL,
    parent_run  INTEGER,
    parent_step INTEGER,
    ended_ms    INTEGER,
    progress    REAL,
    blueprint   TEXT NOT NULL,
    hash        TEXT NOT NULL,
    principal   TEXT NOT NULL,
    status_text TEXT,
    error       TEXT,
    waiting_on  TEXT
);
CREATE INDEX runs_wake ON runs (wake_at_ms) WHERE wake_at_ms IS NOT NULL;
-- Completed runs are most of the table and are listed by scanning it; the others must be found.
CREATE INDEX runs_not_completed ON runs (status) WHERE status <> 'completed';
CREATE INDEX runs_open_children ON runs (parent_run)
    WHERE parent_run IS NOT NULL AND status NOT IN ('completed', 'failed', 'canceled');

-- The numbers that deleted runs had, so that they are never given again.
CREATE TABLE high_water (
    id  INTEGER PRIMARY KEY CHECK (id = 1),
    run INTEGER NOT NULL,
    lsn INTEGER NOT NULL
);
INSERT INTO high_water (id, run, lsn) VALUES (1, 0, 0);

CREATE TABLE tasks (
    run          INTEGER NOT NULL,
    step         INTEGER NOT NULL,
    attempt      INTEGER NOT NULL,
    epoch        INTEGER NOT NULL,
    agent        TEXT NOT NULL,
    operator     TEXT NOT NULL,
    kind         TEXT NOT NULL,
    queue        TEXT,
    phase        TEXT NOT NULL,
    scheduled_ms INTEGER NOT NULL,
    opened_ms    INTEGER NOT NULL,
    worker       TEXT,
    deadline_ms  INTEGER,
    lease_ms     INTEGER,
    summary      TEXT,
    prompt       TEXT NOT NULL,
    PRIMARY KEY (run, step)
) WITHOUT ROWID;

CREATE TABLE state (
    scope      TEXT NOT NULL,
    key        TEXT NOT NULL,
    revision   INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL,
    value      TEXT NOT NULL,
    PRIMARY KEY (scope, key)
) WITHOUT ROWID;

CREATE TABLE blobs (
    hash TEXT PRIMARY KEY NOT NULL,
    data BLOB NOT NULL
);

CREATE TABLE artifacts (
    run        INTEGER NOT NULL,
    n          INTEGER NOT NULL,
    name       TEXT NOT NULL,
    hash       TEXT NOT NULL,
    size       INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    step       INTEGER NOT NULL,
    attempt    INTEGER NOT NULL,
    published  INTEGER NOT NULL,
    PRIMARY KEY (run, n)
) WITHOUT ROWID;
CREATE INDEX artifacts_hash ON artifacts (hash);

CREATE TABLE blueprints (
    hash       TEXT PRIMARY KEY NOT NULL,
    name       TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    bundle     BLOB NOT NULL
);
CREATE INDEX blueprints_name ON blueprints (name, created_ms);

CREATE TABLE blueprint_names (
    name  TEXT PRIMARY KEY NOT NULL,
    hash  TEXT NOT NULL,
    at_ms INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE tokens (
    jti        TEXT PRIMARY KEY NOT NULL,
    role       TEXT NOT NULL,
    claims     TEXT NOT NULL,
    parent     TEXT,
    created_ms INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL
);

-- Beside tokens, because a token that was never recorded can be revoked too.
CREATE TABLE revocations (
    jti   TEXT PRIMARY KEY NOT NULL,
    at_ms INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE idempotency (
    principal  TEXT NOT NULL,
    route      TEXT NOT NULL,
    key        TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    body       TEXT NOT NULL,
    answer     TEXT NOT NULL,
    PRIMARY KEY (principal, route, key)
) WITHOUT ROWID;
CREATE INDEX idempotency_created ON idempotency (created_ms);

CREATE TABLE outbox (
    id      INTEGER PRIMARY KEY,
    run     INTEGER NOT NULL,
    step    INTEGER NOT NULL,
    target  INTEGER NOT NULL,
    name    TEXT NOT NULL,
    payload TEXT NOT NULL,
    UNIQUE (run, step)
);

CREATE TABLE evidence (
    id      INTEGER PRIMARY KEY,
    run     INTEGER NOT NULL,
    step    INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    at_ms   INTEGER NOT NULL,
    code    TEXT NOT NULL,
    body    TEXT NOT NULL
);
CREATE INDEX evidence_run ON evidence (run);

CREATE TABLE meta (
    key   TEXT PRIMARY KEY NOT NULL,
    value TEXT NOT NULL
) WITHOUT ROWID;
