//! The row of a task, and the prompt in it.

use serde::Deserialize;

use crate::{
    engine::{
        run::{resident::Run, task::OpenTask},
        turn::{
            facts::{self, Turn},
            settle::config_of,
        },
    },
    operator::{Inquiry, Prompt},
    protocol::{Failure, Json, TaskId, failure::kind},
    store::{TaskPhase, TaskRow},
};

/// The row of an attempt that leaves the process, with its prompt rendered.
pub(crate) fn task_row(turn: &Turn<'_>, number: u32) -> Result<TaskRow, Failure> {
    let step = turn.run.chain.step(number).expect("a task's step is in the chain");
    let task = turn.run.task(number).expect("the caller has the task");
    let backend = turn.shared.registry.get(&task.operator);
    let id = TaskId::new(turn.run.num, number, step.scheduled_ms);
    let mut prompt = prompt(turn.run, task, id)?;
    let opts = &task.request.opts;
    let mut deadline_ms = None;
    if task.asks_people {
        let asking = opts.asking.over(&task.agent.agent().asking);
        prompt.inquiry = Some(Inquiry::new(&prompt, &asking, facts::time_of(turn)));
        // Nobody fetches it: the time of a task for people is counted from when it is asked.
        deadline_ms = task.timeout_ms.map(|timeout| turn.steady_ms + timeout);
    }
    Ok(TaskRow {
        run: turn.run.num,
        step: number,
        attempt: task.attempt,
        epoch: turn.run.header.epoch,
        agent: task.agent.name().to_string(),
        operator: task.operator.to_string(),
        kind: backend.map_or("", |backend| backend.kind()).to_owned(),
        queue: backend
            .and_then(|backend| backend.queue(task.agent.agent(), task.agent.name()))
            .map(str::to_owned),
        phase: TaskPhase::Pending,
        scheduled_ms: step.scheduled_ms,
        opened_ms: turn.now_ms,
        worker: None,
        deadline_ms,
        lease_ms: None,
        graces: 0,
        summary: opts.summary.clone().or_else(|| title_of(&prompt.input)),
        prompt: serde_json::to_string(&prompt).expect("a prompt is plain data"),
        question: None,
    })
}

/// Returns the title in an input, if it has one.
fn title_of(input: &Json) -> Option<String> {
    #[derive(Deserialize)]
    struct Titled {
        title: Option<serde_json::Value>,
    }
    // A list would be read as the fields in their order.
    let fields = input.as_str().trim_start().starts_with('{').then_some(input)?;
    fields.decode::<Titled>().ok()?.title?.as_str().map(str::to_owned)
}

fn prompt(run: &Run, task: &OpenTask, id: TaskId) -> Result<Prompt, Failure> {
    let (started, _) = run.chain.started().expect("a run with a task has started");
    let input = &task.request.input;
    let program = run.program.as_ref().expect("a task is prepared with the run's program");
    if task.request.is_model_call() {
        return Ok(unseen(run, task, id));
    }
    let rendered = task
        .agent
        .render(
            program.blueprint(),
            &crate::blueprint::Slots {
                input,
                run_input: &started.input,
                run_id: &run.id.to_string(),
                attempt: task.attempt,
            },
        )
        .map_err(|error| Failure::new(kind::TEMPLATE, error.to_string()))?;
    Ok(Prompt {
        system: rendered.system,
        addendum: config_of(task).system_addendum,
        prompt: rendered.prompt,
        input: input.clone(),
        output_schema: task.agent.agent().output.clone(),
        worker: task.agent.agent().worker.clone(),
        ..unseen(run, task, id)
    })
}

/// Returns the prompt in the row of a model's call: nobody fetches it, and the conversation is in
/// the journal.
fn unseen(run: &Run, task: &OpenTask, id: TaskId) -> Prompt {
    Prompt {
        task: id,
        run: run.id,
        agent: task.agent.name().to_string(),
        attempt: task.attempt,
        system: None,
        addendum: None,
        prompt: String::new(),
        input: Json::null(),
        output_schema: None,
        summary: task.request.opts.summary.clone(),
        idempotency_key: task.request.opts.idempotency_key.clone(),
        inquiry: None,
        labels: task.agent.agent().labels.clone(),
        session: task.request.opts.session_of(),
        worker: None,
    }
}
