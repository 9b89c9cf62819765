use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::blueprint::{Bundle, Checked, Finding, Operators, check};

struct Echo;

impl Operators for Echo {
    fn kind(&self, name: &str) -> Option<&str> {
        (name == "echo").then_some("echo")
    }

    fn requires_worker_binding(&self, _name: &str) -> bool {
        false
    }

    fn names(&self) -> Vec<String> {
        vec!["echo".to_owned()]
    }
}

/// Checks a document with this flow and two agents, one of which says what it gives.
fn checked(flow: &Value) -> Checked {
    let document = json!({
        "name": "t",
        "input": {"type": "object", "properties": {"issue": {"type": "string"}, "max": {"type": "integer"}}},
        "agents": {
            "planner": {"operator": "echo", "output": {"type": "object", "properties": {
                "steps": {"type": "array", "items": {"type": "string"}}, "title": {"type": "string"},
                "verdict": {"enum": ["pass", "blocked", "unsure"]}}}},
            "any": {"operator": "echo"},
        },
        "flow": flow,
    });
    let text = serde_json::to_string_pretty(&document).unwrap();
    let files = BTreeMap::from([("flow.json".to_owned(), text.into())]);
    check(&document, &Bundle::from_files(files, None).unwrap(), &Echo)
}

fn found(flow: &Value) -> Vec<String> {
    let findings = checked(flow).findings;
    // These flows leave an agent out on purpose.
    findings
        .iter()
        .filter(|it| it.code != "MS-B081")
        .map(|it: &Finding| format!("{} {}", it.code, it.message))
        .collect()
}

fn seq(children: Value) -> Value {
    json!({"kind": "seq", "children": children})
}

fn plan() -> Value {
    json!({"kind": "step", "id": "plan", "agent": "planner", "input": {"issue": "{{ input.issue }}"}})
}

#[test]
fn a_good_flow_has_no_findings_and_is_in_the_definition() {
    let flow = seq(json!([
        plan(),
        {"kind": "map", "id": "out", "over": "plan.steps", "as": "step", "index": "n", "concurrency": 2,
         "body": {"kind": "step", "agent": "any", "input": {"step": "{{ step }}", "n": "{{ n }}"}}},
        {"kind": "loop", "max": "{{ input.max }}", "until": "review.ok",
         "body": {"kind": "step", "id": "review", "agent": "any", "input": "{{ out }}"}},
        {"kind": "switch", "on": "review.verdict", "cases": {"pass": {"kind": "sleep", "for": "5m"}},
         "default": {"kind": "fail", "error": "blocked", "message": "after {{ round }} rounds"}},
        {"kind": "try", "body": {"kind": "wait", "signal": "go", "timeout": "1h"},
         "catch": {"kind": "assign", "set": {"why": "{{ error.message }}"}}},
        {"kind": "parallel", "branches": {"a": {"kind": "call", "id": "x", "blueprint": "b"}, "b": plan()}},
        {"kind": "assign", "value": {"x": "{{ x }}", "why": "{{ why | default('none') }}"}},
    ]));
    let checked = checked(&flow);
    assert_eq!(checked.findings, []);
    assert_eq!(checked.definition.unwrap().flow.unwrap().to_value(), flow);
}

#[test]
fn what_is_no_node_is_found() {
    for (flow, expected) in [
        (seq(json!([3])), "MS-B070 a node is a table, and this is a number"),
        (seq(json!([{}])), "MS-B070 a node needs a `kind`"),
        (
            seq(json!([{"kind": "stepp", "agent": "any"}])),
            "MS-B070 there is no node of the kind `stepp`",
        ),
        (seq(json!([])), "MS-B012 a seq has no nodes in it"),
        (
            json!({"kind": "step", "agent": "any", "inptu": 1}),
            "MS-B010 unknown key `inptu` in a step",
        ),
        (json!({"kind": "step"}), "MS-B012 `agent` is missing in a step"),
        (
            json!({"kind": "step", "agent": "plannr"}),
            "MS-B025 a step runs the agent `plannr`, which is not declared",
        ),
        (
            json!({"kind": "step", "id": "1x", "agent": "any"}),
            "MS-B013 \"1x\" is not a name for a value",
        ),
        (json!({"kind": "sleep", "for": "soon"}), "MS-B030 `for` of a sleep is not a duration"),
        (json!({"kind": "loop", "body": plan()}), "MS-B012 `max` is missing in a loop"),
        (
            json!({"kind": "map", "over": 3, "body": plan()}),
            "MS-B074 `over` of a map must be a list, and is a number",
        ),
    ] {
        assert_eq!(found(&flow), [expected]);
    }
}

#[test]
fn names_are_looked_for_before_they_are_used() {
    for (node, expected) in [
        (
            json!({"kind": "step", "agent": "any", "input": "{{ paln.steps }}"}),
            "MS-B072 a step uses `paln`, which nothing sets before it",
        ),
        (
            json!({"kind": "step", "agent": "any", "input": "{{ input.isue }}"}),
            "MS-B072 a step uses `input.isue`, which its schema does not have",
        ),
        (
            json!({"kind": "step", "agent": "any", "input": "{{ plan.stps }}"}),
            "MS-B072 a step uses `plan.stps`, which its schema does not have",
        ),
        (json!({"kind": "step", "agent": "any", "input": "{{ plan. }}"}), "MS-B071"),
        (json!({"kind": "branch", "if": "plan ==", "then": plan()}), "MS-B071"),
        (
            json!({"kind": "map", "over": "plan.title", "body": plan()}),
            "MS-B074 `over` of a map must be a list, and its schema says string",
        ),
        (
            json!({"kind": "step", "agent": "any", "input": "{{ late }}", "id": "late"}),
            "MS-B072 the step `late` uses `late`, which nothing sets before it",
        ),
        (
            json!({"kind": "assign", "value": "{{ run.idd }}"}),
            "MS-B072 an assign uses `run.idd`, which its schema does not have",
        ),
    ] {
        let found = found(&seq(json!([plan(), node])));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with(expected), "{found:?}");
    }
}

#[test]
fn what_a_branch_of_a_map_sets_stays_in_it_and_that_of_a_parallel_does_not() {
    let inside = json!({"kind": "step", "id": "x", "agent": "any"});
    let uses = json!({"kind": "assign", "value": "{{ x }}"});
    let map = json!({"kind": "map", "over": "plan.steps", "body": inside});
    assert_eq!(found(&seq(json!([plan(), map, uses]))).len(), 1);
    let beside = json!({"kind": "step", "id": "y", "agent": "any"});
    let parallel = json!({"kind": "parallel", "children": [inside, beside]});
    assert_eq!(found(&seq(json!([parallel, uses]))), [""; 0]);
    let twice = json!({"kind": "parallel", "children": [inside, inside]});
    assert_eq!(found(&twice), ["MS-B075 another branch beside it sets `x` as well"]);
}

#[test]
fn what_cannot_be_reached_is_found() {
    let fail = json!({"kind": "fail", "error": "no"});
    for flow in [
        seq(json!([fail, plan()])),
        seq(json!([{"kind": "branch", "if": "input.max > 1", "then": fail, "else": fail}, plan()])),
        json!({"kind": "branch", "if": "false", "then": plan()}),
        json!({"kind": "branch", "if": true, "then": plan(), "else": fail}),
        json!({"kind": "loop", "max": 0, "body": plan()}),
        seq(json!([{"kind": "parallel", "children": [plan(), fail]}, plan()])),
    ] {
        let found = found(&flow);
        assert_eq!(found.len(), 1, "{flow} {found:?}");
        assert!(found[0].starts_with("MS-B073"), "{found:?}");
    }
    let caught = json!({"kind": "try", "body": fail, "catch": plan()});
    assert_eq!(found(&seq(json!([caught, plan()]))), [""; 0]);
}

#[test]
fn a_finding_stands_at_its_place_in_the_document() {
    let findings = checked(&seq(json!([plan(), {"kind": "step", "agent": "nobody"}]))).findings;
    let source = findings[0].line as usize;
    assert_eq!(findings[0].file, "flow.json");
    assert!(source > 40, "{findings:?}");
}

#[test]
fn the_schema_in_the_docs_knows_the_same_nodes_and_keys() {
    let schema: Value =
        serde_json::from_str(include_str!("../../../../docs/protocol/flow.schema.json")).unwrap();
    for (kind, keys) in super::KINDS {
        let properties = schema["$defs"][kind]["properties"].as_object().unwrap();
        let mut known: Vec<&str> = properties.keys().map(String::as_str).collect();
        known.retain(|key| !super::COMMON.contains(key));
        known.sort_unstable();
        assert_eq!(known, *keys, "{kind}");
    }
    let compiled = crate::blueprint::Schema::compile_value(schema, false).unwrap();
    assert!(compiled.accept(seq(json!([plan()]))).is_ok());
    assert!(compiled.accept(seq(json!([{"kind": "step"}]))).is_err());
}

#[test]
fn a_switch_over_listed_values_handles_each_or_has_a_default() {
    let sleep = json!({"kind": "sleep", "for": "1s"});
    let switch = |cases: Value| {
        seq(json!([plan(), {"kind": "switch", "on": "plan.verdict", "cases": cases}]))
    };
    assert_eq!(
        found(&switch(json!({"pass": sleep}))),
        ["MS-B088 no case of a switch handles \"blocked\", \"unsure\""]
    );
    assert_eq!(found(&switch(json!({"pass": sleep, "blocked": sleep, "unsure": sleep}))), [""; 0]);
    let mut otherwise = switch(json!({"pass": sleep}));
    otherwise["children"][1]["default"] = sleep;
    assert_eq!(found(&otherwise), [""; 0]);
}

#[test]
fn a_chain_of_branches_over_listed_values_handles_each_or_has_an_else() {
    let sleep = json!({"kind": "sleep", "for": "1s"});
    let chain = |values: &[&str], otherwise: Option<Value>| {
        let branches = values.iter().rev().fold(otherwise, |otherwise, value| {
            let mut branch = json!({
                "kind": "branch", "if": format!("plan.verdict == \"{value}\""), "then": sleep,
            });
            if let Some(otherwise) = otherwise {
                branch["else"] = otherwise;
            }
            Some(branch)
        });
        seq(json!([plan(), branches]))
    };
    let left = "MS-B088 no branch for `plan.verdict` handles \"unsure\"";
    assert_eq!(found(&chain(&["pass", "blocked"], None)), [left]);
    assert_eq!(found(&chain(&["pass"], None)), [""; 0], "a condition, and no chain");
    assert_eq!(found(&chain(&["pass", "blocked", "unsure"], None)), [""; 0]);
    assert_eq!(found(&chain(&["pass", "blocked"], Some(sleep.clone()))), [""; 0]);
    let other = json!({"kind": "branch", "if": "input.issue == 1", "then": sleep});
    assert_eq!(found(&chain(&["pass", "blocked"], Some(other))), [""; 0]);
}

#[test]
fn a_name_with_a_default_need_not_be_set_and_hides_no_other() {
    let says = |value: &str| found(&seq(json!([plan(), {"kind": "assign", "value": value}])));
    for right in [
        "{{ extra | d('') }}",
        "{{ extra | default }}",
        "{{ plan.note | default('') | upper }}",
        "{% if extra is defined %}{{ extra.note }}{% endif %}",
    ] {
        assert_eq!(says(right), [""; 0], "{right}");
    }
    let message = "MS-B072 an assign uses `other`, which nothing sets before it";
    for wrong in ["{{ extra | default('') }} {{ other }}", "{{ other ~ 'default(' }}"] {
        assert_eq!(says(wrong), [message], "{wrong}");
        // Versions with such a text were stored without a finding, and still compile.
        let flow = seq(json!([plan(), {"kind": "assign", "value": wrong}]));
        assert!(checked(&flow).definition.is_some(), "{wrong}");
    }
}

#[test]
fn many_names_with_a_large_schema_are_checked_in_linear_time() {
    let fields = (0..3_000).map(|n| (format!("field{n}"), json!({}))).collect();
    let output = json!({"type": "object", "properties": Value::Object(fields)});
    let steps = |of: &str| -> Vec<Value> {
        let step = |n| json!({"kind": "step", "agent": "a", "id": format!("{of}{n}")});
        (0..2_000).map(step).collect()
    };
    let beside = json!({"kind": "parallel", "children": steps("p")});
    let last = json!({"kind": "assign", "value": "{{ p1.field1 }} {{ s1.field1 }} {{ p1.gone }}"});
    let document = json!({
        "name": "t",
        "agents": {"a": {"operator": "echo", "output": output}},
        "flow": seq(json!([seq(steps("s").into()), beside, last])),
    });
    let files = BTreeMap::from([("flow.json".to_owned(), document.to_string().into())]);
    let found = check(&document, &Bundle::from_files(files, None).unwrap(), &Echo).findings;
    let found: Vec<_> = found.iter().map(|it| it.message.as_str()).collect();
    assert_eq!(found, ["an assign uses `p1.gone`, which its schema does not have"]);
}
