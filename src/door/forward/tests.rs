use std::sync::atomic::{AtomicUsize, Ordering};

use axum::{
    Extension, Router,
    http::{Method, StatusCode},
};
use futures::{StreamExt as _, poll};
use hyper::{client::conn::http2, service::service_fn};
use hyper_util::rt::TokioExecutor;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Notify,
};
use tokio_util::sync::CancellationToken;
use tower::Service as _;

use super::*;
use crate::{
    door::{
        Door, Front, HelpRequest, Limits, Listener, OnHelp, arrival::Proxies, help::HELP,
        links::DATABASE, peer::Peer, serve,
    },
    store::{NodeRow, NodeState, PeerAddress},
    tasks::Spawned,
};

const LONG: Duration = Duration::from_secs(60);
/// The number of the node that forwards.
const ME: i64 = 1;

/// A node that forwards, with a clock of its own.
struct Rig {
    view: watch::Sender<ClusterView>,
    drives: watch::Sender<bool>,
    keys: NodeKeys,
    forwarder: Forwarder,
    clock: Clock,
    tasks: Tasks,
}

/// Another node.
struct Node {
    row: NodeRow,
    front: Front,
    /// The number of connections that it has accepted.
    accepted: Arc<AtomicUsize>,
    /// The number of requests that it was sent, with questions about itself.
    received: Arc<AtomicUsize>,
}

/// The connection of a request.
#[derive(Clone)]
struct Line {
    nth: usize,
    cut: CancellationToken,
}

fn row(node: i64, at: String, fingerprint: [u8; 32]) -> NodeRow {
    NodeRow {
        node,
        name: node.to_string(),
        version: String::new(),
        state: NodeState::Up,
        url: String::new(),
        peer: Some(PeerAddress { at, fingerprint }),
        lease_ms: 5_000,
        started_ms: 0,
        format: 1,
        clock_ms: None,
    }
}

impl Rig {
    fn new(limits: Limits) -> Self {
        let clock = Clock::manual(1_000_000);
        let (view, sees) =
            watch::channel(ClusterView { me: ME, reached: true, ..ClusterView::default() });
        let keys = NodeKeys::generate(sees.clone()).unwrap();
        let tasks = Tasks::new(tokio::runtime::Handle::current());
        let config = DoorConfig { limits, clock: clock.clone(), ..DoorConfig::default() };
        let keyed = KeyedRoutes::new([(Method::POST, "/v1/runs".to_owned())]);
        let at = "127.0.0.1:7700".parse().unwrap();
        let forwarder = Forwarder::new(sees, keys.clone(), &config, at, keyed, &tasks);
        Self { view, drives: watch::Sender::new(false), keys, forwarder, clock, tasks }
    }

    /// A rig and a node that drives, whose requests `router` answers.
    async fn before(limits: Limits, router: Router) -> (Self, Node) {
        let rig = Self::new(limits);
        let node = rig.node(2, router).await;
        rig.has_driver(Some(&node));
        (rig, node)
    }

    fn keys_of_node(&self) -> NodeKeys {
        let mine = row(ME, String::new(), self.keys.fingerprint());
        let view = ClusterView { nodes: vec![mine], ..ClusterView::default() };
        NodeKeys::generate(watch::Sender::new(view).subscribe()).unwrap()
    }

    async fn node(&self, number: i64, router: Router) -> Node {
        let keys = self.keys_of_node();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap().to_string();
        let front = Front::of_process(Router::new());
        front.drive(router, Arc::new(|| true), None);
        let node = Node {
            row: row(number, at, keys.fingerprint()),
            front,
            accepted: Arc::default(),
            received: Arc::default(),
        };
        let (acceptor, tasks) = (keys.acceptor(), self.tasks.clone());
        let (accepted, received) = (Arc::clone(&node.accepted), Arc::clone(&node.received));
        let behind = node.front.router_of_nodes();
        self.tasks.spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let nth = accepted.fetch_add(1, Ordering::SeqCst);
                let line = Line { nth, cut: CancellationToken::new() };
                let (acceptor, behind, received) =
                    (acceptor.clone(), behind.clone(), Arc::clone(&received));
                tasks.spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let cut = line.cut.clone();
                    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
                        received.fetch_add(1, Ordering::SeqCst);
                        Proxies::default().note(&mut request, Peer::Node);
                        request.extensions_mut().insert(line.clone());
                        behind.clone().call(request.map(Body::new))
                    });
                    let http = hyper::server::conn::http1::Builder::new();
                    let serving = http.serve_connection(TokioIo::new(stream), service);
                    tokio::select! {
                        _ = serving.with_upgrades() => {}
                        () = cut.cancelled() => {}
                    }
                });
            }
        });
        node
    }

    /// Lets the node see that another one has the runs.
    fn has_driver(&self, driver: Option<&Node>) {
        let nodes = driver.map(|it| it.row.clone()).into_iter().collect();
        self.view.send_modify(|view| view.nodes = nodes);
    }

    async fn send(&self, request: Request) -> Response {
        self.sending(request).await.expect("a forwarder does not panic")
    }

    fn sending(&self, request: Request) -> Spawned<Response> {
        let (forwarder, drives) = (self.forwarder.clone(), self.drives.subscribe());
        self.tasks.spawn(async move {
            match forwarder.forward(request, drives).await {
                Passed::Answered(answer) => answer,
                Passed::Ours { .. } => panic!("this node does not drive"),
            }
        })
    }
}

fn get() -> Request {
    get_from([192, 0, 2, 1])
}

fn get_from(client: [u8; 4]) -> Request {
    let arrival = Arrival { client: Some(client.into()), ..Arrival::default() };
    Request::get("/v1/runs").extension(arrival).body(Body::empty()).unwrap()
}

/// A request that cannot be sent again once a node has received it.
fn post(body: &'static str) -> Request {
    let length = body.len().to_string();
    Request::post("/v1/state/x").header("content-length", length).body(body.into()).unwrap()
}

/// The same with a body that is sent as it arrives.
fn post_in_pieces(pieces: &'static [&str]) -> Request {
    let pieces = futures::stream::iter(pieces).map(|it| Ok::<_, io::Error>(Bytes::from(*it)));
    Request::post("/v1/state/x").body(Body::from_stream(pieces)).unwrap()
}

async fn text(answer: Response) -> String {
    let bytes = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

async fn answered(spawned: Spawned<Response>) -> Response {
    timeout(LONG, spawned).await.expect("it is answered").unwrap()
}

/// Lets every task go on as far as it can without the clock.
async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

fn always(body: &'static str) -> Router {
    Router::new().fallback(move || async move { body })
}

#[tokio::test]
async fn a_request_whose_driver_dies_after_a_long_time_is_sent_to_the_next() {
    let received = Arc::new(Notify::new());
    let notes = Arc::clone(&received);
    let polls = Router::new().fallback(move || {
        notes.notify_one();
        std::future::pending::<()>()
    });
    let (rig, node) = Rig::before(Limits::default(), polls).await;
    let next = rig.node(3, always("done")).await;
    let mut keyed = post("x");
    *keyed.uri_mut() = Uri::from_static("/v1/runs");
    keyed.headers_mut().insert("idempotency-key", HeaderValue::from_static("k"));
    for request in [get(), keyed] {
        let sent = rig.sending(request);
        timeout(LONG, received.notified()).await.unwrap();
        rig.clock.advance(Duration::from_secs(40));
        rig.has_driver(None);
        settle().await;
        rig.clock.advance(Duration::from_secs(10));
        settle().await;
        rig.has_driver(Some(&next));
        let answer = answered(sent).await;
        assert_eq!((answer.status(), &*text(answer).await), (StatusCode::OK, "done"));
        rig.has_driver(Some(&node));
    }
    // A request that is not repeated is not.
    let sent = rig.sending(post("x"));
    timeout(LONG, received.notified()).await.unwrap();
    rig.has_driver(Some(&next));
    assert_eq!(answered(sent).await.status(), StatusCode::BAD_GATEWAY);
}

#[tokio::test]
async fn a_connection_that_was_idle_is_used_only_while_its_node_will_not_close_it() {
    let numbered = Router::new()
        .fallback(|Extension(line): Extension<Line>| async move { line.nth.to_string() });
    let (rig, _node) = Rig::before(Limits::default(), numbered).await;
    let mut lines = Vec::new();
    for (seconds, request) in [
        (0, get()),
        (1, post("x")),
        // Another one for what is not repeated: the node may close the first.
        (3, post("x")),
        (1, get()),
        (4, get()),
        (6, get()),
    ] {
        rig.clock.advance(Duration::from_secs(seconds));
        lines.push(text(rig.send(request).await).await);
    }
    assert_eq!(lines, ["0", "0", "1", "1", "1", "2"]);
}

#[tokio::test]
async fn a_short_answer_that_nobody_takes_keeps_no_place_and_no_connection() {
    let limits = Limits { in_flight: 1, ..Limits::default() };
    let (rig, node) = Rig::before(limits, always("short")).await;
    let mut untaken = Vec::new();
    for _ in 0..3 {
        let answer = rig.send(get()).await;
        assert_eq!(answer.status(), StatusCode::OK);
        untaken.push(answer);
    }
    assert_eq!(node.accepted.load(Ordering::SeqCst), 1, "each was sent over the same one");
    for answer in untaken {
        assert_eq!(text(answer).await, "short");
    }
}

#[tokio::test]
async fn a_long_answer_that_nobody_takes_is_given_up_and_keeps_out_one_client_only() {
    let long = Router::new().fallback(|| async { "x".repeat(2 << 20) });
    let limits = Limits { in_flight: 4, ..Limits::default() };
    let (rig, _node) = Rig::before(limits, long).await;
    let (first, second) = (rig.send(get()).await, rig.send(get()).await);
    assert_eq!(rig.send(get()).await.status(), StatusCode::SERVICE_UNAVAILABLE);
    let other = rig.send(get_from([192, 0, 2, 2])).await;
    assert_eq!(other.status(), StatusCode::OK);
    drop(other);
    // One of them goes on to take a little.
    let mut taken = first.into_body().into_data_stream();
    for _ in 0..3 {
        rig.clock.advance(Duration::from_secs(40));
        assert!(taken.next().await.unwrap().is_ok());
        settle().await;
    }
    assert_eq!(rig.send(get()).await.status(), StatusCode::OK, "the other has no place any more");
    let untaken = axum::body::to_bytes(second.into_body(), 4 << 20).await;
    assert!(untaken.is_err(), "it was given up");
    let rest = taken.fold(0, async |all, chunk| all + chunk.unwrap().len()).await;
    assert!(rest > 1 << 20, "{rest}");
}

#[tokio::test]
async fn a_client_of_http2_that_opens_no_window_keeps_its_place_for_a_minute() {
    let long = Router::new().fallback(|| async { "x".repeat(2 << 20) });
    let (rig, _node) = Rig::before(Limits { in_flight: 2, ..Limits::default() }, long).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let door = Door::new(&DoorConfig::default(), at);
    let (front, tasks) = (Front::new(rig.forwarder.clone()), rig.tasks.clone());
    let listener = Listener::new(listener, None);
    rig.tasks.spawn(async move { serve(listener, front.router(), &door, &tasks).await });
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.initial_stream_window_size(0);
    let stream = TcpStream::connect(at).await.unwrap();
    let (mut client, connection) = http.handshake(TokioIo::new(stream)).await.unwrap();
    rig.tasks.spawn(async move { drop(connection.await) });
    let request = Request::get(format!("http://{at}/v1/runs")).body(Body::empty()).unwrap();
    let answer = timeout(LONG, client.send_request(request)).await.unwrap().unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    let same = || get_from([127, 0, 0, 1]);
    assert_eq!(rig.send(same()).await.status(), StatusCode::SERVICE_UNAVAILABLE);
    settle().await;
    rig.clock.advance(Duration::from_secs(61));
    settle().await;
    assert_eq!(rig.send(same()).await.status(), StatusCode::OK);
    drop(answer);
}

#[tokio::test]
async fn streams_of_events_take_no_place_of_requests() {
    let router = Router::new().route(
        "/v1/events",
        axum::routing::any(|| async {
            let silent = futures::stream::pending::<Result<Bytes, io::Error>>();
            ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(silent))
        }),
    );
    let limits = Limits { in_flight: 1, ..Limits::default() };
    let (rig, _node) = Rig::before(limits, router.fallback(|| async { "short" })).await;
    let events = || Request::get("/v1/events").body(Body::empty()).unwrap();
    let first = rig.send(events()).await;
    assert_eq!(first.status(), StatusCode::OK);
    assert_eq!(rig.send(events()).await.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(text(rig.send(get()).await).await, "short");
    // One that has had its effect is not refused: it keeps the place of its request.
    let mut begun = post("x");
    *begun.uri_mut() = Uri::from_static("/v1/events");
    let begun = rig.send(begun).await;
    assert_eq!(begun.status(), StatusCode::OK);
    assert_eq!(rig.send(get()).await.status(), StatusCode::SERVICE_UNAVAILABLE);
    drop((first, begun));
    settle().await;
    assert_eq!(rig.send(events()).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_node_that_does_not_drive_yet_is_asked_by_one_and_gets_no_body() {
    let echo = Router::new().fallback(|body: String| async move { body });
    let (rig, node) = Rig::before(Limits::default(), echo.clone()).await;
    node.front.stand_by();
    let requests = [post_in_pieces(&["o", "ne"]), post("two"), post("three")];
    let sent: Vec<_> = requests.into_iter().map(|request| rig.sending(request)).collect();
    let mut steps = 0;
    while node.received.load(Ordering::SeqCst) < 20 {
        settle().await;
        rig.clock.advance(Duration::from_millis(100));
        steps += 1;
        assert!(steps < 120, "it is asked again");
    }
    assert!(steps >= 15, "all ask together: {steps}");
    assert!(node.accepted.load(Ordering::SeqCst) <= 3, "the connections are kept");
    node.front.drive(echo, Arc::new(|| true), None);
    rig.clock.advance(Duration::from_millis(100));
    settle().await;
    rig.clock.advance(Duration::from_millis(100));
    for (sent, expected) in sent.into_iter().zip(["one", "two", "three"]) {
        let answer = answered(sent).await;
        assert_eq!((answer.status(), &*text(answer).await), (StatusCode::OK, expected));
    }
}

#[tokio::test]
async fn a_body_is_not_spent_on_a_node_that_no_longer_drives() {
    let echo = Router::new().fallback(|body: String| async move { body });
    let (rig, node) = Rig::before(Limits::default(), echo.clone()).await;
    // A connection is there, over which the node is not asked by itself.
    assert_eq!(text(rig.send(post("x")).await).await, "x");
    node.front.stand_by();
    let sent = rig.sending(post_in_pieces(&["o", "ne"]));
    settle().await;
    let next = rig.node(3, echo).await;
    rig.has_driver(Some(&next));
    assert_eq!(text(answered(sent).await).await, "one");
}

#[tokio::test]
async fn a_broken_short_answer_is_asked_for_again() {
    let count = Arc::new(AtomicUsize::new(0));
    let router = Router::new().fallback(move |Extension(line): Extension<Line>| {
        let is_first = count.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            let head = [(header::CONTENT_LENGTH, "4")];
            let rest = futures::stream::once(async move {
                if is_first {
                    line.cut.cancel();
                    std::future::pending::<()>().await;
                }
                Ok::<_, io::Error>(Bytes::from("le"))
            });
            let begin = futures::stream::iter([Ok(Bytes::from("who"))]);
            let begin = begin.map(|it: io::Result<Bytes>| it.map(|it| it.slice(..2)));
            (head, Body::from_stream(begin.chain(rest)))
        }
    });
    let (rig, _node) = Rig::before(Limits::default(), router).await;
    let sent = rig.sending(get());
    for _ in 0..3 {
        settle().await;
        rig.clock.advance(Duration::from_secs(1));
    }
    assert_eq!(text(answered(sent).await).await, "whle");
}

/// Starts a node with the listener that nodes have.
async fn listening(rig: &Rig, router: Router) -> Node {
    let keys = rig.keys_of_node();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let front = Front::of_process(Router::new());
    front.drive(router, Arc::new(|| true), None);
    let door = Door::new(&DoorConfig::default(), at);
    let (behind, tasks) = (front.router_of_nodes(), rig.tasks.clone());
    let listens = Listener::of_nodes(listener, &keys);
    rig.tasks.spawn(async move { serve(listens, behind, &door, &tasks).await });
    let row = row(2, at.to_string(), keys.fingerprint());
    Node { row, front, accepted: Arc::default(), received: Arc::default() }
}

#[tokio::test]
async fn a_head_that_one_node_lets_in_is_not_too_large_for_another() {
    let rig = Rig::new(Limits::default());
    let router = Router::new()
        .fallback(|headers: axum::http::HeaderMap| async move { headers.len().to_string() });
    let node = listening(&rig, router).await;
    rig.has_driver(Some(&node));
    // As many as HTTP/1 may have, as HTTP/2 may have, and one of the greatest length.
    for (count, length) in [(64, 1), (900, 1), (1, 32_000)] {
        let mut request = get();
        for nth in 0..count {
            let name = header::HeaderName::try_from(format!("x-{nth}")).unwrap();
            let value = HeaderValue::try_from("y".repeat(length)).unwrap();
            request.headers_mut().insert(name, value);
        }
        let answer = rig.send(request).await;
        assert_eq!(answer.status(), StatusCode::OK, "{count} of {length}");
        assert_eq!(text(answer).await, count.to_string(), "the node's own header is removed");
    }
}

#[tokio::test]
async fn a_client_gets_no_answer_that_is_for_nodes() {
    let rig = Rig::new(Limits::default());
    let router = Router::new().fallback(|| async { (StatusCode::NOT_FOUND, "of clients") });
    let node = listening(&rig, router).await;
    rig.has_driver(Some(&node));
    let asked = Request::get(DATABASE).extension(Arrival::default()).body(Body::empty()).unwrap();
    let answer = rig.send(asked).await;
    assert_eq!((answer.status(), &*text(answer).await), (StatusCode::NOT_FOUND, "of clients"));
}

#[tokio::test]
async fn a_node_that_helps_gets_a_connection_and_a_client_does_not() {
    let rig = Rig::new(Limits::default());
    let node = listening(&rig, always("of clients")).await;
    let peer = node.row.peer.clone().unwrap();
    let error = rig.forwarder.open_help(&peer).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}");
    let tasks = rig.tasks.clone();
    let on_help: OnHelp = Arc::new(move |asked: HelpRequest| {
        tasks.spawn(async move {
            let (mut read, mut write) = tokio::io::split(asked.accept().await.unwrap());
            tokio::io::copy(&mut read, &mut write).await
        });
    });
    node.front.drive(always("of clients"), Arc::new(|| true), Some(on_help));
    let mut stream = rig.forwarder.open_help(&peer).await.unwrap();
    stream.write_all(b"hello").await.unwrap();
    let mut back = [0; 5];
    timeout(LONG, stream.read_exact(&mut back)).await.unwrap().unwrap();
    assert_eq!(&back, b"hello");
    rig.has_driver(Some(&node));
    let asked = Request::get(HELP)
        .header(header::CONNECTION, "upgrade")
        .header(header::UPGRADE, "moonswarm-help/1")
        .extension(Arrival::default());
    let answer = rig.send(asked.body(Body::empty()).unwrap()).await;
    assert_eq!((answer.status(), &*text(answer).await), (StatusCode::OK, "of clients"));
    node.front.stand_by();
    let error = rig.forwarder.open_help(&peer).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::Other, "{error}");
}

#[tokio::test]
async fn who_sends_a_body_slowly_takes_no_place_of_others() {
    let rig = Rig::new(Limits { in_flight: 1, ..Limits::default() });
    let pending = Body::from_stream(futures::stream::pending::<io::Result<Bytes>>());
    let slow = Request::post("/v1/runs").header("content-length", "10").body(pending).unwrap();
    let forward = |request| rig.forwarder.forward(request, rig.drives.subscribe());
    let mut slow = Box::pin(forward(slow));
    assert!(poll!(&mut slow).is_pending());
    let mut prompt = Box::pin(forward(get()));
    assert!(poll!(&mut prompt).is_pending(), "it waits for a node that drives");
    let Passed::Answered(refused) = forward(get()).await else {
        panic!("this node does not drive")
    };
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn who_asks_again_and_again_whether_a_node_is_ready_does_not_fill_its_connections() {
    let never = Router::new().fallback(std::future::pending::<()>);
    let (rig, _node) = Rig::before(Limits::default(), never).await;
    let ask = |last: u8| {
        let client = Some([192, 0, 2, last].into());
        let request = Request::get("/readyz").extension(Arrival { client, ..Arrival::default() });
        let request = request.body(Body::empty()).unwrap();
        Box::pin(rig.forwarder.ready(request, rig.drives.subscribe()))
    };
    let mut waiting: Vec<_> = (0..ASKED_EACH).map(|_| ask(1)).collect();
    for one in &mut waiting {
        assert!(poll!(one).is_pending());
    }
    let Passed::Answered(refused) = ask(1).await else { panic!("this node does not drive") };
    assert!(text(refused).await.contains("overloaded"));
    assert!(poll!(&mut ask(2)).is_pending(), "another client is answered");
    waiting.pop();
    assert!(poll!(&mut ask(1)).is_pending(), "and so is this one later");
}
