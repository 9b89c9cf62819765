//! The loop: get the next action, record its steps, execute them, and repeat to the end.

use std::{collections::HashMap, sync::Mutex};

use futures::{
    StreamExt as _,
    channel::mpsc,
    future::{BoxFuture, join, join_all},
};
use serde_json::{Value, json};

use super::{
    EventSink, ExecutorError, LoopError, LoopEvent, LoopEventKind, Model, MultiStepStore,
    RequestContext, ToolError, ToolExecutor, ToolKind, ToolSchema, arguments::fitting,
};
use crate::protocol::{ChainStep, NextAction, StepDescriptor, StepKind, StepState};

/// The limits of a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopConfig {
    /// The maximum nesting depth of loops, below the outermost.
    pub max_response_step_depth: u32,
    /// The maximum number of transitions of one scope, including those before a restart.
    pub max_response_iterations: u32,
}

impl<'a> ResponseLoop<'a> {
    /// A loop within the usual limits, of which nobody hears.
    pub fn new(
        store: &'a dyn MultiStepStore,
        tools: &'a dyn ToolExecutor,
        model: &'a dyn Model,
        context: &'a RequestContext,
    ) -> Self {
        Self { store, tools, model, context, sink: None, config: LoopConfig::default() }
    }
}

impl Default for LoopConfig {
    fn default() -> Self {
        Self { max_response_step_depth: 8, max_response_iterations: 10 }
    }
}

/// The participants of a loop.
#[derive(Clone, Copy)]
pub struct ResponseLoop<'a> {
    /// Stores the chain and returns the next action.
    pub store: &'a dyn MultiStepStore,
    /// Executes tools.
    pub tools: &'a dyn ToolExecutor,
    /// Calls models.
    pub model: &'a dyn Model,
    /// The context of the request.
    pub context: &'a RequestContext,
    /// Receives the events.
    pub sink: Option<&'a dyn EventSink>,
    /// The limits.
    pub config: LoopConfig,
}

/// Drives a response to its end, from the current state of its chain. Every end, whatever its
/// cause, emits one terminal event.
///
/// # Errors
/// Fails when the response fails, a limit is exceeded, or the store fails.
///
/// # Cancel safety
/// May be dropped at any time and called again: ended steps are not executed again, all others are.
pub async fn run_response_loop(
    parts: ResponseLoop<'_>,
    request_id: &str,
) -> Result<Value, LoopError> {
    let outcome = drive_scope(parts, request_id, None, 0).await;
    let (kind, data) = match &outcome {
        Ok(value) => (LoopEventKind::Completed, value.clone()),
        Err(error) => (LoopEventKind::Failed, error.payload()),
    };
    // The terminal event is emitted even if the chain cannot be read.
    let chain = parts.store.list_chain(request_id, None).await.unwrap_or_default();
    let last = chain.iter().map(|step| step.sequence).max();
    emit(parts, last.unwrap_or(0).saturating_add(1), kind, data).await;
    outcome
}

/// Drives one scope. Boxed, because it is recursive for the loops of agent tools.
fn drive_scope<'a>(
    parts: ResponseLoop<'a>,
    request_id: &'a str,
    scope: Option<&'a str>,
    depth: u32,
) -> BoxFuture<'a, Result<Value, LoopError>> {
    Box::pin(async move {
        if depth > parts.config.max_response_step_depth {
            return Err(LoopError::MaxDepthExceeded);
        }
        let listed = parts.tools.tools(parts.context).await;
        let tools = listed.into_iter().map(|tool| (tool.name.clone(), tool)).collect();
        let scope = Scope { parts, request_id, scope, depth, tools };
        let chain = parts.store.list_chain(request_id, scope.scope).await?;
        if depth == 0 && chain.is_empty() {
            let id = format!("resp_{}", request_id.strip_prefix("run_").unwrap_or(request_id));
            let data = json!({ "id": id, "object": "response", "status": "in_progress" });
            emit(parts, 0, LoopEventKind::Created, data).await;
        }
        scope.run(chain).await
    })
}

/// One scope of a response.
struct Scope<'a> {
    parts: ResponseLoop<'a>,
    request_id: &'a str,
    scope: Option<&'a str>,
    depth: u32,
    tools: HashMap<String, ToolSchema>,
}

/// A step to be executed.
struct Todo {
    id: String,
    sequence: i64,
    descriptor: StepDescriptor,
}

impl Todo {
    /// The provider's id of the call, or the step's own.
    fn call_id(&self) -> &str {
        self.descriptor.call_id().unwrap_or(&self.id)
    }
}

impl Scope<'_> {
    async fn run(&self, chain: Vec<ChainStep>) -> Result<Value, LoopError> {
        let store = self.parts.store;
        let mut iterations = transitions(&chain);
        let mut prev = chain.last().map(|step| step.id.clone());
        self.take_up(chain).await?;
        loop {
            if iterations >= self.parts.config.max_response_iterations {
                return Err(LoopError::MaxIterationsExceeded);
            }
            iterations += 1;
            let descriptors = match store.next_action_for(self.request_id, self.scope).await? {
                NextAction::Complete(value) => return Ok(value),
                NextAction::Fail(error) => return Err(LoopError::Failed(error)),
                NextAction::AppendSteps(descriptors) => descriptors,
            };
            if descriptors.is_empty() {
                return Err(LoopError::EmptyAction);
            }
            let mut batch = Vec::with_capacity(descriptors.len());
            for descriptor in descriptors {
                let (of, before) = (self.request_id, prev.as_deref());
                let recorded = store.record_step(of, self.scope, before, &descriptor).await?;
                prev = Some(recorded.id.clone());
                batch.push(Todo { id: recorded.id, sequence: recorded.sequence, descriptor });
            }
            self.execute_all(batch).await?;
        }
    }

    /// Executes the steps that a crash left open.
    async fn take_up(&self, chain: Vec<ChainStep>) -> Result<(), LoopError> {
        let (mut open, store) = (Vec::new(), self.parts.store);
        for step in chain.into_iter().filter(|step| !step.state.is_terminal()) {
            let ChainStep { id, sequence, state, .. } = step;
            let Some(descriptor) = store.descriptor_of(&id).await? else {
                let message = "its executor is gone, and the store does not say what it asks";
                let gone = LoopError::from(ExecutorError::ExecutionError(message.to_owned()));
                store.fail_step(&id, &gone.payload()).await?;
                continue;
            };
            if state == StepState::Processing {
                store.retry_step(&id).await?;
            }
            open.push(Todo { id, sequence, descriptor });
        }
        self.execute_all(open).await
    }

    /// Executes steps concurrently and waits for all of them.
    async fn execute_all(&self, batch: Vec<Todo>) -> Result<(), LoopError> {
        let ended = join_all(batch.iter().map(|todo| self.execute(todo))).await;
        ended.into_iter().collect()
    }

    /// Executes a step and stores its outcome. Fails only when the store fails.
    async fn execute(&self, todo: &Todo) -> Result<(), LoopError> {
        let store = self.parts.store;
        store.mark_step_processing(&todo.id).await?;
        let outcome = match todo.descriptor.kind {
            StepKind::ModelCall => self.ask(todo).await,
            StepKind::ToolCall => self.call(todo).await,
            other => {
                let message = format!("a loop executes no {}", other.as_str());
                Err(ExecutorError::ExecutionError(message).into())
            }
        };
        match outcome {
            Ok(value) => {
                store.complete_step(&todo.id, &value).await?;
                if self.depth == 0 && todo.descriptor.kind == StepKind::ToolCall {
                    let output = json!({
                        "type": "function_call_output", "call_id": todo.call_id(),
                        "output": value.to_string(),
                    });
                    let done = LoopEventKind::OutputItemDone;
                    emit(self.parts, todo.sequence, done, output).await;
                }
                Ok(())
            }
            Err(error @ LoopError::Store(_)) => Err(error),
            Err(error) => Ok(store.fail_step(&todo.id, &error.payload()).await?),
        }
    }

    async fn ask(&self, todo: &Todo) -> Result<Value, LoopError> {
        let (tell, mut heard) = mpsc::channel(DELTAS);
        let is_seen = self.depth == 0 && self.parts.sink.is_some();
        let tell = Mutex::new(tell);
        let hear = move |delta| {
            if is_seen && let Ok(mut tell) = tell.lock() {
                // A receiver that is too slow loses deltas. The answer has the complete text.
                let _ = tell.try_send(delta);
            }
        };
        let asked = async move {
            let answer = self.parts.model.call(&todo.descriptor.request_payload, &hear).await;
            drop(hear);
            answer
        };
        let hand_on = async {
            while let Some(delta) = heard.next().await {
                let data = serde_json::to_value(&delta).expect("a delta is plain data");
                emit(self.parts, todo.sequence, LoopEventKind::Delta, data).await;
            }
        };
        let (answer, ()) = join(asked, hand_on).await;
        Ok(answer?)
    }

    async fn call(&self, todo: &Todo) -> Result<Value, LoopError> {
        let name = todo.descriptor.tool_name().ok_or_else(|| {
            LoopError::from(ExecutorError::ExecutionError("the call has no `name`".to_owned()))
        })?;
        let Some(tool) = self.tools.get(name) else {
            return Err(ExecutorError::NotFound(name.to_owned()).into());
        };
        // Also for an agent: its input is validated as strictly as the arguments of a tool.
        let arguments = arguments(todo.descriptor.arguments())
            .and_then(|arguments| {
                fitting(&tool.parameters, arguments).map_err(|why| why.trim_start().to_owned())
            })
            .map_err(|why| ExecutorError::from(ToolError::InvalidArguments(why)))?;
        match tool.kind {
            ToolKind::Agent => {
                let (parts, of) = (self.parts, self.request_id);
                drive_scope(parts, of, Some(&todo.id), self.depth + 1).await
            }
            ToolKind::Http => {
                let context = self.parts.context;
                let done =
                    self.parts.tools.execute(name, todo.call_id(), &arguments, context).await;
                Ok(done.map_err(ExecutorError::from)?)
            }
        }
    }
}

/// The capacity of the channel for deltas.
const DELTAS: usize = 1_024;

/// Parses the arguments of a call: an object, or its JSON text; empty if they are absent.
fn arguments(written: Option<&Value>) -> Result<Value, String> {
    let read = match written {
        None => json!({}),
        Some(Value::String(text)) => {
            serde_json::from_str(text).map_err(|error| error.to_string())?
        }
        Some(other) => other.clone(),
    };
    if read.is_object() { Ok(read) } else { Err("they are not an object".to_owned()) }
}

/// Returns the number of transitions of a chain: each model call is one, and so is each sequence of
/// tool calls.
fn transitions(chain: &[ChainStep]) -> u32 {
    let begins = |(at, step): (usize, &ChainStep)| {
        let before = at.checked_sub(1).and_then(|at| chain.get(at));
        step.kind != StepKind::ToolCall
            || before.is_none_or(|before| before.kind != StepKind::ToolCall)
    };
    let count = chain.iter().enumerate().filter(|at| begins(*at)).count();
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Emits an event. Errors are only logged.
async fn emit(parts: ResponseLoop<'_>, sequence: i64, kind: LoopEventKind, data: Value) {
    if let Some(sink) = parts.sink
        && let Err(error) = sink.emit(LoopEvent { sequence, kind, data }).await
    {
        tracing::debug!(%error, ?kind, "an event of a response was not taken");
    }
}
