//! The list of runs.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    engine::{Caller, Engine, EngineError, RunView},
    store::RunFilter,
    token::{Need, ScopeKind, Verb},
};

/// The maximum number of rows that a page looks at.
const LOOK: usize = 2_500;

/// A page of runs.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RunList {
    /// The runs, newest first, without input and output.
    pub items: Vec<RunView>,
    /// Pass it as `cursor` to get the next page; null at the end.
    pub next_cursor: Option<String>,
    /// True if the page ended because it looked at as many runs as a page may; there may be more
    /// that fit.
    pub partial: bool,
}

impl Engine {
    /// Returns runs, newest first.
    ///
    /// # Errors
    /// Fails when the caller lacks permission.
    pub async fn runs(&self, caller: &Caller, filter: RunFilter) -> Result<RunList, EngineError> {
        caller.grant.check(Verb::RunRead, &[Need::Every(ScopeKind::Run)])?;
        let filter = RunFilter { look: filter.look.or(Some(LOOK)), ..filter };
        let page = self.read(move |store| store.runs(&filter)).await?;
        let mut items = Vec::with_capacity(page.headers.len());
        for header in &page.headers {
            items.push(self.show(header).await?);
        }
        let next_cursor = page.next.map(|last| last.to_string());
        Ok(RunList { items, next_cursor, partial: page.partial })
    }
}
