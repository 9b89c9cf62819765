//! The resources that an open step holds (a worker, a row, a place of its agent, timers), and their
//! release.

use std::sync::Arc;

use crate::{
    blueprint::CompiledAgent,
    engine::{
        run::{
            open::Open,
            perform::Perform,
            resident::Run,
            task::{AgentKey, Phase},
        },
        shared::{message::refuse_lease, shards::Shared},
        turn::facts::Turn,
    },
    lua::Program,
    operator::{Residence, Ticket},
    store::{TaskRow, Write},
};

/// Gives back what an open step held. `ended` says whether nothing of it follows, and why.
pub(crate) fn release(
    turn: &mut Turn<'_>,
    number: u32,
    mut open: Open,
    (ended, reason): (bool, &str),
) -> Open {
    turn.run.timers.remove_step(number);
    if let Open::Task(task) = &mut open {
        task.about = None;
        // Those of an accepted result are no longer here.
        task.promises.clear();
        if let Some(live) = task.live.take() {
            turn.run.pending.after.performs.push(Perform::CancelWorker(live.cancel));
        }
        if let Some((_, reply)) = task.leasing.take() {
            refuse_lease(reply);
        }
        if let Some(row) = task.row.take() {
            if let Some(queue) = &row.queue {
                let ticket = Ticket { run: row.run, step: row.step, attempt: row.attempt };
                turn.shared.hub.remove(queue, ticket);
            }
            if task.holds_session {
                let ticket = Ticket { run: row.run, step: row.step, attempt: row.attempt };
                let reason = (!task.reported).then(|| reason.to_owned());
                turn.run.pending.after.performs.push(Perform::Retire { ticket, reason });
            }
            turn.run.pending.writes.push(Write::CloseTask { run: turn.run.num, step: number });
        }
        if let Some(blueprint) = turn.run.program.as_ref().map(|program| program.blueprint().name())
        {
            let key: AgentKey = (Arc::from(blueprint), Arc::clone(task.agent.name()));
            if std::mem::take(&mut task.place) {
                turn.run.pending.after.performs.push(Perform::Release(key));
            } else if task.phase == Phase::Capacity && ended {
                let next = turn.shared.capacity.forget(&key, turn.run.num, number);
                tell_capacity(turn.shared, &key, next);
            }
        }
    }
    open
}

/// Takes an attempt out of the world: its worker, its row, its place, its timers.
pub(crate) fn leave(turn: &mut Turn<'_>, number: u32, reason: &str) {
    let Some(open) = turn.run.open.remove(number) else { return };
    let open = release(turn, number, open, (false, reason));
    turn.run.open.insert(number, open);
}

pub(crate) fn agent_key(run: &Run, number: u32) -> Option<AgentKey> {
    let task = run.task(number)?;
    task.agent.limit()?;
    let blueprint = run.program.as_ref()?.blueprint();
    Some((Arc::from(blueprint.name()), Arc::clone(task.agent.name())))
}

/// Takes the places out of a run that is let go, and leaves the lines that it stands in. They are
/// given back once it is known which of its attempts outlive it.
pub(crate) fn take_places(turn: &mut Turn<'_>) -> Vec<AgentKey> {
    let Some(program) = turn.run.program.clone() else { return Vec::new() };
    let blueprint: Arc<str> = Arc::from(program.blueprint().name());
    let mut held = Vec::new();
    let mut waiting = Vec::new();
    for (number, open) in turn.run.open.each_mut() {
        let Open::Task(task) = open else { continue };
        let agent: AgentKey = (Arc::clone(&blueprint), Arc::clone(task.agent.name()));
        if std::mem::take(&mut task.place) {
            held.push(agent);
        } else if task.phase == Phase::Capacity {
            waiting.push((agent, number));
        }
    }
    for (agent, number) in waiting {
        pass_on(turn.shared, &agent, turn.run.num, number);
    }
    held
}

/// Counts the places of a run anew: those of its stored attempts that live elsewhere, in place of
/// `held`.
pub(crate) fn recount_places(
    shared: &Arc<Shared>,
    program: &Program,
    held: Vec<AgentKey>,
    stored: &[TaskRow],
) {
    // Taken before anything is given back: nobody gets between.
    for row in stored {
        let limited = |agent: &Arc<CompiledAgent>| agent.limit().is_some();
        if lives_elsewhere(shared, &row.operator)
            && program.blueprint().agent(&row.agent).is_some_and(limited)
        {
            let blueprint = program.blueprint().name();
            shared.capacity.occupy(&(Arc::from(blueprint), Arc::from(row.agent.as_str())));
        }
    }
    for agent in held {
        let next = shared.capacity.release(&agent);
        tell_capacity(shared, &agent, next);
    }
}

fn lives_elsewhere(shared: &Arc<Shared>, operator: &str) -> bool {
    let backend = shared.registry.get(operator);
    backend.is_some_and(|backend| backend.residence() == Residence::Elsewhere)
}

/// Leaves the line for a place; if there is room, the next in line is notified.
pub(crate) fn pass_on(shared: &Arc<Shared>, agent: &AgentKey, run: u64, step: u32) {
    let next = shared.capacity.forget(agent, run, step);
    tell_capacity(shared, agent, next);
}

pub(crate) fn tell_capacity(shared: &Arc<Shared>, agent: &AgentKey, next: Option<(u64, u32)>) {
    if let Some((run, step)) = next {
        let agent = agent.clone();
        shared.tell(run, crate::engine::shared::message::Internal::Capacity { step, agent });
    }
}

/// Cancels every worker in the host.
pub(crate) fn cancel_workers(run: &mut Run) {
    for (_, open) in run.open.each_mut() {
        if let Open::Task(task) = open
            && let Some(live) = task.live.take()
        {
            live.cancel.cancel();
        }
    }
}
