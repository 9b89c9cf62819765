//! `resume`: goes on with a run that rests.

use anyhow::Result;
use clap::Args;
use serde_json::Value;

use super::settle;
use crate::cli::{connect::Start, context::Context, exit::Exit, resolve};

/// Resume a paused run
#[derive(Debug, Args)]
pub struct Resume {
    /// The run: an id, a unique prefix of one, or `last`
    run: String,
}

impl Resume {
    /// Runs the command.
    ///
    /// # Errors
    /// No such run, or one that does not rest.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        cx.with(Start::Existing, async |at| {
            let id = resolve::run(&at.client, &self.run).await?;
            let run = at.client.steer(id, "resume", &Value::Null).await?;
            settle(cx, at, id).await?;
            if cx.terminal.json {
                cx.terminal.print_json(&run)?;
            } else {
                cx.terminal.say(&format!("run {id} continues"));
            }
            Ok(Exit::Ok)
        })
        .await
    }
}
