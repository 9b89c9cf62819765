//! Connections to other nodes: opened with the keys of both ends, and kept for later requests.
//!
//! A node closes a connection on which no request comes for a while. A request that is written at that moment
//! may have been received or not. So no connection is used that has been idle for long, and none but young
//! ones for what cannot be sent again.

use std::{io, sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderName, HeaderValue, StatusCode, Uri, header},
};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::{net::TcpStream, time::timeout};

use super::node_keys::NodeKeys;
use crate::{clock::Clock, store::PeerAddress, tasks::Tasks};

/// The header of a refusal by a node that does not drive; nothing was done.
pub(super) const NOT_DRIVER: HeaderName = HeaderName::from_static("x-moonswarm-not-driver");
/// The path at which a node says whether it reaches the database, and whether it drives.
pub(super) const DATABASE: &str = "/peer/database";
/// The maximum time of a connection attempt with its handshake.
const CONNECT: Duration = Duration::from_secs(3);
/// The time that a kept connection may take to be ready for another request.
const AGAIN_READY: Duration = Duration::from_millis(50);
/// The maximum number of connections that are kept for later requests.
const KEPT: usize = 64;
/// A connection is used again within this part of the time after which its node closes it.
const OLD: u32 = 2;
/// The same for a request that cannot be sent again.
const YOUNG: u32 = 5;

/// A node that drives.
#[derive(Clone)]
pub(super) struct Driver {
    pub(super) node: i64,
    pub(super) peer: PeerAddress,
}

/// The connections to other nodes.
#[derive(Clone)]
pub(super) struct Links(Arc<Inner>);

struct Inner {
    keys: NodeKeys,
    kept: Mutex<Vec<IdleConnection>>,
    /// The time after which a node closes a connection without a request.
    idle_time: Duration,
    clock: Clock,
    tasks: Tasks,
}

/// A connection that has answered a request.
struct IdleConnection {
    node: i64,
    sender: SendRequest<Body>,
    since_ms: u64,
}

/// The outcome of a connection attempt.
pub(super) enum Link {
    /// A connection to the node.
    Open(SendRequest<Body>),
    /// The node does not drive yet, or no longer.
    NotDriving,
    /// The node cannot be reached.
    Unreached,
}

/// The properties of a request that decide which connection it gets.
#[derive(Clone, Copy)]
pub(super) struct Needs {
    /// True if it can be sent again when the connection breaks.
    pub(super) can_repeat: bool,
    /// True if it can be sent only once: the node must be asked before whether it drives.
    pub(super) is_once: bool,
}

/// The answer of a node to the question whether it reaches the database and drives.
#[derive(Clone, Copy)]
pub(super) struct Said {
    pub(super) reaches_database: bool,
    pub(super) drives: bool,
}

impl Links {
    /// Creates the connections of a node, of which there are none yet. Other nodes close one on which nothing
    /// comes for `idle_time`.
    pub(super) fn new(keys: NodeKeys, idle_time: Duration, clock: Clock, tasks: Tasks) -> Self {
        Self(Arc::new(Inner { keys, kept: Mutex::default(), idle_time, clock, tasks }))
    }

    /// Returns a connection to a node for one request.
    pub(super) async fn connect(&self, driver: &Driver, needs: Needs) -> Link {
        let part = if needs.can_repeat { OLD } else { YOUNG };
        while let Some(mut sender) = self.take(driver.node, self.0.idle_time / part) {
            match timeout(AGAIN_READY, sender.ready()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => continue,
                // The rest are no more ready.
                Err(_) => break,
            }
            if !needs.is_once {
                return Link::Open(sender);
            }
            match timeout(CONNECT, ask(&mut sender)).await {
                Ok(Ok(said)) => return self.judged(driver, sender, said),
                Ok(Err(_)) | Err(_) => break,
            }
        }
        match timeout(CONNECT, self.open(&driver.peer)).await {
            Ok(Ok((sender, said))) => self.judged(driver, sender, said),
            Ok(Err(error)) => {
                tracing::debug!(%error, node = driver.node, "failed to reach the node that drives");
                Link::Unreached
            }
            Err(_) => Link::Unreached,
        }
    }

    fn judged(&self, driver: &Driver, sender: SendRequest<Body>, said: Said) -> Link {
        if said.drives {
            return Link::Open(sender);
        }
        self.keep(driver.node, sender);
        Link::NotDriving
    }

    /// Returns true if a node says that it drives.
    pub(super) async fn drives(&self, driver: &Driver) -> bool {
        match self.connect(driver, Needs { can_repeat: true, is_once: true }).await {
            Link::Open(sender) => {
                self.keep(driver.node, sender);
                true
            }
            Link::NotDriving | Link::Unreached => false,
        }
    }

    /// Keeps a connection for a later request.
    pub(super) fn keep(&self, node: i64, sender: SendRequest<Body>) {
        let since_ms = self.0.clock.steady_ms();
        let mut kept = self.0.kept.lock();
        if kept.len() == KEPT {
            kept.remove(0);
        }
        kept.push(IdleConnection { node, sender, since_ms });
    }

    /// Takes the connection to a node that was idle for the shortest time, at most `idle`: one that is ready,
    /// if there is one. Forgets those that are of no use.
    fn take(&self, node: i64, idle: Duration) -> Option<SendRequest<Body>> {
        let now_ms = self.0.clock.steady_ms();
        let is_within = |it: &IdleConnection, limit: Duration| {
            u128::from(now_ms.saturating_sub(it.since_ms)) <= limit.as_millis()
        };
        let mut kept = self.0.kept.lock();
        let old = self.0.idle_time / OLD;
        kept.retain(|it| it.node == node && !it.sender.is_closed() && is_within(it, old));
        let fits = |it: &IdleConnection| is_within(it, idle);
        let ready = kept.iter().rposition(|it| fits(it) && it.sender.is_ready());
        let at = ready.or_else(|| kept.iter().rposition(fits))?;
        Some(kept.remove(at).sender)
    }

    /// Opens a connection to a node, and returns what that one says of itself. The question shows that the
    /// node has accepted our key, which it checks after our end of the handshake is done.
    ///
    /// # Errors
    /// Fails when the node cannot be reached, or has another key.
    pub(super) async fn open(&self, peer: &PeerAddress) -> io::Result<(SendRequest<Body>, Said)> {
        let stream = TcpStream::connect(&peer.at).await?;
        stream.set_nodelay(true)?;
        let (connector, name) = self.0.keys.connector(peer);
        let stream = connector.connect(name, stream).await?;
        let opened = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        let (mut sender, connection) = opened;
        // The requests report the end of a connection.
        self.0.tasks.spawn(async move { drop(connection.with_upgrades().await) });
        let said = ask(&mut sender).await?;
        Ok((sender, said))
    }
}

async fn ask(sender: &mut SendRequest<Body>) -> io::Result<Said> {
    let mut question = Request::new(Body::empty());
    *question.uri_mut() = Uri::from_static(DATABASE);
    question.headers_mut().insert(header::HOST, HeaderValue::from_static("node"));
    let answer = sender.send_request(question).await.map_err(io::Error::other)?;
    let said = Said {
        reaches_database: answer.status() == StatusCode::OK,
        drives: !answer.headers().contains_key(NOT_DRIVER),
    };
    drop(answer);
    sender.ready().await.map_err(io::Error::other)?;
    Ok(said)
}
