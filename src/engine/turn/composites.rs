//! Composites: how one is opened, or taken up again.

use std::sync::Arc;

use crate::{
    engine::{
        run::{
            branches::composite_of,
            composite::OpenComposite,
            members::Members,
            open::{Open, OpenKind},
            perform::Perform,
            resident::Run,
            task::OpenTask,
        },
        shared::shards::Shared,
        turn::{facts::Turn, steps},
    },
    fault,
    flow::StepOp,
    journal::StepKey,
    operator::{Composite, MOST_DEPTH, Residence, Ticket},
    protocol::{Failure, failure::kind},
    store::{TaskRow, Write},
    token::{Need, Verb},
};

/// The composite that a prepared task goes to, if it goes to one.
pub(crate) fn composite(shared: &Arc<Shared>, task: &OpenTask) -> Option<Composite> {
    shared.registry.get(&task.operator)?.composite().cloned()
}

/// Whether a run may use a composite: its operators are the members, and it is one too.
pub(crate) fn may_compose(run: &Run, key: &StepKey, operator: &str) -> Result<(), Failure> {
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

/// Opens a composite; its members begin with the next turn of the run.
pub(crate) fn schedule_composite(
    turn: &mut Turn<'_>,
    key: &StepKey,
    op: &StepOp,
    task: OpenTask,
    composite: Composite,
) {
    fault::point("engine.composite");
    let number = steps::open(
        turn,
        key,
        op,
        OpenKind::Composite(Box::new(OpenComposite::of(task, composite))),
    );
    turn.run.composing.insert(number);
}

/// Rebuilds a composite that was open when the run was last in memory.
pub(crate) fn take_up_composite(
    run: &mut Run,
    number: u32,
    task: OpenTask,
    composite: Composite,
    members: &Members,
) {
    let mut open = Box::new(OpenComposite::of(task, composite));
    members.replay(number, &mut open);
    run.open.insert(number, Open { kind: OpenKind::Composite(open) });
    run.composing.insert(number);
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
