//! Attempts: from a scheduled task to the one result that counts.
//!
//! | happens | the attempt | then |
//! |---|---|---|
//! | scheduled | opens | waits for a place, runs inline, or is dispatched after the commit |
//! | delivered | its timeout begins | |
//! | done | ends its step | the flow goes on |
//! | failed, more allowed | closes | the next opens after the pause |
//! | failed, no more | ends its step | the flow hears the failure |
//! | interrupted | closes, uncounted | the next opens at once |

use std::{
    sync::Arc,
    task::{Context, Poll, Waker},
};

use crate::{
    blueprint::{CompiledAgent, Operators as _, asking},
    engine::{
        run::{
            branches::{is_held, seat_epoch},
            due::Due,
            open::{Open, OpenKind},
            perform::Perform,
            resident::Run,
            task::{AgentKey, OpenTask, Phase},
        },
        shard::{owner::Shard, perform::Under},
        shared::message::refuse_lease,
        turn::{
            pause::{pause_ms, retry_after_ms},
            settle::prepared,
        },
    },
    fault::{self, Break},
    flow::{StepOp, TaskRequest},
    journal::{AttemptClosed, AttemptOpened, Fact, Outcome, StepKey, Usage},
    middleware::{Dispatched, Short, TaskDone},
    operator::{Delivery, HUMAN, MAIN_AI, Residence, Ticket},
    protocol::{Failure, Json, failure::kind},
    store::{TaskFilter, TaskPhase, Write},
};

impl Shard {
    /// Decides a task: refuses it, runs it inline, or opens its first attempt.
    pub(crate) fn schedule_task(&mut self, run: &mut Run, key: StepKey, request: TaskRequest) {
        let prepared = self
            .prepare(run, &request)
            .and_then(|task| self.over_budget(run, &task).map_or(Ok(task), Err));
        let op = StepOp::Task(Box::new(request));
        match prepared {
            Err(failure) => {
                let step = run.chain.next_step();
                let agent = op.name().to_owned();
                let failure = failure.at(step, Some(&agent), 1);
                self.record(run, &key, &op, Outcome::Failed(failure));
            }
            Ok(task) if self.is_loop(&task) => self.schedule_loop(run, &key, &op, task),
            Ok(task) if let Some(composite) = self.composite(&task) => {
                match self.may_compose(run, &key, &task.operator) {
                    Ok(()) => self.schedule_composite(run, &key, &op, task, composite),
                    Err(failure) => {
                        let (step, agent) = (run.chain.next_step(), op.name().to_owned());
                        let failure = failure.at(step, Some(&agent), 1);
                        self.record(run, &key, &op, Outcome::Failed(failure));
                    }
                }
            }
            // What a loop began stands in the journal before any of it is executed.
            Ok(task)
                if task.residence == Residence::Inline
                    && task.agent.limit().is_none()
                    && task.request.part.is_none() =>
            {
                self.run_inline(run, &key, &op, task);
            }
            Ok(task) => {
                let number = self.open(run, &key, &op, OpenKind::Task(Box::new(task)));
                self.open_attempt(run, number);
            }
        }
    }

    /// Finds agent and operator of a request, and checks its input.
    pub(crate) fn prepare(&self, run: &Run, request: &TaskRequest) -> Result<OpenTask, Failure> {
        let Some(program) = &run.program else {
            return Err(Failure::new(kind::REFUSED, "the run's blueprint cannot be loaded"));
        };
        let blueprint = program.blueprint();
        let tool = request.part.as_ref().and_then(|part| part.tool.as_deref());
        let agent = match blueprint.agent(&request.agent) {
            Some(agent) if request.is_model_call() => Arc::new(agent.for_model()),
            Some(agent) => match tool {
                Some(tool) => Arc::new(agent.with_tool(tool)),
                None => Arc::clone(agent),
            },
            None if request.opts.form.is_some() || request.agent == "approve" => {
                Arc::new(CompiledAgent::approval(request.opts.form.as_ref())?)
            }
            None if request.agent == "dispatch" && request.opts.operator.is_some() => {
                Arc::new(CompiledAgent::bare("dispatch", request.opts.operator.as_deref()))
            }
            None => {
                return Err(Failure::new(kind::REFUSED, blueprint.unknown_agent(&request.agent)));
            }
        };
        let operator = match (self.delegate_of(run), &request.opts.operator) {
            (Some(delegate), _) => self
                .shared
                .sessions
                .operator_of(&delegate)
                .unwrap_or_else(|| MAIN_AI.to_owned())
                .into(),
            (None, Some(name)) => Arc::from(name.as_str()),
            (None, None) => Arc::clone(agent.operator()),
        };
        let Some(backend) = self.shared.registry.get(&operator) else {
            return Err(Failure::new(
                kind::OPERATOR_UNAVAILABLE,
                format!("there is no operator {operator:?}"),
            ));
        };
        if request.opts.ask.is_some() && !self.shared.registry.is_model(&operator) {
            let message = format!("`ask` is for models, and {operator} is none");
            return Err(Failure::new(kind::INVALID_INPUT, message));
        }
        let input = agent.input().accept_json(&request.input).map_err(|violations| {
            let first = violations.first();
            let what = first.map_or_else(String::new, |v| format!(" at {}: {}", v.path, v.message));
            Failure::new(
                kind::INVALID_INPUT,
                format!("the input of agent {} does not match its schema{what}", request.agent),
            )
        })?;
        if backend.kind() == HUMAN {
            let asking = request.opts.asking.over(&agent.agent().asking);
            if let Some((key, what)) = asking::complaint(&asking) {
                let message = format!("agent {}: {key}: {what}", request.agent);
                return Err(Failure::new(kind::INVALID_INPUT, message));
            }
        }
        let retry = request.opts.retry.clone().unwrap_or_else(|| agent.agent().retry.clone());
        let stacks = self.stacks_of(run);
        let request = prepared(&stacks, request, &operator, input)?;
        Ok(OpenTask {
            timeout_ms: request.opts.timeout_ms.or(agent.agent().timeout_ms).or_else(|| {
                let own = backend.timeout()?;
                Some(u64::try_from(own.as_millis()).unwrap_or(u64::MAX))
            }),
            park_ms: agent.agent().park_ms.or(match backend.kind() {
                HUMAN => None,
                _ => Some(self.shared.settings.park_ms),
            }),
            request,
            agent,
            operator,
            residence: backend.residence(),
            redelivers: backend.redelivers(),
            retry,
            attempt: 1,
            counted: 0,
            phase: Phase::Pending,
            row: None,
            live: None,
            place: false,
            invalid: 0,
            reported: false,
            about: None,
            allowed: None,
            again: false,
            graces: 0,
            leasing: None,
            question: None,
            home: None,
            follows: None,
            inquiry: None,
        })
    }

    /// Runs in-process work ahead of the commit; what is not ready at once goes on beside the
    /// shard.
    fn run_inline(&mut self, run: &mut Run, key: &StepKey, op: &StepOp, mut task: OpenTask) {
        let number = run.chain.next_step();
        let Under { live, about, voice, mut future } =
            self.dispatch_future(run, number, &task, self.now_ms);
        let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        self.take_said(run, number, voice.hand_over());
        match polled {
            Poll::Ready(Ok(Dispatched::Done(done))) if done.effects.is_empty() => {
                let outcome = self.judge(&task, number, done.output);
                if let Outcome::Failed(failure) = &outcome
                    && failure.retryable
                    && task.retry.max_attempts > 1
                {
                    let number = self.open(run, key, op, OpenKind::Task(Box::new(task)));
                    let Outcome::Failed(failure) = outcome else { return };
                    self.attempt_failed(run, number, failure, None);
                } else {
                    self.record(run, key, op, outcome);
                }
            }
            Poll::Ready(result) => {
                let number = self.open(run, key, op, OpenKind::Task(Box::new(task)));
                self.finished(run, number, 1, result);
            }
            Poll::Pending => {
                task.live = Some(live);
                task.about = Some(about);
                task.phase = Phase::Delivered;
                let timeout = task.timeout_ms;
                let number = self.open(run, key, op, OpenKind::Task(Box::new(task)));
                if let Some(timeout) = timeout {
                    run.timers.insert((self.steady_ms + timeout, number, Due::Attempt));
                }
                self.detach(run.num, number, 1, future);
            }
        }
    }

    /// Gets the open attempt of a task under way: takes a place, writes its row, dispatches it
    /// after the commit.
    pub(crate) fn open_attempt(&mut self, run: &mut Run, number: u32) {
        if is_held(run, number) {
            if let Some(task) = run.task_mut(number) {
                task.phase = Phase::Capacity;
            }
            return;
        }
        let (num, now) = (run.num, self.steady_ms);
        let agent_key = self.agent_key(run, number);
        // What was used while it waited for its place counts too.
        if let Some(failure) = run.task(number).and_then(|task| self.over_budget(run, task)) {
            let failure = self.located(run, number, failure);
            self.finish_step(run, number, Outcome::Failed(failure), None, None);
            return;
        }
        let Some(task) = run.task_mut(number) else { return };
        if let (Some(limit), Some(agent)) = (task.agent.limit(), &agent_key)
            && !task.place
        {
            if !self.shared.capacity.acquire(agent, limit, num, number) {
                task.phase = Phase::Capacity;
                return;
            }
            task.place = true;
        }
        task.phase = Phase::Pending;
        let (residence, park, attempt) = (task.residence, task.park_ms, task.attempt);
        if residence != Residence::Inline {
            match self.task_row(run, number) {
                Ok(row) => {
                    run.pending.writes.push(Write::PutTask(Box::new(row.clone())));
                    self.take_up_inquiry(run, number, &row);
                    if let Some(task) = run.task_mut(number) {
                        task.row = Some(Box::new(row));
                    }
                }
                Err(failure) => {
                    let outcome = Outcome::Failed(self.located(run, number, failure));
                    self.finish_step(run, number, outcome, None, None);
                    return;
                }
            }
            if let (Residence::Elsewhere, Some(park)) = (residence, park) {
                run.timers.insert((now + park, number, Due::Park));
            }
        }
        run.pending.after.performs.push(Perform::Dispatch { step: number, attempt });
    }

    pub(crate) fn agent_key(&self, run: &Run, number: u32) -> Option<AgentKey> {
        let task = run.task(number)?;
        task.agent.limit()?;
        let blueprint = run.program.as_ref()?.blueprint();
        Some((Arc::from(blueprint.name()), Arc::clone(task.agent.name())))
    }

    /// A dispatched attempt came to its end, or went to somebody else.
    pub(crate) fn finished(
        &mut self,
        run: &mut Run,
        number: u32,
        attempt: u32,
        result: Result<Dispatched, Failure>,
    ) {
        if let Ok(Dispatched::Done(done)) = &result
            && fault::is_broken(Break::ApplyEffectsAtDispatch)
        {
            drop(self.apply_effects(run, number, &done.effects));
        }
        let Some(task) = run.task_mut(number) else { return };
        if task.attempt != attempt || task.phase == Phase::Retry {
            return;
        }
        fault::point("engine.finished");
        if !matches!(result, Ok(Dispatched::Parked)) {
            // The layers have heard of it on the way back.
            task.allowed = task.about.take().and_then(|about| about.allowed());
        }
        match result {
            Ok(Dispatched::Done(done)) => self.done(run, number, done),
            Ok(Dispatched::Short(short)) => self.fell_short(run, number, *short),
            Ok(Dispatched::Parked) if task.residence == Residence::Elsewhere => {
                // Every layer has let it pass: now a pull worker may have it.
                task.again = true;
                self.passed(run, number, attempt);
            }
            Ok(Dispatched::Parked) => {
                // Whoever ran in the host left without a result and without having reported one.
                task.live = None;
                let failure = Failure::new(kind::WORKER, "the worker left without a result");
                self.attempt_failed(run, number, failure, None);
            }
            Err(failure) => self.attempt_failed(run, number, failure, None),
        }
    }

    pub(crate) fn done(&mut self, run: &mut Run, number: u32, done: TaskDone) {
        let Some(task) = run.task(number) else { return };
        if self.is_followed(run, number, &done.effects) {
            return self.done_followed(run, number, done);
        }
        match self.judge(task, number, done.output) {
            Outcome::Completed(output) => {
                let effects = match self.apply_effects(run, number, &done.effects) {
                    Ok(effects) => effects,
                    Err(failure) => {
                        let outcome = Outcome::Failed(self.located(run, number, failure));
                        self.finish_step(run, number, outcome, None, done.usage);
                        return;
                    }
                };
                self.finish_step(run, number, Outcome::Completed(output), effects, done.usage);
            }
            Outcome::Failed(failure) => self.attempt_failed(run, number, failure, done.usage),
            Outcome::Canceled(_) => {}
        }
    }

    /// Whether an operator's own return fits the agent's schema.
    fn judge(&self, task: &OpenTask, number: u32, output: Json) -> Outcome {
        if output.len() > self.shared.settings.limits.value {
            let message = format!("the result has {} bytes", output.len());
            let failure = Failure::new(kind::LIMIT, message);
            return Outcome::Failed(failure.at(number, Some(task.agent.name()), task.attempt));
        }
        match task.agent.output().accept_json(&output) {
            Ok(output) => Outcome::Completed(output),
            Err(violations) => {
                let what = violations
                    .first()
                    .map_or_else(String::new, |v| format!(" at {}: {}", v.path, v.message));
                let message = format!("the result does not match its schema{what}");
                let failure = Failure::new(kind::INVALID_RESULT, message);
                Outcome::Failed(failure.at(number, Some(task.agent.name()), task.attempt))
            }
        }
    }

    /// An attempt failed: another follows, or the step fails.
    pub(crate) fn attempt_failed(
        &mut self,
        run: &mut Run,
        number: u32,
        failure: Failure,
        usage: Option<Usage>,
    ) {
        let short = Box::new(Short { failure, usage, effects: Vec::new() });
        let (failure, usage) = match self.settle_attempt(run, number, Err(short)) {
            Err(short) => (short.failure, short.usage),
            // A layer that has an answer instead of a failure.
            Ok(done) => {
                self.done(run, number, done);
                return;
            }
        };
        let failure = self.located(run, number, failure);
        let now = self.time_of(run);
        let seed = run.chain.started().map_or(0, |(started, _)| started.seed);
        let Some(task) = run.task(number) else { return };
        let interrupted = failure.is(kind::INTERRUPTED);
        let counted = task.counted + u32::from(!interrupted);
        let again = failure.retryable
            && if interrupted {
                !task.retry.fail_on_interrupt
            } else {
                counted < task.retry.max_attempts
            };
        if !again || run.is_ended() {
            self.finish_step(run, number, Outcome::Failed(failure), None, usage);
            return;
        }
        let pause = if interrupted {
            0
        } else {
            // Whoever says when it can take work again is heard, within the longest pause.
            let asked = retry_after_ms(&failure).min(task.retry.max_ms);
            pause_ms(&task.retry, counted, seed, number).max(asked)
        };
        let attempt = task.attempt;
        self.leave(run, number, &failure.message);
        self.append(
            run,
            Fact::AttemptClosed(Box::new(AttemptClosed {
                step: number,
                attempt,
                error: failure,
                usage,
                retry_at_ms: now + pause,
                counts: !interrupted,
            })),
        );
        if let Some(task) = run.task_mut(number) {
            task.counted = counted;
            task.phase = Phase::Retry;
        }
        if pause == 0 {
            self.next_attempt(run, number);
        } else {
            run.timers.insert((now + pause, number, Due::Retry));
        }
    }

    /// Opens the next attempt of a task whose last one closed.
    pub(crate) fn next_attempt(&mut self, run: &mut Run, number: u32) {
        let epoch = run.header.epoch;
        let Some(task) = run.task_mut(number) else { return };
        task.attempt += 1;
        task.invalid = 0;
        fault::point("engine.next_attempt");
        task.reported = false;
        task.question = None;
        task.again = false;
        let (attempt, operator) = (task.attempt, Arc::clone(&task.operator));
        let seat_epoch = seat_epoch(run, &operator);
        self.append(
            run,
            Fact::AttemptOpened(AttemptOpened { step: number, attempt, epoch, seat_epoch }),
        );
        self.open_attempt(run, number);
    }

    /// Takes an attempt out of the world: its worker, its row, its place, its timers.
    pub(crate) fn leave(&mut self, run: &mut Run, number: u32, reason: &str) {
        let Some(open) = run.open.remove(number) else { return };
        let open = self.release(run, number, open, (false, reason));
        run.open.insert(number, open);
    }

    /// Gives back what an open step held. `ended` says whether nothing of it follows, and why.
    pub(crate) fn release(
        &mut self,
        run: &mut Run,
        number: u32,
        mut open: Open,
        (ended, reason): (bool, &str),
    ) -> Open {
        run.timers.remove_step(number);
        if let OpenKind::Task(task) = &mut open.kind {
            if let Some(live) = task.live.take() {
                run.pending.after.performs.push(Perform::CancelWorker(live.cancel));
            }
            if let Some((_, reply)) = task.leasing.take() {
                refuse_lease(reply);
            }
            if let Some(row) = task.row.take() {
                if let Some(queue) = &row.queue {
                    let ticket = Ticket { run: row.run, step: row.step, attempt: row.attempt };
                    self.shared.hub.remove(queue, ticket);
                }
                if row.kind == "main_ai" {
                    let ticket = Ticket { run: row.run, step: row.step, attempt: row.attempt };
                    let reason = (!task.reported).then(|| reason.to_owned());
                    run.pending.after.performs.push(Perform::Retire { ticket, reason });
                }
                run.pending.writes.push(Write::CloseTask { run: run.num, step: number });
            }
            if let Some(blueprint) = run.program.as_ref().map(|program| program.blueprint().name())
            {
                let key: AgentKey = (Arc::from(blueprint), Arc::clone(task.agent.name()));
                if std::mem::take(&mut task.place) {
                    run.pending.after.performs.push(Perform::Release(key));
                } else if task.phase == Phase::Capacity && ended {
                    let next = self.shared.capacity.forget(&key, run.num, number);
                    self.tell_capacity(&key, next);
                }
            }
        }
        open
    }

    /// Counts the places of a run anew, which is read again: what it holds then are those of the
    /// stored attempts that outlive it; `unperformed` are places that it would have given back.
    pub(crate) fn recount_places(&mut self, run: &mut Run, unperformed: Vec<AgentKey>) {
        let Some(program) = run.program.clone() else { return };
        let blueprint: Arc<str> = Arc::from(program.blueprint().name());
        let filter = TaskFilter { run: Some(run.num), limit: usize::MAX, ..TaskFilter::default() };
        match self.shared.store.tasks(&filter) {
            // Taken before anything is given back: nobody gets between.
            Ok(rows) => {
                for row in rows {
                    let limited = |agent: &Arc<CompiledAgent>| agent.limit().is_some();
                    if self.lives_elsewhere(&row.operator)
                        && program.blueprint().agent(&row.agent).is_some_and(limited)
                    {
                        let agent = (Arc::clone(&blueprint), Arc::from(row.agent.as_str()));
                        self.shared.capacity.occupy(&agent);
                    }
                }
            }
            Err(error) => tracing::error!(run = %run.id, %error, "could not count its open tasks"),
        }
        let mut held = unperformed;
        let mut waiting = Vec::new();
        for (number, open) in run.open.each_mut() {
            let OpenKind::Task(task) = &mut open.kind else { continue };
            let agent: AgentKey = (Arc::clone(&blueprint), Arc::clone(task.agent.name()));
            if std::mem::take(&mut task.place) {
                held.push(agent);
            } else if task.phase == Phase::Capacity {
                waiting.push((agent, number));
            }
        }
        for agent in held {
            let next = self.shared.capacity.release(&agent);
            self.tell_capacity(&agent, next);
        }
        for (agent, number) in waiting {
            self.pass_on(&agent, run.num, number);
        }
    }

    fn lives_elsewhere(&self, operator: &str) -> bool {
        let backend = self.shared.registry.get(operator);
        backend.is_some_and(|backend| backend.residence() == Residence::Elsewhere)
    }

    /// Leaves the line for a place; if there is room, whoever is next hears of it.
    pub(crate) fn pass_on(&self, agent: &AgentKey, run: u64, step: u32) {
        let next = self.shared.capacity.forget(agent, run, step);
        self.tell_capacity(agent, next);
    }

    pub(crate) fn tell_capacity(&self, agent: &AgentKey, next: Option<(u64, u32)>) {
        if let Some((run, step)) = next {
            let agent = agent.clone();
            self.shared.tell(run, crate::engine::shared::message::RunMsg::Capacity { step, agent });
        }
    }

    /// An attempt reached its worker: its timeout begins.
    pub(crate) fn delivered(&mut self, run: &mut Run, number: u32, attempt: u32, by: Delivery) {
        let now = self.steady_ms;
        let num = run.num;
        let Some(task) = run.task_mut(number) else { return };
        if task.attempt != attempt || task.phase != Phase::Pending {
            return;
        }
        fault::point("engine.delivered");
        let mut by = by;
        if task.row.as_ref().is_some_and(|row| row.kind == "main_ai") {
            // Whoever fetched it did so for the session that has it.
            let ticket = Ticket { run: num, step: number, attempt };
            if let Some(session) = self.shared.sessions.holder(ticket) {
                self.shared.sessions.delivered(&session, ticket);
                by.worker = session.0;
            }
        }
        task.phase = Phase::Delivered;
        // A task for people has had its deadline since it was asked.
        let asked = task.row.as_ref().and_then(|row| row.deadline_ms);
        let deadline_ms = asked.or(task.timeout_ms.map(|timeout| now + timeout));
        task.graces = 0;
        if let Some(row) = &mut task.row {
            row.phase = TaskPhase::Delivered;
            row.worker = Some(by.worker.clone());
            (row.deadline_ms, row.graces) = (deadline_ms, 0);
            let row = row.clone();
            run.pending.writes.push(Write::PutTask(row));
        }
        run.timers.remove(number, Due::Park);
        run.timers.remove(number, Due::Attempt);
        if let Some(deadline) = deadline_ms {
            run.timers.insert((deadline, number, Due::Attempt));
        }
        let worker = by.worker;
        self.note_joined(run, &worker);
        let deadline_ms = deadline_ms.map(|at| self.shared.clock.wall_of(at));
        self.append(run, Fact::AttemptDelivered { step: number, attempt, worker, deadline_ms });
    }

    /// Adds to a failure where it comes from.
    pub(crate) fn located(&self, run: &Run, number: u32, failure: Failure) -> Failure {
        match run.task(number) {
            Some(task) => failure.at(number, Some(task.agent.name()), task.attempt),
            None => failure,
        }
    }
}
