//! `answer`: gives a task its output, as JSON or field by field.

use anyhow::Result;
use clap::Args;
use serde_json::Value;

use super::settle;
use crate::{
    cli::{
        connect::Start,
        context::Context,
        exit::{Exit, Stop},
        form,
        resolve::{self, Candidates},
        terminal::Questions,
        values,
    },
    engine::TaskView,
};

/// Answer a task with a value, or field by field
#[derive(Debug, Args)]
pub struct Answer {
    /// The task: its id, or `last`, the newest that asks you
    task: String,
    /// The output: JSON, @FILE, or - for stdin; without it, each field is asked for
    #[arg(allow_negative_numbers = true)]
    output: Option<String>,
    /// Only if the task still has this revision [default: the current one]
    #[arg(long)]
    revision: Option<String>,
}

impl Answer {
    /// Runs the command.
    ///
    /// # Errors
    /// No such task, one that is closed or has changed, or a value that does not match its schema.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        let id = resolve::task(&self.task)?;
        let given = self.output.as_deref().map(values::document).transpose()?;
        cx.with(Start::Existing, async |at| {
            let id = id.find(&at.client, Candidates::You).await?;
            let task = at.client.task(id).await?;
            let output = match &given {
                Some(output) => output.clone(),
                None => ask(cx, &task).await?,
            };
            let body = form::body(&task, self.revision.as_deref(), ("output", output));
            let answered = at.client.answer(id, &body).await?;
            if cx.terminal.json {
                cx.terminal.print_json(&answered)?;
            } else {
                cx.terminal.say(&format!("answered {id}{}", missing(&answered)));
            }
            settle(cx, at, task.run).await?;
            Ok(Exit::Ok)
        })
        .await
    }
}

/// Asks whoever sits at the terminal.
async fn ask(cx: &Context, task: &TaskView) -> Result<Value> {
    let Some(form) = task.form.as_ref().filter(|_| cx.terminal.asks) else {
        return Err(Stop::usage("nobody can be asked here: give the output as JSON")
            .next(format!("`moonswarm show {}` shows what it wants", task.id))
            .into());
    };
    cx.terminal.say(form::shown(task)?.trim_end());
    let mut questions = Questions::new();
    let filled = form::fill(form, async |question: &str| questions.ask(question).await).await?;
    filled.ok_or_else(|| Stop::usage("nothing was answered").into())
}

/// Returns the number of missing answers, in a few words; none if there are enough.
pub(super) fn missing(answered: &Value) -> String {
    let heard = answered["answers"].as_array().map_or(0, Vec::len);
    match answered["required"].as_u64() {
        Some(required) if heard > 0 => format!(" ({heard} of {required})"),
        Some(_) | None => String::new(),
    }
}
