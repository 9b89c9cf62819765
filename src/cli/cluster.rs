//! The settings of a node, as the host takes them.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::Result;
use clap::Args;

use crate::{
    cli::exit::Stop,
    config::{ClusterLayer, Config, parse_lend},
    engine::Lend,
    environment::Text,
    host::ClusterConfig,
    store::{ClusterKey, LeaseTimes},
};

/// The longest name of a node, in bytes.
const LONGEST_NAME: usize = 64;

/// The flags of a node.
#[derive(Debug, Default, Args)]
pub struct ClusterFlags {
    /// File of the key that all nodes share; makes this daemon a node of a cluster over --store
    #[arg(long, value_name = "FILE", env = "MOONSWARM_CLUSTER_KEY")]
    cluster_key: Option<PathBuf>,
    /// Name of this node, for people [default: that of the machine, and the process]
    #[arg(long, value_name = "NAME", env = "MOONSWARM_NODE")]
    node: Option<String>,
    /// Address to listen on for the other nodes [default: a free port of 127.0.0.1]
    #[arg(long, value_name = "ADDRESS", env = "MOONSWARM_PEER_LISTEN")]
    peer_listen: Option<SocketAddr>,
    /// Host and port at which the other nodes reach this one [default: --peer-listen]
    #[arg(long, value_name = "HOST:PORT", env = "MOONSWARM_PEER_ADDRESS")]
    peer_address: Option<String>,
    /// The time without a renewal after which another node may take over [default: 10s]
    #[arg(long, value_name = "DURATION", env = "MOONSWARM_CLUSTER_LEASE", value_parser = crate::cli::values::duration)]
    cluster_lease: Option<Duration>,
    /// Runs that this node lends to those that stand by: auto (while it is busy), even, or off [default: auto]
    #[arg(long, value_name = "RULE", env = "MOONSWARM_CLUSTER_LEND", value_parser = parse_lend)]
    cluster_lend: Option<Lend>,
}

impl ClusterFlags {
    /// Returns the flags of a command that needs the key alone.
    pub fn of_key(key: PathBuf) -> Self {
        Self { cluster_key: Some(key), ..Self::default() }
    }

    /// Returns the settings that the flags make, if there is one.
    pub fn layer(&self) -> Option<ClusterLayer> {
        let layer = ClusterLayer {
            key: self.cluster_key.clone().map(|path| Text::File { path, prefix: String::new() }),
            node: self.node.clone(),
            peer_listen: self.peer_listen,
            peer_address: self.peer_address.clone(),
            url: None,
            lease: self.cluster_lease,
            lend: self.cluster_lend,
        };
        let is_set = layer.key.is_some()
            || layer.node.is_some()
            || layer.peer_listen.is_some()
            || layer.peer_address.is_some()
            || layer.lease.is_some()
            || layer.lend.is_some();
        is_set.then_some(layer)
    }
}

/// Returns the settings of this node, if it is one.
///
/// # Errors
/// Fails when there is no key, or a setting makes no sense.
pub fn settings(config: &Config) -> Result<Option<ClusterConfig>> {
    let Some(cluster) = &config.cluster else { return Ok(None) };
    let Some(key) = &cluster.key else {
        return Err(Stop::usage("a node of a cluster needs the key of the cluster")
            .next("`moonswarm cluster key --out FILE` makes one; --cluster-key FILE names it")
            .into());
    };
    if config.store.is_none() {
        return Err(Stop::usage("the nodes of a cluster share a PostgreSQL database")
            .next("name it with --store postgres://HOST/NAME")
            .into());
    }
    if matches!(key, Text::Plain(_)) {
        return Err(Stop::usage("the cluster's key is where others can read it")
            .next("name a variable or a file: key = { file = \"/etc/moonswarm/cluster.key\" }")
            .into());
    }
    let key: ClusterKey = key
        .resolve()?
        .expose()
        .parse()
        .map_err(|error| Stop::usage(format!("failed to {error}")))?;
    let whole = cluster.lease.unwrap_or(LeaseTimes::default().whole);
    let (least, most) = (LeaseTimes::SHORTEST, LeaseTimes::LONGEST);
    if whole < least || whole > most {
        let message = format!("the lease of a node has {least:?} to {most:?}, not {whole:?}");
        return Err(Stop::usage(message).into());
    }
    let is_name = |name: &String| {
        !name.is_empty() && name.len() <= LONGEST_NAME && !name.contains(char::is_control)
    };
    if let Some(name) = cluster.node.as_ref().filter(|name| !is_name(name)) {
        let message = format!("{name:?} is no name of a node: 1 to {LONGEST_NAME} bytes");
        return Err(Stop::usage(message).into());
    }
    Ok(Some(ClusterConfig {
        key,
        name: cluster.node.clone(),
        peer_listen: cluster.peer_listen.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 0))),
        peer_address: cluster.peer_address.clone(),
        url: cluster.url.clone(),
        times: LeaseTimes { whole },
        lend: cluster.lend.unwrap_or_default(),
    }))
}
