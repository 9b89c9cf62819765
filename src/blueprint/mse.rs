//! Blueprints of mlua-swarm (its JSON, 0.32) as blueprints in Lua.
//!
//! Owns the conversion: nodes, expressions, agents, runners, operators, audits, and a report of what
//! stayed the same, what differs and what is to be decided. Refuses a document whose parts it does
//! not know rather than guessing. Nothing of a document becomes code but what this room maps; its
//! programs stay comments until somebody trusts them. `moonswarm import-mse` calls it.

mod agent;
mod agents;
mod draft;
mod expr;
mod fields;
mod flow;
mod helpers;
mod import;
mod kinds;
mod lua;
mod names;
mod path;
mod process;
mod refs;
mod report;

pub use draft::Options;
pub use import::{Imported, import};
pub use refs::{Directory, resolve};
pub use report::{ImportError, Note, Report};

#[cfg(test)]
mod tests;
