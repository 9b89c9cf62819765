//! The listeners of the host.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use tokio::net::TcpListener;

use super::{
    HostConfig, HostError,
    files::{self, DataFiles, Server},
    socket::{self, Bound},
};
use crate::{
    api,
    clock::Clock,
    door::{self, Door, DoorConfig, Listener, Looked, Routes, Tls},
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

/// The bound ports of a host, before it serves anything on them.
pub(super) struct Ports {
    listener: TcpListener,
    /// The address for clients.
    pub(super) address: SocketAddr,
    /// The base URL.
    pub(super) url: String,
    tls: Option<Arc<Tls>>,
    certificate: Option<String>,
    metrics: Option<(TcpListener, SocketAddr)>,
}

impl Ports {
    /// Binds the ports of a configuration. If one is in use and another process has the data
    /// directory, probably as the one that listens, the directory is what is refused.
    pub(super) async fn bind(config: &HostConfig) -> Result<Self, HostError> {
        let tls = match &config.door.tls {
            Some(files) => Some(Tls::open(files.clone(), Clock::system())?),
            None => None,
        };
        let refused = |error| files::owned(&config.data).map_or(error, HostError::Store);
        let (listener, address) = bind(config.listen).await.map_err(refused)?;
        let metrics = match config.metrics {
            Some(address) => Some(bind(address).await.map_err(refused)?),
            None => None,
        };
        let scheme = if tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{address}");
        let (tls, certificate) = tls.map(|(tls, it)| (Arc::new(tls), it.fingerprint())).unzip();
        Ok(Self { listener, address, url, tls, certificate, metrics })
    }

    /// Returns the address of the metrics, if they are served on one.
    pub(super) fn metrics_at(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(|(_, at)| *at)
    }

    /// Serves on the ports, and publishes the address for the commands of the data directory.
    pub(super) fn serve(
        self,
        behind: Routes,
        metrics: Option<Routes>,
        door: &Arc<Door>,
        (files, incarnation): (&DataFiles, u64),
        tasks: &Tasks,
    ) -> Result<(), HostError> {
        serve(Listener::new(self.listener, self.tls.clone()), behind, door, tasks);
        if let (Some((listener, _)), Some(metrics)) = (self.metrics, metrics) {
            serve(Listener::new(listener, None), metrics, door, tasks);
        }
        let server = Server::new(&self.url, incarnation, self.certificate);
        files.put_server(&server)?;
        if let Some(tls) = self.tls {
            renew(tls, files.clone(), server, tasks);
        }
        Ok(())
    }
}

/// Serves on a listener until the host stops.
pub(super) fn serve(listener: Listener, behind: Routes, door: &Arc<Door>, tasks: &Tasks) {
    let (door, by) = (Arc::clone(door), tasks.clone());
    tasks.spawn(async move { door::serve(listener, behind, &door, &by).await });
}

/// Returns the routes of the metrics, and nothing else, without a token.
pub(super) fn metrics_routes(engine: &Engine, config: &DoorConfig, address: SocketAddr) -> Routes {
    let door = Arc::new(Door::new(config, address));
    api::metrics_router(engine.clone(), door)
}

/// Serves a new certificate when its files have changed, and publishes it for the commands of the
/// data directory, again and again while that fails. One that cannot be used is logged.
fn renew(tls: Arc<Tls>, files: DataFiles, mut server: Server, tasks: &Tasks) {
    let (stopping, spawns) = (tasks.stopping().clone(), tasks.clone());
    tasks.spawn(async move {
        let mut published = Published::Yes;
        loop {
            tokio::select! {
                () = stopping.cancelled() => return,
                () = tokio::time::sleep(LOOKS) => {}
            }
            let looking = Arc::clone(&tls);
            match spawns.spawn_blocking(move || looking.look()).await {
                Ok(Looked::Replaced { fingerprint, until }) => {
                    tracing::info!(until, "a new certificate is served");
                    server.certificate = Some(fingerprint);
                    published = Published::NotYet;
                }
                Ok(Looked::Refused(error)) => {
                    tracing::error!(%error, "a new certificate cannot be used; the one before is served");
                }
                // The task fails only when the host stops.
                Ok(Looked::Same) | Err(_) => {}
            }
            if published != Published::Yes {
                published = publish(&files, &server, &spawns, published).await;
            }
        }
    });
}

/// Says if the commands of the data directory know the certificate that is served.
#[derive(PartialEq)]
enum Published {
    Yes,
    NotYet,
    Failed,
}

/// Publishes the entry of a host with a new certificate. The first failure is logged.
async fn publish(
    files: &DataFiles,
    server: &Server,
    tasks: &Tasks,
    before: Published,
) -> Published {
    let (files, server) = (files.clone(), server.clone());
    match tasks.spawn_blocking(move || files.put_server(&server)).await {
        Ok(Ok(())) => Published::Yes,
        // The disk may be full for a while.
        Ok(Err(error)) => {
            if before == Published::NotYet {
                tracing::warn!(%error, "commands here do not trust the new certificate yet");
            }
            Published::Failed
        }
        // The task fails only when the host stops.
        Err(_) => before,
    }
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

/// Refuses to listen where others could read the tokens on their way (beyond this machine, in plain
/// text, and with no proxy in front), and where others than the proxies could name people.
pub(super) fn check_exposure(address: SocketAddr, door: &DoorConfig) -> Result<(), HostError> {
    let is_safe = address.ip().to_canonical().is_loopback()
        || door.tls.is_some()
        || !door.proxies.is_empty()
        || door.insecure;
    if !is_safe {
        return Err(HostError::Exposed { address });
    }
    match &door.people {
        Some(people) => Ok(people.check(&door.proxies)?),
        None => Ok(()),
    }
}

/// Serves on the socket in the data directory. Without it, commands use the port.
pub(super) fn serve_local(
    data: &Path,
    behind: Routes,
    door: &Arc<Door>,
    tasks: &Tasks,
) -> Option<Bound> {
    match socket::bind(data) {
        Ok((listener, bound)) => {
            serve(Listener::local(listener), behind, door, tasks);
            Some(bound)
        }
        Err(error) => {
            tracing::info!(%error, "no socket in the data directory; commands use the port");
            None
        }
    }
}
