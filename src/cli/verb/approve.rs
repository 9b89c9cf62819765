//! `approve`: says yes to a task.

use anyhow::Result;
use clap::Args;
use serde_json::json;

use super::settle;
use crate::cli::{connect::Start, context::Context, exit::Exit, people, resolve};

/// Say yes to a task that asks for approval
#[derive(Debug, Args)]
pub struct Approve {
    /// The task's id
    task: String,
    /// A note for the flow, where the task takes one
    note: Option<String>,
}

impl Approve {
    /// Does it.
    ///
    /// # Errors
    /// No such task, one that is closed, or one that wants more than a yes.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        let id = resolve::task(&self.task)?;
        cx.with(Start::Existing, async |at| {
            let task = at.client.task(id).await?;
            let schema = task.output_schema.map(|schema| schema.to_value());
            let yes = people::approval(schema.as_ref(), self.note.as_deref())?;
            let answered = at.client.answer(id, &json!({"output": yes})).await?;
            if cx.terminal.json {
                cx.terminal.print_json(&answered)?;
            } else {
                cx.terminal.say(&format!("approved {id}"));
            }
            settle(cx, at, task.run).await?;
            Ok(Exit::Ok)
        })
        .await
    }
}
