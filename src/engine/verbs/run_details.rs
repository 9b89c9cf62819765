//! Additions to the view of one run: limits, called runs, and what a token may do.

use std::collections::BTreeMap;

use crate::{
    engine::{
        Caller, ChildView, Engine, EngineError, LimitView, RunView, UndeliveredView, shared::lanes,
    },
    protocol::RunId,
    store::RunFilter,
    token::Verb,
};

/// The maximum number of called runs in a view.
const CHILDREN: usize = 20;

/// The acts on a run that a view names.
const ACTS: [Verb; 11] = [
    Verb::RunRead,
    Verb::RunCancel,
    Verb::RunPause,
    Verb::RunResume,
    Verb::RunSignal,
    Verb::RunQuery,
    Verb::RunFork,
    Verb::RunReplay,
    Verb::RunInspect,
    Verb::RunExport,
    Verb::RunDelete,
];

impl Engine {
    /// Returns the view of a run with all that the view of one run has.
    pub(crate) async fn detailed(
        &self,
        caller: &Caller,
        run: RunId,
    ) -> Result<RunView, EngineError> {
        let (mut view, steps) = self.read_run(run).await?;
        let parent = run.num();
        let filter = RunFilter { parent: Some(parent), limit: CHILDREN, ..RunFilter::default() };
        let called = self.read(move |store| store.headers(&filter)).await?;
        view.children = called
            .iter()
            .map(|child| ChildView {
                id: child.id(),
                blueprint: child.blueprint.clone(),
                status: child.status,
                step: child.parent.map_or(0, |(_, step)| step),
            })
            .collect();
        view.undelivered = self.undelivered(parent).await?;
        let may = ACTS.into_iter().filter(|verb| caller.may(*verb, view.id).is_ok());
        view.can = may.map(|verb| verb.as_str().to_owned()).collect();
        view.limits = self.limits_of(&view, steps).await;
        Ok(view)
    }

    /// Returns the limits of listed runs of which at least nine tenths are used.
    pub async fn nearly_used(&self, runs: &[RunView]) -> Vec<(RunId, LimitView)> {
        let mut found = Vec::new();
        for run in runs {
            let limits = self.limits_of(run, run.steps).await;
            let tight = limits.into_iter().filter(LimitView::is_nearly_used);
            found.extend(tight.map(|limit| (run.id, limit)));
        }
        found
    }

    /// Returns the changes that a run has for stores that are not the host's, by scope.
    async fn undelivered(&self, run: u64) -> Result<Vec<UndeliveredView>, EngineError> {
        let lanes = &self.shared().lanes;
        if lanes.is_empty() {
            return Ok(Vec::new());
        }
        let rows =
            self.read(move |store| store.foreign_changes(None, Some(run), lanes::MOST)).await?;
        let mut changes: BTreeMap<String, usize> = BTreeMap::new();
        for (scope, _) in rows.iter().filter_map(|row| row.errand.change_of()) {
            *changes.entry(scope.to_owned()).or_default() += 1;
        }
        let view = |(scope, changes): (String, usize)| {
            let error = lanes.trouble(&scope).map(|trouble| trouble.to_string());
            UndeliveredView { scope, changes, error }
        };
        Ok(changes.into_iter().map(view).collect())
    }

    /// Returns the limits of a run with so many steps in its current history. A version that does not
    /// compile any more has those of the host.
    async fn limits_of(&self, view: &RunView, in_history: u32) -> Vec<LimitView> {
        let program = self.blueprints().program_by(view.hash.clone()).await.ok();
        let own = program.as_ref().map(|program| program.blueprint().definition());
        let host = &self.shared().settings.limits;
        let used = view.usage.as_ref().map(|usage| &usage.total);
        let budget = own.map(|own| own.budget).unwrap_or_default();
        let now_ms = self.shared().clock.now_ms();
        let took_ms = now_ms.saturating_sub(view.id.created_ms());
        let took_ms = view.duration_ms.unwrap_or(took_ms);
        let limit = |name: &str, used: String, allowed: String| LimitView {
            name: name.to_owned(),
            used,
            allowed,
        };
        let steps = own.and_then(|own| own.max_steps).unwrap_or(host.steps).min(host.steps);
        let mut limits = vec![
            limit("steps", in_history.to_string(), steps.to_string()),
            limit("stored_bytes", view.stored_bytes.to_string(), host.stored.to_string()),
        ];
        if let Some(wall_ms) = own.and_then(|own| own.wall_ms) {
            limits.push(limit("time_ms", took_ms.to_string(), wall_ms.to_string()));
        }
        if let Some(tokens) = budget.tokens {
            let used = used.and_then(|used| used.tokens()).unwrap_or(0);
            limits.push(limit("tokens", used.to_string(), tokens.to_string()));
        }
        if let Some(usd) = budget.usd {
            let used = used.and_then(|used| used.usd()).unwrap_or_default();
            limits.push(limit("usd", used.to_string(), usd.to_string()));
        }
        limits
    }
}
