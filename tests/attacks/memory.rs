//! Memory: whatever a run makes the host hold is counted against that run.
