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
            branches::loop_depth,
            due::Due,
            members::Members,
            model_loop::OpenLoop,
            open::{Open, OpenKind},
            perform::Perform,
            resident::Run,
            task::OpenTask,
        },
        shared::shards::Shared,
        turn::{
            composites,
            facts::{self, Turn},
            scoped, settle, steps,
        },
    },
    fault,
    flow::{
        StepOp,
        response::{
            Approve, Begin, Conversation, Face, Flush, LoopSettings, Owner, ResponseFlow, Stop,
            user_message,
        },
    },
    journal::{Outcome, StepKey},
    protocol::{
        BudgetEvent, DurationMs, EventSource, ExitReason, Failure, LifecycleEvent, ModelAsk,
        ObservableEvent, OperatorId, Scope, SessionId, WorkflowId, failure::kind,
    },
};

/// What the keys of conversations begin with, in the scope of their session.
const CONVERSATION: &str = "conversation/";

/// Whether a prepared task is a loop.
pub(crate) fn is_loop(shared: &Arc<Shared>, task: &OpenTask) -> bool {
    !task.request.is_model_call()
        && !task.request.lists_tools()
        && shared.registry.loops(&task.operator, task.agent.name())
}

/// Opens a loop; what it begins with begins with the next turn of the run.
pub(crate) fn schedule_loop(turn: &mut Turn<'_>, key: &StepKey, op: &StepOp, task: OpenTask) {
    let opened = composites::may_compose(turn.run, key, &task.operator)
        .and_then(|()| loop_depth(turn.run, key))
        .and_then(|()| loop_of(turn.run, turn.run.chain.next_step(), task));
    match opened {
        Ok(open) => {
            fault::point("engine.loop");
            let times = open.times();
            let number = steps::open(turn, key, op, OpenKind::Loop(Box::new(open)));
            if let Some((near_ms, max_ms)) = times {
                let now = turn.steady_ms;
                turn.run.timers.insert((now + near_ms, number, Due::LoopNear));
                turn.run.timers.insert((now + max_ms, number, Due::Loop));
            }
            turn.run.composing.insert(number);
        }
        Err(failure) => {
            let step = turn.run.chain.next_step();
            let failure = failure.at(step, Some(op.name()), 1);
            steps::record(turn, key, op, Outcome::Failed(failure));
        }
    }
}

/// A loop of a prepared task, before anything has begun.
fn loop_of(run: &Run, number: u32, task: OpenTask) -> Result<OpenLoop, Failure> {
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
        let named = flush.scope.as_ref().and_then(|it| scoped::scope_of(run, it).ok());
        let scope = named.and_then(|it| it.parse().ok()).unwrap_or(own);
        let keys = format!("{}{}/{number}/", flush.prefix, agent.name());
        Flush { scope, keys, required: flush.required }
    });
    // A caller that brings the items has the conversation.
    let session = request.opts.session.as_deref().filter(|_| asked.is_none());
    settings.conversation = session.map(|session| Conversation {
        scope: Scope::Session(SessionId::from(session)).to_string(),
        key: format!("{CONVERSATION}{}", agent.name()),
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

/// Ends a loop that stops short; whoever still works for it is told to stop.
pub(crate) fn stop_loop(turn: &mut Turn<'_>, number: u32, stop: Stop) {
    steps::close_members(turn, number, "the loop that it belongs to has ended");
    let Some(open) = turn.run.model_loop(number) else { return };
    let agent = Arc::clone(open.agent.name());
    tell_exit(turn, number, &stop.exit);
    let failure = match stop.failure.step {
        // What failed says itself where.
        Some(_) => stop.failure,
        None => stop.failure.at(number, Some(&agent), 1),
    };
    steps::finish_step(turn, number, Outcome::Failed(failure), None, None);
}

/// Tells how a loop ended, once.
pub(crate) fn tell_exit(turn: &mut Turn<'_>, number: u32, exit: &ExitReason) {
    let Some(open) = turn.run.model_loop(number) else { return };
    let sums = open.flow.sums();
    let data = json!({
        "exit": exit, "agent": &**open.agent.name(), "turns": sums.turns, "calls": sums.calls,
        "usage": sums.used,
    });
    let began = turn.run.chain.started().map_or(0, |(_, at)| at);
    let since = DurationMs::from_millis(facts::time_of(turn).saturating_sub(began));
    let mut event = ObservableEvent::new(EventSource::Turn, "loop.ended", since, data);
    event.operator_id = Some(OperatorId::new(open.operator.to_string()));
    settle::told(turn, Some(number), &LifecycleEvent::Observable(event));
}

/// A loop is out of time.
pub(crate) fn loop_timed_out(turn: &mut Turn<'_>, number: u32) {
    let Some(open) = turn.run.model_loop(number) else { return };
    let most = open.max_duration_ms.unwrap_or_default();
    let event = BudgetEvent::TimeoutReached {
        operator: OperatorId::new(open.operator.to_string()),
        elapsed: DurationMs::from_millis(most),
    };
    settle::told(turn, Some(number), &LifecycleEvent::Budget(event));
    let message = format!("it took longer than `max_duration`, {most} ms");
    let failure = Failure::new(kind::TIMEOUT, message);
    stop_loop(turn, number, Stop { exit: ExitReason::Timeout, failure });
}

/// The time of a loop is nearly over.
pub(crate) fn loop_near_its_end(turn: &mut Turn<'_>, number: u32) {
    let Some(open) = turn.run.model_loop(number) else { return };
    let Some((near_ms, max_ms)) = open.times() else { return };
    let event = BudgetEvent::TimeoutApproaching {
        operator: OperatorId::new(open.operator.to_string()),
        elapsed: DurationMs::from_millis(near_ms),
        max_duration: DurationMs::from_millis(max_ms),
    };
    settle::told(turn, Some(number), &LifecycleEvent::Budget(event));
}

/// Rebuilds a loop that was open when the run was last in memory.
pub(crate) fn take_up_loop(turn: &mut Turn<'_>, number: u32, task: OpenTask, members: &Members) {
    let mut open = match loop_of(turn.run, number, task) {
        Ok(open) => open,
        Err(failure) => {
            steps::finish_step(turn, number, Outcome::Failed(failure), None, None);
            return;
        }
    };
    if members.asked_without_recall(number) {
        // Of an earlier release, whose loops had no conversations.
        open.flow.forget_conversation();
    }
    members.replay_loop(number, &mut open);
    open.flow.take_events();
    if let (Some((near_ms, max_ms)), Some(step)) = (open.times(), turn.run.chain.step(number)) {
        let began = turn.shared.clock.steady_of(step.scheduled_ms);
        turn.run.timers.insert((began + max_ms, number, Due::Loop));
        // What is past was told, or nobody was there to hear it.
        if began + near_ms > turn.steady_ms {
            turn.run.timers.insert((began + near_ms, number, Due::LoopNear));
        }
    }
    let parts = open.recorded;
    open.held = (0..parts).filter(|place| !open.flow.may_start(*place)).collect();
    turn.run.open.insert(number, Open { kind: OpenKind::Loop(Box::new(open)) });
    turn.run.composing.insert(number);
}

/// Takes up a call of a tool that is an operation on shared state and whose end is not known.
pub(crate) fn take_up_state_call(turn: &mut Turn<'_>, number: u32, around: u32) -> bool {
    let Some(index) = turn.run.chain.step(number).map(|step| step.scheduled.key.index) else {
        return false;
    };
    let asked =
        turn.run.model_loop(around).and_then(|open| match open.begun.get(index as usize)? {
            Begin::Call(call) => match open.does(call)? {
                Does::State { op, scope, prefix } => Some((scope, op.op(&call.arguments, &prefix))),
                Does::Task { .. } => None,
            },
            Begin::Flush { turn: at } => Some((open.flush_scope.clone(), open.flush_op(*at))),
            begin @ (Begin::Recall | Begin::Keep) => {
                open.conversation_op(begin).map(|(scope, op)| (Some(scope), op))
            }
            _ => None,
        });
    let Some((scope, asked)) = asked else { return false };
    match scoped::permitted(turn, scope.as_deref(), &asked) {
        Ok((scope, asked)) => {
            let kind = OpenKind::State { scope, op: Box::new(asked) };
            turn.run.open.insert(number, Open { kind });
            turn.run.pending.after.performs.push(Perform::State { step: number });
        }
        Err(failure) => {
            steps::finish_step(turn, number, Outcome::Failed(failure), None, None);
        }
    }
    true
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
        conversation: None,
        tools,
        servers: compiled.servers(agent.name()),
        asked: asked.is_some(),
        limits,
        compaction: compiled.declared().compaction.clone(),
    })
}
