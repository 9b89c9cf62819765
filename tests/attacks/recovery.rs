//! Recovery: crash loops, clocks, pauses, and starts that follow a kill.
