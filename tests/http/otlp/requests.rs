//! Spans and metrics of the requests of MCP clients.

use futures::{StreamExt as _, stream};
use opentelemetry_proto::tonic::{
    metrics::v1::metric::Data,
    trace::v1::{Span, status::StatusCode as Code},
};
use serde_json::{Value, json};

use super::{Collector, attribute, documented, launch, launch_with, traceparent};
use crate::support::{Daemon, Shell, eventually, send, when};

const CLIENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const PROXY: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn post(daemon: &Daemon, message: &Value) -> reqwest::RequestBuilder {
    let request = daemon.post("/mcp", message);
    request.header("accept", "application/json, text/event-stream")
}

fn message(id: Value, method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

fn call(id: Value, name: &str, arguments: Value) -> Value {
    message(id, "tools/call", json!({"name": name, "arguments": arguments}))
}

/// Waits for the span of the request with an id.
async fn of_request(collector: &Collector, id: &str) -> Span {
    eventually(id, async || {
        let spans = collector.spans.lock();
        let of = |span: &&Span| attribute(span, "jsonrpc.request.id") == id;
        let found = spans.values().find(of).cloned();
        found.ok_or_else(|| format!("{:?}", spans.values().map(|it| &it.name).collect::<Vec<_>>()))
    })
    .await
}

fn hex(text: &str) -> Vec<u8> {
    data_encoding::HEXLOWER.decode(text.as_bytes()).unwrap()
}

#[tokio::test]
async fn a_call_of_a_tool_is_a_span_between_its_client_and_the_run_that_it_starts() {
    let (shell, collector) = (Shell::new(), Collector::default());
    let url = collector.start().await;
    let daemon = launch(&shell, &url);
    let source =
        r#"return require("swarm").blueprint { name = "one", flow = function() return 1 end }"#;
    let mut start = call(json!(7), "start_run", json!({"source": source, "wait_seconds": 45}));
    start["params"]["_meta"] = json!({"traceparent": CLIENT});
    // The trace of the transport is another one: it is linked.
    let start = post(&daemon, &start).header("traceparent", PROXY);
    let start = start.header("mcp-protocol-version", "2025-11-25");
    let (status, started) = send(start).await;
    assert_eq!((status, &started["result"]["isError"]), (200, &json!(false)), "{started}");

    let span = of_request(&collector, "7").await;
    assert_eq!((span.name.as_str(), span.kind), ("tools/call start_run", 2));
    assert_eq!(
        (span.trace_id.clone(), span.parent_span_id.clone()),
        (hex(&CLIENT[3..35]), hex(&CLIENT[36..52]))
    );
    assert_eq!(
        (&span.links[0].trace_id, &span.links[0].span_id),
        (&hex(&PROXY[3..35]), &hex(&PROXY[36..52]))
    );
    for (key, value) in [
        ("mcp.method.name", "tools/call"),
        ("gen_ai.operation.name", "execute_tool"),
        ("gen_ai.tool.name", "start_run"),
        ("mcp.protocol.version", "2025-11-25"),
        ("network.transport", "tcp"),
        ("network.protocol.name", "http"),
        ("network.protocol.version", "1.1"),
    ] {
        assert_eq!(attribute(&span, key), value, "{key}");
    }
    assert_eq!(attribute(&span, "mcp.session.id"), Value::Null);
    assert!(span.status.is_none() && attribute(&span, "error.type").is_null(), "{span:?}");
    let root = collector.span("invoke_workflow one").await;
    assert_eq!((&root.trace_id, &root.parent_span_id), (&span.trace_id, &span.span_id));
    assert!(span.start_time_unix_nano <= root.start_time_unix_nano);

    // Only the header names a span.
    let list =
        post(&daemon, &message(json!("l"), "tools/list", json!({}))).header("traceparent", PROXY);
    assert_eq!(send(list).await.0, 200);
    let list = of_request(&collector, "l").await;
    assert_eq!((list.name.as_str(), &list.parent_span_id), ("tools/list", &hex(&PROXY[36..52])));
    assert!(list.links.is_empty());
    let known = documented(&["gen_ai.", "mcp.", "network.", "error.", "jsonrpc.", "rpc."]);
    for attribute in span.attributes.iter().chain(&list.attributes) {
        assert!(known.contains(&attribute.key), "docs/telemetry.md lacks {}", attribute.key);
    }
}

#[tokio::test]
async fn a_failure_is_in_the_span_and_names_are_those_that_the_server_knows() {
    let (shell, collector) = (Shell::new(), Collector::default());
    let url = collector.start().await;
    let daemon = launch(&shell, &url);
    for (id, sent, name, error) in [
        (
            "a",
            call(json!("a"), "get_run", json!({"run": "none"})),
            "tools/call get_run",
            "tool_error",
        ),
        ("b", call(json!("b"), "no_such_tool", json!({})), "tools/call", "-32602"),
        ("c", message(json!("c"), "made/up", json!({})), "other", "-32601"),
        ("d", message(json!("d"), "prompts/get", json!({"name": "none"})), "prompts/get", "-32602"),
    ] {
        send(post(&daemon, &sent)).await;
        let span = of_request(&collector, id).await;
        assert_eq!((span.name.as_str(), span.kind), (name, 2));
        assert_eq!(attribute(&span, "error.type"), error, "{span:?}");
        assert_eq!(span.status.as_ref().unwrap().code, Code::Error as i32);
        let code = if error.starts_with('-') { json!(error) } else { Value::Null };
        assert_eq!(attribute(&span, "rpc.response.status_code"), code);
        assert!(!format!("{span:?}").contains("no_such_tool"), "{span:?}");
        assert!(!format!("{span:?}").contains("made/up"), "{span:?}");
    }
    let prompt = json!({"name": "new-blueprint", "arguments": {"goal": "x"}});
    assert_eq!(send(post(&daemon, &message(json!("e"), "prompts/get", prompt))).await.0, 200);
    let prompt = of_request(&collector, "e").await;
    assert_eq!(prompt.name, "prompts/get new-blueprint");
    assert_eq!(attribute(&prompt, "gen_ai.prompt.name"), "new-blueprint");
    let read = json!({"uri": "moonswarm://docs/mcp.md"});
    assert_eq!(send(post(&daemon, &message(json!("f"), "resources/read", read))).await.0, 200);
    let read = of_request(&collector, "f").await;
    assert_eq!(read.name, "resources/read", "an address is no name");
    assert_eq!(attribute(&read, "mcp.resource.uri"), "moonswarm://docs/mcp.md");

    // A blueprint that is a tool has its name as well.
    let tool = r#"return require("swarm").blueprint { name = "greet", description = "Greets.", mcp = true,
        flow = function() return "hi" end }"#;
    assert_eq!(send(daemon.put("/v1/blueprints/greet", &json!({"source": tool}))).await.0, 200);
    assert_eq!(send(post(&daemon, &call(json!("g"), "greet", json!({})))).await.0, 200);
    let greet = of_request(&collector, "g").await;
    assert_eq!(greet.name, "tools/call greet");
    assert_eq!(collector.span("invoke_workflow greet").await.parent_span_id, greet.span_id);
}

#[tokio::test]
async fn a_request_in_a_session_names_it_and_one_whose_client_is_gone_was_canceled() {
    let (shell, collector) = (Shell::new(), Collector::default());
    let url = collector.start().await;
    let daemon = launch(&shell, &url);
    let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"}});
    let hello = post(&daemon, &message(json!("hello"), "initialize", hello)).send().await.unwrap();
    let session = hello.headers()["mcp-session-id"].to_str().unwrap().to_owned();
    hello.text().await.unwrap();
    assert_eq!(of_request(&collector, "hello").await.name, "initialize");
    let ping = message(json!("ping"), "ping", json!({}));
    let ping = post(&daemon, &ping).header("mcp-session-id", &session);
    ping.send().await.unwrap().text().await.unwrap();
    let ping = of_request(&collector, "ping").await;
    assert_eq!(attribute(&ping, "mcp.session.id"), session);
    assert_eq!(attribute(&ping, "mcp.protocol.version"), "2025-11-25");

    let opened = send(post(&daemon, &call(json!("open"), "open_session", json!({})))).await.1;
    let arguments = json!({"session": opened["result"]["structuredContent"]["session"]});
    let waits = tokio::spawn(post(&daemon, &call(json!("wait"), "next_task", arguments)).send());
    let connected = async || {
        let listed = send(daemon.get("/v1/sessions")).await.1;
        when(listed["items"][0]["connected"] == json!(true), listed.to_string())
    };
    eventually("the poll begins", connected).await;
    waits.abort();
    let gone = of_request(&collector, "wait").await;
    assert_eq!(attribute(&gone, "error.type"), "canceled");
}

#[tokio::test]
async fn a_stop_exports_all_requests_that_have_ended() {
    const REQUESTS: usize = 2_300;
    let (shell, collector) = (Shell::new(), Collector::default());
    let url = collector.start().await;
    let daemon = launch_with(&shell, &url, "", &[("OTEL_BSP_SCHEDULE_DELAY", "3600000")]);
    let ask = |n: usize| message(json!(n), "prompts/get", json!({"name": "none"}));
    let asked = stream::iter(0..REQUESTS).map(|n| send(post(&daemon, &ask(n))));
    let answered = asked.buffer_unordered(32).count().await;
    assert_eq!(answered, REQUESTS);
    // The collector answers meanwhile.
    let stopped = tokio::task::spawn_blocking(move || daemon.stop()).await.unwrap();
    assert_eq!(stopped, Some(0));
    let spans = collector.spans.lock();
    assert_eq!(spans.values().filter(|it| it.name == "prompts/get").count(), REQUESTS);
}

#[tokio::test]
async fn without_traces_there_is_no_span_and_requests_are_counted_nevertheless() {
    let (shell, collector) = (Shell::new(), Collector::default());
    let url = collector.start().await;
    let daemon = launch_with(&shell, &url, "", &[("OTEL_TRACES_EXPORTER", "none")]);
    // What the client named is passed on as it came.
    let source = r#"return require("swarm").blueprint { name = "two",
        agents = { child = { operator = "process", command = { "sh", "-c", "echo $TRACEPARENT" } } },
        flow = function(ctx) return ctx:run("child", 1) end }"#;
    let mut start = call(json!(1), "start_run", json!({"source": source, "wait_seconds": 45}));
    start["params"]["_meta"] = json!({"traceparent": CLIENT});
    let started = send(post(&daemon, &start)).await.1;
    assert!(started.to_string().contains(CLIENT), "{started}");
    send(post(&daemon, &call(json!(2), "no_such_tool", json!({})))).await;
    let counted = async || {
        let metrics = collector.metrics.lock();
        let requests = metrics.get("moonswarm_mcp_requests").cloned();
        let Some(Data::Sum(sum)) = requests.and_then(|it| it.data) else { return Err("none") };
        let labels = format!("{:?}", sum.data_points);
        when(labels.contains("start_run") && labels.contains("-32602"), "not yet")
    };
    eventually("the calls are counted", counted).await;
    let metrics = collector.metrics.lock();
    let Some(Data::Histogram(times)) = &metrics["moonswarm_mcp_request_seconds"].data else {
        panic!("a histogram")
    };
    assert!(times.data_points.iter().all(|it| it.count > 0));
    assert!(!format!("{metrics:?}").contains("no_such_tool"), "names are bounded");
    assert!(collector.spans.lock().is_empty());
}

#[tokio::test]
async fn a_trace_that_its_client_does_not_record_is_not_recorded_here() {
    let (shell, collector) = (Shell::new(), Collector::default());
    let url = collector.start().await;
    let daemon = launch(&shell, &url);
    let mut quiet = call(json!("quiet"), "list_runs", json!({}));
    quiet["params"]["_meta"] = json!({"traceparent": CLIENT.replace("-01", "-00")});
    assert_eq!(send(post(&daemon, &quiet)).await.0, 200);
    assert_eq!(send(post(&daemon, &call(json!("loud"), "list_runs", json!({})))).await.0, 200);
    let loud = of_request(&collector, "loud").await;
    assert!(loud.parent_span_id.is_empty(), "a trace of its own: {}", traceparent(&loud));
    let quiet = json!("quiet");
    let spans = collector.spans.lock();
    assert!(spans.values().all(|it| attribute(it, "jsonrpc.request.id") != quiet));
}
