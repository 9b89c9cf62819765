//! `signal`: sends a signal to a run, or to a blueprint that waits for one.

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use super::settle;
use crate::cli::{connect::Start, context::Context, exit::Exit, resolve, values};

/// Send a signal to a run
#[derive(Debug, Args)]
pub struct Signal {
    /// The run: an id, a unique prefix of one, or `last`; with --blueprint, a blueprint's name
    run: String,
    /// The signal's name
    name: String,
    /// The payload: JSON, @FILE, or - for stdin [default: true]
    #[arg(allow_negative_numbers = true)]
    payload: Option<String>,
    /// Send it to a blueprint, which starts a run
    #[arg(long)]
    blueprint: bool,
}

impl Signal {
    /// Runs the command.
    ///
    /// # Errors
    /// No such run, one that has ended, or a full queue.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        let payload = self.payload.as_deref().map(values::document).transpose()?;
        cx.with(Start::Existing, async |at| {
            let payload = payload.unwrap_or(Value::Bool(true));
            if self.blueprint {
                let made = at.client.signal_blueprint(&self.run, &self.name, &payload).await?;
                match cx.terminal.json {
                    true => cx.terminal.print_json(&made)?,
                    false => cx.terminal.print(&made.id().to_string())?,
                }
                settle(cx, at, made.id()).await?;
                return Ok(Exit::Ok);
            }
            let id = resolve::run(&at.client, &self.run).await?;
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
