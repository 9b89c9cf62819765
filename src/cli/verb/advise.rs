//! `advise`: answers what a working attempt asked.

use anyhow::Result;
use clap::Args;

use super::settle;
use crate::cli::{connect::Start, context::Context, exit::Exit, resolve, values};

/// Answer a question that a worker asked a senior
#[derive(Debug, Args)]
pub struct Advise {
    /// The task's id
    task: String,
    /// The answer: JSON, @FILE, or - for stdin
    answer: String,
}

impl Advise {
    /// Runs the command.
    ///
    /// # Errors
    /// No such task, or one that asks nothing.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        let task = resolve::task(&self.task)?;
        let answer = values::document(&self.answer)?;
        cx.with(Start::Existing, async |at| {
            let told = at.client.advise(task, &answer).await?;
            match cx.terminal.json {
                true => cx.terminal.print_json(&told)?,
                false => cx.terminal.say(&format!("{task} goes on with the answer")),
            }
            settle(cx, at, told.run).await?;
            Ok(Exit::Ok)
        })
        .await
    }
}
