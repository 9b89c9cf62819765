-- The tags of a run (a JSON object), and its agents and usage (JSON) for lists.
ALTER TABLE runs ADD COLUMN tags TEXT;
ALTER TABLE runs ADD COLUMN used TEXT;

-- Lists of runs are in the order of creation. Every index ends with the row's number, which tells
-- runs of the same millisecond apart.
DROP INDEX runs_not_completed;
CREATE INDEX runs_status ON runs (status, created_ms) WHERE status <> 'completed';
CREATE INDEX runs_created ON runs (created_ms);
CREATE INDEX runs_blueprint ON runs (blueprint, created_ms);
CREATE INDEX runs_principal ON runs (principal, created_ms);
CREATE INDEX runs_parent ON runs (parent_run, created_ms) WHERE parent_run IS NOT NULL;

CREATE TABLE run_tags (
    name       TEXT NOT NULL,
    value      TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    run        INTEGER NOT NULL,
    PRIMARY KEY (name, value, created_ms, run)
) WITHOUT ROWID;

-- The words of the error and of the status text of ended runs, by the run's number. Only the index is
-- kept: the texts stand in `runs`.
CREATE VIRTUAL TABLE run_text USING fts5 (
    text,
    content = '', contentless_delete = 1, tokenize = 'unicode61 remove_diacritics 0'
);
