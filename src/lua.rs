//! The sandbox, and the flow that is a script.
//!
//! Owns Luau: the frozen base environment, the author library (`lua/*.luau`), the conversion
//! between Lua values and JSON, the limits of a script, and [`ScriptFlow`], which turns a script
//! into a pure function of its inputs. Refuses whatever would make that function impure (a clock,
//! a file, an address, randomness of its own) and whatever does not end. The blueprint room's
//! checker calls [`evaluate`], the engine's shards drive flows made by [`Vms`], the Lua operator
//! calls [`call_agent`]. Nothing else knows that Lua exists.

mod call;
mod coverage;
mod desk;
mod evaluate;
mod failure;
mod flow;
mod pool;
mod program;
mod random;
mod raw;
mod source;
mod task;
mod testing;
mod time;
mod tree;
mod vm;
mod vms;
mod watchdog;

#[cfg(test)]
mod tests;

pub use coverage::{Counts, Coverage, Lines};
pub use evaluate::{LuaError, evaluate};
pub use flow::{BranchStack, Moment, Origin, RunFacts, ScriptFlow};
pub use program::Program;
pub use raw::{Clean, StackFrame, Variable, VariableRole};
pub use source::{Files, Host, Source};
pub use task::{TaskLimits, call_agent};
pub use testing::{TestCase, TestFile, TestHalt, TestLimits, TestName};
pub use vms::{Limits, Vms};
pub use watchdog::Watchdog;
