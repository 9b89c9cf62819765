//! `link`: makes a link with which a person answers a task once.

use anyhow::Result;
use clap::Args;
use serde_json::json;

use crate::cli::{
    connect::Start,
    context::Context,
    exit::Exit,
    resolve::{self, Candidates},
};

/// Make a link with which one person answers one task, once, without signing in
#[derive(Debug, Args)]
pub struct Link {
    /// The task: its id, or `last`, the newest for people
    task: String,
    /// The person who answers with it
    #[arg(long = "for", value_name = "NAME")]
    person: String,
    /// The lifetime of the link, at most 7 days
    #[arg(long, default_value = "7d")]
    ttl: String,
}

impl Link {
    /// Runs the command.
    ///
    /// # Errors
    /// A token that may not mint one for that person, or a task that does not ask them.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        let task = resolve::task(&self.task)?;
        cx.with(Start::Existing, async |at| {
            let task = task.find(&at.client, Candidates::People).await?;
            let body = json!({ "for": self.person, "ttl": self.ttl });
            let link = at.client.link(task, &body).await?;
            match cx.terminal.json {
                true => cx.terminal.print_json(&link)?,
                false => cx.terminal.print(link["url"].as_str().unwrap_or_default())?,
            }
            Ok(Exit::Ok)
        })
        .await
    }
}
