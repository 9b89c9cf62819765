//! The webhook operator against a server with scripted responses.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
};

use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::{settings::HttpSettings, webhook::Webhook};
use crate::{
    clock::Clock,
    operator::{Backend as _, Builtin, Reply, fixture::Attempt},
    protocol::{Failure, Json, failure::kind},
};

/// A server that returns the next response for each request, and records the requests.
struct Hook {
    url: String,
    asked: UnboundedReceiver<(String, Value)>,
}

impl Hook {
    fn answers<const N: usize>(answers: [String; N]) -> Self {
        Self::serves(answers.map(|answer| {
            move |mut stream: TcpStream| {
                // The client may close the connection in the middle of a response.
                let _ = stream.write_all(answer.as_bytes());
            }
        }))
    }

    fn serves<const N: usize, F>(answers: [F; N]) -> Self
    where
        F: FnOnce(TcpStream) + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let (sender, asked) = unbounded_channel();
        let serving = move || {
            for answer in answers {
                let (stream, _) = listener.accept().unwrap();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut head = String::new();
                while reader.read_line(&mut head).unwrap() > 2 {}
                let length = head.to_lowercase();
                let length = length.split("content-length: ").nth(1).unwrap();
                let length = length.lines().next().unwrap().parse().unwrap();
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                let _ = sender.send((head, serde_json::from_slice(&body).unwrap()));
                answer(stream);
            }
        };
        std::thread::Builder::new().name("hook".to_owned()).spawn(serving).unwrap();
        Self { url, asked }
    }

    fn webhook(&self, more: &str) -> Webhook {
        webhook(&self.url, &format!("allow_hosts = [\"127.0.0.1\"]\n{more}"))
    }
}

fn webhook(url: &str, more: &str) -> Webhook {
    let settings: HttpSettings = toml::from_str(&format!("url = {url:?}\n{more}")).unwrap();
    let builtin = Builtin {
        lua: std::sync::Arc::new(|_, input| Box::pin(async { Ok(input) })),
        bundle_dir: std::sync::Arc::new(|_| Ok(std::path::PathBuf::new())),
        queues: std::sync::Arc::default(),
        sessions: std::sync::Arc::default(),
        environments: crate::operator::fixture::environments(),
        clock: Clock::manual(0),
        stopping: tokio_util::sync::CancellationToken::new(),
    };
    Webhook::new(settings, &builtin)
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n{headers}\r\n{body}"
    )
}

#[tokio::test]
async fn the_session_of_a_task_is_posted_with_it() {
    let mut hook = Hook::answers([answer("200 OK", "", r#"{"output":1}"#)]);
    let mut task = Attempt::new().task();
    std::sync::Arc::get_mut(&mut task).unwrap().opts.session = Some("conv".into());
    hook.webhook("").execute(task, Json::null()).await.unwrap();
    let (_, body) = hook.asked.recv().await.unwrap();
    assert_eq!(body["session"], "conv");
}

async fn execute(webhook: &Webhook) -> Result<Reply, Failure> {
    webhook.execute(Attempt::new().task(), Json::parse(r#"{"n":1}"#).unwrap()).await
}

async fn failure(webhook: &Webhook) -> Failure {
    execute(webhook).await.expect_err("it fails")
}

#[tokio::test]
async fn a_task_is_posted_with_its_key_and_the_answer_is_the_result() {
    let report = r#"{"output":{"ok":1},"usage":{"input":"12"},"more":true}"#;
    let mut hook = Hook::answers([answer("200 OK", "", report)]);
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("token");
    std::fs::write(&secret, "s3cret\n").unwrap();
    let headers =
        format!("headers = {{ authorization = {{ file = {secret:?}, prefix = \"Bearer \" }} }}");
    let webhook = hook.webhook(&format!("{headers}\npublic_url = \"https://swarm.example.com/\""));

    let Ok(Reply::Done(done)) = execute(&webhook).await else { panic!("it is done") };

    assert_eq!(done.output.as_str(), r#"{"ok":1}"#);
    assert_eq!(done.usage.unwrap().input_tokens, Some(12));
    let (head, body) = hook.asked.recv().await.unwrap();
    let head = head.to_lowercase();
    let task = body["task"].as_str().unwrap();
    assert!(head.contains(&format!("idempotency-key: {task}.1")), "{head}");
    assert!(head.contains("authorization: bearer s3cret"), "{head}");
    assert_eq!(body["input"], json!({ "n": 1 }));
    assert_eq!((&body["agent"], &body["attempt"]), (&json!("worker"), &json!(1)));
    assert_eq!(body["handle"], "wh_test");
    assert_eq!(body["result_url"], "https://swarm.example.com/v1/worker/result");
    assert_eq!(body["idempotency_key"], json!(format!("{task}.1")));
    assert_eq!(body["deadline"], "1970-01-02T00:00:00Z");
}

#[tokio::test]
async fn a_secret_header_is_said_to_be_used_and_does_not_come_back() {
    let echo = r#"{"output":{"headers":{"authorization":"Bearer s3cret-s3cret"}}}"#;
    let hook = Hook::answers([answer("200 OK", "", echo)]);
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("token");
    std::fs::write(&secret, "s3cret-s3cret\n").unwrap();
    let webhook = hook.webhook(&format!(
        "headers = {{ authorization = {{ file = {secret:?}, prefix = \"Bearer \" }}, x-team = \"a\" }}"
    ));
    let attempt = Attempt::new();
    let heard = attempt.heard();
    let reply = webhook.execute(attempt.task(), Json::null()).await;
    let Ok(Reply::Done(done)) = reply else { panic!("it is done") };
    assert_eq!(done.output.to_value()["headers"]["authorization"], "Bearer [secret authorization]");
    let [event] = &heard.secrets()[..] else { panic!("one secret was asked for") };
    assert_eq!(event.credential_name, "authorization");
    assert!(!format!("{event:?}").contains("s3cret"));
}

#[tokio::test]
async fn an_accepted_task_is_delivered_and_parked() {
    let hook = Hook::answers([answer("202 Accepted", "", "")]);
    let attempt = Attempt::new();
    let heard = attempt.heard();
    let reply = hook.webhook("").execute(attempt.task(), Json::null()).await.unwrap();
    assert!(matches!(reply, Reply::Parked));
    assert_eq!(heard.worker().await, "127.0.0.1");
}

#[tokio::test]
async fn a_body_that_is_the_output_needs_no_report_around_it() {
    let hook = Hook::answers([answer("200 OK", "", "[1, 2]")]);
    let Ok(Reply::Done(done)) = execute(&hook.webhook("answer = \"output\"")).await else {
        panic!("it is done")
    };
    assert_eq!(done.output.as_str(), "[1,2]");
}

#[tokio::test]
async fn a_failure_says_whether_another_attempt_may_help() {
    for (status, headers, retryable) in [
        ("429 Too Many Requests", "retry-after: 7\r\n", true),
        ("429 Too Many Requests", "retry-after: Thu, 01 Jan 1970 00:00:07 GMT\r\n", true),
        ("408 Request Timeout", "", true),
        ("500 Internal Server Error", "", true),
        ("503 Service Unavailable", "", true),
        ("400 Bad Request", "", false),
        ("404 Not Found", "", false),
        ("302 Found", "location: http://169.254.169.254/latest\r\n", false),
    ] {
        let hook = Hook::answers([answer(status, headers, "sorry")]);
        let failure = failure(&hook.webhook("")).await;
        assert!(failure.is(kind::WORKER), "{status}: {failure}");
        assert_eq!(failure.retryable, retryable, "{status}");
        let data = failure.data.unwrap().to_value();
        assert_eq!(data["body"], "sorry");
        if status.starts_with("429") {
            assert_eq!(data["retry_after_ms"], 7_000);
        }
    }
}

#[tokio::test]
async fn a_report_of_a_failure_keeps_its_words() {
    let report = r#"{"ok":false,"error":{"message":"no disk","retryable":true,"data":{"free":0}}}"#;
    let hook = Hook::answers([answer("200 OK", "", report)]);
    let failure = failure(&hook.webhook("")).await;
    assert!(failure.is(kind::WORKER) && failure.retryable);
    assert_eq!(
        (failure.message.as_str(), failure.data.unwrap().as_str()),
        ("no disk", r#"{"free":0}"#)
    );
}

#[tokio::test]
async fn a_report_of_a_failure_says_what_was_used() {
    let report = r#"{"ok":false,"error":"no disk","usage":{"input":12}}"#;
    let hook = Hook::answers([answer("200 OK", "", report)]);
    let Ok(Reply::Short(short)) = execute(&hook.webhook("")).await else { panic!("it fails") };
    assert_eq!(short.failure.message, "no disk");
    assert_eq!(short.usage.unwrap().input_tokens, Some(12));
}

#[tokio::test]
async fn an_answer_that_is_no_report_is_an_invalid_result() {
    for body in ["<html>", "{}", "[]", r#"{"ok":true}"#, r#"{"output":1,"effects":[{"type":"x"}]}"#]
    {
        let hook = Hook::answers([answer("200 OK", "", body)]);
        let failure = failure(&hook.webhook("")).await;
        assert!(failure.is(kind::INVALID_RESULT) && !failure.retryable, "{body}: {failure}");
    }
}

#[tokio::test]
async fn an_answer_over_its_limit_is_cut_off_announced_or_not() {
    let long = "x".repeat(5_000);
    let chunked =
        format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1388\r\n{long}\r\n0\r\n\r\n");
    let hook = Hook::answers([answer("200 OK", "", &long), chunked]);
    for _ in 0..2 {
        let failure = failure(&hook.webhook("max_answer = 4096")).await;
        assert!(failure.is(kind::LIMIT) && !failure.retryable, "{failure}");
    }
    let headers = (0..200).map(|n| format!("x-{n}: y\r\n")).collect::<String>();
    let hook = Hook::answers([answer("200 OK", &headers, "{}")]);
    assert!(failure(&hook.webhook("")).await.retryable);
}

#[tokio::test]
async fn a_webhook_that_falls_silent_is_given_up() {
    let half = |mut stream: TcpStream| {
        let head = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{";
        stream.write_all(head.as_bytes()).unwrap();
        // Holds the connection until the client closes it.
        let _ = stream.read(&mut [0]);
    };
    let hook = Hook::serves([half]);
    let failure = failure(&hook.webhook("silence = \"50ms\"")).await;
    assert!(failure.is(kind::TIMEOUT) && failure.retryable && failure.message.contains("silent"));

    let mute = |mut stream: TcpStream| drop(stream.read(&mut [0]));
    let hook = Hook::serves([mute]);
    let webhook = hook.webhook("answer_within = \"50ms\"");
    let failure = webhook.execute(Attempt::new().task(), Json::null()).await.unwrap_err();
    assert!(failure.is(kind::TIMEOUT) && failure.message.contains("50ms"), "{failure}");
}

#[tokio::test]
async fn addresses_that_are_not_public_are_not_asked() {
    for url in
        ["https://localhost:9/", "https://127.0.0.1/", "https://[::ffff:10.0.0.1]/", "http://a.b/"]
    {
        let failure = failure(&webhook(url, "")).await;
        assert!(failure.is(kind::REFUSED) && !failure.retryable, "{url}: {failure}");
        assert!(failure.message.contains("allow_hosts"), "{failure}");
    }
}

#[tokio::test]
async fn nobody_there_may_be_there_later() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    let failure = failure(&webhook(&url, "allow_private = true")).await;
    assert!(failure.is(kind::OPERATOR_UNAVAILABLE) && failure.retryable, "{failure}");
}

#[tokio::test]
async fn a_secret_that_is_missing_is_named_and_nothing_is_sent() {
    let webhook = webhook(
        "https://example.com/",
        "headers = { authorization = { env = \"MOONSWARM_TEST_NOT_SET\" } }",
    );
    let failure = failure(&webhook).await;
    assert!(failure.message.contains("MOONSWARM_TEST_NOT_SET") && failure.retryable, "{failure}");
}

#[tokio::test]
async fn a_host_that_stops_leaves_the_task_undelivered() {
    let mute = |mut stream: TcpStream| drop(stream.read(&mut [0]));
    let mut hook = Hook::serves([mute]);
    let webhook = hook.webhook("");
    let stops = async {
        hook.asked.recv().await.unwrap();
        webhook.stopping.cancel();
    };
    let (reply, ()) = tokio::join!(execute(&webhook), stops);
    assert!(matches!(reply, Ok(Reply::Parked)));
}
