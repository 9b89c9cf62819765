//! Erasing: who may not, what prevents it, and what is left on disk.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::support::{Daemon, Shell, refusal, send};

/// Uses everything that keeps what it is given: state, files, a log, a task for a person, a child.
const BLUEPRINT: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "keeps",
  agents = { echo = { operator = "echo" }, ask = { operator = "human" } },
  flow = function(ctx, input)
    ctx.state:set("own", { name = input.name })
    local g = ctx:scope("global")
    g:set("people", { name = input.name })
    g:set("changed", input.name)
    g:set("changed", "nobody")
    ctx:artifact("letter.txt", "Dear " .. input.name .. ",\n")
    ctx:log("info", "hello " .. input.name)
    ctx:status("writes to " .. input.name)
    local said = input.ask and ctx:run("ask", { title = "who is " .. input.name .. "?" })
    local out = ctx:run("echo", { text = input.name })
    if input.fail then error("no answer of " .. input.name) end
    return { out, said }
  end,
}
"#;

/// The names of the files below a directory that contain a text.
fn files_with(dir: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_with(&path, text));
        } else if path.is_file() {
            let bytes = fs::read(&path).unwrap();
            if memchr::memmem::find(&bytes, text.as_bytes()).is_some() {
                found.push(path.file_name().unwrap().to_string_lossy().into_owned());
            }
        }
    }
    found
}

async fn erase(daemon: &Daemon, what: &Value) -> (u16, Value) {
    let mut body = what.clone();
    body["dry_run"] = json!(true);
    let (status, planned) = send(daemon.post("/v1/erase", &body)).await;
    if status != 200 {
        return (status, planned);
    }
    body["dry_run"] = json!(false);
    body["digest"] = planned["digest"].clone();
    send(daemon.post("/v1/erase", &body)).await
}

async fn start(daemon: &Daemon, token: &str, input: Value) -> String {
    let body = json!({ "source": BLUEPRINT, "input": input, "tags": { "of": input["name"] } });
    let request = daemon.with(token, reqwest::Method::POST, "/v1/runs").json(&body);
    let (status, run) = send(request.header("idempotency-key", input.to_string())).await;
    assert_eq!(status, 201, "{run}");
    run["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn what_was_erased_is_in_no_file_and_everything_else_is_as_it_was() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let name = "zachariasquux4711";
    let other = start(&daemon, &daemon.token, json!({ "name": "somebody" })).await;
    daemon.ended(&other).await;
    let failed = start(&daemon, &daemon.token, json!({ "name": name, "fail": true })).await;
    daemon.ended(&failed).await;
    let asks = start(&daemon, &daemon.token, json!({ "name": name, "ask": true })).await;
    let task = daemon.waits(&asks, "task").await["waiting_on"][0]["subject"]["task"]
        .as_str()
        .unwrap()
        .to_owned();

    // A run that is open prevents it, and is named.
    let (status, problem) = erase(&daemon, &json!({ "match": name })).await;
    assert_eq!((status, &problem["code"]), (409, &json!("not_ended")), "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains(&asks), "{problem}");
    let answer = json!({ "output": format!("a friend of {name}") });
    let (status, said) = send(daemon.post(&format!("/v1/tasks/{task}/answer"), &answer)).await;
    assert_eq!(status, 200, "{said}");
    daemon.ended(&asks).await;
    assert!(!files_with(&data, name).is_empty());

    let (status, done) = erase(&daemon, &json!({ "match": name })).await;
    assert_eq!(status, 200, "{done}");
    assert_eq!(done["runs"].as_array().unwrap().len(), 2, "{done}");
    assert_eq!((&done["files"], &done["rows"]["state"]), (&json!(2), &json!(3)), "{done}");
    assert_eq!(files_with(&data, name), [""; 0], "{done}");
    for run in [&failed, &asks] {
        assert_eq!(refusal(daemon.get(&format!("/v1/runs/{run}"))).await.0, 404);
    }
    assert_eq!(daemon.ended(&other).await["output"][0]["text"], "somebody");
    let (_, audit) = send(daemon.get("/v1/audit")).await;
    let lines = audit["items"].to_string();
    assert!(lines.contains("by match: 2 runs") && !lines.contains(name), "{lines}");

    // A repetition finds nothing, and the daemon goes on and starts again.
    let (status, again) = erase(&daemon, &json!({ "match": name })).await;
    assert_eq!((status, &again["runs"], &again["rows"]), (200, &json!([]), &json!({})), "{again}");
    let after = start(&daemon, &daemon.token, json!({ "name": "after" })).await;
    daemon.ended(&after).await;
    assert_eq!(daemon.stop(), Some(0));
    assert_eq!(files_with(&data, name), [""; 0]);
    let daemon = Daemon::start(&data);
    assert_eq!(daemon.ended(&after).await["status"], "completed");
    let checked = daemon.get("/v1/check").send().await.unwrap().text().await.unwrap();
    assert!(checked.contains("\"damaged\":0"), "{checked}");
}

#[tokio::test]
async fn a_person_is_erased_with_its_token_and_nobody_erases_itself() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let mint = json!({ "role": "operator", "ttl": "1h", "name": "quuxmaster",
        "verbs": ["run.start", "run.source", "run.read"] });
    let (status, minted) = send(daemon.post("/v1/tokens", &mint)).await;
    assert_eq!(status, 201, "{minted}");
    let token = minted["token"].as_str().unwrap();
    let run = start(&daemon, token, json!({ "name": "x" })).await;
    daemon.ended(&run).await;
    let (_, view) = send(daemon.get(&format!("/v1/runs/{run}"))).await;
    let subject = view["started_by"].as_str().unwrap().to_owned();
    assert!(subject.contains("quuxmaster"), "{view}");
    let (status, done) = erase(&daemon, &json!({ "subject": subject })).await;
    assert_eq!(status, 200, "{done}");
    assert_eq!(done["runs"][0]["run"], json!(run), "{done}");
    assert_eq!(done["rows"]["tokens"], 1, "{done}");
    assert_eq!(done["rows"]["answers"], 1, "{done}");
    let refused = refusal(daemon.with(token, reqwest::Method::GET, "/v1/runs")).await;
    assert_eq!(refused.0, 401);
    assert_eq!(files_with(&shell.path("data"), "quuxmaster"), [""; 0], "{done}");

    let (status, problem) = erase(&daemon, &json!({ "subject": "admin" })).await;
    assert_eq!((status, &problem["code"]), (400, &json!("bad_request")), "{problem}");
}

#[tokio::test]
async fn only_an_admin_erases_and_only_what_a_dry_run_has_shown() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let run = start(&daemon, &daemon.token, json!({ "name": "somebody" })).await;
    daemon.ended(&run).await;
    for (role, verbs) in [("operator", None), ("observer", None), ("admin", Some(["host.gc"]))] {
        let mint = json!({ "role": role, "ttl": "1h", "verbs": verbs });
        let (_, minted) = send(daemon.post("/v1/tokens", &mint)).await;
        let token = minted["token"].as_str().unwrap();
        let asked = daemon.with(token, reqwest::Method::POST, "/v1/erase");
        let refused = refusal(asked.json(&json!({ "runs": [run], "dry_run": true }))).await;
        assert_eq!(refused, (403, "forbidden_verb".to_owned()), "{role}");
    }
    // An operator cannot be given the right.
    let mint = json!({ "role": "operator", "ttl": "1h", "verbs": ["host.erase"] });
    assert_ne!(send(daemon.post("/v1/tokens", &mint)).await.0, 201);

    let blind = json!({ "runs": [run] });
    assert_eq!(refusal(daemon.post("/v1/erase", &blind)).await, (422, "invalid_body".to_owned()));
    let guessed = json!({ "runs": [run], "digest": "0".repeat(32) });
    let refused = refusal(daemon.post("/v1/erase", &guessed)).await;
    assert_eq!(refused, (409, "selection_changed".to_owned()));
    for (what, status) in [
        (json!({ "match": "abc" }), 400),
        (json!({ "match": " abcdef" }), 400),
        (json!({ "match": "x".repeat(1_025) }), 400),
        (json!({ "subject": "" }), 400),
        (json!({ "runs": [] }), 400),
        (json!({ "runs": [run], "match": "abcdef" }), 422),
        (json!({}), 422),
        (json!({ "everything": true }), 422),
    ] {
        assert_eq!(erase(&daemon, &what).await.0, status, "{what}");
    }
    assert_eq!(daemon.ended(&run).await["status"], "completed");
}
