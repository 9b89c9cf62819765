//! `approve`: says yes to a task.

use anyhow::Result;
use clap::Args;

use super::{answer::missing, settle};
use crate::{
    cli::{
        connect::Start,
        context::Context,
        exit::Exit,
        form, people,
        resolve::{self, Candidates},
    },
    protocol::Json,
};

/// Approve a task
#[derive(Debug, Args)]
pub struct Approve {
    /// The task: its id, or `last`, the newest that asks you
    task: String,
    /// A note for the flow, if the task accepts one
    note: Option<String>,
    /// Only if the task still has this revision [default: the current one]
    #[arg(long)]
    revision: Option<String>,
}

impl Approve {
    /// Runs the command.
    ///
    /// # Errors
    /// No such task, one that is closed, or one that wants more than a yes.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        let id = resolve::task(&self.task)?;
        cx.with(Start::Existing, async |at| {
            let id = id.find(&at.client, Candidates::You).await?;
            let task = at.client.task(id).await?;
            let schema = task.output_schema.as_ref().map(Json::to_value);
            let yes = people::approval(schema.as_ref(), self.note.as_deref())?;
            let body = form::body(&task, self.revision.as_deref(), ("output", yes));
            let answered = at.client.answer(id, &body).await?;
            if cx.terminal.json {
                cx.terminal.print_json(&answered)?;
            } else {
                cx.terminal.say(&format!("approved {id}{}", missing(&answered)));
            }
            settle(cx, at, task.run).await?;
            Ok(Exit::Ok)
        })
        .await
    }
}
