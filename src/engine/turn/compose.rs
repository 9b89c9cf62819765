//! Composites: a task whose members are steps of their own, in scopes below its own.
//!
//! | happens | then |
//! |---|---|
//! | a composite is scheduled | its step opens; its rule says who begins |
//! | a member begins | a step in branch `place` of the composite's own place, with all that a task has |
//! | a member ends | in the same commit the next one begins, or the composite ends |
//! | the composite ends or is canceled | members that are still open are canceled |
//! | the run is read again | what members came to stands in the journal; the rule goes on with it |
//!
//! The flow knows the composite alone: a replay passes its members over.

use crate::{
    engine::{
        run::{
            branches::{composite_of, is_held, member_key, members_of},
            composite::OpenComposite,
            members::Members,
            open::{Open, OpenKind},
            perform::Perform,
            resident::Run,
            task::OpenTask,
        },
        shard::owner::Shard,
    },
    fault,
    flow::{StepOp, Turn},
    journal::{Outcome, StepKey},
    operator::{Composite, MOST_DEPTH, Residence, Ticket},
    protocol::{Failure, Json, failure::kind},
    store::Write,
    token::{Need, Verb},
};

impl Shard {
    /// The composite that a prepared task goes to, if it goes to one.
    pub(crate) fn composite(&self, task: &OpenTask) -> Option<Composite> {
        self.shared.registry.get(&task.operator)?.composite().cloned()
    }

    /// Whether a run may use a composite: its operators are the members, and it is one too.
    pub(crate) fn may_compose(
        &self,
        run: &Run,
        key: &StepKey,
        operator: &str,
    ) -> Result<(), Failure> {
        let need = Need::Operator(operator);
        run.grant
            .check(Verb::Dispatch, &[need])
            .map_err(|refusal| Failure::new(kind::REFUSED, refusal.to_string()))?;
        let mut depth = 1;
        let mut inner = key.clone();
        while let Some((outer, number)) = composite_of(run, &inner) {
            depth += usize::from(run.composite(number).is_some());
            inner = outer;
        }
        if depth > MOST_DEPTH {
            let message = format!("more than {MOST_DEPTH} composites lie within each other");
            return Err(Failure::new(kind::LIMIT, message));
        }
        Ok(())
    }

    /// Opens a composite; its members begin with the next turn of the run.
    pub(crate) fn schedule_composite(
        &mut self,
        run: &mut Run,
        key: &StepKey,
        op: &StepOp,
        task: OpenTask,
        composite: Composite,
    ) {
        fault::point("engine.composite");
        let number = self.open(
            run,
            key,
            op,
            OpenKind::Composite(Box::new(OpenComposite::of(task, composite))),
        );
        run.composing.insert(number);
    }

    /// Lets every composite go on whose members changed.
    pub(crate) fn compose(&mut self, run: &mut Run) {
        while run.chain.paused().is_none() && !run.is_ended() && !run.reload {
            let Some(number) = run.composing.pop_first() else { return };
            if run.model_loop(number).is_some() {
                self.loop_one(run, number);
            } else {
                self.compose_one(run, number);
            }
        }
    }

    fn compose_one(&mut self, run: &mut Run, number: u32) {
        if is_held(run, number) {
            return;
        }
        while let Some(open) = run.composite_mut(number) {
            match open.composite.rule().turn(&open.course, open.first) {
                Turn::Wait => return,
                Turn::Begin(place) => self.begin_member(run, number, place),
                Turn::Complete(place) => {
                    let output = open.course.output(place).cloned().unwrap_or_else(Json::null);
                    self.end_composite(run, number, Outcome::Completed(output));
                }
                Turn::Fail => {
                    let failure =
                        open.composite.rule().failure(&open.course, open.composite.members());
                    let agent = open.request.agent.clone();
                    let failure = failure.at(number, Some(&agent), 1);
                    self.end_composite(run, number, Outcome::Failed(failure));
                }
            }
        }
    }

    fn begin_member(&mut self, run: &mut Run, number: u32, place: usize) {
        if let Some(breach) = self.breach(run).or_else(|| Self::task_breach(run)) {
            self.break_limit(run, breach);
            return;
        }
        let Some(key) = run.chain.step(number).map(|step| step.scheduled.key.clone()) else {
            return;
        };
        let Some(open) = run.composite_mut(number) else { return };
        open.course.begin(place);
        let Some(request) = open.request_of(place) else { return };
        fault::point("engine.composite_member");
        self.schedule_task(run, member_key(&key, place), request);
    }

    /// A member of a composite ended.
    pub(crate) fn member_ended(
        &mut self,
        run: &mut Run,
        number: u32,
        key: &StepKey,
        outcome: Outcome,
    ) {
        if run.model_loop(number).is_some() {
            return self.part_ended(run, number, key, outcome);
        }
        let Some((_, _, place)) = key.scope.outer() else { return };
        if let Some(open) = run.composite_mut(number) {
            open.course.end(place as usize, outcome);
            run.composing.insert(number);
        }
    }

    /// Ends a composite with what its rule says; whoever still works on it is told to stop.
    fn end_composite(&mut self, run: &mut Run, number: u32, outcome: Outcome) {
        let reason = match &outcome {
            Outcome::Completed(_) => "another member's result was taken",
            Outcome::Failed(_) | Outcome::Canceled(_) => "the composite has failed",
        };
        self.close_members(run, number, reason);
        self.finish_step(run, number, outcome, None, None);
    }

    /// Cancels the open members of a composite, if the step is one.
    pub(crate) fn close_members(&mut self, run: &mut Run, number: u32, reason: &str) {
        for member in members_of(run, number) {
            self.close(run, member, reason);
        }
    }

    /// Gives up a member that is open while its composite is not: a fork cut between the two, or
    /// another configuration made the operator another one.
    pub(crate) fn close_orphan(&mut self, run: &mut Run, number: u32) {
        const REASON: &str = "what it was a member of has ended";
        if let Ok(Some(row)) = self.shared.store.task(run.num, number) {
            let ticket = Ticket { run: row.run, step: row.step, attempt: row.attempt };
            if let Some(queue) = &row.queue {
                self.shared.hub.remove(queue, ticket);
            }
            let reason = (row.kind == "main_ai").then(|| REASON.to_owned());
            let performs = &mut run.pending.after.performs;
            performs.extend(reason.map(|it| Perform::Retire { ticket, reason: Some(it) }));
            let backend = self.shared.registry.get(&row.operator);
            // It was counted at the boot, as everything that lives elsewhere.
            if let Some(program) = &run.program
                && backend.is_some_and(|it| it.residence() == Residence::Elsewhere)
                && program.blueprint().agent(&row.agent).is_some_and(|it| it.limit().is_some())
            {
                let blueprint = program.blueprint().name();
                performs.push(Perform::Release((blueprint.into(), row.agent.as_str().into())));
            }
            run.pending.writes.push(Write::CloseTask { run: run.num, step: number });
        }
        self.close(run, number, REASON);
    }

    /// Rebuilds a composite that was open when the run was last in memory.
    pub(crate) fn take_up_composite(
        run: &mut Run,
        number: u32,
        task: OpenTask,
        composite: Composite,
        members: &Members,
    ) {
        let mut open = Box::new(OpenComposite::of(task, composite));
        members.replay(number, &mut open);
        run.open.insert(number, Open { kind: OpenKind::Composite(open) });
        run.composing.insert(number);
    }
}
