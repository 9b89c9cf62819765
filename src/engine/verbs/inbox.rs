//! The inbox of a person: the open tasks that ask them, and those that were answered.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    engine::{
        Caller, EngineError, Page, TaskView, rfc3339,
        run::question::Question,
        turn::{
            answered::{AnsweredTask, KEPT},
            lineage::is_same,
        },
        verbs::{engine::TaskVerbs, workers::cursor},
    },
    operator::{names, names_starter},
    protocol::{RunId, TaskId},
    session::Hub,
    store::{TaskFilter, TaskRow},
    token::{Need, ScopeKind, Verb, is_same_subject, person},
};

/// The maximum number of rows that one page looks at.
const MOST_LOOKED: usize = 2_000;
/// The number of answers that are read at a time, and of tasks among which questions are sought.
const READ: usize = 200;
/// The maximum size of a stored prompt that is searched, in bytes.
const PROMPT_BYTES: usize = 64 << 10;
/// The maximum number of words that are sought.
const MOST_WORDS: usize = 32;

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

/// The open tasks that are sought among those of a filter.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sought<'a> {
    /// Only tasks that ask the caller.
    pub mine: bool,
    /// Only tasks with all these words in their agent, summary, question or prompt.
    pub text: Option<&'a str>,
}

/// Returns the words of a text that is sought, [`MOST_WORDS`] at most.
fn words(text: Option<&str>) -> Vec<String> {
    let text = text.unwrap_or_default().to_lowercase();
    text.split_whitespace().take(MOST_WORDS).map(str::to_owned).collect()
}

/// Returns true if the texts of a task have all words.
fn has(row: &TaskRow, words: &[String]) -> bool {
    #[derive(Deserialize)]
    struct Asked {
        prompt: String,
    }
    if words.is_empty() {
        return true;
    }
    let mut texts = row.agent.to_lowercase();
    let mut add = |text: &str| {
        texts.push('\n');
        texts.push_str(&text.to_lowercase());
    };
    row.summary.iter().for_each(|text| add(text));
    row.question.iter().filter_map(|it| Question::open(it)).for_each(|it| add(&it.text()));
    if row.prompt.len() <= PROMPT_BYTES {
        // A task without a prompt is found by its other texts.
        serde_json::from_str::<Asked>(&row.prompt).iter().for_each(|it| add(&it.prompt));
    }
    words.iter().all(|word| texts.contains(word.as_str()))
}

/// Returns true if a task asks this caller, whose party has not answered it yet. `starter` is the
/// subject that started its run.
fn asks(sessions: &Hub, (view, starter): (&TaskView, &str), caller: &Caller) -> bool {
    let (subject, own) = (&caller.subject, person(&caller.subject));
    let is_starter = is_same_subject(starter, subject) && names_starter(&view.by);
    let named = is_starter || names(&view.by, subject, caller.grant.role);
    let is_own = |by: &str| is_same_subject(&person(by), &own) || is_same(sessions, by, subject);
    view.required.is_some() && named && !view.answers.iter().any(|given| is_own(&given.by))
}

impl TaskVerbs<'_> {
    /// Returns the open tasks that are sought, oldest first. A page may be short and still have a next
    /// one.
    ///
    /// # Errors
    /// As [`TaskVerbs::list`].
    pub async fn find(
        self,
        caller: &Caller,
        filter: TaskFilter,
        sought: Sought<'_>,
    ) -> Result<Page<TaskView>, EngineError> {
        let filter = self.listed(caller, filter)?;
        let (limit, mut after, mut looked) = (filter.limit, filter.after, 0);
        let (words, sessions) = (words(sought.text), &self.engine.shared().sessions);
        let mut items = Vec::new();
        loop {
            let page = TaskFilter { after, limit: READ, ..filter.clone() };
            let words = words.clone();
            let read = self.read_some(page, move |row| has(row, &words)).await?;
            looked += read.rows;
            for (key, found) in read.found {
                if items.len() == limit {
                    return Ok(Page { items, next_cursor: after.map(cursor) });
                }
                after = Some(key);
                let Some((view, starter)) = found else { continue };
                if !sought.mine || asks(sessions, (&view, starter.as_str()), caller) {
                    items.push(view);
                }
            }
            after = read.last.or(after);
            if !read.more || looked >= MOST_LOOKED {
                return Ok(Page { items, next_cursor: after.filter(|_| read.more).map(cursor) });
            }
        }
    }

    /// Returns the questions of attempts to a senior, among the oldest 200 open tasks; with a text those
    /// whose task has all its words.
    ///
    /// # Errors
    /// As [`TaskVerbs::list`].
    pub async fn questions(
        self,
        caller: &Caller,
        text: Option<&str>,
    ) -> Result<Vec<TaskView>, EngineError> {
        let words = words(text);
        let filter = self.listed(caller, TaskFilter::default())?;
        let asks = |row: &TaskRow| row.question.as_deref().and_then(Question::open).is_some();
        let (mut after, mut looked) = (None, 0);
        let mut items = Vec::new();
        while looked < READ {
            let page = TaskFilter { after, limit: READ - looked, ..filter.clone() };
            let words = words.clone();
            let read = self.read_some(page, move |row| asks(row) && has(row, &words)).await?;
            items.extend(read.found.into_iter().filter_map(|(_, found)| Some(found?.0)));
            if !read.more {
                break;
            }
            (after, looked) = (read.last, looked + read.rows);
        }
        Ok(items)
    }

    /// Returns the answers of the last 30 days, newest first; with `mine` those of the caller, with a
    /// text those whose agent and subject have all its words. A page may be short and still have a next
    /// one.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or the store cannot be read.
    pub async fn answered(
        self,
        caller: &Caller,
        sought: Sought<'_>,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<Page<AnsweredView>, EngineError> {
        let words = words(sought.text);
        let fits = |it: &AnsweredTask| {
            let texts = format!("{}\n{}", it.agent, it.by).to_lowercase();
            let is_own = is_same_subject(&it.by, &caller.subject);
            (!sought.mine || is_own) && words.iter().all(|it| texts.contains(it))
        };
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
                items.extend(line.filter(fits).map(AnsweredView::from));
            }
            if !more || looked >= MOST_LOOKED {
                return Ok(Page { items, next_cursor: more.then_some(after) });
            }
        }
    }
}
