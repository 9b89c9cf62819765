//! A dispatch middleware of the protocol, as a layer of a host.

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::json;

use super::{Dispatch, DispatchLayer, Dispatched, Next, message_of, taken, value_of};
use crate::{
    journal::Usage,
    protocol::{
        Content, Effect, ExitReason, Failure, OperatorError, OperatorId, OperatorInput,
        OperatorOutput, OrchError, TriggerType,
        failure::kind,
        middleware::{DispatchMiddleware, DispatchNext},
    },
};

/// A middleware that is written against the protocol alone. It may answer itself, pass on another
/// message or config, change the answer, refuse, or route: passing on another operator's name has
/// that one execute the task, if it works where the named one does.
///
/// Work that is parked with somebody else has no answer yet: `next` then gives an empty one whose
/// exit reason is the author's own word `parked`, and what the middleware makes of it is ignored.
pub struct ProtocolLayer {
    name: String,
    middleware: Arc<dyn DispatchMiddleware>,
}

impl ProtocolLayer {
    /// A layer under a name, which logs use.
    pub fn new(name: impl Into<String>, middleware: Arc<dyn DispatchMiddleware>) -> Self {
        Self { name: name.into(), middleware }
    }
}

#[async_trait]
impl DispatchLayer for ProtocolLayer {
    fn name(&self) -> &str {
        &self.name
    }

    async fn dispatch(&self, dispatch: Dispatch, next: Next<'_>) -> Result<Dispatched, Failure> {
        let operator = OperatorId::from(&*dispatch.operator);
        let message = message_of(&dispatch.input);
        let metadata = json!({ "moonswarm": {
            "run": dispatch.run, "task": dispatch.task, "attempt": dispatch.attempt,
            "agent": &*dispatch.agent,
        }});
        let input = OperatorInput::new(message.clone(), TriggerType::Task)
            .with_config(dispatch.config.clone())
            .with_metadata(metadata);
        let rest = Rest {
            message,
            way: Mutex::new(Some((dispatch, next))),
            came: Mutex::new(Came::Nothing),
        };
        let answered = self.middleware.dispatch(&operator, input, &rest).await;
        let came = rest.came.into_inner();
        match (came, answered) {
            (Came::Parked, _) => Ok(Dispatched::Parked),
            // What it leaves as it was keeps what the protocol has no words for.
            (Came::Answered(dispatched, output), Ok(answer)) if *output == answer => {
                Ok(*dispatched)
            }
            (Came::Failed(failure, said), Err(error)) if error.to_string() == said => Err(failure),
            (_, Ok(answer)) => Ok(match taken(answer, false) {
                Ok(done) => Dispatched::Done(done),
                Err(short) => Dispatched::Short(short),
            }),
            (_, Err(error)) => Err(refused(&error)),
        }
    }
}

/// The rest of the stack, as a middleware of the protocol passes on to it.
struct Rest<'a> {
    message: Content,
    way: Mutex<Option<(Dispatch, Next<'a>)>>,
    came: Mutex<Came>,
}

/// The outcome of the inner layers.
enum Came {
    Nothing,
    Parked,
    Answered(Box<Dispatched>, Box<OperatorOutput>),
    Failed(Failure, String),
}

#[async_trait]
impl DispatchNext for Rest<'_> {
    async fn dispatch(
        &self,
        operator: &OperatorId,
        input: OperatorInput,
    ) -> Result<OperatorOutput, OrchError> {
        let way = self.way.lock().take();
        let Some((mut dispatch, next)) = way else {
            return Err(OrchError::DispatchFailed("a dispatch is passed on once".to_owned()));
        };
        if operator.as_str() != &*dispatch.operator {
            dispatch.route = Some(operator.as_str().into());
        }
        if input.message != self.message {
            dispatch.input = value_of(&input.message);
        }
        if let Some(config) = input.config {
            dispatch.config = config;
        }
        let (came, answer) = match next.run(dispatch).await {
            Ok(Dispatched::Parked) => {
                let parked = ExitReason::custom("parked");
                (Came::Parked, Ok(OperatorOutput::new(Content::text(""), parked)))
            }
            Ok(Dispatched::Done(done)) => {
                let (usage, effects) = (done.usage.clone(), done.effects.clone());
                let message = message_of(&done.output);
                let answer = answer(message, ExitReason::Complete, usage, effects);
                (
                    Came::Answered(Box::new(Dispatched::Done(done)), Box::new(answer.clone())),
                    Ok(answer),
                )
            }
            Ok(Dispatched::Short(short)) => {
                let data = short.failure.data.as_ref().map(|data| data.to_value());
                let data = data.unwrap_or_default();
                let read = serde_json::from_value(data["exit_reason"].clone());
                let message = serde_json::from_value(data["message"].clone());
                let message = message.unwrap_or_else(|_| Content::text(&*short.failure.message));
                let exit = read.unwrap_or(ExitReason::Error);
                let answer = answer(message, exit, short.usage.clone(), short.effects.clone());
                (
                    Came::Answered(Box::new(Dispatched::Short(short)), Box::new(answer.clone())),
                    Ok(answer),
                )
            }
            Err(failure) => {
                let message = failure.message.clone();
                let error = OrchError::OperatorError(match failure.retryable {
                    true => OperatorError::Retryable(message),
                    false => OperatorError::NonRetryable(message),
                });
                (Came::Failed(failure, error.to_string()), Err(error))
            }
        };
        *self.came.lock() = came;
        answer
    }
}

/// Returns an outcome as an operator's answer, with its usage.
pub(super) fn answer(
    message: Content,
    exit: ExitReason,
    usage: Option<Usage>,
    effects: Vec<Effect>,
) -> OperatorOutput {
    let mut answer = OperatorOutput::new(message, exit);
    let usage = usage.unwrap_or_default();
    answer.metadata.tokens_in = usage.input_tokens.unwrap_or_default();
    answer.metadata.tokens_out = usage.output_tokens.unwrap_or_default();
    answer.metadata.cost = usage.cost.and_then(|cost| cost.parse().ok()).unwrap_or_default();
    answer.effects = effects;
    answer
}

fn refused(error: &OrchError) -> Failure {
    let (kind, retryable) = match error {
        OrchError::OperatorNotFound(_) => (kind::OPERATOR_UNAVAILABLE, false),
        OrchError::OperatorError(OperatorError::Retryable(_)) => (kind::WORKER, true),
        OrchError::OperatorError(_) => (kind::WORKER, false),
        _ => (kind::REFUSED, false),
    };
    let failure = Failure::new(kind, error.to_string());
    if retryable { failure.retryable() } else { failure }
}
