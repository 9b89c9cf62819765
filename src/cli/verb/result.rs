//! `result`: the output of a run that has ended.

use anyhow::Result;
use clap::Args;

use super::failure;
use crate::{
    cli::{connect::Start, context::Context, exit::Exit, resolve},
    store::RunStatus,
};

/// Print the output of a run
#[derive(Debug, Args)]
pub struct Output {
    /// The run: an id, a unique prefix of one, or `last`
    run: String,
}

impl Output {
    /// Runs the command.
    ///
    /// # Errors
    /// No such run.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        cx.with(Start::Existing, async |at| {
            let id = resolve::run(&at.client, &self.run).await?;
            let run = at.client.run(id).await?;
            if run.status == RunStatus::Completed {
                let output = run.output.as_ref().map(crate::protocol::Json::to_value);
                cx.terminal.print_value(&output.unwrap_or_default())?;
            } else if run.status.is_ended() {
                cx.terminal.say(&failure(&run));
            } else {
                cx.terminal
                    .say(&format!("run {id} is {}: it has no output yet", run.status.as_str()));
                cx.terminal.say(&format!("  next: moonswarm logs {id} -f"));
            }
            Ok(Exit::of_run(&run))
        })
        .await
    }
}
