//! What a bad request gets: its status and a code that never changes, and nothing half done.

use std::{
    io::{Read, Write},
    net::TcpStream,
};

use reqwest::{Method, RequestBuilder};
use serde_json::json;

use crate::support::{Daemon, Shell, refusal, send};

const ECHO: &str = r#"local swarm = require("swarm")
local s = swarm.schema
return swarm.blueprint { name = "echo", input = s.object { n = s.integer { optional = true } },
  agents = { echo = { operator = "echo" } },
  flow = function(ctx, input) return ctx:run("echo", input) end }"#;

fn raw(daemon: &Daemon, path: &str, body: impl Into<reqwest::Body>) -> RequestBuilder {
    let request = daemon.with(&daemon.token, Method::POST, path);
    request.header("content-type", "application/json").body(body)
}

async fn expect(request: RequestBuilder, status: u16, code: &str) {
    assert_eq!(refusal(request).await, (status, code.to_owned()));
}

#[tokio::test]
async fn a_body_that_cannot_be_read_is_refused_and_begins_nothing() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    for (path, size) in [("/v1/runs", 9 << 20), ("/v1/tokens", (1 << 20) + 1)] {
        expect(raw(&daemon, path, " ".repeat(size)), 413, "too_large").await;
    }
    expect(raw(&daemon, "/v1/runs", "{"), 400, "malformed_json").await;
    expect(raw(&daemon, "/v1/runs", ""), 400, "malformed_json").await;
    expect(raw(&daemon, "/v1/runs", "[]"), 422, "invalid_body").await;
    expect(raw(&daemon, "/v1/runs", r#"{"blueprint":"a","inptu":1}"#), 422, "unknown_field").await;
    let deep = format!(r#"{{"blueprint":"a","input":{}{}}}"#, "[".repeat(200), "]".repeat(200));
    expect(raw(&daemon, "/v1/runs", deep), 422, "invalid_body").await;
    let xml = daemon.with(&daemon.token, Method::POST, "/v1/runs").body("<a/>");
    expect(xml.header("content-type", "text/xml"), 415, "unsupported_media_type").await;
    let (_, runs) = send(daemon.get("/v1/runs")).await;
    assert_eq!(runs["items"], json!([]));
}

/// Sends a whole request, and only then reads the answer.
fn sent_before_it_is_read(url: &str, bearer: &str, path: &str, size: usize) -> String {
    let host = url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(host).unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {bearer}\r\n\
         content-type: application/json\r\nconnection: close\r\ncontent-length: {size}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&vec![b' '; size]).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[tokio::test]
async fn a_client_that_sends_all_before_it_reads_gets_the_refusal() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let token = daemon.token.as_str();
    for (bearer, path, status, code) in [
        (token, "/v1/runs", 413, "too_large"),
        ("sk-wrong", "/v1/runs", 401, "unauthenticated"),
        (token, "/v1/worker/result", 403, "forbidden_verb"),
        (token, "/v1/nowhere", 404, "no_route"),
        (token, "/v1/host", 405, "method_not_allowed"),
    ] {
        let (url, bearer) = (daemon.url.clone(), bearer.to_owned());
        let sent = move || sent_before_it_is_read(&url, &bearer, path, 9 << 20);
        let answer = tokio::task::spawn_blocking(sent).await.unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {answer}");
        assert!(answer.contains(&format!("\"code\":\"{code}\"")), "{path}: {answer}");
    }
}

#[tokio::test]
async fn a_bearer_that_is_no_token_of_this_program_says_so() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    for bearer in ["sk-wrong", "a.b.c", "eyJhbGciOiJub25lIn0.e30."] {
        let (status, problem) = send(daemon.with(bearer, Method::GET, "/v1/runs")).await;
        assert_eq!((status, &problem["code"]), (401, &json!("unauthenticated")), "{problem}");
        let detail = problem["detail"].as_str().unwrap();
        assert!(
            detail.contains("admin.token") && !detail.contains("Invalid"),
            "{bearer}: {detail}"
        );
    }
}

#[tokio::test]
async fn a_request_for_what_is_not_there_says_which_part() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    expect(daemon.get("/v1/nothing"), 404, "no_route").await;
    expect(daemon.delete("/v1/runs"), 405, "method_not_allowed").await;
    expect(daemon.get("/v1/runs/7"), 400, "bad_id").await;
    expect(daemon.get("/v1/runs/run_agq7x4hfunyadaaaaaaaiaaaaa"), 404, "not_found").await;
    expect(daemon.get("/v1/runs?limit=0"), 400, "bad_query").await;
    expect(daemon.get("/v1/runs?colour=1"), 400, "bad_query").await;
    expect(daemon.get("/v1/runs?status=sleeping"), 400, "bad_query").await;
    expect(daemon.post("/v1/runs", &json!({"blueprint": "nobody"})), 404, "not_found").await;
}

#[tokio::test]
async fn an_input_or_blueprint_that_breaks_its_rules_names_the_place() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let (status, problem) =
        send(daemon.post("/v1/runs", &json!({"source": ECHO, "input": {"n": "x"}}))).await;
    assert_eq!((status, &problem["code"]), (422, &json!("invalid_input")), "{problem}");
    assert_eq!(problem["path"], "$.n", "{problem}");
    let (status, problem) = send(daemon.post("/v1/runs", &json!({"source": "return {"}))).await;
    assert_eq!((status, &problem["code"]), (422, &json!("blueprint_invalid")), "{problem}");
    assert_eq!(problem["findings"][0]["line"], 1, "{problem}");
    let (_, runs) = send(daemon.get("/v1/runs")).await;
    assert_eq!(runs["items"], json!([]));
}

#[tokio::test]
async fn a_foreign_host_comes_before_a_foreign_origin_and_that_before_the_token() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let asked = |path| daemon.bare(Method::GET, path);
    let evil = ("origin", "http://evil.example");
    expect(
        asked("/v1/runs").header("host", "evil.example").header(evil.0, evil.1),
        403,
        "host_not_allowed",
    )
    .await;
    expect(asked("/healthz").header("host", "evil.example"), 403, "host_not_allowed").await;
    expect(asked("/v1/runs").header(evil.0, evil.1), 403, "origin_not_allowed").await;
    expect(asked("/v1/runs").header("origin", "null"), 403, "origin_not_allowed").await;
    expect(asked("/v1/runs"), 401, "unauthenticated").await;
    let (status, _) = send(daemon.get("/v1/runs").header("origin", daemon.url.as_str())).await;
    assert_eq!(status, 200, "a page of its own may ask");
}

#[tokio::test]
async fn a_request_that_is_repeated_under_its_key_does_nothing_twice() {
    let shell = Shell::new();
    let data = shell.path("data");
    let mut daemon = Daemon::start(&data);
    let body = json!({"source": ECHO, "input": {"n": 1}});
    let start =
        |daemon: &Daemon, body| daemon.post("/v1/runs", body).header("idempotency-key", "k1");
    let (status, first) = send(start(&daemon, &body)).await;
    assert_eq!(status, 201);
    daemon.kill();
    daemon = Daemon::start(&data);
    let (status, again) = send(start(&daemon, &body)).await;
    assert_eq!((status, &again["id"]), (201, &first["id"]), "also after a crash");
    let other = json!({"source": ECHO, "input": {"n": 2}});
    expect(start(&daemon, &other), 409, "idempotency_mismatch").await;
    let (_, runs) = send(daemon.get("/v1/runs")).await;
    assert_eq!(runs["items"].as_array().unwrap().len(), 1);

    let mint = json!({"role": "observer", "ttl": "1h"});
    let minted = |key| send(daemon.post("/v1/tokens", &mint).header("idempotency-key", key));
    let (first, again, fresh) = (minted("a").await, minted("a").await, minted("b").await);
    assert_eq!(first, again);
    assert_eq!(first.0, 201, "{first:?}");
    assert_ne!(first.1["jti"], fresh.1["jti"]);
    for key in ["x".repeat(256), String::new(), "a b".into(), "a\tb".into(), "clé".into()] {
        let minted = daemon.post("/v1/tokens", &mint).header("idempotency-key", key.as_bytes());
        expect(minted, 400, "bad_header").await;
    }
}

#[tokio::test]
async fn what_curl_sends_by_default_is_read_as_what_the_route_takes() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let form = |method: Method, path: &str, body: &str| {
        let request = daemon.with(&daemon.token, method, path).body(body.to_owned());
        request.header("content-type", "application/x-www-form-urlencoded")
    };
    let (status, stored) = send(form(Method::PUT, "/v1/blueprints/echo", ECHO)).await;
    assert_eq!((status, &stored["name"]), (200, &json!("echo")), "{stored}");
    let (status, run) = send(form(Method::POST, "/v1/runs", r#"{"blueprint":"echo"}"#)).await;
    assert_eq!(status, 201, "{run}");
    let (status, found) = send(form(Method::POST, "/v1/check", ECHO)).await;
    assert_eq!((status, &found["ok"]), (200, &json!(true)), "{found}");
}

#[tokio::test]
async fn the_preflight_of_a_configured_origin_is_answered_and_of_no_other() {
    let shell = Shell::new();
    let config = shell.write("swarm.toml", "origins = [\"https://desk.example\"]");
    let flags = ["--config".as_ref(), config.as_os_str()];
    let daemon = Daemon::start_with(&shell.path("data"), &flags);
    let ask = |path: &str, origin: &str| {
        let request = daemon.bare(Method::OPTIONS, path).header("origin", origin);
        request.header("access-control-request-method", "POST")
    };
    for path in ["/v1/runs", "/v1/tokens/self", "/mcp", "/nowhere"] {
        let answer = ask(path, "https://desk.example").send().await.unwrap();
        assert_eq!(answer.status(), 204, "{path}");
        let header = |name: &str| answer.headers()[name].to_str().unwrap().to_owned();
        assert_eq!(header("access-control-allow-origin"), "https://desk.example");
        assert!(header("access-control-allow-headers").contains("authorization"));
        assert!(header("access-control-allow-methods").contains("DELETE"));
        assert_eq!(header("vary"), "origin");
        assert!(!answer.headers().contains_key("access-control-allow-credentials"));
        expect(ask(path, "https://evil.example"), 403, "origin_not_allowed").await;
        expect(ask(path, "null"), 403, "origin_not_allowed").await;
    }
    let pages = ask("/ui/runs", "https://desk.example").send().await.unwrap();
    assert!(!pages.headers().contains_key("access-control-allow-origin"), "{pages:?}");

    let read = daemon.get("/v1/runs").header("origin", "https://desk.example");
    let read = read.send().await.unwrap();
    assert_eq!(read.headers()["access-control-allow-origin"], "https://desk.example");
    let bare = daemon.bare(Method::GET, "/v1/runs").header("origin", "https://desk.example");
    let refused = bare.send().await.unwrap();
    assert_eq!(refused.status(), 401);
    assert_eq!(refused.headers()["access-control-allow-origin"], "https://desk.example");
    let own = daemon.get("/v1/runs").header("origin", daemon.url.as_str()).send().await.unwrap();
    assert!(!own.headers().contains_key("access-control-allow-origin"));
}
