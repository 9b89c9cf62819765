use serde_json::json;

use super::*;

#[tokio::test]
async fn a_waiting_run_goes_on_after_a_restart_and_runs_nothing_again() {
    let bench = Bench::new();
    let body = r#"agents = { e = { operator = "echo" } },
        flow = function(ctx)
            local a = ctx:run("e", 1)
            local b = ctx:wait("go")
            return a + b + ctx:run("e", 5)
        end"#;
    let run = bench.start(body, "null").await;
    bench.waiting(run, "signal").await;
    let bench = bench.restart().await;
    bench.signal(run, "go", "10").await.unwrap();
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "16");
    assert_eq!(bench.count(run, |f| matches!(f, Fact::StepRecorded(..))), 2);
}

#[tokio::test]
async fn a_timer_that_fell_due_while_nobody_ran_fires_at_the_start() {
    let bench = Bench::new();
    let run = bench.start(r#"flow = function(ctx) ctx:sleep("1h") return "up" end"#, "null").await;
    bench.waiting(run, "timer").await;
    let bench = bench.restart_after(Duration::from_secs(7_200), Recovery::All).await;
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "\"up\"");
}

#[tokio::test]
async fn a_worker_elsewhere_outlives_the_host() {
    let bench = Bench::new();
    let body = r#"agents = { q = { operator = "queue", queue = "q" } },
        flow = function(ctx) return ctx:map({ 1, 2 }, function(n) return ctx:run("q", n) end) end"#;
    let run = bench.start(body, "null").await;
    let leased = bench.lease("q").await;
    let bench = bench.restart().await;
    assert!(bench.report(&leased.handle, "\"kept\"").await.unwrap());
    let other = bench.lease("q").await;
    assert!(bench.report(&other.handle, "\"new\"").await.unwrap());
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), r#"["kept","new"]"#);
    assert_eq!(bench.count(run, |f| matches!(f, Fact::AttemptClosed(_))), 0);
}

#[tokio::test]
async fn a_child_process_that_died_with_the_host_is_an_interrupted_attempt() {
    let bench = Bench::new();
    let body = r#"agents = { p = { operator = "process",
            command = { "sh", "-c", "if [ -e again ]; then echo 7; else touch again; exec sleep 1000; fi" } } },
        flow = function(ctx) return ctx:run("p") end"#;
    let run = bench.start(body, "null").await;
    let begun = async {
        while !bench.dir.path().join("again").exists() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, begun).await.expect("the child begins");
    let bench = bench.restart().await;
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "7");
    assert_eq!(bench.count(run, |f| matches!(f, Fact::AttemptClosed(_))), 1);
}

#[tokio::test]
async fn branches_and_races_are_the_same_after_a_restart() {
    let bench = Bench::new();
    let body = r#"agents = { q = { operator = "queue", queue = "q" } },
        flow = function(ctx)
            local key, got = ctx:race {
                a = function() return ctx:wait("a") end,
                b = function() local x = ctx:wait("b") return x + ctx:run("q", x) end,
            }
            local rest = ctx:all { function() return ctx:wait("c") end, function() return key end }
            return { key, got, rest }
        end"#;
    let run = bench.start(body, "null").await;
    bench.signal(run, "b", "1").await.unwrap();
    let leased = bench.lease("q").await;
    let bench = bench.restart().await;
    bench.report(&leased.handle, "2").await.unwrap();
    let bench = bench.restart().await;
    bench.signal(run, "c", "3").await.unwrap();
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), r#"["b",3,[3,"b"]]"#);
}

#[tokio::test]
async fn a_child_run_and_its_caller_both_go_on() {
    let bench = Bench::new();
    let child = r#"local swarm = require("swarm")
        return swarm.blueprint { name = "child", flow = function(ctx) return ctx:wait("go") end }"#;
    let bundle = Bundle::from_source("child.lua", child).unwrap();
    bench
        .engine
        .blueprints()
        .put_blueprint(&bench.admin(), "child".into(), bundle, None)
        .await
        .unwrap();
    let run = bench.start(r#"flow = function(ctx) return { ctx:call("child") } end"#, "null").await;
    bench.waiting(run, "child").await;
    let bench = bench.restart().await;
    // It may not have begun before the restart.
    let child = tokio::time::timeout(PATIENCE, async {
        loop {
            let others = bench.engine.unfinished(10).await.unwrap();
            if let Some(child) = others.into_iter().find(|other| *other != run) {
                return child;
            }
            tokio::task::yield_now().await;
        }
    });
    let child = child.await.expect("the child is open");
    bench.signal(child, "go", "5").await.unwrap();
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "[5]");
}

#[tokio::test]
async fn many_parked_runs_share_little_memory_and_each_can_be_woken() {
    let bench = Bench::new();
    let mut runs = Vec::new();
    for _ in 0..50 {
        runs.push(bench.start(r#"flow = function(ctx) return ctx:wait("go") end"#, "null").await);
    }
    for (n, run) in runs.iter().enumerate() {
        bench.signal(*run, "go", &n.to_string()).await.unwrap();
        assert_eq!(bench.ended(*run).await.output.unwrap().as_str(), n.to_string());
    }
}

#[tokio::test]
async fn compensations_that_were_under_way_are_finished_after_a_restart() {
    let bench = Bench::new();
    let body = r#"agents = { q = { operator = "queue", queue = "q" } },
        flow = function(ctx)
            ctx:defer(function() ctx:run("q", "undo") end)
            swarm.fail("blocked", "no way")
        end"#;
    let run = bench.start(body, "null").await;
    let leased = bench.lease("q").await;
    let bench = bench.restart().await;
    bench.report(&leased.handle, "1").await.unwrap();
    let view = bench.ended(run).await;
    assert_eq!((view.status, view.error.unwrap().kind.as_str()), (RunStatus::Failed, "blocked"));
}

/// The mark of a host that was taking up a run, and died at it so often before.
fn mark(run: RunId, deaths: u32) -> String {
    let num = run.num();
    json!({ "page": [num], "suspects": [{ "runs": [num], "deaths": deaths }] }).to_string()
}

#[tokio::test]
async fn a_start_that_failed_in_order_within_a_mark_quarantines_nobody() {
    let bench = Bench::new();
    let run = bench.start(r#"flow = function(ctx) ctx:sleep("1s") return "up" end"#, "null").await;
    bench.waiting(run, "timer").await;
    bench.engine.safe_mode().put_meta("taking_up", &mark(run, 2)).await.unwrap();
    let bench = bench.restart_after(Duration::from_secs(2), Recovery::Careful).await;
    assert_eq!(bench.engine.safe_mode().take_up_with_care(false).await.unwrap(), None);
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "\"up\"");
}

#[tokio::test]
async fn a_run_that_the_host_died_at_three_times_rests_and_the_others_go_on() {
    let bench = Bench::new();
    let body = r#"flow = function(ctx) ctx:sleep("1s") return "up" end"#;
    let (bad, good) = (bench.start(body, "null").await, bench.start(body, "null").await);
    bench.waiting(bad, "timer").await;
    bench.waiting(good, "timer").await;
    bench.engine.safe_mode().put_meta("taking_up", &mark(bad, 2)).await.unwrap();
    let bench = bench.restart_after(Duration::from_secs(2), Recovery::Careful).await;
    let quarantined = bench.engine.safe_mode().take_up_with_care(true).await.unwrap();
    assert_eq!(quarantined, Some(bad.num()));
    assert_eq!(bench.ended(good).await.output.unwrap().as_str(), "\"up\"");
    let view = bench.engine.run(&bench.admin(), bad).await.unwrap();
    assert_eq!(view.status, RunStatus::Paused, "{view:?}");
    assert_eq!(view.waiting_on[0].kind, "quarantine");
    let refused = bench.signal(bad, "go", "1").await.unwrap_err();
    assert_eq!(refused.code(), "run_paused", "nothing reads it but whoever takes the risk");
    assert_eq!(bench.count(bad, |fact| matches!(fact, Fact::Decided(_))), 0, "by its header alone");
    bench.engine.resume(&bench.admin(), bad).await.unwrap();
    assert_eq!(bench.ended(bad).await.output.unwrap().as_str(), "\"up\"", "nothing was lost");
}

#[tokio::test]
async fn what_waiting_runs_were_started_from_is_compiled_again_before_they_are_woken() {
    let bench = Bench::new();
    let done = bench.start("flow = function() return 1 end", "null").await;
    bench.ended(done).await;
    let run = bench.start(r#"flow = function(ctx) return ctx:wait("go") end"#, "null").await;
    bench.waiting(run, "signal").await;
    // Looking at a run compiles its program as well, so nobody looks after the restart.
    let hash_of = async |run| bench.engine.run(&bench.admin(), run).await.unwrap().hash;
    let (waits, done) = (hash_of(run).await, hash_of(done).await);
    let bench = bench.restart().await;
    let programs = &bench.engine.inner.shared.programs;
    while programs.kept(&waits).is_none() {
        tokio::task::yield_now().await;
    }
    assert!(programs.kept(&done).is_none(), "nobody waits for it");
}

#[tokio::test]
async fn a_list_after_a_restart_compiles_nothing_and_shows_the_same() {
    let bench = Bench::new();
    let put = async |bench: &Bench, name: &str, more: &str| {
        let source = format!(
            "return require(\"swarm\").blueprint {{ name = \"{name}\", description = \"Does it.\", \
             {more} agents = {{ e = {{ operator = \"echo\" }} }}, flow = function() return 1 end }}"
        );
        let bundle = Bundle::from_source("it.lua", source).unwrap();
        let (admin, blueprints) = (bench.admin(), bench.engine.blueprints());
        blueprints.put_blueprint(&admin, name.to_owned(), bundle, None).await.unwrap().0.hash
    };
    let plain = put(&bench, "plain", "mcp = { read_only = true },").await;
    let timed = put(&bench, "timed", "on = { { schedule = \"0 3 * * *\" } },").await;
    put(&bench, "moved", "").await;
    let moved = put(&bench, "moved", "mcp = true,").await;
    let list = async |bench: &Bench| {
        let (admin, blueprints) = (bench.admin(), bench.engine.blueprints());
        let listed = blueprints.list(&admin).await.unwrap();
        assert_eq!(blueprints.tools(&admin).await.unwrap().len(), 2);
        serde_json::to_value(listed).unwrap()
    };
    let before = list(&bench).await;
    let bench = bench.restart().await;
    assert_eq!(list(&bench).await, before);
    let kept = |hash: &str| bench.engine.inner.shared.programs.kept(hash).is_some();
    assert!(!kept(&plain) && !kept(&moved), "they are not compiled");
    assert!(kept(&timed), "one with triggers is");
    // What is deleted leaves nothing behind that a version of the same name would be shown with.
    let (admin, blueprints) = (bench.admin(), bench.engine.blueprints());
    blueprints.archive(&admin, "plain").await.unwrap();
    blueprints.delete(&admin, "plain").await.unwrap();
    assert_eq!(bench.store.meta("face:plain").unwrap().as_deref(), Some("{}"));
}

#[tokio::test]
async fn a_resting_run_that_is_canceled_after_a_restart_still_compensates() {
    let bench = Bench::new();
    let body = r#"agents = { e = { operator = "echo" } },
        flow = function(ctx)
            ctx:defer(function() ctx:run("e", "undo") end)
            ctx:wait("never")
        end"#;
    let run = bench.start(body, "null").await;
    bench.waiting(run, "signal").await;
    bench.engine.pause(&bench.admin(), run, "lunch".into()).await.unwrap();
    let bench = bench.restart().await;
    bench.engine.cancel(&bench.admin(), run, "enough".into(), None).await.unwrap();
    assert_eq!(bench.ended(run).await.status, RunStatus::Canceled);
    assert_eq!(bench.count(run, |f| matches!(f, Fact::StepRecorded(..))), 1, "the undo ran");
}

#[tokio::test]
async fn runs_of_the_process_before_are_counted_once_and_then_no_more() {
    let bench = Bench::new();
    let run = bench.start(r#"flow = function(ctx) return ctx:wait("go") end"#, "null").await;
    assert_eq!(bench.engine.open_runs(), 1);
    bench.waiting(run, "signal").await;
    let bench = bench.restart().await;
    bench.signal(run, "go", "1").await.unwrap();
    bench.ended(run).await;
    assert_eq!(bench.engine.open_runs(), 0);
    assert_eq!(bench.output("flow = function() return 7 end", "null").await, "7", "another starts");
}

#[tokio::test]
async fn a_flow_that_is_stopped_between_two_turns_undoes_what_a_replay_says_it_did() {
    let bench = Bench::new();
    let body = r#"agents = { e = { operator = "echo" }, q = { operator = "queue", queue = "q" } },
        limits = { open_tasks = 10 },
        flow = function(ctx)
            local list = {}
            for i = 1, 600 do list[i] = i end
            ctx:map(list, function(i)
                ctx:defer(function() ctx:run("e", i) end)
                ctx:run("q", i)
            end)
        end"#;
    let run = bench.start(body, "null").await;
    let view = bench.ended(run).await;
    assert_eq!(view.error.unwrap().kind, "limit");
    let undone = bench.count(run, |fact| matches!(fact, Fact::StepRecorded(..)));
    assert_eq!(undone, 600, "the limit came in the first turn of three");
    let replay = bench.engine.histories().replay(&bench.admin(), run, None).await.unwrap();
    assert_eq!(replay.divergence, None);
}

#[tokio::test]
async fn an_undo_knows_the_results_that_were_accepted_before_the_cancel() {
    let bench = Bench::new();
    let body = r#"agents = { q = { operator = "queue", queue = "q" } },
        flow = function(ctx)
            local id
            ctx:defer(function() ctx:run("q", "undo " .. tostring(id)) end)
            id = ctx:run("q", "make")
            ctx:wait("never")
        end"#;
    let run = bench.start(body, "null").await;
    let make = bench.lease("q").await;
    bench.engine.pause(&bench.admin(), run, "lunch".into()).await.unwrap();
    bench.report(&make.handle, "7").await.unwrap();
    bench.engine.cancel(&bench.admin(), run, "enough".into(), None).await.unwrap();
    let undo = bench.lease("q").await;
    let prompt = bench.engine.tasks().prompt(&bench.holder(&undo.handle)).await.unwrap();
    assert_eq!(prompt.input.as_str(), "\"undo 7\"");
    let bench = bench.restart().await;
    bench.report(&undo.handle, "null").await.unwrap();
    assert_eq!(bench.ended(run).await.status, RunStatus::Canceled);
    let replay = bench.engine.histories().replay(&bench.admin(), run, None).await.unwrap();
    assert_eq!(replay.divergence, None);
}

#[tokio::test]
async fn more_results_than_one_turn_takes_are_known_to_the_undo_as_well() {
    let bench = Bench::new();
    let body = r#"agents = { e = { operator = "echo" }, q = { operator = "queue", queue = "q" } },
        flow = function(ctx)
            local seen = 0
            ctx:defer(function() ctx:run("e", seen) end)
            local list = {}
            for i = 1, 300 do list[i] = i end
            ctx:map(list, function(i) ctx:run("q", i) seen = seen + 1 end)
            ctx:wait("never")
        end"#;
    let run = bench.start(body, "null").await;
    let mut held = Vec::new();
    while held.len() < 300 {
        held.push(bench.lease("q").await);
    }
    bench.engine.pause(&bench.admin(), run, "lunch".into()).await.unwrap();
    for leased in held {
        bench.report(&leased.handle, "null").await.unwrap();
    }
    bench.engine.cancel(&bench.admin(), run, "enough".into(), None).await.unwrap();
    assert_eq!(bench.ended(run).await.status, RunStatus::Canceled);
    let undone = bench.entries(run).into_iter().find_map(|entry| match entry.fact {
        Fact::StepRecorded(_, crate::journal::Outcome::Completed(output)) => Some(output),
        _ => None,
    });
    assert_eq!(undone.unwrap().as_str(), "300");
    let replay = bench.engine.histories().replay(&bench.admin(), run, None).await.unwrap();
    assert_eq!(replay.divergence, None);
}
