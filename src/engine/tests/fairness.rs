//! Turns: what one run may take before others get theirs.

use super::*;

/// Runs on one shard.
fn one_shard() -> Bench {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let clock = Clock::manual(1_700_000_000_000);
    Bench::open_with(dir, clock, 1, RunLimits::default(), Recovery::All)
}

#[tokio::test]
async fn a_run_that_begins_anew_for_ever_is_canceled_and_keeps_nobody_waiting() {
    let bench = one_shard();
    let endless = bench.start("flow = function(ctx) ctx:continue_as({}) end", "{}").await;
    bench.until(endless, "a few histories", |view| view.steps == 0).await;
    for n in 0..5 {
        let body = r#"agents = { e = { operator = "echo" } },
            flow = function(ctx, input) return ctx:run("e", input) end"#;
        assert_eq!(bench.output(body, &n.to_string()).await, n.to_string());
    }
    let admin = bench.admin();
    let view = bench.engine.cancel(&admin, endless, "enough".into(), None).await.unwrap();
    assert_eq!(view.status, RunStatus::Canceled);
    bench.close().await;
}

#[tokio::test]
async fn an_engine_stops_though_its_runs_never_rest() {
    let bench = one_shard();
    for flow in ["ctx:continue_as({})", "while true do ctx:sleep(\"0s\") end"] {
        bench.start(&format!("flow = function(ctx) {flow} end"), "{}").await;
    }
    tokio::time::timeout(Duration::from_secs(20), bench.close()).await.expect("it stops");
}

#[tokio::test]
async fn a_history_in_many_parts_comes_to_its_end_and_keeps_its_steps() {
    let bench = one_shard();
    let body = r#"agents = { e = { operator = "echo" } },
        flow = function(ctx, input)
            for _ = 1, 50 do ctx:run("e", 1) end
            if input.left > 0 then ctx:continue_as({ left = input.left - 1 }) end
            return "done"
        end"#;
    let run = bench.start(body, r#"{"left":9}"#).await;
    let view = bench.ended(run).await;
    assert_eq!((view.status, view.steps, view.steps_done), (RunStatus::Completed, 500, 500));
    let all = bench.store.all_entries(run.num(), 0).unwrap();
    let starts = all.iter().filter(|entry| matches!(entry.fact, Fact::RunStarted(_))).count();
    assert_eq!((starts, all.len()), (10, 511));
}

#[tokio::test]
async fn the_latest_steps_of_a_long_history_are_those_that_all_of_it_shows() {
    let bench = one_shard();
    let body = r#"agents = { e = { operator = "echo" } },
        flow = function(ctx, input)
            local early = ctx:spawn(function() return ctx:wait("go") end)
            for i = 1, 2000 do ctx:run("e", i) end
            ctx:wait("end")
        end"#;
    let run = bench.start(body, "null").await;
    let is_through =
        |view: &RunView| view.waiting_on.iter().any(|it| it.subject.name.as_deref() == Some("end"));
    bench.until(run, "the second wait", is_through).await;
    // The first wait ends after everything that the last page is made of was scheduled.
    bench.signal(run, "go", "1").await.unwrap();
    let admin = bench.admin();
    let all = bench.engine.steps(&admin, run, 0, 10_000).await.unwrap().items;
    assert_eq!((all.len(), all[0].state.as_str()), (2_002, "completed"));
    for after in [1, 500, 1_990, 2_001, 2_002] {
        let page = bench.engine.steps(&admin, run, after, 10_000).await.unwrap().items;
        assert_eq!(page.len(), 2_002 - after as usize, "after {after}");
        for (step, same) in page.iter().zip(&all[after as usize..]) {
            assert_eq!(serde_json::to_value(step).unwrap(), serde_json::to_value(same).unwrap());
        }
    }
}
