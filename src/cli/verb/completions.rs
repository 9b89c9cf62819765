//! `completions`: a script for the shell.

use anyhow::Result;
use clap::{Args, ValueEnum};
use clap_complete::{Shell as Common, generate};
use clap_complete_nushell::Nushell;

use crate::cli::{context::Context, exit::Exit};

/// The program that is completed.
const NAME: &str = "moonswarm";

/// Print a completion script for a shell
#[derive(Debug, Args)]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// The shells that a script is written for.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Shell {
    Bash,
    Elvish,
    Fish,
    #[value(name = "nushell")]
    Nu,
    #[value(name = "powershell")]
    Power,
    Zsh,
}

impl Completions {
    /// Does it; `command` is the whole command line.
    ///
    /// # Errors
    /// A closed stdout.
    pub fn execute(&self, cx: &Context, mut command: clap::Command) -> Result<Exit> {
        let mut script = Vec::new();
        let common = match self.shell {
            Shell::Bash => Some(Common::Bash),
            Shell::Elvish => Some(Common::Elvish),
            Shell::Fish => Some(Common::Fish),
            Shell::Power => Some(Common::PowerShell),
            Shell::Zsh => Some(Common::Zsh),
            Shell::Nu => None,
        };
        match common {
            Some(shell) => generate(shell, &mut command, NAME, &mut script),
            None => generate(Nushell, &mut command, NAME, &mut script),
        }
        cx.terminal.print_bytes(&script)?;
        Ok(Exit::Ok)
    }
}
