-- Runs that ended, until they are folded into the sums.
CREATE TABLE stats_new (
    id   INTEGER PRIMARY KEY,
    body BLOB NOT NULL
);

-- Sums by hour (grain 0) and by day (1), of runs by blueprint (of 0), of tasks by agent (1) and of model
-- calls by model (2). A deleted run stays counted.
CREATE TABLE stats (
    grain  INTEGER NOT NULL,
    of     INTEGER NOT NULL,
    at_ms  INTEGER NOT NULL,
    name   TEXT NOT NULL,
    ending INTEGER NOT NULL,
    body   BLOB NOT NULL,
    PRIMARY KEY (grain, of, at_ms, name, ending)
) WITHOUT ROWID;

-- The most expensive runs of each day.
CREATE TABLE stats_costly (
    day_ms     INTEGER NOT NULL,
    run        INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    blueprint  TEXT NOT NULL,
    tokens     INTEGER NOT NULL,
    nano_usd   INTEGER NOT NULL,
    PRIMARY KEY (day_ms, run)
) WITHOUT ROWID;
