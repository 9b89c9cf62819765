//! Adapts an operator of the protocol to a backend.
//!
//! | the exit reason | the step |
//! |---|---|
//! | `complete`, a custom reason | completes with the message |
//! | `awaiting_approval` | completes with the message; its effects ask the person |
//! | anything else | fails with a kind of that name; its effects are still applied |

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};

use super::{Backend, Delivery, Reply, Residence, Task};
use crate::{
    journal::Usage,
    middleware::{Short, TaskDone},
    protocol::{
        Content, ExitReason, Failure, Json, Operator, OperatorError, OperatorInput,
        OperatorMetadata, StateReader, TriggerType, failure::kind,
    },
};

/// Executes tasks by an operator of the protocol.
pub struct Plain<O> {
    operator: O,
}

impl<O: Operator> Plain<O> {
    /// Creates a backend of `operator`.
    pub fn new(operator: O) -> Self {
        Self { operator }
    }
}

#[async_trait]
impl<O: Operator> Backend for Plain<O> {
    fn kind(&self) -> &'static str {
        "custom"
    }

    fn residence(&self) -> Residence {
        Residence::Host
    }

    async fn execute(&self, task: Arc<Task>, input: Json) -> Result<Reply, Failure> {
        execute(&self.operator, &task, &input).await
    }
}

/// Executes each attempt by an operator that is created for it, with read access to state.
pub struct Reading<F> {
    make: F,
}

impl<F, O> Reading<F>
where
    F: Fn(Arc<dyn StateReader>) -> O + Send + Sync,
    O: Operator,
{
    /// Creates a backend of the operators that `make` creates.
    pub fn new(make: F) -> Self {
        Self { make }
    }
}

#[async_trait]
impl<F, O> Backend for Reading<F>
where
    F: Fn(Arc<dyn StateReader>) -> O + Send + Sync,
    O: Operator,
{
    fn kind(&self) -> &'static str {
        "custom"
    }

    fn residence(&self) -> Residence {
        Residence::Host
    }

    async fn execute(&self, task: Arc<Task>, input: Json) -> Result<Reply, Failure> {
        let operator = (self.make)(Arc::clone(&task.state));
        execute(&operator, &task, &input).await
    }
}

async fn execute(operator: &impl Operator, task: &Task, input: &Json) -> Result<Reply, Failure> {
    task.reporter.delivered(Delivery { worker: task.operator.to_string() });
    let answer = tokio::select! {
        answer = operator.execute(asked(task, input)) => answer,
        () = task.cancel.cancelled() => {
            return Err(Failure::new(kind::CANCELED, "the attempt was given up"));
        }
    };
    let output = answer.map_err(|error| failed(&error))?;
    let (usage, effects) = (usage(&output.metadata), output.effects);
    match fell_short(&output.exit_reason) {
        None => Ok(Reply::Done(TaskDone { output: value(&output.message), usage, effects })),
        Some(mut failure) => {
            let data = json!({ "exit_reason": output.exit_reason, "message": output.message });
            failure.data = Some(data.into());
            Ok(Reply::Short(Box::new(Short { failure, usage, effects })))
        }
    }
}

/// Returns the input of the operator: the request, with details of the task as metadata.
fn asked(task: &Task, input: &Json) -> OperatorInput {
    let prompt = task.prompt.as_deref();
    let text = prompt.map_or_else(|| input.as_str().to_owned(), |it| it.prompt.clone());
    let mut asked = OperatorInput::new(Content::text(text), TriggerType::Task);
    let mut config = task.config.get().cloned().unwrap_or_default();
    config.system_addendum =
        prompt.and_then(|it| it.system.clone()).or_else(|| config.system_addendum.take());
    asked.config = Some(config);
    asked.metadata = json!({
        "run": task.run,
        "task": task.id,
        "attempt": task.attempt,
        "agent": &*task.agent_name,
        "input": input,
    });
    asked
}

/// Returns the value of the step: text that is JSON is parsed.
fn value(message: &Content) -> Json {
    match message {
        Content::Text(text) => {
            Json::parse(text.as_str()).unwrap_or_else(|_| Json::from(Value::String(text.clone())))
        }
        Content::Blocks(_) => {
            Json::encode(message).expect("blocks of content are plain data with text as keys")
        }
    }
}

/// Returns the usage. Zero means not tracked, so zeros alone are no usage.
fn usage(metadata: &OperatorMetadata) -> Option<Usage> {
    let OperatorMetadata { tokens_in, tokens_out, cost, .. } = metadata;
    let said = *tokens_in > 0 || *tokens_out > 0 || !cost.is_zero();
    said.then(|| Usage {
        input_tokens: Some(*tokens_in),
        output_tokens: Some(*tokens_out),
        cost: Some(cost.normalize().to_string()),
        ..Usage::default()
    })
}

fn fell_short(reason: &ExitReason) -> Option<Failure> {
    let (kind, retryable) = match reason {
        ExitReason::Complete | ExitReason::Custom(_) | ExitReason::AwaitingApproval => {
            return None;
        }
        ExitReason::MaxTurns => (kind::LIMIT, false),
        ExitReason::BudgetExhausted => (kind::BUDGET, false),
        ExitReason::CircuitBreaker => (kind::OPERATOR_UNAVAILABLE, true),
        ExitReason::Timeout => (kind::TIMEOUT, true),
        ExitReason::InterceptorHalt { .. } => (kind::REFUSED, false),
        ExitReason::SafetyStop { .. } => (kind::MODEL, false),
        ExitReason::Error => (kind::WORKER, false),
    };
    let failure = Failure::new(kind, format!("the operator stopped: {reason}"));
    Some(if retryable { failure.retryable() } else { failure })
}

fn failed(error: &OperatorError) -> Failure {
    match error {
        OperatorError::Model(_) => Failure::new(kind::MODEL, error.to_string()),
        OperatorError::Retryable(_) => Failure::new(kind::WORKER, error.to_string()).retryable(),
        OperatorError::SubDispatch { .. }
        | OperatorError::ContextAssembly(_)
        | OperatorError::NonRetryable(_)
        | OperatorError::Other(_) => Failure::new(kind::WORKER, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        operator::fixture::Attempt,
        protocol::{Effect, LogLevel, OperatorOutput},
    };

    struct Says(ExitReason, &'static str);

    #[async_trait]
    impl Operator for Says {
        async fn execute(&self, _: OperatorInput) -> Result<OperatorOutput, OperatorError> {
            let mut output = OperatorOutput::new(Content::text(self.1), self.0.clone());
            output.metadata.tokens_in = 3;
            let (level, message) = (LogLevel::Info, "said".to_owned());
            output.effects.push(Effect::Log { level, message, data: None });
            Ok(output)
        }
    }

    async fn reply(reason: ExitReason, text: &'static str) -> Reply {
        let backend = Plain::new(Says(reason, text));
        backend.execute(Attempt::new().task(), Json::null()).await.unwrap()
    }

    #[tokio::test]
    async fn a_message_is_the_value_and_json_is_taken_for_what_it_says() {
        for (text, expected) in [("plain", "\"plain\""), (r#"{"a": 1}"#, r#"{"a": 1}"#)] {
            let Reply::Done(done) = reply(ExitReason::Complete, text).await else { panic!() };
            assert_eq!(done.output.as_str(), expected);
            assert_eq!(done.usage.unwrap().input_tokens, Some(3));
            assert_eq!(done.effects.len(), 1);
        }
    }

    #[tokio::test]
    async fn effects_survive_every_exit() {
        for (reason, kind) in [
            (ExitReason::MaxTurns, kind::LIMIT),
            (ExitReason::BudgetExhausted, kind::BUDGET),
            (ExitReason::CircuitBreaker, kind::OPERATOR_UNAVAILABLE),
            (ExitReason::Timeout, kind::TIMEOUT),
            (ExitReason::interceptor_halt("no"), kind::REFUSED),
            (ExitReason::safety_stop("no"), kind::MODEL),
            (ExitReason::Error, kind::WORKER),
        ] {
            let Reply::Short(short) = reply(reason, "x").await else { panic!("{kind}") };
            assert_eq!((short.failure.kind.as_str(), short.effects.len()), (kind, 1));
        }
        for reason in [ExitReason::custom("stuck_detected"), ExitReason::AwaitingApproval] {
            let Reply::Done(done) = reply(reason, "x").await else { panic!() };
            assert_eq!(done.effects.len(), 1);
        }
    }
}
