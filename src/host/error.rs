//! The reasons why a host could not be opened.

use std::net::SocketAddr;

use crate::door;

/// The reason why a host could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] crate::store::StoreError),
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] crate::engine::EngineError),
    /// A file of the data directory failed.
    #[error("{what} {path}: {reason}")]
    File {
        /// The operation.
        what: &'static str,
        /// The file.
        path: String,
        /// The reason, and a remedy.
        reason: String,
    },
    /// The certificate cannot be used.
    #[error("serve with TLS: failed to {0}")]
    Tls(#[from] door::TlsError),
    /// Others than the proxies could name people.
    #[error(transparent)]
    People(#[from] door::PeopleError),
    /// A setting is out of its bounds.
    #[error("use the configuration: {0}")]
    Config(String),
    /// A node has no cluster key, or no PostgreSQL database.
    #[error("join a cluster: it takes a PostgreSQL database and the cluster's key")]
    NoCluster,
    /// The other nodes cannot know where this one is.
    #[error(
        "join a cluster: {address} is every address of this machine; name the one at which the other nodes \
         reach it with --peer-address"
    )]
    NoPeerAddress {
        /// The address.
        address: SocketAddr,
    },
    /// The system has no randomness.
    #[error("make a key: the system has no randomness")]
    NoRandomness,
    /// Others could read the tokens on their way.
    #[error("listen on {address} without TLS: whoever is on the way could read tokens and results")]
    Exposed {
        /// The address.
        address: SocketAddr,
    },
    /// The address cannot be listened on.
    #[error("listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error.
        source: std::io::Error,
    },
}
