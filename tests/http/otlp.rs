//! Traces and metrics over OTLP: what arrives at a collector, decoded with the protocol's own crate.

mod requests;

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    routing::post,
};
use moonswarm::{Host, HostConfig, telemetry::otlp::Settings};
use opentelemetry_proto::tonic::{
    collector::{metrics::v1::ExportMetricsServiceRequest, trace::v1::ExportTraceServiceRequest},
    common::v1::{KeyValue, any_value::Value as Any},
    metrics::v1::{Metric, metric::Data},
    trace::v1::{Span, status::StatusCode as Code},
};
use parking_lot::Mutex;
use prost::Message as _;
use serde_json::{Value, json};

use crate::{
    metrics::run_of_a_person_and_a_worker,
    support::{
        Daemon, Shell, eventually,
        provider::{Provider, Turn},
        receiver::Receiver,
        repository, send, when,
    },
};

/// A collector of both signals.
#[derive(Clone, Default)]
struct Collector {
    spans: Arc<Mutex<HashMap<Vec<u8>, Span>>>,
    metrics: Arc<Mutex<HashMap<String, Metric>>>,
    resource: Arc<Mutex<Vec<KeyValue>>>,
    /// True while it takes nothing.
    away: Arc<AtomicBool>,
}

impl Collector {
    /// Starts it; returns its URL.
    async fn start(&self) -> String {
        let router = Router::new()
            .route("/v1/traces", post(traces))
            .route("/v1/metrics", post(metrics))
            .with_state(self.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        url
    }

    /// Waits for a span by its name.
    async fn span(&self, name: &str) -> Span {
        eventually(name, async || {
            let spans = self.spans.lock();
            let named = spans.values().find(|span| span.name == name).cloned();
            named.ok_or_else(|| {
                format!("{:?}", spans.values().map(|it| &it.name).collect::<Vec<_>>())
            })
        })
        .await
    }
}

async fn traces(State(it): State<Collector>, headers: HeaderMap, body: Bytes) -> StatusCode {
    if it.away.load(Ordering::SeqCst) {
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    assert_eq!(headers["content-type"], "application/x-protobuf");
    assert_eq!(headers["x-key"], "a b");
    let message = ExportTraceServiceRequest::decode(body).unwrap();
    for resource in message.resource_spans {
        *it.resource.lock() = resource.resource.unwrap().attributes;
        for scope in resource.scope_spans {
            assert_eq!(scope.scope.unwrap().name, "moonswarm");
            for span in scope.spans {
                it.spans.lock().insert(span.span_id.clone(), span);
            }
        }
    }
    StatusCode::OK
}

async fn metrics(State(it): State<Collector>, body: Bytes) -> StatusCode {
    let message = ExportMetricsServiceRequest::decode(body).unwrap();
    for resource in message.resource_metrics {
        for metric in resource.scope_metrics.into_iter().flat_map(|it| it.metrics) {
            it.metrics.lock().insert(metric.name.clone(), metric);
        }
    }
    StatusCode::OK
}

fn attribute(span: &Span, key: &str) -> Value {
    let found = span.attributes.iter().find(|it| it.key == key);
    found.map_or(Value::Null, |it| plain(it.value.clone().unwrap().value.unwrap()))
}

fn plain(value: Any) -> Value {
    match value {
        Any::StringValue(text) => json!(text),
        Any::IntValue(number) => json!(number),
        Any::DoubleValue(number) => json!(number),
        Any::BoolValue(value) => json!(value),
        Any::ArrayValue(list) => {
            list.values.into_iter().map(|it| plain(it.value.unwrap())).collect()
        }
        other => panic!("{other:?} is not sent"),
    }
}

/// A span as W3C Trace Context writes it.
fn traceparent(span: &Span) -> String {
    let hex = data_encoding::HEXLOWER;
    format!("00-{}-{}-01", hex.encode(&span.trace_id), hex.encode(&span.span_id))
}

fn environment(url: &str) -> Vec<(&'static str, String)> {
    vec![
        ("OTEL_EXPORTER_OTLP_ENDPOINT", url.to_owned()),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%20b".to_owned()),
        ("OTEL_BSP_SCHEDULE_DELAY", "50".to_owned()),
        ("OTEL_METRIC_EXPORT_INTERVAL", "100".to_owned()),
        ("OTEL_SERVICE_NAME", "swarm-of-tests".to_owned()),
    ]
}

fn launch(shell: &Shell, url: &str) -> Daemon {
    launch_with(shell, url, "", &[])
}

/// Starts a daemon with more lines of configuration, and more variables.
fn launch_with(shell: &Shell, url: &str, more: &str, with: &[(&str, &str)]) -> Daemon {
    let environment = environment(url);
    let model = "[operators.model]\nkind = \"llm\"\napi = \"script\"\n";
    let config = shell.write("m.toml", format!("{model}{more}"));
    let config = config.display().to_string();
    let mut variables: Vec<(&str, &str)> =
        environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
    variables.push(("MOONSWARM_CONFIG", &config));
    variables.extend(with);
    Daemon::launch(&shell.path("data"), &variables).expect("it starts")
}

const WORK: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "work",
  agents = {
    look = { operator = "echo", description = "Looks." },
    think = { operator = "model", tools = { "look" }, system = "Guard the secret.", fn = function(request)
      for _, item in ipairs(request.items) do
        if item.type == "function_call_output" then
          return { text = "seen", usage = { input = 7, output = 2 } }
        end
      end
      return { calls = { { name = "look", arguments = { at = "moon" } } }, usage = { input = 5, output = 1 } }
    end },
  },
  flow = function(ctx, input)
    ctx:run("think", "secret question")
    if input.wait then ctx:wait("go") end
    if input.fail then error("it broke") end
    return 1
  end,
}
"#;

#[tokio::test]
async fn a_run_is_a_tree_of_spans_within_the_trace_of_its_start() {
    let (shell, collector) = (Shell::new(), Collector::default());
    let url = collector.start().await;
    let daemon = launch(&shell, &url);
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let body = json!({"source": WORK, "input": {"fail": true}});
    let start = daemon.post("/v1/runs", &body).header("traceparent", parent);
    let (status, run) = send(start).await;
    assert_eq!(status, 201, "{run}");
    let root = collector.span("invoke_workflow work").await;
    assert_eq!(root.trace_id, data_encoding::HEXLOWER.decode(&parent.as_bytes()[3..35]).unwrap());
    let caller = data_encoding::HEXLOWER.decode(&parent.as_bytes()[36..52]).unwrap();
    assert_eq!(root.parent_span_id, caller);
    assert_eq!(attribute(&root, "gen_ai.operation.name"), "invoke_workflow");
    assert_eq!(attribute(&root, "gen_ai.agent.name"), "work");
    assert_eq!(attribute(&root, "moonswarm.run.id"), run["id"]);
    assert_eq!(root.status.as_ref().unwrap().code, Code::Error as i32);
    assert!(attribute(&root, "error.type").is_string(), "{root:?}");

    let agent = collector.span("invoke_agent think").await;
    assert_eq!(agent.parent_span_id, root.span_id);
    assert_eq!(attribute(&agent, "gen_ai.agent.name"), "think");
    let tool = collector.span("execute_tool look").await;
    assert_eq!(tool.parent_span_id, agent.span_id);
    assert_eq!(attribute(&tool, "gen_ai.tool.name"), "look");
    assert!(attribute(&tool, "gen_ai.tool.call.id").is_string(), "{tool:?}");
    let all: Vec<Span> = collector.spans.lock().values().cloned().collect();
    let chats: Vec<_> = all.iter().filter(|it| it.name.starts_with("chat ")).collect();
    assert_eq!(chats.len(), 2, "{all:#?}");
    for chat in &chats {
        assert_eq!(chat.parent_span_id, agent.span_id);
        assert_eq!(chat.name, "chat script");
        assert_eq!(attribute(chat, "moonswarm.operator"), "model");
        assert_eq!(attribute(chat, "gen_ai.provider.name"), "script");
        assert_eq!(attribute(chat, "gen_ai.system"), "script", "without the opt-in");
        let reason = attribute(chat, "gen_ai.response.finish_reasons");
        assert!(reason == json!(["stop"]) || reason == json!(["tool_calls"]), "{reason}");
    }
    let input: i64 =
        chats.iter().map(|it| attribute(it, "gen_ai.usage.input_tokens").as_i64().unwrap()).sum();
    assert_eq!(input, 12);
    for span in &all {
        assert_eq!(span.trace_id, root.trace_id, "{}", span.name);
        assert!(span.start_time_unix_nano <= span.end_time_unix_nano, "{span:?}");
        let within = span.start_time_unix_nano >= root.start_time_unix_nano
            && span.end_time_unix_nano <= root.end_time_unix_nano;
        assert!(within, "{}", span.name);
    }
    assert!(!format!("{all:?}").contains("secret question"), "contents are not exported");
    let known = documented(&["gen_ai.", "moonswarm.", "server.", "mcp.", "network.", "error."]);
    for attribute in all.iter().flat_map(|it| &it.attributes) {
        assert!(known.contains(&attribute.key), "docs/telemetry.md lacks {}", attribute.key);
    }
    let service = collector.resource.lock().iter().any(|it| {
        let text = Some(Any::StringValue("swarm-of-tests".to_owned()));
        it.key == "service.name" && it.value.clone().unwrap().value == text
    });
    assert!(service);
    assert!(collector.resource.lock().iter().any(|it| it.key == "service.instance.id"));
}

#[tokio::test]
async fn a_kill_loses_no_span_and_the_trace_goes_on_after_the_restart() {
    let (shell, collector) = (Shell::new(), Collector::default());
    let url = collector.start().await;
    let daemon = launch(&shell, &url);
    // The collector is away while the first half of the run happens.
    let first = daemon.run_source(WORK, json!({})).await;
    collector.span("invoke_workflow work").await;
    collector.away.store(true, Ordering::SeqCst);
    collector.spans.lock().clear();
    let run = daemon.run_source(WORK, json!({"wait": true})).await;
    daemon.waits(&run, "signal").await;
    daemon.kill();
    let daemon = launch(&shell, &url);
    collector.away.store(false, Ordering::SeqCst);
    let (status, _) = send(daemon.post(&format!("/v1/runs/{run}/signals/go"), &json!(1))).await;
    assert_eq!(status, 204);
    let of_run = |spans: &HashMap<Vec<u8>, Span>| -> Vec<Span> {
        let of = |span: &&Span| attribute(span, "moonswarm.run.id") == json!(run);
        spans.values().filter(of).cloned().collect()
    };
    let ended = async || {
        let spans = of_run(&collector.spans.lock());
        let done = spans.iter().any(|it| it.name == "invoke_workflow work");
        when(done, format!("{} spans", spans.len()))
    };
    eventually("the root arrives", ended).await;
    let spans = of_run(&collector.spans.lock());
    let mut names: Vec<&str> = spans.iter().map(|it| it.name.split(' ').next().unwrap()).collect();
    names.sort_unstable();
    let expected = ["chat", "chat", "execute_tool", "invoke_agent", "invoke_workflow", "wait"];
    assert_eq!(names, expected, "each span once, those of both processes");
    let root = spans.iter().find(|it| it.parent_span_id.is_empty()).unwrap();
    let ids: Vec<_> = spans.iter().map(|it| &it.span_id).collect();
    for span in &spans {
        assert_eq!(span.trace_id, root.trace_id);
        let parent = &span.parent_span_id;
        assert!(span.span_id == root.span_id || ids.contains(&parent), "{span:?}");
    }
    assert_ne!(first, run);
}

#[tokio::test]
async fn a_called_run_and_a_fork_are_linked_to_where_they_come_from() {
    let (shell, collector) = (Shell::new(), Collector::default());
    let url = collector.start().await;
    let daemon = launch(&shell, &url);
    let called = r#"return require("swarm").blueprint { name = "called", flow = function(ctx, input) return input end }"#;
    let bundle = json!({"files": {"main.lua": called}});
    assert_eq!(send(daemon.put("/v1/blueprints/called", &bundle)).await.0, 200);
    let calls = r#"return require("swarm").blueprint { name = "calls",
        flow = function(ctx) return ctx:call("called", 1) end }"#;
    let run = daemon.run_source(calls, json!(null)).await;
    let (root, step) =
        (collector.span("invoke_workflow calls").await, collector.span("call called").await);
    let child = collector.span("invoke_workflow called").await;
    assert_ne!(child.trace_id, root.trace_id, "a run of its own");
    assert_eq!(child.links[0].span_id, step.span_id);
    assert_eq!(child.links[0].trace_id, root.trace_id);

    let patch = json!({"from_step": 1});
    let (status, fork) = send(daemon.post(&format!("/v1/runs/{run}/fork"), &patch)).await;
    assert_eq!(status, 201, "{fork}");
    let forked = eventually("the fork's root", async || {
        let spans = collector.spans.lock();
        let of = |it: &&Span| attribute(it, "moonswarm.run.id") == fork["id"];
        spans
            .values()
            .find(|it| of(it) && it.name == "invoke_workflow calls")
            .cloned()
            .ok_or("none")
    })
    .await;
    assert_eq!(forked.links[0].span_id, root.span_id);
}

#[tokio::test]
async fn a_signal_and_a_trigger_are_linked_to_where_they_come_from() {
    let (shell, collector) = (Shell::new(), Collector::default());
    let url = collector.start().await;
    let daemon = launch(&shell, &url);
    let waits = r#"return require("swarm").blueprint { name = "waits",
        flow = function(ctx) return ctx:wait("go") end }"#;
    let waiting = daemon.run_source(waits, json!(null)).await;
    daemon.waits(&waiting, "signal").await;
    let sends = r#"return require("swarm").blueprint { name = "sends",
        flow = function(ctx, input) ctx:signal(input, "go", 1) end }"#;
    let sender = daemon.run_source(sends, json!(waiting)).await;
    let (wait, sender) = (collector.span("wait go").await, daemon.ended(&sender).await);
    let root = collector.span("invoke_workflow sends").await;
    assert_eq!(attribute(&root, "moonswarm.run.id"), sender["id"]);
    assert_eq!(wait.links[0].trace_id, root.trace_id);

    let nightly = r#"return require("swarm").blueprint { name = "nightly",
        on = { { schedule = "0 7 * * *" } }, flow = function() end }"#;
    let (status, body) =
        send(daemon.put("/v1/blueprints/nightly", &json!({"source": nightly}))).await;
    assert_eq!(status, 200, "{body}");
    let (_, triggers) = send(daemon.get("/v1/triggers")).await;
    let path = format!("/v1/triggers/{}/fire", triggers["items"][0]["id"].as_str().unwrap());
    assert_eq!(send(daemon.post(&path, &Value::Null)).await.0, 201);
    let (run, schedule) =
        (collector.span("invoke_workflow nightly").await, collector.span("schedule nightly").await);
    assert_eq!(attribute(&schedule, "moonswarm.trigger.schedule"), "0 7 * * *");
    assert_ne!(schedule.trace_id, run.trace_id);
    let ids = (run.links[0].trace_id.clone(), run.links[0].span_id.clone());
    assert_eq!(ids, (schedule.trace_id, schedule.span_id));
}

#[tokio::test]
async fn a_wait_is_linked_to_the_sender_of_the_signal_that_it_took() {
    let (shell, collector) = (Shell::new(), Collector::default());
    let url = collector.start().await;
    let daemon = launch(&shell, &url);
    let takes = r#"return require("swarm").blueprint { name = "takes", flow = function(ctx)
        ctx:wait("start")
        ctx:wait("go")
        ctx:wait("go")
        ctx:wait("go", { timeout = "1ms" })
        return 1 end }"#;
    let takes = daemon.run_source(takes, json!(null)).await;
    daemon.waits(&takes, "signal").await;
    let sends = r#"return require("swarm").blueprint { name = "sends",
        flow = function(ctx, input) ctx:signal(input, "go", 1) end }"#;
    daemon.run_source(sends, json!(takes)).await;
    let arrived = async || {
        let events = format!("/v1/runs/{takes}/events?format=json&limit=500");
        let (_, events) = send(daemon.get(&events)).await;
        let is_one = events["items"].as_array().unwrap().iter().any(|it| it["type"] == "signal");
        when(is_one, events.to_string())
    };
    eventually("the signal arrives", arrived).await;
    // One from outside is behind it, and a wait that takes none has no link.
    for name in ["go", "start"] {
        let path = format!("/v1/runs/{takes}/signals/{name}");
        assert_eq!(send(daemon.post(&path, &json!(2))).await.0, 204);
    }
    let root = collector.span("invoke_workflow sends").await;
    collector.span("invoke_workflow takes").await;
    let spans = collector.spans.lock();
    let mut waits: Vec<&Span> = spans.values().filter(|it| it.name.starts_with("wait ")).collect();
    waits.sort_by_key(|it| attribute(it, "moonswarm.step").as_i64());
    let traces = |it: &&Span| -> Vec<Vec<u8>> {
        it.links.iter().map(|link| link.trace_id.clone()).collect()
    };
    let linked: Vec<_> = waits.iter().map(traces).collect();
    assert_eq!(linked, [vec![], vec![root.trace_id.clone()], vec![], vec![]]);
}

#[tokio::test]
async fn a_fork_of_a_run_within_a_trace_is_a_trace_of_its_own() {
    let (shell, collector) = (Shell::new(), Collector::default());
    let url = collector.start().await;
    let daemon = launch(&shell, &url);
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let source = r#"return require("swarm").blueprint { name = "twice",
        agents = { look = { operator = "echo" } },
        flow = function(ctx) ctx:run("look", 1) return ctx:run("look", 2) end }"#;
    let body = json!({"source": source});
    let (_, run) = send(daemon.post("/v1/runs", &body).header("traceparent", parent)).await;
    let root = collector.span("invoke_workflow twice").await;
    assert_eq!(collector.spans.lock().len(), 3);
    let fork = format!("/v1/runs/{}/fork", run["id"].as_str().unwrap());
    collector.spans.lock().clear();
    let (status, body) = send(daemon.post(&fork, &json!({"from_step": 2}))).await;
    assert_eq!(status, 201, "{body}");
    let forked = collector.span("invoke_workflow twice").await;
    assert_ne!(forked.trace_id, root.trace_id);
    assert!(forked.parent_span_id.is_empty());
    assert_eq!(forked.links[0].span_id, root.span_id);
    let spans: Vec<String> = collector.spans.lock().values().map(|it| it.name.clone()).collect();
    assert_eq!(spans.len(), 2, "what was copied is the original's: {spans:?}");
}

#[tokio::test]
async fn the_span_of_a_step_goes_to_its_worker_and_into_the_log() {
    let (shell, collector) = (Shell::new(), Collector::default());
    let (url, hook) = (collector.start().await, Receiver::start());
    let provider = Provider::says(vec![Turn::text("It is far.")]);
    let more = format!(
        "[operators.asked]\nkind = \"llm\"\napi = \"chat\"\nbase_url = \"{}\"\nmodel = \"gpt-x\"\n\
         allow_hosts = [\"127.0.0.1\"]\n\
         [operators.hook]\nkind = \"http\"\nurl = \"http://{}/hook\"\nallow_hosts = [\"127.0.0.1\"]\n",
        provider.base_url, hook.address
    );
    let log = [("MOONSWARM_LOG_FORMAT", "json"), ("MOONSWARM_LOG", "info")];
    let daemon = launch_with(&shell, &url, &more, &log);
    let source = r#"local swarm = require("swarm")
return swarm.blueprint { name = "outward",
  agents = {
    child = { operator = "process", command = { "sh", "-c", "echo $TRACEPARENT" } },
    ask = { operator = "asked" },
    call = { operator = "hook" },
    pull = { operator = "queue", queue = "q" },
  },
  flow = function(ctx)
    local seen = ctx:run("child", 1)
    ctx:run("ask", "How far is it?")
    ctx:run("call", 1)
    ctx:run("pull", 1)
    return seen
  end }"#;
    let run = daemon.run_source(source, json!(null)).await;
    let received = tokio::task::spawn_blocking(move || hook.next()).await.unwrap();
    let called = received.header("traceparent").to_owned();
    received.answer("200 OK", r#"{"ok":true,"output":1}"#);
    let lease = json!({"queue": "q", "wait": "30s", "max": 1});
    let (status, leased) = send(daemon.post("/v1/worker/lease", &lease)).await;
    assert_eq!(status, 200, "{leased}");
    let handle = leased[0]["handle"].as_str().unwrap();
    let done = json!({"ok": true, "output": 1});
    let report = daemon.with(handle, reqwest::Method::POST, "/v1/worker/result").json(&done);
    assert_eq!(send(report).await.0, 200);
    let root = collector.span("invoke_workflow outward").await;
    let child = collector.span("invoke_agent child").await;
    let said = daemon.ended(&run).await["output"].to_string();
    assert!(said.contains(&traceparent(&child)), "{said}");
    assert_eq!(called, traceparent(&collector.span("invoke_agent call").await));
    assert_eq!(leased[0]["traceparent"], traceparent(&collector.span("invoke_agent pull").await));
    let chat = collector.span("chat gpt-x").await;
    let head = &provider.asked()[0].head;
    assert!(head.contains(&format!("traceparent: {}", traceparent(&chat))), "{head}");
    assert_eq!(attribute(&chat, "server.address"), "127.0.0.1");
    assert_eq!(attribute(&chat, "gen_ai.provider.name"), "openai");
    let hex = data_encoding::HEXLOWER;
    let log = daemon.log();
    let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let ended =
        lines.find(|line| line["message"] == "run ended").unwrap_or_else(|| panic!("{log}"));
    assert_eq!(ended["run"], json!(run));
    assert_eq!(ended["trace_id"], hex.encode(&root.trace_id));
    assert_eq!(ended["span_id"], hex.encode(&root.span_id));
}

#[tokio::test]
async fn a_trace_goes_through_an_mcp_server_and_into_the_run_that_its_tool_starts() {
    let (shell, collector) = (Shell::new(), Collector::default());
    let url = collector.start().await;
    let other = Daemon::start(&shell.path("other"));
    let more = format!(
        "[operators.far]\nkind = \"mcp\"\nurl = \"{}/mcp\"\nallow_hosts = [\"127.0.0.1\"]\n\
         headers = {{ authorization = \"Bearer {}\" }}\n",
        other.url, other.token
    );
    let daemon = launch_with(&shell, &url, &more, &[]);
    let started = r#"local swarm = require("swarm")
return swarm.blueprint { name = "started",
  agents = { child = { operator = "process", command = { "sh", "-c", "echo $TRACEPARENT" } } },
  flow = function(ctx) return ctx:run("child", 1) end }"#;
    let source = r#"local swarm = require("swarm")
return swarm.blueprint { name = "starts",
  agents = {
    task = { operator = "far", tool = "start_run" },
    think = { operator = "model", tools = { { mcp = "far", allow = { "list_runs" } } }, fn = function(request)
      for _, item in ipairs(request.items) do
        if item.type == "function_call_output" then return { text = "seen" } end
      end
      return { calls = { { name = "far__list_runs", arguments = {} } } }
    end },
  },
  flow = function(ctx, input)
    ctx:run("think", "look")
    return ctx:run("task", { source = input, wait_seconds = 45 })
  end }"#;
    let run = daemon.run_source(source, json!(started)).await;
    let ended = daemon.ended(&run).await;
    let call = collector.span("tools/call start_run").await;
    let port: i64 = other.url.rsplit(':').next().unwrap().parse().unwrap();
    for span in [&call, &collector.span("execute_tool far__list_runs").await] {
        assert_eq!(span.kind, 3, "a client");
        assert_eq!(attribute(span, "mcp.method.name"), "tools/call");
        assert_eq!(attribute(span, "gen_ai.operation.name"), "execute_tool");
        assert_eq!(attribute(span, "network.transport"), "tcp");
        assert_eq!(attribute(span, "network.protocol.name"), "http");
        assert_eq!(attribute(span, "server.address"), "127.0.0.1");
        assert_eq!(attribute(span, "server.port"), port);
        for attribute in &span.attributes {
            assert!(
                documented(&["gen_ai.", "moonswarm.", "server.", "mcp.", "network."])
                    .contains(&attribute.key),
                "docs/telemetry.md lacks {}",
                attribute.key
            );
        }
    }
    // The other daemon exports nothing, so its run passes on the span that it was started in.
    let seen = ended["output"].to_string();
    assert!(seen.contains(&traceparent(&call)), "{seen}");
}

#[tokio::test]
async fn contents_are_exported_by_opt_in_without_what_the_layers_redact() {
    let (shell, collector) = (Shell::new(), Collector::default());
    let url = collector.start().await;
    let redact = "[[middleware]]\nkind = \"redact\"\npatterns = [\"sec[a-z]+\"]\n";
    let with = [
        ("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "span_only"),
        ("OTEL_SEMCONV_STABILITY_OPT_IN", "gen_ai_latest_experimental"),
    ];
    let daemon = launch_with(&shell, &url, redact, &with);
    daemon.run_source(WORK, json!({"note": "a secret of mine", "fail": true})).await;
    let root = collector.span("invoke_workflow work").await;
    assert_eq!(attribute(&root, "gen_ai.workflow.name"), Value::Null, "by opt-in");
    let text =
        |span: &Span, key: &str| attribute(span, key).as_str().unwrap_or_default().to_owned();
    let input = text(&root, "gen_ai.input.messages");
    assert!(input.contains("a [redacted] of mine"), "{input}");
    assert!(root.status.as_ref().unwrap().message.contains("it broke"), "{root:?}");
    let agent = collector.span("invoke_agent think").await;
    assert!(text(&agent, "gen_ai.input.messages").contains("[redacted] question"), "{agent:?}");
    assert!(text(&agent, "gen_ai.output.messages").contains("seen"), "{agent:?}");
    let tool = collector.span("execute_tool look").await;
    assert_eq!(text(&tool, "gen_ai.tool.call.arguments"), r#"{"at":"moon"}"#);
    let all: Vec<Span> = collector.spans.lock().values().cloned().collect();
    let mut asked: Vec<&Span> = all.iter().filter(|it| it.name == "chat script").collect();
    asked.sort_by_key(|chat| attribute(chat, "moonswarm.step").as_i64());
    let said = |chat: &Span| serde_json::from_str(&text(chat, "gen_ai.input.messages")).unwrap();
    let question =
        json!({"role": "user", "parts": [{"type": "text", "content": "[redacted] question"}]});
    assert_eq!(said(asked[0]), json!([question]));
    let second: Value = said(asked[1]);
    assert_eq!(second[0], question);
    assert_eq!(second[1]["role"], "assistant");
    let call = &second[1]["parts"][0];
    assert_eq!((&call["type"], &call["arguments"]), (&json!("tool_call"), &json!({"at": "moon"})));
    let answer = &second[2]["parts"][0];
    assert_eq!(
        (&second[2]["role"], &answer["type"]),
        (&json!("tool"), &json!("tool_call_response"))
    );
    assert_eq!(answer["id"], call["id"]);
    let refusal = answer["response"].as_str().unwrap();
    assert!(refusal.starts_with("invalid_input: the arguments of look"), "{refusal}");
    let system = text(asked[1], "gen_ai.system_instructions");
    assert_eq!(system, r#"[{"type":"text","content":"Guard the [redacted]."}]"#);
    let chats = asked.iter();
    let chats: Vec<_> = chats.map(|it| text(it, "gen_ai.output.messages")).collect();
    assert!(chats.iter().any(|it| it.contains(r#""type":"tool_call""#)), "{chats:?}");
    assert!(!format!("{all:?}").contains("secret"), "{all:#?}");
    assert!(all.iter().all(|it| attribute(it, "gen_ai.system").is_null()), "by opt-in");
}

const KEYS: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "keys",
  agents = {
    look = { operator = "echo", description = "Looks." },
    think = { operator = "model", tools = { "look" }, fn = function(request)
      for _, item in ipairs(request.items) do
        if item.type == "function_call_output" then return { text = "seen" } end
      end
      return { calls = { { name = "nowhere", arguments = { password = "pw-of-call", n = 1 } } } }
    end },
    use = { operator = "model", prompt = "Use {{ input.password }} of {{ input }}", fn = function()
      return { text = 'It is {"password": "pw-of-answer"}.' }
    end },
  },
  flow = function(ctx, input)
    ctx:run("think", input)
    ctx:run("use", input)
    return 1
  end,
}
"#;

#[tokio::test]
async fn values_of_redacted_keys_are_replaced_in_prompts_answers_and_refused_calls() {
    let (shell, collector) = (Shell::new(), Collector::default());
    let url = collector.start().await;
    let redact = "[[middleware]]\nkind = \"redact\"\nkeys = [\"password\"]\n";
    let with = [("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "span_only")];
    let daemon = launch_with(&shell, &url, redact, &with);
    daemon.run_source(KEYS, json!({"password": "pw-of-run", "moon": "full"})).await;
    collector.span("invoke_workflow keys").await;
    let tool = collector.span("execute_tool nowhere").await;
    let arguments = attribute(&tool, "gen_ai.tool.call.arguments");
    let arguments: Value = serde_json::from_str(arguments.as_str().unwrap()).unwrap();
    assert_eq!((&arguments["password"], &arguments["n"]), (&json!("[redacted]"), &json!(1)));
    let all: Vec<Span> = collector.spans.lock().values().cloned().collect();
    let chats: Vec<_> = all.iter().filter(|it| it.name == "chat script").collect();
    assert_eq!(chats.len(), 3, "{all:#?}");
    for chat in chats {
        let asked = attribute(chat, "gen_ai.input.messages").to_string();
        assert!(asked.contains("[redacted]") && asked.contains("full"), "{asked}");
    }
    assert!(!format!("{all:?}").contains("pw-of"), "{all:#?}");
}

#[tokio::test]
async fn the_name_of_a_person_is_not_exported_and_that_of_a_worker_is() {
    let (shell, collector) = (Shell::new(), Collector::default());
    let url = collector.start().await;
    let daemon = launch(&shell, &url);
    run_of_a_person_and_a_worker(&daemon).await;
    let pulled = collector.span("invoke_agent q").await;
    assert!(attribute(&pulled, "moonswarm.worker").is_string(), "{pulled:?}");
    let person = collector.span("invoke_agent p").await;
    assert_eq!(attribute(&person, "moonswarm.worker"), Value::Null);
    assert_eq!(person.kind, 3, "a client");
}

#[tokio::test]
async fn a_run_does_not_wait_for_a_collector_that_is_away_and_what_is_left_out_is_counted() {
    let collector = Collector::default();
    let url = collector.start().await;
    collector.away.store(true, Ordering::SeqCst);
    let variables = environment(&url);
    let settings = Settings::read(|name| {
        variables.iter().find(|(it, _)| *it == name).map(|(_, value)| value.clone())
    });
    let export = Some(Settings { most_behind: 60, metrics: None, ..settings.unwrap().unwrap() });
    let data = tempfile::tempdir().unwrap();
    let host = Host::open(HostConfig { export, ..HostConfig::new(data.path()) }).await.unwrap();
    let source = r#"return require("swarm").blueprint { name = "steps",
        flow = function(ctx) for n = 1, 20 do ctx:sleep("1ms") end return 1 end }"#;
    let counts = || host.engine().counts();
    let view = host.run(source, &json!(null)).await.unwrap();
    assert!(view.status.is_ended(), "it does not wait");
    let failed = async || when(counts().export_failures.of(["traces"]).get() > 0, "no failure");
    eventually("an export fails", failed).await;
    for _ in 0..3 {
        host.run(source, &json!(null)).await.unwrap();
    }
    let counted = async || when(counts().export_left_out.get() > 0, "nothing is left out");
    eventually("entries are left out", counted).await;
    assert!(counts().exports.of(["traces", "dropped"]).get() > 0);
    collector.away.store(false, Ordering::SeqCst);
    let exported = async || {
        host.run(source, &json!(null)).await.unwrap();
        when(counts().exports.of(["traces", "exported"]).get() > 0, "nothing is exported")
    };
    eventually("it goes on once the collector is back", exported).await;
    host.stop(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn a_stop_exports_what_has_ended() {
    let (shell, collector) = (Shell::new(), Collector::default());
    let url = collector.start().await;
    let daemon = launch_with(&shell, &url, "", &[("OTEL_BSP_SCHEDULE_DELAY", "3600000")]);
    let run = daemon.run_source(WORK, json!({})).await;
    daemon.ended(&run).await;
    assert_eq!(daemon.stop(), Some(0));
    let root = collector.span("invoke_workflow work").await;
    assert_eq!(attribute(&root, "moonswarm.run.id"), json!(run));
}

#[tokio::test]
async fn the_metrics_are_exported_with_their_kinds() {
    let (shell, collector) = (Shell::new(), Collector::default());
    let url = collector.start().await;
    let daemon = launch(&shell, &url);
    let run = daemon.run_source(WORK, json!({})).await;
    daemon.ended(&run).await;
    let counted = async || {
        let metrics = collector.metrics.lock();
        let ended = metrics.get("moonswarm_runs_ended").cloned();
        let Some(Data::Sum(sum)) = ended.and_then(|it| it.data) else { return Err("none") };
        when(
            sum.is_monotonic && sum.aggregation_temporality == 2 && !sum.data_points.is_empty(),
            "no",
        )
    };
    eventually("the end is counted", counted).await;
    let metrics = collector.metrics.lock();
    assert_eq!(metrics["moonswarm_commit_seconds"].unit, "s");
    let Some(Data::Histogram(commits)) = &metrics["moonswarm_commit_seconds"].data else {
        panic!("a histogram")
    };
    let point = &commits.data_points[0];
    assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1);
    assert_eq!(point.count, point.bucket_counts.iter().sum::<u64>());
    assert!(matches!(metrics["moonswarm_runs_open"].data, Some(Data::Gauge(_))));
    assert_eq!(metrics["process_resident_memory_bytes"].unit, "By");
}

/// The words of the document that begin with one of these, between backquotes.
fn documented(beginnings: &[&str]) -> BTreeSet<String> {
    let text = std::fs::read_to_string(repository("docs/telemetry.md")).unwrap();
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || "._".contains(c)));
    let words = words.map(|word| word.trim_end_matches(['.', '_']));
    let is_one = |word: &&str| beginnings.iter().any(|it| word.starts_with(it) && *word != *it);
    words.filter(is_one).map(str::to_owned).collect()
}

#[test]
fn the_document_has_every_variable_and_no_other() {
    let (asked, of_all) = (Mutex::new(BTreeSet::new()), |name: &str| {
        let of_signal = name.contains("ENDPOINT");
        let general = name.replace("OTLP_TRACES_", "OTLP_").replace("OTLP_METRICS_", "OTLP_");
        if of_signal { name.to_owned() } else { general }
    });
    let get = |name: &str| {
        asked.lock().insert(of_all(name));
        match name {
            "OTEL_EXPORTER_OTLP_ENDPOINT" => Some("http://c".to_owned()),
            "OTEL_TRACES_SAMPLER" => Some("traceidratio".to_owned()),
            _ => None,
        }
    };
    assert!(Settings::read(get).unwrap().is_some());
    let known: BTreeSet<_> = documented(&["OTEL_"]).iter().map(|it| of_all(it)).collect();
    assert_eq!(known, asked.into_inner());
}

#[test]
fn a_variable_that_cannot_be_used_stops_the_start() {
    let shell = Shell::new();
    let variables = [("OTEL_TRACES_EXPORTER", "zipkin")];
    assert!(Daemon::launch(&shell.path("data"), &variables).is_none());
    let log = std::fs::read_to_string(shell.path("data").with_extension("log")).unwrap();
    assert!(log.contains("only `otlp` and `none` are supported"), "{log}");
}

#[test]
fn a_header_that_cannot_be_sent_stops_the_start_and_is_not_shown() {
    let shell = Shell::new();
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a b=s3cr3t"),
    ];
    assert!(Daemon::launch(&shell.path("data"), &variables).is_none());
    let log = std::fs::read_to_string(shell.path("data").with_extension("log")).unwrap();
    assert!(log.contains("OTEL_EXPORTER_OTLP_HEADERS") && !log.contains("s3cr3t"), "{log}");
}
