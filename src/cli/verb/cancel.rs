//! `cancel`: ends a run, after its compensations.

use anyhow::Result;
use clap::Args;
use serde_json::json;

use super::settle;
use crate::cli::{connect::Start, context::Context, exit::Exit, resolve};

/// Cancel a run; its compensations still execute
#[derive(Debug, Args)]
pub struct Cancel {
    /// The run: an id, a unique prefix of one, or `last`
    run: String,
    /// The reason
    #[arg(long, default_value = "canceled from the command line")]
    reason: String,
}

impl Cancel {
    /// Runs the command.
    ///
    /// # Errors
    /// No such run, or one that has ended.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        cx.with(Start::Existing, async |at| {
            let id = resolve::run(&at.client, &self.run).await?;
            let body = json!({"reason": self.reason});
            let run = at.client.steer(id, "cancel", &body).await?;
            settle(cx, at, id).await?;
            if cx.terminal.json {
                cx.terminal.print_json(&run)?;
            } else {
                cx.terminal.say(&format!("run {id} is {}", run.status.as_str()));
            }
            Ok(Exit::Ok)
        })
        .await
    }
}
