//! Facts about the host that the engine does not have. The host sets them once, for people.

use std::{collections::BTreeMap, path::PathBuf};

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{metrics::Scrape, operator::ShownSettings};

/// A setting of the host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ConfigItem {
    /// The key, as in the configuration file: `retention.age`.
    pub key: String,
    /// The effective value. Secrets are names, never values.
    #[schema(value_type = serde_json::Value)]
    pub value: serde_json::Value,
    /// The source of the value: `flag` (or its environment variable), `file` or `default`.
    pub origin: String,
}

/// The verdict of a line of `doctor`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DoctorVerdict {
    /// Nothing to do.
    Ok,
    /// The checked part works, with a risk.
    Warn,
    /// The checked part does not work.
    Fail,
}

/// A line of `doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DoctorLine {
    /// The verdict.
    pub verdict: DoctorVerdict,
    /// The subject of the check.
    pub what: String,
    /// The finding.
    pub says: String,
    /// The remedy.
    pub next: Option<String>,
}

impl DoctorLine {
    /// Creates a line.
    pub fn new(verdict: DoctorVerdict, what: &str, says: impl Into<String>) -> Self {
        Self { verdict, what: what.to_owned(), says: says.into(), next: None }
    }

    /// Adds what helps.
    #[must_use]
    pub fn next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }
}

/// A node of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeView {
    /// The number of the node: each time a process joins, it gets a new one.
    pub node: i64,
    /// The name of the node.
    pub name: String,
    /// `up`: it has the runs. `draining`: it has them and hands over. `standby`: it forwards requests.
    pub state: String,
    /// The number of runs that it drives for the node that has them.
    #[serde(default)]
    pub runs: usize,
    /// The release that it runs.
    pub version: String,
    /// The address of the node for clients.
    pub url: String,
    /// The time until its lease ends, in milliseconds; below zero, it is late.
    pub lease_ms: i64,
    /// RFC 3339, UTC: when it joined.
    pub started_at: String,
}

/// The host around an engine.
pub trait HostFacts: Send + Sync {
    /// Returns the data directory.
    fn data(&self) -> PathBuf;

    /// Returns the effective configuration.
    fn config(&self) -> Vec<ConfigItem>;

    /// Returns the effective settings of the operators that the configuration declares, by name.
    fn operators(&self) -> BTreeMap<String, ShownSettings>;

    /// Returns the nodes of the cluster that have not ended; none for a host that is alone.
    fn nodes(&self) -> Vec<NodeView>;

    /// Adds what the host counts itself to a reading of the metrics.
    fn measure(&self, scrape: &mut Scrape);

    /// Examines the host. May take as long as its operators and secrets take to answer.
    fn examine(&self) -> BoxFuture<'_, Vec<DoctorLine>>;
}
