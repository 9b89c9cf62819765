//! `operators`: lists who executes tasks.

use anyhow::Result;
use clap::Args;

use crate::cli::{connect::Start, context::Context, exit::Exit, render::table};

/// List the operators, and how many sessions are open as each
#[derive(Debug, Args)]
pub struct Operators {}

impl Operators {
    /// Does it.
    ///
    /// # Errors
    /// A daemon that refuses.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        cx.with(Start::Existing, async |at| {
            let operators = at.client.operators().await?;
            if cx.terminal.json {
                cx.terminal.print_json(&operators)?;
                return Ok(Exit::Ok);
            }
            let rows = operators.iter().map(|operator| {
                let sessions = match operator.sessions {
                    Some(open) => format!("{open} open, {} connected", operator.connected),
                    None => String::new(),
                };
                vec![operator.name.clone(), operator.kind.clone(), sessions]
            });
            cx.terminal.print(&table(&["operator", "kind", "sessions"], rows))?;
            Ok(Exit::Ok)
        })
        .await
    }
}
