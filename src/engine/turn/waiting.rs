//! Where a run stands, what it waits for, and when it must be looked at by itself.

use std::borrow::Cow;

use crate::{
    clock::Clock,
    engine::{
        WaitingOn, rfc3339,
        run::{
            due::{Due, Times},
            open::OpenKind,
            resident::Run,
            task::{OpenTask, Phase},
        },
        shared::shards::Shared,
        turn::{lineage::session_in, seats},
    },
    flow::{StepOp, TaskRequest},
    journal::{Outcome, RunState},
    operator::Ticket,
    protocol::{Failure, RunId, SessionId, TaskId, failure::kind},
    session::{Hub, Outlook, Seat},
    store::{Header, RunStatus},
};

/// The most that a header says of a run that waits or rests.
const SHOWN: usize = 20;

/// The most that it says of a run that is being worked on: it is written anew with every result.
const SHOWN_RUNNING: usize = 3;

/// The status that follows from the chain and the open steps.
pub(crate) fn status(run: &Run) -> RunStatus {
    match run.chain.state() {
        RunState::Ended(Outcome::Completed(_)) => RunStatus::Completed,
        RunState::Ended(Outcome::Failed(_)) => RunStatus::Failed,
        RunState::Ended(Outcome::Canceled(_)) => RunStatus::Canceled,
        // Whoever looks for runs that need a person finds it, whatever it was doing.
        RunState::Compensating(_) | RunState::Active if run.chain.paused().is_some() => {
            RunStatus::Paused
        }
        RunState::Compensating(_) => RunStatus::Compensating,
        RunState::Active if run.open.is_empty() => RunStatus::Running,
        RunState::Active if run.open.sums().worked_on > 0 => RunStatus::Running,
        RunState::Active => RunStatus::Waiting,
    }
}

/// Whether a task waits in a queue that no worker serves.
fn is_unserved(task: &OpenTask, shared: &Shared) -> bool {
    let queue = task.row.as_ref().filter(|row| row.kind == "queue");
    let queue = queue.and_then(|row| row.queue.as_deref());
    task.phase == Phase::Pending
        && queue.is_some_and(|queue| {
            let labels = &task.agent.agent().labels;
            !shared.hub.is_served(queue, labels, shared.clock.now_ms())
        })
}

/// Whether only people are left to wait for: those that are asked, and those that have to start a
/// worker, or to connect a session, that is not there.
pub(crate) fn waits_for_people(run: &Run, shared: &Shared) -> bool {
    !run.open.is_empty()
        && run.inbox.is_empty()
        && run.open.numbers().all(|number| match run.open.get(number).map(|open| &open.kind) {
            None => true,
            Some(kind) => match kind {
                OpenKind::Task(task) => {
                    let kind = task.row.as_ref().map_or("", |row| row.kind.as_str());
                    match (kind, task.phase) {
                        ("human", Phase::Pending | Phase::Delivered) => true,
                        ("queue", Phase::Pending) => is_unserved(task, shared),
                        ("main_ai", Phase::Pending) => {
                            item(run, number, shared).is_some_and(|on| on.command.is_some())
                        }
                        _ => false,
                    }
                }
                // Its members are open beside it.
                OpenKind::Composite(_) | OpenKind::Loop(_) => true,
                OpenKind::Timer
                | OpenKind::Signal
                | OpenKind::State { .. }
                | OpenKind::Child { .. } => false,
            },
        })
}

/// When the run must be looked at: 0 if at every boot.
pub(crate) fn wake_at(run: &Run, clock: &Clock) -> Option<u64> {
    let at_boot = !run.inbox.is_empty()
        || !run.composing.is_empty()
        || run.reload
        || run.open.sums().at_boot > 0;
    match (run.chain.paused().is_some(), at_boot) {
        (true, _) => None,
        (false, true) => Some(0),
        (false, false) if run.open.is_empty() && run.timers.is_empty() => Some(0),
        (false, false) => first_alarm(run.timers.first(), clock),
    }
}

/// The first of two alarms, as the wall clock will show it unless it is set.
pub(crate) fn first_alarm(at: Times<Option<u64>>, clock: &Clock) -> Option<u64> {
    at.wall.into_iter().chain(at.steady.map(|at| clock.wall_of(at))).min()
}

/// Why a run rests although its journal does not say so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quarantine {
    /// It cannot be read.
    Damaged,
    /// The host died at it: it is not to be read.
    Deadly,
}

/// What the header of a [`Quarantine::Deadly`] run begins with.
const DEADLY: &str = r#"[{"kind":"quarantine""#;

/// Whether a run is not to be read, because the host died at it.
pub(crate) fn is_deadly(header: &Header) -> bool {
    header.status == RunStatus::Paused
        && header.waiting_on.as_deref().is_some_and(|text| text.starts_with(DEADLY))
}

/// The header of a run that is not to be read, or cannot be: paused, with the reason.
pub(crate) fn quarantined(
    mut header: Header,
    sort: Quarantine,
    reason: &str,
    now_ms: u64,
) -> Header {
    let id = RunId::new(header.num, header.created_ms);
    let kind = match sort {
        Quarantine::Damaged => "resume",
        Quarantine::Deadly => "quarantine",
    };
    let item = WaitingOn {
        kind: kind.into(),
        what: reason.to_owned(),
        task: None,
        since: rfc3339(now_ms),
        until: None,
        command: Some(format!("moonswarm resume {id}")),
    };
    header.status = RunStatus::Paused;
    header.wake_at_ms = None;
    header.updated_ms = now_ms;
    header.error = Some(paused(reason));
    header.waiting_on = Some(serde_json::to_string(&[item]).expect("plain data"));
    header
}

/// What a header says that the run waits for: a JSON array, or nothing.
pub(crate) fn describe(run: &Run, status: RunStatus, shared: &Shared) -> Option<String> {
    let mut items = Vec::new();
    if let Some(reason) = run.chain.paused() {
        items.push(WaitingOn {
            kind: "resume".into(),
            what: reason.to_owned(),
            task: None,
            since: rfc3339(run.chain.last_ms()),
            until: None,
            command: Some(format!("moonswarm resume {}", run.id)),
        });
    }
    if run.account.parked {
        items.push(WaitingOn {
            kind: "memory".into(),
            what: "room: the host holds as much for its runs as it may".into(),
            task: None,
            since: rfc3339(run.chain.last_ms()),
            until: None,
            command: None,
        });
    }
    let running = matches!(status, RunStatus::Running | RunStatus::Compensating);
    // A composite says nothing itself; its members do.
    let open = run.chain.open().filter_map(|number| item(run, number, shared));
    items.extend(open.take(if running { SHOWN_RUNNING } else { SHOWN }));
    (!items.is_empty()).then(|| serde_json::to_string(&items).expect("plain data"))
}

fn item(run: &Run, number: u32, shared: &Shared) -> Option<WaitingOn> {
    let clock = &shared.clock;
    let step = run.chain.step(number)?;
    let open = run.open.get(number)?;
    let due = |which: Due| {
        let at = run.timers.of(number, which)?;
        Some(rfc3339(if which.is_measured() { clock.wall_of(at) } else { at }))
    };
    let name = &step.scheduled.name;
    let since = rfc3339(step.opened_ms);
    let plain = |kind: &str, what: String, until, command| {
        Some(WaitingOn {
            kind: kind.into(),
            what,
            task: None,
            since: since.clone(),
            until,
            command,
        })
    };
    match &open.kind {
        // What it waits for are its members.
        OpenKind::Composite(_) | OpenKind::Loop(_) => None,
        OpenKind::Timer => plain("timer", "a time".into(), due(Due::Timer), None),
        OpenKind::Signal => plain(
            "signal",
            format!("signal {name:?}"),
            due(Due::SignalDeadline),
            Some(format!("moonswarm signal {} {} '<json>'", run.id, word(name))),
        ),
        OpenKind::State { scope, .. } => plain("state", format!("{name} in {scope}"), None, None),
        OpenKind::Child { run: child, .. } => plain(
            "child",
            format!("run {child} ({name})"),
            None,
            Some(format!("moonswarm show {child}")),
        ),
        OpenKind::Task(task) => {
            let id = TaskId::new(run.num, number, step.scheduled_ms);
            let mut on = task_item(task, name, since, id, &due);
            if is_unserved(task, shared) {
                on.what.push_str(WaitingOn::NO_WORKER);
            }
            let on = wait(run, number, task, &shared.sessions, on);
            Some(WaitingOn { task: Some(id), ..on })
        }
    }
}

/// A name as one word of a shell: a flow may call its signals as it likes.
fn word(name: &str) -> Cow<'_, str> {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '/' | '@');
    if !name.is_empty() && !name.starts_with('-') && name.chars().all(plain) {
        return Cow::Borrowed(name);
    }
    Cow::Owned(format!("'{}'", name.replace('\'', r"'\''")))
}

fn task_item(
    task: &OpenTask,
    name: &str,
    since: String,
    id: TaskId,
    due: &dyn Fn(Due) -> Option<String>,
) -> WaitingOn {
    let kind = task.row.as_ref().map_or("", |row| row.kind.as_str());
    let what = match &task.question {
        Some(question) => format!("a senior's answer to {name}: {}", question.text()),
        None => format!("{name} ({})", task.operator),
    };
    let (word, until, command) = match task.phase {
        Phase::Capacity => ("capacity", None, None),
        Phase::Retry => ("retry", due(Due::Retry), None),
        Phase::Pending | Phase::Delivered => {
            let until = due(Due::Attempt).or_else(|| due(Due::Lease)).or_else(|| due(Due::Park));
            let command = match (kind, task.phase) {
                _ if task.question.is_some() => Some(format!("moonswarm advise {id} '<json>'")),
                ("human", _) => Some(format!("moonswarm approve {id}")),
                ("queue", Phase::Pending) => {
                    let queue = task.row.as_ref().and_then(|row| row.queue.as_deref());
                    let (queue, labels) = (queue.unwrap_or(name), &task.agent.agent().labels);
                    Some(format!("moonswarm worker --queue {queue}{labels} -- <command>"))
                }
                _ => None,
            };
            ("task", until, command)
        }
    };
    WaitingOn { kind: word.into(), what, task: None, since, until, command }
}

/// The failure that a header shows for an outcome.
pub(crate) fn error(outcome: &Outcome) -> Option<String> {
    match outcome {
        Outcome::Completed(_) => None,
        Outcome::Failed(failure) => encode(failure),
        Outcome::Canceled(reason) => encode(&Failure::new(kind::CANCELED, reason.clone())),
    }
}

/// The failure that a header shows for a run that rests.
pub(crate) fn paused(reason: &str) -> String {
    encode(&Failure::new("paused", reason)).expect("plain data")
}

fn encode(failure: &Failure) -> Option<String> {
    Some(serde_json::to_string(failure).expect("plain data"))
}

/// The request of an open task that is known only from the journal.
pub(crate) fn request_of(step: &crate::journal::Scheduled) -> StepOp {
    let opts = crate::flow::TaskOpts { summary: step.summary.clone(), ..Default::default() };
    StepOp::Task(Box::new(TaskRequest::new(step.name.clone(), step.request.clone(), opts)))
}

/// Who should have the tasks of an operator in a run.
pub(crate) fn seat(run: &Run, operator: &str) -> Seat {
    let holder = run.chain.seats().get(operator);
    let starter = run.chain.started().and_then(|(started, _)| session_in(&started.principal));
    Seat {
        delegate: seats::delegate_of(run),
        holder: holder.map(|held| SessionId::from(held.session.as_str())),
        starter: starter.map(SessionId::from),
    }
}

/// Says of a task that waits for a session which one that is, and what would help.
pub(crate) fn wait(
    run: &Run,
    number: u32,
    task: &OpenTask,
    sessions: &Hub,
    on: WaitingOn,
) -> WaitingOn {
    let of_session = task.row.as_ref().is_some_and(|row| row.kind == "main_ai");
    if !of_session || task.phase != Phase::Pending {
        return on;
    }
    let operator = &task.operator;
    let ticket = Ticket { run: run.num, step: number, attempt: task.attempt };
    let open = format!("moonswarm sessions open {operator}");
    let take = format!("moonswarm seat {} {operator} <session>", run.id);
    let (what, command) = match sessions.outlook(ticket, operator, &seat(run, operator)) {
        Outlook::To { session, connected: true } => (format!("session {session}"), None),
        Outlook::To { session, connected: false } => {
            (format!("session {session}, which is not connected"), Some(take))
        }
        Outlook::Vacant(session) => (format!("session {session}, which is closed"), Some(take)),
        Outlook::NoSession => ("a session to open".to_owned(), Some(open)),
        Outlook::Several(many) => (format!("a seat: {many} sessions are open"), Some(take)),
    };
    WaitingOn { what: format!("{} for {what}", on.what), command, ..on }
}
