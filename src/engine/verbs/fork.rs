//! Creates a new run from the beginning of another one's history, or says what it would be.
//!
//! | of the history | the copy has |
//! |---|---|
//! | steps before the given one | all of them, with their ends, including later ends |
//! | that step and everything after it | nothing: the flow requests it again |
//! | that step, if its input is edited | the step with the edited input, without a result |
//! | a step whose output is edited | the step, completed with the edited output |
//! | signals and notes | those before that step |
//! | pauses, cancels, the end | none |
//! | state and its links | as the kept steps left it |
//! | files | those of the kept steps |

mod cut;
mod edits;
mod people;
mod plan;
mod request;
mod state;

pub use plan::{ForkAsk, ForkFate, ForkPlan, ForkStep};
pub use request::Fork;

use self::{
    request::Prepared,
    state::{State, state_at},
};
use crate::engine::{
    Caller, EngineError, IdempotencyKey, Made, Program,
    shared::programs::{Programs, accept_input},
    turn::passage::Passage,
    verbs::begin::Basis,
    verbs::copy::Copy,
    verbs::engine::HistoryVerbs,
};
use crate::{
    journal::{Decision, Entry, Fact, RunStarted},
    lua,
    protocol::{Json, RunId},
    store::{ArtifactRow, Write, lay_over},
    token::Verb,
};

impl HistoryVerbs<'_> {
    /// Copies a run's history up to a step into a new run, which continues from there. Nothing is
    /// compensated; the original is not affected. A copy whose source or input requests other steps
    /// than the history has is paused and reports the difference.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, there is no such run or step, the source has errors,
    /// or an input or output does not match its schema.
    pub async fn fork(
        self,
        caller: &Caller,
        run: RunId,
        fork: Fork,
        key: Option<IdempotencyKey>,
    ) -> Result<Made, EngineError> {
        caller.may(Verb::RunFork, run)?;
        if let Some(made) = self.engine.repeated(caller, key.as_ref()).await? {
            let id = || EngineError::NotFound { what: "run", id: made.clone() };
            return self.engine.seen(caller, made.parse().map_err(|_| id())?).await;
        }
        self.engine.check_room()?;
        let (num, scope) = (run.num(), format!("run:{run}"));
        // The state is read before the history: what the run writes in between would otherwise look
        // like the work of others.
        let state = self
            .engine
            .read(move |store| Ok(State::of(store.state(&scope)?, store.links(&scope)?)))
            .await?;
        let Prepared { program, entries, mut kept } =
            self.prepared(caller, run, &fork, true).await?;
        let files = self.engine.read(move |store| store.artifacts(num)).await?;
        let shared = self.engine.shared();
        let now_ms = shared.clock.now_ms();
        let at_ms = kept.last().map_or(now_ms, |last| last.at_ms.max(now_ms));
        let id = RunId::new(shared.store.next_run(), now_ms);
        let passage = Passage {
            stacks: shared.stacks.of(&program),
            run: Some(id),
            ..self.engine.stored_state().passage(&caller.subject)
        };
        let scope = format!("run:{id}");
        let state = state_at(&entries, &kept, state, &|op| passage.pass(&scope, op));
        let state = state.map_err(EngineError::Guarded)?;
        let mut writes = state.writes(&scope, at_ms)?;
        let made = files.into_iter().filter(|file| file.published && file.step < fork.from_step);
        writes.extend(made.map(|file| Write::PutArtifact(ArtifactRow { run: id.num(), ..file })));
        let copied = Decision::Copied {
            by: caller.subject.clone(),
            from: run.to_string(),
            step: Some(fork.from_step),
        };
        kept.push(Entry::new(0, at_ms, Fact::Decided(copied)));
        if matches!(fork.program, Some(Program::Bundle(_))) {
            // In the same commit as the run.
            writes.push(Programs::write_of(&program, None, now_ms));
        }
        // Until the commit, nobody deletes what it is made of.
        let stored = shared.programs.starts.read().await;
        let basis = Basis::of(self.engine, Some(run));
        Box::pin(basis.check(self.engine, fork.program.as_ref(), &program)).await?;
        let made = self.put_copy(caller, Copy { id, entries: kept, writes, key }).await?;
        drop(stored);
        self.engine.seen(caller, made).await
    }

    /// Returns what a fork would keep and do again, and what its flow would request first. Nothing
    /// is stored and nothing is executed.
    ///
    /// # Errors
    /// Fails as the fork would.
    pub async fn plan_fork(
        self,
        caller: &Caller,
        run: RunId,
        fork: Fork,
    ) -> Result<ForkPlan, EngineError> {
        caller.may(Verb::RunFork, run)?;
        // The plan has the input and the names of the steps.
        caller.may(Verb::RunRead, run)?;
        let _turn = self.engine.inner.heavy.acquire().await.map_err(|_| EngineError::Stopping)?;
        let prepared = self.prepared(caller, run, &fork, false).await?;
        plan::plan(self.engine, run, fork, prepared).await
    }

    /// Checks a fork, and cuts its history. A source that is only tried is not stored.
    async fn prepared(
        self,
        caller: &Caller,
        run: RunId,
        fork: &Fork,
        stores: bool,
    ) -> Result<Prepared, EngineError> {
        if matches!(fork.program, Some(Program::Bundle(_))) {
            caller.grant.check(Verb::RunSource, &[])?;
        }
        let header = self.engine.header(run).await?;
        let program = match &fork.program {
            Some(Program::Bundle(bundle)) if !stores => {
                self.engine.blueprints().compiled(bundle.clone()).await?.0
            }
            Some(program) => self.engine.program_of(program).await?,
            None => self.engine.blueprints().program_by(header.hash).await?,
        };
        if !matches!(fork.program, Some(Program::Bundle(_))) {
            self.engine.blueprints().reach(caller, Verb::RunFork, &program).await?;
        }
        let num = run.num();
        let entries = self.engine.read(move |store| store.entries(num, 0)).await?;
        let kept = cut::cut(&entries, fork.from_step, fork.step_input.is_some());
        let mut kept = kept.map_err(|refusal| refusal.of(run, fork.from_step))?;
        edits::edit(run, &mut kept, fork, &program)?;
        if let Some(Fact::RunStarted(started)) = kept.first_mut().map(|first| &mut first.fact) {
            if fork.program.is_some() || fork.input_patch.is_some() {
                started.input = patched(&started.input, fork.input_patch.as_ref(), &program)?;
            }
            start_anew(started, caller, &program);
        }
        let prepared = Prepared { program, entries, kept };
        self.check_people(caller, run, fork, &prepared, !stores).await?;
        Ok(prepared)
    }
}

/// Returns the input of a fork, if the program accepts it.
fn patched(
    input: &Json,
    patch: Option<&Json>,
    program: &lua::Program,
) -> Result<Json, EngineError> {
    let mut input = input.to_value();
    if let Some(patch) = patch {
        lay_over(&mut input, &patch.to_value());
    }
    accept_input(program, &input.into())
}

/// Makes the start of a history that of a fork: a run of the caller, with this program. It has the
/// original's directory if the caller may choose one, and no session takes its tasks.
fn start_anew(started: &mut RunStarted, caller: &Caller, program: &lua::Program) {
    program.blueprint().name().clone_into(&mut started.blueprint);
    program.blueprint().hash().clone_into(&mut started.hash);
    started.principal.clone_from(&caller.subject);
    started.grant = caller.grant.json();
    (started.parent, started.depth, started.generation) = (None, 0, 0);
    started.workdir = started.workdir.take().filter(|_| caller.grant.has(Verb::RunWorkdir));
    started.delegate = None;
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_patch_is_laid_over_member_by_member() {
        for (value, patch, merged) in [
            (
                json!({"a": 1, "b": {"c": 2}}),
                json!({"b": {"d": 3}}),
                json!({"a": 1, "b": {"c": 2, "d": 3}}),
            ),
            (json!({"a": 1, "b": 2}), json!({"a": null}), json!({"b": 2})),
            (json!({"a": [1, 2]}), json!({"a": [3]}), json!({"a": [3]})),
            (json!("text"), json!({"a": 1}), json!({"a": 1})),
            (json!({"a": 1}), json!(7), json!(7)),
        ] {
            let mut value = value;
            lay_over(&mut value, &patch);
            assert_eq!(value, merged);
        }
    }
}
