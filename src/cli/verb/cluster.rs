//! `cluster`: makes the key that the nodes of a cluster share.

use std::{fs::OpenOptions, io::Write as _, os::unix::fs::OpenOptionsExt as _, path::PathBuf};

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};

use crate::{
    cli::{
        context::Context,
        exit::{Exit, Stop},
    },
    store::ClusterKey,
};

/// Make the key of a cluster
#[derive(Debug, Args)]
pub struct Cluster {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Make a key, which every node needs
    Key(Key),
}

#[derive(Debug, Args)]
struct Key {
    /// New file for the key, which only its owner can read [default: print it]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl Cluster {
    /// Runs the command.
    ///
    /// # Errors
    /// A file that is there already or cannot be written.
    pub fn execute(&self, cx: &Context) -> Result<Exit> {
        let What::Key(Key { out }) = &self.what;
        let key = ClusterKey::generate().context("the system has no randomness")?;
        let Some(path) = out else {
            cx.terminal.print(&key.to_text())?;
            return Ok(Exit::Ok);
        };
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let mut file = match file {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                let message = format!("{} is there already", path.display());
                let next =
                    "a cluster keeps its key; name another file for the key of another cluster";
                return Err(Stop::new(Exit::Conflict, message).next(next).into());
            }
            Err(error) => return Err(error).with_context(|| format!("make {}", path.display())),
        };
        let written = writeln!(file, "{}", *key.to_text()).and_then(|()| file.sync_all());
        written.with_context(|| format!("write {}", path.display()))?;
        cx.terminal.say(&format!("the key is in {}; copy it to every node", path.display()));
        Ok(Exit::Ok)
    }
}
