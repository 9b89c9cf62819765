//! Performs the effects of a batch, once it is durable.

use crate::{
    engine::{
        run::{log_line::LogLine, perform::Perform, resident::After},
        shared::message::Internal,
        turn::{
            attempts, children, counting, dispatch, facts::Turn, leases, pieces, places, scoped,
            watchers,
        },
    },
    fault,
};

/// Lets out what waited for a batch.
pub(crate) fn perform(turn: &mut Turn<'_>, after: After) {
    for perform in after.performs {
        perform_one(turn, perform);
    }
    for event in after.events {
        let dropped = pieces::publish(turn.run, &event);
        turn.shared.counts.watchers_dropped.add(dropped);
    }
    counting::add(turn.run, &turn.shared.counts, after.counts);
    after.lines.iter().for_each(LogLine::write);
    if turn.run.batches == 1 {
        // A start that waits finds the end that came with its commit.
        watchers::answer_waiters(turn.run, turn.shared);
    }
    for reply in after.replies {
        fault::point("engine.reply");
        reply(Ok(turn.run));
    }
    watchers::answer_waiters(turn.run, turn.shared);
}

fn perform_one(turn: &mut Turn<'_>, perform: Perform) {
    match perform {
        Perform::Dispatch { step, attempt } => {
            if !pieces::prepare(turn, step, attempt)
                && let Some(outcome) = dispatch::dispatch(turn, step, attempt)
            {
                attempts::finished(turn, step, attempt, outcome);
            }
        }
        Perform::Handed { to, lease } => {
            fault::point("engine.reply");
            leases::hand(turn, to, lease);
        }
        Perform::CancelWorker(cancel) => cancel.cancel(),
        Perform::Reported(live) => live.reported.cancel(),
        Perform::State { step } => scoped::perform_state(turn, step),
        Perform::Change { scope } => {
            fault::point("engine.outbox_sent");
            turn.shared.lanes.added(&scope);
        }
        Perform::LetGo(held) => drop(held),
        Perform::Begun(stored) => drop(stored),
        Perform::StartChild { step } => children::start_child(turn, step, None),
        Perform::CancelChild { step, child, reason } => {
            fault::point("engine.cancel_child");
            let (sender, by) = ((turn.run.num, step), turn.run.id.to_string());
            turn.shared.tell(child.num(), Internal::CancelFrom { sender, by, reason });
        }
        Perform::TellParent => children::tell_parent(turn),
        Perform::SendSignal { step, to, name, payload } => {
            let sender = (turn.run.num, step);
            fault::point("engine.outbox_sent");
            // That of a run of another node is sent there, after the same commit.
            if turn.run.lent.is_none() {
                turn.shared.tell(to, Internal::SignalFrom { sender, name, payload });
            }
        }
        Perform::Retire { ticket, reason } => {
            turn.shared.sessions.retire(ticket, reason.as_deref());
        }
        Perform::TellSession(note) => {
            fault::point("engine.tell_session");
            turn.shared.sessions.tell(note);
        }
        Perform::Keep(promise) => promise.keep(),
        Perform::Announce => turn.shared.announcements.added(),
        Perform::Release(agent) => {
            let next = turn.shared.capacity.release(&agent);
            places::tell_capacity(turn.shared, &agent, next);
        }
    }
}
