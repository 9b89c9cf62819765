//! The parts of a run that a test sees.

use super::Play;
use crate::{
    protocol::{Failure, Json},
    testkit::prepared::numbers,
};

/// Steps that a test sees of a run.
const MOST_STEPS: usize = 100_000;

impl Play<'_> {
    /// Returns the steps of a run, in the order of their scopes.
    pub(super) fn steps(&mut self, run: usize) -> Result<Json, Failure> {
        let id = self.begun(run)?;
        self.saw(run);
        self.drive()?;
        let page =
            self.ask(move |engine, by| async move { engine.steps(&by, id, 0, MOST_STEPS).await })?;
        let mut rows = Vec::with_capacity(page.items.len());
        for step in page.items {
            let seq = step.seq;
            let whole =
                self.ask(move |engine, by| async move { engine.step(&by, id, seq).await })?;
            rows.push(whole);
        }
        // A crash may let branches that ran side by side begin in another order.
        rows.sort_by_key(|step| (numbers(&step.scope), step.index));
        let rows: Vec<_> = rows
            .into_iter()
            .map(|step| {
                serde_json::json!({
                    "scope": step.scope, "kind": step.kind, "name": step.name, "state": step.state,
                    "attempts": step.attempts,
                    "input": step.request.map(|it| it.to_value()),
                    "output": step.response.map(|it| it.to_value()),
                    "error": step.error.map(|it| it.kind),
                })
            })
            .collect();
        Ok(Json::from(&serde_json::Value::from(rows)))
    }
}
