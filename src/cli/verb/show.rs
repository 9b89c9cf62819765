//! `show`: one run as a tree, with what it waits for and what it made.

use anyhow::Result;
use clap::Args;
use serde_json::json;

use super::{failure, settle::frames};
use crate::cli::{
    connect::{Connection, Start},
    context::Context,
    exit::{Exit, Stop},
    render::{Tree, cut, fitted, printable, used, waiting},
    resolve,
};
use crate::{
    cli::form,
    engine::{SpentView, StepView},
    protocol::{
        Json, TaskId,
        plain::{self, indented},
    },
    store::RunStatus,
};

/// Show a run with its status, steps, files and what it waits for; or a task
#[derive(Debug, Args)]
pub struct Show {
    /// The run: an id, a unique prefix of one, or `last`; or the id of a task
    #[arg(required_unless_present = "stack")]
    run: Option<String>,
    /// Show the layers of middleware around the run; without a run, those of the host
    #[arg(long, conflicts_with_all = ["step", "all"])]
    stack: bool,
    /// Show one step, with its request and its response
    #[arg(long)]
    step: Option<u32>,
    /// Show every branch of wide fan-outs
    #[arg(long)]
    all: bool,
}

impl Show {
    /// Runs the command.
    ///
    /// # Errors
    /// No such run or step.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        cx.with(Start::Existing, async |at| {
            let Some(name) = &self.run else { return stack(cx, at, None).await };
            if let Ok(task) = name.parse::<TaskId>() {
                let task = at.client.task(task).await?;
                match cx.terminal.json {
                    true => cx.terminal.print_json(&task)?,
                    false => cx.terminal.print(&form::shown(&task)?)?,
                }
                return Ok(Exit::Ok);
            }
            let id = resolve::run(&at.client, name).await?;
            if self.stack {
                let run = at.client.run(id).await?;
                let version = format!("{}@{}", run.blueprint, run.hash);
                return stack(cx, at, Some(&version)).await;
            }
            if let Some(step) = self.step {
                let step = at.client.step(id, step).await?;
                if cx.terminal.json {
                    cx.terminal.print_json(&step)?;
                } else {
                    let lines = step_lines(&step, &tree(cx, self.all));
                    cx.terminal.print_painted(&lines.join("\n"))?;
                }
                return Ok(Exit::Ok);
            }
            let run = at.client.run(id).await?;
            let steps = match at.client.steps(id, 0).await {
                // What the run itself says stands, and says why.
                Err(error) if is_damaged(&error) && run.status == RunStatus::Paused => Vec::new(),
                steps => steps?,
            };
            let artifacts = at.client.artifacts(id).await?;
            if cx.terminal.json {
                let all = json!({"run": run, "steps": steps, "artifacts": artifacts});
                cx.terminal.print_json(&all)?;
                return Ok(Exit::Ok);
            }
            let tree = tree(cx, self.all);
            let mut lines = vec![format!("{id}  {}", tree.header(&run))];
            if let Some(width) = tree.width {
                // The id is wide: the rest of the header has a line of its own.
                lines = vec![id.to_string(), cut(&format!("  {}", tree.header(&run)), width)];
            }
            lines.push(format!("started {} by {}", run.created_at, printable(&run.started_by)));
            if !run.tags.is_empty() {
                let tags =
                    run.tags.iter().map(|(name, value)| format!("{name}={}", printable(value)));
                lines.push(format!("tags {}", tags.collect::<Vec<_>>().join(" ")));
            }
            lines.extend(run.trigger.as_ref().map(started_through));
            lines.extend(run.parent.map(|parent| format!("called by {parent}")));
            lines.extend(run.copied_from.as_ref().map(|from| match from.step {
                Some(step) => format!("forked from {} at step {step}", from.run),
                None => format!("imported from {}", from.run),
            }));
            lines.extend(tree.lines(&steps));
            for step in steps.iter().filter(|step| !step.effects.is_empty()) {
                let names: Vec<String> = step.effects.iter().map(effect).collect();
                lines.push(format!("effects of step {}: {}", step.seq, names.join(", ")));
            }
            if run.error.is_some() {
                lines.push(plain::lines(&failure(&run)));
            }
            lines.extend(run.usage.as_ref().and_then(spent));
            lines.extend(run.waiting_on.iter().map(|on| waiting(&run, on, tree.now_ms)));
            for on in &run.undelivered {
                let why = on.error.as_deref().map(|why| format!(": {}", printable(why)));
                let (changes, scope) = (on.changes, printable(&on.scope));
                let why = why.unwrap_or_default();
                lines.push(format!("{changes} changes are on their way to {scope}{why}"));
            }
            for file in &artifacts {
                let name = printable(&file.name);
                lines.push(format!("file {name}  {} bytes  {}", file.size, file.id));
            }
            cx.terminal.print_painted(&lines.join("\n"))?;
            Ok(Exit::Ok)
        })
        .await
    }
}

/// Returns the line about what started a run.
fn started_through(trigger: &Json) -> String {
    format!("trigger {}", printable(trigger.as_str()))
}

fn tree(cx: &Context, all: bool) -> Tree<'static> {
    Tree {
        now_ms: cx.clock.now_ms(),
        colors: console::colors_enabled(),
        said: None,
        all,
        width: cx.terminal.width(),
    }
}

/// One step, whole: where it is, when it was, its request and its response.
fn step_lines(step: &StepView, tree: &Tree<'_>) -> Vec<String> {
    let mut lines = vec![tree.step_line(step)];
    let mut fact = |name: &str, value: String| lines.push(format!("  {name:<10}{value}"));
    fact("kind", printable(&step.kind));
    if let Some(task) = step.task {
        fact("task", task.to_string());
    }
    if let Some(worker) = step.worker_id {
        fact("worker", worker.to_string());
    }
    if !step.scope.is_empty() {
        let name = step.branch.as_deref().map(|name| format!(" ({name})")).unwrap_or_default();
        fact("branch", printable(&format!("{}{name}", step.scope)));
    }
    if let Some(line) = &step.line {
        fact("line", printable(line));
    }
    fact("scheduled", printable(&step.scheduled_at));
    for (name, at) in [("started", &step.started_at), ("ended", &step.ended_at)] {
        if let Some(at) = at {
            fact(name, printable(at));
        }
    }
    if !step.effects.is_empty() {
        fact("effects", step.effects.iter().map(effect).collect::<Vec<_>>().join(", "));
    }
    for (name, value) in [("request", &step.request), ("response", &step.response)] {
        if let Some(value) = value {
            lines.push(format!("{name}:\n  {}", indented(&text(value), "  ")));
        }
    }
    if let Some(error) = &step.error {
        lines.push(format!("error:\n  {}", indented(&error.message, "  ")));
        lines.extend(frames(error.data.as_ref()).iter().map(|frame| format!("    at {frame}")));
    }
    lines
}

/// A value as it is read best: a text as it is, all else as indented JSON.
fn text(value: &Json) -> String {
    match value.to_value() {
        serde_json::Value::String(text) => text,
        other => serde_json::to_string_pretty(&other).unwrap_or_else(|_| value.to_string()),
    }
}

/// An effect in a few words: what it does, and to what.
fn effect(effect: &Json) -> String {
    let effect = effect.to_value();
    let text = |name: &str| effect.get(name).and_then(|it| it.as_str()).map(printable);
    let kind = text("type").unwrap_or_default();
    if let ("skip", Some(reason)) =
        (text("effect_type").unwrap_or_default().as_str(), effect["data"]["reason"].as_str())
    {
        return format!("skipped: {}", printable(reason));
    }
    let about = ["key", "operator", "target", "tool_name", "effect_type", "message", "from_key"];
    match about.into_iter().find_map(text) {
        Some(about) => format!("{kind} {about}"),
        None => kind,
    }
}

/// Prints the layers, from the outermost to the innermost.
async fn stack(cx: &Context, at: &Connection, blueprint: Option<&str>) -> Result<Exit> {
    let layers = at.client.layers(blueprint).await?;
    if cx.terminal.json {
        cx.terminal.print_json(&layers)?;
        return Ok(Exit::Ok);
    }
    let rows = layers.iter().map(|it| {
        let settings = it.settings.as_ref().map_or("", |settings| settings.as_str());
        let settings = settings.to_owned();
        vec![it.boundary.clone(), it.class.clone(), it.name.clone(), it.from.clone(), settings]
    });
    cx.terminal.print(&fitted(
        cx.terminal.width(),
        &["boundary", "class", "layer", "from", "settings"],
        rows,
    ))?;
    Ok(Exit::Ok)
}

/// Returns the usage of a run, and the number of attempts without a report.
fn spent(usage: &SpentView) -> Option<String> {
    let told = Some(used(&usage.total)).filter(|text| !text.is_empty())?;
    let quiet = (usage.unreported > 0).then(|| format!(" · {} not reported", usage.unreported));
    Some(format!("used {told}{}", quiet.unwrap_or_default()))
}

fn is_damaged(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Stop>().is_some_and(|stop| stop.code.as_deref() == Some("damaged"))
}
