//! The operator that runs a command as a child process.
//!
//! Owns the command's arguments and environment, the process group of the child, its input and
//! output, and the meaning of its exit. Refuses shells: an argument is one argument, whatever it
//! contains. The input comes as JSON on stdin; the result is the output on stdout, unless the child
//! reported over HTTP.

mod argv;
mod child;
mod outcome;
mod prepared;
mod run;
mod settings;
#[cfg(test)]
mod tests;
mod within;

pub(in crate::operator) use child::Running;
pub use run::{BundleDir, Process};
pub(in crate::operator) use settings::ProcessSettings;
