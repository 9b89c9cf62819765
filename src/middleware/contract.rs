//! The contract of a plain operator, between the values that tasks have and the shapes of the
//! protocol.

use serde_json::{Value, json};

use super::{Short, TaskDone};
use crate::{
    journal::Usage,
    protocol::{
        Content, DurationMs, Effect, ExitReason, Failure, Json, OperatorMetadata, OperatorOutput,
        SubDispatchRecord, failure::kind,
    },
};

/// The effect by which the history keeps an operator's answer as it gave it. It is the host's own:
/// it does nothing, and callers get it as the answer.
pub const ANSWER: &str = "moonswarm.answer";

/// The effect by which an operator or a worker declares that its task does not apply.
pub const SKIP: &str = "skip";

/// Returns true if a result declares that its task does not apply: its step is done without a value.
pub fn skips(effects: &[Effect]) -> bool {
    let skip = |effect: &Effect| matches!(effect, Effect::Custom { effect_type, .. } if effect_type == SKIP);
    effects.iter().any(skip)
}

/// A step's value of a message: JSON that was written as text is taken for what it says.
pub fn value_of(message: &Content) -> Json {
    match message {
        Content::Text(text) => {
            Json::parse(text.as_str()).unwrap_or_else(|_| Json::from(Value::String(text.clone())))
        }
        Content::Blocks(_) => {
            Json::encode(message).expect("blocks of content are plain data with text as keys")
        }
    }
}

/// A message of a task's input or value: text and blocks as they are, all else as JSON text.
pub fn message_of(value: &Json) -> Content {
    value.decode().unwrap_or_else(|_| Content::text(value.as_str()))
}

/// Returns the usage of an operator. Zero means that it does not track it, so zeros alone are none.
/// A cost below zero counts as not reported.
pub fn usage_of(metadata: &OperatorMetadata) -> Option<Usage> {
    let OperatorMetadata { tokens_in, tokens_out, cost, .. } = metadata;
    let is_cost = !cost.is_sign_negative();
    let said = *tokens_in > 0 || *tokens_out > 0 || (is_cost && !cost.is_zero());
    said.then(|| Usage {
        input_tokens: Some(*tokens_in),
        output_tokens: Some(*tokens_out),
        cost: is_cost.then(|| cost.normalize().to_string()),
        ..Usage::default()
    })
}

/// Returns the effect by which the history keeps an answer.
pub fn kept_answer(output: &OperatorOutput) -> Effect {
    Effect::Custom {
        effect_type: ANSWER.to_owned(),
        data: json!({
            "message": output.message,
            "exit_reason": output.exit_reason,
            "turns_used": output.metadata.turns_used,
            "sub_dispatches": output.metadata.sub_dispatches,
            "duration": output.metadata.duration,
        }),
    }
}

/// An operator's answer as what came of its task; with `kept` the history keeps the answer too.
///
/// # Errors
/// The parts of the contract that the output does not meet.
pub fn taken(output: OperatorOutput, kept: bool) -> Result<TaskDone, Box<Short>> {
    let answer = kept.then(|| kept_answer(&output));
    let (usage, mut effects) = (usage_of(&output.metadata), output.effects);
    // Before what the operator declared: nothing may follow a handoff.
    effects.splice(0..0, answer);
    match fell_short(&output.exit_reason) {
        None => Ok(TaskDone { output: value_of(&output.message), usage, effects }),
        Some(mut failure) => {
            let data = json!({ "exit_reason": output.exit_reason, "message": output.message });
            failure.data = Some(data.into());
            Err(Box::new(Short { failure, usage, effects }))
        }
    }
}

/// Returns the outcome of a task as an operator's output: its own if the history has it.
pub fn answer_of(
    output: Option<&Json>,
    usage: Option<Usage>,
    effects: Vec<Effect>,
) -> Option<OperatorOutput> {
    let (mut own, mut applied, mut left) = (None, Vec::new(), Vec::new());
    for effect in effects {
        match effect {
            Effect::Custom { effect_type, data } if effect_type == ANSWER => own = Some(data),
            // The layer does not interpret it: it is for the caller.
            effect @ Effect::Custom { .. } => left.push(effect),
            effect => applied.push(effect),
        }
    }
    let mut answer = match &own {
        Some(own) => {
            let message = serde_json::from_value(own["message"].clone()).ok()?;
            let exit = serde_json::from_value::<ExitReason>(own["exit_reason"].clone()).ok()?;
            OperatorOutput::new(message, exit)
        }
        None => OperatorOutput::new(message_of(output?), ExitReason::Complete),
    };
    let usage = usage.unwrap_or_default();
    let metadata = &mut answer.metadata;
    metadata.tokens_in = usage.input_tokens.unwrap_or_default();
    metadata.tokens_out = usage.output_tokens.unwrap_or_default();
    metadata.cost = usage.cost.and_then(|cost| cost.parse().ok()).unwrap_or_default();
    if let Some(own) = own {
        let read = |key: &str| own.get(key).cloned().unwrap_or_default();
        metadata.turns_used = serde_json::from_value(read("turns_used")).unwrap_or_default();
        metadata.sub_dispatches =
            serde_json::from_value::<Vec<SubDispatchRecord>>(read("sub_dispatches"))
                .unwrap_or_default();
        metadata.duration =
            serde_json::from_value(read("duration")).unwrap_or(DurationMs::from_millis(0));
    }
    metadata.applied_effects = applied;
    answer.effects = left;
    Some(answer)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_below_zero_is_not_reported() {
        let mut output = OperatorOutput::new(Content::text("1"), ExitReason::Complete);
        output.metadata.cost = "-5".parse().unwrap();
        assert_eq!(usage_of(&output.metadata), None);
        output.metadata.tokens_in = 1;
        let usage = usage_of(&output.metadata).unwrap();
        assert_eq!((usage.input_tokens, usage.cost), (Some(1), None));
    }
}
