-- A random number that a run gets at its creation. It stands in the handles of the run's attempts,
-- so that a handle of a history that was rolled back is not good for whichever run has the number
-- now. 0 is a run that was created before this format.
ALTER TABLE runs ADD COLUMN nonce INTEGER NOT NULL DEFAULT 0;
ALTER TABLE frames ADD COLUMN nonce INTEGER NOT NULL DEFAULT 0;

-- What whoever published a version could do then, as the JSON of a grant; NULL for a version that
-- only came with a request to run it. Names could be set by an admin alone so far.
ALTER TABLE blueprints ADD COLUMN publisher TEXT;
UPDATE blueprints SET publisher = '{"role":"admin","scopes":["*"]}'
WHERE hash IN (SELECT hash FROM blueprint_names);
-- The open runs whose handles are of the form before: they are told apart by their epoch alone.
CREATE INDEX runs_without_nonce ON runs (num, epoch)
    WHERE nonce = 0 AND status NOT IN ('completed', 'failed', 'canceled');

-- What a run is charged, to the token that it was started with, where that or one that it was made
-- from has a quota; and what runs used that were deleted.
CREATE TABLE charges (
    run      INTEGER PRIMARY KEY,
    jti      TEXT NOT NULL,
    bytes    INTEGER NOT NULL,
    tokens   INTEGER NOT NULL,
    nano_usd INTEGER NOT NULL
);
CREATE TABLE charged (
    jti      TEXT PRIMARY KEY NOT NULL,
    tokens   INTEGER NOT NULL,
    nano_usd INTEGER NOT NULL
) WITHOUT ROWID;
