//! Opens what an agent's `context` names to the holder of its attempt: earlier steps and files of
//! the run, and nothing else.

use std::collections::BTreeMap;

use crate::{
    blueprint::ContextNames,
    engine::{
        ContextArtifact, ContextStep, ContextView, EngineError, Holder, TaskVerbs,
        shared::{message::WorkerAsk, places::about},
        verbs::runs::one_step,
    },
    journal::{Entry, Fact, Step},
    protocol::{ArtifactId, Json, RunId, StepState},
    store::{ArtifactRow, Store, StoreError, read_in_pages},
    token::Verb,
};

/// The maximum number of steps, and of files, in one view; the last ones count.
const MOST: usize = 1_000;
/// The maximum size of all outputs in one view, in bytes.
const OUTPUTS: usize = 16 << 20;
/// The maximum size of all files in one archive, in bytes.
const FILES: u64 = 64 << 20;

/// The names that the open attempt of a holder may open.
pub(crate) type OpenNames = Box<ContextNames>;

impl TaskVerbs<'_> {
    /// Returns the earlier steps with their outputs, and the files, that the context of a holder's
    /// agent names.
    ///
    /// # Errors
    /// Fails when the bearer is not the one of the open attempt, or the outputs are too large
    /// together: each can be opened by itself.
    pub async fn worker_context(&self, holder: &Holder) -> Result<ContextView, EngineError> {
        let names = self.context_of(holder, Verb::WorkerPrompt).await?;
        let steps = self.context_steps(holder, &names).await?;
        let skip = steps.len().saturating_sub(MOST);
        let steps: Vec<ContextStep> = steps.iter().skip(skip).map(shown).collect();
        let size = steps.iter().map(|step| step.output.len()).sum();
        if size > OUTPUTS {
            return Err(EngineError::TooLarge { what: "a context", size, limit: OUTPUTS });
        }
        let artifacts = match holder.check(Verb::ArtifactRead) {
            Ok(()) => self.context_artifacts(holder, &names).await?,
            Err(_) => Vec::new(),
        };
        let skip = artifacts.len().saturating_sub(MOST);
        Ok(ContextView { steps, artifacts: artifacts.iter().skip(skip).map(listed).collect() })
    }

    /// Returns the output of one of these steps.
    ///
    /// # Errors
    /// Fails when the bearer is not the one of the open attempt, or it is none of them.
    pub async fn worker_context_step(
        &self,
        holder: &Holder,
        step: u32,
    ) -> Result<ContextStep, EngineError> {
        let names = self.context_of(holder, Verb::WorkerPrompt).await?;
        let steps = self.context_steps(holder, &names).await?;
        let found = steps.iter().find(|it| it.scheduled.step == step).map(shown);
        found.ok_or_else(|| EngineError::NotFound { what: "step", id: step.to_string() })
    }

    /// Returns one of these files with its bytes.
    ///
    /// # Errors
    /// Fails when the bearer is not the one of the open attempt, or it is none of them.
    pub async fn worker_context_artifact(
        &self,
        holder: &Holder,
        id: ArtifactId,
    ) -> Result<(ContextArtifact, Vec<u8>), EngineError> {
        let names = self.context_of(holder, Verb::ArtifactRead).await?;
        let missing = || EngineError::NotFound { what: "artifact", id: id.to_string() };
        let rows = self.context_artifacts(holder, &names).await?;
        let row = rows.iter().find(|row| artifact_id(row) == id).ok_or_else(missing)?;
        let hash = row.hash.clone();
        let data = self.engine.read(move |store| store.blob(&hash)).await?.ok_or_else(missing)?;
        Ok((listed(row), data))
    }

    /// Returns the bytes of every file of a view, in its order.
    ///
    /// # Errors
    /// Fails when they are too large together, or one cannot be read.
    pub async fn worker_context_files(
        &self,
        view: &ContextView,
    ) -> Result<Vec<Vec<u8>>, EngineError> {
        let size: u64 = view.artifacts.iter().map(|it| it.size).sum();
        if size > FILES {
            let (size, limit) = (usize::try_from(size).unwrap_or(usize::MAX), 64 << 20);
            return Err(EngineError::TooLarge { what: "a context", size, limit });
        }
        let mut files = Vec::with_capacity(view.artifacts.len());
        for artifact in &view.artifacts {
            let hash = artifact.hash.clone();
            let data = self.engine.read(move |store| store.blob(&hash)).await?;
            let id = artifact.id.to_string();
            files.push(data.ok_or(EngineError::NotFound { what: "artifact", id })?);
        }
        Ok(files)
    }

    async fn context_of(&self, holder: &Holder, verb: Verb) -> Result<OpenNames, EngineError> {
        self.work(holder, verb, WorkerAsk::Context).await
    }

    /// Returns the steps that ended before the holder's own began and that its context names.
    async fn context_steps(
        &self,
        holder: &Holder,
        names: &ContextNames,
    ) -> Result<Vec<Step>, EngineError> {
        if names.steps.is_empty() {
            return Ok(Vec::new());
        }
        let (num, before, names) = (holder.run, holder.step, names.clone());
        self.engine.read(move |store| named_steps(store, num, before, &names)).await
    }

    async fn context_artifacts(
        &self,
        holder: &Holder,
        names: &ContextNames,
    ) -> Result<Vec<ArtifactRow>, EngineError> {
        if names.artifacts.is_empty() {
            return Ok(Vec::new());
        }
        let (num, own) = (holder.run, holder.step);
        let rows = self.engine.read(move |store| store.artifacts(num)).await?;
        let is_open = |row: &ArtifactRow| row.published && names.has_artifact(&row.name);
        Ok(rows.into_iter().filter(|row| is_open(row) && row.step < own).collect())
    }
}

/// Returns the completed steps before one that a context names. Holds the entries about these and no
/// others.
fn named_steps(
    store: &dyn Store,
    num: u64,
    before: u32,
    names: &ContextNames,
) -> Result<Vec<Step>, StoreError> {
    let mut own: BTreeMap<u32, Vec<Entry>> = BTreeMap::new();
    read_in_pages(store, num, 0, |entry| {
        if let Fact::StepScheduled(step) | Fact::StepRecorded(step, _) = &entry.fact
            && step.step < before
            && names.has_step(&step.name)
        {
            own.insert(step.step, vec![entry.clone()]);
        } else if let Some(entries) = about(entry).and_then(|step| own.get_mut(&step)) {
            entries.push(entry.clone());
        }
    })?;
    let run = RunId::new(num, 0);
    let steps = own.iter().map(|(step, entries)| one_step(run, *step, entries));
    let steps: Result<Vec<_>, _> = steps.collect();
    let is_completed = |step: &Step| step.state == StepState::Completed;
    Ok(steps?.into_iter().flatten().filter(is_completed).collect())
}

fn shown(step: &Step) -> ContextStep {
    let number = step.scheduled.step;
    ContextStep {
        step: number,
        name: step.scheduled.name.clone(),
        scope: step.scheduled.key.scope.to_string(),
        output: step.output.clone().unwrap_or_else(Json::null),
        href: format!("/v1/worker/context/steps/{number}"),
    }
}

fn artifact_id(row: &ArtifactRow) -> ArtifactId {
    ArtifactId::new(row.run, row.n, row.created_ms)
}

fn listed(row: &ArtifactRow) -> ContextArtifact {
    let id = artifact_id(row);
    ContextArtifact {
        id,
        step: row.step,
        name: row.name.clone(),
        hash: row.hash.clone(),
        size: row.size,
        href: format!("/v1/worker/context/artifacts/{id}"),
    }
}
