//! Traces and metrics over OTLP (http/protobuf), off by default.
//!
//! Spans are made from the journal: a follower reads the entries of all runs after their commit, and
//! makes a span where a step or a run ends. The journal is the queue, so a collector that is away
//! costs no memory and delays no run. The place of the follower is stored after an export, and the
//! next process continues there, so a kill of the process loses no span. A span that is sent twice
//! has the same id.
//!
//! Spans of requests of MCP clients are no part of the journal. They are exported from memory, and
//! those that do not fit are dropped.

mod contents;
mod exporter;
mod follow;
mod keys;
mod known;
mod message;
mod metrics;
mod open_step;
mod requests;
mod send;
mod settings;
mod spans;
mod step;
mod talk;

pub use follow::start;
pub use settings::{BadSetting, Endpoint, Settings};
