use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::{
    middleware::TaskDone,
    operator::{Backend, Delivery, Reply, Residence, Task},
    protocol::Failure,
};

const RETRIED: &str = r#"agents = { q = { operator = "queue", queue = "q",
            retry = { max_attempts = 3, backoff = "2s", jitter = false } } },
        flow = function(ctx) local r, err = ctx:try("q", 1) return r or { err.kind, err.attempt } end"#;

async fn fails(bench: &Bench, handle: &str, retryable: bool) {
    let failed = Report {
        verdict: Verdict::Failed { message: "no".into(), retryable, data: None },
        ..report("null")
    };
    bench.engine.tasks().report(&bench.holder(handle), failed).await.unwrap();
}

#[tokio::test]
async fn a_retryable_failure_is_followed_by_another_attempt_after_its_pause() {
    let bench = Bench::new();
    let run = bench.start(RETRIED, "null").await;
    let first = bench.lease("q").await;
    fails(&bench, &first.handle, true).await;
    bench.waiting(run, "retry").await;
    bench.clock.advance(Duration::from_secs(2));
    let second = bench.lease("q").await;
    let stale = bench.report(&first.handle, "1").await.unwrap_err();
    assert_eq!(stale.code(), "already_accepted", "its failure was the attempt's one report");
    assert!(bench.report(&second.handle, "7").await.unwrap());
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "7");
    assert_eq!(
        bench.store.evidence(run.num(), None, 9).unwrap().len(),
        1,
        "the refused result is kept"
    );
}

#[tokio::test]
async fn a_failure_that_says_when_to_come_back_is_not_followed_earlier() {
    let bench = Bench::new();
    let run = bench.start(RETRIED, "null").await;
    let first = bench.lease("q").await;
    let data = Json::parse(r#"{"status":429,"retry_after_ms":60000}"#).unwrap();
    let failed = Report {
        verdict: Verdict::Failed { message: "busy".into(), retryable: true, data: Some(data) },
        ..report("null")
    };
    bench.engine.tasks().report(&bench.holder(&first.handle), failed).await.unwrap();
    let view = bench.waiting(run, "retry").await;
    let ms = |at: &str| at.parse::<jiff::Timestamp>().unwrap().as_millisecond();
    let until = ms(view.waiting_on[0].until.as_ref().unwrap());
    assert_eq!(until - i64::try_from(bench.clock.now_ms()).unwrap(), 60_000);
}

#[tokio::test]
async fn attempts_end_at_their_maximum_and_at_a_failure_for_good() {
    let bench = Bench::new();
    let run = bench.start(RETRIED, "null").await;
    for n in 1..=3u64 {
        let leased = bench.lease("q").await;
        fails(&bench, &leased.handle, true).await;
        if n < 3 {
            bench.waiting(run, "retry").await;
        }
        bench.clock.advance(Duration::from_secs(2 * n));
    }
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), r#"["worker",3]"#);
    let run = bench.start(RETRIED, "null").await;
    let leased = bench.lease("q").await;
    fails(&bench, &leased.handle, false).await;
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), r#"["worker",1]"#);
}

#[tokio::test]
async fn a_lost_lease_gives_the_task_to_the_next_worker_without_using_an_attempt() {
    let bench = Bench::new();
    let body = r#"agents = { q = { operator = "queue", queue = "q" } },
        flow = function(ctx) return ctx:run("q", 1) end"#;
    let run = bench.start(body, "null").await;
    let gone = bench.lease("q").await;
    bench.clock.advance(Duration::from_secs(29));
    assert!(!bench.engine.tasks().heartbeat(&bench.holder(&gone.handle)).await.unwrap().cancel);
    bench.clock.advance(Duration::from_secs(29));
    let view = bench.engine.run(&bench.admin(), run).await.unwrap();
    assert_eq!(view.status, RunStatus::Running, "the heartbeat kept it");
    bench.clock.advance(Duration::from_secs(1));
    let next = bench.lease("q").await;
    let beat = bench.engine.tasks().heartbeat(&bench.holder(&gone.handle)).await.unwrap();
    assert!(beat.cancel, "the former worker is told to stop");
    assert!(bench.report(&next.handle, "2").await.unwrap());
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "2");
}

#[tokio::test]
async fn the_timeout_counts_from_the_delivery() {
    let bench = Bench::new();
    let body = r#"agents = { q = { operator = "queue", queue = "q", timeout = "10s" } },
        flow = function(ctx) local _, err = ctx:try("q", 1) return err.kind end"#;
    let run = bench.start(body, "null").await;
    bench.waiting(run, "task").await;
    bench.clock.advance(Duration::from_secs(3_600));
    let leased = bench.lease("q").await;
    bench.clock.advance(Duration::from_secs(10));
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "\"timeout\"");
    assert_eq!(bench.report(&leased.handle, "1").await.unwrap_err().code(), "run_closed");
}

#[tokio::test]
async fn nobody_within_the_park_time_is_operator_unavailable() {
    let bench = Bench::new();
    let body = r#"agents = { q = { operator = "queue", queue = "q", park = "1h" } },
        flow = function(ctx) local _, err = ctx:try("q", 1) return err.kind end"#;
    let run = bench.start(body, "null").await;
    bench.waiting(run, "task").await;
    bench.clock.advance(Duration::from_secs(3_600));
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "\"operator_unavailable\"");
}

#[tokio::test]
async fn max_concurrency_holds_back_what_is_too_much() {
    let bench = Bench::new();
    let body = r#"agents = { q = { operator = "queue", queue = "q", max_concurrency = 2 } },
        flow = function(ctx) return ctx:map({ 1, 2, 3 }, function(n) return ctx:run("q", n) end) end"#;
    let run = bench.start(body, "null").await;
    let (a, b) = (bench.lease("q").await, bench.lease("q").await);
    let none = bench.leases("q", Duration::ZERO).await;
    assert!(none.is_empty(), "the third waits for a place");
    bench.waiting(run, "capacity").await;
    bench.report(&a.handle, "1").await.unwrap();
    let c = bench.lease("q").await;
    bench.report(&b.handle, "2").await.unwrap();
    bench.report(&c.handle, "3").await.unwrap();
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "[1,2,3]");
}

#[tokio::test]
async fn an_attempt_from_before_a_restart_gives_its_place_back_though_its_agent_had_no_limit() {
    let bench = Bench::new();
    let flow = r#"flow = function(ctx) return ctx:run("q") end"#;
    let free = format!(r#"agents = {{ q = {{ operator = "queue", queue = "q" }} }}, {flow}"#);
    let run = bench.start(&free, "null").await;
    let leased = bench.lease("q").await;
    let bench = bench.restart().await;
    bench.report(&leased.handle, "1").await.unwrap();
    bench.ended(run).await;
    let limited = format!(
        r#"agents = {{ q = {{ operator = "queue", queue = "q", max_concurrency = 1 }} }}, {flow}"#
    );
    let run = bench.start(&limited, "null").await;
    let leased = bench.lease("q").await;
    bench.report(&leased.handle, "2").await.unwrap();
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "2");
}

#[tokio::test]
async fn a_process_gets_its_input_and_its_output_is_the_result() {
    let bench = Bench::new();
    let body = r#"agents = { cat = { operator = "process", command = { "cat" } },
            no = { operator = "process", command = { "sh", "-c", "echo oops >&2; exit 3" } } },
        flow = function(ctx)
            local _, err = ctx:try("no")
            return { ctx:run("cat", { a = 1 }), err.kind, err.data.exit_code }
        end"#;
    assert_eq!(bench.output(body, "null").await, r#"[{"a":1},"process",3]"#);
}

#[tokio::test]
async fn a_cancel_reaches_the_child_process() {
    let bench = Bench::new();
    let body = r#"agents = { cat = { operator = "process", command = { "sh", "-c", "echo $$ > pid; exec sleep 1000" } } },
        flow = function(ctx) return ctx:run("cat") end"#;
    let run = bench.start(body, "null").await;
    bench
        .until(run, "delivery", |view| {
            view.status == RunStatus::Running
                && bench.count(run, |f| matches!(f, Fact::AttemptDelivered { .. })) == 1
        })
        .await;
    bench.engine.cancel(&bench.admin(), run, "enough".into(), None).await.unwrap();
    assert_eq!(bench.ended(run).await.status, RunStatus::Canceled);
    bench.close().await;
}

/// Work of 300 milliseconds, which is over before the run can record that it began.
struct Busy(Clock);

#[async_trait::async_trait]
impl Backend for Busy {
    fn kind(&self) -> &'static str {
        "busy"
    }

    fn residence(&self) -> Residence {
        Residence::Host
    }

    async fn execute(&self, task: Arc<Task>, _: Json) -> Result<Reply, Failure> {
        task.reporter.delivered(Delivery { worker: "it".into() });
        self.0.advance(Duration::from_millis(300));
        Ok(Reply::Done(TaskDone::new(Json::null())))
    }
}

#[tokio::test]
async fn the_time_at_work_begins_with_the_work_and_not_with_its_record() {
    let clock = Clock::manual(1_700_000_000_000);
    let code = Coded::default().and("busy", Busy(clock.clone()));
    let bench = Bench::open_coded(Arc::new(tempfile::tempdir().unwrap()), clock, &code);
    let body = r#"agents = { w = { operator = "busy" } },
        flow = function(ctx) ctx:run("w") end"#;
    let run = bench.start(body, "null").await;
    bench.ended(run).await;
    let steps = bench.engine.steps(&bench.admin(), run, 0, 9).await.unwrap();
    assert_eq!((steps.items[0].queued_ms, steps.items[0].ran_ms), (Some(0), Some(300)));
}

/// Hands its handle out, and leaves once its result was reported.
struct HandsOut(tokio::sync::mpsc::Sender<String>);

#[async_trait::async_trait]
impl Backend for HandsOut {
    fn kind(&self) -> &'static str {
        "hands_out"
    }

    fn residence(&self) -> Residence {
        Residence::Host
    }

    async fn execute(&self, task: Arc<Task>, _: Json) -> Result<Reply, Failure> {
        task.reporter.begins();
        self.0.send(task.handle.clone()).await.unwrap();
        task.reported.cancelled().await;
        Ok(Reply::Parked)
    }
}

#[tokio::test]
async fn the_time_at_work_of_a_worker_that_reports_ends_with_its_report() {
    let clock = Clock::manual(1_700_000_000_000);
    let (to, mut handles) = tokio::sync::mpsc::channel(1);
    let code = Coded::default().and("hands_out", HandsOut(to));
    let bench = Bench::open_coded(Arc::new(tempfile::tempdir().unwrap()), clock, &code);
    let body = r#"agents = { w = { operator = "hands_out" } },
        flow = function(ctx) return ctx:run("w") end"#;
    let run = bench.start(body, "null").await;
    let handle = handles.recv().await.unwrap();
    bench.clock.advance(Duration::from_millis(300));
    assert!(bench.report(&handle, "7").await.unwrap());
    bench.ended(run).await;
    let steps = bench.engine.steps(&bench.admin(), run, 0, 9).await.unwrap();
    assert_eq!((steps.items[0].queued_ms, steps.items[0].ran_ms), (Some(0), Some(300)));
}

/// Returns the number of its call; the effect of the first one is not allowed.
struct Oversteps(Residence, AtomicU32);

#[async_trait::async_trait]
impl Backend for Oversteps {
    fn kind(&self) -> &'static str {
        "oversteps"
    }

    fn residence(&self) -> Residence {
        self.0
    }

    async fn execute(&self, task: Arc<Task>, _: Json) -> Result<Reply, Failure> {
        let call = self.1.fetch_add(1, Ordering::SeqCst);
        let effect = serde_json::json!({
            "type": "write_memory", "scope": { "workflow": task.run.to_string() }, "key": "",
            "value": 5,
        });
        let mut done = TaskDone::new(serde_json::json!(call).into());
        if call == 0 {
            done.effects.push(serde_json::from_value(effect).unwrap());
        }
        Ok(Reply::Done(done))
    }
}

#[tokio::test]
async fn what_an_operator_returns_with_refused_effects_is_no_answer_to_its_key() {
    for residence in [Residence::Host, Residence::Inline] {
        let clock = Clock::manual(1_700_000_000_000);
        let code = Coded::default().and("oversteps", Oversteps(residence, AtomicU32::new(0)));
        let bench = Bench::open_coded(Arc::new(tempfile::tempdir().unwrap()), clock, &code);
        let body = r#"middleware = { swarm.middleware.idempotency {} },
            agents = { w = { operator = "oversteps" } },
            flow = function(ctx)
                local key = { idempotency_key = "k" }
                local _, err = ctx:try("w", 1, key)
                return { err.kind, ctx:run("w", 1, key), ctx:run("w", 1, key) }
            end"#;
        assert_eq!(bench.output(body, "null").await, r#"["effect",1,1]"#, "{residence:?}");
    }
}
