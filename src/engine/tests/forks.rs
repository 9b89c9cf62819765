//! Forks with edits, and what a fork would do before it is made.

use super::*;
use crate::engine::{ForkFate, ForkPlan};

const CHAIN: &str = r#"agents = {
        e = { operator = "echo", input = s.integer, output = s.integer },
        q = { operator = "queue", queue = "q", output = s.object { v = s.integer } },
    },
    flow = function(ctx, input)
        local a = ctx:run("e", input.base)
        local b = ctx:run("q", { n = a })
        ctx.state:set("seen", b.v)
        return { a, b.v, ctx:run("e", b.v + 1) }
    end"#;

/// A run of [`CHAIN`] with the base 10, whose second step gave 5.
async fn chained(bench: &Bench) -> RunId {
    let run = bench.start(CHAIN, r#"{"base":10}"#).await;
    let leased = bench.lease("q").await;
    bench.report(&leased.handle, r#"{"v":5}"#).await.unwrap();
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "[10,5,6]");
    run
}

fn json(text: &str) -> Json {
    Json::parse(text).unwrap()
}

async fn plan(bench: &Bench, run: RunId, fork: Fork) -> Result<ForkPlan, EngineError> {
    bench.engine.histories().plan_fork(&bench.admin(), run, fork).await
}

async fn made(bench: &Bench, run: RunId, fork: Fork) -> RunId {
    bench.engine.histories().fork(&bench.admin(), run, fork, None).await.unwrap().id()
}

async fn replays(bench: &Bench, run: RunId) {
    let view = bench.engine.histories().replay(&bench.admin(), run, None).await.unwrap();
    assert!(view.divergence.is_none(), "{view:?}");
}

fn fates(plan: &ForkPlan) -> Vec<(u32, ForkFate)> {
    plan.steps.iter().map(|step| (step.step, step.fate)).collect()
}

#[tokio::test]
async fn a_dry_run_says_what_stays_and_what_the_flow_requests_first() {
    use ForkFate::{EditedInput, EditedOutput, Kept, Redone};
    let bench = Bench::new();
    let run = chained(&bench).await;
    let before = bench.entries(run);
    let plain = plan(&bench, run, Fork::new(2)).await.unwrap();
    assert_eq!(fates(&plain), [(1, Kept), (2, Redone), (3, Redone), (4, Redone)]);
    assert_eq!((plain.kept, plain.redone, plain.partial), (1, 3, false));
    assert_eq!(plain.divergence, None);
    let asks: Vec<_> = plain.asks.iter().map(|ask| (&*ask.kind, &*ask.name)).collect();
    assert_eq!(asks, [("task", "q")]);
    let input = Fork { step_input: Some(json(r#"{"n":3}"#)), ..Fork::new(2) };
    let input = plan(&bench, run, input).await.unwrap();
    assert_eq!(fates(&input)[1], (2, EditedInput));
    assert!(input.asks.is_empty(), "the flow waits for the step that is there: {input:?}");
    let output = Fork { outputs: [(2, json(r#"{"v":7}"#))].into(), ..Fork::new(3) };
    let output = plan(&bench, run, output).await.unwrap();
    assert_eq!(fates(&output)[1], (2, EditedOutput));
    assert_eq!(output.asks.len(), 1, "state, then the last task: {output:?}");
    // All steps are kept, and one of them was another one with this output.
    let late = Fork { outputs: [(2, json(r#"{"v":7}"#))].into(), ..Fork::new(5) };
    let late = plan(&bench, run, late).await.unwrap();
    assert!(late.divergence.is_some_and(|it| it.step == Some(3)), "state has another value");
    let other = Fork { input_patch: Some(json(r#"{"base":1}"#)), ..Fork::new(2) };
    let other = plan(&bench, run, other).await.unwrap();
    assert_eq!((other.input.as_str(), other.divergence.unwrap().step), (r#"{"base":1}"#, Some(1)));
    let whole = plan(&bench, run, Fork::new(5)).await.unwrap();
    assert_eq!((whole.kept, whole.ends.as_deref()), (4, Some("completed")));
    assert_eq!(bench.entries(run), before);
    assert!(plan(&bench, run, Fork::new(9)).await.is_err());
}

#[tokio::test]
async fn a_fork_goes_on_from_an_edited_output() {
    let bench = Bench::new();
    let run = chained(&bench).await;
    let fork = Fork { outputs: [(2, json(r#"{"v":7}"#))].into(), ..Fork::new(3) };
    let copy = made(&bench, run, fork).await;
    assert_eq!(bench.ended(copy).await.output.unwrap().as_str(), "[10,7,8]");
    replays(&bench, copy).await;
    // A step that is recorded as one fact.
    let fork = Fork { outputs: [(1, json("20"))].into(), ..Fork::new(2) };
    let copy = made(&bench, run, fork).await;
    let leased = bench.lease("q").await;
    let prompt = bench.engine.tasks().prompt(&bench.holder(&leased.handle)).await.unwrap();
    assert_eq!(prompt.input.as_str(), r#"{"n":20}"#);
    bench.report(&leased.handle, r#"{"v":1}"#).await.unwrap();
    assert_eq!(bench.ended(copy).await.output.unwrap().as_str(), "[20,1,2]");
}

#[tokio::test]
async fn an_edited_output_ends_a_step_that_has_none() {
    let bench = Bench::new();
    let run = bench.start(CHAIN, r#"{"base":10}"#).await;
    bench.lease("q").await;
    let fork = Fork { outputs: [(2, json(r#"{"v":9}"#))].into(), ..Fork::new(3) };
    let copy = made(&bench, run, fork).await;
    assert_eq!(bench.ended(copy).await.output.unwrap().as_str(), "[10,9,10]");
    replays(&bench, copy).await;
}

#[tokio::test]
async fn a_fork_does_a_step_with_an_edited_input() {
    let bench = Bench::new();
    let run = chained(&bench).await;
    let fork = Fork { step_input: Some(json(r#"{"n":3}"#)), ..Fork::new(2) };
    let copy = made(&bench, run, fork).await;
    let leased = bench.lease("q").await;
    let prompt = bench.engine.tasks().prompt(&bench.holder(&leased.handle)).await.unwrap();
    assert_eq!(prompt.input.as_str(), r#"{"n":3}"#);
    // It is still edited after a restart, and the flow's own request is what the replay compares.
    let bench = bench.restart().await;
    let step = bench.engine.step(&bench.admin(), copy, 2).await.unwrap();
    assert_eq!(step.request.unwrap().as_str(), r#"{"n":3}"#);
    bench.report(&leased.handle, r#"{"v":1}"#).await.unwrap();
    assert_eq!(bench.ended(copy).await.output.unwrap().as_str(), "[10,1,2]");
    replays(&bench, copy).await;
    // A step that runs in the process, and was recorded as one fact.
    made(&bench, run, Fork { step_input: Some(json("4")), ..Fork::new(1) }).await;
    let leased = bench.lease("q").await;
    let prompt = bench.engine.tasks().prompt(&bench.holder(&leased.handle)).await.unwrap();
    assert_eq!(prompt.input.as_str(), r#"{"n":4}"#);
}

#[tokio::test]
async fn an_edit_that_does_not_match_its_schema_or_its_step_is_refused() {
    let bench = Bench::new();
    let run = chained(&bench).await;
    let input = Fork { step_input: Some(json("\"no\"")), ..Fork::new(1) };
    let output = Fork { outputs: [(2, json(r#"{"v":"no"}"#))].into(), ..Fork::new(3) };
    for (fork, code, path) in
        [(input, "invalid_input", "$.step_input"), (output, "invalid_result", "$.outputs.2.v")]
    {
        let refused = plan(&bench, run, fork).await.unwrap_err();
        assert_eq!(refused.code(), code);
        let EngineError::Invalid { violations, .. } = refused else { panic!("{refused}") };
        assert_eq!(violations[0].path, path);
    }
    for fork in [
        // The state's step, a step that is done again, and one that is not there.
        Fork { outputs: [(3, json("1"))].into(), ..Fork::new(4) },
        Fork { outputs: [(2, json(r#"{"v":1}"#))].into(), ..Fork::new(2) },
        Fork { step_input: Some(json("1")), ..Fork::new(3) },
    ] {
        assert_eq!(plan(&bench, run, fork).await.unwrap_err().code(), "bad_request");
    }
    let beyond = Fork { step_input: Some(json("1")), ..Fork::new(5) };
    assert_eq!(plan(&bench, run, beyond).await.unwrap_err().code(), "not_found");
}

#[tokio::test]
async fn a_run_that_is_called_gets_the_edited_input() {
    let bench = Bench::new();
    let body = r#"flow = function(ctx, input)
            if input.child then return input.child end
            return ctx:call("it", { child = 1 })
        end"#;
    let run = bench.start(body, "{}").await;
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "1");
    let fork = Fork { step_input: Some(json(r#"{"child":2}"#)), ..Fork::new(1) };
    let copy = made(&bench, run, fork).await;
    assert_eq!(bench.ended(copy).await.output.unwrap().as_str(), "2");
    replays(&bench, copy).await;
}

#[tokio::test]
async fn the_same_fork_twice_at_once_is_one_run() {
    let bench = Bench::new();
    let run = chained(&bench).await;
    let key =
        |body: &str| Some(IdempotencyKey { route: "fork", key: "k".into(), body: body.into() });
    let (admin, histories) = (bench.admin(), bench.engine.histories());
    let fork = |body| histories.fork(&admin, run, Fork::new(2), key(body));
    let (one, other) = tokio::join!(fork("x"), fork("x"));
    assert_eq!(one.unwrap().id(), other.unwrap().id());
    assert_eq!(fork("y").await.unwrap_err().code(), "idempotency_mismatch");
    let runs = bench.store.headers(&RunFilter { limit: 9, ..Default::default() }).unwrap();
    assert_eq!(runs.len(), 2, "the origin and its fork");
}
