//! What stands in the documents runs: every snippet of Lua in docs and README, and the example of
//! every function in lua/manual.md.
//!
//! Each becomes a blueprint with a test, and all of them are one `moonswarm test`.

#[path = "../support/mod.rs"]
mod support;

mod contract;
mod links;

use std::{fs, path::Path};

use moonswarm::blueprint::manual;
use serde_json::Value;

use crate::support::Shell;

/// The agents that examples may name, if they declare none of their own.
const AGENTS: &str = r#"{
    planner = { operator = "echo" },
    coder = { operator = "echo" },
    reviewer = { operator = "echo" },
    tests = { operator = "echo" },
    writer = { operator = "echo" },
    double = { operator = "lua", fn = function(it) return { n = it.n * 2 } end },
    slow = { operator = "human" },
    broken = { operator = "process", command = { "false" } },
  }"#;
const HEAD: &str = "local swarm = require(\"swarm\")\nlocal s, n = swarm.schema, swarm.nodes\n";
const CHILD: &str = r#"local swarm = require("swarm")
return swarm.blueprint { name = "child", edition = 2, flow = function(_, input) return { got = input } end }
"#;
/// What the examples of tests are about.
const EXAMPLE: &str = r#"local swarm = require("swarm")
return swarm.blueprint {
  name = "example",
  edition = 2,
  agents = {
    reviewer = { operator = "echo" },
    ship = { operator = "human" },
    helper = { operator = "llm", tools = { { name = "add", fn = function(it) return it.a + it.b end } } },
  },
  flow = function(ctx, input)
    local rounds, last = 0, nil
    ctx:on_query("rounds", function() return rounds end)
    for round = 1, input.times do
      last = ctx:run("reviewer", { round = round, verdict = "echo" }).verdict
      rounds = round
    end
    local child = if input.child then ctx:call("child", 1) else nil
    local shipped = if input.ask then ctx:run("ship", { title = "Ship it?" }).approved else nil
    local signal = if input.wait then ctx:wait("go", { timeout = "2d" }) else nil
    local helped = if input.help then ctx:run("helper", input.help) else nil
    return { rounds = rounds, last = last, child = child, shipped = shipped, signal = signal, helped = helped }
  end,
}
"#;
/// An exported run of it, as far as a test reads one.
const RECORDED: &str = concat!(
    "{\"run\":{\"format\":\"moonswarm.run\",\"version\":1}}\n",
    "{\"entry\":{\"fact\":{\"step_recorded\":[{\"step\":1,\"kind\":\"task\",\"name\":\"reviewer\"},",
    "{\"completed\":{\"verdict\":\"recorded\"}}]}}}\n",
);
const CONFIG: &str = r#"
[operators.ci]
kind = "http"
url = "https://ci.example.com/hooks"
[operators.notify]
kind = "http"
url = "https://chat.example.com/hooks"
[operators.llm]
kind = "llm"
api = "script"
turns = "turns.json"
[operators.files]
kind = "mcp"
command = ["mcp-server-files"]
[operators.claude-code]
kind = "agent_cli"
profile = "claude-code"
[environments.sandbox]
network = "deny"
[secrets]
"#;

/// A snippet, and where it stands.
#[derive(Debug, PartialEq)]
struct Snippet {
    place: String,
    text: String,
}

/// The Lua blocks of a document.
fn snippets(name: &str, markdown: &str) -> Vec<Snippet> {
    let mut found = Vec::new();
    let mut block: Option<Snippet> = None;
    for (number, line) in (1..).zip(markdown.lines()) {
        match &mut block {
            None if line == "```lua" => {
                block =
                    Some(Snippet { place: format!("{name}:{}", number + 1), text: String::new() });
            }
            None => {}
            Some(_) if line == "```" => found.extend(block.take()),
            Some(snippet) => {
                snippet.text.push_str(line);
                snippet.text.push('\n');
            }
        }
    }
    found
}

/// What an example is expected to come to: the lines after `-->`.
fn expected(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| Some(line.split_once("-->")?.1.trim())).collect()
}

/// A directory with what examples need beside themselves.
fn desk() -> Shell {
    let shell = Shell::new();
    shell.write("child.lua", CHILD);
    shell.write("example.lua", EXAMPLE);
    shell.write("run.jsonl", RECORDED);
    shell.write("moonswarm.toml", CONFIG);
    shell.write("turns.json", fs::read(support::repository("blueprints/turns.json")).unwrap());
    shell.write("agents/reviewer.md", "---\nname: reviewer\n---\nYou review.\n");
    shell.write("review-loop.lua", contract::REVIEW_LOOP);
    shell
}

/// The input of a document's blueprint, and what its agents answer, where it cannot do without.
fn told(place: &str) -> (&'static str, &'static str) {
    match place.split(':').next() {
        Some("README.md") => (
            "{ version = \"1.2.0\" }",
            "run:mock(\"tests\", { exit_code = 0 })\n  run:mock(\"notes\", { text = \"new\" })\n  run:mock(\"publish\", { stdout = \"published\" })",
        ),
        Some("quickstart.md" | "blueprints.md") => {
            ("{}", "run:mock(\"today\", { exit_code = 0, stdout = \"Monday\\n\", stderr = \"\" })")
        }
        Some("coding-agents.md") => ("{ task = \"mend it\" }", "run:mock(\"coder\", \"done\")"),
        Some("operators.md") => ("{}", "run:mock(\"coder\", \"done\")"),
        Some("response-loop.md") => ("{}", "run:mock(\"librarian\", \"It is in src/lib.rs.\")"),
        _ => ("{}", ""),
    }
}

/// Writes a blueprint and the test that runs it to its end.
fn put(shell: &Shell, number: usize, place: &str, blueprint: &str, check: &str) {
    let file = format!("s{number:03}.lua");
    let (input, answers) = told(place);
    shell.write(&file, blueprint);
    let test = format!(
        r#"local t = require("swarm.test")
local swarm = require("swarm")
t.test([==[{place}]==], function()
  t.blueprint("child.lua")
  local run = t.start("{file}", {input})
  {answers}
  run:mock("broken", t.failure {{ kind = "worker", message = "no" }})
  for _ = 1, 9 do
    run:answer("approve", {{ approved = true }})
    run:answer("ship", {{ approved = true }})
  end
  {check}
end)
"#
    );
    shell.write(format!("s{number:03}_test.lua"), test);
}

/// The Lua that holds a run against what is expected of it.
fn check_of(expected: &[&str]) -> String {
    match expected {
        [] => "run:finish()".to_owned(),
        ["null"] => "t.equal(run:finish(), nil)".to_owned(),
        [one] => match one.strip_prefix("fails ") {
            Some(kind) => format!("run:fails(\"{kind}\")"),
            None => format!("t.equal(run:finish(), swarm.json.decode([==[{one}]==]))"),
        },
        more => panic!("more than one expectation: {more:?}"),
    }
}

fn with_flow(code: &str) -> String {
    format!(
        "{HEAD}return swarm.blueprint {{\n  name = \"snippet\",\n  edition = 2,\n  agents = {AGENTS},\n  flow = function(ctx, input)\n{code}\n  end,\n}}\n"
    )
}

/// A blueprint of some of its keys, as documents show them.
fn with_keys(keys: &str) -> String {
    let has = |key: &str| keys.lines().any(|line| line.starts_with(&format!("{key} = ")));
    let keys = keys.trim_end();
    let comma = if keys.ends_with(',') { "" } else { "," };
    let agents = if has("agents") { String::new() } else { format!("  agents = {AGENTS},\n") };
    let flow = if has("flow") { "" } else { "  flow = function() end,\n" };
    format!(
        "{HEAD}return swarm.blueprint {{\n  name = \"snippet\",\n  edition = 2,\n{agents}{flow}{keys}{comma}\n}}\n"
    )
}

/// Whether a snippet is keys of a blueprint and not code.
fn is_keys(text: &str) -> bool {
    let keys = ["agents", "flow", "input", "limits", "middleware", "on", "output"];
    text.lines().next().is_some_and(|line| {
        line.split_once(" = ")
            .is_some_and(|(key, rest)| keys.contains(&key) && rest.starts_with('{'))
    })
}

/// Runs all tests on the desk; the message has whatever failed.
fn all_pass(shell: &Shell, count: usize) {
    let done = shell.command(&["test", "."]).env_remove("CI").output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    let failed: Vec<_> = out.lines().filter(|line| !line.starts_with("ok ")).collect();
    assert!(done.status.success(), "{}\n{err}", failed.join("\n"));
    assert!(err.contains(&format!("{count} passed")), "{count} were written: {err}");
}

#[test]
fn the_example_of_every_function_gives_what_it_says() {
    let shell = desk();
    let entries = manual::entries();
    for (number, entry) in entries.iter().enumerate() {
        let (name, code) = (entry.name, entry.example);
        let of = name.rsplit_once(['.', ':']).unwrap().0;
        let expected = expected(code);
        if code.contains("swarm.blueprint {") {
            put(&shell, number, name, code, "run:finish()");
        } else if code.contains("swarm.test\")") {
            shell.write(format!("s{number:03}_test.lua"), code);
        } else if matches!(of, "swarm.test" | "run") {
            let test = format!(
                "local t = require(\"swarm.test\")\nt.test(\"{name}\", function()\n{code}\nend)\n"
            );
            shell.write(format!("s{number:03}_test.lua"), test);
        } else if of == "swarm.schema" {
            let schema = code.split("-->").next().unwrap();
            let blueprint = with_keys(&format!(
                "output = {schema},\ninput = {{ type = \"object\" }},\nflow = function(ctx, input) return input.value end,\n"
            ));
            let tries = expected.iter().map(|line| {
                let (what, value) = line.split_once(' ').unwrap();
                let start = format!("t.start(\"s{number:03}.lua\", {{ value = swarm.json.decode([==[{value}]==]) }})");
                match what {
                    "takes" => format!("{start}:finish()\n"),
                    "refuses" => format!("{start}:fails()\n"),
                    other => panic!("{name}: {other}"),
                }
            });
            assert!(expected.len() >= 2, "{name} takes and refuses something");
            put(&shell, number, name, &blueprint, &tries.collect::<String>());
        } else if of == "swarm.nodes" {
            let node = code.split("-->").next().unwrap().trim_end();
            put(&shell, number, name, &with_keys(&format!("flow = {node},")), &check_of(&expected));
        } else {
            assert_eq!(expected.len(), 1, "{name} says what it comes to");
            put(&shell, number, name, &with_flow(code), &check_of(&expected));
        }
    }
    all_pass(&shell, entries.len());
}

#[test]
fn every_snippet_in_the_documents_runs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let docs = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let shell = desk();
    let (mut number, mut checked) = (0, 0);
    for file in docs.chain([root.join("README.md")]) {
        // These show what is wrong on purpose, or files of the repository; they have tests of their own.
        let apart = ["errors.md", "findings.md", "cookbook.md"].iter().any(|it| file.ends_with(it));
        if apart || file.extension().is_none_or(|it| it != "md") {
            continue;
        }
        let name = file.file_name().unwrap().to_str().unwrap();
        for snippet in snippets(name, &fs::read_to_string(&file).unwrap()) {
            let (place, text) = (&snippet.place, &snippet.text);
            number += 1;
            if text.contains("swarm.test\")") {
                shell.write(format!("s{number:03}_test.lua"), text);
            } else if text.contains("swarm.blueprint {") {
                put(&shell, number, place, text, &check_of(&expected(text)));
            } else if is_keys(text) {
                // What it needs of the machine is not the document's to say.
                shell.write("keys.lua", with_keys(text));
                let done = shell.run(&["check", "keys.lua", "--json"]);
                let findings = done.json();
                let serious = |it: &&Value| it["severity"] == "error" && it["code"] != "MS-B027";
                let found: Vec<_> = findings.as_array().unwrap().iter().filter(serious).collect();
                assert!(found.is_empty(), "{place}: {found:#?}");
                checked += 1;
                continue;
            } else {
                put(&shell, number, place, &with_flow(text), &check_of(&expected(text)));
            }
        }
    }
    assert!(checked >= 5, "only {checked} snippets of keys");
    fs::remove_file(shell.path("keys.lua")).unwrap();
    all_pass(&shell, number - checked);
}

#[test]
fn the_examples_of_the_documents_are_the_files_that_they_name() {
    let read = |path: &str| fs::read_to_string(support::repository(path)).unwrap();
    let shown = |document: &str, file: &str| {
        let (document, source) = (read(document), read(file));
        assert!(document.contains(&format!("```lua\n{source}```")), "{file} is shown as it is");
    };
    shown("README.md", "blueprints/release.lua");
    shown("docs/quickstart.md", "blueprints/hello.lua");
    shown("docs/blueprints.md", "blueprints/hello.lua");
    let recipes = fs::read_dir(support::repository("blueprints/cookbook")).unwrap();
    let mut count = 0;
    for path in recipes.map(|entry| entry.unwrap().path()) {
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.ends_with(".lua") && !name.ends_with("_test.lua") {
            shown("docs/cookbook.md", &format!("blueprints/cookbook/{name}"));
            count += 1;
        }
    }
    assert!(count >= 12, "only {count} recipes");
}

#[test]
fn the_words_of_the_crate_are_in_the_glossary_of_the_documents() {
    let read = |path: &str| fs::read_to_string(support::repository(path)).unwrap();
    let (lib, glossary) = (read("src/lib.rs"), read("docs/concepts.md"));
    let (_, words) = lib.split_once("//! # Glossary").unwrap();
    let words: Vec<_> = words.split("```").next().unwrap().split("**").skip(1).step_by(2).collect();
    assert!(words.len() > 20, "{words:?}");
    for word in words {
        assert!(glossary.contains(&format!("**{word}**")), "docs/concepts.md has no {word}");
    }
}

#[test]
fn the_recipes_have_no_findings_and_their_tests_pass_also_after_crashes() {
    let shell = Shell::new();
    let recipes = support::repository("blueprints/cookbook");
    let recipes = recipes.to_str().unwrap();
    shell.run(&["check", recipes]).ok().says(&["no findings"]);
    shell.run(&["test", "--crash", recipes]).ok().says(&["0 failed"]);
}

#[test]
fn every_blueprint_of_the_repository_passes_as_it_is() {
    let shell = Shell::new();
    for dir in ["blueprints", "blueprints/gallery"] {
        let dir = support::repository(dir);
        shell.run(&["check", dir.to_str().unwrap()]).ok();
    }
}

#[test]
fn a_block_of_lua_is_found_with_its_place_and_what_it_is_to_come_to() {
    let text = "```lua\nreturn 1 --> 1\n```\n```sh\nls\n```\n";
    let found = snippets("x.md", text);
    assert_eq!(found, [Snippet { place: "x.md:2".into(), text: "return 1 --> 1\n".into() }]);
    assert_eq!(expected(&found[0].text), ["1"]);
    assert!(is_keys("on = {\n}") && !is_keys("local x = { 1 }") && !is_keys("f(x)"));
}
