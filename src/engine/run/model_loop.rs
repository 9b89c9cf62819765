//! An open loop of model calls and tool calls.

use std::{collections::BTreeSet, sync::Arc};

use crate::{
    blueprint::{CompiledAgent, Does, LoopJudge},
    engine::run::{
        conversations::InLine,
        driver::{Command, Driver, Work, in_key},
        members::Event,
    },
    fault,
    flow::{
        TaskRequest,
        response::{Begin, Call, LoopAction, LoopStop, ResponseFlow},
    },
    journal::{Outcome, Scheduled, StepKey, Usage},
    protocol::{Failure, OperatorConfig, StepKind, failure::kind},
};

/// An open loop.
pub(crate) struct OpenLoop {
    pub(crate) request: TaskRequest,
    pub(crate) agent: Arc<CompiledAgent>,
    pub(crate) operator: Arc<str>,
    pub(crate) flow: ResponseFlow,
    pub(crate) judge: LoopJudge,
    pub(crate) instructions: Option<String>,
    /// The settings of the call, where the task was dispatched with some.
    pub(crate) given: OperatorConfig,
    pub(crate) max_duration_ms: Option<u64>,
    /// The scope of state that turns are written to; the run's own if absent.
    pub(crate) flush_scope: Option<String>,
    /// The number of parts that have a step.
    pub(crate) recorded: usize,
    /// The indexes of parts that wait for others.
    pub(crate) held: BTreeSet<usize>,
    /// The reason why it cannot continue: its history differs from what it would do.
    pub(crate) broken: Option<Failure>,
    /// The operators and tools that the layers left to the last model call; any if absent.
    pub(crate) allowed: Option<Vec<String>>,
    /// The size of the results of its parts, in bytes.
    pub(crate) came: usize,
    /// Its place in the line of its conversation, once it has one.
    pub(crate) in_line: Option<InLine>,
    /// True if it no longer waits for the loops before it.
    pub(crate) overtakes: bool,
}

/// The agent that asks a person for approval.
pub(crate) const APPROVE: &str = "approve";

/// The name of a step in which a model summarizes.
pub(crate) const COMPACT: &str = "compact";

/// The name of a step that reads the conversation of a session.
pub(crate) const RECALL: &str = "recall";

/// The name of a step that writes the conversation of a session.
pub(crate) const KEEP: &str = "keep";

/// The name of a step that writes a turn to state.
pub(crate) const FLUSH: &str = "flush";

impl OpenLoop {
    /// Returns the time of the warning and the time limit, in milliseconds from the start.
    pub(crate) fn times(&self) -> Option<(u64, u64)> {
        let max_ms = self.max_duration_ms?;
        Some((self.flow.near_end_ms(max_ms), max_ms))
    }

    /// Returns the text that names its conversation, if it has one.
    pub(crate) fn conversation(&self) -> Option<String> {
        let conversation = self.flow.settings().conversation.as_ref()?;
        Some(format!("{}/{}", conversation.scope, conversation.key))
    }

    /// Returns true if it has not begun, because another loop is in its conversation.
    pub(crate) fn waits_in_line(&self) -> bool {
        self.recorded == 0
            && !self.overtakes
            && self.in_line.as_ref().is_some_and(|line| !line.is_first())
    }

    /// Returns the approximate size in bytes: the request, and the results of its parts.
    pub(crate) fn size(&self) -> usize {
        self.request.size() + self.came
    }

    pub(crate) fn is_held(&self, place: usize) -> bool {
        self.held.contains(&place)
    }

    /// Releases the parts that no longer wait for others, and returns their places.
    pub(crate) fn release(&mut self) -> BTreeSet<usize> {
        let held = std::mem::take(&mut self.held);
        let (free, held) = held.into_iter().partition(|place| self.flow.may_start(*place));
        self.held = held;
        free
    }

    fn work(&self, place: usize) -> Option<Work> {
        Some(match self.flow.part(place)? {
            Begin::Approve(call) | Begin::Call(call) if !self.permits(call) => {
                Work::Refused(self.forbidden(call))
            }
            Begin::List { .. } | Begin::Ask { .. } | Begin::Compact { .. } | Begin::Approve(_) => {
                Work::Task
            }
            Begin::Flush { turn } => {
                Work::State { scope: self.flush_scope.clone(), op: self.flush_op(*turn) }
            }
            begin @ (Begin::Recall | Begin::Keep) => {
                let (scope, op) = self.conversation_op(begin)?;
                Work::State { scope: Some(scope), op }
            }
            Begin::Refuse(_, failure) => Work::Refused(failure.clone()),
            Begin::Call(call) => match self.does(call) {
                Some(Does::Task { .. }) => Work::Task,
                Some(Does::State { op, scope, prefix }) => {
                    Work::State { scope, op: op.op(&call.arguments, &prefix) }
                }
                None => {
                    let message = format!("there is no tool {:?}", call.name);
                    Work::Refused(Failure::new(kind::NOT_FOUND, message))
                }
            },
        })
    }

    /// Returns true if the layers left the tool of a call to the model that asks for it.
    fn permits(&self, call: &Call) -> bool {
        self.allowed.as_ref().is_none_or(|allowed| self.judge.permits(allowed, &call.name))
    }

    fn forbidden(&self, call: &Call) -> Failure {
        let allowed = self.allowed.as_deref().unwrap_or_default().join(", ");
        let message = format!("{} is none of those that it may call ({allowed})", call.name);
        Failure::new(kind::REFUSED, message)
    }

    /// Replays that a part has a step, as the journal says.
    fn replay_begin(&mut self, place: usize, kind: StepKind, name: &str) {
        let begun = self.flow.reaches(place, &self.judge);
        let same = match self.flow.part(place) {
            Some(Begin::Ask { .. }) => kind == StepKind::ModelCall,
            Some(Begin::Compact { .. }) => kind == StepKind::Local && name == COMPACT,
            Some(Begin::Flush { .. }) => kind == StepKind::Local && name == FLUSH,
            Some(Begin::Recall) => kind == StepKind::Local && name == RECALL,
            Some(Begin::Keep) => kind == StepKind::Local && name == KEEP,
            Some(Begin::Approve(_)) => kind == StepKind::Task && name == APPROVE,
            Some(Begin::List { server }) => kind == StepKind::Local && name == server,
            Some(Begin::Call(call) | Begin::Refuse(call, _)) => {
                kind == StepKind::ToolCall && name == call.name
            }
            None => false,
        };
        if !(begun && same) && self.broken.is_none() {
            let message = format!(
                "step {place} of the loop is in the journal, and the loop would do something else \
                 there"
            );
            self.broken = Some(Failure::new(kind::REFUSED, message));
        }
        self.recorded = self.recorded.max(place + 1);
    }
}

impl Driver for OpenLoop {
    fn advance(&mut self) -> Vec<Command> {
        if let Some(failure) = self.broken.take() {
            return vec![Command::Stop(LoopStop::of(failure))];
        }
        let mut commands = Vec::new();
        if self.recorded >= self.flow.begun() {
            let next = self.flow.turn(&self.judge);
            commands.extend(self.flow.take_events().into_iter().map(Command::Tell));
            match next {
                LoopAction::Wait | LoopAction::Begin(_) => {}
                LoopAction::Done { value, .. } => commands.push(Command::Complete(value)),
                LoopAction::Stop(stop) => commands.push(Command::Stop(stop)),
            }
        }
        // All parts of a batch are recorded before any of them is executed.
        if self.recorded < self.flow.begun() {
            fault::point("engine.loop_batch");
            commands.extend((self.recorded..self.flow.begun()).map(Command::Begin));
        }
        commands
    }

    fn begin(&mut self, place: usize) -> Option<(TaskRequest, Work)> {
        self.recorded = self.recorded.max(place + 1);
        if !self.flow.may_start(place) {
            self.held.insert(place);
        }
        Some((self.request_of(place)?, self.work(place)?))
    }

    fn narrow(&mut self, part: &StepKey, allowed: Option<Vec<String>>) {
        if matches!(self.flow.part(part.index as usize), Some(Begin::Ask { .. })) {
            self.allowed = allowed;
        }
    }

    fn ended(&mut self, part: &StepKey, outcome: Outcome, used: &Usage) {
        self.came += outcome.size_hint();
        self.flow.end(part.index as usize, outcome, used);
    }

    fn part(&self, step: &Scheduled) -> Option<(TaskRequest, Work)> {
        let place = step.key.index as usize;
        Some((self.request_of(place)?, self.work(place)?))
    }

    fn replay(&mut self, events: &[Event]) {
        if asked_without_recall(events) {
            // Of an earlier release, whose loops had no conversations.
            self.flow.forget_conversation();
        }
        for event in events {
            match event {
                Event::Began { key, kind, name } => {
                    self.replay_begin(key.index as usize, *kind, name);
                }
                Event::Ended { key, outcome, used, allowed } => {
                    self.narrow(key, allowed.clone());
                    self.ended(key, outcome.clone(), used);
                }
            }
        }
        self.flow.take_events();
        self.held = (0..self.recorded).filter(|place| !self.flow.may_start(*place)).collect();
    }

    fn key_of(&self, own: &StepKey, place: usize) -> StepKey {
        StepKey::new(own.scope.branch(own.index, 0), in_key(place))
    }

    fn agent(&self) -> &str {
        self.agent.name()
    }

    fn farewell(&self, _: bool) -> &'static str {
        "the loop that it belongs to has ended"
    }
}

/// Returns true if a loop asked its model without having read a conversation.
fn asked_without_recall(events: &[Event]) -> bool {
    let began = events.iter().find_map(|event| match event {
        Event::Began { kind: StepKind::ModelCall, .. } => Some(true),
        Event::Began { name, .. } if name == RECALL => Some(false),
        _ => None,
    });
    began.unwrap_or_default()
}
