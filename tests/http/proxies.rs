//! The daemon behind the proxies of `deploy/`: nginx, Caddy and HAProxy, with their own programs.

use std::{
    net::{SocketAddr, TcpListener},
    process::{Child, Command, Stdio},
};

use futures::{SinkExt as _, StreamExt as _};
use moonswarm::environment::http_client;
use reqwest::Client;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::{Message, client::IntoClientRequest as _};

use crate::support::{
    DEMO, Daemon, Shell, eventually, repository, send, skip,
    tls::{file, handshake, trusting},
};

/// The name in the files of `deploy/`, and the one in the certificate of the tests.
const NAMES: (&str, &str) = ("swarm.example.com", "swarm.example");
/// The secret with which a proxy names people.
const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// A proxy that runs beside the test; dropped, it is killed.
struct Proxy {
    child: Child,
    at: SocketAddr,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_here(program: &str) -> bool {
    let found =
        Command::new(program).arg("-v").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if found.is_err() {
        skip("a proxy in front of the daemon", &format!("{program} is not here"));
    }
    found.is_ok()
}

/// A port that was free a moment ago: these programs cannot say which one the system gave them.
fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A daemon that believes proxies on this machine, and knows people.
fn behind(shell: &Shell) -> Daemon {
    let secret = shell.write("proxy.secret", format!("{SECRET}\n"));
    let text = format!(
        "hosts = [\"swarm.example\"]\nproxies = [\"127.0.0.1\"]\n[people]\n\
         secret = {{ file = {secret:?} }}\nheader = \"Remote-User\"\ngroups = \"Remote-Groups\"\n\
         [[people.roles]]\nname = \"ada\"\nrole = \"operator\"\n"
    );
    let config = shell.write("daemon.toml", text);
    Daemon::start_with(&shell.path("data"), &["--config".as_ref(), config.as_os_str()])
}

fn read(path: &str, daemon: &Daemon, at: SocketAddr) -> String {
    let text = std::fs::read_to_string(repository(path)).unwrap();
    let upstream = daemon.url.strip_prefix("http://").unwrap();
    let text = text.replace("127.0.0.1:7700", upstream).replace(NAMES.0, NAMES.1);
    text.replace("listen 443 ssl", &format!("listen {at} ssl"))
        .replace("bind :443", &format!("bind {at}"))
}

/// Returns the secret that a proxy sends with the name of a person; nothing if it names nobody.
fn secret_for(person: &str) -> &str {
    if person.is_empty() { "" } else { SECRET }
}

fn nginx(shell: &Shell, daemon: &Daemon, person: &str) -> Proxy {
    let at = free();
    let (cert, key) = (file("first.pem"), file("first.key"));
    let site = read("deploy/nginx/moonswarm.conf", daemon, at)
        .replace("/etc/ssl/swarm.example.pem", &cert.display().to_string())
        .replace("/etc/ssl/swarm.example.key", &key.display().to_string())
        .replace("Remote-User \"\"", &format!("Remote-User \"{person}\""))
        .replace("Proxy-Secret \"\"", &format!("Proxy-Secret \"{}\"", secret_for(person)));
    shell.write("site.conf", site);
    let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    let temp = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temp: String = temp.iter().map(|it| format!("{it}_temp_path temp_{it};")).collect();
    let whole = format!(
        "{user} daemon off; master_process off; pid nginx.pid; error_log stderr warn; events {{}}\n\
         http {{ access_log off; {temp} include site.conf; }}"
    );
    let config = shell.write("nginx.conf", whole);
    let mut command = Command::new("nginx");
    command.arg("-p").arg(shell.path("")).arg("-c").arg(config);
    start(command, at)
}

fn caddy(shell: &Shell, daemon: &Daemon, person: &str) -> Proxy {
    let at = free();
    let tls = format!("\ttls {} {}", file("first.pem").display(), file("first.key").display());
    let (named, proof) = match person {
        "" => ("header_up -Remote-User".to_owned(), "header_up -Moonswarm-Proxy-Secret".to_owned()),
        person => (
            format!("header_up Remote-User {person}"),
            format!("header_up Moonswarm-Proxy-Secret {SECRET}"),
        ),
    };
    let site = read("deploy/caddy/Caddyfile", daemon, at)
        .replace("\nswarm.example {", &format!("\nswarm.example:{} {{\n{tls}", at.port()))
        .replace("header_up -Remote-User", &named)
        .replace("header_up -Moonswarm-Proxy-Secret", &proof);
    let options = "{\n\tadmin off\n\tauto_https disable_redirects\n}\n";
    let config = shell.write("Caddyfile", format!("{options}{site}"));
    let mut command = Command::new("caddy");
    command.args(["run", "--adapter", "caddyfile", "--config"]).arg(config);
    command.env("XDG_DATA_HOME", shell.path("caddy")).env("XDG_CONFIG_HOME", shell.path("caddy"));
    start(command, at)
}

fn haproxy(shell: &Shell, daemon: &Daemon, person: &str) -> Proxy {
    let at = free();
    let pem = [file("first.pem"), file("first.key")].map(|it| std::fs::read_to_string(it).unwrap());
    let pem = shell.write("swarm.pem", pem.concat());
    let mut site = read("deploy/haproxy/haproxy.cfg", daemon, at)
        .replace("/etc/haproxy/swarm.example.pem", &pem.display().to_string());
    if !person.is_empty() {
        let named = format!("set-header Remote-User {person}");
        site = site.replace("del-header Remote-User", &named);
        let proof = format!("set-header Moonswarm-Proxy-Secret {SECRET}");
        site = site.replace("del-header Moonswarm-Proxy-Secret", &proof);
    }
    let config = shell.write("haproxy.cfg", site);
    let mut command = Command::new("haproxy");
    command.arg("-db").arg("-f").arg(config);
    start(command, at)
}

fn start(mut command: Command, at: SocketAddr) -> Proxy {
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    Proxy { child: child.unwrap(), at }
}

/// A client that reaches the proxy under its name.
fn client(proxy: &Proxy) -> Client {
    trusting(http_client().resolve(NAMES.1, proxy.at))
}

fn url(proxy: &Proxy, path: &str) -> String {
    format!("https://{}:{}{path}", NAMES.1, proxy.at.port())
}

/// Waits until the proxy passes requests on. A balancer has no token.
async fn until_ready(client: &Client, proxy: &Proxy) {
    eventually("the proxy to pass requests on", async || {
        match client.get(url(proxy, "/readyz")).send().await {
            Ok(answer) if answer.status() == 200 => {
                let body: Value = answer.json().await.unwrap();
                assert_eq!(body, json!({ "status": "ready" }));
                Ok(())
            }
            Ok(answer) => Err(answer.status().to_string()),
            Err(error) => Err(format!("{error:?}")),
        }
    })
    .await;
}

/// Everything that a client does through a proxy.
async fn passes(daemon: &Daemon, proxy: &Proxy) {
    let client = client(proxy);
    until_ready(&client, proxy).await;
    let get = |path: &str| client.get(url(proxy, path)).bearer_auth(&daemon.token);

    let claimed = client.get(url(proxy, "/v1/whoami")).header("remote-user", "ada");
    assert_eq!(send(claimed).await.0, 401, "a client does not name itself");
    let proven = client.get(url(proxy, "/v1/whoami")).header("moonswarm-proxy-secret", SECRET);
    let claimed = proven.header("remote-user", "ada");
    assert_eq!(send(claimed).await.0, 401, "nor does one that knows the secret, through a proxy");
    // Beside the proxy it has the address of the proxy, and that proves nothing.
    let beside = http_client().no_proxy().build().unwrap().get(format!("{}/v1/whoami", daemon.url));
    let (status, told) = send(beside.header("remote-user", "ada")).await;
    assert_eq!((status, &told["code"]), (403, &json!("forbidden")), "{told}");

    // Events come as they happen.
    let run = daemon.run_source(DEMO, json!({})).await;
    let mut events = get(&format!("/v1/runs/{run}/events")).send().await.unwrap();
    assert_eq!(events.status(), 200);
    let first = events.chunk().await.unwrap().unwrap();
    assert!(!first.is_empty());
    let signal = url(proxy, &format!("/v1/runs/{run}/signals/go"));
    let (status, said) = send(client.post(signal).bearer_auth(&daemon.token).json(&json!(7))).await;
    assert!(status < 300, "{said}");
    let mut seen = String::new();
    while !seen.contains("task") {
        seen.push_str(&String::from_utf8_lossy(&events.chunk().await.unwrap().unwrap()));
    }

    // A link is good where its receiver is.
    daemon.waits(&run, "task").await;
    let (_, tasks) = send(get("/v1/tasks")).await;
    let task = tasks["items"][0]["id"].as_str().unwrap();
    let asked = client.post(url(proxy, &format!("/v1/tasks/{task}/links")));
    let (status, link) =
        send(asked.bearer_auth(&daemon.token).json(&json!({ "for": "bob" }))).await;
    assert_eq!(status, 201, "{link}");
    let link = link["url"].as_str().unwrap();
    assert!(link.starts_with(&url(proxy, "/ui/answer/")), "{link}");
    let page = client.get(link).send().await.unwrap();
    assert_eq!(page.status(), 200);

    // A form of a page, and its cookie.
    let form = client.post(url(proxy, "/ui/login")).header("origin", url(proxy, ""));
    let body = format!("token={}&next=%2Fui", daemon.token);
    let form = form.header("content-type", "application/x-www-form-urlencoded").body(body);
    let answer = form.send().await.unwrap();
    assert_ne!(answer.status(), 403, "{}", answer.text().await.unwrap());

    // A socket.
    let mut request =
        url(proxy, "/v1/responses").replace("https", "wss").into_client_request().unwrap();
    let bearer = format!("Bearer {}", daemon.token).parse().unwrap();
    request.headers_mut().insert("authorization", bearer);
    let (mut socket, answer) =
        tokio_tungstenite::client_async(request, handshake(proxy.at, NAMES.1).await).await.unwrap();
    assert_eq!(answer.status(), 101);
    socket.send(Message::text("{}")).await.unwrap();
    let message = socket.next().await.unwrap().unwrap();
    assert!(message.to_text().unwrap().contains("error"), "{message:?}");
}

/// The person whom a proxy names is the subject, also on the pages.
async fn names(daemon: &Daemon, proxy: &Proxy) {
    let client = client(proxy);
    until_ready(&client, proxy).await;
    let (status, who) =
        send(client.get(url(proxy, "/v1/whoami")).header("remote-user", "bob")).await;
    assert_eq!((status, &who["subject"], &who["role"]), (200, &json!("ada"), &json!("operator")));
    let (_, again) = send(client.get(url(proxy, "/v1/whoami"))).await;
    assert_eq!(who["jti"], again["jti"], "one token a person");
    let own = client.get(url(proxy, "/v1/whoami")).bearer_auth(&daemon.token);
    assert_eq!(send(own).await.1["subject"], "admin", "a token of one's own goes first");
    let page = client.get(url(proxy, "/ui")).send().await.unwrap();
    let cookie = page.headers()["set-cookie"].to_str().unwrap().to_owned();
    assert!(cookie.ends_with("; Secure"), "{cookie}");
    assert_eq!(page.status(), 200);
    let page = page.text().await.unwrap();
    assert!(page.contains("ada"), "{page}");
}

#[tokio::test]
async fn nginx_passes_requests_streams_and_sockets() {
    if !is_here("nginx") {
        return;
    }
    let shell = Shell::new();
    let daemon = behind(&shell);
    passes(&daemon, &nginx(&shell, &daemon, "")).await;
    names(&daemon, &nginx(&shell, &daemon, "ada")).await;
}

#[tokio::test]
async fn caddy_passes_requests_streams_and_sockets() {
    if !is_here("caddy") {
        return;
    }
    let shell = Shell::new();
    let daemon = behind(&shell);
    passes(&daemon, &caddy(&shell, &daemon, "")).await;
    names(&daemon, &caddy(&shell, &daemon, "ada")).await;
}

#[tokio::test]
async fn haproxy_passes_requests_streams_and_sockets() {
    if !is_here("haproxy") {
        return;
    }
    let shell = Shell::new();
    let daemon = behind(&shell);
    passes(&daemon, &haproxy(&shell, &daemon, "")).await;
    names(&daemon, &haproxy(&shell, &daemon, "ada")).await;
}
