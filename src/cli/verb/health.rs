//! `health`: whether the daemon answers; for the health checks of containers and services.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use serde_json::json;

use crate::cli::{client::Client, connect::Owner, context::Context, exit::Exit};

/// Ask the daemon whether it answers; needs no token, and starts none
#[derive(Debug, Args)]
pub struct Health {
    /// How long to wait for the answer
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = crate::cli::values::duration)]
    within: Duration,
}

impl Health {
    /// Runs the command.
    ///
    /// # Errors
    /// Nobody answers.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        let owner = || Owner::read(&cx.config.data).map(|owner| owner.url);
        let url = cx.target.server.clone().or_else(owner);
        let url = url.unwrap_or_else(|| format!("http://{}", cx.config.listen));
        Client::new(&url, "")?.healthy(self.within).await?;
        match cx.terminal.json {
            true => cx.terminal.print_json(&json!({ "status": "ok", "url": url }))?,
            false => cx.terminal.print(&format!("ok: {url}"))?,
        }
        Ok(Exit::Ok)
    }
}
