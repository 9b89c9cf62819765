//! The response of a run, derived from the run's events.
//!
//! | event of the run | effect on the response |
//! |---|---|
//! | the run starts | created, queued (in the background), in progress |
//! | a delta of the agent's model | an item starts, deltas |
//! | the model's answer is complete | its items, as far as they were not sent |
//! | the agent's loop ends | the items that are still missing, in order |
//! | the run ends | the flow's return value as a message, then exactly one terminal event |
//!
//! Only the model of the requested agent is streamed. The output of agents below it is in the steps
//! of the run. Deltas can be lost, and only anticipate the reply, which is authoritative: a stream
//! that missed some deltas sends the same events, later.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{
    compaction,
    emit::{Event, Lane, Open, Sort, Tape},
    open_responses::{Conversation, Create},
    response::{self, ResponseFields, Status, Used},
};
use crate::protocol::{Json, ModelAnswer, ModelAsk, ModelDelta, ModelEnd, ModelReply};

/// The trigger kind of a run that was started for a response. Reserved.
pub const TRIGGER: &str = "response";

/// The maximum number of deltas that wait for the item before theirs. Beyond it, the rest waits for
/// the reply.
const MOST_WAITING: usize = 10_000;

/// The trigger of a response's run: all that the response needs of its request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trigger {
    /// [`TRIGGER`].
    kind: String,
    /// The version of this format.
    version: u32,
    /// The requested model.
    pub model: String,
    /// The agent that answers. If absent, the blueprint's flow does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The settings that the response repeats.
    pub settings: Map<String, Value>,
    /// The full conversation.
    pub conversation: Vec<Value>,
    /// The number of items, at the end, that the request itself has.
    pub own: usize,
    /// The request to the agent's model, if its operator is one. Without items, the conversation is
    /// used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ask: Option<ModelAsk>,
}

impl Trigger {
    /// Returns true if the response continues this stored conversation.
    pub fn continues(&self, conversation: &str) -> bool {
        let continued = self.settings.get("conversation").and_then(|it| it.get("id"));
        continued.and_then(Value::as_str) == Some(conversation)
    }

    /// Creates the trigger from a request and the conversation that it continues.
    pub fn new(create: Create, conversation: Conversation, agent: Option<String>) -> Self {
        let Conversation { items, own } = conversation;
        let ask = agent.is_some().then(|| ModelAsk {
            items: compaction::unfolded(&items).unwrap_or_default(),
            ..create.ask
        });
        Self {
            kind: TRIGGER.to_owned(),
            version: 1,
            model: create.model,
            agent,
            settings: create.settings,
            conversation: items,
            own,
            ask,
        }
    }

    /// Parses the trigger of a run. Returns `None` if it is not a response's.
    pub fn read(trigger: &Value) -> Option<Self> {
        if trigger["kind"] != TRIGGER || trigger["version"] != 1 {
            return None;
        }
        serde_json::from_value(trigger.clone()).ok()
    }

    /// Returns true if the run is kept after its end.
    pub fn stays(&self) -> bool {
        self.settings.get("store").and_then(Value::as_bool) != Some(false)
    }
}

/// An event of a run.
#[derive(Debug, Clone, Copy)]
pub struct Fact<'a> {
    /// The event's type.
    pub kind: &'a str,
    /// The time, as RFC 3339.
    pub at: &'a str,
    /// The event's data.
    pub data: &'a Json,
}

/// A model call in progress.
#[derive(Debug)]
struct Call {
    step: u32,
    /// The answering step: the call itself, or a member if the model is a composite.
    source: Option<u32>,
    members: Vec<u32>,
    attempt: u32,
    /// The number that the next delta must have.
    next: u64,
    /// True if a delta was lost. The rest of the attempt then waits for the reply.
    gap: bool,
    /// The item in progress, and its index in the reply.
    open: Option<(usize, Open)>,
    /// The number of completed items.
    ended: usize,
    /// The deltas of items after the one in progress.
    waiting: Vec<ModelDelta>,
}

/// The response of one run.
#[derive(Debug)]
pub struct Stream {
    id: String,
    trigger: Trigger,
    created_s: i64,
    completed_s: Option<i64>,
    status: Status,
    output: Vec<Value>,
    used: Used,
    tape: Tape,
    /// The step of the requested agent.
    top: Option<u32>,
    call: Option<Call>,
    /// Tool calls that the loop executes, in order: the id, and the output item once it is known.
    tools: VecDeque<(String, Option<Value>)>,
    /// The ids of calls, by step.
    call_ids: BTreeMap<u32, String>,
    /// The reason why the agent's loop ended.
    end: Option<ModelEnd>,
}

#[derive(Deserialize)]
struct Piece {
    step: u32,
    attempt: u32,
    n: u64,
    /// For several deltas joined into one: the number of the first.
    first: Option<u64>,
    delta: ModelDelta,
}

impl Stream {
    /// Creates the response of a run that starts with `fact`. Returns `None` if the run is not a
    /// response's.
    pub fn begin(run: &str, fact: &Fact<'_>) -> Option<Self> {
        let started = fact.data.to_value();
        let trigger = Trigger::read(&started["trigger"])?;
        let mut stream = Self {
            id: response::shown_id("resp_", run),
            trigger,
            created_s: seconds(fact.at),
            completed_s: None,
            status: Status::Queued,
            output: Vec::new(),
            used: Used::default(),
            tape: Tape::default(),
            top: None,
            call: None,
            tools: VecDeque::new(),
            call_ids: BTreeMap::new(),
            end: None,
        };
        if stream.trigger.settings.get("background") == Some(&Value::Bool(true)) {
            stream.tell("response.created");
            stream.tell("response.queued");
            stream.status = Status::InProgress;
        } else {
            stream.status = Status::InProgress;
            stream.tell("response.created");
        }
        stream.tell("response.in_progress");
        Some(stream)
    }

    /// Returns the trigger of the run.
    pub fn trigger(&self) -> &Trigger {
        &self.trigger
    }

    /// Returns true if the response has ended.
    pub fn is_over(&self) -> bool {
        self.status.terminal().is_some()
    }

    /// The status: `queued`, `in_progress`, `completed`, `incomplete`, `failed`, `cancelled`.
    pub fn status(&self) -> &'static str {
        self.status.word()
    }

    /// Returns the conversation for the next request: the input, and the output without calls that
    /// nobody answers.
    pub fn conversation(&self) -> Vec<Value> {
        let tools = self.trigger.settings.get("tools").unwrap_or(&Value::Null);
        let output = response::without_lost(&self.output, &self.status, tools);
        self.trigger.conversation.iter().chain(output).cloned().collect()
    }

    /// Returns the items so far.
    pub fn output(&self) -> &[Value] {
        &self.output
    }

    /// Returns the current response object.
    pub fn response(&self) -> Value {
        response::object(&ResponseFields {
            id: &self.id,
            model: &self.trigger.model,
            created_s: self.created_s,
            completed_s: self.completed_s,
            status: &self.status,
            output: &self.output,
            usage: self.used.shown(),
            settings: &self.trigger.settings,
        })
    }

    /// Returns the events since the last call, and removes them.
    pub fn take(&mut self) -> Vec<Event> {
        self.tape.take()
    }

    fn tell(&mut self, kind: &'static str) {
        let response = self.response();
        self.tape.push(kind, json!({ "response": response }));
    }

    /// Handles an event of the run.
    pub fn hear(&mut self, fact: &Fact<'_>) {
        if self.is_over() {
            return;
        }
        match fact.kind {
            "model.delta" => {
                if let Ok(piece) = fact.data.decode::<Piece>() {
                    self.piece(piece);
                }
            }
            "step.scheduled" => self.scheduled(&fact.data.to_value()),
            "attempt.failed" | "step.followed" => self.used.hear(&fact.data.to_value()),
            "step.completed" | "step.failed" | "step.canceled" => {
                let data = fact.data.to_value();
                self.used.hear(&data);
                if data["kind"].is_string() {
                    // The step was scheduled and ended in one transition.
                    self.scheduled(&data);
                }
                self.ended(&data);
            }
            "run.ended" => {
                self.completed_s = Some(seconds(fact.at));
                self.over(&fact.data.to_value());
            }
            _ => {}
        }
    }

    /// Handles the start of a step.
    fn scheduled(&mut self, data: &Value) {
        let Some(step) = number(&data["step"]) else { return };
        if self.trigger.ask.is_none() {
            return;
        }
        if self.top.is_none() && data["scope"] == "" && data["kind"] == "task" {
            self.top = Some(step);
            return;
        }
        let parent = number(&data["parent"]);
        if let Some(call) = &mut self.call
            && parent.is_some_and(|parent| parent == call.step || call.members.contains(&parent))
        {
            call.members.push(step);
            return;
        }
        if self.top.is_none() || parent != self.top {
            return;
        }
        match data["kind"].as_str() {
            Some("model_call") if data["compact"] != true => {
                self.call = Some(Call {
                    step,
                    source: None,
                    members: Vec::new(),
                    attempt: 0,
                    next: 0,
                    gap: false,
                    open: None,
                    ended: 0,
                    waiting: Vec::new(),
                });
            }
            Some("tool_call") => {
                if let Some(id) = data["call_id"].as_str() {
                    self.call_ids.insert(step, id.to_owned());
                }
            }
            _ => {}
        }
    }

    /// Handles the end of a step.
    fn ended(&mut self, data: &Value) {
        let Some(step) = number(&data["step"]) else { return };
        if self.top == Some(step) {
            if let Ok(answer) = serde_json::from_value::<ModelAnswer>(data["output"].clone()) {
                self.answered(answer);
            }
            return;
        }
        if self.call.as_ref().is_some_and(|call| call.step == step) {
            let call = self.call.take();
            if let (Some(call), Ok(reply)) =
                (call, serde_json::from_value::<ModelReply>(data["output"].clone()))
            {
                self.replied(call, &reply);
            }
            return;
        }
        if let Some(call) = &mut self.call
            && call.source == Some(step)
        {
            // Another member may answer instead.
            call.source = None;
            return;
        }
        if let Some(id) = self.call_ids.remove(&step) {
            self.called(&id, data);
        }
    }

    /// Handles the end of a tool call. Outputs are sent in the order of their calls.
    fn called(&mut self, id: &str, data: &Value) {
        let text = match (&data["output"], &data["error"]) {
            (_, Value::Object(error)) => tool_failure(
                error.get("kind").and_then(Value::as_str).unwrap_or_default(),
                error.get("message").and_then(Value::as_str).unwrap_or_default(),
            ),
            (Value::String(text), _) => text.clone(),
            (output, _) => output.to_string(),
        };
        if let Some((_, item)) =
            self.tools.iter_mut().find(|(known, item)| known == id && item.is_none())
        {
            *item = Some(json!({
                "type": "function_call_output", "id": format!("fco_{id}"), "call_id": id,
                "output": text, "status": "completed",
            }));
        }
        while let Some((_, Some(item))) = self.tools.front() {
            let item = item.clone();
            self.tools.pop_front();
            self.end_item(None, &item);
        }
    }

    /// Handles a complete reply of the model.
    fn replied(&mut self, call: Call, reply: &ModelReply) {
        let mut open = call.open;
        for (place, item) in reply.items.iter().enumerate().skip(call.ended) {
            let begun = match open.take() {
                Some((at, begun)) if at == place => Some(begun),
                other => {
                    open = other;
                    None
                }
            };
            self.end_item(begun, item);
        }
        self.tools.clear();
        for call in reply.calls() {
            let id = call["call_id"].as_str().unwrap_or_default();
            if !self.tools.iter().any(|(known, _)| known == id) {
                self.tools.push_back((id.to_owned(), None));
            }
        }
    }

    /// Handles the end of the agent's loop: sends the items that were not sent yet.
    fn answered(&mut self, answer: ModelAnswer) {
        self.call = None;
        for item in answer.items.iter().skip(self.output.len()) {
            self.end_item(None, item);
        }
        self.end = Some(answer.end);
        self.output = answer.items.iter().map(|item| self.complete(item)).collect();
    }

    /// Sends the rest of an item.
    fn end_item(&mut self, open: Option<Open>, item: &Value) {
        let item = self.complete(item);
        let index = self.output.len();
        let open = open.unwrap_or_else(|| Open::begin(&mut self.tape, index, &item));
        open.end(&mut self.tape, &item);
        self.output.push(item);
    }

    /// Returns an item with all fields that the protocol requires.
    fn complete(&self, item: &Value) -> Value {
        let mut item = item.clone();
        let prefix = match item["type"].as_str() {
            Some("message") => "msg",
            Some("function_call") => "fc",
            Some("function_call_output") => "fco",
            Some("reasoning") => "rs",
            _ => "item",
        };
        if !item["id"].is_string() {
            let index = self.output.len();
            item["id"] = format!("{}_{index}", self.id.replacen("resp", prefix, 1)).into();
        }
        match item["type"].as_str() {
            Some("message") => {
                default(&mut item, "status", "completed");
                default(&mut item, "role", "assistant");
                for part in item["content"].as_array_mut().into_iter().flatten() {
                    if part["type"] == "output_text" && !part["annotations"].is_array() {
                        part["annotations"] = json!([]);
                    }
                }
            }
            Some("function_call" | "function_call_output") => {
                default(&mut item, "status", "completed");
            }
            Some("reasoning") => {
                if !item["summary"].is_array() {
                    item["summary"] = json!([]);
                }
                if let Some(map) = item.as_object_mut() {
                    map.retain(|_, value| !value.is_null());
                }
            }
            _ => {}
        }
        item
    }

    /// Handles a delta.
    fn piece(&mut self, piece: Piece) {
        let Some(mut call) = self.call.take() else { return };
        let is_own = call.step == piece.step || call.members.contains(&piece.step);
        if !is_own || call.source.is_some_and(|source| source != piece.step) {
            self.call = Some(call);
            return;
        }
        if call.source.is_none() || piece.attempt > call.attempt {
            call.source = Some(piece.step);
            (call.attempt, call.next, call.gap) = (piece.attempt, 0, false);
            call.waiting.clear();
            if let Some((_, open)) = &mut call.open {
                open.again();
            }
        }
        // A new subscription repeats the text so far.
        let is_new = piece.attempt == call.attempt && piece.n >= call.next;
        if is_new && !call.gap {
            let first = piece.first.unwrap_or(piece.n);
            call.gap = first != call.next || call.waiting.len() >= MOST_WAITING;
            call.next = piece.n + 1;
            if !call.gap {
                self.take_piece(&mut call, piece.delta);
            }
        }
        self.call = Some(call);
    }

    fn take_piece(&mut self, call: &mut Call, delta: ModelDelta) {
        let (place, lane, sort, text) = match delta {
            ModelDelta::Item { item, begins } if item == call.ended => {
                if call.open.is_none() {
                    let begins = self.complete(&begins);
                    let index = self.output.len();
                    call.open = Some((item, Open::begin(&mut self.tape, index, &begins)));
                }
                return;
            }
            ModelDelta::Done { item, whole } if item == call.ended => {
                let open = call.open.take().map(|(_, open)| open);
                self.end_item(open, &whole);
                call.ended += 1;
                for delta in std::mem::take(&mut call.waiting) {
                    self.take_piece(call, delta);
                }
                return;
            }
            ModelDelta::Item { item, .. } | ModelDelta::Done { item, .. } => {
                if item > call.ended {
                    call.waiting.push(delta);
                }
                return;
            }
            ModelDelta::Text { item, part, ref delta } => {
                (item, Lane::Content(part), Sort::Text, delta)
            }
            ModelDelta::Refusal { item, part, ref delta } => {
                (item, Lane::Content(part), Sort::Refusal, delta)
            }
            ModelDelta::Reasoning { item, part, ref delta } => {
                (item, Lane::Content(part), Sort::Reasoning, delta)
            }
            ModelDelta::ReasoningSummary { item, part, ref delta } => {
                (item, Lane::Summary(part), Sort::Summary, delta)
            }
            ModelDelta::Arguments { item, ref delta } => {
                (item, Lane::Arguments, Sort::Arguments, delta)
            }
        };
        match &mut call.open {
            Some((open_at, open)) if *open_at == place => {
                open.hear(&mut self.tape, lane, sort, text);
            }
            _ if place > call.ended => call.waiting.push(delta),
            _ => {}
        }
    }

    /// Handles the end of the run.
    fn over(&mut self, data: &Value) {
        self.status = match data["status"].as_str() {
            Some("completed") => {
                if self.trigger.ask.is_none() {
                    self.said(&data["output"]);
                }
                match self.end {
                    None | Some(ModelEnd::Complete | ModelEnd::HandedBack) => Status::Completed,
                    Some(ModelEnd::Length) => Status::Incomplete("max_output_tokens"),
                    Some(ModelEnd::ContentFilter) => Status::Incomplete("content_filter"),
                    Some(ModelEnd::MaxToolCalls) => Status::Incomplete("max_tool_calls"),
                }
            }
            Some("canceled") => Status::Cancelled,
            _ => Status::of_failure(&data["error"]),
        };
        if let Some(kind) = self.status.terminal() {
            self.tell(kind);
        }
    }

    /// Adds the result of a flow, or of an agent without a model, as a message: its text, or its
    /// JSON.
    fn said(&mut self, value: &Value) {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            other => other.to_string(),
        };
        let part = json!({ "type": "output_text", "text": text, "annotations": [] });
        let item = self.complete(&json!({ "type": "message", "content": [part] }));
        let mut open = Open::begin(&mut self.tape, self.output.len(), &item);
        open.whole = true;
        self.end_item(Some(open), &item);
    }
}

/// Returns the text of a failed call for the model.
fn tool_failure(kind: &str, message: &str) -> String {
    json!({ "error": { "kind": kind, "message": message } }).to_string()
}

fn default(item: &mut Value, name: &str, value: &str) {
    if !item[name].is_string() {
        item[name] = value.into();
    }
}

fn number(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|n| u32::try_from(n).ok())
}

/// Returns the Unix seconds of an RFC 3339 time.
fn seconds(at: &str) -> i64 {
    at.parse::<jiff::Timestamp>().map_or(0, |at| at.as_second())
}

#[cfg(test)]
mod tests;
