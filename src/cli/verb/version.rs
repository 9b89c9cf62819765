//! `version`: which program this is.

use anyhow::Result;
use clap::Args;
use serde_json::json;

use crate::cli::{context::Context, exit::Exit};

/// Print the version
#[derive(Debug, Args)]
pub struct Version {}

impl Version {
    /// Runs the command.
    ///
    /// # Errors
    /// A closed stdout.
    pub fn execute(&self, cx: &Context) -> Result<Exit> {
        let version = env!("CARGO_PKG_VERSION");
        match cx.terminal.json {
            true => cx.terminal.print_json(&json!({"name": "moonswarm", "version": version}))?,
            false => cx.terminal.print(&format!("moonswarm {version}"))?,
        }
        Ok(Exit::Ok)
    }
}
