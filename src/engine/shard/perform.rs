//! What leaves the engine, once what it follows from is durable.

use std::{
    future::Future,
    panic::AssertUnwindSafe,
    path::PathBuf,
    pin::Pin,
    sync::{Arc, OnceLock},
};

use async_trait::async_trait;
use futures::FutureExt as _;
use tokio_util::sync::CancellationToken;

use crate::{
    engine::{
        Exceeded,
        gate::Payload,
        run::{
            due::Due,
            feed::Feed,
            open::{Open, OpenKind},
            perform::Perform,
            resident::{After, Run},
            task::{Live, OpenTask, Phase},
        },
        shard::owner::Shard,
        shared::{
            message::{Msg, NewRun, RunMsg},
            shards::Shared,
        },
        turn::{
            passage::AttemptState,
            pieces::publish,
            settle::{RunVoice, config_of},
        },
    },
    fault,
    journal::{Outcome, RunStarted, RunState},
    middleware::{About, Dispatch, Dispatched, Terminal},
    operator::{Delivery, HUMAN, Inquiry, Prompt, Reply, Reporter, Residence, Task},
    protocol::{Failure, Json, ModelDelta, SecretAccessEvent, TaskId, failure::kind},
    store::{TaskPhase, TaskRow},
    token::{Handle, Quota},
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

impl Shard {
    /// Lets out what waited for a batch.
    pub(crate) fn perform(&mut self, run: &mut Run, after: After) {
        for perform in after.performs {
            self.perform_one(run, perform);
        }
        for event in after.events {
            publish(run, &event);
        }
        for reply in after.replies {
            fault::point("engine.reply");
            reply(Ok(run));
        }
        self.answer_waiters(run);
    }

    fn perform_one(&mut self, run: &mut Run, perform: Perform) {
        match perform {
            Perform::Dispatch { step, attempt } => self.dispatch(run, step, attempt),
            Perform::CancelWorker(cancel) => cancel.cancel(),
            Perform::Reported(live) => live.reported.cancel(),
            Perform::State { step } => self.perform_state(run, step),
            Perform::StartChild { step } => self.start_child(run, step),
            Perform::CancelChild { step, child, reason } => {
                fault::point("engine.cancel_child");
                let (sender, by) = ((run.num, step), run.id.to_string());
                self.shared.tell(child.num(), RunMsg::CancelFrom { sender, by, reason });
            }
            Perform::TellParent => self.tell_parent(run),
            Perform::SendSignal { step, to, name, payload } => {
                let sender = (run.num, step);
                fault::point("engine.outbox_sent");
                self.shared.tell(to, RunMsg::SignalFrom { sender, name, payload });
            }
            Perform::Retire { ticket, reason } => {
                self.shared.sessions.retire(ticket, reason.as_deref());
            }
            Perform::TellSession(note) => drop(self.shared.sessions.tell(note)),
            Perform::Release(agent) => {
                let next = self.shared.capacity.release(&agent);
                self.tell_capacity(&agent, next);
            }
        }
    }

    pub(crate) fn dispatch(&mut self, run: &mut Run, number: u32, attempt: u32) {
        crate::engine::turn::pieces::count_audience(run);
        if run.chain.paused().is_some() {
            return;
        }
        let Some(task) = run.task(number) else { return };
        if task.attempt != attempt || task.phase != Phase::Pending || task.live.is_some() {
            return;
        }
        fault::point("engine.dispatch");
        let Under { live, about, voice, future } =
            self.dispatch_future(run, number, task, self.now_ms);
        // Nothing was said before it is polled; from now on it goes by message.
        drop(voice.hand_over());
        if let Some(task) = run.task_mut(number) {
            task.live = Some(live);
            task.about = Some(about);
        }
        self.detach(run.num, number, attempt, future);
    }

    /// Lets a dispatch go on beside the shard; its end comes back as a message.
    pub(crate) fn detach(&self, run: u64, step: u32, attempt: u32, future: DispatchFuture) {
        let shared = Arc::clone(&self.shared);
        self.shared.tasks.spawn(async move {
            let result = future.await;
            shared.tell(run, RunMsg::Finished { step, attempt, result });
        });
    }

    /// An attempt as a future through stack and spawner; nothing happens before it is polled.
    pub(crate) fn dispatch_future(
        &self,
        run: &Run,
        number: u32,
        task: &OpenTask,
        now_ms: u64,
    ) -> Under {
        let scheduled_ms = run.chain.step(number).map_or(now_ms, |step| step.scheduled_ms);
        let id = TaskId::new(run.num, number, scheduled_ms);
        let (audience, name) = (Arc::clone(&run.audience), Arc::clone(task.agent.name()));
        let live = Live {
            cancel: CancellationToken::new(),
            reported: CancellationToken::new(),
            feed: Feed::new(audience, name, (number, task.attempt)),
        };
        let (started, _) = run.chain.started().expect("a run with a task has started");
        let program = run.program.as_ref().expect("a task is prepared with the run's program");
        let leaves = task.residence != Residence::Inline;
        let handle = if leaves {
            Handle::mint(&self.shared.handles, &run.attempt_id(number, task.attempt)).expose()
        } else {
            String::new()
        };
        let input = task.request.input.clone();
        let (about, voice) = self.about(run, id, task);
        let context = Task {
            id,
            run: run.id,
            attempt: task.attempt,
            epoch: run.header.epoch,
            nonce: run.header.nonce,
            agent_name: Arc::clone(task.agent.name()),
            agent: Arc::clone(task.agent.agent()),
            operator: Arc::clone(&task.operator),
            opts: task.request.opts.clone(),
            program: Arc::clone(program),
            workdir: match &started.workdir {
                _ if !leaves => PathBuf::new(),
                Some(dir) => dir.into(),
                None => self.shared.settings.work.join(run.id.to_string()),
            },
            own_workdir: started.workdir.is_none(),
            url: self.shared.url.get().cloned(),
            handle,
            prompt: task
                .row
                .as_ref()
                .and_then(|row| serde_json::from_str::<Prompt>(&row.prompt).ok())
                .map(Arc::new),
            seat: self.seat_of(run, &task.operator),
            lists_tools: task.request.lists_tools(),
            timeout_ms: task.timeout_ms,
            cancel: live.cancel.clone(),
            reported: live.reported.clone(),
            config: OnceLock::new(),
            stacks: self.stacks_of(run),
            reporter: Arc::new(AttemptReporter {
                shared: Arc::clone(&self.shared),
                run: run.num,
                step: number,
                attempt: task.attempt,
                feed: Arc::clone(&live.feed),
            }),
            state: Arc::new(AttemptState {
                shared: Arc::clone(&self.shared),
                stacks: self.stacks_of(run),
                about: Arc::clone(&about),
                grant: Arc::clone(&run.grant),
            }),
        };
        let dispatch = Dispatch {
            about: Arc::clone(&about),
            input,
            config: config_of(task),
            payload: Arc::new(Payload { task: Arc::new(context), grant: Arc::clone(&run.grant) }),
        };
        let (shared, stacks) = (Arc::clone(&self.shared), self.stacks_of(run));
        let future = async move {
            let terminal = Spawn(&shared);
            let run = AssertUnwindSafe(stacks.dispatch.run(dispatch, &terminal));
            // Code of a layer or an operator that panics ends its own attempt: the shard may be
            // the one that polls it.
            run.catch_unwind().await.unwrap_or_else(|_| {
                Err(Failure::new(kind::WORKER, "the operator panicked").retryable())
            })
        };
        Under { live, about, voice, future: Box::pin(future) }
    }

    fn start_child(&mut self, run: &mut Run, number: u32) {
        let Some(Open { kind: OpenKind::Child { run: child, blueprint, input }, .. }) =
            run.open.get(number)
        else {
            return;
        };
        let (child, blueprint, input) = (*child, blueprint.clone(), input.clone());
        fault::point("engine.child_start");
        // A blueprint without a name calls itself: what was asked for may be all that is known.
        let own = run.program.as_ref().map(|program| {
            (program.blueprint().name().to_owned(), program.blueprint().hash().to_owned())
        });
        let resolved = self.shared.programs.resolve(&blueprint, own);
        let permitted = resolved.and_then(|program| self.may_call(run, &program).map(|()| program));
        let program = match permitted {
            Ok(program) => program,
            Err(error) => {
                let failure = Failure::new(kind::REFUSED, format!("call {blueprint}: {error}"));
                self.finish_step(run, number, Outcome::Failed(failure), None, None);
                return;
            }
        };
        let Some(charged) = self.admit_child(run, number, child.num()) else { return };
        let Some((parent, _)) = run.chain.started() else { return };
        let started = RunStarted {
            blueprint: program.blueprint().name().to_owned(),
            hash: program.blueprint().hash().to_owned(),
            input,
            trigger: crate::engine::turn::budget::trigger(run, number),
            seed: parent.seed ^ child.num().wrapping_mul(0x9e37_79b9_7f4a_7c15),
            parent: Some((run.num, number)),
            depth: parent.depth + 1,
            workdir: parent.workdir.clone(),
            principal: parent.principal.clone(),
            delegate: parent.delegate.clone(),
            grant: parent.grant.clone(),
            generation: 0,
            first_step: 1,
            queued: Vec::new(),
            continues: None,
        };
        let seats = run.chain.seats().iter();
        let new = NewRun {
            id: child,
            program,
            started,
            jti: None,
            key: None,
            reply: None,
            waiter: None,
            unstored: false,
            subscriber: None,
            seats: seats.map(|(name, it)| (name.clone(), it.session.as_str().into())).collect(),
            charged,
            joined: crate::engine::turn::lineage::all_of(&self.shared.sessions, run),
        };
        self.shared.send(child.num(), Msg::Start(Box::new(new)));
    }

    /// Counts a called run against what its caller counts against; says whether anything counts it,
    /// or nothing where it cannot begin now.
    fn admit_child(&mut self, run: &mut Run, number: u32, child: u64) -> Option<bool> {
        let Some(jti) = self.shared.accounts.of(run.num) else { return Some(false) };
        match self.shared.accounts.admit(&jti, child, self.now_ms) {
            Ok(charged) => Some(charged),
            // Time alone helps: it begins a little later.
            Err(Exceeded { quota: Quota::StartsPerMinute, retry_after_s: Some(after), .. }) => {
                let due = self.time_of(run) + after * 1_000;
                run.timers.insert((due, number, Due::Child));
                None
            }
            Err(exceeded) => {
                let failure = exceeded.failure();
                self.finish_step(run, number, Outcome::Failed(failure), None, None);
                None
            }
        }
    }

    fn tell_parent(&self, run: &Run) {
        let (Some((parent, step)), RunState::Ended(outcome)) =
            (run.header.parent, run.chain.state())
        else {
            return;
        };
        fault::point("engine.tell_parent");
        let usage = crate::engine::view::spent::total(run.chain.spent());
        let (child, outcome) = (run.id, outcome.clone());
        let joined = crate::engine::turn::lineage::all_of(&self.shared.sessions, run);
        let message = RunMsg::ChildEnded { step, child, outcome, usage, joined };
        self.shared.tell(parent, message);
    }

    /// The row of an attempt that leaves the process, with its prompt rendered.
    pub(crate) fn task_row(&self, run: &Run, number: u32) -> Result<TaskRow, Failure> {
        let step = run.chain.step(number).expect("a task's step is in the chain");
        let task = run.task(number).expect("the caller has the task");
        let backend = self.shared.registry.get(&task.operator);
        let kind = backend.map_or("", |backend| backend.kind());
        let id = TaskId::new(run.num, number, step.scheduled_ms);
        let mut prompt = self.prompt(run, task, id)?;
        let opts = &task.request.opts;
        let mut deadline_ms = None;
        if kind == HUMAN {
            let asking = opts.asking.over(&task.agent.agent().asking);
            prompt.inquiry = Some(Inquiry::new(&prompt, &asking, self.time_of(run)));
            // Nobody fetches it: the time of a task for people is counted from when it is asked.
            deadline_ms = task.timeout_ms.map(|timeout| self.steady_ms + timeout);
        }
        let title =
            prompt.input.to_value().get("title").and_then(|t| t.as_str().map(str::to_owned));
        Ok(TaskRow {
            run: run.num,
            step: number,
            attempt: task.attempt,
            epoch: run.header.epoch,
            agent: task.agent.name().to_string(),
            operator: task.operator.to_string(),
            kind: kind.to_owned(),
            queue: backend
                .and_then(|backend| backend.queue(task.agent.agent(), task.agent.name()))
                .map(str::to_owned),
            phase: TaskPhase::Pending,
            scheduled_ms: step.scheduled_ms,
            opened_ms: self.now_ms,
            worker: None,
            deadline_ms,
            lease_ms: None,
            graces: 0,
            summary: opts.summary.clone().or(title),
            prompt: serde_json::to_string(&prompt).expect("a prompt is plain data"),
            question: None,
        })
    }

    fn prompt(&self, run: &Run, task: &OpenTask, id: TaskId) -> Result<Prompt, Failure> {
        let (started, _) = run.chain.started().expect("a run with a task has started");
        let input = &task.request.input;
        let program = run.program.as_ref().expect("a task is prepared with the run's program");
        if task.request.is_model_call() {
            return Ok(self.unseen(run, task, id));
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
            task: id,
            run: run.id,
            agent: task.agent.name().to_string(),
            attempt: task.attempt,
            system: rendered.system,
            prompt: rendered.prompt,
            input: input.clone(),
            output_schema: task.agent.agent().output.clone(),
            summary: task.request.opts.summary.clone(),
            idempotency_key: task.request.opts.idempotency_key.clone(),
            inquiry: None,
            labels: task.agent.agent().labels.clone(),
            worker: task.agent.agent().worker.clone(),
        })
    }
}

impl Shard {
    /// What the row of a model's call has for a prompt: nobody fetches it, and the conversation
    /// stands in the journal.
    fn unseen(&self, run: &Run, task: &OpenTask, id: TaskId) -> Prompt {
        Prompt {
            task: id,
            run: run.id,
            agent: task.agent.name().to_string(),
            attempt: task.attempt,
            system: None,
            prompt: String::new(),
            input: Json::null(),
            output_schema: None,
            summary: task.request.opts.summary.clone(),
            idempotency_key: task.request.opts.idempotency_key.clone(),
            inquiry: None,
            labels: task.agent.agent().labels.clone(),
            worker: None,
        }
    }
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
        // Before anybody is told of it: who leases it at once finds it so.
        dispatch.about.pass();
        // It is set once: an attempt is dispatched once.
        let _ = payload.task.config.set(dispatch.config);
        let worker = self.0.spawner.spawn(Arc::clone(&payload.task), dispatch.input).await?;
        match worker.join().await? {
            Reply::Done(done) => Ok(Dispatched::Done(done)),
            Reply::Short(short) => Ok(Dispatched::Short(short)),
            Reply::Parked => Ok(Dispatched::Parked),
        }
    }
}

/// Carries what an attempt says back to its run.
struct AttemptReporter {
    shared: Arc<Shared>,
    run: u64,
    step: u32,
    attempt: u32,
    feed: Arc<Feed>,
}

impl Reporter for AttemptReporter {
    fn delivered(&self, delivery: Delivery) {
        let (step, attempt) = (self.step, self.attempt);
        self.shared.tell(self.run, RunMsg::Delivered { step, attempt, delivery });
    }

    fn progress(&self, data: Json) {
        let (step, attempt) = (self.step, self.attempt);
        let message = RunMsg::Progress { step, attempt, data };
        // It is lossy: where too much waits, nobody is told.
        let _ = self.shared.offer(self.run, Msg::Run(self.run, message));
    }

    fn delta(&self, delta: ModelDelta) {
        if self.feed.push(delta) {
            self.shared.tell(self.run, RunMsg::Delta(Arc::clone(&self.feed)));
        }
    }

    fn secret_accessed(&self, event: SecretAccessEvent) {
        let (step, attempt) = (self.step, self.attempt);
        let event = Box::new(event);
        self.shared.tell(self.run, RunMsg::SecretAccessed { step, attempt, event });
    }
}
