//! Time that is measured, beside a wall clock that is set, a process that is paused, and a host that
//! is away.

use super::*;

const TASK: &str = r#"agents = { q = { operator = "queue", queue = "q" } },
    flow = function(ctx) return ctx:run("q") end"#;
const LEASE: Duration = Duration::from_secs(30);
const HOUR_MS: u64 = 3_600_000;

/// Runs on both shards that end once half an hour has passed on the wall clock.
async fn markers(bench: &Bench) -> [RunId; 2] {
    let body = r#"flow = function(ctx) ctx:sleep("30m") end"#;
    let markers = [bench.start(body, "null").await, bench.start(body, "null").await];
    for marker in markers {
        bench.waiting(marker, "timer").await;
    }
    markers
}

#[tokio::test]
async fn setting_the_wall_clock_fences_no_worker_and_makes_times_of_day_come() {
    let bench = Bench::new();
    let run = bench.start(TASK, "null").await;
    let leased = bench.lease("q").await;
    let markers = markers(&bench).await;
    bench.clock.set(bench.clock.now_ms() + HOUR_MS);
    for marker in markers {
        bench.ended(marker).await;
    }
    assert!(bench.report(&leased.handle, "1").await.unwrap());
    bench.ended(run).await;
    assert_eq!(bench.count(run, |fact| matches!(fact, Fact::AttemptClosed(_))), 0);
}

#[tokio::test]
async fn a_lease_ends_in_its_time_although_the_wall_clock_was_set_back() {
    let bench = Bench::new();
    let run = bench.start(TASK, "null").await;
    let gone = bench.lease("q").await;
    bench.clock.set(bench.clock.now_ms() - HOUR_MS);
    bench.clock.advance(LEASE);
    let next = bench.lease("q").await;
    assert_eq!(bench.report(&gone.handle, "1").await.unwrap_err().code(), "fenced");
    assert!(bench.report(&next.handle, "2").await.unwrap());
    bench.ended(run).await;
}

#[tokio::test]
async fn a_deadline_that_was_written_before_the_clock_was_set_is_what_it_was_after_a_restart() {
    let body = r#"agents = { q = { operator = "queue", queue = "q", timeout = "20m" } },
        flow = function(ctx) return ctx:run("q") end"#;
    let bench = Bench::new();
    let run = bench.start(body, "null").await;
    let leased = bench.lease("q").await;
    bench.clock.set(bench.clock.now_ms() + HOUR_MS);
    let bench = bench.restart_after(Duration::from_secs(60), Recovery::All).await;
    assert!(bench.report(&leased.handle, "1").await.unwrap(), "its 20 minutes are not over");
    bench.ended(run).await;
}

#[tokio::test]
async fn whoever_works_through_a_pause_is_heard_after_it() {
    let bench = Bench::new();
    let run = bench.start(TASK, "null").await;
    let leased = bench.lease("q").await;
    let markers = markers(&bench).await;
    bench.clock.pause(Duration::from_millis(HOUR_MS));
    for marker in markers {
        bench.ended(marker).await;
    }
    assert!(bench.report(&leased.handle, "1").await.unwrap());
    bench.ended(run).await;
}

#[tokio::test]
async fn a_worker_that_is_gone_is_not_waited_for_after_the_third_absence() {
    let mut bench = Bench::new();
    let run = bench.start(TASK, "null").await;
    let gone = bench.lease("q").await;
    for absence in 1..=3 {
        bench = bench.restart_after(2 * LEASE, Recovery::All).await;
        let row = || bench.store.task(run.num(), 1).unwrap().expect("it is open");
        let put_off = async {
            while row().graces != absence {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, put_off).await.expect("it is put off");
    }
    let bench = bench.restart_after(2 * LEASE, Recovery::All).await;
    let next = bench.lease("q").await;
    assert_eq!(bench.report(&gone.handle, "1").await.unwrap_err().code(), "fenced");
    assert!(bench.report(&next.handle, "2").await.unwrap());
    bench.ended(run).await;
}

#[tokio::test]
async fn a_lease_that_began_after_the_pause_is_not_put_off() {
    let bench = Bench::new();
    bench.clock.pause(Duration::from_secs(100));
    let run = bench.start(TASK, "null").await;
    let gone = bench.lease("q").await;
    bench.clock.advance(LEASE);
    let next = bench.lease("q").await;
    assert_eq!(bench.report(&gone.handle, "1").await.unwrap_err().code(), "fenced");
    assert!(bench.report(&next.handle, "2").await.unwrap());
    bench.ended(run).await;
}

#[tokio::test]
async fn the_wall_limit_cuts_no_compensation_short_also_after_a_restart() {
    let body = r#"limits = { wall = "10m" }, agents = { q = { operator = "queue", queue = "q" } },
        flow = function(ctx)
            ctx:defer(function() ctx:run("q", "undo") end)
            ctx:wait("never")
        end"#;
    for (seconds, ending) in [(600, RunStatus::Failed), (590, RunStatus::Canceled)] {
        let bench = Bench::new();
        let run = bench.start(body, "null").await;
        bench.waiting(run, "signal").await;
        bench.clock.advance(Duration::from_secs(seconds));
        if ending == RunStatus::Canceled {
            bench.engine.cancel(&bench.admin(), run, "enough".into(), None).await.unwrap();
        }
        let compensates = |view: &RunView| view.status == RunStatus::Compensating;
        bench.until(run, "its compensation", compensates).await;
        let bench = bench.restart_after(Duration::from_secs(20), Recovery::All).await;
        let undo = bench.lease("q").await;
        assert!(bench.report(&undo.handle, "null").await.unwrap());
        assert_eq!(bench.ended(run).await.status, ending);
    }
}
