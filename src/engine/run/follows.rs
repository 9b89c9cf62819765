//! The follow-ups that the result of a step requests before the step ends.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    engine::run::values::task_input,
    operator::HUMAN,
    protocol::{Effect, Failure, Json, failure::kind},
};

/// The maximum number of follow-ups of one step.
pub(crate) const MOST: usize = 128;

/// The follow-ups of a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Follows {
    /// The operator of the step, and its input.
    pub(crate) origin: (String, Json),
    /// The input of that one as its caller wrote it, as JSON text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) asked: Option<String>,
    /// The follow-up in progress.
    pub(crate) current: Follow,
    pub(crate) queue: VecDeque<Follow>,
    pub(crate) results: Vec<Json>,
    pub(crate) approvals: Vec<Json>,
    /// The result of the original operator.
    pub(crate) own: Json,
    pub(crate) total: usize,
    /// The number of signals that the results so far have sent.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) signals: u32,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Follow {
    pub(crate) why: Why,
    pub(crate) operator: String,
    pub(crate) input: Json,
    /// The input of an operator as it was declared, as JSON text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) asked: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Why {
    /// The original operator again, with the answers of people.
    Resume,
    Delegate,
    Handoff,
    Approval,
}

impl Why {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Resume => "resume",
            Self::Delegate => "delegate",
            Self::Handoff => "handoff",
            Self::Approval => "approval",
        }
    }
}

/// Returns true if an effect requests a follow-up.
pub(crate) fn is_follow(effect: &Effect) -> bool {
    matches!(
        effect,
        Effect::Delegate { .. } | Effect::Handoff { .. } | Effect::ToolApprovalRequired { .. }
    )
}

pub(crate) fn follow_of(effect: &Effect) -> Option<Follow> {
    let mut asked = None;
    let (why, operator, input) = match effect {
        Effect::Delegate { operator, input } => {
            asked = serde_json::to_string(input).ok();
            (Why::Delegate, operator.to_string(), task_input(input))
        }
        Effect::Handoff { operator, state } => (Why::Handoff, operator.to_string(), state.into()),
        Effect::ToolApprovalRequired { tool_name, call_id, input } => {
            let asked = json!({
                "title": format!("Let it call {tool_name}?"),
                "tool_name": tool_name, "call_id": call_id, "input": input,
            });
            (Why::Approval, HUMAN.to_owned(), asked.into())
        }
        _ => return None,
    };
    Some(Follow { why, operator, input, asked })
}

impl Follows {
    pub(crate) fn begin(operator: &str, input: Json, asked: Option<String>) -> Self {
        let origin = (operator.to_owned(), input);
        let current = Follow {
            why: Why::Resume,
            operator: origin.0.clone(),
            input: origin.1.clone(),
            asked: None,
        };
        Self {
            origin,
            asked,
            current,
            queue: VecDeque::new(),
            results: Vec::new(),
            approvals: Vec::new(),
            own: Json::null(),
            total: 0,
            signals: 0,
        }
    }

    /// Handles the result of the current follow-up, and the follow-ups that it requests in turn.
    pub(crate) fn take(&mut self, output: Json, effects: &[Effect]) -> Result<(), Failure> {
        let more: Vec<Follow> = effects.iter().filter_map(follow_of).collect();
        self.total += more.len();
        if self.total > MOST {
            let message = format!("a step has at most {MOST} follow-ups");
            return Err(Failure::new(kind::LIMIT, message));
        }
        match self.current.why {
            Why::Resume => self.own = output,
            Why::Delegate => self.results.push(output),
            Why::Handoff => self.results = vec![output],
            Why::Approval => {
                let mut answer = self.current.input.to_value();
                answer["answer"] = output.to_value();
                answer["approved"] = answer["answer"]["approved"].clone();
                self.approvals.push(answer.into());
                let asks_more = self.queue.front().is_some_and(|next| next.why == Why::Approval);
                if !asks_more {
                    self.queue.push_front(self.resumed());
                }
            }
        }
        self.queue.extend(more);
        Ok(())
    }

    /// Returns another call of the original operator, with the answers of people.
    pub(crate) fn resumed(&self) -> Follow {
        let mut input = match self.origin.1.to_value() {
            object @ Value::Object(_) => object,
            other => json!({ "input": other }),
        };
        input["approvals"] = self.approvals.iter().map(Json::to_value).collect();
        Follow {
            why: Why::Resume,
            operator: self.origin.0.clone(),
            input: input.into(),
            asked: self.asked.clone(),
        }
    }

    /// Returns the value for the flow once no follow-up is left.
    pub(crate) fn value(&self) -> Json {
        match self.results.as_slice() {
            [] => self.own.clone(),
            [only] => only.clone(),
            several => Value::Array(several.iter().map(Json::to_value).collect()).into(),
        }
    }

    /// Returns true if the original operator is under way again.
    pub(crate) fn is_resumed(&self) -> bool {
        self.current.why == Why::Resume
    }

    /// Returns true if the current follow-up is an approval by a person.
    pub(crate) fn asks_a_person(&self) -> bool {
        self.current.why == Why::Approval
    }
}
