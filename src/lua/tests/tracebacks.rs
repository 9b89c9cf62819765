//! The calls in progress that an error of a script carries.

use std::sync::atomic::AtomicBool;

use serde_json::{Value, json};

use super::*;

/// The frames of the failure that a flow ends with, as `file:line function`.
fn frames(failure: &Failure) -> Vec<String> {
    let data = failure.data.as_ref().map(Json::to_value).unwrap_or_default();
    let frames = data["traceback"].as_array().cloned().unwrap_or_default();
    let shown = frames.iter().map(|it| {
        let place = format!("{}:{}", it["file"].as_str().unwrap(), it["line"]);
        it["function"].as_str().map_or_else(|| place.clone(), |name| format!("{place} {name}"))
    });
    shown.collect()
}

fn failed(source: &Arc<Source>) -> Failure {
    match Bench::new().run_with(source, &json!({}), echo).0 {
        NextAction::Fail(failure) | NextAction::Limit(failure) => failure,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_error_in_a_module_names_every_call_up_to_the_flow() {
    let main = flow_text(
        "local m = require('./lib/m')\nlocal function mid()\nreturn m.inner(nil) + 1\nend\nreturn mid() + 1",
    );
    let module = "local m = {}\nfunction m.inner(t)\n  return t.z\nend\nreturn m";
    let failure = failed(&bundle(&[("main.lua", &main), ("lib/m.luau", module)]));
    assert!(failure.message.starts_with("lib/m.luau:3: "), "{failure}");
    assert_eq!(frames(&failure), ["lib/m.luau:3 inner", "main.lua:3 mid", "main.lua:5 flow"]);
}

#[test]
fn an_error_in_a_branch_goes_on_with_the_calls_of_the_flow() {
    let source = flow_source(
        "local function work(n)\nif n == 2 then error('boom') end\nreturn n\nend\n\
         return ctx:map({ 1, 2 }, function(n)\nreturn ctx:all({ function() return work(n) end })\nend)",
    );
    let failure = failed(&source);
    let found = frames(&failure);
    assert_eq!(found.first().map(String::as_str), Some("main.lua:2 work"), "{found:?}");
    assert_eq!(found.last().map(String::as_str), Some("main.lua:5 flow"), "{found:?}");
    assert!(found.contains(&"main.lua:6".to_owned()), "{found:?}");
}

#[test]
fn a_deep_error_keeps_ten_calls_and_the_flow_is_one() {
    let source = flow_source(
        "local function down(n)\nif n == 0 then error('deep') end\nreturn down(n - 1) + 1\nend\n\nreturn down(50)",
    );
    let found = frames(&failed(&source));
    assert_eq!(found.len(), 10);
    assert_eq!(found[9], "main.lua:6 flow");
}

#[test]
fn failures_of_tasks_and_those_of_an_author_carry_what_they_carried() {
    let mut bench = Bench::new();
    let failure = bench.failure("swarm.fail('blocked', 'no')");
    assert_eq!((failure.kind.as_str(), failure.data), ("blocked", None));
    let refused = |_: &StepOp| Err::<Value, _>(Failure::new("worker", "no"));
    match bench.run("return ctx:run('e')", refused).0 {
        NextAction::Fail(failure) => {
            assert_eq!((failure.kind.as_str(), failure.data), ("worker", None));
        }
        other => panic!("{other:?}"),
    }
    let caught = bench.value("local ok, err = pcall(error, 'x') return { ok, err }");
    assert_eq!(caught, json!([false, "x"]));
}

#[test]
fn a_value_that_is_too_large_names_the_call_and_the_way_out() {
    let failure = failed(&flow_source("\n\nreturn ctx:run('e', string.rep('x', 5000000))"));
    assert!(
        failure.is("limit") && failure.message.starts_with("main.lua:3: a value is larger"),
        "{failure}"
    );
    assert!(failure.message.contains("ctx:artifact"), "{failure}");
    assert_eq!(frames(&failure), ["main.lua:3 flow"]);
}

#[test]
fn an_agents_function_has_a_traceback_too() {
    let text = "local function inner(t)\nreturn t.a.b\nend\nreturn require('swarm').blueprint { name = 't', \
                agents = { x = { operator = 'lua', fn = function(input)\nreturn inner(input) + 1 end } }, flow = function() end }";
    let source = bundle(&[("main.lua", text)]);
    let called = call_agent(
        &source,
        "x",
        &Json::from(&json!({})),
        &TaskLimits::default(),
        &AtomicBool::new(false),
    );
    let found = frames(&called.unwrap_err());
    assert_eq!(found[0], "main.lua:2 inner");
    assert!(found[1].starts_with("main.lua:5"), "{found:?}");
}
