//! An operator and a response loop without a host, and without a runtime.

use std::{
    pin::pin,
    sync::Mutex,
    task::{Context, Poll, Waker},
};

use async_trait::async_trait;
use moonswarm::{
    Content, ExitReason, Operator, OperatorError, OperatorInput, OperatorOutput, TriggerType,
    protocol::{
        ChainStep, ModelDelta, NextAction, RecordedStep, StepDescriptor, StepKind, StepState,
    },
    respond::multi_step::{
        ExecutorError, Model, MultiStepStore, RequestContext, ResponseLoop, StoreError, ToolError,
        ToolExecutor, ToolKind, ToolSchema, run_response_loop,
    },
};
use serde_json::{Value, json};

/// Answers in capitals.
struct Shouts;

#[async_trait]
impl Operator for Shouts {
    async fn execute(&self, input: OperatorInput) -> Result<OperatorOutput, OperatorError> {
        let text = input.message.as_text().unwrap_or_default().to_uppercase();
        Ok(OperatorOutput::new(Content::text(text), ExitReason::Complete))
    }
}

/// A chain in memory: one call, then the end.
#[derive(Default)]
struct Chain(Mutex<Vec<ChainStep>>);

#[async_trait]
impl MultiStepStore for Chain {
    async fn next_action_for(&self, _: &str, _: Option<&str>) -> Result<NextAction, StoreError> {
        Ok(match self.0.lock().unwrap().last() {
            None => NextAction::AppendSteps(vec![StepDescriptor {
                kind: StepKind::ToolCall,
                request_payload: json!({ "name": "shout", "args": { "text": "moon" } }),
            }]),
            Some(step) => NextAction::Complete(step.response_payload.clone().unwrap()),
        })
    }

    async fn record_step(
        &self,
        _: &str,
        scope_parent: Option<&str>,
        prev_step: Option<&str>,
        descriptor: &StepDescriptor,
    ) -> Result<RecordedStep, StoreError> {
        let text = |it: Option<&str>| it.map(str::to_owned);
        self.0.lock().unwrap().push(ChainStep {
            id: "1".to_owned(),
            kind: descriptor.kind,
            state: StepState::Pending,
            sequence: 1,
            prev_step_id: text(prev_step),
            parent_step_id: text(scope_parent),
            response_payload: None,
            error: None,
        });
        Ok(RecordedStep { id: "1".to_owned(), sequence: 1 })
    }

    async fn mark_step_processing(&self, _: &str) -> Result<(), StoreError> {
        Ok(())
    }

    async fn complete_step(&self, _: &str, payload: &Value) -> Result<(), StoreError> {
        self.0.lock().unwrap()[0].response_payload = Some(payload.clone());
        Ok(())
    }

    async fn fail_step(&self, _: &str, error: &Value) -> Result<(), StoreError> {
        Err(StoreError::StorageError(error.to_string()))
    }

    async fn list_chain(&self, _: &str, _: Option<&str>) -> Result<Vec<ChainStep>, StoreError> {
        Ok(self.0.lock().unwrap().clone())
    }

    async fn assemble_response(&self, _: &str) -> Result<Value, StoreError> {
        Ok(Value::Null)
    }
}

#[async_trait]
impl ToolExecutor for Shouts {
    async fn tools(&self, _: &RequestContext) -> Vec<ToolSchema> {
        let (name, description) = ("shout".to_owned(), String::new());
        let parameters = json!({ "type": "object", "required": ["text"] });
        vec![ToolSchema { name, description, parameters, strict: false, kind: ToolKind::Http }]
    }

    async fn execute(
        &self,
        _: &str,
        _: &str,
        arguments: &Value,
        _: &RequestContext,
    ) -> Result<Value, ToolError> {
        let text = Content::text(arguments["text"].as_str().unwrap_or_default());
        let said = Operator::execute(self, OperatorInput::new(text, TriggerType::Task)).await;
        let said = said.map_err(|error| ToolError::ExecutionError(error.to_string()))?;
        Ok(said.message.as_text().unwrap_or_default().into())
    }
}

struct NoModel;

#[async_trait]
impl Model for NoModel {
    async fn call(
        &self,
        _: &Value,
        _: &(dyn Fn(ModelDelta) + Send + Sync),
    ) -> Result<Value, ExecutorError> {
        Err(ExecutorError::NotFound("a model".to_owned()))
    }
}

fn main() {
    let (chain, context) = (Chain::default(), RequestContext::new());
    let mut run = pin!(run_response_loop(
        ResponseLoop::new(&chain, &Shouts, &NoModel, &context),
        "resp_1"
    ));
    let mut waker = Context::from_waker(Waker::noop());
    let answer = loop {
        if let Poll::Ready(answer) = run.as_mut().poll(&mut waker) {
            break answer;
        }
    };
    assert_eq!(answer, Ok(json!("MOON")));
    println!("MOON");
}
