//! From source files to a checked blueprint.
//!
//! Owns the bundle (the files, their hash), the definition that a bundle evaluates to, schemas,
//! templates, `agent.md` files and the findings of `check`. Refuses what is wrong with file, line
//! and column. Evaluating the Lua itself is the work of `lua/`, which comes back here with the
//! tree of values that the chunk returned.

mod definition;

pub use definition::{Agent, Definition, Retry, WorkerBinding};
