//! The nodes of a cluster, as one of them sees all: who drives, who stands by, and how to reach them.

use std::time::Duration;

use super::StoreError;
use crate::clock::boot_ms;

/// The time after the end of a lease at which its node counts as dead, in milliseconds.
const MARGIN_MS: i64 = 1_000;

/// The state of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeState {
    /// The node waits to take over, and forwards requests.
    Standby,
    /// The node drives the runs.
    Up,
    /// The node drives the runs and is about to hand them over.
    Draining,
    /// The node has ended.
    Gone,
}

impl NodeState {
    /// Returns the word for it in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Standby => "standby",
            Self::Up => "up",
            Self::Draining => "draining",
            Self::Gone => "gone",
        }
    }

    /// Returns the state of a word; one that is not known counts as ended.
    pub fn of(word: &str) -> Self {
        match word {
            "standby" => Self::Standby,
            "up" => Self::Up,
            "draining" => Self::Draining,
            _ => Self::Gone,
        }
    }
}

/// The address at which other nodes reach a node, and the key by which they know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerAddress {
    /// A host and a port.
    pub at: String,
    /// The SHA-256 of its public key.
    pub fingerprint: [u8; 32],
}

/// A node: one start of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRow {
    /// The number of the node, which is never used again.
    pub node: i64,
    /// The name of the node, for people.
    pub name: String,
    /// The release that it runs.
    pub version: String,
    /// The newest format of the database that it knows.
    pub format: i32,
    /// The state of the node.
    pub state: NodeState,
    /// The address of the node for clients.
    pub url: String,
    /// The address of the node for other nodes; absent for a host without a cluster, or with another key.
    pub peer: Option<PeerAddress>,
    /// The time until its lease ends, by the database's clock, in milliseconds; below zero after it.
    pub lease_ms: i64,
    /// The time of its start, in Unix milliseconds.
    pub started_ms: u64,
    /// The time of the database minus the time of the node's machine, in milliseconds, if it is known.
    pub clock_ms: Option<i64>,
}

impl NodeRow {
    /// Returns true if nobody may end it yet.
    pub fn is_alive(&self) -> bool {
        self.state != NodeState::Gone && self.lease_ms >= -MARGIN_MS
    }

    /// Returns true if it has the runs, whether it is alive or not.
    pub fn has_runs(&self) -> bool {
        matches!(self.state, NodeState::Up | NodeState::Draining)
    }
}

/// The nodes of a cluster as one of them saw them at its last look.
#[derive(Debug, Clone, Default)]
pub struct ClusterView {
    /// The number of the node that looked.
    pub me: i64,
    /// The nodes that have not ended.
    pub nodes: Vec<NodeRow>,
    /// True if the last look reached the database.
    pub reached: bool,
    /// True if this node was ended by another.
    pub fenced: bool,
    /// Changes whenever a sealed key does.
    pub keys: i64,
    /// The time until which the node trusts its lease, by the clock of its machine since its boot.
    pub trusted_until_ms: u64,
    /// The refusal of this node, if the database works with newer releases only.
    pub refusal: Option<StoreError>,
}

impl ClusterView {
    /// Returns the time for which the node still trusts its lease, in milliseconds.
    pub fn trusted_ms(&self) -> u64 {
        self.trusted_until_ms.saturating_sub(boot_ms())
    }

    /// Returns the node that drives, if it is alive and stays.
    pub fn driver(&self) -> Option<&NodeRow> {
        self.nodes.iter().find(|it| it.state == NodeState::Up && it.is_alive())
    }

    /// Returns true if no living node has the runs.
    pub fn is_vacant(&self) -> bool {
        self.reached && !self.nodes.iter().any(|it| it.has_runs() && it.is_alive())
    }

    /// Returns the living nodes other than the one that looked.
    pub fn others(&self) -> impl Iterator<Item = &NodeRow> {
        self.nodes.iter().filter(|it| it.node != self.me && it.is_alive())
    }
}

/// The state of a rolling upgrade.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finalized {
    /// The format of the tables.
    pub format: i32,
    /// The format up to which the nodes write what older releases cannot read.
    pub feature: i32,
    /// True if the nodes do not raise it by themselves.
    pub held: bool,
}

/// The times of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTimes {
    /// The time for which a renewal counts.
    pub whole: Duration,
}

impl Default for LeaseTimes {
    fn default() -> Self {
        Self { whole: Duration::from_secs(10) }
    }
}

impl LeaseTimes {
    /// The shortest lease.
    pub const SHORTEST: Duration = Duration::from_secs(2);
    /// The longest lease.
    pub const LONGEST: Duration = Duration::from_secs(120);

    /// Returns the interval of renewals.
    pub fn renewal(self) -> Duration {
        (self.whole / 3).min(Duration::from_secs(3))
    }

    /// Returns the time after the sending of a renewal for which the node trusts it: less than the
    /// lease, so that it stops before another node may begin.
    pub fn trusted(self) -> Duration {
        self.whole - (self.whole / 5).min(Duration::from_secs(2))
    }

    /// Returns the lease in milliseconds.
    pub fn whole_ms(self) -> i64 {
        i64::try_from(self.whole.as_millis()).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(node: i64, state: NodeState, lease_ms: i64) -> NodeRow {
        let (name, version, url) = (node.to_string(), String::new(), String::new());
        let (format, peer, clock_ms) = (1, None, None);
        NodeRow { node, name, version, format, state, url, peer, lease_ms, started_ms: 0, clock_ms }
    }

    #[test]
    fn a_cluster_is_vacant_when_nobody_alive_has_the_runs() {
        let view = |nodes: Vec<NodeRow>| ClusterView { nodes, reached: true, ..<_>::default() };
        let standby = node(2, NodeState::Standby, 9_000);
        assert!(view(vec![standby.clone()]).is_vacant());
        assert!(!view(vec![node(1, NodeState::Up, -900), standby.clone()]).is_vacant());
        assert!(view(vec![node(1, NodeState::Up, -1_100), standby.clone()]).is_vacant());
        let draining = view(vec![node(1, NodeState::Draining, 5_000), standby]);
        assert!(!draining.is_vacant() && draining.driver().is_none());
        let unseen = ClusterView { reached: false, ..view(Vec::new()) };
        assert!(!unseen.is_vacant(), "who sees nothing takes nothing over");
    }

    #[test]
    fn a_node_trusts_its_lease_for_less_than_others_wait() {
        for seconds in [2, 6, 10, 60] {
            let times = LeaseTimes { whole: Duration::from_secs(seconds) };
            assert!(times.trusted() < times.whole);
            assert!(times.renewal() * 2 < times.trusted(), "one renewal may fail");
        }
    }
}
