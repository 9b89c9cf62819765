-- A random number that a run gets at its creation. It stands in the handles of the run's attempts,
-- so that a handle of a history that was rolled back is not good for whichever run has the number
-- now. 0 is a run that was created before this format.
ALTER TABLE runs ADD COLUMN nonce INTEGER NOT NULL DEFAULT 0;
ALTER TABLE frames ADD COLUMN nonce INTEGER NOT NULL DEFAULT 0;
