use super::*;
use crate::{
    engine::shared::message::ControlAsk,
    store::{BlueprintRow, Write},
};

#[tokio::test]
async fn a_flow_completes_with_its_value_and_each_step_is_one_row() {
    let bench = Bench::new();
    let body = r#"agents = { e = { operator = "echo" } },
        flow = function(ctx, input)
            local sum = 0
            for i = 1, 10 do sum = sum + ctx:run("e", { n = i }).n end
            return { sum = sum, of = input.of }
        end"#;
    let run = bench.start(body, r#"{"of":"ten"}"#).await;
    let view = bench.ended(run).await;
    assert_eq!(view.output.unwrap().as_str(), r#"{"of":"ten","sum":55}"#);
    assert_eq!((view.steps, view.steps_done), (10, 10));
    assert_eq!(bench.entries(run).len(), 12, "start, ten steps, end");
}

#[tokio::test]
async fn an_end_in_the_first_commit_is_answered_to_a_start_without_patience() {
    let bench = Bench::new();
    let source =
        r#"return require("swarm").blueprint { name = "it", flow = function() return 1 end }"#;
    for _ in 0..50 {
        let start = StartRun::new(Program::Bundle(Bundle::from_source("it.lua", source).unwrap()));
        let (until, none) = (WaitFor::Ended, std::future::ready(()));
        let made = bench.engine.start_and_wait(&bench.admin(), start, None, until, none).await;
        let view = made.unwrap().view().unwrap();
        assert_eq!((view.output.unwrap().as_str(), view.attempts), ("1", None), "not read back");
    }
}

#[tokio::test]
async fn a_lua_agent_runs_beside_the_flow() {
    let bench = Bench::new();
    let body = r#"agents = { sum = { operator = "lua", fn = function(i) return { total = i.a + i.b } end } },
        flow = function(ctx) return ctx:run("sum", { a = 2, b = 3 }) end"#;
    assert_eq!(bench.output(body, "null").await, r#"{"total":5}"#);
}

#[tokio::test]
async fn a_fan_out_keeps_the_order_of_its_input() {
    let bench = Bench::new();
    let body = r#"agents = { e = { operator = "echo" } },
        flow = function(ctx)
            local list = {}
            for i = 1, 1000 do list[i] = i end
            local got = ctx:map(list, function(n) return ctx:run("e", n) end, { concurrency = 7 })
            for i = 1, 1000 do assert(got[i] == i) end
            return #got
        end"#;
    assert_eq!(bench.output(body, "null").await, "1000");
}

#[tokio::test]
async fn an_input_that_breaks_its_schema_is_refused_with_its_path() {
    let bench = Bench::new();
    let body =
        r#"input = s.object { issue = s.string }, flow = function(ctx, input) return input end"#;
    let error = bench.try_start(body, r#"{"issue":5}"#).await.unwrap_err();
    let EngineError::Invalid { violations, .. } = error else { panic!("{error}") };
    assert_eq!(violations[0].path, "$.issue");
    assert!(bench.engine.unfinished(10).await.unwrap().is_empty(), "nothing was begun");
}

#[tokio::test]
async fn a_raised_failure_keeps_kind_message_and_data() {
    let bench = Bench::new();
    let body = r#"flow = function(ctx) swarm.fail("blocked", "still blocked", { rounds = 3 }) end"#;
    let run = bench.start(body, "null").await;
    let error = bench.ended(run).await.error.unwrap();
    assert_eq!((error.kind.as_str(), error.message.as_str()), ("blocked", "still blocked"));
    assert_eq!(error.data.unwrap().as_str(), r#"{"rounds":3}"#);
}

#[tokio::test]
async fn an_unknown_agent_is_a_failure_that_names_the_known_ones() {
    let bench = Bench::new();
    let body = r#"agents = { coder = { operator = "echo" } },
        flow = function(ctx, input) local name = "cod" .. "r" return ctx:run(name) end"#;
    let (kind, message) = bench.failure(body, "null").await;
    assert_eq!(kind, "refused");
    assert!(message.contains("coder"), "{message}");
}

#[tokio::test]
async fn state_is_the_runs_own_and_its_reads_are_journaled() {
    let bench = Bench::new();
    let body = r#"flow = function(ctx)
            ctx.state:set("b", 1)
            ctx.state:set("a", { x = 1 })
            ctx.state:append("list", "one")
            local list = ctx.state:append("list", "two")
            local sum = ctx.state:add("b", 4)
            ctx.state:delete("a")
            return { list = list, sum = sum, keys = ctx.state:list(""), gone = ctx.state:get("a") == nil }
        end"#;
    let run = bench.start(body, "null").await;
    let view = bench.ended(run).await;
    let expected = r#"{"gone":true,"keys":["b","list"],"list":["one","two"],"sum":5}"#;
    assert_eq!(view.output.unwrap().as_str(), expected);
    let stored = bench.store.state(&format!("run:{run}")).unwrap();
    assert_eq!(stored.len(), 2);
}

#[tokio::test]
async fn an_artifact_is_stored_and_read_back() {
    let bench = Bench::new();
    let body = r##"flow = function(ctx)
            local file = ctx:artifact("report.md", "# hello")
            return { text = ctx:read_artifact(file.id), size = file.size }
        end"##;
    let run = bench.start(body, "null").await;
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), r##"{"size":7,"text":"# hello"}"##);
    let files = bench.engine.tasks().artifacts(&bench.admin(), run).await.unwrap();
    let (_, bytes) = bench.engine.tasks().artifact(&bench.admin(), files[0].id).await.unwrap();
    assert_eq!(bytes, b"# hello");
}

#[tokio::test]
async fn a_child_run_gives_its_output_and_its_failure_is_raised() {
    let bench = Bench::new();
    let child = r#"local swarm = require("swarm")
        return swarm.blueprint { name = "child", flow = function(ctx, input)
            if input.bad then swarm.fail("bad", "it is bad") end
            return input.n * 2
        end }"#;
    let bundle = Bundle::from_source("child.lua", child).unwrap();
    let put =
        bench.engine.blueprints().put_blueprint(&bench.admin(), "child".into(), bundle, None).await;
    assert!(put.unwrap().1.is_empty());
    let body = r#"flow = function(ctx)
            local ok, err = pcall(function() return ctx:call("child", { bad = true }) end)
            return { ctx:call("child", { n = 21 }), ok, err.kind }
        end"#;
    assert_eq!(bench.output(body, "null").await, r#"[42,false,"bad"]"#);
}

#[tokio::test]
async fn of_many_versions_the_published_ones_are_meant_and_a_removed_name_has_a_last_one() {
    let bench = Bench::new();
    let (admin, blueprints) = (bench.admin(), bench.engine.blueprints());
    let source = r#"return require("swarm").blueprint { name = "x", flow = function() end }"#;
    let bundle = Bundle::from_source("x.lua", source).unwrap();
    let hash = bundle.hash().to_owned();
    blueprints.put_blueprint(&admin, "x".into(), bundle, None).await.unwrap();
    let version = |letter: &str, days: u64, publisher: Option<&str>| {
        Write::PutBlueprint(BlueprintRow {
            hash: letter.repeat(64),
            name: "x".to_owned(),
            bundle: vec![1],
            created_ms: 1_700_000_000_000 + days * 86_400_000,
            publisher: publisher.map(str::to_owned),
        })
    };
    let posted = vec![version("a", 1, None), version("b", 9, None)];
    bench.engine.write(Vec::new(), posted).await.unwrap();
    assert_eq!(blueprints.get(&admin, "x@").await.unwrap().hash, hash, "the published one");
    let found = blueprints.blueprint_source(&admin, "x", &hash[..60]).await.unwrap();
    assert_eq!(found.hash(), hash);
    let three = blueprints.blueprint_source(&admin, "x", "").await;
    assert!(matches!(three, Err(EngineError::NotFound { .. })), "three begin so");
    let grant = Some(r#"{"role":"admin","scopes":["*"]}"#);
    let published = vec![version("d", 5, grant), version("c", 3, grant)];
    bench.engine.write(Vec::new(), published).await.unwrap();
    let many = blueprints.get(&admin, "x@").await.unwrap_err();
    let text = "find blueprint x@: 3 versions begin so; give more of the hash";
    assert!(matches!(&many, EngineError::BadRequest(it) if it == text), "{many:?}");
    let unnamed = Write::UnnameBlueprint { name: "x".to_owned(), hash };
    bench.engine.write(Vec::new(), vec![unnamed]).await.unwrap();
    let gone = blueprints.get(&admin, "x").await.unwrap_err();
    let text = "x: its file was removed; x@dddddddddddd is its last version";
    assert!(matches!(&gone, EngineError::NotFound { id, .. } if id == text), "{gone:?}");
}

#[tokio::test]
async fn a_called_run_whose_blueprint_goes_while_it_starts_fails_for_its_caller() {
    for (deletes, part) in [(false, "is archived"), (true, "not found")] {
        let bench = Bench::new();
        let child =
            r#"return require("swarm").blueprint { name = "child", flow = function() end }"#;
        let bundle = Bundle::from_source("child.lua", child).unwrap();
        let (admin, blueprints) = (bench.admin(), bench.engine.blueprints());
        blueprints.put_blueprint(&admin, "child".into(), bundle, None).await.unwrap();
        let body = r#"flow = function(ctx)
                ctx:wait("go")
                local ok, err = pcall(function() return ctx:call("child") end)
                return { ok, err.kind, err.message }
            end"#;
        let run = bench.start(body, "null").await;
        bench.waiting(run, "signal").await;
        // As while a version is deleted: the call is scheduled, and its run does not begin.
        let starts = Arc::clone(&bench.engine.shared().programs.starts);
        let alone = starts.write_owned().await;
        bench.signal(run, "go", "1").await.unwrap();
        bench.waiting(run, "child").await;
        // Answered after the first try to begin the child.
        bench.signal(run, "behind", "1").await.unwrap();
        drop(alone);
        blueprints.archive(&admin, "child").await.unwrap();
        if deletes {
            blueprints.delete(&admin, "child").await.unwrap();
        }
        bench.clock.advance(Duration::from_secs(2));
        let output = bench.ended(run).await.output.unwrap();
        let output = output.as_str();
        assert!(output.starts_with(r#"[false,"refused","#) && output.contains(part), "{output}");
        assert!(bench.engine.unfinished(10).await.unwrap().is_empty(), "no child is left over");
    }
}

#[test]
fn a_call_that_is_canceled_while_its_program_is_read_blocks_no_deletion() {
    // One thread for reads, which the test occupies.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .build()
        .unwrap();
    runtime.block_on(async {
        let bench = Bench::new();
        let child =
            r#"return require("swarm").blueprint { name = "child", flow = function() end }"#;
        let bundle = Bundle::from_source("child.lua", child).unwrap();
        let (admin, blueprints) = (bench.admin(), bench.engine.blueprints());
        blueprints.put_blueprint(&admin, "child".into(), bundle, None).await.unwrap();
        let body = r#"flow = function(ctx)
                ctx:wait("go")
                local winner = ctx:race {
                    call = function() return ctx:call("child") end,
                    stop = function() return ctx:wait("stop") end,
                }
                ctx:wait("end")
                return winner
            end"#;
        let run = bench.start(body, "null").await;
        bench.waiting(run, "signal").await;
        let programs = &bench.engine.shared().programs;
        let alone = Arc::clone(&programs.starts).write_owned().await;
        bench.signal(run, "go", "1").await.unwrap();
        bench.waiting(run, "child").await;
        // Answered after the first try to begin the child.
        bench.signal(run, "behind", "1").await.unwrap();
        // The child begins once the lock is free; its program has to be read again by then.
        let (release, occupied) = std::sync::mpsc::channel::<()>();
        let reader = bench.engine.shared().tasks.spawn_blocking(move || occupied.recv());
        programs.forget("child");
        drop(alone);
        bench.clock.advance(Duration::from_secs(2));
        // Past the verb's own look at the store. The first is answered after the timer of the call, the
        // last after the end of the race.
        for name in ["behind", "stop", "behind"] {
            let signal = |key| ControlAsk::Signal {
                name: name.to_owned(),
                payload: Json::parse("1").unwrap(),
                caller: admin.clone(),
                key,
            };
            bench.engine.once(&admin, run, None, signal).await.unwrap();
        }
        drop(release);
        reader.await.unwrap().unwrap_err();
        let deletion = Arc::clone(&programs.starts).write_owned();
        tokio::time::timeout(PATIENCE, deletion).await.expect("nothing holds the versions");
        bench.signal(run, "end", "1").await.unwrap();
        assert_eq!(bench.ended(run).await.output.unwrap().as_str(), r#""stop""#);
    });
}

#[tokio::test]
async fn a_start_by_name_gets_what_the_name_stands_for_now() {
    let bench = Bench::new();
    for version in [1, 2] {
        let source = format!(
            r#"return require("swarm").blueprint {{ name = "it", flow = function() return {version} end }}"#
        );
        let bundle = Bundle::from_source("it.lua", source).unwrap();
        bench
            .engine
            .blueprints()
            .put_blueprint(&bench.admin(), "it".into(), bundle, None)
            .await
            .unwrap();
        for _ in 0..2 {
            let start = StartRun::new(Program::Named("it".into()));
            let forever = std::future::pending();
            let view = bench
                .engine
                .start_and_wait(&bench.admin(), start, None, WaitFor::Ended, forever)
                .await
                .unwrap()
                .view()
                .unwrap();
            assert_eq!(view.output.unwrap().as_str(), version.to_string());
        }
    }
}

#[tokio::test]
async fn continue_as_begins_a_fresh_history_of_the_same_run() {
    let bench = Bench::new();
    let body = r#"agents = { e = { operator = "echo" } },
        flow = function(ctx, input)
            ctx:run("e", input.n)
            if input.n < 5 then ctx:continue_as({ n = input.n + 1 }) end
            return input.n
        end"#;
    let run = bench.start(body, r#"{"n":1}"#).await;
    let view = bench.ended(run).await;
    assert_eq!((view.output.unwrap().as_str(), view.steps), ("5", 5));
    assert_eq!(bench.entries(run).len(), 3, "the last history alone");
    assert_eq!(bench.store.all_entries(run.num(), 0).unwrap().len(), 4 * 2 + 3);
}

#[tokio::test]
async fn one_key_starts_one_run() {
    let bench = Bench::new();
    let key =
        |body: &str| Some(IdempotencyKey { route: "start", key: "k".into(), body: body.into() });
    let start = || {
        StartRun::new(Program::Bundle(
            Bundle::from_source(
                "a.lua",
                r#"local swarm = require("swarm") return swarm.blueprint { name = "a", flow = function() return 1 end }"#,
            )
            .unwrap(),
        ))
    };
    let first = bench.engine.start(&bench.admin(), start(), key("x")).await.unwrap();
    let again = bench.engine.start(&bench.admin(), start(), key("x")).await.unwrap();
    assert_eq!((first.run, again.repeated), (again.run, true));
    let other = bench.engine.start(&bench.admin(), start(), key("y")).await.unwrap_err();
    assert_eq!(other.code(), "idempotency_mismatch");
}

#[tokio::test]
async fn an_old_key_starts_another_run_and_leaves_the_answers_of_others() {
    let bench = Bench::new();
    let key =
        |key: &str| Some(IdempotencyKey { route: "start", key: key.into(), body: "x".into() });
    let start = || {
        let source = r#"local swarm = require("swarm") return swarm.blueprint { name = "a", flow = function() return 1 end }"#;
        StartRun::new(Program::Bundle(Bundle::from_source("a.lua", source).unwrap()))
    };
    let first = bench.engine.start(&bench.admin(), start(), key("k")).await.unwrap();
    bench.engine.start(&bench.admin(), start(), key("other")).await.unwrap();
    bench.clock.advance(Duration::from_secs(25 * 3_600));
    let again = bench.engine.start(&bench.admin(), start(), key("k")).await.unwrap();
    assert!(!again.repeated && again.run != first.run);
    let other = bench.store.idempotent(&bench.admin().subject, "start", "other").unwrap();
    assert!(other.is_some(), "the host removes it later");
    let third = bench.engine.start(&bench.admin(), start(), key("k")).await.unwrap();
    assert_eq!((third.run, third.repeated), (again.run, true));
}

#[tokio::test]
async fn a_query_is_answered_live_and_after_the_end() {
    let bench = Bench::new();
    let body = r#"flow = function(ctx)
            local seen = {}
            ctx:on_query("seen", function(arg) return { n = #seen, arg = arg } end)
            for i = 1, 2 do seen[i] = ctx:wait("go") end
            return "done"
        end"#;
    let run = bench.start(body, "null").await;
    bench.signal(run, "go", "1").await.unwrap();
    let ask = || async {
        bench.engine.query(&bench.admin(), run, "seen".into(), Json::from_trusted("7")).await
    };
    assert_eq!(ask().await.unwrap().as_str(), r#"{"arg":7,"n":1}"#);
    bench.signal(run, "go", "2").await.unwrap();
    bench.ended(run).await;
    assert_eq!(ask().await.unwrap().as_str(), r#"{"arg":7,"n":2}"#);
    // Also after somebody has read all of its events.
    let mut events = bench.engine.events(&bench.admin(), run, 0).await.unwrap();
    while events.next().await.unwrap().unwrap().kind != "run.ended" {}
    drop(events);
    assert_eq!(ask().await.unwrap().as_str(), r#"{"arg":7,"n":2}"#);
}
