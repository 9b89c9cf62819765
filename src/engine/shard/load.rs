//! Taking a run up again: its chain from the journal, its flow by replay.
//!
//! A replay that differs, or a limit that is hit while replaying, lets the run rest with the reason,
//! and loses nothing.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use crate::{
    engine::{
        Divergence,
        run::{
            due::Due,
            members::Members,
            open::{Open, OpenKind},
            perform::Perform,
            question::Question,
            resident::Run,
            task::Phase,
            values::{child_id, grant_of},
        },
        shard::{
            owner::Shard,
            retell::{Retold, Stop, retell},
        },
        shared::message::RunMsg,
        turn::waiting,
        view::spent::total,
    },
    fault,
    flow::{StepOp, TaskRequest},
    journal::{Chain, Decision, Entry, Fact, Outcome, RunState, Scheduled, StepKey},
    lua::{Program, RunFacts, ScriptFlow},
    operator::Residence,
    protocol::{Failure, RunId, StepKind, failure::kind},
    store::{Header, RunStatus, StoreError, TaskPhase},
};

impl Shard {
    /// Reads a run into memory, if there is one; an ended one only for a query.
    pub(crate) fn load(
        &mut self,
        num: u64,
        message: &RunMsg,
        broken: bool,
    ) -> Result<Option<Box<Run>>, StoreError> {
        let Some(header) = self.shared.store.header(num)? else { return Ok(None) };
        let for_query = message.is_query();
        if header.status.is_ended()
            && matches!(
                message,
                RunMsg::Wake
                    | RunMsg::TakeUp(_)
                    | RunMsg::Subscribe(..)
                    | RunMsg::Wait(_)
                    | RunMsg::Progress { .. }
                    | RunMsg::Tell { .. }
                    | RunMsg::Rest { .. }
            )
        {
            return Ok(None);
        }
        fault::point("engine.load");
        self.check_history(&header)?;
        let entries = self.shared.store.entries(num, 0)?;
        let mut chain = Chain::lean();
        for entry in &entries {
            chain.apply(entry).map_err(|error| StoreError::Damaged {
                what: format!("run {num}"),
                reason: error.to_string(),
            })?;
        }
        let Some((started, _)) = chain.started() else {
            return Err(StoreError::Damaged {
                what: format!("run {num}"),
                reason: "it has no start".into(),
            });
        };
        let grant = Arc::new(grant_of(&started.grant));
        let program = self.shared.programs.by_hash(&started.hash);
        self.lives += 1;
        let cursor = header.cursor;
        let mut run = Box::new(Run::new(self.lives, header, grant, self.account()));
        run.cursor = Some(cursor);
        run.chain = chain;
        run.program = program.as_ref().ok().map(Arc::clone);
        run.broken = broken;
        run.charged = self.shared.accounts.take_up(num, &*self.shared.store, run.chain.spent());
        if run.is_ended() && !for_query {
            return Ok(Some(run));
        }
        if !run.is_ended() {
            self.count_in(num);
        }
        // It was quarantined, by its header alone.
        run.restate = run.header.status == RunStatus::Paused && run.chain.paused().is_none();
        run.account.read(run.chain.history_bytes());
        Self::keep_weight(&mut run);
        match program {
            Err(error) => {
                self.rest(&mut run, &entries, format!("its blueprint cannot be loaded: {error}"));
            }
            Ok(_) if run.chain.paused().is_some() && !message.is_cancel() => {
                self.take_up_open(&mut run, &entries, HashMap::new());
            }
            Ok(program) => self.replay_into(&mut run, &program, &entries),
        }
        Ok(Some(run))
    }

    /// Refuses a history that is too large to be read, and would end the host.
    fn check_history(&self, header: &Header) -> Result<(), StoreError> {
        let most = self.shared.memory.limit() as u64 / 2;
        if header.bytes <= most {
            return Ok(());
        }
        match self.shared.store.history_bytes(header.num)? {
            bytes if bytes > most => Err(StoreError::TooLarge { run: header.num, bytes, most }),
            _ => Ok(()),
        }
    }

    fn replay_into(&mut self, run: &mut Run, program: &Arc<Program>, entries: &[Entry]) {
        let mut outcome = self.replay(run, program, entries);
        if let Err(Stop::Broken(_)) = outcome {
            // A VM without room gives the run one of its own: once more.
            outcome = self.replay(run, program, entries);
        }
        match outcome {
            Err(Stop::Diverged(why)) => self.rest(run, entries, why.message),
            Err(Stop::Broken(why)) => self.rest(run, entries, format!("its VM has no room: {why}")),
            Ok(replay) if run.is_ended() => run.flow = Some(replay.flow),
            Ok(replay) => {
                fault::point("engine.replayed");
                run.flow = Some(replay.flow);
                self.take_up_open(run, entries, replay.ops);
                Self::keep_weight(run);
                if !self.commands(run, replay.fresh) {
                    return;
                }
                self.next(run, replay.next);
                let names: BTreeSet<String> =
                    run.chain.signals().into_iter().map(|(name, _)| name).collect();
                for name in names {
                    self.match_signal(run, &name);
                }
            }
        }
    }

    /// Feeds a fresh flow what happened.
    pub(crate) fn replay(
        &mut self,
        run: &Run,
        program: &Arc<Program>,
        entries: &[Entry],
    ) -> Result<Retold, Stop> {
        let flow = self
            .new_flow(run, program)
            .map_err(|failure| Stop::Diverged(Divergence::of(failure.to_string())))?;
        let is_active = *run.chain.state() == RunState::Active;
        retell(flow, entries)?.judge(is_active, run.broken)
    }

    /// A flow for a run, before its first input.
    pub(crate) fn new_flow(
        &mut self,
        run: &Run,
        program: &Arc<Program>,
    ) -> Result<ScriptFlow, Failure> {
        let (started, _) = run.chain.started().expect("a run starts before its flow");
        let facts = RunFacts {
            run_id: run.id.to_string(),
            blueprint: program.blueprint().version(),
            input: started.input.clone(),
            trigger: started.trigger.clone(),
            seed: started.seed,
        };
        let mut limits = self.shared.settings.limits.clone();
        if let Some(width) = program.blueprint().definition().max_width {
            limits.branches = limits.branches.min(width);
        }
        self.vms.start(program.source(), facts, limits)
    }

    /// Lets a run rest, with the reason; its results are still accepted.
    fn rest(&mut self, run: &mut Run, entries: &[Entry], reason: String) {
        tracing::warn!(run = %run.id, reason, "a run rests");
        run.flow = None;
        self.take_up_open(run, entries, HashMap::new());
        if !run.is_ended() && run.chain.paused().is_none() {
            self.append(run, Fact::Decided(Decision::Pause { by: "engine".into(), reason }));
        }
    }

    /// Rebuilds what the run's open steps wait for.
    fn take_up_open(
        &mut self,
        run: &mut Run,
        entries: &[Entry],
        mut ops: HashMap<StepKey, StepOp>,
    ) {
        let open: HashSet<u32> = run.chain.open().collect();
        let scheduled: Vec<&Scheduled> = entries
            .iter()
            .filter_map(|entry| match &entry.fact {
                Fact::StepScheduled(scheduled) if open.contains(&scheduled.step) => {
                    Some(&**scheduled)
                }
                _ => None,
            })
            .collect();
        let paused = run.chain.paused().is_some();
        if let Some(program) = &run.program
            && let Some(wall) = program.blueprint().definition().wall_ms
        {
            let began = self.shared.clock.steady_of(run.header.created_ms);
            run.timers.insert((began + wall, 0, Due::Wall));
        }
        if let RunState::Compensating(_) = run.chain.state() {
            let began = entries.iter().rev().find_map(|entry| match entry.fact {
                Fact::Decided(Decision::Compensate { .. }) => Some(entry.at_ms),
                _ => None,
            });
            let began = self.shared.clock.steady_of(began.unwrap_or(self.now_ms));
            let due = began + self.shared.settings.compensation_ms;
            run.timers.insert((due, 0, Due::Compensation));
        }
        let members = Members::of(entries);
        for step in scheduled {
            let op = ops.remove(&step.key);
            self.take_up_step(run, step, op, (paused, &members));
        }
    }

    fn take_up_step(
        &mut self,
        run: &mut Run,
        step: &Scheduled,
        op: Option<StepOp>,
        (paused, members): (bool, &Members),
    ) {
        let number = step.step;
        let wake = step.wake_at_ms;
        let put = |run: &mut Run, kind| {
            run.open.insert(number, Open { kind });
        };
        match step.kind {
            StepKind::Timer => {
                put(run, OpenKind::Timer);
                run.timers.insert((wake.unwrap_or_default(), number, Due::Timer));
            }
            StepKind::Signal => {
                put(run, OpenKind::Signal);
                if let Some(wake) = wake {
                    run.timers.insert((wake, number, Due::SignalDeadline));
                }
            }
            StepKind::Child => {
                let Some(child) = child_id(step.call_id.as_deref()) else { return };
                let input = step.request.clone();
                put(run, OpenKind::Child { run: child, blueprint: step.name.clone(), input });
                self.take_up_child(run, number, child);
            }
            StepKind::Local if step.whole().is_none() => {}
            StepKind::Task | StepKind::ModelCall | StepKind::ToolCall | StepKind::Local => {
                if let Some(whole) = step.whole()
                    && self.take_up_state_call(run, number, whole)
                {
                    return;
                }
                let op = match step.whole() {
                    None => op.unwrap_or_else(|| waiting::request_of(step)),
                    Some(whole) => match self.part_of(run, step, whole) {
                        Some(request) => StepOp::Task(Box::new(request)),
                        None if paused => return,
                        None => {
                            self.close_orphan(run, number);
                            return;
                        }
                    },
                };
                let StepOp::Task(request) = op else { return };
                match self.prepare(run, &request) {
                    Ok(task) if self.is_loop(&task) => {
                        self.take_up_loop(run, number, task, members);
                    }
                    Ok(task) if let Some(composite) = self.composite(&task) => {
                        Self::take_up_composite(run, number, task, composite, members);
                    }
                    Ok(task) => {
                        put(run, OpenKind::Task(Box::new(task)));
                        if let Err(failure) = self.take_up_follows(run, number) {
                            self.finish_step(run, number, Outcome::Failed(failure), None, None);
                            return;
                        }
                        self.take_up_attempt(run, number, paused);
                    }
                    Err(_) if paused => {}
                    Err(failure) => {
                        self.finish_step(run, number, Outcome::Failed(failure), None, None);
                    }
                }
            }
            StepKind::State => self.take_up_state(run, step),
        }
    }

    /// What a composite or a loop asked for with a step of its own.
    fn part_of(&self, run: &Run, step: &Scheduled, whole: u32) -> Option<TaskRequest> {
        if let Some(open) = run.model_loop(whole) {
            return open.request_of(step.key.index as usize);
        }
        let open = run.composite(whole)?;
        let member = match step.kind {
            StepKind::Task => step.call_id.as_deref().unwrap_or(&open.operator),
            _ => &step.name,
        };
        Some(open.asked(member))
    }

    pub(crate) fn take_up_child(&mut self, run: &mut Run, number: u32, child: RunId) {
        match self.shared.store.header(child.num()) {
            Ok(None) => run.pending.after.performs.push(Perform::StartChild { step: number }),
            Ok(Some(header)) if header.status.is_ended() => {
                let mut chain = Chain::lean();
                let entries = self.shared.store.entries(child.num(), 0).unwrap_or_default();
                let known = entries.iter().try_for_each(|entry| chain.apply(entry));
                if let (Ok(()), RunState::Ended(outcome)) = (known, chain.state()) {
                    self.child_ended(run, number, outcome.clone(), total(chain.spent()));
                }
            }
            Ok(Some(_)) => {}
            Err(error) => tracing::error!(run = %run.id, %error, "could not look for a called run"),
        }
    }

    /// An attempt that was open when the run was last in memory.
    ///
    /// | the work lived | then |
    /// |---|---|
    /// | inline | it is done again, as the same attempt |
    /// | in the host | it died with it: interrupted, the next attempt opens |
    /// | elsewhere | it goes on: deadline, lease and handle are as good as before |
    /// | elsewhere, under an older epoch | its handle is no good any more: interrupted |
    fn take_up_attempt(&mut self, run: &mut Run, number: u32, paused: bool) {
        let Some(step) = run.chain.step(number) else { return };
        let (attempt, counted, open) = (step.attempt, step.counted, step.attempt_open);
        let retry_at = step.retry_at_ms;
        let row = match self.shared.store.task(run.num, number) {
            Ok(row) => row.filter(|row| row.attempt == attempt),
            Err(error) => {
                tracing::error!(run = %run.id, %error, "could not read an open task");
                None
            }
        };
        let agent = self.agent_key(run, number);
        let (now, epoch) = (self.steady_ms, run.header.epoch);
        let clock = self.shared.clock.clone();
        let Some(task) = run.task_mut(number) else { return };
        task.attempt = attempt;
        task.counted = counted;
        if !open {
            task.phase = Phase::Retry;
            run.timers.insert((retry_at.unwrap_or(self.now_ms), number, Due::Retry));
            return;
        }
        let Some(row) = row else {
            // It was never dispatched: it waited for a place, or for this commit.
            task.phase = Phase::Capacity;
            if !paused {
                self.open_attempt(run, number);
            }
            return;
        };
        match task.residence {
            Residence::Inline => self.open_attempt(run, number),
            Residence::Host => {
                task.row = Some(Box::new(row));
                task.phase = Phase::Delivered;
                let failure = Failure::new(kind::INTERRUPTED, "the host stopped while it ran");
                self.attempt_failed(run, number, failure.retryable(), None);
            }
            Residence::Elsewhere if row.epoch != epoch && row.phase == TaskPhase::Delivered => {
                task.row = Some(Box::new(row));
                task.phase = Phase::Delivered;
                task.place = agent.is_some();
                let failure = Failure::new(kind::INTERRUPTED, "the run has changed hands");
                self.attempt_failed(run, number, failure.retryable(), None);
            }
            Residence::Elsewhere => {
                task.phase = match row.phase {
                    TaskPhase::Pending => Phase::Pending,
                    TaskPhase::Delivered => Phase::Delivered,
                };
                task.again = true;
                // At the boot every such attempt was counted against its agent's limit.
                task.place = agent.is_some();
                task.question = row.question.as_deref().and_then(Question::open);
                // No time that was given is longer than it was at first, however the clocks went.
                let lease = row.lease_ms.map(|at| at.min(now + self.shared.settings.lease_ms));
                let deadline = row
                    .deadline_ms
                    .map(|at| at.min(now + task.timeout_ms.unwrap_or(u64::MAX >> 1)));
                let (park, phase) = (task.park_ms, row.phase);
                let opened = clock.steady_of(row.opened_ms);
                task.graces = row.graces;
                task.row = Some(Box::new(row.clone()));
                self.take_up_inquiry(run, number, &row);
                if let (TaskPhase::Pending, Some(park)) = (phase, park) {
                    run.timers.insert((opened + park, number, Due::Park));
                }
                if let Some(deadline) = deadline {
                    run.timers.insert((deadline, number, Due::Attempt));
                }
                if let (TaskPhase::Delivered, Some(lease)) = (phase, lease) {
                    run.timers.insert((lease, number, Due::Lease));
                }
                let after = &mut run.pending.after;
                if phase == TaskPhase::Pending && !paused {
                    after.performs.push(Perform::Dispatch { step: number, attempt });
                }
            }
        }
    }
}
