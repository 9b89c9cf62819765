//! Flows that are tables.

use super::*;

/// Runs a flow that is JSON; tasks answer as `answer` says.
fn document(
    flow: &Value,
    input: &Value,
    answer: impl FnMut(&StepOp) -> Result<Value, Failure>,
) -> (NextAction, Vec<Command>) {
    let text = json!({ "name": "t", "flow": flow }).to_string();
    let source = bundle_at("flow.json", &[("flow.json", &text)]);
    Bench::new().run_with(&source, input, answer)
}

/// Returns the output of a flow of Lua nodes.
fn value(nodes: &str) -> Value {
    let source = bundle(&[(
        "main.lua",
        &format!(
            "local swarm = require(\"swarm\") local n = swarm.nodes \
             return swarm.blueprint {{ name = \"t\", flow = {nodes} }}"
        ),
    )]);
    match Bench::new().run_with(&source, &json!({ "n": 2, "list": [1, 2, 3] }), echo).0 {
        NextAction::Complete(json) => json.to_value(),
        other => panic!("{nodes}: {other:?}"),
    }
}

fn outcome(next: NextAction) -> Result<Value, Failure> {
    match next {
        NextAction::Complete(json) => Ok(json.to_value()),
        NextAction::Fail(failure) => Err(failure),
        other => panic!("{other:?}"),
    }
}

#[test]
fn steps_follow_each_other_and_slots_keep_their_type() {
    let flow = json!({"kind": "seq", "children": [
        {"kind": "step", "id": "a", "agent": "x", "input": {"n": "{{ input.n + 1 }}", "text": "n={{ input.n }}"},
         "timeout": "5m"},
        {"kind": "step", "agent": "{{ input.who }}", "input": "{{ a.n }}"},
    ]});
    let (next, commands) = document(&flow, &json!({ "n": 2, "who": "y" }), echo);
    assert_eq!(keys(&commands), ["0 x", "1 y"]);
    let Command::Schedule(request) = &commands[0] else { panic!() };
    let StepOp::Task(task) = &request.op else { panic!() };
    assert_eq!(task.input.to_value(), json!({ "n": 3, "text": "n=2" }));
    assert!(matches!(next, NextAction::Complete(_)), "{next:?}");
}

#[test]
fn a_map_gives_a_list_and_its_branches_are_steps_of_their_own() {
    let flow = json!({"kind": "map", "over": "input.list", "as": "x", "index": "i", "concurrency": 2,
        "body": {"kind": "step", "agent": "up", "input": {"x": "{{ x }}", "i": "{{ i }}"}}});
    let mut inputs = Vec::new();
    let (next, _) = document(&flow, &json!({ "list": ["a", "b", "c"] }), |op| {
        let StepOp::Task(task) = op else { panic!() };
        inputs.push(task.input.to_value());
        Ok(task.input.to_value()["x"].clone())
    });
    assert_eq!(outcome(next).unwrap(), json!(["a", "b", "c"]));
    assert_eq!(inputs[2], json!({ "x": "c", "i": 3 }));
}

#[test]
fn loops_branches_and_switches_choose() {
    assert_eq!(
        value(
            "n.loop { max = 5, until_ = \"round == 3\", body = n.assign { value = \"{{ round * 10 }}\" } }"
        ),
        json!(30)
    );
    assert_eq!(
        value("n.loop { max = 2, while_ = \"false\", body = n.fail { kind = \"x\" } }"),
        json!(null)
    );
    assert_eq!(
        value(
            "n.loop { max = 1, until_ = \"false\", body = n.assign { value = 1 }, else_ = n.assign { value = 2 } }"
        ),
        json!(2)
    );
    assert_eq!(
        value("n.branch { if_ = \"input.n > 1\", then_ = n.assign { value = \"many\" } }"),
        json!("many")
    );
    assert_eq!(
        value("n.switch { on = \"input.n\", cases = { [\"2\"] = n.assign { value = \"two\" } } }"),
        json!("two")
    );
    assert_eq!(
        value(
            "n.switch { on = \"input.n\", cases = {}, default = n.assign { value = \"other\" } }"
        ),
        json!("other")
    );
}

#[test]
fn branches_side_by_side_set_names_for_what_follows() {
    let nodes = "n.seq { n.parallel { n.assign { id = \"a\", value = 1 }, n.assign { id = \"b\", value = 2 } }, \
                 n.assign { value = { \"{{ a }}\", \"{{ b }}\" } } }";
    assert_eq!(value(nodes), json!([1, 2]));
    let nodes = "n.parallel { branches = { x = n.assign { value = 1 }, y = n.assign { value = \"{{ none }}\" } } }";
    assert_eq!(value(nodes)["x"], json!(1));
    let nodes = "n.race { n.assign { value = \"first\" }, n.sleep { for_ = \"1h\" } }";
    assert_eq!(value(nodes), json!({ "winner": 1, "value": "first" }));
}

#[test]
fn a_failure_is_caught_with_its_kind_and_another_is_raised() {
    let flow = json!({"kind": "try", "body": {"kind": "step", "agent": "x"},
        "catch": {"kind": "assign", "value": "{{ error.kind }}: {{ error.message }}"}});
    let (next, _) = document(&flow, &json!({}), |_| Err(Failure::new("worker", "no luck")));
    assert_eq!(outcome(next).unwrap(), json!("worker: no luck"));
    let flow = json!({"kind": "fail", "error": "blocked", "message": "n is {{ input.n }}", "data": {"n": "{{ input.n }}"}});
    let failure = outcome(document(&flow, &json!({ "n": 4 }), echo).0).unwrap_err();
    assert_eq!((failure.kind.as_str(), failure.message.as_str()), ("blocked", "n is 4"));
    assert_eq!(failure.data.unwrap().to_value(), json!({ "n": 4 }));
    let flow = json!({"kind": "try", "body": {"kind": "fail", "error": "a"}, "finally": {"kind": "sleep", "for": 1}});
    let (next, commands) = document(&flow, &json!({}), echo);
    assert_eq!(outcome(next).unwrap_err().kind, "a");
    assert_eq!(keys(&commands), ["0 timer"]);
}

#[test]
fn a_flow_that_is_only_a_node_is_a_blueprint_by_itself() {
    let source = bundle_at(
        "count.json",
        &[("count.json", r#"{"kind":"assign","value":"{{ run.blueprint }}"}"#)],
    );
    let (next, _) = Bench::new().run_with(&source, &json!({}), echo);
    assert_eq!(outcome(next).unwrap(), json!("t@1"));
    let tree = evaluate(&source, &Limits::default()).unwrap();
    assert_eq!(tree["name"], json!("count"));
}

#[test]
fn what_is_wrong_says_which_node_and_what() {
    let flow = json!({"kind": "assign", "id": "sum", "value": "{{ nothing }}"});
    let failure = outcome(document(&flow, &json!({}), echo).0).unwrap_err();
    assert_eq!(failure.kind, "script");
    assert!(
        failure.message.contains("assign sum")
            && failure.message.contains("nothing is called nothing"),
        "{failure}"
    );
    let source = bundle_at("flow.json", &[("flow.json", "{\n \"flow\": }")]);
    let errors = evaluate(&source, &Limits::default()).unwrap_err();
    assert_eq!((errors[0].line, errors[0].file.as_str()), (Some(2), "flow.json"), "{errors:?}");
}
