use std::net::SocketAddr;

use axum::routing::{get, post};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Notify,
};

use super::*;
use crate::{
    door::{Tls, TlsFiles},
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
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let tasks = Tasks::new(tokio::runtime::Handle::current());
    let of_loop = tasks.clone();
    let loop_ended = tasks.spawn(async move {
        let shared = (&limits, &Arc::default(), &Arc::default());
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
