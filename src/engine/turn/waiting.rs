//! Derives a run's status, the things that it waits for, and its next wake-up time.

use crate::{
    blueprint::Labels,
    clock::Clock,
    engine::{
        SessionWait, Subject, WaitingOn, rfc3339,
        run::{
            due::{Due, Times},
            loan::Lent,
            open::Open,
            question::Question,
            resident::Run,
            task::{OpenTask, Phase},
        },
        shared::shards::Shared,
        turn::seats::seat,
    },
    flow::{StepOp, TaskRequest},
    journal::{Outcome, RunState},
    operator::Ticket,
    protocol::{Failure, TaskId, failure::kind},
    session::{Hub, Outlook},
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

/// Returns true if a task waits in a queue that no worker serves.
fn is_unserved(task: &OpenTask, shared: &Shared) -> bool {
    let queue = task.row.as_ref().and_then(|row| row.queue.as_deref());
    task.phase == Phase::Pending
        && queue.is_some_and(|queue| {
            let labels = &task.agent.agent().labels;
            !shared.hub.is_served(queue, labels, shared.clock.now_ms())
        })
}

/// Returns true if only people are left to wait for: those that are asked, and those that have to
/// start a worker, or to connect a session, that is not there.
pub(crate) fn waits_for_people(run: &Run, shared: &Shared) -> bool {
    !run.open.is_empty()
        && run.inbox.is_empty()
        && run.open.values().all(|open| match open {
            Open::Task(task) if matches!(task.phase, Phase::Pending | Phase::Delivered) => {
                let is_away = || {
                    let number = task.row.as_ref().map_or(0, |row| row.step);
                    session_wait(run, number, task, &shared.sessions)
                        .is_some_and(|session| session.state != "connected")
                };
                task.row.is_some() && (task.asks_people || is_unserved(task, shared) || is_away())
            }
            Open::Task(_) => false,
            open => open.waits_for_members(),
        })
}

/// Returns the next wake-up time of the run: 0 for every start of the host.
pub(crate) fn wake_at(run: &Run, clock: &Clock) -> Option<u64> {
    let at_boot = !run.inbox.is_empty()
        || !run.composing.is_empty()
        || run.reload
        // Nothing else is stored of the commands that wait for a read.
        || run.lookups.rest.is_some()
        || run.lent.as_ref().is_some_and(Lent::needs_home)
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

/// The reason why a run rests although its journal does not say so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quarantine {
    /// The run cannot be read.
    Damaged,
    /// The host died at it: it is not to be read.
    Deadly,
}

/// The prefix of the header of a [`Quarantine::Deadly`] run.
const DEADLY: &str = r#"[{"kind":"quarantine""#;

/// Returns true if a run is not to be read, because the host died at it.
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
    let kind = match sort {
        Quarantine::Damaged => "resume",
        Quarantine::Deadly => "quarantine",
    };
    let item = rests(kind, reason, now_ms);
    header.status = RunStatus::Paused;
    header.wake_at_ms = None;
    header.updated_ms = now_ms;
    header.error = Some(paused(reason));
    header.waiting_on = Some(serde_json::to_string(&[item]).expect("plain data"));
    header
}

/// Returns the things that a run waits for, from its header: a JSON array, or nothing.
pub(crate) fn describe(run: &Run, status: RunStatus, shared: &Shared) -> Option<String> {
    let mut items = Vec::new();
    if let Some(reason) = run.chain.paused() {
        items.push(rests("resume", reason, run.chain.last_ms()));
    }
    if run.account.parked {
        items.push(WaitingOn {
            kind: "memory".into(),
            subject: Subject::default(),
            since: rfc3339(run.chain.last_ms()),
            until: None,
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
    let named = Subject { name: Some(step.scheduled.name.clone()), ..Subject::default() };
    let (kind, subject, until) = match open {
        Open::Task(task) => {
            let (kind, until) = match task.phase {
                Phase::Capacity => ("capacity", None),
                Phase::Retry => ("retry", due(Due::Retry)),
                Phase::Pending | Phase::Delivered => {
                    let ends = due(Due::Attempt).or_else(|| due(Due::Lease));
                    ("task", ends.or_else(|| due(Due::Park)))
                }
            };
            let id = TaskId::new(run.num, number, step.scheduled_ms);
            let subject = Subject { task: Some(id), ..named };
            (kind, of_task(run, number, task, shared, subject), until)
        }
        open => {
            let (kind, mut subject, until) = open.waits_for(named)?;
            let trouble = subject.scope.as_deref().and_then(|scope| shared.lanes.trouble(scope));
            if let (Some(trouble), Some(scope)) = (trouble, &subject.scope) {
                let name = subject.name.as_deref().unwrap_or_default();
                subject.reason =
                    Some(format!("{name} in {scope}, whose store takes no changes: {trouble}"));
            }
            (kind, subject, until.and_then(due))
        }
    };
    Some(WaitingOn { kind: kind.into(), subject, since: rfc3339(step.opened_ms), until })
}

/// Adds to a task who has it, or should.
fn of_task(run: &Run, number: u32, task: &OpenTask, shared: &Shared, subject: Subject) -> Subject {
    let row = task.row.as_ref();
    let waits_in = row.and_then(|row| row.queue.clone()).filter(|_| task.phase == Phase::Pending);
    let labels = &task.agent.agent().labels;
    Subject {
        operator: Some(task.operator.to_string()),
        operator_kind: row.map(|row| row.kind.clone()),
        labels: waits_in.as_ref().filter(|_| *labels != Labels::default()).map(|_| labels.clone()),
        queue: waits_in,
        served: is_unserved(task, shared).then_some(false),
        question: task.question.as_ref().map(Question::text),
        session: session_wait(run, number, task, &shared.sessions),
        ..subject
    }
}

/// That a run rests, and why.
pub(crate) fn rests(kind: &str, reason: &str, since_ms: u64) -> WaitingOn {
    let subject = Subject { reason: Some(reason.to_owned()), ..Subject::default() };
    WaitingOn { kind: kind.into(), subject, since: rfc3339(since_ms), until: None }
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

/// The session that a task waits for, where it waits for one.
fn session_wait(run: &Run, number: u32, task: &OpenTask, sessions: &Hub) -> Option<SessionWait> {
    if !task.holds_session || task.row.is_none() || task.phase != Phase::Pending {
        return None;
    }
    let operator = &task.operator;
    let ticket = Ticket { run: run.num, step: number, attempt: task.attempt };
    let (state, id, open) = match sessions.outlook(ticket, operator, &seat(run, operator)) {
        Outlook::To { session, connected: true } => ("connected", Some(session), None),
        Outlook::To { session, connected: false } => ("away", Some(session), None),
        Outlook::Vacant(session) => ("closed", Some(session), None),
        Outlook::NoSession => ("none", None, None),
        Outlook::Several(many) => ("several", None, Some(many)),
    };
    Some(SessionWait { state: state.into(), id: id.map(|id| id.0), open })
}
