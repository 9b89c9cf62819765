//! Handles messages of the host itself: timers, ends of attempts, events of other runs, watchers.

use crate::{
    engine::{
        inbox::{control, repeats, seats, signals},
        run::{due::Due, lookups::Purpose, readers::Subscriber, task::Phase},
        settings::STORAGE_RETRY_MS,
        shared::{lent::Patience, message::Internal},
        turn::{
            attempts,
            children::{self, is_child},
            dispatch,
            facts::{self, Turn},
            helping, leases, lineage, lookups, opening, pieces, places, scoped, settle, timers,
            watchers,
        },
        view::events,
    },
    journal::{Decision, Fact},
    middleware::Dispatched,
};

/// Handles one message of the host itself.
pub(crate) fn receive(turn: &mut Turn<'_>, message: Internal) {
    match message {
        Internal::Wake => timers::wake(turn),
        // It is answered before it gets here, and a run is taken while it is read.
        Internal::IsAtRest(_) | Internal::Take(..) => {}
        Internal::GiveBack(patience) => {
            helping::recalled(turn, patience);
            if patience == Patience::None && !turn.run.submitted.is_empty() {
                // It leaves when what it has written is stored, which may take long.
                seats::interrupt(turn, "its node took the run back");
            }
        }
        Internal::Wait(waiter) => {
            turn.run.waiters.retain(|waiter| !waiter.reply.is_closed());
            turn.run.waiters.push(waiter);
            watchers::answer_waiters(turn.run, turn.shared);
        }
        Internal::Subscribe(subscriber, reply) => {
            subscribe(turn, subscriber);
            // Who asked may be gone.
            let _ = reply.send(turn.run.chain.seq());
        }
        Internal::SignalFrom { sender, name, payload } => {
            signals::signal_from(turn, sender, name, payload);
        }
        Internal::CancelFrom { sender, by, reason } => {
            control::cancel_from(turn, sender, by, reason);
        }
        Internal::Finished { step, attempt, result, ran_ms } => {
            if let Some(task) = turn.run.task_mut(step)
                && task.attempt == attempt
            {
                task.live = None;
                // The work of one that is parked goes on elsewhere.
                task.ran_ms = ran_ms.filter(|_| !matches!(result, Ok(Dispatched::Parked)));
            }
            attempts::finished(turn, step, attempt, result);
        }
        Internal::Delivered { step, attempt, delivery } => {
            leases::delivered(turn, step, attempt, delivery);
        }
        Internal::Progress { step, attempt, data } => {
            watchers::progress(turn, step, attempt, &data);
        }
        Internal::Delta(feed) => pieces::take_pieces(turn, &feed),
        Internal::Found { life, purpose, found } => {
            if lookups::keep(turn, life, &purpose, found) {
                match purpose {
                    Purpose::Command => {}
                    Purpose::Child { step, stored } => {
                        children::start_child(turn, step, Some(stored));
                    }
                    Purpose::Copy { dispatch } => {
                        pieces::copy(turn);
                        if let Some((step, attempt)) = dispatch
                            && let Some(outcome) = dispatch::dispatch(turn, step, attempt)
                        {
                            attempts::finished(turn, step, attempt, outcome);
                        }
                    }
                }
            }
            lookups::forget(turn);
        }
        Internal::SecretAccessed { step, attempt, event } => {
            watchers::secret_accessed(turn, step, attempt, *event);
        }
        Internal::Tell { step, event } => settle::told(turn, Some(step), &event),
        Internal::Rest { by, reason } => {
            if turn.run.chain.paused().is_none() && !turn.run.is_ended() {
                facts::append(turn, Fact::Decided(Decision::Pause { by, reason }));
            }
        }
        Internal::Capacity { step, agent } => {
            if turn.run.task(step).is_some_and(|task| task.phase == Phase::Capacity)
                && turn.run.chain.paused().is_none()
            {
                opening::open_attempt(turn, step);
            } else {
                // It does not need the room: the next in line may.
                places::pass_on(turn.shared, &agent, turn.run.num, step);
            }
        }
        Internal::InConversation { step } => {
            turn.run.timers.remove(step, Due::Conversation);
            if turn.run.model_loop(step).is_some() {
                turn.run.composing.insert(step);
            }
        }
        Internal::ChildLost { step, child } => {
            if is_child(turn.run, step, child) {
                let due = turn.steady_ms + STORAGE_RETRY_MS;
                turn.run.timers.insert((due, step, Due::Child));
            }
        }
        Internal::Repeated(repeated) => repeats::repeated(turn, *repeated),
        Internal::StateLater { step, of } => {
            if scoped::is_of(turn.run, step, &of) {
                scoped::state_later(turn, step);
            }
        }
        Internal::StateDone { step, of, outcome, held } => {
            // The task of this life is still to come to its end; the step must not end before.
            if scoped::is_of(turn.run, step, &of) {
                scoped::state_done(turn, step, outcome, held);
            }
        }
        Internal::ChildEnded { step, child, outcome, usage, joined } => {
            if is_child(turn.run, step, child) {
                lineage::join_all(turn, joined);
                children::child_ended(turn, step, outcome, usage);
            } else if let Some(usage) = usage {
                children::count_late(turn, step, child, usage);
            }
        }
        Internal::Redispatch { step, attempt } => {
            if turn.run.task(step).is_some_and(|task| task.row.is_some())
                && let Some(outcome) = dispatch::dispatch(turn, step, attempt)
            {
                attempts::finished(turn, step, attempt, outcome);
            }
        }
        Internal::Undelivered { step, attempt } => {
            let is_with_worker = turn.run.task(step).is_some_and(|it| it.is_with_worker(attempt));
            // Layers that have let the attempt pass hear of its end when its lease is over.
            if is_with_worker && settle::is_plain(turn) {
                seats::withdraw(turn, step, "nobody received its lease");
            }
        }
        Internal::Unseat { step, attempt, reason } => {
            if turn.run.task(step).is_some_and(|task| task.attempt == attempt) {
                seats::reassign(turn, step, &reason);
            }
        }
    }
}

/// Sends somebody every event from now on.
fn subscribe(turn: &mut Turn<'_>, subscriber: Subscriber) {
    // What is on its way to the disk was not made an event: nobody watched. The new subscriber is
    // told to read it once it is there.
    if let Some(last) = turn.run.submitted.back_mut() {
        last.after.events.push(events::sync(turn.now_ms));
    }
    turn.run.subscribers.retain(|subscriber| !subscriber.is_closed());
    if !turn.run.is_ended() || !turn.run.submitted.is_empty() || turn.run.has_pending() {
        turn.run.audience.set(true);
        pieces::show_past(turn, &subscriber);
        turn.run.subscribers.push(subscriber);
    }
}
