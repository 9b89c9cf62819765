//! `reject`: says no to a task.

use anyhow::Result;
use clap::Args;

use super::settle;
use crate::cli::{
    connect::Start,
    context::Context,
    exit::Exit,
    form,
    resolve::{self, Candidates},
};

/// Reject a task; the flow gets the error human_rejected
#[derive(Debug, Args)]
pub struct Reject {
    /// The task: its id, or `last`, the newest that asks you
    task: String,
    /// The reason
    #[arg(default_value = "rejected from the command line")]
    reason: String,
    /// Only if the task still has this revision [default: the current one]
    #[arg(long)]
    revision: Option<String>,
}

impl Reject {
    /// Runs the command.
    ///
    /// # Errors
    /// No such task, or one that is closed.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        let task = resolve::task(&self.task)?;
        cx.with(Start::Existing, async |at| {
            let task = task.find(&at.client, Candidates::You).await?;
            let shown = at.client.task(task).await?;
            let no = ("reject", self.reason.as_str().into());
            let body = form::body(&shown, self.revision.as_deref(), no);
            let answered = at.client.answer(task, &body).await?;
            if cx.terminal.json {
                cx.terminal.print_json(&answered)?;
            } else {
                cx.terminal.say(&format!("rejected {task}"));
            }
            settle(cx, at, shown.run).await?;
            Ok(Exit::Ok)
        })
        .await
    }
}
