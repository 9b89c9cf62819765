use super::*;

/// Reports a value with what it used.
async fn reports(bench: &Bench, queue: &str, usage: serde_json::Value) {
    let leased = bench.lease(queue).await;
    let usage = crate::operator::read_usage(&usage);
    let said = Report { usage, ..report("1") };
    assert!(bench.engine.tasks().report(&bench.holder(&leased.handle), said).await.unwrap());
}

#[tokio::test]
async fn an_agent_that_used_up_its_budget_gets_nothing_more() {
    let bench = Bench::new();
    let body = r#"agents = {
            q = { operator = "queue", queue = "q", budget = { tokens = 100 } },
            cheap = { operator = "queue", queue = "cheap" } },
        flow = function(ctx)
            local out = {}
            for n = 1, 3 do
                local r, err = ctx:try("q", n)
                out[n] = r or err.kind
            end
            return { out, ctx:run("cheap") }
        end"#;
    let run = bench.start(body, "null").await;
    reports(&bench, "q", serde_json::json!({ "input": 60, "output": 30 })).await;
    reports(&bench, "q", serde_json::json!({ "output": 10 })).await;
    reports(&bench, "cheap", serde_json::json!({ "input": 5 })).await;
    let view = bench.ended(run).await;
    assert_eq!(view.output.unwrap().as_str(), r#"[[1,1,"budget"],1]"#);
    let usage = view.usage.unwrap();
    assert_eq!(usage.agents["q"].tokens(), Some(100));
    assert_eq!(usage.total.tokens(), Some(105));
    assert_eq!(usage.total.cost, None, "nobody said anything about money");
}

#[tokio::test]
async fn a_run_over_its_budget_fails_typed_and_still_cleans_up() {
    let bench = Bench::new();
    let body = r#"limits = { usd = "0.50" },
        agents = { q = { operator = "queue", queue = "q" } },
        flow = function(ctx)
            ctx:defer(function() ctx:run("q", "undo") end)
            ctx:run("q", 1)
            ctx:run("q", 2)
        end"#;
    let run = bench.start(body, "null").await;
    reports(&bench, "q", serde_json::json!({ "cost": "0.51" })).await;
    reports(&bench, "q", serde_json::json!({ "cost": "0.10" })).await;
    let view = bench.ended(run).await;
    let error = view.error.unwrap();
    assert_eq!(error.kind, "budget");
    assert_eq!(error.message, "the budget of the run is used up: $0.51 of $0.50 are used");
    assert_eq!(error.data.unwrap().to_value()["budget"]["usd"], "0.50");
    assert_eq!(view.usage.unwrap().total.cost.as_deref(), Some("0.61"));
}

/// Returns the number of compensations that a run has executed.
fn undone(bench: &Bench, run: RunId) -> usize {
    bench.count(run, |fact| match fact {
        Fact::StepRecorded(step, _) => step.request.as_str() == "\"undo\"",
        _ => false,
    })
}

#[tokio::test]
async fn a_run_over_a_limit_of_steps_or_entries_still_cleans_up() {
    let body = |limits: &str| {
        format!(
            r#"limits = {{ {limits} }}, agents = {{ e = {{ operator = "echo" }} }},
            flow = function(ctx)
                for i = 1, 3 do ctx:defer(function() ctx:run("e", "undo") end) end
                for i = 1, 1000 do ctx:run("e", i) end
            end"#
        )
    };
    let all = RunLimits::default();
    for (own, limits) in [
        ("steps = 3", all.clone()),
        ("steps = 900", RunLimits { steps: 40, ..all.clone() }),
        ("steps = 900", RunLimits { entries: 40, ..all }),
    ] {
        let (dir, clock) = (tempfile::tempdir().unwrap(), Clock::manual(1_700_000_000_000));
        let bench = Bench::open_with(Arc::new(dir), clock, 2, limits, Recovery::All);
        let run = bench.start(&body(own), "null").await;
        assert_eq!(bench.ended(run).await.error.unwrap().kind, "limit");
        assert_eq!(undone(&bench, run), 3, "{own}");
    }
}

#[tokio::test]
async fn what_is_not_reported_is_counted_as_such() {
    let bench = Bench::new();
    let body = r#"limits = { tokens = 1 }, agents = { q = { operator = "queue", queue = "q" } },
        flow = function(ctx) return { ctx:run("q", 1), ctx:run("q", 2) } end"#;
    let run = bench.start(body, "null").await;
    for _ in 0..2 {
        reports(&bench, "q", serde_json::json!({ "tokens": "many" })).await;
    }
    let usage = bench.ended(run).await.usage.unwrap();
    assert_eq!((usage.unreported, usage.total), (2, Default::default()));
}

#[tokio::test]
async fn a_retry_is_held_against_the_budget_too() {
    let bench = Bench::new();
    let body = r#"agents = { q = { operator = "queue", queue = "q", budget = { tokens = 10 },
            retry = { max_attempts = 5, backoff = "0s" } } },
        flow = function(ctx) return ctx:run("q") end"#;
    let run = bench.start(body, "null").await;
    let leased = bench.lease("q").await;
    let verdict = Verdict::Failed { message: "no".into(), retryable: true, data: None };
    let usage = crate::operator::read_usage(&serde_json::json!({ "input": 10 }));
    let said = Report { verdict, usage, ..report("0") };
    assert!(bench.engine.tasks().report(&bench.holder(&leased.handle), said).await.unwrap());
    assert_eq!(bench.ended(run).await.error.unwrap().kind, "budget");
}

#[tokio::test]
async fn the_sum_outlives_a_restart_and_a_fresh_history() {
    let bench = Bench::new();
    let body = r#"limits = { tokens = 30 }, agents = { q = { operator = "queue", queue = "q" } },
        flow = function(ctx, input)
            ctx:run("q")
            ctx:continue_as((input or 0) + 1)
        end"#;
    let run = bench.start(body, "0").await;
    reports(&bench, "q", serde_json::json!({ "input": 20 })).await;
    let bench = bench.restart().await;
    reports(&bench, "q", serde_json::json!({ "input": 20 })).await;
    let view = bench.ended(run).await;
    assert_eq!(view.error.unwrap().kind, "budget");
    assert_eq!(view.usage.unwrap().total.input_tokens, Some(40));
}

#[tokio::test]
async fn a_called_run_has_what_is_left_and_its_use_counts_for_its_caller() {
    let bench = Bench::new();
    let child = r#"local swarm = require("swarm")
        return swarm.blueprint { name = "child", agents = { q = { operator = "queue", queue = "q" } },
            flow = function(ctx) return { ctx:run("q"), ctx:try("q") or "over" } end }"#;
    let bundle = Bundle::from_source("child.lua", child).unwrap();
    bench
        .engine
        .blueprints()
        .put_blueprint(&bench.admin(), "child".into(), bundle, None)
        .await
        .unwrap();
    let body = r#"limits = { tokens = 100 }, agents = { q = { operator = "queue", queue = "q" } },
        flow = function(ctx)
            ctx:run("q")
            local got = ctx:call("child")
            local ok, err = pcall(function() return ctx:call("child") end)
            return { got, ok, err.kind }
        end"#;
    let run = bench.start(body, "null").await;
    reports(&bench, "q", serde_json::json!({ "input": 60 })).await;
    reports(&bench, "q", serde_json::json!({ "input": 45 })).await;
    let view = bench.ended(run).await;
    assert_eq!(view.output.unwrap().as_str(), r#"[[1,"over"],false,"budget"]"#);
    assert_eq!(view.usage.unwrap().total.input_tokens, Some(105));
}

/// Starts a run that calls itself until the signal `stop`. The called run does `called` first, and
/// the caller `after` afterwards. Returns both runs.
async fn calling(bench: &Bench, limits: &str, called: &str, after: &str) -> (RunId, RunId) {
    let body = format!(
        r#"{limits} agents = {{ q = {{ operator = "queue", queue = "q" }} }},
        flow = function(ctx, input)
            if input.child then
                {called}
                return ctx:wait("never")
            end
            ctx:race {{
                function() return ctx:call("it", {{ child = true }}) end,
                function() return ctx:wait("stop") end,
            }}
            {after}
        end"#
    );
    let run = bench.start(&body, "{}").await;
    let view = bench.waiting(run, "child").await;
    let on = view.waiting_on.iter().find(|on| on.kind == "child").unwrap();
    (run, on.subject.run.unwrap())
}

/// The work of a called run whose compensation is a task.
const UNDONE: &str = r#"ctx:defer(function() ctx:run("q") end) ctx:run("q")"#;

fn used(view: &RunView) -> Option<u64> {
    view.usage.as_ref().and_then(|it| it.total.input_tokens)
}

#[tokio::test]
async fn the_use_of_a_called_run_counts_for_its_caller_also_if_the_call_was_canceled() {
    let bench = Bench::new();
    let after = r#"ctx:wait("go") local _, err = ctx:try("q") return err.kind"#;
    let (run, child) = calling(&bench, "limits = { tokens = 50 },", r#"ctx:run("q")"#, after).await;
    reports(&bench, "q", serde_json::json!({ "input": 60 })).await;
    bench.signal(run, "stop", "1").await.unwrap();
    assert_eq!(bench.ended(child).await.status, RunStatus::Canceled);
    bench.until(run, "the use of the called run", |view| used(view) == Some(60)).await;
    let bench = bench.restart().await;
    bench.signal(run, "go", "1").await.unwrap();
    let view = bench.ended(run).await;
    assert_eq!(view.output.as_ref().unwrap().as_str(), "\"budget\"");
    assert_eq!(used(&view), Some(60), "it counts once");
    let most = StepBounds { parts: 1, events: 9 };
    let whole = bench.engine.whole_step(&bench.admin(), run, 1, most).await.unwrap();
    assert_eq!(whole.step.usage.unwrap().input_tokens, Some(60));
}

#[tokio::test]
async fn the_use_of_a_canceled_call_counts_for_its_caller_alone_and_not_for_a_copy() {
    let bench = Bench::new();
    let (run, _) = calling(&bench, "", UNDONE, r#"return ctx:wait("go")"#).await;
    reports(&bench, "q", serde_json::json!({ "input": 1 })).await;
    bench.signal(run, "stop", "1").await.unwrap();
    let held = bench.lease("q").await;
    let made = bench.engine.histories().fork(&bench.admin(), run, Fork::new(3), None).await;
    let copy = made.unwrap().view().unwrap().id;
    let usage = crate::operator::read_usage(&serde_json::json!({ "input": 60 }));
    let said = Report { usage, ..report("1") };
    bench.engine.tasks().report(&bench.holder(&held.handle), said).await.unwrap();
    bench.until(run, "the use of the called run", |view| used(view) == Some(61)).await;
    let stored = bench.store.header(run.num()).unwrap().unwrap().used.unwrap();
    assert!(stored.contains("61"), "{stored}");
    let bench = bench.restart().await;
    bench.signal(copy, "go", "1").await.unwrap();
    assert_eq!(used(&bench.ended(copy).await), None);
}

#[tokio::test]
async fn the_use_of_a_canceled_call_counts_also_if_the_host_died_when_the_called_run_had_ended() {
    let bench = Bench::new();
    let (run, child) = calling(&bench, "", UNDONE, r#"return ctx:wait("go")"#).await;
    reports(&bench, "q", serde_json::json!({ "input": 1 })).await;
    bench.signal(run, "stop", "1").await.unwrap();
    bench.lease("q").await;
    let (dir, clock) = (Arc::clone(&bench.dir), bench.clock.clone());
    bench.close().await;

    // The called run ends, and its caller never learns of it.
    let store = Sqlite::open(dir.path(), &crate::store::Options::default()).unwrap();
    let mut header = store.header(child.num()).unwrap().unwrap();
    let total = crate::operator::read_usage(&serde_json::json!({ "input": 61 })).unwrap();
    let spent = crate::journal::Spent { total, ..Default::default() };
    header.used = crate::store::Used::encode(&spent, &Default::default());
    header.status = RunStatus::Canceled;
    header.ended_ms = Some(clock.now_ms());
    let expected = Some(header.cursor);
    let ended = crate::store::RunWrite { header, expected, entries: Vec::new(), whole: true };
    crate::store::commit(&*store, Vec::new(), Some(ended), Vec::new()).await.unwrap();
    store.close().unwrap();
    drop(store);

    let bench = Bench::open(dir, clock);
    bench.signal(run, "go", "1").await.unwrap();
    assert_eq!(used(&bench.ended(run).await), Some(61));
}

#[tokio::test]
async fn people_and_work_in_the_host_need_no_budget() {
    let bench = Bench::new();
    let body = r#"limits = { tokens = 0 }, agents = { e = { operator = "echo" },
            q = { operator = "queue", queue = "q" }, h = { operator = "human" } },
        flow = function(ctx)
            local _, err = ctx:try("q")
            return { ctx:run("e", 5), err.kind, ctx:run("h") }
        end"#;
    let run = bench.start(body, "null").await;
    let view = bench.waiting(run, "task").await;
    let task = view.waiting_on[0].subject.task.unwrap();
    bench
        .engine
        .tasks()
        .answer(&bench.admin(), task, (Answer::Output(Json::parse("true").unwrap()), None), None)
        .await
        .unwrap();
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), r#"[5,"budget",true]"#);
}

#[tokio::test]
async fn width_and_open_tasks_have_limits_of_their_own() {
    let bench = Bench::new();
    let wide = |limits: &str| {
        format!(
            r#"limits = {{ {limits} }}, agents = {{ q = {{ operator = "queue", queue = "q" }} }},
            flow = function(ctx) ctx:map({{ 1, 2, 3 }}, function(n) return ctx:run("q", n) end) end"#
        )
    };
    let (kind, message) = bench.failure(&wide("open_tasks = 2"), "null").await;
    assert_eq!(
        (kind.as_str(), message.as_str()),
        ("limit", "more than 2 tasks open at the same time")
    );
    assert_eq!(bench.failure(&wide("width = 2"), "null").await.0, "limit");
}

#[tokio::test]
async fn a_called_run_keeps_the_depth_also_after_a_restart() {
    let bench = Bench::new();
    let deep = r#"local swarm = require("swarm")
        return swarm.blueprint { name = "deep", limits = { depth = 2 },
            flow = function(ctx, input)
                if input.n == 1 then ctx:wait("go") end
                if input.n == 2 then ctx:continue_as { n = 3 } end
                local ok, got = pcall(function() return ctx:call("deep", { n = input.n + 1 }) end)
                return ok and got or got.kind
            end }"#;
    let bundle = Bundle::from_source("deep.lua", deep).unwrap();
    bench
        .engine
        .blueprints()
        .put_blueprint(&bench.admin(), "deep".into(), bundle, None)
        .await
        .unwrap();
    let run =
        bench.start(r#"flow = function(ctx) return ctx:call("deep", { n = 1 }) end"#, "null").await;
    bench.waiting(run, "child").await;
    let bench = bench.restart().await;
    // It may not have been stored before: then the recovery of its caller begins it.
    let child = loop {
        let others = bench.engine.unfinished(10).await.unwrap();
        if let Some(child) = others.into_iter().find(|other| *other != run) {
            break child;
        }
        tokio::task::yield_now().await;
    };
    bench.signal(child, "go", "1").await.unwrap();
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "\"limit\"");
}
