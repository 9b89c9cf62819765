//! Fairness: runs that take turns, commits and memory away from their neighbours.
