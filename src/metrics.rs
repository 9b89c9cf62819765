//! The counters of the host, and their texts for Prometheus and OpenMetrics.
//!
//! Owns atomics that the store, the engine and the door add to, and the table of all families.
//! A reading collects them together with what the engine knows at that moment into a [`Scrape`],
//! which is written as text, or sent as OTLP. Refuses labels without a limit: a name beyond the limit of its
//! family is counted as [`OTHER`], and no label is an id.

mod catalogue;
mod cluster;
mod commits;
mod counts;
mod family;
mod http;
pub mod log_lines;
mod mcp;
mod number;
mod process;
mod scrape;
mod text;

pub use catalogue::{Described, FAMILIES, Kind};
pub use cluster::ClusterCounts;
pub use commits::Commits;
pub use counts::{Attempt, Counts, ModelCall, RunSeries, ShardGauges};
pub use family::{OTHER, Series};
pub use http::{HttpCounts, Requested};
pub use mcp::McpCounts;
pub use number::{Counter, Gauge, Histogram};
pub use process::collect as collect_process;
pub use scrape::{Points, Sample, Scrape, Value};
pub use text::{Format, write};
