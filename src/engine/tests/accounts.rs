//! The memory that a run makes the host hold, and the end of one that holds too much.

use super::*;
use crate::{memory::Memory, store::RunStatus};

fn small(held: usize) -> Bench {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let limits = RunLimits { held, ..RunLimits::default() };
    Bench::open_with(dir, Clock::manual(1_700_000_000_000), 2, limits, Recovery::All)
}

#[tokio::test]
async fn a_run_over_its_limit_of_state_fails_also_if_it_catches_the_refusal() {
    let bench = small(100_000);
    let body = r#"flow = function(ctx)
            for i = 1, 100 do pcall(function() ctx.state:set("k" .. i, ("x"):rep(9000)) end) end
        end"#;
    let (kind, message) = bench.failure(body, "null").await;
    assert_eq!(kind, "limit");
    assert!(message.contains("own state") && message.contains("100000"), "{message}");
}

#[tokio::test]
async fn a_value_that_replaces_another_is_not_counted_twice() {
    let bench = small(100_000);
    let body = r#"flow = function(ctx)
            for i = 1, 100 do ctx.state:set("k", ("x"):rep(60000)) end
            ctx.state:delete("k")
            ctx.state:set("l", ("x"):rep(60000))
            return "held"
        end"#;
    assert_eq!(bench.output(body, "null").await, "\"held\"");
}

#[tokio::test]
async fn effects_that_do_not_fit_together_leave_nothing_behind() {
    let bench = small(100_000);
    let body = r#"agents = { q = { operator = "queue", queue = "q" } },
        flow = function(ctx) ctx:run("q") return ctx.state:get("k") end"#;
    let run = bench.start(body, "null").await;
    let leased = bench.lease("q").await;
    let scope = serde_json::json!({ "workflow": run.to_string() });
    let write = |key: &str, bytes: usize| {
        let value = "x".repeat(bytes);
        serde_json::json!({ "type": "write_memory", "scope": scope, "key": key, "value": value })
    };
    let signal = serde_json::json!({
        "type": "signal", "target": run.to_string(),
        "payload": { "signal_type": "go", "data": 1 },
    });
    let effects = vec![signal, write("k", 1), write("large", 200_000)];
    let refused = Report { effects, ..report("1") };
    let holder = bench.holder(&leased.handle);
    let error = bench.engine.tasks().report(&holder, refused).await.unwrap_err();
    assert_eq!(error.code(), "invalid_result", "{error}");
    assert!(bench.store.state(&format!("run:{run}")).unwrap().is_empty());
    assert!(bench.report(&leased.handle, "1").await.unwrap());
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "null");
    assert_eq!(bench.count(run, |fact| matches!(fact, Fact::SignalReceived(_))), 0);
}

#[tokio::test]
async fn a_signal_too_many_is_refused_and_the_run_goes_on() {
    let bench = small(100_000);
    let run = bench.start(r#"flow = function(ctx) return (ctx:wait("go")) end"#, "null").await;
    bench.waiting(run, "signal").await;
    let large = format!("\"{}\"", "x".repeat(60_000));
    bench.signal(run, "other", &large).await.unwrap();
    let refused = bench.signal(run, "other", &large).await.unwrap_err();
    assert_eq!(refused.code(), "run_full", "{refused}");
    let bench = bench.restart().await;
    bench.signal(run, "go", "1").await.unwrap();
    assert_eq!(bench.ended(run).await.status, RunStatus::Completed);
}

#[tokio::test]
async fn a_run_that_holds_more_than_a_new_limit_goes_on_and_may_not_grow() {
    let bench = Bench::new();
    let body = r#"flow = function(ctx)
            ctx.state:set("a", ("x"):rep(300000))
            ctx:wait("go")
            ctx.state:set("a", ("y"):rep(250000))
            ctx:wait("grow")
            ctx.state:set("b", ("z"):rep(2000000))
        end"#;
    let run = bench.start(body, "null").await;
    bench.waiting(run, "signal").await;
    let (dir, clock) = (Arc::clone(&bench.dir), bench.clock.clone());
    bench.close().await;
    let limits = RunLimits { held: 100_000, ..RunLimits::default() };
    let bench = Bench::open_with(dir, clock, 2, limits, Recovery::All);
    bench.signal(run, "go", "1").await.unwrap();
    let shrunk = |view: &RunView| {
        view.waiting_on.iter().any(|it| it.subject.name.as_deref() == Some("grow"))
    };
    bench.until(run, "the second wait", shrunk).await;
    bench.signal(run, "grow", "1").await.unwrap();
    let view = bench.ended(run).await;
    assert_eq!(view.error.unwrap().kind, "limit");
}

#[tokio::test]
async fn a_run_knows_what_it_stores() {
    let bench = Bench::new();
    let body = r#"flow = function(ctx)
            ctx.state:set("a", ("x"):rep(50000))
            ctx:artifact("f", ("y"):rep(70000))
        end"#;
    let run = bench.start(body, "null").await;
    let view = bench.ended(run).await;
    // The value, the file, and the entries that say so; that of the file has its hash alone.
    assert!((165_000..180_000).contains(&view.stored_bytes), "{}", view.stored_bytes);
}

#[tokio::test]
async fn what_runs_hold_is_given_back_at_their_end() {
    let bench = Bench::new();
    let memory: &Arc<Memory> = &bench.engine.shared().memory;
    let run = bench.start(r#"flow = function(ctx) ctx:wait("go") end"#, "null").await;
    bench.waiting(run, "signal").await;
    let before = memory.used();
    bench.signal(run, "other", &format!("\"{}\"", "x".repeat(3_000_000))).await.unwrap();
    assert!(memory.used() > before + 2_000_000, "{} after {before}", memory.used());
    bench.signal(run, "go", "1").await.unwrap();
    bench.ended(run).await;
    let since = tokio::time::Instant::now();
    while memory.used() > before + 1_000_000 {
        assert!(since.elapsed() < PATIENCE, "{} of {before}", memory.used());
        tokio::task::yield_now().await;
    }
}
