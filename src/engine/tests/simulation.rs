//! A deterministic simulation of the engine, and a judge of what it did.
//!
//! Owns a world of one thread and virtual time whose every choice comes from a seed; clients,
//! workers and operators that are late, wrong, twice or never there; nodes that help, and links that
//! break; crashes and failing disks; and the checker, which holds each promise against the history.
//! Refuses real time, threads and the engine's own judgement.
//!
//! `MOONSWARM_SEED=n` plays one seed and prints its history; `MOONSWARM_SEEDS=n` plays so many.
//! `MOONSWARM_LENDING_SEED=n` plays one of the worlds whose host lends runs.

mod acts;
mod blueprint;
#[cfg(feature = "faults")]
mod breaks;
mod checker;
mod gathering;
mod history;
mod leasing;
mod loans;
mod moments;
mod operator;
mod play;
mod races;
mod random;
mod record;
mod seeds;
mod world;
