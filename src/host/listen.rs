//! The listeners of the host.

use std::{net::SocketAddr, sync::Arc};

use tokio::net::TcpListener;

use super::HostError;
use crate::{
    api,
    door::{self, Door, DoorConfig},
    engine::Engine,
    tasks::Tasks,
};

/// Listens on an address; returns the one that it got.
pub(super) async fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), HostError> {
    let failed = |source| HostError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

/// Serves the metrics, and nothing else, without a token.
pub(super) fn serve_metrics(
    engine: &Engine,
    config: &DoorConfig,
    (listener, address): (TcpListener, SocketAddr),
    tasks: &Tasks,
) {
    let door = Arc::new(Door::new(config, address));
    let router = api::metrics_router(engine.clone(), Arc::clone(&door));
    let served_by = tasks.clone();
    tasks.spawn(async move { door::serve(listener, router, &door, &served_by).await });
}
