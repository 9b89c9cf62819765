//! Storage: flipped bits, vanished files, malformed databases.
