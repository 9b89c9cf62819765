//! `blueprints`: lists stored blueprints, and what starts each by itself.

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use crate::cli::{connect::Start, context::Context, exit::Exit, render::fitted};

/// How much of a hash is shown.
const SHORT: usize = 12;

/// List blueprints with their triggers, and files that have errors
#[derive(Debug, Args)]
pub struct Blueprints {}

impl Blueprints {
    /// Runs the command.
    ///
    /// # Errors
    /// A daemon that refuses.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        cx.with(Start::Existing, async |at| {
            let blueprints = at.client.blueprints().await?;
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
