//! Advancing a flow: its inputs one after the other, its commands into facts.

use std::sync::Arc;

use crate::{
    engine::{
        run::{
            due::Due,
            open::{Open, OpenKind},
            perform::Perform,
            resident::Run,
            values::{input_of, payload_value, timeout_value},
        },
        shard::owner::Shard,
    },
    fault,
    flow::{Command, Flow as _, Input, NextAction, StepOp, StepRequest},
    journal::{Entry, Fact, Outcome, RunState, Scheduled, ScopePath, StepKey, fingerprint},
    protocol::{Failure, Json, RunId, failure::kind},
    store::{Errand, OutboxRow, Write},
};

/// Inputs that a run takes in one turn before its neighbours get theirs.
const TURN: usize = 256;

/// Time that a run takes for one turn, if its inputs are fewer, in milliseconds. What it does with
/// one input is not interrupted: that is bounded by its limit of processor time.
pub(crate) const TURN_MS: u64 = 5;

/// Bytes that a run writes in one turn, if its inputs are fewer.
const TURN_BYTES: usize = 256 * 1024;

impl Shard {
    /// Adds a fact to a run's history.
    pub(crate) fn append(&mut self, run: &mut Run, fact: Fact) {
        let entry = Entry::new(run.chain.seq() + 1, self.now_ms.max(run.chain.last_ms()), fact);
        match run.chain.apply(&entry) {
            Ok(()) => {
                run.pending.entry_bytes += entry.fact.size_hint();
                run.pending.entries.push(entry);
            }
            Err(error) => {
                debug_assert!(false, "{error}");
                tracing::error!(run = %run.id, %error, "a fact did not follow; the run is read again");
                run.reload = true;
            }
        }
    }

    /// The time that the next fact of a run gets.
    pub(crate) fn time_of(&self, run: &Run) -> u64 {
        self.now_ms.max(run.chain.last_ms())
    }

    /// Lets the flow take its inputs, as many as one turn allows.
    pub(crate) fn drive(&mut self, run: &mut Run) {
        let began = self.shared.clock.steady_ms();
        self.hold_to_quotas(run);
        self.take_inputs(run, began);
        // Whatever the last input asked for begins in the same commit.
        self.compose(run);
    }

    /// Ends a run that would go on although the runs under its token keep more than they may.
    fn hold_to_quotas(&mut self, run: &mut Run) {
        if run.charged
            && !run.inbox.is_empty()
            && run.chain.paused().is_none()
            && *run.chain.state() == RunState::Active
            && let Some(exceeded) = self.shared.accounts.over_bytes(run.num)
        {
            self.wind_up(run, Outcome::Failed(exceeded.failure()));
        }
    }

    fn take_inputs(&mut self, run: &mut Run, began: u64) {
        for taken in 0..TURN {
            if taken > 0
                && (self.shared.clock.steady_ms().saturating_sub(began) >= TURN_MS
                    || run.pending.bytes() >= TURN_BYTES)
            {
                return;
            }
            if run.chain.paused().is_some() || run.is_ended() || run.reload {
                return;
            }
            self.compose(run);
            if run.waits_for_commit() || run.inbox.is_empty() || self.parks(run) {
                return;
            }
            let Some((input, at_ms)) = run.inbox.pop_front() else { return };
            let Some(flow) = run.flow.as_mut() else { return };
            let advance = flow.advance(input, at_ms);
            if advance.next == NextAction::More {
                run.inbox.push_front((Input::More, at_ms));
            }
            if !self.commands(run, advance.commands) {
                continue;
            }
            self.next(run, advance.next);
        }
    }

    /// Carries out what a flow asked for, in its order. Says whether it may go on: not once a
    /// command stopped it, by a limit that it broke; the rest was never decided then.
    pub(crate) fn commands(&mut self, run: &mut Run, commands: Vec<Command>) -> bool {
        let compensates = |run: &Run| matches!(run.chain.state(), RunState::Compensating(_));
        let before = compensates(run);
        for command in commands {
            self.command(run, command);
            if run.is_ended() || run.reload || compensates(run) != before {
                return false;
            }
        }
        true
    }

    /// What a flow's next action means for its run.
    ///
    /// | next | active | compensating |
    /// |---|---|---|
    /// | wait, more | wait | wait |
    /// | complete | ends completed, if the output fits its schema | ends as it was to end |
    /// | fail | compensates, or ends failed | ends as it was to end |
    /// | continue | a fresh history | ends as it was to end |
    /// | limit | compensates, or ends failed | ends as it was to end |
    /// | broken | read again | read again |
    pub(crate) fn next(&mut self, run: &mut Run, next: NextAction) {
        let ending = match run.chain.state() {
            RunState::Compensating(ending) => Some(ending.clone()),
            RunState::Active | RunState::Ended(_) => None,
        };
        match (next, ending) {
            (NextAction::Wait | NextAction::More, _) => {}
            (NextAction::Broken(reason), _) => {
                tracing::info!(run = %run.id, reason, "the run's VM had no room; it is replayed");
                run.flow = None;
                run.reload = true;
                run.broken = true;
            }
            (NextAction::Complete(output), None) => self.complete(run, &output),
            (NextAction::Fail(failure) | NextAction::Limit(failure), None) => {
                self.wind_up(run, Outcome::Failed(failure));
            }
            (NextAction::ContinueAs(input), None) => self.continue_as(run, input),
            (
                NextAction::Complete(_)
                | NextAction::Fail(_)
                | NextAction::Limit(_)
                | NextAction::ContinueAs(_),
                Some(ending),
            ) => self.end(run, ending),
        }
    }

    /// Turns one command of the flow into facts.
    pub(crate) fn command(&mut self, run: &mut Run, command: Command) {
        match command {
            Command::CancelScope(scope) => self.cancel_scope(run, &scope),
            Command::Note { key, note } => match self.long_history(run) {
                Some(breach) => self.break_limit(run, breach),
                None => self.append(run, Fact::Noted { key, note }),
            },
            Command::Schedule(request) => match self.breach(run).or_else(|| match request.op {
                StepOp::Task(_) => Self::task_breach(run),
                _ => None,
            }) {
                Some(breach) => self.break_limit(run, breach),
                None => self.schedule(run, request),
            },
        }
    }

    fn cancel_scope(&mut self, run: &mut Run, scope: &ScopePath) {
        let within: Vec<u32> = run
            .chain
            .open()
            .filter(|number| {
                run.chain
                    .step(*number)
                    .is_some_and(|step| step.scheduled.key.scope.is_within(scope))
            })
            .collect();
        for number in within {
            self.close(run, number, "the branch was canceled");
        }
    }

    /// Cancels every open step; nothing comes back to the flow.
    pub(crate) fn close_all(&mut self, run: &mut Run, reason: &str) {
        let open: Vec<u32> = run.chain.open().collect();
        for number in open {
            self.close(run, number, reason);
        }
    }

    /// Cancels one open step; nothing comes back to the flow.
    pub(crate) fn close(&mut self, run: &mut Run, number: u32, reason: &str) {
        // A member may have been closed with its composite.
        if run.chain.step(number).is_none_or(|step| step.state.is_terminal()) {
            return;
        }
        self.close_members(run, number, reason);
        if let Some(Open { kind: OpenKind::Child { run: child, .. }, .. }) = run.open.get(number) {
            let (child, reason) = (*child, reason.to_owned());
            run.pending
                .writes
                .push(crate::engine::run::answers::cancel_on_its_way(run, number, child, &reason));
            run.pending.after.performs.push(Perform::CancelChild { step: number, child, reason });
        }
        self.end_step(run, number, Outcome::Canceled(reason.to_owned()), None, None);
    }

    /// Ends an open step and forgets everything that it held; the flow hears nothing of it.
    pub(crate) fn end_step(
        &mut self,
        run: &mut Run,
        number: u32,
        outcome: Outcome,
        effects: Option<Json>,
        usage: Option<crate::journal::Usage>,
    ) {
        let Some(step) = run.chain.step(number) else { return };
        let (attempt, epoch) = (step.attempt, run.header.epoch);
        if let Outcome::Canceled(reason) = &outcome {
            // Nobody goes by what the layers say of it; they hear of it.
            let canceled = Failure::new(kind::CANCELED, reason.clone());
            drop(self.settle_attempt(run, number, Err(Box::new(canceled.into()))));
        }
        if let Some(open) = run.open.remove(number) {
            let reason = match &outcome {
                Outcome::Completed(_) => "another result was accepted",
                Outcome::Failed(failure) => &failure.message,
                Outcome::Canceled(reason) => reason,
            };
            self.release(run, number, open, (true, reason));
        }
        self.append(run, Fact::StepEnded { step: number, attempt, epoch, outcome, effects, usage });
    }

    /// Ends an open step and hands its value or failure to the flow.
    pub(crate) fn finish_step(
        &mut self,
        run: &mut Run,
        number: u32,
        outcome: Outcome,
        effects: Option<Json>,
        usage: Option<crate::journal::Usage>,
    ) {
        let Some(step) = run.chain.step(number) else { return };
        let (key, whole) = (step.scheduled.key.clone(), step.scheduled.whole());
        let outcome = self.settle_outcome(run, number, outcome);
        self.end_step(run, number, outcome.clone(), effects, usage);
        self.hand_over(run, key, whole, outcome);
    }

    /// Tells whoever asked for a step how it ended: its composite or loop, or the flow.
    fn hand_over(&mut self, run: &mut Run, key: StepKey, whole: Option<u32>, outcome: Outcome) {
        match whole {
            Some(whole) => self.member_ended(run, whole, &key, outcome),
            None => {
                let at_ms = run.chain.last_ms();
                run.inbox.push_back((input_of(key, outcome), at_ms));
            }
        }
    }

    fn schedule(&mut self, run: &mut Run, request: StepRequest) {
        fault::point("engine.schedule");
        let StepRequest { key, op } = request;
        let now = self.time_of(run);
        match op {
            StepOp::Task(task) => self.schedule_task(run, key, *task),
            StepOp::Timer { wake_at_ms } if wake_at_ms <= now => {
                self.record(run, &key, &op_timer(wake_at_ms), Outcome::Completed(Json::null()));
            }
            StepOp::Timer { wake_at_ms } => {
                let number = self.open(run, &key, &op_timer(wake_at_ms), OpenKind::Timer);
                run.timers.insert((wake_at_ms, number, Due::Timer));
            }
            StepOp::Signal { ref name, deadline_ms } => {
                self.schedule_wait(run, &key, &op, name, deadline_ms, now);
            }
            StepOp::Child { blueprint, input } => self.schedule_child(run, &key, blueprint, input),
            StepOp::Scoped { scope, op } => self.schedule_scoped(run, &key, Some(&scope), op),
            StepOp::State(state) if state.needs_store() => {
                self.schedule_scoped(run, &key, None, state);
            }
            StepOp::State(ref state) => {
                let outcome = match self.own_state(run, state) {
                    Ok(value) => Outcome::Completed(value),
                    Err(failure) => Outcome::Failed(failure),
                };
                self.record(run, &key, &op, outcome);
            }
            StepOp::Artifact(ref artifact) => {
                let step = run.chain.next_step();
                let outcome = match self.apply_artifact(run, step, artifact) {
                    Ok(value) => Outcome::Completed(value),
                    Err(failure) => Outcome::Failed(failure),
                };
                self.record(run, &key, &op, outcome);
            }
            StepOp::SendSignal { run: ref receiver, ref name, ref payload } => {
                let outcome = self.send_signal(run, receiver, name, payload);
                self.record(run, &key, &op, outcome);
            }
        }
    }

    fn schedule_wait(
        &mut self,
        run: &mut Run,
        key: &StepKey,
        op: &StepOp,
        name: &str,
        deadline_ms: Option<u64>,
        now: u64,
    ) {
        let queued = match run.chain.first_waiter(name) {
            Some(_) => None,
            None => run.chain.first_signal(name).map(payload_value),
        };
        match (queued, deadline_ms) {
            (Some(value), _) => self.record(run, key, op, Outcome::Completed(value)),
            (None, Some(deadline)) if deadline <= now => {
                self.record(run, key, op, Outcome::Completed(timeout_value()));
            }
            (None, deadline) => {
                let number = self.open(run, key, op, OpenKind::Signal);
                if let Some(deadline) = deadline {
                    run.timers.insert((deadline, number, Due::SignalDeadline));
                }
            }
        }
    }

    fn schedule_child(&mut self, run: &mut Run, key: &StepKey, blueprint: String, input: Json) {
        let depth = run.chain.started().map_or(0, |(started, _)| started.depth) + 1;
        let max_depth = run
            .program
            .as_ref()
            .and_then(|program| program.blueprint().definition().max_depth)
            .unwrap_or(self.shared.settings.limits.depth)
            .min(self.shared.settings.limits.depth);
        let own = run.program.as_ref().map(|program| {
            (program.blueprint().name().to_owned(), program.blueprint().hash().to_owned())
        });
        let resolved = if depth > max_depth {
            Err(Failure::new(kind::LIMIT, format!("more than {max_depth} runs below each other")))
        } else if let Some(failure) = self.run_over_budget(run)
            && *run.chain.state() == RunState::Active
        {
            Err(failure)
        } else {
            self.shared
                .programs
                .resolve(&blueprint, own)
                .and_then(|program| {
                    self.may_call(run, &program)?;
                    let input = crate::engine::shared::programs::accept_input(&program, &input)?;
                    Ok((program, input))
                })
                .map_err(|error| Failure::new(kind::REFUSED, format!("call {blueprint}: {error}")))
        };
        let op = |blueprint: String, input: Json| StepOp::Child { blueprint, input };
        match resolved {
            Err(failure) => {
                self.record(run, key, &op(blueprint, input), Outcome::Failed(failure));
            }
            Ok((program, accepted)) => {
                let child = RunId::new(self.shared.store.next_run(), self.time_of(run));
                let version = program.blueprint().version();
                let op = op(blueprint, input);
                let open = OpenKind::Child { run: child, blueprint: version, input: accepted };
                let number = self.open_as(run, key, &op, open, Some(child.to_string()));
                // The number is in this run's journal: no other may get it, also after a crash
                // before the called run is stored.
                run.pending.writes.push(Write::ReserveRun { num: child.num() });
                run.pending.after.performs.push(Perform::StartChild { step: number });
            }
        }
    }

    fn send_signal(&mut self, run: &mut Run, to: &str, name: &str, payload: &Json) -> Outcome {
        let refused = |why: String| Outcome::Failed(Failure::new(kind::REFUSED, why));
        let Ok(receiver) = to.parse::<RunId>() else {
            return refused(format!("signal {name:?}: {to:?} is not the id of a run"));
        };
        if let Err(error) = self.may_signal(run, receiver) {
            return refused(format!("signal {name:?}: {error}"));
        }
        if receiver != run.id {
            match self.shared.store.header(receiver.num()) {
                Ok(Some(header)) if header.created_ms != receiver.created_ms() => {
                    return refused(format!("signal {name:?}: there is no run {to}"));
                }
                Ok(Some(header)) if header.status.is_ended() => {
                    return refused(format!("signal {name:?}: run {to} has ended"));
                }
                Ok(Some(_)) => {}
                Ok(None) if self.runs.contains_key(&receiver.num()) => {}
                Ok(None) => return refused(format!("signal {name:?}: there is no run {to}")),
                Err(error) => return refused(format!("signal {name:?}: {error}")),
            }
        }
        let step = run.chain.next_step();
        run.pending.writes.push(Write::PutOutbox(OutboxRow {
            run: run.num,
            step,
            to: receiver.num(),
            errand: Errand::Signal { name: name.to_owned(), payload: payload.as_str().to_owned() },
        }));
        run.pending.after.performs.push(Perform::SendSignal {
            step,
            to: receiver.num(),
            name: name.to_owned(),
            payload: payload.clone(),
        });
        Outcome::Completed(Json::null())
    }

    /// A step that is decided and ended at once.
    pub(crate) fn record(&mut self, run: &mut Run, key: &StepKey, op: &StepOp, outcome: Outcome) {
        let scheduled = self.decided(run, key, op, None);
        let whole = scheduled.whole();
        self.append(run, Fact::StepRecorded(Box::new(scheduled), outcome.clone()));
        self.hand_over(run, key.clone(), whole, outcome);
    }

    /// A step that stays open; answers with its number.
    pub(crate) fn open(
        &mut self,
        run: &mut Run,
        key: &StepKey,
        op: &StepOp,
        kind: OpenKind,
    ) -> u32 {
        self.open_as(run, key, op, kind, None)
    }

    fn open_as(
        &mut self,
        run: &mut Run,
        key: &StepKey,
        op: &StepOp,
        kind: OpenKind,
        call_id: Option<String>,
    ) -> u32 {
        let mut scheduled = self.decided(run, key, op, call_id);
        if let OpenKind::Task(task) = &kind {
            scheduled.seat_epoch = crate::engine::run::branches::seat_epoch(run, &task.operator);
        }
        let number = scheduled.step;
        self.append(run, Fact::StepScheduled(Box::new(scheduled)));
        run.open.insert(number, Open { kind });
        number
    }

    fn decided(&self, run: &Run, key: &StepKey, op: &StepOp, call_id: Option<String>) -> Scheduled {
        let (kind, name, request) = (op.kind(), op.name(), op.request());
        let parent = crate::engine::run::branches::composite_of(run, key).map(|(_, number)| number);
        let known_by = match op {
            StepOp::Task(task) => match &task.part {
                Some(part) => part.call_id.clone(),
                None => task.opts.operator.clone().filter(|_| parent.is_some()),
            },
            _ => None,
        };
        Scheduled {
            step: run.chain.next_step(),
            prev: run.chain.tail(&key.scope),
            key: key.clone(),
            parent,
            kind,
            name: name.to_owned(),
            call_id: call_id.or(known_by),
            fingerprint: fingerprint(kind, name, &request),
            request,
            attempt: 1,
            epoch: run.header.epoch,
            seat_epoch: 0,
            wake_at_ms: op.wake_at_ms(),
            summary: op.summary().map(str::to_owned),
        }
    }

    /// Puts a fresh flow under a run and hands it its start.
    pub(crate) fn start_flow(&mut self, run: &mut Run) {
        let Some(program) = run.program.as_ref().map(Arc::clone) else { return };
        match self.new_flow(run, &program) {
            Ok(flow) => {
                run.flow = Some(flow);
                let at_ms = run.chain.last_ms();
                run.inbox.push_back((Input::Start, at_ms));
            }
            Err(failure) => self.end(run, Outcome::Failed(failure)),
        }
    }
}

fn op_timer(wake_at_ms: u64) -> StepOp {
    StepOp::Timer { wake_at_ms }
}
