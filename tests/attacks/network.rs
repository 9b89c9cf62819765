//! Attacks from the network: words of proxies from those who are none, plain text, other users.

use std::{io::Read as _, io::Write as _, net::IpAddr, os::unix::fs::PermissionsExt as _};

use moonswarm::environment::http_client;
use reqwest::{Method, RequestBuilder};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;

use crate::support::{Daemon, PATIENCE, Shell, eventually, refusal, repository, send, skip, when};

/// The address of the one proxy; this machine has others of its own.
const PROXY: [u8; 4] = [127, 0, 0, 2];
/// The header and the secret with which the proxy proves that it is the proxy.
const SECRET: (&str, &str) = ("moonswarm-proxy-secret", "known-to-the-proxy-alone");

/// A daemon that believes a proxy, which names people.
fn daemon(shell: &Shell) -> Daemon {
    let secret = shell.write("proxy.secret", format!("{}\n", SECRET.1));
    let people = format!("secret = {{ file = {secret:?} }}\n");
    let config = shell.write(
        "daemon.toml",
        "proxies = [\"127.0.0.2\"]\nhosts = [\"swarm.example\"]\n[people]\n".to_owned()
            + &people
            + "header = \"Remote-User\"\ngroups = \"Remote-Groups\"\n\
         [[people.roles]]\nname = \"ada\"\nrole = \"admin\"\n\
         [[people.roles]]\ngroup = \"readers\"\nrole = \"observer\"\n\
         [[people.roles]]\nname = \"bob\"\nrole = \"approver\"\nscopes = [\"blueprint:review\"]\n",
    );
    Daemon::start_with(&shell.path("data"), &["--config".as_ref(), config.as_os_str()])
}

/// A client at the address of the proxy.
fn client() -> reqwest::Client {
    http_client().no_proxy().local_address(IpAddr::from(PROXY)).build().unwrap()
}

/// A request from an address of this machine.
fn from(daemon: &Daemon, address: [u8; 4], path: &str) -> RequestBuilder {
    let client = http_client().no_proxy().local_address(IpAddr::from(address)).build().unwrap();
    client.request(Method::GET, format!("{}{path}", daemon.url))
}

#[tokio::test]
async fn the_words_of_a_proxy_count_from_a_proxy_only() {
    let shell = Shell::new();
    let daemon = daemon(&shell);
    let named = |address, name: &str| {
        let request = from(&daemon, address, "/v1/whoami").header(SECRET.0, SECRET.1);
        request.header("remote-user", name)
    };
    let (status, who) = send(named(PROXY, "ada")).await;
    assert_eq!((status, &who["subject"], &who["role"]), (200, &json!("ada"), &json!("admin")));
    for outside in [[127, 0, 0, 1], [127, 0, 0, 3]] {
        let spoofed = named(outside, "ada")
            .header("x-forwarded-for", "127.0.0.2")
            .header("forwarded", "for=127.0.0.2");
        assert_eq!(refusal(spoofed).await, (401, "unauthenticated".to_owned()));
        let host = from(&daemon, outside, "/healthz").header("host", "evil.example");
        let host = host.header("x-forwarded-host", "swarm.example");
        assert_eq!(refusal(host).await, (403, "host_not_allowed".to_owned()));
    }
    let host = from(&daemon, PROXY, "/healthz").header("host", "inner.example");
    assert_eq!(send(host.header("x-forwarded-host", "swarm.example")).await.0, 200);
    let evil = from(&daemon, PROXY, "/healthz").header("x-forwarded-host", "evil.example");
    assert_eq!(refusal(evil).await, (403, "host_not_allowed".to_owned()));
}

#[tokio::test]
async fn a_program_at_the_address_of_the_proxy_is_nobody_without_its_secret() {
    let shell = Shell::new();
    let daemon = daemon(&shell);
    let named = |path: &str| from(&daemon, PROXY, path).header("remote-user", "ada");
    let forbidden = (403, "forbidden".to_owned());
    for path in ["/v1/whoami", "/v1/runs", "/readyz", "/mcp"] {
        assert_eq!(refusal(named(path)).await, forbidden, "{path}");
    }
    let guess = named("/v1/whoami").header(SECRET.0, "known-to-the-proxy-alone?");
    let (status, told) = send(guess).await;
    let detail = told["detail"].as_str().unwrap();
    assert_eq!(status, 403);
    assert!(detail.contains("`Moonswarm-Proxy-Secret`") && !detail.contains("known"), "{detail}");
    let twice = named("/v1/whoami").header(SECRET.0, SECRET.1).header(SECRET.0, SECRET.1);
    assert_eq!(refusal(twice).await, forbidden);
    // Nor does a token help: whoever names somebody else is no proxy.
    let own = named("/v1/whoami").bearer_auth(&daemon.token);
    assert_eq!(refusal(own).await, forbidden);
    let page = named("/ui").send().await.unwrap();
    assert_eq!(page.status(), 403);
    assert!(!page.headers().contains_key("set-cookie"));
    // Without the name of a person it is a request like any other.
    assert_eq!(refusal(from(&daemon, PROXY, "/v1/whoami")).await.0, 401);
    let own = from(&daemon, PROXY, "/v1/whoami").bearer_auth(&daemon.token);
    assert_eq!(send(own).await.1["subject"], "admin");
    assert_eq!(send(named("/v1/whoami").header(SECRET.0, SECRET.1)).await.1["subject"], "ada");
    assert!(!daemon.log().contains(SECRET.1), "it is in no log");
}

#[tokio::test]
async fn nobody_trusts_every_program_of_this_machine_with_names_by_mistake() {
    let shell = Shell::new();
    let people = "[people]\nheader = \"Remote-User\"\n\
                  [[people.roles]]\neverybody = true\nrole = \"admin\"\n";
    for net in ["127.0.0.1", "127.0.0.0/8", "::1", "::ffff:127.0.0.1"] {
        shell.write("moonswarm.toml", format!("proxies = [{net:?}]\n{people}"));
        let serve = ["serve", "--data", "data", "--listen", "127.0.0.1:0"];
        let refused = shell.run(&serve).exits(2);
        assert!(refused.stderr.contains("set `people.secret`"), "{net}: {refused:?}");
        assert!(!shell.path("data").exists(), "nothing was begun");
    }
    let doctor = shell.run(&["doctor", "--data", "data"]);
    assert!(doctor.stdout.contains("people.secret"), "{doctor:?}");
    // A secret that is none is no better.
    let text = "secret = { file = \"empty\" }\nheader";
    let config = format!("proxies = [\"127.0.0.1\"]\n{}", people.replacen("header", text, 1));
    shell.write("moonswarm.toml", config);
    shell.write("empty", "\n");
    let refused = shell.run(&["serve", "--data", "data", "--listen", "127.0.0.1:0"]).exits(2);
    assert!(refused.stderr.contains("openssl rand"), "{refused:?}");
}

#[tokio::test]
async fn a_person_has_the_role_and_scopes_of_its_row_and_no_other_name() {
    let shell = Shell::new();
    let daemon = daemon(&shell);
    let ask = |path: &str, headers: &[(&str, &str)]| {
        let request = from(&daemon, PROXY, path).header(SECRET.0, SECRET.1);
        headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))
    };
    let unknown = ask("/v1/whoami", &[("remote-user", "eve")]);
    assert_eq!(refusal(unknown).await, (403, "forbidden".to_owned()));
    let eve = [("remote-user", "eve"), ("remote-groups", "x,readers")];
    let (_, who) = send(ask("/v1/whoami", &eve)).await;
    assert_eq!((&who["subject"], &who["role"]), (&json!("eve"), &json!("observer")));
    assert_eq!(refusal(ask("/v1/audit?limit=0", &eve)).await.0, 403, "an observer sees no audit");
    let (_, who) = send(ask("/v1/whoami", &[("remote-user", "bob")])).await;
    assert_eq!(who["scopes"], json!(["blueprint:review"]), "{who}");
    // The case of a name makes nobody else of a person.
    let (_, who) = send(ask("/v1/whoami", &[("remote-user", "Bob")])).await;
    assert_eq!((&who["subject"], &who["role"]), (&json!("bob"), &json!("approver")));
    // Two names are none, and a name of the host is nobody's.
    let twice = ask("/v1/whoami", &[("remote-user", "ada"), ("remote-user", "bob")]);
    assert_eq!(refusal(twice).await, (401, "unauthenticated".to_owned()));
    for name in ["admin", "host", "engine", "ada/x", "a b", &"a".repeat(65)] {
        let headers = [("remote-user", name), ("remote-groups", "readers")];
        let (status, code) = refusal(ask("/v1/whoami", &headers)).await;
        assert_eq!((status, &*code), (400, "bad_request"), "{name}");
    }
    // A page of another site, in a browser that the proxy knows.
    let foreign = ask("/v1/whoami", &[("remote-user", "ada"), ("origin", "https://evil.example")]);
    assert_eq!(refusal(foreign).await, (403, "origin_not_allowed".to_owned()));
}

#[tokio::test]
async fn a_cookie_does_not_outlive_the_person_whom_the_proxy_names() {
    let shell = Shell::new();
    let daemon = daemon(&shell);
    let page = async |name: &str, cookie: &str| {
        let page = from(&daemon, PROXY, "/ui/tokens").header("remote-user", name);
        let page = page.header(SECRET.0, SECRET.1);
        let page = page.header("remote-groups", "readers").header("cookie", cookie);
        let answer = page.send().await.unwrap();
        let cookie = answer.headers().get("set-cookie").map(|it| it.to_str().unwrap().to_owned());
        (answer.text().await.unwrap(), cookie)
    };
    let (_, cookie) = page("ada", "").await;
    let cookie = cookie.unwrap();
    let cookie = cookie.split(';').next().unwrap();
    assert_eq!(page("ada", cookie).await.1, None, "the sign-in goes on");
    let (text, other) = page("eve", cookie).await;
    assert!(other.is_some() && text.contains("eve"), "{text}");
    // A picture of another site makes no sign-in.
    let picture = from(&daemon, PROXY, "/ui").header("remote-user", "ada");
    let picture = picture.header(SECRET.0, SECRET.1);
    let picture = picture.header("sec-fetch-mode", "no-cors").send().await.unwrap();
    assert!(!picture.headers().contains_key("set-cookie"));
    assert_eq!(picture.status(), 200, "it is sent to the login");
    assert!(picture.url().path().starts_with("/ui/login"), "{}", picture.url());
    // Nor does a form of another site, or one without the token of a sign-in.
    let form = |origin: String| {
        let form = client().post(format!("{}/ui/theme", daemon.url)).header("remote-user", "ada");
        let form = form.header(SECRET.0, SECRET.1);
        form.header("origin", origin).header("content-type", "application/x-www-form-urlencoded")
    };
    let evil = form("https://evil.example".to_owned()).body("theme=dark").send().await.unwrap();
    assert_eq!(evil.status(), 403);
    let own = form(daemon.url.clone()).body("theme=dark").send().await.unwrap();
    assert!(own.url().path().starts_with("/ui/login"), "{}", own.url());
}

#[tokio::test]
async fn no_sign_in_begins_under_a_name_that_is_not_the_daemons() {
    let shell = Shell::new();
    let daemon = daemon(&shell);
    // A page whose name leads to the proxy (DNS rebinding), in a browser that the proxy knows.
    for (header, value) in
        [("x-forwarded-host", "evil.example"), ("host", "evil.example"), ("origin", "http://evil")]
    {
        let page = from(&daemon, PROXY, "/ui").header("remote-user", "ada");
        let page = page.header(SECRET.0, SECRET.1).header(header, value).send().await.unwrap();
        assert_eq!(page.status(), 403, "{header}");
        assert!(!page.headers().contains_key("set-cookie"), "{header}: {:?}", page.headers());
    }
    let (_, tokens) = send(daemon.get("/v1/tokens")).await;
    let mut subjects = tokens["items"].as_array().unwrap().iter().map(|it| &it["subject"]);
    assert!(!subjects.any(|it| it == "ada"), "{tokens}");
}

#[tokio::test]
async fn the_forms_of_strangers_have_a_share_of_the_memory_by_their_address() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let at = daemon.url.strip_prefix("http://").unwrap();
    let head = format!(
        "POST /ui/login HTTP/1.1\r\nhost: {at}\r\norigin: {}\r\n\
         content-type: application/x-www-form-urlencoded\r\ncontent-length: 60000\r\n\r\n",
        daemon.url
    );
    // Of 4 MiB, 69 such forms fit that lack one byte.
    let begun = [head.as_bytes(), &[b'a'; 59_999][..]].concat();
    let mut forms = Vec::new();
    for _ in 0..200 {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, 3], 0).into()).unwrap();
        let mut stream = socket.connect(at.parse().unwrap()).await.unwrap();
        stream.write_all(&begun).await.unwrap();
        forms.push(stream);
    }
    eventually("the refusal of those that do not fit", async || {
        forms.retain(|form| {
            let mut head = [0; 12];
            // Nothing comes to one that waits for its last byte.
            let Ok(read) = form.try_read(&mut head) else { return true };
            assert_eq!(&head[..read], b"HTTP/1.1 503");
            false
        });
        when(forms.len() <= 69, forms.len())
    })
    .await;
    let http = http_client().no_proxy().redirect(reqwest::redirect::Policy::none());
    let form = http.build().unwrap().post(format!("{}/ui/login", daemon.url));
    let form = form.header("origin", &daemon.url).body(format!("token={}", daemon.token));
    let form = form.header("content-type", "application/x-www-form-urlencoded");
    let signed_in = form.send().await.unwrap();
    assert_eq!(signed_in.status(), 303, "who is elsewhere signs in");
    assert!(signed_in.headers().contains_key("set-cookie"));
    drop(forms);
}

#[tokio::test]
async fn a_client_behind_the_proxy_that_keeps_no_cookies_leaves_no_tokens() {
    let shell = Shell::new();
    let daemon = daemon(&shell);
    for _ in 0..30 {
        let page = from(&daemon, PROXY, "/ui/tokens").header("remote-user", "eve");
        let page = page.header(SECRET.0, SECRET.1).header("remote-groups", "readers");
        let answer = page.send().await.unwrap();
        assert_eq!(answer.status(), 200);
        assert!(answer.headers().contains_key("set-cookie"), "each is signed in");
    }
    let (_, tokens) = send(daemon.get("/v1/tokens")).await;
    let eves = tokens["items"].as_array().unwrap().iter().filter(|it| it["subject"] == "eve");
    assert_eq!(eves.count(), 2, "the person's token, and the one behind all sign-ins: {tokens}");
}

#[tokio::test]
async fn nobody_listens_to_other_machines_in_plain_text_by_mistake() {
    let shell = Shell::new();
    let serve = |more: &[&str]| {
        let words = ["serve", "--data", "data", "--listen", "0.0.0.0:0", "--json"];
        shell.command(&[&words[..], more].concat())
    };
    let refused = crate::support::Done::from(serve(&[]).output().unwrap()).exits(2);
    assert!(refused.stderr.contains("set `tls = { cert, key }`"), "{refused:?}");
    assert!(!shell.path("data").exists(), "nothing was begun");
    let config = shell.write("moonswarm.toml", "proxies = [\"198.51.100.0/24\"]\n");
    let data = shell.path("data");
    let wild = ["--listen", "0.0.0.0:0"];
    let [listen, at] = wild.map(std::ffi::OsStr::new);
    let daemon = Daemon::start_with(&data, &[listen, at, "--config".as_ref(), config.as_os_str()]);
    let port = daemon.url.rsplit(':').next().unwrap();
    // Another address of this machine stands for another machine.
    let Some(own) = own_address() else {
        skip("plain text from another machine", "this one has no address but the loopback ones");
        return;
    };
    let client = http_client().no_proxy().build().unwrap();
    let ask = |path: &str| {
        let request = client.get(format!("http://{own}:{port}{path}"));
        request.header("host", format!("127.0.0.1:{port}"))
    };
    assert_eq!(send(ask("/healthz")).await.0, 200);
    assert_eq!(send(ask("/readyz")).await, (200, json!({ "status": "ready" })));
    let told = refusal(ask("/v1/whoami").bearer_auth(&daemon.token)).await;
    assert_eq!(told, (403, "tls_required".to_owned()));
    let told = refusal(ask("/readyz").bearer_auth(&daemon.token)).await;
    assert_eq!(told, (403, "tls_required".to_owned()));
}

/// An address of this machine that is none of the loopback ones.
fn own_address() -> Option<IpAddr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    // Sends nothing: it only asks for the route.
    socket.connect("192.0.2.1:9").ok()?;
    let own = socket.local_addr().ok()?.ip();
    (!own.is_loopback() && !own.is_unspecified()).then_some(own)
}

#[tokio::test]
async fn plain_text_and_half_handshakes_on_a_port_with_tls_get_nothing() {
    let shell = Shell::new();
    let file = |name: &str| repository("tests/support/tls").join(name);
    let (cert, key) = (file("first.pem"), file("first.key"));
    let flags = ["--tls-cert".as_ref(), cert.as_os_str(), "--tls-key".as_ref(), key.as_os_str()];
    let daemon = Daemon::start_with(&shell.path("data"), &flags);
    let at = daemon.url.strip_prefix("https://").unwrap();
    let send = |bytes: &[u8]| {
        let mut stream = std::net::TcpStream::connect(at).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(bytes).unwrap();
        let mut back = Vec::new();
        // A reset is an end as well.
        let _ = stream.read_to_end(&mut back);
        String::from_utf8_lossy(&back).into_owned()
    };
    let plain = format!(
        "GET /v1/whoami HTTP/1.1\r\nhost: {at}\r\nauthorization: Bearer {}\r\n\r\n",
        daemon.token
    );
    let told = send(plain.as_bytes());
    assert!(told.starts_with("HTTP/1.1 400") && told.contains("speaks TLS"), "{told}");
    // The daemon closes these: they would wait for ever otherwise.
    for half in [&b"\x16"[..], b"\x16\x03\x01\x02\x00\x01"] {
        assert!(!send(half).contains("HTTP"));
    }
    shell.run(&["ps", "--data", "data"]).ok();
}

#[tokio::test]
async fn another_user_gets_nothing_from_the_socket_of_the_data_directory() {
    let shell = Shell::new();
    if !rustix::process::geteuid().is_root() {
        skip("a socket and another user", "only root can be one");
        return;
    }
    let daemon = Daemon::start(&shell.path("data"));
    let socket = shell.path("data/moonswarm.sock");
    // Even if everybody could open it, the kernel says who does.
    for dir in [shell.path(""), shell.path("data")] {
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let as_nobody = || {
        let mut command = std::process::Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "curl", "-s"]);
        command.arg("--unix-socket").arg(&socket).arg("http://localhost/healthz").output()
    };
    let (Ok(done), true) = (as_nobody(), std::path::Path::new("/usr/bin/curl").exists()) else {
        skip("a socket and another user", "setpriv or curl is not here");
        return;
    };
    assert_eq!(done.status.code(), Some(7), "it cannot connect: {done:?}");
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o666)).unwrap();
    let done = as_nobody().unwrap();
    assert!(!done.status.success() && done.stdout.is_empty(), "{done:?}");
    assert!(daemon.log().contains("another user connected"), "{}", daemon.log());
}
