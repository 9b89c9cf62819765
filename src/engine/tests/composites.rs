use super::*;
use crate::{
    journal::Outcome,
    protocol::{Content, OperatorInput, Orchestrator as _, TriggerType},
    token::Scope,
};

/// One task of an operator, which is caught.
fn asks(operator: &str) -> String {
    format!(
        r#"agents = {{ it = {{ operator = "{operator}", output = s.object {{ v = s.integer }} }} }},
        flow = function(ctx)
            local r, err = ctx:try("it", {{ n = 1 }})
            return r or {{ kind = err.kind, message = err.message, members = err.data and err.data.members }}
        end"#
    )
}

fn failure(message: &str) -> Report {
    let verdict = Verdict::Failed { message: message.into(), retryable: false, data: None };
    let body = format!("failed: {message}");
    Report { verdict, body_hash: blake3::hash(body.as_bytes()).to_string(), body, ..report("0") }
}

impl Bench {
    async fn refuses(&self, queue: &str) {
        let leased = self.lease(queue).await;
        let holder = self.holder(&leased.handle);
        assert!(self.engine.tasks().report(&holder, failure("no")).await.unwrap());
    }

    /// The tasks of a run: operator if it is a member, and state.
    async fn tasks(&self, run: RunId) -> Vec<(Option<String>, String)> {
        let steps = self.engine.steps(&self.admin(), run, 0, 100).await.unwrap().items;
        steps.into_iter().map(|step| (step.operator, step.state)).collect()
    }

    /// Its history, as its flow receives it once more.
    async fn replays(&self, run: RunId) {
        let view = self.engine.histories().replay(&self.admin(), run, None).await.unwrap();
        assert!(view.divergence.is_none(), "{view:?}");
    }
}

fn states(of: &[(Option<String>, String)]) -> Vec<(&str, &str)> {
    of.iter().map(|(by, state)| (by.as_deref().unwrap_or(""), state.as_str())).collect()
}

#[tokio::test]
async fn a_fallback_goes_on_with_the_next_member_and_each_is_a_step() {
    let bench = Bench::new();
    let run = bench.start(&asks("either"), "null").await;
    bench.refuses("a").await;
    let leased = bench.lease("b").await;
    assert!(bench.report(&leased.handle, r#"{"v":2}"#).await.unwrap());
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), r#"{"v":2}"#);
    let tasks = bench.tasks(run).await;
    assert_eq!(states(&tasks), [("", "completed"), ("a", "failed"), ("b", "completed")]);
    bench.replays(run).await;
}

#[tokio::test]
async fn an_answer_records_whom_the_host_called_for_its_operator() {
    let bench = Bench::new();
    let orchestrator = bench.engine.orchestrator(bench.admin());
    let input = OperatorInput::new(Content::text("x"), TriggerType::Task);
    let works = async {
        bench.refuses("a").await;
        let leased = bench.lease("b").await;
        assert!(bench.report(&leased.handle, "7").await.unwrap());
    };
    let either = "either".into();
    let (output, ()) = tokio::join!(orchestrator.dispatch(&either, input), works);
    let called = output.unwrap().metadata.sub_dispatches;
    let called: Vec<_> = called.iter().map(|it| (it.name.as_str(), it.success)).collect();
    assert_eq!(called, [("a", false), ("b", true)]);
}

#[tokio::test]
async fn a_fallback_without_success_fails_as_its_last_member_and_names_all() {
    let bench = Bench::new();
    let run = bench.start(&asks("either"), "null").await;
    bench.refuses("a").await;
    bench.refuses("b").await;
    let output = bench.ended(run).await.output.unwrap().to_value();
    assert_eq!(output["kind"], "worker");
    assert_eq!(output["message"], "every member failed, b last: no");
    assert_eq!(output["members"][0]["operator"], "a");
}

#[tokio::test]
async fn a_race_cancels_its_losers_and_fences_their_results() {
    let bench = Bench::new();
    let run = bench.start(&asks("fastest"), "null").await;
    let (slow, fast) = (bench.lease("a").await, bench.lease("b").await);
    assert!(bench.report(&fast.handle, r#"{"v":2}"#).await.unwrap());
    let view = bench.ended(run).await;
    assert_eq!(view.output.unwrap().as_str(), r#"{"v":2}"#);
    let tasks = bench.tasks(run).await;
    let expected = [("", "completed"), ("a", "canceled"), ("b", "completed"), ("c", "canceled")];
    assert_eq!(states(&tasks), expected);
    let late = bench.report(&slow.handle, r#"{"v":1}"#).await.unwrap_err();
    assert_eq!(late.code(), "run_closed");
    assert!(bench.leases("c", Duration::ZERO).await.is_empty(), "nobody gets what was given up");
}

#[tokio::test]
async fn a_late_loser_is_fenced_while_its_run_goes_on() {
    let bench = Bench::new();
    let body = r#"agents = { it = { operator = "fastest" } },
        flow = function(ctx) local v = ctx:run("it") return { v, ctx:wait("go") } end"#;
    let run = bench.start(body, "null").await;
    let (slow, fast) = (bench.lease("a").await, bench.lease("b").await);
    assert!(bench.report(&fast.handle, "2").await.unwrap());
    let late = bench.report(&slow.handle, "1").await.unwrap_err();
    assert_eq!(late.code(), "fenced");
    let bench = bench.restart().await;
    let late = bench.report(&slow.handle, "1").await.unwrap_err();
    assert_eq!(late.code(), "fenced", "also by another host");
    bench.signal(run, "go", "3").await.unwrap();
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "[2,3]");
}

#[tokio::test]
async fn a_quorum_takes_what_enough_members_say() {
    let bench = Bench::new();
    let run = bench.start(&asks("agreed"), "null").await;
    for (queue, said) in [("c", r#"{"v":1}"#), ("a", r#"{"v":2,"by":"a"}"#), ("b", r#"{"v":2}"#)] {
        let leased = bench.lease(queue).await;
        assert!(bench.report(&leased.handle, said).await.unwrap());
    }
    let view = bench.ended(run).await;
    assert_eq!(view.output.unwrap().to_value()["by"], "a");
    bench.replays(run).await;
}

#[tokio::test]
async fn a_quorum_that_cannot_be_reached_gives_the_rest_up() {
    let bench = Bench::new();
    let run = bench.start(&asks("agreed"), "null").await;
    bench.refuses("a").await;
    bench.refuses("b").await;
    let output = bench.ended(run).await.output.unwrap().to_value();
    assert_eq!(output["kind"], "quorum");
    assert_eq!(output["message"], "2 of 3 members must agree on $.v, and at most 0 did");
    assert_eq!(states(&bench.tasks(run).await)[3], ("c", "canceled"));
}

#[tokio::test]
async fn turns_go_round_and_every_member_gets_as_many() {
    let bench = Bench::new();
    let body = r#"agents = { it = { operator = "turns" } },
        flow = function(ctx) return ctx:map({ 1, 2, 3, 4, 5, 6 }, function(n) return ctx:run("it", n) end) end"#;
    let run = bench.start(body, "null").await;
    for queue in ["a", "a", "a", "b", "b", "b"] {
        let leased = bench.lease(queue).await;
        assert!(bench.report(&leased.handle, &format!("{queue:?}")).await.unwrap());
    }
    let output = bench.ended(run).await.output.unwrap();
    assert_eq!(output.as_str(), r#"["a","b","a","b","a","b"]"#);
}

#[tokio::test]
async fn composites_lie_within_each_other() {
    let bench = Bench::new();
    let run = bench.start(&asks("nested"), "null").await;
    bench.refuses("a").await;
    let leased = bench.lease("b").await;
    assert!(bench.report(&leased.handle, r#"{"v":2}"#).await.unwrap());
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), r#"{"v":2}"#);
    let expected = [
        ("", "completed"),
        ("either", "completed"),
        ("c", "canceled"),
        ("a", "failed"),
        ("b", "completed"),
    ];
    let mut tasks = bench.tasks(run).await;
    let by = |task: &(Option<String>, String)| {
        expected.iter().position(|(by, _)| *by == task.0.as_deref().unwrap_or(""))
    };
    tasks.sort_by_key(by);
    assert_eq!(states(&tasks), expected);
    bench.replays(run).await;
}

#[tokio::test]
async fn members_in_the_host_end_at_once() {
    let bench = Bench::new();
    let body = r#"agents = { it = { operator = "here", fn = function() error("no") end } },
        flow = function(ctx) return { ctx:run("it", 5), ctx:run("it", 6) } end"#;
    assert_eq!(bench.output(body, "null").await, "[5,6]");
}

#[tokio::test]
async fn a_restart_in_the_middle_goes_on_with_the_member_it_was_at() {
    let bench = Bench::new();
    let run = bench.start(&asks("nested"), "null").await;
    bench.refuses("a").await;
    let leased = bench.lease("b").await;
    let bench = bench.restart().await;
    let before = bench.tasks(run).await;
    assert_eq!(before.len(), 5, "nothing begins anew: {before:?}");
    assert!(bench.leases("a", Duration::ZERO).await.is_empty());
    assert!(bench.report(&leased.handle, r#"{"v":2}"#).await.unwrap());
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), r#"{"v":2}"#);
    bench.replays(run).await;
}

#[tokio::test]
async fn a_key_belongs_to_a_composite_and_not_to_its_members() {
    for (operator, refuses, first, last) in [
        ("fastest", None, None, "b"),
        ("agreed", Some("b"), Some("c"), "a"),
        ("nested", Some("a"), None, "b"),
    ] {
        let body = format!(
            r#"middleware = {{ swarm.middleware.idempotency {{}} }},
            agents = {{ it = {{ operator = "{operator}" }} }},
            flow = function(ctx) return ctx:run("it", 1, {{ idempotency_key = "k" }}) end"#
        );
        let mut bench = Bench::new();
        let run = bench.start(&body, "null").await;
        if let Some(queue) = refuses {
            bench.refuses(queue).await;
        }
        if let Some(queue) = first {
            let leased = bench.lease(queue).await;
            assert!(bench.report(&leased.handle, r#"{"v":2}"#).await.unwrap());
            assert_eq!(bench.store.kept_by("it/idempotency", "", 9).unwrap().len(), 0);
            bench = bench.restart().await;
        }
        let leased = bench.lease(last).await;
        assert!(bench.report(&leased.handle, r#"{"v":2}"#).await.unwrap());
        assert_eq!(bench.ended(run).await.output.unwrap().as_str(), r#"{"v":2}"#);
        assert_eq!(bench.store.kept_by("it/idempotency", "", 9).unwrap().len(), 1);
        assert_eq!(bench.output(&body, "null").await, r#"{"v":2}"#, "{operator}");
    }
}

#[tokio::test]
async fn a_cancel_reaches_every_member() {
    let bench = Bench::new();
    let run = bench.start(&asks("nested"), "null").await;
    let leased = bench.lease("a").await;
    bench.engine.cancel(&bench.admin(), run, "enough".into(), None).await.unwrap();
    assert_eq!(bench.ended(run).await.status, RunStatus::Canceled);
    assert!(bench.tasks(run).await.iter().all(|(_, state)| state == "canceled"));
    let late = bench.report(&leased.handle, r#"{"v":2}"#).await.unwrap_err();
    assert_eq!(late.code(), "run_closed");
}

#[tokio::test]
async fn a_branch_that_is_given_up_takes_its_members_along() {
    let bench = Bench::new();
    let body = r#"agents = { it = { operator = "fastest" } },
        flow = function(ctx)
            local ok = pcall(function() ctx:timeout("1m", function() ctx:run("it") end) end)
            return { ok, ctx:wait("go") }
        end"#;
    let run = bench.start(body, "null").await;
    let leased = bench.lease("a").await;
    bench.clock.advance(Duration::from_secs(61));
    bench.waiting(run, "signal").await;
    assert_eq!(bench.report(&leased.handle, "1").await.unwrap_err().code(), "fenced");
    bench.signal(run, "go", "1").await.unwrap();
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "[false,1]");
    let ends = bench
        .count(run, |fact| matches!(fact, Fact::StepEnded { outcome: Outcome::Canceled(_), .. }));
    assert_eq!(ends, 4, "the composite and its three members, each once");
}

#[tokio::test]
async fn a_rest_begins_no_member_and_the_run_goes_on_after_it() {
    let bench = Bench::new();
    let run = bench.start(&asks("either"), "null").await;
    let leased = bench.lease("a").await;
    bench.engine.pause(&bench.admin(), run, "lunch".into()).await.unwrap();
    let holder = bench.holder(&leased.handle);
    assert!(bench.engine.tasks().report(&holder, failure("no")).await.unwrap());
    assert_eq!(bench.tasks(run).await.len(), 2, "nothing is dispatched");
    let bench = bench.restart().await;
    bench.engine.resume(&bench.admin(), run).await.unwrap();
    let leased = bench.lease("b").await;
    assert!(bench.report(&leased.handle, r#"{"v":2}"#).await.unwrap());
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), r#"{"v":2}"#);
}

#[tokio::test]
async fn a_fork_between_two_members_does_the_second_anew() {
    let bench = Bench::new();
    let run = bench.start(&asks("either"), "null").await;
    bench.refuses("a").await;
    let leased = bench.lease("b").await;
    assert!(bench.report(&leased.handle, r#"{"v":2}"#).await.unwrap());
    bench.ended(run).await;
    // Step 1 is the composite, 2 and 3 its members; the composite itself is open again.
    let fork = Fork::new(1);
    let copy = bench.engine.histories().fork(&bench.admin(), run, fork, None).await.unwrap().id();
    bench.refuses("a").await;
    let leased = bench.lease("b").await;
    assert!(bench.report(&leased.handle, r#"{"v":3}"#).await.unwrap());
    assert_eq!(bench.ended(copy).await.output.unwrap().as_str(), r#"{"v":3}"#);
}

#[tokio::test]
async fn a_fork_with_an_edited_input_gives_it_to_the_members_of_a_composite() {
    let bench = Bench::new();
    let run = bench.start(&asks("either"), "null").await;
    bench.refuses("a").await;
    let leased = bench.lease("b").await;
    // A member's result is a part of the whole.
    let member = Fork { outputs: [(2, Json::null())].into(), ..Fork::new(4) };
    let refused = bench.engine.histories().fork(&bench.admin(), run, member, None).await;
    assert_eq!(refused.unwrap_err().code(), "bad_request");
    assert!(bench.report(&leased.handle, r#"{"v":2}"#).await.unwrap());
    bench.ended(run).await;
    let input = Json::parse(r#"{"n":2}"#).unwrap();
    let fork = Fork { step_input: Some(input), ..Fork::new(1) };
    let copy = bench.engine.histories().fork(&bench.admin(), run, fork, None).await.unwrap().id();
    let leased = bench.lease("a").await;
    let prompt = bench.engine.tasks().prompt(&bench.holder(&leased.handle)).await.unwrap();
    assert_eq!(prompt.input.as_str(), r#"{"n":2}"#);
    assert!(bench.report(&leased.handle, r#"{"v":3}"#).await.unwrap());
    assert_eq!(bench.ended(copy).await.output.unwrap().as_str(), r#"{"v":3}"#);
    bench.replays(copy).await;
}

#[tokio::test]
async fn a_race_on_one_place_takes_its_members_one_after_the_other() {
    let bench = Bench::new();
    let body = r#"agents = { it = { operator = "fastest", max_concurrency = 1 } },
        flow = function(ctx) return { ctx:run("it"), ctx:run("it") } end"#;
    let run = bench.start(body, "null").await;
    for _ in 0..2 {
        let leased = bench.lease("a").await;
        assert!(bench.leases("b", Duration::ZERO).await.is_empty());
        assert!(bench.report(&leased.handle, "1").await.unwrap());
    }
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "[1,1]");
}

#[tokio::test]
async fn a_composite_is_within_the_reach_of_a_token_only_by_name() {
    let bench = Bench::new();
    let mut admin = bench.admin();
    let scopes = ["run:*", "blueprint:*", "operator:a", "operator:b"];
    let scopes = scopes.iter().map(|text| text.parse::<Scope>().unwrap()).collect();
    admin.grant = Grant::new(Role::Admin, Scopes(scopes)).into();
    let source = format!(
        "local swarm = require(\"swarm\")\nlocal s = swarm.schema\nreturn swarm.blueprint {{ name = \"it\", {} }}",
        asks("either")
    );
    let start = StartRun::new(Program::Bundle(Bundle::from_source("it.lua", source).unwrap()));
    let run = bench.engine.start(&admin, start, None).await.unwrap().run;
    let output = bench.ended(run).await.output.unwrap().to_value();
    assert_eq!(output["kind"], "refused", "{output}");
}

#[tokio::test]
async fn members_show_their_own_attempts_and_costs() {
    let bench = Bench::new();
    let body = r#"agents = { it = { operator = "either", retry = { max_attempts = 2, backoff = "0s" } } },
        flow = function(ctx) return ctx:run("it") end"#;
    let run = bench.start(body, "null").await;
    for retryable in [true, false] {
        let leased = bench.lease("a").await;
        let verdict = Verdict::Failed { message: "no".into(), retryable, data: None };
        let usage =
            crate::operator::read_usage(&serde_json::json!({ "input": 10, "cost": "0.10" }));
        let said = Report { verdict, usage, ..failure(if retryable { "once" } else { "twice" }) };
        assert!(bench.engine.tasks().report(&bench.holder(&leased.handle), said).await.unwrap());
    }
    let leased = bench.lease("b").await;
    assert!(bench.report(&leased.handle, "1").await.unwrap());
    let view = bench.ended(run).await;
    let steps = bench.engine.steps(&bench.admin(), run, 0, 100).await.unwrap().items;
    let shown: Vec<_> = steps
        .iter()
        .map(|step| (step.composite, step.attempts, step.usage.clone().and_then(|it| it.cost)))
        .collect();
    assert_eq!(shown, [(None, 1, None), (Some(1), 2, Some("0.2".into())), (Some(1), 1, None)]);
    let usage = view.usage.unwrap();
    assert_eq!((usage.total.input_tokens, usage.unreported), (Some(20), 1));
    let chain = bench.entries(run);
    assert!(
        chain
            .iter()
            .all(|entry| !matches!(&entry.fact, Fact::StepEnded { step: 1, usage: Some(_), .. })),
        "what a member used is counted once"
    );
}
