//! `answer`: gives a task its output.

use anyhow::Result;
use clap::Args;
use serde_json::json;

use super::settle;
use crate::cli::{connect::Start, context::Context, exit::Exit, resolve, values};

/// Answer a task with a value
#[derive(Debug, Args)]
pub struct Answer {
    /// The task's id
    task: String,
    /// The output: JSON, @FILE, or - for stdin
    output: String,
}

impl Answer {
    /// Does it.
    ///
    /// # Errors
    /// No such task, one that is closed, or a value that breaks its schema.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        let task = resolve::task(&self.task)?;
        let output = values::document(&self.output)?;
        cx.with(Start::Existing, async |at| {
            let run = at.client.task(task).await?.run;
            let answered = at.client.answer(task, &json!({"output": output})).await?;
            if cx.terminal.json {
                cx.terminal.print_json(&answered)?;
            } else {
                cx.terminal.say(&format!("answered {task}"));
            }
            settle(cx, at, run).await?;
            Ok(Exit::Ok)
        })
        .await
    }
}
