//! `restore`: a data directory from a backup.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde_json::json;

use crate::{
    cli::{
        context::Context,
        exit::{Exit, Stop},
    },
    host::{self, HostError},
    store::StoreError,
};

/// Create a data directory from a backup; --data names it
#[derive(Debug, Args)]
pub struct Restore {
    /// The file that `backup` wrote
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

impl Restore {
    /// Runs the command.
    ///
    /// # Errors
    /// A directory that is in use or not empty, a file that is no whole backup, a configuration
    /// with another database.
    pub fn execute(&self, cx: &Context) -> Result<Exit> {
        if cx.target.server.is_some() {
            let message = "restore makes a data directory on this machine";
            return Err(Stop::usage(message).next("drop --server, name it with --data DIR").into());
        }
        if cx.config.store.is_some() {
            let message = "restore makes a directory with a SQLite database, and the configuration \
                           has `store`, a PostgreSQL database";
            let next = "name a configuration without `store` with --config; `moonswarm store copy \
                        --to postgres` then copies the runs into the other database";
            return Err(Stop::usage(message).next(next).into());
        }
        if !self.file.is_file() {
            let message = format!("there is no file {}", self.file.display());
            return Err(Stop::new(Exit::NotFound, message).into());
        }
        let data = &cx.config.data;
        let restored = host::restore(&self.file, data).map_err(refused)?;
        if cx.terminal.json {
            cx.terminal.print_json(&json!({
                "data": data,
                "ended_runs": restored.ended,
                "open_runs": restored.open,
                "reopened_attempts": restored.reopened,
            }))?;
        } else {
            cx.terminal.say(&format!(
                "{} ended and {} open run(s) in {}; {} attempt(s) will be tried again",
                restored.ended,
                restored.open,
                data.display(),
                restored.reopened
            ));
            cx.terminal.say("  tokens and handles of the original are not valid in it");
            cx.terminal.say("  `moonswarm serve` continues the open runs; stop the original first");
        }
        Ok(Exit::Ok)
    }
}

fn refused(error: HostError) -> anyhow::Error {
    let message = format!("failed to {error}");
    match &error {
        HostError::Store(StoreError::Occupied { .. } | StoreError::Owned { .. }) => {
            Stop::new(Exit::Conflict, message).next("--data DIR names another directory").into()
        }
        HostError::Store(_)
        | HostError::Engine(_)
        | HostError::File { .. }
        | HostError::Tls(_)
        | HostError::People(_)
        | HostError::Config(_)
        | HostError::Exposed { .. }
        | HostError::NoCluster
        | HostError::NoPeerAddress { .. }
        | HostError::NoRandomness
        | HostError::Listen { .. } => Stop::new(Exit::Failed, message).into(),
    }
}
