//! The order of events.
