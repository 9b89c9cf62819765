use std::sync::Arc;

use super::{judge::LoopJudge, *};
use crate::{
    blueprint::CompiledAgent,
    flow::response::{Approve, Judge},
};

fn tool(name: &str, target: Target) -> Tool {
    Tool {
        name: name.into(),
        description: None,
        input: None,
        open: false,
        approve: Approve::Allow,
        parallel_safe: true,
        policy: crate::protocol::CompactionPolicy::Normal,
        timeout_ms: None,
        target,
    }
}

fn judge(tools: Vec<Tool>) -> LoopJudge {
    let agent = Agent { description: Some("Reads.".into()), ..Agent::default() };
    let definition = crate::blueprint::Definition {
        name: "t".into(),
        agents: [("reader".to_owned(), agent)].into(),
        ..Default::default()
    };
    let declared = ModelLoop { tools, ..ModelLoop::default() };
    let compiled = CompiledLoop::compile("it", &declared, &definition).unwrap();
    LoopJudge::new(Arc::new(CompiledAgent::bare("it", Some("m"))), Arc::new(compiled))
}

#[test]
fn an_agent_without_a_schema_takes_the_text_alone() {
    let judge = judge(vec![tool("reader", Target::Agent("reader".into()))]);
    let face = &judge.compiled.faces()[0];
    assert_eq!(face.tool.description.as_deref(), Some("Reads."));
    assert_eq!(face.tool.parameters, text_arguments().to_value());
    let arguments = judge.arguments(&face.tool, json!({ "input": "x" })).unwrap();
    let (does, input, _) = judge.call("reader", &arguments.into()).unwrap();
    assert_eq!(does, Does::Task { agent: "reader".into(), tool: None });
    assert_eq!(input.as_str(), r#""x""#);
    assert!(judge.arguments(&face.tool, json!({ "input": 1 })).is_err());
}

#[test]
fn a_servers_tools_are_named_after_it_and_only_those_let_through_are_there() {
    let allow = Some(vec!["read*".to_owned()]);
    let judge = judge(vec![tool("fs", Target::Mcp { server: "files".into(), allow })]);
    assert_eq!(judge.compiled.servers("it"), ["it/fs"]);
    let found = |name: &str| FunctionTool {
        name: name.into(),
        description: None,
        parameters: json!({ "properties": { "n": { "type": "integer" } } }),
        strict: None,
    };
    let faces = judge.faces("it/fs", vec![found("read.all"), found("drop")]);
    assert_eq!(faces.len(), 1);
    assert_eq!(faces[0].tool.name, "fs__read_all");
    assert_eq!(faces[0].tool.parameters["type"], "object");
    let (does, ..) = judge.call("fs__read_all", &Json::null()).unwrap();
    assert_eq!(does, Does::Task { agent: "it/fs".into(), tool: Some("read.all".into()) });
    assert!(judge.arguments(&faces[0].tool, json!({ "n": "x" })).is_err());
    assert_eq!(judge.call("fs__drop", &Json::null()), None);
}

#[test]
fn a_name_that_two_servers_have_calls_the_first_whose_face_is_seen() {
    let mcp = |name: &str| tool(name, Target::Mcp { server: name.into(), allow: None });
    let judge = judge(vec![mcp("a"), mcp("a__b")]);
    let found = |name: &str| FunctionTool {
        name: name.into(),
        description: None,
        parameters: json!({ "type": "object" }),
        strict: None,
    };
    let first = judge.faces("it/a", vec![found("b__c")]);
    let second = judge.faces("it/a__b", vec![found("c")]);
    assert_eq!(first[0].tool.name, second[0].tool.name);
    let (does, ..) = judge.call("a__b__c", &Json::null()).unwrap();
    assert_eq!(does, Does::Task { agent: "it/a".into(), tool: Some("b__c".into()) });
    assert!(judge.permits(&["a".to_owned()], "a__b__c"));
    assert!(!judge.permits(&["a__b".to_owned()], "a__b__c"));
}

#[test]
fn state_reads_do_not_write_and_keys_stay_below_the_prefix() {
    let state = |write| Target::State { write, scope: None, prefix: "p/".into() };
    let names = |judge: &LoopJudge| {
        judge.compiled.faces().into_iter().map(|it| it.tool.name).collect::<Vec<_>>()
    };
    assert_eq!(names(&judge(vec![tool("s", state(false))])), ["s_get", "s_list", "s_search"]);
    assert_eq!(names(&judge(vec![tool("s", state(true))])).len(), 5);
    let arguments = json!({ "key": "k", "value": 1 }).into();
    let StateOp::Set { key, .. } = StateCall::Set.op(&arguments, "p/") else { panic!() };
    assert_eq!(key, "p/k");
    let query = json!({ "query": "k" }).into();
    let StateOp::Search { prefix, .. } = StateCall::Search.op(&query, "p/") else { panic!() };
    assert_eq!(prefix, "p/");
    let found = json!([{ "key": "p/k", "score": 1 }, { "key": "other", "score": 1 }]).into();
    let shown = StateCall::Search.shown(found, "p/").to_value();
    assert_eq!(shown, json!([{ "key": "k", "score": 1 }]));
}
