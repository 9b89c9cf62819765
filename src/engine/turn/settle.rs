//! Calls the layers around a run, and takes their notes.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::{
    engine::{
        run::{
            branches::composite_of, open::Open, perform::Perform, resident::Run, task::OpenTask,
        },
        shared::{message::Internal, shards::Shared},
        turn::facts::{self, Turn},
    },
    journal::{Decision, Fact, Outcome, StepKey, Usage},
    middleware::{About, Promise, Settled, Stacks, Storable, TaskDone, Voice},
    protocol::{Failure, Json, LifecycleEvent, OperatorConfig, TaskId},
    store::Write,
};

/// The most events that a run may tell while it stays in memory; more are dropped, each with a line
/// in the log. A run that is read again begins anew.
const EVENTS: u32 = 1_000;

/// Carries what layers say to their run: as messages, or, while the shard itself is at it, as a
/// part of the transition that is under way.
pub(crate) struct RunVoice {
    shared: Arc<Shared>,
    run: u64,
    step: u32,
    here: Mutex<Option<LayerNotes>>,
}

/// The notes of layers.
#[derive(Default)]
pub(crate) struct LayerNotes {
    events: Vec<LifecycleEvent>,
    pause: Option<String>,
}

impl RunVoice {
    /// Returns the notes so far. Later ones are sent as messages.
    pub(crate) fn hand_over(&self) -> LayerNotes {
        self.here.lock().take().unwrap_or_default()
    }
}

impl Voice for RunVoice {
    fn say(&self, event: LifecycleEvent) {
        if let Some(said) = &mut *self.here.lock() {
            said.events.push(event);
            return;
        }
        let (step, event) = (self.step, Box::new(event));
        self.shared.tell(self.run, Internal::Tell { step, event });
    }

    fn pause(&self, reason: String) {
        if let Some(said) = &mut *self.here.lock() {
            said.pause = Some(reason);
            return;
        }
        self.shared.tell(self.run, Internal::Rest { by: "middleware".into(), reason });
    }
}

/// The stacks that a run goes through.
pub(crate) fn stacks_of(turn: &Turn<'_>) -> Arc<Stacks> {
    match &turn.run.program {
        Some(program) => turn.shared.stacks.of(program),
        None => Arc::clone(turn.shared.stacks.host()),
    }
}

/// Returns true if no layer looks at the dispatches of a run at present, or at their outcomes.
pub(crate) fn is_plain(turn: &Turn<'_>) -> bool {
    turn.run.program.as_ref().is_some_and(|program| turn.shared.stacks.is_plain(program))
}

/// Returns the description of a task's open attempt.
pub(crate) fn about(turn: &Turn<'_>, id: TaskId, task: &OpenTask) -> (Arc<About>, Arc<RunVoice>) {
    let voice = Arc::new(voice(turn, id.step()));
    let heard = Arc::clone(&voice) as Arc<dyn Voice>;
    let (started, started_ms) = turn.run.chain.started().expect("a run with a task has started");
    let program = turn.run.program.as_ref().expect("a task is prepared with the run's program");
    let [blueprint, version, principal] = turn.run.names.get_or_init(|| {
        let blueprint = program.blueprint();
        [blueprint.name(), blueprint.hash(), &started.principal].map(Arc::from)
    });
    let agent = task.agent.agent();
    let mut tools = agent.tools.clone();
    if let Some(worker) = &agent.worker {
        tools.extend(worker.tools.iter().cloned());
    }
    let meters = turn.shared.stacks.meters(program);
    let about = About {
        run: turn.run.id,
        task: id,
        attempt: task.attempt,
        epoch: turn.run.header.epoch,
        again: task.again,
        blueprint: Arc::clone(blueprint),
        version: Arc::clone(version),
        agent: Arc::clone(task.agent.name()),
        operator: Arc::clone(&task.operator),
        asks_people: task.asks_people,
        model_call: task.request.is_model_call(),
        tools,
        // The key is that of the step, whose own operator was asked first.
        idempotency_key: match task.follows {
            None => task.request.opts.idempotency_key.clone(),
            Some(_) => None,
        },
        key_owner: task.request.opts.key_owner.clone(),
        principal: Arc::clone(principal),
        started_ms,
        used: if meters { used(turn.run) } else { Usage::default() },
        voice: heard,
        storable: meters.then(|| storable(turn, task)),
        promises: meters.then(Mutex::default),
        allowed: Default::default(),
        over: std::sync::atomic::AtomicBool::new(false),
        passed: std::sync::atomic::AtomicBool::new(false),
    };
    (Arc::new(about), voice)
}

/// Returns the form in which layers store the results of a task.
fn storable(turn: &Turn<'_>, task: &OpenTask) -> Storable {
    let (agent, stacks) = (Arc::clone(&task.agent), stacks_of(turn));
    let most = turn.shared.settings.limits.value;
    Arc::new(move |output: &Json| {
        let clean = stacks.redacted_output(output.clone());
        let fits = clean.len() <= most && agent.output().accept_json(&clean).is_ok();
        fits.then_some(clean)
    })
}

fn voice(turn: &Turn<'_>, step: u32) -> RunVoice {
    let (shared, here) = (Arc::clone(turn.shared), Mutex::new(Some(LayerNotes::default())));
    RunVoice { shared, run: turn.run.num, step, here }
}

/// Takes what layers said into the transition that is under way.
pub(crate) fn take_said(turn: &mut Turn<'_>, number: u32, said: LayerNotes) {
    for event in said.events {
        told(turn, Some(number), &event);
    }
    if let Some(reason) = said.pause
        && turn.run.chain.paused().is_none()
        && !turn.run.is_ended()
    {
        let by = "middleware".to_owned();
        facts::append(turn, Fact::Decided(Decision::Pause { by, reason }));
    }
}

/// Passes the outcome of an attempt to the layers if it did not come through them: its worker
/// reported, it timed out, it was canceled, a person answered.
///
/// Every outcome passes once, here or on the way back of its dispatch. A refused report leaves the
/// attempt open, and the next one passes again.
pub(crate) fn settle(turn: &mut Turn<'_>, number: u32, outcome: Settled) -> Settled {
    let Some(task) = turn.run.task(number) else { return outcome };
    if is_plain(turn) {
        if let Some(about) = &task.about {
            about.give_up();
        }
        return outcome;
    }
    let about = match &task.about {
        Some(about) => Arc::clone(about),
        // It was dispatched before the run was loaded, or it has a result although a pause holds
        // its dispatch back.
        None if task.row.is_some() && (task.again || outcome.is_ok()) => {
            let scheduled_ms = turn.run.chain.step(number).map_or(0, |step| step.scheduled_ms);
            self::about(turn, TaskId::new(turn.run.num, number, scheduled_ms), task).0
        }
        None => return outcome,
    };
    // Its dispatch may still be running: the layers no longer settle the outcome of that.
    about.give_up();
    let input = task.request.input.clone();
    let voice = Arc::new(voice(turn, number));
    let about = about.heard_by(Arc::clone(&voice) as Arc<dyn Voice>);
    let outcome = stacks_of(turn).dispatch.settle(&about, &input, outcome);
    take_said(turn, number, voice.hand_over());
    if let Some(task) = turn.run.task_mut(number) {
        task.promises = about.take_promises();
    }
    outcome
}

/// The result of a task is accepted, with its effects: what the layers have promised to store of it
/// goes into the same commit.
pub(crate) fn accepted(run: &mut Run, number: u32) {
    let Some(task) = run.task_mut(number) else { return };
    let promises = std::mem::take(&mut task.promises);
    store_of(run, number, promises);
}

/// A step whose work was that of several tasks completes with a value: what the layers have
/// promised to store of it goes into the same commit.
pub(crate) fn ended(run: &mut Run, number: u32, value: &Json) {
    let mut promises = match run.open.get_mut(number) {
        Some(Open::Task(task)) => std::mem::take(&mut task.first),
        Some(Open::Composite(open)) => std::mem::take(&mut open.promises),
        _ => return,
    };
    promises.iter_mut().for_each(|promise| promise.answer(value));
    store_of(run, number, promises);
}

/// Lets the layers promise anew what they store of a step, before others go on from the result of
/// its own operator.
pub(crate) fn take_up(turn: &mut Turn<'_>, number: u32) {
    let (Some(task), false) = (turn.run.task(number), is_plain(turn)) else { return };
    let scheduled_ms = turn.run.chain.step(number).map_or(0, |step| step.scheduled_ms);
    let (about, _) = about(turn, TaskId::new(turn.run.num, number, scheduled_ms), task);
    stacks_of(turn).dispatch.take_up(&about, &task.request.input);
    if let Some(task) = turn.run.task_mut(number) {
        task.first = about.take_promises();
    }
}

/// Keeps what layers hold for the steps of a run that leaves the memory: they take it up with the
/// run.
pub(crate) fn keep_held(run: &mut Run) {
    for (_, open) in run.open.each_mut() {
        if let Open::Task(task) = open {
            task.first.drain(..).for_each(Promise::take_back);
        }
    }
}

fn store_of(run: &mut Run, number: u32, promises: Vec<Promise>) {
    let key = run.chain.step(number).map(|step| step.scheduled.key.clone());
    if let Some(key) = key {
        store(run, &key, promises);
    }
}

/// Stores with the next commit of a run what layers have promised of a step. That of a member is
/// for its composite to store.
pub(crate) fn store(run: &mut Run, key: &StepKey, promises: Vec<Promise>) {
    if promises.is_empty() {
        return;
    }
    let whole = composite_of(run, key).and_then(|(_, number)| run.open.get_mut(number));
    if let Some(Open::Composite(open)) = whole {
        return open.promise(promises);
    }
    for promise in promises {
        // The node that drives takes no values of layers from another.
        if promise.joins_commit()
            && run.lent.is_none()
            && let Some((value, expires_ms)) = &promise.value
        {
            run.pending.writes.push(Write::PutKept {
                layer: promise.layer.clone(),
                key: promise.key.clone(),
                value: value.as_str().to_owned(),
                expires_ms: Some(*expires_ms),
            });
        }
        run.pending.after.performs.push(Perform::Keep(promise));
    }
}

/// Passes the answer of a person to the layers.
pub(crate) fn settle_answer(turn: &mut Turn<'_>, number: u32, outcome: Outcome) -> Outcome {
    let settled = match outcome {
        Outcome::Completed(output) => settle(turn, number, Ok(TaskDone::new(output))),
        Outcome::Failed(failure) => settle(turn, number, Err(Box::new(failure.into()))),
        Outcome::Canceled(_) => return outcome,
    };
    match settled {
        Ok(done) => Outcome::Completed(done.output),
        Err(short) => Outcome::Failed(located(turn.run, number, short.failure)),
    }
}

/// Puts an event of a run's life on its stream.
pub(crate) fn told(turn: &mut Turn<'_>, step: Option<u32>, event: &LifecycleEvent) {
    if turn.run.is_ended() {
        return;
    }
    turn.run.told += 1;
    if turn.run.told > EVENTS {
        tracing::warn!(run = %turn.run.id, kind = event.kind(), "an event too many is dropped");
        return;
    }
    let kind = event.kind().to_owned();
    let data = Json::from(event.data());
    facts::append(turn, Fact::Decided(Decision::Told { step, kind, data }));
}

/// Adds to a failure where it comes from.
pub(crate) fn located(run: &Run, number: u32, failure: Failure) -> Failure {
    match run.task(number) {
        Some(task) => failure.at(number, Some(task.agent.name()), task.attempt),
        None => failure,
    }
}

/// Returns the operators that the layers left to an attempt, any if absent, where these are not those
/// of its agent and its call.
pub(crate) fn left_by_layers(task: &OpenTask) -> Option<Option<Vec<String>>> {
    let left = task.about.as_ref().and_then(|about| about.allowed())?;
    (left != own_operators(task)).then_some(left)
}

/// Returns the operators that the operator of an attempt may call by its call and its agent; any if
/// absent.
pub(crate) fn own_operators(task: &OpenTask) -> Option<Vec<String>> {
    let asked = task.request.opts.asked().and_then(|asked| asked.config);
    operators_of(task, asked.and_then(|asked| asked.allowed_operators))
}

fn operators_of(task: &OpenTask, asked: Option<Vec<String>>) -> Option<Vec<String>> {
    if let Some(allowed) = task.request.part.as_ref().and_then(|part| part.allowed.as_ref()) {
        return Some(allowed.clone());
    }
    let tools = &task.agent.agent().tools;
    asked.or_else(|| (!tools.is_empty()).then(|| tools.clone()))
}

/// Returns the overrides of an operator's defaults for an attempt.
pub(crate) fn config_of(task: &OpenTask) -> OperatorConfig {
    let agent = task.agent.agent();
    let mut config = OperatorConfig {
        model: agent.model.clone(),
        max_duration: task.timeout_ms.map(crate::protocol::DurationMs::from_millis),
        ..OperatorConfig::default()
    };
    let mut operators = None;
    if let Some(asked) = task.request.opts.asked().and_then(|asked| asked.config) {
        config.max_turns = asked.max_turns;
        config.max_cost = asked.max_cost;
        config.max_duration = asked.max_duration.or(config.max_duration);
        config.model = asked.model.or(config.model);
        operators = asked.allowed_operators;
        config.system_addendum = asked.system_addendum;
    }
    // The other settings of a part's call are those of its loop.
    config.allowed_operators = operators_of(task, operators);
    config
}

/// Returns the usage of a run so far, as far as it was reported.
fn used(run: &Run) -> Usage {
    let mut sum = Usage::default();
    for step in run.chain.steps() {
        if let Some(usage) = &step.usage {
            sum.add(usage);
        }
    }
    sum
}
