//! Agents whose operator is a model: a task of one is a loop of calls, each a step of its own in the
//! scope below the task's place.
//!
//! | happens | then |
//! |---|---|
//! | such a task is scheduled | its step opens; [`ResponseFlow`] says what begins |
//! | the model is asked | a step `model_call`; its input is made from the chain, and is not in the journal |
//! | a tool is called | a step `tool_call`: a task, state, or another loop; a refused call ends as it begins |
//! | a turn is to leave the conversation | a step `flush` writes it to state first, where the agent wants that |
//! | the last of a batch ends | in the same commit the model is asked again, or the loop ends |
//! | the loop ends, is canceled or out of time | what is still open is canceled |
//! | the run is read again | the flow is told what ended, in its order, and goes on from there |
//!
//! The flow of the run knows the task alone: a replay passes the steps of a loop over.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::json;

use crate::{
    blueprint::{CompiledAgent, CompiledLoop, Does, LoopJudge, Slots},
    engine::{
        run::{
            branches::{is_held, loop_depth, part_key, shown, used_at},
            due::Due,
            members::Members,
            model_loop::OpenLoop,
            open::{Open, OpenKind},
            perform::Perform,
            resident::Run,
            task::{OpenTask, Phase},
        },
        shard::owner::Shard,
    },
    fault,
    flow::{
        StateOp, StepOp, TaskRequest,
        response::{
            Approve, Begin, Call, Face, Flush, LoopSettings, Owner, ResponseFlow, Stop, Turn,
            user_message,
        },
    },
    journal::{Outcome, StepKey},
    protocol::{
        BudgetEvent, DurationMs, EventSource, ExitReason, Failure, LifecycleEvent, ModelAsk,
        ObservableEvent, OperatorId, Scope, WorkflowId, failure::kind,
    },
};

impl Shard {
    /// Whether a prepared task is a loop.
    pub(crate) fn is_loop(&self, task: &OpenTask) -> bool {
        !task.request.is_model_call()
            && !task.request.lists_tools()
            && self.shared.registry.loops(&task.operator, task.agent.name())
    }

    /// Opens a loop; what it begins with begins with the next turn of the run.
    pub(crate) fn schedule_loop(
        &mut self,
        run: &mut Run,
        key: &StepKey,
        op: &StepOp,
        task: OpenTask,
    ) {
        let opened = self
            .may_compose(run, key, &task.operator)
            .and_then(|()| loop_depth(run, key))
            .and_then(|()| self.loop_of(run, run.chain.next_step(), task));
        match opened {
            Ok(open) => {
                fault::point("engine.loop");
                let times = open.times();
                let number = self.open(run, key, op, OpenKind::Loop(Box::new(open)));
                if let Some((near_ms, max_ms)) = times {
                    let now = self.steady_ms;
                    run.timers.insert((now + near_ms, number, Due::LoopNear));
                    run.timers.insert((now + max_ms, number, Due::Loop));
                }
                run.composing.insert(number);
            }
            Err(failure) => {
                let step = run.chain.next_step();
                let failure = failure.at(step, Some(op.name()), 1);
                self.record(run, key, op, Outcome::Failed(failure));
            }
        }
    }

    /// A loop of a prepared task, before anything has begun.
    fn loop_of(&self, run: &Run, number: u32, task: OpenTask) -> Result<OpenLoop, Failure> {
        let OpenTask { request, agent, operator, .. } = task;
        let (started, _) = run.chain.started().expect("a run with a task has started");
        let program = run.program.as_ref().expect("a task is prepared with the run's program");
        let slots = Slots {
            input: &request.input,
            run_input: &started.input,
            run_id: &run.id.to_string(),
            attempt: 1,
        };
        let rendered = agent
            .render(program.blueprint(), &slots)
            .map_err(|error| Failure::new(kind::TEMPLATE, error.to_string()))?;
        let compiled = agent.model_loop().map_or_else(Default::default, Arc::clone);
        let asked = request.opts.ask.as_deref();
        let start = match asked {
            Some(ask) if !ask.items.is_empty() => ask.items.clone(),
            _ => vec![user_message(&rendered.prompt)],
        };
        let more = asked.and_then(|ask| ask.instructions.clone());
        let instructions: Vec<String> = rendered.system.into_iter().chain(more).collect();
        let mut settings = settings(&compiled, &agent, &operator, asked)?;
        settings.run = run.id.to_string();
        let declared = compiled.declared().flush.as_ref();
        settings.flush = declared.map(|flush| {
            let own = Scope::Workflow(WorkflowId::new(run.id.to_string()));
            // One that there is not is refused where it is written to.
            let named = flush.scope.as_ref().and_then(|it| self.scope_of(run, it).ok());
            let scope = named.and_then(|it| it.parse().ok()).unwrap_or(own);
            let keys = format!("{}{}/{number}/", flush.prefix, agent.name());
            Flush { scope, keys, required: flush.required }
        });
        Ok(OpenLoop {
            flush_scope: declared.and_then(|flush| flush.scope.clone()),
            flow: ResponseFlow::new(settings, start),
            max_duration_ms: compiled.declared().max_duration_ms,
            judge: LoopJudge::new(Arc::clone(&agent), compiled),
            instructions: (!instructions.is_empty()).then(|| instructions.join("\n\n")),
            request,
            agent,
            operator,
            begun: Vec::new(),
            recorded: 0,
            held: BTreeSet::new(),
            broken: None,
            came: 0,
        })
    }

    /// Lets a loop go on as far as it can.
    pub(crate) fn loop_one(&mut self, run: &mut Run, number: u32) {
        if is_held(run, number) {
            return;
        }
        self.release_held(run, number);
        while let Some(open) = run.model_loop_mut(number) {
            if let Some(failure) = open.broken.take() {
                self.stop_loop(run, number, *Stop::of(failure));
                return;
            }
            if open.recorded < open.begun.len() {
                self.begin_parts(run, number);
                if run.is_ended() || run.reload {
                    return;
                }
                continue;
            }
            let turn = open.flow.turn(&open.judge);
            let events = open.flow.take_events();
            for event in events {
                self.told(run, Some(number), &event);
            }
            let Some(open) = run.model_loop_mut(number) else { return };
            match turn {
                Turn::Wait => return,
                Turn::Begin(parts) => open.begun.extend(parts),
                Turn::Done { value, .. } => {
                    self.tell_exit(run, number, &ExitReason::Complete);
                    self.finish_step(run, number, Outcome::Completed(value), None, None);
                }
                Turn::Stop(stop) => self.stop_loop(run, number, *stop),
            }
        }
    }

    /// Records what began: all of it, before any of it is executed.
    fn begin_parts(&mut self, run: &mut Run, number: u32) {
        fault::point("engine.loop_batch");
        let Some(key) = run.chain.step(number).map(|step| step.scheduled.key.clone()) else {
            return;
        };
        while let Some(open) = run.model_loop_mut(number) {
            let place = open.recorded;
            let Some(begin) = open.begun.get(place).cloned() else { return };
            open.recorded += 1;
            if !open.flow.may_start(place) {
                open.held.insert(place);
            }
            let Some(request) = open.request_of(place) else { return };
            if let Some(breach) = self.breach(run).or_else(|| Self::task_breach(run)) {
                self.break_limit(run, breach);
                return;
            }
            let key = part_key(&key, place);
            match begin {
                Begin::Refuse(_, failure) => {
                    let op = StepOp::Task(Box::new(request));
                    let failure = failure.at(run.chain.next_step(), Some(op.name()), 1);
                    self.record(run, &key, &op, Outcome::Failed(failure));
                }
                Begin::Call(call) => self.begin_call(run, number, key, &call, request),
                Begin::Flush { turn } => {
                    let Some(open) = run.model_loop(number) else { return };
                    let (scope, asked) = (open.flush_scope.clone(), open.flush_op(turn));
                    self.schedule_state_call(run, &key, request, scope.as_deref(), asked);
                }
                Begin::List { .. }
                | Begin::Ask { .. }
                | Begin::Compact { .. }
                | Begin::Approve(_) => {
                    self.schedule_task(run, key, request);
                }
            }
        }
    }

    /// Begins a call of a tool.
    fn begin_call(
        &mut self,
        run: &mut Run,
        number: u32,
        key: StepKey,
        call: &Call,
        request: TaskRequest,
    ) {
        let does = run.model_loop(number).and_then(|open| open.does(call));
        match does {
            Some(Does::State { op, scope, prefix }) => {
                let asked = op.op(&call.arguments, &prefix);
                self.schedule_state_call(run, &key, request, scope.as_deref(), asked);
            }
            Some(Does::Task { .. }) => self.schedule_task(run, key, request),
            None => {
                let failure =
                    Failure::new(kind::NOT_FOUND, format!("there is no tool {:?}", call.name));
                let op = StepOp::Task(Box::new(request));
                self.record(run, &key, &op, Outcome::Failed(failure));
            }
        }
    }

    /// A call of a tool that is an operation on state.
    fn schedule_state_call(
        &mut self,
        run: &mut Run,
        key: &StepKey,
        request: TaskRequest,
        scope: Option<&str>,
        asked: StateOp,
    ) {
        let op = StepOp::Task(Box::new(request));
        if scope.is_none() && !asked.needs_store() {
            let outcome = match self.own_state(run, &asked) {
                Ok(value) => Outcome::Completed(shown(run, key, value)),
                Err(failure) => Outcome::Failed(failure),
            };
            self.record(run, key, &op, outcome);
            return;
        }
        match self.permitted(run, scope, &asked) {
            Err(failure) => self.record(run, key, &op, Outcome::Failed(failure)),
            Ok((scope, asked)) => {
                let kind = OpenKind::State { scope, op: Box::new(asked) };
                let number = self.open(run, key, &op, kind);
                run.pending.after.performs.push(Perform::State { step: number });
            }
        }
    }

    /// Lets those go on that waited for others of their batch.
    fn release_held(&mut self, run: &mut Run, number: u32) {
        let Some(key) = run.chain.step(number).map(|step| step.scheduled.key.clone()) else {
            return;
        };
        let Some(open) = run.model_loop_mut(number) else { return };
        let free: Vec<usize> =
            open.held.iter().copied().filter(|place| open.flow.may_start(*place)).collect();
        for place in free {
            let Some(open) = run.model_loop_mut(number) else { return };
            open.held.remove(&place);
            let part = run.chain.find(&part_key(&key, place)).map(|step| step.scheduled.step);
            let Some(part) = part else { continue };
            match run.open.get(part).map(|open| &open.kind) {
                Some(OpenKind::Task(task)) if task.phase == Phase::Capacity => {
                    self.open_attempt(run, part);
                }
                Some(OpenKind::Loop(_) | OpenKind::Composite(_)) => {
                    run.composing.insert(part);
                }
                _ => {}
            }
        }
    }

    /// Something that a loop began has ended.
    pub(crate) fn part_ended(
        &mut self,
        run: &mut Run,
        number: u32,
        key: &StepKey,
        outcome: Outcome,
    ) {
        let used = used_at(run, key);
        if let Some(open) = run.model_loop_mut(number) {
            open.came += outcome.size_hint();
            open.flow.end(key.index as usize, outcome, &used);
            run.composing.insert(number);
        }
    }

    /// A loop is out of time.
    pub(crate) fn loop_timed_out(&mut self, run: &mut Run, number: u32) {
        let Some(open) = run.model_loop(number) else { return };
        let most = open.max_duration_ms.unwrap_or_default();
        let event = BudgetEvent::TimeoutReached {
            operator: OperatorId::new(open.operator.to_string()),
            elapsed: DurationMs::from_millis(most),
        };
        self.told(run, Some(number), &LifecycleEvent::Budget(event));
        let message = format!("it took longer than `max_duration`, {most} ms");
        let failure = Failure::new(kind::TIMEOUT, message);
        self.stop_loop(run, number, Stop { exit: ExitReason::Timeout, failure });
    }

    /// The time of a loop is nearly over.
    pub(crate) fn loop_near_its_end(&mut self, run: &mut Run, number: u32) {
        let Some(open) = run.model_loop(number) else { return };
        let Some((near_ms, max_ms)) = open.times() else { return };
        let event = BudgetEvent::TimeoutApproaching {
            operator: OperatorId::new(open.operator.to_string()),
            elapsed: DurationMs::from_millis(near_ms),
            max_duration: DurationMs::from_millis(max_ms),
        };
        self.told(run, Some(number), &LifecycleEvent::Budget(event));
    }

    /// Ends a loop that stops short; whoever still works for it is told to stop.
    fn stop_loop(&mut self, run: &mut Run, number: u32, stop: Stop) {
        self.close_members(run, number, "the loop that it belongs to has ended");
        let Some(open) = run.model_loop(number) else { return };
        let agent = Arc::clone(open.agent.name());
        self.tell_exit(run, number, &stop.exit);
        let failure = match stop.failure.step {
            // What failed says itself where.
            Some(_) => stop.failure,
            None => stop.failure.at(number, Some(&agent), 1),
        };
        self.finish_step(run, number, Outcome::Failed(failure), None, None);
    }

    /// Tells how a loop ended, once.
    fn tell_exit(&mut self, run: &mut Run, number: u32, exit: &ExitReason) {
        let Some(open) = run.model_loop(number) else { return };
        let sums = open.flow.sums();
        let data = json!({
            "exit": exit, "agent": &**open.agent.name(), "turns": sums.turns, "calls": sums.calls,
            "usage": sums.used,
        });
        let began = run.chain.started().map_or(0, |(_, at)| at);
        let since = DurationMs::from_millis(self.time_of(run).saturating_sub(began));
        let mut event = ObservableEvent::new(EventSource::Turn, "loop.ended", since, data);
        event.operator_id = Some(OperatorId::new(open.operator.to_string()));
        self.told(run, Some(number), &LifecycleEvent::Observable(event));
    }

    /// Rebuilds a loop that was open when the run was last in memory.
    pub(crate) fn take_up_loop(
        &mut self,
        run: &mut Run,
        number: u32,
        task: OpenTask,
        members: &Members,
    ) {
        let mut open = match self.loop_of(run, number, task) {
            Ok(open) => open,
            Err(failure) => {
                self.finish_step(run, number, Outcome::Failed(failure), None, None);
                return;
            }
        };
        members.replay_loop(number, &mut open);
        open.flow.take_events();
        if let (Some((near_ms, max_ms)), Some(step)) = (open.times(), run.chain.step(number)) {
            let began = self.shared.clock.steady_of(step.scheduled_ms);
            run.timers.insert((began + max_ms, number, Due::Loop));
            // What is past was told, or nobody was there to hear it.
            if began + near_ms > self.steady_ms {
                run.timers.insert((began + near_ms, number, Due::LoopNear));
            }
        }
        let parts = open.recorded;
        open.held = (0..parts).filter(|place| !open.flow.may_start(*place)).collect();
        run.open.insert(number, Open { kind: OpenKind::Loop(Box::new(open)) });
        run.composing.insert(number);
    }

    /// Takes up a call of a tool that is an operation on shared state and whose end is not known.
    pub(crate) fn take_up_state_call(&mut self, run: &mut Run, number: u32, around: u32) -> bool {
        let Some(index) = run.chain.step(number).map(|step| step.scheduled.key.index) else {
            return false;
        };
        let asked =
            run.model_loop(around).and_then(|open| match open.begun.get(index as usize)? {
                Begin::Call(call) => match open.does(call)? {
                    Does::State { op, scope, prefix } => {
                        Some((scope, op.op(&call.arguments, &prefix)))
                    }
                    Does::Task { .. } => None,
                },
                Begin::Flush { turn } => Some((open.flush_scope.clone(), open.flush_op(*turn))),
                _ => None,
            });
        let Some((scope, asked)) = asked else { return false };
        match self.permitted(run, scope.as_deref(), &asked) {
            Ok((scope, asked)) => {
                let kind = OpenKind::State { scope, op: Box::new(asked) };
                run.open.insert(number, Open { kind });
                run.pending.after.performs.push(Perform::State { step: number });
            }
            Err(failure) => {
                self.finish_step(run, number, Outcome::Failed(failure), None, None);
            }
        }
        true
    }
}

/// What a loop of an agent is made of.
fn settings(
    compiled: &CompiledLoop,
    agent: &CompiledAgent,
    operator: &str,
    asked: Option<&ModelAsk>,
) -> Result<LoopSettings, Failure> {
    let mut tools = compiled.faces();
    let mut limits = compiled.declared().limits();
    if let Some(ask) = asked {
        limits.tool_calls = limits.tool_calls.into_iter().chain(ask.max_tool_calls).min();
        for tool in &ask.tools {
            if tools.iter().any(|own| own.tool.name == tool.name) {
                let message = format!("the tool {:?} is the agent's own", tool.name);
                return Err(Failure::new(kind::INVALID_INPUT, message));
            }
            tools.push(Face {
                tool: tool.clone(),
                owner: Owner::Caller,
                approve: Approve::Allow,
                parallel_safe: true,
            });
        }
    }
    Ok(LoopSettings {
        operator: operator.to_owned(),
        run: String::new(),
        flush: None,
        tools,
        servers: compiled.servers(agent.name()),
        asked: asked.is_some(),
        limits,
        compaction: compiled.declared().compaction.clone(),
    })
}
