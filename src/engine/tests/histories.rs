//! Long histories: what is asked of one entry holds few.

use std::sync::atomic::Ordering;

use super::*;
use crate::{
    engine::verbs::step_page::tests::{append, done, start, step},
    protocol::TaskId,
    store::{Header, Memory, PAGE_ENTRIES},
};

#[tokio::test]
async fn a_task_that_is_over_is_shown_without_holding_the_history_of_its_run() {
    let (store, dir) = (Arc::new(Memory::new()), tempfile::tempdir().unwrap());
    let mut header = Header { status: RunStatus::Completed, ..Header::fresh(1, 5) };
    header.seq = 0;
    let steps = (1..=10_000).map(|n| Fact::StepRecorded(step(n), done()));
    append(&store, &mut header, None, std::iter::once(start(1)).chain(steps).collect());
    let parts = (2, RunLimits::default(), Recovery::All, Retention::FOR_EVER);
    let code = (&Coded::default(), Middleware::default());
    let clock = Clock::manual(1_700_000_000_000);
    let over = Arc::clone(&store) as Arc<dyn crate::store::Store>;
    let (engine, tasks) = Bench::over(over, &dir, clock, parts, code);
    let admin = Caller {
        subject: "admin".into(),
        grant: Grant::new(Role::Admin, Scopes::all()).into(),
        jti: "test".into(),
        expires_ms: u64::MAX,
        session: None,
        trace: None,
    };
    let task = engine.tasks().get(&admin, TaskId::new(1, 1, 9)).await.unwrap();
    assert_eq!((task.step, task.agent.as_str(), task.state.as_str()), (1, "e", "completed"));
    assert!(engine.tasks().get(&admin, TaskId::new(1, 1, 8)).await.is_err(), "of another time");
    assert!(engine.tasks().get(&admin, TaskId::new(1, 10_001, 9)).await.is_err(), "no such step");
    let most = store.most_read.load(Ordering::Relaxed);
    assert!(most <= PAGE_ENTRIES as usize, "{most} at once");
    engine.stop().await;
    assert!(tasks.stop(PATIENCE).await, "everything spawned ends");
}

#[tokio::test]
async fn a_comparison_of_two_runs_waits_for_its_turn() {
    let bench = Bench::new();
    let flow = "flow = function() return 1 end";
    let (a, b) = (bench.start(flow, "null").await, bench.start(flow, "null").await);
    bench.ended(a).await;
    bench.ended(b).await;
    let diff = bench.engine.diff(&bench.admin(), (a, b), 0, 10).await.unwrap();
    assert_eq!(diff.differing, 0);
    // Once no turn is given, there is no comparison.
    bench.engine.inner.heavy.close();
    let refused = bench.engine.diff(&bench.admin(), (a, b), 0, 10).await.unwrap_err();
    assert!(matches!(refused, EngineError::Stopping), "{refused:?}");
}
