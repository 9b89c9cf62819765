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
        resolve::{self, Candidates},
    },
    engine::{AnsweredView, TaskView},
};

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
            let mut query = vec![("limit", "200".to_owned())];
            query.extend(self.mine.then(|| ("mine", "true".to_owned())));
            query.extend(self.text.clone().map(|text| ("q", text)));
            if self.answered {
                query.push(("state", "answered".to_owned()));
                show_answered(cx, &at.client.answered(&query).await?.items)?;
                return Ok(Exit::Ok);
            }
            query.push(("state", "open".to_owned()));
            if !self.all {
                query.push(("kind", "human".to_owned()));
            }
            let mut tasks = at.client.tasks(&query).await?.items;
            if !self.all && !self.mine {
                // What workers ask a senior is for people as well.
                query.retain(|(name, _)| *name != "kind");
                let asking = at.client.tasks(&query).await?.items;
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
