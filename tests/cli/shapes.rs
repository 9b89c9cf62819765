//! What `--json` prints: one document on stdout, and nothing else there.

use serde_json::{Value, json};

use crate::support::{Shell, repository};

#[track_caller]
fn has(value: &Value, keys: &[&str]) {
    for key in keys {
        assert!(value.get(key).is_some(), "{key} is not in {value}");
    }
}

#[test]
fn every_verb_that_shows_something_shows_it_as_json() {
    let shell = Shell::new();
    let hello = repository("blueprints/hello.lua");
    let run = shell.run(&["run", hello.to_str().unwrap(), "--json"]).ok().json();
    has(&run, &["id", "blueprint", "hash", "status", "output", "steps", "created_at", "ended_at"]);
    assert_eq!((&run["status"], &run["blueprint"]), (&json!("completed"), &json!("hello")));
    let id = run["id"].as_str().unwrap();

    let listed = shell.run(&["ps", "--json"]).ok().json();
    assert_eq!(listed[0]["id"], run["id"]);
    assert!(listed[0].get("output").is_none(), "lists are without outputs");
    let shown = shell.run(&["show", id, "--json"]).ok().json();
    let text = shown.to_string();
    assert!(text.contains(id) && text.contains("greet"), "{text}");
    assert_eq!(shell.run(&["result", id, "--json"]).ok().json(), run["output"]);
    assert_eq!(shell.run(&["artifacts", "list", id, "--json"]).ok().json(), json!([]));
    assert_eq!(shell.run(&["inbox", "--json"]).ok().json(), json!([]));
    for line in shell.run(&["logs", id, "--json"]).ok().stdout.lines() {
        has(&serde_json::from_str(line).unwrap(), &["seq", "type", "at", "data"]);
    }
    let version = shell.run(&["version", "--json"]).ok().json();
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    let minted = shell.run(&["token", "mint", "--role", "observer", "--json"]).ok().json();
    has(&minted, &["token", "jti", "expires_at"]);
    let tokens = shell.run(&["token", "ls", "--json"]).ok().json();
    assert!(tokens.as_array().unwrap().iter().any(|token| token["jti"] == minted["jti"]));
    let claims = shell.run(&["token", "inspect", minted["token"].as_str().unwrap()]).ok().json();
    assert_eq!(claims["role"], "observer");
    shell.run(&["doctor", "--json"]).ok().json();
    let wrote = shell.run(&["init", "other", "--json"]).ok().json();
    assert_eq!((&wrote["name"], &wrote["file"]), (&json!("other"), &json!("other.lua")));
    assert_eq!(wrote["test"], "other_test.lua");
    let stubs = shell.run(&["init", "--stubs", "--json"]).ok().json();
    assert!(stubs["stubs"].as_array().unwrap().contains(&json!(".luals/swarm.lua")), "{stubs}");
    let gallery = shell.run(&["init", "--list", "--json"]).ok().json();
    assert_eq!(gallery.as_array().unwrap().len(), 11);
}

#[test]
fn a_failed_run_is_a_document_too() {
    let shell = Shell::new();
    shell.write(
        "fail.lua",
        r#"local swarm = require("swarm")
return swarm.blueprint { name = "fail", agents = {},
  flow = function() swarm.fail("blocked", "no", { at = 7 }) end }"#,
    );
    let run = shell.run(&["run", "fail.lua", "--json"]).exits(1).json();
    assert_eq!(run["status"], "failed");
    assert_eq!(
        (&run["error"]["kind"], &run["error"]["data"]),
        (&json!("blocked"), &json!({"at": 7}))
    );
}

#[test]
fn completions_and_help_are_printed() {
    let shell = Shell::new();
    for name in ["bash", "zsh", "fish", "nushell", "powershell"] {
        assert!(shell.run(&["completions", name]).ok().stdout.contains("moonswarm"));
    }
    let help = shell.run(&["--help"]).ok().stdout;
    assert!(help.contains("Exit codes") && !help.contains("report-worker"), "{help}");
}
