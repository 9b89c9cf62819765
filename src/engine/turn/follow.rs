//! Follow-ups: what a result leaves to others before its step ends.
//!
//! | the result declares | then |
//! |---|---|
//! | delegate | another operator executes; its result goes to the flow |
//! | handoff | another operator goes on from a little state; its result is the step's |
//! | tool approval | a person is asked, and the operator goes on with the answer |
//!
//! Each is a further attempt of the same step, first in first out; the journal keeps what is left.
//! One delegate's result is the step's value, several make a list in their order.

use std::{collections::VecDeque, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::engine::{
    Holder, Report, inbox::worker::bad_effect, run::resident::Run, shard::serve::Shard,
    shared::message::ReplyTo, turn::scoped::task_input,
};
use crate::{
    blueprint::CompiledAgent,
    fault,
    journal::{Decision, Fact, Followed, Outcome, Usage},
    middleware::TaskDone,
    protocol::{Effect, Failure, Json, failure::kind},
};

/// The most follow-ups of one step.
const MOST: usize = 128;

/// What a step has left to others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Follows {
    /// Whose step it is, and what that one was given.
    origin: (String, Json),
    /// What is under way.
    current: Follow,
    queue: VecDeque<Follow>,
    results: Vec<Json>,
    approvals: Vec<Json>,
    /// What the origin gave itself.
    own: Json,
    total: usize,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Follow {
    why: Why,
    operator: String,
    input: Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Why {
    /// The origin itself, from the beginning or with the answers of people.
    Resume,
    Delegate,
    Handoff,
    Approval,
}

impl Why {
    fn as_str(self) -> &'static str {
        match self {
            Self::Resume => "resume",
            Self::Delegate => "delegate",
            Self::Handoff => "handoff",
            Self::Approval => "approval",
        }
    }
}

/// Whether an effect leaves something to others.
pub(crate) fn is_follow(effect: &Effect) -> bool {
    matches!(
        effect,
        Effect::Delegate { .. } | Effect::Handoff { .. } | Effect::ToolApprovalRequired { .. }
    )
}

fn follow_of(effect: &Effect) -> Option<Follow> {
    let (why, operator, input) = match effect {
        Effect::Delegate { operator, input } => {
            (Why::Delegate, operator.to_string(), task_input(input))
        }
        Effect::Handoff { operator, state } => (Why::Handoff, operator.to_string(), state.into()),
        Effect::ToolApprovalRequired { tool_name, call_id, input } => {
            let asked = json!({
                "title": format!("Let it call {tool_name}?"),
                "tool_name": tool_name, "call_id": call_id, "input": input,
            });
            (Why::Approval, "human".to_owned(), asked.into())
        }
        _ => return None,
    };
    Some(Follow { why, operator, input })
}

impl Follows {
    fn begin(operator: &str, input: Json) -> Self {
        let origin = (operator.to_owned(), input);
        let current =
            Follow { why: Why::Resume, operator: origin.0.clone(), input: origin.1.clone() };
        Self {
            origin,
            current,
            queue: VecDeque::new(),
            results: Vec::new(),
            approvals: Vec::new(),
            own: Json::null(),
            total: 0,
        }
    }

    /// Takes the result of what was under way, and what it leaves to others in turn.
    fn take(&mut self, output: Json, effects: &[Effect]) -> Result<(), Failure> {
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

    /// The origin once more, with what people said.
    fn resumed(&self) -> Follow {
        let mut input = match self.origin.1.to_value() {
            object @ Value::Object(_) => object,
            other => json!({ "input": other }),
        };
        input["approvals"] = self.approvals.iter().map(Json::to_value).collect();
        Follow { why: Why::Resume, operator: self.origin.0.clone(), input: input.into() }
    }

    /// What the flow hears once nothing is left.
    fn value(&self) -> Json {
        match self.results.as_slice() {
            [] => self.own.clone(),
            [only] => only.clone(),
            several => Value::Array(several.iter().map(Json::to_value).collect()).into(),
        }
    }

    /// Whether a person is asked about a tool.
    pub(crate) fn asks_a_person(&self) -> bool {
        self.current.why == Why::Approval
    }
}

impl Shard {
    /// Whether a result is one of a step that leaves, or has left, something to others.
    pub(crate) fn is_followed(&self, run: &Run, number: u32, effects: &[Effect]) -> bool {
        effects.iter().any(is_follow) || run.task(number).is_some_and(|task| task.follows.is_some())
    }

    /// Takes such a result of an operator in the host; what cannot be done fails the step.
    pub(crate) fn done_followed(&mut self, run: &mut Run, number: u32, done: TaskDone) {
        let TaskDone { output, usage, effects } = done;
        if let Err(failure) = self.follow_result(run, number, output, &effects, usage.clone()) {
            let outcome = Outcome::Failed(self.located(run, number, failure));
            self.finish_step(run, number, outcome, None, usage);
        }
    }

    /// Takes such a result: the next follow-up is under way, or the step ends.
    pub(crate) fn follow_result(
        &mut self,
        run: &mut Run,
        number: u32,
        output: Json,
        effects: &[Effect],
        usage: Option<Usage>,
    ) -> Result<(), Failure> {
        let Some(task) = run.task(number) else { return Ok(()) };
        let mut follows = match &task.follows {
            Some(follows) => (**follows).clone(),
            None => Follows::begin(&task.operator, task.request.input.clone()),
        };
        let home = Arc::clone(task.home.as_ref().unwrap_or(&task.agent));
        let attempt = task.attempt;
        follows.take(output.clone(), effects)?;
        let Some(next) = follows.queue.pop_front() else {
            let value = home.output().accept_json(&follows.value()).map_err(|violations| {
                let first = violations.first();
                let what =
                    first.map_or_else(String::new, |v| format!(" at {}: {}", v.path, v.message));
                let message = format!("the result breaks its schema{what}");
                Failure::new(kind::INVALID_RESULT, message)
            })?;
            let kept = self.apply_effects(run, number, effects)?;
            self.finish_step(run, number, Outcome::Completed(value), kept, usage);
            return Ok(());
        };
        let effects = self.apply_effects(run, number, effects)?;
        fault::point("engine.follow");
        follows.current = next;
        self.leave(run, number, "the rest is left to another operator");
        let plan = Json::encode(&follows).expect("follow-ups are plain data");
        let (why, to) = (follows.current.why.as_str().to_owned(), follows.current.operator.clone());
        let followed =
            Followed { step: number, attempt, output, effects, usage, why, operator: to, plan };
        self.append(run, Fact::Decided(Decision::Follow(Box::new(followed))));
        match self.switch(run, number, follows) {
            Ok(()) => self.next_attempt(run, number),
            Err(failure) => {
                let failure = self.located(run, number, failure);
                self.finish_step(run, number, Outcome::Failed(failure), None, None);
            }
        }
        Ok(())
    }

    /// Takes a result of a step that leaves, or has left, something to others.
    pub(crate) fn report_followed(
        &mut self,
        run: &mut Run,
        holder: &Holder,
        report: &Report,
        (output, effects): (&Json, &[Effect]),
        reply: ReplyTo<bool>,
    ) {
        let (step, output) = (holder.step, output.clone());
        let usage = report.usage.clone();
        match self.follow_result(run, step, output, effects, usage) {
            Ok(()) => {
                self.publish(run, holder, report);
                self.after(run, reply, Ok(true));
            }
            Err(failure) => self.refuse_result(run, holder, report, bad_effect(failure), reply),
        }
    }

    /// Takes up again what an open step has left to others.
    pub(crate) fn take_up_follows(&mut self, run: &mut Run, number: u32) -> Result<(), Failure> {
        let plan = run.chain.step(number).and_then(|step| step.follows.clone());
        let Some(plan) = plan else { return Ok(()) };
        let follows = plan.decode().map_err(|error| {
            Failure::new(kind::REFUSED, format!("read the step's follow-ups: {error}"))
        })?;
        self.switch(run, number, follows)
    }

    /// Lets the open task be the one that is under way.
    fn switch(&self, run: &mut Run, number: u32, follows: Follows) -> Result<(), Failure> {
        let Follow { why, operator, input } = follows.current.clone();
        let Some(backend) = self.shared.registry.get(&operator) else {
            let message = format!("there is no operator {operator:?}");
            return Err(Failure::new(kind::OPERATOR_UNAVAILABLE, message));
        };
        let Some(task) = run.task_mut(number) else { return Ok(()) };
        let home = Arc::clone(task.home.get_or_insert_with(|| Arc::clone(&task.agent)));
        task.agent = match why {
            Why::Resume => Arc::clone(&home),
            Why::Delegate | Why::Handoff => Arc::new(home.stand_in(&operator)),
            Why::Approval => Arc::new(CompiledAgent::approval(None)?),
        };
        let to_person = backend.kind() == "human";
        task.timeout_ms = if to_person { None } else { home.agent().timeout_ms };
        task.park_ms = if to_person { None } else { Some(self.shared.settings.park_ms) };
        task.operator = Arc::from(operator.as_str());
        task.residence = backend.residence();
        task.redelivers = backend.redelivers();
        task.request.input = input;
        task.follows = Some(Box::new(follows));
        Ok(())
    }
}
