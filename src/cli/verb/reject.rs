//! `reject`: says no to a task.

use anyhow::Result;
use clap::Args;
use serde_json::json;

use super::settle;
use crate::cli::{connect::Start, context::Context, exit::Exit, resolve};

/// Say no to a task; the flow gets the error human_rejected
#[derive(Debug, Args)]
pub struct Reject {
    /// The task's id
    task: String,
    /// Why
    #[arg(default_value = "rejected from the command line")]
    reason: String,
}

impl Reject {
    /// Does it.
    ///
    /// # Errors
    /// No such task, or one that is closed.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        let task = resolve::task(&self.task)?;
        cx.with(Start::Existing, async |at| {
            let run = at.client.task(task).await?.run;
            let answered = at.client.answer(task, &json!({"reject": self.reason})).await?;
            if cx.terminal.json {
                cx.terminal.print_json(&answered)?;
            } else {
                cx.terminal.say(&format!("rejected {task}"));
            }
            settle(cx, at, run).await?;
            Ok(Exit::Ok)
        })
        .await
    }
}
