//! Joins, spawned functions, and the ends of branches.

use std::collections::BTreeMap;

use super::{Advancing, Answer, Interrupt, Phase, ScriptFlow, Step, limit};
use crate::{
    flow::{Command, NextAction, StepOp, StepRequest},
    journal::{ScopePath, StepKey},
    lua::{
        call::{self, Refusal},
        failure,
        raw::{Coroutine, Frame, clipped, joined},
        tree::{Branch, BranchEnd, Home, Id, Join, JoinKind, Waiter},
    },
    protocol::{Failure, failure::kind},
};

/// The maximum number of spawned functions of a flow that failed or were canceled.
const LOST: usize = 10_000;

impl ScriptFlow {
    pub(super) fn join(
        &mut self,
        id: Id,
        kind: JoinKind,
        turn: &mut Advancing<'_>,
    ) -> Result<(), Interrupt> {
        let Some(branch) = self.tree.branches.get(&id) else { return Ok(()) };
        let count = call::number(&branch.co, 2)?;
        let (total, width) = match kind {
            JoinKind::All | JoinKind::Race => (count, call::number(&branch.co, 3)?),
            JoinKind::Timeout => (1, 1),
        };
        let Ok(total) = u32::try_from(total) else {
            return Err(limit(format!("{total} branches are too many")));
        };
        let width = u32::try_from(width).unwrap_or(u32::MAX).min(total);
        self.make_room(width as usize)?;
        let Some(StepKey { scope, index }) = self.tree.take_key(id) else { return Ok(()) };
        let join = self.tree.id();
        let timer = (kind == JoinKind::Timeout).then(|| StepKey::new(scope.branch(index, 1), 0));
        if let Some(key) = &timer {
            let wake_at_ms = turn.now_ms.saturating_add(count);
            let op = StepOp::Timer { wake_at_ms };
            turn.commands.push(Command::Schedule(StepRequest { key: key.clone(), op }));
            self.tree.waiting.insert(key.clone(), Waiter::Timer(join));
            self.asks(id, key);
        }
        if let Some(branch) = self.tree.branches.get_mut(&id) {
            branch.join = Some(join);
        }
        let open = BTreeMap::new();
        let made = Join { kind, parent: id, scope, index, total, due: width, born: 0, open, timer };
        self.tree.joins.insert(join, made);
        turn.ready.push_back((join, Answer::Birth));
        Ok(())
    }

    /// Makes one more branch of a join due.
    fn start_next(&mut self, id: Id, turn: &mut Advancing<'_>) {
        let Some(join) = self.tree.joins.get_mut(&id) else { return };
        if join.born == join.due {
            turn.ready.push_back((id, Answer::Birth));
        }
        join.due += 1;
    }

    /// Begins the next branch of a join and runs it; those after it come next, before anything
    /// else, so that it is all the same in how many turns they begin.
    pub(super) fn birth(&mut self, id: Id, turn: &mut Advancing<'_>) -> Step {
        let Some(join) = self.tree.joins.get_mut(&id) else { return Ok(()) };
        if join.born == join.due {
            return Ok(());
        }
        let number = join.born;
        join.born += 1;
        if join.born < join.due {
            turn.ready.push_front((id, Answer::Birth));
        }
        let (scope, parent) = (join.scope.branch(join.index, number), join.parent);
        if let Err(Interrupt::Next(breach)) = self.make_room(1) {
            return Err(breach);
        }
        let Some(parent) = self.tree.branches.get(&parent) else { return Ok(()) };
        let Ok(co) = parent.co.child(4, number + 1, self.category) else {
            return Err(self.out_of_room());
        };
        let branch = self.grow(co, scope, 0, Home::Join(id, number));
        if let Some(join) = self.tree.joins.get_mut(&id) {
            join.open.insert(number, branch);
        }
        self.step(branch, &Answer::Nothing, turn)
    }

    pub(super) fn spawn(&mut self, id: Id, turn: &mut Advancing<'_>) -> Result<(), Interrupt> {
        self.make_room(1)?;
        if self.tree.spawned.len() >= self.limits.branches as usize + LOST {
            let message = format!("more than {LOST} spawned functions failed or were canceled");
            return Err(limit(message));
        }
        let Some(branch) = self.tree.branches.get(&id) else { return Ok(()) };
        let co = branch.co.child(4, 1, self.category).map_err(Refusal::from)?;
        let Some(StepKey { scope, index }) = self.tree.take_key(id) else { return Ok(()) };
        let task = self.tree.id();
        let child = self.grow(co, scope.branch(index, 0), 0, Home::Spawned(task));
        self.tree.add_spawned(id, task, child);
        #[expect(clippy::cast_precision_loss, reason = "a flow makes fewer than 2^53 branches")]
        turn.ready.push_front((id, Answer::Number(task as f64)));
        turn.ready.push_back((child, Answer::Nothing));
        Ok(())
    }

    pub(super) fn wait_for(
        &mut self,
        id: Id,
        task: Id,
        turn: &mut Advancing<'_>,
    ) -> Result<(), Interrupt> {
        if !self.tree.has_given(task) {
            return Err(Refusal::Usage("is not of this flow".to_owned()).into());
        }
        // One that has returned is forgotten.
        let Some(spawned) = self.tree.hear(task) else {
            turn.ready.push_front((id, Answer::Nothing));
            return Ok(());
        };
        match &spawned.end {
            None if spawned.branch == Some(id) => {
                Err(Refusal::Usage("a function cannot await itself".to_owned()).into())
            }
            None => {
                spawned.waiters.push(id);
                Ok(())
            }
            Some(BranchEnd::Canceled) => {
                turn.ready.push_front((id, Answer::Failure(failure::canceled())));
                Ok(())
            }
            Some(BranchEnd::Returned | BranchEnd::Raised(_)) => {
                turn.ready.push_front((id, Answer::Nothing));
                Ok(())
            }
        }
    }

    pub(super) fn cancel_spawned(&mut self, task: Id, turn: &mut Advancing<'_>) {
        let mut waiters = Vec::new();
        if let Some(branch) = self.tree.end_spawned(task, BranchEnd::Canceled, &mut waiters) {
            waiters.extend(self.tree.cancel(branch, &mut turn.commands));
            self.recount();
        }
        bereave(waiters, turn);
    }

    pub(super) fn returned(&mut self, id: Id, turn: &mut Advancing<'_>) -> Step {
        let Some(branch) = self.tree.branches.get(&id) else { return Ok(()) };
        match branch.home {
            Home::Flow => {
                let output = branch.co.json(1, self.limits.value);
                self.wind_up(turn);
                Err(match output {
                    Ok(output) => NextAction::Complete(output),
                    Err(error) => failure::output(&error),
                })
            }
            Home::Defer => {
                let next = branch.next;
                self.end_defer(id, next, turn)
            }
            Home::Spawned(task) => {
                let raised = |text: String| BranchEnd::Raised(Some(clipped(&text)));
                let end = branch.co.text(1).map_or(BranchEnd::Returned, raised);
                self.end_spawned(id, task, end, turn);
                Ok(())
            }
            Home::Join(join, number) => {
                self.retire(id, join);
                self.child_returned(join, number, turn);
                Ok(())
            }
        }
    }

    pub(super) fn raised(&mut self, id: Id, turn: &mut Advancing<'_>) -> Step {
        let Some(branch) = self.tree.branches.get(&id) else { return Ok(()) };
        match branch.home {
            Home::Flow => {
                let frames =
                    frames_of(&branch.co, self.below.take()).map_or_else(Vec::new, |it| it.1);
                let failure = failure::traced(branch.co.raised(), &frames);
                self.wind_up(turn);
                Err(NextAction::Fail(failure))
            }
            Home::Defer => {
                let failure = branch.co.raised();
                let key = StepKey::new(branch.scope.clone(), branch.next);
                let next = branch.next + 1;
                let note = failure::log("error", format!("a deferred function failed: {failure}"));
                turn.commands.push(Command::Note { key, note });
                self.end_defer(id, next, turn)
            }
            Home::Spawned(task) => {
                let end = BranchEnd::Raised(Some(clipped(&branch.co.raised().to_string())));
                self.end_spawned(id, task, end, turn);
                Ok(())
            }
            Home::Join(join, number) => {
                self.below = frames_of(&branch.co, self.below.take());
                let Some(branch) = self.retire(id, join) else { return Ok(()) };
                self.child_raised(join, number, branch.co, turn);
                Ok(())
            }
        }
    }

    pub(super) fn child_returned(&mut self, id: Id, number: u32, turn: &mut Advancing<'_>) {
        let Some(join) = self.tree.joins.get_mut(&id) else { return };
        join.open.remove(&number);
        let done = match join.kind {
            JoinKind::All => join.born == join.total && join.open.is_empty(),
            JoinKind::Race | JoinKind::Timeout => true,
        };
        if done {
            self.end_join(id, Answer::Nothing, turn);
        } else if join.due < join.total {
            self.start_next(id, turn);
        }
    }

    pub(super) fn child_raised(
        &mut self,
        id: Id,
        number: u32,
        co: Coroutine,
        turn: &mut Advancing<'_>,
    ) {
        let Some(join) = self.tree.joins.get_mut(&id) else { return };
        join.open.remove(&number);
        match join.kind {
            JoinKind::Race if !join.open.is_empty() || join.born < join.due => {}
            JoinKind::All | JoinKind::Race | JoinKind::Timeout => {
                self.end_join(id, Answer::RaisedBy(co), turn);
            }
        }
    }

    pub(super) fn end_join(&mut self, id: Id, answer: Answer, turn: &mut Advancing<'_>) {
        let Some(join) = self.tree.joins.remove(&id) else { return };
        let parent = join.parent;
        let orphans = self.tree.dissolve(join, &mut turn.commands);
        self.recount();
        self.leave_join(parent, answer, turn);
        bereave(orphans, turn);
    }

    pub(super) fn leave_join(&mut self, parent: Id, answer: Answer, turn: &mut Advancing<'_>) {
        if let Some(branch) = self.tree.branches.get_mut(&parent) {
            branch.join = None;
            turn.ready.push_back((parent, answer));
        }
    }

    pub(super) fn end_spawned(
        &mut self,
        id: Id,
        task: Id,
        end: BranchEnd,
        turn: &mut Advancing<'_>,
    ) {
        let mut waiters = Vec::new();
        self.tree.end_spawned(task, end, &mut waiters);
        self.tree.retire(id, None);
        self.recount();
        turn.ready.extend(waiters.into_iter().map(|waiter| (waiter, Answer::Nothing)));
    }

    pub(super) fn end_defer(&mut self, id: Id, next: u32, turn: &mut Advancing<'_>) -> Step {
        let mut commands = Vec::new();
        self.tree.branches.remove(&id);
        self.cancel_all_spawned(&mut commands);
        turn.commands.append(&mut commands);
        self.recount();
        self.phase = Phase::Compensating(next);
        self.compensate(turn)
    }

    /// Ends what the flow left running, and says which of it failed unheard.
    pub(super) fn wind_up(&mut self, turn: &mut Advancing<'_>) {
        self.cancel_all_spawned(&mut turn.commands);
        let (mut unheard, mut more) = (Vec::new(), 0_u32);
        for spawned in self.tree.spawned.values().filter(|spawned| !spawned.awaited) {
            match &spawned.end {
                Some(BranchEnd::Raised(Some(text))) => {
                    unheard.push(format!("a spawned function failed: {text}"));
                }
                Some(BranchEnd::Raised(None)) => more += 1,
                Some(BranchEnd::Returned | BranchEnd::Canceled) | None => {}
            }
        }
        if more > 0 {
            unheard.push(format!("{more} more spawned functions failed"));
        }
        let flow = self.tree.branches.iter().find(|(_, branch)| branch.home == Home::Flow);
        let Some(id) = flow.map(|(id, _)| *id) else { return };
        for message in unheard {
            if let Some(key) = self.tree.take_key(id) {
                let note = failure::log("warn", message);
                turn.commands.push(Command::Note { key, note });
            }
        }
    }

    pub(super) fn cancel_all_spawned(&mut self, commands: &mut Vec<Command>) {
        let tasks: Vec<Id> = self.tree.spawned.keys().copied().collect();
        for task in tasks {
            if let Some(branch) = self.tree.end_spawned(task, BranchEnd::Canceled, &mut Vec::new())
            {
                self.tree.cancel(branch, commands);
            }
        }
    }

    pub(super) fn grow(&mut self, co: Coroutine, scope: ScopePath, next: u32, home: Home) -> Id {
        let id = self.tree.grow(co, scope, next, home);
        self.vm.branches.set(self.vm.branches.get() + 1);
        self.counted += 1;
        id
    }

    pub(super) fn retire(&mut self, id: Id, join: Id) -> Option<Branch> {
        let heir = self.tree.joins.get(&join).map(|join| join.parent);
        let branch = self.tree.retire(id, heir);
        self.recount();
        branch
    }

    /// Brings the VM's count of branches up to date after some have gone.
    pub(super) fn recount(&mut self) {
        let live = self.tree.branches.len();
        self.vm.branches.set(self.vm.branches.get() + live - self.counted);
        self.counted = live;
    }

    pub(super) fn make_room(&self, more: usize) -> Result<(), Interrupt> {
        let most = self.limits.branches as usize;
        if self.tree.branches.len().saturating_add(more) > most {
            return Err(limit(format!("more than {most} branches are open")));
        }
        Ok(())
    }

    pub(super) fn time_out(&mut self, id: Id, answer: Answer, turn: &mut Advancing<'_>) {
        let Some(mut join) = self.tree.joins.remove(&id) else { return };
        join.timer = None;
        let parent = join.parent;
        let orphans = self.tree.dissolve(join, &mut turn.commands);
        self.recount();
        let answer = match answer {
            Answer::Failure(failure) => Answer::Failure(failure),
            _ => Answer::Failure(
                Failure::new(kind::TIMEOUT, "ctx:timeout ran out of time").retryable(),
            ),
        };
        self.leave_join(parent, answer, turn);
        bereave(orphans, turn);
    }
}

/// The calls in progress where a branch raised a text, with those of the branch below that it comes
/// from. An error that is a table says itself where it comes from.
fn frames_of(co: &Coroutine, below: Option<(String, Vec<Frame>)>) -> Option<(String, Vec<Frame>)> {
    let text = co.text(-1)?;
    let own = co.traceback();
    let frames = match below {
        Some((same, inner)) if same == text => joined(inner, own),
        Some(_) | None => own,
    };
    Some((text, frames))
}

/// Wakes the branches that awaited a canceled function.
fn bereave(waiters: Vec<Id>, turn: &mut Advancing<'_>) {
    for waiter in waiters {
        turn.ready.push_back((waiter, Answer::Failure(failure::canceled())));
    }
}
