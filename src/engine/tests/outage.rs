//! Attempts in this process while the database is away for too long.

use super::*;
use crate::{
    middleware::TaskDone,
    operator::{Backend, Delivery, Reply, Residence, Task},
    protocol::{Failure, failure::kind},
    store::tamper,
};

/// Work that ends only when it is canceled, and at once in its second attempt.
struct Lasting(Arc<tokio::sync::Semaphore>);

#[async_trait::async_trait]
impl Backend for Lasting {
    fn kind(&self) -> &'static str {
        "lasting"
    }

    fn residence(&self) -> Residence {
        Residence::Host
    }

    async fn execute(&self, task: Arc<Task>, _: Json) -> Result<Reply, Failure> {
        task.reporter.delivered(Delivery { worker: "it".into() });
        if task.attempt > 1 {
            return Ok(Reply::Done(TaskDone::new(Json::parse("7").unwrap())));
        }
        task.cancel.cancelled().await;
        self.0.add_permits(1);
        Err(Failure::new(kind::CANCELED, "it was canceled"))
    }
}

#[tokio::test]
async fn an_attempt_in_this_process_is_interrupted_and_one_elsewhere_goes_on() {
    let canceled = Arc::new(tokio::sync::Semaphore::new(0));
    let code = Coded::default().and("lasting", Lasting(Arc::clone(&canceled)));
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let bench = Bench::open_coded(dir, Clock::manual(1_700_000_000_000), &code);
    let pulled = r#"agents = { q = { operator = "queue", queue = "q" } },
        flow = function(ctx) return ctx:run("q", 1) end"#;
    let elsewhere = bench.start(pulled, "null").await;
    let leased = bench.lease("q").await;
    // An interruption is no failure: one attempt is enough.
    let body = r#"agents = { w = { operator = "lasting", retry = { max_attempts = 1 } } },
        flow = function(ctx) return ctx:run("w") end"#;
    let run = bench.start(body, "null").await;
    let delivered =
        |_: &RunView| bench.count(run, |fact| matches!(fact, Fact::AttemptDelivered { .. })) == 1;
    bench.until(run, "its delivery", delivered).await;
    bench.engine.upkeep().interrupt_attempts();
    tokio::time::timeout(PATIENCE, canceled.acquire()).await.unwrap().unwrap().forget();
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "7");
    let closed = bench.count(run, |fact| match fact {
        Fact::AttemptClosed(it) => it.error.is(kind::INTERRUPTED) && !it.counts,
        _ => false,
    });
    assert_eq!(closed, 1);
    let unreported = |operator: &str| {
        let mut scrape = crate::metrics::Scrape::default();
        bench.engine.counts().collect(&mut scrape);
        let mut families = scrape.families().iter();
        let family = families.find(|it| it.of.name == "moonswarm_usage_unreported_total").unwrap();
        let mut samples = family.samples.iter();
        let sample = samples.find(|it| it.labels[0].1 == operator).unwrap();
        sample.value.clone()
    };
    let one = crate::metrics::Value::Whole(1);
    assert_eq!(unreported("lasting"), one, "an interrupted attempt cannot report its usage");
    assert!(bench.report(&leased.handle, "2").await.unwrap());
    assert_eq!(bench.ended(elsewhere).await.output.unwrap().as_str(), "2");
}

/// What runs have for each other waits for a run that cannot be read for a moment: nobody repeats it.
#[tokio::test]
async fn a_signal_to_a_run_that_cannot_be_read_for_a_moment_arrives() {
    let bench = Bench::new();
    let waits = bench.start("flow = function(ctx) return ctx:wait('go') end", "null").await;
    bench.waiting(waits, "signal").await;
    let bench = bench.restart().await;
    let tamper = |statements| tamper(bench.dir.path(), statements);
    // A start reads nothing of it.
    tamper("ALTER TABLE artifacts RENAME TO away");
    let body = format!("flow = function(ctx) ctx:signal('{waits}', 'go', 7) end");
    let signals = bench.start(&body, "null").await;
    bench.ended(signals).await;
    // It is read after the signal has come, and in vain.
    let asked = bench.engine.resume(&bench.admin(), waits).await;
    assert!(matches!(asked, Err(EngineError::Store(_))), "{asked:?}");
    tamper("ALTER TABLE away RENAME TO artifacts");
    bench.clock.advance(Duration::from_secs(2));
    assert_eq!(bench.ended(waits).await.output.unwrap().as_str(), "7");
}

#[tokio::test]
async fn a_run_that_cannot_be_read_is_not_read_all_the_time_for_whoever_waits_for_it() {
    let bench = Bench::new();
    let run = bench.start("flow = function(ctx) return ctx:wait('go') end", "null").await;
    bench.waiting(run, "signal").await;
    let bench = bench.restart().await;
    tamper(bench.dir.path(), "UPDATE journal SET entry = x'00'");
    let wait = Duration::from_secs(2);
    let view = bench.engine.wait(&bench.admin(), run, WaitFor::Ended, wait).await.unwrap();
    assert_eq!(view.status, RunStatus::Paused);
    let quarantined = bench.engine.counts().quarantined.get();
    assert!((1..10).contains(&quarantined), "{quarantined}");
}
