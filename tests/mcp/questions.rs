//! Blueprints as tools that ask their client something, and calls that become tasks.

use rmcp::{
    model::{
        CallToolRequestParams, ClientCapabilities, ClientConfig, ElicitationCapability,
        Implementation, ProtocolVersion,
    },
    service::{ClientLifecycleMode, ClientServiceExt as _},
    transport::async_rw::AsyncRwTransport,
};
use serde_json::{Value, json};

use crate::{
    client::{mint, operator},
    person::Person,
    support::{Daemon, Shell, eventually, send},
};

const VERSION: &str = "2026-07-28";
const TASKS: &str = "io.modelcontextprotocol/tasks";

/// Asks its starter for a name, and a person whether it may.
const GREET: &str = r#"local swarm = require("swarm") local s = swarm.schema
    return swarm.blueprint { name = "greet", description = "Greets.", mcp = true,
    agents = {
        name = { operator = "human", by = "starter", prompt = "Who are you?",
            output = s.object { name = s.string { min_length = 2 } } },
    }, input = s.object { approve = s.boolean { default = false } },
    flow = function(ctx, input)
        local who = ctx:run("name", {}).name
        if input.approve then ctx:approve { title = "Greet " .. who .. "?" } end
        return "hello, " .. who
    end }"#;

struct Host {
    daemon: Daemon,
    token: String,
    able: Value,
    _shell: Shell,
}

impl Host {
    /// A daemon with the blueprint, and a client with these capabilities.
    async fn new(able: Value) -> Self {
        let shell = Shell::new();
        let daemon = Daemon::start(&shell.path("data"));
        let put = daemon.put("/v1/blueprints/greet", &json!({"source": GREET}));
        let (status, view) = send(put).await;
        assert_eq!(status, 200, "{view}");
        let token = operator(&daemon).await;
        Self { daemon, token, able, _shell: shell }
    }

    /// Sends a request of the newest revision.
    async fn ask(&self, method: &str, name: &str, mut params: Value) -> Value {
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": VERSION,
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": self.able,
        });
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let request = self
            .daemon
            .with(&self.token, reqwest::Method::POST, "/mcp")
            .header("accept", "application/json, text/event-stream")
            .header("mcp-protocol-version", VERSION)
            .header("mcp-method", method)
            .header("mcp-name", name)
            .json(&body);
        send(request).await.1
    }

    async fn call(&self, params: Value) -> Value {
        let mut params = params;
        params["name"] = json!("greet");
        self.ask("tools/call", "greet", params).await
    }

    async fn task(&self, id: &Value) -> Value {
        let id = id.as_str().unwrap();
        self.ask("tasks/get", id, json!({"taskId": id})).await["result"].clone()
    }
}

fn forms() -> Value {
    json!({"elicitation": {"form": {}}})
}

fn tasks() -> Value {
    json!({"elicitation": {}, "extensions": {TASKS: {}}})
}

fn said(name: &str) -> Value {
    json!({"action": "accept", "content": {"name": name}})
}

/// Asks the client's user, its model, and for its directories.
const ASK: &str = r#"local swarm = require("swarm") local s = swarm.schema
    return swarm.blueprint { name = "greet", description = "Asks.", mcp = true,
    agents = {
        name = { operator = "human", by = "starter", prompt = "Who are you?", output = s.string },
        line = { operator = "human", by = "starter:model", prompt = "How many?",
            output = s.object { count = s.integer } },
        places = { operator = "human", by = "starter:roots", prompt = "Where?",
            output = s.array(s.object { uri = s.string, name = s.string { optional = true } }) },
    },
    flow = function(ctx)
        local name, line, places
        ctx:all {
            function() name = ctx:run("name") end,
            function() line = ctx:run("line") end,
            function() places = ctx:run("places") end,
        }
        return `{name} {line.count} {places[1].uri}`
    end }"#;

fn model(text: &str) -> Value {
    json!({"role": "assistant", "model": "m", "content": {"type": "text", "text": text}})
}

/// The key of the one question of a result.
fn key(result: &Value) -> String {
    let requests = result["inputRequests"].as_object().unwrap_or_else(|| panic!("{result}"));
    assert_eq!(requests.len(), 1, "{result}");
    requests.keys().next().unwrap().clone()
}

#[tokio::test]
async fn a_question_to_the_starter_is_answered_by_the_next_call() {
    let host = Host::new(forms()).await;
    let asked = host.call(json!({"arguments": {}})).await["result"].clone();
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let request = &asked["inputRequests"][key(&asked)];
    assert_eq!((key(&asked).as_str(), &request["method"]), ("name", &json!("elicitation/create")));
    assert_eq!(request["params"]["message"], "Who are you?");
    let properties = &request["params"]["requestedSchema"]["properties"];
    assert_eq!(properties["name"], json!({"type": "string", "minLength": 2}));
    let state = asked["requestState"].clone();

    // An answer that does not fit is asked for again, with the reason.
    let answer = |key: String, response: Value| json!({"arguments": {}, "requestState": state, "inputResponses": {key: response}});
    let again = host.call(answer(key(&asked), said("x"))).await["result"].clone();
    let message = again["inputRequests"][key(&again)]["params"]["message"].as_str().unwrap();
    assert!(message.contains("did not fit"), "{message}");
    // Without an answer it is asked again as well; a foreign key has no effect.
    let none = host.call(answer("other".to_owned(), said("moon"))).await["result"].clone();
    assert_eq!(key(&none), key(&asked));
    let done = host.call(answer(key(&again), said("moon"))).await["result"].clone();
    assert_eq!(done["structuredContent"]["output"], "hello, moon", "{done}");
    // An answer that comes twice changes nothing.
    let twice = host.call(answer(key(&again), said("sun"))).await["result"].clone();
    assert_eq!(twice["structuredContent"], done["structuredContent"]);
}

#[tokio::test]
async fn a_client_is_asked_for_what_it_can_do_its_model_and_its_directories_too() {
    let able = json!({"elicitation": {}, "sampling": {}, "roots": {}});
    let mut host = Host::new(able).await;
    let put = host.daemon.put("/v1/blueprints/greet", &json!({"source": ASK}));
    assert_eq!(send(put).await.0, 200);
    let asked = host.call(json!({"arguments": {}})).await["result"].clone();
    let requests = &asked["inputRequests"];
    assert_eq!(requests["name"]["method"], "elicitation/create", "{asked}");
    assert_eq!(requests["places"]["method"], "roots/list", "{asked}");
    let sampled = &requests["line"];
    assert_eq!(sampled["method"], "sampling/createMessage", "{asked}");
    let prompt = sampled["params"]["messages"][0]["content"]["text"].as_str().unwrap();
    assert!(prompt.starts_with("How many?") && prompt.contains("count"), "{prompt}");
    let roots = json!({"roots": [{"uri": "file:///a", "name": "a"}]});
    let responses = json!({"name": {"action": "accept", "content": {"answer": "moon"}},
        "line": model("lots"), "places": roots});
    let call = |state: &Value, responses: Value| json!({"arguments": {}, "requestState": state, "inputResponses": responses});
    let again = host.call(call(&asked["requestState"], responses)).await["result"].clone();
    assert_eq!(key(&again), "line", "the rest is answered: {again}");
    let shown = again["inputRequests"]["line"]["params"]["messages"].to_string();
    assert!(shown.contains("did not fit"), "{shown}");
    let responses = json!({"line": model("```json\n{\"count\": 3}\n```")});
    let done = host.call(call(&again["requestState"], responses)).await["result"].clone();
    assert_eq!(done["structuredContent"]["output"], "moon 3 file:///a", "{done}");

    // A client is asked for nothing that it has not declared; what is left, `answer_task` answers.
    host.able = json!({"sampling": {}});
    let asked = host.call(json!({"arguments": {}})).await["result"].clone();
    assert_eq!(key(&asked), "line", "{asked}");
    host.able = json!({});
    let left = host.call(json!({"arguments": {}})).await["result"].clone();
    assert_eq!(left["structuredContent"]["status"], "waiting", "{left}");
}

#[tokio::test]
async fn a_blueprint_that_needs_a_model_is_refused_to_a_client_without_one() {
    let mut host = Host::new(json!({"elicitation": {}})).await;
    let needs = |needs: &str| json!({"source": ASK.replace("mcp = true", &format!("mcp = {{ needs = {needs} }}"))});
    let wrong = host.daemon.put("/v1/blueprints/greet", &needs(r#""telepathy""#));
    let (status, refused) = send(wrong).await;
    assert_eq!(status, 422, "{refused}");
    assert!(refused.to_string().contains("sampling"), "{refused}");
    let put = host.daemon.put("/v1/blueprints/greet", &needs(r#"{ "sampling", "roots" }"#));
    assert_eq!(send(put).await.0, 200);
    let refused = host.call(json!({"arguments": {}})).await;
    assert_eq!(refused["error"]["code"], -32021, "{refused}");
    let data = &refused["error"]["data"];
    assert_eq!(data["requiredCapabilities"], json!({"sampling": {}, "roots": {}}), "{refused}");
    let (_, runs) = send(host.daemon.get("/v1/runs")).await;
    assert_eq!(runs["items"], json!([]), "nothing was started");
    host.able = json!({"sampling": {}, "roots": {}});
    assert!(host.call(json!({"arguments": {}})).await["result"].is_object());
}

#[tokio::test]
async fn answers_may_come_with_the_first_call() {
    let host = Host::new(forms()).await;
    let early =
        |name: Value| json!({"arguments": {}, "inputResponses": {"name": name, "other": 1}});
    let done = host.call(early(said("moon"))).await["result"].clone();
    assert_eq!(done["structuredContent"]["output"], "hello, moon", "{done}");
    for wrong in [said("x"), json!(12345)] {
        let asked = host.call(early(wrong)).await["result"].clone();
        let message = &asked["inputRequests"][key(&asked)]["params"]["message"];
        assert!(message.as_str().unwrap().contains("did not fit"), "{asked}");
    }
}

#[tokio::test]
async fn a_state_that_was_not_given_to_this_call_is_refused() {
    let host = Host::new(forms()).await;
    let asked = host.call(json!({"arguments": {}})).await["result"].clone();
    let state = asked["requestState"].as_str().unwrap();
    let (digest, own) = state.split_once('.').unwrap();
    let last = if state.ends_with('a') { "b" } else { "a" };
    let other = send(host.daemon.post(
        "/v1/runs",
        &json!({"source": r#"local swarm = require("swarm") return swarm.blueprint {
            name = "other", flow = function(ctx) return ctx:wait("never") end }"#}),
    ));
    let other = other.await.1["id"].clone();
    let changed = format!("{}{last}", &state[..state.len() - 1]);
    let other = format!("{digest}.{}", other.as_str().unwrap());
    for forged in [changed, other, own.to_owned(), format!("{digest}.../whoami"), String::new()] {
        let responses = json!({key(&asked): said("moon")});
        let call = json!({"arguments": {}, "requestState": forged, "inputResponses": responses});
        let answer = host.call(call).await;
        assert_eq!(answer["error"]["code"], -32602, "{forged}: {answer}");
    }
    // An answer to another question than the one that is open is none.
    let responses = json!({key(&asked): said("moon")});
    let state = format!("0000000000000000.{own}");
    let call = json!({"arguments": {}, "requestState": state, "inputResponses": responses});
    let again = host.call(call).await["result"].clone();
    assert_eq!((key(&again), &again["requestState"]), (key(&asked), &asked["requestState"]));
}

#[tokio::test]
async fn an_approval_is_never_asked_of_the_client_and_a_decline_is_a_no() {
    let host = Host::new(forms()).await;
    let asked = host.call(json!({"arguments": {"approve": true}})).await["result"].clone();
    let answer = json!({"arguments": {}, "requestState": asked["requestState"],
        "inputResponses": {key(&asked): said("moon")}});
    // Nobody approves: the call goes on until its time is over, so it is left behind.
    let run = asked["requestState"].as_str().unwrap().split_once('.').unwrap().1.to_owned();
    let approves = async {
        let path = format!("/v1/tasks?run={run}&kind=human");
        let task = eventually("the approval", async || {
            let (_, open) = send(host.daemon.get(&path)).await;
            let mut items = open["items"].as_array().into_iter().flatten();
            let approval = items.find(|it| it["agent"] == "approve");
            let id = approval.and_then(|it| Some(it["id"].as_str()?.to_owned()));
            id.ok_or_else(|| open.to_string())
        })
        .await;
        let own = format!("/v1/tasks/{task}/reply");
        let yes = json!({"output": {"approved": true}});
        let reply = host.daemon.with(&host.token, reqwest::Method::POST, &own).json(&yes);
        let (status, refused) = send(reply).await;
        assert_eq!((status, &refused["code"]), (403, &json!("self_approval")), "{refused}");
        let answer = format!("/v1/tasks/{task}/answer");
        assert_eq!(send(host.daemon.post(&answer, &yes)).await.0, 200);
    };
    let (done, ()) = tokio::join!(host.call(answer), approves);
    assert_eq!(done["result"]["structuredContent"]["output"], "hello, moon", "{done}");

    let asked = host.call(json!({"arguments": {}})).await["result"].clone();
    let no = json!({"arguments": {}, "requestState": asked["requestState"],
        "inputResponses": {key(&asked): {"action": "decline"}}});
    let done = host.call(no).await["result"].clone();
    assert_eq!(
        (&done["isError"], &done["structuredContent"]["status"]),
        (&json!(true), &json!("failed"))
    );
    let asked = host.call(json!({"arguments": {}})).await["result"].clone();
    let later = json!({"arguments": {}, "requestState": asked["requestState"],
        "inputResponses": {key(&asked): {"action": "cancel"}}});
    let left = host.call(later).await["result"].clone();
    assert_eq!(left["resultType"], "complete", "it stays open: {left}");
    assert!(left["content"][0]["text"].as_str().unwrap().contains("goes on"), "{left}");
}

#[tokio::test]
async fn a_call_is_a_task_where_the_client_takes_one() {
    let host = Host::new(tasks()).await;
    let task = host.call(json!({"arguments": {}})).await["result"].clone();
    assert_eq!((&task["resultType"], &task["status"]), (&json!("task"), &json!("working")));
    let id = &task["taskId"];
    let asked = eventually("the question", async || {
        let task = host.task(id).await;
        if task["status"] == "input_required" { Ok(task) } else { Err(task) }
    })
    .await;
    let answer = json!({"taskId": id, "inputResponses": {key(&asked): said("moon")}});
    let updated = host.ask("tasks/update", id.as_str().unwrap(), answer).await;
    assert_eq!(updated["result"]["resultType"], "complete", "{updated}");
    let done = eventually("the result", async || {
        let task = host.task(id).await;
        if task["status"] == "completed" { Ok(task) } else { Err(task) }
    })
    .await;
    assert_eq!(done["result"]["structuredContent"]["output"], "hello, moon", "{done}");
    assert!(done["result"]["content"].as_array().is_some_and(|it| !it.is_empty()));

    let other = host.call(json!({"arguments": {}})).await["result"]["taskId"].clone();
    let name = other.as_str().unwrap();
    let canceled = host.ask("tasks/cancel", name, json!({"taskId": other})).await;
    assert_eq!(canceled["result"], json!({"resultType": "complete"}), "{canceled}");
    eventually("the cancel", async || {
        let task = host.task(&other).await;
        if task["status"] == "cancelled" { Ok(()) } else { Err(task) }
    })
    .await;
    let again = host.ask("tasks/cancel", name, json!({"taskId": other})).await;
    assert_eq!(again["result"], json!({"resultType": "complete"}), "it is over: {again}");
    for unknown in ["run_aaaaaaaaaaaaaaaaaaaaaaaaaa", "../whoami", "x"] {
        for method in ["tasks/get", "tasks/cancel"] {
            let answer = host.ask(method, unknown, json!({"taskId": unknown})).await;
            assert_eq!(answer["error"]["code"], -32602, "{method} {unknown}: {answer}");
        }
    }
    // A foreign token sees no task.
    let scoped = json!({"role": "operator", "scopes": ["blueprint:none"], "ttl": "1h"});
    let stranger = Host { token: mint(&host.daemon, scoped).await, ..host };
    let answer = stranger.task(id).await;
    assert!(answer.is_null(), "{answer}");
}

#[tokio::test]
async fn a_client_that_did_not_say_that_it_takes_tasks_gets_none() {
    let host = Host::new(json!({})).await;
    let refused = host.ask("tasks/get", "run_a", json!({"taskId": "run_a"})).await;
    assert_eq!(refused["error"]["code"], -32021, "{refused}");
    let extensions = &refused["error"]["data"]["requiredCapabilities"]["extensions"];
    assert!(extensions.get(TASKS).is_some(), "{refused}");
}

#[tokio::test]
async fn an_output_with_content_blocks_is_shown_as_these() {
    let host = Host::new(json!({})).await;
    let source = |output: &str| {
        json!({"source": format!(r#"local swarm = require("swarm") return swarm.blueprint {{
            name = "greet", description = "Draws.", mcp = true,
            flow = function() return {output} end }}"#)})
    };
    let image = r#"{ content = { { type = "image", data = "aGk=", mimeType = "image/png" },
        { type = "text", text = "a moon" } } }"#;
    for (output, first, count) in [
        (image, "image", 2),
        (r#"{ content = { { type = "image" } } }"#, "text", 1),
        (r#"{ content = {} }"#, "text", 1),
    ] {
        assert_eq!(send(host.daemon.put("/v1/blueprints/greet", &source(output))).await.0, 200);
        let done = host.call(json!({"arguments": {}})).await["result"].clone();
        let content = done["content"].as_array().unwrap();
        assert_eq!((content.len(), &content[0]["type"]), (count, &json!(first)), "{done}");
        assert_eq!(done["structuredContent"]["status"], "completed", "{done}");
    }
}

#[tokio::test]
async fn a_call_that_asks_for_progress_streams_it_before_the_answer() {
    let host = Host::new(json!({})).await;
    let source = r#"local swarm = require("swarm") return swarm.blueprint {
        name = "greet", description = "Greets.", mcp = true,
        flow = function(ctx) ctx:status("halfway") ctx:wait("go") return "done" end }"#;
    let put = host.daemon.put("/v1/blueprints/greet", &json!({"source": source}));
    assert_eq!(send(put).await.0, 200);
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
        "name": "greet", "arguments": {}, "_meta": {"progressToken": "p"}}});
    let call = host
        .daemon
        .with(&host.token, reqwest::Method::POST, "/mcp")
        .header("accept", "application/json, text/event-stream")
        .json(&body);
    let goes = async {
        let run = eventually("the run", async || {
            let (_, runs) = send(host.daemon.get("/v1/runs")).await;
            let run = runs["items"][0].clone();
            if run["status_text"] == "halfway" { Ok(run["id"].clone()) } else { Err(run) }
        })
        .await;
        let path = format!("/v1/runs/{}/signals/go", run.as_str().unwrap());
        assert_eq!(send(host.daemon.post(&path, &json!(1))).await.0, 204);
    };
    let (answer, ()) =
        tokio::join!(async { call.send().await.unwrap().text().await.unwrap() }, goes);
    let told = answer.find("notifications/progress").unwrap_or_else(|| panic!("{answer}"));
    assert!(answer.contains("halfway") && told < answer.find("\"result\"").unwrap(), "{answer}");
}

#[tokio::test]
async fn a_client_of_an_older_revision_is_asked_during_the_call() {
    let shell = Shell::new();
    shell.write("greet.lua", GREET);
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let put = daemon.put("/v1/blueprints/greet", &json!({"source": GREET}));
    assert_eq!(send(put).await.0, 200);
    let mut child = tokio::process::Command::from(crate::support::program())
        .args(["mcp", "--data"])
        .arg(&data)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let (output, input) = (child.stdout.take().unwrap(), child.stdin.take().unwrap());
    let mut able = ClientCapabilities::default();
    able.elicitation = Some(ElicitationCapability::default());
    able.sampling = Some(Default::default());
    able.roots = Some(Default::default());
    let info = ClientConfig::new(able, Implementation::new("test", "1"));
    let old = ProtocolVersion::V_2025_06_18;
    let lifecycle = ClientLifecycleMode::Auto {
        preferred_versions: vec![old.clone()],
        legacy_version: Some(old),
    };
    let pipes = AsyncRwTransport::new(output, input);
    let service = Person(info).serve_with_lifecycle(pipes, lifecycle).await.unwrap();
    let call = CallToolRequestParams::new("greet").with_arguments(Default::default());
    let done = json!(service.peer().call_tool(call).await.unwrap());
    assert_eq!(done["structuredContent"]["output"], "hello, moon", "{done}");
    let put = daemon.put("/v1/blueprints/greet", &json!({"source": ASK}));
    assert_eq!(send(put).await.0, 200);
    let call = CallToolRequestParams::new("greet").with_arguments(Default::default());
    let done = json!(service.peer().call_tool(call).await.unwrap());
    assert_eq!(done["structuredContent"]["output"], "moon 3 file:///a", "{done}");
    service.cancel().await.unwrap();
}
