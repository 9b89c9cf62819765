//! The counts of a batch for the metrics of the host: found with its facts, and added once it is
//! durable.

use std::sync::Arc;

use serde::Deserialize;

use crate::{
    engine::run::{counted::Counted, resident::Run},
    journal::{Ending, Fact, Outcome, Usage, model_of},
    metrics::{Attempt, Counts, ModelCall},
    operator::Registry,
    protocol::{Failure, StepKind, failure::kind},
};

/// The part of a question to a model that says which model it is for.
#[derive(Deserialize)]
struct Asked {
    model: Option<String>,
}

/// The part of a trigger that is counted.
#[derive(Deserialize)]
pub(crate) struct TriggerKind {
    #[serde(default)]
    pub(crate) kind: String,
}

/// Returns what a fact counts that needs to know only itself.
pub(crate) fn of_fact(run: &Run, fact: &Fact, at_ms: u64) -> Option<Counted> {
    match fact {
        Fact::RunStarted(started) if started.generation == 0 => {
            let trigger = started.trigger.decode::<TriggerKind>().ok().map(|it| it.kind);
            let trigger = trigger.filter(|it| !it.is_empty()).unwrap_or("request".to_owned());
            Some(Counted::Started { trigger })
        }
        Fact::RunEnded(outcome) => {
            let took_ms = at_ms.saturating_sub(run.header.created_ms);
            Some(Counted::Ended { ending: outcome.into(), took_ms })
        }
        Fact::StepRecorded(step, outcome) => {
            Some(Counted::Step { kind: step.kind, ending: outcome.into(), took_ms: None })
        }
        _ => None,
    }
}

/// Counts the end of a step, before it ends.
pub(crate) fn end(
    (run, registry): (&mut Run, &Registry),
    (number, now_ms): (u32, u64),
    outcome: &Outcome,
    usage: Option<&Usage>,
    times: Option<(u64, u64)>,
) {
    let Some(step) = run.chain.step(number) else { return };
    let (kind, ending) = (step.scheduled.kind, Ending::from(outcome));
    let took_ms = now_ms.saturating_sub(step.scheduled_ms);
    let (word, failure) = match outcome {
        Outcome::Completed(_) => ("completed", None),
        Outcome::Failed(failure) => ("failed", Some(failure)),
        Outcome::Canceled(_) => ("canceled", None),
    };
    let model = model((&*run, registry), number, Some(outcome));
    let attempt = attempt(run, number, (word, failure), usage).map(|attempt| {
        let call = model.is_some().then_some(ModelCall { ending, took_ms });
        Counted::Attempt(Box::new(Attempt { times, model, call, ..attempt }))
    });
    let step = Counted::Step { kind, ending, took_ms: Some(took_ms) };
    run.pending.after.counts.extend([step].into_iter().chain(attempt));
}

/// Counts the end of an attempt that another follows, before it ends.
pub(crate) fn close(
    (run, registry): (&mut Run, &Registry),
    number: u32,
    failure: &Failure,
    usage: Option<&Usage>,
) {
    let word = if failure.is(kind::INTERRUPTED) { "interrupted" } else { "retried" };
    let model = model((&*run, registry), number, None);
    let attempt = attempt(run, number, (word, Some(failure)), usage);
    let attempt = attempt.map(|it| Counted::Attempt(Box::new(Attempt { model, ..it })));
    run.pending.after.counts.extend(attempt);
}

/// Returns the model of a question to one: the one that answered, else the one that was asked, else
/// the name of the operator.
fn model(
    (run, registry): (&Run, &Registry),
    number: u32,
    outcome: Option<&Outcome>,
) -> Option<String> {
    let step = &run.chain.step(number)?.scheduled;
    let task = run.task(number).filter(|_| step.kind == StepKind::ModelCall)?;
    if let Some(answered) = outcome.and_then(model_of) {
        return Some(answered);
    }
    let asked = task.request.input.decode::<Asked>().ok().and_then(|it| it.model);
    let of_operator = || registry.get(&task.operator)?.model_source()?.model;
    Some(asked.or_else(of_operator).unwrap_or_else(|| step.name.clone()))
}

/// Counts an attempt whose result left follow-up work, before its fact.
pub(crate) fn follow(run: &mut Run, number: u32, usage: Option<&Usage>) {
    let attempt = attempt(run, number, ("followed", None), usage);
    run.pending.after.counts.extend(attempt.map(|it| Counted::Attempt(Box::new(it))));
}

/// Returns the open attempt of a task.
fn attempt(
    run: &Run,
    number: u32,
    (outcome, failure): (&'static str, Option<&Failure>),
    usage: Option<&Usage>,
) -> Option<Attempt> {
    let (task, step) = (run.task(number)?, run.chain.step(number)?);
    // A person and a child process of the host have nothing to report.
    let is_child = step.worker.as_deref().is_some_and(|it| it.starts_with("pid "));
    let reports = !task.asks_people && !is_child;
    // Whoever was interrupted cannot report any more.
    let is_cut_off = failure.is_some_and(|it| it.is(kind::INTERRUPTED));
    Some(Attempt {
        operator: Arc::clone(&task.operator),
        agent: step.scheduled.name.clone(),
        outcome,
        failure: failure.map(|it| it.kind.clone()),
        times: None,
        usage: usage.cloned(),
        unreported: usage.is_none() && step.delivered_ms.is_some() && reports && !is_cut_off,
        model: None,
        call: None,
    })
}

/// Adds what a durable batch counts.
pub(crate) fn add(run: &mut Run, counts: &Counts, all: Vec<Counted>) {
    if all.is_empty() {
        return;
    }
    let blueprint = &run.header.blueprint;
    let series = run.series.get_or_insert_with(|| counts.runs_of(blueprint));
    for counted in all {
        match counted {
            Counted::Started { trigger } => counts.started(blueprint, &trigger),
            Counted::Ended { ending, took_ms } => series.end(ending, took_ms),
            Counted::Step { kind, ending, took_ms } => {
                series.step(kind, ending);
                if let Some(took_ms) = took_ms {
                    counts.took(kind, took_ms);
                }
            }
            Counted::Attempt(attempt) => counts.attempt(&attempt),
        }
    }
}
