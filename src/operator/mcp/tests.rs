//! The operator against a small MCP server, over its pipes and over HTTP.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};

use super::{call::Mcp, settings::McpSettings};
use crate::{
    environment::Config,
    operator::{
        Backend as _, Builtin, Reply, Settings as _,
        fixture::{Attempt, environments},
    },
    protocol::{Failure, Json, failure::kind},
};

const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/operator/mcp/tests/server.py");

fn settings(toml: &str) -> McpSettings {
    toml::from_str(toml).unwrap()
}

fn over_pipes() -> Mcp {
    with_variable("EXTRA")
}

fn with_variable(name: &str) -> Mcp {
    Mcp::new(
        settings(&format!("command = [\"python3\", {SERVER:?}]\nenv = {{ {name} = \"1\" }}")),
        environments(),
    )
}

async fn call(mcp: &Mcp, tool: &str, input: Value) -> Result<Value, Failure> {
    let task = Attempt::new().agent(|agent| agent.tool = Some(tool.to_owned())).task();
    match mcp.execute(task, input.into()).await? {
        Reply::Done(done) => Ok(done.output.to_value()),
        Reply::Short(_) | Reply::Parked => panic!("a call has a result"),
    }
}

/// A server over HTTP; killed when dropped.
struct Remote {
    child: Child,
    url: String,
}

impl Remote {
    fn start() -> Self {
        let mut child =
            Command::new("python3").args([SERVER, "http"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut port = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut port).unwrap();
        Self { child, url: format!("http://127.0.0.1:{}/mcp", port.trim()) }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn a_tool_is_called_and_its_structured_content_is_the_result() {
    let mcp = over_pipes();
    assert_eq!(call(&mcp, "add", json!({ "a": 1, "b": 2 })).await.unwrap(), json!({ "sum": 3 }));
    assert_eq!(call(&mcp, "words", Value::Null).await.unwrap(), json!("just words"));
    let failure = call(&mcp, "fail", json!({})).await.unwrap_err();
    assert!(failure.is(kind::WORKER) && failure.message.contains("no such file"), "{failure}");
}

#[tokio::test]
async fn arguments_that_break_the_schema_reach_nobody() {
    let failure = call(&over_pipes(), "add", json!({ "a": "one" })).await.unwrap_err();
    assert!(failure.is(kind::INVALID_INPUT), "{failure}");
    assert!(failure.message.contains("the tool add"), "{failure}");
}

#[tokio::test]
async fn one_server_serves_all_tasks_with_a_small_environment() {
    let mcp = over_pipes();
    let first = call(&mcp, "where", json!({})).await.unwrap();
    let second = call(&mcp, "where", json!({})).await.unwrap();
    assert_eq!(first["pid"], second["pid"]);
    let names = first["env"].as_array().unwrap();
    assert!(names.contains(&json!("EXTRA")) && names.contains(&json!("PATH")), "{names:?}");
    assert!(!names.contains(&json!("CARGO_MANIFEST_DIR")), "{names:?}");
}

#[tokio::test]
async fn a_server_that_dies_says_its_last_words_and_is_started_again() {
    let mcp = over_pipes();
    let first = call(&mcp, "where", json!({})).await.unwrap();
    let failure = call(&mcp, "crash", json!({})).await.unwrap_err();
    assert!(failure.is(kind::OPERATOR_UNAVAILABLE) && failure.retryable, "{failure}");
    assert!(failure.message.contains("out of cheese"), "{failure}");
    let again = call(&mcp, "where", json!({})).await.unwrap();
    assert_ne!(first["pid"], again["pid"]);
}

#[tokio::test]
async fn a_server_that_repeats_its_secrets_is_read_without_them() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    std::fs::write(&key, "canary-\"815").unwrap();
    let script = format!(
        "echo \"$KEY\" >&2; [ \"$BREAKS\" ] && {{ read _; exit 3; }}; TOLD=\"say $KEY\" exec python3 {SERVER:?}"
    );
    let toml = |more: &str| {
        format!(
            "command = [\"sh\", \"-c\", {script:?}]\nenv = {{ KEY = {{ file = {key:?} }}{more} }}"
        )
    };
    let mcp = Mcp::new(settings(&toml("")), environments());
    let said = call(&mcp, "told", json!({})).await.unwrap();
    assert_eq!(said, json!({ "told": "say [secret KEY]" }));
    let failure = call(&mcp, "tell", json!({})).await.unwrap_err();
    assert_eq!(failure.message, "the tool tell failed: say [secret KEY]");
    let listed = mcp.list_tools(Attempt::new().task()).await.unwrap();
    let told = listed.iter().find(|tool| tool.name == "told").unwrap();
    assert_eq!(told.description.as_deref(), Some("say [secret KEY]"));
    let failure = call(&mcp, "crash", json!({})).await.unwrap_err();
    assert!(
        failure.message.ends_with("its last words: say [secret KEY] is out of cheese"),
        "{failure}"
    );

    let breaks = Mcp::new(settings(&toml(", BREAKS = \"1\"")), environments());
    let failure = call(&breaks, "told", json!({})).await.unwrap_err();
    assert!(failure.message.ends_with("its last words: [secret KEY]"), "{failure}");
}

#[tokio::test]
async fn new_tools_are_seen_and_unknown_ones_named() {
    let mcp = over_pipes();
    let failure = call(&mcp, "grown", json!({})).await.unwrap_err();
    assert!(failure.is(kind::REFUSED) && failure.message.contains("grow"), "{failure}");
    call(&mcp, "grow", json!({})).await.unwrap();
    assert_eq!(call(&mcp, "grown", json!({})).await.unwrap(), json!("new"));
}

#[tokio::test]
async fn a_list_that_fails_leaves_no_older_one_behind() {
    let mcp = with_variable("MORE");
    let texts = json!({ "a": "one", "b": "two" });
    let mut failure = call(&mcp, "add", texts.clone()).await.unwrap_err();
    assert!(failure.is(kind::INVALID_INPUT), "{failure}");
    call(&mcp, "loosen", json!({})).await.unwrap();
    while failure.is(kind::INVALID_INPUT) {
        // The notice of the change comes after the answer.
        tokio::task::yield_now().await;
        failure = call(&mcp, "add", texts.clone()).await.unwrap_err();
    }
    assert!(failure.message.contains("not now"), "{failure}");
    assert_eq!(call(&mcp, "add", texts).await.unwrap(), json!({ "sum": "onetwo" }));
}

#[tokio::test]
async fn a_message_that_is_too_long_ends_its_call_with_the_reason() {
    let mcp = with_variable("MORE");
    let first = call(&mcp, "where", json!({})).await.unwrap();
    let failure = call(&mcp, "flood", json!({})).await.unwrap_err();
    assert!(failure.is(kind::OPERATOR_UNAVAILABLE) && failure.retryable, "{failure}");
    assert!(failure.message.contains("more than 8 MiB"), "{failure}");
    let again = call(&mcp, "where", json!({})).await.unwrap();
    assert_ne!(first["pid"], again["pid"]);
}

#[tokio::test]
async fn a_call_that_is_given_up_leaves_the_server_to_the_others() {
    let mcp = over_pipes();
    let attempt = Attempt::new().agent(|agent| agent.tool = Some("hang".to_owned()));
    let heard = attempt.heard();
    let task = attempt.task();
    let cancel = task.cancel.clone();
    let others = async {
        heard.worker().await;
        let sum = call(&mcp, "add", json!({ "a": 1, "b": 1 })).await;
        cancel.cancel();
        sum
    };
    let (given_up, sum) = tokio::join!(mcp.execute(task, Json::null()), others);
    assert!(given_up.unwrap_err().is(kind::CANCELED));
    assert_eq!(sum.unwrap(), json!({ "sum": 2 }));
}

#[tokio::test]
async fn a_server_over_http_gets_its_headers_and_only_where_it_is_allowed() {
    let remote = Remote::start();
    let toml =
        |more: &str| format!("url = {:?}\nheaders = {{ x-key = \"s3cret\" }}\n{more}", remote.url);
    let mcp =
        Mcp::new(settings(&toml("allow_hosts = [\"127.0.0.1\"]\ntool = \"add\"")), environments());
    let task = Attempt::new().task();
    let input = json!({ "a": 20, "b": 22 });
    let Ok(Reply::Done(done)) = mcp.execute(task, input.into()).await else { panic!("it is done") };
    assert_eq!(done.output.as_str(), r#"{"sum":42}"#);

    let failure =
        call(&Mcp::new(settings(&toml("")), environments()), "add", json!({})).await.unwrap_err();
    assert!(failure.is(kind::REFUSED) && failure.message.contains("allow_hosts"), "{failure}");
}

#[tokio::test]
async fn an_inspection_lists_the_tools_or_says_what_is_wrong() {
    let builtin = Builtin::alone(Config::default());
    let command = format!("command = [\"python3\", {SERVER:?}]");
    let says = settings(&command).inspect(&builtin).await.unwrap();
    assert!(says.contains("7 tool(s): add, crash, fail"), "{says}");
    let why = settings(&format!("{command}\ntool = \"sub\""));
    assert!(why.inspect(&builtin).await.unwrap_err().contains("no tool \"sub\""));
    let missing = settings("command = [\"/nonexistent/mcp\"]").inspect(&builtin).await.unwrap_err();
    assert!(missing.contains("/nonexistent/mcp"), "{missing}");
}

#[test]
fn a_server_is_in_one_place() {
    for (toml, part) in [
        ("", "either `command` or `url`"),
        ("command = [\"x\"]\nurl = \"https://a.b\"", "either `command` or `url`"),
        ("command = []", "no program"),
        ("command = [\"x\"]\nheaders = { a = \"b\" }", "go with `url`"),
        ("url = \"https://a.b\"\nenv = { A = \"b\" }", "goes with `command`"),
        ("url = \"ftp://a.b\"", "http or https"),
    ] {
        let error = toml::from_str::<McpSettings>(toml).unwrap_err().to_string();
        assert!(error.contains(part), "{toml}: {error}");
    }
}
