//! `artifacts`: the files of a run.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use futures::StreamExt;
use tokio::io::AsyncWriteExt;

use crate::cli::{
    connect::{Connection, Start},
    context::Context,
    download::Download,
    exit::{Exit, Stop},
    render::{fitted, printable},
    resolve,
};

/// List or fetch the files of a run
#[derive(Debug, Args)]
pub struct Artifacts {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the files of a run
    #[command(visible_alias = "ls")]
    List {
        /// The run: an id, a unique prefix of one, or `last`
        run: String,
    },
    /// Print a file, or write it with -o
    Get {
        /// The file's id, or RUN/NAME
        file: String,
        /// The file to write
        #[arg(short, long)]
        output: Option<PathBuf>,
    },
}

impl Artifacts {
    /// Runs the command.
    ///
    /// # Errors
    /// No such run or file.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        cx.with(Start::Existing, async |at| match &self.action {
            Action::List { run } => list(cx, at, run).await,
            Action::Get { file, output } => get(cx, at, file, output.as_ref()).await,
        })
        .await
    }
}

async fn list(cx: &Context, at: &Connection, run: &str) -> Result<Exit> {
    let id = resolve::run(&at.client, run).await?;
    let files = at.client.artifacts(id).await?;
    if cx.terminal.json {
        cx.terminal.print_json(&files)?;
    } else if files.is_empty() {
        cx.terminal.say(&format!("run {id} has no files"));
    } else {
        let rows = files.iter().map(|file| {
            vec![
                file.id.to_string(),
                printable(&file.name),
                file.size.to_string(),
                file.step.to_string(),
            ]
        });
        cx.terminal.print(&fitted(
            cx.terminal.width(),
            &["file", "name", "bytes", "step"],
            rows,
        ))?;
    }
    Ok(Exit::Ok)
}

async fn get(cx: &Context, at: &Connection, file: &str, output: Option<&PathBuf>) -> Result<Exit> {
    let id = match file.split_once('/') {
        Some((run, name)) => named(at, run, name).await?,
        None => file.to_owned(),
    };
    let answer = at.client.artifact(&id).await?;
    match output {
        // A device or a pipe cannot be replaced by a file.
        Some(path) if path.metadata().is_ok_and(|it| !it.is_file()) => {
            let to = tokio::fs::File::create(path).await;
            let mut to = to.with_context(|| format!("write {}", path.display()))?;
            let mut content = answer.bytes_stream();
            while let Some(bytes) = content.next().await {
                to.write_all(&bytes.context("read the file")?).await.context("write the file")?;
            }
            to.flush().await.context("write the file")?;
        }
        Some(path) => {
            Download::over(path)?.fill(answer).await?;
        }
        None => cx.terminal.print_parts(answer.bytes_stream(), "the file").await?,
    }
    Ok(Exit::Ok)
}

async fn named(at: &Connection, run: &str, name: &str) -> Result<String> {
    let id = resolve::run(&at.client, run).await?;
    let files = at.client.artifacts(id).await?;
    // The last file of a name is the one that the run ended with.
    let found = files.iter().rev().find(|file| file.name == name);
    found.map(|file| file.id.to_string()).ok_or_else(|| {
        Stop::new(Exit::NotFound, format!("run {id} has no file {name}"))
            .next(format!("moonswarm artifacts list {id}"))
            .into()
    })
}
