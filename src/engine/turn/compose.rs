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

use std::{collections::HashMap, sync::Arc};

use crate::engine::{
    run::resident::{OpenKind, OpenTask, Perform, Run},
    shard::serve::Shard,
    turn::loops::{OpenLoop, is_held},
};
use crate::{
    fault,
    flow::{Course, Part, StepOp, TaskOpts, TaskRequest, Turn},
    journal::{Decision, Entry, Fact, Outcome, ScopePath, StepKey, Usage},
    operator::{Composite, MOST_DEPTH, Residence, Ticket},
    protocol::{Failure, Json, StepKind, failure::kind},
    store::Write,
    token::{Need, Verb},
};

/// An open composite.
pub(crate) struct OpenComposite {
    /// What was asked; each member is asked the same.
    pub(crate) request: TaskRequest,
    pub(crate) operator: Arc<str>,
    pub(crate) composite: Composite,
    pub(crate) course: Course,
    /// Whose turn it was when it began.
    first: usize,
}

/// What composites and loops of a history began, and how it ended.
#[derive(Default)]
pub(crate) struct Members {
    /// The parts by their whole: place, and number.
    begun: HashMap<u32, Vec<(usize, u32)>>,
    /// The ends of parts, in their order.
    ended: Vec<(u32, Outcome)>,
    /// What happened to the parts of each loop, in its order.
    loops: HashMap<u32, Vec<Event>>,
}

/// Something that happened to a part of a loop.
enum Event {
    Began { place: usize, kind: StepKind, name: String },
    Ended { place: usize, outcome: Outcome, used: Usage },
}

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
        let number = self.open(run, key, op, OpenComposite::of(task, composite));
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
        let mut kind = OpenComposite::of(task, composite);
        if let OpenKind::Composite(open) = &mut kind {
            members.replay(number, open);
        }
        run.open.insert(number, crate::engine::run::resident::Open { kind });
        run.composing.insert(number);
    }
}

impl OpenComposite {
    fn of(task: OpenTask, composite: Composite) -> OpenKind {
        OpenKind::Composite(Box::new(Self {
            request: task.request,
            operator: task.operator,
            course: Course::new(composite.members().len()),
            first: composite.next(),
            composite,
        }))
    }

    /// What the member at a place is asked.
    fn request_of(&self, place: usize) -> Option<TaskRequest> {
        Some(self.asked(self.composite.members().get(place)?))
    }

    /// What a member is asked.
    pub(crate) fn asked(&self, member: &str) -> TaskRequest {
        let opts = TaskOpts { operator: Some(member.to_owned()), ..self.request.opts.clone() };
        // A member of what a tool stands for is a task; of what a loop asks itself, it is asked too.
        let part = self.request.part.as_ref().filter(|part| part.kind != StepKind::ToolCall);
        let part = part.map(|part| Box::new(Part { name: member.to_owned(), ..(**part).clone() }));
        TaskRequest { opts, part, ..self.request.clone() }
    }
}

impl Members {
    /// Reads the members of a history, and how they ended.
    pub(crate) fn of(entries: &[Entry]) -> Self {
        let mut members = Self::default();
        let mut known: HashMap<u32, Known> = HashMap::new();
        for entry in entries {
            match &entry.fact {
                Fact::StepScheduled(step) | Fact::StepRecorded(step, _) => {
                    let (Some(whole), Some((_, _, place))) = (step.whole(), step.key.scope.outer())
                    else {
                        continue;
                    };
                    let used = Usage::default();
                    let index = step.key.index as usize;
                    known.insert(step.step, Known { whole, index, used });
                    members.begun.entry(whole).or_default().push((place as usize, step.step));
                    let (kind, name) = (step.kind, step.name.clone());
                    let began = Event::Began { place: index, kind, name };
                    members.loops.entry(whole).or_default().push(began);
                    if let Fact::StepRecorded(_, outcome) = &entry.fact {
                        members.end(&mut known, step.step, outcome);
                    }
                }
                Fact::StepEnded { step, outcome, usage, .. } if known.contains_key(step) => {
                    uses(&mut known, *step, usage.as_ref());
                    members.end(&mut known, *step, outcome);
                }
                Fact::AttemptClosed(closed) => {
                    uses(&mut known, closed.step, closed.usage.as_ref());
                }
                Fact::Decided(Decision::Follow(followed)) => {
                    uses(&mut known, followed.step, followed.usage.as_ref());
                }
                _ => {}
            }
        }
        members
    }

    fn end(&mut self, known: &mut HashMap<u32, Known>, step: u32, outcome: &Outcome) {
        self.ended.push((step, outcome.clone()));
        let Some(part) = known.get(&step) else { return };
        let (whole, place, used) = (part.whole, part.index, part.used.clone());
        // What a part used is used by all that it lies within.
        uses(known, whole, Some(&used));
        let ended = Event::Ended { place, outcome: outcome.clone(), used };
        self.loops.entry(whole).or_default().push(ended);
    }

    /// Tells a loop what became of what it began, in the order in which it became so.
    pub(crate) fn replay_loop(&self, number: u32, open: &mut OpenLoop) {
        for event in self.loops.get(&number).into_iter().flatten() {
            match event {
                Event::Began { place, kind, name } => open.replay_begin(*place, *kind, name),
                Event::Ended { place, outcome, used } => {
                    open.replay_end(*place, outcome.clone(), used);
                }
            }
        }
    }

    /// Tells a composite what became of its members, in the order in which it became so.
    fn replay(&self, number: u32, open: &mut OpenComposite) {
        let Some(begun) = self.begun.get(&number) else { return };
        for (place, _) in begun {
            open.course.begin(*place);
        }
        for (step, outcome) in &self.ended {
            if let Some((place, _)) = begun.iter().find(|(_, member)| member == step) {
                open.course.end(*place, outcome.clone());
            }
        }
    }
}

impl Run {
    /// The composite behind an open step.
    pub(crate) fn composite(&self, step: u32) -> Option<&OpenComposite> {
        match &self.open.get(step)?.kind {
            OpenKind::Composite(open) => Some(open),
            OpenKind::Loop(_)
            | OpenKind::Timer
            | OpenKind::Signal
            | OpenKind::State { .. }
            | OpenKind::Child { .. }
            | OpenKind::Task(_) => None,
        }
    }

    fn composite_mut(&mut self, step: u32) -> Option<&mut OpenComposite> {
        match &mut self.open.get_mut(step)?.kind {
            OpenKind::Composite(open) => Some(open),
            OpenKind::Loop(_)
            | OpenKind::Timer
            | OpenKind::Signal
            | OpenKind::State { .. }
            | OpenKind::Child { .. }
            | OpenKind::Task(_) => None,
        }
    }
}

/// A part of a whole, as far as a history was read.
struct Known {
    whole: u32,
    index: usize,
    used: Usage,
}

fn uses(known: &mut HashMap<u32, Known>, step: u32, usage: Option<&Usage>) {
    if let (Some(part), Some(usage)) = (known.get_mut(&step), usage) {
        part.used.add(usage);
    }
}

fn member_key(composite: &StepKey, place: usize) -> StepKey {
    let place = u32::try_from(place).expect("members are few");
    StepKey::new(composite.scope.branch(composite.index, place), 0)
}

/// The open composite or loop that a place belongs to: its own place, and its step.
pub(crate) fn composite_of(run: &Run, key: &StepKey) -> Option<(StepKey, u32)> {
    let (scope, index, _): (ScopePath, u32, u32) = key.scope.outer()?;
    let around = StepKey::new(scope, index);
    let number = run.chain.find(&around)?.scheduled.step;
    let is_whole = run.composite(number).is_some() || run.model_loop(number).is_some();
    is_whole.then_some((around, number))
}

/// The open members of a composite.
fn members_of(run: &Run, number: u32) -> Vec<u32> {
    if run.model_loop(number).is_some() {
        let is_part = |step: &u32| {
            run.chain.step(*step).is_some_and(|step| step.scheduled.whole() == Some(number))
        };
        return run.chain.open().filter(is_part).collect();
    }
    let (Some(open), Some(step)) = (run.composite(number), run.chain.step(number)) else {
        return Vec::new();
    };
    let key = &step.scheduled.key;
    let member = |place| Some(run.chain.find(&member_key(key, place))?.scheduled.step);
    open.course.open().filter_map(member).collect()
}
