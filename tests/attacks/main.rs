//! The attacks that this program was tried with, as tests: each drives the real binary as a hostile
//! or careless caller would, under a limit on memory where memory is what it is after.
//!
//! `docs/security.md` has the table: the attack, its test here, and what stops it.

#[path = "../faults/shim.rs"]
#[expect(dead_code, reason = "every test program uses its own part of it")]
mod shim;
#[path = "../support/mod.rs"]
mod support;

mod agents;
mod authority;
mod batches;
mod children;
mod credentials;
mod egress;
mod erasing;
mod fairness;
mod held;
mod import;
mod links;
mod memory;
mod network;
mod quotas;
mod readers;
mod recovery;
mod storage;
mod templates;
mod terminal;
mod testing;
mod watching;
