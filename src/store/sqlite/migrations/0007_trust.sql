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
-- How often in a row the lease or the deadline of an open attempt was put off, because the host was
-- away or paused for a part of it.
ALTER TABLE tasks ADD COLUMN graces INTEGER NOT NULL DEFAULT 0;
-- The open runs whose handles are of the form before: they are told apart by their epoch alone.
CREATE INDEX runs_without_nonce ON runs (num, epoch)
    WHERE nonce = 0 AND status NOT IN ('completed', 'failed', 'canceled');

-- How many bytes a run stores: its journal, its own state and its files. Entries were not counted
-- before; what they hold is summed here once, and own state is added when its run is next read.
ALTER TABLE runs ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
UPDATE runs SET bytes = j.bytes
    FROM (SELECT run, sum(length(entry)) AS bytes FROM journal GROUP BY run) AS j
    WHERE j.run = runs.num;
UPDATE runs SET bytes = runs.bytes + a.bytes
    FROM (SELECT run, sum(size) AS bytes FROM artifacts GROUP BY run) AS a
    WHERE a.run = runs.num;
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
