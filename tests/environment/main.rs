//! Environments with the real program: real children within real boundaries.
//!
//! What this machine cannot enforce is named (`cannot enforce: X`), and then its refusal is tested.

#[path = "../support/mod.rs"]
mod support;

mod boundary;
mod bubblewrap;
mod canary;
mod refusals;
mod seed;
mod teardown;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use support::{Done, Shell};

/// One agent whose environment is `box` of the configuration, and whose script is the input.
pub const BOXED: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "boxed",
  agents = {
    w = { operator = "process", environment = "box", command = { "sh", "-c", "{{ script }}" } },
  },
  flow = function(ctx, input) return ctx:run("w", { script = input.script }) end,
}
"#;

/// A directory with the blueprint and an environment `box`.
pub fn boxed(environment: &str) -> Shell {
    let shell = Shell::new();
    shell.write("boxed.lua", BOXED);
    shell.write("moonswarm.toml", format!("[environments.box]\n{environment}\n"));
    shell
}

/// Runs a script within the box.
pub fn script(shell: &Shell, script: &str) -> Value {
    let input = json!({ "script": script }).to_string();
    let done = shell.run(&["run", "boxed.lua", "--input", &input, "--json"]);
    serde_json::from_str(&done.stdout).unwrap_or_else(|_| panic!("{done:?}"))
}

/// What the script printed.
pub fn printed(view: &Value) -> &str {
    view["output"]["stdout"].as_str().unwrap_or_else(|| panic!("{view:#}"))
}

/// Whether this machine can enforce something; says so if not.
pub fn enforced(what: &str) -> bool {
    let done = Shell::new().run(&["doctor", "--json"]);
    let lines = done.json();
    let said = |line: &&Value| {
        line["what"] == "environment" && line["says"].as_str().unwrap().starts_with(what)
    };
    let line = lines.as_array().unwrap().iter().find(said).expect("doctor speaks of it");
    let enforced = line["verdict"] == "ok";
    if !enforced {
        println!("cannot enforce: {what} ({})", line["says"]);
    }
    enforced
}

/// A box with this environment is refused by `check`, with a reason and what would help.
#[track_caller]
pub fn refused(environment: &str, part: &str) {
    let done = boxed(environment).run(&["check", "boxed.lua"]).exits(3);
    let all = shown(&done);
    assert!(all.contains("MS-B027") && all.contains(part) && all.contains("help"), "{all}");
}

/// Everything that a command said, its lines joined.
pub fn shown(done: &Done) -> String {
    let text = format!("{}{}", done.stdout, done.stderr);
    text.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ")
}

/// The directories of attempts that are there now.
pub fn attempts(data: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(data.join("work/.attempts")) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().path()).collect()
}
