//! Starts, reruns and forks while their original is erased.

use std::pin::pin;

use super::*;
use crate::{
    engine::verbs::begin::{Basis, Permit},
    store::{Trace, Write},
};

const BODY: &str = r#"agents = { e = { operator = "echo" } },
    flow = function(ctx) return { ctx:run("e", 1), ctx:run("e", 2) } end"#;

/// A run that has ended, and the name of its version, which nobody published.
async fn ended(bench: &Bench) -> (RunId, String) {
    let run = bench.start(BODY, "null").await;
    bench.ended(run).await;
    let header = bench.store.header(run.num()).unwrap().unwrap();
    (run, format!("{}@{}", header.blueprint, header.hash))
}

/// Erases a run and its source, as an act does that has the guard of all starts.
async fn erase(bench: &Bench, run: RunId, version: &str) {
    let (name, hash) = version.split_once('@').unwrap();
    let source = Trace::Blueprint { name: name.to_owned(), hash: hash.to_owned() };
    let gone = [Trace::Run(run.num()), source];
    let writes = gone.into_iter().map(|trace| Write::Erase(Box::new(trace))).collect();
    bench.engine.write(Vec::new(), writes).await.unwrap();
    assert!(bench.store.blueprint(hash).unwrap().is_none());
    bench.engine.shared().programs.forget(name);
}

fn no_runs(bench: &Bench) -> bool {
    let filter = RunFilter { limit: 9, ..RunFilter::default() };
    bench.store.headers(&filter).unwrap().is_empty()
}

fn is_gone<T>(result: Result<T, EngineError>, which: &str) -> bool {
    matches!(result, Err(EngineError::NotFound { what, .. }) if what == which)
}

#[tokio::test]
async fn a_start_that_waits_for_an_erasure_needs_its_version_afterwards() {
    let bench = Bench::new();
    let (run, version) = ended(&bench).await;
    let (admin, programs) = (bench.admin(), &bench.engine.shared().programs);
    let alone = Arc::clone(&programs.starts).write_owned().await;
    assert!(programs.known(&version).is_some(), "it is found without a wait");
    let start = StartRun::new(Program::Named(version.clone()));
    let mut started = pin!(bench.engine.start(&admin, start, None));
    assert!(futures::poll!(started.as_mut()).is_pending());
    erase(&bench, run, &version).await;
    drop(alone);
    assert!(is_gone(started.await, "blueprint"));
    assert!(no_runs(&bench));
}

#[tokio::test]
async fn a_run_that_was_erased_meanwhile_is_not_started_once_more() {
    let bench = Bench::new();
    let (run, version) = ended(&bench).await;
    let (other, _) = ended(&bench).await;
    let admin = bench.admin();
    let (of_gone, of_other) =
        (Basis::of(&bench.engine, Some(run)), Basis::of(&bench.engine, Some(other)));
    let left = bench.engine.upkeep().erase_runs(vec![run], &[]).await.unwrap();
    assert!(left.is_empty());
    // The other run still has the version.
    let start = || StartRun::new(Program::Named(version.clone()));
    let made = bench.engine.begin_of(of_gone, &admin, start(), None, None, Permit::Ask).await;
    assert!(is_gone(made, "run"));
    let made = bench.engine.begin_of(of_other, &admin, start(), None, None, Permit::Ask).await;
    bench.ended(made.unwrap().run).await;
}

#[tokio::test]
async fn a_run_that_was_erased_meanwhile_is_not_forked() {
    let bench = Bench::new();
    let (run, version) = ended(&bench).await;
    let (admin, shared) = (bench.admin(), bench.engine.shared());
    let before = shared.store.last_run();
    let alone = Arc::clone(&shared.programs.starts).write_owned().await;
    let mut fork = pin!(bench.engine.histories().fork(&admin, run, Fork::new(2), None));
    // It has a number once it has read everything.
    let reads = async {
        while futures::poll!(fork.as_mut()).is_pending() && shared.store.last_run() == before {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, reads).await.unwrap();
    erase(&bench, run, &version).await;
    drop(alone);
    assert!(is_gone(fork.await, "run"));
    assert!(no_runs(&bench));
}

#[tokio::test]
async fn the_files_of_a_version_keep_no_name_under_which_they_are_used() {
    let bench = Bench::new();
    let (_, version) = ended(&bench).await;
    let (_, stored) = version.split_once('@').unwrap();
    let bundles = bench.dir.path().join("bundles");
    let gone = "ab".repeat(32);
    let names = [
        stored.to_owned(),
        gone.clone(),
        // Of a process that died, with the same id; and one that was set aside.
        format!("{stored}.{}-1.partial", std::process::id()),
        format!("{gone}.{}.partial", uuid::Uuid::new_v4()),
    ];
    for name in &names {
        std::fs::create_dir_all(bundles.join(name).join("deep")).unwrap();
    }
    let left = bench.engine.upkeep().sweep_bundles().await.unwrap();
    assert_eq!(left, 0);
    assert_eq!(names.map(|name| bundles.join(name).exists()), [true, false, false, false]);
}
