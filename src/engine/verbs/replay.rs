//! Replays a run's history outside of its shard: nothing is written, nothing is dispatched.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::engine::{
    Caller, Divergence, EngineError, Program,
    turn::{
        replay::facts_of,
        retell::{ReplayStop, Retold, retell},
    },
    verbs::engine::HistoryVerbs,
};
use crate::{
    flow::{Command, NextAction, RunLimits},
    journal::{Decision, Entry, Fact, Outcome, RunStarted},
    lua::{self, Vms, Watchdog},
    protocol::{Failure, Json, RunId, failure::kind},
    token::Verb,
};

/// The result of a replay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReplayView {
    /// The run.
    #[schema(value_type = String)]
    pub run: RunId,
    /// The blueprint that was replayed: `name@hash`.
    pub blueprint: String,
    /// Entries of the run's histories.
    pub entries: u32,
    /// The first difference; absent if there is none.
    pub divergence: Option<Divergence>,
}

impl HistoryVerbs<'_> {
    /// Replays the histories of a run, against its own source or another one, which is not stored.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, there is no such run, or the other source has
    /// errors.
    pub async fn replay(
        self,
        caller: &Caller,
        run: RunId,
        against: Option<Program>,
    ) -> Result<ReplayView, EngineError> {
        caller.may(Verb::RunReplay, run)?;
        let header = self.engine.header(run).await?;
        let program = match against {
            None => self.engine.blueprints().program_by(header.hash).await?,
            Some(Program::Named(name)) => {
                let program = self.engine.program_to_read(&Program::Named(name)).await?;
                self.engine.blueprints().reach(caller, Verb::RunReplay, &program).await?;
                program
            }
            // Nothing is stored and nothing is executed: permission to replay the run is enough to
            // try a source.
            Some(Program::Bundle(bundle)) => self.engine.blueprints().compiled(bundle).await?.0,
        };
        let _turn = self.engine.inner.heavy.acquire().await.map_err(|_| EngineError::Stopping)?;
        let entries = self.engine.read(move |store| store.all_entries(run.num(), 0)).await?;
        let past = Past {
            run,
            blueprint: program.blueprint().version(),
            program,
            limits: self.engine.shared().settings.limits.clone(),
        };
        let (lua, watchdog) =
            (self.engine.shared().programs.limits(), Arc::clone(&self.engine.inner.watchdog));
        let replay = self
            .engine
            .shared()
            .tasks
            .spawn_blocking(move || past.replay(&entries, lua, &watchdog));
        replay.await.map_err(|_| EngineError::Stopping)
    }
}

/// A program that is told a history.
pub(crate) struct Past {
    /// The run's id, as the flow reads it.
    pub(crate) run: RunId,
    /// The blueprint: `name@hash`.
    pub(crate) blueprint: String,
    pub(crate) program: Arc<lua::Program>,
    pub(crate) limits: RunLimits,
}

impl Past {
    fn replay(&self, entries: &[Entry], lua: lua::Limits, watchdog: &Watchdog) -> ReplayView {
        let mut vms = Vms::new(lua, watchdog);
        let begins = |entry: &Entry| matches!(entry.fact, Fact::RunStarted(_));
        let mut histories = entries.chunk_by(|_, next| !begins(next));
        let divergence = histories.find_map(|history| self.history(&mut vms, history).err());
        ReplayView {
            run: self.run,
            blueprint: self.blueprint.clone(),
            entries: u32::try_from(entries.len()).unwrap_or(u32::MAX),
            divergence: divergence.map(|it| *it),
        }
    }

    fn history(&self, vms: &mut Vms, entries: &[Entry]) -> Result<(), Box<Divergence>> {
        let Some(Fact::RunStarted(started)) = entries.first().map(|entry| &entry.fact) else {
            return Ok(());
        };
        let told = self.told_from(vms, started, entries).map_err(|stop| match stop {
            ReplayStop::Diverged(divergence) => divergence,
            ReplayStop::Broken(why) => Divergence::of(format!("the VM has no room: {why}")),
        })?;
        let ended = entries.iter().find_map(|entry| match &entry.fact {
            Fact::RunEnded(outcome) => Some(outcome),
            _ => None,
        });
        // With compensations, the result of the flow itself is not in the history.
        let compensated =
            |entry: &Entry| matches!(entry.fact, Fact::Decided(Decision::Compensate { .. }));
        match ended {
            Some(ended) if !entries.iter().any(compensated) => self.compare_end(ended, told),
            Some(_) | None => Ok(()),
        }
    }

    /// Feeds a fresh flow one history.
    pub(crate) fn told(&self, vms: &mut Vms, entries: &[Entry]) -> Result<Retold, ReplayStop> {
        match entries.first().map(|entry| &entry.fact) {
            Some(Fact::RunStarted(started)) => self.told_from(vms, started, entries),
            _ => Err(ReplayStop::Diverged(Divergence::of("the history has no beginning"))),
        }
    }

    fn told_from(
        &self,
        vms: &mut Vms,
        started: &RunStarted,
        entries: &[Entry],
    ) -> Result<Retold, ReplayStop> {
        match self.tell(vms, started, entries) {
            // The shared VM was out of memory; the second try uses a VM of its own.
            Err(ReplayStop::Broken(_)) => self.tell(vms, started, entries),
            told => told,
        }
    }

    fn tell(
        &self,
        vms: &mut Vms,
        started: &RunStarted,
        entries: &[Entry],
    ) -> Result<Retold, ReplayStop> {
        let facts = facts_of(self.run, self.blueprint.clone(), started);
        let flow = vms
            .start(self.program.source(), facts, self.limits.clone())
            .map_err(|failure| ReplayStop::Diverged(Divergence::of(failure.to_string())))?;
        retell(flow, entries)?.complete()
    }

    /// Compares the end of the flow with the end of its run. An end that the engine made (a cancel,
    /// a limit) is not the flow's.
    fn compare_end(&self, ended: &Outcome, told: Retold) -> Result<(), Box<Divergence>> {
        let beyond = told.fresh.iter().find_map(|command| match command {
            Command::Schedule(request) => Some(Divergence::beyond(&request.key, &request.op)),
            Command::Note { .. } | Command::CancelScope(_) => None,
        });
        let now = match told.next {
            NextAction::Complete(output) => Some(self.accept(output)),
            NextAction::Fail(failure) => Some(Err(failure)),
            NextAction::Wait
            | NextAction::More
            | NextAction::ContinueAs(_)
            | NextAction::Limit(_)
            | NextAction::Broken(_) => None,
        };
        let differs = |was: String, is: String| {
            Err(Divergence::of(format!("the run {was} at its end, and {is} now")))
        };
        let completed = |output: &Json| format!("completed with {output}");
        match (ended, now) {
            (Outcome::Completed(_), _) if let Some(beyond) = beyond => Err(beyond),
            (Outcome::Completed(was), Some(Ok(is))) if was.to_value() == is.to_value() => Ok(()),
            (Outcome::Completed(was), Some(Ok(is))) => differs(completed(was), completed(&is)),
            (Outcome::Completed(was), Some(Err(is))) => {
                differs(completed(was), format!("fails with {is}"))
            }
            (Outcome::Completed(was), None) => differs(completed(was), "does not end".to_owned()),
            (Outcome::Failed(was), Some(Ok(is))) => {
                differs(format!("failed with {was}"), completed(&is))
            }
            (Outcome::Failed(was), Some(Err(is))) if was.kind != is.kind => {
                differs(format!("failed with {was}"), format!("fails with {is}"))
            }
            (Outcome::Failed(_), Some(Err(_)) | None) | (Outcome::Canceled(_), _) => Ok(()),
        }
    }

    fn accept(&self, output: Json) -> Result<Json, Failure> {
        let schema = self.program.blueprint().output();
        if schema.is_any() {
            return Ok(output);
        }
        schema
            .accept(output.to_value())
            .map(Json::from)
            .map_err(|_| Failure::new(kind::INVALID_RESULT, "the output does not match its schema"))
    }
}
