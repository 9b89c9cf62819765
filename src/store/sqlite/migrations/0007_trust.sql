-- A random number that a run gets at its creation. It stands in the handles of the run's attempts,
-- so that a handle of a history that was rolled back is not good for whichever run has the number
-- now. 0 is a run that was created before this format.
ALTER TABLE runs ADD COLUMN nonce INTEGER NOT NULL DEFAULT 0;
ALTER TABLE frames ADD COLUMN nonce INTEGER NOT NULL DEFAULT 0;
-- The open runs whose handles are of the form before: they are told apart by their epoch alone.
CREATE INDEX runs_without_nonce ON runs (num, epoch)
    WHERE nonce = 0 AND status NOT IN ('completed', 'failed', 'canceled');
