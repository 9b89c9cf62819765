//! Gives an attempt to its operator, through the layers of the middleware.

use std::{
    future::Future,
    panic::AssertUnwindSafe,
    path::PathBuf,
    pin::Pin,
    sync::{Arc, LazyLock, OnceLock},
    task::{Context, Poll, Waker},
};

use async_trait::async_trait;
use futures::FutureExt as _;
use tokio_util::sync::CancellationToken;

use crate::{
    engine::{
        gate::Payload,
        run::{
            feed::Feed,
            task::{Began, Live, OpenTask, Phase},
        },
        shared::{
            message::{Internal, Msg},
            shards::Shared,
        },
        turn::{
            counting::TriggerKind,
            facts::Turn,
            passage::AttemptState,
            seats,
            settle::{self, RunVoice, config_of},
        },
    },
    fault,
    middleware::{About, Dispatch, Dispatched, Terminal},
    operator::{Delivery, Prompt, ReadPrompt, Reply, Reporter, Residence, Task},
    protocol::{Failure, Json, ModelDelta, SecretAccessEvent, TaskId, TriggerType, failure::kind},
    token::Handle,
};

/// An attempt on its way through the dispatch stack.
pub(crate) type DispatchFuture = Pin<Box<dyn Future<Output = Result<Dispatched, Failure>> + Send>>;

/// An attempt under way.
pub(crate) struct Under {
    pub(crate) live: Live,
    pub(crate) about: Arc<About>,
    pub(crate) voice: Arc<RunVoice>,
    pub(crate) future: DispatchFuture,
}

/// The innermost part of every dispatch: the spawner, then the worker's end.
struct Spawn<'a>(&'a Shared);

#[async_trait]
impl Terminal for Spawn<'_> {
    async fn dispatch(&self, dispatch: Dispatch) -> Result<Dispatched, Failure> {
        let payload = dispatch
            .payload
            .downcast::<Payload>()
            .map_err(|_| Failure::new(kind::REFUSED, "a layer replaced what the spawner needs"))?;
        dispatch.about.allow(dispatch.config.allowed_operators.clone());
        // They are set once: an attempt is dispatched once.
        let _ = payload.task.config.set(dispatch.config);
        if let Some(route) = dispatch.route {
            check_route(self.0, &payload.task, &route)?;
            let _ = payload.task.routed.set(route);
        }
        let worker = self.0.spawner.spawn(Arc::clone(&payload.task), dispatch.input).await?;
        match worker.join().await? {
            Reply::Done(done) => Ok(Dispatched::Done(done)),
            Reply::Short(short) => Ok(Dispatched::Short(short)),
            Reply::Parked => Ok(Dispatched::Parked),
        }
    }
}

/// Checks that a layer may route a task to an operator: its attempt was prepared for the residence
/// of the operator that it names.
fn check_route(shared: &Shared, task: &Task, route: &str) -> Result<(), Failure> {
    let residence = |name: &str| shared.registry.get(name).map(|backend| backend.residence());
    match (residence(&task.operator), residence(route)) {
        (_, None) => {
            let message = format!("a layer routes to {route:?}: there is no such operator");
            Err(Failure::new(kind::OPERATOR_UNAVAILABLE, message))
        }
        (Some(Residence::Host), Some(Residence::Host | Residence::Inline))
        | (Some(Residence::Inline), Some(Residence::Inline))
        | (Some(Residence::Elsewhere), Some(Residence::Elsewhere)) => Ok(()),
        _ => {
            let message = format!(
                "a layer routes from {} to {route}, which has another residence; name the \
                 operator in the call instead",
                task.operator
            );
            Err(Failure::new(kind::REFUSED, message))
        }
    }
}

/// Returns the trigger of an operator for the trigger of its run.
fn trigger_of(trigger: &Json) -> TriggerType {
    // A run that somebody started by a request has none; every attempt comes by here.
    let trigger = (!trigger.is_null()).then(|| trigger.decode::<TriggerKind>().ok()).flatten();
    match trigger.as_ref().map(|it| it.kind.as_str()) {
        Some("schedule") => TriggerType::Schedule,
        Some("signal") => TriggerType::Signal,
        Some("watch") => TriggerType::SystemEvent,
        Some("cli" | "response" | "repl") => TriggerType::User,
        _ => TriggerType::Task,
    }
}

/// Carries what an attempt says back to its run.
struct AttemptReporter {
    shared: Arc<Shared>,
    run: u64,
    step: u32,
    attempt: u32,
    feed: Arc<Feed>,
    began: Arc<Began>,
}

impl Reporter for AttemptReporter {
    fn begins(&self) {
        self.began.set(self.shared.clock.steady_ms());
    }

    fn delivered(&self, delivery: Delivery) {
        // A busy run records the delivery later.
        self.began.set_once(self.shared.clock.steady_ms());
        let (step, attempt) = (self.step, self.attempt);
        self.shared.tell(self.run, Internal::Delivered { step, attempt, delivery });
    }

    fn progress(&self, data: Json) {
        let (step, attempt) = (self.step, self.attempt);
        let message = Internal::Progress { step, attempt, data };
        // It is lossy: where too much waits, nobody is told.
        let _ = self.shared.offer(self.run, Msg::Run(self.run, message.into()));
    }

    fn delta(&self, delta: ModelDelta) {
        if self.feed.push(delta) {
            self.shared.tell(self.run, Internal::Delta(Arc::clone(&self.feed)));
        }
    }

    fn secret_accessed(&self, event: SecretAccessEvent) {
        let (step, attempt) = (self.step, self.attempt);
        let event = Box::new(event);
        self.shared.tell(self.run, Internal::SecretAccessed { step, attempt, event });
    }
}

/// Gives an open attempt to its operator. The task of a queue is only put there, unless a layer
/// waits for something: then the outcome is there at once, and is returned.
pub(crate) fn dispatch(
    turn: &mut Turn<'_>,
    number: u32,
    attempt: u32,
) -> Option<Result<Dispatched, Failure>> {
    crate::engine::turn::pieces::count_audience(turn.run);
    if turn.run.chain.paused().is_some() {
        return None;
    }
    let task = turn.run.task(number)?;
    if task.attempt != attempt || task.phase != Phase::Pending || task.live.is_some() {
        return None;
    }
    fault::point("engine.dispatch");
    // Others write to a socket or read the store, which is not for the thread that advances runs.
    let may_be_ready = task.row.as_ref().is_some_and(|row| row.queue.is_some());
    let Under { live, about, voice, mut future } = dispatch_future(turn, number, task, turn.now_ms);
    let began = Arc::clone(&live.began);
    if let Some(task) = turn.run.task_mut(number) {
        task.live = Some(live);
        task.about = Some(about);
    }
    let _runtime = turn.shared.tasks.enter();
    let polled = match may_be_ready {
        true => future.as_mut().poll(&mut Context::from_waker(Waker::noop())),
        false => Poll::Pending,
    };
    // From now on it goes by message.
    settle::take_said(turn, number, voice.hand_over());
    match polled {
        Poll::Ready(result) => Some(result),
        Poll::Pending => {
            detach(turn.shared, turn.run.num, (number, attempt), &began, future);
            None
        }
    }
}

/// Lets a dispatch go on beside the shard; its end comes back as a message.
pub(crate) fn detach(
    shared: &Arc<Shared>,
    run: u64,
    (step, attempt): (u32, u32),
    began: &Arc<Began>,
    future: DispatchFuture,
) {
    let (host, began) = (Arc::clone(shared), Arc::clone(began));
    shared.tasks.spawn(async move {
        let result = future.await;
        let ran_ms = began.elapsed(host.clock.steady_ms());
        host.tell(run, Internal::Finished { step, attempt, result, ran_ms });
    });
}

/// Returns true if the dispatch of a task would do nothing at present but offer it to the workers
/// of its queue, if the gate lets it pass.
pub(crate) fn is_only_offered(turn: &Turn<'_>, task: &OpenTask) -> bool {
    let is_queued = task.row.as_ref().is_some_and(|row| row.queue.is_some());
    is_queued
        && !task.request.lists_tools()
        && turn.shared.spawner.only_executes()
        && settle::is_plain(turn)
        && turn.shared.registry.get(&task.operator).is_some_and(|backend| {
            let exec = &turn.shared.stacks.host().exec;
            backend.only_offers() && !exec.stands_around(backend.kind())
        })
}

/// Returns an attempt as its operator receives it.
fn task_of(
    turn: &Turn<'_>,
    id: TaskId,
    task: &OpenTask,
    (live, about): (&Live, &Arc<About>),
) -> Task {
    let number = id.step();
    let (started, _) = turn.run.chain.started().expect("a run with a task has started");
    let program = turn.run.program.as_ref().expect("a task is prepared with the run's program");
    let leaves = task.residence != Residence::Inline;
    let handle = if leaves {
        Handle::mint(&turn.shared.handles, &turn.run.attempt_id(number, task.attempt)).expose()
    } else {
        String::new()
    };
    Task {
        id,
        run: turn.run.id,
        attempt: task.attempt,
        epoch: turn.run.header.epoch,
        nonce: turn.run.header.nonce,
        trace: turn.shared.span_of(turn.run, number),
        agent_name: Arc::clone(task.agent.name()),
        agent: Arc::clone(task.agent.agent()),
        operator: Arc::clone(&task.operator),
        opts: task.request.opts.clone(),
        given: task.request.input.clone(),
        trigger: trigger_of(&started.trigger),
        routed: OnceLock::new(),
        program: Arc::clone(program),
        workdir: match &started.workdir {
            _ if !leaves => PathBuf::new(),
            Some(dir) => dir.into(),
            None => turn.shared.settings.work.join(turn.run.id.to_string()),
        },
        own_workdir: started.workdir.is_none(),
        url: turn.shared.url.get().cloned(),
        handle,
        prompt: LazyLock::new(prompt_of(task)),
        seat: seats::seat(turn.run, &task.operator),
        passed_on: task.follows.as_ref().is_some_and(|follows| !follows.is_resumed()),
        lists_tools: task.request.lists_tools(),
        timeout_ms: task.timeout_ms,
        cancel: live.cancel.clone(),
        reported: live.reported.clone(),
        config: OnceLock::new(),
        stacks: settle::stacks_of(turn),
        reporter: Arc::new(AttemptReporter {
            shared: Arc::clone(turn.shared),
            run: turn.run.num,
            step: number,
            attempt: task.attempt,
            feed: Arc::clone(&live.feed),
            began: Arc::clone(&live.began),
        }),
        state: Arc::new(AttemptState {
            shared: Arc::clone(turn.shared),
            stacks: settle::stacks_of(turn),
            about: Arc::clone(about),
            grant: Arc::clone(&turn.run.grant),
        }),
    }
}

/// Reads the prompt of an attempt when its operator asks for it: not every one does.
fn prompt_of(task: &OpenTask) -> ReadPrompt {
    let text = task.row.as_ref().map(|row| row.prompt.clone());
    Box::new(move || serde_json::from_str::<Prompt>(&text?).ok().map(Arc::new))
}

/// An attempt as a future through stack and spawner; nothing happens before it is polled.
pub(crate) fn dispatch_future(turn: &Turn<'_>, number: u32, task: &OpenTask, now_ms: u64) -> Under {
    let scheduled_ms = turn.run.chain.step(number).map_or(now_ms, |step| step.scheduled_ms);
    let id = TaskId::new(turn.run.num, number, scheduled_ms);
    let (audience, name) = (Arc::clone(&turn.run.audience), Arc::clone(task.agent.name()));
    let live = Live {
        cancel: CancellationToken::new(),
        reported: CancellationToken::new(),
        feed: Feed::new(audience, name, (number, task.attempt)),
        began: Arc::default(),
    };
    let (about, voice) = settle::about(turn, id, task);
    let context = task_of(turn, id, task, (&live, &about));
    let dispatch = Dispatch {
        about: Arc::clone(&about),
        input: task.request.input.clone(),
        config: config_of(task),
        route: None,
        payload: Arc::new(Payload { task: Arc::new(context), grant: Arc::clone(&turn.run.grant) }),
    };
    let (shared, stacks) = (Arc::clone(turn.shared), settle::stacks_of(turn));
    let future = async move {
        let terminal = Spawn(&shared);
        let under_way = AssertUnwindSafe(stacks.dispatch.run(dispatch, &terminal));
        // Code of a layer or an operator that panics ends its own attempt: the shard may be
        // the one that polls it.
        under_way.catch_unwind().await.unwrap_or_else(|_| {
            Err(Failure::new(kind::WORKER, "the operator panicked").retryable())
        })
    };
    Under { live, about, voice, future: Box::pin(future) }
}
