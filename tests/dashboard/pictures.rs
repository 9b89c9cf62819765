//! The pictures of docs/dashboard.md: made by `UPDATE_PICTURES=1`, and always small.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use crate::{
    browser::modules,
    person::mint,
    support::{Daemon, eventually, repository, send, skip},
};

/// The maximum size of all pictures together, in bytes.
const ROOM: u64 = 600_000;

/// Plans, reviews, asks a person, ships.
const RELEASE: &str = r#"
local swarm = require("swarm")

local WORK = [[sleep 0.$1; printf '{"ok": true, "notes": "%s looks good"}' "$2"]]

return swarm.blueprint {
  name = "release",
  description = "Reviews each change, tests them together, and asks before it ships.",
  input = { type = "object", required = { "version", "changes" }, properties = {
    version = { type = "string", title = "Version", description = "The number of the release" },
    channel = { enum = { "beta", "stable" }, title = "Channel", default = "beta" },
    changes = { type = "array", title = "Changes", items = { type = "string" } },
  } },
  agents = {
    planner = { operator = "echo" },
    reviewer = { operator = "process", command = { "sh", "-c", WORK, "review", "{{ n }}", "{{ change }}" } },
    tester = { operator = "process", command = { "sh", "-c", WORK, "test", "9", "{{ suite }}" } },
    owner = {
      operator = "human",
      prompt = "Ship **{{ version }}**?\n\n**{{ count }}** changes were reviewed and tested:\n\n- the parser keeps comments\n- logs rotate at midnight\n- retries are bounded",
      output = { type = "object", required = { "ship" }, properties = {
        ship = { type = "boolean", title = "Ship it?" },
        note = { type = "string", title = "Note for the changelog" },
      } },
    },
    publisher = { operator = "echo" },
  },
  flow = function(ctx, input)
    local plan = ctx:run("planner", input)
    ctx:status("reviewing", { progress = 0.2 })
    local reviews = ctx:map(plan.changes, function(change, n)
      return ctx:run("reviewer", { change = change, n = n * 2 })
    end)
    ctx:all {
      function() return ctx:run("tester", { suite = "unit" }) end,
      function() return ctx:run("tester", { suite = "end to end" }) end,
    }
    ctx:status("waiting for the owner", { progress = 0.8 })
    local answer = ctx:run("owner", { version = input.version, count = #reviews })
    if answer.ship then
      ctx:run("publisher", { version = input.version, channel = input.channel })
    else
      error("the owner declined")
    end
    return { version = input.version, reviews = #reviews }
  end,
}
"#;

fn pictures() -> Vec<(String, u64)> {
    let entries = std::fs::read_dir(repository("docs/pictures")).unwrap();
    let named = entries.map(|entry| {
        let entry = entry.unwrap();
        (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().len())
    });
    named.collect()
}

#[test]
fn every_picture_of_the_docs_is_used_and_all_of_them_are_small() {
    let text = std::fs::read_to_string(repository("docs/dashboard.md")).unwrap();
    let all = pictures();
    for (name, _) in &all {
        assert!(text.contains(&format!("](pictures/{name})")), "{name} is not used");
    }
    assert!(all.len() >= 4 && all.iter().map(|(_, size)| size).sum::<u64>() < ROOM, "{all:?}");
}

async fn start(daemon: &Daemon, version: &str, changes: &[&str]) -> String {
    let input = json!({ "version": version, "changes": changes, "channel": "stable" });
    let tags = json!({ "team": "core" });
    let body = json!({ "blueprint": "release", "input": input, "tags": tags });
    let (status, run) = send(daemon.post("/v1/runs", &body)).await;
    assert_eq!(status, 201, "{run}");
    let run = run["id"].as_str().unwrap().to_owned();
    question(daemon, &run).await;
    run
}

/// Waits for the task that a run has for a person.
async fn question(daemon: &Daemon, run: &str) -> String {
    eventually("the run asks", async || {
        let (_, tasks) = send(daemon.get("/v1/tasks?kind=human")).await;
        let found = tasks["items"].as_array().unwrap().iter().find(|it| it["run"] == run);
        found.map(|it| it["id"].as_str().unwrap().to_owned()).ok_or(tasks.to_string())
    })
    .await
}

async fn answer(daemon: &Daemon, run: &str, output: Value) {
    let task = question(daemon, run).await;
    let sent = daemon.post(&format!("/v1/tasks/{task}/answer"), &json!({ "output": output }));
    let (status, done) = send(sent).await;
    assert!(status < 300, "{done}");
    daemon.ended(run).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pictures_are_made_again_when_they_are_asked_for() {
    if std::env::var_os("UPDATE_PICTURES").is_none() {
        return;
    }
    let (chromium, modules) = (Path::new("/usr/bin/chromium"), modules());
    if !chromium.exists() || !modules.join("node_modules/playwright-core").is_dir() {
        return skip("the pictures of the docs", "chromium or playwright-core is not installed");
    }
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&dir.path().join("data"));
    let body = json!({ "source": RELEASE });
    let (status, put) = send(daemon.put("/v1/blueprints/release", &body)).await;
    assert!(status < 300, "{put}");
    let changes = ["parser", "logs", "retries", "docs"];
    let done = start(&daemon, "2.4.0", &changes).await;
    answer(&daemon, &done, json!({ "ship": true, "note": "A quiet release." })).await;
    let declined = start(&daemon, "2.4.1", &changes[..2]).await;
    answer(&daemon, &declined, json!({ "ship": false })).await;
    let waits = start(&daemon, "2.5.0", &changes).await;
    let admin = mint(&daemon, "admin", &json!({ "name": "ada" })).await;
    let fresh = Daemon::start(&dir.path().join("fresh"));
    std::fs::create_dir_all(repository("docs/pictures")).unwrap();
    let made = Command::new("node")
        .arg(repository("tests/dashboard/browser/pictures.mjs"))
        .env("MODULES", &modules)
        .env("CHROMIUM", chromium)
        .env("ORIGIN", &daemon.url)
        .env("TOKEN", admin)
        .env("FRESH", &fresh.url)
        .env("FRESH_TOKEN", &fresh.token)
        .env("RUNS", json!({ "done": done, "declined": declined, "waits": waits }).to_string())
        .env("PICTURES", repository("docs/pictures"))
        .stdout(Stdio::piped())
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}
