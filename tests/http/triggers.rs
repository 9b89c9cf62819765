//! Triggers: what starts by itself, paused, resumed and fired by hand.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Daemon, Shell, refusal, send};

const NIGHTLY: &str = r#"local swarm = require("swarm")
return swarm.blueprint {
  name = "nightly",
  on = {
    { schedule = "0 7 * * *", zone = "Europe/Berlin", missed = "once", input = { kind = "night" } },
    { signal = "opened" },
    { watch = "inbox/*.json" },
  },
  flow = function(ctx, input) return { input = input, trigger = ctx.trigger } end,
}"#;

const PLAIN: &str =
    r#"return require("swarm").blueprint { name = "plain", flow = function() end }"#;

async fn ok(request: reqwest::RequestBuilder, status: u16) -> Value {
    let (got, body) = send(request).await;
    assert_eq!(got, status, "{body}");
    body
}

async fn daemon(shell: &Shell) -> Daemon {
    let daemon = Daemon::start(&shell.path("data"));
    for (name, source) in [("nightly", NIGHTLY), ("plain", PLAIN)] {
        ok(daemon.put(&format!("/v1/blueprints/{name}"), &json!({ "source": source })), 200).await;
    }
    daemon
}

/// Returns the triggers of `nightly`: the schedule, the signal and the watch.
async fn triggers(daemon: &Daemon) -> Vec<Value> {
    let list = ok(daemon.get("/v1/triggers"), 200).await;
    assert_eq!(list["next_cursor"], Value::Null);
    list["items"].as_array().unwrap().clone()
}

async fn minted(daemon: &Daemon, body: Value) -> String {
    let minted = ok(daemon.post("/v1/tokens", &body), 201).await;
    minted["token"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn triggers_are_listed_with_their_next_and_last_times() {
    let shell = Shell::new();
    let daemon = daemon(&shell).await;
    let all = triggers(&daemon).await;
    let kinds: Vec<_> = all.iter().map(|it| it["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["schedule", "signal", "watch"], "{all:?}");
    let (schedule, signal, watch) = (&all[0], &all[1], &all[2]);
    assert!(schedule["next_at"].is_string() && schedule["zone"] == "Europe/Berlin", "{schedule}");
    assert_eq!((&schedule["missed"], &schedule["skipped"]), (&json!("once"), &json!(0)));
    assert_eq!(signal["path"], "/v1/blueprints/nightly/signals/opened");
    assert!(watch["problem"].as_str().unwrap().contains("watches no files"), "{watch}");
    assert!(all.iter().all(|it| it["blueprint"] == "nightly" && it.get("last_at").is_none()));

    let path = signal["path"].as_str().unwrap();
    let run = ok(daemon.post(path, &json!({ "n": 1 })), 201).await;
    let signal = triggers(&daemon).await.remove(1);
    assert_eq!(signal["last_run"], run["id"]);
    let next = ok(daemon.post(path, &json!({ "n": 2 })), 201).await;
    let after = triggers(&daemon).await.remove(1);
    assert_eq!(after["last_run"], next["id"], "also within the same minute");

    // It is kept, and belongs to the trigger, not to the version.
    daemon.stop();
    let daemon = Daemon::start(&shell.path("data"));
    let source = NIGHTLY.replace("return { input", "return { more = 1, input");
    ok(daemon.put("/v1/blueprints/nightly", &json!({ "source": source })), 200).await;
    let kept = triggers(&daemon).await.remove(1);
    assert_eq!((&kept["id"], &kept["last_run"]), (&signal["id"], &run["id"]));
}

#[tokio::test]
async fn a_paused_trigger_starts_nothing_until_it_is_resumed() {
    let shell = Shell::new();
    let daemon = daemon(&shell).await;
    let all = triggers(&daemon).await;
    let path =
        |at: usize, act: &str| format!("/v1/triggers/{}/{act}", all[at]["id"].as_str().unwrap());
    let paused = ok(daemon.post(&path(1, "pause"), &Value::Null), 200).await;
    assert_eq!(paused["paused_by"], "admin");
    let again = ok(daemon.post(&path(1, "pause"), &Value::Null), 200).await;
    assert_eq!(again, paused, "a repetition changes nothing");
    let signal = || daemon.post("/v1/blueprints/nightly/signals/opened", &json!(1));
    assert_eq!(refusal(signal()).await, (409, "trigger_paused".to_owned()));
    let schedule = ok(daemon.post(&path(0, "pause"), &Value::Null), 200).await;
    assert!(schedule.get("next_at").is_none(), "nothing is due: {schedule}");

    let resumed = ok(daemon.post(&path(1, "resume"), &Value::Null), 200).await;
    assert!(resumed.get("paused_at").is_none() && resumed.get("paused_by").is_none(), "{resumed}");
    ok(signal(), 201).await;
    let unknown = daemon.post("/v1/triggers/trg_nothing/pause", &Value::Null);
    assert_eq!(refusal(unknown).await, (404, "not_found".to_owned()));
}

#[tokio::test]
async fn a_trigger_is_fired_by_hand_once_for_each_key_with_the_rights_of_the_caller() {
    let shell = Shell::new();
    let daemon = daemon(&shell).await;
    let all = triggers(&daemon).await;
    let fire = |at: usize, body: Value| {
        let path = format!("/v1/triggers/{}/fire", all[at]["id"].as_str().unwrap());
        daemon.post(&path, &body).header("idempotency-key", format!("fire-{at}"))
    };
    let run = ok(fire(0, Value::Null), 201).await;
    assert_eq!(ok(fire(0, Value::Null), 201).await["id"], run["id"]);
    let ended = daemon.ended(run["id"].as_str().unwrap()).await;
    let output = &ended["output"];
    assert_eq!(output["input"], json!({ "kind": "night" }));
    assert_eq!(
        (&output["trigger"]["kind"], &output["trigger"]["fired"]),
        (&json!("schedule"), &json!(true))
    );
    let run = ok(fire(1, json!({ "n": 7 })), 201).await;
    let ended = daemon.ended(run["id"].as_str().unwrap()).await;
    assert_eq!(ended["output"]["input"], json!({ "n": 7 }));
    assert_eq!(triggers(&daemon).await[1]["last_run"], run["id"]);

    let operator = minted(&daemon, json!({ "role": "operator", "ttl": "1h" })).await;
    let id = all[0]["id"].as_str().unwrap();
    let path = format!("/v1/triggers/{id}/fire");
    let run = ok(daemon.with(&operator, Method::POST, &path), 201).await;
    assert!(run["id"].is_string(), "{run}");
}

#[tokio::test]
async fn a_token_sees_and_moves_the_triggers_of_its_blueprints_alone() {
    let shell = Shell::new();
    let daemon = daemon(&shell).await;
    let id = triggers(&daemon).await[0]["id"].as_str().unwrap().to_owned();
    let observer = minted(&daemon, json!({ "role": "observer", "ttl": "1h" })).await;
    let approver = minted(&daemon, json!({ "role": "approver", "ttl": "1h" })).await;
    let other =
        minted(&daemon, json!({ "role": "operator", "ttl": "1h", "scopes": ["blueprint:plain"] }))
            .await;
    let listed = ok(daemon.with(&observer, Method::GET, "/v1/triggers"), 200).await;
    assert_eq!(listed["items"].as_array().unwrap().len(), 3);
    let forbidden = (403, "forbidden_verb".to_owned());
    for act in ["pause", "resume", "fire"] {
        let path = format!("/v1/triggers/{id}/{act}");
        assert_eq!(refusal(daemon.with(&observer, Method::POST, &path)).await, forbidden, "{act}");
        let hidden = refusal(daemon.with(&other, Method::POST, &path)).await;
        assert_eq!(hidden, (404, "not_found".to_owned()), "{act}");
    }
    assert_eq!(refusal(daemon.with(&approver, Method::GET, "/v1/triggers")).await, forbidden);
    let listed = ok(daemon.with(&other, Method::GET, "/v1/triggers"), 200).await;
    assert_eq!(listed["items"], json!([]));
}

#[tokio::test]
async fn the_command_line_lists_pauses_and_fires() {
    let shell = Shell::new();
    let daemon = daemon(&shell).await;
    let id = triggers(&daemon).await[0]["id"].as_str().unwrap().to_owned();
    let cli = |args: &[&str]| {
        let data = shell.path("data");
        let args = [&["--data", data.to_str().unwrap()], args].concat();
        shell.run(&args).ok().stdout
    };
    let told = cli(&["triggers"]);
    assert!(told.contains(&id) && told.contains("0 7 * * * Europe/Berlin"), "{told}");
    cli(&["triggers", "pause", &id]);
    assert!(cli(&["triggers", "--blueprint", "nightly"]).contains("paused"));
    let run = cli(&["triggers", "fire", &id]);
    assert_eq!(daemon.ended(run.trim()).await["status"], "completed");
    cli(&["triggers", "resume", &id]);
    assert!(!cli(&["triggers"]).contains("paused"));
}
