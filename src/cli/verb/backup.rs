//! `backup`: one state of the whole data directory, in a file.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde_json::json;

use crate::cli::{connect::Start, context::Context, download::Download, exit::Exit};

/// Back up the database to a file, while it is in use
#[derive(Debug, Args)]
pub struct Backup {
    /// The file to write
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Overwrite an existing file
    #[arg(long)]
    force: bool,
}

impl Backup {
    /// Runs the command.
    ///
    /// # Errors
    /// A file that is there already, a disk that is full.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        let to = Download::new(&self.file, self.force)?;
        cx.with(Start::Existing, async |at| {
            let bytes = to.fill(at.client.backup().await?).await?;
            if cx.terminal.json {
                cx.terminal.print_json(&json!({"file": self.file, "bytes": bytes}))?;
            } else {
                let file = self.file.display();
                cx.terminal.say(&format!("{bytes} bytes in {file}"));
                cx.terminal.say(&format!(
                    "  `moonswarm restore {file} --data DIR` makes a data directory of it"
                ));
            }
            Ok(Exit::Ok)
        })
        .await
    }
}
