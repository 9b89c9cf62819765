//! `completions`: a script for the shell.

use anyhow::Result;
use clap::Args;
use clap_complete::Shell;

use crate::cli::{context::Context, exit::Exit};

/// Print a completion script for a shell
#[derive(Debug, Args)]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    /// Does it; `command` is the whole command line.
    ///
    /// # Errors
    /// A closed stdout.
    pub fn execute(&self, cx: &Context, mut command: clap::Command) -> Result<Exit> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, "moonswarm", &mut script);
        cx.terminal.print_bytes(&script)?;
        Ok(Exit::Ok)
    }
}
