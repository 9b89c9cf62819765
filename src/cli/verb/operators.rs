//! `operators`: lists who executes tasks.

use anyhow::Result;
use clap::Args;

use crate::cli::{connect::Start, context::Context, exit::Exit, render::fitted};

/// List operators, and the number of open sessions of each
#[derive(Debug, Args)]
pub struct Operators {}

impl Operators {
    /// Runs the command.
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
                let about = match (&operator.members, operator.sessions) {
                    (Some(members), _) => {
                        let rule = operator.rule.as_deref().unwrap_or("composite");
                        format!("{rule} of {}", members.join(", "))
                    }
                    (None, Some(open)) => {
                        format!("{open} sessions open, {} connected", operator.connected)
                    }
                    (None, None) => String::new(),
                };
                vec![operator.name.clone(), operator.kind.clone(), about]
            });
            cx.terminal.print(&fitted(
                cx.terminal.width(),
                &["operator", "kind", "about"],
                rows,
            ))?;
            Ok(Exit::Ok)
        })
        .await
    }
}
