//! Tests of stored steps and their errors.

use serde_json::json;

use super::*;

#[tokio::test]
async fn steps_change_only_as_they_may() {
    let bench = Bench::new(&json!(["x"]));
    let (chains, id) = (&bench.chains, bench.begin(json!(["done"])).await);
    let model = StepDescriptor::new(StepKind::ModelCall, json!({}).into());
    let call =
        StepDescriptor::new(StepKind::ToolCall, json!({ "name": "echo" }).into()).with_call_id("c");
    let first = chains.record_step(&id, None, None, &model).await.unwrap();
    chains.mark_step_processing(&first.id).await.unwrap();
    chains.mark_step_processing(&first.id).await.unwrap();
    chains.retry_step(&first.id).await.unwrap();
    assert_eq!(bench.chain(&id, None).await[0].state, StepState::Pending);
    chains.complete_step(&first.id, &json!(1).into()).await.unwrap();
    let ended = Err(StoreError::AlreadyTerminal(first.id.clone()));
    assert_eq!(chains.complete_step(&first.id, &json!(2).into()).await, ended);
    assert_eq!(chains.fail_step(&first.id, &json!(2).into()).await, ended);
    assert_eq!(chains.cancel_step(&first.id, "no").await, ended);
    assert_eq!(chains.mark_step_processing(&first.id).await, ended);
    let missing = format!("{id}/99");
    assert_eq!(
        chains.complete_step(&missing, &json!(1).into()).await,
        Err(StoreError::NotFound(missing))
    );
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
    assert_eq!(chain[0].response_payload.as_ref().unwrap().as_str(), "1");
}

#[tokio::test]
async fn numbers_are_given_once_also_to_many_that_write_at_once() {
    let bench = Bench::new(&json!(["x"]));
    let id = bench.begin(json!(["done"])).await;
    let step = |n: usize| {
        StepDescriptor::new(StepKind::ToolCall, json!({ "name": "echo" }).into())
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
        (LoopError::Failed(json!(1).into()).to_string(), "response loop failed: 1"),
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
