//! `fork`: a new run from the beginning of another one's history.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use super::{failure, settle};
use crate::{
    blueprint::Bundle,
    cli::{
        compile,
        connect::{Connection, Start},
        context::Context,
        exit::Exit,
        resolve,
        values::{self, Pair},
    },
    engine::RunView,
    protocol::RunId,
    store::RunStatus,
};

/// Start a new run with the first steps of another one
#[derive(Debug, Args)]
pub struct Fork {
    /// The run: an id, a unique prefix of one, or `last`
    run: String,
    /// The first step to execute again; earlier ones keep their results
    #[arg(long, value_name = "STEP")]
    from: u32,
    /// Change a part of the input (repeatable)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<Pair>,
    /// Continue with this blueprint: a file, or the name of a stored one
    #[arg(long, value_name = "FILE")]
    with: Option<PathBuf>,
}

impl Fork {
    /// Runs the command.
    ///
    /// # Errors
    /// No such run or step, a blueprint with errors, an input that does not match its schema.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        cx.with(Start::Existing, async |at| {
            let id = resolve::run(&at.client, &self.run).await?;
            let body = self.request(cx, at, id).await?;
            let fork = at.client.steer(id, "fork", &body).await?;
            settle(cx, at, fork.id).await?;
            let fork = at.client.run(fork.id).await?;
            self.show(cx, id, &fork)?;
            Ok(if fork.status == RunStatus::Paused { Exit::Conflict } else { Exit::Ok })
        })
        .await
    }

    async fn request(&self, cx: &Context, at: &Connection, id: RunId) -> Result<Value> {
        let (mut body, bundle) = source(self.with.as_ref())?;
        if !self.set.is_empty() {
            let own = bundle.map(|bundle| compile::compile(&bundle, &cx.config).input);
            let schema = match own.flatten().map(|schema| schema.to_value()) {
                Some(schema) => Some(schema),
                None => {
                    let run = at.client.run(id).await?;
                    let version = format!("{}@{}", run.blueprint, run.hash);
                    at.client.blueprint(&version).await?.input.map(|schema| schema.to_value())
                }
            };
            body["input_patch"] = values::input(None, &self.set, schema.as_ref())?;
        }
        body["from_step"] = Value::from(self.from);
        Ok(body)
    }

    fn show(&self, cx: &Context, from: RunId, fork: &RunView) -> Result<()> {
        if cx.terminal.json {
            cx.terminal.print_json(fork)?;
        } else {
            cx.terminal.print(&fork.id.to_string())?;
        }
        cx.terminal.say(&format!("run {} is a fork of {from} from step {}", fork.id, self.from));
        if fork.status == RunStatus::Paused {
            cx.terminal.say(&failure(fork));
            cx.terminal.say(
                "  its source requests other steps than the history has; fork from an earlier one",
            );
        }
        Ok(())
    }
}

/// The body that names a blueprint, with the bundle where it is a file.
///
/// # Errors
/// A file that is no bundle.
pub(super) fn source(with: Option<&PathBuf>) -> Result<(Value, Option<Bundle>)> {
    let Some(with) = with else { return Ok((json!({}), None)) };
    let word = with.to_string_lossy();
    if !compile::is_path(&word) {
        return Ok((json!({"blueprint": word}), None));
    }
    let bundle = compile::load(with)?;
    Ok((compile::program(&bundle), Some(bundle)))
}
