//! `fork`: a new run from the beginning of another one's history.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use super::{failure, settle};
use crate::{
    blueprint::Bundle,
    cli::{
        compile,
        connect::{Connection, Start},
        context::Context,
        exit::{Exit, Stop},
        render::{fitted, printable},
        resolve,
        values::{self, Pair},
    },
    engine::{ForkAsk, ForkPlan, ForkStep, RunView},
    protocol::{Json, RunId},
    store::RunStatus,
};

/// Start a new run with the first steps of another one
#[derive(Debug, Args)]
pub struct Fork {
    /// The run: an id, a unique prefix of one, or `last`
    run: String,
    /// The first step to execute again; earlier ones keep their results
    #[arg(long, value_name = "STEP", required_unless_present = "outputs")]
    from: Option<u32>,
    /// Change a part of the input (repeatable)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<Pair>,
    /// Lay this over the input of the run; it replaces one that is not an object: JSON, @FILE, or - for stdin
    #[arg(long, value_name = "JSON")]
    input: Option<String>,
    /// Execute the step with this input: JSON, @FILE, or - for stdin
    #[arg(long, value_name = "JSON")]
    step_input: Option<String>,
    /// Keep an earlier step with this output (repeatable) [--from defaults to the step after it]
    #[arg(long = "output", value_name = "STEP=JSON")]
    outputs: Vec<Pair>,
    /// Show what the fork would keep and do first; nothing is stored
    #[arg(long)]
    dry_run: bool,
    /// Continue with this blueprint: a file, or the name of a stored one
    #[arg(long, value_name = "FILE")]
    with: Option<PathBuf>,
}

impl Fork {
    /// Runs the command.
    ///
    /// # Errors
    /// No such run or step, a blueprint with errors, an input that does not match its schema.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        cx.with(Start::Existing, async |at| {
            let id = resolve::run(&at.client, &self.run).await?;
            let mut body = self.request(cx, at, id).await?;
            if self.dry_run {
                body["dry_run"] = true.into();
                let plan = at.client.plan_fork(id, &body).await?;
                return planned(cx, &plan);
            }
            let fork = at.client.steer(id, "fork", &body).await?;
            settle(cx, at, fork.id).await?;
            let fork = at.client.run(fork.id).await?;
            self.show(cx, id, &fork)?;
            Ok(if fork.status == RunStatus::Paused { Exit::Conflict } else { Exit::Ok })
        })
        .await
    }

    async fn request(&self, cx: &Context, at: &Connection, id: RunId) -> Result<Value> {
        let (mut body, bundle) = source(self.with.as_ref())?;
        let laid = self.input.as_deref().map(values::document).transpose()?;
        if self.set.is_empty() {
            if let Some(laid) = laid {
                body["input_patch"] = laid;
            }
        } else {
            let run = at.client.run(id).await?;
            let is_text =
                |input: &Json| !matches!(input.to_value(), Value::Object(_) | Value::Null);
            if laid.is_none() && run.input.as_ref().is_some_and(is_text) {
                let stop = Stop::usage(format!("the input of run {id} is not an object"));
                return Err(stop.next("--input '<json>' replaces all of it").into());
            }
            let own = bundle.map(|bundle| compile::compile(&bundle, &cx.config).input);
            let schema = match own.flatten().map(|schema| schema.to_value()) {
                Some(schema) => Some(schema),
                None => {
                    let version = format!("{}@{}", run.blueprint, run.hash);
                    at.client.blueprint(&version).await?.input.map(|schema| schema.to_value())
                }
            };
            body["input_patch"] = values::input(laid, &self.set, schema.as_ref())?;
        }
        let mut after = 0;
        for Pair { key, value } in &self.outputs {
            let step: u32 = key.parse().map_err(|_| {
                Stop::usage(format!("{key:?} is not the number of a step"))
                    .next("--output 3='{\"ok\": true}'")
            })?;
            after = after.max(step.saturating_add(1));
            body["outputs"][key] = values::document(value)?;
        }
        if let Some(input) = &self.step_input {
            body["step_input"] = values::document(input)?;
        }
        body["from_step"] = Value::from(self.from.unwrap_or(after));
        Ok(body)
    }

    fn show(&self, cx: &Context, from: RunId, fork: &RunView) -> Result<()> {
        if cx.terminal.json {
            cx.terminal.print_json(fork)?;
        } else {
            cx.terminal.print(&fork.id.to_string())?;
        }
        let step = fork.copied_from.as_ref().and_then(|it| it.step);
        let step = step.map_or_else(String::new, |step| format!(" from step {step}"));
        cx.terminal.say(&format!("run {} is a fork of {from}{step}", fork.id));
        if fork.status == RunStatus::Paused {
            cx.terminal.say(&failure(fork));
            cx.terminal.say(
                "  its source requests other steps than the history has; fork from an earlier one",
            );
        }
        Ok(())
    }
}

/// Shows a plan.
fn planned(cx: &Context, plan: &ForkPlan) -> Result<Exit> {
    let exit = if plan.divergence.is_some() { Exit::Conflict } else { Exit::Ok };
    if cx.terminal.json {
        cx.terminal.print_json(plan)?;
        return Ok(exit);
    }
    let row = |step: &ForkStep| {
        let name = printable(&format!("{} {}", step.kind, step.name));
        vec![step.step.to_string(), name, step.fate.as_str().replace('_', " ")]
    };
    let rows: Vec<_> = plan.steps.iter().map(row).collect();
    if !rows.is_empty() {
        cx.terminal.print(&fitted(cx.terminal.width(), &["step", "what", "in the fork"], rows))?;
    }
    let (kept, redone) = (plan.kept, plan.redone);
    cx.terminal.say(&format!("steps kept: {kept}, not kept: {redone}; nothing was stored"));
    if let Some(divergence) = &plan.divergence {
        cx.terminal.say(&format!("the fork would be paused: {}", printable(&divergence.message)));
    }
    let asks: Vec<_> = plan.asks.iter().map(named).collect();
    match asks.as_slice() {
        [] => {}
        [one] => cx.terminal.say(&format!("the first new step is {one}")),
        more => cx.terminal.say(&format!("the first new steps are {}", more.join(", "))),
    }
    if let Some(end) = &plan.ends {
        cx.terminal.say(&format!("the flow then is {end}"));
    }
    Ok(exit)
}

/// A step that a flow requests, by kind and name; with its branch, if it is in one.
fn named(ask: &ForkAsk) -> String {
    let name = printable(&format!("{} {}", ask.kind, ask.name));
    match ask.at.rsplit_once('/') {
        Some((branch, _)) => format!("{name} (branch {branch})"),
        None => name,
    }
}

/// The body that names a blueprint, with the bundle where it is a file.
///
/// # Errors
/// A file that is no bundle.
pub(super) fn source(with: Option<&PathBuf>) -> Result<(Value, Option<Bundle>)> {
    let Some(with) = with else { return Ok((json!({}), None)) };
    let word = with.to_string_lossy();
    if !compile::is_path(&word) {
        return Ok((json!({"blueprint": word}), None));
    }
    let bundle = compile::load(with)?;
    Ok((compile::program(&bundle), Some(bundle)))
}
