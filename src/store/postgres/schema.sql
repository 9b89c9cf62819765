-- The tables of format 12, all in the schema "moonswarm".
--
-- Everything that came from outside is bytea: PostgreSQL's text refuses U+0000, and bytes sort as Rust
-- compares them. Words of closed vocabularies are smallint. Times are Unix milliseconds.

-- One row. Whoever starts locks it first, so that two starters never claim the database together.
CREATE TABLE cluster (
    one         boolean PRIMARY KEY DEFAULT true CHECK (one),
    format      integer NOT NULL,
    -- Releases of an older format are refused.
    oldest      integer NOT NULL,
    -- What older releases cannot read is written up to this format only. Raised when no older node is left,
    -- unless an administrator holds it, by the release named last.
    feature     integer NOT NULL,
    held        boolean NOT NULL DEFAULT false,
    release     text NOT NULL DEFAULT '',
    -- The numbers that deleted rows had, so that they are never given again.
    high_run    bigint NOT NULL DEFAULT 0,
    high_lsn    bigint NOT NULL DEFAULT 0
);

-- A node is one start of one process. A row is never used again.
CREATE TABLE nodes (
    node        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name        text NOT NULL,
    -- Names the data directory of the node, whose lock only one process has.
    home        text NOT NULL,
    version     text NOT NULL,
    state       text NOT NULL,
    started_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease_until timestamptz NOT NULL,
    -- Of a node of a cluster: a random name of its start, its addresses for clients and for nodes, and
    -- the fingerprint of its key, sealed with the key of the cluster.
    boot        text NOT NULL DEFAULT '',
    url         text NOT NULL DEFAULT '',
    peer_url    text NOT NULL DEFAULT '',
    peer_key    bytea,
    -- The newest format that it knows: that of the release before, which has no such column, by default.
    format      integer NOT NULL DEFAULT 11,
    -- How far the clock of the database is ahead of that of its machine.
    clock_ms    bigint
) WITH (fillfactor = 50);

-- The secrets that the nodes of a cluster share, sealed with the key of the cluster. A database without a
-- row here belongs to one host, whose data directory has the secrets.
CREATE TABLE keys (
    name    text PRIMARY KEY,
    sealed  bytea NOT NULL,
    version bigint NOT NULL
);

-- One row for each writing connection. It is locked first in every writing transaction and never
-- updated. Deleting it ends the writer for good.
CREATE TABLE lanes (
    node bigint NOT NULL,
    lane smallint NOT NULL,
    PRIMARY KEY (node, lane)
);

-- The number of the last group that a lane committed: it tells whether a commit without an answer was
-- made.
CREATE TABLE marks (
    node bigint NOT NULL,
    lane smallint NOT NULL,
    seq  bigint NOT NULL,
    PRIMARY KEY (node, lane)
) WITH (fillfactor = 20);

CREATE TABLE journal (
    run    bigint NOT NULL,
    seq    bigint NOT NULL,
    lsn    bigint NOT NULL,
    -- True for an entry that begins a history.
    begins boolean NOT NULL,
    entry  bytea NOT NULL,
    PRIMARY KEY (run, seq)
);
CREATE UNIQUE INDEX journal_lsn ON journal (lsn);
CREATE INDEX journal_begins ON journal (run, seq) WHERE begins;
ALTER TABLE journal ALTER COLUMN entry SET STORAGE EXTERNAL;

-- What changes at every transition stands first. No index has a column that a plain transition changes,
-- so that such an update touches no index.
CREATE TABLE runs (
    num         bigint PRIMARY KEY,
    cursor      bigint NOT NULL,
    updated_ms  bigint NOT NULL,
    bytes       bigint NOT NULL,
    seq         bigint NOT NULL,
    steps       bigint NOT NULL,
    steps_done  bigint NOT NULL,
    epoch       bigint NOT NULL,
    created_ms  bigint NOT NULL,
    nonce       bigint NOT NULL,
    wake_at_ms  bigint,
    ended_ms    bigint,
    parent_run  bigint,
    parent_step bigint,
    progress    double precision,
    status      smallint NOT NULL,
    blueprint   bytea NOT NULL,
    hash        bytea NOT NULL,
    principal   bytea NOT NULL,
    status_text bytea,
    error       bytea,
    waiting_on  bytea,
    tags        bytea,
    used        bytea
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX runs_wake ON runs (wake_at_ms, num) WHERE wake_at_ms IS NOT NULL;
-- 5 is completed, and from 5 on a run has ended.
CREATE INDEX runs_status ON runs (status, created_ms, num) WHERE status <> 5;
CREATE INDEX runs_open ON runs (num) WHERE status < 5;
CREATE INDEX runs_created ON runs (created_ms, num);
CREATE INDEX runs_blueprint ON runs (substring(blueprint from 1 for 512), created_ms, num);
CREATE INDEX runs_principal ON runs (substring(principal from 1 for 512), created_ms, num);
CREATE INDEX runs_parent ON runs (parent_run, created_ms, num) WHERE parent_run IS NOT NULL;
CREATE INDEX runs_open_children ON runs (parent_run, num) WHERE parent_run IS NOT NULL AND status < 5;
CREATE INDEX runs_without_nonce ON runs (num) WHERE nonce = 0 AND status < 5;

CREATE TABLE run_tags (
    name       bytea NOT NULL,
    value      bytea NOT NULL,
    created_ms bigint NOT NULL,
    run        bigint NOT NULL,
    PRIMARY KEY (name, value, created_ms, run)
);
CREATE INDEX run_tags_run ON run_tags (run);

-- The words of the error and of the status text of ended runs.
CREATE TABLE run_words (
    run   bigint PRIMARY KEY,
    words tsvector NOT NULL
);
CREATE INDEX run_words_words ON run_words USING gin (words);

CREATE TABLE tasks (
    run          bigint NOT NULL,
    step         bigint NOT NULL,
    attempt      bigint NOT NULL,
    epoch        bigint NOT NULL,
    scheduled_ms bigint NOT NULL,
    opened_ms    bigint NOT NULL,
    deadline_ms  bigint,
    lease_ms     bigint,
    graces       bigint NOT NULL,
    -- 0 pending, 1 delivered.
    phase        smallint NOT NULL,
    agent        bytea NOT NULL,
    operator     bytea NOT NULL,
    kind         bytea NOT NULL,
    queue        bytea,
    worker       bytea,
    summary      bytea,
    prompt       bytea NOT NULL,
    question     bytea,
    PRIMARY KEY (run, step)
) WITH (fillfactor = 70);

-- Keys may be longer than an index row, so rows are found by a hash of scope and key, and listed by the
-- beginnings of both.
CREATE TABLE state (
    place         bytea PRIMARY KEY,
    scope         bytea NOT NULL,
    key           bytea NOT NULL,
    revision      bigint NOT NULL,
    updated_ms    bigint NOT NULL,
    expires_ms    bigint,
    -- True if the hints say that the value ends with its session.
    session_bound boolean NOT NULL,
    hints         bytea,
    value         bytea NOT NULL,
    words         tsvector
);
CREATE INDEX state_list ON state (substring(scope from 1 for 1024), substring(key from 1 for 1024));
CREATE INDEX state_expires ON state (expires_ms) WHERE expires_ms IS NOT NULL;
CREATE INDEX state_words ON state USING gin (words) WHERE words IS NOT NULL;

CREATE TABLE state_links (
    place    bytea PRIMARY KEY,
    scope    bytea NOT NULL,
    from_key bytea NOT NULL,
    relation bytea NOT NULL,
    to_key   bytea NOT NULL,
    metadata bytea
);
CREATE INDEX state_links_from
    ON state_links (substring(scope from 1 for 1024), substring(from_key from 1 for 1024));
CREATE INDEX state_links_to
    ON state_links (substring(scope from 1 for 1024), substring(to_key from 1 for 1024));

-- What was answered to a step that changed state, so that it is done once.
CREATE TABLE state_receipts (
    run    bigint NOT NULL,
    step   bigint NOT NULL,
    answer bytea NOT NULL,
    PRIMARY KEY (run, step)
);

CREATE TABLE blobs (
    hash bytea PRIMARY KEY,
    data bytea NOT NULL
);
ALTER TABLE blobs ALTER COLUMN data SET STORAGE EXTERNAL;

CREATE TABLE artifacts (
    run        bigint NOT NULL,
    n          bigint NOT NULL,
    step       bigint NOT NULL,
    attempt    bigint NOT NULL,
    size       bigint NOT NULL,
    created_ms bigint NOT NULL,
    published  boolean NOT NULL,
    name       bytea NOT NULL,
    hash       bytea NOT NULL,
    PRIMARY KEY (run, n)
);
CREATE INDEX artifacts_hash ON artifacts (hash);

CREATE TABLE blueprints (
    id         bigint GENERATED ALWAYS AS IDENTITY,
    hash       bytea PRIMARY KEY,
    name       bytea NOT NULL,
    created_ms bigint NOT NULL,
    bundle     bytea NOT NULL,
    publisher  bytea
);
CREATE INDEX blueprints_name ON blueprints (name, created_ms, hash);

CREATE TABLE blueprint_names (
    name  bytea PRIMARY KEY,
    hash  bytea NOT NULL,
    at_ms bigint NOT NULL
);

CREATE TABLE charges (
    run      bigint PRIMARY KEY,
    jti      bytea NOT NULL,
    bytes    bigint NOT NULL,
    tokens   bigint NOT NULL,
    nano_usd bigint NOT NULL
);
CREATE TABLE charged (
    jti      bytea PRIMARY KEY,
    tokens   bigint NOT NULL,
    nano_usd bigint NOT NULL
);

-- Runs that ended, until they are folded into the sums.
CREATE TABLE stats_new (
    id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    body bytea NOT NULL
);
-- Sums by hour (grain 0) and by day (1), of runs by blueprint (of 0), of tasks by agent (1) and of model
-- calls by model (2).
CREATE TABLE stats (
    grain  smallint NOT NULL,
    of     smallint NOT NULL,
    at_ms  bigint NOT NULL,
    name   bytea NOT NULL,
    ending smallint NOT NULL,
    body   bytea NOT NULL,
    PRIMARY KEY (grain, of, at_ms, name, ending)
);
CREATE TABLE stats_costly (
    day_ms     bigint NOT NULL,
    run        bigint NOT NULL,
    created_ms bigint NOT NULL,
    tokens     bigint NOT NULL,
    nano_usd   bigint NOT NULL,
    blueprint  bytea NOT NULL,
    PRIMARY KEY (day_ms, run)
);

CREATE TABLE tokens (
    id         bigint GENERATED ALWAYS AS IDENTITY,
    jti        bytea PRIMARY KEY,
    role       bytea NOT NULL,
    claims     bytea NOT NULL,
    parent     bytea,
    created_ms bigint NOT NULL,
    expires_ms bigint NOT NULL
);
CREATE INDEX tokens_created ON tokens (created_ms, id);
-- Beside tokens, because a token that was never recorded can be revoked too.
CREATE TABLE revocations (
    jti   bytea PRIMARY KEY,
    at_ms bigint NOT NULL
);

CREATE TABLE idempotency (
    place      bytea PRIMARY KEY,
    principal  bytea NOT NULL,
    route      bytea NOT NULL,
    key        bytea NOT NULL,
    created_ms bigint NOT NULL,
    body       bytea NOT NULL,
    answer     bytea NOT NULL
);
CREATE INDEX idempotency_created ON idempotency (created_ms);

CREATE TABLE outbox (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run     bigint NOT NULL,
    step    bigint NOT NULL,
    target  bigint NOT NULL,
    -- 0 a signal (name, payload), 1 a cancel (the sender's id, the reason), 2 a change (scope, payload).
    kind    smallint NOT NULL,
    name    bytea NOT NULL,
    payload bytea NOT NULL,
    UNIQUE (run, step)
);

CREATE TABLE evidence (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run     bigint NOT NULL,
    step    bigint NOT NULL,
    attempt bigint NOT NULL,
    at_ms   bigint NOT NULL,
    code    bytea NOT NULL,
    body    bytea NOT NULL
);
CREATE INDEX evidence_run ON evidence (run, id);

CREATE TABLE sessions (
    id         bytea PRIMARY KEY,
    operator   bytea NOT NULL,
    principal  bytea NOT NULL,
    jti        bytea NOT NULL,
    until_ms   bigint NOT NULL,
    created_ms bigint NOT NULL,
    expires_ms bigint NOT NULL,
    direct     boolean NOT NULL,
    last_seq   bigint NOT NULL,
    acked_seq  bigint NOT NULL,
    closed_ms  bigint,
    reason     bytea
) WITH (fillfactor = 70);
CREATE INDEX sessions_closed ON sessions (closed_ms) WHERE closed_ms IS NOT NULL;

-- What a session was told and has not acknowledged.
CREATE TABLE frames (
    session      bytea NOT NULL,
    seq          bigint NOT NULL,
    run          bigint NOT NULL,
    step         bigint NOT NULL,
    attempt      bigint NOT NULL,
    epoch        bigint NOT NULL,
    scheduled_ms bigint NOT NULL,
    nonce        bigint NOT NULL,
    timeout_ms   bigint,
    method       bytea NOT NULL,
    params       bytea NOT NULL,
    PRIMARY KEY (session, seq)
);
CREATE INDEX frames_run ON frames (run);

-- What layers of middleware keep beyond the life of a host.
CREATE TABLE kept (
    place      bytea PRIMARY KEY,
    layer      bytea NOT NULL,
    key        bytea NOT NULL,
    expires_ms bigint,
    value      bytea NOT NULL
);
CREATE INDEX kept_list ON kept (substring(layer from 1 for 1024), substring(key from 1 for 1024));
CREATE INDEX kept_expires ON kept (expires_ms) WHERE expires_ms IS NOT NULL;

-- What passed the boundaries, each line tied by its hash to all before. Lines are only added.
CREATE TABLE audit (
    seq  bigint PRIMARY KEY,
    at   bytea NOT NULL,
    line bytea NOT NULL,
    hash bytea NOT NULL
);
CREATE FUNCTION audit_is_only_added_to() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'lines of the audit log are never changed or deleted'; END $$;
CREATE TRIGGER audit_is_only_added_to BEFORE UPDATE OR DELETE ON audit
    FOR EACH ROW EXECUTE FUNCTION audit_is_only_added_to();

CREATE TABLE meta (
    key   bytea PRIMARY KEY,
    value bytea NOT NULL
);
