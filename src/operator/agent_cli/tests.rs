use std::{fs, sync::Arc};

use serde_json::{Value, json};

use super::AgentCliSettings;
use crate::{
    environment::Config,
    middleware::Short,
    operator::{
        Backend, Builtin, Reply, Settings as _, Task,
        fixture::{Attempt, environments},
    },
    protocol::{
        Json, OperatorId, Scope, StateStore as _, WorkflowId, failure::kind,
        test_utils::InMemoryStore,
    },
};

fn settings(toml: &str) -> AgentCliSettings {
    toml::from_str(toml).unwrap()
}

/// Returns an operator whose program prints these lines, in which `$KEY` is its key.
fn prints(key: &str, lines: &[Value]) -> (tempfile::TempDir, Arc<dyn Backend>) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("key");
    fs::write(&file, key).unwrap();
    let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
    let script = format!("cat >&2; cat <<END\n{}\nEND", lines.join("\n"));
    let settings = settings(&format!(
        "profile = {{ program = \"sh\", args = [\"-c\", {script:?}], stream = \"claude-code\" }}\n\
         env = {{ KEY = {{ file = {file:?} }} }}"
    ));
    let alone = Builtin::alone(Config::default());
    let builtin = Builtin { environments: environments(), ..alone };
    (dir, settings.build(&builtin))
}

/// Returns the end of an attempt that fails.
async fn fails(cli: &dyn Backend, task: Arc<Task>) -> Short {
    match cli.execute(task, json!("hi").into()).await {
        Ok(Reply::Short(short)) => *short,
        other => panic!("it is no failure of a program: {other:?}"),
    }
}

/// Returns a task of the session `talk`.
fn talk() -> Task {
    let mut task = Arc::into_inner(Attempt::new().task()).unwrap();
    task.opts.session = Some("talk".to_owned());
    task
}

#[tokio::test]
async fn nothing_that_a_program_says_of_its_key_is_passed_on() {
    let (_dir, cli) = prints(
        "canary-815",
        &[
            json!({ "type": "assistant", "message": { "content": [
                { "type": "text", "text": "I try $KEY." },
                { "type": "tool_use", "name": "Bash", "input": { "command": "login $KEY" } },
            ] } }),
            json!({ "type": "result", "is_error": true, "result": "invalid key $KEY" }),
        ],
    );
    let attempt = Attempt::new();
    let heard = attempt.heard();
    let Short { failure, .. } = fails(&*cli, attempt.task()).await;
    assert!(failure.is(kind::MODEL), "{failure}");
    assert_eq!(failure.message, "`sh` failed: invalid key [secret KEY]");
    let said = format!("{:?} {:?}", heard.deltas(), heard.progress());
    assert_eq!(said.matches("[secret KEY]").count(), 2, "{said}");
    assert!(!said.contains("canary"), "{said}");
}

#[tokio::test]
async fn what_a_program_used_before_it_failed_is_reported_with_the_tokens_of_its_cache() {
    let usage = json!({ "input_tokens": 10, "output_tokens": 4, "cache_read_input_tokens": 300,
        "cache_creation_input_tokens": 20 });
    for subtype in ["error_max_turns", "error_during_execution"] {
        let result = json!({ "type": "result", "subtype": subtype, "is_error": true,
            "total_cost_usd": 1.5, "usage": usage });
        let (_dir, cli) = prints("canary-815", &[result]);
        let used = fails(&*cli, Attempt::new().task()).await.usage.unwrap();
        assert_eq!((used.input_tokens, used.cached_tokens), (Some(330), Some(300)), "{subtype}");
        assert_eq!((used.output_tokens, used.cost.as_deref()), (Some(4), Some("1.5")));
    }
}

#[tokio::test]
async fn an_id_from_the_state_is_no_flag() {
    let cli = settings("profile = \"codex\"").cli();
    let flag = "--dangerously-bypass-approvals-and-sandbox";
    let ids =
        [json!(flag), json!({ "id": flag }), json!("-x"), json!("a b"), json!("/a"), json!("")];
    for (kept, goes_on) in ids.map(|id| (id, false)).into_iter().chain([(json!("th_1"), true)]) {
        let mut task = talk();
        let scope = Scope::Operator {
            workflow: WorkflowId::new(task.run.to_string()),
            operator: OperatorId::new(&**task.executor()),
        };
        let state = InMemoryStore::new();
        state.write(&scope, "agent_cli/talk", kept.clone()).await.unwrap();
        task.state = Arc::new(state);
        let (_, argv) = cli.ask(&task, &Json::null()).await.unwrap().argv;
        assert_eq!(argv.contains(&"resume".to_owned()), goes_on, "{kept}: {argv:?}");
        assert!(!argv.contains(&flag.to_owned()), "{argv:?}");
    }
}

#[tokio::test]
async fn an_id_from_a_program_is_kept_if_it_can_be_an_argument() {
    for (id, effects) in [("c-1", 1), ("--x", 0), ("$KEY", 0)] {
        let result = json!({ "type": "result", "result": "ok", "session_id": id });
        let (_dir, cli) = prints("canary 815", &[result]);
        let done = cli.execute(Arc::new(talk()), json!("hi").into()).await.unwrap();
        let Reply::Done(done) = done else { panic!("it is done") };
        assert_eq!((done.output.as_str(), done.effects.len()), ("\"ok\"", effects), "{id}");
    }
}
