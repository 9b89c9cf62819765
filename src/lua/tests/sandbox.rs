use std::sync::atomic::AtomicBool;

use super::*;

#[test]
fn the_environment_holds_what_is_allowed_and_nothing_else() {
    let value = Bench::new().value(
        r#"return { collectgarbage == nil, gcinfo == nil, newproxy == nil, loadstring == nil, getfenv == nil, setfenv == nil,
                    buffer == nil, vector == nil, integer == nil, _G == nil, load == nil, dofile == nil, class == nil, rawget(os, "time") == nil }"#,
    );
    assert!(value.as_array().unwrap().iter().all(|absent| absent == &json!(true)), "{value}");
}

#[test]
fn what_is_missing_says_what_to_use() {
    let mut bench = Bench::new();
    for (body, said) in [
        ("os.time()", "use ctx:now()"),
        ("io.open(\"x\")", "a process agent"),
        ("debug.traceback()", "debug.traceback is not available"),
        ("math.random()", "use ctx:random"),
        ("math.randomseed(1)", "ctx:random is seeded"),
        ("setmetatable({}, { __mode = \"k\" })", "__mode is not available"),
        ("string.foo = 1", "readonly"),
        ("getmetatable(\"\").__index = 1", "attempt to index boolean"),
        ("for k in pairs({ [{}] = 1 }) do end", "no fixed order"),
        ("next({ [print] = 1 })", "no fixed order"),
        ("string.rep(\"x\", 1e9)", "string.rep: the result is larger"),
        ("table.create(1e9)", "table.create: more than"),
        ("table.move({}, 1, 1e9, 2)", "table.move: more than"),
        ("table.move({}, 0 / 0, 9, 2)", "main.lua:1: table.move: more than"),
        ("table.move({}, 1e10, -2, -5)", "table.move: more than"),
        (
            "string.find(string.rep(\"a\", 1e6), \"[\" .. string.rep(\"b\", 1000) .. \"]*\")",
            "main.lua:1: the pattern is too long",
        ),
        (
            "string.gsub(string.rep(\"a\", 1e6), \"[\" .. string.rep(\"b\", 1000) .. \"]*\", \"\")",
            "main.lua:1: the pattern is too long",
        ),
        (
            "table.concat({ string.rep(\"x\", 1e7), string.rep(\"y\", 1e7) })",
            "table.concat: the result is larger",
        ),
        ("ctx:run(\"x\", swarm.time.parse(\"soon\"))", "\"soon\" is not a time"),
        ("setmetatable(swarm, {})", "readonly"),
        ("swarm.schema.string.type = 1", "readonly"),
        ("return s.strin", "did you mean string?"),
        ("return s.integer { minimm = 1 }", "did you mean minimum?"),
    ] {
        let failure = bench.failure(body);
        assert!(failure.message.contains(said), "{body}: {failure}");
    }
}

#[test]
fn replaced_functions_still_do_their_work() {
    let mut bench = Bench::new();
    let found = bench.value(
        r#"local big = string.rep("ab", 700000) .. "needle" .. string.rep("x", 10)
           return { { string.find(big, "needle", 1, true) }, { string.find(big, "needle") }, { string.find(big, "needle", -16) },
                    { ("x.y"):find(".", 1, true) }, { ("xy"):find("(y)") } }"#,
    );
    let place = json!([1_400_001, 1_400_006]);
    assert_eq!(found, json!([place, place, place, [2, 2], [2, 2, "y"]]));
    let parts = bench.value(
        r#"local parts = string.split(string.rep("aaaaaaaaaaaaaaaaaaaaaaa,", 50000), ",")
           return { #parts, parts[50000], parts[50001], #string.split("ab", ""), table.concat(string.split("a b", " "), "|") }"#,
    );
    assert_eq!(parts, json!([50_001, "aaaaaaaaaaaaaaaaaaaaaaa", "", 2, "a|b"]));
    let sorted = bench.value(
        "local list = {} for i = 1, 5000 do list[i] = 5001 - i end table.sort(list) return { list[1], list[5000] }",
    );
    assert_eq!(sorted, json!([1, 5000]));
    let texts = bench.value(
        r#"local long = string.rep("x", 100000) local list = {} for i = 1, 100 do list[i] = long .. (101 - i) end table.sort(list)
           return { list[1] == long .. 1, list[2] == long .. 10, list[100] == long .. 99 }"#,
    );
    assert_eq!(texts, json!([true, true, true]));
    let patterns = bench.value(
        r#"local words = {} for word in string.gmatch("a b", "[ab]") do table.insert(words, word) end
           return { words, { string.match("k=v", "([a-z])=(.)") }, { ("aXa"):gsub("[A-Z]", "-") }, { ("a"):find("[a]", 1) } }"#,
    );
    assert_eq!(patterns, json!([["a", "b"], ["k", "v"], ["a-a", 1], [1, 1]]));
    let long = bench.value(
        r#"local text, word = string.rep("a", 1000000), string.rep("a", 500)
           return { text:match(word .. "[^]b]") == word .. "a", text:find("^" .. word .. "%b[][]]") == nil }"#,
    );
    assert_eq!(long, json!([true, true]));
    let rest = bench.value(
        r#"return { table.concat({ 1, 2, "x" }, "-", 2, 3), table.concat(table.move({ 1, 2, 3 }, 2, 3, 1), ","),
                    ("x"):rep(3), #table.create(3, 0), { next({ 5 }) }, tostring({}), tostring(print), string.format("%s %d %q %*", {}, 5, "a", {}),
                    `{ {} } {1}`, tostring(setmetatable({}, { __tostring = function() return "mine" end })), tostring(1.5), tostring(nil) }"#,
    );
    assert_eq!(
        rest,
        json!([
            "2-x",
            "2,3,3",
            "xxx",
            3,
            [1, 5],
            "table",
            "function",
            "table 5 \"a\" table",
            "table 1",
            "mine",
            "1.5",
            "nil"
        ])
    );
}

#[test]
fn runs_share_nothing_but_the_frozen_base() {
    let source = bundle(&[
        (
            "main.lua",
            "local swarm = require(\"swarm\") local m = require(\"./m\") n = (n or 0) + 1 m.n = m.n + 1 \
          return swarm.blueprint { name = \"t\", flow = function() n = n + 1 m.n = m.n + 1 return { n, m.n } end }",
        ),
        ("m.luau", "return { n = 0 }"),
    ]);
    let mut bench = Bench::new();
    for _ in 0..3 {
        let (next, _) = bench.run_with(&source, &json!({}), echo);
        assert_eq!(next, NextAction::Complete(Json::from(&json!([2, 2]))));
    }
    assert_eq!(bench.vms.vms(), 1);
    assert_eq!(bench.vms.live(), 0);
}

#[test]
fn modules_are_relative_to_their_file_and_stay_in_the_bundle() {
    let main = |path: &str| {
        format!(
            "local m = require({path:?}) return require(\"swarm\").blueprint {{ name = \"t\", flow = function() return m end }}"
        )
    };
    let files = |path: &str| {
        bundle(&[
            ("main.lua", &main(path)),
            ("lib/a.luau", "return { require(\"./b\"), require(\"../c\"), require(\"./b\") }"),
            ("lib/b.lua", "return \"b\""),
            ("c/init.luau", "return \"c\""),
            ("loop.luau", "return require(\"./loop\")"),
            ("bad.luau", "return ("),
        ])
    };
    let mut bench = Bench::new();
    let (next, _) = bench.run_with(&files("./lib/a"), &json!({}), echo);
    assert_eq!(next, NextAction::Complete(Json::from(&json!(["b", "c", "b"]))));
    for (path, said) in [
        ("../x", "is outside of the bundle"),
        ("./lib/../../x", "is outside of the bundle"),
        ("/etc/passwd", "there is \"swarm\""),
        ("os", "there is \"swarm\""),
        ("swarm.test", "`moonswarm test` runs"),
        ("./none", "the bundle has no file none.luau"),
        ("./loop", "requires itself"),
        ("./bad", "bad.luau:1: "),
    ] {
        let (next, _) = bench.run_with(&files(path), &json!({}), echo);
        let NextAction::Fail(failure) = next else { panic!("{path}: {next:?}") };
        assert!(failure.message.contains(said), "{path}: {failure}");
    }
}

#[test]
fn evaluation_gives_the_definition_as_data() {
    let source = bundle(&[
        (
            "main.lua",
            r#"local swarm = require("swarm")
local s = swarm.schema
return swarm.blueprint {
  name = "x", input = s.object { issue = s.string, n = s.integer { default = 3, minimum = 1 }, tags = s.array(s.string) { default = {} }, o = s.enum { "a", "b" } { optional = true } },
  agents = {
    r = swarm.agent_md("agents/r.md", { operator = "echo", output = s.object { any = s.any, u = s.union { s.string, s.null }, m = s.map(s.number { max_length = 3 }) } }),
    raw = { operator = "lua", input = { type = "string" },
      fn = function(i) return i end },
  },
  flow = function(ctx) end,
}"#,
        ),
        ("agents/r.md", "You review."),
    ]);
    assert_eq!(
        evaluate(&source, &Limits::default()).unwrap(),
        json!({
            "name": "x",
            "input": {
                "type": "object",
                "properties": {
                    "issue": { "type": "string" },
                    "n": { "type": "integer", "default": 3, "minimum": 1 },
                    "tags": { "type": "array", "items": { "type": "string" }, "default": [] },
                    "o": { "enum": ["a", "b"] },
                },
                "required": ["issue"],
            },
            "agents": {
                "r": {
                    "operator": "echo", "system": "You review.", "description": "agents/r.md",
                    "output": {
                        "type": "object",
                        "properties": {
                            "any": {},
                            "m": { "type": "object", "additionalProperties": { "type": "number", "maxLength": 3 } },
                            "u": { "anyOf": [{ "type": "string" }, { "type": "null" }] },
                        },
                        "required": ["any", "m", "u"],
                    },
                },
                "raw": {
                    "operator": "lua", "input": { "type": "string" },
                    "fn": { "$function": { "file": "main.lua", "line": 8 } },
                },
            },
            "flow": { "$function": { "file": "main.lua", "line": 10 } },
        })
    );
}

#[test]
fn a_wrong_source_is_refused_with_its_place() {
    let error = |text: &str| {
        let limits = Limits { evaluate_ms: 50, evaluate_memory: 8 << 20, ..Limits::default() };
        let mut errors = evaluate(&bundle(&[("main.lua", text)]), &limits).unwrap_err();
        errors.remove(0)
    };
    let syntax = error("local x = 1\nlocal y = = 2");
    assert_eq!((syntax.code, syntax.line, syntax.file.as_str()), ("MS-L0001", Some(2), "main.lua"));
    let raised = error("\n\nerror(\"boom\")");
    assert_eq!((raised.code, raised.line, raised.message.as_str()), ("MS-L0002", Some(3), "boom"));
    assert_eq!(error("return { name = \"x\" }").code, "MS-L0003");
    assert_eq!(error("return 5").code, "MS-L0003");
    assert_eq!(error("while true do end").code, "MS-L0004");
    assert_eq!(
        error("local t = {} while true do t[#t + 1] = string.rep(\"x\", 1000) .. #t end").code,
        "MS-L0004"
    );
    assert_eq!(error("\u{1b}Lua\u{0}\u{1}").code, "MS-L0001");
    assert_eq!(
        error(&format!("return {}1{}", "(".repeat(100_000), ")".repeat(100_000))).code,
        "MS-L0001"
    );
    assert_eq!(
        error(&format!("return {}{}", "{".repeat(100_000), "}".repeat(100_000))).code,
        "MS-L0001"
    );
    assert_eq!(error(&format!("return {}1", "not ".repeat(200_000))).code, "MS-L0001");
    let none = evaluate(&bundle(&[("other.lua", "")]), &Limits::default()).unwrap_err();
    assert_eq!(none[0].code, "MS-L0005");
}

#[test]
fn an_agent_s_function_sees_only_its_input() {
    let source = bundle(&[(
        "main.lua",
        r#"local swarm = require("swarm")
           return swarm.blueprint { name = "x", agents = {
             sum = { operator = "lua", fn = function(input) print("x") return { total = input.a + input.b } end },
             fail = { fn = function() swarm.fail("mine", "no") end },
             loop = { fn = function() while true do end end },
             bomb = { fn = function() local s = {} while true do s[#s + 1] = {} end end },
             huge = { fn = function() local s = "x" while true do s = s .. s end end },
             bad = { fn = function() return print end },
           } }"#,
    )]);
    let limits = TaskLimits { cpu_ms: 50, memory: 16 << 20, value: 1 << 20 };
    let off = AtomicBool::new(false);
    let call = |agent: &str, cancel: &AtomicBool| {
        call_agent(&source, agent, &Json::from(&json!({ "a": 2, "b": 3 })), &limits, cancel)
    };
    assert_eq!(call("sum", &off).unwrap().to_value(), json!({ "total": 5 }));
    assert_eq!(call("fail", &off).unwrap_err().kind, "mine");
    let loops = call("loop", &off).unwrap_err();
    assert_eq!(loops.kind, "limit");
    assert!(loops.message.contains(".lua:5: the agent ran for"), "{loops:?}");
    assert_eq!(call("bomb", &off).unwrap_err().kind, "limit");
    assert_eq!(call("huge", &off).unwrap_err().kind, "limit");
    assert_eq!(call("bad", &off).unwrap_err().kind, "script");
    assert_eq!(call("none", &off).unwrap_err().kind, "script");
    assert_eq!(call("loop", &AtomicBool::new(true)).unwrap_err().kind, "canceled");
}

#[test]
fn more_runs_than_a_vm_has_accounts_get_another_vm() {
    let mut bench = Bench::with(Limits { runs_per_vm: 3, idle_vms: 1, ..Limits::default() });
    let source = flow_source("ctx:run(\"x\")");
    let mut flows: Vec<_> = (0..7).map(|_| bench.flow(&source)).collect();
    for flow in &mut flows {
        assert_eq!(flow.advance(Input::Start, 0).commands.len(), 1);
    }
    assert_eq!((bench.vms.vms(), bench.vms.live()), (3, 7));
    drop(flows);
    assert_eq!((bench.vms.vms(), bench.vms.live()), (1, 0));
}

#[test]
fn a_value_that_does_not_fit_is_never_its_neighbours_fault() {
    let mut bench = Bench::with(Limits { vm_memory: 6 << 20, ..Limits::default() });
    let source = flow_source("local ok, got = pcall(ctx.run, ctx, \"x\") return { ok, #got }");
    let big = Json::from_trusted(format!("[{}1]", "[],".repeat(120_000)));
    let key = StepKey::new(crate::journal::ScopePath::main(), 0);
    let other = RunFacts { run_id: "run_2".to_owned(), ..facts(&json!({})) };
    let mut neighbour = bench.vms.start(&source, other, RunLimits::default()).unwrap();
    neighbour.advance(Input::Start, 0);
    let mut flow = bench.flow(&source);
    flow.advance(Input::Start, 0);
    let input = Input::Completed { key: key.clone(), output: big };
    let broken = flow.advance(input.clone(), 1);
    assert!(matches!(broken.next, NextAction::Broken(_)), "{:?}", broken.next);
    let told = Input::Completed { key, output: Json::null() };
    assert!(matches!(neighbour.advance(told, 1).next, NextAction::Broken(_)));
    drop((flow, neighbour));
    let mut again = bench.flow(&source);
    again.advance(Input::Start, 0);
    let done = again.advance(input, 1);
    assert_eq!(done.next, NextAction::Complete(Json::from(&json!([true, 120_001]))));
    assert_eq!(bench.vms.vms(), 0);
}
