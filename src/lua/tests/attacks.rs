//! Scripts that try to take more than their share.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::*;

/// The allowed delay of a script after its slice: the C functions of a debug build are slow, and those
/// that make large values wait for memory. What is not bounded takes seconds.
const LATE: Duration = Duration::from_millis(if cfg!(debug_assertions) { 250 } else { 20 });

/// CPU time of this thread: what the limit counts, whatever else the machine does.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap(), u32::try_from(time.tv_nsec).unwrap())
}

fn limits() -> RunLimits {
    RunLimits { slice_ms: 40, memory: 16 << 20, ..RunLimits::default() }
}

/// Each runs without an end, or builds without an end, in a way of its own.
const ATTACKS: &[(&str, &str)] = &[
    ("a plain loop", "while true do end"),
    ("a repeat loop", "repeat until false"),
    ("recursion under pcall", "local function f() pcall(f) while true do end end f()"),
    ("a loop in a coroutine", "coroutine.wrap(function() while true do end end)()"),
    (
        "a coroutine that yields for ever",
        "local co = coroutine.wrap(function() while true do coroutine.yield() end end) while true do co() end",
    ),
    ("a loop that catches", "while true do pcall(function() while true do end end) end"),
    ("a handler that loops", "xpcall(error, function() while true do end end)"),
    (
        "a handler that catches",
        "while true do xpcall(function() while true do end end, function() while true do end end) end",
    ),
    (
        "coroutines that catch",
        "while true do coroutine.resume(coroutine.create(function() while true do end end)) end",
    ),
    (
        "an __index that loops",
        "return setmetatable({}, { __index = function() while true do end end }).x",
    ),
    (
        "an __add that loops",
        "return setmetatable({}, { __add = function() while true do end end }) + 1",
    ),
    (
        "a __newindex chain",
        "local t = setmetatable({}, { __newindex = function(t, k, v) while true do end end }) t.x = 1",
    ),
    (
        "an __eq that loops",
        "local mt = { __eq = function() while true do end end } return setmetatable({}, mt) == setmetatable({}, mt)",
    ),
    (
        "an __iter that loops",
        "for _ in setmetatable({}, { __iter = function() return function() return 1 end end }) do end",
    ),
    ("a sort comparator that loops", "table.sort({ 1, 2, 3 }, function() while true do end end)"),
    (
        "a long sort",
        "local t = {} for i = 1, 900000 do t[i] = i * 7919 % 900001 end while true do table.sort(t) end",
    ),
    (
        "a sort of long texts",
        "local a = string.rep(\"x\", 2000000) local t = { a .. \"a\", a .. \"b\" } for i = 3, 20000 do t[i] = t[i % 2 + 1] end while true do table.sort(t) end",
    ),
    (
        "patterns with a long set",
        "local s, p = string.rep(\"a\", 1000000), \"[\" .. string.rep(\"b\", 1000000) .. \"a]*\" local all = { string.find, string.match, string.gmatch, string.gsub } while true do for _, f in ipairs(all) do pcall(f, s, p, \"\") end end",
    ),
    (
        "a table.move over all numbers",
        "while true do for _, from in ipairs({ 0 / 0, -1e10, 1e10 }) do pcall(table.move, {}, from, -2, -5) end end",
    ),
    ("a gsub callback that loops", "string.gsub(\"abc\", \".\", function() while true do end end)"),
    (
        "a gsub that grows",
        "local s = string.rep(\"a\", 1000000) while true do s = string.gsub(s, \"a\", \"aa\") end",
    ),
    (
        "a gmatch for ever",
        "while true do for _ in string.gmatch(string.rep(\"a\", 100000), \"a\") do end end",
    ),
    (
        "a pattern bomb",
        "return string.find(string.rep(\"a\", 5000), string.rep(\"a*\", 30) .. \"b\")",
    ),
    ("a second pattern bomb", "return string.match(string.rep(\"a\", 200000), \".-.-.-.-b\")"),
    (
        "a pattern bomb under pcall",
        "while true do pcall(string.find, string.rep(\"a\", 5000), string.rep(\"a*\", 30) .. \"b\") end",
    ),
    (
        "a plain find",
        "local h = string.rep(\"a\", 10000000) local n = string.rep(\"a\", 1000000) .. \"b\" while true do string.find(h, n, 1, true) end",
    ),
    (
        "a plain find without plain",
        "local h = string.rep(\"a\", 10000000) local n = string.rep(\"a\", 1000000) .. \"b\" while true do string.find(h, n) end",
    ),
    (
        "a split",
        "local h = string.rep(\"a\", 10000000) while true do string.split(h, string.rep(\"a\", 1000) .. \"b\") end",
    ),
    ("a split into letters", "return #string.split(string.rep(\"a\", 16000000), \"\")"),
    ("a table.move", "local t = {} while true do table.move(t, 1, 250000, 2) end"),
    (
        "a table.concat",
        "local t = {} for i = 1, 16 do t[i] = string.rep(\"x\", 1000000) end while true do local s = table.concat(t) end",
    ),
    (
        "a table.insert at the front",
        "local t = table.create(900000, 1) while true do table.insert(t, 1, 1) end",
    ),
    ("a table.find", "local t = table.create(900000, 1) while true do table.find(t, 2) end"),
    (
        "an unpack",
        "while true do pcall(function() return select(\"#\", table.unpack(table.create(7000, 1))) end) end",
    ),
    (
        "a format",
        "while true do string.format(string.rep(\"%s\", 100), table.unpack(table.create(100, string.rep(\"x\", 100000)))) end",
    ),
    ("a utf8 walk", "local s = string.rep(\"a\", 10000000) while true do utf8.len(s) end"),
    ("a json loop", "local t = table.create(10000, 1) while true do swarm.json.encode(t) end"),
    (
        "a json decode loop",
        "local t = swarm.json.encode(table.create(10000, 1)) while true do swarm.json.decode(t) end",
    ),
    (
        "an error object whose __tostring loops",
        "error(setmetatable({ kind = \"x\" }, { __tostring = function() while true do end end })) ",
    ),
    (
        "a returned table whose __index loops",
        "return setmetatable({}, { __index = function() while true do end end, __len = function() while true do end end, __iter = function() while true do end end })",
    ),
    ("tables without end", "local t = {} while true do t[#t + 1] = {} end"),
    ("one table without end", "local t = {} local i = 0 while true do i = i + 1 t[i] = i end"),
    ("keys without end", "local t = {} local i = 0 while true do i = i + 1 t[\"k\" .. i] = i end"),
    (
        "strings without end",
        "local t = {} while true do t[#t + 1] = string.rep(\"x\", 1000) .. #t end",
    ),
    ("a doubling string", "local s = \"x\" while true do s = s .. s end"),
    (
        "a doubling string under pcall",
        "local s = \"x\" while true do pcall(function() s = s .. s end) end",
    ),
    (
        "a string of many parts",
        "local s = string.rep(\"x\", 8000000) while true do local r = s .. s .. s .. s .. s .. s .. s .. s .. s .. s end",
    ),
    ("a large pack", "while true do pcall(string.pack, \"c100000000\", \"x\") end"),
    (
        "closures without end",
        "local t = {} while true do local x = #t t[#t + 1] = function() return x end end",
    ),
    (
        "coroutines without end",
        "local t = {} while true do t[#t + 1] = coroutine.create(function() end) end",
    ),
    ("deep recursion", "local function f(n) return 1 + f(n + 1) end while true do pcall(f, 1) end"),
    (
        "deep recursion through C",
        "local function f() string.gsub(\"a\", \"a\", f) end while true do pcall(f) end",
    ),
    ("deep coroutines", "local function f() coroutine.wrap(f)() end while true do pcall(f) end"),
    (
        "deep metatables",
        "local t = {} for i = 1, 200000 do t = setmetatable({}, { __index = t }) end while true do pcall(function() return t.x end) end",
    ),
    ("garbage without end", "while true do local t = { 1, 2, 3, { 4 } } end"),
    ("logs without end", "while true do ctx:log(\"info\", \"x\") end"),
    (
        "large logs",
        "local x = string.rep(\"x\", 1000000) while true do ctx:log(\"info\", x, { x }) end",
    ),
    ("events without end", "while true do ctx:publish(\"t\", 1) end"),
    ("status without end", "while true do ctx:status(\"x\") end"),
    ("spawns without end", "while true do ctx:spawn(function() ctx:run(\"x\") end) end"),
    ("spawns that spawn", "local function f() ctx:spawn(f) ctx:spawn(f) end f() ctx:sleep(1)"),
    ("defers without end", "while true do ctx:defer(print) end"),
    (
        "queries without end",
        "local i = 0 while true do i = i + 1 ctx:on_query(\"q\" .. i, print) end",
    ),
    ("maps of nothing without end", "while true do ctx:map({ 1, 2, 3 }, function() end) end"),
    ("maps within maps", "local function f() ctx:map({ 1, 2 }, f) end f()"),
    ("a map of a huge list", "ctx:map(table.create(900000, 1), function() ctx:run(\"x\") end)"),
    ("random without end", "while true do ctx:random() end"),
    (
        "canceled spawns without end",
        "while true do ctx:spawn(function() ctx:run(\"x\") end):cancel() end",
    ),
];

/// Starts a run and says how its first input ended, and what the longest turn of it took.
fn attack(bench: &mut Bench, source: &Arc<Source>) -> (NextAction, Duration) {
    let mut flow = bench.vms.start(source, facts(&json!({})), limits()).unwrap();
    let (mut input, mut took) = (Input::Start, Duration::ZERO);
    loop {
        let begun = cpu();
        let next = flow.advance(input, 0).next;
        took = took.max(cpu() - begun);
        if next != NextAction::More {
            return (next, took);
        }
        input = Input::More;
    }
}

#[test]
fn every_attack_ends_as_a_failure_of_that_run_alone() {
    let mut bench = Bench::with(Limits { vm_memory: 128 << 20, ..Limits::default() });
    for (name, body) in ATTACKS {
        let body = format!("if input.good then ctx:run(\"a\") return ctx:run(\"b\") end {body}");
        let source = flow_source(&body);
        let neighbour = RunFacts { run_id: "run_2".to_owned(), ..facts(&json!({ "good": true })) };
        let mut good = bench.vms.start(&source, neighbour.clone(), limits()).unwrap();
        assert_eq!(keys(&good.advance(Input::Start, 0).commands), ["0 a"], "{name}");

        let (mut next, mut took) = attack(&mut bench, &source);
        let key = StepKey::new(crate::journal::ScopePath::main(), 0);
        let input = Input::Completed { key, output: Json::null() };
        let mut then = good.advance(input.clone(), 1);
        if let NextAction::Broken(_) = next {
            // The engine's part: it is replayed, in a VM of its own.
            let again;
            (next, again) = attack(&mut bench, &source);
            took = took.max(again);
        }
        if let NextAction::Broken(_) = then.next {
            good = bench.vms.start(&source, neighbour, limits()).unwrap();
            good.advance(Input::Start, 0);
            then = good.advance(input, 1);
        }

        match &next {
            NextAction::Limit(failure) => assert_eq!(failure.kind, "limit", "{name}"),
            NextAction::Fail(failure) => assert!(name.contains("__tostring"), "{name}: {failure}"),
            NextAction::Complete(_) => assert!(name.contains("__index loops"), "{name}"),
            NextAction::Wait
            | NextAction::More
            | NextAction::ContinueAs(_)
            | NextAction::Broken(_) => panic!("{name}: {next:?}"),
        }
        let slice = Duration::from_millis(limits().slice_ms);
        assert!(took < slice + LATE, "{name} took {took:?}");
        assert_eq!((keys(&then.commands), then.next), (vec!["1 b".to_owned()], NextAction::Wait));
    }
}
