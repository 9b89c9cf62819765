//! Agents as Markdown files, as they are found elsewhere.

use std::{collections::BTreeMap, fs};

use serde_json::{Value, json};

use crate::support::{Shell, repository};

/// Files that are refused, with the key that is why.
const REFUSED: [(&str, &str); 3] =
    [("hooked.md", "hooks"), ("servers.md", "mcpServers"), ("broken.md", "")];

/// Copies the folder of agents, without those that are refused.
fn wild(shell: &Shell, with_refused: bool) {
    let from = repository("tests/agents");
    for dir in ["", "team"] {
        for entry in fs::read_dir(from.join(dir)).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let refused = REFUSED.iter().any(|(file, _)| *file == name);
            if entry.file_type().unwrap().is_file() && (with_refused || !refused) {
                let text = fs::read(entry.path()).unwrap();
                shell.write(format!("wild/{dir}/{name}"), text);
            }
        }
    }
}

/// What becomes of each key, by file and key.
fn standings(report: &Value) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for file in report.as_array().unwrap() {
        let path = file["file"].as_str().unwrap().rsplit('/').next().unwrap();
        for key in file["keys"].as_array().unwrap() {
            let reason = key["reason"].as_str().unwrap();
            assert!(reason.len() > 10, "{key}");
            let standing = key["standing"].as_str().unwrap().to_owned();
            all.insert(format!("{path} {}", key["key"].as_str().unwrap()), standing);
        }
    }
    all
}

#[test]
fn what_becomes_of_each_key_is_said_with_the_reason_and_what_runs_things_is_refused() {
    let shell = Shell::new();
    wild(&shell, true);
    let done = shell.run(&["agents", "import", "wild", "--json", "--dry-run"]).ok();
    let report = done.json();
    let all = standings(&report);
    for (key, standing) in [
        ("code-reviewer.md name", "enforced"),
        ("code-reviewer.md tools", "advisory"),
        ("debugger.md permissionMode", "advisory"),
        ("planner.md disallowedTools", "advisory"),
        ("hooked.md hooks", "refused"),
        ("servers.md mcpServers", "refused"),
        ("Security Auditor.md handoffs", "advisory"),
        ("docs-writer.md permission", "advisory"),
        ("release-manager.md sla", "advisory"),
        ("gpu-trainer.md labels", "enforced"),
    ] {
        assert_eq!(all.get(key).map(String::as_str), Some(standing), "{key}");
    }
    let done = done.says(&["README.md: no agent", " taken in, 3 refused:"]);
    assert!(!shell.path("agents").exists(), "nothing was written: {done:?}");
    let shown = shell.run(&["agents", "import", "wild/hooked.md", "--verbose"]).exits(3);
    let part = "hooks: refused: its commands would run on this host";
    assert!(shown.stdout.contains(part), "{shown:?}");
    let shown = shown.says(&["MS-B062", "hooked.md:4:1", "0 taken in, 1 refused:"]);
    assert!(!shell.path("agents").exists(), "{shown:?}");
    let shown = shell.run(&["agents", "import", "wild/planner.md", "--dry-run"]).ok();
    let part = "disallowedTools: advisory: left out, and so it may use more than there";
    assert!(shown.stdout.contains(part), "{shown:?}");
}

#[test]
fn a_folder_of_agents_goes_in_and_out_and_in_again_as_it_was() {
    let shell = Shell::new();
    wild(&shell, false);
    shell.run(&["agents", "import", "wild"]).ok().says(&["wrote 12 agent(s)", "require"]);
    shell.write(
        "team.lua",
        "local swarm = require(\"swarm\")\nreturn swarm.blueprint { name = \"team\", agents = require(\"./agents\"),\n\
         flow = function(ctx, input) return ctx:run(input.agent) end }\n",
    );
    shell.run(&["check", "team.lua"]).ok().says(&["no findings"]);
    shell.run(&["agents", "export", "team.lua", "--into", "out"]).ok();
    let texts = |dir: &str| -> BTreeMap<String, String> {
        let entries = fs::read_dir(shell.path(dir)).unwrap().map(Result::unwrap);
        let named = entries.map(|entry| {
            let name = entry.file_name().into_string().unwrap();
            (name, fs::read_to_string(entry.path()).unwrap())
        });
        named.collect()
    };
    let imported = texts("agents");
    assert_eq!(texts("out"), imported);
    shell.run(&["agents", "import", "out", "--into", "again"]).ok();
    assert_eq!(texts("again"), imported);
    assert_eq!(imported.len(), 12);
    assert!(imported["security-auditor.md"].contains("\"web/fetch\""), "{imported:#?}");
    assert!(imported["docs-writer.md"].contains("[\"write\",\"edit\"]"), "{imported:#?}");
    assert!(imported["code-reviewer.md"].contains("Bash(git diff:*, git log:*)"));
    assert!(imported["translator.md"].contains("„so“ bleibt „so“"));
    let report = shell.run(&["agents", "import", "out", "--dry-run", "--json"]).ok().json();
    assert!(report.as_array().unwrap().iter().all(|it| it["findings"] == json!([])));
}

#[test]
fn what_is_good_is_taken_in_and_the_second_agent_of_a_name_is_named_with_a_way_out() {
    let shell = Shell::new();
    shell.write("in/kit/agents/a.md", "---\nname: reviewer\n---\nA");
    shell.write("in/tools/agents/b.md", "---\nname: Reviewer!\n---\nB");
    shell.write("in/tools/agents/c.md", "---\nname: writer\n---\nC");
    let done = shell.run(&["agents", "import", "in"]).ok().says(&[
        "wrote 2 agent(s)",
        "2 taken in, 1 refused:",
        "b.md: in/kit/agents/a.md is the agent `reviewer` already; --prefix would call it `tools-reviewer`",
    ]);
    assert!(!done.stdout.contains("enforced"), "{done:?}");
    assert!(shell.path("agents/writer.md").is_file());
    let args = ["agents", "import", "in", "--prefix", "--into", "both"];
    shell.run(&args).ok().says(&["wrote 3 agent(s)"]);
    for name in ["kit-reviewer", "tools-reviewer", "writer"] {
        assert!(shell.path(&format!("both/{name}.md")).is_file(), "{name}");
    }
}

#[test]
fn braces_in_the_text_of_an_agent_stay_as_they_are() {
    let shell = Shell::new();
    let text = "---\nname: hr\ndescription: Writes offers.\n---\nDear {{CompanyName}}, {% if %} ${{ secrets.X }} style={{a:1}}\n";
    shell.write("wild/hr.md", text);
    let import = ["agents", "import", "wild", "--operator", "echo"];
    let said = shell.run(&import).ok().stdout;
    assert!(said.contains("text: literal: 4 `{{` or `{%` stay as they are"), "{said}");
    let team = |edition: &str| {
        format!(
            "local swarm = require(\"swarm\")\nreturn swarm.blueprint {{ name = \"team\", {edition}agents = require(\"./agents\"),\n\
             flow = function(ctx, input) return ctx:run(\"hr\") end }}\n"
        )
    };
    shell.write("team.lua", team("edition = 2, "));
    let notes = shell.run(&["check", "team.lua", "--json"]).ok().json();
    assert_eq!(notes[0]["code"], "MS-B052");
    let run = shell.run(&["run", "team.lua", "--json"]).ok().json();
    assert_eq!(run["output"], serde_json::json!({}));
    // As a blueprint of edition 1 has it, it is a template, and the finding is in the file itself.
    shell.write("team.lua", team(""));
    let findings = shell.run(&["check", "team.lua", "--json"]).exits(3).json();
    assert_eq!(findings[0]["code"], "MS-B050");
    assert_eq!(findings[0]["file"], "agents/hr.md");
}

#[test]
fn agents_with_labels_are_for_the_queue_that_is_named_or_else_for_the_one_that_exists() {
    let shell = Shell::new();
    shell.write("moonswarm.toml", "[operators.builds]\nkind = \"queue\"\n");
    shell.write("in/a.md", "---\nname: a\nlabels:\n  gpu: \"true\"\n---\nA");
    shell.write("in/b.md", "---\nname: b\n---\nB");
    let import = |operator: &str, into: &str| {
        let args = ["agents", "import", "in", "--operator", operator, "--into", into];
        let done = shell.run(&args).ok();
        (done, fs::read_to_string(shell.path(&format!("{into}.lua"))).unwrap())
    };
    let (_, list) = import("builds", "own");
    assert_eq!(list.matches("operator = \"builds\"").count(), 2, "{list}");
    let (done, list) = import("echo", "other");
    for operator in ["queue", "echo"] {
        assert!(list.contains(&format!("operator = \"{operator}\"")), "{list}");
    }
    done.says(&["1 with labels: for the operator `queue`"]);
}

#[test]
fn a_file_that_cannot_be_read_is_listed_and_what_is_there_already_stops_the_whole_import() {
    let shell = Shell::new();
    shell.write("in/a.md", "---\nname: a\n---\nA");
    shell.write("in/b.md", b"\xff\xfe");
    let done = shell.run(&["agents", "import", "in", "--into", "team.v2"]).ok();
    done.says(&["1 taken in, 1 refused:", "b.md: cannot be read: it is not UTF-8 text"]);
    shell.write(
        "team.lua",
        "local swarm = require(\"swarm\")\nreturn swarm.blueprint { name = \"team\", agents = require(\"./team.v2\"),\n\
         flow = function(ctx, input) return ctx:run(\"a\", input) end }\n",
    );
    shell.run(&["check", "team.lua"]).ok().says(&["no findings"]);
    shell.write("more/c.md", "---\nname: c\n---\nC");
    let again = shell.run(&["agents", "import", "more", "--into", "team.v2"]).exits(6);
    again.says(&["team.v2.lua is already there, and differs"]);
    assert!(!shell.path("team.v2/c.md").exists(), "nothing is written");
    for into in [".", "..", "team.lua"] {
        let wrong = shell.run(&["agents", "import", "more", "--into", into]).exits(2);
        wrong.says(&["names no directory", "--into agents"]);
    }
    assert!(!shell.path("c.md").exists(), "nothing is written");
}
