-- Values get a number of their own, by which the full-text index knows them.
ALTER TABLE state RENAME TO state_before;
CREATE TABLE state (
    id         INTEGER PRIMARY KEY,
    scope      TEXT NOT NULL,
    key        TEXT NOT NULL,
    revision   INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL,
    expires_ms INTEGER,
    hints      TEXT,
    value      TEXT NOT NULL,
    UNIQUE (scope, key)
);
INSERT INTO state (scope, key, revision, updated_ms, value)
    SELECT scope, key, revision, updated_ms, value FROM state_before;
DROP TABLE state_before;
CREATE INDEX state_expires ON state (expires_ms) WHERE expires_ms IS NOT NULL;

-- The scope is a word of its own, so that one scope is searched without reading the others. Only
-- the index is kept: the texts stand in `state`.
CREATE VIRTUAL TABLE state_text USING fts5 (
    scope, key, text,
    content = '', contentless_delete = 1, tokenize = 'unicode61 remove_diacritics 0'
);
INSERT INTO state_text (state_text, rank) VALUES ('rank', 'bm25(0.0, 4.0, 1.0)');
INSERT INTO state_text (rowid, scope, key, text) SELECT id, hex(scope), key, value FROM state;

CREATE TABLE state_links (
    scope    TEXT NOT NULL,
    from_key TEXT NOT NULL,
    relation TEXT NOT NULL,
    to_key   TEXT NOT NULL,
    metadata TEXT,
    PRIMARY KEY (scope, from_key, relation, to_key)
) WITHOUT ROWID;
CREATE INDEX state_links_to ON state_links (scope, to_key);

CREATE TRIGGER state_gone AFTER DELETE ON state BEGIN
    DELETE FROM state_text WHERE rowid = old.id;
    DELETE FROM state_links WHERE scope = old.scope AND from_key = old.key;
    DELETE FROM state_links WHERE scope = old.scope AND to_key = old.key;
END;

-- What was answered to a step that changed state, so that it is done once.
CREATE TABLE state_receipts (
    run    INTEGER NOT NULL,
    step   INTEGER NOT NULL,
    answer TEXT NOT NULL,
    PRIMARY KEY (run, step)
) WITHOUT ROWID;
