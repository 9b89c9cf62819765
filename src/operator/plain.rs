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
    middleware::{message_of, taken},
    protocol::{
        Content, Failure, Json, Operator, OperatorError, OperatorInput, SessionId, StateReader,
        failure::kind,
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
    Ok(match taken(output, task.opts.asked.is_some()) {
        Ok(done) => Reply::Done(done),
        Err(short) => Reply::Short(short),
    })
}

/// The key of an operator's metadata under which it finds what the host says of its task.
pub const HOST_KEY: &str = "moonswarm";

/// Returns the input of the operator: the request, with details of the task as metadata.
pub(super) fn asked(task: &Task, input: &Json) -> OperatorInput {
    let prompt = task.prompt.as_deref();
    let mut asked = task.opts.asked().unwrap_or_else(|| {
        let text = prompt.map_or_else(|| input.as_str().to_owned(), |it| it.prompt.clone());
        OperatorInput::new(Content::text(text), task.trigger.clone())
    });
    if task.opts.asked.is_some() && *input != task.given {
        // A layer has put another in its place.
        asked.message = message_of(input);
    }
    if asked.session.is_none() {
        asked.session = task.opts.session_of().map(SessionId::from);
    }
    let mut config = task.config.get().cloned().unwrap_or_default();
    config.system_addendum = task.system();
    asked.config = Some(config);
    let host = json!({
        "run": task.run,
        "task": task.id,
        "attempt": task.attempt,
        "agent": &*task.agent_name,
        "input": input,
    });
    match &mut asked.metadata {
        Value::Object(metadata) => drop(metadata.insert(HOST_KEY.to_owned(), host)),
        Value::Null => asked.metadata = json!({ HOST_KEY: host }),
        // It has no place beside it, and is not touched.
        _ => {}
    }
    asked
}

pub(super) fn failed(error: &OperatorError) -> Failure {
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
        protocol::{Effect, ExitReason, LogLevel, OperatorOutput},
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
