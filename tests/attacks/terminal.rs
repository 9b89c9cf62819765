//! Text from outside that is shown on a terminal or in a log.
