//! `signal`: sends a signal to a run.

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use super::settle;
use crate::cli::{connect::Start, context::Context, exit::Exit, resolve, values};

/// Send a signal to a run
#[derive(Debug, Args)]
pub struct Signal {
    /// The run: an id, a unique beginning of one, or `last`
    run: String,
    /// The signal's name
    name: String,
    /// The payload: JSON, @FILE, or - for stdin [default: true]
    payload: Option<String>,
}

impl Signal {
    /// Does it.
    ///
    /// # Errors
    /// No such run, one that has ended, or a full queue.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        let payload = self.payload.as_deref().map(values::document).transpose()?;
        cx.with(Start::Existing, async |at| {
            let id = resolve::run(&at.client, &self.run).await?;
            let payload = payload.unwrap_or(Value::Bool(true));
            at.client.signal(id, &self.name, &payload).await?;
            if cx.terminal.json {
                cx.terminal.print_json(&json!({"run": id, "signal": self.name}))?;
            } else {
                cx.terminal.say(&format!("{} was sent to {id}", self.name));
            }
            settle(cx, at, id).await?;
            Ok(Exit::Ok)
        })
        .await
    }
}
