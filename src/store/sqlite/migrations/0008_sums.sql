-- The last row of the history before, in the first row of one that goes on from it. It stood in the
-- entry so far, which names no row any more.
ALTER TABLE journal ADD COLUMN continues INTEGER;
-- Where the rows of some entries of a run are: those with a number that 256 divides, and those that
-- begin a history after another.
CREATE TABLE journal_marks (
    run    INTEGER NOT NULL,
    seq    INTEGER NOT NULL,
    lsn    INTEGER NOT NULL,
    begins INTEGER NOT NULL,
    PRIMARY KEY (run, seq)
) WITHOUT ROWID;

-- Sums of a header, each of every bit of what it covers: of what changes with most entries (cursor,
-- numbers, times), and of the rest.
ALTER TABLE runs ADD COLUMN count_sum INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN rest_sum INTEGER NOT NULL DEFAULT 0;
