//! `query`: asks a run's `on_query` function.

use anyhow::Result;
use clap::Args;

use crate::cli::{connect::Start, context::Context, exit::Exit, resolve};

/// Ask a run what its flow answers to a query
#[derive(Debug, Args)]
pub struct Query {
    /// The run: an id, a unique beginning of one, or `last`
    run: String,
    /// The query's name
    name: String,
}

impl Query {
    /// Runs the command.
    ///
    /// # Errors
    /// No such run or query, or a query that fails.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        cx.with(Start::Existing, async |at| {
            let id = resolve::run(&at.client, &self.run).await?;
            let value = at.client.query(id, &self.name).await?;
            cx.terminal.print_value(&value)?;
            Ok(Exit::Ok)
        })
        .await
    }
}
