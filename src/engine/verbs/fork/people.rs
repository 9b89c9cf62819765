//! Edits of a fork that would stand for the word of people, or change what they are asked.
//!
//! A fork is a run of whoever makes it, and nobody answers what they ask themselves. So only those who
//! could answer the people's tasks of a run of their own edit such a step: [`may_answer_in_copy`].
//! An answer is about what its person saw: whoever edits the input of the run, or the output of a step,
//! edits every answer that came later.
//!
//! | the edited step | asks people |
//! |---|---|
//! | a task, by the flow's own request | if its operator does, or one within that |
//! | a call of a run | maybe: that run may have asked them |
//! | one that the flow does not request any more | maybe |

use std::{collections::HashMap, sync::Arc};

use crate::{
    engine::{
        Caller, EngineError,
        turn::lineage::may_answer_in_copy,
        verbs::{
            copy::fold,
            engine::HistoryVerbs,
            fork::{
                plan::retold,
                request::{Fork, Prepared},
            },
        },
    },
    flow::StepOp,
    journal::{Entry, Fact, Outcome, StepKey},
    protocol::{Code, RunId},
};

impl HistoryVerbs<'_> {
    /// Checks the edits of a fork. With `is_tried`, nothing is stored, and nothing else is replayed.
    ///
    /// # Errors
    /// Fails when the caller may not speak for the people whom an edited step asks.
    pub(super) async fn check_people(
        self,
        caller: &Caller,
        run: RunId,
        fork: &Fork,
        prepared: &Prepared,
        is_tried: bool,
    ) -> Result<(), EngineError> {
        let mut edited: Vec<u32> = fork.outputs.keys().copied().collect();
        edited.extend(fork.step_input.as_ref().map(|_| fork.from_step));
        let first = match fork.input_patch {
            Some(_) => 0,
            None => edited.iter().copied().min().unwrap_or(u32::MAX),
        };
        let later = answered(&prepared.kept).filter(|step| *step > first && !edited.contains(step));
        let later: Vec<u32> = later.collect();
        if edited.is_empty() && later.is_empty() {
            return Ok(());
        }
        let chain = fold(&prepared.entries).map_err(EngineError::BadRequest)?;
        if may_answer_in_copy(&self.engine.shared().sessions, &chain, caller) {
            return Ok(());
        }
        let heavy = &self.engine.inner.heavy;
        let _turn = match is_tried {
            // The plan has its turn.
            true => None,
            false => Some(heavy.acquire().await.map_err(|_| EngineError::Stopping)?),
        };
        let program = Arc::clone(&prepared.program);
        let asked = retold(self.engine, run, program, prepared.kept.clone(), |told, kept| {
            told.ok().map(|told| of_steps(told.ops, kept))
        });
        let asked = match asked.await? {
            Some(asked) => asked,
            // The plan says where the flow differs.
            None if is_tried => return Ok(()),
            None => {
                let step = edited.first().or(later.first()).copied().unwrap_or_default();
                return Err(refused(run, step, None));
            }
        };
        let asks = |step: &u32| {
            let op = asked.get(step);
            op.is_none_or(|op| self.may_ask_people(prepared, op))
        };
        if let Some(step) = edited.iter().find(|it| asks(it)) {
            return Err(refused(run, *step, asked.get(step)));
        }
        match later.iter().find(|it| asks(it)) {
            Some(step) => Err(outdated(run, *step)),
            None => Ok(()),
        }
    }

    fn may_ask_people(self, prepared: &Prepared, op: &StepOp) -> bool {
        let StepOp::Task(task) = op else { return true };
        let agent = prepared.program.blueprint().agent(&task.agent);
        let operator = task.opts.operator.as_deref().or_else(|| Some(agent?.operator()));
        operator.is_none_or(|name| self.engine.shared().registry.asks_people(name))
    }
}

/// Returns the steps that have a result.
fn answered(kept: &[Entry]) -> impl Iterator<Item = u32> {
    kept.iter().filter_map(|entry| match &entry.fact {
        Fact::StepEnded { step, outcome: Outcome::Completed(_), .. } => Some(*step),
        _ => None,
    })
}

/// Returns the requests of the flow by the number of their step.
fn of_steps(mut ops: HashMap<StepKey, StepOp>, kept: &[Entry]) -> HashMap<u32, StepOp> {
    let steps = kept.iter().filter_map(|entry| match &entry.fact {
        Fact::StepScheduled(step) | Fact::StepRecorded(step, _) if step.whole().is_none() => {
            Some((step.step, ops.remove(&step.key)?))
        }
        _ => None,
    });
    steps.collect()
}

fn outdated(run: RunId, step: u32) -> EngineError {
    let message = format!(
        "fork run {run}: step {step} may be the answer of people, and what they saw is edited; fork \
         from step {step} or from before it to have them asked again, or have a person with an admin's \
         token make this fork"
    );
    EngineError::Conflict { code: Code::SelfApproval, message }
}

fn refused(run: RunId, step: u32, op: Option<&StepOp>) -> EngineError {
    let why = match op {
        Some(StepOp::Task(_)) => "asks people",
        Some(_) => "is a run that may have asked people",
        None => "may ask people, and the flow of the fork does not request it as the run did",
    };
    let message = format!(
        "fork run {run}: step {step} {why}, and nobody answers for them in a run of their own; leave \
         it as it is, fork from it or from before it to have it done again, or have a person with an \
         admin's token make this fork"
    );
    EngineError::Conflict { code: Code::SelfApproval, message }
}
