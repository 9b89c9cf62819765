//! Readers of events, slow or many.
