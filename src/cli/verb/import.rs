//! `import`: a run from a document.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;

use crate::cli::{connect::Start, context::Context, exit::Exit};

/// Take a run in from a document that `export` wrote
#[derive(Debug, Args)]
pub struct Import {
    /// The document
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

impl Import {
    /// Does it.
    ///
    /// # Errors
    /// A document that is not whole, of another version, or too large.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        let read = tokio::fs::read(&self.file).await;
        let document = read.with_context(|| format!("read {}", self.file.display()))?;
        cx.with(Start::Fresh, async |at| {
            let run = at.client.import(document).await?;
            if cx.terminal.json {
                cx.terminal.print_json(&run)?;
            } else {
                cx.terminal.print(&run.id.to_string())?;
            }
            for on in run.waiting_on.iter().filter(|on| on.kind == "resume") {
                cx.terminal.say(&on.what);
            }
            Ok(Exit::Ok)
        })
        .await
    }
}
