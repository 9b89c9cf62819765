//! An open composite: its members and how far each is.

use std::sync::Arc;

use crate::{
    engine::run::task::OpenTask,
    flow::{Course, Part, TaskOpts, TaskRequest},
    operator::Composite,
    protocol::StepKind,
};

/// An open composite.
pub(crate) struct OpenComposite {
    /// What was asked; each member is asked the same.
    pub(crate) request: TaskRequest,
    pub(crate) operator: Arc<str>,
    pub(crate) composite: Composite,
    pub(crate) course: Course,
    /// Whose turn it was when it began.
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

    /// What the member at a place is asked.
    pub(crate) fn request_of(&self, place: usize) -> Option<TaskRequest> {
        Some(self.asked(self.composite.members().get(place)?))
    }

    /// What a member is asked.
    pub(crate) fn asked(&self, member: &str) -> TaskRequest {
        let opts = TaskOpts { operator: Some(member.to_owned()), ..self.request.opts.clone() };
        // A member of what a tool stands for is a task; of what a loop asks itself, it is asked too.
        let part = self.request.part.as_ref().filter(|part| part.kind != StepKind::ToolCall);
        let part = part.map(|part| Box::new(Part { name: member.to_owned(), ..(**part).clone() }));
        TaskRequest { opts, part, ..self.request.clone() }
    }
}
