//! `blueprints`: lists stored blueprints, and what starts each by itself; archives, restores and
//! deletes them; shows their versions and how two differ.

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::{
    blueprint::Change,
    cli::{
        connect::{Connection, Start},
        context::Context,
        exit::Exit,
        render::{fitted, printable},
    },
    engine::BlueprintDiff,
};

/// The shown length of a hash.
const SHORT: usize = 12;

/// List blueprints with their triggers, and files that have errors; archive, restore and delete them; show and compare versions
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Blueprints {
    #[command(subcommand)]
    action: Option<Action>,
    /// List the archived blueprints instead
    #[arg(long)]
    archived: bool,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the stored versions of a blueprint, newest first
    Versions {
        /// The blueprint's name
        name: String,
    },
    /// Compare two versions of a blueprint
    Diff {
        /// The blueprint's name
        name: String,
        /// The first version: its hash, or the beginning of it [default: the one before the second]
        from: Option<String>,
        /// The second version [default: the one that the name stands for]
        to: Option<String>,
    },
    /// Archive a blueprint: nothing starts under its name until it is restored
    Archive {
        /// The blueprint's name
        name: String,
    },
    /// Restore an archived blueprint
    Restore {
        /// The blueprint's name
        name: String,
    },
    /// Delete an archived blueprint that no run has, with all of its versions
    Delete {
        /// The blueprint's name
        name: String,
    },
}

impl Blueprints {
    /// Runs the command.
    ///
    /// # Errors
    /// A daemon that refuses.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        cx.with(Start::Existing, async |at| {
            if let Some(what) = &self.action {
                return what.execute(cx, at).await;
            }
            let blueprints = at.client.blueprints(self.archived).await?;
            let (items, problems) = (blueprints.items, blueprints.problems);
            if cx.terminal.json {
                let mut all: Vec<Value> = items.iter().map(|it| json!(it)).collect();
                all.extend(problems.iter().map(|it| json!({"name": it.name, "problem": it})));
                cx.terminal.print_json(&all)?;
                return Ok(Exit::Ok);
            }
            let rows = items.iter().map(|blueprint| {
                let starts = blueprint.on.iter().map(|on| match (&on.zone, &on.next_at) {
                    (Some(zone), Some(next)) => format!("{} {zone}, next {next}", on.what),
                    _ => match (&on.problem, &on.directory) {
                        (Some(problem), _) => format!("{} {} (no: {problem})", on.kind, on.what),
                        (None, Some(dir)) => format!("{} {} in {dir}", on.kind, on.what),
                        (None, None) => format!("{} {}", on.kind, on.what),
                    },
                });
                vec![
                    blueprint.name.clone(),
                    blueprint.hash.chars().take(SHORT).collect(),
                    starts.collect::<Vec<_>>().join("; "),
                    blueprint.description.clone().unwrap_or_default(),
                ]
            });
            let broken = problems.iter().map(|it| {
                let message = format!("not served: {}: {}", it.file, it.message);
                vec![it.name.clone(), "-".to_owned(), String::new(), message]
            });
            let rows = rows.chain(broken);
            cx.terminal.print(&fitted(
                cx.terminal.width(),
                &["name", "version", "starts by", "description"],
                rows,
            ))?;
            Ok(Exit::Ok)
        })
        .await
    }
}

impl Action {
    async fn execute(&self, cx: &Context, at: &Connection) -> Result<Exit> {
        let (view, said) = match self {
            Self::Versions { name } => return versions(cx, at, name).await,
            Self::Diff { name, from, to } => {
                let diff = at.client.blueprint_diff(name, from.as_deref(), to.as_deref()).await?;
                return compared(cx, &diff);
            }
            Self::Archive { name } => (
                json!(at.client.archive_blueprint(name).await?),
                format!("{name} is archived; `moonswarm blueprints restore {name}` restores it"),
            ),
            Self::Restore { name } => {
                let view = at.client.restore_blueprint(name).await?;
                let version: String = view.hash.chars().take(SHORT).collect();
                (json!(view), format!("{name} is {name}@{version} again"))
            }
            Self::Delete { name } => {
                at.client.delete_blueprint(name).await?;
                (json!({ "name": name, "deleted": true }), format!("{name} is deleted"))
            }
        };
        match cx.terminal.json {
            true => cx.terminal.print_json(&view)?,
            false => cx.terminal.say(&said),
        }
        Ok(Exit::Ok)
    }
}

async fn versions(cx: &Context, at: &Connection, name: &str) -> Result<Exit> {
    let page = at.client.blueprint_versions(name).await?;
    if cx.terminal.json {
        cx.terminal.print_json(&page.items)?;
        return Ok(Exit::Ok);
    }
    let rows = page.items.iter().map(|version| {
        let note = match (version.current, version.published) {
            (true, _) => "current",
            (false, true) => "",
            (false, false) => "not published",
        };
        let hash = version.hash.chars().take(SHORT).collect();
        vec![hash, version.stored_at.clone(), note.to_owned()]
    });
    cx.terminal.print(&fitted(cx.terminal.width(), &["version", "stored", ""], rows))?;
    if page.next_cursor.is_some() {
        cx.terminal.say("there are older versions");
    }
    Ok(Exit::Ok)
}

fn compared(cx: &Context, diff: &BlueprintDiff) -> Result<Exit> {
    if cx.terminal.json {
        cx.terminal.print_json(diff)?;
        return Ok(Exit::Ok);
    }
    for file in &diff.files {
        if file.unified.is_empty() {
            cx.terminal.say(&format!("{}: too long to be shown", printable(&file.path)));
        }
        // Text of others: what is no character of a line is shown as a symbol.
        let lines: Vec<_> = file.unified.lines().map(printable).collect();
        cx.terminal.print(&lines.join("\n"))?;
    }
    let word = |change: Change| match change {
        Change::Added => "new",
        Change::Removed => "gone",
        Change::Changed => "changed",
    };
    for agent in &diff.agents {
        let parts = agent.parts.join(", ");
        let said = format!("agent {} is {}: {parts}", printable(&agent.name), word(agent.change));
        cx.terminal.say(said.trim_end_matches(": "));
    }
    if !diff.parts.is_empty() {
        cx.terminal.say(&format!("changed: {}", diff.parts.join(", ")));
    }
    if diff.files.is_empty() {
        cx.terminal.say("the versions are the same");
    }
    Ok(Exit::Ok)
}
