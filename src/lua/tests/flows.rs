use super::*;
use crate::{
    flow::{ArtifactOp, Asking, StateOp},
    protocol::Tags,
};

#[test]
fn a_flow_runs_its_steps_and_returns() {
    let mut bench = Bench::new();
    let (next, commands) = bench.run(
        r#"local a = ctx:run("one", { n = 1 })
           local b = ctx:run("two", { n = a.n + 1 }, { timeout = "1h30m", retry = { max_attempts = 3, backoff = "2s" } })
           return { a = a.n, b = b.n }"#,
        echo,
    );
    assert_eq!(next, NextAction::Complete(Json::from(&json!({ "a": 1, "b": 2 }))));
    assert_eq!(keys(&commands), ["0 one", "1 two"]);
    let Command::Schedule(request) = &commands[1] else { panic!() };
    let StepOp::Task(task) = &request.op else { panic!() };
    assert_eq!(task.opts.timeout_ms, Some(5_400_000));
    let retry = task.opts.retry.as_ref().unwrap();
    assert_eq!((retry.max_attempts, retry.backoff_ms, retry.max_ms), (3, 2_000, 300_000));
}

#[test]
fn facts_are_on_ctx_and_the_input_is_given() {
    let source =
        flow_source("return { ctx.run_id, ctx.blueprint, ctx.trigger.kind, input.a, ctx.input.a }");
    let (next, _) = Bench::new().run_with(&source, &json!({ "a": 5 }), echo);
    assert_eq!(next, NextAction::Complete(Json::from(&json!(["run_1", "t@1", "test", 5, 5]))));
}

#[test]
fn a_failed_step_raises_a_table_that_pcall_catches() {
    let fails = |_: &StepOp| {
        Err(Failure::new("worker", "no luck").with_data(Json::from(&json!({ "x": 1 }))).at(
            3,
            Some("one"),
            2,
        ))
    };
    let mut bench = Bench::new();
    let (next, _) = bench.run(
        r#"local ok, err = pcall(function() return ctx:run("one") end)
           return { ok, err.kind, err.message, err.data.x, err.attempt, tostring(err) }"#,
        fails,
    );
    let expected = json!([false, "worker", "no luck", 1, 2, "worker: no luck (agent one, step 3)"]);
    assert_eq!(next, NextAction::Complete(Json::from(&expected)));
    let (next, _) = bench.run(r#"ctx:run("one")"#, fails);
    let NextAction::Fail(failure) = next else { panic!("{next:?}") };
    assert_eq!(failure, fails(&StepOp::Timer { wake_at_ms: 0 }).unwrap_err());
}

#[test]
fn try_returns_nil_and_the_error() {
    let (next, _) = Bench::new()
        .run(r#"local r, err = ctx:try("one") return { r == nil, err.kind }"#, |_| {
            Err(Failure::new("worker", "x"))
        });
    assert_eq!(next, NextAction::Complete(Json::from(&json!([true, "worker"]))));
}

#[test]
fn an_author_s_failure_keeps_its_kind_and_data() {
    let failure = Bench::new().failure(r#"swarm.fail("blocked", "after 3", { rounds = 3 })"#);
    assert_eq!((failure.kind.as_str(), failure.message.as_str()), ("blocked", "after 3"));
    assert_eq!(failure.data, Some(Json::from(&json!({ "rounds": 3 }))));
    let failure = Bench::new().failure(r#"local ok, e = pcall(swarm.fail, "k", "m") error(e)"#);
    assert_eq!(failure.kind, "k");
}

#[test]
fn an_uncaught_error_says_file_and_line() {
    let failure = Bench::new().failure("local t = nil\nreturn t.x");
    assert_eq!(failure.kind, "script");
    assert!(failure.message.starts_with("main.lua:2: "), "{failure}");
    let failure = Bench::new().failure("error({ 1 })");
    assert_eq!((failure.kind.as_str(), failure.message.as_str()), ("script", "[1]"));
    let failure = Bench::new().failure("error()");
    assert_eq!(failure.message, "raised a nil as its error");
}

#[test]
fn map_keeps_order_and_bounds_its_branches() {
    let source = flow_source(
        r#"return ctx:map({ "a", "b", "c" }, function(x, i) return ctx:run("up", { x = x, i = i }) end, { concurrency = 2 })"#,
    );
    let mut bench = Bench::new();
    let mut flow = bench.flow(&source);
    let first = flow.advance(Input::Start, 0);
    assert_eq!(keys(&first.commands), ["0.0/0 up", "0.1/0 up"]);
    let Command::Schedule(second) = &first.commands[1] else { panic!() };
    let then = flow
        .advance(Input::Completed { key: second.key.clone(), output: Json::from(&json!("B")) }, 1);
    assert_eq!(keys(&then.commands), ["0.2/0 up"]);
    let Command::Schedule(third) = &then.commands[0] else { panic!() };
    let Command::Schedule(head) = &first.commands[0] else { panic!() };
    for (key, out) in [(&third.key, "C"), (&head.key, "A")] {
        let got =
            flow.advance(Input::Completed { key: key.clone(), output: Json::from(&json!(out)) }, 2);
        if out == "A" {
            assert_eq!(got.next, NextAction::Complete(Json::from(&json!(["A", "B", "C"]))));
        }
    }
}

#[test]
fn a_wide_map_begins_in_turns_and_its_branches_in_their_order() {
    let source = flow_source(
        r#"local list = {} for i = 1, 600 do list[i] = i end
        local order = {}
        ctx:map(list, function(i)
            table.insert(order, i)
            if i == 2 then ctx:all { function() table.insert(order, "inner") end } end
            ctx:run("a", i)
        end)"#,
    );
    let mut bench = Bench::new();
    let mut flow = bench.flow(&source);
    let (mut input, mut sizes, mut all) = (Input::Start, Vec::new(), Vec::new());
    let last = loop {
        let Advance { commands, next } = flow.advance(input, 0);
        sizes.push(commands.len());
        all.extend(keys(&commands));
        if next != NextAction::More {
            break next;
        }
        input = Input::More;
    };
    assert_eq!((last, sizes.iter().sum::<usize>()), (NextAction::Wait, 600));
    assert!(sizes.len() == 3 && sizes.iter().all(|it| *it <= 256), "{sizes:?}");
    let mut expected: Vec<String> =
        (0..600).filter(|i| *i != 1).map(|i| format!("0.{i}/0 a")).collect();
    // The one with a join of its own goes on when that has ended, after all that began before it.
    expected.push("0.1/1 a".to_owned());
    assert_eq!(all, expected);
}

#[test]
fn map_of_nothing_is_an_empty_list_and_nil_keeps_its_place() {
    let mut bench = Bench::new();
    assert_eq!(bench.value("return ctx:map({}, print)"), json!([]));
    assert_eq!(
        bench.value("return ctx:map({ 1, 2, 3 }, function(x) if x == 2 then return x end end)"),
        json!([null, 2, null])
    );
    assert_eq!(bench.value("return ctx:all {}"), json!({}));
    let failure = bench.failure("ctx:race {}");
    assert!(failure.message.contains("nothing to race"), "{failure}");
}

#[test]
fn map_collects_errors_if_asked() {
    let value = Bench::new().value(
        r#"local r = ctx:map({ 1, 2 }, function(x) if x == 2 then swarm.fail("odd", "no") end return ctx:run("e", x) end, { on_error = "collect" })
           return { r[1].ok, r[1].value, r[2].ok, r[2].error.kind }"#,
    );
    assert_eq!(value, json!([true, 1, false, "odd"]));
}

#[test]
fn all_returns_under_the_same_keys() {
    let value = Bench::new().value(
        r#"return { ctx:all { b = function() return ctx:run("x", 1) end, a = function() return 2 end },
                    ctx:all { function() return ctx:run("x", 3) end, function() return ctx:all { function() return 4 end } end } }"#,
    );
    assert_eq!(value, json!([{ "a": 2, "b": 1 }, [3, [4]]]));
}

#[test]
fn the_first_error_of_all_cancels_the_rest() {
    let (next, commands) = Bench::new().run(
        r#"local ok, err = pcall(function()
             return ctx:all { function() return ctx:run("bad") end, function() ctx:run("slow") end, function() ctx:all { function() ctx:run("deep") end } end }
           end)
           return { ok, err.kind, ctx:run("after", 1) }"#,
        |op| if op.name() == "bad" { Err(Failure::new("worker", "x")) } else { echo(op) },
    );
    assert_eq!(next, NextAction::Complete(Json::from(&json!([false, "worker", 1]))));
    assert_eq!(
        keys(&commands),
        ["0.0/0 bad", "0.1/0 slow", "0.2/0.0/0 deep", "cancel 0.1", "cancel 0.2", "1 after"]
    );
}

#[test]
fn a_race_has_one_winner_or_its_last_error() {
    let body = r#"local k, v = ctx:race { slow = function() return ctx:run("slow") end, fast = function() return ctx:run("fast", 7) end }
                  return { k, v }"#;
    let source = flow_source(body);
    let mut bench = Bench::new();
    let mut flow = bench.flow(&source);
    let first = flow.advance(Input::Start, 0);
    assert_eq!(keys(&first.commands), ["0.0/0 fast", "0.1/0 slow"]);
    let Command::Schedule(fast) = &first.commands[0] else { panic!() };
    let done =
        flow.advance(Input::Completed { key: fast.key.clone(), output: Json::from(&json!(7)) }, 1);
    assert_eq!(keys(&done.commands), ["cancel 0.1"]);
    assert_eq!(done.next, NextAction::Complete(Json::from(&json!(["fast", 7]))));
    let (next, _) = bench.run(body, |op| Err(Failure::new(op.name(), "lost")));
    let NextAction::Fail(failure) = next else { panic!("{next:?}") };
    assert_eq!(failure.kind, "slow");
}

#[test]
fn a_timeout_raises_and_cancels_its_branch() {
    let source = flow_source(
        r#"local ok, err = pcall(function() return ctx:timeout("10m", function() return ctx:run("slow") end) end)
           return { ok, err.kind, ctx:timeout(5, function() return 1 end) }"#,
    );
    let mut bench = Bench::new();
    let mut flow = bench.flow(&source);
    let first = flow.advance(Input::Start, 1_000);
    assert_eq!(keys(&first.commands), ["0.1/0 timer", "0.0/0 slow"]);
    let Command::Schedule(timer) = &first.commands[0] else { panic!() };
    assert_eq!(timer.op, StepOp::Timer { wake_at_ms: 601_000 });
    let done =
        flow.advance(Input::Completed { key: timer.key.clone(), output: Json::null() }, 601_000);
    assert_eq!(keys(&done.commands), ["cancel 0.0", "1.1/0 timer", "cancel 1.1"]);
    assert_eq!(done.next, NextAction::Complete(Json::from(&json!([false, "timeout", 1]))));
}

#[test]
fn timers_signals_children_state_and_artifacts_are_steps() {
    let (next, commands) = Bench::new().run(
        r#"ctx:sleep("250ms") ctx:sleep_until(100)
           local p = ctx:wait("go") local q, why = ctx:wait("stop", { timeout = "2d" })
           ctx:signal("run_2", "hi") ctx:signal("run_2", "hi", { a = 1 })
           local c = ctx:call("other", { x = 1 }, { version = "ab", tags = { customer = "acme" } })
           ctx.state:set("k", { 1 }) ctx.state:get("k") ctx.state:delete("k") ctx.state:list("p") ctx.state:add("n", 2) ctx.state:append("l", 3)
           ctx:artifact("a.txt", "bytes") ctx:read_artifact({ id = "art_1" })
           local ok = ctx:approve { title = "Ship?", body = "b", form = s.object { x = s.string { optional = true } }, timeout = "1h", by = { "approver", "ann" }, required = 2, remind = "10m" }
           return { p, q == nil, why }"#,
        |op| Ok(match op {
            StepOp::Signal { deadline_ms: None, .. } => json!({ "payload": { "n": 1 } }),
            StepOp::Signal { .. } => json!({ "timeout": true }),
            _ => Value::Null,
        }),
    );
    assert_eq!(next, NextAction::Complete(Json::from(&json!([{ "n": 1 }, true, "timeout"]))));
    let ops: Vec<StepOp> = commands
        .into_iter()
        .filter_map(|command| match command {
            Command::Schedule(request) => Some(request.op),
            Command::CancelScope(_) | Command::Note { .. } => None,
        })
        .collect();
    assert_eq!(ops[0], StepOp::Timer { wake_at_ms: 1_250 });
    assert_eq!(ops[1], StepOp::Timer { wake_at_ms: 100_000 });
    assert_eq!(
        ops[3],
        StepOp::Signal { name: "stop".to_owned(), deadline_ms: Some(100_000 + 172_800_000) }
    );
    let sent = |payload: Value| StepOp::SendSignal {
        run: "run_2".to_owned(),
        name: "hi".to_owned(),
        payload: Json::from(&payload),
    };
    assert_eq!(ops[4..6], [sent(json!(true)), sent(json!({ "a": 1 }))]);
    assert_eq!(
        ops[6],
        StepOp::Child {
            blueprint: "other@ab".to_owned(),
            input: Json::from(&json!({ "x": 1 })),
            tags: Tags::new([("customer".to_owned(), "acme".to_owned())].into()).unwrap(),
        }
    );
    let key = || "k".to_owned();
    assert_eq!(
        ops[7],
        StepOp::State(StateOp::Set { key: key(), value: Json::from(&json!([1])), opts: None })
    );
    assert_eq!(ops[8], StepOp::State(StateOp::Get { key: key() }));
    assert_eq!(ops[9], StepOp::State(StateOp::Delete { key: key() }));
    assert_eq!(ops[10], StepOp::State(StateOp::List { prefix: "p".to_owned() }));
    assert_eq!(ops[11], StepOp::State(StateOp::Add { key: "n".to_owned(), by: 2.0 }));
    assert_eq!(
        ops[12],
        StepOp::State(StateOp::Append { key: "l".to_owned(), value: Json::from(&json!(3)) })
    );
    assert_eq!(
        ops[13],
        StepOp::Artifact(ArtifactOp::Write { name: "a.txt".to_owned(), data: b"bytes".to_vec() })
    );
    assert_eq!(ops[14], StepOp::Artifact(ArtifactOp::Read { id: "art_1".to_owned() }));
    let StepOp::Task(task) = &ops[15] else { panic!() };
    assert_eq!((task.agent.as_str(), task.opts.operator.as_deref()), ("approve", Some("human")));
    assert_eq!(task.opts.timeout_ms, Some(3_600_000));
    let asking = Asking {
        by: vec!["approver".into(), "ann".into()],
        required: Some(2),
        remind_ms: Some(600_000),
    };
    assert_eq!(task.opts.asking, asking);
    assert_eq!(
        task.opts.form,
        Some(Json::from(&json!({ "properties": { "x": { "type": "string" } }, "type": "object" })))
    );
}

#[test]
fn notes_take_an_index_and_keep_their_place() {
    let (_, commands) = Bench::new().run(
        r#"ctx:status("half", { progress = 0.5 }) print("x", 1, nil, { }) ctx:run("a") ctx:log("warn", "w", { a = 1 }) ctx:publish("t", { 1 })
           coroutine.wrap(function() print("inner") end)()"#,
        echo,
    );
    assert_eq!(
        keys(&commands),
        [
            "0 status: half",
            "1 info: x\t1\tnil\ttable",
            "2 a",
            "3 warn: w",
            "4 event: t",
            "5 info: inner"
        ]
    );
}

#[test]
fn now_random_and_uuid_come_from_the_inputs() {
    let body = "ctx:sleep(2.5) return { ctx:now(), ctx:random(1, 6), ctx:random(10), ctx:random(), ctx:uuid(), ctx:uuid() }";
    let one = Bench::new().value(body);
    assert_eq!(one, Bench::new().value(body));
    assert_eq!(one[0], json!(3.5));
    assert!((1..=6).contains(&one[1].as_i64().unwrap()));
    assert_ne!(one[4], one[5]);
}

#[test]
fn deferred_functions_run_in_reverse_after_a_failure() {
    let source = flow_source(
        r#"ctx:defer(function() ctx:run("undo", 1) end)
           ctx:defer(function() error("broken") end)
           ctx:defer(function() ctx:run("undo", 3) end)
           swarm.fail("k", "m")"#,
    );
    let mut bench = Bench::new();
    let mut flow = bench.flow(&source);
    assert!(matches!(flow.advance(Input::Start, 0).next, NextAction::Fail(_)));
    assert!(flow.has_defers());
    let scope = crate::flow::compensation_scope();
    let begun = flow.advance(Input::Compensate, 1);
    assert_eq!(keys(&begun.commands), [format!("{scope}/0 undo")]);
    let key = StepKey::new(scope.clone(), 0);
    let then = flow.advance(Input::Completed { key, output: Json::null() }, 2);
    let said = keys(&then.commands);
    assert!(
        said[0].starts_with(&format!(
            "{scope}/1 error: a deferred function failed: script: main.lua:2: broken"
        )),
        "{said:?}"
    );
    assert_eq!(said[1], format!("{scope}/2 undo"));
    let key = StepKey::new(scope, 2);
    let done = flow.advance(Input::Completed { key, output: Json::null() }, 3);
    assert_eq!(done.next, NextAction::Complete(Json::null()));
}

#[test]
fn a_cancel_drops_the_branches_and_runs_the_defers() {
    let source = flow_source(
        r#"ctx:defer(function() ctx:run("undo") end) ctx:all { function() ctx:run("a") end }"#,
    );
    let mut bench = Bench::new();
    let mut flow = bench.flow(&source);
    let first = flow.advance(Input::Start, 0);
    let Command::Schedule(open) = &first.commands[0] else { panic!() };
    let undo = flow.advance(Input::Compensate, 1);
    assert_eq!(undo.commands.len(), 1);
    let late = flow.advance(Input::Completed { key: open.key.clone(), output: Json::null() }, 2);
    assert_eq!(late, Advance { commands: Vec::new(), next: NextAction::Wait });
}

#[test]
fn continue_as_works_in_the_main_scope_only() {
    let mut bench = Bench::new();
    let (next, _) = bench.run("ctx:continue_as({ n = 2 })", echo);
    assert_eq!(next, NextAction::ContinueAs(Json::from(&json!({ "n": 2 }))));
    for body in [
        "ctx:all { function() ctx:continue_as() end }",
        "ctx:defer(print) ctx:continue_as()",
        "ctx:spawn(function() ctx:run(\"x\") end) ctx:continue_as()",
    ] {
        let failure = bench.failure(body);
        assert!(failure.message.contains("ctx:continue_as: "), "{failure}");
    }
}

#[test]
fn queries_are_answered_without_changing_anything() {
    let source = flow_source(
        r#"local n = 0
           ctx:on_query("n", function(arg) return { n = n, arg = arg } end)
           ctx:on_query("bad", function() ctx:run("x") end)
           ctx:on_query("loop", function() while true do end end)
           n = 5 ctx:run("wait")"#,
    );
    let mut bench = Bench::new();
    let mut flow = bench.flow(&source);
    let first = flow.advance(Input::Start, 0);
    let answer = flow.query("n", &Json::from(&json!([1]))).unwrap();
    assert_eq!(answer.to_value(), json!({ "n": 5, "arg": [1] }));
    assert!(flow.query("bad", &Json::null()).unwrap_err().message.contains("cannot use ctx"));
    assert_eq!(flow.query("loop", &Json::null()).unwrap_err().kind, "limit");
    assert_eq!(flow.query("none", &Json::null()).unwrap_err().kind, "unknown_query");
    let Command::Schedule(open) = &first.commands[0] else { panic!() };
    let done = flow.advance(Input::Completed { key: open.key.clone(), output: Json::null() }, 2);
    assert_eq!(done.next, NextAction::Complete(Json::null()));
}

#[test]
fn a_flow_is_a_function_of_its_inputs() {
    let body = r#"
        local jobs = {}
        for i = 1, 20 do jobs[i] = { id = ctx:uuid(), tags = { b = i, a = i, c = { x = 1 } } } end
        ctx:spawn(function() for i = 1, 3 do ctx:sleep(i) ctx:log("info", "tick " .. i) end end)
        local out = ctx:map(jobs, function(job, i)
          local r = ctx:race { one = function() return ctx:run("a", job) end, two = function() return ctx:run("b", job) end }
          for k, v in pairs(job.tags) do ctx:log("info", k, v) end
          if i % 7 == 0 then return ctx:timeout(5, function() return ctx:run("c", { r, ctx:random(100) }) end) end
          return ctx:try("d", { r })
        end, { concurrency = 6 })
        return out"#;
    let run = |bench: &mut Bench| {
        let mut n = 0;
        bench.run(body, move |op| {
            n += 1;
            if n % 5 == 0 { Err(Failure::new("worker", format!("{n}"))) } else { echo(op) }
        })
    };
    let first = run(&mut Bench::new());
    let mut bench = Bench::new();
    bench.value("local t = {} for i = 1, 1000 do t[\"k\" .. i] = {} end return 1");
    assert_eq!(run(&mut bench), first);
    assert!(first.1.len() > 60);
}

#[test]
fn scripts_read_durations_as_the_rest_of_the_program_does() {
    let mut bench = Bench::new();
    for (text, ms, _) in crate::blueprint::DURATIONS {
        let body = format!("local ok, why = pcall(ctx.sleep, ctx, {text:?}) return ok");
        let mut slept = None;
        let (end, _) = bench.run(&body, |op| {
            slept = op.wake_at_ms().map(|at| at - BEGUN_MS);
            echo(op)
        });
        assert_eq!(slept, *ms, "{text}: {end:?}");
    }
}

#[test]
fn wrong_calls_say_which_function_and_argument() {
    let mut bench = Bench::new();
    for (body, said) in [
        ("ctx.run(\"x\")", "ctx.run is called with a colon"),
        ("ctx:run(5)", "ctx:run: agent must be a string, not number"),
        ("ctx:run(\"a\", {}, { time = 1 })", "unknown option time"),
        ("ctx:run(\"a\", {}, { timeot = 1 })", "did you mean timeout?"),
        ("ctx:run(\"a\", {}, { timeout = \"soon\" })", "\"soon\" is not a duration"),
        ("ctx:run(\"a\", { b = { 0/0 } })", "ctx:run: input: $.b[1] is NaN"),
        ("ctx:run(\"a\", { f = print })", "ctx:run: input: $.f is a function"),
        ("ctx:sleep(-1)", "not a duration"),
        ("ctx:run(\"a\", {}, { retry = { jitter = 1 } })", "retry.jitter must be a boolean"),
        ("ctx:run(\"a\", {}, { on_delta = 1 })", "opts.on_delta must be a function"),
        ("ctx:try(\"a\", {}, { on_delta = 1 })", "opts.on_delta must be a function"),
        ("ctx:approve({ title = \"x\", by = {} })", "by must be a role"),
        ("ctx:approve({ title = \"x\", by = { 1 } })", "by[1] must be a role"),
        ("ctx.state:link(1, \"a\", \"b\")", "ctx:state:link: key must be a string"),
        ("ctx.state:link((\"k\"):rep(2000), \"a\", \"b\")", "at most 1,024 bytes"),
        ("ctx:map(5, print)", "ctx:map: list must be a list"),
        ("ctx:map({ 1 }, 5)", "ctx:map: fn must be a function"),
        ("ctx:all(print)", "ctx:all: its argument must be a table of functions"),
        ("ctx:status(\"x\", { progress = 2 })", "progress must be a number from 0 to 1"),
        ("ctx:log(\"loud\", \"x\")", "level must be"),
        ("ctx:runn(\"a\")", "ctx:runn does not exist (did you mean run?)"),
        ("return ctx.state.gett", "ctx.state:gett does not exist (did you mean get?)"),
        ("ctx.x = 1", "readonly"),
        ("return swarm.schem", "swarm.schem does not exist (did you mean schema?)"),
        ("return { [1] = 1, x = 2 }", "$ has both numbers and names as keys"),
        ("return { a = { 1, nil, 3 } }", "$.a has 2 elements but the key 3"),
        ("coroutine.wrap(function() ctx:run(\"x\") end)()", "inside a coroutine of your own"),
        ("table.sort({ 1, 2 }, function() ctx:run(\"x\") end)", "a sort comparator"),
        ("string.gsub(\"a\", \"a\", function() ctx:run(\"x\") end)", "a gsub callback"),
        (
            "return setmetatable({}, { __index = function() return ctx:run(\"x\") end }).y",
            "inside a metamethod",
        ),
        ("coroutine.yield(1)", "outside of a coroutine"),
    ] {
        let failure = bench.failure(body);
        assert_eq!(failure.kind, "script", "{body}: {failure}");
        assert!(failure.message.contains(said), "{body}: {failure}");
        let native = body.starts_with("coroutine.y") || body.starts_with("return {");
        assert!(native || failure.message.starts_with("main.lua:1: "), "{body}: {failure}");
    }
}

#[test]
fn ctx_works_under_pcall_and_xpcall_and_in_iterators() {
    let value = Bench::new().value(
        r#"local function each(n) local i = 0 return function() i += 1 if i <= n then return ctx:run("e", i) end end end
           local sum = 0
           for v in each(3) do sum += v end
           local _, a = pcall(ctx.run, ctx, "e", 1)
           local _, b = xpcall(function() return ctx:run("e", 2) end, print)
           local _, c = xpcall(function() return ctx:run("e", { f = print }) end, function(e) return "handled" end)
           return { sum, a, b, c }"#,
    );
    assert_eq!(value, json!([6, 1, 2, "handled"]));
}

#[test]
fn another_branch_cannot_get_hold_of_a_branch_s_coroutine() {
    let value = Bench::new().value(
        r#"local got = "none"
           ctx:all { function() got = coroutine.running() ctx:run("a") end, function() ctx:run("b") end }
           return { got == nil }"#,
    );
    assert_eq!(value, json!([true]));
}

#[test]
fn floods_and_fan_outs_are_limits_of_the_run() {
    let mut bench = Bench::new();
    let limits = RunLimits { branches: 100, open_steps: 50, value: 1_000, ..RunLimits::default() };
    for body in [
        "while true do ctx:log(\"info\", \"x\") end",
        "local big = string.rep(\"x\", 1000000) while true do print(big) end",
        "for i = 1, 1000 do ctx:spawn(function() ctx:run(\"x\") end) end ctx:run(\"x\")",
        "for i = 1, 10200 do ctx:spawn(function() end):cancel() end",
        "local t = {} for i = 1, 1000 do t[i] = i end ctx:map(t, function(x) return x end)",
        "local t = {} for i = 1, 80 do t[i] = i end ctx:map(t, function(x) return ctx:run(\"x\") end)",
        "ctx:run(\"x\", string.rep(\"x\", 2000))",
        "return string.rep(\"x\", 2000)",
    ] {
        let mut flow =
            bench.vms.start(&flow_source(body), facts(&json!({})), limits.clone()).unwrap();
        let next = flow.advance(Input::Start, 0).next;
        let NextAction::Limit(failure) = next else { panic!("{body}: {next:?}") };
        assert_eq!(failure.kind, "limit");
    }
}

#[test]
fn a_wide_map_is_fine_with_a_bounded_concurrency() {
    let value = Bench::new().value(
        r#"local t = {} for i = 1, 3000 do t[i] = i end
           local r = ctx:map(t, function(x) return ctx:run("e", x) end, { concurrency = 10 })
           return { #r, r[3000] }"#,
    );
    assert_eq!(value, json!([3000, 3000]));
}
