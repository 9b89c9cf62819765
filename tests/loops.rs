//! A daemon that is killed in the middle of a batch of tools goes on with the siblings that were
//! done: the real program, and tools that are real children.

mod support;

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
};

use serde_json::json;
use support::{Daemon, eventually, send, when};

/// Each child writes that it began and that it ended, and rings; a slow one waits at its gate.
const BLUEPRINT: &str = r#"
local swarm = require("swarm")
local s = swarm.schema
local CHILD = [[
echo "start $1" >> "$2/ledger"
echo "start $1" > "$2/bell"
if [ "$3" = slow ]; then read line < "$2/gate-$1"; fi
echo "end $1" >> "$2/ledger"
printf '{"said":"%s"}' "$1"
echo "end $1" > "$2/bell"
]]
return swarm.blueprint {
  name = "loop",
  agents = {
    it = { operator = "model", prompt = "go", tools = { "child", "below" } },
    below = { operator = "model", tools = { "child" } },
    child = { operator = "process", timeout = "10m",
      input = s.object { name = s.string, dir = s.string, pace = s.string },
      command = { "sh", "-c", CHILD, "child", "{{ name }}", "{{ dir }}", "{{ pace }}" } },
  },
  flow = function(ctx, input) return ctx:run("it", input) end,
}
"#;

/// The pipe that children ring, and the gates that the slow ones wait at.
struct Pipes {
    bell: BufReader<std::fs::File>,
}

impl Pipes {
    fn lay(dir: &Path, gates: &[&str]) -> Self {
        let fifo = |name: &str| {
            let path = dir.join(name);
            assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
            // Open for both, so that nobody waits for a reader or a writer.
            std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap()
        };
        gates.iter().for_each(|gate| drop(fifo(gate)));
        Self { bell: BufReader::new(fifo("bell")) }
    }

    /// Waits until all of these have rung, in any order.
    fn wait(&mut self, rings: &[&str]) {
        let mut left: Vec<&str> = rings.to_vec();
        while !left.is_empty() {
            let mut line = String::new();
            self.bell.read_line(&mut line).unwrap();
            left.retain(|ring| *ring != line.trim());
        }
    }
}

fn open_gate(dir: &Path, gate: &str) {
    use std::io::Write as _;
    let path = dir.join(gate);
    let mut gate = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    gate.write_all(b"open\n").unwrap();
    // Whoever reads it has it before this end is closed.
    std::mem::forget(gate);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_in_the_middle_of_a_batch_goes_on_with_the_siblings_that_were_done() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().canonicalize().unwrap();
    let data = dir.join("data");
    std::fs::create_dir(&data).unwrap();
    let call = |name: &str, pace: &str| json!({ "name": "child", "arguments": { "name": name, "dir": dir, "pace": pace } });
    let turns = json!({
        "it": [
            { "calls": [call("one", "fast"), call("two", "slow"),
                { "name": "below", "arguments": { "input": "go" } }] },
            "all done",
        ],
        "below": [
            { "calls": [call("three", "fast"), call("four", "slow")] },
            "done below",
        ],
    });
    let file = dir.join("turns.json");
    std::fs::write(&file, turns.to_string()).unwrap();
    let config = format!("[operators.model]\nkind = \"llm\"\napi = \"script\"\nturns = {file:?}\n");
    let toml = dir.join("swarm.toml");
    std::fs::write(&toml, config).unwrap();
    let flags = ["--config".as_ref(), toml.as_os_str()];
    let mut pipes = Pipes::lay(&dir, &["gate-two", "gate-four"]);

    let daemon = Daemon::start_with(&data, &flags);
    let files = json!({ "files": { "main.lua": BLUEPRINT } });
    let (status, stored) = send(daemon.put("/v1/blueprints/loop", &files)).await;
    assert_eq!(status, 200, "{stored}");
    let (status, run) = send(daemon.post("/v1/runs", &json!({ "blueprint": "loop" }))).await;
    assert_eq!(status, 201, "{run}");
    let run = run["id"].as_str().unwrap().to_owned();
    pipes.wait(&["end one", "end three", "start two", "start four"]);
    // What the children said is stored once the steps say so.
    let page = format!("/v1/runs/{run}/steps");
    eventually("two completed tool calls", async || {
        let (_, steps) = send(daemon.get(&page)).await;
        let calls = steps["items"].as_array().unwrap().iter();
        let done = calls.filter(|it| it["kind"] == "tool_call" && it["state"] == "completed");
        let count = done.count();
        when(count == 2, steps)
    })
    .await;
    daemon.kill();

    let daemon = Daemon::start_with(&data, &flags);
    pipes.wait(&["start two", "start four"]);
    open_gate(&dir, "gate-two");
    open_gate(&dir, "gate-four");
    let view = daemon.ended(&run).await;
    assert_eq!(
        (&view["status"], &view["output"]),
        (&json!("completed"), &json!("all done")),
        "{view}"
    );

    let ledger = std::fs::read_to_string(dir.join("ledger")).unwrap();
    let count = |line: &str| ledger.lines().filter(|it| *it == line).count();
    for name in ["one", "three"] {
        assert_eq!(count(&format!("start {name}")), 1, "{name} was done, and is not run again");
    }
    for name in ["two", "four"] {
        assert_eq!(count(&format!("start {name}")), 2, "{name} was under way, and is run again");
        assert_eq!(count(&format!("end {name}")), 1);
    }
    let (_, steps) = send(daemon.get(&page)).await;
    let steps = steps["items"].as_array().unwrap();
    let kinds = |kind: &str| steps.iter().filter(|step| step["kind"] == kind).count();
    assert_eq!((steps.len(), kinds("model_call"), kinds("tool_call")), (10, 4, 5), "{steps:#?}");
    let models = steps.iter().filter(|step| step["kind"] == "model_call");
    assert!(models.clone().all(|step| step["attempts"] == 1), "no model is asked twice");
}
