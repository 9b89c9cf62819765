//! Composites and loops: opened, taken up again, ended.

use std::sync::Arc;

use serde_json::json;

use crate::{
    engine::{
        run::{
            branches::{composite_of, loop_depth},
            composite::OpenComposite,
            driver::Driver as _,
            due::Due,
            members::Members,
            model_loop::OpenLoop,
            open::Open,
            perform::Perform,
            resident::Run,
            task::OpenTask,
        },
        shared::{message::Internal, shards::Shared},
        turn::{
            facts::{self, Turn},
            helping, loops, settle, steps,
        },
    },
    fault,
    flow::{StepOp, response::LoopStop},
    journal::{Outcome, StepKey},
    middleware::kept_answer,
    operator::{Composite, MOST_DEPTH, Residence, Ticket},
    protocol::{
        BudgetEvent, Content, DurationMs, EventSource, ExitReason, Failure, Json, LifecycleEvent,
        ObservableEvent, OperatorId, OperatorOutput, failure::kind,
    },
    store::{TaskRow, Write},
    token::{Need, Verb},
};

/// Decides what a prepared task is: a task, a composite or a loop, if the run may have it there.
pub(crate) fn decide(turn: &Turn<'_>, key: &StepKey, task: OpenTask) -> Result<Open, Failure> {
    let is_loop = loops::is_loop(turn.shared, &task);
    if is_loop || composite(turn.shared, &task).is_some() {
        may_compose(turn.run, key, &task.operator)?;
    }
    if is_loop {
        loop_depth(turn.run, key)?;
    }
    open_of(turn, turn.run.chain.next_step(), task)
}

/// Makes of a prepared task what it is: a task, a composite or a loop.
pub(crate) fn open_of(turn: &Turn<'_>, number: u32, task: OpenTask) -> Result<Open, Failure> {
    if loops::is_loop(turn.shared, &task) {
        return Ok(Open::Loop(Box::new(loops::loop_of(turn.run, number, task)?)));
    }
    Ok(match composite(turn.shared, &task) {
        Some(composite) => Open::Composite(Box::new(OpenComposite::of(number, task, composite))),
        None => Open::Task(Box::new(task)),
    })
}

fn composite(shared: &Arc<Shared>, task: &OpenTask) -> Option<Composite> {
    shared.registry.get(&task.operator)?.composite().cloned()
}

/// Returns an error if a run may not use a composite: its operators are the members, and it is one
/// too.
fn may_compose(run: &Run, key: &StepKey, operator: &str) -> Result<(), Failure> {
    let need = Need::Operator(operator);
    run.grant
        .check(Verb::Dispatch, &[need])
        .map_err(|refusal| Failure::new(kind::REFUSED, refusal.to_string()))?;
    let mut depth = 1;
    let mut inner = key.clone();
    while let Some((outer, number)) = composite_of(run, &inner) {
        depth += usize::from(run.composite(number).is_some());
        inner = outer;
    }
    if depth > MOST_DEPTH {
        let message = format!("more than {MOST_DEPTH} composites lie within each other");
        return Err(Failure::new(kind::LIMIT, message));
    }
    Ok(())
}

/// Opens a composite or a loop; its parts begin with the next turn of the run.
pub(crate) fn open(turn: &mut Turn<'_>, key: &StepKey, op: &StepOp, whole: Open) {
    let times = match &whole {
        Open::Loop(open) => open.times(),
        _ => None,
    };
    fault::point(if matches!(whole, Open::Loop(_)) { "engine.loop" } else { "engine.composite" });
    let number = steps::open(turn, key, op, whole);
    if let Some((near_ms, max_ms)) = times {
        let now = turn.steady_ms;
        turn.run.timers.insert((now + near_ms, number, Due::LoopNear));
        turn.run.timers.insert((now + max_ms, number, Due::Loop));
    }
    turn.run.composing.insert(number);
}

/// Rebuilds a composite or a loop that was open when the run was last in memory.
pub(crate) fn take_up(turn: &mut Turn<'_>, number: u32, mut whole: Open, members: &Members) {
    if let Some(driver) = whole.driver_mut() {
        driver.replay(members.of_whole(number));
    }
    if let (Open::Loop(open), Some(step)) = (&whole, turn.run.chain.step(number))
        && let Some((near_ms, max_ms)) = open.times()
    {
        let began = turn.shared.clock.steady_of(step.scheduled_ms);
        turn.run.timers.insert((began + max_ms, number, Due::Loop));
        // A warning of the past was sent, or nobody was there to receive it.
        if began + near_ms > turn.steady_ms {
            turn.run.timers.insert((began + near_ms, number, Due::LoopNear));
        }
    }
    turn.run.open.insert(number, whole);
    turn.run.composing.insert(number);
}

/// Ends a composite or a loop; its parts that are still open are canceled.
pub(crate) fn end(turn: &mut Turn<'_>, number: u32, result: Result<Json, LoopStop>) {
    let Some(driver) = turn.run.driver(number) else { return };
    let (agent, farewell) = (driver.agent().to_owned(), driver.farewell(result.is_ok()));
    steps::close_members(turn, number, farewell);
    tell_exit(
        turn,
        number,
        result.as_ref().map_or_else(|stop| &stop.exit, |_| &ExitReason::Complete),
    );
    let kept = result.as_ref().err().and_then(|stop| short_answer(turn.run, number, &stop.exit));
    if let Ok(value) = &result {
        settle::ended(turn.run, number, value);
    }
    let outcome = match result {
        Ok(value) => Outcome::Completed(value),
        // A failure that has a step says itself where it comes from.
        Err(LoopStop { failure, .. }) if failure.step.is_some() => Outcome::Failed(failure),
        Err(LoopStop { failure, .. }) => Outcome::Failed(failure.at(number, Some(&agent), 1)),
    };
    steps::finish_step(turn, number, outcome, kept, None);
}

/// Returns the answer of a loop that was dispatched and stopped early, as the history keeps it: its
/// exit and the last words of its model.
fn short_answer(run: &Run, number: u32, exit: &ExitReason) -> Option<Json> {
    let open = run.model_loop(number).filter(|open| open.request.opts.asked.is_some())?;
    // Not an answer: its caller gets the failure.
    if *exit == ExitReason::Error {
        return None;
    }
    let message = Content::text(open.flow.last_text());
    let effects = [kept_answer(&OperatorOutput::new(message, exit.clone()))];
    Json::encode(&effects).ok()
}

/// Reports the end of a loop, once.
fn tell_exit(turn: &mut Turn<'_>, number: u32, exit: &ExitReason) {
    let Some(open) = turn.run.model_loop(number) else { return };
    let sums = open.flow.sums();
    let data = json!({
        "exit": exit, "agent": open.agent(), "turns": sums.turns, "calls": sums.calls,
        "usage": sums.used,
    });
    let began = turn.run.chain.started().map_or(0, |(_, at)| at);
    let since = DurationMs::from_millis(facts::time_of(turn).saturating_sub(began));
    let mut event = ObservableEvent::new(EventSource::Turn, "loop.ended", since, data);
    event.operator_id = Some(OperatorId::new(open.operator.to_string()));
    settle::told(turn, Some(number), &LifecycleEvent::Observable(event));
}

/// Ends a loop that is out of time.
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
    end(turn, number, Err(LoopStop { exit: ExitReason::Timeout, failure }));
}

/// Warns that the time of a loop is nearly over.
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

/// The time for which a loop waits for those before it in its conversation, in milliseconds.
const IN_LINE_MS: u64 = 600_000;

/// Joins the line of a loop's conversation; returns true if the loop has to wait there.
pub(crate) fn waits_in_line(turn: &mut Turn<'_>, number: u32) -> bool {
    let (num, until) = (turn.run.num, turn.steady_ms + IN_LINE_MS);
    let Some(key) = turn.run.model_loop(number).and_then(OpenLoop::conversation) else {
        return false;
    };
    if turn.run.lent.is_some() {
        helping::leave(turn);
        return true;
    }
    let shared = Arc::downgrade(turn.shared);
    let conversations = Arc::clone(&turn.shared.conversations);
    let Some(open) = turn.run.model_loop_mut(number) else { return false };
    let is_new = open.in_line.is_none();
    open.in_line.get_or_insert_with(|| {
        let wake = move |(run, step)| {
            if let Some(shared) = shared.upgrade() {
                shared.tell(run, Internal::InConversation { step });
            }
        };
        conversations.join(key, (num, number), Arc::new(wake))
    });
    let waits = open.waits_in_line();
    if waits && is_new {
        // What is stored may be from another node, which keeps no lines.
        turn.run.restate = true;
        turn.run.timers.insert((until, number, Due::Conversation));
    }
    waits
}

/// Lets a loop begin although others are before it: one of them takes too long. Whichever writes
/// the conversation last begins anew.
pub(crate) fn overtake(turn: &mut Turn<'_>, number: u32) {
    if let Some(open) = turn.run.model_loop_mut(number) {
        open.overtakes = true;
        turn.run.composing.insert(number);
    }
}

/// Gives up a member that is open while its composite is not: a fork cut between the two, or
/// another configuration made the operator another one.
pub(crate) fn close_orphan(turn: &mut Turn<'_>, number: u32, row: Option<&TaskRow>) {
    const REASON: &str = "what it was a member of has ended";
    if let Some(row) = row {
        let ticket = Ticket { run: row.run, step: row.step, attempt: row.attempt };
        if let Some(queue) = &row.queue {
            turn.shared.hub.remove(queue, ticket);
        }
        let backend = turn.shared.registry.get(&row.operator);
        let to_session = backend.is_some_and(|backend| backend.holds_session());
        let reason = to_session.then(|| REASON.to_owned());
        let performs = &mut turn.run.pending.after.performs;
        performs.extend(reason.map(|it| Perform::Retire { ticket, reason: Some(it) }));
        let backend = turn.shared.registry.get(&row.operator);
        // It was counted at the boot, as everything that lives elsewhere.
        if let Some(program) = &turn.run.program
            && backend.is_some_and(|it| it.residence() == Residence::Elsewhere)
            && program.blueprint().agent(&row.agent).is_some_and(|it| it.limit().is_some())
        {
            let blueprint = program.blueprint().name();
            performs.push(Perform::Release((blueprint.into(), row.agent.as_str().into())));
        }
        turn.run.pending.writes.push(Write::CloseTask { run: turn.run.num, step: number });
    }
    steps::close(turn, number, REASON);
}
