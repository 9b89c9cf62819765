//! OpenAI's Codex, a coding agent of others: as a client that works on tasks, and as an operator.
//! A provider that the test writes is its model. `scripts/test.sh` installs it below
//! `target/clients/`; where it is not there it is named, and not run.

use std::{
    fs::OpenOptions,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use crate::{
    clients::clients,
    support::{
        Daemon, Shell, program,
        provider::{Answer, Asked, Bit, Provider, Turn},
        send, skip,
    },
};

const TRIPLE: &str = r#"local swarm = require("swarm") local s = swarm.schema
return swarm.blueprint {
  name = "triple",
  edition = 2,
  agents = { a = { operator = "main-ai", worker = { subagent_type = "tripler" },
    prompt = "Triple {{ n }}.", output = s.integer } },
  flow = function(ctx)
    return ctx:map({ 1, 2, 3 }, function(n) return ctx:run("a", { n = n }) end)
  end,
}"#;

/// The program of Codex, if it is there.
fn codex() -> Option<PathBuf> {
    let package = clients().join("agents/node_modules/@openai");
    let architecture = std::env::consts::ARCH;
    let short = if architecture == "aarch64" { "arm64" } else { "x64" };
    let vendor = package.join(format!("codex-linux-{short}/vendor"));
    let file = vendor.join(format!("{architecture}-unknown-linux-musl/bin/codex"));
    if !file.exists() {
        skip("Codex", &format!("{} is not there", file.display()));
        return None;
    }
    Some(file)
}

/// Adds the provider to the configuration of Codex: its model, and nothing of the internet.
fn configure(home: &Path, provider: &Provider) {
    std::fs::create_dir_all(home.join(".codex")).unwrap();
    let config = home.join(".codex/config.toml");
    let installed = std::fs::read_to_string(&config).unwrap_or_default();
    let own = format!(
        "model = \"scripted\"\nmodel_provider = \"scripted\"\nweb_search = \"disabled\"\n\
         check_for_update_on_startup = false\n[analytics]\nenabled = false\n\
         [model_providers.scripted]\nname = \"scripted\"\nbase_url = {:?}\n\
         wire_api = \"responses\"\nrequest_max_retries = 0\nstream_max_retries = 0\n\n",
        provider.base_url
    );
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).open(config).unwrap();
    file.write_all((own + &installed).as_bytes()).unwrap();
}

/// Returns the JSON in the text that a tool returned to the model.
fn returned(output: &Value) -> Value {
    let text = match output {
        Value::String(text) => text.clone(),
        blocks => {
            blocks.as_array().into_iter().flatten().filter_map(|it| it["text"].as_str()).collect()
        }
    };
    let json = text.find('{').map_or("", |at| &text[at..]);
    let mut values = serde_json::Deserializer::from_str(json).into_iter();
    values.next().and_then(Result::ok).unwrap_or_default()
}

/// A model that works on tasks until there are none: it triples the number of each.
fn worker(_: usize, asked: &Asked) -> Answer {
    let conversation = asked.body["input"].as_array().cloned().unwrap_or_default();
    let outputs: Vec<(&str, Value)> = conversation
        .iter()
        .filter(|it| it["type"] == "function_call_output")
        .map(|it| (it["call_id"].as_str().unwrap(), returned(&it["output"])))
        .collect();
    let calls = outputs.len();
    let next = |session: &Value, after: &Value| {
        call(calls, "next_task", json!({"session": session, "after": after, "wait_seconds": 1}))
    };
    let first = outputs.first().map(|it| it.1["session"].clone()).unwrap_or_default();
    match outputs.last() {
        None => call(calls, "open_session", json!({})),
        Some((_, it)) if it["kind"] == "task" => {
            let prompt = it["task"]["prompt"].as_str().unwrap();
            let n: u64 = prompt.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap();
            let report = json!({"session": first, "task": it["task"]["task"], "output": 3 * n});
            call(calls, "report_task", report)
        }
        Some((_, it)) if it["kind"] == "none" => {
            Answer::turn(&Turn::text("All done."), "/responses")
        }
        Some(_) => {
            let last = outputs.iter().rev().find(|it| it.1["kind"] == "task");
            next(&first, last.map_or(&Value::Null, |it| &it.1["after"]))
        }
    }
}

/// An answer of the model that calls a tool of moonswarm.
fn call(number: usize, name: &str, arguments: Value) -> Answer {
    let item = json!({"type": "function_call", "id": format!("fc_{number}"), "name": name,
        "namespace": "mcp__moonswarm", "call_id": format!("call_{number}"),
        "arguments": arguments.to_string(), "status": "completed"});
    let events = [
        json!({"type": "response.created", "response": {"id": "resp_1"}}),
        json!({"type": "response.output_item.added", "output_index": 0, "item": item}),
        json!({"type": "response.output_item.done", "output_index": 0, "item": item}),
        json!({"type": "response.completed", "response": {"id": "resp_1", "status": "completed",
            "output": [item], "usage": {"input_tokens": 1, "output_tokens": 1,
                "total_tokens": 2}}}),
    ];
    let send = |it: &Value| {
        Bit::Send(format!("event: {}\ndata: {it}\n\n", it["type"].as_str().unwrap()).into_bytes())
    };
    Answer::stream(events.iter().map(send).collect())
}

fn lines(stdout: &[u8]) -> Vec<Value> {
    let text = String::from_utf8_lossy(stdout).into_owned();
    text.lines().filter_map(|it| serde_json::from_str(it).ok()).collect()
}

#[tokio::test]
async fn codex_is_set_up_by_install_and_works_on_the_tasks_of_a_run() {
    let Some(codex) = codex() else { return };
    let shell = Shell::new();
    let (data, home) = (shell.path("data"), shell.path("home"));
    let daemon = Daemon::start(&data);
    let put = daemon.put("/v1/blueprints/triple", &json!({"source": TRIPLE}));
    assert_eq!(send(put).await.0, 200);
    let (_, run) = send(daemon.post("/v1/runs", &json!({"blueprint": "triple"}))).await;
    let mut install = program();
    install.args(["mcp", "install", "--client", "codex", "--scope", "user", "--yes", "--data"]);
    install.arg(&data).env("HOME", &home).env_remove("XDG_CONFIG_HOME");
    assert!(install.current_dir(shell.path("")).output().unwrap().status.success());
    let provider = Provider::start(worker);
    configure(&home, &provider);

    let mut agent = Command::new(codex);
    agent.args(["exec", "--json", "--skip-git-repo-check", "Work on my tasks."]);
    agent.current_dir(shell.path("")).env("HOME", &home).env_remove("CODEX_HOME");
    for proxy in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        agent.env_remove(proxy).env_remove(proxy.to_lowercase());
    }
    let ran = tokio::task::spawn_blocking(move || agent.stdin(Stdio::null()).output().unwrap());
    let ran = ran.await.unwrap();
    let events = lines(&ran.stdout);
    let shown = || format!("{events:#?}\n{}", String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{}", shown());
    let calls: Vec<&Value> = events
        .iter()
        .filter(|it| it["type"] == "item.completed" && it["item"]["type"] == "mcp_tool_call")
        .map(|it| &it["item"])
        .collect();
    assert!(calls.iter().all(|it| it["status"] == "completed"), "{}", shown());
    let reports = calls.iter().filter(|it| it["tool"] == "report_task").count();
    assert_eq!(reports, 3, "{}", shown());
    let ended = daemon.ended(run["id"].as_str().unwrap()).await;
    assert_eq!(ended["output"], json!([3, 6, 9]), "{ended}");

    // The model saw the tools that the token may use, and no other.
    let first = &provider.asked()[0].body["tools"];
    let ours = first.as_array().unwrap().iter().find(|it| it["name"] == "mcp__moonswarm").unwrap();
    let names: Vec<&str> =
        ours["tools"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"next_task") && !names.contains(&"save_blueprint"), "{names:?}");
}

#[tokio::test]
async fn codex_is_an_operator_whose_conversation_goes_on() {
    let Some(codex) = codex() else { return };
    let shell = Shell::new();
    let home = shell.path("home");
    let provider = Provider::says(vec![Turn::text("one moon"), Turn::text("two moons")]);
    configure(&home, &provider);
    let config = format!(
        "[operators.cli]\nkind = \"agent_cli\"\nprofile = \"codex\"\nprogram = {codex:?}\n\
         permissions = \"accept-edits\"\nenv = {{ HOME = {home:?} }}\n"
    );
    shell.write("moonswarm.toml", config);
    let flow = r#"return require("swarm").blueprint { name = "b", description = "d",
        agents = { a = { operator = "cli", prompt = "Say {{ directive }}." } },
        flow = function(ctx)
          return { ctx:run("a", "one", { session = "s" }), ctx:run("a", "two", { session = "s" }) }
        end }"#;
    shell.write("b.lua", flow);
    let mut command = shell.command(&["run", "b.lua", "--json"]);
    for proxy in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        command.env_remove(proxy).env_remove(proxy.to_lowercase());
    }
    let ran = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let run: Value = serde_json::from_slice(&ran.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&ran.stderr)));
    assert_eq!(run["output"], json!(["one moon", "two moons"]), "{run:#}");
    let used = &run["usage"]["total"];
    assert_eq!(
        (&used["cached_tokens"], &used["output_tokens"]),
        (&json!(80), &json!(40)),
        "{run:#}"
    );
    let second = provider.asked()[1].body["input"].to_string();
    let parts = ["Say one.", "one moon", "Say two."];
    assert!(parts.iter().all(|part| second.contains(part)), "it goes on: {second}");
}
