//! `host`: the daemon as it is now, with its effective configuration.

use anyhow::Result;
use clap::Args;

use crate::cli::{connect::Start, context::Context, exit::Exit, render::fitted};

/// Show the daemon: health, disk, shards, and its effective configuration with origins
#[derive(Debug, Args)]
pub struct Host {}

impl Host {
    /// Runs the command.
    ///
    /// # Errors
    /// A daemon that refuses.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        cx.with(Start::Existing, async |at| {
            let host = at.client.host().await?;
            if cx.terminal.json {
                cx.terminal.print_json(&host)?;
                return Ok(Exit::Ok);
            }
            let state = match &host.reason {
                None => "takes work".to_owned(),
                Some(reason) => format!("not ready: {reason}"),
            };
            let mib = |bytes: Option<u64>| bytes.map_or("?".to_owned(), |it| (it >> 20).to_string());
            cx.terminal.print(&format!(
                "moonswarm {} at {}, up since {}: {state}\n{} shards, {} open runs; the database has {} MiB, {} MiB are free",
                host.version,
                host.url,
                host.started_at,
                host.shards,
                host.open_runs,
                mib(host.database_bytes),
                mib(host.disk_free_bytes),
            ))?;
            if let Some(config) = &host.config {
                let rows = config.iter().map(|it| {
                    vec![it.key.clone(), it.value.to_string(), it.origin.clone()]
                });
                let heads = ["setting", "value", "from"];
                cx.terminal.print(&fitted(cx.terminal.width(), &heads, rows))?;
            }
            Ok(Exit::Ok)
        })
        .await
    }
}
