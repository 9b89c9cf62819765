//! `triggers`: lists what starts runs by itself; pauses, resumes and fires it.

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::Value;

use crate::{
    cli::{
        connect::{Connection, Start},
        context::Context,
        exit::Exit,
        render::fitted,
        values,
    },
    engine::TriggerEntry,
};

/// List schedules, watches and signals that start runs; pause, resume and fire them
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Triggers {
    #[command(subcommand)]
    action: Option<Action>,
    /// Only those of this blueprint
    #[arg(long)]
    blueprint: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Pause a trigger: it starts nothing until it is resumed, and what is due then is skipped
    Pause {
        /// The trigger's id
        trigger: String,
    },
    /// Resume a paused trigger
    Resume {
        /// The trigger's id
        trigger: String,
    },
    /// Start its run now, with your own rights
    Fire {
        /// The trigger's id
        trigger: String,
        /// The payload of a signal, as JSON
        payload: Option<String>,
    },
}

impl Triggers {
    /// Runs the command.
    ///
    /// # Errors
    /// A daemon that refuses.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        cx.with(Start::Existing, async |at| match &self.action {
            Some(what) => what.execute(cx, at).await,
            None => self.list(cx, at).await,
        })
        .await
    }

    async fn list(&self, cx: &Context, at: &Connection) -> Result<Exit> {
        let triggers = at.client.triggers(self.blueprint.as_deref()).await?;
        if cx.terminal.json {
            cx.terminal.print_json(&triggers)?;
            return Ok(Exit::Ok);
        }
        let rows = triggers.iter().map(|it| {
            let what = match &it.trigger.zone {
                Some(zone) => format!("{} {zone}", it.trigger.what),
                None => it.trigger.what.clone(),
            };
            let next = match (&it.paused_at, &it.trigger.next_at, &it.trigger.problem) {
                (Some(_), ..) => "paused".to_owned(),
                (None, Some(next), _) => next.clone(),
                (None, None, problem) => problem.clone().unwrap_or_default(),
            };
            vec![
                it.id.clone(),
                it.blueprint.clone(),
                it.trigger.kind.clone(),
                what,
                next,
                it.last_at.clone().unwrap_or_default(),
                it.skipped.to_string(),
            ]
        });
        let heads = ["trigger", "blueprint", "kind", "what", "next", "last", "skipped"];
        cx.terminal.print(&fitted(cx.terminal.width(), &heads, rows))?;
        Ok(Exit::Ok)
    }
}

impl Action {
    async fn execute(&self, cx: &Context, at: &Connection) -> Result<Exit> {
        let shown = |entry: &TriggerEntry, word: &str| match cx.terminal.json {
            true => cx.terminal.print_json(entry),
            false => {
                cx.terminal.say(&format!("trigger {} of {} {word}", entry.id, entry.blueprint));
                Ok(())
            }
        };
        match self {
            Self::Pause { trigger } => {
                shown(&at.client.move_trigger(trigger, "pause").await?, "is paused")?;
            }
            Self::Resume { trigger } => {
                shown(&at.client.move_trigger(trigger, "resume").await?, "is resumed")?;
            }
            Self::Fire { trigger, payload } => {
                let payload = payload.as_deref().map(values::document).transpose()?;
                let run = at.client.fire(trigger, &payload.unwrap_or(Value::Bool(true))).await?;
                match cx.terminal.json {
                    true => cx.terminal.print_json(&run)?,
                    false => cx.terminal.print(&run.id().to_string())?,
                }
            }
        }
        Ok(Exit::Ok)
    }
}
