//! `rerun`: starts a run with the input of another one.

use anyhow::Result;
use clap::Args;
use serde_json::json;

use super::settle;
use crate::cli::{connect::Start, context::Context, exit::Exit, resolve};

/// Start a run with the input and the tags of another one
#[derive(Debug, Args)]
pub struct Rerun {
    /// The run: an id, a unique prefix of one, or `last`
    run: String,
    /// Use the newest version of the blueprint instead of the run's own
    #[arg(long)]
    newest: bool,
}

impl Rerun {
    /// Runs the command.
    ///
    /// # Errors
    /// No such run, or a version that does not take its input.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        cx.with(Start::Existing, async |at| {
            let id = resolve::run(&at.client, &self.run).await?;
            let version = if self.newest { "newest" } else { "same" };
            let made = at.client.rerun(id, &json!({ "version": version })).await?;
            settle(cx, at, made.id()).await?;
            match cx.terminal.json {
                true => cx.terminal.print_json(&made)?,
                false => cx.terminal.print(&made.id().to_string())?,
            }
            cx.terminal.say(&format!("run {} has the input of {id}", made.id()));
            Ok(Exit::Ok)
        })
        .await
    }
}
