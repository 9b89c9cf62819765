//! Looks at the calls of a flow at the moment when it asks for a step.

use super::*;
use crate::journal::ScopePath;

fn named(source: &Arc<Source>) -> Arc<Source> {
    Arc::new((**source).clone().with_names())
}

/// The moment at which a flow asks for a step, with every task answered by its input.
fn moment_of(source: &Arc<Source>, key: &StepKey) -> Option<Moment> {
    let mut bench = Bench::new();
    let mut flow = bench.flow(&named(source));
    flow.watch(key.clone(), |text| text.contains("hush").then(|| text.replace("hush", "[gone]")));
    drive(&mut flow, echo);
    flow.moment()
}

fn main_key(index: u32) -> StepKey {
    StepKey::new(ScopePath::main(), index)
}

fn at(body: &str, index: u32) -> Moment {
    moment_of(&flow_source(body), &main_key(index)).expect("the flow asks for it")
}

/// The variables of a call as JSON: `{"name": value}`, one object for each role.
fn variables(frame: &StackFrame) -> Value {
    let of = |role: VariableRole| -> Value {
        let own = frame.variables.iter().filter(|it| it.role == role);
        own.map(|it| (it.name.clone(), it.value.clone())).collect()
    };
    json!([of(VariableRole::Argument), of(VariableRole::Local), of(VariableRole::Upvalue)])
}

/// The locals of the innermost call.
fn locals(body: &str) -> Value {
    variables(&at(body, 0).branches[0].frames[0])[1].clone()
}

#[test]
fn a_call_has_its_arguments_locals_and_upvalues_as_they_were_then() {
    let body = "
        local total, base = 0, 7
        local function ask(n, ...)
            local twice = n * 2
            local got = ctx:run('e', twice + base)
            total += got
            return got
        end
        for i = 1, 3 do
            local label = 'round ' .. i
            ask(i, 'x', label)
        end";
    let moment = at(body, 2);
    assert_eq!((moment.branches.len(), moment.more), (1, 0));
    let [ask, flow] = &moment.branches[0].frames[..] else { panic!("{moment:?}") };
    assert_eq!((ask.function.as_deref(), &*ask.file, ask.line), (Some("ask"), "main.lua", 5));
    let own = variables(ask);
    assert_eq!(own[0], json!({ "n": 3, "...[1]": "x", "...[2]": "round 3" }));
    assert_eq!(own[1], json!({ "twice": 6 }), "what the call gives is not there yet");
    assert_eq!(own[2]["total"], 20, "9 and 11 were added");
    assert_eq!((&own[2]["base"], &own[2]["ctx"]), (&json!(7), &json!({ "$object": "ctx" })));
    assert_eq!((flow.function.as_deref(), flow.line), (Some("flow"), 11));
    let around = variables(flow);
    assert_eq!(around[0]["input"], json!({}));
    assert_eq!((&around[1]["i"], &around[1]["label"]), (&json!(3), &json!("round 3")));
    assert_eq!(around[1]["total"], 20);
    assert_eq!(around[1]["ask"]["$function"]["line"], 3);
    assert_eq!(at(body, 0).branches[0].frames[0].variables[0].value, 1);
}

#[test]
fn the_branch_that_asked_comes_first_then_those_around_it_then_others() {
    let source = flow_source(
        "local all = { 'a', 'b', 'c' }
        ctx:map(all, function(x)
            local mine = x .. '!'
            ctx:run('e', mine)
        end)",
    );
    let key = StepKey::new(ScopePath::main().branch(0, 1), 0);
    let moment = moment_of(&source, &key).unwrap();
    let shown: Vec<_> = moment
        .branches
        .iter()
        .map(|it| (it.name.as_deref(), it.waits.as_ref().map(ToString::to_string)))
        .collect();
    let waits = |key: &str| Some(key.to_owned());
    assert_eq!(
        shown,
        [
            (Some("map, item 2"), waits("0.1/0")),
            (None, None),
            (Some("map, item 1"), waits("0.0/0")),
        ],
        "item 3 has not begun: {moment:?}"
    );
    assert_eq!(variables(&moment.branches[0].frames[0])[1], json!({ "mine": "b!" }));
    assert_eq!(variables(&moment.branches[1].frames[0])[1], json!({ "all": ["a", "b", "c"] }));
    // The timer of a timeout is asked for where the timeout is.
    let source = flow_source("local n = 1\nctx:timeout(9, function() ctx:wait('go') end)");
    let key = StepKey::new(ScopePath::main().branch(0, 1), 0);
    let moment = moment_of(&source, &key).unwrap();
    assert_eq!(variables(&moment.branches[0].frames[0])[1], json!({ "n": 1 }));
    // Of many branches a few are read.
    let many = "local t = {} for i = 1, 500 do t[i] = i end
        ctx:map(t, function(x) local big = string.rep('x', 5000) ctx:run('e', x) end)";
    let key = StepKey::new(ScopePath::main().branch(0, 499), 0);
    let moment = moment_of(&flow_source(many), &key).unwrap();
    assert_eq!((moment.branches.len(), moment.more), (16, 485));
}

#[test]
fn values_are_shown_within_bounds_and_cycles_and_functions_by_what_they_are() {
    let shown = locals(
        "local list, empty, none, gone = { 1, 2, 3 }, {}, nil, swarm.null
        local mixed = { 'a', 'b', name = 'x', [2.5] = true, [false] = 0 }
        local ring = { deep = {} } ring.deep.back = ring
        local nan, huge, half = 0 / 0, math.huge, 0.5
        local long, bytes = string.rep('ä', 5000), '\\255\\254'
        local many = {} for i = 1, 10000 do many[i] = i end
        local named = {} for i = 1, 3000 do named['k' .. i] = i end
        local deep = {} do local at = deep for i = 1, 20 do at.x = {} at = at.x end end
        local thread = coroutine.create(function() end)
        local odd = { ['$more'] = 1, ['[1]'] = 2, [1.5] = 3 }
        local lib, part, call = swarm, swarm.json, ctx.run
        ctx:run('e', 1)",
    );
    assert_eq!(shown["list"], json!([1, 2, 3]));
    assert_eq!(
        (&shown["empty"], &shown["none"], &shown["gone"]),
        (&json!({}), &json!(null), &json!(null))
    );
    assert_eq!(
        shown["mixed"],
        json!({ "[1]": "a", "[2]": "b", "[2.5]": true, "name": "x", "[false]": 0 })
    );
    assert_eq!(shown["ring"], json!({ "deep": { "back": { "$cycle": "$" } } }));
    assert_eq!(
        (&shown["nan"], &shown["huge"]),
        (&json!({ "$number": "nan" }), &json!({ "$number": "inf" }))
    );
    assert_eq!(shown["half"], 0.5);
    assert_eq!(shown["long"]["$text"].as_str().unwrap().len(), 2_000);
    assert_eq!(shown["long"]["bytes"], 10_000);
    assert_eq!(shown["bytes"], json!({ "$bytes": 2 }));
    assert_eq!(shown["many"].as_array().unwrap().len(), 51);
    assert_eq!(shown["many"][50], json!({ "$more": 9_950 }));
    assert_eq!(shown["named"].as_object().unwrap().len(), 51);
    assert_eq!(shown["named"]["$more"], 1_950, "at least");
    assert!(shown["deep"].to_string().contains("{\"$table\":\"deeper\"}"), "{}", shown["deep"]);
    assert_eq!(shown["thread"], json!({ "$type": "thread" }));
    assert_eq!(shown["odd"], json!({ "[1.5]": 3, "[\"$more\"]": 1, "[\"[1]\"]": 2 }));
    assert_eq!(
        (&shown["lib"], &shown["part"]),
        (&json!({ "$object": "swarm" }), &json!({ "$object": "swarm.json" }))
    );
    assert_eq!(shown["call"], json!({ "$function": { "name": "run" } }));
}

#[test]
fn nothing_of_the_authors_runs_for_a_look() {
    let body = "
        local seen = 0
        local function count() seen += 1 while true do end end
        local trap = setmetatable({ own = 1 }, { __index = count, __len = count, __iter = count,
            __tostring = count, __eq = count, __call = count, __newindex = count })
        local frozen = table.freeze { trap }
        local kept = { [trap] = trap }
        ctx:run('e', 1)
        return seen";
    let shown = locals(body);
    assert_eq!((&shown["seen"], &shown["trap"]), (&json!(0), &json!({ "own": 1 })));
    assert_eq!(
        (&shown["frozen"], &shown["kept"]),
        (&json!([{ "own": 1 }]), &json!({ "[table 1]": { "own": 1 } }))
    );
    // The flow goes on as if nobody had looked.
    let mut bench = Bench::new();
    let mut flow = bench.flow(&named(&flow_source(body)));
    flow.watch(main_key(0), |_| None);
    assert_eq!(drive(&mut flow, echo).0, NextAction::Complete(Json::from_trusted("0")));
    assert!(flow.has_seen() && flow.moment().is_some() && flow.moment().is_none());
}

#[test]
fn what_must_not_be_shown_is_cleaned_before_a_text_is_cut() {
    let shown = locals(
        "local a, b = 'say hush', { hush = 'x', ['hush!'] = { 'hush' } }
        local c = string.rep('x', 1997) .. 'hush' .. string.rep('y', 100)
        ctx:run('e', 1)",
    );
    assert_eq!(shown["a"], "say [gone]");
    assert_eq!(shown["b"], json!({ "[\"[gone]\"]": "x", "[\"[gone]!\"]": ["[gone]"] }));
    assert!(!shown.to_string().contains("hu"), "{shown}");
}

#[test]
fn a_moment_is_bounded_however_much_there_is_to_see() {
    let body = "
        local wide = {} for i = 1, 200 do
            wide[i] = {} for j = 1, 200 do wide[i][j] = { text = string.rep('x', 300) } end
        end
        local shared = {} for i = 1, 40 do shared[i] = wide end
        local function deep(n, ...)
            local a, b, c, d = wide, shared, { wide, shared }, string.rep('y', 100000)
            if n == 0 then return ctx:run('e', 1) end
            return (deep(n - 1, a, b, c, d, ...))
        end
        deep(60)";
    let moment = at(body, 0);
    let branch = &moment.branches[0];
    assert_eq!((branch.frames.len(), branch.more), (20, 42));
    let bytes: usize = branch.frames.iter().map(|it| variables(it).to_string().len()).sum();
    assert!(bytes < 2 << 20, "{bytes}");
    assert!(format!("{:?}", branch.frames[19]).contains("$cut"));
}

#[test]
fn a_flow_that_is_a_table_and_a_step_that_is_never_asked_for_have_no_calls() {
    let table = bundle(&[(
        "main.lua",
        "local swarm = require('swarm') return swarm.blueprint { name = 't',
            agents = { e = { operator = 'echo' } },
            flow = { kind = 'step', agent = 'e', input = { n = 1 } } }",
    )]);
    let moment = moment_of(&table, &main_key(0));
    assert!(moment.is_none_or(|it| it.branches.is_empty()));
    assert!(moment_of(&flow_source("ctx:run('e', 1)"), &main_key(5)).is_none());
    // Without names a flow has no variables, and is as fast as ever.
    let mut bench = Bench::new();
    let mut flow = bench.flow(&flow_source("local n = 1 ctx:run('e', n)"));
    flow.watch(main_key(0), |_| None);
    drive(&mut flow, echo);
    let moment = flow.moment().unwrap();
    assert!(moment.branches[0].frames[0].variables.iter().all(|it| it.role != VariableRole::Local));
}
