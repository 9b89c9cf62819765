//! A model's tool loop as a flow: a pure function of the outcomes of its steps.
//!
//! | stage | what ended | then |
//! |---|---|---|
//! | new | | list the tools of all servers in parallel; without servers, ask the model |
//! | listing | all servers | ask the model; a server that failed stops the loop |
//! | listing | all servers | ask the model; a server that failed stops the loop |
//! | asking | the model, without calls | done; one retry if the answer violates the schema |
//! | asking | the model, with calls of the caller's tools | done: the caller gets the whole batch |
//! | asking | the model, with other calls | record all of them, then execute them |
//! | asking | the model failed, was cut off or refused | the loop stops |
//! | calling | a person approved | the call starts; otherwise it fails as `human_rejected` |
//! | calling | all calls | ask the model again, with every output and every failure |
//! | flushing | all writes of old turns | compact, unless a required write failed |
//! | recalling | the read of a session's conversation | ask the model, with it |
//! | keeping | the write of it | done; if another loop was faster, recall it again |
//!
//! Turns, calls, repetitions, failures in a row and cost are checked against their limits before
//! anything starts. Watchers are warned before a limit is reached. The driver owns time. The same
//! outcomes in the same order start the same steps, so a loop can be rebuilt from a journal.

mod budget;
mod call;
mod compact;
mod conversation;
mod policy;
mod settings;
mod turn;

use serde_json::{Value, json};

pub use policy::REMOVED;
use settings::Recalled;
pub use settings::{
    Approve, Compaction, Conversation, Exceeded, Face, Flush, LoopLimits, LoopSettings, Owner,
    Remembered,
};
pub use turn::{Begin, Call, Judge, LoopAction, LoopStop, Moment, RuleVerdict, Sums};

use crate::{
    journal::{Outcome, Usage},
    protocol::{
        Content, ContentBlock, ExitReason, Failure, FunctionTool, ImageSource, Json,
        LifecycleEvent, ModelAnswer, ModelEnd, ModelReply, ModelStop, OperatorId, failure::kind,
        model::output_text,
    },
};

/// The state of a model's tool loop.
#[derive(Debug, Clone)]
pub struct ResponseFlow {
    settings: LoopSettings,
    tools: Vec<Face>,
    start: Vec<Value>,
    own: Vec<ConversationItem>,
    /// The index in `own` at which each reply starts.
    replies: Vec<usize>,
    /// The index of the first item of `own` that the model still sees. The summary stands before
    /// it.
    from: usize,
    summary: Option<String>,
    /// The items before `from` that stay because their tools are pinned.
    pinned: Vec<Value>,
    /// The outcomes, by place; `None` while the step is open.
    places: Vec<Option<Outcome>>,
    /// The steps that started, by place.
    begun: Vec<Begin>,
    stage: Stage,
    sums: Sums,
    model: String,
    /// The tokens of the last model request and its answer.
    window: Option<u64>,
    last_batch: Option<(Vec<(String, String)>, u32)>,
    failures: u32,
    repaired: bool,
    /// The turn after which compaction was last considered.
    looked_at: Option<u32>,
    /// The turn for which the rules have been evaluated.
    ruled: Option<u32>,
    warned: Warned,
    recalled: Recalled,
    events: Vec<LifecycleEvent>,
}

/// An item of the conversation.
#[derive(Debug, Clone)]
struct ConversationItem {
    item: Value,
    /// True if the loop itself wrote it for the model. It is then not part of an answer.
    aside: bool,
    /// True if the model no longer sees its output.
    hidden: bool,
}

#[derive(Debug, Clone)]
enum Stage {
    New,
    Listing,
    Ready,
    Recalling { place: usize },
    Keeping { place: usize, value: Json, end: ModelEnd },
    Asking { place: usize },
    Flushing { first: usize, cut: usize },
    Compacting { place: usize, cut: usize },
    Calling { calls: Vec<Called> },
    Over,
}

/// A call of the current batch.
#[derive(Debug, Clone)]
struct Called {
    call: Call,
    /// The place of its last step.
    place: usize,
    /// True if that step asks a person.
    asks: bool,
}

/// The events already emitted. Each is emitted only once.
#[derive(Debug, Clone, Copy, Default)]
struct Warned {
    turns: bool,
    calls: bool,
    cost: bool,
    exceeded: bool,
}

/// The result of a stage: a turn, `None` for the next stage, or a stop.
type Step = Result<Option<LoopAction>, Box<LoopStop>>;

impl ResponseFlow {
    /// Creates a loop with this initial conversation.
    pub fn new(settings: LoopSettings, start: Vec<Value>) -> Self {
        Self {
            tools: settings.tools.clone(),
            settings,
            start,
            own: Vec::new(),
            replies: Vec::new(),
            from: 0,
            summary: None,
            pinned: Vec::new(),
            places: Vec::new(),
            begun: Vec::new(),
            stage: Stage::New,
            sums: Sums::default(),
            model: String::new(),
            window: None,
            last_batch: None,
            failures: 0,
            repaired: false,
            looked_at: None,
            ruled: None,
            warned: Warned::default(),
            recalled: Recalled::default(),
            events: Vec::new(),
        }
    }

    /// Returns the number of steps started so far, which is the place of the next.
    pub fn begun(&self) -> usize {
        self.places.len()
    }

    /// Returns the step that started at a place.
    pub fn part(&self, place: usize) -> Option<&Begin> {
        self.begun.get(place)
    }

    /// Advances until the step at a place has started. Returns false if the loop would wait or end
    /// before.
    pub fn reaches(&mut self, place: usize, judge: &dyn Judge) -> bool {
        while self.begun() <= place {
            if !matches!(self.turn(judge), LoopAction::Begin(_)) {
                return false;
            }
        }
        true
    }

    /// Returns the settings of the loop.
    pub fn settings(&self) -> &LoopSettings {
        &self.settings
    }

    /// Returns the totals of the loop.
    pub fn sums(&self) -> &Sums {
        &self.sums
    }

    /// Iterates over the tools that the model may call.
    pub fn tools(&self) -> impl Iterator<Item = &FunctionTool> {
        self.tools.iter().map(|face| &face.tool)
    }

    /// Returns the events since the last call, for watchers, and removes them.
    pub fn take_events(&mut self) -> Vec<LifecycleEvent> {
        std::mem::take(&mut self.events)
    }

    /// Returns the conversation for the next request to the model.
    pub fn conversation(&self) -> Vec<Value> {
        self.seen_until(self.own.len())
    }

    /// Records the outcome of a started step. `used` includes the usage of everything below it.
    /// Ignored if the place is unknown or has ended.
    pub fn end(&mut self, place: usize, outcome: Outcome, used: &Usage) {
        let Some(open @ None) = self.places.get_mut(place) else { return };
        *open = Some(outcome);
        self.sums.used.add(used);
        let (is_asked, is_summed_up) = match self.stage {
            Stage::Asking { place: asked } => (asked == place, false),
            Stage::Compacting { place: asked, .. } => (false, asked == place),
            _ => (false, false),
        };
        if is_asked {
            self.window = used.tokens();
        }
        if is_asked || is_summed_up {
            self.tell_cost(used);
        }
    }

    /// Returns true if the step at a place may be executed now. A tool that is not parallel-safe
    /// waits for the calls before it, and the calls after it wait for it.
    pub fn may_start(&self, place: usize) -> bool {
        let Stage::Calling { calls } = &self.stage else { return true };
        let Some(own) = calls.iter().position(|it| it.place == place && !it.asks) else {
            return true;
        };
        let alone = !calls[own].call.parallel_safe;
        let before = calls[..own].iter().filter(|it| alone || !it.call.parallel_safe);
        before.into_iter().all(|it| !it.asks && self.has_ended(it.place))
    }

    fn has_ended(&self, place: usize) -> bool {
        self.places.get(place).is_none_or(Option::is_some)
    }

    /// Returns the next turn. The steps of a [`LoopAction::Begin`] count as started.
    pub fn turn(&mut self, judge: &dyn Judge) -> LoopAction {
        loop {
            match self.step(judge) {
                Ok(None) => {}
                Ok(Some(turn)) => {
                    if let LoopAction::Begin(begins) = &turn {
                        self.places.extend(begins.iter().map(|_| None));
                        self.begun.extend_from_slice(begins);
                    }
                    return turn;
                }
                Err(stop) => {
                    self.stage = Stage::Over;
                    return LoopAction::Stop(stop);
                }
            }
        }
    }

    /// Advances by one stage. Returns a turn, or `None` to continue with the next stage.
    fn step(&mut self, judge: &dyn Judge) -> Step {
        match &self.stage {
            Stage::New if self.settings.servers.is_empty() => {
                self.stage = Stage::Ready;
                Ok(None)
            }
            Stage::New => {
                self.stage = Stage::Listing;
                let list = |server: &String| Begin::List { server: server.clone() };
                Ok(Some(LoopAction::Begin(self.settings.servers.iter().map(list).collect())))
            }
            Stage::Listing if self.places.iter().any(Option::is_none) => Ok(Some(LoopAction::Wait)),
            Stage::Listing => self.listed(judge),
            Stage::Ready => match self.recall() {
                Some(turn) => Ok(Some(turn)),
                None => self.ready(judge),
            },
            Stage::Asking { place }
            | Stage::Compacting { place, .. }
            | Stage::Recalling { place }
            | Stage::Keeping { place, .. }
                if !matches!(self.places.get(*place), Some(Some(_))) =>
            {
                Ok(Some(LoopAction::Wait))
            }
            Stage::Asking { place } => {
                let place = *place;
                self.replied(place, judge)
            }
            Stage::Recalling { place } => {
                let place = *place;
                self.recollected(place)
            }
            Stage::Keeping { place, value, end } => {
                let (place, value, end) = (*place, value.clone(), *end);
                self.kept(place, value, end)
            }
            Stage::Flushing { first, .. } if self.places[*first..].iter().any(Option::is_none) => {
                Ok(Some(LoopAction::Wait))
            }
            Stage::Flushing { first, cut } => {
                let (first, cut) = (*first, *cut);
                self.stage = Stage::Ready;
                Ok(self.flushed(first, cut))
            }
            Stage::Compacting { place, cut } => {
                let (place, cut) = (*place, *cut);
                self.summed_up(place, cut);
                self.stage = Stage::Ready;
                Ok(None)
            }
            Stage::Calling { calls } => {
                let calls = calls.clone();
                self.calling(calls, judge)
            }
            Stage::Over => Ok(Some(LoopAction::Wait)),
        }
    }

    /// Handles the tool lists of all servers.
    fn listed(&mut self, judge: &dyn Judge) -> Step {
        let mut found = Vec::new();
        for (server, outcome) in self.settings.servers.iter().zip(&self.places) {
            let tools = match outcome {
                Some(Outcome::Completed(tools)) => tools.decode::<Vec<FunctionTool>>(),
                Some(Outcome::Failed(failure)) => return Err(LoopStop::of(failure.clone())),
                Some(Outcome::Canceled(_)) | None => Ok(Vec::new()),
            };
            let tools = tools.map_err(|error| {
                let message = format!("the tools of {server} cannot be read: {error}");
                LoopStop::of(Failure::new(kind::WORKER, message))
            })?;
            found.extend(judge.faces(server, tools));
        }
        for face in found {
            if !self.tools.iter().any(|it| it.tool.name == face.tool.name) {
                self.tools.push(face);
            }
        }
        self.stage = Stage::Ready;
        Ok(None)
    }

    /// Asks the model, if the limits and rules allow it.
    fn ready(&mut self, judge: &dyn Judge) -> Step {
        self.hold_turns()?;
        self.hold_costs()?;
        if self.ruled != Some(self.sums.turns) {
            self.ruled = Some(self.sums.turns);
            let verdict = self.rule(judge, &Moment::BeforeModel)?;
            self.say_all(&verdict.say);
        }
        if let Some(turn) = self.compact() {
            return Ok(Some(turn));
        }
        self.sums.turns += 1;
        self.warn_of_turns();
        self.stage = Stage::Asking { place: self.places.len() };
        Ok(Some(LoopAction::Begin(vec![Begin::Ask { turn: self.sums.turns }])))
    }

    /// Handles the model's reply.
    fn replied(&mut self, place: usize, judge: &dyn Judge) -> Step {
        let reply = match self.places[place].take() {
            Some(Outcome::Completed(reply)) => reply.decode::<ModelReply>().map_err(|error| {
                let message = format!("the model's answer cannot be read: {error}");
                LoopStop::of(Failure::new(kind::MODEL, message))
            })?,
            Some(Outcome::Failed(failure)) => return Err(LoopStop::of(failure)),
            Some(Outcome::Canceled(reason)) => {
                return Err(LoopStop::of(Failure::new(kind::CANCELED, reason)));
            }
            None => return Ok(Some(LoopAction::Wait)),
        };
        // The reply's content is in the conversation from here on.
        self.places[place] = Some(Outcome::Completed(Json::null()));
        self.model.clone_from(&reply.model);
        self.replies.push(self.own.len());
        self.tell_managed(&reply);
        let text = reply.text();
        let calls = turn::asked_for(&reply)?;
        self.own.extend(reply.items.into_iter().map(|item| ConversationItem::new(item, false)));
        let verdict = self.rule(judge, &Moment::AfterModel { text: &text, calls: calls.len() })?;
        self.say_all(&verdict.say);
        match (reply.stop, calls.is_empty()) {
            (ModelStop::Length, _) => self.cut_off(ModelEnd::Length),
            (ModelStop::ContentFilter, _) => self.cut_off(ModelEnd::ContentFilter),
            (ModelStop::Refusal, true) if !self.settings.asked => {
                Err(LoopStop::safety("the model would not answer"))
            }
            (ModelStop::End | ModelStop::ToolCalls | ModelStop::Refusal, false) => {
                self.call(&calls, judge)
            }
            (ModelStop::End | ModelStop::ToolCalls | ModelStop::Refusal, true) => {
                self.conclude(&text, judge)
            }
        }
    }

    /// Handles an answer that ended before it was complete.
    fn cut_off(&mut self, end: ModelEnd) -> Step {
        match (self.settings.asked, end) {
            (true, end) => Ok(Some(self.answer(end))),
            (false, ModelEnd::ContentFilter) => {
                Err(LoopStop::safety("a filter of the provider cut the answer off"))
            }
            (false, _) => {
                let message = "the answer reached the limit of output tokens; \
                               `max_output_tokens` allows more";
                let failure = Failure::new(kind::MODEL, message);
                Err(LoopStop::new(ExitReason::custom("length"), failure))
            }
        }
    }

    /// Handles an answer without calls.
    fn conclude(&mut self, text: &str, judge: &dyn Judge) -> Step {
        if self.settings.asked {
            return Ok(Some(self.answer(ModelEnd::Complete)));
        }
        match judge.output(text) {
            Ok(value) => Ok(Some(self.done(value, ModelEnd::Complete))),
            Err(why) if !self.repaired => {
                self.repaired = true;
                let ask = format!(
                    "That answer cannot be used: {why}. Answer again with nothing but JSON that \
                     fits the schema."
                );
                self.say(&ask);
                self.stage = Stage::Ready;
                Ok(None)
            }
            Err(why) => {
                let message = format!("the model's answer cannot be used: {why}");
                Err(LoopStop::new(ExitReason::Error, Failure::new(kind::INVALID_RESULT, message)))
            }
        }
    }

    /// Ends the loop for a caller that asked for the items.
    fn answer(&mut self, end: ModelEnd) -> LoopAction {
        self.stage = Stage::Over;
        let own = self.own.iter().filter(|own| !own.aside);
        let items = own.map(|own| own.item.clone()).collect();
        let answer = ModelAnswer { model: self.model.clone(), items, end };
        LoopAction::Done { value: Json::encode(&answer).expect("an answer is plain data"), end }
    }

    /// Returns the text of the model's last reply.
    pub fn last_text(&self) -> String {
        let from = self.replies.last().copied().unwrap_or(self.own.len());
        let items: Vec<Value> =
            self.own[from.min(self.own.len())..].iter().map(|own| own.item.clone()).collect();
        output_text(&items)
    }

    /// Adds a message to the model that is not part of an answer.
    fn say(&mut self, text: &str) {
        self.own.push(ConversationItem::new(user_message(text), true));
    }

    fn say_all(&mut self, texts: &[String]) {
        texts.iter().for_each(|text| self.say(text));
    }

    fn operator(&self) -> OperatorId {
        OperatorId::new(self.settings.operator.clone())
    }
}

/// Returns a user message as an item.
pub fn user_message(text: &str) -> Value {
    json!({
        "type": "message",
        "role": "user",
        "content": [{ "type": "input_text", "text": text }],
    })
}

/// Returns a message of a user as an item; blocks that are neither text nor an image as their JSON.
pub fn message_item(message: &Content) -> Value {
    let blocks = match message {
        Content::Text(text) => return user_message(text),
        Content::Blocks(blocks) => blocks,
    };
    let part = |block: &ContentBlock| match block {
        ContentBlock::Text { text } => json!({ "type": "input_text", "text": text }),
        ContentBlock::Image { source, media_type } => {
            let url = match source {
                ImageSource::Url { url } => url.clone(),
                ImageSource::Base64 { data } => format!("data:{media_type};base64,{data}"),
            };
            json!({ "type": "input_image", "image_url": url })
        }
        other => json!({ "type": "input_text", "text": json!(other).to_string() }),
    };
    let parts: Vec<Value> = blocks.iter().map(part).collect();
    json!({ "type": "message", "role": "user", "content": parts })
}

/// Returns a summary as an item.
fn summary_item(text: &str) -> Value {
    user_message(&format!("What happened before, in short:\n{text}"))
}

#[cfg(test)]
mod tests;
