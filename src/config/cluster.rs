//! The settings of a node of a cluster.

use std::{net::SocketAddr, time::Duration};

use serde::Deserialize;

use crate::environment::Text;

/// The settings of a node in one source.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterLayer {
    /// The key that all nodes share: `{ file = "/etc/moonswarm/cluster.key" }`.
    pub key: Option<Text>,
    /// The name of this node, for people.
    pub node: Option<String>,
    /// The address to listen on for the other nodes.
    pub peer_listen: Option<SocketAddr>,
    /// The host and port at which the other nodes reach this one, if that is another.
    pub peer_address: Option<String>,
    /// The address of the cluster for workers: that of the load balancer.
    pub url: Option<String>,
    /// The time after its last renewal at which another node may take over: `10s`.
    #[serde(default, deserialize_with = "super::duration")]
    pub lease: Option<Duration>,
}

impl ClusterLayer {
    /// Merges this layer over another, which supplies the settings that this one does not have.
    #[must_use]
    pub fn over(self, below: Self) -> Self {
        Self {
            key: self.key.or(below.key),
            node: self.node.or(below.node),
            peer_listen: self.peer_listen.or(below.peer_listen),
            peer_address: self.peer_address.or(below.peer_address),
            url: self.url.or(below.url),
            lease: self.lease.or(below.lease),
        }
    }
}
