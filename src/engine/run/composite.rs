//! An open composite: its members and their progress.

use std::sync::Arc;

use crate::{
    engine::run::{
        driver::{Command, Driver, Work, in_key},
        members::Event,
        task::OpenTask,
    },
    fault,
    flow::{
        CompositeAction, Course, KeyOwner, LoopPart, TaskOpts, TaskRequest, response::LoopStop,
    },
    journal::{Outcome, Scheduled, StepKey, Usage},
    middleware::Promise,
    operator::Composite,
    protocol::{Json, StepKind},
};

/// An open composite.
pub(crate) struct OpenComposite {
    /// The request; each member gets the same.
    pub(crate) request: TaskRequest,
    pub(crate) operator: Arc<str>,
    pub(crate) composite: Composite,
    pub(crate) course: Course,
    /// The index of the first member, by the turn at its start.
    pub(crate) first: usize,
    /// The operators and tools that every member so far has left allowed; any if absent.
    pub(crate) allowed: Option<Vec<String>>,
    /// The values that the layers store if the composite completes.
    pub(crate) promises: Vec<Promise>,
}

impl OpenComposite {
    pub(crate) fn of(number: u32, task: OpenTask, composite: Composite) -> Self {
        let OpenTask { mut request, operator, .. } = task;
        if request.opts.idempotency_key.is_some() && request.opts.key_owner.is_none() {
            let (operator, input) = (Arc::clone(&operator), request.input.clone());
            let owner = KeyOwner { step: number, operator, input };
            request.opts.key_owner = Some(Arc::new(owner));
        }
        Self {
            request,
            operator,
            course: Course::new(composite.members().len()),
            first: composite.next(),
            composite,
            allowed: None,
            promises: Vec::new(),
        }
    }

    /// Takes what layers have promised with the result of a member; under each key one is stored.
    pub(crate) fn promise(&mut self, promises: Vec<Promise>) {
        for promise in promises {
            self.promises.retain(|it| (&it.layer, &it.key) != (&promise.layer, &promise.key));
            self.promises.push(promise);
        }
    }

    /// Returns the request of a member.
    fn asked(&self, member: &str) -> TaskRequest {
        let opts = TaskOpts { operator: Some(member.to_owned()), ..self.request.opts.clone() };
        // A member of a tool's composite is a task; a member of a loop's own model call is a model
        // call too.
        let part = self.request.part.as_ref().filter(|part| part.kind != StepKind::ToolCall);
        let part =
            part.map(|part| Box::new(LoopPart { name: member.to_owned(), ..(**part).clone() }));
        TaskRequest { opts, part, ..self.request.clone() }
    }
}

impl Driver for OpenComposite {
    fn advance(&mut self) -> Vec<Command> {
        match self.composite.rule().turn(&self.course, self.first) {
            CompositeAction::Wait => Vec::new(),
            CompositeAction::Begin(place) => vec![Command::Begin(place)],
            CompositeAction::Complete(place) => {
                let output = self.course.output(place).cloned().unwrap_or_else(Json::null);
                vec![Command::Complete(output)]
            }
            CompositeAction::Fail => {
                let mut failure =
                    self.composite.rule().failure(&self.course, self.composite.members());
                // The failure is that of the composite, not of the member that failed last.
                failure.step = None;
                vec![Command::Stop(LoopStop::of(failure))]
            }
        }
    }

    fn begin(&mut self, place: usize) -> Option<(TaskRequest, Work)> {
        fault::point("engine.composite_member");
        self.course.begin(place);
        Some((self.asked(self.composite.members().get(place)?), Work::Task))
    }

    fn narrow(&mut self, _: &StepKey, allowed: Option<Vec<String>>) {
        let Some(list) = allowed else { return };
        match &mut self.allowed {
            Some(allowed) => allowed.retain(|it| list.contains(it)),
            None => self.allowed = Some(list),
        }
    }

    fn ended(&mut self, part: &StepKey, outcome: Outcome, _: &Usage) {
        if let Some((_, _, place)) = part.scope.outer() {
            self.course.end(place as usize, outcome);
        }
    }

    fn part(&self, step: &Scheduled) -> Option<(TaskRequest, Work)> {
        let member = match step.kind {
            StepKind::Task => step.call_id.as_deref().unwrap_or(&self.operator),
            _ => &step.name,
        };
        Some((self.asked(member), Work::Task))
    }

    fn replay(&mut self, events: &[Event]) {
        for event in events {
            match event {
                Event::Began { key, .. } => {
                    if let Some((_, _, place)) = key.scope.outer() {
                        self.course.begin(place as usize);
                    }
                }
                Event::Ended { key, outcome, used, allowed } => {
                    self.narrow(key, allowed.clone());
                    self.ended(key, outcome.clone(), used);
                }
            }
        }
    }

    fn key_of(&self, own: &StepKey, place: usize) -> StepKey {
        StepKey::new(own.scope.branch(own.index, in_key(place)), 0)
    }

    fn agent(&self) -> &str {
        &self.request.agent
    }

    fn farewell(&self, completed: bool) -> &'static str {
        match completed {
            true => "another member's result was taken",
            false => "the composite has failed",
        }
    }
}
