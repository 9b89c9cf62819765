//! A secret that was used is found nowhere afterwards.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use data_encoding::{BASE64, HEXLOWER};
use reqwest::Method;
use serde_json::{Value, json};

use super::enforced;
use crate::support::{
    Daemon, PATIENCE, Shell,
    provider::{Answer, Bit, Provider},
    send,
};

const CANARY: &str = "cnry\"7f/Zq+9d&xw31";
const FILED: &str = "filed-cnry-5518-qq";

const BLUEPRINT: &str = r#"
local swarm = require("swarm")
local LOUD = [[
echo "$TOKEN"; echo "$TOKEN" >&2; printf '%s' "$TOKEN" | base64; printf 'xy%s' "$TOKEN" | base64
cat $MOONSWARM_SECRETS/filed; cat $MOONSWARM_SECRETS/filed > copy; env
[ "$1" = report ] && { echo "$MOONSWARM_HANDLE" > "$2"; sleep 100000; }
exit $1
]]
return swarm.blueprint {
  name = "loud",
  agents = { w = { operator = "process", environment = "box",
    command = { "sh", "-c", LOUD, "loud", "{{ how }}", "{{ fifo }}" } } },
  flow = function(ctx, input)
    ctx:run("w", { how = "0", fifo = "" })
    local _, err = ctx:try("w", { how = "3", fifo = "" })
    ctx:log("info", tostring(err), err)
    return ctx:run("w", { how = "report", fifo = input.fifo })
  end,
}
"#;

/// The ways in which the secrets could be written down.
fn forms() -> Vec<Vec<u8>> {
    let mut forms = Vec::new();
    for secret in [CANARY, FILED] {
        forms.push(secret.as_bytes().to_vec());
        let json = Value::from(secret).to_string();
        forms.push(json.as_bytes()[1..json.len() - 1].to_vec());
        forms.push(HEXLOWER.encode(secret.as_bytes()).into_bytes());
        // The middle of its base64, wherever it begins.
        for shift in 0..3 {
            let text = BASE64.encode(format!("{}{secret}", "x".repeat(shift)).as_bytes());
            forms.push(text.as_bytes()[4..text.len() - 4].to_vec());
        }
    }
    forms
}

#[track_caller]
fn clean(what: &str, bytes: &[u8]) {
    for form in forms() {
        let found = bytes.windows(form.len()).position(|window| window == form);
        if let Some(at) = found {
            let around = &bytes[at.saturating_sub(60)..(at + 60).min(bytes.len())];
            panic!("{what} has a secret: {}", String::from_utf8_lossy(around));
        }
    }
}

fn files(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files(&path, into) } else { into.push(path) }
    }
}

/// Runs the loud blueprint to its end and looks everywhere.
async fn loud(isolation: &str) {
    let shell = Shell::new();
    let data = shell.path("data");
    let config = shell.write(
        "moonswarm.toml",
        format!(
            "log = \"trace\"\n[environments.box]\nisolation = \"{isolation}\"\n\
             {}credentials = {{ canary = {{ env = \"TOKEN\" }}, filed = {{ file = \"filed\" }} }}\n\
             [secrets.canary]\nenv = \"D2_CANARY\"\n[secrets.filed]\nfile = {:?}\n",
            match isolation {
                "process" => format!("paths = {{ write = [{:?}] }}\n", shell.path("shared")),
                _ => String::new(),
            },
            shell.path("filed"),
        ),
    );
    shell.write("filed", format!("{FILED}\n"));
    let fifo = shell.write("shared/empty", "").with_file_name("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let env = [("MOONSWARM_CONFIG", config.to_str().unwrap()), ("D2_CANARY", CANARY)];
    let daemon = Daemon::launch(&data, &env).unwrap();
    let run = daemon.run_source(BLUEPRINT, json!({ "fifo": fifo })).await;

    let opened = fifo.clone();
    let heard = tokio::task::spawn_blocking(move || std::fs::read_to_string(opened));
    let handle = tokio::time::timeout(PATIENCE, heard).await.unwrap().unwrap().unwrap();
    let handle = handle.trim();
    let say = |method, path: &str| daemon.with(handle, method, &format!("/v1/worker/{path}"));
    let said = json!({ "text": CANARY, "data": [BASE64.encode(CANARY.as_bytes())] });
    let (status, view) = send(say(Method::POST, "progress").json(&said)).await;
    assert_eq!(status, 204, "{view}");
    let file = format!("PNG\0{CANARY}\0{FILED}");
    let (status, view) = send(say(Method::POST, "artifact?name=a.bin").body(file)).await;
    assert!(status < 300, "{view}");
    let state = say(Method::PUT, "state/key").json(&json!({ "value": { "leak": FILED } }));
    let (status, view) = send(state).await;
    assert!(status < 300, "{view}");
    let report = json!({ "ok": true, "output": { "leak": CANARY, "fine": true } });
    let (status, view) = send(say(Method::POST, "result").json(&report)).await;
    assert_eq!(status, 200, "{view}");
    let late = json!({ "ok": true, "output": { "late": CANARY } });
    let (status, view) = send(say(Method::POST, "result").json(&late)).await;
    assert_eq!(status, 409, "{view}");
    clean("the refusal", view.to_string().as_bytes());

    let view = daemon.ended(&run).await;
    assert_eq!(view["status"], "completed", "{view:#}");
    assert_eq!(view["output"]["leak"], "[secret canary]", "{view:#}");
    assert_eq!(view["output"]["fine"], true);
    clean("the run", view.to_string().as_bytes());
    for path in ["steps", "events", "artifacts", "export", "steps/1/locals"] {
        let (_, answer) = send(daemon.get(&format!("/v1/runs/{run}/{path}"))).await;
        clean(path, answer.to_string().as_bytes());
    }
    let (_, artifacts) = send(daemon.get(&format!("/v1/runs/{run}/artifacts"))).await;
    let id = artifacts["items"][0]["id"].as_str().unwrap_or_else(|| panic!("{artifacts}"));
    let (_, bytes) = send(daemon.get(&format!("/v1/artifacts/{id}"))).await;
    assert!(bytes.to_string().contains("[secret canary]"), "{bytes}");
    clean("the file", bytes.to_string().as_bytes());

    let (_, events) = send(daemon.get(&format!("/v1/runs/{run}/events"))).await;
    let events = events.as_str().unwrap_or_default();
    let accesses: Vec<Value> = events
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data:")?).ok())
        .filter(|event| event.to_string().contains("credential_name"))
        .collect();
    assert_eq!(accesses.len(), 6, "one for each secret of each attempt: {events}");
    for event in &accesses {
        let text = event.to_string();
        assert!(text.contains("\"outcome\":\"resolved\"") && text.contains(&run), "{text}");
    }

    assert_eq!(daemon.stop(), Some(0));
    let mut all = Vec::new();
    files(&data, &mut all);
    assert!(all.iter().any(|file| file.ends_with("moonswarm.db")), "{all:?}");
    all.push(data.with_extension("log"));
    for file in all {
        clean(&file.display().to_string(), &std::fs::read(&file).unwrap());
    }
}

#[tokio::test]
async fn a_secret_is_nowhere_after_a_child_without_a_boundary() {
    loud("local").await;
}

#[tokio::test]
async fn a_secret_is_nowhere_after_a_child_within_a_boundary() {
    if enforced("paths") {
        loud("process").await;
    }
}

#[tokio::test]
async fn a_providers_key_is_nowhere_after_an_answer_and_an_error_that_repeat_it() {
    let quoted = Value::from(CANARY).to_string();
    let provider = Provider::start(move |number, _| {
        let error = format!("{{\"error\":{{\"message\":{quoted},\"code\":{quoted}}}}}");
        match number {
            0 => {
                Answer::document("401 Unauthorized", &format!("x-request-id: {FILED}\r\n"), &error)
            }
            1 => Answer::stream(vec![Bit::Send(format!("data: {error}\n\n").into_bytes())]),
            2 => Answer::stream(vec![Bit::Send(format!("data: {FILED}{quoted}\n\n").into_bytes())]),
            _ => {
                let delta = format!("{{\"content\":{quoted},\"reasoning_content\":{quoted}}}");
                let chunk = format!(
                    "data: {{\"model\":{quoted},\"choices\":[{{\"delta\":{delta},\
                     \"finish_reason\":\"stop\"}}]}}\n\n"
                );
                Answer::stream(vec![Bit::Send(chunk.into_bytes())])
            }
        }
    });
    let shell = Shell::new();
    let data = shell.path("data");
    let config = shell.write(
        "moonswarm.toml",
        format!(
            "log = \"trace\"\n[operators.model]\nkind = \"llm\"\napi = \"chat\"\nmodel = \"m\"\n\
             base_url = {:?}\nallow_hosts = [\"127.0.0.1\"]\nkey = {{ env = \"D2_CANARY\" }}\n\
             headers = {{ x-team = {{ file = {:?} }} }}\n",
            provider.base_url,
            shell.path("filed"),
        ),
    );
    shell.write("filed", format!("{FILED}\n"));
    let env = [("MOONSWARM_CONFIG", config.to_str().unwrap()), ("D2_CANARY", CANARY)];
    let daemon = Daemon::launch(&data, &env).unwrap();
    let source = r#"local swarm = require("swarm")
return swarm.blueprint { name = "asks", agents = { w = { operator = "model", prompt = "Hi." } },
  flow = function(ctx)
    for n = 1, 3 do
      local _, err = ctx:try("w", { items = swarm.array {} })
      ctx:log("info", tostring(err), err)
    end
    return ctx:run("w", { items = swarm.array {} }, { on_delta = function(piece)
      ctx:publish("heard", piece)
    end })
  end }"#;
    let run = daemon.run_source(source, json!({})).await;
    let watched = send(daemon.get(&format!("/v1/runs/{run}/events"))).await.1;
    clean("the events", watched.to_string().as_bytes());
    let view = daemon.ended(&run).await;
    assert_eq!(view["status"], "completed", "{view:#}");
    assert!(view["output"].to_string().contains("[secret authorization]"), "{view:#}");
    clean("the run", view.to_string().as_bytes());
    for path in ["steps", "events", "export"] {
        let (_, answer) = send(daemon.get(&format!("/v1/runs/{run}/{path}"))).await;
        clean(path, answer.to_string().as_bytes());
    }
    let asked = provider.asked();
    assert_eq!(asked.len(), 4);
    let lower = CANARY.to_lowercase();
    assert!(asked.iter().all(|it| it.head.contains(&format!("bearer {lower}"))), "{asked:?}");
    assert_eq!(daemon.stop(), Some(0));
    let mut all = Vec::new();
    files(&data, &mut all);
    all.push(data.with_extension("log"));
    for file in all {
        clean(&file.display().to_string(), &std::fs::read(&file).unwrap());
    }
}

#[tokio::test]
async fn a_secret_that_cannot_be_had_is_an_error_and_an_event_that_hold_nothing_of_it() {
    let shell = Shell::new();
    let data = shell.path("data");
    let config = shell.write(
        "moonswarm.toml",
        format!(
            "[environments.box]\nisolation = \"local\"\ncredentials = {{ it = {{ env = \"A\" }} }}\n\
             [secrets.it]\ncommand = [\"sh\", \"-c\", \"echo '{FILED}'; echo '{FILED}' >&2; exit 4\"]"
        ),
    );
    let env = [("MOONSWARM_CONFIG", config.to_str().unwrap())];
    let daemon = Daemon::launch(&data, &env).unwrap();
    let run = daemon.run_source(super::BOXED, json!({ "script": "true" })).await;
    let view = daemon.ended(&run).await;
    assert_eq!(view["error"]["kind"], "environment", "{view:#}");
    let message = view["error"]["message"].as_str().unwrap();
    assert!(message.contains("credential injection failed: it: `sh` ended with"), "{message}");
    let (_, events) = send(daemon.get(&format!("/v1/runs/{run}/events"))).await;
    let events = events.as_str().unwrap_or_default();
    assert!(events.contains("\"outcome\":\"failed\""), "{events}");
    clean("the run", view.to_string().as_bytes());
    clean("its events", events.as_bytes());
    assert_eq!(super::attempts(&data), [""; 0].map(Path::new));
}
