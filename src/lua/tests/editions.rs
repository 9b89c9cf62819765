//! The rules that hold from edition 2 on; edition 1 stays as it was.

use serde_json::{Value, json};

use super::*;

/// A blueprint of edition 2 whose flow has `body`.
fn second(body: &str) -> Arc<Source> {
    let text = flow_text(body).replace("name = \"t\"", "name = \"t\", edition = 2");
    bundle(&[("main.lua", &text)])
}

fn value(body: &str) -> Value {
    match Bench::new().run_with(&second(body), &json!({}), echo).0 {
        NextAction::Complete(json) => json.to_value(),
        other => panic!("{body}: {other:?}"),
    }
}

fn failure(body: &str) -> String {
    match Bench::new().run_with(&second(body), &json!({}), echo).0 {
        NextAction::Fail(failure) => failure.message,
        other => panic!("{body}: {other:?}"),
    }
}

/// Each way to go through the table `t`, gathering its keys in `keys`.
const LOOPS: [&str; 6] = [
    "for k in t do table.insert(keys, k) end",
    "for k, v in pairs(t) do table.insert(keys, k) end",
    "for k, v in next, t do table.insert(keys, k) end",
    "local k = next(t) while k ~= nil do table.insert(keys, k) k = next(t, k) end",
    "local f, s, k = pairs(t) k = f(s, k) while k ~= nil do table.insert(keys, k) k = f(s, k) end",
    "table.foreach(t, function(k) table.insert(keys, k) end)",
];

fn keys_of(build: &str) -> Vec<Value> {
    let all = LOOPS.map(|go| {
        let shown =
            "for i, k in ipairs(keys) do keys[i] = tostring(k) end return swarm.array(keys)";
        value(&format!("local keys = {{}} {build} {go} {shown}"))
    });
    assert!(all.iter().all(|one| *one == all[0]), "{build}: {all:?}");
    all[0].as_array().unwrap().clone()
}

#[test]
fn every_loop_has_the_list_then_numbers_then_names_by_bytes() {
    let build = "local t = { 10, 20, 30 } t.zeta = 1 t.alpha = 2 t.Mid = 3 t[5] = 4 t[-1] = 5 \
                 t[2.5] = 6 t[true] = 7 t[false] = 8 t[0] = 9";
    let expected = ["1", "2", "3", "-1", "0", "2.5", "5", "Mid", "alpha", "zeta", "false", "true"];
    assert_eq!(keys_of(build), expected);
}

#[test]
fn the_order_does_not_depend_on_how_a_table_was_made() {
    let forth = "local t = {} for i = 1, 40 do t['k' .. i] = i t[i] = i end";
    let back = "local t = {} for i = 90, 1, -1 do t['k' .. i] = i t[i] = i end \
                for i = 90, 41, -1 do t['k' .. i] = nil t[i] = nil end";
    let keys = keys_of(forth);
    assert_eq!(keys, keys_of(back));
    assert_eq!(keys[..3], ["1", "2", "3"]);
    assert_eq!(keys[40..43], ["k1", "k10", "k11"]);
}

#[test]
fn values_of_the_host_come_in_the_order_of_their_names() {
    let got = value(
        "local got = ctx:run('e', { zeta = 1, alpha = { 2, 3 }, mid = 4 }) local keys = {} \
         for k in got do table.insert(keys, k) end \
         local all = ctx:all { z = function() return 1 end, a = function() return 2 end } \
         for k in pairs(all) do table.insert(keys, k) end return keys",
    );
    assert_eq!(got, json!(["alpha", "mid", "zeta", "a", "z"]));
}

#[test]
fn tasks_of_a_loop_are_asked_for_in_the_order_of_its_keys() {
    let source = second("for name in { c = 1, a = 2, b = 3 } do ctx:run(name, {}) end");
    let (_, commands) = Bench::new().run_with(&source, &json!({}), echo);
    assert_eq!(keys(&commands), ["0 a", "1 b", "2 c"]);
}

#[test]
fn a_key_without_an_order_raises_in_every_loop() {
    for go in LOOPS {
        let message = failure(&format!("local keys, t = {{}}, {{ a = 1, [{{}}] = 2 }} {go}"));
        assert!(message.contains("keep a list of its keys"), "{go}: {message}");
    }
    for key in ["print", "coroutine.create(print)"] {
        let message = failure(&format!("for k in {{ [{key}] = 1 }} do end"));
        assert!(message.contains("keep a list of its keys"), "{message}");
    }
}

#[test]
fn what_is_removed_on_the_way_does_not_come_and_what_is_set_is_seen() {
    let got = value(
        "local t, seen = { a = 1, b = 2, c = 3, d = 4 }, {} \
         for k, v in t do table.insert(seen, k .. v) t.b = nil t.d = 9 end return seen",
    );
    assert_eq!(got, json!(["a1", "c3", "d9"]));
}

#[test]
fn iterators_and_metamethods_of_an_author_go_on_as_they_are() {
    let got = value(
        "local out = {} for w in string.gmatch('x y', '%a') do table.insert(out, w) end \
         for k, v in setmetatable({}, { __iter = function() return next, { q = 1, p = 2 } end }) do \
           table.insert(out, k) end \
         local n = 0 local counter = setmetatable({}, { __call = function() n += 1 return if n < 3 then n else nil end }) \
         for i in counter do table.insert(out, tostring(i)) end \
         for k, v in pairs(setmetatable({ 7, 8 }, { __iter = function() error('no') end })) do \
           table.insert(out, tostring(v)) end \
         for i = 3, 1, -1 do table.insert(out, tostring(i)) end return out",
    );
    let given: Vec<Value> = got.as_array().unwrap().clone();
    // The author's own iterator says the order, by the `next` of the edition.
    assert_eq!(given, ["x", "y", "p", "q", "1", "2", "7", "8", "3", "2", "1"]);
}

#[test]
fn errors_in_loops_name_the_authors_line_and_words() {
    let message = failure("\n\nfor k in nil do end");
    assert!(message.starts_with("main.lua:3: attempt to iterate over a nil value"), "{message}");
    let broken = flow_text("for k in t[ do end").replace("name = \"t\"", "edition = 2");
    let source = bundle(&[("main.lua", &broken)]);
    let error = evaluate(&source, &Limits::default()).unwrap_err().remove(0);
    assert!(error.message.contains("got 'do'"), "{error}");
    let taken = flow_text("return __moonswarm_each").replace("name = \"t\"", "edition = 2");
    let error =
        evaluate(&bundle(&[("main.lua", &taken)]), &Limits::default()).unwrap_err().remove(0);
    assert!(error.message.contains("the host's own"), "{error}");
}

#[test]
fn edition_1_iterates_as_it_did() {
    let mut bench = Bench::new();
    let got = bench.value("local n = 0 for k in { a = 1, [{}] = 2 } do n += 1 end return n");
    assert_eq!(got, json!(2));
    let failure = bench.failure("for k in pairs { a = 1, [{}] = 2 } do end");
    assert!(failure.message.contains("keep a list of its keys"), "{failure}");
    assert_eq!(bench.value("return __moonswarm_each == nil"), json!(true));
}

#[test]
fn modules_are_of_the_edition_of_the_blueprint() {
    let main = "local m = require('./m') return require('swarm').blueprint \
                { name = 't', edition = 2, flow = function() return m { b = 1, a = 2, c = 3 } end }";
    let module = "return function(t) local keys = {} for k in t do table.insert(keys, k) end return keys end";
    let source = bundle(&[("main.lua", main), ("m.luau", module)]);
    match Bench::new().run_with(&source, &json!({}), echo).0 {
        NextAction::Complete(json) => assert_eq!(json.to_value(), json!(["a", "b", "c"])),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_task_without_an_input_has_an_empty_object_unless_its_schema_says_otherwise() {
    let source = |edition: u32| {
        let text = format!(
            "local swarm = require('swarm') local s = swarm.schema return swarm.blueprint {{ \
               name = 't', edition = {edition}, \
               agents = {{ free = {{ operator = 'echo' }}, \
                           shaped = {{ operator = 'echo', input = s.object {{}} }}, \
                           text = {{ operator = 'echo', input = s.string }} }}, \
               flow = function(ctx) \
                 return {{ ctx:run('free'), ctx:try('shaped'), ctx:run('free', swarm.null), ctx:run('text') }} \
               end }}"
        );
        bundle(&[("main.lua", &text)])
    };
    let inputs = |edition| {
        let mut seen = Vec::new();
        Bench::new().run_with(&source(edition), &json!({}), |op| {
            let StepOp::Task(task) = op else { panic!("a task") };
            seen.push(task.input.to_value());
            Ok(json!(1))
        });
        seen
    };
    assert_eq!(inputs(2), [json!({}), json!({}), json!(null), json!(null)]);
    assert_eq!(inputs(1), vec![json!(null); 4]);
}

#[test]
fn the_input_of_a_run_cannot_be_changed() {
    let input = json!({ "list": [1, 2], "deep": { "x": 1 } });
    for change in
        ["input.list[1] = 9", "ctx.input.deep.x = 2", "table.sort(input.list)", "input.new = 1"]
    {
        let source = second(&format!("{change} return input"));
        match Bench::new().run_with(&source, &input, echo).0 {
            NextAction::Fail(failure) => {
                assert!(failure.message.contains("readonly"), "{change}: {failure}");
            }
            other => panic!("{change}: {other:?}"),
        }
    }
    let copy = second("local own = table.clone(input.list) own[1] = 9 return { own, input.list }");
    match Bench::new().run_with(&copy, &input, echo).0 {
        NextAction::Complete(json) => assert_eq!(json.to_value(), json!([[9, 2], [1, 2]])),
        other => panic!("{other:?}"),
    }
    let first = flow_source("input.list[1] = 9 return ctx.input");
    match Bench::new().run_with(&first, &input, echo).0 {
        NextAction::Complete(json) => assert_eq!(json.to_value()["list"], json!([9, 2])),
        other => panic!("{other:?}"),
    }
}

#[test]
fn durations_have_one_form() {
    for (text, ..) in
        crate::blueprint::DURATIONS.iter().filter(|(_, ms, strict)| ms.is_some() && !strict)
    {
        let body = format!("ctx:sleep('{text}')");
        let message = failure(&body);
        assert!(message.contains("is not a duration"), "{text}: {message}");
        let (next, _) = Bench::new().run(&body, echo);
        assert!(matches!(next, NextAction::Complete(_)), "{text}: {next:?}");
    }
    assert_eq!(value("ctx:sleep(1) ctx:sleep(0.5) ctx:sleep('1h30m') return true"), json!(true));
}

#[test]
fn the_text_of_an_agent_file_is_no_template_unless_somebody_says_so() {
    let agents = |edition: u32, overrides: &str| {
        let main = format!(
            "local swarm = require('swarm') return swarm.blueprint {{ name = 't', edition = {edition}, \
             agents = {{ a = swarm.agent_md('a.md', {{ operator = 'echo', {overrides} }}) }}, flow = function() end }}"
        );
        let source = bundle(&[("main.lua", &main), ("a.md", "Fill {{ in }}.")]);
        evaluate(&source, &Limits::default()).unwrap()["agents"]["a"]["template"].clone()
    };
    assert_eq!(agents(2, ""), json!(false));
    assert_eq!(agents(2, "template = true"), json!(true));
    assert_eq!(agents(2, "system = 'Fill {{ in }}.'"), Value::Null);
    assert_eq!(agents(1, ""), Value::Null);
}
