//! What the layers around a run see of it, and what they tell it.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, PoisonError},
};

use crate::{
    engine::{
        run::{resident::Run, task::OpenTask},
        shard::owner::Shard,
        shared::{message::RunMsg, shards::Shared},
    },
    flow::TaskRequest,
    journal::{Decision, Fact, Outcome, Usage},
    middleware::{About, Settled, Short, Stacks, TaskDone, Voice, message_of},
    protocol::{Effect, Failure, Json, LifecycleEvent, OperatorConfig, TaskId, failure::kind},
};

/// The most events that one step may tell; more are dropped, with a line in the log.
const EVENTS: u32 = 1_000;

/// Carries what layers say to their run: as messages, or, while the shard itself is at it, as a
/// part of the transition that is under way.
pub(crate) struct RunVoice {
    shared: Arc<Shared>,
    run: u64,
    step: u32,
    here: Mutex<Option<Said>>,
}

/// What layers said.
#[derive(Default)]
pub(crate) struct Said {
    events: Vec<LifecycleEvent>,
    pause: Option<String>,
}

impl RunVoice {
    /// What was said so far; what is said from now on goes by message.
    pub(crate) fn hand_over(&self) -> Said {
        self.here.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default()
    }
}

impl Voice for RunVoice {
    fn say(&self, event: LifecycleEvent) {
        if let Some(said) = &mut *self.here.lock().unwrap_or_else(PoisonError::into_inner) {
            said.events.push(event);
            return;
        }
        let (step, event) = (self.step, Box::new(event));
        self.shared.tell(self.run, RunMsg::Tell { step, event });
    }

    fn pause(&self, reason: String) {
        if let Some(said) = &mut *self.here.lock().unwrap_or_else(PoisonError::into_inner) {
            said.pause = Some(reason);
            return;
        }
        self.shared.tell(self.run, RunMsg::Rest { by: "middleware".into(), reason });
    }
}

impl Shard {
    /// The stacks that a run goes through.
    pub(crate) fn stacks_of(&self, run: &Run) -> Arc<Stacks> {
        match &run.program {
            Some(program) => self.shared.stacks.of(program),
            None => Arc::clone(self.shared.stacks.host()),
        }
    }

    /// Who and what the open attempt of a task is.
    pub(crate) fn about(
        &self,
        run: &Run,
        id: TaskId,
        task: &OpenTask,
    ) -> (Arc<About>, Arc<RunVoice>) {
        let voice = Arc::new(self.voice(run, id.step()));
        let heard = Arc::clone(&voice) as Arc<dyn Voice>;
        let (started, started_ms) = run.chain.started().expect("a run with a task has started");
        let program = run.program.as_ref().expect("a task is prepared with the run's program");
        let agent = task.agent.agent();
        let mut tools = agent.tools.clone();
        if let Some(worker) = &agent.worker {
            tools.extend(worker.tools.iter().cloned());
        }
        let about = About {
            run: run.id,
            task: id,
            attempt: task.attempt,
            epoch: run.header.epoch,
            again: task.again,
            blueprint: program.blueprint().name().into(),
            version: program.blueprint().hash().into(),
            agent: Arc::clone(task.agent.name()),
            operator: Arc::clone(&task.operator),
            tools,
            idempotency_key: task.request.opts.idempotency_key.clone(),
            principal: started.principal.as_str().into(),
            started_ms,
            used: if self.shared.stacks.meters(program) { used(run) } else { Usage::default() },
            voice: heard,
            allowed: Default::default(),
            over: std::sync::atomic::AtomicBool::new(false),
            passed: std::sync::atomic::AtomicBool::new(false),
        };
        (Arc::new(about), voice)
    }

    fn voice(&self, run: &Run, step: u32) -> RunVoice {
        let (shared, here) = (Arc::clone(&self.shared), Mutex::new(Some(Said::default())));
        RunVoice { shared, run: run.num, step, here }
    }

    /// Takes what layers said into the transition that is under way.
    pub(crate) fn take_said(&mut self, run: &mut Run, number: u32, said: Said) {
        for event in said.events {
            self.told(run, Some(number), &event);
        }
        if let Some(reason) = said.pause
            && run.chain.paused().is_none()
            && !run.is_ended()
        {
            let by = "middleware".to_owned();
            self.append(run, Fact::Decided(Decision::Pause { by, reason }));
        }
    }

    /// Takes what came of an attempt by another way than its dispatch through the layers: its
    /// worker reported, it timed out, it was canceled.
    pub(crate) fn settle_attempt(
        &mut self,
        run: &mut Run,
        number: u32,
        outcome: Settled,
    ) -> Settled {
        let Some(task) = run.task_mut(number) else { return outcome };
        let Some(about) = task.about.take() else { return outcome };
        // Its dispatch may still be under way: what comes of that is nobody's any more.
        about.give_up();
        let input = task.request.input.clone();
        let voice = Arc::new(self.voice(run, number));
        let about = about.heard_by(Arc::clone(&voice) as Arc<dyn Voice>);
        let outcome = self.stacks_of(run).dispatch.settle(&about, &input, outcome);
        self.take_said(run, number, voice.hand_over());
        outcome
    }

    /// The same for an outcome that ends the step: a person's answer, a refusal.
    pub(crate) fn settle_outcome(
        &mut self,
        run: &mut Run,
        number: u32,
        outcome: Outcome,
    ) -> Outcome {
        if run.task(number).is_none_or(|task| task.about.is_none()) {
            return outcome;
        }
        let settled = match outcome {
            Outcome::Completed(output) => {
                self.settle_attempt(run, number, Ok(TaskDone::new(output)))
            }
            Outcome::Failed(failure) => {
                self.settle_attempt(run, number, Err(Box::new(failure.into())))
            }
            Outcome::Canceled(_) => return outcome,
        };
        match settled {
            Ok(done) => Outcome::Completed(done.output),
            Err(short) => Outcome::Failed(self.located(run, number, short.failure)),
        }
    }

    /// An execution ended before its task was done. What it wants done is done with the step's
    /// end; a further attempt would want it again, so it is dropped with the attempt.
    pub(crate) fn fell_short(&mut self, run: &mut Run, number: u32, short: Short) {
        let Short { failure, usage, effects } = short;
        if effects.iter().any(|it| matches!(it, Effect::ToolApprovalRequired { .. })) {
            // It did not fall short: it waits for a person, and goes on then.
            return self.done(run, number, TaskDone { output: Json::null(), usage, effects });
        }
        let retries =
            |task: &OpenTask| failure.retryable && task.counted + 1 < task.retry.max_attempts;
        if effects.is_empty() || run.task(number).is_some_and(retries) {
            self.attempt_failed(run, number, failure, usage);
            return;
        }
        let failure = self.located(run, number, failure);
        let (failure, effects) = match self.apply_effects(run, number, &effects) {
            Ok(effects) => (failure, effects),
            Err(refused) => (self.located(run, number, refused), None),
        };
        self.finish_step(run, number, Outcome::Failed(failure), effects, usage);
    }

    /// Puts an event of a run's life on its stream.
    pub(crate) fn told(&mut self, run: &mut Run, step: Option<u32>, event: &LifecycleEvent) {
        if run.is_ended() {
            return;
        }
        run.told += 1;
        if run.told > EVENTS {
            tracing::warn!(run = %run.id, kind = event.kind(), "an event too many is dropped");
            return;
        }
        let kind = event.kind().to_owned();
        let data = Json::from(event.data());
        self.append(run, Fact::Decided(Decision::Told { step, kind, data }));
    }
}

/// What differs from an operator's defaults for an attempt.
pub(crate) fn config_of(task: &OpenTask) -> OperatorConfig {
    let agent = task.agent.agent();
    let mut config = OperatorConfig::default();
    config.model.clone_from(&agent.model);
    config.max_duration = task.timeout_ms.map(crate::protocol::DurationMs::from_millis);
    config.allowed_operators = (!agent.tools.is_empty()).then(|| agent.tools.clone());
    let Some(asked) = task.request.opts.asked().and_then(|asked| asked.config) else {
        return config;
    };
    config.max_turns = asked.max_turns;
    config.max_cost = asked.max_cost;
    config.max_duration = asked.max_duration.or(config.max_duration);
    config.model = asked.model.or(config.model);
    config.allowed_operators = asked.allowed_operators.or(config.allowed_operators);
    config.system_addendum = asked.system_addendum;
    config
}

/// Returns a task's request with the input that the layers make of it.
pub(crate) fn prepared(
    stacks: &Stacks,
    request: &TaskRequest,
    operator: &str,
    input: Json,
) -> Result<TaskRequest, Failure> {
    let given = input.clone();
    let prepare = || stacks.dispatch.prepare(&request.agent, operator, input);
    let input = catch_unwind(AssertUnwindSafe(prepare))
        .map_err(|_| Failure::new(kind::WORKER, "a layer of the middleware panicked"))?;
    let mut request = request.clone();
    if input != given {
        request.opts.ask_instead(message_of(&input));
    }
    request.input = input;
    Ok(request)
}

/// What a run has used so far, as far as it was reported.
fn used(run: &Run) -> Usage {
    let mut sum = Usage::default();
    for step in run.chain.steps() {
        if let Some(usage) = &step.usage {
            sum.add(usage);
        }
    }
    sum
}
