//! The orchestrator: dispatches, signals and queries, from Rust and from flows.

use serde_json::json;

use super::*;
use crate::protocol::{
    Content, OperatorId, OperatorInput, OrchError, Orchestrator, QueryPayload, SignalPayload,
    TriggerType, WorkflowId,
};

fn ask(operator: &str, text: &str) -> (OperatorId, OperatorInput) {
    (operator.into(), OperatorInput::new(Content::text(text), TriggerType::Task))
}

#[tokio::test]
async fn many_dispatches_have_a_slot_each_in_their_order() {
    let bench = Bench::new();
    let tasks = vec![
        ask("echo", "one"),
        ask("nobody", "two"),
        ask("process", "three"),
        ask("echo", "four"),
    ];
    let answers = bench.engine.dispatch_many(tasks).await;
    let texts: Vec<_> = answers
        .iter()
        .map(|it| it.as_ref().map(|it| it.message.as_text().unwrap_or_default().to_owned()))
        .collect();
    assert_eq!(texts.len(), 4);
    assert_eq!(texts[0].as_ref().unwrap(), "one");
    assert!(matches!(&texts[1], Err(OrchError::OperatorNotFound(name)) if name == "nobody"));
    assert!(texts[2].is_err(), "a process needs a command");
    assert_eq!(texts[3].as_ref().unwrap(), "four");
    assert!(bench.engine.dispatch_many(Vec::new()).await.is_empty());
    let runs = bench.store.headers(&RunFilter { limit: 9, ..Default::default() }).unwrap();
    assert_eq!(runs.len(), 3, "each that reached an operator is a run");
}

#[tokio::test]
async fn signals_and_queries_reach_a_workflow_or_say_why_not() {
    let bench = Bench::new();
    let body = r#"flow = function(ctx)
            ctx:on_query("sum", function(arg) return arg.a + 1 end)
            return ctx:wait("go")
        end"#;
    let run = bench.start(body, "null").await;
    bench.waiting(run, "signal").await;
    let target = WorkflowId::new(run.to_string());
    let query = |name: &str| QueryPayload::new(name, json!({ "a": 2 }));
    let answer = Orchestrator::query(&bench.engine, &target, query("sum")).await;
    assert_eq!(answer.unwrap(), json!(3));
    let before = bench.entries(run).len();
    assert!(Orchestrator::query(&bench.engine, &target, query("other")).await.is_err());
    assert_eq!(bench.entries(run).len(), before, "a query changes nothing");
    let signal = || SignalPayload::new("go", json!(7));
    Orchestrator::signal(&bench.engine, &target, signal()).await.unwrap();
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "7");
    let late = Orchestrator::signal(&bench.engine, &target, signal()).await.unwrap_err();
    assert!(matches!(late, OrchError::SignalFailed(_)), "{late}");
    let nobody = Orchestrator::signal(&bench.engine, &"nobody".into(), signal()).await;
    assert!(matches!(nobody.unwrap_err(), OrchError::WorkflowNotFound(_)));
}

#[tokio::test]
async fn a_flow_dispatches_to_operators_that_no_agent_names() {
    let bench = Bench::new();
    let body = r#"flow = function(ctx)
            local one = ctx:dispatch("echo", { n = 1 })
            local many = ctx:dispatch_many {
                { operator = "echo", input = "a" }, { operator = "nobody" }, { operator = "echo", input = "b" },
            }
            return { one.n, many[1].value, many[2].ok, many[2].error.kind, many[3].value }
        end"#;
    let out = bench.output(body, "null").await;
    assert_eq!(out, r#"[1,"a",false,"operator_unavailable","b"]"#);
}

#[tokio::test]
async fn a_caller_dispatches_to_what_its_token_reaches() {
    let bench = Bench::new();
    let scopes = ["operator:echo".parse().unwrap()].into_iter().collect();
    let caller = Caller { grant: Grant::new(Role::Operator, scopes).into(), ..bench.admin() };
    let dispatch = async |operator: &str| {
        let patience = std::future::pending::<()>();
        bench
            .engine
            .dispatches()
            .dispatch(&caller, operator, Json::from_trusted("5"), None, patience)
            .await
    };
    assert_eq!(dispatch("echo").await.unwrap().output.unwrap().as_str(), "5");
    assert_eq!(dispatch("human").await.unwrap_err().code(), "forbidden_scope");
}

/// Code of somebody else with a mistake in it.
struct Panics(crate::operator::Residence);

#[async_trait::async_trait]
impl crate::operator::Backend for Panics {
    fn kind(&self) -> &'static str {
        "panics"
    }

    fn residence(&self) -> crate::operator::Residence {
        self.0
    }

    async fn execute(
        &self,
        _: Arc<crate::operator::Task>,
        _: Json,
    ) -> Result<crate::operator::Reply, crate::protocol::Failure> {
        panic!("as it does")
    }
}

#[tokio::test]
async fn an_operator_that_panics_ends_its_own_attempt_and_no_neighbour() {
    use crate::operator::Residence;
    let code = Coded::default()
        .and("inline", Panics(Residence::Inline))
        .and("host", Panics(Residence::Host));
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let bench = Bench::open_coded(dir, Clock::manual(1_700_000_000_000), &code);
    // Both shards have a neighbour that waits.
    let mut neighbours = Vec::new();
    for _ in 0..2 {
        let waits = "flow = function(ctx) return ctx:wait(\"go\") end";
        let run = bench.start(waits, "null").await;
        bench.waiting(run, "signal").await;
        neighbours.push(run);
    }
    for operator in ["inline", "host", "inline", "host"] {
        let agents = format!(
            "agents = {{ w = {{ operator = \"{operator}\", retry = {{ max_attempts = 1 }} }} }}"
        );
        let body = format!(
            "{agents}, flow = function(ctx) local ok, why = pcall(ctx.run, ctx, \"w\") return {{ ok, why.kind, why.message }} end"
        );
        let out = bench.output(&body, "null").await;
        assert_eq!(out, r#"[false,"worker","the operator panicked"]"#, "{operator}");
    }
    for run in neighbours {
        let target = WorkflowId::new(run.to_string());
        Orchestrator::signal(&bench.engine, &target, SignalPayload::new("go", json!(7)))
            .await
            .unwrap();
        assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "7");
    }
}
