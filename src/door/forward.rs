//! Requests that another node answers: sent to the node that drives, with the answer streamed back.
//!
//! | what happens | the client gets |
//! |---|---|
//! | nobody drives, or not yet | the answer of the next driver, or after 15 seconds `503 no_driver` |
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
    http::{Extensions, HeaderValue, StatusCode, Uri, Version, header, request::Parts},
    response::{IntoResponse as _, Response},
};
use hyper::{
    body::{Frame, Incoming, SizeHint},
    client::conn::http1::SendRequest,
    upgrade::OnUpgrade,
};
use hyper_util::rt::TokioIo;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::timeout,
};

use super::{
    Code, DoorConfig,
    arrival::{ARRIVAL, Arrival},
    hop::{join_cookies, strip},
    keyed::KeyedRoutes,
    links::{Driver, Link, Links, NOT_DRIVER, Needs},
    node_keys::NodeKeys,
    outgoing::{Kept, Outbound},
    problem::Problem,
    reach::{Looks, Wanted},
    unanswered::{Outcome, no_driver, not_ready, overloaded, unknown_outcome},
    waits::Waits,
};
use crate::{clock::Clock, metrics::ClusterCounts, store::ClusterView, tasks::Tasks};

/// The number of times that a request is sent again after its connection broke. A request that ends the node
/// which answers it must not go on for ever.
const REPEATS: u32 = 3;
/// The time for which reads that wait at another node go on after this one began to stop.
const LAST_MS: u64 = 3_000;
/// The maximum time of a question to another node.
const ASK: Duration = Duration::from_millis(1_500);
/// The maximum time of the question whether the node that drives is ready.
const READY: Duration = Duration::from_millis(1_500);
/// A node that leaves two looks in a row without an answer cannot be reached.
const LOST: Wanted = Wanted { result: false, times: 2, interval: LOOK, limit: LOOK };
/// A node that says so drives.
const DRIVES: Wanted =
    Wanted { result: true, times: 1, interval: Duration::from_millis(100), limit: LOOK };
/// The maximum time of a look at a node.
const LOOK: Duration = Duration::from_secs(3);
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
    links: Links,
    places: Arc<Semaphore>,
    kept: Kept,
    /// Waits until a node cannot be reached.
    lost: Looks,
    /// Waits until a node drives.
    drives: Looks,
    counts: Arc<ClusterCounts>,
    keyed: KeyedRoutes,
    body_time: Duration,
    listens_on: std::net::SocketAddr,
    clock: Clock,
    tasks: Tasks,
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

/// What came of a request that was sent to a node.
enum Heard {
    /// The node does not drive; nothing was done.
    NotDriver,
    /// An answer.
    Answer(Response<Incoming>),
    /// Nothing was sent: the body comes back.
    Unsent(Body),
    /// The connection broke: the node may have received the request.
    Broken,
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
        let (limits, clock) = (&config.limits, &config.clock);
        let looks = |wanted| Looks::new(wanted, clock.clone(), tasks.clone());
        Self(Arc::new(Inner {
            view,
            links: Links::new(keys, limits.head_time, clock.clone(), tasks.clone()),
            places: Arc::new(Semaphore::new(limits.in_flight)),
            kept: Kept::default(),
            lost: looks(LOST),
            drives: looks(DRIVES),
            counts: Arc::default(),
            keyed,
            body_time: limits.body_time,
            listens_on,
            clock: clock.clone(),
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
        let passed = match Arc::clone(&self.0.places).try_acquire_owned() {
            Ok(place) => self.pass_on(outbound, drives, place).await,
            Err(_) => Passed::Answered(overloaded()),
        };
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
        let client = client_of(request.extensions());
        let upgrade = request.extensions_mut().remove::<OnUpgrade>();
        let upgrade = upgrade.filter(|_| request.headers().contains_key(header::UPGRADE));
        let (original, content) = request.into_parts();
        let head = self.head(original.clone(), upgrade.is_some());
        let is_keyed = || self.0.keyed.take(&head.method, original.uri.path(), &head.headers);
        let is_safe = head.method.is_safe() || is_keyed();
        let by = (client, is_safe);
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
        let mut waits = Waits::new(self.0.clock.clone());
        loop {
            let driver = match self.wait(&waits, &mut drives).await {
                Answers::Other(driver) => driver,
                Answers::Ours => return ours(request),
                Answers::Nobody => return Passed::Answered(request.given_up()),
            };
            let needs = Needs { can_repeat: repeats > 0, is_once: !request.body.is_kept() };
            let mut sender = match self.0.links.connect(&driver, needs).await {
                Link::Open(sender) => sender,
                Link::NotDriving => {
                    self.until_it_drives(&driver, &mut drives, &waits).await;
                    continue;
                }
                Link::Unreached => {
                    if waits.pause(self.gone(driver.node)).await {
                        return Passed::Answered(request.given_up());
                    }
                    continue;
                }
            };
            let Some(content) = request.body.take() else {
                return Passed::Answered(unknown_outcome());
            };
            let heard = tokio::select! {
                heard = self.send(&mut sender, &request.head, content) => heard,
                () = self.lost(&driver) => Heard::Broken,
                () = self.stops_long_ago(), if request.is_safe => {
                    let detail = "this node is stopping; ask again";
                    let refusal = Problem::new(Code::Stopping, detail).retry_after(1);
                    return Passed::Answered(refusal.into_response());
                }
            };
            match heard {
                Heard::NotDriver => {
                    self.0.links.keep(driver.node, sender);
                    if !request.body.is_kept() {
                        return Passed::Answered(request.given_up());
                    }
                    self.until_it_drives(&driver, &mut drives, &waits).await;
                }
                Heard::Answer(answer) => {
                    let answer = self.answer(answer, sender, &driver, request.upgrade, place);
                    return Passed::Answered(answer);
                }
                Heard::Unsent(body) => {
                    request.body.give_back(body);
                    if waits.pause(self.gone(driver.node)).await {
                        return Passed::Answered(request.given_up());
                    }
                }
                Heard::Broken => {
                    request.was_sent = true;
                    if repeats == 0 || waits.pause(self.gone(driver.node)).await {
                        return Passed::Answered(request.given_up());
                    }
                    repeats -= 1;
                }
            }
        }
    }

    /// Sends a request over a connection.
    async fn send(&self, sender: &mut SendRequest<Body>, head: &Parts, content: Body) -> Heard {
        let mut outgoing = Request::new(content);
        *outgoing.method_mut() = head.method.clone();
        *outgoing.uri_mut() = head.uri.clone();
        *outgoing.headers_mut() = head.headers.clone();
        let answer = match sender.try_send_request(outgoing).await {
            Ok(answer) => answer,
            Err(mut failed) => {
                let unsent = failed.take_message();
                return unsent.map_or(Heard::Broken, |it| Heard::Unsent(it.into_body()));
            }
        };
        match answer.headers().contains_key(NOT_DRIVER) {
            true => Heard::NotDriver,
            false => Heard::Answer(answer),
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
    async fn wait(&self, waits: &Waits, drives: &mut watch::Receiver<bool>) -> Answers {
        let mut view = self.0.view.clone();
        // An error means that this process stops.
        while !waits.are_over() && view.has_changed().is_ok() {
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
                () = waits.over() => true,
            };
            if is_over {
                break;
            }
        }
        Answers::Nobody
    }

    /// Waits until a node that has the runs also drives them, at most as long as a request waits.
    async fn until_it_drives(
        &self,
        driver: &Driver,
        drives: &mut watch::Receiver<bool>,
        waits: &Waits,
    ) {
        let (links, of) = (self.0.links.clone(), driver.clone());
        let look = move || {
            let (links, driver) = (links.clone(), of.clone());
            async move { links.drives(&driver).await }
        };
        tokio::select! {
            () = self.0.drives.found(driver.node, look) => {}
            () = self.gone(driver.node) => {}
            // An error means that this process stops.
            _ = drives.changed() => {}
            () = waits.over() => {}
        }
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
        let (links, peer) = (self.0.links.clone(), driver.peer.clone());
        let answers = move || {
            let (links, peer) = (links.clone(), peer.clone());
            async move { links.open(&peer).await.is_ok() }
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
        self.0.clock.sleep(LAST_MS).await;
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
        let asked = peers.iter().map(|peer| timeout(ASK, self.0.links.open(peer)));
        let said = futures::future::join_all(asked).await;
        let said = said.into_iter().filter_map(|it| it.ok()?.ok());
        let said: Vec<bool> = said.map(|(_, said)| said.reaches_database).collect();
        match (said.is_empty(), said.contains(&true)) {
            (true, _) => PeersSay::Nothing,
            (false, true) => PeersSay::Reached,
            (false, false) => PeersSay::Away,
        }
    }
}

/// Gives a request back to this node.
fn ours(mut request: Outbound) -> Passed {
    let Some(content) = request.body.take() else {
        return Passed::Answered(unknown_outcome());
    };
    let Outbound { original, upgrade, was_sent, .. } = request;
    let mut request = Request::from_parts(original, content);
    if let Some(upgrade) = upgrade {
        request.extensions_mut().insert(upgrade);
    }
    Passed::Ours { request, was_sent }
}

/// Returns the address of the client of a request.
fn client_of(extensions: &Extensions) -> Option<IpAddr> {
    extensions.get::<Arrival>().and_then(|arrival| arrival.client)
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
        if let Some((node, sender)) = self.back.take() {
            self.forwarder.0.links.keep(node, sender);
        }
    }
}

#[cfg(test)]
mod tests;
