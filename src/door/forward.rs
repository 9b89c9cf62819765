//! Requests that another node answers: sent to the node that drives, with the answer returned.
//!
//! | what happens | the client gets |
//! |---|---|
//! | nobody drives, or not yet | the answer of the next driver, or after 15 seconds `503 no_driver` |
//! | the connection breaks before the request was sent | the same |
//! | it breaks after that: a GET, or a request with an `Idempotency-Key` that its route honours | the answer to the same request, sent again at most three times, each after at most 15 seconds without a driver; `502 unknown_outcome` if nobody answers that, `503 no_driver` to a GET |
//! | it breaks after that: any other | `502 unknown_outcome` |
//! | it breaks within a short answer | the same, because nothing of that was passed on |
//! | it breaks within a long answer, or the driver was taken over meanwhile | the connection closes |
//! | the driver hangs, or the network brings nothing | as if the connection broke, after about ten seconds |
//! | the client takes nothing of a long answer for a minute | the connection closes |

use std::{io, net::IpAddr, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    extract::Request,
    http::{Extensions, HeaderValue, Uri, Version, header, request::Parts},
    response::{IntoResponse as _, Response},
};
use hyper::{body::Incoming, client::conn::http1::SendRequest, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;
use tokio::{sync::watch, time::timeout};

use super::{
    Code, DoorConfig,
    arrival::{ARRIVAL, Arrival},
    help::{self, HelpStream},
    hop::{join_cookies, strip},
    keyed::KeyedRoutes,
    links::{Driver, Link, Links, NOT_DRIVER, Needs},
    node_keys::NodeKeys,
    outgoing::{Kept, Outbound},
    problem::Problem,
    reach::{Looks, Wanted},
    returned::{Kind, Passage, Passing, Short},
    shares::{Share, Shares},
    unanswered::{Outcome, not_ready, overloaded, unknown_outcome},
    waits::Waits,
};
use crate::{
    clock::Clock,
    metrics::ClusterCounts,
    store::{ClusterView, PeerAddress},
    tasks::Tasks,
};

/// The number of times that a request is sent again after its connection broke. A request that ends the node
/// which answers it must not go on for ever.
const REPEATS: u32 = 3;
/// The time for which reads that wait at another node go on after this one began to stop.
const LAST_MS: u64 = 3_000;
/// The maximum time of a question to another node.
const ASK: Duration = Duration::from_millis(1_500);
/// The maximum time of the question whether the node that drives is ready.
const READY: Duration = Duration::from_millis(1_500);
/// The maximum number of such questions at a time, and of those of one client, who may be anybody.
const ASKED: usize = 256;
const ASKED_EACH: usize = ASKED / 8;
/// A node that leaves two looks in a row without an answer cannot be reached.
const LOST: Wanted = Wanted { result: false, times: 2, interval: LOOK, limit: LOOK };
/// A node that says so drives.
const DRIVES: Wanted =
    Wanted { result: true, times: 1, interval: Duration::from_millis(100), limit: LOOK };
/// The maximum time of a look at a node.
const LOOK: Duration = Duration::from_secs(3);
/// The maximum size of short answers that their clients have not taken, and of those of one client.
const UNTAKEN: usize = 64 << 20;
const UNTAKEN_EACH: usize = UNTAKEN / 8;
/// One client may have this fraction of the places.
const CLIENT_SHARE: usize = 2;
/// The time for which a client may take nothing of an answer, as a multiple of that for a message.
const PATIENCE: u32 = 3;

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
    /// The places of requests, until they are answered.
    places: Shares,
    /// The places of streams of events and of sockets, which stay open.
    streams: Shares,
    /// The places of questions whether the node that drives is ready.
    asked: Shares,
    /// The space of short answers.
    untaken: Shares,
    kept: Kept,
    /// Waits until a node cannot be reached.
    lost: Looks,
    /// Waits until a node drives.
    drives: Looks,
    counts: Arc<ClusterCounts>,
    keyed: KeyedRoutes,
    body_time: Duration,
    patience: Duration,
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

/// The outcome of sending a request to a node.
enum Heard {
    /// The node does not drive; nothing was done.
    NotDriver,
    /// An answer that is passed on as it arrives.
    Begun(Response<Incoming>, Kind),
    /// An answer that is here.
    Whole(Response<Short>),
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
        let each = (limits.in_flight / CLIENT_SHARE).max(1);
        let looks = |wanted| Looks::new(wanted, clock.clone(), tasks.clone());
        Self(Arc::new(Inner {
            view,
            links: Links::new(keys, limits.head_time, clock.clone(), tasks.clone()),
            places: Shares::new(limits.in_flight, each),
            streams: Shares::new(limits.in_flight, each),
            asked: Shares::new(ASKED, ASKED_EACH),
            untaken: Shares::new(UNTAKEN, UNTAKEN_EACH),
            kept: Kept::default(),
            lost: looks(LOST),
            drives: looks(DRIVES),
            counts: Arc::default(),
            keyed,
            body_time: limits.body_time,
            patience: limits.send_time.saturating_mul(PATIENCE),
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
        let client = client_of(request.extensions());
        let outbound = match self.outbound(request).await {
            Ok(outbound) => outbound,
            Err(problem) => return Passed::Answered(problem.into_response()),
        };
        // Taken when the body is there: whoever sends it slowly keeps nobody else out.
        let passed = match self.0.places.take(client, 1) {
            Some(place) => self.pass_on(outbound, drives, Some(place)).await,
            None => Passed::Answered(overloaded()),
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
        place: Option<Share>,
    ) -> Passed {
        let mut repeats = if request.is_safe && request.body.is_kept() { REPEATS } else { 0 };
        let mut waits = Waits::new(self.0.clock.clone());
        let client = client_of(&request.head.extensions);
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
                Heard::Whole(answer) => {
                    self.0.links.keep(driver.node, sender);
                    return Passed::Answered(returned(answer));
                }
                Heard::Begun(answer, Kind::Socket) => {
                    let answer = self.join(answer, driver, request.upgrade, client);
                    return Passed::Answered(answer);
                }
                Heard::Begun(answer, kind) => {
                    let stream = match kind {
                        Kind::Endless => self.0.streams.take(client, 1),
                        Kind::Short(_) | Kind::Long | Kind::Socket => None,
                    };
                    // What may have had its effect is not refused any more.
                    if kind == Kind::Endless && stream.is_none() && request.head.method.is_safe() {
                        return Passed::Answered(overloaded());
                    }
                    let place = stream.or(place);
                    return Passed::Answered(self.pass_back(answer, kind, sender, driver, place));
                }
                Heard::Unsent(body) => {
                    request.body.give_back(body);
                    if waits.pause(self.gone(driver.node)).await {
                        return Passed::Answered(request.given_up());
                    }
                }
                Heard::Broken => {
                    request.was_sent = true;
                    // A node may have had it for long: the next driver has as much time to come.
                    waits.again();
                    if repeats == 0 || waits.pause(self.gone(driver.node)).await {
                        return Passed::Answered(request.given_up());
                    }
                    repeats -= 1;
                }
            }
        }
    }

    /// Sends a request over a connection, and reads its answer if that is short.
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
        if answer.headers().contains_key(NOT_DRIVER) {
            return Heard::NotDriver;
        }
        let kind = Kind::of(&answer);
        let Kind::Short(length) = kind else { return Heard::Begun(answer, kind) };
        let Some(space) = self.0.untaken.take(client_of(&head.extensions), length) else {
            return Heard::Begun(answer, Kind::Long);
        };
        let (head, body) = answer.into_parts();
        match Short::read(body, space).await {
            Ok(body) => Heard::Whole(Response::from_parts(head, body)),
            Err(_) => Heard::Broken,
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
        let Some(_place) = self.0.asked.take(client_of(request.extensions()), 1) else {
            return Passed::Answered(overloaded());
        };
        let detail = "this node stands by, and does not reach the one that has the runs";
        let asked = async {
            match self.outbound(request).await {
                Ok(outbound) => self.pass_on(outbound, drives, None).await,
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

    /// Passes an answer back as it arrives.
    fn pass_back(
        &self,
        answer: Response<Incoming>,
        kind: Kind,
        sender: SendRequest<Body>,
        driver: Driver,
        place: Option<Share>,
    ) -> Response {
        let passage = Passage {
            back: (driver.node, sender),
            links: self.0.links.clone(),
            place,
            patience: self.0.patience,
            clock: self.0.clock.clone(),
        };
        let (forwarder, stopping) = (self.clone(), self.0.tasks.stopping().clone());
        let gone = async move {
            tokio::select! {
                () = forwarder.lost(&driver) => {}
                () = stopping.cancelled(), if kind == Kind::Endless => {}
            }
        };
        returned(answer.map(|body| Passing::new(body, passage, gone, &self.0.tasks)))
    }

    /// Joins the connection of a client with that of a node, which go on with another protocol.
    fn join(
        &self,
        mut answer: Response<Incoming>,
        driver: Driver,
        upgrade: Option<OnUpgrade>,
        client: Option<IpAddr>,
    ) -> Response {
        let Some(near) = upgrade else { return unknown_outcome() };
        let Some(place) = self.0.streams.take(client, 1) else { return overloaded() };
        let far = hyper::upgrade::on(&mut answer);
        let (forwarder, stopping) = (self.clone(), self.0.tasks.stopping().clone());
        self.0.tasks.spawn(async move {
            let _place = place;
            let moved = async {
                let (near, far) = tokio::try_join!(near, far)?;
                let (mut near, mut far) = (TokioIo::new(near), TokioIo::new(far));
                // Either end may close it at any time.
                let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                Ok::<(), hyper::Error>(())
            };
            tokio::select! {
                _ = moved => {}
                () = forwarder.lost(&driver) => {}
                () = stopping.cancelled() => {}
            }
        });
        answer.map(|_| Body::empty())
    }

    /// Opens a connection over which this node helps the one that drives.
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::Unsupported`] if that one lends no runs. Fails when it cannot be reached, or
    /// does not drive.
    pub async fn open_help(&self, peer: &PeerAddress) -> io::Result<HelpStream> {
        let opened = async {
            let (sender, _) = self.0.links.open(peer).await?;
            help::ask(sender).await
        };
        timeout(LOOK, opened).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
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

/// Turns the answer of a node into the one for the client.
fn returned<B>(answer: Response<B>) -> Response
where
    B: axum::body::HttpBody<Data = Bytes, Error = axum::Error> + Send + 'static,
{
    let (mut head, body) = answer.into_parts();
    strip(&mut head.headers);
    head.version = Version::default();
    Response::from_parts(head, Body::new(body))
}

/// Returns the address of the client of a request.
fn client_of(extensions: &Extensions) -> Option<IpAddr> {
    extensions.get::<Arrival>().and_then(|arrival| arrival.client)
}

#[cfg(test)]
mod tests;
