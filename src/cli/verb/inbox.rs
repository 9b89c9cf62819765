//! `inbox`: what people are asked for.

use anyhow::Result;
use clap::Args;

use crate::{
    cli::{
        connect::Start,
        context::Context,
        exit::Exit,
        form,
        render::{age, elapsed, fitted, printable},
        resolve,
    },
    engine::TaskView,
};

/// List open tasks for people, or show one
#[derive(Debug, Args)]
pub struct Inbox {
    /// Show this task with its prompt, input and form
    task: Option<String>,
    /// List open tasks of every operator, not only of people
    #[arg(long)]
    all: bool,
    /// List only tasks that ask you
    #[arg(long, conflicts_with = "all")]
    mine: bool,
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
                let task = at.client.task(task).await?;
                match cx.terminal.json {
                    true => cx.terminal.print_json(&task)?,
                    false => cx.terminal.print(&form::shown(&task)?)?,
                }
                return Ok(Exit::Ok);
            }
            let mut query = vec![("state", "open".to_owned()), ("limit", "200".to_owned())];
            query.extend(self.mine.then(|| ("mine", "true".to_owned())));
            if !self.all {
                query.push(("kind", "human".to_owned()));
            }
            let mut tasks = at.client.tasks(&query).await?.items;
            if !self.all && !self.mine {
                // What workers ask a senior is for people as well.
                let open = vec![("state", "open".to_owned()), ("limit", "200".to_owned())];
                let asking = at.client.tasks(&open).await?.items;
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
            Ok(Exit::Ok)
        })
        .await
    }
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
