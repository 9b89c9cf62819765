//! A model's tool loop as a flow: what it begins next follows from what has ended, and from nothing
//! else.
//!
//! | stage | something ended | then |
//! |---|---|---|
//! | new | | every server is asked for its tools, side by side; without servers the model is asked |
//! | listing | all servers | the model is asked; a server that failed stops the loop |
//! | asking | the model, without calls | the loop is done; an answer that breaks the schema is asked for once more |
//! | asking | the model, with a call of the caller's tools | the loop is done: the whole batch is handed back |
//! | asking | the model, with other calls | all of them begin, and are recorded before any is executed |
//! | asking | the model failed, was cut off or would not | the loop stops |
//! | calling | a person was asked, and agrees | the call begins; it fails as `human_rejected` otherwise |
//! | calling | all calls | the model is asked again, and sees every output and every failure |
//! | flushing | all turns that are to go were written | the conversation is made shorter; one that failed and must not keeps it as it is |
//! | compacting | the summary | the model is asked, with the summary in place of what it stands for |
//!
//! Turns, calls, repetitions, failures in a row and money are held against their limits before
//! anything begins; who watches is warned before one is reached. Time is the driver's. A loop that is told the same ends in the same order
//! begins the same things: so it is rebuilt from a journal.

mod budget;
mod call;
mod compact;
mod settings;
mod turn;

use serde_json::{Value, json};

pub use settings::{Approve, Compaction, Exceeded, Face, Flush, LoopLimits, LoopSettings, Owner};
pub use turn::{Begin, Call, Judge, Moment, Stop, Sums, Turn, Verdict};

use crate::{
    journal::{Outcome, Usage},
    protocol::{
        ExitReason, Failure, FunctionTool, Json, LifecycleEvent, ModelAnswer, ModelEnd, ModelReply,
        ModelStop, OperatorId, failure::kind,
    },
};

/// A model's tool loop.
#[derive(Debug, Clone)]
pub struct ResponseFlow {
    settings: LoopSettings,
    tools: Vec<Face>,
    start: Vec<Value>,
    own: Vec<Own>,
    /// Where in `own` each reply begins.
    replies: Vec<usize>,
    /// What the model sees of `own`; before it stands the summary.
    from: usize,
    summary: Option<String>,
    /// What ended, by place; nothing while it is open.
    places: Vec<Option<Outcome>>,
    stage: Stage,
    sums: Sums,
    model: String,
    /// What the last answer of the model took, in tokens.
    window: Option<u64>,
    last_batch: Option<(Vec<(String, String)>, u32)>,
    failures: u32,
    repaired: bool,
    /// The turn that compaction was last looked at after.
    looked_at: Option<u32>,
    /// The turn whose rules have been asked.
    ruled: Option<u32>,
    warned: Warned,
    events: Vec<LifecycleEvent>,
}

/// An item of the conversation.
#[derive(Debug, Clone)]
struct Own {
    item: Value,
    /// Whether the loop itself said it to the model: no part of an answer.
    aside: bool,
}

#[derive(Debug, Clone)]
enum Stage {
    New,
    Listing,
    Ready,
    Asking { place: usize },
    Flushing { first: usize, cut: usize },
    Compacting { place: usize, cut: usize },
    Calling { calls: Vec<Called> },
    Over,
}

/// A call of a batch that is under way.
#[derive(Debug, Clone)]
struct Called {
    call: Call,
    /// Where its last step is.
    place: usize,
    /// Whether that step asks a person.
    asks: bool,
}

/// What was told already, each once.
#[derive(Debug, Clone, Copy, Default)]
struct Warned {
    turns: bool,
    calls: bool,
    cost: bool,
    exceeded: bool,
}

/// A turn of a loop that ends: what it begins, or how it ends. Errors are stops.
type Step = Result<Option<Turn>, Box<Stop>>;

impl ResponseFlow {
    /// A loop that begins with this conversation.
    pub fn new(settings: LoopSettings, start: Vec<Value>) -> Self {
        Self {
            tools: settings.tools.clone(),
            settings,
            start,
            own: Vec::new(),
            replies: Vec::new(),
            from: 0,
            summary: None,
            places: Vec::new(),
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
            events: Vec::new(),
        }
    }

    /// How many things have begun: the place of the next.
    pub fn begun(&self) -> usize {
        self.places.len()
    }

    /// What it has come to.
    pub fn sums(&self) -> &Sums {
        &self.sums
    }

    /// The tools that the model may call.
    pub fn tools(&self) -> impl Iterator<Item = &FunctionTool> {
        self.tools.iter().map(|face| &face.tool)
    }

    /// What happened since this was last asked, for whoever watches.
    pub fn take_events(&mut self) -> Vec<LifecycleEvent> {
        std::mem::take(&mut self.events)
    }

    /// The conversation as the model sees it next.
    pub fn conversation(&self) -> Vec<Value> {
        let summary = self.summary.as_deref().map(summary_item);
        let own = self.own[self.from..].iter().map(|own| own.item.clone());
        self.start.iter().cloned().chain(summary).chain(own).collect()
    }

    /// Something that has begun ended, having `used` this, all that it began included. A place that
    /// is unknown or has ended is left as it is.
    pub fn end(&mut self, place: usize, outcome: Outcome, used: &Usage) {
        let Some(open @ None) = self.places.get_mut(place) else { return };
        *open = Some(outcome);
        self.sums.used.add(used);
        if let Stage::Asking { place: asked } = self.stage
            && asked == place
        {
            self.window = used.tokens();
        }
    }

    /// Whether what has begun at a place may be executed now: a tool that is not safe beside others
    /// waits for those before it, and those behind it wait for it.
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

    /// What comes next. What it begins has begun once this has said so.
    pub fn turn(&mut self, judge: &dyn Judge) -> Turn {
        loop {
            match self.step(judge) {
                Ok(None) => {}
                Ok(Some(turn)) => {
                    if let Turn::Begin(begins) = &turn {
                        self.places.extend(begins.iter().map(|_| None));
                    }
                    return turn;
                }
                Err(stop) => {
                    self.stage = Stage::Over;
                    return Turn::Stop(stop);
                }
            }
        }
    }

    /// One stage on: a turn, or nothing if the next stage has to say.
    fn step(&mut self, judge: &dyn Judge) -> Step {
        match &self.stage {
            Stage::New if self.settings.servers.is_empty() => {
                self.stage = Stage::Ready;
                Ok(None)
            }
            Stage::New => {
                self.stage = Stage::Listing;
                let list = |server: &String| Begin::List { server: server.clone() };
                Ok(Some(Turn::Begin(self.settings.servers.iter().map(list).collect())))
            }
            Stage::Listing if self.places.iter().any(Option::is_none) => Ok(Some(Turn::Wait)),
            Stage::Listing => self.listed(judge),
            Stage::Ready => self.ready(judge),
            Stage::Asking { place } | Stage::Compacting { place, .. }
                if !matches!(self.places.get(*place), Some(Some(_))) =>
            {
                Ok(Some(Turn::Wait))
            }
            Stage::Asking { place } => {
                let place = *place;
                self.replied(place, judge)
            }
            Stage::Flushing { first, .. } if self.places[*first..].iter().any(Option::is_none) => {
                Ok(Some(Turn::Wait))
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
            Stage::Over => Ok(Some(Turn::Wait)),
        }
    }

    /// Every server has said what it has, or failed to.
    fn listed(&mut self, judge: &dyn Judge) -> Step {
        let mut found = Vec::new();
        for (server, outcome) in self.settings.servers.iter().zip(&self.places) {
            let tools = match outcome {
                Some(Outcome::Completed(tools)) => tools.decode::<Vec<FunctionTool>>(),
                Some(Outcome::Failed(failure)) => return Err(Stop::of(failure.clone())),
                Some(Outcome::Canceled(_)) | None => Ok(Vec::new()),
            };
            let tools = tools.map_err(|error| {
                let message = format!("the tools of {server} cannot be read: {error}");
                Stop::of(Failure::new(kind::WORKER, message))
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

    /// The model is asked, if it may be.
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
        Ok(Some(Turn::Begin(vec![Begin::Ask { turn: self.sums.turns }])))
    }

    /// The model answered, or could not.
    fn replied(&mut self, place: usize, judge: &dyn Judge) -> Step {
        let reply = match self.places[place].take() {
            Some(Outcome::Completed(reply)) => reply.decode::<ModelReply>().map_err(|error| {
                let message = format!("the model's answer cannot be read: {error}");
                Stop::of(Failure::new(kind::MODEL, message))
            })?,
            Some(Outcome::Failed(failure)) => return Err(Stop::of(failure)),
            Some(Outcome::Canceled(reason)) => {
                return Err(Stop::of(Failure::new(kind::CANCELED, reason)));
            }
            None => return Ok(Some(Turn::Wait)),
        };
        // What it said is in the conversation from here on.
        self.places[place] = Some(Outcome::Completed(Json::null()));
        self.model.clone_from(&reply.model);
        self.replies.push(self.own.len());
        self.tell_managed(&reply);
        let text = reply.text();
        let calls = turn::asked_for(&reply)?;
        self.own.extend(reply.items.into_iter().map(|item| Own { item, aside: false }));
        let verdict = self.rule(judge, &Moment::AfterModel { text: &text, calls: calls.len() })?;
        self.say_all(&verdict.say);
        match (reply.stop, calls.is_empty()) {
            (ModelStop::Length, _) => self.cut_off(ModelEnd::Length),
            (ModelStop::ContentFilter, _) => self.cut_off(ModelEnd::ContentFilter),
            (ModelStop::Refusal, true) if !self.settings.asked => {
                Err(Stop::safety("the model would not answer"))
            }
            (ModelStop::End | ModelStop::ToolCalls | ModelStop::Refusal, false) => {
                self.call(&calls, judge)
            }
            (ModelStop::End | ModelStop::ToolCalls | ModelStop::Refusal, true) => {
                self.conclude(&text, judge)
            }
        }
    }

    /// The model was stopped in the middle of its answer.
    fn cut_off(&mut self, end: ModelEnd) -> Step {
        match (self.settings.asked, end) {
            (true, end) => Ok(Some(self.answer(end))),
            (false, ModelEnd::ContentFilter) => {
                Err(Stop::safety("a filter of the provider cut the answer off"))
            }
            (false, _) => {
                let message = "the answer reached the limit of output tokens; \
                               `max_output_tokens` allows more";
                let failure = Failure::new(kind::MODEL, message);
                Err(Stop::new(ExitReason::custom("length"), failure))
            }
        }
    }

    /// The model has said everything.
    fn conclude(&mut self, text: &str, judge: &dyn Judge) -> Step {
        if self.settings.asked {
            return Ok(Some(self.answer(ModelEnd::Complete)));
        }
        match judge.output(text) {
            Ok(value) => {
                self.stage = Stage::Over;
                Ok(Some(Turn::Done { value, end: ModelEnd::Complete }))
            }
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
                Err(Stop::new(ExitReason::Error, Failure::new(kind::INVALID_RESULT, message)))
            }
        }
    }

    /// The end, for a caller that asked for the items.
    fn answer(&mut self, end: ModelEnd) -> Turn {
        self.stage = Stage::Over;
        let own = self.own.iter().filter(|own| !own.aside);
        let items = own.map(|own| own.item.clone()).collect();
        let answer = ModelAnswer { model: self.model.clone(), items, end };
        Turn::Done { value: Json::encode(&answer).expect("an answer is plain data"), end }
    }

    /// Says something to the model that nobody else is told.
    fn say(&mut self, text: &str) {
        self.own.push(Own { item: user_message(text), aside: true });
    }

    fn say_all(&mut self, texts: &[String]) {
        texts.iter().for_each(|text| self.say(text));
    }

    fn operator(&self) -> OperatorId {
        OperatorId::new(self.settings.operator.clone())
    }
}

/// What a person says, as an item.
pub fn user_message(text: &str) -> Value {
    json!({
        "type": "message",
        "role": "user",
        "content": [{ "type": "input_text", "text": text }],
    })
}

/// A summary as an item.
fn summary_item(text: &str) -> Value {
    user_message(&format!("What happened before, in short:\n{text}"))
}

#[cfg(test)]
mod tests;
