//! Attacks that never got through, kept so that they never do: routes that a role has no right to,
//! forged tokens, requests within requests, and work that races with the end of its token.

use std::{
    collections::BTreeSet,
    io::{Read as _, Write as _},
    net::{Shutdown, TcpStream},
};

use data_encoding::{BASE64URL, BASE64URL_NOPAD};
use reqwest::Method;
use ring::hmac;
use serde_json::{Value, json};

use crate::support::{Daemon, PATIENCE, Shell, refusal, send};

/// What a role may do in a token that names no verbs; the routes of a task take its handle or its
/// own token instead, whatever the role. Written out once more, so that a change of the gate's
/// table is a change of this one.
const RIGHTS: [(&str, &str); 6] = [
    (
        "observer",
        "host.read run.read run.query blueprint.read task.list task.read artifact.read state.read operator.read",
    ),
    ("approver", "run.read run.query task.list task.read task.answer artifact.read"),
    ("senior", "run.read run.query task.list task.read task.advise artifact.read"),
    ("queue", "worker.lease"),
    ("worker", "task.escalate artifact.read"),
    (
        "operator",
        "host.read run.start run.read run.cancel run.pause run.resume run.fork run.replay run.export run.signal run.query \
         blueprint.read blueprint.check blueprint.test task.list task.read task.escalate artifact.read artifact.write state.read state.write \
         operator.read session.open session.read session.close seat.acquire dispatch token.mint trigger.pause",
    ),
];

async fn token_of(daemon: &Daemon, role: &str) -> String {
    let mut body = json!({ "role": role, "ttl": "1h" });
    if role == "queue" {
        body["scopes"] = json!(["queue:mail"]);
    }
    let asked = daemon.post("/v1/tokens", &body);
    let (status, made) = send(asked).await;
    assert_eq!(status, 201, "{role}: {made}");
    made["token"].as_str().unwrap().to_owned()
}

/// Every route behind the door: method, path with names for its parts, verb.
fn routes() -> Vec<(Method, String, String)> {
    let document: Value = serde_json::from_str(include_str!("../../docs/openapi.json")).unwrap();
    let mut routes = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let Some(verb) = operation["x-door"]["verb"].as_str() else { continue };
            if operation["x-door"]["bearer"] == "optional" {
                // Open to whoever sends no token.
                assert_eq!(path, "/readyz");
                continue;
            }
            let path: String = path
                .split('/')
                .map(|part| if part.starts_with('{') { "none" } else { part })
                .collect::<Vec<_>>()
                .join("/");
            let method = method.to_ascii_uppercase().parse().unwrap();
            routes.push((method, path, verb.to_owned()));
        }
    }
    routes
}

/// The answer of a route that may answer with something else than JSON. A stream without an end has
/// been let in, which is all that is asked here.
async fn answered(request: reqwest::RequestBuilder) -> (u16, String) {
    let answer = request.send().await.unwrap();
    let status = answer.status().as_u16();
    let kind = answer.headers().get("content-type").and_then(|it| it.to_str().ok());
    if kind.is_some_and(|kind| kind.starts_with("text/event-stream")) {
        return (status, String::new());
    }
    (status, answer.text().await.unwrap())
}

#[tokio::test]
async fn every_route_asks_every_role_for_its_verb() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let routes = routes();
    assert!(routes.len() > 70, "{} routes", routes.len());
    let asked = |token: Option<&str>, method: &Method, path: &str| {
        let request = match token {
            Some(token) => daemon.with(token, method.clone(), path),
            None => daemon.bare(method.clone(), path),
        };
        if *method == Method::GET { request } else { request.json(&json!({})) }
    };
    for (method, path, verb) in &routes {
        let (status, body) = answered(asked(None, method, path)).await;
        assert_eq!(status, 401, "{method} {path}, {verb}: {body}");
    }
    for (role, rights) in RIGHTS {
        let token = token_of(&daemon, role).await;
        let rights: BTreeSet<_> = rights.split_whitespace().collect();
        for (method, path, verb) in &routes {
            let (status, body) = answered(asked(Some(&token), method, path)).await;
            let said = format!("{role}: {method} {path}, {verb}: {status} {body}");
            let is_of_a_task = path.starts_with("/v1/worker/") && verb != "worker.lease";
            // A session works with the verbs of a worker, and an operator opens sessions: they may,
            // for a session that is theirs.
            let is_work = ["worker", "operator"].contains(&role)
                && verb.starts_with("worker.")
                && verb != "worker.lease";
            let may = !is_of_a_task && (is_work || rights.contains(&**verb));
            let is_refused = status == 403 && body.contains("\"forbidden_verb\"");
            assert_eq!(is_refused, !may, "{said}");
            assert!(status < 500 && (may || status == 403), "{said}");
        }
    }
}

/// The parts of a token, read.
fn parts_of(token: &str) -> (Value, Value, String) {
    let mut parts = token.split('.');
    let mut read = || {
        serde_json::from_slice(&BASE64URL_NOPAD.decode(parts.next().unwrap().as_bytes()).unwrap())
            .unwrap()
    };
    let (head, claims) = (read(), read());
    (head, claims, parts.next().unwrap().to_owned())
}

fn joined(head: &Value, claims: &Value, signature: &str) -> String {
    let part = |value: &Value| BASE64URL_NOPAD.encode(value.to_string().as_bytes());
    format!("{}.{}.{signature}", part(head), part(claims))
}

#[tokio::test]
async fn no_forged_token_is_anybodys() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let observer = token_of(&daemon, "observer").await;
    let (head, claims, signature) = parts_of(&observer);
    let (_, keys) = send(daemon.get("/.well-known/jwks.json")).await;
    let public = BASE64URL_NOPAD.decode(keys["keys"][0]["x"].as_str().unwrap().as_bytes()).unwrap();
    let with = |value: &Value, key: &str, to: Value| {
        let mut value = value.clone();
        value[key] = to;
        value
    };
    let admin = with(&claims, "role", json!("admin"));
    // The public key as the secret of a symmetric signature, in the three forms it is written in.
    let symmetric = |secret: &[u8]| {
        let unsigned = joined(&with(&head, "alg", json!("HS256")), &admin, "");
        let said = unsigned.trim_end_matches('.');
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), said.as_bytes());
        format!("{said}.{}", BASE64URL_NOPAD.encode(tag.as_ref()))
    };
    let unsigned = with(&head, "alg", json!("none"));
    let forged = [
        joined(&head, &admin, &signature),
        joined(&head, &with(&claims, "exp", json!(u32::MAX)), &signature),
        joined(&unsigned, &admin, ""),
        joined(&unsigned, &claims, &signature),
        joined(&with(&head, "alg", json!("NONE")), &admin, &signature),
        joined(&with(&head, "alg", json!("ES256")), &claims, &signature),
        joined(&with(&head, "kid", json!("../../../dev/null")), &claims, &signature),
        joined(&with(&head, "kid", json!("' OR 1=1 --")), &claims, &signature),
        joined(&with(&head, "jwk", keys["keys"][0].clone()), &admin, &signature),
        joined(&with(&head, "jku", json!("http://127.0.0.1:1/keys")), &admin, &signature),
        joined(&with(&head, "crit", json!(["exp"])), &claims, &signature),
        joined(&with(&head, "typ", json!("JWT")), &claims, &signature),
        joined(&head, &claims, &BASE64URL_NOPAD.encode(&[0; 64])),
        joined(&head, &claims, ""),
        symmetric(&public),
        symmetric(keys["keys"][0]["x"].as_str().unwrap().as_bytes()),
        symmetric(BASE64URL.encode(&public).as_bytes()),
        symmetric(b""),
        format!("{observer}."),
        format!("{observer}.{signature}"),
        format!("{observer}=="),
        observer.replace('.', ".."),
        "..".to_owned(),
        "a".repeat(16_000),
    ];
    assert_eq!(send(daemon.with(&observer, Method::GET, "/v1/runs")).await.0, 200);
    for token in &forged {
        let refused = refusal(daemon.with(token, Method::GET, "/v1/runs")).await;
        assert_eq!(refused, (401, "unauthenticated".to_owned()), "{token}");
    }
}

/// What comes back for bytes, until the daemon closes the connection or has nothing more to say.
pub fn answer_to(daemon: &Daemon, bytes: &str) -> String {
    let mut stream = TcpStream::connect(daemon.url.strip_prefix("http://").unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(bytes.as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    // A connection that is reset has said what it had to say.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn no_request_hides_in_another() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let host = daemon.url.strip_prefix("http://").unwrap().to_owned();
    let token = &daemon.token;
    let post = |more: &str, body: &str| {
        format!(
            "POST /v1/runs HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\ncontent-type: application/json\r\n{more}\r\n{body}"
        )
    };
    let hidden =
        format!("GET /v1/tokens HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\n\r\n");
    let short = format!("content-length: {}\r\n", hidden.len());
    for (head, body) in [
        // Two lengths that differ, and lengths that are no numbers.
        ("content-length: 0\r\ncontent-length: 90\r\n", hidden.clone()),
        ("content-length: 0, 90\r\n", hidden.clone()),
        ("content-length: +0\r\n", hidden.clone()),
        ("content-length: -1\r\n", hidden.clone()),
        ("content-length: 0x0\r\n", hidden.clone()),
        // Encodings that nobody has, and chunks that are none.
        ("transfer-encoding: identity\r\n", hidden.clone()),
        ("transfer-encoding: chunked, identity\r\n", format!("0\r\n\r\n{hidden}")),
        ("transfer-encoding: xchunked\r\n", format!("0\r\n\r\n{hidden}")),
        ("transfer-encoding: chunked\r\n", format!("-1\r\n{hidden}")),
        ("transfer-encoding: chunked\r\n", format!("ffffffffffffffffff\r\n{hidden}")),
        ("transfer-encoding: chunked\r\n", format!("0x0\r\n\r\n{hidden}")),
        // Heads that continue, and names that others would trim.
        (" content-length: 0\r\n", hidden.clone()),
        ("x: y\r\n content-length: 0\r\n", hidden.clone()),
        ("content-length : 0\r\n", hidden.clone()),
        ("content-length\0: 0\r\n", hidden.clone()),
        ("x: y\rcontent-length: 0\r\n", hidden.clone()),
        // All of it is the body, which is no JSON.
        (&*short, hidden.clone()),
    ] {
        let answer = answer_to(&daemon, &post(head, &body));
        let first = answer.lines().next().unwrap_or_default().to_owned();
        assert!(first.starts_with("HTTP/1.1 4") || answer.is_empty(), "{head:?}: {answer}");
        assert!(!answer.contains("\"jti\""), "{head:?}: the hidden request was answered: {answer}");
    }
    let (_, runs) = send(daemon.get("/v1/runs")).await;
    assert_eq!(runs["items"], json!([]), "nothing began");
}

#[tokio::test]
async fn nothing_begins_after_its_token_was_revoked() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let source = "local swarm = require(\"swarm\")\nreturn swarm.blueprint { name = \"b\", flow = function() return 1 end }";
    let (status, stored) = send(daemon.put("/v1/blueprints/b", &json!({ "source": source }))).await;
    assert!(status < 300, "{stored}");
    for _ in 0..5 {
        let asked = daemon.post("/v1/tokens", &json!({ "role": "operator", "ttl": "1h" }));
        let (_, made) = send(asked).await;
        let (token, jti) = (made["token"].as_str().unwrap(), made["jti"].as_str().unwrap());
        let starts = async || {
            let start = daemon.with(token, Method::POST, "/v1/runs");
            send(start.json(&json!({ "blueprint": "b" }))).await.0
        };
        let revoke = daemon.delete(&format!("/v1/tokens/{jti}"));
        let count = async || {
            let (_, counts) = send(daemon.get("/v1/runs?limit=500")).await;
            counts["items"].as_array().unwrap().len()
        };
        let before = count().await;
        let racing = futures::future::join_all((0..40).map(|_| starts()));
        let (began, (revoked, _)) = futures::join!(racing, send(revoke));
        assert_eq!(revoked, 204);
        assert!(began.iter().all(|status| [201, 401].contains(status)), "{began:?}");
        assert_eq!(starts().await, 401);
        let made = began.iter().filter(|status| **status == 201).count();
        assert_eq!(count().await - before, made, "whatever began was answered with 201: {began:?}");
    }
}
