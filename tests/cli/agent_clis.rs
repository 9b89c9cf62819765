//! Command lines of coding agents as operators. Programs that print the documented streams stand in
//! for them: each writes its arguments and its stdin to files beside it.

use std::{fs, os::unix::fs::PermissionsExt as _};

use serde_json::{Value, json};

use crate::support::Shell;

/// A flow of one agent `a` that runs it for each item of its input, in one session.
fn flow(agent: &str) -> String {
    format!(
        r#"local swarm = require("swarm") local s = swarm.schema
return swarm.blueprint {{ name = "b", description = "d",
  agents = {{ a = {{ operator = "cli", prompt = "Say {{{{ directive }}}}.", {agent} }} }},
  flow = function(ctx, input)
    local said = {{}}
    for _, word in ipairs(input.words) do
      said[#said + 1] = ctx:run("a", word, {{ session = input.session }})
    end
    return said
  end }}"#
    )
}

struct Stage(Shell);

impl Stage {
    /// A program that prints these lines, and an operator `cli` that runs it.
    fn new(profile: &str, lines: &[Value], exit: u8, more: &str) -> Self {
        let shell = Shell::new();
        let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
        shell.write("lines", lines.join("\n") + "\n");
        let here = shell.path("");
        let here = here.display();
        let script = format!(
            "#!/bin/sh\nprintf '%s\\n' \"$@\" > {here}/args\ncat > {here}/stdin\necho a notice\n\
             cat {here}/lines\necho trouble >&2\nexit {exit}\n"
        );
        let program = shell.write("agent", script);
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let config = format!(
            "[operators.cli]\nkind = \"agent_cli\"\nprofile = {profile}\nprogram = \"{}\"\n{more}",
            program.display()
        );
        shell.write("moonswarm.toml", config);
        Self(shell)
    }

    fn flow(self, agent: &str) -> Self {
        self.0.write("b.lua", flow(agent));
        self
    }

    /// Runs the flow. Returns the run as JSON.
    fn run(&self, words: &[&str], exit: i32) -> Value {
        let input = json!({"words": words, "session": "talk"}).to_string();
        self.0.run(&["check", "b.lua"]).ok();
        self.0.run(&["run", "b.lua", "-i", &input, "--json"]).exits(exit).json()
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.0.path(file)).unwrap()
    }

    fn args(&self) -> Vec<String> {
        self.read("args").lines().map(str::to_owned).collect()
    }
}

fn claude(result: Value) -> Vec<Value> {
    vec![
        json!({"type": "system", "subtype": "init", "session_id": "c-1", "model": "m"}),
        json!({"type": "assistant", "session_id": "c-1", "message": {"content": [
            {"type": "tool_use", "id": "t", "name": "Read", "input": {"file_path": "a"}}]}}),
        json!({"type": "assistant", "session_id": "c-1", "message": {"content": [
            {"type": "text", "text": "working"}]}}),
        result,
    ]
}

fn claude_done(text: &str) -> Vec<Value> {
    claude(json!({"type": "result", "subtype": "success", "is_error": false, "result": text,
        "session_id": "c-1", "num_turns": 2, "total_cost_usd": 0.0125,
        "usage": {"input_tokens": 10, "output_tokens": 4, "cache_read_input_tokens": 3,
            "cache_creation_input_tokens": 2}}))
}

#[test]
fn claude_code_gets_its_flags_and_its_stream_is_a_result_with_usage() {
    let more = "model = \"sonnet\"\nallowed_tools = [\"Read\"]\nmax_turns = 5\n";
    let stage =
        Stage::new("\"claude-code\"", &claude_done("moon"), 0, more).flow("system = 'Be brief.'");
    let run = stage.run(&["one", "two"], 0);
    assert_eq!(run["output"], json!(["moon", "moon"]));
    assert_eq!(run["usage"]["total"]["cost"], "0.0250", "{run}");
    assert_eq!(
        (&run["usage"]["total"]["input_tokens"], &run["usage"]["total"]["cached_tokens"]),
        (&json!(30), &json!(6)),
        "tokens of a cache are part of the input"
    );
    // The second call goes on with the conversation of the first.
    let expected = "-p --output-format stream-json --verbose --model sonnet \
                    --append-system-prompt Be brief. --allowedTools Read --max-turns 5 --resume c-1";
    assert_eq!(stage.args().join(" "), expected);
    assert_eq!(stage.read("stdin"), "Say two.");
}

#[test]
fn a_system_prompt_that_begins_with_a_list_is_no_flag_and_a_model_that_would_be_one_is_refused() {
    let stage =
        Stage::new("\"claude-code\"", &claude_done("moon"), 0, "").flow("system = '- Be brief.'");
    assert_eq!(stage.run(&["it"], 0)["output"], json!(["moon"]));
    let args = stage.args();
    let at = args.iter().position(|word| word == "--append-system-prompt").unwrap();
    assert_eq!(args[at + 1..at + 3], ["", "- Be brief."]);
    let flag = "model = '--dangerously-skip-permissions'";
    let refused = Stage::new("\"claude-code\"", &[], 0, "").flow(flag).run(&["it"], 1);
    assert_eq!(refused["error"]["kind"], "refused", "{refused}");
}

#[test]
fn an_output_with_a_schema_is_asked_for_and_read() {
    let answer = "Here it is:\n```json\n{\"n\": 7}\n```";
    let stage = Stage::new("\"claude-code\"", &claude_done(answer), 0, "")
        .flow("output = s.object { n = s.integer }");
    assert_eq!(stage.run(&["it"], 0)["output"], json!([{"n": 7}]));
    assert!(stage.read("stdin").contains("JSON Schema"), "{}", stage.read("stdin"));
    let wrong = Stage::new("\"claude-code\"", &claude_done("seven"), 0, "")
        .flow("output = s.object { n = s.integer }");
    assert_eq!(wrong.run(&["it"], 1)["error"]["kind"], "invalid_result");
}

#[test]
fn each_end_of_claude_code_is_a_failure_of_its_own() {
    let turns = json!({"type": "result", "subtype": "error_max_turns", "is_error": true,
        "session_id": "c-1", "usage": {"input_tokens": 1, "output_tokens": 1}});
    let broken = json!({"type": "result", "subtype": "error_during_execution", "is_error": true,
        "result": "the model is overloaded"});
    for (lines, exit, kind, code, says) in [
        (claude(turns), 1, "limit", 10, "maximum of turns"),
        (claude(broken), 1, "model", 1, "overloaded"),
        (vec![], 1, "process", 1, "trouble"),
        (vec![], 0, "process", 1, "without a result"),
    ] {
        let stage = Stage::new("\"claude-code\"", &lines, exit, "").flow("");
        let run = stage.run(&["it"], code);
        assert_eq!(run["error"]["kind"], kind, "{run}");
        let message = run["error"]["message"].as_str().unwrap();
        assert!(message.contains(says), "{message}");
    }
}

#[test]
fn codex_and_gemini_speak_their_own_streams() {
    let codex = [
        json!({"type": "thread.started", "thread_id": "th_1"}),
        json!({"type": "turn.started"}),
        json!({"type": "item.started", "item": {"id": "0", "type": "command_execution", "command": "ls"}}),
        json!({"type": "item.completed", "item": {"id": "1", "type": "agent_message", "text": "sun"}}),
        json!({"type": "turn.completed",
            "usage": {"input_tokens": 9, "cached_input_tokens": 2, "output_tokens": 5}}),
    ];
    let stage = Stage::new("\"codex\"", &codex, 0, "permissions = \"accept-edits\"\n")
        .flow("system = 'Be brief.'");
    let run = stage.run(&["one", "two"], 0);
    assert_eq!(run["output"], json!(["sun", "sun"]));
    assert_eq!(
        (&run["usage"]["total"]["input_tokens"], &run["usage"]["total"]["output_tokens"]),
        (&json!(9), &json!(5)),
        "each turn reports the sum of the conversation"
    );
    let expected = "exec --sandbox workspace-write resume th_1 --json --skip-git-repo-check -";
    assert_eq!(stage.args().join(" "), expected);
    assert_eq!(stage.read("stdin"), "Be brief.\n\nSay two.", "it has no flag for a system prompt");
    let failed = [json!({"type": "turn.failed", "error": {"message": "no quota"}})];
    let failed = Stage::new("\"codex\"", &failed, 1, "").flow("").run(&["it"], 1);
    assert_eq!(failed["error"]["kind"], "model", "{failed}");

    let gemini = [
        json!({"type": "init", "session_id": "g-1", "model": "m"}),
        json!({"type": "message", "role": "user", "content": "Say it."}),
        json!({"type": "message", "role": "assistant", "content": "I look.", "delta": true}),
        json!({"type": "tool_use", "tool_name": "read_file", "tool_id": "t", "parameters": {}}),
        json!({"type": "tool_result", "tool_id": "t", "status": "success", "output": "x"}),
        json!({"type": "message", "role": "assistant", "content": "st", "delta": true}),
        json!({"type": "message", "role": "assistant", "content": "ar", "delta": true}),
        json!({"type": "result", "status": "success",
            "stats": {"input_tokens": 7, "output_tokens": 3, "cached": 1}}),
    ];
    let stage = Stage::new("\"gemini\"", &gemini, 0, "").flow("");
    let run = stage.run(&["it"], 0);
    assert_eq!(run["output"], json!(["star"]));
    assert_eq!(run["usage"]["total"]["cached_tokens"], 1, "{run}");
}

#[test]
fn a_profile_of_ones_own_has_its_flags_in_the_configuration() {
    let profile = "{ program = \"x\", args = [\"run\"], model = [\"-m\", \"{}\"], last = [\"-\"] }";
    let lines = [json!("an answer")];
    let stage = Stage::new(profile, &lines, 0, "model = \"big\"\n").flow("");
    assert_eq!(stage.run(&["it"], 0)["output"], json!(["a notice\n\"an answer\""]));
    assert_eq!(stage.args().join(" "), "run -m big -");
    let unknown = Stage::new("\"cursor\"", &lines, 0, "").flow("");
    let refused = unknown.0.run(&["check", "b.lua"]).exits(2);
    assert!(refused.stderr.contains("there are claude-code, codex, gemini"), "{}", refused.stderr);
}

#[test]
fn permissions_are_skipped_within_an_environment_only() {
    let more = "permissions = \"skip\"\n";
    let stage = Stage::new("\"claude-code\"", &claude_done("moon"), 0, more).flow("");
    let refused = stage.run(&["it"], 1);
    assert_eq!(refused["error"]["kind"], "refused", "{refused}");
    assert!(!stage.0.path("args").exists(), "it was not started");
}
