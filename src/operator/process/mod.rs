//! The operator that runs a command as a child process.
//!
//! Owns the command's arguments and environment, the child's group, its input and output, and
//! what its exit means. Refuses shells: an argument is one argument, whatever is in it. The input
//! comes as JSON on stdin; the result is what the child printed, unless it reported over HTTP.

mod argv;
mod child;
mod outcome;
mod run;
mod settings;
#[cfg(test)]
mod tests;

pub(in crate::operator) use child::Running;
pub use run::{BundleDir, Process};
pub(in crate::operator) use settings::ProcessSettings;
