use serde_json::json;

use super::*;
use crate::{
    blueprint::Bundle,
    engine::{
        Program, StartRun, Started,
        shared::message::{Internal, Msg},
    },
    store::RunStatus,
    token::{Claims, Quotas, TokenKind},
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
    start_of(stage, SOURCE)
}

fn start_of(stage: &mut Stage, source: &str) -> Started {
    let bundle = Bundle::from_source("t.lua", source).unwrap();
    let start = StartRun::new(Program::Bundle(bundle));
    let key = crate::engine::IdempotencyKey { route: "t", key: "t".into(), body: "t".into() };
    let ask = |engine: Engine, caller: Caller| {
        let (start, key) = (start.clone(), key.clone());
        async move { engine.start(&caller, start, Some(key)).await }
    };
    stage.ask(ask).unwrap()
}

/// Plays until the run has ended: each task is answered with its input, the first one only at the
/// second attempt.
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
        leased: false,
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

const LOOP: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "t",
  agents = {
    it = { operator = "model", tools = { "below", { operator = "tool", parallel_safe = false } } },
    below = { operator = "model", tools = { { operator = "tool" } } },
  },
  flow = function(ctx, input) return ctx:run("it", "go") end,
}"#;

/// Returns operators whose tasks are placed on the desk, one of them a model.
fn with_models() -> Registry {
    let played = |model: bool| {
        let played = Played {
            kind: if model { "llm" } else { "process" },
            desk: Desk::default(),
            mocked: Mocked::default(),
            real: None,
            worker: false,
            leased: false,
            tool: false,
            model,
        };
        Arc::new(played) as Arc<dyn Backend>
    };
    let operators = [("model", played(true)), ("tool", played(false))];
    Registry::new(operators.map(|(name, it)| (name.to_owned(), it)).into())
}

/// Plays a loop: the model calls each of its tools, and then reports the results.
fn play_loop(stage: &mut Stage) -> String {
    let run = start_of(stage, LOOP).run;
    for _ in 0..100 {
        stage.settle().unwrap();
        let jobs = stage.jobs();
        if jobs.is_empty() {
            break;
        }
        for job in jobs {
            let asked = job.input.to_value();
            let seen: Vec<String> = asked["items"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|item| item["output"].as_str().map(str::to_owned))
                .collect();
            let answer = match asked["items"].is_array() {
                false => json!("tooled"),
                true if seen.is_empty() => {
                    let call = |tool: &serde_json::Value| {
                        json!({
                            "type": "function_call", "id": "f", "call_id": format!("c_{}", tool["name"]),
                            "name": tool["name"], "arguments": r#"{"input":"x"}"#,
                        })
                    };
                    let calls: Vec<_> =
                        asked["tools"].as_array().unwrap().iter().map(call).collect();
                    json!({ "model": "m", "items": calls, "stop": "tool_calls" })
                }
                true => json!({ "model": "m", "stop": "end", "items": [{ "type": "message",
                    "role": "assistant", "content": [{ "type": "output_text", "text": seen.join("+") }] }] }),
            };
            job.answer(Ok(answer.into()));
        }
    }
    let ended = stage.ask(|engine, caller| async move { engine.run(&caller, run).await }).unwrap();
    assert_eq!(ended.status, RunStatus::Completed, "{:?}", ended.error);
    ended.output.map(|output| output.to_value().to_string()).unwrap_or_default()
}

#[test]
fn a_crash_after_any_write_of_a_loop_changes_nothing() {
    let known = with_models();
    let mut stage = Stage::set(&known).unwrap();
    assert_eq!(play_loop(&mut stage), r#""tooled+tooled""#);
    let writes = stage.journal_writes();
    assert!(writes.len() > 8, "{writes:?}");
    drop(stage);
    for write in writes {
        let mut stage = Stage::set(&known).unwrap();
        stage.crash_after(write);
        assert_eq!(play_loop(&mut stage), r#""tooled+tooled""#, "after write {write}");
        assert_eq!(stage.crashes(), 1);
    }
}

#[test]
fn a_mock_answers_for_a_model_as_a_whole() {
    let mut stage = Stage::set(&with_models()).unwrap();
    stage.mock("it");
    let run = start_of(&mut stage, LOOP).run;
    stage.settle().unwrap();
    let job = stage.jobs().pop().unwrap();
    assert_eq!((&*job.agent, job.input.as_str()), ("it", r#""go""#));
    job.answer(Ok(json!("mocked").into()));
    stage.settle().unwrap();
    let ended = stage.ask(|engine, caller| async move { engine.run(&caller, run).await }).unwrap();
    assert_eq!(ended.output.unwrap().as_str(), r#""mocked""#);
}

#[test]
fn a_caller_is_refused_when_too_much_waits_at_a_shard_and_a_cancel_is_not() {
    let mut stage = Stage::set(&Registry::new(BTreeMap::new())).unwrap();
    let waits = "function(ctx) ctx:wait(\"go\") end";
    let head = "local swarm = require(\"swarm\") return swarm.blueprint { name = \"t\", flow = ";
    let started = start_of(&mut stage, &format!("{head} {waits} }}"));
    let engine = stage.live().engine.clone();
    let num = started.run.num();
    let wake = || {
        crate::engine::shared::message::Msg::Run(
            num,
            crate::engine::shared::message::Internal::Wake.into(),
        )
    };
    while engine.shared().offer(num, wake()).is_ok() {}
    let owner = owner();
    let run = started.run;
    let refused = without_shards(&mut stage, async move {
        engine.signal(&owner, run, "go".into(), Json::null(), None).await
    });
    let Err(EngineError::Busy { code, .. }) = refused else { panic!("{refused:?}") };
    assert_eq!(code, "overloaded");
    let canceled = stage.ask(move |engine, caller| async move {
        engine.cancel(&caller, run, "enough".into(), None).await
    });
    assert_eq!(canceled.unwrap().status, RunStatus::Canceled);
}

/// Returns the output of a future while no shard handles a message.
fn without_shards<T: Send + 'static>(
    stage: &mut Stage,
    future: impl Future<Output = T> + Send + 'static,
) -> T {
    let driver = &stage.live().driver;
    let (_, mut answer) = driver.add(future);
    for _ in 0..ROUNDS {
        if let Ok(answer) = answer.try_recv() {
            return answer;
        }
        driver.poll(*driver.ready().first().expect("it waits for no shard"));
    }
    panic!("it never ends");
}

/// Runs the shards without commits until they are idle, and returns the number of batches that wait
/// for one.
fn without_commits(stage: &mut Stage) -> usize {
    for _ in 0..ROUNDS {
        let live = stage.live.as_mut().unwrap();
        let (shard, messages) = &mut live.shards[0];
        if let Some(message) = messages.take() {
            shard.handle(message);
        } else if shard.is_ready() || shard.is_due() {
            shard.turn();
        } else {
            return stage.store.waiting();
        }
    }
    panic!("it never rests");
}

fn endless(flow: &str) -> Stage {
    let mut stage = Stage::set(&Registry::new(BTreeMap::new())).unwrap();
    let head = "local swarm = require(\"swarm\") return swarm.blueprint { name = \"t\", flow = ";
    start_of(&mut stage, &format!("{head} function(ctx) {flow} end }}"));
    stage
}

#[test]
fn a_run_is_no_more_than_a_few_commits_ahead() {
    let mut stage = endless("while true do ctx:sleep(\"0s\") end");
    let waiting = without_commits(&mut stage);
    assert!((1..=4).contains(&waiting), "{waiting} batches of one run wait");
    let rows = stage.store.commits(0).len();
    stage.store.commit(1);
    while stage.store.acknowledge() {}
    assert_eq!(without_commits(&mut stage), waiting, "one commit, one turn");
    assert_eq!(stage.store.commits(0).len(), rows + 1);
}

#[test]
fn a_fresh_history_waits_for_its_commit() {
    let mut stage = endless("ctx:continue_as({})");
    for _ in 0..20 {
        let waiting = without_commits(&mut stage);
        assert_eq!(waiting, 1, "the next history is begun before this one is durable");
        stage.store.commit(1);
        while stage.store.acknowledge() {}
    }
}

#[test]
fn a_start_that_is_refused_for_a_full_mailbox_counts_against_no_quota() {
    let mut stage = Stage::set(&Registry::new(BTreeMap::new())).unwrap();
    let source =
        r#"return require("swarm").blueprint { name = "t", flow = function() return 1 end }"#;
    let bundle = Bundle::from_source("t.lua", source).unwrap();
    stage
        .ask(move |engine, _| {
            let bundle = bundle.clone();
            async move { engine.blueprints().adopt_blueprint(bundle).await }
        })
        .unwrap();
    let (owner, engine) = (stage.owner.clone(), stage.live().engine.clone());
    let mut claims = Claims::new(
        TokenKind::Api,
        &owner.subject,
        &owner.jti,
        Grant::new(Role::Admin, Scopes::all()),
        0,
        100,
    );
    claims.quotas = Some(Quotas { open_runs: Some(1), ..Quotas::default() });
    engine.shared().accounts.add(&claims, stage.now_ms());
    while engine.shared().offer(9, Msg::Run(9, Internal::Wake.into())).is_ok() {}
    let start = || StartRun::new(Program::Named("t".to_owned()));
    let refused =
        without_shards(&mut stage, async move { engine.start(&owner, start(), None).await });
    assert_eq!(refused.unwrap_err().code(), "overloaded");
    stage.settle().unwrap();
    stage.ask(move |engine, by| async move { engine.start(&by, start(), None).await }).unwrap();
}
