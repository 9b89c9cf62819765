//! `operators`: lists who executes tasks: operators, queues, pull workers.

use anyhow::Result;
use clap::Args;

use crate::{
    cli::{
        connect::{Connection, Start},
        context::Context,
        exit::Exit,
        render::fitted,
    },
    protocol::text::counted,
};

/// List operators, and the number of open sessions of each; or queues, or pull workers
#[derive(Debug, Args)]
pub struct Operators {
    /// List the queues instead: waiting tasks, the oldest, workers
    #[arg(long)]
    queues: bool,
    /// List the pull workers instead: labels, held tasks, when they were last seen
    #[arg(long, conflicts_with = "queues")]
    workers: bool,
}

impl Operators {
    /// Runs the command.
    ///
    /// # Errors
    /// A daemon that refuses.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        cx.with(Start::Existing, async |at| {
            if self.queues {
                return queues(cx, at).await;
            }
            if self.workers {
                return workers(cx, at).await;
            }
            let operators = at.client.operators().await?;
            if cx.terminal.json {
                cx.terminal.print_json(&operators)?;
                return Ok(Exit::Ok);
            }
            let rows = operators.iter().map(|operator| {
                let about = match (&operator.members, operator.sessions) {
                    (Some(members), _) => {
                        let rule = operator.rule.as_deref().unwrap_or("composite");
                        format!("{rule} of {}", members.join(", "))
                    }
                    (None, Some(open)) => {
                        format!(
                            "{} open, {} connected",
                            counted(open, "session"),
                            operator.connected
                        )
                    }
                    (None, None) => String::new(),
                };
                vec![operator.name.clone(), operator.kind.clone(), about]
            });
            cx.terminal.print(&fitted(
                cx.terminal.width(),
                &["operator", "kind", "about"],
                rows,
            ))?;
            Ok(Exit::Ok)
        })
        .await
    }
}

async fn queues(cx: &Context, at: &Connection) -> Result<Exit> {
    let queues = at.client.queues().await?;
    if cx.terminal.json {
        cx.terminal.print_json(&queues)?;
        return Ok(Exit::Ok);
    }
    let rows = queues.iter().map(|it| {
        let oldest = it.oldest_at.clone().unwrap_or_default();
        let (waiting, held) = (it.waiting.to_string(), it.in_work.to_string());
        vec![it.queue.clone(), waiting, held, oldest, it.workers.to_string()]
    });
    let heads = ["queue", "waiting", "in work", "oldest", "workers"];
    cx.terminal.print(&fitted(cx.terminal.width(), &heads, rows))?;
    Ok(Exit::Ok)
}

async fn workers(cx: &Context, at: &Connection) -> Result<Exit> {
    let workers = at.client.workers().await?;
    if cx.terminal.json {
        cx.terminal.print_json(&workers)?;
        return Ok(Exit::Ok);
    }
    let rows = workers.iter().map(|it| {
        let seen = it.last_seen_at.clone().unwrap_or_default();
        let labels = it.labels.to_string().replace(" --label ", " ").trim().to_owned();
        vec![it.worker.clone(), it.queue.clone(), labels, it.tasks.to_string(), seen]
    });
    let heads = ["worker", "queue", "labels", "tasks", "last seen"];
    cx.terminal.print(&fitted(cx.terminal.width(), &heads, rows))?;
    Ok(Exit::Ok)
}
