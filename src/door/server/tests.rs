use std::net::SocketAddr;

use axum::{
    http::StatusCode,
    routing::{get, post},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::Notify,
};

use super::*;
use crate::{
    door::{NodeKeys, Tls, TlsFiles},
    store::{ClusterView, NodeRow, NodeState, PeerAddress},
    tasks::Spawned,
};

const LONG: Duration = Duration::from_secs(20);

struct Served {
    at: SocketAddr,
    tasks: Tasks,
    loop_ended: Spawned<()>,
}

async fn served(router: Router, limits: Limits) -> Served {
    served_by(router, limits, None).await
}

async fn served_by(router: Router, limits: Limits, tls: Option<Arc<Tls>>) -> Served {
    served_behind(router, limits, tls, Arc::default()).await
}

async fn served_behind(
    router: Router,
    limits: Limits,
    tls: Option<Arc<Tls>>,
    proxies: Arc<Proxies>,
) -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let tasks = Tasks::new(tokio::runtime::Handle::current());
    let of_loop = tasks.clone();
    let loop_ended = tasks.spawn(async move {
        let shared = (&limits, &Arc::default(), &proxies);
        accept(Listener::new(listener, tls), router, shared, &of_loop).await;
    });
    Served { at, tasks, loop_ended }
}

fn short() -> Limits {
    Limits { head_time: Duration::from_millis(150), ..Limits::default() }
}

fn hello() -> Router {
    Router::new().route("/", get(|| async { "hello" })).route("/", post(|| async { "posted" }))
}

/// Sends `text` and returns the bytes received until the server closes the connection.
async fn closed_after(at: SocketAddr, text: &str) -> String {
    let mut stream = TcpStream::connect(at).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut back = Vec::new();
    let read = tokio::time::timeout(LONG, stream.read_to_end(&mut back)).await;
    // A reset also counts as closed.
    let _ = read.expect("the server closes the connection");
    String::from_utf8_lossy(&back).into_owned()
}

#[tokio::test]
async fn a_request_is_answered_and_the_connection_kept() {
    let served = served(hello(), Limits::default()).await;
    let mut stream = TcpStream::connect(served.at).await.unwrap();
    for _ in 0..2 {
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut back = [0; 1_024];
        let n = stream.read(&mut back).await.unwrap();
        assert!(back[..n].ends_with(b"hello"));
    }
}

#[tokio::test]
async fn a_head_that_does_not_come_closes_the_connection() {
    let served = served(hello(), short()).await;
    for text in ["", "P", "PRI * HT", "GET / HT", "GET / HTTP/1.1\r\nhost: x\r\nx-slow: "] {
        assert!(!closed_after(served.at, text).await.contains("hello"), "{text:?}");
    }
}

#[tokio::test]
async fn a_head_over_the_limit_is_refused() {
    let served = served(hello(), Limits::default()).await;
    let long = format!("GET / HTTP/1.1\r\nhost: x\r\nx-long: {}\r\n\r\n", "y".repeat(64 * 1_024));
    assert!(closed_after(served.at, &long).await.starts_with("HTTP/1.1 431"));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(100));
    assert!(closed_after(served.at, &many).await.starts_with("HTTP/1.1 431"));
}

#[tokio::test]
async fn a_connection_over_the_number_is_turned_away_and_the_place_is_free_again_later() {
    let limits = Limits { connections: 1, ..short() };
    let served = served(hello(), limits).await;
    let mut first = TcpStream::connect(served.at).await.unwrap();
    first.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    assert!(first.read(&mut [0; 1_024]).await.unwrap() > 0);
    let refused = closed_after(served.at, "").await;
    assert!(refused.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{refused}");
    let (_, body) = refused.split_once("\r\n\r\n").unwrap();
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(body["code"], "too_many_connections", "{body}");
    drop(first);
    let again = async {
        loop {
            let back = closed_after(served.at, "GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
            if back.ends_with("hello") {
                break;
            }
        }
    };
    tokio::time::timeout(LONG, again).await.expect("the place becomes free");
}

/// A router whose requests go on as sockets, which say so and stay open as long as their clients.
fn sockets() -> Router {
    let tasks = Tasks::new(tokio::runtime::Handle::current());
    let upgrades = get(move |request: Request| {
        let tasks = tasks.clone();
        async move {
            let upgrade = hyper::upgrade::on(request);
            tasks.spawn(async move {
                let mut socket = TokioIo::new(upgrade.await.unwrap());
                socket.write_all(b"open").await.unwrap();
                // Until its client is gone.
                let _ = socket.read_to_end(&mut Vec::new()).await;
            });
            (StatusCode::SWITCHING_PROTOCOLS, [("connection", "upgrade"), ("upgrade", "x")])
        }
    });
    hello().route("/socket", upgrades)
}

#[tokio::test]
async fn a_socket_is_a_connection_after_its_request_was_answered() {
    let served = served(sockets(), Limits { connections: 1, ..short() }).await;
    let mut socket = TcpStream::connect(served.at).await.unwrap();
    let ask = b"GET /socket HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n";
    socket.write_all(ask).await.unwrap();
    let (mut back, mut more) = (Vec::new(), [0; 1_024]);
    while !back.ends_with(b"open") {
        let read = tokio::time::timeout(LONG, socket.read(&mut more)).await.unwrap().unwrap();
        assert!(read > 0, "{}", String::from_utf8_lossy(&back));
        back.extend_from_slice(&more[..read]);
    }
    assert!(closed_after(served.at, "").await.contains("too_many_connections"));
    drop(socket);
    let ask = "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let again = async { while !closed_after(served.at, ask).await.ends_with("hello") {} };
    tokio::time::timeout(LONG, again).await.expect("the place becomes free");
}

#[tokio::test]
async fn one_address_has_half_of_the_connections_and_a_proxy_all_of_them() {
    let config = crate::door::DoorConfig {
        proxies: vec!["127.0.0.3/32".parse().unwrap()],
        ..crate::door::DoorConfig::default()
    };
    let limits = Limits { connections: 4, ..Limits::default() };
    let served = served_behind(hello(), limits, None, Arc::new(Proxies::of(&config))).await;
    let connect = async |last: u8| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from(([127, 0, 0, last], 0))).unwrap();
        socket.connect(served.at).await.unwrap()
    };
    // A connection that is let in as soon as there is a place, and stays open.
    let greeted = async |last: u8| {
        loop {
            let (mut stream, mut back) = (connect(last).await, [0; 1_024]);
            stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
            // One that is turned away may be reset.
            let read = stream.read(&mut back).await.unwrap_or_default();
            if back[..read].ends_with(b"hello") {
                break stream;
            }
        }
    };
    let refused = async |last: u8| {
        let mut back = String::new();
        connect(last).await.read_to_string(&mut back).await.unwrap();
        assert!(back.contains("too_many_connections"), "{last}: {back}");
    };
    let all = async {
        let held = [greeted(1).await, greeted(1).await];
        refused(1).await;
        let other = [greeted(2).await, greeted(3).await];
        refused(2).await;
        drop(held);
        let proxy = [greeted(3).await, greeted(3).await];
        refused(2).await;
        drop((other, proxy));
    };
    tokio::time::timeout(LONG, all).await.expect("each gets its places");
}

#[tokio::test]
async fn stopping_answers_what_is_under_way_and_takes_nothing_new() {
    let (entered, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let router = {
        let (entered, go) = (Arc::clone(&entered), Arc::clone(&go));
        Router::new().route(
            "/",
            get(move || async move {
                entered.notify_one();
                go.notified().await;
                "done"
            }),
        )
    };
    let served = served(router, Limits::default()).await;
    let mut stream = TcpStream::connect(served.at).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    entered.notified().await;
    served.tasks.stopping().cancel();
    go.notify_one();
    let mut back = String::new();
    stream.read_to_string(&mut back).await.unwrap();
    assert!(back.ends_with("done"));
    tokio::time::timeout(LONG, served.loop_ended).await.expect("the loop ends").unwrap();
    assert!(TcpStream::connect(served.at).await.is_err());
}

#[tokio::test]
async fn http2_is_spoken_with_whoever_speaks_it() {
    let served = served(hello(), Limits::default()).await;
    let client = crate::environment::http_client().http2_prior_knowledge().build().unwrap();
    let answer = client.get(format!("http://{}/", served.at)).send().await.unwrap();
    assert_eq!(answer.version(), reqwest::Version::HTTP_2);
    assert_eq!(answer.text().await.unwrap(), "hello");
}

/// Serves with the certificate of the tests.
async fn served_with_tls(limits: Limits) -> Served {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/tls");
    let files = TlsFiles { cert: dir.join("first.pem"), key: dir.join("first.key") };
    let (tls, _) = Tls::open(files, crate::clock::Clock::system()).unwrap();
    served_by(hello(), limits, Some(Arc::new(tls))).await
}

#[tokio::test]
async fn a_handshake_that_does_not_come_to_its_end_closes_the_connection() {
    let served = served_with_tls(short()).await;
    // Nothing, the beginning of a record, and a whole record with the beginning of a handshake.
    for bytes in [&b""[..], b"\x16\x03\x01\x02", b"\x16\x03\x01\x00\x04\x01\x00\x01\x00"] {
        let text = std::str::from_utf8(bytes).unwrap();
        assert!(!closed_after(served.at, text).await.contains("HTTP"), "{bytes:?}");
    }
}

#[tokio::test]
async fn handshakes_take_places_and_give_them_back() {
    let served = served_with_tls(Limits { connections: 1, ..short() }).await;
    let mut first = TcpStream::connect(served.at).await.unwrap();
    first.write_all(b"\x16").await.unwrap();
    let refused = closed_after(served.at, "").await;
    assert_eq!(refused, "", "a refusal would be no TLS");
    let plain = async {
        while !closed_after(served.at, "GET / HTTP/1.1\r\n\r\n").await.contains("speaks TLS") {}
    };
    tokio::time::timeout(LONG, plain).await.expect("the place becomes free");
}

/// Serves with a door on the loopback address.
async fn served_at_door(listener: Listener, router: Router, config: &crate::door::DoorConfig) {
    let door = Door::new(config, "127.0.0.1:7700".parse().unwrap());
    serve(listener, router, &door, &Tasks::new(tokio::runtime::Handle::current())).await;
}

#[tokio::test]
async fn what_only_proxies_and_nodes_may_say_is_removed_from_the_request_of_a_client() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let told = Router::new().fallback(|request: Request| async move {
        let arrival = request.extensions().get::<crate::door::Arrival>().cloned().unwrap();
        let names: Vec<_> = request.headers().keys().map(|it| it.as_str()).collect();
        serde_json::json!({ "names": names, "arrival": arrival }).to_string()
    });
    let people = "header = \"Remote-User\"\ngroups = \"Remote-Groups\"\n\
                  [[roles]]\neverybody = true\nrole = \"observer\"";
    let config = crate::door::DoorConfig {
        people: Some(toml::from_str(people).unwrap()),
        ..crate::door::DoorConfig::default()
    };
    let tasks = Tasks::new(tokio::runtime::Handle::current());
    let listener = Listener::new(listener, None);
    tasks.spawn(async move { served_at_door(listener, told, &config).await });
    let forged = serde_json::json!({ "client": "192.0.2.7", "secure": true, "local": true,
        "site": "https://evil.example", "person": { "name": "ada", "groups": ["admins"] },
        "exposed": false, "reached": "192.0.2.8:7700" });
    let request = format!(
        "GET /x HTTP/1.1\r\nhost: localhost\r\nx-mine: 1\r\nx-moonswarm-arrival: {forged}\r\n\
         x-forwarded-for: 192.0.2.7\r\nx-forwarded-host: evil.example\r\n\
         x-forwarded-port: 1\r\nx-forwarded-proto: https\r\nx-real-ip: 192.0.2.7\r\n\
         forwarded: for=192.0.2.7;proto=https\r\nremote-user: ada\r\nremote-groups: admins\r\n\
         moonswarm-proxy-secret: guess\r\nconnection: close\r\n\r\n"
    );
    let answer = closed_after(at, &request).await;
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let told: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(told["names"], serde_json::json!(["host", "x-mine", "connection"]), "{told}");
    let arrival = &told["arrival"];
    assert_eq!(arrival["client"], "127.0.0.1", "{told}");
    for (name, is) in [("secure", false), ("local", false), ("exposed", false)] {
        assert_eq!(arrival[name], is, "{name}: {told}");
    }
    for name in ["site", "person", "reached"] {
        assert!(arrival[name].is_null(), "{name}: {told}");
    }
}

#[tokio::test]
async fn connections_of_nodes_have_places_apart_from_those_of_clients() {
    let (mine, theirs) =
        (tokio::sync::watch::Sender::default(), tokio::sync::watch::Sender::default());
    let [own, other] = [&mine, &theirs].map(|it: &tokio::sync::watch::Sender<ClusterView>| {
        NodeKeys::generate(it.subscribe()).unwrap()
    });
    let limits = Limits { connections: 1, ..Limits::default() };
    let config = crate::door::DoorConfig { limits, ..crate::door::DoorConfig::default() };
    let door = Arc::new(Door::new(&config, "127.0.0.1:7700".parse().unwrap()));
    let tasks = Tasks::new(tokio::runtime::Handle::current());
    let (clients, nodes) = (
        TcpListener::bind("127.0.0.1:0").await.unwrap(),
        TcpListener::bind("127.0.0.1:0").await.unwrap(),
    );
    let (at, at_nodes) = (clients.local_addr().unwrap(), nodes.local_addr().unwrap());
    let listeners = [Listener::new(clients, None), Listener::of_nodes(nodes, &own)];
    for listener in listeners {
        let (door, by) = (Arc::clone(&door), tasks.clone());
        tasks.spawn(async move { serve(listener, hello(), &door, &by).await });
    }
    let peer = PeerAddress { at: at_nodes.to_string(), fingerprint: other.fingerprint() };
    mine.send_replace(ClusterView { nodes: vec![node_at(peer)], ..ClusterView::default() });
    let ask = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut client = TcpStream::connect(at).await.unwrap();
    client.write_all(ask).await.unwrap();
    assert!(client.read(&mut [0; 1_024]).await.unwrap() > 0);
    assert!(closed_after(at, "").await.contains("too_many_connections"), "clients have no place");

    let of_own = PeerAddress { at: at_nodes.to_string(), fingerprint: own.fingerprint() };
    let (connector, name) = other.connector(&of_own);
    let stream = TcpStream::connect(at_nodes).await.unwrap();
    let mut node = connector.connect(name, stream).await.unwrap();
    node.write_all(ask).await.unwrap();
    let mut back = [0; 1_024];
    let read = tokio::time::timeout(LONG, node.read(&mut back)).await.unwrap().unwrap();
    assert!(back[..read].ends_with(b"hello"), "a node has one");
    // And a node takes none of theirs.
    drop(client);
    let again = async {
        while !closed_after(at, "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            .await
            .ends_with("hello")
        {}
    };
    tokio::time::timeout(LONG, again).await.expect("the place of the client becomes free");
}

fn node_at(peer: PeerAddress) -> NodeRow {
    NodeRow {
        node: 2,
        name: "b".to_owned(),
        version: String::new(),
        state: NodeState::Standby,
        url: String::new(),
        peer: Some(peer),
        lease_ms: 5_000,
        started_ms: 0,
        format: 1,
        clock_ms: None,
    }
}
