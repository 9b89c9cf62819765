//! `import`: a run from a document.

use std::{
    io,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use clap::Args;
use tokio::{fs::File, io::AsyncReadExt as _};

use crate::cli::{connect::Start, context::Context, exit::Exit};

/// What the host takes; more of a file or a pipe is not read.
const MOST: u64 = 128 << 20;

/// Import a run from a document that `export` wrote
#[derive(Debug, Args)]
pub struct Import {
    /// The document
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

impl Import {
    /// Runs the command.
    ///
    /// # Errors
    /// A document that is not whole, of another version, or too large.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        let read = read(&self.file).await;
        let document = read.with_context(|| format!("read {}", self.file.display()))?;
        cx.with(Start::Fresh, async |at| {
            let run = at.client.import(document).await?;
            if cx.terminal.json {
                cx.terminal.print_json(&run)?;
            } else {
                cx.terminal.print(&run.id.to_string())?;
            }
            for on in run.waiting_on.iter().filter(|on| on.kind == "resume") {
                let why = on.subject.reason.as_deref().unwrap_or_default();
                cx.terminal.say(&format!("{why}; `moonswarm resume {}` goes on", run.id));
            }
            Ok(Exit::Ok)
        })
        .await
    }
}

async fn read(file: &Path) -> io::Result<Vec<u8>> {
    let mut document = Vec::new();
    let read = File::open(file).await?.take(MOST + 1).read_to_end(&mut document).await?;
    match read as u64 > MOST {
        true => Err(io::Error::other("it is larger than the 128 MiB that a host takes")),
        false => Ok(document),
    }
}
