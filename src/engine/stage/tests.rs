use serde_json::json;

use super::*;
use crate::{
    blueprint::Bundle,
    engine::{Program, StartRun, Started},
    store::RunStatus,
};

const SOURCE: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "t",
  agents = { a = { operator = "process", command = { "x" }, retry = { max_attempts = 2, backoff = "1h", jitter = false } } },
  flow = function(ctx, input)
    ctx:sleep("1d")
    return ctx:run("a", { n = ctx:run("a", { n = 1 }).n + 1 })
  end,
}"#;

fn start(stage: &mut Stage) -> Started {
    let bundle = Bundle::from_source("t.lua", SOURCE).unwrap();
    let start = StartRun {
        program: Program::Bundle(bundle),
        input: Json::null(),
        trigger: Json::null(),
        workdir: None,
        delegate: None,
        seats: Default::default(),
    };
    let key = super::super::IdempotencyKey { route: "t", key: "t".into(), body: "t".into() };
    let ask = |engine: Engine, caller: Caller| {
        let (start, key) = (start.clone(), key.clone());
        async move { engine.start(&caller, start, Some(key)).await }
    };
    stage.ask(ask).unwrap()
}

/// Plays until the run has ended: each task answers with its input, the first one only at the
/// second time.
fn play(stage: &mut Stage) -> String {
    let run = start(stage).run;
    for _ in 0..100 {
        stage.settle().unwrap();
        let jobs = stage.jobs();
        if jobs.is_empty() {
            let view = stage.ask(|engine, by| async move { engine.run(&by, run).await }).unwrap();
            if view.status.is_ended() {
                assert_eq!(view.status, RunStatus::Completed);
                break;
            }
            let due = stage.next_due().expect("the run waits for nothing");
            stage.pass_to(due);
        }
        for job in jobs {
            let failed = stage.failed_attempts(job.run, job.step);
            let answer = match failed {
                0 if job.input.to_value()["n"] == json!(1) => {
                    Err(Failure { retryable: true, ..Failure::new("worker", "not yet") })
                }
                _ => Ok(job.input.clone()),
            };
            job.answer(answer);
        }
    }
    let ended = stage.ask(|engine, caller| async move { engine.run(&caller, run).await }).unwrap();
    ended.output.map(|output| output.to_value().to_string()).unwrap_or_default()
}

#[test]
fn a_day_passes_at_once_and_a_crash_after_any_write_changes_nothing() {
    let played = Played {
        kind: "process",
        desk: Desk::default(),
        mocked: Mocked::default(),
        real: None,
        worker: false,
        tool: false,
        model: false,
    };
    let played: Arc<dyn Backend> = Arc::new(played);
    let known = Registry::new(BTreeMap::from([("process".to_owned(), played)]));
    let mut stage = Stage::set(&known).unwrap();
    assert_eq!(play(&mut stage), r#"{"n":2}"#);
    assert!(stage.now_ms() >= BEGIN_MS + 25 * 3_600_000);
    let writes = stage.journal_writes();
    assert!(writes.len() > 5, "{writes:?}");
    drop(stage);
    for write in writes {
        let mut stage = Stage::set(&known).unwrap();
        stage.crash_after(write);
        assert_eq!(play(&mut stage), r#"{"n":2}"#, "after write {write}");
        assert_eq!(stage.crashes(), 1);
    }
}
