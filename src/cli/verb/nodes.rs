//! `nodes`: lists the nodes of the cluster.

use anyhow::Result;
use clap::Args;

use crate::cli::{connect::Start, context::Context, exit::Exit, render::fitted};

/// List the nodes of the cluster: which one has the runs, and which stand by
#[derive(Debug, Args)]
pub struct Nodes {}

impl Nodes {
    /// Runs the command.
    ///
    /// # Errors
    /// A daemon that refuses.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        cx.with(Start::Existing, async |at| {
            let nodes = at.client.nodes().await?;
            if cx.terminal.json {
                cx.terminal.print_json(&nodes)?;
                return Ok(Exit::Ok);
            }
            if nodes.is_empty() {
                cx.terminal.say("no nodes: this daemon is alone");
                return Ok(Exit::Ok);
            }
            let rows = nodes.iter().map(|it| {
                let lease = format!("{} ms", it.lease_ms);
                let (name, url) = (it.name.clone(), it.url.clone());
                vec![name, it.state.clone(), lease, it.version.clone(), it.started_at.clone(), url]
            });
            let heads = ["node", "state", "lease", "version", "since", "url"];
            cx.terminal.print(&fitted(cx.terminal.width(), &heads, rows))?;
            Ok(Exit::Ok)
        })
        .await
    }
}
