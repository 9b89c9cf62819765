//! Reminders for people who have open tasks.

use crate::{
    engine::{
        run::{due::Due, resident::Run},
        turn::facts::{self, Turn},
    },
    journal::{Decision, Fact},
    operator::{Prompt, inquiry_of},
    store::{TaskRow, Write},
};

/// Takes up what an open attempt asks of people, and when it is due.
pub(crate) fn take_up_inquiry(run: &mut Run, number: u32, row: &TaskRow) {
    let Some(inquiry) = inquiry_of(row) else { return };
    if let Some(at) = inquiry.remind_at_ms {
        run.timers.insert((at, number, Due::Reminder));
    }
    if let Some(at) = row.deadline_ms {
        run.timers.insert((at, number, Due::Attempt));
    }
    if let Some(task) = run.task_mut(number) {
        task.inquiry = Some(inquiry);
    }
}

/// Writes down what an open task asks now.
pub(crate) fn keep_inquiry(run: &mut Run, number: u32) {
    let Some(task) = run.task_mut(number) else { return };
    let (Some(row), Some(inquiry)) = (&mut task.row, &task.inquiry) else { return };
    let Ok(mut prompt) = serde_json::from_str::<Prompt>(&row.prompt) else { return };
    prompt.inquiry = Some(inquiry.clone());
    row.prompt = serde_json::to_string(&prompt).expect("a prompt is plain data");
    let row = row.clone();
    run.pending.writes.push(Write::PutTask(row));
}

/// Recalls a task that nobody answered.
pub(crate) fn remind(turn: &mut Turn<'_>, number: u32) {
    let now = facts::time_of(turn);
    let Some(task) = turn.run.task_mut(number).filter(|task| task.row.is_some()) else { return };
    let attempt = task.attempt;
    let Some(inquiry) = &mut task.inquiry else { return };
    let count = inquiry.remind(now);
    if let Some(at) = inquiry.remind_at_ms {
        turn.run.timers.insert((at, number, Due::Reminder));
    }
    keep_inquiry(turn.run, number);
    facts::append(turn, Fact::Decided(Decision::Remind { step: number, attempt, count }));
}
