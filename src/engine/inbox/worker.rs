//! Handles worker requests. A report is accepted only for the open attempt; otherwise the reply
//! names the reason.

use std::sync::Arc;

use crate::{
    engine::{
        CustomEffects, EngineError, Holder, PromptView, Report, Verdict,
        error::Checked,
        inbox::{answers, escalate, worker_state},
        rfc3339,
        run::{
            answers::closed,
            due::Due,
            reply::{Answer, Answered, Asked},
            resident::Run,
            task::Phase,
        },
        shared::{
            message::{Internal, Repeated, WorkerAsk},
            verified::lineage,
        },
        turn::{
            attempts,
            effects::{self, bad_effect},
            facts::Turn,
            files, follow, leases, settle, steps, watchers, weight,
        },
        view,
    },
    fault::{self, Break},
    journal::{Outcome, Step},
    middleware::{TaskDone, skips},
    operator::{Delivery, Prompt, Ticket, joined},
    protocol::{Code, Effect, Failure, Json, WorkerId, failure::kind, fold::fold},
    store::{Check, EvidenceRow, IdempotencyRow, Write},
    token::HandleError,
};

/// Results that break the schema before the attempt is over.
const INVALID_RESULTS: u32 = 3;

/// The maximum number of steps that a prompt points to.
const POINTERS: usize = 20;

/// The stored part of a refused body, in bytes.
const EVIDENCE_BYTES: usize = 64 << 10;

/// The route under which accepted results are remembered.
const RESULT_ROUTE: &str = "worker.result";

/// Answers a worker.
pub(crate) fn worker(turn: &mut Turn<'_>, holder: Holder, asked: Asked<WorkerAsk>) {
    let Asked { ask, reply } = asked;
    let standing = standing(turn.run, &holder);
    let ask = match turn.shared.registry.secrets_of(ticket(turn, &holder)) {
        Some(secrets) => ask.scrubbed(&secrets),
        None => ask,
    };
    let answered = match (ask, standing) {
        (WorkerAsk::Report(report), Err(refusal @ EngineError::Conflict { .. })) => {
            look_up(turn, Repeated { holder, report, refusal, before: None, reply });
            return;
        }
        (WorkerAsk::GetState { scope, key }, Ok(())) => {
            worker_state::get_state(turn, &holder, (scope, key), reply);
            return;
        }
        // A worker whose attempt is over is told to stop, in words that it can act on.
        (WorkerAsk::Heartbeat, Err(EngineError::Conflict { .. })) => {
            Answered::Now(Ok(Answer::Alive((None, true))))
        }
        (_, Err(refusal)) => Answered::Now(Err(refusal)),
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
            take_report(turn, holder, *report)
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
        WorkerAsk::Decline { reason } => {
            detach_worker(turn.run, holder.step);
            let failure = Failure::new(kind::OPERATOR_UNAVAILABLE, reason).retryable();
            attempts::attempt_failed(turn, holder.step, failure, None);
            turn.run.pending.checks.extend(live_token(holder));
            Answered::Durable(Ok(Answer::Done))
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
        if run.is_ended() {
            return Err(closed(run));
        }
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
    if row.lease_ms.is_none() {
        return (deadline.map(shown), false);
    }
    (row.lease_ms, row.graces) = (Some(lease_ms), 0);
    task.stored_lease_ms = lease_ms;
    let row = row.clone();
    if let Some(queue) = &row.queue {
        turn.shared.hub.note_worker(queue, turn.now_ms);
        if let Some(worker) = &row.worker {
            turn.shared.hub.book().note(queue, worker, None, turn.now_ms);
        }
    }
    task.graces = 0;
    turn.run.pending.writes.push(Write::PutTask(row));
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
        return match follow::follow_result(turn, step, output, &effects, usage) {
            Ok(()) => {
                publish(turn, holder, &report);
                Answered::Durable(Ok(Answer::Accepted(true)))
            }
            Err(failure) => refuse_result(turn, holder, &report, bad_effect(failure)),
        };
    }
    match effects::apply_effects(turn, step, &effects) {
        Ok(kept) => {
            publish(turn, holder, &report);
            steps::finish_step(turn, step, Outcome::Completed(output), kept, report.usage);
            Answered::Durable(Ok(Answer::Accepted(true)))
        }
        Err(failure) => refuse_result(turn, holder, &report, bad_effect(failure)),
    }
}

/// Remembers a report whose attempt has failed, and lets its worker end.
fn take_failure(turn: &mut Turn<'_>, holder: &Holder, report: &Report) {
    remember(turn, holder, report);
    detach_worker(turn.run, holder.step);
}

/// Remembers an accepted result and publishes what came with it.
fn publish(turn: &mut Turn<'_>, holder: &Holder, report: &Report) {
    let (step, attempt) = (holder.step, holder.attempt);
    remember(turn, holder, report);
    fault::point("engine.artifact_publish");
    files::publish(turn.run, step, attempt);
    if turn.run.task(step).is_some_and(|task| task.attempt == attempt) {
        detach_worker(turn.run, step);
    }
}

/// Lets go of a worker in the host whose result came through the worker API: it may end by
/// itself.
fn detach_worker(run: &mut Run, step: u32) {
    let Some(task) = run.task_mut(step) else { return };
    task.reported = true;
    if let Some(live) = task.live.take() {
        run.pending.after.performs.push(crate::engine::run::perform::Perform::Reported(live));
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

/// Has it read which result of an attempt was accepted, for a report that comes after it is over.
fn look_up(turn: &Turn<'_>, mut repeated: Repeated) {
    let (shared, run) = (Arc::clone(turn.shared), turn.run.num);
    let principal = attempt_name(turn.run, &repeated.holder);
    turn.shared.tasks.spawn_blocking(move || {
        match shared.store.idempotent(&principal, RESULT_ROUTE, "") {
            Ok(before) => {
                repeated.before = before;
                shared.tell(run, Internal::Repeated(Box::new(repeated)));
            }
            // Who reports may be gone.
            Err(error) => drop(repeated.reply.send(Err(error.into()))),
        }
    });
}

/// Answers a report on an attempt that is over, once it is known what was accepted of that.
pub(crate) fn repeated(turn: &mut Turn<'_>, repeated: Repeated) {
    let Repeated { holder, report, refusal, before, reply } = repeated;
    let answer = report_again(turn, &holder, &report, refusal, before).map(Answer::Accepted);
    let answered = match turn.run.has_pending() {
        // The refused body is stored before the refusal is sent.
        true => Answered::Durable(answer),
        false => Answered::Now(answer),
    };
    answers::give(turn.run, reply, answered);
}

/// A report on an attempt that is over: the same body as the accepted one is accepted again.
fn report_again(
    turn: &mut Turn<'_>,
    holder: &Holder,
    report: &Report,
    refusal: EngineError,
    before: Option<IdempotencyRow>,
) -> Result<bool, EngineError> {
    let key = report.key.clone().unwrap_or_default();
    let refusal = match before {
        Some(_) if fault::is_broken(Break::DropDedup) => {
            effects::apply_effects(
                turn,
                holder.step,
                &decode_effects(&report.effects, turn.shared.settings.custom_effects)?,
            )?;
            return Ok(true);
        }
        Some(row) if row.body == report.body_hash => return Ok(false),
        Some(row) if !key.is_empty() && row.answer == key => EngineError::Conflict {
            code: Code::IdempotencyMismatch,
            message: "report: another body came with this Idempotency-Key before".into(),
        },
        Some(_) => EngineError::Conflict {
            code: Code::AlreadyAccepted,
            message: "report: another result of this attempt was accepted before".into(),
        },
        None => refusal,
    };
    keep_evidence(turn, holder, report, refusal.code().as_str());
    Err(refusal)
}

/// Remembers an accepted report by its body's hash, so that its repetition is accepted too.
fn remember(turn: &mut Turn<'_>, holder: &Holder, report: &Report) {
    turn.run.pending.checks.extend(live_token(holder));
    turn.run.pending.writes.push(Write::PutIdempotency(IdempotencyRow {
        principal: attempt_name(turn.run, holder),
        route: RESULT_ROUTE.to_owned(),
        key: String::new(),
        body: report.body_hash.clone(),
        answer: report.key.clone().unwrap_or_default(),
        created_ms: turn.now_ms,
    }));
}

fn keep_evidence(turn: &mut Turn<'_>, holder: &Holder, report: &Report, code: &str) {
    let mut end = report.body.len().min(EVIDENCE_BYTES);
    while !report.body.is_char_boundary(end) {
        end -= 1;
    }
    turn.run.pending.writes.push(Write::PutEvidence(EvidenceRow {
        run: turn.run.num,
        step: holder.step,
        attempt: holder.attempt,
        at_ms: turn.now_ms,
        code: code.to_owned(),
        body: report.body[..end].to_owned(),
    }));
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

/// Returns the declared effects. An effect of an unknown type is a custom one, if those are stored.
fn decode_effects(
    effects: &[serde_json::Value],
    policy: CustomEffects,
) -> Result<Vec<Effect>, EngineError> {
    const KNOWN: [&str; 10] = [
        "write_memory",
        "delete_memory",
        "signal",
        "delegate",
        "handoff",
        "log",
        "link_memory",
        "unlink_memory",
        "tool_approval_required",
        "custom",
    ];
    let decode = |(n, value): (usize, &serde_json::Value)| {
        if let Some(effect_type) = value.get("type").and_then(serde_json::Value::as_str)
            && policy == CustomEffects::Warn
            && !KNOWN.contains(&effect_type)
        {
            let (effect_type, data) = (effect_type.to_owned(), value.clone());
            return Ok(Effect::Custom { effect_type, data });
        }
        serde_json::from_value::<Effect>(value.clone()).map_err(|error| EngineError::Invalid {
            what: Checked::Result,
            violations: vec![crate::engine::Breach {
                path: format!("$.effects[{n}]"),
                message: error.to_string(),
            }],
        })
    };
    effects.iter().enumerate().map(decode).collect()
}

fn live_token(holder: &Holder) -> impl Iterator<Item = Check> {
    let line = holder.jti.as_deref().into_iter().flat_map(lineage);
    line.map(|jti| Check::TokenLive(jti.to_owned()))
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

fn attempt_name(run: &Run, holder: &Holder) -> String {
    format!("{}/{}/{}", run.num, holder.step, holder.attempt)
}
