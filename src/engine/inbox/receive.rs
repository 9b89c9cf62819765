//! What a run is told, and what it makes of it.

use crate::{
    engine::{
        EngineError, IdempotencyKey,
        inbox::people::Said,
        run::{
            account::OwnState, answers::view_of, due::Due, open::OpenKind, resident::Run,
            task::Phase, values::grant_of,
        },
        shard::owner::Shard,
        shared::message::{NewRun, RunMsg, refuse},
        turn::waiting,
    },
    fault,
    flow::Flow as _,
    journal::{Decision, Fact, Outcome, Usage},
    protocol::{Failure, Json, RunId, SecretAccessEvent, failure::kind},
    store::{Check, Header, RunStatus, UNSTORED, Write},
};

impl Shard {
    /// Begins a run.
    pub(crate) fn begin(&mut self, new: NewRun) {
        if self.runs.contains_key(&new.id.num()) {
            return;
        }
        fault::point("engine.accept_run");
        self.lives += 1;
        let NewRun { id, program, started, jti, key, reply, waiter, .. } = new;
        let (unstored, subscriber, charged) = (new.unstored, new.subscriber, new.charged);
        let wall_ms = program.blueprint().definition().wall_ms;
        let parent = started.parent;
        let grant = std::sync::Arc::new(grant_of(&started.grant));
        let header = new_header(id, &started);
        let mut run = Box::new(Run::new(self.lives, header, grant, self.account()));
        run.program = Some(program);
        run.state = Some(OwnState::default());
        run.artifacts = Some(Vec::new());
        run.waiters = waiter.into_iter().collect();
        run.subscribers = subscriber.into_iter().collect();
        run.charged = charged;
        run.audience.set(!run.subscribers.is_empty());
        run.header.parent = parent;
        self.count_in(run.num);
        let (by, delegate) = (started.principal.clone(), started.delegate.clone());
        self.append(&mut run, Fact::RunStarted(Box::new(started)));
        for (session, party) in new.joined {
            self.join(&mut run, session, party);
        }
        for session in delegate.iter().map(String::as_str) {
            self.note_joined(&mut run, session);
        }
        for (operator, session) in new.seats {
            self.note_joined(&mut run, session.as_str());
            let (by, session) = (by.clone(), session.0);
            let seat = Decision::Seat { by, operator, session, epoch: 1 };
            self.append(&mut run, Fact::Decided(seat));
        }
        if unstored {
            let key = format!("{UNSTORED}{}", run.num);
            run.pending.writes.push(Write::PutMeta { key, value: "1".into() });
        }
        run.pending.checks.extend(jti.map(Check::TokenLive));
        if let Some((principal, key)) = key {
            self.keep_answer(&mut run, &principal, &key, id.to_string());
        }
        if let Some(reply) = reply {
            run.pending.after.replies.push(Box::new(move |result| {
                // A caller who went away cancels nothing.
                let _ = reply.send(result.map(view_of));
            }));
        }
        if let Some(wall) = wall_ms {
            let due = self.steady_ms + wall;
            run.timers.insert((due, 0, Due::Wall));
        }
        self.start_flow(&mut run);
        self.settle(run);
    }

    /// Keeps the answer to a request in the same batch as its effect.
    pub(crate) fn keep_answer(
        &self,
        run: &mut Run,
        principal: &str,
        key: &IdempotencyKey,
        answer: String,
    ) {
        let (check, write) = key.keep(principal, answer, self.now_ms);
        run.pending.checks.push(check);
        run.pending.writes.push(write);
    }

    /// Refuses a message to a run that does not exist.
    pub(crate) fn refuse_unknown(&self, num: u64, message: RunMsg) {
        match &message {
            RunMsg::SignalFrom { sender, .. } | RunMsg::CancelFrom { sender, .. } => {
                self.drop_signal(num, *sender);
            }
            RunMsg::Capacity { step, agent } => self.pass_on(agent, num, *step),
            _ => {}
        }
        refuse(message, || EngineError::NotFound { what: "run", id: format!("number {num}") });
    }

    /// Refuses a message to a run that cannot be read.
    pub(crate) fn refuse(&self, message: RunMsg, error: &crate::store::StoreError) {
        refuse(message, || EngineError::Store(error.clone()));
    }

    /// Handles one message of a run that is in memory.
    pub(crate) fn receive(&mut self, run: &mut Box<Run>, message: RunMsg) {
        match message {
            RunMsg::Wake => self.wake(run),
            RunMsg::IsAtRest(_) => {}
            RunMsg::TakeUp(reply) => {
                self.wake(run);
                run.restate = !run.is_ended();
                run.pending.after.replies.push(Box::new(move |result| {
                    drop(reply.send(result.map(|_| ())));
                }));
            }
            // It is quarantined before it gets here.
            RunMsg::Quarantine { reply, .. } => drop(reply.send(Ok(()))),
            RunMsg::Wait(waiter) => {
                run.waiters.retain(|waiter| !waiter.reply.is_closed());
                run.waiters.push(waiter);
                self.answer_waiters(run);
            }
            RunMsg::Subscribe(subscriber, reply) => {
                // What is on its way to the disk was not made an event: nobody watched. The new
                // subscriber is told to read it once it is there.
                if let Some(last) = run.submitted.back_mut() {
                    last.after.events.push(crate::engine::view::events::sync(self.now_ms));
                }
                run.subscribers.retain(|subscriber| !subscriber.is_closed());
                if !run.is_ended() || !run.submitted.is_empty() || run.has_pending() {
                    run.audience.set(true);
                    self.show_past(run, &subscriber);
                    run.subscribers.push(subscriber);
                }
                // Who asked may be gone.
                let _ = reply.send(run.chain.seq());
            }
            RunMsg::Cancel { by, jti, reason, key, reply } => {
                self.cancel(run, by, jti, reason, key, reply);
            }
            RunMsg::CancelFrom { sender, by, reason } => {
                self.cancel_from(run, sender, by, reason);
            }
            RunMsg::Pause { by, jti, reason, reply } => self.pause(run, by, jti, reason, reply),
            RunMsg::Resume { by, jti, reply } => self.resume(run, by, jti, reply),
            RunMsg::Signal { name, payload, caller, key, reply } => {
                self.signal(run, name, payload, &caller, key, reply);
            }
            RunMsg::SignalFrom { sender, name, payload } => {
                self.signal_from(run, sender, name, payload);
            }
            RunMsg::Query { name, argument, reply } => {
                let answer = match run.flow.as_mut() {
                    Some(flow) => flow.query(&name, &argument).map_err(EngineError::Flow),
                    None => Err(EngineError::Conflict {
                        code: "run_paused",
                        message: format!("query {name:?}: the run's flow cannot be replayed now"),
                    }),
                };
                drop(reply.send(answer));
            }
            RunMsg::Tell { step, event } => self.told(run, Some(step), &event),
            RunMsg::Rest { by, reason } => {
                if run.chain.paused().is_none() && !run.is_ended() {
                    self.append(run, Fact::Decided(Decision::Pause { by, reason }));
                }
            }
            RunMsg::Finished { step, attempt, result } => {
                if let Some(task) = run.task_mut(step)
                    && task.attempt == attempt
                {
                    task.live = None;
                }
                self.finished(run, step, attempt, result);
            }
            RunMsg::Delivered { step, attempt, delivery } => {
                self.delivered(run, step, attempt, delivery);
            }
            RunMsg::Progress { step, attempt, data } => self.progress(run, step, attempt, &data),
            RunMsg::Delta(feed) => self.take_pieces(run, &feed),
            RunMsg::SecretAccessed { step, attempt, event } => {
                self.secret_accessed(run, step, attempt, *event);
            }
            RunMsg::Capacity { step, agent } => {
                if run.task(step).is_some_and(|task| task.phase == Phase::Capacity)
                    && run.chain.paused().is_none()
                {
                    self.open_attempt(run, step);
                } else {
                    // It has no use for the room: whoever comes next may.
                    self.pass_on(&agent, run.num, step);
                }
            }
            RunMsg::ChildLost { step, child } => {
                if is_child(run, step, child) {
                    let due = self.steady_ms + crate::engine::settings::STORAGE_RETRY_MS;
                    run.timers.insert((due, step, Due::Child));
                }
            }
            RunMsg::StateLater { step } => self.state_later(run, step),
            RunMsg::StateDone { step, outcome } => self.state_done(run, step, outcome),
            RunMsg::ChangeState { changes, jti, reply } => {
                self.change_from_outside(run, changes, jti, reply);
            }
            RunMsg::ChildEnded { step, child, outcome, usage, joined } => {
                if is_child(run, step, child) {
                    self.join_all(run, joined);
                    self.child_ended(run, step, outcome, usage);
                }
            }
            RunMsg::Redispatch { step, attempt } => {
                if run.task(step).is_some_and(|task| task.row.is_some()) {
                    self.dispatch(run, step, attempt);
                }
            }
            RunMsg::Unseat { step, attempt, reason } => {
                if run.task(step).is_some_and(|task| task.attempt == attempt) {
                    self.reassign(run, step, &reason);
                }
            }
            RunMsg::TakeSeat { operator, session, by, jti, reply } => {
                self.take_seat(run, operator, &session, (by, jti), reply);
            }
            RunMsg::Advise { step, answer, caller, key, reply } => {
                self.advise(run, step, answer, &caller, key, reply);
            }
            RunMsg::Lease { step, attempt, worker, reply } => {
                self.lease(run, step, attempt, worker, reply);
            }
            RunMsg::Answer { step, answer, revision, caller, key, reply } => {
                self.answer(run, step, Said { answer, revision, caller, key }, reply);
            }
            RunMsg::Expire { step, caller, key, reply } => {
                self.expire(run, step, &caller, key, reply);
            }
            RunMsg::Worker { holder, ask } => self.worker(run, &holder, ask),
        }
    }

    /// Hands a called run's end to its caller; its cancel is a failure that can be caught.
    pub(crate) fn child_ended(
        &mut self,
        run: &mut Run,
        step: u32,
        outcome: Outcome,
        usage: Option<Usage>,
    ) {
        fault::point("engine.child_ended");
        let outcome = match outcome {
            Outcome::Canceled(reason) => {
                let message = format!("the called run was canceled: {reason}");
                Outcome::Failed(Failure::new(kind::CANCELED, message))
            }
            Outcome::Completed(_) | Outcome::Failed(_) => outcome,
        };
        self.finish_step(run, step, outcome, None, usage);
    }

    pub(crate) fn progress(&mut self, run: &mut Run, step: u32, attempt: u32, data: &Json) {
        if run.subscribers.is_empty() {
            return;
        }
        let event = crate::engine::EventView {
            seq: None,
            kind: "progress".into(),
            at: crate::engine::rfc3339(self.now_ms),
            data: serde_json::json!({ "step": step, "attempt": attempt, "data": data }).into(),
        };
        crate::engine::turn::pieces::publish(run, &event);
    }

    /// Keeps that an attempt asked for a secret, as long as the run keeps anything.
    fn secret_accessed(
        &mut self,
        run: &mut Run,
        step: u32,
        attempt: u32,
        mut event: SecretAccessEvent,
    ) {
        if run.is_ended() || run.chain.step(step).is_none() {
            return;
        }
        event.workflow_id = Some(run.id.to_string());
        let event = Json::encode(&event).expect("an event is plain data");
        self.append(run, Fact::SecretAccessed { step, attempt, event });
    }

    /// Answers whoever waits for what is so now.
    pub(crate) fn answer_waiters(&mut self, run: &mut Run) {
        // What is not durable is not so yet.
        if run.waiters.is_empty() || !run.submitted.is_empty() || run.has_pending() {
            return;
        }
        let ended = run.is_ended();
        let people =
            ended || run.header.status == RunStatus::Paused || waiting::waits_for_people(run);
        for waiter in std::mem::take(&mut run.waiters) {
            let is_so = match waiter.until {
                crate::engine::WaitFor::Ended => ended,
                crate::engine::WaitFor::EndedOrPeople => people,
            };
            if is_so {
                drop(waiter.reply.send(view_of(run)));
            } else {
                run.waiters.push(waiter);
            }
        }
    }
}

/// Whether an open step calls this very run.
fn is_child(run: &Run, step: u32, child: RunId) -> bool {
    run.open
        .get(step)
        .is_some_and(|open| matches!(&open.kind, OpenKind::Child { run, .. } if *run == child))
}

fn new_header(id: crate::protocol::RunId, started: &crate::journal::RunStarted) -> Header {
    Header {
        blueprint: started.blueprint.clone(),
        hash: started.hash.clone(),
        parent: started.parent,
        principal: started.principal.clone(),
        ..Header::fresh(id.num(), id.created_ms())
    }
}
