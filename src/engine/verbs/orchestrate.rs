//! The orchestrator of the protocol, implemented with runs: a dispatch is a run of one task.
//!
//! So it is durable, passes through the same layers as every other dispatch, and appears in lists.
//! The engine retries, by the policy of the task.

use std::{pin::pin, time::Duration};

use async_trait::async_trait;
use futures::StreamExt as _;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::{
    blueprint::Bundle,
    engine::{
        Caller, Engine, EngineError, FailureView, Program, RunView, StartRun, WaitFor,
        run::values::task_input,
        verbs::{begin::Permit, engine::DispatchVerbs, last_step::LastStep},
    },
    journal::Usage,
    protocol::{
        DurationMs, Json, Operator, OperatorError, OperatorId, OperatorInput, OperatorOutput,
        OrchError, Orchestrator, QueryPayload, RunId, SignalPayload, WorkflowId, failure::kind,
    },
    store::RunStatus,
    token::{Grant, Need, Verb},
};

/// The blueprint of a dispatch.
const SOURCE: &str = r#"local swarm = require("swarm")
return swarm.blueprint {
  name = "dispatch",
  description = "One task for one operator, asked for by itself.",
  flow = function(ctx, input)
    return ctx:dispatch(input.operator, input.input, {
      timeout = input.timeout, session = input.session, asked = input.asked,
    })
  end,
}

"#;

/// The number of concurrent dispatches of one call.
const AT_ONCE: usize = 64;

/// Longer than any wait of a caller.
const FOREVER: Duration = Duration::from_secs(24 * 3_600);

/// One dispatch and what became of it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DispatchView {
    /// Its run.
    #[schema(value_type = String)]
    pub run: RunId,
    /// The status: running, waiting, completed, failed, canceled.
    #[schema(value_type = String)]
    pub status: RunStatus,
    /// The operator's result, once it completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub output: Option<Json>,
    /// The error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<FailureView>,
    /// The usage, as far as it was reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub usage: Option<Usage>,
    /// The effects that were applied with the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub effects: Option<Json>,
    /// The operator's answer in the shape of the protocol, if it was asked in that shape: also where
    /// it fell short.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub operator_output: Option<OperatorOutput>,
}

/// A request for a dispatch.
#[derive(Debug, Clone)]
pub enum DispatchInput {
    /// Any JSON.
    Value(Json),
    /// The input of an operator, whole.
    Operator(Box<OperatorInput>),
}

impl From<Json> for DispatchInput {
    fn from(value: Json) -> Self {
        Self::Value(value)
    }
}

impl Engine {
    /// Returns an orchestrator that acts as `caller`.
    pub fn orchestrator(&self, caller: Caller) -> Orchestration {
        Orchestration { engine: self.clone(), caller }
    }

    /// Returns an operator of this host as an operator of the protocol: each of its executions is
    /// a dispatch of `caller`.
    pub fn operator(&self, caller: Caller, operator: impl Into<OperatorId>) -> HostOperator {
        HostOperator { orchestration: self.orchestrator(caller), operator: operator.into() }
    }
}

impl DispatchVerbs<'_> {
    /// Executes a single task by one operator; returns once it ended or `patience` is over, in
    /// which case the run continues.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or there is no such operator.
    ///
    /// # Cancel safety
    /// May be dropped at any time; a run that was started continues.
    pub async fn dispatch(
        self,
        caller: &Caller,
        operator: &str,
        input: impl Into<DispatchInput>,
        timeout: Option<DurationMs>,
        patience: impl Future<Output = ()>,
    ) -> Result<DispatchView, EngineError> {
        let input = input.into();
        let whole = matches!(input, DispatchInput::Operator(_));
        let view = self.dispatched(caller, operator, input, timeout, patience).await?;
        let last = self.last_step(view.id).await?;
        let ended = whole && view.status.is_ended();
        let operator_output = ended.then(|| last.answer(view.output.as_ref())).flatten();
        let LastStep { usage, effects, .. } = last;
        Ok(DispatchView {
            operator_output,
            run: view.id,
            status: view.status,
            output: view.output,
            error: view.error,
            usage,
            effects,
        })
    }

    async fn dispatched(
        self,
        caller: &Caller,
        operator: &str,
        input: DispatchInput,
        timeout: Option<DurationMs>,
        patience: impl Future<Output = ()>,
    ) -> Result<RunView, EngineError> {
        let operator = self.engine.shared().registry.name_of(operator);
        caller.grant.check(Verb::Dispatch, &[Need::Operator(operator)])?;
        if self.engine.shared().registry.get(operator).is_none() {
            return Err(EngineError::NotFound { what: "operator", id: operator.to_owned() });
        }
        let bundle = Bundle::from_source("dispatch.lua", SOURCE)
            .map_err(|error| EngineError::BadRequest(error.to_string()))?;
        let own = match &input {
            DispatchInput::Value(_) => None,
            DispatchInput::Operator(it) => it.config.as_ref().and_then(|it| it.max_duration),
        };
        let timeout = timeout.or(own);
        #[expect(clippy::cast_precision_loss, reason = "seconds need no more")]
        let seconds = timeout.map(|timeout| timeout.as_millis() as f64 / 1_000.0);
        let mut asked = match &input {
            DispatchInput::Value(input) => json!({ "operator": operator, "input": input }),
            DispatchInput::Operator(input) => {
                let text = Json::encode(input).expect("an operator's input is plain data");
                let mut asked = json!({
                    "operator": operator, "input": task_input(input), "asked": text.as_str(),
                });
                if let Some(session) = &input.session {
                    asked["session"] = session.as_str().into();
                }
                asked
            }
        };
        if let Some(seconds) = seconds {
            asked["timeout"] = seconds.into();
        }
        let start = StartRun {
            input: asked.into(),
            trigger: json!({ "kind": "dispatch", "operator": operator }).into(),
            ..StartRun::new(Program::Bundle(bundle))
        };
        self.start_permitted(caller, start, WaitFor::Ended, patience).await
    }

    /// As [`Engine::start_and_wait`], for a start that another verb of the caller permits.
    pub(crate) async fn start_permitted(
        self,
        caller: &Caller,
        start: StartRun,
        until: WaitFor,
        patience: impl Future<Output = ()>,
    ) -> Result<RunView, EngineError> {
        let begun = self.engine.begin_waiting(caller, start, None, until, Permit::Given).await?;
        self.engine.await_begun(begun, until, patience).await
    }

    /// The answer of the operator of a dispatch, in the shape of the protocol, once its run has
    /// ended; also after a restart.
    ///
    /// # Errors
    /// Fails when the caller may not, or there is no such run.
    pub async fn operator_output(
        self,
        caller: &Caller,
        run: RunId,
    ) -> Result<Option<OperatorOutput>, EngineError> {
        caller.may(Verb::RunRead, run)?;
        let view = self.engine.wait_for(run, WaitFor::Ended, Duration::ZERO).await?;
        if !view.status.is_ended() {
            return Ok(None);
        }
        Ok(self.last_step(run).await?.answer(view.output.as_ref()))
    }

    /// Returns what the history has of a run's last step.
    async fn last_step(self, run: RunId) -> Result<LastStep, EngineError> {
        self.engine.read(move |store| LastStep::read(store, run.num())).await
    }

    pub(crate) fn owner(self) -> Caller {
        Caller {
            subject: "host".into(),
            grant: Grant::everything().into(),
            jti: String::new(),
            expires_ms: u64::MAX,
            session: None,
            trace: None,
        }
    }
}

/// The orchestrator for one caller.
#[derive(Clone)]
pub struct Orchestration {
    engine: Engine,
    caller: Caller,
}

impl Orchestration {
    async fn one(
        &self,
        operator: &OperatorId,
        input: OperatorInput,
    ) -> Result<OperatorOutput, OrchError> {
        let asked = DispatchInput::Operator(Box::new(input));
        let patience = pin!(tokio::time::sleep(FOREVER));
        let view = self
            .engine
            .dispatches()
            .dispatched(&self.caller, operator.as_str(), asked, None, patience)
            .await
            .map_err(|error| not_dispatched(operator, error))?;
        let last = self.engine.dispatches().last_step(view.id).await;
        let last = last.map_err(|error| OrchError::Other(error.into()))?;
        // An operator that fell short has answered all the same.
        if view.status.is_ended()
            && let Some(answer) = last.answer(view.output.as_ref())
        {
            return Ok(answer);
        }
        match view.error {
            Some(error) => Err(failed(&error)),
            None => {
                let message = format!("run {} is {}", view.id, view.status.as_str());
                Err(OrchError::DispatchFailed(message))
            }
        }
    }
}

/// An operator of a host, as an operator of the protocol.
#[derive(Clone)]
pub struct HostOperator {
    orchestration: Orchestration,
    operator: OperatorId,
}

#[async_trait]
impl Operator for HostOperator {
    async fn execute(&self, input: OperatorInput) -> Result<OperatorOutput, OperatorError> {
        self.orchestration.one(&self.operator, input).await.map_err(|error| match error {
            OrchError::OperatorError(error) => error,
            error => OperatorError::SubDispatch {
                operator: self.operator.to_string(),
                message: error.to_string(),
            },
        })
    }
}

fn not_dispatched(operator: &OperatorId, error: EngineError) -> OrchError {
    match error {
        EngineError::NotFound { what: "operator", .. } => {
            OrchError::OperatorNotFound(operator.to_string())
        }
        error => OrchError::DispatchFailed(error.to_string()),
    }
}

fn failed(error: &FailureView) -> OrchError {
    if [kind::OPERATOR_UNAVAILABLE, kind::REFUSED, kind::CANCELED].contains(&error.kind.as_str()) {
        return OrchError::DispatchFailed(error.message.clone());
    }
    let message = error.message.clone();
    OrchError::OperatorError(match error.retryable {
        true => OperatorError::Retryable(message),
        false => OperatorError::NonRetryable(message),
    })
}

#[async_trait]
impl Orchestrator for Orchestration {
    async fn dispatch(
        &self,
        operator: &OperatorId,
        input: OperatorInput,
    ) -> Result<OperatorOutput, OrchError> {
        self.one(operator, input).await
    }

    async fn dispatch_many(
        &self,
        tasks: Vec<(OperatorId, OperatorInput)>,
    ) -> Vec<Result<OperatorOutput, OrchError>> {
        let each = tasks.into_iter().map(|(operator, input)| {
            let this = self.clone();
            async move { this.one(&operator, input).await }
        });
        futures::stream::iter(each).buffered(AT_ONCE).collect().await
    }

    async fn signal(&self, target: &WorkflowId, signal: SignalPayload) -> Result<(), OrchError> {
        let run = run_of(target)?;
        let SignalPayload { signal_type, data } = signal;
        let sent = self.engine.signal(&self.caller, run, signal_type, data.into(), None).await;
        sent.map_err(|error| match error {
            EngineError::NotFound { .. } => OrchError::WorkflowNotFound(target.to_string()),
            error => OrchError::SignalFailed(error.to_string()),
        })
    }

    async fn query(&self, target: &WorkflowId, query: QueryPayload) -> Result<Value, OrchError> {
        let run = run_of(target)?;
        let QueryPayload { query_type, params } = query;
        let answer = self.engine.query(&self.caller, run, query_type, params.into()).await;
        answer.map(|answer| answer.to_value()).map_err(|error| match error {
            EngineError::NotFound { what: "run", .. } => {
                OrchError::WorkflowNotFound(target.to_string())
            }
            error => OrchError::Other(error.into()),
        })
    }
}

fn run_of(target: &WorkflowId) -> Result<RunId, OrchError> {
    target.as_str().parse().map_err(|_| OrchError::WorkflowNotFound(target.to_string()))
}

/// Acts as the owner, for programs that embed the host.
#[async_trait]
impl Orchestrator for Engine {
    async fn dispatch(
        &self,
        operator: &OperatorId,
        input: OperatorInput,
    ) -> Result<OperatorOutput, OrchError> {
        self.orchestrator(self.dispatches().owner()).one(operator, input).await
    }

    async fn dispatch_many(
        &self,
        tasks: Vec<(OperatorId, OperatorInput)>,
    ) -> Vec<Result<OperatorOutput, OrchError>> {
        self.orchestrator(self.dispatches().owner()).dispatch_many(tasks).await
    }

    async fn signal(&self, target: &WorkflowId, signal: SignalPayload) -> Result<(), OrchError> {
        Orchestrator::signal(&self.orchestrator(self.dispatches().owner()), target, signal).await
    }

    async fn query(&self, target: &WorkflowId, query: QueryPayload) -> Result<Value, OrchError> {
        Orchestrator::query(&self.orchestrator(self.dispatches().owner()), target, query).await
    }
}
