//! `inbox`: what people are asked for.

use anyhow::Result;
use clap::Args;

use crate::{
    cli::{
        connect::Start,
        context::Context,
        exit::Exit,
        follow::title,
        render::{age, printable, table},
        resolve,
    },
    engine::TaskView,
};

/// List open tasks for people, or show one
#[derive(Debug, Args)]
pub struct Inbox {
    /// Show this task with its prompt, input and the shape of an answer
    task: Option<String>,
    /// Open tasks of every operator, not only of people
    #[arg(long)]
    all: bool,
}

impl Inbox {
    /// Does it.
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
                    false => cx.terminal.print(&shown(&task)?)?,
                }
                return Ok(Exit::Ok);
            }
            let mut query = vec![("state", "open".to_owned()), ("limit", "200".to_owned())];
            if !self.all {
                query.push(("kind", "human".to_owned()));
            }
            let tasks = at.client.tasks(&query).await?.items;
            if cx.terminal.json {
                cx.terminal.print_json(&tasks)?;
            } else if tasks.is_empty() {
                cx.terminal.say("nothing to answer");
            } else {
                let now = cx.clock.now_ms();
                let rows = tasks.iter().map(|task| row(task, now));
                cx.terminal.print(&table(&["task", "agent", "operator", "age", "about"], rows))?;
                cx.terminal.say("  next: moonswarm inbox TASK · approve TASK · answer TASK JSON");
            }
            Ok(Exit::Ok)
        })
        .await
    }
}

fn row(task: &TaskView, now_ms: u64) -> Vec<String> {
    let about = task.summary.as_deref().map(printable).unwrap_or_default();
    let age = age(&task.scheduled_at, now_ms);
    vec![task.id.to_string(), task.agent.clone(), task.operator.clone(), age, about]
}

fn shown(task: &TaskView) -> Result<String> {
    let mut text = format!(
        "{}  {}\nrun {} step {} {}\n",
        task.id,
        title(task),
        task.run,
        task.step,
        task.state
    );
    for (name, value) in [("input", &task.input), ("answer", &task.output_schema)] {
        if let Some(value) = value {
            let value = serde_json::to_string_pretty(&value.to_value())?;
            text.push_str(&format!("{name}: {value}\n"));
        }
    }
    if let Some(prompt) = &task.prompt {
        text.push_str(&format!("prompt:\n{}\n", prompt.replace('\u{1b}', " ")));
    }
    if let Some(command) = &task.command {
        text.push_str(&format!("→ {command}\n"));
    }
    Ok(text)
}
