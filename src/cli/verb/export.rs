//! `export`: a run as a document.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::cli::{connect::Start, context::Context, download::Download, exit::Exit, resolve};

/// Export a run as a document for `import`
#[derive(Debug, Args)]
pub struct Export {
    /// The run: an id, a unique prefix of one, or `last`
    run: String,
    /// Write to this file instead of stdout
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Overwrite an existing file
    #[arg(long, requires = "output")]
    force: bool,
}

impl Export {
    /// Runs the command.
    ///
    /// # Errors
    /// No such run, one that no import takes, a file that is there already.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        let to = self.output.as_ref().map(|to| Download::new(to, self.force)).transpose()?;
        cx.with(Start::Existing, async |at| {
            let id = resolve::run(&at.client, &self.run).await?;
            let answer = at.client.export(id).await?;
            match to {
                Some(to) => {
                    let bytes = to.fill(answer).await?;
                    cx.terminal.say(&format!("run {id}: {bytes} bytes"));
                }
                None => cx.terminal.print_parts(answer.bytes_stream(), "the document").await?,
            }
            Ok(Exit::Ok)
        })
        .await
    }
}
