-- What layers of middleware keep beyond the life of a host.
CREATE TABLE kept (
    layer      TEXT NOT NULL,
    key        TEXT NOT NULL,
    expires_ms INTEGER,
    value      TEXT NOT NULL,
    PRIMARY KEY (layer, key)
) WITHOUT ROWID;
CREATE INDEX kept_expires ON kept (expires_ms) WHERE expires_ms IS NOT NULL;

-- What passed the boundaries, each line tied by its hash to all before. Lines are only added.
CREATE TABLE audit (
    seq  INTEGER PRIMARY KEY NOT NULL,
    at   TEXT NOT NULL,
    line TEXT NOT NULL,
    hash TEXT NOT NULL
);
CREATE TRIGGER audit_is_never_changed BEFORE UPDATE ON audit
BEGIN SELECT RAISE(ABORT, 'lines of the audit log are never changed'); END;
CREATE TRIGGER audit_is_never_deleted BEFORE DELETE ON audit
BEGIN SELECT RAISE(ABORT, 'lines of the audit log are never deleted'); END;
