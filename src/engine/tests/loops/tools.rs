//! Tools of a loop: their steps, their failures, their servers and the people who allow them.

use super::*;

#[tokio::test]
async fn tools_are_steps_below_the_task_and_the_model_sees_what_they_said() {
    let loops = Loops::new();
    let script = json!([[["add", { "a": 1, "b": 2 }], ["add", { "a": 3, "b": 4 }]], "$seen"]);
    let run = loops.begin(&script, ADD, "").await;
    assert_eq!(loops.value_of(run).await, r#"["3","7"]"#);
    let expected = [
        ("task", "it", "completed"),
        ("model_call", "model", "completed"),
        ("tool_call", "add", "completed"),
        ("tool_call", "add", "completed"),
        ("model_call", "model", "completed"),
    ];
    are(&loops.steps(run).await, &expected);
    let steps = loops.engine.steps(&loops.admin(), run, 0, 10).await.unwrap().items;
    assert_eq!(steps[2].call_id.as_deref(), Some("call_0_0"));
    assert_eq!((steps[2].parent, steps[2].index, steps[3].prev), (Some(1), 1, Some(3)));
    loops.replays(run).await;
    let tools = &loops.asked()[0].tools;
    assert_eq!(tools[0].parameters["required"], json!(["a", "b"]));
    // The conversation is in the journal once: what was asked each time is not.
    let asked = loops.entries(run).into_iter().filter_map(|entry| match entry.fact {
        Fact::StepScheduled(step) if step.kind == StepKind::ModelCall => Some(step.request),
        _ => None,
    });
    assert_eq!(
        asked.map(|it| it.to_value()).collect::<Vec<_>>(),
        [json!({"turn":1}), json!({"turn":2})]
    );
}

#[tokio::test]
async fn every_step_of_a_batch_is_recorded_before_any_is_executed() {
    let loops = Loops::new();
    let tools =
        r#"tools = { { operator = "a", name = "first" }, { operator = "b", name = "second" } }"#;
    let run = loops.begin(&json!([[["first"], ["second"]], "$seen"]), tools, "").await;
    let (first, second) = (loops.lease("a").await, loops.lease("b").await);
    let scheduled = |entry: &Entry| matches!(&entry.fact, Fact::StepScheduled(it) if it.kind == StepKind::ToolCall);
    let entries = loops.entries(run);
    let last = entries.iter().rposition(scheduled).unwrap();
    let delivered = entries
        .iter()
        .position(|entry| matches!(&entry.fact, Fact::AttemptDelivered { step, .. } if *step > 2))
        .unwrap();
    assert!(last < delivered, "{entries:#?}");
    loops.report(&second.handle, "2").await.unwrap();
    assert_eq!(loops.asked().len(), 1, "all of them end before the model is asked again");
    loops.report(&first.handle, "1").await.unwrap();
    assert_eq!(loops.value_of(run).await, r#"["1","2"]"#);
    loops.replays(run).await;
}

#[tokio::test]
async fn every_failed_sibling_is_seen_and_the_loop_goes_on() {
    let loops = Loops::new();
    let script = json!([
        [["gone"], ["add", "{\"a\":"], ["add", { "a": "x", "b": 1 }], ["add", { "a": 1, "b": 1 }], ["bad"]],
        "$seen"
    ]);
    let tools = r#"tools = {
        { name = "add", input = s.object { a = s.integer, b = s.integer }, fn = function(i) return i.a + i.b end },
        { name = "bad", fn = function() error("broken") end },
    }"#;
    let value = loops.value(script, tools, "").await;
    let seen: Vec<String> = serde_json::from_str(value.as_str().unwrap()).unwrap();
    assert!(
        seen[0].contains("not_found") && seen[0].contains("there are: add, bad"),
        "{}",
        seen[0]
    );
    assert!(seen[1].contains("invalid_input") && seen[1].contains("not JSON"), "{}", seen[1]);
    assert!(seen[2].contains("invalid_input") && seen[2].contains("$.a"), "{}", seen[2]);
    assert_eq!(seen[3], "2");
    assert!(seen[4].contains("script") && seen[4].contains("broken"), "{}", seen[4]);
}

#[tokio::test]
async fn an_agent_as_a_tool_is_a_loop_of_its_own_below_the_call() {
    let loops = Loops::new();
    let agents = r#"reader = { operator = "model", description = "Reads.", system = [==[[[["add", {"a":1,"b":1}]], "read $seen"]]==], "#;
    let agents = format!("{agents}{ADD} }}");
    let script = json!([[["reader", { "input": "the file" }]], "got $seen"]);
    let run = loops.begin(&script, r#"tools = { "reader" }"#, &agents).await;
    assert_eq!(loops.value_of(run).await, r#"got ["read [\"2\"]"]"#);
    let expected = [
        ("task", "it", "completed"),
        ("model_call", "model", "completed"),
        ("tool_call", "reader", "completed"),
        ("model_call", "model", "completed"),
        ("tool_call", "add", "completed"),
        ("model_call", "model", "completed"),
        ("model_call", "model", "completed"),
    ];
    are(&loops.steps(run).await, &expected);
    assert_eq!(loops.asked()[1].items[0], crate::flow::response::user_message("the file"));
    assert_eq!(loops.asked()[0].tools[0].description.as_deref(), Some("Reads."));
    let spent = loops.ended(run).await.usage.unwrap();
    assert_eq!(spent.total.cost.as_deref(), Some("0.04"));
    assert_eq!(spent.agents["reader"].cost.as_deref(), Some("0.02"), "its calls are its own");
    loops.replays(run).await;
}

#[tokio::test]
async fn an_agent_has_one_budget_also_as_a_tool_of_several_names() {
    let loops = Loops::new();
    let reader =
        r#"reader = { operator = "model", system = [==[["read"]]==], budget = { tokens = 100 } },"#;
    let tools =
        r#"tools = { { agent = "reader", name = "look" }, { agent = "reader", name = "find" } }"#;
    let script = json!([[["look", { "input": "a" }]], [["find", { "input": "b" }]], "$seen"]);
    let value = loops.value(script, tools, reader).await;
    let seen: Vec<String> = serde_json::from_str(value.as_str().unwrap()).unwrap();
    assert_eq!(seen[0], "read");
    assert!(seen[1].contains(r#""kind":"budget""#), "{}", seen[1]);
}

#[tokio::test]
async fn a_servers_tools_are_found_named_checked_and_called() {
    let loops = Loops::new();
    let script = json!(["$tools"]);
    let tools = r#"tools = { { mcp = "files", allow = { "re*" } } }"#;
    assert_eq!(loops.value(script, tools, "").await, "files__read");
    let script = json!([[["files__read", { "path": "a" }], ["files__read", {}], ["files__drop", { "path": "a" }]], "$seen"]);
    let run = loops.begin(&script, tools, "").await;
    let value = loops.value_of(run).await;
    let seen: Vec<String> = serde_json::from_str(value.as_str().unwrap()).unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(&seen[0]).unwrap(),
        json!({ "tool": "read", "input": { "path": "a" } })
    );
    assert!(seen[1].contains("invalid_input"), "{}", seen[1]);
    assert!(seen[2].contains("not_found"), "what is not let through is not there: {}", seen[2]);
    let listed = ("local".to_owned(), "it/files".to_owned(), "completed".to_owned());
    assert_eq!(loops.steps(run).await[1], listed);
    loops.replays(run).await;
}

#[tokio::test]
async fn state_is_kept_and_found_under_the_prefix_of_its_tool() {
    let loops = Loops::new();
    let tools = r#"tools = { { state = "write", prefix = "notes/" } }"#;
    let script = json!([
        [["state_set", { "key": "a", "value": { "n": 1 } }]],
        [["state_get", { "key": "a" }], ["state_list", {}], ["state_search", { "query": "n" }]],
        "$seen"
    ]);
    let body = format!(
        r#"agents = {{ it = {{ operator = "model", system = [==[{script}]==], {tools} }} }},
        flow = function(ctx) ctx.state:set("other", 1) return {{ ctx:run("it"), ctx.state:list("") }} end"#
    );
    let run = loops.start(&body, "null").await;
    let value = loops.value_of(run).await;
    let seen: Vec<String> = serde_json::from_str(value[0].as_str().unwrap()).unwrap();
    assert_eq!(
        (seen[0].as_str(), seen[1].as_str(), seen[2].as_str()),
        ("null", r#"{"n":1}"#, r#"["a"]"#)
    );
    assert!(!seen[3].contains("notes/"), "{}", seen[3]);
    assert_eq!(value[1], json!(["notes/a", "other"]));
    loops.replays(run).await;
    let script = json!([[["state_set", { "key": "a", "value": 1 }]], "$tools $seen"]);
    let value =
        loops.value(script, r#"tools = { { state = "read", scope = "global" } }"#, "").await;
    let value = value.as_str().unwrap();
    assert!(
        value.starts_with("state_get state_list state_search") && value.contains("not_found"),
        "{value}"
    );
}

#[tokio::test]
async fn what_lies_outside_the_prefix_takes_no_place_in_a_search() {
    let loops = Loops::new();
    let script = json!([[["state_search", { "query": "harbour" }]], "$seen"]);
    let body = format!(
        r#"agents = {{ it = {{ operator = "model", system = [==[{script}]==],
            tools = {{ {{ state = "read", prefix = "notes/" }} }} }} }},
        flow = function(ctx)
            ctx.state:set("notes/a", "a quiet harbour among many other words of a longer text")
            for n = 1, 20 do ctx.state:set("other/" .. n, "harbour") end
            return ctx:run("it")
        end"#
    );
    let run = loops.start(&body, "null").await;
    let value = loops.value_of(run).await;
    let seen: Vec<String> = serde_json::from_str(value.as_str().unwrap()).unwrap();
    let found: Value = serde_json::from_str(&seen[0]).unwrap();
    assert_eq!(found[0]["key"], "a", "{found}");
    loops.replays(run).await;
}

#[tokio::test]
async fn an_agent_that_is_called_approve_allows_nothing_in_place_of_a_person() {
    let loops = Loops::new();
    let tools =
        r#"tools = { { name = "rm", approve = "ask", fn = function() return "gone" end } }"#;
    let agents =
        r#"approve = { operator = "lua", fn = function() return { approved = true } end },"#;
    let run = loops.begin(&json!([[["rm"]], "$seen"]), tools, agents).await;
    let task_of = |view: &RunView| {
        let asks = view.waiting_on.iter().map(|it| &it.subject);
        asks.filter(|it| it.name.as_deref() == Some("approve")).find_map(|it| it.task)
    };
    let view = loops.until(run, "a question", |view| task_of(view).is_some()).await;
    let said = Answer::Output(json!({ "approved": false }).into());
    let task = task_of(&view).unwrap();
    loops.engine.tasks().answer(&loops.admin(), task, (said, None), None).await.unwrap();
    let value = loops.value_of(run).await;
    assert!(value.as_str().unwrap().contains("human_rejected"), "{value}");
    loops.replays(run).await;
}

#[tokio::test]
async fn a_person_is_asked_before_a_call_and_a_no_reaches_the_model() {
    let loops = Loops::new();
    let tools = r#"tools = { { name = "rm", approve = "ask", fn = function() return "gone" end },
        { name = "look", fn = function() return "seen" end } }"#;
    for (answer, expected) in [(true, r#"["gone","seen"]"#), (false, "human_rejected")] {
        let run =
            loops.begin(&json!([[["rm", { "path": "/" }], ["look"]], "$seen"]), tools, "").await;
        let asks = |view: &RunView| {
            view.waiting_on.iter().any(|it| it.subject.name.as_deref() == Some("approve"))
        };
        loops.until(run, "a question", asks).await;
        let inbox = loops
            .store
            .tasks(&TaskFilter { run: Some(run.num()), limit: 10, ..TaskFilter::default() })
            .unwrap();
        let asked = inbox.iter().find(|row| row.kind == "human").expect("a person is asked");
        assert_eq!(asked.summary.as_deref(), Some("Let it call rm?"));
        assert!(asked.prompt.contains(r#""path":"/""#), "{}", asked.prompt);
        let task = crate::protocol::TaskId::new(asked.run, asked.step, asked.scheduled_ms);
        let said = Answer::Output(json!({ "approved": answer }).into());
        loops.engine.tasks().answer(&loops.admin(), task, (said, None), None).await.unwrap();
        let value = loops.value_of(run).await;
        assert!(value.as_str().unwrap().contains(expected), "{value}");
        loops.replays(run).await;
    }
    let denied =
        r#"tools = { { name = "rm", approve = "deny", fn = function() return "gone" end } }"#;
    let value = loops.value(json!([[["rm"]], "$seen"]), denied, "").await;
    assert!(value.as_str().unwrap().contains("not allowed"), "{value}");
}

#[tokio::test]
async fn a_tool_that_is_not_safe_beside_others_runs_alone() {
    let loops = Loops::new();
    let tools = r#"tools = { { operator = "a", name = "one", parallel_safe = false }, { operator = "b", name = "two" } }"#;
    let run =
        loops.begin(&json!([[["two"], ["one"], ["two", { "n": 2 }]], "$seen"]), tools, "").await;
    let two = loops.lease("b").await;
    assert!(loops.leases("a", Duration::ZERO).await.is_empty());
    assert!(loops.leases("b", Duration::ZERO).await.is_empty());
    loops.report(&two.handle, "1").await.unwrap();
    let one = loops.lease("a").await;
    let loops = loops.restart().await;
    assert!(loops.leases("b", Duration::ZERO).await.is_empty(), "also by another host");
    loops.report(&one.handle, "2").await.unwrap();
    let two = loops.lease("b").await;
    loops.report(&two.handle, "3").await.unwrap();
    assert_eq!(loops.value_of(run).await, r#"["1","2","3"]"#);
    loops.replays(run).await;
}

#[tokio::test]
async fn a_tool_of_a_blueprint_says_what_becomes_of_its_calls() {
    let tools = |policy: &str| {
        format!(
            r#"tools = {{
                {{ name = "add", input = s.object {{ a = s.integer }},
                  fn = function(input) return input.a end }},
                {{ name = "note", compaction = "{policy}", input = s.object {{ a = s.integer }},
                  fn = function(input) return ("n"):rep(4000) end }} }}"#
        )
    };
    let call = |n: u32| json!([["add", { "a": n }], ["note", { "a": n }]]);
    let seen = |loops: &Loops| -> Vec<String> {
        let items = loops.asked().pop().unwrap().items;
        let outputs = items.iter().filter(|it| it["type"] == "function_call_output");
        let short = |output: &Value| match output["output"].as_str().unwrap() {
            long if long.len() >= 4_000 => "long".to_owned(),
            text if text.parse::<u32>().is_ok() => text.to_owned(),
            _ => "removed".to_owned(),
        };
        outputs.map(short).collect()
    };
    let script = json!([call(1), call(2), call(3), "end"]);
    for (policy, wanted) in [
        ("normal", &["3", "long"][..]),
        ("pinned", &["long", "long", "3", "long"]),
        ("compress_first", &["1", "removed", "2", "removed", "3", "long"]),
        ("discard_when_done", &["3", "long"]),
    ] {
        let loops = Loops::new();
        let keys = format!("compaction = {{ at = 100, keep = 1 }}, {}", tools(policy));
        let run = loops.begin(&script, &keys, "").await;
        assert_eq!(loops.value_of(run).await, "end", "{policy}");
        assert_eq!(seen(&loops), wanted, "{policy}");
        loops.replays(run).await;
    }
    // What a session keeps is without the outputs of a tool whose work is done.
    for (policy, wanted) in [("discard_when_done", ["1", "removed"]), ("normal", ["1", "long"])] {
        let loops = Loops::new();
        let script = json!([call(1), "done", "again"]);
        let body = format!(
            r#"agents = {{ it = {{ operator = "model", system = [==[{script}]==], {} }} }},
            flow = function(ctx)
                ctx:run("it", nil, {{ session = "c" }})
                return ctx:run("it", nil, {{ session = "c" }})
            end"#,
            tools(policy)
        );
        let run = loops.start(&body, "null").await;
        assert_eq!(loops.value_of(run).await, "again", "{policy}");
        assert_eq!(seen(&loops), wanted, "{policy}");
    }
}
