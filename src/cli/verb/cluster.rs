//! `cluster`: shows the state of a cluster, makes the key that its nodes share, ends an upgrade, and lets a
//! restored database go on.

mod status;

use std::{fs::OpenOptions, io::Write as _, os::unix::fs::OpenOptionsExt as _, path::PathBuf};

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use serde_json::json;

use crate::{
    cli::{
        context::Context,
        database,
        exit::{Exit, Stop},
    },
    environment::Text,
    store::{
        ClusterKey, Durability, Finalized, PostgresOptions, begin_after_restore, finalize_upgrade,
        hold_upgrade,
    },
};

/// Show the state of a cluster, make its key, end its upgrade, and let a restored database go on
#[derive(Debug, Args)]
pub struct Cluster {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a key, which every node needs
    Key(Key),
    /// Show the nodes and the database of a cluster, also when no node answers
    Status(Status),
    /// End an upgrade now: nodes of older releases are no longer admitted
    Finalize(Finalize),
    /// Let the runs of a database go on that was restored to an earlier time: handles from before are void
    Restored(Database),
}

/// The database of a cluster.
#[derive(Debug, Args)]
struct Database {
    /// PostgreSQL database, postgres://HOST/NAME
    #[arg(long, value_name = "ADDRESS", env = database::VARIABLE, hide_env_values = true)]
    store: Option<String>,
}

#[derive(Debug, Args)]
struct Status {
    #[command(flatten)]
    database: Database,
    /// Commits that a failover may lose, as the nodes are configured: synchronous (none), or asynchronous [default: synchronous]
    #[arg(long, value_name = "KIND", env = "MOONSWARM_DURABILITY")]
    durability: Option<Durability>,
}

#[derive(Debug, Args)]
struct Finalize {
    #[command(flatten)]
    database: Database,
    /// Keep the nodes from ending it by themselves, until `cluster finalize`
    #[arg(long)]
    hold: bool,
}

#[derive(Debug, Args)]
struct Key {
    /// New file for the key, which only its owner can read [default: print it]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl Cluster {
    /// The database that the flag or its variable names.
    pub fn store(&self) -> Option<Text> {
        let of = match &self.action {
            Action::Status(status) => &status.database,
            Action::Finalize(finalize) => &finalize.database,
            Action::Restored(database) => database,
            Action::Key(_) => return None,
        };
        of.store.as_deref().map(database::named)
    }

    /// Returns the durability that the flag or its variable sets.
    pub fn durability(&self) -> Option<Durability> {
        match &self.action {
            Action::Status(status) => status.durability,
            Action::Key(_) | Action::Finalize(_) | Action::Restored(_) => None,
        }
    }

    /// Runs the command.
    ///
    /// # Errors
    /// A file that is there already or cannot be written; a database that a host has, or that cannot be
    /// reached.
    pub fn execute(&self, cx: &Context) -> Result<Exit> {
        match &self.action {
            Action::Key(key) => key.execute(cx),
            Action::Status(_) => status::execute(cx),
            Action::Finalize(finalize) => finalize.execute(cx),
            Action::Restored(_) => begin_anew(cx),
        }
    }
}

/// Returns the database of the cluster.
fn options(cx: &Context) -> Result<PostgresOptions> {
    match &cx.config.store {
        Some(address) => database::options(address, cx.config.durability),
        None => Err(Stop::usage("no database is named")
            .next("name that of the cluster with --store postgres://HOST/NAME")
            .into()),
    }
}

impl Finalize {
    fn execute(&self, cx: &Context) -> Result<Exit> {
        let options = options(cx)?;
        let done = if self.hold { hold_upgrade(&options)? } else { finalize_upgrade(&options)? };
        let Finalized { format, feature, held } = done;
        if cx.terminal.json {
            let view = json!({ "format": format, "feature": feature, "held": held });
            cx.terminal.print_json(&view)?;
            return Ok(Exit::Ok);
        }
        cx.terminal.say(&match held {
            true => format!(
                "what older releases cannot read is written up to format {feature} of {format}, until \
                 `moonswarm cluster finalize`"
            ),
            false => format!("the upgrade to format {feature} has ended; older releases are refused"),
        });
        Ok(Exit::Ok)
    }
}

/// Lets the runs of a restored database go on.
fn begin_anew(cx: &Context) -> Result<Exit> {
    let restored = begin_after_restore(&options(cx)?)?;
    if cx.terminal.json {
        cx.terminal.print_json(&json!({
            "open": restored.open, "ended": restored.ended, "reopened": restored.reopened,
        }))?;
        return Ok(Exit::Ok);
    }
    cx.terminal.say(&format!(
        "open runs that go on: {}; attempts of workers that are tried again: {}; ended runs: {}\n\
         next: start the daemon; tokens that were revoked after the backup are valid again",
        restored.open, restored.reopened, restored.ended
    ));
    Ok(Exit::Ok)
}

impl Key {
    fn execute(&self, cx: &Context) -> Result<Exit> {
        let out = &self.out;
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
