//! The listeners of the host.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use tokio::net::TcpListener;

use super::{
    HostError,
    files::{DataFiles, Server},
    socket::{self, Bound},
};
use crate::{
    api,
    door::{self, Door, DoorConfig, Listener, Looked, Tls},
    engine::Engine,
    tasks::Tasks,
};

/// The interval at which the files of the certificate are looked at.
const LOOKS: Duration = Duration::from_secs(2);

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
    tasks.spawn(async move {
        door::serve(Listener::new(listener, None), router, &door, &served_by).await;
    });
}

/// Serves a new certificate when its files have changed, and tells the commands of the data
/// directory. One that cannot be used is logged.
pub(super) fn renew(tls: Arc<Tls>, files: DataFiles, server: Server, tasks: &Tasks) {
    let (stopping, spawns) = (tasks.stopping().clone(), tasks.clone());
    tasks.spawn(async move {
        loop {
            tokio::select! {
                () = stopping.cancelled() => return,
                () = tokio::time::sleep(LOOKS) => {}
            }
            let (tls, files, server) = (Arc::clone(&tls), files.clone(), server.clone());
            let look = spawns.spawn_blocking(move || {
                let looked = tls.look();
                if let Looked::Replaced { fingerprint, .. } = &looked {
                    let mut server = server;
                    server.certificate = Some(fingerprint.clone());
                    if let Err(error) = files.put_server(&server) {
                        tracing::warn!(%error, "commands here do not trust the new certificate");
                    }
                }
                looked
            });
            match look.await {
                Ok(Looked::Replaced { until, .. }) => {
                    tracing::info!(until, "a new certificate is served");
                }
                Ok(Looked::Refused(error)) => {
                    tracing::error!(%error, "a new certificate cannot be used; the one before is served");
                }
                // The task fails only when the host stops.
                Ok(Looked::Same) | Err(_) => {}
            }
        }
    });
}

/// Returns the URL by which workers reach the host, and people its links. With TLS it has the first
/// of its names, which a certificate has sooner than an address.
pub(super) fn url_of(config: &DoorConfig, url: &str, address: SocketAddr) -> String {
    match config.hosts.first() {
        Some(name) if config.tls.is_some() => match address.port() {
            443 => format!("https://{name}"),
            port => format!("https://{name}:{port}"),
        },
        Some(_) | None => url.to_owned(),
    }
}

/// Refuses to listen where others could read the tokens on their way: beyond this machine, in plain
/// text, and with no proxy in front.
pub(super) fn check_exposure(address: SocketAddr, door: &DoorConfig) -> Result<(), HostError> {
    let is_safe = address.ip().to_canonical().is_loopback()
        || door.tls.is_some()
        || !door.proxies.is_empty()
        || door.insecure;
    if is_safe { Ok(()) } else { Err(HostError::Exposed { address }) }
}

/// Listens on the socket in the data directory. Without it, commands use the port.
pub(super) fn local(data: &Path) -> Option<(Listener, Bound)> {
    match socket::bind(data) {
        Ok((listener, bound)) => Some((Listener::local(listener), bound)),
        Err(error) => {
            tracing::info!(%error, "no socket in the data directory; commands use the port");
            None
        }
    }
}
