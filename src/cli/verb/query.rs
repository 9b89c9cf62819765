//! `query`: asks a run's `on_query` function.

use anyhow::Result;
use clap::Args;

use crate::cli::{connect::Start, context::Context, exit::Exit, resolve};

/// Call a query of a run's flow
#[derive(Debug, Args)]
pub struct Query {
    /// The run: an id, a unique prefix of one, or `last`
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
