//! `delete`: ended runs, with everything that belongs to them.

use anyhow::Result;
use clap::Args;
use serde_json::json;

use crate::cli::{connect::Start, context::Context, exit::Exit, resolve};

/// Delete ended runs with their histories and files
#[derive(Debug, Args)]
pub struct Delete {
    /// The runs: ids, or unique prefixes of ids
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<String>,
}

impl Delete {
    /// Runs the command.
    ///
    /// # Errors
    /// No such run, one that has not ended, or one that something open needs.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        cx.with(Start::Existing, async |at| {
            let mut deleted = Vec::new();
            for run in &self.runs {
                let id = resolve::run(&at.client, run).await?;
                at.client.delete(id).await?;
                cx.terminal.say(&format!("run {id} is gone"));
                deleted.push(id);
            }
            if cx.terminal.json {
                cx.terminal.print_json(&json!({"deleted": deleted}))?;
            }
            Ok(Exit::Ok)
        })
        .await
    }
}
