//! Handles worker requests. A report is accepted only for the open attempt; otherwise the reply
//! names the reason.

use crate::{
    engine::{
        EngineError, Holder, PromptView, Report, Verdict,
        error::Checked,
        inbox::{
            answers, escalate,
            repeats::{self, keep_evidence, live_token, remember},
            worker_state,
        },
        rfc3339,
        run::{
            answers::refuse_ended,
            due::Due,
            perform::Perform,
            reply::{Answer, Answered, Asked},
            resident::Run,
            task::Phase,
        },
        shared::message::WorkerAsk,
        turn::{
            attempts,
            effects::{self, bad_effect, decode_effects},
            facts::Turn,
            files, follow, leases, settle, steps, watchers, weight,
        },
        view,
    },
    fault::{self, Break},
    journal::{Outcome, Step},
    middleware::{Promise, TaskDone, skips},
    operator::{Delivery, Prompt, Ticket, joined},
    protocol::{Code, Failure, Json, WorkerId, failure::kind, fold::fold},
    store::Write,
    token::{HandleError, Need, Verb},
};

/// Results that break the schema before the attempt is over.
const INVALID_RESULTS: u32 = 3;

/// The maximum number of steps that a prompt points to.
const POINTERS: usize = 20;

/// Answers a worker.
pub(crate) fn worker(turn: &mut Turn<'_>, holder: Holder, asked: Asked<WorkerAsk>) {
    let Asked { ask, reply } = asked;
    let standing = standing(turn.run, &holder)
        .and_then(|()| is_with(turn, &holder))
        .and_then(|()| is_carried(turn.run, &holder));
    let ask = match turn.shared.registry.secrets_of(ticket(turn, &holder)) {
        Some(secrets) => ask.scrubbed(&secrets),
        None => ask,
    };
    let answered = match (ask, standing) {
        (WorkerAsk::Report(report), Err(refusal @ EngineError::Conflict { .. })) => {
            return repeats::late(turn, (holder, report), refusal, reply);
        }
        (WorkerAsk::GetState { scope, key }, Ok(())) => {
            worker_state::get_state(turn, &holder, (scope, key), reply);
            return;
        }
        // A worker whose attempt is over is told to stop, in words that it can act on.
        (WorkerAsk::Heartbeat, Err(EngineError::Conflict { .. })) => {
            Answered::Now(Ok(Answer::Alive((None, true))))
        }
        (WorkerAsk::Decline { reason, .. }, Err(EngineError::Conflict { .. }))
            if repeats::is_declined(turn.run, &holder, &reason) =>
        {
            Answered::Durable(Ok(Answer::Accepted(false)))
        }
        (_, Err(refusal)) => Answered::Now(Err(refusal)),
        (ask, Ok(())) if repeats::is_of_before(turn.run, &holder, &ask) => {
            Answered::Durable(Ok(Answer::Accepted(false)))
        }
        (ask, Ok(())) => in_good_standing(turn, &holder, ask),
    };
    answers::give(turn.run, reply, answered);
}

/// Does what the worker of the open attempt asks.
fn in_good_standing(turn: &mut Turn<'_>, holder: &Holder, ask: WorkerAsk) -> Answered {
    leases::renew(turn, holder.step);
    match ask {
        WorkerAsk::Prompt => {
            fault::point("engine.prompt");
            has_it(turn, holder);
            prompt_view(turn, holder).map(|view| Answer::Prompt(Box::new(view))).into()
        }
        WorkerAsk::Report(report) => {
            if holder.session.is_some()
                || turn.shared.sessions.holder(ticket(turn, holder)).is_some()
            {
                // Who reports has it, also if the frame was never acknowledged.
                has_it(turn, holder);
            }
            let answered = take_report(turn, holder, *report);
            repeats::keep(turn, holder);
            answered
        }
        WorkerAsk::Artifact { name, data } => {
            let of = (holder.step, holder.attempt);
            let stored = weight::check_file(turn, data.len()).and_then(|()| {
                files::put_artifact(turn, of, &name, &data, false).map_err(answers::bad_request)
            });
            rests_on_token(turn.run, holder, &stored);
            stored.map(Answer::File).into()
        }
        WorkerAsk::Progress { data } => {
            watchers::progress(turn, holder.step, holder.attempt, &data);
            Answered::Now(Ok(Answer::Done))
        }
        WorkerAsk::Heartbeat => Answered::Durable(Ok(Answer::Alive(heartbeat(turn, holder)))),
        WorkerAsk::Context => {
            let task = turn.run.task(holder.step);
            let names = task.map(|task| task.agent.agent().context.clone()).unwrap_or_default();
            Answered::Now(Ok(Answer::Context(Box::new(names))))
        }
        WorkerAsk::Nonce => Answered::Now(Ok(Answer::Nonce(turn.run.header.nonce))),
        WorkerAsk::Accept => {
            has_it(turn, holder);
            let row = turn.run.task(holder.step).and_then(|task| task.row.as_ref());
            let deadline = row.and_then(|row| row.deadline_ms);
            let shown = deadline.map(|at| turn.shared.clock.wall_of(at));
            Answered::Durable(Ok(Answer::Deadline(shown)))
        }
        WorkerAsk::Decline { reason, key } => {
            repeats::remember_decline(turn, holder, (reason.as_str(), key.as_deref()));
            detach_worker(turn, holder.step);
            let failure = Failure::new(kind::OPERATOR_UNAVAILABLE, reason).retryable();
            attempts::attempt_failed(turn, holder.step, failure, None);
            repeats::forget(turn.run);
            turn.run.pending.checks.extend(live_token(holder));
            Answered::Durable(Ok(Answer::Accepted(true)))
        }
        WorkerAsk::Escalate { question } => {
            let asked = escalate::escalate(turn, holder, question);
            rests_on_token(turn.run, holder, &asked);
            asked.map(|()| Answer::Done).into()
        }
        // A value may have to be read first: that is answered apart.
        WorkerAsk::GetState { .. } => Answered::Now(Ok(Answer::Value(None))),
        WorkerAsk::PutState { scope, key, value } => {
            let place = worker_state::place_of(turn.run, holder, scope.as_deref(), &key);
            let written = place.and_then(|place| {
                worker_state::put_for_worker(turn, holder.step, (place, key), &value)
            });
            rests_on_token(turn.run, holder, &written);
            written.map(|()| Answer::Done).into()
        }
    }
}

fn ticket(turn: &Turn<'_>, holder: &Holder) -> Ticket {
    Ticket { run: turn.run.num, step: holder.step, attempt: holder.attempt }
}

/// The attempt has reached its worker.
fn has_it(turn: &mut Turn<'_>, holder: &Holder) {
    let delivery = Delivery { worker: worker_name(holder) };
    leases::delivered(turn, holder.step, holder.attempt, delivery);
}

/// Returns true if a bearer is the one of the open attempt.
fn standing(run: &Run, holder: &Holder) -> Result<(), EngineError> {
    let epoch = run.header.epoch;
    if holder.nonce.is_some_and(|of| of != run.header.nonce) {
        // Another run had the number when the bearer was made: its history was rolled back.
        return Err(EngineError::Unauthenticated(HandleError::Forged.to_string()));
    }
    let step = run.chain.step(holder.step).ok_or_else(|| EngineError::NotFound {
        what: "task",
        id: format!("{}/{}", run.id, holder.step),
    })?;
    let fenced =
        |message: &str| EngineError::Conflict { code: Code::Fenced, message: message.into() };
    if holder.epoch != epoch {
        return Err(fenced("report: the run has changed hands since this attempt"));
    }
    if step.state.is_terminal() {
        refuse_ended(run)?;
        return Err(EngineError::Conflict {
            code: if step.attempt == holder.attempt
                && step.state == crate::protocol::StepState::Completed
            {
                Code::AlreadyAccepted
            } else {
                Code::Fenced
            },
            message: "report: the step has ended".into(),
        });
    }
    if fault::is_broken(Break::SkipEpochCheck) {
        return Ok(());
    }
    if step.attempt != holder.attempt || !step.attempt_open {
        return Err(fenced("report: the attempt is over; another has taken its place"));
    }
    match run.task(holder.step).map(|task| task.phase) {
        Some(Phase::Pending | Phase::Delivered) => Ok(()),
        Some(Phase::Capacity | Phase::Retry) | None => {
            Err(fenced("report: the attempt is not under way"))
        }
    }
}

/// Checks that a session speaks of its own attempt, and not of one that another session has.
fn is_with(turn: &Turn<'_>, holder: &Holder) -> Result<(), EngineError> {
    let session = holder.session.as_ref();
    let with = session.and_then(|_| turn.shared.sessions.holder(ticket(turn, holder)));
    if with.is_none() || with == holder.session {
        return Ok(());
    }
    let message = "report: another session has the attempt".to_owned();
    Err(EngineError::Conflict { code: Code::Fenced, message })
}

/// Checks that a token that carries requests for many attempts may lease this one: the handle says
/// who works on it, the token which queues are its.
fn is_carried(run: &Run, holder: &Holder) -> Result<(), EngineError> {
    let Some(carrier) = &holder.carrier else { return Ok(()) };
    let row = run.task(holder.step).and_then(|task| task.row.as_ref());
    let queue = row.and_then(|row| row.queue.as_deref()).unwrap_or_default();
    Ok(carrier.grant.check(Verb::WorkerLease, &[Need::Queue(queue)])?)
}

fn prompt_view(turn: &Turn<'_>, holder: &Holder) -> Result<PromptView, EngineError> {
    let missing = || EngineError::NotFound { what: "prompt", id: turn.run.id.to_string() };
    let row = turn.run.task(holder.step).and_then(|task| task.row.as_ref()).ok_or_else(missing)?;
    let prompt: Prompt = serde_json::from_str(&row.prompt).map_err(|_| missing())?;
    let names = turn.run.task(holder.step).map(|task| &task.agent.agent().context);
    let is_open = |step: &&Step| {
        step.scheduled.step < holder.step
            && step.state == crate::protocol::StepState::Completed
            && names.is_some_and(|names| names.has_step(&step.scheduled.name))
    };
    let steps: Vec<String> = turn
        .run
        .chain
        .steps()
        .iter()
        .rev()
        .filter(is_open)
        .take(POINTERS)
        .map(|step| format!("/v1/worker/context/steps/{}", step.scheduled.step))
        .collect();
    let context = serde_json::json!({
        "open": names.filter(|names| !names.is_empty()).map(|_| "/v1/worker/context"),
        "blueprint": format!("{}@{}", turn.run.header.blueprint, turn.run.header.hash),
        "summary": prompt.summary,
        "idempotency_key": prompt.idempotency_key,
        "steps": steps,
    });
    Ok(PromptView {
        task: prompt.task,
        worker_id: WorkerId::new(turn.run.num, holder.step, prompt.attempt),
        run: prompt.run,
        agent: prompt.agent,
        attempt: prompt.attempt,
        session: prompt.session,
        system: joined(prompt.system.as_deref(), prompt.addendum.as_deref()),
        prompt: prompt.prompt,
        input: prompt.input,
        context: context.into(),
        output_schema: prompt.output_schema,
        deadline: row.deadline_ms.map(|at| rfc3339(turn.shared.clock.wall_of(at))),
        artifacts: serde_json::json!({ "put": "/v1/worker/artifact?name={name}" }).into(),
        advice: row.question.as_deref().and_then(crate::engine::run::question::advice),
    })
}

fn heartbeat(turn: &mut Turn<'_>, holder: &Holder) -> (Option<u64>, bool) {
    fault::point("engine.heartbeat");
    let (now, of_host) = (turn.steady_ms, turn.shared.settings.lease_ms);
    let (clock, step) = (turn.shared.clock.clone(), holder.step);
    let shown = move |at: u64| clock.wall_of(at);
    let Some(task) = turn.run.task_mut(step) else { return (None, true) };
    let lease_ms = now + task.own_lease_ms().unwrap_or(of_host);
    let Some(row) = &mut task.row else { return (None, false) };
    let deadline = row.deadline_ms;
    if let Some(queue) = &row.queue {
        turn.shared.hub.note_worker(queue, turn.now_ms);
        if let Some(worker) = &row.worker {
            turn.shared.hub.book().note(queue, worker, None, turn.now_ms);
        }
    }
    if row.lease_ms.is_none() {
        return (deadline.map(shown), false);
    }
    (row.lease_ms, row.graces) = (Some(lease_ms), 0);
    task.stored_lease_ms = lease_ms;
    let hold = Box::new(row.hold());
    task.graces = 0;
    turn.run.pending.writes.push(Write::HoldTask(hold));
    turn.run.timers.remove(step, Due::Lease);
    turn.run.timers.insert((lease_ms, step, Due::Lease));
    (Some(shown(deadline.map_or(lease_ms, |deadline| deadline.min(lease_ms)))), false)
}

/// Takes the report of the open attempt.
fn take_report(turn: &mut Turn<'_>, holder: &Holder, report: Report) -> Answered {
    fault::point("engine.result");
    let step = holder.step;
    if fault::is_broken(Break::ApplyEffectsAtDispatch)
        && let Ok(effects) = decode_effects(&report.effects, turn.shared.settings.custom_effects)
    {
        drop(effects::apply_effects(turn, step, &effects));
    }
    match &report.verdict {
        Verdict::Failed { message, retryable, data } => {
            let mut failure = Failure::new(kind::WORKER, message.clone());
            failure.retryable = *retryable;
            failure.data = data.clone();
            let usage = report.usage.clone();
            take_failure(turn, holder, &report);
            attempts::attempt_failed(turn, step, failure, usage);
            Answered::Durable(Ok(Answer::Accepted(true)))
        }
        Verdict::Done(output) => match judge(turn, step, &report, output) {
            Ok(done) => take_result(turn, holder, report, done),
            Err(error) => refuse_result(turn, holder, &report, error),
        },
    }
}

/// A result as it was declared: checked against the schema, unless its step leaves it to others.
fn judge(
    turn: &Turn<'_>,
    step: u32,
    report: &Report,
    output: &Json,
) -> Result<(bool, TaskDone), EngineError> {
    let declared = decode_effects(&report.effects, turn.shared.settings.custom_effects);
    let followed = matches!(&declared, Ok(effects) if follow::is_followed(turn.run, step, effects));
    // What is left to others is held to the schema at its end.
    let skipped = matches!(&declared, Ok(effects) if skips(effects));
    let output = match turn.run.task(step) {
        Some(_) if skipped && !followed => Json::null(),
        Some(task) if !followed => accept(task.agent.output(), output)?,
        _ => output.clone(),
    };
    Ok((followed, TaskDone { output, usage: report.usage.clone(), effects: declared? }))
}

/// Takes a result that fits its schema: through the layers, with its effects, to the end of its
/// step.
fn take_result(
    turn: &mut Turn<'_>,
    holder: &Holder,
    report: Report,
    (followed, done): (bool, TaskDone),
) -> Answered {
    let step = holder.step;
    let TaskDone { output, effects, .. } = match settle::settle(turn, step, Ok(done)) {
        Ok(done) => done,
        // A layer does not take it: the worker did its part.
        Err(short) => {
            take_failure(turn, holder, &report);
            attempts::attempt_over(turn, step, short.failure, short.usage);
            return Answered::Durable(Ok(Answer::Accepted(true)));
        }
    };
    if followed {
        let usage = report.usage.clone();
        remember(turn, holder, &report);
        return match follow::follow_result(turn, step, output, &effects, usage) {
            Ok(()) => {
                publish(turn, holder);
                Answered::Durable(Ok(Answer::Accepted(true)))
            }
            Err(failure) => {
                repeats::forget(turn.run);
                refuse_result(turn, holder, &report, bad_effect(failure))
            }
        };
    }
    match effects::apply_effects(turn, step, &effects) {
        Ok(kept) => {
            settle::accepted(turn.run, step);
            remember(turn, holder, &report);
            publish(turn, holder);
            steps::finish_step(turn, step, Outcome::Completed(output), kept, report.usage);
            Answered::Durable(Ok(Answer::Accepted(true)))
        }
        Err(failure) => refuse_result(turn, holder, &report, bad_effect(failure)),
    }
}

/// Remembers a report whose attempt has failed, and lets its worker end.
fn take_failure(turn: &mut Turn<'_>, holder: &Holder, report: &Report) {
    remember(turn, holder, report);
    detach_worker(turn, holder.step);
}

/// Publishes what came with an accepted result.
fn publish(turn: &mut Turn<'_>, holder: &Holder) {
    let (step, attempt) = (holder.step, holder.attempt);
    fault::point("engine.artifact_publish");
    files::publish(turn.run, step, attempt);
    if turn.run.task(step).is_some_and(|task| task.attempt == attempt) {
        detach_worker(turn, step);
    }
}

/// Lets go of a worker in the host whose result came through the worker API: it may end by
/// itself.
fn detach_worker(turn: &mut Turn<'_>, step: u32) {
    let Some(task) = turn.run.task_mut(step) else { return };
    task.reported = true;
    if let Some(live) = task.live.take() {
        // Its delivery is recorded later than its work begins.
        task.ran_ms = live.began.elapsed(turn.shared.clock.steady_ms());
        turn.run.pending.after.performs.push(Perform::Reported(live));
    }
}

/// A result that does not match its schema: the worker may try again, twice.
fn refuse_result(
    turn: &mut Turn<'_>,
    holder: &Holder,
    report: &Report,
    error: EngineError,
) -> Answered {
    keep_evidence(turn, holder, report, error.code().as_str());
    let mut error = error;
    if let Some(task) = turn.run.task_mut(holder.step) {
        // The attempt goes on, and keeps the keys that its layers hold.
        task.promises.drain(..).for_each(Promise::take_back);
        task.invalid += 1;
        if task.invalid >= INVALID_RESULTS {
            let message = format!("{INVALID_RESULTS} results were refused; the last: {error}");
            let failure = Failure::new(kind::INVALID_RESULT, message);
            attempts::attempt_failed(turn, holder.step, failure, report.usage.clone());
            if let EngineError::Invalid { violations, .. } = error {
                error = EngineError::Invalid { what: Checked::LastResult, violations };
            }
        }
    }
    // The refused body is stored before the refusal is sent.
    Answered::Durable(Err(error))
}

/// Takes a worker's output as it is, or unfolded from a markdown fence or a JSON string.
fn accept(schema: &crate::blueprint::Schema, output: &Json) -> Result<Json, EngineError> {
    let mut first = None;
    for candidate in fold(output) {
        match schema.accept_json(&candidate) {
            Ok(accepted) => return Ok(accepted),
            Err(violations) => {
                first.get_or_insert(violations);
            }
        }
    }
    let violations = first.unwrap_or_default().into_iter().map(view::breach).collect();
    Err(EngineError::Invalid { what: Checked::Result, violations })
}

/// Lets what was written fall with the token that it came with. A refused request leaves no
/// condition behind: it would be somebody else's.
fn rests_on_token<T>(run: &mut Run, holder: &Holder, written: &Result<T, EngineError>) {
    if written.is_ok() {
        run.pending.checks.extend(live_token(holder));
    }
}

fn worker_name(holder: &Holder) -> String {
    match &holder.session {
        Some(session) => session.to_string(),
        None if holder.jti.is_some() => "token".into(),
        None => "handle".into(),
    }
}
