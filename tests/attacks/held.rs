//! Attacks that have always been refused, so that they stay so.
