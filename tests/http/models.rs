//! Models: a real daemon, a provider of the test's own that speaks each API, and everything that
//! hears the answer as it comes.

use serde_json::{Value, json};

use crate::{
    feed::Feed,
    support::{
        Daemon, Shell, eventually, program,
        provider::{Answer, Bit, Gate, Provider, Turn},
        repository, send, when,
    },
};

/// A flow that asks agent `w` once somebody says `go`.
fn flow(operator: &str, agent: &str, body: &str) -> String {
    format!(
        r#"local swarm = require("swarm")
return swarm.blueprint {{ name = "talk",
  agents = {{ w = {{ operator = "{operator}", prompt = "{{{{ input.what }}}}", {agent} }} }},
  flow = function(ctx, input)
    ctx:wait("go")
    {body}
  end }}"#
    )
}

const ASK: &str = r#"return ctx:run("w", { what = "Say it.", items = swarm.array {} })"#;

/// The configuration of an operator `model` at a provider.
fn config(provider: &Provider, api: &str, more: &str) -> String {
    format!(
        "[operators.model]\nkind = \"llm\"\napi = \"{api}\"\nmodel = \"mock\"\n\
         base_url = \"{}\"\nallow_hosts = [\"127.0.0.1\"]\n{more}\n",
        provider.base_url
    )
}

fn daemon(shell: &Shell, config: &str) -> Daemon {
    let file = shell.write("moonswarm.toml", config);
    let env = [("MOONSWARM_CONFIG", file.to_str().unwrap())];
    Daemon::launch(&shell.path("data"), &env).unwrap()
}

/// The events of a run, whose flow is told to begin once they are listened to.
async fn watched(daemon: &Daemon, run: &str, mut hears: impl FnMut(&Value)) -> Vec<Value> {
    let answer = daemon.get(&format!("/v1/runs/{run}/events")).send().await.unwrap();
    let (mut feed, mut events) = (Feed::of(answer), Vec::new());
    while let Some(event) = feed.next().await {
        if events.is_empty() {
            go(daemon, run).await;
        }
        hears(&event);
        events.push(event);
    }
    events
}

async fn go(daemon: &Daemon, run: &str) {
    let (status, view) = send(daemon.post(&format!("/v1/runs/{run}/signals/go"), &json!({}))).await;
    assert!(status < 300, "{view}");
}

fn said(events: &[Value]) -> String {
    let pieces = events.iter().filter(|event| event["type"] == "model.delta");
    pieces
        .filter(|event| event["data"]["delta"]["type"] == "text")
        .filter_map(|event| event["data"]["delta"]["delta"].as_str())
        .collect()
}

#[tokio::test]
async fn every_api_streams_to_whoever_watches_and_its_usage_and_cost_are_the_runs() {
    for api in ["chat", "responses", "anthropic"] {
        let provider = Provider::says(vec![Turn::text("Once upon a time.")]);
        let shell = Shell::new();
        let prices =
            "[operators.model.prices.mock]\ninput = \"1\"\ncached = \"0.1\"\noutput = \"2\"";
        let daemon = daemon(&shell, &config(&provider, api, prices));
        let run = daemon.run_source(&flow("model", "", ASK), json!({})).await;
        let events = watched(&daemon, &run, |_| {}).await;
        assert_eq!(said(&events), "Once upon a time.", "{api}");
        let piece = events.iter().find(|event| event["type"] == "model.delta").unwrap();
        assert!(piece.get("seq").is_none_or(Value::is_null), "{piece}");
        assert_eq!(piece["data"]["agent"], "w", "{piece}");
        let view = daemon.ended(&run).await;
        assert_eq!(view["status"], "completed", "{api}: {view:#}");
        assert!(view["output"].to_string().contains("Once upon a time."), "{view:#}");
        assert_eq!(view["usage"]["total"]["input_tokens"], 100, "{api}: {view:#}");
        assert_eq!(view["usage"]["total"]["cached_tokens"], 40, "{api}: {view:#}");
        assert_eq!(view["usage"]["total"]["cost"], "0.000104", "{api}: {view:#}");
        // What was heard is nowhere in the history.
        let (_, again) = send(daemon.get(&format!("/v1/runs/{run}/events"))).await;
        assert!(!again.as_str().unwrap().contains("model.delta"));
    }
}

#[tokio::test]
async fn the_first_piece_is_there_before_the_provider_goes_on() {
    let gate = Gate::default();
    let waits = gate.clone();
    let provider = Provider::start(move |_, asked| {
        let mut bits: Vec<Bit> = Turn::text("first second")
            .events(&asked.path)
            .into_iter()
            .map(|event| Bit::Send(event.into_bytes()))
            .collect();
        let second = bits.iter().position(|bit| match bit {
            Bit::Send(bytes) => String::from_utf8_lossy(bytes).contains("second"),
            _ => false,
        });
        bits.insert(second.unwrap(), Bit::Wait(waits.clone()));
        Answer::stream(bits)
    });
    let shell = Shell::new();
    let daemon = daemon(&shell, &config(&provider, "chat", ""));
    let run = daemon.run_source(&flow("model", "", ASK), json!({})).await;
    let events = watched(&daemon, &run, |event| {
        // Only when this piece is heard may the provider say the next.
        if event["data"]["delta"]["delta"] == "first " {
            gate.open();
        }
    })
    .await;
    assert_eq!(said(&events), "first second");
}

#[tokio::test]
async fn the_engine_tries_again_when_the_provider_says_so_and_only_as_often_as_the_agent_allows() {
    let slow = "retry-after-ms: 20\r\nx-request-id: r-7\r\n";
    let body = r#"{"error":{"type":"rate_limit_error","message":"slow down"}}"#;
    let provider = Provider::start(move |number, asked| match number {
        0 => Answer::document("429 Too Many Requests", slow, body),
        1 => Answer::stream(vec![Bit::Send(b"data: {\"choices\"".to_vec()), Bit::Cut]),
        2 => Answer::turn(&Turn::text("at last"), &asked.path),
        _ => Answer::document("529 Overloaded", "", "{}"),
    });
    let shell = Shell::new();
    let daemon = daemon(&shell, &config(&provider, "chat", ""));
    let retry = "retry = { max_attempts = 3, backoff = \"1ms\" }";
    let run = daemon.run_source(&flow("model", retry, ASK), json!({})).await;
    let events = watched(&daemon, &run, |_| {}).await;
    let failed: Vec<_> = events.iter().filter(|event| event["type"] == "attempt.failed").collect();
    assert_eq!(failed.len(), 2, "{events:#?}");
    let first = &failed[0]["data"]["error"];
    assert_eq!((&first["kind"], &first["data"]["code"]), (&json!("model"), &json!("rate_limited")));
    assert_eq!(first["data"]["retry_after_ms"], 20);
    assert_eq!(failed[1]["data"]["error"]["data"]["code"], "cut");
    assert_eq!(daemon.ended(&run).await["status"], "completed");
    assert_eq!(provider.asked().len(), 3);

    let run = daemon.run_source(&flow("model", "", ASK), json!({})).await;
    go(&daemon, &run).await;
    let view = daemon.ended(&run).await;
    assert_eq!(view["status"], "failed", "{view:#}");
    assert_eq!(view["error"]["kind"], "model", "{view:#}");
    assert!(view["error"]["message"].as_str().unwrap().contains("529 (overloaded)"), "{view:#}");
    assert_eq!(provider.asked().len(), 4);
}

#[tokio::test]
async fn a_composite_falls_back_from_one_provider_to_the_next() {
    let busy = Provider::start(|_, _| Answer::document("503 Service Unavailable", "", "{}"));
    let other = Provider::says(vec![Turn::text("from the other")]);
    let shell = Shell::new();
    let config = format!(
        "{}{}[operators.best]\nkind = \"composite\"\nrule = \"fallback\"\nmembers = [\"model\", \"spare\"]\n",
        config(&busy, "chat", ""),
        config(&other, "anthropic", "").replace("[operators.model]", "[operators.spare]"),
    );
    let daemon = daemon(&shell, &config);
    let run = daemon.run_source(&flow("best", "", ASK), json!({})).await;
    let events = watched(&daemon, &run, |_| {}).await;
    assert_eq!(said(&events), "from the other");
    assert_eq!(daemon.ended(&run).await["status"], "completed");
    assert_eq!((busy.asked().len(), other.asked().len()), (1, 1));
}

#[tokio::test]
async fn an_answer_that_the_host_did_not_hear_out_is_asked_for_again() {
    let gate = Gate::default();
    let gone = gate.clone();
    let provider = Provider::start(move |number, asked| match number {
        0 => Answer::stream(vec![Bit::Stall(gone.clone())]),
        _ => Answer::turn(&Turn::text("again"), &asked.path),
    });
    let shell = Shell::new();
    let config = config(&provider, "responses", "");
    let first = daemon(&shell, &config);
    let run = first.run_source(&flow("model", "", ASK), json!({})).await;
    go(&first, &run).await;
    eventually("a request to the provider", async || when(!provider.asked().is_empty(), "none"))
        .await;
    first.kill();
    tokio::task::spawn_blocking(move || gate.pass()).await.unwrap();
    let again = daemon(&shell, &config);
    let view = again.ended(&run).await;
    assert_eq!(view["status"], "completed", "{view:#}");
    assert!(view["output"].to_string().contains("again"), "{view:#}");
    assert_eq!(provider.asked().len(), 2);
}

#[tokio::test]
async fn a_function_of_the_flow_hears_the_pieces_and_changes_nothing() {
    let provider = Provider::says(vec![Turn::text("one two three")]);
    let shell = Shell::new();
    let daemon = daemon(&shell, &config(&provider, "anthropic", ""));
    let body = r#"local heard = 0
    ctx:run("w", { what = "Count.", items = swarm.array {} }, { on_delta = function(piece)
      heard += 1
      if piece.type == "text" then ctx:publish("word", { n = heard, text = piece.delta }) end
    end })
    return heard"#;
    let run = daemon.run_source(&flow("model", "", body), json!({})).await;
    let events = watched(&daemon, &run, |_| {}).await;
    let words: Vec<&Value> = events
        .iter()
        .filter(|event| event["type"] == "event" && event["data"]["topic"] == "word")
        .map(|event| &event["data"]["data"])
        .collect();
    let text: String = words.iter().filter_map(|word| word["text"].as_str()).collect();
    assert_eq!(text, "one two three", "{events:#?}");
    assert_eq!(daemon.ended(&run).await["output"], 0);
    let (_, replay) = send(daemon.post(&format!("/v1/runs/{run}/replay"), &json!({}))).await;
    assert!(replay["divergence"].is_null(), "{replay:#}");
}

#[tokio::test]
async fn logs_show_what_a_model_says_line_by_line() {
    let provider = Provider::says(vec![Turn::text("It was a dark\nand stormy night.")]);
    let shell = Shell::new();
    let daemon = daemon(&shell, &config(&provider, "chat", ""));
    let run = daemon.run_source(&flow("model", "", ASK), json!({})).await;
    let mut logs = program();
    logs.args(["logs", &run, "-f"]).current_dir(shell.path("data"));
    logs.env("MOONSWARM_URL", &daemon.url).env("MOONSWARM_TOKEN", &daemon.token);
    let mut child = logs.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let stdout = std::io::BufReader::new(child.stdout.take().unwrap());
    let (said, lines) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::BufRead::lines(stdout) {
            let _ = said.send(line.unwrap());
        }
    });
    // The first line comes after the subscription.
    let mut all = vec![lines.recv_timeout(crate::support::PATIENCE).unwrap()];
    go(&daemon, &run).await;
    daemon.ended(&run).await;
    assert!(child.wait().unwrap().success());
    all.extend(lines.iter());
    let at = all
        .iter()
        .position(|line| line.ends_with("~ w: It was a dark"))
        .unwrap_or_else(|| panic!("{all:#?}"));
    assert!(all[at + 1..].iter().any(|line| line.ends_with("~ w: and stormy night.")), "{all:#?}");
    assert!(!all.iter().any(|line| line.contains("model.delta")), "{all:#?}");
}

/// A daemon with the models of the repository's blueprints, and a directory with these files.
fn scripted(shell: &Shell, files: &[(&str, &str)]) -> (Daemon, std::path::PathBuf) {
    for (name, text) in files {
        shell.write(format!("work/{name}"), text);
    }
    let config = std::fs::read_to_string(repository("blueprints/moonswarm.toml")).unwrap();
    let turns = repository("blueprints/turns.json").display().to_string();
    let config = config.replace("\"turns.json\"", &format!("{turns:?}")).replace("pace = 100", "");
    (daemon(shell, &config), shell.path("work"))
}

async fn run_file(daemon: &Daemon, file: &str, workdir: &std::path::Path, input: Value) -> String {
    let source = std::fs::read_to_string(repository(file)).unwrap();
    let body = json!({ "source": source, "input": input, "workdir": workdir });
    let (status, view) = send(daemon.post("/v1/runs", &body)).await;
    assert_eq!(status, 201, "{view:#}");
    view["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn the_research_blueprint_answers_from_files_once_its_critic_lets_it() {
    let shell = Shell::new();
    let (daemon, work) =
        scripted(&shell, &[("server.toml", "port = 7700\n"), ("notes.md", "none\n")]);
    let question = json!({ "question": "Which port is it?" });
    let run = run_file(&daemon, "blueprints/research.lua", &work, question).await;
    let view = daemon.ended(&run).await;
    assert_eq!(view["status"], "completed", "{view:#}");
    let expected = json!({ "answer": "The port is set in server.toml: 7700.",
        "sources": ["server.toml"], "rounds": 2 });
    assert_eq!(view["output"], expected);
    // Its tool really looked.
    let (_, steps) = send(daemon.get(&format!("/v1/runs/{run}/steps?limit=500"))).await;
    let greps: Vec<&Value> =
        steps["items"].as_array().unwrap().iter().filter(|it| it["name"] == "grep").collect();
    assert_eq!(greps.len(), 2, "{steps:#}");
    let path = format!("/v1/runs/{run}/steps/{}", greps[0]["seq"]);
    let (_, step) = send(daemon.get(&path)).await;
    assert!(step.to_string().contains("server.toml:1:port = 7700"), "{step:#}");
    assert_eq!(view["usage"]["total"]["input_tokens"], 60 + 2 * (80 + 140), "{view:#}");
}

/// The task of a run that waits for a person, once there is one.
async fn inbox(daemon: &Daemon, run: &str) -> String {
    eventually("a task for a person", async || {
        let (_, list) = send(daemon.get(&format!("/v1/tasks?operator=human&run={run}"))).await;
        match list["items"][0]["id"].as_str() {
            Some(task) => Ok(task.to_owned()),
            None => Err(send(daemon.get(&format!("/v1/runs/{run}"))).await.1),
        }
    })
    .await
}

#[tokio::test]
async fn the_coding_agent_edits_what_a_person_approves_and_its_tests_decide() {
    let shell = Shell::new();
    let (daemon, work) = scripted(
        &shell,
        &[("add.sh", "echo $(($1 - $2))\n"), ("test.sh", "test \"$(sh add.sh 2 3)\" = 5\n")],
    );
    let input = json!({ "task": "make it add", "test": "sh test.sh" });
    let run = run_file(&daemon, "blueprints/coding-agent.lua", &work, input).await;
    let task = inbox(&daemon, &run).await;
    // Nothing is written before somebody said yes.
    assert_eq!(std::fs::read_to_string(work.join("add.sh")).unwrap(), "echo $(($1 - $2))\n");
    let (_, asked) = send(daemon.get(&format!("/v1/tasks/{task}"))).await;
    assert!(asked.to_string().contains("$1 + $2"), "{asked:#}");
    let answer = json!({ "output": { "approved": true } });
    let (status, view) = send(daemon.post(&format!("/v1/tasks/{task}/answer"), &answer)).await;
    assert!(status < 300, "{view:#}");
    let view = daemon.ended(&run).await;
    assert_eq!(view["status"], "completed", "{view:#}");
    assert_eq!(view["output"], json!({ "summary": "It subtracted; now it adds.", "rounds": 1 }));
    assert_eq!(std::fs::read_to_string(work.join("add.sh")).unwrap(), "echo $(($1 + $2))\n");
}
