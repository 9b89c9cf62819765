//! Requests that another node answers: sent to the node that drives, with the answer streamed back.
//!
//! | what happens | the client gets |
//! |---|---|
//! | nobody drives | the answer of the next driver, or after 15 seconds `503 no_driver` |
//! | the connection breaks before the request was sent | the same |
//! | it breaks after that: a GET, or a request with an `Idempotency-Key` that its route honours | the answer to the same request, sent again at most three times; `502 unknown_outcome` if nobody answers that, `503 no_driver` to a GET |
//! | it breaks after that: any other | `502 unknown_outcome` |
//! | the driver was taken over while it answers | the connection closes |
//! | the driver hangs, or the network brings nothing | as if the connection broke, after about ten seconds |

use std::{
    io,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, Bytes, HttpBody},
    extract::Request,
    http::{Extensions, HeaderName, HeaderValue, StatusCode, Uri, Version, header, request::Parts},
    response::{IntoResponse as _, Response},
};
use hyper::{
    body::{Frame, Incoming, SizeHint},
    client::conn::http1::{self, SendRequest},
    upgrade::OnUpgrade,
};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::{
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{Sleep, sleep, timeout},
};

use super::{
    Code, DoorConfig,
    arrival::{ARRIVAL, Arrival},
    hop::{join_cookies, strip},
    keyed::KeyedRoutes,
    node_keys::NodeKeys,
    outgoing::{Kept, Outbound},
    problem::Problem,
    reach::{Looks, Wanted},
    unanswered::{Outcome, no_driver, not_ready, unknown_outcome},
};
use crate::{
    metrics::ClusterCounts,
    store::{ClusterView, PeerAddress},
    tasks::Tasks,
};

/// The time for which a request waits for a node that drives.
const WAIT: Duration = Duration::from_secs(15);
/// The pause after a node could not be reached.
const PAUSE: Duration = Duration::from_millis(50);
/// The number of times that a request is sent again after its connection broke. A request that ends the node
/// which answers it must not go on for ever.
const REPEATS: u32 = 3;
/// The maximum time of a connection attempt with its handshake.
const CONNECT: Duration = Duration::from_secs(3);
/// The time for which reads that wait at another node go on after this one began to stop.
const LAST: Duration = Duration::from_secs(3);
/// The maximum time of a question to another node.
const ASK: Duration = Duration::from_millis(1_500);
/// The maximum time of the question whether the node that drives is ready.
const READY: Duration = Duration::from_millis(1_500);
/// The time that a kept connection may take to be ready for another request.
const AGAIN_READY: Duration = Duration::from_millis(50);
/// A node that leaves two looks in a row without an answer cannot be reached.
const LOST: Wanted = Wanted { result: false, times: 2, interval: LOOK, limit: LOOK };
/// The maximum time of a look at a node.
const LOOK: Duration = Duration::from_secs(3);
/// The maximum number of connections that are kept for later requests.
const IDLE: usize = 64;
/// The header of a refusal by a node that does not drive; nothing was done.
pub(super) const NOT_DRIVER: HeaderName = HeaderName::from_static("x-moonswarm-not-driver");
/// The path at which a node says whether it reaches the database.
pub(super) const DATABASE: &str = "/peer/database";

/// The answer of the other nodes to the question whether they reach the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeersSay {
    /// There is no other node.
    Alone,
    /// At least one reaches it.
    Reached,
    /// Nodes answer, and none of them reaches the database.
    Away,
    /// No node answers.
    Nothing,
}

/// Forwards requests to the node that drives.
#[derive(Clone)]
pub struct Forwarder(Arc<Inner>);

struct Inner {
    view: watch::Receiver<ClusterView>,
    keys: NodeKeys,
    /// Connections that have answered a request, with the number of their node.
    idle: Mutex<Vec<(i64, SendRequest<Body>)>>,
    places: Arc<Semaphore>,
    kept: Kept,
    /// Waits until a node cannot be reached.
    lost: Looks,
    counts: Arc<ClusterCounts>,
    keyed: KeyedRoutes,
    body_time: Duration,
    listens_on: std::net::SocketAddr,
    tasks: Tasks,
}

/// A node that drives.
#[derive(Clone)]
struct Driver {
    node: i64,
    peer: PeerAddress,
}

/// The outcome of a request that was to be forwarded.
pub(super) enum Passed {
    /// The request has this answer.
    Answered(Response),
    /// This node has taken the runs over, and answers it.
    Ours {
        /// The request.
        request: Request,
        /// True if it was sent to another node before, which may have answered it.
        was_sent: bool,
    },
}

/// The node that answers a request.
enum Answers {
    /// Another node.
    Other(Driver),
    /// This one: it has taken the runs over.
    Ours,
    /// Nobody, for as long as a request waits.
    Nobody,
}

impl Forwarder {
    /// Creates the forwarder of a node that listens for clients on `listens_on`.
    pub fn new(
        view: watch::Receiver<ClusterView>,
        keys: NodeKeys,
        config: &DoorConfig,
        listens_on: std::net::SocketAddr,
        keyed: KeyedRoutes,
        tasks: &Tasks,
    ) -> Self {
        let limits = &config.limits;
        Self(Arc::new(Inner {
            view,
            keys,
            idle: Mutex::default(),
            places: Arc::new(Semaphore::new(limits.in_flight)),
            kept: Kept::default(),
            lost: Looks::new(LOST, config.clock.clone(), tasks.clone()),
            counts: Arc::default(),
            keyed,
            body_time: limits.body_time,
            listens_on,
            tasks: tasks.clone(),
        }))
    }

    /// Returns true if there is a node that requests can be sent to.
    pub(super) fn has_driver(&self) -> bool {
        self.driver().is_some()
    }

    /// Returns true if the last look of this node reached the database.
    pub(super) fn reaches_database(&self) -> bool {
        self.0.view.borrow().reached
    }

    /// Sends a request to the node that drives, and returns its answer. Gives the request back if this node
    /// drives before another does, as `drives` says.
    pub(super) async fn forward(&self, request: Request, drives: watch::Receiver<bool>) -> Passed {
        let outbound = match self.outbound(request).await {
            Ok(outbound) => outbound,
            Err(problem) => return Passed::Answered(problem.into_response()),
        };
        // Taken when the body is there: whoever sends it slowly keeps nobody else out.
        let Ok(place) = Arc::clone(&self.0.places).try_acquire_owned() else {
            let detail = "too many requests are being forwarded; ask again";
            let refusal = Problem::new(Code::Overloaded, detail).retry_after(1).into_response();
            self.0.counts.forwarded("overloaded");
            return Passed::Answered(refusal);
        };
        let passed = self.pass_on(outbound, drives, place).await;
        self.0.counts.forwarded(match &passed {
            Passed::Ours { .. } => "here",
            Passed::Answered(it) => it.extensions().get().map_or("answered", |Outcome(word)| word),
        });
        passed
    }

    /// Returns the counters of this node.
    pub fn counts(&self) -> Arc<ClusterCounts> {
        Arc::clone(&self.0.counts)
    }

    /// Returns a request as it is sent to other nodes, once its body is there.
    async fn outbound(&self, mut request: Request) -> Result<Outbound, Problem> {
        let upgrade = request.extensions_mut().remove::<OnUpgrade>();
        let upgrade = upgrade.filter(|_| request.headers().contains_key(header::UPGRADE));
        let (original, content) = request.into_parts();
        let head = self.head(original.clone(), upgrade.is_some());
        let is_keyed = || self.0.keyed.take(&head.method, original.uri.path(), &head.headers);
        let is_safe = head.method.is_safe() || is_keyed();
        let by = (client_of(&original.extensions), is_safe);
        let body = self.0.kept.keep(&original.headers, content, by, self.0.body_time).await?;
        Ok(Outbound { original, head, upgrade, body, is_safe, was_sent: false })
    }

    async fn pass_on(
        &self,
        mut request: Outbound,
        mut drives: watch::Receiver<bool>,
        place: OwnedSemaphorePermit,
    ) -> Passed {
        let mut repeats = if request.is_safe && request.body.is_kept() { REPEATS } else { 0 };
        let mut waits = Box::pin(sleep(WAIT));
        loop {
            let driver = match self.wait(&mut waits, &mut drives).await {
                Answers::Other(driver) => driver,
                Answers::Ours => {
                    let Some(content) = request.body.take() else {
                        return Passed::Answered(unknown_outcome());
                    };
                    let Outbound { original, upgrade, was_sent, .. } = request;
                    let mut request = Request::from_parts(original, content);
                    if let Some(upgrade) = upgrade {
                        request.extensions_mut().insert(upgrade);
                    }
                    return Passed::Ours { request, was_sent };
                }
                Answers::Nobody => return Passed::Answered(request.given_up()),
            };
            let Some(mut sender) = self.connect(&driver).await else {
                if is_over_after_pause(&mut waits).await {
                    return Passed::Answered(request.given_up());
                }
                continue;
            };
            let Some(content) = request.body.take() else {
                return Passed::Answered(unknown_outcome());
            };
            let mut outgoing = Request::new(content);
            *outgoing.method_mut() = request.head.method.clone();
            *outgoing.uri_mut() = request.head.uri.clone();
            *outgoing.headers_mut() = request.head.headers.clone();
            let sent = tokio::select! {
                sent = sender.try_send_request(outgoing) => sent.map_err(|mut it| it.take_message()),
                () = self.lost(&driver) => Err(None),
                () = self.stops_long_ago(), if request.is_safe => {
                    let detail = "this node is stopping; ask again";
                    let refusal = Problem::new(Code::Stopping, detail).retry_after(1);
                    return Passed::Answered(refusal.into_response());
                }
            };
            match sent {
                Ok(response) if response.headers().contains_key(NOT_DRIVER) => {
                    if !request.body.is_kept() || is_over_after_pause(&mut waits).await {
                        return Passed::Answered(request.given_up());
                    }
                }
                Ok(response) => {
                    return Passed::Answered(self.answer(
                        response,
                        sender,
                        &driver,
                        request.upgrade,
                        place,
                    ));
                }
                // Nothing of it was sent.
                Err(Some(unsent)) => request.body.give_back(unsent.into_body()),
                Err(None) => {
                    request.was_sent = true;
                    if repeats == 0 || is_over_after_pause(&mut waits).await {
                        return Passed::Answered(request.given_up());
                    }
                    repeats -= 1;
                }
            }
        }
    }

    /// Returns the head of a request as it is sent to another node.
    fn head(&self, mut head: Parts, upgrades: bool) -> Parts {
        let arrival = head.extensions.get::<Arrival>().cloned().unwrap_or_default();
        let arrival = Arrival { reached: Some(self.0.listens_on), ..arrival };
        if !head.headers.contains_key(header::HOST)
            && let Some(authority) = head.uri.authority()
            && let Ok(host) = HeaderValue::try_from(authority.as_str())
        {
            head.headers.insert(header::HOST, host);
        }
        let path = head.uri.path_and_query().map_or("/", |it| it.as_str());
        head.uri = Uri::try_from(path).unwrap_or_default();
        head.version = Version::HTTP_11;
        join_cookies(&mut head.headers);
        let protocol = head.headers.get(header::UPGRADE).cloned();
        strip(&mut head.headers);
        head.headers.remove(header::EXPECT);
        if let Some(protocol) = protocol.filter(|_| upgrades) {
            head.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
            head.headers.insert(header::UPGRADE, protocol);
        }
        head.headers.insert(ARRIVAL, arrival.to_header());
        head
    }

    fn driver(&self) -> Option<Driver> {
        let view = self.0.view.borrow();
        let driver = view.driver().filter(|driver| driver.node != view.me)?;
        Some(Driver { node: driver.node, peer: driver.peer.clone()? })
    }

    /// Waits for somebody who drives.
    async fn wait(
        &self,
        waits: &mut Pin<Box<Sleep>>,
        drives: &mut watch::Receiver<bool>,
    ) -> Answers {
        let mut view = self.0.view.clone();
        while !waits.is_elapsed() {
            view.mark_unchanged();
            if *drives.borrow_and_update() {
                return Answers::Ours;
            }
            if let Some(driver) = self.driver() {
                return Answers::Other(driver);
            }
            let is_over = tokio::select! {
                changed = view.changed() => changed.is_err(),
                changed = drives.changed() => changed.is_err(),
                () = waits.as_mut() => true,
            };
            if is_over {
                break;
            }
        }
        Answers::Nobody
    }

    /// Waits until a node no longer has the runs.
    async fn gone(&self, node: i64) {
        let mut view = self.0.view.clone();
        let has_ended = |view: &ClusterView| {
            !view.nodes.iter().any(|it| it.node == node && it.has_runs() && it.is_alive())
        };
        // An error means that this process stops.
        let _ = view.wait_for(has_ended).await;
    }

    /// Waits until a node no longer has the runs, or cannot be reached.
    async fn lost(&self, driver: &Driver) {
        let (forwarder, peer) = (self.clone(), driver.peer.clone());
        let answers = move || {
            let (forwarder, peer) = (forwarder.clone(), peer.clone());
            async move { forwarder.open(&peer).await.is_ok() }
        };
        tokio::select! {
            () = self.gone(driver.node) => {}
            () = self.0.lost.found(driver.node, answers) => {}
        }
    }

    /// Returns what the node that drives says about its readiness: all nodes say the same, because they answer
    /// what it answers.
    pub(super) async fn ready(&self, request: Request, drives: watch::Receiver<bool>) -> Passed {
        if !self.has_driver() {
            return Passed::Answered(not_ready("this node stands by, and no other has the runs"));
        }
        let place = Arc::new(Semaphore::new(1));
        let Ok(place) = place.try_acquire_owned() else { return Passed::Answered(no_driver()) };
        let detail = "this node stands by, and does not reach the one that has the runs";
        let asked = async {
            match self.outbound(request).await {
                Ok(outbound) => self.pass_on(outbound, drives, place).await,
                Err(problem) => Passed::Answered(problem.into_response()),
            }
        };
        match timeout(READY, asked).await {
            Ok(Passed::Answered(it)) if it.extensions().get::<Outcome>().is_some() => {
                Passed::Answered(not_ready(detail))
            }
            Ok(passed) => passed,
            Err(_) => Passed::Answered(not_ready(detail)),
        }
    }

    /// Waits until this process has been stopping for a while.
    async fn stops_long_ago(&self) {
        self.0.tasks.stopping().cancelled().await;
        sleep(LAST).await;
    }

    /// Returns a connection to a node.
    async fn connect(&self, driver: &Driver) -> Option<SendRequest<Body>> {
        loop {
            let idle = {
                let mut idle = self.0.idle.lock();
                idle.retain(|(node, sender)| *node == driver.node && !sender.is_closed());
                idle.pop()
            };
            let Some((_, mut sender)) = idle else { break };
            if let Ok(Ok(())) = timeout(AGAIN_READY, sender.ready()).await {
                return Some(sender);
            }
        }
        match timeout(CONNECT, self.open(&driver.peer)).await {
            Ok(Ok((sender, _))) => Some(sender),
            Ok(Err(error)) => {
                tracing::debug!(%error, node = driver.node, "failed to reach the node that drives");
                None
            }
            Err(_) => None,
        }
    }

    /// Opens a connection to a node, and returns whether that one reaches the database. The question shows
    /// that the node has accepted our key, which it checks after our end of the handshake is done.
    async fn open(&self, peer: &PeerAddress) -> io::Result<(SendRequest<Body>, bool)> {
        let stream = TcpStream::connect(&peer.at).await?;
        stream.set_nodelay(true)?;
        let (connector, name) = self.0.keys.connector(peer);
        let stream = connector.connect(name, stream).await?;
        let opened = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        let (mut sender, connection) = opened;
        // The requests report the end of a connection.
        self.0.tasks.spawn(async move { drop(connection.with_upgrades().await) });
        let mut question = Request::new(Body::empty());
        *question.uri_mut() = Uri::from_static(DATABASE);
        question.headers_mut().insert(header::HOST, HeaderValue::from_static("node"));
        let answer = sender.send_request(question).await.map_err(io::Error::other)?;
        let reaches = answer.status() == StatusCode::OK;
        drop(answer);
        sender.ready().await.map_err(io::Error::other)?;
        Ok((sender, reaches))
    }

    /// Turns the answer of a node into the one for the client.
    fn answer(
        &self,
        mut response: Response<Incoming>,
        sender: SendRequest<Body>,
        driver: &Driver,
        upgrade: Option<OnUpgrade>,
        place: OwnedSemaphorePermit,
    ) -> Response {
        let kind = response.headers().get(header::CONTENT_TYPE);
        // A stream of events ends only when its client or its server wants it.
        let is_endless = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        let gone = {
            let (forwarder, driver) = (self.clone(), driver.clone());
            let stopping = self.0.tasks.stopping().clone();
            Box::pin(async move {
                tokio::select! {
                    () = forwarder.lost(&driver) => {}
                    () = stopping.cancelled(), if is_endless => {}
                }
            })
        };
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let Some(client) = upgrade else { return unknown_outcome() };
            let server = hyper::upgrade::on(&mut response);
            let stopping = self.0.tasks.stopping().clone();
            self.0.tasks.spawn(async move {
                let _place = place;
                let moved = async {
                    let (client, server) = tokio::try_join!(client, server)?;
                    let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
                    // Either end may close it at any time.
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                    Ok::<(), hyper::Error>(())
                };
                tokio::select! {
                    _ = moved => {}
                    () = gone => {}
                    () = stopping.cancelled() => {}
                }
            });
            return response.map(|_| Body::empty());
        }
        let (mut head, body) = response.into_parts();
        strip(&mut head.headers);
        head.version = Version::default();
        let forwarded = Forwarded {
            body,
            ended: false,
            back: Some((driver.node, sender)),
            forwarder: self.clone(),
            gone,
            _place: place,
        };
        Response::from_parts(head, Body::new(forwarded))
    }

    /// Asks the other nodes whether they reach the database.
    pub async fn ask(&self) -> PeersSay {
        let peers: Vec<_> =
            self.0.view.borrow().others().filter_map(|it| it.peer.clone()).collect();
        if peers.is_empty() {
            return PeersSay::Alone;
        }
        let asked = peers.iter().map(|peer| timeout(ASK, self.open(peer)));
        let said = futures::future::join_all(asked).await;
        let said: Vec<bool> =
            said.into_iter().filter_map(|it| it.ok()?.ok()).map(|(_, reaches)| reaches).collect();
        match (said.is_empty(), said.contains(&true)) {
            (true, _) => PeersSay::Nothing,
            (false, true) => PeersSay::Reached,
            (false, false) => PeersSay::Away,
        }
    }
}

/// Returns the address of the client of a request.
fn client_of(extensions: &Extensions) -> Option<IpAddr> {
    extensions.get::<Arrival>().and_then(|arrival| arrival.client)
}

/// Pauses before the next attempt. Returns true if the request has waited for long enough.
async fn is_over_after_pause(waits: &mut Pin<Box<Sleep>>) -> bool {
    waits.is_elapsed()
        || tokio::select! {
            () = sleep(PAUSE) => false,
            () = waits.as_mut() => true,
        }
}

/// The body of an answer, on its way back.
struct Forwarded {
    body: Incoming,
    ended: bool,
    back: Option<(i64, SendRequest<Body>)>,
    forwarder: Forwarder,
    gone: Pin<Box<dyn Future<Output = ()> + Send>>,
    _place: OwnedSemaphorePermit,
}

impl HttpBody for Forwarded {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if polled.is_pending() && self.gone.as_mut().poll(cx).is_ready() {
            // What a node that was ended still says does not count.
            let gone = io::Error::other("the node that answered has ended");
            return Poll::Ready(Some(Err(axum::Error::new(gone))));
        }
        self.ended |= matches!(polled, Poll::Ready(None));
        polled.map_err(axum::Error::new)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Forwarded {
    fn drop(&mut self) {
        if !self.ended && !self.body.is_end_stream() {
            return;
        }
        let mut idle = self.forwarder.0.idle.lock();
        if idle.len() < IDLE
            && let Some(back) = self.back.take()
        {
            idle.push(back);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{door::Limits, store::ClusterView};

    #[tokio::test]
    async fn who_sends_a_body_slowly_takes_no_place_of_others() {
        let (_view, sees) = watch::channel(ClusterView::default());
        let keys = NodeKeys::generate(sees.clone()).unwrap();
        let limits = Limits { in_flight: 1, ..Limits::default() };
        let tasks = Tasks::new(tokio::runtime::Handle::current());
        let at = "127.0.0.1:1".parse().unwrap();
        let config = DoorConfig { limits, ..DoorConfig::default() };
        let forwarder = Forwarder::new(sees, keys, &config, at, KeyedRoutes::default(), &tasks);
        let (_drives, drives) = watch::channel(false);
        let pending = Body::from_stream(futures::stream::pending::<io::Result<Bytes>>());
        let slow = Request::post("/v1/runs").header("content-length", "10").body(pending).unwrap();
        let mut slow = Box::pin(forwarder.forward(slow, drives.clone()));
        assert!(futures::poll!(&mut slow).is_pending());
        let get = || Request::get("/v1/runs").body(Body::empty()).unwrap();
        let mut prompt = Box::pin(forwarder.forward(get(), drives.clone()));
        assert!(futures::poll!(&mut prompt).is_pending(), "it waits for a node that drives");
        let third = forwarder.forward(get(), drives).await;
        let Passed::Answered(refused) = third else { panic!("this node does not drive") };
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
}
