//! Tool calls: from the model's text to the executed call, and back into the conversation.

use serde_json::{Value, json};

use super::{
    Approve, Begin, Call, Called, ConversationItem, Face, Judge, LoopAction, LoopStop, Moment,
    Owner, ResponseFlow, RuleVerdict, Stage, Step,
};
use crate::{
    journal::Outcome,
    protocol::{BudgetEvent, ExitReason, Failure, Json, ModelEnd, failure::kind},
};

/// The maximum number of tools listed in a failure message.
const NAMED: usize = 20;

impl ResponseFlow {
    /// Handles the calls that the model requests.
    pub(super) fn call(&mut self, items: &[Value], judge: &dyn Judge) -> Step {
        let name = |item: &Value| item["name"].as_str().unwrap_or_default().to_owned();
        let is_callers =
            |item: &Value| self.face(&name(item)).is_some_and(|face| face.owner == Owner::Caller);
        if items.iter().any(is_callers) {
            return Ok(Some(self.answer(ModelEnd::HandedBack)));
        }
        let count = u32::try_from(items.len()).unwrap_or(u32::MAX);
        if let Some(most) = self.settings.limits.tool_calls
            && self.sums.calls.saturating_add(count) > most
        {
            if self.settings.asked {
                return Ok(Some(self.answer(ModelEnd::MaxToolCalls)));
            }
            self.tell_limit_reached(self.sums.calls);
            let message = format!("more than {most} calls of tools");
            let failure = Failure::new(kind::LIMIT, message);
            return Err(LoopStop::new(ExitReason::BudgetExhausted, failure));
        }
        self.hold_costs()?;
        self.hold_repeats(items)?;
        let begins = items.iter().map(|item| self.planned(item, judge));
        let begins: Vec<Begin> = begins.collect::<Result<_, _>>()?;
        self.sums.calls += count;
        self.warn_of_calls();
        let calls = (self.places.len()..).zip(&begins).filter_map(|(place, begin)| match begin {
            Begin::Approve(call) => Some(Called { call: call.clone(), place, asks: true }),
            Begin::Call(call) | Begin::Refuse(call, _) => {
                Some(Called { call: call.clone(), place, asks: false })
            }
            Begin::List { .. }
            | Begin::Ask { .. }
            | Begin::Compact { .. }
            | Begin::Flush { .. }
            | Begin::Recall
            | Begin::Keep => None,
        });
        self.stage = Stage::Calling { calls: calls.collect() };
        Ok(Some(LoopAction::Begin(begins)))
    }

    pub(super) fn face(&self, name: &str) -> Option<&Face> {
        self.tools.iter().find(|face| face.tool.name == name)
    }

    /// Stops a model that requests the same batch of calls again and again.
    fn hold_repeats(&mut self, items: &[Value]) -> Result<(), Box<LoopStop>> {
        let said = |item: &Value| {
            let text = |key: &str| item[key].as_str().unwrap_or_default().to_owned();
            let arguments = serde_json::from_str::<Value>(&text("arguments"));
            (text("name"), arguments.map_or_else(|_| text("arguments"), |it| it.to_string()))
        };
        let batch: Vec<_> = items.iter().map(said).collect();
        let times = match &self.last_batch {
            Some((last, times)) if *last == batch => times + 1,
            _ => 1,
        };
        let name = batch.first().map(|(name, _)| name.clone()).unwrap_or_default();
        self.last_batch = Some((batch, times));
        let max = self.settings.limits.repeats;
        if times < max {
            return Ok(());
        }
        self.tell_budget(BudgetEvent::LoopDetected {
            operator: self.operator(),
            operator_name: name.clone(),
            consecutive_count: times,
            max,
        });
        let message = format!("the model asked for the same call of {name} {times} times in a row");
        Err(LoopStop::new(ExitReason::custom("stuck_detected"), Failure::new(kind::LIMIT, message)))
    }

    /// Returns the step that a requested call starts.
    fn planned(&self, item: &Value, judge: &dyn Judge) -> Result<Begin, Box<LoopStop>> {
        let text = |key: &str| item[key].as_str().unwrap_or_default();
        let (name, written) = (text("name"), text("arguments"));
        let mut call = Call {
            call_id: text("call_id").to_owned(),
            name: name.to_owned(),
            arguments: Json::from(&item["arguments"]),
            parallel_safe: true,
        };
        let refuse =
            |call: Call, kind: &str, why: String| Ok(Begin::Refuse(call, Failure::new(kind, why)));
        let Some(face) = self.face(name) else {
            return refuse(call, kind::NOT_FOUND, self.unknown(name));
        };
        let mut arguments = match serde_json::from_str::<Value>(written) {
            Ok(arguments @ Value::Object(_)) => arguments,
            Ok(_) => {
                let why = format!("the arguments of {name} are not an object");
                return refuse(call, kind::INVALID_INPUT, why);
            }
            Err(error) => {
                let why = format!("the arguments of {name} are not JSON: {error}");
                return refuse(call, kind::INVALID_INPUT, why);
            }
        };
        if face.approve == Approve::Deny {
            return refuse(call, kind::REFUSED, format!("the tool {name} is not allowed"));
        }
        let verdict =
            self.rule(judge, &Moment::BeforeTool { tool: name, arguments: &arguments })?;
        if let Some(why) = verdict.deny {
            return refuse(call, kind::REFUSED, why);
        }
        if let (Value::Object(arguments), Some(Value::Object(set))) = (&mut arguments, verdict.set)
        {
            arguments.extend(set);
        }
        match judge.arguments(&face.tool, arguments) {
            Ok(arguments) => {
                call.arguments = arguments.into();
                call.parallel_safe = face.parallel_safe;
                let asks = verdict.ask || face.approve == Approve::Ask;
                Ok(if asks { Begin::Approve(call) } else { Begin::Call(call) })
            }
            Err(why) => {
                let why = format!("the arguments of {name} break its schema{why}");
                refuse(call, kind::INVALID_INPUT, why)
            }
        }
    }

    fn unknown(&self, name: &str) -> String {
        let names: Vec<&str> =
            self.tools.iter().take(NAMED).map(|face| face.tool.name.as_str()).collect();
        let shown: String = name.chars().take(100).collect();
        match names.is_empty() {
            true => format!("there is no tool {shown:?}; there are none"),
            false => format!("there is no tool {shown:?}; there are: {}", names.join(", ")),
        }
    }

    /// Advances a batch: approved calls start, and the batch ends when all calls have ended.
    pub(super) fn calling(&mut self, mut calls: Vec<Called>, judge: &dyn Judge) -> Step {
        let mut begins = Vec::new();
        for called in calls.iter_mut().filter(|it| it.asks) {
            let Some(Some(answer)) = self.places.get(called.place) else { continue };
            called.asks = false;
            match says_yes(answer) {
                Ok(()) => {
                    called.place = self.places.len() + begins.len();
                    begins.push(Begin::Call(called.call.clone()));
                }
                Err(failure) => self.places[called.place] = Some(Outcome::Failed(failure)),
            }
        }
        let waits = calls.iter().any(|it| it.asks || !self.has_ended(it.place));
        self.stage = Stage::Calling { calls: calls.clone() };
        match (begins.is_empty(), waits) {
            (false, _) => Ok(Some(LoopAction::Begin(begins))),
            (true, true) => Ok(Some(LoopAction::Wait)),
            (true, false) => self.called(&calls, judge),
        }
    }

    /// Handles the end of a batch.
    fn called(&mut self, calls: &[Called], judge: &dyn Judge) -> Step {
        let mut says = Vec::new();
        for Called { call, place, .. } in calls {
            let outcome = self.places[*place].replace(Outcome::Completed(Json::null()));
            let outcome = outcome.unwrap_or_else(|| Outcome::Canceled("it did not end".into()));
            let outcome = match outcome {
                Outcome::Canceled(why) => Outcome::Failed(Failure::new(kind::CANCELED, why)),
                ended => ended,
            };
            let (output, error) = match &outcome {
                Outcome::Completed(output) => (Some(output), None),
                Outcome::Failed(failure) => (None, Some(failure)),
                Outcome::Canceled(_) => (None, None),
            };
            self.failures = if error.is_some() { self.failures + 1 } else { 0 };
            let moment = Moment::AfterTool { tool: &call.name, output, error };
            let verdict = self.rule(judge, &moment)?;
            let text = match (verdict.set, output, error) {
                (Some(set), _, _) => said(&set.into()),
                (None, Some(output), _) => said(output),
                (None, None, Some(failure)) => failed(failure),
                (None, None, None) => String::new(),
            };
            let text = clipped(text, self.settings.limits.output);
            self.own.push(ConversationItem::new(output_item(call, &text), false));
            says.extend(verdict.say);
            if self.failures >= self.settings.limits.failures {
                let message = format!("{} calls of tools failed in a row", self.failures);
                let failure = Failure::new(kind::LIMIT, message);
                return Err(LoopStop::new(ExitReason::CircuitBreaker, failure));
            }
        }
        self.say_all(&says);
        self.stage = Stage::Ready;
        Ok(None)
    }

    /// Evaluates the rules at a moment. A halt becomes a stop.
    pub(super) fn rule(
        &self,
        judge: &dyn Judge,
        moment: &Moment<'_>,
    ) -> Result<RuleVerdict, Box<LoopStop>> {
        let verdict = judge.rule(moment, &self.sums).map_err(LoopStop::of)?;
        match verdict.halt {
            None => Ok(verdict),
            Some(why) => {
                let failure = Failure::new(kind::REFUSED, why.clone());
                Err(LoopStop::new(ExitReason::interceptor_halt(why), failure))
            }
        }
    }
}

/// Checks that a person approved a call. Otherwise returns the failure of the call.
fn says_yes(answer: &Outcome) -> Result<(), Failure> {
    let answer = match answer {
        Outcome::Completed(answer) => answer.to_value(),
        Outcome::Failed(failure) => return Err(failure.clone()),
        Outcome::Canceled(why) => return Err(Failure::new(kind::CANCELED, why.clone())),
    };
    if answer == Value::Bool(true) || answer["approved"] == Value::Bool(true) {
        return Ok(());
    }
    let note = answer["note"].as_str().filter(|note| !note.is_empty());
    let message = match note {
        Some(note) => format!("a person does not allow it: {note}"),
        None => "a person does not allow it".to_owned(),
    };
    Err(Failure::new(kind::HUMAN_REJECTED, message))
}

/// Returns the output of a tool as text for the model.
fn said(output: &Json) -> String {
    match output.to_value() {
        Value::String(text) => text,
        _ => output.as_str().to_owned(),
    }
}

/// Returns a failure as text for the model.
fn failed(failure: &Failure) -> String {
    json!({ "error": { "kind": failure.kind, "message": failure.message } }).to_string()
}

fn clipped(text: String, most: usize) -> String {
    if text.len() <= most {
        return text;
    }
    let mut end = most;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}\n[cut: {end} of {} bytes]", &text[..end], text.len())
}

fn output_item(call: &Call, text: &str) -> Value {
    json!({
        "type": "function_call_output",
        "id": format!("fco_{}", call.call_id),
        "call_id": call.call_id,
        "output": text,
        "status": "completed",
    })
}
