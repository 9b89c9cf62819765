//! The accept loop: a limit of connections, a timeout for heads, a graceful shutdown.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{Router, extract::Request};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
};
use tower::Service;

use super::{
    Code, Door, Limits,
    arrival::Proxies,
    connections::Connections,
    linger::lingering,
    peer::{Listener, Peer},
    problem::Problem,
};
use crate::{metrics::Gauge, tasks::Tasks};

/// Returns the response for a connection above the limit, which is then closed.
fn full(most: usize) -> String {
    let detail = format!(
        "{most} connections are open, or half of them from this address; close one, or come back in a second"
    );
    let problem = Problem::new(Code::TooManyConnections, detail);
    let body = serde_json::to_string(problem.body()).expect("a problem is plain data");
    format!(
        "HTTP/1.1 {}\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        problem.status(),
        body.len()
    )
}

/// The delay after the system refused a connection (for example, out of file descriptors).
const REST: Duration = Duration::from_millis(50);

/// The write timeout of a connection, as a multiple of the timeout for a WebSocket message.
const TAKEN: u32 = 3;

/// The service that answers requests.
pub type Routes = Router;

/// Serves the router on `listener` until `tasks` is stopped. Then it accepts no new connections,
/// completes the requests in progress and returns.
pub async fn serve(listener: Listener, behind: Router, door: &Door, tasks: &Tasks) {
    let limits = match listener.is_of_nodes() {
        true => &door.limits.of_nodes(),
        false => &door.limits,
    };
    accept(listener, behind, (limits, &door.connections, &door.proxies), tasks).await;
}

async fn accept(
    listener: Listener,
    router: Router,
    (limits, connections, proxies): (&Limits, &Arc<Gauge>, &Arc<Proxies>),
    tasks: &Tasks,
) {
    let places = Connections::new(limits.connections, connections);
    let full = full(limits.connections);
    let builder = protocol(limits, tasks);
    let graceful = GracefulShutdown::new();
    let of_bodies = Arc::new(tasks.clone());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = tasks.stopping().cancelled() => break,
        };
        let incoming = match accepted {
            Ok(incoming) => incoming,
            Err(error) => {
                tracing::warn!(%error, "failed to accept a connection");
                tokio::time::sleep(REST).await;
                continue;
            }
        };
        let peer = incoming.peer();
        let address = match peer {
            // A proxy stands for many clients.
            Peer::Remote { address, .. } => Some(address).filter(|it| !proxies.has(*it)),
            Peer::Local | Peer::Node => None,
        };
        let Some(place) = places.take(address) else {
            incoming.turn_away(&full);
            continue;
        };
        // The node at the other end limits the sockets of its clients.
        let (of_request, of_stream) = match peer {
            Peer::Node => (Some(place), None),
            Peer::Remote { .. } | Peer::Local => (None, Some(place)),
        };
        let spoke = Arc::new(AtomicBool::new(false));
        let service = {
            let (router, of_bodies) = (router.clone(), Arc::clone(&of_bodies));
            let (spoke, proxies) = (Arc::clone(&spoke), Arc::clone(proxies));
            service_fn(move |mut request: Request<Incoming>| {
                spoke.store(true, Ordering::Relaxed);
                proxies.note(&mut request, peer);
                router.clone().call(lingering(request, &of_bodies))
            })
        };
        let opening = incoming.open(limits.send_time.saturating_mul(TAKEN), of_stream);
        let (builder, watcher) = (builder.clone(), graceful.watcher());
        let (head_time, stopping) = (limits.head_time, tasks.stopping().clone());
        tasks.spawn(async move {
            let _place = of_request;
            let opened = tokio::select! {
                opened = tokio::time::timeout(head_time, opening) => opened,
                () = stopping.cancelled() => return,
            };
            // A peer that does not complete its handshake has sent no request.
            let Ok(Ok(stream)) = opened else { return };
            let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
            attend(watcher.watch(connection), &spoke, head_time).await;
        });
    }
    drop(listener);
    graceful.shutdown().await;
}

/// Drives a connection to its end. Drops it if no request arrives within `head_time`: hyper's own
/// timer starts only after it has detected the protocol.
async fn attend<E>(
    connection: impl Future<Output = Result<(), E>>,
    spoke: &AtomicBool,
    head_time: Duration,
) {
    tokio::pin!(connection);
    // The error of a connection is ignored: its requests have been answered.
    tokio::select! {
        _ = &mut connection => return,
        () = tokio::time::sleep(head_time) => {}
    }
    if spoke.load(Ordering::Relaxed) {
        let _ = connection.await;
    }
}

fn protocol(limits: &Limits, tasks: &Tasks) -> auto::Builder<Spawner> {
    let mut builder = auto::Builder::new(Spawner(tasks.clone()));
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_time)
        .max_buf_size(limits.head_bytes)
        .max_headers(limits.headers);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(20))
        .max_concurrent_streams(256)
        .max_header_list_size(u32::try_from(limits.head_bytes).unwrap_or(u32::MAX));
    builder
}

/// Runs hyper's background work (HTTP/2 streams) as tasks of the host.
#[derive(Clone)]
struct Spawner(Tasks);

impl<F> hyper::rt::Executor<F> for Spawner
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, future: F) {
        self.0.spawn(future);
    }
}

#[cfg(test)]
mod tests;
