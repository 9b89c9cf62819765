//! The next action of a chain.

use std::collections::BTreeMap;

use serde::Deserialize as _;
use serde_json::{Value, json};

use super::arguments::fitting;
use crate::{
    flow::response::{
        Approve, Begin, Face, Judge, LoopAction, LoopLimits, LoopSettings, Moment, Owner,
        ResponseFlow, RuleVerdict, Sums, user_message,
    },
    journal::{Outcome, Usage},
    protocol::{
        ChainStep, CompactionPolicy, Failure, FunctionTool, Json, ModelRequest, NextAction,
        StepDescriptor, StepKind, StepState, failure::kind,
    },
};

/// Determines the next action of a chain. Pure: the same chain always has the same next action.
pub trait Transition: Send + Sync {
    /// Returns the next action of a scope. `request` is the request of the response. `within` is
    /// the descriptor of the step of a nested loop, absent for the outermost one.
    fn next_action(
        &self,
        request: &Value,
        within: Option<&StepDescriptor>,
        chain: &[ChainStep],
    ) -> NextAction;
}

/// The tool loop of a model, the same as in agents.
///
/// The outermost request is a [`ModelRequest`]. A tool that is an agent has its own request, to
/// which the arguments are added as a user message.
#[derive(Debug, Clone, Default)]
pub struct ToolLoop {
    /// The tools that are agents, with their requests, by name.
    pub agents: BTreeMap<String, ModelRequest>,
    /// The tools whose calls are returned to the caller.
    pub callers: Vec<String>,
    /// The limits of each loop. Its cost is not limited: a chain does not know what its steps cost.
    pub limits: LoopLimits,
}

impl Transition for ToolLoop {
    fn next_action(
        &self,
        request: &Value,
        within: Option<&StepDescriptor>,
        chain: &[ChainStep],
    ) -> NextAction {
        match self.follow(request, within, chain) {
            Ok(next) => next,
            Err(failure) => NextAction::Fail(payload(&failure)),
        }
    }
}

impl ToolLoop {
    fn follow(
        &self,
        request: &Value,
        within: Option<&StepDescriptor>,
        chain: &[ChainStep],
    ) -> Result<NextAction, Failure> {
        let request = match within {
            None => ModelRequest::deserialize(request).map_err(|error| {
                Failure::new(kind::INVALID_INPUT, format!("the request cannot be read: {error}"))
            })?,
            Some(step) => self.of_agent(step)?,
        };
        let mut flow = ResponseFlow::new(self.settings(&request, within), request.items.clone());
        for (place, step) in chain.iter().enumerate() {
            if !flow.reaches(place, &Plain) {
                let message = format!("step {} is none of this loop's", step.id);
                return Err(Failure::new(kind::REFUSED, message));
            }
            if let Some(outcome) = outcome(step) {
                flow.end(place, outcome, &Usage::default());
            }
        }
        // The rest of a batch that a crash left unrecorded comes before anything else.
        if flow.begun() == chain.len() {
            match flow.turn(&Plain) {
                LoopAction::Begin(_) => {}
                LoopAction::Done { value, .. } => {
                    return Ok(NextAction::Complete(value.to_value()));
                }
                LoopAction::Stop(stop) => return Err(stop.failure),
                LoopAction::Wait => {
                    return Err(Failure::new(kind::REFUSED, "a step of the chain has not ended"));
                }
            }
        }
        let rest = (chain.len()..).map_while(|place| flow.part(place));
        Ok(NextAction::AppendSteps(rest.map(|it| step(it, &flow, &request)).collect()))
    }

    /// Returns the request of an agent that is called as a tool.
    fn of_agent(&self, step: &StepDescriptor) -> Result<ModelRequest, Failure> {
        let name = step.tool_name().unwrap_or_default();
        let mut request =
            self.agents.get(name).cloned().ok_or_else(|| {
                Failure::new(kind::NOT_FOUND, format!("there is no agent {name:?}"))
            })?;
        let said = match step.arguments() {
            None => "{}".to_owned(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        request.items.push(user_message(&said));
        Ok(request)
    }

    fn settings(&self, request: &ModelRequest, within: Option<&StepDescriptor>) -> LoopSettings {
        let face = |tool: &FunctionTool| Face {
            owner: match self.callers.contains(&tool.name) {
                true => Owner::Caller,
                false => Owner::Host,
            },
            tool: tool.clone(),
            approve: Approve::Allow,
            parallel_safe: true,
            policy: CompactionPolicy::Normal,
        };
        LoopSettings {
            operator: request.model.clone().unwrap_or_default(),
            tools: request.tools.iter().map(face).collect(),
            asked: within.is_none(),
            limits: self.limits.clone(),
            ..LoopSettings::default()
        }
    }
}

/// Returns the step for the record. An invalid call is recorded too, with the model's text, and
/// fails when it is executed.
fn step(begin: &Begin, flow: &ResponseFlow, request: &ModelRequest) -> StepDescriptor {
    match begin {
        Begin::Call(call) | Begin::Refuse(call, _) | Begin::Approve(call) => {
            let asked = json!({ "name": call.name, "arguments": call.arguments });
            StepDescriptor::new(StepKind::ToolCall, asked).with_call_id(&call.call_id)
        }
        Begin::Ask { .. }
        | Begin::Compact { .. }
        | Begin::List { .. }
        | Begin::Flush { .. }
        | Begin::Recall
        | Begin::Keep => {
            let asked = ModelRequest { items: flow.conversation(), ..request.clone() };
            let asked = serde_json::to_value(&asked).expect("a request is plain data");
            StepDescriptor::new(StepKind::ModelCall, asked)
        }
    }
}

/// Returns the outcome of a step, if it has ended.
fn outcome(step: &ChainStep) -> Option<Outcome> {
    let why = || {
        let error = step.error.clone().unwrap_or_default();
        let text = |key: &str| error[key].as_str().map(str::to_owned);
        let message = text("message").unwrap_or_else(|| error.to_string());
        let kind = text("kind").or_else(|| text("type")).unwrap_or_else(|| kind::WORKER.into());
        Failure::new(kind, message)
    };
    match step.state {
        StepState::Completed => Some(Outcome::Completed(
            step.response_payload.as_ref().map_or_else(Json::null, Json::from),
        )),
        StepState::Failed => Some(Outcome::Failed(why())),
        StepState::Canceled => Some(Outcome::Canceled(why().message)),
        StepState::Pending | StepState::Processing => None,
    }
}

fn payload(failure: &Failure) -> Value {
    json!({ "type": failure.kind, "message": failure.message })
}

/// A judge without rules. Validates arguments against their tool's schema. The answer is its text.
struct Plain;

impl Judge for Plain {
    fn faces(&self, _: &str, _: Vec<FunctionTool>) -> Vec<Face> {
        Vec::new()
    }

    fn arguments(&self, tool: &FunctionTool, arguments: Value) -> Result<Value, String> {
        fitting(&tool.parameters, arguments)
    }

    fn output(&self, text: &str) -> Result<Json, String> {
        Ok(Value::from(text).into())
    }

    fn rule(&self, _: &Moment<'_>, _: &Sums) -> Result<RuleVerdict, Failure> {
        Ok(RuleVerdict::default())
    }
}
