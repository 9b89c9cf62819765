//! The views of open tasks.

use serde::Deserialize;

use crate::{
    blueprint::{Form, Labels},
    clock::Clock,
    engine::{
        run::question::Question,
        view::{
            shell,
            shown::{AnswerView, TaskView, rfc3339},
        },
    },
    operator::{GivenAnswer, Prompt, inquiry_of},
    protocol::{Json, RunId, TaskId},
    store::{TaskPhase, TaskRow},
};

/// Returns the labels that an open task requires of its worker.
pub(crate) fn labels(row: &TaskRow) -> Labels {
    #[derive(Default, Deserialize)]
    struct Asked {
        #[serde(default)]
        labels: Labels,
    }
    serde_json::from_str::<Asked>(&row.prompt).unwrap_or_default().labels
}

/// Returns the command that takes tasks of a queue.
pub(crate) fn take_from(queue: &str, labels: &Labels) -> String {
    format!("moonswarm worker{}{labels} -- <command>", shell::option("--queue", queue))
}

/// Returns the view of an open task; with its prompt if `whole`.
pub(crate) fn task(row: &TaskRow, run: RunId, whole: bool, clock: &Clock) -> TaskView {
    let deadline = row.deadline_ms.map(|at| rfc3339(clock.wall_of(at)));
    let id = TaskId::new(row.run, row.step, row.scheduled_ms);
    let prompt = if whole { serde_json::from_str::<Prompt>(&row.prompt).ok() } else { None };
    let question = row.question.as_deref().and_then(Question::open);
    let asked = inquiry_of(row);
    let command = match &row.queue {
        _ if question.is_some() => Some(format!("moonswarm advise {id} '<json>'")),
        _ if asked.is_some() => Some(format!("moonswarm approve {id}")),
        Some(queue) if row.phase == TaskPhase::Pending => Some(take_from(queue, &labels(row))),
        _ => None,
    };
    let form = (whole && asked.is_some()).then(|| {
        let schema = prompt.as_ref().and_then(|it| it.output_schema.as_ref());
        Form::of(schema.map(Json::to_value).as_ref())
    });
    let revision = match (&asked, &question) {
        (Some(asked), _) => Some(asked.revision.clone()),
        (None, question) => question.as_ref().map(|it| it.revision(row.attempt)),
    };
    let (question, question_data) = match question {
        Some(it) if whole => {
            let (text, data) = it.whole();
            (Some(text), data)
        }
        it => (it.map(|it| it.text()), None),
    };
    let (text, input, output_schema) = match prompt {
        Some(it) => (Some(it.prompt), Some(it.input), it.output_schema),
        None => (None, None, None),
    };
    TaskView {
        id,
        run,
        step: row.step,
        attempt: row.attempt,
        agent: row.agent.clone(),
        operator: row.operator.clone(),
        kind: row.kind.clone(),
        queue: row.queue.clone(),
        state: match row.phase {
            TaskPhase::Pending => "pending",
            TaskPhase::Delivered => "processing",
        }
        .to_owned(),
        summary: row.summary.clone(),
        worker: row.worker.clone(),
        scheduled_at: rfc3339(row.scheduled_ms),
        deadline: deadline.clone(),
        prompt: text,
        input,
        output_schema,
        revision,
        form,
        by: asked.as_ref().map(|it| it.by.clone()).unwrap_or_default(),
        required: asked.as_ref().map(|it| it.required),
        answers: asked.iter().flat_map(|it| &it.answers).map(answer).collect(),
        reminders: asked.as_ref().map(|it| it.reminders),
        expires_at: asked.and(deadline),
        question,
        question_data,
        command,
    }
}

fn answer(given: &GivenAnswer) -> AnswerView {
    AnswerView { by: given.by.clone(), at: rfc3339(given.at_ms), output: given.output.clone() }
}
