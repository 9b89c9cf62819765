use super::*;

#[tokio::test]
async fn a_timer_fires_when_its_time_has_come_and_not_before() {
    let bench = Bench::new();
    let body = r#"flow = function(ctx)
            local before = ctx:now()
            ctx:sleep("5m")
            return ctx:now() - before
        end"#;
    let run = bench.start(body, "null").await;
    let view = bench.waiting(run, "timer").await;
    assert_eq!(view.status, RunStatus::Waiting);
    bench.clock.advance(Duration::from_secs(299));
    assert_eq!(bench.engine.run(&bench.admin(), run).await.unwrap().status, RunStatus::Waiting);
    bench.clock.advance(Duration::from_secs(1));
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "300");
}

#[tokio::test]
async fn who_waits_for_people_is_answered_where_a_worker_or_a_session_is_absent() {
    for agent in [
        r#"{ operator = "queue", queue = "nobody" }"#,
        r#"{ operator = "main-ai", worker = { subagent_type = "x" } }"#,
    ] {
        let bench = Bench::new();
        let body = format!(
            r#"agents = {{ a = {agent} }}, flow = function(ctx) return ctx:run("a", {{}}) end"#
        );
        let run = bench.start(&body, "null").await;
        let (admin, long) = (bench.admin(), Duration::from_secs(86_400));
        let waits = bench.engine.wait(&admin, run, WaitFor::EndedOrPeople, long);
        let view = tokio::time::timeout(PATIENCE, waits).await.expect("it is answered").unwrap();
        let on = &view.waiting_on[0].subject;
        assert_eq!(view.status, RunStatus::Waiting, "{agent}");
        assert!(on.served == Some(false) || on.session.is_some(), "{agent}: {on:?}");
    }
}

#[tokio::test]
async fn signals_wait_in_order_and_an_absent_one_times_out() {
    let bench = Bench::new();
    let body = r#"flow = function(ctx)
            local a, b = ctx:wait("go"), ctx:wait("go")
            local c, why = ctx:wait("go", { timeout = "1m" })
            return { a, b, c == nil, why }
        end"#;
    let run = bench.start(body, "null").await;
    bench.signal(run, "go", r#"{"n":1}"#).await.unwrap();
    bench.signal(run, "go", "2").await.unwrap();
    bench.waiting(run, "signal").await;
    bench.clock.advance(Duration::from_secs(60));
    let view = bench.ended(run).await;
    assert_eq!(view.output.unwrap().as_str(), r#"[{"n":1},2,true,"timeout"]"#);
    let late = bench.signal(run, "go", "3").await.unwrap_err();
    assert_eq!(late.code(), "run_closed");
}

#[tokio::test]
async fn more_signals_than_the_queue_holds_are_refused() {
    let bench = Bench::new();
    let run = bench.start(r#"flow = function(ctx) return ctx:wait("never") end"#, "null").await;
    for n in 0..100 {
        bench.signal(run, "other", &n.to_string()).await.unwrap();
    }
    assert_eq!(bench.signal(run, "other", "1").await.unwrap_err().code(), "signal_queue_full");
}

#[tokio::test]
async fn one_run_signals_another_exactly_once() {
    let bench = Bench::new();
    let waits = r#"flow = function(ctx) return { ctx:wait("hi"), ctx:wait("hi", { timeout = "1s" }) == nil } end"#;
    let to = bench.start(waits, "null").await;
    let sends =
        r#"flow = function(ctx, input) ctx:signal(input.to, "hi", { from = "me" }) return 1 end"#;
    let from = bench.start(sends, &format!(r#"{{"to":"{to}"}}"#)).await;
    bench.ended(from).await;
    bench.until(to, "the second wait", |view| view.steps == 2).await;
    bench.clock.advance(Duration::from_secs(1));
    assert_eq!(bench.ended(to).await.output.unwrap().as_str(), r#"[{"from":"me"},true]"#);
    assert!(bench.store.outbox().unwrap().is_empty());
}

#[tokio::test]
async fn the_loser_of_a_race_is_canceled() {
    let bench = Bench::new();
    let body = r#"flow = function(ctx)
            local key, got = ctx:race {
                slow = function() ctx:sleep("1h") return "slow" end,
                fast = function() return ctx:wait("go") end,
            }
            return { key, got }
        end"#;
    let run = bench.start(body, "null").await;
    bench.signal(run, "go", "7").await.unwrap();
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), r#"["fast",7]"#);
    let canceled = |fact: &Fact| {
        matches!(fact, Fact::StepEnded { outcome: crate::journal::Outcome::Canceled(_), .. })
    };
    assert_eq!(bench.count(run, canceled), 1);
}

#[tokio::test]
async fn a_cancel_runs_the_compensations_in_reverse_and_cannot_be_caught() {
    let bench = Bench::new();
    let body = r#"agents = { e = { operator = "echo" } },
        flow = function(ctx)
            ctx:defer(function() ctx:run("e", "first") end)
            ctx:defer(function() ctx:run("e", "second") end)
            pcall(function() ctx:wait("never") end)
            return "caught"
        end"#;
    let run = bench.start(body, "null").await;
    bench.waiting(run, "signal").await;
    bench.engine.cancel(&bench.admin(), run, "enough".into(), None).await.unwrap();
    let view = bench.ended(run).await;
    assert_eq!(view.status, RunStatus::Canceled);
    let asked: Vec<String> = bench
        .entries(run)
        .iter()
        .filter_map(|entry| match &entry.fact {
            Fact::StepRecorded(step, _) => Some(step.request.to_string()),
            _ => None,
        })
        .collect();
    assert_eq!(asked, [r#""second""#, r#""first""#]);
}

impl Bench {
    /// A run whose compensation waits for the signal `undone`.
    async fn compensating(&self) -> RunId {
        let body = r#"agents = {},
            flow = function(ctx)
                ctx:defer(function() ctx:wait("undone") end)
                ctx:wait("never")
            end"#;
        let run = self.start(body, "null").await;
        self.waiting(run, "signal").await;
        self.engine.cancel(&self.admin(), run, "enough".into(), None).await.unwrap();
        self.until(run, "compensating", |view| view.status == RunStatus::Compensating).await;
        run
    }
}

#[tokio::test]
async fn a_run_that_rests_while_it_compensates_is_found_among_the_paused() {
    let bench = Bench::new();
    let (run, admin) = (bench.compensating().await, bench.admin());
    let paused = bench.engine.pause(&admin, run, "look at it".into()).await.unwrap();
    assert_eq!(paused.status, RunStatus::Paused);
    assert_eq!(paused.waiting_on[0].kind, "resume");
    let filter = RunFilter { status: vec![RunStatus::Paused], limit: 9, ..RunFilter::default() };
    let listed = bench.store.headers(&filter).unwrap();
    assert_eq!(listed.iter().map(|header| header.num).collect::<Vec<_>>(), [run.num()]);
    bench.engine.resume(&admin, run).await.unwrap();
    bench.until(run, "compensating", |view| view.status == RunStatus::Compensating).await;
    bench.engine.signal(&admin, run, "undone".into(), Json::null(), None).await.unwrap();
    assert_eq!(bench.ended(run).await.status, RunStatus::Canceled);
}

#[tokio::test]
async fn an_act_on_many_runs_cuts_no_compensation_short() {
    let bench = Bench::new();
    let (run, admin) = (bench.compensating().await, bench.admin());
    let cancel = |digest| Bulk {
        runs: BulkRuns::Ids(vec![run]),
        act: BulkAct::Cancel,
        digest,
        reason: "again".into(),
        key: None,
    };
    let planned = bench.engine.bulk(&admin, cancel(None)).await.unwrap();
    let done = bench.engine.bulk(&admin, cancel(Some(planned.digest))).await.unwrap();
    assert_eq!((planned.eligible, done.items[0].result.as_str()), (0, "unchanged"));
    bench.signal(run, "undone", "1").await.unwrap();
    assert_eq!(bench.ended(run).await.status, RunStatus::Canceled);
}

#[tokio::test]
async fn a_paused_run_accepts_results_and_goes_on_when_resumed() {
    let bench = Bench::new();
    let body = r#"agents = { q = { operator = "queue", queue = "q" } },
        flow = function(ctx) local a = ctx:run("q", 1) ctx:sleep("1s") return a end"#;
    let run = bench.start(body, "null").await;
    let leased = bench.lease("q").await;
    bench.engine.pause(&bench.admin(), run, "lunch".into()).await.unwrap();
    assert!(bench.report(&leased.handle, "41").await.unwrap());
    let view = bench.engine.run(&bench.admin(), run).await.unwrap();
    assert_eq!((view.status, view.steps), (RunStatus::Paused, 1), "the flow rests");
    bench.engine.resume(&bench.admin(), run).await.unwrap();
    bench.waiting(run, "timer").await;
    bench.clock.advance(Duration::from_secs(1));
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "41");
}
