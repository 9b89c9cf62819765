//! The inbox of a person: the open tasks that ask them, and those that were answered.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    engine::{
        Caller, EngineError, Page, TaskView, rfc3339,
        turn::answered::{AnsweredTask, KEPT},
        verbs::engine::TaskVerbs,
    },
    protocol::{RunId, TaskId},
    store::TaskFilter,
    token::{Need, Role, ScopeKind, Verb},
};

/// The maximum number of rows that one page looks at.
const MOST_LOOKED: usize = 2_000;
/// The number of rows that are read at a time.
const READ: usize = 200;

/// An answer that a person gave to a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AnsweredView {
    /// The task.
    #[schema(value_type = String)]
    pub id: TaskId,
    /// Its run, which may be deleted by now.
    #[schema(value_type = String)]
    pub run: RunId,
    /// Its step's number.
    pub step: u32,
    /// The agent.
    pub agent: String,
    /// The subject that answered.
    pub by: String,
    /// RFC 3339, UTC.
    pub at: String,
    /// `answered` or `rejected`.
    pub outcome: String,
}

impl From<AnsweredTask> for AnsweredView {
    fn from(it: AnsweredTask) -> Self {
        Self {
            id: it.task,
            run: it.run,
            step: it.step,
            agent: it.agent,
            by: it.by,
            at: rfc3339(it.at_ms),
            outcome: if it.rejected { "rejected" } else { "answered" }.to_owned(),
        }
    }
}

/// Returns true if a task asks this caller, who has not answered it yet.
fn asks(view: &TaskView, caller: &Caller) -> bool {
    let subject = &caller.subject;
    let is_role = |word: &str| word.parse::<Role>().is_ok_and(|role| caller.grant.role.holds(role));
    let named = view.by.is_empty() || view.by.iter().any(|word| word == subject || is_role(word));
    view.required.is_some() && named && view.answers.iter().all(|given| given.by != *subject)
}

impl TaskVerbs<'_> {
    /// Returns the open tasks that ask the caller, oldest first. A page may be short and still have a
    /// next one.
    ///
    /// # Errors
    /// As [`TaskVerbs::list`].
    pub async fn mine(
        self,
        caller: &Caller,
        filter: TaskFilter,
    ) -> Result<Page<TaskView>, EngineError> {
        let (limit, mut after, mut looked) = (filter.limit, filter.after, 0);
        let mut items = Vec::new();
        loop {
            let page = TaskFilter { after, limit: READ, ..filter.clone() };
            let page = self.list(caller, page).await?;
            looked += page.items.len();
            let more = page.next_cursor.is_some();
            for view in page.items {
                if items.len() == limit {
                    let next_cursor = after.map(|(run, step)| format!("{run}-{step}"));
                    return Ok(Page { items, next_cursor });
                }
                after = Some((view.run.num(), view.step));
                if asks(&view, caller) {
                    items.push(view);
                }
            }
            let next_cursor = after.filter(|_| more).map(|(run, step)| format!("{run}-{step}"));
            if !more || looked >= MOST_LOOKED {
                return Ok(Page { items, next_cursor });
            }
        }
    }

    /// Returns the answers of the last 30 days, newest first; with `mine` those of the caller. A page
    /// may be short and still have a next one.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or the store cannot be read.
    pub async fn answered(
        self,
        caller: &Caller,
        mine: bool,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<Page<AnsweredView>, EngineError> {
        caller.grant.check(Verb::TaskList, &[Need::Every(ScopeKind::Task)])?;
        let (mut after, mut looked) = (cursor.unwrap_or_default().to_owned(), 0);
        let mut items = Vec::new();
        loop {
            let from = after.clone();
            let rows = self.engine.read(move |store| store.kept_by(KEPT, &from, READ)).await?;
            let more = rows.len() == READ;
            looked += rows.len();
            for row in rows {
                if items.len() == limit {
                    return Ok(Page { items, next_cursor: Some(after) });
                }
                after = row.key;
                let line: Option<AnsweredTask> = serde_json::from_str(&row.value).ok();
                let line = line.filter(|it| !mine || it.by == caller.subject);
                items.extend(line.map(AnsweredView::from));
            }
            if !more || looked >= MOST_LOOKED {
                return Ok(Page { items, next_cursor: more.then_some(after) });
            }
        }
    }
}
