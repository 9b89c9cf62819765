//! What a run is told, and what it makes of it.

use super::{
    Answer, Caller, EngineError, IdempotencyKey,
    message::{Lease, NewRun, ReplyTo, RunMsg},
    run::{Due, OpenKind, Perform, Phase, Run},
    shard::Shard,
    view, waiting,
};
use crate::{
    flow::Flow as _,
    journal::{Chain, Decision, Fact, Outcome, RunState, SignalReceived},
    operator::Delivery,
    protocol::{Failure, Json, failure::kind},
    store::{Check, Header, IdempotencyRow, RunStatus, Write},
    token::Handle,
};

/// How long an answer is kept under its idempotency key, in milliseconds.
pub(super) const IDEMPOTENCY_MS: u64 = 24 * 3_600 * 1_000;

impl Shard {
    /// Begins a run.
    pub(super) fn begin(&mut self, new: NewRun) {
        if self.runs.contains_key(&new.id.num()) {
            return;
        }
        self.lives += 1;
        let NewRun { id, program, started, jti, key, reply, waiter } = new;
        let wall_ms = program.blueprint().definition().wall_ms;
        let parent = started.parent;
        let mut run = Box::new(Run {
            id,
            num: id.num(),
            life: self.lives,
            header: new_header(id, &started),
            cursor: None,
            prev: None,
            chain: Chain::lean(),
            program: Some(program),
            grant: std::sync::Arc::new(super::recover::grant_of(&started.grant)),
            flow: None,
            inbox: std::collections::VecDeque::new(),
            open: std::collections::HashMap::new(),
            timers: std::collections::BTreeSet::new(),
            state: Some(std::collections::BTreeMap::new()),
            artifacts: Some(0),
            pending: super::run::Pending::default(),
            submitted: std::collections::VecDeque::new(),
            batches: 0,
            waiters: waiter.into_iter().collect(),
            subscribers: Vec::new(),
            reload: false,
            broken: false,
            queued: false,
        });
        run.header.parent = parent;
        self.shared.open_runs.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.append(&mut run, Fact::RunStarted(Box::new(started)));
        run.pending.checks.extend(jti.map(Check::TokenLive));
        if let Some((principal, key)) = key {
            self.keep_answer(&mut run, &principal, &key, id.to_string());
        }
        if let Some(reply) = reply {
            run.pending.after.replies.push(Box::new(move |result| {
                // A caller who went away cancels nothing.
                let _ = reply.send(result.map(view_of));
            }));
        }
        if let Some(wall) = wall_ms {
            let due = run.chain.last_ms() + wall;
            run.timers.insert((due, 0, Due::Wall));
        }
        self.start_flow(&mut run);
        self.settle(run);
    }

    /// Keeps the answer to a request in the same batch as its effect.
    fn keep_answer(&self, run: &mut Run, principal: &str, key: &IdempotencyKey, answer: String) {
        run.pending.checks.push(Check::KeyFree {
            principal: principal.to_owned(),
            route: key.route.to_owned(),
            key: key.key.clone(),
        });
        run.pending.writes.push(Write::PutIdempotency(IdempotencyRow {
            principal: principal.to_owned(),
            route: key.route.to_owned(),
            key: key.key.clone(),
            body: key.body.clone(),
            answer,
            created_ms: self.now_ms,
        }));
    }

    /// Refuses a message to a run that does not exist.
    pub(super) fn refuse_unknown(&self, num: u64, message: RunMsg) {
        if let RunMsg::SignalFrom { sender, .. } = &message {
            self.drop_signal(*sender);
        }
        refuse(message, || EngineError::NotFound { what: "run", id: format!("number {num}") });
    }

    /// Refuses a message to a run that cannot be read.
    pub(super) fn refuse(&self, message: RunMsg, error: &crate::store::StoreError) {
        refuse(message, || EngineError::Store(error.clone()));
    }

    /// A signal that can never arrive does not stay on its way.
    fn drop_signal(&self, (run, step): (u64, u32)) {
        self.shared.store.submit(crate::store::Batch {
            checks: Vec::new(),
            run: None,
            writes: vec![Write::DeleteOutbox { run, step }],
            ack: Box::new(|_| {}),
        });
    }

    /// Handles one message of a run that is in memory.
    pub(super) fn receive(&mut self, run: &mut Box<Run>, message: RunMsg) {
        match message {
            RunMsg::Wake => self.wake(run),
            RunMsg::Continue => {}
            RunMsg::TakeUp(reply) => {
                self.wake(run);
                run.pending.after.replies.push(Box::new(move |result| {
                    drop(reply.send(result.map(|_| ())));
                }));
            }
            RunMsg::Quarantine { reason, reply } => {
                // One that was in memory already is no danger: it was read when it was loaded.
                if run.chain.paused().is_none() && !run.is_ended() {
                    self.append(
                        run,
                        Fact::Decided(Decision::Pause { by: "engine".into(), reason }),
                    );
                }
                run.pending.after.replies.push(Box::new(move |result| {
                    drop(reply.send(result.map(|_| ())));
                }));
            }
            RunMsg::Wait(waiter) => {
                run.waiters.push(waiter);
                if run.submitted.is_empty() && !run.has_pending() {
                    self.answer_waiters(run);
                }
            }
            RunMsg::Subscribe(subscriber, reply) => {
                // What is on its way to the disk was not made an event: nobody watched. The new
                // subscriber is told to read it once it is there.
                if let Some((_, after)) = run.submitted.back_mut() {
                    after.events.push(super::events::sync(self.now_ms));
                }
                run.subscribers.push(subscriber);
                // Who asked may be gone.
                let _ = reply.send(run.chain.seq());
            }
            RunMsg::Cancel { by, jti, reason, reply } => self.cancel(run, by, jti, reason, reply),
            RunMsg::Pause { by, jti, reason, reply } => self.pause(run, by, jti, reason, reply),
            RunMsg::Resume { by, jti, reply } => self.resume(run, by, jti, reply),
            RunMsg::Signal { name, payload, caller, key, reply } => {
                self.signal(run, name, payload, &caller, key, reply);
            }
            RunMsg::SignalFrom { sender, name, payload } => {
                self.signal_from(run, sender, name, payload);
            }
            RunMsg::Query { name, argument, reply } => {
                let answer = match run.flow.as_mut() {
                    Some(flow) => flow.query(&name, &argument).map_err(EngineError::Flow),
                    None => Err(EngineError::Conflict {
                        code: "run_paused",
                        message: format!("query {name:?}: the run's flow cannot be replayed now"),
                    }),
                };
                drop(reply.send(answer));
            }
            RunMsg::Finished { step, attempt, result } => {
                if let Some(task) = run.task_mut(step)
                    && task.attempt == attempt
                {
                    task.live = None;
                }
                self.finished(run, step, attempt, result);
            }
            RunMsg::Delivered { step, attempt, delivery } => {
                self.delivered(run, step, attempt, delivery);
            }
            RunMsg::Progress { step, attempt, data } => self.progress(run, step, attempt, &data),
            RunMsg::Capacity { step } => {
                if run.task(step).is_some_and(|task| task.phase == Phase::Capacity)
                    && run.chain.paused().is_none()
                {
                    self.open_attempt(run, step);
                }
            }
            RunMsg::ChildEnded { step, child, outcome } => {
                if matches!(run.open.get(&step), Some(open) if matches!(&open.kind, OpenKind::Child { run, .. } if *run == child))
                {
                    self.child_ended(run, step, outcome);
                }
            }
            RunMsg::Lease { step, attempt, worker, reply } => {
                self.lease(run, step, attempt, worker, reply);
            }
            RunMsg::Answer { step, answer, caller, key, reply } => {
                self.answer(run, step, answer, &caller, key, reply);
            }
            RunMsg::Worker { holder, ask } => self.worker(run, &holder, ask),
        }
    }

    /// Hands a called run's end to its caller; its cancel is a failure that can be caught.
    pub(super) fn child_ended(&mut self, run: &mut Run, step: u32, outcome: Outcome) {
        let outcome = match outcome {
            Outcome::Canceled(reason) => {
                let message = format!("the called run was canceled: {reason}");
                Outcome::Failed(Failure::new(kind::CANCELED, message))
            }
            Outcome::Completed(_) | Outcome::Failed(_) => outcome,
        };
        self.finish_step(run, step, outcome, None, None);
    }

    /// Lets happen what is due.
    fn wake(&mut self, run: &mut Run) {
        if run.chain.paused().is_some() || run.is_ended() {
            return;
        }
        while let Some(&(at, number, due)) = run.timers.first() {
            if at > self.now_ms {
                // The header's wake-up time may lie before this run's next timer.
                self.timers.insert((at, run.num));
                break;
            }
            run.timers.remove(&(at, number, due));
            self.due(run, number, due);
            if run.is_ended() {
                break;
            }
        }
    }

    fn due(&mut self, run: &mut Run, number: u32, due: Due) {
        match due {
            Due::Timer => {
                self.finish_step(run, number, Outcome::Completed(Json::null()), None, None);
            }
            Due::SignalDeadline => {
                let value = super::drive::timeout_value();
                self.finish_step(run, number, Outcome::Completed(value), None, None);
            }
            Due::Attempt => {
                let Some(task) = run.task(number) else { return };
                let timeout = task.timeout_ms.unwrap_or_default();
                let failure = Failure::new(
                    kind::TIMEOUT,
                    format!("the attempt took longer than {timeout} ms"),
                );
                self.attempt_failed(run, number, failure.retryable(), None);
            }
            Due::Lease => {
                let failure = Failure::new(kind::INTERRUPTED, "the worker's lease ran out");
                self.attempt_failed(run, number, failure.retryable(), None);
            }
            Due::Park => {
                let operator = run.task(number).map(|task| task.operator.to_string());
                let failure = Failure::new(
                    kind::OPERATOR_UNAVAILABLE,
                    format!("nobody took the task from {}", operator.unwrap_or_default()),
                );
                self.attempt_failed(run, number, failure.retryable(), None);
            }
            Due::Retry => self.next_attempt(run, number),
            Due::Wall => {
                let failure = Failure::new(kind::LIMIT, "the run took longer than its wall limit");
                self.wind_up(run, Outcome::Failed(failure));
            }
            Due::Compensation => {
                if let RunState::Compensating(ending) = run.chain.state() {
                    let ending = ending.clone();
                    self.end(run, ending);
                }
            }
        }
    }

    fn cancel(
        &mut self,
        run: &mut Run,
        by: String,
        jti: Option<String>,
        reason: String,
        reply: Option<ReplyTo<super::RunView>>,
    ) {
        if run.is_ended() {
            if let Some(reply) = reply {
                drop(reply.send(Err(closed(run))));
            }
            return;
        }
        run.pending.checks.extend(jti.map(Check::TokenLive));
        let decision = Decision::Cancel { by, reason: reason.clone() };
        self.append(run, Fact::Decided(decision));
        if run.chain.paused().is_some() {
            // A run that rests has no flow to compensate with until it is replayed.
            self.append(run, Fact::Decided(Decision::Resume { by: "cancel".into() }));
        }
        match run.chain.state() {
            RunState::Compensating(ending) => {
                let ending = ending.clone();
                self.end(run, ending);
            }
            RunState::Active | RunState::Ended(_) => self.wind_up(run, Outcome::Canceled(reason)),
        }
        reply_view(run, reply);
    }

    fn pause(
        &mut self,
        run: &mut Run,
        by: String,
        jti: Option<String>,
        reason: String,
        reply: ReplyTo<super::RunView>,
    ) {
        if run.is_ended() {
            drop(reply.send(Err(closed(run))));
            return;
        }
        if run.chain.paused().is_none() {
            run.pending.checks.extend(jti.map(Check::TokenLive));
            self.append(run, Fact::Decided(Decision::Pause { by, reason }));
        }
        reply_view(run, Some(reply));
    }

    fn resume(
        &mut self,
        run: &mut Run,
        by: String,
        jti: Option<String>,
        reply: ReplyTo<super::RunView>,
    ) {
        if run.is_ended() {
            drop(reply.send(Err(closed(run))));
            return;
        }
        if run.chain.paused().is_some() {
            run.pending.checks.extend(jti.map(Check::TokenLive));
            self.append(run, Fact::Decided(Decision::Resume { by }));
            // Results that came meanwhile are in the journal: the replay hands them to the flow.
            // Workers in the host are kept: the replay would take them for dead.
            if run.flow.is_some() {
                self.wake_after_pause(run);
            } else {
                run.reload = true;
            }
        }
        reply_view(run, Some(reply));
    }

    /// Goes on where a pause held a run back that is still in memory.
    fn wake_after_pause(&mut self, run: &mut Run) {
        let open: Vec<u32> = run.chain.open().collect();
        for number in open {
            let Some(task) = run.task(number) else { continue };
            match task.phase {
                Phase::Capacity => self.open_attempt(run, number),
                Phase::Pending if task.live.is_none() => {
                    let attempt = task.attempt;
                    run.pending.after.performs.push(Perform::Dispatch { step: number, attempt });
                }
                Phase::Pending | Phase::Delivered | Phase::Retry => {}
            }
        }
        self.wake(run);
    }

    fn signal(
        &mut self,
        run: &mut Run,
        name: String,
        payload: Json,
        caller: &Caller,
        key: Option<IdempotencyKey>,
        reply: ReplyTo<()>,
    ) {
        if run.is_ended() {
            drop(reply.send(Err(closed(run))));
            return;
        }
        let limit = self.shared.settings.queued_signals;
        if run.chain.queued_signals() >= limit {
            drop(reply.send(Err(EngineError::Busy {
                code: "signal_queue_full",
                message: format!("signal {name:?}: {limit} signals wait at this run already"),
                retry_after_s: 5,
            })));
            return;
        }
        run.pending.checks.push(Check::TokenLive(caller.jti.clone()));
        if let Some(key) = &key {
            self.keep_answer(run, &caller.subject, key, "null".into());
        }
        self.accept_signal(run, SignalReceived { name, payload, sender: None });
        run.pending.after.replies.push(Box::new(move |result| {
            drop(reply.send(result.map(|_| ())));
        }));
    }

    fn signal_from(&mut self, run: &mut Run, sender: (u64, u32), name: String, payload: Json) {
        run.pending.writes.push(Write::DeleteOutbox { run: sender.0, step: sender.1 });
        let full = run.chain.queued_signals() >= self.shared.settings.queued_signals;
        if run.is_ended() || run.chain.has_received(sender) || full {
            if full {
                tracing::warn!(run = %run.id, name, "a signal from another run found the queue full");
            }
            return;
        }
        self.accept_signal(run, SignalReceived { name, payload, sender: Some(sender) });
    }

    fn accept_signal(&mut self, run: &mut Run, signal: SignalReceived) {
        let name = signal.name.clone();
        self.append(run, Fact::SignalReceived(signal));
        if run.chain.paused().is_some() {
            return;
        }
        self.match_signal(run, &name);
    }

    /// Hands queued signals of a name to who waits for it.
    pub(super) fn match_signal(&mut self, run: &mut Run, name: &str) {
        while let (Some(waiter), Some(payload)) =
            (run.chain.first_waiter(name), run.chain.first_signal(name))
        {
            let value = super::drive::payload_value(payload);
            self.finish_step(run, waiter, Outcome::Completed(value), None, None);
        }
    }

    pub(super) fn progress(&mut self, run: &mut Run, step: u32, attempt: u32, data: &Json) {
        if run.subscribers.is_empty() {
            return;
        }
        let event = super::EventView {
            seq: None,
            kind: "progress".into(),
            at: super::rfc3339(self.now_ms),
            data: serde_json::json!({ "step": step, "attempt": attempt, "data": data }).into(),
        };
        super::perform::publish(run, &event);
    }

    fn lease(
        &mut self,
        run: &mut Run,
        step: u32,
        attempt: u32,
        worker: String,
        reply: ReplyTo<Lease>,
    ) {
        let now = self.time_of(run);
        let lease_ms = now + self.shared.settings.lease_ms;
        let paused = run.chain.paused().is_some();
        let scheduled_ms = run.chain.step(step).map(|step| step.scheduled_ms);
        let free = run.task(step).is_some_and(|task| {
            task.attempt == attempt && task.phase == Phase::Pending && task.row.is_some()
        });
        let (true, false, Some(scheduled_ms)) = (free, paused, scheduled_ms) else {
            drop(reply.send(Err(EngineError::Conflict {
                code: "fenced",
                message: "lease the task: it is not waiting any more".into(),
            })));
            return;
        };
        if let Some(task) = run.task_mut(step)
            && let Some(row) = &mut task.row
        {
            row.lease_ms = Some(lease_ms);
        }
        run.timers.insert((lease_ms, step, Due::Lease));
        self.delivered(run, step, attempt, Delivery { worker });
        let epoch = run.header.epoch;
        let handle = Handle::mint(&self.shared.handles, run.num, step, attempt, epoch).expose();
        run.pending.after.replies.push(Box::new(move |result| {
            drop(reply.send(result.map(|_| Lease { handle, scheduled_ms, lease_ms })));
        }));
    }

    fn answer(
        &mut self,
        run: &mut Run,
        step: u32,
        answer: Answer,
        caller: &Caller,
        key: Option<IdempotencyKey>,
        reply: ReplyTo<()>,
    ) {
        let refuse = |reply: ReplyTo<()>, error| drop(reply.send(Err(error)));
        let Some(task) = run.task(step).filter(|task| task.row.is_some()) else {
            let error = match run.chain.step(step) {
                None => EngineError::NotFound { what: "task", id: format!("{}/{step}", run.id) },
                Some(_) if run.is_ended() => closed(run),
                Some(_) => EngineError::Conflict {
                    code: "already_accepted",
                    message: "answer the task: it has ended".into(),
                },
            };
            return refuse(reply, error);
        };
        if task.row.as_ref().is_some_and(|row| row.kind != "human") {
            let message = "answer the task: it is not one for people; its worker reports".into();
            return refuse(reply, EngineError::Conflict { code: "not_human", message });
        }
        if let Some(by) = &task.request.opts.by
            && by != caller.grant.role.as_str()
            && caller.grant.role != crate::token::Role::Admin
        {
            let message = format!("answer the task: only the role {by} may");
            return refuse(reply, EngineError::Conflict { code: "wrong_role", message });
        }
        let outcome = match answer {
            Answer::Reject { reason } => {
                let failure = Failure::new(kind::HUMAN_REJECTED, reason);
                Outcome::Failed(self.located(run, step, failure))
            }
            Answer::Output(output) => match task.agent.output().accept_json(&output) {
                Ok(output) => Outcome::Completed(output),
                Err(violations) => {
                    let violations = violations.into_iter().map(view::breach).collect();
                    let error = EngineError::Invalid { what: "the result", violations };
                    return refuse(reply, error);
                }
            },
        };
        run.pending.checks.push(Check::TokenLive(caller.jti.clone()));
        if let Some(key) = &key {
            self.keep_answer(run, &caller.subject, key, "null".into());
        }
        if run.task(step).is_some_and(|task| task.phase == Phase::Pending) {
            let attempt = run.task(step).map_or(1, |task| task.attempt);
            self.delivered(run, step, attempt, Delivery { worker: caller.subject.clone() });
        }
        self.finish_step(run, step, outcome, None, None);
        run.pending.after.replies.push(Box::new(move |result| {
            drop(reply.send(result.map(|_| ())));
        }));
    }

    /// Answers whoever waits for what is so now.
    pub(super) fn answer_waiters(&mut self, run: &mut Run) {
        if run.waiters.is_empty() || !run.submitted.is_empty() {
            return;
        }
        let ended = run.is_ended();
        let people =
            ended || run.header.status == RunStatus::Paused || waiting::waits_for_people(run);
        for waiter in std::mem::take(&mut run.waiters) {
            let is_so = match waiter.until {
                super::WaitFor::Ended => ended,
                super::WaitFor::EndedOrPeople => people,
            };
            if is_so {
                drop(waiter.reply.send(view_of(run)));
            } else {
                run.waiters.push(waiter);
            }
        }
    }
}

fn new_header(id: crate::protocol::RunId, started: &crate::journal::RunStarted) -> Header {
    Header {
        num: id.num(),
        created_ms: id.created_ms(),
        blueprint: started.blueprint.clone(),
        hash: started.hash.clone(),
        status: RunStatus::Queued,
        status_text: None,
        progress: None,
        cursor: 0,
        seq: 0,
        steps: 0,
        steps_done: 0,
        wake_at_ms: None,
        epoch: 1,
        parent: started.parent,
        principal: started.principal.clone(),
        updated_ms: id.created_ms(),
        ended_ms: None,
        error: None,
        waiting_on: None,
    }
}

/// The run, as it is shown.
pub(super) fn view_of(run: &Run) -> super::RunView {
    let mut view = view::run(&run.header);
    view.input = run.chain.started().map(|(started, _)| started.input.clone());
    if let RunState::Ended(Outcome::Completed(output)) = run.chain.state() {
        view.output = Some(output.clone());
    }
    view
}

fn reply_view(run: &mut Run, reply: Option<ReplyTo<super::RunView>>) {
    if let Some(reply) = reply {
        run.pending.after.replies.push(Box::new(move |result| {
            drop(reply.send(result.map(view_of)));
        }));
    }
}

/// The refusal for something that comes after the end.
pub(super) fn closed(run: &Run) -> EngineError {
    EngineError::Conflict {
        code: "run_closed",
        message: format!("change run {}: it has ended", run.id),
    }
}

/// Answers a message with an error, if it wants an answer.
fn refuse(message: RunMsg, error: impl Fn() -> EngineError) {
    fn send<T>(reply: ReplyTo<T>, error: EngineError) {
        // Who asked may be gone.
        let _ = reply.send(Err(error));
    }
    match message {
        RunMsg::Wake
        | RunMsg::Continue
        | RunMsg::SignalFrom { .. }
        | RunMsg::Finished { .. }
        | RunMsg::Delivered { .. }
        | RunMsg::Progress { .. }
        | RunMsg::Capacity { .. }
        | RunMsg::ChildEnded { .. }
        // Dropping the channel says it.
        | RunMsg::Wait(_)
        | RunMsg::Subscribe(..) => {}
        RunMsg::Cancel { reply, .. } => {
            if let Some(reply) = reply {
                send(reply, error());
            }
        }
        RunMsg::Pause { reply, .. } | RunMsg::Resume { reply, .. } => send(reply, error()),
        RunMsg::Signal { reply, .. }
        | RunMsg::Answer { reply, .. }
        | RunMsg::TakeUp(reply)
        | RunMsg::Quarantine { reply, .. } => send(reply, error()),
        RunMsg::Query { reply, .. } => send(reply, error()),
        RunMsg::Lease { reply, .. } => send(reply, error()),
        RunMsg::Worker { ask, .. } => match ask {
            super::message::WorkerAsk::Prompt(reply) => send(reply, error()),
            super::message::WorkerAsk::Report(_, reply) => send(reply, error()),
            super::message::WorkerAsk::Artifact { reply, .. } => send(reply, error()),
            super::message::WorkerAsk::Progress { reply, .. }
            | super::message::WorkerAsk::PutState { reply, .. } => send(reply, error()),
            super::message::WorkerAsk::Heartbeat(reply) => send(reply, error()),
            super::message::WorkerAsk::GetState { reply, .. } => send(reply, error()),
        },
    }
}
