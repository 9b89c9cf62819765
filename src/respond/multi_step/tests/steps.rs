//! Tests of stored steps and their errors.

use serde_json::json;

use super::*;

#[tokio::test]
async fn steps_change_only_as_they_may() {
    let bench = Bench::new(&json!(["x"]));
    let (chains, id) = (&bench.chains, bench.begin(json!(["done"])).await);
    let model = StepDescriptor::new(StepKind::ModelCall, json!({}));
    let call = StepDescriptor::new(StepKind::ToolCall, json!({ "name": "echo" })).with_call_id("c");
    let first = chains.record_step(&id, None, None, &model).await.unwrap();
    chains.mark_step_processing(&first.id).await.unwrap();
    chains.mark_step_processing(&first.id).await.unwrap();
    chains.retry_step(&first.id).await.unwrap();
    assert_eq!(bench.chain(&id, None).await[0].state, StepState::Pending);
    chains.complete_step(&first.id, &json!(1)).await.unwrap();
    let ended = Err(StoreError::AlreadyTerminal(first.id.clone()));
    assert_eq!(chains.complete_step(&first.id, &json!(2)).await, ended);
    assert_eq!(chains.fail_step(&first.id, &json!(2)).await, ended);
    assert_eq!(chains.cancel_step(&first.id, "no").await, ended);
    assert_eq!(chains.mark_step_processing(&first.id).await, ended);
    let missing = format!("{id}/99");
    assert_eq!(chains.complete_step(&missing, &json!(1)).await, Err(StoreError::NotFound(missing)));
    let (a, again) = (
        chains.record_step(&id, None, Some(&first.id), &call).await.unwrap(),
        chains.record_step(&id, None, Some(&first.id), &call).await.unwrap(),
    );
    assert_eq!(a, again, "a call is recorded once");
    let next = chains.record_step(&id, None, Some(&a.id), &model).await.unwrap();
    let later = chains.record_step(&id, None, Some(&next.id), &call).await.unwrap();
    assert_ne!(a, later, "after the model was asked again it is another call");
    chains.cancel_step(&later.id, "no").await.unwrap();
    let chain = bench.chain(&id, None).await;
    assert_eq!(
        (chain[3].state, &chain[3].error, &chain[3].response_payload),
        (StepState::Canceled, &None, &None)
    );
    assert_eq!(chain[0].response_payload, Some(json!(1)));
}

#[tokio::test]
async fn numbers_are_given_once_also_to_many_that_write_at_once() {
    let bench = Bench::new(&json!(["x"]));
    let id = bench.begin(json!(["done"])).await;
    let step = |n: usize| {
        StepDescriptor::new(StepKind::ToolCall, json!({ "name": "echo" }))
            .with_call_id(format!("c{n}"))
    };
    let steps: Vec<_> = (0..16).map(step).collect();
    let recorded = futures::future::join_all(
        steps.iter().map(|it| bench.chains.record_step(&id, None, None, it)),
    )
    .await;
    let mut numbers: Vec<i64> = recorded.into_iter().map(|it| it.unwrap().sequence).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=16).collect::<Vec<_>>());
}

#[test]
fn errors_say_what_they_say_at_their_source() {
    let texts = [
        (StoreError::NotFound("a".into()).to_string(), "Response not found: a"),
        (StoreError::StorageError("a".into()).to_string(), "Storage error: a"),
        (StoreError::SerializationError("a".into()).to_string(), "Serialization error: a"),
        (ToolError::NotFound("a".into()).to_string(), "Tool not found: a"),
        (ToolError::ExecutionError("a".into()).to_string(), "Tool execution error: a"),
        (ToolError::InvalidArguments("a".into()).to_string(), "Invalid arguments: a"),
        (ToolError::Timeout("a".into()).to_string(), "Tool timeout: a"),
        (ExecutorError::NotFound("a".into()).to_string(), "executor target not found: a"),
        (ExecutorError::ExecutionError("a".into()).to_string(), "executor error: a"),
        (LoopError::Failed(json!(1)).to_string(), "response loop failed: 1"),
        (
            LoopError::MaxIterationsExceeded.to_string(),
            "response loop exceeded max_response_iterations cap",
        ),
        (
            LoopError::MaxDepthExceeded.to_string(),
            "response loop sub-agent recursion exceeded max_response_step_depth cap",
        ),
        (
            LoopError::EmptyAction.to_string(),
            "transition function returned AppendSteps with no descriptors",
        ),
        (
            LoopError::Store(StoreError::NotFound("a".into())).to_string(),
            "response loop storage error: Response not found: a",
        ),
        (
            LoopError::Executor(ExecutorError::NotFound("a".into())).to_string(),
            "response loop executor error: executor target not found: a",
        ),
    ];
    for (said, expected) in texts {
        assert_eq!(said, expected);
    }
}

/// A store with the methods of the source alone: a script, and steps in memory.
#[derive(Default)]
struct Bare {
    script: Mutex<Vec<NextAction>>,
    steps: Mutex<Vec<ChainStep>>,
}

#[async_trait]
impl MultiStepStore for Bare {
    async fn next_action_for(&self, _: &str, _: Option<&str>) -> Result<NextAction, StoreError> {
        Ok(self.script.lock().unwrap().remove(0))
    }

    async fn record_step(
        &self,
        _: &str,
        scope_parent: Option<&str>,
        prev_step: Option<&str>,
        descriptor: &StepDescriptor,
    ) -> Result<RecordedStep, StoreError> {
        let mut steps = self.steps.lock().unwrap();
        let sequence = i64::try_from(steps.len()).unwrap() + 1;
        let id = format!("step_{sequence}");
        steps.push(ChainStep {
            id: id.clone(),
            kind: descriptor.kind,
            state: StepState::Pending,
            sequence,
            prev_step_id: prev_step.map(str::to_owned),
            parent_step_id: scope_parent.map(str::to_owned),
            response_payload: None,
            error: None,
        });
        Ok(RecordedStep { id, sequence })
    }

    async fn mark_step_processing(&self, id: &str) -> Result<(), StoreError> {
        self.change(id, |step| step.state = StepState::Processing);
        Ok(())
    }

    async fn complete_step(&self, id: &str, payload: &Value) -> Result<(), StoreError> {
        self.change(id, |step| {
            (step.state, step.response_payload) = (StepState::Completed, Some(payload.clone()));
        });
        Ok(())
    }

    async fn fail_step(&self, id: &str, error: &Value) -> Result<(), StoreError> {
        self.change(id, |step| (step.state, step.error) = (StepState::Failed, Some(error.clone())));
        Ok(())
    }

    async fn list_chain(&self, _: &str, _: Option<&str>) -> Result<Vec<ChainStep>, StoreError> {
        Ok(self.steps.lock().unwrap().clone())
    }

    async fn assemble_response(&self, _: &str) -> Result<Value, StoreError> {
        Ok(json!({ "assembled": true }))
    }
}

impl Bare {
    fn change(&self, id: &str, change: impl FnOnce(&mut ChainStep)) {
        let mut steps = self.steps.lock().unwrap();
        change(steps.iter_mut().find(|step| step.id == id).unwrap());
    }
}

#[tokio::test]
async fn a_store_of_its_source_alone_is_driven_and_calls_may_be_bare() {
    let bench = Bench::new(&json!(["x"]));
    let call = |request_payload| StepDescriptor { kind: StepKind::ToolCall, request_payload };
    let bare = Bare::default();
    bare.script.lock().unwrap().extend([
        NextAction::AppendSteps(vec![
            call(json!({ "name": "echo", "args": { "n": 1 } })),
            call(json!({ "name": "echo", "arguments": "{\"n\": 2}", "call_id": "c" })),
            call(json!({ "name": "echo" })),
        ]),
        NextAction::Complete(json!({ "done": true })),
    ]);
    // What an earlier process left open, and the store cannot give back, has failed.
    let open = call(json!({ "name": "echo" }));
    bare.record_step("r", None, None, &open).await.unwrap();
    bare.mark_step_processing("step_1").await.unwrap();
    assert_eq!(bench.run_over(&bare, "r").await, Ok(json!({ "done": true })));
    let mut executed = bench.tools.executed.lock().unwrap().clone();
    executed.sort_by(|a, b| a.1.cmp(&b.1));
    let echo = |id: &str, given| ("echo".to_owned(), id.to_owned(), given);
    assert_eq!(
        executed,
        [
            echo("c", json!({ "n": 2 })),
            echo("step_2", json!({ "n": 1 })),
            echo("step_4", json!({})),
        ]
    );
    let steps = bare.steps.lock().unwrap().clone();
    assert_eq!(steps[0].state, StepState::Failed);
    assert!(steps[1..].iter().all(|step| step.state == StepState::Completed));
    drop(steps);
    bare.cancel_step("step_1", "no").await.unwrap();
    assert_eq!(bare.steps.lock().unwrap()[0].error.as_ref().unwrap()["type"], "canceled");
    bare.retry_step("step_1").await.unwrap();
}

#[tokio::test]
async fn the_model_of_a_declared_operator_answers_with_its_usage() {
    let dir = tempfile::tempdir().unwrap();
    let turns = r#"[{ "text": "42", "usage": { "input": 3, "output": 2 } }, { "fail": [{ "status": 500 }] }]"#;
    std::fs::write(dir.path().join("turns.json"), turns).unwrap();
    let file = "[operators.gpt]\nkind = 'llm'\napi = 'script'\nturns = 'turns.json'";
    let operators = file.parse::<crate::operator::Declared>().unwrap().beside(dir.path());
    let model = LlmModel::declared(&operators, "gpt").unwrap();
    let asked = |turn: usize| {
        let said = json!({ "type": "message", "role": "assistant", "content": [] });
        json!({ "items": vec![said; turn] })
    };
    let heard = Mutex::new(0);
    let hear = |_| *heard.lock().unwrap() += 1;
    let answer = model.call(&asked(0), &hear).await.unwrap();
    assert_eq!(answer["items"][0]["content"][0]["text"], "42");
    assert_eq!(
        (&answer["usage"]["input_tokens"], &answer["usage"]["total_tokens"]),
        (&json!(3), &json!(5))
    );
    assert!(*heard.lock().unwrap() > 0);
    assert!(matches!(model.call(&asked(1), &hear).await, Err(ExecutorError::ExecutionError(_))));
    assert_eq!(LlmModel::declared(&operators, "echo").err(), Some(NoModel("echo".into())));
    assert!("[operators.x]\nkind = 'ecko'".parse::<crate::operator::Declared>().is_err());
    assert!("shards = 2".parse::<crate::operator::Declared>().is_err());
}
