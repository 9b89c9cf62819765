//! `manual`: pages for `man`, made from the command line itself; packages are built with it.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;

use crate::cli::{context::Context, exit::Exit};

/// Write the manual pages of this program into a directory
#[derive(Debug, Args)]
pub struct Manual {
    /// The directory; it is created
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

impl Manual {
    /// Runs the command; `command` is the whole command line.
    ///
    /// # Errors
    /// A directory that cannot be written.
    pub fn execute(&self, cx: &Context, command: clap::Command) -> Result<Exit> {
        let shown = self.dir.display();
        std::fs::create_dir_all(&self.dir).with_context(|| format!("create {shown}"))?;
        // The date would make every build another one.
        clap_mangen::generate_to(command, &self.dir).with_context(|| format!("write {shown}"))?;
        cx.terminal.say(&format!("the pages are in {shown}"));
        Ok(Exit::Ok)
    }
}
