//! What workers ask and report: every answer is for the open attempt, or says why not.

use crate::{
    engine::{
        CustomEffects, EngineError, Holder, PromptView, Report, Verdict, rfc3339,
        run::{answers::closed, due::Due, resident::Run, task::Phase},
        shard::owner::Shard,
        shared::{message::WorkerAsk, verified::lineage},
        turn::effects::bad_effect,
        view,
    },
    fault::{self, Break},
    journal::Outcome,
    middleware::TaskDone,
    operator::{Delivery, Prompt, Ticket, joined},
    protocol::{Effect, Failure, Json, failure::kind, fold::fold},
    store::{Check, EvidenceRow, IdempotencyRow, Write},
    token::HandleError,
};

/// Results that break the schema before the attempt is over.
const INVALID_RESULTS: u32 = 3;

/// What is kept of a refused body, in bytes.
const EVIDENCE_BYTES: usize = 64 << 10;

/// The route under which accepted results are remembered.
const RESULT_ROUTE: &str = "worker.result";

impl Shard {
    /// Answers a worker.
    pub(crate) fn worker(&mut self, run: &mut Run, holder: &Holder, ask: WorkerAsk) {
        let standing = self.standing(run, holder);
        let ticket = Ticket { run: run.num, step: holder.step, attempt: holder.attempt };
        let ask = match self.shared.registry.secrets_of(ticket) {
            Some(secrets) => ask.scrubbed(&secrets),
            None => ask,
        };
        match ask {
            WorkerAsk::Prompt(reply) => match standing {
                Err(error) => drop(reply.send(Err(error))),
                Ok(()) => {
                    fault::point("engine.prompt");
                    let delivery = Delivery { worker: worker_name(holder) };
                    self.delivered(run, holder.step, holder.attempt, delivery);
                    let answer = self.prompt_view(run, holder);
                    self.after(run, reply, answer);
                }
            },
            WorkerAsk::Report(report, reply) => match standing {
                Ok(()) => {
                    let Holder { step, attempt, .. } = *holder;
                    let ticket = Ticket { run: run.num, step, attempt };
                    if holder.session.is_some() || self.shared.sessions.holder(ticket).is_some() {
                        // Who reports has it, also if the frame was never acknowledged.
                        let delivery = Delivery { worker: worker_name(holder) };
                        self.delivered(run, holder.step, holder.attempt, delivery);
                    }
                    self.report(run, holder, *report, reply);
                }
                Err(error) => {
                    let answer = self.report_again(run, holder, &report, error);
                    if run.has_pending() {
                        // The refused body is kept before its sender hears of the refusal.
                        run.pending.after.replies.push(Box::new(move |result| {
                            drop(reply.send(result.and(answer)));
                        }));
                    } else {
                        drop(reply.send(answer));
                    }
                }
            },
            WorkerAsk::Artifact { name, data, reply } => {
                let of = (holder.step, holder.attempt);
                let stored = standing.and_then(|()| {
                    self.check_file(run, data.len())?;
                    self.put_artifact(run, of, &name, &data, false).map_err(bad_request)
                });
                rests_on_token(run, holder, &stored);
                self.after(run, reply, stored);
            }
            WorkerAsk::Progress { data, reply } => {
                if standing.is_ok() {
                    self.progress(run, holder.step, holder.attempt, &data);
                }
                drop(reply.send(standing));
            }
            WorkerAsk::Heartbeat(reply) => match standing {
                Ok(()) => {
                    let answer = self.heartbeat(run, holder);
                    self.after(run, reply, Ok(answer));
                }
                // A worker whose attempt is over is told to stop, in words that it can act on.
                Err(EngineError::Conflict { .. }) => drop(reply.send(Ok((None, true)))),
                Err(error) => drop(reply.send(Err(error))),
            },
            WorkerAsk::Nonce(reply) => drop(reply.send(standing.map(|()| run.header.nonce))),
            WorkerAsk::Accept(reply) => {
                let deadline = standing.map(|()| {
                    let delivery = Delivery { worker: worker_name(holder) };
                    self.delivered(run, holder.step, holder.attempt, delivery);
                    let row = run.task(holder.step).and_then(|task| task.row.as_ref());
                    let deadline = row.and_then(|row| row.deadline_ms);
                    deadline.map(|at| self.shared.clock.wall_of(at))
                });
                self.after(run, reply, deadline);
            }
            WorkerAsk::Decline { reason, reply } => {
                let declined = standing.map(|()| {
                    self.detach_worker(run, holder.step);
                    let failure = Failure::new(kind::OPERATOR_UNAVAILABLE, reason).retryable();
                    self.attempt_failed(run, holder.step, failure, None);
                });
                run.pending.checks.extend(live_token(holder));
                self.after(run, reply, declined);
            }
            WorkerAsk::Escalate { question, reply } => {
                let asked = standing.and_then(|()| self.escalate(run, holder, question));
                run.pending.checks.extend(live_token(holder));
                self.after(run, reply, asked);
            }
            WorkerAsk::GetState { scope, key, reply } => {
                let answer = standing.and_then(|()| {
                    let place = self.place_of(run, holder, scope.as_deref(), &key)?;
                    self.read_for_worker(run, &place, key)
                });
                drop(reply.send(answer));
            }
            WorkerAsk::PutState { scope, key, value, reply } => {
                let written = standing.and_then(|()| {
                    let place = self.place_of(run, holder, scope.as_deref(), &key)?;
                    self.put_for_worker(run, place, key, &value)
                });
                rests_on_token(run, holder, &written);
                self.after(run, reply, written);
            }
        }
    }

    /// Sends an answer once everything that it rests on is durable.
    pub(crate) fn after<T: Send + 'static>(
        &mut self,
        run: &mut Run,
        reply: crate::engine::run::reply::ReplyTo<T>,
        answer: Result<T, EngineError>,
    ) {
        match answer {
            Err(error) => drop(reply.send(Err(error))),
            Ok(answer) => run.pending.after.replies.push(Box::new(move |result| {
                drop(reply.send(result.map(|_| answer)));
            })),
        }
    }

    /// Whether a bearer is the one of the open attempt.
    fn standing(&self, run: &Run, holder: &Holder) -> Result<(), EngineError> {
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
            |message: &str| EngineError::Conflict { code: "fenced", message: message.into() };
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
                    "already_accepted"
                } else {
                    "fenced"
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

    fn prompt_view(&self, run: &Run, holder: &Holder) -> Result<PromptView, EngineError> {
        let missing = || EngineError::NotFound { what: "prompt", id: run.id.to_string() };
        let row = run.task(holder.step).and_then(|task| task.row.as_ref()).ok_or_else(missing)?;
        let prompt: Prompt = serde_json::from_str(&row.prompt).map_err(|_| missing())?;
        let recent = run.chain.steps().iter().rev();
        let recent = recent.filter(|step| step.state == crate::protocol::StepState::Completed);
        let steps: Vec<String> = recent
            .take(20)
            .map(|step| format!("/v1/runs/{}/steps/{}", run.id, step.scheduled.step))
            .collect();
        let context = serde_json::json!({
            "blueprint": format!("{}@{}", run.header.blueprint, run.header.hash),
            "summary": prompt.summary,
            "idempotency_key": prompt.idempotency_key,
            "steps": steps,
        });
        Ok(PromptView {
            task: prompt.task,
            run: prompt.run,
            agent: prompt.agent,
            attempt: prompt.attempt,
            system: joined(prompt.system.as_deref(), prompt.addendum.as_deref()),
            prompt: prompt.prompt,
            input: prompt.input,
            context: context.into(),
            output_schema: prompt.output_schema,
            deadline: row.deadline_ms.map(|at| rfc3339(self.shared.clock.wall_of(at))),
            artifacts: serde_json::json!({ "put": "/v1/worker/artifact?name={name}" }).into(),
            advice: row.question.as_deref().and_then(crate::engine::run::question::advice),
        })
    }

    fn heartbeat(&mut self, run: &mut Run, holder: &Holder) -> (Option<u64>, bool) {
        fault::point("engine.heartbeat");
        let lease_ms = self.steady_ms + self.shared.settings.lease_ms;
        let (clock, step) = (self.shared.clock.clone(), holder.step);
        let shown = move |at: u64| clock.wall_of(at);
        let Some(task) = run.task_mut(step) else { return (None, true) };
        let Some(row) = &mut task.row else { return (None, false) };
        let deadline = row.deadline_ms;
        if row.lease_ms.is_none() {
            return (deadline.map(shown), false);
        }
        (row.lease_ms, row.graces) = (Some(lease_ms), 0);
        let row = row.clone();
        task.graces = 0;
        run.pending.writes.push(Write::PutTask(row));
        run.timers.remove(step, Due::Lease);
        run.timers.insert((lease_ms, step, Due::Lease));
        (Some(shown(deadline.map_or(lease_ms, |deadline| deadline.min(lease_ms)))), false)
    }

    fn report(
        &mut self,
        run: &mut Run,
        holder: &Holder,
        report: Report,
        reply: crate::engine::run::reply::ReplyTo<bool>,
    ) {
        fault::point("engine.result");
        let step = holder.step;
        if fault::is_broken(Break::ApplyEffectsAtDispatch)
            && let Ok(effects) =
                decode_effects(&report.effects, self.shared.settings.custom_effects)
        {
            drop(self.apply_effects(run, step, &effects));
        }
        let Some(task) = run.task(step) else { return };
        match &report.verdict {
            Verdict::Failed { message, retryable, data } => {
                let mut failure = Failure::new(kind::WORKER, message.clone());
                failure.retryable = *retryable;
                failure.data = data.clone();
                self.remember(run, holder, &report);
                self.detach_worker(run, step);
                self.attempt_failed(run, step, failure, report.usage);
                self.after(run, reply, Ok(true));
            }
            Verdict::Done(output) => {
                let schema = task.agent.output().clone();
                let declared = decode_effects(&report.effects, self.shared.settings.custom_effects);
                let followed = matches!(&declared, Ok(effects)
                    if self.is_followed(run, step, effects));
                // What is left to others is held to the schema at its end.
                let accepted = if followed { Ok(output.clone()) } else { accept(&schema, output) };
                let effects = accepted.and_then(|output| Ok((output, declared?)));
                let effects = match effects {
                    Ok((output, effects)) => {
                        let usage = report.usage.clone();
                        let done = TaskDone { output, usage, effects };
                        match self.settle_attempt(run, step, Ok(done)) {
                            Ok(done) => Ok((done.output, done.effects)),
                            Err(short) => {
                                // A layer does not take it: the worker did its part.
                                self.remember(run, holder, &report);
                                self.detach_worker(run, step);
                                self.attempt_failed(run, step, short.failure, short.usage);
                                self.after(run, reply, Ok(true));
                                return;
                            }
                        }
                    }
                    Err(error) => Err(error),
                };
                if let (true, Ok((output, effects))) = (followed, &effects) {
                    self.report_followed(run, holder, &report, (output, effects), reply);
                    return;
                }
                match effects.and_then(|(output, effects)| {
                    let kept = self.apply_effects(run, step, &effects).map_err(bad_effect)?;
                    Ok((output, kept))
                }) {
                    Ok((output, effects)) => {
                        self.publish(run, holder, &report);
                        let outcome = Outcome::Completed(output);
                        self.finish_step(run, step, outcome, effects, report.usage);
                        self.after(run, reply, Ok(true));
                    }
                    Err(error) => self.refuse_result(run, holder, &report, error, reply),
                }
            }
        }
    }

    /// Remembers an accepted result and publishes what came with it.
    pub(crate) fn publish(&mut self, run: &mut Run, holder: &Holder, report: &Report) {
        let (step, attempt) = (holder.step, holder.attempt);
        self.remember(run, holder, report);
        fault::point("engine.artifact_publish");
        run.pending.after.published.push((step, attempt));
        publish_files(run, step, attempt);
        if run.task(step).is_some_and(|task| task.attempt == attempt) {
            self.detach_worker(run, step);
        }
    }

    /// Lets go of a worker in the host whose result came through the worker API: it may end by
    /// itself.
    fn detach_worker(&mut self, run: &mut Run, step: u32) {
        let Some(task) = run.task_mut(step) else { return };
        task.reported = true;
        if let Some(live) = task.live.take() {
            run.pending.after.performs.push(crate::engine::run::perform::Perform::Reported(live));
        }
    }

    /// A result that does not match its schema: the worker may try again, twice.
    pub(crate) fn refuse_result(
        &mut self,
        run: &mut Run,
        holder: &Holder,
        report: &Report,
        error: EngineError,
        reply: crate::engine::run::reply::ReplyTo<bool>,
    ) {
        self.keep_evidence(run, holder, report, error.code());
        let Some(task) = run.task_mut(holder.step) else { return };
        task.invalid += 1;
        if task.invalid >= INVALID_RESULTS {
            let message = format!("{INVALID_RESULTS} results were refused; the last: {error}");
            let failure = Failure::new(kind::INVALID_RESULT, message);
            self.attempt_failed(run, holder.step, failure, report.usage.clone());
        }
        run.pending.after.replies.push(Box::new(move |result| {
            drop(reply.send(match result {
                Ok(_) => Err(error),
                Err(lost) => Err(lost),
            }));
        }));
    }

    /// A report on an attempt that is over: the same body as the accepted one is accepted again.
    fn report_again(
        &mut self,
        run: &mut Run,
        holder: &Holder,
        report: &Report,
        refusal: EngineError,
    ) -> Result<bool, EngineError> {
        if !matches!(refusal, EngineError::Conflict { .. }) {
            return Err(refusal);
        }
        let (principal, key) = (attempt_name(run, holder), report.key.clone().unwrap_or_default());
        let before = self.shared.store.idempotent(&principal, RESULT_ROUTE, "")?;
        let refusal = match before {
            Some(_) if fault::is_broken(Break::DropDedup) => {
                self.apply_effects(
                    run,
                    holder.step,
                    &decode_effects(&report.effects, self.shared.settings.custom_effects)?,
                )?;
                return Ok(true);
            }
            Some(row) if row.body == report.body_hash => return Ok(false),
            Some(row) if !key.is_empty() && row.answer == key => EngineError::Conflict {
                code: "idempotency_mismatch",
                message: "report: another body came with this Idempotency-Key before".into(),
            },
            Some(_) => EngineError::Conflict {
                code: "already_accepted",
                message: "report: another result of this attempt was accepted before".into(),
            },
            None => refusal,
        };
        self.keep_evidence(run, holder, report, refusal.code());
        Err(refusal)
    }

    /// Remembers an accepted report by its body's hash, so that its repetition is accepted too.
    fn remember(&mut self, run: &mut Run, holder: &Holder, report: &Report) {
        run.pending.checks.extend(live_token(holder));
        run.pending.writes.push(Write::PutIdempotency(IdempotencyRow {
            principal: attempt_name(run, holder),
            route: RESULT_ROUTE.to_owned(),
            key: String::new(),
            body: report.body_hash.clone(),
            answer: report.key.clone().unwrap_or_default(),
            created_ms: self.now_ms,
        }));
    }

    fn keep_evidence(&self, run: &mut Run, holder: &Holder, report: &Report, code: &str) {
        let mut end = report.body.len().min(EVIDENCE_BYTES);
        while !report.body.is_char_boundary(end) {
            end -= 1;
        }
        run.pending.writes.push(Write::PutEvidence(EvidenceRow {
            run: run.num,
            step: holder.step,
            attempt: holder.attempt,
            at_ms: self.now_ms,
            code: code.to_owned(),
            body: report.body[..end].to_owned(),
        }));
    }
}

/// Makes what an accepted attempt sent files of the run.
fn publish_files(run: &mut Run, step: u32, attempt: u32) {
    let mut sent = run.artifacts.is_none();
    for file in run.artifacts.iter_mut().flatten() {
        if (file.step, file.attempt) == (step, attempt) {
            file.published = true;
            sent = true;
        }
    }
    if sent {
        run.pending.writes.push(Write::PublishArtifacts { run: run.num, step, attempt });
    }
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
    Err(EngineError::Invalid { what: "the result", violations })
}

/// What was declared. An effect of a type that nobody knows is a custom one, where those are kept.
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
            what: "the result",
            violations: vec![crate::engine::Breach {
                path: format!("$.effects[{n}]"),
                message: error.to_string(),
            }],
        })
    };
    effects.iter().enumerate().map(decode).collect()
}

pub(crate) fn bad_request(failure: Failure) -> EngineError {
    EngineError::BadRequest(failure.message)
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
