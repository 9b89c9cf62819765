//! `nodes`: lists the nodes of the cluster, and ends or empties one.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::{
    cli::{
        cluster::{self, ClusterFlags},
        connect::Start,
        context::Context,
        database,
        exit::{Exit, Stop},
        render::fitted,
    },
    config::ClusterLayer,
    engine::NodeView,
    environment::Text,
    store::{ClusterKey, PostgresOptions, drain_node, fence_node},
};

/// List the nodes of the cluster: which one has the runs, and which stand by
#[derive(Debug, Args)]
pub struct Nodes {
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show a node
    Show {
        /// Its name, or its number
        name: String,
    },
    /// Ask the node that has the runs to hand them over; it stands by then
    Drain(Act),
    /// End a node at once, such as one that hangs: it writes nothing more, and another takes over
    Fence(Act),
}

#[derive(Debug, Args)]
struct Act {
    /// Its name, or its number
    name: String,
    /// PostgreSQL database of the cluster, postgres://HOST/NAME
    #[arg(long, value_name = "ADDRESS", env = database::VARIABLE, hide_env_values = true)]
    store: Option<String>,
    /// File of the key that all nodes share
    #[arg(long, value_name = "FILE", env = "MOONSWARM_CLUSTER_KEY")]
    cluster_key: Option<PathBuf>,
}

impl Nodes {
    fn act(&self) -> Option<&Act> {
        match self.what.as_ref()? {
            What::Drain(act) | What::Fence(act) => Some(act),
            What::Show { .. } => None,
        }
    }

    /// The database that the flag or its variable names.
    pub fn store(&self) -> Option<Text> {
        self.act()?.store.as_deref().map(database::named)
    }

    /// The key that the flag or its variable names.
    pub fn cluster(&self) -> Option<ClusterLayer> {
        ClusterFlags::of_key(self.act()?.cluster_key.clone()?).layer()
    }

    /// Runs the command.
    ///
    /// # Errors
    /// A daemon that refuses; a database that cannot be reached, or has no such node.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        match &self.what {
            None => list(cx).await,
            Some(What::Show { name }) => show(cx, name).await,
            Some(What::Drain(act)) => {
                let (options, key) = access(cx)?;
                let node = drain_node(&options, &key, &act.name)?;
                cx.terminal.say(&format!("{} hands its runs over, and stands by then", node.name));
                Ok(Exit::Ok)
            }
            Some(What::Fence(act)) => {
                let (options, key) = access(cx)?;
                let node = fence_node(&options, &key, &act.name)?;
                let then =
                    if node.has_runs() { "another takes its runs over" } else { "it stood by" };
                cx.terminal.say(&format!("{} has ended; {then}", node.name));
                Ok(Exit::Ok)
            }
        }
    }
}

/// Returns the database of the cluster, and its key.
fn access(cx: &Context) -> Result<(PostgresOptions, ClusterKey)> {
    match (&cx.config.store, cluster::settings(&cx.config)?) {
        (Some(address), Some(settings)) => {
            Ok((database::options(address, cx.config.durability)?, settings.key))
        }
        _ => Err(Stop::usage("a node is ended through the database of its cluster")
            .next("name it with --store postgres://HOST/NAME, and its key with --cluster-key FILE")
            .into()),
    }
}

async fn list(cx: &Context) -> Result<Exit> {
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
            let (name, state, runs) = (it.name.clone(), it.state.clone(), it.runs.to_string());
            let (version, since, url) = (it.version.clone(), it.started_at.clone(), it.url.clone());
            vec![name, state, runs, lease, version, since, url]
        });
        let heads = ["node", "state", "runs", "lease", "version", "since", "url"];
        cx.terminal.print(&fitted(cx.terminal.width(), &heads, rows))?;
        Ok(Exit::Ok)
    })
    .await
}

async fn show(cx: &Context, name: &str) -> Result<Exit> {
    cx.with(Start::Existing, async |at| {
        let is_meant = |it: &NodeView| it.name == name || it.node.to_string() == name;
        let nodes: Vec<_> = at.client.nodes().await?.into_iter().filter(is_meant).collect();
        if nodes.is_empty() {
            let message = format!("the cluster has no node {name}");
            let next = "`moonswarm nodes` lists them";
            return Err(Stop::new(Exit::NotFound, message).next(next).into());
        }
        if cx.terminal.json {
            cx.terminal.print_json(&nodes)?;
            return Ok(Exit::Ok);
        }
        for it in nodes {
            let lines = [
                ("node", format!("{} (number {})", it.name, it.node)),
                ("state", it.state),
                ("runs", it.runs.to_string()),
                ("lease", format!("{} ms", it.lease_ms)),
                ("version", it.version),
                ("since", it.started_at),
                ("url", it.url),
            ];
            let lines = lines.map(|(what, value)| format!("{what:<8} {value}\n"));
            cx.terminal.print(lines.concat().trim_end())?;
        }
        Ok(Exit::Ok)
    })
    .await
}
