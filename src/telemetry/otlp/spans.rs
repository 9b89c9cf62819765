//! The spans of a run, made from its entries.
//!
//! | what | span | kind |
//! |---|---|---|
//! | a run | `invoke_workflow BLUEPRINT` | internal |
//! | a task | `invoke_agent AGENT` | internal in the process of the host, else client |
//! | a question to a model | `chat MODEL` | client |
//! | a tool of a model | `execute_tool NAME` | internal; client if an MCP server executes it |
//! | a task of an MCP server | `tools/call TOOL` | client |
//! | a called run, a wait, a timer | `call NAME`, `wait NAME`, `sleep` | internal |
//! | the trigger of a run that was started by itself | `schedule BLUEPRINT`, … | producer |
//!
//! State and other work within the host has no span. `step` has the attributes of the spans.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use serde_json::Value;

use super::{
    contents,
    message::{self, KeyValue, Link, Span, SpanKind, Status, StatusCode},
    open_step::{OpenStep, Style, nanos},
    step::{self, Step},
    talk::Talk,
};
use crate::{
    blueprint::Slots,
    engine::VersionFacts,
    journal::{Decision, Entry, Fact, Outcome, RunStarted, Scheduled, Usage, took_a_signal},
    protocol::{Failure, Json, RunId, StepKind, TraceParent},
    store::Header,
};

/// The maximum number of links of a run.
const LINKS: usize = 32;
/// The maximum number of bytes of open steps for which contents are remembered.
const CONTENTS: usize = 16 << 20;
/// The name of a step that reads the conversation of a session.
const RECALL: &str = "recall";
/// The largest input of a run that is kept for the prompts of its tasks, in bytes.
const GIVEN: usize = 64 << 10;
/// The approximate size of a run without its steps, in bytes.
const RUN: usize = 512;
/// The approximate size of a signal that no wait has taken, in bytes.
const SIGNAL: usize = 64;

/// Returns the span of a step of another run.
pub(super) type Others<'a> = &'a dyn Fn(u64, u32) -> Option<TraceParent>;

/// A run, as far as its entries were read.
pub(super) struct RunTrace {
    num: u64,
    nonce: u64,
    id: RunId,
    blueprint: String,
    hash: String,
    created_ms: u64,
    started_in: Option<TraceParent>,
    /// The kind of the trigger.
    trigger: String,
    /// The number of the last entry that happened in another run.
    copied_upto: u32,
    input: Option<String>,
    /// The input for the prompts of tasks, if contents are exported, without what the layers redact.
    given: Option<Json>,
    steps: HashMap<u32, OpenStep>,
    links: Vec<Link>,
    /// The run that it is a fork of.
    origin: Option<TraceParent>,
    /// The steps that sent the signals which no wait has taken, by the name and in order of arrival;
    /// none for a signal from outside.
    senders: HashMap<String, VecDeque<Option<TraceParent>>>,
    /// The approximate size in bytes.
    size: usize,
    version: Arc<VersionFacts>,
    style: Arc<Style>,
}

/// Returns the run that an entry refers to.
pub(super) fn refers_to(entry: &Entry) -> Option<u64> {
    match &entry.fact {
        Fact::RunStarted(started) => match started.parent {
            Some((run, _)) => Some(run),
            None => again(started),
        },
        Fact::SignalReceived(signal) => signal.sender.map(|(run, _)| run),
        Fact::Decided(Decision::Copied { from, .. }) => number(from),
        _ => None,
    }
}

/// Returns the run that a start repeats.
fn again(started: &RunStarted) -> Option<u64> {
    let trigger = started.trigger.to_value();
    (trigger["kind"] == "rerun").then(|| number(trigger["run"].as_str()?)).flatten()
}

fn number(run: &str) -> Option<u64> {
    run.parse().ok().map(|run: RunId| run.num())
}

impl RunTrace {
    /// Returns a run before its first entry.
    pub(super) fn new(header: &Header, version: Arc<VersionFacts>, style: Arc<Style>) -> Self {
        Self {
            num: header.num,
            nonce: header.nonce,
            id: header.id(),
            blueprint: header.blueprint.clone(),
            hash: header.hash.clone(),
            created_ms: header.created_ms,
            started_in: None,
            trigger: String::new(),
            copied_upto: 0,
            input: None,
            given: None,
            steps: HashMap::new(),
            links: Vec::new(),
            origin: None,
            senders: HashMap::new(),
            size: RUN,
            version,
            style,
        }
    }

    /// Returns the span of the run.
    pub(super) fn own(&self) -> TraceParent {
        self.span_of(0)
    }

    /// Returns the span that the run was started in.
    pub(super) fn started_in(&self) -> Option<TraceParent> {
        self.started_in
    }

    /// Returns the approximate size in bytes.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    fn span_of(&self, step: u32) -> TraceParent {
        TraceParent::of_step(self.num, self.nonce, self.started_in, step)
    }

    /// Takes the next entry; adds the spans that end with it.
    pub(super) fn take(&mut self, entry: &Entry, others: Others<'_>, ended: &mut Vec<Span>) {
        let at_ms = entry.at_ms;
        let is_copied = entry.seq <= self.copied_upto;
        match &entry.fact {
            Fact::RunStarted(started) => self.start(entry, started, others, ended),
            Fact::Decided(Decision::Copied { from, .. }) => {
                // The last copy counts, if the original is a copy itself.
                self.origin = number(from).and_then(|run| others(run, 0));
            }
            Fact::StepScheduled(step) => {
                self.begin_talk(step);
                let open = self.open(step, at_ms);
                self.size += open.size();
                if let Some(before) = self.steps.insert(step.step, open) {
                    self.size -= before.size();
                }
            }
            Fact::StepRecorded(step, outcome) => {
                let sender = self.sender_for(step.kind, &step.name, outcome);
                if is_copied {
                    return;
                }
                let open = OpenStep { sender, ..self.open(step, at_ms) };
                ended.extend(self.step(&open, (step.step, at_ms), outcome, None));
                self.tell_parent(&open, outcome);
            }
            Fact::AttemptDelivered { step, worker, .. } => {
                if let Some(open) = self.steps.get_mut(step) {
                    open.worker = Some(worker.clone());
                }
            }
            Fact::Decided(Decision::Follow(followed)) => {
                if let Some(open) = self.steps.get_mut(&followed.step) {
                    open.is_followed = true;
                }
            }
            Fact::AttemptClosed(closed) => {
                if let Some(open) = self.steps.get_mut(&closed.step) {
                    let before = open.size();
                    open.close(closed, at_ms);
                    self.size += open.size() - before;
                }
            }
            Fact::StepEnded { step, attempt, outcome, usage, .. } => {
                let Some(mut open) = self.steps.remove(step) else { return };
                self.size -= open.size();
                open.attempts = *attempt;
                open.sender = self.sender_for(open.kind, &open.name, outcome);
                if !is_copied {
                    ended.extend(self.step(&open, (*step, at_ms), outcome, usage.as_ref()));
                }
                self.tell_parent(&open, outcome);
            }
            Fact::SignalReceived(signal) => {
                let sender = signal.sender.and_then(|(run, step)| others(run, step));
                self.queue(&signal.name, sender);
            }
            Fact::RunEnded(outcome) if !is_copied => ended.push(self.root(at_ms, outcome)),
            Fact::RunEnded(_)
            | Fact::AttemptOpened(_)
            | Fact::Noted { .. }
            | Fact::Decided(_)
            | Fact::SecretAccessed { .. } => {}
        }
    }

    fn start(
        &mut self,
        entry: &Entry,
        started: &RunStarted,
        others: Others<'_>,
        ended: &mut Vec<Span>,
    ) {
        if entry.seq == 1 {
            self.copied_upto = entry.additions.copied_upto().unwrap_or(0);
        }
        self.started_in = entry.additions.trace();
        self.requeue(started);
        let trigger = started.trigger.to_value();
        trigger["kind"].as_str().unwrap_or_default().clone_into(&mut self.trigger);
        self.input = self.content("input", &started.input);
        self.size -= self.given.take().map_or(0, |it| it.len());
        if self.style.contents && started.input.len() <= GIVEN {
            self.given = contents::redacted(&self.version, "input", &started.input);
            self.size += self.given.as_ref().map_or(0, Json::len);
        }
        if started.generation > 0 || entry.seq <= self.copied_upto {
            return;
        }
        if let Some((run, step)) = started.parent {
            self.link(others(run, step), "call");
        } else if let Some(run) = again(started) {
            self.link(others(run, 0), "rerun");
        } else if matches!(self.trigger.as_str(), "schedule" | "watch" | "signal") {
            let own = TraceParent::of_trigger(self.num, self.nonce);
            let attributes = step::of_trigger(&trigger);
            let due = trigger["at"].as_str().and_then(|at| at.parse::<jiff::Timestamp>().ok());
            let due_ms = due.and_then(|at| u64::try_from(at.as_millisecond()).ok());
            let start_ms = due_ms.unwrap_or(entry.at_ms).min(entry.at_ms);
            ended.push(Span {
                name: format!("{} {}", self.trigger, self.blueprint),
                kind: SpanKind::Producer.into(),
                attributes,
                ..span(own, (start_ms, entry.at_ms))
            });
            let why = self.trigger.clone();
            self.link(Some(own), &why);
        }
    }

    /// Takes what is queued at a start: the signals of the history before, whose senders are known if
    /// it was one of this run.
    fn requeue(&mut self, started: &RunStarted) {
        let mut before = std::mem::take(&mut self.senders);
        self.size -= before.values().map(VecDeque::len).sum::<usize>() * SIGNAL;
        for (name, _) in &started.queued {
            let sender = before.get_mut(name).and_then(VecDeque::pop_front).flatten();
            self.queue(name, sender);
        }
    }

    fn queue(&mut self, name: &str, sender: Option<TraceParent>) {
        self.senders.entry(name.to_owned()).or_default().push_back(sender);
        self.size += SIGNAL;
    }

    /// Takes the signal that a wait took; returns the step that sent it.
    fn sender_for(&mut self, kind: StepKind, name: &str, outcome: &Outcome) -> Option<TraceParent> {
        if kind != StepKind::Signal || !outcome.output().is_some_and(took_a_signal) {
            return None;
        }
        let queue = self.senders.get_mut(name)?;
        let sender = queue.pop_front()?;
        if queue.is_empty() {
            self.senders.remove(name);
        }
        self.size -= SIGNAL;
        sender
    }

    fn link(&mut self, to: Option<TraceParent>, why: &str) {
        if let Some(to) = to.filter(|_| self.links.len() < LINKS) {
            self.links.push(link(to, why));
        }
    }

    /// Returns a value that is exported, if values are.
    fn content(&self, name: &str, value: &Json) -> Option<String> {
        self.exports().then(|| contents::text_of(&self.version, name, value)).flatten()
    }

    /// Returns true if values are exported.
    fn exports(&self) -> bool {
        self.style.contents && self.size < CONTENTS
    }

    fn open(&self, step: &Scheduled, at_ms: u64) -> OpenStep {
        let input = match step.kind {
            StepKind::Task | StepKind::Child => self.content("input", &step.request),
            StepKind::ToolCall if self.exports() => {
                contents::arguments_of(&self.version, &step.request)
            }
            _ => None,
        };
        // A step that a copy has still to do begins with the copy.
        let mut open = OpenStep::new(step, at_ms.max(self.created_ms), input);
        match step.kind {
            StepKind::Task | StepKind::ToolCall => open.talk = self.talk(step).map(Box::new),
            StepKind::ModelCall => {
                if let Some(parent) = step.parent.and_then(|parent| self.steps.get(&parent)) {
                    // A member of a composite is asked what the composite is asked.
                    let talk = parent.talk.as_ref();
                    open.input =
                        talk.map_or_else(|| parent.input.clone(), |it| Some(it.messages()));
                    open.system = talk.map_or_else(|| parent.system.clone(), |it| it.system());
                }
            }
            _ => {}
        }
        open
    }

    /// Returns the conversation of a task whose agent asks a model, before its first question.
    fn talk(&self, step: &Scheduled) -> Option<Talk> {
        let given = self.given.as_ref().filter(|_| self.size < CONTENTS)?;
        let operator = self.style.operators.get(&self.version.agent(&step.name)?.operator)?;
        operator.source.as_ref()?;
        // A template may take a single value out of the input, without its key.
        let input = contents::redacted(&self.version, "input", &step.request)?;
        let slots =
            Slots { input: &input, run_input: given, run_id: &self.id.to_string(), attempt: 1 };
        let rendered = self.version.prompts(&step.name, &slots)?;
        let text = |name: &str, text: String| {
            contents::text_of(&self.version, name, &Json::from(&Value::from(text)))
        };
        let question = text("prompt", rendered.prompt)?;
        Some(Talk::new(rendered.system.and_then(|system| text("system", system)), &question))
    }

    /// Begins the conversation of a task that asks a model although its agent names none.
    fn begin_talk(&mut self, step: &Scheduled) {
        if step.kind != StepKind::ModelCall || self.size >= CONTENTS {
            return;
        }
        let parent = step.parent.and_then(|parent| self.steps.get_mut(&parent));
        let Some(parent) = parent.filter(|it| it.talk.is_none() && it.kind != StepKind::ModelCall)
        else {
            return;
        };
        if let Some(input) = &parent.input {
            let talk = Talk::new(None, input);
            self.size += talk.size();
            parent.talk = Some(Box::new(talk));
        }
    }

    /// Adds what a step gave to the conversation that it belongs to.
    fn tell_parent(&mut self, open: &OpenStep, outcome: &Outcome) {
        let parent = open.parent.and_then(|parent| self.steps.get_mut(&parent));
        let Some(talk) = parent.and_then(|parent| parent.talk.as_mut()) else { return };
        let before = talk.size();
        match (open.kind, outcome) {
            (StepKind::ModelCall, Outcome::Completed(reply)) => talk.answered(&self.version, reply),
            (StepKind::ToolCall, result) => {
                talk.called(&self.version, open.call_id.as_deref(), result);
            }
            (StepKind::Local, Outcome::Completed(found)) if open.name == RECALL => {
                talk.recalled(&self.version, found);
            }
            _ => {}
        }
        self.size = self.size + talk.size() - before;
    }

    fn root(&mut self, at_ms: u64, outcome: &Outcome) -> Span {
        let own = self.own();
        let mut attributes = vec![
            message::text("gen_ai.operation.name", "invoke_workflow"),
            message::text("gen_ai.agent.name", &self.blueprint),
            message::text("moonswarm.run.id", self.id.to_string()),
            message::text("moonswarm.blueprint.hash", &self.hash),
        ];
        if !self.style.latest_only {
            attributes.push(message::text("gen_ai.workflow.name", &self.blueprint));
        }
        if !self.trigger.is_empty() {
            attributes.push(message::text("moonswarm.trigger.kind", &self.trigger));
        }
        attributes.extend(self.input.take().map(|text| contents::input(&text)));
        let output = outcome.output().and_then(|output| self.content("output", output));
        attributes.extend(output.map(|text| contents::output(&text)));
        let status = self.ended(outcome, &mut attributes);
        let mut links = std::mem::take(&mut self.links);
        links.extend(self.origin.map(|origin| link(origin, "fork")));
        Span {
            parent_span_id: self.started_in.map_or_else(Vec::new, |it| it.span.to_vec()),
            name: format!("invoke_workflow {}", self.blueprint),
            kind: SpanKind::Internal.into(),
            attributes,
            links,
            status,
            ..span(own, (self.created_ms, at_ms))
        }
    }

    fn step(
        &self,
        open: &OpenStep,
        (number, at_ms): (u32, u64),
        outcome: &Outcome,
        usage: Option<&Usage>,
    ) -> Option<Span> {
        let asking = open.parent.and_then(|parent| self.steps.get(&parent));
        let Step { name, kind, mut attributes } = step::described(
            open,
            outcome,
            asking.map(|asking| asking.name.as_str()),
            (&self.version, &self.style),
        )?;
        attributes.push(message::text("moonswarm.run.id", self.id.to_string()));
        attributes.push(message::whole("moonswarm.step", number.into()));
        attributes.push(message::whole("moonswarm.attempts", open.attempts.into()));
        let shows_worker =
            self.style.contents || !step::may_be_a_person(open, &self.version, &self.style);
        let worker = open.worker.as_ref().filter(|_| shows_worker);
        attributes.extend(worker.map(|it| message::text("moonswarm.worker", it)));
        step::spent(usage, &mut attributes);
        if self.style.contents {
            let output = outcome.output();
            step::contents(open, output, &self.version, &mut attributes);
        }
        let status = self.ended(outcome, &mut attributes);
        // A step within another without a span of its own is a part of the run.
        let parent = self.span_of(open.parent.unwrap_or(0));
        Some(Span {
            parent_span_id: parent.span.to_vec(),
            name,
            kind: kind.into(),
            attributes,
            events: open.events.clone(),
            dropped_events_count: open.dropped,
            links: open.sender.map(|sender| link(sender, "signal")).into_iter().collect(),
            status,
            ..span(self.span_of(number), (open.started_ms, at_ms))
        })
    }

    /// Adds how something ended; returns the status of its span. The message of a failure may contain
    /// words of a worker or of a model: it is exported only where contents are.
    fn ended(&self, outcome: &Outcome, attributes: &mut Vec<KeyValue>) -> Option<Status> {
        let (kind, said) = match outcome {
            Outcome::Completed(_) => return None,
            Outcome::Failed(Failure { kind, message, .. }) => (kind.as_str(), message.as_str()),
            Outcome::Canceled(reason) => ("canceled", reason.as_str()),
        };
        attributes.push(message::text("error.type", kind));
        let said = self.content("message", &Json::from(&Value::from(said)));
        let message = said.unwrap_or_else(|| kind.to_owned());
        Some(Status { message, code: StatusCode::Error.into() })
    }
}

/// Returns a span with its ids and times alone.
fn span(own: TraceParent, (start_ms, end_ms): (u64, u64)) -> Span {
    Span {
        trace_id: own.trace.to_vec(),
        span_id: own.span.to_vec(),
        start_time_unix_nano: nanos(start_ms),
        end_time_unix_nano: nanos(end_ms.max(start_ms)),
        flags: 1,
        ..Span::default()
    }
}

fn link(to: TraceParent, why: &str) -> Link {
    let attributes = vec![message::text("moonswarm.link", why)];
    Link { trace_id: to.trace.to_vec(), span_id: to.span.to_vec(), attributes }
}
