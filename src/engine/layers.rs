//! What the layers around a run see of it, and what they tell it.

use std::sync::{Arc, Mutex, PoisonError};

use super::{
    message::RunMsg,
    run::{OpenTask, Run},
    shard::Shard,
    shared::Shared,
};
use crate::{
    journal::{Decision, Fact, Outcome, Usage},
    middleware::{About, Settled, Stacks, TaskDone, Voice},
    protocol::{Json, LifecycleEvent, OperatorConfig, TaskId},
};

/// The most events that one step may tell; more are dropped, with a line in the log.
const EVENTS: u32 = 1_000;

/// Carries what layers say to their run.
struct RunVoice {
    shared: Arc<Shared>,
    run: u64,
    step: u32,
}

impl Voice for RunVoice {
    fn say(&self, event: LifecycleEvent) {
        let (step, event) = (self.step, Box::new(event));
        self.shared.tell(self.run, RunMsg::Tell { step, event });
    }

    fn pause(&self, reason: String) {
        self.shared.tell(self.run, RunMsg::Rest { by: "middleware".into(), reason });
    }
}

/// Keeps what layers say while the shard itself calls them: it belongs to the same transition.
#[derive(Default)]
struct Collected(Mutex<(Vec<LifecycleEvent>, Option<String>)>);

impl Voice for Collected {
    fn say(&self, event: LifecycleEvent) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0.push(event);
    }

    fn pause(&self, reason: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1 = Some(reason);
    }
}

impl Shard {
    /// The stacks that a run goes through.
    pub(super) fn stacks_of(&self, run: &Run) -> Arc<Stacks> {
        match &run.program {
            Some(program) => self.shared.stacks.of(program),
            None => Arc::clone(self.shared.stacks.host()),
        }
    }

    /// Who and what the open attempt of a task is.
    pub(super) fn about(&self, run: &Run, id: TaskId, task: &OpenTask) -> About {
        let (started, started_ms) = run.chain.started().expect("a run with a task has started");
        let program = run.program.as_ref().expect("a task is prepared with the run's program");
        let agent = task.agent.agent();
        let mut tools = agent.tools.clone();
        if let Some(worker) = &agent.worker {
            tools.extend(worker.tools.iter().cloned());
        }
        About {
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
            voice: Arc::new(RunVoice {
                shared: Arc::clone(&self.shared),
                run: run.num,
                step: id.step(),
            }),
            over: std::sync::atomic::AtomicBool::new(false),
        }
    }

    /// Takes what came of an attempt by another way than its dispatch through the layers: its
    /// worker reported, it timed out, it was canceled.
    pub(super) fn settle_attempt(
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
        let heard = Arc::new(Collected::default());
        let about = about.heard_by(Arc::clone(&heard) as Arc<dyn Voice>);
        let outcome = self.stacks_of(run).dispatch.settle(&about, &input, outcome);
        let (events, pause) =
            std::mem::take(&mut *heard.0.lock().unwrap_or_else(PoisonError::into_inner));
        for event in events {
            self.told(run, Some(number), &event);
        }
        if let Some(reason) = pause
            && run.chain.paused().is_none()
            && !run.is_ended()
        {
            let by = "middleware".to_owned();
            self.append(run, Fact::Decided(Decision::Pause { by, reason }));
        }
        outcome
    }

    /// The same for an outcome that ends the step: a person's answer, a refusal.
    pub(super) fn settle_outcome(
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

    /// Puts an event of a run's life on its stream.
    pub(super) fn told(&mut self, run: &mut Run, step: Option<u32>, event: &LifecycleEvent) {
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
pub(super) fn config_of(task: &OpenTask) -> OperatorConfig {
    let agent = task.agent.agent();
    let mut config = OperatorConfig::default();
    config.model = agent.model.clone();
    config.max_duration = task.timeout_ms.map(crate::protocol::DurationMs::from_millis);
    if !agent.tools.is_empty() {
        config.allowed_operators = Some(agent.tools.clone());
    }
    config
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
