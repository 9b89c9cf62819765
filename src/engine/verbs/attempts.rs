//! The attempts of a step, with the prompt that the last one got.

use crate::{
    blueprint::Slots,
    engine::{
        AttemptsView, Caller, Engine, EngineError, rfc3339,
        view::{attempts::Attempts, shown::is_task},
    },
    journal::{Entry, Fact},
    operator::Prompt,
    protocol::{Json, RunId, StepKind, TaskId},
    store::{Header, TaskRow},
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
        let num = run.num();
        let (entries, evidence, row) = self
            .read(move |store| {
                Ok((store.entries(num, 0)?, store.evidence(num)?, store.task(num, seq)?))
            })
            .await?;
        let missing = || EngineError::NotFound { what: "step", id: format!("{run}/{seq}") };
        let mut found = Attempts::of(run, seq, &entries).ok_or_else(missing)?;
        found.refused(&evidence);
        let lease_ms = self.lease_of(&header, &found).await;
        self.mark_heartbeat(&mut found, row.as_ref(), lease_ms);
        if is_task(found.step.kind) {
            let at = entries.iter().find_map(|entry| scheduled_at(entry, seq));
            let task = TaskId::new(num, seq, at.unwrap_or_default());
            if caller.grant.check(Verb::TaskRead, &[Need::Task(task)]).is_ok() {
                self.prompts(&mut found, row.as_ref(), &header, &entries).await;
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
        entries: &[Entry],
    ) {
        let stored = row.and_then(|row| serde_json::from_str::<Prompt>(&row.prompt).ok());
        if let Some(prompt) = stored.filter(|it| !it.prompt.is_empty() || it.system.is_some()) {
            found.view.system = prompt.system;
            found.view.prompt = Some(prompt.prompt);
            return;
        }
        let Some(attempt) = found.view.items.last().map(|it| it.attempt) else { return };
        if found.step.kind != StepKind::Task {
            return;
        }
        let Ok(program) = self.blueprints().program_by(header.hash.clone()).await else { return };
        let Some(agent) = program.blueprint().agent(&found.step.name) else { return };
        let started = entries.iter().find_map(|entry| match &entry.fact {
            Fact::RunStarted(started) => Some(&started.input),
            _ => None,
        });
        let none = Json::null();
        let slots = Slots {
            input: &found.step.request,
            run_input: started.unwrap_or(&none),
            run_id: &RunId::new(header.num, header.created_ms).to_string(),
            attempt,
        };
        // The template may not fit the input: the step then failed with it.
        if let Ok(rendered) = agent.render(program.blueprint(), &slots) {
            found.view.system = rendered.system;
            found.view.prompt = Some(rendered.prompt);
        }
    }
}

fn scheduled_at(entry: &Entry, seq: u32) -> Option<u64> {
    match &entry.fact {
        Fact::StepScheduled(it) | Fact::StepRecorded(it, _) if it.step == seq => Some(entry.at_ms),
        _ => None,
    }
}
