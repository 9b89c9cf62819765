//! `gc`: lets old runs go, as the retention policy says.

use anyhow::Result;
use clap::Args;

use crate::{
    cli::{connect::Start, context::Context, exit::Exit, render::fitted},
    engine::{GcView, Why},
};

/// Runs that are named; the rest is counted.
const NAMED: usize = 100;

/// Delete runs beyond their retention, and free disk space
#[derive(Debug, Args)]
pub struct Gc {
    /// Only report what would be deleted
    #[arg(long)]
    dry_run: bool,
}

impl Gc {
    /// Runs the command.
    ///
    /// # Errors
    /// A token that does not allow it.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        cx.with(Start::Existing, async |at| {
            let mut all = at.client.gc(self.dry_run).await?;
            while all.more {
                all = sum(all, at.client.gc(self.dry_run).await?);
            }
            if cx.terminal.json {
                cx.terminal.print_json(&all)?;
            } else {
                show(cx, &all)?;
            }
            Ok(Exit::Ok)
        })
        .await
    }
}

/// What two calls did together.
fn sum(mut all: GcView, next: GcView) -> GcView {
    all.items.extend(next.items.iter().take(NAMED.saturating_sub(all.items.len())).cloned());
    GcView {
        runs: all.runs + next.runs,
        bytes: all.bytes + next.bytes,
        age: all.age + next.age,
        count: all.count + next.count,
        size: all.size + next.size,
        items: all.items,
        ..next
    }
}

fn show(cx: &Context, all: &GcView) -> Result<()> {
    let went = if all.dry_run { "would go" } else { "went" };
    if !all.items.is_empty() {
        let rows = all.items.iter().map(|it| {
            let why = match it.why {
                Why::Age => "age",
                Why::Count => "count",
                Why::Size => "size",
            };
            vec![it.run.to_string(), it.bytes.to_string(), why.to_owned()]
        });
        cx.terminal.print(&fitted(cx.terminal.width(), &["run", "bytes", "why"], rows))?;
    }
    let named = all.items.len() as u64;
    if all.runs > named {
        cx.terminal.say(&format!("and {} more", all.runs - named));
    }
    let GcView { runs, bytes, age, count, size, used_bytes, free_bytes, .. } = all;
    cx.terminal.say(&format!(
        "{runs} run(s) {went}, about {bytes} bytes: {age} by age, {count} by count, {size} by size"
    ));
    cx.terminal.say(&format!("the database uses {used_bytes} bytes, {free_bytes} are free in it"));
    Ok(())
}
