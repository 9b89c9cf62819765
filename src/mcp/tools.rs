//! The table of tools, in the order in which clients see them.

use std::sync::OnceLock;

use rmcp::model::{CallToolResult, JsonObject};
use serde_json::Value;

#[cfg(test)]
use super::tool::Output;
use super::{
    schema,
    tool::{Nature, Tool, input, read},
    transport::Transport,
};
use crate::token::Verb;

mod blueprints;
mod help;
mod people;
mod runs;
mod state;
mod work;

/// A row of the table: the function takes its arguments parsed.
macro_rules! tool {
    ($name:literal, $title:literal, $nature:ident, [$($verb:ident),*], $output:expr,
     $args:ty => $function:path, $text:literal) => {
        Tool {
            name: $name,
            title: $title,
            text: $text,
            verbs: &[$(Verb::$verb),*],
            nature: Nature::$nature,
            input: input::<$args>,
            #[cfg(test)]
            output: $output,
            call: |transport, arguments| {
                Box::pin(async move { $function(transport, read::<$args>(arguments)?).await })
            },
        }
    };
}

/// Returns true if a tool of this server has the name.
pub(super) fn is_own(name: &str) -> bool {
    own(name).is_some()
}

/// Returns the tool of this server with a name.
pub(super) fn own(name: &str) -> Option<&'static Tool> {
    TOOLS.iter().find(|tool| tool.name == name)
}

/// Calls a tool of this server.
pub(super) async fn call(
    tool: &Tool,
    transport: &dyn Transport,
    arguments: JsonObject,
) -> CallToolResult {
    match (tool.call)(transport, Value::Object(arguments)).await {
        Ok(done) => done.into_result(),
        Err(trouble) => trouble.into_result(),
    }
}

/// Every tool as the protocol shows it, beside its row of the table.
pub(super) fn all() -> &'static [(&'static Tool, rmcp::model::Tool)] {
    static ALL: OnceLock<Vec<(&'static Tool, rmcp::model::Tool)>> = OnceLock::new();
    ALL.get_or_init(|| {
        let mut outputs = schema::outputs();
        TOOLS.iter().map(|tool| (tool, tool.shown(outputs.remove(tool.name)))).collect()
    })
}

#[rustfmt::skip]
const TOOLS: &[Tool] = &[
    tool!("list_blueprints", "List blueprints", Reads, [BlueprintRead], Output::Of("blueprint_list"),
        blueprints::List => blueprints::list,
        "Lists the stored blueprints with their descriptions, and the files that do not compile."),
    tool!("get_blueprint", "Show a blueprint", Reads, [BlueprintRead],
        Output::Parts(&[("blueprint", Some("blueprint_get")), ("files", None), ("entry", None)]),
        blueprints::Get => blueprints::get,
        "Shows a blueprint: its input schema, agents and triggers. With `source`, also its files."),
    tool!("check_blueprint", "Check a blueprint", Reads, [BlueprintCheck], Output::Of("blueprint_check"),
        blueprints::Check => blueprints::check,
        "Checks Lua source or a bundle without storing it. Returns findings with file and line; `ok` means that it can run. Use it before save_blueprint."),
    tool!("run_tests", "Run tests of a blueprint", Reads, [BlueprintTest], Output::Of("blueprint_test"),
        blueprints::Test => blueprints::test,
        "Runs Lua tests of a stored blueprint, or of source: swarm.test with mocks and virtual time. No operator, network or stored state is reached. Returns each test with its failure (file, line), and the lines that never ran. `t.start` takes the path of the entry file, `main.lua` unless `entry` says otherwise. search_docs has the functions of tests."),
    tool!("save_blueprint", "Save a blueprint", Sets, [BlueprintWrite], Output::Of("blueprint_put"),
        blueprints::Save => blueprints::save,
        "Stores a version of a blueprint and moves its name to it. Runs that are open keep their version."),

    tool!("start_run", "Start a run", Adds, [RunStart], Output::Of("run_start"),
        runs::Start => runs::start,
        "Starts a run of a stored blueprint, or of Lua source where the token allows it. With `wait_seconds` it waits for the end. An `idempotency_key` makes a repetition return the run that was started before."),
    tool!("list_runs", "List runs", Reads, [RunRead], Output::Of("run_list"),
        runs::List => runs::list,
        "Lists runs, the newest first, with their status. Pass `next_cursor` as `cursor` for more."),
    tool!("get_run", "Show or await a run", Reads, [RunRead], Output::Of("run_get"),
        runs::Get => runs::get,
        "Shows a run: status, output or error, and what it waits for. With `wait_seconds` it waits until the run has ended, at most 45 s; call again while it has not. Until `people` it also returns when only people are left to wait for."),
    tool!("list_steps", "List the steps of a run", Reads, [RunRead], Output::Of("step_list"),
        runs::Steps => runs::steps,
        "Lists the steps of a run in order, with status, attempts and usage. Use it to find the step that failed."),
    tool!("get_step", "Show a step", Reads, [RunRead], Output::Of("step_get"),
        runs::Step => runs::step,
        "Shows one step of a run with its request, response and error in full."),
    tool!("control_run", "Pause, resume, cancel or signal a run", Ends,
        [RunPause, RunResume, RunCancel, RunSignal],
        Output::Parts(&[("run", Some("run_get"))]),
        runs::Control => runs::control,
        "Pauses, resumes or cancels a run, or sends it a signal that its blueprint waits for. Returns the run."),
    tool!("rerun", "Run again", Adds, [RunStart], Output::Of("run_rerun"),
        runs::Rerun => runs::rerun,
        "Starts a run with the input and the tags of another one, with the same version of the blueprint or the newest."),
    tool!("diff_runs", "Compare two runs", Reads, [RunRead], Output::Of("run_diff"),
        runs::Diff => runs::diff,
        "Compares two runs step by step, usually a fork and its origin: the first difference, and what differs in each step."),
    tool!("fork_run", "Fork a run", Adds, [RunFork], Output::Of("run_rerun"),
        runs::Fork => runs::fork,
        "Starts a new run that keeps the results of another one up to a step and does the rest anew, with changed source or input if given. Use it to repair a failed run."),
    tool!("query_run", "Ask a run", Reads, [RunQuery], Output::Parts(&[("value", None)]),
        runs::Query => runs::query,
        "Calls a query that the blueprint of a run declares with `ctx:on_query`, and returns its answer. Changes nothing."),
    tool!("get_artifact", "List or read artifacts", Reads, [ArtifactRead],
        Output::Parts(&[("items", None), ("artifact", None), ("text", None), ("bytes", None)]),
        runs::Artifact => runs::artifact,
        "Lists the artifacts of a run, or reads one of them as text, up to 64 KiB."),

    tool!("list_inbox", "List tasks for people", Reads, [TaskList], Output::Of("task_list"),
        people::Inbox => people::inbox,
        "Lists the open tasks that wait for a person, with what they ask. Only people answer approvals of runs that you started."),
    tool!("answer_task", "Answer a task for people", Adds, [TaskAnswer, RunStart], Output::Of("task_answer"),
        people::Answer => people::answer,
        "Answers a task of the inbox, or rejects it, for the person who told you to. Of runs that you started, only questions to their starter can be answered; approvals wait for somebody else."),

    tool!("search_state", "Search stored state", Reads, [StateRead], Output::Of("state_list"),
        state::Search => state::search,
        "Lists the keys of a scope, searches their values with `q`, or follows links `from` a key."),
    tool!("get_state", "Read a value", Reads, [StateRead], Output::Of("state_get"),
        state::Get => state::get,
        "Reads a value of the stored state with its revision."),
    tool!("set_state", "Write a value", Ends, [StateWrite], Output::Of("state_put"),
        state::Set => state::set,
        "Writes a value of the stored state, or lets a reducer change it: append to an array, merge into an object, sum numbers."),

    tool!("open_session", "Open a session to work in", Adds, [SessionOpen],
        Output::Parts(&[("session", None), ("expires_at", None)]),
        work::Open => work::open,
        "Opens a session as an operator, so that tasks of agents come to you. Do it once, then call next_task with the session."),
    tool!("list_sessions", "List sessions", Reads, [OperatorRead], Output::Of("session_list"),
        work::List => work::list,
        "Lists the open sessions with their operators, whether they are connected, and how many tasks they have."),
    tool!("next_task", "Get the next task", Sets, [SessionRead],
        Output::Parts(&[("kind", None), ("after", None), ("task", None)]),
        work::Next => work::next,
        "Returns your next task with its prompt, or waits for one, 45 s by default. `kind` is task, cancel (drop that task), answer (a senior answered you) or none (call again). Pass `after` of the last call. Without it, what you did not finish comes again: so you continue after a crash."),
    tool!("report_task", "Report a task", Sets, [WorkerResult], Output::Of("session_report"),
        work::Report => work::report,
        "Reports the output of a task, or that it failed. Accepted exactly once; repeat the same call if its answer was lost. An output that does not fit the task's output_schema is refused with the violations."),
    tool!("decline_task", "Decline a task", Ends, [WorkerResult], Output::Parts(&[("task", None)]),
        work::Decline => work::decline,
        "Gives a task back without doing it. Another attempt follows if the agent's retry allows it."),
    tool!("task_progress", "Say how far a task is", Sets, [WorkerProgress], Output::Parts(&[("task", None)]),
        work::Progress => work::progress,
        "Shows people how far a task is. It is not stored."),
    tool!("ask_senior", "Ask a senior", Adds, [TaskEscalate], Output::Parts(&[("task", None)]),
        work::Ask => work::ask,
        "Asks a person a question about your task; its time stands still meanwhile. The answer comes from next_task with the kind answer."),

    tool!("search_docs", "Search the documentation", Reads, [], Output::Parts(&[("sections", None)]),
        help::Search => help::search,
        "Searches the documentation: blueprints, the ctx functions, operators, error codes, protocols. Returns whole sections. Lua here is Luau."),
    tool!("doctor", "Look at the host", Reads, [HostRead],
        Output::Parts(&[("host", Some("readyz")), ("you", Some("whoami")), ("operators", Some("operator_list"))]),
        help::Doctor => help::doctor,
        "Shows whether the host is ready, whose token you use and what it may do, and which operators there are."),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_tool_is_complete_and_has_a_name_of_its_own() {
        let mut names = BTreeSet::new();
        for (tool, shown) in all() {
            assert!(names.insert(tool.name), "{}", tool.name);
            assert!(tool.name.len() <= 32 && tool.text.ends_with('.'), "{}", tool.name);
            assert!(tool.text.len() <= 500, "{}: {}", tool.name, tool.text.len());
            let input = Value::Object((*shown.input_schema).clone());
            assert_eq!(input["type"], "object", "{}", tool.name);
            assert_eq!(input["additionalProperties"], false, "{}", tool.name);
            for (name, property) in input["properties"].as_object().unwrap() {
                let described = property["description"].is_string();
                assert!(described, "{}: {name} has no description", tool.name);
            }
            assert!(jsonschema::validator_for(&input).is_ok(), "{}", tool.name);
            let output = Value::Object((**shown.output_schema.as_ref().expect(tool.name)).clone());
            assert!(jsonschema::validator_for(&output).is_ok(), "{}", tool.name);
            assert_eq!(shown.title.as_deref(), Some(tool.title), "{}", tool.name);
            assert_eq!(shown.description.as_deref(), Some(tool.text), "{}", tool.name);
            let hints = shown.annotations.as_ref().unwrap();
            let all = [hints.read_only_hint, hints.destructive_hint, hints.idempotent_hint];
            assert!(all.iter().all(Option::is_some), "{}: {all:?}", tool.name);
        }
        assert!(names.len() <= 32, "tools are by intent, not by route: {}", names.len());
    }

    #[test]
    fn what_an_agent_wants_to_do_has_its_tool() {
        let wanted = "list_blueprints get_blueprint check_blueprint save_blueprint run_tests \
            start_run list_runs get_run get_step control_run fork_run rerun query_run diff_runs \
            list_inbox answer_task get_artifact search_state get_state set_state open_session \
            next_task report_task task_progress ask_senior list_sessions search_docs doctor";
        let missing: Vec<_> = wanted.split_whitespace().filter(|name| !is_own(name)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
