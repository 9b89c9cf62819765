//! `advise`: answers what a working attempt asked.

use anyhow::Result;
use clap::Args;

use super::settle;
use crate::cli::{
    connect::Start,
    context::Context,
    exit::Exit,
    form,
    resolve::{self, Candidates},
    values,
};

/// Answer a question that a worker asked a senior
#[derive(Debug, Args)]
pub struct Advise {
    /// The task: its id, or `last`, the newest whose worker asks
    task: String,
    /// The answer: JSON, @FILE, or - for stdin
    answer: String,
    /// Only if the task still has this revision [default: the current one]
    #[arg(long)]
    revision: Option<String>,
}

impl Advise {
    /// Runs the command.
    ///
    /// # Errors
    /// No such task, or one that asks nothing or something else.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        let task = resolve::task(&self.task)?;
        let answer = values::document(&self.answer)?;
        cx.with(Start::Existing, async |at| {
            let task = task.find(&at.client, Candidates::Senior).await?;
            let asking = at.client.task(task).await?;
            let body = form::body(&asking, self.revision.as_deref(), ("answer", answer.clone()));
            let told = at.client.advise(task, &body).await?;
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
