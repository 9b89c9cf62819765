use super::*;

const FLOW: &str = r#"agents = { e = { operator = "echo" } },
    flow = function(ctx)
        ctx:wait("go")
        for i = 1, 3000 do ctx:run("e", i) end
        ctx:wait("go")
    end"#;

async fn next(moves: &mut Moves, after: u32) -> bool {
    tokio::time::timeout(PATIENCE, moves.next(after)).await.expect("it is told").unwrap()
}

/// Checks that nothing is told while the run answers other questions.
async fn rests(bench: &Bench, run: RunId, moves: &mut Moves, after: u32) {
    let mut next = std::pin::pin!(moves.next(after));
    for _ in 0..20 {
        assert!(futures::poll!(&mut next).is_pending(), "that was seen");
        assert_eq!(bench.engine.run(&bench.admin(), run).await.unwrap().last_event, after);
    }
}

#[tokio::test]
async fn a_change_is_told_once_and_the_end_last() {
    let bench = Bench::new();
    let run = bench.start(FLOW, "null").await;
    let first = bench.waiting(run, "signal").await.last_event;
    let mut moves = Moves::of(&bench.engine, &bench.admin(), run).await.unwrap();
    assert!(next(&mut moves, 0).await, "what happened before counts");
    rests(&bench, run, &mut moves, first).await;
    bench.signal(run, "go", "1").await.unwrap();
    assert!(next(&mut moves, first).await);
    // It is busy while a lot happens, and asks again when that is over.
    let is_over = |view: &RunView| view.steps_done > 3_000 && !view.waiting_on.is_empty();
    let second = bench.until(run, "the second wait", is_over).await.last_event;
    assert!(next(&mut moves, first).await);
    rests(&bench, run, &mut moves, second).await;
    let dropped = bench.engine.inner.shared.counts.watchers_dropped.get();
    assert_eq!(dropped, 0, "a reader of changes does not fall behind");
    bench.signal(run, "go", "1").await.unwrap();
    let end = bench.ended(run).await.last_event;
    assert!(!next(&mut moves, second).await || !next(&mut moves, end).await);
    assert!(!next(&mut moves, end).await);
}
