-- A cancel that a run has for one that it called, beside the signals: the sender's id as its name,
-- the reason as its payload.
ALTER TABLE outbox ADD COLUMN cancels INTEGER NOT NULL DEFAULT 0;
