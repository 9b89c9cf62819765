//! Functions around the tasks of a flow.

use super::*;

fn run(middleware: &str, body: &str) -> (NextAction, Vec<Command>) {
    let source = bundle(&[(
        "main.lua",
        &format!(
            "local swarm = require(\"swarm\") return swarm.blueprint {{ name = \"t\", \
             middleware = {{ {middleware} }}, flow = function(ctx, input) {body} end }}"
        ),
    )]);
    Bench::new().run_with(&source, &json!({}), echo)
}

fn value(middleware: &str, body: &str) -> Value {
    match run(middleware, body).0 {
        NextAction::Complete(json) => json.to_value(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_first_is_the_outermost_and_each_may_change_the_task_and_the_result() {
    let around = |word: &str| {
        format!(
            "function(task, next) task.input.path = (task.input.path or \"\") .. \"{word}\" \
             local r = next(task) r.back = (r.back or \"\") .. \"{word}\" return r end"
        )
    };
    let both = format!("{}, {}", around("a"), around("b"));
    assert_eq!(value(&both, "return ctx:run(\"x\", {})"), json!({ "path": "ab", "back": "ba" }));
    let renames =
        "function(task, next) task.agent = \"y\" task.opts.timeout = \"30m\" return next(task) end";
    let (_, commands) = run(renames, "return ctx:run(\"x\", {})");
    let Command::Schedule(request) = &commands[0] else { panic!() };
    let StepOp::Task(task) = &request.op else { panic!() };
    assert_eq!((task.agent.as_str(), task.opts.timeout_ms), ("y", Some(1_800_000)));
}

#[test]
fn it_may_answer_itself_try_again_and_catch() {
    let cached = "function(task, next) return { cached = task.agent } end";
    let (next, commands) = run(cached, "return ctx:run(\"x\")");
    assert!(commands.is_empty());
    assert_eq!(next, NextAction::Complete(Json::from(&json!({ "cached": "x" }))));
    let twice = "function(task, next) next() return next(task) end";
    assert_eq!(keys(&run(twice, "return ctx:run(\"x\", {})").1), ["0 x", "1 x"]);
    let refuses = "function(task, next) swarm.fail(\"refused\", \"not \" .. task.agent) end";
    let tried = value(refuses, "local r, err = ctx:try(\"x\") return { err.kind, err.message }");
    assert_eq!(tried, json!(["refused", "not x"]));
}

#[test]
fn flows_that_are_tables_go_through_it_and_approvals_do_not() {
    let source = bundle(&[(
        "main.lua",
        "local swarm = require(\"swarm\") local n = swarm.nodes return swarm.blueprint { name = \"t\", \
         middleware = { function(task, next) return \"seen \" .. task.agent end }, \
         flow = n.seq { n.approve { title = \"ok?\" }, n.step { agent = \"x\" } } }",
    )]);
    let (next, commands) = Bench::new().run_with(&source, &json!({}), echo);
    assert_eq!(next, NextAction::Complete(Json::from(&json!("seen x"))));
    assert_eq!(keys(&commands), ["0 approve"]);
}

#[test]
fn what_it_hands_on_must_be_a_task() {
    for (layer, said) in [
        ("function(task, next) return next(3) end", "next takes the task"),
        (
            "function(task, next) task.agent = nil return next(task) end",
            "task.agent must be a string",
        ),
        (
            "function(task, next) task.opts.timout = 1 return next(task) end",
            "unknown option timout",
        ),
    ] {
        let NextAction::Fail(failure) = run(layer, "return ctx:run(\"x\")").0 else { panic!() };
        assert!(failure.message.contains(said), "{failure}");
    }
}
