//! The daemon with a certificate: what speaks with it, what it refuses, and how it renews.

use moonswarm::environment::http_client;
use reqwest::{Client, Method, Version};
use serde_json::json;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

use crate::support::{
    Daemon, Shell, eventually, send,
    tls::{file, handshake, trusting},
};

/// A directory with a copy of this certificate, and a daemon that serves it.
fn served(shell: &Shell, name: &str) -> Daemon {
    put(shell, name);
    let (cert, key) = (shell.path("c.pem"), shell.path("k.pem"));
    let text = format!("hosts = [\"localhost\"]\ntls = {{ cert = {cert:?}, key = {key:?} }}\n");
    let config = shell.write("daemon.toml", text);
    Daemon::start_with(&shell.path("data"), &["--config".as_ref(), config.as_os_str()])
}

/// Replaces the certificate and its key, as a renewal does.
fn put(shell: &Shell, name: &str) {
    for (from, to) in [(format!("{name}.pem"), "c.pem"), (format!("{name}.key"), "k.pem")] {
        let draft = shell.write("draft", std::fs::read(file(&from)).unwrap());
        std::fs::rename(draft, shell.path(to)).unwrap();
    }
}

/// The certificate that a server shows.
async fn shown(daemon: &Daemon) -> Vec<u8> {
    let stream = connected(daemon).await;
    stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

async fn connected(daemon: &Daemon) -> TlsStream<TcpStream> {
    let at = daemon.url.strip_prefix("https://").unwrap().parse().unwrap();
    handshake(at, "localhost").await
}

#[tokio::test]
async fn a_daemon_with_a_certificate_speaks_both_versions_of_http_and_sockets() {
    let shell = Shell::new();
    let daemon = served(&shell, "first");
    assert!(daemon.url.starts_with("https://127.0.0.1:"), "{}", daemon.url);
    let ask = async |client: Client| {
        let answer = client.get(format!("{}/readyz", daemon.url)).bearer_auth(&daemon.token);
        let answer = answer.send().await.unwrap();
        assert_eq!(answer.status(), 200);
        answer.version()
    };
    assert_eq!(ask(trusting(http_client())).await, Version::HTTP_2);
    assert_eq!(ask(trusting(http_client().http1_only())).await, Version::HTTP_11);
    assert!(http_client().build().unwrap().get(&daemon.url).send().await.is_err());

    let url = format!("{}/v1/responses", daemon.url.replace("https", "wss"));
    let mut request = url.into_client_request().unwrap();
    let bearer = format!("Bearer {}", daemon.token).parse().unwrap();
    request.headers_mut().insert("authorization", bearer);
    let stream = connected(&daemon).await;
    let (_, answer) = tokio_tungstenite::client_async(request, stream).await.unwrap();
    assert_eq!(answer.status(), 101);
}

#[tokio::test]
async fn commands_trust_their_own_daemon_and_others_by_the_authority_that_they_name() {
    let shell = Shell::new();
    let daemon = served(&shell, "first");
    shell.run(&["ps", "--data", "data"]).ok();
    shell.run(&["health", "--data", "data"]).ok();
    let found = shell.run(&["doctor", "--data", "data"]);
    assert!(found.stdout.contains(&format!("{} answers", daemon.url)), "{found:?}");
    let named = daemon.url.replace("127.0.0.1", "localhost");
    let elsewhere = ["ps", "--data", "none", "--server", &named, "--token", &daemon.token];
    let stop = shell.run(&elsewhere).exits(69);
    stop.says(&["is not trusted: ", "--ca FILE (MOONSWARM_CA)"]);
    let ca = file("ca.pem").display().to_string();
    shell.run(&[&elsewhere[..], &["--ca", &ca]].concat()).ok();
    let key = file("first.key").display().to_string();
    shell.run(&[&elsewhere[..], &["--ca", &key]].concat()).exits(2).says(&["has no certificate"]);
    // A browser checks the name, so a link has the first of the host's.
    let link = shell.run(&["open", "--data", "data", "--print"]).ok().stdout;
    assert!(link.starts_with(&format!("{named}/ui/login#code=")), "{link}");
}

#[tokio::test]
async fn a_certificate_is_renewed_without_a_restart_and_a_bad_one_is_not_taken() {
    let shell = Shell::new();
    let daemon = served(&shell, "first");
    let before = shown(&daemon).await;
    put(&shell, "expired");
    eventually("the log to name the expired certificate", async || {
        let log = daemon.log();
        let is_told = log.contains("cannot be used") && log.contains("expired at 2025-01-01");
        if is_told { Ok(()) } else { Err(log) }
    })
    .await;
    assert_eq!(shown(&daemon).await, before);
    put(&shell, "second");
    eventually("the second certificate", async || {
        if shown(&daemon).await == before { Err("the first") } else { Ok(()) }
    })
    .await;
    shell.run(&["ps", "--data", "data"]).ok();
    assert!(daemon.log().contains("a new certificate is served"), "{}", daemon.log());
}

#[tokio::test]
async fn a_certificate_that_cannot_be_served_is_named_at_the_start() {
    let shell = Shell::new();
    let start = |cert: &str, key: &str| {
        let (cert, key) = (file(cert).display().to_string(), file(key).display().to_string());
        shell.run(&["serve", "--data", "data", "--tls-cert", &cert, "--tls-key", &key]).exits(1)
    };
    start("first.pem", "second.key").says(&["the key is not the one of the certificate"]);
    start("expired.pem", "expired.key").says(&["expired at 2025-01-01", "renew it"]);
    start("none.pem", "first.key").says(&["none.pem: No such file"]);
    assert!(!shell.path("data").exists(), "nothing was begun");
    shell.run(&["serve", "--tls-cert", "x.pem"]).exits(2).says(&["--tls-key"]);
}

#[tokio::test]
async fn plain_http_on_the_port_is_told_what_it_speaks() {
    let shell = Shell::new();
    let daemon = served(&shell, "first");
    let plain = daemon.url.replace("https", "http");
    let request = http_client().no_proxy().build().unwrap().request(Method::GET, plain);
    let (status, text) = send(request).await;
    assert_eq!((status, text), (400, json!("this port speaks TLS: use an https address\n")));
}
