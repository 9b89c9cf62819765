//! Commands over runs that ended or that wait: run again, many at once, compare, counts, and links.

use serde_json::{Value, json};

use crate::support::{Daemon, Shell, eventually, send, when};

const PAIR: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "pair",
  agents = { e = { operator = "echo" } },
  flow = function(ctx, input)
    local a = ctx:run("e", "first")
    if input == "wait" then ctx:wait("go") end
    return ctx:run("e", { a, input })
  end,
}
"#;

/// A daemon with the blueprint, and a shell beside it.
async fn pair() -> (Shell, Daemon) {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path(".moonswarm"));
    let (status, body) = send(daemon.put("/v1/blueprints/pair", &json!({ "source": PAIR }))).await;
    assert_eq!(status, 200, "{body}");
    (shell, daemon)
}

async fn start(daemon: &Daemon, input: Value, tag: &str) -> String {
    let body = json!({ "blueprint": "pair", "input": input, "tags": { "batch": tag } });
    let (status, run) = send(daemon.post("/v1/runs", &body)).await;
    assert_eq!(status, 201, "{run}");
    run["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_run_is_done_again_with_its_input_and_tags() {
    let (shell, daemon) = pair().await;
    let first = start(&daemon, json!({ "n": 1 }), "a").await;
    daemon.ended(&first).await;
    let again = shell.run(&["rerun", &first]).ok().says(&[&format!("has the input of {first}")]);
    let again = daemon.ended(again.stdout.trim()).await;
    assert_eq!((&again["input"], &again["tags"]), (&json!({"n": 1}), &json!({"batch": "a"})));
    let newest = shell.run(&["--json", "rerun", "last", "--newest"]).ok().json();
    assert!(newest["id"].as_str().is_some_and(|id| id != first), "{newest}");
    shell.run(&["rerun", "run_zzzz"]).exits(4);
}

#[tokio::test]
async fn many_runs_are_canceled_only_once_that_was_agreed() {
    let (shell, daemon) = pair().await;
    let mut runs = Vec::new();
    for _ in 0..2 {
        runs.push(start(&daemon, json!("wait"), "b").await);
    }
    for run in &runs {
        daemon.waits(run, "signal").await;
    }
    let cancel = ["bulk", "cancel", "--tag", "batch=b"];
    shell.run(&cancel).ok().says(&["2 eligible; nothing was done: --yes does it"]);
    assert_eq!(daemon.waits(&runs[0], "signal").await["status"], "waiting");
    let done = shell.run(&[&cancel[..], &["--yes", "--reason", "not needed"]].concat()).ok();
    assert_eq!(done.stdout.matches("done").count(), 2, "{}", done.stdout);
    for run in &runs {
        assert_eq!(daemon.ended(run).await["status"], "canceled");
    }
    let again = shell.run(&["--json", "bulk", "rerun", &runs[0], "--yes"]).ok().json();
    assert!(again["items"][0]["started"].is_string(), "{again}");
    shell.run(&["bulk", "cancel"]).exits(2).says(&["no runs are selected"]);
    let both = ["bulk", "cancel", runs[0].as_str(), "--status", "waiting"];
    shell.run(&both).exits(2).says(&["not both"]);
}

#[tokio::test]
async fn a_fork_is_compared_with_its_origin_and_its_input_may_be_any_json() {
    let (shell, daemon) = pair().await;
    let origin = start(&daemon, json!("text"), "c").await;
    daemon.ended(&origin).await;
    // A part of an input that has no parts cannot be changed.
    let fork = ["fork", origin.as_str(), "--from", "2"];
    let wrong = shell.run(&[&fork[..], &["--set", "word=other"]].concat()).exits(2);
    wrong.says(&["is not an object", "--input"]);
    let made = shell.run(&[&fork[..], &["--input", "\"other\""]].concat()).ok();
    let made = made.stdout.trim().to_owned();
    assert_eq!(daemon.ended(&made).await["output"], json!(["first", "other"]));
    let diff = shell.run(&["diff", &made]).ok().says(&["1 step differs"]);
    for part in ["forked at step 2", "another input", "request"] {
        assert!(diff.stdout.contains(part), "{part}: {}", diff.stdout);
    }
    let whole = shell.run(&["--json", "diff", &origin, &made]).ok().json();
    assert_eq!((&whole["differing"], &whole["same_version"]), (&json!(1), &json!(true)), "{whole}");
    shell.run(&["diff", &origin]).exits(2).says(&["is not a fork of another run"]);

    let object = start(&daemon, json!({ "a": 1, "b": 2 }), "c").await;
    daemon.ended(&object).await;
    let args = ["fork", &object, "--from", "2", "--input", r#"{"a":null}"#, "--set", "c=3"];
    let made = shell.run(&args).ok().stdout.trim().to_owned();
    assert_eq!(daemon.ended(&made).await["output"], json!(["first", { "b": 2, "c": 3 }]));
}

#[tokio::test]
async fn ended_runs_are_counted() {
    let (shell, daemon) = pair().await;
    for n in 0..3 {
        let run = start(&daemon, json!({ "n": n }), "d").await;
        daemon.ended(&run).await;
    }
    let counted = eventually("the runs are counted", async || {
        let stats = shell.run(&["--json", "stats", "--by", "blueprint"]).ok().json();
        when(stats["items"][0]["count"] == 3, stats.clone()).map(|()| stats)
    })
    .await;
    assert_eq!(counted["items"].as_array().map(Vec::len), Some(1), "{counted}");
    assert!(shell.run(&["stats", "--by", "blueprint"]).ok().stdout.contains("pair"));
    shell.run(&["stats", "--by", "moon"]).exits(2);
}

#[tokio::test]
async fn a_link_is_made_for_a_person_who_is_asked() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path(".moonswarm"));
    let source = r#"local swarm = require("swarm")
return swarm.blueprint { name = "ask", flow = function(ctx)
  return ctx:approve { title = "Ship?", by = "ann" }
end }"#;
    let run = daemon.run_source(source, json!({})).await;
    daemon.waits(&run, "task").await;
    let (_, tasks) = send(daemon.get(&format!("/v1/tasks?run={run}"))).await;
    let task = tasks["items"][0]["id"].as_str().unwrap().to_owned();
    let link = shell.run(&["link", &task, "--for", "ann", "--ttl", "1h"]).ok();
    let url = link.stdout.trim();
    assert!(url.starts_with(&daemon.url) && url.contains("ln_"), "{url}");
    let page = reqwest::get(url).await.unwrap();
    assert_eq!(page.status(), 200);
    assert!(page.text().await.unwrap().contains("Ship?"));
    assert!(!shell.run(&["logs", &run]).ok().stdout.contains("ln_"), "no log has it");
    shell.run(&["link", &task, "--for", "ben"]).exits(5);
    shell.run(&["link", &task, "--for", "ann", "--ttl", "8d"]).exits(2);
}
