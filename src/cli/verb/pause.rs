//! `pause`: lets a run rest.

use anyhow::Result;
use clap::Args;
use serde_json::json;

use crate::cli::{connect::Start, context::Context, exit::Exit, resolve};

/// Pause a run; open tasks continue, new ones do not start
#[derive(Debug, Args)]
pub struct Pause {
    /// The run: an id, a unique prefix of one, or `last`
    run: String,
    /// The reason
    #[arg(long, default_value = "paused from the command line")]
    reason: String,
}

impl Pause {
    /// Runs the command.
    ///
    /// # Errors
    /// No such run, or one that has ended.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        cx.with(Start::Existing, async |at| {
            let id = resolve::run(&at.client, &self.run).await?;
            let body = json!({"reason": self.reason});
            let run = at.client.steer(id, "pause", &body).await?;
            if cx.terminal.json {
                cx.terminal.print_json(&run)?;
            } else {
                cx.terminal.say(&format!("run {id} is {}", run.status.as_str()));
                cx.terminal.say(&format!("  next: moonswarm resume {id}"));
            }
            Ok(Exit::Ok)
        })
        .await
    }
}
