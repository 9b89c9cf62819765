//! The attempts of a step, with the prompt that the last one got.

use std::sync::Arc;

use crate::{
    blueprint::Slots,
    engine::{
        AttemptsView, Caller, Engine, EngineError, rfc3339,
        shared::places::{PlaceBook, Places, entries_at},
        view::{
            attempts::{Attempts, SHOWN},
            shown::is_task,
        },
    },
    journal::{Entry, Fact},
    operator::Prompt,
    protocol::{Json, RunId, StepKind, TaskId},
    store::{EvidenceRow, Header, Store, StoreError, TaskRow},
    token::{Need, Verb},
};

impl Engine {
    /// Returns the attempts of a step of a run's current history. The prompts need the verb
    /// `task.read` as well.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or there is no such step.
    pub async fn attempts(
        &self,
        caller: &Caller,
        run: RunId,
        seq: u32,
    ) -> Result<AttemptsView, EngineError> {
        caller.may(Verb::RunRead, run)?;
        let header = self.header(run).await?;
        let book = Arc::clone(&self.inner.places);
        let rows = self.read(move |store| AttemptRows::read(store, &book, run.num(), seq)).await?;
        self.attempts_of(caller, &header, seq, &rows).await
    }

    /// Returns the attempts of a step from its rows.
    pub(super) async fn attempts_of(
        &self,
        caller: &Caller,
        header: &Header,
        seq: u32,
        rows: &AttemptRows,
    ) -> Result<AttemptsView, EngineError> {
        let (run, row) = (header.id(), rows.task.as_ref());
        let missing = || EngineError::NotFound { what: "step", id: format!("{run}/{seq}") };
        let mut found = Attempts::of(run, seq, &rows.entries).ok_or_else(missing)?;
        found.refused(&rows.evidence);
        let lease_ms = self.lease_of(header, &found).await;
        self.mark_heartbeat(&mut found, row, lease_ms);
        if is_task(found.step.kind) {
            let at = rows.entries.iter().find_map(|entry| scheduled_at(entry, seq));
            let task = TaskId::new(run.num(), seq, at.unwrap_or_default());
            if caller.grant.check(Verb::TaskRead, &[Need::Task(task)]).is_ok() {
                self.prompts(&mut found, row, header, rows.start).await?;
            }
        }
        Ok(found.view)
    }

    /// Returns the lease of a worker of a step: its agent's own, or the host's.
    async fn lease_of(&self, header: &Header, found: &Attempts) -> u64 {
        let program = self.blueprints().program_by(header.hash.clone()).await.ok();
        let own = program.and_then(|it| it.blueprint().agent(&found.step.name)?.agent().lease);
        own.map_or(self.shared().settings.lease_ms, |lease| lease.ms)
    }

    /// A lease is renewed by each heartbeat, and so shows when the last one was.
    fn mark_heartbeat(&self, found: &mut Attempts, row: Option<&TaskRow>, given_ms: u64) {
        let Some(row) = row else { return };
        let (Some(lease_ms), Some(open)) = (row.lease_ms, found.view.items.last_mut()) else {
            return;
        };
        if open.attempt == row.attempt && open.ended_at.is_none() {
            let shared = self.shared();
            let beat = lease_ms.saturating_sub(given_ms);
            open.last_heartbeat_at = Some(rfc3339(shared.clock.wall_of(beat)));
        }
    }

    /// Adds the prompts: those of the open task, or those that the recorded input renders to.
    async fn prompts(
        &self,
        found: &mut Attempts,
        row: Option<&TaskRow>,
        header: &Header,
        start: u32,
    ) -> Result<(), EngineError> {
        let stored = row.and_then(|row| serde_json::from_str::<Prompt>(&row.prompt).ok());
        if let Some(prompt) = stored.filter(|it| !it.prompt.is_empty() || it.system.is_some()) {
            found.view.system = prompt.system;
            found.view.prompt = Some(prompt.prompt);
            return Ok(());
        }
        let Some(attempt) = found.view.items.last().map(|it| it.attempt) else {
            return Ok(());
        };
        if found.step.kind != StepKind::Task {
            return Ok(());
        }
        let Ok(program) = self.blueprints().program_by(header.hash.clone()).await else {
            return Ok(());
        };
        let Some(agent) = program.blueprint().agent(&found.step.name) else {
            return Ok(());
        };
        let num = header.num;
        let first = self.read(move |store| entries_at(store, num, &[start])).await?;
        let input = first.into_iter().find_map(|entry| match entry.fact {
            Fact::RunStarted(started) => Some(started.input),
            _ => None,
        });
        let slots = Slots {
            input: &found.step.request,
            run_input: &input.unwrap_or_else(Json::null),
            run_id: &RunId::new(header.num, header.created_ms).to_string(),
            attempt,
        };
        // The template may not fit the input: the step then failed with it.
        if let Ok(rendered) = agent.render(program.blueprint(), &slots) {
            found.view.system = rendered.system;
            found.view.prompt = Some(rendered.prompt);
        }
        Ok(())
    }
}

/// The rows that the attempts of a step are read from.
pub(super) struct AttemptRows {
    /// The entries about the step.
    pub(super) entries: Vec<Entry>,
    /// The first entry of the history.
    start: u32,
    evidence: Vec<EvidenceRow>,
    task: Option<TaskRow>,
}

impl AttemptRows {
    fn read(store: &dyn Store, book: &PlaceBook, run: u64, seq: u32) -> Result<Self, StoreError> {
        let own = |places: &Places| (places.of_steps(&[seq].into()), places.start());
        let (own, start) = book.look(store, run, own)?;
        Self::of(store, run, seq, (entries_at(store, run, &own)?, start))
    }

    /// Reads the rows that are no entries.
    pub(super) fn of(
        store: &dyn Store,
        run: u64,
        seq: u32,
        (entries, start): (Vec<Entry>, u32),
    ) -> Result<Self, StoreError> {
        // Those of other steps, and those that are not shown, can be hundreds of megabytes.
        let evidence = store.evidence(run, Some(seq), SHOWN)?;
        let task = store.task(run, seq)?;
        Ok(Self { entries, start, evidence, task })
    }
}

fn scheduled_at(entry: &Entry, seq: u32) -> Option<u64> {
    match &entry.fact {
        Fact::StepScheduled(it) | Fact::StepRecorded(it, _) if it.step == seq => Some(entry.at_ms),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Memory, Write, commit};

    #[tokio::test]
    async fn of_the_refused_reports_of_a_run_those_of_the_step_that_are_shown_are_read() {
        let store = Memory::new();
        let refused = |step, attempt| {
            let (code, body) = ("MS-E0001".to_owned(), "{".to_owned());
            Write::PutEvidence(EvidenceRow { run: 1, step, attempt, at_ms: 1, code, body })
        };
        let last = u32::try_from(SHOWN).unwrap() + 1;
        let writes = (0..=last).flat_map(|attempt| [refused(1, attempt), refused(2, attempt)]);
        commit(&store, Vec::new(), None, writes.collect()).await.unwrap();
        let evidence = AttemptRows::of(&store, 1, 2, (Vec::new(), 0)).unwrap().evidence;
        assert!(evidence.iter().all(|row| row.step == 2));
        assert_eq!((evidence.len(), evidence[0].attempt), (SHOWN, 2));
        assert_eq!(evidence[SHOWN - 1].attempt, last);
    }
}
