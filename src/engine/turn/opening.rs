//! Gets an attempt under way, once its task is open.

use std::sync::Arc;

use crate::{
    engine::{
        run::{
            branches::{is_held, seat_epoch},
            due::Due,
            perform::Perform,
            task::Phase,
        },
        shared::announcements::{Announcement, Opening},
        turn::{
            budget,
            facts::{self, Turn},
            helping, places, prompts, reminders, settle, steps,
        },
    },
    fault,
    journal::{AttemptOpened, Fact, Outcome},
    operator::{Residence, inquiry_of},
    protocol::TaskId,
    store::{TaskRow, Write},
};

/// Gets the open attempt of a task under way: takes a place, writes its row, dispatches it
/// after the commit.
pub(crate) fn open_attempt(turn: &mut Turn<'_>, number: u32) {
    if is_held(turn.run, number) {
        if let Some(task) = turn.run.task_mut(number) {
            task.phase = Phase::Capacity;
        }
        return;
    }
    if helping::holds_back(turn, number) {
        if let Some(task) = turn.run.task_mut(number) {
            task.phase = Phase::Capacity;
        }
        return;
    }
    let (num, now) = (turn.run.num, turn.steady_ms);
    let agent_key = places::agent_key(turn.run, number);
    // What was used while it waited for its place counts too.
    if let Some(failure) = turn.run.task(number).and_then(|task| budget::over_budget(turn, task)) {
        let failure = settle::located(turn.run, number, failure);
        steps::finish_step(turn, number, Outcome::Failed(failure), None, None);
        return;
    }
    let Some(task) = turn.run.task_mut(number) else { return };
    if let (Some(limit), Some(agent)) = (task.agent.limit(), &agent_key)
        && !task.place
    {
        if !turn.shared.capacity.acquire(agent, limit, num, number) {
            task.phase = Phase::Capacity;
            return;
        }
        task.place = true;
    }
    // What the header says of it was written while it waited.
    let waited = task.phase == Phase::Capacity;
    task.phase = Phase::Pending;
    let (residence, park, attempt) = (task.residence, task.park_ms, task.attempt);
    turn.run.restate |= waited && turn.run.pending.entries.is_empty();
    if residence != Residence::Inline {
        match prompts::task_row(turn, number) {
            Ok(row) => {
                turn.run.pending.writes.push(Write::PutTask(Box::new(row.clone())));
                reminders::take_up_inquiry(turn.run, number, &row);
                announce(turn, &row);
                if let Some(task) = turn.run.task_mut(number) {
                    task.row = Some(Box::new(row));
                }
            }
            Err(failure) => {
                let outcome = Outcome::Failed(settle::located(turn.run, number, failure));
                steps::finish_step(turn, number, outcome, None, None);
                return;
            }
        }
        if let (Residence::Elsewhere, Some(park)) = (residence, park) {
            turn.run.timers.insert((now + park, number, Due::Park));
        }
    }
    turn.run.pending.after.performs.push(Perform::Dispatch { step: number, attempt });
}

/// Announces a task for people to the webhooks that want it.
fn announce(turn: &mut Turn<'_>, row: &TaskRow) {
    if turn.shared.announcements.is_empty() {
        return;
    }
    let Some(inquiry) = inquiry_of(row) else { return };
    let announcement = Announcement {
        task: TaskId::new(row.run, row.step, row.scheduled_ms),
        run: turn.run.id,
        attempt: row.attempt,
        blueprint: turn.run.header.blueprint.clone(),
        at_ms: turn.now_ms,
    };
    let opening = Opening { announcement, agent: &row.agent, inquiry: &inquiry };
    let writes = turn.shared.announcements.announce(&opening);
    if !writes.is_empty() {
        turn.run.pending.writes.extend(writes);
        turn.run.pending.after.performs.push(Perform::Announce);
    }
}

/// Opens the next attempt of a task whose last one closed.
pub(crate) fn next_attempt(turn: &mut Turn<'_>, number: u32) {
    let epoch = turn.run.header.epoch;
    let Some(task) = turn.run.task_mut(number) else { return };
    task.attempt += 1;
    task.invalid = 0;
    task.ran_ms = None;
    fault::point("engine.next_attempt");
    task.reported = false;
    task.is_silent = false;
    task.question = None;
    task.again = false;
    task.handing_ms = None;
    let (attempt, operator) = (task.attempt, Arc::clone(&task.operator));
    let seat_epoch = seat_epoch(turn.run, &operator);
    facts::append(
        turn,
        Fact::AttemptOpened(AttemptOpened { step: number, attempt, epoch, seat_epoch }),
    );
    open_attempt(turn, number);
}
