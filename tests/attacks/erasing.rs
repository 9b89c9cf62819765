//! Erasing: who may not, what prevents it, and what is left on disk.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::support::{Daemon, Shell, eventually, refusal, send};

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

/// The source of a run whose child does this in the run's directory.
fn shell_source(script: &str) -> String {
    let script = serde_json::to_string(script).unwrap();
    format!(
        r#"local swarm = require("swarm")
return swarm.blueprint {{
  name = "shell",
  agents = {{
    sh = {{ operator = "process", command = {{ "sh", "-c", {script} }}, check = false }},
  }},
  flow = function(ctx, input) return ctx:run("sh", {{ text = input.name }}) end,
}}"#
    )
}

async fn run_shell(daemon: &Daemon, script: &str) -> String {
    let run = daemon.run_source(&shell_source(script), json!({ "name": "nobody" })).await;
    assert_eq!(daemon.ended(&run).await["status"], "completed");
    run
}

/// Returns true if a file below a directory, or the name of one or of a directory, has a text.
fn is_below(dir: &Path, text: &str) -> bool {
    let is_name = |entry: fs::DirEntry| {
        let (path, name) = (entry.path(), entry.file_name());
        name.to_string_lossy().contains(text) || path.is_dir() && is_below(&path, text)
    };
    !files_with(dir, text).is_empty() || fs::read_dir(dir).unwrap().flatten().any(is_name)
}

#[tokio::test]
async fn a_directory_that_a_child_has_closed_goes_with_its_run() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let closes = "mkdir -p x/z; echo 4711 > x/y; ln -s / x/root; chmod 000 x/z x";
    let run = run_shell(&daemon, closes).await;
    let dir = data.join("work").join(&run);
    assert!(dir.join("x").is_dir());
    let (status, done) = erase(&daemon, &json!({ "runs": [run] })).await;
    assert_eq!((status, &done["runs"][0]["result"]), (200, &json!("done")), "{done}");
    assert_eq!((&done["stays"], &done["rewritten"]), (&json!([]), &json!(true)), "{done}");
    assert!(!dir.exists(), "{done}");
    // The source came with this run alone.
    assert_eq!(done["rows"]["blueprints"], 1, "{done}");
    let bundles = fs::read_dir(data.join("bundles")).unwrap();
    assert_eq!(bundles.count(), 0);
}

#[tokio::test]
async fn directories_that_a_killed_host_has_left_go_at_the_next_start_and_no_others() {
    let shell = Shell::new();
    let data = shell.path("data");
    let env = [("MOONSWARM_KILL_AT", "engine.runs_deleted#1")];
    let daemon = Daemon::launch(&data, &env).unwrap();
    let kept = run_shell(&daemon, "echo 4711 > note.txt").await;
    let gone = run_shell(&daemon, "mkdir x; echo 4711 > x/y").await;
    let work = data.join("work");
    // Of a run of another database, from before; a link; and something that is nobody's.
    let older = moonswarm::protocol::RunId::new(7, 1_000).to_string();
    fs::create_dir(work.join(&older)).unwrap();
    fs::create_dir(work.join("mine")).unwrap();
    let linked = moonswarm::protocol::RunId::new(900, 4_000_000_000_000).to_string();
    std::os::unix::fs::symlink(shell.path("."), work.join(&linked)).unwrap();
    let mut body = json!({ "runs": [gone], "dry_run": true });
    let (_, planned) = send(daemon.post("/v1/erase", &body)).await;
    body["dry_run"] = json!(false);
    body["digest"] = planned["digest"].clone();
    // It dies before it answers.
    let _ = daemon.post("/v1/erase", &body).send().await;
    assert!(daemon.died());
    assert!(work.join(&gone).join("x/y").exists(), "nothing was removed before the kill");

    let daemon = Daemon::start(&data);
    eventually("the directory of the erased run is removed", async || {
        if work.join(&gone).exists() { Err("it is there") } else { Ok(()) }
    })
    .await;
    assert_eq!(fs::read_to_string(work.join(&kept).join("note.txt")).unwrap(), "4711\n");
    for name in [older.as_str(), "mine", linked.as_str()] {
        assert!(fs::symlink_metadata(work.join(name)).is_ok(), "{name}");
    }
    assert!(shell.path("data").is_dir());
    // What was interrupted is completed by doing it again.
    let (status, done) = erase(&daemon, &json!({ "runs": [gone] })).await;
    assert_eq!((status, &done["rewritten"]), (200, &json!(true)), "{done}");
    let (_, again) = erase(&daemon, &json!({ "runs": [gone] })).await;
    assert_eq!((&again["runs"], &again["unfinished"]), (&json!([]), &json!(false)), "{again}");
}

#[tokio::test]
async fn a_text_in_the_files_of_a_run_selects_the_run() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let name = "zachariasquux4711";
    let half = "zacharias";
    // The source and the input do not have it as a whole.
    let writes = format!("mkdir deep; a={half}; echo \"is ${{a}}quux4711 there\" > deep/note.txt");
    let noted = run_shell(&daemon, &writes).await;
    let names = format!("a={half}; mkdir -p deep/\"${{a}}quux4711\"");
    let named = run_shell(&daemon, &names).await;
    let other = run_shell(&daemon, "echo nobody > note.txt").await;
    assert!(is_below(&data.join("work"), name));
    let (status, done) = erase(&daemon, &json!({ "match": name })).await;
    assert_eq!(status, 200, "{done}");
    let runs: Vec<&str> =
        done["runs"].as_array().unwrap().iter().map(|it| it["run"].as_str().unwrap()).collect();
    assert_eq!(runs, [noted.as_str(), named.as_str()], "{done}");
    assert!(!data.join("work").join(&noted).exists() && !data.join("work").join(&named).exists());
    assert!(data.join("work").join(&other).join("note.txt").exists());
    assert!(!is_below(&data, name), "{done}");
}

#[tokio::test]
async fn a_source_that_came_with_its_runs_is_erased_and_leaves_no_file() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let name = "zachariasquux4711";
    let source = format!("{}\n-- written for {name}\n", shell_source("echo hello"));
    let mut runs = Vec::new();
    for _ in 0..2 {
        let run = daemon.run_source(&source, json!({ "name": "nobody" })).await;
        assert_eq!(daemon.ended(&run).await["status"], "completed");
        runs.push(run);
    }
    assert!(is_below(&data.join("bundles"), name));
    let (status, done) = erase(&daemon, &json!({ "runs": [runs[0]] })).await;
    assert_eq!((status, &done["rows"]), (200, &json!({})), "{done}");
    let (_, done) = erase(&daemon, &json!({ "match": name })).await;
    let stays = &done["stays"];
    let of_source = stays.as_array().unwrap().iter().find(|it| it["place"] == "blueprints");
    assert_eq!(of_source.map(|it| &it["rows"]), Some(&json!(1)), "{done}");
    let deleted = daemon.delete(&format!("/v1/runs/{}", runs[1])).send().await.unwrap();
    assert!(deleted.status().is_success());
    let (status, done) = erase(&daemon, &json!({ "match": name })).await;
    assert_eq!((status, &done["rows"]["blueprints"]), (200, &json!(1)), "{done}");
    assert!(!is_below(&data, name), "{done}");
    // It can come again.
    let run = daemon.run_source(&source, json!({ "name": "nobody" })).await;
    assert_eq!(daemon.ended(&run).await["status"], "completed");
}

#[tokio::test]
async fn a_match_that_finds_nothing_still_cleans_free_space() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let name = "zachariasquux4711";
    let at = "/v1/state/global/person";
    assert_eq!(send(daemon.put(at, &json!({ "value": name }))).await.0, 200);
    assert!(daemon.delete(at).send().await.unwrap().status().is_success());
    assert!(is_below(&data, name), "it is in the log at least");
    let dry = json!({ "match": name, "dry_run": true });
    let planned = send(daemon.post("/v1/erase", &dry)).await.1;
    assert_eq!(planned["rewritten"], false, "{planned}");
    let (status, again) = erase(&daemon, &json!({ "match": name })).await;
    assert_eq!((status, &again["runs"], &again["rows"]), (200, &json!([]), &json!({})), "{again}");
    assert_eq!(again["rewritten"], true, "{again}");
    assert!(!is_below(&data, name), "{again}");
}

#[tokio::test]
async fn nobody_else_reads_the_directories_of_runs_and_of_blueprints() {
    use std::os::unix::fs::PermissionsExt as _;
    let shell = Shell::new();
    let data = shell.path("data");
    for name in ["work", "bundles"] {
        fs::create_dir_all(data.join(name)).unwrap();
        fs::set_permissions(data.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let daemon = Daemon::start(&data);
    for name in ["work", "bundles"] {
        let mode = fs::metadata(data.join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "{name}");
    }
    run_shell(&daemon, "echo here > note.txt").await;
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
