use super::*;
use crate::store::{Store as _, Write};

fn open(retention: Retention) -> Bench {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    Bench::open_keeping(dir, Clock::manual(1_700_000_000_000), retention)
}

async fn hello(bench: &Bench, input: &str) -> RunId {
    let body = r#"agents = { e = { operator = "echo" } },
        flow = function(ctx, input)
            ctx.state:set("k", 1)
            ctx:artifact("a.txt", input .. string.rep("x", 200000))
            return ctx:run("e", 1)
        end"#;
    let run = bench.start(body, input).await;
    bench.ended(run).await;
    run
}

async fn left(bench: &Bench) -> Vec<RunId> {
    let filter = RunFilter { limit: 100, ..RunFilter::default() };
    let runs = bench.engine.runs(&bench.admin(), filter).await.unwrap().items;
    runs.into_iter().rev().map(|run| run.id).collect()
}

#[tokio::test]
async fn a_dry_collection_names_what_would_go_and_touches_nothing() {
    let bench = open(Retention { runs: 1, ..Retention::FOR_EVER });
    let runs = [hello(&bench, "\"a\"").await, hello(&bench, "\"b\"").await];
    let dry = bench.engine.upkeep().gc(&bench.admin(), true).await.unwrap();
    assert_eq!((dry.runs, dry.count, dry.items[0].run), (1, 1, runs[0]));
    assert!(dry.bytes > 200_000, "{dry:?}");
    assert_eq!(left(&bench).await, runs);
}

#[tokio::test]
async fn what_goes_takes_its_state_and_files_along_and_the_file_shrinks() {
    let bench = open(Retention { runs: 1, ..Retention::FOR_EVER });
    let mut runs = Vec::new();
    for n in 0..8 {
        runs.push(hello(&bench, &format!("\"{n}\"")).await);
    }
    // The same bytes are one blob; it stays as long as somebody has it.
    runs.push(hello(&bench, "\"0\"").await);
    std::fs::create_dir_all(bench.dir.path().join("work").join(runs[0].to_string())).unwrap();
    let before = bench.store.upkeep().space().unwrap();
    let gc = bench.engine.upkeep().gc(&bench.admin(), false).await.unwrap();
    assert_eq!((gc.runs, gc.more, gc.free_bytes), (8, false, 0));
    assert!(gc.used_bytes + 7 * 200_000 <= before.used, "{gc:?} {before:?}");
    assert_eq!(left(&bench).await, runs[8..]);
    assert!(!bench.dir.path().join("work").join(runs[0].to_string()).exists());
    assert!(bench.store.state(&format!("run:{}", runs[0])).unwrap().is_empty());
    let kept = &bench.store.artifacts(runs[8].num()).unwrap()[0];
    assert!(bench.store.blob(&kept.hash).unwrap().is_some());
}

#[tokio::test]
async fn a_collection_removes_directories_whose_runs_this_database_has_had() {
    let bench = open(Retention::FOR_EVER);
    let kept = hello(&bench, "\"a\"").await;
    let work = bench.dir.path().join("work");
    let at = |run: RunId| work.join(run.to_string());
    let since_ms = kept.created_ms();
    let (gone, older) = (RunId::new(900, since_ms + 1), RunId::new(901, since_ms - 1));
    let bundle = bench.dir.path().join("bundles").join("ab".repeat(32));
    for dir in [at(kept), at(gone), at(older), bundle.clone()] {
        std::fs::create_dir_all(dir).unwrap();
    }
    // Nobody knows whose they are.
    bench.engine.upkeep().gc(&bench.admin(), false).await.unwrap();
    assert!(at(gone).exists() && !bundle.exists());
    crate::engine::claim_work(&work, "", since_ms).unwrap();
    bench.engine.upkeep().gc(&bench.admin(), true).await.unwrap();
    assert!(at(gone).exists(), "a dry run changes nothing");
    bench.engine.upkeep().gc(&bench.admin(), false).await.unwrap();
    assert_eq!([kept, gone, older].map(|run| at(run).exists()), [true, false, true]);
}

#[tokio::test]
async fn age_counts_from_the_end_and_an_open_run_never_goes() {
    let bench = open(Retention { age_ms: 3_600_000, ..Retention::FOR_EVER });
    let open = bench.start(r#"flow = function(ctx) return ctx:wait("go") end"#, "null").await;
    bench.waiting(open, "signal").await;
    let old = hello(&bench, "\"old\"").await;
    bench.clock.advance(Duration::from_secs(7_200));
    let young = hello(&bench, "\"young\"").await;
    let mut sweeper = Sweeper::default();
    while bench.engine.upkeep().sweep(&mut sweeper).await.unwrap() {}
    assert_eq!(left(&bench).await, [open, young], "{old} went");
    bench.signal(open, "go", "1").await.unwrap();
    bench.ended(open).await;
    bench.clock.advance(Duration::from_secs(7_200));
    while bench.engine.upkeep().sweep(&mut sweeper).await.unwrap() {}
    assert!(left(&bench).await.is_empty());
}

#[tokio::test]
async fn the_oldest_go_until_the_database_is_small_enough() {
    let bench = open(Retention { bytes: 1_500_000, ..Retention::FOR_EVER });
    let mut runs = Vec::new();
    for n in 0..12 {
        runs.push(hello(&bench, &format!("\"{n}\"")).await);
    }
    let gc = bench.engine.upkeep().gc(&bench.admin(), false).await.unwrap();
    assert!(gc.size > 0 && gc.used_bytes <= 1_500_000, "{gc:?}");
    let left = left(&bench).await;
    assert!(!left.is_empty());
    assert_eq!(left, runs[runs.len() - left.len()..], "the youngest stay");
}

#[tokio::test]
async fn the_file_stays_the_same_over_many_runs() {
    let bench = open(Retention { runs: 4, ..Retention::FOR_EVER });
    let mut sweeper = Sweeper::default();
    let mut sizes = Vec::new();
    for round in 0..6 {
        for n in 0..20 {
            hello(&bench, &format!("\"{round} {n}\"")).await;
        }
        bench.clock.advance(Duration::from_secs(60));
        while bench.engine.upkeep().sweep(&mut sweeper).await.unwrap() {}
        let space = bench.store.upkeep().space().unwrap();
        sizes.push(space.used + space.free);
    }
    let (second, last) = (sizes[1], sizes[5]);
    assert!(last <= second + second / 10, "{sizes:?}");
    assert_eq!(left(&bench).await.len(), 4);
}

#[tokio::test]
async fn a_run_that_something_open_needs_is_not_deleted_by_hand_either() {
    let bench = open(Retention::FOR_EVER);
    let body = r#"flow = function(ctx, input)
            if input and input.child then return 1 end
            ctx:call("it", { child = true })
            return ctx:wait("go")
        end"#;
    let run = bench.start(body, "{}").await;
    bench.waiting(run, "signal").await;
    let child = *left(&bench).await.last().unwrap();
    let refused = bench.engine.delete_run(&bench.admin(), child).await.unwrap_err();
    assert_eq!(refused.code(), "in_use");
    bench.signal(run, "go", "1").await.unwrap();
    bench.ended(run).await;
    bench.engine.delete_run(&bench.admin(), child).await.unwrap();
}

#[tokio::test]
async fn free_space_is_returned_in_as_many_requests_as_it_needs() {
    let bench = open(Retention::FOR_EVER);
    let keys: Vec<String> = (0..5).map(|n| n.to_string()).collect();
    for key in keys.clone() {
        let (layer, value) = ("l".to_owned(), format!("\"{}\"", "x".repeat(16 << 20)));
        let keep = Write::PutKept { layer, key, value, expires_ms: None };
        bench.engine.write(Vec::new(), vec![keep]).await.unwrap();
    }
    let remove = |key| Write::RemoveKept { layer: "l".to_owned(), key };
    bench.engine.write(Vec::new(), keys.into_iter().map(remove).collect()).await.unwrap();
    let mut gc = bench.engine.upkeep().gc(&bench.admin(), false).await.unwrap();
    assert!(gc.more && gc.free_bytes > 0, "{gc:?}");
    while gc.more {
        gc = bench.engine.upkeep().gc(&bench.admin(), false).await.unwrap();
    }
    assert_eq!(gc.free_bytes, 0);
}
