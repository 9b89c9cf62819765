//! An open composite: its members and their progress.

use std::sync::Arc;

use crate::{
    engine::run::task::OpenTask,
    flow::{Course, LoopPart, TaskOpts, TaskRequest},
    operator::Composite,
    protocol::StepKind,
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
}

impl OpenComposite {
    pub(crate) fn of(task: OpenTask, composite: Composite) -> Self {
        Self {
            request: task.request,
            operator: task.operator,
            course: Course::new(composite.members().len()),
            first: composite.next(),
            composite,
        }
    }

    /// Returns the request of the member at an index.
    pub(crate) fn request_of(&self, place: usize) -> Option<TaskRequest> {
        Some(self.asked(self.composite.members().get(place)?))
    }

    /// Returns the request of a member.
    pub(crate) fn asked(&self, member: &str) -> TaskRequest {
        let opts = TaskOpts { operator: Some(member.to_owned()), ..self.request.opts.clone() };
        // A member of a tool's composite is a task; a member of a loop's own model call is a model
        // call too.
        let part = self.request.part.as_ref().filter(|part| part.kind != StepKind::ToolCall);
        let part =
            part.map(|part| Box::new(LoopPart { name: member.to_owned(), ..(**part).clone() }));
        TaskRequest { opts, part, ..self.request.clone() }
    }
}
