//! `expire`: ends the wait for people's answer to a task.

use anyhow::Result;
use clap::Args;

use super::settle;
use crate::cli::{
    connect::Start,
    context::Context,
    exit::Exit,
    resolve::{self, Candidates},
};

/// Expire a task, as if its time had run out
#[derive(Debug, Args)]
pub struct Expire {
    /// The task: its id, or `last`, the newest for people
    task: String,
}

impl Expire {
    /// Runs the command.
    ///
    /// # Errors
    /// No such task, one that is closed, or one that is not for people.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        let task = resolve::task(&self.task)?;
        cx.with(Start::Existing, async |at| {
            let task = task.find(&at.client, Candidates::People).await?;
            let expired = at.client.expire(task).await?;
            if cx.terminal.json {
                cx.terminal.print_json(&expired)?;
            } else {
                cx.terminal.say(&format!("expired {task}"));
            }
            settle(cx, at, expired.run).await?;
            Ok(Exit::Ok)
        })
        .await
    }
}
