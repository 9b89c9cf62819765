//! `whoami`: whose token the other commands use.

use anyhow::Result;
use clap::Args;

use crate::cli::{connect::Start, context::Context, exit::Exit, render::printable};

/// Show the owner and the permissions of the current token
#[derive(Debug, Args)]
pub struct Whoami {}

impl Whoami {
    /// Runs the command.
    ///
    /// # Errors
    /// A token that is not valid, or no daemon.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        cx.with(Start::Existing, async |at| {
            let who = at.client.whoami().await?;
            if cx.terminal.json {
                cx.terminal.print_json(&who)?;
                return Ok(Exit::Ok);
            }
            let text = |key: &str| who[key].as_str().map(printable);
            let list = |key: &str| -> Vec<String> {
                let items = who[key].as_array().into_iter().flatten();
                items.filter_map(|it| it.as_str().map(printable)).collect()
            };
            let subject = text("subject").unwrap_or_else(|| "the worker of an attempt".to_owned());
            let mut lines = vec![format!("{subject} ({})", text("role").unwrap_or_default())];
            lines.extend(text("expires_at").map(|at| format!("  until   {at}")));
            lines.extend(text("jti").map(|jti| format!("  id      {jti}")));
            let scopes = list("scopes");
            if !scopes.is_empty() {
                lines.push(format!("  scopes  {}", scopes.join(" ")));
            }
            lines.push(format!("  verbs   {}", list("verbs").join(" ")));
            cx.terminal.print(&lines.join("\n"))?;
            Ok(Exit::Ok)
        })
        .await
    }
}
