//! `inbox`: what people are asked for.

use anyhow::Result;
use clap::Args;

use crate::{
    cli::{
        client::{Client, Query},
        connect::Start,
        context::Context,
        exit::Exit,
        form,
        render::{age, elapsed, fitted, printable},
        resolve::{self, Candidates},
    },
    engine::{AnsweredView, TaskView},
};

/// The number of tasks on a page.
const PAGE: usize = 500;
/// The number of pages that are read for one list.
const PAGES: usize = 20;

/// List open tasks for people, or show one
#[derive(Debug, Args)]
pub struct Inbox {
    /// Show this task with its prompt, input and form: its id, or `last`, the newest
    task: Option<String>,
    /// List open tasks of every operator, not only of people
    #[arg(long)]
    all: bool,
    /// List only tasks that ask you; with --answered, only your own answers
    #[arg(long, conflicts_with = "all")]
    mine: bool,
    /// List only what has these words in its agent, summary, question or prompt
    #[arg(short = 'q', long, value_name = "WORDS", conflicts_with = "task")]
    text: Option<String>,
    /// List the answers of the last 30 days, newest first
    #[arg(long, conflicts_with_all = ["all", "task"])]
    answered: bool,
}

impl Inbox {
    /// Runs the command.
    ///
    /// # Errors
    /// No such task.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        let task = self.task.as_deref().map(resolve::task).transpose()?;
        cx.with(Start::Existing, async |at| {
            if let Some(task) = task {
                let task = task.find(&at.client, Candidates::Anybody).await?;
                let task = at.client.task(task).await?;
                match cx.terminal.json {
                    true => cx.terminal.print_json(&task)?,
                    false => cx.terminal.print(&form::shown(&task)?)?,
                }
                return Ok(Exit::Ok);
            }
            let mut query = vec![("limit", PAGE.to_string())];
            query.extend(self.mine.then(|| ("mine", "true".to_owned())));
            query.extend(self.text.clone().map(|text| ("q", text)));
            if self.answered {
                query.push(("state", "answered".to_owned()));
                let page = at.client.answered(&query).await?;
                show_answered(cx, &page.items)?;
                if page.next_cursor.is_some() {
                    cx.terminal.say("  there may be older answers: GET /v1/tasks?state=answered");
                }
                return Ok(Exit::Ok);
            }
            query.push(("state", "open".to_owned()));
            if !self.all {
                query.push(("kind", "human".to_owned()));
            }
            let (mut tasks, mut more) = open_tasks(&at.client, &query).await?;
            if !self.all && !self.mine {
                // What workers ask a senior is for people as well.
                query.retain(|(name, _)| *name != "kind");
                let (asking, further) = open_tasks(&at.client, &query).await?;
                more |= further;
                tasks.extend(
                    asking.into_iter().filter(|it| it.kind != "human" && it.question.is_some()),
                );
            }
            if cx.terminal.json {
                cx.terminal.print_json(&tasks)?;
            } else if tasks.is_empty() {
                cx.terminal.say("nothing to answer");
            } else {
                let now = cx.clock.now_ms();
                let rows = tasks.iter().map(|task| row(task, now));
                let head = ["task", "agent", "operator", "age", "left", "about"];
                cx.terminal.print(&fitted(cx.terminal.width(), &head, rows))?;
                cx.terminal.say("  next: moonswarm show TASK · approve TASK · answer TASK");
            }
            if more {
                cx.terminal.say("  there may be more: narrow the search with --mine or -q");
            }
            Ok(Exit::Ok)
        })
        .await
    }
}

/// Returns the open tasks that fit, and whether there may be more.
async fn open_tasks(client: &Client, query: &Query<'_>) -> Result<(Vec<TaskView>, bool)> {
    let (mut tasks, mut cursor) = (Vec::new(), None);
    for _ in 0..PAGES {
        let mut query = query.to_vec();
        query.extend(cursor.map(|cursor| ("cursor", cursor)));
        let page = client.tasks(&query).await?;
        tasks.extend(page.items);
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    Ok((tasks, cursor.is_some()))
}

/// Prints the answers of people.
fn show_answered(cx: &Context, answers: &[AnsweredView]) -> Result<()> {
    if cx.terminal.json {
        return Ok(cx.terminal.print_json(answers)?);
    }
    if answers.is_empty() {
        cx.terminal.say("no answers in the last 30 days");
        return Ok(());
    }
    let now = cx.clock.now_ms();
    let rows = answers.iter().map(|it| {
        let [agent, by] = [&it.agent, &it.by].map(|text| printable(text));
        vec![it.id.to_string(), agent, it.outcome.clone(), by, age(&it.at, now), it.run.to_string()]
    });
    let head = ["task", "agent", "said", "by", "age", "run"];
    Ok(cx.terminal.print(&fitted(cx.terminal.width(), &head, rows))?)
}

fn row(task: &TaskView, now_ms: u64) -> Vec<String> {
    let mut about = task.summary.as_deref().map(printable).unwrap_or_default();
    if let Some(question) = task.question.as_deref().map(printable) {
        about = format!("asks: {question} (moonswarm advise)");
    }
    if let Some(required) = task.required.filter(|required| *required > 1) {
        about.push_str(&format!(" ({} of {required})", task.answers.len()));
    }
    if let Some(count) = task.reminders.filter(|count| *count > 0) {
        about.push_str(&format!(" (recalled {count}×)"));
    }
    let age = age(&task.scheduled_at, now_ms);
    let left = form::left_ms(task, now_ms).map(elapsed).unwrap_or_default();
    vec![task.id.to_string(), task.agent.clone(), task.operator.clone(), age, left, about]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        cli::fixture,
        protocol::{RunId, TaskId},
    };

    #[tokio::test]
    async fn every_page_of_the_open_tasks_is_read() {
        let page = |run: u64, next: Option<&str>| {
            let task = json!({"id": TaskId::new(run, 1, 1_000), "run": RunId::new(run, 1_000),
                "step": 1, "attempt": 1, "agent": "a", "operator": "human", "kind": "human",
                "state": "pending", "scheduled_at": ""});
            (200, json!({"items": [task], "next_cursor": next}).to_string())
        };
        let server = fixture::serve(vec![page(1, Some("1-1")), page(2, None)]).await;
        let client = Client::new(&server.url, "t").unwrap();
        let query = [("state", "open".to_owned())];
        let (tasks, more) = open_tasks(&client, &query).await.unwrap();
        assert_eq!((tasks.len(), more), (2, false));
        assert!(server.asked()[1].contains("state=open&cursor=1-1"), "{:?}", server.asked());
    }
}
